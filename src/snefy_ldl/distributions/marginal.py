"""The distribution of one share, or of a sum of shares: density, cdf and quantiles, and the tables behind them.

The components of a mixture do not depend on the row, so their integrals are tabulated once. On the scale
``z = logit t`` the log density of Beta(a, b) has curvature ``-(a+b) t(1-t)``; panels uniform in ``arcsin √t`` and
``1/√(max a+b)`` wide are therefore one standard deviation of the sharpest component each, and eight Gauss-Legendre
points a panel carry the whole distribution to about 1e-9. A row's cdf at panel edges is a matrix product; inside a
panel its density is a polynomial.

- :class:`BetaTable` holds the components one by one: for listed weights and after votes.
- :class:`SquareTable` holds the neurons, whose products the components are: the share of label r under the pair (i, j)
  is ``Beta(a_i + a_j, b_i + b_j)`` with ``a_i = ½ + w_ir`` and b_i the sum of the other labels' halves, so that

      φ_i(z) = t^{a_i} (1-t)^{b_i} / √B(2 a_i, 2 b_i),     density of row x = Σ_ij ê_i ê_j N_ij φ_i(z) φ_j(z),
      ê = e √(π / Z),   N = M ∘ R / R',   R'_ij = B(a_i + a_j, b_i + b_j) / √(B(2 a_i, 2 b_i) B(2 a_j, 2 b_j)).

  With R <= R' (merging labels can only raise the overlap of two neurons) N never overflows, and n numbers a node take
  the place of n(n+1)/2. It answers five times as fast; quantiles are guessed from few curves and solved in a panel.
- Where there is little to ask, the incomplete Beta function of every component answers directly.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import torch
from numpy.polynomial import legendre
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._internal.limits import CACHE_ELEMENTS, CHUNK_ELEMENTS, FAMILY_NUMBERS, KEPT_TABLE_NUMBERS, KEPT_TABLES
from snefy_ldl._internal.special import newton, pair_index
from snefy_ldl._internal.threads import one_blas_thread
from snefy_ldl._internal.tolerances import (
    FACTOR_TAIL_MASS,
    LOGIT_LIMIT,
    NEGLIGIBLE_WEIGHT,
    SMALLEST_FACTOR,
    TAIL_MASS,
)
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import as_float
from snefy_ldl.distributions.weights import check_weights
from snefy_ldl.errors import InputError

#: Gauss-Legendre points a panel.
POINTS = 8
NODES, NODE_WEIGHTS = legendre.leggauss(POINTS)
#: Values at the nodes -> Legendre coefficients.
TO_LEGENDRE = (np.arange(POINTS) + 0.5)[:, None] * (legendre.legvander(NODES, POINTS - 1) * NODE_WEIGHTS[:, None]).T
#: Where many rows are asked about, a panel is looked for among every so many edges first.
STRIDE, FEW_QUESTIONS = 32, 64
#: Largest sum of concentrations whose tables are made: panels grow with its root.
SHARPEST = 4e9
#: Quantiles are first looked for among at most so many kept edges of a label ...
MOST_PLACES = 256
#: ... by cdfs made of at most so many curves, or as many as leave out this part of their squares.
MOST_CURVES, LEFT_OUT = 64, 1e-8
#: Up to this many quantiles at a time are worked out in float64 throughout.
EXACT_QUESTIONS = 4096
#: Rows whose weights cancel more than this are, too, however many they are.
LARGEST_CANCELLATION = 10.0
#: Rows worked on at a time.
ROWS = 4096
#: After so many panels that did not hold a quantile its bracket is halved.
GUESSES = 6
#: Pairs of neurons that bring less than this to every row are left out of guesses.
UNUSED = 1e-4
#: Panels of all labels are looked up at once: labels lie this far from each other, beyond every logit.
APART = 2000.0


class Marginal(Distribution):
    """The univariate distribution of one share (or of a sum of shares) on [0, 1]; made by ``dist.marginal(labels)``.

    Args:
        dist: the distribution of all shares.
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

    def __init__(self, dist: Any, labels: list[int], validate_args: bool | None = None) -> None:
        self.dist, self.labels = dist, labels
        super().__init__(dist.batch_shape, torch.Size(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """Expected share (*batch,)."""
        return self.dist.mean[..., self.labels].sum(-1)

    @property
    def variance(self) -> Tensor:
        """Variance of the share (*batch,)."""
        if len(self.labels) == 1:
            return self.dist.variance[..., self.labels[0]]
        block: Tensor = self.dist.covariance_matrix[..., self.labels, :][..., self.labels]
        return block.sum((-1, -2)).clamp_min(0.0)

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> Marginal:
        """The same distribution with its batch broadcast to a larger shape."""
        return Marginal(self.dist.expand(batch_shape), self.labels, self._validate_args)

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        return self.dist.sample(sample_shape, generator)[..., self.labels].sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at shares value (..., *batch); of an atom at 0 or 1, the logarithm of its probability."""
        value = _as_tensor(value)
        if self._validate_args:
            self._validate_sample(value)
        dist, shape = self.dist.matched(value.shape)
        if not shape.numel():
            return value.new_empty(shape).to(self.dist.dtype)
        points = value.expand(shape).reshape(-1, len(dist))
        return dist.rows.share_log_prob(self.labels, points).reshape(shape).to(dist.dtype)

    @torch.no_grad()
    def cdf(self, value: Tensor) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1.

        Args:
            value: shares between 0 and 1 (..., *batch).

        Returns:
            Probabilities (..., *batch).
        """
        value = _as_tensor(value)
        dist, shape = self.dist.matched(value.shape)
        if not shape.numel():
            return value.new_empty(shape).to(self.dist.dtype)
        points = value.double().expand(shape).reshape(-1, len(dist)).T.cpu().numpy()  # (N, Q)
        at_zero, below_one = (end[:, None] for end in dist.rows.ends(self.labels))
        inside = np.where((points <= 0.0) | (points >= 1.0), 0.5, points)  # an integral takes longest at the ends
        answer = np.clip(dist.rows.share_cdf(self.labels, inside), at_zero, below_one)
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
        dist, shape = self.dist.matched(value.shape)
        if not shape.numel():
            return value.new_empty(shape).to(self.dist.dtype)
        levels = value.double().expand(shape).reshape(-1, len(dist)).T.cpu().numpy()  # (N, Q)
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        answer = dist.rows.share_quantiles(self.labels, np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS))
        answer = np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))
        return self._back(answer, shape, self.dist.dtype)

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

    def _back(self, answer: Array, shape: Size, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(answer.T), device=self.dist.device).reshape(shape).to(dtype)


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


