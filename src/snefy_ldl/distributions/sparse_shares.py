"""Cdfs of sums of shares in which labels may be absent: one oscillating integral per pair of neurons.

With p the chance that a label is there, its factor F of a pair's characteristic function
(:mod:`~snefy_ldl.distributions.share_quantiles`) becomes ``1 - p + p F``, which is no product of neurons any more:
pairs are summed one by one. The step of the trapezoid rule follows the fastest phase that is still to be seen
(:func:`nodes`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import SWEEP_ELEMENTS
from snefy_ldl.distributions.share_quantiles import (
    GROWTH,
    HEAVIER,
    LEAST_CHANCE,
    LOWEST,
    NEGLIGIBLE,
    SEEN,
    TAIL,
    ShareRow,
    label_masks,
)

if TYPE_CHECKING:
    from typing_extensions import Self

#: Largest step of the trapezoid rule.
LARGEST_STEP = 0.2
#: Rate of a phase that the largest step can bear: where it turns fastest an integrand is small already.
SPARE = 10.0
#: What an integrand's bound must exceed for its node to count.
LEAST = 1e-8
#: Up to this many pairs of neurons share one grid, however sharp each of them is.
FEW_PAIRS = 8


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

    quick = True

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
        self._inside = label_masks(groups, half.shape[1], half.device)
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
        #: logits of every sum that there are nodes for (2, R)
        self._between = torch.tensor([[torch.inf], [-torch.inf]]).to(total).repeat(1, len(groups))
        self._octaves = [torch.nonzero(octave == value).squeeze(1) for value in octave.unique()]

    def prepare(self, lowest: Tensor, highest: Tensor, which: Tensor) -> None:
        """See the base class."""
        low, high = self._between[:, which]
        if bool(((lowest >= low) & (highest <= high)).all()):
            return
        self._between[0], self._between[1] = torch.inf, -torch.inf
        self._between[:, which] = torch.stack([lowest, highest])
        self._position = torch.empty(len(self._groups), dtype=torch.long, device=which.device)
        self._position[which] = torch.arange(len(which), device=which.device)
        single = all(len(group) == 1 for group in self._groups)
        make = self._added_up if single else self._one_by_one
        self._parts = [part for pairs in self._octaves for part in make(pairs, lowest, highest, which)]

    def at(self, u: Tensor, which: Tensor, rough: bool = False) -> tuple[Tensor, Tensor]:
        """See the base class."""
        points = torch.stack([u.flatten(), which.repeat_interleave(u.shape[1]).to(u)], 1)
        points, same = torch.unique(points, dim=0, return_inverse=True)  # levels that an atom holds repeat others
        logits, numbers = points[:, 0], points[:, 1].long()
        integral, slope = torch.zeros_like(logits), torch.zeros_like(logits)
        for part in self._parts:
            part = part.third() if rough else part
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
        alpha, centre, inside = self._alpha[pairs], self._log_centre, self._inside[which]
        # logarithms of the largest phase and of the smallest at t = 1
        own_most, own_least = (torch.where(inside, centre, end) for end in (-torch.inf, torch.inf))
        largest = torch.maximum((alpha.amax(0).log() + centre).logsumexp(0), (own_most.amax(1) - lowest).max())
        smallest = torch.minimum(centre.min(), (own_least.amin(1) - highest).min())
        slowest = min(1.0, float(alpha.topk(2, 1, largest=False).values.sum(1).min()))
        windows = self._turning(alpha, inside, lowest, highest)
        begun, settled = -float(largest), -float(smallest)
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
            parts.append(_GroupPart(y, half, ends.T, alpha, self._log_centre, around, groups, there, absent, none_in))
        return parts


@dataclass(frozen=True)
class _Part:
    """Integrals of sums over some pairs or terms on one grid.

    Args:
        y: nodes (q,).
        half: ``a`` of every neuron.
        ends: both neurons of every pair or term (2, P).
        alpha: of every pair or term.
        log_centre: ``log c`` of labels.
        around: what lies outside each sum, with all weights (r, P, q), complex.
    """

    y: Tensor
    half: Tensor
    ends: Tensor
    alpha: Tensor
    log_centre: Tensor
    around: Tensor

    def third(self) -> Self:
        """Every third node, a rule of its own."""
        return replace(self, y=self.y[1::3], around=3.0 * self.around[..., 1::3])


class _LonePart(_Part):
    """Integrals of single labels over pairs: ``half`` (r, n), ``alpha`` (r, P) and ``log_centre`` (r,) are theirs."""

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
class _GroupPart(_Part):
    """Integrals of sums of several labels over terms: ``half`` (n, L), ``alpha`` (T, L) and ``log_centre`` (L,).

    Args:
        groups: the labels of each sum.
        there: chance that a label is there (T, L).
        absent: chance that it is not (T, L).
        none_in: chance that no label of a sum is there (r, T).
    """

    groups: list[list[int]]
    there: Tensor
    absent: Tensor
    none_in: Tensor
    points_at_a_time = 1

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
