"""Votes of annotators as plain tables: long or counts, in any container, and in files.

A *long* table has one row per vote (item, annotator, label); a *counts* table has one row per item and one column per
label. Both become a :class:`VoteTable`, which only holds them; :class:`snefy_ldl.votes.Votes` also measures how far
annotators agree.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_counts, column_names
from snefy_ldl.datasets.cells import as_pandas, cell_text, first_repeat, is_frame
from snefy_ldl.datasets.scales import label_order
from snefy_ldl.datasets.shares import label_numbers
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import InputError, TableNote

Table = TypeVar("Table", bound="VoteTable")


@dataclass(frozen=True, eq=False, repr=False)
class VoteTable:
    """Single votes of annotators on items.

    Args:
        item: which item each vote is on (V,), an index into ``items``.
        annotator: who cast it (V,), an index into ``annotators``; -1 if that is unknown.
        label: what for (V,), an index into ``label_names``.
        items: names of the N items, in the order of the rows of :attr:`counts`.
        annotators: names of the annotators.
        label_names: names of the L labels, in the order of the columns of :attr:`counts`.
        facts: what is known about the annotators: for each fact a list of values, one per annotator; or None.

    Example:
        >>> VoteTable.from_long({"item": ["a", "a"], "annotator": [1, 2], "label": ["cat", "dog"]}).counts
        array([[1., 1.]])
    """

    item: Index
    annotator: Index
    label: Index
    items: list[Any]
    annotators: list[Any]
    label_names: list[str]
    facts: dict[str, list[Any]] | None = None

    def __repr__(self) -> str:
        voters = f" of {len(self.annotators)} annotators" if self.annotators else ""
        return (
            f"{type(self).__name__}({len(self.item)} votes{voters} on {len(self.items)} items, "
            f"{len(self.label_names)} labels: {shorten(self.label_names, 6)})"
        )

    def __len__(self) -> int:
        return len(self.item)

    @classmethod
    def from_long(
        cls: type[Table],
        table: Any,
        item: str = "item",
        annotator: str | None = "annotator",
        label: str = "label",
        *,
        label_names: Sequence[Any] | None = None,
    ) -> Table:
        """One row per vote.

        Args:
            table: DataFrame, or a mapping from column names to columns.
            item: column with the item's name.
            annotator: column with the annotator's name, or None if there is none.
            label: column with the label; rows without one (None, NaN, "") are skipped. A list or a tuple of labels is
                one vote for each, of the same annotator.
            label_names: the labels in the order wanted; by default all that occur, in the order of the column's
                categories (ordered ones of pandas, an Enum of polars), of numbers or of a known scale of words
                (low, medium, high), else sorted.

        Returns:
            The votes, items and annotators in the order of their first vote.

        Raises:
            InputError: a column is missing or empty in some row, a label is not among the names, or all votes are for
                one label.

        Example:
            >>> VoteTable.from_long({"who": [1, 2], "what": ["u", "v"]}, "who", None, "what").counts
            array([[1., 0.],
                   [0., 1.]])
        """
        columns = {name: _column(table, name) for name in (item, annotator, label) if name is not None}
        if len({len(column) for column in columns.values()}) > 1:
            raise InputError("the columns of a long table must be equally long.")
        several = [value if isinstance(value, (list, tuple)) else (value,) for value in columns[label]]
        rows = np.repeat(np.arange(len(several)), [len(values) for values in several])
        columns = {name: [column[row] for row in rows] for name, column in columns.items() if name != label} | {
            label: [value for values in several for value in values]
        }
        for name in columns.keys() - {label}:
            gaps = [row for row, value in enumerate(columns[name]) if _absent(value)]
            if gaps:
                raise InputError(f"column {name!r} is empty in data row {gaps[0] + 1}; every vote needs one.")
        given = [row for row, value in enumerate(columns[label]) if not _absent(value)]
        if not given:
            raise InputError(f"column {label!r} holds no vote at all.")
        items, where = _codes(columns[item])
        voters, who = ([], np.full(len(where), -1)) if annotator is None else _codes(columns[annotator])
        names, what = _label_codes([columns[label][row] for row in given], label_names, table[label])
        return cls(where[given], who[given], what, items, voters, names)

    @classmethod
    def from_counts(
        cls: type[Table],
        counts: Any,
        items: Sequence[Any] | None = None,
        label_names: Any = None,
        *,
        item: str = "item",
    ) -> Table:
        """Numbers of votes, annotators unknown; rows without a vote are fine here.

        Args:
            counts: whole numbers (N, L), as an array or a frame of pandas or polars.
            items: names of the N items; by default those of the frame's column ``item``, its index, or row numbers.
            label_names: names of the L labels; by default the frame's other columns, or label_0, label_1, ...
            item: that column.

        Returns:
            As many single votes as the numbers.

        Raises:
            InputError: a cell is no whole number >= 0, or the names do not fit.

        Example:
            >>> len(VoteTable.from_counts([[2, 1], [0, 0]]))
            3
        """
        if is_frame(counts):
            frame = as_pandas(counts)
            if item in frame.columns:
                items, frame = list(frame[item]) if items is None else items, frame.drop(columns=item)
            counts, items = frame, list(frame.index) if items is None else items
        names = column_names(counts)
        table = label_numbers(counts, names) if names else np.asarray(counts, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] < 2:
            raise InputError(f"counts must be a table with at least 2 labels; got shape {table.shape}.")
        table = check_counts(np.pad(table, ((0, 0), (0, 1)), constant_values=1.0))[0][:, :-1]  # every row has a vote
        cells = np.repeat(np.arange(table.size), table.astype(np.intp).ravel())
        row, voted = np.divmod(cells, table.shape[1])
        ids = list(range(len(table)) if items is None else items)
        labels = names or [f"label_{r}" for r in range(table.shape[1])]
        labels = labels if label_names is None else [str(name) for name in label_names]
        if (len(ids), len(labels)) != table.shape:
            raise InputError(
                f"counts of shape {table.shape} do not fit {len(ids)} items and {len(labels)} label names."
            )
        return cls(row, np.full(len(row), -1), voted, ids, [], labels)

    def repeated(self) -> Mask:
        """Which votes repeat one: their annotator has voted on that item before, in the order of the votes.

        Returns:
            A mask (V,); votes of unknown annotators repeat nothing.
        """
        key = self.item * max(1, len(self.annotators)) + self.annotator
        again = np.ones(len(key), dtype=bool)
        again[np.unique(key, return_index=True)[1]] = False
        return again & (self.annotator >= 0)

    def pick(self: Table, votes: Any) -> Table:
        """Some of the votes, with all items, annotators and labels kept.

        Args:
            votes: numbers of the votes, or a mask (V,).

        Returns:
            A table of the same kind.
        """
        parts = self.item[votes], self.annotator[votes], self.label[votes]
        return type(self)(*parts, self.items, self.annotators, self.label_names, self.facts)

    def on_items(self: Table, items: Sequence[Any]) -> Table:
        """The votes on some items, in that order; all annotators and labels are kept.

        Args:
            items: names of n items, matched as text: 7 is "7".

        Returns:
            A table of the same kind with these items.

        Example:
            >>> VoteTable.from_counts([[2, 0], [0, 1]], ["a", "b"]).on_items(["b", "c"]).counts
            array([[0., 1.],
                   [0., 0.]])
        """
        rows = {cell_text(name): k for k, name in enumerate(items)}
        place = np.array([rows.get(cell_text(name), -1) for name in self.items], dtype=np.intp)[self.item]
        keep = place >= 0
        return replace(
            self, item=place[keep], annotator=self.annotator[keep], label=self.label[keep], items=list(items)
        )

    def on_rows_of(self: Table, X: Any) -> Table:
        """The votes with their items in the order of the rows of X, where the index of X names items.

        Args:
            X: features, one row per item. An array, or a frame with numbered rows, is in the order of ``items``.

        Returns:
            A table of the same kind; names are compared as text.

        Raises:
            InputError: the index names other items than the votes.

        Example:
            >>> import pandas
            >>> votes = VoteTable.from_counts([[2, 0], [0, 1]], ["a", "b"])
            >>> votes.on_rows_of(pandas.DataFrame({"x": [1.0, 2.0]}, index=["b", "a"])).items
            ['b', 'a']
        """
        index = getattr(X, "index", None)
        if index is None or callable(index) or type(index).__name__ == "RangeIndex":
            return self
        own, names = [cell_text(name) for name in self.items], [cell_text(name) for name in index]
        if own == names:
            return self
        if (twice := first_repeat(names)) is not None:
            raise InputError(f"two rows of X are named {twice!r}; give one row per item.")
        if lost := sorted({*own} - {*names}):
            raise InputError(
                f"{len(lost)} items of the votes are not in the index of X: {shorten(lost, 3)}. Rows go by name; "
                "X.reset_index(drop=True) goes by position."
            )
        return self.on_items(names)

    def with_facts(self: Table, facts: Any, annotator: str = "annotator") -> Table:
        """These votes, with what is known about who cast them: age, gender, ...

        Args:
            facts: DataFrame, or a mapping from names of columns to columns, one row per person; people without a vote
                are left out.
            annotator: column with their names, matched as text.

        Returns:
            A table of the same kind.

        Raises:
            InputError: a column is missing, a person has two rows, or an annotator has none.

        Example:
            >>> votes = VoteTable.from_long({"item": [1, 1], "annotator": ["a", "b"], "label": ["u", "v"]})
            >>> votes.with_facts({"annotator": ["b", "a"], "age": ["50+", "18-24"]}).facts
            {'age': ['18-24', '50+']}
        """
        names = [cell_text(name) for name in _column(facts, annotator)]
        where = {name: k for k, name in enumerate(names)}
        if (twice := first_repeat(names)) is not None:
            raise InputError(f"annotator {twice!r} has two rows of facts; give one row per person.")
        if absent := [name for name in self.annotators if cell_text(name) not in where]:
            raise InputError(f"annotator {absent[0]!r} has votes, but no row of facts.")
        rows = [where[cell_text(name)] for name in self.annotators]
        columns = [str(name) for name in (facts if isinstance(facts, Mapping) else facts.columns)]
        known = {name: _column(facts, name) for name in columns if name != annotator}
        return replace(self, facts={name: [_fact(column[row]) for row in rows] for name, column in known.items()})

    @property
    def counts(self) -> Array:
        """Votes each item has for each label (N, L)."""
        table = np.zeros((len(self.items), len(self.label_names)))
        np.add.at(table, (self.item, self.label), 1.0)
        return table


def read_vote_cells(file: Path) -> Any:
    """A CSV, TSV or Parquet file with every cell as text, so that ``007`` stays ``007``.

    Args:
        file: the file, in the format of its extension.

    Returns:
        A DataFrame of strings; None if a cell is empty.

    Raises:
        DataNotFoundError: there is no such file.
        InputError: it cannot be read as a table, or has no rows.
        ImportError: pandas or pyarrow is not installed.

    Example:
        >>> read_vote_cells(Path("nowhere.csv"))
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.DataNotFoundError: no file at nowhere.csv.
    """
    source = TableSource(file)
    cells = source.whole([], source.columns)
    # Only an empty cell is a missing vote: "NA" and "None" may well be labels.
    return cells.where(cells != "", None)


# -- cells -----------------------------------------------------------------------------------------------------------


def _absent(value: Any) -> bool:
    return value is None or value == "" or value != value


def _fact(value: Any) -> Any:
    """A fact as JSON holds it: text, a number or None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if _absent(value) else value


