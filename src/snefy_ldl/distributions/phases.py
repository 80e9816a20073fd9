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
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import SWEEP_ELEMENTS
from snefy_ldl.special.tolerances import TAIL_MASS

__all__ = ["PresentShares", "ShareRow", "SparseShares", "beta_guess", "density_at_zero", "solve_quantiles"]

#: Largest step of the trapezoid rule.
LARGEST_STEP = 0.2
#: Total concentration from which on components that lie on one side for certain are left out, and the rate at which
#: phases of the others turn at most.
SHARP, CERTAIN_RATE = 400.0, 70.0
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
        rate: the fastest phase of a component while its integrand is to be seen.
        low: the least ``y`` at which a component's integrand is over.
        high: the largest.
    """

    rate: float
    low: float
    high: float

    @classmethod
    def union(cls, several: list[Turning]) -> Turning:
        """What serves all of them."""
        return cls(max(one.rate for one in several), min(one.low for one in several), max(one.high for one in several))


def nodes(first: float, last: float, slowest: float, turning: Turning, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes ``y = log t`` and weights (q,) of the trapezoid rule: as dense as phases turn, and far apart outside.

    The rule takes a wave of rate ω in y for one of rate ``2π/step - ω``. Without its phase an integrand holds waves of
    rate ω in proportion to ``e^{-πω/4}``, so ``2π/step`` exceeds the rate of the phase by a constant. Phases turn in
    proportion to t until their integrand is over, and those that live longer turn more slowly.

    Args:
        first: where the first phase begins.
        last: where the last one has come to rest, and only powers of t are left.
        slowest: the smallest of those powers.
        turning: of the phases.
        device: where the nodes lie.

    Returns:
        Both.

    Example:
        >>> y, weight = nodes(-1.0, 2.0, 1.0, Turning(0.0, 0.0, 0.0), torch.device("cpu"))
        >>> round(float((weight / torch.cosh(y)).sum()) / torch.pi, 6)
        1.0
    """
    start, stop = first - GROWTH * (1.0 + math.log(TAIL)), last + GROWTH * (1.0 + math.log(TAIL / slowest))
    # a window that rises with t and is one at least from the first place to the last
    rate, low, high = turning.rate / (2.0 * math.pi * math.tanh(0.5)), turning.low - 1.0, turning.high + 1.0

    def count(v: Tensor) -> Tensor:
        return v / LARGEST_STEP + rate * (softplus(v - low) - softplus(v - high))

    ends = count(torch.tensor([start, stop], dtype=torch.float64))
    grid = torch.linspace(start, stop, 1 + int(4.0 * float(ends[1] - ends[0])), dtype=torch.float64)
    number = torch.arange(math.ceil(float(ends[0])), float(ends[1]), dtype=torch.float64)
    v = torch.as_tensor(np.interp(number.numpy(), count(grid).numpy(), grid.numpy()))
    for _ in range(3):
        dense = 1.0 / LARGEST_STEP + rate * (torch.sigmoid(v - low) - torch.sigmoid(v - high))
        v = v - (count(v) - number) / dense
    dense = 1.0 / LARGEST_STEP + rate * (torch.sigmoid(v - low) - torch.sigmoid(v - high))
    up, down = torch.exp((v - last) / GROWTH - 1.0), torch.exp((first - v) / GROWTH - 1.0)
    return (v + up - down).to(device), ((1.0 + (up + down) / GROWTH) / dense).to(device)


