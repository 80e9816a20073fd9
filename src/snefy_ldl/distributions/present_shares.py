"""Cdfs of sums of shares in which every label is there: one oscillating integral for all pairs of neurons.

In a component (i, j) the characteristic function (:mod:`~snefy_ldl.distributions.share_quantiles`) is a product of one
factor per neuron,

    z_i(t) = Π_A (1 - i t c_r e^{-u})^{-a_ir} Π_rest (1 + i t c_r)^{-a_ir},      a = ½ + w,

so that the sum over all components is a quadratic form ``zᵀ W z`` at every node.
The integrand is analytic in a strip around the real line, so the trapezoid rule converges exponentially. Its step
follows the fastest phase that is still to be seen (:class:`Contour`). A component whose share lies for certain on one
side of v (by Bernstein's inequality) counts as 0 or 1 and leaves the sum, and the phases of the others are slow however
sharp they are. Components with a heavy tail are never certain; their integral runs along a path that tilts towards the
tail, where the sharp side decays (:class:`_Path`). Every third node makes a rule of its own, and where the two disagree
the nodes are too far apart: those sums are computed again with more of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl.distributions.share_quantiles import GROWTH, HEAVIER, NEGLIGIBLE, SEEN, TAIL, ShareRow, label_masks

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
#: Minus the logarithm of the chance of being on the other side at which a component is certain.
CERTAIN = 20.7
#: Odds of e to minus this, relative to those of any interest, are so small that only their leading power counts.
FAR = 14.0
#: What an integral may differ by from that by every third node (the rule's own error is about the third power of it),
#: and how much denser nodes become at most, by threes, where one differs by more.
DOUBT, FINEST = 2e-5, 243.0
#: Neurons are left out of a path where fewer than this part of them are needed.
FEWER = 0.8
#: Sums whose nodes are chosen at a time, and numbers of all neurons and nodes that are worked on at a time.
CONTOURS_TOGETHER, BLOCK_ELEMENTS = 128, 1 << 18
#: Nodes are chosen for logits this far around those that are asked for.
AROUND = 0.25
#: Up to this many sums are answered in float64 throughout, and any number whose weights' sizes sum to this or more.
FEW_SUMS, CANCELS = 64, 4.0


class PresentShares(ShareRow):
    """Sums of shares of some rows in which every label is there: those of the first row, of the second, ...

    Pairs of neurons are of up to three kinds for a sum, each with a path of integration of its own: see :class:`_Path`.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        weights: of all pairs of neurons (N, K, n, n), symmetric; ``Σ = 1``, or less where a row has other parts.
        log_centre: ``log c`` (N, L).
        groups: the labels of each sum.

    Example:
        >>> half, one = torch.tensor([[[1.0, 1.5, 2.5]]]).double(), torch.ones(1, 1, 1, 1).double()
        >>> row = PresentShares(half, one, torch.zeros(1, 3).double(), [[0]])  # Dirichlet(2, 3, 5)
        >>> row.at(torch.logit(torch.tensor([[0.2]]).double()), torch.tensor([0]))[0].round(decimals=6)
        tensor([[0.5638]], dtype=torch.float64)
    """

    power_law: Tensor
    quick = True

    def __init__(self, half: Tensor, weights: Tensor, log_centre: Tensor, groups: list[list[int]]) -> None:
        distinct = list(dict.fromkeys(tuple(group) for group in groups))
        number = torch.tensor([distinct.index(tuple(group)) for group in groups], dtype=torch.long, device=half.device)
        inside = label_masks([list(group) for group in distinct], half.shape[2], half.device)
        sums = _Sums(number, log_centre, inside)
        self.at_zero = half.new_zeros(len(weights) * len(groups))
        self.inside = weights.sum((1, 2, 3)).repeat_interleave(len(groups))
        # many sums at a time are answered in float32, which is good to 1e-6 unless weights cancel
        quick = len(self.at_zero) > FEW_SUMS and float(weights.abs().sum((1, 2, 3)).max()) < CANCELS
        self.power_law = power_law_below(2.0 * half.amax((0, 1)), log_centre, inside)[:, number].flatten()
        self._sums = sums
        self._paths = [
            _Path.of(half, weights, mask, sums, tilt, quick)
            for tilt, mask in _kinds_of(half, weights, inside)
            if bool(mask.any())
        ]

    def at(self, u: Tensor, which: Tensor, rough: bool = False) -> tuple[Tensor, Tensor]:
        """See the base class."""
        row, group = which // len(self._sums.number), self._sums.number[which % len(self._sums.number)]
        row, group = (part[:, None].expand_as(u).flatten() for part in (row, group))
        below = (u - self.power_law[which, None]).clamp_max(0.0)
        points = (u - below).flatten(), below.flatten(), row, group
        cdfs, densities = zip(*(path.at(*points, rough) for path in self._paths))
        return torch.stack(cdfs).sum(0).view_as(u), torch.stack(densities).sum(0).view_as(u)


class MixedShares(ShareRow):
    """Sums of shares of one row that is a mixture of parts, which differ in their weights and centres alone.

    Args:
        half: ``a`` of every member's neurons (K, n, L).
        weights: of all pairs of neurons in every part (S, K, n, n).
        log_centre: ``log c`` of every part (S, L).
        groups: the labels of each sum.
    """

    quick = True

    def __init__(self, half: Tensor, weights: Tensor, log_centre: Tensor, groups: list[list[int]]) -> None:
        self._parts = PresentShares(half, weights, log_centre, groups)
        self._first = len(groups) * torch.arange(len(weights), device=half.device)[:, None]  # sums of every part
        self.at_zero = half.new_zeros(len(groups))
        self.inside = self._parts.inside.unflatten(0, (-1, len(groups))).sum(0)

    def at(self, u: Tensor, which: Tensor, rough: bool = False) -> tuple[Tensor, Tensor]:
        """See the base class."""
        n_parts = len(self._first)
        cdf, density = self._parts.at(u.repeat(n_parts, 1), (self._first + which).flatten(), rough)
        return cdf.unflatten(0, (n_parts, -1)).sum(0), density.unflatten(0, (n_parts, -1)).sum(0)


@dataclass(frozen=True)
class _Sums:
    """Which sums of shares are asked for: those of the first row, of the second, ...

    Args:
        number: the group of labels of each sum of a row (R,).
        log_centre: ``log c`` of the rows (N, L).
        inside: the labels of every group, a mask (G, L).
    """

    number: Tensor
    log_centre: Tensor
    inside: Tensor

    @cached_property
    def places(self) -> list[tuple[Tensor, Tensor]]:
        """The labels of every group (G,), one place after the other, and whether there is one (G,)."""
        rank, n_labels = (~self.inside).to(torch.int8).argsort(dim=1, stable=True).T, self.inside.sum(1)
        return [(rank[place], n_labels > place) for place in range(int(n_labels.max()))]


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


class _Path:
    """What some pairs of neurons contribute to sums of shares, by one path of integration per sum.

    The path leaves the origin along the imaginary axis. Where one side of a sum has a small concentration and the other
    is sharp, the share has a heavy tail, in which the phases of the sharp side turn fast and long: the path then tilts
    towards that tail, where the sharp side itself decays. The branch points of the other side make the integrand grow
    there, by ``(1 + κ²)^{α/2}`` at most, α being its small concentration.

    Args:
        half: ``a`` of the neurons that have such pairs (K, m, L).
        weights: of their pairs (N, K, m, m).
        mask: the pairs that take this path, for every group of labels (G, K, m, m).
        sums: which are asked for.
        tilt: of the path, κ; zero for pairs that need none.
        quick: whether float32 is good enough.
        finer: nodes are so many times as dense as they should be.
    """

    def __init__(
        self, half: Tensor, weights: Tensor, mask: Tensor, sums: _Sums, tilt: float, quick: bool, finer: float = 1.0
    ) -> None:
        self._half, self._weights, self._mask, self._sums = half, weights, mask, sums
        self._tilt, self._quick, self._finer = tilt, quick, finer
        self._asked, self._belongs = mask.flatten(1).any(1), mask.any(-1).flatten(1)  # (G,), (G, K m)
        self._sharp = 2.0 * float(half.sum(-1).max()) > SHARP
        #: logits that there are nodes for, of every row and group (2, N, G); the block of nodes, and the place therein
        self._between = torch.full((2, len(weights), len(mask)), torch.inf, dtype=half.dtype, device=half.device)
        self._between[1] = -torch.inf
        self._block, self._place = torch.full((2, len(weights), len(mask)), -1, device=half.device)
        self._blocks: list[_Nodes] = []
        self._denser: _Path | None = None

    @classmethod
    def of(cls, half: Tensor, weights: Tensor, mask: Tensor, sums: _Sums, tilt: float, quick: bool) -> _Path:
        """The path of some pairs (G, K, n, n), without neurons that carry next to no weight in them."""
        size = (weights.abs().amax(0) * mask).sum(-1).amax((0, 1))  # (n,)
        order = size.argsort(descending=True)
        left = size[order].flip(0).cumsum(0).flip(0)  # what a cut before this neuron leaves out
        n_kept = max(1, int((left > NEGLIGIBLE / len(half)).sum()))
        if n_kept < FEWER * half.shape[1]:
            kept = order[:n_kept].sort().values
            half, weights, mask = half[:, kept], weights[..., kept[:, None], kept], mask[..., kept[:, None], kept]
        return cls(half, weights, mask, sums, tilt, quick)

    def at(self, u: Tensor, below: Tensor, row: Tensor, group: Tensor, rough: bool) -> tuple[Tensor, Tensor]:
        """Cdf and density of the logit at points u (p,) of rows and groups of labels (p,), and ``below`` them."""
        answer = u.new_zeros(3, len(u))
        mine = torch.nonzero(self._asked[group]).squeeze(1)
        if len(mine):
            self._prepare(u[mine], row[mine], group[mine])
            block, place = self._block[row, group], self._place[row, group]
            for number in torch.unique(block[mine]).tolist():
                points, nodes = mine[block[mine] == number], self._blocks[number]
                nodes = nodes.third() if rough else nodes
                for part in points.split(nodes.points_at_a_time):
                    answer[:, part] = self._integrals(nodes, place[part], u[part], below[part], row[part], group[part])
        cdf, density, doubt = answer
        doubtful = ~(doubt <= DOUBT)  # NaN is doubtful, too
        if not rough and self._finer < FINEST and bool(doubtful.any()):
            if self._denser is None:
                parts = self._half, self._weights, self._mask, self._sums, self._tilt, self._quick
                self._denser = _Path(*parts, finer=3.0 * self._finer)
            cdf[doubtful], density[doubtful] = self._denser.at(
                u[doubtful], below[doubtful], row[doubtful], group[doubtful], rough
            )
        return cdf, density

    def _prepare(self, u: Tensor, row: Tensor, group: Tensor) -> None:
        """Choose nodes for sums that have none for some of these points (p,)."""
        low, high = (
            torch.full_like(old, start).flatten().scatter_reduce_(0, row * old.shape[1] + group, u, how).view_as(old)
            for old, start, how in zip(self._between, (torch.inf, -torch.inf), ("amin", "amax"))
        )
        row, group = torch.nonzero((low < self._between[0]) | (high > self._between[1]), as_tuple=True)
        if not len(row):
            return
        self._between[0, row, group] = torch.minimum(low - AROUND, self._between[0])[row, group]
        self._between[1, row, group] = torch.maximum(high + AROUND, self._between[1])[row, group]
        for some in torch.arange(len(row), device=u.device).split(CONTOURS_TOGETHER):
            self._choose(row[some], group[some])

    def _choose(self, row: Tensor, group: Tensor) -> None:
        """Nodes of some sums, by their rows and groups (r,); those that need about as many are kept together."""
        contour, centre = self._contours(row, group), self._sums.log_centre[row]
        factors = torch.stack(contour.log_factor(centre[..., None], 1.0), 2)  # (r, L, 2, q)
        # moduli fall as the logit rises: what is over at the highest one needs no nodes
        moved, each = factors[:, :, 0].clone(), torch.arange(len(row), device=row.device)
        for labels, there in self._sums.places:
            label = labels[group]
            own = contour.log_factor((centre[each, label] - self._between[1, row, group])[:, None, None], -1.0)[0][:, 0]
            moved[each, label] = torch.where(there[group, None], own, moved[each, label])
        bound = -(self._half.flatten(0, 1) @ moved).masked_fill_(~self._belongs[group][..., None], torch.inf).amin(1)
        alive = 2.0 * bound + contour.weight.abs().log() > math.log(LEAST_PRESENT)  # (r, q)
        count = (alive * torch.arange(1, alive.shape[1] + 1, device=row.device)).amax(1).clamp_min(1)
        order, start, per_node = count.argsort(descending=True), 0, self._half[..., 0].numel()
        while start < len(order):
            n_nodes = int(count[order[start]])
            together = max(1, BLOCK_ELEMENTS // (per_node * n_nodes))
            chosen = order[start : start + together]
            self._block[row[chosen], group[chosen]] = len(self._blocks)
            self._place[row[chosen], group[chosen]] = torch.arange(len(chosen), device=row.device)
            self._blocks.append(_Nodes(contour.take(chosen, n_nodes), factors[chosen, ..., :n_nodes], together))
            start += together

    def _contours(self, row: Tensor, group: Tensor) -> Contour:
        """Nodes of some sums: where the phases of components turn, and how fast.

        Where components that lie on one side for certain have left the sum, phases of the others turn slowly, which is
        believed only where nodes are not finer than they should be; steep paths are believed once more.
        """
        # axes: sum r, neuron of a member i
        steep = abs(self._tilt) >= STEEP_TILT
        believed = self._finer <= (3.0 if steep else 1.0)
        tilt = self._tilt if believed else 0.0
        lowest, highest = self._between[:, row, group]
        belongs = self._belongs[group]  # (r, K m)
        inside, centre = self._sums.inside[group], self._sums.log_centre[row]
        half = 2.0 * self._half.flatten(0, 1)
        (own, size_own, spread_own), (others, size_rest, spread_rest) = (
            [_log_sums(half, power * centre, side) for power in (0.0, 1.0, 2.0)] for side in (inside, ~inside)
        )  # logarithms, (r, K m)
        own, others = own.exp(), others.exp()
        rate = torch.where(belongs, fastest_phase(own, others), 0.0)
        broad = torch.minimum(own, others) < BROAD
        if tilt:
            rate = rate.clamp_max(STEEP_RATE if steep else TILTED_RATE)
        elif self._sharp and self._finer == 1.0:
            rate = rate.clamp_max(STRAIGHT_RATE)
        slow = ~belongs | (rate < SLOW * rate.amax(1, keepdim=True))
        places = []
        for u in (lowest[:, None], highest[:, None]):
            moved, fixed = spread_own - 2.0 * u, spread_rest
            larger = torch.where(own < others, fixed, moved)  # phases of the larger side outlast a heavy tail
            place = 0.5 * (math.log(2.0 * SEEN) - torch.where(broad, larger, torch.logaddexp(moved, fixed)))
            if tilt:  # over where the sharp side has decayed
                decay = size_rest if tilt > 0.0 else size_own - u
                place = torch.where(broad | steep, torch.minimum(place, math.log(SEEN / abs(tilt)) - decay), place)
            places.append(place)
        low = torch.stack([part.masked_fill(slow, torch.inf).amin(1) for part in places]).amin(0)
        high = torch.stack([part.masked_fill(slow, -torch.inf).amax(1) for part in places]).amax(0)
        own_most = centre.masked_fill(~inside, -torch.inf).amax(1)
        # what has far more inside the sum than outside lies there for certain, unless its tails are heavy
        if not self._sharp or steep:
            own_most = torch.maximum(own_most, size_own.masked_fill(~belongs, -torch.inf).amax(1))
        whole = torch.logaddexp(size_own, size_rest).masked_fill(~belongs, -torch.inf).amax(1)
        start = -torch.stack([whole, centre.amax(1), own_most - lowest]).amax(0)
        least = torch.where(inside, centre - highest[:, None], centre).amin(1)
        last = torch.maximum(2.0 - least, high) - start
        smallest = self._half.amin((0, 1)).topk(2, largest=False).values  # two labels may be all there is
        slowest = min(1.0, 2.0 * float(smallest.sum()))
        return Contour.of(start, low - start, high - start, last, slowest, rate.amax(1), tilt, self._finer)

    def _integrals(self, nodes: _Nodes, place: Tensor, u: Tensor, below: Tensor, row: Tensor, group: Tensor) -> Tensor:
        """Cdf, density, and what every third node leaves in doubt, at points (p,) of sums by their place: (3, p)."""
        # axes: point p, member k, neuron i, node q
        contour, centre = nodes.contour.take(place), self._sums.log_centre[row]
        point, factors, slopes = torch.arange(len(u), device=u.device), nodes.factors[place], []
        for labels, there in self._sums.places:
            label = labels[group]
            log_scale = (centre[point, label] - u)[:, None, None]
            own = torch.stack(contour.log_factor(log_scale, -1.0), 2)[:, 0]  # (p, 2, q)
            factors[point, label] = torch.where(there[group, None, None], own, factors[point, label])
            half = self._half[..., label].movedim(-1, 0) * there[group, None, None]  # (p, K, m)
            slopes.append((half, contour.slope(log_scale)[:, 0]))
        weights, sure = self._weights[row] * self._mask[group], u.new_zeros(())
        if bool((below < 0.0).any()):
            fallen = torch.stack([half for half, _ in slopes]).sum(0) * below[:, None, None]
            weights = weights * torch.exp(fallen[..., None] + fallen[..., None, :])
        if self._sharp and self._tilt == 0.0:
            certain, under = self._certain(centre, u, group)
            sure = (weights * (certain & under)).sum((1, 2, 3))
            weights = weights.masked_fill(certain, 0.0)
        middle = 0.5 * weights.sum((1, 2, 3)) + sure
        n_nodes = factors.shape[-1]
        logs = -self._half.flatten(0, 1) @ factors.flatten(2)  # (p, K m, 2 q)
        size, angle = logs.unflatten(1, self._half.shape[:2]).split(n_nodes, -1)
        weight = contour.weight
        if self._quick:
            angle = (angle - (angle / (2.0 * math.pi)).round_().mul_(2.0 * math.pi)).float()
            size, weights = size.float(), weights.float()
        # neurons without such pairs may grow along a tilted path
        modulus = size.clamp(-QUICK_VANISHED if self._quick else -VANISHED, GROWN).exp_()
        real, imaginary = angle.cos().mul_(modulus), angle.sin().mul_(modulus)
        turned_real, turned_imaginary = weights @ real, weights @ imaginary
        cross = (real * turned_imaginary).addcmul_(imaginary, turned_real)
        plain = turned_real.mul_(real).addcmul_(imaginary, turned_imaginary, value=-1.0)
        terms = cross.sum((1, 2)) * weight.real + plain.sum((1, 2)) * weight.imag  # (p, q)
        integral, third = terms.sum(-1), 3.0 * terms[:, 1::3].sum(-1)
        density = torch.zeros_like(integral)
        for half, slope in slopes:  # d log z / du = -Σ a s / (1 - s)
            turn, half = slope * weight, half.to(plain.dtype)[:, :, None]  # (p, K, 1, m)
            rising, falling = ((half @ part).sum(1).squeeze(1) for part in (plain, cross))  # (p, q)
            density = density + (rising * turn.imag + falling * turn.real).sum(-1)
        cdf = middle - integral / math.pi
        return torch.stack([cdf, 2.0 * density / math.pi, (integral - third).abs() / math.pi])

    def _certain(self, centre: Tensor, u: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
        """Components that lie on one side of points for certain, and those below them, masks (p, K, m, m).

        A gamma's right tail is sub-gamma with its scale, its left tail sub-Gaussian, so that (Bernstein) a linear form
        X of gammas with mean μ and variance v has the other sign with a chance of at most
        ``exp(-½ μ² / (v + b |μ|))``, b being the largest scale of the side which would have to be large.
        """
        inside = self._sums.inside[group]  # (p, L)
        scale = torch.where(inside, centre - u[:, None], centre)  # (p, L)
        scale = (scale - scale.amax(1, keepdim=True)).exp()
        signed = torch.where(inside, scale, -scale)
        mean, spread = (torch.einsum("kil,pl->pki", self._half, part) for part in (signed, scale.square()))
        mean, spread = (part[..., None] + part[..., None, :] for part in (mean, spread))
        larger, other = (scale.masked_fill(side, 0.0).amax(1)[:, None, None, None] for side in (~inside, inside))
        under = mean < 0.0
        needed = spread + torch.where(under, larger, other) * mean.abs()
        return mean.square() > 2.0 * CERTAIN * needed, under


def _log_sums(half: Tensor, logs: Tensor, side: Tensor) -> Tensor:
    """``log Σ_{l in a side} a_l e^{logs_l}`` of neurons (i, L), of sums with their logs and sides (r, L): (r, i)."""
    terms = logs.masked_fill(~side, -torch.inf)
    top = terms.amax(-1, keepdim=True)
    return ((terms - top).exp() @ half.T).log() + top


@dataclass(frozen=True)
class _Nodes:
    """Nodes of some sums, and what does not depend on the point asked for.

    Args:
        contour: the nodes (r, q).
        factors: ``log |1 + c s|`` of every label, and the angle of that (r, L, 2, q).
        points_at_a_time: so many are answered together.
    """

    contour: Contour
    factors: Tensor
    points_at_a_time: int

    def third(self) -> _Nodes:
        """Every third node, a rule of its own."""
        contour = Contour(
            self.contour.log_size[:, 1::3], self.contour.direction[:, 1::3], 3.0 * self.contour.weight[:, 1::3]
        )
        return _Nodes(contour, self.factors[..., 1::3], 3 * self.points_at_a_time)


def power_law_below(largest: Tensor, log_centre: Tensor, inside: Tensor) -> Tensor:
    """Logits (N, G) below which the cdf of a sum is a power of its odds under every component.

    With ``ε = e^u`` it is ``P(Σ_own c g <= ε Σ_rest c g)``, and up to a part in proportion to ε it is ``ε^α``, α the
    sum's concentration, times what does not depend on ε.

    Args:
        largest: the largest concentration of every label (L,).
        log_centre: ``log c`` of every row (N, L).
        inside: labels of every group, masks (G, L).
    """
    rest = torch.where(inside, -torch.inf, (torch.log1p(largest) + log_centre)[:, None]).logsumexp(-1)
    least = torch.where(inside, log_centre[:, None], torch.inf).amin(-1)
    return least - rest - FAR


@dataclass(frozen=True)
class Contour:
    """Nodes of the integral ``½ - π⁻¹ ∫ Im φ(s) ds/s`` where every label is there, of every sum.

    The path ``s(w) = t₀ (i sinh w + κ (cosh w - 1))``, w > 0, leaves the origin along the imaginary axis, so that the
    integrand is even in w and the rule needs no nodes near the origin. Far out its slope is κ, towards a heavy tail.

    Args:
        log_size: ``log |s|`` (R, q).
        direction: ``s / |s|`` (R, q), complex.
        weight: ``ds/s`` (R, q), complex; zero where a sum needs fewer nodes.
    """

    log_size: Tensor
    direction: Tensor
    weight: Tensor

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
        return cls(start[:, None] + log_cosh + size.log(), place / size, slope / place * change)

    def take(self, sums: Tensor, n_nodes: int | None = None) -> Contour:
        """The first nodes of some of the sums."""
        return Contour(*(part[sums, :n_nodes] for part in (self.log_size, self.direction, self.weight)))

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
