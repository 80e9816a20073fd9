"""Every measure against hand figures, a naive loop, the known truth of a generator, or simulation.

Monte Carlo checks compare at 6 standard errors (false alarm below 1e-8 a number) with fixed seeds.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from snefy_ldl import metrics
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.metrics import (
    coverage,
    crps,
    energy_score,
    feature_stratified_coverage,
    interval_score,
    interval_width,
    joint_coverage,
    kl_divergence,
    score,
    size_stratified_coverage,
    worst_slab_coverage,
)
from snefy_ldl.metrics.conditional import fsc_ceiling, lowest_window
from snefy_ldl.metrics.intervals import pit_histogram

NAMES = ["chebyshev", "clark", "canberra", "kl_divergence", "cosine", "intersection"]
NAIVE = {
    "chebyshev": distance.chebyshev,
    "clark": lambda p, q: np.sqrt(sum(((a - b) / (a + b)) ** 2 for a, b in zip(p, q) if a + b > 0)),
    "canberra": distance.canberra,
    "kl_divergence": lambda p, q: stats.entropy(p, q),
    "cosine": lambda p, q: 1.0 - distance.cosine(p, q),
    "intersection": lambda p, q: sum(min(a, b) for a, b in zip(p, q)),
}


@pytest.fixture(scope="module")
def districts():
    """1,500 rows, the truth's exact 90 % intervals, and 100 draws from the truth."""
    data = make_city_districts(n=1500, random_state=5)
    return data, data.truth.quantiles(data.X, [0.05, 0.95]), data.truth.sample(data.X, 100, random_state=6)


# --- point predictions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_against_a_naive_loop(name):
    rng = np.random.default_rng(0)
    true, predicted = rng.dirichlet(np.ones(5), 50), rng.dirichlet(np.ones(5), 50)
    true[:9, 0] = 0.0
    true /= true.sum(axis=1, keepdims=True)
    metric = getattr(metrics, name)
    rows = [NAIVE[name](p, q) for p, q in zip(true, predicted)]
    np.testing.assert_allclose(metric(true, predicted, per_row=True), rows, rtol=1e-12)
    value, error = metric(true, predicted, return_std_error=True)
    assert isinstance(value, float)
    np.testing.assert_allclose(value, np.mean(rows))
    np.testing.assert_allclose(error, stats.sem(rows))


@pytest.mark.parametrize("name", metrics.MEASURES)
def test_frames_are_aligned_by_the_names_of_their_labels(name):
    rng = np.random.default_rng(0)
    true = pd.DataFrame(rng.dirichlet([1, 2, 3], 20), columns=["u", "v", "w"])
    predicted = pd.DataFrame(rng.dirichlet([1, 2, 3], 20), columns=["u", "v", "w"])
    metric, wanted = getattr(metrics, name), getattr(metrics, name)(true.to_numpy(), predicted.to_numpy())
    assert metric(true, predicted[["w", "u", "v"]]) == wanted
    assert metric(true, predicted.to_numpy()) == metric(true.to_numpy(), predicted) == wanted
    assert metric(pl.from_pandas(true), pl.from_pandas(predicted)[["v", "w", "u"]]) == wanted
    with pytest.raises(InputError, match=r"D_pred does not have the labels u, v, w \(unknown: x; missing: w\)"):
        metric(true, predicted.rename(columns={"w": "x"}))
    with pytest.raises(InputError, match="same rows in another order"):
        metric(true, predicted.iloc[::-1])


def test_score_aligns_names_once():
    true = pd.DataFrame([[0.2, 0.3, 0.5]], columns=["u", "v", "w"])
    assert score(true, true[["w", "u", "v"]])["kl_divergence"] == 0.0
    with pytest.warns(LabelWarning) as notes:
        score(true * 100, true)
    assert len(notes) == 1


def test_score_has_exactly_the_six_names():
    assert list(score([[0.5, 0.5]], [[0.2, 0.8]])) == NAMES == list(metrics.points.HIGHER_IS_BETTER)


