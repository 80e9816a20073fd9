"""The Rosenblatt map of a signed mixture of Dirichlets: shares to independent uniforms and back, without rejection.

Break a stick: ``t_k = ℓ_k / (ℓ_k + … + ℓ_L)``. Under Dirichlet(α) the pieces are independent Betas,
``t_k ~ Beta(α_k, α_{k+1} + … + α_L)``. In a mixture, the pieces seen so far reweight the components by their densities,
so that the conditional law of the next piece is again a signed mixture of Betas:

    u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1}) = Σ_p w_p I_{t_k}(a_pk, b_pk),   w_p ∝ c_p Π_{j<k} Beta(t_j; a_pj, b_pj).

Everything runs on the scale ``z = logit t``, where no digit is lost near 0 or 1.

**Atoms.** Presences come first, then the shares of the labels that are there.

Label r is absent with chance ``q_r = P(r absent | presences of labels 1 … r-1)``. Its coordinate lies in the band
``[0, q_r)`` if it is absent and in ``[q_r, 1]`` if not. Where in the band: an absent label's place is drawn, and for
present ones the Rosenblatt map of the shares given the support S gives |S|-1 numbers v, one for each but the last:

    u_r = q_r · fill   (absent),       u_r = q_r + (1 - q_r) v'_r   (present).

The last label L has no coordinate; its presence, of chance ``π`` given all others', goes into that of z, the last label
that is there among the first L-1: ``v'_z = π v_z`` if L is there, else (z is then the last) ``v'_z = π + (1-π) fill``.

Why the u are independent uniforms: given S the v are; so given the presences of labels 1 … L-1 all the v' and fills
are, because v'_z is uniform on [0, π) with chance π and on [π, 1] else. And a band of chance b, drawn with that chance
given the labels before, with a uniform place inside, makes a uniform that does not depend on them.

**Components with centres of their own** (after votes) break the stick from the other end:
``t_k = ℓ_k / (ℓ_k + … + ℓ_L)`` for k = L-1, …, 1. Given the proportions among labels k+1, …, L, these are one gamma
with concentration ``α_{k+1} + … + α_L`` and the harmonic mean of their centres, weighted by the proportions, as its
scale; so t_k has the law of a Beta whose odds are multiplied by a ratio of centres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Size, Tensor

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, DIRECT_STICKS
from snefy_ldl._internal.special import newton
from snefy_ldl._internal.tolerances import LOGIT_LIMIT, SHARE_SUM_ROUNDING, SMALLEST_DENSITY_SHARE, TAIL_MASS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import as_float
from snefy_ldl.distributions.parts import common_shape
from snefy_ldl.distributions.tables import beta_table, direct_cdf, direct_quantile, log_beta_density, used_components
from snefy_ldl.errors import InputError

#: Weights of some rows (b, P), and their offsets (b, L) or None, by row numbers.
RowsOf = Callable[[Index], tuple[Array, Array | None]]


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

    def to_uniforms(self, logs: Array, fill: Array | None = None) -> Array:
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


#: Rows whose ``Σ|w|`` is larger than this need more digits than a table has.
STEADY = 1e3


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


# -- atoms -------------------------------------------------------------------------------------------------------------

#: Weights of some points (b, P), by their numbers.
WeightsOf = Callable[[Index], Array]


class PresenceSteps:
    """Chances that labels are there, one after the other, under components that never leave all labels out.

    While no label was there yet, one must still come: a component's chances then look ahead.

    Args:
        log_odds: log odds of every component and label (P, L).

    Example:
        Two labels with odds one: the supports {0}, {1} and {0, 1} are equally likely.

        >>> steps = PresenceSteps(np.zeros((1, 2)))
        >>> absent, present = steps.split(0, np.ones((1, 1)), np.array([False]))
        >>> absent.round(3), present.round(3)
        (array([0.333]), array([0.667]))
    """

    def __init__(self, log_odds: Array) -> None:
        soft = np.logaddexp(0.0, log_odds).T  # (L, P)
        tail = np.zeros((len(soft) + 1, len(log_odds)))
        tail[:-1] = np.cumsum(soft[::-1], axis=0)[::-1]  # log of the product of 1 + o over the labels to come
        with np.errstate(divide="ignore"):  # behind the last label nothing comes: log 0
            some_come = tail + np.log(-np.expm1(-tail))
        free = np.stack([scipy.special.expit(-log_odds.T), scipy.special.expit(log_odds.T)])
        first = np.exp(np.stack([some_come[1:], log_odds.T + tail[1:]]) - some_come[:-1])
        self._chances = np.stack([first, free], 1)  # absent or present, none or some before, label, component

    def split(self, label: int, weights: Array, some: Mask) -> tuple[Array, Array]:
        """Chance of a label's absence and of its presence, each (b,).

        Args:
            label: its number.
            weights: of the components (b, P), given the labels before.
            some: whether a label before was there (b,).
        """
        masses = np.clip(weights @ self._chances[:, :, label].reshape(4, -1).T, 0.0, None)  # (b, 4)
        rows = np.arange(len(some)), some.astype(np.intp)
        absent, present = masses[:, :2][rows], masses[:, 2:][rows]
        return absent / (absent + present), present / (absent + present)

    def seen(self, label: int, weights: Array, some: Mask, there: Mask) -> Array:
        """Weights (b, P) once it is known whether a label is ``there`` (b,); other arguments as in :meth:`split`."""
        terms = weights * self._chances[there.astype(np.intp), some.astype(np.intp), label]
        # a step may be as unlikely as e^-500: of the next products nothing would be left
        size = np.abs(terms).max(axis=1, keepdims=True)
        terms = np.where(size > 0.0, terms / np.where(size > 0.0, size, 1.0), weights)
        return _closed(terms)


class PresenceMap:
    """Shares with exact zeros and uniforms; see the module.

    Args:
        alpha: concentrations (P, L).
        log_odds: of presence (P, L).
        weights_of: weights of some points.
        log_centre: of the components (P, L), where they have centres of their own.

    Example:
        >>> one = PresenceMap(np.ones((1, 2)), np.zeros((1, 2)), lambda points: np.ones((len(points), 1)))
        >>> one.to_uniforms(np.log([[0.25, 0.75]]), np.zeros((1, 2))).round(4)  # 1/3 + 2/3 · 1/2 · 1/4
        array([[0.4167]])
        >>> np.exp(one.to_shares(np.array([[1 / 3 + 1 / 12], [0.2]]))).round(4)
        array([[0.25, 0.75],
               [0.  , 1.  ]])
    """

    def __init__(self, alpha: Array, log_odds: Array, weights_of: WeightsOf, log_centre: Array | None = None) -> None:
        self.alpha, self.weights_of, self.log_centre = alpha, weights_of, log_centre
        self.steps = PresenceSteps(log_odds)

    def _inside(self, weights: Array, labels: Index) -> StickMap | RatioMap:
        """The map of the shares among some labels that are there, for points with these weights (b, P)."""
        if self.log_centre is None:
            return StickMap(self.alpha[:, labels], lambda numbers: (weights[numbers], None))
        return RatioMap(weights, self.alpha[:, labels], self.log_centre[:, labels])

    def to_uniforms(self, logs: Array, fill: Array | None) -> Array:
        """Log shares (T, L), -inf where labels are absent, to (T, L-1), in [0, 1].

        ``fill`` (T, L) in [0, 1) are the places of absent labels; in the last column that of an absent last label.
        """
        assert fill is not None
        there, n_labels = ~np.isneginf(logs), self.alpha.shape[1]
        out = np.empty((len(logs), n_labels - 1))
        for block in _blocks(len(logs), len(self.alpha)):
            present, filled = there[block], fill[block]
            walk = _Walk(self.steps, self.weights_of(block))
            for r in range(n_labels):
                walk.step(present[:, r])
            places = np.zeros((len(block), n_labels))
            for rows, labels in _supports(present):
                if len(labels) > 1:
                    inside = self._inside(walk.weights[rows], labels)
                    places[np.ix_(rows, labels[:-1])] = inside.to_uniforms(logs[np.ix_(block[rows], labels)])
            # the last label's presence goes into the place of the last one before it that is there
            rows, z = np.arange(len(block)), _last_present(present)
            absent, pi = walk.absent[-1], walk.present[-1]
            last = _below(pi * places[rows, z], pi)
            places[rows, z] = np.where(present[:, -1], last, pi + absent * filled[:, -1])
            for r in range(n_labels - 1):
                low = _below(walk.absent[r] * filled[:, r], walk.absent[r])
                high = walk.absent[r] + walk.present[r] * places[:, r]
                out[block, r] = np.where(present[:, r], high, low)
        return np.clip(out, 0.0, 1.0)

    def to_shares(self, uniforms: Array) -> Array:
        """The inverse, which needs no fill: levels as in :meth:`StickMap.to_shares`."""
        n_labels, uniforms = self.alpha.shape[1], np.clip(uniforms, TAIL_MASS, 1.0 - TAIL_MASS)
        logs = np.full((len(uniforms), n_labels), -np.inf)
        for block in _blocks(len(uniforms), len(self.alpha)):
            walk = _Walk(self.steps, self.weights_of(block))
            there = np.zeros((len(block), n_labels), dtype=np.bool_)
            places = np.zeros((len(block), n_labels))
            for r in range(n_labels - 1):
                absent, present = walk.chances()
                there[:, r] = (uniforms[block, r] >= absent) & (present > 0.0)
                places[:, r] = _part(uniforms[block, r] - absent, present)
                walk.step(there[:, r])
            rows, z, (absent, pi) = np.arange(len(block)), _last_present(there), walk.chances()
            there[:, -1] = (absent <= 0.0) | (places[rows, z] < pi)  # if no other is there, the last cannot be absent
            places[rows, z] = _part(places[rows, z], pi)
            walk.step(there[:, -1])
            for group, labels in _supports(there):
                part, levels = np.zeros((len(group), 1)), places[np.ix_(group, labels[:-1])]
                if len(labels) > 1:
                    part = self._inside(walk.weights[group], labels).to_shares(levels)
                logs[np.ix_(block[group], labels)] = part
        return logs


class _Walk:
    """The components' weights of some points, as the presences of one label after the other become known."""

    def __init__(self, steps: PresenceSteps, weights: Array) -> None:
        self._steps, self.weights = steps, weights
        self._some, self._label = np.zeros(len(weights), dtype=np.bool_), 0
        #: chances of absence and presence, given the labels before; one (b,) a label
        self.absent: list[Array] = []
        self.present: list[Array] = []

    def chances(self) -> tuple[Array, Array]:
        """Chance of the next label's absence and of its presence, each (b,)."""
        if len(self.absent) == self._label:
            absent, present = self._steps.split(self._label, self.weights, self._some)
            self.absent.append(absent)
            self.present.append(present)
        return self.absent[-1], self.present[-1]

    def step(self, there: Mask) -> None:
        """The next label's presence becomes known."""
        self.chances()
        self.weights = self._steps.seen(self._label, self.weights, self._some, there)
        self._some |= there
        self._label += 1


