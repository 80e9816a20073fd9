"""Parquet files on this machine or in an object store, read by ranges of their rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from snefy_ldl._internal.text import shorten
from snefy_ldl.datasets.table_files import need_columns
from snefy_ldl.errors import DataNotFoundError, InputError

__all__ = ["ParquetTable", "find_parquet"]

#: Endings of Parquet files.
ENDINGS = (".parquet", ".pq")


def find_parquet(address: str) -> tuple[Any, list[str]]:
    """The Parquet files that an address stands for: itself, or all in a folder, by name, hidden ones left out.

    Args:
        address: a path of a file or a folder, or an address that pyarrow can read: ``s3://``, ``gs://``, ``abfs://``,
            ``hdfs://``, ``file://``.

    Returns:
        The ``pyarrow.fs.FileSystem``, and paths in it; none if there is nothing.

    Raises:
        InputError: pyarrow does not support this kind of address.

    Example:
        >>> find_parquet("no-such-folder")[1]
        []
    """
    from pyarrow import fs  # an extra, loaded where it is used

    system, path = fs.LocalFileSystem(), str(Path(address).absolute())
    if "://" in address:
        try:
            system, path = fs.FileSystem.from_uri(address)
        except (ValueError, NotImplementedError) as error:
            raise InputError(f"{address}: pyarrow does not support such an address ({error}).") from None
    if system.get_file_info(path).type == fs.FileType.File:
        return system, [path]
    inside = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    hidden = re.compile(r"/[._]")
    files = [one.path for one in inside if one.is_file and one.path.endswith(ENDINGS)]
    return system, sorted(file for file in files if not hidden.search(file[len(path.rstrip("/")) :]))


class ParquetTable:
    """Parquet files with the same columns, whose metadata are read before any work starts.

    Args:
        addresses: files and folders of one file system, in the order of their rows; see :func:`find_parquet`.

    Attributes:
        system: the file system that holds them.
        files: their paths.
        columns: of all files.
        n_rows: of all files together.

    Raises:
        DataNotFoundError: there is no Parquet file at an address.
        InputError: a file cannot be read, is named twice, or lacks a column of the first one.

    Example:
        >>> import pandas, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pandas.DataFrame({"a": range(50)}).to_parquet(f"{folder}/rows.parquet", row_group_size=8)
        ...     table = ParquetTable([folder])
        ...     rows = [batch.num_rows for batch in table.batches(["a"], 4, 20, most_rows=100)]
        >>> table.n_rows, table.columns, rows
        (50, ['a'], [4, 8, 4])
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        import pyarrow
        from pyarrow.dataset import ParquetFileFormat

        self.system: Any = None
        self.columns: list[str] = []
        self._fragments: list[Any] = []
        for address in addresses:
            self.system, paths = find_parquet(address)
            if not paths:
                raise DataNotFoundError(f"no Parquet file at {address}.")
            for path in paths:
                if path in self.files:
                    raise InputError(f"{path} is named twice; its rows would be counted twice.")
                fragment = ParquetFileFormat().make_fragment(path, filesystem=self.system)
                try:
                    names = [str(name) for name in fragment.physical_schema.names]
                except (pyarrow.ArrowInvalid, OSError) as error:
                    raise InputError(f"{path} cannot be read as a Parquet file ({error}).") from None
                names = [name for name in names if not name.startswith("__index_level_")]
                self.columns = self.columns or names
                if missing := [name for name in self.columns if name not in names]:
                    raise InputError(f"{path} lacks columns that {self.files[0]} has: {shorten(missing)}.")
                self._fragments.append(fragment)
        self.n_rows = sum(int(fragment.metadata.num_rows) for fragment in self._fragments)

    @property
    def files(self) -> list[str]:
        """Paths of the files, in the order of their rows."""
        return [str(fragment.path) for fragment in self._fragments]

    @property
    def file(self) -> PurePosixPath:
        """The first file, for messages."""
        return PurePosixPath(self.files[0])

    def need(self, columns: list[str], what: str) -> None:
        """Raise unless every column is there.

        Args:
            columns: their names.
            what: they are for.

        Raises:
            InputError: some are missing; the message names them.
        """
        need_columns(columns, what, self.columns, self.file.name)

    def batches(self, columns: list[str], first: int, last: int, most_rows: int) -> Iterator[Any]:
        """The rows from one number to before another; row groups outside are not read.

        Args:
            columns: to read.
            first: number of the first row.
            last: number of the row after the last one.
            most_rows: of a batch.

        Yields:
            Batches of pyarrow's.
        """
        start = 0
        for fragment in self._fragments:
            for group in fragment.row_groups:
                end = start + group.num_rows
                if start < last and end > first:
                    part, place = fragment.subset(row_group_ids=[group.id]), start
                    for batch in part.to_batches(columns=columns, batch_size=most_rows, use_threads=False):
                        low, high = max(first - place, 0), min(last - place, batch.num_rows)
                        if high > low:
                            yield batch.slice(low, high - low)
                        place += batch.num_rows
                start = end
