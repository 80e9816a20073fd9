"""A folder of one JSON file and the binary file it names: many processes may write it, and read it meanwhile.

The binary file is named by its content and the JSON file is renamed into place last, so whatever moment a crash comes,
the folder holds the old content or the new. Writers take turns by a lock that the system lets go when a process dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from snefy_ldl._internal.files.atomic import is_named, try_lock, write_bytes, write_json
from snefy_ldl.errors import ModelFileError

__all__ = ["only_writer", "retry_missing", "write_pair"]

LOCK = ".writing.lock"
#: Seconds a writer waits for the one before it.
PATIENCE = 60.0
#: Seconds between two looks at a lock, or at a file that may be there in a moment.
PAUSE = 0.02
#: How often a reader looks again for a file that a writer may just be replacing.
LOOKS = 10

Answer = TypeVar("Answer")


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[bool]:
    """Be the only one who writes into a folder; others wait.

    The lock is the system's on an open file, so a process that dies leaves none. The file itself is removed at the end
    where the system lets open files be removed.

    Args:
        folder: made where it is missing.

    Yields:
        Whether the file system has locks; without, writers are safe from mixing files, and leftovers stay.

    Raises:
        ModelFileError: another process has been writing for a minute.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with only_writer(Path(place)) as alone:
    ...         alone
    True
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, deadline = folder / LOCK, time.monotonic() + PATIENCE
    while True:
        file = path.open("ab")
        try:
            state = try_lock(file)
            # the one before may have removed the file between our opening and locking it
            if state != "taken" and (state == "none" or is_named(file, path)):
                break
        except BaseException:
            file.close()
            raise
        file.close()
        if time.monotonic() > deadline:
            raise ModelFileError(f"another process has been writing to {folder} for {PATIENCE:g} s; try again later.")
        time.sleep(PAUSE)
    try:
        yield state == "ours"
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before the lock goes: whoever waits sees that the file has no name any more
        file.close()


def write_pair(
    folder: Path, json_name: str, pattern: str, digits: int, payload: bytes, describe: Callable[[str, str], Any]
) -> str:
    """Write a binary file named by its content and the JSON file that names it; the caller is the only writer.

    Args:
        folder: that exists.
        json_name: of the JSON file.
        pattern: of binary files, a ``*`` in the place of their checksum.
        digits: of the checksum that the name holds.
        payload: the binary content.
        describe: from the binary file's name and whole checksum to the JSON's content.

    Returns:
        The checksum.
    """
    checksum = hashlib.sha256(payload).hexdigest()
    name = pattern.replace("*", checksum[:digits])
    write_bytes(folder / name, payload)
    write_json(folder / json_name, describe(name, checksum))
    for old in folder.glob(pattern):
        if old.name != name:
            with contextlib.suppress(PermissionError):  # Windows keeps a file that is being read; the next writer tries
                old.unlink(missing_ok=True)
    return checksum


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but a lock and temporary files."""
    return all(path.name == LOCK or (path.name.startswith(".") and path.suffix == ".part") for path in folder.iterdir())


def retry_missing(read: Callable[[], Answer]) -> Answer:
    """Read again where a file was missing: a writer may have replaced the pair after its JSON was read.

    Args:
        read: reads the JSON file and what it names; raises FileNotFoundError where the latter is missing.

    Returns:
        What it returns.

    Raises:
        FileNotFoundError: the file stays missing.

    >>> retry_missing(lambda: "there")
    'there'
    """
    for _ in range(LOOKS):
        with contextlib.suppress(FileNotFoundError):
            return read()
        time.sleep(PAUSE)
    return read()
