"""Votes of annotators: tables, agreement, scores, and whom to ask next."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Public names by the module they live in; loaded when first asked for, so that tables and agreement do without torch.
_HOMES = {
    "aggregation": "aggregate",
    "allocation": "next_vote update vote_value",
    "held_out": "calibrate_counts evaluate lewidi_scores noise_ceiling",
    "annotator_tables": "Votes",
}
__all__ = sorted(name for names in _HOMES.values() for name in names.split())


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"snefy_ldl.votes.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
