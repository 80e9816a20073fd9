"""What moves a law with x: a centre for each row, and the odds that its labels are there, both made by guides.

The guides' predictions are averaged with weights that serve training rows best (out of sample); that mean divided by
the probability of presence is the centre. Presence has trees of its own; how far their log odds are to be trusted is
settled by one slope (Platt, 1999).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit, softmax, xlogy
from torch import Tensor

from snefy_ldl._internal.rows import take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.learners.storage import pack_learner, unpack_learner
from snefy_ldl.learners.trees import TreesLDL

#: The mean that a centre is made of is lifted to this part of an even share.
LOWEST_MEAN = 1e-4
#: A centre is the mean divided by the probability of presence, or by this where that is smaller.
LOWEST_PRESENCE = 0.01
#: How far the trees' odds of presence may be stretched.
LARGEST_SLOPE = 2.0
#: Weights of guides that are tried: multiples of one part in this many.
WEIGHT_STEPS = 10


@dataclass(frozen=True)
class Moves:
    """Each row's own centre, and shift of the log odds of presence.

    Args:
        log_centre: ``log c(x)`` (N, L).
        shift: ``b(x)`` (N, L); None where every label is always there.
    """

    log_centre: Array
    shift: Array | None

    def take(self, rows: Any) -> Moves:
        """The same of some rows."""
        return Moves(self.log_centre[rows], None if self.shift is None else self.shift[rows])

    @classmethod
    def joined(cls, parts: Sequence[Moves]) -> Moves:
        """The moves of the rows of several, one below the other."""
        shifts = [part.shift for part in parts if part.shift is not None]
        return cls(np.concatenate([part.log_centre for part in parts]), np.concatenate(shifts) if shifts else None)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Both as tensors on a device, as a network's ``forward`` takes them."""
        shift = None if self.shift is None else torch.as_tensor(self.shift, device=device)
        return torch.as_tensor(self.log_centre, device=device), shift


@dataclass(frozen=True)
class Mover:
    """From guides' predictions to moves.

    Args:
        weights: of the guides in the mean (G,).
        base: log odds of presence in the training rows (L,); None where every label is always there.
        slope: by which the trees' departure from that is multiplied.
        trees: predict presence: shares of 2 L labels, present and absent each with a part of 1/L.
        log_centre: of the shares that the guides learnt (L,), where those were divided by one; else None.
    """

    weights: Array
    base: Array | None = None
    slope: float = 0.0
    trees: TreesLDL | None = None
    log_centre: Array | None = None

    def moves(self, seen: Array, X: Any) -> Moves:
        """Moves of new rows.

        Args:
            seen: centred logs of the guides' predictions (N, G L).
            X: features (N, d).

        Returns:
            Of every row.
        """
        chance = None if self.trees is None else _chances(self.trees.predict(X))
        return self._moves(seen, chance)

    def _moves(self, seen: Array, chance: Array | None) -> Moves:
        mean = mixed_mean(seen, self.weights)
        offset = 0.0 if self.log_centre is None else self.log_centre
        if self.base is None or chance is None:
            return Moves(np.log(mean) + offset, None)
        shift = self.slope * departure(chance, self.base)
        presence = np.maximum(expit(self.base + shift), LOWEST_PRESENCE)
        return Moves(np.log(mean / presence) + offset, shift)


