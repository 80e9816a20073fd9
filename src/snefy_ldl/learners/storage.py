"""Fitted learners on disk: safetensors arrays and a JSON description, nothing that can run code.

``model.json`` is written last and names the array file by its checksum, so a reader finds the old model or the new one.
"""

from __future__ import annotations

import hashlib
import json
import numbers
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from snefy_ldl.errors import ModelFileError
from snefy_ldl.files.atomic import read_json, write_bytes, write_json

if TYPE_CHECKING:
    from snefy_ldl.learners.base import Learner

FILE_FORMAT = "snefy_ldl.learner"
FILE_VERSION = 1
CONFIG_FILE = "model.json"
ARRAY_FILES = "arrays-*.safetensors"

#: Every learner class by name; a saved name outside it is refused.
REGISTRY: dict[str, type[Learner]] = {}


def write_learner(learner: Learner, folder: Path) -> None:
    """Write a fitted learner to a folder."""
    if folder.exists() and not (folder / CONFIG_FILE).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise ModelFileError(f"{folder} exists and holds no saved learner; it was left alone. Choose another folder.")
    arrays: dict[str, Any] = {}
    description = _pack(learner, arrays, "")
    payload = format_arrays(arrays)
    checksum = hashlib.sha256(payload).hexdigest()
    current = ARRAY_FILES.replace("*", checksum[:16])
    write_bytes(folder / current, payload)
    write_json(
        folder / CONFIG_FILE,
        {
            "format": FILE_FORMAT,
            "format_version": FILE_VERSION,
            "library_version": _library_version(),
            "arrays": current,
            "arrays_sha256": checksum,
            "learner": description,
        },
    )
    for stale in folder.glob(ARRAY_FILES):
        if stale.name != current:
            stale.unlink()


def read_learner(folder: Path) -> Learner:
    """Read a learner back; ModelFileError says what is wrong with a damaged, foreign or newer file."""
    if folder.is_file():
        raise ModelFileError(f"{folder} is a file; a saved learner is a folder.")
    config = read_json(folder / CONFIG_FILE)
    if not isinstance(config, dict) or config.get("format") != FILE_FORMAT:
        raise ModelFileError(f"{folder} was not written by a snefy_ldl learner.")
    found = config.get("format_version")
    if not isinstance(found, int) or found > FILE_VERSION:
        raise ModelFileError(
            f"{folder} has file version {found!r}, written by snefy-ldl {config.get('library_version')}; this version "
            f"reads up to {FILE_VERSION}. Upgrade snefy-ldl."
        )
    try:
        name = Path(str(config["arrays"])).name
        payload = (folder / name).read_bytes()
        if hashlib.sha256(payload).hexdigest() != config["arrays_sha256"]:
            raise ModelFileError(f"{folder / name} is damaged: its checksum differs from the one in {CONFIG_FILE}.")
        return _unpack(config["learner"], parse_arrays(payload))
    except FileNotFoundError:
        raise ModelFileError(f"{folder / name} is missing: this folder does not hold a whole saved model.") from None
    except (KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ModelFileError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None


def _library_version() -> str:
    try:
        return version("snefy-ldl")
    except PackageNotFoundError:
        return "unknown"


def is_fitted_name(name: str) -> bool:
    """Whether an attribute is part of what a fit leaves behind, by scikit-learn's convention."""
    return name.endswith("_") and not name.startswith("_")


def _pack(learner: Learner, arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    fitted: dict[str, Any] = {}
    for name, value in vars(learner).items():
        if not is_fitted_name(name):
            continue
        if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
            fitted[name] = {"names": [str(v) for v in value]}
        elif isinstance(value, np.ndarray):
            arrays[prefix + name] = np.ascontiguousarray(value)
        else:
            fitted[name] = _pack_value(value, name, arrays, f"{prefix}{name}.")
    params = {
        name: {"value": None}  # a generator object as random_state has no place in a file
        if name == "random_state" and not isinstance(value, numbers.Integral)
        else _pack_value(value, name, arrays, f"{prefix}{name}:param.")
        for name, value in learner.get_params(deep=False).items()
    }
    return {"class": _registered_name(type(learner)), "prefix": prefix, "params": params, "fitted": fitted}


def _pack_value(value: Any, name: str, arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    if type(value).__name__ in REGISTRY or any(c in REGISTRY.values() for c in type(value).__mro__):
        return {"learner": _pack(value, arrays, prefix)}
    if isinstance(value, np.generic):
        value = value.item()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ModelFileError(f"{name}={value!r} cannot be written as JSON; save needs plain hyperparameters.") from None
    return {"value": value}


def _registered_name(cls: type) -> str:
    """The nearest class of this package, so that a user's subclass without new hyperparameters saves too."""
    return next(c.__name__ for c in cls.__mro__ if REGISTRY.get(c.__name__) is c)


def _unpack(state: dict[str, Any], arrays: dict[str, Any]) -> Learner:
    if state["class"] not in REGISTRY:
        raise ModelFileError(f"the file names a learner that is not known here: {state['class']!r}.")

    def read(entry: dict[str, Any]) -> Any:
        if "learner" in entry:
            return _unpack(entry["learner"], arrays)
        return np.array(entry["names"], dtype=object) if "names" in entry else entry["value"]

    learner = REGISTRY[state["class"]](**{name: read(entry) for name, entry in state["params"].items()})
    for name, entry in state["fitted"].items():
        setattr(learner, name, read(entry))
    prefix = state["prefix"]
    for key, value in arrays.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and is_fitted_name(name) and "." not in name:
            setattr(learner, name, value)
    if hasattr(learner, "n_labels_"):
        learner._after_load()
    return learner