def turning_of(alpha: Tensor, log_centre: Tensor, ends: list[tuple[list[int], float, float]], certain: bool) -> Turning:
    """How fast the phases of some components turn at logits between two ends.

    The larger side's gammas turn the phase at the rate ``x √big`` where they have brought the modulus down to
    ``e^{-x²/2}``, and the smaller side's lower it further.

    Args:
        alpha: concentrations (P, L).
        log_centre: ``log c`` (P or 1, L).
        ends: the labels of every sum, and the two logits.
        certain: whether components that lie on one side for certain are left out, so that phases of sharp ones cancel.

    Returns:
        The fastest, and where.
    """
    rates, places = [], []
    for group, *logits in ends:
        rest = [r for r in range(alpha.shape[1]) if r not in group]
        own, others = alpha[:, group].sum(1), alpha[:, rest].sum(1)
        small, big = torch.minimum(own, others), torch.maximum(own, others)
        reach = small + 4.0 * small.sqrt() + 10.0
        x = torch.full_like(small, math.sqrt(2.0 * SEEN))
        for _ in range(4):  # x²/2 + ½ small log(1 + big x²/reach²) = SEEN, from above
            lowered = 0.5 * small * torch.log1p(big * (x / reach).square())
            x = torch.sqrt(2.0 * (SEEN - lowered).clamp_min(0.5 * SEEN))
        rate = x * big.sqrt()
        broad = small < BROAD
        if certain:
            rate = torch.where(broad, rate, rate.clamp_max(CERTAIN_RATE))
        rates.append(float(rate.max()))
        spread_rest = torch.logsumexp(alpha[:, rest].log() + 2.0 * log_centre[..., rest], -1)
        spread_own = torch.logsumexp(alpha[:, group].log() + 2.0 * log_centre[..., group], -1)
        fast = rate > 0.5 * rate.max()
        for u in logits:
            moved = spread_own - 2.0 * u
            spread = torch.where(broad, torch.minimum(moved, spread_rest), torch.logaddexp(moved, spread_rest))
            place = math.log(math.sqrt(2.0 * SEEN)) - 0.5 * spread[fast.expand_as(spread)]
            places += [float(place.min()), float(place.max())]
    return Turning(max(rates), min(places), max(places))


