"""Balls around draws, latent balls, and regions by cross-validation: sizes by hand, coverage, zeros, files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from known_laws import BetaModel, DirichletModel, KnownLaw, LinearModel, NormalLaw, ZeroModel, linear_data
from scipy import stats
from sklearn.base import BaseEstimator

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalRegion, RegionScore
from snefy_ldl.conformal.regions import seed_source
from snefy_ldl.conformal.scores import BallScore, ContentBallScore, LatentScore
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import CalibrationWarning, InputError


def test_balls_of_two_labels_are_intervals():
    """The length of a union of intervals, by sorting, against the estimate by points of the balls."""
    law = BetaModel().predict_dist(np.zeros((3, 1)))
    score = BallScore(12).for_law(law, seeds=seed_source(0, 0))
    for radius in (0.001, 0.02, 0.3):
        share, error = score.volume(np.full(3, radius), 4000, seed_source(1, 0))
        for row in range(3):
            half = radius / np.sqrt(2.0)  # both shares move
            fine = np.linspace(0, 1, 200001)
            inside = (np.abs(fine[:, None] - score.centres[None, :, row, 0]) <= half).any(axis=1)
            assert abs(share[row] - inside.mean()) < 5 * error[row] + 1e-5
    points = np.array([[0.2, 0.8], [0.7, 0.3]])
    by_hand = np.linalg.norm(points[:, None, None] - score.centres[None], axis=-1).min(axis=1)
    np.testing.assert_allclose(score.score_shared(points), by_hand)


def test_content_of_balls_and_their_radius():
    law = KnownLaw(seed=1).predict_dist(np.random.default_rng(0).normal(size=(4, 2)))
    score = ContentBallScore(10).for_law(law, n_draws=50, seeds=seed_source(0, 0))
    for q in (0.3, 0.9, 1.0, 1.05):
        radius = score.radius(np.full(4, q))
        step = np.array([1.0, -1.0, 0.0]) / np.sqrt(2.0)
        just_in, just_out = (score.centres[:1] + (radius * factor)[None, :, None] * step for factor in (0.999, 1.001))
        for points, wanted in ((just_in, True), (just_out, False)):
            nearest = np.abs(score.distance(points) - np.linalg.norm(points - score.centres[:1], axis=-1)) < 1e-12
            assert ((score.score(points) <= q) == wanted)[nearest].all()


def test_the_latent_ball_holds_its_share_of_every_law():
    """The right law: s² is chi-squared with L - 1 degrees of freedom, so q̂ needs no rows to be known; KS over rows."""
    for model in (KnownLaw(seed=2), ZeroModel()):
        X, D = model.draw(600, seed=3)
        score = LatentScore().for_law(model.predict_dist(X), seeds=seed_source(0, 0))
        assert stats.kstest(score.score(D) ** 2, stats.chi2(2).cdf).pvalue > 1e-3
    with pytest.raises(InputError, match="rosenblatt"):
        LatentScore().for_law(NormalLaw(np.zeros((2, 2)), 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pcp", "c-pcp", "latent", "hpd"])
def test_laws_with_zeros_go_through(method):
    model = ZeroModel(shift=1.0)
    X, D = model.draw(400, seed=4)
    region = ConformalRegion(model, 0.8, method, n_draws=100).conformalize(X[:200], D[:200])
    inside = region.contains(X[200:], D[200:]).mean()
    assert abs(inside - 0.8) < 4.5 * np.sqrt(0.16 / 200 + 0.16 / 200)
    assert (region.volume(X[:4], n=200) <= 1.0).all()


def test_own_score_class_in_every_place():
    class FarFromMean(RegionScore):
        needs_positive = False

        def bind(self, law, n_draws, seeds):
            self.mean = law.mean.numpy()

        def score(self, points):
            return np.abs(points - self.mean).sum(axis=-1)

    X, D = linear_data(60, seed=5)
    region = ConformalRegion(LinearModel(), 0.8, FarFromMean, cv=3).conformalize(X, D)
    assert region.method == "FarFromMean"
    assert region.contains(X, D).mean() > 0.7


class Refit(BaseEstimator):
    """A Dirichlet around the training rows' mean: fits in no time."""

    def fit(self, X, D):
        self.mean_ = np.asarray(D).mean(axis=0)
        return self

    def predict_dist(self, X):
        return torch.distributions.Dirichlet(torch.as_tensor(8.0 * self.mean_).expand(len(X), -1))


def draw(n, rng):
    return rng.normal(size=(n, 2)), rng.dirichlet([4.0, 2.0, 2.0], n)


