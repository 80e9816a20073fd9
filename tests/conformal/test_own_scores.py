"""Your own conformity score: one class, found by name, class or object, with the guarantee of the others."""

from __future__ import annotations

import numpy as np
import pytest
from known_models import DirichletModel, LinearModel, linear_data

from snefy_ldl._internal.dists import to_numpy
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion, LabelScore, RegionScore
from snefy_ldl.conformal.scores import ChebyshevScore, DensityScore, find_score
from snefy_ldl.errors import InputError


class PlainDistance(LabelScore):
    """Distance from the mean over a power of the standard deviation, without a formula for the ends."""

    name = "plain distance"
    per_level = False

    def __init__(self, power=1.0):
        self.power = power

    def bind(self, dist, levels):
        self.mean, self.width = to_numpy(dist.mean), to_numpy(dist.variance) ** (0.5 * self.power)

    def below(self, shares, level):
        return (self.mean - shares) / self.width

    def above(self, shares, level):
        return (shares - self.mean) / self.width


class PlainHeight(RegionScore):
    """The height of the density again, by the two methods that must be written."""

    name = "plain height"

    def bind(self, dist, n_draws, seeds):
        pass

    def score(self, points):
        import torch

        return -to_numpy(self.dist.log_prob(torch.as_tensor(points)))


def test_bisected_ends_equal_the_formula():
    # with one level, |ℓ - mean| / sd differs from Chebyshev's score by a factor, and so does its threshold
    X, D = linear_data(60, seed=3)
    model = LinearModel().fit(X, D)
    plain = ConformalIntervals(model, 0.8, PlainDistance).conformalize(X, D)
    known = ConformalIntervals(model, 0.8, "chebyshev").conformalize(X, D)
    np.testing.assert_allclose(plain.predict_interval(X[:9]), known.predict_interval(X[:9]), atol=1e-11)


def test_name_class_and_object_are_the_same_score():
    X, D = DirichletModel().draw(80, seed=4)
    ends = [
        ConformalIntervals(DirichletModel(), [0.5, 0.9], method).conformalize(X, D).predict_interval(X[:5])
        for method in ("plain distance", PlainDistance, PlainDistance())
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])
    other = ConformalIntervals(DirichletModel(), [0.5, 0.9], PlainDistance(power=0.0)).conformalize(X, D)
    assert np.abs(other.predict_interval(X[:5]) - ends[0]).max() > 1e-3  # settings matter
    same = ConformalIntervals.from_dict(DirichletModel(), other.to_dict(), method=PlainDistance(power=0.0))
    np.testing.assert_array_equal(same.predict_interval(X[:5]), other.predict_interval(X[:5]))


def test_a_region_score_needs_two_methods_only():
    X, D = DirichletModel().draw(60, seed=7)
    plain = ConformalRegion(DirichletModel(), 0.8, "plain height").conformalize(X, D)
    known = ConformalRegion(DirichletModel(), 0.8, DensityScore).conformalize(X, D)
    np.testing.assert_allclose(plain.score(X, D), known.score(X, D))
    np.testing.assert_array_equal(plain.contains(X, D), known.contains(X, D))
    share, error = plain.volume(X[:4], n=4000, return_std_error=True)
    reference, reference_error = known.volume(X[:4], n=4000, return_std_error=True)
    assert (np.abs(share - reference) < 5 * np.hypot(error, reference_error)).all()


def test_names_are_taken_once_and_nonsense_is_refused():
    with pytest.raises(InputError, match=r"'chebyshev' is taken by .*ChebyshevScore"):
        type("Another", (PlainDistance,), {"name": "chebyshev"})
    assert type(find_score(LabelScore, "chebyshev")) is ChebyshevScore
    for method in ("density", DensityScore, 3, None):  # a region's score scores no label
        with pytest.raises(InputError, match="LabelScore"):
            ConformalIntervals(DirichletModel(), method=method)
    with pytest.raises(InputError, match="RegionScore"):
        ConformalRegion(DirichletModel(), method="cdf")
