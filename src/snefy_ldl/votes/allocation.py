"""Votes on a distribution: what one more vote is worth, and the counts predicted for a label.

Votes k turn the components ``Dirichlet(α_p)`` into ``Dirichlet(α_p + k)``.
The functions take a distribution, or any model with ``predict_dist``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import gammaln

from snefy_ldl._internal.dists import dist_blocks, rows_of, to_numpy
from snefy_ldl._internal.limits import VALUED_ROWS
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.tolerances import SMALLEST_TOTAL_CONCENTRATION
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import (
    LARGEST_COUNT,
    align_labels,
    as_float,
    check_choice,
    check_count,
    check_number,
    check_same_index,
    known_labels,
    refuse_first,
)
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

Criterion = Literal["variance", "information"]
CRITERIA = ("variance", "information")

#: Rows whose distributions are held at a time while votes are given out.
CHOICE_ROWS = 4096


def check_votes(counts: Any, n_rows: int, n_labels: int, model: Any = None) -> Array:
    """Votes so far as a table (N, L) of whole numbers; unlike in a fit, rows without any vote are fine.

    Args:
        counts: numbers of votes.
        n_rows: N, the items there must be.
        n_labels: L, the labels there must be.
        model: columns with the names of its labels come in its order, whichever they had; None for as they are.

    Returns:
        The votes (N, L) in float64.

    Raises:
        InputError: the shape is another one, or a cell holds anything but a whole number >= 0; it is named.

    Example:
        >>> check_votes([[2, 0], [0, 0]], 2, 2)
        array([[2., 0.],
               [0., 0.]])
    """
    table = as_float(align_labels(counts, known_labels(model), "counts"), "counts")
    if table.shape != (n_rows, n_labels):
        raise InputError(f"counts must have one row per item and one column per label: ({n_rows}, {n_labels}).")
    bad = ~np.isfinite(table) | (table < 0) | (table != np.round(table)) | (table > LARGEST_COUNT)
    refuse_first(bad, table, "counts holds {value:g} at {place}; use whole numbers >= 0, at most 1e15.")
    return table


# -- the distribution of one label's count
# --------------------------------------------------------------------------------------


def beta_binomial(a: Array, b: Array, n: int) -> Array:
    """Probability of 0 ... n hits among n votes under each ``Beta(a_p, b_p)``.

    Args:
        a: first parameters (P,).
        b: second parameters (P,).
        n: votes.

    Returns:
        Probabilities (n+1, P); each column sums to one.

    Example:
        >>> beta_binomial(np.array([1.0]), np.array([1.0]), 3).ravel()  # a flat dist makes every count equally likely
        array([0.25, 0.25, 0.25, 0.25])
    """
    steps = np.arange(n)[:, None]
    zero = np.zeros((1, len(a)))
    hits = np.concatenate([zero, np.cumsum(np.log(a + steps), 0)])
    misses = np.concatenate([zero, np.cumsum(np.log(b + steps), 0)])
    j = np.arange(n + 1)
    choose = gammaln(n + 1.0) - gammaln(j + 1.0) - gammaln(n - j + 1.0)
    together = np.log(a + b + steps).sum(0)
    return np.exp(hits + misses[::-1] - together + choose[:, None])


def label_groups(dist: SnefySimplex, label: int) -> Iterator[tuple[Index, Array, Array, Array]]:
    """Rows that share the Beta components of a label, the weights of the components and both their parameters.

    Without votes that is all rows; with votes, those with as many for the label and in all.

    Args:
        dist: batch (N,).
        label: which label, by number.

    Yields:
        Row numbers (b,), weights (b, P), and the parameters a and b (P,) of ``Beta(a_p, b_p)``.

    Example:
        >>> dist = SnefySimplex.from_mixture(torch.ones(2, 1), torch.tensor([[2.0, 3.0]]))
        >>> list(label_groups(dist, 0))
        [(array([0, 1]), array([[1.],
               [1.]]), array([2.]), array([3.]))]
    """
    if not dist.supports("posterior"):
        raise InputError(dist.rows.why_not["posterior"])
    alpha = to_numpy(dist.concentration)
    a, total = alpha[:, label], alpha.sum(1)
    if dist.offset is None:
        rows = np.arange(len(dist))
        yield rows, row_weights(dist, rows), a, total - a
        return
    offset = to_numpy(dist.offset)
    pairs = np.stack([offset[:, label], offset.sum(1)], 1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    for k, (hits, votes) in enumerate(distinct):
        rows = np.flatnonzero(which.reshape(-1) == k)
        yield rows, row_weights(dist, rows), a + hits, total + votes - a - hits


def row_weights(dist: SnefySimplex, rows: Index) -> Array:
    """Mixture weights of some rows as an array.

    Args:
        dist: batch (N,).
        rows: row numbers (b,).

    Returns:
        Weights (b, P).

    Example:
        >>> row_weights(SnefySimplex.from_mixture(torch.ones(3, 1), torch.ones(1, 2)), np.array([2]))
        array([[1.]])
    """
    return to_numpy(dist.weights(torch.as_tensor(rows, device=dist.device)))


# -- what a vote is worth ----------------------------------------------------------------------------------------------


def vote_value(dist: SnefySimplex, criterion: Criterion = "variance") -> Array:
    """What one more vote on each item is worth, in expectation and in closed form.

    A vote is for v with probability ``m_v = E[ℓ_v]`` and moves the mean to ``m_{r|v} = E[ℓ_r ℓ_v] / m_v``.

    Args:
        dist: of N items, with their votes so far (:meth:`SnefySimplex.posterior`).
        criterion: ``"variance"``: how much the vote lowers the squared error of the mean, ``Σ_r Var[ℓ_r]``: by the rule
            of total variance ``Σ_v m_v Σ_r (m_{r|v} - m_r)² = Σ_rv Cov_rv² / m_v``. ``"information"``: nats it tells
            about ℓ itself, ``H(E ℓ) - E[H(ℓ)]``.

    Returns:
        Values (N,).

    Raises:
        InputError: the criterion is not known.

    Example:
        >>> one = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> round(float(one.variance.sum() / vote_value(one)[0]), 6)  # one of A + 1 parts of the variance, A = 10
        11.0
    """
    check_choice("criterion", criterion, CRITERIA)
    parts = []
    for start in range(0, len(dist), VALUED_ROWS):
        part = rows_of(dist, np.arange(start, min(start + VALUED_ROWS, len(dist))))  # weights once for all moments
        if criterion == "information":
            value = part.vote_information()
        else:
            mean = part.mean.clamp_min(torch.finfo(part.mean.dtype).tiny)
            value = (part.covariance_matrix.square() / mean[..., None, :]).sum((-2, -1))
        parts.append(to_numpy(value))
    return np.concatenate(parts)


def _worth_of_later_votes(dist: SnefySimplex, votes: int) -> Array:
    """What the t-th further vote is worth against the first (N, votes): ``A (A+1) / ((A+t) (A+t+1))``, t = 0, 1, ..."""
    if votes == 1:
        return np.ones((len(dist), 1))
    mean, variance = (to_numpy(part) for part in dist.mean_and_variance())
    total_variance = np.maximum(variance.sum(1), np.finfo(float).tiny)
    matched = (1.0 - np.square(mean).sum(1)) / total_variance - 1.0  # Σ α of the Dirichlet with this mean and variance
    total = np.maximum(matched, SMALLEST_TOTAL_CONCENTRATION)[:, None]
    t = np.arange(votes)
    return total * (total + 1.0) / ((total + t) * (total + t + 1.0))


# -- of a model ------------------------------------------------------------------------------------------------------


def update(model: Any, X: Any, counts: Any) -> SnefySimplex:
    """The exact distribution of each item's label distribution given its features and its votes so far.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d).
        counts: votes (N, L), zeros where there are none.

    Returns:
        The distribution with batch (N,).

    Raises:
        InputError: the votes do not fit, or are not whole numbers >= 0.

    Example:
        >>> from snefy_ldl.learners import DirichletLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = DirichletLDL(random_state=0).fit(city.X, city.D)
        >>> dist = update(model, city.X[:1], [[50, 0, 0]])  # fifty votes for the first label
        >>> bool(dist.mean[0, 0] > model.predict(city.X[:1])[0, 0])
        True
    """
    check_same_index(X, counts, ("X", "counts"))
    X = as_rows(X)
    with torch.no_grad():
        dist: SnefySimplex = model.predict_dist(X)
        return dist.posterior(check_votes(counts, count_rows(X), dist.n_labels, model))


def next_vote(
    model: Any,
    X: Any,
    counts: Any = None,
    n: int = 1,
    *,
    criterion: Criterion = "variance",
    max_per_item: int = 1,
    new_item_cost: float = 1.0,
    return_values: bool = False,
) -> Any:
    """The items that the next n votes should go to, the most valuable first.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d) of labelled items and of new ones.
        counts: votes so far (N, L); a row of zeros is a new item. None: all are new.
        n: votes to give out.
        criterion: see :func:`vote_value`.
        max_per_item: how many of them one item may get; further votes count for less, as they would for one Dirichlet
            with the item's mean and variance.
        new_item_cost: what the first vote on a new item costs, in votes; its value is divided by it.
        return_values: also return what each vote is worth.

    Returns:
        Row numbers (n,), and values (n,) on request.

    Raises:
        InputError: n, the cost, the criterion or the votes are not what they must be.

    Example:
        >>> from snefy_ldl.learners import DirichletLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = DirichletLDL(random_state=0).fit(city.X, city.D)
        >>> next_vote(model, city.X, n=5).shape
        (5,)
    """
    X = as_rows(X)
    n_rows = count_rows(X)
    most = n_rows * check_count("max_per_item", max_per_item)
    if not isinstance(n, (int, np.integer)) or not 1 <= n <= most:
        raise InputError(f"n must be a whole number from 1 to {most}; got {n!r}.")
    check_number("new_item_cost", new_item_cost, strict=True)
    max_per_item = min(max_per_item, n)
    values = []
    for block, dist in dist_blocks(model, X, CHOICE_ROWS):
        votes = (
            np.zeros((n_rows, dist.n_labels)) if counts is None else check_votes(counts, n_rows, dist.n_labels, model)
        )
        posterior = dist.posterior(votes[block]) if votes[block].any() else dist
        value = vote_value(posterior, criterion)
        value = value / np.where(votes[block].sum(1) == 0, new_item_cost, 1.0)
        values.append(value[:, None] * _worth_of_later_votes(posterior, max_per_item))
    table = np.concatenate(values)
    order = np.argsort(-table, axis=None, kind="stable")[:n]
    rows: Index = (order // max_per_item).astype(np.intp)
    return (rows, table.ravel()[order]) if return_values else rows
