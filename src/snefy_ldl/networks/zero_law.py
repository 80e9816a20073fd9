"""The law of a network whose labels may be absent, its background as one more neuron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from snefy_ldl.distributions.zero_moments import pair_components
from snefy_ldl.distributions.zeros import ZeroSnefy
from snefy_ldl.special import log_quadratic_form, pair_index, symmetric

if TYPE_CHECKING:
    from snefy_ldl.networks.net import SnefyNet


def zero_law(net: SnefyNet, x: Any, centre: Tensor | None = None) -> ZeroSnefy:
    """The law with zeros at x, averaged over the members, background included: batch (B,), event (L,).

    Args:
        net: with presence.
        x: what the backbone takes.
        centre: ``c`` (L,), or None.

    Returns:
        The law, in float64.

    Example:
        >>> from snefy_ldl.networks import SnefyNet, StackedMLP
        >>> net = SnefyNet(StackedMLP(1, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3, presence=True)
        >>> zero_law(net, torch.zeros(5, 3)).prob_zero().shape
        torch.Size([5, 4])
    """
    exponents, presence, readout = net.exponents.double(), net.presence, net.readout.double()
    log_scale = net.output(x).double()
    if net.has_background:
        n, n_members = exponents.shape[1], net.n_members
        log_norm = pair_components(exponents, presence, exponents.new_ones(exponents.shape[2])).log_norm
        log_norm = log_norm.reshape(n_members, -1)
        i, j = pair_index(n, exponents.device)
        g = 0.5 * log_norm[:, i == j]
        kernel = symmetric((log_norm - g[:, i] - g[:, j]).exp(), n)
        log_z = log_quadratic_form((readout.transpose(1, 2) @ readout) * kernel, log_scale)
        exponents, presence, readout, log_scale = with_background(net, log_scale, log_z)
    return ZeroSnefy(exponents, presence, readout, log_scale.transpose(0, 1), centre, validate_args=False)


def with_background(net: SnefyNet, log_scale: Tensor, log_z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A net's neurons and one more that carries its background, alone in its own readout row.

    Args:
        net: with presence.
        log_scale: its output (K, B, n), float64.
        log_z: log normaliser of each member's rows (K, B).

    Returns:
        Exponents, presence (K, n+1, L), readout (K, m+1, n+1) and log scale (K, B, n+1).
    """
    extra = 0.5 * (log_z + net.log_odds[:, None])  # (K, B)
    alpha = net.background[:, None]
    exponents = torch.cat([net.exponents.double(), 0.5 * (alpha - 1.0)], 1)
    presence = torch.cat([net.presence, 0.5 * (net.background_odds[:, None] - torch.lgamma(alpha))], 1)
    readout = pad(net.readout.double(), (0, 1, 0, 1))
    readout[:, -1, -1] = 1.0
    return exponents, presence, readout, torch.cat([log_scale, extra[..., None]], -1)
