"""Logarithms of Beta functions: one row, rows with votes added, and the table of every pair of neurons.

Notation. A member has exponents ``w`` (n, L). Its components are the pairs ``i <= j`` with concentrations
``α_ij = 1 + w_i + w_j``, P = n(n+1)/2 of them, in triangle order (:mod:`snefy_ldl._internal.special.pairs`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from snefy_ldl._internal.special.pairs import diagonal_index, pair_index

#: Exponents stay above -1/2 by this much, so every concentration is at least twice it.
EXPONENT_MARGIN = 5e-3
#: ... and below this, so that lgamma keeps its digits: concentrations reach 100,000.
EXPONENT_LIMIT = 5e4


def pair_concentration(exponents: Tensor) -> Tensor:
    """``α_ij = 1 + w_i + w_j`` for the pairs i <= j: (..., n, L) -> (..., P, L)."""
    i, j = pair_index(exponents.shape[-2], exponents.device)
    return 1.0 + exponents[..., i, :] + exponents[..., j, :]


def log_beta(concentration: Tensor) -> Tensor:
    """Logarithm of the multivariate Beta function ``B(α) = Π Γ(α_l) / Γ(Σ α_l)`` over the last dimension.

    >>> log_beta(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)).exp()  # area of the triangle: 1/2!
    tensor(0.5000, dtype=torch.float64)
    """
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


def log_beta_ratio(concentration: Tensor, offset: Tensor | None, added: Tensor) -> Tensor:
    """``log B(α_p + o + k) - log B(α_p + o)`` for every row and component, never a (rows, P, L) array.

    Votes take few distinct values a label, so without an offset each label is one small table and a look-up.

    Args:
        concentration: ``α`` (P, L).
        offset: ``o`` (B, L), or None for zero.
        added: ``k`` (B, L).

    Returns:
        (B, P).
    """
    total = concentration.sum(-1) + (0.0 if offset is None else offset.sum(-1, keepdim=True))
    ratio = torch.lgamma(total) - torch.lgamma(total + added.sum(-1, keepdim=True))
    for r in range(concentration.shape[-1]):
        if offset is None:
            distinct, which = torch.unique(added[:, r], return_inverse=True)
            alpha = concentration[:, r]
            ratio = ratio + (torch.lgamma(alpha + distinct[:, None]) - torch.lgamma(alpha))[which]
        else:
            alpha = concentration[:, r] + offset[:, r, None]
            ratio = ratio + torch.lgamma(alpha + added[:, r, None]) - torch.lgamma(alpha)
    return ratio


def unit_kernel(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Kernel table scaled to a unit diagonal, in float64.

    ``g_i = ½ log B(α_ii)`` and ``log R_ij = log B(α_ij) - g_i - g_j``; by Cauchy-Schwarz ``0 < R <= 1``.

    Args:
        exponents: ``w`` (..., n, L).

    Returns:
        ``log R`` over the pairs (..., P), and ``g`` (..., n).
    """
    exponents = exponents.double()
    n = exponents.shape[-2]
    i, j = pair_index(n, exponents.device)
    log_k = log_beta(pair_concentration(exponents))
    g = 0.5 * log_k[..., diagonal_index(n, exponents.device)]
    return log_k - g[..., i] - g[..., j], g
