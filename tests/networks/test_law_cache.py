"""What a network keeps between predictions is never stale, whoever changes its parameters and however."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.networks.net import LawCache

SMALL = {"n_neurons": 6, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "random_state": 0}
SMALL |= {"guides": None}


def small_net(seed: int = 0, n_members: int = 2, background: bool = True) -> SnefyNet:
    generator = torch.Generator().manual_seed(seed)
    net = SnefyNet(StackedMLP(n_members, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.4)
        if background:
            for k in range(n_members):
                net.set_background(k, torch.tensor([1.0, 2.0, 3.0, 1.5]), 0.05)
    return net


def answers(net: SnefyNet) -> torch.Tensor:
    with torch.no_grad():
        law = net(torch.linspace(-1.0, 1.0, 15).reshape(5, 3))
        return torch.cat([law.mean, law.quantiles([0.1, 0.9]).flatten(1), law.prob_greater(0, 1)[:, None]], 1)


def fresh(net: SnefyNet) -> torch.Tensor:
    """The same answers by a network that has kept nothing."""
    other = small_net(99, net.n_members)
    other.load_state_dict(net.state_dict())
    return answers(other)


def step_of_an_optimiser(net: SnefyNet) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    (-net(torch.ones(2, 3)).log_prob(torch.full((2, 4), 0.25).double())).sum().backward()
    optimiser.step()


def through_data(net: SnefyNet) -> None:
    net.readout.data.mul_(1.5)  # leaves the parameter's version as it was
    net.raw_exponents.data.add_(0.1)


CHANGES: dict[str, Callable[[SnefyNet], object]] = {
    "an optimiser's step": step_of_an_optimiser,
    "load_state_dict": lambda net: net.load_state_dict(small_net(5).state_dict()),
    "through .data": through_data,
    "another tensor": lambda net: setattr(net.readout, "data", net.readout.data.clone() * 2.0 + 0.1),
    "set_exponents": lambda net: net.set_exponents(1, torch.rand(6, 4) * 3.0),
    "set_background": lambda net: net.set_background(0, torch.tensor([9.0, 1.0, 1.0, 1.0]), 0.4),
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


def test_the_family_is_kept_and_given_out_again() -> None:
    net, x = small_net(), torch.zeros(2, 3)
    with torch.no_grad():
        family = net(x).family
        assert net(x + 1.0).family is family
    assert net(x).family is not family  # with gradients nothing is kept
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    assert net(x).family is family


def test_predictions_with_gradients_are_those_without() -> None:
    net, x = small_net(), torch.linspace(-1.0, 1.0, 15).reshape(5, 3)
    with torch.no_grad():
        kept = net(x).mean
    law = net(x)
    torch.testing.assert_close(law.mean, kept, rtol=1e-12, atol=1e-15)
    law.mean[:, 0].sum().backward()
    assert float(net.raw_exponents.grad.abs().max()) > 0.0  # type: ignore[union-attr]


def test_what_was_made_in_inference_mode_serves_training() -> None:
    net, x = small_net(), torch.ones(2, 3)
    with torch.inference_mode():
        _ = net(x).mean
    net.raw_exponents.requires_grad_(False)
    net.readout.requires_grad_(False)
    net(x).mean[:, 0].sum().backward()  # the backbone still learns
    assert float(net.head_bias.grad.abs().max()) > 0.0  # type: ignore[union-attr]


def test_copies_take_nothing_along() -> None:
    net = small_net()
    before = answers(net)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(answers(other), before, rtol=0.0, atol=0.0)
    one = net.select([1])
    with torch.no_grad():
        torch.testing.assert_close(one(torch.ones(1, 3)).mean, net(torch.ones(1, 3)).members()[1].mean)
    size = len(pickle.dumps(net))
    assert size == len(pickle.dumps(small_net()))


def test_partial_fit_and_a_second_fit_are_seen() -> None:
    city = make_city_districts(n=60, random_state=0)
    model = SnefyLDL(**SMALL).fit(city.X, city.D)
    first = model.predict_interval(city.X[:3])
    model.partial_fit(city.X, city.D)
    second = model.predict_interval(city.X[:3])
    assert not np.array_equal(first, second)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict_interval(city.X[:3]), second)
    model.fit(city.X, city.D)
    np.testing.assert_array_equal(model.predict_interval(city.X[:3]), first)


def test_threads_see_one_set_of_parts_while_parameters_change() -> None:
    """Readers during a change get the old parts or the new ones, each whole."""
    kept, source, errors = LawCache(), torch.zeros(3), []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            barrier.wait(30)
            for k in range(300):
                value = torch.full((3,), float((number + k) % 3))
                assert kept.get([value], lambda value=value: value * 2.0).tolist() == (value * 2.0).tolist()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert errors == []
    assert kept.get([source], lambda: "zeros") is not None
