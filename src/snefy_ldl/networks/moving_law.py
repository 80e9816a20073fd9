"""The law of a network whose rows have their own centre, its background as one more neuron."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from snefy_ldl.distributions.moving import MovingSnefy, moved_log_norm
from snefy_ldl.distributions.zero_moments import pair_components
from snefy_ldl.networks.zero_law import with_background
from snefy_ldl.special import log_signed_sum, pair_gram, pair_index

if TYPE_CHECKING:
    from snefy_ldl.networks.net import SnefyNet


def moving_zero_law(net: SnefyNet, log_scale: Tensor, log_centre: Tensor, shift: Tensor) -> MovingSnefy:
    """The law with zeros, averaged over the members, background included: batch (B,), event (L,).

    Args:
        net: with presence.
        log_scale: its output (K, B, n), float64.
        log_centre: ``log c(x)`` (B, L).
        shift: of the log odds of presence (B, L).

    Returns:
        The law, in float64.

    Example:
        >>> import torch
        >>> from snefy_ldl.networks import SnefyNet, StackedMLP
        >>> net = SnefyNet(StackedMLP(1, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3, presence=True)
        >>> even = torch.zeros(5, 4).double()
        >>> moving_zero_law(net, torch.zeros(1, 5, 6).double(), even, even).prob_zero().shape
        torch.Size([5, 4])
    """
    exponents, presence, readout = net.exponents.double(), net.presence, net.readout.double()
    if net.has_background:
        n, n_members = exponents.shape[1], net.n_members
        i, j = pair_index(n, exponents.device)
        pairs = pair_components(exponents, presence, exponents.new_ones(exponents.shape[2]))
        log_norm = moved_log_norm(pairs.log_odds.unflatten(0, (n_members, -1)), shift[None])  # (K, B, P)
        g = 0.5 * log_norm[..., i == j]
        terms = log_scale[..., i] + log_scale[..., j] + log_norm - g[..., i] - g[..., j]
        log_z = log_signed_sum(terms, pair_gram(readout)[:, None])  # (K, B)
        exponents, presence, readout, log_scale = with_background(net, log_scale, log_z)
    return MovingSnefy(exponents, presence, readout, log_scale.transpose(0, 1), log_centre, shift)
