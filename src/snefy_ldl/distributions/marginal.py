"""The law of one share, or of a sum of shares: density, cdf and quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._internal.limits import DIRECT_EVALUATIONS
from snefy_ldl._internal.tolerances import LOGIT_LIMIT, TAIL_MASS
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float
from snefy_ldl.distributions.parts import check_weights, common_shape
from snefy_ldl.distributions.tables import label_quantiles
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
        mean: Tensor = self.law.mean[..., self.labels].sum(-1)
        return mean

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        if len(self.labels) == 1:
            variance: Tensor = self.law.variance[..., self.labels[0]]
            return variance
        block: Tensor = self.law.covariance_matrix[..., self.labels, :][..., self.labels]
        return block.sum((-1, -2)).clamp_min(0.0)

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> Marginal:
        """The same law with its batch broadcast to a larger shape."""
        return Marginal(self.law.expand(batch_shape), self.labels, self._validate_args)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        draws: Tensor = self.law.sample(sample_shape, generator)[..., self.labels].sum(-1)
        return draws

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch); of an atom at 0 or 1, the logarithm of its probability."""
        value = _as_tensor(value)
        if self._validate_args:
            self._validate_sample(value)
        shape = common_shape(value.shape, self.batch_shape)
        if not self._fits(shape):
            return self.expand(shape).log_prob(value)
        points = value.expand(shape).reshape(-1, len(self.law))
        log_p: Tensor = self.law.share_log_prob(self.labels, points).reshape(shape).to(self.law.dtype)
        return log_p

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


# -- few questions about rows of a two-part mixture of Dirichlets: straight to the incomplete Beta function ------------


def direct_cdf(pair: Any, points: Array) -> Array | None:
    """cdf of the first of two shares at points inside (0, 1), each row's own (N, Q); None where a table is quicker."""
    if pair.offset is None and not _few(pair, points.shape[1]):
        return None
    with np.errstate(divide="ignore"):
        z = scipy.special.logit(np.clip(points, 0.0, 1.0))
    return np.concatenate([_cdf_of_rows(pair, rows, z[rows]) for rows in pair.chunks()])


def direct_quantiles(pair: Any, levels: Array) -> Array:
    """Quantiles of the first of two shares at levels, each row's own (N, Q)."""
    if pair.n_components == 1:
        check_weights(pair.weights())
        answer: Array = scipy.special.betaincinv(*_beta_parameters(pair, slice(None)), levels)
        return answer
    if _few(pair, levels.shape[1] * 60):  # steps of a root search
        return _solve(pair, levels)
    return label_quantiles(pair, levels[:, None])[:, 0]


def _few(pair: Any, queries: int) -> bool:
    evaluations: int = len(pair) * queries * pair.n_components
    return evaluations <= DIRECT_EVALUATIONS


def _beta_parameters(pair: Any, rows: slice) -> tuple[Array, Array]:
    """Both Beta parameters, (1 or b, P)."""
    alpha = pair.concentration.detach()[None]
    offset = pair.offset_rows(rows)
    if offset is not None:
        alpha = alpha + offset[:, None, :]
    first, second = alpha.cpu().numpy().transpose(2, 0, 1)
    return first, second


def _cdf_of_rows(pair: Any, rows: slice, z: Array) -> Array:
    """cdf on the logit scale, z (b, Q), by the incomplete Beta function of every component."""
    weights = pair.weights(rows).detach().cpu().numpy()
    check_weights(weights, rows.start or 0)
    a, b = _beta_parameters(pair, rows)
    answer = np.empty_like(z)
    for q in range(z.shape[1]):
        t, rest = scipy.special.expit(z[:, q, None]), scipy.special.expit(-z[:, q, None])
        # beyond one half, work from the other end: 1 - t keeps its digits there
        low = t < 0.5
        tail = scipy.special.betainc(np.where(low, a, b), np.where(low, b, a), np.minimum(t, rest))
        answer[:, q] = (weights * np.where(low, tail, 1.0 - tail)).sum(-1)
    return np.clip(answer, 0.0, 1.0)


def _solve(pair: Any, levels: Array) -> Array:
    """Quantiles by bisection-guarded false position on the logit scale, (N, Q), a chunk of rows at a time."""
    parts = []
    for rows in pair.chunks(per_pair=2):
        target = levels[rows]
        low = np.full(target.shape, -LOGIT_LIMIT)
        high = -low
        f_low, f_high = -target, 1.0 - target
        for step in range(100):
            # false position with a bisection every third step: superlinear, and never stuck
            share = f_low / (f_low - f_high)
            share = np.where(step % 3 == 2, 0.5, np.clip(share, 0.02, 0.98))
            middle = low + share * (high - low)
            f = _cdf_of_rows(pair, rows, middle) - target
            below = f < 0
            low, f_low = np.where(below, middle, low), np.where(below, f, f_low)
            high, f_high = np.where(below, high, middle), np.where(below, f_high, f)
            if np.all((high - low < 1e-10) | (f_high - f_low < 1e-13)):
                break
        parts.append(scipy.special.expit(0.5 * (low + high)))
    return np.concatenate(parts)


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
    checked: Tensor = value
    return checked
