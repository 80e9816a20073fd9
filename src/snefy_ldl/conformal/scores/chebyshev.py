"""The paper's score: the distance from the mean in standard deviations."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import LabelScore, Threshold, to_numpy


class ChebyshevScore(LabelScore):
    """``s = |ℓ - E[ℓ]| / (k sd)`` with ``1/k² = 1 - c``, the paper's Eq. for s(x, ℓ); ends ``E[ℓ] ± k q sd``.

    Needs the ``mean`` and ``variance`` of the law, and no more.

    Example:
        >>> import torch
        >>> law = torch.distributions.Dirichlet(torch.tensor([[2.0, 2.0]]))
        >>> ChebyshevScore().for_law(law, [0.75]).score(np.array([[0.5, 0.5]]), 0)
        array([[0., 0.]])
    """

    name = "chebyshev"

    def bind(self, law: Any, levels: list[float]) -> None:
        """See the base class."""
        moments = law.mean_and_variance() if hasattr(law, "mean_and_variance") else (law.mean, law.variance)
        self.mean, variance = (to_numpy(moment) for moment in moments)
        self.sd = np.sqrt(np.maximum(variance, 0.0))
        self.k = 1.0 / np.sqrt(1.0 - np.asarray(levels))

    def _scaled(self, difference: Array, level: int) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = difference / (self.k[level] * self.sd)
        # a law without spread is right (0) or infinitely wrong
        return np.where((self.sd == 0.0) & (difference == 0.0), 0.0, ratio)

    def below(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self._scaled(self.mean - shares, level)

    def above(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self._scaled(shares - self.mean, level)

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """See the base class; here a formula."""
        reach = self.sd[:, :, None] * (self.k * thresholds)
        return self.mean[:, :, None] - reach, self.mean[:, :, None] + reach
