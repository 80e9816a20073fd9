"""Draws given single votes of known annotators, points for few votes, and the value of one more vote.

A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.special import softmax

from snefy_ldl._internal.dists import draw_shares
from snefy_ldl._internal.types import Array, Index, Mask

#: Draws per item given votes of known annotators.
POSTERIOR_DRAWS = 2048
#: Rows of an item's table of (annotators x labels) that are held at a time while votes are given out.
PAIR_ROWS = 512


def posterior_draws(dist: Any, item: Index, factors: Array, totals: Any = None) -> tuple[Array, Array]:
    """Draws of each item's label distribution, with weights by votes of known annotators.

    Items with many votes get draws of the distribution given half of them, so that few are wasted.

    Args:
        dist: of N items.
        item: which item each vote is on (V,).
        factors: column of the annotator's confusion matrix for each vote (V, L).
        totals: sums of its columns, if they are not one (V, L): a vote has the probability ``factors·ℓ / totals·ℓ``.

    Returns:
        Draws (N, S, L) and weights (N, S) that sum to one in each row.
    """
    soft = np.zeros((len(dist), dist.n_labels))
    np.add.at(soft, item, factors / factors.sum(1, keepdims=True))
    tilt = np.floor(0.5 * soft)
    draws = draw_shares(dist, POSTERIOR_DRAWS, 0, tilt if tilt.any() else None)
    logs = -np.einsum("nsk,nk->ns", np.log(np.maximum(draws, 1e-300)), tilt)
    for row, column, total in zip(item, factors, np.ones_like(factors) if totals is None else totals):
        logs[row] += np.log(np.maximum(draws[row] @ column, 1e-300) / (draws[row] @ total))
    return draws, softmax(logs, axis=1)


def weighted_quantiles(values: Array, weights: Array, levels: Array) -> Array:
    """Quantiles of weighted draws.

    Args:
        values: (N, S, L).
        weights: (N, S), summing to one.
        levels: (A,).

    Returns:
        (N, L, A).

    Example:
        >>> weighted_quantiles(np.array([[[0.1], [0.3], [0.2]]]), np.array([[0.5, 0.25, 0.25]]), np.array([0.4, 0.9]))
        array([[[0.1, 0.3]]])
    """
    order = np.argsort(values, axis=1)
    below = np.cumsum(np.take_along_axis(weights[:, :, None], order, 1), 1)  # (N, S, L)
    place = np.stack([(below < level - 1e-9).sum(1) for level in levels], -1).clip(max=values.shape[1] - 1)  # (N, L, A)
    return np.take_along_axis(np.take_along_axis(values, order, 1), place.transpose(0, 2, 1), 1).transpose(0, 2, 1)


def best_point(draws: Array, point: str, votes: int) -> Array:
    """The prediction with the smallest expected distance from observed shares of so many votes.

    Args:
        draws: of the shares (S, N, L).
        point: "manhattan": quantiles of one level, near 1/2, at which they sum to one; "wasserstein": medians of the
            cumulative shares; "error_rate": all on the most probable label.
        votes: in an observed share.

    Returns:
        (N, L), rows that sum to one.

    Example:
        >>> rare = np.tile([0.1, 0.9], (500, 1, 1))
        >>> best_point(rare, "manhattan", 2)
        array([[0., 1.]])
    """
    if point == "error_rate":
        return np.asarray(np.eye(draws.shape[2])[draws.mean(0).argmax(1)])
    shares = np.maximum(draws, 0.0) / np.maximum(draws, 0.0).sum(-1, keepdims=True)
    seen = np.random.default_rng(0).multinomial(votes, shares) / votes
    if point == "wasserstein":
        below = np.median(seen.cumsum(-1)[..., :-1], 0)
        return np.diff(below, axis=1, prepend=0.0, append=1.0)
    ordered = np.sort(seen, 0)
    totals = ordered.sum(-1)  # (S, N), growing with the level
    upper = np.clip((totals < 1.0).sum(0), 1, len(seen) - 1)
    rows = np.arange(seen.shape[1])
    gap = totals[upper, rows] - totals[upper - 1, rows]
    step = np.clip((1.0 - totals[upper - 1, rows]) / np.where(gap > 0, gap, 1.0), 0.0, 1.0)[:, None]
    best = (1.0 - step) * ordered[upper - 1, rows] + step * ordered[upper, rows]
    return np.asarray(best / best.sum(1, keepdims=True))


# -- whom to ask -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairMoments:
    """Moments of items that may get further votes.

    Args:
        mean: of latent labels ℓ (N, L).
        covariance: of ℓ (N, L, L).
        cross: covariance of what is to become certain with ℓ (N, L, L); for the majority ``E[1(label r leads) ℓ_k]``.
        error: expected error of what is to become certain (N,).
        leads: how probably each label leads (N, L) where the majority is asked for, or zeros.
    """

    mean: Array
    covariance: Array
    cross: Array
    error: Array
    leads: Array


def pair_moments(draws: Array, weights: Array, shares: Array, majority: bool) -> tuple[Array, ...]:
    """The parts of :class:`PairMoments` by weighted draws of ℓ (N, S, L) and of the shares in question (N, S, L)."""
    mean = np.einsum("ns,nsk->nk", weights, draws)
    apart = draws - mean[:, None]
    covariance = np.einsum("ns,nsk,nsl->nkl", weights, apart, apart)
    if majority:
        ahead = np.eye(shares.shape[2])[shares.argmax(2)]
        leads = np.einsum("ns,nsr->nr", weights, ahead)
        return mean, covariance, np.einsum("ns,nsr,nsk->nrk", weights, ahead, draws), 1.0 - leads.max(1), leads
    moved = shares - np.einsum("ns,nsk->nk", weights, shares)[:, None]
    error = np.einsum("ns,nsk->n", weights, np.square(moved))
    return mean, covariance, np.einsum("ns,nsr,nsk->nrk", weights, moved, apart), error, np.zeros_like(mean)


def pair_gains(moments: PairMoments, matrices: Array) -> Array:
    """How much a vote of each annotator on each item lowers the expected error.

    Args:
        moments: of N items.
        matrices: confusion matrices (A, L, L).

    Returns:
        (N, A).

    Example:
        >>> wide = np.array([[[0.05, -0.05], [-0.05, 0.05]]])
        >>> items = PairMoments(np.array([[0.5, 0.5]]), wide, wide, np.array([0.1]), np.zeros((1, 2)))
        >>> pair_gains(items, np.array([np.eye(2), np.full((2, 2), 0.5)])).round(3)
        array([[0.02, 0.  ]])
    """
    columns = matrices.transpose(1, 0, 2).reshape(matrices.shape[1], -1)  # (L, A L)
    parts = []
    for start in range(0, len(moments.mean), PAIR_ROWS):
        rows = slice(start, start + PAIR_ROWS)
        moved = moments.cross[rows] @ columns  # (b, L, A L)
        lead = moments.leads[rows].max(1)
        if lead.any():
            gain = moved.max(1).reshape(len(moved), len(matrices), -1).sum(-1) - lead[:, None]
        else:
            chance = np.maximum(moments.mean[rows] @ columns, 1e-12)
            gain = (np.square(moved).sum(1) / chance).reshape(len(moved), len(matrices), -1).sum(-1)
        parts.append(gain)
    return np.concatenate(parts)


def best_pairs(
    moments: PairMoments,
    matrices: Array,
    cost: Array,
    free: Mask,
    n: int,
    per_item: int,
    per_annotator: int,
    target: float,
) -> tuple[Index, Index, Array]:
    """The n most valuable pairs, one after the other; a vote lowers what further ones on its item are worth.

    Args:
        moments: of N items; those of items with votes chosen here are changed.
        matrices: confusion matrices (A, L, L).
        cost: of a vote of each annotator (A,).
        free: who may be asked about what (N, A).
        n: how many.
        per_item: votes per item at most.
        per_annotator: votes per annotator at most.
        target: expected error at which an item needs no more votes.

    Returns:
        Items, annotators, and gains per cost (n,).
    """
    gains = np.where(free & (moments.error > target)[:, None], pair_gains(moments, matrices) / cost, -1.0)
    chosen: list[tuple[int, int, float]] = []
    items, people = np.zeros(gains.shape[0], dtype=int), np.zeros(gains.shape[1], dtype=int)
    best = gains.max(1)
    while len(chosen) < n and best.max() > 0:
        row = int(best.argmax())
        a = int(gains[row].argmax())
        chosen.append((row, a, gains[row, a]))
        items[row], people[a] = items[row] + 1, people[a] + 1
        moments.error[row] -= gains[row, a] * cost[a]
        gains[row, a] = -1.0
        if items[row] == per_item or moments.error[row] <= target:
            gains[row] = -1.0
        else:
            chance = np.maximum(moments.mean[row] @ matrices[a], 1e-12)
            seen, moved = moments.covariance[row] @ matrices[a], moments.cross[row] @ matrices[a]
            moments.cross[row] -= (moved / chance) @ seen.T
            moments.covariance[row] -= (seen / chance) @ seen.T
            one = PairMoments(*(getattr(moments, part.name)[[row]] for part in fields(moments)))
            gains[row] = np.where(gains[row] > 0, pair_gains(one, matrices)[0] / cost, -1.0)
        if people[a] == per_annotator:
            gains[:, a] = -1.0
            best = gains.max(1)
        best[row] = gains[row].max()
    rows, whom, values = zip(*chosen) if chosen else ((), (), ())
    return np.array(rows, dtype=np.intp), np.array(whom, dtype=np.intp), np.array(values)