@st.composite
def distribution_pairs(draw):
    """Two (N, L) arrays of label distributions in which zeros and tiny shares are common."""
    n_rows, n_labels = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    share = st.one_of(st.just(0.0), st.just(1e-300), st.floats(0.0, 1.0))
    cells = np.array(draw(st.lists(share, min_size=2 * n_rows * n_labels, max_size=2 * n_rows * n_labels)))
    cells = cells.reshape(2, n_rows, n_labels)
    cells[..., 0] += cells.sum(axis=-1) < 1e-3
    return cells / cells.sum(axis=-1, keepdims=True)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(distribution_pairs(), st.randoms(use_true_random=False))
def test_always_finite_in_range_and_blind_to_label_order(pair, random):
    true, predicted = pair
    n_labels = true.shape[1]
    result = score(true, predicted)
    highest = {"chebyshev": 1.0, "clark": np.sqrt(n_labels), "canberra": n_labels, "kl_divergence": 36.1 + 1e-9}
    for name, value in result.items():
        assert np.isfinite(value)
        assert -1e-12 <= value <= highest.get(name, 1.0) + 1e-12
    order = random.sample(range(n_labels), n_labels)
    permuted = score(true[:, order], predicted[:, order])
    np.testing.assert_allclose(list(permuted.values()), list(result.values()), rtol=1e-9, atol=1e-12)
    perfect = score(true, true)
    np.testing.assert_allclose(list(perfect.values()), [0, 0, 0, 0, 1, 1], atol=1e-7)


def test_kl_floor_is_what_the_docs_say():
    np.testing.assert_allclose(kl_divergence([[1.0, 0.0]], [[0.0, 1.0]]), -np.log(metrics.points.KL_FLOOR))
    assert kl_divergence([[0.0, 1.0]], [[0.0, 1.0]]) == 0.0


def test_bad_distributions_are_named():
    good = [[0.5, 0.5]]
    with pytest.raises(InputError, match=r"D_pred row 0 sums to 1\.4"):
        score(good, [[0.5, 0.9]])
    with pytest.raises(InputError, match="D_true contains NaN"):
        score([[np.nan, 0.5]], good)
    with pytest.raises(InputError, match="same shape"):
        score(good, [[0.2, 0.3, 0.5]])
    with pytest.raises(InputError, match="per_row=True has no standard error"):
        kl_divergence(good, good, per_row=True, return_std_error=True)
    assert kl_divergence(good, good, return_std_error=True) == (0.0, np.inf)  # one row has no spread


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_perfect_intervals_reach_their_level(districts):
    data, intervals, _ = districts
    value, error = coverage(data.D, intervals, return_std_error=True)
    assert abs(value - 0.9) < 6.0 * error
    values, errors = coverage(data.D, intervals, per_label=True, return_std_error=True)
    assert (np.abs(values - 0.9) < 6.0 * errors).all()
    np.testing.assert_allclose(errors, np.sqrt(values * (1.0 - values) / 1499), rtol=1e-10)
    np.testing.assert_allclose(values.mean(), value)
    joint = joint_coverage(data.D, intervals)
    assert 0.7 < joint < values.min()
    inside = (intervals[..., 0] <= data.D) & (intervals[..., 1] >= data.D)
    assert joint == pytest.approx(inside.all(axis=1).mean())


@pytest.mark.slow
def test_widths(districts):
    _, intervals, _ = districts
    widths = intervals[..., 1] - intervals[..., 0]
    np.testing.assert_allclose(interval_width(intervals, per_label=True), widths.mean(axis=0))
    value, error = interval_width(intervals, return_std_error=True)
    np.testing.assert_allclose([value, error], [widths.mean(), stats.sem(widths.mean(axis=1))])


@pytest.mark.slow
def test_interval_score_is_least_for_the_true_quantiles(districts):
    data, intervals, _ = districts
    best = interval_score(data.D, intervals, 0.9)
    middle = intervals.mean(axis=-1, keepdims=True)
    for factor in (0.7, 1.4):
        assert interval_score(data.D, middle + factor * (intervals - middle), 0.9) > best
    by_hand = interval_score([[0.1, 0.9]], [[[0.3, 0.5], [0.2, 0.6]]], 0.8, per_label=True)
    np.testing.assert_allclose(by_hand, [0.2 + 10 * 0.2, 0.4 + 10 * 0.3])


