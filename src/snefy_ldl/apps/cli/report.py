"""The command ``report``: a page about a model on rows with known labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import input_error, load_model, note, noted_intervals, say, warnings_as_notes
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import SCORED, describe_outside, hidden_cells, known_limits, outside_rows, read_for_model

if TYPE_CHECKING:
    from snefy_ldl.apps.reports import JudgedRows
    from snefy_ldl.snefy import SnefyLDL

#: Folds if the table trained the model.
FOLDS = 5
#: Share of rows that trained the model from which a report fits again.
MOSTLY_SEEN = 0.5


@command()
def report(
    model: Path,
    table: Path,
    out: Path | None = None,
    train: Path | None = None,
    folds: Annotated[int | None, typer.Option(min=0)] = None,
    form: opt.Form = "auto",
    vote_file: Path | None = None,
) -> None:
    """Write a page about a model: accuracy, important columns, failures.

    Args:
        out: Folder to write index.html into, by default report.
        train: Table that trained the model; the simple rivals learn from it, too.
        folds: Folds of a cross-validation; by default 5 if TABLE trained the model, else none.

    Examples:
        A page about rows that the fit has not seen:
          snefy-ldl report model test.csv --out report

        The simple rivals learn from the rows that trained the model:
          snefy-ldl report model test.csv --train train.csv --out report

        Only one table, which trained the model: judged by cross-validation:
          snefy-ldl report model all.csv --out report
    """
    import numpy as np

    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.apps.cli.report_page import render_report
    from snefy_ldl.apps.reports.model_report import LEVEL, make_report

    folder = Path("report") if out is None else out
    if folds == 1:
        raise typer.BadParameter("--folds 1: use at least 2, or 0 to judge the model itself.")
    if folder.exists() and not folder.is_dir():
        raise input_error(f"--out {folder} is a file; name a folder for the page.")
    fitted = load_model(model)
    judged = _judged_rows(fitted, table, form, vote_file)
    others = None if train is None else _judged_rows(fitted, train, form, vote_file)
    folds, notes = _how_to_judge(fitted, judged, folds)
    notes += _outside_note(fitted, judged)
    if hidden := hidden_cells(fitted):
        notes += [f"Cells known to lie below a limit in the fit: {hidden}."]
    if judged.below is not None:
        notes += [f"Of this table {int((~np.isnan(judged.below)).sum()):,} {SCORED}."]
    calibration = None if folds or judged.counts is not None else noted_intervals(model, fitted, LEVEL)
    with warnings_as_notes():
        made = make_report(fitted, judged, train=others, folds=folds, calibration=calibration)
    commands = [
        f"snefy-ldl report {model} {table}" + (f" --train {train}" if train else "") + f" --out {folder}",
        f"snefy-ldl predict {model} {table.name} --interval 0.9 --out predictions.csv",
        f"snefy-ldl conformalize {model} calibration.csv     # rows that fit has not seen",
    ]
    page = folder / "index.html"
    folder.mkdir(parents=True, exist_ok=True)
    text = render_report(made, table=table.name, notes=notes, commands=commands)
    write_bytes(page, text.encode())
    say(f"{len(judged):,} rows judged; the page: {page}   (open it in a browser)", "green")


def _outside_note(model: Any, rows: JudgedRows) -> list[str]:
    """A sentence about rows outside the training range, if there are any."""
    far = outside_rows(model, rows.X)
    words = "" if far is None else describe_outside(model, [(far.any(1), far.sum(0))])
    return [f"{words[0].upper()}{words[1:]}."] if words else []


def _how_to_judge(model: SnefyLDL, rows: JudgedRows, folds: int | None) -> tuple[int, list[str]]:
    """In how many folds to fit again, and a caution for the reader: rows that trained a model flatter it."""
    from snefy_ldl._internal.seen import count_seen
    from snefy_ldl.apps.reports.model_report import FEW_SEEN

    seen = count_seen(model, rows.X, rows.D) / len(rows)
    if folds is None and seen >= MOSTLY_SEEN:
        part = "a part of them" if rows.groups is None else "some of the groups"
        words = f"these rows trained the model, so its settings are judged by {FOLDS} fits, each without {part}"
        note(f"{words} (--folds 0 judges the model itself)")
        return FOLDS, [f"{words[0].upper()}{words[1:]}."]
    if not folds and seen > FEW_SEEN:
        note(f"{seen:.0%} of these rows trained the model, which looks better on them than on new ones")
    return folds or 0, []


def _judged_rows(model: SnefyLDL, file: Path, form: str, vote_file: Path | None) -> JudgedRows:
    """The rows of a table whose labels are known; prints warnings about them on standard error."""
    import pandas as pd

    from snefy_ldl.apps.reports import JudgedRows
    from snefy_ldl.datasets.grouping import in_groups, split_rows

    rows, X = read_for_model(model, file, form, vote_file)
    X, groups = split_rows(X)
    columns = list(X.columns) if hasattr(X, "columns") else list(rows.features.columns)
    table = in_groups(pd.DataFrame(X, columns=columns).reset_index(drop=True), groups)
    with warnings_as_notes(tables=True):
        model.predict(table)
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    names = None if rows.ids is None else [str(name) for name in rows.ids]
    counts = rows.labels if rows.are_counts else None
    return JudgedRows(table, D, rows.label_names, counts, names, known_limits(model, rows))
