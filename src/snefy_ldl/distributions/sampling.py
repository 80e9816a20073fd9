"""Exact draws by rejection from the positive part, or by the inverse Rosenblatt map where that keeps hardly any."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.limits import CHUNK_ELEMENTS
from snefy_ldl.distributions.marginal import check_weights
from snefy_ldl.errors import InputError

Rows = slice | Tensor
#: Rows that would keep a smaller share of their proposals than this take the inverse Rosenblatt map.
LOWEST_ACCEPTANCE = 1e-3


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

    Rows that would keep hardly any take the inverse Rosenblatt map instead, which rejects nothing.
    """
    n_rows, n_labels = len(positive), dist.n_labels
    rate = 1.0 / positive.sum(-1)
    logs = positive.new_empty(n_rows, n, n_labels)
    filled = torch.zeros(n_rows, dtype=torch.long, device=positive.device)
    rare = torch.nonzero(rate < LOWEST_ACCEPTANCE).squeeze(-1)
    if len(rare):
        few = dist.take(rare + (rows.start or 0))
        levels = _uniform(logs, n * len(rare), n_labels - 1, generator=generator)
        logs[rare] = few.chain(levels, invert=True).reshape(n, len(rare), n_labels).transpose(0, 1)
        filled[rare] = n
    proposed = 0
    while True:
        active = torch.nonzero(filled < n).squeeze(-1)
        if not len(active):
            return logs
        wanted = math.ceil(float(((n - filled[active]) / rate[active]).max()) * 1.05) + 8
        tries = min(wanted, max(1, CHUNK_ELEMENTS // (8 * n_labels * len(active))))
        at_rows: Rows = active + (rows.start or 0)
        proposal = _proposals(dist, at_rows, positive[active], tries, generator)  # (a, T, L)
        density, envelope = (
            part.T for part in dist.log_densities(at_rows, proposal.transpose(0, 1).contiguous(), envelope=True)
        )
        accepted = _uniform(density, *density.shape, generator=generator).log_() <= density - envelope
        slot = filled[active, None] + accepted.cumsum(1) - 1
        keep = accepted & (slot < n)
        logs[active[:, None].expand(-1, tries)[keep], slot[keep]] = proposal[keep]
        filled[active] += keep.sum(1)
        proposed += tries
        if proposed > 100 * (n + 100) / LOWEST_ACCEPTANCE:
            row = int(active[0])
            raise InputError(
                f"row {row + (rows.start or 0)} kept {int(filled[row])} of {proposed} proposals, where a share of "
                f"{float(rate[row]):g} was due: its density does not match its weights."
            )


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
