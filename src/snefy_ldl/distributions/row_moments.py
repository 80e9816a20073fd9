"""Moments of rows whose centres, or odds of presence, are their own: the sum over components is inside the integral.

As in :mod:`snefy_ldl.distributions.components`, by the trapezoid rule in ``y = log t``. Factors of a pair of neurons
are products of one factor per neuron. Where all labels are there, the sum over components is a quadratic form
``zᵀ M z`` with a matrix that all rows share; where labels may be absent, pairs are summed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, SWEEP_ELEMENTS
from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.special.threads import map_blocks
from snefy_ldl._internal.special.tolerances import NEGLIGIBLE_MOMENT_WEIGHT
from snefy_ldl.distributions.components import integral_nodes

__all__ = ["RowMoments", "moments_with_presence"]

Answer = TypeVar("Answer")

#: Nodes that an integral takes, roughly, and what an integrand's bound must exceed for its node to count.
NODES, LEAST = 100, 1e-9


@dataclass(frozen=True)
class RowMoments:
    """Moments of rows that share their neurons; each has its own features and centre, and every label is there.

    Args:
        half: ``a = ½ + w`` of every member's neurons (K, n, L), float64.
        matrix: ``M ∘ R`` (K, n, n).
        features: ``ê`` (K, N, n), with ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1`` in every row.
        log_centre: ``log c`` (N, L), at most zero.

    Example:
        >>> half, one = torch.tensor([[[1.0, 1.5, 2.5]]]).double(), torch.ones(1, 1, 1).double()
        >>> RowMoments(half, one, one, torch.zeros(1, 3).double()).first().round(decimals=8)  # Dirichlet(2, 3, 5)
        tensor([[0.2000, 0.3000, 0.5000]], dtype=torch.float64)
    """

    half: Tensor
    matrix: Tensor
    features: Tensor
    log_centre: Tensor

    def __len__(self) -> int:
        return len(self.log_centre)

    def _each_block(self, numbers: int, answer: Callable[[_Integrals], Answer]) -> list[Answer]:
        """Answers of some rows at a time, where each row takes so many numbers per neuron."""
        size = max(1, SWEEP_ELEMENTS // (numbers * self.half[..., 0].numel()))
        blocks: Iterator[Tensor] = iter(torch.arange(len(self), device=self.log_centre.device).split(size))

        def work(rows: Tensor) -> Answer:
            part = replace(self, features=self.features[:, rows], log_centre=self.log_centre[rows])
            return answer(part._integrals())

        return map_blocks(work, blocks, self.log_centre.device)

    def first(self) -> Tensor:
        """``E[ℓ_r]`` (N, L)."""
        return torch.cat(self._each_block(NODES, lambda part: part.first()))

    def two(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        first, second = zip(*self._each_block(NODES, lambda part: (part.first(), part.second())))
        return torch.cat(first), torch.cat(second)

    def products(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` (N, L, L)."""
        return torch.cat(self._each_block(NODES * self.half.shape[-1], lambda part: part.products()))

    def _integrals(self) -> _Integrals:
        y, step = integral_nodes(2.0 * self.half.flatten(0, 1), self.log_centre)
        log1p = softplus(self.log_centre[..., None] + y)  # log(1 + c t), (N, L, k)
        bound = -2.0 * torch.einsum("l,nlk->nk", self.half.amin((0, 1)), log1p).amin(0)
        keep = bound > math.log(LEAST) - 6.0
        log1p, y, step = log1p[..., keep], y[keep], step[keep]
        phi = torch.exp(-torch.einsum("mil,nlk->mink", self.half, log1p)) * self.features.transpose(1, 2)[..., None]
        return _Integrals(self, phi, torch.sigmoid(self.log_centre[..., None] + y), step)

    def form(self, z: Tensor) -> Tensor:
        """``M z`` of every member: z (K, n, ...) -> (K, n, ...)."""
        return (self.matrix @ z.flatten(2)).view_as(z)


@dataclass(frozen=True)
class _Integrals:
    """Integrands of moments: ``ê φ`` (K, n, N, k), ``c t / (1 + c t)`` (N, L, k), and the weights of the nodes (k,)."""

    rows: RowMoments
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


def moments_with_presence(
    exponents: Tensor, alpha: Tensor, log_odds: Tensor, log_centre: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """``E[ℓ_r]`` and ``E[ℓ_r²]`` (L,) of one row in which labels may be absent.

    Args:
        exponents: ``w`` (K, n, L), float64.
        alpha: of every pair of neurons (P, L), one member after the other.
        log_odds: of their presence, this row's (P, L).
        log_centre: log c (L,).
        weights: of the pairs (P,), which sum to one.

    Returns:
        Both, to 1e-8.

    Example:
        >>> w, one = torch.tensor([[[0.5, 1.0, 2.0]]]).double(), torch.ones(1).double()
        >>> odds = torch.full((1, 3), 40.0).double()
        >>> moments_with_presence(w, 1.0 + 2.0 * w[0], odds, torch.zeros(3).double(), one)[0].round(decimals=9)
        tensor([0.2000, 0.3000, 0.5000], dtype=torch.float64)
    """
    n_members, n, n_labels = exponents.shape
    used = torch.nonzero(weights.abs() > NEGLIGIBLE_MOMENT_WEIGHT).squeeze(1)
    i, j = pair_index(n, exponents.device)
    member = torch.arange(n_members, device=exponents.device).repeat_interleave(len(i)) * n
    first_neuron = (member + i.repeat(n_members))[used]
    second_neuron = (member + j.repeat(n_members))[used]
    alpha, log_odds, weights = alpha[used], log_odds[used], weights[used]
    there, absent = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
    log_absent = -softplus(log_odds)
    weights = weights / -torch.expm1(log_absent.sum(1))
    alone = (log_absent.sum(1, keepdim=True) - log_absent).exp()  # every other label is absent (P, L)
    y, step = integral_nodes(alpha, log_centre)
    log1p, share = softplus(log_centre[:, None] + y), torch.sigmoid(log_centre[:, None] + y)  # (L, k)
    factors = torch.exp(-(0.5 + exponents.flatten(0, 1))[..., None] * log1p)  # (K n, L, k)
    total = torch.zeros(2, n_labels, len(y), dtype=torch.float64, device=alpha.device)
    size = max(1, CHUNK_ELEMENTS // (8 * n_labels * len(y)))
    for part in torch.arange(len(used), device=alpha.device).split(size):
        present = factors[first_neuron[part]].mul_(factors[second_neuron[part]]).mul_(there[part, :, None])
        either = present + absent[part, :, None]
        rest = either.prod(1, keepdim=True) / either - alone[part, :, None]  # Π_{s≠r} (1-p+pF) - Π_{s≠r} (1-p)
        present *= rest
        rising = weights[part, None] * alpha[part]
        total[0] += torch.einsum("pl,plk->lk", rising, present)
        total[1] += torch.einsum("pl,plk->lk", rising * (alpha[part] + 1.0), present)
    by_itself = (weights[:, None] * there * alone).sum(0)
    first = by_itself + (total[0] * share * step).sum(-1)
    second = by_itself + (total[1] * share.square() * step).sum(-1)
    return first, second
