"""Coverage levels and reliability: against quantiles, by integration, and uniform under the right model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import coverage_level, reliability, share_stratified_coverage

RANDOM = np.random.default_rng(0)
ALPHA = np.array([2.0, 3.0, 4.0])
D = RANDOM.dirichlet(ALPHA, 400)


def right() -> SnefySimplex:
    return SnefySimplex.from_mixture(torch.ones(400, 1).double(), torch.as_tensor(ALPHA)[None])


def test_levels_are_the_smallest_central_intervals_that_contain_each_share() -> None:
    levels = coverage_level(right(), None, D)
    share = stats.beta(ALPHA[0], ALPHA[1:].sum())
    np.testing.assert_allclose(levels[:, 0], np.abs(2 * share.cdf(D[:, 0]) - 1), atol=1e-7)
    for level in (0.5, 0.9):
        low, high = share.ppf([0.5 - level / 2, 0.5 + level / 2])
        np.testing.assert_array_equal(levels[:, 0] <= level, (low <= D[:, 0]) & (D[:, 0] <= high))


@pytest.mark.parametrize("joint", [False, True])
def test_levels_of_the_right_model_are_uniform_and_of_a_sure_one_too_large(joint: bool) -> None:
    """A false alarm once in a thousand seeds."""
    levels = coverage_level(right(), None, D, joint=joint)
    assert stats.kstest(levels if joint else levels[:, 1], "uniform").pvalue > 1e-3
    sure = SnefySimplex.from_mixture(torch.ones(400, 1).double(), torch.as_tensor(4 * ALPHA)[None])
    found = reliability(coverage_level(sure, None, D, joint=joint))
    assert (np.asarray(found.ece) > 0.1).all()
    assert (found.coverage[8:16] < found.levels[8:16].reshape(-1, *[1] * (found.coverage.ndim - 1))).all()


def test_curve_error_and_gap_by_integration() -> None:
    levels = RANDOM.beta(2.0, 3.0, (30, 2))
    found = reliability(levels, [0.25, 0.5])
    np.testing.assert_array_equal(found.coverage[0], (levels <= 0.25).mean(axis=0))
    for label, column in enumerate(levels.T):
        points = np.sort(column)
        gap = integrate.quad(lambda t, c=column: abs((c <= t).mean() - t), 0, 1, points=points, limit=400)[0]  # type: ignore[misc]
        assert found.ece[label] == pytest.approx(gap, abs=1e-4)
        assert found.largest_gap[label] == pytest.approx(stats.kstest(column, "uniform").statistic)
    assert reliability(levels[:, 0]).ece == found.ece[0]
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        reliability([1.2])


def test_worst_bin_of_the_predicted_share_by_hand() -> None:
    predicted = np.column_stack([np.linspace(0.05, 0.9, 100), 1 - np.linspace(0.05, 0.9, 100)])
    ends = np.tile([0.4, 0.6], (100, 2, 1))
    ends[:3] = [0.7, 0.8]  # missed where the first share is predicted smallest
    np.testing.assert_allclose(share_stratified_coverage(predicted, np.full((100, 2), 0.5), ends), [0.7, 0.7])
    with pytest.raises(InputError, match="shape"):
        share_stratified_coverage(predicted[:5], np.full((100, 2), 0.5), ends)