# -- one panel ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Located:
    """Where some quantiles lie: a panel each, and what the row's distribution is in it.

    Args:
        left: left edge of the panel on the logit scale (Q,).
        half: half its width (Q,).
        mass: probability wanted between that edge and the quantile (Q,).
        values: the row's density of logit(share) at the panel's nodes (Q, 8).
    """

    left: Array
    half: Array
    mass: Array
    values: Array

    def logits(self) -> Array:
        """The quantiles on the logit scale (Q,)."""
        density = TO_LEGENDRE @ self.values.T * self.half
        return self.left + self.half * (_solve_panel(density, self.mass) + 1.0)

    def solve(self) -> Array:
        """The quantiles as shares (Q,)."""
        return scipy.special.expit(self.logits())


def _solve_panel(density: Array, mass: Array) -> Array:
    """u in [-1, 1] with ``∫_{-1}^u density = mass``: Newton, kept inside a shrinking bracket.

    Args:
        density: Legendre coefficients (8, Q).
        mass: (Q,).
    """
    integral = legendre.legint(density, lbnd=-1)
    total = integral.sum(0)  # every Legendre polynomial is one at the right end
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.clip(np.where(total > 0.0, 2.0 * mass / total - 1.0, 0.0), -0.999, 0.999)

    def rising(u: Array, rows: Index) -> tuple[Any, Any]:
        value, slope = (legendre.legval(u, part[:, rows], tensor=False) for part in (integral, density))
        return value, slope

    return newton(rising, mass, u, np.full(len(mass), -1.0), np.full(len(mass), 1.0), 1e-14, 1e-12)


# -- tables by components ----------------------------------------------------------------------------------------------


