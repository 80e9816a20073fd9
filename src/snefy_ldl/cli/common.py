"""What the commands share: how they speak, show progress and read their options."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from snefy_ldl.datasets.tables import Progress, TableSource
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.votes.tables import Votes

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
IdColumn = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Column that names the rows; by default item, id or row, if there."),
]
VoteForm = Annotated[
    str, typer.Option("--votes", metavar="FORM", help="auto, long, wide or counts: how the votes are written down.")
]
VoteColumns = Annotated[
    str,
    typer.Option("--vote-columns", metavar="I,A,L", help="Columns of a table with one vote a row."),
]

#: Columns of a long table of votes.
VOTE_COLUMNS = "item,annotator,label"


# --- what the commands say --------------------------------------------------------------------------------------------


def say(text: str, style: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A yellow line that a person should see, though nothing is wrong."""
    say(f"note: {text}", "yellow")


def explain(error: Exception) -> str:
    """One line for a person; unknown errors ask for a report."""
    from snefy_ldl.errors import NotFittedError, SnefyError

    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    line = " ".join(str(error).split())
    if isinstance(error, (SnefyError, NotFittedError, OSError, ImportError)):
        return line
    return f"unexpected {type(error).__name__}: {line}. Run again with --debug and please report what it shows."


def report_votes(votes: Votes) -> None:
    """What is in the votes, and what is odd about them, the worst first: on standard error."""
    for line in str(votes.agreement()).splitlines():
        say(line, "")
    colours = {"error": "red", "warning": "yellow", "note": ""}
    for finding in votes.preflight():
        say(str(finding), colours[finding.level])


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
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
            note(str(message))
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        for category in ours:
            warnings.simplefilter("always", category)
        yield


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on stderr that is told how much is done, of how much."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- options ----------------------------------------------------------------------------------------------------------


def split(columns: str | None) -> list[str]:
    """Names between commas."""
    return [] if columns is None else [name.strip() for name in columns.split(",") if name.strip()]


def number(text: str, option: str) -> float:
    """A number out of an option's text."""
    from snefy_ldl.errors import InputError

    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text}: not a number.") from None


def vote_columns(text: str) -> tuple[str, str, str]:
    """The columns of a long table of votes."""
    from snefy_ldl.errors import InputError

    names = split(text)
    if len(names) != 3 or len(set(names)) != 3:
        raise InputError(f"--vote-columns {text}: name three columns, those of item, annotator and label.")
    return names[0], names[1], names[2]


def table_output(out: str) -> None:
    """Raise unless a table can be written there."""
    from snefy_ldl.datasets.tables import table_kind
    from snefy_ldl.errors import InputError

    if out != "-":
        table_kind(Path(out))
        if Path(out).is_dir():
            raise InputError(f"--out {out} is a folder; name a file in it.")


def known_features(model: SnefyLDL, asked: str | None) -> list[str] | None:
    """The features asked for, or those the model knows by name."""
    known = getattr(model, "feature_names_in_", None)
    return split(asked) or (None if known is None else [str(name) for name in known])


def feature_names(model: SnefyLDL, asked: str | None, source: TableSource, others: tuple[str, ...] = ()) -> list[str]:
    """The columns to feed the model: its own names, or those asked for, or all but the labels and some others."""
    from snefy_ldl.datasets.labelled import is_answer
    from snefy_ldl.errors import InputError

    names = known_features(model, asked)
    if names is None:
        labels = [str(label) for label in model.label_names_]
        names = [c for c in source.columns if c not in (*labels, *others) and not is_answer(c, labels)]
    source.need(names, "features of the model")
    if len(names) != model.n_features_in_:
        raise InputError(
            f"{source.file.name}: the model takes {model.n_features_in_} features, and there are {len(names)} columns "
            "for them. Name the right ones with --features."
        )
    return names
