"""Exact draws: rejection from the positive part, or the inverse Rosenblatt map.

**The Rosenblatt map.** Break a stick: ``t_k = ℓ_k / (ℓ_k + … + ℓ_L)``. Under Dirichlet(α) the pieces are independent
Betas, ``t_k ~ Beta(α_k, α_{k+1} + … + α_L)``. In a mixture, the pieces seen so far reweight the components by their
densities, so that the conditional distribution of the next piece is again a signed mixture of Betas:

    u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1}) = Σ_p w_p I_{t_k}(a_pk, b_pk),   w_p ∝ c_p Π_{j<k} Beta(t_j; a_pj, b_pj).

Everything runs on the scale ``z = logit t``, where no digit is lost near 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Tensor

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, DIRECT_STICKS
from snefy_ldl._internal.tolerances import LOGIT_LIMIT, SMALLEST_DENSITY_SHARE, TAIL_MASS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.distributions.marginal import (
    beta_table,
    check_weights,
    direct_cdf,
    direct_quantile,
    log_beta_density,
    used_components,
)
from snefy_ldl.errors import InputError

Rows = slice | Tensor
#: Rows that would keep a smaller share of their proposals than this take the inverse Rosenblatt map.
LOWEST_ACCEPTANCE = 1e-3
#: Weights and offsets of some rows (b, P), (b, L) or None, by row numbers.
RowsOf = Callable[[Index], tuple[Array, Array | None]]
#: Rows whose ``Σ|w|`` is larger than this need more digits than a table has.
STEADY = 1e3


# -- rejection ---------------------------------------------------------------------------------------------------------


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
        logs[rare] = few.inverse_rosenblatt(levels).reshape(n, len(rare), n_labels).transpose(0, 1)
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


# -- the Rosenblatt map ------------------------------------------------------------------------------------------------


class StickMap:
    """Shares and uniforms of rows whose components are Dirichlets.

    Args:
        concentration: ``α`` (P, L).
        rows_of: weights and offsets of some rows.

    Example:
        >>> even = StickMap(np.array([[1.0, 1.0]]), lambda rows: (np.ones((len(rows), 1)), None))
        >>> even.to_uniforms(np.log([[0.25, 0.75]])).round(12), np.exp(even.to_shares(np.array([[0.25]]))).round(12)
        (array([[0.25]]), array([[0.25, 0.75]]))
    """

    def __init__(self, concentration: Array, rows_of: RowsOf) -> None:
        self.concentration, self.rows_of = concentration, rows_of

    def to_uniforms(self, logs: Array) -> Array:
        """``u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1})`` of log shares (N, L), finite: (N, L-1), in [0, 1]."""
        concentration, n_labels = self.concentration, self.concentration.shape[1]
        # log of what is left behind each label: a sum of positive terms, so nothing cancels
        left = np.logaddexp.accumulate(logs[:, ::-1], axis=1)[:, ::-1]
        logits = np.clip(logs[:, :-1] - left[:, 1:], -LOGIT_LIMIT, LOGIT_LIMIT)
        out = np.empty((len(logs), n_labels - 1))
        for rows in _blocks(len(logs), len(concentration)):
            chain = _Chain(concentration, *self.rows_of(rows))
            for k in range(n_labels - 1):
                for part, a, b in chain.sticks(k):
                    out[rows[part], k] = _cdf(a, b, chain.weights(part), logits[rows[part], k])
                    if k < n_labels - 2:
                        chain.see(part, a, b, logits[rows[part], k])
        return out

    def to_shares(self, uniforms: Array) -> Array:
        """The inverse: levels (N, L-1), taken for ``TAIL_MASS`` off where closer to an end, to log shares (N, L)."""
        concentration, n_labels = self.concentration, self.concentration.shape[1]
        levels = np.clip(uniforms, TAIL_MASS, 1.0 - TAIL_MASS)
        logs = np.empty((len(levels), n_labels))
        for rows in _blocks(len(levels), len(concentration)):
            chain = _Chain(concentration, *self.rows_of(rows))
            left = np.zeros(len(rows))
            for k in range(n_labels - 1):
                z = np.empty(len(rows))
                for part, a, b in chain.sticks(k):
                    z[part] = _quantile(a, b, chain.weights(part), levels[rows[part], k])
                    if k < n_labels - 2:
                        chain.see(part, a, b, z[part])
                logs[rows, k] = left + scipy.special.log_expit(z)
                left = left + scipy.special.log_expit(-z)
            logs[rows, -1] = left
        return logs


def _blocks(n_rows: int, n_components: int) -> Iterator[Index]:
    step = max(1, CHUNK_ELEMENTS // (4 * n_components))
    for start in range(0, n_rows, step):
        yield np.arange(start, min(start + step, n_rows))


class _Chain:
    """The components' weights of some rows, given the pieces of the stick seen so far."""

    def __init__(self, concentration: Array, weights: Array, offset: Array | None) -> None:
        self._alpha, self._offset = concentration, offset
        self._tail = np.cumsum(concentration[:, ::-1], axis=1)[:, ::-1]  # α_k + … + α_L
        with np.errstate(divide="ignore"):
            self._log_size = np.log(np.abs(weights))  # (b, P)
        self._sign = np.sign(weights)

    def sticks(self, k: int) -> Iterator[tuple[Index, Array, Array]]:
        """Rows and the parameters of their k-th pieces, (P,) each where the rows share them, else (b, P).

        Votes make parameters differ: rows with the same votes share a table, unless that makes many small tables.
        """
        a, b = self._alpha[:, k], self._tail[:, k + 1]
        if self._offset is None:
            yield np.arange(len(self._sign)), a, b
            return
        votes = np.stack([self._offset[:, k], self._offset[:, k + 1 :].sum(1)], 1)
        pairs, which = np.unique(votes, axis=0, return_inverse=True)
        if self._sign.size <= len(pairs) * DIRECT_STICKS:
            yield np.arange(len(self._sign)), a + votes[:, :1], b + votes[:, 1:]
            return
        for g, (hits, rest) in enumerate(pairs):
            yield np.flatnonzero(which.reshape(-1) == g), a + hits, b + rest

    def weights(self, part: Index) -> Array:
        """``w`` of some rows (b, P), rows summing to one."""
        size = self._log_size[part]
        return _closed(self._sign[part] * np.exp(size - size.max(axis=1, keepdims=True)))

    def see(self, part: Index, a: Array, b: Array, z: Array) -> None:
        """Reweight the components of some rows by their densities at a piece of the stick, z (b,)."""
        self._log_size[part] += log_beta_density(a, b, z)


