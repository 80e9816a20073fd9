"""The law of one share, or of a sum of shares: density, cdf and quantiles, each exact.

Few questions go straight to the incomplete Beta function, many to a table (:mod:`snefy_ldl.distributions.tables`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._limits import DIRECT_EVALUATIONS
from snefy_ldl._types import Array, Index
from snefy_ldl.distributions.law import Rows, SimplexLaw
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.distributions.tables import ShareTable, beta_table, label_quantiles, row_blocks, row_weights
from snefy_ldl.distributions.weights import check_weights
from snefy_ldl.errors import InputError
from snefy_ldl.special.tolerances import LOGIT_LIMIT, TAIL_MASS


class Marginal(Distribution):
    """Univariate law of one share (or of a sum of shares) on [0, 1]; made by ``dist.marginal(labels)``.

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

    @property
    @abstractmethod
    def law(self) -> SimplexLaw:
        """The law whose rows these are."""

    @abstractmethod
    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1.

        Args:
            value: shares between 0 and 1 (..., *batch).

        Returns:
            Probabilities (..., *batch).
        """

    @abstractmethod
    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies.

        Args:
            value: probabilities between 0 and 1 (..., *batch).

        Returns:
            Shares (..., *batch).
        """

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


class MixtureMarginal(Marginal):
    """A share's law as the weighted sum of laws that all rows of a batch have in common."""

    @abstractmethod
    def _cdf(self, points: Array) -> Array:
        """``P(share <= t)`` at points inside (0, 1), each row's own (N, Q)."""

    @abstractmethod
    def _quantiles(self, levels: Array) -> Array:
        """Quantiles at levels, each row's own (N, Q)."""

    def _ends(self) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` (N,): 0 and 1 for a law without atoms."""
        return np.zeros(len(self.law)), np.ones(len(self.law))

    @torch.no_grad()
    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1."""
        value = torch.as_tensor(value)
        shape = common_shape(value.shape, self.batch_shape)
        if not self._fits(shape):
            expanded: Tensor = self.expand(shape).cdf(value)
            return expanded
        points = value.double().expand(shape).reshape(-1, len(self.law)).T.cpu().numpy()  # (N, Q)
        at_zero, below_one = (end[:, None] for end in self._ends())
        answer = np.clip(self._cdf(points), at_zero, below_one)
        # the support's ends, exactly
        answer = np.where(points < 0.0, 0.0, np.where(points == 0.0, at_zero, np.where(points >= 1.0, 1.0, answer)))
        return self._back(answer, shape, value.dtype if value.is_floating_point() else torch.float64)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies, exact to 1e-8 or better in probability."""
        value = torch.as_tensor(value)
        shape = common_shape(value.shape, self.batch_shape)
        if not self._fits(shape):
            expanded: Tensor = self.expand(shape).icdf(value)
            return expanded
        levels = value.double().expand(shape).reshape(-1, len(self.law)).T.cpu().numpy()  # (N, Q)
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        answer = self._quantiles(np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS))
        answer = np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))
        return self._back(answer, shape, self.law.dtype)

    def _fits(self, shape: Size) -> bool:
        return len(self.law) == 1 or shape[len(shape) - len(self.batch_shape) :] == self.batch_shape

    def _back(self, answer: Array, shape: Size, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(answer.T), device=self.law.device).reshape(shape).to(dtype)


class BetaMarginal(MixtureMarginal):
    """A signed mixture of Betas, ``cdf(t) = Σ c_p I_t(a_p, b_p)``.

    Args:
        pair: the two-part law of (share, rest), a mixture of Dirichlets.
        validate_args: whether to check points of the density, as in torch.
    """

    def __init__(self, pair: Any, validate_args: bool | None = None) -> None:
        if pair.n_labels != 2:
            raise InputError(f"a marginal is made from a two-part law; got {pair.n_labels} parts.")
        self.pair = pair
        super().__init__(pair.batch_shape, torch.Size(), validate_args=validate_args)

    @property
    def law(self) -> SimplexLaw:
        """The two-part law."""
        law: SimplexLaw = self.pair
        return law

    @property
    def mean(self) -> Tensor:
        """Expected share (*batch,)."""
        return self.law.mean[..., 0]

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        return self.law.variance[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch)."""
        value = torch.as_tensor(value)
        if self._validate_args:
            self._validate_sample(value)
        log_p: Tensor = self.pair.log_prob(torch.stack([value, 1.0 - value], -1))
        return log_p

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> BetaMarginal:
        """The same law with its batch broadcast to a larger shape."""
        return BetaMarginal(self.pair.expand(batch_shape), self._validate_args)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        return self.law.sample(sample_shape, generator)[..., 0]

    def _cdf(self, points: Array) -> Array:
        if self.pair.offset is not None or self._direct(points.shape[1]):
            with np.errstate(divide="ignore"):
                z = scipy.special.logit(np.clip(points, 0.0, 1.0))
            return np.concatenate([self._cdf_direct(rows, z[rows]) for rows in self.pair.chunks()])
        table = beta_table(*(parameter[0] for parameter in self._beta_parameters(slice(None))))
        parts = []
        for rows in row_blocks(self.pair):
            weights, keep = row_weights(self.pair, rows)
            parts.append(table.cdf(weights, points[rows], keep))
        return np.concatenate(parts)

    def _quantiles(self, levels: Array) -> Array:
        if self.pair.n_components == 1:
            check_weights(self.pair.weights())
            answer: Array = scipy.special.betaincinv(*self._beta_parameters(slice(None)), levels)
            return answer
        if self._direct(levels.shape[1] * 60):  # steps of a root search
            return self._solve(levels)
        return label_quantiles(self.pair, levels[:, None])[:, 0]

    def _direct(self, queries: int) -> bool:
        evaluations: int = len(self.pair) * queries * self.pair.n_components
        return evaluations <= DIRECT_EVALUATIONS

    def _beta_parameters(self, rows: Rows) -> tuple[Array, Array]:
        """Both Beta parameters, (1 or b, P)."""
        alpha = self.pair.concentration.detach()[None]
        offset = self.pair.offset_rows(rows)
        if offset is not None:
            alpha = alpha + offset[:, None, :]
        first, second = alpha.cpu().numpy().transpose(2, 0, 1)
        return first, second

    def _cdf_direct(self, rows: Rows, z: Array) -> Array:
        """cdf on the logit scale, z (b, Q), by the incomplete Beta function of every component."""
        weights = self.pair.weights(rows).detach().cpu().numpy()
        check_weights(weights, (rows.start or 0) if isinstance(rows, slice) else 0)
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


class GroupMarginal(MixtureMarginal):
    """The law of a sum of shares of a law that answers for its moments and draws.

    Args:
        law: gives means, covariances and draws.
        labels: whose shares are summed up.
    """

    def __init__(self, law: SimplexLaw, labels: list[int]) -> None:
        self._law, self.labels = law, labels
        super().__init__(law.batch_shape, torch.Size(), validate_args=False)

    @property
    def law(self) -> SimplexLaw:
        """The law of all shares."""
        return self._law

    @property
    def mean(self) -> Tensor:
        """Expected share (*batch,)."""
        return self.law.mean[..., self.labels].sum(-1)

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        if len(self.labels) == 1:
            return self.law.variance[..., self.labels[0]]
        block = self.law.covariance_matrix[..., self.labels, :][..., self.labels]
        return block.sum((-1, -2)).clamp_min(0.0)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        return self.law.sample(sample_shape, generator)[..., self.labels].sum(-1)

    @abstractmethod
    def _density(self, points: Array) -> Array:
        """Density at points inside (0, 1), each row's own (N, Q)."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch); of an atom, the logarithm of its probability."""
        value = torch.as_tensor(value)
        shape = common_shape(value.shape, self.batch_shape)
        points = value.double().expand(shape).reshape(-1, len(self.law)).T.detach().cpu().numpy()
        density = self._density(np.clip(points, np.finfo(np.float64).tiny, 1.0 - np.finfo(np.float64).epsneg))
        at_zero, below_one = self._ends()
        density = np.where(points <= 0.0, at_zero[:, None], np.where(points >= 1.0, 1.0 - below_one[:, None], density))
        with np.errstate(divide="ignore"):
            return self._back(np.log(density), shape, value.dtype)


class TableMarginal(GroupMarginal):
    """The law of a sum of shares by a table of its components (:class:`~snefy_ldl.distributions.tables.ShareTable`).

    Args:
        law: gives the weights of its rows, and means, covariances and draws.
        labels: whose shares are summed up.
        table: integrals of every component of that sum.
    """

    def __init__(self, law: SimplexLaw, labels: list[int], table: ShareTable) -> None:
        self.table = table
        super().__init__(law, labels)

    def _density(self, points: Array) -> Array:
        return self._by_rows(lambda weights, rows, keep: self.table.density(weights, points[rows], keep))

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> TableMarginal:
        """The same law with its batch broadcast to a larger shape."""
        return TableMarginal(self.law.expand(batch_shape), self.labels, self.table)  # type: ignore[arg-type]

    def _ends(self) -> tuple[Array, Array]:
        at_zero, below_one = super()._ends()
        if self.table.at_zero is not None:
            column = self.table.at_zero[:, None]
            at_zero = self._by_rows(lambda weights, rows, keep: weights @ column[keep])[:, 0]
        if self.table.at_one is not None:
            column_one = self.table.at_one[:, None]
            below_one = 1.0 - self._by_rows(lambda weights, rows, keep: weights @ column_one[keep])[:, 0]
        return np.clip(at_zero, 0.0, 1.0), np.clip(below_one, 0.0, 1.0)

    def _by_rows(self, answer: Callable[[Array, slice, Index | slice], Array]) -> Array:
        parts = []
        for rows in row_blocks(self.law):
            weights, keep = row_weights(self.law, rows)
            parts.append(answer(weights, rows, keep))
        return np.concatenate(parts)

    def _cdf(self, points: Array) -> Array:
        return self._by_rows(lambda weights, rows, keep: self.table.cdf(weights, points[rows], keep))

    def _quantiles(self, levels: Array) -> Array:
        return self._by_rows(lambda weights, rows, keep: self.table.icdf(weights, levels[rows], keep))
