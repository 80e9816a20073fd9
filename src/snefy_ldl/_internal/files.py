"""Files that survive a crash: a temporary name first, then one rename; nothing is executed.

A folder of one JSON file and the binary file it names may be written by many processes, and read meanwhile. The binary
file is named by its content and the JSON file is renamed into place last, so whatever moment a crash comes, the folder
holds the old content or the new. Writers take turns by a lock that the system releases when a process dies.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor


try:
    import fcntl
except ImportError:  # Windows has another call for the same
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # and other systems may have neither
    msvcrt = None  # type: ignore[assignment]


#: What a full disk, a quota and a limit on file sizes raise.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: How often a new temporary file is made where another process removes it at once.
ATTEMPTS = 10
#: How names of temporary files end, after the name of the file they are to become.
TEMPORARY = re.compile(r"\.[a-z0-9_]{8}\.part")
#: How often something is tried again that another process is in the way of, and seconds in between.
LOOKS, PAUSE = 10, 0.02


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A temporary file next to ``path`` that takes its place when the block ends well, and vanishes when it does not.

    A reader sees the old file or the new one, never a part.

    Args:
        path: Where the content shall be; missing folders are made.

    Yields:
        The temporary file, empty, to write to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "notes.txt"
    ...     with replace_file(file) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     file.read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, glob.escape(path.name))
    file = _open_temporary(path)
    name = file.name
    try:
        yield Path(name)
        with open(name, "rb+") as content:
            os.fsync(content.fileno())  # the name must not point at content that a crash could still lose
        if os.name == "nt":
            file.close()  # an open file cannot be renamed there
        retry(lambda: os.replace(name, path), PermissionError)  # Windows refuses while it is read
    except BaseException as error:
        file.close()
        with contextlib.suppress(OSError):  # the first error is the one to report
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            error.filename = str(path)  # the file the caller knows, not its temporary name
        raise
    finally:
        file.close()


def _open_temporary(path: Path) -> Any:
    """A new temporary file next to ``path``, locked while it is open: no process takes it for a leftover."""
    for _ in range(ATTEMPTS):
        # with the rights that the user's umask gives any new file; it is closed when it has its final name
        file = (path.parent / f".{path.name}.{secrets.token_hex(4)}.part").open("x+b")
        # Windows keeps open files from being removed, and its locks would keep us from writing
        state = "none" if os.name == "nt" else try_lock(file)
        # another process may have taken the file for a leftover between our making and locking it
        if state == "none" or (state == "ours" and is_named(file, Path(file.name))):
            break
        file.close()
    return file


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove temporary files that writers left when they were killed; those being written are locked and stay.

    Args:
        folder: where they are.
        names: of the files they were to become; patterns are allowed.
    """
    with os.scandir(folder) as entries:
        parts = [entry for entry in entries if entry.name.endswith(".part") and entry.is_file(follow_symlinks=False)]
    for entry in parts:
        ending = TEMPORARY.search(entry.name, len(entry.name) - len(".12345678.part"))
        if ending is None or not any(fnmatch.fnmatchcase(entry.name[1 : ending.start()], name) for name in names):
            continue
        with contextlib.suppress(OSError):  # another process may remove it first, or not let us
            if os.name == "nt":
                os.unlink(entry.path)
                continue
            with open(entry.path, "rb+") as file:
                if try_lock(file) == "ours":
                    os.unlink(entry.path)


