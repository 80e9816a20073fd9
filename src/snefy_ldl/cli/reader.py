"""Labelled rows as the commands read them: for ``fit``, which settles labels and features, and for a fitted model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from snefy_ldl.cli.common import note, progress_bar, report_votes, split, vote_columns
from snefy_ldl.cli.model_tables import feature_names, known_features, model_rows

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Form, Labelled
    from snefy_ldl.estimator import SnefyLDL


class LabelReader:
    """Reads a first set of labelled rows, which settles labels and features, and then further ones.

    Args:
        labels: Label columns; None takes those that occur, which only single votes allow.
        features: Feature columns; None takes every column that is nothing else.
        drop: Columns that are no features.
        id_name: Column that names the rows; by default item, id or row.
        columns: Columns of a long table of votes.
        normalize: Whether label columns hold amounts, each row of which is to be divided by its sum.
    """

    def __init__(
        self,
        labels: list[str] | None,
        features: list[str] | None,
        drop: list[str],
        id_name: str | None,
        columns: tuple[str, str, str],
        normalize: bool = False,
    ) -> None:
        self.labels, self.features, self.drop = labels, features, drop
        self.id_name, self.columns, self.normalize = id_name, columns, normalize
        self._groups = False  # whether ids of the rows so far name groups

    def _feature_columns(self, columns: list[str], others: set[str], file: Path) -> list[str]:
        """The features the user named, or every column that is nothing else."""
        from snefy_ldl.datasets.labelled import is_answer
        from snefy_ldl.errors import InputError

        if missing := [name for name in [*(self.features or []), *self.drop] if name not in columns]:
            option = "--drop" if missing[0] in self.drop else "--features"
            raise InputError(f"{option} {missing[0]}: {file.name} has no such column. It has: {', '.join(columns)}.")
        if self.features is not None:
            return [name for name in self.features if name not in self.drop]
        answers = [name for name in columns if is_answer(name, self.labels or [])]
        if answers:
            note(f"{file.name}: {answers[0]} and other columns that query wrote are not used as features")
        names = [name for name in columns if name not in {*others, *self.drop, *answers}]
        if not names:
            raise InputError(
                f"{file.name} has no columns for features. Name the table that has them: --items FILE, or --vote-file "
                "FILE where this one should hold them."
            )
        return names

    def shares(self, table: Path, counts: bool, further: bool) -> Labelled:
        """A table with features and a column a label; where further files follow, it need not name its rows."""
        from snefy_ldl.datasets.from_table import column_list
        from snefy_ldl.datasets.labelled import find_id, names_groups
        from snefy_ldl.datasets.tables import TableSource
        from snefy_ldl.errors import InputError

        source = TableSource(table)
        self.labels = column_list(self.labels or [], "--labels", source.columns)
        if self.id_name is not None and not further:
            source.need([self.id_name], "--id")
        key = find_id(source.columns, self.id_name, [*self.labels, *(self.features or [])])
        by_name = key is not None and self.features is None and self.id_name is None and key not in self.drop
        others = {*self.labels, *([] if key is None else [key])}
        self.features = self._feature_columns(source.columns, others, table)
        if both := [name for name in self.features if name in self.labels]:
            raise InputError(f"{table.name}: column {both[0]!r} is named both as a label and as a feature.")
        with progress_bar("read") as progress:
            form: Form = "counts" if counts else "shares"
            rows = self._read(table, form, self.labels, self.features, progress=progress)
        if by_name and not names_groups(rows):
            note(f"{table.name}: column {key!r} names the rows and is no feature; --features says otherwise")
        return rows

    def votes(self, file: Path, form: Form, items: Path | None) -> Labelled:
        """Votes, with their features in the same table or in another one."""
        from snefy_ldl.datasets.joins import join_features
        from snefy_ldl.datasets.labelled import find_id
        from snefy_ldl.datasets.tables import TableSource
        from snefy_ldl.datasets.vote_columns import find_vote_columns

        columns = [] if file.suffix.lower() == ".json" else TableSource(file).columns
        table = None if items is None else TableSource(items)
        if columns and form in ("auto", "long"):
            wanted = self.columns
            self.columns, remark = find_vote_columns(file, wanted, form, self.labels, self.id_name, items)
            if remark:
                note(f"{file.name}: {remark}")
        key = find_id(columns, self.id_name, self.features)
        if table is None:
            if form == "wide" and self.features is None:
                raise typer.BadParameter("--votes wide in one table: name its feature columns with --features.")
            self.features = self._feature_columns(columns, {*self.columns, *([key] if key else [])}, file)
        else:
            same = self.columns[0] if self.columns[0] in table.columns else None
            name = find_id(table.columns, self.id_name or same, self.features)
            self.features = self._feature_columns(
                table.columns, {*([name] if name else []), *(self.labels or [])}, table.file
            )
        if form == "counts" and self.labels is None:
            self.labels = [column for column in columns if column not in (key, *self.features)]
        rows = self._read(file, form, self.labels, None if items is not None else self.features)
        self.labels = rows.label_names
        if items is None:
            return rows
        with progress_bar("join") as progress:
            return join_features(rows, items, self.features, self.id_name, progress)

    def _read(
        self, file: Path, form: Form, labels: list[str] | None, features: list[str] | None, **more: Any
    ) -> Labelled:
        from snefy_ldl.datasets.labelled import read_labelled
        from snefy_ldl.errors import InputError

        options: dict[str, Any] = {"id_name": self.id_name, "vote_columns": self.columns, "normalize": self.normalize}
        rows = read_labelled(file, labels, features, form=form, **options, **more)
        if form not in ("auto", "shares") and not rows.are_counts:
            raise InputError(f"{file.name} holds shares, and --votes was asked for.")
        return rows

    def append(self, base: Labelled, file: Path, pool: Path | None, table: Path) -> Labelled:
        """The rows so far and those of one more file."""
        from snefy_ldl.datasets.joins import JOINED, append_rows, join_features
        from snefy_ldl.datasets.labelled import last_of_each, names_groups
        from snefy_ldl.errors import InputError

        assert self.features is not None
        new = self._read(file, "auto", self.labels, self.features, prefer_counts=base.are_counts)
        self._groups = self._groups or names_groups(base)
        if new.features is None or (base.ids is not None and not self._groups):
            new = last_of_each(new)  # its names are those of single rows
        if new.features is None:
            missing = (
                f"{file.name} has labels and no features ({', '.join(self.features[:3])} ...), and the table that has "
                "them was not named: say --pool FILE, the table the rows were chosen from."
            )
            if pool is None and (base.id_name is None or base.id_name == JOINED):
                raise InputError(missing)
            with progress_bar("join") as progress:
                try:
                    new = join_features(new, pool or table, self.features, self.id_name, progress)
                except InputError as error:
                    raise (error if pool is not None else InputError(missing)) from None
        report_rows(new)
        if new.are_counts and not base.are_counts:
            note(f"{file.name}: votes become shares, like those of {base.source}; how many voted is lost")
        joined, replaced = append_rows(base, new)
        remark = f", {replaced} of them in place of earlier ones" if replaced else ""
        typer.echo(f"{file.name}: {len(new):,} labelled rows added{remark}")
        return joined


def report_rows(rows: Labelled) -> None:
    """Say what a person should know about the rows that were read.

    Args:
        rows: Labelled rows.
    """
    if rows.votes is not None:
        report_votes(rows.votes)
    for remark in rows.remarks:
        note(f"{rows.source}: {remark}")


@dataclass(frozen=True)
class Source:
    """Where labelled rows for a fitted model are, as the options say it.

    Args:
        table: Features and labels, or features alone.
        labels: Label columns between commas; by default the model's.
        features: Feature columns between commas, for a model that knows no names.
        form: "auto", "shares", "counts", "long" or "wide".
        vote_file: Votes, where the table holds features alone.
        columns: Columns of a long table of votes, between commas.
        id_name: Column that names the rows.
        normalize: Whether label columns hold amounts.
    """

    table: Path
    labels: str | None = None
    features: str | None = None
    form: str = "auto"
    vote_file: Path | None = None
    columns: str = "item,annotator,label"
    id_name: str | None = None
    normalize: bool = False


def read_for_model(model: SnefyLDL, source: Source) -> tuple[Labelled, Any]:
    """Labelled rows, and their features as a model takes them.

    Args:
        model: A fitted model.
        source: Where the rows are.

    Returns:
        The rows, and a table (N, d) for the model.

    Raises:
        InputError: A file lacks a column, or a label breaks a rule; the message names row and column.
    """
    from snefy_ldl.datasets.joins import join_features
    from snefy_ldl.datasets.labelled import find_id, read_labelled
    from snefy_ldl.datasets.tables import TableSource
    from snefy_ldl.datasets.vote_columns import find_vote_columns
    from snefy_ldl.errors import InputError

    if source.form not in ("auto", "shares", "counts", "long", "wide"):
        raise InputError(f"--votes {source.form}: use counts, long or wide.")
    labels = split(source.labels) or [str(name) for name in model.label_names_]
    table = TableSource(source.table)
    columns, file = vote_columns(source.columns), source.vote_file or source.table
    form: Any = source.form
    single = form in ("auto", "long") and not (source.vote_file is None and set(labels) <= set(table.columns))
    if single and file.suffix.lower() != ".json":
        items = None if source.vote_file is None else source.table
        columns, remark = find_vote_columns(file, columns, form, labels, source.id_name, items)
        if remark:
            note(f"{file.name}: {remark}")
    same = columns[0] if columns[0] in table.columns else None
    key = find_id(table.columns, source.id_name or same, known_features(model, source.features))
    others = (*labels, *columns, *([key] if key else []))
    names = feature_names(model, source.features, table, others)
    options: dict[str, Any] = {"id_name": source.id_name, "vote_columns": columns, "normalize": source.normalize}
    rows = read_labelled(file, labels, names if source.vote_file is None else None, form=form, **options)
    if rows.features is None:
        with progress_bar("join") as progress:
            rows = join_features(rows, source.table, names, source.id_name, progress)
    report_rows(rows)
    return rows, model_rows(model, rows.features, names)
