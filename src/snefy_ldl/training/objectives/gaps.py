"""Label distributions of which some shares are unknown, by the exact density of what is known.

Where the labels S of a row are unknown, the others and ``r = 1 - Σ_{l not in S} ℓ_l`` are known: the row is a label
distribution with the labels of S merged, and the family is closed under merging. In terms of the neurons

    p(ℓ_known, r | x) = eᵀ (M ∘ K^S) e / Z(x),   K^S_ij = Π_{l in S} Γ(α_ijl) / Γ(Σ_{l in S} α_ijl),
    log e_i = h_i + Σ_{l not in S} w_il log ℓ_l + (Σ_{l in S} w_il + (|S|-1)/2) log r.

Rows without gaps are the case of an empty S, with ``K = 1``. One unknown share is no gap: it follows from the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from snefy_ldl._internal.special import log_quadratic_form, log_share, pair_concentration, symmetric, unit_kernel
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.objectives.base import Objective

if TYPE_CHECKING:
    from typing_extensions import Self


class MergedLabels:
    """Label distributions as logarithms of what is known.

    Args:
        D: (N, L), strictly positive, NaN where unknown; the rest of such a row is positive, too.

    Attributes:
        logs: ``log ℓ`` (N, L), with ``log r`` in place of unknown shares.
        patterns: the distinct sets S, 0 or 1 (Q, L); the first is empty.
        which: the set of each row (N,).
    """

    def __init__(self, D: Tensor) -> None:
        gaps = torch.isnan(D)
        rest = 1.0 - D.nan_to_num(0.0).sum(-1, keepdim=True)
        self.logs = log_share(torch.where(gaps, rest, D))
        none = torch.zeros_like(gaps[:1])
        patterns, which = torch.unique(torch.cat([none, gaps]), dim=0, return_inverse=True)
        # torch sorts, so the empty set comes first
        self.patterns, self.which = patterns.double(), which[1:]


def merged_log_prob(
    net: SnefyNet, x: Any, logs: Tensor, patterns: Tensor, which: Tensor, background: Tensor | None = None
) -> Tensor:
    """Log density (K, B) of each member at rows with gaps; see the module.

    Args:
        net: the members.
        x: what the backbone takes.
        logs: log shares, ``log r`` in place of unknown ones (K, B, L), float64.
        patterns: sets of unknown labels (Q, L).
        which: the set of each row (K, B).
        background: the background's own log density (K, B), or None.
    """
    exponents = net.exponents.double()  # (K, n, L)
    n = exponents.shape[1]
    log_kernel, g = unit_kernel(exponents)  # (K, P), (K, n)
    log_scale = net.output(x).double()
    if not net.balanced:
        log_scale = log_scale + g[:, None]
    used, place = torch.arange(len(patterns), device=which.device), which
    # A captured graph on a GPU may not ask which sets a batch holds, so there every set is computed.
    if which.device.type == "cpu" and len(patterns) > 2:
        used, place = torch.unique(which, return_inverse=True)
    sets = patterns[used]  # (Q', L)
    size = sets.sum(-1)
    alpha = pair_concentration(exponents)  # (K, P, L)
    merged = (alpha @ sets.T).clamp_min(1e-300)  # (K, P, Q')
    log_k = torch.where(size > 0, torch.lgamma(alpha) @ sets.T - torch.lgamma(torch.where(size > 0, merged, 1.0)), 0.0)
    table = symmetric(log_k.transpose(1, 2), n)  # (K, Q', n, n)
    half = 0.5 * table.diagonal(dim1=-2, dim2=-1)  # (K, Q', n)
    ratio = (table - half[..., :, None] - half[..., None, :]).exp()
    gram = (net.readout.transpose(1, 2) @ net.readout).double()
    members = torch.arange(len(gram), device=gram.device)[:, None]
    # Every unknown label's slot holds log r, so the product below adds all their exponents; (|S|-1)/2 log r is left.
    shift = (0.5 * (size - 1.0).clamp_min(0.0))[place] * _rest(logs, patterns, which)  # (K, B)
    powers = logs @ exponents.transpose(1, 2) + shift[..., None]
    neurons = log_scale - g[:, None] + powers + half[members, place]  # (K, B, n)
    top = neurons.amax(-1, keepdim=True)
    e = (neurons - top).exp()
    value = torch.zeros_like(shift)
    for q in range(len(used)):  # one product a set of unknown labels, over all rows
        form = torch.linalg.vecdot(e @ (gram * ratio[:, q]), e)
        value = torch.where(place == q, form, value)
    total = value.clamp_min(torch.finfo(value.dtype).tiny).log() + 2.0 * top.squeeze(-1)
    normaliser = log_quadratic_form(gram * symmetric(log_kernel.exp(), n), log_scale)
    return net.mix(total - normaliser, None if background is None else background.double())


def _rest(logs: Tensor, patterns: Tensor, which: Tensor) -> Tensor:
    """``log r`` of each row (K, B), zero where nothing is unknown."""
    sets = patterns[which]
    total: Tensor = (logs * sets).sum(-1) / sets.sum(-1).clamp_min(1.0)
    return total


class Gaps(Objective):
    """Label distributions with gaps, scored by the density of what is known.

    Args:
        tables: one a group of members that share a zero policy, (N, L) each, NaN where unknown.
        net: gives the background's Dirichlet, which does not change in training.
        group: which table each member uses (K,).
    """

    def __init__(self, tables: list[Tensor], net: SnefyNet, group: Tensor) -> None:
        labels = [MergedLabels(table) for table in tables]
        self.logs = torch.stack([merged.logs for merged in labels])  # (G, N, L)
        self.patterns, self.which, self.group = labels[0].patterns, labels[0].which, group
        if net.has_background:
            self.background = self._background(net).to(net.readout.dtype)  # (K, N)

    def _background(self, net: SnefyNet) -> Tensor:
        """Log density of the merged Dirichlet: the merged labels' concentrations add up."""
        logs, sets = self.logs[self.group], self.patterns[self.which]  # (K, N, L), (N, L)
        alpha = net.background[:, None]  # (K, 1, L)
        merged = (alpha * sets).sum(-1)  # (K, N)
        known = 1.0 - sets
        powers = ((alpha - 1.0) * logs * known).sum(-1)
        gammas = (torch.lgamma(alpha) * known).sum(-1) - torch.lgamma(alpha.sum(-1))
        gap = sets.any(-1)
        rest = _rest(logs, self.patterns, self.which.expand(logs.shape[:2]))
        inside = torch.where(gap, merged, 1.0)
        extra = (inside - 1.0) * rest - torch.lgamma(inside)
        log_p: Tensor = powers - gammas + torch.where(gap, extra, 0.0)
        return log_p

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B) of what is known; see :meth:`Objective.log_prob`."""
        logs = self.logs[self.group[:, None], index]
        return merged_log_prob(net, x, logs, self.patterns, self.which[index], self.background_of(index))

    def select(self, members: list[int]) -> Self:
        """The same labels, for some of the members."""
        other = super().select(members)
        other.group = self.group[members]
        return other
