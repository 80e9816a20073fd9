"""The version of the library, in a module that imports nothing."""

from __future__ import annotations

__version__ = "0.2.0"
