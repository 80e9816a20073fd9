"""AnnotatorLDL: a model of items fitted to single votes, together with the people who cast them.

An item's distribution comes from a model that was not fitted to the item (three folds), or models would confirm what
they have memorised. :mod:`snefy_ldl.votes.crowd` has the turns between matrices and latent labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from snefy_ldl._internal.dists import draw_shares
from snefy_ldl._internal.random import derive_seed, seed_from
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index, NamedTable
from snefy_ldl._internal.validation import check_number
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError, ModelFileError, TableNote
from snefy_ldl.persistence import Asked, save
from snefy_ldl.prediction import ModelWrapper
from snefy_ldl.snefy import SnefyLDL, fit_many
from snefy_ldl.training.data import fit_dirichlet_multinomial
from snefy_ldl.votes.confusion import Annotators, GroupComparison, fact_matrix, fact_values
from snefy_ldl.votes.crowd import (
    DRAWS,
    HOLD,
    HOLD_WITH_TRUTH,
    TURNS,
    Ballots,
    Crowd,
    as_draws,
    describe_crowd,
    gold_rows,
    round_counts,
    tilt_of,
    weigh_votes,
)
from snefy_ldl.votes.likelihood import best_pairs, log_prob_annotated, pair_gains, posterior_moments

__all__ = ["AnnotatorLDL"]

#: Fits of the items, and folds of the items in each.
ROUNDS, FOLDS = 3, 3
#: The models of all rounds but the last: small and quick.
QUICK: dict[str, Any] = {"epochs": 10, "n_neurons": 32, "n_readouts": 16, "n_members": 1, "guides": None}
#: Draws behind quantiles of votes; their share below a quantile has a standard error of at most .011.
QUANTILE_DRAWS = 2048
#: What names of annotators' arrays start with in a file.
PEOPLE = "annotator."


class AnnotatorLDL(ModelWrapper):
    """A model of items fitted to single votes, which also learns a confusion matrix for each annotator.

    A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``. The base model
    predicts ℓ, the *latent* distribution of an item, without what annotators add; the panel's votes are ``C̄ᵀ ℓ``.

    Every prediction takes ``of=``, whose votes are meant:

    - ``"panel"``, the default: everybody who voted in the fit, each as often as they did;
    - ``"latent"``: nobody's; the item's own label distribution;
    - the name of an annotator, a list of N names (one per row), or None for somebody new;
    - facts, ``{"gender": "f", "age": "50+"}``: people of whom these are known, averaged over the other facts.

    Means and variances are exact for each of them; quantiles of votes come from 2,048 draws per row. ``log_prob``,
    ``score``, ``entropy``, ``predict_zero`` and ``predict_dist`` are about the latent distribution.

    Args:
        base: an unfitted model that fits counts; ``SnefyLDL()`` by default.

    Attributes:
        model_: the fitted base; its attributes are also those of this model (``label_names_``, ...).
        annotators_: confusion matrices, agreement, spam scores and groups (:class:`snefy_ldl.votes.Annotators`).

    Example:
        >>> from snefy_ldl.datasets import make_annotators
        >>> from snefy_ldl.votes import Votes
        >>> items = make_annotators(n=60, votes=5, n_annotators=8, long_table=True, random_state=0)
        >>> votes = Votes.from_long(items.votes)
        >>> model = AnnotatorLDL(SnefyLDL(n_neurons=8, epochs=2, random_state=0)).fit(items.X, votes)
        >>> model.predict(items.X[:2], of=votes.annotators[0]).shape, len(model.annotators_)
        ((2, 4), 8)
    """

    _context: ClassVar[tuple[str, ...]] = ("of",)
    annotators_: Annotators

    def __init__(self, base: Any = None) -> None:
        self.base = base

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        votes: VoteTable,
        *,
        gold: Mapping[Any, Any] | None = None,
        trusted: Iterable[Any] | None = None,
    ) -> AnnotatorLDL:
        """Fit to single votes.

        Args:
            X: features, one row per item in the order of ``votes.items``.
            votes: who voted for what on which item (:class:`snefy_ldl.votes.Votes`).
            gold: items whose label, or label distribution (L,), is known, by name: ``{"item 7": "cat"}``.
            trusted: names of annotators who are known to be careful.

        Returns:
            The model itself.

        Raises:
            InputError: X, votes, gold items or trusted annotators do not fit each other.
        """
        if not isinstance(votes, VoteTable):
            raise InputError(f"votes must be snefy_ldl.votes.Votes, with annotators; got {type(votes).__name__}.")
        X = as_rows(X)
        if not len(votes.annotators) or not (votes.annotator >= 0).any():
            raise InputError("the votes do not name who cast them; fit SnefyLDL().fit(X, counts=votes.counts).")
        if count_rows(X) != len(votes.items):
            raise InputError(
                f"X has {count_rows(X)} rows, the votes are on {len(votes.items)} items; give one row per item, in the "
                "order of votes.items."
            )
        truth = gold_rows(votes, gold or {})
        rows = np.flatnonzero(np.bincount(votes.item, minlength=len(votes.items)))
        place = {int(row): k for k, row in enumerate(rows)}
        known = {place[row]: shares for row, shares in truth.items() if row in place}
        where = {name: a for a, name in enumerate(votes.annotators)}
        names = list(trusted or ())
        if strangers := [name for name in names if name not in where]:
            raise InputError(f"trusted annotator {strangers[0]!r} has no vote.")
        ballots, facts = Ballots.of(votes, rows), dict(votes.facts or {})
        crowd = Crowd(
            ballots,
            np.array([where[name] for name in names], dtype=np.intp),
            HOLD_WITH_TRUTH if known or names else HOLD,
            fact_matrix(facts, fact_values(facts)) if facts else None,
        )
        base = SnefyLDL() if self.base is None else clone(self.base)
        seed = seed_from(getattr(base, "random_state", None))
        items = X if len(rows) == count_rows(X) else take_rows(X, rows)
        counts, item_mean = _take_turns(_quick(base), items, list(votes.label_names), crowd, known, seed)
        has = np.flatnonzero(counts.sum(1) > 0)
        if "random_state" in base.get_params(deep=False):
            base.set_params(random_state=derive_seed(seed, 40) % 2**31)
        self.model_ = base.fit(take_rows(items, has), counts=NamedTable.of(counts[has], votes.label_names))
        self.annotators_ = describe_crowd(crowd, votes, ballots, facts, item_mean)
        return self

    # -- predictions -------------------------------------------------------------------------------------------------

    def _blocks(self, X: Any, what: str = "predict", of: Any = "panel", **context: Any) -> Iterator[tuple[slice, Any]]:
        check_is_fitted(self)
        matrices = self._matrices(of)
        if matrices is not None and matrices.ndim == 3 and len(matrices) != count_rows(as_rows(X)):
            raise InputError(f"of holds {len(matrices)} names; give one, or one per row ({count_rows(as_rows(X))}).")
        for block, dist in self.model_._blocks(X, what):
            if matrices is None:
                yield block, dist
            else:
                yield block, VoteShares(dist, torch.as_tensor(matrices if matrices.ndim == 2 else matrices[block]))

    def _matrices(self, of: Any) -> Array | None:
        """From latent labels to votes: one matrix (L, L), one per row (N, L, L), or None for the identity."""
        people = self.annotators_
        if isinstance(of, str) and of == "latent":
            return None
        if isinstance(of, str) and of == "panel":
            return people.panel_matrix
        if isinstance(of, Mapping):
            return people.group_matrix(of)
        if isinstance(of, (list, tuple, np.ndarray)):
            return np.asarray(people.matrices[[people.number(name) for name in of]])
        return people.matrix(of)

    def log_prob(self, X: Any, D: Any = None, *, counts: Any = None) -> Array:  # type: ignore[override]
        """Log density of latent label distributions, or log probability of counts of careful votes.

        Args:
            X: features (N, d).
            D: label distributions (N, L).
            counts: votes (N, L) instead.

        Returns:
            (N,); :meth:`log_prob_votes` is about the votes of known annotators.
        """
        check_is_fitted(self)
        return np.asarray(self.model_.log_prob(X, D, counts=counts))

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
        mean = np.asarray(self.predict(X, of="latent")).mean(0)
        return self.annotators_.compare_groups(fact, mean, confidence_level, random_state)

    # -- votes -------------------------------------------------------------------------------------------------------

    def _factors(self, X: Any, votes: VoteTable) -> Array:
        """Columns of confusion matrices (V, L), one per vote."""
        check_is_fitted(self)
        people = self.annotators_
        if count_rows(as_rows(X)) != len(votes.items):
            raise InputError(f"X must have one row per item of the votes: {len(votes.items)}.")
        if list(votes.label_names) != people.label_names:
            raise InputError(f"votes are for {votes.label_names}, the model's labels are {people.label_names}.")
        matrices = [people.matrix(name if name in people else None) for name in (*votes.annotators, None)]
        return np.asarray(np.stack(matrices)[votes.annotator, :, votes.label])

    def log_prob_votes(self, X: Any, votes: VoteTable) -> Array:
        """Log probability of each item's votes, by who cast them.

        Exact for few votes; from thousands of terms on by draws (:func:`snefy_ldl.votes.log_prob_annotated`). Votes are
        taken in their order, so there is no multinomial coefficient.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: of annotators known or new.

        Returns:
            (N,); 0 for items without a vote.

        Raises:
            InputError: X, items or labels do not fit.
        """
        factors, answer = self._factors(X, votes), np.zeros(len(votes.items))
        for block, dist in self.model_._blocks(X):
            inside = (votes.item >= block.start) & (votes.item < block.stop)
            answer[block] = log_prob_annotated(dist, votes.item[inside] - block.start, factors[inside])
        return answer

    def predict_given_votes(self, X: Any, votes: VoteTable) -> tuple[Array, Array]:
        """The latent distribution of each item given its features and its votes so far, by who cast them.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: of annotators known or new.

        Returns:
            Mean (N, L) and covariance (N, L, L) of each item's label distribution.

        Raises:
            InputError: X, items or labels do not fit.
        """
        factors, parts = self._factors(X, votes), []
        for block, dist in self.model_._blocks(X):
            inside = (votes.item >= block.start) & (votes.item < block.stop)
            parts.append(posterior_moments(dist, votes.item[inside] - block.start, factors[inside]))
        mean, covariance = zip(*parts)
        return np.concatenate(mean), np.concatenate(covariance)

    def next_vote(
        self,
        X: Any,
        votes: VoteTable,
        n: int = 1,
        *,
        available: Any = None,
        costs: Mapping[Any, float] | None = None,
        target_error: float = 0.0,
        max_per_item: int = 1,
        max_per_annotator: int | None = None,
        return_values: bool = False,
    ) -> Any:
        """The next n votes to ask for: pairs of an item and whom to ask about it, the most valuable first.

        A vote of annotator a on an item with mean m and covariance Σ lowers the expected squared error of its mean by
        ``Σ_v |Σ c_v|² / (c_v · m)``, with ``c_v`` the columns of ``C_a``: people whose votes depend little on the item
        are worth little, and are asked only if they are cheap.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: votes so far with their annotators.
            n: votes to allocate.
            available: which annotator may be asked about which item (N, A), A as in ``annotators_``; by default
                everybody about everything that they have not voted on.
            costs: what a vote of each annotator costs, by name; 1 by default. Gains are divided by it.
            target_error: the stopping rule: items whose expected squared error is at most this get no more votes. Fewer
                than n pairs, or none, are returned then.
            max_per_item: how many of the n votes one item may get.
            max_per_annotator: how many of them one annotator may get; None for any number.
            return_values: also return what each vote is worth.

        Returns:
            A list of (item, annotator) by name; the values (n,) on request.

        Raises:
            InputError: n, costs, votes or the target are not what they must be.
        """
        mean, covariance = self.predict_given_votes(X, votes)
        people = self.annotators_
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
        rows, whom, values = best_pairs(gains, int(n), max_per_item, max_per_annotator)
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
            ModelFileError: the base is no SnefyLDL.
            NotFittedError: before a fit.
        """
        check_is_fitted(self)
        if not isinstance(self.model_, SnefyLDL):
            raise ModelFileError(f"an AnnotatorLDL around a {type(self.model_).__name__} cannot be saved.")
        return save(self, "AnnotatorLDL", folder)

    def pack(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What JSON holds of the model; its arrays are put into a dict (:mod:`snefy_ldl.persistence`)."""
        plain, tables = self.annotators_.pack()
        arrays |= {f"{PEOPLE}{name}": table for name, table in tables.items()}
        return {**self.model_.pack(arrays), "annotators": plain}

    @classmethod
    def unpack(cls, config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> AnnotatorLDL:
        """The model that :meth:`pack` packed."""
        names = [name for name in arrays if name.startswith(PEOPLE)]
        tables = {name.removeprefix(PEOPLE): arrays.pop(name).numpy() for name in names}
        model = cls(SnefyLDL.unpack(config, arrays, asked))
        model.model_, model.annotators_ = model.base, Annotators.unpack(config["annotators"], tables)
        return model


@dataclass(frozen=True)
class VoteShares:
    """Shares of votes ``C ᵀℓ`` of items whose latent label distributions ℓ are predicted.

    Args:
        latent: distributions of ℓ, batch (N,).
        matrix: C, from latent labels to votes: (L, L), or one per row (N, L, L).

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> latent = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[3.0, 1.0]]).double())
        >>> VoteShares(latent, torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double()).mean
        tensor([[0.7000, 0.3000]], dtype=torch.float64)
    """

    latent: SimplexDistribution
    matrix: Tensor

    def __len__(self) -> int:
        return len(self.latent)

    @property
    def device(self) -> Any:
        """Where its numbers are."""
        return self.latent.device

    def _moved(self, shares: Tensor) -> Tensor:
        """Votes of shares (..., N, L)."""
        return (shares.double()[..., None, :] @ self.matrix.to(shares.device))[..., 0, :]

    @property
    def mean(self) -> Tensor:
        """(N, L)."""
        return self._moved(self.latent.mean)

    @property
    def covariance_matrix(self) -> Tensor:
        """(N, L, L)."""
        matrix = self.matrix.to(self.device)
        return matrix.mT @ self.latent.covariance_matrix.double() @ matrix

    @property
    def variance(self) -> Tensor:
        """(N, L)."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.mean, self.variance

    def sample(self, shape: tuple[int, ...], generator: Any = None) -> Tensor:
        """Draws (*shape, N, L)."""
        return self._moved(self.latent.sample(shape, generator))

    def quantiles(self, levels: Any) -> Tensor:
        """Quantiles of each share by draws, the same for every call (N, L, A)."""
        generator = torch.Generator(self.device).manual_seed(0)
        draws = self.sample((QUANTILE_DRAWS,), generator)
        return torch.quantile(draws, torch.as_tensor(levels, dtype=draws.dtype, device=draws.device), 0).movedim(0, -1)

    def prob_zero(self) -> Tensor:
        """Nobody's share of votes is exactly zero (N, L)."""
        return torch.zeros_like(self.mean)

    def entropy(self, *settings: Any, **more: Any) -> Any:
        """That of the latent distributions."""
        return self.latent.entropy(*settings, **more)