def naive_fsc(feature, inside, n_groups):
    edges = np.linspace(feature.min(), feature.max(), n_groups + 1)
    rates = []
    for g in range(n_groups):
        last = g == n_groups - 1
        group = (feature >= edges[g]) & ((feature < edges[g + 1]) | last)
        if group.any():
            rates.append(inside[group].mean(axis=0))
    return np.min(rates, axis=0)


@pytest.mark.parametrize("n_groups", [1, 2, 4, 8, 50])
def test_feature_stratified_coverage(districts, n_groups):
    data, intervals, _ = districts
    feature = data.X[:, 1]  # heavy tail: some of the 50 bins are empty
    inside = (intervals[..., 0] <= data.D) & (intervals[..., 1] >= data.D)
    value = feature_stratified_coverage(feature, data.D, intervals, n_groups)
    np.testing.assert_allclose(value, naive_fsc(feature, inside, n_groups))
    if n_groups == 1:
        np.testing.assert_allclose(value, coverage(data.D, intervals, per_label=True))


@pytest.mark.parametrize("n_groups", [1, 3, 8])
def test_fsc_ceiling_against_simulation(n_groups):
    rng = np.random.default_rng(3)
    feature = rng.normal(size=120)
    edges = np.linspace(feature.min(), feature.max(), n_groups + 1)
    sizes = np.histogram(feature, edges)[0]
    sizes = sizes[sizes > 0]
    lowest = (rng.binomial(sizes, 0.9, size=(100_000, len(sizes))) / sizes).min(axis=1)
    exact = fsc_ceiling(feature, n_groups, 0.9)
    assert abs(lowest.mean() - exact) < 6.0 * lowest.std() / np.sqrt(len(lowest))


def test_size_stratified_coverage():
    rng = np.random.default_rng(1)
    D = rng.dirichlet(np.ones(3), 400)
    width = np.linspace(0.01, 1.0, 400)[:, None] * np.ones(3)
    intervals = np.stack([D - width / 2, D + width / 2], axis=-1)
    intervals[:100, 1] += 2.0  # label 1 misses exactly where its intervals are narrowest
    np.testing.assert_allclose(size_stratified_coverage(D, intervals, 4), [1.0, 0.0, 1.0])
    np.testing.assert_allclose(size_stratified_coverage(D, intervals, 2), [1.0, 0.5, 1.0])
    equal = np.stack([D - 0.05, D + 0.05], axis=-1)
    equal[:200, 0] += 2.0
    np.testing.assert_allclose(size_stratified_coverage(D, equal, 4), [0.5, 1.0, 1.0])  # one width is one group


@pytest.mark.slow
def test_worst_slab_finds_the_slab_and_does_not_invent_one(districts):
    data, intervals, _ = districts
    honest = worst_slab_coverage(data.X, data.D, intervals)
    assert (np.abs(honest - 0.9) < 0.12).all()
    broken = intervals.copy()
    broken[data.X[:, 0] < 3.0, 0] = [2.0, 3.0]
    found = worst_slab_coverage(data.X, data.D, broken)
    assert found[0] < 0.3
    np.testing.assert_array_equal(worst_slab_coverage(data.X, data.D, broken), found)
    np.testing.assert_array_equal(found[1:], honest[1:])


def test_lowest_window_against_all_windows():
    rng = np.random.default_rng(0)
    covered = (rng.random((40, 3)) < 0.8).astype(float)
    lowest, first, last = lowest_window(covered, 6)
    for label in range(3):
        naive = min(covered[i:j, label].mean() for i in range(40) for j in range(i + 6, 41))
        assert lowest[label] == pytest.approx(naive)
        assert covered[first[label] : last[label] + 1, label].mean() == pytest.approx(naive)


# --- draws ------------------------------------------------------------------------------------------------------------


