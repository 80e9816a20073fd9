"""Conformal regions: coverage, p-values, volumes against exact ones, groups, weights, files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_models import DirichletModel, KnownModel
from sklearn.exceptions import NotFittedError

from snefy_ldl import SnefyLDL
from snefy_ldl._internal.special import ternary_grid
from snefy_ldl.conformal import ConformalRegion
from snefy_ldl.conformal.thresholds import Calibration, rank
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import CalibrationWarning, InputError

METHODS = ("density", "hpd")


@pytest.mark.parametrize(
    "method", [method if method == "density" else pytest.param(method, marks=pytest.mark.slow) for method in METHODS]
)
def test_coverage_from_both_sides_with_a_wrong_model(method):
    """Mean over 150 splits within 4.5 standard errors of ⌈c(n+1)⌉/(n+1); ties of hpd may only add to it."""
    n_splits, n_cal, n_test, level = 150, 40, 40, 0.9
    model = DirichletModel(distort=0.4)
    X, D = DirichletModel().draw(n_splits * (n_cal + n_test), seed=1)
    found = []
    for X_split, D_split in zip(np.split(X, n_splits), np.split(D, n_splits)):
        region = ConformalRegion(model, level, method, n_draws=100).conformalize(X_split[:n_cal], D_split[:n_cal])
        found.append(region.contains(X_split[n_cal:], D_split[n_cal:]).mean())
    error = np.std(found, ddof=1) / np.sqrt(n_splits)
    expected = rank(level, n_cal) / (n_cal + 1)
    assert error < 0.006
    assert np.mean(found) > expected - 4.5 * error
    assert np.mean(found) < expected + 4.5 * error + (0.02 if method == "hpd" else 0.0)


# -- p-values ----------------------------------------------------------------------------------------------------------


def inside(region, X, points):
    """Which of the points lie in each row's region, (S, N)."""
    parts = [score.score_shared(points) <= region.threshold_ for _, score in region._blocks(X, 1)]
    return np.concatenate(parts, axis=1)


def p_values(region, X, D, X_cal, D_cal):
    """``(1 + #{S_i >= s}) / (n + 1)``."""
    known, new = region.score(X_cal, D_cal), region.score(X, D)
    return (1 + (known >= new[:, None]).sum(1)) / (len(known) + 1)


def test_contains_is_a_p_value_above_alpha():
    truth = KnownModel(seed=6)
    X, D = truth.draw(300, seed=7)
    region = ConformalRegion(truth, 0.8).conformalize(X[:97], D[:97])
    found = p_values(region, X[97:], D[97:], X[:97], D[:97])
    np.testing.assert_array_equal(region.contains(X[97:], D[97:]), found > 0.2 + 1e-12)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    new=st.integers(-4, 4),
    percent=st.integers(1, 99),
    weighted=st.booleans(),
)
def test_thresholds_are_those_of_p_values(scores, new, percent, weighted):
    level, table = percent / 100, np.array(scores, dtype=float)[:, None, None]
    q = Calibration(table, weights=np.ones(len(scores)) if weighted else None).thresholds([level], 1)[0, 0, 0]
    # p > α in whole numbers: (1 + #{S >= s}) · 100 > (100 - percent)(n + 1)
    above = 1 + sum(s >= new for s in scores)
    assert (new <= q) == (above * 100 > (100 - percent) * (len(scores) + 1))


# -- volume and draws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_volume_of_three_labels_against_a_grid(method):
    truth = KnownModel(seed=11)
    X, D = truth.draw(100, seed=12)
    region = ConformalRegion(truth, 0.7, method, n_draws=300).conformalize(X, D)
    grid = inside(region, X[:6], ternary_grid(150)).mean(axis=0)
    share, error = region.volume(X[:6], n=4000, return_std_error=True)
    assert (np.abs(share - grid) < 5.0 * error + 0.004).all()


def test_an_empty_region_has_no_volume():
    """One height for all rows: a row with a flat distribution has no label distribution that dense."""

    class TwoWidths:
        def predict_dist(self, X):
            alpha = torch.as_tensor(np.where(np.asarray(X)[:, :1] > 0, 1.0, 50.0) * np.ones((1, 3)))
            return torch.distributions.Dirichlet(alpha)

    D = np.random.default_rng(16).dirichlet([50, 50, 50], 60)
    region = ConformalRegion(TwoWidths(), 0.5).conformalize(np.zeros((60, 1)), D)
    assert region.volume([[0.0], [1.0]])[1] == 0.0


# -- the rest of the contract ------------------------------------------------------------------------------------------


