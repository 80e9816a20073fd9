"""Rising factorials of any number of votes at one price, on a CPU: series for the counts of the batch alone.

    log (β)_m = log β + log Γ(m) + Σ_g F_mg T_g(x),   x = (log(1 + β) - centre) / half,   m > 0

The series are those of :mod:`snefy_ldl.training.kernels.smooth_factors`, in float64 and to a relative 1e-12, but
nothing is tabulated by count: a batch works out the coefficients of its own counts, at some forty values of β each.
``log Γ(m)`` is the same for every component and stands aside, so that nothing large cancels between components; the
probability of a row keeps that of float64 itself, 1e-6 nats at a billion votes an item.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import digamma, gammaln
from torch import Tensor

from snefy_ldl._internal.special import log_gamma_growth
from snefy_ldl._internal.types import Array
from snefy_ldl.training.kernels.smooth_factors import INTERVAL_STEP, chebyshev, series_length

if TYPE_CHECKING:
    from snefy_ldl.training.kernels.counts import VoteFactors

#: Neglected terms of a series are this small beside its first.
MANY_TOLERANCE = 1e-12


class ManyFactors:
    """``Σ_t sign_t log (β_{column_t})_{count_t}`` and its gradient, whatever the counts, on a CPU.

    Args:
        factors: the votes, rows (K, B).
    """

    def __init__(self, factors: VoteFactors) -> None:
        self.factors = factors
        distinct, which = np.unique(factors.count.numpy(), return_inverse=True)
        self.distinct: Array = distinct.astype(np.float64)  # (D,)
        self.which = torch.from_numpy(which.reshape(factors.count.shape))  # (K, B, T)

    def _place(self, columns: Tensor) -> tuple[Tensor, float, float]:
        """Where each β lies in its interval, -1 to 1, and the interval's centre and half length."""
        place = columns.log1p()
        low = math.floor(float(place.min()) / INTERVAL_STEP)
        high = max(math.ceil(float(place.max()) / INTERVAL_STEP), low + 2)
        centre, half = 0.5 * INTERVAL_STEP * (high + low), 0.5 * INTERVAL_STEP * (high - low)
        return place.sub_(centre).div_(half), centre, half

    def _series(self, centre: float, half: float, slope: bool) -> Tensor:
        """Coefficients (D, 1 + G) of the distinct counts: ``[m > 0]`` for log β or 1/β, and those of the series."""
        length = series_length(half, MANY_TOLERANCE)
        angles = np.pi * (np.arange(length) + 0.5) / length
        beta, m = np.expm1(centre + half * np.cos(angles)), self.distinct[:, None]
        transform = np.cos(np.outer(angles, np.arange(length))) * (2.0 / length)
        transform[:, 0] *= 0.5
        some = np.maximum(m, 1.0)
        if slope:
            values = (1.0 + beta) * (digamma(beta + some) - digamma(beta + 1.0))
        else:
            values = log_gamma_growth(beta, some) - gammaln(beta + 1.0)
        return torch.from_numpy((m > 0) * np.hstack([np.ones_like(m), values @ transform]))

    def _coefficients(self, table: Tensor, member: int) -> Tensor:
        """Coefficients of one member's rows, signs included, (B, Q (1 + G))."""
        factors = self.factors
        signed = table[self.which[member]] * factors.sign[:, None]  # (B, T, 1 + G)
        every = signed.new_zeros(len(signed), len(factors.groups), signed.shape[-1])
        return every.scatter_add_(1, factors.column[member][..., None].expand_as(signed), signed).flatten(1)

    @staticmethod
    def _terms(first: Tensor, x: Tensor, length: int) -> Tensor:
        """``first``, T_0(x), T_1(x), ... (Q, 1 + G, P) of one member."""
        terms = torch.empty(len(x), length, x.shape[-1], dtype=torch.float64)
        terms[:, 0] = first
        chebyshev(x, terms[:, 1:])
        return terms

    def ratio(self, columns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Columns (K, Q, P) -> (K, B, P) of a dtype, and what to add to each row (K, B) in float64."""
        x, centre, half = self._place(columns)
        table = self._series(centre, half, slope=False)
        shared = torch.from_numpy(gammaln(np.maximum(self.distinct, 1.0)))
        offset = (shared[self.which] * self.factors.sign).sum(-1)
        ratio = torch.empty(*self.factors.shape, columns.shape[-1], dtype=dtype)
        for k, beta in enumerate(columns):  # one member's terms at a time: they are the largest array here
            terms = self._terms(beta.log(), x[k], table.shape[1]).flatten(0, 1)
            values = self._coefficients(table, k) @ terms
            middle = values[:, values.shape[1] // 2]
            ratio[k] = values - middle[:, None]
            offset[k] += middle
        return ratio, offset

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """Gradient for the columns (K, Q, P)."""
        x, centre, half = self._place(columns)
        table = self._series(centre, half, slope=True)
        answer = torch.empty_like(columns)
        for k, beta in enumerate(columns):
            sums = (self._coefficients(table, k).T @ d_ratio[k].double()).unflatten(0, (len(beta), -1))
            terms = self._terms((1.0 + beta) / beta, x[k], table.shape[1])
            answer[k] = (sums * terms).sum(1) / (1.0 + beta)
        return answer
