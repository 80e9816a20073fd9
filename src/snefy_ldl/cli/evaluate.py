"""The command ``evaluate``: a saved model scored on rows whose labels are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    AsJson,
    BackboneCode,
    Counts,
    Features,
    IdColumn,
    KnownForm,
    Labels,
    ModelFolder,
    Normalize,
    VoteColumns,
    VoteFile,
    load_model,
    refuse_backbone,
    warnings_as_notes,
)
from snefy_ldl.cli.model_tables import no_table_notes, table_notes
from snefy_ldl.cli.parts import Address, EngineName, Patience, Tables, Workers, choose_engine, evaluate_parts, one_table
from snefy_ldl.cli.reader import Source, read_for_model

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Labelled
    from snefy_ldl.estimator import SnefyLDL


def evaluate(
    model: ModelFolder,
    tables: Tables,
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of the intervals to check.")] = 0.9,
    labels: Labels = None,
    features: Features = None,
    counts: Counts = False,
    votes: KnownForm = "auto",
    vote_file: VoteFile = None,
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    normalize: Normalize = False,
    as_json: AsJson = False,
    out: Annotated[
        str | None, typer.Option(help="Folder for the scores of every row; TABLE... are then Parquet files.")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    patience: Patience = 600.0,
    backbone: BackboneCode = None,
) -> None:
    """Score a model on a table whose labels, or votes, are known.

    With --out, parts of Parquet files are scored one by one, a file each,
    and a run that was stopped goes on from there.
    """
    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.reports.scores import evaluate as score_model

    check_confidence(interval, "--interval")
    chosen = (
        None
        if out is None and engine == "local"
        else choose_engine(engine, address, workers, patience, tables, out or "")
    )
    if chosen is not None:
        refuse_backbone(backbone)
        if vote_file is not None or votes not in ("auto", "shares", "counts"):
            raise typer.BadParameter("work in parts takes shares or --counts in the same table only.")
        are_counts = counts or votes == "counts"
        report = evaluate_parts(chosen, model, tables, out or "", labels, features, are_counts, normalize, interval)
        return _show(report, as_json, model, Path(tables[0] if len(tables) == 1 else f"{len(tables)} tables"))
    table = one_table(tables)
    fitted = load_model(model, backbone)
    form = "counts" if counts else votes
    source = Source(table, labels, features, form, vote_file, columns, id_name, normalize)
    rows, X = read_for_model(fitted, source)
    with warnings_as_notes(), table_notes():
        known = rows.labels if rows.are_counts else rows.labels / rows.labels.sum(axis=1, keepdims=True)
        report = score_model(fitted, X, **{"counts" if rows.are_counts else "D": known}, level=interval)
    if not rows.are_counts:
        report["interval"]["calibrated"] = _calibrated(fitted, model, rows, X, interval)
    _show(report, as_json, model, table)


def _show(report: dict[str, Any], as_json: bool, model: Path, table: Path) -> None:
    """The scores on standard output."""
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        Console().print(_score_table(report, model, table))


def _calibrated(model: SnefyLDL, folder: Path, rows: Labelled, X: Any, level: float) -> dict[str, Any] | None:
    """Coverage and width of the intervals that conformalize left in the model folder; None where there are none."""
    from snefy_ldl import metrics
    from snefy_ldl.cli.predict import calibrated_maker
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


def _score_table(report: dict[str, Any], model: Path, table: Path) -> Table:
    """The scores for people to read."""
    title = Text(f"{model} on {table}: {report['rows']:,} rows")  # a file may be named [/]: no markup
    view = Table(title=title, header_style="bold", title_style="bold")
    view.add_column("measure")
    view.add_column("value", justify="right")
    view.add_column("± error", justify="right")
    view.add_column("better")
    level = report["interval"]["level"]
    lines = [(name.replace("_", " "), entry) for name, entry in report["metrics"].items()]
    lines.append(("mean log likelihood", report["log_likelihood"]))
    if report["interval"]["coverage"] is not None:
        lines.append((f"coverage of {level:.0%} intervals, the model's own", report["interval"]["coverage"]))
    lines.append((f"width of {level:.0%} intervals, the model's own", report["interval"]["width"]))
    calibrated = report["interval"].get("calibrated")
    for what in ("coverage", "width") if calibrated else ():
        lines.append((f"{what} of {level:.0%} intervals, calibrated", calibrated[what]))
    for name, entry in lines:
        error = "" if entry["std_error"] is None else f"{entry['std_error']:.4f}"
        view.add_row(name, f"{entry['value']:.4f}", error, entry["better"])
    if report["interval"]["coverage"] is None:
        view.caption = (
            "No coverage: the intervals are about the shares behind the votes, which votes do not show. "
            "The log likelihood is that of the counts, multinomial coefficient included."
        )
    elif not calibrated:
        view.caption = "Not calibrated for this level: snefy-ldl conformalize does that, on rows of their own."
    return view
