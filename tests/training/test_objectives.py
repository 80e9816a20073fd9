"""Each objective's likelihood against the distribution that the net predicts."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import gammaln

from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.networks.starts import prototype_init
from snefy_ldl.training.objectives import Counts, Gaps, Shares, log_density, log_probability


@pytest.mark.parametrize("form", ["log", "clip"])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_net_trains_what_it_predicts(form, balanced):
    """What training maximises equals the log_prob of the distribution that forward returns."""
    net = SnefyNet(StackedMLP(2, 3, (8,)), 4, n_neurons=6, n_readouts=3, exponent_form=form, balanced=balanced).double()
    D = torch.distributions.Dirichlet(torch.full((4,), 3.0, dtype=torch.float64)).sample((50,))
    for k in range(2):
        prototype_init(net, k, D, torch.Generator().manual_seed(k))
        net.background[k] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    net.log_odds.copy_(torch.tensor([-2.0, -1.0]))
    x = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logs = D.log().expand(2, -1, -1)
        members = log_density(net, x, logs, net.background_log_prob(D.log()[None]))
        dist = net(x)
    expected = torch.logsumexp(members, 0) - math.log(2)
    torch.testing.assert_close(dist.log_prob(D), expected, rtol=1e-8, atol=1e-8)
    counts = torch.tensor([2.0, 0.0, 1.0, 4.0], dtype=torch.float64).expand(50, 4)
    with torch.no_grad():
        ratio = torch.stack([_log_dm(background, counts[0]) for background in net.background])
        members = log_probability(net, x, counts.expand(2, -1, -1), ratio[:, None].expand(2, 50))
    coefficient = torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)
    expected = torch.logsumexp(members, 0) - math.log(2) + coefficient
    torch.testing.assert_close(dist.log_prob_counts(counts), expected, rtol=1e-8, atol=1e-8)


def _log_dm(alpha, counts):
    """Dirichlet-multinomial without its coefficient, by scipy's own formula."""
    a, k = alpha.numpy(), counts.numpy()
    value = gammaln(a.sum()) - gammaln((a + k).sum()) + (gammaln(a + k) - gammaln(a)).sum()
    return torch.tensor(value)


@pytest.mark.parametrize("kind", ["shares", "gaps", "counts"])
def test_every_objective_keeps_the_contract(kind):
    """Some of the members explain what they explained before; without a background only the networks speak."""
    net = SnefyNet(StackedMLP(3, 2, (4,)), 3, n_neurons=4, n_readouts=2).double()
    D = torch.distributions.Dirichlet(torch.ones(3).double()).sample((20,))
    for k in range(3):
        prototype_init(net, k, D, torch.Generator().manual_seed(k))
        net.set_background(k, torch.ones(3), 0.1 * (k + 1))
    group = torch.zeros(3, dtype=torch.long)
    holed = D.clone()
    holed[::3, 1:] = torch.nan
    objective = {
        "shares": lambda: Shares(D.log()[None], net, group),
        "gaps": lambda: Gaps([holed], net, group),
        "counts": lambda: Counts((10 * D).round(), net),
    }[kind]()
    index = torch.stack([torch.arange(5), torch.arange(5, 10), torch.arange(10, 15)])
    x = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    whole = objective.log_prob(net, x, index)
    part = objective.select([2, 0]).log_prob(net.select([2, 0]), x[[2, 0]], index[[2, 0]])
    torch.testing.assert_close(part, whole[[2, 0]])
    alone = objective.without_background()
    assert alone.background is None
    assert objective.background is not None, "the objective itself stays"
    mixed = net.mix(alone.log_prob(net, x, index), objective.background_of(index).to(whole.dtype))
    torch.testing.assert_close(mixed, whole, rtol=1e-9, atol=1e-9)
