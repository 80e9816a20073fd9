"""Components whose labels may be absent, and their moments by one-dimensional integrals.

A component is ``ℓ = g / Σ g`` with ``g_r = present_r c_r Gamma(α_r)``. Labels are there independently of each other
with odds ``o_r``, given that at least one is: a support S has the probability ``Π_{r in S} o_r / K``,
``K = Π_r (1+o_r) - 1``. With ``φ_r(t) = o_r (1 + c_r t)^{-α_r}`` and as ``1/R = ∫ e^{-tR} dt``

    E[ℓ_r]         = K⁻¹ ∫ ρ_r α_r φ_r Π_{s≠r} (1+φ_s) dt,                              ρ_r = c_r / (1 + c_r t)
    E[ℓ_r ℓ_q]     = K⁻¹ ∫ t ρ_r ρ_q α_r α_q φ_r φ_q Π_rest (1+φ) dt,   r ≠ q
    E[ℓ_r²]        = K⁻¹ ∫ t ρ_r² α_r (α_r+1) φ_r Π_{s≠r} (1+φ_s) dt
    E[ℓ_r log ℓ_r] = K⁻¹ ∫ ρ_r α_r (log(t ρ_r) + ψ(α_r+1) + γ) φ_r Π_{s≠r} (1+φ_s) dt

A label that is there alone has the share one. Its part, ``o_r / K``, is taken out of the integrals: it falls off as
slowly as ``t^{-α_r}``. In ``y = log t`` the rest is done by the trapezoid rule, as in
:mod:`snefy_ldl.distributions.integrals`; far out, where only powers of t are left, its step grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl.special import pair_index
from snefy_ldl.special.tolerances import INTEGRAL_TAIL, LOG_ODDS_LIMIT

#: Step of the trapezoid rule where the integrands are not yet powers of t, and how slowly it grows beyond.
STEP, GROWTH = 0.3, 10.0
_EULER = 0.57721566490153286


def log_expm1(x: Tensor) -> Tensor:
    """``log(e^x - 1)`` of positive numbers, without overflow.

    Example:
        >>> log_expm1(torch.tensor([1e-12, 1000.0], dtype=torch.float64))
        tensor([ -27.6310, 1000.0000], dtype=torch.float64)
    """
    return x + (-torch.expm1(-x)).log()


@dataclass(frozen=True)
class PresenceComponents:
    """P components with presence.

    Args:
        alpha: ``α`` (P, L), float64.
        log_odds: ``log o`` (P, L), float64.
        centre: ``c`` (L,), float64, positive.

    Example:
        >>> one = PresenceComponents(torch.ones(1, 2).double(), torch.zeros(1, 2).double(), torch.ones(2).double())
        >>> one.prob_absent([0])  # of the supports {0}, {1} and {0, 1}, all alike, one
        tensor([0.3333], dtype=torch.float64)
    """

    alpha: Tensor
    log_odds: Tensor
    centre: Tensor

    @property
    def log_empty(self) -> Tensor:
        """``-log(1 + o_r)`` (P, L): log probability that a label is absent, if the empty support were allowed."""
        return -softplus(self.log_odds)

    @property
    def log_norm(self) -> Tensor:
        """``log K`` (P,)."""
        return log_expm1(softplus(self.log_odds).sum(-1))

    def prob_absent(self, labels: list[int]) -> Tensor:
        """Probability that none of these labels is there (P,)."""
        total = softplus(self.log_odds)
        rest = total.sum(-1) - total[:, labels].sum(-1)
        return (log_expm1(rest.clamp_min(0.0)) - self.log_norm).exp()

    def prob_all_absent(self) -> Tensor:
        """``P(ℓ_r = 0)`` of each label (P, L)."""
        total = softplus(self.log_odds)
        rest = (total.sum(-1, keepdim=True) - total).clamp_min(0.0)
        return (log_expm1(rest) - self.log_norm[:, None]).exp()

    def prob_of(self, present: list[int], absent: list[int]) -> Tensor:
        """Probability that some labels are there and some others are not (P,); at least one is there."""
        total = softplus(self.log_odds)
        fixed = total[:, [*present, *absent]].sum(-1)
        return (self.log_odds[:, present].sum(-1) + total.sum(-1) - fixed - self.log_norm).exp()

    def log_support(self, support: Tensor) -> Tensor:
        """Log probability of a support, a mask (L,): (P,)."""
        return self.log_odds[:, support].sum(-1) - self.log_norm


def integral_nodes(alpha: Tensor, log_centre: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and steps (k,) of the trapezoid rule for every integral of some components.

    Args:
        alpha: ``α`` (P, L), float64.
        log_centre: ``log c`` (L,), or those of several rows (N, L).

    Returns:
        Both, float64.
    """
    highest = log_centre if log_centre.ndim == 1 else log_centre.amax(0)
    low = -float(torch.logsumexp(alpha.log() + highest, 1).max()) - INTEGRAL_TAIL
    # beyond the last 1/c only powers t^-(α_r + α_s) are left, of which the slowest must die out
    bend = -float(log_centre.min()) + 3.0
    slowest = float(alpha.topk(min(2, alpha.shape[1]), 1, largest=False).values.sum(1).min())
    high = bend + INTEGRAL_TAIL / slowest
    x = torch.arange(low, bend + GROWTH * 12.0, STEP, dtype=torch.float64, device=alpha.device)
    growth = torch.exp((x - bend - GROWTH) / GROWTH)  # y = x + growth bends up beyond the last 1/c
    y = x + growth
    keep = y <= high
    return y[keep], STEP * (1.0 + growth[keep] / GROWTH)


