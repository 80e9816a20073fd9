"""Mean and second moment of one row whose centre and odds of presence are its own: all components at once.

As in :mod:`snefy_ldl.distributions.zero_moments`, by the trapezoid rule in ``y = log t``, but the sum over components
is taken inside the integral, no table is kept, and factors of a pair of neurons are products of one factor a neuron: no
exponential is taken for a pair.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl.distributions.zero_moments import integral_nodes
from snefy_ldl.special import pair_index
from snefy_ldl.special.tolerances import NEGLIGIBLE_MOMENT_WEIGHT


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
