"""Measures for labels in an order (ages, ratings): the further a share must move, the more it costs."""

from __future__ import annotations

import numpy as np
from scipy.special import rel_entr

from snefy_ldl._internal.types import Array
from snefy_ldl.metrics.points import row_metric

__all__ = [
    "cumulative_absolute_distance",
    "cumulative_jensen_shannon",
    "earth_movers_distance",
    "quadratic_form_distance",
    "ranked_probability_score",
]


@row_metric
def cumulative_absolute_distance(D_true: Array, D_pred: Array) -> Array:
    """Cumulative absolute distance ``Σ_r |F_r - F̂_r|`` of the labels' cumulative shares (CAD), lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure a row, (N,), instead of their mean.
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
    out: Array = np.abs(_cumulative_gap(D_true, D_pred)).sum(axis=1)
    return out


@row_metric
def earth_movers_distance(D_true: Array, D_pred: Array) -> Array:
    """Earth mover's distance between neighbours one step apart, over the longest way (EMD), in [0, 1], lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure a row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Rubner, Tomasi, Guibas, The earth mover's distance as a metric for image retrieval, IJCV 40, 2000.

    Example:
        >>> round(earth_movers_distance([[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]), 3)
        1.0
    """
    out: Array = np.abs(_cumulative_gap(D_true, D_pred)).sum(axis=1) / (D_true.shape[1] - 1)
    return out


@row_metric
def ranked_probability_score(D_true: Array, D_pred: Array) -> Array:
    """Ranked probability score ``Σ_r (F_r - F̂_r)² / (L - 1)`` (RPS), lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure a row, (N,), instead of their mean.
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
    out: Array = np.square(_cumulative_gap(D_true, D_pred)).sum(axis=1) / (D_true.shape[1] - 1)
    return out


@row_metric
def quadratic_form_distance(D_true: Array, D_pred: Array) -> Array:
    """Quadratic form distance ``√((ℓ - ℓ̂)ᵀ A (ℓ - ℓ̂))``, ``A_rs = 1 - |r - s|/(L - 1)`` (QFD), lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure a row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Wen, Zhang, Yao, Yang, Ordinal label distribution learning, ICCV 2023.

    Example:
        >>> round(quadratic_form_distance([[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]), 3)
        1.414
    """
    place = np.arange(D_true.shape[1])
    similar = 1.0 - np.abs(place[:, None] - place) / (len(place) - 1)
    gap = D_true - D_pred
    out: Array = np.sqrt(np.maximum(((gap @ similar) * gap).sum(axis=1), 0.0))
    return out


@row_metric
def cumulative_jensen_shannon(D_true: Array, D_pred: Array) -> Array:
    """Cumulative Jensen-Shannon divergence ``½ Σ_r (F log(2F/(F+F̂)) + F̂ log(2F̂/(F+F̂)))`` (CJS), lower is better.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L), in the labels' order.
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure a row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Wen, Zhang, Yao, Yang, Ordinal label distribution learning, ICCV 2023.

    Example:
        >>> round(cumulative_jensen_shannon([[1.0, 0.0]], [[0.0, 1.0]]), 3)
        0.347
    """
    true, predicted = np.cumsum(D_true, axis=1), np.cumsum(D_pred, axis=1)
    middle = 0.5 * (true + predicted)
    out: Array = np.maximum(0.5 * (rel_entr(true, middle) + rel_entr(predicted, middle)).sum(axis=1), 0.0)
    return out


def _cumulative_gap(D_true: Array, D_pred: Array) -> Array:
    gap: Array = np.cumsum(D_true - D_pred, axis=1)[:, :-1]
    return gap
