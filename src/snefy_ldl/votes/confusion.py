"""The people behind votes, as a fit learnt them: confusion matrices, their table and their groups.

A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``. The matrix ``C_a``
is that of one of two kinds of people: most vote by the item, ``C_a ~ Dirichlet(s C_g)`` per row with ``C_g`` the matrix
of those who share their facts (age, gender, ...); some guess, and their matrix has one and the same row whatever the
item. :mod:`snefy_ldl.votes.crowd` learns them, for :class:`snefy_ldl.AnnotatorLDL`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import softmax

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError

#: Draws behind the intervals of annotators and groups, and permutations behind the test of groups.
INTERVAL_DRAWS, PERMUTATIONS = 400, 999


@dataclass(frozen=True, eq=False, repr=False)
class Annotators:
    """What a fit learnt about its annotators.

    It prints as a table; ``annotators["spam_score"]`` is a column, :meth:`to_frame` a DataFrame with all of them.

    Args:
        names: of the A annotators.
        label_names: of the L labels.
        cast: votes of each annotator for each label (A, L).
        counts: expected votes by latent label and vote (A, L, L).
        certain: how many votes a row of each matrix is known as well as by (A, L); intervals come from it.
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
        >>> from snefy_ldl import AnnotatorLDL, SnefyLDL
        >>> from snefy_ldl.datasets import make_annotators
        >>> from snefy_ldl.votes import Votes
        >>> items = make_annotators(n=60, votes=5, n_annotators=8, long_table=True, random_state=0)
        >>> votes = Votes.from_long(items.votes)
        >>> model = AnnotatorLDL(SnefyLDL(n_neurons=8, epochs=2, random_state=0)).fit(items.X, votes)
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

    def __contains__(self, annotator: object) -> bool:
        return annotator in self._numbers or str(annotator) in self._numbers

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
        return (1.0 - spam) * _rows_to_one(careful) + spam * _rows_to_one(guesses)[:, None, :]

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
            return (1.0 - self.spam_rate) * careful + self.spam_rate * self.guess
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
        if annotator not in self:
            known = shorten([str(name) for name in self.names], 5)
            raise InputError(
                f"annotator {annotator!r} did not vote in the fit, whose annotators are {known}; None is somebody new."
            )
        return self._numbers.get(annotator, self._numbers.get(str(annotator), -1))

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
        every = np.concatenate([self.matrices[None], self.draw_matrices(INTERVAL_DRAWS, 0)])  # (1 + S, A, L, L)
        accuracy, bias = np.diagonal(every, axis1=2, axis2=3), self.item_mean @ every - self.item_mean
        for kind, (mean, *draws) in (("accuracy", accuracy), ("bias", bias)):
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            for r, label in enumerate(self.label_names):
                name = f"{kind}_{label}"
                columns |= {name: mean[:, r], f"{name}_low": low[:, r], f"{name}_high": high[:, r]}
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
        careful = rng.standard_gamma(mean * self.certain[..., None], (n, *mean.shape))
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
        return np.average(softmax(logs, -1), axis=0, weights=1.0 - self.spam_score + 1e-9)

    @cached_property
    def panel_matrix(self) -> Array:
        """The average confusion matrix of the panel as it voted (L, L)."""
        return np.asarray(np.einsum("a,akv->kv", self.cast.sum(1) / self.cast.sum(), self.matrices))

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
        careful = self.counts * (1.0 - self.spam_score)[:, None, None]
        counts, group = effective_counts(careful, self.strength), np.array([values.index(v) for v in self.facts[fact]])
        member = np.eye(len(values))[group].T  # (G, A)

        def shares(table: Array) -> tuple[Array, Array]:
            """Votes of everybody (L,) and of each group (G, L) at the mean item: counts (G, L, L)."""
            prior = 2.0 * self.common
            return mean @ _rows_to_one(table.sum(0) + prior), mean @ _rows_to_one(table + prior)

        resampled = []
        for _ in range(INTERVAL_DRAWS):
            drawn = [rng.choice(inside, len(inside)) for inside in map(np.flatnonzero, member)]
            everybody, each = shares(np.stack([counts[inside].sum(0) for inside in drawn]))
            resampled.append(each - everybody)
        low, high = np.quantile(resampled, [tail, 1.0 - tail], axis=0)
        tables = np.einsum("ga,akv->gkv", member, counts)
        observed, beaten = _homogeneity(tables), 0
        for _ in range(PERMUTATIONS):
            beaten += _homogeneity(np.einsum("ga,akv->gkv", member[:, rng.permutation(len(self))], counts)) >= observed
        everybody, each = shares(tables)
        return GroupComparison(
            fact,
            values,
            self.label_names,
            np.bincount(group, minlength=len(values)),
            each,
            each - everybody,
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
        """
        names, labels = list(plain["names"]), [str(name) for name in plain["label_names"]]
        facts = {str(fact): list(column) for fact, column in plain["facts"].items()}
        tables = {name: np.asarray(arrays[name], dtype=np.float64) for name in ARRAYS}
        return cls(names=names, label_names=labels, spam_rate=float(plain["spam_rate"]), facts=facts, **tables)


#: Arrays of :class:`Annotators` in files; a folder's checksums guard them.
ARRAYS = (
    *("cast", "counts", "certain", "centres", "strength", "spam_score", "guess", "guess_strength", "common"),
    *("agreed", "item_mean", "effects"),
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
