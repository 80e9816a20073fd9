"""The command line ``snefy-ldl``: one file a command, wired together in :mod:`snefy_ldl.cli.entry`."""

from __future__ import annotations

from snefy_ldl.cli.entry import app, main

__all__ = [
    "app",
    "main",
]