def test_scores_of_draws_by_definition():
    rng = np.random.default_rng(0)
    D, draws = rng.dirichlet([1, 2, 3], 7), rng.dirichlet([3, 2, 1], (40, 7))
    pairs = [(i, j) for i in range(40) for j in range(40) if i != j]
    gaps = np.abs(draws - D).mean(0) - 0.5 * np.mean([np.abs(draws[i] - draws[j]) for i, j in pairs], axis=0)
    np.testing.assert_allclose(crps(D, draws, per_label=True), gaps.mean(0))
    value, error = crps(D, draws, return_std_error=True)
    np.testing.assert_allclose([value, error], [gaps.mean(), stats.sem(gaps.mean(1))])
    apart = 0.5 * np.mean([np.linalg.norm(draws[i] - draws[j], axis=-1) for i, j in pairs], axis=0)
    rows = np.linalg.norm(draws - D, axis=-1).mean(0) - apart
    value, error = energy_score(D, draws, return_std_error=True)
    np.testing.assert_allclose([value, error], [rows.mean(), stats.sem(rows)])
    assert energy_score(draws, D) == value


def test_pit_histogram(districts):
    data, _, _ = districts
    pit = data.truth.cdf(data.X, data.D)
    heights = pit_histogram(pit[:, 0], bins=10)
    assert (np.abs(heights - 1.0) < 6.0 * np.sqrt(9.0 / len(pit))).all()
    np.testing.assert_allclose(pit_histogram([0.0, 1.0], bins=2), [1.0, 1.0])  # both ends belong to a bin


# --- bad input --------------------------------------------------------------------------------------------------------

D2 = np.full((4, 2), 0.5)
I2 = np.tile([0.4, 0.6], (4, 2, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coverage(D2, I2[:, :, 0]), r"\(N, L, 2\)"),
        (lambda: coverage(D2[:3], I2), r"D must have shape \(4, 2\)"),
        (lambda: coverage(D2, I2[:, :, ::-1]), "lower must be <= upper"),
        (lambda: coverage(D2, I2 * np.nan), "row 0, label 0"),
        (lambda: coverage(D2 * np.inf, I2), "D is not finite at row 0"),
        (lambda: interval_width([]), r"\(N, L, 2\)"),
        (lambda: interval_score(D2, I2, 90), "confidence_level"),
        (lambda: feature_stratified_coverage(np.ones(3), D2, I2, 2), r"shape \(4,\)"),
        (lambda: feature_stratified_coverage([0, 1, np.nan, 2], D2, I2, 2), "feature row 2"),
        (lambda: feature_stratified_coverage(np.ones(4), D2, I2, 0), "n_groups"),
        (lambda: size_stratified_coverage(D2, I2, 1.5), "n_groups"),
        (lambda: worst_slab_coverage(np.ones((3, 2)), D2, I2), r"X must be a finite \(4, d\)"),
        (lambda: worst_slab_coverage(np.ones((4, 2)), D2, I2), "too few"),
        (lambda: fsc_ceiling([], 2), "feature"),
        (lambda: metrics.conditional.group_ceiling([["a"], ["b"]]), "groups must hold one name or number per row"),
        (lambda: fsc_ceiling(["a", "b"], 2), "feature must be numeric"),
        (lambda: worst_slab_coverage(np.full((4, 2), 1j), D2, I2), "X holds complex numbers"),
        (lambda: coverage([["a", "b"]], I2[:1]), "D must be numeric"),
        (lambda: fsc_ceiling(np.arange(9), 2, 2.0), "level"),
        (lambda: crps(D2, I2[:, :, :1].swapaxes(0, 2)), "n >= 2"),
        (lambda: energy_score(D2, np.full((3, 5, 2), 0.5)), r"D must have shape \(5, 2\)"),
        (lambda: energy_score(D2, np.full((3, 4, 2), np.nan)), "finite"),
        (lambda: pit_histogram([0.5, 1.2]), r"\[0, 1\]"),
        (lambda: pit_histogram([]), "non-empty"),
        (lambda: pit_histogram([0.5], bins=0), "bins"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
