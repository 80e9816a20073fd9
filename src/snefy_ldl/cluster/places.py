"""Where files lie: a path on this machine, or an address that pyarrow or fsspec knows (s3://, gs://, memory://)."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl.errors import DataNotFoundError, InputError

__all__ = ["Place", "find_tables"]

#: Endings of Parquet files.
ENDINGS = (".parquet", ".pq")


@dataclass(frozen=True)
class Place:
    """A file or a folder, on this machine or in an object store.

    Only its address travels between processes: each opens the file system for itself.

    Args:
        address: a path, or an address such as ``s3://bucket/folder``. pyarrow's own file systems come first, then
            those of fsspec.

    Example:
        >>> Place("data/rows.parquet").name, Place("s3://bucket/out").child("part").address
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

    def child(self, name: str) -> Place:
        """Something in this folder.

        Args:
            name: of a file in it.

        Returns:
            Its place.
        """
        return Place(f"{self.address.rstrip('/')}/{name}")

    def open(self) -> tuple[Any, str]:
        """The file system, and the path in it.

        Returns:
            A ``pyarrow.fs.FileSystem`` and a path.

        Raises:
            InputError: nobody knows this kind of address.
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
            raise InputError(f"{self.address}: neither pyarrow nor fsspec knows such an address ({error}).") from None
        return fs.PyFileSystem(fs.FSSpecHandler(system)), path

    def files(self) -> list[Place]:
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
        return [self.child(name) for name in names if name.endswith(ENDINGS) and not _hidden(name)]

    def kind(self) -> str:
        """What lies there.

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
        """Remove temporary files that killed workers left in this folder; nobody may be writing there."""
        from pyarrow import fs

        system, path = self.open()
        for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if info.is_file and info.base_name.startswith(".") and info.base_name.endswith(".part"):
                _remove(system, info.path)


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _remove(system: Any, path: str) -> None:
    try:
        system.delete_file(path)
    except OSError:  # it is not there, or the store is gone: what went wrong first is what must be said
        return


def find_tables(addresses: list[str]) -> list[Place]:
    """Parquet files behind the names that somebody typed.

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
    places: list[Place] = []
    for address in addresses:
        place = Place(address)
        if "*" in place.name:
            folder = Place(posixpath.dirname(address) or ".")
            depth = folder.address.rstrip("/").count("/") + 1
            matching = [one for one in folder.files() if one.address.count("/") == depth and _matches(one, place.name)]
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


def _matches(place: Place, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(place.name, pattern)
