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
others are slow however sharp they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import SWEEP_ELEMENTS
from snefy_ldl.special.tolerances import TAIL_MASS

__all__ = [
    "PresentShares",
    "SeveralShares",
    "ShareRow",
    "SparseShares",
    "beta_guess",
    "density_at_zero",
    "solve_quantiles",
]

#: Largest step of the trapezoid rule.
LARGEST_STEP = 0.2
#: Total concentration from which on components that lie on one side for certain are left out, and the rate at which
#: phases of the others turn at most.
SHARP, CERTAIN_RATE = 400.0, 60.0
#: Rate of a phase that the largest step can bear: where it turns fastest an integrand is small already.
SPARE = 10.0
#: A share, or what is left of one, with a smaller concentration than this has tails in which phases do not cancel.
BROAD = 25.0
#: Phases are followed until the integrand is below e to minus this.
SEEN = 17.0
#: How fast the step grows where nothing oscillates, and where an integrand is over: e to minus this.
GROWTH, TAIL = 2.0, 20.0
#: What an integrand's bound must exceed for its node to count.
LEAST = 1e-10
#: Chernoff bounds below this make a component certain.
CERTAIN = 1e-11
#: Neurons and pairs whose weights sum up to less than this are left out of a row.
NEGLIGIBLE = 1e-8
#: Concentration of a label that is absent.
GONE = 1e-12
#: Logits of shares between which quantiles are looked for.
LOWEST, HIGHEST = -690.0, 60.0
#: How far around a guess quantiles are looked for at first, in standard deviations and at most, and by what that grows.
AROUND_DEVIATIONS, AROUND, WIDER = 4.0, 2.5, 4.0
#: Rounds of Newton's method before the range is widened, and in the end.
ROUNDS, LAST_ROUNDS = 7, 80
#: Errors of the log odds at which Newton's method stops, and after which one more step is enough.
GOOD, NEARLY = 1e-7, 1e-3
#: A probability is kept this far from 0 and 1 where its log odds are taken.
LEAST_CHANCE = 1e-300


def log_modulus(log_phase: Tensor) -> Tensor:
    """``log |1 + i s|`` of ``log s``.

    Example:
        >>> log_modulus(torch.zeros(1).double()).exp().square()
        tensor([2.0000], dtype=torch.float64)
    """
    return 0.5 * softplus(2.0 * log_phase)


@dataclass(frozen=True)
class Turning:
    """How fast phases turn, as the trapezoid rule must know: at most ``rate`` radians per unit of y, near its place.

    Args:
        rate: the fastest phase of a component while its integrand is to be seen, of every sum (R,).
        low: the least ``y`` at which a component's integrand is over (R,).
        high: the largest (R,).
    """

    rate: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(
        cls, alpha: Tensor, log_centre: Tensor, inside: Tensor, lowest: Tensor, highest: Tensor, certain: bool
    ) -> Turning:
        """Of some components, at logits between two ends.

        The larger side's gammas turn the phase at the rate ``x √big`` where they have brought the modulus down to
        ``e^{-x²/2}``, and the smaller side's lower it further.

        Args:
            alpha: concentrations (P, L).
            log_centre: ``log c`` (P or 1, L).
            inside: labels of every sum, a mask (R, L).
            lowest: logits (R,).
            highest: logits (R,).
            certain: whether components that lie on one side for certain are left out, so that phases of sharp ones
                cancel.
        """
        own = alpha @ inside.double().T  # (P, R)
        others = alpha.sum(1, keepdim=True) - own
        small, big = torch.minimum(own, others), torch.maximum(own, others)
        reach = small + 4.0 * small.sqrt() + 10.0
        x = torch.full_like(small, math.sqrt(2.0 * SEEN))
        for _ in range(4):  # x²/2 + ½ small log(1 + big x²/reach²) = SEEN, from above
            lowered = 0.5 * small * torch.log1p(big * (x / reach).square())
            x = torch.sqrt(2.0 * (SEEN - lowered).clamp_min(0.5 * SEEN))
        rate, broad = x * big.sqrt(), small < BROAD
        if certain:
            rate = torch.where(broad, rate, rate.clamp_max(CERTAIN_RATE))
        sizes = (alpha.log() + 2.0 * log_centre)[:, None]  # (P, 1, L)
        spread_own = torch.where(inside, sizes, -torch.inf).logsumexp(-1)  # (P, R)
        spread_rest = torch.where(inside, -torch.inf, sizes).logsumexp(-1)
        slow = rate < 0.5 * rate.amax(0)
        places = []
        for u in (lowest, highest):
            moved = spread_own - 2.0 * u
            spread = torch.where(broad, torch.minimum(moved, spread_rest), torch.logaddexp(moved, spread_rest))
            places.append(0.5 * math.log(2.0 * SEEN) - 0.5 * spread)
        low = torch.stack([part.masked_fill(slow, torch.inf).amin(0) for part in places]).amin(0)
        high = torch.stack([part.masked_fill(slow, -torch.inf).amax(0) for part in places]).amax(0)
        return cls(rate.amax(0), low, high)


