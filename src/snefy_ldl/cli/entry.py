"""The command line ``snefy-ldl``: arguments in, functions called.

Exit codes: 0 done, 1 the data or the files do not allow it (one line on stderr says why), 2 wrong usage.
Heavy imports happen inside the commands, so that ``snefy-ldl --help`` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from typer.core import TyperGroup

from snefy_ldl._version import __version__
from snefy_ldl.cli.common import (
    AsJson,
    Counts,
    Features,
    Labels,
    ModelFolder,
    TableFile,
    explain,
    feature_names,
    known_features,
    note,
    number,
    progress_bar,
    say,
    split,
    table_output,
)
from snefy_ldl.cli.fit import FIT_EXAMPLES, fit
from snefy_ldl.cli.query import QUERY_EXAMPLES, query
from snefy_ldl.cli.reproduce import reproduce
from snefy_ldl.cli.views import info_table, score_table, scores
from snefy_ldl.cli.votes import NEXT_EXAMPLES, UPDATE_EXAMPLES, next_items, update

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL


class _Group(TyperGroup):
    """Commands whose failures are one line, not a traceback; ``--debug`` may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``--debug`` follow the command, too."""
        if "--debug" in args:
            args = ["--debug", *(word for word in args if word != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what goes wrong is said in one red line."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug") or type(error).__module__.startswith(("click", "typer")):
                raise
            say(f"error: {explain(error)}", "bold red")
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Label distribution learning with a full probability density over the simplex.",
    epilog="Start with: snefy-ldl demo",
)


def main() -> None:
    """Entry point of the program ``snefy-ldl``."""
    app(prog_name="snefy-ldl")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"snefy-ldl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback when something fails.")] = False,
) -> None:
    """Label distribution learning with a full probability density over the simplex."""


# --- commands ---------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write the page into.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=50, help="Districts to learn from.")] = 2000,
    members: Annotated[int, typer.Option(min=1, help="Networks to average.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the city and of the fit.")] = 0,
) -> None:
    """Fit a made-up city, compare with the known truth, and write a page with pictures."""
    typer.echo(f"A made-up city: learning the mix of uses of {rows:,} districts ...")
    from snefy_ldl.cli.demo import run_demo

    page = run_demo(
        out, n_train=rows, n_test=max(25, rows // 4), n_members=members, epochs=epochs, random_state=seed, verbose=1
    )
    typer.echo(f"\nThe page with the pictures: {page}   (open it in a browser)")
    typer.echo(f"Next: snefy-ldl predict {out / 'model'} {out / 'test.csv'} --interval 0.9")


app.command(epilog=FIT_EXAMPLES)(fit)


@app.command()
def conformalize(
    model: ModelFolder,
    table: TableFile,
    level: Annotated[str, typer.Option(metavar="0.9,0.95", help="Confidence level, or several.")] = "0.9",
    method: Annotated[str, typer.Option(help="cdf, quantile or chebyshev (the paper's).")] = "cdf",
    simultaneous: Annotated[bool, typer.Option(help="Cover all labels of a row at once.")] = False,
    labels: Labels = None,
    features: Features = None,
) -> None:
    """Calibrate a model's intervals on rows it has not seen; predict --interval then uses them."""
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.datasets.named import load_table
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.files.models import save_calibration

    levels = [number(part, "--level") for part in split(level)]
    fitted = SnefyLDL.load(model)
    data = load_table(table, split(labels) or list(fitted.label_names_), known_features(fitted, features))
    intervals = ConformalIntervals(
        fitted, levels if len(levels) > 1 else levels[0], method=cast(Any, method), simultaneous=simultaneous
    )
    with progress_bar("conformalize") as progress:
        progress(0, 1)
        intervals.conformalize(data.X, data.D)
        progress(1, 1)
    path = save_calibration(model, intervals.to_dict())
    typer.echo(f"{len(data.D):,} calibration rows, method {method}, level {', '.join(f'{x:g}' for x in levels)}")
    typer.echo(f"saved to {path}; snefy-ldl predict --interval {levels[0]:g} now gives calibrated intervals")


