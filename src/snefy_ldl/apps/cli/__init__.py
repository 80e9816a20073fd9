"""The command line ``snefy-ldl``: :mod:`~snefy_ldl.apps.cli.entry` is the program, other modules hold commands."""

from __future__ import annotations

from snefy_ldl.apps.cli import (  # noqa: F401 - each registers its commands
    compare,
    demo,
    explain,
    fit,
    info,
    predict,
    query,
    report,
    serve,
)
from snefy_ldl.apps.cli.entry import app, main

__all__ = ["app", "main"]
