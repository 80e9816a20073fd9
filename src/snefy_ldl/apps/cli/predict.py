"""The commands ``predict``, ``evaluate`` and ``conformalize``: predictions, scores and calibrated intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import (
    check_picture,
    distinct_columns,
    input_error,
    level_list,
    load_model,
    make_table,
    note,
    note_other_levels,
    number,
    print_odd_cells,
    progress_bar,
    say,
    split,
    table_output,
    warnings_as_notes,
    write_picture,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import (
    feature_names,
    group_columns,
    known_features,
    label_names,
    odd_cells,
    read_for_model,
)
from snefy_ldl.apps.rows import (
    calibrated_intervals,
    calibrated_levels,
    group_levels,
    interval_columns,
    model_rows,
    prediction_columns,
    table_groups,
    takes_gaps,
)

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Labelled
    from snefy_ldl.snefy import SnefyLDL


@command()
def predict(
    model: Path,
    tables: list[str],
    out: str = "-",
    interval: float | None = None,
    keep: str | None = None,
    uncalibrated: bool = False,
    features: str | None = None,
    device: str = "auto",
    *,
    engine: opt.EngineOptions,
    backbone: str | None = None,
) -> None:
    """Predict the label distributions of a table, a part at a time, however long it is.

    With --engine ray, TABLE... are Parquet files, folders of them or
    addresses such as s3://..., and --out is a folder for Parquet files.

    Args:
        interval (LEVEL): Also write each label's interval of this level, for example 0.9.
        uncalibrated: The model's own intervals, even if it has been calibrated.
    """
    import pandas as pd

    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.apps.rows import map_in_order
    from snefy_ldl.datasets.groups import in_groups
    from snefy_ldl.datasets.tables import TableSink, TableSource

    if interval is not None:
        check_confidence(interval, "--interval")
    kept = split(keep)
    if engine.is_ray(tables, out, backbone):
        return predict_with_ray(engine, model, tables, out, kept, features, device, interval, uncalibrated)
    table = Path(tables[0])
    table_output(out, table)
    source = TableSource(table)
    fitted = load_model(model, backbone, device)
    names = feature_names(fitted, features, source)
    source.need(kept, "--keep")
    read = list(dict.fromkeys([*kept, *group_columns(fitted, source)]))
    labels = label_names(fitted)
    if taken := sorted(set(kept) & set(labels)):
        raise input_error(f"--keep {taken[0]}: a predicted column has the same name; leave it out.")
    distinct_columns([*kept, *labels, *(interval_columns(labels) if interval is not None else [])])
    rows, odd, intervals = 0, list[Any](), None
    if interval is not None:
        calibrated = None if uncalibrated else calibrated_maker(fitted, model, interval)
        intervals = calibrated or (lambda X: fitted.predict_interval(X, interval))

    def answer_to(chunk: Any) -> Any:
        odd.extend(odd_cells(fitted, chunk, names))
        X = in_groups(model_rows(fitted, chunk, names), table_groups(fitted, chunk))
        numbers = pd.DataFrame(prediction_columns(fitted, X, intervals), index=chunk.index)
        return pd.concat([chunk[kept], numbers], axis=1) if kept else numbers

    # parts are answered by several threads, which share the filters of warnings: odd cells are added up here
    with warnings_as_notes(), progress_bar("predict") as progress, TableSink(out) as sink:
        for answer in map_in_order(answer_to, source.chunks(names, read, progress, finite=not takes_gaps(fitted))):
            sink.write(answer)
            rows += len(answer)
    print_odd_cells(odd)
    if out != "-":
        say(f"{rows:,} rows written to {out}", "green")


def calibrated_maker(model: SnefyLDL, folder: Path, level: float) -> Callable[[Any], Any] | None:
    """Features to calibrated intervals (N, L, 2).

    Args:
        model: The fitted model.
        folder: Its folder.
        level: Confidence level.

    Returns:
        A function of features; None where the folder holds no calibration of that level. A note is printed where it
        holds one of other levels.
    """
    from snefy_ldl._internal.model_files import load_calibration

    state = load_calibration(folder)
    if state is None or note_other_levels(calibrated_levels(state), level):
        return None
    return calibrated_intervals(model, state, level)


@command()
def evaluate(
    model: Path,
    table: Path,
    interval: float = 0.9,
    *,
    source: opt.LabelOptions,
    as_json: opt.AsJson = False,
    backbone: str | None = None,
) -> None:
    """Score a model on a table whose labels, or votes, are known.

    Args:
        interval (LEVEL): Level of the intervals to check.
    """
    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.apps.reports.scores import evaluate as score_model

    check_confidence(interval, "--interval")
    fitted = load_model(model, backbone)
    rows, X = read_for_model(fitted, table, source)
    with warnings_as_notes(tables=True):
        known = rows.labels if rows.are_counts else rows.labels / rows.labels.sum(axis=1, keepdims=True)
        report = score_model(fitted, X, **{"counts" if rows.are_counts else "D": known}, level=interval)
    if not rows.are_counts:
        report["interval"]["calibrated"] = _calibrated(fitted, model, rows, X, interval)
    _show(report, as_json, model, table)


def _calibrated(model: SnefyLDL, folder: Path, rows: Labelled, X: Any, level: float) -> dict[str, Any] | None:
    """Coverage and width of the intervals that conformalize left in the model folder; None where there are none."""
    from snefy_ldl import metrics
    from snefy_ldl.apps.reports.scores import figure

    maker = calibrated_maker(model, folder, level)
    if maker is None:
        return None
    with warnings_as_notes():
        ends = maker(X)
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
    entries["mean log likelihood"] = report["log_likelihood"]
    for words, ends in (("the model's own", interval), ("calibrated", interval.get("calibrated") or {})):
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
            "No coverage: the intervals are about the shares behind the votes, which votes do not show. "
            "The log likelihood is that of the counts, multinomial coefficient included."
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
    conditional_on: str | None = None,
    rectified: bool = False,
    new_groups: str | None = None,
    *,
    source: opt.LabelOptions,
    backbone: str | None = None,
) -> None:
    """Calibrate a model's intervals on rows it has not seen; predict --interval then uses them.

    Args:
        level (0.9,0.95): Confidence level, or several.
        method: auto (compares the next four), outlying, beta, chebyshev, absolute, cdf or quantile.
        simultaneous: Cover all labels of a row at once.
        conditional_on (A,B): Columns along which coverage must hold as well: text by group, numbers by splines.
        rectified: Follow these columns approximately: narrower where rows are few.
        new_groups (COLUMN): Column of groups: intervals hold for rows of groups that were never seen.
    """
    from snefy_ldl._internal.model_files import save_calibration
    from snefy_ldl._internal.seen import MOST_SEEN, count_seen
    from snefy_ldl.conformal import ConformalIntervals, NewGroupIntervals

    levels = [number(part, "--level") for part in split(level)]
    if not levels:
        raise input_error(f"--level {level!r}: give a number between 0 and 1, or several with commas between them.")
    fitted = load_model(model, backbone)
    rows, X = read_for_model(fitted, table, source, new_groups)
    if rows.are_counts:
        note("calibrated on proportions of votes: the intervals cover what annotators would say, not the true shares")
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    if rectified and conditional_on is None:
        raise input_error("--rectified needs --conditional-on: the columns that the intervals should follow.")
    wanted: Any = levels if len(levels) > 1 else levels[0]
    score: Any = method
    intervals: ConformalIntervals
    if new_groups is None:
        bases = None if conditional_on is None else _bases(rows, split(conditional_on))
        intervals = ConformalIntervals(fitted, wanted, score, simultaneous, conditional_on=bases, rectified=rectified)
    elif conditional_on is not None:
        raise input_error("--new-groups does not go with --conditional-on.")
    else:
        intervals = NewGroupIntervals(fitted, wanted, score, simultaneous)
    seen = count_seen(fitted, X, D)
    if seen > MOST_SEEN * len(D):
        raise input_error(
            f"{seen:,} of the {len(D):,} rows of {table} trained this model: it is surer of them than of new rows, so "
            "intervals calibrated on them would be too narrow. Hold rows back: split the table in two, fit on one part "
            "and conformalize with the other."
        )
    with warnings_as_notes(tables=True), progress_bar("conformalize") as progress:
        progress(0, 1)
        intervals.conformalize(X, D)
        progress(1, 1)
    path = save_calibration(model, intervals.to_dict())
    if intervals.choice_ is not None:
        typer.echo(str(intervals.choice_))
    along = f", along {conditional_on}" if conditional_on else f", for new groups of {new_groups}" if new_groups else ""
    typer.echo(
        f"{intervals.n_calibration_:,} calibration rows, method {intervals.method}, level {level_list(levels)}{along}"
    )
    typer.echo(f"saved to {path}; snefy-ldl predict --interval {levels[0]:g} now gives calibrated intervals")


def _bases(rows: Labelled, names: list[str]) -> list[Any]:
    """What coverage must not depend on: an indicator per value of a text column, splines of a number."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    from snefy_ldl.conformal import Groups, Splines

    known = [] if rows.features is None else [str(name) for name in rows.features.columns]
    bases: list[Any] = []
    for name in names:
        if name not in known:
            raise input_error(f"--conditional-on {name}: the model has no such feature; use {', '.join(known[:20])}.")
        cells = rows.features.iloc[:, known.index(name)]
        is_number = is_numeric_dtype(cells) and not is_bool_dtype(cells)
        bases.append((Splines if is_number else Groups)(known.index(name)))
    return bases