def _closed(terms: Array) -> Array:
    """Signed terms (b, P) as weights that sum to one.

    Where what was seen so far cannot be, nothing follows from it, and the positive part stands in.
    """
    total, positive = terms.sum(1, keepdims=True), np.maximum(terms, 0.0)
    terms = np.where(total > SMALLEST_DENSITY_SHARE * positive.sum(1, keepdims=True), terms, positive)
    return terms / terms.sum(1, keepdims=True)


def _tabled(a: Array, weights: Array) -> Mask:
    """Rows (b,) that a table of all components answers sooner than the incomplete Beta function of each, as well."""
    if a.ndim == 2 or len(a) <= 8 or weights.size <= DIRECT_STICKS:
        return np.zeros(len(weights), dtype=np.bool_)
    return np.abs(weights).sum(1) <= STEADY


def _cdf(a: Array, b: Array, weights: Array, z: Array) -> Array:
    """``Σ_p w_p I_t(a_p, b_p)`` at each row's own z = logit t: weights (b, P), z (b,) -> (b,)."""
    return _answer(a, b, weights, z, lambda table, *asked: table.cdf_at_logits(*asked)[:, 0], direct_cdf)


def _quantile(a: Array, b: Array, weights: Array, levels: Array) -> Array:
    """z at which the cdf reaches each row's own level: weights (b, P), levels (b,) -> (b,)."""
    return _answer(a, b, weights, levels, lambda table, *asked: table.locate(*asked).logits(), direct_quantile)


def _answer(
    a: Array, b: Array, weights: Array, values: Array, by_table: Callable[..., Array], directly: Callable[..., Array]
) -> Array:
    tabled = _tabled(a, weights)
    answer = np.empty(len(values))
    if tabled.any():
        part = weights if tabled.all() else weights[tabled]
        keep = used_components(part)
        kept = np.ascontiguousarray(part[:, keep])
        answer[tabled] = by_table(beta_table(a, b), kept, values[tabled, None], keep)
    answer[~tabled] = directly(a, b, weights[~tabled], values[~tabled])
    return answer
