"""The command line ``snefy-ldl``: arguments in, functions called.

Exit codes: 0 done, 1 the data or the files do not allow it (one line on stderr says why), 2 wrong usage.
Heavy imports happen inside the commands, so that ``snefy-ldl --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from typer.core import TyperGroup

from snefy_ldl import __version__
from snefy_ldl.cli_views import info_table, score_table, scores

if TYPE_CHECKING:
    from snefy_ldl.datasets import Dataset
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.tables import Progress, TableSource


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
            _say(f"error: {_explain(error)}", "bold red")
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

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that fit wrote.")]
TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV or Parquet file, by its ending.")]
Labels = Annotated[
    str | None, typer.Option(metavar="A,B,C", help="Label columns; by default the names the model was fitted with.")
]
Features = Annotated[
    str | None, typer.Option(metavar="F1,F2", help="Feature columns, for a model that knows no feature names.")
]
Counts = Annotated[bool, typer.Option("--counts", help="The label columns hold numbers of votes, not shares.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


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
    from snefy_ldl.demo import run_demo

    page = run_demo(
        out, n_train=rows, n_test=max(25, rows // 4), n_members=members, epochs=epochs, random_state=seed, verbose=1
    )
    typer.echo(f"\nThe page with the pictures: {page}   (open it in a browser)")
    typer.echo(f"Next: snefy-ldl predict {out / 'model'} {out / 'test.csv'} --interval 0.9")


@app.command()
def fit(
    table: TableFile,
    labels: Annotated[str, typer.Option(metavar="A,B,C", help="Label columns; each row sums to 1.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model into.")],
    features: Annotated[
        str | None, typer.Option(metavar="F1,F2", help="Feature columns; by default all others.")
    ] = None,
    counts: Counts = False,
    members: Annotated[int, typer.Option(help="Networks whose densities are averaged; 6 is slower and better.")] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the rows.")] = 30,
    seed: Annotated[int, typer.Option(help="The same seed gives the same model.")] = 0,
    zeros: Annotated[
        str, typer.Option(metavar="shrink|error|FLOOR", help="What to do with shares of exactly zero.")
    ] = "shrink",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for a checkpoint after every epoch; a stopped fit goes on from it.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Fit a model to a table of features and label distributions (or votes)."""
    from snefy_ldl.datasets import load_table
    from snefy_ldl.errors import InputError
    from snefy_ldl.estimator import SnefyLDL

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder for the model.")
    data = load_table(table, labels, features, counts)
    frame = _frames(data)
    model = SnefyLDL(
        n_members=members,
        epochs=epochs,
        zeros=_zero_option(zeros),
        random_state=seed,
        checkpoint_dir=checkpoint,
        verbose=0 if quiet else 1,
    )
    X = frame(data.X, data.feature_names)
    with _warnings_as_notes():
        if counts:
            model.fit(X, counts=frame(data.counts, data.label_names))
        else:
            model.fit(X, frame(data.D, data.label_names))
    model.save(out)
    done = model.training_
    losses = [loss for loss in done["validation_loss"] if loss is not None]
    typer.echo(f"{len(data.D):,} rows, {len(data.feature_names)} features, {len(data.label_names)} labels: {table}")
    typer.echo(f"fitted in {done['seconds']:.1f} s, {done['epochs']} epochs, on {done['device']}")
    if losses:
        typer.echo(f"mean log likelihood of the rows held back: {-sum(losses) / len(losses):.4f}")
    typer.echo(f"saved to {out}")


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
    from snefy_ldl.datasets import load_table
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.persistence import save_calibration

    levels = [_number(part, "--level") for part in _split(level)]
    fitted = SnefyLDL.load(model)
    data = load_table(table, _split(labels) or list(fitted.label_names_), _known_features(fitted, features))
    intervals = ConformalIntervals(
        fitted, levels if len(levels) > 1 else levels[0], method=cast(Any, method), simultaneous=simultaneous
    )
    with _progress() as progress:
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
    from snefy_ldl.errors import InputError
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.tables import TableSink, TableSource, table_kind
    from snefy_ldl.validation import check_confidence

    if interval is not None:
        check_confidence(interval, "--interval")
    if out != "-":
        table_kind(Path(out))
    source = TableSource(table)
    fitted = SnefyLDL.load(model)
    names = _feature_names(fitted, features, source)
    kept = _split(keep)
    source.need(kept, "--keep")
    if taken := sorted(set(kept) & set(fitted.label_names_)):
        raise InputError(f"--keep {taken[0]}: that is also the name of a predicted column; leave it out.")
    rows, ends = 0, None if interval is None else _interval_maker(fitted, model, interval, uncalibrated)
    with _progress() as progress, TableSink(out) as sink:
        for chunk in source.chunks(names, kept, progress):
            sink.write(_predictions(fitted, chunk, names, kept, ends))
            rows += len(chunk)
    if out != "-":
        _say(f"{rows:,} rows written to {out}", "green")


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
    from snefy_ldl.datasets import load_table
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.validation import check_confidence

    check_confidence(interval, "--interval")
    fitted = SnefyLDL.load(model)
    chosen = _split(labels) or list(fitted.label_names_)
    report = scores(fitted, load_table(table, chosen, _known_features(fitted, features), counts), interval)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        Console().print(score_table(report, model, table))


