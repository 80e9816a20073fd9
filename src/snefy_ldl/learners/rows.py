"""Softmax-linear models whose loss is any smooth function of a row's predicted shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.features import Design
from snefy_ldl.learners.linear import SoftmaxLinear, start_weights
from snefy_ldl.learners.optimise import minimise

#: Predicted shares (N, L) to a loss a row (N,).
RowLoss = Callable[[Tensor], Tensor]


def kl_rows(true: Tensor, P: Tensor) -> Tensor:
    """``KL(d_i ‖ p_i)`` a row, with ``0 log 0 = 0``.

    Args:
        true: ``d``, (N, L).
        P: ``p``, (N, L); an underflow to zero counts as the smallest positive number.

    Returns:
        Divergences, (N,).

    Example:
        >>> kl_rows(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.2, 0.8]])).numpy().round(3)
        array([0.223], dtype=float32)
    """
    tiny = float(np.finfo(np.float32).tiny)
    return (torch.xlogy(true, true) - true * P.clamp_min(tiny).log()).sum(dim=1)


class RowLinear(SoftmaxLinear):
    """Base of softmax-linear learners with a loss of their own: ``mean_i loss(p_i) + λ/(2N) ‖θ‖²``.

    The hyperparameters are those of :class:`SoftmaxLinear`; ``tol`` is in units of the KL divergence.
    """

    @abstractmethod
    def _rows(self, D: Array) -> RowLoss:
        """The loss of each row."""

    def _ratio(self, D: Array) -> float:
        """How strongly the loss bends in the logits, in units of the KL divergence; ``l2="auto"`` is scaled by it."""
        return 1.0

    def _minimise(self, design: Design, D: Array) -> Array:
        rows, Z = self._rows(D), torch.from_numpy(design.Z)
        ratio = self._ratio(D)
        if self.l2 == "auto":
            self.l2_ *= ratio
        penalty = torch.from_numpy(self.l2_ / (ratio * len(D)) * design.ridge[:, None])

        def objective(weights: list[Tensor]) -> Tensor:
            (w,) = weights
            return rows(torch.softmax(Z @ w, dim=1)).mean() / ratio + 0.5 * (penalty * w.square()).sum()

        (w,), self.n_iter_ = minimise(objective, [start_weights(design, D)], self.max_iter, self.tol)
        return w
