"""The height of the density."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import gammaln

from snefy_ldl._internal.laws import draw_from, tensor_for
from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import RegionScore, Seeds, Threshold, to_numpy


class DensityScore(RegionScore):
    """``s = -log p(ℓ|x)``: one height for all rows. Needs the law's ``log_prob``; its ``log_prob_at`` is used if there.

    Example:
        >>> import torch
        >>> law = torch.distributions.Dirichlet(torch.ones(1, 3))
        >>> DensityScore().for_law(law).score(np.full((1, 3), 1 / 3)).round(3)  # the uniform density is 2
        array([-0.693])
    """

    name = "density"

    def bind(self, law: Any, n_draws: int, seeds: Seeds) -> None:
        """See the base class; the law itself is all that is needed."""

    def log_density(self, points: Array) -> Array:
        """Log densities (..., b) of one point a row, points (..., b, L)."""
        return to_numpy(self.law.log_prob(tensor_for(self.law, points)))

    def log_density_shared(self, points: Array) -> Array:
        """Log densities (S, b) of the same points (S, L) for every row."""
        table = tensor_for(self.law, points)
        if callable(getattr(self.law, "log_prob_at", None)):
            return to_numpy(self.law.log_prob_at(table))
        return to_numpy(self.law.log_prob(table[:, None, :]))

    def from_log_density(self, log_density: Array) -> Array:
        """Scores (..., b) from log densities (..., b); a subclass may score level sets in another way."""
        return -log_density

    def score(self, points: Array) -> Array:
        """See the base class."""
        return self.from_log_density(self.log_density(points))

    def score_shared(self, points: Array) -> Array:
        """See the base class."""
        return self.from_log_density(self.log_density_shared(points))

    def volume(self, thresholds: Threshold, n: int, seeds: Seeds) -> tuple[Array, Array]:
        """See the base class; here by draws of the law, so that a tiny region is not missed."""
        # ∫_R dℓ = E_p[1{ℓ in R} / p(ℓ)] over a simplex of volume 1/(L-1)!; in a superlevel set of p, 1/p is bounded
        draws = to_numpy(draw_from(self.law, n, seeds))
        log_p = self.log_density(draws)
        inside = self.from_log_density(log_p) <= thresholds
        share = np.exp(np.where(inside, gammaln(self.n_labels) - log_p, -np.inf))
        return share.mean(axis=0), share.std(axis=0, ddof=1) / math.sqrt(n)
