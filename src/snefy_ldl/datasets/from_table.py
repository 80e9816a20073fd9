"""A table on disk as a data set."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._text import shorten
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.datasets.numbers import read_numbers
from snefy_ldl.datasets.tables import Progress, TableSource
from snefy_ldl.errors import InputError
from snefy_ldl.validation import check_counts, check_distributions, check_features

__all__ = ["load_table"]


def load_table(
    path: str | os.PathLike[str],
    labels: str | Sequence[str],
    features: str | Sequence[str] | None = None,
    counts: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    r"""A CSV, TSV or Parquet file as a :class:`Dataset`.

    Args:
        path: The file; its ending (``.csv``, ``.tsv``, ``.parquet``, ``.pq``; text also ``.gz``) says how to read it.
        labels: Columns that hold the label distribution, as a list or a comma-separated string.
        features: Columns to use as features; by default every other column, all of which must be numeric.
        counts: The label columns hold vote counts ``k``; ``D`` becomes the proportions ``k / Σ k``.
        progress: Called with how many rows of a Parquet file are read, and of how many; nobody by default.

    Returns:
        The rows, with the columns' names; ``name`` is the file's name without its ending. Features of a Parquet file
        with more than 16 million of them are float32, as networks use them.

    Raises:
        InputError: A column is missing or not numeric, or its values break a rule.
        DataNotFoundError: There is no such file.
        ImportError: pandas or pyarrow is not installed.

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
    label_names = _column_list(labels, "labels", source.columns)
    if features is None:
        feature_names = [column for column in source.columns if column not in label_names]
    else:
        feature_names = _column_list(features, "features", source.columns)
    if both := [column for column in feature_names if column in label_names]:
        raise InputError(f"{file.name}: column {both[0]!r} is named both as a label and as a feature.")
    # a large Parquet file goes straight into arrays; a frame is made where it is small, or where something is wrong
    numbers = read_numbers(source, feature_names, label_names, progress)
    features, shares = numbers or _as_frames(source, feature_names, label_names)
    try:
        X = check_features(_with_names(features, feature_names))
        shares = _with_names(shares, label_names)
        votes = check_counts(shares, n_rows=len(X))[0] if counts else None
        D = check_distributions(shares, n_rows=len(X))[0] if votes is None else votes / votes.sum(axis=1, keepdims=True)
    except InputError as error:
        raise InputError(f"{file.name}: {error}") from None
    return Dataset(
        X=X,
        D=D,
        counts=votes,
        label_names=label_names,
        feature_names=feature_names,
        name=file.name.split(".")[0],
        source=str(file),
    )


def _with_names(values: Any, names: list[str]) -> Any:
    """An array as a frame, without a copy: messages then name the column."""
    import pandas  # an extra, loaded by the table already

    return pandas.DataFrame(values, columns=names, copy=False) if isinstance(values, np.ndarray) else values


def _as_frames(source: TableSource, features: list[str], labels: list[str]) -> tuple[Any, Any]:
    """Both parts of a table as frames of float64, checked to be numbers."""
    table, name = source.whole([*labels, *features], []), source.file.name
    for column in labels:
        _check_numeric(table[column], f"{name}: label column {column!r}")
    for column in features:
        advice = (
            "Turn it into numbers (for categories, one-hot: pandas.get_dummies), or leave it out by naming the "
            "feature columns with features=[...]."
        )
        _check_numeric(table[column], f"{name}: feature column {column!r}", advice)
    return table[features].astype("float64"), table[labels].astype("float64")


def _column_list(columns: str | Sequence[str], what: str, available: list[str]) -> list[str]:
    """Columns out of a list or a text with commas, each there and none twice."""
    names = [part.strip() for part in columns.split(",")] if isinstance(columns, str) else [str(c) for c in columns]
    for name in names:
        if name not in available:
            near = difflib.get_close_matches(name, available, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{what}: no column {name!r}; {hint}Available: {shorten(available, 30)}.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{what} names the column {repeated[0]!r} more than once.")
    return names


def _check_numeric(column: Any, what: str, advice: str = "") -> None:
    """Raise unless a column holds real numbers; an example of what it holds instead is shown."""
    from pandas.api.types import is_complex_dtype, is_numeric_dtype  # an extra, loaded by the table already

    if is_numeric_dtype(column) and not is_complex_dtype(column):
        return
    present = column.dropna()
    example = repr(str(present.iloc[0])) if len(present) else "nothing"
    raise InputError(f"{what} is not numeric (it holds {example}). {advice}".rstrip())
