"""Cdfs and quantiles of shares by one oscillating integral, for laws with a centre, with zeros, or with both.

A share of the labels A is ``Σ_A c g / Σ c g`` with gammas g, some of which may be absent. It is at most v where the
linear form ``X = e^{-u} Σ_A c g - Σ_rest c g``, ``u = logit v``, is not positive, hence (Gil-Pelaez, 1951)

    P(share <= v) = ½ - π⁻¹ ∫ Im φ(e^y) dy,      φ(t) = E[e^{itX}],   y = log t.

In a component (i, j) whose labels are all there φ is a product of one factor per neuron,

    z_i(t) = Π_A (1 - i t c_r e^{-u})^{-a_ir} Π_rest (1 + i t c_r)^{-a_ir},      a = ½ + w,

so that the sum over all components is a quadratic form ``zᵀ W z`` at every node (:class:`PresentShares`). Where labels
may be absent, a factor F of a pair becomes ``1 - p + p F`` and pairs are summed one by one (:class:`SparseShares`).

The integrand is analytic in a strip around the real line, so the trapezoid rule converges exponentially. Its step
follows the fastest phase that is still to be seen (:func:`nodes`). Where all labels are there, a component whose share
lies for certain on one side of v (by Chernoff's bound) counts as 0 or 1 and leaves the sum, and the phases of the
others are slow however sharp they are. Components with a heavy tail are never certain; their integral runs along a path
that tilts towards the tail, where the sharp side decays (:class:`_Kind`). Every third node makes a rule of its own, and
where the two disagree the nodes are too far apart: those sums are computed again with more of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import SWEEP_ELEMENTS
from snefy_ldl._internal.tolerances import TAIL_MASS

__all__ = [
    "MixedShares",
    "PresentShares",
    "SeveralShares",
    "ShareRow",
    "SparseShares",
    "beta_guess",
    "solve_quantiles",
]

#: Largest step of the trapezoid rule.
LARGEST_STEP = 0.2
#: Total concentration from which on components that lie on one side for certain are left out, and the rate at which
#: phases of the others turn at most.
SHARP, CERTAIN_RATE = 100.0, 60.0
#: The same along a straight path without them, and the widest step.
STRAIGHT_RATE, WIDEST = 72.0, 0.19
#: ... and the slopes of tilted paths, with the rates along them.
TILT, TILTED_RATE, STEEP_TILT, STEEP_RATE = 0.25, 96.0, 0.5, 60.0
#: The largest concentration, of the smaller side, that bears a small tilt: an integrand grows by e³ at most.
BEARABLE = 100.0
#: Components whose phases turn more slowly than this part of the fastest do not say where nodes are dense.
SLOW = 0.1
#: ... and dense they are up to so far behind the place where an integrand is over.
AFTER = 1.0
#: By how much faster phases turn in heavy tails.
HEAVIER = 1.4
#: Factors are followed down to e to minus this, and in float32: smaller numbers are slow, and next to nothing.
VANISHED, QUICK_VANISHED = 300.0, 35.0
#: Factors of neurons are no larger than e to this along the paths of their pairs.
GROWN = 6.0
#: Rate of a phase that the largest step can bear: where it turns fastest an integrand is small already.
SPARE = 10.0
#: A share, or what is left of one, with a smaller concentration than this has tails in which phases do not cancel.
BROAD = 25.0
#: Phases are followed until the integrand is below e to minus this.
SEEN = 17.0
#: How fast the step grows where nothing oscillates, and where an integrand is over: e to minus this.
GROWTH, TAIL = 2.0, 20.0
#: What an integrand's bound must exceed for its node to count.
LEAST = 1e-8
#: ... where all labels are there: densities of 1e-5 are asked for to five digits.
LEAST_PRESENT = 1e-11
#: Chernoff bounds below this make a component certain.
CERTAIN = 1e-9
#: Odds of e to minus this, relative to those of any interest, are so small that only their leading power counts.
FAR = 14.0
#: What an integral may differ by from that by every third node (the rule's own error is about the third power of it),
#: and how much denser nodes become at most, by threes, where one differs by more.
DOUBT, FINEST = 2e-4, 243.0
#: Neurons and pairs whose weights sum up to less than this are left out of a row.
NEGLIGIBLE = 1e-8
#: Neurons are left out of a kind of pairs where fewer than this part of them are needed.
FEWER = 0.8
#: Sums whose nodes are chosen at a time.
CONTOURS_TOGETHER = 128
#: Up to this many sums are answered in float64 throughout, and any number whose weights' sizes sum to this or more.
FEW_SUMS, CANCELS = 64, 4.0
#: Up to this many pairs of neurons share one grid, however sharp each of them is.
FEW_PAIRS = 8
#: Logits of shares between which quantiles are looked for.
LOWEST, HIGHEST = -690.0, 60.0
#: How far around a guess quantiles are looked for at first, in standard deviations and at most, and by what that grows.
AROUND_DEVIATIONS, AROUND, WIDER = 1.0, 2.5, 4.0
#: Rounds of Newton's method before the range is widened, and in the end.
ROUNDS, LAST_ROUNDS = 7, 80
#: Error of the log odds at which Newton's method stops, and of the level that its last step may leave.
GOOD, NEARLY = 1e-7, 1e-7
#: Changes of a slope per unit of the log odds: the least, and where nothing is known yet.
LEAST_BEND, UNKNOWN_BEND = 6.0, 300.0
#: A probability is kept this far from 0 and 1 where its log odds are taken.
LEAST_CHANCE = 1e-300


def log_modulus(log_phase: Tensor) -> Tensor:
    """``log |1 + i s|`` of ``log s``.

    Example:
        >>> log_modulus(torch.zeros(1).double()).exp().square()
        tensor([2.0000], dtype=torch.float64)
    """
    return 0.5 * softplus(2.0 * log_phase)


def turning(alpha: Tensor, log_size: Tensor) -> list[tuple[float, float, float]]:
    """How fast phases of gammas turn, as the trapezoid rule must know: rates, and the places between which they hold.

    A gamma, or a sum of some, turns the phase at the rate ``x √α`` where it has brought the modulus down to
    ``e^{-x²/2}``, near the place ``t = x / √(Σ α c²)``. What else is in the integrand need not lower the modulus (its
    own concentrations may be small), so every one is followed until it is over by itself.

    Args:
        alpha: concentrations of gammas or of sums of some (m,).
        log_size: logarithms of their ``Σ α c²`` (m,).

    Returns:
        Rates that add up, each with its first and its last place ``y = log t``.

    Example:
        >>> turning(torch.tensor([100.0, 1.0]), torch.tensor([4.6, 0.0]))[0][0] > 10.0
        True
    """
    rate = HEAVIER * math.sqrt(2.0 * SEEN) * alpha.sqrt()
    place = 0.5 * (math.log(2.0 * SEEN) - log_size)
    windows: list[tuple[float, float, float]] = []
    fastest = float(rate.max())
    while fastest > SPARE:  # half as fast and more: a window of half that rate, and so on for slower ones
        seen = place[rate >= 0.5 * fastest]
        if len(seen):
            last = max(float(seen.max()), windows[-1][2] if windows else -math.inf)
            first = min(float(seen.min()), windows[-1][1] if windows else math.inf)
        windows.append((0.5 * fastest, first, last))
        fastest *= 0.5
    return windows


def nodes(
    first: float, last: float, slowest: float, windows: list[tuple[float, float, float]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and weights of the trapezoid rule: as dense as phases turn, and far apart outside.

    The rule takes a wave of rate ω in y for one of rate ``2π/step - ω``. Without its phase an integrand holds waves of
    rate ω in proportion to ``e^{-πω/4}``, so ``2π/step`` exceeds the rate of the phase by a constant. Phases turn in
    proportion to t until their integrand is over, and those that live longer turn more slowly.

    Args:
        first: where the first phase begins.
        last: where the last one has come to rest, and only powers of t are left.
        slowest: the smallest of those powers.
        windows: rates of the phases and where they turn, from :func:`turning`.
        device: where the nodes lie.

    Returns:
        Both (q,).

    Example:
        >>> y, weight = nodes(-1.0, 2.0, 1.0, [], torch.device("cpu"))
        >>> round(float((weight / torch.cosh(y)).sum()) / torch.pi, 6)
        1.0
    """
    start, stop = first - GROWTH * (1.0 + math.log(TAIL)), last + GROWTH * (1.0 + math.log(TAIL / slowest))
    # windows that rise with t and are one at least from the first place to the last
    dense = [(rate / (2.0 * math.pi * math.tanh(0.5)), low - 1.0, high + 1.0) for rate, low, high in windows]

    def count(v: Tensor) -> Tensor:
        return v / LARGEST_STEP + sum(rate * (softplus(v - low) - softplus(v - high)) for rate, low, high in dense)

    def density(v: Tensor) -> Tensor:
        inside = sum(rate * (torch.sigmoid(v - low) - torch.sigmoid(v - high)) for rate, low, high in dense)
        return inside + torch.full_like(v, 1.0 / LARGEST_STEP)

    grid = torch.linspace(start, stop, 1025, dtype=torch.float64, device=device)
    counts = count(grid)
    number = torch.arange(math.ceil(float(counts[0])), float(counts[-1]), dtype=torch.float64, device=device)
    cell = torch.searchsorted(counts, number).clamp(1, len(grid) - 1)
    before, after = counts[cell - 1], counts[cell]
    v = grid[cell - 1] + (grid[1] - grid[0]) * (number - before) / (after - before)
    for _ in range(3):
        v = v - (count(v) - number) / density(v)
    up, down = torch.exp((v - last) / GROWTH - 1.0), torch.exp((first - v) / GROWTH - 1.0)
    return v + up - down, (1.0 + (up + down) / GROWTH) / density(v)


