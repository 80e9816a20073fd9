"""What the commands share: how they speak, show progress and read their options.

What is heavy is imported inside functions, so that ``snefy-ldl --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from snefy_ldl.datasets.tables import Progress
    from snefy_ldl.datasets.votes import VoteTable
    from snefy_ldl.estimator import SnefyLDL

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that fit wrote.")]
TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Excel, Parquet or Feather file.")]
Labels = Annotated[
    str | None, typer.Option(metavar="A,B,C", help="Label columns; by default the names the model was fitted with.")
]
Features = Annotated[
    str | None, typer.Option(metavar="F1,F2", help="Feature columns, for a model that knows no feature names.")
]
Counts = Annotated[bool, typer.Option("--counts", help="The label columns hold numbers of votes, not shares.")]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="The label columns hold amounts: divide each row by its sum.")
]
Device = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda ...")]
TableOut = Annotated[
    str, typer.Option(help="CSV, TSV, Excel, Parquet or Feather file to write, by its ending; - prints CSV.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
IdColumn = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Column that names the rows; by default item, id or row, if there."),
]
VoteFile = Annotated[Path | None, typer.Option(help="The votes are in this file, TABLE holds the items' features.")]
KnownForm = Annotated[
    str, typer.Option("--votes", metavar="FORM", help="Votes instead of shares: counts, long or wide; auto looks.")
]
VoteForm = Annotated[
    str, typer.Option("--votes", metavar="FORM", help="auto, long, wide or counts: how the votes are written down.")
]
VoteColumns = Annotated[
    str,
    typer.Option("--vote-columns", metavar="I,A,L", help="Columns of a table with one vote a row; found by default."),
]

BackboneCode = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="MODULE:FUNCTION",
        help="For a model with a network of your own: the function that makes it, run from code that you trust.",
    ),
]

#: How messages of the library, which speak Python, are said on the command line.
VOICE = (
    (r"zeros='(\w+)'", r"--zeros \1"),
    (
        r'Use zeros="shrink", a floor, or fit\(X, counts=\.\.\.\), whose',
        "Use --zeros shrink, a number, or --counts, whose",
    ),
    (r"fit\(X, counts=\.\.\.\)", "--counts"),
    (r"device='?([\w:-]+)'?", r"--device \1"),
    (r"load\(folder, (--device \w+)\)", r"\1"),
    (r"validation_fraction=([\d.]+)", r"--set validation_fraction=\1"),
    (r"^D is zero", "a label is zero"),
    (
        r"load\(folder, backbone=\.\.\.\) needs the module, or the function that makes it",
        "name the function that makes it with --backbone MODULE:FUNCTION",
    ),
)
#: Columns of a long table of votes.
VOTE_COLUMNS = "item,annotator,label"


# --- what the commands say --------------------------------------------------------------------------------------------


def say(text: str, style: str) -> None:
    """One line on standard error.

    Args:
        text: The line.
        style: Its colour, as rich names it; empty for none.
    """
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A yellow line that a person should see, though nothing is wrong.

    Args:
        text: What to say.
    """
    say(f"note: {text}", "yellow")


def explain(error: Exception) -> str:
    """What went wrong, in one line for a person; unknown errors ask for a report.

    Args:
        error: What a command raised.

    Returns:
        The line.
    """
    from snefy_ldl.errors import NotFittedError, SnefyError

    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    line = " ".join(str(error).split())
    for python, command in VOICE:
        line = re.sub(python, command, line)
    if isinstance(error, (SnefyError, NotFittedError, OSError, ImportError)):
        return line
    return f"unexpected {type(error).__name__}: {line}. Run again with --debug and please report what it shows."


