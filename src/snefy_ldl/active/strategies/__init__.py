"""Query strategies, one idea a file; every module of this folder is loaded, so that a new file is a new strategy."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from snefy_ldl.active.strategies.base import STRATEGIES, Strategy

__all__ = ["STRATEGIES", "Strategy"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
