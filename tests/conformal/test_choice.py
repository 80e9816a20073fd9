"""method="auto": what is chosen, on which rows, at what cost in width, and that coverage stays exact."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from known_models import KnownModel, ZeroModel
from scipy.stats import norm

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals, Splines
from snefy_ldl.conformal.choice import set_aside
from snefy_ldl.conformal.scores import AbsoluteScore, BetaScore
from snefy_ldl.conformal.thresholds import rank
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.metrics import coverage, joint_coverage


@pytest.mark.slow
@pytest.mark.parametrize("simultaneous", [False, True])
def test_coverage_from_both_sides_after_the_choice(simultaneous, monkeypatch):
    """Mean coverage over splits is ⌈c(m+1)⌉/(m+1), m the rows that calibrate, as if the score had been fixed before.

    Here without the preference for one score, so that the choice varies with the rows that are set aside.

    Tolerance: 4.5 standard errors, a false alarm about once in 150,000 seeds.
    """
    monkeypatch.setattr("snefy_ldl.conformal.choice.CLEAR", 0.0)
    monkeypatch.setattr("snefy_ldl.conformal.choice.SMALLEST_GAIN", 0.0)
    n_splits, n_cal, n_test, level = 12, 180, 100, 0.9
    truth = KnownModel()
    model = truth.wrong()
    X, D = truth.draw(n_splits * (n_cal + n_test), seed=2)
    found, picked = [], set()
    for X_split, D_split in zip(np.split(X, n_splits), np.split(D, n_splits)):
        ci = ConformalIntervals(model, level, simultaneous=simultaneous)
        ends = ci.conformalize(X_split[:n_cal], D_split[:n_cal]).predict_interval(X_split[n_cal:])
        found.append((joint_coverage if simultaneous else coverage)(D_split[n_cal:], ends))
        picked.add(ci.method)
    expected = rank(level, ci.n_calibration_) / (ci.n_calibration_ + 1)
    error = np.std(found, ddof=1) / np.sqrt(n_splits)
    assert ci.n_calibration_ == 120
    assert simultaneous or len(picked) > 1
    assert abs(np.mean(found) - expected) < 4.5 * error


def test_rows_that_choose_do_not_calibrate():
    model = KnownModel()
    X, D = model.draw(180, seed=3)
    aside, rest = set_aside(180, None, [0.9])
    assert sorted([*aside, *rest]) == list(range(180))
    ci = ConformalIntervals(model).conformalize(X, D)
    moved = D.copy()
    moved[aside[:4]] = D[aside[3::-1]]  # other labels of rows that choose: thresholds stay as long as the choice does
    again = ConformalIntervals(model).conformalize(X, moved)
    assert again.method == ci.method
    np.testing.assert_array_equal(ci.predict_interval(X), again.predict_interval(X))
    assert ci.n_calibration_ == len(rest) == 180 - ci.choice_.n_rows


@pytest.mark.slow
def test_sentence_and_file():
    model = KnownModel()
    X, D = model.draw(200, seed=5)
    ci = ConformalIntervals(model, [0.5, 0.9]).conformalize(X, D)
    assert f"auto picked {ci.method} of 4 scores on 66 calibration rows set aside" in str(ci.choice_)
    assert "narrowest" in str(ci.choice_)
    again = ConformalIntervals.from_dict(model, json.loads(json.dumps(ci.to_dict())))
    assert again.choice_ == ci.choice_
    assert str(again.choice_) == str(ci.choice_)
    np.testing.assert_array_equal(again.predict_interval(X), ci.predict_interval(X))


def test_few_rows_and_groups():
    model = KnownModel()
    X, D = model.draw(59, seed=6)
    few = ConformalIntervals(model).conformalize(X, D)
    assert few.method == "beta"
    assert few.n_calibration_ == 59
    assert "without a comparison" in str(few.choice_)
    groups = np.array(["big"] * 81 + ["small"] * 9)
    aside, _ = set_aside(90, groups, [0.9])
    assert (groups[aside] == "big").all()  # a small group keeps the rows that its threshold needs


def test_other_normalisations_by_hand():
    dist = KnownModel(seed=9).predict_dist(np.zeros((4, 2)))
    shares = dist.sample((), torch.Generator().manual_seed(0)).numpy()
    absolute = AbsoluteScore().bound_to(dist, [0.8])
    np.testing.assert_allclose(absolute.score(shares, 0), np.abs(shares - dist.mean.numpy()))
    low, high = absolute.ends(np.full((1, 1, 1), 0.1))
    np.testing.assert_allclose(high - low, 0.2)


def test_beta_by_a_normal_distribution_and_by_draws():
    """Little spread is nearly normal, and the ends contain the wanted share of draws of any Beta distribution.

    Tolerance: 4.5 standard errors of 40,000 draws, and the hundredth of the distribution that has a heavy tail.
    """
    narrow = torch.distributions.Dirichlet(torch.tensor([[4e6, 6e6]], dtype=torch.float64))
    score = BetaScore().bound_to(narrow, [0.9])
    sd = narrow.variance.sqrt().numpy()
    beyond = np.exp(-score.score(narrow.mean.numpy() + 1.5 * sd, 0))
    np.testing.assert_allclose(beyond, 0.99 * 2 * norm.sf(1.5) + 0.01 / (1 + 1.5**2), rtol=1e-4)
    dists = torch.distributions.Dirichlet(torch.tensor([[5.0, 2.0, 1.0], [0.1, 0.2, 3.0]], dtype=torch.float64))
    score = BetaScore().bound_to(dists, [0.9])
    low, high = (end[..., 0] for end in score.ends(np.full((1, 1, 1), 2.0)))
    torch.manual_seed(0)
    draws = dists.sample((40_000,)).numpy()
    outside = ((draws < low) | (draws > high)).mean(axis=0)
    radius = high - dists.mean.numpy()
    variance = dists.variance.numpy()
    wanted = (np.exp(-2.0) - 0.01 * variance / (variance + radius**2)) / 0.99
    np.testing.assert_allclose(outside, wanted, atol=4.5 * np.sqrt(wanted / 40_000).max())
    np.testing.assert_allclose(score.score(high, 0), 2.0, atol=1e-8)
    np.testing.assert_allclose(score.score(low, 0), 2.0, atol=1e-8)


@pytest.mark.parametrize("concentrations", [[1e-9, 1.0], [1e-3, 1e-3], [1e9, 1e-4], [3.0, 3.0]])
def test_beta_ends_hold_what_they_were_made_of(concentrations):
    """Shares of exactly 0 and 1 too: the interval at a share's own score holds that share."""
    dist = torch.distributions.Dirichlet(torch.tensor([concentrations], dtype=torch.float64))
    score = BetaScore().bound_to(dist, [0.9])
    for first in (0.0, 1e-6, 0.3, 1.0):
        shares = np.array([[first, 1.0 - first]])
        q = score.score(shares, 0)[:, :, None]
        ends = score.interval(q)[..., 0]
        assert np.isfinite(q).all()
        assert ((ends[..., 0] <= shares) & (shares <= ends[..., 1])).all()