def fit_mover(
    seen: Array,
    X: Any,
    D: Array,
    rows: Index,
    n_trees: int | None,
    most_rows: int,
    seed: int,
    log_centre: Array | None = None,
) -> tuple[Mover, Moves]:
    """Fit what moves a law to some rows, and the moves of every row without having seen its label.

    Args:
        seen: centred logs of the guides' predictions of all rows (N, G L), out of sample.
        X: features of all rows.
        D: label distributions of all rows (N, L), as the guides learnt them.
        rows: the rows that may be seen.
        n_trees: that predict presence; None where every label is taken to be there.
        most_rows: the trees see a sample of this size at most.
        seed: of that sample and of the trees.
        log_centre: logarithm of what the rows' own shares were divided by (L,); None for ones.

    Returns:
        What serves new rows, and the moves of these.
    """
    weights = best_weights(seen[rows], D[rows])
    if n_trees is None:
        mover = Mover(weights, log_centre=log_centre)
        return mover, mover.moves(seen, X)
    there = (D > 0.0).astype(np.float64)
    frequency = (there[rows].sum(0) + 0.5) / (len(rows) + 1.0)
    base = logit(frequency)
    random = np.random.default_rng(seed)
    used = rows if len(rows) <= most_rows else np.sort(random.choice(rows, most_rows, replace=False))
    both = np.hstack([there, 1.0 - there]) / D.shape[1]
    trees = TreesLDL(n_trees=n_trees, random_state=seed % 2**31).fit(take_rows(X, used), both[used])
    chance = _chances(trees.predict(X))
    out = _chances(trees.out_of_bag_)
    chance[used] = np.where(np.isnan(out), frequency, out)
    trees = copy.copy(trees)
    del trees.out_of_bag_
    gap = departure(chance[rows], base)
    sign = np.where(there[rows] > 0, -1.0, 1.0)
    slope = minimize_scalar(
        lambda by: float(np.logaddexp(0.0, sign * (base + by * gap)).mean()), bounds=(0.0, LARGEST_SLOPE)
    ).x
    mover = Mover(weights, base, float(slope), trees, log_centre)
    return mover, mover._moves(seen, chance)


def best_weights(seen: Array, D: Array) -> Array:
    """Weights of the guides (G,) whose mean has the smallest KL divergence from the rows' shares.

    Args:
        seen: centred logs of their predictions (N, G L).
        D: label distributions (N, L).

    Returns:
        They sum to one; of more than three guides the best alone counts.

    Example:
        >>> best_weights(np.log([[0.2, 0.8, 0.6, 0.4]]), np.array([[0.4, 0.6]]))
        array([0.5, 0.5])
    """
    n_guides = seen.shape[1] // D.shape[1]
    steps = WEIGHT_STEPS if n_guides <= 3 else 1
    grid = np.array([c for c in product(range(steps + 1), repeat=n_guides) if sum(c) == steps]) / steps
    losses = [-float(xlogy(D, mixed_mean(seen, weights)).sum()) for weights in grid]
    best: Array = grid[int(np.argmin(losses))]
    return best


def mixed_mean(seen: Array, weights: Array) -> Array:
    """The guides' weighted mean (N, L), lifted a little above zero, from centred logs of their predictions."""
    shares = softmax(seen.reshape(len(seen), len(weights), -1), axis=-1)
    mean = np.maximum(np.einsum("g,ngl->nl", weights, shares), LOWEST_MEAN / shares.shape[-1])
    closed: Array = mean / mean.sum(1, keepdims=True)
    return closed


def departure(chance: Array, base: Array) -> Array:
    """Log odds of presence (N, L), chances near 0 and 1 held back, less those of the training rows."""
    frequency = expit(base)
    held = np.clip(chance, 0.02 * frequency, 1.0 - 0.02 * (1.0 - frequency))
    gap: Array = logit(held) - base
    return gap


def _chances(shares: Array) -> Array:
    """Probabilities of presence (N, L) from the shares (N, 2 L) that the trees predict."""
    half = shares.shape[1] // 2
    chances: Array = shares[:, :half] * half
    return chances


def pack_mover(mover: Mover, arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """What moves a law as plain JSON values, its trees' arrays put beside others.

    Args:
        mover: to be written.
        arrays: where its arrays go.
        prefix: of their names.

    Returns:
        What :func:`unpack_mover` takes.
    """
    offset = {} if mover.log_centre is None else {"log_centre": mover.log_centre.tolist()}
    return {
        "weights": mover.weights.tolist(),
        "base": None if mover.base is None else mover.base.tolist(),
        "slope": mover.slope,
        "trees": None if mover.trees is None else pack_learner(mover.trees, arrays, prefix),
        **offset,
    }


def unpack_mover(description: dict[str, Any], arrays: dict[str, Any]) -> Mover:
    """The mover that :func:`pack_mover` described.

    Args:
        description: as it was.
        arrays: all arrays of the file.

    Returns:
        The mover.
    """
    trees, log_centre = description["trees"], description.get("log_centre")
    return Mover(
        np.array(description["weights"], dtype=np.float64),
        None if description["base"] is None else np.array(description["base"], dtype=np.float64),
        float(description["slope"]),
        None if trees is None else unpack_learner(trees, arrays),
        None if log_centre is None else np.array(log_centre, dtype=np.float64),
    )
