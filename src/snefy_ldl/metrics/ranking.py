"""Measures of order, of labels ranked by their shares or with an order of their own (ages, ratings), and of votes.

The shared tasks on learning with disagreement (LeWiDi 2023 and 2025) score the shares of an item's votes by
:func:`cross_entropy` (2023), :func:`manhattan` and, for ordered labels, :func:`wasserstein` (2025), and a single vote
by :func:`error_rate`, or on a scale by :func:`normalized_absolute_distance` (2025).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import rel_entr
from scipy.stats import rankdata

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.metrics.points import KL_FLOOR, row_metric


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
def kendall(D_true: Array, D_pred: Array) -> Array:
    """Kendall's rank correlation τ_b of observed and predicted shares in [-1, 1], higher is better; 0 for equal shares.

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
        Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945.

    Example:
        >>> round(kendall([[0.5, 0.3, 0.2]], [[0.5, 0.2, 0.3]]), 3)
        0.333
    """
    i, j = np.triu_indices(D_true.shape[1], 1)
    true, predicted = (np.sign(shares[:, i] - shares[:, j]) for shares in (D_true, D_pred))
    size = np.sqrt(np.abs(true).sum(axis=1) * np.abs(predicted).sum(axis=1))
    return _ratio((true * predicted).sum(axis=1), size)


@row_metric
def match_m(D_true: Array, D_pred: Array, m: int = 2) -> Array:
    """Match-m: which part of the m largest observed labels is among the m largest predicted ones, higher is better.

    Args:
        D_true: Observed label distributions, (N, L).
        D_pred: Predicted ones, (N, L).
        m: From 1 to L; of equal shares the first count as larger.
        per_row: Return one figure per row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or m outside 1 to L.

    References:
        Shirani et al., Learning emphasis selection for written text in visual media from crowd-sourced label
        distributions, ACL 2019.

    Example:
        >>> match_m([[0.5, 0.3, 0.2]], [[0.5, 0.2, 0.3]], m=2)
        0.5
    """
    return (_largest(D_true, m, "m") & _largest(D_pred, m, "m")).sum(axis=1) / m


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
    return (_largest(D_true, 1, "k") & _largest(D_pred, k, "k")).any(axis=1).astype(float)


def _largest(shares: Array, m: int, name: str) -> Any:
    """Which labels are the m largest of a row, (N, L); ``name`` is what messages call m."""
    if check_count(name, m) > shares.shape[1]:
        raise InputError(f"{name}={m} is more than there are labels, {shares.shape[1]}.")
    chosen = np.zeros(shares.shape, dtype=bool)
    np.put_along_axis(chosen, np.argsort(-shares, axis=1, kind="stable")[:, :m], True, axis=1)
    return chosen


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0.0)


@row_metric
def cumulative_absolute_distance(D_true: Array, D_pred: Array) -> Array:
    """Cumulative absolute distance ``Σ_r |F_r - F̂_r|`` of the labels' cumulative shares (CAD), lower is better.

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
def earth_movers_distance(D_true: Array, D_pred: Array) -> Array:
    """Earth mover's distance between neighbours one step apart, over the longest way (EMD), in [0, 1], lower is better.

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
        Rubner, Tomasi, Guibas, The earth mover's distance as a metric for image retrieval, IJCV 40, 2000.

    Example:
        >>> round(earth_movers_distance([[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]), 3)
        1.0
    """
    return np.abs(_cumulative_gap(D_true, D_pred)).sum(axis=1) / (D_true.shape[1] - 1)


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


@row_metric
def quadratic_form_distance(D_true: Array, D_pred: Array) -> Array:
    """Quadratic form distance ``√((ℓ - ℓ̂)ᵀ A (ℓ - ℓ̂))``, ``A_rs = 1 - |r - s|/(L - 1)`` (QFD), lower is better.

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
        >>> round(quadratic_form_distance([[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]), 3)
        1.414
    """
    place = np.arange(D_true.shape[1])
    similar = 1.0 - np.abs(place[:, None] - place) / (len(place) - 1)
    gap = D_true - D_pred
    return np.sqrt(np.maximum(((gap @ similar) * gap).sum(axis=1), 0.0))


@row_metric
def cumulative_jensen_shannon(D_true: Array, D_pred: Array) -> Array:
    """Cumulative Jensen-Shannon divergence ``½ Σ_r (F log(2F/(F+F̂)) + F̂ log(2F̂/(F+F̂)))`` (CJS), lower is better.

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
        >>> round(cumulative_jensen_shannon([[1.0, 0.0]], [[0.0, 1.0]]), 3)
        0.347
    """
    true, predicted = np.cumsum(D_true, axis=1), np.cumsum(D_pred, axis=1)
    middle = 0.5 * (true + predicted)
    return np.maximum(0.5 * (rel_entr(true, middle) + rel_entr(predicted, middle)).sum(axis=1), 0.0)


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
