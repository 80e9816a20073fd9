"""Guides of fits on votes, votes that are completed, and points for ordered labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import dirichlet_multinomial

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl.datasets import make_annotators
from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.networks.starts import prototype_init
from snefy_ldl.training.data import complete_votes, fit_concentrations
from snefy_ldl.training.objectives import CentredCounts, Counts

SMALL = {"n_neurons": 8, "n_readouts": 4, "epochs": 2, "random_state": 0}


@pytest.mark.slow
def test_a_fit_on_votes_tries_guides_and_keeps_the_best_by_the_vote_likelihood() -> None:
    data = make_annotators(n=320, n_labels=3, votes=20, random_state=0)
    model = SnefyLDL(**SMALL).fit(data.X, counts=data.counts)
    names = [candidate["name"] for candidate in model.candidates_]
    assert names == ["guides", "moving law"]
    assert np.isfinite(model.score(data.X, counts=data.counts))


def moving_net(n_labels: int) -> tuple[SnefyNet, torch.Tensor, torch.Tensor]:
    """A net, features of six rows, and the logarithms of their centres."""
    rng = torch.Generator().manual_seed(0)
    net = SnefyNet(StackedMLP(1, 2, (8,)), n_labels=n_labels, n_neurons=6, n_readouts=3)
    labels = torch.rand(50, n_labels, generator=rng, dtype=torch.float64)
    prototype_init(net, 0, labels / labels.sum(1, keepdim=True), rng)
    net.set_background(0, torch.linspace(1.0, 2.0, n_labels), 0.05)
    return net, torch.randn(1, 6, 2, generator=rng), 2.0 * torch.randn(6, n_labels, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("n_votes", [1, 2, 7, 100])
def test_votes_on_a_moving_law_have_the_probability_that_the_law_gives_them(n_votes: int) -> None:
    net, x, log_centre = moving_net(3)
    counts = torch.as_tensor(np.random.default_rng(1).multinomial(n_votes, [0.5, 0.3, 0.2], 6).astype(float))
    objective = CentredCounts(counts, net, log_centre)
    with torch.no_grad():
        log_p = objective.log_prob(net, x, torch.arange(6)[None])[0] + objective.left_out
        np.testing.assert_allclose(log_p, net(x, log_centre).log_prob_counts(counts), atol=2e-5)


def test_votes_on_a_moving_law_agree_with_quadrature_and_their_slopes_with_differences() -> None:
    net, x, log_centre = moving_net(2)
    counts = torch.tensor([[3.0, 1.0]] * 6, dtype=torch.float64)
    objective, rows = CentredCounts(counts, net, log_centre), torch.arange(6)[None]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    share = 1.0 / (1.0 + np.exp(-12.0 * nodes))  # ends of the unit interval well resolved
    points = np.stack([share, 1.0 - share], 1)
    with torch.no_grad():
        density = net(x, log_centre).log_prob(torch.as_tensor(points)[:, None]).exp().numpy()  # (S, 6)
        width = 12.0 * weights * share * (1.0 - share)
        wanted = np.log((width[:, None] * density * (share**3 * (1.0 - share))[:, None]).sum(0))
        np.testing.assert_allclose(objective.log_prob(net, x, rows)[0], wanted, atol=1e-4)
    objective.log_prob(net, x, rows).sum().backward()
    slope, step = float(net.raw_exponents.grad[0, 2, 1]), 1e-2
    ends = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            net.raw_exponents[0, 2, 1] += sign * step
            ends.append(float(objective.log_prob(net, x, rows).sum()))
            net.raw_exponents[0, 2, 1] -= sign * step
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2.0 * step), rtol=0.02, atol=1e-4)


def test_many_votes_on_a_moving_law_are_finite_beside_a_sharp_neuron() -> None:
    net, x, _ = moving_net(3)
    with torch.no_grad():  # far from the votes, and raised by them above all others
        net.raw_exponents[0, 0] = torch.tensor([1e-3, 2e4, 2e4]).log()
    counts = torch.tensor([[200.0, 0.0, 300.0]] * 6, dtype=torch.float64)
    objective, rows = CentredCounts(counts, net, torch.zeros(6, 3, dtype=torch.float64)), torch.arange(6)[None]
    log_p = objective.log_prob(net, x, rows)
    with torch.no_grad():  # a centre of equal parts moves nothing
        np.testing.assert_allclose(log_p, Counts(counts, net).log_prob(net, x, rows), atol=2e-5)
    log_p.sum().backward()
    assert torch.isfinite(net.raw_exponents.grad).all()


def test_votes_on_a_moving_law_are_right_where_a_node_of_their_integral_is_negative() -> None:
    net, x, log_centre = moving_net(3)
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():  # neurons of very different sharpness that cancel each other
        net.raw_exponents[0] = 3.0 * torch.rand(6, 3, generator=rng) + torch.linspace(-1.0, 4.0, 6)[:, None]
        net.readout[0] = torch.linspace(1.0, 2.0, 6) * torch.tensor([1.0, -1.0] * 3)
    counts = torch.as_tensor(np.random.default_rng(1).multinomial(100, [0.6, 0.3, 0.1], 6).astype(float))
    objective, rows = CentredCounts(counts, net, log_centre), torch.arange(6)[None]
    log_p = objective.log_prob(net, x, rows)
    with torch.no_grad():
        wanted = net(x, log_centre).log_prob_counts(counts)
        np.testing.assert_allclose(log_p[0] + objective.left_out, wanted, atol=2e-5)
    log_p.sum().backward()
    assert torch.isfinite(net.raw_exponents.grad).all()


def test_single_votes_are_completed_with_the_spread_that_is_expected() -> None:
    rng = np.random.default_rng(0)
    means = rng.dirichlet([2.0, 3.0, 4.0], 4000)
    counts = np.eye(3)[[rng.choice(3, p=row) for row in means]]
    completed = complete_votes(counts, means, 32, rng)
    assert (completed >= counts).all()
    assert (completed.sum(1) == 32).all()
    # averaged over the vote that was seen, the completed ones follow the Dirichlet-multinomial itself
    alpha = fit_concentrations(counts, means)[:, None] * means
    expected = dirichlet_multinomial(alpha, np.full(len(alpha), 32)).cov()[:, 0, 0]
    observed = np.mean((completed[:, 0] - 32 * means[:, 0]) ** 2)
    assert abs(observed / expected.mean() - 1.0) < 0.1  # its standard error is 0.025


def test_concentrations_are_those_that_votes_were_drawn_with() -> None:
    rng = np.random.default_rng(1)
    means = rng.dirichlet([2.0, 3.0, 4.0], 2000)
    shares = np.stack([rng.dirichlet(12.0 * row) for row in means])
    counts = np.stack([rng.multinomial(10, row) for row in shares]).astype(float)
    np.testing.assert_allclose(np.median(fit_concentrations(counts, means)), 12.0, rtol=0.15)


def test_the_point_for_cumulative_distances_beats_its_neighbours_on_draws() -> None:
    rng = torch.Generator().manual_seed(0)
    exponents = 5.0 * torch.rand(4, 4, generator=rng, dtype=torch.float64)
    readout = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    law = SnefySimplex(exponents, readout, torch.randn(3, 4, generator=rng, dtype=torch.float64))
    point = law.bayes_point("cad").numpy()
    np.testing.assert_allclose(point.sum(1), 1.0, atol=1e-9)
    np.testing.assert_allclose(law.bayes_point("emd").numpy(), point)
    np.testing.assert_allclose(law.bayes_point("rps"), law.mean)
    torch.manual_seed(0)
    draws = law.sample((20_000,)).numpy().cumsum(-1)[..., :-1]
    np.testing.assert_allclose(point.cumsum(1)[:, :-1], np.median(draws, 0), atol=0.01)
