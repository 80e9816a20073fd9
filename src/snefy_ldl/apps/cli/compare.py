"""The command ``compare``: learners on the same folds of your tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import (
    check_output,
    given,
    input_error,
    split,
    vote_columns,
    warnings_as_notes,
    write_picture,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import LabelReader, report_rows

if TYPE_CHECKING:
    from snefy_ldl.learners.comparison.result import Comparison


#: The default learners: the library's own, and others that are quick and good.
USUAL = "AutoLDL,SABFGS,LDLLRR,DFLDL,TreesLDL,AAKNN"
ENDINGS = (".md", ".tex", ".csv", ".png", ".pdf", ".svg")


@command()
def compare(
    tables: list[Path],
    labels: Annotated[str, typer.Option()],
    learners: str = USUAL,
    features: str | None = None,
    drop: str | None = None,
    normalize: bool = False,
    votes: str | None = None,
    groups: str | None = None,
    folds: int = 10,
    repeats: int = 1,
    measures: str | None = None,
    seed: int = 0,
    jobs: int = 1,
    checkpoint: Path | None = None,
    out: list[Path] | None = None,
) -> None:
    """Compare learners by repeated cross-validation, with significance tests; tables are read as fit reads them.

    Args:
        tables (TABLE...): CSV, TSV, Excel or Parquet files.
        learners (L1,L2): Names of learners, or all.
        votes (counts): The label columns are numbers of votes.
        groups (C1,C2): Columns of the group of each row, not features: folds are made of whole groups. Only with a
            single TABLE.
        folds: Folds of a cross-validation.
        repeats: Cross-validations, each with its own shuffle of the rows.
        measures (M1,M2): Measures, or all; by default six.
        jobs: Processes; -1 takes all cores.
        checkpoint: Folder for finished fits; a comparison that was stopped continues from it.
        out: File to write, format from the extension: md, tex, csv, png, pdf, svg. Repeatable.

    Examples:
        Six learners on one table:
          snefy-ldl compare soil.csv --labels sand,silt,clay

        How well rows of new children are predicted:
          snefy-ldl compare stools.csv --labels a,b,c --groups child

        All of them, ten times ten folds, in two processes; continues if it was stopped:
          snefy-ldl compare soil.csv --labels sand,silt,clay --learners all
          --repeats 10 --jobs 2 --checkpoint runs --out table.tex --out picture.png
    """
    for file in out or []:
        check_output(file, ENDINGS, *tables)
    if votes not in (None, "counts"):
        raise typer.BadParameter(f"--votes {votes}: use counts.")
    from snefy_ldl.learners.comparison import compare as compare_learners
    from snefy_ldl.metrics import MEASURES

    chosen, levels = _learners(split(learners) or ["all"]), split(groups)
    if len({table.stem for table in tables}) < len(tables):
        raise typer.BadParameter("two tables have the same name; rename one.")
    if levels and len(tables) > 1:
        raise typer.BadParameter("--groups names a column of one table; compare one table at a time.")
    sets, of_rows = {}, None
    for table in tables:
        no_columns = vote_columns(opt.VOTE_COLUMNS)
        reader = LabelReader(split(labels), split(features) or None, split(drop), None, no_columns, normalize, levels)
        rows = reader.shares(table, votes == "counts")
        report_rows(rows)
        D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
        of_rows = rows.features[levels] if levels else None
        sets[table.stem] = (_plain(rows.features.drop(columns=levels)), D)
    with warnings_as_notes():
        result = compare_learners(
            chosen,
            sets,
            cv=folds,
            repeats=repeats,
            measures=_chosen("--measures", split(measures), list(MEASURES)) or None,
            checkpoint=checkpoint,
            n_jobs=jobs,
            random_state=seed,
            verbose=0 if given.quiet else 1,
            groups=of_rows,
        )
    for file in out or []:
        _write(result, file)
    typer.echo(result.to_markdown(times=True), nl=False)
    if len(tables) > 1 and len(chosen) > 1 and not result.errors:
        test = result.friedman()
        ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in zip(result.learners, test.ranks))
        over = f"\nFriedman test over {len(tables)} tables by {next(iter(result.measures))}"
        typer.echo(
            f"{over}: p = {test.p_value:.3g}; mean ranks {ranks}; critical difference {test.critical_difference:.2f}."
        )


def _plain(X: Any) -> Any:
    """Features as learners take them: an array if all are numbers without gaps, else the DataFrame."""
    are_numbers = X.select_dtypes("number").shape == X.shape and not X.isna().any(axis=None)
    return X.to_numpy(dtype=float) if are_numbers else X.reset_index(drop=True)


def _learners(names: list[str]) -> dict[str, Any]:
    from snefy_ldl.auto import AutoLDL
    from snefy_ldl.learners import all_learners
    from snefy_ldl.logratio import LogRatioLDL
    from snefy_ldl.snefy import SnefyLDL

    known: dict[str, Any] = {"AutoLDL": AutoLDL, "SnefyLDL": SnefyLDL, "LogRatioLDL": LogRatioLDL, **all_learners()}
    return {name: known[name]() for name in _chosen("--learners", names, list(known))}


def _chosen(option: str, names: list[str], known: list[str]) -> list[str]:
    """The names of an option, each of which must be known; "all" are all of them."""
    if unknown := [name for name in names if name not in [*known, "all"]]:
        raise input_error(f"{option} {unknown[0]}: use all, or names from {', '.join(known)}.")
    return known if "all" in names else names


def _write(result: Comparison, file: Path) -> None:
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.datasets.table_files import TableSink

    kind = file.suffix.lower()
    if kind == ".csv":
        with TableSink(str(file)) as sink:
            sink.write(result.table.reset_index())
    elif kind in (".md", ".tex"):
        write_bytes(file, (result.to_markdown() if kind == ".md" else result.to_latex()).encode())
    else:
        write_picture(result.plot().figure, file)
