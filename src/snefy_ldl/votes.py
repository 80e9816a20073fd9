"""Annotator tables: single votes to counts and back, how far annotators agree, and what looks odd before a fit.

A *long* table has one row a vote (item, annotator, label), a *wide* one a row an item and a column an annotator, a
*counts* table a row an item and a column a label. All three become :class:`Votes`; ``votes.counts`` goes to
``SnefyLDL.fit(X, counts=...)``. Scores of predicted votes are in :mod:`snefy_ldl.vote_scores`, where to send the next
annotator in :mod:`snefy_ldl.allocation`.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from snefy_ldl.errors import DataNotFoundError, InputError
from snefy_ldl.tables import shorten, table_kind
from snefy_ldl.targets import PartialCounts
from snefy_ldl.validation import Array, check_counts

__all__ = ["Agreement", "Finding", "PartialCounts", "Votes", "krippendorff_alpha", "load_votes"]

Form = Literal["long", "wide", "counts"]
Level = Literal["nominal", "ordinal", "interval"]
Repeats = Literal["all", "first", "last", "error"]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False, repr=False)
class Votes:
    """Single votes of annotators on items.

    Args:
        item: which item each vote is on (V,), an index into ``items``.
        annotator: who cast it (V,), an index into ``annotators``; -1 where nobody knows.
        label: what for (V,), an index into ``label_names``.
        items: names of the N items, in the order of the rows of :attr:`counts`.
        annotators: names of the annotators.
        label_names: names of the L labels, in the order of the columns of :attr:`counts`.

    Example:
        >>> votes = Votes.from_long({"item": ["a", "a", "b"], "annotator": [1, 2, 1], "label": ["cat", "dog", "cat"]})
        >>> votes
        Votes(3 votes of 2 annotators on 2 items, 2 labels: cat, dog)
        >>> votes.counts
        array([[1., 1.],
               [1., 0.]])
    """

    item: Index
    annotator: Index
    label: Index
    items: list[Any]
    annotators: list[Any]
    label_names: list[str]

    def __repr__(self) -> str:
        voters = f" of {len(self.annotators)} annotators" if self.annotators else ""
        return (
            f"Votes({len(self.item)} votes{voters} on {len(self.items)} items, "
            f"{len(self.label_names)} labels: {shorten(self.label_names, 6)})"
        )

    def __len__(self) -> int:
        return len(self.item)

    # -- in ----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_long(
        cls,
        table: Any,
        item: str = "item",
        annotator: str | None = "annotator",
        label: str = "label",
        *,
        label_names: Sequence[Any] | None = None,
        repeats: Repeats = "all",
    ) -> Votes:
        """One row a vote.

        Args:
            table: DataFrame, or a mapping from column names to columns.
            item: column with the item's name.
            annotator: column with the annotator's name, or None where there is none.
            label: column with the label; rows without one (None, NaN, "") are skipped.
            label_names: the labels in the order wanted; by default all that occur, sorted.
            repeats: what to do when an annotator votes on an item again: count "all", keep the "first" or the "last",
                or raise an "error".
        """
        columns = {name: _column(table, name) for name in (item, annotator, label) if name is not None}
        if len({len(column) for column in columns.values()}) > 1:
            raise InputError("the columns of a long table must be equally long.")
        for name in (item, annotator):
            gaps = [row for row, value in enumerate(columns.get(name, [])) if _absent(value)]
            if gaps:
                raise InputError(f"column {name!r} is empty in row {gaps[0]}; every vote needs one.")
        given = [row for row, value in enumerate(columns[label]) if not _absent(value)]
        if not given:
            raise InputError(f"column {label!r} holds no vote at all.")
        items, where = _codes(columns[item])
        voters, who = ([], np.full(len(where), -1)) if annotator is None else _codes(columns[annotator])
        names, what = _label_codes([columns[label][row] for row in given], label_names)
        made = cls(where[given], who[given], what, items, voters, names)
        return made if repeats == "all" else made._without_repeats(repeats)

    @classmethod
    def from_wide(cls, table: Any, item: str | None = None, *, label_names: Sequence[Any] | None = None) -> Votes:
        """One row an item, one column an annotator, nothing (NaN, None, "") where an annotator gave no vote.

        Args:
            table: DataFrame or array (N, annotators).
            item: column with the item's name; by default the DataFrame's index, or the row number.
            label_names: the labels in the order wanted; by default all that occur, sorted.
        """
        names: list[Any] = list(getattr(table, "columns", range(np.asarray(table, dtype=object).shape[1])))
        if item is not None and item not in names:
            raise InputError(f"no column {item!r}; the table has: {shorten([str(name) for name in names])}.")
        cells = np.asarray(table, dtype=object)
        items = (
            list(cells[:, names.index(item)]) if item is not None else list(getattr(table, "index", range(len(cells))))
        )
        if len(set(items)) < len(items):
            twice = next(name for k, name in enumerate(items) if name in items[:k])
            raise InputError(f"item {twice!r} has two rows; a wide table has one row an item.")
        voters = [name for name in names if name != item or item is None]
        cells = cells[:, [names.index(name) for name in voters]]
        given = np.array([[not _absent(value) for value in row] for row in cells], dtype=bool).reshape(cells.shape)
        if not given.any():
            raise InputError("the table holds no vote at all.")
        where, who = np.nonzero(given)
        labels, what = _label_codes(list(cells[given]), label_names)
        return cls(where, who, what, items, voters, labels)

    @classmethod
    def from_counts(cls, counts: Any, items: Sequence[Any] | None = None, label_names: Any = None) -> Votes:
        """Numbers of votes (N, L), annotators unknown; rows without a vote are fine here."""
        table, names = check_counts(np.asarray(counts, dtype=np.float64) + 1.0)
        table = table - 1.0
        names = names or [str(name) for name in getattr(counts, "columns", range(table.shape[1]))]
        row, column = np.indices(table.shape)
        times = table.astype(np.intp).ravel()
        item, label = np.repeat(row.ravel(), times), np.repeat(column.ravel(), times)
        ids = list(getattr(counts, "index", range(len(table)))) if items is None else list(items)
        labels = names if label_names is None else [str(name) for name in label_names]
        return cls(item, np.full(len(item), -1), label, ids, [], labels)

    def _without_repeats(self, repeats: Repeats) -> Votes:
        if repeats not in ("first", "last", "error"):
            raise InputError(f'repeats={repeats!r}: use "all", "first", "last" or "error".')
        again = self._repeated()
        if repeats == "error" and again.any():
            row = int(np.flatnonzero(again)[0])
            raise InputError(
                f"annotator {self.annotators[self.annotator[row]]!r} votes on item {self.items[self.item[row]]!r} again."
            )
        keep = ~again
        if repeats == "last":
            keep = ~self._pick(np.arange(len(self))[::-1])._repeated()[::-1]
        return self._pick(np.flatnonzero(keep))

    def _repeated(self) -> NDArray[np.bool_]:
        """Votes whose annotator has voted on that item before, in the order of the votes."""
        key = self.item * max(1, len(self.annotators)) + self.annotator
        again = np.ones(len(key), dtype=bool)
        again[np.unique(key, return_index=True)[1]] = False
        return again & (self.annotator >= 0)

    def _pick(self, votes: Any) -> Votes:
        picked = self.item[votes], self.annotator[votes], self.label[votes]
        return Votes(*picked, self.items, self.annotators, self.label_names)

    # -- what is in them ---------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Array:
        """Votes each item has for each label (N, L)."""
        table = np.zeros((len(self.items), len(self.label_names)))
        np.add.at(table, (self.item, self.label), 1.0)
        return table

    def align(self, items: Sequence[Any]) -> Array:
        """Counts of the items asked for, in that order (len(items), L); zeros for those nobody voted on."""
        where = {name: k for k, name in enumerate(self.items)}
        table = np.vstack([self.counts, np.zeros((1, len(self.label_names)))])
        aligned: Array = table[[where.get(name, -1) for name in items]]
        return aligned

    def subsample(self, n: int, random_state: Any = None) -> tuple[Votes, Votes]:
        """At most n random votes of each item, and all others: to train on few and to test on the rest."""
        rng = np.random.default_rng(random_state)
        order = rng.permutation(len(self))
        order = order[np.argsort(self.item[order], kind="stable")]
        start = np.searchsorted(self.item[order], np.arange(len(self.items)))
        rank = np.arange(len(order)) - start[self.item[order]]
        return self._pick(np.sort(order[rank < n])), self._pick(np.sort(order[rank >= n]))

    def agreement(self, level: Level = "nominal") -> Agreement:
        """How far annotators agree, in a few numbers."""
        counts = self.counts
        totals = counts.sum(1)
        voted = counts[totals > 0]
        shares = voted / voted.sum(1, keepdims=True)
        several = voted[voted.sum(1) > 1]
        size = several.sum(1)
        pairs = (several * (several - 1.0)).sum(1) / (size * (size - 1.0))
        top = np.sort(voted, 1)[:, -2:]
        return Agreement(
            items=len(self.items),
            votes=len(self),
            annotators=len(self.annotators),
            votes_per_item=(float(totals.min()), float(np.median(totals)), float(totals.max())),
            krippendorff_alpha=krippendorff_alpha(counts, level),
            pairwise_agreement=float(pairs.mean()) if len(pairs) else float("nan"),
            entropy=float(entr(shares).sum(1).mean()),
            unanimous=float((several.max(1) == size).mean()) if len(pairs) else float("nan"),
            tied=float((top[:, 0] == top[:, 1]).mean()),
        )

    def preflight(self) -> list[Finding]:
        """What is odd in the votes, the worst first; an empty list is good news.

        >>> table = {"item": ["a", "a", "b"], "annotator": [1, 1, 2], "label": ["cat", "cat", "Cat "]}
        >>> for finding in Votes.from_long(table).preflight():
        ...     print(finding)
        warning: 1 vote repeats an earlier one of the same annotator on the same item (a)
        warning: labels that differ in case or blanks only: 'Cat ' and 'cat'
        note: 1 of 2 items has a single vote (b)
        """
        findings = [*self._odd_votes(), *self._odd_items(), *self._odd_labels(), *self._odd_annotators()]
        return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.level))

    def _odd_votes(self) -> list[Finding]:
        again = np.flatnonzero(self._repeated())
        if not len(again):
            return []
        verb = "vote repeats an earlier one" if len(again) == 1 else "votes repeat earlier ones"
        names = [self.items[self.item[row]] for row in again]
        return [Finding("warning", f"{len(again)} {verb} of the same annotator on the same item", names)]

    def _odd_items(self) -> list[Finding]:
        totals, found = self.counts.sum(1), []
        for level, number, words in (("error", 0, "no vote at all"), ("note", 1, "a single vote")):
            rows = np.flatnonzero(totals == number)
            if len(rows) and not (number == 1 and len(rows) == len(totals)):
                verb = "has" if len(rows) == 1 else "have"
                names = [self.items[row] for row in rows]
                found.append(Finding(level, f"{len(rows)} of {len(totals)} items {verb} {words}", names))
        if (totals <= 1).all():
            found.append(Finding("warning", "no item has two votes: disagreement cannot be seen", []))
        return found

    def _odd_labels(self) -> list[Finding]:
        found = []
        plain: dict[str, list[str]] = {}
        for name in self.label_names:
            plain.setdefault(" ".join(name.split()).casefold(), []).append(name)
        for alike in plain.values():
            if len(alike) > 1:
                names = " and ".join(repr(name) for name in sorted(alike))
                found.append(Finding("warning", f"labels that differ in case or blanks only: {names}", []))
        used = np.bincount(self.label, minlength=len(self.label_names))
        unused = [name for name, times in zip(self.label_names, used) if times == 0]
        if unused:
            found.append(Finding("warning", f"{len(unused)} label(s) without a vote", unused))
        rare = [name for name, times in zip(self.label_names, used) if 0 < times < 0.001 * len(self)]
        if rare:
            found.append(Finding("note", f"{len(rare)} label(s) with less than one vote in a thousand", rare))
        return found

    def _odd_annotators(self) -> list[Finding]:
        if not self.annotators:
            return []
        found, counts = [], self.counts
        cast = np.zeros((len(self.annotators), len(self.label_names)))
        known = self.annotator >= 0
        np.add.at(cast, (self.annotator[known], self.label[known]), 1.0)
        totals = cast.sum(1)
        constant = (totals >= 10) & (cast.max(1) == totals)
        share = counts.sum(0).max() / max(1.0, counts.sum())
        if constant.any() and share < 0.9:
            names = [self.annotators[a] for a in np.flatnonzero(constant)]
            found.append(
                Finding("warning", f"{len(names)} annotator(s) always vote for one label (10 votes or more)", names)
            )
        with np.errstate(invalid="ignore", divide="ignore"):
            # how often the others on the same item agree with a vote
            others = counts[self.item].sum(1) - 1.0
            agree = np.where(others > 0, (counts[self.item, self.label] - 1.0) / others, np.nan)
        usable = known & np.isfinite(agree)
        sums = np.bincount(self.annotator[usable], agree[usable], len(totals))
        times = np.bincount(self.annotator[usable], minlength=len(totals))
        busy = times >= 10
        if busy.sum() >= 3:
            mean = sums[busy] / times[busy]
            low = mean < np.median(mean) - 4.0 * 1.4826 * np.median(np.abs(mean - np.median(mean))) - 0.05
            names = [self.annotators[a] for a in np.flatnonzero(busy)[low]]
            if names:
                found.append(
                    Finding("warning", f"{len(names)} annotator(s) agree far less with others than is usual", names)
                )
        if totals.max() > 0.5 * totals.sum() and len(totals) > 2:
            name = self.annotators[int(totals.argmax())]
            found.append(Finding("note", "one annotator cast more than half of all votes", [name]))
        return found

    # -- out ---------------------------------------------------------------------------------------------------------

    def to_long(self) -> dict[str, list[Any]]:
        """Columns ``item``, ``annotator``, ``label``, one entry a vote; ``pandas.DataFrame`` takes it as it is."""
        return {
            "item": [self.items[k] for k in self.item],
            "annotator": [self.annotators[a] if a >= 0 else None for a in self.annotator],
            "label": [self.label_names[r] for r in self.label],
        }

    def to_wide(self) -> Any:
        """A DataFrame with a row an item and a column an annotator; votes without a known annotator cannot be shown."""
        import pandas as pd

        if not self.annotators or (self.annotator < 0).any():
            raise InputError("a wide table needs to know who cast each vote; use to_long or counts.")
        if self._repeated().any():
            raise InputError('an annotator votes on an item twice; a wide table holds one. Use repeats="last".')
        cells = np.full((len(self.items), len(self.annotators)), None, dtype=object)
        cells[self.item, self.annotator] = np.array(self.label_names, dtype=object)[self.label]
        return pd.DataFrame(cells, index=pd.Index(self.items, name="item"), columns=self.annotators)

    def to_counts(self) -> Any:
        """A DataFrame with a row an item and a column a label, as ``fit(X, counts=...)`` takes it."""
        import pandas as pd

        table = pd.DataFrame(self.counts.astype(np.int64), columns=self.label_names)
        table.index = pd.Index(self.items, name="item")
        return table

    def save(self, path: str | os.PathLike[str], form: Form = "long") -> Path:
        """Write a table that :func:`load_votes` reads back: CSV, TSV or Parquet by the file's ending."""
        import pandas as pd

        file = Path(path).expanduser()
        kind = table_kind(file)
        if form == "long":
            table = pd.DataFrame(self.to_long())
        else:
            table = (self.to_wide() if form == "wide" else self.to_counts()).reset_index()
        if kind == "parquet":
            table.columns = [str(name) for name in table.columns]
            table.to_parquet(file, index=False)
        else:
            table.to_csv(file, sep="," if kind == "csv" else "\t", index=False)
        return file


