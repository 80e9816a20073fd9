"""Rows of a law in which every label is there and each row has its own centre: moments, cdfs and quantiles.

A row's share of some labels G is ``Σ_G c g / Σ c g`` with gammas g of concentrations ``a_i + a_j`` in the component of
neurons i and j, so that every integral over t below holds a product of one factor a neuron, and the sum over components
is a quadratic form ``zᵀ M z`` with a matrix that all rows share. Moments as in
:mod:`snefy_ldl.distributions.zero_moments`. ``share <= v`` is the sign of ``e^{-u} Σ_G c g - Σ_rest c g`` with
``u = logit v``, hence (Gil-Pelaez, 1951)

    P(share <= v) = ½ - π⁻¹ ∫ Im[ zᵀ M z ] dt/t,
    z_i = e_i Π_rest (1 + i t c_s)^{-a_is} Π_G (1 - i t c_s e^{-u})^{-a_is}.

In ``y = log t`` the integrands are analytic in a strip, so the trapezoid rule converges exponentially; the step follows
the total concentration, with which they oscillate, and grows outside the range where they do. Nodes at which every
integrand is below 1e-9 are left out. Moments are good to 1e-8, cdfs to 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import SWEEP_ELEMENTS
from snefy_ldl.distributions.phase_nodes import LEAST, log_modulus, phase_nodes
from snefy_ldl.distributions.zero_moments import integral_nodes
from snefy_ldl.special.threads import map_blocks

Answer = TypeVar("Answer")

#: Nodes that an integral takes, roughly.
NODES = 100
#: Logits of shares between which quantiles are looked for, how far around a guess at first, and by what that grows.
LOWEST, HIGHEST, AROUND, WIDER = -60.0, 36.0, 2.0, 4.0
#: The same in standard deviations of the logit, where that is less.
AROUND_DEVIATIONS = 4.0
#: Rounds of Newton's method on the log odds at most before it is looked farther away and in the end, the error at which
#: it stops, and the one after which one more step is enough.
ROUNDS, LAST_ROUNDS, GOOD, NEARLY = 6, 60, 1e-7, 2e-3
#: A probability is kept this far from 0 and 1 where its log odds are taken.
LEAST_CHANCE = 1e-300


@dataclass(frozen=True)
class SquareRows:
    """Rows that share their neurons; each has its own features and centre.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        matrix: ``M ∘ R`` (K, n, n).
        features: ``ê`` (K, N, n), with ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1`` in every row.
        log_centre: ``log c`` (N, L), at most zero.

    Example:
        >>> half, one = torch.tensor([[[1.0, 1.5, 2.5]]]).double(), torch.ones(1, 1, 1).double()
        >>> rows = SquareRows(half, one, one, torch.zeros(1, 3).double())  # Dirichlet(2, 3, 5)
        >>> rows.first_moments().round(decimals=8)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
        >>> rows.cdf([0], torch.logit(torch.tensor([[0.2]]).double()))[0].round(decimals=6)
        tensor([[0.5638]], dtype=torch.float64)
    """

    half: Tensor
    matrix: Tensor
    features: Tensor
    log_centre: Tensor

    def __len__(self) -> int:
        return len(self.log_centre)

    def take(self, rows: Tensor | slice) -> SquareRows:
        """Some of the rows."""
        return replace(self, features=self.features[:, rows], log_centre=self.log_centre[rows])

    def _blocks(self, numbers: int) -> Iterator[Tensor]:
        """Rows that are worked on at a time, where each takes so many numbers a neuron."""
        size = max(1, SWEEP_ELEMENTS // (numbers * self.half[..., 0].numel()))
        yield from torch.arange(len(self), device=self.log_centre.device).split(size)

    def _each_block(self, numbers: int, answer: Callable[[SquareRows], Answer]) -> list[Answer]:
        """Answers of the rows of each block."""
        return map_blocks(lambda rows: answer(self.take(rows)), self._blocks(numbers), self.log_centre.device)

    # -- moments -----------------------------------------------------------------------------------------------------

    def first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L)."""
        return torch.cat(self._each_block(NODES, lambda part: part._integrals().first()))

    def two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""

        def both(part: SquareRows) -> tuple[Tensor, Tensor]:
            integrals = part._integrals()
            return integrals.first(), integrals.second()

        first, second = zip(*self._each_block(NODES, both))
        return torch.cat(first), torch.cat(second)

    def product_moments(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` (N, L, L)."""
        return torch.cat(self._each_block(NODES * self.half.shape[-1], lambda part: part._integrals().products()))

    def _integrals(self) -> _Moments:
        y, step = integral_nodes(2.0 * self.half.flatten(0, 1), self.log_centre)
        log1p = softplus(self.log_centre[..., None] + y)  # log(1 + c t), (N, L, k)
        bound = -2.0 * torch.einsum("l,nlk->nk", self.half.amin((0, 1)), log1p).amin(0)
        keep = bound > math.log(LEAST) - 6.0
        log1p, y, step = log1p[..., keep], y[keep], step[keep]
        phi = torch.exp(-torch.einsum("mil,nlk->mink", self.half, log1p)) * self.features.transpose(1, 2)[..., None]
        return _Moments(self, phi, torch.sigmoid(self.log_centre[..., None] + y), step)

    def form(self, z: Tensor) -> Tensor:
        """``M z`` of every member: z (K, n, ...) -> (K, n, ...)."""
        return (self.matrix @ z.flatten(2)).view_as(z)

    # -- cdfs --------------------------------------------------------------------------------------------------------

    def cdf(self, group: list[int], u: Tensor) -> tuple[Tensor, Tensor]:
        """Cdf of the share of some labels and density of its logit, at logits u (N, A): each (N, A)."""
        # points that lie together are asked together: the nodes that they need are fewer
        width = max(1, min(u.shape[1], SWEEP_ELEMENTS // (NODES * self.half[..., 0].numel())))

        def answer(block: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            rows, points = block
            part = self.take(rows)
            return part._phases(group, float(points.min()), float(points.max())).at(points)

        all_rows = list(self._blocks(NODES * width))
        pieces = [(rows, part.clamp(LOWEST, HIGHEST)) for rows in all_rows for part in u[rows].split(width, 1)]
        answers = iter(map_blocks(answer, pieces, u.device))
        n_pieces = -(-u.shape[1] // width)
        lines = [[next(answers) for _ in range(n_pieces)] for _ in all_rows]
        cdf, density = (torch.cat([torch.cat([piece[k] for piece in line], 1) for line in lines]) for k in (0, 1))
        return cdf, density

    def quantiles(self, group: list[int], levels: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Shares of some labels below which probabilities lie.

        Args:
            group: the labels.
            levels: of every row (N, A), inside (0, 1).
            mean: of the share (N,), from which it is looked for.
            variance: of the share (N,), roughly.

        Returns:
            (N, A).
        """
        mean = mean.clamp(1e-12, 1.0 - 1e-12)
        size = (mean * (1.0 - mean) / variance.clamp_min(1e-300) - 1.0).clamp(1e-3, 1e12)
        first, second = ((part * size)[:, None].cpu().numpy() for part in (mean, 1.0 - mean))
        guess = torch.logit(torch.as_tensor(betaincinv(first, second, levels.cpu().numpy())).to(levels), 1e-26)

        # the guess is off by a few standard deviations of the logit at most, or it is looked farther away
        spread = AROUND_DEVIATIONS / torch.sqrt(mean * (1.0 - mean) * (size + 1.0))

        def solve(rows: Tensor) -> Tensor:
            width = min(AROUND, float(spread[rows].max()))
            return self.take(rows)._solve(group, levels[rows], guess[rows], width)

        # a row at a time: nodes that serve quantiles far from each other lie close together
        each = torch.arange(len(self), device=levels.device).split(1)
        return torch.cat(map_blocks(solve, each, levels.device))

    def _solve(self, group: list[int], levels: Tensor, guess: Tensor, width: float) -> Tensor:
        u = guess.clamp(LOWEST, HIGHEST)
        left = torch.arange(len(self), device=levels.device)
        while len(left):
            u[left], there = self.take(left)._newton(group, levels[left], u[left], width)
            if width > HIGHEST - LOWEST:
                break
            left, width = left[~there.all(1)], width * WIDER
        return torch.sigmoid(u)

    def _newton(self, group: list[int], levels: Tensor, u: Tensor, width: float) -> tuple[Tensor, Tensor]:
        """Logits (N, A) near a guess, and which of them are right: Newton's method on the log odds of the cdf."""
        low, high = ((u + by).clamp(LOWEST, HIGHEST) for by in (-width, width))
        phases = self._phases(group, float(low.min()), float(high.max()))
        there, goal = torch.zeros_like(levels, dtype=torch.bool), torch.logit(levels)
        rows = torch.arange(len(u), device=u.device)
        u = u.clone()
        for _ in range(LAST_ROUNDS if width > HIGHEST - LOWEST else ROUNDS):
            at, ends = u[rows], (low[rows], high[rows])
            value, density = phases.take(rows).at(at)
            error = torch.logit(value, LEAST_CHANCE) - goal[rows]
            below = error < 0.0
            low[rows], high[rows] = torch.where(below, at, ends[0]), torch.where(below, ends[1], at)
            newton = at - error * value * (1.0 - value) / density.clamp_min(LEAST_CHANCE)
            inside = (newton > low[rows]) & (newton < high[rows])
            good = error.abs() < GOOD
            # close by, the error that a step leaves is about the square of the one before
            last = inside & (error.abs() < NEARLY)
            u[rows] = torch.where(good | there[rows], at, torch.where(inside, newton, 0.5 * (low[rows] + high[rows])))
            there[rows] |= good | last | (high[rows] - low[rows] < 1e-10)
            rows = rows[~there[rows].all(1)]
            if not len(rows):
                break
        return u, there

    def _phases(self, group: list[int], lowest: float, highest: float) -> _Phases:
        """What the cdfs of a share have in common at all logits between two."""
        rest = [s for s in range(self.half.shape[-1]) if s not in group]
        half = self.half.flatten(0, 1)
        sides = [(half[:, side], self.log_centre[:, side]) for side in (group, rest)]
        y, weight = phase_nodes(*sides[0], *sides[1], lowest, highest)
        modulus = log_modulus(self.log_centre[:, rest, None] + y)  # (N, rest, k)
        angle = torch.atan((self.log_centre[:, rest, None] + y).exp())
        around = [torch.einsum("mil,nlk->mink", self.half[..., rest], part) for part in (modulus, angle)]
        size = self.features.transpose(1, 2)[..., None].log() - around[0]  # (K, n, N, k)
        return _Phases(self, group, y, weight, size, -around[1])


@dataclass(frozen=True)
class _Moments:
    """Integrands of moments: ``ê φ`` (K, n, N, k), ``c t / (1 + c t)`` (N, L, k), and the weights of the nodes (k,)."""

    rows: SquareRows
    phi: Tensor
    share: Tensor
    step: Tensor

    def _linear(self) -> Tensor:
        """``Σ_ij C_ij (a_i + a_j) φ_i φ_j`` (N, L, k)."""
        return 2.0 * torch.einsum("mil,mink->nlk", self.rows.half, self.phi * self.rows.form(self.phi))

    def first(self) -> Tensor:
        return (self._linear() * self.share) @ self.step

    def second(self) -> Tensor:
        product = self.phi * self.rows.form(self.phi)
        answer = torch.empty_like(self.share[..., 0])
        for r in range(answer.shape[1]):
            a = self.rows.half[..., r]
            mixed = a[:, :, None, None] * self.phi
            table = torch.einsum("mi,mink->nk", 2.0 * (a + a.square()), product)
            table += 2.0 * (mixed * self.rows.form(mixed)).sum((0, 1))
            answer[:, r] = (table * self.share[:, r].square()) @ self.step
        return answer

    def products(self) -> Tensor:
        half, share = self.rows.half, self.share
        product = self.phi * self.rows.form(self.phi) * self.step
        weighted = half.movedim(-1, 0)[..., None, None] * self.phi  # (L, K, n, N, k)
        turned = torch.stack([self.rows.form(part) for part in weighted]) * self.step
        mixed = torch.einsum("rmink,qmink->nrqk", weighted, turned)
        mixed += torch.einsum("mir,miq,mink->nrqk", half, half, product)
        answer = 2.0 * torch.einsum("nrqk,nrk,nqk->nrq", mixed, share, share)
        linear = (self._linear() * share.square()) @ self.step
        return answer + torch.diag_embed(linear)


@dataclass(frozen=True)
class _Phases:
    """What the cdfs of the share of some labels need: nodes (k,), weights (k,), and the other labels' part of z.

    Log moduli and angles of the latter are (K, n, N, k).
    """

    rows: SquareRows
    group: list[int]
    y: Tensor
    weight: Tensor
    size: Tensor
    angle: Tensor

    def take(self, rows: Tensor) -> _Phases:
        if len(rows) == len(self.rows):
            return self
        return replace(self, rows=self.rows.take(rows), size=self.size[:, :, rows], angle=self.angle[:, :, rows])

    def at(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Cdf, and density of the logit, at u (N, A): each (N, A)."""
        half = self.rows.half[..., self.group]  # (K, n, g)
        shape = (*half.shape[:2], *u.shape, len(self.y))
        phase = self.rows.log_centre[:, None, self.group, None] - u[:, :, None, None] + self.y  # (N, A, g, k)
        s = phase.exp()
        size, angle = (part.unsqueeze(3).repeat(1, 1, 1, u.shape[1], 1) for part in (self.size, self.angle))
        moduli, angles = log_modulus(phase), torch.atan(s)
        for number in range(len(self.group)):
            a = half[..., number, None, None, None]
            size.addcmul_(a, moduli[:, :, number], value=-1.0)
            angle.addcmul_(a, angles[:, :, number])
        modulus = size.exp_()
        real = angle.cos().mul_(modulus)
        imaginary = angle.sin_().mul_(modulus)
        turned, turned_imaginary = self.rows.form(real), self.rows.form(imaginary)
        cross = (real * turned_imaginary).addcmul_(imaginary, turned)
        plain = real.mul_(turned).addcmul_(imaginary, turned_imaginary, value=-1.0)
        cdf = cross.sum((0, 1)) @ self.weight
        # d log z / du = Σ_G a i s / (1 - i s)
        tables = [(half.flatten(0, 1).T @ part.flatten(0, 1).flatten(1)) for part in (plain, cross)]
        rising, falling = (table.unflatten(1, shape[2:]).movedim(0, 2) for table in tables)  # (N, A, g, k)
        inverse = 1.0 / (s + 1.0 / s)
        density = 2.0 * ((rising - falling * s) * inverse).sum(2) @ self.weight
        return (0.5 - cdf / math.pi).clamp(0.0, 1.0), (density / math.pi).clamp_min(0.0)
