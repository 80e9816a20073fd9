"""The people behind votes: confusion matrices, groups, and what a person or a population would vote.

A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``. The matrix ``C_a``
is that of one of two kinds of people: most vote by the item, ``C_a ~ Dirichlet(s C_g)`` per row with ``C_g`` the matrix
of those who share their facts (age, gender, ...); some guess, and their matrix has one and the same row whatever the
item. :mod:`snefy_ldl.training.annotators` fits them; what is here answers questions about them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, log_softmax, logsumexp, softmax

from snefy_ldl._internal.laws import rows_of, to_numpy
from snefy_ldl._internal.prediction import DensityPredictor
from snefy_ldl._internal.rows import count_rows
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_confidence, check_number
from snefy_ldl.datasets.votes import VoteTable
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError

#: Draws behind the intervals of annotators and groups, and permutations behind the test of groups.
INTERVAL_DRAWS, PERMUTATIONS = 400, 999
#: Penalties on the effects of facts that held-out annotators choose from; the last is no effect at all.
PENALTIES = (1.0, 5.0, 25.0, 125.0, np.inf)
#: Terms of an item's likelihood up to which it is summed exactly; above, draws stand in for the sum.
MOST_TERMS = 3000
#: Draws per item where there are more terms than that, and where a law is updated by votes of known annotators.
LIKELIHOOD_DRAWS, POSTERIOR_DRAWS = 4096, 512
#: Rows of an item's table of (annotators x labels) that are held at a time while votes are given out.
PAIR_ROWS = 512


@dataclass(frozen=True, eq=False, repr=False)
class Annotators:
    """What a fit learnt about its annotators.

    It prints as a table; ``annotators["spam_score"]`` is a column, :meth:`to_frame` a DataFrame with all of them.

    Args:
        names: of the A annotators.
        label_names: of the L labels.
        cast: votes of each annotator for each label (A, L).
        counts: expected votes by latent label and vote (A, L, L).
        certain: how many votes these are worth, for each latent label (A, L): less where latent labels are uncertain.
        centres: matrix that each annotator's own is shrunk to (A, L, L).
        strength: by how many votes per latent label (A,).
        spam_score: probability that an annotator guesses (A,).
        guess: overall shares of votes of those who guess (L,).
        guess_strength: by how many votes an annotator's own guesses are shrunk to them (A,).
        spam_rate: how frequent guessing is.
        common: matrix of the average annotator who does not guess (L, L).
        agreed: of each annotator's votes, how many others on the same items agree with, and out of how many (A, 2).
        item_mean: mean label distribution of the items (L,).
        facts: a list of A values for each fact, or none.
        effects: what each value of each fact adds to the logarithm of the common matrix (F, L, L), in the order of
            ``fact_values``; empty without facts.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_annotators
        >>> from snefy_ldl.votes import Votes
        >>> items = make_annotators(n=60, votes=5, n_annotators=8, long_table=True, random_state=0)
        >>> model = SnefyLDL(n_neurons=8, epochs=2, random_state=0).fit(items.X, votes=Votes.from_long(items.votes))
        >>> len(model.annotators_), float(model.annotators_["votes"].sum())
        (8, 300.0)
    """

    names: list[Any]
    label_names: list[str]
    cast: Array
    counts: Array
    certain: Array
    centres: Array
    strength: Array
    spam_score: Array
    guess: Array
    guess_strength: Array
    spam_rate: float
    common: Array
    agreed: Array
    item_mean: Array
    facts: dict[str, list[Any]]
    effects: Array

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Annotators({len(self)}: {shorten([str(name) for name in self.names], 5)})"

    def __str__(self) -> str:
        shown = ["votes", "agreement", *(f"accuracy_{name}" for name in self.label_names), "spam_score"]
        width = max([len("annotator"), *(len(str(name)) for name in self.names)])
        lines = ["  ".join(["annotator".ljust(width), *(f"{name:>20}" for name in shown)])]
        for a in np.argsort(-self.spam_score, kind="stable"):
            cells = [str(self.names[a]).ljust(width)]
            for name in shown:
                cell = f"{self[name][a]:.0f}" if name == "votes" else f"{self[name][a]:.2f}"
                if f"{name}_low" in self.table:
                    cell += f" ({self[f'{name}_low'][a]:.2f} to {self[f'{name}_high'][a]:.2f})"
                cells.append(f"{cell:>20}")
            lines.append("  ".join(cells))
        return "\n".join(lines)

    # -- matrices ----------------------------------------------------------------------------------------------------

    @cached_property
    def matrices(self) -> Array:
        """Expected confusion matrix of each annotator (A, L, L): rows are latent labels, columns votes."""
        careful = self.counts + self.strength[:, None, None] * self.centres
        guesses = self.cast + self.guess_strength[:, None] * self.guess
        spam = self.spam_score[:, None, None]
        mixed: Array = (1.0 - spam) * _rows_to_one(careful) + spam * _rows_to_one(guesses)[:, None, :]
        return mixed

    def matrix(self, annotator: Any) -> Array:
        """The expected confusion matrix of one annotator, or of somebody new.

        Args:
            annotator: a name; None for somebody new; facts such as ``{"age": "50+"}`` for somebody new of whom these
                are known.

        Returns:
            Probabilities of votes (columns) given the latent label (rows), (L, L).

        Raises:
            InputError: no annotator has this name, or a fact is not known.
        """
        if annotator is None or isinstance(annotator, Mapping):
            careful = self.group_matrix(annotator or {})
            mixed: Array = (1.0 - self.spam_rate) * careful + self.spam_rate * self.guess
            return mixed
        return np.asarray(self.matrices[self.number(annotator)])

    def number(self, annotator: Any) -> int:
        """The number of an annotator.

        Args:
            annotator: the name; text that reads as the name will do.

        Returns:
            The index into ``names``.

        Raises:
            InputError: nobody has this name.
        """
        where = self._numbers.get(annotator, self._numbers.get(str(annotator)))
        if where is None:
            known = shorten([str(name) for name in self.names], 5)
            raise InputError(
                f"annotator {annotator!r} did not vote in the fit, whose annotators are {known}. Use None for somebody "
                "new, or with_annotators(X, votes) to learn from votes of theirs."
            )
        return where

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        return {str(name): a for a, name in enumerate(self.names)} | {name: a for a, name in enumerate(self.names)}

    # -- the table ---------------------------------------------------------------------------------------------------

    def __getitem__(self, column: str) -> Array:
        if column not in self.table:
            raise InputError(f"no column {column!r}; there are: {', '.join(self.table)}.")
        return self.table[column]

    @cached_property
    def table(self) -> dict[str, Array]:
        """Columns (A,): votes, agreement, spam_score, and per label accuracy and bias.

        Agreement, accuracy and bias have 90 % intervals, ``..._low`` and ``..._high``.
        """
        agreed, out_of = self.agreed.T
        share = (agreed + 0.5) / (out_of + 1.0)
        wide = 1.645 * np.sqrt(share * (1.0 - share) / (self.cast.sum(1) + 1.0))
        columns: dict[str, Array] = {
            "votes": self.cast.sum(1),
            "agreement": np.divide(agreed, out_of, where=out_of > 0, out=np.full(len(self), np.nan)),
            "agreement_low": np.clip(share - wide, 0.0, 1.0),
            "agreement_high": np.clip(share + wide, 0.0, 1.0),
            "spam_score": self.spam_score,
        }
        draws = self.draw_matrices(INTERVAL_DRAWS, 0)  # (S, A, L, L)
        tilt = np.einsum("k,sakw->saw", self.item_mean, draws) - self.item_mean
        mean_tilt = np.einsum("k,akv->av", self.item_mean, self.matrices) - self.item_mean
        for r, name in enumerate(self.label_names):
            low, high = np.quantile(draws[:, :, r, r], [0.05, 0.95], axis=0)
            columns |= {f"accuracy_{name}": self.matrices[:, r, r]}
            columns |= {f"accuracy_{name}_low": low, f"accuracy_{name}_high": high}
        for r, name in enumerate(self.label_names):
            low, high = np.quantile(tilt[:, :, r], [0.05, 0.95], axis=0)
            columns |= {f"bias_{name}": mean_tilt[:, r], f"bias_{name}_low": low, f"bias_{name}_high": high}
        return columns

    def draw_matrices(self, n: int, random_state: Any = None) -> Array:
        """Draws of every annotator's confusion matrix, given the votes.

        Args:
            n: how many.
            random_state: seed, or a NumPy generator.

        Returns:
            (n, A, L, L).
        """
        rng = np.random.default_rng(random_state)
        mean = _rows_to_one(self.counts + self.strength[:, None, None] * self.centres)
        size = self.certain + self.strength[:, None]
        careful = rng.standard_gamma(mean * size[..., None], (n, *mean.shape))
        guesses = rng.standard_gamma(self.cast + self.guess_strength[:, None] * self.guess, (n, *self.cast.shape))
        spams = rng.random((n, len(self))) < self.spam_score
        drawn: Array = np.where(
            spams[..., None, None], _rows_to_one(guesses)[:, :, None, :], _rows_to_one(careful + 1e-12)
        )
        return drawn

    def to_frame(self) -> Any:
        """The table as a DataFrame, one row per annotator, facts included."""
        import pandas as pd  # only tables that leave as DataFrames need pandas

        return pd.DataFrame({**self.facts, **self.table}, index=pd.Index(self.names, name="annotator"))

    # -- groups ------------------------------------------------------------------------------------------------------

    @cached_property
    def fact_values(self) -> list[tuple[str, Any]]:
        """Every fact with each of its values, in the order of ``effects``."""
        return fact_values(self.facts)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        for fact, value in group.items():
            if fact not in self.facts:
                known = ", ".join(self.facts) or "none; fit with Votes.with_facts(...)"
                raise InputError(f"no fact {fact!r} of annotators is known; there are: {known}.")
            values = [name for known, name in self.fact_values if known == fact]
            if value not in values:
                raise InputError(f"no annotator has {fact}={value!r}; the values are: {shorten([*map(str, values)])}.")

    def members(self, group: Mapping[str, Any]) -> Array:
        """Which annotators belong to a group.

        Args:
            group: facts and their values.

        Returns:
            A mask (A,).

        Raises:
            InputError: a fact or a value is not known.
        """
        self._check_group(group)
        mask = np.ones(len(self), dtype=bool)
        for fact, value in group.items():
            mask &= np.array([one == value for one in self.facts[fact]])
        return mask

    def group_matrix(self, group: Mapping[str, Any]) -> Array:
        """The confusion matrix of careful people of whom some facts are known, averaged over the other facts.

        Args:
            group: facts and their values, such as ``{"gender": "f", "age": "50+"}``; empty for everybody.

        Returns:
            (L, L).

        Raises:
            InputError: a fact or a value is not known.
        """
        self._check_group(group)
        if not self.facts:
            return self.common
        facts = {name: [group[name]] * len(self) if name in group else column for name, column in self.facts.items()}
        logs = np.log(self.common) + np.einsum("af,fkv->akv", fact_matrix(facts, self.fact_values), self.effects)
        average: Array = np.average(softmax(logs, -1), axis=0, weights=1.0 - self.spam_score + 1e-9)
        return average

    def population_weights(self, population: Any = None) -> Array:
        """How much each annotator counts in a population.

        Args:
            population: None for the panel as it voted; a weight per annotator (A,); or the shares of each value of some
                facts, ``{"gender": {"f": 0.5, "m": 0.5}}``: the annotators are then weighted so that all these shares
                are met (raking), and those who guess count for nothing.

        Returns:
            Weights (A,) that sum to one.

        Raises:
            InputError: the weights are negative or of another number, or shares name facts or values that are unknown.
        """
        if population is None:
            return np.asarray(self.cast.sum(1) / self.cast.sum())
        if not isinstance(population, Mapping):
            given = np.asarray(population, dtype=np.float64)
            if given.shape != (len(self),) or not (given >= 0).all() or not given.sum() > 0:
                raise InputError(f"population must hold one weight >= 0 per annotator ({len(self)}).")
            return np.asarray(given / given.sum())
        weights = 1.0 - self.spam_score
        targets = []
        for fact, shares in population.items():
            whole = sum(check_number(f"share of {fact}={value!r}", share) for value, share in shares.items())
            targets += [
                (self.members({fact: value}), share / whole, fact, value) for value, share in shares.items() if share
            ]
            named = np.any([self.members({fact: value}) for value in shares], axis=0)
            weights = np.where(named, weights, 0.0)
        for _ in range(200):
            for mask, share, fact, value in targets:
                inside = weights[mask].sum()
                if inside <= 0:
                    raise InputError(f"no annotator stands for {fact}={value!r} in this population.")
                weights = np.where(mask, weights * share / inside, weights)
        return np.asarray(weights / weights.sum())

    def population_matrix(self, population: Any = None) -> Array:
        """The average confusion matrix of a population (L, L); see :meth:`population_weights`."""
        return np.asarray(np.einsum("a,akv->kv", self.population_weights(population), self.matrices))

    def effective_counts(self) -> Array:
        """Expected votes (A, L, L) as evidence about groups: many votes of one person are not those of many people."""
        return effective_counts(self.counts * (1.0 - self.spam_score)[:, None, None], self.strength)

    def compare_groups(
        self, fact: str, item_mean: Any = None, confidence_level: float = 0.9, random_state: Any = 0
    ) -> GroupComparison:
        """How groups of annotators differ, and whether they differ at all.

        Args:
            fact: whose values make the groups.
            item_mean: label distribution (L,) at which votes are compared; the items' mean by default.
            confidence_level: of the intervals, from resampled annotators.
            random_state: seed of permutations and resamples.

        Returns:
            Shares of votes per group, differences with intervals, and the p-value of a permutation test.

        Raises:
            InputError: the fact is not known, or all annotators share one value.
        """
        tail = 0.5 * (1.0 - check_confidence(confidence_level))
        if fact not in self.facts:
            self._check_group({fact: None})
        values = [value for name, value in self.fact_values if name == fact]
        if len(values) < 2:
            raise InputError(f"all annotators have {fact}={values[0]!r}; there is nothing to compare.")
        mean = self.item_mean if item_mean is None else np.asarray(item_mean, dtype=np.float64)
        rng = np.random.default_rng(random_state)
        counts, group = self.effective_counts(), np.array([values.index(value) for value in self.facts[fact]])
        prior = 2.0 * self.common

        def sums(weights: Array) -> Array:  # (G, L, L)
            return np.asarray(np.einsum("ga,akv->gkv", weights, counts))

        def shares(weights: Array) -> Array:  # votes of each group at the mean item, less those of everybody, (G, L)
            table = sums(weights)
            away: Array = mean @ _rows_to_one(table + prior) - mean @ _rows_to_one(table.sum(0) + prior)
            return away

        member = np.eye(len(values))[group].T  # (G, A)
        resampled = []
        for _ in range(INTERVAL_DRAWS):
            weights = np.zeros_like(member)
            for g in range(len(values)):
                inside = np.flatnonzero(group == g)
                np.add.at(weights[g], rng.choice(inside, len(inside)), 1.0)
            resampled.append(shares(weights))
        low, high = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
        observed = _homogeneity(sums(member))
        beaten = sum(_homogeneity(sums(member[:, rng.permutation(len(self))])) >= observed for _ in range(PERMUTATIONS))
        difference = shares(member)
        everybody = mean @ _rows_to_one(counts.sum(0) + prior)
        return GroupComparison(
            fact,
            values,
            self.label_names,
            np.bincount(group, minlength=len(values)),
            everybody + difference,
            difference,
            low,
            high,
            float(observed),
            (1 + beaten) / (1 + PERMUTATIONS),
        )

    # -- files -------------------------------------------------------------------------------------------------------

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What JSON holds of this, and its arrays by name."""
        plain: dict[str, Any] = {"names": [_plain(name) for name in self.names], "label_names": self.label_names}
        plain |= {"facts": {fact: [_plain(value) for value in column] for fact, column in self.facts.items()}}
        plain |= {"spam_rate": self.spam_rate}
        return plain, {name: getattr(self, name) for name in ARRAYS}

    @classmethod
    def unpack(cls, plain: Mapping[str, Any], arrays: Mapping[str, Array]) -> Annotators:
        """What :meth:`pack` packed.

        Args:
            plain: the part that JSON held.
            arrays: the rest, by name.

        Returns:
            The annotators.

        Raises:
            InputError: a part is missing, or of another shape.
        """
        n, n_labels = len(plain["names"]), len(plain["label_names"])
        facts = {str(fact): list(column) for fact, column in plain["facts"].items()}
        shapes = {
            "cast": (n, n_labels),
            "certain": (n, n_labels),
            "counts": (n, n_labels, n_labels),
            "centres": (n, n_labels, n_labels),
        }
        shapes |= {"strength": (n,), "spam_score": (n,), "guess": (n_labels,), "common": (n_labels, n_labels)}
        shapes |= {"guess_strength": (n,), "agreed": (n, 2), "item_mean": (n_labels,)}
        shapes |= {"effects": (len(fact_values(facts)), n_labels, n_labels)}
        for name, shape in shapes.items():
            if name not in arrays or arrays[name].shape != shape or not np.isfinite(arrays[name]).all():
                raise InputError(f"annotators: {name} must hold finite numbers of shape {shape}.")
            if name != "effects" and (arrays[name] < 0).any():
                raise InputError(f"annotators: {name} must not be negative.")
        if any(len(column) != n for column in facts.values()):
            raise InputError("annotators: every fact needs one value per annotator.")
        rate = float(plain["spam_rate"])
        if not 0 <= rate <= 1:
            raise InputError("annotators: the rate of guessing must lie between 0 and 1.")
        rest = {name: np.asarray(arrays[name], dtype=np.float64) for name in ARRAYS}
        labels = [str(name) for name in plain["label_names"]]
        return cls(
            names=list(plain["names"]),
            label_names=labels,
            spam_rate=rate,
            facts=facts,
            **rest,
        )


