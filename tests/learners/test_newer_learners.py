"""Learners of 2018 to 2026: losses against integrals and by hand, closed forms, and optima of objectives by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import D, X, softmax
from scipy.integrate import quad
from scipy.special import expit, rel_entr

from snefy_ldl.learners import LDLHVLC, DeltaLDL

P = softmax(np.random.default_rng(0).normal(size=(len(D), 4)))
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


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 8.0])
def test_delta_ldl_counts_rows_by_the_integral_of_its_sigmoid(sharpness: float) -> None:
    size = kl(np.full(D.shape, 0.25)).mean()
    rows = DeltaLDL(sharpness)._rows(D)(torch.from_numpy(P)).numpy()
    integral = lambda miss: quad(lambda t: expit(sharpness / size * (miss - t)), 0, size)[0]  # noqa: E731
    step = 1e-4
    slope = (integral(step) - integral(-step)) / (2 * step)
    np.testing.assert_allclose(rows[:8], [integral(miss) / slope for miss in kl(P)[:8]], rtol=1e-4)


def test_delta_ldl_cares_less_for_rows_that_are_far_off() -> None:
    true = torch.from_numpy(D[:1])
    near, far = ((1 - s) * true + s * torch.tensor([[1e-6, 1e-6, 1e-6, 1.0]]) for s in (0.1, 0.99))
    rows = DeltaLDL(8.0)._rows(D)
    one = DeltaLDL(8.0)
    assert one._rows(D[:1])(far).item() < kl(far.numpy(), D[:1])[0]
    assert rows(torch.from_numpy(D)).abs().max() < rows(torch.from_numpy(P)).max()
    assert one._rows(D[:1])(near).item() < one._rows(D[:1])(far).item()


def test_even_labels_are_no_trouble() -> None:
    even = np.full((10, 4), 0.25)
    np.testing.assert_allclose(DeltaLDL().fit(X[:10], even).predict(X[:3]), 0.25, atol=1e-3)


def test_gradients_and_optima() -> None:
    model = DeltaLDL(2.0)
    rows = model._rows(D[:5])
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 4))).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: rows(torch.softmax(z, dim=1)).sum(), logits, eps=1e-7, atol=1e-4)
    fitted = model.set_params(**EXACT).fit(FEATURES, D)
    loss = fitted._rows(D)

    def total(coef: Any, intercept: Any) -> float:
        shares = torch.from_numpy(softmax(FEATURES @ coef + intercept))
        return float(loss(shares).mean()) + 0.25 / len(D) * float((coef**2).sum())

    is_minimum(total, fitted.coef_, fitted.intercept_)


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
