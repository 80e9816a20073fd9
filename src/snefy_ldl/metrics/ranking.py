"""Measures of order: of labels ranked by their shares, and of labels that have an order, such as ages and ratings."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.points import row_metric


@row_metric
def spearman(D_true: Array, D_pred: Array) -> Array:
    """Spearman's rank correlation of observed and predicted shares in [-1, 1], higher is better; 0 for equal shares.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L).
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Spearman, The proof and measurement of association between two things, 1904.

    Example:
        >>> round(spearman([[0.5, 0.3, 0.2]], [[0.5, 0.2, 0.3]]), 3)
        0.5
    """
    centred = [rankdata(shares, axis=1) - (shares.shape[1] + 1) / 2 for shares in (D_true, D_pred)]
    size = np.sqrt(np.square(centred[0]).sum(axis=1) * np.square(centred[1]).sum(axis=1))
    return _ratio((centred[0] * centred[1]).sum(axis=1), size)


@row_metric
def top_k_accuracy(D_true: Array, D_pred: Array, k: int = 1) -> Array:
    """How often the largest observed label is among the k largest predicted ones, higher is better.

    Args:
        D_true: Observed label distributions, (N, L).
        D_pred: Predicted ones, (N, L).
        k: From 1 to L; of equal shares the first count as larger.
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or k outside 1 to L.

    References:
        Wang, Geng, Classification with label distribution learning, IJCAI 2019.

    Example:
        >>> top_k_accuracy([[0.5, 0.3, 0.2]], [[0.3, 0.5, 0.2]], k=1), top_k_accuracy([[0.5, 0.5]], [[0.1, 0.9]], k=2)
        (0.0, 1.0)
    """
    if check_count("k", k) > D_true.shape[1]:
        raise InputError(f"k={k} is more than there are labels, {D_true.shape[1]}.")
    largest = np.argsort(-D_pred, axis=1, kind="stable")[:, :k]
    return (largest == D_true.argmax(axis=1)[:, None]).any(axis=1).astype(float)


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0.0)


@row_metric
def cumulative_absolute_distance(D_true: Array, D_pred: Array) -> Array:
    """Cumulative absolute distance ``Σ_r |F_r - F̂_r|`` of the labels' cumulative shares (CAD), lower is better.

    The Wasserstein distance if neighbouring labels are one step apart.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Wen, Zhang, Yao, Yang, Ordinal label distribution learning, ICCV 2023.

    Example:
        >>> round(cumulative_absolute_distance([[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]), 3)
        2.0
    """
    return np.abs(_cumulative_gap(D_true, D_pred)).sum(axis=1)


@row_metric
def ranked_probability_score(D_true: Array, D_pred: Array) -> Array:
    """Ranked probability score ``Σ_r (F_r - F̂_r)² / (L - 1)`` (RPS), lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Epstein, A scoring system for probability forecasts of ranked categories, J. Applied Meteorology 8, 1969.

    Example:
        >>> round(ranked_probability_score([[0.5, 0.5, 0.0]], [[0.0, 0.5, 0.5]]), 3)
        0.25
    """
    return np.square(_cumulative_gap(D_true, D_pred)).sum(axis=1) / (D_true.shape[1] - 1)


def _cumulative_gap(D_true: Array, D_pred: Array) -> Array:
    return np.cumsum(D_true - D_pred, axis=1)[:, :-1]


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