@app.command()
def predict(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[str, typer.Option(help="CSV, TSV or Parquet file to write, by its ending; - prints CSV.")] = "-",
    interval: Annotated[
        float | None, typer.Option(metavar="LEVEL", help="Also write each label's interval of this level, 0.9 say.")
    ] = None,
    keep: Annotated[str | None, typer.Option(metavar="COL1,COL2", help="Columns to copy from the table.")] = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="The model's own interval, whatever conformalize left.")
    ] = False,
    features: Features = None,
) -> None:
    """Predict the label distributions of a table, a part at a time, however long it is."""
    from snefy_ldl.datasets.tables import TableSink, TableSource
    from snefy_ldl.errors import InputError
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.validation import check_confidence

    if interval is not None:
        check_confidence(interval, "--interval")
    table_output(out)
    source = TableSource(table)
    fitted = SnefyLDL.load(model)
    names = feature_names(fitted, features, source)
    kept = split(keep)
    source.need(kept, "--keep")
    if taken := sorted(set(kept) & set(fitted.label_names_)):
        raise InputError(f"--keep {taken[0]}: that is also the name of a predicted column; leave it out.")
    rows, ends = 0, None if interval is None else _interval_maker(fitted, model, interval, uncalibrated)
    with progress_bar("predict") as progress, TableSink(out) as sink:
        for chunk in source.chunks(names, kept, progress):
            sink.write(_predictions(fitted, chunk, names, kept, ends))
            rows += len(chunk)
    if out != "-":
        say(f"{rows:,} rows written to {out}", "green")


@app.command()
def evaluate(
    model: ModelFolder,
    table: TableFile,
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of the intervals to check.")] = 0.9,
    labels: Labels = None,
    features: Features = None,
    counts: Counts = False,
    as_json: AsJson = False,
) -> None:
    """Score a model on a table whose labels are known."""
    from snefy_ldl.datasets.named import load_table
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.validation import check_confidence

    check_confidence(interval, "--interval")
    fitted = SnefyLDL.load(model)
    chosen = split(labels) or list(fitted.label_names_)
    report = scores(fitted, load_table(table, chosen, known_features(fitted, features), counts), interval)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        Console().print(score_table(report, model, table))


@app.command()
def info(model: ModelFolder, as_json: AsJson = False) -> None:
    """Say what a saved model is: labels, features, training, versions."""
    from snefy_ldl.files.models import read_config

    config = read_config(model)
    if as_json:
        typer.echo(json.dumps(config, indent=2, ensure_ascii=False))
    else:
        Console().print(info_table(model, config))


app.command("reproduce")(reproduce)


app.command(epilog=QUERY_EXAMPLES)(query)
app.command(epilog=UPDATE_EXAMPLES)(update)
app.command("next", epilog=NEXT_EXAMPLES)(next_items)


# --- what predict writes ----------------------------------------------------------------------------------------------


def _interval_maker(model: SnefyLDL, folder: Path, level: float, uncalibrated: bool) -> Callable[[Any], Any]:
    """Features to intervals (N, L, 2): calibrated where the folder holds a calibration of that level."""
    from snefy_ldl.files.models import load_calibration

    state = None if uncalibrated else load_calibration(folder)
    if state is None:
        return lambda X: model.predict_interval(X, level)
    from snefy_ldl.conformal import ConformalIntervals

    calibrated = ConformalIntervals.from_dict(model, state)
    known = state["confidence_level"]
    levels = known if isinstance(known, list) else [known]
    if level not in levels:
        note(f"calibrated for {', '.join(f'{x:g}' for x in levels)} alone; {level:g} is the model's own")
        return lambda X: model.predict_interval(X, level)
    if not isinstance(known, list):
        return calibrated.predict_interval
    return lambda X: calibrated.predict_interval(X)[..., levels.index(level)]


def _predictions(
    model: SnefyLDL, chunk: Any, names: list[str], keep: list[str], intervals: Callable[[Any], Any] | None
) -> Any:
    """The output's columns: kept ones, a mean a label, and both ends of its interval."""
    import numpy as np
    import pandas as pd

    from snefy_ldl.datasets.tables import DECIMALS

    X = chunk[names].to_numpy(dtype=np.float64)
    labels = [str(label) for label in model.label_names_]
    columns = dict(zip(labels, np.asarray(model.predict(X)).T))
    if intervals is not None:
        for label, ends in zip(labels, np.moveaxis(intervals(X), 1, 0)):
            columns[f"{label}_low"], columns[f"{label}_high"] = ends.T
    numbers = pd.DataFrame({name: values.round(DECIMALS) for name, values in columns.items()}, index=chunk.index)
    return pd.concat([chunk[keep], numbers], axis=1) if keep else numbers


if __name__ == "__main__":
    main()
