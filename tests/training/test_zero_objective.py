"""The likelihood of label distributions with zeros: against the law, finite differences, and a fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.networks.starts import presence_init
from snefy_ldl.training.loop import Trainer, TrainingLoop
from snefy_ldl.training.objectives import ZeroObjective
from snefy_ldl.training.optimiser import limit_gradients
from snefy_ldl.training.settings import PRESENCE_RATE, Recipe


def labels(n: int = 60, n_labels: int = 4, seed: int = 0) -> Tensor:
    """Rows with one to four labels; which are there and how much depends on the row's number."""
    rng = np.random.default_rng(seed)
    x = np.linspace(-1, 1, n)
    chance = 1 / (1 + np.exp(-np.outer(x, np.linspace(-4, 4, n_labels))))
    there = rng.random((n, n_labels)) < chance
    there[np.arange(n), rng.integers(n_labels, size=n)] = True
    D = there * rng.gamma(3.0 + 2.0 * np.outer(x + 1, np.arange(n_labels)))
    return torch.as_tensor(D / D.sum(1, keepdims=True))


def make_net(
    D: Tensor, members: int = 2, background: float | None = 0.02, dtype: torch.dtype = torch.float64
) -> SnefyNet:
    net = SnefyNet(StackedMLP(members, 3, (8,)), D.shape[1], n_neurons=6, n_readouts=4, presence=True)
    for k in range(members):
        presence_init(net, k, D, torch.Generator().manual_seed(k), background)
    with torch.no_grad():
        net.head_weight.mul_(20.0)
        net.readout.sub_(0.2)  # weights of both signs
    return net.double()


@pytest.mark.parametrize("background", [None, 0.3])
def test_likelihood_is_the_law_s(background: float | None) -> None:
    D = labels()
    net = make_net(D, background=background)
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    index = torch.stack([torch.arange(60), torch.arange(59, -1, -1)])
    value = ZeroObjective([D], net, torch.zeros(2, dtype=torch.long)).log_prob(net, x[index], index)
    for k in range(2):
        law = net.select([k])(x[index[k]])
        assert law.has_atoms
        torch.testing.assert_close(value[k], law.log_prob(D[index[k]]), rtol=0, atol=1e-9)


def test_likelihood_with_a_centre_is_the_law_s() -> None:
    D, centre = labels(), torch.tensor([0.1, 1.0, 3.0, 0.5], dtype=torch.float64)
    net = make_net(D, members=1)
    x, index = torch.zeros(1, 60, 3, dtype=torch.float64), torch.arange(60)[None]
    value = ZeroObjective([D], net, torch.zeros(1, dtype=torch.long), centre.log()[None, None]).log_prob(net, x, index)
    for log_centre in (centre.log(), centre.log().expand(60, -1)):  # one for all rows, or each row's own
        law = net.law(net.output(x[0]), log_centre)
        torch.testing.assert_close(value[0], law.log_prob(D), rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_labels", [3, 6])
def test_gradients_against_finite_differences(n_labels: int) -> None:
    """Three labels have few supports, which rows share; of six there are so many that each row brings its own."""
    D, rows = labels(n_labels=n_labels), 60
    net = make_net(D, members=1)
    objective = ZeroObjective([D], net, torch.zeros(1, dtype=torch.long))
    x = torch.randn(1, rows, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    index = torch.arange(rows)[None]
    assert (objective.supports is None) == (n_labels == 6)
    objective.log_prob(net, x, index).sum().backward()
    for parameter in (net.raw_exponents, net.raw_presence, net.readout, net.head_weight, net.head_bias):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.add_(step * direction)
                values.append(float(objective.log_prob(net, x, index).sum()))
                parameter.sub_(step * direction)
        assert parameter.grad is not None
        slope = float((parameter.grad * direction).sum())
        assert abs((values[0] - values[1]) / 2e-5 - slope) < 1e-5 * max(1.0, abs(slope))


def test_members_and_groups_follow_select() -> None:
    D, other = labels(), labels(seed=1)
    net = make_net(D)
    x, index = torch.zeros(2, 5, 3, dtype=torch.float64), torch.arange(5).expand(2, 5)
    both = ZeroObjective([D], net, torch.zeros(2, dtype=torch.long))
    second = both.select([1]).log_prob(net.select([1]), x[1:], index[1:])
    torch.testing.assert_close(second, both.log_prob(net, x, index)[1:])
    assert not torch.equal(D, other)


def test_each_member_s_gradient_is_cut_alone() -> None:
    net = make_net(labels())
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert net.readout.grad is not None
    net.readout.grad[0, 0, 0], net.readout.grad[1, 0, 0] = 30.0, 0.5
    limit_gradients(net, 1.0)
    assert float(net.readout.grad[0, 0, 0]) == 1.0
    assert float(net.readout.grad[1, 0, 0]) == 0.5


@pytest.mark.slow
def test_a_fit_learns_presence_and_shares() -> None:
    """Features that say which labels are there: the fit must beat the background, and know the zeros better than it."""
    D = labels(300)
    x = torch.linspace(-1, 1, 300)[:, None].expand(-1, 3).contiguous()
    net = SnefyNet(StackedMLP(1, 3, (16,)), 4, n_neurons=24, n_readouts=8, presence=True)
    presence_init(net, 0, D, torch.Generator().manual_seed(0), 0.02)
    objective = ZeroObjective([D], net, torch.zeros(1, dtype=torch.long))
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(epochs=20, batch_size=16, learning_rate=1e-2, exponent_rate=PRESENCE_RATE)
    trainer = Trainer(TrainingLoop(net, x, objective, [(rows[60:], rows[:60])], recipe, [0]))
    trainer.advance(recipe.epochs)
    run = trainer.finish()
    assert run.repairs == 0
    assert objective.background is not None
    assert run.best_loss[0] < -float(objective.background[0, rows[:60]].mean()) - 0.3
    with torch.no_grad():
        law = net(x[rows[:60]])
    absent = (D[rows[:60]] == 0).double()
    # the generator draws presence with these chances, and puts one of the four labels in whatever they say
    truth = 0.75 * torch.sigmoid(-x[rows[:60], :1].double() * torch.linspace(-4, 4, 4, dtype=torch.float64))
    best, constant = (float((chance - absent).square().mean()) for chance in (truth, absent.mean(0)))
    assert float((law.prob_zero() - absent).square().mean()) < 0.5 * (best + constant)
