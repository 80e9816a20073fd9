"""LDL-HVLC: a fit is a minimum of its objective, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from learner_cases import D, X, softmax
from scipy.special import rel_entr

from snefy_ldl.learners import LDLHVLC

FEATURES = (X[:, :2] - X[:, :2].mean(axis=0)) / X[:, :2].std(axis=0)
EXACT = {"l2": 0.5, "standardize": False, "max_iter": 3000, "tol": 1e-8}


def kl(P: Any, D: Any = D) -> Any:
    return rel_entr(D, P).sum(axis=1)


def is_minimum(total: Callable[..., float], *weights: Any, slack: float = 1e-6) -> None:
    """No step into any of 20 random directions lowers an objective."""
    best = total(*weights)
    for seed in range(20):
        random = np.random.default_rng(seed)
        steps = [0.05 * random.normal(size=np.shape(w)) for w in weights]
        assert total(*[w + step for w, step in zip(weights, steps)]) > best - slack


def neighbours_of(k: int) -> Any:
    gaps = ((FEATURES[:, None] - FEATURES) ** 2).sum(axis=2)
    np.fill_diagonal(gaps, np.inf)
    return np.argsort(gaps, axis=1)[:, :k]


def test_hvlc_is_a_minimum_of_its_objective() -> None:
    model = LDLHVLC(n_neighbors=4, alpha=0.3, beta=0.2, **EXACT).fit(FEATURES, D)
    means = D[neighbours_of(4)].mean(axis=1)
    alike = np.array([max(np.corrcoef(c, d)[0, 1], 0.0) for c, d in zip(means, D)])
    together = np.maximum(np.corrcoef(D.T), 0.0)
    spread = means.std(axis=0)

    def total(coef: Any, intercept: Any, mixed: Any) -> float:
        P = softmax(FEATURES @ coef + intercept + means @ mixed)
        down = sum(together[j, k] * (P[:, j] - P[:, k]) ** 2 for j in range(4) for k in range(4))
        value = kl(P) + 0.3 * alike * ((P - means) ** 2).sum(axis=1) + 0.2 * down
        return float(value.mean() + 0.25 / len(D) * ((coef**2).sum() + ((spread[:, None] * mixed) ** 2).sum()))

    is_minimum(total, model.coef_, model.intercept_, model.neighbour_coef_)