def _below(values: Array, end: Array) -> Array:
    """Values that rounding may have brought to the end of their band, strictly below it."""
    return np.minimum(values, np.nextafter(end, 0.0))


def _part(values: Array, whole: Array) -> Array:
    """Values as parts of a band between 0 and 1; one half where the band is empty."""
    there = whole > 0.0
    return np.where(there, np.clip(values / np.where(there, whole, 1.0), 0.0, 1.0), 0.5)


def _supports(there: Mask) -> Iterator[tuple[Index, Index]]:
    """Rows with the same support, and its labels."""
    patterns, which = np.unique(there, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1), minlength=len(patterns)))
    for pattern, rows in zip(patterns, np.split(order, ends[:-1])):
        yield rows, np.flatnonzero(pattern)


def _last_present(there: Mask) -> Index:
    """The last label that is there among the first L-1 (b,); L-2 where none is."""
    return there.shape[1] - 2 - np.argmax(there[:, -2::-1], axis=1)


# -- centres of their own ----------------------------------------------------------------------------------------------


class _RatioChain:
    """Components of one row whose labels are joined one after the other, from the last to the first, at T points."""

    def __init__(self, weights: Array, alpha: Array, log_centre: Array, n_points: int) -> None:
        self._alpha, self._log_centre = alpha, log_centre
        with np.errstate(divide="ignore"):
            self._log_size = np.broadcast_to(np.log(np.abs(weights)), (n_points, weights.shape[-1])).copy()
        self._sign = np.sign(weights)
        self._total = alpha[:, -1].copy()  # (C,)
        self._scale = np.broadcast_to(log_centre[:, -1], self._log_size.shape).copy()  # log c of what is joined (T, C)

    def weights(self) -> Array:
        """``w`` (T, C), rows summing to one."""
        return _closed(self._sign * np.exp(self._log_size - self._log_size.max(axis=1, keepdims=True)))

    def _moved(self, k: int, z: Array, rows: Index | slice) -> Array:
        """Logits of the Betas behind ``z = log ℓ_k - log(ℓ_{k+1} + … + ℓ_L)`` (T,): (T, C)."""
        return z[:, None] - self._log_centre[:, k] + self._scale[rows]

    def cdf(self, k: int, z: Array, weights: Array, rows: Index | slice = slice(None)) -> Array:
        moved = self._moved(k, z, rows)
        low = moved < 0.0  # work from the end that keeps its digits
        a, b = self._alpha[:, k], self._total
        near = scipy.special.expit(-np.abs(moved))
        tail = scipy.special.betainc(np.where(low, a, b), np.where(low, b, a), near)
        return np.clip((weights * np.where(low, tail, 1.0 - tail)).sum(1), 0.0, 1.0)

    def log_density(self, k: int, z: Array, rows: Index | slice = slice(None)) -> Array:
        moved = self._moved(k, z, rows)
        a, b = self._alpha[:, k], self._total
        log_p: Array = scipy.special.log_expit(moved) * a + scipy.special.log_expit(-moved) * b
        return log_p - scipy.special.betaln(a, b)

    def join(self, k: int, z: Array) -> None:
        """Label k joins the others, at these logits (T,)."""
        self._log_size += self.log_density(k, z)
        own, rest = scipy.special.log_expit(z)[:, None], scipy.special.log_expit(-z)[:, None]
        self._scale = -np.logaddexp(own - self._log_centre[:, k], rest - self._scale)
        self._total = self._total + self._alpha[:, k]

    def quantile(self, k: int, levels: Array) -> Array:
        """Logits at which the cdf reaches each point's level (T,): Newton, kept inside a shrinking bracket."""
        weights = self.weights()
        mean = np.log(self._alpha[:, k]) + self._log_centre[:, k] - np.log(self._total) - self._scale
        z = np.clip((np.abs(weights) * mean).sum(1) / np.abs(weights).sum(1), -LOGIT_LIMIT, LOGIT_LIMIT)
        limit = np.full(len(z), LOGIT_LIMIT)
        rounding = 1e-15 * np.abs(weights).sum(1)  # of the cdf; below it steps have no meaning

        def rising(z: Array, rows: Index) -> tuple[Array, Array]:
            slope = (weights[rows] * np.exp(self.log_density(k, z, rows))).sum(1)
            return self.cdf(k, z, weights[rows], rows), slope

        return newton(rising, levels, z, -limit, limit, rounding, 1e-13)


