"""Exact draws by rejection from the positive part, and the differential entropy estimated with them."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from snefy_ldl.errors import InputError
from snefy_ldl.mixture import SignedDirichletMixture
from snefy_ldl.special import CACHE_ELEMENTS, CHUNK_ELEMENTS


def log_dirichlet_draws(concentration: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Logarithm of Dirichlet draws, one for each (..., L) concentration.

    Gamma draws with a small shape underflow, so those are made one shape higher and brought down in log space:
    ``G(α) = G(α + 1) · U^{1/α}``.
    """
    small = concentration < 1.0
    log_gamma = torch._standard_gamma(concentration + small, generator=generator).log()
    if bool(small.any()):
        shapes = concentration[small]
        uniform = torch.rand(shapes.shape, dtype=shapes.dtype, device=shapes.device, generator=generator)
        log_gamma[small] += torch.log1p(-uniform) / shapes
    return torch.log_softmax(log_gamma, -1)


def _draw_rows(
    dist: SignedDirichletMixture, rows: slice, n: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """n exact draws for some rows: log shares (n, b, L) and log densities (n, b)."""
    positive = dist._weights(rows).clamp_min(0.0)  # (b, P)
    n_rows, n_labels = len(positive), dist.n_labels
    offset = dist._offset_rows(rows)
    rate = 1.0 / positive.sum(-1)
    logs = positive.new_empty(n, n_rows, n_labels)
    log_p = positive.new_empty(n, n_rows)
    filled = torch.zeros(n_rows, dtype=torch.long, device=positive.device)
    while True:
        active = torch.nonzero(filled < n).squeeze(-1)
        if not len(active):
            return logs, log_p
        wanted = math.ceil(float(((n - filled[active]) / rate[active]).max()) * 1.05) + 8
        tries = min(wanted, max(1, CHUNK_ELEMENTS // (8 * n_labels * len(active))))
        component = torch.multinomial(positive[active], tries, replacement=True, generator=generator).T  # (T, a)
        concentration = dist._concentration[component]
        if offset is not None:
            concentration = concentration + offset[active]
        proposal = log_dirichlet_draws(concentration, generator)  # (T, a, L)
        density, envelope = dist._log_densities(active + (rows.start or 0), proposal, envelope=True)
        uniform = torch.rand(density.shape, dtype=density.dtype, device=density.device, generator=generator)
        accepted = uniform.log() <= density - envelope
        slot = filled[active] + accepted.cumsum(0) - 1
        keep = accepted & (slot < n)
        at = (slot[keep], active.expand(tries, -1)[keep])
        logs[at] = proposal[keep]
        log_p[at] = density[keep]
        filled[active] += keep.sum(0)


def _row_chunks(dist: SignedDirichletMixture, n: int) -> list[slice]:
    per_row = max(dist.n_components, n * dist.n_labels)
    step = max(1, CHUNK_ELEMENTS // (8 * per_row))
    return [slice(start, min(start + step, dist._n_rows)) for start in range(0, dist._n_rows, step)]


@torch.no_grad()
def draw(dist: SignedDirichletMixture, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Logarithm of n exact draws a row (n, N, L)."""
    return torch.cat([_draw_rows(dist, rows, n, generator)[0] for rows in _row_chunks(dist, n)], 1)


@torch.no_grad()
def estimate_entropy(
    dist: SignedDirichletMixture,
    n: int,
    method: Literal["model", "uniform"] = "model",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Differential entropy of every row and its standard error, both in the batch's shape."""
    if n < 2:
        raise InputError(f"entropy needs at least 2 draws; got n={n}.")
    values, errors = [], []
    if method == "model":
        for rows in _row_chunks(dist, n):
            terms = -_draw_rows(dist, rows, n, generator)[1]
            values.append(terms.mean(0))
            errors.append(terms.std(0) / math.sqrt(n))
    elif method == "uniform":
        flat = torch.ones(n, dist.n_labels, dtype=torch.float64, device=dist._concentration.device)
        logs = log_dirichlet_draws(flat, generator)
        step = max(1, CACHE_ELEMENTS // n)
        for start in range(0, dist._n_rows, step):
            log_p = dist._log_prob_grid(logs, slice(start, min(start + step, dist._n_rows)))
            # p log p -> 0 as p -> 0, also where log p is -inf
            terms = -torch.where(log_p > -700.0, (log_p - math.lgamma(dist.n_labels)).exp() * log_p, 0.0)
            values.append(terms.mean(0))
            errors.append(terms.std(0) / math.sqrt(n))
    else:
        raise InputError(f'method={method!r}: use "model" (exact draws) or "uniform" (the paper\'s Algorithm A2).')
    shape = dist.batch_shape
    return torch.cat(values).reshape(shape).to(dist._dtype), torch.cat(errors).reshape(shape).to(dist._dtype)