class BetaTable:
    """Integrals of P Beta distributions of one share on shared panels of the logit scale.

    Args:
        a: first parameter of each distribution (P,).
        b: second parameter of each distribution (P,).

    Attributes:
        edges: panel edges on the logit scale (G+1,).
        edge_cdf: probability below each edge under each component (P, G+1).
    """

    def __init__(self, a: Array, b: Array) -> None:
        self._a, self._b, self._log_beta = a, b, scipy.special.betaln(a, b)
        tiny = np.finfo(np.float64).tiny
        first = np.log(np.maximum(scipy.special.betaincinv(a, b, TAIL_MASS), tiny)).min()
        last = -np.log(np.maximum(scipy.special.betaincinv(b, a, TAIL_MASS), tiny)).min()
        self.edges = make_edges(first, last, float((a + b).max()))
        self._half = 0.5 * np.diff(self.edges)
        shape = len(self._half), POINTS, len(a)
        self._blocks: Array | None = None
        blocks = np.empty(shape) if math.prod(shape) <= KEPT_TABLE_NUMBERS else None
        mass = np.empty((len(self._half), len(a)))
        for g, half in enumerate(self._half):
            block = self._block(g)
            mass[g] = NODE_WEIGHTS @ block * half
            if blocks is not None:
                blocks[g] = block
        self._blocks = blocks
        total = np.concatenate([np.zeros((1, len(a))), np.cumsum(mass, axis=0)])
        # what lies outside the panels: nothing, unless a parameter is so small that shares underflow
        below = scipy.special.betainc(a, b, scipy.special.expit(self.edges[0]))
        above = scipy.special.betainc(b, a, scipy.special.expit(-self.edges[-1]))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(total[-1] > 0.0, (1.0 - below - above) / total[-1], 0.0)
        self.edge_cdf = np.ascontiguousarray((below + total * ratio).T)

    @cached_property
    def n_numbers(self) -> int:
        """How much the table holds."""
        return int(self.edge_cdf.size) + (0 if self._blocks is None else int(self._blocks.size))

    def _block(self, g: int) -> Array:
        """Densities of logit(share), ``t^a (1-t)^b / B(a, b)``, at the nodes of a panel: (8, P)."""
        if self._blocks is not None:
            return self._blocks[g]
        z = self.edges[g] + self._half[g] * (NODES + 1.0)
        log_t, log_rest = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        powers = np.multiply.outer(log_t, self._a)
        powers += np.multiply.outer(log_rest, self._b)
        powers -= self._log_beta
        return np.exp(powers, out=powers)

    def _values(self, weights: Array, keep: Index | slice, panel: Index) -> Array:
        """Each row's density at the nodes of its own panels: weights (b, P'), panel (b, Q) -> (b, Q, 8)."""
        if self._blocks is not None and panel.size <= 16:  # few rows: one product, no grouping
            blocks = self._blocks[panel] if isinstance(keep, slice) else self._blocks[panel][..., keep]
            return np.einsum("bqkp,bp->bqk", blocks, weights)
        values = np.empty((*panel.shape, POINTS))
        for q in range(panel.shape[1]):
            for g, rows in _groups(panel[:, q]):
                values[rows, q] = weights[rows] @ self._block(g)[:, keep].T
        return values

    def cdf(self, weights: Array, t: Array, keep: Index | slice = slice(None)) -> Array:
        """cdf of each row at its own points: weights (b, P') of the components ``keep`` (P',), t (b, Q) -> (b, Q)."""
        with np.errstate(divide="ignore"):
            return self.cdf_at_logits(weights, scipy.special.logit(np.clip(t, 0.0, 1.0)), keep)

    def cdf_at_logits(self, weights: Array, z: Array, keep: Index | slice = slice(None)) -> Array:
        """The same with points on the logit scale, z (b, Q)."""
        z = np.clip(z, self.edges[0], self.edges[-1])
        panel = np.clip(np.searchsorted(self.edges, z, side="right") - 1, 0, len(self._half) - 1)
        values = self._values(weights, keep, panel)
        left = np.einsum("bqp,bp->bq", self.edge_cdf.T[panel][..., keep], weights) if panel.size <= 16 else None
        if left is None:
            left = np.empty(panel.shape)
            for q in range(panel.shape[1]):
                for g, rows in _groups(panel[:, q]):
                    left[rows, q] = weights[rows] @ self.edge_cdf[keep, g]
        half = self._half[panel]
        density = (TO_LEGENDRE @ values.reshape(-1, POINTS).T) * half.ravel()
        u = (z - self.edges[panel]) / half - 1.0
        inside = legendre.legval(u.ravel(), legendre.legint(density, lbnd=-1), tensor=False).reshape(u.shape)
        return np.clip(left + inside, 0.0, 1.0)

    def locate(self, weights: Array, levels: Array, keep: Index | slice = slice(None)) -> Located:
        """Where each row's quantiles lie: weights (b, P') of the components ``keep``, levels (b, Q)."""
        if levels.size > FEW_QUESTIONS:
            return self._locate_many(weights, levels, keep)
        rising = weights @ self.edge_cdf[keep]  # (b, G+1)
        steady = np.maximum.accumulate(rising, axis=1)
        panel = np.clip((steady[:, None] <= levels[..., None]).sum(-1) - 1, 0, len(self._half) - 1)
        left = np.take_along_axis(rising, panel, 1)
        values = self._values(weights, keep, panel)
        flat = panel.ravel()
        return Located(self.edges[flat], self._half[flat], (levels - left).ravel(), values.reshape(-1, POINTS))

    def _locate_many(self, weights: Array, levels: Array, keep: Index | slice) -> Located:
        """The same for many rows: among every so many edges first, then among those between two of them."""
        edge_cdf = np.ascontiguousarray(self.edge_cdf[keep].T)  # (G+1, P')
        coarse = np.append(np.arange(0, len(self._half), STRIDE), len(self._half))
        at_coarse = np.maximum.accumulate(weights @ edge_cdf[coarse].T, axis=1)
        panel, left = np.empty(levels.shape, dtype=np.intp), np.empty(levels.shape)
        values = np.empty((*levels.shape, POINTS))
        for q in range(levels.shape[1]):
            level = levels[:, q]
            span = np.clip((at_coarse <= level[:, None]).sum(1) - 1, 0, len(coarse) - 2)
            for c, rows in _groups(span):
                start, stop = coarse[c], coarse[c + 1]
                part = weights[rows]
                rising = part @ edge_cdf[start : stop + 1].T
                steady = np.maximum.accumulate(rising, axis=1)
                inside = np.clip((steady <= level[rows, None]).sum(1) - 1, 0, stop - start - 1)
                panel[rows, q], left[rows, q] = start + inside, rising[np.arange(len(rows)), inside]
                for g, places in _groups(inside):
                    values[rows[places], q] = part[places] @ self._block(start + g)[:, keep].T
        flat = panel.ravel()
        return Located(self.edges[flat], self._half[flat], (levels - left).ravel(), values.reshape(-1, POINTS))

    def icdf(self, weights: Array, levels: Array, keep: Index | slice = slice(None)) -> Array:
        """Quantiles of each row at its own levels: weights (b, P') of the components ``keep``, levels (b, Q)."""
        return self.locate(weights, levels, keep).solve().reshape(levels.shape)


def make_edges(first: float, last: float, sharpest: float) -> Array:
    """Panel edges between two logits for distributions whose concentrations reach ``sharpest``."""
    if sharpest > SHARPEST:
        raise InputError(
            f"a component's concentrations sum to {sharpest:.2g}, too sharp for quantiles and cdfs, which take sums "
            f"up to {SHARPEST:g}."
        )
    first, last = max(first, -LOGIT_LIMIT), min(last, LOGIT_LIMIT)
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
    return edges[np.diff(edges, prepend=-np.inf) > 1e-9]


