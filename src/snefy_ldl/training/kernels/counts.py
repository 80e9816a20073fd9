"""The probability of votes and its gradient, for training.

    P(k|x) ∝ Σ_p c_p(x) Π_s (β_ps)_{m_s}^{±1},   (β)_m = β (β+1) ... (β+m-1) = Γ(β+m) / Γ(β)

Votes enter through rising factorials only: ``(α_pr)_{k_r}`` for each label and ``1 / (A_p)_{|k|}`` for the total.
Labels that were not counted, and votes that name a set of labels, add factors whose ``β`` is a sum of concentrations;
the form stays. Three routes give the same numbers: one matrix product of tabulated Chebyshev series
(:class:`SmoothFactors`, float32 on a CPU), the same with Stirling's series for thousands of votes per item or billions
(:class:`LargeFactors`), and lgamma itself (:class:`DirectFactors`, on a GPU and in float64). On a CPU lgamma takes
twenty times as long as the series, and the longer series half as long again as the short one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.autograd.function import once_differentiable

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.special import (
    STIRLING,
    STIRLING_SLOPES,
    circulant_from_full,
    diagonal_index,
    full_from_circulant,
    full_index,
    pair_index,
    symmetric,
)
from snefy_ldl.training.kernels.pairs import PairKernel, PairSums, Wrapped, pair_weights

#: Terms this far below the largest in the exponent count as that far: a float32 beneath them is slow, and nothing.
LOWEST_EXPONENT = -80.0
LOG2_E = math.log2(math.e)
#: Neglected terms of a series are this small beside its first.
SERIES_TOLERANCE = 1e-7
#: ... and singular values this small beside the first are left out: slopes at the ends of an interval are less exact.
REDUCED_TOLERANCE = 1e-8
#: Intervals end at whole multiples of this in log(1 + β), so that training meets few of them.
INTERVAL_STEP = 0.5
#: Above so many votes per item float32 would round differences between components, and tables by count grow long.
MOST_VOTES = 1000
#: Counts above this are large: two terms of Stirling's series are exact, and ρ is smaller than the factorial itself.
LARGE_COUNT = 128


@dataclass(frozen=True)
class VoteFactors:
    """Votes as the rising factorials of their probability.

    Args:
        groups: which labels each column sums, 0 or 1 (Q, L): the L labels first, then all of them, then other sets.
        column: which column each factor belongs to (..., T).
        count: ``m`` of each factor (..., T), whole numbers.
        sign: +1 for a factor of the numerator, -1 for one of the denominator (T,).
    """

    groups: Tensor
    column: Tensor
    count: Tensor
    sign: Tensor

    @classmethod
    def of(cls, counts: Tensor, named: Tensor | None = None, sets: Tensor | None = None) -> VoteFactors:
        """Factors of votes (..., L), NaN where a label was not counted.

        A row with labels S counted is a vote among S: its law is that of the subcomposition, ``(A_p)_{|k|}`` becoming
        ``(Σ_{r in S} α_pr)_{|k|}``. A vote for "one of the labels in G" multiplies the likelihood by
        ``Σ_{r in G} ℓ_r``; for sets that do not overlap that is ``(β_G)_{k_G + g} / (β_G)_{k_G}``, with ``k_G`` the
        votes for single labels in G.

        Args:
            counts: ``k``.
            named: ``g``, votes that name a set (..., G).
            sets: the sets, 0 or 1 (G, L); no label in two of them.
        """
        n_labels = counts.shape[-1]
        seen = ~torch.isnan(counts)
        votes = counts.nan_to_num(0.0)
        groups = [torch.eye(n_labels, dtype=torch.float64), torch.ones(1, n_labels, dtype=torch.float64)]
        whole = torch.full(counts.shape[:-1], n_labels, device=counts.device)
        if not bool(seen.all()):
            patterns, which = torch.unique(seen.reshape(-1, n_labels), dim=0, return_inverse=True)
            groups.append(patterns.cpu().double())
            whole = n_labels + 1 + which.reshape(whole.shape)
        total = votes.sum(-1)
        columns = [torch.arange(n_labels, device=counts.device).expand(counts.shape)]
        factors, signs = [votes], [1.0] * n_labels
        if named is not None and sets is not None:
            first = sum(len(group) for group in groups)
            groups.append(sets.cpu().double())
            single = votes @ sets.to(votes).T
            at = torch.arange(first, first + len(sets), device=counts.device).expand(named.shape)
            columns += [at, at]
            factors += [single + named.to(votes), single]
            signs += [1.0] * len(sets) + [-1.0] * len(sets)
            total = total + named.to(votes).sum(-1)
        columns.append(whole[..., None])
        factors.append(total[..., None])
        signs.append(-1.0)
        return cls(
            torch.cat(groups).to(counts.device),
            torch.cat(columns, -1),
            torch.cat(factors, -1).long(),
            torch.tensor(signs, dtype=torch.float64, device=counts.device),
        )

    def __getitem__(self, rows: Any) -> VoteFactors:
        """The factors of some rows."""
        return VoteFactors(self.groups, self.column[rows], self.count[rows], self.sign)

    @property
    def is_plain(self) -> bool:
        """Whether every label of every row was counted, and no vote names a set of labels."""
        n_labels = self.groups.shape[1]
        return len(self.groups) == n_labels + 1 and self.count.shape[-1] == n_labels + 1

    @property
    def shape(self) -> torch.Size:
        """Shape of the rows."""
        return self.count.shape[:-1]


# -- rising factorials by Chebyshev series ---------------------------------------------------------------------------
#
#     log (β)_m = [m > 0] log β + Σ_g F_mg T_g(x),   x = (log(1 + β) - centre) / half
#
# What is left of a rising factorial without its first factor has poles at ``β = -1, -2, ...``: as a function of
# ``log(1 + β)`` it is analytic up to ``± iπ`` from the real line, whatever m. A series on an interval of half length
# ``half`` therefore converges like ``ρ^-g`` with ``ρ = π/half + √(1 + π²/half²)``, and about twenty terms are all that
# float32 can hold. The coefficients of every m are computed once per interval and kept; a batch takes those of its own
# counts, and multiplies.


class Series(NamedTuple):
    """Coefficients of ``log (β)_m`` and of its slope, for m = 0, 1, 2, ... on one interval.

    Attributes:
        constant: ``F_m0`` (M,), float64.
        value: ``[m > 0]``, a zero, and the other ``F_mg`` (M, 1 + G), float32.
        slope: ``[m > 0]``, and those of ``(1 + β) (ψ(β+m) - ψ(β+1))`` (M, 1 + G), float32.
    """

    constant: Tensor
    value: Tensor
    slope: Tensor


def series_length(half: float) -> int:
    """Terms that a series on an interval of this half length needs."""
    growth = math.pi / half + math.sqrt(1.0 + (math.pi / half) ** 2)
    return math.ceil(-math.log(SERIES_TOLERANCE) / math.log(growth)) + 1


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def rising_series(low: int, high: int, most: int) -> Series:
    """The series on ``INTERVAL_STEP * [low, high]`` for up to so many votes."""
    half, centre = 0.5 * INTERVAL_STEP * (high - low), 0.5 * INTERVAL_STEP * (high + low)
    length = series_length(half)
    angles = np.pi * (np.arange(length) + 0.5) / length
    beta = np.expm1(centre + half * np.cos(angles))  # at the Chebyshev nodes
    transform = np.cos(np.outer(np.arange(length), angles)) * (2.0 / length)
    transform[0] *= 0.5
    m = np.arange(1, most + 1)[:, None]
    value, slope = np.zeros((2, most + 1, 1 + length))  # nothing at m = 0
    value[1:, 0] = slope[1:, 0] = 1.0
    value[1:, 1:] = (gammaln(beta + m) - gammaln(beta + 1.0)) @ transform.T
    slope[1:, 1:] = ((1.0 + beta) * (digamma(beta + m) - digamma(beta + 1.0))) @ transform.T
    constant = value[:, 1].copy()
    value[:, 1] = 0.0
    return Series(torch.from_numpy(constant), torch.from_numpy(value).float(), torch.from_numpy(slope).float())


class ReducedSeries(NamedTuple):
    """:class:`Series` with as few terms as float32 can hold, found by a singular value decomposition.

    Rising factorials of different m are so alike that about ten functions of β make up all of them where Chebyshev's
    polynomials need twenty; for up to four votes three do.

    Attributes:
        constant: ``F_m0`` (M,), float64.
        value: ``[m > 0]``, and the coefficients of those functions (M, 1 + R), float32.
        basis: the functions, and then their slopes for ``log(1 + β)``, as Chebyshev series (2 R, G), float32.
    """

    constant: Tensor
    value: Tensor
    basis: Tensor


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def reduced_series(low: int, high: int, most: int) -> ReducedSeries:
    """The series on ``INTERVAL_STEP * [low, high]`` for up to so many votes.

    >>> [reduced_series(0, 14, most).value.shape[1] - 1 for most in (1, 4, 128)]
    [1, 3, 10]
    """
    series = rising_series(low, high, most)
    table = series.value[:, 1:].double().numpy()  # (M, G)
    coefficients, sizes, basis = np.linalg.svd(table, full_matrices=False)
    length = max(1, int((np.cumsum(sizes[::-1])[::-1] > REDUCED_TOLERANCE * sizes[0]).sum()))
    basis = basis[:length]
    slopes = np.polynomial.chebyshev.chebder(basis, axis=1) / (0.5 * INTERVAL_STEP * (high - low))
    value = torch.from_numpy(np.hstack([np.arange(len(table))[:, None] > 0, (coefficients * sizes)[:, :length]]))
    both = np.vstack([basis, np.pad(slopes, ((0, 0), (0, basis.shape[1] - slopes.shape[1])))])
    return ReducedSeries(series.constant, value.float(), torch.from_numpy(both).float())


def chebyshev(x: Tensor, into: Tensor) -> None:
    """``T_0(x), T_1(x), ...`` into (..., G, P) for x (..., P), by ``T_{k+j} = 2 T_k T_j - T_{k-j}``: few long steps.

    >>> table = torch.empty(4, 1)
    >>> chebyshev(torch.tensor([0.5]), table)
    >>> table.flatten().tolist()
    [1.0, 0.5, -0.5, -1.0]
    """
    length = into.shape[-2]
    into[..., 0, :] = 1.0
    into[..., 1, :] = x
    done = 1  # T_0 ... T_done are there
    while done < length - 1:
        more = min(done, length - 1 - done)
        block = into[..., done + 1 : done + more + 1, :]
        torch.mul(into[..., 1 : more + 1, :], 2.0 * into[..., done : done + 1, :], out=block)
        block -= into[..., done - more : done, :].flip(-2)
        done += more


class SmoothFactors:
    """``Σ_t sign_t log (β_{column_t})_{count_t}`` and its gradient by series, on a CPU, in float32.

    Args:
        factors: the votes, rows (K, B), at most :data:`MOST_VOTES` an item.
    """

    def __init__(self, factors: VoteFactors) -> None:
        self.factors = factors
        self.counts = self._tabulated()
        self.most = 1 << int(self.counts.max()).bit_length()
        # a factor that belongs to one column in every row needs no look at which
        column, slots = factors.column.flatten(0, 1), factors.count.shape[-1]
        first, last = column.amin(0), column.amax(0)
        self.plain = len(factors.groups) == slots and bool((first == last).all() & (first == torch.arange(slots)).all())

    def _tabulated(self) -> Tensor:
        """Counts whose series come from the table (K, B, T)."""
        return self.factors.count

    def ratio(self, columns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Columns (K, Q, P) -> (K, B, P) of a dtype, and what to add to each row (K, B) in float64."""
        self._prepare(columns)
        offset = (self.series.constant[self.counts] * self.factors.sign).sum(-1)
        return (self._coefficients(self.series.value) @ self.terms.flatten(1, 2)).to(dtype), offset

    def _prepare(self, columns: Tensor) -> tuple[float, float]:
        """The series on the columns' interval and its terms; returns the interval's centre and half length."""
        place = columns.log1p()  # (K, Q, P)
        ends = float(place.min()), float(place.max())
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
            ends = 0.0, 0.0  # training has diverged: the answer is NaN, and the epoch is undone
        low = math.floor(ends[0] / INTERVAL_STEP)
        high = max(math.ceil(ends[1] / INTERVAL_STEP), low + 2)  # an interval of no length has no series
        self.series = rising_series(low, high, self.most)
        length = self.series.value.shape[1]
        terms = torch.empty(*place.shape[:2], length, place.shape[2])  # log β, T_0, T_1, ... (K, Q, 1 + G, P)
        terms[:, :, 0] = columns.log()
        x = place.mul_(2.0 / (INTERVAL_STEP * (high - low))).sub_((high + low) / (high - low))
        chebyshev(x.float(), terms[:, :, 1:])
        self.terms = terms
        return 0.5 * INTERVAL_STEP * (high + low), 0.5 * INTERVAL_STEP * (high - low)

    def _coefficients(self, table: Tensor) -> Tensor:
        """Coefficients of each row's own counts, signs included, (K, B, Q (1 + G))."""
        return self._by_column(table[self.counts].mul_(self.factors.sign.float()[:, None])).flatten(2)

    def _by_column(self, signed: Tensor) -> Tensor:
        """What belongs to factors (K, B, T, ...), summed by their columns (K, B, Q, ...)."""
        if self.plain:
            return signed
        factors = self.factors
        every = signed.new_zeros(*factors.shape, len(factors.groups), signed.shape[-1])
        return every.scatter_add_(2, factors.column[..., None].expand_as(signed), signed)

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """Gradient for the columns (K, Q, P)."""
        slopes = self._coefficients(self.series.slope).transpose(1, 2) @ d_ratio.float()
        slopes = slopes.view(self.terms.shape)  # (K, Q, 1 + G, P)
        first = slopes[:, :, 0] / columns
        slopes *= self.terms
        return first + slopes[:, :, 1:].sum(2) / (1.0 + columns)


