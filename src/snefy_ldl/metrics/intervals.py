"""Measures of intervals and draws: coverage, width, scores, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from scipy.stats import binom

from snefy_ldl._types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.validation import check_confidence

# --- intervals --------------------------------------------------------------------------------------------------------


def coverage(D: Any, intervals: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Share of label values inside their intervals, ends included.

    Args:
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        per_label: Return one share a label, (L,), instead of their average.
        return_std_error: Return ``(share, standard error)``.

    >>> coverage([[0.2, 0.8], [0.5, 0.5]], [[[0.1, 0.3], [0.7, 0.9]], [[0.0, 0.2], [0.4, 0.6]]])
    0.75
    """
    covered = _covered(D, intervals).astype(np.float64)
    return _mean_over_rows(covered if per_label else covered.mean(axis=1), return_std_error)


def joint_coverage(D: Any, intervals: Any, *, return_std_error: bool = False) -> Any:
    """Share of rows whose labels *all* lie inside their intervals; arguments as in :func:`coverage`.

    >>> joint_coverage([[0.2, 0.8], [0.5, 0.5]], [[[0.1, 0.3], [0.7, 0.9]], [[0.0, 0.2], [0.4, 0.6]]])
    0.5
    """
    return _mean_over_rows(_covered(D, intervals).all(axis=1).astype(np.float64), return_std_error)


