"""Fits with many labels, whose guides move the law itself."""

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.learners import SABFGS
from snefy_ldl.metrics import kl_divergence
from snefy_ldl.training.guides import best_weights, departure, fit_mover, mixed_mean


def many_labels(n=260, n_labels=30, zeros=True, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 6))
    score = X @ random.normal(size=(6, n_labels)) * 0.6 + random.normal(size=n_labels) * 1.5
    amount = random.gamma(2.0, size=(n, n_labels)) * np.exp(score)
    if zeros:
        amount *= random.random((n, n_labels)) < 1.0 / (1.0 + np.exp(1.0 - score))
        amount[np.arange(n), score.argmax(1)] += 0.1
    return X, amount / amount.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def fitted():
    X, D = many_labels()
    return SnefyLDL(epochs=12, random_state=0).fit(X[:200], D[:200]), X, D


@pytest.mark.slow
def test_the_law_moves_and_keeps_up_with_its_guides(fitted):
    model, X, D = fitted
    assert model.inputs_ == "moving"
    test = slice(200, None)
    ours = kl_divergence(D[test], model.predict(X[test]))
    guide = kl_divergence(D[test], SABFGS().fit(X[:200], D[:200]).predict(X[test]))
    fixed = SnefyLDL(epochs=12, random_state=0, guides=None).fit(X[:200], D[:200])
    assert ours < 1.1 * guide
    assert ours < 0.8 * kl_divergence(D[test], fixed.predict(X[test]))
    assert model.log_prob(X[test], D[test]).mean() > fixed.log_prob(X[test], D[test]).mean()


@pytest.mark.slow
def test_zeros_are_predicted_about_as_often_as_they_are(fitted):
    model, X, D = fitted
    chance = model.predict_zero(X[200:])
    assert abs(chance.mean() - (D[200:] == 0).mean()) < 0.05
    brier = ((chance - (D[200:] == 0)) ** 2).mean()
    assert brier < ((D[200:] == 0) - (D[:200] == 0).mean(0)).__pow__(2).mean()


@pytest.mark.slow
def test_a_moving_model_comes_back_from_its_folder(fitted, tmp_path):
    model, X, D = fitted
    again = SnefyLDL.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X[200:205]), model.predict(X[200:205]))
    np.testing.assert_array_equal(again.log_prob(X[200:], D[200:]), model.log_prob(X[200:], D[200:]))


@pytest.mark.slow
def test_intervals_hold_what_they_say(fitted):
    model, X, D = fitted
    box = model.predict_interval(X[200:202])
    assert box.shape == (2, 30, 2)
    assert (box[..., 0] <= box[..., 1]).all()
    inside = (D[200:202] >= box[..., 0]) & (D[200:202] <= box[..., 1])
    assert inside.mean() > 0.75  # of 60 shares


@pytest.mark.slow
def test_without_zeros_the_centre_alone_moves():
    X, D = many_labels(n=200, n_labels=22, zeros=False)
    model = SnefyLDL(epochs=8, random_state=0).fit(X[:160], D[:160])
    if model.inputs_ == "moving":
        assert model.guides_.mover.base is None
    assert np.isfinite(model.log_prob(X[160:], D[160:])).all()
    goes_on = model.set_params(warm_start=True, epochs=1).fit(X[:160], D[:160])
    assert goes_on.inputs_ == model.inputs_


def test_weights_of_guides_add_up_and_pick_the_better_one():
    truth = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    wrong = np.full((2, 3), 1 / 3)
    seen = np.hstack([np.log(wrong), np.log(truth)])
    weights = best_weights(seen, truth)
    np.testing.assert_allclose(weights, [0.0, 1.0])
    np.testing.assert_allclose(mixed_mean(seen, weights), truth, atol=1e-3)


def test_presence_is_stretched_by_what_it_is_worth():
    X, D = many_labels()
    seen = np.log(np.maximum(D.mean(0), 1e-3))[None].repeat(len(X), 0)
    mover, moves = fit_mover(seen, X, D, np.arange(200), 40, 10**6, 0)
    assert 0.0 < mover.slope <= 2.0
    noise, _ = fit_mover(seen, np.random.default_rng(99).normal(size=X.shape), D, np.arange(200), 40, 10**6, 0)
    assert noise.slope < 0.3 < mover.slope  # features that say nothing
    assert moves.shift.shape == D.shape
    new = mover.moves(seen, X)
    np.testing.assert_allclose(new.log_centre[200:], moves.log_centre[200:])
    assert departure(np.array([[0.5]]), np.array([0.0]))[0, 0] == 0.0