class ShareRow:
    """The laws of some sums of shares of one row: what :func:`solve_quantiles` asks.

    Attributes:
        at_zero: probability that each sum is exactly 0 (R,).
        inside: probability that it lies strictly between 0 and 1 (R,).
    """

    at_zero: Tensor
    inside: Tensor

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """Choose nodes for logits between two ends (r,) of the sums ``which`` (r,)."""
        raise NotImplementedError

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Cdf and density of the logit at points u (r, A) of the sums ``which`` (r,); the atom at one is left out."""
        raise NotImplementedError


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
    u, width = guess.clone(), (AROUND_DEVIATIONS * deviation).clamp(max=AROUND)
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

    The row may be a mixture of S parts with centres of their own (votes make it one); their weights share the neurons.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        weights: of all pairs of neurons, ``Σ = 1`` (S, K, n, n), symmetric.
        log_centre: ``log c`` (S, L).
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
        self._half, self._weights = _without_unused(half, weights)
        self._log_centre, self._groups = log_centre, groups
        self.at_zero = half.new_zeros(len(groups))
        self.inside = half.new_ones(len(groups))
        self._total = 2.0 * float(self._half.sum(-1).max())
        self._certain = self._total > SHARP

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        alpha, centre = 2.0 * self._half.flatten(0, 1), self._log_centre
        self._position = {int(g): number for number, g in enumerate(which)}
        every = [
            self._group_nodes(alpha, self._groups[int(g)], float(a), float(b))
            for g, a, b in zip(which, lowest, highest)
        ]
        width = max(len(y) for y, _ in every)
        # sums with fewer nodes repeat their last one, without weight
        self._y = torch.stack([torch.cat([y, y[-1:].expand(width - len(y))]) for y, _ in every])  # (R, q)
        self._weight = torch.stack([torch.cat([w, w.new_zeros(width - len(w))]) for _, w in every])
        phase = centre[..., None] + self._y[:, None, None]  # (R, S, L, q)
        self._modulus, self._angle = log_modulus(phase), torch.atan(phase.exp())
        self._sizes = -torch.einsum("kil,rslq->rskiq", self._half, self._modulus)
        self._angles = -torch.einsum("kil,rslq->rskiq", self._half, self._angle)
        if self._certain:
            self._tilts = _Tilts.of(self._half, self._log_centre, self._total)

    def _group_nodes(self, alpha: Tensor, group: list[int], low: float, high: float) -> tuple[Tensor, Tensor]:
        """Nodes and weights (q,) of the integrals of one sum at logits between two ends."""
        centre, ends = self._log_centre, [(group, low, high)]
        top = float(torch.logsumexp(alpha.amax(0).log() + centre, 1).max())
        largest = max(top, float(centre[:, group].max()) - low)
        smallest = min(float(centre.min()), float(centre[:, group].min()) - high)
        slowest = min(1.0, float(alpha.amin(0).topk(2, largest=False).values.sum()))
        turning = [turning_of(alpha, row, ends, self._certain) for row in centre]
        y, weight = nodes(-largest - 1.0, -smallest + 2.0, slowest, Turning.union(turning), alpha.device)
        least, phase = alpha.amin(0), centre[..., None] + y
        modulus = log_modulus(phase)
        moved = log_modulus(phase[:, group] - high) - modulus[:, group]  # moduli fall as the logit rises
        bound = -(torch.einsum("l,slq->sq", least, modulus) + torch.einsum("g,sgq->sq", least[group], moved)).amin(0)
        keep = (bound + weight.log() > math.log(LEAST)) & (y > -largest - TAIL - 4.0)  # before, phases are as small
        return y[keep], weight[keep]

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        _, n_parts, n_members, n, n_nodes = self._sizes.shape
        size = max(1, 8 * SWEEP_ELEMENTS // (n_parts * n_members * n * max(n_nodes, n) * u.shape[1]))
        answers = [self._block(u[k : k + size], which[k : k + size].tolist()) for k in range(0, len(u), size)]
        cdf, density = (torch.cat(parts) for parts in zip(*answers))
        return cdf.clamp(0.0, 1.0), density.clamp_min(0.0)

    def _block(self, u: Tensor, which: list[int]) -> tuple[Tensor, Tensor]:
        # axes: sum r, point a, part s, member k, neuron i, node q
        groups, rows = [self._groups[g] for g in which], [self._position[g] for g in which]
        y, weight = self._y[rows], self._weight[rows][:, None]
        size, angle = self._sizes[rows][:, None], self._angles[rows][:, None]
        modulus, angles = self._modulus[rows], self._angle[rows]
        slopes = []
        for place in range(max(len(group) for group in groups)):
            labels, half = _place_of(self._half, groups, place)
            phase = self._log_centre[:, labels].T[:, None, :, None] - u[:, :, None, None] + y[:, None, None]
            each = torch.arange(len(labels), device=u.device)
            moved = log_modulus(phase) - modulus[each, :, labels][:, None]  # (r, a, S, q)
            turned = torch.atan(phase.exp()) + angles[each, :, labels][:, None]
            half = half[:, None, None, :, :, None]
            size = size - half * moved[:, :, :, None, None]
            angle = angle + half * turned[:, :, :, None, None]
            slopes.append((half, *_slope(phase)))
        modulus = size.exp()
        real, imaginary = modulus * angle.cos(), modulus * angle.sin()
        weights, sure = self._weights[None, None], 0.0
        if self._certain:
            near, above = self._tilts.near(u, groups)
            sure = (weights * above).sum((2, 3, 4, 5))  # type: ignore[assignment]
            weights = weights * near
        turned_real, turned_imaginary = weights @ real, weights @ imaginary
        cross = real * turned_imaginary + imaginary * turned_real
        plain = real * turned_real - imaginary * turned_imaginary
        integral = (cross.sum((2, 3, 4)) * weight).sum(-1)
        density = torch.zeros_like(integral)
        for half, real_slope, slope in slopes:  # d log z / du = -Σ a i s / (1 - i s)
            rising, falling = ((half * part).sum((3, 4)) for part in (plain, cross))  # (r, a, S, q)
            density = density + ((rising * slope + falling * real_slope).sum(2) * weight).sum(-1)
        cdf = 0.5 * weights.sum((2, 3, 4, 5)) - integral / math.pi + sure
        return cdf, 2.0 * density / math.pi


def _place_of(half: Tensor, groups: list[list[int]], place: int) -> tuple[Tensor, Tensor]:
    """The label of every group at some place, and its neurons' halves (r, K, n): zero where a group is shorter."""
    labels = torch.tensor([group[min(place, len(group) - 1)] for group in groups], device=half.device)
    there = torch.tensor([float(place < len(group)) for group in groups], device=half.device, dtype=half.dtype)
    return labels, half[..., labels].movedim(-1, 0) * there[:, None, None]


