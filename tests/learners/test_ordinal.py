"""Losses, heads and optima of the ordinal learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import TEST, TRAIN, D, X

from snefy_ldl import metrics
from snefy_ldl.learners import SABFGS, OrdinalLDL
from snefy_ldl.learners.base import Learner
from snefy_ldl.learners.linear import ROUNDING
from snefy_ldl.learners.ordinal import HEADS, LOSSES, log_shares, loss_ratio, ordinal_loss

RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.ones(4), len(D))


def value(name: str) -> float:
    return float(ordinal_loss(name, torch.from_numpy(D))(torch.from_numpy(np.log(P))))


def test_losses_are_the_measures() -> None:
    assert value("cad") == pytest.approx(metrics.cumulative_absolute_distance(D, P), abs=3 * ROUNDING)
    assert value("emd") == pytest.approx(3 * metrics.ranked_probability_score(D, P))
    assert value("cjs") == pytest.approx(metrics.cumulative_jensen_shannon(D, P))
    entropy = float(-(D * np.log(D)).sum(axis=1).mean())
    assert value("kl") - entropy == pytest.approx(metrics.kl_divergence(D, P))


def test_the_quadratic_form_is_the_squared_earth_movers_distance() -> None:
    squares = metrics.quadratic_form_distance(D, P, per_row=True) ** 2
    assert float(squares.mean()) == pytest.approx(2.0 / 3.0 * value("emd"))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_right_where_shares_are_zero(name: str) -> None:
    shares = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.3, 0.7, 0.0]], dtype=torch.float64)
    logits = torch.from_numpy(RANDOM.normal(size=(2, 4))).requires_grad_()
    loss = ordinal_loss(name, shares)
    assert torch.autograd.gradcheck(lambda z: loss(torch.log_softmax(z, dim=1)), logits)


@pytest.mark.parametrize("name", ["emd", "cjs", "kl"])
def test_the_ratio_is_the_curvature_of_the_loss(name: str) -> None:
    # at a row equal to the mean, the Hessian in the logits is J B J
    mean = torch.tensor([[0.1, 0.4, 0.3, 0.2]], dtype=torch.float64)
    loss = ordinal_loss(name, mean)
    hessian = torch.autograd.functional.hessian(lambda z: loss(torch.log_softmax(z[None], dim=1)), mean[0].log())
    kl = ordinal_loss("kl", mean)
    unit = torch.autograd.functional.hessian(lambda z: kl(torch.log_softmax(z[None], dim=1)), mean[0].log())
    assert loss_ratio(name, mean.numpy()) == pytest.approx(float(torch.trace(hessian) / torch.trace(unit)), rel=5e-3)


def test_a_head_has_one_mode() -> None:
    outputs = torch.from_numpy(RANDOM.normal(size=(200, 6)) * 2.0)
    shares = log_shares("unimodal", outputs)
    np.testing.assert_allclose(shares.exp().sum(dim=1), 1.0)
    assert (torch.diff(shares, n=2, dim=1) <= 1e-9).all()  # log-concave
    assert len(set(shares.argmax(dim=1).tolist())) > 3
    rows = OrdinalLDL("emd", "unimodal").fit(X, D).predict(X)
    assert (np.diff(np.log(rows), n=2, axis=1) <= 1e-9).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("head", HEADS)
def test_every_pair_learns(loss: str, head: str) -> None:
    features = X[:, :1]
    place = np.linspace(-1.0, 1.0, 5)
    centre = 0.6 * (features - features.mean()) / features.std()
    shares = np.exp(-0.5 * ((place - centre) / 0.5) ** 2)
    shares /= shares.sum(axis=1, keepdims=True)
    model = OrdinalLDL(loss, head, l2=1e-5, tol=1e-8, max_iter=3000).fit(features, shares)
    # each head holds this law: squares in the place are a softmax of lines in the feature
    assert metrics.cumulative_absolute_distance(shares, model.predict(features)) < 0.02


def test_kl_with_softmax_is_the_maximum_entropy_model() -> None:
    np.testing.assert_allclose(OrdinalLDL("kl").fit(X, D).predict(X), SABFGS().fit(X, D).predict(X), atol=1e-4)


@pytest.mark.parametrize("loss", ["cad", "emd", "cjs"])
def test_a_fit_is_a_minimum_of_its_loss(loss: str) -> None:
    model = OrdinalLDL(loss, l2=0.5, standardize=False, tol=1e-9, max_iter=5000).fit(X[:, :2] / 10.0, D)

    def total(coef: Any, intercept: Any) -> float:
        outputs = torch.from_numpy(X[:, :2] / 10.0 @ coef + intercept)
        fitted = ordinal_loss(loss, torch.from_numpy(D))(log_shares("softmax", outputs))
        return float(fitted) + 0.5 * model.l2_ / len(D) * float((coef**2).sum())

    best = total(model.coef_, model.intercept_)
    for seed in range(20):
        random = np.random.default_rng(seed)
        moved = total(model.coef_ + 0.02 * random.normal(size=(2, 4)), model.intercept_ + 0.02 * random.normal(size=4))
        assert moved > best


def test_a_loss_wins_on_its_measure() -> None:
    plain: Learner = SABFGS().fit(X[TRAIN], D[TRAIN])
    for loss, measure in (("cad", metrics.cumulative_absolute_distance), ("emd", metrics.ranked_probability_score)):
        model = OrdinalLDL(loss, l2=1e-3).fit(X[TRAIN], D[TRAIN])
        reference = OrdinalLDL("kl", l2=1e-3).fit(X[TRAIN], D[TRAIN])
        assert measure(D[TRAIN], model.predict(X[TRAIN])) < measure(D[TRAIN], reference.predict(X[TRAIN]))
        assert measure(D[TEST], model.predict(X[TEST])) < 1.2 * measure(D[TEST], plain.predict(X[TEST]))
