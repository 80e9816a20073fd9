"""The law of one label's share: a signed mixture of Betas with exact pdf, cdf and quantiles.

The components do not depend on the row, so their integrals are tabulated once. On the scale ``z = logit t`` the log
density of Beta(a, b) has curvature ``-(a+b) t(1-t)``; panels uniform in ``arcsin √t`` and ``1/√(max a+b)`` wide are
therefore one standard deviation of the sharpest component each, and eight Gauss-Legendre points a panel carry the whole
law to about 1e-9. A row's cdf at the panel edges is one matrix product; inside a panel its density is a polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
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
from snefy_ldl.special import CACHE_ELEMENTS, CHUNK_ELEMENTS

Array = NDArray[np.float64]

#: Below this many Beta evaluations a query goes straight to the incomplete Beta function.
DIRECT_EVALUATIONS = 200_000
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
    support = constraints.unit_interval
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
        points = value.double().expand(shape).reshape(-1, self.pair._n_rows).T.cpu().numpy()  # (N, Q)
        if self._direct(points.shape[1]):
            with np.errstate(divide="ignore"):
                z = scipy.special.logit(np.clip(points, 0.0, 1.0))
            answer = np.concatenate([self._cdf_direct(rows, z[rows]) for rows in self.pair._chunks()])
        else:
            answer = self._tabulated(points, _Panels.cdf)
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
        elif self._direct(levels.shape[1] * 60):  # steps of a root search
            answer = self._solve(inner)
        else:
            answer = self._tabulated(inner, _Panels.icdf)
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

    def _tabulated(self, queries: Array, answer: Callable[[_Panels, Array, Array], Array]) -> Array:
        """A question to the table for every row's own queries (N, Q), a chunk of rows at a time."""
        if self._panels is None:
            a, b = self._beta_parameters(slice(None))
            self._panels = _Panels(a[0], b[0])
        panels = self._panels
        step = max(1, CACHE_ELEMENTS // max(self.pair.n_components, len(panels.edges)))
        parts = []
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            weights = np.ascontiguousarray(self.pair._weights(rows).cpu().numpy().T)  # (P, b)
            parts.append(answer(panels, weights, queries[rows]))
        return np.concatenate(parts)

    def _cdf_direct(self, rows: Rows, z: Array) -> Array:
        """cdf on the logit scale, z (b, Q), by the incomplete Beta function of every component."""
        weights = self.pair._weights(rows).detach().cpu().numpy()
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


def equal_level_point(dist: SignedDirichletMixture) -> Tensor:
    """The point q (*batch, L) on the simplex with the smallest ``Σ_r E|ℓ_r - q_r|``.

    Without the simplex each part would be its median. With it, Lagrange's condition ``2 F_r(q_r) - 1 = λ`` is the same
    for all labels: the parts are quantiles of one level, the one at which they sum to one. (Medians divided by their
    sum are close to it, but not optimal.)
    """
    with torch.no_grad():
        marginals = [dist.marginal(r) for r in range(dist.n_labels)]
        low, high = np.zeros(dist._n_rows), np.ones(dist._n_rows)
        level, before = np.full(dist._n_rows, 0.5), np.full(dist._n_rows, np.nan)
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
        answer = torch.as_tensor(point / point.sum(-1, keepdims=True), device=dist._concentration.device)
    return dist._back(answer)


class _Panels:
    """Tabulated integrals of many Beta laws on shared panels of the logit scale.

    Args:
        a: first Beta parameters (P,).
        b: second ones (P,).
    """

    def __init__(self, a: Array, b: Array) -> None:
        self._a, self._b, self._log_beta = a, b, scipy.special.betaln(a, b)
        self.edges = self._make_edges(a, b)  # (G+1,)
        self._nodes, self._node_weights = legendre.leggauss(POINTS)
        self._half = 0.5 * np.diff(self.edges)
        n_panels = len(self._half)
        # values at the nodes -> Legendre coefficients
        vandermonde = legendre.legvander(self._nodes, POINTS - 1)
        self._to_legendre = (np.arange(POINTS) + 0.5)[:, None] * (vandermonde * self._node_weights[:, None]).T
        # one panel's densities are a block (8, P); all are kept where that is not too much
        self._blocks: Array | None = None
        if n_panels * POINTS * len(a) <= 4 * CHUNK_ELEMENTS:
            self._blocks = np.stack([self._make_block(g) for g in range(n_panels)])  # (G, 8, P)
        mass = np.stack([self._node_weights @ self._block(g) * self._half[g] for g in range(n_panels)])  # (G, P)
        # what lies outside the panels: nothing, unless a parameter is so small that shares underflow
        below = scipy.special.betainc(a, b, scipy.special.expit(self.edges[0]))
        above = scipy.special.betainc(b, a, scipy.special.expit(-self.edges[-1]))
        inside = np.concatenate([np.zeros((1, len(a))), np.cumsum(mass, axis=0)])
        self.edge_cdf = below + inside * ((1.0 - below - above) / inside[-1])  # (G+1, P)

    def _make_block(self, g: int) -> Array:
        z = self.edges[g] + self._half[g] * (self._nodes + 1.0)
        # density of logit(share): t^a (1-t)^b / B(a, b)
        log_t, log_rest = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        powers = np.multiply.outer(log_t, self._a) + np.multiply.outer(log_rest, self._b) - self._log_beta
        density: Array = np.exp(powers, out=powers)
        return density

    def _block(self, g: int) -> Array:
        return self._make_block(g) if self._blocks is None else self._blocks[g]

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
        # long steps in the tails are cut: no panel is wider than 1 near the centre, or 15 % of |z| further out
        steps = [0.0]
        while steps[-1] < LOGIT_LIMIT:
            steps.append(steps[-1] + max(1.0, 0.15 * steps[-1]))
        coarse = np.concatenate([-np.array(steps[:0:-1]), steps])
        coarse = coarse[(coarse > first) & (coarse < last)]
        edges = np.concatenate([[first], middle, coarse, [last]])
        edges.sort()
        distinct: Array = edges[np.diff(edges, prepend=-np.inf) > 1e-9]
        return distinct

    def _local(self, weights: Array, panel: NDArray[np.intp]) -> tuple[Array, Array]:
        """Each row on its own panel: Legendre coefficients of its density (8, b), and its cdf at the left edge (b,).

        Args:
            weights: ``c`` (P, b).
            panel: index (b,).
        """
        order = np.argsort(panel, kind="stable")
        ordered, sorted_panels = weights[:, order], panel[order]
        values, left = np.empty((POINTS, len(panel))), np.empty(len(panel))
        starts = np.flatnonzero(np.diff(sorted_panels, prepend=-1, append=len(self._half)))
        for start, stop in pairwise(starts):
            g = sorted_panels[start]
            values[:, order[start:stop]] = self._block(g) @ ordered[:, start:stop]
            left[order[start:stop]] = self.edge_cdf[g] @ ordered[:, start:stop]
        return self._to_legendre @ values * self._half[panel], left

    def cdf(self, weights: Array, t: Array) -> Array:
        """cdf of each row at its own points: weights (P, b), t (b, Q) -> (b, Q)."""
        with np.errstate(divide="ignore"):
            z = np.clip(scipy.special.logit(np.clip(t, 0.0, 1.0)), self.edges[0], self.edges[-1])
        answer = np.empty_like(z)
        for q in range(z.shape[1]):
            panel = np.clip(np.searchsorted(self.edges, z[:, q], side="right") - 1, 0, len(self._half) - 1)
            density, left = self._local(weights, panel)
            u = (z[:, q] - self.edges[panel]) / self._half[panel] - 1.0
            answer[:, q] = left + legendre.legval(u, legendre.legint(density, lbnd=-1), tensor=False)
        clipped: Array = np.clip(answer, 0.0, 1.0)
        return clipped

    def icdf(self, weights: Array, levels: Array) -> Array:
        """Quantiles of each row at its own levels: weights (P, b), levels (b, Q) -> (b, Q)."""
        at_edges = self.edge_cdf @ weights  # (G+1, b)
        np.maximum.accumulate(at_edges, axis=0, out=at_edges)
        answer = np.empty_like(levels)
        for q in range(levels.shape[1]):
            level = levels[:, q]
            panel = np.clip((at_edges <= level).sum(0) - 1, 0, len(self._half) - 1)
            density, left = self._local(weights, panel)
            u = _solve_panel(density, level - left)
            answer[:, q] = self.edges[panel] + self._half[panel] * (u + 1.0)
        shares: Array = scipy.special.expit(answer)
        return shares


def _solve_panel(density: Array, mass: Array) -> Array:
    """u in [-1, 1] with ``∫_{-1}^u density = mass``: Newton, kept inside a shrinking bracket.

    Args:
        density: Legendre coefficients (8, b).
        mass: (b,).
    """
    integral = legendre.legint(density, lbnd=-1)
    low, high = np.full(len(mass), -1.0), np.full(len(mass), 1.0)
    u = np.zeros(len(mass))
    for _ in range(60):
        error = legendre.legval(u, integral, tensor=False) - mass
        low, high = np.where(error < 0, u, low), np.where(error < 0, high, u)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = u - error / legendre.legval(u, density, tensor=False)
        new = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        settled = (np.abs(error) < 1e-14) | (np.abs(new - u) < 1e-12)
        u = np.where(settled, u, new)
        if settled.all():
            break
    return u
