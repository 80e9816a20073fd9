"""Measures of how many rows are nearly right (μ of δ-LDL), and of how far opposed labels divide a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import xlogy

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.metrics.points import kl_divergence, row_metric

__all__ = ["delta_mu", "divisiveness", "divisiveness_error"]


@row_metric
def delta_mu(D_true: Array, D_pred: Array) -> Array:
    """μ of δ-LDL, in [0, 1], higher is better: the part of rows that are right within δ, averaged over δ.

    ``μ = 1/δ₀ ∫₀^δ₀ mean_i [KL(ℓ_i ‖ ℓ̂_i) ≤ δ] dδ = 1 - mean_i min(KL_i, δ₀)/δ₀`` with ``δ₀ = mean_i KL(ℓ_i ‖ 1/L)``,
    what a prediction that knows nothing is off by: 1 for perfect predictions, and a row that is off by more than δ₀
    counts as 0, however far off it is. Where all observed rows are even, only perfect rows count.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L).
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        per_row: Return one figure a row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``, given δ₀.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or both options at once.

    References:
        Li et al., Approximately correct label distribution learning, ICML 2025.

    Example:
        >>> round(delta_mu([[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.8, 0.2]]), 3)
        0.435
    """
    size = float((xlogy(D_true, D_true).sum(axis=1) + np.log(D_true.shape[1])).mean())
    miss = kl_divergence(D_true, D_pred, per_row=True)
    if size <= 0.0:
        return (miss <= 0.0).astype(float)
    rows: Array = 1.0 - np.minimum(miss / size, 1.0)
    return rows


def divisiveness(D: Any, positive: Any = None, negative: Any = None) -> Array:
    """How far the shares of a row are divided between labels that oppose each other.

    ``ψ(ℓ) = min(a·ℓ, b·ℓ)`` with weights ``a`` of the labels for and ``b`` of those against: 0 where all agree, ½ at
    most for two groups that share all labels. Without groups, every pair of labels opposes each other, and ψ is the
    mean of ``min(ℓ_j, ℓ_k)`` over pairs.

    Args:
        D: Label distributions, (N, L).
        positive: Weights ``a`` of the labels for, (L,), at least 0; 0 for labels that are not.
        negative: Weights ``b`` of the labels against, (L,); give both or none.

    Returns:
        ψ of each row, (N,).

    Raises:
        InputError: Rows that are no label distributions, or weights of another shape.

    References:
        Divisiveness-consistent label distribution learning, ICML 2026.

    Example:
        >>> divisiveness([[0.5, 0.0, 0.5], [0.9, 0.1, 0.0]], positive=[0, 0, 1], negative=[1, 0, 0])
        array([0.5, 0. ])
    """
    shares, _ = check_distributions(D, what="D")
    if (positive is None) != (negative is None):
        raise InputError("give positive and negative weights, or neither.")
    if positive is None:
        first, second = np.triu_indices(shares.shape[1], 1)
        pairs: Array = np.minimum(shares[:, first], shares[:, second]).mean(axis=1)
        return pairs
    weights = [np.asarray(w, dtype=np.float64) for w in (positive, negative)]
    for name, values in zip(("positive", "negative"), weights):
        if values.shape != shares.shape[1:] or not np.isfinite(values).all() or (values < 0).any():
            raise InputError(f"{name} must be {shares.shape[1]} numbers of at least 0, one a label.")
    smaller: Array = np.minimum(shares @ weights[0], shares @ weights[1])
    return smaller


def divisiveness_error(
    D_true: Any,
    D_pred: Any,
    positive: Any = None,
    negative: Any = None,
    *,
    per_row: bool = False,
    return_std_error: bool = False,
) -> Any:
    """Error of the divisiveness, ``|ψ(ℓ) - ψ(ℓ̂)|``, lower is better; see :func:`divisiveness`.

    Without groups, the mean over pairs of labels of ``|min(ℓ_j, ℓ_k) - min(ℓ̂_j, ℓ̂_k)|``.

    Args:
        D_true: Observed label distributions ``ℓ``, (N, L).
        D_pred: Predicted ones ``ℓ̂``, (N, L).
        positive: Weights of the labels for, (L,), or None.
        negative: Weights of the labels against, (L,), or None.
        per_row: Return one figure a row, (N,), instead of their mean.
        return_std_error: Return ``(mean, standard error)``.

    Returns:
        The mean over rows, a float; (N,) with ``per_row``; a pair of floats with ``return_std_error``.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, weights that do not fit, or both options.

    References:
        Divisiveness-consistent label distribution learning, ICML 2026.

    Example:
        >>> round(divisiveness_error([[0.5, 0.0, 0.5]], [[0.8, 0.0, 0.2]], [0, 0, 1], [1, 0, 0]), 3)
        0.3
    """
    true, predicted = check_distributions(D_true, what="D_true")[0], check_distributions(D_pred, what="D_pred")[0]
    if true.shape != predicted.shape:
        raise InputError(f"D_true and D_pred must have the same shape; got {true.shape} and {predicted.shape}.")
    if per_row and return_std_error:
        raise InputError("per_row=True has no standard error; ask for one or the other.")
    if positive is None and negative is None:
        first, second = np.triu_indices(true.shape[1], 1)
        gaps = np.minimum(true[:, first], true[:, second]) - np.minimum(predicted[:, first], predicted[:, second])
        rows = np.abs(gaps).mean(axis=1)
    else:
        rows = np.abs(divisiveness(true, positive, negative) - divisiveness(predicted, positive, negative))
    return rows if per_row else mean_over_rows(rows, return_std_error)
