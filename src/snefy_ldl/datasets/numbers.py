"""Columns of numbers read straight into one array, a part at a time: no frame of the whole table is ever made."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.limits import SINGLE_NUMBERS
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.tables import Progress, TableSource, parquet_batches

__all__ = ["read_numbers", "read_parts"]

#: Rows taken over at a time: their part of the array stays in a processor's cache while column after column fills it.
PART_ROWS = 8192


def read_numbers(
    source: TableSource, features: list[str], labels: list[str], progress: Progress | None = None
) -> tuple[Any, Array] | None:
    """Features and labels of a Parquet file, each as one array.

    Args:
        source: The table.
        features: Names of the feature columns (d).
        labels: Names of the label columns (L).
        progress: Called with how much is done, and of how much.

    Returns:
        Features (N, d), float64, or float32 where they are very many, and labels (N, L), float64; NaN where a cell is
        empty. None where the file is no Parquet file, has no rows, or a column does not hold plain numbers: a frame
        then tells what is wrong.

    >>> import pandas, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "soil.parquet"
    ...     pandas.DataFrame({"depth": [10, 20], "sand": [0.5, 0.25], "site": ["a", "b"]}).to_parquet(file)
    ...     source = TableSource(file)
    ...     read_numbers(source, ["depth"], ["sand"]), read_numbers(source, ["depth"], ["site"])
    ((array([[10.],
           [20.]]), array([[0.5 ],
           [0.25]])), None)
    """
    if source.kind != "parquet":
        return None
    import pyarrow.parquet  # an extra, loaded where it is used
    from pyarrow import types

    metadata = pyarrow.parquet.read_metadata(source.file)
    schema, n_rows = metadata.schema.to_arrow_schema(), int(metadata.num_rows)
    kinds = [schema.field(name).type for name in (*features, *labels)]
    if n_rows == 0 or not all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
        return None
    single = n_rows * len(features) > SINGLE_NUMBERS
    X = np.empty((n_rows, len(features)), dtype=np.float32 if single else np.float64)
    Y = np.empty((n_rows, len(labels)))
    start = 0
    try:
        for batch, _ in parquet_batches(source.file, PART_ROWS, [*features, *labels]):
            stop = start + batch.num_rows
            for table, names in ((X, features), (Y, labels)):
                part = table[start:stop]
                for k, name in enumerate(names):
                    part[:, k] = batch.column(name).to_numpy(zero_copy_only=False)
            start = stop
            if progress is not None:
                progress(start, n_rows)
    except (ValueError, OSError):  # a damaged file
        return None
    return X, Y


def read_parts(
    source: TableSource,
    features: list[str],
    labels: list[str],
    key: str | None = None,
    progress: Progress | None = None,
) -> tuple[Any, Any, list[str] | None]:
    """Features, labels and names of the rows of a table; a Parquet file of numbers goes straight into arrays.

    Args:
        source: The table.
        features: Names of the feature columns (d).
        labels: Names of the label columns (L).
        key: Column that names the rows, or None.
        progress: Called with how much is done, and of how much.

    Returns:
        DataFrames (N, d) and (N, L) of whatever the cells hold, and the rows' names as text, or None.

    Raises:
        InputError: There is no row.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "soil.csv"
    ...     _ = file.write_text("site,sand" + chr(10) + "a,0.5" + chr(10))
    ...     read_parts(TableSource(file), [], ["sand"], "site")[2]
    ['a']
    """
    import pandas  # an extra, loaded by the table already

    names = [] if key is None else [key]
    numbers = read_numbers(source, features, labels, progress)
    if numbers is None:
        table = source.whole([*labels, *features], names, progress)
        return table[features], table[labels], None if key is None else list(table[key])
    X, Y = (
        pandas.DataFrame(part, columns=part_names, copy=False) for part, part_names in zip(numbers, (features, labels))
    )
    return X, Y, None if key is None else list(source.whole([], names)[key])
