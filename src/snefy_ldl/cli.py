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
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from snefy_ldl import __version__

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
def predict(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[str, typer.Option(help="CSV, TSV or Parquet file to write, by its ending; - prints CSV.")] = "-",
    interval: Annotated[
        float | None, typer.Option(metavar="LEVEL", help="Also write each label's interval of this level, 0.9 say.")
    ] = None,
    keep: Annotated[str | None, typer.Option(metavar="COL1,COL2", help="Columns to copy from the table.")] = None,
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
    rows = 0
    with _progress() as progress, TableSink(out) as sink:
        for chunk in source.chunks(names, kept, progress):
            sink.write(_predictions(fitted, chunk, names, kept, interval))
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
    known = getattr(fitted, "feature_names_in_", None)
    names = _split(features) or (None if known is None else [str(name) for name in known])
    report = _scores(fitted, load_table(table, chosen, names, counts), interval)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        Console().print(_score_table(report, model, table))


@app.command()
def info(model: ModelFolder, as_json: AsJson = False) -> None:
    """Say what a saved model is: labels, features, training, versions."""
    from snefy_ldl.persistence import read_config

    config = read_config(model)
    if as_json:
        typer.echo(json.dumps(config, indent=2, ensure_ascii=False))
    else:
        Console().print(_info_table(model, config))


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


def _score_table(report: dict[str, Any], model: Path, table: Path) -> Table:
    view = Table(title=f"{model} on {table}: {report['rows']:,} rows", header_style="bold", title_style="bold")
    view.add_column("measure")
    view.add_column("value", justify="right")
    view.add_column("± error", justify="right")
    view.add_column("better")
    level = report["interval"]["level"]
    lines = [(name.replace("_", " "), entry) for name, entry in report["metrics"].items()]
    lines.append(("mean log likelihood", report["log_likelihood"]))
    if report["interval"]["coverage"] is not None:
        lines.append((f"coverage of {level:.0%} intervals", report["interval"]["coverage"]))
    lines.append((f"width of {level:.0%} intervals", report["interval"]["width"]))
    for name, entry in lines:
        error = "" if entry["std_error"] is None else f"{entry['std_error']:.4f}"
        view.add_row(name, f"{entry['value']:.4f}", error, entry["better"])
    if report["interval"]["coverage"] is None:
        view.caption = "No coverage: the intervals are about the shares behind the votes, which votes do not show."
    return view


def _info_table(folder: Path, config: dict[str, Any]) -> Table:
    from snefy_ldl.tables import shorten

    network, training = config["network"], config["training"]
    features = config["feature_names"]
    weights = folder / config["weights"]["file"]
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    size = f"{weights.stat().st_size:,} bytes" if weights.is_file() else "MISSING"
    lines = {
        "model": f"SnefyLDL, written by snefy-ldl {config['library_version']} (format {config['format_version']})",
        "labels": f"{len(config['label_names'])}: {shorten(config['label_names'])}",
        "features": f"{config['n_features']}: {shorten(features)}" if features else f"{config['n_features']}, unnamed",
        "network": f"{network['n_members']} member(s), {network['n_neurons']} neurons, {network['n_readouts']} readouts"
        + (", custom backbone" if network["custom_backbone"] else ""),
        "trained on": f"{training['rows']:,} rows, {training['epochs']} epochs, {training['seconds']:.1f} s, "
        f"{training['device']}",
        "best epoch": ", ".join(str(epoch + 1) for epoch in training["best_epoch"] if epoch >= 0) or "last",
        "held-back rows": f"mean log likelihood {-sum(losses) / len(losses):.4f}" if losses else "none",
        "scaling": config["scaling"],
        "zeros": f"{config['zero_policy']['mode']}, floor {config['zero_policy']['floor']:.3g}",
        "weights": f"{weights.name}, {size}",
    }
    view = Table.grid(padding=(0, 2))
    view.add_column(style="bold")
    view.add_column()
    for name, text in lines.items():
        view.add_row(name, str(text))
    return view


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


def _scores(model: SnefyLDL, data: Dataset, level: float) -> dict[str, Any]:
    """Six measures, likelihood, coverage and width, each with its standard error over rows."""
    import numpy as np

    from snefy_ldl import metrics

    predicted = np.asarray(model.predict(data.X))
    ends = model.predict_interval(data.X, level)
    votes = data.counts is not None
    densities = model.log_prob(data.X, counts=data.counts) if votes else model.log_prob(data.X, data.D)

    def entry(pair: tuple[float, float], better: str) -> dict[str, Any]:
        value, error = (float(number) for number in pair)
        return {"value": value, "std_error": error if np.isfinite(error) else None, "better": better}

    def measure(function: Any, better: str, *arrays: Any) -> dict[str, Any]:
        return entry(function(*arrays, return_std_error=True), better)

    spread = densities.std(ddof=1) / np.sqrt(len(densities)) if len(densities) > 1 else np.inf
    return {
        "rows": len(data.D),
        "metrics": {
            name: measure(getattr(metrics, name), "higher" if higher else "lower", data.D, predicted)
            for name, higher in metrics.HIGHER_IS_BETTER.items()
        },
        "log_likelihood": entry((densities.mean(), spread), "higher"),
        "interval": {
            "level": level,
            "coverage": None if votes else measure(metrics.coverage, f"near {level:g}", data.D, ends),
            "width": measure(metrics.interval_width, "lower", ends),
        },
    }


def _predictions(model: SnefyLDL, chunk: Any, names: list[str], keep: list[str], level: float | None) -> Any:
    """The output's columns: kept ones, a mean a label, and both ends of its interval."""
    import numpy as np
    import pandas as pd

    from snefy_ldl.tables import DECIMALS

    X = chunk[names].to_numpy(dtype=np.float64)
    labels = [str(label) for label in model.label_names_]
    columns = dict(zip(labels, np.asarray(model.predict(X)).T))
    if level is not None:
        for label, ends in zip(labels, np.moveaxis(model.predict_interval(X, level), 1, 0)):
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
