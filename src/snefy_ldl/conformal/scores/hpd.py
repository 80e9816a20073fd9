"""Highest predictive density: a share of each row's own probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.laws import draw_from
from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import Seeds, to_numpy
from snefy_ldl.conformal.scores.density import DensityScore


class HpdScore(DensityScore):
    """``s = P(p(Y|x) >= p(ℓ|x))``, Y a draw of the law: the probability of the smallest level set that holds ℓ.

    Below all draws the content is 1 and says no more; there the score goes on with the nats below the lowest draw.
    Needs the law's ``log_prob`` and ``sample``.

    Example:
        >>> import torch
        >>> law = torch.distributions.Dirichlet(torch.full((1, 3), 5.0))
        >>> HpdScore().for_law(law, n_draws=200).score(np.full((1, 3), 1 / 3))  # the mode
        array([0.])
    """

    name = "hpd"
    uses_draws = True

    def bind(self, law: Any, n_draws: int, seeds: Seeds) -> None:
        """See the base class; keeps the sorted log densities of the draws."""
        draws = to_numpy(draw_from(law, n_draws, seeds))
        self.levels = np.sort(self.log_density(draws), axis=0)  # (n_draws, b)

    def from_log_density(self, log_density: Array) -> Array:
        """See the base class."""
        flat = log_density.reshape(-1, log_density.shape[-1])
        n, content = len(self.levels), np.empty_like(flat)
        for row in range(flat.shape[1]):
            content[:, row] = 1.0 - np.searchsorted(self.levels[:, row], flat[:, row], side="left") / n
        lowest = self.levels[0]
        with np.errstate(invalid="ignore"):
            content = np.where(flat < lowest, 1.0 + (lowest - flat), content)
        return content.reshape(log_density.shape)
