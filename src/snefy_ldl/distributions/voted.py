"""Rows with a centre or with zeros after votes: a mixture over one more integral, whose nodes are parts of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.special import pair_index, symmetric
from snefy_ldl._internal.tolerances import (
    LOG_ODDS_LIMIT,
    NEGLIGIBLE_WEIGHT,
    SAME_CENTRE,
)
from snefy_ldl._internal.types import Array
from snefy_ldl.distributions.components import (
    PresenceComponents,
)
from snefy_ldl.distributions.dirichlet import beta_below
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.present_shares import MixedShares
from snefy_ldl.distributions.share_quantiles import SeveralShares, ShareRow
from snefy_ldl.distributions.sparse_shares import SparseShares
from snefy_ldl.errors import InputError

__all__ = ["Voted"]

#: Step of the integral over s, and the same times the root of the number of votes.
VOTE_STEP, SHARP_VOTE_STEP = 0.33, 0.9
#: Steps of cdfs in those of evidence and moments, and where their integrand is over: 1e-7 is enough for them.
CDF_STEP, CDF_TAIL = 1.5, 18.0
#: Nodes of that integral at most.
MOST_VOTE_NODES = 10_000_000
#: An integrand is over where it is e to minus this of its largest value.
VOTE_TAIL = 26.0
#: Nodes with less weight than this have no part in the laws of shares.
NEGLIGIBLE_PART = 1e-9


@dataclass(frozen=True)
class Voted:
    """The components of one row after votes: pairs of neurons times nodes of the integral over s.

    Args:
        weights: of every pair and node (P, S), of either sign, ``Σ = 1``.
        log_total: ``log E[Π ℓ^k]``, the probability of the votes without their coefficient.
        pairs: which components (P,).
        alpha: ``α + k`` (P, L).
        log_centre: ``log c / (1 + c s)`` of every node (S, L).
        log_odds: of presence (P, S, L), or None where all labels are there.
        log_s: the nodes (S,).
        n_votes: ``|k|``.

    Example:
        Without a centre the weights of a node do not matter, and one vote makes Dirichlet(2, 3, 5) Dirichlet(3, 3, 5).

        >>> alpha, one = torch.tensor([[2.0, 3.0, 5.0]]).double(), torch.ones(1).double()
        >>> voted = Voted.of(one, alpha, None, torch.zeros(3).double(), torch.tensor([1.0, 0.0, 0.0]).double())
        >>> (11 * voted.first()).round(decimals=6), voted.log_total.exp().round(decimals=6)
        (tensor([3., 3., 5.], dtype=torch.float64), tensor(0.2000, dtype=torch.float64))
    """

    weights: Tensor
    log_total: Tensor
    pairs: Tensor
    alpha: Tensor
    log_centre: Tensor
    log_odds: Tensor | None
    log_s: Tensor
    n_votes: float

    @classmethod
    def of(
        cls,
        weights: Tensor,
        alpha: Tensor,
        presence: PresenceComponents | None,
        log_centre: Tensor,
        votes: Tensor,
        for_cdf: bool = False,
    ) -> Voted:
        """The components after votes.

        Args:
            weights: of the components before (P,).
            alpha: their concentrations (P, L).
            presence: their odds, or None.
            log_centre: ``log c`` (L,).
            votes: ``k`` (L,), at least one of them positive.
            for_cdf: whether cdfs alone will be asked for, where every node takes an integral of its own.
        """
        wider, tail = (CDF_STEP, CDF_TAIL) if for_cdf else (1.0, VOTE_TAIL)
        total, hit = float(votes.sum()), votes > 0.0
        lifted = torch.where(hit, torch.lgamma(alpha + votes) - torch.lgamma(alpha), 0.0).sum(1)
        base = lifted + float((votes * log_centre)[hit].sum()) - math.lgamma(total)
        if presence is not None:
            base = base + presence.log_odds[:, hit].sum(1) - presence.log_norm
        base = base + torch.where(weights != 0.0, weights.abs(), 1.0).log()
        base = base.masked_fill(weights == 0.0, -math.inf)

        def logs(y: Tensor) -> Tensor:
            """Log integrand over ``y = log s`` (P, S)."""
            log1p = softplus(log_centre[:, None] + y)  # (L, S)
            answer = base[:, None] + total * y - (votes @ log1p)
            if presence is None:
                return answer - alpha @ log1p
            answer = answer - alpha[:, hit] @ log1p[hit]
            for r in (~hit).nonzero().flatten().tolist():
                answer = answer + softplus(presence.log_odds[:, [r]] - alpha[:, [r]] * log1p[r])
            return answer

        # at its peak no log integrand bends by more than the votes, nor by more than twice its concentration
        bend = min(total, 2.0 * float(alpha.sum(1).max()))
        y, step = _vote_nodes(logs, -float(log_centre.amax()), bend, wider, alpha.device)
        table = logs(y) + step.log()
        top = table.max()
        kept_nodes = torch.nonzero(table.amax(0) > top - tail).squeeze(1)
        kept = torch.nonzero(table.amax(1) > top - tail).squeeze(1)
        table, y = table[kept][:, kept_nodes], y[kept_nodes]
        terms = weights[kept].sign()[:, None] * (table - top).exp()
        whole = terms.sum()
        log1p = softplus(log_centre[:, None] + y)
        log_odds = None
        if presence is not None:
            own = presence.log_odds[kept][:, None] - alpha[kept][:, None] * log1p.T
            log_odds = torch.where(hit, LOG_ODDS_LIMIT, own.clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT))
        return cls(
            terms / whole,
            whole.log() + top,
            kept,
            alpha[kept] + votes,
            (log_centre[:, None] - log1p).T,
            log_odds,
            y,
            total,
        )

    @property
    def n_parts(self) -> int:
        """S."""
        return len(self.log_s)

    def _there(self) -> Tensor | float:
        """Probability that labels are there (P, S, L)."""
        return 1.0 if self.log_odds is None else torch.sigmoid(self.log_odds)

    def _share(self) -> Tensor:
        """``s c / (1 + c s)`` (S, L), between 0 and 1."""
        return (self.log_s[:, None] + self.log_centre).exp()

    def _mean_terms(self) -> Tensor:
        """``E[ℓ_r]`` under every pair and node, with its weight (P, S, L)."""
        share = self._there() * self.alpha[:, None] * self._share() / self.n_votes
        return self.weights[..., None] * share

    def first(self) -> Tensor:
        """``E[ℓ_r]`` (L,)."""
        return self._mean_terms().sum((0, 1))

    def second(self) -> Tensor:
        """``E[ℓ_r²]`` (L,)."""
        terms = self._mean_terms() * (self.alpha[:, None] + 1.0) * self._share() / (self.n_votes + 1.0)
        return terms.sum((0, 1))

    def products(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` for the pairs r <= q of labels, in triangle order (L(L+1)/2,)."""
        share = self._there() * self.alpha[:, None] * self._share()  # (P, S, L)
        table = torch.einsum("ps,psr,psq->rq", self.weights, share.expand(*self.weights.shape, -1), share)
        table = table / (self.n_votes * (self.n_votes + 1.0))
        table.diagonal().copy_(self.second())
        r, q = pair_index(len(table), table.device)
        return table[r, q]

    def _log_terms(self, more: float) -> Tensor:
        """``E[log ℓ_r]`` under every pair and node with ``more`` further votes for r (P, S, L)."""
        log_share = self.log_s[:, None] + self.log_centre - torch.digamma(torch.tensor(self.n_votes + more).double())
        return torch.digamma(self.alpha + more)[:, None] + log_share

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r]`` (L,) of labels that are there."""
        return torch.einsum("ps,psl->l", self.weights, self._log_terms(0.0))

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ]`` (L, L), where all labels are there."""
        terms, first = self._log_terms(0.0), self.expected_log()
        second = torch.einsum("ps,psr,psq->rq", self.weights, terms, terms)
        diagonal = torch.einsum("ps,pl->l", self.weights, torch.polygamma(1, self.alpha))
        shared = torch.polygamma(1, torch.tensor(self.n_votes, dtype=torch.float64, device=second.device))
        return second + torch.diag(diagonal) - shared - first[:, None] * first

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (L,)."""
        return -(self._mean_terms() * self._log_terms(1.0)).sum((0, 1))

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0)`` (L,)."""
        if self.log_odds is None:
            return torch.zeros_like(self.alpha[0])
        return torch.einsum("ps,psl->l", self.weights, torch.sigmoid(-self.log_odds))

    def prob_greater(self, first: int, second: int) -> Tensor:
        """``P(ℓ_j > ℓ_k)``."""
        at = torch.sigmoid(self.log_centre[:, first] - self.log_centre[:, second]).cpu().numpy()
        below = beta_below(self.alpha[:, [second]], self.alpha[:, [first]], at)  # (P, S)
        if self.log_odds is not None:
            one, other = (torch.sigmoid(self.log_odds[..., r]) for r in (first, second))
            below = one * (other * below + 1.0 - other)
        return (self.weights * below).sum()

    def shares(self, family: PairFamily, votes: Tensor, groups: list[list[int]]) -> ShareRow:
        """The laws of some sums of shares."""
        half, parts = family.half() + 0.5 * votes, torch.nonzero(self.weights.abs().sum(0) > NEGLIGIBLE_PART).squeeze(1)
        if self.log_odds is None:
            n, (i, j) = family.n_neurons, pair_index(family.n_neurons, half.device)
            every = half.new_zeros(len(parts), family.n_members * len(i))
            every[:, self.pairs] = self.weights[:, parts].T
            pairs = every.unflatten(1, (family.n_members, -1)) * torch.where(i == j, 1.0, 0.5)
            return MixedShares(half, symmetric(pairs, n), self.log_centre[parts], groups)
        first, second = (index[self.pairs] for index in family.pairs())
        flat, log_odds = half.flatten(0, 1), self.log_odds
        relative = self.log_centre[parts] - self.log_centre[parts].amax(1, keepdim=True)
        if bool((relative - relative[:1]).abs().max() <= SAME_CENTRE):  # only the odds change from node to node
            first, second = first.repeat(len(parts)), second.repeat(len(parts))
            weights, odds = self.weights[:, parts].T.flatten(), log_odds[:, parts].transpose(0, 1).flatten(0, 1)
            return SparseShares(flat, first, second, weights, odds, relative[0], groups)
        return SeveralShares([
            SparseShares(flat, first, second, self.weights[:, s], log_odds[:, s], self.log_centre[s], groups)
            for s in parts.tolist()
        ])  # fmt: skip

    def listed(self) -> tuple[Array, Array, Array, Array | None]:
        """Weights (C,), concentrations, log centres and log odds (C, L) of all pairs and nodes as one list."""
        alpha = self.alpha.repeat_interleave(self.n_parts, 0)
        centre = self.log_centre.repeat(len(self.pairs), 1)
        parts = [self.weights.flatten(), alpha, centre] + (
            [] if self.log_odds is None else [self.log_odds.flatten(0, 1)]
        )
        used = torch.nonzero(parts[0].abs() > NEGLIGIBLE_WEIGHT).squeeze(1)
        arrays = [part[used].cpu().numpy() for part in parts]
        return arrays[0], arrays[1], arrays[2], arrays[3] if len(arrays) == 4 else None


