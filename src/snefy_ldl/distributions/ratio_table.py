"""The law of one share, or of a sum of shares, under components with a centre: tables by one oscillating integral.

``Σ_{r in A} ℓ_r <= v`` says that ``X = Σ_{r in A} (1-v) c_r g_r - Σ_{s not in A} v c_s g_s`` is not positive. With the
characteristic function f of X, ``P(X <= 0) = ½ - π⁻¹ ∫ Im f(t) dt/t`` (Gil-Pelaez), and its derivative with respect to
``u = logit v`` is the density that a :class:`~snefy_ldl.distributions.tables.ShareTable` needs:

    π⁻¹ ∫ Im[ f(t) Σ_{r in A} α_r i s_r / (1 - i s_r) ] dt/t,   s_r = t c_r e^{-u},
    f(t) = Π_{s not in A} (1 + i t c_s)^{-α_s} Π_{r in A} (1 - i s_r)^{-α_r}

Concentrations of a pair of neurons are sums, ``α_ij = a_i + a_j``, so f_ij is a product of one factor a neuron: the
n(n+1)/2 integrals at a point u are one matrix product of n × nodes numbers. Nodes are those of
:func:`~snefy_ldl.distributions.phase_nodes.phase_nodes`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.phase_nodes import phase_nodes
from snefy_ldl.distributions.tables import ShareTable
from snefy_ldl.special import pair_index
from snefy_ldl.special.tolerances import TAIL_MASS

#: Width of a panel in standard deviations of the sharpest component there, and how many of them that component reaches.
PANEL, REACH = 2.0, 7.0
#: Chernoff's bound below which a component has no density at a point: its integral would be rounding of oscillations.
NEGLIGIBLE_BOUND = 1e-11
#: Where the bound is looked for: tilts of X as shares of the largest possible one, on either side.
#: Logits beyond this are not tabulated: what a component with a tiny concentration has there counts as below.
LOWEST = 45.0
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
        self._finish(self._below(self.edges[0]), 1.0 - self._below(self.edges[-1]))

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
        first, last = max(first, -LOWEST), min(last, LOWEST)
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

    def _below(self, u: float) -> Array:
        """``P(logit <= u)`` under every component (P,), by Gil-Pelaez' integral."""
        t, weight = self._time_nodes(u, u)
        turned, s = self._c_out[:, None] * t, self._c_in[:, None] * math.exp(-u) * t
        real = self._out @ (0.5 * torch.log1p(turned.square())) + self._in @ (0.5 * torch.log1p(s.square()))
        phase = self._out @ torch.atan(turned) - self._in @ torch.atan(s)
        factor = torch.exp(torch.complex(-real, -phase))  # (K, n, k)
        half = (factor.real * weight) @ factor.imag.transpose(-1, -2)
        i, j = self._pairs
        chance = 0.5 - (half[..., i, j] + half[..., j, i]) / math.pi
        possible = self._possible(torch.tensor([u], dtype=torch.float64))[:, 0]
        return np.where(possible, chance.clamp(0.0, 1.0), (chance > 0.5).double()).flatten()

    def _panel_density(self, z: Array) -> Array:
        """Densities at points z (8,) under every component (8, P)."""
        u = torch.as_tensor(z)
        t, weight = self._time_nodes(float(u.min()), float(u.max()))  # (k,)
        turned = self._c_out[:, None] * t
        size = (self._out @ (-0.5 * torch.log1p(turned.square()))).unsqueeze(2).repeat(1, 1, len(u), 1)  # (K, n, 8, k)
        angle = (self._out @ -torch.atan(turned)).unsqueeze(2).repeat(1, 1, len(u), 1)
        s = self._c_in[:, None, None] * torch.exp(-u)[:, None] * t  # (|A|, 8, k)
        moduli, angles, rise = -0.5 * torch.log1p(s.square()), torch.atan(s), s / (1.0 + s.square())
        slope_real, slope = torch.zeros_like(size), torch.zeros_like(size)  # of a i s / (1 - i s)
        for number in range(len(s)):
            a = self._in[:, :, number, None, None]
            size.addcmul_(a, moduli[number])
            angle.addcmul_(a, angles[number])
            slope.addcmul_(a, rise[number])
            slope_real.addcmul_(a, s[number] * rise[number], value=-1.0)
        modulus = size.exp_()
        real, imaginary = angle.cos().mul_(modulus), angle.sin_().mul_(modulus)
        sloped_real = (real * slope_real).addcmul_(imaginary, slope, value=-1.0)
        sloped = slope.mul_(real).addcmul_(imaginary, slope_real)
        left = torch.cat([real * weight, imaginary * weight], -1).transpose(1, 2)  # (K, 8, n, 2k)
        right = torch.cat([sloped, sloped_real], -1).transpose(1, 2)
        half = left @ right.transpose(-1, -2)  # (K, 8, n, n)
        i, j = self._pairs
        density = (half[..., i, j] + half[..., j, i]) / math.pi  # (K, 8, P)
        density = torch.where(self._possible(u), density.clamp_min(0.0), 0.0)
        block: Array = density.permute(1, 0, 2).flatten(1).numpy()
        return block

    def _time_nodes(self, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
        """Nodes t and weights dt/t that resolve every component's oscillations at logits between two."""
        sides = [(half.flatten(0, 1), c.log()[None]) for half, c in ((self._in, self._c_in), (self._out, self._c_out))]
        y, weight = phase_nodes(*sides[0], *sides[1], lowest, highest)
        return y.exp(), weight

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
