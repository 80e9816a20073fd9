"""Parquet files on this machine or in an object store, cut into parts that become one file each."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from snefy_ldl._internal.text import shorten
from snefy_ldl.datasets.tables import need_columns
from snefy_ldl.errors import DataNotFoundError, InputError

__all__ = ["PART_ROWS", "Part", "PartTable", "StoragePath", "find_tables", "plan_parts", "read_stamp"]

#: Endings of Parquet files.
ENDINGS = (".parquet", ".pq")


@dataclass(frozen=True)
class StoragePath:
    """A file or a folder, on this machine or in an object store.

    Only the address is sent between processes: each process opens the file system itself.

    Args:
        address: a path, or an address such as ``s3://bucket/folder``. pyarrow's own file systems come first, then
            those of fsspec.

    Example:
        >>> StoragePath("data/rows.parquet").name, StoragePath("s3://bucket/out").child("part").address
        ('rows.parquet', 's3://bucket/out/part')
    """

    address: str

    @property
    def name(self) -> str:
        """The last part of the address."""
        return posixpath.basename(self.address.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """Whether the address is a plain path."""
        return "://" not in self.address

    def child(self, name: str) -> StoragePath:
        """Something in this folder.

        Args:
            name: of a file in it.

        Returns:
            Its place.
        """
        return StoragePath(f"{self.address.rstrip('/')}/{name}")

    def open(self) -> tuple[Any, str]:
        """The file system, and the path in it.

        Returns:
            A ``pyarrow.fs.FileSystem`` and a path.

        Raises:
            InputError: neither pyarrow nor fsspec supports this kind of address.
        """
        from pyarrow import fs  # an extra, loaded where it is used

        if self.is_local:
            return fs.LocalFileSystem(), str(Path(self.address).absolute())
        try:
            return tuple(fs.FileSystem.from_uri(self.address))
        except (ValueError, NotImplementedError):
            pass
        try:
            import fsspec  # knows more kinds of address than pyarrow

            system, path = fsspec.core.url_to_fs(self.address)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"{self.address}: neither pyarrow nor fsspec supports such an address ({error})."
            ) from None
        return fs.PyFileSystem(fs.FSSpecHandler(system)), path

    def files(self) -> list[StoragePath]:
        """All Parquet files in this folder and its folders, by name; hidden ones are left out.

        Returns:
            Their places.
        """
        from pyarrow import fs

        system, path = self.open()
        chosen = fs.FileSelector(path, recursive=True, allow_not_found=True)
        inside = [info.path for info in system.get_file_info(chosen) if info.is_file]
        root = path.rstrip("/")
        names = sorted(name[len(root) :].lstrip("/") for name in inside)
        hidden = re.compile(r"(^|/)[._]")
        return [self.child(name) for name in names if name.endswith(ENDINGS) and not hidden.search(name)]

    def kind(self) -> str:
        """What is stored there.

        Returns:
            ``"file"``, ``"folder"`` or ``"nothing"``.
        """
        from pyarrow import fs

        system, path = self.open()
        kind = system.get_file_info(path).type
        return {fs.FileType.File: "file", fs.FileType.Directory: "folder"}.get(kind, "nothing")

    @contextmanager
    def replaced(self) -> Iterator[Any]:
        """Write a file under a temporary name that becomes this one when the block ends well.

        Yields:
            The open file.
        """
        system, path = self.open()
        folder, name = posixpath.split(path)
        system.create_dir(folder, recursive=True)
        temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
        try:
            with system.open_output_stream(temporary) as file:
                yield file
            system.move(temporary, path)
        except BaseException:
            _remove(system, temporary)
            raise

    def tidy(self) -> None:
        """Remove temporary files that killed workers left in this folder; no other run may be writing there."""
        from pyarrow import fs

        system, path = self.open()
        for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if info.is_file and info.base_name.startswith(".") and info.base_name.endswith(".part"):
                _remove(system, info.path)


def _remove(system: Any, path: str) -> None:
    try:
        system.delete_file(path)
    except OSError:  # the file or the store is gone: the first error is the one to report
        return


def find_tables(addresses: list[str]) -> list[StoragePath]:
    """Parquet files that addresses or patterns stand for.

    Args:
        addresses: files, folders of files, or patterns with a ``*`` in their last part; paths or addresses.

    Returns:
        The files: in the order of the addresses, those of a folder or pattern by name.

    Raises:
        DataNotFoundError: there is no such file.
        InputError: a file is no Parquet file, or is named twice.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.parquet", "a.parquet"):
        ...         _ = (Path(folder) / name).write_bytes(b"")
        ...     [place.name for place in find_tables([f"{folder}/*.parquet"])]
        ['a.parquet', 'b.parquet']
    """
    places: list[StoragePath] = []
    for address in addresses:
        place = StoragePath(address)
        if "*" in place.name:
            folder = StoragePath(posixpath.dirname(address) or ".")
            depth = folder.address.rstrip("/").count("/") + 1
            matching = [
                one for one in folder.files() if one.address.count("/") == depth and fnmatchcase(one.name, place.name)
            ]
        elif place.kind() == "folder":
            matching = place.files()
        else:
            matching = [place] if place.kind() == "file" else []
        if not matching:
            raise DataNotFoundError(f"no Parquet file at {address}.")
        places += matching
    for place in places:
        if not place.name.endswith(ENDINGS):
            raise InputError(f"{place.name}: work in parts reads Parquet files only; write the table as one first.")
    if len({place.address for place in places}) < len(places):
        twice = next(place for k, place in enumerate(places) if place in places[:k])
        raise InputError(f"{twice.address} is named twice; its rows would be counted twice.")
    return places


#: Rows of a part, unless a row group of the file is longer.
PART_ROWS = 1 << 17
#: Rows read and answered at a time.
BATCH_ROWS = 1 << 15
#: Bytes that the reader of a column holds: without a buffer it reads whole row groups.
BUFFER_BYTES = 1 << 17
#: Key of the Parquet metadata that records what a part's file was made from.
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
        >>> part = Part(0, StoragePath("rows.parquet"), "1", (0, 2), 0, 50, 0)
        >>> part.source.name, part.rows
        ('rows.parquet', 50)
    """

    number: int
    source: StoragePath
    version: str
    groups: tuple[int, int]
    first: int
    rows: int
    before: int

    @property
    def file_name(self) -> str:
        """Name of the output file; sorted by name, the files hold the rows in order."""
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
        """A digest that identifies the finished file.

        Args:
            work: digest of the work.

        Returns:
            A digest of both.
        """
        content = json.dumps([work, asdict(self)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


class PartTable:
    """Parquet files with the same columns, whose metadata are read before any work starts.

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
        ...     table = PartTable([StoragePath(f"{folder}/rows.parquet")])
        >>> table.n_rows, table.columns
        (50, ['a'])
    """

    def __init__(self, places: list[StoragePath]) -> None:
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
        need_columns(columns, what, self.columns, self.file.name)


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
        ...     [(part.first, part.rows) for part in plan_parts(PartTable([StoragePath(f"{folder}/soil.parquet")]), 6)]
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


def read_stamp(place: StoragePath) -> str | None:
    """The stamp that a finished part's file carries.

    Args:
        place: of the file.

    Returns:
        Its stamp; None if the file is missing, incomplete, or was not written by a run.

    Example:
        >>> read_stamp(StoragePath("no-such-file.parquet")) is None
        True
    """
    import pyarrow
    from pyarrow import parquet

    system, path = place.open()
    try:
        with system.open_input_file(path) as file:
            stamp = (parquet.read_metadata(file).metadata or {}).get(STAMP)
    except (pyarrow.ArrowInvalid, OSError):
        return None
    return None if stamp is None else stamp.decode()
