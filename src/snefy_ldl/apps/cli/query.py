"""The command ``query``: which rows of a pool people should label next, and which items should get more votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import (
    input_error,
    load_model,
    note,
    progress_bar,
    say,
    setting,
    table_output,
    warnings_as_notes,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import group_columns, open_table
from snefy_ldl.apps.cli.vote_queries import next_votes
from snefy_ldl.apps.table_rows import (
    feature_names,
    label_names,
    model_rows,
    recorded,
    row_names,
    table_groups,
)

if TYPE_CHECKING:
    from snefy_ldl.active.diagnosis import Diagnosis
    from snefy_ldl.datasets.table_files import TableSource
    from snefy_ldl.snefy import SnefyLDL


@command()
def query(
    model: Path,
    pool: Path,
    out: str = "-",
    n: Annotated[int, typer.Option("--n", "-n", min=1)] = 100,
    strategy: str = "auto",
    option: opt.Settings = None,
    seed: int = 0,
    id_name: opt.IdColumn = None,
    skip: list[Path] | None = None,
    labeled: Path | None = None,
    votes: Path | None = None,
) -> None:
    """Choose the rows of a pool of any size that are most worth labelling.

    Each chosen row is written with its name (or its number, counting from
    0), its query_score, an empty column per label to fill in, its features,
    and the expected shares (predicted_... columns). With --votes, the items
    are written that gain most by one more vote, with their number of votes,
    the expected gain and the expected shares.

    Args:
        pool (POOL): Unlabelled rows: CSV, TSV or Parquet, or a folder of Parquet files.
        n: How many rows, or votes, to allocate.
        strategy: auto (lcmd, or random rows if --labeled shows that they are as good), lcmd, bait, badge, entropy or
            random.
        option (NAME=VALUE): A setting of the strategy; with --votes: criterion=variance (or information),
            max_per_item=1. Repeatable.
        skip: Table with rows that must not be chosen again. Repeatable.
        labeled: Table of labelled rows: chosen rows differ from them, and an estimate of the benefit is printed.
        votes (VOTES): Votes so far on the items of the pool: choose items for one more vote.

    Examples:
        The 100 rows most worth a label:
          snefy-ldl query model pool.csv --n 100 --out to_label.csv

        A further round:
          snefy-ldl query model pool.csv --skip round1.csv --out round2.csv

        Then fit again with the new labels:
          snefy-ldl fit train.csv --labels no,yes --append to_label.csv ...

        Fifty items for one more vote:
          snefy-ldl query model items.csv --votes votes.csv --n 50
    """
    fitted = load_model(model)
    if votes is not None:
        if named := [name for name, value in (("--skip", skip), ("--labeled", labeled)) if value]:
            raise input_error(f"{named[0]} does not go with --votes.")
        return next_votes(fitted, pool, votes, out, n, dict(setting(text) for text in option or []), id_name)
    from snefy_ldl.active.batches import Auto
    from snefy_ldl.active.strategy import make_strategy
    from snefy_ldl.active.strategy import query as choose

    settings = dict(setting(text) for text in option or [])
    if "diagnosis" in settings:
        raise input_error("--set diagnosis: the command makes it itself, of the labelled rows that --labeled names.")
    chosen = make_strategy(strategy, settings)
    table_output(out, pool, labeled, *(skip or []))
    source = open_table(pool)
    columns = _find_columns(fitted, source, id_name)
    diagnosis = None if labeled is None else _whether_it_helps(fitted, open_table(labeled), source, columns)
    if diagnosis is not None:
        say(str(diagnosis), "")
    if isinstance(chosen, Auto):
        chosen = Auto(diagnosis)
    with warnings_as_notes():  # a strategy may read the pool several times
        rows, utilities = choose(
            chosen,
            lambda: _blocks(source, columns, fitted),
            n,
            model=fitted,
            X_labeled=None if labeled is None else _table(open_table(labeled), columns, fitted),
            random_state=seed,
            return_utilities=True,
            exclude=_skipped(skip or [], source, columns.key),
            verbose=Console(stderr=True).is_terminal,
        )
    copied = [*columns.ids, *columns.groups]
    with progress_bar("gather") as progress:
        frame = source.take(rows, columns.features, copied, progress)
    _write(out, fitted, frame, rows, utilities[rows], columns)
    if out != "-":
        say(f"{len(rows):,} of {len(utilities):,} rows, chosen by {strategy}, written to {out}", "green")
        labels = ", ".join(label_names(fitted))
        say(f"Next: fill in {labels}, then run: snefy-ldl fit TRAIN --append {out}", "")


def _whether_it_helps(model: SnefyLDL, known: TableSource, pool: TableSource, columns: _Columns) -> Diagnosis | None:
    """The estimated benefit of choosing rows, if their table holds the labels."""
    from snefy_ldl.active import will_it_help
    from snefy_ldl.datasets.shares import label_numbers
    from snefy_ldl.errors import InputError

    labels = [str(label) for label in model.label_names_]
    if not set(labels) <= set(known.columns):
        return None
    try:
        with warnings_as_notes():
            table = known.whole([*columns.features, *labels], columns.groups_in(known))
            shares = label_numbers(table, labels)
            shares = shares / shares.sum(axis=1, keepdims=True)  # votes, too
            rows = columns.rows(model, table)
            return will_it_help(model, rows, shares, lambda: _blocks(pool, columns, model))
    except (InputError, ValueError) as error:
        note(f"the benefit of choosing rows cannot be estimated from {known.file.name}: {error}")
        return None


@dataclass(frozen=True)
class _Columns:
    """What the columns of a pool are for.

    Args:
        key: The one that names the rows, or None if they go by number.
        features: Those the model sees.
        groups: Those of the groups of the model.
    """

    key: str | None
    features: list[str]
    groups: list[str]

    @property
    def ids(self) -> list[str]:
        """The column of names in a list, which is empty if rows go by number."""
        return [] if self.key is None else [self.key]

    def groups_in(self, source: TableSource) -> list[str]:
        """Those of the groups' columns that another table has."""
        return [name for name in self.groups if name in source.columns]

    def rows(self, model: SnefyLDL, table: Any) -> Any:
        """Rows of a table as the model takes them, with their groups if it has groups."""
        from snefy_ldl.datasets.grouping import in_groups

        return in_groups(model_rows(model, table, self.features), table_groups(model, table))