def try_lock(file: Any) -> Literal["ours", "taken", "none"]:
    """Lock an open file, without waiting, until it is closed or the process ends.

    Args:
        file: open.

    Returns:
        Whether the lock is ``"ours"``, ``"taken"``, or ``"none"`` where the file system knows no locks.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            return "none"
    except (BlockingIOError, PermissionError):
        return "taken"
    except OSError:
        return "none"
    return "ours"


def is_named(file: Any, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    Args:
        path: The file; missing folders are made.
        content: All of it.
    """
    with replace_file(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people to read too."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def check_regular(path: Path) -> None:
    """Raise where a path leads to something that is not a regular file: reading it may never end.

    Args:
        path: of the file.

    Raises:
        ModelFileError: It is a folder, a pipe, a socket or a device, or a link to one.
        FileNotFoundError: There is nothing.

    >>> check_regular(Path("."))
    Traceback (most recent call last):
    snefy_ldl.errors.ModelFileError: . is a folder, not a file: this folder does not hold a whole saved model.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a loop of links, say
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if stat.S_ISREG(mode):
        return
    kinds = (("folder", stat.S_ISDIR), ("pipe", stat.S_ISFIFO), ("socket", stat.S_ISSOCK))
    kind = next((word for word, is_kind in kinds if is_kind(mode)), "device")
    raise ModelFileError(f"{path} is a {kind}, not a file: this folder does not hold a whole saved model.")


def read_regular(path: Path) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.

    Returns:
        All of it.

    Raises:
        ModelFileError: It is no regular file, or cannot be read.
        FileNotFoundError: There is nothing.
    """
    check_regular(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_json(path: Path) -> Any:
    """Read JSON, or say what is wrong with the file."""
    try:
        return json.loads(read_regular(path).decode("utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing: this folder does not hold a whole saved model.") from None
    except ModelFileError:
        raise
    except RecursionError:
        raise ModelFileError(f"{path} is damaged: its JSON is nested too deeply.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is damaged: not valid JSON ({error}).") from None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number in JSON")


def save_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, str] | None = None) -> None:
    """Write named tensors as safetensors."""
    write_bytes(path, format_tensors(tensors, meta))


def format_tensors(tensors: Mapping[str, Any], meta: dict[str, str] | None = None) -> bytes:
    """Named tensors or arrays as the content of a safetensors file."""
    import torch  # which JSON files and tables do without
    from safetensors.torch import save

    def plain(value: Any) -> Tensor:
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().contiguous()
        return torch.from_numpy(np.require(value, requirements=["C", "W"]))

    return save({name: plain(value) for name, value in tensors.items()}, meta)


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """Named tensors out of a file's content, or say what is wrong with the file.

    Args:
        content: all of it.
        path: of the file, for the message.

    Returns:
        The tensors by name.

    Raises:
        ModelFileError: it is no safetensors content.
    """
    from safetensors.torch import load  # loads torch, which JSON files and tables do without

    try:
        return dict(load(content))
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path} is damaged or not a safetensors file ({error}).") from None


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read named tensors and their metadata, or say what is wrong with the file."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing: this folder does not hold a whole saved model.") from None
    except ModelFileError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or not a safetensors file ({error}).") from None


LOCK = ".writing.lock"
#: Seconds a writer waits for the one before it.
PATIENCE = 60.0
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
            path.unlink()  # before the lock is released: writers that wait see that the file has lost its name
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


def retry(call: Callable[[], Answer], error: type[OSError]) -> Answer:
    """Call again for a moment where another process may be in the way.

    Args:
        call: what to do.
        error: what it raises meanwhile; raised at last, too.

    Returns:
        What it returns.

    >>> retry(lambda: "there", FileNotFoundError)
    'there'
    """
    for _ in range(LOOKS):
        with contextlib.suppress(error):
            return call()
        time.sleep(PAUSE)
    return call()


def read_whole(read: Callable[[], Answer]) -> Answer:
    """Read a JSON file and the file it names, again where a writer has just replaced the pair.

    Args:
        read: reads both; raises FileNotFoundError where the second is missing.

    Returns:
        What it returns.

    Raises:
        ModelFileError: the file stays missing.
    """
    try:
        return retry(read, FileNotFoundError)
    except FileNotFoundError as error:
        raise ModelFileError(f"{error.filename} is missing: this folder does not hold a whole saved model.") from None


def read_checked(path: Path, checksum: Any) -> bytes:
    """The content of a file whose checksum is known.

    Args:
        path: of the file.
        checksum: its SHA-256 as hexadecimal digits.

    Returns:
        All of it.

    Raises:
        ModelFileError: it cannot be read, or is another file.
    """
    content = read_regular(path)
    if hashlib.sha256(content).hexdigest() != checksum:
        raise ModelFileError(f"{path} is damaged: its checksum is not the one in the JSON file next to it.")
    return content
