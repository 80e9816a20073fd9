"""What a network keeps between predictions is never stale, after any change of its parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from snefy_ldl.networks import SnefyNet, StackedMLP


def small_net(seed: int = 0, n_members: int = 2) -> SnefyNet:
    generator = torch.Generator().manual_seed(seed)
    net = SnefyNet(StackedMLP(n_members, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.4)
    for k in range(n_members):
        net.set_background(k, torch.tensor([1.0, 2.0, 3.0, 1.5]), 0.05)
    return net


def answers(net: SnefyNet) -> torch.Tensor:
    with torch.no_grad():
        dist = net(torch.linspace(-1.0, 1.0, 15).reshape(5, 3))
        return torch.cat([dist.mean, dist.quantiles([0.1, 0.9]).flatten(1), dist.prob_greater(0, 1)[:, None]], 1)


def fresh(net: SnefyNet) -> torch.Tensor:
    """The same answers by a network that has kept nothing."""
    other = small_net(99, net.n_members)
    other.load_state_dict(net.state_dict())
    return answers(other)


def step_of_an_optimiser(net: SnefyNet) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    (-net(torch.ones(2, 3)).log_prob(torch.full((2, 4), 0.25).double())).sum().backward()
    optimiser.step()


CHANGES: dict[str, Callable[[SnefyNet], object]] = {
    "an optimiser's step": step_of_an_optimiser,
    "load_state_dict": lambda net: net.load_state_dict(small_net(5).state_dict()),
    "through .data": lambda net: net.readout.data.mul_(1.5),  # which leaves the parameter's version as it was
    "another tensor": lambda net: setattr(net.readout, "data", net.readout.data.clone() * 2.0 + 0.1),
    "set_exponents": lambda net: net.set_exponents(1, torch.rand(6, 4) * 3.0),
    "log_odds": lambda net: net.log_odds.fill_(-torch.inf),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_change_is_seen(change: str) -> None:
    net = small_net()
    before = answers(net)
    assert torch.equal(answers(net), before)
    CHANGES[change](net)
    after = answers(net)
    assert not torch.equal(after, before)
    assert torch.equal(after, fresh(net))


def test_the_family_is_kept_only_without_gradients() -> None:
    net, x = small_net(), torch.linspace(-1.0, 1.0, 15).reshape(5, 3)
    with torch.inference_mode():
        kept, family = net(x).mean.clone(), net(x).family
        assert net(x + 1.0).family is family
    dist = net(x)
    assert dist.family is not family
    torch.testing.assert_close(dist.mean, kept, rtol=1e-12, atol=1e-15)
    for parameter in (net.raw_exponents, net.readout):
        parameter.requires_grad_(False)
    net(x).mean[:, 0].sum().backward()  # the backbone still learns, with what was made in inference mode
    assert float(net.head_bias.grad.abs().max()) > 0.0  # type: ignore[union-attr]