def nodes(first: Tensor, last: Tensor, slowest: float, turning: Turning) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and weights of the trapezoid rule: as dense as phases turn, and far apart outside.

    The rule takes a wave of rate ω in y for one of rate ``2π/step - ω``. Without its phase an integrand holds waves of
    rate ω in proportion to ``e^{-πω/4}``, so ``2π/step`` exceeds the rate of the phase by a constant. Phases turn in
    proportion to t until their integrand is over, and those that live longer turn more slowly.

    Args:
        first: where the first phase begins, of every sum (R,).
        last: where the last one has come to rest, and only powers of t are left (R,).
        slowest: the smallest of those powers.
        turning: of the phases.

    Returns:
        Both (R, q); sums that need fewer nodes have some without weight at their end.

    Example:
        >>> one, none = torch.ones(1).double(), torch.zeros(1).double()
        >>> y, weight = nodes(-one, 2.0 * one, 1.0, Turning(none, none, none))
        >>> round(float((weight / torch.cosh(y)).sum()) / torch.pi, 6)
        1.0
    """
    first, last = first[:, None], last[:, None]
    start = first - GROWTH * (1.0 + math.log(TAIL))
    stop = last + GROWTH * (1.0 + math.log(TAIL / slowest))
    # a window that rises with t and is one at least from the first place to the last
    rate = (turning.rate - SPARE).clamp_min(0.0)[:, None] / (2.0 * math.pi * math.tanh(0.5))
    low, high = turning.low[:, None] - 1.0, turning.high[:, None] + 1.0

    def count(v: Tensor) -> Tensor:
        return v / LARGEST_STEP + rate * (softplus(v - low) - softplus(v - high))

    begin, end = count(start).ceil(), count(stop)
    number = begin + torch.arange(float((end - begin).max()), dtype=torch.float64, device=first.device)
    left, right = start.expand_as(number), stop.expand_as(number) + LARGEST_STEP * (number - end).clamp_min(0.0)
    for _ in range(12):
        middle = 0.5 * (left + right)
        below = count(middle) < number
        left, right = torch.where(below, middle, left), torch.where(below, right, middle)
    v = 0.5 * (left + right)
    for _ in range(3):
        dense = 1.0 / LARGEST_STEP + rate * (torch.sigmoid(v - low) - torch.sigmoid(v - high))
        v = v - (count(v) - number) / dense
    dense = 1.0 / LARGEST_STEP + rate * (torch.sigmoid(v - low) - torch.sigmoid(v - high))
    v, within = torch.minimum(v, stop), number < end
    up, down = torch.exp((v - last) / GROWTH - 1.0), torch.exp((first - v) / GROWTH - 1.0)
    return v + up - down, torch.where(within, (1.0 + (up + down) / GROWTH) / dense, 0.0)


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
    """

    at_zero: Tensor
    inside: Tensor

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
    left = some
    while len(left):
        u[left], there = _newton(row, left, inner[left], u[left], width[left], wanted[left])
        if float(width[left].max()) > HIGHEST - LOWEST:
            break
        left, width = left[~there.all(1)], width * WIDER
    return torch.where(wanted, torch.sigmoid(u), share)


