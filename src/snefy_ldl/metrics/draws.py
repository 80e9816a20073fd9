"""Measures of draws and of predicted probabilities: proper scores, and the histogram that shows calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import check_observed, mean_over_rows

__all__ = ["crps", "energy_score", "pit_histogram"]


def crps(samples: Any, D: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Continuous ranked probability score of each share from draws, ``E|Y - ℓ_r| - ½ E|Y - Y'|``, lower is better.

    Unbiased for the law the draws come from ("fair"): pairs of a draw with itself are left out.

    Args:
        samples: Draws of the label distribution, (n, N, L), n at least 2.
        D: Observed label distributions, (N, L).
        per_label: Return one score a label, (L,), instead of their average.
        return_std_error: Return ``(score, standard error over rows)``.

    Returns:
        A float, or (L,) with ``per_label``; a pair of them with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, fewer than two draws, values that are not finite.

    Example:
        >>> round(crps([[[0.2, 0.8]], [[0.4, 0.6]]], [[0.3, 0.7]]), 3)
        0.0
    """
    draws, values = _check_draws(samples, D)
    n = len(draws)
    ranks = np.arange(1, n + 1)[:, None, None]
    # Σ_{i<j} |y_i - y_j| = Σ_k (2k - n - 1) y_(k) over the sorted draws
    half_distance = ((2 * ranks - n - 1) * np.sort(draws, axis=0)).sum(axis=0) / (n * (n - 1))
    rows = np.abs(draws - values).mean(axis=0) - half_distance
    return mean_over_rows(rows if per_label else rows.mean(axis=1), return_std_error)


def energy_score(samples: Any, D: Any, *, return_std_error: bool = False) -> Any:
    """Energy score from draws, ``E‖Y - ℓ‖ - ½ E‖Y - Y'‖``: the CRPS of whole distributions, lower is better.

    Unbiased, as :func:`crps` is. It needs all pairs of draws, so a few hundred draws are enough.

    Args:
        samples: Draws of the label distribution, (n, N, L), n at least 2.
        D: Observed label distributions, (N, L).
        return_std_error: Return ``(score, standard error over rows)``.

    Returns:
        A float, or a pair of floats with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, fewer than two draws, values that are not finite.

    Example:
        >>> round(energy_score([[[0.2, 0.8]], [[0.4, 0.6]]], [[0.3, 0.7]]), 3)
        0.0
    """
    draws, values = _check_draws(samples, D)
    distance = np.linalg.norm(draws - values, axis=-1).mean(axis=0)
    between = np.array([pdist(draws[:, row]).mean() for row in range(len(values))])
    return mean_over_rows(distance - 0.5 * between, return_std_error)


def pit_histogram(pit: Any, bins: int = 10, *, return_std_error: bool = False) -> Any:
    """Histogram of probability integral transforms ``u = F(ℓ_r | x)``; calibrated predictions give 1 in every bin.

    A hump in the middle means intervals too wide, a bowl too narrow, a slope a bias.
    Edges: ``linspace(0, 1, bins + 1)``.

    Args:
        pit: Values in [0, 1], (N,) or (N, L).
        bins: Equal-width bins.
        return_std_error: Return ``(heights, standard errors)``.

    Returns:
        Heights ``bins · (share of rows in the bin)``, (bins,) or (bins, L); a pair with ``return_std_error``.

    Raises:
        InputError: Another shape, values outside [0, 1], or fewer than one bin.

    Example:
        >>> pit_histogram([0.1, 0.2, 0.3, 0.9], bins=2)
        array([1.5, 0.5])
    """
    values = np.asarray(pit, dtype=np.float64)
    if values.ndim not in (1, 2) or values.size == 0:
        raise InputError(f"pit must be a non-empty (N,) or (N, L) array; got shape {values.shape}.")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError("pit must lie in [0, 1].")
    n_bins = check_count("bins", bins)
    bin_of = np.minimum((values * n_bins).astype(np.int64), n_bins - 1)
    share = np.stack([(bin_of == b).mean(axis=0) for b in range(n_bins)])
    heights = n_bins * share
    return (heights, n_bins * np.sqrt(share * (1.0 - share) / len(values))) if return_std_error else heights


def _check_draws(samples: Any, D: Any) -> tuple[Array, Array]:
    draws = np.asarray(samples, dtype=np.float64)
    if draws.ndim != 3 or draws.shape[0] < 2 or draws.size == 0:
        raise InputError(f"samples must have shape (n, N, L) with n >= 2 draws; got {draws.shape}.")
    if not np.isfinite(draws).all():
        raise InputError("samples must be finite.")
    return draws, check_observed(D, draws.shape[1:])
