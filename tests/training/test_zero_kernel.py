"""The kernel for labels with zeros: its value and gradients against plain autograd over all n² pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.networks.starts import presence_init
from snefy_ldl.training.kernels.presence import radial_nodes
from snefy_ldl.training.objectives import ZeroObjective

MEMBERS, ROWS, FEATURES = 2, 11, 3


def labels(n_labels: int, kind: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    D = torch.rand(30, n_labels, generator=generator, dtype=torch.float64) + 0.05
    if kind == "one present":
        D = torch.eye(n_labels, dtype=torch.float64)[torch.arange(30) % n_labels]
    elif kind == "some present":
        D = D * (torch.rand(30, n_labels, generator=generator) < 0.5)
        D[torch.arange(30), torch.arange(30) % n_labels] += 0.1
    return D / D.sum(1, keepdim=True)


def make_net(D: Tensor, n: int, background: float | None, spread: float = 1.0, members: int = MEMBERS) -> SnefyNet:
    net = SnefyNet(StackedMLP(members, FEATURES, (5,)), D.shape[1], n_neurons=n, n_readouts=3, presence=True).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for k in range(members):
            presence_init(net, k, D, torch.Generator().manual_seed(k), background)
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        net.raw_exponents.mul_(spread)
        net.raw_presence.mul_(spread)
        net.readout.sub_(0.3)  # weights of both signs
    return net


def oracle(
    net: SnefyNet, x: Tensor, D: Tensor, index: Tensor, log_centre: Tensor | None = None, shift: Tensor | None = None
) -> Tensor:
    """The formula in the kernel's module word for word, for centres (K, N, L) and shifts (N, L)."""
    w, a, output = net.exponents, net.presence, net.output(x)
    gram = net.readout.mT @ net.readout
    every = []
    for k, rows in enumerate(index):
        there = D[rows] > 0
        logs = torch.where(there, D[rows], 1.0).log()
        moved = logs if log_centre is None else logs - log_centre[k, rows]
        moved = torch.where(there, torch.log_softmax(moved.masked_fill(~there, -torch.inf), -1), 0.0)
        b = torch.zeros_like(D[rows]) if shift is None else shift[rows]
        log_odds = (a[k, :, None] + a[k, None] + torch.lgamma(1.0 + w[k, :, None] + w[k, None])) + b[:, None, None]
        total = softplus(log_odds).sum(-1).clamp_min(1e-30)  # a kernel as small as that counts for nothing
        log_kernel = total + torch.log(-torch.expm1(-total))  # (B, n, n)
        g = 0.5 * log_kernel.diagonal(dim1=1, dim2=2)
        h = output[k] - g
        u = h + (there[:, None] * (a[k] + 0.5 * b[:, None]) + moved[:, None] * w[k]).sum(-1)
        s = (there[:, None] * (w[k] + 0.5)).sum(-1)
        terms = u[:, :, None] + u[:, None] + torch.lgamma(s[:, :, None] + s[:, None])
        norms = h[:, :, None] + h[:, None] + log_kernel
        both = []
        for exponent in (terms, norms):
            top = exponent.detach().amax((1, 2), keepdim=True)
            both.append((gram[k] * (exponent - top).exp()).sum((1, 2)).log() + top.flatten())
        every.append(both[0] - both[1] + (moved - logs).sum(-1))
    return torch.stack(every)


CASES = {
    "few supports": {"n_labels": 3, "n": 6, "kind": "some present"},
    "many supports": {"n_labels": 6, "n": 5, "kind": "some present"},
    "one neuron": {"n_labels": 3, "n": 1, "kind": "some present"},
    "one neuron, many supports": {"n_labels": 6, "n": 1, "kind": "some present"},
    "two neurons": {"n_labels": 6, "n": 2, "kind": "some present"},
    "one present": {"n_labels": 4, "n": 4, "kind": "one present"},
    "many labels, one present": {"n_labels": 20, "n": 4, "kind": "one present"},
    "all present": {"n_labels": 4, "n": 4, "kind": "all present"},
    "many neurons": {"n_labels": 6, "n": 17, "kind": "some present"},
    "many neurons, one present": {"n_labels": 20, "n": 16, "kind": "one present"},
    "many neurons, extreme": {"n_labels": 6, "n": 20, "kind": "some present", "spread": 3.0},
    "many neurons, rather extreme": {"n_labels": 6, "n": 40, "kind": "some present", "spread": 1.5},
    "extreme": {"n_labels": 6, "n": 4, "kind": "some present", "spread": 3.0},
    "extreme, few supports": {"n_labels": 3, "n": 4, "kind": "some present", "spread": 3.0},
}


