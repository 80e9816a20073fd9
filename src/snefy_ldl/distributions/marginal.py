"""The distribution of one share, or of a sum of shares: density, cdf and quantiles, and the tables behind them.

The components of a mixture do not depend on the row, so their integrals are tabulated once. On the scale
``z = logit t`` the log density of Beta(a, b) has curvature ``-(a+b) t(1-t)``; panels uniform in ``arcsin √t`` and
``2/√(max a+b)`` wide are therefore two standard deviations of the sharpest component each, and twelve Gauss-Legendre
points a panel carry the whole distribution to about 1e-9. A row's cdf at panel edges is a matrix product; inside a
panel its density is a polynomial.

- :class:`BetaTable` holds the components one by one: for listed weights and after votes.
- :class:`SquareTable` holds the neurons, whose products the components are: a share under the pair (i, j) is
  ``Beta(a_i + a_j, b_i + b_j)`` with ``a_i = ½ + w_i`` summed over its labels and b_i over the others, so that

      φ_i(z) = t^{a_i} (1-t)^{b_i} / √B(2 a_i, 2 b_i),     density of row x = Σ_ij ê_i ê_j N_ij φ_i(z) φ_j(z),
      ê = e √(π / Z),   N = M ∘ R / R',   R'_ij = B(a_i + a_j, b_i + b_j) / √(B(2 a_i, 2 b_i) B(2 a_j, 2 b_j)).

  With R <= R' (merging labels can only raise the overlap of two neurons) N never overflows, and n numbers a node take
  the place of n(n+1)/2. The panel of a quantile is found by the cdf at its edges, ``Σ_ij ê_i ê_j below_ij``; inside it
  densities in float32 are enough, since the probability of the panel is known in float64.
- Where there is little to ask, the incomplete Beta function of every component answers directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.special
import torch
from numpy.polynomial import legendre
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._internal.memory import (
    CACHE_ELEMENTS,
    CHUNK_ELEMENTS,
    DIRECT_EVALUATIONS,
)
from snefy_ldl._internal.special import full_index, newton, pair_index
from snefy_ldl._internal.threads import one_blas_thread
from snefy_ldl._internal.tolerances import (
    FACTOR_TAIL_MASS,
    LOGIT_LIMIT,
    NEGLIGIBLE_WEIGHT,
    SMALLEST_DENSITY_SHARE,
    SMALLEST_FACTOR,
    SMALLEST_POSITIVE,
    TAIL_MASS,
    WEIGHT_SUM_ROUNDING,
)
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError

#: Gauss-Legendre points a panel, and the standard deviations of the sharpest component that a panel is wide.
POINTS, PANEL_WIDTH = 12, 2.0
NODES, NODE_WEIGHTS = legendre.leggauss(POINTS)
#: Values at the nodes -> Legendre coefficients.
TO_LEGENDRE = (np.arange(POINTS) + 0.5)[:, None] * (legendre.legvander(NODES, POINTS - 1) * NODE_WEIGHTS[:, None]).T
#: Largest sum of concentrations whose tables are made: panels grow with its root.
SHARPEST = 4e9
#: Up to this many quantiles at a time are worked out in float64 throughout.
EXACT_QUESTIONS = 4096
#: Rows whose weights cancel more than this are, too, however many they are.
LARGEST_CANCELLATION = 10.0
#: Rows whose ``Σ|w|`` is larger than this need more digits than a table has.
STEADY = 1e3
#: Evaluations of the cdf that a quantile takes without a table.
NEWTON_STEPS = 8


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

    def log_prob(self, value: Tensor | float) -> Tensor:
        """Log density at shares value (..., *batch); of an atom at 0 or 1, the logarithm of its probability."""
        value = _as_tensor(value)
        if self._validate_args and value.numel():
            self._validate_sample(value)
        dist, shape = self.dist.matched(value.shape)
        if not shape.numel():
            return value.new_empty(shape).to(self.dist.dtype)
        points, rows = value.expand(shape).reshape(-1, len(dist)), dist.rows
        if not rows.may_be_zero:
            return rows.share_log_prob(self.labels, points).reshape(shape).to(dist.dtype)
        zero, below_one = (torch.as_tensor(end, device=dist.device) for end in rows.ends(self.labels))
        inside = (points > 0.0) & (points < 1.0)
        log_p = rows.share_log_prob(self.labels, torch.where(inside, points, 0.5)) + (below_one - zero).log()
        atoms = torch.where(points <= 0.0, zero, 1.0 - below_one).log()
        return torch.where(inside, log_p, atoms).reshape(shape).to(dist.dtype)

    @torch.no_grad()
    def cdf(self, value: Tensor | float) -> Tensor:
        """``P(share <= value)`` for value (..., *batch), monotone from 0 to 1.

        Args:
            value: shares between 0 and 1 (..., *batch).

        Returns:
            Probabilities (..., *batch).
        """
        value = _as_tensor(value)

        def answer(rows: Any, points: Array) -> Array:
            zero, below_one = (end[:, None] for end in rows.ends(self.labels))
            inside = np.where((points <= 0.0) | (points >= 1.0), 0.5, points)
            found = zero + (below_one - zero) * rows.share_cdf(self.labels, scipy.special.logit(inside))
            # the support's ends, exactly
            return np.where(points < 0.0, 0.0, np.where(points == 0.0, zero, np.where(points >= 1.0, 1.0, found)))

        return each_row(self.dist, value, answer).to(value.dtype if value.is_floating_point() else torch.float64)

    @torch.no_grad()
    def icdf(self, value: Tensor | float) -> Tensor:
        """Share below which a probability ``value`` (..., *batch) lies.

        Args:
            value: probabilities between 0 and 1 (..., *batch).

        Returns:
            Shares (..., *batch), exact to 2e-7 or better in probability; 0 or 1 where an atom holds the level.
        """

        def answer(rows: Any, levels: Array) -> Array:
            if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
                raise InputError("quantile levels must lie between 0 and 1.")
            zero, below_one = (end[:, None] for end in rows.ends(self.labels))
            inner = (levels - zero) / np.maximum(below_one - zero, SMALLEST_POSITIVE)
            found = scipy.special.expit(rows.share_quantiles(self.labels, inner.clip(TAIL_MASS, 1.0 - TAIL_MASS)))
            return np.where(inner <= 0.0, 0.0, np.where(inner >= 1.0, 1.0, found))

        return each_row(self.dist, _as_tensor(value), answer).to(self.dist.dtype)

    def quantiles(self, alpha: Any) -> Tensor:
        """Several quantile levels at once: alpha (A,) -> (*batch, A).

        Args:
            alpha: levels between 0 and 1 (A,).

        Returns:
            Shares (*batch, A).
        """
        return several_levels(self, alpha)


def several_levels(dist: Any, alpha: Any) -> Tensor:
    """Quantiles of a univariate distribution at levels (A,): (*batch, A)."""
    levels = torch.as_tensor(np.atleast_1d(as_float(alpha, "alpha")))
    quantiles: Tensor = dist.icdf(levels.reshape(-1, *([1] * len(dist.batch_shape))))
    return quantiles.movedim(0, -1)


def each_row(dist: Any, value: Tensor, answer: Callable[[Any, Array], Array]) -> Tensor:
    """Answers of rows at their own numbers (N, Q), in the shape of the numbers (..., *batch)."""
    dist, shape = dist.matched(value.shape)
    if not shape.numel():
        return value.new_empty(shape, dtype=torch.float64)
    found = answer(dist.rows, value.double().expand(shape).reshape(-1, len(dist)).T.cpu().numpy()).T
    return torch.as_tensor(np.ascontiguousarray(found), device=dist.device).reshape(shape)


def _as_tensor(value: Any) -> Tensor:
    """Real numbers of any container as a dense tensor."""
    value = value if isinstance(value, Tensor) else torch.as_tensor(as_float(value, "value"))
    value = value.to_dense() if value.is_sparse else value
    if value.is_complex():
        raise InputError("value holds complex numbers; it must be real.")
    if not bool(torch.isfinite(value).all()):
        raise InputError("value holds NaN or infinity; it must hold numbers.")
    return value


# -- one panel ---------------------------------------------------------------------------------------------------------


def solve_panels(left: Array, half: Array, mass: Array, values: Array) -> Array:
    """Quantiles on the logit scale (Q,), each in a panel.

    Args:
        left: left edge of the panel on the logit scale (Q,).
        half: half its width (Q,).
        mass: probability wanted between that edge and the quantile (Q,).
        values: the row's density of logit(share) at the panel's nodes (Q, 12).
    """
    return left + half * (_solve_panel(TO_LEGENDRE @ values.T * half, mass) + 1.0)


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
    """Integrals of P Beta distributions of one share on panels of the logit scale.

    Args:
        a: first parameter of each distribution (P,).
        b: second parameter of each distribution (P,).

    Attributes:
        edges: panel edges on the logit scale (G+1,).
        edge_cdf: probability below each edge under each component (G+1, P).
    """

    def __init__(self, a: Array, b: Array) -> None:
        self._a, self._b, self._log_beta = a, b, scipy.special.betaln(a, b)
        self.edges = make_edges(_log_tail(a, b).min(), -_log_tail(b, a).min(), float((a + b).max()))
        self._half = 0.5 * np.diff(self.edges)
        mass = np.stack([NODE_WEIGHTS @ self._block(g) * half for g, half in enumerate(self._half)])
        total = np.concatenate([np.zeros((1, len(a))), np.cumsum(mass, axis=0)])
        below, above = _outside(a, b, self.edges)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(total[-1] > 0.0, (1.0 - below - above) / total[-1], 0.0)
        self.edge_cdf = below + total * ratio

    def _block(self, g: int) -> Array:
        """Densities of logit(share), ``t^a (1-t)^b / B(a, b)``, at the nodes of a panel (12, P)."""
        z = self.edges[g] + self._half[g] * (NODES + 1.0)
        powers = np.multiply.outer(-np.logaddexp(0.0, -z), self._a)
        powers += np.multiply.outer(-np.logaddexp(0.0, z), self._b)
        powers -= self._log_beta
        return np.exp(powers, out=powers)

    def _at(self, weights: Array, panel: Index) -> tuple[Array, Array]:
        """The cdf at the left edges of each row's own panels and its density at their nodes.

        Args:
            weights: of the components (b, P).
            panel: numbers of panels (b, Q).

        Returns:
            (b, Q) and (b, Q, 12).
        """
        left, values = np.empty(panel.shape), np.empty((*panel.shape, POINTS))
        for g, where in _groups(panel.ravel()):
            part = weights[where // panel.shape[1]]
            left.reshape(-1)[where] = part @ self.edge_cdf[g]
            values.reshape(-1, POINTS)[where] = part @ self._block(g).T
        return left, values

    def cdf(self, weights: Array, z: Array) -> Array:
        """cdf of each row at its own points: weights (b, P), z (b, Q) -> (b, Q)."""
        z = np.clip(z, self.edges[0], self.edges[-1])
        panel = np.clip(np.searchsorted(self.edges, z, side="right") - 1, 0, len(self._half) - 1)
        left, values = self._at(weights, panel)
        density = (TO_LEGENDRE @ values.reshape(-1, POINTS).T) * self._half[panel].ravel()
        u = (z - self.edges[panel]) / self._half[panel] - 1.0
        inside = legendre.legval(u.ravel(), legendre.legint(density, lbnd=-1), tensor=False).reshape(u.shape)
        return np.clip(left + inside, 0.0, 1.0)

    def icdf(self, weights: Array, levels: Array) -> Array:
        """Quantiles of each row at its own levels: weights (b, P), levels (b, Q)."""
        rising = np.maximum.accumulate(weights @ self.edge_cdf.T, axis=1)  # (b, G+1)
        columns = [(rising <= level[:, None]).sum(1) - 1 for level in levels.T]
        panel = np.clip(np.stack(columns, 1), 0, len(self._half) - 1)
        left, values = self._at(weights, panel)
        at, mass = panel.ravel(), (levels - left).ravel()
        return solve_panels(self.edges[at], self._half[at], mass, values.reshape(-1, POINTS)).reshape(levels.shape)


def make_edges(first: float, last: float, sharpest: float) -> Array:
    """Panel edges between two logits for distributions whose concentrations reach ``sharpest``."""
    if sharpest > SHARPEST:
        raise InputError(
            f"a component's concentrations sum to {sharpest:.2g}, too sharp for quantiles and cdfs, which take sums "
            f"up to {SHARPEST:g}."
        )
    first, last = max(first, -LOGIT_LIMIT), min(last, LOGIT_LIMIT)
    n_angles = max(16, math.ceil(math.pi * math.sqrt(sharpest) / PANEL_WIDTH))
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


def _log_tail(a: Array, b: Array) -> Array:
    """Logarithm of the share below which Beta(a, b) has no more than a negligible part."""
    share = scipy.special.betaincinv(a, b, FACTOR_TAIL_MASS)
    good = share > np.finfo(np.float64).tiny  # neither underflow nor a search that gave up, which is not a number
    leading = (math.log(FACTOR_TAIL_MASS) + np.log(a) + scipy.special.betaln(a, b)) / a  # of t^a / (a B(a, b))
    return np.where(good, np.log(np.where(good, share, 1.0)), np.maximum(leading, -LOGIT_LIMIT))


def _outside(a: Array, b: Array, edges: Array) -> tuple[Array, Array]:
    """Probability below and above all panels; only parameters so small that shares underflow leave any."""
    none = np.zeros_like(a)
    low = scipy.special.betainc(a, b, scipy.special.expit(edges[0])) if edges[0] <= -LOGIT_LIMIT else none
    return low, scipy.special.betainc(b, a, scipy.special.expit(-edges[-1])) if edges[-1] >= LOGIT_LIMIT else none


def _groups(key: Index) -> Iterator[tuple[int, Index]]:
    """Each distinct value of key, and the places that have it."""
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    for value, places in zip(values, np.split(order, starts[1:])):
        yield int(value), places


def _alike(dist: Any, group: Sequence[int]) -> Iterator[tuple[Index, Array, Array, Array]]:
    """Rows whose sum of shares has the same components.

    After k votes for the group out of K, a component of it is ``Beta(a + k, b + K - k)``.

    Yields:
        Numbers of rows (b,), both parameters of the components that they use (P,), and weights (b, P).
    """
    alpha = dist.concentration.detach().cpu().numpy()
    votes = np.zeros((len(dist), alpha.shape[1])) if dist.offset is None else dist.offset.detach().cpu().numpy()
    both, seen = ([table[:, group].sum(1), np.delete(table, group, 1).sum(1)] for table in (alpha, votes))
    pairs, which = np.unique(np.stack(seen, 1), axis=0, return_inverse=True)
    step = max(1, CHUNK_ELEMENTS // dist.n_components)
    for start in range(0, len(dist), step):
        weights = dist.weights(slice(start, start + step)).detach().cpu().numpy()
        check_weights(weights, start)
        for number, places in _groups(which.reshape(-1)[start : start + step]):
            part = weights if len(places) == len(weights) else weights[places]
            used = np.abs(part).max(axis=0) > NEGLIGIBLE_WEIGHT
            keep = slice(None) if used.mean() > 0.75 else used
            a, b = (parameter[keep] + k for parameter, k in zip(both, pairs[number]))
            yield start + places, a, b, part[:, keep]


def _by_table(weights: Array, n_evaluations: int) -> bool:
    """Whether a table answers sooner than the cdf of every component, evaluated so often, and as well."""
    return n_evaluations * weights.size > DIRECT_EVALUATIONS and float(np.abs(weights).sum(1).max()) <= STEADY


class LogRatio:
    """The distribution of ``log(ℓ_above / ℓ_below)`` where all labels are there, or of a ratio of geometric means.

    Args:
        dist: the distribution of the shares.
        above: number or name of a label, or several of them.
        below: the same for the other side.

    Attributes:
        mean: exact (*batch,).
        variance: exact (*batch,).
        prob_present: ones (*batch,): no label is ever absent.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 2.0, 5.0]]))
        >>> LogRatio(dist, 0, 1).icdf(0.5).item()
        0.0
    """

    def __init__(self, dist: Any, above: Any, below: Any) -> None:
        self.dist, (self.above, self.below, self.vector) = dist, dist.sides_of(above, below)
        self.mean: Tensor = dist.expected_log().double() @ self.vector
        self.variance: Tensor = dist.covariance_log().double() @ self.vector @ self.vector
        self.prob_present = torch.ones_like(self.mean)

    def _pair(self) -> Any:
        """The two labels among themselves: the log-ratio is the logit of the first one's share."""
        if len(self.above) + len(self.below) > 2:
            raise InputError("between several labels only mean, variance and draws are known: use sample(...).")
        return self.dist.subcomposition([*self.above, *self.below])

    def cdf(self, value: Any) -> Tensor:
        """``P(log-ratio <= value)`` (..., *batch)."""
        return each_row(self._pair(), _as_tensor(value), lambda rows, z: rows.share_cdf([0], z))

    def icdf(self, value: Any) -> Tensor:
        """Quantiles at levels (..., *batch)."""
        return each_row(self._pair(), _as_tensor(value), lambda rows, levels: rows.share_quantiles([0], levels))

    def log_prob(self, value: Any) -> Tensor:
        """Log density at values (..., *batch)."""
        logs = torch.nn.functional.logsigmoid(
            torch.stack([_as_tensor(value).double(), -_as_tensor(value).double()], -1)
        )
        return self._pair().log_prob(logs.exp()) + logs.sum(-1)

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch)."""
        logs: Tensor = self.dist.sample(sample_shape, generator).double().log()
        return logs @ self.vector


def share_cdf(dist: Any, group: Sequence[int], z: Array) -> Array:
    """``P(logit(share) <= z)`` of a sum of shares of a mixture of Dirichlets, each row's own z (N, Q)."""
    answer = np.empty(z.shape)
    for places, a, b, weights in _alike(dist, group):
        points = z[places]
        if bool((points == points[:1]).all()):  # every row is asked about the same points
            answer[places] = weights @ beta_cdf(a[:, None], b[:, None], points[0])
        elif _by_table(weights, points.shape[1]):
            answer[places] = BetaTable(a, b).cdf(weights, points)
        else:
            answer[places] = np.stack([direct_cdf(a, b, weights, column) for column in points.T], 1)
    return np.clip(answer, 0.0, 1.0)


