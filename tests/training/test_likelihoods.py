"""Each likelihood and its written-out gradient: against scipy, plain autograd, quadrature and brute-force sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from torch import Tensor

from snefy_ldl import SnefySimplex
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet, prototype_init
from snefy_ldl.training.objectives import (
    INTERVAL_STEP,
    Counts,
    Gaps,
    Likelihood,
    Objective,
    PairKernel,
    SharePass,
    Shares,
    VoteFactors,
    VotePass,
    rising_series,
)

NAN = np.nan


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


def some_exponents(shape: tuple[int, ...], top: float, seed: int = 0) -> Tensor:
    """Log-uniform from the smallest allowed to ``top``."""
    random = np.random.default_rng(seed)
    return torch.as_tensor(np.exp(random.uniform(np.log(5e-3), np.log(top), shape)) - 0.495)


def some_votes(rows: int, n_labels: int, most: int, members: int = 1, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.full(n_labels, 0.4), size=members * rows)
    totals = random.integers(1, most, members * rows, endpoint=True)
    counts = np.array([random.multinomial(n, p) for n, p in zip(totals, shares)]).astype(float)
    return torch.as_tensor(counts).reshape(members, rows, n_labels)


def coefficient(counts: Tensor) -> Tensor:
    return torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)


# -- the table of pairs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 64, 6), (3, 5, 3), (1, 1, 4), (2, 2, 2), (1, 7, 150)])
@pytest.mark.parametrize(("top", "dtype"), [(3.0, torch.float64), (5e4, torch.float64), (5e4, torch.float32)])
def test_the_table_is_scipys_and_its_gradient_autograds(shape, top, dtype):
    exponents = some_exponents(shape, top).requires_grad_()
    kernel = PairKernel(exponents.detach(), dtype)
    alpha = 1.0 + exponents[:, :, None] + exponents[:, None]
    log_beta = torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))
    half = 0.5 * log_beta.diagonal(dim1=1, dim2=2).detach()
    digits = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(kernel.g, half, rtol=1e-9, atol=2e-5 if dtype == torch.float32 else 1e-7)
    expected = (log_beta.detach() - half[:, :, None] - half[:, None]).exp()
    torch.testing.assert_close(kernel.ratio.double(), expected, **digits)
    if dtype == torch.float64 and top < 1e4:
        gradient = draw(shape[0], shape[1], shape[1]) + draw(shape[0], shape[1], shape[1]).mT
        (wanted,) = torch.autograd.grad((log_beta * gradient).sum(), exponents)
        ours = kernel.pull_back(gradient)
        torch.testing.assert_close(ours, wanted, rtol=1e-7, atol=1e-7)


# -- passes against plain lines --------------------------------------------------------------------------------------


def plain_votes(output: Tensor, exponents: Tensor, readout: Tensor, factors: VoteFactors, balanced: bool) -> Tensor:
    """The log probability of votes by autograd alone, without the part that no network changes."""
    alpha = 1.0 + exponents[:, :, None] + exponents[:, None]  # (K, n, n, L)
    log_b = torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))
    g = 0.5 * log_b.diagonal(dim1=1, dim2=2)[:, None]  # (K, 1, n)
    scale = (output if balanced else output + g) - g
    log_terms = scale[..., None] + scale[..., None, :] + log_b[:, None]  # (K, B, n, n)
    beta = alpha @ factors.groups.T  # (K, n, n, Q)
    rising = torch.zeros_like(log_terms)
    for t, sign in enumerate(factors.sign):
        m = torch.tensor(factors.distinct)[factors.place[..., t, None, None]].double()
        b = torch.stack([one.movedim(-1, 0)[at] for one, at in zip(beta, factors.column[..., t])])
        rising = rising + sign * (torch.lgamma(b + m) - torch.lgamma(b) - torch.lgamma(m.clamp_min(1.0)))
    gram = (readout.mT @ readout)[:, None]

    def log_sum(terms: Tensor) -> Tensor:
        top = terms.detach().amax((-1, -2), keepdim=True)
        return (gram * (terms - top).exp()).sum((-1, -2)).log() + top[..., 0, 0]

    return log_sum(log_terms + rising) - log_sum(log_terms)


def some_factors(kind: str, most: int, rows: int = 9, members: int = 2, seed: int = 3) -> VoteFactors:
    counts = some_votes(rows, 4, most, members, seed)
    counts[:, 0, 0] = float(most)
    if kind == "gaps":
        counts[0, ::3, 1] = torch.nan
        counts[1, ::2, 0] = torch.nan
    return VoteFactors.of(counts)


@pytest.mark.parametrize("kind", ["plain", "gaps"])
@pytest.mark.parametrize(("most", "n"), [(1, 7), (110, 12), (5000, 12), (10**9, 6)])
@pytest.mark.parametrize("balanced", [True, False])
def test_votes_equal_plain_lines(kind: str, most: int, n: int, balanced: bool) -> None:
    factors = some_factors(kind, most)
    output, readout = draw(2, 9, n), draw(2, 3, n, seed=1)
    exponents = some_exponents((2, n, 4), 150.0, seed=2)
    parts = [part.requires_grad_() for part in (output, exponents, readout)]
    exact = plain_votes(*parts, factors, balanced)
    slope = torch.linspace(-1.0, 1.0, 18, dtype=torch.float64).reshape(2, 9)
    wanted = torch.autograd.grad(exact, parts, slope)
    for dtype in [torch.float64, torch.float32][: 2 if most <= 5000 else 1]:
        digits = 1e-4 if dtype == torch.float32 or most > 10**6 else 1e-7
        given = [output.detach().to(dtype), exponents.detach(), readout.detach().to(dtype)]
        inputs = [part.requires_grad_() for part in given]
        log_p = Likelihood.apply(VotePass(factors, balanced), *inputs)
        torch.testing.assert_close(log_p, exact.detach(), rtol=1e-5 if digits > 1e-7 else 1e-9, atol=10 * digits)
        for ours, other in zip(torch.autograd.grad(log_p, inputs, slope), wanted):
            assert float((ours - other).abs().max() / other.abs().max()) < digits


@pytest.mark.parametrize("balanced", [True, False])
def test_shares_equal_the_distribution_and_its_gradient(balanced: bool) -> None:
    exponents, output, readout = some_exponents((3, 5, 4), 20.0), draw(3, 6, 5), draw(3, 2, 5, seed=1)
    logs = torch.log_softmax(draw(3, 6, 4, seed=2), -1)
    parts = [part.requires_grad_() for part in (output, exponents, readout)]
    ours = Likelihood.apply(SharePass(logs, balanced), *parts)
    alpha = 1.0 + 2.0 * exponents
    g = 0.5 * (torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1)))[:, None]
    scale = output if balanced else output + g
    plain = torch.stack([SnefySimplex(exponents[k], readout[k], scale[k]).log_prob(logs[k].exp()) for k in range(3)])
    torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)
    slope = draw(3, 6, seed=3)
    found = torch.autograd.grad(ours, parts, slope), torch.autograd.grad(plain, parts, slope)
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("most", [1, 2, 5, 130])
@pytest.mark.parametrize(("low", "high"), [(0, 4), (0, 14), (3, 30)])
def test_few_functions_make_up_all_rising_factorials(most: int, low: int, high: int) -> None:
    series = rising_series(low, high, tuple(range(most + 1)))
    ends, m = np.array([low, high]) * INTERVAL_STEP, np.arange(1, most + 1)[:, None]
    beta = np.expm1(np.linspace(ends[0] + 1e-3, ends[1], 60))
    x = (2.0 * np.log1p(beta) / INTERVAL_STEP - (high + low)) / (high - low)
    both = np.polynomial.chebyshev.chebval(x, series.basis.double().numpy().T)
    functions, slopes = both[: len(both) // 2], both[len(both) // 2 :]
    values = series.constant.numpy()[1:, None] + np.log(beta) + series.value[1:, 1:].double().numpy() @ functions
    exact = gammaln(beta + m) - gammaln(beta) - gammaln(m)
    np.testing.assert_allclose(values, exact, atol=3e-7 * max(1.0, np.abs(exact + gammaln(m)).max()))
    change = 1.0 / beta + series.value[1:, 1:].double().numpy() @ slopes / (1.0 + beta)
    exact = digamma(beta + m) - digamma(beta)
    np.testing.assert_allclose(change, exact, rtol=1e-4, atol=2e-6 * most)


# -- objectives against the net's own distribution -------------------------------------------------------------------


def a_net(form: str = "log", balanced: bool = True, hidden: tuple[int, ...] = (6,), mixed: bool = True) -> SnefyNet:
    """Two members of four labels, with signed readouts, scaled features and a background."""
    net = SnefyNet(StackedMLP(2, 3, hidden), 4, 5, 3, exponent_form=form, balanced=balanced).double()
    D = torch.as_tensor(np.random.default_rng(0).dirichlet(np.full(4, 3.0), 30))
    for k in range(2):
        prototype_init(net, k, D, torch.Generator().manual_seed(k))
        net.background[k] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        net.backbone.scaler.limit[k] = 3.0
    with torch.no_grad():
        net.readout.copy_(draw(*net.readout.shape))
        net.head_weight.mul_(20.0)
    if mixed:
        net.log_odds.copy_(torch.tensor([-2.0, -1.0]))
    return net


def an_objective(
    kind: str, net: SnefyNet, rows: int = 20
) -> tuple[Objective, Callable[[SnefySimplex, Tensor], Tensor]]:
    """Labels of some rows, and what the predicted distributions of some of them make of the labels."""
    group = torch.zeros(2, dtype=torch.long)
    D = torch.as_tensor(np.random.default_rng(1).dirichlet(np.ones(4), rows))
    counts = some_votes(rows, 4, 30)[0]
    if kind == "shares":
        return Shares(D.log()[None], net, group), lambda dist, at: dist.log_prob(D[at])
    if kind == "gaps":
        D[::3, 1:3] = NAN
        D[1::3, 0::3] = NAN
        return Gaps([D], net, group), lambda dist, at: dist.log_prob_known(D[at])
    objective = Counts(counts, net)
    return objective, lambda dist, at: dist.log_prob_counts(counts[at]) - objective.left_out[at]


@pytest.mark.parametrize("kind", ["shares", "gaps", "counts"])
@pytest.mark.parametrize(("form", "balanced"), [("log", True), ("log", False), ("clip", True)])
def test_the_net_trains_what_it_predicts(kind: str, form: str, balanced: bool) -> None:
    """Value and gradient of every objective equal those of the predicted distribution, by plain autograd."""
    net, x = a_net(form, balanced), draw(20, 3)
    objective, expected = an_objective(kind, net)
    index = torch.stack([torch.arange(8), torch.arange(8, 16)])
    ours, names = objective.log_prob(net, x[index], index), dict(net.named_parameters())
    gradients = torch.autograd.grad(ours.sum(), list(names.values()))
    for k in range(2):
        alone = net.select(slice(k, k + 1))
        plain = expected(alone(x[index[k]]), index[k])
        torch.testing.assert_close(ours[k].detach(), plain.detach(), rtol=1e-7, atol=1e-7)
        if kind != "gaps":  # whose density by the distribution has no gradient
            own = torch.autograd.grad(plain.sum(), list(alone.parameters()))
            for mine, other in zip(gradients, own):
                torch.testing.assert_close(mine[k], other[0], rtol=1e-5, atol=1e-6)
    bare = objective.without_background()
    mixed = net.mix(bare.log_prob(net, x[index], index), objective.background_of(index).to(ours.dtype))
    torch.testing.assert_close(mixed, ours, rtol=1e-9, atol=1e-9)


def test_gradient_with_gaps_by_differences() -> None:
    net, x = a_net(), draw(20, 3)
    objective, index = an_objective("gaps", net)[0], torch.arange(6).expand(2, -1)
    value = lambda: objective.log_prob(net, x[index], index).sum()  # noqa: E731
    (gradient,) = torch.autograd.grad(value(), net.raw_exponents)
    where, step, values = (1, 2, 3), 1e-6, []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            net.raw_exponents[where] += sign * step
            values.append(float(value()))
            net.raw_exponents[where] -= sign * step
    assert float(gradient[where]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


# -- what is missing, by quadrature ----------------------------------------------------------------------------------


def log_prob_of(dist: SnefySimplex, factors: VoteFactors) -> Tensor:
    value = VotePass(factors).forward(dist.log_scale[:, 0][None], dist.exponents, dist.readout)
    return (value + factors.log_gammas)[0]


@pytest.mark.parametrize("counts", [[4.0, 1.0, NAN], [NAN, 0.0, 7.0], [2.0, NAN, 2.0]])
def test_a_label_that_was_not_on_offer_by_quadrature(
    counts: list[float], snefy: Callable, quadrature: Callable
) -> None:
    dist, k = snefy(3), torch.tensor(counts, dtype=torch.float64)
    seen = ~torch.isnan(k)

    def likelihood(points: Tensor) -> Tensor:
        among = points[:, seen] / points[:, seen].sum(-1, keepdim=True)
        return (k[seen] * among.log()).sum(-1).exp()

    ours = log_prob_of(dist, VoteFactors.of(k.expand(1, 2, 3)))
    torch.testing.assert_close(ours.exp(), quadrature(3).expectation(dist)(likelihood), rtol=1e-6, atol=1e-9)
