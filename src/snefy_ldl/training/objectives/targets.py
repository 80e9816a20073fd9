"""What the members must explain: label distributions, or votes. Each target scores a batch of rows for K members."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.kernels.counts import DirectFactors, VoteFactors


def fill_missing(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Votes with NaN replaced by what the row's other votes and the labels' overall shares lead one to expect.

    For a start only: the likelihood never sees these numbers.
    """
    gaps = np.isnan(counts)
    if not gaps.any():
        return counts
    share = np.nan_to_num(np.nanmean(np.where(gaps.all(0), 0.0, counts) / np.nansum(counts, 1, keepdims=True), axis=0))
    share = np.maximum(share, 1e-3)
    expected = np.nansum(counts, 1, keepdims=True) / (~gaps @ share)[:, None] * share
    return np.where(gaps, expected, counts)


def fit_dirichlet_multinomial(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Concentration (L,) of the Dirichlet that explains all items' votes best, by maximum likelihood.

    ``Σ_i log B(a + k_i) - log B(a)`` needs only how many items have more than t votes for a label. Votes that come one
    an item leave ``Σ a`` open; a weak log-normal prior around L settles it then, and hardly matters otherwise.
    """
    votes = counts.round().astype(np.int64)
    columns = [*votes.T, votes.sum(1)]
    above = [np.cumsum(np.bincount(column)[::-1])[::-1][1:] for column in columns]  # items with more than t votes
    n_labels = votes.shape[1]

    def loss(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        alpha = np.exp(logs)
        value, slope = 0.0, np.zeros(n_labels)
        for r, times in enumerate(above):
            base = alpha[r] if r < n_labels else alpha.sum()
            steps = base + np.arange(len(times))
            value += (times @ np.log(steps)) * (1.0 if r < n_labels else -1.0)
            if r < n_labels:
                slope[r] += times @ (1.0 / steps)
            else:
                slope -= times @ (1.0 / steps)
        away = np.log(alpha.sum() / n_labels)
        return -value + 0.5 * away**2, (-slope + away / alpha.sum()) * alpha

    start = np.log(votes.sum(0) + 0.5)
    start += np.log(n_labels) - np.log(np.exp(start).sum())
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-5.0, 10.0)] * n_labels)
    alpha: NDArray[np.float64] = np.exp(found.x)
    return alpha


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

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log shares (K, B, L) and the background's log density (K, B) of the rows index (K, B)."""
        background = None if self.background is None else self.background.gather(1, index)
        if len(self.logs) == 1:
            return self.logs[0].index_select(0, index.flatten()).view(*index.shape, -1), background
        return self.logs[self.group[:, None], index], background

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B)."""
        logs, background = self.rows(index)
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
            ratio, offset = DirectFactors(every).ratio(columns, torch.float64)
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
