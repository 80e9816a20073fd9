"""Marginal laws: pdf, cdf and quantiles against scipy's Beta, quadrature, and each other on both evaluation paths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import constraints

from snefy_ldl import SnefySimplex
from snefy_ldl.distributions import marginal as panels
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
Rule = Callable[[float, float], tuple[Tensor, Tensor, Tensor]]
PATHS = ["direct", "tabulated"]


def double(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to a cdf: the incomplete Beta function of each component, or the table all rows share."""
    limit = 10**12 if request.param == "direct" else 0
    monkeypatch.setattr(panels, "DIRECT_EVALUATIONS", limit)
    return str(request.param)


def laws(snefy: Build, cancelling: Build) -> dict[str, SnefySimplex]:
    return {
        "signed": snefy(3, n=5),
        "cancelling": cancelling(3),
        "sharp": snefy(3, n=5, concentration=(20.0, 25.0)),
        "members": snefy(3, n=3, members=2),
        "with votes": snefy(3, n=5).posterior([3, 1, 0]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["signed", "cancelling", "sharp", "members", "with votes"])
def test_density_cdf_and_comparison_by_quadrature(
    kind: str, path: str, snefy: Build, cancelling: Build, interval: Rule, quadrature: Callable[[int], Any]
) -> None:
    """Integrate the joint density: over label 1 for a marginal density, then up to t for its cdf."""
    dist, across = laws(snefy, cancelling)[kind], quadrature(2)
    share = dist.marginal(0)
    inner, rest = across.points.T

    def joint(t: Tensor, others: Tensor) -> Tensor:
        """Density of ℓ_0 at t, with 1 - t given: ∫ p(t, (1-t)v, (1-t)(1-v)) (1-t) dv -> (T, N)."""
        ell = torch.stack([t[:, None].expand(-1, len(inner)), others[:, None] * inner, others[:, None] * rest], -1)
        density = dist.log_prob(ell.reshape(-1, 1, 3)).exp().reshape(len(t), len(inner), -1)
        return others[:, None] * (density * across.weights[:, None]).sum(1)

    low, high, weights = interval(-12.0, -12.0 + 0.5)  # a few points far out
    torch.testing.assert_close(share.log_prob(low[:, None]).exp(), joint(low, high), rtol=1e-6, atol=1e-9)
    for t in (0.05, 0.3, 0.8):
        points, others, weights = interval(-30.0, float(scipy.special.logit(t)))
        mass = (weights[:, None] * joint(points, others)).sum(0)
        torch.testing.assert_close(share.cdf(double(t)), mass, rtol=0.0, atol=1e-7)
    # P(ℓ_0 > ℓ_1): ℓ_2 = s, and ℓ_0 / (ℓ_0 + ℓ_1) = t above one half
    points, others, weights = interval(0.0, 30.0)
    ell = torch.stack([points[:, None] * rest, others[:, None] * rest, inner.expand(len(points), -1)], -1)
    density = dist.log_prob(ell.reshape(-1, 1, 3)).exp().reshape(len(points), len(inner), -1)
    chance = ((weights[:, None] * rest * across.weights)[..., None] * density).sum((0, 1))
    torch.testing.assert_close(dist.prob_greater(0, 1), chance, rtol=0.0, atol=1e-7)


def test_one_neuron_is_a_beta(path: str) -> None:
    alpha = np.array([0.4, 3.0, 9.0])
    share = SnefySimplex(double((alpha - 1.0) / 2.0)[None], double([[1.0]]), double([[0.0], [5.0]])).marginal(0)
    peer = scipy.stats.beta(0.4, 12.0)
    at, levels = np.array([1e-12, 0.001, 0.02, 0.5, 0.99]), np.array([0.001, 0.1, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(share.cdf(double(at)[:, None])[:, 0], peer.cdf(at), rtol=1e-8)
    np.testing.assert_allclose(share.quantiles(levels)[1], peer.ppf(levels), rtol=1e-7)
    np.testing.assert_allclose(share.log_prob(double(at)[:, None])[:, 0], peer.logpdf(at), rtol=1e-10)
    np.testing.assert_allclose(share.mean, [peer.mean()] * 2)
    np.testing.assert_allclose(share.variance, [peer.var()] * 2)


RANGES = [(0.02, 2), (0.02, 4), (0.3, 3), (1.0, 3), (8.0, 20), (500.0, 5), (10_000.0, 3)]


@pytest.mark.parametrize(("concentration", "n_labels"), RANGES)
def test_round_trips(concentration: float, n_labels: int, path: str, snefy: Build) -> None:
    """A quantile's neighbours in float64 bracket its level: all that can be asked where a law has mass at an end."""
    dist = snefy(n_labels, n=6, batch=(9,), concentration=(concentration, 2.0 * concentration))
    share = dist.marginal(0)
    levels = double([1e-6, 0.001, 0.05, 0.3, 0.5, 0.9, 0.999])[:, None].expand(-1, 9)
    at = share.icdf(levels)
    assert ((at >= 0.0) & (at <= 1.0)).all()
    assert (at.diff(dim=0) >= 0.0).all()
    below, above = (torch.nextafter(at, double(end)) for end in (0.0, 1.0))
    # mass below e^-690 (1e-6 at a concentration of 0.02) is not told apart from zero
    assert (share.cdf(below) <= levels + 2e-6).all()
    assert (share.cdf(above) >= levels - 1e-6).all()
    inside = (at > 1e-290) & (at < 1.0 - 1e-9)
    assert (share.cdf(at) - levels)[inside].abs().max() < 1e-8
    # the other way, where the density is not negligible
    points = double([0.001, 0.1, 0.4, 0.8])[:, None].expand(-1, 9)
    chance = share.cdf(points)
    useful = (chance > 1e-6) & (chance < 1.0 - 1e-6) & (share.log_prob(points) > math.log(1e-2))
    error = (share.icdf(chance) - points).abs()[useful]
    assert (error < 1e-6).all()


@pytest.mark.parametrize(("concentration", "n_labels"), RANGES)
def test_both_paths_agree(concentration: float, n_labels: int, snefy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = snefy(n_labels, n=6, batch=(9,), concentration=(concentration, 3.0 * concentration))
    at = double([1e-250, 1e-30, 1e-6, 0.01, 0.2, 0.5, 0.7, 0.99, 1.0 - 1e-12])[:, None]
    levels = double([0.01, 0.4, 0.5, 0.93])[:, None]
    answers = []
    for limit in (10**12, 0):
        monkeypatch.setattr(panels, "DIRECT_EVALUATIONS", limit)
        answers.append((dist.marginal(1).cdf(at), dist.marginal(1).icdf(levels)))
    (cdf, icdf), (cdf_table, icdf_table) = answers
    torch.testing.assert_close(cdf_table, cdf, rtol=0.0, atol=1e-9)
    torch.testing.assert_close(icdf_table, icdf, rtol=1e-6, atol=1e-8)


def test_ends_and_dtypes(path: str, snefy: Build) -> None:
    share = snefy(3, dtype=torch.float32).marginal([0, 2])
    ends = double([-0.5, 0.0, 1.0, 3.0])[:, None]
    assert share.cdf(ends)[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert share.icdf(double([0.0, 1.0])[:, None])[:, 0].tolist() == [0.0, 1.0]
    assert share.icdf(double(0.5)).dtype == torch.float32
    assert share.cdf(torch.tensor(0.5)).dtype == torch.float32
    assert share.cdf(double(0.5)).dtype == torch.float64
    assert share.cdf(torch.tensor(1)).dtype == torch.float64


def test_contract(snefy: Build) -> None:
    dist = snefy(4, batch=(2, 3))
    share = dist.marginal(1)
    assert (share.batch_shape, share.event_shape) == ((2, 3), ())
    assert share.support is constraints.unit_interval
    assert share.sample((5,)).shape == (5, 2, 3)
    assert share.stddev.shape == (2, 3)
    assert share.log_prob(share.sample((5,))).shape == (5, 2, 3)
    assert share.cdf(torch.full((7, 1, 1), 0.5)).shape == (7, 2, 3)
    assert share.expand((4, 2, 3)).cdf(double(0.1)).shape == (4, 2, 3)
    torch.testing.assert_close(share.mean, dist.mean[..., 1])
    torch.testing.assert_close(dist.marginal([0, 3]).mean, dist.mean[..., [0, 3]].sum(-1))
    with pytest.raises(ValueError, match="support"):
        share.log_prob(double(1.5).expand(2, 3))
    with pytest.raises(InputError, match="all of them sum to one"):
        dist.marginal([0, 1, 2, 3])
