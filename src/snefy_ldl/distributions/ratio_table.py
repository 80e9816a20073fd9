"""The law of one share, or of a sum of shares, under components with a centre: tables by one oscillating integral.

``Σ_{r in A} ℓ_r <= v`` says that ``X = Σ_{r in A} (1-v) c_r g_r - Σ_{s not in A} v c_s g_s`` is not positive. With the
characteristic function f of X, ``P(X <= 0) = ½ - π⁻¹ ∫ Im f(t) dt/t`` (Gil-Pelaez), and its derivative with respect to
``u = logit v`` is the density that a :class:`~snefy_ldl.distributions.tables.ShareTable` needs:

    π⁻¹ ∫ Im[ f(t) Σ_{r in A} α_r i s_r / (1 - i s_r) ] dt/t,   s_r = t c_r e^{-u},
    f(t) = Π_{s not in A} (1 + i t c_s)^{-α_s} Π_{r in A} (1 - i s_r)^{-α_r}

Concentrations of a pair of neurons are sums, ``α_ij = a_i + a_j``, so f_ij is a product of one factor a neuron: the
n(n+1)/2 integrals at a point u are one matrix product of n × nodes numbers.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.tables import ShareTable
from snefy_ldl.special import pair_index
from snefy_ldl.special.tolerances import INTEGRAL_TAIL, LOGIT_LIMIT, TAIL_MASS

#: Gauss-Legendre nodes on each interval of t; intervals double in length.
NODES = 16
#: Width of a panel in standard deviations of the sharpest component there, and how many of them that component reaches.
PANEL, REACH = 2.0, 7.0
#: Chernoff's bound below which a component has no density at a point: its integral would be rounding of oscillations.
NEGLIGIBLE_BOUND = 1e-11
#: Where the bound is looked for: tilts of X as shares of the largest possible one, on either side.
#: Larger s differ from infinity by nothing, and their squares are still numbers.
LARGEST_PHASE = 1e150
_TILTS = torch.tensor([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98], dtype=torch.float64)


class RatioTable(ShareTable):
    """Tables of the law of ``Σ_{r in A} ℓ_r`` for every pair of neurons of each member.

    Args:
        halves: ``a = ½ + w`` (K, n, L), float64: half of each diagonal concentration.
        centre: ``c`` (L,), float64.
        inside: the labels of A.
    """

    def __init__(self, halves: Tensor, centre: Tensor, inside: list[int]) -> None:
        outside = [r for r in range(len(centre)) if r not in inside]
        self._in, self._out = halves[..., inside], halves[..., outside]  # (K, n, |A|), (K, n, rest)
        self._c_in, self._c_out = centre[inside], centre[outside]
        self._pairs = pair_index(halves.shape[1])
        i, j = self._pairs
        self.edges = self._make_edges(self._in[:, i] + self._in[:, j], self._out[:, i] + self._out[:, j])
        none = np.zeros(halves.shape[0] * len(i))
        self._finish(none, none)

    def _make_edges(self, alpha_in: Tensor, alpha_out: Tensor) -> Array:
        """Panel edges: about two standard deviations of the sharpest component that has mass there, each."""
        low, high, centre, variance = [], [], [], []
        for alpha, c in ((alpha_in, self._c_in), (alpha_out, self._c_out)):
            mean = alpha @ c
            relative = (alpha @ c.square()) / mean.square()  # variance of log Σ c g, about
            # a sum of gammas reaches far down like t^(Σ α); the smaller shape is the heavier tail
            tail = torch.minimum(1.0 / relative, alpha.sum(-1))
            low.append(mean.log() + torch.minimum(-8.0 * relative.sqrt(), math.log(TAIL_MASS) / tail))
            high.append(mean.log() + torch.log1p(8.0 * relative.sqrt() + 32.0 * relative))
            centre.append(mean.log() - 0.5 * relative.clamp_max(1.0))
            variance.append(relative)
        first, last = float((low[0] - high[1]).min()), float((high[0] - low[1]).max())
        first, last = max(first, -LOGIT_LIMIT), min(last, LOGIT_LIMIT)
        middle = (centre[0] - centre[1]).flatten().numpy()
        spread = (variance[0] + variance[1]).sqrt().flatten().numpy()
        order = np.argsort(spread)
        middle, spread = middle[order], spread[order]  # sharpest first
        edges = [first]
        while edges[-1] < last:
            u = edges[-1]
            width = max(1.0, 0.15 * abs(u))
            sharp = np.flatnonzero((middle + REACH * spread > u) & (middle - REACH * spread < u + PANEL * spread))
            if len(sharp):
                width = min(width, PANEL * spread[sharp[0]])
            edges.append(min(u + width, last) if last - u - width > 0.1 * width else last)
        return np.array(edges)

    # -- densities of one panel --------------------------------------------------------------------------------------

    def _panel_density(self, z: Array) -> Array:
        """Densities at points z (8,) under every component (8, P)."""
        u = torch.as_tensor(z)
        t, weight = self._time_nodes(float(u.mean()))  # (k,)
        outside = self._log_factor(self._out, self._c_out, t)  # (K, n, k) complex
        s = self._c_in[:, None, None] * torch.exp(-u)[:, None] * t  # (|A|, 8, k)
        s = s.clamp_max(LARGEST_PHASE)
        log_in = torch.complex(0.5 * torch.log1p(s.square()), -torch.atan(s))
        slope = torch.complex(-s.square(), s) / (1.0 + s.square())  # i s / (1 - i s)
        powers = torch.einsum("mna,agk->mngk", self._in.to(log_in.dtype), log_in)
        factor = torch.exp(-(outside[:, :, None] + powers))  # (K, n, 8, k)
        sloped = factor * torch.einsum("mna,agk->mngk", self._in.to(slope.dtype), slope)
        left = torch.cat([factor.real * weight, factor.imag * weight], -1).transpose(1, 2)  # (K, 8, n, 2k)
        right = torch.cat([sloped.imag, sloped.real], -1).transpose(1, 2)
        half = left @ right.transpose(-1, -2)  # (K, 8, n, n)
        i, j = self._pairs
        density = (half[..., i, j] + half[..., j, i]) / math.pi  # (K, 8, P)
        density = torch.where(self._possible(u)[:, :, :], density.clamp_min(0.0), 0.0)
        block: Array = density.permute(1, 0, 2).flatten(1).numpy()
        return block

    def _log_factor(self, halves: Tensor, centre: Tensor, t: Tensor) -> Tensor:
        """``Σ_s a_s log(1 + i t c_s)`` (K, n, k), complex."""
        s = centre[:, None] * t
        return torch.complex(halves @ (0.5 * torch.log1p(s.square())), halves @ torch.atan(s))

    def _time_nodes(self, u: float) -> tuple[Tensor, Tensor]:
        """Nodes t and weights dt/t that resolve every component's oscillations at logits near u."""
        scale_in = self._c_in * math.exp(-u)
        reach = 2.0 * (self._in @ scale_in + self._out @ self._c_out)  # E|X|, about, of the diagonal pairs
        spread = torch.sqrt(2.0 * (self._in @ scale_in.square() + self._out @ self._c_out.square()))
        first = 0.5 / float((reach + 8.0 * spread).max())
        last = first
        while last < first * math.exp(60.0):
            damping = (self._in @ torch.log1p((last * scale_in).square())) + (
                self._out @ torch.log1p((last * self._c_out).square())
            )
            if float(damping.min()) > INTEGRAL_TAIL:  # of the square of a neuron's factor: -log |f|
                break
            last *= 2.0
        ends = [0.0, *(first * 2.0**step for step in range(1 + max(1, round(math.log2(last / first)))))]
        nodes, weights = (torch.as_tensor(part) for part in legendre.leggauss(NODES))
        low, high = torch.tensor(ends[:-1]).double()[:, None], torch.tensor(ends[1:]).double()[:, None]
        t = (low + 0.5 * (high - low) * (nodes + 1.0)).flatten()
        return t, ((0.5 * (high - low)) * weights).flatten() / t

    def _possible(self, u: Tensor) -> Tensor:
        """Whether Chernoff's bound leaves a component any density at the points u: (K, 8, P)."""
        scale_in = self._c_in[:, None] * torch.exp(-u)  # (|A|, 8)
        tilts = torch.cat([_TILTS, -_TILTS])
        # E e^{θX} is finite for -1/max c_out < θ < 1/max scale_in
        theta = torch.where(tilts[:, None] > 0, tilts[:, None] / scale_in.amax(0), tilts[:, None] / self._c_out.max())
        up = torch.log1p(-theta[:, None] * scale_in)  # (T, |A|, 8)
        down = torch.log1p(theta[:, None] * self._c_out[:, None])  # (T, rest, 8)
        bound = -(torch.einsum("mna,tag->tmng", self._in, up) + torch.einsum("mna,tag->tmng", self._out, down))
        i, j = self._pairs
        upper, lower = bound[: len(_TILTS)], bound[len(_TILTS) :]
        worst = []
        for side in (upper, lower):
            least = torch.full((side.shape[1], len(i), side.shape[3]), math.inf, dtype=torch.float64)
            for one in side:
                torch.minimum(least, one[:, i] + one[:, j], out=least)
            worst.append(least)
        # both P(X > 0) and P(X < 0) are at least the bound's minimum where there is density
        return (torch.minimum(*worst) > math.log(NEGLIGIBLE_BOUND)).transpose(1, 2)