class RatioMap:
    """Shares and uniforms where components have centres of their own and all labels are there; see the module.

    Args:
        weights: of the components, the same for all points (C,) or each point's own (T, C).
        alpha: their concentrations (C, L).
        log_centre: their centres (C, L).

    Example:
        >>> one = RatioMap(np.ones(1), np.ones((1, 2)), np.zeros((1, 2)))
        >>> one.to_uniforms(np.log([[0.25, 0.75]])).round(12), np.exp(one.to_shares(np.array([[0.25]]))).round(12)
        (array([[0.25]]), array([[0.25, 0.75]]))
    """

    def __init__(self, weights: Array, alpha: Array, log_centre: Array) -> None:
        self.weights, self.alpha, self.log_centre = weights, alpha, log_centre

    def _chains(self, n_points: int) -> Iterator[tuple[Index, _RatioChain]]:
        for rows in _blocks(n_points, 4 * self.weights.shape[-1]):
            part = self.weights if self.weights.ndim == 1 else self.weights[rows]
            yield rows, _RatioChain(part, self.alpha, self.log_centre, len(rows))

    def to_uniforms(self, logs: Array, fill: Array | None = None) -> Array:
        """Log shares (T, L), finite, to (T, L-1), in [0, 1]."""
        out = np.empty((len(logs), self.alpha.shape[1] - 1))
        left = np.logaddexp.accumulate(logs[:, ::-1], axis=1)[:, ::-1]
        for rows, chain in self._chains(len(logs)):
            for k in range(self.alpha.shape[1] - 2, -1, -1):
                z = np.clip(logs[rows, k] - left[rows, k + 1], -LOGIT_LIMIT, LOGIT_LIMIT)
                out[rows, k] = chain.cdf(k, z, chain.weights())
                chain.join(k, z)
        return out

    def to_shares(self, uniforms: Array) -> Array:
        """The inverse: levels as in :meth:`StickMap.to_shares`."""
        levels = np.clip(uniforms, TAIL_MASS, 1.0 - TAIL_MASS)
        logs = np.zeros((len(levels), self.alpha.shape[1]))
        for rows, chain in self._chains(len(levels)):
            for k in range(self.alpha.shape[1] - 2, -1, -1):
                z = chain.quantile(k, levels[rows, k])
                chain.join(k, z)
                logs[rows, k + 1 :] += scipy.special.log_expit(-z)[:, None]
                logs[rows, k] = scipy.special.log_expit(z)
        return logs


