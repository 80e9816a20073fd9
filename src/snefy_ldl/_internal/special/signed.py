"""Signed sums and squares in log space, without overflow, and the smallest share whose logarithm is taken."""

from __future__ import annotations

import torch
from torch import Tensor

from snefy_ldl._internal.limits import block_elements
from snefy_ldl._internal.special.tolerances import NEGLIGIBLE_TERM_EXPONENT

#: Shares of zero are lifted here before a logarithm; positive ones, however small, are not.
SMALLEST_SHARE = 1e-300


def log_squared_norm(readout: Tensor, log_features: Tensor) -> Tensor:
    """``log ‖V exp(a)‖²`` without overflow: readout (K, m, n), a (K, B, n) -> (K, B)."""
    top = log_features.amax(-1, keepdim=True).detach()
    lifted = (log_features - top).exp() @ readout.transpose(-1, -2)  # (K, B, m)
    return lifted.square().sum(-1).log() + 2.0 * top.squeeze(-1)


def log_quadratic_form(matrix: Tensor, log_features: Tensor) -> Tensor:
    """``log e^{a}ᵀ A e^{a}`` without overflow: A (K, n, n), a (K, B, n) -> (K, B)."""
    top = log_features.amax(-1, keepdim=True).detach()
    features = (log_features - top).exp()
    return ((features @ matrix) * features).sum(-1).log() + 2.0 * top.squeeze(-1)


def log_signed_sum(log_magnitude: Tensor, weight: Tensor) -> Tensor:
    """``log Σ_p weight_p e^{log_magnitude_p}`` over the last dimension; -inf where the sum is not positive.

    The weight goes into the exponent, so that a term that is huge but weighs nothing does not push the others under.

    >>> log_signed_sum(torch.tensor([0.0, 2000.0]), torch.tensor([1.0, 0.0]))
    tensor(0.)
    >>> log_signed_sum(torch.tensor([-torch.inf, -torch.inf]), torch.tensor([1.0, 1.0]))
    tensor(-inf)
    """
    used = weight != 0.0
    log_terms = (log_magnitude + torch.where(used, weight.abs(), 1.0).log()).masked_fill(~used, -torch.inf)
    top = log_terms.amax(-1, keepdim=True).detach().clamp_min(torch.finfo(log_terms.dtype).min)
    total = (weight.sign() * (log_terms - top).exp()).sum(-1)
    return total.clamp_min(0.0).log() + top.squeeze(-1)


def log_share(share: Tensor) -> Tensor:
    """Logarithm of shares in float64, which holds positive ones of any size; exact zeros are lifted to 1e-300."""
    share = share.double()
    return torch.where(share <= 0.0, SMALLEST_SHARE, share).log()


def quick_log_norms(scale: Tensor, exponents: Tensor, readout: Tensor, logs: Tensor) -> Tensor:
    """``log ‖Σ_i v_i exp(s_i + w_i log ℓ)‖²``: s (b, n), w (L, n), v (n, m), logs (b, S, L) -> (b, S)."""
    width = max(1, block_elements(logs.device.type) // (4 * len(readout)))  # points whose exponents a cache holds
    step = max(1, width // logs.shape[1])
    answer = torch.empty(logs.shape[:2], dtype=torch.float64, device=logs.device)
    for first in range(0, len(logs), step):
        for left in range(0, logs.shape[1], width):
            part = slice(first, first + step), slice(left, left + width)
            points = logs[part]
            terms = torch.baddbmm(scale[part[0], None], points, exponents.expand(len(points), -1, -1))
            top = terms.amax(-1, keepdim=True)
            terms32 = terms.sub_(top).float().clamp_min_(NEGLIGIBLE_TERM_EXPONENT).exp_()
            answer[part] = (terms32 @ readout).square_().sum(-1).log_() + 2.0 * top.squeeze(-1)
    return answer
