"""Labelled rows joined to features that stand in another table, and several labelled sets in one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Index, Mask
from snefy_ldl.datasets.labelled import ID_NAMES, Labelled, find_id, names_groups, pick_rows
from snefy_ldl.datasets.tables import Progress, TableSource, cell_text
from snefy_ldl.errors import InputError

__all__ = ["JOINED", "append_rows", "join_features", "stack_tables"]

#: ``id_name`` of a set put together from several files: its names are keys that tell rows of all files apart.
JOINED = "joined"


def join_features(
    rows: Labelled,
    path: str | Path,
    feature_names: list[str],
    id_name: str | None = None,
    progress: Progress | None = None,
) -> Labelled:
    r"""The same rows with their features, looked up by name in a table that is read a part at a time.

    A table without a column of names is taken by row number, counting from 0, which is what ``query`` writes for it.

    Args:
        rows: Labels with names.
        path: Table of features.
        feature_names: Its columns.
        id_name: Its column of names; by default the one the rows have, else item, id or row.
        progress: Called with how much of the table is read, and how much there is.

    Returns:
        The rows that the table has; a remark says how many it lacks.

    Raises:
        InputError: The rows have no names, the table lacks a column or names a row twice, or not one row is in it.

    >>> import tempfile
    >>> rows = Labelled("votes.csv", np.array([[2.0, 1.0]]), True, ["no", "yes"], ids=["b"], id_name="item")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "items.csv"
    ...     _ = table.write_text("item,age\na,30\nb,40\n")
    ...     join_features(rows, table, ["age"]).features
       age
    0   40
    """
    if rows.ids is None:
        raise InputError(
            f"{rows.source} has neither the features ({shorten(feature_names, 4)}) nor a column that names its rows "
            "(item, id or row; another one with --id)."
        )
    source = TableSource(Path(path))
    source.need(feature_names, "features")
    same_column = rows.id_name if rows.id_name in source.columns and rows.id_name not in feature_names else None
    key = find_id(source.columns, id_name or same_column, feature_names)
    table, places, seen = _look_up(rows.ids, source, key, feature_names, progress)
    if not seen.any():
        column = f"column {key!r}" if key else "row numbers, as there is no column of names"
        raise InputError(
            f"not one row of {rows.source} is in {source.file.name}: {rows.source} names {rows.ids[0]!r}, "
            f"{source.file.name} goes by {column}. Name the right column with --id."
        )
    missing = [name for name, has in zip(rows.ids, seen) if not has]
    remarks = rows.remarks
    if missing:
        remark = f"{len(missing)} labelled rows are not in {source.file.name} and were left out"
        remarks = (*remarks, f"{remark}: {shorten(missing, 5)}")
    return replace(pick_rows(rows, np.sort(places)), features=table, remarks=(*remarks, *source.notes))


def _look_up(
    ids: list[str], source: TableSource, key: str | None, feature_names: list[str], progress: Progress | None
) -> tuple[Any, Index, Mask]:
    """Features of the rows that the table has, in the order of their places among these names, and which it has (N,).

    The first part is a DataFrame (k, d), the second the places in the order of the table (k,).
    """
    where: dict[str, list[int]] = {}
    for k, name in enumerate(ids):
        where.setdefault(name, []).append(k)
    seen, start = np.zeros(len(ids), dtype=bool), 0
    parts, places, twice = [], [], []
    for chunk in source.chunks(feature_names, [] if key is None else [key], progress, finite=False):
        names = range(start, start + len(chunk)) if key is None else chunk[key]
        texts = [cell_text(name) for name in names]
        start += len(chunk)
        hits = [(row, k) for row, text in enumerate(texts) for k in where.get(text, ())]
        if hits:
            here, there = (np.array(part) for part in zip(*hits))
            times = np.bincount(there, minlength=len(seen)) + seen
            twice += [ids[k] for k in np.flatnonzero(times > 1)]
            seen[there] = True
            parts.append(chunk[feature_names].iloc[here])
            places.append(there)
    if twice:
        raise InputError(f"{source.file.name} has two rows named {twice[0]!r} (column {key!r}); names must be unique.")
    order = np.concatenate(places) if places else np.zeros(0, dtype=np.intp)
    return (stack_tables(parts, np.argsort(order)) if parts else None), order, seen


def stack_tables(parts: Sequence[Any], order: Index | None = None) -> Any:
    """DataFrames with the same columns on top of each other.

    Args:
        parts: The tables.
        order: Rows of all of them in the order wanted; as they come by default.

    Returns:
        One DataFrame, its rows numbered anew.

    >>> import pandas
    >>> stack_tables([pandas.DataFrame({"a": [1]}), pandas.DataFrame({"a": [2]})])["a"].tolist()
    [1, 2]
    """
    import pandas  # an extra, loaded where tables are read

    with warnings.catch_warnings():  # pandas warns of columns that are empty in one of the parts
        warnings.simplefilter("ignore", FutureWarning)
        table = pandas.concat(list(parts), ignore_index=True)
    return table if order is None else table.iloc[order].reset_index(drop=True)


def append_rows(base: Labelled, new: Labelled) -> tuple[Labelled, int]:
    """Both sets in one; of rows with the same name the new one counts, unless names repeat within a set.

    Votes that join shares become shares; shares cannot become votes.

    Args:
        base: The rows so far, with features.
        new: Further rows, with features and the same labels.

    Returns:
        All rows, and how many of the first set the second replaced.

    Raises:
        InputError: A set has no features, the labels differ, or shares would join votes.

    >>> import pandas
    >>> def rows(name, yes):
    ...     table = pandas.DataFrame({"age": [30]})
    ...     return Labelled("a.csv", np.array([[1.0 - yes, yes]]), False, ["no", "yes"], [name], table, "id")
    >>> joined, replaced = append_rows(rows("x", 0.5), rows("x", 0.75))
    >>> joined.labels, replaced
    (array([[0.25, 0.75]]), 1)
    """
    if base.features is None or new.features is None:
        raise InputError("rows without features cannot be appended; join_features looks them up.")
    if new.label_names != base.label_names:
        raise InputError(
            f"{new.source} has the labels {shorten(new.label_names)}, {base.source} {shorten(base.label_names)}."
        )
    labels = new.labels
    if base.are_counts and not new.are_counts:
        raise InputError(
            f"{base.source} holds votes, {new.source} shares, and shares do not tell how many voted. Send numbers of "
            "votes, or fit shares throughout."
        )
    if new.are_counts and not base.are_counts:
        labels = labels / labels.sum(axis=1, keepdims=True)
    before, after = _keys(base), _keys(new)
    newer = set(after)
    keep = np.array([key not in newer for key in before], dtype=bool)
    joined = replace(
        base,
        labels=np.concatenate([base.labels[keep], labels]),
        features=stack_tables([base.features[keep], new.features]),
        ids=[key for key, kept in zip(before, keep) if kept] + after,
        id_name=JOINED,
        votes=None,
        remarks=(),
    )
    return joined, int((~keep).sum())


def _keys(rows: Labelled) -> list[str]:
    """Names that tell rows of several files apart.

    A row number counts rows of another table than a name stands in, so it is marked as one; a row without a name gets
    one from its file and place, and so does a row whose name is that of a group.
    """
    if rows.ids is None or names_groups(rows):
        return [f"{rows.source}, data row {row + 1}" for row in range(len(rows))]
    return [f"row number {name}" for name in rows.ids] if rows.id_name == ID_NAMES[-1] else rows.ids
