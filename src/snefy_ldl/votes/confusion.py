"""The people behind votes, as estimated by a fit: confusion matrices, their table and their groups.

A vote of annotator a on an item with label distribution ℓ is for v with probability ``(C_aᵀ ℓ)_v``. The matrix ``C_a``
is that of one of two kinds of people: most vote by the item, ``C_a ~ Dirichlet(s C)`` per row with ``C`` the matrix of
everybody; some guess, and their matrix has one and the same row for every item. :mod:`snefy_ldl.votes.crowd` learns
them, for :class:`snefy_ldl.AnnotatorLDL`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import t as student

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError

#: Draws behind the intervals of annotators and groups, and permutations behind the test of groups.
INTERVAL_DRAWS, PERMUTATIONS = 400, 999
#: How many standard deviations a row may lie out along a direction.
FARTHEST = 5.0
#: Steps that fit an average matrix to shares of votes.
RAKINGS = 100
#: Members below which a group describes persons rather than the group.
FEWEST_MEMBERS = 5
#: Values of a numeric fact up to which each is a group; bins of those with more.
MOST_VALUES, BINS = 8, 4
BIN = re.compile(r"\S+ to \S+")


@dataclass(frozen=True, eq=False, repr=False)
class Annotators:
    """Estimates of a fit about its annotators.

    It prints as a table; ``annotators["spam_score"]`` is a column, :meth:`to_frame` a DataFrame with all of them.

    Args:
        names: of the A annotators.
        label_names: of the L labels.
        cast: votes of each annotator for each label (A, L).
        exposure: expected latent labels of the items of each annotator's votes, the vote itself left out (A, L).
        counts: expected votes by latent label and vote (A, L, L).
        certain: votes equivalent to the evidence for each row of a matrix (A, L); intervals come from it.
        centres: matrix that each annotator's own is shrunk to (A, L, L).
        strength: by how many votes per latent label (A,).
        spam_score: probability that an annotator guesses (A,).
        guess: overall shares of votes of those who guess (L,).
        guess_strength: by how many votes an annotator's own guesses are shrunk to them (A,).
        agreed: of each annotator's votes, how many others on the same items agree with, and out of how many (A, 2).
        item_mean: mean label distribution of the items (L,).
        directions: R directions of the features that some people vote by, and their offsets (d + 1, R); R may be 0.
        slopes: how they move the log-odds of each annotator's votes (A, R, L).
        facts: a list of A values for each fact, or none; None if a value is not known.
        votes_per_item: median of the fit.

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
    exposure: Array
    counts: Array
    certain: Array
    centres: Array
    strength: Array
    spam_score: Array
    guess: Array
    guess_strength: Array
    agreed: Array
    item_mean: Array
    directions: Array
    slopes: Array
    facts: dict[str, list[Any]]
    votes_per_item: float

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
        """The expected confusion matrix of one annotator, or of a new one.

        Args:
            annotator: a name; None for a new one; facts such as ``{"age": "50+"}`` for the people of whom these are
                true; a list of names for the average of these people.

        Returns:
            Probabilities of votes (columns) given the latent label (rows), (L, L).

        Raises:
            InputError: no annotator has this name, or a fact is not known.
        """
        if annotator is None or isinstance(annotator, Mapping):
            return self._matching(self.members(annotator or {}), np.ones(len(self)))
        if isinstance(annotator, (list, tuple, np.ndarray)):
            return np.mean([self.matrix(name) for name in annotator], axis=0)
        return np.asarray(self.matrices[self.number(annotator)])

    def slope(self, annotator: Any) -> Array:
        """How the directions of the features move the votes of one annotator, or the mean of several (R, L).

        Args:
            annotator: as in :meth:`matrix`.

        Returns:
            Slopes of log-odds.

        Raises:
            InputError: no annotator has this name, or a fact is not known.
        """
        if annotator is None or isinstance(annotator, Mapping):
            return np.asarray(self.slopes[self.members(annotator or {})].mean(0))
        names = annotator if isinstance(annotator, (list, tuple, np.ndarray)) else [annotator]
        return np.mean([self.slope(name) if name is None else self.slopes[self.number(name)] for name in names], axis=0)

    def number(self, annotator: Any) -> int:
        """The number of an annotator.

        Args:
            annotator: the name; text that reads as the name will do.

        Returns:
            The index into ``names``.

        Raises:
            InputError: no annotator has this name.
        """
        if annotator not in self:
            known = shorten([str(name) for name in self.names], 5)
            raise InputError(
                f"annotator {annotator!r} did not vote in the fit, whose annotators are {known}; None is a new one."
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

    def groups(self, fact: str) -> list[Any]:
        """The values of a fact, in order of first appearance; unknown ones left out.

        Args:
            fact: its name.

        Returns:
            The values.

        Raises:
            InputError: the fact is not known.
        """
        if fact not in self.facts:
            known = ", ".join(self.facts) or "none; fit with Votes.with_facts(...)"
            raise InputError(f"no fact {fact!r} of annotators is known; there are: {known}.")
        return [value for value in dict.fromkeys(self.facts[fact]) if value is not None]

    def members(self, facts: Mapping[str, Any]) -> Index:
        """Numbers of the annotators of whom some facts are true.

        Args:
            facts: facts and their values, such as ``{"gender": "f", "age": 34}``; empty for everybody. A number falls
                into a bin where the fact has bins.

        Returns:
            Their numbers.

        Raises:
            InputError: a fact is unknown, or true of no annotator.
        """
        inside = np.ones(len(self), dtype=bool)
        for fact, value in facts.items():
            values = self.groups(fact)
            wanted = bin_of(value, values)
            if wanted not in values:
                raise InputError(f"no annotator has {fact}={value!r}; the values are: {shorten([*map(str, values)])}.")
            inside &= np.array([one == wanted for one in self.facts[fact]])
        if not inside.any():
            raise InputError(f"no annotator has all of {dict(facts)}; name fewer facts.")
        return np.flatnonzero(inside)

    @cached_property
    def panel_matrix(self) -> Array:
        """The average confusion matrix of the panel as it voted (L, L)."""
        return self._matching(np.arange(len(self)), self.cast.sum(1))

    def _matching(self, members: Index, weights: Array) -> Array:
        """The average matrix of some people (L, L), its columns raised so that it predicts their shares of votes.

        Each person's own matrix is shrunk to everybody's; their average shares need no shrinking.
        """
        size, weights = self.cast[members].sum(1, keepdims=True), weights[members] / weights[members].sum()
        matrix = np.einsum("a,akv->kv", weights, self.matrices[members])
        seen = self.exposure[members] / size
        wanted = weights @ ((self.cast[members] + seen @ matrix) / (size + 1.0))
        for _ in range(RAKINGS):
            matrix = _rows_to_one(matrix * (wanted / np.maximum(weights @ seen @ matrix, 1e-12)))
        return matrix

    def compare(
        self, fact: str, shares: Array, panel: Array, confidence_level: float = 0.9, random_state: Any = 0
    ) -> GroupComparison:
        """How groups of annotators differ from the panel, and whether they differ from each other.

        A person's own difference is their share of votes minus the share that the panel would have cast on the same
        items. Differences vary within groups by ``s²``, chance and persons together, so the mean over a group's ``n_g``
        members, seen and new, is known within ``s / √n_g``: a group of one is as uncertain as a new person of that
        group. The panel is the mean of groups by their parts ``w_h`` of the votes, so the group's difference from it is
        known within ``s √((1 - w_g)² / n_g + Σ_{h≠g} w_h² / n_h)`` times t of the pooled degrees of freedom.

        Args:
            fact: whose values make the groups.
            shares: of votes that each group is expected to cast (G, L), in the order of :meth:`groups`.
            panel: those of the panel (L,).
            confidence_level: of the intervals.
            random_state: seed of the permutations.

        Returns:
            Shares of votes per group, differences with intervals, and the p-value of a permutation test.

        Raises:
            InputError: the fact is not known, or there are no two groups.
        """
        level, values = check_confidence(confidence_level), self.groups(fact)
        if len(values) < 2:
            raise InputError(f"annotators have one value of {fact!r} ({values}); there is nothing to compare.")
        known = np.array([one is not None for one in self.facts[fact]])
        own = ((self.cast - self.exposure @ self.panel_matrix) / self.cast.sum(1, keepdims=True))[known]  # (A', L)
        group = np.array([values.index(one) for one in self.facts[fact] if one is not None])
        sizes = np.bincount(group)

        def within(which: Index) -> Array:
            """Sums of squares around the means of the groups (L,)."""
            means = np.stack([np.bincount(which, column) / sizes for column in own.T], 1)
            return np.asarray(np.square(own - means[which]).sum(0))

        freedom = len(own) - len(values)
        total = np.square(own - own.mean(0)).sum(0)
        variance = within(group) / freedom if freedom else total / (len(own) - 1)
        cast = self.cast.sum(1) / self.cast.sum()
        parts = np.bincount(group, cast[known])
        spread = np.square(np.eye(len(values)) - parts) @ (1.0 / sizes)
        spread += np.square(cast[~known].sum()) / max(int((~known).sum()), 1)
        half = student.ppf(0.5 + 0.5 * level, max(freedom, 1)) * np.sqrt(variance * spread[:, None])
        rng, inside = np.random.default_rng(random_state), within(group).sum()
        beaten = sum(within(rng.permutation(group)).sum() <= inside * (1.0 + 1e-9) for _ in range(PERMUTATIONS))
        apart = shares - panel
        low, high = np.maximum(apart - half, -panel), np.minimum(apart + half, 1.0 - panel)
        p_value = (1 + beaten) / (1 + PERMUTATIONS)
        return GroupComparison(fact, values, self.label_names, sizes, shares, apart, low, high, p_value)

    # -- files -------------------------------------------------------------------------------------------------------

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What JSON holds of this, and its arrays by name."""
        plain: dict[str, Any] = {"names": [_plain(name) for name in self.names], "label_names": self.label_names}
        plain |= {"facts": {fact: [_plain(value) for value in column] for fact, column in self.facts.items()}}
        plain |= {"votes_per_item": self.votes_per_item}
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
        return cls(
            names=names, label_names=labels, votes_per_item=float(plain["votes_per_item"]), facts=facts, **tables
        )


#: Arrays of :class:`Annotators` in files; a folder's checksums guard them.
ARRAYS = (
    *("cast", "exposure", "counts", "certain", "centres", "strength", "spam_score", "guess", "guess_strength"),
    *("agreed", "item_mean", "directions", "slopes"),
)


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """How the votes of groups of annotators differ on the same items.

    Args:
        fact: whose values make the groups.
        groups: the G values.
        label_names: of the L labels.
        sizes: annotators in each group (G,).
        shares: votes that each group is expected to cast (G, L).
        difference: of these from the panel's (G, L).
        low: lower ends of the differences' intervals (G, L).
        high: their upper ends.
        p_value: of the permutation test that groups do not differ: how frequently random groups of these sizes
            differ as much.

    Example:
        >>> shares = np.array([[0.6, 0.4], [0.5, 0.5]])
        >>> apart = shares - shares.mean(0)
        >>> ends = apart - 0.1, apart + 0.1
        >>> GroupComparison("sex", ["f", "m"], ["no", "yes"], np.array([3, 4]), shares, apart, *ends, 0.4).p_value
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
    p_value: float

    def __str__(self) -> str:
        lines = [f"{self.fact}: p = {self.p_value:.3f} (permutation test of no difference)"]
        for g, name in enumerate(self.groups):
            cells = [
                f"{label} {self.shares[g, r]:.3f} ({self.difference[g, r]:+.3f}, {self.low[g, r]:+.3f} to "
                f"{self.high[g, r]:+.3f})"
                for r, label in enumerate(self.label_names)
            ]
            people = f"{self.sizes[g]}{'' if self.sizes[g] >= FEWEST_MEMBERS else ', too few to speak of a group'}"
            lines.append(f"  {name} ({people}): " + ", ".join(cells))
        return "\n".join(lines)


def project(features: Array, directions: Array) -> Array:
    """Where rows (N, d) lie along directions (d + 1, R), clipped like features of the network (N, R)."""
    return np.clip(directions[0] + features @ directions[1:], -FARTHEST, FARTHEST)


def _rows_to_one(table: Array) -> Array:
    return np.asarray(table / table.sum(-1, keepdims=True))


def _plain(value: Any) -> Any:
    """A name or a fact as JSON holds it."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


# -- facts -----------------------------------------------------------------------------------------------------------


def bin_numbers(column: Sequence[Any]) -> list[Any]:
    """Values of a fact: numbers with many values in up to four bins of about as many people, all else as it is.

    Args:
        column: one value per annotator, None if it is not known.

    Returns:
        As many values; the name of a bin is its range, such as "18 to 26".

    Example:
        >>> bin_numbers([18, 20, 22, 25, 30, 35, 41, 50, 62, None])[-3:]
        ['41 to 62', '41 to 62', None]
        >>> bin_numbers(["f", "m", None])
        ['f', 'm', None]
    """
    try:
        numbers = np.array([np.nan if value is None else float(value) for value in column])
    except (TypeError, ValueError):
        return list(column)
    if len(np.unique(numbers[~np.isnan(numbers)])) <= MOST_VALUES:
        return list(column)
    edges = np.unique(np.nanquantile(numbers, np.linspace(0.0, 1.0, BINS + 1)))
    place = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    names = [f"{low:.6g} to {high:.6g}" for low, high in pairwise(edges)]
    return [None if np.isnan(number) else names[k] for number, k in zip(numbers, place)]


def bin_of(value: Any, values: Sequence[Any]) -> Any:
    """The bin that a number falls into, where a fact has bins; the value itself otherwise.

    Args:
        value: of a fact.
        values: those there are.

    Returns:
        One of the values, or the value.

    Example:
        >>> bin_of(30, ["18 to 26", "26 to 50"]), bin_of("f", ["f", "m"])
        ('26 to 50', 'f')
    """
    if value in values or not all(isinstance(one, str) and BIN.fullmatch(one) for one in values):
        return value
    try:
        low = {float(one.split(" to ")[0]): one for one in values}
        return low[max(edge for edge in low if edge <= max(float(value), min(low)))]
    except (TypeError, ValueError):
        return value
