"""The law of one share, or of a sum of shares: density, cdf and quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._internal.tolerances import TAIL_MASS
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float
from snefy_ldl.distributions.parts import common_shape
from snefy_ldl.errors import InputError


class Marginal(Distribution):
    """Univariate law of one share (or of a sum of shares) on [0, 1]; made by ``dist.marginal(labels)``.

    Args:
        law: the law of all shares.
        labels: numbers of the labels whose shares are summed up.
        validate_args: whether to check points of the density, as in torch.

    Example:
        >>> from snefy_ldl.distributions import SnefySimplex
        >>> one = SnefySimplex(torch.tensor([[0.5, 1.0, 2.0]]).double(), torch.ones(1, 1).double(),
        ...                    torch.zeros(1, 1).double())       # Dirichlet(2, 3, 5), so the first share is Beta(2, 8)
        >>> share = one.marginal(0)
        >>> share.cdf(torch.tensor([0.2])).round(decimals=4), share.icdf(torch.tensor(0.5)).round(decimals=4)
        (tensor([0.5638]), tensor([0.1796], dtype=torch.float64))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.unit_interval
    has_rsample = False

    def __init__(self, law: Any, labels: list[int], validate_args: bool | None = None) -> None:
        self.law, self.labels = law, labels
        super().__init__(law.batch_shape, torch.Size(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """Expected share (*batch,)."""
        return self.law.mean[..., self.labels].sum(-1)

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        if len(self.labels) == 1:
            return self.law.variance[..., self.labels[0]]
        block: Tensor = self.law.covariance_matrix[..., self.labels, :][..., self.labels]
        return block.sum((-1, -2)).clamp_min(0.0)

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> Marginal:
        """The same law with its batch broadcast to a larger shape."""
        return Marginal(self.law.expand(batch_shape), self.labels, self._validate_args)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        return self.law.sample(sample_shape, generator)[..., self.labels].sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch); of an atom at 0 or 1, the logarithm of its probability."""
        value = _as_tensor(value)
        if self._validate_args:
            self._validate_sample(value)
        shape = common_shape(value.shape, self.batch_shape)
        if not self._fits(shape):
            return self.expand(shape).log_prob(value)
        points = value.expand(shape).reshape(-1, len(self.law))
        return self.law.share_log_prob(self.labels, points).reshape(shape).to(self.law.dtype)

    @torch.no_grad()
    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1.

        Args:
            value: shares between 0 and 1 (..., *batch).

        Returns:
            Probabilities (..., *batch).
        """
        value = _as_tensor(value)
        shape = common_shape(value.shape, self.batch_shape)
        if not self._fits(shape):
            return self.expand(shape).cdf(value)
        points = value.double().expand(shape).reshape(-1, len(self.law)).T.cpu().numpy()  # (N, Q)
        at_zero, below_one = (end[:, None] for end in self.law.share_ends(self.labels))
        inside = np.where((points <= 0.0) | (points >= 1.0), 0.5, points)  # an integral takes longest at the ends
        answer = np.clip(self.law.share_cdf(self.labels, inside), at_zero, below_one)
        # the support's ends, exactly
        answer = np.where(points < 0.0, 0.0, np.where(points == 0.0, at_zero, np.where(points >= 1.0, 1.0, answer)))
        return self._back(answer, shape, value.dtype if value.is_floating_point() else torch.float64)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies.

        Args:
            value: probabilities between 0 and 1 (..., *batch).

        Returns:
            Shares (..., *batch), exact to 2e-7 or better in probability; 0 or 1 where an atom holds the level.
        """
        value = _as_tensor(value)
        shape = common_shape(value.shape, self.batch_shape)
        if not self._fits(shape):
            return self.expand(shape).icdf(value)
        levels = value.double().expand(shape).reshape(-1, len(self.law)).T.cpu().numpy()  # (N, Q)
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        answer = self.law.share_quantiles(self.labels, np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS))
        answer = np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))
        return self._back(answer, shape, self.law.dtype)

    def quantiles(self, alpha: Any) -> Tensor:
        """Several quantile levels at once: alpha (A,) -> (*batch, A).

        Args:
            alpha: levels between 0 and 1 (A,).

        Returns:
            Shares (*batch, A).
        """
        levels = torch.as_tensor(np.atleast_1d(np.asarray(alpha, dtype=np.float64)))
        column = levels.reshape(-1, *([1] * len(self.batch_shape)))
        return self.icdf(column).movedim(0, -1)

    def _fits(self, shape: Size) -> bool:
        return len(self.law) == 1 or shape[len(shape) - len(self.batch_shape) :] == self.batch_shape

    def _back(self, answer: Array, shape: Size, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(answer.T), device=self.law.device).reshape(shape).to(dtype)


def _as_tensor(value: Any) -> Tensor:
    """Real numbers of any container as a dense tensor."""
    if isinstance(value, Tensor):
        value = value.to_dense() if value.is_sparse else value
    else:
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            value = torch.as_tensor(as_float(value, "value"))
    if value.is_complex():
        raise InputError("value holds complex numbers; it must be real.")
    if not bool(torch.isfinite(value).all()):
        raise InputError("value holds NaN or infinity; it must hold numbers.")
    return value
