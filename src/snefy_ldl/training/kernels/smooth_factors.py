"""Rising factorials by Chebyshev series, so that the votes of a batch are one matrix product.

    log (β)_m = [m > 0] log β + Σ_g F_mg T_g(x),   x = (log(1 + β) - centre) / half

What is left of a rising factorial without its first factor has poles at ``β = -1, -2, ...``: as a function of
``log(1 + β)`` it is analytic up to ``± iπ`` from the real line, whatever m. A series on an interval of half length
``half`` therefore converges like ``ρ^-g`` with ``ρ = π/half + √(1 + π²/half²)``, and about twenty terms are all that
float32 can hold. The coefficients of every m are worked out once an interval, and kept; a batch takes those of its own
counts, and multiplies.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy.special import digamma, gammaln
from torch import Tensor

from snefy_ldl.training.kernels.memory import work_arrays

if TYPE_CHECKING:
    from snefy_ldl.training.kernels.counts import VoteFactors

#: Neglected terms of a series are this small beside its first.
SERIES_TOLERANCE = 1e-7
#: Intervals end at whole multiples of this in log(1 + β), so that training meets few of them.
INTERVAL_STEP = 0.5
#: Above so many votes an item float32 would round differences between components, and tables by count grow long.
MOST_VOTES = 1000


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


def series_length(half: float, tolerance: float = SERIES_TOLERANCE) -> int:
    """Terms that a series on an interval of this half length needs."""
    growth = math.pi / half + math.sqrt(1.0 + (math.pi / half) ** 2)
    return math.ceil(-math.log(tolerance) / math.log(growth)) + 1


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
        return (self._coefficients(self.series.value) @ self.terms).to(dtype), offset

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
        terms = work_arrays.take(*place.shape[:2], length, place.shape[2])  # log β, T_0, T_1, ... (K, Q, 1 + G, P)
        terms[:, :, 0] = columns.log()
        x = place.mul_(2.0 / (INTERVAL_STEP * (high - low))).sub_((high + low) / (high - low))
        chebyshev(x.float(), terms[:, :, 1:])
        self._taken, self.terms = terms, terms.flatten(1, 2)
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
        taken = work_arrays.take(*self._taken.shape)  # (K, Q, 1 + G, P)
        torch.bmm(self._coefficients(self.series.slope).transpose(1, 2), d_ratio.float(), out=taken.flatten(1, 2))
        first = taken[:, :, 0] / columns
        taken *= self._taken
        answer: Tensor = first + taken[:, :, 1:].sum(2) / (1.0 + columns)
        work_arrays.give(taken)
        return answer

    def __del__(self) -> None:
        # The graph that held this array is gone, so the array can serve another step.
        if hasattr(self, "_taken"):
            work_arrays.give(self._taken)
