"""The log density with its gradient written out: one autograd node, every lgamma and digamma over pairs i <= j once.

    log p = log ‖V e^a‖² - log e^{s}ᵀ (VᵀV ∘ R) e^{s},   a = W log ℓ - g + s

for K stacked members. ``SnefySimplex.log_prob`` is the same function by plain autograd, and its oracle in the tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from snefy_ldl.special import LogGamma, flat_pair_index, full_index, pair_index, symmetric


class SquaredLogDensity(torch.autograd.Function):
    """``apply(scale, exponents, readout, logs, background, log_odds) -> log p``.

    Args (of apply):
        scale: ``s = h̃`` (K, B, n), the network's dtype.
        exponents: ``W`` (K, n, L), float64.
        readout: ``V`` (K, m, n).
        logs: ``log ℓ`` (K, B, L), float64; no gradient flows to it.
        background: log density of the background at those labels (K, B), or None.
        log_odds: of the background's share ε (K,), or None; no gradient flows to either.

    Returns:
        (K, B), the network's dtype.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scale: Tensor,
        exponents: Tensor,
        readout: Tensor,
        logs: Tensor,
        background: Tensor | None,
        log_odds: Tensor | None,
    ) -> Tensor:
        """The density, with what its gradient needs kept aside."""
        n, dtype = scale.shape[-1], scale.dtype
        i, j = pair_index(n, scale.device)
        alpha = exponents.index_select(1, i)
        alpha += exponents.index_select(1, j)
        alpha += 1.0
        gamma = LogGamma(torch.cat([alpha, alpha.sum(-1, keepdim=True)], -1))  # (K, P, L + 1), the last for the total
        log_k = gamma.value.sum(-1) - 2.0 * gamma.value[..., -1]  # (K, P)
        full = symmetric(log_k, n)
        g = 0.5 * full.diagonal(dim1=1, dim2=2)  # (K, n)
        kernel = (full - g[:, :, None] - g[:, None, :]).exp().to(dtype)  # R
        powers = torch.baddbmm(-g[:, None, :], logs, exponents.transpose(1, 2)).to(dtype)

        neurons = powers + scale
        top = neurons.amax(-1, keepdim=True)
        neurons = (neurons - top).exp_()  # e^a, (K, B, n)
        outputs = torch.bmm(neurons, readout.transpose(1, 2))  # (K, B, m)
        square = outputs.square().sum(-1)  # (K, B)

        scale_top = scale.amax(-1, keepdim=True)
        e = (scale - scale_top).exp_()
        gram = torch.bmm(readout.transpose(1, 2), readout)
        half = torch.bmm(e, gram * kernel)  # (K, B, n)
        normaliser = (half * e).sum(-1)

        ctx.gamma = gamma
        ctx.save_for_backward(exponents, readout, logs, gram, kernel, neurons, outputs, square, e, half, normaliser)
        log_p: Tensor = torch.log(square / normaliser) + 2.0 * (top - scale_top).squeeze(-1)
        ctx.mixed = log_odds is not None
        if log_odds is None or background is None:
            return log_p
        # log((1-ε) p + ε p_background), and how much of it is the network's
        keep, give = -softplus(log_odds)[:, None], -softplus(-log_odds)[:, None]
        own, other = log_p + keep.to(log_p.dtype), background + give.to(log_p.dtype)
        ctx.share = torch.sigmoid(own - other)
        return torch.logaddexp(own, other)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for scale, exponents and readout."""
        exponents, readout, logs, gram, kernel, neurons, outputs, square, e, half, normaliser = ctx.saved_tensors
        if ctx.mixed:
            grad = grad * ctx.share
        by_square = (2.0 * grad / square)[..., None] * outputs  # (K, B, m)
        d_neurons = torch.bmm(by_square, readout).mul_(neurons)  # d/da
        by_normaliser = (grad / normaliser)[..., None] * e  # (K, B, n)
        d_scale = d_neurons - 2.0 * by_normaliser * half
        spread = torch.bmm(by_normaliser.transpose(1, 2), e)  # Σ_b grad/Z e eᵀ, (K, n, n)
        d_readout = torch.baddbmm(torch.bmm(by_square.transpose(1, 2), neurons), readout, spread * kernel, alpha=-2.0)

        d_log_kernel = -(spread * gram * kernel).to(exponents.dtype)  # (K, n, n), symmetric
        d_neurons = d_neurons.to(exponents.dtype)
        d_g = -d_neurons.sum(1) - 2.0 * d_log_kernel.sum(-1)
        d_log_kernel.diagonal(dim1=1, dim2=2).add_(0.5 * d_g)
        n = exponents.shape[1]
        d_log_kernel *= 2.0  # each pair stands twice in the full matrix, and w_i twice in α_ii
        slope = ctx.gamma.slope()
        slope = slope[..., :-1] - slope[..., -1:]
        slope *= d_log_kernel.flatten(1).index_select(1, flat_pair_index(n, slope.device))[..., None]  # (K, P, L)
        by_row = slope.index_select(1, full_index(n, slope.device)).unflatten(1, (n, n))  # (K, n, n, L)
        d_exponents = torch.baddbmm(by_row.sum(2), d_neurons.transpose(1, 2), logs)
        return d_scale, d_exponents, d_readout, None, None, None


def squared_log_density(
    scale: Tensor,
    exponents: Tensor,
    readout: Tensor,
    logs: Tensor,
    background: Tensor | None = None,
    log_odds: Tensor | None = None,
) -> Tensor:
    """Log density of K stacked members at their labels; see :class:`SquaredLogDensity`."""
    result: Tensor = SquaredLogDensity.apply(scale, exponents, readout, logs, background, log_odds)  # type: ignore[no-untyped-call]
    return result
