"""The Rosenblatt map: against scipy and conditioning, there and back, uniform on its own draws, and as a sampler."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import scipy.stats
import torch

from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
OfKind = Callable[[str, int], SnefySimplex]
Rng = Callable[[int], torch.Generator]


@pytest.mark.parametrize(
    ("kind", "n_labels"),
    [("signed", 4), ("signed", 2), ("cancelling", 4), ("members", 4), ("votes", 4), ("sharp", 4)],
)
def test_the_map_has_the_law_as_its_jacobian(kind: str, n_labels: int, of_kind: OfKind, rng: Rng) -> None:
    """``|det ∂u/∂ℓ| = p(ℓ)``, by central differences in the first L-1 shares."""
    dist = of_kind(kind, n_labels)
    point = dist.sample(generator=rng(2)).clamp_min(1e-3)
    point = point / point.sum(-1, keepdim=True)
    step = 1e-6
    columns = []
    for k in range(dist.n_labels - 1):
        move = torch.zeros_like(point)
        move[:, k], move[:, -1] = step, -step
        columns.append((dist.rosenblatt(point + move) - dist.rosenblatt(point - move)) / (2 * step))
    jacobian = torch.stack(columns, -1)  # (N, L-1, L-1)
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], dist.log_prob(point), rtol=1e-3, atol=1e-3)


def test_points_must_fit(snefy: Build) -> None:
    dist = snefy(3)
    for bad, message in (
        (torch.ones(2, 4) / 4, "3 real numbers"),
        (torch.ones(5, 3) / 3, "do not fit"),
        (torch.tensor([0.5, 0.6, -0.1]), "sum to 1"),
        (torch.tensor([0.5, 0.6, 0.1]), "sum to 1"),
        (torch.tensor([0.5, math.nan, 0.5]), "not a label distribution"),
    ):
        with pytest.raises(InputError, match=message):
            dist.rosenblatt(bad)
    with pytest.raises(InputError, match="between 0 and 1"):
        dist.inverse_rosenblatt([[0.5, 1.5]])
    ends = dist.rosenblatt(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert torch.isfinite(ends).all()
    assert torch.isfinite(dist.inverse_rosenblatt([[0.0, 1.0], [1.0, 0.0]])).all()


# -- sampling without rejection ----------------------------------------------------------------------------------------


def nearly_cancelling(gap: float) -> SnefySimplex:
    """The difference of two almost equal neurons: Σ|c| grows as 1 / gap²."""
    first = torch.linspace(0.5, 2.0, 3, dtype=torch.float64)
    second = first + gap * torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    return SnefySimplex(torch.stack([first, second]), torch.tensor([[1.0, -1.0]]).double(), torch.zeros(1, 2).double())


@pytest.mark.slow
def test_laws_that_cancel_are_drawn_by_the_chain(rng: Rng) -> None:
    """Acceptance near 1e-5; 3 means, at 5.5 standard errors, and a KS test at 1e-5."""
    dist = nearly_cancelling(0.004)
    assert float(dist.weights().clamp_min(0.0).sum()) > 1e4
    draws = dist.sample((5000,), generator=rng(6))[:, 0]
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - dist.mean[0]).abs() <= 5.5 * error).all()
    share = dist.marginal(1)
    assert scipy.stats.kstest(share.cdf(draws[:, 1, None])[:, 0].numpy(), "uniform").pvalue > 1e-5
    value, error = dist.entropy(2000, generator=rng(7), return_std_error=True)
    assert torch.isfinite(value).all()
    assert (error < 0.1).all()


def test_a_normaliser_of_zero_is_an_error() -> None:
    same = torch.tensor([[0.5, 1.0, 2.0]] * 2, dtype=torch.float64)
    readout = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    with pytest.raises(InputError, match="not zero"):
        SnefySimplex(same[:1], readout[:, :1] * 0.0, torch.zeros(1, 1).double())
    dists = [
        lambda: SnefySimplex(same, readout, torch.zeros(1, 2).double()),
        lambda: SnefySimplex.from_mixture(
            torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
        ),
        lambda: nearly_cancelling(1e-9),
    ]
    for make in dists:
        for ask in (
            lambda d: d.sample((3,)),
            lambda d: d.quantiles([0.5]),
            lambda d: d.marginal(0).icdf(torch.tensor(0.5)),
            lambda d: d.rosenblatt(torch.ones(1, 3) / 3),
            lambda d: d.inverse_rosenblatt([[0.5, 0.5]]),
            lambda d: d.condition({0: 0.5}),
        ):
            with pytest.raises(InputError, match=r"not a valid distribution|no density"):
                ask(make())
