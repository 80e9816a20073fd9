"""One tabulated-cdf service: cdf and quantiles of one share for any number of rows, without a root search each.

The components of a mixture do not depend on the row, so their integrals are tabulated once. On the scale
``z = logit t`` the log density of Beta(a, b) has curvature ``-(a+b) t(1-t)``; panels uniform in ``arcsin √t`` and
``1/√(max a+b)`` wide are therefore one standard deviation of the sharpest component each, and eight Gauss-Legendre
points a panel carry the whole law to about 1e-9. A row's cdf at panel edges is a matrix product; inside a panel its
density is a polynomial. Where there is little to ask, the incomplete Beta function of every component answers directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.special
from numpy.polynomial import legendre

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, KEPT_TABLE_NUMBERS
from snefy_ldl._internal.special import newton
from snefy_ldl._internal.tolerances import LOGIT_LIMIT, NEGLIGIBLE_WEIGHT, TAIL_MASS
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions.family import TableCache
from snefy_ldl.distributions.panel import NODE_WEIGHTS, NODES, POINTS, TO_LEGENDRE, Located
from snefy_ldl.distributions.parts import check_weights
from snefy_ldl.errors import InputError

#: Where many rows are asked about, a panel is looked for among every so many edges first.
STRIDE, FEW_QUESTIONS = 32, 64
#: Largest sum of concentrations whose tables are made: panels grow with its root.
SHARPEST = 4e9


class BetaTable:
    """Integrals of P Beta laws of one share on shared panels of the logit scale.

    Args:
        a: first parameter of each law (P,).
        b: second parameter of each law (P,).

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

    def component_grid(self, parts: int) -> tuple[Array, Array, Array]:
        """Every component's law at points that cut each panel into equal parts, for those who tabulate it elsewhere.

        Args:
            parts: cells a panel.

        Returns:
            Points on the logit scale (parts G + 1,), and under every component the probability below them and the
            density of logit(share) there, (P, parts G + 1) each.
        """
        u = np.linspace(-1.0, 1.0, parts + 1)
        heights = legendre.legvander(u, POINTS - 1) @ TO_LEGENDRE  # (parts + 1, 8)
        areas = legendre.legval(u, legendre.legint(np.eye(POINTS), lbnd=-1)).T @ TO_LEGENDRE
        cdf = np.empty((parts * len(self._half) + 1, len(self.edge_cdf)))
        density = np.zeros_like(cdf)
        cdf[-1] = self.edge_cdf[:, -1]
        for g, half in enumerate(self._half):
            block, cells = self._block(g), slice(parts * g, parts * g + parts + 1)
            inside, wanted = areas @ block * half, self.edge_cdf[:, g + 1] - self.edge_cdf[:, g]
            with np.errstate(divide="ignore", invalid="ignore"):  # the whole panel's probability is known more exactly
                ratio = np.where(inside[-1] > 0.0, wanted / inside[-1], 0.0)
            cdf[cells][:-1] = self.edge_cdf[:, g] + (inside * ratio)[:-1]
            # two panels meet at an edge: each gives half of the density there
            density[cells] += heights @ block * np.where((u == -1.0) | (u == 1.0), 0.5, 1.0)[:, None]
        density[0], density[-1] = 2.0 * density[0], 2.0 * density[-1]
        z = np.append((self.edges[:-1, None] + self._half[:, None] * (u[:-1] + 1.0)).ravel(), self.edges[-1])
        return z, cdf.T, np.maximum(density.T, 0.0)

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
    """Panel edges between two logits for laws whose concentrations reach ``sharpest``."""
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


_cache = TableCache()


def beta_table(a: Array, b: Array) -> BetaTable:
    """The table of some Beta laws, kept for the next question about them."""
    return _cache.get(lambda: BetaTable(a, b), a, b)


def used_components(weights: Array) -> Index | slice:
    """Components that at least one row uses, or all of them where that is most."""
    used = np.abs(weights).max(axis=0, initial=0.0) > NEGLIGIBLE_WEIGHT
    return slice(None) if used.mean() > 0.75 else np.flatnonzero(used)


def row_weights(law: Any, rows: slice | Index) -> tuple[Array, Index | slice]:
    """Weights of some rows (b, P') without the components that hardly any of them uses, and which those are (P',)."""
    weights = law.weights(rows).detach().cpu().numpy()
    check_weights(weights, (rows.start or 0) if isinstance(rows, slice) else 0)
    keep = used_components(weights)
    return np.ascontiguousarray(weights[:, keep]), keep


def row_blocks(law: Any) -> Iterator[slice]:
    """Rows a table answers at a time."""
    step = max(1, 2 * CHUNK_ELEMENTS // law.n_components)
    for start in range(0, len(law), step):
        yield slice(start, min(start + step, len(law)))


def label_quantiles(law: Any, levels: Array) -> Array:
    """Quantiles of every label's share of a mixture of Dirichlets, with or without votes: levels (N, L, A) -> same.

    After votes a label's law is ``Σ_p c_p Beta(α_p + k, A_p - α_p + K - k)``: rows with k votes for the label out of K
    share their components, and a table. Levels for the first labels alone, (N, L', A), serve too.
    """
    alpha = law.concentration.detach().cpu().numpy()
    total = alpha.sum(1)
    n_asked = levels.shape[1]
    if law.n_components == 1:  # one Beta a row and label
        check_weights(law.weights())
        seen = 0.0 if law.offset is None else law.offset.detach().cpu().numpy()
        first = (alpha + seen)[:, :n_asked, None]
        rest = (alpha + seen).sum(1)[:, None, None] - first
        return scipy.special.betaincinv(first, rest, levels)
    inner = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS)
    out = np.empty(levels.shape)
    for block in row_blocks(law):
        weights, used = row_weights(law, block)
        for r in range(n_asked):
            if law.offset is None:
                out[block, r] = beta_table(alpha[:, r], total - alpha[:, r]).icdf(weights, inner[block, r], used)
                continue
            offset = law.offset[block].detach().cpu().numpy()
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
