"""Conformalized quantile regression with exact quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import Threshold
from snefy_ldl.conformal.scores.marginals import MarginalScore


class QuantileScore(MarginalScore):
    """``s = max(Q_lo - ℓ, ℓ - Q_hi)`` with exact quantiles at ``(1 ∓ c)/2`` (Romano et al., 2019); ends ``Q ∓ q``.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> import torch
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1), torch.ones(1, 2))
        >>> QuantileScore().for_law(law, [0.9]).score(np.array([[0.5, 0.5]]), 0).round(3)
        array([[-0.45, -0.45]])
    """

    name = "quantile"

    def bind(self, law: Any, levels: list[float]) -> None:
        """See the base class."""
        super().bind(law, levels)
        tails = [(1.0 - level) / 2.0 for level in levels]
        alpha = [*tails, *(1.0 - tail for tail in tails)]
        both = self.quantiles(np.asarray(alpha))
        self.low, self.high = both[..., : len(levels)], both[..., len(levels) :]  # (b, L, A) each

    def below(self, shares: Array, level: int) -> Array:
        """See the base class."""
        distance: Array = self.low[..., level] - shares
        return distance

    def above(self, shares: Array, level: int) -> Array:
        """See the base class."""
        distance: Array = shares - self.high[..., level]
        return distance

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """See the base class; here a formula."""
        return self.low - thresholds, self.high + thresholds
