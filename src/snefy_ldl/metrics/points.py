"""Measures of point predictions: the six LDL measures of Geng (2016).

With ``return_std_error=True`` a function returns ``(value, standard_error)``; rows count as independent, labels within
a row do not. One row gives an infinite error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from scipy.special import rel_entr

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import align_labels, check_distributions, check_same_index, text_names
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import mean_over_rows

#: KL(ℓ‖ℓ̂) treats a predicted share below this as this (float64 machine epsilon), so that it is always finite.
KL_FLOOR = float(np.finfo(np.float64).eps)
#: Which of the six measures of :func:`score` are similarities; the others are distances.
HIGHER_IS_BETTER = {
    "chebyshev": False,
    "clark": False,
    "canberra": False,
    "kl_divergence": False,
    "cosine": True,
    "intersection": True,
}


def check_pair(D_true: Any, D_pred: Any) -> tuple[Array, Array]:
    """Observed and predicted label distributions (N, L); of two frames the second follows the names of the first.

    Args:
        D_true: Observed label distributions.
        D_pred: Predicted ones.

    Returns:
        Both as float64.

    Raises:
        InputError: Rows that are no label distributions, shapes, labels or row labels that differ.

    Example:
        >>> check_pair([[0.5, 0.5]], [[0.2, 0.8]])[1]
        array([[0.2, 0.8]])
    """
    check_same_index(D_true, D_pred, ("D_true", "D_pred"))
    true, _ = check_distributions(D_true, what="D_true")
    predicted, _ = check_distributions(align_labels(D_pred, text_names(D_true), "D_pred"), what="D_pred")
    if true.shape != predicted.shape:
        raise InputError(f"D_true and D_pred must have the same shape; got {true.shape} and {predicted.shape}.")
    return true, predicted


#: A measure of each row, averaged over rows unless asked otherwise.
RowMetric = Callable[..., Any]


def row_metric(rows_of: Callable[..., Array]) -> RowMetric:
    """Give a function of two checked (N, L) arrays the public signature of the six LDL measures.

    Args:
        rows_of: ``(D_true, D_pred, ...) -> (N,)``, with a docstring; further arguments are the measure's own.

    Returns:
        The measure, which checks its arrays and averages over rows.

    Example:
        >>> @row_metric
        ... def largest_gap(D_true, D_pred):
        ...     return np.abs(D_true - D_pred).max(axis=1)
        >>> round(largest_gap([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.3
    """

    def metric(
        D_true: Any, D_pred: Any, *args: Any, per_row: bool = False, return_std_error: bool = False, **own: Any
    ) -> Any:
        if per_row and return_std_error:
            raise InputError("per_row=True has no standard error; ask for one or the other.")
        rows = rows_of(*check_pair(D_true, D_pred), *args, **own)
        return rows if per_row else mean_over_rows(rows, return_std_error)

    arguments, options = signature(rows_of), [signature(metric).parameters[k] for k in ("per_row", "return_std_error")]
    wraps(rows_of)(metric).__signature__ = arguments.replace(  # type: ignore[attr-defined]
        parameters=[*arguments.parameters.values(), *options]
    )
    return metric


@row_metric
def chebyshev(D_true: Array, D_pred: Array) -> Array:
    """Chebyshev distance ``max_r |ℓ_r - ℓ̂_r|``, mean over rows.

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
        >>> round(chebyshev([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.3
    """
    return np.abs(D_true - D_pred).max(axis=1)


@row_metric
def clark(D_true: Array, D_pred: Array) -> Array:
    """Clark distance ``√ Σ_r ((ℓ_r - ℓ̂_r) / (ℓ_r + ℓ̂_r))²`` with 0/0 = 0, mean over rows.

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
        >>> round(clark([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.487
    """
    return np.sqrt(np.square(_relative_difference(D_true, D_pred)).sum(axis=1))


@row_metric
def canberra(D_true: Array, D_pred: Array) -> Array:
    """Canberra distance ``Σ_r |ℓ_r - ℓ̂_r| / (ℓ_r + ℓ̂_r)`` with 0/0 = 0, mean over rows.

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
        >>> round(canberra([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.659
    """
    return _relative_difference(D_true, D_pred).sum(axis=1)


@row_metric
def kl_divergence(D_true: Array, D_pred: Array) -> Array:
    """Kullback-Leibler divergence ``Σ_r ℓ_r log(ℓ_r / ℓ̂_r)`` in nats, mean over rows.

    A label that is not there (``ℓ_r = 0``) costs nothing; a predicted share below ``KL_FLOOR`` (2.2e-16) counts as
    ``KL_FLOOR``, so ruling out a label that is there costs up to 36 nats, not infinitely many.

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
        >>> round(kl_divergence([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.223
    """
    return np.maximum(rel_entr(D_true, np.maximum(D_pred, KL_FLOOR)).sum(axis=1), 0.0)


@row_metric
def cosine(D_true: Array, D_pred: Array) -> Array:
    """Cosine similarity ``ℓ·ℓ̂ / (‖ℓ‖ ‖ℓ̂‖)``, higher is better, mean over rows.

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
        >>> round(cosine([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.857
    """
    norms = np.linalg.norm(D_true, axis=1) * np.linalg.norm(D_pred, axis=1)
    return np.minimum((D_true * D_pred).sum(axis=1) / norms, 1.0)


@row_metric
def intersection(D_true: Array, D_pred: Array) -> Array:
    """Intersection similarity ``Σ_r min(ℓ_r, ℓ̂_r)``, higher is better, mean over rows.

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
        >>> round(intersection([[0.5, 0.5]], [[0.2, 0.8]]), 3)
        0.7
    """
    return np.minimum(D_true, D_pred).sum(axis=1)


def score(D_true: Any, D_pred: Any) -> dict[str, float]:
    """All six LDL measures, averaged over rows.

    Args:
        D_true: Observed label distributions, (N, L).
        D_pred: Predicted ones, (N, L).

    Returns:
        Name to value: "chebyshev", "clark", "canberra" and "kl_divergence" (lower is better), "cosine" and
        "intersection" (higher is better).

    Raises:
        InputError: Rows that are no label distributions, or shapes that differ.

    Example:
        >>> {name: round(value, 2) for name, value in score([[0.5, 0.5]], [[0.2, 0.8]]).items()}
        {'chebyshev': 0.3, 'clark': 0.49, 'canberra': 0.66, 'kl_divergence': 0.22, 'cosine': 0.86, 'intersection': 0.7}
    """
    pair = check_pair(D_true, D_pred)
    return {name: globals()[name](*pair) for name in HIGHER_IS_BETTER}


def _relative_difference(D_true: Array, D_pred: Array) -> Array:
    total = D_true + D_pred
    return np.divide(np.abs(D_true - D_pred), total, out=np.zeros_like(total), where=total > 0.0)
