"""Scores of predicted laws against closed forms, quadrature and Monte Carlo."""

from __future__ import annotations

import math
from importlib import import_module

import numpy as np
import pytest
import torch
from scipy import stats

from queries import seeded
from snefy_ldl import SnefySimplex
from snefy_ldl.active import (
    DirichletEntropy,
    Entropy,
    Epistemic,
    Variance,
    members_of,
    query,
    shared_entropy,
)
from snefy_ldl.learners import DirichletLDL


def dirichlet_law(alpha):
    alpha = torch.as_tensor(alpha)
    zero = torch.zeros(1, alpha.shape[1], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    return SnefySimplex(zero, one, torch.zeros(len(alpha), 1, dtype=torch.float64), offset=alpha - 1.0)


ALPHA = np.array([[2.0, 3.0, 5.0], [0.7, 0.9, 1.4], [40.0, 30.0, 5.0]])


def test_dirichlet_scores_are_scipys():
    law = dirichlet_law(ALPHA)
    exact = [stats.dirichlet(alpha).entropy() for alpha in ALPHA]
    np.testing.assert_allclose(DirichletEntropy().score(law, seeded(0)), exact, rtol=1e-9)
    np.testing.assert_allclose(Variance().score(law, seeded(0)), [stats.dirichlet(a).var().sum() for a in ALPHA])
    fixed = [stats.dirichlet(7.0 * alpha / alpha.sum()).entropy() for alpha in ALPHA]
    np.testing.assert_allclose(DirichletEntropy(concentration=7.0).score(law, seeded(0)), fixed, rtol=1e-9)
    torch_law = torch.distributions.Dirichlet(torch.as_tensor(ALPHA))
    np.testing.assert_allclose(Entropy().score(torch_law, seeded(0)), exact, rtol=1e-9)


def test_dirichlet_strategy_on_a_dirichlet_model_is_its_own_entropy(city):
    model = DirichletLDL(random_state=0).fit(city.X[:100], city.D[:100])
    _, utilities = query("dirichlet", city.X[100:], 3, model=model, return_utilities=True)
    np.testing.assert_allclose(utilities, model.entropy(city.X[100:]), rtol=1e-6)


@pytest.mark.parametrize("members", [0, 3])
def test_entropy_estimators_agree_with_quadrature(snefy, quadrature, members):
    law = snefy(3, batch=(4,), members=members, seed=5)
    grid = quadrature(3)
    log_p = law.log_prob(grid.points[:, None])
    exact = -(torch.where(log_p > -700, log_p.exp() * log_p, 0.0) * grid.weights[:, None]).sum(0).numpy()
    np.testing.assert_allclose(Entropy(n_draws=20_000).score(law, seeded(0)), exact, atol=0.05)
    np.testing.assert_allclose(Entropy("uniform", 20_000).score(law, seeded(0)), exact, atol=0.1)
    parts = np.stack([shared_entropy(law, 400, torch.Generator().manual_seed(seed)) for seed in range(60)])
    error = parts.std(0, ddof=1) / math.sqrt(60)
    assert (np.abs(parts.mean(0) - exact) < 4.5 * error + 1e-9).all()  # unbiased; false alarm about 3e-5 for 4 rows


def test_shared_draws_are_the_same_for_every_block(pool, model, monkeypatch):
    whole = query("entropy", pool, 5, model=model, random_state=0, method="shared", return_utilities=True)[1]
    monkeypatch.setattr(import_module("snefy_ldl.active.query"), "POOL_ROWS", 64)
    parts = query("entropy", pool, 5, model=model, random_state=0, method="shared", return_utilities=True)[1]
    np.testing.assert_allclose(parts, whole, rtol=1e-9)


@pytest.mark.slow
def test_epistemic_against_brute_force(snefy):
    law = snefy(3, batch=(5,), members=3, seed=7)
    one = [SnefySimplex(law.exponents[k], law.readout[k], law.log_scale[:, k]) for k in range(3)]
    # I = H(ℓ) - H(ℓ|member): the entropy of the mixture less the members' mean, each by its own draws
    value, error = law.entropy(40_000, generator=torch.Generator().manual_seed(1), return_std_error=True)
    total, variance = value.numpy().copy(), error.numpy() ** 2
    for k, member in enumerate(one):
        value, error = member.entropy(40_000, generator=torch.Generator().manual_seed(2 + k), return_std_error=True)
        total -= value.numpy() / 3
        variance = variance + error.numpy() ** 2 / 9
    found = np.stack([Epistemic(n_draws=500).score(law, seeded(seed)) for seed in range(20)])
    variance = variance + found.var(0, ddof=1) / 20
    assert (np.abs(found.mean(0) - total) < 4.5 * np.sqrt(variance)).all()  # false alarm about 3e-5
    assert (found.mean(0) > 0).all()
    assert (found.mean(0) < math.log(3)).all()


def test_epistemic_by_quadrature_and_for_votes(snefy, quadrature):
    law = snefy(3, batch=(3,), members=2, seed=8)
    one = [SnefySimplex(law.exponents[k], law.readout[k], law.log_scale[:, k]) for k in range(2)]
    grid = quadrature(3)
    p = torch.stack([member.log_prob(grid.points[:, None]).exp() for member in one])
    mixed = p.mean(0)
    exact = (torch.where(p > 0, p * (p.log() - mixed.log()), 0.0).mean(0) * grid.weights[:, None]).sum(0).numpy()
    np.testing.assert_allclose(Epistemic(n_draws=40_000).score(law, seeded(0)), exact, atol=0.02)
    means = np.stack([member.mean.numpy() for member in one])
    votes = stats.entropy(means.mean(0), axis=1) - stats.entropy(means, axis=2).mean(0)
    np.testing.assert_allclose(Epistemic("vote").score(law, seeded(0)), votes, atol=1e-12)
    np.testing.assert_allclose(Epistemic("vote").score(one, seeded(0)), votes, atol=1e-12)


def test_epistemic_is_nothing_for_equal_members(snefy):
    law = snefy(3, batch=(2,), seed=3)
    np.testing.assert_allclose(Epistemic(n_draws=8).score([law, law], seeded(0)), 0.0, atol=1e-12)
    np.testing.assert_allclose(Epistemic("vote").score([law, law], seeded(0)), 0.0, atol=1e-12)


def test_members_of_a_law_with_votes_average_to_it(snefy):
    law = snefy(3, batch=(2,), members=3, seed=9).posterior(torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 4.0]]))
    laws, weights = members_of(law)
    point = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    mixed = sum(w * one.log_prob(point).exp().numpy() for w, one in zip(weights, laws))
    np.testing.assert_allclose(mixed, law.log_prob(point).exp(), rtol=1e-9)
