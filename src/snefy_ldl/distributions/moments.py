"""First and second moments of the squared family, with as few matrix products as their structure allows (Theorem 3).

Write ``a_i = 1/2 + w_i``, so that ``α_ij = a_i + a_j`` and ``A_ij = s_i + s_j`` with ``s_i = Σ_r a_ir``. With
``B = M∘R / A`` and ``C = B / (A + 1)``, symmetric both, the sums over pairs fall apart:

    Z E[ℓ_r]      = 2 Σ_i e_i (Be)_i a_ir
    Z E[ℓ_r ℓ_q]  = 2 Σ_i e_i (Ce)_i (a_ir a_iq + δ_rq a_ir) + 2 (e∘a_r)ᵀ C (e∘a_q)

One n × n product a row gives the mean of all labels, and L more the whole covariance, instead of L and L(L+1)/2.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from snefy_ldl._internal.special import symmetric

Order = Literal["first", "diagonal", "full"]


class PairMoments:
    """The tables of some members, made once for all rows.

    Args:
        exponents: ``w`` (K, n, L), float64.
        kernel: ``M∘R`` (K, n, n), float64.
    """

    def __init__(self, exponents: Tensor, kernel: Tensor) -> None:
        self.parts = exponents + 0.5  # a, (K, n, L)
        size = self.parts.sum(-1)
        total = size[:, :, None] + size[:, None, :]
        first = kernel / total  # B
        self.second = first / (total + 1.0)  # C
        self.tables = torch.cat([kernel, first, self.second], -1)  # side by side: one product serves all three

    def answer(self, features: Tensor, log_members: Tensor, order: Order) -> Tensor:
        """Moments of some rows.

        Args:
            features: ``e`` (K, b, n), each row scaled to a largest entry of one.
            log_members: log weight of each member (b, K).
            order: ``"first"`` for the means alone; ``"diagonal"`` and ``"full"`` add second moments.

        Returns:
            (b, L), (b, 2, L) or (b, 1 + L, L): the means, then what was asked for.
        """
        mean, weight, products = self._means(features, log_members, order)
        if order == "first":
            return mean.sum(0)
        e, a = features, self.parts
        ends = weight * products[:, :, 2]  # (K, b, n)
        lifted = e[:, :, None, :] * a.transpose(1, 2)[:, None]  # e∘a_r, (K, b, L, n)
        crossed = _product(lifted.flatten(1, 2), self.second).view_as(lifted)
        if order == "diagonal":
            own = _product(ends, a.square() + a) + weight * (lifted * crossed).sum(-1)
            return torch.stack([mean, 2.0 * own], 2).sum(0)
        inner = (weight * e)[:, :, None, :] * crossed + ends[:, :, None, :] * a.transpose(1, 2)[:, None]
        both = _product(inner.flatten(1, 2), a).view(*inner.shape[:3], -1)  # (K, b, L, L)
        both = 0.5 * (both + both.transpose(-1, -2)) + torch.diag_embed(_product(ends, a))
        return torch.cat([mean[:, :, None], 2.0 * both], 2).sum(0)

    def member_means(self, features: Tensor) -> Tensor:
        """The mean of every member by itself: features (K, b, n) -> (K, b, L)."""
        return self._means(features, features.new_zeros(features.shape[1], len(features)), "first")[0]

    def _means(self, features: Tensor, log_members: Tensor, order: Order) -> tuple[Tensor, Tensor, Tensor]:
        """What each member adds to the means (K, b, L), its weight over its normaliser, and its products."""
        n = features.shape[-1]
        width = 2 * n if order == "first" else 3 * n
        products = _product(features, self.tables[..., :width]).unflatten(-1, (-1, n))  # (K, b, 2 or 3, n)
        products = products * features[:, :, None]
        weight = log_members.exp().T[..., None] / products[:, :, 0].sum(-1, keepdim=True)  # (K, b, 1)
        return _product(weight * products[:, :, 1], 2.0 * self.parts), weight, products


class QuadraticForms:
    """``Σ_k π_k eᵀ(M∘R∘T_a)e / eᵀ(M∘R)e`` for any tables T: a form an answer, and no (rows, P) array of weights.

    Args:
        half_kernel: ``M ∘ R`` over the pairs i <= j, each counted once (K, P).
        n: neurons.
        table: one number a pair and answer (K P, A).
    """

    def __init__(self, half_kernel: Tensor, n: int, table: Tensor) -> None:
        tables = table.T.unflatten(1, half_kernel.shape)  # (A, K, P)
        tables = torch.cat([tables, torch.ones_like(tables[:1])]).transpose(0, 1)  # (K, A+1, P), the last for Z̃
        self.n_answers = tables.shape[1]
        matrix = symmetric(tables * half_kernel[:, None], n)
        # eᵀTe of a symmetric T needs its upper half alone, off-diagonal entries twice; by blocks of columns, so that
        # matrix products do the work
        upper = matrix.triu(1) * 2.0 + torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
        width = max(16, math.ceil(n / 4))
        self._blocks = [
            (upper[:, :, : left + width, left : left + width].permute(0, 2, 1, 3).flatten(2), slice(left, left + width))
            for left in range(0, n, width)
        ]

    def answer(self, features: Tensor, log_members: Tensor) -> Tensor:
        """The expectations of some rows: features (K, b, n), log weight of each member (b, K) -> (b, A)."""
        forms = torch.zeros((), dtype=features.dtype, device=features.device)
        for block, columns in self._blocks:
            half = features[..., : columns.stop] @ block  # (K, b, (A+1) width)
            forms = forms + (half.unflatten(-1, (self.n_answers, -1)) @ features[..., columns, None]).squeeze(-1)
        member = log_members.exp().T[..., None] / forms[..., -1:]
        return (forms[..., :-1] * member).sum(0)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product; for a single member the plain one, which is quicker at these sizes."""
    return (left[0] @ right[0])[None] if len(left) == 1 else left @ right
