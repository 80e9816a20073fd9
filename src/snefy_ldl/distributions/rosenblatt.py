"""The Rosenblatt map of a signed mixture of Dirichlets: shares to independent uniforms and back, without rejection.

Break a stick: ``t_k = ℓ_k / (ℓ_k + … + ℓ_L)``. Under Dirichlet(α) the pieces are independent Betas,
``t_k ~ Beta(α_k, α_{k+1} + … + α_L)``. In a mixture, the pieces seen so far reweight the components by their densities,
so that the conditional law of the next piece is again a signed mixture of Betas:

    u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1}) = Σ_p w_p I_{t_k}(a_pk, b_pk),   w_p ∝ c_p Π_{j<k} Beta(t_j; a_pj, b_pj).

Everything runs on the scale ``z = logit t``, where no digit is lost near 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.special

from snefy_ldl._limits import CHUNK_ELEMENTS, DIRECT_STICKS
from snefy_ldl._types import Array, Index, Mask
from snefy_ldl.distributions.tables import beta_table, used_components
from snefy_ldl.special.tolerances import LOGIT_LIMIT, NEGLIGIBLE_WEIGHT, SMALLEST_DENSITY_SHARE, TAIL_MASS

__all__ = ["to_shares", "to_uniforms"]

#: Weights of some rows (b, P), and their offsets (b, L) or None, by row numbers.
RowsOf = Callable[[Index], tuple[Array, Array | None]]


def to_uniforms(concentration: Array, rows_of: RowsOf, logs: Array) -> Array:
    """``u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1})`` of every row.

    Args:
        concentration: ``α`` (P, L).
        rows_of: weights and offsets of some rows.
        logs: log shares (N, L), finite.

    Returns:
        (N, L-1), in [0, 1].

    Example:
        >>> law = lambda rows: (np.ones((len(rows), 1)), None)
        >>> to_uniforms(np.array([[1.0, 1.0]]), law, np.log([[0.25, 0.75]])).round(12)
        array([[0.25]])
    """
    n_labels = concentration.shape[1]
    # log of what is left behind each label: a sum of positive terms, so nothing cancels
    left = np.logaddexp.accumulate(logs[:, ::-1], axis=1)[:, ::-1]
    logits = np.clip(logs[:, :-1] - left[:, 1:], -LOGIT_LIMIT, LOGIT_LIMIT)
    out = np.empty((len(logs), n_labels - 1))
    for rows in _blocks(len(logs), len(concentration)):
        chain = _Chain(concentration, *rows_of(rows))
        for k in range(n_labels - 1):
            for part, a, b in chain.sticks(k):
                out[rows[part], k] = _cdf(a, b, chain.weights(part), logits[rows[part], k])
                if k < n_labels - 2:
                    chain.see(part, a, b, logits[rows[part], k])
    return out


def to_shares(concentration: Array, rows_of: RowsOf, uniforms: Array) -> Array:
    """The inverse of :func:`to_uniforms`.

    Args:
        concentration: ``α`` (P, L).
        rows_of: weights and offsets of some rows.
        uniforms: (N, L-1), in [0, 1]; taken for ``TAIL_MASS`` off where closer to an end than that.

    Returns:
        Log shares (N, L).

    Example:
        >>> law = lambda rows: (np.ones((len(rows), 1)), None)
        >>> np.exp(to_shares(np.array([[1.0, 1.0]]), law, np.array([[0.25]]))).round(12)
        array([[0.25, 0.75]])
    """
    n_labels = concentration.shape[1]
    levels = np.clip(uniforms, TAIL_MASS, 1.0 - TAIL_MASS)
    logs = np.empty((len(levels), n_labels))
    for rows in _blocks(len(levels), len(concentration)):
        chain = _Chain(concentration, *rows_of(rows))
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
        """``w`` of some rows (b, P), rows summing to one.

        Where the pieces seen so far have no density, nothing follows from them, and the positive part stands in.
        """
        size = self._log_size[part]
        terms = self._sign[part] * np.exp(size - size.max(axis=1, keepdims=True))
        total, positive = terms.sum(1, keepdims=True), np.maximum(terms, 0.0)
        terms = np.where(total > SMALLEST_DENSITY_SHARE * positive.sum(1, keepdims=True), terms, positive)
        weights: Array = terms / terms.sum(1, keepdims=True)
        return weights

    def see(self, part: Index, a: Array, b: Array, z: Array) -> None:
        """Reweight the components of some rows by their densities at a piece of the stick, z (b,)."""
        self._log_size[part] += _log_density(a, b, z)


def _log_density(a: Array, b: Array, z: Array) -> Array:
    """Log density of logit(t) under every Beta, with parameters (P,) or (b, P): z (b,) -> (b, P)."""
    log_t, log_rest = scipy.special.log_expit(z)[:, None], scipy.special.log_expit(-z)[:, None]
    log_p: Array = log_t * a + log_rest * b - scipy.special.betaln(a, b)
    return log_p


#: Rows whose ``Σ|w|`` is larger than this need more digits than a table has.
STEADY = 1e3


def _tabled(a: Array, weights: Array) -> Mask:
    """Rows (b,) that a table of all components answers sooner than the incomplete Beta function of each, as well."""
    if a.ndim == 2 or len(a) <= 8 or weights.size <= DIRECT_STICKS:
        return np.zeros(len(weights), dtype=np.bool_)
    steady: Mask = np.abs(weights).sum(1) <= STEADY
    return steady


def _cdf(a: Array, b: Array, weights: Array, z: Array) -> Array:
    """``Σ_p w_p I_t(a_p, b_p)`` at each row's own z = logit t: weights (b, P), z (b,) -> (b,)."""
    tabled = _tabled(a, weights)
    answer = np.empty(len(z))
    if tabled.any():
        part, keep = _used(weights, tabled)
        answer[tabled] = beta_table(a, b).cdf_at_logits(part, z[tabled, None], keep)[:, 0]
    answer[~tabled] = _cdf_direct(a, b, weights[~tabled], z[~tabled])
    return answer


