"""Measures that weigh sure and unsure rows alike: entropy-calibrated aggregation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import entr

from snefy_ldl._internal.validation import check_distributions, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.points import RowMetric

__all__ = ["EntropyCalibrated", "entropy_calibrated"]


class EntropyCalibrated(NamedTuple):
    """A measure on rows of low and of high entropy.

    Attributes:
        value: Mean of ``low`` and ``high``, or the one of them that has rows.
        low: Mean over the rows whose entropy is at most the threshold; NaN if there are none.
        high: Mean over the others; NaN if there are none.
        n_low: Number of rows of low entropy.
        n_high: Number of the others.

    Example:
        >>> EntropyCalibrated(0.2, 0.3, 0.1, 5, 50).value
        0.2
    """

    value: float
    low: float
    high: float
    n_low: int
    n_high: int


def entropy_calibrated(
    measure: RowMetric, D_true: Any, D_pred: Any, *, threshold: float | None = None
) -> EntropyCalibrated:
    """Average a measure over rows of low and of high entropy apart, then over the two.

    Most rows of most tables have a high entropy, so that a plain mean hides how a learner does on the rows that are
    almost decided.

    Args:
        measure: A measure of ``snefy_ldl.metrics`` that takes ``per_row``, for example ``metrics.kl_divergence``.
        D_true: Observed label distributions, (N, L).
        D_pred: Predicted ones, (N, L).
        threshold: Entropy in nats up to which a row counts as low; half the largest, ``½ log L``, by default (a choice
            taken here).

    Returns:
        The value, its two parts and their numbers of rows.

    Raises:
        InputError: Rows that are no label distributions, shapes that differ, or a threshold below zero.

    References:
        Entropy-calibrated label distribution learning, NeurIPS 2025.

    Example:
        >>> from snefy_ldl.metrics import chebyshev
        >>> D = [[0.98, 0.02], [0.5, 0.5], [0.4, 0.6]]
        >>> entropy_calibrated(chebyshev, D, [[0.58, 0.42], [0.5, 0.5], [0.6, 0.4]]).value.__round__(3)
        0.25
    """
    true, _ = check_distributions(D_true, what="D_true")
    if threshold is not None:
        check_number("threshold", threshold)
    rows = measure(true, D_pred, per_row=True)
    if np.ndim(rows) != 1:
        raise InputError("measure must give one figure a row with per_row=True.")
    low = entr(true).sum(axis=1) <= (0.5 * np.log(true.shape[1]) if threshold is None else threshold)
    parts = [float(rows[part].mean()) if part.any() else float("nan") for part in (low, ~low)]
    return EntropyCalibrated(float(np.nanmean(parts)), parts[0], parts[1], int(low.sum()), int((~low).sum()))
