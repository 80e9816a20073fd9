"""The Rosenblatt map of a law with atoms: presences first, then the shares of the labels that are there.

Label r is absent with chance ``q_r = P(r absent | presences of labels 1 … r-1)``. Its coordinate lies in the band
``[0, q_r)`` if it is absent and in ``[q_r, 1]`` if not. Where in the band: an absent label's place is drawn, and for
present ones the Rosenblatt map of the shares given the support S gives |S|-1 numbers v, one for each but the last:

    u_r = q_r · fill   (absent),       u_r = q_r + (1 - q_r) v'_r   (present).

The last label L has no coordinate; its presence, of chance ``π`` given all others', goes into that of z, the last label
that is there among the first L-1: ``v'_z = π v_z`` if L is there, else (z is then the last) ``v'_z = π + (1-π) fill``.

Why the u are independent uniforms: given S the v are; so given the presences of labels 1 … L-1 all the v' and fills
are, because v'_z is uniform on [0, π) with chance π and on [π, 1] else. And a band of chance b, drawn with that chance
given the labels before, with a uniform place inside, makes a uniform that does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.special

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl._types import Array, Index, Mask
from snefy_ldl.distributions.rosenblatt import to_shares, to_uniforms
from snefy_ldl.special.tolerances import SMALLEST_DENSITY_SHARE, TAIL_MASS

__all__ = ["PresenceSteps", "to_shares_with_zeros", "to_uniforms_with_zeros"]

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
        """Weights (b, P) once it is known whether a label is there.

        Where the presences seen so far cannot be, nothing follows from them, and the positive part stands in.

        Args:
            label: its number.
            weights: of the components (b, P), given the labels before.
            some: whether a label before was there (b,).
            there: whether this one is (b,).
        """
        terms = weights * self._chances[there.astype(np.intp), some.astype(np.intp), label]
        # a step may be as unlikely as e^-500: of the next products nothing would be left
        size = np.abs(terms).max(axis=1, keepdims=True)
        terms = np.where(size > 0.0, terms / np.where(size > 0.0, size, 1.0), weights)
        total, positive = terms.sum(1, keepdims=True), np.maximum(terms, 0.0)
        terms = np.where(total > SMALLEST_DENSITY_SHARE * positive.sum(1, keepdims=True), terms, positive)
        answer: Array = terms / terms.sum(1, keepdims=True)
        return answer


def to_uniforms_with_zeros(
    alpha: Array, steps: PresenceSteps, weights_of: WeightsOf, logs: Array, fill: Array
) -> Array:
    """Shares with exact zeros to independent uniforms; see the module.

    Args:
        alpha: concentrations (P, L).
        steps: the components' presences.
        weights_of: weights of some points.
        logs: log shares (T, L), of which those of absent labels are -inf.
        fill: places (T, L) in [0, 1): of absent labels, and in the last column that of an absent last label.

    Returns:
        (T, L-1), in [0, 1].

    Example:
        >>> steps, law = PresenceSteps(np.zeros((1, 2))), lambda points: np.ones((len(points), 1))
        >>> logs, fill = np.log([[0.25, 0.75]]), np.zeros((1, 2))
        >>> to_uniforms_with_zeros(np.ones((1, 2)), steps, law, logs, fill).round(4)  # 1/3 + 2/3 · 1/2 · 1/4
        array([[0.4167]])
    """
    there, n_labels = ~np.isneginf(logs), alpha.shape[1]
    out = np.empty((len(logs), n_labels - 1))
    for block in _blocks(len(logs), len(alpha)):
        present, filled = there[block], fill[block]
        walk = _Walk(steps, weights_of(block))
        for r in range(n_labels):
            walk.step(present[:, r])
        places = np.zeros((len(block), n_labels))
        for rows, labels in _supports(present):
            if len(labels) > 1:
                part = logs[np.ix_(block[rows], labels)]
                places[np.ix_(rows, labels[:-1])] = to_uniforms(alpha[:, labels], walk.law_of(rows), part)
        # the last label's presence goes into the place of the last one before it that is there
        rows, z = np.arange(len(block)), _last_present(present)
        absent, pi = walk.absent[-1], walk.present[-1]
        inside = _below(pi * places[rows, z], pi)
        places[rows, z] = np.where(present[:, -1], inside, pi + absent * filled[:, -1])
        for r in range(n_labels - 1):
            low = _below(walk.absent[r] * filled[:, r], walk.absent[r])
            high = walk.absent[r] + walk.present[r] * places[:, r]
            out[block, r] = np.where(present[:, r], high, low)
    return np.clip(out, 0.0, 1.0)


def to_shares_with_zeros(alpha: Array, steps: PresenceSteps, weights_of: WeightsOf, uniforms: Array) -> Array:
    """The inverse of :func:`to_uniforms_with_zeros`; it needs no fill.

    Args:
        alpha: concentrations (P, L).
        steps: the components' presences.
        weights_of: weights of some points.
        uniforms: (T, L-1), in [0, 1]; taken for ``TAIL_MASS`` off where closer to an end than that.

    Returns:
        Log shares (T, L); -inf for labels that are absent.

    Example:
        >>> steps, law = PresenceSteps(np.zeros((1, 2))), lambda points: np.ones((len(points), 1))
        >>> np.exp(to_shares_with_zeros(np.ones((1, 2)), steps, law, np.array([[1 / 3 + 1 / 12], [0.2]]))).round(4)
        array([[0.25, 0.75],
               [0.  , 1.  ]])
    """
    n_labels, uniforms = alpha.shape[1], np.clip(uniforms, TAIL_MASS, 1.0 - TAIL_MASS)
    logs = np.full((len(uniforms), n_labels), -np.inf)
    for block in _blocks(len(uniforms), len(alpha)):
        walk = _Walk(steps, weights_of(block))
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
            part = np.zeros((len(group), 1))
            if len(labels) > 1:
                part = to_shares(alpha[:, labels], walk.law_of(group), places[np.ix_(group, labels[:-1])])
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

    def law_of(self, rows: Index) -> Callable[[Index], tuple[Array, None]]:
        """Weights of some of the rows, as the Rosenblatt map of the shares asks for them."""
        part = self.weights[rows]
        return lambda numbers: (part[numbers], None)


def _below(values: Array, end: Array) -> Array:
    """Values that rounding may have brought to the end of their band, strictly below it."""
    answer: Array = np.minimum(values, np.nextafter(end, 0.0))
    return answer


def _part(values: Array, whole: Array) -> Array:
    """Values as parts of a band between 0 and 1; one half where the band is empty."""
    there = whole > 0.0
    answer: Array = np.where(there, np.clip(values / np.where(there, whole, 1.0), 0.0, 1.0), 0.5)
    return answer


def _blocks(n_points: int, n_components: int) -> Iterator[Index]:
    step = max(1, CHUNK_ELEMENTS // (4 * n_components))
    for start in range(0, n_points, step):
        yield np.arange(start, min(start + step, n_points))


def _supports(there: Mask) -> Iterator[tuple[Index, Index]]:
    """Rows with the same support, and its labels."""
    patterns, which = np.unique(there, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(which.reshape(-1), minlength=len(patterns)))
    for pattern, rows in zip(patterns, np.split(order, ends[:-1])):
        yield rows, np.flatnonzero(pattern)


def _last_present(there: Mask) -> Index:
    """The last label that is there among the first L-1 (b,); L-2 where none is."""
    last: Index = there.shape[1] - 2 - np.argmax(there[:, -2::-1], axis=1)
    return last
