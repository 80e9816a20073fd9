"""Cells of a table to predict that are unlike those of the fit, and what to tell about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Surprise", "describe_surprises"]


@dataclass(frozen=True)
class Surprise:
    """Cells of a table to predict that were not like those of the fit.

    Args:
        column: Its name.
        what: "unseen", "empty" or "unreadable".
        cells: How many.
        example: One of them.
    """

    column: str
    what: str
    cells: int
    example: str = ""


def describe_surprises(odd: Iterable[Surprise]) -> str:
    """Cells unlike those of the fit, counted over all entries, in one sentence a column.

    Args:
        odd: What was odd about some tables.

    Returns:
        The sentences, one a line.

    Example:
        >>> print(describe_surprises([Surprise("rock", "unseen", 2, "mud"), Surprise("rock", "unseen", 1, "peat")]))
        column 'rock': 3 cells hold values the model has not seen (mud, say) and count as 'other'
    """
    counts: dict[tuple[str, str], list[Any]] = {}
    for one in odd:
        entry = counts.setdefault((one.column, one.what), [0, one.example])
        entry[0] += one.cells
    lines = []
    for (name, what), (cells, example) in counts.items():
        many = cells > 1
        words = {
            "unseen": f"hold{'' if many else 's'} {'values' if many else 'a value'} the model has not seen ({example}, "
            "say) and "
            f"count{'' if many else 's'} as 'other'",
            "empty": f"{'are' if many else 'is'} empty, which none was at the fit, and "
            f"{'get' if many else 'gets'} the middle value",
            "unreadable": f"cannot be read ({example!r}, say) and count{'' if many else 's'} as empty",
        }
        lines.append(f"column {name!r}: {cells:,} cell{'s' if many else ''} {words[what]}")
    return "\n".join(lines)
