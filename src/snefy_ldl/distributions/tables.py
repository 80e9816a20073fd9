"""Tabulated cdfs of many Beta laws: quantiles of a signed mixture for any number of rows, without a root search each.

The components of a mixture do not depend on the row, so their integrals are tabulated once. On the scale
``z = logit t`` the log density of Beta(a, b) has curvature ``-(a+b) t(1-t)``; panels uniform in ``arcsin √t`` and
``1/√(max a+b)`` wide are therefore one standard deviation of the sharpest component each, and eight Gauss-Legendre
points a panel carry the whole law to about 1e-9. A row's cdf at panel edges is a matrix product; inside a panel its
density is a polynomial.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import scipy.special
from numpy.polynomial import legendre

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl._types import Array, Index

if TYPE_CHECKING:
    from snefy_ldl.distributions.mixture import SignedDirichletMixture


#: The part of a component's law outside the tabulated range.
TAIL_MASS = 1e-13
#: Shares below e^-690 are not told apart from zero.
LOGIT_LIMIT = 690.0
#: Gauss-Legendre points a panel.
POINTS = 8
#: A row's panel is looked for among every so many edges first, then among those between two of them.
STRIDE = 32
#: Components whose weight is smaller than this for every row of a block are left out of it.
NEGLIGIBLE = 1e-13
#: Tables kept for the next question about the same model, and the numbers each may hold.
KEPT_TABLES, KEPT_NUMBERS = 32, 1 << 22


class Panels:
    """Integrals of P Beta laws on shared panels of the logit scale.

    Args:
        a: first Beta parameters (P,).
        b: second ones (P,).
    """

    def __init__(self, a: Array, b: Array) -> None:
        self._a, self._b, self._log_beta = a, b, scipy.special.betaln(a, b)
        self.edges = _make_edges(a, b)  # (G+1,)
        self._nodes, self._node_weights = legendre.leggauss(POINTS)
        self._half = 0.5 * np.diff(self.edges)
        # values at the nodes -> Legendre coefficients
        vandermonde = legendre.legvander(self._nodes, POINTS - 1)
        self._to_legendre = (np.arange(POINTS) + 0.5)[:, None] * (vandermonde * self._node_weights[:, None]).T
        self._blocks: dict[int, Array] = {}
        mass = np.stack([self._node_weights @ self._block(g) * self._half[g] for g in range(len(self._half))])  # (G, P)
        # what lies outside the panels: nothing, unless a parameter is so small that shares underflow
        below = scipy.special.betainc(a, b, scipy.special.expit(self.edges[0]))
        above = scipy.special.betainc(b, a, scipy.special.expit(-self.edges[-1]))
        inside = np.concatenate([np.zeros((1, len(a))), np.cumsum(mass, axis=0)])
        self.edge_cdf = below + inside * ((1.0 - below - above) / inside[-1])  # (G+1, P)

    @property
    def n_numbers(self) -> int:
        """How much the table holds."""
        return int(self.edge_cdf.size) + sum(block.size for block in self._blocks.values())

    def _block(self, g: int, keep: Index | slice = slice(None)) -> Array:
        """Densities of logit(share) at the nodes of one panel (8, P'): ``t^a (1-t)^b / B(a, b)``."""
        if g in self._blocks:
            return self._blocks[g][:, keep]
        z = self.edges[g] + self._half[g] * (self._nodes + 1.0)
        log_t, log_rest = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        powers = np.multiply.outer(log_t, self._a[keep])
        powers += np.multiply.outer(log_rest, self._b[keep])
        powers -= self._log_beta[keep]
        block: Array = np.exp(powers, out=powers)
        if len(self._half) * POINTS * len(self._a) <= KEPT_NUMBERS and isinstance(keep, slice):
            self._blocks[g] = block  # a small table keeps its densities too
        return block

    def cdf(self, weights: Array, t: Array, keep: Index) -> Array:
        """cdf of each row at its own points: weights (b, P') of the components ``keep`` (P',), t (b, Q) -> (b, Q)."""
        with np.errstate(divide="ignore"):
            z = np.clip(scipy.special.logit(np.clip(t, 0.0, 1.0)), self.edges[0], self.edges[-1])
        answer = np.empty_like(z)
        for q in range(z.shape[1]):
            panel = np.clip(np.searchsorted(self.edges, z[:, q], side="right") - 1, 0, len(self._half) - 1)
            values, left = np.empty((len(z), POINTS)), np.empty(len(z))
            for g, rows in _groups(panel):
                part = weights[rows]
                values[rows], left[rows] = part @ self._block(g, keep).T, part @ self.edge_cdf[g, keep]
            density = self._to_legendre @ values.T * self._half[panel]
            u = (z[:, q] - self.edges[panel]) / self._half[panel] - 1.0
            answer[:, q] = left + legendre.legval(u, legendre.legint(density, lbnd=-1), tensor=False)
        clipped: Array = np.clip(answer, 0.0, 1.0)
        return clipped

    def icdf(self, weights: Array, levels: Array, keep: Index) -> Array:
        """Quantiles of each row at its own levels: weights (b, P') of the components ``keep``, levels (b, Q)."""
        edge_cdf = np.ascontiguousarray(self.edge_cdf[:, keep])
        n_panels = len(self._half)
        coarse = np.append(np.arange(0, n_panels, STRIDE), n_panels)
        at_coarse = np.maximum.accumulate(weights @ edge_cdf[coarse].T, axis=1)
        answer = np.empty_like(levels)
        for q in range(levels.shape[1]):
            level = levels[:, q]
            panel = np.empty(len(level), dtype=np.intp)
            values, left = np.empty((len(level), POINTS)), np.empty(len(level))
            span = np.clip((at_coarse <= level[:, None]).sum(1) - 1, 0, len(coarse) - 2)
            for c, rows in _groups(span):
                start, stop = coarse[c], coarse[c + 1]
                part = weights[rows]
                at_edges = part @ edge_cdf[start : stop + 1].T
                rising = np.maximum.accumulate(at_edges, axis=1)
                own = np.clip((rising <= level[rows, None]).sum(1) - 1, 0, stop - start - 1)
                panel[rows], left[rows] = start + own, at_edges[np.arange(len(rows)), own]
                for g, sub in _groups(own):
                    values[rows[sub]] = part[sub] @ self._block(start + g, keep).T
            density = self._to_legendre @ values.T * self._half[panel]
            u = _solve_panel(density, level - left)
            answer[:, q] = self.edges[panel] + self._half[panel] * (u + 1.0)
        shares: Array = scipy.special.expit(answer)
        return shares


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


def _groups(key: Index) -> Iterator[tuple[int, Index]]:
    """Each distinct value of key, and the rows that have it."""
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    for value, rows in zip(values, np.split(order, starts[1:])):
        yield int(value), rows


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


_tables: OrderedDict[bytes, Panels] = OrderedDict()


def panels_of(a: Array, b: Array) -> Panels:
    """The table of some Beta laws, kept for the next question about them."""
    key = hashlib.blake2b(
        np.ascontiguousarray(a).tobytes() + np.ascontiguousarray(b).tobytes(), digest_size=16
    ).digest()
    table = _tables.pop(key, None) or Panels(a, b)
    _tables[key] = table
    while len(_tables) > KEPT_TABLES or sum(t.n_numbers for t in _tables.values()) > 16 * KEPT_NUMBERS:
        if len(_tables) == 1:
            break
        _tables.popitem(last=False)
    return table


def row_weights(law: SignedDirichletMixture, rows: slice) -> tuple[Array, Index]:
    """Weights of some rows (b, P') without the components that hardly any of them uses, and which those are (P',)."""
    weights = law.weights(rows).detach().cpu().numpy()
    keep = np.flatnonzero(np.abs(weights).max(axis=0, initial=0.0) > NEGLIGIBLE)
    return np.ascontiguousarray(weights[:, keep]), keep


def row_blocks(law: SignedDirichletMixture) -> Iterator[slice]:
    """Rows a table answers at a time."""
    step = max(1, 2 * CHUNK_ELEMENTS // law.n_components)
    for start in range(0, len(law), step):
        yield slice(start, min(start + step, len(law)))


def label_quantiles(law: SignedDirichletMixture, levels: Array) -> Array:
    """Quantiles of every label's share: levels (A,), or (N, L, A) -> (N, L, A); the weights are made once for all.

    Only for laws without votes; :meth:`Marginal.icdf` serves the others.
    """
    alpha = law.concentration.detach().cpu().numpy()
    rest = alpha.sum(1, keepdims=True) - alpha
    tables = [panels_of(alpha[:, r], rest[:, r]) for r in range(law.n_labels)]
    wanted = np.broadcast_to(levels, (len(law), law.n_labels, levels.shape[-1]))
    inner = np.clip(wanted, TAIL_MASS, 1.0 - TAIL_MASS)
    out = np.empty(wanted.shape)
    for rows in row_blocks(law):
        weights, keep = row_weights(law, rows)
        for r, table in enumerate(tables):
            out[rows, r] = table.icdf(weights, inner[rows, r], keep)
    return np.where(wanted <= 0.0, 0.0, np.where(wanted >= 1.0, 1.0, out))
