"""LDL-HR and LDLM: their losses by hand, their gradients, their optima, and what they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import D, X, softmax

from snefy_ldl.learners import LDLHR, LDLM, SABFGS
from snefy_ldl.learners.linear import ROUNDING

P = softmax(np.random.default_rng(0).normal(size=(len(D), 4)))
MODELS = [LDLHR(0.7, 2.0, 0.1), LDLM(0.7, 2.0, 0.1)]
models = pytest.mark.parametrize("model", MODELS, ids=["LDLHR", "LDLM"])


def by_hand(model: Any, p: Any, d: Any) -> float:
    y = int(np.argmax(d))
    others = [j for j in range(4) if j != y]
    short = max(0.0, 1.0 - (p[y] - max(p[j] for j in others)) / 0.1)
    first = sum(abs(p[j] - (j == y)) for j in range(4))
    if isinstance(model, LDLM):
        _, second, third, _ = sorted(d, reverse=True)
        hinges = sum(max(0.0, 1.0 - (p[y] - p[j]) / 0.1) for j in others)
        rest = max(0.0, sum(abs(p[j] - d[j]) for j in others) - (second - third))
        return float(max(0.0, first - 0.1) + 0.7 * hinges + 2.0 * rest)
    return float(first + 0.7 * short + 2.0 * sum(abs(p[j] - d[j]) for j in others))


@models
def test_losses_by_hand(model: Any) -> None:
    rows = model._rows(D)(torch.from_numpy(P)).numpy()
    np.testing.assert_allclose(rows, [by_hand(model, p, d) for p, d in zip(P, D)], atol=30 * ROUNDING)


@models
def test_gradients_agree_with_differences(model: Any) -> None:
    rows = model._rows(D[:5])
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 4))).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: rows(torch.softmax(z, dim=1)).sum(), logits, eps=1e-7, atol=1e-4)


@models
def test_a_fit_is_a_minimum_of_its_objective(model: Any) -> None:
    features = (X[:, :2] - X[:, :2].mean(axis=0)) / X[:, :2].std(axis=0)
    fitted = model.set_params(l2=0.5, standardize=False, max_iter=3000, tol=1e-7).fit(features, D)
    rows = fitted._rows(D)

    def total(coef: Any, intercept: Any) -> float:
        shares = torch.from_numpy(softmax(features @ coef + intercept))
        return float(rows(shares).mean()) + 0.25 / len(D) * float((coef**2).sum())

    best = total(fitted.coef_, fitted.intercept_)
    for seed in range(20):
        random = np.random.default_rng(seed)
        step = 0.05 * random.normal(size=(3, 4))
        assert total(fitted.coef_ + step[:2], fitted.intercept_ + step[2]) > best - 1e-6


def test_two_labels_have_a_third_share_of_zero() -> None:
    rows = LDLM(alpha=0.0, beta=1.0, margin=0.05)._rows(np.array([[0.7, 0.3]]))
    near = rows(torch.tensor([[0.9, 0.1]], dtype=torch.float64))  # the rest is off by 0.2, and has room of 0.3
    assert float(near) == pytest.approx(0.2 - 0.05, abs=5 * ROUNDING)


@pytest.mark.parametrize("learner", [LDLHR, LDLM])
def test_a_few_rows_of_vast_loss_do_not_decide_the_largest_label(learner: Any) -> None:
    # a line in the log-ratio, and far rows of the other sign that a KL fit must follow
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 1))
    share = np.where(x[:, 0] > 0, 0.55, 0.45)
    far = np.abs(x[:, 0]) > 1.8
    share = np.where(far, np.where(x[:, 0] > 0, 1e-4, 1 - 1e-4), share)
    labels = np.stack([share, 1 - share], axis=1)
    near, right = ~far, labels.argmax(axis=1)
    plain = SABFGS(l2=1e-3).fit(x, labels).predict(x).argmax(axis=1)
    model = learner(l2=1e-3, alpha=1.0).fit(x, labels).predict(x).argmax(axis=1)
    assert (model == right)[near].mean() > 0.9 > (plain == right)[near].mean()
