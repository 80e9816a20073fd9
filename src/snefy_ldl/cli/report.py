"""The command ``report``: one page about a model on rows whose labels are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    BackboneCode,
    Counts,
    Features,
    IdColumn,
    KnownForm,
    Labels,
    ModelFolder,
    Normalize,
    TableFile,
    VoteColumns,
    VoteFile,
    level_list,
    load_model,
    note,
    say,
)
from snefy_ldl.cli.model_tables import no_table_notes, table_notes
from snefy_ldl.cli.reader import Source, read_for_model
from snefy_ldl.cluster.rows import calibrated_levels

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.reports import JudgedRows


#: Folds where the table trained the model.
FOLDS = 5
#: Share of rows that trained the model from which a report fits anew, and from which it says so.
MOSTLY_SEEN, FEW_SEEN = 0.5, 0.02

EXAMPLES = """A page about rows that the fit has not seen:
  snefy-ldl report model test.csv --out report

The rivals learn from the rows that trained the model:
  snefy-ldl report model test.csv --train train.csv --out report

Only one table, which trained the model: judged by cross-validation:
  snefy-ldl report model all.csv --out report
"""


def report(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Folder to write index.html into.")] = Path("report"),
    train: Annotated[
        Path | None, typer.Option(help="Table that trained the model; the simple rivals learn from it, too.")
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=0, help="Fit anew without each of so many parts of TABLE; by default 5 if it trained the model."
        ),
    ] = None,
    ternary: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Labels of the triangles, or groups of them: A+B,C,D.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Headline of the page.")] = None,
    labels: Labels = None,
    features: Features = None,
    counts: Counts = False,
    votes: KnownForm = "auto",
    vote_file: VoteFile = None,
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    normalize: Normalize = False,
    backbone: BackboneCode = None,
) -> None:
    """Write a page about a model: how good it is, what matters, and where it fails."""
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.cli.report_page import render_report
    from snefy_ldl.errors import InputError
    from snefy_ldl.reports import make_report

    if folds == 1:
        raise typer.BadParameter("--folds 1: use at least 2, or 0 to judge the model itself.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder for the page.")
    fitted = load_model(model, backbone)
    form = "counts" if counts else votes
    source = Source(table, labels, features, form, vote_file, columns, id_name, normalize)
    rows = judged_rows(fitted, source)
    others = None if train is None else judged_rows(fitted, replace(source, table=train))
    folds, notes = _how_to_judge(fitted, rows, folds)
    calibration = None if folds or rows.counts is not None else stored_calibration(fitted, model)
    with no_table_notes():
        made = make_report(fitted, rows, train=others, folds=folds, calibration=calibration)
    commands = [
        f"snefy-ldl report {model} {table}" + (f" --train {train}" if train else "") + f" --out {out}",
        f"snefy-ldl predict {model} {table.name} --interval 0.9 --out predictions.csv",
        f"snefy-ldl conformalize {model} calibration.csv     # rows of their own",
    ]
    page = out / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    text = render_report(made, table=table.name, title=title, ternary=ternary, notes=notes, commands=commands)
    write_bytes(page, text.encode())
    say(f"{len(rows):,} rows judged; the page: {page}   (open it in a browser)", "green")


def _how_to_judge(model: SnefyLDL, rows: JudgedRows, folds: int | None) -> tuple[int, list[str]]:
    """In how many folds to fit anew, and what a reader should know: rows that trained a model flatter it."""
    from snefy_ldl.training.seen import count_seen

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


def judged_rows(model: SnefyLDL, source: Source) -> JudgedRows:
    """The rows of a table whose labels are known; what is odd about them is said on standard error.

    Args:
        model: The fitted model, which knows its labels, and mostly its features.
        source: Where the rows are.

    Returns:
        The rows, with the names of their columns, and their own names where the table has some.

    Raises:
        InputError: The table breaks a rule.
    """
    import pandas as pd

    from snefy_ldl.reports import JudgedRows

    rows, X = read_for_model(model, source)
    columns = list(X.columns) if hasattr(X, "columns") else list(rows.features.columns)
    table = pd.DataFrame(X, columns=columns).reset_index(drop=True)
    with table_notes():
        model.predict(table)
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    names = None if rows.ids is None else [str(name) for name in rows.ids]
    return JudgedRows(table, D, rows.label_names, rows.labels if rows.are_counts else None, names)


def stored_calibration(model: SnefyLDL, folder: Path) -> Any:
    """Conformalized intervals that the model folder holds, of the level that a report speaks of.

    Args:
        model: The fitted model.
        folder: Its folder.

    Returns:
        The intervals; None where there are none of that level.
    """
    from snefy_ldl._internal.files.models import load_calibration
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.reports import LEVEL

    state = load_calibration(folder)
    if state is None:
        return None
    if LEVEL not in calibrated_levels(state):
        note(f"calibrated for {level_list(calibrated_levels(state))} alone; the report's level is {LEVEL:g}")
        return None
    return ConformalIntervals.from_dict(model, state)
