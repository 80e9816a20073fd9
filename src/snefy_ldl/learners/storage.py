"""What a fitted learner is made of, as JSON and arrays that go into a folder."""

from __future__ import annotations

import json
import numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl._internal.model_files import ArrayFolder
from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from snefy_ldl.learners.base import Learner

FOLDER = ArrayFolder("snefy_ldl.learner", 1, "learner")

#: Every learner class by name; a saved name outside it is refused.
REGISTRY: dict[str, type[Learner]] = {}


def write_learner(learner: Learner, folder: Path) -> None:
    """Write a fitted learner to a folder.

    Args:
        learner: A fitted learner.
        folder: Where.

    Raises:
        ModelFileError: The folder holds something else, or a hyperparameter cannot be written.
    """
    arrays: dict[str, Any] = {}
    description = pack_learner(learner, arrays, "")
    FOLDER.write(folder, description, arrays)


def read_learner(folder: Path) -> Learner:
    """Read a learner back.

    Args:
        folder: Where.

    Returns:
        A fitted learner.

    Raises:
        ModelFileError: A folder that is missing, damaged, foreign or written by a newer version.
    """
    description, arrays = FOLDER.read(folder)
    try:
        learner = unpack_learner(description, arrays)
        if not hasattr(learner, "n_labels_"):
            raise ModelFileError("n_labels_ is missing.")
        return learner
    except ModelFileError as error:
        raise ModelFileError(f"{folder} is damaged: {error}") from None
    except Exception as error:  # what a damaged learner meets depends on the learner
        raise ModelFileError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None


def is_fitted_name(name: str) -> bool:
    """Whether an attribute is part of what a fit leaves behind, by scikit-learn's convention."""
    return name.endswith("_") and not name.startswith("_")


def pack_learner(learner: Learner, arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """A fitted learner as plain JSON values, its arrays put beside others.

    Args:
        learner: a fitted learner.
        arrays: where its arrays go.
        prefix: of their names.

    Returns:
        What :func:`unpack_learner` takes.

    Raises:
        ModelFileError: a hyperparameter cannot be written as JSON.
    """
    fitted: dict[str, Any] = {}
    for name, value in learner.stored().items():
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
        return {"learner": pack_learner(value, arrays, prefix)}
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


def unpack_learner(state: dict[str, Any], arrays: dict[str, Any]) -> Learner:
    """The learner that :func:`pack_learner` described.

    Args:
        state: its description.
        arrays: all arrays, its own among them.

    Returns:
        A fitted learner.

    Raises:
        ModelFileError: the description names a learner that is not known here, or an entry that no fit leaves behind.
    """
    if state["class"] not in REGISTRY:
        raise ModelFileError(f"the file names a learner that is not known here: {state['class']!r}.")

    def read(entry: dict[str, Any]) -> Any:
        if "learner" in entry:
            return unpack_learner(entry["learner"], arrays)
        return np.array(entry["names"], dtype=object) if "names" in entry else entry["value"]

    learner = REGISTRY[state["class"]](**{name: read(entry) for name, entry in state["params"].items()})
    for name, entry in state["fitted"].items():
        if not is_fitted_name(name):
            raise ModelFileError(f"{state['prefix']}{name} is not what a fit leaves behind.")
        setattr(learner, name, read(entry))
    prefix = state["prefix"]
    for key, value in arrays.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and is_fitted_name(name) and "." not in name:
            setattr(learner, name, value)
    learner.restore()
    if hasattr(learner, "n_labels_"):
        if (damage := learner.find_damage()) is not None:
            raise ModelFileError(f"{prefix}{damage}.")
        learner.after_load()
        if (damage := learner.find_silence()) is not None:
            raise ModelFileError(f"{prefix.rstrip('.') or state['class']} {damage}.")
    return learner
