"""A folder of named arrays and a JSON description of them: safetensors and JSON, nothing that can run code.

The JSON file is written last and names the array file by its checksum, so a reader finds the old content or the new.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from snefy_ldl._internal.files.atomic import read_json, read_regular, remove_leftovers
from snefy_ldl._internal.files.folders import is_empty, only_writer, retry_missing, write_pair
from snefy_ldl._internal.files.schema import check_name, check_version
from snefy_ldl._internal.version import __version__
from snefy_ldl.errors import ModelFileError

__all__ = ["ArrayFolder"]

CONFIG_FILE = "model.json"
ARRAY_FILES = "arrays-*.safetensors"


@dataclass(frozen=True)
class ArrayFolder:
    """One kind of folder: how it calls itself, and what it holds.

    Args:
        file_format: Name of the format, written into the file and expected of it.
        version: Newest version that is read, and the one that is written.
        content: What such a folder holds, in a word: "learner". It is also the key of the description.

    Example:
        >>> import tempfile, numpy as np
        >>> kind = ArrayFolder("example.table", 1, "table")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kind.write(Path(folder) / "t", {"title": "two"}, {"x": np.ones(2)})
        ...     kind.read(Path(folder) / "t")
        ({'title': 'two'}, {'x': array([1., 1.])})
    """

    file_format: str
    version: int
    content: str

    def write(self, folder: Path, description: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Write a folder, replacing one of this kind that is there.

        Args:
            folder: Where; missing folders are made.
            description: Plain JSON values.
            arrays: C-ordered arrays by name.

        Raises:
            ModelFileError: The folder holds something else.
        """
        if folder.is_file():
            raise self._foreign(folder)
        payload = format_arrays(arrays)

        def describe(name: str, checksum: str) -> dict[str, Any]:
            return {
                "format": self.file_format,
                "format_version": self.version,
                "library_version": __version__,
                "arrays": name,
                "arrays_sha256": checksum,
                self.content: description,
            }

        with only_writer(folder):
            if not (folder / CONFIG_FILE).is_file() and not is_empty(folder):
                raise self._foreign(folder)
            remove_leftovers(folder, ARRAY_FILES)
            write_pair(folder, CONFIG_FILE, ARRAY_FILES, 16, payload, describe)

    def _foreign(self, folder: Path) -> ModelFileError:
        return ModelFileError(
            f"{folder} exists and holds no saved {self.content}; it was left alone. Choose another folder."
        )

    def read(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a folder back.

        Args:
            folder: Where.

        Returns:
            The description, and the arrays by name.

        Raises:
            ModelFileError: A folder that is missing, damaged, foreign or written by a newer version.
        """
        if folder.is_file():
            raise ModelFileError(f"{folder} is a file; a saved {self.content} is a folder.")
        try:
            return retry_missing(lambda: self._read(folder))
        except FileNotFoundError as error:
            raise ModelFileError(
                f"{error.filename} is missing: this folder does not hold a whole saved model."
            ) from None

    def _read(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        config = read_json(folder / CONFIG_FILE)
        if not isinstance(config, dict) or config.get("format") != self.file_format:
            raise ModelFileError(f"{folder} was not written by a snefy_ldl {self.content}.")
        check_version(config, self.version, folder)
        path = folder / check_name(config.get("arrays"), ARRAY_FILES, folder / CONFIG_FILE)
        try:
            payload = read_regular(path)
            if hashlib.sha256(payload).hexdigest() != config["arrays_sha256"]:
                raise ModelFileError(f"{path} is damaged: its checksum differs from the one in {CONFIG_FILE}.")
            return config[self.content], parse_arrays(payload)
        except (KeyError, TypeError, SafetensorError) as error:
            raise ModelFileError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None
