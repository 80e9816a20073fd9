"""The family with a centre: against the plain family, mpmath, draws and quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from laws import centred
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
UNEQUAL = torch.tensor([1e-3, 0.5, 1.0, 0.03], dtype=torch.float64)


def with_centre(law: SnefySimplex, centre: Tensor) -> SnefySimplex:
    return centred(law.exponents, law.readout, law.log_scale, centre)


def simplex_quadrature(n: int = 160, until: float = 18.0) -> tuple[Tensor, Tensor]:
    """Points (T, 3) and weights of a product Gauss rule in logit coordinates of a stick-breaking of the triangle.

    The logit of the first share ends at ``until``.
    """
    nodes, weights = np.polynomial.legendre.leggauss(n)

    def sticks(high: float) -> tuple[Tensor, Tensor]:
        z = torch.as_tensor(-18.0 + (high + 18.0) * (nodes + 1.0) / 2.0)
        step = torch.as_tensor((high + 18.0) / 2.0 * weights)
        return torch.sigmoid(z), step * torch.sigmoid(z) * torch.sigmoid(-z)

    (one, first_step), (other, second_step) = sticks(until), sticks(18.0)
    first, second = one[:, None].expand(n, n), other[None, :].expand(n, n)
    points = torch.stack([first, (1 - first) * second, (1 - first) * (1 - second)], -1).reshape(-1, 3)
    return points, (first_step[:, None] * (1 - first) * second_step[None, :]).reshape(-1)


@pytest.mark.slow
def test_density_integrates_to_one_and_gives_the_moments(snefy: Build) -> None:
    law = with_centre(snefy(3, n=3, batch=(2,), concentration=(1.5, 9.0), seed=3), UNEQUAL[1:])
    points, weights = simplex_quadrature()
    density = law.log_prob_at(points).exp() * weights[:, None]
    torch.testing.assert_close(density.sum(0), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(density.T @ points, law.mean, rtol=0, atol=1e-8)
    second = torch.einsum("tb,tr,tq->brq", density, points, points)
    expected = law.covariance_matrix + law.mean[:, :, None] * law.mean[:, None, :]
    torch.testing.assert_close(second, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(density.T @ points.log(), law.expected_log(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        density.T @ torch.special.entr(points).sum(-1), law.expected_entropy(), rtol=0, atol=1e-8
    )
    torch.testing.assert_close(law.variance, law.covariance_matrix.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-12)
    votes = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64)
    chance = 3.0 * (density * (points[:, 0].square() * points[:, 2])[:, None]).sum(0)
    torch.testing.assert_close(law.log_prob_counts(votes).exp(), chance, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_votes_by_quadrature(snefy: Build) -> None:
    """The law after votes, some for the second time: its density, every moment, a cdf, a quantile and its draws."""
    before = with_centre(snefy(3, n=3, batch=(2,), concentration=(1.5, 9.0), seed=3), UNEQUAL[1:])
    votes = torch.tensor([[2.0, 0.0, 1.0], [0.0, 4.0, 0.5]], dtype=torch.float64)
    law = before.posterior(votes - votes.clamp_max(1.0)).posterior(votes.clamp_max(1.0))
    points, weights = simplex_quadrature()
    density = law.log_prob_at(points).exp() * weights[:, None]
    raw = before.log_prob_at(points).exp() * weights[:, None] * (points.log() @ votes.T).exp()
    torch.testing.assert_close(density, raw / raw.sum(0), rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(density.T @ points, law.mean, rtol=0, atol=1e-8)
    second = torch.einsum("tb,tr,tq->brq", density, points, points)
    expected = law.covariance_matrix + law.mean[:, :, None] * law.mean[:, None, :]
    torch.testing.assert_close(second, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(law.variance, law.covariance_matrix.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-12)
    logs = points.log()
    torch.testing.assert_close(density.T @ logs, law.expected_log(), rtol=0, atol=1e-6)
    products = torch.einsum("tb,tr,tq->brq", density, logs, logs)
    first = law.expected_log()
    torch.testing.assert_close(
        law.covariance_log(), products - first[:, :, None] * first[:, None, :], rtol=0, atol=1e-5
    )
    torch.testing.assert_close(
        density.T @ torch.special.entr(points).sum(-1), law.expected_entropy(), rtol=0, atol=1e-8
    )
    more = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    chance = 2.0 * (density * (points[:, 0] * points[:, 1])[:, None]).sum(0)
    torch.testing.assert_close(law.log_prob_counts(more).exp(), chance, rtol=0, atol=1e-8)
    share = law.marginal(0)
    for at in (0.05, 0.4):
        part, steps = simplex_quadrature(until=float(np.log(at / (1.0 - at))))
        below = (law.log_prob_at(part).exp() * steps[:, None]).sum(0)
        torch.testing.assert_close(share.cdf(torch.tensor(at).double()), below, rtol=0, atol=2e-7)
    levels = torch.tensor([[0.1], [0.8]], dtype=torch.float64).expand(-1, 2)
    torch.testing.assert_close(share.cdf(share.icdf(levels)), levels, rtol=0, atol=1e-6)
    draws = law.sample((20_000,), torch.Generator().manual_seed(0))
    assert ((draws.mean(0) - law.mean).abs() < 5.5 * draws.std(0) / 20_000**0.5).all()
    uniforms = law.rosenblatt(draws[:50])
    torch.testing.assert_close(law.inverse_rosenblatt(uniforms), draws[:50], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_covariance_of_logarithms_by_quadrature(snefy: Build) -> None:
    law = with_centre(snefy(3, n=3, batch=(2,), concentration=(1.5, 9.0), seed=3), UNEQUAL[1:])
    points, weights = simplex_quadrature()
    density, logs = law.log_prob_at(points).exp() * weights[:, None], points.log()
    first = density.T @ logs
    products = torch.einsum("tb,tr,tq->brq", density, logs, logs)
    expected = products - first[:, :, None] * first[:, None, :]
    torch.testing.assert_close(law.covariance_log(), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_density_of_some_known_shares(snefy: Build) -> None:
    """One share known of three, by the line on which the others lie, and by its marginal law."""
    law = with_centre(snefy(3, n=3, batch=(2,), concentration=(1.5, 9.0), seed=3), UNEQUAL[1:])
    nodes, gauss = np.polynomial.legendre.leggauss(400)
    z = torch.as_tensor(30.0 * nodes)
    t, step = torch.sigmoid(z), torch.as_tensor(30.0 * gauss) * torch.sigmoid(z) * torch.sigmoid(-z)
    for share in (1e-200, 1e-12, 1e-6, 1e-3, 0.3, 0.9, 0.99, 1.0 - 2.0**-20, 1.0 - 2.0**-40):
        left = 1.0 - share
        points = torch.stack([left * t, torch.full_like(t, share), left * torch.sigmoid(-z)], 1)
        expected = math.log(left) + (step.log()[:, None] + law.log_prob_at(points)).logsumexp(0)
        value = law.log_prob_known([[np.nan, share, np.nan]] * 2)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
        at = torch.full((2,), share, dtype=torch.float64)
        torch.testing.assert_close(law.marginal(1).log_prob(at), expected, rtol=1e-5, atol=1e-6)
        if left < 1.0:  # what the others leave
            torch.testing.assert_close(law.marginal([0, 2]).log_prob(1.0 - at), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [(2.0, 3.0, 5.0), (0.3, 0.2, 4.0), (300.0, 20.0, 40.0)])
def test_moments_against_mpmath(alpha: tuple[float, ...]) -> None:
    """1e-8 is promised; one Dirichlet with a centre from 1e-4 to 1."""
    c = (1e-4, 0.9, 0.05)
    one = torch.ones(1, 1, dtype=torch.float64)
    law = centred((torch.tensor([alpha]).double() - 1.0) / 2.0, one, one * 0.0, torch.tensor(c))
    mpmath.mp.dps = 25
    total = sum(c)
    scales, shapes = [mpmath.mpf(x) / total for x in map(float, law.centre * total)], [mpmath.mpf(a) for a in alpha]

    def integral(function: Callable[[mpmath.mpf], mpmath.mpf]) -> float:
        def integrand(y: mpmath.mpf) -> mpmath.mpf:
            t = mpmath.e**y
            product = mpmath.fprod((1 + s * t) ** (-a) for s, a in zip(scales, shapes))
            return function(t) * product * t

        return float(mpmath.quad(integrand, mpmath.linspace(-60, 160, 45)))

    def factor(r: int, t: mpmath.mpf) -> mpmath.mpf:
        return scales[r] * shapes[r] / (1 + scales[r] * t)

    mean = [integral(lambda t, r=r: factor(r, t)) for r in range(3)]
    np.testing.assert_allclose(law.mean[0].numpy(), mean, rtol=0, atol=1e-8)
    product = integral(lambda t: t * factor(0, t) * factor(1, t))
    np.testing.assert_allclose(float(law.covariance_matrix[0, 0, 1]) + mean[0] * mean[1], product, rtol=0, atol=1e-9)


def test_no_centre_is_the_plain_family(snefy: Build) -> None:
    plain = snefy(4, n=5, batch=(3,), members=2, seed=5)
    law = with_centre(plain, torch.full((4,), 0.3))
    points = plain.sample((6,))
    at = torch.tensor([[0.02], [0.2], [0.7]], dtype=torch.float64)
    for name in ("mean", "variance", "covariance_matrix"):
        torch.testing.assert_close(getattr(law, name), getattr(plain, name), rtol=0, atol=1e-9)
    for method in ("expected_log", "expected_entropy", "vote_information", "prob_zero"):
        torch.testing.assert_close(getattr(law, method)(), getattr(plain, method)(), rtol=0, atol=1e-8)
    torch.testing.assert_close(law.log_prob(points), plain.log_prob(points), rtol=0, atol=1e-9)
    torch.testing.assert_close(law.prob_greater(0, 2), plain.prob_greater(0, 2), rtol=0, atol=1e-10)
    for labels in (1, [0, 3]):
        theirs, ours = plain.marginal(labels), law.marginal(labels)
        torch.testing.assert_close(ours.cdf(at), theirs.cdf(at), rtol=0, atol=1e-6)
        torch.testing.assert_close(ours.icdf(at), theirs.icdf(at), rtol=0, atol=1e-6)
        torch.testing.assert_close(ours.log_prob(at), theirs.log_prob(at), rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=0, atol=1e-8)
    torch.testing.assert_close(law.quantiles([0.05, 0.9]), plain.quantiles([0.05, 0.9]), rtol=0, atol=1e-6)
    merged = law.amalgamate([[0, 1], [2], [3]]), plain.amalgamate([[0, 1], [2], [3]])
    torch.testing.assert_close(merged[0].mean, merged[1].mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.bayes_point("l1"), plain.bayes_point("l1"), rtol=0, atol=1e-5)


def test_marginals_and_comparisons_against_draws(snefy: Build) -> None:
    """20,000 draws a row, 2 rows, 4 labels, 3 levels: all within 5.5 standard errors (a false alarm in 10^6)."""
    law = with_centre(snefy(4, n=5, batch=(2,), concentration=(0.6, 30.0), seed=8), UNEQUAL)
    draws = law.sample((20_000,), torch.Generator().manual_seed(0))
    error = 5.5 * (0.25 / 20_000) ** 0.5
    for labels in (0, 2, [0, 1]):
        share = draws[..., labels] if isinstance(labels, int) else draws[..., labels].sum(-1)
        marginal = law.marginal(labels)
        for level in (0.1, 0.5, 0.95):
            quantile = marginal.icdf(torch.tensor(level))
            assert ((share <= quantile).double().mean(0) - level).abs().max() < error
        torch.testing.assert_close(marginal.mean, share.mean(0), rtol=0, atol=5.5 * float(share.std() / 20_000**0.5))
    assert ((draws[..., 1] > draws[..., 2]).double().mean(0) - law.prob_greater(1, 2)).abs().max() < error
    value, spread = law.entropy(4000, generator=torch.Generator().manual_seed(1), return_std_error=True)
    again = law.entropy(4000, generator=torch.Generator().manual_seed(2))
    assert ((value - again).abs() < 8.0 * spread).all()


def test_smaller_compositions_rows_and_members(snefy: Build) -> None:
    law = with_centre(snefy(4, n=4, batch=(3,), members=2, seed=2), UNEQUAL)
    part = law.subcomposition([3, 1])
    draws = law.sample((40_000,), torch.Generator().manual_seed(0))[..., [3, 1]]
    draws = draws / draws.sum(-1, keepdim=True)
    assert (part.mean - draws.mean(0)).abs().max() < 5.5 * float(draws.std() / 200.0)
    torch.testing.assert_close(law[1:].mean, law.mean[1:])
    torch.testing.assert_close(law.expand((2, 3)).mean[1], law.mean)
    mixed = torch.stack([one.mean for one in law.members()]).mean(0)
    torch.testing.assert_close(mixed, law.mean, rtol=0, atol=1e-10)
    plain = law.rows.plain_logs(law.sample((5,)).log())  # type: ignore[union-attr]
    torch.testing.assert_close(plain.exp().sum(-1), torch.ones(5, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="different centres"):
        law.amalgamate([[0, 1], [2, 3]])
    with pytest.raises(InputError, match="positive numbers"):
        with_centre(law, torch.tensor([1.0, 0.0, 1.0, 1.0]))
