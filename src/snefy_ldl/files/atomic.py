"""Reading and writing files that survive a crash: a temporary name first, then one rename; nothing is executed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

#: How often a file is renamed anew that another process holds, and seconds in between.
LOOKS, PAUSE = 10, 0.02


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and vanishes when it does not.

    A reader sees the old file or the new one, never a part.

    Args:
        path: Where the content shall be; missing folders are made.

    Yields:
        The temporary file, empty, to write to.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "notes.txt"
    ...     with replace_file(file) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     file.read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())  # the name must not point at content that a crash could still lose
        os.chmod(name, 0o666 & ~_umask())  # a temporary file is private; the result need not be
        _rename(name, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what must be said
            Path(name).unlink(missing_ok=True)
        raise


def _rename(name: str, path: Path) -> None:
    """Give a file its name; Windows refuses that while somebody reads the file that has it, so try for a moment."""
    for _ in range(LOOKS):
        with contextlib.suppress(PermissionError):
            return os.replace(name, path)
        time.sleep(PAUSE)
    return os.replace(name, path)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    Args:
        path: The file; missing folders are made.
        content: All of it.
    """
    with replace_file(path) as temporary:
        temporary.write_bytes(content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people to read too."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON, or say what is wrong with the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing: this folder does not hold a whole saved model.") from None
    except RecursionError:
        raise ModelFileError(f"{path} is damaged: its JSON is nested too deeply.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} is damaged: not valid JSON ({error}).") from None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number in JSON")


def save_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, str] | None = None) -> None:
    """Write named tensors as safetensors."""
    write_bytes(path, format_tensors(tensors, meta))


def format_tensors(tensors: dict[str, Tensor], meta: dict[str, str] | None = None) -> bytes:
    """Named tensors as the content of a safetensors file."""
    from safetensors.torch import save  # loads torch, which JSON files and tables do without

    content: bytes = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, meta)
    return content


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
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing: this folder does not hold a whole saved model.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged or not a safetensors file ({error}).") from None