def _groups(key: Index) -> Iterator[tuple[int, Index]]:
    """Each distinct value of key, and the rows that have it."""
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    for value, rows in zip(values, np.split(order, starts[1:])):
        yield int(value), rows


class TableCache:
    """Tables kept for the next question about the same components; many threads may ask at once."""

    def __init__(self) -> None:
        self._tables: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, make: Callable[[], Any], *parts: Any) -> Any:
        """The table of these arrays and numbers, made if it is not there.

        Args:
            make: makes it.
            parts: arrays, or anything with a ``repr``, that the table depends on.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        key = digest.digest()
        with self._lock:
            table = self._tables.get(key)
            if table is not None:
                self._tables.move_to_end(key)
                return table
        table = make()  # outside the lock: others go on meanwhile, and at worst the same table is made twice
        with self._lock:
            table = self._tables.setdefault(key, table)
            self._tables.move_to_end(key)
            while len(self._tables) > 1 and self._too_much():
                self._tables.popitem(last=False)
        return table

    def _too_much(self) -> bool:
        total = sum(table.n_numbers for table in self._tables.values())
        return len(self._tables) > KEPT_TABLES or total > 16 * KEPT_TABLE_NUMBERS


_cache = TableCache()


def beta_table(a: Array, b: Array) -> BetaTable:
    """The table of some Beta distributions, kept for the next question about them."""
    return _cache.get(lambda: BetaTable(a, b), a, b)


def used_components(weights: Array) -> Index | slice:
    """Components that at least one row uses, or all of them where that is most."""
    used = np.abs(weights).max(axis=0, initial=0.0) > NEGLIGIBLE_WEIGHT
    return slice(None) if used.mean() > 0.75 else np.flatnonzero(used)


def row_weights(dist: Any, rows: slice | Index) -> tuple[Array, Index | slice]:
    """Weights of some rows (b, P') without the components that hardly any of them uses, and which those are (P',)."""
    weights = dist.weights(rows).detach().cpu().numpy()
    check_weights(weights, (rows.start or 0) if isinstance(rows, slice) else 0)
    keep = used_components(weights)
    return np.ascontiguousarray(weights[:, keep]), keep


def row_blocks(dist: Any) -> Iterator[slice]:
    """Rows a table answers at a time."""
    step = max(1, 2 * CHUNK_ELEMENTS // dist.n_components)
    for start in range(0, len(dist), step):
        yield slice(start, min(start + step, len(dist)))


def label_quantiles(dist: Any, levels: Array) -> Array:
    """Quantiles of every label's share of a mixture of Dirichlets, with or without votes: levels (N, L, A) -> same.

    After votes a label's distribution is ``Σ_p c_p Beta(α_p + k, A_p - α_p + K - k)``: rows with k votes for the label
    out of K share their components, and a table. Levels for the first labels alone, (N, L', A), serve too.
    """
    alpha = dist.concentration.detach().cpu().numpy()
    total = alpha.sum(1)
    n_asked = levels.shape[1]
    if dist.n_components == 1:  # one Beta a row and label
        check_weights(dist.weights())
        seen = 0.0 if dist.offset is None else dist.offset.detach().cpu().numpy()
        first = (alpha + seen)[:, :n_asked, None]
        rest = (alpha + seen).sum(1)[:, None, None] - first
        return scipy.special.betaincinv(first, rest, levels)
    inner = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS)
    out = np.empty(levels.shape)
    for block in row_blocks(dist):
        weights, used = row_weights(dist, block)
        for r in range(n_asked):
            if dist.offset is None:
                out[block, r] = beta_table(alpha[:, r], total - alpha[:, r]).icdf(weights, inner[block, r], used)
                continue
            offset = dist.offset[block].detach().cpu().numpy()
            pairs, which = np.unique(np.stack([offset[:, r], offset.sum(1)], 1), axis=0, return_inverse=True)
            for g, (hits, votes) in enumerate(pairs):
                rows = np.flatnonzero(which.reshape(-1) == g)
                part = weights[rows]
                keep = np.flatnonzero(np.abs(part).max(axis=0) > NEGLIGIBLE_WEIGHT)
                a = alpha[used][keep, r] + hits
                table = BetaTable(a, total[used][keep] + votes - a)
                out[block.start + rows, r] = table.icdf(part[:, keep], inner[block][rows, r])
    return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, out))


# -- little to ask: straight to the incomplete Beta function -----------------------------------------------------------


def direct_cdf(a: Array, b: Array, weights: Array, z: Array) -> Array:
    """``Σ_p w_p I_t(a_p, b_p)`` at each row's own z = logit t: weights (b, P), parameters (P,) or (b, P) -> (b,)."""
    # many components have next to no weight, and the function is slow
    row, component = np.nonzero(np.abs(weights) > NEGLIGIBLE_WEIGHT)
    first, second = (part[row, component] if part.ndim == 2 else part[component] for part in (a, b))
    t, rest = scipy.special.expit(z)[row], scipy.special.expit(-z)[row]
    low = t < 0.5  # beyond one half, work from the other end: 1 - t keeps its digits there
    tail = scipy.special.betainc(np.where(low, first, second), np.where(low, second, first), np.minimum(t, rest))
    terms = weights[row, component] * np.where(low, tail, 1.0 - tail)
    return np.clip(np.bincount(row, terms, minlength=len(z)), 0.0, 1.0)


def direct_quantile(a: Array, b: Array, weights: Array, levels: Array) -> Array:
    """z at which the cdf reaches each row's own level (b,): Newton, kept inside a shrinking bracket."""
    z: Array = scipy.special.logit(np.clip((weights * (a / (a + b))).sum(1), TAIL_MASS, 1.0 - TAIL_MASS))
    limit = np.full(len(z), LOGIT_LIMIT)
    rounding = 1e-15 * np.abs(weights).sum(1)  # of the cdf; below it steps have no meaning

    def rising(z: Array, rows: Index) -> tuple[Array, Array]:
        first, second = (part[rows] if part.ndim == 2 else part for part in (a, b))
        slope = (weights[rows] * np.exp(log_beta_density(first, second, z))).sum(1)
        return direct_cdf(first, second, weights[rows], z), slope

    return newton(rising, levels, z, -limit, limit, rounding)


def log_beta_density(a: Array, b: Array, z: Array) -> Array:
    """Log density of logit(t) under every Beta, with parameters (P,) or (b, P): z (b,) -> (b, P)."""
    log_t, log_rest = scipy.special.log_expit(z)[:, None], scipy.special.log_expit(-z)[:, None]
    return log_t * a + log_rest * b - scipy.special.betaln(a, b)


# -- tables by neurons -------------------------------------------------------------------------------------------------


class Curves(NamedTuple):
    """Few curves a label whose sums are nearly the cdfs of all rows.

    Attributes:
        places: some kept edges of each label, on the logit scale, (C,) each.
        shapes: its k curves there, (C, k) each.
        weights: how much of each curve every pair brings, labels one after another (Σ k, K P).
    """

    places: tuple[Array, ...]
    shapes: tuple[Array, ...]
    weights: Array


@dataclass(frozen=True)
class SquareTable:
    """Factors and integrals of some labels' shares, their panels one after another.

    Attributes:
        first_panel: number of each label's first panel (L' + 1,), the number of all panels at its end; each is even.
        first_edge: number of each label's first kept edge (L' + 1,).
        left: left edge of each panel on the logit scale (G,).
        half: half its width (G,).
        edge: the kept edges on the logit scale (E,).
        below: ``M ∘ R`` times the probability below each kept edge, over the pairs i <= j of every member,
            off-diagonal ones counted twice (E, K P).
        factors: ``φ`` at the eight nodes of every panel (K, G, 8, n).
        links: ``N`` of every label (L', K, n, n).
    """

    first_panel: Index
    first_edge: Index
    left: Array
    half: Array
    edge: Array
    below: Array
    factors: Array
    links: Array

    @classmethod
    def of(cls, family: Any, labels: range) -> SquareTable:
        """The table of some labels of a family."""
        parts = [_one_label(family, r) for r in labels]
        panels = np.cumsum([0, *(len(part.half) for part in parts)])
        edges = np.cumsum([0, *(len(part.edge) for part in parts)])
        names = ("left", "half", "edge", "below", "links")
        left, half, edge, below, links = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        factors = np.concatenate([part.factors for part in parts], axis=1)
        return cls(panels, edges, left, half, edge, below, factors, links)

    @property
    def n_numbers(self) -> int:
        """How much the table holds."""
        return int(self.below.size + 2 * self.factors.size)

    @cached_property
    def curves(self) -> Curves:
        """What the integrals have in common, to guess by."""
        parts = [_curves(self.edge[a:b], self.below[a:b]) for a, b in pairwise(self.first_edge)]
        places, shapes, weights = zip(*parts)
        return Curves(places, shapes, np.concatenate(weights))

    @cached_property
    def quick_factors(self) -> Array:
        """The factors in float32, without those that are slow denormal numbers when squared."""
        factors: Array = self.factors.astype(np.float32)
        factors[factors < SMALLEST_FACTOR] = 0.0
        return factors

    @cached_property
    def quick_links(self) -> Array:
        """The links in float32."""
        return self.links.astype(np.float32)


def _curves(edge: Array, below: Array) -> tuple[Array, Array, Array]:
    """The leading directions of the integrals below (E, K P) at edges (E,), all in float32."""
    stride = math.ceil(len(edge) / MOST_PLACES)
    kept = np.unique(np.append(np.arange(0, len(edge), stride), len(edge) - 1))
    integrals = below[kept].astype(np.float32)
    squares, directions = np.linalg.eigh((integrals @ integrals.T).astype(np.float64))
    left_out = np.cumsum(squares) <= LEFT_OUT * squares.sum()
    first = max(left_out.sum(), len(kept) - MOST_CURVES)
    shapes: Array = np.ascontiguousarray(directions[:, first:], dtype=np.float32)
    return edge[kept], shapes, shapes.T @ integrals


def _one_label(family: Any, label: int) -> SquareTable:
    halves = family.exponents.detach().double().cpu().numpy() + 0.5  # (K, n, L)
    a = np.ascontiguousarray(halves[..., label])
    b = np.delete(halves, label, axis=2).sum(-1)
    n = a.shape[1]
    i, j = (index.cpu().numpy() for index in pair_index(n))
    root = 0.5 * scipy.special.betaln(2.0 * a, 2.0 * b)  # (K, n)
    log_overlap = scipy.special.betaln(a[:, i] + a[:, j], b[:, i] + b[:, j]) - root[:, i] - root[:, j]  # (K, P)
    edges = _edges(a, b)
    left, half = edges[:-1], 0.5 * np.diff(edges)
    z = left[:, None] + half[:, None] * (NODES + 1.0)  # (G, 8)
    log_t, log_rest = (side.reshape(-1, 1) for side in (-np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)))
    factors = np.empty((len(a), len(left), len(NODES), n))
    log_kernel = family.log_kernel.detach().cpu().numpy()
    gram = family.half_gram().detach().cpu().numpy()
    below, links = np.empty((len(edges[::2]), len(a), len(i))), np.empty((1, len(a), n, n))
    outside = _outside(a, b, i, j, edges)
    for k in range(len(a)):
        powers = log_t * a[k]
        powers += log_rest * b[k]
        powers -= root[k]
        factors[k] = np.exp(powers, out=powers).reshape(factors.shape[1:])
        link, overlap = gram[k] * np.exp(log_kernel[k] - log_overlap[k]), np.exp(log_overlap[k])
        integral = below[:, k]
        _integrate(factors[k], half, (i, j), integral)
        # what the panels hold in all is known: rounding in their exponents goes with the ratio
        inside = overlap if outside is None else overlap * (1.0 - outside[0][k] - outside[1][k])
        with np.errstate(divide="ignore", invalid="ignore"):
            link *= np.where(integral[-1] > 0.0, inside / integral[-1], 1.0)
        integral *= link * np.where(i == j, 1.0, 2.0)
        if outside is not None:
            integral += gram[k] * np.exp(log_kernel[k]) * outside[0][k] * np.where(i == j, 1.0, 2.0)
        links[0, k, i, j] = links[0, k, j, i] = link
    ends = np.array([0, len(left)]), np.array([0, len(below)])
    return SquareTable(*ends, left, half, edges[::2], below.reshape(len(below), -1), factors, links)