def by_hand(models, folds, X, D, new, point, weights=None, new_weight=1.0):
    """The p-value of cross-conformal prediction, one row and one loop at a time."""
    held_out = [
        -models[k].predict_dist(X[i : i + 1]).log_prob(torch.as_tensor(D[i])).item() for i, k in enumerate(folds)
    ]
    scores = [-model.predict_dist(new[None]).log_prob(torch.as_tensor(point)).item() for model in models]
    weights = np.ones(len(D)) if weights is None else weights
    as_far = sum(w for w, s, k in zip(weights, held_out, folds) if s >= scores[k])
    return (as_far + new_weight) / (weights.sum() + new_weight)


def test_cross_validated_regions_by_hand():
    rng = np.random.default_rng(6)
    X, D = draw(40, rng)
    new, points = draw(8, rng)
    plain = ConformalRegion(Refit(), 0.8, cv=4).conformalize(X, D)
    wanted = [by_hand(plain.models_, plain._folds, X, D, *pair) for pair in zip(new, points)]
    np.testing.assert_allclose(plain.p_value(new, points), wanted)
    np.testing.assert_array_equal(plain.contains(new, points), np.array(wanted) > 0.2 + 1e-12)
    weights, new_weights = rng.uniform(0.5, 2.0, 40), rng.uniform(0.5, 2.0, 8)
    shifted = ConformalRegion(Refit(), 0.8, cv=4).conformalize(X, D, sample_weight=weights)
    wanted = [
        by_hand(shifted.models_, shifted._folds, X, D, x, d, weights, w) for x, d, w in zip(new, points, new_weights)
    ]
    np.testing.assert_allclose(shifted.p_value(new, points, sample_weight=new_weights), wanted)
    found = shifted.contains(new, points, sample_weight=new_weights)
    np.testing.assert_array_equal(found, np.array(wanted) > 0.2)
    groups = np.array(["a", "b"] * 20)
    grouped = ConformalRegion(Refit(), 0.8, cv=4).conformalize(X, D, groups=groups)
    wanted = [
        by_hand(grouped.models_, grouped._folds[groups == "a"], X[groups == "a"], D[groups == "a"], *pair)
        for pair in zip(new, points)
    ]
    np.testing.assert_allclose(grouped.p_value(new, points, groups=["a"] * 8), wanted)
    with pytest.raises(InputError, match="calibration used weights"):
        shifted.contains(new, points)


@pytest.mark.slow
def test_cross_validated_regions_cover_and_have_a_size():
    """Cross-conformal coverage over 120 data sets: at least the level, less 4.5 standard errors; and not everything."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(120):
        X, D = draw(60, rng)
        region = ConformalRegion(Refit(), 0.8, cv=3).conformalize(X[:40], D[:40])
        found.append(region.contains(X[40:], D[40:]).mean())
    error = np.std(found, ddof=1) / np.sqrt(120)
    assert 0.8 - 4.5 * error < np.mean(found) < 0.85 + 4.5 * error
    share, spread = region.volume(X[:3], n=4000, return_std_error=True)
    even, even_spread = region.volume(X[:3], n=4000, proposal="uniform", return_std_error=True)
    assert (np.abs(share - even) < 5 * np.hypot(spread, even_spread)).all()
    draws = region.sample(X[:2], 5)
    assert region.contains(np.tile(X[:2], (5, 1)), draws.reshape(-1, 3)).all()
    again = ConformalRegion.from_dict(region.models_, json.loads(json.dumps(region.to_dict())))
    np.testing.assert_array_equal(again.p_value(X, D), region.p_value(X, D))
    with pytest.raises(InputError, match="3 fold models; got 1"):
        ConformalRegion.from_dict(region.models_[:1], region.to_dict())
    with pytest.warns(CalibrationWarning, match="too few"):
        few = ConformalRegion(Refit(), 0.9, cv=2).conformalize(X[:6], D[:6])
    assert few.contains(X, D).all()


def test_folds_of_our_own_model():
    city = make_city_districts(n=80, random_state=0)
    model = SnefyLDL(n_neurons=6, n_readouts=3, epochs=2, guides=None, random_state=0)
    for method in ("density", "latent"):
        region = ConformalRegion(model, 0.8, method, cv=2).conformalize(city.X, city.D)
        assert region.contains(city.X, city.D).mean() > 0.7
    assert not hasattr(model, "net_")


def test_right_model_equal_content():
    """With the right law the content of "c-pcp" is uniform: its 0.8 quantile on 1,000 rows is 0.8 within 5 errors."""
    model = DirichletModel()
    X, D = model.draw(1000, seed=8)
    region = ConformalRegion(model, 0.8, "c-pcp", n_draws=200).conformalize(X, D)
    assert abs(region.threshold_ - 0.8) < 5 * np.sqrt(0.16 / 1000) + 0.01