@pytest.mark.parametrize("background", [None, 0.2])
@pytest.mark.parametrize("moved", ["nothing", "centre", "rows"])
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_autograds(case: str, moved: str, background: float | None) -> None:
    settings = {"spread": 1.0, **CASES[case]}
    D = labels(settings["n_labels"], settings["kind"])
    net = make_net(D, settings["n"], background, settings["spread"])
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(30, FEATURES, generator=generator, dtype=torch.float64)
    index = torch.stack([torch.randperm(30, generator=generator)[:ROWS] for _ in range(MEMBERS)])
    slope = torch.randn(MEMBERS, ROWS, generator=generator, dtype=torch.float64)
    log_centre, shift, centre = None, None, None
    if moved == "centre":
        log_centre = torch.randn(MEMBERS, 1, D.shape[1], generator=generator, dtype=torch.float64)
        centre = log_centre.expand(-1, 30, -1)
    elif moved == "rows":
        log_centre = torch.randn(1, 30, D.shape[1], generator=generator, dtype=torch.float64)
        shift = torch.randn(30, D.shape[1], generator=generator, dtype=torch.float64)
        centre = log_centre.expand(MEMBERS, -1, -1)
    objective = ZeroObjective([D], net, torch.zeros(MEMBERS, dtype=torch.long), log_centre, shift)

    plain = net.mix(oracle(net, features[index], D, index, centre, shift), objective.background_of(index))
    expected = dict(zip(dict(net.named_parameters()), torch.autograd.grad(plain, [*net.parameters()], slope)))

    value = objective.log_prob(net, features[index], index)
    torch.testing.assert_close(value, plain, rtol=1e-9, atol=1e-7)
    value.backward(slope)
    check = {"by autograd's node": {name: p.grad for name, p in net.named_parameters()}}
    step = objective.written_out_step(net, ScaledFeatures.of(net.backbone.scaler, features), ROWS)
    torch.testing.assert_close(step(index, slope), plain, rtol=1e-9, atol=1e-7)
    check["written out"] = {name: p.grad for name, p in net.named_parameters()}
    for route, gradients in check.items():
        for name, gradient in gradients.items():
            scale = max(1.0, float(expected[name].abs().max()))
            error = float((gradient - expected[name]).abs().max()) / scale
            assert error < 1e-6, f"{route}, {name}: {error}"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-9)])
def test_nodes_within_a_window_give_the_gamma_function(dtype: torch.dtype, tolerance: float) -> None:
    nodes = radial_nodes(dtype)
    for m in np.geomspace(0.01, 1e6, 300):
        size = torch.tensor([m], dtype=torch.float64)
        first, count = nodes.window(size, size)
        part = slice(int(first), int(first) + count)
        value = torch.logsumexp(m * nodes.y[part] + 2.0 * nodes.half_log_weight[part], 0)
        assert abs(float(value) - gammaln(m)) < tolerance * max(1.0, 1e-6 * abs(gammaln(m)))
        assert count < 60


def test_sizes_beyond_the_nodes_are_noticed() -> None:
    _, count = radial_nodes(torch.float32).window(torch.tensor([1e12]).double(), torch.tensor([1e12]).double())
    assert count > 10_000


@pytest.mark.parametrize(("n_labels", "n"), [(3, 24), (6, 24), (6, 8)])
def test_single_precision_is_close(n_labels: int, n: int) -> None:
    """Few supports, integrals over the radius, and pairs: values and gradients to float32's own precision."""
    D = labels(n_labels, "some present")
    net = make_net(D, n, 0.02)
    x, index = torch.randn(30, FEATURES, generator=torch.Generator().manual_seed(5)), torch.arange(30).expand(2, 30)
    group = torch.zeros(MEMBERS, dtype=torch.long)
    exact = ZeroObjective([D], net, group).log_prob(net, x.double()[index], index)
    exact.sum().backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    net = net.float()
    net.log_odds, net.background = net.log_odds.double(), net.background.double()
    net.background_odds, net.centre = net.background_odds.double(), net.centre.double()
    net.zero_grad()
    value = ZeroObjective([D], net, group).log_prob(net, x[index], index)
    value.sum().backward()
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=2e-4)
    for name, parameter in net.named_parameters():
        scale = max(1.0, float(gradients[name].abs().max()))
        assert parameter.grad is not None
        assert float((parameter.grad.double() - gradients[name]).abs().max()) < 1e-3 * scale, name
