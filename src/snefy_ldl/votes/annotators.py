"""What people are expected to vote, and whom to ask next, from what a fit learnt about its annotators.

A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``: the likelihood of
an item's votes is a sum of closed forms for few votes, and an average over draws of ℓ for many.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp, softmax

from snefy_ldl._internal.annotators import Annotators, GroupComparison
from snefy_ldl._internal.laws import draw_laws, rows_of, to_numpy
from snefy_ldl._internal.prediction import DensityPredictor
from snefy_ldl._internal.rows import count_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_number
from snefy_ldl.datasets.votes import VoteTable
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

#: Terms of an item's likelihood up to which it is summed exactly; above, draws stand in for the sum.
MOST_TERMS = 3000
#: Draws per item where there are more terms than that, and where a law is updated by votes of known annotators.
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


def log_prob_annotated(law: SnefySimplex, item: Index, factors: Array, random_state: Any = 0) -> Array:
    """Log probability of each item's votes, ``log ∫ p(ℓ|x) Π_j (c_j · ℓ) dℓ``; c is a column of a confusion matrix.

    Few votes are exact: the product is a sum of monomials (:func:`expand_votes`), and each has a closed form, that of
    vote counts. Where there are more than :data:`MOST_TERMS` of them, :data:`LIKELIHOOD_DRAWS` draws stand in.

    Args:
        law: of N items.
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
    answer, order = np.zeros(len(law)), np.argsort(item, kind="stable")
    sizes = np.bincount(item, minlength=len(law))
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        rows = np.flatnonzero(sizes == size)
        if gammaln(size + law.n_labels) - gammaln(size + 1) - gammaln(law.n_labels) > np.log(MOST_TERMS):
            for row in rows:
                chosen = factors[order[starts[row] : starts[row] + size]]
                draws = draw_laws(law[[int(row)]], LIKELIHOOD_DRAWS, random_state)[0]
                logs = np.log(np.maximum(draws @ chosen.T, 1e-300)).sum(1)
                answer[row] = logsumexp(logs) - np.log(len(logs))
            continue
        votes = order[starts[rows][:, None] + np.arange(size)]  # (b, V)
        exponents, coefficients = expand_votes(factors[votes])
        coefficient = gammaln(size + 1.0) - gammaln(exponents + 1.0).sum(1)  # sequences of votes, not their numbers
        step = max(1, 20_000 // len(exponents))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            laws = rows_of(law, np.repeat(part, len(exponents)))
            counts = np.tile(exponents.astype(np.float64), (len(part), 1))
            logs = to_numpy(laws.log_prob_counts(counts)).reshape(len(part), -1) - coefficient
            with np.errstate(divide="ignore"):
                answer[part] = logsumexp(logs + np.log(coefficients[start : start + step]), axis=1)
    return answer


def posterior_moments(law: SnefySimplex, item: Index, factors: Array, random_state: Any = 0) -> tuple[Array, Array]:
    """Mean (N, L) and covariance (N, L, L) of each item's label distribution given votes of known annotators.

    By weighted draws; items with many votes get draws of the law given half of them, so that few are wasted.

    Args:
        law: of N items.
        item: which item each vote is on (V,).
        factors: column of the annotator's confusion matrix for each vote (V, L).
        random_state: seed of the draws.

    Returns:
        Both moments.
    """
    n_rows, n_labels = len(law), law.n_labels
    soft = np.zeros((n_rows, n_labels))
    np.add.at(soft, item, factors / factors.sum(1, keepdims=True))
    tilt = np.floor(0.5 * soft)
    draws = draw_laws(law, POSTERIOR_DRAWS, random_state, tilt if tilt.any() else None)
    logs = -np.einsum("nsk,nk->ns", np.log(np.maximum(draws, 1e-300)), tilt)
    np.add.at(logs, item, np.log(np.maximum(np.einsum("jsk,jk->js", draws[item], factors), 1e-300)))
    weights = softmax(logs, axis=1)
    mean = np.einsum("ns,nsk->nk", weights, draws)
    second = np.einsum("ns,nsk,nsl->nkl", weights, draws, draws)
    return mean, second - mean[:, :, None] * mean[:, None, :]


# -- of a model ------------------------------------------------------------------------------------------------------


class AnnotatorPredictor(DensityPredictor):
    """Answers about people, for a model that was fitted to their votes with ``fit(X, votes=...)``.

    Attributes:
        annotators_: what the fit learnt about its annotators; None where it saw shares or plain counts.
    """

    annotators_: Annotators | None

    def _people(self) -> Annotators:
        people: Annotators | None = getattr(self, "annotators_", None)
        if people is None:
            raise InputError("this model knows no annotators: fit it to their votes with fit(X, votes=Votes(...)).")
        return people

    def predict(self, X: Any, group: Mapping[str, Any] | None = None, *, groups: Any = None) -> Any:
        """Conditional mean of the label distribution, or how a group of people is expected to vote.

        Args:
            X: features (N, d), as ``fit`` took them.
            group: facts of annotators, ``{"gender": "f", "age": "50+"}``; facts that are left out are averaged over.
                None: the item's own label distribution, freed of what annotators add.
            groups: groups of the rows (N,) or (N, k), as ``fit`` took them; None where they are not known.

        Returns:
            (N, L), rows that sum to one; a DataFrame where the labels came in one.

        Raises:
            InputError: where X does not fit the model, or a fact is not known.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> model.predict(city.X[:2]).shape
            (2, 3)
        """
        matrix = None if group is None else self._people().group_matrix(group)
        mean = self._collect(X, lambda dist: dist.mean, groups=groups)
        return self._named(mean if matrix is None else mean @ matrix, X)

    def predict_annotator(self, X: Any, annotator: Any) -> Any:
        """How one person is expected to vote on each item.

        Args:
            X: features (N, d), as ``fit`` took them.
            annotator: a name; a list of N names, one per row; None for somebody new; or facts of somebody new,
                ``{"age": "50+"}``.

        Returns:
            Probabilities of votes (N, L); a DataFrame where the labels came in one.

        Raises:
            InputError: where X does not fit the model, or nobody of this name voted in the fit.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_annotators
            >>> from snefy_ldl.votes import Votes
            >>> items = make_annotators(n=60, votes=5, n_annotators=8, long_table=True, random_state=0)
            >>> votes = Votes.from_long(items.votes)
            >>> model = SnefyLDL(n_neurons=8, epochs=2, random_state=0).fit(items.X, votes=votes)
            >>> model.predict_annotator(items.X[:2], votes.annotators[0]).shape
            (2, 4)
        """
        people = self._people()
        mean = self._collect(X, lambda dist: dist.mean)
        if isinstance(annotator, (list, tuple, np.ndarray)):
            if len(annotator) != len(mean):
                raise InputError(f"annotator must be one name, or one per row ({len(mean)}); got {len(annotator)}.")
            matrices = people.matrices[[people.number(name) for name in annotator]]
            return self._named(np.einsum("nk,nkv->nv", mean, matrices), X)
        return self._named(mean @ people.matrix(annotator), X)

    def predict_population(self, X: Any, population: Any = None) -> Any:
        """How a population is expected to vote: the average over its people.

        Args:
            X: features (N, d), as ``fit`` took them.
            population: None for the panel as it voted; one weight per annotator; or shares of the values of some facts,
                ``{"gender": {"f": 0.5, "m": 0.5}}``, to which the panel is then weighted (post-stratification).

        Returns:
            Shares of votes (N, L); a DataFrame where the labels came in one.

        Raises:
            InputError: where X does not fit the model, or weights do not fit the annotators.
        """
        matrix = self._people().population_matrix(population)
        return self._named(self._collect(X, lambda dist: dist.mean) @ matrix, X)

    def compare_groups(
        self, X: Any, fact: str, confidence_level: float = 0.9, random_state: Any = 0
    ) -> GroupComparison:
        """How groups of annotators differ on these items, with intervals, and a test whether they differ at all.

        Args:
            X: features (N, d) of the items to compare votes on.
            fact: whose values make the groups.
            confidence_level: of the intervals.
            random_state: seed of permutations and resamples.

        Returns:
            The comparison; it prints as a table.

        Raises:
            InputError: the fact is not known.
        """
        mean = self._collect(X, lambda dist: dist.mean).mean(0)
        return self._people().compare_groups(fact, mean, confidence_level, random_state)

    def _factors(self, X: Any, votes: VoteTable) -> Array:
        """Columns of confusion matrices (V, L), one per vote."""
        people = self._people()
        if count_rows(X) != len(votes.items):
            raise InputError(f"X must have one row per item of the votes: {len(votes.items)}.")
        if list(votes.label_names) != people.label_names:
            raise InputError(f"votes are for {votes.label_names}, the model's labels are {people.label_names}.")
        matrices = [people.matrix(name if name in people else None) for name in (*votes.annotators, None)]
        return np.asarray(np.stack(matrices)[votes.annotator, :, votes.label])

    def log_prob_votes(self, X: Any, votes: VoteTable) -> Array:
        """Log probability of each item's votes, by who cast them.

        Exact for few votes; from thousands of terms on by draws (:func:`log_prob_annotated`). Votes are taken in their
        order, so there is no multinomial coefficient.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: of annotators known or new.

        Returns:
            (N,); 0 for items without a vote.

        Raises:
            InputError: where X, items or labels do not fit.
        """
        factors, answer = self._factors(X, votes), np.zeros(len(votes.items))
        for block, law in self._blocks(X):
            inside = (votes.item >= block.start) & (votes.item < block.stop)
            answer[block] = log_prob_annotated(law, votes.item[inside] - block.start, factors[inside])
        return answer

    def predict_given_votes(self, X: Any, votes: VoteTable) -> tuple[Array, Array]:
        """What is known about each item given its features and its votes so far, by who cast them.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: of annotators known or new.

        Returns:
            Mean (N, L) and covariance (N, L, L) of each item's label distribution.

        Raises:
            InputError: where X, items or labels do not fit.
        """
        factors, parts = self._factors(X, votes), []
        for block, law in self._blocks(X):
            inside = (votes.item >= block.start) & (votes.item < block.stop)
            parts.append(posterior_moments(law, votes.item[inside] - block.start, factors[inside]))
        mean, covariance = zip(*parts)
        return np.concatenate(mean), np.concatenate(covariance)

    @abstractmethod
    def with_annotators(self, X: Any, votes: VoteTable) -> Any:
        """A model that also knows annotators who joined after the fit."""

    def next_vote(
        self,
        X: Any,
        counts: Any = None,
        n: int = 1,
        *,
        votes: VoteTable | None = None,
        available: Any = None,
        costs: Mapping[Any, float] | None = None,
        target_error: float = 0.0,
        max_per_item: int = 1,
        max_per_annotator: int | None = None,
        return_values: bool = False,
        **settings: Any,
    ) -> Any:
        """The items that the next n votes should go to; with ``votes=``, pairs of an item and whom to ask about it.

        A vote of annotator a on an item with mean m and covariance Σ lowers the expected squared error of its mean by
        ``Σ_v |Σ c_v|² / (c_v · m)``, with ``c_v`` the columns of ``C_a``: people who say little about the item are
        worth little, and are asked only where they are cheap.

        Args:
            X: features (N, d) of labelled items and of new ones.
            counts: votes so far (N, L) without annotators; row numbers come back then.
            n: votes to give out.
            votes: votes so far with their annotators, one item per row of X; pairs come back then.
            available: which annotator may be asked about which item (N, A), A as in ``annotators_``; by default
                everybody about everything that they have not voted on.
            costs: what a vote of each annotator costs, by name; 1 by default. Gains are divided by it.
            target_error: the stopping rule: items whose expected squared error is at most this get no more votes. Fewer
                than n pairs, or none, come back where that is so.
            max_per_item: how many of the n votes one item may get.
            max_per_annotator: how many of them one annotator may get; None for any number.
            return_values: also return what each vote is worth.
            settings: without annotators, ``criterion`` and ``new_item_cost`` of
                :func:`snefy_ldl.votes.next_vote`.

        Returns:
            Row numbers (n,); with ``votes`` a list of (item, annotator) by name, the most valuable first. The values
            (n,) on request.

        Raises:
            InputError: n, costs, votes or the target are not what they must be.
        """
        if votes is None:
            return super().next_vote(X, counts, n, max_per_item=max_per_item, return_values=return_values, **settings)
        if counts is not None or settings:
            raise InputError("next_vote takes counts, with their settings, or votes; not both.")
        people = self._people()
        mean, covariance = self.predict_given_votes(X, votes)
        cost = np.ones(len(people))
        for name, price in (costs or {}).items():
            cost[people.number(name)] = check_number(f"cost of {name!r}", price, strict=True)
        check_number("target_error", target_error)
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"n must be a whole number from 1; got {n!r}.")
        gains = pair_gains(mean, covariance, people.matrices) / cost  # (N, A)
        if available is not None:
            gains = np.where(np.asarray(available, dtype=bool), gains, -1.0)
        for row, who in zip(votes.item, votes.annotator):
            if who >= 0 and votes.annotators[who] in people:
                gains[row, people.number(votes.annotators[who])] = -1.0
        gains[np.trace(covariance, axis1=1, axis2=2) <= target_error] = -1.0
        rows, whom, values = _best_pairs(gains, int(n), max_per_item, max_per_annotator)
        pairs = [(votes.items[row], people.names[a]) for row, a in zip(rows, whom)]
        return (pairs, values) if return_values else pairs


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


def _best_pairs(gains: Array, n: int, per_item: int, per_annotator: int | None) -> tuple[Index, Index, Array]:
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
