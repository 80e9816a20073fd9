"""Guides of fits on votes, votes that are completed, and points for ordered labels."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import dirichlet_multinomial

from snefy_ldl import SnefySimplex
from snefy_ldl.training.data import complete_votes, usual_concentrations

SMALL = {"n_neurons": 8, "n_readouts": 4, "epochs": 2, "random_state": 0}


def test_single_votes_are_completed_with_the_spread_that_is_expected() -> None:
    rng = np.random.default_rng(0)
    means = rng.dirichlet([2.0, 3.0, 4.0], 4000)
    counts = np.eye(3)[[rng.choice(3, p=row) for row in means]]
    completed = complete_votes(counts, means, 32, rng)
    assert (completed >= counts).all()
    assert (completed.sum(1) == 32).all()
    # averaged over the vote that was seen, the completed ones follow the Dirichlet-multinomial itself
    alpha = usual_concentrations(means)[:, None] * means
    expected = dirichlet_multinomial(alpha, np.full(len(alpha), 32)).cov()[:, 0, 0]
    observed = np.mean((completed[:, 0] - 32 * means[:, 0]) ** 2)
    assert abs(observed / expected.mean() - 1.0) < 0.1  # its standard error is 0.025


def test_the_point_for_cumulative_distances_beats_its_neighbours_on_draws() -> None:
    rng = torch.Generator().manual_seed(0)
    exponents = 5.0 * torch.rand(4, 4, generator=rng, dtype=torch.float64)
    readout = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    dist = SnefySimplex(exponents, readout, torch.randn(3, 4, generator=rng, dtype=torch.float64))
    point = dist.bayes_point("cad").numpy()
    np.testing.assert_allclose(point.sum(1), 1.0, atol=1e-9)
    np.testing.assert_allclose(dist.bayes_point("emd").numpy(), point)
    np.testing.assert_allclose(dist.bayes_point("rps"), dist.mean)
    torch.manual_seed(0)
    draws = dist.sample((20_000,)).numpy().cumsum(-1)[..., :-1]
    np.testing.assert_allclose(point.cumsum(1)[:, :-1], np.median(draws, 0), atol=0.01)