#: Arrays of :class:`Annotators`, as files hold them.
ARRAYS = (
    "cast",
    "counts",
    "certain",
    "centres",
    "strength",
    "spam_score",
    "guess",
    "guess_strength",
    "common",
    "agreed",
    "item_mean",
    "effects",
)


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """How the votes of groups of annotators differ at one and the same label distribution.

    Args:
        fact: whose values make the groups.
        groups: the G values.
        label_names: of the L labels.
        sizes: annotators in each group (G,).
        shares: votes that each group is expected to cast (G, L).
        difference: of these from everybody's (G, L).
        low: lower ends of the differences' intervals (G, L).
        high: their upper ends.
        statistic: likelihood ratio of one matrix per group against one for all.
        p_value: of the permutation test that groups do not differ: how often a random regrouping has a larger
            statistic.

    Example:
        >>> shares = np.array([[0.6, 0.4], [0.5, 0.5]])
        >>> apart = shares - shares.mean(0)
        >>> ends = apart - 0.1, apart + 0.1
        >>> GroupComparison("sex", ["f", "m"], ["no", "yes"], np.array([3, 4]), shares, apart, *ends, 2.1, 0.4).p_value
        0.4
    """

    fact: str
    groups: list[Any]
    label_names: list[str]
    sizes: Index
    shares: Array
    difference: Array
    low: Array
    high: Array
    statistic: float
    p_value: float

    def __str__(self) -> str:
        lines = [f"{self.fact}: p = {self.p_value:.3f} (permutation test of no difference)"]
        for g, name in enumerate(self.groups):
            cells = [
                f"{label} {self.shares[g, r]:.3f} ({self.difference[g, r]:+.3f}, {self.low[g, r]:+.3f} to "
                f"{self.high[g, r]:+.3f})"
                for r, label in enumerate(self.label_names)
            ]
            lines.append(f"  {name} ({self.sizes[g]}): " + ", ".join(cells))
        return "\n".join(lines)


