"""The likelihood of single votes of known annotators, moments given them, and the value of one more vote.

A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``: the likelihood of
an item's votes is a sum of closed forms for few votes, and an average over draws of ℓ for many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp, softmax

from snefy_ldl._internal.dists import draw_shares, rows_of, to_numpy
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions import SnefySimplex

#: Terms of an item's likelihood up to which it is summed exactly; above, draws stand in for the sum.
MOST_TERMS = 3000
#: Draws per item where there are more terms than that, and where a distribution is updated by votes of known
#: annotators.
LIKELIHOOD_DRAWS, POSTERIOR_DRAWS = 4096, 512
#: Rows of an item's table of (annotators x labels) that are held at a time while votes are given out.
PAIR_ROWS = 512


# -- the likelihood of an item's votes -------------------------------------------------------------------------------


def _compositions(total: int, parts: int) -> Index:
    """All vectors of whole numbers >= 0 (M, parts) that sum to the total, in lexicographic order."""
    if parts == 1:
        return np.array([[total]])
    blocks = [
        np.hstack([np.full((len(rest), 1), first), rest])
        for first in range(total + 1)
        for rest in (_compositions(total - first, parts - 1),)
    ]
    return np.vstack(blocks)


def expand_votes(factors: Array) -> tuple[Index, Array]:
    """The product ``Π_j (c_j · ℓ)`` as a sum of monomials: ``Σ_n e_n Π_k ℓ_k^{n_k}``.

    Args:
        factors: for each of b items the vectors c of its V votes (b, V, L).

    Returns:
        The exponents n (M, L), ``M = (V+L-1 over L-1)``, and the coefficients e (b, M).

    Example:
        >>> exponents, coefficients = expand_votes(np.array([[[0.9, 0.2], [0.9, 0.2]]]))
        >>> exponents.tolist(), coefficients.round(2).tolist()
        ([[0, 2], [1, 1], [2, 0]], [[0.04, 0.36, 0.81]])
    """
    n_items, n_votes, n_labels = factors.shape
    exponents, coefficients = _compositions(0, n_labels), np.ones((n_items, 1))
    for j in range(n_votes):
        larger = _compositions(j + 1, n_labels)
        where = {tuple(row): m for m, row in enumerate(larger.tolist())}
        grown = np.zeros((n_items, len(larger)))
        for k in range(n_labels):
            step = np.eye(n_labels, dtype=np.intp)[k]
            target = [where[tuple(row)] for row in (exponents + step).tolist()]
            grown[:, target] += coefficients * factors[:, j, k, None]
        exponents, coefficients = larger, grown
    return exponents, coefficients


def log_prob_annotated(dist: SnefySimplex, item: Index, factors: Array, random_state: Any = 0) -> Array:
    """Log probability of each item's votes, ``log ∫ p(ℓ|x) Π_j (c_j · ℓ) dℓ``; c is a column of a confusion matrix.

    Few votes are exact: the product is a sum of monomials (:func:`expand_votes`), and each has a closed form, that of
    vote counts. Where there are more than :data:`MOST_TERMS` of them, :data:`LIKELIHOOD_DRAWS` draws stand in.

    Args:
        dist: of N items.
        item: which item each vote is on (V,).
        factors: ``c`` of each vote (V, L).
        random_state: seed of the draws.

    Returns:
        (N,); 0 for items without a vote.

    Example:
        >>> import torch
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> log_prob_annotated(flat, np.array([0, 0]), np.eye(2)).round(4)  # E[ℓ_1 ℓ_2] = 1/6
        array([-1.7918])
    """
    answer, order = np.zeros(len(dist)), np.argsort(item, kind="stable")
    sizes = np.bincount(item, minlength=len(dist))
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == size)
        if gammaln(size + dist.n_labels) - gammaln(size + 1) - gammaln(dist.n_labels) > np.log(MOST_TERMS):
            for row in rows:
                chosen = factors[order[starts[row] : starts[row] + size]]
                draws = draw_shares(dist[[int(row)]], LIKELIHOOD_DRAWS, random_state)[0]
                logs = np.log(np.maximum(draws @ chosen.T, 1e-300)).sum(1)
                answer[row] = logsumexp(logs) - np.log(len(logs))
            continue
        votes = order[starts[rows][:, None] + np.arange(size)]  # (b, V)
        exponents, coefficients = expand_votes(factors[votes])
        coefficient = gammaln(size + 1.0) - gammaln(exponents + 1.0).sum(1)  # sequences of votes, not their numbers
        step = max(1, 20_000 // len(exponents))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            dists = rows_of(dist, np.repeat(part, len(exponents)))
            counts = np.tile(exponents.astype(np.float64), (len(part), 1))
            logs = to_numpy(dists.log_prob_counts(counts)).reshape(len(part), -1) - coefficient
            with np.errstate(divide="ignore"):
                answer[part] = logsumexp(logs + np.log(coefficients[start : start + step]), axis=1)
    return answer


def posterior_moments(dist: SnefySimplex, item: Index, factors: Array, random_state: Any = 0) -> tuple[Array, Array]:
    """Mean (N, L) and covariance (N, L, L) of each item's label distribution given votes of known annotators.

    By weighted draws; items with many votes get draws of the distribution given half of them, so that few are wasted.

    Args:
        dist: of N items.
        item: which item each vote is on (V,).
        factors: column of the annotator's confusion matrix for each vote (V, L).
        random_state: seed of the draws.

    Returns:
        Both moments.
    """
    n_rows, n_labels = len(dist), dist.n_labels
    soft = np.zeros((n_rows, n_labels))
    np.add.at(soft, item, factors / factors.sum(1, keepdims=True))
    tilt = np.floor(0.5 * soft)
    draws = draw_shares(dist, POSTERIOR_DRAWS, random_state, tilt if tilt.any() else None)
    logs = -np.einsum("nsk,nk->ns", np.log(np.maximum(draws, 1e-300)), tilt)
    np.add.at(logs, item, np.log(np.maximum(np.einsum("jsk,jk->js", draws[item], factors), 1e-300)))
    weights = softmax(logs, axis=1)
    mean = np.einsum("ns,nsk->nk", weights, draws)
    second = np.einsum("ns,nsk,nsl->nkl", weights, draws, draws)
    return mean, second - mean[:, :, None] * mean[:, None, :]


# -- whom to ask -----------------------------------------------------------------------------------------------------


def pair_gains(mean: Array, covariance: Array, matrices: Array) -> Array:
    """How much a vote of each annotator on each item lowers the expected squared error of the item's mean.

    Args:
        mean: of the items' label distributions (N, L).
        covariance: theirs (N, L, L).
        matrices: confusion matrices (A, L, L).

    Returns:
        (N, A).

    Example:
        >>> spread = np.array([[[0.05, -0.05], [-0.05, 0.05]]])
        >>> pair_gains(np.array([[0.5, 0.5]]), spread, np.array([np.eye(2), np.full((2, 2), 0.5)])).round(3)
        array([[0.02, 0.  ]])
    """
    columns = matrices.transpose(1, 0, 2).reshape(matrices.shape[1], -1)  # (L, A L)
    parts = []
    for start in range(0, len(mean), PAIR_ROWS):
        rows = slice(start, start + PAIR_ROWS)
        moved = np.square(covariance[rows] @ columns).sum(1)  # (b, A L)
        chance = np.maximum(mean[rows] @ columns, 1e-12)
        parts.append((moved / chance).reshape(len(moved), len(matrices), -1).sum(-1))
    return np.concatenate(parts)


def best_pairs(gains: Array, n: int, per_item: int, per_annotator: int | None) -> tuple[Index, Index, Array]:
    """The n largest gains (N, A) above zero, with at most so many per item and per annotator."""
    order = np.argsort(-gains, axis=None, kind="stable")
    rows: list[int] = []
    whom: list[int] = []
    values: list[float] = []
    items, people = np.zeros(gains.shape[0], dtype=int), np.zeros(gains.shape[1], dtype=int)
    for place in order:
        row, a = divmod(int(place), gains.shape[1])
        if gains[row, a] <= 0 or len(rows) == n:
            break
        if items[row] < per_item and (per_annotator is None or people[a] < per_annotator):
            items[row], people[a] = items[row] + 1, people[a] + 1
            rows.append(row)
            whom.append(a)
            values.append(gains[row, a])
    return np.array(rows, dtype=np.intp), np.array(whom, dtype=np.intp), np.array(values)
