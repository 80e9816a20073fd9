"""Distributional conformal prediction: how far from its median a share lies, in probability."""

from __future__ import annotations

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import Threshold
from snefy_ldl.conformal.scores.marginals import MarginalScore


class CdfScore(MarginalScore):
    """``s = |F(ℓ) - 1/2|`` (Chernozhukov et al., 2021); ends ``F⁻¹(1/2 ∓ q)``, exact.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> import torch
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1), torch.ones(1, 2))
        >>> CdfScore().for_law(law, [0.9]).score(np.array([[0.75, 0.25]]), 0).round(3)
        array([[0.25, 0.25]])
    """

    name = "cdf"
    per_level = False

    def below(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return 0.5 - self.cdf(shares)

    def above(self, shares: Array, level: int) -> Array:
        """See the base class."""
        return self.cdf(shares) - 0.5

    def score(self, shares: Array, level: int) -> Array:
        """See the base class; here with one evaluation of the cdf."""
        return np.abs(self.cdf(shares) - 0.5)

    def ends(self, thresholds: Threshold) -> tuple[Array, Array]:
        """See the base class; here exact quantiles."""
        n_labels, n_levels = len(self.marginals), thresholds.shape[2]
        reach = np.broadcast_to(np.minimum(thresholds, 0.5), (thresholds.shape[0], n_labels, n_levels))
        both = self.quantiles(np.concatenate([0.5 - reach, 0.5 + reach], axis=2))  # (b, L, 2A)
        return both[..., :n_levels], both[..., n_levels:]