def interval_width(intervals: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Mean width of the intervals, ``mean(u - l)``; arguments as in :func:`coverage`.

    >>> round(interval_width([[[0.1, 0.3], [0.7, 0.9]]]), 3)
    0.2
    """
    ends = _intervals(intervals)
    widths = ends[:, :, 1] - ends[:, :, 0]
    return _mean_over_rows(widths if per_label else widths.mean(axis=1), return_std_error)


def interval_score(
    D: Any,
    intervals: Any,
    confidence_level: float = 0.9,
    *,
    per_label: bool = False,
    return_std_error: bool = False,
) -> Any:
    """Winkler's interval score ``(u - l) + 2/(1-c) · (distance of ℓ_r from [l, u])``, lower is better.

    It is proper for the central interval: narrow is good, missing costs. Arguments as in :func:`coverage`;
    ``confidence_level`` is ``c``.

    >>> round(interval_score([[0.2, 0.8]], [[[0.3, 0.5], [0.7, 0.9]]], 0.9), 3)
    1.2
    """
    level = check_confidence(confidence_level)
    ends = _intervals(intervals)
    values = _values(D, ends.shape[:2])
    low, high = ends[:, :, 0], ends[:, :, 1]
    miss = np.maximum(low - values, 0.0) + np.maximum(values - high, 0.0)
    scores = high - low + 2.0 / (1.0 - level) * miss
    return _mean_over_rows(scores if per_label else scores.mean(axis=1), return_std_error)


def feature_stratified_coverage(
    feature: Any, D: Any, intervals: Any, n_groups: int, *, return_std_error: bool = False
) -> Any:
    """Feature-stratified coverage (FSC) of each label, (L,): the paper's measure of adaptivity.

    ``FSC_r = min_g mean_{i in g} 1{ℓ_ir in C_ir}`` over ``G`` groups: equal-width bins of the feature over these rows.
    Empty bins are skipped. Even perfect intervals stay below their level: see :func:`fsc_ceiling`.

    Args:
        feature: The feature that makes the groups, (N,); the paper takes the first column of X.
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        n_groups: ``G``, which the paper calls the bin size.
        return_std_error: Also return the binomial standard error of the worst group's coverage.

    >>> D = np.full((4, 2), 0.5)
    >>> inside, outside = [[0.4, 0.6], [0.4, 0.6]], [[0.6, 0.7], [0.4, 0.6]]
    >>> feature_stratified_coverage([0, 1, 9, 10], D, [inside, inside, inside, outside], 2)
    array([0.5, 1. ])
    """
    covered = _covered(D, intervals)
    groups = _equal_width_groups(_feature(feature, len(covered)), n_groups)
    return _worst_group(covered, np.repeat(groups[:, None], covered.shape[1], axis=1), return_std_error)


def size_stratified_coverage(D: Any, intervals: Any, n_groups: int = 4, *, return_std_error: bool = False) -> Any:
    """Size-stratified coverage of each label, (L,): the worst coverage among narrow, ..., wide intervals.

    Rows are put into ``n_groups`` groups of equal counts by the width of the label's interval; equal widths stay in one
    group. Arguments as in :func:`feature_stratified_coverage`.

    >>> D = np.full((4, 2), 0.5)
    >>> narrow, wide = [[0.6, 0.7], [0.45, 0.55]], [[0.0, 1.0], [0.0, 1.0]]
    >>> size_stratified_coverage(D, [narrow, narrow, wide, wide], 2)
    array([0., 1.])
    """
    return _worst_group(_covered(D, intervals), _size_groups(intervals, n_groups), return_std_error)


def ssc_ceiling(intervals: Any, n_groups: int = 4, level: float = 0.9, *, return_std_error: bool = False) -> Any:
    """Expected size-stratified coverage of each label, (L,), when every row is covered with probability ``level``.

    Exact for the groups these intervals make, so its standard error is 0; see :func:`fsc_ceiling`.

    >>> narrow, wide = [[0.4, 0.5], [0.5, 0.6]], [[0.3, 0.5], [0.5, 0.7]]
    >>> ssc_ceiling([narrow] * 50 + [wide] * 50, 2, 0.9).round(3)
    array([0.876, 0.876])
    """
    groups = _size_groups(intervals, n_groups)
    check_confidence(level, "level")
    ceilings = np.array([_expected_minimum(column, level) for column in groups.T])
    return (ceilings, np.zeros_like(ceilings)) if return_std_error else ceilings


def group_coverage(groups: Any, D: Any, intervals: Any, *, return_std_error: bool = False) -> dict[Any, Any]:
    """Coverage of each label within each group, ``{group: (L,)}``, or ``{group: ((L,), standard errors)}``.

    >>> D = np.full((3, 2), 0.5)
    >>> inside, outside = [[0.4, 0.6], [0.4, 0.6]], [[0.6, 0.7], [0.4, 0.6]]
    >>> group_coverage(["a", "a", "b"], D, [inside, outside, inside])["a"]
    array([0.5, 1. ])
    """
    covered = _covered(D, intervals).astype(np.float64)
    names = np.asarray(groups)
    if names.shape != (len(covered),):
        raise InputError(f"groups must hold one group a row: shape ({len(covered)},), got {names.shape}.")
    found = np.unique(names)
    return {name.item(): _mean_over_rows(covered[names == name], return_std_error) for name in found}


def worst_slab_coverage(
    X: Any,
    D: Any,
    intervals: Any,
    *,
    min_mass: float = 0.1,
    n_directions: int = 200,
    random_state: Any = 0,
    return_std_error: bool = False,
) -> Any:
    """Worst coverage over slabs ``{a ≤ v·x ≤ b}`` of the feature space, one a label, (L,) (Cauchois et al., 2021).

    Half of the rows search random directions ``v`` (features standardised) for the slab with the lowest coverage
    among those that hold at least ``min_mass`` of them; the other half measures it, so the search adds no bias. A slab
    that none of the other half falls into keeps the value it was found with.

    Args:
        X: Features, (N, d).
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        min_mass: Smallest share of the rows a slab may hold.
        n_directions: Random directions to try.
        random_state: Seed or numpy Generator.
        return_std_error: Also return the binomial standard error in the slab.

    >>> rng = np.random.default_rng(0)
    >>> X, D = rng.normal(size=(400, 2)), np.full((400, 2), 0.5)
    >>> intervals = np.stack([np.where(X > 1, 0.6, 0.0), np.ones((400, 2))], axis=-1)  # misses where x > 1
    >>> bool((worst_slab_coverage(X, D, intervals) < 0.6).all())
    True
    """
    covered = _covered(D, intervals).astype(np.float64)
    features = np.asarray(X, dtype=np.float64)
    if features.ndim != 2 or len(features) != len(covered) or not np.isfinite(features).all():
        raise InputError(f"X must be a finite ({len(covered)}, d) array; got shape {features.shape}.")
    check_confidence(min_mass, "min_mass")
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(covered))
    search, measure = np.array_split(order, 2)
    least = int(np.ceil(min_mass * len(search)))
    if len(measure) == 0 or least < 2:
        raise InputError(
            f"{len(covered)} rows are too few for slabs of {min_mass:g} of half of them (2 rows at least)."
        )
    spread = features.std(axis=0)
    features = (features - features.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    directions = rng.normal(size=(features.shape[1], _at_least(n_directions, "n_directions", 1)))
    best, error = np.full(covered.shape[1], np.inf), np.zeros(covered.shape[1])
    value = best.copy()
    for projection in (features @ directions).T:
        by_position = search[np.argsort(projection[search], kind="stable")]
        lowest, first, last = _lowest_window(covered[by_position], least)
        for label in np.flatnonzero(lowest < best):
            best[label] = lowest[label]
            a, b = projection[by_position[first[label]]], projection[by_position[last[label]]]
            inside = measure[(projection[measure] >= a) & (projection[measure] <= b)]
            rows = (
                covered[inside, label] if len(inside) else covered[by_position[first[label] : last[label] + 1], label]
            )
            value[label], error[label] = rows.mean(), np.sqrt(rows.var() / len(rows))
    return (value, error) if return_std_error else value


def fsc_ceiling(
    feature: Any,
    n_groups: int,
    level: float = 0.9,
    *,
    test_fraction: float | None = None,
    n_splits: int = 100,
    random_state: Any = 0,
    return_std_error: bool = False,
) -> Any:
    """Expected FSC when every row is covered with probability ``level``: what perfect intervals would score.

    The minimum over groups of ``B_g / n_g``, ``B_g ~ Binomial(n_g, level)``, lies below ``level``. Its mean is exact:
    ``E[min] = ∫ Π_g P(B_g / n_g > t) dt``, a finite sum. Only the split is simulated, when ``test_fraction`` is given.

    Args:
        feature: The feature that makes the groups, (N,).
        n_groups: ``G``.
        level: The coverage aimed at.
        test_fraction: Average over random test sets of this share of the rows; by default all rows are the test set.
        n_splits: How many random test sets.
        random_state: Seed or numpy Generator for them.
        return_std_error: Also return the standard error of that average (0 without ``test_fraction``).

    >>> round(fsc_ceiling(np.arange(100), 1, 0.9), 6), round(fsc_ceiling(np.arange(100), 8, 0.9), 3)
    (0.9, 0.768)
    """
    values = _feature(feature, None)
    check_confidence(level, "level")
    if test_fraction is None:
        exact = _expected_minimum(_equal_width_groups(values, n_groups), level)
        return (exact, 0.0) if return_std_error else exact
    size = round(check_confidence(test_fraction, "test_fraction") * len(values))
    _at_least(size, "test rows", 1)
    rng = np.random.default_rng(random_state)
    subsets = [rng.choice(values, size, replace=False) for _ in range(_at_least(n_splits, "n_splits", 1))]
    ceilings = np.array([_expected_minimum(_equal_width_groups(subset, n_groups), level) for subset in subsets])
    return _mean_over_rows(ceilings, return_std_error)


# --- draws and calibration --------------------------------------------------------------------------------------------


def crps(samples: Any, D: Any, *, per_label: bool = False, return_std_error: bool = False) -> Any:
    """Continuous ranked probability score of each share from draws, ``E|Y - ℓ_r| - ½ E|Y - Y'|``, lower is better.

    Unbiased for the law the draws come from ("fair"): pairs of a draw with itself are left out.

    Args:
        samples: Draws of the label distribution, (n, N, L), n at least 2.
        D: Observed label distributions, (N, L).
        per_label: Return one score a label, (L,), instead of their average.
        return_std_error: Return ``(score, standard error over rows)``.

    >>> round(crps([[[0.2, 0.8]], [[0.4, 0.6]]], [[0.3, 0.7]]), 3)
    0.0
    """
    draws, values = _draws(samples, D)
    n = len(draws)
    ranks = np.arange(1, n + 1)[:, None, None]
    # Σ_{i<j} |y_i - y_j| = Σ_k (2k - n - 1) y_(k) over the sorted draws
    spread = ((2 * ranks - n - 1) * np.sort(draws, axis=0)).sum(axis=0) / (n * (n - 1))
    rows = np.abs(draws - values).mean(axis=0) - spread
    return _mean_over_rows(rows if per_label else rows.mean(axis=1), return_std_error)


def energy_score(samples: Any, D: Any, *, return_std_error: bool = False) -> Any:
    """Energy score from draws, ``E‖Y - ℓ‖ - ½ E‖Y - Y'‖``: the CRPS of whole distributions.

    Unbiased and with arguments as in :func:`crps`; needs all pairs of draws, so a few hundred draws are enough.

    >>> round(energy_score([[[0.2, 0.8]], [[0.4, 0.6]]], [[0.3, 0.7]]), 3)
    0.0
    """
    draws, values = _draws(samples, D)
    distance = np.linalg.norm(draws - values, axis=-1).mean(axis=0)
    spread = np.array([pdist(draws[:, row]).mean() for row in range(len(values))])
    return _mean_over_rows(distance - 0.5 * spread, return_std_error)


def pit_histogram(pit: Any, bins: int = 10, *, return_std_error: bool = False) -> Any:
    """Histogram of probability integral transforms ``u = F(ℓ_r | x)``; calibrated predictions give 1 in every bin.

    A hump in the middle means intervals too wide, a bowl too narrow, a slope a bias.
    Edges: ``linspace(0, 1, bins + 1)``.

    Args:
        pit: Values in [0, 1], (N,) or (N, L).
        bins: Equal-width bins.
        return_std_error: Return ``(heights, standard errors)``.

    Returns:
        Heights ``bins · (share of rows in the bin)``, (bins,) or (bins, L).

    >>> pit_histogram([0.1, 0.2, 0.3, 0.9], bins=2)
    array([1.5, 0.5])
    """
    values = np.asarray(pit, dtype=np.float64)
    if values.ndim not in (1, 2) or values.size == 0:
        raise InputError(f"pit must be a non-empty (N,) or (N, L) array; got shape {values.shape}.")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError("pit must lie in [0, 1].")
    n_bins = _at_least(bins, "bins", 1)
    bin_of = np.minimum((values * n_bins).astype(np.int64), n_bins - 1)
    share = np.stack([(bin_of == b).mean(axis=0) for b in range(n_bins)])
    heights = n_bins * share
    return (heights, n_bins * np.sqrt(share * (1.0 - share) / len(values))) if return_std_error else heights


# --- shared pieces ----------------------------------------------------------------------------------------------------


def _mean_over_rows(rows: Any, with_error: bool) -> Any:
    """Mean over the first axis, a float where one number is left, with its standard error if asked."""
    n = len(rows)
    mean = rows.mean(axis=0)
    error = rows.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full_like(mean, np.inf)
    if rows.ndim == 1:
        mean, error = float(mean), float(error)
    return (mean, error) if with_error else mean


def _worst_group(covered: NDArray[np.bool_], groups: NDArray[np.int64], with_error: bool) -> Any:
    """Lowest coverage over the groups of each column, and its binomial standard error."""
    worst, error = np.empty(covered.shape[1]), np.empty(covered.shape[1])
    for label, (hits, group) in enumerate(zip(covered.T, groups.T)):
        sizes = np.bincount(group)
        filled = sizes > 0
        rates = np.bincount(group, weights=hits)[filled] / sizes[filled]
        lowest = int(rates.argmin())
        worst[label] = rates[lowest]
        error[label] = np.sqrt(worst[label] * (1.0 - worst[label]) / sizes[filled][lowest])
    return (worst, error) if with_error else worst


def _size_groups(intervals: Any, n_groups: int) -> NDArray[np.int64]:
    """Group of each row and label (N, L) by the width of its interval; equal widths stay together."""
    ends = _intervals(intervals)
    # Rounding keeps intervals of one nominal width together: u - l differs in the last digits.
    widths = np.round(ends[:, :, 1] - ends[:, :, 0], 12)
    cuts = np.quantile(widths, np.arange(1, _at_least(n_groups, "n_groups", 1)) / n_groups, axis=0, method="lower")
    groups: NDArray[np.int64] = (widths[None] > cuts[:, None, :]).sum(axis=0)
    return groups


def _lowest_window(covered: Array, least: int) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Lowest mean over runs of at least ``least`` rows, with its first and last row, for each column.

    A run of 2·least rows or more splits into two admissible runs, one of which is no better: lengths below suffice.
    """
    n, n_labels = covered.shape
    total = np.vstack([np.zeros((1, n_labels)), np.cumsum(covered, axis=0)])
    lowest, first, last = np.full(n_labels, np.inf), np.zeros(n_labels, np.int64), np.zeros(n_labels, np.int64)
    for length in range(least, min(2 * least, n + 1)):
        means = (total[length:] - total[:-length]) / length
        start = means.argmin(axis=0)
        value = means[start, np.arange(n_labels)]
        better = value < lowest
        lowest = np.where(better, value, lowest)
        first, last = np.where(better, start, first), np.where(better, start + length - 1, last)
    return lowest, first, last


def _expected_minimum(groups: NDArray[np.int64], level: float) -> float:
    sizes = np.bincount(groups)
    sizes = sizes[sizes > 0]
    steps = np.unique(np.concatenate([np.arange(size + 1) / size for size in np.unique(sizes)]))
    survival = np.ones(len(steps) - 1)  # P(min > t), constant between two steps: no group's rate lies there
    for size in sizes:
        hits = np.searchsorted(np.arange(size + 1) / size, steps[:-1], side="right") - 1
        survival *= binom.sf(hits, size, level)
    return float((survival * np.diff(steps)).sum())


def _equal_width_groups(feature: Array, n_groups: int) -> NDArray[np.int64]:
    count = _at_least(n_groups, "n_groups", 1)
    low, high = feature.min(), feature.max()
    if low == high:
        return np.zeros(len(feature), dtype=np.int64)
    inner_edges = np.linspace(low, high, count + 1)[1:-1]
    return np.searchsorted(inner_edges, feature, side="right").astype(np.int64)


def _at_least(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number, at least {least}; got {value!r}.")
    return int(value)


def _feature(feature: Any, n_rows: int | None) -> Array:
    values = np.asarray(feature, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or (n_rows is not None and len(values) != n_rows):
        wanted = "(N,)" if n_rows is None else f"({n_rows},)"
        raise InputError(f"feature must hold one number a row: shape {wanted}, got {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError(f"feature row {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite.")
    return values


def _intervals(intervals: Any) -> Array:
    ends = np.asarray(intervals, dtype=np.float64)
    if ends.ndim != 3 or ends.shape[2] != 2 or ends.size == 0:
        raise InputError(f"intervals must have shape (N, L, 2): lower and upper ends; got {ends.shape}.")
    bad = ~(ends[:, :, 0] <= ends[:, :, 1])
    if bad.any():
        row, label = (int(i) for i in np.argwhere(bad)[0])
        raise InputError(f"intervals row {row}, label {label} is {ends[row, label].tolist()}; lower must be <= upper.")
    return ends


def _values(D: Any, shape: tuple[int, ...]) -> Array:
    values = np.asarray(D, dtype=np.float64)
    if values.shape != shape:
        raise InputError(f"D must have shape {shape} to match; got {values.shape}.")
    if not np.isfinite(values).all():
        row, label = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise InputError(f"D is not finite at row {row}, label {label}.")
    return values


def _covered(D: Any, intervals: Any) -> NDArray[np.bool_]:
    ends = _intervals(intervals)
    values = _values(D, ends.shape[:2])
    inside: NDArray[np.bool_] = (ends[:, :, 0] <= values) & (values <= ends[:, :, 1])
    return inside


def _draws(samples: Any, D: Any) -> tuple[Array, Array]:
    draws = np.asarray(samples, dtype=np.float64)
    if draws.ndim != 3 or draws.shape[0] < 2 or draws.size == 0:
        raise InputError(f"samples must have shape (n, N, L) with n >= 2 draws; got {draws.shape}.")
    if not np.isfinite(draws).all():
        raise InputError("samples must be finite.")
    return draws, _values(D, draws.shape[1:])
