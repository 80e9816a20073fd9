"""Measures of the shared tasks on learning with disagreement (LeWiDi 2023 and 2025).

Soft labels are the shares of an item's votes: :func:`cross_entropy` (2023), :func:`manhattan` and, for ordered labels,
:func:`wasserstein` (2025). One person's vote is scored by :func:`error_rate`, and on a scale by
:func:`normalized_absolute_distance` (2025).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.metrics.points import KL_FLOOR, row_metric
from snefy_ldl.metrics.ranking import cumulative_absolute_distance


@row_metric
def manhattan(D_true: Array, D_pred: Array) -> Array:
    """Manhattan distance ``Σ_r |ℓ_r - ℓ̂_r|``, in [0, 2], lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L).
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    Example:
        >>> round(manhattan([[1.0, 0.0]], [[0.7, 0.3]]), 3)
        0.6
    """
    return np.abs(D_true - D_pred).sum(axis=1)


@row_metric
def wasserstein(D_true: Array, D_pred: Array) -> Array:
    """Wasserstein distance between ordered labels one step apart, ``Σ_r |F_r - F̂_r|``, in [0, L-1], lower is better.

    It is :func:`~snefy_ldl.metrics.cumulative_absolute_distance` under the name that the shared tasks use.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    Example:
        >>> round(wasserstein([[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]), 3)
        2.0
    """
    return cumulative_absolute_distance(D_true, D_pred, per_row=True)


@row_metric
def cross_entropy(D_true: Array, D_pred: Array) -> Array:
    """Cross-entropy ``-Σ_r ℓ_r log ℓ̂_r`` in nats, lower is better; predicted shares of 0 count as 2e-16.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L).
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    Example:
        >>> round(cross_entropy([[1.0, 0.0]], [[0.5, 0.5]]), 3)
        0.693
    """
    return -(D_true * np.log(np.maximum(D_pred, KL_FLOOR))).sum(axis=1)


def error_rate(labels_true: Any, labels_pred: Any, items: Any = None, *, return_std_error: bool = False) -> Any:
    """Share of single votes that are predicted wrongly, averaged within items first, lower is better.

    Args:
        labels_true: What people voted (V,), of any kind.
        labels_pred: What they were predicted to vote (V,).
        items: Which item each vote is on (V,); None averages over votes.
        return_std_error: Return ``(mean, standard error)``; items are independent.

    Returns:
        A float, or a pair of them.

    Raises:
        InputError: The lengths differ, or there is no vote.

    Example:
        >>> error_rate(["u", "u", "v"], ["u", "v", "v"], [1, 1, 2])
        0.25
    """
    true, predicted = np.asarray(labels_true), np.asarray(labels_pred)
    _check_lengths(true, predicted)
    return mean_over_rows(_by_item((true != predicted).astype(np.float64), items), return_std_error)


def normalized_absolute_distance(
    labels_true: Any, labels_pred: Any, items: Any = None, *, span: float | None = None, return_std_error: bool = False
) -> Any:
    """Absolute distance of single ratings from their prediction over the span of the scale, lower is better.

    Args:
        labels_true: Ratings as numbers (V,).
        labels_pred: Predicted ones (V,).
        items: Which item each rating is of (V,), which is averaged within first; None averages over ratings.
        span: Largest less smallest value of the scale; by default that of the ratings.
        return_std_error: Return ``(mean, standard error)``; items are independent.

    Returns:
        A float in [0, 1], or a pair of floats.

    Raises:
        InputError: The lengths differ, there is no rating, or the span is not above 0.

    Example:
        >>> normalized_absolute_distance([1, 5], [1, 3], span=4)
        0.25
    """
    true, predicted = np.asarray(labels_true, dtype=np.float64), np.asarray(labels_pred, dtype=np.float64)
    _check_lengths(true, predicted)
    whole = float(np.ptp(true)) if span is None else float(span)
    if not whole > 0:
        raise InputError(f"span must be above 0; got {whole:g}. Name the span of the scale.")
    return mean_over_rows(_by_item(np.abs(true - predicted) / whole, items), return_std_error)


def _check_lengths(true: Any, predicted: Any) -> None:
    if true.ndim != 1 or true.shape != predicted.shape or not len(true):
        raise InputError(f"labels must be two equally long lists; got shapes {true.shape} and {predicted.shape}.")


def _by_item(values: Array, items: Any) -> Array:
    """Means within items, or the values themselves."""
    if items is None:
        return values
    names, which = np.unique(np.asarray(items), return_inverse=True)
    if len(which) != len(values):
        raise InputError(f"items must name one item per vote ({len(values)}); got {len(which)}.")
    return np.bincount(which, values, len(names)) / np.bincount(which, minlength=len(names))
