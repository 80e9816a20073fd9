"""Cdfs of shares under every component of a law with a centre or with zeros, tabulated once for all rows.

As in :mod:`snefy_ldl.distributions.share_quantiles`, ``P(share <= v) = ½ - π⁻¹ ∫ Im φ(e^y) dy``. The labels outside the
sum give a factor C(y), those inside a factor ``k(y - u)`` of the difference alone, so that on even grids of y and
``u = logit v`` the integrals at all u together are one convolution: a fast Fourier transform per component. Components
of similar sharpness share a grid; its step is the one that the trapezoid rule needs, and a cdf is read between two
points of it by a polynomial through eight. Tables hold every other point alone; the sums over components that make a
row put in those between.

Concentrations may be so small that a share of e^-100 is nothing special. Far below, a cdf is a power of the odds of the
share; and where all phases have come to rest, k is a power of ``e^{y-u}``, so that the rest of the integral is one
number times a power of ``e^u``. Grids end there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.special

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.special import newton
from snefy_ldl._internal.types import Array, Index

Complex = npt.NDArray[np.complex128]

#: An integrand is over where it is e to minus this; what lies outside a tabulated range.
OVER, OUTSIDE = 25.0, 1e-11
#: Phases that have hardly begun, as logarithm: before, an integrand rises in proportion to t.
BEGUN = 7.0
#: 2π over the step exceeds the rate of the phase by this.
MARGIN = 26.0
#: Points of the polynomial between those of the table.
POINTS = 8
#: Numbers of all convolutions of one sum; laws with very small concentrations throughout need more: no table then.
MOST_NUMBERS = 1 << 25
#: Logits of shares that are told apart from 0 and 1.
LOWEST, HIGHEST = -690.0, 37.0
#: Phases, and odds of shares, that are e to the power of this away from all others: only their powers count.
FAR = 14.0
#: Points at either end of a grid that are there for those between them.
EDGE = 24
#: Nodes of what is left of an integral where all phases have come to rest: logarithms, and their step.
LEAST_LOG, LOG_STEP = -18.0, 0.5
#: Powers beyond this are nothing there.
LARGEST_POWER = 4.0
#: Rows whose weights' sizes sum to more are added up in float64.
CANCELS = 4.0
#: Points that are looked at before Newton's method starts.
LOOKS = 257


@dataclass(frozen=True)
class Octave:
    """Components of similar sharpness on one grid.

    Args:
        pairs: their numbers (p,).
        first: the first logit of the grid; those of interest begin :data:`EDGE` points later.
        step: between two.
        cdf: of every sum (R, p, U), without the atom at one.
    """

    pairs: Index
    first: float
    step: float
    cdf: npt.NDArray[np.float32]

    @property
    def low(self) -> float:
        """The logit below which cdfs are powers."""
        return self.first + EDGE * self.step


@dataclass(frozen=True)
class Layout:
    """Grids of one octave.

    Args:
        y: nodes of the convolution (n_y,), and behind them those of the rest of the integral.
        n_y: how many belong to the convolution.
        rest: weights of the others; none where integrands are over before phases have come to rest.
        u: logits of the table (U,).
        v: ``y - u`` where kernels are asked for (length,).
        step: between nodes, and between logits.
        parts: blocks of pairs.
        neurons: of all pairs (n,).
        ends: both neurons of every pair (2, p).
    """

    y: Array
    n_y: int
    rest: Array
    u: Array
    v: Array
    step: float
    parts: list[Index]
    neurons: Index
    ends: Index


class ComponentTable:
    """Cdfs of some sums of shares under every component.

    Args:
        alpha: concentrations (P, L).
        log_centre: ``log c`` (L,).
        log_odds: of presence (P, L), or None where all labels are there.
        groups: the labels of each sum.
        used: components that any row may use (P',).
        neurons: where components are pairs of neurons, half concentrations (n, L) and both neurons of every component
            (2, P): a table is then made of far fewer powers.

    Raises:
        ValueError: the concentrations are so small that a table would be too long.

    Example:
        >>> table = ComponentTable(np.array([[2.0, 3.0, 5.0]]), np.zeros(3), None, [[0]], np.arange(1))  # Beta(2, 8)
        >>> curves = table.rows(np.ones((1, 1)), 0)
        >>> curves.at(scipy.special.logit(np.array([[0.2]])))[0].round(6)
        array([[0.563792]])
    """

    def __init__(
        self,
        alpha: Array,
        log_centre: Array,
        log_odds: Array | None,
        groups: list[list[int]],
        used: Index,
        neurons: tuple[Array, Index] | None = None,
    ) -> None:
        self.groups, self.used, self._n_components = groups, used, len(alpha)
        self._alpha, self._centre = alpha[used], log_centre
        self._there = None if log_odds is None else scipy.special.expit(log_odds[used])
        self._absent = None if log_odds is None else scipy.special.expit(-log_odds[used])
        self._norm = np.ones(len(used))
        self._half, ends = (alpha, np.arange(len(alpha))[None]) if neurons is None else neurons
        self._ends = ends[:, used]
        none_in, none_out = np.zeros((len(groups), len(used))), np.zeros((len(groups), len(used)))
        if log_odds is not None:
            log_absent = -np.logaddexp(0.0, log_odds[used])
            self._norm = -np.expm1(log_absent.sum(1))
            for number, group in enumerate(groups):
                none_in[number] = np.exp(log_absent[:, group].sum(1))
                none_out[number] = np.exp(np.delete(log_absent, group, axis=1).sum(1))
        self._none_in, self._none_out = none_in, none_out
        #: probability of exactly 0 and of exactly 1 under each component (R, P')
        self.at_zero = none_in * (1.0 - none_out) / self._norm
        self.at_one = none_out * (1.0 - none_in) / self._norm
        sharpness = np.maximum(np.ceil(np.log2(self._alpha.sum(1) / 32.0)), 0.0)
        self._left = MOST_NUMBERS
        self.octaves = [self._octave(np.flatnonzero(sharpness == kind)) for kind in np.unique(sharpness)]

    @property
    def n_numbers(self) -> int:
        """How much is kept."""
        return sum(octave.cdf.size for octave in self.octaves) // 2  # numbers of half the size

    # -- grids -------------------------------------------------------------------------------------------------------

    def _octave(self, pairs: Index) -> Octave:
        alpha = self._alpha[pairs]
        layout = self._layout(pairs, alpha)
        cdf = np.empty((len(self.groups), len(pairs), len(layout.u)), dtype=np.float32)
        fill = self._fill if self._there is None else self._fill_with_zeros
        fill(cdf, pairs, layout)
        return Octave(pairs, float(layout.u[0]), layout.step, cdf)

    def _layout(self, pairs: Index, alpha: Array) -> Layout:
        centre = self._centre
        rate = 5.8 * math.sqrt(float(alpha.sum(1).max()))
        step = min(0.2, 2.0 * math.pi / (rate + MARGIN))
        low, high = self._logits(alpha)
        n_u = math.ceil((high - low) / step) + POINTS + 2 * EDGE
        low -= EDGE * step
        high = low + step * n_u
        top = float(scipy.special.logsumexp(np.log(alpha) + centre, axis=1).max())
        first_y = -max(top, max(float(centre[g].max() + np.log(alpha[:, g]).max()) for g in self.groups) - low) - BEGUN
        last_y, rest, behind = self._end(alpha, high), np.empty(0), np.empty(0)
        at_rest = FAR - min(float(centre.min()), min(float(centre[g].min()) for g in self.groups) - high)
        if self._powers_only and last_y > at_rest:
            last_y = first_y + step * math.ceil((at_rest - first_y) / step)
            behind, rest = self._rest(alpha, step)
        n_y = math.ceil((last_y - first_y) / step) + 1
        length = scipy.fft.next_fast_len(n_y + n_u)
        self._left -= len(pairs) * length
        if self._left < 0:
            raise ValueError("too long")
        y: Array = first_y + step * np.arange(n_y, dtype=np.float64)
        place = np.arange(length)
        v = first_y - low - step * np.where(place < n_u, place, place - length)
        neurons, index = np.unique(self._ends[:, pairs], return_inverse=True)
        block = max(1, CACHE_ELEMENTS // (8 * length))
        parts = np.array_split(np.arange(len(pairs)), math.ceil(len(pairs) / block))
        u: Array = low + step * np.arange(n_u, dtype=np.float64)
        nodes = np.concatenate([y, y[-1] + behind])
        return Layout(nodes, n_y, rest, u, v, step, parts, neurons, index.reshape(-1, len(pairs)))

    def _rest(self, alpha: Array, step: float) -> tuple[Array, Array]:
        """Nodes and weights of ``Σ_{m>0} f(m step) step`` where f is a sum of slow powers: Euler and Maclaurin's."""
        slowest = alpha.sum(1).min() if self._there is None else np.sort(alpha, axis=1)[:, :2].sum(1).min()
        node = np.exp(np.arange(LEAST_LOG, math.log(2.0 * OVER / slowest), LOG_STEP))
        slope = 0.25  # of f at the end, from two points
        corrections = np.array([-0.5 * step, -(step**2) / 24.0 / slope, step**2 / 24.0 / slope])
        return np.append(node, [0.0, slope, -slope]), np.append(LOG_STEP * node, corrections)

    @property
    def _powers_only(self) -> bool:
        """Whether kernels of all sums end in one power: not of several labels of which some may be absent."""
        return self._there is None or all(len(group) == 1 for group in self.groups)

    def _rest_of(self, around: Complex, pairs: Index, group: list[int], layout: Layout) -> Array | float:
        """What is left of an integral, over the step (p, U): ``around`` at the last nodes (p, k)."""
        if not len(layout.rest):
            return 0.0
        alpha, last = self._alpha[pairs][:, group], layout.y[layout.n_y - 1]
        total = alpha.sum(1, keepdims=True)
        power = np.minimum(total, LARGEST_POWER)  # larger ones have fallen to nothing
        kernel = np.exp(-power * (layout.y[layout.n_y :] - last) + 0.5j * math.pi * power)
        left = (around * kernel).imag @ layout.rest / layout.step
        if self._there is not None:
            left *= self._there[pairs, group[0]]
        at_last = total * (layout.u - last) - (alpha @ self._centre[group])[:, None]
        return left[:, None] * np.exp(at_last)

    def _logits(self, alpha: Array) -> tuple[float, float]:
        """Logits between which the law of every component lies but for some 1e-11, atoms and power laws apart."""
        tiny = np.finfo(np.float64).tiny
        small = np.log(np.maximum(scipy.special.gammaincinv(alpha, OUTSIDE), tiny)) + self._centre
        large = np.log(scipy.special.gammainccinv(alpha, OUTSIDE)) + self._centre
        low, high = HIGHEST, LOWEST
        for group in self.groups:
            rest = [r for r in range(alpha.shape[1]) if r not in group]
            if self._there is None:
                own, others = small[:, group].max(1), small[:, rest].max(1)
            else:  # any one of them may be there alone
                own, others = small[:, group].min(1), small[:, rest].min(1)
            lowest = float((own - scipy.special.logsumexp(large[:, rest], axis=1)).min())
            if self._powers_only:
                scale = scipy.special.logsumexp(np.log1p(alpha[:, rest]) + self._centre[rest], axis=1).max()
                lowest = max(lowest, float(self._centre[group].min() - scale) - FAR)
            low = min(low, lowest)
            high = max(high, float((scipy.special.logsumexp(large[:, group], axis=1) - others).max()))
        return max(low, LOWEST), min(high, HIGHEST)

    def _end(self, alpha: Array, high: float) -> float:
        """Where the last integrand is over."""
        y = np.arange(-80.0, 800.0, 0.5)
        logs = 0.5 * np.logaddexp(0.0, 2.0 * (self._centre[:, None] + y))  # (L, k)
        moved = 0.5 * np.logaddexp(0.0, 2.0 * (self._centre[:, None] + y - high))
        worst = np.full(len(y), np.inf)
        for group in self.groups:
            rest = [r for r in range(alpha.shape[1]) if r not in group]
            if self._there is None:
                lowest = alpha[:, rest].min(0) @ logs[rest] + alpha[:, group].min(0) @ moved[group]
            else:
                lowest = (alpha[:, rest].min(0)[:, None] * logs[rest]).min(0)
                lowest = lowest + (alpha[:, group].min(0)[:, None] * moved[group]).min(0)
            worst = np.minimum(worst, lowest)
        alive = np.flatnonzero(worst < OVER)
        return float(y[min(alive[-1] + 1, len(y) - 1)])

    def _fill(self, cdf: npt.NDArray[np.float32], pairs: Index, layout: Layout) -> None:
        """The cdfs of all sums at the points of the table (R, p, U), where all labels are there."""
        half, ends, step = self._half[layout.neurons], layout.ends, layout.step
        for number, group in enumerate(self.groups):
            rest = [r for r in range(half.shape[1]) if r not in group]
            outside = np.exp(-(half[:, rest] @ _log_factor(self._centre[rest, None] + layout.y)))  # (n, k)
            inside = np.exp(-(half[:, group] @ np.conj(_log_factor(self._centre[group, None] + layout.v))))
            for part in layout.parts:
                around, kernel = outside[ends[0, part]], inside[ends[0, part]]
                for end in ends[1:, part]:
                    around *= outside[end]
                    kernel *= inside[end]
                integral = _convolve(around[:, : layout.n_y], kernel, step, len(layout.u))
                integral += self._rest_of(around[:, layout.n_y :], pairs[part], group, layout)
                cdf[number, part] = np.clip(0.5 - integral * (step / math.pi), 0.0, 1.0)

    # -- grids of labels that may be absent --------------------------------------------------------------------------

    def _fill_with_zeros(self, cdf: npt.NDArray[np.float32], pairs: Index, layout: Layout) -> None:
        """The cdfs of all sums at the points of the table (R, p, U), from powers of one factor per neuron."""
        neurons, ends, step = layout.neurons, layout.ends, layout.step
        outer = self._powers(neurons, list(range(self._alpha.shape[1])), layout.y)  # (L, n, k)
        inner = {r: self._powers(neurons, [r], layout.v)[0].conj() for group in self.groups for r in group}
        none_in, none_out = self._none_in[:, pairs], self._none_out[:, pairs]
        middle = 0.5 * (1.0 - none_in) * (1.0 - none_out)
        for part in layout.parts:
            around = self._around(pairs[part], outer, ends[:, part])
            for number, group in enumerate(self.groups):
                kernel = self._within(pairs[part], number, group, inner, ends[:, part])
                integral = _convolve(around[number, :, : layout.n_y], kernel, step, len(layout.u))
                integral += self._rest_of(around[number, :, layout.n_y :], pairs[part], group, layout)
                integral *= -step / math.pi
                integral += middle[number, part, None]
                integral /= self._norm[pairs[part], None]
                cdf[number, part] = np.clip(integral, 0.0, 1.0) + self.at_zero[number, pairs[part], None]

    def _powers(self, neurons: Index, labels: list[int], log_t: Array) -> Complex:
        """``(1 + i c_r t)^{-a_r}`` of some neurons and labels (r, n, k)."""
        half = self._half[neurons]
        out = np.empty((len(labels), len(neurons), len(log_t)), dtype=np.complex128)
        for number, r in enumerate(labels):
            logs = _log_factor(self._centre[r] + log_t)
            size, angle = np.exp(-half[:, r, None] * logs.real), half[:, r, None] * logs.imag
            out[number].real, out[number].imag = size * np.cos(angle), -size * np.sin(angle)
        return out

    def _either(self, pairs: Index, r: int, factors: Complex, ends: Index) -> Complex:
        """``1 - p + p F`` of one label (p, k), from its neurons' factors (n, k)."""
        assert self._there is not None
        assert self._absent is not None
        product: Complex = factors[ends[0]]
        for end in ends[1:]:
            product *= factors[end]
        product *= self._there[pairs, r, None]
        product += self._absent[pairs, r, None]
        return product

    def _around(self, pairs: Index, outer: Complex, ends: Index) -> Complex:
        """``C(y)`` of every sum (R, p, n_y): the labels that are not in it, at least one of them being there."""
        n_labels = len(outer)
        each = [self._either(pairs, r, outer[r], ends) for r in range(n_labels)]
        out = np.ones((len(self.groups), len(pairs), outer.shape[2]), dtype=np.complex128)
        inside = [set(group) for group in self.groups]
        if all(len(group) == 1 for group in self.groups):
            for labels in (range(n_labels), range(n_labels - 1, -1, -1)):  # those before each one, and those behind
                product = np.ones_like(out[0])
                for r in labels:
                    for number, group in enumerate(inside):
                        if r in group:
                            out[number] *= product
                    product *= each[r]
        else:
            for number, group in enumerate(inside):
                for r in range(n_labels):
                    if r not in group:
                        out[number] *= each[r]
        out -= self._none_out[:, pairs, None]
        return out

    def _within(self, pairs: Index, number: int, group: list[int], inner: dict[int, Complex], ends: Index) -> Complex:
        """``k(y - u)`` (p, ...): the labels of a sum, at least one of them being there."""
        product = self._either(pairs, group[0], inner[group[0]], ends)
        for r in group[1:]:
            product *= self._either(pairs, r, inner[r], ends)
        product -= self._none_in[number, pairs, None]
        return product

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self, weights: Array, number: int) -> RowCurves:
        """The cdfs of one sum of some rows, weights (b, P) of all components."""
        kept = weights[:, self.used]
        quick = np.float32 if np.abs(kept).sum(1).max() < CANCELS else np.float64
        curves = []
        for octave in self.octaves:
            own = kept[:, octave.pairs]
            values = own.astype(quick, copy=False) @ octave.cdf[number]
            curves.append(self._curve(octave, number, values, own * self._powers_at(octave, number)))
        atoms = np.stack([self.at_zero[number], self.at_one[number]], 1)
        return RowCurves(curves, *(kept @ atoms).T)

    def components(self, number: int) -> Iterator[tuple[Index, RowCurves]]:
        """The cdfs of one sum under every component that is tabulated: their numbers, and the curves."""
        for octave in self.octaves:
            at_zero, at_one = (table[number, octave.pairs] for table in (self.at_zero, self.at_one))
            powers = np.diag(self._powers_at(octave, number))
            curve = self._curve(octave, number, octave.cdf[number], powers)
            yield self.used[octave.pairs], RowCurves([curve], at_zero, at_one)

    @property
    def lowest(self) -> float:
        """The least logit at which a cdf is more than its atom."""
        tails = [self._powers_at(octave, number).max() for octave in self.octaves for number in range(len(self.groups))]
        return LOWEST if max(tails) > OUTSIDE else min(octave.low for octave in self.octaves)

    def _powers_at(self, octave: Octave, number: int) -> Array:
        """What every component has between its atom and the end of its grid (p,)."""
        tail: Array = octave.cdf[number][:, EDGE] - self.at_zero[number, octave.pairs]
        return np.where(tail > 10.0 * np.finfo(np.float32).eps, tail, 0.0)

    def _curve(self, octave: Octave, number: int, values: Array, tails: Array) -> Curve:
        """Values of rows on the grid of an octave, and powers below it."""
        some = np.flatnonzero(tails.any(0))
        powers = self._alpha[octave.pairs[some]][:, self.groups[number]].sum(1)
        return Curve(octave.low, octave.step, values, powers, tails[:, some])


