"""Exact draws by rejection from the positive part, or by the inverse Rosenblatt map where that keeps hardly any."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.memory import CHUNK_ELEMENTS
from snefy_ldl.distributions.marginal import check_weights

Rows = slice | Tensor
#: Rounds of proposals, which count on keeping at least that part of them.
ROUNDS, LOWEST_ACCEPTANCE = 4, 1e-3


def log_dirichlet_draws(concentration: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Logarithm of Dirichlet draws, one for each (..., L) concentration, however small.

    Args:
        concentration: ``α``, float64.
        generator: source of randomness; torch's global one by default.

    Example:
        >>> alpha = torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64).expand(20_000, 3)
        >>> draws = log_dirichlet_draws(alpha, torch.Generator().manual_seed(0)).exp()
        >>> draws.mean(0).round(decimals=2)
        tensor([0.2000, 0.3000, 0.5000], dtype=torch.float64)
    """
    small = concentration < 1.0  # a gamma draw with such a shape would underflow: G(α) = G(α + 1) · U^{1/α}
    logs = torch._standard_gamma(concentration + small, generator=generator).log()
    few = concentration[small]
    uniform = torch.rand(few.shape, dtype=torch.float64, device=few.device, generator=generator)
    logs[small] += torch.log1p(-uniform) / few
    return torch.log_softmax(logs, -1)


def _uniform(like: Tensor, *shape: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, device=like.device, generator=generator)


def _proposals(dist: Any, rows: Rows, weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Logarithm of n draws per row (b, n, L) from the mixture with these weights (b, P) >= 0."""
    ends = weights.cumsum(-1)
    level = _uniform(weights, len(weights), n, generator=generator) * ends[:, -1:]
    # a level that rounds to the total, or falls on a component of weight zero, goes to the one before
    component = torch.searchsorted(ends, level, right=True).clamp_max(weights.shape[-1] - 1)
    concentration, offset = dist.concentration[component], dist.offset_rows(rows)
    return log_dirichlet_draws(concentration if offset is None else concentration + offset[:, None], generator)


def _reject(dist: Any, rows: slice, positive: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Log shares (b, n, L) of draws from the positive part, kept with probability p / p⁺.

    What rows lack after some rounds comes by the inverse Rosenblatt map, which rejects nothing.
    """
    n_labels, filled = dist.n_labels, torch.zeros(len(positive), dtype=torch.long, device=positive.device)
    rate, logs = (1.0 / positive.sum(-1)).clamp_min(LOWEST_ACCEPTANCE), positive.new_empty(len(positive), n, n_labels)
    for _ in range(ROUNDS):
        active = torch.nonzero(filled < n).squeeze(-1)
        if not len(active):
            return logs
        wanted = math.ceil(float(((n - filled[active]) / rate[active]).max()) * 1.05) + 8
        tries, at = min(wanted, max(1, CHUNK_ELEMENTS // (8 * n_labels * len(active)))), active + (rows.start or 0)
        proposal = _proposals(dist, at, positive[active], tries, generator)  # (a, T, L)
        density, envelope = dist.log_densities(at, proposal.transpose(0, 1).contiguous(), envelope=True)
        kept = (_uniform(density, *density.shape, generator=generator).log_() <= density - envelope).T
        slot = filled[active, None] + kept.cumsum(1) - 1
        kept = kept & (slot < n)
        logs[active[:, None].expand(-1, tries)[kept], slot[kept]] = proposal[kept]
        filled[active] += kept.sum(1)
    short = torch.nonzero(filled < n).squeeze(-1)
    levels = _uniform(logs, n * len(short), n_labels - 1, generator=generator)
    fresh = dist.take(short + (rows.start or 0)).chain(levels, invert=True).reshape(n, len(short), n_labels)
    missing = torch.arange(n, device=filled.device) >= filled[short, None]
    logs[short] = torch.where(missing[..., None], fresh.transpose(0, 1), logs[short])
    return logs


@torch.no_grad()
def draw(dist: Any, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Logarithm of n exact draws per row (n, N, L)."""
    step, parts = max(1, CHUNK_ELEMENTS // (8 * max(dist.n_components, n * dist.n_labels))), []
    for start in range(0, len(dist), step):
        rows = slice(start, min(start + step, len(dist)))
        weights = dist.weights(rows)  # (b, P)
        check_weights(weights, start)
        how = _proposals if bool((weights >= 0.0).all()) else _reject
        parts.append(how(dist, rows, weights.clamp_min(0.0), n, generator))
    return torch.cat(parts).transpose(0, 1)
