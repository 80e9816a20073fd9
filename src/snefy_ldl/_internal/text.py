"""Words for messages: names are listed, and files named, in the same way everywhere."""

from __future__ import annotations

from collections.abc import Sequence


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


def in_file(name: str, text: str) -> str:
    """A message about a table, with the file's name in front.

    Args:
        name: Of the file.
        text: The message.

    Returns:
        Both, unless the name stands there already.

    Example:
        >>> in_file("soil.csv", "data row 3: empty"), in_file("soil.csv", "not one row has a label.")
        ('soil.csv, data row 3: empty', 'soil.csv: not one row has a label.')
    """
    if text.startswith(name):
        return text
    return f"{name}, {text}" if text.startswith("data row") else f"{name}: {text}"
