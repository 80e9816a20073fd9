"""What every measure ends with and begins with: a mean over rows with its standard error, and checks of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError


def mean_over_rows(rows: Any, with_error: bool = False) -> Any:
    """Mean over the first axis, with its standard error if that is wanted.

    Args:
        rows: One figure per row, (N,), or several, (N, L).
        with_error: Return ``(mean, standard error)``; one row gives an infinite error.

    Returns:
        A float for (N,), an array (L,) for (N, L), or a pair of them.

    Example:
        >>> mean_over_rows(np.array([1.0, 3.0]), with_error=True)
        (2.0, 1.0)
    """
    n = len(rows)
    mean = rows.mean(axis=0)
    error = rows.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full_like(mean, np.inf)
    if rows.ndim == 1:
        mean, error = float(mean), float(error)
    return (mean, error) if with_error else mean


def check_intervals(intervals: Any) -> Array:
    """Lower and upper ends (N, L, 2) as float64.

    Args:
        intervals: Anything that makes such an array.

    Returns:
        The ends, (N, L, 2).

    Raises:
        InputError: Another shape, or a lower end above its upper end.

    Example:
        >>> check_intervals([[[0.1, 0.3], [0.7, 0.9]]]).shape
        (1, 2, 2)
    """
    ends = as_float(intervals, "intervals")
    if ends.ndim != 3 or ends.shape[2] != 2 or ends.size == 0:
        raise InputError(f"intervals must have shape (N, L, 2): lower and upper ends; got {ends.shape}.")
    bad = ~(ends[:, :, 0] <= ends[:, :, 1])
    if bad.any():
        row, label = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"intervals row {row}, label {label} is {ends[row, label].tolist()}; lower must be <= upper.")
    return ends


def check_observed(D: Any, shape: tuple[int, ...]) -> Array:
    """Observed shares as a finite float64 array of a given shape.

    Args:
        D: Anything that makes such an array.
        shape: The shape that the intervals or draws ask for, (N, L).

    Returns:
        The shares, (N, L).

    Raises:
        InputError: Another shape, or a value that is not finite.

    Example:
        >>> check_observed([[0.2, 0.8]], (1, 2))
        array([[0.2, 0.8]])
    """
    values = as_float(D, "D")
    if values.shape != shape:
        raise InputError(f"D must have shape {shape} to match; got {values.shape}.")
    if not np.isfinite(values).all():
        row, label = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise InputError(f"D is not finite at row {row}, label {label}.")
    return values


def covered_labels(D: Any, intervals: Any) -> Mask:
    """Which observed shares lie inside their intervals, ends included.

    Args:
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).

    Returns:
        True where the share is covered, (N, L).

    Raises:
        InputError: Shapes that do not match, values that are not finite, crossed ends.

    Example:
        >>> covered_labels([[0.2, 0.8]], [[[0.1, 0.3], [0.9, 1.0]]])
        array([[ True, False]])
    """
    ends = check_intervals(intervals)
    values = check_observed(D, ends.shape[:2])
    return (ends[:, :, 0] <= values) & (values <= ends[:, :, 1])
