"""The largest label: probabilities against closed forms, decisions, and sets that cover."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import betainc
from sklearn.exceptions import NotFittedError

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.learners import SABFGS, DirichletLDL
from snefy_ldl.learners.classification import LabelDecision, prob_largest

CITY = make_city_districts(n=500, random_state=0)


def test_probabilities_are_those_of_the_incomplete_beta() -> None:
    alpha = np.array([[0.3, 0.7], [2.0, 5.0], [300.0, 320.0], [0.05, 40.0]])
    dist = torch.distributions.Dirichlet(torch.as_tensor(alpha))
    p, error = prob_largest(dist, 20_000)
    assert (np.abs(p[:, 0] - betainc(alpha[:, 1], alpha[:, 0], 0.5)) < 5 * error[:, 0]).all()  # 2e-6 by chance
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    dist = SnefyLDL(n_neurons=8, n_readouts=4, epochs=4, guides=None, random_state=0)
    dist = dist.fit(CITY.X, np.stack([CITY.D[:, 0], 1.0 - CITY.D[:, 0]], axis=1)).predict_dist(CITY.X[:20])
    p, error = prob_largest(dist, 20_000)
    assert (np.abs(p[:, 0] - dist.prob_greater(0, 1).numpy()) < 5 * error[:, 0]).all()


@pytest.mark.slow
def test_decisions_and_rejections() -> None:
    decision = LabelDecision(DirichletLDL().fit(CITY.X[:250], CITY.D[:250]))
    X, truth = CITY.X[250:], CITY.D[250:].argmax(axis=1)
    p = decision.probabilities(X)
    np.testing.assert_array_equal(decision.predict(X), p.argmax(axis=1))
    named = decision.predict(X, reject_above=0.25)
    kept = named >= 0
    np.testing.assert_array_equal(kept, 1.0 - p.max(axis=1) <= 0.25)
    assert (named[kept] == truth[kept]).mean() > (decision.predict(X) == truth).mean()
    with pytest.raises(InputError, match="between 0 and 1"):
        decision.predict(X, reject_above=2.0)


@pytest.mark.slow
def test_sets_cover_the_largest_label() -> None:
    model = DirichletLDL().fit(CITY.X[:150], CITY.D[:150])
    decision = LabelDecision(model)
    with pytest.raises(NotFittedError, match="conformalize"):
        decision.predict_set(CITY.X)
    random, covered, sizes = np.random.default_rng(0), [], []
    for _ in range(20):
        order = 150 + random.permutation(350)
        sets = decision.conformalize(CITY.X[order[:175]], CITY.D[order[:175]], 0.9).predict_set(CITY.X[order[175:]])
        truth = CITY.D[order[175:]].argmax(axis=1)
        covered.append(sets[np.arange(175), truth].mean())
        sizes.append(sets.sum(axis=1).mean())
    assert 0.87 < np.mean(covered) < 0.96  # 0.9 guaranteed on average; a set is never empty, which adds a little
    assert np.mean(sizes) < 2.9
    few = decision.conformalize(CITY.X[:3], CITY.D[:3], 0.9)  # too few rows for the level: every label
    assert few.predict_set(CITY.X[:5]).all()


def test_other_laws_and_other_models() -> None:
    with pytest.raises(InputError, match="predict_dist"):
        LabelDecision(SABFGS())

    class Plain:
        def predict_dist(self, X: np.ndarray) -> torch.distributions.Dirichlet:
            return torch.distributions.Dirichlet(torch.tensor([[4.0, 1.0, 1.0]]).expand(len(X), 3))

    p = LabelDecision(Plain()).probabilities(CITY.X[:2])
    assert p.shape == (2, 3)
    assert (p[:, 0] > 0.7).all()
