"""Tables as the commands read them: columns a model takes, labelled rows, and items with votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from snefy_ldl._internal.text import shorten
from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import given, input_error, note, progress_bar, say, vote_columns
from snefy_ldl.apps.table_rows import (
    feature_names,
    group_levels,
    label_names,
    model_rows,
    recorded,
    row_names,
    table_groups,
)

if TYPE_CHECKING:
    from snefy_ldl._internal.types import Array
    from snefy_ldl.datasets.labelled import Form, Labelled
    from snefy_ldl.datasets.table_files import Progress, TableSource
    from snefy_ldl.snefy import SnefyLDL


def odd_cells(model: SnefyLDL, table: Any, names: list[str]) -> list[Any]:
    """What is odd about the cells of a table, for a model that reads text and gaps.

    Args:
        model: A fitted model.
        table: A DataFrame that has these columns.
        names: The columns to feed the model.

    Returns:
        Entries that :func:`~snefy_ldl.apps.cli.common.print_odd_cells` adds up.
    """
    columns = model.columns_
    named = columns is not None and columns.named
    return columns.odd_cells(model_rows(model, table, names)) if named else []


def open_table(file: Path) -> TableSource:
    """A table to read, of a workbook the sheet that ``--sheet`` names.

    Args:
        file: The table.

    Returns:
        Its reader.
    """
    from snefy_ldl.datasets.table_files import TableSource

    return TableSource(file, sheet_of(file))


def sheet_of(file: Path) -> str | None:
    """The sheet to read of a file: that of ``--sheet`` if the file is a workbook, else None.

    Args:
        file: The table.
    """
    return given.sheet if file.suffix.lower().startswith(".xls") else None


def record_table(model: Any, how: dict[str, Any]) -> None:
    """Record how the training table was read, in what is saved with a model.

    Args:
        model: A fitted model, or one that is wrapped around another.
        how: Plain values by name, as :func:`recorded` returns them.
    """
    from snefy_ldl.prediction import innermost

    model = innermost(model)
    model.training_ = {**model.training_, "table": how}


#: How reports and scores take cells below a limit.
SCORED = (
    "cells below a limit count as .65 of it here; log likelihoods of log-ratio models take their probability of "
    "lying below it"
)


@dataclass
class LabelReader:
    """Reads a first set of labelled rows, which settles labels and features, and then further ones.

    Args:
        labels: Label columns; None takes those that occur, which only single votes allow.
        features: Feature columns; None takes every column that is nothing else.
        drop: Columns that are no features.
        id_name: Column that names the rows; by default item, id or row.
        columns: Columns of a long table of votes.
        normalize: Whether label columns hold amounts, each row of which is to be divided by its sum.
        groups: Columns that hold the groups of rows; they are read with the features.
        limits: Limits of detection of label columns, or "min".
    """

    labels: list[str] | None
    features: list[str] | None
    drop: list[str]
    id_name: str | None
    columns: tuple[str, str, str]
    normalize: bool
    groups: list[str]
    limits: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.features is not None:
            self.features = [*self.features, *(name for name in self.groups if name not in self.features)]

    def _feature_columns(self, source: TableSource, others: set[str]) -> list[str]:
        """The features the user named, or every column that is nothing else."""
        from snefy_ldl.datasets.labelled import is_answer

        columns, file = source.columns, source.file
        for option, names in (("--groups", self.groups), ("--drop", self.drop), ("--features", self.features or [])):
            source.need(names, option)
        if self.features is not None:
            return [name for name in self.features if name not in self.drop]
        answers = [name for name in columns if is_answer(name, self.labels or [])]
        if answers:
            note(f"{file.name}: {answers[0]} and the other columns that query wrote are not used as features")
        names = [name for name in columns if name not in {*others, *self.drop, *answers, *self.groups}]
        if not names:
            raise input_error(
                f"{file.name} has no feature columns. Name the table with the votes, --vote-file FILE, and give the "
                "table with the features as TABLE."
            )
        return [*names, *self.groups]

    def shares(self, table: Path, counts: bool) -> Labelled:
        """A table with features and one column per label; if further files follow, it need not name its rows."""
        from snefy_ldl.datasets.labelled import find_id

        source = open_table(table)
        self.labels = source.need(self.labels or [], "--labels")
        if self.id_name is not None:
            source.need([self.id_name], "--id")
        key = find_id(source.columns, self.id_name, [*self.labels, *(self.features or []), *self.groups])
        by_name = key is not None and self.features is None and self.id_name is None and key not in self.drop
        others = {*self.labels, *([] if key is None else [key])}
        self.features = self._feature_columns(source, others)
        with progress_bar("read") as progress:
            form: Form = "counts" if counts else "shares"
            rows = self._read(source, form, self.labels, self.features, progress=progress)
        if by_name and not rows.names_groups:
            note(f"{table.name}: column {key!r} names the rows and is not a feature; --features overrides this")
        return rows

    def votes(self, file: Path, form: Form, items: Path | None) -> Labelled:
        """Votes, with their features in the same table or in another one."""
        from snefy_ldl.datasets.labelled import find_id, join_features

        source, table = open_table(file), None if items is None else open_table(items)
        columns = source.columns
        if form in ("auto", "long"):
            self.columns = _detected_columns(file, self.columns, form, self.labels, self.id_name, items)
        key = find_id(columns, self.id_name, self.features)
        if table is None:
            self.features = self._feature_columns(source, {*self.columns, *([key] if key else [])})
        else:
            same = self.columns[0] if self.columns[0] in table.columns else None
            name = find_id(table.columns, self.id_name or same, self.features)
            self.features = self._feature_columns(table, {*([name] if name else []), *(self.labels or [])})
        if form == "counts" and self.labels is None:
            self.labels = [column for column in columns if column not in (key, *self.features)]
        rows = self._read(source, form, self.labels, None if table is not None else self.features)
        self.labels = rows.label_names
        if table is None:
            return rows
        with progress_bar("join") as progress:
            return join_features(rows, table, self.features, self.id_name, progress)

    def _read(
        self, source: TableSource, form: Form, labels: list[str] | None, features: list[str] | None, **more: Any
    ) -> Labelled:
        from snefy_ldl.datasets.labelled import read_labelled

        options: dict[str, Any] = {"id_name": self.id_name, "vote_columns": self.columns, "normalize": self.normalize}
        options["limits"] = self.limits
        rows = read_labelled(source, labels, features, form=form, **options, **more)
        if form not in ("auto", "shares") and not rows.are_counts:
            raise input_error(f"{source.file.name} holds shares, not votes; leave out --votes.")
        return rows

    def append(self, base: Labelled, file: Path) -> Labelled:
        """The rows and those of a further table with the same columns."""
        from snefy_ldl.datasets.labelled import append_rows

        source = open_table(file)
        source.need(self.features or [], "features of the rows before")
        new = self._read(source, "auto", self.labels, self.features, prefer_counts=base.are_counts)
        joined = append_rows(base, new)
        report_rows(new)
        typer.echo(f"{file.name}: {len(new):,} labelled rows added")
        return joined


def report_rows(rows: Labelled, limits: bool = False) -> None:
    """Print on standard error what is in the votes, if there are any, and warnings about the rows.

    Args:
        rows: Labelled rows.
        limits: Whether what follows learns from limits of detection.
    """
    from snefy_ldl.votes.annotator_tables import Votes

    if rows.votes is not None:
        votes = Votes.of(rows.votes)
        for line in str(votes.agreement()).splitlines():
            say(line, "")
        for finding in votes.preflight():
            say(finding, {"error": "red", "warning": "yellow"}.get(finding.partition(":")[0], ""))
    for remark in rows.notes:
        note(f"{rows.source}: {remark}")
    if rows.below is not None and not limits:
        note(f"{rows.source}: {SCORED}")


def read_for_model(
    model: SnefyLDL, file: Path, form: Any = "auto", vote_file: Path | None = None, new_groups: str | None = None
) -> tuple[Labelled, Any]:
    """Labelled rows, and their features as a model takes them, read as the training table was.

    Args:
        model: A fitted model.
        file: Table with features and labels, or with features alone.
        form: Text of ``--votes``.
        vote_file: File with the votes, if the table has only features.
        new_groups: Column with the groups of the rows; by default the group columns of the model.

    Returns:
        The rows, and a table (N, d) for the model, with the rows' groups if the model has groups by a column of
        the file.

    Raises:
        InputError: A file lacks a column, or a label breaks a rule; the message names row and column.
    """
    from snefy_ldl.datasets.grouping import in_groups
    from snefy_ldl.datasets.labelled import join_features, read_labelled

    if form not in ("auto", "shares", "counts", "long"):
        raise input_error(f"--votes {form}: use counts or long.")
    labels, id_name = label_names(model), recorded(model, "id")
    table, alone = open_table(file), vote_file is None
    columns: Any = tuple(recorded(model, "vote_columns") or vote_columns(opt.VOTE_COLUMNS))
    labelled = table if vote_file is None else open_table(vote_file)
    if form in ("auto", "long") and not (alone and set(labels) <= set(table.columns)):
        columns = _detected_columns(labelled.file, columns, form, labels, id_name, None if alone else file)
    key = row_names(model, table.columns, columns[0] if columns[0] in table.columns else None)
    names = feature_names(model, table, (*columns, *([key] if key else [])))
    groups = group_columns(model, table) if new_groups is None else [new_groups]
    table.need(groups, "--new-groups")
    wanted = [*names, *(name for name in groups if name not in names)]
    rows = read_labelled(
        labelled,
        labels,
        wanted if alone else None,
        form=form,
        id_name=id_name,
        vote_columns=columns,
        prefer_counts=recorded(model, "form") == "votes",
        normalize=form in ("auto", "shares") and bool(recorded(model, "normalize")),
        limits=recorded(model, "limits"),
    )
    if rows.features is None:
        with progress_bar("join") as progress:
            rows = join_features(rows, table, wanted, id_name if id_name in table.columns else None, progress)
    report_rows(rows)
    groups_of = table_groups(model, rows.features) if new_groups is None else rows.features[groups]
    X = in_groups(model_rows(model, rows.features, names), groups_of)
    return (replace(rows, features=rows.features[names]) if groups else rows), X


def hidden_cells(model: Any) -> str:
    """How many cells of each label lay below a limit in the fit, in words; empty without any."""
    cells = [f"{name} {n:,}" for name, n in zip(label_names(model), model.training_.get("hidden", [])) if n]
    return f"{', '.join(cells)}, of {model.training_['rows']:,} each" if cells else ""


def known_limits(model: Any, rows: Labelled) -> Array | None:
    """Limits of hidden cells (N, L), NaN elsewhere; None without any, or if the model has no log-ratios."""
    from snefy_ldl.logratio import LogRatioLDL
    from snefy_ldl.prediction import innermost

    return rows.below if isinstance(innermost(model), LogRatioLDL) else None


def group_columns(model: SnefyLDL, source: TableSource) -> list[str]:
    """Group columns of a model in a table; prints on standard error whether rows have groups.

    Args:
        model: A fitted model.
        source: The table.

    Returns:
        The columns, none if the model was fitted without groups.
    """
    levels = group_levels(model)
    there = [name for name in levels if name in source.columns]
    if there:
        note(f"{source.file.name}: column {there[0]!r} holds the groups of the rows")
    elif levels and getattr(model, "group_effects_", None) is not None:
        note(f"{source.file.name} has no column {levels[0]!r}: those groups are not known")
    return there


def _detected_columns(
    file: Path,
    columns: tuple[str, str, str],
    form: Any,
    labels: list[str] | None,
    id_name: str | None,
    items: Path | None,
) -> tuple[str, str, str]:
    """Columns of a table with one vote per row; prints how they were recognised."""
    from snefy_ldl.datasets.vote_table import find_vote_columns

    columns, remark = find_vote_columns(file, columns, form, labels, id_name, items)
    if remark:
        note(f"{file.name}: {remark}")
    return columns


#: Items whose distributions are computed at a time.
BLOCK_ITEMS = 4096


class Items:
    """Items with their features and votes, read a block at a time; all checks come first.

    Args:
        model: A fitted model.
        items: Table with the items' names and features.
        votes: Votes so far, a table.
        id_name: Text of ``--id``, or None.

    Raises:
        InputError: The items or the votes break a rule.
    """

    def __init__(self, model: Any, items: Path, votes: Path, id_name: str | None = None) -> None:
        from snefy_ldl.datasets.cells import first_repeat
        from snefy_ldl.datasets.labelled import ID_NAMES

        self.source, self.model = open_table(items), model
        self.labels = label_names(model)
        key = row_names(model, self.source.columns, id_name)
        self._features = feature_names(model, self.source, (key,) if key else ())
        self._key, self.id_name = key, key or ID_NAMES[-1]
        names = self.source.whole([] if key else self._features[:1], [key] if key else [])
        ids = [str(row) for row in range(len(names))] if key is None else list(names[key])
        self.n_items = len(ids)
        if (twice := first_repeat(ids)) is not None:
            raise input_error(f"{items.name}: two items are named {twice!r} (column {key!r}); names must be unique.")
        rows = read_votes(model, votes, id_name, set(ids), items.name, key)
        self._votes = dict(zip(rows.ids or (), rows.labels))
        self.single_votes = rows.votes

    def blocks(self, progress: Progress) -> Iterator[tuple[list[str], Any, Any]]:
        """Some items at a time, in the order of the table.

        Args:
            progress: Called with how much of the table is read, and how much there is.

        Yields:
            Names (b,), features (b, d) and numbers of votes (b, L); an item without votes has zeros.
        """
        import numpy as np

        from snefy_ldl.datasets.cells import cell_text

        start, no_votes = 0, np.zeros(len(self.labels))
        keep = [self._key] if self._key else []
        for chunk in self.source.chunks(self._features, keep, progress, BLOCK_ITEMS):
            names = chunk[self._key] if self._key else range(start, start + len(chunk))
            ids = [cell_text(name) for name in names]
            start += len(chunk)
            counts = np.array([self._votes.get(name, no_votes) for name in ids])
            yield ids, model_rows(self.model, chunk, self._features), counts


def read_votes(model: Any, file: Path, id_name: str | None, items: set[str], table: str, key: str | None) -> Labelled:
    """Votes on items; prints warnings about them on standard error.

    Args:
        model: A fitted model.
        file: A table.
        id_name: Text of ``--id``, or None.
        items: Names of all items.
        table: Name of the table of the items, for messages.
        key: Its column of names; None if items go by their row number.

    Returns:
        Numbers of votes per item, with the items' names, and the single votes if the file holds those.

    Raises:
        InputError: The file holds no votes, or none on these items.
    """
    from snefy_ldl.datasets.labelled import ID_NAMES, last_of_each, read_labelled

    labels, columns = label_names(model), recorded(model, "vote_columns") or vote_columns(opt.VOTE_COLUMNS)
    id_name = id_name or recorded(model, "id")
    read = read_labelled(open_table(file), labels, id_name=id_name, vote_columns=tuple(columns), prefer_counts=True)
    rows = last_of_each(read)
    if not rows.are_counts:
        raise input_error(f"{file.name} holds shares; --votes needs votes.")
    if rows.ids is None:
        raise input_error(f"{file.name} has no column that names the items (item, id or row); name it with --id.")
    report_rows(rows)
    missing = [name for name in rows.ids if name not in items]
    if len(missing) == len(rows.ids):
        raise input_error(
            f"no item of {file.name} (the first is {rows.ids[0]!r}) is in {table}, which names its items by "
            f"{key or ID_NAMES[-1]!r}. Name the column of names with --id."
        )
    if missing:
        note(f"votes on {len(missing)} items that {table} lacks: {shorten(missing, 5)}")
    return rows


def outside_rows(model: Any, X: Any) -> Any:
    """Which features of which rows are outside the training range (N, d), or None if the model does not record that.

    Args:
        model: A fitted model.
        X: Features as the model takes them, with or without groups.
    """
    from snefy_ldl.datasets.grouping import split_rows

    return None if model.columns_ is None else model.columns_.outside(split_rows(X)[0])


def describe_outside(model: Any, parts: list[Any]) -> str:
    """One sentence on the rows that are outside the training range, empty if none is.

    Args:
        model: A fitted model.
        parts: Of each part of the rows, in order, which are outside (b,), and how often each feature is (d,).
    """
    import numpy as np

    from snefy_ldl.datasets import columns

    beyond, cells = zip(*parts)
    return columns.describe_outside(np.concatenate(beyond), np.sum(cells, axis=0), model.columns_.names_out)
