"""Coverage given something about the row: a feature, the width, a group, a slab of feature space.

A worst-of-several figure lies below the level even for perfect intervals, because a minimum of noisy shares does; the
``*_ceiling`` functions give exactly how far below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import as_float, check_confidence, check_count
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import check_intervals, check_observed, covered_labels

Groups = NDArray[np.int64]


def feature_stratified_coverage(feature: Any, D: Any, intervals: Any, n_groups: int) -> Array:
    """Feature-stratified coverage (FSC) of each label, (L,): the paper's measure of adaptivity.

    ``FSC_r = min_g mean_{i in g} 1{ℓ_ir in C_ir}`` over ``G`` groups: equal-width bins of the feature over these rows.
    Empty bins are skipped. Even perfect intervals stay below their level: see :func:`fsc_ceiling`.

    Args:
        feature: The feature that makes the groups, (N,); the paper takes the first column of X.
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        n_groups: ``G``, which the paper calls the bin size.

    Returns:
        The worst group's coverage of each label, (L,).

    Raises:
        InputError: Shapes that do not match, values that are not finite, or fewer than one group.

    Example:
        >>> D = np.full((4, 2), 0.5)
        >>> inside, outside = [[0.4, 0.6], [0.4, 0.6]], [[0.6, 0.7], [0.4, 0.6]]
        >>> feature_stratified_coverage([0, 1, 9, 10], D, [inside, inside, inside, outside], 2)
        array([0.5, 1. ])
    """
    covered = covered_labels(D, intervals)
    groups = _equal_width_groups(_feature(feature, len(covered)), n_groups)
    return _worst_group(covered, np.repeat(groups[:, None], covered.shape[1], axis=1))


def size_stratified_coverage(D: Any, intervals: Any, n_groups: int = 4) -> Array:
    """Size-stratified coverage of each label, (L,): the worst coverage among narrow, ..., wide intervals.

    Rows are put into ``n_groups`` groups of equal counts by the width of the label's interval; equal widths stay in one
    group.

    Args:
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        n_groups: Groups of widths.

    Returns:
        The worst group's coverage of each label, (L,).

    Raises:
        InputError: Shapes that do not match, values that are not finite, or fewer than one group.

    Example:
        >>> D = np.full((4, 2), 0.5)
        >>> narrow, wide = [[0.6, 0.7], [0.45, 0.55]], [[0.0, 1.0], [0.0, 1.0]]
        >>> size_stratified_coverage(D, [narrow, narrow, wide, wide], 2)
        array([0., 1.])
    """
    return _worst_group(covered_labels(D, intervals), _size_groups(intervals, n_groups))


def share_stratified_coverage(predicted: Any, D: Any, intervals: Any, n_groups: int = 10) -> Array:
    """Coverage of each label, (L,), in the worst of several bins of its predicted share.

    Args:
        predicted: Predicted shares, (N, L); bins have equal counts, and equal shares stay in one bin.
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        n_groups: Bins.

    Returns:
        The worst bin's coverage of each label, (L,).

    Raises:
        InputError: Shapes that do not match, values that are not finite, or fewer than one bin.

    Example:
        >>> D, ends = np.full((4, 2), 0.5), np.tile([0.4, 0.6], (4, 2, 1))
        >>> ends[3] = [0.6, 0.7]
        >>> share_stratified_coverage([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]], D, ends, 2)
        array([0.5, 0.5])
    """
    covered = covered_labels(D, intervals)
    shares = check_observed(predicted, covered.shape)
    return _worst_group(covered, _equal_count_groups(shares, n_groups))


def group_coverage(groups: Any, D: Any, intervals: Any) -> dict[Any, Any]:
    """Coverage of each label within each group.

    Args:
        groups: Group of each row, (N,).
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).

    Returns:
        ``{group: (L,)}``, groups in sorted order.

    Raises:
        InputError: Shapes that do not match, or values that are not finite.

    Example:
        >>> D = np.full((3, 2), 0.5)
        >>> inside, outside = [[0.4, 0.6], [0.4, 0.6]], [[0.6, 0.7], [0.4, 0.6]]
        >>> group_coverage(["a", "a", "b"], D, [inside, outside, inside])["a"]
        array([0.5, 1. ])
    """
    covered = covered_labels(D, intervals).astype(np.float64)
    names, which = _groups(groups, len(covered))
    return {name: covered[which == k].mean(axis=0) for k, name in enumerate(names)}


def worst_slab_coverage(
    X: Any,
    D: Any,
    intervals: Any,
    *,
    min_mass: float = 0.1,
    n_directions: int = 200,
    random_state: Any = 0,
) -> Array:
    """Worst coverage over slabs ``{a ≤ v·x ≤ b}`` of the feature space, one per label, (L,) (Cauchois et al., 2021).

    Half of the rows search random directions ``v`` (features standardised) for the slab with the lowest coverage
    among those that hold at least ``min_mass`` of them; the other half measures it, so the search adds no bias. A slab
    that none of the other half falls into keeps the coverage that the search measured.

    Args:
        X: Features, (N, d).
        D: Observed label distributions, (N, L).
        intervals: Lower and upper ends, (N, L, 2).
        min_mass: Smallest share of the rows a slab may hold.
        n_directions: Random directions to try.
        random_state: Seed or numpy Generator.

    Returns:
        Coverage in the worst slab of each label, (L,).

    Raises:
        InputError: Shapes that do not match, values that are not finite, or too few rows for such slabs.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X, D = rng.normal(size=(400, 2)), np.full((400, 2), 0.5)
        >>> intervals = np.stack([np.where(X > 1, 0.6, 0.0), np.ones((400, 2))], axis=-1)  # misses where x > 1
        >>> bool((worst_slab_coverage(X, D, intervals) < 0.6).all())
        True
    """
    covered = covered_labels(D, intervals).astype(np.float64)
    return _worst_slab(_features(X, len(covered)), covered, min_mass, n_directions, random_state)


def _groups(groups: Any, n_rows: int | None = None) -> tuple[list[Any], Groups]:
    """Names of the groups, sorted, and the group of each row (N,)."""
    try:
        array = np.asarray(groups)
        shape, (names, which) = array.shape, np.unique(array, return_inverse=True)
    except (TypeError, ValueError):  # ragged, or names of kinds that cannot be sorted
        names, shape = np.zeros(0), ()
    if len(shape) != 1 or not len(names) or shape[0] != (n_rows or shape[0]):
        raise InputError(f"groups must hold one name or number per row: shape ({n_rows or 'N'},), got {shape}.")
    return names.tolist(), which


def _features(X: Any, n_rows: int | None) -> Array:
    features = as_float(X, "X")
    if features.ndim != 2 or len(features) != (n_rows or len(features)) or not np.isfinite(features).all():
        raise InputError(f"X must be a finite ({n_rows or 'N'}, d) array; got shape {features.shape}.")
    return features


def _worst_slab(features: Array, covered: Array, min_mass: float, n_directions: int, random_state: Any) -> Array:
    """Coverage in the worst slab of each column."""
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
    directions = rng.normal(size=(features.shape[1], check_count("n_directions", n_directions)))
    best = np.full(covered.shape[1], np.inf)
    value = best.copy()
    for projection in (features @ directions).T:
        by_position = search[np.argsort(projection[search], kind="stable")]
        lowest, first, last = lowest_window(covered[by_position], least)
        for label in np.flatnonzero(lowest < best):
            best[label] = lowest[label]
            a, b = projection[by_position[first[label]]], projection[by_position[last[label]]]
            inside = measure[(projection[measure] >= a) & (projection[measure] <= b)]
            rows = (
                covered[inside, label] if len(inside) else covered[by_position[first[label] : last[label] + 1], label]
            )
            value[label] = rows.mean()
    return value


def fsc_ceiling(feature: Any, n_groups: int, level: float = 0.9) -> float:
    """Expected FSC when every row is covered with probability ``level``: what perfect intervals would score.

    The minimum over groups of ``B_g / n_g``, ``B_g ~ Binomial(n_g, level)``, lies below ``level``. Its mean is exact:
    ``E[min] = ∫ Π_g P(B_g / n_g > t) dt``, a finite sum.

    Args:
        feature: The feature that makes the groups, (N,).
        n_groups: ``G``.
        level: The coverage aimed at.

    Returns:
        The expectation.

    Raises:
        InputError: A feature that is not one finite number per row, or a level outside (0, 1).

    Example:
        >>> round(fsc_ceiling(np.arange(100), 1, 0.9), 6), round(fsc_ceiling(np.arange(100), 8, 0.9), 3)
        (0.9, 0.768)
    """
    values = _feature(feature, None)
    check_confidence(level, "level")
    return _expected_minimum(_equal_width_groups(values, n_groups), level)


def ssc_ceiling(intervals: Any, n_groups: int = 4, level: float = 0.9) -> Array:
    """Expected size-stratified coverage of each label, (L,), when every row is covered with probability ``level``.

    Exact for the groups these intervals make; see :func:`fsc_ceiling`.

    Args:
        intervals: Lower and upper ends, (N, L, 2).
        n_groups: Groups of widths.
        level: The coverage aimed at.

    Returns:
        The expectation of each label, (L,).

    Raises:
        InputError: Intervals of another shape, fewer than one group, or a level outside (0, 1).

    Example:
        >>> narrow, wide = [[0.4, 0.5], [0.5, 0.6]], [[0.3, 0.5], [0.5, 0.7]]
        >>> ssc_ceiling([narrow] * 50 + [wide] * 50, 2, 0.9).round(3)
        array([0.876, 0.876])
    """
    groups = _size_groups(intervals, n_groups)
    check_confidence(level, "level")
    return np.array([_expected_minimum(column, level) for column in groups.T])


def group_ceiling(groups: Any, level: float = 0.9) -> float:
    """Expected coverage of the worst group when every row is covered with probability ``level``.

    The minimum over groups of ``B_g / n_g``, ``B_g ~ Binomial(n_g, level)``: ``E[min] = ∫ Π_g P(B_g / n_g > t) dt``, a
    finite sum, so it is exact.

    Args:
        groups: Group of each row, (N,), names or numbers.
        level: The coverage aimed at.

    Returns:
        The expectation, at most ``level``.

    Raises:
        InputError: A level outside (0, 1).

    Example:
        >>> round(group_ceiling(["a"] * 50 + ["b"] * 50), 3)
        0.876
    """
    check_confidence(level, "level")
    return _expected_minimum(_groups(groups)[1], level)


def _worst_group(covered: Mask, groups: Groups) -> Array:
    """Lowest coverage over the groups of each column."""
    worst = np.empty(covered.shape[1])
    for label, (hits, group) in enumerate(zip(covered.T, groups.T)):
        sizes = np.bincount(group)
        filled = sizes > 0
        worst[label] = (np.bincount(group, weights=hits)[filled] / sizes[filled]).min()
    return worst


def _size_groups(intervals: Any, n_groups: int) -> Groups:
    """Group of each row and label (N, L) by the width of its interval; equal widths stay together."""
    ends = check_intervals(intervals)
    # Rounding keeps intervals of one nominal width together: u - l differs in the last digits.
    return _equal_count_groups(np.round(ends[:, :, 1] - ends[:, :, 0], 12), n_groups)


def _equal_count_groups(values: Array, n_groups: int) -> Groups:
    """Group of each row and column (N, L) between quantiles of the column; equal values stay together."""
    cuts = np.quantile(values, np.arange(1, check_count("n_groups", n_groups)) / n_groups, axis=0, method="lower")
    return (values[None] > cuts[:, None, :]).sum(axis=0)


def lowest_window(covered: Array, least: int) -> tuple[Array, Groups, Groups]:
    """Lowest mean over runs of at least ``least`` rows, with its first and last row, for each column.

    A run of 2·least rows or more splits into two admissible runs, one of which is no better: lengths below suffice.

    Args:
        covered: Zeros and ones, (N, L), rows in the order of a projection.
        least: Fewest rows of a run.

    Returns:
        The lowest means (L,), and the first and the last row of their runs (L,).

    Example:
        >>> lowest_window(np.array([[1.0], [0.0], [0.0], [1.0]]), 2)
        (array([0.]), array([1]), array([2]))
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


