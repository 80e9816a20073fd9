"""The command ``fit``: labelled rows out of one table or several, and a model fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    Counts,
    IdColumn,
    TableFile,
    VoteColumns,
    note,
    progress_bar,
    report_votes,
    split,
    vote_columns,
    warnings_as_notes,
)
from snefy_ldl.cli.streaming import fit_streamed

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Form, Labelled

EXAMPLES = """Shares, a column a label:
  snefy-ldl fit soil.csv --labels sand,silt,clay --out model

Numbers of votes, a column a label:
  snefy-ldl fit items.csv --votes counts --labels no,yes --out model

One vote a row (item, annotator, label), features in another table:
  snefy-ldl fit items.csv --vote-file votes.csv --out model

The same with features in every row of the votes:
  snefy-ldl fit votes.csv --votes long --out model

Further rounds of labels, features looked up by id:
  snefy-ldl fit train.csv --labels no,yes --append round1.csv
  --append round2.json --pool pool.csv --out model

More rows than memory holds, a folder of Parquet files:
  snefy-ldl fit soil/ --stream --labels sand,silt,clay --out model
"""


def fit(
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Folder to write the model into.")],
    labels: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Label columns, each row summing to 1; for single votes, the labels."),
    ] = None,
    features: Annotated[
        str | None, typer.Option(metavar="F1,F2", help="Feature columns; by default all others.")
    ] = None,
    votes: Annotated[
        str | None,
        typer.Option(
            metavar="counts|long|wide",
            help="Votes instead of shares: numbers a label, one vote a row, or one column an annotator.",
        ),
    ] = None,
    vote_file: Annotated[
        Path | None, typer.Option(help="The votes are in this file, TABLE holds the items' features.")
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="The other way round: TABLE holds the votes, this file the features.")
    ] = None,
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    append: Annotated[
        list[Path] | None,
        typer.Option(help="More labelled rows: a table, votes, or a Label Studio export (.json). May be repeated."),
    ] = None,
    pool: Annotated[
        Path | None, typer.Option(help="Table to look up the features of appended rows in, by their id.")
    ] = None,
    counts: Counts = False,
    members: Annotated[int, typer.Option(help="Networks whose densities are averaged; 6 is slower and better.")] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the rows.")] = 30,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    zeros: Annotated[
        str, typer.Option(metavar="shrink|error|FLOOR", help="What to do with shares of exactly zero.")
    ] = "shrink",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for a checkpoint after every epoch; a stopped fit goes on from it.")
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="TABLE is a folder of Parquet files, read as it comes, never whole."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Fit a model to a table of features and label distributions, or to votes."""
    if counts and votes not in (None, "counts"):
        raise typer.BadParameter(f"--counts and --votes {votes} exclude each other.")
    form, alone = "counts" if counts else votes, vote_file is None and items is None
    if form not in (None, "counts", "long", "wide"):
        raise typer.BadParameter(f"--votes {form}: use counts, long or wide.")
    if labels is None and alone and form in (None, "counts"):
        raise typer.BadParameter("name the label columns with --labels, or say --votes long for one vote a row.")
    if vote_file is not None and items is not None:
        raise typer.BadParameter("--vote-file and --items exclude each other: the votes are in one of two tables.")
    if stream and (append or not alone or form not in (None, "counts")):
        raise typer.BadParameter("--stream takes shares or --votes counts in a folder of Parquet files only.")
    from snefy_ldl.errors import InputError
    from snefy_ldl.estimator import SnefyLDL

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder for the model.")
    if pool is not None and not append:
        raise InputError("--pool holds the features of appended rows; name their labels with --append.")
    model = SnefyLDL(
        n_members=members,
        epochs=epochs,
        zeros=_zero_option(zeros),
        random_state=seed,
        checkpoint_dir=checkpoint,
        verbose=0 if quiet else 1,
    )
    if stream:
        return fit_streamed(model, table, out, split(labels), split(features) or None, form == "counts")
    reader = _Reader(split(labels) or None, split(features) or None, id_name, vote_columns(columns))
    if alone and form in (None, "counts"):
        rows = reader.shares(table, form == "counts", bool(append))
    else:
        kind: Any = form or "auto"
        rows = reader.votes(vote_file or table, kind, table if vote_file is not None else items)
    _report(rows)
    for file in append or []:
        rows = reader.append(rows, file, pool or (None if alone else items or table), table)
    _fit(model, rows, reader.features or [])
    model.save(out)
    _conclude(model, rows, reader.features or [], table, out)


