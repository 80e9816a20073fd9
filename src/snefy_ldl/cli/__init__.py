"""The command line ``snefy-ldl``: :mod:`~snefy_ldl.cli.entry` is the program; the other modules register commands."""

from __future__ import annotations

from snefy_ldl.cli import (  # noqa: F401 - each registers its commands
    compare,
    demo,
    explain,
    fit,
    info,
    predict,
    query,
    report,
    reproduce,
    serve,
    votes,
)
from snefy_ldl.cli.entry import app, main

__all__ = ["app", "main"]
