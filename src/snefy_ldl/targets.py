"""What the members must explain: label distributions, or votes. Each target scores a batch of rows for K members."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from snefy_ldl.model import SnefyNet
from snefy_ldl.special import log_beta_ratio


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
        logs = self.logs[0][index] if len(self.logs) == 1 else self.logs[self.group[:, None], index]
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
        counts: votes (N, L), float64.
        net: gives the background, whose Dirichlet-multinomial term does not change in training.
    """

    def __init__(self, counts: Tensor, net: SnefyNet) -> None:
        self.counts = counts
        self.background: Tensor | None = None
        if bool(torch.isfinite(net.log_odds).any()):
            self.background = log_beta_ratio(net.background, None, counts).T.to(net.readout.dtype)  # (K, N)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log probability (K, B)."""
        background = None if self.background is None else self.background.gather(1, index)
        return net.member_log_prob_counts(x, self.counts[index], background)

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