class PresenceMoments:
    """Tables of moments under every component, each made when first asked for.

    Args:
        components: whose moments.

    Example:
        >>> alpha, odds = torch.tensor([[2.0, 3.0, 5.0]]).double(), torch.full((1, 3), 40.0).double()
        >>> PresenceMoments(PresenceComponents(alpha, odds, torch.ones(3).double())).first().round(decimals=9)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
    """

    def __init__(self, components: PresenceComponents) -> None:
        self._parts = components
        centre = components.centre
        self._y, step = integral_nodes(components.alpha, centre.log())
        self._log1p = softplus(centre.log()[:, None] + self._y)  # log(1 + c_r t), (L, k)
        self._weight = step
        # ρ_r t = c_r t / (1 + c_r t), between 0 and 1
        self._share = torch.sigmoid(centre.log()[:, None] + self._y)  # (L, k)
        self._tables: dict[str, Tensor] = {}

    @property
    def n_numbers(self) -> int:
        """How much is kept."""
        return int(self._parts.alpha.numel()) * 4

    def _blocks(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Some components at a time: which, ``φ/(1+φ)`` and ``φ/K`` (p, L, k), and ``Π(1+φ)/K dt/t`` (p, 1, k)."""
        parts, log_norm = self._parts, self._parts.log_norm
        n, n_labels = parts.alpha.shape
        size = max(1, CHUNK_ELEMENTS // (8 * n_labels * len(self._y)))
        for start in range(0, n, size):
            rows = slice(start, start + size)
            log_phi = parts.log_odds[rows, :, None] - parts.alpha[rows, :, None] * self._log1p
            scale = log_norm[rows, None, None]
            product = (softplus(log_phi).sum(1, keepdim=True) - scale).exp()
            yield rows, torch.sigmoid(log_phi), (log_phi - scale).exp(), product

    def _table(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._tables:
            self._tables[name] = make()
        return self._tables[name]

    def _alone(self) -> Tensor:
        """Probability that a label is the only one (P, L)."""
        return (self._parts.log_odds - self._parts.log_norm[:, None]).exp()

    def _integrals(self) -> Tensor:
        """Integrals of ``φ_r (Π_{s≠r} (1+φ_s) - 1)`` times tρ, (tρ)² and tρ log(tρ) (P, 3, L)."""
        parts = []
        log_share = self._share.log()
        kernels = torch.stack([self._share, self._share.square(), self._share * log_share])  # (3, L, k)
        for _, there, alone, product in self._blocks():
            rest = (there * product - alone) * self._weight  # (p, L, k)
            parts.append(torch.einsum("plk,flk->pfl", rest, kernels))
        return torch.cat(parts)

    def first(self) -> Tensor:
        """``E[ℓ_r]`` (P, L)."""
        integrals = self._table("integrals", self._integrals)
        return self._alone() + self._parts.alpha * integrals[:, 0]

    def second(self) -> Tensor:
        """``E[ℓ_r²]`` (P, L)."""
        integrals, alpha = self._table("integrals", self._integrals), self._parts.alpha
        return self._alone() + alpha * (alpha + 1.0) * integrals[:, 1]

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (P, L)."""
        integrals, alpha = self._table("integrals", self._integrals), self._parts.alpha
        return -alpha * (integrals[:, 2] + (torch.digamma(alpha + 1.0) + _EULER) * integrals[:, 0])

    def products(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` for the pairs r <= q of labels, in triangle order (P, L(L+1)/2)."""
        alpha = self._parts.alpha
        r, q = pair_index(alpha.shape[1], alpha.device)
        parts = []
        for _, there, _, product in self._blocks():
            left = there * self._share  # (p, L, k)
            table = (left * (product * self._weight)) @ left.transpose(1, 2)
            parts.append(table[:, r, q])
        mixed = torch.cat(parts) * alpha[:, r] * alpha[:, q]
        mixed[:, r == q] = self.second()
        return mixed


def pair_components(exponents: Tensor, presence: Tensor, centre: Tensor) -> PresenceComponents:
    """The components of every pair of neurons, in triangle order, one member after the other.

    Args:
        exponents: ``w`` (K, n, L).
        presence: ``a`` (K, n, L).
        centre: ``c`` (L,).

    Returns:
        K n(n+1)/2 components.

    Example:
        >>> zeros = torch.zeros(1, 2, 3).double()
        >>> pair_components(zeros, zeros, torch.ones(3).double()).alpha.shape
        torch.Size([3, 3])
    """
    i, j = pair_index(exponents.shape[1], exponents.device)
    exponents, presence = exponents.double(), presence.double()
    alpha = 1.0 + exponents[:, i] + exponents[:, j]
    log_odds = presence[:, i] + presence[:, j] + torch.lgamma(alpha)
    log_odds = log_odds.clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)
    return PresenceComponents(alpha.flatten(0, 1), log_odds.flatten(0, 1), centre.double())
