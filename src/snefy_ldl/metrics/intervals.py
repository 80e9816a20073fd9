"""Measures of intervals, draws and predicted probabilities: coverage, width, proper scores, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float, check_confidence, check_count
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import check_intervals, check_observed, covered_labels, mean_over_rows

#: Partners of each draw in an energy score, counted on one side.
MOST_SHIFTS = 64


def coverage(D: Any, intervals: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Share of label values inside their intervals, ends included.

    Args:
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        per_label: Return one share per label, (L,), instead of their average.
        return_std_error: Return ``(share, standard error)``.

    Returns:
        A float, or (L,) with ``per_label``; a pair of them with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, values that are not finite, crossed ends.

    Example:
        >>> coverage([[0.2, 0.8], [0.5, 0.5]], [[[0.1, 0.3], [0.7, 0.9]], [[0.0, 0.2], [0.4, 0.6]]])
        0.75
    """
    covered = covered_labels(D, intervals).astype(np.float64)
    return mean_over_rows(covered if per_label else covered.mean(axis=1), return_std_error)


def joint_coverage(D: Any, intervals: Any, *, return_std_error: bool = False) -> Any:
    """Share of rows whose labels *all* lie inside their intervals.

    Args:
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        return_std_error: Return ``(share, standard error)``.

    Returns:
        A float, or a pair of floats with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, values that are not finite, crossed ends.

    Example:
        >>> joint_coverage([[0.2, 0.8], [0.5, 0.5]], [[[0.1, 0.3], [0.7, 0.9]], [[0.0, 0.2], [0.4, 0.6]]])
        0.5
    """
    return mean_over_rows(covered_labels(D, intervals).all(axis=1).astype(np.float64), return_std_error)


