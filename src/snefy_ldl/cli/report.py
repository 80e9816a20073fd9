"""The command ``report``: a page about a model on rows with known labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.cli import options as opt
from snefy_ldl.cli.common import input_error, load_model, note, note_other_levels, say
from snefy_ldl.cli.entry import command
from snefy_ldl.cli.tables import no_table_notes, read_for_model, table_notes
from snefy_ldl.cluster.rows import calibrated_levels

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.reports import JudgedRows

#: Folds where the table trained the model.
FOLDS = 5
#: Share of rows that trained the model from which a report fits anew, and from which it prints a note.
MOSTLY_SEEN, FEW_SEEN = 0.5, 0.02

EXAMPLES = """A page about rows that the fit has not seen:
  snefy-ldl report model test.csv --out report

The simple rivals learn from the rows that trained the model:
  snefy-ldl report model test.csv --train train.csv --out report

Only one table, which trained the model: judged by cross-validation:
  snefy-ldl report model all.csv --out report
"""


@command(examples=EXAMPLES)
def report(
    model: opt.ModelFolder,
    table: opt.TableFile,
    out: Annotated[Path, typer.Option(help="Folder to write index.html into.")] = Path("report"),
    train: Annotated[
        Path | None, typer.Option(help="Table that trained the model; the simple rivals learn from it, too.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=0, help="Folds of a cross-validation; by default 5 if TABLE trained the model, else none."),
    ] = None,
    ternary: opt.Ternary = None,
    title: Annotated[str | None, typer.Option(help="Headline of the page.")] = None,
    *,
    source: opt.LabelOptions,
    backbone: opt.BackboneCode = None,
) -> None:
    """Write a page about a model: how good it is, what matters, and where it fails."""
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.cli.report_page import render_report
    from snefy_ldl.reports import make_report

    if folds == 1:
        raise typer.BadParameter("--folds 1: use at least 2, or 0 to judge the model itself.")
    if out.exists() and not out.is_dir():
        raise input_error(f"--out {out} is a file; name a folder for the page.")
    fitted = load_model(model, backbone)
    rows = _judged_rows(fitted, table, source)
    others = None if train is None else _judged_rows(fitted, train, source)
    folds, notes = _how_to_judge(fitted, rows, folds)
    calibration = None if folds or rows.counts is not None else _stored_calibration(fitted, model)
    with no_table_notes():
        made = make_report(fitted, rows, train=others, folds=folds, calibration=calibration)
    commands = [
        f"snefy-ldl report {model} {table}" + (f" --train {train}" if train else "") + f" --out {out}",
        f"snefy-ldl predict {model} {table.name} --interval 0.9 --out predictions.csv",
        f"snefy-ldl conformalize {model} calibration.csv     # rows that fit has not seen",
    ]
    page = out / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    text = render_report(made, table=table.name, title=title, ternary=ternary, notes=notes, commands=commands)
    write_bytes(page, text.encode())
    say(f"{len(rows):,} rows judged; the page: {page}   (open it in a browser)", "green")


def _how_to_judge(model: SnefyLDL, rows: JudgedRows, folds: int | None) -> tuple[int, list[str]]:
    """In how many folds to fit anew, and what a reader should know: rows that trained a model flatter it."""
    from snefy_ldl._internal.seen import count_seen

    seen = count_seen(model, rows.X, rows.D) / len(rows)
    if folds is None and seen >= MOSTLY_SEEN:
        words = f"these rows trained the model, so its settings are judged by {FOLDS} fits, each without a part of them"
        note(f"{words} (--folds 0 judges the model itself)")
        return FOLDS, [f"{words[0].upper()}{words[1:]}."]
    if not folds and seen > FEW_SEEN:
        words = f"About {seen:.0%} of these rows trained the model, which looks better on them than on new ones."
        note(words)
        return 0, [words]
    return folds or 0, []


def _judged_rows(model: SnefyLDL, file: Path, source: opt.LabelOptions) -> JudgedRows:
    """The rows of a table whose labels are known; prints on standard error what is odd about them."""
    import pandas as pd

    from snefy_ldl.datasets.groups import in_groups, split_rows
    from snefy_ldl.reports import JudgedRows

    rows, X = read_for_model(model, file, source)
    X, groups = split_rows(X)
    columns = list(X.columns) if hasattr(X, "columns") else list(rows.features.columns)
    table = in_groups(pd.DataFrame(X, columns=columns).reset_index(drop=True), groups)
    with table_notes():
        model.predict(table)
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    names = None if rows.ids is None else [str(name) for name in rows.ids]
    return JudgedRows(table, D, rows.label_names, rows.labels if rows.are_counts else None, names)


def _stored_calibration(model: SnefyLDL, folder: Path) -> Any:
    """Conformalized intervals that the model folder holds, of the report's level; None where there are none."""
    from snefy_ldl._internal.model_files import load_calibration
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.reports import LEVEL

    state = load_calibration(folder)
    if state is None or note_other_levels(calibrated_levels(state), LEVEL):
        return None
    return ConformalIntervals.from_dict(model, state)