# -- the turns of the fit ----------------------------------------------------------------------------------------------


def _quick(base: Any) -> SnefyLDL:
    """A small SnefyLDL that reads rows as the base does."""
    known, own = base.get_params(deep=False), SnefyLDL().get_params(deep=False)
    model = SnefyLDL(**{name: value for name, value in known.items() if name in own})
    return model.set_params(**QUICK, standardize="unit", verbose=0, checkpoint_dir=None)


def _take_turns(
    quick: SnefyLDL, X: Any, labels: list[str], crowd: Crowd, gold: Mapping[int, Array], seed: int
) -> tuple[Array, Array]:
    """Learn the crowd; returns the counts of latent labels (N, L) and the mean label distribution of the items (L,)."""
    rng = np.random.default_rng(derive_seed(seed, 41))
    ballots = crowd.ballots
    raw = ballots.counts()
    most = int(raw.sum(1).max())
    prior = fit_dirichlet_multinomial(raw)
    tilt = tilt_of(raw, most)
    alpha = prior + (0.0 if tilt is None else tilt)
    drawn = rng.standard_gamma(np.broadcast_to(alpha, raw.shape)[:, None, :], (len(raw), DRAWS, len(prior)))
    draws = as_draws(drawn / drawn.sum(-1, keepdims=True), tilt)
    for turn in range(ROUNDS + 1):
        for row, shares in gold.items():
            draws.values[row] = shares
        for _ in range(TURNS):
            latent, others, _ = weigh_votes(draws, ballots, crowd.factors())
            crowd.learn(latent, others, learn_strength=turn > 0)
        if turn > 0:
            crowd.learn_effects()
        _, _, evidence = weigh_votes(draws, ballots, crowd.factors())
        for row, shares in gold.items():
            evidence[row] = raw[row].sum() * shares
        counts = round_counts(evidence, rng)
        if turn < ROUNDS:
            tilt = tilt_of(evidence, most)
            values = _cross_fitted(quick, X, NamedTable.of(counts, labels), tilt, derive_seed(seed, 50 + turn))
            draws = as_draws(values, tilt)
    return counts, draws.values.mean((0, 1), dtype=np.float64)


def _cross_fitted(quick: SnefyLDL, X: Any, counts: Array, tilt: Array | None, seed: int) -> Array:
    """Draws of every item's label distribution (N, S, L), by models that have not seen its votes."""
    fold = np.random.default_rng(seed).permutation(len(counts)) % FOLDS
    has: Index = np.flatnonzero(counts.sum(1) > 0)
    params = [{"random_state": derive_seed(seed, k) % 2**31} for k in range(FOLDS)]
    splits = [np.flatnonzero(fold[has] != k) for k in range(FOLDS)]
    with warnings.catch_warnings():  # the last fit tells what is odd about the table
        warnings.simplefilter("ignore", TableNote)
        models = fit_many(quick, take_rows(X, has), None, splits, params, counts=counts[has], n_jobs=1)
    values = np.empty((len(counts), DRAWS, counts.shape[1]))
    for k, model in enumerate(models):
        rows = np.flatnonzero(fold == k)
        for block, dist in model._blocks(take_rows(X, rows)):
            known = None if tilt is None else tilt[rows[block]]
            values[rows[block]] = draw_shares(dist, DRAWS, derive_seed(seed, 100 + k), known)
    return values
