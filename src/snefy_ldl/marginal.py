"""The law of one label's share: a signed mixture of Betas with exact pdf, cdf and quantiles.

The components do not depend on the row, so their integrals are tabulated once. On the scale ``z = logit t`` the log
density of Beta(a, b) has curvature ``-(a+b) t(1-t)``; panels uniform in ``arcsin √t`` and ``1/√(max a+b)`` wide are
therefore one standard deviation of the sharpest component each, and eight Gauss-Legendre points a panel carry the whole
law to about 1e-9. A row's cdf at the panel edges is one matrix product; inside a panel its density is a polynomial.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special
import torch
from numpy.polynomial import legendre
from numpy.typing import NDArray
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl.errors import InputError
from snefy_ldl.mixture import Rows, SignedDirichletMixture

Array = NDArray[np.float64]

#: Below this many Beta evaluations a query goes straight to the incomplete Beta function.
DIRECT_EVALUATIONS = 2_000_000
#: The part of a component's law outside the tabulated range.
TAIL_MASS = 1e-13
#: Shares below e^-690 are not told apart from zero.
LOGIT_LIMIT = 690.0
POINTS = 8


class Marginal(Distribution):
    """Univariate law of one share (or of a sum of shares) on [0, 1].

    Made by ``dist.marginal(r)``; ``cdf(t) = Σ c_p I_t(a_p, b_p)``.

    Args:
        pair: the two-part law of (share, rest).

    Example:
        >>> from snefy_ldl.distribution import SnefySimplex
        >>> one = SnefySimplex(torch.tensor([[0.5, 1.0, 2.0]]).double(), torch.ones(1, 1).double(),
        ...                    torch.zeros(1, 1).double())       # Dirichlet(2, 3, 5), so the first share is Beta(2, 8)
        >>> share = one.marginal(0)
        >>> share.cdf(torch.tensor([0.2])).round(decimals=4), share.icdf(torch.tensor(0.5)).round(decimals=4)
        (tensor([0.5638]), tensor([0.1796], dtype=torch.float64))
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.unit_interval  # type: ignore[assignment]
    has_rsample = False

    def __init__(self, pair: SignedDirichletMixture, validate_args: bool | None = None) -> None:
        if pair.n_labels != 2:
            raise InputError(f"a marginal is made from a two-part law; got {pair.n_labels} parts.")
        self.pair = pair
        self._panels: _Panels | None = None
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

    def sample(  # type: ignore[override]
        self, sample_shape: Size = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        return self.pair.sample(sample_shape, generator)[..., 0]

    # -- cdf and quantiles -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1."""
        value = torch.as_tensor(value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        points = value.double().expand(shape).reshape(-1, self.pair._n_rows).T.cpu().numpy()  # (N, Q)
        if self._direct(points.shape[1]):
            with np.errstate(divide="ignore"):
                answer = self._cdf_direct(slice(None), scipy.special.logit(np.clip(points, 0.0, 1.0)))
        else:
            answer = self._in_row_chunks(points, lambda w, t: self._table().cdf(w, t))
        # the support's ends, exactly
        answer = np.where(points <= 0.0, 0.0, np.where(points >= 1.0, 1.0, answer))
        return self._back(answer, shape, value.dtype if value.is_floating_point() else torch.float64)

    @torch.no_grad()
    def icdf(self, value: Tensor) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies, exact to 1e-8 or better in probability."""
        value = torch.as_tensor(value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        levels = value.double().expand(shape).reshape(-1, self.pair._n_rows).T.cpu().numpy()  # (N, Q)
        answer = self._quantiles(levels)
        return self._back(answer, shape, self.pair._dtype)

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
        elif self._direct(levels.shape[1] * 12):
            answer = self._solve(inner)
        else:
            answer = self._in_row_chunks(inner, lambda w, q: self._table().icdf(w, q))
        return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))

    def _direct(self, queries: int) -> bool:
        evaluations = self.pair._n_rows * queries * self.pair.n_components
        return self.pair._offset is not None or evaluations <= DIRECT_EVALUATIONS

    def _back(self, answer: Array, shape: Size, dtype: torch.dtype) -> Tensor:
        device = self.pair._concentration.device
        return torch.as_tensor(np.ascontiguousarray(answer.T), device=device).reshape(shape).to(dtype)

    def _beta_parameters(self, rows: Rows) -> tuple[Array, Array]:
        """Both Beta parameters, (1 or b, P)."""
        alpha = self.pair._concentration.detach()[None]
        offset = self.pair._offset_rows(rows)
        if offset is not None:
            alpha = alpha + offset[:, None, :]
        first, second = alpha.cpu().numpy().transpose(2, 0, 1)
        return first, second

    def _in_row_chunks(self, queries: Array, answer: Any) -> Array:
        parts = [answer(self.pair._weights(rows).cpu().numpy(), queries[rows]) for rows in self.pair._chunks()]
        return np.concatenate(parts)

    def _cdf_direct(self, rows: Rows, z: Array) -> Array:
        """cdf on the logit scale, z (b, Q), by the incomplete Beta function of every component."""
        weights = self.pair._weights(rows).detach().cpu().numpy()
        a, b = self._beta_parameters(rows)
        answer = np.empty_like(z)
        for q in range(z.shape[1]):
            t, rest = scipy.special.expit(z[:, q, None]), scipy.special.expit(-z[:, q, None])
            # beyond one half, work from the other end: 1 - t keeps its digits there
            low = scipy.special.betainc(a, b, np.minimum(t, 0.5))
            high = 1.0 - scipy.special.betainc(b, a, np.minimum(rest, 0.5))
            answer[:, q] = (weights * np.where(t < 0.5, low, high)).sum(-1)
        return np.clip(answer, 0.0, 1.0)

    def _solve(self, levels: Array) -> Array:
        """Quantiles by bisection-guarded false position on the logit scale, (N, Q), a chunk of rows at a time."""
        parts = []
        for rows in self.pair._chunks(per_pair=2):
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

    def _table(self) -> _Panels:
        if self._panels is None:
            a, b = self._beta_parameters(slice(None))
            self._panels = _Panels(a[0], b[0])
        return self._panels


class _Panels:
    """Tabulated integrals of many Beta laws on shared panels of the logit scale."""

    def __init__(self, a: Array, b: Array) -> None:
        self.edges = self._make_edges(a, b)  # (G+1,)
        nodes, weights = legendre.leggauss(POINTS)
        self._nodes = nodes
        half = 0.5 * np.diff(self.edges)
        z = self.edges[:-1, None] + half[:, None] * (nodes + 1.0)  # (G, 8)
        log_t, log_rest = -np.logaddexp(0.0, -z).ravel(), -np.logaddexp(0.0, z).ravel()
        # density of logit(share): t^a (1-t)^b / B(a, b)
        powers = np.multiply.outer(a, log_t) + np.multiply.outer(b, log_rest)
        powers -= scipy.special.betaln(a, b)[:, None]
        self.density = np.exp(powers, out=powers).reshape(len(a), len(half), POINTS)  # (P, G, 8)
        mass = self.density @ weights * half
        edge_cdf = np.concatenate([np.zeros((len(a), 1)), np.cumsum(mass, axis=1)], axis=1)
        self.edge_cdf = edge_cdf / edge_cdf[:, -1:]  # (P, G+1)
        # values at the nodes -> Legendre coefficients -> coefficients of the integral from the left edge
        vandermonde = legendre.legvander(nodes, POINTS - 1)
        self._to_legendre = (vandermonde * weights[:, None]) * (np.arange(POINTS) + 0.5)  # (8 nodes, 8 coefficients)
        self._half = half

    @staticmethod
    def _make_edges(a: Array, b: Array) -> Array:
        tiny = 1e-300
        first = np.log(np.maximum(scipy.special.betaincinv(a, b, TAIL_MASS), tiny)).min()
        last = -np.log(np.maximum(scipy.special.betaincinv(b, a, TAIL_MASS), tiny)).min()
        first, last = max(first, -LOGIT_LIMIT), min(last, LOGIT_LIMIT)
        sharpest = float((a + b).max())
        n_angles = max(16, math.ceil(math.pi * math.sqrt(sharpest)))
        angles = np.linspace(0.0, math.pi, n_angles + 1)[1:-1]
        middle = scipy.special.logit(np.sin(angles / 2.0) ** 2)
        middle = middle[(middle > first) & (middle < last)]
        ends = np.concatenate([[first], middle, [last]])
        # long steps in the tails are cut: no panel is wider than 1 near the centre, or 15 % of |z| further out
        pieces = []
        for left, right in zip(ends[:-1], ends[1:]):
            near = 0.0 if left < 0.0 < right else min(abs(left), abs(right))
            count = max(1, math.ceil((right - left) / max(1.0, 0.15 * near)))
            pieces.append(np.linspace(left, right, count, endpoint=False))
        edges: Array = np.append(np.concatenate(pieces), last)
        return edges

    def _local(self, weights: Array, panel: NDArray[np.intp]) -> tuple[Array, Array]:
        """Legendre coefficients of a row's density on its panel, and its cdf at the left edge.

        Args:
            weights: ``c`` (b, P).
            panel: index (b,).
        """
        values = np.empty((len(weights), POINTS))
        left = np.empty(len(weights))
        order = np.argsort(panel, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(panel[order])) + 1):
            g = panel[group[0]]
            values[group] = weights[group] @ self.density[:, g]
            left[group] = weights[group] @ self.edge_cdf[:, g]
        coefficients = values @ self._to_legendre * self._half[panel, None]
        return coefficients, left

    def cdf(self, weights: Array, t: Array) -> Array:
        """cdf of each row at its own points t (b, Q)."""
        with np.errstate(divide="ignore"):
            z = np.clip(scipy.special.logit(np.clip(t, 0.0, 1.0)), self.edges[0], self.edges[-1])
        answer = np.empty_like(z)
        for q in range(z.shape[1]):
            panel = np.clip(np.searchsorted(self.edges, z[:, q], side="right") - 1, 0, len(self._half) - 1)
            coefficients, left = self._local(weights, panel)
            u = (z[:, q] - self.edges[panel]) / self._half[panel] - 1.0
            answer[:, q] = left + _integral(coefficients, u)
        return np.clip(answer, 0.0, 1.0)

    def icdf(self, weights: Array, levels: Array) -> Array:
        """Quantiles of each row at its own levels (b, Q)."""
        at_edges = weights @ self.edge_cdf  # (b, G+1)
        np.maximum.accumulate(at_edges, axis=1, out=at_edges)
        answer = np.empty_like(levels)
        for q in range(levels.shape[1]):
            level = levels[:, q]
            panel = np.clip((at_edges <= level[:, None]).sum(1) - 1, 0, len(self._half) - 1)
            coefficients, left = self._local(weights, panel)
            low, high = np.full(len(level), -1.0), np.full(len(level), 1.0)
            u = np.zeros(len(level))
            for _ in range(60):  # Newton, kept inside a shrinking bracket
                error = left + _integral(coefficients, u) - level
                low, high = np.where(error < 0, u, low), np.where(error < 0, high, u)
                slope = legendre.legval(u, coefficients.T, tensor=False)
                with np.errstate(divide="ignore", invalid="ignore"):
                    step = u - error / slope
                new = np.where((step > low) & (step < high), step, 0.5 * (low + high))
                done = np.abs(new - u).max() < 1e-13
                u = new
                if done:
                    break
            answer[:, q] = self.edges[panel] + self._half[panel] * (u + 1.0)
        shares: Array = scipy.special.expit(answer)
        return shares


def _integral(coefficients: Array, u: Array) -> Array:
    """``∫_{-1}^u`` of Legendre series, one row each: coefficients (b, 8), u (b,)."""
    integral = legendre.legint(coefficients, axis=1, lbnd=-1)
    value: Array = legendre.legval(u, integral.T, tensor=False)
    return value