def load_votes(
    path: str | os.PathLike[str],
    form: Form | Literal["auto"] = "auto",
    *,
    item: str = "item",
    annotator: str | None = "annotator",
    label: str = "label",
    label_names: Sequence[Any] | None = None,
    repeats: Repeats = "all",
) -> Votes:
    """Votes from a CSV, TSV or Parquet file. Every cell is taken as text, so that ``007`` stays ``007``.

    Args:
        path: the file.
        form: "long" (columns item, annotator, label), "wide" (item, then a column an annotator) or "counts" (item, then
            a column a label); "auto" takes long if its columns are there, counts if all others hold whole numbers and
            some number is not 0 or 1 or some row holds more than one vote, and wide otherwise.
        item: column that names the item; without such a column rows are numbered (not in a long table).
        annotator: column that names the annotator; None, or a name that is not there, if nobody knows.
        label: column that holds the label.
        label_names: the labels in the order wanted.
        repeats: see :meth:`Votes.from_long`.
    """
    file = Path(path).expanduser()
    table = _read_text(file)
    columns = list(table.columns)
    if form == "auto":
        form = "long" if item in columns and label in columns else _guess(table.drop(columns=[item], errors="ignore"))
    try:
        if form == "long":
            voter = annotator if annotator in columns else None
            return Votes.from_long(table, item, voter, label, label_names=label_names, repeats=repeats)
        named = item if item in columns else None
        if form == "wide":
            return Votes.from_wide(table, named, label_names=label_names)
        if form == "counts":
            numbers = table.drop(columns=[item], errors="ignore")
            numbers = numbers if label_names is None else numbers[[str(name) for name in label_names]]
            return Votes.from_counts(numbers.astype("float64"), None if named is None else list(table[item]))
    except InputError as error:
        raise InputError(f"{file.name}: {error}") from None
    raise InputError(f'form={form!r}: use "auto", "long", "wide" or "counts".')


