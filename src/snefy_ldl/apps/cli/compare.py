"""The command ``compare``: learners side by side on one's own tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import input_error, split, warnings_as_notes, write_picture
from snefy_ldl.apps.cli.entry import command

if TYPE_CHECKING:
    from snefy_ldl.learners.comparison import Comparison


#: What ``--measures ordinal`` adds to the usual ones: labels that have an order.
ORDINAL = (
    "cumulative_absolute_distance",
    "earth_movers_distance",
    "ranked_probability_score",
    "quadratic_form_distance",
    "cumulative_jensen_shannon",
)
#: The default learners: the density and the learners that are quick and good.
USUAL = "SnefyLDL,SABFGS,LDLLRR,DFLDL,TreesLDL,AAKNN"
ENDINGS = (".md", ".tex", ".csv", ".json", ".png", ".pdf", ".svg")


@command()
def compare(
    tables: list[Path],
    labels: Annotated[str, typer.Option()],
    learners: str = USUAL,
    features: str | None = None,
    groups: list[str] | None = None,
    counts: bool = False,
    folds: int = 10,
    repeats: int = 1,
    measures: str | None = None,
    seed: int = 0,
    jobs: int = 1,
    checkpoint: Path | None = None,
    out: list[Path] | None = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare learners by repeated cross-validation, with significance tests.

    Args:
        tables (TABLE...): CSV, TSV or Parquet files.
        labels (A,B,C): Label columns, each row summing to 1.
        learners (L1,L2): Names of learners, or all.
        features (F1,F2): Feature columns; by default all others.
        groups (COLUMN): Column of the group of each row, not a feature: folds are made of whole groups. Repeatable, for
            several levels; of one table.
        folds: Folds of a cross-validation.
        repeats: Cross-validations, rows shuffled anew each time.
        measures (M1,M2): Measures, all, or ordinal for ordered labels; by default six.
        jobs: Processes; -1 takes all cores.
        checkpoint: Folder for finished fits; a comparison that was stopped continues from it.
        out: File to write, by its ending: md, tex, csv, json, png, pdf, svg.

    Examples:
        Five learners on one table:
          snefy-ldl compare soil.csv --labels sand,silt,clay

        How well rows of new children are predicted:
          snefy-ldl compare stools.csv --labels a,b,c --groups child

        All of them, ten times ten folds, in two processes; continues if it was stopped:
          snefy-ldl compare soil.csv --labels sand,silt,clay --learners all
          --repeats 10 --jobs 2 --checkpoint runs --out table.tex --out picture.png
    """
    for file in out or []:
        if file.suffix.lower() not in ENDINGS:
            raise typer.BadParameter(f"--out {file}: end it in {', '.join(ENDINGS)}.")
    from snefy_ldl.datasets import load_table
    from snefy_ldl.learners.comparison import compare as compare_learners

    chosen, levels = _learners(split(learners)), [name for text in groups or [] for name in split(text)]
    columns = split(features) or None
    sets: dict[str, Any] = {table.stem: load_table(table, split(labels), columns, counts) for table in tables}
    if len(sets) < len(tables):
        raise typer.BadParameter("two tables have the same name; rename one.")
    of_rows = None
    if levels:
        if len(tables) > 1:
            raise typer.BadParameter("--groups names a column of one table; compare one table at a time.")
        keys = load_table(tables[0], split(labels), levels, counts)
        sets, of_rows = _take_groups(tables[0].stem, sets[tables[0].stem], keys, levels)
    with warnings_as_notes():
        result = compare_learners(
            chosen,
            sets,
            cv=folds,
            repeats=repeats,
            measures=_measures(split(measures)),
            checkpoint=checkpoint,
            n_jobs=jobs,
            random_state=seed,
            verbose=0 if quiet else 1,
            groups=of_rows,
        )
    for file in out or []:
        _write(result, file)
    typer.echo(json.dumps(_facts(result), indent=2) if as_json else result.to_markdown(times=True), nl=as_json)
    if len(tables) > 1 and len(chosen) > 1 and not result.errors and not as_json:
        test = result.friedman()
        typer.echo(
            f"\nFriedman test over {len(tables)} tables by {result.measures[0]}: p = {test.p_value:.3g}; mean ranks "
            f"{', '.join(f'{name} {rank:.2f}' for name, rank in zip(result.learners, test.ranks))}; critical "
            f"difference {test.critical_difference:.2f}."
        )


def _take_groups(name: str, data: Any, keys: Any, levels: list[str]) -> tuple[dict[str, Any], Any]:
    """One table without its columns of groups, and those columns, which were read as its features."""
    import pandas as pd

    def frame(part: Any) -> Any:
        return part.X if hasattr(part.X, "columns") else pd.DataFrame(part.X, columns=part.feature_names)

    X = frame(data).drop(columns=levels, errors="ignore")
    if not len(X.columns):
        raise input_error("--groups leaves no column for the features.")
    are_numbers = X.select_dtypes("number").shape == X.shape and not X.isna().any(axis=None)
    return {name: (X.to_numpy(dtype=float) if are_numbers else X, data.D)}, frame(keys)[levels]


def _learners(names: list[str]) -> dict[str, Any]:
    from snefy_ldl.learners import all_learners
    from snefy_ldl.logratio import LogRatioLDL
    from snefy_ldl.snefy import SnefyLDL

    known: dict[str, Any] = {"SnefyLDL": SnefyLDL, "LogRatioLDL": LogRatioLDL, **all_learners()}
    chosen = list(known) if names == ["all"] else names
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise input_error(f"--learners {','.join(unknown)}: use all, or names from {', '.join(known)}.")
    return {name: known[name]() for name in chosen}


def _measures(names: list[str]) -> list[str] | None:
    """Names of measures; None for the usual ones."""
    from snefy_ldl import metrics

    if names == ["all"]:
        return list(metrics.MEASURES)
    if names == ["ordinal"]:
        return [*metrics.HIGHER_IS_BETTER, *ORDINAL]
    if unknown := [name for name in names if name not in metrics.MEASURES]:
        raise input_error(f"--measures {unknown[0]}: use all, ordinal, or names from {', '.join(metrics.MEASURES)}.")
    return names or None


def _facts(result: Comparison) -> dict[str, Any]:
    """The tables as plain values; what is not a number is null."""
    table, times = result.table.reset_index(), result.times.reset_index(drop=True)
    rows = json.loads(table.join(times).to_json(orient="records"))
    return {"rows": rows, "errors": [{"data": d, "learner": k, "error": e} for (d, k), e in result.errors.items()]}


def _write(result: Comparison, file: Path) -> None:
    from snefy_ldl._internal.files import write_bytes, write_json
    from snefy_ldl.datasets.tables import TableSink

    kind = file.suffix.lower()
    if kind == ".json":
        write_json(file, _facts(result))
    elif kind == ".csv":
        with TableSink(str(file)) as sink:
            sink.write(result.table.reset_index())
    elif kind in (".md", ".tex"):
        write_bytes(file, (result.to_markdown() if kind == ".md" else result.to_latex()).encode())
    else:
        write_picture(result.plot().figure, file, 150)
