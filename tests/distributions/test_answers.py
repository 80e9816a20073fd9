"""Every answer of both distributions against quadrature (two and three labels) and draws (more), over their ranges.

Concentrations run from .01 to 1e5, shares down to 1e-12 and less. Quadrature breaks a stick: the logits of
``ℓ_1 / (ℓ_1 + … + ℓ_L)``, ``ℓ_2 / (ℓ_2 + … + ℓ_L)``, ... are coordinates in which every density here is smooth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from snefy_ldl import LogRatioSimplex, SimplexDistribution, SnefySimplex
from snefy_ldl.distributions.logratio import Mixture

Build = Callable[..., SnefySimplex]


def log_ratios(n_labels: int, location: float, width: float, members: int = 2, seed: int = 0) -> LogRatioSimplex:
    """Members of three components each, their log-ratios around ``location`` and ``width`` wide."""
    random, p = np.random.default_rng(seed), n_labels - 1
    parts = (
        np.log(random.dirichlet(np.ones(3 * members), 1)).reshape(1, members, 3),
        location * np.linspace(1.0, -0.5, p) + width * random.normal(size=(1, members, p)),
        width * (np.eye(p) + 0.3 * random.normal(size=(1, members, p, p))),
        random.normal(size=(members, 3, p)),
        np.log(random.uniform(0.5, 1.2, (members, 3))),
    )
    return LogRatioSimplex(Mixture(*(torch.as_tensor(part) for part in parts)))


def cases(snefy: Build, cancelling: Build) -> dict[str, Callable[[int], SimplexDistribution]]:
    """How to build each kind of distribution, with one row and the wanted number of labels."""

    def votes(n_labels: int) -> Tensor:
        return torch.arange(1.0, n_labels + 1.0).double() % 4.0

    def whole(n_labels: int) -> list[list[int]]:
        return [[0, n_labels], *([r] for r in range(1, n_labels))]

    one: dict[str, Any] = {"batch": (1,)}
    kinds: dict[str, Callable[[int], SimplexDistribution]] = {
        "one Dirichlet": lambda n: snefy(n, n=1, m=1, seed=1, **one),
        "signed": lambda n: snefy(n, seed=2, **one),
        "cancelling": lambda n: cancelling(n)[:1],
        "members": lambda n: snefy(n, members=3, n=3, seed=4, **one),
        "votes": lambda n: snefy(n, seed=3, **one).posterior(votes(n)),
        "members, votes": lambda n: snefy(n, members=2, n=3, **one).posterior(votes(n)),
        "amalgamated": lambda n: snefy(n + 1, members=2, n=3, **one).amalgamate(whole(n)),
        "amalgamated, votes": lambda n: snefy(n + 1, **one).posterior(votes(n + 1)).amalgamate(whole(n)),
        "subcomposition": lambda n: snefy(n + 2, seed=6, **one).subcomposition(range(1, n + 1)),
        "listed": lambda n: SnefySimplex.from_mixture(*_listed(snefy(n, seed=9, **one))),
    }
    for c in (0.01, 0.3, 100.0, 1e4, 1e5):
        kinds[f"concentration {c:g}"] = lambda n, c=c: snefy(n, n=3, concentration=(c, 1.1 * c), **one)
    kinds["small next to large"] = lambda n: snefy(n, n=3, concentration=(0.02, 400.0), seed=5, **one)
    for location, width in ((0.0, 1.0), (0.0, 0.01), (27.0, 0.5), (5.0, 3.0)):
        kinds[f"log-ratios {location:g} {width:g}"] = lambda n, at=location, w=width: log_ratios(n, at, w)
    return kinds


def _listed(dist: SnefySimplex) -> tuple[Tensor, Tensor]:
    return dist.weights(), dist.concentration


KINDS = list(cases(lambda: None, lambda: None))  # type: ignore[arg-type, return-value]


class Sticks:
    """Points of the simplex by their logarithms (T, L), and the probability at each (T,)."""

    def __init__(self, dist: SimplexDistribution, points: int) -> None:
        draws = dist.draw_logs(2000, torch.Generator().manual_seed(0))[:, 0]
        u = torch.linspace(-6.0, 6.0, points, dtype=torch.float64)
        axes, steps = [], []
        for k in range(dist.n_labels - 1):  # finest in the middle, wide enough for tails like e^(.01 z)
            z = draws[:, k] - draws[:, k + 1 :].logsumexp(1)
            axes.append(z.median() + z.std() * u.sinh() / 3.0)
            steps.append(z.std() * u.cosh() / 3.0 * (u[1] - u[0]))
        z = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        here, left = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z).cumsum(1)
        before = torch.cat([torch.zeros(len(z), 1).double(), left[:, :-1]], 1)
        self.logs = torch.cat([here + before, left[:, -1:]], 1)
        # dℓ_k = t_k (1 - t_k) left dz, so that the Jacobian is the product of all shares
        log_mass = dist.rows.log_prob(self.logs[:, None])[:, 0] + self.logs.sum(1)
        step = torch.cartesian_prod(*steps).reshape(len(z), -1).prod(1)
        self.mass = log_mass.exp() * step

    def expect(self, values: Tensor) -> Tensor:
        """Mean of values (T, ...)."""
        return torch.tensordot(self.mass, values, 1)


@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_equal_quadrature(kind: str, n_labels: int, snefy: Build, cancelling: Build) -> None:
    dist = cases(snefy, cancelling)[kind](n_labels)
    rule = Sticks(dist, 1601 if n_labels == 2 else 481)
    logs, ell = rule.logs, rule.logs.exp()
    by_draws = float(dist.mean_error.max()) > 0.0

    def close(name: str, answer: Tensor, expected: Tensor, tolerance: float = 1e-6, error: Any = 0.0) -> None:
        size = expected.abs() if answer.dim() else expected.abs().max()
        allowed = tolerance * (1.0 + size) + 7.0 * error + (3e-3 * float(expected.abs().max()) if by_draws else 0.0)
        gap = (answer - expected).abs()
        assert bool((gap <= allowed).all()), f"{name}: {answer} and not {expected}"

    assert abs(float(rule.mass.sum()) - 1.0) < 1e-6
    mean = rule.expect(ell)
    close("mean", dist.mean[0], mean, error=dist.mean_error[0])
    covariance = rule.expect(ell[:, :, None] * ell[:, None]) - mean[:, None] * mean
    close("variance", dist.variance[0], covariance.diagonal(), error=dist.variance_error[0])
    close("covariance", dist.covariance_matrix[0], covariance, error=dist.variance_error.max())
    log_mean = rule.expect(logs)
    close("expected log", dist.expected_log()[0], log_mean)
    log_covariance = rule.expect((logs - log_mean)[:, :, None] * (logs - log_mean)[:, None])
    if not by_draws:  # quasi-random draws answer it roughly
        close("log covariance", dist.covariance_log()[0], log_covariance, 1e-5)
    entropy = rule.expect(-(ell * logs).sum(1))
    close("entropy of shares", dist.expected_entropy()[0], entropy, 5e-3 if by_draws else 1e-6)
    close(
        "vote information",
        dist.vote_information()[0],
        torch.special.entr(mean).sum() - entropy,
        5e-3 if by_draws else 1e-6,
    )
    differential = -rule.expect(dist.rows.log_prob(logs[:, None])[:, 0].clamp(-1e3, 1e5))
    estimate, error = dist.entropy(2000, generator=torch.Generator().manual_seed(1), return_std_error=True)
    # 40 such comparisons at 5.5 standard errors: a false alarm in 600,000 runs
    assert abs(float(estimate - differential)) < 5.5 * float(error) + 1e-6 * (1.0 + abs(float(differential)))
    levels = torch.tensor([1e-4, 0.05, 0.5, 0.95, 0.9999]).double()
    quantiles, errors = dist.quantiles(levels)[0], dist.quantiles_error(levels)[0]
    for r in range(n_labels):
        for level, at, error in zip(levels, quantiles[r], errors[r]):
            share = dist.marginal(r)
            assert abs(float(share.cdf(at[None]) - level)) < (6e-3 if by_draws else 1e-7) or not 1e-290 < at < 1 - 1e-6
            apart = abs(float(share.icdf(level) - at))
            assert apart <= (6.0 * float(error) + 1e-3 * float(at) if by_draws else 1e-6)
    if dist.supports("posterior"):
        votes = torch.tensor([2.0, *[1.0] * (n_labels - 1)]).double()
        weight = (logs * votes).sum(1).exp()
        coefficient = math.lgamma(float(votes.sum()) + 1.0) - math.lgamma(3.0)
        chance = rule.expect(weight)
        close("votes", (dist.log_prob_counts(votes)[0] - coefficient).exp(), chance, 1e-9 if chance < 1e-3 else 1e-6)
        if chance > 1e-12:
            close("posterior", dist.posterior(votes).mean[0], rule.expect(weight[:, None] * ell) / chance, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_answers_equal_draws(kind: str, snefy: Build, cancelling: Build) -> None:
    """Some 40 comparisons a kind at 5.5 standard errors, 750 in all: a false alarm in 34,000 runs."""
    n, n_labels = 8000, 5
    dist = cases(snefy, cancelling)[kind](n_labels)
    logs = dist.draw_logs(n, torch.Generator().manual_seed(1))[:, 0]
    draws = logs.exp()

    def agrees(values: Tensor, expected: Tensor, error: Any = 0.0) -> None:
        allowed = 5.5 * (values.std(0) / math.sqrt(n) + error) + 1e-12 + 1e-6 * expected.abs()
        assert bool(((values.mean(0) - expected).abs() <= allowed).all()), kind

    torch.testing.assert_close(draws.sum(-1), torch.ones(n).double())
    agrees(draws, dist.mean[0], dist.mean_error[0])
    gap = draws - dist.mean[0]
    agrees(gap[:, :, None] * gap[:, None], dist.covariance_matrix[0], 3.0 * dist.variance_error.max())
    agrees(logs, dist.expected_log()[0], 1e-2 if float(dist.mean_error.max()) else 0.0)
    for ratio in (0.5, 1.0, 3.0):
        for j, k in ((0, 1), (1, 0)):
            above = (logs[:, j] > logs[:, k] + math.log(ratio)).double()
            agrees(above, dist.prob_greater(j, k, ratio)[0], 1.0 / n)
    for below in ([1], list(range(1, n_labels))):
        ratio, contrast = dist.log_ratio(0, below), logs[:, 0] - logs[:, below].mean(-1)
        agrees(contrast, ratio.mean[0])
        agrees((contrast - ratio.mean[0]) ** 2, ratio.variance[0])
    chance = dist.log_ratio(0, 1).cdf((logs[:, 0] - logs[:, 1])[:, None])[:, 0]
    if bool(((chance > 1e-12) & (chance < 1.0 - 1e-12)).all()):
        assert scipy.stats.kstest(chance.numpy(), "uniform").pvalue > 1e-7
    for r in (0, n_labels - 1):  # Kolmogorov-Smirnov with p-values above 1e-7
        chance = dist.marginal(r).cdf(draws[:, r, None])[:, 0]
        inside = (draws[:, r] > 1e-290) & (draws[:, r] < 1.0 - 1e-9)
        if bool(inside.all()):  # shares that underflow share a level
            assert scipy.stats.kstest(chance.numpy(), "uniform").pvalue > 1e-7
    event, error = dist.probability(lambda shares: shares.max(-1).values > 0.6, n=n)
    agrees((draws.max(-1).values > 0.6).double(), event[0], error[0])


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [2, 5])
def test_tails_of_log_ratios_agree_with_many_draws(degrees: int) -> None:
    """Log-ratios with tails like t: figures from one set of draws agree with each other and with 400,000 draws.

    The 10 quantiles and 5 variances lie within 6 of their stated errors and those of the draws.
    """
    random, n_components = np.random.default_rng(degrees), 12
    precision = scipy.stats.chi2(degrees).ppf((np.arange(n_components) + 0.5) / n_components) / degrees
    one = log_ratios(5, 1.0, 0.4, members=1)
    mixture = replace(
        one.rows.mixture,
        log_weights=torch.full((1, 1, n_components), -math.log(n_components)).double(),
        centres=torch.as_tensor(0.1 * random.normal(size=(1, n_components, 4))),
        log_widths=torch.as_tensor(-0.5 * np.log(precision))[None],
    )
    dist = LogRatioSimplex(mixture)
    draws = dist.sample((400_000,), torch.Generator().manual_seed(0))[:, 0]
    n = len(draws)
    levels = torch.tensor([1e-4, 1e-3, 0.01, 0.05, 0.5, 0.95, 0.99, 0.999, 0.9999]).double()
    quantiles, errors = dist.quantiles(levels)[0], dist.quantiles_error(levels)[0]
    for r in range(5):
        share = dist.marginal(r)
        smooth = torch.stack([share.icdf(level)[0] for level in levels])
        assert bool(((smooth - quantiles[r]).abs() <= 6.0 * errors[r] + 1e-3 * quantiles[r]).all())
        for level, at, error in zip(levels, quantiles[r], errors[r]):
            below = float((draws[:, r] <= at).double().mean())
            slope = float(share.log_prob(at[None]).exp())
            assert abs(below - float(level)) <= 6.0 * (slope * float(error) + math.sqrt(level * (1 - level) / n)) + 1e-4
    spread = (draws - draws.mean(0)).square()
    off = (dist.variance[0] - spread.mean(0)).abs()
    assert bool((off <= 6.0 * (dist.variance_error[0] + spread.std(0) / math.sqrt(n))).all())
    off = (dist.mean[0] - draws.mean(0)).abs()
    assert bool((off <= 6.0 * (dist.mean_error[0] + draws.std(0) / math.sqrt(n))).all())
