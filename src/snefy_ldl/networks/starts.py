"""Where training starts: neurons at the data, or at random as in the paper; Dirichlets fitted to all labels.

A net with presence trains ``b_ir`` with ``o_iir = exp(2 b_ir)`` (:attr:`SnefyNet.raw_presence`), so that changing an
exponent leaves the odds of its neuron unchanged; the ``a_ir`` of the law is ``b_ir - ½ log Γ(1 + 2 w_ir)``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, psi, zeta
from torch import Tensor

from snefy_ldl._internal.special import EXPONENT_LIMIT, EXPONENT_MARGIN, ten_digits
from snefy_ldl._internal.types import Array
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


#: How much of the averages a neuron's start holds, beside the row it is taken from.
BLEND = 0.2
#: Labels are there with at least this probability, and are absent with it, in every start and in the background.
RAREST = 5e-3


def fit_faces(D: Array) -> tuple[Array, Array]:
    """One component for all rows: presence frequencies, and the Dirichlet that explains the present shares best.

    Args:
        D: label distributions (N, L), with exact zeros.

    Returns:
        Concentration (L,), by maximum likelihood over the faces on which the rows lie, with a weak prior around one;
        and log odds of presence (L,).

    Example:
        >>> alpha, log_odds = fit_faces(np.random.default_rng(0).dirichlet([2.0, 3.0, 5.0], size=4000))
        >>> alpha.round(), bool((log_odds > 5).all())
        (array([2., 3., 5.]), True)
    """
    there = D > 0.0
    logs = np.where(there, np.log(np.where(there, D, 1.0)), 0.0).sum(0)
    times = there.sum(0)
    patterns, rows = np.unique(there, axis=0, return_counts=True)

    def loss(log_alpha: Array) -> tuple[float, Array]:
        alpha = np.exp(log_alpha)
        total = patterns @ alpha
        value = rows @ gammaln(total) - times @ gammaln(alpha) + (alpha - 1.0) @ logs
        slope = patterns.T @ (rows * psi(total)) - times * psi(alpha) + logs
        return -value + 0.5 * log_alpha @ log_alpha, -slope * alpha + log_alpha

    bounds = [(math.log(4.0 * EXPONENT_MARGIN), math.log(EXPONENT_LIMIT))] * D.shape[1]
    answer = minimize(loss, np.zeros(D.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
    chance = np.clip((times + 0.5) / (len(D) + 1.0), RAREST / 10.0, 1.0 - RAREST / 10.0)
    return np.exp(answer.x), np.log(chance / (1.0 - chance))


def presence_init(
    net: SnefyNet,
    member: int,
    D: Tensor,
    generator: torch.Generator,
    background_share: float | None = None,
    concentration_range: tuple[float, float] = CONCENTRATION_RANGE,
    blend: float = BLEND,
) -> None:
    """Start one member at the data: each neuron takes the presence pattern and the shares of a row, and some averages.

    Args:
        net: with presence.
        member: which of its members.
        D: training labels (N, L), with exact zeros; with a centre, the closed ``ℓ / c``.
        generator: source of randomness.
        background_share: gives the member a background fitted to D; None for none.
        concentration_range: of the neurons, in units of the labels' own concentration.
        blend: how much of the averages a neuron's start holds.

    Example:
        >>> net = SnefyNet(StackedMLP(1, 3, (8,)), n_labels=2, n_neurons=6, n_readouts=3, presence=True)
        >>> rows = torch.tensor([[1.0, 0.0], [0.4, 0.6]], dtype=torch.float64)
        >>> presence_init(net, 0, rows, torch.Generator().manual_seed(0), 0.02)
        >>> bool((net(torch.zeros(1, 3)).prob_zero()[:, 1] > 0.1).all())
        True
    """
    n_neurons = net.raw_exponents.shape[1]
    D = D.double()
    alpha, log_odds = fit_faces(D.numpy())
    concentration, odds = torch.as_tensor(alpha), torch.as_tensor(log_odds)
    there = D > 0.0
    rows = torch.randint(len(D), (n_neurons,), generator=generator)
    here = there[rows].double()
    # absent labels take the share that the averages lead one to expect beside the present ones
    average = concentration / (here @ concentration)[:, None]  # (n, L)
    shares = torch.where(here > 0, (1.0 - blend) * D[rows] + blend * average, average)
    base = max(float((there.double() @ concentration).mean()), 1.0)
    low, high = (math.log(multiple) for multiple in concentration_range)
    totals = base * torch.exp(low + (high - low) * torch.rand(n_neurons, 1, generator=generator, dtype=torch.float64))
    net.set_exponents(member, 0.5 * (totals * shares - 1.0))
    chance = ((1.0 - blend) * here + blend * torch.sigmoid(odds)).clamp(RAREST, 1.0 - RAREST)
    with torch.no_grad():
        net.raw_presence[member] = (0.5 * chance.logit()).to(net.raw_presence)
    _start_even(net, member, generator)
    if background_share is not None:
        net.set_background(member, concentration, background_share)
        net.background_odds[member] = odds
