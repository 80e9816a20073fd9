"""Votes, by the exact probability of the counts, without the multinomial coefficient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.kernels.counts import MOST_VOTES, DirectFactors, VoteFactors, log_prob_factors
from snefy_ldl.training.objectives.base import Objective


def log_probability(
    net: SnefyNet,
    x: Any,
    counts: Tensor | VoteFactors,
    background: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """Log probability of each member's votes, multinomial coefficient left out.

    ``Σ_ij c_ij B(α_ij + k) / B(α_ij)``: a ratio of two normalisers, in float64.

    Args:
        net: K members.
        x: what the backbone takes.
        counts: votes k (K, B, L), NaN for a label that was not counted; or their factors, prepared.
        background: log probability of the votes under the background (K, B), or None without one; less ``shared``.
        shared: a part of the log probability that no network changes (K, B), to be left out; None for nothing.

    Returns:
        (K, B), float64.
    """
    factors = counts if isinstance(counts, VoteFactors) else VoteFactors.of(counts)
    log_p = log_prob_factors(net.output(x), net.exponents, net.readout, factors, net.balanced)
    if shared is not None:
        log_p = log_p - shared
    return net.mix(log_p, None if background is None else background.double())


class Counts(Objective):
    """Vote counts.

    Args:
        counts: votes (N, L), float64; NaN where a label was not counted.
        net: gives the background.
        named: votes that name a set of labels (N, G), or None.
        sets: those sets, 0 or 1 (G, L).
    """

    def __init__(self, counts: Tensor, net: SnefyNet, named: Tensor | None = None, sets: Tensor | None = None) -> None:
        self.factors = VoteFactors.of(counts, named, sets)
        # The log probability of very many votes grows with their number, and float32 losses could not tell networks
        # apart; what no network changes is left out, Σ ± log Γ(m) over the row's factors.
        self.shared: Tensor | None = None
        if int(self.factors.count.max()) > MOST_VOTES:
            logs = torch.lgamma(self.factors.count.clamp_min(1).double())
            self.shared = (logs * self.factors.sign).sum(-1)  # (N,)
        votes = counts if named is None else torch.cat([counts, named], 1)
        votes = votes.double().nan_to_num(0.0)
        self.left_out = torch.lgamma(votes.sum(1) + 1.0) - torch.lgamma(votes + 1.0).sum(1)  # multinomial coefficient
        if self.shared is not None:
            self.left_out = self.left_out + self.shared
        if net.has_background:
            members, rows = len(net.background), len(counts)
            columns = (self.factors.groups @ net.background.T).T[..., None]  # (K, Q, 1)
            every = self.factors[torch.arange(rows, device=counts.device).expand(members, rows)]
            ratio, offset = DirectFactors(every).ratio(columns, torch.float64)
            log_p = ratio.squeeze(-1) + offset  # (K, N)
            self.background = (log_p if self.shared is None else log_p - self.shared).to(net.readout.dtype)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log probability (K, B); see :meth:`Objective.log_prob`."""
        shared = None if self.shared is None else self.shared[index]
        return log_probability(net, x, self.factors[index], self.background_of(index), shared)