@dataclass(frozen=True)
class Curve:
    """Cdfs of some rows on an even grid, and sums of powers below it.

    Args:
        first: the logit of the point number :data:`EDGE`.
        step: between two.
        values: (b, U).
        powers: concentrations (p,).
        tails: what every power has at the first logit (b, p).
    """

    first: float
    step: float
    values: Array
    powers: Array
    tails: Array

    @property
    def last(self) -> float:
        """The last logit of interest."""
        return self.first + self.step * float(self.values.shape[1] - 2 * EDGE)

    def nearest(self, u: Array) -> Index:
        """The nearest points of the grid."""
        place: Index = np.rint((np.clip(u, self.first, self.last) - self.first) / self.step).astype(np.intp)
        return place + EDGE

    def at(self, u: Array, numbers: Index) -> tuple[Array, Array]:
        """Values and slopes of rows (b,) at logits u (b, A), by a polynomial through eight points, half of them new."""
        x = (np.clip(u, self.first, self.last) - self.first) / self.step + EDGE
        left = np.floor(x).astype(np.intp) - 1
        around = self.values[numbers[:, None, None], left[..., None] + np.arange(-REACH, REACH + POINTS // 2)]
        near = around.astype(np.float64, copy=False) @ FINER
        weight, slope = _lagrange(2.0 * (x - left))
        return (near * weight).sum(-1), (near * slope).sum(-1) * (2.0 / self.step)

    def fallen(self, rows: Index, u: Array) -> tuple[Array, Array]:
        """By how much cdfs at logits u (k,) of rows (k,) are below those at the first logit, and densities there."""
        change, height = np.empty(len(u)), np.empty(len(u))
        step = max(1, CACHE_ELEMENTS // max(1, len(self.powers)))
        for start in range(0, len(u), step):
            part = slice(start, start + step)
            down = np.multiply.outer(np.minimum(u[part] - self.first, 0.0), self.powers)
            tails = self.tails[rows[part]]
            change[part] = (tails * np.expm1(down)).sum(1)
            height[part] = (tails * self.powers * np.exp(down)).sum(1)
        return change, height


class RowCurves:
    """Cdfs of some rows, each a sum of curves on even grids.

    Args:
        curves: whose sums they are.
        at_zero: probability of exactly 0 (b,).
        at_one: probability of exactly 1 (b,).
    """

    def __init__(self, curves: list[Curve], at_zero: Array, at_one: Array) -> None:
        self._curves, self.at_zero, self.at_one = curves, at_zero, at_one

    def at(self, u: Array, rows: Index | None = None) -> tuple[Array, Array]:
        """Cdf, and density of the logit, of all or some rows at logits u (b, A): (b, A), the atom at one left out."""
        rows = np.arange(len(u)) if rows is None else rows
        cdf, density = np.zeros(u.shape), np.zeros(u.shape)
        for curve in self._curves:
            values, heights = curve.at(u, rows)
            low = np.nonzero(u < curve.first)
            if len(low[0]):
                change, heights[low] = curve.fallen(rows[low[0]], u[low])
                values[low] += change
            cdf += values
            density += heights
        return cdf, np.maximum(density, 0.0)

    def _roughly(self, grid: Array) -> Array:
        """The cdfs at logits that all rows share, each at the nearest point of every curve (b, G)."""
        total = np.zeros((len(self.at_zero), len(grid)))
        for curve in self._curves:
            total += curve.values[:, curve.nearest(grid)]
            below = np.flatnonzero(grid < curve.first)
            total[:, below] += curve.tails @ np.expm1(np.multiply.outer(curve.powers, grid[below] - curve.first))
        return total

    def quantiles(self, levels: Array) -> Array:
        """Logits at which the cdf reaches levels (b, A); whatever they are where an atom holds the level."""
        first = min(curve.first for curve in self._curves)
        last = max(curve.last for curve in self._curves)
        # a rough look at points that cut the range into equal parts, then Newton inside a shrinking bracket
        grid = np.linspace(first, last, LOOKS)
        rising = np.maximum.accumulate(self._roughly(grid), axis=1)
        cell = np.clip((rising[:, None] <= levels[..., None]).sum(-1) - 1, 0, LOOKS - 2)
        below, above = (np.take_along_axis(rising, cell + side, 1) for side in (0, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(above > below, (levels - below) / (above - below), 0.5)
        u = grid[cell] + (grid[1] - grid[0]) * np.clip(part, 0.02, 0.98)
        apart = max(curve.step for curve in self._curves)  # what is rough about it
        low = np.where(cell > 1, grid[np.maximum(cell - 1, 0)] - apart, LOWEST)
        high = grid[np.minimum(cell + 2, LOOKS - 1)] + apart
        return newton(self.at, levels, u, low, high, 1e-12, 1e-11)


def _convolve(around: Complex, kernel: Complex, step: float, n_u: int) -> Array:
    """``∫ Im φ dy / step`` at all points of the table (p, n_u); the kernel is overwritten."""
    length = kernel.shape[1]
    kernel[:, n_u : length - around.shape[1] + 1] = 0.0
    before = (around[:, :1] * kernel[:, :n_u]).imag / math.expm1(step)  # before the first node it falls as e^y
    transform = scipy.fft.fft(around, length, axis=1)
    transform *= scipy.fft.fft(kernel, axis=1, overwrite_x=True)
    before += scipy.fft.ifft(transform, axis=1, overwrite_x=True)[:, :n_u].imag
    return before


def _log_factor(log_phase: Array) -> Complex:
    """``log(1 + i s)`` of ``log s``, complex."""
    return 0.5 * np.logaddexp(0.0, 2.0 * log_phase) + 1j * np.arctan(np.exp(np.minimum(log_phase, 700.0)))


def _midpoint_filter(reach: int, window: float) -> Array:
    """Weights of the points around that give the value half a step ahead: a sinc under Kaiser's window."""
    distance = np.arange(-reach, reach + 1) - 0.5
    weights = np.sinc(distance) * np.i0(window * np.sqrt(np.maximum(1.0 - (distance / reach) ** 2, 0.0)))
    weights[0] = 0.0  # as many on either side
    return weights / weights.sum()


#: Spectra of curves end at about half of what a step can bear, so that forty points around give one between to 1e-7.
REACH = 20
BETWEEN = _midpoint_filter(REACH, 14.0)
#: Points of the grid -> four of them, and the four behind each of these (2 REACH + 4, 8).
FINER = np.zeros((2 * REACH + POINTS // 2, POINTS))
for _number in range(POINTS // 2):
    FINER[REACH + _number, 2 * _number] = 1.0
    FINER[_number : _number + 2 * REACH + 1, 2 * _number + 1] = BETWEEN
_CENTRES = np.array([np.prod([i - j for j in range(POINTS) if j != i]) for i in range(POINTS)], dtype=np.float64)


def _lagrange(x: Array) -> tuple[Array, Array]:
    """Weights of the polynomial through eight even points at x (...), and of its derivative: (..., 8) each."""
    distance = x[..., None] - np.arange(POINTS)
    near = np.where(np.abs(distance) < 1e-9, 1e-9, distance)  # at a point itself the limit, to rounding
    product = near.prod(-1, keepdims=True)
    weight = product / near / _CENTRES
    inverse = 1.0 / near
    slope = weight * (inverse.sum(-1, keepdims=True) - inverse)
    return weight, slope