def report_votes(table: VoteTable) -> None:
    """Say on standard error what is in the votes, and what is odd about them, the worst first.

    Args:
        table: Single votes or numbers of votes.
    """
    from snefy_ldl.votes.tables import Votes

    votes = Votes.of(table)
    for line in str(votes.agreement()).splitlines():
        say(line, "")
    colours = {"error": "red", "warning": "yellow", "note": ""}
    for finding in votes.preflight():
        say(str(finding), colours[finding.level])


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show the library's own warnings as yellow lines, and other ones as they are."""
    from snefy_ldl.errors import (
        CalibrationWarning,
        ClosureNote,
        SeenRowsWarning,
        SelfCheckWarning,
        TableNote,
        TrainingWarning,
        ZeroLabelWarning,
    )

    shown = (
        *(CalibrationWarning, ClosureNote, SeenRowsWarning),
        *(SelfCheckWarning, TrainingWarning, ZeroLabelWarning),
    )

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, shown):
            note(str(message))
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        for category in shown:
            warnings.simplefilter("always", category)
        warnings.simplefilter("ignore", TableNote)  # the commands tell how they read a table themselves
        yield


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on standard error; where that is no terminal, a plain line every few seconds.

    Args:
        what: The word beside it.

    Yields:
        A function to call with how much is done, and of how much.
    """
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _progress_lines(what)
        return
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _progress_lines(what: str) -> Progress:
    """Plain lines with the part that is done, at intervals: work that is over sooner says nothing."""
    from snefy_ldl._internal.progress import LINE_SECONDS

    started = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            say(f"{what} {done / max(total, 1):.0%} {now - started:.0f} s", "")

    return tell


# --- models -----------------------------------------------------------------------------------------------------------


def import_backbone(place: str | None) -> Any:
    """The network that an option ``--backbone`` names; its code is imported, and found in the working folder, too.

    Args:
        place: ``module:function``; None where it was not given.

    Returns:
        A module of torch or a :class:`snefy_ldl.Backbone`, what the function returned or the name itself stands for;
        None for None.

    Raises:
        InputError: There is no such module or function, or it gives neither.
    """
    if place is None:
        return None
    from torch import nn

    from snefy_ldl.errors import InputError
    from snefy_ldl.networks.custom import Backbone

    module_name, sign, name = place.partition(":")
    if not sign or not module_name or not name.isidentifier():
        raise InputError(f"--backbone {place}: write MODULE:FUNCTION, mynets:make_backbone say.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"--backbone {place}: {module_name} cannot be imported: {error}.") from error
    if not hasattr(found, name):
        raise InputError(f"--backbone {place}: {module_name} has no {name!r}.")
    made = getattr(found, name)
    if not isinstance(made, (nn.Module, Backbone)):
        try:
            made = made()
        except TypeError as error:
            raise InputError(f"--backbone {place}: it must be a function without arguments ({error}).") from error
    if not isinstance(made, (nn.Module, Backbone)):
        raise InputError(f"--backbone {place}: it gives a {type(made).__name__}, not a torch.nn.Module or a Backbone.")
    return made


def load_model(folder: Path, backbone: str | None, device: str | None = None) -> SnefyLDL:
    """The model of a folder, as every command loads it.

    Args:
        folder: That ``fit`` or ``save`` wrote.
        backbone: Text of ``--backbone``, or None.
        device: Where to compute; None and "auto" take a GPU where there is one.

    Returns:
        The fitted model.

    Raises:
        InputError: ``--backbone`` names nothing that serves.
        ModelFileError: The folder holds no model, a damaged one, or one whose network ``--backbone`` should name.
    """
    from snefy_ldl.estimator import SnefyLDL

    return SnefyLDL.load(folder, import_backbone(backbone), None if device == "auto" else device)


def refuse_backbone(backbone: str | None) -> None:
    """Raise where work in parts, which other processes do, is asked of a network of the user's own.

    Args:
        backbone: Text of ``--backbone``, or None.

    Raises:
        InputError: It was given.
    """
    from snefy_ldl.errors import InputError

    if backbone is not None:
        raise InputError("--backbone: only for one table, here; folders and engines run in other processes.")


# --- options ----------------------------------------------------------------------------------------------------------


def split(columns: str | None) -> list[str]:
    """Names between commas.

    Args:
        columns: The option's text, or None where it was not given.

    Returns:
        The names without blanks; none for None.

    >>> split("sand, silt ,clay"), split(None)
    (['sand', 'silt', 'clay'], [])
    """
    return [] if columns is None else [name.strip() for name in columns.split(",") if name.strip()]


def number(text: str, option: str) -> float:
    """A number out of an option's text.

    Args:
        text: What was typed.
        option: The option, for the message.

    Returns:
        The number.

    Raises:
        InputError: It is no number.
    """
    from snefy_ldl.errors import InputError

    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text}: not a number.") from None


def level_list(levels: list[float]) -> str:
    """Levels in one line.

    Args:
        levels: Confidence levels.

    Returns:
        The levels between commas.

    >>> level_list([0.8, 0.95])
    '0.8, 0.95'
    """
    return ", ".join(f"{level:g}" for level in levels)


def vote_columns(text: str) -> tuple[str, str, str]:
    """The columns of a long table of votes.

    Args:
        text: Three names between commas.

    Returns:
        Columns of the item, the annotator and the label.

    Raises:
        InputError: There are not three different names.
    """
    from snefy_ldl.errors import InputError

    names = split(text)
    if len(names) != 3 or len(set(names)) != 3:
        raise InputError(f"--vote-columns {text}: name three columns, those of item, annotator and label.")
    return names[0], names[1], names[2]


def table_output(out: str, *inputs: Path | None) -> None:
    """Raise unless a table can be written there.

    Args:
        out: A file, or ``-`` for standard output.
        inputs: Files the command reads; None for one that is not given.

    Raises:
        InputError: The ending is unknown, it is a folder, or one of the files that are read.
    """
    from snefy_ldl.datasets.formats import table_kind
    from snefy_ldl.errors import InputError

    if out != "-":
        table_kind(Path(out))
        if Path(out).is_dir():
            raise InputError(f"--out {out} is a folder; name a file in it.")
        not_an_input("--out", Path(out), *inputs)


def not_an_input(option: str, out: Path, *inputs: Path | None) -> None:
    """Raise where a file to be written is one of those to be read: the data would be lost.

    Args:
        option: That names the file, for the message.
        out: The file to be written.
        inputs: Files to be read; None for one that is not given.

    Raises:
        InputError: They are the same file, whatever their names.
    """
    from snefy_ldl.errors import InputError

    for file in inputs:
        if file is not None and (out.resolve() == file.resolve() or (out.exists() and _is_same(out, file))):
            raise InputError(f"{option} {out} is a file that is read, and would be replaced; name another one.")


def _is_same(first: Path, second: Path) -> bool:
    return second.exists() and first.samefile(second)


def distinct_columns(names: list[str]) -> None:
    """Raise where two columns of a table to be written have one name: one would hide the other.

    Args:
        names: Of all its columns.

    Raises:
        InputError: A name stands there twice.

    >>> distinct_columns(["sand", "sand_low", "sand_high"])
    """
    from snefy_ldl.errors import InputError

    if len(set(names)) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(
            f"the output would have two columns named {twice!r}: rename a label, or leave out the column that is kept."
        )


def setting(text: str) -> tuple[str, Any]:
    """``name=value`` of an option ``--set``, the value as JSON where it is.

    Args:
        text: What was typed.

    Returns:
        Name and value.

    Raises:
        InputError: It is no such pair.

    >>> setting("n_neurons=32"), setting("device=cpu"), setting("patience=None")
    (('n_neurons', 32), ('device', 'cpu'), ('patience', None))
    """
    from snefy_ldl.errors import InputError

    name, sign, value = text.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise InputError(f"--set {text}: write NAME=VALUE, epochs=50 say.")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        words = {"True": True, "False": False, "None": None}
        return name.strip(), words.get(value.strip(), value.strip())


def training_rows(training: dict[str, Any]) -> str:
    """How many rows a fit was given and what they were for; models of 0.1 know only those it learned from.

    Args:
        training: The model's ``training_``.

    Returns:
        The words.

    Example:
        >>> training_rows({"rows": 1700, "validation_rows": 300})
        '2,000 rows (1,700 to learn from, 300 held back for validation)'
    """
    rows, held = training["rows"], training.get("validation_rows", 0)
    given = training.get("given_rows", rows + held)
    parts = [f"{rows:,} to learn from", f"{held:,} held back for validation"]
    if given > rows + held:  # of a large table, guides learn from rows of their own
        parts.append(f"{given - rows - held:,} for the guides")
    return f"{given:,} rows ({', '.join(parts)})" if held else f"{rows:,} rows"