def test_beta_scores_and_ends_agree_near_zero_and_one():
    """Much of such a distribution lies closer to 0 or 1 than an end resolves: nor must scores."""
    rng = np.random.default_rng(0)
    dist = torch.distributions.Dirichlet(torch.as_tensor(rng.uniform(0.02, 0.2, size=(400, 3))))
    shares = np.eye(3)[rng.integers(3, size=400)]
    score = BetaScore().bound_to(dist, [0.9])
    for q in (1.5, 3.0, 5.5):
        ends = score.interval(np.full((1, 1, 1), q))[..., 0]
        inside = (ends[..., 0] <= shares) & (shares <= ends[..., 1])
        np.testing.assert_array_equal(inside, score.score(shares, 0) <= q)


def test_outlying_rows_get_wider_intervals_by_hand():
    model = KnownModel()
    X, D = model.draw(300, seed=12)
    ci = ConformalIntervals(model, 0.8, "outlying").conformalize(X[:200], D[:200])
    aside, rest = set_aside(200, None, [0.8])
    centre, scale = X[aside].mean(axis=0), X[aside].std(axis=0)
    distance = (((X - centre) / scale) ** 2).mean(axis=1)
    factor = np.clip(distance / np.quantile(distance[aside], 0.9), 1.0, 16.0)[:, None]
    assert (factor == 1.0).mean() > 0.8  # most rows keep the width that beta gives them
    assert factor.max() > 1.5
    score = BetaScore().bound_to(model.predict_dist(X), [0.8])
    mean = model.predict_dist(X).mean.numpy()
    scores = score.score(mean + np.abs(D - mean) / factor, 0)
    q = np.sort(scores[rest], axis=0)[rank(0.8, len(rest)) - 1]
    reach = (score.ends(q[None, :, None])[1][..., 0] - mean) * factor
    wanted = np.clip(np.stack([mean - reach, mean + reach], axis=-1), 0.0, 1.0)
    np.testing.assert_allclose(ci.predict_interval(X), wanted, atol=1e-9)
    again = ConformalIntervals.from_dict(model, json.loads(json.dumps(ci.to_dict())))
    np.testing.assert_allclose(again.predict_interval(X), wanted, atol=1e-9)
    with pytest.raises(InputError, match="60 at least"):
        ConformalIntervals(model, method="outlying").conformalize(X[:40], D[:40])


