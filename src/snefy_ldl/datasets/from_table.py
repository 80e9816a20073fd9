"""A table on disk as a data set."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.text import in_file, shorten
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.datasets.kinds import LeftOutColumn
from snefy_ldl.datasets.numbers import read_parts
from snefy_ldl.datasets.recognise import recognise
from snefy_ldl.datasets.shares import label_numbers, read_shares
from snefy_ldl.datasets.tables import Progress, TableSource
from snefy_ldl.errors import ClosureNote, InputError, TableNote

__all__ = ["column_list", "load_table"]


def load_table(
    path: str | os.PathLike[str],
    labels: str | Sequence[str],
    features: str | Sequence[str] | None = None,
    counts: bool = False,
    progress: Progress | None = None,
    normalize: bool = False,
) -> Dataset:
    r"""A table of your own as a :class:`Dataset`: text, Excel, Parquet or Feather.

    Percentages, numbers of votes and rounded shares are recognised by their sums, with a
    :class:`~snefy_ldl.errors.ClosureNote`; columns that name the rows are left out, with a
    :class:`~snefy_ldl.errors.TableNote`.

    Args:
        path: The file; its ending (``.csv``, ``.tsv``, also ``.gz``, ``.xlsx``, ``.parquet``, ``.feather``) says how to
            read it. Separator, decimal sign and encoding of a text are found out.
        labels: Columns that hold the label distribution, as a list or a comma-separated string.
        features: Columns to use as features; by default every other column that does not name the rows.
        counts: The label columns hold vote counts ``k``; ``D`` becomes the proportions ``k / Σ k``.
        progress: Called with how many rows of a Parquet file are read, and of how many; nobody by default.
        normalize: The label columns hold amounts; each row is divided by its sum.

    Returns:
        The rows, with the columns' names; ``name`` is the file's name without its ending. ``X`` is an array where all
        features are numbers without gaps, and a DataFrame otherwise: :meth:`SnefyLDL.fit` takes both.
        Features of a Parquet file with more than 16 million of them are float32, as networks use them.

    Raises:
        InputError: A column is missing, or the labels break a rule; the message names file, row and column.
        DataNotFoundError: There is no such file.
        ImportError: pandas or pyarrow is not installed, or openpyxl for Excel.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = pathlib.Path(folder.name) / "soil.csv"
    >>> _ = file.write_text("depth,sand,silt,clay\n10,0.5,0.3,0.2\n20,0.1,0.3,0.6\n")
    >>> load_table(file, labels="sand,silt,clay")
    Dataset('soil': 2 rows, 1 features, 3 labels (sand, silt, clay))
    >>> folder.cleanup()
    """
    file = Path(path).expanduser()
    source = TableSource(file)
    label_names = column_list(labels, "labels", source.columns)
    if features is None:
        feature_names = [column for column in source.columns if column not in label_names]
    else:
        feature_names = column_list(features, "features", source.columns)
    if both := [column for column in feature_names if column in label_names]:
        raise InputError(f"{file.name}: column {both[0]!r} is named both as a label and as a feature.")
    table, shares = read_parts(source, feature_names, label_names, progress=progress)[:2]
    try:
        reading = read_shares(
            label_numbers(shares, label_names, gaps=False),
            label_names,
            form="counts" if counts else "auto",
            normalize=normalize,
        )
    except InputError as error:
        raise InputError(in_file(file.name, str(error))) from None
    for note in reading.notes:
        warnings.warn(f"{file.name}: {note}.", ClosureNote, stacklevel=2)
    if features is None:
        feature_names = _without_ids(table, file.name)
    votes = reading.labels if reading.are_counts else None
    return Dataset(
        X=_plain_numbers(table if len(feature_names) == table.shape[1] else table[feature_names]),
        D=reading.labels if votes is None else votes / votes.sum(axis=1, keepdims=True),
        counts=votes,
        label_names=label_names,
        feature_names=feature_names,
        name=file.name.split(".")[0],
        source=str(file),
    )


def _without_ids(table: Any, file: str) -> list[str]:
    """The columns that do not name the rows; those that do are told."""
    kept, notes = [], []
    for name in table.columns:
        column, remarks = recognise(name, table[name])
        if isinstance(column, LeftOutColumn) and column.reason in ("id", "counter"):
            notes += remarks
        else:
            kept.append(name)
    if notes:
        words = "; ".join(notes)
        warnings.warn(TableNote(f"{file}: {words}. features=[...] keeps a column."), stacklevel=3)
    return kept


def _plain_numbers(table: Any) -> Any:
    """A table of numbers without gaps as an array, any other one as it is."""
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype  # an extra, loaded by the table

    numeric = all(
        is_numeric_dtype(table[name]) and not is_bool_dtype(table[name]) and not is_complex_dtype(table[name])
        for name in table.columns
    )
    if not numeric or table.isna().to_numpy().any():
        return table
    single = all(kind == np.float32 for kind in table.dtypes)  # very many numbers are read so
    return table.to_numpy() if single else table.to_numpy(dtype=np.float64)


def column_list(columns: str | Sequence[str], what: str, available: list[str]) -> list[str]:
    """Columns out of a list or a text with commas, each there and none twice.

    Args:
        columns: Names, as a list or a text with commas.
        what: What they are for, for the message.
        available: Columns of the table.

    Returns:
        The names.

    Raises:
        InputError: A column is missing, or named twice; the message has the nearest name.

    >>> column_list("sand, clay", "labels", ["ph", "sand", "clay"])
    ['sand', 'clay']
    """
    names = [part.strip() for part in columns.split(",")] if isinstance(columns, str) else [str(c) for c in columns]
    for name in names:
        if name not in available:
            near = difflib.get_close_matches(name, available, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{what}: no column {name!r}; {hint}Available: {shorten(available, 30)}.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{what} names the column {repeated[0]!r} more than once.")
    return names