def _expected_minimum(groups: Groups, level: float) -> float:
    """``E[min_g B_g / n_g]`` over the groups that hold a row."""
    sizes = np.bincount(groups)
    sizes = sizes[sizes > 0]
    steps = np.unique(np.concatenate([np.arange(size + 1) / size for size in np.unique(sizes)]))
    survival = np.ones(len(steps) - 1)  # P(min > t), constant between two steps: no group's rate lies there
    for size in sizes:
        hits = np.searchsorted(np.arange(size + 1) / size, steps[:-1], side="right") - 1
        survival *= binom.sf(hits, size, level)
    return float((survival * np.diff(steps)).sum())


def _equal_width_groups(feature: Array, n_groups: int) -> Groups:
    """Bin of each row (N,) when the range of the feature is cut into equal parts."""
    count = check_count("n_groups", n_groups)
    low, high = feature.min(), feature.max()
    if low == high:
        return np.zeros(len(feature), dtype=np.int64)
    inner_edges = np.linspace(low, high, count + 1)[1:-1]
    return np.searchsorted(inner_edges, feature, side="right").astype(np.int64)


def _feature(feature: Any, n_rows: int | None) -> Array:
    values = as_float(feature, "feature")
    if values.ndim != 1 or values.size == 0 or (n_rows is not None and len(values) != n_rows):
        wanted = "(N,)" if n_rows is None else f"({n_rows},)"
        raise InputError(f"feature must hold one number per row: shape {wanted}, got {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError(f"feature row {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite.")
    return values
