"""Where training starts: neurons at the data, or at random as in the paper; Dirichlets fitted to all labels."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import digamma, zeta
from torch import Tensor

from snefy_ldl._internal.special import EXPONENT_LIMIT, EXPONENT_MARGIN, ten_digits
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet

#: Range of the concentrations that neurons start with, in units of the labels' own.
CONCENTRATION_RANGE = (1.0, 32.0)


def label_concentration(D: Tensor) -> float:
    """Total concentration of the Dirichlet with the labels' own mean and variance (method of moments).

    ``Var[ℓ_r] = μ_r (1-μ_r) / (s+1)``, pooled over the labels.

    Args:
        D: label distributions (N, L).

    Returns:
        ``s``.

    Example:
        >>> round(label_concentration(torch.tensor([[0.25, 0.75], [0.75, 0.25]])), 6)
        3.0
    """
    mean, variance = D.mean(0), D.var(0, unbiased=False)
    return float((mean * (1.0 - mean)).sum()) / max(float(variance.sum()), 1e-12) - 1.0


def fit_dirichlet(logs: Tensor, start: Tensor, steps: int = 100) -> Tensor:
    """Maximum-likelihood concentration (L,) of one Dirichlet, by Newton's method (Minka 2000).

    Args:
        logs: mean of log ℓ over the rows (L,), on the CPU.
        start: a first guess (L,), on the CPU.
        steps: at most this many.

    Returns:
        The concentration (L,), float64.

    Example:
        >>> truth = torch.tensor([2.0, 3.0], dtype=torch.float64)
        >>> fit_dirichlet(torch.digamma(truth) - torch.digamma(truth.sum()), torch.ones(2)).round(decimals=6)
        tensor([2., 3.], dtype=torch.float64)
    """
    # NumPy: a network starts with a few of these steps on a few numbers, and torch takes five times as long for each
    alpha, mean = np.maximum(start.double().numpy(), 1e-3), logs.double().numpy()
    for _ in range(steps):
        gradient = digamma(alpha.sum()) - digamma(alpha) + mean
        diagonal, common = -zeta(2.0, alpha), zeta(2.0, alpha.sum())  # trigamma functions
        shift = (gradient / diagonal).sum() / (1.0 / common + (1.0 / diagonal).sum())
        step = (gradient - shift) / diagonal
        new = alpha - step
        alpha = np.clip(np.where(new > 0.0, new, alpha / 2.0), 2.0 * EXPONENT_MARGIN, 2.0 * EXPONENT_LIMIT)
        if np.abs(step).max() / alpha.max() < 1e-10:
            break
    return ten_digits(torch.from_numpy(alpha))


def prototype_init(
    net: SnefyNet,
    member: int,
    D: Tensor,
    generator: torch.Generator,
    concentration_range: tuple[float, float] = CONCENTRATION_RANGE,
    concentration: float | None = None,
) -> None:
    """Start one member at the data: each neuron takes a training label and a concentration near the labels' own.

    ``w_i = (s_i d_i - 1)/2`` with ``d_i`` a training label distribution and ``s_i`` log-uniform in a range of multiples
    of the labels' own concentration; V positive; the head near zero, so that all neurons start with equal mass.

    Args:
        net: the network.
        member: which of its members.
        D: training labels (N, L), strictly positive.
        generator: source of randomness.
        concentration_range: of the ``s_i``, in units of the labels' own concentration.
        concentration: the labels' own; by default of :func:`label_concentration`.
    """
    n_neurons = net.raw_exponents.shape[1]
    base = min(max(label_concentration(D) if concentration is None else concentration, 1.0), 1e4)
    rows = torch.randint(len(D), (n_neurons,), generator=generator)
    low, high = (math.log(multiple) for multiple in concentration_range)
    totals = base * torch.exp(low + (high - low) * torch.rand(n_neurons, 1, generator=generator, dtype=torch.float64))
    net.set_exponents(member, 0.5 * (totals * D[rows] - 1.0))
    _start_even(net, member, generator)


@torch.no_grad()
def _start_even(net: SnefyNet, member: int, generator: torch.Generator) -> None:
    """Positive readouts and a head near zero, so that all neurons start with equal mass; the backbone anew."""
    (n_readouts, n_neurons), width = net.readout.shape[1:], net.head_weight.shape[1]
    net.readout[member] = torch.rand(n_readouts, n_neurons, generator=generator) / math.sqrt(n_readouts)
    net.head_weight[member] = torch.randn(width, n_neurons, generator=generator) * (0.1 / math.sqrt(width))
    net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)


def paper_init(net: SnefyNet, member: int, D: Tensor, generator: torch.Generator) -> None:
    """Start one member as the paper words it: ``W1 ~ N(0, 2/L)`` clipped, ``V ~ N(0, 1/(mn))``, b = 0.

    Args:
        net: the network.
        member: which of its members.
        D: training labels (N, L); not looked at.
        generator: source of randomness.
    """
    n_neurons, n_labels = net.raw_exponents.shape[1:]
    n_readouts = net.readout.shape[1]
    exponents = torch.randn(n_neurons, n_labels, generator=generator) * math.sqrt(2.0 / n_labels)
    net.set_exponents(member, exponents.clamp_min(-0.5 + EXPONENT_MARGIN))
    with torch.no_grad():
        net.readout[member] = torch.randn(n_readouts, n_neurons, generator=generator) / math.sqrt(
            n_readouts * n_neurons
        )
        bound = 1.0 / math.sqrt(net.head_weight.shape[1])
        shape = net.head_weight.shape[1:]
        net.head_weight[member] = (torch.rand(shape, generator=generator) * 2 - 1) * bound
        net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)
