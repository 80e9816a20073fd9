"""Words for messages: the same list of names is shortened in the same way everywhere."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["shorten"]


def shorten(names: Sequence[str], limit: int = 12) -> str:
    """Names in one line; of many, the first few and the last.

    Args:
        names: What to list.
        limit: Most entries of the line, the dots included.

    Returns:
        The names between commas.

    >>> shorten(["sand", "silt", "clay"]), shorten(["a", "b", "c", "d", "e"], limit=4)
    ('sand, silt, clay', 'a, b, …, e')
    """
    return ", ".join(names if len(names) <= limit else [*names[: limit - 2], "…", names[-1]])