class _Reader:
    """Reads a first set of labelled rows, which settles labels and features, and then further ones.

    Args:
        labels: Label columns; None takes those that occur, which only single votes allow.
        features: Feature columns; None takes every column that is nothing else.
        id_name: Column that names the rows; by default item, id or row.
        columns: Columns of a long table of votes.
    """

    def __init__(
        self, labels: list[str] | None, features: list[str] | None, id_name: str | None, columns: tuple[str, str, str]
    ) -> None:
        self.labels, self.features, self.id_name, self.columns = labels, features, id_name, columns

    def _feature_columns(self, columns: list[str], others: set[str], file: Path) -> list[str]:
        """The features the user named, or every column that is nothing else."""
        from snefy_ldl.datasets.labelled import is_answer
        from snefy_ldl.errors import InputError

        if self.features is not None:
            return self.features
        answers = [name for name in columns if is_answer(name, self.labels or [])]
        if answers:
            note(f"{file.name}: {answers[0]} and other columns that query wrote are not used as features")
        names = [name for name in columns if name not in others and name not in answers]
        if not names:
            raise InputError(
                f"{file.name} has no columns for features. Name the table that has them: --items FILE, or --vote-file "
                "FILE where this one should hold them."
            )
        return names

    def shares(self, table: Path, counts: bool, further: bool) -> Labelled:
        """A table with features and a column a label; where further files follow, it need not name its rows."""
        from snefy_ldl.datasets import load_table
        from snefy_ldl.datasets.labelled import Labelled, find_id
        from snefy_ldl.datasets.tables import TableSource
        from snefy_ldl.votes.tables import Votes

        labels = self.labels or []
        source = TableSource(table)
        if self.id_name is not None and not further:
            source.need([self.id_name], "--id")
        key = find_id(source.columns, self.id_name, [*labels, *(self.features or [])])
        if key is not None and self.features is None and self.id_name is None:
            note(f"{table.name}: column {key!r} names the rows and is no feature; --features says otherwise")
        wanted = self.features
        if key is not None or any(name not in labels for name in source.columns):
            wanted = self._feature_columns(source.columns, {*labels, *([] if key is None else [key])}, table)
        with progress_bar("read") as progress:
            data = load_table(table, labels, wanted, counts, progress)
        self.labels, self.features = data.label_names, data.feature_names
        ids = None if key is None else list(source.whole([], [key])[key])
        given = data.D if data.counts is None else data.counts
        votes = None if data.counts is None else Votes.from_counts(given, ids, data.label_names)
        return Labelled(table.name, given, counts, data.label_names, ids, data.X, key, votes)

    def votes(self, file: Path, form: Form, items: Path | None) -> Labelled:
        """Votes, with their features in the same table or in another one."""
        from snefy_ldl.datasets.joins import join_features
        from snefy_ldl.datasets.labelled import find_id
        from snefy_ldl.datasets.tables import TableSource

        columns = [] if file.suffix.lower() == ".json" else TableSource(file).columns
        key = find_id(columns, self.id_name, self.features)
        if items is None:
            if form == "wide" and self.features is None:
                raise typer.BadParameter("--votes wide in one table: name its feature columns with --features.")
            self.features = self._feature_columns(columns, {*self.columns, *([key] if key else [])}, file)
        else:
            table = TableSource(items)
            name = find_id(table.columns, self.id_name, self.features)
            self.features = self._feature_columns(
                table.columns, {*([name] if name else []), *(self.labels or [])}, items
            )
            table.need(self.features, "features")
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

        rows = read_labelled(file, labels, features, form=form, id_name=self.id_name, vote_columns=self.columns, **more)
        if form != "auto" and not rows.are_counts:
            raise InputError(f"{file.name} holds shares, and --votes was asked for.")
        return rows

    def append(self, base: Labelled, file: Path, pool: Path | None, table: Path) -> Labelled:
        """The rows so far and those of one more file."""
        from snefy_ldl.datasets.joins import JOINED, append_rows, join_features
        from snefy_ldl.errors import InputError

        assert self.features is not None
        new = self._read(file, "auto", self.labels, self.features, prefer_counts=base.are_counts)
        if new.features is None:
            if pool is None and (base.id_name is None or base.id_name == JOINED):
                raise InputError(
                    f"{file.name} has no features ({', '.join(self.features[:3])} ...): name the table that has them "
                    "with --pool."
                )
            with progress_bar("join") as progress:
                new = join_features(new, pool or table, self.features, self.id_name, progress)
        _report(new)
        if new.are_counts and not base.are_counts:
            note(f"{file.name}: votes become shares, like those of {base.source}; how many voted is lost")
        joined, replaced = append_rows(base, new)
        remark = f", {replaced} of them in place of earlier ones" if replaced else ""
        typer.echo(f"{file.name}: {len(new):,} labelled rows added{remark}")
        return joined


def _report(rows: Labelled) -> None:
    """Say what a person should know about the rows that were read."""
    if rows.votes is not None:
        report_votes(rows.votes)
    for remark in rows.remarks:
        note(f"{rows.source}: {remark}")


def _fit(model: Any, rows: Labelled, features: list[str]) -> None:
    """Fit the model to shares or votes, with the columns' names."""
    import pandas as pd

    X = pd.DataFrame(rows.features, columns=features, copy=False)
    Y = pd.DataFrame(rows.labels, columns=rows.label_names)
    with warnings_as_notes():
        if rows.are_counts:
            model.fit(X, counts=Y)
        else:
            model.fit(X, Y)


def _conclude(model: Any, rows: Labelled, features: list[str], table: Path, out: Path) -> None:
    """Say what was fitted, how well, and where it is."""
    done = model.training_
    losses = [loss for loss in done["validation_loss"] if loss is not None]
    kind = ", votes" if rows.are_counts else ""
    typer.echo(f"{len(rows):,} rows, {len(features)} features, {len(rows.label_names)} labels{kind}: {table}")
    typer.echo(f"fitted in {done['seconds']:.1f} s, {done['epochs']} epochs, on {done['device']}")
    if losses:
        typer.echo(f"mean log likelihood of the rows held back: {-sum(losses) / len(losses):.4f}")
    typer.echo(f"saved to {out}")


def _zero_option(text: str) -> Any:
    """What ``--zeros`` says, as the estimator takes it."""
    from snefy_ldl.errors import InputError

    if text in ("shrink", "error"):
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--zeros {text}: use shrink, error or a number for the floor.") from None
