"""The commands ``predict``, ``evaluate`` and ``conformalize``: predictions, scores and calibrated intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from snefy_ldl._internal.text import plain_names
from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import (
    distinct_columns,
    input_error,
    level_list,
    load_model,
    make_table,
    note,
    noted_intervals,
    number,
    print_odd_cells,
    progress_bar,
    say,
    split,
    table_output,
    warnings_as_notes,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.questions import Question, read_question
from snefy_ldl.apps.cli.tables import (
    Items,
    describe_outside,
    group_columns,
    known_limits,
    odd_cells,
    open_table,
    outside_rows,
    read_for_model,
)
from snefy_ldl.apps.cli.vote_queries import answer_of, as_positions
from snefy_ldl.apps.table_rows import (
    feature_names,
    interval_columns,
    interval_maker,
    label_names,
    model_rows,
    prediction_columns,
    recorded,
    table_groups,
    update_columns,
)

if TYPE_CHECKING:
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.datasets.labelled import Labelled


@command()
def predict(
    model: Path,
    table: Path,
    out: str = "-",
    interval: float | None = None,
    ask: list[str] | None = None,
    keep: str | None = None,
    unit: str | None = None,
    votes: Path | None = None,
    of: opt.Of = None,
    id_name: opt.IdColumn = None,
) -> None:
    """Predict the label distributions of a table of any size, in chunks.

    Shares are written in the unit of the training table (percent, ppm, ...).
    With --votes, each item's features are combined with its votes so far:
    exact, and the model does not change.

    Args:
        interval (LEVEL): Also write each label's interval of this level, for example 0.9.
        ask (QUESTION): Also write "P(A > 2 * B)", "P(A + B > 0.5)", "P(A = 0)", "log(A / B)", "quantiles(0.05, 0.5)"
            or "draws(10)"; bounds are shares of 1. Repeatable.
        unit (share): Write fractions also if the training table is in another unit.
        votes (VOTES): Table of votes so far: predictions given the votes.

    Examples:
        Means and 90 % intervals:
          snefy-ldl predict model new.csv --interval 0.9 --out predicted.csv

        The probability of more than twice as much sand as clay, and of no silt:
          snefy-ldl predict model new.csv --ask "P(sand > 2 * clay)" --ask "P(silt = 0)"

        With the votes that items have so far (item, annotator, label):
          snefy-ldl predict model items.csv --votes votes.csv --out posterior.csv
    """
    from snefy_ldl._internal.validation import check_confidence

    if interval is not None:
        check_confidence(interval, "--interval")
    if unit not in (None, "share"):
        raise typer.BadParameter(f"--unit {unit}: use share, or leave it out for the unit of the training table.")
    kept = split(keep)
    table_output(out, table, votes)
    fitted = answer_of(load_model(model), of)
    if votes is not None:
        if named := [name for name, value in (("--ask", ask), ("--keep", kept)) if value]:
            raise typer.BadParameter(f"{named[0]} does not go with --votes.")
        return predict_given_votes(fitted, table, votes, out, interval or 0.9, id_name)
    if id_name is not None:
        raise typer.BadParameter("--id goes with --votes.")
    maker = None
    if interval is not None:
        maker = interval_maker(fitted, noted_intervals(model, fitted, interval), interval)
    factor, header = written_unit(fitted, unit == "share")
    questions = [read_question(text, label_names(fitted), list(header.values())) for text in ask or []]
    write_predictions(fitted, table, out, kept, maker, questions, factor, list(header.values()))


def write_predictions(
    model: Any,
    table: Path,
    out: str,
    keep: list[str],
    intervals: Callable[[Any], Any] | None,
    questions: list[Question],
    factor: float,
    header: list[str],
) -> None:
    """Write predictions of a table, in chunks; prints warnings about the table.

    Args:
        model: The fitted model.
        table: The table.
        out: File, or ``-`` for standard output.
        keep: Columns to copy.
        intervals: Features to intervals (N, L, 2), or None.
        questions: Further columns.
        factor: What shares are multiplied by.
        header: Names of the columns of shares.
    """
    import pandas as pd

    from snefy_ldl.datasets.grouping import in_groups
    from snefy_ldl.datasets.table_files import TableSink, round_shares

    source, start, far, odd = open_table(table), 0, list[Any](), list[Any]()
    names = feature_names(model, source, tuple(keep))
    source.need(keep, "--keep")
    if taken := sorted(set(keep) & set(header)):
        raise input_error(f"--keep {taken[0]}: a predicted column has the same name; leave it out.")
    written = [*header, *(interval_columns(header) if intervals is not None else [])]
    asked = [name for question in questions for name in question.columns]
    distinct_columns([*keep, *written, *asked])
    read = list(dict.fromkeys([*keep, *group_columns(model, source)]))
    with warnings_as_notes(), progress_bar("predict") as progress, TableSink(out) as sink:
        for chunk in source.chunks(names, read, progress):
            odd.extend(odd_cells(model, chunk, names))
            X = in_groups(model_rows(model, chunk, names), table_groups(model, chunk))
            shares = prediction_columns(model, X, intervals).values()
            columns = {name: round_shares(values * factor) for name, values in zip(written, shares)}
            dist: Any = model.predict_dist(X).double() if questions else None
            for question in questions:
                answers = question.answer(dist, start).double().cpu().numpy()
                answers = round_shares(answers * factor) if question.are_shares else answers.round(8)
                columns |= dict(zip(question.columns, answers.T))
            if (beyond := outside_rows(model, X)) is not None:
                far.append((beyond.any(axis=1), beyond.sum(axis=0)))
            numbers = pd.DataFrame(columns, index=chunk.index)
            sink.write(pd.concat([chunk[keep], numbers], axis=1) if keep else numbers)
            start += len(chunk)
    print_odd_cells(odd)
    if far and (words := describe_outside(model, far)):
        note(words)
    if out != "-":
        unit = f", in {recorded(model, 'unit')['name']}" if factor != 1.0 else ""
        say(f"{start:,} rows written to {out}{unit}", "green")


def written_unit(model: Any, as_shares: bool = False) -> tuple[float, dict[str, str]]:
    """What shares are multiplied by when they are written, and what the columns of the labels are called.

    Args:
        model: A fitted model.
        as_shares: Whether to write fractions also if the training table is in another unit.

    Returns:
        The factor of the recorded unit, and the header of each label: without its unit if shares are written.
    """
    unit, labels = recorded(model, "unit"), label_names(model)
    if unit is None:
        return 1.0, {label: label for label in labels}
    if not as_shares:
        return float(unit["factor"]), {label: label for label in labels}
    return 1.0, dict(zip(labels, plain_names(labels)))


def predict_given_votes(model: Any, items: Path, votes: Path, out: str, interval: float, id_name: str | None) -> None:
    """``predict --votes``: means and intervals given the features and the votes so far.

    Args:
        model: The fitted model.
        items: Table with the items' names and features.
        votes: Their votes.
        out: File to write, or ``-``.
        interval: Level of the intervals.
        id_name: Text of ``--id``, or None.
    """
    import pandas as pd

    from snefy_ldl.datasets.table_files import TableSink

    reader = Items(model, items, votes, id_name)
    distinct_columns([reader.id_name, "votes", *reader.labels, *interval_columns(reader.labels)])
    rows = 0
    with warnings_as_notes(tables=True), progress_bar("predict") as progress, TableSink(out) as sink:
        for ids, X, counts in reader.blocks(progress):
            single = None if reader.single_votes is None else reader.single_votes.on_items(ids)
            columns = update_columns(model, as_positions(X), counts, interval, single)
            sink.write(pd.DataFrame({reader.id_name: ids, **columns}))
            rows += len(ids)
    if out != "-":
        say(f"{rows:,} items written to {out}", "green")


@command()
def evaluate(
    model: Path,
    table: Path,
    interval: float = 0.9,
    form: opt.Form = "auto",
    vote_file: Path | None = None,
    of: opt.Of = None,
    as_json: opt.AsJson = False,
) -> None:
    """Score a model on a table whose labels, or votes, are known.

    Args:
        interval (LEVEL): Level of the intervals to check.
    """
    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.apps.reports.measures import evaluate as score_model

    check_confidence(interval, "--interval")
    fitted = answer_of(load_model(model), of)
    rows, X = read_for_model(fitted, table, form, vote_file)
    with warnings_as_notes(tables=True):
        known = rows.labels if rows.are_counts else rows.labels / rows.labels.sum(axis=1, keepdims=True)
        limits = known_limits(fitted, rows)
        report = score_model(fitted, X, **{"counts" if rows.are_counts else "D": known}, level=interval, below=limits)
    if not rows.are_counts:
        report["interval"]["calibrated"] = _calibrated(
            fitted, noted_intervals(model, fitted, interval), rows, X, interval
        )
    _show(report, as_json, model, table)


def _calibrated(
    model: Any, calibrated: ConformalIntervals | None, rows: Labelled, X: Any, level: float
) -> dict[str, Any] | None:
    """Coverage and width of calibrated intervals; None without any."""
    from snefy_ldl import metrics
    from snefy_ldl.apps.reports.measures import figure

    if calibrated is None:
        return None
    with warnings_as_notes():
        ends = interval_maker(model, calibrated, level)(X)
    return {
        "coverage": figure(metrics.coverage(rows.labels, ends, return_std_error=True), f"near {level:g}"),
        "width": figure(metrics.interval_width(ends, return_std_error=True), "lower"),
    }


def _show(report: dict[str, Any], as_json: bool, model: Path, table: Path) -> None:
    """Print the scores."""
    if as_json:
        return typer.echo(json.dumps(report, indent=2))
    interval, level = report["interval"], report["interval"]["level"]
    entries = {name.replace("_", " "): entry for name, entry in report["metrics"].items()}
    entries[f"mean log likelihood ({report['log_likelihood']['of']})"] = report["log_likelihood"]
    for words, ends in (("uncalibrated", interval), ("calibrated", interval.get("calibrated") or {})):
        for what in ("coverage", "width"):
            entries[f"{what} of {level:.0%} intervals, {words}"] = ends.get(what)
    lines = [
        (name, f"{one['value']:.4f}", "" if one["std_error"] is None else f"{one['std_error']:.4f}", one["better"])
        for name, one in entries.items()
        if one is not None
    ]
    caption = None
    if interval["coverage"] is None:
        caption = (
            "No coverage: the intervals are about the shares behind the votes, which are not identifiable from votes. "
            "The log likelihood includes the multinomial coefficient."
        )
    elif not interval.get("calibrated"):
        caption = "Not calibrated for this level: run snefy-ldl conformalize on rows that fit has not seen."
    title = Text(f"{model} on {table}: {report['rows']:,} rows")
    columns = ("measure", "value", "± error", "better")
    Console().print(make_table(columns, lines, ("measure", "better"), title=title, caption=caption))


@command()
def conformalize(
    model: Path,
    table: Path,
    level: str = "0.9",
    method: str = "auto",
    simultaneous: bool = False,
    new_groups: str | None = None,
    form: opt.Form = "auto",
    vote_file: Path | None = None,
) -> None:
    """Calibrate a model's intervals on rows it has not seen; predict --interval then uses them.

    Args:
        level (0.9,0.95): Confidence level, or several.
        method: auto (compares the next four), outlying, beta, chebyshev, absolute, cdf or quantile.
        simultaneous: Cover all labels of a row at once.
        new_groups (COLUMN): Column of groups: intervals are valid for rows of groups that were never seen.
    """
    from snefy_ldl._internal.seen import MOST_SEEN, count_seen
    from snefy_ldl.conformal import ConformalIntervals, NewGroupIntervals
    from snefy_ldl.persistence import save_calibration

    levels = [number(part, "--level") for part in split(level)]
    if not levels:
        raise input_error(f"--level {level!r}: give a number between 0 and 1, or several with commas between them.")
    fitted = load_model(model)
    rows, X = read_for_model(fitted, table, form, vote_file, new_groups)
    if rows.are_counts:
        note("calibrated on proportions of votes: the intervals cover the answers of annotators, not the true shares")
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    wanted: Any = levels if len(levels) > 1 else levels[0]
    score: Any = method
    kind = ConformalIntervals if new_groups is None else NewGroupIntervals
    intervals = kind(fitted, wanted, score, simultaneous)
    seen = count_seen(fitted, X, D)
    if seen > MOST_SEEN * len(D):
        raise input_error(
            f"{seen:,} of the {len(D):,} rows of {table} trained this model: it is more certain of them than of new "
            "rows, so intervals calibrated on them would be too narrow. Hold rows back: split it, fit on one part "
            "and conformalize with the other."
        )
    with warnings_as_notes(tables=True), progress_bar("conformalize") as progress:
        progress(0, 1)
        intervals.conformalize(X, D)
        progress(1, 1)
    path = save_calibration(model, intervals.to_dict())
    if intervals.choice_ is not None:
        typer.echo(str(intervals.choice_))
    of_whom = f", for new groups of {new_groups}" if new_groups else ""
    typer.echo(
        f"{intervals.n_calibration_:,} calibration rows, method {intervals.method}, level {level_list(levels)}{of_whom}"
    )
    typer.echo(f"saved to {path}; snefy-ldl predict --interval {levels[0]:g} now gives calibrated intervals")
