"""The law of one share, or of a sum of shares, where labels may be absent: atoms at 0 and 1, and a density between.

As in :mod:`snefy_ldl.distributions.ratio_table`, ``Σ_{r in A} ℓ_r <= v`` is the sign of a linear form of gammas. A
label is there with probability ``p_r = o_r / (1+o_r)`` unless all are absent, so a factor ``F_r`` of a characteristic
function becomes ``1 - p_r + p_r F_r``. With at least one label there inside A and one outside, the density of
``u = logit v`` is

    π⁻¹ ∫ Im[ (Π_{s not in A} (1 - p_s + p_s F_s) - Π_{s not in A} (1 - p_s))
              Σ_{r in A} α_r i s_r/(1 - i s_r) p_r F_r Π_{q in A, q≠r} (1 - p_q + p_q F_q) ] dt/t / (1 - Π (1 - p)),
    F_s = (1 + i t c_s)^{-α_s} outside,   F_r = (1 - i s_r)^{-α_r}, s_r = t c_r e^{-u}, inside.

Factors outside A do not depend on u, so their product is made once for every interval of t and serves all panels. The
factor of a pair of neurons is a product of one factor a neuron: no logarithm of a complex number is taken for a pair.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.special
import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl._types import Array, Index
from snefy_ldl.distributions.phase_nodes import log_modulus
from snefy_ldl.distributions.ratio_table import NEGLIGIBLE_BOUND, PANEL, REACH
from snefy_ldl.distributions.tables import ShareTable
from snefy_ldl.distributions.zero_moments import PresenceComponents, log_expm1
from snefy_ldl.special import pair_index
from snefy_ldl.special.tolerances import LOGIT_LIMIT, NEGLIGIBLE_PRESENCE, OSCILLATION_TAIL, TAIL_MASS

#: Gauss-Legendre nodes on each interval of t.
NODES = 16
#: Octaves beyond 1/c after which a factor is a power of t; where all are powers, or still one, an interval takes that
#: many octaves at once.
SETTLED, WIDE = 10, 6
#: Phases are cut here: the largest number is not far.
LARGEST_PHASE = 1e300
#: No t is beyond 2 to this.
LAST_OCTAVE = 990
#: Intervals of t at most.
MOST_INTERVALS = 400
#: Total of a neuron's halves of concentrations up to which tables of shares are right.
SHARPEST_NEURON = 500.0
#: Where Chernoff's bound is looked for, as shares of the largest possible tilt.
TILTS = torch.tensor([0.02, 0.1, 0.3, 0.6, 0.85, 0.97], dtype=torch.float64)
_GAUSS = tuple(torch.as_tensor(part) for part in legendre.leggauss(NODES))


class PresenceTable(ShareTable):
    """Tables of the law of ``Σ_{r in A} ℓ_r`` for pairs of neurons whose labels may be absent.

    Args:
        halves: ``½ + w`` (K, n, L), float64: half of each diagonal concentration.
        components: every pair of each member, in triangle order.
        inside: the labels of A.
        used: the components to be tabulated; the others get their atoms alone.
    """

    def __init__(self, halves: Tensor, components: PresenceComponents, inside: list[int], used: Index) -> None:
        n_members, n, n_labels = halves.shape
        outside = [r for r in range(n_labels) if r not in inside]
        centre, halves = components.centre, blunted(halves)
        self._used = torch.as_tensor(used)
        i, j = pair_index(n)
        member = torch.arange(n_members).repeat_interleave(len(i)) * n
        self._i, self._j = (member + i.repeat(n_members))[used], (member + j.repeat(n_members))[used]
        flat = halves.flatten(0, 1)  # (K n, L)
        self._half_in, self._half_out = flat[:, inside], flat[:, outside]
        self._c_in, self._c_out = centre[inside], centre[outside]
        log_odds, alpha = components.log_odds[used], flat[self._i] + flat[self._j]
        self._alpha_in, self._alpha_out = alpha[:, inside], alpha[:, outside]
        self._log_odds_in, self._log_odds_out = log_odds[:, inside], log_odds[:, outside]
        self._log_norm = components.log_norm[used]
        self._p_in, self._p_out = torch.sigmoid(log_odds[:, inside]), torch.sigmoid(log_odds[:, outside])
        self._q_in, self._q_out = torch.sigmoid(-log_odds[:, inside]), torch.sigmoid(-log_odds[:, outside])
        self._none_in, self._none_out = self._q_in.prod(1), self._q_out.prod(1)  # (p,)
        log_empty = components.log_empty[used]
        self._norm = -torch.expm1(log_empty.sum(1))
        self._parts: dict[tuple[str, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._bounds: dict[int, Tensor] = {}
        self._n_components = len(components.alpha)
        self.at_zero = components.prob_absent(inside).numpy()
        self.at_one = components.prob_absent(outside).numpy()
        self.edges = self._make_edges()
        self._finish(self.at_zero, self.at_one)
        if self._blocks is not None:
            self._parts.clear()

    # -- panels ------------------------------------------------------------------------------------------------------

    def _make_edges(self) -> Array:
        """Panel edges: about two standard deviations of the sharpest component that has mass there, each.

        Where the gammas of a side lie depends on which of its labels are there: somewhere between the smallest label
        alone and all together. No support is sharper than ``1/Σ α``.
        """
        low, high, first, last, variance = [], [], [], [], []
        for alpha, c, there in (
            (self._alpha_in, self._c_in, self._p_in),
            (self._alpha_out, self._c_out, self._p_out),
        ):
            possible = there >= torch.minimum(there.amax(1, keepdim=True), torch.tensor(NEGLIGIBLE_PRESENCE))
            alone = torch.where(possible, (alpha * c).log(), math.inf)
            tail = torch.as_tensor(scipy.special.gammaincinv(alpha.numpy(), TAIL_MASS)).clamp_min(1e-300).log()
            total = torch.where(possible, alpha * c, 0.0).sum(1)
            shape = torch.where(possible, alpha, 0.0).sum(1)
            wide = torch.where(possible, 1.0 / alpha, 0.0).amax(1)  # relative variance of the widest label
            low.append(torch.where(possible, c.log() + tail, math.inf).amin(1))
            high.append(total.log() + torch.log1p(8.0 * wide.sqrt() + 32.0 * wide))
            first.append(alone.amin(1) - 0.5 * wide.clamp_max(1.0))
            last.append(total.log())
            variance.append(1.0 / shape)
        start = max(float((low[0] - high[1]).min()), -LOGIT_LIMIT)
        end = min(float((high[0] - low[1]).max()), LOGIT_LIMIT)
        spread = (variance[0] + variance[1]).sqrt().numpy()
        order = np.argsort(spread)  # sharpest first
        spread = spread[order]
        left = (first[0] - last[1]).numpy()[order] - REACH * spread
        right = (last[0] - first[1]).numpy()[order] + REACH * spread
        edges = [start]
        while edges[-1] < end:
            u = edges[-1]
            width = max(1.0, 0.15 * abs(u))
            sharp = np.flatnonzero((right > u) & (left < u + PANEL * spread))
            if len(sharp):
                width = min(width, PANEL * spread[sharp[0]])
            edges.append(min(u + width, end) if end - u - width > 0.1 * width else end)
        return np.array(edges)

    # -- intervals of t ----------------------------------------------------------------------------------------------

    def _interval(self, kind: str, octave: int) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes t, weights dt/t (16,) and the factor of the labels outside (p, 16) on one interval.

        ``head`` is from 0 to 2^octave, ``octave`` from there to twice as much, ``wide`` some octaves on a log scale.
        """
        key = (kind, octave)
        if key not in self._parts:
            nodes, weights = _GAUSS
            if kind == "wide":
                half = 0.5 * WIDE * math.log(2.0)
                t = torch.exp(octave * math.log(2.0) + half * (nodes + 1.0))
                weight = half * weights
            else:
                low, high = (0.0 if kind == "head" else 2.0**octave), 2.0 ** (octave + (kind == "octave"))
                t = low + 0.5 * (high - low) * (nodes + 1.0)
                weight = 0.5 * (high - low) * weights / t
            self._parts[key] = t, weight, self._outside(t)
        return self._parts[key]

    def _outside(self, t: Tensor) -> Tensor:
        """``Π_out (1-p + p F) - Π_out (1-p)`` at times t: (p, k), complex."""
        product = torch.ones(len(self._i), len(t), dtype=torch.complex128)
        phase = self._c_out[:, None] * t
        logs = log_factor(phase)  # (out, k)
        for s in range(len(logs)):
            factor = torch.exp(-self._half_out[:, s, None] * logs[s])  # (K n, k)
            product *= factor[self._i].mul_(factor[self._j]).mul_(self._p_out[:, s, None]).add_(self._q_out[:, s, None])
        return product.sub_(self._none_out[:, None])

    def _size(self, octave: int, scale_in: Tensor, rows: Tensor) -> float:
        """The largest modulus that the integrand of some components has from 2^octave on."""
        t = 2.0**octave
        if octave not in self._bounds:
            self._bounds[octave] = _modulus(t * self._c_out, self._alpha_out, self._p_out, self._q_out) - self._none_out
        inside = _modulus(t * scale_in, self._alpha_in[rows], self._p_in[rows], self._q_in[rows]) - self._none_in[rows]
        return float((self._bounds[octave][rows] * inside / self._norm[rows]).max())

    def _times(self, first: float, last: float, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes t, weights (k,) and factors outside (p', k) that resolve some components' oscillations in a panel."""
        scale_in = self._c_in * math.exp(-first)  # oscillates soonest
        alpha_in, alpha_out = self._alpha_in[rows], self._alpha_out[rows]
        reach = alpha_in @ scale_in + alpha_out @ self._c_out
        largest = float(torch.maximum(scale_in.max(), self._c_out.max()))  # whose square may overflow
        spread = torch.sqrt(alpha_in @ (scale_in / largest).square() + alpha_out @ (self._c_out / largest).square())
        octave = math.floor(-1.0 - math.log2(largest) - math.log2(float((reach / largest + 8.0 * spread).max())))
        scale_in = self._c_in * math.exp(-last)  # falls off last
        # a factor turns between the octaves where its phase begins to count and where it has become a power
        begin = [-math.log2(float((alpha_in.amax(0) * self._c_in * math.exp(-first)).max()))]
        begin.append(-math.log2(float((alpha_out.amax(0) * self._c_out).max())))
        end = [SETTLED - math.log2(float(scale_in.min())), SETTLED - math.log2(float(self._c_out.min()))]
        parts = [self._interval("head", octave)]
        while len(parts) < MOST_INTERVALS and octave < LAST_OCTAVE:
            if self._size(octave, scale_in, rows) < OSCILLATION_TAIL:
                break
            turning = any(low - WIDE - 5 < octave < high for low, high in zip(begin, end))
            parts.append(self._interval("octave" if turning else "wide", octave))
            octave += 1 if turning else WIDE
        t, weight, outside = zip(*parts)
        return torch.cat(t), torch.cat(weight), torch.cat([part[rows] for part in outside], 1)

    def _possible(self, first: float, last: float) -> Tensor:
        """The components for which Chernoff's bound leaves any density between two logits.

        There, both ``P(share > expit(first))`` and ``P(share < expit(last))`` must be possible.
        """
        up, down = self._c_in * math.exp(-first), self._c_in * math.exp(-last)
        most = torch.zeros(2, len(self._i), dtype=torch.float64) + math.inf
        for tilt in TILTS.tolist():
            for side, (theta, scale_in) in enumerate(((tilt / up.max(), up), (-tilt / self._c_out.max(), down))):
                inside = _log_moment(-theta * scale_in, self._alpha_in, self._log_odds_in)
                outside = _log_moment(theta * self._c_out, self._alpha_out, self._log_odds_out)
                torch.minimum(most[side], inside + outside - self._log_norm, out=most[side])
        return torch.nonzero(most.amin(0) > math.log(NEGLIGIBLE_BOUND)).squeeze(1)

    # -- densities of one panel --------------------------------------------------------------------------------------

    def _panel_density(self, z: Array) -> Array:
        """Densities at points z (8,) under every component (8, P)."""
        u = torch.as_tensor(z)
        block = np.zeros((len(z), self._n_components))
        first, last = float(u.min()), float(u.max())
        rows = self._possible(first, last) if len(self._i) else self._i
        if not len(rows):
            return block
        t, weight, outside = self._times(first, last, rows)
        s = (self._c_in[:, None, None] * torch.exp(-u)[:, None] * t).clamp_max(LARGEST_PHASE)  # (|A|, 8, k)
        logs = log_factor(s).conj_physical()
        slopes = torch.complex(-1.0 / (1.0 + s.reciprocal().square()), 1.0 / (s + s.reciprocal()))  # i s / (1 - i s)
        slopes = slopes * weight
        factors = [torch.exp(-self._half_in[:, a, None, None] * logs[a]) for a in range(len(logs))]  # (K n, 8, k)
        size = max(1, CHUNK_ELEMENTS // (32 * logs[0].numel()))  # what a cache holds
        for part, around in zip(rows.split(size), outside.split(size)):
            value = (self._slope(part, factors, slopes) @ around[:, :, None]).squeeze(-1).imag  # (p, 8)
            density = (value / (math.pi * self._norm[part, None])).clamp_min_(0.0)
            block[:, self._used[part].numpy()] = density.T.numpy()
        return block

    def _slope(self, rows: Tensor, factors: list[Tensor], slopes: Tensor) -> Tensor:
        """``Σ_r α_r i s_r/(1 - i s_r) p_r F_r Π_{q≠r} (1 - p_q + p_q F_q)`` over the labels inside: (p, 8, k)."""
        i, j = self._i[rows], self._j[rows]
        there, alpha, absent = (table[rows, :, None, None] for table in (self._p_in, self._alpha_in, self._q_in))
        if len(factors) == 1:
            return (factors[0] * slopes[0])[i].mul_(factors[0][j]).mul_((there * alpha)[:, 0])
        product = torch.ones((), dtype=torch.complex128)
        slope = torch.zeros((), dtype=torch.complex128)
        for a, factor in enumerate(factors):
            whole = factor[i].mul_(factor[j]).mul_(there[:, a])
            rising = (whole * slopes[a]).mul_(alpha[:, a]).mul_(product)
            whole.add_(absent[:, a])
            slope, product = rising.add_(slope * whole), product * whole
        return slope


def blunted(halves: Tensor) -> Tensor:
    """Concentrations of neurons, the sharpest made less sharp so that a table resolves them.

    A component oscillates in its integral about √(total concentration) times an octave, whichever labels are there.
    Beyond a total of about 1,500 tables of cdfs were wrong by far; so a neuron counts there with 500 at most. Its mean
    stays, and the share's standard deviation becomes at most .016: a quantile moves by about as much at worst.

    Args:
        halves: ``½ + w`` (K, n, L).

    Returns:
        The same, (K, n, L), no neuron's above 500 in total.

    Example:
        >>> blunted(torch.tensor([[[1000.0, 3000.0], [1.0, 2.0]]]))
        tensor([[[125., 375.],
                 [  1.,   2.]]])
    """
    return halves * (SHARPEST_NEURON / halves.sum(-1, keepdim=True)).clamp_max(1.0)


def log_factor(phase: Tensor) -> Tensor:
    """``log(1 + i s)``."""
    return torch.complex(log_modulus(phase.log()), torch.atan(phase))


def _log_moment(tilt: Tensor, alpha: Tensor, log_odds: Tensor) -> Tensor:
    """``log(Π (1 + o (1 + tilt)^-α) - 1)`` (p,): the moments of gammas of which at least one is there."""
    return log_expm1(softplus(log_odds - alpha * torch.log1p(tilt)).sum(1))


def _modulus(phase: Tensor, alpha: Tensor, there: Tensor, absent: Tensor) -> Tensor:
    """``Π (1-p + p |F|)`` (p,), |F| the modulus of a gamma's characteristic function at these phases."""
    size = torch.exp(-alpha * log_modulus(phase.log()))
    return (absent + there * size).prod(1)


def used_pairs(weights: Tensor, limit: float) -> Index:
    """Components without those whose weights (b, P) sum up to less than a limit in every row."""
    size = weights.abs().amax(0)
    order = torch.argsort(size)
    left_out = size[order].cumsum(0) < limit
    return torch.sort(order[~left_out]).values.cpu().numpy()