def _quantile(a: Array, b: Array, weights: Array, levels: Array) -> Array:
    """z at which the cdf reaches each row's own level: weights (b, P), levels (b,) -> (b,)."""
    tabled = _tabled(a, weights)
    answer = np.empty(len(levels))
    if tabled.any():
        part, keep = _used(weights, tabled)
        answer[tabled] = beta_table(a, b).locate(part, levels[tabled, None], keep).logits()
    answer[~tabled] = _quantile_direct(a, b, weights[~tabled], levels[~tabled])
    return answer


def _used(weights: Array, rows: Mask) -> tuple[Array, Index | slice]:
    part = weights if rows.all() else weights[rows]
    keep = used_components(part)
    return np.ascontiguousarray(part[:, keep]), keep


def _cdf_direct(a: Array, b: Array, weights: Array, z: Array) -> Array:
    # what was seen before leaves most components next to no weight, and the function is slow
    row, component = np.nonzero(np.abs(weights) > NEGLIGIBLE_WEIGHT)
    first, second = (part[row, component] if part.ndim == 2 else part[component] for part in (a, b))
    t, rest = scipy.special.expit(z)[row], scipy.special.expit(-z)[row]
    low = t < 0.5  # beyond one half, work from the other end: 1 - t keeps its digits there
    tail = scipy.special.betainc(np.where(low, first, second), np.where(low, second, first), np.minimum(t, rest))
    terms = weights[row, component] * np.where(low, tail, 1.0 - tail)
    answer: Array = np.clip(np.bincount(row, terms, minlength=len(z)), 0.0, 1.0)
    return answer


def _quantile_direct(a: Array, b: Array, weights: Array, levels: Array) -> Array:
    """Newton, kept inside a shrinking bracket."""
    z: Array = scipy.special.logit(np.clip((weights * (a / (a + b))).sum(1), TAIL_MASS, 1.0 - TAIL_MASS))
    low, high = np.full(len(z), -LOGIT_LIMIT), np.full(len(z), LOGIT_LIMIT)
    active = np.arange(len(z))
    for _ in range(200):
        w, at = weights[active], z[active]
        first, second = (part[active] if part.ndim == 2 else part for part in (a, b))
        error = _cdf_direct(first, second, w, at) - levels[active]
        slope = (w * np.exp(_log_density(first, second, at))).sum(1)
        low[active] = np.where(error < 0.0, at, low[active])
        high[active] = np.where(error < 0.0, high[active], at)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = at - error / slope
        inside = (step > low[active]) & (step < high[active])
        new = np.where(inside, step, 0.5 * (low[active] + high[active]))
        settled = (error == 0.0) | (np.abs(new - at) <= 1e-14 * np.maximum(1.0, np.abs(at)))
        z[active] = np.where(error == 0.0, at, new)
        active = active[~settled]
        if not len(active):
            break
    return z