def _edges(a: Array, b: Array) -> Array:
    """Panel edges, an even number of panels.

    What neurons i and j have outside together is no more than the geometric mean of what each has with itself
    (Cauchy-Schwarz), so the neurons' own distributions say how far to go.
    """
    first, last = _log_tail(2.0 * a, 2.0 * b).min(), -_log_tail(2.0 * b, 2.0 * a).min()
    edges = make_edges(first, last, 2.0 * float((a + b).max()))
    if len(edges) % 2 == 0:
        edges = np.insert(edges, 1, 0.5 * (edges[0] + edges[1]))
    return edges


def _log_tail(a: Array, b: Array) -> Array:
    """Logarithm of the share below which Beta(a, b) has no more than a negligible part."""
    share = scipy.special.betaincinv(a, b, FACTOR_TAIL_MASS)
    good = share > np.finfo(np.float64).tiny  # neither underflow nor a search that gave up, which is not a number
    leading = (math.log(FACTOR_TAIL_MASS) + np.log(a) + scipy.special.betaln(a, b)) / a  # of t^a / (a B(a, b))
    return np.where(good, np.log(np.where(good, share, 1.0)), np.maximum(leading, -LOGIT_LIMIT))


def _outside(a: Array, b: Array, i: Index, j: Index, edges: Array) -> tuple[Array, Array] | None:
    """Probability below and above all panels under every pair (K, P); None where there is none to speak of.

    Only parameters so small that shares underflow leave any.
    """
    if edges[0] > -LOGIT_LIMIT and edges[-1] < LOGIT_LIMIT:
        return None
    first, second = a[:, i] + a[:, j], b[:, i] + b[:, j]
    low = scipy.special.betainc(first, second, scipy.special.expit(edges[0]))
    high = scipy.special.betainc(second, first, scipy.special.expit(-edges[-1]))
    return low, high


