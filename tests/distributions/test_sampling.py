"""Exact sampling, by Monte Carlo with stated false-alarm rates.

A comparison at 5.5 standard errors fails by chance once in 26 million; the counts below say how many a test makes.
Seeds are fixed, so a pass stays a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from snefy_ldl import SnefySimplex
from snefy_ldl.distributions.sampling import log_dirichlet_draws

Build = Callable[..., SnefySimplex]
OfKind = Callable[[str, int], SnefySimplex]
Rng = Callable[[int], torch.Generator]
SIGMAS = 5.5


def agrees(draws: Tensor, expected: Tensor) -> None:
    """The mean over the first dimension lies within SIGMAS standard errors of what is expected."""
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() <= SIGMAS * error + 1e-12).all()


@pytest.mark.parametrize(
    ("kind", "n_labels"),
    [("signed", 2), ("cancelling", 4), ("members", 5), ("members, votes", 5), ("merged, votes", 4)],
)
def test_acceptance_rate_is_the_observed_one(
    kind: str, n_labels: int, of_kind: OfKind, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proposals come from p⁺ and are kept with probability p / p⁺; its average must be 1 / Σc⁺."""
    dist = of_kind(kind, n_labels)
    seen: list[Tensor] = []
    original = type(dist.rows).log_densities

    def spy(self: Any, *args: Any, **kwargs: Any) -> list[Tensor]:
        density, envelope = original(self, *args, **kwargs)
        seen.append((density - envelope).exp())
        return [density, envelope]

    monkeypatch.setattr(type(dist.rows), "log_densities", spy)
    dist.sample((3000,), generator=rng(2))
    assert (seen[0] <= 1.0 + 1e-9).all()
    rate = 1.0 / dist.weights().clamp_min(0.0).sum(-1)
    assert (rate < 1.0 - 1e-6).all()
    agrees(seen[0], rate)


def test_a_seed_gives_the_same_draws(snefy: Build, rng: Rng) -> None:
    dist = snefy(4, n=5, batch=(7,))
    assert torch.equal(dist.sample((50,), generator=rng(3)), dist.sample((50,), generator=rng(3)))
    assert not torch.equal(dist.sample((50,), generator=rng(3)), dist.sample((50,), generator=rng(4)))
    assert torch.equal(dist.entropy(50, generator=rng(3)), dist.entropy(50, generator=rng(3)))
    torch.manual_seed(5)
    once = dist.sample((3,))
    torch.manual_seed(5)
    assert torch.equal(once, dist.sample((3,)))


def test_chunks_of_rows_and_tries_leave_the_law_alone(snefy: Build, rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = snefy(3, n=4, m=2, batch=(6,))
    monkeypatch.setattr("snefy_ldl.distributions.sampling.CHUNK_ELEMENTS", 8 * 3 * 500)
    monkeypatch.setattr("snefy_ldl._internal.memory.CACHE_ELEMENTS", 1000)
    draws = dist.sample((2000,), generator=rng(6))
    agrees(draws, dist.mean)
    agrees((draws - dist.mean).square(), dist.variance)


def test_dirichlet_draws_with_small_and_large_shapes(rng: Rng) -> None:
    """E[log ℓ] = ψ(α) - ψ(A) down to α = 0.01, where a share itself underflows: 3 comparisons."""
    alpha = torch.tensor([0.01, 0.5, 30.0], dtype=torch.float64)
    logs = log_dirichlet_draws(alpha.expand(20_000, 3), rng(7))
    agrees(logs, torch.digamma(alpha) - torch.digamma(alpha.sum()))
    assert torch.isfinite(logs).all()


def test_neurons_without_any_weight_do_not_overflow() -> None:
    """A log scale of -1e39 is beyond float32, in which proposals are weighed."""
    random = torch.Generator().manual_seed(0)
    exponents, readout = torch.rand(2, 4, 3, generator=random), torch.randn(2, 3, 4, generator=random)
    scale = torch.zeros(1, 2, 4).double()
    scale[..., 0] = -1e39
    draws = SnefySimplex(exponents.double(), readout.double(), scale).sample((50,), random)
    assert bool(torch.isfinite(draws).all())
