"""Folders of Parquet files as a stream of rows: more than memory holds, read a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snefy_ldl._internal.limits import STREAM_BYTES, STREAM_ROWS
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.datasets.tables import TableSource, parquet_batches, table_kind
from snefy_ldl.errors import DataNotFoundError, InputError


def parquet_stream(
    folder: Path, labels: list[str], features: list[str] | None = None, counts: bool = False
) -> tuple[Stream, list[str]]:
    """A folder of Parquet files (or one file) as a stream, in the order of the files' names.

    Args:
        folder: with files that end in ``.parquet`` or ``.pq``, in folders of their own too.
        labels: the label columns.
        features: the feature columns; all others by default.
        counts: whether labels are votes.

    Returns:
        The stream, and the names of its features.

    Raises:
        DataNotFoundError: where there is no such folder, or no Parquet file in it.
        InputError: where a file lacks a column.
        ImportError: pandas or pyarrow is not installed.

    Example:
        >>> import tempfile, pandas as pd
        >>> with tempfile.TemporaryDirectory() as place:
        ...     for part in range(2):
        ...         frame = pd.DataFrame({"x": [1.0, 2.0], "a": [0.5, 0.2], "b": [0.5, 0.8]})
        ...         frame.to_parquet(Path(place) / f"part{part}.parquet")
        ...     stream, names = parquet_stream(Path(place), ["a", "b"])
        ...     names, stream.n_rows, [len(chunk) for chunk in stream.chunks(3)]
        (['x'], 4, [4])
    """
    files = [folder] if folder.is_file() else sorted(f for f in folder.rglob("*") if f.suffix in (".parquet", ".pq"))
    if not files:
        raise DataNotFoundError(f"no Parquet files in {folder}.")
    sources = [TableSource(file) for file in files]
    if any(table_kind(file) != "parquet" for file in files):
        raise InputError(f"{folder.name}: only Parquet files can be streamed; a CSV file is read whole.")
    names = features or [name for name in sources[0].columns if name not in labels]
    for source in sources:
        source.need([*names, *labels], "features and labels")
    from pyarrow import parquet  # an extra, loaded where it is used

    n_rows = sum(int(parquet.read_metadata(file).num_rows) for file in files)
    step = max(256, min(STREAM_ROWS, STREAM_BYTES // (8 * (len(names) + len(labels)))))

    def blocks() -> Iterator[tuple[Any, Any]]:
        for file in files:
            for batch, _ in parquet_batches(file, step, [*names, *labels]):
                frame = batch.to_pandas()
                yield frame[names], frame[labels]

    return Stream(blocks, n_rows, counts), names
