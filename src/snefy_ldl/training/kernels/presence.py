"""The log density of label distributions with zeros, and its gradient written out, for K stacked members.

    log p(S, ℓ_S | x) = log Σ_ij M_ij e^{u_i + u_j} Γ(s_i + s_j) - log Σ_ij M_ij R_ij e^{h̃_i + h̃_j},
    u_i = h̃_i - g_i + Σ_{r in S} (a_ir + w_ir log ℓ_r),   s_i = Σ_{r in S} (w_ir + ½),   M = VᵀV,
    log K_ij = log(Π_r (1 + o_ijr) - 1),   g_i = ½ log K_ii,   log R_ij = log K_ij - g_i - g_j,
    log o_ijr = b_ir + b_jr + log Γ(α_ijr) - ½ log Γ(α_iir) - ½ log Γ(α_jjr),   a_ir = b_ir - ½ log Γ(α_iir),

with ``α_ijr = 1 + w_ir + w_jr`` and b the presence that is trained; a row's own shift is added to its ``log o``.

Most of the time goes into ``Γ(s_i + s_j)``, one number per support and pair of neurons. Where the table has few
supports these numbers are made once per step and each row is a quadratic form; otherwise each row has its own, and
value and gradient are computed together, block by block, so that nothing leaves the processor's cache. Pairs stand in
circulant order (:mod:`snefy_ldl._internal.special`). The objective's plain form in the tests is the oracle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, SWEEP_ELEMENTS
from snefy_ldl._internal.special import (
    HALF_LOG_TWO_PI,
    STIRLING,
    STIRLING_SLOPES,
    circulant_from_full,
    full_from_circulant,
    horner,
)
from snefy_ldl._internal.tolerances import LOG_ODDS_LIMIT, NEGLIGIBLE_TERM_EXPONENT
from snefy_ldl.training.kernels.pairs import PairGamma, PairSums, Wrapped, pair_weights

#: Up to so many supports in a table, every row is multiplied with the matrices of all of them.
DENSE_SUPPORTS = 12
#: From so many neurons on, a CPU integrates over the radius rather than going through all pairs.
RADIAL_NEURONS = 16


@dataclass(frozen=True)
class ZeroRows:
    """Labels of a batch.

    Args:
        known: which labels are there, and their logs, zero where absent (K, B, 2 L), float64.
        offset: what is added to each log density (K, B), float64.
        place: which of the table's supports each row has (K, B), or None where every row brings its own.
        background: log likelihood of the background (K, B), float64, or None.
        log_odds: of the background's share (K,), or None.
        shift: of the log odds of presence (K, B, L), or None.
    """

    known: Tensor
    offset: Tensor
    place: Tensor | None = None
    background: Tensor | None = None
    log_odds: Tensor | None = None
    shift: Tensor | None = None


def log_norm(total: Tensor) -> tuple[Tensor, Tensor]:
    """``log(e^T - 1)`` of T >= 0 and its slope ``1 / (1 - e^-T)``; T is lifted to where both are finite."""
    total = total.clamp_min(1e-30)
    rest = torch.expm1(-total).neg_()
    return total + rest.log(), rest.reciprocal_()


class PresenceTable:
    """The odds of all pairs, from which the normalising kernel ``K_ij`` comes, and Gamma functions of a few supports.

    One table holds the concentrations of single labels and, below them, their sums over supports. A support of one
    label needs no row of its own.

    Args:
        shape: members K, neurons n and labels L.
        supports: (Q, L), float64, or None for none.
        like: gives device and the network's dtype.
        slopes: whether gradients will be asked for.

    Attributes:
        log_odds: ``log o_ijr`` (K, L, S, n), float64.
        half_log: ``½ log Γ(2 s_i)`` of the supports (K, Q, n), float64.
    """

    half_log: Tensor

    def __init__(self, shape: tuple[int, int, int], supports: Tensor | None, like: Tensor, slopes: bool) -> None:
        self.shape = n_members, n, n_labels = shape
        shifts, width = n // 2 + 1, n_labels
        self._sets: Tensor | None = None  # which labels each row of the table sums up (K, L + ..., L)
        self._rows: Tensor | None = None  # of the supports (Q,); None where the table has no others, in their order
        if supports is not None:
            labels = torch.eye(n_labels, dtype=torch.float64, device=like.device)
            alone = supports.sum(1) == 1.0
            self._sets = torch.cat([labels, supports[~alone]]).expand(n_members, -1, -1)
            width = self._sets.shape[1]
            rows = torch.where(alone, supports.argmax(1), n_labels - 1 + (~alone).cumsum(0))
            if rows.tolist() != list(range(width)):
                self._rows = rows
        self.n_supports = 0 if supports is None else len(supports)
        count = n_members * width
        self.gamma = PairGamma(count, n, like, slopes)
        self._values = values = self.gamma.values.view(n_members, width, shifts, n)
        self.log_odds = values if supports is None else torch.empty_like(values[:, :n_labels])
        self._own = Wrapped(like.new_empty(count, n + shifts - 1, dtype=torch.float64), n)
        if supports is not None:
            self._presence = Wrapped(like.new_empty(n_members, n_labels, n + shifts - 1, dtype=torch.float64), n)
        self._chances, self._work = like.new_empty(2, n_members, n_labels, shifts, n)
        if slopes:
            self._sums = self._odds_sums = PairSums(count, n, like)
            if supports is not None:
                self._odds_sums = PairSums(n_members * n_labels, n, like)
            self._d_values = self._sums.pairs.view(values.shape)
            assert self.gamma.slopes is not None
            self.own_slopes = self.gamma.slopes.view(values.shape)[:, :n_labels, 0]  # ψ(α_iir) (K, L, n)

    def compute(self, exponents: Tensor, presence: Tensor) -> Tensor:
        """Fill the table for w and b (K, n, L), float64; gives a (K, L, n)."""
        n_members, n, n_labels = self.shape
        halves = exponents.mT + 0.5
        halves = halves.contiguous() if self._sets is None else torch.bmm(self._sets, halves)
        flat = halves.view(-1, n)
        self.gamma.compute(flat)
        own = torch.mul(self.gamma.values[:, 0], -0.5)
        if self._sets is None:
            own.view(n_members, -1, n).add_(presence.mT)
        left, right = self._own.fill(own)
        self.gamma.values.add_(left).add_(right)
        own = own.sub_(self.gamma.linear(flat)).view(n_members, -1, n)
        if self._sets is None:
            return own
        left, right = self._presence.fill(presence.mT)
        torch.add(self._values[:, :n_labels], left, out=self.log_odds).add_(right)
        self.half_log = (own if self._rows is None else own[:, self._rows]).neg()
        return own[:, :n_labels] + presence.mT

    def ratios(self, into: Tensor) -> Tensor:
        """``Γ(s_i + s_j) / √(Γ(2 s_i) Γ(2 s_j))`` of the supports, into (K, Q, S, n) of the network's dtype."""
        values = self._values if self._rows is None else self._values[:, self._rows]
        return into.copy_(values).exp_()

    def take_gradient(self, d_log_ratio: Tensor) -> None:
        """Take the gradient for the logarithms of :meth:`ratios` (K, Q, S n), before the one for the odds comes."""
        d_log_ratio = d_log_ratio.view(len(self._values), -1, *self._values.shape[2:])
        if self._rows is None:
            self._d_values.copy_(d_log_ratio)
        else:
            self._d_values[:, : self.shape[2]] = 0.0
            self._d_values[:, self._rows] = d_log_ratio

    def log_norms(self) -> tuple[Tensor, Tensor]:
        """``log K_ij`` of every pair (K, S, n), float64, and its slope by ``Σ_r log(1 + o_r)``, without a shift."""
        certain = self.log_odds.clamp_min(0.0).sum(1)
        odds = self._chances.copy_(self.log_odds)
        rest = torch.abs(odds, out=self._work).neg_().exp_().log1p_().sum(1)
        odds.sigmoid_()
        return log_norm(certain.add_(rest))

    def pull_back(self, d_total: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by way of :meth:`log_norms`, for one for ``Σ_r log(1 + o_r)`` (K, S, n); see :meth:`from_odds`."""
        return self.from_odds(self._chances.mul_(d_total[:, None]))

    def from_odds(self, d_log_odds: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients for b, and for w by way of ``log Γ(s_i + s_j)``, (K, L, n) each, for one for ``log o_ijr``."""
        n_members, n, n_labels = self.shape
        slopes, odds_sums = self.gamma.slopes, self._odds_sums
        assert slopes is not None
        odds_sums.pairs.copy_(d_log_odds.view(odds_sums.pairs.shape))
        d_presence = odds_sums.by_neuron().view(n_members, n_labels, n)
        if self._sets is not None:
            self._d_values[:, :n_labels].add_(d_log_odds.view(self.log_odds.shape))
        self._sums.pairs.mul_(slopes)
        d_halves = self._sums.by_neuron().view(n_members, -1, n)
        if self._sets is None:
            return d_presence, d_halves
        return d_presence, torch.bmm(self._sets.mT.to(d_halves.dtype), d_halves)


def _block_size(like: Tensor) -> int:
    """Numbers that an array of a block holds: a CPU's cache keeps a dozen of them, a GPU takes many."""
    return SWEEP_ELEMENTS if like.device.type == "cpu" else CHUNK_ELEMENTS


def _blocks(n_members: int, n_rows: int, width: int, limit: int) -> list[tuple[slice, slice]]:
    """Members and rows, cut so that a block holds about ``limit`` numbers, ``width`` per row, in equal parts."""
    if n_rows * width <= limit:
        size = max(1, limit // (n_rows * width))
        return [(slice(k, min(k + size, n_members)), slice(0, n_rows)) for k in range(0, n_members, size)]
    parts = math.ceil(n_rows * width / limit)
    size = math.ceil(n_rows / parts)
    cuts = [slice(b, min(b + size, n_rows)) for b in range(0, n_rows, size)]
    return [(slice(k, k + 1), cut) for k in range(n_members) for cut in cuts]


class Readout(NamedTuple):
    """``V`` (K, m, n), ``M = VᵀV`` (K, n, n), and M in circulant order, as often as each pair counts, (K, S n)."""

    readout: Tensor
    gram: Tensor
    pair_gram: Tensor


class FormResult(NamedTuple):
    """A signed sum over pairs of neurons, and its gradients.

    Attributes:
        log_form: log of the sum (K, B), float64.
        d_u: gradient for u (K, B, n), rows' weights included, as in the others.
        d_s: that for s (K, B, n), or None where the table takes it.
        d_gram: that for M (K, n, n).
        weights: gradient for each row's log density under the network alone (K, B).
        d_readout: gradient for V (K, m, n) beside M's, or None.
    """

    log_form: Tensor
    d_u: Tensor | None = None
    d_s: Tensor | None = None
    d_gram: Tensor | None = None
    weights: Tensor | None = None
    d_readout: Tensor | None = None


class Weigher:
    """Log likelihoods from the two sums, and how much each row's gradient counts.

    Args:
        rows: labels of the batch.
        log_z: log of the normalising sum (K, B), float64.
        slope: gradient for the log likelihood (K, B), or None where none is needed.

    Attributes:
        gap: added to the log of the other sum it gives the log odds that a row is the network's, and not the
            background's (K, B), float64; None without a background.
    """

    def __init__(self, rows: ZeroRows, log_z: Tensor, slope: Tensor | None) -> None:
        self.slope, self.gap, self._background = slope, None, None
        self._rest = rows.offset - log_z
        if rows.background is not None and rows.log_odds is not None:
            odds = rows.log_odds[:, None]
            self._rest -= softplus(odds)
            self._background = rows.background - softplus(-odds)
            self.gap = self._rest - self._background

    def log_p(self, log_form: Tensor) -> Tensor:
        """Log likelihood (K, B), background included, for the log of the other sum (K, B), float64."""
        log_p = log_form + self._rest
        return log_p if self._background is None else torch.logaddexp(log_p, self._background)


def _scale(u: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """``u + ½ log Γ(2 s)`` (..., n), nearly, before and after the largest of each row (..., 1) was looked for."""
    z = torch.add(s, s).add_(4.0)
    product = (z - 1.0).mul_(z - 2.0).mul_(z - 3.0).mul_(s).log_()
    own = z.log().mul_(z - 0.5).sub_(z).sub_(product).mul_(0.5).add_(u)
    return own.amax(-1, keepdim=True), own


class GammaTerms:
    """``e^{u_i + u_j} Γ(s_i + s_j)`` of all pairs, block by block, with memory that stays.

    A CPU sums up Stirling's series as ``_internal/special.py`` does, with shift 4, but keeps the product out of the
    exponent: ``Γ(x) = √2π e^{(z-½) log z - z + ...} / (x (x+1) (x+2) (x+3))``, ``z = x + 4``.

    Args:
        rows: how many sets of neurons.
        n: neurons.
        blocks: rows of each block.
        like: gives device and dtype.
        slopes: whether ψ is needed.

    Example:
        >>> gamma = GammaTerms(1, 1, [slice(0, 1)], torch.empty(0, dtype=torch.float64), slopes=False)
        >>> zero, s = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
        >>> top = gamma.fill(zero, s)
        >>> terms, _ = gamma.block(0)
        >>> terms * (2.0 * top).exp()  # Γ(4)
        tensor([[[6.0000]]], dtype=torch.float64)
    """

    def __init__(self, rows: int, n: int, blocks: list[slice], like: Tensor, slopes: bool) -> None:
        shifts, length = n // 2 + 1, n + n // 2
        count = 5 if like.dtype == torch.float64 else 2  # a third term is below 1e-6, less than float32's rounding
        self._series, self._slope_series, self._steps = (
            [torch.tensor(number, dtype=like.dtype, device=like.device) for number in numbers]
            for numbers in (STIRLING[:count], STIRLING_SLOPES[:count], (1.0, 1.5, 2.0, 3.0, 4.0))
        )
        self._halves, self._lifted = (Wrapped(like.new_empty(rows, length, dtype=torch.float64), n) for _ in range(2))
        self._small_halves = Wrapped(like.new_empty(rows, length), n)
        limit = max(part.stop - part.start for part in blocks)
        exact, work = like.new_empty(3, limit, shifts, n, dtype=torch.float64), like.new_empty(8, limit, shifts, n)
        inputs = [view for wrapped in (self._halves, self._lifted, self._small_halves) for view in wrapped.views]
        self._blocks = [
            (
                tuple(view[part] for view in inputs),
                tuple(array[: part.stop - part.start] for array in (*exact, *work)),
            )
            for part in blocks
        ]
        self._needs_slopes, self._on_cpu = slopes, like.device.type == "cpu"
        # the product of four factors divides afterwards, so that nothing may come near the denormal numbers, slow ones
        self._lowest = 0.5 * NEGLIGIBLE_TERM_EXPONENT if like.dtype == torch.float32 else -600.0

    def fill(self, u: Tensor, s: Tensor) -> Tensor:
        """Take u and s (rows, n), float64; gives half the log of the scale of each row's terms (rows, 1)."""
        top, _ = _scale(u, s)
        lifted = torch.sub(u, top)
        if self._on_cpu:
            self._small_halves.fill(s)
            lifted.sub_(s).add_(0.5 * HALF_LOG_TWO_PI - 2.0)
            s = s + 2.0
        self._halves.fill(s)
        self._lifted.fill(lifted)
        return top

    def block(self, number: int) -> tuple[Tensor, Tensor]:
        """Scaled terms of a block's rows and ``ψ(s_i + s_j)``, (rows, S, n) each, which stand until the next call."""
        inputs, arrays = self._blocks[number]
        z, log_z, exponent, x, y, factors, inverse, square, series, terms, slopes = arrays
        torch.add(inputs[0], inputs[1], out=z)
        torch.add(inputs[2], inputs[3], out=exponent)
        if not self._on_cpu:
            torch.exp(terms.copy_(exponent.add_(torch.lgamma(z, out=log_z))).clamp_min_(self._lowest), out=terms)
            return terms, torch.digamma(slopes.copy_(z), out=slopes) if self._needs_slopes else slopes
        one, one_and_half, two, three, four = self._steps
        torch.log(z, out=log_z)
        terms.copy_(exponent.addcmul_(z, log_z))
        slopes.copy_(log_z)
        torch.add(inputs[4], inputs[5], out=x)
        torch.add(x, three, out=y).mul_(x)
        torch.add(y, two, out=factors).mul_(y)
        torch.add(x, four, out=inverse).reciprocal_()
        torch.mul(inverse, inverse, out=square)
        terms.addcmul_(horner(self._series, square, series), inverse).add_(slopes, alpha=-0.5)
        terms.clamp_min_(self._lowest).exp_().div_(factors)
        if self._needs_slopes:
            # ψ = log z - 1/(2z) - Σ_k (2k-1) c_k z^-2k - d log(factors)/dx, the last (2x + 3) (2y + 2) / (y (y + 2))
            slopes.add_(inverse, alpha=-0.5).addcmul_(horner(self._slope_series, square, series), square, value=-1.0)
            slopes.add_(x.add_(one_and_half).mul_(y.add_(one)).div_(factors), alpha=-4.0)
        return terms, slopes


class RowForm:
    """``log Σ_ij M_ij e^{u_i + u_j} Γ(s_i + s_j)`` where every row has a support of its own.

    Args:
        shape: members K, rows B and neurons n.
        like: gives device and the network's dtype.
        gradients: whether gradients will be asked for.
    """

    def __init__(self, shape: tuple[int, int, int], like: Tensor, gradients: bool) -> None:
        n_members, n_rows, n = shape
        width = (n // 2 + 1) * n
        size = _block_size(like)
        blocks = []  # of rows of one member, or of several whole members, in the flat table
        for members, rows in _blocks(n_members, n_rows, width, size):
            first, last = members.start * n_rows + rows.start, (members.stop - 1) * n_rows + rows.stop
            blocks.append((members, slice(first, last)))
        self.n = n
        self._full = full_from_circulant(n, like.device)
        self._gamma = GammaTerms(n_members * n_rows, n, [part for _, part in blocks], like, gradients)
        self._total, self._weights, self._gap = like.new_empty(3, n_members * n_rows)
        self._pair_gram, self._d_pairs = like.new_empty(2, n_members, width)
        self._d_u, self._d_s = like.new_empty(2, n_members * n_rows, n)
        sums = {rows: PairSums(rows, n, like) for rows in {part.stop - part.start for _, part in blocks} if gradients}
        self._blocks = []
        for members, part in blocks:
            views = tuple(array[part] for array in (self._total, self._weights, self._gap, self._d_u, self._d_s))
            pairs = self._pair_gram[members]
            count, rows_there = pairs.shape[0], part.stop - part.start
            own = sums.get(rows_there)
            entries = None if own is None else own.pairs.view(count, -1, n // 2 + 1, n)
            square = pairs.view(count, 1, n // 2 + 1, n)
            self._blocks.append((views, pairs[..., None], square, self._d_pairs[members], own, entries))

    def run(self, u: Tensor, s: Tensor | None, rows: ZeroRows, net: Readout, weigher: Weigher) -> FormResult:
        """The log form (K, B); with slopes also gradients for u and s (K, B, n) and M (K, n, n), and rows' weights."""
        assert s is not None
        n, gram, slope = self.n, net.gram, weigher.slope
        tiny = torch.finfo(gram.dtype).tiny
        top = self._gamma.fill(u.view(-1, n), s.view(-1, n)).squeeze(1).mul_(2.0)
        self._pair_gram.copy_(net.pair_gram)
        if slope is not None:
            self._weights.copy_(slope.flatten())
            self._d_pairs.zero_()
            if weigher.gap is not None:
                self._gap.copy_(torch.add(weigher.gap.view(-1), top))
        for number, (views, column, square, d_pairs, sums, entries) in enumerate(self._blocks):
            terms, slopes = self._gamma.block(number)
            total, weight, gap, d_u, d_s = views
            grouped = terms.view(len(column), -1, column.shape[1])
            torch.bmm(grouped, column, out=total.view(len(column), -1, 1)).clamp_min_(tiny)
            if slope is None or sums is None or entries is None:
                continue
            if weigher.gap is not None:
                weight.mul_(gap.add_(total.log()).sigmoid_())
            by = (weight / total)[:, None]
            d_pairs.add_(torch.bmm(by.view(len(column), 1, -1), grouped).squeeze(1))
            torch.mul(terms.view(entries.shape), square, out=entries)
            torch.mul(sums.by_neuron(), by, out=d_u)
            sums.pairs.mul_(slopes)
            torch.mul(sums.by_neuron(), by, out=d_s)
        log_form = self._total.log().double().add_(top).view(u.shape[:2])
        if slope is None:
            return FormResult(log_form)
        d_gram = self._d_pairs.index_select(1, self._full).view_as(gram)
        d_u, d_s = self._d_u.view(u.shape), self._d_s.view(u.shape)
        return FormResult(log_form, d_u, d_s, d_gram, self._weights.view(slope.shape))


class RadialNodes:
    """Nodes ``y_k`` and weights with ``Σ_k weight_k e^{m y_k} = Γ(m)`` for every m from 0.01 up to millions.

    ``Γ(m) = ∫ e^{m y - e^y} dy`` by the trapezoidal rule in v, ``y = 2 log(½ log(1 + e^{κv}) / κ) - e^{-ηv}``. To the
    right ``e^y`` is ``v² / 4``, which gives every integrand the same width, so that a dozen nodes around its peak
    suffice; to the left y falls exponentially, so that small m need no long tail.

    Args:
        dtype: float32 has errors of 7e-7 in log Γ, float64 of 1e-12.

    Attributes:
        x: ``e^{y_k}``, rising.
        y: the nodes.
        half_log_weight: half the log of their weights.
        first: of the nodes that the integral for ``m = x_k`` needs.
        last: likewise; beyond all nodes where they do not reach far enough.
    """

    KAPPA, ETA = 0.3, 0.5
    #: Nodes on either side of a peak among which those that count are looked for.
    REACH = 60

    def __init__(self, dtype: torch.dtype) -> None:
        step, negligible = (1.15, 1e-7) if dtype == torch.float32 else (0.5, 1e-15)
        v = torch.arange(-20.0, 10_000.0, step, dtype=torch.float64)
        grown = softplus(self.KAPPA * v) / self.KAPPA
        self.y = 2.0 * (0.5 * grown).log() - (-self.ETA * v).exp()
        slope = 2.0 / grown * torch.sigmoid(self.KAPPA * v) + self.ETA * (-self.ETA * v).exp()
        self.x = self.y.exp()
        self.half_log_weight = 0.5 * ((step * slope).log() - self.x)
        n = len(v)
        near = torch.arange(n)[:, None] + torch.arange(-self.REACH, self.REACH + 1)
        terms = self.x[:, None] * self.y[near.clamp(0, n - 1)] + 2.0 * self.half_log_weight[near.clamp(0, n - 1)]
        terms = terms.masked_fill((near < 0) | (near >= n), -torch.inf)
        counts = terms > terms.amax(1, keepdim=True) + math.log(negligible)
        self.first = torch.where(counts, near, n).amin(1)
        self.last = torch.where(counts, near, -1).amax(1)
        self.last[self.last >= n - 1] = 10 * n

    def window(self, low: Tensor, high: Tensor) -> tuple[Tensor, int]:
        """First node of each row whose m lie between low and high (rows,), and how many the widest row needs."""
        start = self.first[torch.searchsorted(self.x, low).sub_(1).clamp_min_(0)]
        end = self.last[torch.searchsorted(self.x, high).clamp_max_(len(self.x) - 1)]
        return start, int((end - start).max()) + 1


@lru_cache(maxsize=2)
@torch.inference_mode(False)
def radial_nodes(dtype: torch.dtype) -> RadialNodes:
    """The nodes for networks of a dtype."""
    return RadialNodes(dtype)


class RadialForm:
    """The sum of :class:`RowForm` as an integral over the radius, for networks of many neurons on a CPU.

        Σ_ij M_ij e^{u_i + u_j} Γ(s_i + s_j) = ∫ ‖V e^{u + y s}‖² e^{-e^y} dy

    A dozen or two nodes take the place of n (n + 1) / 2 Gamma functions, and matrix products that of sums over pairs.

    Args:
        shape: members K, rows B and neurons n.
        like: gives the network's dtype.
        gradients: whether gradients will be asked for.
    """

    def __init__(self, shape: tuple[int, int, int], like: Tensor, gradients: bool) -> None:
        self.shape, self.like, self.gradients = shape, like, gradients
        self.nodes = radial_nodes(like.dtype)
        self._pairs: RowForm | None = None
        self._lowest = 0.5 * _lowest(like)  # squares are added up
        self._relevant = 14.0 if like.dtype == torch.float32 else 37.0

    def run(self, u: Tensor, s: Tensor | None, rows: ZeroRows, net: Readout, weigher: Weigher) -> FormResult:
        """See :meth:`RowForm.run`."""
        assert s is not None
        n_members, n_rows, n = self.shape
        top, own = _scale(u, s)
        # A pair counts where t_i + t_j is close to 2 max t; one of the two is then half as close.
        behind = torch.sub(top, own)
        far, near = (s.masked_fill(behind > limit, torch.inf) for limit in (self._relevant, 0.5 * self._relevant))
        low = far.amin(-1).add_(near.amin(-1))
        far, near = (part.masked_fill_(part == torch.inf, 0.0) for part in (far, near))
        high = far.amax(-1).add_(near.amax(-1))
        first, count = self.nodes.window(low, high)
        if count > 3 * (n // 2 + 1):  # pairs are cheaper
            if self._pairs is None:
                self._pairs = RowForm(self.shape, self.like, self.gradients)
            return self._pairs.run(u, s, rows, net, weigher)
        places = (first[..., None] + torch.arange(count)).clamp_max_(len(self.nodes.y) - 1)
        y = self.nodes.y[places]  # (K, B, nodes)
        # Seen from the middle of a row's nodes, exponents are small enough for float32.
        middle = y[..., count // 2, None]
        readout, slope, dtype = net.readout, weigher.slope, self.like.dtype
        nodes = torch.stack([y - middle, torch.ones_like(y), self.nodes.half_log_weight[places]], -1).to(dtype)
        neurons = torch.stack([s, torch.addcmul(u - top, s, middle), torch.ones_like(s)], -2).to(dtype)
        total = self.like.new_empty(n_members, n_rows)
        if slope is not None:
            d_u, d_s = self.like.new_empty(2, n_members, n_rows, n)
            d_readout, weights = torch.zeros_like(readout), slope.to(dtype, copy=True)
            gap = None if weigher.gap is None else torch.add(weigher.gap, top.squeeze(-1), alpha=2.0).to(dtype)
            middle = middle.to(dtype)
        for block in _blocks(n_members, n_rows, count * n, 8 * SWEEP_ELEMENTS):
            members, own_nodes = readout[block[0]], nodes[block]
            shape = own_nodes.shape[:2]
            flat_nodes, flat_neurons = own_nodes.view(-1, count, 3), neurons[block].view(-1, 3, n)
            exponents = torch.bmm(flat_nodes, flat_neurons).clamp_min_(self._lowest)
            e = exponents.exp_().view(len(members), -1, n)
            outputs = torch.bmm(e, members.mT)
            flat = outputs.view(*shape, -1)
            square = torch.linalg.vecdot(flat, flat)
            total[block] = square
            if slope is None:
                continue
            weight = weights[block]
            if gap is not None:
                weight.mul_(square.log().add_(gap[block]).sigmoid_())
            flat.mul_((2.0 * weight).div_(square)[..., None])
            d_readout[block[0]] += torch.bmm(outputs.mT, e)
            by_node = torch.bmm(outputs, members).mul_(e).view(-1, count, n)
            both = torch.bmm(flat_nodes[..., :2].mT, by_node).view(*shape, 2, n)
            d_u[block] = both[..., 1, :]
            torch.addcmul(both[..., 0, :], both[..., 1, :], middle[block], out=d_s[block])
        log_form = total.log_().double().add_(top.squeeze(-1), alpha=2.0)
        if slope is None:
            return FormResult(log_form)
        return FormResult(log_form, d_u, d_s, torch.zeros_like(net.gram), weights, d_readout)


class DenseForm:
    """The sum of :class:`RowForm` for tables with few supports: one matrix per support, every row times all of them.

    Args:
        shape: members K, rows B and neurons n.
        table: holds the supports' Gamma functions.
        like: gives device and the network's dtype.
        gradients: whether gradients will be asked for.
    """

    def __init__(self, shape: tuple[int, int, int], table: PresenceTable, like: Tensor, gradients: bool) -> None:
        n_members, _, n = shape
        q = table.n_supports
        self.shape, self.table = shape, table
        self._ratio = like.new_empty(n_members, q, n // 2 + 1, n)
        self._kernel, self._mixed = like.new_empty(2, n_members, q, n, n)
        self._full_index = full_from_circulant(n, like.device)[None].expand(n_members * q, -1)
        self._numbers = torch.arange(q, device=like.device)
        self._chunk = max(1, CHUNK_ELEMENTS // (n_members * q * n))
        if gradients:
            self._circulant_index = circulant_from_full(n, like.device)[None].expand(n_members * q, -1)
            self._weights = pair_weights(n, like)
            self._outer = torch.empty_like(self._mixed)

    def run(self, u: Tensor, s: Tensor | None, rows: ZeroRows, net: Readout, weigher: Weigher) -> FormResult:
        """As :meth:`RowForm.run`, but s is the table's, which takes the gradient, too."""
        assert rows.place is not None
        (n_members, n_rows, n), gram, table = self.shape, net.gram, self.table
        q = table.n_supports
        ratio = table.ratios(self._ratio).view(n_members * q, -1)
        torch.gather(ratio, 1, self._full_index, out=self._kernel.view(n_members * q, n * n))
        torch.mul(self._kernel, gram[:, None], out=self._mixed)
        lifted = table.half_log.gather(1, rows.place[..., None].expand(-1, -1, n)).add_(u)
        top = lifted.amax(-1, keepdim=True)
        e = lifted.sub_(top).to(gram.dtype).exp_()  # (K, B, n)
        columns, halves = self._mixed.view(n_members, q * n, n).mT, []
        for part, place in zip(e.split(self._chunk, 1), rows.place.split(self._chunk, 1)):
            every = torch.bmm(part, columns).view(n_members, -1, q, n)
            halves.append(every.gather(2, place[..., None, None].expand(-1, -1, 1, n)).squeeze(2))
        half = halves[0] if len(halves) == 1 else torch.cat(halves, 1)
        total = torch.linalg.vecdot(half, e).clamp_min_(torch.finfo(e.dtype).tiny)
        log_form = total.log().double().add_(top.squeeze(-1), alpha=2.0)
        if weigher.slope is None:
            return FormResult(log_form)
        weights = weigher.slope.to(e.dtype)
        if weigher.gap is not None:
            weights = weights * torch.add(log_form, weigher.gap).to(e.dtype).sigmoid_()
        by = e * (weights / total)[..., None]
        mask = (rows.place[..., None] == self._numbers).to(e.dtype)
        spread = (by[:, :, None] * mask[..., None]).view(n_members, n_rows, q * n)
        outer = self._outer
        torch.bmm(spread.mT, e, out=outer.view(n_members, q * n, n))
        entries = torch.gather((outer * self._mixed).view(n_members * q, -1), 1, self._circulant_index)
        table.take_gradient(entries.mul_(self._weights))
        return FormResult(log_form, by.mul_(half).mul_(2.0), None, outer.mul_(self._kernel).sum(1), weights)


class SharedNormaliser:
    """``log Σ_ij M_ij R_ij e^{h̃_i + h̃_j}`` with one kernel for all rows.

    Args:
        table: the kernel.
        like: gives device and the network's dtype.
    """

    def __init__(self, table: PresenceTable, like: Tensor) -> None:
        self.table = table
        n_members, n, _ = table.shape
        self._full_index = full_from_circulant(n, like.device)[None].expand(n_members, -1)
        self._circulant_index = circulant_from_full(n, like.device)[None].expand(n_members, -1)
        self._own = Wrapped(like.new_empty(n_members, n + n // 2, dtype=torch.float64), n)
        self._weights = pair_weights(n, like)

    def forward(self, output: Tensor, gram: Tensor, pair_gram: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """The log sums (K, B), and g (K, 1, n), float64."""
        log_kernel, self._slope = self.table.log_norms()
        g = 0.5 * log_kernel[:, 0]
        left, right = self._own.fill(g)
        ratio = log_kernel.sub_(left).sub_(right).flatten(1).to(gram.dtype).exp_()
        self._kernel = ratio.gather(1, self._full_index).view_as(gram)
        self._mixed = self._kernel * gram
        top = output.amax(-1, keepdim=True)
        self._e = torch.sub(output, top).exp_()
        self._half = torch.bmm(self._e, self._mixed)
        self._total = torch.linalg.vecdot(self._half, self._e).clamp_min_(torch.finfo(output.dtype).tiny)
        return self._total.log().double().add_(top.squeeze(-1), alpha=2.0), g[:, None]

    def backward(self, weight: Tensor, d_u: Tensor, d_gram: Tensor, d_output: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of minus the log sums, and of -g for which ``d_u`` is one.

        Args:
            weight: of the rows (K, B).
            d_u: gradient for ``h̃ - g`` by way of u (K, B, n).
            d_gram: that for M (K, n, n), to which this one's is added.
            d_output: takes the gradient for h̃ (K, B, n).

        Returns:
            :meth:`PresenceTable.from_odds`' two.
        """
        n_members, n, _ = self.table.shape
        by = self._e * (weight / self._total).to(d_u.dtype)[..., None]
        torch.addcmul(d_u, by, self._half, value=-2.0, out=d_output)
        outer = torch.bmm(by.mT, self._e)
        d_kernel = (outer * self._mixed).neg_()
        d_gram.addcmul_(outer, self._kernel, value=-1.0)
        d_g = d_u.sum(1).add_(d_kernel.sum(-1), alpha=2.0)
        d_kernel.diagonal(dim1=1, dim2=2).add_(d_g, alpha=-0.5)
        pairs = d_kernel.flatten(1).gather(1, self._circulant_index).mul_(self._weights)
        pairs = pairs.view(n_members, -1, n).mul_(self._slope)
        return self.table.pull_back(pairs)


class RowNormaliser:
    """The sum of :class:`SharedNormaliser` where each row's shift gives it a kernel of its own.

    Args:
        table: the kernels without a shift.
        like: gives device and the network's dtype.
        n_rows: B.
        gradients: whether gradients will be asked for.
    """

    def __init__(self, table: PresenceTable, like: Tensor, n_rows: int, gradients: bool) -> None:
        self.table, self.gradients = table, gradients
        n_members, n, n_labels = table.shape
        shifts = n // 2 + 1
        rows = n_members * n_rows
        self.blocks = _blocks(n_members, n_rows, n_labels * shifts * n, 4 * _block_size(like))
        self._lowest, self._full = _lowest(like), full_from_circulant(n, like.device)
        self._own = Wrapped(like.new_empty(rows, n + shifts - 1), n)
        self._totals = like.new_empty(n_members, n_rows, shifts * n)
        self._chances: list[Tensor] = []
        shape = self._totals.shape
        for members, part in self.blocks:
            count = self._totals[members, part].shape[:2]
            if gradients or not self._chances:
                self._chances.append(like.new_empty(*count, n_labels, shape[2]))
        self._work = torch.empty_like(max(self._chances, key=Tensor.numel)).flatten()
        if gradients:
            self._sums = PairSums(rows, n, like)

    def forward(self, output: Tensor, gram: Tensor, pair_gram: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
        """The log sums (K, B), and g (K, B, n), float64."""
        assert shift is not None
        n_members, n, _ = self.table.shape
        n_rows, dtype = output.shape[1], output.dtype
        log_odds = self.table.log_odds.flatten(2).to(dtype)[:, None]  # (K, 1, L, S n)
        shift = shift.to(dtype)[..., None]
        for number, block in enumerate(self.blocks):
            log_o, moved = log_odds[block[0]], shift[block]
            shape = (*moved.shape[:3], log_o.shape[3])
            buffer = self._chances[number if self.gradients else 0]
            odds = buffer if buffer.shape == shape else buffer.flatten()[: math.prod(shape)].view(shape)
            work = self._work[: odds.numel()].view(shape)
            torch.add(log_o, moved, out=odds).clamp_(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)
            torch.abs(odds, out=work).neg_().exp_().log1p_()
            total = torch.sum(work, 2, out=self._totals[block])
            total += torch.clamp_min(odds, 0.0, out=work).sum(2)
            if self.gradients:
                odds.sigmoid_()
        log_kernel, self._slope = log_norm(self._totals)
        g = 0.5 * log_kernel[..., :n]
        top = output.amax(-1, keepdim=True)
        left, right = self._own.fill((output - top - g).view(-1, n))
        terms = log_kernel.view(n_members * n_rows, -1, n).add_(left).add_(right)
        self._terms = terms.clamp_min_(self._lowest).exp_().view(n_members, n_rows, -1)
        self._pair_gram = pair_gram
        total = torch.bmm(self._terms, pair_gram[..., None]).squeeze(-1)
        self._total = total.clamp_min_(torch.finfo(dtype).tiny)
        return self._total.log().double().add_(top.squeeze(-1), alpha=2.0), g.double()

    def backward(self, weight: Tensor, d_u: Tensor, d_gram: Tensor, d_output: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`SharedNormaliser.backward`."""
        n_members, n, n_labels = self.table.shape
        weight = (weight / self._total).to(d_u.dtype)
        d_pairs = torch.bmm(weight[:, None], self._terms).squeeze(1)
        d_gram.sub_(d_pairs.index_select(1, self._full).view_as(d_gram))
        share = self._terms.mul_(self._pair_gram[:, None]).mul_(weight[..., None])
        self._sums.pairs.copy_(share.view_as(self._sums.pairs))
        torch.sub(d_u, self._sums.by_neuron().view_as(d_u), out=d_output)
        share[..., :n].add_(d_output, alpha=0.5)  # g_i = ½ log K_ii, whose gradient is minus the output's
        share.mul_(self._slope).neg_()
        chances = share.new_zeros(n_members, n_labels, share.shape[2])
        for block, block_chances in zip(self.blocks, self._chances):
            chances[block[0]] += torch.mul(block_chances, share[block][:, :, None], out=block_chances).sum(1)
        return self.table.from_odds(chances)


def _lowest(like: Tensor) -> float:
    """Exponents of terms that change nothing in a sum whose largest term is 1."""
    return NEGLIGIBLE_TERM_EXPONENT if like.dtype == torch.float32 else -700.0


class ZeroPass:
    """Value and gradient of the log likelihood, every large array made once; see the module.

    Args:
        shape: members K, rows B, neurons n and labels L.
        supports: all supports of the table (Q, L) where they are few (at most :data:`DENSE_SUPPORTS`), or None.
        moves: whether rows have a shift.
        like: gives device and the network's dtype.
        gradients: whether gradients will be asked for.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        supports: Tensor | None,
        moves: bool,
        like: Tensor,
        gradients: bool = True,
    ) -> None:
        n_members, n_rows, n, n_labels = shape
        self.supports = supports
        self.table = PresenceTable((n_members, n, n_labels), supports, like, gradients)
        self.normaliser: SharedNormaliser | RowNormaliser = (
            RowNormaliser(self.table, like, n_rows, gradients) if moves else SharedNormaliser(self.table, like)
        )
        rows = n_members, n_rows, n
        self.form: RowForm | RadialForm | DenseForm
        if supports is not None:
            self.form = DenseForm(rows, self.table, like, gradients)
        elif like.device.type == "cpu" and n >= RADIAL_NEURONS:
            self.form = RadialForm(rows, like, gradients)
        else:
            self.form = RowForm(rows, like, gradients)
        self._circulant = circulant_from_full(n, like.device)
        self._weights = pair_weights(n, like)

    def run(
        self,
        output: Tensor,
        exponents: Tensor,
        presence: Tensor,
        readout: Tensor,
        rows: ZeroRows,
        slope: Tensor | None = None,
        into: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Log likelihood (K, B), float64.

        Args:
            output: the network's, ``h̃`` (K, B, n).
            exponents: ``w`` (K, n, L), float64.
            presence: ``b`` (K, n, L).
            readout: ``V`` (K, m, n).
            rows: labels.
            slope: gradient for the log likelihood (K, B), or None where none is needed.
            into: with a slope, what takes the gradients for output, exponents, presence and readout.
        """
        n_labels = exponents.shape[2]
        presence = presence.double()
        gram = torch.bmm(readout.mT, readout)
        pair_gram = gram.flatten(1).index_select(1, self._circulant).mul_(self._weights)
        a = self.table.compute(exponents, presence)
        log_z, g = self.normaliser.forward(output, gram, pair_gram, rows.shift)
        u = torch.baddbmm(output - g, rows.known, torch.cat([a, exponents.mT], 1))
        there = rows.known[..., :n_labels]
        s = torch.bmm(there, exponents.mT + 0.5) if self.supports is None else None
        weigher = Weigher(rows, log_z, slope)
        form = self.form.run(u, s, rows, Readout(readout, gram, pair_gram), weigher)
        log_p = weigher.log_p(form.log_form)
        if into is None:
            return log_p
        d_output, d_exponents, d_presence, d_readout = into
        _, d_u, d_s, d_gram, weights, more = form
        assert d_u is not None
        assert d_gram is not None
        assert weights is not None
        d_b, d_w = self.normaliser.backward(weights, d_u, d_gram, d_output)
        d_both = torch.bmm(rows.known.mT.to(d_u.dtype), d_u)  # for a and w (K, 2 L, n)
        d_b = d_both[:, :n_labels].add_(d_b)
        d_w.add_(d_both[:, n_labels:])
        if d_s is not None:
            d_w.baddbmm_(there.mT.to(d_s.dtype), d_s)
        d_w.addcmul_(self.table.own_slopes, d_b, value=-1.0)  # a_ir = b_ir - ½ log Γ(α_iir)
        d_presence.copy_(d_b.mT)
        d_exponents.copy_(d_w.mT)
        torch.bmm(readout, d_gram, out=d_readout).mul_(2.0)
        if more is not None:
            d_readout.add_(more)
        return log_p


class ZeroLogDensity(torch.autograd.Function):
    """``apply(output, exponents, presence, readout, rows, supports)``: one node of autograd, (K, B).

    The arguments are :class:`ZeroPass`'s; gradients flow to the first four. The backward pass computes value and
    gradient together once more, from the few arrays that it keeps.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """The log likelihood."""
        output, exponents, presence, readout, rows, supports = inputs
        ctx.save_for_backward(output, exponents, presence, readout)
        ctx.rows, ctx.supports = rows, supports
        kernel = ZeroPass((*output.shape, exponents.shape[2]), supports, rows.shift is not None, output, False)
        return kernel.run(output, exponents, presence, readout, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for output, exponents, presence and readout."""
        (output, exponents, presence, readout), rows = ctx.saved_tensors, ctx.rows
        into = tuple(torch.empty_like(part) for part in ctx.saved_tensors)
        kernel = ZeroPass((*output.shape, exponents.shape[2]), ctx.supports, rows.shift is not None, output)
        kernel.run(output, exponents, presence, readout, rows, grad.to(output.dtype), into)
        return (*into, None, None)