def _find_columns(model: SnefyLDL, source: TableSource, id_name: str | None) -> _Columns:
    """Columns of the pool, all of which must be there, and none of which may have the name of a written one."""
    from snefy_ldl.datasets.labelled import is_answer

    ids = [] if id_name is None else [id_name]
    source.need(ids, "--id")
    key = row_names(model, source.columns, id_name)
    names = feature_names(model, source, (*ids, *([key] if key else [])))
    groups = [name for name in group_columns(model, source) if name not in names]
    if key is not None and is_answer(key, label_names(model)):
        raise input_error(f"--id {key}: query itself writes a column of that name; rename it.")
    return _Columns(key, names, groups)


def _blocks(source: TableSource, columns: _Columns, model: SnefyLDL) -> Iterator[Any]:
    """Features of a table as the model takes them, in chunks."""
    for chunk in source.chunks(columns.features, columns.groups):
        yield columns.rows(model, chunk)


def _table(source: TableSource, columns: _Columns, model: SnefyLDL) -> Any:
    """All rows of a table, these columns."""
    source.need(columns.features, "features of the model")
    return columns.rows(model, source.whole(columns.features, columns.groups_in(source)))


def _skipped(files: list[Path], source: TableSource, key: str | None) -> Any:
    """Numbers of the rows that the files name, as the pool does, or None."""
    import numpy as np

    from snefy_ldl.datasets.labelled import ID_NAMES, named_rows

    names: set[str] = set()
    for file in files:
        listed, column = named_rows(open_table(file), key)
        if column != (key or ID_NAMES[-1]):
            goes = f"column {key!r}" if key else "row number"
            raise input_error(
                f"--skip {file}: it names rows by {column!r}, the pool by {goes}. Name the column with --id."
            )
        names.update(listed)
    if key is not None and files:
        return np.flatnonzero([name in names for name in source.whole([], [key])[key]])
    return np.array(sorted(int(name) for name in names if name.isdigit()), dtype=np.intp) if files else None


def _write(out: str, model: SnefyLDL, frame: Any, rows: Any, scores: Any, columns: _Columns) -> None:
    """The chosen rows as a table."""
    import numpy as np
    import pandas as pd

    from snefy_ldl.datasets.labelled import ID_NAMES, PREDICTED, SCORE
    from snefy_ldl.datasets.table_files import TableSink, round_shares

    first = pd.DataFrame(
        {columns.key or ID_NAMES[-1]: rows if columns.key is None else frame[columns.key], SCORE: scores}
    )
    with warnings_as_notes(tables=True):
        shares = np.asarray(model.predict(columns.rows(model, frame)))
    unit = recorded(model, "unit") or {"factor": 1.0}
    names = [f"{PREDICTED}{label}" for label in label_names(model)]
    predicted = pd.DataFrame(round_shares(shares * unit["factor"]), columns=names)
    copied = [*columns.groups, *columns.features]
    taken = {*first.columns, *copied}
    empty = {label: np.full(len(frame), np.nan) for label in label_names(model) if label not in taken}
    with TableSink(out) as sink:
        sink.write(pd.concat([first, pd.DataFrame(empty), frame[copied], predicted], axis=1))
