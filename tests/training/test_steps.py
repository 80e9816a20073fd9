"""The written-out training step and its kernel table, against scipy, autograd and the plain distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from snefy_ldl import SnefySimplex
from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.networks.starts import prototype_init
from snefy_ldl.training.kernels.pairs import PairKernel, SquaredLogDensity
from snefy_ldl.training.objectives import Shares, WrittenOutStep

CPU = torch.device("cpu")


def _exponents(shape, top, seed=0):
    """Log-uniform from the smallest allowed to ``top``."""
    random = np.random.default_rng(seed)
    return torch.as_tensor(np.exp(random.uniform(np.log(5e-3), np.log(top), shape)) - 0.495)


def _log_beta(exponents):
    alpha = 1.0 + exponents[:, :, None] + exponents[:, None]
    return torch.as_tensor(gammaln(alpha.numpy()).sum(-1) - gammaln(alpha.numpy().sum(-1)))


@pytest.mark.parametrize("shape", [(1, 64, 6), (3, 5, 3), (2, 4, 2), (1, 1, 4), (2, 2, 2), (1, 7, 150)])
@pytest.mark.parametrize("top", [3.0, 5e4])
def test_the_table_is_scipys(shape, top):
    exponents = _exponents(shape, top)
    ratio, g = PairKernel(shape, CPU).compute(exponents)
    log_beta = _log_beta(exponents)
    half = 0.5 * log_beta.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(g, half, rtol=1e-12, atol=1e-7)
    torch.testing.assert_close(ratio, (log_beta - half[:, :, None] - half[:, None]).exp(), rtol=1e-6, atol=1e-9)
    assert float(ratio.max()) <= 1.0 + 1e-8


@pytest.mark.parametrize("shape", [(1, 64, 6), (3, 5, 3), (2, 4, 2), (1, 1, 4), (2, 2, 2)])
def test_the_tables_gradient_is_autograds(shape):
    exponents = _exponents(shape, 100.0).requires_grad_()
    kernel = PairKernel(shape, CPU)
    kernel.compute(exponents.detach())
    random = torch.randn(shape[0], shape[1], shape[1], generator=torch.Generator().manual_seed(0)).double()
    gradient = random + random.mT
    alpha = 1.0 + exponents[:, :, None] + exponents[:, None]
    log_beta = torch.lgamma(alpha).sum(-1) - torch.lgamma(alpha.sum(-1))
    (expected,) = torch.autograd.grad((log_beta * gradient).sum(), exponents)
    torch.testing.assert_close(kernel.pull_back(gradient, torch.empty(shape).double()), expected, rtol=1e-8, atol=1e-7)


def test_single_precision_costs_no_digits_that_count():
    """Concentrations up to 100,000: the large part stays in float64, so the table keeps float32's own precision."""
    exponents = _exponents((2, 16, 4), 5e4)
    ratio, g = PairKernel((2, 16, 4), CPU, torch.float32).compute(exponents)
    log_beta = _log_beta(exponents)
    half = 0.5 * log_beta.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(g, half, rtol=1e-9, atol=2e-5)
    expected = (log_beta - half[:, :, None] - half[:, None]).exp()
    torch.testing.assert_close(ratio.double(), expected, rtol=1e-4, atol=1e-6)


def test_a_table_is_computed_afresh_each_time():
    kernel = PairKernel((1, 6, 3), CPU)
    first = kernel.compute(_exponents((1, 6, 3), 10.0))[0].clone()
    kernel.compute(_exponents((1, 6, 3), 10.0, seed=1))
    torch.testing.assert_close(kernel.compute(_exponents((1, 6, 3), 10.0))[0], first)


def _problem(form, balanced, hidden, mixed, dtype):
    """A small stack with features and labels; returns net, features, objective, rows and slopes."""
    generator = torch.Generator().manual_seed(3)
    net = SnefyNet(StackedMLP(2, 5, hidden), 4, n_neurons=7, n_readouts=3, exponent_form=form, balanced=balanced)
    net = net.to(dtype)
    D = torch.distributions.Dirichlet(torch.full((4,), 3.0, dtype=torch.float64)).sample((30,))
    for k in range(2):
        prototype_init(net, k, D, torch.Generator().manual_seed(k))
        net.background[k] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        net.backbone.scaler.limit[k] = 3.0
    with torch.no_grad():
        net.head_weight.mul_(20.0)
    if mixed:
        net.log_odds.copy_(torch.tensor([-2.0, -1.0]))
    X = torch.randn(30, 5, generator=generator).to(dtype)
    features = ScaledFeatures.of(net.backbone.scaler, X)
    objective = Shares(D.log()[None], net, torch.zeros(2, dtype=torch.long))
    index = torch.randint(30, (2, 8), generator=generator)
    slope = torch.randn(2, 8, generator=generator).to(dtype)
    return net, features, objective, index, slope


@pytest.mark.parametrize("form", ["log", "clip"])
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])
@pytest.mark.parametrize("mixed", [True, False])
def test_the_written_out_step_is_autograds(form, balanced, hidden, mixed):
    net, features, objective, index, slope = _problem(form, balanced, hidden, mixed, torch.float64)
    log_p = objective.log_prob(net, features.rows(index), index)
    names, parameters = zip(*net.named_parameters())
    expected = torch.autograd.grad(log_p, parameters, slope)
    step = WrittenOutStep(net, features, objective, 8)
    for _ in range(2):  # arrays that are used again must not remember
        written_out = step(index, slope)
        torch.testing.assert_close(written_out, log_p.detach(), rtol=1e-12, atol=1e-12)
        for name, parameter, wanted in zip(names, parameters, expected):
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("balanced", [True, False])
def test_the_density_is_the_distributions(balanced):
    """The training density, unbalanced too, is the plain distribution's: another implementation of the same law."""
    generator = torch.Generator().manual_seed(0)
    exponents = _exponents((3, 5, 4), 20.0)
    scale = torch.randn(3, 6, 5, generator=generator).double()
    readout = torch.randn(3, 2, 5, generator=generator).double()
    logs = torch.log_softmax(torch.randn(3, 6, 4, generator=generator).double(), -1)
    fused = SquaredLogDensity.apply(scale, exponents, readout, logs, None, None, balanced)
    for k in range(3):
        alpha = 1.0 + 2.0 * exponents[k].numpy()
        shift = 0.0 if balanced else torch.as_tensor(0.5 * (gammaln(alpha).sum(-1) - gammaln(alpha.sum(-1))))
        plain = SnefySimplex(exponents[k], readout[k], scale[k] + shift).log_prob(logs[k].exp())
        torch.testing.assert_close(fused[k], plain, rtol=1e-8, atol=1e-8)


def _stack(n_members=2, rows=4, n=5, m=3, n_labels=4):
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scale, readout = randn(n_members, rows, n), randn(n_members, m, n)
    exponents = torch.rand(n_members, n, n_labels, generator=generator, dtype=torch.float64) * 3 - 0.4
    logs = torch.log_softmax(randn(n_members, rows, n_labels), -1)
    return scale, exponents, readout, logs


@pytest.mark.slow
def test_the_written_out_gradient_is_the_gradient():
    scale, exponents, readout, logs = _stack()
    inputs = [tensor.requires_grad_() for tensor in (scale, exponents, readout)]
    assert torch.autograd.gradcheck(lambda *a: SquaredLogDensity.apply(*a, logs), inputs)
    background, odds = torch.randn(2, 4).double() + 1.0, torch.tensor([-1.0, 0.5]).double()
    assert torch.autograd.gradcheck(lambda *a: SquaredLogDensity.apply(*a, logs, background, odds), inputs)
