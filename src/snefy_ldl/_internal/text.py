"""Words for messages: names are listed, and files named, in the same way everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: A unit at the end of a column's name: Sand (%), clay_pct, Fe [mg/kg], silt_g_kg.
UNIT_NAME = re.compile(
    r"(?P<stem>.+?)(?:[\s_]*[(\[]?(?P<sign>[%‰])|[\s_.]*[(\[\s_.]"
    r"(?P<word>percent|pct|permille|ppm|(?:mg|g|µg|ug)[ /_.]*(?:kg|g)(?:-1|⁻¹)?))[)\]\s]*",
    re.IGNORECASE,
)


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


def strip_unit(name: str) -> tuple[str, str]:
    """Name of a column without the unit at its end, and that unit.

    Args:
        name: Of the column.

    Returns:
        The name, and the unit or an empty text.

    Example:
        >>> strip_unit("Sand (%)"), strip_unit("clay_g_kg"), strip_unit("humid")
        (('Sand', '%'), ('clay', 'g/kg'), ('humid', ''))
    """
    found = UNIT_NAME.fullmatch(name.strip())
    if found is None:
        return name, ""
    word = re.sub(r"[ /_.]+|(?<=[a-z])(?=kg)", "/", (found["sign"] or found["word"]).lower()).removesuffix("-1")
    return found["stem"], {"percent": "%", "pct": "%", "permille": "‰"}.get(word, word.removesuffix("⁻¹"))


def plain_names(names: Sequence[str]) -> list[str]:
    """Names of labels as shares of one have them: without the unit that all of them end in.

    Args:
        names: Of the labels.

    Returns:
        The names without it; as they are if two would be alike, or a number comes before the unit (over 5 %).

    Example:
        >>> plain_names(["Sand (%)", "Clay (%)"]), plain_names(["Sand (%)", "Clay"]), plain_names(["0 %", "50 %"])
        (['Sand', 'Clay'], ['Sand (%)', 'Clay'], ['0 %', '50 %'])
    """
    stems, units = zip(*map(strip_unit, names))
    shared = len(set(units)) == 1 and len(set(stems)) == len(names) and not any(stem[-1:].isdigit() for stem in stems)
    return list(stems if shared else names)
