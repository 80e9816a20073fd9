"""Where votes go: the law of an item given its votes so far, how many more it needs, and who is worth the next one.

The functions take any model with ``predict_dist``; the models of this library have them as methods, too. The
mathematics is in :mod:`snefy_ldl._internal.vote_prediction`.
"""

from __future__ import annotations

from typing import Any

import torch

from snefy_ldl._internal.laws import law_blocks
from snefy_ldl._internal.rows import count_rows
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.vote_prediction import (
    CHOICE_ROWS,
    NEED_ROWS,
    Criterion,
    check_votes,
    choose_votes,
    count_votes_needed,
)
from snefy_ldl.distributions.law import SnefySimplex


def update(model: Any, X: Any, counts: Any) -> SnefySimplex:
    """The law of each item's label distribution given its features *and* its votes so far; exact, model untouched.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d).
        counts: votes (N, L), zeros where there are none.

    Returns:
        The law with batch (N,).

    Raises:
        InputError: the votes do not fit, or are not whole numbers >= 0.

    Example:
        >>> from snefy_ldl.learners import DirichletLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = DirichletLDL(random_state=0).fit(city.X, city.D)
        >>> law = update(model, city.X[:1], [[50, 0, 0]])  # fifty votes for the first label
        >>> bool(law.mean[0, 0] > model.predict(city.X[:1])[0, 0])
        True
    """
    with torch.no_grad():
        law: SnefySimplex = model.predict_dist(X)
        return law.posterior(check_votes(counts, count_rows(X), law.n_labels))


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
    settings: Any = {"criterion": criterion, "max_per_item": max_per_item, "new_item_cost": new_item_cost}
    rows, values = choose_votes(law_blocks(model, X, CHOICE_ROWS), count_rows(X), counts, n, **settings)
    return (rows, values) if return_values else rows


def votes_needed(
    model: Any,
    X: Any,
    target_width: float,
    confidence_level: float = 0.9,
    *,
    counts: Any = None,
    max_votes: int = 1024,
) -> Array:
    """How many more votes each item needs until every label's interval is expected to be narrow enough.

    Args:
        model: fitted; anything with ``predict_dist``.
        X: features (N, d).
        target_width: width of the central interval to reach, between 0 and 1.
        confidence_level: of that interval.
        counts: votes so far (N, L), or None.
        max_votes: the most to think of, at most 1024.

    Returns:
        Whole numbers (N,); 0 where the interval is narrow enough now, inf where ``max_votes`` would not do.

    Raises:
        InputError: the width, the level, ``max_votes`` or the votes are not what they must be.

    Example:
        >>> from snefy_ldl.learners import DirichletLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = DirichletLDL(random_state=0).fit(city.X, city.D)
        >>> bool((votes_needed(model, city.X[:3], 0.1) >= votes_needed(model, city.X[:3], 0.2)).all())
        True
    """
    blocks = law_blocks(model, X, NEED_ROWS)
    return count_votes_needed(blocks, count_rows(X), target_width, confidence_level, counts=counts, max_votes=max_votes)