@app.command()
def info(model: ModelFolder, as_json: AsJson = False) -> None:
    """Say what a saved model is: labels, features, training, versions."""
    from snefy_ldl.persistence import read_config

    config = read_config(model)
    if as_json:
        typer.echo(json.dumps(config, indent=2, ensure_ascii=False))
    else:
        Console().print(info_table(model, config))


# --- what the commands say --------------------------------------------------------------------------------------------


def _say(text: str, style: str) -> None:
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _explain(error: Exception) -> str:
    """One line for a person; unknown errors ask for a report."""
    from snefy_ldl.errors import NotFittedError, SnefyError

    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    line = " ".join(str(error).split())
    if isinstance(error, (SnefyError, NotFittedError, OSError, ImportError)):
        return line
    return f"unexpected {type(error).__name__}: {line}. Run again with --debug and please report what it shows."


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """The library's own warnings as yellow lines; other ones as they are."""
    from snefy_ldl.errors import TrainingWarning, ZeroLabelWarning

    ours = (TrainingWarning, ZeroLabelWarning)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, ours):
            _say(f"note: {message}", "yellow")
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        for category in ours:
            warnings.simplefilter("always", category)
        yield


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr that is told how much is done, of how much."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("predict"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("predict", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _split(columns: str | None) -> list[str]:
    return [] if columns is None else [name.strip() for name in columns.split(",") if name.strip()]


def _zero_option(text: str) -> Any:
    from snefy_ldl.errors import InputError

    if text in ("shrink", "error"):
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--zeros {text}: use shrink, error or a number for the floor.") from None


def _frames(data: Dataset) -> Callable[[Any, list[str]], Any]:
    import pandas as pd

    return lambda values, names: pd.DataFrame(values, columns=names)


def _interval_maker(model: SnefyLDL, folder: Path, level: float, uncalibrated: bool) -> Callable[[Any], Any]:
    """Features to intervals (N, L, 2): calibrated where the folder holds a calibration of that level."""
    from snefy_ldl.persistence import load_calibration

    state = None if uncalibrated else load_calibration(folder)
    if state is None:
        return lambda X: model.predict_interval(X, level)
    from snefy_ldl.conformal import ConformalIntervals

    calibrated = ConformalIntervals.from_dict(model, state)
    known = state["confidence_level"]
    levels = known if isinstance(known, list) else [known]
    if level not in levels:
        _say(
            f"note: calibrated for {', '.join(f'{x:g}' for x in levels)} alone; {level:g} is the model's own", "yellow"
        )
        return lambda X: model.predict_interval(X, level)
    if not isinstance(known, list):
        return calibrated.predict_interval
    return lambda X: calibrated.predict_interval(X)[..., levels.index(level)]


def _number(text: str, option: str) -> float:
    from snefy_ldl.errors import InputError

    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text}: not a number.") from None


def _known_features(model: SnefyLDL, asked: str | None) -> list[str] | None:
    known = getattr(model, "feature_names_in_", None)
    return _split(asked) or (None if known is None else [str(name) for name in known])


def _predictions(
    model: SnefyLDL, chunk: Any, names: list[str], keep: list[str], intervals: Callable[[Any], Any] | None
) -> Any:
    """The output's columns: kept ones, a mean a label, and both ends of its interval."""
    import numpy as np
    import pandas as pd

    from snefy_ldl.tables import DECIMALS

    X = chunk[names].to_numpy(dtype=np.float64)
    labels = [str(label) for label in model.label_names_]
    columns = dict(zip(labels, np.asarray(model.predict(X)).T))
    if intervals is not None:
        for label, ends in zip(labels, np.moveaxis(intervals(X), 1, 0)):
            columns[f"{label}_low"], columns[f"{label}_high"] = ends.T
    numbers = pd.DataFrame({name: values.round(DECIMALS) for name, values in columns.items()}, index=chunk.index)
    return pd.concat([chunk[keep], numbers], axis=1) if keep else numbers


def _feature_names(model: SnefyLDL, asked: str | None, source: TableSource) -> list[str]:
    """The columns to feed the model: its own names, or those asked for, or all but the labels."""
    from snefy_ldl.errors import InputError

    known = getattr(model, "feature_names_in_", None)
    if asked is not None:
        names = _split(asked)
    elif known is not None:
        names = [str(name) for name in known]
    else:
        names = [column for column in source.columns if column not in set(model.label_names_)]
    source.need(names, "features of the model")
    if len(names) != model.n_features_in_:
        raise InputError(
            f"{source.file.name}: the model takes {model.n_features_in_} features, and there are {len(names)} columns "
            "for them. Name the right ones with --features."
        )
    return names


if __name__ == "__main__":
    main()
