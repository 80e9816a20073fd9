"""Cdfs of sums of shares in which every label is there: one oscillating integral for all pairs of neurons.

In a component (i, j) the characteristic function (:mod:`~snefy_ldl.distributions.share_quantiles`) is a product of one
factor per neuron,

    z_i(t) = Π_A (1 - i t c_r e^{-u})^{-a_ir} Π_rest (1 + i t c_r)^{-a_ir},      a = ½ + w,

so that the sum over all components is a quadratic form ``zᵀ W z`` at every node.

The integrand is analytic in a strip around the real line, so the trapezoid rule converges exponentially. Its step
follows the fastest phase that is still to be seen (:class:`Contour`). A component whose share lies for certain on one
side of v (by Chernoff's bound) counts as 0 or 1 and leaves the sum, and the phases of the others are slow however sharp
they are. Components with a heavy tail are never certain; their integral runs along a path that tilts towards the tail,
where the sharp side decays (:class:`_Kind`). Every third node makes a rule of its own, and where the two disagree the
nodes are too far apart: those sums are computed again with more of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import SWEEP_ELEMENTS
from snefy_ldl.distributions.share_quantiles import (
    GROWTH,
    HEAVIER,
    NEGLIGIBLE,
    SEEN,
    TAIL,
    ShareRow,
    label_masks,
)

__all__ = ["MixedShares", "PresentShares"]

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
#: Factors are followed down to e to minus this, and in float32: smaller numbers are slow, and next to nothing.
VANISHED, QUICK_VANISHED = 300.0, 35.0
#: Factors of neurons are no larger than e to this along the paths of their pairs.
GROWN = 6.0
#: A share, or what is left of one, with a smaller concentration than this has tails in which phases do not cancel.
BROAD = 25.0
#: ... where all labels are there: densities of 1e-5 are asked for to five digits.
LEAST_PRESENT = 1e-11
#: Chernoff bounds below this make a component certain.
CERTAIN = 1e-9
#: Odds of e to minus this, relative to those of any interest, are so small that only their leading power counts.
FAR = 14.0
#: What an integral may differ by from that by every third node (the rule's own error is about the third power of it),
#: and how much denser nodes become at most, by threes, where one differs by more.
DOUBT, FINEST = 2e-4, 243.0
#: Neurons are left out of a kind of pairs where fewer than this part of them are needed.
FEWER = 0.8
#: Sums whose nodes are chosen at a time.
CONTOURS_TOGETHER = 128
#: Up to this many sums are answered in float64 throughout, and any number whose weights' sizes sum to this or more.
FEW_SUMS, CANCELS = 64, 4.0


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
        inside = label_masks([list(group) for group in distinct], half.shape[2], half.device)
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
        n_parts = len(self._first)
        self._parts.prepare(lowest.repeat(n_parts), highest.repeat(n_parts), (self._first + which).flatten())

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
