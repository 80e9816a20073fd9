"""Learners of 2018 to 2026: losses against integrals and other libraries, fits against objectives written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import D, X, softmax
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import expit, rel_entr

from snefy_ldl.learners import (
    BCPNN,
    CDL,
    LDLDPA,
    LDLDPM,
    LDLDVS,
    LDLLRR,
    LDLSCL,
    RKNNLDL,
    SLDL,
    TLRLDL,
    DeltaLDL,
    EvidentialLDL,
)
from snefy_ldl.learners.losses import RANKING_WEIGHTS
from snefy_ldl.learners.neural import evidential_loss
from snefy_ldl.learners.recent import low_rank_fit

P = softmax(np.random.default_rng(0).normal(size=(len(D), 4)))
FEATURES = (X[:, :2] - X[:, :2].mean(axis=0)) / X[:, :2].std(axis=0)
EXACT = {"l2": 0.5, "standardize": False, "max_iter": 3000, "tol": 1e-8}


def kl(P: Any, D: Any = D) -> Any:
    return rel_entr(D, P).sum(axis=1)


def ridge(*weights: Any) -> float:
    """``λ/(2N) ‖w‖²`` with the λ of EXACT."""
    return 0.25 / len(D) * sum(float(np.square(w).sum()) for w in weights)


def is_minimum(total: Callable[..., float], *weights: Any, slack: float = 1e-6, step: float = 0.05) -> None:
    """No step into any of 20 random directions lowers an objective."""
    best = total(*weights)
    for seed in range(20):
        random = np.random.default_rng(seed)
        steps = [step * random.normal(size=np.shape(w)) for w in weights]
        assert total(*[w + step for w, step in zip(weights, steps)]) > best - slack


LOSSES = [DeltaLDL(2.0), LDLLRR(0.3, 7.0), LDLDPA(0.1, 2.0), LDLDVS(0.5, 10.0)]


@pytest.mark.parametrize("model", LOSSES, ids=["delta", "ranking", "percentile", "divisiveness"])
def test_linear_learners_minimise_their_loss(model: Any) -> None:
    fitted = model.set_params(**EXACT).fit(FEATURES, D)
    rows = fitted._rows(D[:5])
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 4))).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: rows(torch.log_softmax(z, dim=1)).sum(), logits, eps=1e-7, atol=1e-4)
    loss = fitted._rows(D)

    def total(coef: Any, intercept: Any) -> float:
        shares = torch.from_numpy(np.log(softmax(FEATURES @ coef + intercept)))
        return float(loss(shares).mean()) + ridge(coef)

    is_minimum(total, fitted.coef_, fitted.intercept_)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 8.0])
def test_delta_ldl_counts_rows_by_the_integral_of_its_sigmoid(sharpness: float) -> None:
    size = kl(np.full(D.shape, 0.25)).mean()
    rows = DeltaLDL(sharpness)._rows(D)(torch.from_numpy(np.log(P))).numpy()
    integral = lambda miss: quad(lambda t: expit(sharpness / size * (miss - t)), 0, size)[0]  # noqa: E731
    slope = (integral(1e-4) - integral(-1e-4)) / 2e-4
    np.testing.assert_allclose(rows[:8], [integral(miss) / slope for miss in kl(P)[:8]], rtol=1e-4)


def test_divisiveness_is_a_mean_weighted_by_exponentials() -> None:
    """The formula as python-ldl writes it: shares weighted by e^(-k share), row by row and pair by pair."""
    pairs = [[i, j] for i in range(4) for j in range(4) if i != j]

    def divided(d: Any, pair: Any) -> float:
        return float(np.average(d[pair], weights=np.exp(-10.0 * d[pair])))

    gaps = [[abs(divided(d, pair) - divided(p, pair)) for pair in pairs] for d, p in zip(D[:9], P)]
    rows = LDLDVS(0.7)._rows(D[:9])(torch.from_numpy(np.log(P[:9]))).numpy()
    np.testing.assert_allclose(rows, kl(P[:9], D[:9]) + 0.7 * np.mean(gaps, axis=1), atol=1e-4)


def test_low_rank_labels_minimise_their_objective() -> None:
    """From three starts, L-BFGS over W and the whole matrix O finds nothing better."""
    X, labels = np.column_stack([FEATURES[:25], np.ones(25)]), D[:25]
    marked = (np.argsort(np.argsort(-labels, axis=1), axis=1) < 2).astype(float)
    given = [torch.from_numpy(table) for table in (X, labels, marked)]

    def total(W: Any, O: Any) -> Any:  # noqa: E741 - the paper's letter
        auxiliary = O.T @ given[0] @ W
        fits = (given[0] @ W - given[1]).square().sum() + (auxiliary - given[2]).square().sum()
        return 0.5 * fits + 0.3 * torch.linalg.svdvals(auxiliary).sum() + 0.2 * (W.square().sum() + O.square().sum())

    W, A, _ = low_rank_fit(X, labels, marked, 0.3, 0.2, 3000, 1e-12)
    ours = float(total(torch.from_numpy(W), torch.from_numpy(X @ W @ A)))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        starts = [torch.randn(size, generator=generator).double().mul(0.1) for size in ((3, 4), (25, 25))]
        weights = [start.requires_grad_() for start in starts]
        search = torch.optim.LBFGS(weights, max_iter=2000, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

        def loss(weights: Any = weights, search: Any = search) -> Any:
            search.zero_grad()
            value = total(*weights)
            value.backward()
            return value

        search.step(loss)
        assert ours < float(total(*weights).detach()) + 1e-6


def test_low_rank_labels_predict_distributions_of_their_linear_model() -> None:
    model = TLRLDL(standardize=False, l2=0.1, tol=1e-10).fit(FEATURES, D)
    raw = np.maximum(FEATURES @ model.coef_ + model.intercept_, D.min() / 2.0)
    np.testing.assert_allclose(model.predict(FEATURES), raw / raw.sum(1, keepdims=True))
    ridge_alone = TLRLDL(alpha=1e6, standardize=False, l2=0.1).fit(FEATURES, D)  # no auxiliary task survives
    Z = np.column_stack([FEATURES, np.ones(len(D))])
    expected = np.linalg.solve(Z.T @ Z + 2 * 0.5 * 4 * 0.1 * np.eye(3), Z.T @ D)
    np.testing.assert_allclose(np.vstack([ridge_alone.coef_, ridge_alone.intercept_]), expected, atol=1e-3)


def test_background_concentration_is_the_share_that_evidence_leaves() -> None:
    model = CDL(n_hidden=3, random_state=0, **EXACT).fit(FEATURES, D)
    same = EvidentialLDL("mse", n_hidden=3, random_state=0, **EXACT).fit(FEATURES, D)
    alpha = model.predict_concentration(FEATURES)
    np.testing.assert_allclose(alpha, same.predict_concentration(FEATURES))
    total = alpha.sum(axis=1)
    # the loss of the authors' code, summed over labels as there
    risk = ((D - alpha / total[:, None]) ** 2).sum(1) + (alpha * (total[:, None] - alpha)).sum(1) / (
        total**2 * (total + 1.0)
    )
    ours = evidential_loss(torch.from_numpy(alpha), torch.from_numpy(D), "mse").numpy()
    np.testing.assert_allclose(ours, 2.0 * risk)  # times half the number of labels


def test_correlations_with_clusters_are_a_minimum() -> None:
    model = LDLSCL(3, alpha=0.3, beta=0.01, random_state=0, **EXACT).fit(FEATURES, D)
    logs = FEATURES @ model.correlation_coef_ + model.correlation_intercept_
    C = np.exp(np.clip(logs, *model.correlation_range_))

    def total(coef: Any, intercept: Any, cluster: Any) -> float:
        P = softmax(FEATURES @ coef + intercept + C @ cluster)
        pull = (C * ((P[:, None] - model.centres_) ** 2).sum(axis=2)).sum(axis=1) / 12
        return float((kl(P) + 0.3 * pull).mean() + ridge(coef, cluster))

    is_minimum(total, model.coef_, model.intercept_, model.cluster_coef_)


def test_a_conditional_network_is_a_minimum() -> None:
    model = BCPNN(n_hidden=3, random_state=0, **EXACT).fit(FEATURES, D)

    def total(first: Any, shift: Any, label: Any, output: Any) -> float:
        P = softmax(expit((FEATURES @ first + shift)[:, None] + label) @ output)
        upper = np.sqrt(0.005)
        return float(kl(P).mean() + ridge(np.sqrt(0.5) * first, upper * label, upper * output))

    is_minimum(total, model.coef_, model.intercept_, model.label_input_, model.output_coef_, slack=1e-5)


def neighbours_of(k: int) -> Any:
    gaps = ((FEATURES[:, None] - FEATURES) ** 2).sum(axis=2)
    np.fill_diagonal(gaps, np.inf)
    return np.argsort(gaps, axis=1)[:, :k]


def test_rknn_ldl_is_a_minimum_and_predicts_by_its_formula() -> None:
    model = RKNNLDL(n_neighbors=4, alpha=0.3, **EXACT).fit(FEATURES, D)
    near = neighbours_of(4)

    def total(coef: Any, intercept: Any, logits: Any) -> float:
        rho = expit(logits)[near].mean(axis=1)[:, None]
        P = rho * D[near].mean(axis=1) + (1 - rho) * softmax(FEATURES @ coef + intercept)
        error = ((P - D) ** 2).sum() + 0.3 * ((P - P[near].mean(axis=1)) ** 2).sum()
        return float(2.0 * error / len(D) + ridge(coef, np.sqrt(0.02) * logits))

    trust = np.log(model.trust_ / (1 - model.trust_))
    is_minimum(total, model.coef_, model.intercept_, trust, slack=1e-5)
    point = np.array([[0.1, -0.2]])
    chosen = np.argsort(((FEATURES - point) ** 2).sum(axis=1))[:4]
    rho = model.trust_[chosen].mean()
    expected = rho * D[chosen].mean(axis=0) + (1 - rho) * softmax(point @ model.coef_ + model.intercept_)[0]
    np.testing.assert_allclose(model.predict(point)[0], expected, atol=1e-9)


@pytest.mark.slow
def test_s_ldl_is_a_minimum_of_its_objective() -> None:
    model = SLDL(n_subtasks=4, n_hidden=3, subtask_weight=0.5, random_state=1, **EXACT).fit(FEATURES, D)
    assert model.subtasks_
    assert all(1 < len(labels) < 4 for labels in model.subtasks_)

    def total(first: Any, shift: Any, heads: Any, last: Any, bias: Any) -> float:
        hidden = expit(FEATURES @ first + shift)
        code = hidden @ heads
        shares = softmax(np.hstack([hidden, np.where(code > 0, code, 0.01 * code)]) @ last + bias)
        value, start = kl(shares).mean(), 0
        for labels in model.subtasks_:
            found = softmax(code[:, start : start + len(labels)])
            start += len(labels)
            whole = D[:, labels].sum(axis=1)
            miss = np.abs(D[:, labels] / whole[:, None] - found).mean(axis=1)
            value += 0.5 * (whole * miss).mean()
        return float(value + ridge(np.sqrt(0.5) * first, np.sqrt(0.015) * heads, np.sqrt(0.015) * last))

    weights = (model.coef_, model.intercept_, model.subtask_coef_, model.output_coef_, model.output_intercept_)
    is_minimum(total, *weights, slack=1e-3)


def test_evidential_losses_are_those_of_dirichlets() -> None:
    alpha = 1.0 + np.random.default_rng(0).gamma(2.0, 5.0, D.shape)
    likelihood = evidential_loss(torch.from_numpy(alpha), torch.from_numpy(D), "likelihood").numpy()
    np.testing.assert_allclose(likelihood, [-stats.dirichlet(a).logpdf(d) for a, d in zip(alpha, D)])
    dists = torch.distributions.Dirichlet(torch.from_numpy(alpha))
    risk = 2.0 * ((torch.from_numpy(D) - dists.mean).square() + dists.variance).sum(1)
    np.testing.assert_allclose(evidential_loss(torch.from_numpy(alpha), torch.from_numpy(D), "mse"), risk)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["likelihood", "mse"])
def test_an_evidential_fit_is_a_minimum_of_its_objective(loss: str) -> None:
    model = EvidentialLDL(loss, n_hidden=3, random_state=0, **EXACT).fit(FEATURES, D)
    likelihood = lambda s: -stats.dirichlet(s * D.mean(axis=0)).logpdf(D.T).sum()  # noqa: E731
    scale = float(minimize_scalar(likelihood, bounds=(1.0, 200.0), method="bounded", options={"xatol": 1e-8}).x)
    factor = 4.0 * scale if loss == "likelihood" else 1.0

    def total(first: Any, shift: Any, second: Any, bias: Any) -> float:
        alpha = 1.0 + np.logaddexp(0.0, expit(FEATURES @ first + shift) @ second + bias)
        value = float(evidential_loss(torch.from_numpy(alpha), torch.from_numpy(D), loss).mean())
        return value + factor * ridge(np.sqrt(0.5) * first, np.sqrt(0.015) * second / scale)

    is_minimum(total, model.coef_, model.intercept_, model.output_coef_, model.output_intercept_, slack=1e-5)


def test_ldl_dpm_is_a_mixture_of_dirichlets_and_a_minimum() -> None:
    model = LDLDPM(n_components=3, strength=20.0, n_rounds=1, random_state=0, **EXACT).fit(FEATURES, D)
    model.weights_ = np.full(3, 1 / 3)  # those of the round that was fitted

    def log_density(coef: Any, intercept: Any, gate: Any, shift: Any) -> Any:
        sizes = np.logaddexp(0.0, FEATURES @ coef + intercept).reshape(len(D), 3, 4)
        alpha = 20.0 * sizes / sizes.sum(axis=2, keepdims=True)
        parts = [[stats.dirichlet(a).pdf(d) for a in row] for row, d in zip(alpha, D)]
        return np.log((softmax(FEATURES @ gate + shift) * parts).sum(axis=1)), alpha

    weights = (model.coef_, model.intercept_, model.gate_coef_, model.gate_intercept_)
    expected, alpha = log_density(*weights)
    np.testing.assert_allclose(model.predict_dist(FEATURES).log_prob(torch.from_numpy(D)), expected, rtol=1e-6)
    mean = (softmax(FEATURES @ weights[2] + weights[3])[:, :, None] * alpha / 20.0).sum(axis=1)
    np.testing.assert_allclose(model.predict(FEATURES), mean, rtol=1e-6)

    def total(coef: Any, intercept: Any, gate: Any, shift: Any) -> float:
        return float(ridge(np.sqrt(80.0) * coef, gate) - log_density(coef, intercept, gate, shift)[0].mean())

    is_minimum(total, *weights, slack=1e-5)


def test_the_weight_of_the_ranking_loss_is_that_with_the_smallest_loss_on_left_out_rows() -> None:
    random = np.random.RandomState(0)
    order, losses = np.random.RandomState(0).permutation(len(D)), []
    for alpha in RANKING_WEIGHTS:
        models = [LDLLRR(alpha).fit(X[np.delete(order, part)], D[np.delete(order, part)]) for part in thirds(len(D))]
        parts = zip(models, thirds(len(D)))
        losses.append(sum(-model.score(X[order[part]], D[order[part]]) for model, part in parts))
    model = LDLLRR()
    assert model._choose(X, D, random) == RANKING_WEIGHTS[int(np.argmin(losses))]
    assert LDLLRR(random_state=0).fit(X[:2], D[:2]).alpha_ == RANKING_WEIGHTS[0]  # too few rows to choose


def thirds(n: int) -> list[Any]:
    return np.array_split(np.arange(n), 3)