def _integrate(factors: Array, half: Array, pairs: tuple[Index, Index], out: Array) -> None:
    """``∫ φ_i φ_j`` up to every second edge: factors (G, 8, n), half widths (G,) -> out (G/2 + 1, P)."""
    n = factors.shape[2]
    root = np.sqrt(half[:, None] * NODE_WEIGHTS)[..., None]
    upper = pairs[0] * n + pairs[1]
    out[0] = 0.0
    step = max(1, CACHE_ELEMENTS // (n * n))
    for start in range(0, len(out) - 1, step):
        stop = min(start + step, len(out) - 1)
        scaled = (factors[2 * start : 2 * stop] * root[2 * start : 2 * stop]).reshape(stop - start, -1, n)
        squares = np.matmul(scaled.transpose(0, 2, 1), scaled).reshape(stop - start, n * n)
        part = squares[:, upper]
        part[0] += out[start]
        np.cumsum(part, axis=0, out=out[start + 1 : stop + 1])


@torch.no_grad()
def square_quantiles(dist: Any, levels: Array) -> Array:
    """Quantiles of the first shares of a squared distribution without votes.

    Args:
        dist: a SnefySimplex without votes and with more than one component.
        levels: between 0 and 1, each row's own (N, L', A), for the first L' labels.

    Returns:
        (N, L', A).

    Raises:
        InputError: the weights of a row are invalid.
    """
    inner, out = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS), np.empty(levels.shape)
    for start in range(0, len(dist), ROWS):
        rows = slice(start, min(start + ROWS, len(dist)))
        features, sizes = (part.cpu().numpy() for part in dist.unit_features(rows))
        few = inner[rows].size <= EXACT_QUESTIONS
        exact = np.full(len(sizes), True) if few else sizes > LARGEST_CANCELLATION
        for labels in _label_blocks(dist.family, levels.shape[1]):
            table = dist.family.keep(f"shares {labels}", lambda part=labels: SquareTable.of(dist.family, part))
            wanted = inner[rows, labels.start : labels.stop]
            with one_blas_thread():
                for kind in np.unique(exact):  # rows that cancel are few, and must not slow the others down
                    part = np.flatnonzero(exact == kind)
                    answer = _Search(table, features[:, part], wanted[part], bool(kind)).solve()
                    out[start + part, labels.start : labels.stop] = answer
    return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, out))


