"""The law of one label's share: a signed mixture of Betas with exact pdf, cdf and quantiles.

Few questions go straight to the incomplete Beta function, many to a table (:mod:`snefy_ldl.distributions.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._types import Array
from snefy_ldl.distributions.mixture import Rows, SignedDirichletMixture
from snefy_ldl.distributions.tables import LOGIT_LIMIT, TAIL_MASS, Panels, panels_of, row_blocks, row_weights
from snefy_ldl.errors import InputError

#: Below this many Beta evaluations a query goes straight to the incomplete Beta function.
DIRECT_EVALUATIONS = 200_000


class Marginal(Distribution):
    """Univariate law of one share (or of a sum of shares) on [0, 1].

    Made by ``dist.marginal(r)``; ``cdf(t) = Σ c_p I_t(a_p, b_p)``.

    Args:
        pair: the two-part law of (share, rest).

    Example:
        >>> from snefy_ldl.distributions.snefy import SnefySimplex
        >>> one = SnefySimplex(torch.tensor([[0.5, 1.0, 2.0]]).double(), torch.ones(1, 1).double(),
        ...                    torch.zeros(1, 1).double())       # Dirichlet(2, 3, 5), so the first share is Beta(2, 8)
        >>> share = one.marginal(0)
        >>> share.cdf(torch.tensor([0.2])).round(decimals=4), share.icdf(torch.tensor(0.5)).round(decimals=4)
        (tensor([0.5638]), tensor([0.1796], dtype=torch.float64))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.unit_interval
    has_rsample = False

    def __init__(self, pair: SignedDirichletMixture, validate_args: bool | None = None) -> None:
        if pair.n_labels != 2:
            raise InputError(f"a marginal is made from a two-part law; got {pair.n_labels} parts.")
        self.pair = pair
        super().__init__(pair.batch_shape, torch.Size(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """Expected share (*batch,)."""
        return self.pair.mean[..., 0]

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        return self.pair.variance[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch)."""
        if self._validate_args:
            self._validate_sample(value)
        return self.pair.log_prob(torch.stack([value, 1.0 - value], -1))

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> Marginal:
        """The same law with its batch broadcast to a larger shape."""
        return Marginal(self.pair.expand(batch_shape), self._validate_args)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        return self.pair.sample(sample_shape, generator)[..., 0]

    # -- cdf and quantiles -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1."""
        value = torch.as_tensor(value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        if not self.pair._ends(shape):
            return self.expand(shape).cdf(value)
        points = value.double().expand(shape).reshape(-1, len(self.pair)).T.cpu().numpy()  # (N, Q)
        if self._direct(points.shape[1]):
            with np.errstate(divide="ignore"):
                z = scipy.special.logit(np.clip(points, 0.0, 1.0))
            answer = np.concatenate([self._cdf_direct(rows, z[rows]) for rows in self.pair.chunks()])
        else:
            answer = self._tabulated(points, Panels.cdf)
        # the support's ends, exactly
        answer = np.where(points <= 0.0, 0.0, np.where(points >= 1.0, 1.0, answer))
        return self._back(answer, shape, value.dtype if value.is_floating_point() else torch.float64)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies, exact to 1e-8 or better in probability."""
        value = torch.as_tensor(value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        if not self.pair._ends(shape):
            return self.expand(shape).icdf(value)
        levels = value.double().expand(shape).reshape(-1, len(self.pair)).T.cpu().numpy()  # (N, Q)
        answer = self._quantiles(levels)
        return self._back(answer, shape, self.pair.dtype)

    def quantiles(self, alpha: Any) -> Tensor:
        """Several quantile levels at once: alpha (A,) -> (*batch, A)."""
        levels = torch.as_tensor(np.atleast_1d(np.asarray(alpha, dtype=np.float64)))
        column = levels.reshape(-1, *([1] * len(self.batch_shape)))
        return self.icdf(column).movedim(0, -1)

    def _quantiles(self, levels: Array) -> Array:
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        inner = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS)
        if self.pair.n_components == 1:
            a, b = self._beta_parameters(slice(None))
            answer = scipy.special.betaincinv(a, b, inner)
        elif self._direct(levels.shape[1] * 60):  # steps of a root search
            answer = self._solve(inner)
        else:
            answer = self._tabulated(inner, Panels.icdf)
        return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))

    def _direct(self, queries: int) -> bool:
        evaluations = len(self.pair) * queries * self.pair.n_components
        return self.pair.offset is not None or evaluations <= DIRECT_EVALUATIONS

    def _back(self, answer: Array, shape: Size, dtype: torch.dtype) -> Tensor:
        device = self.pair.concentration.device
        return torch.as_tensor(np.ascontiguousarray(answer.T), device=device).reshape(shape).to(dtype)

    def _beta_parameters(self, rows: Rows) -> tuple[Array, Array]:
        """Both Beta parameters, (1 or b, P)."""
        alpha = self.pair.concentration.detach()[None]
        offset = self.pair.offset_rows(rows)
        if offset is not None:
            alpha = alpha + offset[:, None, :]
        first, second = alpha.cpu().numpy().transpose(2, 0, 1)
        return first, second

    def _tabulated(self, queries: Array, answer: Callable[..., Array]) -> Array:
        """A question to the table for every row's own queries (N, Q), a block of rows at a time."""
        a, b = self._beta_parameters(slice(None))
        table = panels_of(a[0], b[0])
        parts = []
        for rows in row_blocks(self.pair):
            weights, keep = row_weights(self.pair, rows)
            parts.append(answer(table, weights, queries[rows], keep))
        return np.concatenate(parts)

    def _cdf_direct(self, rows: Rows, z: Array) -> Array:
        """cdf on the logit scale, z (b, Q), by the incomplete Beta function of every component."""
        weights = self.pair.weights(rows).detach().cpu().numpy()
        a, b = self._beta_parameters(rows)
        answer = np.empty_like(z)
        for q in range(z.shape[1]):
            t, rest = scipy.special.expit(z[:, q, None]), scipy.special.expit(-z[:, q, None])
            # beyond one half, work from the other end: 1 - t keeps its digits there
            low = t < 0.5
            tail = scipy.special.betainc(np.where(low, a, b), np.where(low, b, a), np.minimum(t, rest))
            answer[:, q] = (weights * np.where(low, tail, 1.0 - tail)).sum(-1)
        return np.clip(answer, 0.0, 1.0)

    def _solve(self, levels: Array) -> Array:
        """Quantiles by bisection-guarded false position on the logit scale, (N, Q), a chunk of rows at a time."""
        parts = []
        for rows in self.pair.chunks(per_pair=2):
            target = levels[rows]
            low = np.full(target.shape, -LOGIT_LIMIT)
            high = -low
            f_low, f_high = -target, 1.0 - target
            for step in range(100):
                # false position with a bisection every third step: superlinear, and never stuck
                share = f_low / (f_low - f_high)
                share = np.where(step % 3 == 2, 0.5, np.clip(share, 0.02, 0.98))
                middle = low + share * (high - low)
                f = self._cdf_direct(rows, middle) - target
                below = f < 0
                low, f_low = np.where(below, middle, low), np.where(below, f, f_low)
                high, f_high = np.where(below, high, middle), np.where(below, f_high, f)
                if np.all((high - low < 1e-10) | (f_high - f_low < 1e-13)):
                    break
            parts.append(scipy.special.expit(0.5 * (low + high)))
        return np.concatenate(parts)


def equal_level_point(dist: SignedDirichletMixture) -> Tensor:
    """The point q (*batch, L) on the simplex with the smallest ``Σ_r E|ℓ_r - q_r|``.

    Without the simplex each part would be its median. With it, Lagrange's condition ``2 F_r(q_r) - 1 = λ`` is the same
    for all labels: the parts are quantiles of one level, the one at which they sum to one. (Medians divided by their
    sum are close to it, but not optimal.)
    """
    with torch.no_grad():
        marginals = [dist.marginal(r) for r in range(dist.n_labels)]
        low, high = np.zeros(len(dist)), np.ones(len(dist))
        level, before = np.full(len(dist), 0.5), np.full(len(dist), np.nan)
        excess_before = before
        for _ in range(60):
            point = np.stack([m._quantiles(level[:, None])[:, 0] for m in marginals], -1)
            excess = point.sum(-1) - 1.0
            if np.abs(excess).max(initial=0.0) < 1e-9:
                break
            low, high = np.where(excess < 0, level, low), np.where(excess < 0, high, level)
            with np.errstate(divide="ignore", invalid="ignore"):  # a secant step, or half the bracket where it fails
                secant = level - excess * (level - before) / (excess - excess_before)
            inside = (secant > low) & (secant < high)
            before, excess_before = level, excess
            level = np.where(np.abs(excess) < 1e-9, level, np.where(inside, secant, 0.5 * (low + high)))
        answer = torch.as_tensor(point / point.sum(-1, keepdims=True), device=dist.concentration.device)
    return dist.shaped(answer)