def ratio_map(weights: Array, alpha: Array, log_centre: Array, log_odds: Array | None) -> RatioMap | PresenceMap:
    """The map of one row whose components (C,) have centres of their own, with log odds of presence (C, L) or none."""
    if log_odds is None:
        return RatioMap(weights, alpha, log_centre)
    return PresenceMap(alpha, log_odds, lambda numbers: np.repeat(weights[None], len(numbers), 0), log_centre)


# -- points ------------------------------------------------------------------------------------------------------------


def share_points(law: Any, value: Any) -> tuple[Tensor, Size]:
    """Shares (T, L) in float64, whose points fall to the law's rows in order, over and over; and their shape.

    Args:
        law: whose labels and batch they must fit.
        value: shares (..., *batch, L).

    Returns:
        The points, and the shape (..., *batch) that answers take.

    Raises:
        InputError: another shape, or shares that are not finite, negative, or do not sum to one.
    """
    points = _as_points(value, law.n_labels, law.device)
    flat = points.reshape(-1, law.n_labels)
    bad = ~((flat >= 0.0).all(-1) & ((flat.sum(-1) - 1.0).abs() <= SHARE_SUM_ROUNDING))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise InputError(f"row {row} is {flat[row].tolist()}: shares must be >= 0 and sum to one.")
    shape = _whole_shape(law, points.shape[:-1])
    return points.expand(*shape, law.n_labels).reshape(-1, law.n_labels), shape


