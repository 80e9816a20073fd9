"""SnefyHead: in a plain training loop, and against the distributions it returns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from snefy_ldl import SnefyHead
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError

CITY = make_city_districts(n=300, random_state=0)
X = torch.as_tensor((CITY.X - CITY.X.mean(0)) / CITY.X.std(0)).float()
D = torch.as_tensor(CITY.D)
COUNTS = torch.as_tensor(np.random.default_rng(0).multinomial(12, CITY.D)).double()


class Net(nn.Module):
    """Two layers and the head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.head = SnefyHead(16, n_labels=3, n_neurons=16, n_readouts=8).start_from(D)

    def groups(self):
        return [{"params": self.body.parameters(), "lr": 5e-3}, *self.head.parameter_groups(5e-3)]


def test_every_parameter_is_in_one_group():
    head = SnefyHead(4, n_labels=3)
    listed = [parameter for group in head.parameter_groups(0.1) for parameter in group["params"]]
    assert {id(parameter) for parameter in listed} == {id(parameter) for parameter in head.parameters()}
    assert len(listed) == len(list(head.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["shares", "counts"])
def test_a_plain_loop_learns(labels):
    net = Net()
    optimizer = torch.optim.AdamW(net.groups())
    losses = []
    for _ in range(60):
        dist = net.head(net.body(X))
        loss = net.head.loss(dist, D) if labels == "shares" else net.head.loss(dist, counts=COUNTS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().max() > 0 for p in net.parameters())
    mean = net.head(net.body(X)).mean.detach().numpy()
    away = ((mean - CITY.truth.mean(CITY.X)) ** 2).mean()
    assert away < 0.6 * ((CITY.D.mean(0) - CITY.truth.mean(CITY.X)) ** 2).mean(), "closer to the truth than the average"


def test_the_loss_is_the_laws_own_likelihood():
    net = Net()
    dist = net.head(net.body(X))
    assert net.head.loss(dist, D).item() == pytest.approx(-dist.log_prob(D).mean().item())
    assert net.head.loss(dist, counts=COUNTS).item() == pytest.approx(-dist.log_prob_counts(COUNTS).mean().item())
    with pytest.raises(InputError, match="or counts"):
        net.head.loss(dist)


def test_a_start_at_the_labels_is_a_better_start():
    plain, started = SnefyHead(5, n_labels=3), SnefyHead(5, n_labels=3).start_from(D)
    assert started.loss(started(X), D) < plain.loss(plain(X), D)
    votes = SnefyHead(5, n_labels=3).start_from(counts=COUNTS)
    assert votes.loss(votes(X), counts=COUNTS) < plain.loss(plain(X), counts=COUNTS)
    with pytest.raises(InputError, match="start_from"):
        plain.start_from()


def test_the_seed_settles_the_start_and_leaves_the_callers_generator_alone():
    torch.manual_seed(3)
    first = SnefyHead(5, n_labels=3, random_state=7).start_from(D)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
    second = SnefyHead(5, n_labels=3, random_state=7).start_from(D)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))


def test_the_density_keeps_its_precision_under_autocast():
    net = Net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = net.body(X)
        dist = net.head(features)
    assert features.dtype == torch.bfloat16
    assert dist.log_prob(D).dtype == torch.float64
    torch.testing.assert_close(dist.log_prob(D), net.head(features.float()).log_prob(D))


def test_wrong_features_are_told():
    with pytest.raises(InputError, match=r"\(rows, 5\); got \(2, 4\)"):
        SnefyHead(5, n_labels=3)(torch.zeros(2, 4))
