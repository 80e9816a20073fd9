"""Labelled rows as people send them: shares, counts of votes, single votes.

A :class:`Labelled` set names its rows if it can. Labels may come without features: :func:`join_features` looks them
up by name in another table, and :func:`append_rows` combines several sets.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from snefy_ldl._internal.memory import SINGLE_NUMBERS
from snefy_ldl._internal.text import in_file, shorten
from snefy_ldl.datasets.cells import first_repeat
from snefy_ldl.datasets.shares import Reading, read_label_columns
from snefy_ldl.datasets.table_files import Progress, TableSource
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.errors import InputError

#: Columns that ``query`` adds to a row's features: its score and, with this prefix, the predicted shares.
SCORE, PREDICTED = "query_score", "predicted_"
#: Columns that name rows unless the user names one, the first that is there.
ID_NAMES = ("item", "id", "row")
#: Rows below which there are too few to learn from.
FEW_ROWS = 20
#: How a remark ends if names of rows repeat.
GROUPS_KEPT = "groups of rows and is no feature; every row is kept"

Form = Literal["auto", "shares", "counts", "long"]
VoteColumns = tuple[str, str, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Labelled(Reading):
    """Rows with labels, and notes on how the file was read.

    Args:
        source: name of the file, for messages.
        label_names: the L labels.
        ids: names of the rows as text (N,), or of the groups they belong to if names repeat; or None.
        features: a DataFrame (N, d), or None if they must be looked up.
        id_name: column the names came from.
        votes: single votes, if these were given.
    """

    source: str
    label_names: list[str]
    ids: list[str] | None = None
    features: Any = None
    id_name: str | None = None
    votes: VoteTable | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names_groups(self) -> bool:
        """Whether names repeat, and so name groups of rows; False if there are no names."""
        return self.ids is not None and len(set(self.ids)) < len(self.ids)

    def take(self, rows: Any) -> Labelled:
        """Some rows (k,) by number, in that order; ``votes`` stay those of all rows."""
        ids = None if self.ids is None else [self.ids[k] for k in rows]
        features = None if self.features is None else self.features.iloc[rows]
        below = None if self.below is None else self.below[rows]
        return replace(self, labels=self.labels[rows], ids=ids, features=features, below=below)


def is_answer(column: str, label_names: list[str]) -> bool:
    """Whether a column is what ``query`` wrote about a row, and so no feature of it.

    Args:
        column: its name.
        label_names: the labels.

    Returns:
        True for the score and the predicted shares.

    Example:
        >>> [is_answer(name, ["sand"]) for name in ("query_score", "predicted_sand", "predicted_price")]
        [True, True, False]
    """
    return column == SCORE or (column.startswith(PREDICTED) and column[len(PREDICTED) :] in label_names)


def find_id(columns: list[str], wanted: str | None = None, features: list[str] | None = None) -> str | None:
    """The column that names the rows.

    Args:
        columns: of the table.
        wanted: the column named by the user, or None.
        features: columns that are features, and so name nothing.

    Returns:
        The column wanted, else item, id or row, if it is there; None without any.

    Example:
        >>> find_id(["id", "age"]), find_id(["code", "age"], "code"), find_id(["age"])
        ('id', 'code', None)
    """
    for name in ([] if wanted is None else [wanted]) + [name for name in ID_NAMES if name not in (features or [])]:
        if name in columns:
            return name
    return None


# -- reading -----------------------------------------------------------------------------------------------------------


def read_labelled(
    source: TableSource,
    label_names: list[str] | None,
    feature_names: list[str] | None = None,
    *,
    form: Form = "auto",
    id_name: str | None = None,
    vote_columns: VoteColumns = ("item", "annotator", "label"),
    prefer_counts: bool = False,
    normalize: bool = False,
    limits: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Labelled:
    """Labelled rows of a table.

    Args:
        source: the table.
        label_names: the labels; None takes those that occur, which only single votes allow.
        feature_names: columns of features; if the file lacks some of them, it has no features.
        form: "shares" or "counts" (a column per label), "long" (a row per vote), or "auto" to look at the columns.
        id_name: column that names the rows.
        vote_columns: columns of a long table.
        prefer_counts: how to read whole numbers that are shares as well as votes: ones and zeros, hundreds.
        normalize: whether label columns hold amounts, each row of which is to be divided by its sum.
        limits: of label columns, below which amounts are not known, or "min" for the smallest positive one.
        progress: called with how much of a table with a column per label is read, and how much there is.

    Returns:
        The rows.

    Raises:
        InputError: it holds no labels in a known form, or a cell is not what it must be; the message names it.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "votes.csv"
        ...     _ = file.write_text(chr(10).join(["item,annotator,label", "a,1,yes", "a,2,no"]))
        ...     read_labelled(TableSource(file), ["no", "yes"]).labels
        array([[1., 1.]])
    """
    labels = label_names or []
    features = feature_names if set(feature_names or ()) <= set(source.columns) else None
    key = find_id(source.columns, id_name, [*labels, *(feature_names or [])])
    has_labels = bool(labels) and set(labels) <= set(source.columns)
    has_votes = vote_columns[2] in source.columns and (key is not None or vote_columns[0] in source.columns)
    try:
        if form == "long" or (form == "auto" and has_votes and not has_labels):
            return _from_long(source, label_names, features, vote_columns, id_name)
        if form == "auto" and not has_labels:
            each = shorten(labels, 5) if labels else "named with --labels"
            raise InputError(
                f"{source.file.name} holds no labels in a known form. It needs a column for each label ({each}) with "
                f"shares or numbers of votes, or the columns {', '.join(vote_columns)} with one vote per row."
            )
        if label_names is None:
            raise InputError("name the label columns with --labels.")
        source.need(label_names, "labels")
        if both := [name for name in label_names if name in (features or [])]:
            raise InputError(f"{source.file.name}: column {both[0]!r} is named both as a label and as a feature.")
        settings: dict[str, Any] = {"prefer_counts": prefer_counts, "normalize": normalize, "limits": limits}
        return _from_columns(source, label_names, features, key, progress, counts=form == "counts", **settings)
    except InputError as error:
        raise InputError(in_file(source.file.name, str(error))) from None


def _check_ids(ids: list[str], name: str) -> list[str]:
    if "" in ids:
        raise InputError(f"data row {ids.index('') + 1}, column {name!r}: empty, and it names the rows. Fill it in.")
    return ids


def _from_columns(
    source: TableSource,
    labels: list[str],
    features: list[str] | None,
    key: str | None,
    progress: Progress | None,
    **settings: Any,
) -> Labelled:
    """A column per label; rows without any label were not done yet and are skipped."""
    wanted = [*labels, *(features or [])]
    frame = source.whole(wanted, [] if key is None else [key], progress, narrow=features or [])
    reading, kept = read_label_columns(frame, labels, **settings)
    ids = None if key is None else _check_ids(list(frame[key].iloc[kept]), key)
    votes = VoteTable.from_counts(reading.labels, ids, labels) if reading.are_counts else None
    notes = [*source.notes, *reading.notes]
    if ids is not None and (values := len(set(ids))) < len(ids):
        many = f"{values} values" if values > 1 else "one value"
        notes.append(f"column {key!r} has {many} in {len(ids)} rows: it names {GROUPS_KEPT}")
    known = None if features is None else frame[features]
    if known is not None and len(kept) < len(frame):
        known = known.iloc[kept].reset_index(drop=True)
    more: dict[str, Any] = {"ids": ids, "features": known, "id_name": key, "votes": votes}
    return Labelled(**{**vars(reading), "notes": tuple(notes)}, source=source.file.name, label_names=labels, **more)


def _from_long(
    source: TableSource, labels: list[str] | None, features: list[str] | None, columns: VoteColumns, id_name: str | None
) -> Labelled:
    item, annotator, label = columns
    item = item if item in source.columns else find_id(source.columns, id_name, features) or item
    source.need([item, label], "a long table of votes; name its columns with --vote-columns")
    voter = annotator if annotator in source.columns else None
    frame = source.whole(features or [], [name for name in (item, voter, label) if name is not None])
    votes = VoteTable.from_long(frame, item, voter, label, label_names=labels)
    varies = frame.groupby(item)[features or []].nunique(dropna=False) > 1
    if varies.to_numpy().any():
        name, column = varies.stack().idxmax()
        raise InputError(
            f"column {column!r} has several values for item {name!r}. Correct them, or leave it out with --drop."
        )
    voted = votes.counts.sum(axis=1) > 0
    ids = [name for name, has in zip(_check_ids([str(name) for name in votes.items], item), voted) if has]
    known = None if features is None else frame.drop_duplicates(item).set_index(item)[features].loc[ids]
    known = None if known is None else known.reset_index(drop=True)
    skipped = len(voted) - len(ids)
    notes = (f"{skipped} items without a vote were skipped",) if skipped else ()
    more: dict[str, Any] = {"ids": ids, "features": known, "id_name": item, "votes": votes}
    file, names = source.file.name, votes.label_names
    return Labelled(votes.counts[voted], True, notes, source=file, label_names=names, **more)


def find_odd_rows(rows: Labelled) -> list[str]:
    """Potential problems of labelled rows before a fit.

    Args:
        rows: labelled rows, with features or without.

    Returns:
        One sentence each; an empty list is good news.

    Example:
        >>> find_odd_rows(Labelled(np.full((5, 2), 0.5), False, source="a.csv", label_names=["no", "yes"]))
        ['5 rows are few to learn from: do not trust the fitted model, nor its figures, before you have more']
    """
    remarks = []
    if len(rows) < FEW_ROWS:
        words = "do not trust the fitted model, nor its figures, before you have more"
        remarks.append(f"{len(rows)} rows are few to learn from: {words}")
    if rows.features is not None and rows.features.size <= SINGLE_NUMBERS:
        labels = {f"label {name}": shares for name, shares in zip(rows.label_names, rows.labels.T)}
        again = rows.features.assign(**labels).duplicated().to_numpy()
        if n := int(again.sum()):
            first = f"the first is row {again.argmax() + 1}; remove them if they are copies"
            remarks.append(f"{n} of {len(rows)} rows equal an earlier one in all features and labels; {first}")
    return remarks


def last_of_each(rows: Labelled) -> Labelled:
    """Of rows with one name the last, for files with new values for rows of another one.

    Args:
        rows: labelled rows.

    Returns:
        Rows whose names are all different; a note counts the others.
    """
    if rows.ids is None or not rows.names_groups:
        return rows
    last = sorted({name: row for row, name in enumerate(rows.ids)}.values())
    note = f"{len(rows.ids) - len(last)} rows name a row that comes again later; the later one counts"
    return replace(rows.take(last), notes=(*(old for old in rows.notes if not old.endswith(GROUPS_KEPT)), note))


def named_rows(source: TableSource, id_name: str | None = None) -> tuple[list[str], str]:
    """Names of all rows of a table.

    Args:
        source: the table.
        id_name: column that names the rows; by default item, id or row.

    Returns:
        The names as text, and the column they stand in.

    Raises:
        InputError: no column names the rows, or a name is empty.
    """
    key = find_id(source.columns, id_name)
    if key is None:
        raise InputError(f"{source.file.name} has no column that names its rows (item, id or row); name it with --id.")
    return _check_ids(list(source.whole([], [key])[key]), key), key


def join_features(
    rows: Labelled,
    source: TableSource,
    feature_names: list[str],
    id_name: str | None = None,
    progress: Progress | None = None,
) -> Labelled:
    r"""Look up the features of labelled rows, by name in a table.

    A table without a column of names is taken by row number, counting from 0, which is what ``query`` writes for it.

    Args:
        rows: Labels with names.
        source: Table of features.
        feature_names: Its columns.
        id_name: Its column of names; by default the one the rows have, else item, id or row.
        progress: Called with how much of the table is read, and how much there is.

    Returns:
        The rows that the table has; a note counts those it lacks.

    Raises:
        InputError: The rows have no names, the table lacks a column or names a row twice, or not one row is in it.

    >>> import pathlib, tempfile
    >>> names = {"source": "votes.csv", "label_names": ["no", "yes"], "ids": ["b"], "id_name": "item"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder) / "items.csv"
    ...     _ = table.write_text("item,age\na,30\nb,40\n")
    ...     join_features(Labelled(np.array([[2.0, 1.0]]), True, **names), TableSource(table), ["age"]).features
       age
    0   40
    """
    if rows.ids is None:
        raise InputError(
            f"{rows.source} has neither the features ({shorten(feature_names, 4)}) nor a column that names its rows "
            "(item, id or row; another one with --id)."
        )
    source.need(feature_names, "features")
    same_column = rows.id_name if rows.id_name in source.columns and rows.id_name not in feature_names else None
    key = find_id(source.columns, id_name or same_column, feature_names)
    frame = source.whole(feature_names, [] if key is None else [key], progress)
    known = frame[feature_names].set_axis([str(row) for row in range(len(frame))] if key is None else list(frame[key]))
    known = known[known.index.isin(rows.ids)]
    if (twice := first_repeat(known.index)) is not None:
        raise InputError(f"{source.file.name} has two rows named {twice!r} (column {key!r}); names must be unique.")
    kept = [row for row, name in enumerate(rows.ids) if name in known.index]
    if not kept:
        column = f"column {key!r}" if key else "row numbers, as there is no column of names"
        raise InputError(
            f"not one row of {rows.source} is in {source.file.name}: {rows.source} names {rows.ids[0]!r}, "
            f"{source.file.name} goes by {column}. Name the right column with --id."
        )
    notes = rows.notes
    if missing := [name for name in rows.ids if name not in known.index]:
        left_out = f"are not in {source.file.name} and were left out: {shorten(missing, 5)}"
        notes += (f"{len(missing)} labelled rows {left_out}",)
    features = known.loc[[rows.ids[k] for k in kept]].reset_index(drop=True)
    return replace(rows.take(kept), features=features, notes=(*notes, *source.notes))


def append_rows(base: Labelled, new: Labelled) -> Labelled:
    """Two sets of labelled rows as one, which names no rows.

    Args:
        base: the first rows, with features.
        new: the rows after them, with the same features and labels.

    Returns:
        All rows.

    Raises:
        InputError: one set holds votes and the other shares.

    >>> import pandas
    >>> def rows(yes):
    ...     table = pandas.DataFrame({"age": [30]})
    ...     names = {"source": "a.csv", "label_names": ["yes", "no"]}
    ...     return Labelled(np.array([[yes, 1.0 - yes]]), False, features=table, **names)
    >>> append_rows(rows(0.5), rows(0.75)).labels
    array([[0.5 , 0.5 ],
           [0.75, 0.25]])
    """
    import pandas  # an extra, which has read the tables

    if new.are_counts != base.are_counts:
        kinds = ("votes", "shares") if base.are_counts else ("shares", "votes")
        raise InputError(f"{base.source} holds {kinds[0]}, {new.source} {kinds[1]}; append rows of the same kind.")
    with warnings.catch_warnings():  # pandas warns of columns that are empty in one of the parts
        warnings.simplefilter("ignore", FutureWarning)
        features = pandas.concat([base.features, new.features], ignore_index=True)
    below = None
    if base.below is not None or new.below is not None:
        parts = [np.full(one.labels.shape, np.nan) if one.below is None else one.below for one in (base, new)]
        below = np.concatenate(parts)
    labels = np.concatenate([base.labels, new.labels])
    return replace(base, labels=labels, features=features, below=below, ids=None, votes=None, notes=())