def _rows_to_one(table: Array) -> Array:
    return np.asarray(table / table.sum(-1, keepdims=True))


def _plain(value: Any) -> Any:
    """A name or a fact as JSON holds it."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _homogeneity(table: Array) -> float:
    """Likelihood ratio statistic of one row of probabilities per group against one for all: counts (G, L, L)."""
    inside = table * np.log(_rows_to_one(table + 1e-12) + 1e-300)
    together = table.sum(0) * np.log(_rows_to_one(table.sum(0) + 1e-12) + 1e-300)
    return 2.0 * float(inside.sum() - together.sum())


# -- facts -----------------------------------------------------------------------------------------------------------


def fact_values(facts: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any]]:
    """Every fact with each of its values, in order of first appearance.

    Args:
        facts: a list of values per fact, one per annotator.

    Returns:
        Pairs of fact and value (F).

    Example:
        >>> fact_values({"sex": ["f", "m", "f"]})
        [('sex', 'f'), ('sex', 'm')]
    """
    return [(fact, value) for fact, column in facts.items() for value in dict.fromkeys(column)]


def fact_matrix(facts: Mapping[str, Sequence[Any]], values: Sequence[tuple[str, Any]]) -> Array:
    """Zeros and ones (A, F): which values of facts each annotator has.

    Args:
        facts: a list of values per fact, one per annotator.
        values: pairs of fact and value.

    Returns:
        The table.

    Example:
        >>> fact_matrix({"sex": ["f", "m"]}, [("sex", "f"), ("sex", "m")])
        array([[1., 0.],
               [0., 1.]])
    """
    columns = [[float(one == value) for one in facts[fact]] for fact, value in values]
    return np.array(columns, dtype=np.float64).T


def effective_counts(counts: Array, strength: Array) -> Array:
    """Expected votes (A, L, L) scaled to the evidence that they are about a group.

    A row of m votes of one person counts as ``m (s + 1) / (s + m)``, its effective size under a Dirichlet of
    strength s.

    Args:
        counts: expected votes by latent label and vote (A, L, L).
        strength: s of each annotator (A,).

    Returns:
        (A, L, L).
    """
    s, size = strength[:, None, None], counts.sum(-1, keepdims=True)
    return np.asarray(counts * (s + 1.0) / (s + np.maximum(size, 1.0)))


def fit_effects(counts: Array, common: Array, member: Array, penalty: float | None = None) -> tuple[Array, float]:
    """What facts of annotators add to the logarithm of their confusion matrices, by penalised softmax regression.

    Args:
        counts: effective votes by latent label and vote (A, L, L).
        common: the matrix of everybody (L, L).
        member: facts as zeros and ones (A, F).
        penalty: half of it times the squared effects is taken from the log likelihood; None lets annotators that are
            left out choose among :data:`PENALTIES`.

    Returns:
        Effects (F, L, L), and the penalty.
    """
    offset = np.log(common)
    if penalty is None:
        folds = np.arange(len(counts)) % min(5, len(counts))
        scores = []
        for one in PENALTIES:
            score = 0.0
            for fold in range(folds.max() + 1):
                out = folds == fold
                effects = fit_effects(counts[~out], common, member[~out], one)[0]
                logs = log_softmax(offset + np.einsum("af,fkv->akv", member[out], effects), -1)
                score += float((counts[out] * logs).sum())
            scores.append(score)
        penalty = PENALTIES[int(np.argmax(scores))]
    n_facts, n_labels = member.shape[1], len(common)
    effects = np.zeros((n_facts, n_labels, n_labels))
    if not np.isfinite(penalty):
        return effects, penalty
    size = counts.sum(-1)

    def loss(flat: Array, k: int) -> tuple[float, Array]:
        beta = flat.reshape(n_facts, n_labels)
        logs = log_softmax(offset[k] + member @ beta, -1)
        slope = member.T @ (size[:, k, None] * np.exp(logs) - counts[:, k])
        value = -float((counts[:, k] * logs).sum()) + 0.5 * penalty * float(np.square(flat).sum())
        return value, (slope + penalty * beta).ravel()

    for k in range(n_labels):
        answer = minimize(loss, np.zeros(n_facts * n_labels), (k,), "L-BFGS-B", jac=True, options={"maxiter": 60})
        effects[:, k] = answer.x.reshape(n_facts, n_labels)
    return effects, penalty


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


def draw_laws(law: SnefySimplex, n: int, random_state: Any, tilt: Array | None = None) -> Array:
    """Draws of every item's label distribution (N, n, L), by law or by the law given some votes (N, L)."""
    import torch  # the rest of this module is NumPy

    seed = int(np.random.default_rng(random_state).integers(2**31))
    generator = torch.Generator(law.device).manual_seed(seed)
    with torch.no_grad():
        draws = (law if tilt is None else law.posterior(tilt)).sample((n,), generator)
    return to_numpy(draws).transpose(1, 0, 2)


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
        known = people._numbers
        new = people.matrix(None)
        matrices = [
            people.matrices[a] if (a := known.get(name, known.get(str(name)))) is not None else new
            for name in votes.annotators
        ]
        return np.asarray(np.stack([*matrices, new])[votes.annotator, :, votes.label])

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
            place = None if who < 0 else people._numbers.get(votes.annotators[who])
            if place is not None:
                gains[row, place] = -1.0
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
