"""Several levels, joint boxes and groups."""

from __future__ import annotations

import numpy as np
import pytest
from known_models import (
    METHODS,
    KnownModel,
    NormalDistribution,
)

from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.conformal.thresholds import rank
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.metrics.conditional import group_coverage


@pytest.mark.parametrize("method", METHODS)
def test_several_levels_at_once_equal_one_at_a_time_and_nest(method):
    truth = KnownModel(seed=17)
    X, D = truth.draw(70, seed=18)
    levels = [0.5, 0.8, 0.95]
    ends = ConformalIntervals(truth, levels, method).conformalize(X[:50], D[:50]).predict_interval(X[50:])
    assert ends.shape == (20, 3, 2, 3)
    for a, level in enumerate(levels):
        one = ConformalIntervals(truth, level, method).conformalize(X[:50], D[:50]).predict_interval(X[50:])
        np.testing.assert_allclose(ends[..., a], one, atol=1e-12)
    if method != "quantile":  # its score differs by level, so nesting is usual, not certain
        assert (np.diff(ends[:, :, 0], axis=-1) <= 1e-12).all()
        assert (np.diff(ends[:, :, 1], axis=-1) >= -1e-12).all()


def test_simultaneous_thresholds_are_of_the_largest_score():
    truth = KnownModel(n_labels=4, seed=19)
    X, D = truth.draw(200, seed=20)
    each = ConformalIntervals(truth, 0.8, method="chebyshev").conformalize(X, D)
    joint = ConformalIntervals(truth, 0.8, simultaneous=True, method="chebyshev").conformalize(X, D)
    dist = truth.predict_dist(X)
    scores = (np.abs(D - dist.mean.numpy()) / (np.sqrt(5.0) * dist.variance.sqrt().numpy())).max(axis=1)
    assert joint.thresholds_.shape == (1, 1)
    np.testing.assert_allclose(joint.thresholds_[0, 0], np.sort(scores)[rank(0.8, 200) - 1], rtol=1e-12)
    assert (joint.thresholds_ >= each.thresholds_).all()


class TwoNoises:
    """One fixed distribution for rows of which some are far noisier than it says."""

    def predict_dist(self, X):
        return NormalDistribution(np.full((len(X), 2), 0.5), 0.05)

    @staticmethod
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        groups = rng.choice(["calm", "wild"], n, p=[0.8, 0.2])
        first = np.clip(0.5 + np.where(groups == "wild", 0.15, 0.02) * rng.normal(size=n), 0, 1)
        return np.zeros((n, 1)), np.column_stack([first, 1.0 - first]), groups


def test_groups_are_covered_each():
    """Marginal calibration starves the wild group; Mondrian calibration does not. Standard error of each about 0.01."""
    X, D, groups = TwoNoises.draw(6000, seed=21)
    cal, new = slice(0, 2000), slice(2000, None)
    plain = ConformalIntervals(TwoNoises(), method="chebyshev").conformalize(X[cal], D[cal]).predict_interval(X[new])
    mondrian = ConformalIntervals(TwoNoises(), method="chebyshev").conformalize(X[cal], D[cal], groups=groups[cal])
    ends = mondrian.predict_interval(X[new], groups=groups[new])
    assert group_coverage(groups[new], D[new], plain)["wild"][0] < 0.7
    for share in group_coverage(groups[new], D[new], ends).values():
        assert abs(share[0] - 0.9) < 0.05


def test_small_and_unseen_groups():
    X, D, _ = TwoNoises.draw(103, seed=22)
    groups = np.array([1] * 100 + [2] * 3)
    new = [1.0, 2.0, 7.0]  # a group is its name: 1 and 1.0 are the same
    with pytest.warns(
        CalibrationWarning, match=r"1 group\(s\) have fewer than the 9.*'2' \(3\).*whole range"
    ) as caught:
        full = ConformalIntervals(TwoNoises(), method="chebyshev").conformalize(X, D, groups=groups)
    assert len(caught) == 1
    with pytest.warns(CalibrationWarning, match="1 of 3 rows.*not calibrated.*row 2"):
        ends = full.predict_interval(X[:3], groups=new)
    np.testing.assert_array_equal(ends[1:], np.broadcast_to([0.0, 1.0], (2, 2, 2)))
    assert (ends[0, :, 1] - ends[0, :, 0] < 0.9).all()

    with pytest.raises(InputError, match="calibration used groups"):
        full.predict_interval(X[:3])
    with pytest.raises(InputError, match="calibration used none"):
        ConformalIntervals(TwoNoises(), method="chebyshev").conformalize(X, D).predict_interval(X[:3], groups=new)