class LargeFactors(SmoothFactors):
    """``Σ_t sign_t log (β_{column_t})_{count_t}`` and its gradient, whatever the counts, on a CPU, in float32.

        log (β)_m = log Γ(m) + β log m - log Γ(β) + ρ(β, m),
        ρ = (β + m - ½) log1p(β/m) - β + Σ_k c_k [z^(1-2k)]_m^(m+β)

    for m above :data:`LARGE_COUNT`: Stirling's series with its large parts cancelled by hand, two terms of it, so that
    less than ``1/(1260 m⁵)`` = 3e-14 is neglected. The first three parts are a product of a few float64 numbers per
    row, so that nothing large is rounded between components; what is left, about ``β²/2m``, is small and smooth, and
    float32 holds its Chebyshev series on the interval of the other counts, which come from the table.

    A difference between components is right to 2e-7 of its size, which is what float32 can hold, up to 10¹² votes;
    where a row also has labels with few votes, to 5e-4 nats.

    Args:
        factors: the votes, rows (K, B).
    """

    def __init__(self, factors: VoteFactors) -> None:
        self.large = factors.count > LARGE_COUNT  # (K, B, T)
        super().__init__(factors)
        self._many = factors.count[self.large].double()  # (D,)
        both = torch.zeros(*factors.count.shape, 2, dtype=torch.float64)
        both[self.large] = torch.stack([self._many.log(), torch.ones_like(self._many)], -1)
        both = self._by_column(both.mul_(factors.sign[:, None]))
        self._powers = both.transpose(2, 3).flatten(2)  # ± log m of every column, then ± [m is large], (K, B, 2 Q)

    def _tabulated(self) -> Tensor:
        return self.factors.count.masked_fill(self.large, 0)

    def ratio(self, columns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Columns (K, Q, P) -> (K, B, P) of a dtype, and what to add to each row (K, B) in float64."""
        centre, half = self._prepare(columns)
        constant = self._expand(centre, half)
        sign, middle = self.factors.sign, columns.shape[-1] // 2
        offset = (self.series.constant[self.counts] + constant).mul_(sign).sum(-1)
        powers = torch.cat([columns, -torch.lgamma(columns)], 1)  # (K, 2 Q, P)
        here = powers[..., middle : middle + 1]
        offset += (self._powers @ here).squeeze(-1)
        # The small part is summed up by itself: float32 would round each of its terms to the last digit of the large
        ratio = self._rest(self.series.value, self._value) @ self.terms.flatten(1, 2)
        return ratio.add_((self._powers @ (powers - here)).float()).to(dtype), offset

    def _expand(self, centre: float, half: float) -> Tensor:
        """Work out the series of ρ and its slope for the large counts; returns their constant part (K, B, T)."""
        length = self.series.value.shape[1] - 1
        angles = np.pi * (np.arange(length) + 0.5) / length
        transform = np.cos(np.outer(angles, np.arange(length))) * (2.0 / length)
        transform[:, 0] *= 0.5
        matrix, beta = torch.from_numpy(transform), torch.from_numpy(np.expm1(centre + half * np.cos(angles)))
        m = self._many[:, None]
        above, grown = m + beta, torch.log1p(beta / m)  # (D, G)
        inverse = above.reciprocal()
        square, below = inverse.square(), m.reciprocal()
        small = STIRLING[0] * (inverse - below) + STIRLING[1] * (inverse * square - below**3)
        value = ((above - 0.5) * grown - beta + small) @ matrix
        # the slope is ψ(β+m) - log m, times 1 + β like the others
        slope = grown - 0.5 * inverse - square * (STIRLING_SLOPES[0] + STIRLING_SLOPES[1] * square)
        self._slope = (((1.0 + beta) * slope) @ matrix).float()
        constant = torch.zeros(self.large.shape, dtype=torch.float64)
        constant[self.large] = torch.lgamma(self._many) + value[:, 0]
        value[:, 0] = 0.0
        self._value = value.float()
        return constant

    def _rest(self, table: Tensor, large: Tensor) -> Tensor:
        """Coefficients of each row's own counts, signs included, (K, B, Q (1 + G))."""
        every = table[self.counts]  # (K, B, T, 1 + G)
        every[..., 1:][self.large] = large
        return self._by_column(every.mul_(self.factors.sign.float()[:, None])).flatten(2)

    def _coefficients(self, table: Tensor) -> Tensor:
        return self._rest(table, self._slope)

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """Gradient for the columns (K, Q, P)."""
        answer = super().gradient(columns, d_ratio)
        powers = self._powers.float().transpose(1, 2) @ d_ratio.float()  # Σ_b ± log m and Σ_b ± 1, (K, 2 Q, P)
        logs, often = powers.unflatten(1, (2, -1)).unbind(1)
        return answer.add_(logs).sub_(torch.digamma(columns).mul_(often))


class DirectFactors:
    """``Σ_t sign_t log (β_{column_t})_{count_t}`` and its gradient by lgamma and digamma, on any device.

    Args:
        factors: the votes, rows (K, B).
    """

    def __init__(self, factors: VoteFactors) -> None:
        self.factors = factors

    def _slots(self, columns: Tensor) -> Any:
        """For each factor of a row its sign, ``β`` (K, B, P), ``m`` and where β came from."""
        factors = self.factors
        for t in range(factors.count.shape[-1]):
            index = factors.column[..., t, None].expand(*factors.shape, columns.shape[-1])
            yield factors.sign[t], columns.gather(1, index), factors.count[..., t, None], index

    def ratio(self, columns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """See :class:`SmoothFactors`."""
        total = torch.zeros((), dtype=torch.float64, device=columns.device)
        for sign, beta, count, _ in self._slots(columns):
            total = total + sign * (torch.lgamma(beta + count) - torch.lgamma(beta))
        centre = total.mean(-1)
        return (total - centre[..., None]).to(dtype), centre

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """See :class:`SmoothFactors`."""
        gradient = torch.zeros_like(columns)
        for sign, beta, count, index in self._slots(columns):
            slope = torch.digamma(beta + count) - torch.digamma(beta)
            gradient.scatter_add_(1, index, sign * slope * d_ratio)
        return gradient


#: Each gives the same sums of rising factorials, and their gradient.
Factors = SmoothFactors | LargeFactors | DirectFactors


# -- the probability -------------------------------------------------------------------------------------------------


def pair_columns(exponents: Tensor, groups: Tensor) -> Tensor:
    """``β_ij = Σ_{r in group} α_ijr`` for pairs i <= j: exponents (K, n, L), groups (Q, L) -> (K, Q, P)."""
    i, j = pair_index(exponents.shape[1], exponents.device)
    sums = (exponents @ groups.T + 0.5 * groups.sum(-1)).transpose(0, 1)  # (n, K, Q): whole rows are quick to gather
    both = sums.flatten(1).index_select(0, i) + sums.flatten(1).index_select(0, j)  # (P, K Q)
    return both.T.contiguous().unflatten(0, (len(exponents), len(groups)))


def _fold(pairs: Tensor, n: int) -> Tensor:
    """For each neuron the sum over its pairs, (i, i) counted twice: (..., P) -> (..., n)."""
    # selecting columns is quick from a plain matrix only
    full = pairs.reshape(-1, pairs.shape[-1]).index_select(1, full_index(n, pairs.device))
    full = full.reshape(*pairs.shape[:-1], n, n)
    return full.sum(-1) + full.diagonal(dim1=-2, dim2=-1)


def _pair_terms(log_scale: Tensor, log_kernel: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(s_i + s_j + log R_ij + ρ_ij - top)`` (K, B, P), and the top (K, B, 1); writes over the ratio."""
    i, j = pair_index(log_scale.shape[-1], log_scale.device)
    flat = log_scale.reshape(-1, log_scale.shape[-1])
    terms = ratio.view(len(flat), -1)
    terms += flat.index_select(1, i)
    terms += flat.index_select(1, j)
    ratio += log_kernel[:, None]
    top = ratio.amax(-1, keepdim=True)
    ratio -= top
    return ratio.clamp_min_(LOWEST_EXPONENT).exp_(), top


class CountLogDensity(torch.autograd.Function):
    """``apply(log_scale, exponents, readout, factors, balanced) -> log P(k|x)``, without its coefficient.

        log Σ_{i<=j} M_ij e^{s_i + s_j} R_ij ρ_ij(k) - log e^{s}ᵀ (M ∘ R) e^{s},   ρ_ij(k) = B(α_ij + k) / B(α_ij)

    ``SnefySimplex.log_prob_counts`` is the same function by plain autograd, and its oracle in the tests.

    Args (of apply):
        log_scale: the network's output (K, B, n): ``h̃`` if balanced, else ``h``.
        exponents: ``W`` (K, n, L), float64.
        readout: ``V`` (K, m, n).
        factors: the votes by one of the three routes, rows (K, B).
        balanced: which of the two the output is.

    Returns:
        (K, B), float64.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_scale: Tensor,
        exponents: Tensor,
        readout: Tensor,
        factors: Factors,
        balanced: bool,
    ) -> Tensor:
        """The probability, with what its gradient needs kept aside."""
        n, n_labels = exponents.shape[1:]
        dtype = log_scale.dtype
        i, j = pair_index(n, log_scale.device)
        columns = pair_columns(exponents, factors.factors.groups)  # (K, Q, P)
        gammas = torch.lgamma(columns[:, : n_labels + 1])
        log_k = gammas[:, :n_labels].sum(1) - gammas[:, n_labels]  # (K, P)
        full = symmetric(log_k, n)
        g = 0.5 * full.diagonal(dim1=1, dim2=2)  # (K, n)
        log_kernel = (full - g[:, :, None] - g[:, None, :]).to(dtype)  # log R
        kernel = log_kernel.exp()
        gram = readout.transpose(1, 2) @ readout  # M
        if not balanced:
            log_scale = log_scale + g[:, None].to(dtype)

        ratio, offset = factors.ratio(columns, dtype)
        upper = i * n + j
        weight = gram.flatten(1).index_select(1, upper) * torch.where(i == j, 1.0, 2.0).to(dtype)  # (K, P)
        terms, top = _pair_terms(log_scale, log_kernel.flatten(1).index_select(1, upper), ratio)
        total = (terms @ weight[..., None]).squeeze(-1).clamp_min_(0.0)  # (K, B)

        log_scale_top = log_scale.amax(-1, keepdim=True)
        e = (log_scale - log_scale_top).exp_()
        half = e @ (gram * kernel)  # (K, B, n)
        normaliser = (half * e).sum(-1)

        ctx.save_for_backward(exponents, readout, columns, kernel, gram, weight, terms, total, e, half, normaliser)
        ctx.factors, ctx.balanced = factors, balanced
        log_p = torch.log(total / normaliser) + (top - 2.0 * log_scale_top).squeeze(-1)
        return log_p.double() + offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for log_scale, exponents and readout."""
        exponents, readout, columns, kernel, gram, weight, terms, total, e, half, normaliser = ctx.saved_tensors
        n, n_labels = exponents.shape[1:]
        grad = grad.to(terms.dtype)
        by_total = grad / total  # (K, B)
        d_weight = (by_total[:, None] @ terms).squeeze(1)  # (K, P)
        d_ratio = terms * weight[:, None]
        d_ratio *= by_total[..., None]
        by_normaliser = (grad / normaliser)[..., None] * e  # (K, B, n)
        d_log_scale = _fold(d_ratio, n) - 2.0 * by_normaliser * half
        outer = by_normaliser.transpose(1, 2) @ e * kernel  # (K, n, n)
        d_readout = 2.0 * readout @ (symmetric(d_weight, n) - outer)

        i, j = pair_index(n, exponents.device)
        upper = i * n + j
        balance = (outer * gram).flatten(1).index_select(1, upper) * torch.where(i == j, 1.0, 2.0).to(gram.dtype)
        d_log_k = (d_weight * weight - balance).double()  # (K, P)
        d_g = -_fold(d_log_k, n)
        if not ctx.balanced:
            d_g += d_log_scale.sum(1)
        d_log_k.index_add_(1, diagonal_index(n, grad.device), (0.5 * d_g).to(d_log_k.dtype))
        d_columns = ctx.factors.gradient(columns, d_ratio)
        slope = torch.digamma(columns[:, : n_labels + 1]) * d_log_k[:, None]
        slope[:, n_labels] *= -1.0
        d_columns[:, : n_labels + 1] += slope
        d_exponents = _fold(d_columns, n).transpose(1, 2) @ ctx.factors.factors.groups
        return d_log_scale, d_exponents, d_readout, None, None


class VotePass:
    """Forward and backward of the log probability on a CPU, in float32, for votes that were all counted.

    :class:`CountLogDensity` with :class:`SmoothFactors`, but every array is made once, and pairs stand in circulant
    order (:mod:`snefy_ldl.training.kernels.pairs`): what belongs to the two neurons of a pair is two strided views, and
    nothing is looked up by index. ``log R`` is one more term of the series, with coefficient one, so that its gradient
    is a row of the same product. How many terms there are depends on the neurons, so the arrays that hold them are made
    anew where that changes.

    Args:
        shape: members K, rows B, neurons n and labels L.
        like: gives the network's dtype.
        most_votes: the largest count of any row.
    """

    def __init__(self, shape: tuple[int, int, int, int], like: Tensor, most_votes: int) -> None:
        n_members, n_rows, n, n_labels = shape
        shifts, columns = n // 2 + 1, n_labels + 1
        self._shape = n_members, n_rows, n, columns
        self._most = 1 << most_votes.bit_length()
        self.kernel = PairKernel((n_members, n, n_labels), like.device, like.dtype)
        self._halves = Wrapped(torch.empty(n_members, columns, n + shifts - 1, dtype=torch.float64), n)
        self._scale = Wrapped(like.new_empty(n_members, n_rows, n + shifts - 1), n)
        self._columns = like.new_empty(n_members, columns, shifts, n, dtype=torch.float64)
        self._terms = like.new_empty(n_members, n_rows, shifts * n)
        self._row_sums, self._column_sums = (PairSums(n_members * size, n, like) for size in (n_rows, columns))
        self._weights, self._index = pair_weights(n, like), circulant_from_full(n).expand(n_members, -1)
        self._full_index = full_from_circulant(n).expand(n_members, -1)
        self._sizes = 0, 0

    def forward(self, log_scale: Tensor, exponents: Tensor, readout: Tensor, counts: Tensor, balanced: bool) -> Tensor:
        """Log probability (K, B), float64, without its coefficient; see :class:`CountLogDensity`.

        Args:
            log_scale: the network's output (K, B, n).
            exponents: ``W`` (K, n, L), float64.
            readout: ``V`` (K, m, n).
            counts: votes for each label and their total (K, B, L + 1), whole numbers.
            balanced: what the output is.
        """
        n_members, n_rows, n, _ = self._shape
        ratio, g = self.kernel.compute(exponents)
        if not balanced:
            log_scale = log_scale + g[:, None].to(log_scale.dtype)
        self._expand()
        terms, pairs = self._terms, self._terms.view(n_members, n_rows, -1, n)
        torch.add(*self._scale.fill(log_scale), out=pairs)
        terms.baddbmm_(self._take_coefficients(counts), self._series_terms)
        top = terms.amax(-1, keepdim=True)
        terms.sub_(top).clamp_min_(LOWEST_EXPONENT).mul_(LOG2_E).exp2_()  # on a CPU a third of the time of exp
        gram = readout.transpose(1, 2) @ readout
        weight = gram.flatten(1).gather(1, self._index).mul_(self._weights)
        total = torch.bmm(terms, weight[..., None]).squeeze(-1).clamp_min_(0.0)

        log_scale_top = log_scale.amax(-1, keepdim=True)
        e = (log_scale - log_scale_top).exp_()
        mixed = gram * ratio
        half = e @ mixed
        normaliser = torch.linalg.vecdot(half, e)
        self._kept = readout, ratio, gram, mixed, weight, total, e, half, normaliser, balanced
        log_p = torch.log(total / normaliser).add_(top.sub_(log_scale_top, alpha=2.0).squeeze(-1)).double()
        constant = self._series.constant[counts]
        return log_p.add_(constant[..., :-1].sum(-1)).sub_(constant[..., -1])

    def _expand(self) -> None:
        """The terms of all pairs: log R, and for each function of β, log β first, those of every column."""
        n_members, n_rows, _, columns = self._shape
        halves = self.kernel.halves
        ends = float(halves.min()), float(halves.max())  # the ends of all pairs are neurons paired with themselves
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
            ends = 0.0, 0.0  # training has diverged: the answer is NaN, and the epoch is undone
        low = math.floor(math.log1p(2.0 * ends[0]) / INTERVAL_STEP)
        high = max(math.ceil(math.log1p(2.0 * ends[1]) / INTERVAL_STEP), low + 2)
        self._series = reduced_series(low, high, self._most)
        (n_functions, length), pairs = self._series.basis.shape, self._terms.shape[2]
        n_terms = 1 + (1 + n_functions // 2) * columns
        if (n_terms, length) != self._sizes:
            self._sizes = n_terms, length
            like = self._terms
            self._chebyshev = like.new_empty(n_members, length, columns * pairs)
            self._functions = like.new_empty(n_members, n_functions, columns * pairs)
            self._series_terms, self._d_terms = like.new_empty(2, n_members, n_terms, pairs)
            self._gathered = like.new_ones(n_members, n_rows, n_terms)
        torch.add(*self._halves.fill(halves), out=self._columns)
        flat = self._columns.flatten(1)  # (K, Q S n)
        x = torch.log1p(flat).mul_(2.0 / (INTERVAL_STEP * (high - low))).sub_((high + low) / (high - low))
        polynomials = list(self._chebyshev.unbind(1))
        polynomials[0].fill_(1.0)
        polynomials[1].copy_(x)
        twice = polynomials[1] * 2.0
        for below, here, above in zip(polynomials, polynomials[1:], polynomials[2:]):
            torch.mul(here, twice, out=above).sub_(below)
        torch.matmul(self._series.basis, self._chebyshev, out=self._functions)
        terms = self._series_terms
        terms[:, 0] = self.kernel.log_ratio.flatten(1)
        by_function = terms[:, 1:].view(n_members, -1, columns * pairs)
        by_function[:, 0] = flat.log()
        by_function[:, 1:] = self._functions[:, : n_functions // 2]

    def _take_coefficients(self, counts: Tensor) -> Tensor:
        """Coefficients of each row's counts, signs included, in the order of the terms (K, B, 1 + (1 + R) Q)."""
        n_members, n_rows, _, columns = self._shape
        taken = self._gathered[..., 1:].view(n_members, n_rows, -1, columns)
        table = self._series.value.index_select(0, counts.flatten())
        taken.copy_(table.view(n_members, n_rows, columns, -1).transpose(2, 3))
        taken[..., -1].neg_()
        return self._gathered

    def backward(self, grad: Tensor, d_log_scale: Tensor, d_exponents: Tensor, d_readout: Tensor) -> None:
        """Gradients for one of the log probability; see :meth:`DensityPass.backward`.

        Args:
            grad: for the log probability (K, B).
            d_log_scale: takes the gradient for the network's output (K, B, n).
            d_exponents: takes that for the exponents (K, n, L).
            d_readout: takes that for the readout (K, m, n).
        """
        readout, ratio, gram, mixed, weight, total, e, half, normaliser, balanced = self._kept
        n_members, n_rows, n, columns = self._shape
        by_total = (grad / total)[..., None]  # (K, B, 1)
        by_normaliser = (grad / normaliser)[..., None] * e
        shape = n_members, n_rows, -1, n
        rows = self._row_sums
        torch.mul(self._terms.view(shape), weight.view(n_members, 1, -1, n), out=rows.pairs.view(shape))
        torch.mul(rows.by_neuron().view(n_members, n_rows, n), by_total, out=d_log_scale)
        d_log_scale.addcmul_(by_normaliser, half, value=-2.0)

        by_row = self._gathered * by_total
        torch.bmm(by_row.transpose(1, 2), self._terms, out=self._d_terms)  # for the terms, but for the weights
        outer = by_normaliser.transpose(1, 2) @ e  # (K, n, n)
        d_gram = torch.gather(self._d_terms[:, 0], 1, self._full_index).view_as(outer)
        torch.bmm(readout, d_gram - outer * ratio, out=d_readout).mul_(2.0)

        d_kernel = d_gram * gram - outer * mixed  # for log R, symmetric
        d_g = d_kernel.sum(-1).mul_(-2.0)
        if not balanced:
            d_g += d_log_scale.sum(1)
        d_kernel.diagonal(dim1=1, dim2=2).add_(d_g, alpha=0.5)
        self.kernel.pull_back(d_kernel, d_exponents)
        beta = self._columns.flatten(2).to(weight.dtype)  # (K, Q, S n)
        by_function = self._d_terms[:, 1:].view(n_members, -1, *beta.shape[1:])
        slopes = self._functions[:, self._functions.shape[1] // 2 :].view_as(by_function[:, 1:])
        d_columns = by_function[:, 1:].mul_(slopes).sum(1).div_(beta + 1.0)
        d_columns.addcdiv_(by_function[:, 0], beta).mul_(weight[:, None])
        self._column_sums.pairs.copy_(d_columns.view(n_members * columns, -1, n))
        sums = self._column_sums.by_neuron().view(n_members, columns, n)
        d_exponents.add_((sums[:, :-1] + sums[:, -1:]).transpose(1, 2))


def log_prob_factors(
    output: Tensor, exponents: Tensor, readout: Tensor, factors: VoteFactors, balanced: bool = True
) -> Tensor:
    """Log probability of K members' votes (K, B), multinomial coefficient left out; see :class:`CountLogDensity`.

    Tables are float64; what has rows is of the network's dtype, in differences between components.
    """
    exponents, step = exponents.double(), output.shape[1]
    kind: type[Factors] = DirectFactors
    if output.device.type == "cpu" and output.dtype == torch.float32:
        kind = SmoothFactors if int(factors.count.max()) <= MOST_VOTES else LargeFactors
    if not torch.is_grad_enabled():
        pairs = math.comb(exponents.shape[1] + 1, 2)
        step = max(16, CACHE_ELEMENTS // (pairs * len(exponents)))
    parts = []
    for start in range(0, output.shape[1], step):
        rows = slice(start, start + step)
        part = kind(factors[:, rows])
        parts.append(CountLogDensity.apply(output[:, rows], exponents, readout, part, balanced))  # type: ignore[no-untyped-call]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
