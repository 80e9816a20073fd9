"""The commands ``evaluate`` and ``conformalize``: scores and calibrated intervals on rows with known labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from snefy_ldl.cli.common import (
    AsJson,
    BackboneCode,
    LabelOptions,
    ModelFolder,
    TableFile,
    Tables,
    level_list,
    load_model,
    make_table,
    note,
    number,
    progress_bar,
    split,
    warnings_as_notes,
)
from snefy_ldl.cli.entry import command
from snefy_ldl.cli.parts import EngineOptions, evaluate_parts
from snefy_ldl.cli.predict import calibrated_maker
from snefy_ldl.cli.tables import no_table_notes, read_for_model, table_notes

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Labelled
    from snefy_ldl.estimator import SnefyLDL


@command()
def evaluate(
    model: ModelFolder,
    tables: Tables,
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of the intervals to check.")] = 0.9,
    *,
    source: LabelOptions,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option(help="Folder for the scores of every row; TABLE... are then Parquet files.")
    ] = None,
    engine: EngineOptions,
    backbone: BackboneCode = None,
) -> None:
    """Score a model on a table whose labels, or votes, are known.

    With --out, the parts of Parquet files are scored one by one, into one
    file each, and a run that was stopped continues from there.
    """
    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.reports.scores import evaluate as score_model

    check_confidence(interval, "--interval")
    folder = "" if out is None else out
    chosen = None if out is None and engine.engine == "local" else engine.choose(tables, folder, backbone)
    if chosen is not None:
        report = evaluate_parts(chosen, model, tables, folder, source, interval)
        return _show(report, as_json, model, tables[0] if len(tables) == 1 else f"{len(tables)} tables")
    fitted = load_model(model, backbone)
    rows, X = read_for_model(fitted, Path(tables[0]), source)
    with warnings_as_notes(), table_notes():
        known = rows.labels if rows.are_counts else rows.labels / rows.labels.sum(axis=1, keepdims=True)
        report = score_model(fitted, X, **{"counts" if rows.are_counts else "D": known}, level=interval)
    if not rows.are_counts:
        report["interval"]["calibrated"] = _calibrated(fitted, model, rows, X, interval)
    _show(report, as_json, model, str(Path(tables[0])))


def _calibrated(model: SnefyLDL, folder: Path, rows: Labelled, X: Any, level: float) -> dict[str, Any] | None:
    """Coverage and width of the intervals that conformalize left in the model folder; None where there are none."""
    from snefy_ldl import metrics
    from snefy_ldl.reports.scores import figure

    maker = calibrated_maker(model, folder, level)
    if maker is None:
        return None
    with no_table_notes():
        ends = maker(X)
    return {
        "coverage": figure(metrics.coverage(rows.labels, ends, return_std_error=True), f"near {level:g}"),
        "width": figure(metrics.interval_width(ends, return_std_error=True), "lower"),
    }


def _show(report: dict[str, Any], as_json: bool, model: Path, table: str) -> None:
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
    model: ModelFolder,
    table: TableFile,
    level: Annotated[str, typer.Option(metavar="0.9,0.95", help="Confidence level, or several.")] = "0.9",
    method: Annotated[
        str,
        typer.Option(help="auto, cdf, quantile or chebyshev (the paper's); auto takes cdf unless it tells nothing."),
    ] = "auto",
    simultaneous: Annotated[bool, typer.Option(help="Cover all labels of a row at once.")] = False,
    *,
    source: LabelOptions,
    backbone: BackboneCode = None,
) -> None:
    """Calibrate a model's intervals on rows it has not seen; predict --interval then uses them."""
    from snefy_ldl._internal.files.models import save_calibration
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.errors import InputError
    from snefy_ldl.training.seen import MOST_SEEN, count_seen

    levels = [number(part, "--level") for part in split(level)]
    fitted = load_model(model, backbone)
    rows, X = read_for_model(fitted, table, source)
    if rows.are_counts:
        note("calibrated on proportions of votes: the intervals cover what annotators would say, not the true shares")
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    intervals = ConformalIntervals(
        fitted, levels if len(levels) > 1 else levels[0], method=cast(Any, method), simultaneous=simultaneous
    )
    seen = count_seen(fitted, X, D)
    if seen > MOST_SEEN * len(D):
        raise InputError(
            f"{seen:,} of the {len(D):,} rows of {table} trained this model: it is surer of them than of new rows, so "
            "intervals calibrated on them would be too narrow. Hold rows back: split the table in two, fit on one part "
            "and conformalize with the other."
        )
    with warnings_as_notes(), table_notes(), progress_bar("conformalize") as progress:
        progress(0, 1)
        intervals.conformalize(X, D)
        progress(1, 1)
    path = save_calibration(model, intervals.to_dict())
    typer.echo(f"{len(D):,} calibration rows, method {intervals.method}, level {level_list(levels)}")
    typer.echo(f"saved to {path}; snefy-ldl predict --interval {levels[0]:g} now gives calibrated intervals")