def test_too_few_rows_give_the_whole_simplex():
    X, D = DirichletModel().draw(8, seed=17)
    with pytest.warns(CalibrationWarning, match="8 calibration") as caught:
        region = ConformalRegion(DirichletModel(), 0.9).conformalize(X, D)
    assert len(caught) == 1
    assert region.contains(X, np.tile([1.0, 0.0, 0.0], (8, 1))).all()
    share, error = region.volume(X, return_std_error=True)
    np.testing.assert_array_equal(share, 1.0)
    np.testing.assert_array_equal(error, 0.0)
    assert inside(region, X, ternary_grid(5)).all()


def test_zeros_follow_the_models_policy_and_not_the_calibration_rows():
    city = make_city_districts(n=120, random_state=3)
    model = SnefyLDL(n_neurons=4, n_readouts=2, hidden_sizes=(4,), epochs=1, random_state=0).fit(
        city.X[:60], city.D[:60]
    )
    region = ConformalRegion(model, 0.8).conformalize(city.X[60:], city.D[60:])
    corner = np.array([[1.0, 0.0, 0.0]])
    lifted = model.zero_policy_.apply(corner)
    np.testing.assert_allclose(region.score(city.X[:1], corner), -model.log_prob(city.X[:1], lifted), rtol=1e-9)
    stub = ConformalRegion(DirichletModel(), 0.8).conformalize(*DirichletModel().draw(30, seed=18))
    assert np.isfinite(stub.score(np.zeros((1, 2)), corner)).all()


def test_groups():
    truth = DirichletModel()
    X, D = truth.draw(400, seed=19)
    groups = np.where(X[:, 0] > 0, "right", "left")
    region = ConformalRegion(truth, 0.8).conformalize(X[:300], D[:300], groups=groups[:300])
    for side in ("left", "right"):
        mine = groups[:300] == side
        alone = ConformalRegion(truth, 0.8).conformalize(X[:300][mine], D[:300][mine])
        new = np.flatnonzero(groups[300:] == side) + 300
        asked = {"groups": groups[new]}
        np.testing.assert_array_equal(region.contains(X[new], D[new], **asked), alone.contains(X[new], D[new]))
    with pytest.raises(InputError, match="calibration used groups"):
        region.contains(X[:2], D[:2])
    assert region.contains(X[:1], D[:1], groups=["up"]).all()


def test_wrong_order_and_bad_settings():
    region = ConformalRegion(DirichletModel())
    X, D = DirichletModel().draw(20, seed=20)
    for call in (
        lambda: region.contains(X, D),
        lambda: region.volume(X),
        lambda: region.score(X, D),
        region.to_dict,
    ):
        with pytest.raises(NotFittedError):
            call()
    for make, message in (
        (lambda: ConformalRegion(object()), "predict_dist"),
        (lambda: ConformalRegion(DirichletModel(), 2), "between 0 and 1"),
        (
            lambda: ConformalRegion(DirichletModel(), method="box"),
            "'density', 'hpd'",
        ),
        (lambda: ConformalRegion(DirichletModel(), n_draws=1), "n_draws"),
        (lambda: region.conformalize(X, np.full((20, 2), 0.5)), "predicts 3"),
    ):
        with pytest.raises(InputError, match=message):
            make()
    region.conformalize(X, D)
    with pytest.raises(InputError, match=">= 2"):
        region.volume(X, n=1)


@pytest.mark.parametrize("method", METHODS)
def test_torch_dirichlets_serve_and_agree_with_ours(method):
    class Torch:
        def predict_dist(self, X):
            alpha = 3.0 * np.exp(np.asarray(X) @ DirichletModel().slopes)
            return torch.distributions.Dirichlet(torch.as_tensor(alpha))

    X, D = DirichletModel().draw(80, seed=21)
    theirs = ConformalRegion(Torch(), 0.8, method, n_draws=50).conformalize(X[:60], D[:60])
    ours = ConformalRegion(DirichletModel(), 0.8, method, n_draws=50).conformalize(X[:60], D[:60])
    if method != "hpd":
        np.testing.assert_allclose(theirs.score(X, D), ours.score(X, D), rtol=1e-7, atol=1e-9)
    assert theirs.volume(X[:3], n=100).shape == (3,)
    state = torch.get_rng_state()
    theirs.contains(X, D)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", METHODS)
def test_calibrations_survive_json(method):
    X, D = DirichletModel().draw(60, seed=22)
    region = ConformalRegion(DirichletModel(), 0.8, method, n_draws=50).conformalize(X[:40], D[:40])
    back = ConformalRegion.from_dict(DirichletModel(), json.loads(json.dumps(region.to_dict(), allow_nan=False)))
    np.testing.assert_array_equal(back.contains(X[40:], D[40:]), region.contains(X[40:], D[40:]))
    assert back.threshold_ == region.threshold_
    assert repr(back) == repr(region)
