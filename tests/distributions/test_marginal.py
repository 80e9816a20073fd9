"""Marginal distributions: pdf, cdf and quantiles against scipy's Beta, quadrature, and each other."""

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

from snefy_ldl import SnefySimplex
from snefy_ldl.distributions import marginal as panels

Build = Callable[..., SnefySimplex]
PATHS = ["direct", "tabulated"]


def double(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to a cdf: the incomplete Beta function of each component, or the table all rows share."""
    limit = 10**12 if request.param == "direct" else 0
    monkeypatch.setattr(panels, "DIRECT_EVALUATIONS", limit)
    return str(request.param)


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
    """A quantile's neighbours in float64 bracket its level: all that is defined with mass at an end."""
    dist = snefy(n_labels, n=6, batch=(9,), concentration=(concentration, 2.0 * concentration))
    share = dist.marginal(0)
    levels = double([1e-6, 0.001, 0.05, 0.3, 0.5, 0.9, 0.999])[:, None].expand(-1, 9)
    at = share.icdf(levels)
    assert ((at >= 0.0) & (at <= 1.0)).all()
    assert (at.diff(dim=0) >= 0.0).all()
    below, above = (torch.nextafter(at, double(end)) for end in (0.0, 1.0))
    # mass below e^-690 (1e-6 at a concentration of 0.02) counts as zero
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


def test_ends_and_dtypes(path: str, snefy: Build) -> None:
    share = snefy(3, dtype=torch.float32).marginal([0, 2])
    ends = double([-0.5, 0.0, 1.0, 3.0])[:, None]
    assert share.cdf(ends)[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert share.icdf(double([0.0, 1.0])[:, None])[:, 0].tolist() == [0.0, 1.0]
    assert share.icdf(double(0.5)).dtype == torch.float32
    assert share.cdf(torch.tensor(0.5)).dtype == torch.float32
    assert share.cdf(double(0.5)).dtype == torch.float64
    assert share.cdf(torch.tensor(1)).dtype == torch.float64
