"""What the members must explain: label distributions, or votes. Each target scores a batch of rows for K members."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from snefy_ldl.count_density import DirectFactors, VoteFactors
from snefy_ldl.model import SnefyNet


class Target(Protocol):
    """What the members must explain: label distributions, or votes."""

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log likelihood (K, B) of the rows index (K, B), given their features x."""
        ...

    def select(self, members: list[int]) -> Target:
        """The same for some of the members."""
        ...


class DistributionTarget:
    """Label distributions, scored by the log density.

    Args:
        logs: log shares (G, N, L), float64; G is 1 unless zero policies differ between members.
        net: gives the background's density, which does not change in training.
        group: which of the G tables each member uses (K,).
    """

    def __init__(self, logs: Tensor, net: SnefyNet, group: Tensor) -> None:
        self.logs, self.group = logs, group
        self.background: Tensor | None = None
        if bool(torch.isfinite(net.log_odds).any()):
            own = logs if len(logs) == 1 else logs[group]
            self.background = net.background_log_prob(own).to(net.readout.dtype)  # (K, N)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B)."""
        background = None if self.background is None else self.background.gather(1, index)
        if len(self.logs) == 1:
            logs = self.logs[0].index_select(0, index.flatten()).view(*index.shape, -1)
        else:
            logs = self.logs[self.group[:, None], index]
        return net.member_log_prob(x, logs, background)

    def without_background(self) -> DistributionTarget:
        """The same labels, for the networks alone."""
        other = copy.copy(self)
        other.background = None
        return other

    def select(self, members: list[int]) -> DistributionTarget:
        """The same labels, for some of the members."""
        other = copy.copy(self)
        other.group = self.group[members]
        other.background = None if self.background is None else self.background[members]
        return other


class CountTarget:
    """Vote counts, scored by the exact probability of the counts (multinomial coefficient left out).

    Args:
        counts: votes (N, L), float64; NaN where a label was not counted.
        net: gives the background, whose Dirichlet-multinomial term does not change in training.
        named: votes that name a set of labels (N, G), or None.
        sets: those sets, 0 or 1 (G, L).
    """

    def __init__(self, counts: Tensor, net: SnefyNet, named: Tensor | None = None, sets: Tensor | None = None) -> None:
        self.factors = VoteFactors.of(counts, named, sets)
        self.background: Tensor | None = None
        if bool(torch.isfinite(net.log_odds).any()):
            members, rows = len(net.background), len(counts)
            columns = (self.factors.groups @ net.background.T).T[..., None]  # (K, Q, 1)
            every = self.factors[torch.arange(rows, device=counts.device).expand(members, rows)]
            ratio, offset = DirectFactors(every).ratio(columns, torch.float64, slopes=False)
            self.background = (ratio.squeeze(-1) + offset).to(net.readout.dtype)  # (K, N)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log probability (K, B)."""
        background = None if self.background is None else self.background.gather(1, index)
        return net.member_log_prob_counts(x, self.factors[index], background)

    def without_background(self) -> CountTarget:
        """The same votes, for the networks alone."""
        other = copy.copy(self)
        other.background = None
        return other

    def select(self, members: list[int]) -> CountTarget:
        """The same votes, for some of the members."""
        other = copy.copy(self)
        other.background = None if self.background is None else self.background[members]
        return other
