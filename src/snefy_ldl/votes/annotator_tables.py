"""Annotator tables: single votes to counts and back, how far annotators agree, and what looks odd before a fit.

``AnnotatorLDL.fit(X, votes)`` learns about items and annotators, ``SnefyLDL.fit(X, counts=votes.counts)`` about items.
How tables are read is in :mod:`snefy_ldl.datasets.vote_table`, scores of predicted votes are in
:mod:`snefy_ldl.votes.held_out`, and where to send the next annotator is in :mod:`snefy_ldl.votes.allocation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import (
    MOST_SUGGESTED,
    check_count,
    check_distributions,
    common_denominator,
)
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.errors import InputError
from snefy_ldl.votes.agreement import Agreement, Level, find_oddities, summarize


def counts_from_shares(D: Any, max_votes: int = MOST_SUGGESTED) -> Array:
    """The votes that label distributions were made from: the fewest an item of which every share is a whole part.

    Args:
        D: label distributions (N, L), every share a multiple of one 1/m (within 1e-6).
        max_votes: the largest m to try.

    Returns:
        Whole numbers of votes (N, L), m in each row, for ``fit(X, counts=...)``.

    Raises:
        InputError: the shares are no such multiples, or no label distributions.

    Example:
        >>> counts_from_shares([[0.2, 0.8], [0.6, 0.4]])
        array([[1., 4.],
               [3., 2.]])
    """
    table, _ = check_distributions(D)
    votes = common_denominator(table, check_count("max_votes", max_votes))
    if votes is None:
        raise InputError(f"D holds shares that are not those of m votes per item, for any m up to {max_votes}.")
    return np.round(table * votes)


class Votes(VoteTable):
    """Single votes of annotators on items, and what they have in common.

    Args:
        item: which item each vote is on (V,), an index into ``items``.
        annotator: who cast it (V,), an index into ``annotators``; -1 where that is unknown.
        label: what for (V,), an index into ``label_names``.
        items: names of the N items, in the order of the rows of :attr:`counts`.
        annotators: names of the annotators.
        label_names: names of the L labels, in the order of the columns of :attr:`counts`.
        facts: what is known about the annotators: for each fact a list of values, one per annotator
            (:meth:`with_facts`); or None.

    Example:
        >>> votes = Votes.from_long({"item": ["a", "a", "b"], "annotator": [1, 2, 1], "label": ["cat", "dog", "cat"]})
        >>> votes
        Votes(3 votes of 2 annotators on 2 items, 2 labels: cat, dog)
        >>> votes.counts
        array([[1., 1.],
               [1., 0.]])
    """

    @classmethod
    def of(cls, table: VoteTable) -> Votes:
        """The votes of a plain table, such as :attr:`snefy_ldl.datasets.labelled.Labelled.votes`.

        Args:
            table: the votes.

        Returns:
            The votes as a table of this class.

        Example:
            >>> Votes.of(VoteTable.from_counts([[2, 0], [0, 2]])).agreement().unanimous
            1.0
        """
        parts = table.item, table.annotator, table.label
        return cls(*parts, table.items, table.annotators, table.label_names, table.facts)

    def align(self, items: Sequence[Any]) -> Array:
        """Counts of some items, in that order.

        Args:
            items: names of n items, matched as text: 7 is "7".

        Returns:
            Numbers of votes (n, L); zeros for items without a vote.

        Example:
            >>> Votes.from_counts([[2, 1]], ["a"]).align(["b", "a"])
            array([[0., 0.],
                   [2., 1.]])
        """
        return self.on_items(items).counts

    def agreement(self, level: Level = "nominal") -> Agreement:
        """How far annotators agree, in a few numbers.

        Args:
            level: how labels differ, for Krippendorff's α; see :func:`krippendorff_alpha`.

        Returns:
            The numbers; they print as a few lines.

        Example:
            >>> Votes.from_counts([[3, 0], [1, 1]]).agreement().pairwise_agreement
            0.5
        """
        return summarize(self, level)

    def preflight(self) -> list[str]:
        """What is odd in the votes.

        Returns:
            A line for each finding, the worst first; an empty list is good news.

        Example:
            >>> table = {"item": ["a", "a", "b"], "annotator": [1, 1, 2], "label": ["cat", "cat", "Cat "]}
            >>> for line in Votes.from_long(table).preflight():
            ...     print(line)
            warning: 1 vote repeats an earlier one of the same annotator on the same item (a)
            warning: labels that differ in case or blanks only: 'Cat ' and 'cat'
            note: 1 of 2 items has a single vote (b)
        """
        return find_oddities(self)

    # -- out ---------------------------------------------------------------------------------------------------------

    def to_long(self) -> dict[str, list[Any]]:
        """Columns ``item``, ``annotator``, ``label``, one entry per vote; ``pandas.DataFrame`` takes it as it is."""
        return {
            "item": [self.items[k] for k in self.item],
            "annotator": [self.annotators[a] if a >= 0 else None for a in self.annotator],
            "label": [self.label_names[r] for r in self.label],
        }
