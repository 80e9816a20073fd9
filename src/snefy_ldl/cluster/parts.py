"""Tables cut into parts, each of which becomes one file: what a worker takes, loses when it dies, and does again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from snefy_ldl._internal.text import shorten
from snefy_ldl.cluster.places import Place
from snefy_ldl.errors import InputError

__all__ = ["PART_ROWS", "Part", "PartTable", "plan_parts", "read_stamp"]

#: Rows of a part, unless a row group of the file is longer.
PART_ROWS = 1 << 17
#: Rows read and answered at a time.
BATCH_ROWS = 1 << 15
#: Bytes that the reader of a column holds: without a buffer it reads whole row groups.
BUFFER_BYTES = 1 << 17
#: Key of the metadata in which a part's file says what it was made from.
STAMP = b"snefy_ldl"


@dataclass(frozen=True)
class Part:
    """Some row groups of a Parquet file that become one file.

    Args:
        number: among all parts, in the order of the rows.
        source: the file.
        version: of the file: its size and time of writing.
        groups: the row groups, from this one to before that one.
        first: number of the first row in the file.
        rows: how many there are.
        before: rows of all parts before this one.

    Example:
        >>> part = Part(0, Place("rows.parquet"), "1", (0, 2), 0, 50, 0)
        >>> part.source.name, part.rows
        ('rows.parquet', 50)
    """

    number: int
    source: Place
    version: str
    groups: tuple[int, int]
    first: int
    rows: int
    before: int

    @property
    def file_name(self) -> str:
        """Of the file that it becomes: in the order of the names lie the rows."""
        return f"part-{self.number:06d}.parquet"

    def batches(self, columns: list[str], rows: int = BATCH_ROWS) -> Iterator[tuple[int, Any]]:
        """The rows, some at a time, in bounded memory.

        Args:
            columns: to read.
            rows: most rows of a batch.

        Yields:
            The number in the file of the first row, and a batch of pyarrow's.
        """
        from pyarrow import parquet  # an extra, loaded where it is used

        system, path = self.source.open()
        start = self.first
        with (
            system.open_input_file(path) as file,
            parquet.ParquetFile(file, buffer_size=BUFFER_BYTES) as content,
        ):
            for batch in content.iter_batches(rows, row_groups=list(range(*self.groups)), columns=columns):
                yield start, batch
                start += batch.num_rows

    def stamp(self, work: str) -> str:
        """What a finished file must say about itself.

        Args:
            work: digest of the work that is done on it.

        Returns:
            A digest of both.
        """
        content = json.dumps([work, asdict(self)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


class PartTable:
    """Parquet files of one form, looked at before any work starts.

    Args:
        places: the files, in the order of their rows.

    Attributes:
        columns: of all files.
        n_rows: of all files together.

    Raises:
        InputError: a file cannot be read, lacks a column of the first one, or there are no rows.

    Example:
        >>> import pandas, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pandas.DataFrame({"a": range(50)}).to_parquet(f"{folder}/rows.parquet")
        ...     table = PartTable([Place(f"{folder}/rows.parquet")])
        >>> table.n_rows, table.columns
        (50, ['a'])
    """

    def __init__(self, places: list[Place]) -> None:
        import pyarrow
        from pyarrow import parquet

        self.places = places
        self.metadata: list[Any] = []
        self.versions: list[str] = []
        self.columns: list[str] = []
        for place in places:
            system, path = place.open()
            info = system.get_file_info(path)
            try:
                with system.open_input_file(path) as file:
                    metadata = parquet.read_metadata(file)
            except (pyarrow.ArrowInvalid, OSError) as error:
                raise InputError(f"{place.address} cannot be read as a Parquet file ({error}).") from None
            names = [str(name) for name in metadata.schema.to_arrow_schema().names]
            names = [name for name in names if not name.startswith("__index_level_")]
            self.columns = self.columns or names
            if missing := [name for name in self.columns if name not in names]:
                raise InputError(f"{place.name} lacks columns that {places[0].name} has: {shorten(missing)}.")
            self.metadata.append(metadata)
            self.versions.append(f"{info.size} {info.mtime_ns}")
        self.n_rows = sum(int(metadata.num_rows) for metadata in self.metadata)
        if not self.n_rows:
            raise InputError(f"{places[0].name} holds no rows.")

    @cached_property
    def file(self) -> PurePosixPath:
        """The first file, for messages."""
        return PurePosixPath(self.places[0].address)

    def need(self, columns: list[str], what: str) -> None:
        """Raise unless every column is there.

        Args:
            columns: their names.
            what: they are for.

        Raises:
            InputError: some are missing; the message names them.
        """
        if missing := [name for name in columns if name not in self.columns]:
            raise InputError(
                f"{self.file.name} lacks {len(missing)} column(s) ({what}): {shorten(missing)}. "
                f"It has: {shorten(self.columns)}."
            )

    def column(self, name: str) -> Iterator[list[Any]]:
        """The cells of one column, some at a time.

        Args:
            name: of the column.

        Yields:
            Cells as Python has them, in the order of the rows.
        """
        for part in plan_parts(self):
            for _, batch in part.batches([name]):
                yield batch.column(0).to_pylist()


def plan_parts(table: PartTable, rows: int = PART_ROWS) -> list[Part]:
    """Cut files into parts of whole row groups.

    Args:
        table: the files.
        rows: of a part, at most, unless one row group holds more.

    Returns:
        The parts, in the order of the rows; files without rows have none.

    Example:
        >>> import pandas, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frame = pandas.DataFrame({"depth": range(10)})
        ...     frame.to_parquet(f"{folder}/soil.parquet", row_group_size=3)
        ...     [(part.first, part.rows) for part in plan_parts(PartTable([Place(f"{folder}/soil.parquet")]), 6)]
        [(0, 6), (6, 4)]
    """
    parts: list[Part] = []
    before = 0
    for place, version, metadata in zip(table.places, table.versions, table.metadata):
        sizes = [int(metadata.row_group(k).num_rows) for k in range(metadata.num_row_groups)]
        first, start, held = 0, 0, 0
        for group, size in enumerate(sizes):
            held += size
            is_last = group == len(sizes) - 1
            if held and (is_last or held + sizes[group + 1] > rows):
                parts.append(Part(len(parts), place, version, (start, group + 1), first, held, before))
                first, start, before, held = first + held, group + 1, before + held, 0
    return parts


def read_stamp(place: Place) -> dict[str, Any] | None:
    """What a finished part's file says about itself.

    Args:
        place: of the file.

    Returns:
        Its stamp, rows and summary; None where there is no whole file, or it is not one of ours.

    Example:
        >>> read_stamp(Place("no-such-file.parquet")) is None
        True
    """
    import pyarrow
    from pyarrow import parquet

    system, path = place.open()
    try:
        with system.open_input_file(path) as file:
            content = (parquet.read_metadata(file).metadata or {}).get(STAMP)
        stamp = None if content is None else json.loads(content)
    except (pyarrow.ArrowInvalid, OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None
