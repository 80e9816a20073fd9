"""Components with a centre, or whose labels may be absent: chances of presence, and moments by one integral each.

A component is ``ℓ = g / Σ g`` with ``g_r = present_r c_r Gamma(α_r)``. Labels are there independently of each other
with odds ``o_r``, given that at least one is: a support S has the probability ``Π_{r in S} o_r / K``,
``K = Π_r (1+o_r) - 1``. With ``φ_r(t) = o_r (1 + c_r t)^{-α_r}`` and as ``1/R = ∫ e^{-tR} dt``

    E[ℓ_r]         = K⁻¹ ∫ ρ_r α_r φ_r Π_{s≠r} (1+φ_s) dt,                              ρ_r = c_r / (1 + c_r t)
    E[ℓ_r ℓ_q]     = K⁻¹ ∫ t ρ_r ρ_q α_r α_q φ_r φ_q Π_rest (1+φ) dt,   r ≠ q
    E[ℓ_r²]        = K⁻¹ ∫ t ρ_r² α_r (α_r+1) φ_r Π_{s≠r} (1+φ_s) dt
    E[ℓ_r log ℓ_r] = K⁻¹ ∫ ρ_r α_r (log(t ρ_r) + ψ(α_r+1) + γ) φ_r Π_{s≠r} (1+φ_s) dt

A label that is there alone has the share one. Its part, ``o_r / K``, is taken out of the integrals: it falls off as
slowly as ``t^{-α_r}``. Where all labels are there, ``1 + φ`` becomes ``φ``, K becomes one, and

    E[log R] = ∫ (e^{-t} - Π_s φ_s) dt / t.

With ``t = e^y`` the integrands are analytic in the strip |Im y| < π/2 and fall off on both sides, so the trapezoid rule
with step 0.3 is good to ``e^{-π²/0.3}``, below 1e-13; the nodes serve all components. Far out, where only powers of t
are left, the step grows.

Where every row has its own centre, or its own odds, the sum over components is inside the integral. Factors of a pair
of neurons are products of one factor per neuron; where all labels are there, the sum is a quadratic form ``zᵀ M z``
with a matrix that all rows share, else pairs are summed one by one. Light pairs are content with fewer nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, SWEEP_ELEMENTS
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.threads import map_blocks
from snefy_ldl._internal.tolerances import INTEGRAL_TAIL, LOG_ODDS_LIMIT, NEGLIGIBLE_MOMENT_WEIGHT

Answer = TypeVar("Answer")

#: Step of the trapezoid rule where the integrands are no powers of t, and how slowly it grows on either side.
STEP, GROWTH = 0.25, 2.0
EULER = 0.57721566490153286
#: Step and tail of the integrals of rows with nodes of their own, where 1e-10 is enough.
ROW_STEP, ROW_TAIL = 0.32, 27.0
#: Nodes that such an integral takes, roughly.
NODES = 70
#: The lightest components of a row, which weigh this much together, take every so many nodes alone: every fourth is
#: good to 1e-3 of what they weigh, every second to 1e-6.
LIGHT = ((1e-8, 4), (1e-5, 2))
#: Factors of an integrand are no smaller than e^-100: exponentials and products of tiny numbers are slow.
LEAST_LOG_FACTOR = -100.0
#: Numbers in each work array; smaller ones would stay closer to the processor, but many rows share each call.
ROW_ELEMENTS = 8 * SWEEP_ELEMENTS


def log_expm1(x: Tensor) -> Tensor:
    """``log(e^x - 1)`` of positive numbers, without overflow.

    Example:
        >>> log_expm1(torch.tensor([1e-12, 1000.0], dtype=torch.float64))
        tensor([ -27.6310, 1000.0000], dtype=torch.float64)
    """
    return x + (-torch.expm1(-x)).log()


def moved_log_norm(log_odds: Tensor, shift: Tensor) -> Tensor:
    """``log K_ij(x) = log(Π_r (1 + o_ijr e^{b_r(x)}) - 1)``.

    Args:
        log_odds: of the pairs, without a shift (K, P, L).
        shift: b, each member's rows (K or 1, B, L).

    Returns:
        (K, B, P), through which gradients flow.

    Example:
        >>> moved_log_norm(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)).exp()
        tensor([[[3.]]])
    """
    total = softplus((log_odds[:, None] + shift[:, :, None]).clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)).sum(-1)
    return log_expm1(total)


@dataclass(frozen=True)
class PresenceComponents:
    """P components with presence.

    Args:
        alpha: ``α`` (P, L), float64.
        log_odds: ``log o`` (P, L), float64.

    Example:
        >>> one = PresenceComponents(torch.ones(1, 2).double(), torch.zeros(1, 2).double())
        >>> one.prob_absent([0])  # of the supports {0}, {1} and {0, 1}, all alike, one
        tensor([0.3333], dtype=torch.float64)
    """

    alpha: Tensor
    log_odds: Tensor

    @classmethod
    def of_pairs(cls, exponents: Tensor, presence: Tensor) -> PresenceComponents:
        """Of every pair of neurons w, a (K, n, L), in triangle order, one member after the other: K n(n+1)/2."""
        i, j = pair_index(exponents.shape[1], exponents.device)
        exponents, presence = exponents.double(), presence.double()
        alpha = 1.0 + exponents[:, i] + exponents[:, j]
        log_odds = presence[:, i] + presence[:, j] + torch.lgamma(alpha)
        log_odds = log_odds.clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)
        return cls(alpha.flatten(0, 1), log_odds.flatten(0, 1))

    @classmethod
    def always_there(cls, alpha: Tensor) -> PresenceComponents:
        """Components whose labels are all there, as ones with presence."""
        return cls(alpha, torch.full_like(alpha, LOG_ODDS_LIMIT))

    def moved(self, shift: Tensor) -> PresenceComponents:
        """The same with log odds shifted by (L,)."""
        return PresenceComponents(self.alpha, (self.log_odds + shift).clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT))

    def detached(self) -> PresenceComponents:
        """The same without gradients."""
        return PresenceComponents(self.alpha.detach(), self.log_odds.detach())

    def take(self, labels: list[int]) -> PresenceComponents:
        """The same with some labels alone, given that one of them is there."""
        return PresenceComponents(self.alpha[:, labels], self.log_odds[:, labels])

    @property
    def log_empty(self) -> Tensor:
        """``-log(1 + o_r)`` (P, L): log probability that a label is absent, if the empty support were allowed."""
        return -softplus(self.log_odds)

    @property
    def log_norm(self) -> Tensor:
        """``log K`` (P,)."""
        return log_expm1(softplus(self.log_odds).sum(-1))

    def prob_present(self) -> Tensor:
        """Chance that a label is there, given that one is (P, L)."""
        total = softplus(self.log_odds)
        rest = total.sum(-1, keepdim=True) - total
        return (self.log_odds + rest - self.log_norm[:, None]).exp().clamp(0.0, 1.0)

    def prob_absent(self, labels: list[int]) -> Tensor:
        """Probability that none of these labels is there (P,)."""
        total = softplus(self.log_odds)
        rest = total.sum(-1) - total[:, labels].sum(-1)
        return (log_expm1(rest.clamp_min(0.0)) - self.log_norm).exp()

    def prob_all_absent(self) -> Tensor:
        """``P(ℓ_r = 0)`` of each label (P, L)."""
        return torch.stack([self.prob_absent([r]) for r in range(self.log_odds.shape[1])], 1)

    def prob_of(self, present: list[int], absent: list[int]) -> Tensor:
        """Probability that some labels are there and some others are not (P,); at least one is there."""
        total = softplus(self.log_odds)
        fixed = total[:, [*present, *absent]].sum(-1)
        return (self.log_odds[:, present].sum(-1) + total.sum(-1) - fixed - self.log_norm).exp()

    def log_support(self, support: Tensor) -> Tensor:
        """Log probability of a support, a mask (L,): (P,)."""
        return self.log_odds[:, support].sum(-1) - self.log_norm


def integral_nodes(
    alpha: Tensor,
    log_centre: Tensor,
    step: float = STEP,
    tail: float = INTEGRAL_TAIL,
    lowest: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and steps of the trapezoid rule for every integral of some components, each row's own.

    Below the largest ``Σ c_r α_r`` an integrand is t times a power series, beyond the last 1/c a sum of powers of t: in
    either direction it is analytic in ever wider strips, so that steps may grow exponentially.

    Args:
        alpha: ``α`` (P, L), float64; of neurons, whose pairs lie between.
        log_centre: ``log c`` (N, L).
        step: of the nodes in the middle.
        tail: an integrand is over where it is e to minus this.
        lowest: a number below every ``log c`` that the nodes are to serve; by default each row's own least one.

    Returns:
        Both (N, k), float64; a step of zero where a row needs fewer nodes than others.
    """
    left = -torch.logsumexp(alpha.log() + log_centre[:, None], 2).amax(1, keepdim=True) - 1.0  # (N, 1)
    bend = 2.0 - (log_centre.amin(1, keepdim=True) if lowest is None else lowest)
    # beyond the last 1/c only powers t^-(α_r + α_s) are left, of which the slowest must die out
    slowest = float(alpha.topk(min(2, alpha.shape[1]), 1, largest=False).values.sum(1).min())
    start, end = left - GROWTH * math.log(tail), bend + GROWTH * math.log1p(tail / slowest)
    count = int(torch.ceil((end - start).max() / step)) + 1
    x = start + step * torch.arange(count, dtype=torch.float64, device=alpha.device)
    down, up = torch.exp((left - x) / GROWTH), torch.exp((x - bend) / GROWTH)
    steps = step * (1.0 + (down + up) / GROWTH)
    return x - down + up, torch.where(x < end + step, steps, 0.0)


