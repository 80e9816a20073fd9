"""Files that survive a crash: a temporary name first, then one rename; nothing is executed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

#: What a full disk, a quota and a limit on file sizes raise.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: How often an operation is repeated if another process is in the way, and seconds in between.
LOOKS, PAUSE = 10, 0.02
#: Seconds after which a unchanged file belongs to no running writer.
STALE = 60.0
#: Names of temporary files, by the name of the file they are to become.
TEMPORARY = ".{}.????????.part"

Answer = TypeVar("Answer")


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A temporary file next to ``path`` that replaces it when the block ends well, and is removed when it does not.

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
    remove_stale(path.parent, TEMPORARY.format(path.name.replace("[", "[[]")))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        with temporary.open("rb+") as content:
            os.fsync(content.fileno())  # the name must not point at content that a crash could still lose
        retry(lambda: os.replace(temporary, path), PermissionError)  # Windows refuses while it is read
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            error.filename = str(path)  # the caller's file, not its temporary name
        raise


def remove_stale(folder: Path, pattern: str, seconds: float = STALE) -> None:
    """Remove files that no running writer needs.

    Args:
        folder: where they are.
        pattern: of their names.
        seconds: since their last change.
    """
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process removes it, or is reading it
            about = path.lstat()
            if time.time() - about.st_mtime >= seconds and stat.S_ISREG(about.st_mode):
                path.unlink()


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


def read_regular(path: Path) -> bytes:
    """The content of a regular file; reading anything else may never end.

    Args:
        path: of the file.

    Returns:
        All of it.

    Raises:
        ModelFileError: It is a folder, a pipe, a socket or a device, or cannot be read.
        FileNotFoundError: There is nothing.

    >>> read_regular(Path("."))
    Traceback (most recent call last):
    snefy_ldl.errors.ModelFileError: . is not a file: this folder does not hold a whole saved model.
    """
    try:
        if path.is_file():
            return path.read_bytes()
        path.stat()  # raises if there is nothing
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a loop of links, say
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    raise ModelFileError(f"{path} is not a file: this folder does not hold a whole saved model.")


@contextlib.contextmanager
def damage(path: Path, *errors: type[Exception], words: str = "not a safetensors file") -> Iterator[None]:
    """Turn what a missing or damaged file raises into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{error.filename or path} is missing: this folder does not hold a whole saved model."
        ) from None
    except ModelFileError:
        raise
    except errors as error:
        raise ModelFileError(f"{path} is damaged: {words} ({error}).") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file; raises ModelFileError if it is missing or damaged."""
    with damage(path, ValueError, RecursionError, words="not valid JSON"):
        return json.loads(read_regular(path).decode("utf-8"), parse_constant=_no_number)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number in JSON")


def format_tensors(tensors: Mapping[str, Any], meta: dict[str, str] | None = None) -> bytes:
    """Named tensors or arrays as the content of a safetensors file."""
    import torch  # which JSON files and tables do without
    from safetensors.torch import save

    def plain(value: Any) -> Tensor:
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().contiguous()
        return torch.from_numpy(np.require(value, requirements=["C", "W"]))

    return save({name: plain(value) for name, value in tensors.items()}, meta)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Named tensors and their metadata; raises ModelFileError if the file is missing or damaged."""
    with damage(path, SafetensorError, OSError, ValueError), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def retry(call: Callable[[], Answer], error: type[OSError]) -> Answer:
    """Call again for a moment if another process may be in the way.

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
