"""Quantiles of sums of shares of a row, by Newton's method on cdfs that integrals give.

A share of the labels A is ``Σ_A c g / Σ c g`` with gammas g, some of which may be absent. It is at most v where the
linear form ``X = e^{-u} Σ_A c g - Σ_rest c g``, ``u = logit v``, is not positive, hence (Gil-Pelaez, 1951)

    P(share <= v) = ½ - π⁻¹ ∫ Im φ(e^y) dy,      φ(t) = E[e^{itX}],   y = log t.

:mod:`~snefy_ldl.distributions.present_shares` computes it where every label is there,
:mod:`~snefy_ldl.distributions.sparse_shares` where labels may be absent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from snefy_ldl._internal.tolerances import TAIL_MASS

#: Logits of shares between which quantiles are looked for.
LOWEST, HIGHEST = -690.0, 60.0
#: How far around a guess quantiles are looked for at first, in standard deviations and at most, and by what that grows.
AROUND_DEVIATIONS, AROUND, WIDER = 1.0, 2.5, 4.0
#: ... and at least, once a quantile was not found.
AGAIN = 1.0
#: Variances below this part of the squared mean are what rounding has left of them.
ROUNDED = 1e-10
#: Rounds of Newton's method before the range is widened, and in the end.
ROUNDS, LAST_ROUNDS = 7, 80
#: Error of the log odds at which Newton's method stops, and of the level that its last step may leave.
GOOD, NEARLY = 1e-7, 1e-7
#: ... and of rough steps, of which there are few; after them quantiles are looked for this much nearer.
ROUGHLY, ROUGH_ROUNDS, NEARER = 1e-5, 4, 0.1
#: Changes of a slope per unit of the log odds: the least, and where nothing is known yet.
LEAST_BEND, UNKNOWN_BEND = 20.0, 300.0
#: A probability is kept this far from 0 and 1 where its log odds are taken.
LEAST_CHANCE = 1e-300
#: How fast the step grows where nothing oscillates, and where an integrand is over: e to minus this.
GROWTH, TAIL = 2.0, 20.0
#: Phases are followed until the integrand is below e to minus this.
SEEN = 17.0
#: By how much faster phases turn in heavy tails.
HEAVIER = 1.4
#: Neurons and pairs whose weights sum up to less than this are left out of a row.
NEGLIGIBLE = 1e-8


def label_masks(groups: list[list[int]], n_labels: int, device: torch.device) -> Tensor:
    """The labels of every sum, a mask (R, L).

    Example:
        >>> label_masks([[0], [1, 2]], 3, torch.device("cpu"))
        tensor([[ True, False, False],
                [False,  True,  True]])
    """
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
        quick: whether there is a quicker answer that is right to some 1e-4.
    """

    at_zero: Tensor
    inside: Tensor
    power_law: Tensor | None = None
    quick: bool = False

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:  # noqa: B027 - a hint, often not needed
        """Choose nodes for logits between two ends (r,) of the sums ``which`` (r,)."""

    @abstractmethod
    def at(self, u: Tensor, which: Tensor, rough: bool = False) -> tuple[Tensor, Tensor]:
        """Cdf and density of the logit at points u (r, A) of the sums ``which`` (r,); the atom at one is left out.

        With ``rough`` they may be off by some 1e-4, where that is quicker.
        """


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

    def at(self, u: Tensor, which: Tensor, rough: bool = False) -> tuple[Tensor, Tensor]:
        """See the base class."""
        cdfs, densities = zip(*(part.at(u, which, rough) for part in self._parts))
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
        Logits (R, A), and the standard deviation of the logit, roughly (R,); infinite where moments do not tell it.

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
    deviation = torch.where(variance < ROUNDED * mean.square(), torch.inf, deviation)  # a difference of equal numbers
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
    if row.quick:  # a few rough steps first, which promise nothing
        u[left] = _newton(row, left, inner[left], u[left], width[left], wanted[left], known[:, left], True)[0]
        width = NEARER * width
    while len(left):
        u[left], there, known[:, left] = _newton(
            row, left, inner[left], u[left], width[left], wanted[left], known[:, left], False
        )
        if float(width[left].max()) > HIGHEST - LOWEST:
            break
        left, width = left[~there.all(1)], (width * WIDER).clamp_min(AGAIN)
    return torch.where(wanted, torch.sigmoid(u), share)


def _newton(
    row: ShareRow,
    which: Tensor,
    inner: Tensor,
    u: Tensor,
    width: Tensor,
    wanted: Tensor,
    known: Tensor,
    rough: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (r, A) near a guess, which of them are right, and between which points they lie for certain (2, r, A)."""
    last_time = float(width.max()) * WIDER > HIGHEST - LOWEST
    reach = torch.full_like(width, HIGHEST - LOWEST) if last_time else width
    low, high = ((u + by * reach[:, None]).clamp(LOWEST, HIGHEST) for by in (-1.0, 1.0))
    if row.power_law is not None:
        low = torch.where(low < row.power_law[which, None], LOWEST, low)
    between = known.isfinite().all(0)
    low, high = (torch.where(between, *ends) for ends in zip(known, (low, high)))
    u = torch.where((u > low) & (u < high), u, 0.5 * (low + high))
    row.prepare(low.amin(1), high.amax(1), which)
    there, goal = ~wanted, torch.logit(inner)
    ends, known = (torch.where(between, -torch.inf, low), torch.where(between, torch.inf, high)), known.clone()
    rows, u, before = torch.arange(len(u), device=u.device), u.clone(), None
    enough = ROUGHLY if rough else NEARLY
    for _ in range(ROUGH_ROUNDS if rough else LAST_ROUNDS if last_time else ROUNDS):
        # points that are right already take the place of others, which are asked for anyway
        old, done = u[rows], there[rows]
        at = torch.where(done, torch.where(done, torch.inf, old).amin(1, keepdim=True), old)
        value, density = row.at(at, which[rows], rough)
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
        newton, near = torch.where(cubic < left, curved, newton), torch.minimum(left, cubic) * spread < enough
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
