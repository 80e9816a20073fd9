"""Which columns of a table hold item, annotator and label, whatever their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from snefy_ldl.datasets.tables import TableSource
from snefy_ldl.errors import InputError

__all__ = ["find_vote_columns", "guess_vote_columns", "is_wide"]

#: Words in names of columns that hold one of the three.
ANNOTATORS = frozenset(
    re.findall(
        r"\w+",
        "annotator annotators worker rater user who person coder labeller labeler judge participant expert subject "
        "reviewer voter by completed ",
    )
)
LABELS = frozenset(
    re.findall(
        r"\w+",
        "label labels vote choice answer class category rating annotation response judgement judgment emotion tag "
        "verdict value ",
    )
)
ITEMS = frozenset(
    re.findall(
        r"\w+",
        "item items image img photo picture text tweet sample task document doc question object file filename unit "
        "example instance row id key name ",
    )
)


def _words(name: str) -> list[str]:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[\W_]+", spaced.lower()) if word]


def _role(name: str) -> str:
    """What a column's name says it holds: worker_id is an annotator, image_label a label."""
    words = set(_words(name))
    for role, vocabulary in (("annotator", ANNOTATORS), ("label", LABELS), ("item", ITEMS)):
        if words & vocabulary:
            return role
    return ""


def guess_vote_columns(
    cells: Any, labels: Sequence[str] | None = None, items: Sequence[str] = ()
) -> tuple[str, str | None, str] | None:
    """Columns of a table with one vote a row.

    The label column is the one that holds nothing but labels, where these are known; otherwise names tell, and of three
    columns the one that is left.

    Args:
        cells: A DataFrame of text, None where a cell is empty.
        labels: The labels, where they are known.
        items: Columns of the items' own table: one of the same name names the items.

    Returns:
        Columns of item, annotator (None where there is none) and label; None where the table does not look so.

    Example:
        >>> import pandas
        >>> cells = pandas.DataFrame({"photo": ["a", "a"], "worker_id": ["7", "8"], "answer": ["cat", "dog"]})
        >>> guess_vote_columns(cells)
        ('photo', 'worker_id', 'answer')
    """
    names = [str(name) for name in cells.columns]
    roles: dict[str, list[str]] = {"annotator": [], "label": [], "item": [], "": []}
    for name in names:
        roles[_role(name)].append(name)
    if labels is not None:
        known = {str(label) for label in labels}
        holding = [name for name in names if set(cells[name].dropna()) and set(cells[name].dropna()) <= known]
        roles["label"] = holding if len(holding) == 1 else roles["label"]
    shared = [name for name in names if name in items and name not in roles["label"]]
    if len(shared) == 1:
        roles["item"] = shared
    if len(roles["item"]) > 1:  # "image" and "image_id", "id" and "text": the one whose votes come again
        repeated = [name for name in roles["item"] if cells[name].dropna().duplicated().any()]
        roles["item"] = repeated if len(repeated) == 1 else roles["item"]
    if len(names) in (2, 3):
        taken = {name for role in ("annotator", "label", "item") for name in roles[role]}
        rest = [name for name in names if name not in taken]
        empty = [role for role in ("item", "label") if not roles[role]]
        if len(rest) == 1 and len(empty) == 1:
            roles[empty[0]] = rest
    if len(roles["item"]) != 1 or len(roles["label"]) != 1 or roles["item"] == roles["label"]:
        return None
    return roles["item"][0], (roles["annotator"] or [None])[0], roles["label"][0]  # type: ignore[list-item]


def find_vote_columns(
    file: Path,
    wanted: tuple[str, str, str],
    form: Literal["auto", "long", "shares", "counts", "wide"],
    labels: Sequence[str] | None,
    id_name: str | None,
    items: Path | None,
) -> tuple[tuple[str, str, str], str]:
    """Columns of a long table of votes in a file: those wanted, where they are there, or those that look like them.

    Args:
        file: The table.
        wanted: Columns of item, annotator and label.
        form: "long" where the user said that the table holds one vote a row.
        labels: The labels, where they are known.
        id_name: Column that names the items, where the user named one.
        items: The items' own table, where there is one.

    Returns:
        The columns, and what a person should know about them; an empty text for nothing.

    Raises:
        InputError: The form is "long", and no three columns look like it; the message lists the columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     votes = Path(folder) / "votes.csv"
        ...     _ = votes.write_text(chr(10).join(["photo,worker,answer", "a,1,yes", "a,2,no"]))
        ...     find_vote_columns(votes, ("item", "annotator", "label"), "auto", None, None, None)[0]
        ('photo', 'worker', 'answer')
    """
    source = TableSource(file)
    item = id_name if id_name in source.columns else wanted[0]
    if wanted[2] in source.columns and item in source.columns:
        return (str(item), wanted[1], wanted[2]), ""
    if labels and set(labels) <= set(source.columns):
        return wanted, ""  # a column a label
    cells = source.whole([], source.columns)
    cells = cells.where(cells != "", None)
    guess = guess_vote_columns(cells, labels, () if items is None else TableSource(items).columns)
    if guess is not None and id_name in source.columns:
        guess = (str(id_name), guess[1], guess[2])
    if guess is None:
        if form == "long" and not any(name in source.columns for name in ("item", "id", "row")):
            raise InputError(
                f"{file.name}: which columns hold item, annotator and label? It has: {', '.join(source.columns)}. Say "
                "--vote-columns ITEM,ANNOTATOR,LABEL."
            )
        return wanted, ""
    who = f", annotator {guess[1]!r}" if guess[1] else ""
    words = f"one vote a row: item {guess[0]!r}{who}, label {guess[2]!r} (--vote-columns says otherwise)"
    return (guess[0], guess[1] or wanted[1], guess[2]), words


def is_wide(cells: Any) -> bool:
    """Whether columns of text could be annotators' votes: all of them hold some of the same labels.

    Args:
        cells: A DataFrame of text without the column of items, None where a cell is empty.

    Returns:
        False where a column of three values or more has none in common with any other: no annotator votes so.

    Example:
        >>> import pandas
        >>> cells = pandas.DataFrame({"photo": list("abcdefgh"), "vote": ["yes", "no"] * 4})
        >>> is_wide(cells), is_wide(cells[["vote"]])
        (False, True)
    """
    values = [set(cells[name].dropna()) for name in cells.columns]
    for k, column in enumerate(values):
        others = [other for j, other in enumerate(values) if j != k and other]
        if len(column) > 2 and others and not any(column & other for other in others):
            return False
    return True