def _column(table: Any, name: str) -> list[Any]:
    names = list(table) if isinstance(table, Mapping) else [str(column) for column in table.columns]
    if name not in names:
        raise InputError(f"no column {name!r}; the table has: {shorten([str(n) for n in names])}.")
    return list(table[name])


def _codes(values: Sequence[Hashable]) -> tuple[list[Any], Index]:
    """Distinct values in order of first appearance, and which each is."""
    where = {value: k for k, value in enumerate(dict.fromkeys(values))}
    return list(where), np.array([where[value] for value in values], dtype=np.intp)


def _label_codes(values: Sequence[Any], label_names: Sequence[Any] | None, column: Any) -> tuple[list[str], Index]:
    """Label names as text, and which label each vote is for; whole numbers in floats (1.0) lose their point."""
    texts = _one_per_number([cell_text(value) for value in values])
    if label_names is None:
        distinct = sorted(set(texts))
        names = label_order(distinct, column) or distinct
    else:
        names = [cell_text(name) for name in label_names]
    where = {name: r for r, name in enumerate(names)}
    foreign = [text for text in texts if text not in where]
    if foreign:
        raise InputError(f"the label {foreign[0]!r} is not among the label_names: {shorten(names)}.")
    if len(names) < 2:
        raise InputError(f"all votes are for one label ({names[0]!r}); name the others with label_names=[...].")
    return names, np.array([where[text] for text in texts], dtype=np.intp)


