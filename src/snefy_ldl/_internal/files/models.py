"""Model folders: a JSON file and a safetensors file, written all or nothing, read without running code.

The JSON names its weights file and that file's checksum, and is renamed into place last: whatever moment a crash comes,
the folder holds the old model or the new one. What the JSON says about the model is its owner's business; here it is a
dict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from snefy_ldl._internal.files.atomic import (
    LOOKS,
    PAUSE,
    format_tensors,
    is_empty,
    only_writer,
    parse_tensors,
    read_checked,
    read_json,
    read_whole,
    remove_leftovers,
    write_json,
    write_pair,
)
from snefy_ldl._internal.files.schema import check_calibration, check_name, check_version, check_weights_entry
from snefy_ldl._internal.version import __version__
from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor


FORMAT = "snefy-ldl model"
FORMAT_VERSION = 1
CONFIG = "model.json"
CALIBRATION = "calibration.json"
WEIGHTS = "weights-*.safetensors"
ARRAY_FILES = "arrays-*.safetensors"
#: Where 0.1.0 put weights before it knew their checksum.
EARLIER_TEMPORARY = ".weights.tmp.safetensors"


def write_model(folder: Path, description: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a model into a folder, replacing one that is there.

    Args:
        folder: made where it is missing.
        description: what the JSON holds beside format, versions and checksum; plain values only.
        tensors: the weights by name.

    Returns:
        The folder.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = write_model(Path(place) / "m", {"labels": 3}, {"w": torch.ones(2)})
        ...     config, tensors = read_model(folder)
        >>> config["labels"], tensors["w"].tolist()
        (3, [1.0, 1.0])
    """
    payload = format_tensors(tensors)

    def describe(name: str, checksum: str) -> dict[str, Any]:
        head = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "library_version": __version__,
            "weights": {"file": name, "sha256": checksum},
        }
        return head | description

    with only_writer(folder) as alone:
        remove_leftovers(folder, CALIBRATION, WEIGHTS)
        if alone:
            (folder / EARLIER_TEMPORARY).unlink(missing_ok=True)
        checksum = write_pair(folder, CONFIG, WEIGHTS, 12, payload, describe)
        calibration = folder / CALIBRATION
        if calibration.exists() and _made_for(calibration) != checksum:
            calibration.unlink()
    return folder


def _made_for(calibration: Path) -> Any:
    """Checksum of the weights a calibration was made for; None where it cannot be read."""
    try:
        content = read_json(calibration)
    except ModelFileError:
        return None
    return content.get("weights_sha256") if isinstance(content, dict) else None


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, checked for format and version.

    Args:
        folder: where the model is.

    Returns:
        Everything the file holds.

    Raises:
        ModelFileError: where the folder or the file is missing, damaged, foreign, or of a newer version.
    """
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is not a folder; a model is saved as one (model.save(folder)).")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{folder / CONFIG} was not written by this library: no {FORMAT!r} in it.")
    check_version(config, FORMAT_VERSION, folder)
    check_weights_entry(config, WEIGHTS, folder / CONFIG)
    return config


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model's JSON and its weights, the latter checked by their checksum.

    Args:
        folder: where the model is.

    Returns:
        Everything the JSON holds, and the weights by name.

    Raises:
        ModelFileError: where a file is missing, damaged, foreign, or of a newer version.
    """

    def read() -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = read_config(folder)
        path = folder / config["weights"]["file"]
        return config, parse_tensors(read_checked(path, config["weights"]["sha256"]), path)

    return read_whole(read)


def save_calibration(folder: Path, state: dict[str, Any]) -> Path:
    """Put a conformal calibration beside the model it was made with.

    Args:
        folder: of the model.
        state: plain values (``ConformalIntervals.to_dict``).

    Returns:
        The file.

    Raises:
        ModelFileError: where the folder holds no model.
    """
    read_config(folder)  # no lock, and no folder, where there is no model
    path = folder / CALIBRATION
    with only_writer(folder):
        remove_leftovers(folder, CONFIG, WEIGHTS)
        config = read_config(folder)
        write_json(path, {"weights_sha256": config["weights"]["sha256"], "intervals": state})
    return path


def load_calibration(folder: Path) -> dict[str, Any] | None:
    """The calibration of a saved model.

    Args:
        folder: of the model.

    Returns:
        What :func:`save_calibration` was given, or None where there is none.

    Raises:
        ModelFileError: where the file is damaged, or was made for other weights.
    """
    path = folder / CALIBRATION
    for look in range(LOOKS):
        if not path.exists():
            return None
        try:
            content = read_json(path)
        except ModelFileError:
            if not path.exists():
                return None
            raise
        config = read_config(folder)
        state = check_calibration(content, config.get("network"), path)
        if content["weights_sha256"] == config["weights"]["sha256"]:
            return state
        if look + 1 < LOOKS:
            time.sleep(PAUSE)  # a writer may just be replacing both
    raise ModelFileError(f"{path} was made for other weights. Make it again with snefy-ldl conformalize.")


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
            if not (folder / CONFIG).is_file() and not is_empty(folder):
                raise self._foreign(folder)
            remove_leftovers(folder, ARRAY_FILES)
            write_pair(folder, CONFIG, ARRAY_FILES, 16, payload, describe)

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
        return read_whole(lambda: self._read(folder))

    def _read(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        config = read_json(folder / CONFIG)
        if not isinstance(config, dict) or config.get("format") != self.file_format:
            raise ModelFileError(f"{folder} was not written by a snefy_ldl {self.content}.")
        check_version(config, self.version, folder)
        path = folder / check_name(config.get("arrays"), ARRAY_FILES, folder / CONFIG)
        try:
            return config[self.content], parse_arrays(read_checked(path, config["arrays_sha256"]))
        except (KeyError, TypeError, SafetensorError) as error:
            raise ModelFileError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None
