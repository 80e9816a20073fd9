"""The law of a network whose labels may be absent, its background as one more neuron."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from snefy_ldl._internal.special import log_signed_sum, pair_index
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.components import moved_log_norm
from snefy_ldl.distributions.family import PairFamily

if TYPE_CHECKING:
    from snefy_ldl.networks.net import SnefyNet


def zero_law(
    net: SnefyNet, log_scale: Tensor, log_centre: Tensor | None = None, shift: Tensor | None = None
) -> SnefySimplex:
    """The law with zeros, averaged over the members, background included: batch (B,), event (L,).

    Args:
        net: with presence.
        log_scale: its output (K, B, n), float64.
        log_centre: ``log c(x)`` (B, L) where each row has its own centre; else the network's own centre is taken.
        shift: of the log odds of presence (B, L), where each row has its own.

    Returns:
        The law, in float64.

    Example:
        >>> from snefy_ldl.networks import SnefyNet, StackedMLP
        >>> net = SnefyNet(StackedMLP(1, 3, (8,)), n_labels=4, n_neurons=6, n_readouts=3, presence=True)
        >>> zero_law(net, torch.zeros(1, 5, 6).double()).prob_zero().shape
        torch.Size([5, 4])
    """
    bare, family = net.kept(_sources(net), lambda: _families(net))
    if net.has_background:  # its share follows each row's normaliser without it
        i, j = pair_index(bare.n_neurons, bare.device)
        if shift is None:
            terms = log_scale[..., i] + log_scale[..., j] + bare.log_kernel[:, None]
        else:
            assert bare.components is not None
            log_odds = bare.components.log_odds.unflatten(0, (net.n_members, -1))
            log_norm = moved_log_norm(log_odds, shift[None])  # (K, B, P)
            g = 0.5 * log_norm[..., i == j]
            terms = log_scale[..., i] + log_scale[..., j] + log_norm - g[..., i] - g[..., j]
        log_z = log_signed_sum(terms, bare.gram[:, None])  # (K, B)
        extra = 0.5 * (log_z + net.log_odds[:, None])
        log_scale = torch.cat([log_scale, extra[..., None]], -1)
    own = net.centre[0] if net.has_centre else None
    centre = own if log_centre is None else log_centre.double().exp()
    rows = log_scale.transpose(0, 1)
    return SnefySimplex(
        family.exponents, family.readout, rows, validate_args=False, family=family, centre=centre, shift=shift
    )


def _sources(net: SnefyNet) -> list[Tensor]:
    """All that the family of a net depends on."""
    return [net.raw_exponents, net.presence, net.readout, net.background, net.background_odds, net.log_odds]


def _families(net: SnefyNet) -> tuple[PairFamily, PairFamily]:
    """The pairs of a net's neurons, and with one more that carries its background, alone in its own readout row."""
    # copies: parameters that are float64 already would change under a law that somebody holds
    exponents, presence, readout = (part.double().clone() for part in (net.exponents, net.presence, net.readout))
    bare = PairFamily(exponents, readout, None, presence)
    if not net.has_background:
        return bare, bare
    alpha = net.background[:, None]
    exponents = torch.cat([exponents, 0.5 * (alpha - 1.0)], 1)
    presence = torch.cat([presence, 0.5 * (net.background_odds[:, None] - torch.lgamma(alpha))], 1)
    readout = pad(readout, (0, 1, 0, 1))
    readout[:, -1, -1] = 1.0
    return bare, PairFamily(exponents, readout, None, presence)
