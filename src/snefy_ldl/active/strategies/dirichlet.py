"""Entropy of one Dirichlet with the predicted mean, the paper's baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import RandomState

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.tolerances import MATCHED_CONCENTRATIONS
from snefy_ldl._internal.types import Array
from snefy_ldl.active.diversity import Diverse
from snefy_ldl.active.strategies.law import LawStrategy, Space, as_width
from snefy_ldl.errors import InputError
from snefy_ldl.learners.dirichlet import dirichlet_entropy

__all__ = ["DirichletEntropy"]


class DirichletEntropy(LawStrategy, name="dirichlet"):
    """Differential entropy of one Dirichlet with the predicted mean, the paper's baseline.

    Args:
        concentration: its sum of parameters; None takes, for each row, the one whose total variance is the predicted
            law's. For a :class:`~snefy_ldl.learners.DirichletLDL` that is the law it predicts.
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Raises:
        InputError: the concentration is not positive, or another setting is out of its range.

    Example:
        >>> import torch
        >>> law = torch.distributions.Dirichlet(torch.ones(1, 2, dtype=torch.float64))
        >>> abs(DirichletEntropy().score(law, RandomState(0)).round(6))  # flat on [0, 1]: log 1
        array([0.])
    """

    def __init__(
        self,
        concentration: float | None = None,
        diverse: Diverse = False,
        candidates: int | None = None,
        space: Space = "features",
    ) -> None:
        super().__init__(diverse, candidates, space)
        if concentration is not None and not (np.isfinite(concentration) and concentration > 0):
            raise InputError(f"concentration must be a positive number or None; got {concentration!r}.")
        self.concentration = concentration

    def score(self, law: Any, random: RandomState) -> Array:
        """Entropies (N,)."""
        mean, variance = to_numpy(law.mean), to_numpy(law.variance)
        if self.concentration is not None:
            total = np.full(len(mean), float(self.concentration))
        else:
            with np.errstate(divide="ignore"):
                total = (1.0 - (mean**2).sum(axis=1)) / variance.sum(axis=1) - 1.0
            total = np.clip(total, *MATCHED_CONCENTRATIONS)
        alpha = np.maximum(total[:, None] * mean, MATCHED_CONCENTRATIONS[0] ** 2)
        return dirichlet_entropy(alpha)

    def weight(self, scores: Array, n_labels: int) -> Array:
        """The width of the law, ``exp(H / (L-1))``."""
        return as_width(scores, n_labels - 1)
