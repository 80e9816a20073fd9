"""Checks of what users hand to conformal prediction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError

Weights = Any  # an array (N,), a function X -> (N,), or None

#: Version of the dictionaries that ``to_dict`` writes.
FORMAT = 1


def check_levels(confidence_level: Any) -> tuple[list[float], bool]:
    """Confidence levels as a list, and whether they came as a single number.

    Args:
        confidence_level: A number in (0, 1), or several.

    Returns:
        The list, and True for a single number.

    Raises:
        InputError: A level outside (0, 1), or an empty list.

    Example:
        >>> check_levels(0.9), check_levels([0.5, 0.9])
        (([0.9], True), ([0.5, 0.9], False))
    """
    if isinstance(confidence_level, Iterable) and not isinstance(confidence_level, (str, bytes)):
        levels = [check_confidence(level) for level in confidence_level]
        if not levels:
            raise InputError("confidence_level is empty; give one level or a list of them.")
        return levels, False
    return [check_confidence(confidence_level)], True


def check_state(state: Any, kind: str) -> None:
    """Refuse anything but a dictionary that ``to_dict`` of this kind wrote.

    Args:
        state: The dictionary.
        kind: "intervals" or "region".

    Raises:
        InputError: Something else, or another version.

    Example:
        >>> check_state({"format": 1, "kind": "region", "calibration": {}}, "region")
    """
    if not isinstance(state, dict) or state.get("kind") != kind or "calibration" not in state:
        raise InputError(f"this is not a calibration of conformal {kind}; to_dict() of one writes it.")
    if state.get("format") != FORMAT:
        raise InputError(f"this calibration has format {state.get('format')!r}; this version reads {FORMAT}.")


def check_model(model: Any) -> Any:
    """A model that predicts laws.

    Args:
        model: Anything with ``predict_dist(X)``.

    Returns:
        The model.

    Raises:
        InputError: It has no such method.
    """
    if not callable(getattr(model, "predict_dist", None)):
        raise InputError(
            f"{type(model).__name__} has no predict_dist(X); conformal prediction here needs a model that predicts "
            "distributions, such as SnefyLDL or DirichletLDL."
        )
    return model


def check_choice(value: Any, choices: tuple[str, ...], name: str) -> Any:
    """One of a few words.

    Args:
        value: What was given.
        choices: What may be given.
        name: The argument's name.

    Returns:
        The value.

    Raises:
        InputError: Another value.

    Example:
        >>> check_choice("pool", ("full", "pool"), "small_groups")
        'pool'
    """
    if value not in choices:
        raise InputError(f"{name}={value!r}: use one of {', '.join(repr(c) for c in choices)}.")
    return value


def check_groups(groups: Any, n_rows: int) -> NDArray[np.str_] | None:
    """Group names as text, so that they survive a file; whole numbers are the same with and without ``.0``.

    Args:
        groups: Group of each row, (N,), or None.
        n_rows: N.

    Returns:
        Names (N,), or None.

    Raises:
        InputError: Another number of groups, or a missing one.

    Example:
        >>> check_groups([1.0, 2.0], 2).tolist()
        ['1', '2']
    """
    if groups is None:
        return None
    values = np.asarray(groups)
    if values.shape != (n_rows,):
        raise InputError(f"groups must hold one group a row: shape ({n_rows},), got {values.shape}.")
    names = []
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise InputError(f"groups row {row} is missing; every row needs a group.")
        names.append(str(int(value)) if isinstance(value, float) and value.is_integer() else str(value))
    return np.array(names, dtype=np.str_)


def check_weights(weights: Weights, X: Any, n_rows: int) -> Array | None:
    """Likelihood ratios as given: their scale matters, because new rows bring theirs.

    Args:
        weights: An array (N,), a function of X that gives one, or None.
        X: The rows, for a function.
        n_rows: N.

    Returns:
        Weights (N,), or None.

    Raises:
        InputError: Another shape, a negative or a non-finite weight.

    Example:
        >>> check_weights([1, 2], None, 2)
        array([1., 2.])
    """
    if weights is None:
        return None
    values = np.asarray(weights(X) if callable(weights) else weights, dtype=np.float64)
    if values.shape != (n_rows,):
        raise InputError(f"sample_weight must hold one number a row: shape ({n_rows},), got {values.shape}.")
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"sample_weight row {row} is {values[row]:g}; weights must be finite and >= 0.")
    return values