# -- watch -------------------------------------------------------------------------------------------------------------


@command("watch")
def watch_rows(
    model: Path,
    table: Path,
    alarm: float = 100.0,
    picture: Path | None = None,
    *,
    source: opt.LabelOptions,
    backbone: str | None = None,
) -> None:
    """Test whether new labelled rows are still like those that calibrated a model, in the order of the table.

    Args:
        alarm: Evidence that raises the alarm; false with probability 1/ALARM.
        picture: File for a picture of the evidence, .svg or .png.
    """
    from snefy_ldl._internal.model_files import load_calibration
    from snefy_ldl.conformal import ConformalIntervals, watch

    fitted = load_model(model, backbone)
    state = load_calibration(model)
    if state is None:
        raise input_error(f"{model} holds no calibration; make one first: snefy-ldl conformalize {model} TABLE.")
    if not 1.0 < alarm < float("inf"):
        raise input_error(f"--alarm {alarm:g}: give a number above 1, such as 100.")
    if picture is not None:
        check_picture(picture, table, option="--picture")
    with warnings_as_notes(tables=True):
        rows, X = read_for_model(fitted, table, source)
        D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
        result = watch(ConformalIntervals.from_dict(fitted, state), X, D, alarm=alarm)
    typer.echo(str(result))
    if picture is not None:
        from snefy_ldl.plots.conformal import plot_watch

        write_picture(plot_watch(result).figure, picture, 150)
        typer.echo(f"picture written to {picture}")


