"""Laws of single shares under a squared law without votes, tabulated by neurons rather than by pairs of them.

The share of label r under the pair (i, j) is ``Beta(a_i + a_j, b_i + b_j)`` with ``a_i = ½ + w_ir`` and b_i the sum of
the other labels' halves, so its density on the scale ``z = logit t`` is a product of two factors, one a neuron:

    φ_i(z) = t^{a_i} (1-t)^{b_i} / √B(2 a_i, 2 b_i),     density of row x = Σ_ij ê_i ê_j N_ij φ_i(z) φ_j(z),
    ê = e √(π / Z),   N = M ∘ R / R',   R'_ij = B(a_i + a_j, b_i + b_j) / √(B(2 a_i, 2 b_i) B(2 a_j, 2 b_j))

With R <= R' (merging labels can only raise the overlap of two neurons) N never overflows. Panels and nodes are those of
:mod:`snefy_ldl.distributions.tables`; n numbers a node take the place of n(n+1)/2. The integral up to every second edge
is kept for the pairs, packed; it is a sum of products of n × 16 matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.special

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.tolerances import FACTOR_TAIL_MASS, LOGIT_LIMIT, SMALLEST_FACTOR
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.panel import NODE_WEIGHTS, NODES
from snefy_ldl.distributions.tables import make_edges

#: Quantiles are first looked for among at most so many kept edges of a label ...
MOST_PLACES = 256
#: ... by cdfs made of at most so many curves, or as many as leave out this part of their squares.
MOST_CURVES, LEFT_OUT = 64, 1e-8


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
    def of(cls, family: PairFamily, labels: range) -> SquareTable:
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


def _one_label(family: PairFamily, label: int) -> SquareTable:
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
    (Cauchy-Schwarz), so the neurons' own laws say how far to go.
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
