"""The command ``predict``: label distributions of a table, and their intervals, a part at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.cli.common import (
    BackboneCode,
    Device,
    Features,
    ModelFolder,
    TableOut,
    distinct_columns,
    level_list,
    load_model,
    note,
    progress_bar,
    refuse_backbone,
    say,
    split,
    table_output,
)
from snefy_ldl.cli.model_tables import feature_names, model_rows, no_table_notes, odd_cells, say_odd_cells, takes_gaps
from snefy_ldl.cli.parts import Address, EngineName, Patience, Tables, Workers, choose_engine, one_table, predict_parts
from snefy_ldl.cli.threads import map_in_order
from snefy_ldl.cluster.rows import calibrated_intervals, calibrated_levels, interval_columns, prediction_columns

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL


def predict(
    model: ModelFolder,
    tables: Tables,
    out: TableOut = "-",
    interval: Annotated[
        float | None, typer.Option(metavar="LEVEL", help="Also write each label's interval of this level, 0.9 say.")
    ] = None,
    keep: Annotated[str | None, typer.Option(metavar="COL1,COL2", help="Columns to copy from the table.")] = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="The model's own interval, whatever conformalize left.")
    ] = False,
    features: Features = None,
    device: Device = "auto",
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    patience: Patience = 600.0,
    backbone: BackboneCode = None,
) -> None:
    """Predict the label distributions of a table, a part at a time, however long it is.

    Where --out is a folder (a name without an ending), TABLE... are Parquet
    files, folders or addresses such as s3://..., and every part of them
    becomes a file in it; a run that was stopped goes on from there.
    """
    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.datasets.tables import TableSink, TableSource
    from snefy_ldl.errors import InputError

    if interval is not None:
        check_confidence(interval, "--interval")
    chosen = choose_engine(engine, address, workers, patience, tables, out)
    if chosen is not None:
        refuse_backbone(backbone)
        options = {"interval": interval, "uncalibrated": uncalibrated}
        return predict_parts(chosen, model, tables, out, split(keep), features, device, options)
    table = one_table(tables)
    table_output(out, table)
    source = TableSource(table)
    fitted = load_model(model, backbone, device)
    names = feature_names(fitted, features, source)
    kept = split(keep)
    source.need(kept, "--keep")
    labels = [str(label) for label in fitted.label_names_]
    if taken := sorted(set(kept) & set(labels)):
        raise InputError(f"--keep {taken[0]}: that is also the name of a predicted column; leave it out.")
    distinct_columns([*kept, *labels, *(interval_columns(labels) if interval is not None else [])])
    rows, intervals = 0, None if interval is None else _interval_maker(fitted, model, interval, uncalibrated)
    odd: list[Any] = []

    def answer_to(chunk: Any) -> Any:
        odd.extend(odd_cells(fitted, chunk, names))
        return _predictions(fitted, chunk, names, kept, intervals)

    # parts are answered by several threads, which share the filters of warnings: odd cells are added up here
    with no_table_notes(), progress_bar("predict") as progress, TableSink(out) as sink:
        for answer in map_in_order(answer_to, source.chunks(names, kept, progress, finite=not takes_gaps(fitted))):
            sink.write(answer)
            rows += len(answer)
    say_odd_cells(odd)
    if out != "-":
        say(f"{rows:,} rows written to {out}", "green")


def _interval_maker(model: SnefyLDL, folder: Path, level: float, uncalibrated: bool) -> Callable[[Any], Any]:
    """Features to intervals (N, L, 2): calibrated where the folder holds a calibration of that level."""
    calibrated = None if uncalibrated else calibrated_maker(model, folder, level)
    return calibrated or (lambda X: model.predict_interval(X, level))


def calibrated_maker(model: SnefyLDL, folder: Path, level: float) -> Callable[[Any], Any] | None:
    """Features to calibrated intervals (N, L, 2).

    Args:
        model: The fitted model.
        folder: Its folder.
        level: Confidence level.

    Returns:
        A function of features; None where the folder holds no calibration of that level, which is said where it holds
        one of others.
    """
    from snefy_ldl._internal.files.models import load_calibration

    state = load_calibration(folder)
    if state is None:
        return None
    calibrated = calibrated_intervals(model, state, level)
    if calibrated is None:
        note(f"calibrated for {level_list(calibrated_levels(state))} alone; {level:g} is the model's own")
    return calibrated


def _predictions(
    model: SnefyLDL, chunk: Any, names: list[str], keep: list[str], intervals: Callable[[Any], Any] | None
) -> Any:
    """The output's columns: kept ones, a mean a label, and both ends of its interval."""
    import pandas as pd

    columns = prediction_columns(model, model_rows(model, chunk, names), intervals)
    numbers = pd.DataFrame(columns, index=chunk.index)
    return pd.concat([chunk[keep], numbers], axis=1) if keep else numbers