class ComponentMoments:
    """Tables of moments under every component, each made when first asked for.

    Args:
        alpha: ``α`` (P, L), float64.
        log_centre: ``log c`` (L,), float64.
        log_odds: of presence (P, L), or None where all labels are there.

    Example:
        >>> alpha, odds = torch.tensor([[2.0, 3.0, 5.0]]).double(), torch.full((1, 3), 40.0).double()
        >>> even = torch.zeros(3).double()  # without a centre, a Dirichlet's
        >>> ComponentMoments(alpha, even).first().round(decimals=9)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
        >>> ComponentMoments(alpha, even, odds).first().round(decimals=9)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
    """

    def __init__(self, alpha: Tensor, log_centre: Tensor, log_odds: Tensor | None = None) -> None:
        self._alpha, self._log_centre = alpha, log_centre
        self._presence = None if log_odds is None else PresenceComponents(alpha, log_odds)
        self._y, step = (part[0] for part in integral_nodes(alpha, log_centre[None]))
        self._log1p = softplus(log_centre[:, None] + self._y)  # log(1 + c_r t), (L, k)
        if log_odds is None:  # the product itself must die out, not only what follows the last 1/c
            alive = (alpha @ self._log1p).amin(0) < INTEGRAL_TAIL + 10.0
            self._y, step, self._log1p = self._y[alive], step[alive], self._log1p[:, alive]
        self._weight = step
        # ρ_r t = c_r t / (1 + c_r t), between 0 and 1
        self._share = torch.sigmoid(log_centre[:, None] + self._y)  # (L, k)
        self._tables: dict[str, Tensor] = {}

    @property
    def n_numbers(self) -> int:
        """How much is kept."""
        return int(self._alpha.numel()) * 4

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Some components at a time: ``φ/(1+φ)`` and ``φ/K`` (p, L, k), and ``Π(1+φ)/K dt/t`` (p, 1, k)."""
        assert self._presence is not None
        log_norm, log_odds = self._presence.log_norm, self._presence.log_odds
        n, n_labels = self._alpha.shape
        size = max(1, CHUNK_ELEMENTS // (8 * n_labels * len(self._y)))
        for start in range(0, n, size):
            rows = slice(start, start + size)
            log_phi = log_odds[rows, :, None] - self._alpha[rows, :, None] * self._log1p
            scale = log_norm[rows, None, None]
            product = (softplus(log_phi).sum(1, keepdim=True) - scale).exp()
            yield torch.sigmoid(log_phi), (log_phi - scale).exp(), product

    def _table(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._tables:
            self._tables[name] = make()
        return self._tables[name]

    def _alone(self) -> Tensor | float:
        """Probability that a label is the only one (P, L)."""
        if self._presence is None:
            return 0.0
        return (self._presence.log_odds - self._presence.log_norm[:, None]).exp()

    def _product(self) -> Tensor:
        """``Π φ dt/t`` (P, k), where all labels are there."""
        return self._table("product", lambda: (-(self._alpha @ self._log1p)).exp() * self._weight)

    def _integrals(self) -> Tensor:
        """Integrals of ``φ_r (Π_{s≠r} (1+φ_s) - 1)`` times tρ, (tρ)² and tρ log(tρ) (P, 3, L)."""
        kernels = torch.stack([self._share, self._share.square(), self._share * self._share.log()])  # (3, L, k)
        if self._presence is None:
            return torch.einsum("pk,flk->pfl", self._product(), kernels)
        parts = []
        for there, alone, product in self._blocks():
            rest = (there * product - alone) * self._weight  # (p, L, k)
            parts.append(torch.einsum("plk,flk->pfl", rest, kernels))
        return torch.cat(parts)

    def first(self) -> Tensor:
        """``E[ℓ_r]`` (P, L)."""
        return self._alone() + self._alpha * self._table("integrals", self._integrals)[:, 0]

    def second(self) -> Tensor:
        """``E[ℓ_r²]`` (P, L)."""
        return self._alone() + self._alpha * (self._alpha + 1.0) * self._table("integrals", self._integrals)[:, 1]

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (P, L)."""
        integrals, alpha = self._table("integrals", self._integrals), self._alpha
        return -alpha * (integrals[:, 2] + (torch.digamma(alpha + 1.0) + EULER) * integrals[:, 0])

    def products(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` for the pairs r <= q of labels, in triangle order (P, L(L+1)/2)."""
        alpha = self._alpha
        r, q = pair_index(alpha.shape[1], alpha.device)
        if self._presence is None:
            table = self._product() @ (self._share[r] * self._share[q]).T
            return table * alpha[:, r] * (alpha[:, q] + (r == q))
        parts = []
        for there, _, product in self._blocks():
            left = there * self._share  # (p, L, k)
            table = (left * (product * self._weight)) @ left.transpose(1, 2)
            parts.append(table[:, r, q])
        mixed = torch.cat(parts) * alpha[:, r] * alpha[:, q]
        mixed[:, r == q] = self.second()
        return mixed

    def log_total(self) -> Tensor:
        """``E[log Σ_s c_s g_s]`` (P,), where all labels are there."""
        y = torch.arange(float(self._y[0]), float(self._y[-1]) + STEP, STEP, dtype=torch.float64, device=self._y.device)
        product = (-(self._alpha @ softplus(self._log_centre[:, None] + y))).exp()
        # e^{-t} is not analytic in a wide strip, 1/(1+t) is: ∫ (1/(1+t) - e^{-t}) dt/t = γ
        inside = STEP * (torch.sigmoid(-y) - product).sum(-1)
        steps = torch.arange(1, 4000, dtype=torch.float64, device=y.device) * STEP
        return inside + (STEP * torch.sigmoid(-(y[-1] + steps))).sum() - EULER  # beyond, only 1/(1+t) is left

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r]`` (P, L), where all labels are there."""
        return torch.digamma(self._alpha) + self._log_centre - self.log_total()[:, None]


def log_centre_of(centre: Tensor) -> Tensor:
    """``log c`` of a positive centre (..., L), scaled to a largest entry of one; kept within floating point."""
    logs = centre.double().log()
    return (logs - logs.amax(-1, keepdim=True)).clamp_min(-math.log(1e300))


# -- rows with centres or odds of their own ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RowMoments:
    """Moments of rows that share their neurons; each has its own features and centre, and every label is there.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        matrix: ``M ∘ R`` (K, n, n).
        features: ``ê`` (K, N, n), with ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1`` in every row.
        log_centre: ``log c`` (N, L), at most zero.

    Example:
        >>> half, one = torch.tensor([[[1.0, 1.5, 2.5]]]).double(), torch.ones(1, 1, 1).double()
        >>> RowMoments(half, one, one, torch.zeros(1, 3).double()).first().round(decimals=8)  # Dirichlet(2, 3, 5)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
    """

    half: Tensor
    matrix: Tensor
    features: Tensor
    log_centre: Tensor

    def __len__(self) -> int:
        return len(self.log_centre)

    def _each_block(self, numbers: int, answer: Callable[[_Integrals], Answer]) -> list[Answer]:
        """Answers of some rows at a time, where each row takes so many numbers per neuron."""
        size = max(1, ROW_ELEMENTS // (numbers * self.half[..., 0].numel()))
        blocks: Iterator[Tensor] = iter(torch.arange(len(self), device=self.log_centre.device).split(size))

        def work(rows: Tensor) -> Answer:
            part = replace(self, features=self.features[:, rows], log_centre=self.log_centre[rows])
            return answer(part._integrals())

        return map_blocks(work, blocks, self.log_centre.device)

    def first(self) -> Tensor:
        """``E[ℓ_r]`` (N, L)."""
        return torch.cat(self._each_block(NODES, lambda part: part.first()))

    def two(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        first, second = zip(*self._each_block(NODES, lambda part: (part.first(), part.second())))
        return torch.cat(first), torch.cat(second)

    def products(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` (N, L, L)."""
        return torch.cat(self._each_block(NODES * self.half.shape[-1], lambda part: part.products()))

    def _integrals(self) -> _Integrals:
        y, step = integral_nodes(2.0 * self.half.flatten(0, 1), self.log_centre, ROW_STEP, ROW_TAIL)
        z = self.log_centre[..., None] + y[:, None]
        log1p = softplus(z)  # log(1 + c t), (N, L, k)
        bound = -2.0 * torch.einsum("l,nlk->nk", self.half.amin((0, 1)), log1p)
        alive = int(((bound > -ROW_TAIL) & (step > 0.0)).any(0).sum())  # bounds fall: what is alive comes first
        log1p = log1p[..., :alive]
        factors = torch.einsum("mil,nlk->mink", -self.half, log1p).clamp_min_(LEAST_LOG_FACTOR).exp_()
        phi = factors.mul_(self.features.transpose(1, 2)[..., None])
        return _Integrals(self, phi, torch.sigmoid(z[..., :alive]), step[:, :alive])

    def form(self, z: Tensor) -> Tensor:
        """``M z`` of every member: z (K, n, ...) -> (K, n, ...)."""
        return (self.matrix @ z.flatten(2)).view_as(z)


@dataclass(frozen=True)
class _Integrals:
    """Integrands of moments: ``ê φ`` (K, n, N, k), ``c t / (1 + c t)`` (N, L, k), and steps of the nodes (N, k)."""

    rows: RowMoments
    phi: Tensor
    share: Tensor
    step: Tensor

    def _linear(self) -> Tensor:
        """``Σ_ij C_ij (a_i + a_j) φ_i φ_j`` (N, L, k)."""
        return 2.0 * torch.einsum("mil,mink->nlk", self.rows.half, self.phi * self.rows.form(self.phi))

    def first(self) -> Tensor:
        return (self._linear() * self.share * self.step[:, None]).sum(-1)

    def second(self) -> Tensor:
        product = self.phi * self.rows.form(self.phi)
        answer = torch.empty_like(self.share[..., 0])
        for r in range(answer.shape[1]):
            a = self.rows.half[..., r]
            mixed = a[:, :, None, None] * self.phi
            table = torch.einsum("mi,mink->nk", 2.0 * (a + a.square()), product)
            table += 2.0 * (mixed * self.rows.form(mixed)).sum((0, 1))
            answer[:, r] = (table * self.share[:, r].square() * self.step).sum(-1)
        return answer

    def products(self) -> Tensor:
        half, share = self.rows.half, self.share
        product = self.phi * self.rows.form(self.phi) * self.step
        weighted = half.movedim(-1, 0)[..., None, None] * self.phi  # (L, K, n, N, k)
        turned = torch.stack([self.rows.form(part) for part in weighted]) * self.step
        mixed = torch.einsum("rmink,qmink->nrqk", weighted, turned)
        mixed += torch.einsum("mir,miq,mink->nrqk", half, half, product)
        answer = 2.0 * torch.einsum("nrqk,nrk,nqk->nrq", mixed, share, share)
        linear = (self._linear() * share.square() * self.step[:, None]).sum(-1)
        return answer + torch.diag_embed(linear)


@dataclass(frozen=True)
class RowPresenceMoments:
    """Moments of rows that share their neurons; each has its own weights and odds, and labels may be absent.

    Args:
        half: ``a = ½ + w`` of all neurons (n, L), float64.
        pairs: both neurons of every component, (P,) each.
        log_odds: of presence (P, L), before the rows' shifts.
        shift: what is added to them (N or 1, L).
        log_centre: ``log c`` (N or 1, L), at most zero.
        weights: of the components (N, P); those of a row sum to one.

    Example:
        >>> half, one = torch.tensor([[1.0, 1.5, 2.5]]).double(), torch.ones(1, 1).double()
        >>> zero, odds = torch.zeros(1, 3).double(), torch.full((1, 3), 40.0).double()
        >>> pairs = torch.tensor([0]), torch.tensor([0])
        >>> RowPresenceMoments(half, pairs, odds, zero, zero, one).two()[0].round(decimals=9)  # Dirichlet(2, 3, 5)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
    """

    half: Tensor
    pairs: tuple[Tensor, Tensor]
    log_odds: Tensor
    shift: Tensor
    log_centre: Tensor
    weights: Tensor

    def two(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L), to 1e-10."""
        size, order = self.weights.abs().sort(1, descending=True)
        behind = size.flip(1).cumsum(1).flip(1)  # what a component and all lighter ones weigh
        # where components of a row end that take every node, every second one, every fourth one
        limits = [least for least, _ in LIGHT[::-1]] + [NEGLIGIBLE_MOMENT_WEIGHT]
        ends = torch.stack([(behind > least).sum(1) for least in limits], 1)
        n_labels, device = self.half.shape[1], self.half.device
        by_size = ends[:, 0].argsort(stable=True)
        numbers = NODES * n_labels * int(ends[:, 0].sum())  # of all rows together
        per_block = max(1, 4 * ROW_ELEMENTS * len(order) // max(1, numbers))
        parts = list(by_size.split(per_block))
        answers = map_blocks(lambda rows: self._block(rows, order[rows], ends[rows]), parts, device)
        answer = torch.empty(2, len(order), n_labels, dtype=torch.float64, device=device)
        for rows, two in zip(parts, answers):
            answer[:, rows] = two
        return answer[0], answer[1]

    def _block(self, rows: Tensor, order: Tensor, ends: Tensor) -> Tensor:
        """Both moments of some rows (2, b, L), whose components come in this order (b, P) up to these ends (b, 3)."""
        centre = self.log_centre.expand(len(self.weights), -1)[rows]
        y, step = integral_nodes(2.0 * self.half, centre, ROW_STEP, ROW_TAIL)
        z = (centre[..., None] + y[:, None]).transpose(0, 1)  # (L, b, k)
        log1p, share = softplus(z), torch.sigmoid(z)
        factors = (-self.half.T[:, None, :, None] * log1p[:, :, None]).clamp_min_(LEAST_LOG_FACTOR).exp_()
        answer = torch.zeros(2, len(rows), self.half.shape[1], dtype=torch.float64, device=step.device)
        strides = [1, *(every for _, every in LIGHT[::-1])]
        place = torch.arange(order.shape[1], device=rows.device)
        weights, before = self.weights[rows].gather(1, order), torch.zeros_like(ends[:, 0])
        for after, every in zip(ends.T, strides):
            part = slice(int(before.min()), int(after.max()))
            # each row's own components alone, so that its answer does not depend on the other rows
            own = (place >= before[:, None]) & (place < after[:, None])
            if part.start < part.stop:
                kernel = share[..., ::every], every * step[:, ::every]
                taken = order[:, part], (weights * own)[:, part]
                answer += self._integrate(rows, *taken, factors[..., ::every], *kernel)
            before = after
        return answer

    def _integrate(
        self, rows: Tensor, numbers: Tensor, weights: Tensor, factors: Tensor, share: Tensor, step: Tensor
    ) -> Tensor:
        """What some components of each row (b, p), with their weights, add to its moments (2, b, L)."""
        n_labels, n_rows, n_neurons, n_nodes = factors.shape
        shift = self.shift.expand(len(self.weights), -1)[rows]
        log_odds = (self.log_odds[numbers] + shift[:, None]).clamp_(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)
        log_odds = log_odds.movedim(-1, 0).contiguous()  # (L, b, p)
        there, absent, log_absent = torch.sigmoid(log_odds), torch.sigmoid(-log_odds), -softplus(log_odds)
        empty = log_absent.sum(0)
        alone = (empty - log_absent).exp()  # every other label is absent
        i, j = (neurons[numbers] for neurons in self.pairs)
        alpha = (self.half[i] + self.half[j]).movedim(-1, 0)
        weights = there * (weights / -torch.expm1(empty))
        rising = torch.stack([weights * alpha, weights * alpha * (alpha + 1.0)], 2)  # (L, b, 2, p)
        lonely = rising * alone[:, :, None]
        flat = factors.contiguous().view(n_labels, n_rows * n_neurons, n_nodes)
        first = torch.arange(n_rows, device=rows.device)[:, None] * n_neurons
        total = torch.zeros(n_labels, n_rows, 2, n_nodes, dtype=torch.float64, device=rows.device)
        size = max(1, ROW_ELEMENTS // (n_labels * n_rows * n_nodes))
        for start in range(0, numbers.shape[1], size):
            part = slice(start, start + size)
            shape = (n_labels, n_rows, -1, n_nodes)
            both = flat.index_select(1, (first + i[:, part]).flatten())
            both = both.mul_(flat.index_select(1, (first + j[:, part]).flatten())).view(shape)
            either = (both * there[:, :, part, None]).add_(absent[:, :, part, None])
            product = either.prod(0)
            rest = torch.div(both, either, out=either).mul_(product)  # Π_{s≠r} (1-p+pF), times F_r
            total += rising[..., part] @ rest
            total -= lonely[..., part] @ both
        by_itself = (weights * alone).sum(-1).T  # (b, L)
        weighted = total * (share * step)[:, :, None]
        return torch.stack([weighted[:, :, 0].sum(-1).T, (weighted[:, :, 1] * share).sum(-1).T]) + by_itself


def log_covariance(weights: Tensor, alpha: Tensor, log_centre: Tensor) -> Tensor:
    """``Cov[log ℓ]`` (L, L) of one row with a centre, where all labels are there.

    ``log ℓ_r = log c_r g_r - log T`` with ``T = Σ c g``. The gammas are independent of each other, and
    ``E[X log T] = ∫ (E[X] e^{-t} - E[X e^{-tT}]) dt/t`` for ``X = log g_r`` and, with ``log T`` itself, for its square:
    ``E[log² T] = 2 ∫ (…)``; both by the trapezoid rule in ``y = log t``.

    Args:
        weights: of the components (P,).
        alpha: concentrations (P, L).
        log_centre: ``log c`` (L,).
    """
    y = integral_nodes(alpha, log_centre[None])[0][0]
    step = 0.05
    grid = torch.arange(float(y[0]), max(float(y[-1]), 40.0), step, dtype=torch.float64, device=alpha.device)
    log1p = softplus(log_centre[:, None] + grid)  # (L, k)
    product = torch.exp(-(alpha @ log1p))  # E[e^{-tT}]
    plain = torch.exp(-grid.exp())
    log_g = torch.digamma(alpha)  # E[log g_r]
    # E[log g_r e^{-tT}] = (ψ(α_r) - log(1 + c_r t)) E[e^{-tT}]
    base = step * (plain - product).sum(1)  # E[log T]
    mixed = log_g * base[:, None] + step * torch.einsum("lk,pk->pl", log1p, product)  # E[log g_r log T]
    # E[log² T]: -d/dε of E[T^{-ε}] twice; by parts ∫ (e^{-t} - φ) log t dt/t = -(½ E[log² T] + γ E[log T])
    logs = step * ((plain - product) * grid).sum(1)
    square = -2.0 * (logs + EULER * base)
    first = log_g + log_centre - base[:, None]
    second = log_g[:, :, None] * log_g[:, None, :] + torch.diag_embed(torch.polygamma(1, alpha))
    # with log c_r added to log g_r on both sides
    moved = mixed + log_centre * base[:, None]
    second = second + log_g[:, :, None] * log_centre + log_centre[:, None] * log_g[:, None, :]
    second = second + log_centre[:, None] * log_centre
    second = second - moved[:, :, None] - moved[:, None, :] + square[:, None, None]
    mean = weights @ first
    return torch.einsum("p,prq->rq", weights, second) - mean[:, None] * mean