def _ranges(
    alpha: Tensor, log_centre: Tensor, inside: Tensor, lowest: Tensor, highest: Tensor
) -> tuple[Tensor, Tensor]:
    """Logarithm of the largest phase and of the smallest at t = 1, of every sum (R,): centres (S, L), ends (R,)."""
    top = torch.logsumexp(alpha.amax(0).log() + log_centre, 1).max()
    own_most = torch.where(inside, log_centre.amax(0), -torch.inf).amax(1)
    own_least = torch.where(inside, log_centre.amin(0), torch.inf).amin(1)
    return torch.maximum(top, own_most - lowest), torch.minimum(log_centre.min(), own_least - highest)


def _compact(y: Tensor, weight: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes that count, (R, q) moved to the front of every row; others have no weight."""
    weight = torch.where(keep, weight, 0.0)
    order = torch.argsort((~keep).to(torch.int8), dim=1, stable=True)[:, : max(1, int(keep.sum(1).max()))]
    return y.gather(1, order), weight.gather(1, order)


def _mask(groups: list[list[int]], n_labels: int, device: torch.device) -> Tensor:
    """The labels of every sum (R, L)."""
    inside = torch.zeros(len(groups), n_labels, dtype=torch.bool, device=device)
    for number, group in enumerate(groups):
        inside[number, group] = True
    return inside


class ShareRow(ABC):
    """The laws of some sums of shares of one row: what :func:`solve_quantiles` asks.

    Attributes:
        at_zero: probability that each sum is exactly 0 (R,).
        inside: probability that it lies strictly between 0 and 1 (R,).
        power_law: logits below which no further nodes are needed (R,), or None where there are none.
    """

    at_zero: Tensor
    inside: Tensor
    power_law: Tensor | None = None

    @abstractmethod
    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """Choose nodes for logits between two ends (r,) of the sums ``which`` (r,)."""

    @abstractmethod
    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Cdf and density of the logit at points u (r, A) of the sums ``which`` (r,); the atom at one is left out."""


class SeveralShares(ShareRow):
    """The sum of several laws of one row: parts of a mixture, each with its own weight inside.

    Args:
        parts: of the same sums of shares.
    """

    def __init__(self, parts: list[ShareRow]) -> None:
        self._parts = parts
        self.at_zero = torch.stack([part.at_zero for part in parts]).sum(0)
        self.inside = torch.stack([part.inside for part in parts]).sum(0)

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        for part in self._parts:
            part.prepare(lowest, highest, which)

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        cdfs, densities = zip(*(part.at(u, which) for part in self._parts))
        return torch.stack(cdfs).sum(0), torch.stack(densities).sum(0)


def beta_guess(mean: Tensor, second: Tensor, at_zero: Tensor, at_one: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits near which quantiles lie, by Beta laws with the same two moments between the atoms.

    Args:
        mean: ``E[share]`` (R,).
        second: ``E[share²]`` (R,).
        at_zero: ``P(share = 0)`` (R,).
        at_one: ``P(share = 1)`` (R,).
        levels: probabilities (R, A).

    Returns:
        Logits (R, A), and the standard deviation of the logit, roughly (R,).

    Example:
        >>> flat = torch.tensor([0.5]).double(), torch.tensor([1 / 3]).double()
        >>> none = torch.zeros(1).double()
        >>> beta_guess(*flat, none, none, torch.tensor([[0.75]]).double())[0].sigmoid()
        tensor([[0.7500]], dtype=torch.float64)
    """
    inside = (1.0 - at_zero - at_one).clamp_min(LEAST_CHANCE)
    mean = ((mean - at_one) / inside).clamp(1e-300, 1.0 - 1e-12)
    variance = ((second - at_one) / inside - mean.square()).clamp_min(1e-300)
    size = (mean * (1.0 - mean) / variance - 1.0).clamp(1e-3, 1e12)
    inner = ((levels - at_zero[:, None]) / inside[:, None]).clamp(1e-12, 1.0 - 1e-12)
    first, rest = ((part * size)[:, None].cpu().numpy() for part in (mean, 1.0 - mean))
    low = betaincinv(first, rest, inner.cpu().numpy())
    high = betaincinv(rest, first, 1.0 - inner.cpu().numpy())  # the share's complement, which may be tiny
    with np.errstate(divide="ignore"):
        logit = np.log(np.maximum(low, 1e-300)) - np.log(np.maximum(high, 1e-300))
    deviation = 1.0 / torch.sqrt(mean * (1.0 - mean) * (size + 1.0))
    # a Beta with a parameter far below one reaches down to e^-1/a, where nothing of the law need be
    floor = torch.logit(mean, 1e-300)[:, None] - 40.0 * deviation.clamp_max(10.0)[:, None]
    return torch.maximum(torch.as_tensor(logit).to(mean), floor).clamp(LOWEST, HIGHEST), deviation


def solve_quantiles(row: ShareRow, levels: Tensor, guess: Tensor, deviation: Tensor) -> Tensor:
    """Shares below which probabilities lie; 0 and 1 where an atom holds the level.

    Newton's method on the log odds of the cdf, kept inside a shrinking bracket.

    Args:
        row: the laws of R sums of shares.
        levels: probabilities (R, A).
        guess: logits near which the quantiles lie (R, A).
        deviation: of the logits, roughly (R,).

    Returns:
        (R, A).
    """
    share = torch.where(levels <= row.at_zero[:, None], 0.0, 1.0).to(levels)
    top = row.at_zero + row.inside
    wanted = (levels > row.at_zero[:, None]) & (levels < top[:, None])
    some = torch.nonzero(wanted.any(1)).squeeze(1)
    if not len(some):
        return share
    # of the part between the atoms
    inner = ((levels - row.at_zero[:, None]) / row.inside.clamp_min(LEAST_CHANCE)[:, None]).clamp(
        TAIL_MASS, 1.0 - TAIL_MASS
    )
    # a level that an atom holds takes the place of another one, so that it asks for no nodes of its own
    place = torch.where(wanted, guess, torch.inf).amin(1, keepdim=True)
    u, width = torch.where(wanted, guess, place), (AROUND_DEVIATIONS * deviation).clamp(max=AROUND)
    left, known = some, torch.stack([torch.full_like(u, -torch.inf), torch.full_like(u, torch.inf)])
    while len(left):
        u[left], there, known[:, left] = _newton(
            row, left, inner[left], u[left], width[left], wanted[left], known[:, left]
        )
        if float(width[left].max()) > HIGHEST - LOWEST:
            break
        left, width = left[~there.all(1)], width * WIDER
    return torch.where(wanted, torch.sigmoid(u), share)


def _newton(
    row: ShareRow, which: Tensor, inner: Tensor, u: Tensor, width: Tensor, wanted: Tensor, known: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (r, A) near a guess, which of them are right, and between which points they lie for certain (2, r, A)."""
    low, high = ((u + by * width[:, None]).clamp(LOWEST, HIGHEST) for by in (-1.0, 1.0))
    if row.power_law is not None:
        low = torch.where(low < row.power_law[which, None], LOWEST, low)
    between = known.isfinite().all(0)
    low, high = (torch.where(between, *ends) for ends in zip(known, (low, high)))
    u = torch.where((u > low) & (u < high), u, 0.5 * (low + high))
    row.prepare(low.amin(1), high.amax(1), which)
    there, goal = ~wanted, torch.logit(inner)
    last_time = float(width.max()) * WIDER > HIGHEST - LOWEST
    ends, known = (torch.where(between, -torch.inf, low), torch.where(between, torch.inf, high)), known.clone()
    rows, u, before = torch.arange(len(u), device=u.device), u.clone(), None
    for _ in range(LAST_ROUNDS if last_time else ROUNDS):
        # points that are right already take the place of others, which are asked for anyway
        old, done = u[rows], there[rows]
        at = torch.where(done, torch.where(done, torch.inf, old).amin(1, keepdim=True), old)
        value, density = row.at(at, which[rows])
        inside, zero = row.inside[which[rows], None], row.at_zero[which[rows], None]
        value = ((value - zero) / inside).clamp(LEAST_CHANCE, 1.0)
        error = torch.logit(value, LEAST_CHANCE) - goal[rows]
        below = error < 0.0
        low[rows], high[rows] = torch.where(below, at, low[rows]), torch.where(below, high[rows], at)
        known[0, rows] = torch.where(below & ~done, at, known[0, rows])
        known[1, rows] = torch.where(below | done, known[1, rows], at)
        step = value * (1.0 - value) / (density / inside).clamp_min(LEAST_CHANCE)  # of u, per log odds
        # by how much the slope changes per unit of the log odds: what a step leaves is in proportion to its powers
        bend, spread = torch.full_like(error, UNKNOWN_BEND), inner[rows] * (1.0 - inner[rows])
        newton, curved, cubic = at - error * step, at, torch.full_like(error, torch.inf)
        if before is not None:
            curved, bend, cubic = _hermite(at, error, step, *before)
        left = 0.5 * bend * error.square()
        newton, near = torch.where(cubic < left, curved, newton), torch.minimum(left, cubic) * spread < NEARLY
        within = (newton > low[rows]) & (newton < high[rows])
        good = error.abs() < GOOD
        near = near & within
        new = torch.where(good, at, torch.where(within, newton, 0.5 * (low[rows] + high[rows])))
        u[rows] = torch.where(done, old, new)
        there[rows] |= good | near | (high[rows] - low[rows] < 1e-11 * (1.0 + at.abs()))
        beyond = ((newton <= ends[0][rows]) & below.logical_not()) | ((newton >= ends[1][rows]) & below)
        beyond = beyond & ~there[rows] if not last_time else torch.zeros_like(beyond)
        if bool(beyond.any()):  # look further away at once
            far = 0.5 * WIDER * width[rows, None]
            u[rows] = torch.where(beyond, torch.maximum(torch.minimum(newton, at + far), at - far), u[rows])
        left = ~there[rows].all(1) & ~beyond.any(1)
        rows, before = rows[left], (at[left], error[left], step[left])
        if not len(rows):
            break
    return u, there, known


def _hermite(
    at: Tensor, error: Tensor, step: Tensor, before: Tensor, error_before: Tensor, step_before: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where the log odds are right by the cubic through two points and their slopes.

    Returns:
        The place, by how much the slope changes per unit of the log odds, and what error the cubic leaves, roughly.
    """
    apart = error_before - error
    far = apart.abs() > 1e-12
    gap = torch.where(far, apart, 1.0)
    t = -error / gap  # 0 here, 1 before
    slope, slope_before, rise = step * gap, step_before * gap, before - at
    curved = (
        at + t * slope + t**2 * (3.0 * rise - 2.0 * slope - slope_before) + t**3 * (slope + slope_before - 2.0 * rise)
    )
    bend = ((step / step_before).log() / gap).abs().clamp_min(LEAST_BEND)
    left = bend**3 * (error * error_before).square() / 24.0
    return curved, bend, torch.where(far & (bend * gap.abs() < 1.0), left, torch.inf)


# -- all labels are there ----------------------------------------------------------------------------------------------


class PresentShares(ShareRow):
    """Sums of shares of some rows in which every label is there: those of the first row, of the second, ...

    Pairs of neurons are of three kinds for a sum, each with a path of integration of its own: see :class:`_Kind`.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        weights: of all pairs of neurons (N, K, n, n), symmetric; ``Σ = 1``, or less where a row has other parts.
        log_centre: ``log c`` (N, L).
        groups: the labels of each sum.

    Example:
        >>> half, one = torch.tensor([[[1.0, 1.5, 2.5]]]).double(), torch.ones(1, 1, 1, 1).double()
        >>> row = PresentShares(half, one, torch.zeros(1, 3).double(), [[0]])  # Dirichlet(2, 3, 5)
        >>> u, all_sums = torch.logit(torch.tensor([[0.2]]).double()), torch.tensor([0])
        >>> row.prepare(u[:, 0], u[:, 0], all_sums)
        >>> row.at(u, all_sums)[0].round(decimals=6)
        tensor([[0.5638]], dtype=torch.float64)
    """

    def __init__(self, half: Tensor, weights: Tensor, log_centre: Tensor, groups: list[list[int]]) -> None:
        distinct = list(dict.fromkeys(tuple(group) for group in groups))
        number = torch.tensor([distinct.index(tuple(group)) for group in groups], dtype=torch.long, device=half.device)
        inside = _mask([list(group) for group in distinct], half.shape[2], half.device)
        sums = _Sums(number.repeat(len(weights)), log_centre.repeat_interleave(len(groups), 0), inside)
        self.at_zero = half.new_zeros(len(sums.number))
        self.inside = weights.sum((1, 2, 3)).repeat_interleave(len(groups))
        # many sums at a time are answered in float32, which is good to 1e-6 unless weights cancel
        quick = len(sums.number) > FEW_SUMS and float(weights.abs().sum((1, 2, 3)).max()) < CANCELS
        largest = 2.0 * half.amax((0, 1))
        self.power_law = power_law_below(largest, sums.log_centre, inside[sums.number])
        self._kinds = [
            _Kind(half, weights, mask, sums, self.power_law, tilt, quick)
            for tilt, mask in _kinds_of(half, weights, inside)
            if bool(mask.any())
        ]

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        for kind in self._kinds:
            kind.prepare(lowest, highest, which)

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        cdfs, densities = zip(*(kind.at(u, which) for kind in self._kinds))
        return torch.stack(cdfs).sum(0), torch.stack(densities).sum(0)


class MixedShares(ShareRow):
    """Sums of shares of one row that is a mixture of parts, which differ in their weights and centres alone.

    Args:
        half: ``a`` of every member's neurons (K, n, L).
        weights: of all pairs of neurons in every part (S, K, n, n).
        log_centre: ``log c`` of every part (S, L).
        groups: the labels of each sum.
    """

    def __init__(self, half: Tensor, weights: Tensor, log_centre: Tensor, groups: list[list[int]]) -> None:
        self._parts = PresentShares(half, weights, log_centre, groups)
        self._first = len(groups) * torch.arange(len(weights), device=half.device)[:, None]  # sums of every part
        self.at_zero = half.new_zeros(len(groups))
        self.inside = self._parts.inside.unflatten(0, (-1, len(groups))).sum(0)

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        ends = (end.repeat(len(self._first)) for end in (lowest, highest))
        self._parts.prepare(*ends, (self._first + which).flatten())

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        n_parts = len(self._first)
        cdf, density = self._parts.at(u.repeat(n_parts, 1), (self._first + which).flatten())
        return cdf.unflatten(0, (n_parts, -1)).sum(0), density.unflatten(0, (n_parts, -1)).sum(0)


@dataclass(frozen=True)
class _Sums:
    """Which sums of shares are asked for.

    Args:
        number: the group of labels of each sum (R,).
        log_centre: ``log c`` of its row (R, L).
        inside: the labels of every group, a mask (G, L).
    """

    number: Tensor
    log_centre: Tensor
    inside: Tensor


def fastest_phase(own: Tensor, rest: Tensor) -> Tensor:
    """How fast a component's phase turns at most before its integrand is over, by concentrations on both sides."""
    small, big = torch.minimum(own, rest), torch.maximum(own, rest)
    reach = small + 4.0 * small.sqrt() + 10.0
    x = torch.full_like(small, math.sqrt(2.0 * SEEN))
    for _ in range(4):  # x²/2 + ½ small log(1 + big x²/reach²) = SEEN, from above
        lowered = 0.5 * small * torch.log1p(big * (x / reach).square())
        x = torch.sqrt(2.0 * (SEEN - lowered).clamp_min(0.5 * SEEN))
    return x * big.sqrt() * torch.where(small < BROAD, HEAVIER, 1.0)  # heavy tails hold more of the fast phases


def _kinds_of(half: Tensor, weights: Tensor, inside: Tensor) -> list[tuple[float, Tensor]]:
    """Tilts of paths, and which pairs of neurons take each of them for every group of labels (G, K, n, n).

    Where only one side has heavy tails and the other pairs bear a small tilt, all share one path. Elsewhere heavy tails
    of either side take a steep path of their own.
    """
    own = (half @ inside.double().T).movedim(-1, 0)  # (G, K, n)
    rest = half.sum(-1) - own
    own, rest = (side[..., :, None] + side[..., None, :] for side in (own, rest))  # (G, K, n, n)
    small, used = torch.minimum(own, rest), weights.abs().amax(0) > NEGLIGIBLE / weights[0].numel()
    heavy = (small < BROAD) & (fastest_phase(own, rest) > CERTAIN_RATE) & used
    own_heavy, rest_heavy = heavy & (own < rest), heavy & (own >= rest)
    some_own, some_rest = (part.flatten(1).any(1)[:, None, None, None] for part in (own_heavy, rest_heavy))
    bear = (small * used).amax((1, 2, 3), keepdim=True) < BEARABLE
    shared_own, shared_rest = some_own & ~some_rest & bear, some_rest & ~some_own & bear
    alone = ~(shared_own | shared_rest)
    return [
        (0.0, ~heavy & alone),
        (TILT, shared_own.expand_as(heavy)),
        (-TILT, shared_rest.expand_as(heavy)),
        (STEEP_TILT, own_heavy & alone),
        (-STEEP_TILT, rest_heavy & alone),
    ]


class _Kind:
    """What pairs of neurons of one kind contribute to sums of shares.

    The path of integration leaves the origin along the imaginary axis. Where one side of a sum has a small
    concentration and the other is sharp, the share has a heavy tail, in which the phases of the sharp side turn fast
    and long: the path then tilts towards that tail, where the sharp side itself decays. The branch points of the other
    side make the integrand grow there, by ``(1 + κ²)^{α/2}`` at most, α being its small concentration.

    Args:
        half: ``a`` of all neurons (K, n, L).
        weights: of all pairs (N, K, n, n).
        mask: the pairs of this kind, for every group of labels (G, K, n, n).
        sums: which are asked for, the same number for each of N rows.
        power_law: logits below which cdfs are powers (R,).
        tilt: of the path, κ; zero for pairs that need none.
        quick: whether float32 is good enough.
    """

    def __init__(
        self, half: Tensor, weights: Tensor, mask: Tensor, sums: _Sums, power_law: Tensor, tilt: float, quick: bool
    ) -> None:
        self._sums, self._power_law, self._tilt, self._quick = sums, power_law, tilt, quick
        self._row = torch.arange(len(weights), device=half.device).repeat_interleave(len(sums.number) // len(weights))
        self._asked = mask.flatten(1).any(1)[sums.number]  # sums that have such pairs (R,)
        # neurons that carry weight in such pairs in any row: as many per member and group as the one with most needs
        size = (weights.abs().amax(0) * mask).sum(-1)  # (G, K, n)
        order = size.argsort(-1, descending=True)
        left = size.gather(-1, order).flip(-1).cumsum(-1).flip(-1)  # what a cut before this neuron leaves out
        n_kept = max(1, int((left > NEGLIGIBLE / len(half)).sum(-1).max()))
        self._weights, self._mask, self._order = weights, mask, None
        self._half, self._belongs = half[None], mask.any(-1)  # (1 or G, K, m, L); neurons that have such pairs
        if n_kept < FEWER * half.shape[1]:
            self._order = order[..., :n_kept].sort(-1).values  # (G, K, m)
            self._half = half[torch.arange(len(half), device=half.device)[:, None], self._order]
            self._belongs = self._belongs.gather(-1, self._order)
        self._total = 2.0 * float(self._half.sum(-1).max())
        #: the labels of every group, one place after the other (places, G), and whether there is one (places, G)
        rank, n_labels = (~sums.inside).to(torch.int8).argsort(dim=1, stable=True).T, sums.inside.sum(1)
        self._labels = rank[: int(n_labels.max())]
        self._holds = (torch.arange(len(self._labels), device=half.device)[:, None] < n_labels).to(half)

    def _half_of(self, number: Tensor) -> Tensor:
        """``a`` of the neurons (r, K, m, L) for some groups (r,)."""
        return self._half.expand(len(number), -1, -1, -1) if self._order is None else self._half[number]

    def _add_up(self, number: Tensor, table: Tensor) -> Tensor:
        """``Σ_l a_l table_l`` for some groups: (r, L, q) -> (r, K, m, q)."""
        if self._order is None:
            return torch.einsum("kil,rlq->rkiq", self._half[0], table)
        return torch.einsum("rkil,rlq->rkiq", self._half[number], table)

    def _weights_of(self, which: Tensor) -> Tensor:
        """Weights of the pairs of some sums (r, K, m, m)."""
        row, number = self._row[which], self._sums.number[which]
        if self._order is None:
            return self._weights[row] * self._mask[number]
        member = torch.arange(self._mask.shape[1], device=row.device)[:, None, None]
        first, second = self._order[number][..., :, None], self._order[number][..., None, :]
        at = (member, first, second)
        return self._weights[(row[:, None, None, None], *at)] * self._mask[(number[:, None, None, None], *at)]

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See :class:`ShareRow`."""
        self._between = lowest.new_zeros(2, len(self._power_law))
        self._between[:, which] = torch.stack([torch.maximum(end, self._power_law[which]) for end in (lowest, highest)])
        which = which[self._asked[which]]
        # sums that need about as many nodes are answered together: first by where they are asked for, then by number
        in_order = which[self._between[0, which].argsort()].split(CONTOURS_TOGETHER) if len(which) else ()
        self._blocks = [block for some in in_order for block in self._nodes_of(some, 1.0)]

    def _nodes_of(self, which: Tensor, finer: float) -> list[_Nodes]:
        """Nodes of some sums, so many times as dense as they should be."""
        highest = self._between[1, which]
        number, centre = self._sums.number[which], self._sums.log_centre[which]
        inside, certain = self._sums.inside[number], self._total > SHARP
        contour = self._contour(which, certain, finer)
        tilts = None
        if certain:
            sizes = (2.0 * self._half_of(number).mean((1, 2))).log() + centre
            scale = torch.where(inside, -torch.inf, sizes).logsumexp(1, keepdim=True)  # of the rest
            theta, lifted = _Tilts.theta_of(scale, centre, inside, self._total)
            tilts = _Tilts.of(theta, centre, lifted, self._add_up(number, lifted.clamp_min(1e-300).log()))
        count, per_node = (contour.weight != 0.0).sum(1), self._half[0, ..., 0].numel()
        blocks, order, start = [], count.argsort(descending=True), 0
        while start < len(order):
            n_nodes = max(1, int(count[order[start]]))
            chosen = order[start : start + max(1, 8 * SWEEP_ELEMENTS // (per_node * max(n_nodes, self._half.shape[2])))]
            part, groups = contour.take(chosen, n_nodes), number[chosen]
            factors = part.log_factor(centre[chosen][..., None], 1.0)  # (r, L, q) each
            without = inside[chosen][..., None]
            sizes, angles = (self._add_up(groups, side.masked_fill_(without, 0.0)).neg_() for side in factors)
            # moduli fall as the logit rises: what is over at the highest one needs no nodes
            bound = sizes
            for labels, own in self._own(groups):
                log_scale = centre[chosen].gather(1, labels[:, None]) - highest[chosen][:, None]
                moved, _ = part.log_factor(log_scale[..., None], -1.0)  # (r, 1, q)
                bound = bound - own[..., None] * moved[:, None]
            bound = bound.masked_fill(~self._belongs[groups][..., None], -torch.inf)
            keep = 2.0 * bound.amax((1, 2)) + part.weight.abs().log() > math.log(LEAST_PRESENT)
            kept = torch.argsort((~keep).to(torch.int8), dim=1, stable=True)[:, : max(1, int(keep.sum(1).max()))]
            sizes, angles = (
                table.gather(3, kept[:, None, None].expand(-1, *table.shape[1:3], -1)) for table in (sizes, angles)
            )
            own_tilts = None if tilts is None else tilts.take(chosen)
            weights = self._weights_of(which[chosen])
            blocks.append(_Nodes(which[chosen], finer, part.only(keep, kept), sizes, angles, weights, own_tilts))
            start += len(chosen)
        return blocks

    def _contour(self, which: Tensor, certain: bool, finer: float) -> Contour:
        """Nodes of some sums: where the phases of components turn, and how fast.

        Where components that lie on one side for ``certain`` have left the sum, phases of the others turn slowly, which
        is believed only where nodes are not finer than they should be; steep paths are believed once more.
        """
        steep = abs(self._tilt) >= STEEP_TILT
        believed = finer <= (3.0 if steep else 1.0)
        (lowest, highest), tilt = self._between[:, which], self._tilt if believed else 0.0
        number, centre = self._sums.number[which], self._sums.log_centre[which]
        inside = self._sums.inside[number]
        sizes = centre.exp()
        table = torch.stack([torch.ones_like(sizes), sizes, sizes.square()], 2)  # counts, means, variances
        mask = inside[..., None]
        own, size_own, spread_own = (
            2.0 * part.flatten(1) for part in self._add_up(number, torch.where(mask, table, 0.0)).unbind(-1)
        )
        others, size_rest, spread_rest = (
            2.0 * part.flatten(1) for part in self._add_up(number, torch.where(mask, 0.0, table)).unbind(-1)
        )
        belongs = self._belongs[number].flatten(1)
        rate = torch.where(belongs, fastest_phase(own, others), 0.0)
        broad = torch.minimum(own, others) < BROAD
        if tilt:
            rate = rate.clamp_max(STEEP_RATE if steep else TILTED_RATE)
        elif certain and finer == 1.0:
            rate = rate.clamp_max(STRAIGHT_RATE)
        slow = rate < SLOW * rate.amax(1, keepdim=True)
        places = []
        for u in (lowest[:, None], highest[:, None]):
            moved, fixed = spread_own.log() - 2.0 * u, spread_rest.log()
            larger = torch.where(own < others, fixed, moved)  # phases of the larger side outlast a heavy tail
            place = 0.5 * (math.log(2.0 * SEEN) - torch.where(broad, larger, torch.logaddexp(moved, fixed)))
            if tilt:  # over where the sharp side has decayed
                decay = size_rest.log() if tilt > 0.0 else size_own.log() - u
                place = torch.where(broad | steep, torch.minimum(place, math.log(SEEN / abs(tilt)) - decay), place)
            places.append(place)
        low = torch.stack([part.masked_fill(slow, torch.inf).amin(1) for part in places]).amin(0)
        high = torch.stack([part.masked_fill(slow, -torch.inf).amax(1) for part in places]).amax(0)
        own_most = torch.where(inside, centre, -torch.inf).amax(1)
        own_least = torch.where(inside, centre, torch.inf).amin(1)
        # what has far more inside the sum than outside lies there for certain, unless its tails are heavy
        most = own_most if certain and not steep else torch.maximum(own_most, (size_own * belongs).amax(1).log())
        start = -torch.stack([((size_own + size_rest) * belongs).amax(1).log(), centre.amax(1), most - lowest]).amax(0)
        last = torch.maximum(-torch.minimum(centre.amin(1), own_least - highest) + 2.0, high) - start
        smallest = self._half.flatten(1, 2).amin(1).topk(2, largest=False).values  # two labels may be all there is
        slowest = min(1.0, 2.0 * float(smallest.sum(1).min()))
        return Contour.of(start, low - start, high - start, last, slowest, rate.amax(1), tilt, finer)

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`ShareRow`."""
        place = torch.full((len(self._row),), -1, device=u.device)
        place[which] = torch.arange(len(which), device=u.device)
        cdf, density = torch.zeros_like(u), torch.zeros_like(u)
        blocks, self._blocks = self._blocks, []
        while blocks:
            block = blocks.pop()
            at = place[block.sums]
            asked = at >= 0
            doubtful = torch.zeros_like(asked)
            if bool(asked.any()):
                at, part = at[asked], block if bool(asked.all()) else block.take(asked)
                cdf[at], density[at], doubt = self._block(u[at], part)
                doubtful[asked] = ~(doubt <= DOUBT).all(1) & (block.finer < FINEST)  # NaN is doubtful, too
            if bool(doubtful.any()):
                blocks += self._nodes_of(block.sums[doubtful], 3.0 * block.finer)
                block = block.take(~doubtful)
            if len(block.sums):
                self._blocks.append(block)
        return cdf, density

    def _own(self, number: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The labels of some groups (r,), one place after the other, and their halves (r, K, m); zero for none."""
        for labels, holds in zip(self._labels[:, number], self._holds[:, number]):
            half = (
                self._half[0, :, :, labels].movedim(-1, 0) if self._order is None else self._half[number, ..., labels]
            )
            yield labels, half * holds[:, None, None]

    def _block(self, u: Tensor, block: _Nodes) -> tuple[Tensor, Tensor, Tensor]:
        """Cdf, density, and what every third node leaves in doubt."""
        # axes: sum r, point a, member k, neuron i, node q
        contour, number = block.contour, self._sums.number[block.sums]
        size, angle = block.sizes[:, None], block.angles[:, None]
        centre, slopes = self._sums.log_centre[block.sums], []
        weights, sure = block.weights[:, None], u.new_zeros(())
        below = (u - self._power_law[block.sums, None]).clamp_max(0.0)
        u, falls = u - below, bool((below < 0.0).any())
        own = list(self._own(number))
        for labels, half in own:
            log_scale = (centre.gather(1, labels[:, None]) - u)[..., None]  # (r, a, 1)
            modulus, turn = contour.log_factor(log_scale, -1.0)  # (r, a, q)
            half = half[:, None, ..., None]  # (r, 1, K, m, 1)
            size = torch.addcmul(size, half, modulus[:, :, None, None], value=-1.0)
            angle = torch.addcmul(angle, half, turn[:, :, None, None], value=-1.0)
            slopes.append((half.transpose(-1, -2), contour.slope(log_scale)))
            if falls:
                fallen = torch.exp(half.squeeze(-1) * below[..., None, None])  # (r, a, K, m)
                weights = weights * fallen[..., None] * fallen[..., None, :]
        if block.tilts is not None:
            near, above = block.tilts.near(u, own)
            sure = (weights * above).sum((2, 3, 4))
            weights = weights * near
        middle = 0.5 * weights.sum((2, 3, 4)) + sure
        if self._quick:
            angle = angle.sub_((angle / (2.0 * math.pi)).round_(), alpha=2.0 * math.pi).float()
            size, weights = size.float(), weights.float()
        # neurons without such pairs may grow along a tilted path
        modulus = size.clamp_(-QUICK_VANISHED if self._quick else -VANISHED, GROWN).exp_()
        real, imaginary = angle.cos().mul_(modulus), angle.sin_().mul_(modulus)
        turned_real, turned_imaginary = weights @ real, weights @ imaginary
        cross = (real * turned_imaginary).addcmul_(imaginary, turned_real)
        plain = turned_real.mul_(real).addcmul_(imaginary, turned_imaginary, value=-1.0)
        weight = contour.weight[:, None]  # (r, 1, q), complex
        terms = cross.sum((2, 3)) * weight.real + plain.sum((2, 3)) * weight.imag  # (r, a, q)
        integral, third = terms.sum(-1), 3.0 * (terms * contour.third[:, None]).sum(-1)
        density = torch.zeros_like(integral)
        for half, slope in slopes:  # d log z / du = -Σ a s / (1 - s)
            turn, half = slope * weight, half.to(plain.dtype)  # (r, 1, K, 1, m)
            rising, falling = ((half @ part).sum(2).squeeze(-2) for part in (plain, cross))  # (r, a, q)
            density = density + (rising * turn.imag + falling * turn.real).sum(-1)
        return middle - integral / math.pi, 2.0 * density / math.pi, (integral - third).abs() / math.pi


@dataclass(frozen=True)
class _Nodes:
    """Nodes of some sums, and what does not depend on the point asked for.

    Args:
        sums: their numbers (r,).
        finer: so many times as dense as they should be.
        contour: the nodes.
        sizes: log modulus of the labels outside the sum, in every neuron (r, K, m, q).
        angles: the angle of their product (r, K, m, q).
        weights: of the pairs (r, K, m, m).
        tilts: bounds that make components certain, or None where none is so sharp.
    """

    sums: Tensor
    finer: float
    contour: Contour
    sizes: Tensor
    angles: Tensor
    weights: Tensor
    tilts: _Tilts | None

    def take(self, rows: Tensor) -> _Nodes:
        """Those of some of the sums, a mask."""
        return _Nodes(
            self.sums[rows],
            self.finer,
            self.contour.take(rows, self.contour.weight.shape[1]),
            self.sizes[rows],
            self.angles[rows],
            self.weights[rows],
            None if self.tilts is None else self.tilts.take(rows),
        )


def power_law_below(largest: Tensor, log_centre: Tensor, inside: Tensor) -> Tensor:
    """Logits (R,) below which the cdf of a sum is a power of its odds under every component.

    With ``ε = e^u`` it is ``P(Σ_own c g <= ε Σ_rest c g)``, and up to a part in proportion to ε it is ``ε^α``, α the
    sum's concentration, times what does not depend on ε.

    Args:
        largest: the largest concentration of every label (L,).
        log_centre: ``log c`` of every sum (R, L).
        inside: labels of every sum, a mask (R, L).
    """
    rest = torch.where(inside, -torch.inf, torch.log1p(largest) + log_centre).logsumexp(1)
    return torch.where(inside, log_centre, torch.inf).amin(1) - rest - FAR


@dataclass(frozen=True)
class Contour:
    """Nodes of the integral ``½ - π⁻¹ ∫ Im φ(s) ds/s`` where every label is there, of every sum.

    The path ``s(w) = t₀ (i sinh w + κ (cosh w - 1))``, w > 0, leaves the origin along the imaginary axis, so that the
    integrand is even in w and the rule needs no nodes near the origin. Far out its slope is κ, towards a heavy tail.

    Args:
        log_size: ``log |s|`` (R, q).
        direction: ``s / |s|`` (R, q), complex.
        weight: ``ds/s`` (R, q), complex; zero where a sum needs fewer nodes.
        third: one at every third node, which make a rule of their own, else zero (R, q).
    """

    log_size: Tensor
    direction: Tensor
    weight: Tensor
    third: Tensor

    @classmethod
    def of(
        cls,
        start: Tensor,
        low: Tensor,
        high: Tensor,
        last: Tensor,
        slowest: float,
        rate: Tensor,
        tilt: float,
        finer: float,
    ) -> Contour:
        """Nodes at half-integers of a count: dense between two places, far apart after the last one.

        Args:
            start: ``log t₀`` of every sum (R,), where phases begin.
            low: where the fast ones begin, all places relative to that (R,).
            high: where they are over (R,).
            last: where all have come to rest, and only powers of s are left (R,).
            slowest: the smallest of those powers.
            rate: of the fastest phase between both places (R,).
            tilt: κ.
            finer: nodes are so many times as dense as they should be.
        """
        low, high, last = (part[:, None] for part in (low, high, last))
        low, high, last = (part.clamp_min(0.0) + math.log(2.0) for part in (low - 1.0, high + AFTER, last))
        stop = last + GROWTH * (1.0 + math.log(TAIL / slowest))
        dense, widest = finer * rate[:, None] / (2.0 * math.pi), WIDEST / finer

        def count(v: Tensor) -> Tensor:
            window = softplus(v - low) - softplus(v - high) - softplus(-v - low) + softplus(-v - high)
            return v / widest + dense * window

        end = count(stop)
        number = torch.arange(float(end.max()), dtype=torch.float64, device=low.device) + 0.5
        left, right = torch.zeros_like(stop), stop + widest
        # the count at even places, turned around
        grid = torch.linspace(0.0, 1.0, 257, dtype=torch.float64, device=low.device) * (right + widest)
        counts = count(grid)
        cell = torch.searchsorted(counts, number.expand(len(counts), -1).contiguous()).clamp(1, 256)
        before, after = counts.gather(1, cell - 1), counts.gather(1, cell)
        left, right = grid.gather(1, cell - 1), grid.gather(1, cell)
        v = left + (right - left) * ((number - before) / (after - before)).clamp(0.0, 1.0)

        def density(v: Tensor) -> Tensor:
            window = (
                torch.sigmoid(v - low) - torch.sigmoid(v - high) + torch.sigmoid(-v - low) - torch.sigmoid(-v - high)
            )
            return 1.0 / widest + dense * window

        for _ in range(3):
            v = v - (count(v) - number) / density(v)
        v, within = torch.minimum(v, stop), number < end
        up, down = torch.exp((v - last) / GROWTH - 1.0), torch.exp((-v - last) / GROWTH - 1.0)
        w = v + up - down
        change = torch.where(within, (1.0 + (up + down) / GROWTH) / density(v), 0.0)
        flat = 1.0 / torch.cosh(w.clamp_max(350.0))
        tanh = torch.tanh(w)
        place = torch.complex(tilt * (1.0 - flat), tanh)  # s over t₀ cosh w
        size = place.abs()
        log_cosh = w + torch.log1p(torch.exp(-2.0 * w)) - math.log(2.0)
        slope = torch.complex(tilt * tanh, torch.ones_like(w))
        third = (torch.arange(len(number), device=low.device) % 3 == 1).to(w).expand_as(w)
        return cls(start[:, None] + log_cosh + size.log(), place / size, slope / place * change, third)

    def only(self, keep: Tensor, order: Tensor) -> Contour:
        """Some nodes of every sum, in this order (R, q); those that do not count lose their weight."""
        weight = torch.where(keep, self.weight, 0.0)
        return Contour(*(part.gather(1, order) for part in (self.log_size, self.direction, weight, self.third)))

    def take(self, rows: Tensor, n_nodes: int) -> Contour:
        """The first nodes of some of the sums."""
        return Contour(*(part[rows, :n_nodes] for part in (self.log_size, self.direction, self.weight, self.third)))

    def _relative(self, log_scale: Tensor, sign: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of ``q = ± e^log_scale s``: ``log |q|``, ``min(|q|, 1/|q|)``, and both parts of its direction."""
        phase = self.log_size[:, None] + log_scale
        return phase, torch.exp(-phase.abs()), sign * self.direction.real[:, None], sign * self.direction.imag[:, None]

    def log_factor(self, log_scale: Tensor, sign: float) -> tuple[Tensor, Tensor]:
        """Logarithm of the modulus, and angle, of ``1 ± e^log_scale s``: log_scale (R, a, 1) -> (R, a, q) each."""
        phase, small, real, imaginary = self._relative(log_scale, sign)
        modulus = 0.5 * torch.log1p(small * (2.0 * real + small)) + phase.clamp_min(0.0)
        first = phase < 0.0
        angle = torch.atan2(
            torch.where(first, small, 1.0) * imaginary, torch.where(first, 1.0 + small * real, small + real)
        )
        return modulus, angle

    def slope(self, log_scale: Tensor) -> Tensor:
        """``q / (1 - q)`` of ``q = e^log_scale s`` (R, a, q), complex."""
        phase, small, real, imaginary = self._relative(log_scale, 1.0)
        below = 1.0 - 2.0 * small * real + small.square()
        above = small * real - torch.where(phase < 0.0, small.square(), 1.0)
        return torch.complex(above / below, small * imaginary / below)


@dataclass(frozen=True)
class _Tilts:
    """Chernoff's bounds: which components lie for certain on one side of a point.

    ``P(X > 0) <= E[e^{θX}]`` and ``P(X <= 0) <= E[e^{-θX}]`` for every θ > 0, and both are products over neurons.

    Args:
        log_centre: ``log c`` of every sum (R, L).
        theta: of either sign, of every sum (R, T).
        base: ``-Σ_rest a_r log(1 + θ c_r)`` (R, K, m, T), infinite where there is no such expectation.
    """

    log_centre: Tensor
    theta: Tensor
    base: Tensor

    @staticmethod
    def theta_of(scale: Tensor, log_centre: Tensor, inside: Tensor, total: float) -> tuple[Tensor, Tensor]:
        """Values of θ around ``1 / scale`` (R, T), and ``1 + θ c`` of the labels outside a sum (R, L, T), else one."""
        powers = torch.arange(0.5, 0.5 * math.log2(max(total, 4.0)) + 0.75, device=scale.device, dtype=torch.float64)
        theta = 4.0**powers * torch.exp(-scale)
        theta = torch.cat([theta, -theta], 1)
        return theta, torch.where(inside[..., None], 1.0, 1.0 + theta[:, None] * log_centre.exp()[..., None])

    @classmethod
    def of(cls, theta: Tensor, log_centre: Tensor, lifted: Tensor, logs: Tensor) -> _Tilts:
        """From ``1 + θ c`` (R, L, T) and the neurons' sums of its logarithms (R, K, m, T)."""
        return cls(log_centre, theta, torch.where((lifted <= 0.0).any(1)[:, None, None], torch.inf, -logs))

    def take(self, rows: Tensor) -> _Tilts:
        """Those of some of the sums."""
        return _Tilts(self.log_centre[rows], self.theta[rows], self.base[rows])

    def near(self, u: Tensor, own: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Components that are not certain, and those that lie below the point, masks (r, a, K, m, m).

        ``own`` are the labels of every sum, one place after the other, and their halves (r, K, m).
        """
        bound, theta = self.base[:, None], self.theta[:, None]
        for labels, half in own:
            moved = (self.log_centre.gather(1, labels[:, None]) - u).exp()  # c e^{-u} (r, a)
            lifted = 1.0 - theta * moved[..., None]
            logs = torch.where(lifted > 0.0, lifted.clamp_min(1e-300).log(), -torch.inf)  # (r, a, T)
            bound = bound - half[:, None, ..., None] * logs[:, :, None, None]
        bound = bound.nan_to_num(nan=torch.inf).float()
        n_theta, limit = bound.shape[-1] // 2, math.log(CERTAIN)

        def certain(part: Tensor) -> Tensor:
            answer = part[..., :, None, 0] + part[..., None, :, 0]
            for t in range(1, part.shape[-1]):
                torch.minimum(answer, part[..., :, None, t] + part[..., None, :, t], out=answer)
            return answer < limit

        above, below = certain(bound[..., n_theta:]), certain(bound[..., :n_theta])
        return ~(above | below), below & ~above


# -- labels may be absent ----------------------------------------------------------------------------------------------


class SparseShares(ShareRow):
    """Sums of shares of one row in which labels may be absent.

    Several terms may belong to one pair of neurons (the parts of a law after votes); for single labels these are added
    up once, before any point is asked for.

    Args:
        half: ``a = ½ + w`` of the neurons (n, L), float64.
        first: one neuron of every term (T,).
        second: the other (T,).
        weights: of the terms (T,); ``Σ = 1``, or less where the row has other parts.
        log_odds: of presence, in every term (T, L).
        log_centre: ``log c`` (L,).
        groups: the labels of each sum.

    Example:
        >>> half, odds = torch.tensor([[1.0, 1.5, 2.5]]).double(), torch.full((1, 3), 40.0).double()
        >>> pair, one = torch.tensor([0]), torch.ones(1).double()
        >>> row = SparseShares(half, pair, pair, one, odds, torch.zeros(3).double(), [[0]])  # Dirichlet(2, 3, 5)
        >>> u = torch.logit(torch.tensor([[0.2]]).double())
        >>> row.prepare(u[:, 0], u[:, 0], pair)
        >>> row.at(u, pair)[0].round(decimals=6)
        tensor([[0.5638]], dtype=torch.float64)
    """

    def __init__(
        self,
        half: Tensor,
        first: Tensor,
        second: Tensor,
        weights: Tensor,
        log_odds: Tensor,
        log_centre: Tensor,
        groups: list[list[int]],
    ) -> None:
        order = weights.abs().argsort(descending=True)
        left = weights.abs()[order].flip(0).cumsum(0).flip(0)  # what a cut before this term leaves out
        kept = order[: max(1, int((left > NEGLIGIBLE).sum()))].sort().values
        # both neurons of every pair (P, 2), and the pair of every term (T,)
        ends, self._pair = torch.unique(torch.stack([first[kept], second[kept]], 1), dim=0, return_inverse=True)
        self._ends, self._half, self._groups, self._log_centre = ends, half, groups, log_centre
        self._alpha = half[ends[:, 0]] + half[ends[:, 1]]  # (P, L)
        log_odds = log_odds[kept]
        self._there, self._absent = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
        self._log_absent = -softplus(log_odds)
        self._inside = _mask(groups, half.shape[1], half.device)
        mask = self._inside.double()
        none_in, self._none_out = ((part @ self._log_absent.T).exp() for part in (mask, 1.0 - mask))  # (R, T)
        self._none_in = none_in
        self._scale = weights[kept] / -torch.expm1(self._log_absent.sum(1))
        self.at_zero = (none_in * (1.0 - self._none_out)) @ self._scale
        self.inside = ((1.0 - none_in) * (1.0 - self._none_out)) @ self._scale
        total = self._alpha.sum(1)
        octave = torch.where(total > 64.0, torch.ceil(0.5 * torch.log2(total / 64.0)), torch.zeros_like(total))
        if len(total) <= FEW_PAIRS:
            octave = torch.zeros_like(total)
        self._octaves = [torch.nonzero(octave == value).squeeze(1) for value in octave.unique()]

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        self._position = torch.empty(len(self._groups), dtype=torch.long, device=which.device)
        self._position[which] = torch.arange(len(which), device=which.device)
        single = all(len(group) == 1 for group in self._groups)
        make = self._added_up if single else self._one_by_one
        self._parts = [part for pairs in self._octaves for part in make(pairs, lowest, highest, which)]

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        points = torch.stack([u.flatten(), which.repeat_interleave(u.shape[1]).to(u)], 1)
        points, same = torch.unique(points, dim=0, return_inverse=True)  # levels that an atom holds repeat others
        logits, numbers = points[:, 0], points[:, 1].long()
        integral, slope = torch.zeros_like(logits), torch.zeros_like(logits)
        for part in self._parts:
            for block in torch.arange(len(logits), device=u.device).split(part.points_at_a_time):
                change = part.integrals(logits[block], self._position[numbers[block]])
                integral[block] += change[0]
                slope[block] += change[1]
        integral, slope = integral[same].view_as(u), slope[same].view_as(u)
        middle = (self.at_zero + 0.5 * self.inside)[which]
        return middle[:, None] - integral / math.pi, slope / math.pi

    def _nodes(
        self, pairs: Tensor, terms: Tensor, lowest: Tensor, highest: Tensor, which: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Nodes and weights (q,) for some pairs, the same for all sums: the product over labels is made once."""
        alpha, centre, inside = self._alpha[pairs], self._log_centre[None], self._inside[which]
        largest, smallest = _ranges(alpha, centre, inside, lowest, highest)
        slowest = min(1.0, float(alpha.topk(2, 1, largest=False).values.sum(1).min()))
        windows = self._turning(alpha, inside, lowest, highest)
        begun, settled = -float(largest.amax()), -float(smallest.amin())
        y, weight = nodes(begun - 1.0, settled + 2.0, slowest, windows, alpha.device)
        keep = y > begun - TAIL - 4.0
        y, weight = y[keep], weight[keep]
        # moduli fall as y rises: where all are over, so is every integrand
        alpha, mask = self._alpha[self._pair[terms]], inside.double().T  # (T, L), (L, R)
        moved = self._log_centre - torch.where(inside, highest[:, None], -torch.inf).amax(0).clamp_min(LOWEST)
        sides = [(self._log_centre, 1.0 - mask, self._none_out), (moved, mask, self._none_in)]
        alive, over = 1, len(y)
        while over - alive > len(y) // 16:
            middle, bound = (alive + over) // 2, self._scale[terms].abs()[:, None]
            for log_scale, labels, none in sides:
                modulus = torch.exp(-alpha * log_modulus(log_scale + y[middle]))
                each = (self._absent[terms] + self._there[terms] * modulus).clamp_min(LEAST_CHANCE).log()
                bound = bound * ((each @ labels).exp() - none[which][:, terms].T)
            alive, over = (middle + 1, over) if float(bound.sum(0).max()) > LEAST else (alive, middle)
        return y[:over], weight[:over]

    def _turning(
        self, alpha: Tensor, inside: Tensor, lowest: Tensor, highest: Tensor
    ) -> list[tuple[float, float, float]]:
        """How fast phases turn where all labels of either side are there, and where only one of them is."""
        sizes = alpha.log() + 2.0 * self._log_centre  # (P, L)
        top, sums, logs = sizes.max(), [alpha.flatten()], [sizes.flatten()]
        for side, ends in ((inside, (lowest, highest)), (~inside, (torch.zeros_like(lowest),))):
            mask = side.double().T
            whole, size = alpha @ mask, ((sizes - top).exp() @ mask).log() + top  # (P, R)
            for u in ends:
                sums.append(whole.flatten())
                logs.append((size - 2.0 * u).flatten())
        for number, label in torch.nonzero(inside & (inside.sum(1, keepdim=True) > 1)).tolist():
            sums.extend([alpha[:, label]] * 2)
            logs.extend(sizes[:, label] - 2.0 * u[number] for u in (lowest, highest))
        return turning(torch.cat(sums), torch.cat(logs))

    def _powers(self, neurons: Tensor, y: Tensor) -> Tensor:
        """``(1 + i c_r t)^{-a_r}`` of some neurons and all labels (L, n, q)."""
        phase = self._log_centre[:, None, None] + y
        return _power(self._half[neurons].T[..., None], phase).conj_physical_()

    def _added_up(self, pairs: Tensor, lowest: Tensor, highest: Tensor, which: Tensor) -> list[_LonePart]:
        """Single labels: for each of them and every pair, the sum over terms of what lies outside."""
        number = torch.full((len(self._ends),), -1, device=pairs.device)
        number[pairs] = torch.arange(len(pairs), device=pairs.device)
        terms = torch.nonzero(number[self._pair] >= 0).squeeze(1)
        pair = number[self._pair[terms]]
        y, weight = self._nodes(pairs, terms, lowest, highest, which)
        neurons, index = torch.unique(self._ends[pairs], return_inverse=True)
        powers, n_labels = self._powers(neurons, y), self._half.shape[1]
        labels = [self._groups[g][0] for g in which.tolist()]
        around = torch.zeros(len(labels), len(pairs), len(y), dtype=torch.complex128, device=y.device)
        chances = self._scale[terms] * self._there[terms][:, labels].T  # (r, T)
        none_out, there, absent = self._none_out[which][:, terms], self._there[terms].T, self._absent[terms].T
        block = max(1, 8 * SWEEP_ELEMENTS // (len(y) * n_labels))
        for start in range(0, len(terms), block):
            part = slice(start, start + block)
            ends = index[pair[part]].T
            each = powers.index_select(1, ends[0]).mul_(powers.index_select(1, ends[1]))
            each.mul_(there[:, part, None]).add_(absent[:, part, None])
            rest = _leave_out(each, labels).sub_(none_out[:, part, None]).mul_(chances[:, part, None])
            around.index_add_(1, pair[part], rest)
        around *= weight
        halves = self._half[neurons][:, labels].T.contiguous()  # (r, n)
        slopes = self._alpha[pairs][:, labels].T.contiguous()  # (r, P)
        return [_LonePart(y, halves, index.T, slopes, self._log_centre[labels], around)]

    def _one_by_one(self, pairs: Tensor, lowest: Tensor, highest: Tensor, which: Tensor) -> list[_GroupPart]:
        """Sums of several labels: every term by itself, some at a time."""
        chosen = torch.zeros(len(self._ends), dtype=torch.bool, device=pairs.device)
        chosen[pairs] = True
        terms = torch.nonzero(chosen[self._pair]).squeeze(1)
        y, weight = self._nodes(pairs, terms, lowest, highest, which)
        neurons, index = torch.unique(self._ends, return_inverse=True)
        powers, groups = self._powers(neurons, y), [self._groups[g] for g in which.tolist()]
        n_labels = self._half.shape[1]
        parts = []
        for part in terms.split(max(1, 8 * SWEEP_ELEMENTS // (len(y) * n_labels))):
            ends = index[self._pair[part]]
            there, absent = self._there[part], self._absent[part]
            each = powers[:, ends[:, 0]].mul_(powers[:, ends[:, 1]])
            each.mul_(there.T[..., None]).add_(absent.T[..., None])
            around = torch.stack([each[[r for r in range(n_labels) if r not in group]].prod(0) for group in groups])
            around -= self._none_out[which][:, part, None]
            around *= weight * self._scale[part][:, None]
            alpha, none_in = self._alpha[self._pair[part]], self._none_in[which][:, part]
            half = self._half[neurons]
            parts.append(_GroupPart(y, half, ends.T, alpha, self._log_centre, groups, there, absent, none_in, around))
        return parts


@dataclass(frozen=True)
class _LonePart:
    """Integrals of single labels over some pairs on one grid.

    Args:
        y: nodes (q,).
        half: ``a`` of the labels in every neuron (r, n).
        ends: both neurons of every pair (2, P).
        alpha: of the labels in every pair (r, P).
        log_centre: of the labels (r,).
        around: what lies outside each label, with all weights (r, P, q), complex.
    """

    y: Tensor
    half: Tensor
    ends: Tensor
    alpha: Tensor
    log_centre: Tensor
    around: Tensor

    @property
    def points_at_a_time(self) -> int:
        return max(1, 4 * SWEEP_ELEMENTS // (self.around.shape[1] * len(self.y)))

    def integrals(self, u: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """``∫ Im φ dy`` at logits (k,) of labels by their place here (k,), and its derivative."""
        phase = self.log_centre[number, None] - u[:, None] + self.y  # (k, q)
        factor = _power(self.half[number][..., None], phase[:, None])  # (k, n, q)
        terms = factor.index_select(1, self.ends[0]).mul_(factor.index_select(1, self.ends[1]))
        terms.mul_(self.around.index_select(0, number))
        sides = torch.stack([torch.ones_like(self.alpha[number]), self.alpha[number]], 1)  # (k, 2, P)
        plain, rising = (sides.to(terms.dtype) @ terms).unbind(1)  # (k, q)
        real, imaginary = _slope(phase)
        return plain.imag.sum(1), (rising.real * imaginary + rising.imag * real).sum(1)


@dataclass(frozen=True)
class _GroupPart:
    """Integrals of sums of several labels over some terms on one grid.

    Args:
        y: nodes (q,).
        half: ``a`` of every neuron (n, L).
        ends: both neurons of every term (2, T).
        alpha: of every term (T, L).
        log_centre: ``log c`` (L,).
        groups: the labels of each sum.
        there: chance that a label is there (T, L).
        absent: chance that it is not (T, L).
        none_in: chance that no label of a sum is there (r, T).
        around: what lies outside each sum, with all weights (r, T, q), complex.
    """

    y: Tensor
    half: Tensor
    ends: Tensor
    alpha: Tensor
    log_centre: Tensor
    groups: list[list[int]]
    there: Tensor
    absent: Tensor
    none_in: Tensor
    around: Tensor

    @property
    def points_at_a_time(self) -> int:
        return 1

    def integrals(self, u: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """``∫ Im φ dy`` at a logit (1,) of a sum by its place here (1,), and its derivative."""
        group, around = self.groups[int(number)], self.around[int(number)]
        phase = self.log_centre[group, None] - u + self.y  # (g, q)
        factor = _power(self.half[:, group].T[..., None], phase[:, None])  # (g, n, q)
        each = factor[:, self.ends[0]].mul_(factor[:, self.ends[1]]).mul_(self.there[:, group].T[..., None])
        either = each + self.absent[:, group].T[..., None]
        product = either.prod(0).sub_(self.none_in[int(number), :, None])
        changes = each * _leave_out(either, list(range(len(group)))) * around  # (g, T, q)
        rising = (self.alpha[:, group].T[:, None].to(changes.dtype) @ changes).squeeze(1)
        real, imaginary = _slope(phase)
        slope = (rising.real * imaginary + rising.imag * real).sum()
        return (product * around).imag.sum()[None], slope[None]


def _power(exponent: Tensor, phase: Tensor) -> Tensor:
    """``(1 - i s)^{-a}`` of ``log s``, complex."""
    size, angle = torch.exp(-exponent * log_modulus(phase)), exponent * torch.atan(phase.exp())
    answer = torch.empty(*size.shape, 2, dtype=size.dtype, device=size.device)
    torch.mul(torch.cos(angle), size, out=answer[..., 0])
    torch.mul(angle.sin_(), size, out=answer[..., 1])
    return torch.view_as_complex(answer)


def _log_factor(phase: Tensor) -> Tensor:
    """``log(1 + i s)`` of ``log s``, complex."""
    return torch.complex(log_modulus(phase), torch.atan(phase.exp()))


def _slope(phase: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of ``i s / (1 - i s)``, of ``log s``."""
    return -torch.sigmoid(2.0 * phase), 0.5 / torch.cosh(phase.clamp(-300.0, 300.0))


def _leave_out(each: Tensor, labels: list[int]) -> Tensor:
    """Products of factors (L, p, q) over all labels but each of these (r, p, q)."""
    answer = torch.empty(len(labels), *each.shape[1:], dtype=each.dtype, device=each.device)
    place, factors = {r: answer[number] for number, r in enumerate(labels)}, each.unbind()
    product = torch.ones_like(factors[0])
    for r, factor in enumerate(factors):
        if r in place:
            place[r].copy_(product)
        product.mul_(factor)
    product.fill_(1.0)
    for r in range(len(factors) - 1, -1, -1):
        if r in place:
            place[r].mul_(product)
        product.mul_(factors[r])
    return answer


# -- known shares ------------------------------------------------------------------------------------------------------