def _label_blocks(family: Any, n_labels: int) -> Iterator[range]:
    """Labels whose tables are made together: all where they can be kept, else one at a time."""
    sharpest = float(family.total.max())
    panels = math.pi * math.sqrt(sharpest) + 64.0
    per_label = panels * (len(family.total) / 2 + family.n_members * family.n_neurons * POINTS)
    if per_label * n_labels <= FAMILY_NUMBERS:
        yield range(n_labels)
        return
    for r in range(n_labels):
        yield range(r, r + 1)


class _Search:
    """The quantiles of some rows and labels, in order (label, row, level).

    Args:
        table: of the labels.
        features: ``ê`` (K, b, n).
        levels: (b, L', A).
        exact: whether densities are summed up in float64.
    """

    def __init__(self, table: SquareTable, features: Array, levels: Array, exact: bool) -> None:
        self._table, self._features, self._exact = table, features, exact
        n_rows, n_labels, n_levels = levels.shape
        self._shape = (n_labels, n_rows, n_levels)
        wanted = np.ascontiguousarray(levels.transpose(1, 0, 2))
        self._level, self._score = wanted.ravel(), scipy.special.ndtri(wanted).ravel()
        self._label = np.repeat(np.arange(n_labels), n_rows * n_levels)
        self._row = np.tile(np.repeat(np.arange(n_rows), n_levels), n_labels)
        apart = np.repeat(np.arange(n_labels) * APART, np.diff(table.first_panel))
        self._keys = table.left + apart
        few = len(self._level) * table.below.shape[1] <= 4 * CACHE_ELEMENTS
        self._products = self._pair_products() if few else None
        self._quick = None if exact else features.astype(np.float32)

    def solve(self) -> Array:
        """The quantiles (b, L', A)."""
        table, label = self._table, self._label
        low, high = table.first_panel[label], table.first_panel[label + 1] - 1
        ask = np.arange(len(label))
        guesses, slopes = self._guess()
        panel = self._panel(ask, guesses, low, high)
        edge = self._edge(ask, panel)
        chance = self._below(ask, edge)
        # the exact cdf at one edge moves the guess, on the scale on which a normal distribution's cdf is a straight
        # line
        at = scipy.special.ndtri(np.clip(chance, 1e-12, 1.0 - 1e-12))
        panel = self._panel(ask, table.edge[edge] + slopes * (self._score - at), low, high)
        other = self._edge(ask, panel)
        moved = np.flatnonzero(other != edge)
        chance[moved] = self._below(moved, other[moved])
        values, mass = np.empty((len(ask), POINTS)), np.empty(len(ask))
        panels = panel.copy()
        for step in range(200):
            density = self._density(ask, panel)
            total = density @ NODE_WEIGHTS * table.half[panel]
            from_left = (panel - table.first_panel[label[ask]]) % 2 == 0  # else the cdf is that at the right edge
            inside = np.where(from_left, self._level[ask] - chance, total - (chance - self._level[ask]))
            values[ask], mass[ask], panels[ask] = density, inside, panel
            before, after = (inside < 0.0) & (panel > low), (inside > total) & (panel < high)
            again = np.flatnonzero(before | after)
            if not len(again):
                break
            low, high = np.where(after, panel + 1, low)[again], np.where(before, panel - 1, high)[again]
            panel, before, density = panel[again], before[again], density[again]
            ask = ask[again]
            # Newton's step from the panel's nearer edge, on the scale on which a normal distribution's cdf is a
            # straight line
            chance = self._level[ask] - np.where(before, inside[again], inside[again] - total[again])
            at = scipy.special.ndtri(np.clip(chance, TAIL_MASS, 1.0 - TAIL_MASS))
            height = np.exp(-0.5 * at**2) / math.sqrt(2.0 * math.pi)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                z = (self._score[ask] - at) * height / np.where(before, density[:, 0], density[:, -1])
            z += table.left[panel] + np.where(before, 0.0, 2.0 * table.half[panel])
            middle = (low + high) // 2 if step >= GUESSES else np.where(before, high, low)
            panel = np.where(np.isfinite(z) & (step < GUESSES), self._panel(ask, np.nan_to_num(z), low, high), middle)
            crossed = low > high  # two panels that each say the other: rounding at the edge between them
            if crossed.any():
                keep = ~crossed
                ask, panel, low, high = ask[keep], panel[keep], low[keep], high[keep]
            chance = self._below(ask, self._edge(ask, panel))
        place = Located(table.left[panels], table.half[panels], mass, values)
        return place.solve().reshape(self._shape).transpose(1, 0, 2)

    def _guess(self) -> tuple[Array, Array]:
        """Where the quantiles may lie on the logit scale, and how fast that changes with the normal score, (Q,) each.

        The cdf at kept edges is a sum of a few curves whose heights come from one float32 product for all rows.
        """
        table, (n_labels, n_rows, n_levels) = self._table, self._shape
        curves = table.curves
        heights = self._curve_heights()
        guesses, slopes = np.empty((n_labels, n_rows, n_levels)), np.empty((n_labels, n_rows, n_levels))
        level, score = self._level.reshape(self._shape), self._score.reshape(self._shape)
        rows, start = np.arange(n_rows), 0
        for r, (z, shape) in enumerate(zip(curves.places, curves.shapes)):
            cdf = shape @ heights[start : start + shape.shape[1]]
            np.maximum.accumulate(cdf, out=cdf)  # but for what is left out it rises
            start += shape.shape[1]
            for q in range(n_levels):
                at = np.clip((cdf <= level[r, :, q]).sum(0) - 1, 0, len(z) - 2)
                low, high = (scipy.special.ndtri(np.clip(cdf[side, rows], 1e-7, 1.0 - 1e-7)) for side in (at, at + 1))
                rise = np.maximum(high - low, 1e-3)
                slopes[r, :, q] = (z[at + 1] - z[at]) / rise
                guesses[r, :, q] = z[at] + np.clip(score[r, :, q] - low, 0.0, rise) * slopes[r, :, q]
        return guesses.ravel(), slopes.ravel()

    def _curve_heights(self) -> Array:
        """How much of every curve each row's cdfs hold, in float32 (Σ k, b); pairs that no row uses are left out."""
        table, (n_members, n_rows, n) = self._table, self._features.shape
        features = np.ascontiguousarray(self._features.transpose(0, 2, 1), dtype=np.float32).reshape(-1, n_rows)
        i, j = (index.numpy() + n * np.arange(n_members)[:, None] for index in pair_index(n))
        largest = np.abs(features).max(1)
        kept = np.flatnonzero(np.abs(table.below[-1]) * largest[i.ravel()] * largest[j.ravel()] > UNUSED)
        products = features[i.ravel()[kept]] * features[j.ravel()[kept]]
        return table.curves.weights[:, kept] @ products

    def _panel(self, ask: Index, z: Array, low: Index, high: Index) -> Index:
        """The panel that holds z, between two others."""
        found = np.searchsorted(self._keys, z + APART * self._label[ask], side="right") - 1
        return np.clip(found, low, np.maximum(high, low))

    def _edge(self, ask: Index, panel: Index) -> Index:
        """The kept edge that a panel ends at."""
        label = self._label[ask]
        return self._table.first_edge[label] + (panel - self._table.first_panel[label] + 1) // 2

    # -- numbers of the distribution -----------------------------------------------------------------------------------

    def _pair_products(self) -> Array:
        """``ê_i ê_j`` over the pairs (b, K P)."""
        i, j = (index.numpy() for index in pair_index(self._features.shape[2]))
        products = self._features[..., i] * self._features[..., j]
        return np.ascontiguousarray(products.transpose(1, 0, 2)).reshape(len(products[0]), -1)

    def _below(self, ask: Index, edge: Index) -> Array:
        """The cdf of each question's row at a kept edge."""
        rows = self._row[ask]
        if self._products is not None:
            return np.einsum("qp,qp->q", self._table.below[edge], self._products[rows])
        n_members, _, n = self._features.shape
        i, j = (index.numpy() for index in pair_index(n))
        matrix, chance = np.zeros((n_members, n, n)), np.empty(len(ask))
        order = np.argsort(edge, kind="stable")
        values, starts = np.unique(edge[order], return_index=True)
        for value, places in zip(values, np.split(order, starts[1:])):
            matrix[:, i, j] = self._table.below[value].reshape(n_members, -1)
            features = self._features[:, rows[places]]
            chance[places] = np.einsum("kqn,kqn->q", features @ matrix, features)
        return chance

    def _density(self, ask: Index, panel: Index) -> Array:
        """Density of logit(share) of each question's row at the nodes of its panel (Q, 8)."""
        table, n = self._table, self._features.shape[2]
        features = self._features if self._quick is None else self._quick
        factors, links = (table.factors, table.links) if self._exact else (table.quick_factors, table.quick_links)
        rows, label = self._row[ask], self._label[ask]
        density = np.zeros((len(ask), POINTS))
        # float64 products take so long that leaving half of a symmetric form out pays; they run in smaller pieces
        width, columns = max(1, CACHE_ELEMENTS // (2 * POINTS * n)), n
        if self._exact:
            width, columns = max(1, width // 2), max(1, math.ceil(n / 2))
        ends = np.searchsorted(label, np.arange(len(links) + 1))
        for r, (first, last) in enumerate(pairwise(ends)):
            forms = [_lower_blocks(link, columns) for link in links[r]]
            for start in range(first, last, width):
                part = slice(start, min(start + width, last))
                for k, form in enumerate(forms):
                    terms = np.take(factors[k], panel[part], axis=0)
                    terms *= features[k][rows[part], None]
                    flat = terms.reshape(-1, n)
                    for block, here in form:
                        square = np.einsum("ij,ij->i", flat[:, here.start :] @ block, flat[:, here])
                        density[part] += square.reshape(-1, POINTS)
        return density


def _lower_blocks(form: Array, width: int) -> list[tuple[Array, slice]]:
    """A symmetric form (n, n) by blocks of columns, each from its diagonal down with what lies below counted twice."""
    blocks = []
    for start in range(0, len(form), width):
        stop = min(start + width, len(form))
        block = form[start:, start:stop].copy()
        block[stop - start :] *= 2.0
        blocks.append((block, slice(start, stop)))
    return blocks
