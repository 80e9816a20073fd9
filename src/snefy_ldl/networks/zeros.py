"""Networks whose labels may be absent: where they start, and the background of such labels.

A net with presence keeps ``b_ir`` with ``o_iir = exp(2 b_ir)`` (:attr:`SnefyNet.raw_presence`), so that changing an
exponent leaves the odds of its own neuron where they are; the law's ``a_ir`` is ``b_ir - ½ log Γ(1 + 2 w_ir)``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import gammaln, psi
from torch import Tensor

from snefy_ldl._internal.special import EXPONENT_LIMIT, EXPONENT_MARGIN
from snefy_ldl._internal.types import Array
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.starts import CONCENTRATION_RANGE

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
    n_neurons, n_readouts = net.raw_exponents.shape[1], net.readout.shape[1]
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
        net.readout[member] = torch.rand(n_readouts, n_neurons, generator=generator) / math.sqrt(n_readouts)
        width = net.head_weight.shape[1]
        net.head_weight[member] = torch.randn(width, n_neurons, generator=generator) * (0.1 / math.sqrt(width))
        net.head_bias[member] = 0.0
    if isinstance(net.backbone, StackedMLP):
        net.backbone.reset(member, generator)
    if background_share is not None:
        net.set_background(member, concentration, background_share)
        net.background_odds[member] = odds
