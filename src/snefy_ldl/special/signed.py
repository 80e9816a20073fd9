"""Signed sums and squares in log space, without overflow, and the smallest share whose logarithm is taken."""

from __future__ import annotations

import torch
from torch import Tensor

#: Shares are lifted here before a logarithm; smaller ones are not numbers anybody measured.
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
    """
    used = weight != 0.0
    log_terms = (log_magnitude + torch.where(used, weight.abs(), 1.0).log()).masked_fill(~used, -torch.inf)
    top = log_terms.amax(-1, keepdim=True).detach()
    total = (weight.sign() * (log_terms - top).exp()).sum(-1)
    return total.clamp_min(0.0).log() + top.squeeze(-1)


def log_share(share: Tensor) -> Tensor:
    """Logarithm of a share, with exact zeros lifted to the smallest share the library knows."""
    return share.clamp_min(max(SMALLEST_SHARE, torch.finfo(share.dtype).tiny)).log()
