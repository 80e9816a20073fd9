"""What all rows share is made once: the same answers as without it, for many threads, and never a stale one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

from snefy_ldl.distributions import SnefySimplex, marginal

Build = Callable[..., SnefySimplex]


def cdf_at(dist: SnefySimplex, label: int, shares: Tensor) -> np.ndarray:
    """``Σ c I_t(a, b)`` of each row at its own shares (N, A), by scipy's incomplete Beta function alone."""
    alpha = dist.concentration[:, label].numpy()
    rest = dist.concentration.sum(-1).numpy() - alpha
    below = scipy.special.betainc(alpha, rest, shares.numpy()[..., None])  # (N, A, P)
    return np.asarray((below * dist.weights().numpy()[:, None]).sum(-1))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("concentration", "n_labels", "members", "n"),
    [
        (0.3, 3, 1, 6),
        (1.0, 3, 2, 6),
        (8.0, 20, 1, 6),
        (60.0, 6, 3, 6),
        (60.0, 3, 1, 40),
        (500.0, 5, 1, 6),
        (10_000.0, 3, 1, 6),
    ],
)
def test_quantiles_by_neurons_against_scipy(
    concentration: float,
    n_labels: int,
    members: int,
    n: int,
    exact: bool,
    snefy: Build,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """float64: the cdf is right to 2e-9; with float32 densities to 2e-7; both against scipy's incomplete Beta."""
    monkeypatch.setattr(marginal, "EXACT_QUESTIONS", 10**9 if exact else 0)
    dist = snefy(n_labels, n=n, batch=(9,), members=members, concentration=(concentration, 3.0 * concentration))
    levels = np.array([1e-7, 1e-4, 0.05, 0.3, 0.5, 0.95, 0.999, 1.0 - 1e-7])
    shares = dist.quantiles(levels)
    for label in (0, n_labels - 1):
        error = np.abs(cdf_at(dist, label, shares[:, label].double()) - levels)
        # a share next to one is exact to 1e-16 only, and one below 1e-290 counts as zero
        inside = ((shares[:, label] > 1e-290) & (shares[:, label] < 1.0 - 1e-6)).numpy()
        assert error[inside].max() < (2e-9 if exact else 2e-7)


def test_many_rows_by_groups_are_few_rows_one_by_one(snefy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = snefy(4, n=6, batch=(50,), members=2)
    levels = np.random.default_rng(0).uniform(size=(50, 4, 3))
    few = dist.quantiles(levels)
    monkeypatch.setattr(marginal, "CACHE_ELEMENTS", 100)
    monkeypatch.setattr(marginal, "CHUNK_ELEMENTS", 17 * dist.n_components)
    many = SnefySimplex(dist.exponents, dist.readout, dist.log_scale).quantiles(levels)
    torch.testing.assert_close(many, few, rtol=1e-9, atol=1e-12)
