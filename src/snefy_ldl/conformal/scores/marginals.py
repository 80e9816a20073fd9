"""What scores share that are made of each label's own law."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.scores.base import LabelScore, to_numpy
from snefy_ldl.errors import InputError


class MarginalScore(LabelScore):
    """Base of scores that need ``law.marginal(label)``, with ``cdf`` and ``icdf``; ``law.quantiles`` is used if there.

    A subclass calls ``super().bind(law, levels)`` first, and may then use :meth:`quantiles` and :meth:`cdf`.
    """

    def bind(self, law: Any, levels: list[float]) -> None:
        """See the base class.

        Raises:
            InputError: A law without marginals.
        """
        if not callable(getattr(law, "marginal", None)):
            raise InputError(
                f'a {type(law).__name__} has no marginal(label); use method="chebyshev", which needs only its mean and '
                "variance."
            )
        self.law = law
        self.marginals = [law.marginal(r) for r in range(law.event_shape[0])]

    def quantiles(self, alpha: Array) -> Array:
        """Quantiles of every label.

        Args:
            alpha: Probabilities, (A,) for all rows and labels, or (1 or b, L, A).

        Returns:
            Shares, (b, L, A).
        """
        if callable(getattr(self.law, "quantiles", None)):
            if alpha.ndim == 3:
                alpha = np.broadcast_to(alpha, (*self.law.batch_shape, *alpha.shape[1:]))
            return to_numpy(self.law.quantiles(alpha))
        columns = []
        for r, marginal in enumerate(self.marginals):
            levels = alpha if alpha.ndim == 1 else alpha[:, r]
            column = levels[:, None] if alpha.ndim == 1 else levels.T
            columns.append(to_numpy(marginal.icdf(torch.as_tensor(column))).T)
        return np.stack(columns, axis=1)

    def cdf(self, shares: Array) -> Array:
        """Probability of a share of at most this, for every label.

        Args:
            shares: (b, L).

        Returns:
            Probabilities, (b, L).
        """
        columns = [to_numpy(m.cdf(torch.as_tensor(shares[:, r]))) for r, m in enumerate(self.marginals)]
        return np.stack(columns, axis=1)