def _one_per_number(texts: list[str]) -> list[str]:
    """The texts, with one spelling for each number: "1" and "1.0" are one label, as a note states."""
    try:
        numbers = {text: float(text) for text in {*texts}}
    except ValueError:
        return texts
    if len({*numbers.values()}) == len(numbers):
        return texts
    spelling = {text: cell_text(number) for text, number in numbers.items()}
    changed = sorted(text for text in numbers if spelling[text] != text)
    warnings.warn(TableNote(f"labels {shorten(changed)} are read as the numbers that they spell."), stacklevel=2)
    return [spelling[text] for text in texts]


#: Words in names of columns that hold one of the three; the first role with a word in common counts.
ROLES = {
    "annotator": "annotator annotators worker rater user who person coder labeller labeler judge participant expert "
    "subject reviewer voter by completed",
    "label": "label labels vote choice answer class category rating annotation response judgement judgment emotion tag "
    "verdict value",
    "item": "item items image img photo picture text tweet sample task document doc question object file filename unit "
    "example instance row id key name",
}


def _role(name: str) -> str:
    """Role of a column by its name: worker_id is an annotator, image_label a label."""
    words = set(re.split(r"[\W_]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower()))
    return next((role for role, vocabulary in ROLES.items() if words & set(vocabulary.split())), "")


def guess_vote_columns(
    cells: Any, labels: Sequence[str] | None = None, items: Sequence[str] = ()
) -> tuple[str, str | None, str] | None:
    """Columns of a table with one vote per row.

    The label column is the one that holds nothing but labels, if these are known; otherwise names decide.

    Args:
        cells: A DataFrame of text, None if a cell is empty.
        labels: The labels, if they are known.
        items: Columns of the items' own table: one of the same name names the items.

    Returns:
        Columns of item, annotator (None if there is none) and label; None if the table does not look so.

    Example:
        >>> import pandas
        >>> cells = pandas.DataFrame({"photo": ["a", "a"], "worker_id": ["7", "8"], "answer": ["cat", "dog"]})
        >>> guess_vote_columns(cells)
        ('photo', 'worker_id', 'answer')
    """
    names = [str(name) for name in cells.columns]
    roles: dict[str, list[str]] = {"annotator": [], "label": [], "item": [], "": []}
    for name in names:
        roles[_role(name)].append(name)
    if labels is not None:
        known = {str(label) for label in labels}
        holding = [name for name in names if set(cells[name].dropna()) and set(cells[name].dropna()) <= known]
        roles["label"] = holding if len(holding) == 1 else roles["label"]
    shared = [name for name in names if name in items and name not in roles["label"]]
    if len(shared) == 1:
        roles["item"] = shared
    if len(roles["item"]) > 1:  # "image" and "image_id", "id" and "text": the one whose votes come again
        repeated = [name for name in roles["item"] if cells[name].dropna().duplicated().any()]
        roles["item"] = repeated if len(repeated) == 1 else roles["item"]
    if len(roles["item"]) != 1 or len(roles["label"]) != 1 or roles["item"] == roles["label"]:
        return None
    return roles["item"][0], (roles["annotator"] or [None])[0], roles["label"][0]  # type: ignore[list-item]


def find_vote_columns(
    file: Path,
    wanted: tuple[str, str, str],
    form: Literal["auto", "long", "shares", "counts"],
    labels: Sequence[str] | None,
    id_name: str | None,
    items: Path | None,
) -> tuple[tuple[str, str, str], str]:
    """Columns of a long table of votes in a file: those wanted, where they are there, or those that look like them.

    Args:
        file: The table.
        wanted: Columns of item, annotator and label.
        form: "long" if the user chose one vote per row.
        labels: The labels, if they are known.
        id_name: Column that names the items, if the user named one.
        items: The items' own table, if there is one.

    Returns:
        The columns, and a note; an empty text without one.

    Raises:
        InputError: The form is "long", and no three columns look like it; the message lists the columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     votes = Path(folder) / "votes.csv"
        ...     _ = votes.write_text(chr(10).join(["photo,worker,answer", "a,1,yes", "a,2,no"]))
        ...     find_vote_columns(votes, ("item", "annotator", "label"), "auto", None, None, None)[0]
        ('photo', 'worker', 'answer')
    """
    source = TableSource(file)
    item = id_name if id_name in source.columns else wanted[0]
    if wanted[2] in source.columns and item in source.columns:
        return (str(item), wanted[1], wanted[2]), ""
    if labels and set(labels) <= set(source.columns):
        return wanted, ""  # a column per label
    cells = read_vote_cells(file)
    guess = guess_vote_columns(cells, labels, () if items is None else TableSource(items).columns)
    if guess is not None and id_name in source.columns:
        guess = (str(id_name), guess[1], guess[2])
    if guess is None:
        if form == "long" and not any(name in source.columns for name in ("item", "id", "row")):
            raise InputError(
                f"{file.name}: which columns hold item, annotator and label? It has: {', '.join(source.columns)}. Say "
                "--vote-columns ITEM,ANNOTATOR,LABEL."
            )
        return wanted, ""
    who = f", annotator {guess[1]!r}" if guess[1] else ""
    words = f"one vote per row: item {guess[0]!r}{who}, label {guess[2]!r} (--vote-columns overrides this)"
    return (guess[0], guess[1] or wanted[1], guess[2]), words