def level_points(law: Any, uniforms: Any) -> tuple[Tensor, Size]:
    """Levels (T, L-1) in [0, 1], of (..., *batch, L-1), as :func:`share_points` does for shares; and their shape."""
    width = law.n_labels - 1
    points = _as_points(uniforms, width, law.device)
    if not bool(((points >= 0.0) & (points <= 1.0)).all()):
        raise InputError("uniform numbers must lie between 0 and 1.")
    shape = _whole_shape(law, points.shape[:-1])
    return points.expand(*shape, width).reshape(-1, width), shape


def _whole_shape(law: Any, shape: Size) -> Size:
    try:
        whole = common_shape(shape, law.batch_shape)
    except ValueError:
        whole = torch.Size()
    depth = len(law.batch_shape)
    if len(whole) < depth or (len(law) != 1 and whole[len(whole) - depth :] != law.batch_shape):
        raise InputError(
            f"points of shape {tuple(shape)} do not fit a batch of shape {tuple(law.batch_shape)}: give one for "
            "each row of the batch, or several blocks of as many."
        )
    return whole


def _as_points(value: Any, width: int, device: torch.device) -> Tensor:
    """Points as finite float64 numbers (..., width)."""
    table = torch.tensor(as_float(value, "value"), device=device)
    if table.dim() < 1 or table.shape[-1] != width:
        raise InputError(f"expected {width} columns; got shape {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise InputError("every number must be finite.")
    return table
