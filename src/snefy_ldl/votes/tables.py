"""Annotator tables: single votes to counts and back, how far annotators agree, and what looks odd before a fit.

A *long* table has one row a vote (item, annotator, label), a *wide* one a row an item and a column an annotator, a
*counts* table a row an item and a column a label. All three become :class:`Votes`; ``votes.counts`` goes to
``SnefyLDL.fit(X, counts=...)``. Scores of predicted votes are in :mod:`snefy_ldl.votes.scores`, where to send the next
annotator in :mod:`snefy_ldl.votes.allocation`.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._text import shorten
from snefy_ldl._types import Array, Index
from snefy_ldl.datasets.tables import table_kind
from snefy_ldl.errors import DataNotFoundError, InputError
from snefy_ldl.validation import PartialCounts, check_counts, column_names
from snefy_ldl.votes.agreement import Agreement, Finding, Level, find_oddities, krippendorff_alpha, summarize

__all__ = ["Agreement", "Finding", "PartialCounts", "Votes", "krippendorff_alpha", "load_votes"]

Form = Literal["long", "wide", "counts"]
Repeats = Literal["all", "first", "last", "error"]


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
        for name in [item] + ([] if annotator is None else [annotator]):
            gaps = [row for row, value in enumerate(columns[name]) if _absent(value)]
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
        items = _row_names(table, len(cells)) if item is None else list(cells[:, names.index(item)])
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
        names = column_names(counts)
        table = np.asarray(counts, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] < 2:
            raise InputError(f"counts must be a table with at least 2 labels; got shape {table.shape}.")
        table = check_counts(np.pad(table, ((0, 0), (0, 1)), constant_values=1.0))[0][:, :-1]  # every row has a vote
        row, column = np.indices(table.shape)
        times = table.astype(np.intp).ravel()
        item, label = np.repeat(row.ravel(), times), np.repeat(column.ravel(), times)
        ids = _row_names(counts, len(table)) if items is None else list(items)
        labels = names or [f"label_{r}" for r in range(table.shape[1])]
        labels = labels if label_names is None else [str(name) for name in label_names]
        if len(ids) != len(table) or len(labels) != table.shape[1]:
            raise InputError(
                f"counts of shape {table.shape} do not fit {len(ids)} items and {len(labels)} label names."
            )
        return cls(item, np.full(len(item), -1), label, ids, [], labels)

    def _without_repeats(self, repeats: Repeats) -> Votes:
        if repeats not in ("first", "last", "error"):
            raise InputError(f'repeats={repeats!r}: use "all", "first", "last" or "error".')
        again = self.repeated()
        if repeats == "error" and again.any():
            row = int(np.flatnonzero(again)[0])
            raise InputError(
                f"annotator {self.annotators[self.annotator[row]]!r} votes twice on item "
                f"{self.items[self.item[row]]!r}."
            )
        keep = ~again
        if repeats == "last":
            keep = ~self._pick(np.arange(len(self))[::-1]).repeated()[::-1]
        return self._pick(np.flatnonzero(keep))

    def repeated(self) -> NDArray[np.bool_]:
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
        return summarize(self, level)

    def preflight(self) -> list[Finding]:
        """What is odd in the votes, the worst first; an empty list is good news.

        >>> table = {"item": ["a", "a", "b"], "annotator": [1, 1, 2], "label": ["cat", "cat", "Cat "]}
        >>> for finding in Votes.from_long(table).preflight():
        ...     print(finding)
        warning: 1 vote repeats an earlier one of the same annotator on the same item (a)
        warning: labels that differ in case or blanks only: 'Cat ' and 'cat'
        note: 1 of 2 items has a single vote (b)
        """
        return find_oddities(self)

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
        if self.repeated().any():
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
            a column a label); "auto" takes long if its columns are there, counts if all others hold whole numbers
            with a zero among them, and wide otherwise.
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
    # ratings 1 to 5 are whole numbers, too, but counts hold zeros
    return "counts" if whole and (numbers == 0).any() else "wide"


# -- cells -----------------------------------------------------------------------------------------------------------


def _row_names(table: Any, n_rows: int) -> list[Any]:
    """A DataFrame's index, or row numbers."""
    return list(table.index) if hasattr(table, "columns") else list(range(n_rows))


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