def _newton(
    row: ShareRow, which: Tensor, inner: Tensor, u: Tensor, width: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits (r, A) near a guess, and which of them are right."""
    low, high = ((u + by * width[:, None]).clamp(LOWEST, HIGHEST) for by in (-1.0, 1.0))
    row.prepare(low.amin(1), high.amax(1), which)
    there, goal = ~wanted, torch.logit(inner)
    last_time = float(width.max()) * WIDER > HIGHEST - LOWEST
    rows, u = torch.arange(len(u), device=u.device), u.clone()
    for _ in range(LAST_ROUNDS if last_time else ROUNDS):
        at = u[rows]
        value, density = row.at(at, which[rows])
        inside, zero = row.inside[which[rows], None], row.at_zero[which[rows], None]
        value = ((value - zero) / inside).clamp(LEAST_CHANCE, 1.0)
        error = torch.logit(value, LEAST_CHANCE) - goal[rows]
        below = error < 0.0
        low[rows], high[rows] = torch.where(below, at, low[rows]), torch.where(below, high[rows], at)
        newton = at - error * value * (1.0 - value) / (density / inside).clamp_min(LEAST_CHANCE)
        within = (newton > low[rows]) & (newton < high[rows])
        good = error.abs() < GOOD
        near = within & (error.abs() < NEARLY)  # the step that follows leaves about the square of this error
        u[rows] = torch.where(good | there[rows], at, torch.where(within, newton, 0.5 * (low[rows] + high[rows])))
        there[rows] |= good | near | (high[rows] - low[rows] < 1e-11 * (1.0 + at.abs()))
        rows = rows[~there[rows].all(1)]
        if not len(rows):
            break
    return u, there


# -- all labels are there ----------------------------------------------------------------------------------------------


class PresentShares(ShareRow):
    """Sums of shares of one row in which every label is there.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        weights: of all pairs of neurons (K, n, n), symmetric; ``Σ = 1``, or less where the row has other parts.
        log_centre: ``log c`` (L,).
        groups: the labels of each sum.

    Example:
        >>> half, one = torch.tensor([[[1.0, 1.5, 2.5]]]).double(), torch.ones(1, 1, 1).double()
        >>> row = PresentShares(half, one, torch.zeros(3).double(), [[0]])  # Dirichlet(2, 3, 5)
        >>> u, all_sums = torch.logit(torch.tensor([[0.2]]).double()), torch.tensor([0])
        >>> row.prepare(u[:, 0], u[:, 0], all_sums)
        >>> row.at(u, all_sums)[0].round(decimals=6)
        tensor([[0.5638]], dtype=torch.float64)
    """

    def __init__(self, half: Tensor, weights: Tensor, log_centre: Tensor, groups: list[list[int]]) -> None:
        self._half, self._weights = _without_unused(half, weights)
        self._log_centre, self._groups = log_centre, groups
        self.at_zero = half.new_zeros(len(groups))
        self.inside = weights.sum().expand(len(groups))
        self._total = 2.0 * float(self._half.sum(-1).max())
        self._certain = self._total > SHARP

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        alpha, centre = 2.0 * self._half.flatten(0, 1), self._log_centre
        self._position = {int(g): number for number, g in enumerate(which)}
        inside = _mask([self._groups[int(g)] for g in which], alpha.shape[1], alpha.device)
        largest, smallest = _ranges(alpha, centre[None], inside, lowest, highest)
        slowest = min(1.0, float(alpha.amin(0).topk(2, largest=False).values.sum()))
        turning = Turning.of(alpha, centre[None], inside, lowest, highest, self._certain)
        y, weight = nodes(-largest - 1.0, -smallest + 2.0, slowest, turning)
        least, phase = alpha.amin(0), centre[:, None] + y[:, None]  # (R, L, q)
        moved = torch.where(inside[..., None], phase - highest[:, None, None], phase)  # moduli fall as the logit rises
        bound = -torch.einsum("l,rlq->rq", least, log_modulus(moved))
        # before the first node, phases are as small
        keep = (bound + weight.log() > math.log(LEAST)) & (y > -largest[:, None] - TAIL - 4.0)
        self._y, self._weight = _compact(y, weight, keep)
        phase = centre[:, None] + self._y[:, None]  # (R, L, q)
        self._modulus, self._angle = log_modulus(phase), torch.atan(phase.exp())
        self._sizes = -torch.einsum("kil,rlq->rkiq", self._half, self._modulus)
        self._angles = -torch.einsum("kil,rlq->rkiq", self._half, self._angle)
        if self._certain:
            self._tilts = _Tilts.of(self._half, self._log_centre, self._total)

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        _, n_members, n, n_nodes = self._sizes.shape
        size = max(1, 8 * SWEEP_ELEMENTS // (n_members * n * max(n_nodes, n) * u.shape[1]))
        answers = [self._block(u[k : k + size], which[k : k + size].tolist()) for k in range(0, len(u), size)]
        cdf, density = (torch.cat(parts) for parts in zip(*answers))
        return cdf, density

    def _block(self, u: Tensor, which: list[int]) -> tuple[Tensor, Tensor]:
        # axes: sum r, point a, member k, neuron i, node q
        groups, rows = [self._groups[g] for g in which], [self._position[g] for g in which]
        y, weight = self._y[rows], self._weight[rows][:, None]
        size, angle = self._sizes[rows][:, None], self._angles[rows][:, None]
        moduli, angles = self._modulus[rows], self._angle[rows]
        each, slopes = torch.arange(len(rows), device=u.device), []
        for place in range(max(len(group) for group in groups)):
            labels, half = _place_of(self._half, groups, place)
            phase = self._log_centre[labels][:, None, None] - u[..., None] + y[:, None]  # (r, a, q)
            moved = log_modulus(phase) - moduli[each, labels][:, None]
            turned = torch.atan(phase.exp()) + angles[each, labels][:, None]
            half = half[:, None, ..., None]  # (r, 1, K, n, 1)
            size = torch.addcmul(size, half, moved[:, :, None, None], value=-1.0)
            angle = torch.addcmul(angle, half, turned[:, :, None, None])
            slopes.append((half, *_slope(phase)))
        modulus = size.exp_()
        real, imaginary = angle.cos().mul_(modulus), angle.sin_().mul_(modulus)
        weights, sure = self._weights[None, None], u.new_zeros(())
        if self._certain:
            near, above = self._tilts.near(u, groups)
            sure = (weights * above).sum((2, 3, 4))
            weights = weights * near
        turned_real, turned_imaginary = weights @ real, weights @ imaginary
        cross = (real * turned_imaginary).addcmul_(imaginary, turned_real)
        plain = turned_real.mul_(real).addcmul_(imaginary, turned_imaginary, value=-1.0)
        integral = (cross.sum((2, 3)) * weight).sum(-1)
        density = torch.zeros_like(integral)
        for half, real_slope, slope in slopes:  # d log z / du = -Σ a i s / (1 - i s)
            row = half.transpose(-1, -2)  # (r, 1, K, 1, n)
            rising, falling = ((row @ part).sum(2).squeeze(-2) for part in (plain, cross))  # (r, a, q)
            density = density + ((rising * slope + falling * real_slope) * weight).sum(-1)
        return 0.5 * weights.sum((2, 3, 4)) - integral / math.pi + sure, 2.0 * density / math.pi


def _place_of(half: Tensor, groups: list[list[int]], place: int) -> tuple[Tensor, Tensor]:
    """The label of every group at some place, and its neurons' halves (r, K, n): zero where a group is shorter."""
    labels = torch.tensor([group[min(place, len(group) - 1)] for group in groups], device=half.device)
    there = torch.tensor([float(place < len(group)) for group in groups], device=half.device, dtype=half.dtype)
    return labels, half[..., labels].movedim(-1, 0) * there[:, None, None]


def _without_unused(half: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Neurons that carry weight: as many per member as the member with most needs."""
    size = weights.abs().sum(2)  # (K, n)
    order = size.argsort(1, descending=True)
    ranked = size.gather(1, order)
    left = ranked.flip(1).cumsum(1).flip(1)  # what a cut before this neuron leaves out
    n_kept = max(1, int((left > NEGLIGIBLE / len(size)).sum(1).max()))
    if n_kept == half.shape[1]:
        return half, weights
    order = order[:, :n_kept].sort(1).values
    member = torch.arange(len(half), device=half.device)[:, None]
    kept = weights[member[..., None], order[:, :, None], order[:, None, :]]
    return half[member, order], kept


@dataclass(frozen=True)
class _Tilts:
    """Chernoff's bounds: which components lie for certain on one side of a point.

    ``P(X > 0) <= E[e^{θX}]`` and ``P(X <= 0) <= E[e^{-θX}]`` for every θ > 0, and both are products over neurons.

    Args:
        half: ``a`` (K, n, L).
        log_centre: ``log c`` (L,).
        theta: of either sign (T,).
        logs: ``log(1 + θ c)`` (L, T), zero where there is no such expectation.
        base: ``-Σ_r a_r log(1 + θ c_r)`` (K, n, T), infinite there.
    """

    half: Tensor
    log_centre: Tensor
    theta: Tensor
    logs: Tensor
    base: Tensor

    @classmethod
    def of(cls, half: Tensor, log_centre: Tensor, total: float) -> _Tilts:
        scale = torch.logsumexp((2.0 * half).mean((0, 1)).log() + log_centre, 0)
        powers = torch.arange(1.0, math.log2(max(total, 4.0)) + 1.5, device=half.device, dtype=torch.float64)
        theta = 2.0**powers * torch.exp(-scale)
        theta = torch.cat([theta, -theta])
        lifted = 1.0 + theta * log_centre.exp()[:, None]  # (L, T)
        logs = torch.where(lifted > 0.0, lifted.clamp_min(1e-300).log(), 0.0)
        base = torch.where((lifted <= 0.0).any(0), torch.inf, -(half @ logs))
        return cls(half, log_centre, theta, logs, base)

    def near(self, u: Tensor, groups: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Components that are not certain, and those that lie below the point, 0 or 1 (r, a, K, n, n)."""
        bound = self.base[None, None]
        for place in range(max(len(group) for group in groups)):
            labels, half = _place_of(self.half, groups, place)
            moved = (self.log_centre[labels][:, None] - u).exp()  # c e^{-u} (r, a)
            lifted = 1.0 - self.theta * moved[..., None]
            logs = torch.where(lifted > 0.0, lifted.clamp_min(1e-300).log(), -torch.inf)
            change = self.logs[labels][:, None] - logs  # (r, a, T)
            bound = bound + half[:, None, ..., None] * change[:, :, None, None]
        bound = bound.nan_to_num(nan=torch.inf).float()
        n_theta, limit = bound.shape[-1] // 2, math.log(CERTAIN)

        def certain(part: Tensor) -> Tensor:
            answer = part[..., :, None, 0] + part[..., None, :, 0]
            for t in range(1, part.shape[-1]):
                torch.minimum(answer, part[..., :, None, t] + part[..., None, :, t], out=answer)
            return answer < limit

        above, below = certain(bound[..., n_theta:]), certain(bound[..., :n_theta])
        return (~(above | below)).double(), (below & ~above).double()


# -- labels may be absent ----------------------------------------------------------------------------------------------


class SparseShares(ShareRow):
    """Sums of shares of one row in which labels may be absent.

    Args:
        half: ``a = ½ + w`` of the neurons (n, L), float64.
        first: one neuron of every pair (P,).
        second: the other (P,).
        weights: of the pairs (P,); ``Σ = 1``, or less where the row has other parts.
        log_odds: of presence, in every pair (P, L).
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
        left = weights.abs()[order].flip(0).cumsum(0).flip(0)  # what a cut before this pair leaves out
        kept = order[: max(1, int((left > NEGLIGIBLE).sum()))].sort().values
        self._first, self._second, log_odds = first[kept], second[kept], log_odds[kept]
        self._half, self._groups, self._log_centre = half, groups, log_centre
        self._alpha = half[self._first] + half[self._second]
        self._there, self._absent = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
        log_absent = -softplus(log_odds)
        inside = _mask(groups, half.shape[1], half.device).double()
        self._none_in, self._none_out = ((part @ log_absent.T).exp() for part in (inside, 1.0 - inside))  # (R, P)
        self._scale = weights[kept] / -torch.expm1(log_absent.sum(1))
        self.at_zero = (self._none_in * (1.0 - self._none_out)) @ self._scale
        self.inside = ((1.0 - self._none_in) * (1.0 - self._none_out)) @ self._scale
        total = self._alpha.sum(1)
        octave = torch.where(total > 64.0, torch.ceil(0.5 * torch.log2(total / 64.0)), torch.zeros_like(total))
        self._octaves = [torch.nonzero(octave == value).squeeze(1) for value in octave.unique()]

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        self._position = {int(g): number for number, g in enumerate(which)}
        self._parts = [self._coefficients(pairs, lowest, highest, which) for pairs in self._octaves]

    def _coefficients(
        self, pairs: Tensor, lowest: Tensor, highest: Tensor, which: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Nodes, neurons and both ends of some pairs, the pairs, and what lies outside each sum (r, p, q), complex."""
        alpha, centre = self._alpha[pairs], self._log_centre[None]
        groups = [self._groups[int(g)] for g in which]
        inside = _mask(groups, alpha.shape[1], alpha.device)
        largest, smallest = _ranges(alpha, centre, inside, lowest, highest)
        slowest = min(1.0, float(alpha.topk(2, 1, largest=False).values.sum(1).min()))
        every = [Turning.of(alpha, centre, inside, lowest, highest, False)]
        every += self._lone_turnings(pairs, inside, lowest, highest)
        # one grid for all sums: the product over labels is made once
        union = Turning(
            torch.cat([one.rate for one in every]).amax()[None],
            torch.cat([one.low for one in every]).amin()[None],
            torch.cat([one.high for one in every]).amax()[None],
        )
        begun, settled = -largest.amax()[None], -smallest.amin()[None]
        y, weight = (part[0] for part in nodes(begun - 1.0, settled + 2.0, slowest, union))
        keep = (y > begun - TAIL - 4.0) & (weight > 0.0)
        y, weight = y[keep], weight[keep]
        neurons, index = torch.unique(torch.cat([self._first[pairs], self._second[pairs]]), return_inverse=True)
        ends = index.reshape(2, -1)
        around = torch.empty(len(which), len(pairs), len(y), dtype=torch.complex128, device=alpha.device)
        there, absent = self._there[pairs], self._absent[pairs]
        factors = torch.exp(-self._half[neurons][..., None] * _log_factor(self._log_centre[:, None] + y))  # (n, L, q)
        block = max(1, 8 * SWEEP_ELEMENTS // (len(y) * alpha.shape[1]))
        for part in torch.arange(len(pairs), device=alpha.device).split(block):
            each = factors[ends[0, part]] * factors[ends[1, part]]
            around[:, part] = _leave_out(each * there[part, :, None] + absent[part, :, None], groups)
        around -= self._none_out[which][:, pairs, None]
        around *= weight * self._scale[pairs][:, None]
        alive = around.abs().amax((0, 1)) > LEAST * weight  # the factors inside are at most one
        return y[alive], neurons, ends, pairs, around[..., alive].contiguous()

    def _lone_turnings(self, pairs: Tensor, inside: Tensor, lowest: Tensor, highest: Tensor) -> list[Turning]:
        """How fast phases turn where of one side only the smallest label is there, which lowers the modulus least."""
        turnings = []
        for number, mask in enumerate(inside):
            for side in (mask.nonzero().flatten(), (~mask).nonzero().flatten()):
                alpha, absent = self._alpha[pairs], self._absent[pairs][:, side]
                smallest = alpha[:, side].argmin(1, keepdim=True)
                alone = absent.scatter(1, smallest, 1.0).prod(1) > NEGLIGIBLE
                if len(side) == 1 or not bool(alone.any()):
                    continue
                alpha[:, side] = torch.full_like(absent, GONE).scatter(1, smallest, alpha[:, side].gather(1, smallest))
                one = slice(number, number + 1)
                centre = self._log_centre[None]
                turnings.append(Turning.of(alpha[alone], centre, inside[one], lowest[one], highest[one], False))
        return turnings

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        integral, slope = torch.zeros_like(u), torch.zeros_like(u)
        for row, g in enumerate(which.tolist()):
            for part in self._parts:
                for place, point in enumerate(u[row]):
                    change = self._integrals(point, g, *part[:4], part[4][self._position[g]])
                    integral[row, place] += change[0]
                    slope[row, place] += change[1]
        middle = (self.at_zero + 0.5 * self.inside)[which]
        return middle[:, None] - integral / math.pi, slope / math.pi

    def _integrals(
        self, u: Tensor, number: int, y: Tensor, neurons: Tensor, ends: Tensor, pairs: Tensor, around: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``∫ Im φ dy`` of one sum at a logit, and its derivative."""
        group, each, slopes = self._groups[number], [], []
        for r in group:
            phase = self._log_centre[r] - u + y
            factor = torch.exp(-self._half[neurons, r, None] * _log_factor(phase).conj())
            each.append(factor[ends[0]] * factor[ends[1]] * self._there[pairs, r, None])
            slopes.append(torch.complex(*_slope(phase)))
        if len(group) == 1:
            product, changes = each[0], [each[0] * around]
            terms = changes[0]
        else:
            either = torch.stack([part + self._absent[pairs, r, None] for part, r in zip(each, group)], 1)
            product = either.prod(1) - self._none_in[number, pairs][:, None]
            terms = product * around
            others = _leave_out(either, [[k] for k in range(len(group))])
            changes = [part * rest * around for part, rest in zip(each, others)]
        slope = u.new_zeros(())
        for r, change, turn in zip(group, changes, slopes):
            slope = slope + ((self._alpha[pairs, r].to(change.dtype) @ change) * turn).imag.sum()
        return terms.imag.sum(), slope


def _log_factor(phase: Tensor) -> Tensor:
    """``log(1 + i s)`` of ``log s``, complex."""
    return torch.complex(log_modulus(phase), torch.atan(phase.exp()))


def _slope(phase: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of ``i s / (1 - i s)``, of ``log s``."""
    return -torch.sigmoid(2.0 * phase), 0.5 / torch.cosh(phase.clamp(-300.0, 300.0))


def _leave_out(each: Tensor, groups: list[list[int]]) -> Tensor:
    """Products of factors (p, L, q) over all labels but those of each group (R, p, q)."""
    if all(len(group) == 1 for group in groups):
        ones = torch.ones_like(each[:, :1])
        before = torch.cat([ones, each[:, :-1]], 1).cumprod(1)
        after = torch.cat([each[:, 1:], ones], 1).flip(1).cumprod(1).flip(1)
        labels = torch.tensor([group[0] for group in groups], device=each.device)
        return (before[:, labels] * after[:, labels]).transpose(0, 1)
    return torch.stack([each[:, [r for r in range(each.shape[1]) if r not in group]].prod(1) for group in groups])


# -- known shares ------------------------------------------------------------------------------------------------------


def density_at_zero(
    own: Tensor, log_scale: Tensor, alpha: Tensor, log_centre: Tensor, log_odds: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``π⁻¹ ∫ Re[(1 - i t λ)^{-a} φ(t)] dt``: the density at zero of one gamma less the sum of others.

    Args:
        own: ``a`` of the one gamma (P,).
        log_scale: ``log λ``.
        alpha: of the others (P, L).
        log_centre: their scales (L,).
        log_odds: of their presence (P, L), at least one of them being there; None where all are.

    Returns:
        The logarithm of a factor, and what it multiplies (P,) each.

    Example:
        A gamma less another of the same kind, both exponential, has the density ½ e^{-|x|}.

        >>> one = torch.ones(1).double()
        >>> log_factor, density = density_at_zero(one, torch.zeros(()).double(), one[:, None], torch.zeros(1), None)
        >>> (log_factor.exp() * density).round(decimals=8)
        tensor([0.5000], dtype=torch.float64)
    """
    both = torch.cat([own[:, None], alpha], 1)
    centre = torch.cat([log_scale.reshape(1), log_centre])[None]
    inside, at = _mask([[0]], both.shape[1], own.device), own.new_zeros(1)
    largest, smallest = _ranges(both, centre, inside, at, at)
    slowest = min(1.0, float((own + alpha.amin(1) - 1.0).clamp_min(0.05).min()))
    turning = Turning.of(both, centre, inside, at, at, certain=False)
    y, weight = (part[0] for part in nodes(-largest - 1.0, -smallest + 2.0, slowest, turning))
    integral = torch.empty_like(own)
    log_factor = torch.zeros_like(own) if log_odds is None else softplus(log_odds).sum(1)
    weight = weight * y.exp()
    for part in torch.arange(len(own), device=own.device).split(max(1, 8 * SWEEP_ELEMENTS // (len(y) * both.shape[1]))):
        others = torch.exp(-alpha[part][..., None] * _log_factor(log_centre[:, None] + y))
        if log_odds is not None:
            absent = torch.sigmoid(-log_odds[part])
            others = others * torch.sigmoid(log_odds[part])[..., None] + absent[..., None]
        product = others.prod(1)
        if log_odds is not None:
            product = product - absent.prod(1)[:, None]
        product = product * torch.exp(-own[part, None] * _log_factor(log_scale + y).conj())
        integral[part] = (product.real * weight).nan_to_num(0.0).sum(1) / math.pi
    return log_factor, integral