def share_quantiles(dist: Any, groups: Sequence[Sequence[int]], levels: Array) -> Array:
    """Quantiles of some sums of shares on the logit scale: levels (N, G, A), inside (0, 1) -> same."""
    if dist.is_plain and dist.n_components > 1:
        return square_quantiles(dist, groups, levels)
    answer = np.empty(levels.shape)
    for number, group in enumerate(groups):
        for places, a, b, weights in _alike(dist, group):
            wanted = levels[places, number]
            if _by_table(weights, NEWTON_STEPS * wanted.shape[1]):
                answer[places, number] = BetaTable(a, b).icdf(weights, wanted)
            else:
                columns = [direct_quantile(a, b, weights, level) for level in wanted.T]
                answer[places, number] = np.stack(columns, 1)
    return answer


# -- little to ask: straight to the incomplete Beta function -----------------------------------------------------------


def beta_cdf(a: Array, b: Array, z: Array) -> Array:
    """``I_t(a, b)`` at z = logit t; beyond one half from the other end, where 1 - t keeps its digits."""
    low = z < 0.0
    tail = scipy.special.betainc(np.where(low, a, b), np.where(low, b, a), scipy.special.expit(-np.abs(z)))
    return np.where(low, tail, 1.0 - tail)


def direct_cdf(a: Array, b: Array, weights: Array, z: Array) -> Array:
    """``Σ_p w_p I_t(a_p, b_p)`` at each row's own z = logit t: weights (b, P), parameters (P,) -> (b,)."""
    # many components have next to no weight, and the function is slow
    row, component = np.nonzero(np.abs(weights) > NEGLIGIBLE_WEIGHT)
    terms = weights[row, component] * beta_cdf(a[component], b[component], z[row])
    return np.clip(np.bincount(row, terms, minlength=len(z)), 0.0, 1.0)


