"""AnnotatorLDL: a model of items fitted to single votes, together with the people who cast them.

An item's distribution comes from a model that was not fitted to the item (three folds), or models would confirm what
they have memorised. :mod:`snefy_ldl.votes.crowd` has the turns between matrices and latent labels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.utils.extmath import randomized_svd
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from snefy_ldl._internal.dists import dist_blocks, draw_shares, to_numpy
from snefy_ldl._internal.random import derive_seed, seed_from
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index, NamedTable
from snefy_ldl._internal.validation import check_choice, check_count, check_number
from snefy_ldl.datasets.scales import label_order
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError, TableNote
from snefy_ldl.persistence import Asked, save
from snefy_ldl.prediction import ModelWrapper
from snefy_ldl.snefy import SnefyLDL, fit_many
from snefy_ldl.training.data import fit_dirichlet_multinomial
from snefy_ldl.votes.confusion import FEWEST_MEMBERS, Annotators, GroupComparison, project
from snefy_ldl.votes.crowd import (
    DRAWS,
    HOLD,
    HOLD_WITH_TRUTH,
    TURNS,
    Ballots,
    Crowd,
    as_draws,
    describe_crowd,
    first_draws,
    gold_rows,
    round_counts,
    tilt_of,
    weigh_votes,
)
from snefy_ldl.votes.likelihood import (
    PairMoments,
    best_pairs,
    best_point,
    pair_moments,
    posterior_draws,
    weighted_quantiles,
)

__all__ = ["AnnotatorLDL"]

#: Fits of the items, and folds of the items in each.
ROUNDS, FOLDS = 3, 3
#: Words for whose votes are meant.
PANEL, LATENT = WORDS = "panel", "latent"
#: Directions that people may vote by, ridges of their slopes in votes (300 was best on ConvAbuse; strong effects need
#: less), and by how many standard errors held-out votes must prefer them.
DIRECTIONS, SLOPE_RIDGES, CLEAR = 8, (30.0, 300.0), 2.0
#: What predictions are best for.
Point = Literal["mean", "manhattan", "wasserstein", "error_rate"]
POINTS = ("mean", "manhattan", "wasserstein", "error_rate")
#: The models of all rounds but the last: small and quick.
QUICK: dict[str, Any] = {"epochs": 10, "n_neurons": 32, "n_readouts": 16, "n_members": 1, "guides": None}
#: Draws behind quantiles of votes; their share below a quantile has a standard error of at most .011.
QUANTILE_DRAWS = 2048
#: Rows whose draws given votes are held at a time.
POSTERIOR_ROWS = 256
#: What names of arrays of annotators and of the latent model start with in a file.
PEOPLE, SECOND = "annotator.", "latent."


class AnnotatorLDL(ModelWrapper):
    """Two models of items fitted to single votes, and a confusion matrix for each annotator.

    One model is fitted to the votes as counts: it predicts how the *panel* votes. The other predicts ℓ, the *latent*
    label distribution of an item, without what annotators add: a vote of annotator a is for v with probability
    ``(C_aᵀ ℓ)_v``. Where votes on held-out items prefer it, features also shift the log-odds of a person's votes, along
    up to eight directions that all people share.

    Every answer takes ``of=``, whose votes are meant:

    - ``"panel"``, the default: everybody who voted in the fit, each as often as they did;
    - ``"latent"``: the item's own label distribution;
    - the name of an annotator, None for a new annotator, or a list with one of these, or a list of names, per row;
    - facts, ``{"gender": "f", "age": 34}``: the mean over the annotators of whom these are true.

    The panel and the latent distribution are exact. Shares of other people are ``C_aᵀ ℓ``, shifted, times what the
    panel's model predicts above ``C̄ᵀ ℓ`` of the average matrix: means to first order, quantiles and likelihoods by
    2,048 draws.

    Args:
        base: an unfitted ``SnefyLDL``.
        of: whose votes are meant where ``of=`` is not given.

    Attributes:
        model_: the model of the panel; its attributes are also those of this model (``label_names_``, ...).
        latent_: the model of the latent distributions.
        annotators_: confusion matrices, agreement, spam scores and facts (:class:`snefy_ldl.votes.Annotators`).

    Example:
        >>> from snefy_ldl.datasets import make_annotators
        >>> from snefy_ldl.votes import Votes
        >>> items = make_annotators(n=60, votes=5, n_annotators=8, long_table=True, random_state=0)
        >>> votes = Votes.from_long(items.votes)
        >>> X = items.X[votes.items]
        >>> model = AnnotatorLDL(SnefyLDL(n_neurons=8, epochs=2, random_state=0)).fit(X, votes)
        >>> model.predict(X[:2], of=votes.annotators[0]).shape, len(model.annotators_)
        ((2, 4), 8)
    """

    _context: ClassVar[tuple[str, ...]] = ("of",)
    latent_: Any
    annotators_: Annotators

    def __init__(self, base: Any = None, of: Any = "panel") -> None:
        self.base, self.of = base, of

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        votes: VoteTable,
        *,
        gold: Mapping[Any, Any] | None = None,
    ) -> AnnotatorLDL:
        """Fit to single votes.

        Args:
            X: features, one row per item: by name if X is a DataFrame whose index names the items, otherwise in the
                order of ``votes.items``.
            votes: who voted for what on which item (:class:`snefy_ldl.votes.Votes`).
            gold: items whose label, or label distribution (L,), is known, by name: ``{"item 7": "cat"}``.

        Returns:
            The model itself.

        Raises:
            InputError: X, votes or gold items do not fit each other.

        Warns:
            TableNote: items without votes are left out.
        """
        votes = self._aligned(X, votes)
        X = as_rows(X)
        if not len(votes.annotators) or not (votes.annotator >= 0).any():
            raise InputError("the votes do not name who cast them; fit SnefyLDL().fit(X, counts=votes.counts).")
        truth = gold_rows(votes, gold or {})
        rows = np.flatnonzero(np.bincount(votes.item, minlength=len(votes.items)))
        if missing := len(votes.items) - len(rows):
            words = f"{missing} of {len(votes.items)} items have no vote and were left out of the fit."
            warnings.warn(TableNote(words), stacklevel=2)
        place = {int(row): k for k, row in enumerate(rows)}
        known = {place[row]: shares for row, shares in truth.items() if row in place}
        ballots = Ballots.of(votes, rows)
        crowd = Crowd(ballots, HOLD_WITH_TRUTH if known else HOLD)
        base = SnefyLDL() if self.base is None else clone(self.base)
        if not isinstance(base, SnefyLDL):
            raise InputError(f"AnnotatorLDL takes a SnefyLDL; got {type(base).__name__}.")
        seed = seed_from(base.random_state)
        items = X if len(rows) == count_rows(X) else take_rows(X, rows)
        counts, shares = _take_turns(_quick(base), items, list(votes.label_names), crowd, known, seed)
        self.model_ = base.fit(items, counts=NamedTable.of(votes.counts[rows], votes.label_names))
        latent = clone(base).set_params(random_state=derive_seed(seed, 40) % 2**31)
        with warnings.catch_warnings():  # the panel's fit has warned about the table
            warnings.simplefilter("ignore", TableNote)
            self.latent_ = latent.fit(items, counts=NamedTable.of(counts, votes.label_names))
        features, rng = self._features(items), np.random.default_rng(derive_seed(seed, 42))
        readings = _fit_slopes(crowd, shares, features, rng)
        self.annotators_ = describe_crowd(crowd, votes, dict(votes.facts or {}), shares.mean(0), readings)
        return self

    def _aligned(self, X: Any, votes: VoteTable) -> VoteTable:
        """The votes with their items in the order of the rows of X."""
        if not isinstance(votes, VoteTable):
            raise InputError(
                f"votes must be snefy_ldl.Votes, with annotators; got {type(votes).__name__}. A table with one vote "
                "per row becomes one by Votes.from_long(table, item=..., annotator=..., label=...)."
            )
        votes = votes.on_rows_of(X)
        if count_rows(as_rows(X)) != len(votes.items):
            raise InputError(
                f"X has {count_rows(as_rows(X))} rows, the votes are on {len(votes.items)} items; give one row per "
                "item, in the order of votes.items."
            )
        return votes

    @property
    def whose(self) -> str:
        """Whose votes answers are about where ``of=`` is not given, in words."""
        return {PANEL: "the panel", LATENT: "latent labels"}.get(str(self.of), str(self.of))

    # -- predictions -------------------------------------------------------------------------------------------------

    def _blocks(self, X: Any, what: str = "predict", **context: Any) -> Iterator[tuple[slice, Any]]:
        check_is_fitted(self)
        of = context.get("of", self.of)
        if isinstance(of, str) and of in WORDS:
            yield from dist_blocks(self.model_ if of == PANEL else self.latent_, as_rows(X))
            return
        readers = self._readers(of, X)
        for block, panel, latent in self._both(X):
            yield block, self._votes(panel, latent, *readers, block)

    def _both(self, X: Any) -> Iterator[tuple[slice, Any, Any]]:
        """Some rows at a time with the distributions of the panel's votes and of latent labels."""
        X = as_rows(X)
        for (block, panel), (_, latent) in zip(dist_blocks(self.model_, X), dist_blocks(self.latent_, X)):
            yield block, panel, latent

    def _votes(self, panel: Any, latent: Any, matrices: Array, shift: Array, rows: Any = slice(None)) -> VoteShares:
        """Votes of people, raised by the panel's mean over the latent one's seen through the average matrix."""
        average = latent.mean.double() @ torch.as_tensor(self.annotators_.panel_matrix, device=latent.device)
        lift = panel.mean.double() / average * torch.as_tensor(np.exp(shift[rows]), device=latent.device)
        return VoteShares(latent, torch.as_tensor(matrices if matrices.ndim == 2 else matrices[rows]), lift)

    def _features(self, X: Any) -> Array:
        """The features as numbers (N, d); without columns (N, 0) if they are not a dense table."""
        features = self.latent_.encode(X) if self.latent_.backbone is None else None
        return features if isinstance(features, np.ndarray) else np.zeros((count_rows(as_rows(X)), 0))

    def _shift(self, X: Any, rows: Any, names: list[Any], which: Any) -> Array:
        """Shifts of the log-odds of votes by the features of some rows (N, L), of ``which`` of the names in each."""
        people = self.annotators_
        if not people.slopes.size:
            return np.zeros((len(rows), len(people.label_names)))
        slopes = np.stack([people.slope(name) for name in names])
        along = project(self._features(X), people.directions)
        return np.asarray(np.einsum("nr,nrv->nv", along[rows], slopes[which]))

    def _readers(self, of: Any, X: Any) -> tuple[Array, Array]:
        """From latent labels to votes: one matrix (L, L), or one per row (N, L, L), and shifts of log-odds (N, L)."""
        people, rows = self.annotators_, np.arange(count_rows(as_rows(X)))
        if isinstance(of, Mapping) and (size := len(people.members(of))) < FEWEST_MEMBERS:
            words = f"{size} annotator(s) with {dict(of)}: a mean over so few describes persons rather than groups."
            warnings.warn(TableNote(words), stacklevel=2)
        if isinstance(of, str) and of == PANEL:
            return people.panel_matrix, np.zeros((len(rows), len(people.label_names)))
        if not isinstance(of, (list, tuple, np.ndarray)):
            return people.matrix(of), self._shift(X, rows, [of], np.zeros_like(rows))
        if len(of) != len(rows):
            raise InputError(f"of holds {len(of)} names; give one, or one per row ({len(rows)}).")
        return np.stack([people.matrix(name) for name in of]), self._shift(X, rows, list(of), rows)

    def predict_dist(self, X: Any, **context: Any) -> Any:
        """The predicted distributions: of the panel and of latent labels, exact torch distributions.

        Args:
            X: features (N, d), as ``fit`` took them.
            context: ``of=``, whose votes are meant.

        Returns:
            Batch (N,). Of other people's votes mean, covariance, draws and quantiles are known (:class:`VoteShares`).

        Raises:
            NotFittedError: before a fit.
        """
        check_is_fitted(self)
        of = context.get("of", self.of)
        if isinstance(of, str) and of in WORDS:
            return (self.model_ if of == PANEL else self.latent_).predict_dist(X)
        panel, latent = self.model_.predict_dist(X), self.latent_.predict_dist(X)
        return self._votes(panel, latent, *self._readers(of, X))

    def predict(self, X: Any, *, point: Point = "mean", votes: int | None = None, **context: Any) -> Any:
        """Expected shares of votes, or the shares that are best for a measure of observed votes.

        Observed shares of few votes are coarse, and the best prediction depends on how many there are: of six votes on
        a mostly harmless text the most probable share is zero.

        Args:
            X: features (N, d), as ``fit`` took them.
            point: "mean", best for cross-entropy and squared errors; "manhattan", "wasserstein" (labels in order) or
                "error_rate", the point with the smallest expected value of that measure.
            votes: how many votes an observed share is made of; by default as many as an item had in the fit, and one
                of a single annotator.
            context: ``of=``, whose votes are meant.

        Returns:
            (N, L), rows that sum to one; a DataFrame if the labels came in one.

        Raises:
            InputError: X does not fit the model, or the point is not known.
        """
        check_choice("point", point, POINTS)
        if point == "mean":
            return super().predict(X, **context)
        names, of = [str(name) for name in self.label_names_], context.get("of", self.of)
        if point == "wasserstein" and (order := label_order(names) or names) != names:
            raise InputError(f"the labels are in the order {names}; fit with label_names={order} for this point.")
        several = isinstance(of, Mapping) or (isinstance(of, str) and of in WORDS)
        each = check_count("votes", votes or (int(self.annotators_.votes_per_item) if several else 1))
        parts = []
        for _, dist in self._asked(X, "predict", {"of": of}):
            draws = dist.sample((QUANTILE_DRAWS,), torch.Generator(dist.device).manual_seed(0))
            parts.append(best_point(to_numpy(draws), point, each))
        return self._named(np.concatenate(parts), X)

    def log_prob(self, X: Any, D: Any = None, *, counts: Any = None, **context: Any) -> Array:
        """Log density of label distributions, or log probability of numbers of votes.

        Args:
            X: features (N, d).
            D: label distributions (N, L), of the panel's votes or of latent labels.
            counts: votes (N, L) instead.
            context: ``of=``, whose votes they are; of people by 2,048 draws.

        Returns:
            (N,).

        Raises:
            InputError: a density is asked of people's shares, which have none in closed form.
        """
        return super().log_prob(X, D, counts=counts, **context)

    def compare_groups(
        self, X: Any, fact: str, confidence_level: float = 0.9, random_state: Any = 0
    ) -> GroupComparison:
        """How groups of annotators differ on these items, with intervals, and a test whether they differ at all.

        A group's shares are ``predict(X, of={fact: value}).mean(0)``; the intervals are those of
        :meth:`snefy_ldl.votes.Annotators.compare`.

        Args:
            X: features (N, d) of the items to compare votes on.
            fact: whose values make the groups.
            confidence_level: of the intervals.
            random_state: seed of the permutations.

        Returns:
            The comparison; it prints as a table.

        Raises:
            InputError: the fact is not known, or has one value only.
        """
        check_is_fitted(self)
        people = self.annotators_
        with warnings.catch_warnings():  # the comparison prints the sizes
            warnings.simplefilter("ignore", TableNote)
            shares = [np.asarray(self.predict(X, of={fact: value})).mean(0) for value in people.groups(fact)]
        panel = np.asarray(self.predict(X, of=PANEL)).mean(0)
        return people.compare(fact, np.array(shares), panel, confidence_level, random_state)

    # -- votes -------------------------------------------------------------------------------------------------------

    def _checked(self, X: Any, votes: VoteTable) -> tuple[VoteTable, Array, Array]:
        """The votes in the order of the rows of X; a vote has the probability ``factors·ℓ / totals·ℓ`` (V, L) each."""
        check_is_fitted(self)
        people, votes = self.annotators_, self._aligned(X, votes)
        if list(votes.label_names) != people.label_names:
            raise InputError(f"votes are for {votes.label_names}, the model's labels are {people.label_names}.")
        names = [name if name in people else None for name in (*votes.annotators, None)]
        matrices = np.stack([people.matrix(name) for name in names])[votes.annotator]
        matrices = matrices * np.exp(self._shift(X, votes.item, names, votes.annotator))[:, None]
        return votes, matrices[np.arange(len(votes)), :, votes.label], matrices.sum(2)

    def _posterior(self, X: Any, votes: VoteTable, of: Any) -> Iterator[tuple[slice, Array, Array, Array, Array]]:
        """For some rows at a time, latent draws (b, S, L), their weights (b, S), shares of votes and their prior mean.

        Draws have weights by the votes so far; the prior mean is exact where the shares' mean is.
        """
        votes, factors, totals = self._checked(X, votes)
        latent_only = isinstance(of, str) and of == LATENT
        readers = self._readers(PANEL if latent_only else of, X)
        for block, panel, latent in self._both(X):
            for start in range(block.start, block.stop, POSTERIOR_ROWS):
                rows = slice(start, min(start + POSTERIOR_ROWS, block.stop))
                here = np.arange(rows.start, rows.stop) - block.start
                part = latent[here].double()
                inside = (votes.item >= rows.start) & (votes.item < rows.stop)
                draws, weights = posterior_draws(part, votes.item[inside] - start, factors[inside], totals[inside])
                if latent_only:
                    yield rows, draws, weights, draws, to_numpy(part.mean)
                    continue
                seen = self._votes(panel[here].double(), part, *readers, rows)
                moved = seen.of_shares(torch.as_tensor(draws.transpose(1, 0, 2), device=part.device))
                yield rows, draws, weights, to_numpy(moved).transpose(1, 0, 2), to_numpy(seen.mean)

    def predict_given_votes(self, X: Any, votes: VoteTable, *, alpha: Any = None, **context: Any) -> tuple[Array, ...]:
        """Shares of votes of each item given its features and its votes so far, by who cast them.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: of annotators known or new.
            alpha: levels of quantiles (A,) to return, too.
            context: ``of=``, whose further votes are meant; the panel's by default.

        Returns:
            Mean (N, L) and covariance (N, L, L) of each item's shares; quantiles (N, L, A) on request.

        Raises:
            InputError: X, items or labels do not fit.
        """
        parts = []
        for _, _, weights, shares, prior in self._posterior(X, votes, context.get("of", self.of)):
            mean = np.einsum("ns,nsk->nk", weights, shares)
            apart = shares - mean[:, None]
            answer = [mean, np.einsum("ns,nsk,nsl->nkl", weights, apart, apart)]
            exact = weights.max(1) == weights.min(1)  # no votes
            answer[0] = np.where(exact[:, None], prior, mean)
            if alpha is not None:
                answer.append(weighted_quantiles(shares, weights, np.atleast_1d(alpha)))
            parts.append(answer)
        return tuple(np.concatenate(part) for part in zip(*parts))

    def next_vote(
        self,
        X: Any,
        votes: VoteTable,
        n: int = 1,
        *,
        objective: Literal["panel", "majority", "latent"] = "panel",
        available: Any = None,
        costs: Mapping[Any, float] | None = None,
        target_error: float = 0.0,
        max_per_item: int = 1,
        max_per_annotator: int | None = None,
        return_values: bool = False,
    ) -> Any:
        """The next n votes to ask for: pairs of an item and whom to ask about it, the most valuable first.

        With m and Σ the mean and covariance of latent labels ℓ, and Τ the covariance of the shares in question with ℓ,
        a vote of annotator a lowers their expected squared error by ``Σ_v |Τ c_v|² / (c_v · m)``, with ``c_v`` the
        columns of ``C_a``, and takes ``Σ_v (Τ c_v)(Σ c_v)ᵀ / (c_v · m)`` from Τ: votes on one item count less and less.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: votes so far with their annotators.
            n: votes to allocate.
            objective: what becomes more certain: "panel" and "latent", the squared error of these shares; "majority",
                how probably the panel's most frequent label is another one.
            available: which annotator may be asked about which item (N, A), A as in ``annotators_``; by default
                everybody about everything that they have not voted on.
            costs: what a vote of each annotator costs, by name; 1 by default. Gains are divided by it.
            target_error: the stopping rule: items whose expected error is at most this get no more votes. Fewer than n
                pairs, or none, are returned then.
            max_per_item: how many of the n votes one item may get; 1 for the majority.
            max_per_annotator: how many of them one annotator may get; by default twice an equal part.
            return_values: also return what each vote is worth.

        Returns:
            A list of (item, annotator) by name; the values (n,) on request.

        Raises:
            InputError: n, costs, votes or the target are not what they must be.
        """
        check_choice("objective", objective, ("panel", "majority", "latent"))
        check_number("target_error", target_error)
        n, each = check_count("n", n), check_count("max_per_item", max_per_item)
        if objective == "majority" and each > 1:
            raise InputError('objective="majority" values one vote per item; ask again once it is there.')
        votes, people = self._aligned(X, votes), self.annotators_
        cost = np.ones(len(people))
        for name, price in (costs or {}).items():
            cost[people.number(name)] = check_number(f"cost of {name!r}", price, strict=True)
        parts = []
        for _, draws, weights, shares, _ in self._posterior(X, votes, LATENT if objective == LATENT else PANEL):
            parts.append(pair_moments(draws, weights, shares, objective == "majority"))
        moments = PairMoments(*(np.concatenate(part) for part in zip(*parts)))
        free = np.ones((len(votes.items), len(people)), dtype=bool)
        free &= np.asarray(True if available is None else available, dtype=bool)
        for row, who in zip(votes.item, votes.annotator):
            if who >= 0 and votes.annotators[who] in people:
                free[row, people.number(votes.annotators[who])] = False
        most = check_count("max_per_annotator", max_per_annotator or -(-2 * n // max(int(free.any(0).sum()), 1)))
        rows, whom, values = best_pairs(moments, people.matrices, cost, free, n, each, most, target_error)
        pairs = [(votes.items[row], people.names[a]) for row, a in zip(rows, whom)]
        return (pairs, values) if return_values else pairs

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder; :func:`snefy_ldl.load` reads it.

        Args:
            folder: made if it is missing; a model in it is replaced.

        Returns:
            The folder.

        Raises:
            NotFittedError: before a fit.
        """
        check_is_fitted(self)
        return save(self, "AnnotatorLDL", folder)

    def pack(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What JSON holds of the model; its arrays are put into a dict (:mod:`snefy_ldl.persistence`)."""
        plain, tables = self.annotators_.pack()
        second: dict[str, Any] = {}
        latent = self.latent_.pack(second)
        arrays |= {f"{PEOPLE}{name}": table for name, table in tables.items()}
        arrays |= {f"{SECOND}{name}": table for name, table in second.items()}
        return {**self.model_.pack(arrays), "annotators": plain, "latent": latent}

    @classmethod
    def unpack(cls, config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> AnnotatorLDL:
        """The model that :meth:`pack` packed."""

        def taken(start: str) -> dict[str, Any]:
            return {name.removeprefix(start): arrays.pop(name) for name in [*arrays] if name.startswith(start)}

        tables, second = {name: value.numpy() for name, value in taken(PEOPLE).items()}, taken(SECOND)
        model = cls(SnefyLDL.unpack(config, arrays, asked))
        model.model_, model.annotators_ = model.base, Annotators.unpack(config["annotators"], tables)
        model.latent_ = SnefyLDL.unpack(config["latent"], second, asked)
        return model


@dataclass(frozen=True)
class VoteShares:
    """Shares of votes ``q ∝ (Cᵀ ℓ) r`` of items whose latent label distributions ℓ are predicted.

    Args:
        latent: distributions of ℓ, batch (N,).
        matrix: C, from latent labels to votes: (L, L), or one per row (N, L, L).
        lift: r, a factor for each share (N, L).

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> latent = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[3.0, 1.0]]).double())
        >>> VoteShares(latent, torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double(), torch.ones(1, 2)).mean
        tensor([[0.7000, 0.3000]], dtype=torch.float64)
    """

    latent: SimplexDistribution
    matrix: Tensor
    lift: Tensor

    def __len__(self) -> int:
        return len(self.latent)

    @property
    def device(self) -> Any:
        """Where its numbers are."""
        return self.latent.device

    def of_shares(self, shares: Tensor) -> Tensor:
        """Votes (..., N, L) of latent shares (..., N, L)."""
        moved = (shares.double()[..., None, :] @ self.matrix.to(shares.device))[..., 0, :] * self.lift
        return moved / moved.sum(-1, keepdim=True)

    @property
    def mean(self) -> Tensor:
        """(N, L), to first order."""
        return self.of_shares(self.latent.mean)

    @property
    def covariance_matrix(self) -> Tensor:
        """(N, L, L), to first order."""
        mean, matrix = self.mean, self.matrix.to(self.device)
        total = ((self.latent.mean.double()[:, None, :] @ matrix)[:, 0] * self.lift).sum(-1)[:, None, None]
        slope = (torch.diag_embed(self.lift) - self.lift[:, :, None] * mean[:, None, :]) / total
        slope = matrix @ slope
        return slope.mT @ self.latent.covariance_matrix.double() @ slope

    @property
    def variance(self) -> Tensor:
        """(N, L)."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.mean, self.variance

    def sample(self, shape: tuple[int, ...], generator: Any = None) -> Tensor:
        """Draws (*shape, N, L)."""
        return self.of_shares(self.latent.sample(shape, generator))

    def draws(self) -> Tensor:
        """Draws, the same for every call (S, N, L)."""
        return self.sample((QUANTILE_DRAWS,), torch.Generator(self.device).manual_seed(0))

    def quantiles(self, levels: Any) -> Tensor:
        """Quantiles of each share by draws (N, L, A)."""
        draws = self.draws()
        return torch.quantile(draws, torch.as_tensor(levels, dtype=draws.dtype, device=draws.device), 0).movedim(0, -1)

    def double(self) -> VoteShares:
        """Itself."""
        return self

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Log probability of numbers of votes (N, L), by draws."""
        k = torch.nan_to_num(torch.as_tensor(counts, dtype=torch.float64, device=self.device))
        logs = (k * self.draws().clamp_min(1e-300).log()).sum(-1).logsumexp(0) - math.log(QUANTILE_DRAWS)
        return logs + torch.lgamma(k.sum(-1) + 1.0) - torch.lgamma(k + 1.0).sum(-1)

    def refuse(self, *settings: Any, **more: Any) -> Any:
        """A density or an entropy, which these shares do not have in closed form."""
        raise InputError('shares of people\'s votes have no density; ask of="panel" or of="latent", or give counts=.')

    log_prob = log_prob_known = entropy = refuse

    def prob_zero(self) -> Tensor:
        """No share of votes is exactly zero (N, L)."""
        return torch.zeros_like(self.mean)


# -- the turns of the fit ----------------------------------------------------------------------------------------------


def _quick(base: Any) -> SnefyLDL:
    """A small SnefyLDL that reads rows as the base does."""
    known, own = base.get_params(deep=False), SnefyLDL().get_params(deep=False)
    model = SnefyLDL(**{name: value for name, value in known.items() if name in own})
    return model.set_params(**QUICK, standardize="unit", verbose=0, checkpoint_dir=None)


def _take_turns(
    quick: SnefyLDL, X: Any, labels: list[str], crowd: Crowd, gold: Mapping[int, Array], seed: int
) -> tuple[Array, Array]:
    """Learn the crowd; returns counts of latent labels and cross-fitted label distributions of the items (N, L)."""
    rng = np.random.default_rng(derive_seed(seed, 41))
    ballots = crowd.ballots
    raw = ballots.counts()
    most = int(raw.sum(1).max())
    draws = first_draws(raw, fit_dirichlet_multinomial(raw), rng)
    for turn in range(ROUNDS + 1):
        for row, shares in gold.items():
            draws.values[row] = shares
        for _ in range(TURNS):
            latent, others, _ = weigh_votes(draws, ballots, crowd.factors())
            crowd.learn(latent, others, learn_strength=turn > 0)
        _, _, evidence = weigh_votes(draws, ballots, crowd.factors())
        for row, shares in gold.items():
            evidence[row] = raw[row].sum() * shares
        counts = round_counts(evidence, rng)
        for empty in np.flatnonzero(counts.sum(1) == 0):  # no item is dropped
            chance = evidence[empty] + 1e-6 * raw[empty]
            counts[empty, rng.choice(len(chance), p=chance / chance.sum())] = 1.0
        if turn < ROUNDS:
            tilt = tilt_of(evidence, most)
            values = _cross_fitted(quick, X, NamedTable.of(counts, labels), tilt, derive_seed(seed, 50 + turn))
            draws = as_draws(values, tilt)
    return counts, draws.values.mean(1, dtype=np.float64)


def _cross_fitted(quick: SnefyLDL, X: Any, counts: Array, tilt: Array | None, seed: int) -> Array:
    """Draws of every item's label distribution (N, S, L), by models that have not seen its votes."""
    fold = np.random.default_rng(seed).permutation(len(counts)) % FOLDS
    params = [{"random_state": derive_seed(seed, k) % 2**31} for k in range(FOLDS)]
    splits = [np.flatnonzero(fold != k) for k in range(FOLDS)]
    with warnings.catch_warnings():  # the last fit warns about the table
        warnings.simplefilter("ignore", TableNote)
        models = fit_many(quick, X, None, splits, params, counts=counts, n_jobs=1)
    values = np.empty((len(counts), DRAWS, counts.shape[1]))
    for k, model in enumerate(models):
        rows = np.flatnonzero(fold == k)
        for block, dist in model._blocks(take_rows(X, rows)):
            known = None if tilt is None else tilt[rows[block]]
            values[rows[block]] = draw_shares(dist, DRAWS, derive_seed(seed, 100 + k), known)
    return values


# -- people who read some items differently ---------------------------------------------------------------------------


def _fit_slopes(crowd: Crowd, latent: Array, features: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Directions of the features that people vote by, and how each of them does.

    The directions are those along which residuals of people differ most from each other's: the first right singular
    vectors of ``Σ_j (e_vj - p_j) x_jᵀ`` of each person and label, minus the mean over people. Slopes are a logistic
    regression of the votes with ``log p_j`` as offset and a ridge. All of it is fitted to two thirds of the items and
    tried on the third.

    Args:
        crowd: with its matrices.
        latent: label distributions of the items by models that have not seen their votes (N, L).
        features: of the items (N, d).
        rng: source of the folds.

    Returns:
        Directions with their offsets (d + 1, R) and slopes (A, R, L), zero on average; R is 0 unless held-out votes
        prefer them.
    """
    ballots = crowd.ballots
    named, n_people = np.flatnonzero(crowd.ballots.who < crowd.ballots.n_people), ballots.n_people
    item, who, label = (column[named] for column in (ballots.item, ballots.who, ballots.label))
    none = np.zeros((features.shape[1] + 1, 0)), np.zeros((n_people, 0, ballots.n_labels))
    if not features.shape[1]:
        return none
    centre, scale = features.mean(0), features.std(0)
    scale[scale <= 1e-9 * np.abs(centre)] = np.inf  # constant columns
    scaled, cast = (features - centre) / scale, np.eye(ballots.n_labels)[label]
    chance = np.maximum(np.einsum("jk,jkv->jv", latent[item], crowd.matrices[who]), 1e-12)

    def directions(rows: Index) -> Array:
        weight = 1.0 / np.sqrt(np.bincount(who[rows], minlength=n_people).clip(1))[who[rows], None]
        residuals = ((cast - chance)[rows] * weight).T
        place, shape = (who[rows], item[rows]), (n_people, len(latent))
        moments = np.stack([sp.csr_matrix((column, place), shape) @ scaled for column in residuals])
        moments = (moments - moments.mean(1, keepdims=True)).reshape(-1, scaled.shape[1])
        axes = randomized_svd(moments, min(DIRECTIONS, *moments.shape), random_state=0)[2].T
        axes /= np.maximum((scaled @ axes).std(0), 1e-12)
        axes /= scale[:, None]
        return np.concatenate([-centre @ axes[None], axes])

    def slopes(rows: Index, along: Array, ridge: float) -> Array:
        place, logs, people = along[item[rows]], np.log(chance[rows]), who[rows]
        of_person = sp.csr_matrix((np.ones(len(rows)), (people, np.arange(len(rows)))), (n_people, len(rows)))

        def loss(flat: Array) -> tuple[float, Array]:
            slope = flat.reshape(n_people, place.shape[1], -1)
            log_p = log_softmax(logs + np.einsum("jr,jrv->jv", place, slope[people]), axis=1)
            gap = np.exp(log_p) - cast[rows]
            pull = of_person @ (place[:, :, None] * gap[:, None]).reshape(len(rows), -1)
            pull -= pull.mean(0)  # so that slopes stay zero on average: what all share is not about people
            return 0.5 * ridge * (flat @ flat) - (log_p * cast[rows]).sum(), pull.ravel() + ridge * flat

        start = np.zeros(n_people * place.shape[1] * ballots.n_labels)
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 50}).x
        return np.asarray(found.reshape(n_people, place.shape[1], -1))

    fold = (rng.permutation(len(latent)) % 3)[item]
    gains = np.zeros((len(SLOPE_RIDGES), len(item)))
    for k in range(3):
        rows, held = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        along = project(features, directions(rows))
        for gain, ridge in zip(gains, SLOPE_RIDGES):
            shift = np.einsum("jr,jrv->jv", along[item[held]], slopes(rows, along, ridge)[who[held]])
            gain[held] = (cast[held] * shift).sum(1) - np.log((chance[held] * np.exp(shift)).sum(1))
    best = gains[gains.sum(1).argmax()]
    if best.sum() <= CLEAR * np.sqrt(np.square(np.bincount(item, best)).sum()):
        return none
    every = np.arange(len(item))
    chosen = directions(every)
    return chosen, slopes(every, project(features, chosen), SLOPE_RIDGES[int(gains.sum(1).argmax())])