def _vote_nodes(
    logs: Callable[[Tensor], Tensor], middle: float, curvature: float, wider: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log s`` and steps (S,) of the integral over s after some votes.

    Far to the left an integrand falls as slowly as ``s^{|k|}``; there the step grows.

    Args:
        logs: log integrands at y (P, S).
        middle: where to look for them.
        curvature: of the sharpest, at most.
        wider: steps in those that moments need.
        device: where the nodes lie.
    """
    kind: dict[str, Any] = {"dtype": torch.float64, "device": device}

    def seen(y: Tensor) -> tuple[float, float, float]:
        height = logs(y).amax(0)
        alive = torch.nonzero(height > height.max() - VOTE_TAIL - 2.0).squeeze(1)
        gap = float(y[1] - y[0])
        return float(y[alive[0]]) - gap, float(y[height.argmax()]), float(y[alive[-1]]) + gap

    low, top, high = seen(torch.arange(-80.0, 81.0, 2.0, **kind) + middle)
    low, top, high = seen(torch.linspace(low, high, 200, **kind))
    step = wider * min(VOTE_STEP, SHARP_VOTE_STEP / math.sqrt(curvature))
    bend = top - 6.0 * max(1.0 / math.sqrt(curvature), 0.3)  # left of it, only a power of s
    start = bend - 2.0 * (1.0 + math.log(max(bend - low, 1.0) + 1.0))
    if not (high - start) / step <= MOST_VOTE_NODES:  # nor where it is no number
        raise InputError(
            "a row has too many votes for a law with a centre or zeros; divide its votes by a common number."
        )
    v = torch.arange(start, high, step, **kind)
    down = torch.exp((bend - v) / 2.0 - 1.0)
    return v - down, step * (1.0 + 0.5 * down)