def direct_quantile(a: Array, b: Array, weights: Array, levels: Array) -> Array:
    """z at which the cdf reaches each row's own level (b,): Newton, kept inside a shrinking bracket."""
    z: Array = scipy.special.logit(np.clip((weights * (a / (a + b))).sum(1), TAIL_MASS, 1.0 - TAIL_MASS))
    limit, log_beta = np.full(len(z), LOGIT_LIMIT), scipy.special.betaln(a, b)
    rounding = 1e-15 * np.abs(weights).sum(1)  # of the cdf; below it steps have no meaning

    def rising(z: Array, rows: Index) -> tuple[Array, Array]:
        log_t, log_rest = scipy.special.log_expit(z)[:, None], scipy.special.log_expit(-z)[:, None]
        slope = (weights[rows] * np.exp(log_t * a + log_rest * b - log_beta)).sum(1)
        return direct_cdf(a, b, weights[rows], z), slope

    return newton(rising, levels, z, -limit, limit, rounding)


# -- tables by neurons -------------------------------------------------------------------------------------------------


class SquareTable:
    """Factors and integrals of one sum of shares under every two neurons.

    Args:
        family: what all rows share.
        group: labels whose shares are summed up.

    Attributes:
        edges: panel edges on the logit scale (G+1,).
        below: ``M ∘ R`` times the probability below each edge (G+1, K, n, n).
        moments: ``M ∘ R`` times the mean of logit(share), and of its square (2, K, n, n).
        factors: ``φ`` at the nodes of every panel (K, G, 12, n).
        links: ``N`` (K, n, n).
    """

    def __init__(self, family: Any, group: Sequence[int]) -> None:
        halves = family.exponents.detach().double().cpu().numpy() + 0.5  # (K, n, L)
        a, b = halves[..., group].sum(-1), np.delete(halves, group, 2).sum(-1)  # (K, n)
        # two neurons have no more outside than the geometric mean of what each has with itself (Cauchy-Schwarz)
        first, last = _log_tail(2.0 * a, 2.0 * b).min(), -_log_tail(2.0 * b, 2.0 * a).min()
        self.edges = make_edges(first, last, 2.0 * float((a + b).max()))
        self._half = half = 0.5 * np.diff(self.edges)
        z = self.edges[:-1, None] + half[:, None] * (NODES + 1.0)  # (G, 12)
        root = 0.5 * scipy.special.betaln(2.0 * a, 2.0 * b)
        powers = -np.multiply.outer(np.logaddexp(0.0, -z), a) - np.multiply.outer(np.logaddexp(0.0, z), b)
        self.factors = np.ascontiguousarray(np.moveaxis(np.exp(powers - root), 2, 0))
        n = a.shape[1]
        i, j = (index.numpy() for index in pair_index(n))
        whole = full_index(n).reshape(n, n).numpy()
        first_sum, second_sum = (part[:, i] + part[:, j] for part in (a, b))
        log_overlap = scipy.special.betaln(first_sum, second_sum) - root[:, i] - root[:, j]  # log R' (K, P)
        log_kernel, gram = (part.detach().cpu().numpy() for part in (family.log_kernel, family.half_gram()))
        low, high = _outside(first_sum, second_sum, self.edges)
        nodes = self.factors * np.sqrt(half[:, None] * NODE_WEIGHTS)[..., None]
        self.below = np.empty((len(self.edges), len(a), n, n))
        self.below[0] = (np.exp(log_overlap) * low)[:, whole]
        for g, part in enumerate(np.moveaxis(nodes, 1, 0)):  # (K, 12, n)
            np.add(self.below[g], part.swapaxes(1, 2) @ part, out=self.below[g + 1])
        # what the panels hold is known: rounding in their exponents goes with the ratio
        total = self.below[-1][:, i, j]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(total > 0.0, np.exp(log_overlap) * (1.0 - high) / total, 1.0)
        self.links = (gram * np.exp(log_kernel - log_overlap) * ratio)[:, whole]
        self.below *= self.links
        middle = 0.5 * (self.edges[1:] + self.edges[:-1])
        self.moments = np.tensordot(-np.diff(np.pad([middle, middle**2], ((0, 0), (1, 1)))), self.below, 1)

    def icdf(self, features: Array, levels: Array, dtype: type) -> Array:
        """Quantiles of some rows.

        Args:
            features: ``ê`` (K, b, n).
            levels: (b, A).
            dtype: of densities inside a panel.

        Returns:
            (b, A).
        """
        level, row = levels.ravel(), np.repeat(np.arange(len(levels)), levels.shape[1])
        mean, square = (((features @ form) * features).sum((0, 2)) for form in self.moments)
        width = np.sqrt((square - mean**2).clip(0.0))
        panel = np.searchsorted(self.edges[1:-1], mean[row] + width[row] * scipy.special.ndtri(level))
        low, high, off = np.zeros_like(panel), np.full_like(panel, len(self._half) - 1), np.arange(len(panel))
        ends = np.empty((2, len(panel)))  # the cdf at both edges of the panel
        while len(off):
            at, wanted = panel[off], level[off]
            begin, end = ends[:, off] = self._cdf(features, np.stack([at, at + 1]), row[off])
            low[off], high[off] = np.where(wanted > end, at + 1, low[off]), np.where(wanted < begin, at - 1, high[off])
            outside = ((wanted < begin) | (wanted > end)) & (low[off] <= high[off])
            # the next panel is the right one if the share were logistic normal
            begin, end, wanted = scipy.special.ndtri(np.clip([begin, end, wanted], TAIL_MASS, 1.0 - TAIL_MASS))
            with np.errstate(divide="ignore", invalid="ignore"):
                z = self.edges[at] + 2.0 * self._half[at] * (wanted - begin) / (end - begin)
            new = np.searchsorted(self.edges[1:-1], z).clip(low[off], high[off])
            panel[off] = np.where(outside, new, at)
            off = off[outside]
        values = self._density(features.astype(dtype, copy=False), panel, row)
        part = (level - ends[0]) / np.maximum(ends[1] - ends[0], SMALLEST_POSITIVE)
        mass = part.clip(0.0, 1.0) * (values @ NODE_WEIGHTS) * self._half[panel]
        return solve_panels(self.edges[panel], self._half[panel], mass, values).reshape(levels.shape)

    def _cdf(self, features: Array, edge: Index, row: Index) -> Array:
        """The cdf at edges (..., Q), those of each question's row (Q,)."""
        chance, row = np.empty(edge.shape), np.broadcast_to(row, edge.shape).ravel()
        for g, places in _groups(edge.ravel()):
            part = features[:, row[places]]
            chance.reshape(-1)[places] = ((part @ self.below[g]) * part).sum((0, 2))
        return chance

    def _density(self, features: Array, panel: Index, row: Index) -> Array:
        """Density of logit(share) of each question's row at the nodes of its panel (Q, 12)."""
        density, n = np.zeros((len(panel), POINTS)), features.shape[2]
        width = max(1, CACHE_ELEMENTS // (2 * POINTS * n))
        for factors, link, feature in zip(self.factors, self.links, features):
            factors, link = factors.astype(features.dtype), link.astype(features.dtype)
            if features.dtype == np.float32:
                factors[factors < SMALLEST_FACTOR] = 0.0  # squares would be slow denormal numbers
            for start in range(0, len(panel), width):
                part = slice(start, start + width)
                terms = (factors[panel[part]] * feature[row[part], None]).reshape(-1, n)
                density[part] += np.einsum("ij,ij->i", terms @ link, terms).reshape(-1, POINTS)
        return density


@torch.no_grad()
def square_quantiles(dist: Any, groups: Sequence[Sequence[int]], levels: Array) -> Array:
    """Quantiles of some sums of shares of a squared distribution without votes: levels (N, G, A) -> same."""
    features, sizes = (part.cpu().numpy() for part in dist.unit_features())
    exact = levels.size <= EXACT_QUESTIONS or bool((sizes > LARGEST_CANCELLATION).any())
    answer = np.empty(levels.shape)
    with one_blas_thread():
        for number, group in enumerate(groups):
            table = dist.family.share_table(tuple(group))
            answer[:, number] = table.icdf(features, levels[:, number], np.float64 if exact else np.float32)
    return answer


def check_weights(weights: Any, first_row: int = 0) -> None:
    """Weights must be finite and sum to one, and not cancel each other to the last digit.

    Args:
        weights: ``c`` (b, P), an array or a tensor.
        first_row: number of the first row, for the message.

    Raises:
        InputError: a row's weights are invalid: its normaliser is zero or not finite, or nothing but rounding
            is left.

    Example:
        >>> check_weights(np.array([[2.0, -1.0]]))
        >>> check_weights(np.array([[np.nan, 1.0]]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: row 0 is not a valid distribution: its weights sum to nan...
    """
    with np.errstate(invalid="ignore"):  # infinities of both signs, which are named below
        total, size = weights.sum(-1), abs(weights).sum(-1)
    check_sizes(total, size, first_row)


def check_sizes(total: Any, size: Any, first_row: int = 0) -> None:
    """The same where only ``Σ c`` and ``Σ |c|`` (b,) are known."""
    # sizes below one, which no weights have, come of a normaliser that is nothing but rounding
    possible = (size >= 1.0 - WEIGHT_SUM_ROUNDING) & (size <= 1.0 / SMALLEST_DENSITY_SHARE)
    good = (abs(total - 1.0) <= WEIGHT_SUM_ROUNDING) & possible
    if bool(good.all()):
        return
    row = next(i for i, fine in enumerate(good.tolist()) if not fine)
    raise InputError(
        f"row {first_row + row} is not a valid distribution: its weights sum to {float(total[row]):g}, their sizes to "
        f"{float(size[row]):g}; the normaliser is zero or not finite."
    )
