"""The command line: one file a command."""

from __future__ import annotations

from snefy_ldl.cli.entry import app, main

__all__ = [
    "app",
    "main",
]