def interval_width(intervals: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Mean width of the intervals, ``mean(u - l)``.

    Args:
        intervals: Lower and upper ends, (N, L, 2).
        per_label: Return one width per label, (L,), instead of their average.
        return_std_error: Return ``(width, standard error)``.

    Returns:
        A float, or (L,) with ``per_label``; a pair of them with ``return_std_error``.

    Raises:
        InputError: Another shape, or crossed ends.

    Example:
        >>> round(interval_width([[[0.1, 0.3], [0.7, 0.9]]]), 3)
        0.2
    """
    ends = check_intervals(intervals)
    widths = ends[:, :, 1] - ends[:, :, 0]
    return mean_over_rows(widths if per_label else widths.mean(axis=1), return_std_error)


def interval_score(
    D: Any,
    intervals: Any,
    confidence_level: float = 0.9,
    *,
    per_label: bool = False,
    return_std_error: bool = False,
) -> Any:
    """Winkler's interval score ``(u - l) + 2/(1-c) · (distance of ℓ_r from [l, u])``, lower is better.

    It is proper for the central interval: narrow is good, missing costs.

    Args:
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        confidence_level: ``c``, the level the intervals aim at.
        per_label: Return one score per label, (L,), instead of their average.
        return_std_error: Return ``(score, standard error)``.

    Returns:
        A float, or (L,) with ``per_label``; a pair of them with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, crossed ends, or a level outside (0, 1).

    Example:
        >>> round(interval_score([[0.2, 0.8]], [[[0.3, 0.5], [0.7, 0.9]]], 0.9), 3)
        1.2
    """
    level = check_confidence(confidence_level)
    ends = check_intervals(intervals)
    values = check_observed(D, ends.shape[:2])
    low, high = ends[:, :, 0], ends[:, :, 1]
    miss = np.maximum(low - values, 0.0) + np.maximum(values - high, 0.0)
    scores = high - low + 2.0 / (1.0 - level) * miss
    return mean_over_rows(scores if per_label else scores.mean(axis=1), return_std_error)


def crps(D: Any, draws: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Continuous ranked probability score of each share, ``E|Y - ℓ_r| - ½ E|Y - Y'|``, lower is better.

    Unbiased for the distribution that the draws come from: pairs of a draw with itself do not count.

    Args:
        D: Observed label distributions, (N, L).
        draws: Draws of the predicted distributions, (n, N, L), n at least 2. The two may be given in either order.
        per_label: Return one score per label, (L,), instead of their average.
        return_std_error: Return ``(score, standard error)``.

    Returns:
        A float, or (L,) with ``per_label``; a pair of them with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, fewer than two draws, values that are not finite.

    References:
        Gneiting, Raftery, Strictly proper scoring rules, prediction, and estimation, JASA 102, 2007.

    Example:
        >>> round(crps([[0.3, 0.7]], [[[0.2, 0.8]], [[0.5, 0.5]]]), 3)
        0.0
    """
    values, samples = _check_draws(D, draws)
    n = len(samples)
    rank = np.arange(1, n + 1)[:, None, None]
    # Σ_{i<j} |y_i - y_j| = Σ_k (2k - n - 1) y_(k) over the sorted draws
    half_distance = ((2 * rank - n - 1) * np.sort(samples, axis=0)).sum(axis=0) / (n * (n - 1))
    rows = np.abs(samples - values).mean(axis=0) - half_distance
    return mean_over_rows(rows if per_label else rows.mean(axis=1), return_std_error)


def energy_score(D: Any, draws: Any, *, return_std_error: bool = False) -> Any:
    """Energy score ``E‖Y - ℓ‖ - ½ E‖Y - Y'‖``: the CRPS of whole label distributions, lower is better.

    Unbiased, as :func:`crps` is. Of many draws each is compared with the next 64 ones only, so the draws of a row must
    be independent.

    Args:
        D: Observed label distributions, (N, L).
        draws: Draws of the predicted distributions, (n, N, L), n at least 2. The two may be given in either order.
        return_std_error: Return ``(score, standard error)``.

    Returns:
        A float, or a pair of floats with ``return_std_error``.

    Raises:
        InputError: Shapes that do not match, fewer than two draws, values that are not finite.

    References:
        Gneiting, Raftery, Strictly proper scoring rules, prediction, and estimation, JASA 102, 2007.

    Example:
        >>> round(energy_score([[0.3, 0.7]], [[[0.2, 0.8]], [[0.5, 0.5]]]), 3)
        0.0
    """
    values, samples = _check_draws(D, draws)
    distance = np.linalg.norm(samples - values, axis=-1).mean(axis=0)
    # draw i against draw i + k: each k gives every draw two partners, all k up to n/2 all pairs
    shifts = range(1, min(len(samples) - 1, MOST_SHIFTS) + 1)
    between = sum(np.linalg.norm(samples - np.roll(samples, k, axis=0), axis=-1).mean(axis=0) for k in shifts)
    return mean_over_rows(distance - 0.5 * between / len(shifts), return_std_error)


def _check_draws(D: Any, draws: Any) -> tuple[Array, Array]:
    """Observed shares (N, L) and draws (n, N, L), recognised by their numbers of dimensions."""
    shares, table = as_float(D, "D"), as_float(draws, "draws")
    shares, table = (table, shares) if shares.ndim == 3 else (shares, table)
    if table.ndim != 3 or len(table) < 2 or table.size == 0 or not np.isfinite(table).all():
        raise InputError(f"draws must be finite, of shape (n, N, L), with n >= 2; got shape {table.shape}.")
    return check_observed(shares, table.shape[1:]), table


def pit_histogram(pit: Any, bins: int = 10) -> Array:
    """Histogram of probability integral transforms ``u = F(ℓ_r | x)``; calibrated predictions give 1 in every bin.

    A hump in the middle means intervals too wide, a bowl too narrow, a slope a bias.
    Edges: ``linspace(0, 1, bins + 1)``.

    Args:
        pit: Values in [0, 1], (N,).
        bins: Equal-width bins.

    Returns:
        Heights ``bins · (share of rows in the bin)``, (bins,).

    Raises:
        InputError: Another shape, values outside [0, 1], or fewer than one bin.

    Example:
        >>> pit_histogram([0.1, 0.2, 0.3, 0.9], bins=2)
        array([1.5, 0.5])
    """
    values = as_float(pit, "pit")
    if values.ndim != 1 or values.size == 0:
        raise InputError(f"pit must be a non-empty (N,) array; got shape {values.shape}.")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError("pit must lie in [0, 1].")
    return np.histogram(values, check_count("bins", bins), (0.0, 1.0), density=True)[0]