def predict_with_ray(
    engine: opt.EngineOptions,
    model: Path,
    tables: list[str],
    out: str,
    keep: list[str],
    features: str | None,
    device: str,
    interval: float | None,
    uncalibrated: bool,
) -> None:
    """``predict`` on a Ray cluster; a column that names the rows is always kept.

    Args:
        engine: The cluster.
        model: Folder of the model.
        tables: Parquet files, folders of them, and addresses.
        out: Folder to write to.
        keep: Columns to copy.
        features: Text of ``--features``, or None.
        device: Where workers put the model.
        interval: Level of the intervals, or None.
        uncalibrated: Whether to ignore a calibration.
    """
    from snefy_ldl.apps.cluster.parquet import ParquetTable
    from snefy_ldl.apps.cluster.prediction import ModelFiles, predict_on_ray
    from snefy_ldl.datasets.labelled import find_id

    table, files = ParquetTable(tables), ModelFiles.read(model, device)
    fitted, calibration = files.load()
    if group_levels(fitted):
        note("a cluster reads tables without their groups: all rows are of unknown groups")
    table.need(keep, "--keep")
    key, labels = find_id(table.columns, None, known_features(fitted, features)), label_names(fitted)
    kept = list(dict.fromkeys([*([key] if key else []), *keep]))
    # these Parquet files have all of a table on disk that is asked for here
    names = feature_names(fitted, features, cast(Any, table), kept)
    distinct_columns([*kept, *labels, *(interval_columns(labels) if interval is not None else [])])
    if interval is not None and calibration is not None and not uncalibrated:
        note_other_levels(calibrated_levels(calibration), interval)
    work = {"model": files, "features": names, "keep": kept, "interval": interval, "uncalibrated": uncalibrated}
    predict_on_ray(work, table, out, engine.address, engine.workers)
    say(f"{table.n_rows:,} rows written to {out}", "green")
