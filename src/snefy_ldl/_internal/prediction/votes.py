"""What a conditional density says about votes: posteriors, how many are needed, and who should get the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation.rows import as_rows, count_rows
from snefy_ldl.distributions.blocks import law_blocks
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.distributions.votes import (
    CHOICE_ROWS,
    NEED_ROWS,
    Criterion,
    check_votes,
    choose_votes,
    count_votes_needed,
)


class VotePredictor(ABC):
    """Answers about votes, for anything that predicts a law on the simplex.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_annotators
        >>> items = make_annotators(n=60, votes=3, random_state=0)
        >>> model = SnefyLDL(n_neurons=8, epochs=1, random_state=0).fit(items.X, counts=items.counts)
        >>> isinstance(model, VotePredictor), tuple(model.update(items.X[:2], items.counts[:2]).batch_shape)
        (True, (2,))
    """

    @abstractmethod
    def predict_dist(self, X: Any) -> SnefySimplex:
        """The whole conditional law: a torch distribution with batch (N,) and event (L,)."""

    def update(self, X: Any, counts: Any) -> SnefySimplex:
        """The law of each item's label distribution given its features *and* its votes so far; the model stays.

        Args:
            X: features (N, d).
            counts: votes so far (N, L), zeros where there are none.

        Returns:
            The law with batch (N,); exact.

        Raises:
            InputError: the votes do not fit, or are not whole numbers >= 0.
        """
        X = as_rows(X)
        with torch.no_grad():
            law = self.predict_dist(X)
            return law.posterior(check_votes(counts, count_rows(X), law.n_labels))

    def next_vote(
        self,
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
            X: features (N, d) of labelled items and of new ones.
            counts: votes so far (N, L); a row of zeros is a new item. None: all are new.
            n: votes to give out.
            criterion: see :func:`snefy_ldl.distributions.votes.vote_value`.
            max_per_item: how many of them one item may get.
            new_item_cost: what the first vote on a new item costs, in votes; its value is divided by it.
            return_values: also return what each vote is worth.

        Returns:
            Row numbers (n,), and values (n,) on request.

        Raises:
            InputError: n, the cost, the criterion or the votes are not what they must be.
        """
        X = as_rows(X)
        settings: Any = {"criterion": criterion, "max_per_item": max_per_item, "new_item_cost": new_item_cost}
        rows, values = choose_votes(law_blocks(self, X, CHOICE_ROWS), count_rows(X), counts, n, **settings)
        return (rows, values) if return_values else rows

    def votes_needed(
        self,
        X: Any,
        target_width: float,
        confidence_level: float = 0.9,
        *,
        counts: Any = None,
        max_votes: int = 1024,
    ) -> Array:
        """How many more votes each item needs until every label's interval is expected to be narrow enough.

        Args:
            X: features (N, d).
            target_width: width of the central interval to reach, between 0 and 1.
            confidence_level: of that interval.
            counts: votes so far (N, L), or None.
            max_votes: the most to think of, at most 1024.

        Returns:
            Whole numbers (N,); 0 where the interval is narrow enough now, inf where ``max_votes`` would not do.

        Raises:
            InputError: the width, the level, ``max_votes`` or the votes are not what they must be.
        """
        X = as_rows(X)
        blocks = law_blocks(self, X, NEED_ROWS)
        return count_votes_needed(
            blocks, count_rows(X), target_width, confidence_level, counts=counts, max_votes=max_votes
        )
