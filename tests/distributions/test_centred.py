"""The family with a centre: against the plain family, mpmath, draws and quadrature."""

from __future__ import annotations

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


def centred(law: SnefySimplex, centre: Tensor) -> centred:
    return centred(law.exponents, law.readout, law.log_scale, centre)


def simplex_quadrature(n: int = 160) -> tuple[Tensor, Tensor]:
    """Points (T, 3) and weights of a product Gauss rule in logit coordinates of a stick-breaking of the triangle."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    z = torch.as_tensor(18.0 * nodes)
    share, step = torch.sigmoid(z), torch.as_tensor(18.0 * weights) * torch.sigmoid(z) * torch.sigmoid(-z)
    first, second = share[:, None].expand(n, n), share[None, :].expand(n, n)
    points = torch.stack([first, (1 - first) * second, (1 - first) * (1 - second)], -1).reshape(-1, 3)
    return points, (step[:, None] * (1 - first) * step[None, :]).reshape(-1)


def test_density_integrates_to_one_and_gives_the_moments(snefy: Build) -> None:
    law = centred(snefy(3, n=3, batch=(2,), concentration=(1.5, 9.0), seed=3), UNEQUAL[1:])
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
    law = centred(plain, torch.full((4,), 0.3))
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
    law = centred(snefy(4, n=5, batch=(2,), concentration=(0.6, 30.0), seed=8), UNEQUAL)
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
    law = centred(snefy(4, n=4, batch=(3,), members=2, seed=2), UNEQUAL)
    part = law.subcomposition([3, 1])
    draws = law.sample((40_000,), torch.Generator().manual_seed(0))[..., [3, 1]]
    draws = draws / draws.sum(-1, keepdim=True)
    assert (part.mean - draws.mean(0)).abs().max() < 5.5 * float(draws.std() / 200.0)
    torch.testing.assert_close(law[1:].mean, law.mean[1:])
    torch.testing.assert_close(law.expand((2, 3)).mean[1], law.mean)
    mixed = torch.stack([one.mean for one in law.members()]).mean(0)
    torch.testing.assert_close(mixed, law.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(law.plain_logs(law.centred_logs(draws[..., :1].log().expand(-1, -1, 4))).exp().sum(-1),
                               torch.ones(40_000, 3, dtype=torch.float64))  # fmt: skip
    with pytest.raises(InputError, match="different centres"):
        law.amalgamate([[0, 1], [2, 3]])
    with pytest.raises(InputError, match="fit with centre=None"):
        law.posterior(torch.ones(3, 4))
    with pytest.raises(InputError, match="positive numbers"):
        centred(law, torch.tensor([1.0, 0.0, 1.0, 1.0]))