def _read_text(file: Path) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("tables need pandas and pyarrow: pip install 'snefy-ldl[data]'") from None
    kind = table_kind(file)
    if not file.is_file():
        raise DataNotFoundError(f"no file at {file}.")
    try:
        if kind == "parquet":
            table = pd.read_parquet(file)
            return table.astype(object).where(table.notna(), None).map(lambda v: v if v is None else str(v))
        separator = "," if kind == "csv" else "\t"
        # only an empty cell is a missing vote: "NA" and "None" may well be labels
        return pd.read_csv(file, sep=separator, dtype=str, index_col=False, keep_default_na=False, na_values=[""])
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{file.name} cannot be read as a table: {error}") from None


def _guess(table: Any) -> Form:
    try:
        numbers = table.astype("float64").to_numpy()
    except (TypeError, ValueError):
        return "wide"
    whole = np.isfinite(numbers).all() and (numbers >= 0).all() and (numbers == np.round(numbers)).all()
    # ratings 1 to 5 are whole numbers, too; but a table of counts has zeros, and its rows sum to much the same
    return "counts" if whole and (numbers == 0).any() else "wide"


# -- agreement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How far annotators agree.

    Args:
        items: how many.
        votes: how many in all.
        annotators: how many, 0 if unknown.
        votes_per_item: fewest, median and most.
        krippendorff_alpha: 1 is perfect agreement, 0 what chance gives.
        pairwise_agreement: chance that two annotators of an item agree.
        entropy: mean entropy of an item's votes, in nats.
        unanimous: share of items (with two votes or more) on which all agree.
        tied: share of items without a single most frequent label.
    """

    items: int
    votes: int
    annotators: int
    votes_per_item: tuple[float, float, float]
    krippendorff_alpha: float
    pairwise_agreement: float
    entropy: float
    unanimous: float
    tied: float

    def __str__(self) -> str:
        fewest, median, most = self.votes_per_item
        voters = f" of {self.annotators} annotators" if self.annotators else ""
        return (
            f"{self.votes} votes{voters} on {self.items} items ({fewest:g} to {most:g} an item, median {median:g})\n"
            f"Krippendorff's alpha {self.krippendorff_alpha:.3f}, two annotators agree {self.pairwise_agreement:.1%}\n"
            f"mean entropy {self.entropy:.3f} nats, unanimous {self.unanimous:.1%}, tied {self.tied:.1%}"
        )


@dataclass(frozen=True)
class Finding:
    """One odd thing: how bad ("error", "warning" or "note"), what, and the names it concerns."""

    level: str
    what: str
    where: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        names = shorten([str(name) for name in self.where], 5)
        return f"{self.level}: {self.what}" + (f" ({names})" if names else "")


def krippendorff_alpha(counts: Any, level: Level = "nominal") -> float:
    """Krippendorff's α from votes per item (N, L): ``1 - observed / expected disagreement``.

    With ``o_cd = Σ_items k_c (k_d - [c = d]) / (n - 1)`` the coincidences, ``n_c`` their margins and ``n`` their total,
    ``α = 1 - (n-1) Σ o_cd δ_cd / Σ n_c n_d δ_cd``; items with fewer than two votes count for nothing. δ is 0 or 1
    (nominal), the squared difference of the labels' positions (interval), or that of their mean ranks (ordinal).
    Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).

    >>> krippendorff_alpha([[4, 0], [0, 4]])
    1.0
    """
    table = np.asarray(counts, dtype=np.float64)
    size = table.sum(1)
    table = table[size > 1]
    if not len(table):
        return float("nan")
    spread = 1.0 / (table.sum(1) - 1.0)
    coincidence = (table * spread[:, None]).T @ table - np.diag((table * spread[:, None]).sum(0))
    margin = coincidence.sum(0)
    n = margin.sum()
    if level == "nominal":
        distance = 1.0 - np.eye(len(margin))
    elif level in ("ordinal", "interval"):
        place = np.cumsum(margin) - 0.5 * margin if level == "ordinal" else np.arange(len(margin), dtype=float)
        distance = np.square(place[:, None] - place)
    else:
        raise InputError(f'level={level!r}: use "nominal", "ordinal" or "interval".')
    expected = float(margin @ distance @ margin)
    if expected == 0.0:  # a single label was ever used: nothing to disagree on, and nothing to show either
        return float("nan")
    return 1.0 - float((n - 1.0) * (coincidence * distance).sum()) / expected


# -- cells -----------------------------------------------------------------------------------------------------------


def _absent(value: Any) -> bool:
    return value is None or value == "" or value != value


def _column(table: Any, name: str) -> list[Any]:
    names = list(table) if isinstance(table, Mapping) else [str(column) for column in table.columns]
    if name not in names:
        raise InputError(f"no column {name!r}; the table has: {shorten([str(n) for n in names])}.")
    return list(table[name])


def _codes(values: Sequence[Hashable]) -> tuple[list[Any], Index]:
    """Distinct values in order of first appearance, and which each is."""
    where = {value: k for k, value in enumerate(dict.fromkeys(values))}
    return list(where), np.array([where[value] for value in values], dtype=np.intp)


def _label_codes(values: Sequence[Any], label_names: Sequence[Any] | None) -> tuple[list[str], Index]:
    """Label names as text, and which label each vote is for; whole numbers in floats (1.0) lose their point."""
    texts = [_text(value) for value in values]
    if label_names is None:
        distinct = set(texts)
        try:
            names = sorted(distinct, key=float)
        except ValueError:
            names = sorted(distinct)
    else:
        names = [_text(name) for name in label_names]
    where = {name: r for r, name in enumerate(names)}
    foreign = [text for text in texts if text not in where]
    if foreign:
        raise InputError(f"the label {foreign[0]!r} is not among the label_names: {shorten(names)}.")
    if len(names) < 2:
        raise InputError(f"all votes are for one label ({names[0]!r}); name the others with label_names=[...].")
    return names, np.array([where[text] for text in texts], dtype=np.intp)


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)
