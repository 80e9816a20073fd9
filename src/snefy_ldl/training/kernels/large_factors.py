"""Rising factorials of any number of votes at the price of a few, in float32 on a CPU.

    log (β)_m = log Γ(m) + β log m - log Γ(β) + ρ(β, m),   ρ = (β + m - ½) log1p(β/m) - β + Σ_k c_k [z^(1-2k)]_m^(m+β)

for m above :data:`LARGE`: Stirling's series with its large parts cancelled by hand, two terms of it, so that less than
``1/(1260 m⁵)`` = 3e-14 is neglected. The first three parts are a product of a few
float64 numbers a row, so that nothing large is rounded between components; what is left, about ``β²/2m``, is small and
smooth, and float32 holds its Chebyshev series on the same interval as those of the other counts. Smaller counts of the
same rows come from the table of :mod:`~snefy_ldl.training.kernels.smooth_factors`.

A difference between components is right to 2e-7 of its size, which is what float32 can hold, up to 10¹² votes; where a
row also has labels with few votes, to 5e-4 nats. ``many_factors`` gives the same in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.special import STIRLING, STIRLING_SLOPES, LogGamma
from snefy_ldl.training.kernels.smooth_factors import SmoothFactors

if TYPE_CHECKING:
    from snefy_ldl.training.kernels.counts import VoteFactors

#: Counts above this are large: two terms of Stirling's series are exact, and ρ is smaller than the factorial itself.
LARGE = 128


class LargeFactors(SmoothFactors):
    """``Σ_t sign_t log (β_{column_t})_{count_t}`` and its gradient, whatever the counts, on a CPU, in float32.

    Args:
        factors: the votes, rows (K, B).
    """

    def __init__(self, factors: VoteFactors) -> None:
        self.large = factors.count > LARGE  # (K, B, T)
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
        self._gammas = LogGamma(columns)
        powers = torch.cat([columns, -self._gammas.value], 1)  # (K, 2 Q, P)
        here = powers[..., middle : middle + 1]
        offset += (self._powers @ here).squeeze(-1)
        # The small part is summed up by itself: float32 would round each of its terms to the last digit of the large
        ratio = self._rest(self.series.value, self._value) @ self.terms
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
        return answer.add_(logs).sub_(self._gammas.slope().mul_(often))