def _without_unused(half: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Neurons that carry weight: as many per member as the member with most needs."""
    size = weights.abs().sum((0, 3))  # (K, n)
    order = size.argsort(1, descending=True)
    ranked = size.gather(1, order)
    left = ranked.flip(1).cumsum(1).flip(1)  # what a cut before this neuron leaves out
    n_kept = max(1, int((left > NEGLIGIBLE / len(size)).sum(1).max()))
    if n_kept == half.shape[1]:
        return half, weights
    order = order[:, :n_kept].sort(1).values
    member = torch.arange(len(half), device=half.device)[:, None]
    kept = weights[:, member[..., None], order[:, :, None], order[:, None, :]]
    return half[member, order], kept


@dataclass(frozen=True)
class _Tilts:
    """Chernoff's bounds: which components lie for certain on one side of a point.

    ``P(X > 0) <= E[e^{θX}]`` and ``P(X <= 0) <= E[e^{-θX}]`` for every θ > 0, and both are products over neurons.

    Args:
        half: ``a`` (K, n, L).
        log_centre: ``log c`` (S, L).
        theta: of either sign (T,).
        logs: ``log(1 + θ c)`` (S, L, T), infinite where there is no such expectation.
        base: ``-Σ_r a_r log(1 + θ c_r)`` (S, K, n, T).
    """

    half: Tensor
    log_centre: Tensor
    theta: Tensor
    logs: Tensor
    base: Tensor

    @classmethod
    def of(cls, half: Tensor, log_centre: Tensor, total: float) -> _Tilts:
        scale = torch.logsumexp((2.0 * half).mean((0, 1)).log() + log_centre, 1).amax()
        powers = torch.arange(1.0, math.log2(max(total, 4.0)) + 1.5, device=half.device, dtype=torch.float64)
        theta = 2.0**powers * torch.exp(-scale)
        theta = torch.cat([theta, -theta])
        lifted = 1.0 + theta * log_centre.exp()[..., None]  # (S, L, T)
        logs = torch.where(lifted > 0.0, lifted.clamp_min(1e-300).log(), -torch.inf)
        safe = logs.nan_to_num(neginf=0.0)
        base = -torch.einsum("kil,slt->skit", half, safe)
        base = torch.where(torch.isneginf(logs).any(1)[:, None, None], torch.inf, base)
        return cls(half, log_centre, theta, safe, base)

    def near(self, u: Tensor, groups: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Components that are not certain, and those that lie below the point, 0 or 1 (r, a, S, K, n, n)."""
        bound = self.base[None, None]
        for place in range(max(len(group) for group in groups)):
            labels, half = _place_of(self.half, groups, place)
            moved = (self.log_centre[:, labels].T[:, None, :] - u[:, :, None]).exp()  # c e^{-u} (r, a, S)
            lifted = 1.0 - self.theta * moved[..., None]
            logs = torch.where(lifted > 0.0, lifted.clamp_min(1e-300).log(), -torch.inf)
            change = self.logs[:, labels].transpose(0, 1)[:, None] - logs  # (r, a, S, T)
            bound = bound + half[:, None, None, :, :, None] * change[:, :, :, None, None]
        bound = bound.nan_to_num(nan=torch.inf).float()
        n_theta = bound.shape[-1] // 2
        limit = math.log(CERTAIN)

        def lowest(part: Tensor) -> Tensor:
            answer = part[..., :, None, 0] + part[..., None, :, 0]
            for t in range(1, part.shape[-1]):
                torch.minimum(answer, part[..., :, None, t] + part[..., None, :, t], out=answer)
            return answer < limit

        above_point, below_point = lowest(bound[..., n_theta:]), lowest(bound[..., :n_theta])
        near = ~(above_point | below_point)
        return near.double(), (below_point & ~above_point).double()


# -- labels may be absent ----------------------------------------------------------------------------------------------


class SparseShares(ShareRow):
    """Sums of shares of one row in which labels may be absent.

    Args:
        half: ``a = ½ + w`` of the neurons (n, L), float64.
        first: one neuron of every pair (P,).
        second: the other (P,).
        weights: of the pairs (P,), ``Σ = 1``.
        log_odds: of presence, in every pair (P, L).
        log_centre: ``log c`` of every pair (P, L), or of all (1, L).
        groups: the labels of each sum.
        by_pair: whether :meth:`at` tells the pairs apart, weights of one; its answers are then (r, A, P).

    Example:
        >>> half, odds = torch.tensor([[1.0, 1.5, 2.5]]).double(), torch.full((1, 3), 40.0).double()
        >>> pair, one = torch.tensor([0]), torch.ones(1).double()
        >>> row = SparseShares(half, pair, pair, one, odds, torch.zeros(1, 3).double(), [[0]])  # Dirichlet(2, 3, 5)
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
        by_pair: bool = False,
    ) -> None:
        self._half, self._groups, self._by_pair = half, groups, by_pair
        if not by_pair:
            order = weights.abs().argsort(descending=True)
            left = weights.abs()[order].flip(0).cumsum(0).flip(0)
            kept = order[: max(1, int((left > NEGLIGIBLE).sum()))].sort().values
            first, second, weights, log_odds = first[kept], second[kept], weights[kept], log_odds[kept]
            log_centre = log_centre if len(log_centre) == 1 else log_centre[kept]
        self._first, self._second, self._weights = first, second, weights
        self._there, self._absent = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
        log_absent = -softplus(log_odds)
        norm = -torch.expm1(log_absent.sum(1))
        self._alpha = half[first] + half[second]
        self._log_centre = log_centre
        none_in, none_out = [], []
        for group in groups:
            rest = [r for r in range(half.shape[1]) if r not in group]
            none_in.append(log_absent[:, group].sum(1).exp())
            none_out.append(log_absent[:, rest].sum(1).exp())
        self._none_in, self._none_out = torch.stack(none_in), torch.stack(none_out)  # (R, P)
        self._scale = weights / norm
        self.at_zero = (self._none_in * (1.0 - self._none_out)) @ self._scale
        self._some = (1.0 - self._none_in) * (1.0 - self._none_out)
        self.inside = self._some @ self._scale
        total = self._alpha.sum(1)
        octave = torch.where(total > 64.0, torch.ceil(0.5 * torch.log2(total / 64.0)), torch.zeros_like(total))
        self._octaves = [torch.nonzero(octave == value).squeeze(1) for value in octave.unique()]
        if by_pair:
            self.at_zero, self.inside = self._none_in * (1.0 - self._none_out) / norm, self._some / norm

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        self._parts = []
        position = torch.full((len(self._groups),), -1, device=self._half.device)
        position[which] = torch.arange(len(which), device=self._half.device)
        self._position = position
        for pairs in self._octaves:
            self._parts.append(self._coefficients(pairs, lowest, highest, which))

    def _coefficients(
        self, pairs: Tensor, lowest: Tensor, highest: Tensor, which: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Nodes, their weights, neurons and pairs of some pairs, and what lies outside each sum (r, p, q), complex."""
        alpha = self._alpha[pairs]
        centre = self._log_centre if len(self._log_centre) == 1 else self._log_centre[pairs]
        ends = [(self._groups[int(g)], float(a), float(b)) for g, a, b in zip(which, lowest, highest)]
        top = float(torch.logsumexp(alpha.log() + centre, 1).max())
        largest = max([top] + [float(centre[:, group].max()) - low for group, low, _ in ends])
        smallest = min([float(centre.min())] + [float(centre[:, group].min()) - high for group, _, high in ends])
        slowest = min(1.0, float(alpha.topk(2, 1, largest=False).values.sum(1).min()))
        turnings = [turning_of(alpha, centre, ends, certain=False), *self._lone_turnings(pairs, centre, ends)]
        turning = Turning.union(turnings)
        y, weight = nodes(-largest - 1.0, -smallest + 2.0, slowest, turning, alpha.device)
        keep = y > -largest - TAIL - 4.0
        y, weight = y[keep], weight[keep]
        neurons, index = torch.unique(torch.cat([self._first[pairs], self._second[pairs]]), return_inverse=True)
        first, second = index[: len(pairs)], index[len(pairs) :]
        around = torch.empty(len(which), len(pairs), len(y), dtype=torch.complex128, device=alpha.device)
        there, absent = self._there[pairs], self._absent[pairs]
        factors = _factors(self._half[neurons], centre, y) if len(centre) == 1 else None
        block = max(1, 8 * SWEEP_ELEMENTS // (len(y) * alpha.shape[1]))
        for part in torch.arange(len(pairs), device=alpha.device).split(block):
            if factors is not None:
                each = factors[first[part]] * factors[second[part]]
            else:
                each = _pair_factors(alpha[part], centre[part], y)
            each = each * there[part, :, None] + absent[part, :, None]  # (p, L, q)
            around[:, part] = _leave_out(each, [self._groups[int(g)] for g in which])
        around -= self._none_out[which][:, pairs, None]
        around *= weight
        if not self._by_pair:
            around *= self._scale[pairs][:, None]
            alive = around.abs().amax((0, 1)) > LEAST * weight  # the factors inside are at most one
            y, around = y[alive], around[..., alive].contiguous()
        return y, neurons, torch.stack([first, second]), pairs, around

    def _lone_turnings(
        self, pairs: Tensor, centre: Tensor, ends: list[tuple[list[int], float, float]]
    ) -> list[Turning]:
        """How fast phases turn where of one side only the smallest label is there, which lowers the modulus least."""
        turnings = []
        for group, low, high in ends:
            for side in (group, [r for r in range(self._half.shape[1]) if r not in group]):
                alpha, absent = self._alpha[pairs], self._absent[pairs][:, side]
                smallest = alpha[:, side].argmin(1, keepdim=True)
                alone = absent.scatter(1, smallest, 1.0).prod(1) > NEGLIGIBLE
                if len(side) == 1 or not bool(alone.any()):
                    continue
                kept = torch.full_like(absent, GONE).scatter(1, smallest, alpha[:, side].gather(1, smallest))
                alpha[:, side] = kept
                own = centre if len(centre) == 1 else centre[alone]
                turnings.append(turning_of(alpha[alone], own, [(group, low, high)], certain=False))
        return turnings

    def at(self, u: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        total_cdf: Tensor | float = 0.0
        total_density: Tensor | float = 0.0
        rows = self._position[which]
        for y, neurons, ends, pairs, around in self._parts:
            cdf, density = [], []
            for point, row, group in zip(u, rows, which):
                integral, slope = self._integrals(point, self._groups[int(group)], y, neurons, ends, pairs, around[row])
                cdf.append(integral)
                density.append(slope)
            total_cdf, total_density = total_cdf + torch.stack(cdf), total_density + torch.stack(density)
        middle = (self.at_zero + 0.5 * self.inside)[which]
        assert isinstance(total_cdf, Tensor) and isinstance(total_density, Tensor)
        if self._by_pair:
            return middle[:, None] - total_cdf / math.pi, total_density / math.pi
        return (middle[:, None] - total_cdf / math.pi).clamp(0.0, 1.0), (total_density / math.pi).clamp_min(0.0)

    def _integrals(
        self, u: Tensor, group: list[int], y: Tensor, neurons: Tensor, ends: Tensor, pairs: Tensor, around: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``∫ Im φ dy`` and its derivative at points u (A,): (A,), or (A, P) by pair."""
        centre = self._log_centre if len(self._log_centre) == 1 else self._log_centre[pairs]
        out_cdf, out_density = [], []
        for point in u:
            each, slopes = [], []
            for r in group:
                if len(centre) == 1:
                    phase = centre[0, r] - point + y
                    factor = torch.exp(-self._half[neurons, r, None] * _log_factor(phase).conj())
                    pair = factor[ends[0]] * factor[ends[1]]
                else:
                    phase = centre[:, r, None] - point + y
                    pair = torch.exp(-self._alpha[pairs, r, None] * _log_factor(phase).conj())
                each.append(pair * self._there[pairs, r, None])
                slopes.append(torch.complex(*_slope(phase)))
            if len(group) == 1:
                product, rest = each[0], [None]
            else:
                either = torch.stack([part + self._absent[pairs, r, None] for part, r in zip(each, group)], 1)
                without = _leave_out(either, [[k] for k in range(len(group))])
                product = either.prod(1) - self._none_in_of(group, pairs)[:, None]
                rest = list(without)
            terms = product * around
            if self._by_pair:
                cdf = torch.zeros(len(self._alpha), dtype=torch.float64, device=u.device)
                cdf[pairs] = terms.imag.sum(1)
                density = torch.zeros_like(cdf)
            else:
                cdf, density = terms.imag.sum(), torch.zeros((), dtype=torch.float64, device=u.device)
            for r, part, slope, others in zip(group, each, slopes, rest):
                change = part * around if others is None else part * others * around
                if self._by_pair:
                    density[pairs] += self._alpha[pairs, r] * (change * slope).imag.sum(1)
                elif slope.dim() == 1:
                    column = self._alpha[pairs, r].to(change.dtype) @ change
                    density = density + (column * slope).imag.sum()
                else:
                    density = density + (self._alpha[pairs, r] * (change * slope).imag.sum(1)).sum()
            out_cdf.append(cdf)
            out_density.append(density)
        return torch.stack(out_cdf), torch.stack(out_density)

    def _none_in_of(self, group: list[int], pairs: Tensor) -> Tensor:
        return self._none_in[self._groups.index(group), pairs]


def _log_factor(phase: Tensor) -> Tensor:
    """``log(1 + i s)`` of ``log s``, complex."""
    return torch.complex(log_modulus(phase), torch.atan(phase.exp()))


def _slope(phase: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of ``i s / (1 - i s)``, of ``log s``."""
    return -torch.sigmoid(2.0 * phase), 0.5 / torch.cosh(phase.clamp(-300.0, 300.0))


def _factors(half: Tensor, log_centre: Tensor, y: Tensor) -> Tensor:
    """``(1 + i t c_r)^{-a_ir}`` of neurons (n, L, q), complex; one centre (1, L)."""
    return torch.exp(-half[..., None] * _log_factor(log_centre[0][:, None] + y))


def _pair_factors(alpha: Tensor, log_centre: Tensor, y: Tensor) -> Tensor:
    """``(1 + i t c_r)^{-α_r}`` of pairs with centres of their own (p, L, q), complex."""
    return torch.exp(-alpha[..., None] * _log_factor(log_centre[..., None] + y))


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
    centre = torch.cat([log_scale.reshape(1), log_centre])
    largest = float(torch.logsumexp(both.log() + centre, 1).max())
    slowest = min(1.0, float((own + alpha.amin(1) - 1.0).clamp_min(0.05).min()))
    turning = turning_of(both, centre[None], [([0], 0.0, 0.0)], certain=False)
    y, weight = nodes(-largest - 1.0, -float(centre.min()) + 2.0, slowest, turning, own.device)
    integral = torch.empty_like(own)
    log_factor = torch.zeros_like(own) if log_odds is None else softplus(log_odds).sum(1)
    weight = weight * y.exp()
    for part in torch.arange(len(own), device=own.device).split(max(1, 8 * SWEEP_ELEMENTS // (len(y) * both.shape[1]))):
        others = _pair_factors(alpha[part], log_centre[None], y)
        if log_odds is not None:
            absent = torch.sigmoid(-log_odds[part])
            others = others * torch.sigmoid(log_odds[part])[..., None] + absent[..., None]
        product = others.prod(1)
        if log_odds is not None:
            product = product - absent.prod(1)[:, None]
        product = product * torch.exp(-own[part, None] * _log_factor(log_scale + y).conj())
        integral[part] = (product.real * weight).nan_to_num(0.0).sum(1) / math.pi
    return log_factor, integral
