"""Votes on a distribution: what is known after some votes, and what one more is worth.

Votes k turn the components ``Dirichlet(α_p)`` into ``Dirichlet(α_p + k)``.
The functions take a distribution, or any model with ``predict_dist``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from snefy_ldl._internal.dists import dist_blocks, to_numpy
from snefy_ldl._internal.memory import VALUED_ROWS
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.tolerances import SMALLEST_TOTAL_CONCENTRATION
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import (
    LARGEST_COUNT,
    align_labels,
    as_float,
    check_choice,
    check_count,
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
        model: columns with the names of its labels come in its order; None for as they are.

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


# -- what a vote is worth ----------------------------------------------------------------------------------------------


def vote_value(dist: SnefySimplex, criterion: Criterion = "variance") -> Array:
    """What one more vote on each item is worth, in expectation and in closed form.

    A vote is for v with probability ``m_v = E[ℓ_v]`` and moves the mean to ``m_{r|v} = E[ℓ_r ℓ_v] / m_v``.

    Args:
        dist: of N items, with their votes so far (:meth:`SnefySimplex.posterior`).
        criterion: ``"variance"``: how much the vote lowers the squared error of the mean, ``Σ_r Var[ℓ_r]``: by the rule
            of total variance ``Σ_v m_v Σ_r (m_{r|v} - m_r)² = Σ_rv Cov_rv² / m_v``. ``"information"``: its nats
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
        part = dist[start : start + VALUED_ROWS].double()  # weights once for all moments
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
    if (of := getattr(model, "of", "panel")) != "panel":
        raise InputError(f"counts are votes of the panel, the model's of={of!r}; use model.predict_given_votes.")
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
        return_values: also return what each vote is worth.

    Returns:
        Row numbers (n,), and values (n,) on request.

    Raises:
        InputError: n, the criterion or the votes are not what they must be.

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
    max_per_item = min(max_per_item, n)
    values = []
    for block, dist in dist_blocks(model, X, CHOICE_ROWS):
        votes = (
            np.zeros((n_rows, dist.n_labels)) if counts is None else check_votes(counts, n_rows, dist.n_labels, model)
        )
        posterior = dist.posterior(votes[block]) if votes[block].any() else dist
        value = vote_value(posterior, criterion)
        values.append(value[:, None] * _worth_of_later_votes(posterior, max_per_item))
    table = np.concatenate(values)
    order = np.argsort(-table, axis=None, kind="stable")[:n]
    rows: Index = (order // max_per_item).astype(np.intp)
    return (rows, table.ravel()[order]) if return_values else rows
