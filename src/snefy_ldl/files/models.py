"""Model folders: a JSON file and a safetensors file, written all or nothing, read without running code.

The JSON names its weights file and that file's checksum, and is renamed into place last: whatever moment a crash comes,
the folder holds the old model or the new one. What the JSON says about the model is its owner's business; here it is a
dict.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snefy_ldl._version import __version__
from snefy_ldl.errors import ModelFileError
from snefy_ldl.files.atomic import load_tensors, read_json, save_tensors, write_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "snefy-ldl model"
FORMAT_VERSION = 1
CONFIG = "model.json"
CALIBRATION = "calibration.json"


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".weights.tmp.safetensors"
    save_tensors(temporary, tensors)
    digest = _checksum(temporary)
    weights = folder / f"weights-{digest[:12]}.safetensors"
    temporary.replace(weights)
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "weights": {"file": weights.name, "sha256": digest},
    }
    write_json(folder / CONFIG, head | description)
    for old in folder.glob("weights-*.safetensors"):
        if old != weights:
            old.unlink()
            (folder / CALIBRATION).unlink(missing_ok=True)  # it was made for the old weights
    return folder


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
    version = config.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} has format version {version}, newer than {FORMAT_VERSION}, which this library "
            f"({__version__}) reads. Upgrade snefy-ldl (it was written by {config.get('library_version')})."
        )
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
    config = read_config(folder)
    try:
        name, digest = config["weights"]["file"], config["weights"]["sha256"]
        path = folder / Path(name).name  # a name that leads out of the folder leads nowhere
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{folder / CONFIG} is damaged: {type(error).__name__} {error}.") from None
    if path.exists() and _checksum(path) != digest:
        raise ModelFileError(f"{path} is damaged: its checksum is not the one in {CONFIG}.")
    return config, load_tensors(path)[0]


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
    config = read_config(folder)
    path = folder / CALIBRATION
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
    if not path.exists():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("intervals"), dict):
        raise ModelFileError(f"{path} is damaged: it holds no calibration. Make it again with snefy-ldl conformalize.")
    if content.get("weights_sha256") != read_config(folder)["weights"]["sha256"]:
        raise ModelFileError(f"{path} was made for other weights. Make it again with snefy-ldl conformalize.")
    state: dict[str, Any] = content["intervals"]
    return state