def test_rows_that_are_no_numbers_are_judged_by_what_is_predicted():
    city = make_city_districts(n=260, random_state=0)
    model = SnefyLDL(n_neurons=8, n_readouts=4, epochs=2, guides=None, random_state=0).fit(city.X[:60], city.D[:60])

    class OfTexts:
        def predict_dist(self, X):
            return model.predict_dist(np.array([[float(part) for part in row.split()] for row in X]))

    X = [" ".join(map(str, row)) for row in city.X]
    ci = ConformalIntervals(OfTexts(), 0.8, "outlying").conformalize(X[60:], city.D[60:])
    ends = ci.predict_interval(X[:50])
    assert (ends[..., 0] <= ends[..., 1]).all()
    assert len(ci.to_dict()["outlyingness"]["centre"]) == 6  # means and standard deviations of three shares


@pytest.mark.slow
@pytest.mark.parametrize("model", [ZeroModel()])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "outlying"},
        {"conditional_on": [Splines(0), 1], "method": "chebyshev"},
        {"conditional_on": 0, "simultaneous": True, "method": "chebyshev"},
    ],
)
def test_distributions_with_zeros_go_through_everything(model, settings):
    """Coverage of 40 new rows, at most 4.5 errors of both samples below; intervals that start at 0; files."""
    n = 90 if settings else 180  # rows that are enough to set some aside, or to compare scores
    X, D = model.draw(n + 40, seed=13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # [0, 1] at the edge, or for all labels at once
        ci = ConformalIntervals(model, 0.8, **settings).conformalize(X[:n], D[:n])
        ends = ci.predict_interval(X[n:])
    measure = joint_coverage if settings.get("simultaneous") else coverage
    error = np.sqrt(0.16 / 40 + 0.16 / ci.n_calibration_)
    assert measure(D[n:], ends) > 0.8 - 4.5 * error
    assert (D == 0.0).any()
    assert (ends[..., 0] == 0.0).any()
    again = ConformalIntervals.from_dict(model, json.loads(json.dumps(ci.to_dict())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        np.testing.assert_allclose(again.predict_interval(X[n : n + 10]), ends[:10], atol=1e-12)
