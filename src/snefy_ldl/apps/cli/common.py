"""What the commands share: options, messages, progress, printed tables, pictures and models.

What is heavy is imported inside functions, so that ``snefy-ldl --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from snefy_ldl._internal.extras import extra

if TYPE_CHECKING:
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.datasets.table_files import Progress

#: Endings of pictures.
PICTURES = (".png", ".svg", ".pdf")


@dataclass
class Given:
    """Options of the program, which hold for any command.

    Args:
        quiet: Whether to leave out progress bars.
        sheet: Sheet of the Excel files that are read; None takes the first.
    """

    quiet: bool = False
    sheet: str | None = None


#: The options of this run.
given = Given()


# --- messages --------------------------------------------------------------------------------------------------


def say(text: str, style: str) -> None:
    """Print one line on standard error.

    Args:
        text: The line.
        style: Its colour, as rich names it; empty for none.
    """
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a yellow line on standard error that a person should see, though nothing is wrong.

    Args:
        text: The line.
    """
    say(f"note: {text}", "yellow")


def input_error(message: str) -> Exception:
    """An :class:`~snefy_ldl.errors.InputError`, whose module loads scikit-learn and so is imported late.

    Args:
        message: What is wrong, where, and what to do.

    Returns:
        The error, to be raised.
    """
    from snefy_ldl.errors import InputError

    return InputError(message)


def explain(error: Exception) -> str:
    """Describe in one line what went wrong; unknown errors ask for a report.

    Args:
        error: What a command raised.

    Returns:
        The line.
    """
    from sklearn.exceptions import NotFittedError

    from snefy_ldl.errors import SnefyError

    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {error.filename}"
    line = " ".join(str(error).split())
    if isinstance(error, (SnefyError, NotFittedError, OSError, ImportError)):
        return line
    return f"unexpected {type(error).__name__}: {line}. Run again with --debug and please report what it shows."


@contextlib.contextmanager
def warnings_as_notes(tables: bool = False) -> Iterator[None]:
    """Show the library's own warnings as yellow lines, and other ones as they are.

    Args:
        tables: Whether to add up the warnings about the parts of a table, and print it when all are done; otherwise
            these notes are not printed.
    """
    from snefy_ldl import errors

    shown: tuple[type[Warning], ...] = (errors.CalibrationWarning, errors.LabelWarning, errors.TrainingWarning)
    odd: list[Any] = []

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if isinstance(message, errors.TableNote):
            odd.extend(message.odd_cells)
        elif issubclass(category, shown):
            note(str(message))
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        for category in shown:
            warnings.simplefilter("always", category)
        warnings.simplefilter("always" if tables else "ignore", errors.TableNote)
        yield
    print_odd_cells(odd)


def print_odd_cells(odd: list[Any]) -> None:
    """Print warnings about the cells of a table.

    Args:
        odd: What :func:`~snefy_ldl.apps.cli.tables.odd_cells` listed for all its parts.
    """
    from snefy_ldl.datasets.recognise import describe_odd_cells

    for line in describe_odd_cells(odd).splitlines():
        note(line)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on standard error; if that is not a terminal, a plain line every few seconds.

    Args:
        what: The word next to it.

    Yields:
        A function to call with how much is done, and of how much.
    """
    from rich.progress import Progress as Bar

    from snefy_ldl._internal.progress import LINE_SECONDS

    console, started = Console(stderr=True), time.monotonic()
    last = started

    def print_line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            say(f"{what} {done / max(total, 1):.0%} {now - started:.0f} s", "")

    if given.quiet:
        yield lambda done, total: None
        return
    if not console.is_terminal:
        yield print_line
        return
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- tables and pictures ----------------------------------------------------------------------------------------------


def make_table(columns: Sequence[str], lines: Iterable[Sequence[str]], left: Sequence[str], **look: Any) -> Any:
    """A table to print; no cell is taken for markup, as a label may be named ``[/]``.

    Args:
        columns: Names of the columns.
        lines: One text per column.
        left: Columns of words, which are aligned to the left; numbers are aligned to the right.
        look: Further arguments of :class:`rich.table.Table`.

    Returns:
        A table for :meth:`rich.console.Console.print`.
    """
    from rich.table import Table
    from rich.text import Text

    view = Table(**{"header_style": "bold", "title_style": "bold", **look})
    for name in columns:
        view.add_column(Text(name), justify="left" if name in left else "right")
    for line in lines:
        view.add_row(*(Text(cell) for cell in line))
    return view


def check_output(out: Path, endings: Sequence[str], *inputs: Path | None, option: str = "--out") -> None:
    """Raise unless a file of some kind can be written.

    Args:
        out: The file.
        endings: Of which it must have one.
        inputs: Files the command reads; None for one that is not given.
        option: That names the file, for the message.

    Raises:
        InputError: The ending is another one, it is a folder, or one of the files that are read.
    """
    if out.suffix.lower() not in endings or out.is_dir():
        raise input_error(f"{option} {out}: name a file that ends in {' or '.join(endings)}.")
    not_an_input(option, out, *inputs)


def new_figure(width: float, height: float) -> Any:
    """An empty figure of matplotlib.

    Args:
        width: In inches.
        height: In inches.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with extra("plot", "pictures need matplotlib and mpltern"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout="constrained")


def write_picture(figure: Any, out: Path, **options: Any) -> None:
    """Write a figure to a file, format from the extension.

    Args:
        figure: Of matplotlib.
        out: The file, whose folder is made if it is missing.
        options: Further arguments of ``savefig``.
    """
    from snefy_ldl._internal.files import write_bytes

    content = io.BytesIO()
    figure.savefig(content, format=out.suffix[1:].lower(), dpi=150, bbox_inches="tight", **options)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, content.getvalue())


# --- models -----------------------------------------------------------------------------------------------------------


def load_model(folder: Path, device: str | None = None) -> Any:
    """The model of a folder, as every command loads it.

    Args:
        folder: That ``fit`` or ``save`` wrote.
        device: Where to compute; None takes a GPU if available.

    Returns:
        The fitted model; of an AutoLDL the model that it kept, whose ``training_`` records the choice.

    Raises:
        ModelFileError: The folder holds no model, a damaged one, or one with a custom network, whose code it lacks.
    """
    from snefy_ldl.persistence import load

    model = load(folder, device=device)
    return model.model_ if "choice_" in vars(model) else model


# --- options ----------------------------------------------------------------------------------------------------------


def split(columns: str | None) -> list[str]:
    """Names between commas.

    Args:
        columns: The option's text, or None if it was not given.

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
        InputError: It is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise input_error(f"{option} {text}: not a number.") from None


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


def noted_intervals(folder: Path, model: Any, level: float) -> ConformalIntervals | None:
    """The calibrated intervals of a model folder; prints a note if they are of other levels.

    Args:
        folder: Of the model.
        model: Loaded from it.
        level: The confidence level that is asked for.

    Returns:
        The intervals; None if there are none of that level.
    """
    from snefy_ldl.apps.table_rows import calibrated_levels, load_intervals

    calibrated = load_intervals(folder, model)
    if calibrated is None or level in calibrated_levels(calibrated):
        return calibrated
    others = level_list(calibrated_levels(calibrated))
    note(f"calibrated for {others} only; intervals of level {level:g} are the model's own")
    return None


def vote_columns(text: str) -> tuple[str, str, str]:
    """The columns of a long table of votes.

    Args:
        text: Three names between commas.

    Returns:
        Columns of the item, the annotator and the label.

    Raises:
        InputError: There are not three different names.
    """
    names = split(text)
    if len(names) != 3 or len(set(names)) != 3:
        raise input_error(f"--vote-columns {text}: name three columns, those of item, annotator and label.")
    return names[0], names[1], names[2]


def table_output(out: str, *inputs: Path | None) -> None:
    """Raise unless a table can be written there.

    Args:
        out: A file, or ``-`` for standard output.
        inputs: Files the command reads; None for one that is not given.

    Raises:
        InputError: The ending is unknown, it is a folder, or one of the files that are read.
    """
    from snefy_ldl.datasets.table_files import table_kind

    if out != "-":
        table_kind(Path(out))
        if Path(out).is_dir():
            raise input_error(f"--out {out} is a folder; name a file in it.")
        not_an_input("--out", Path(out), *inputs)


def not_an_input(option: str, out: Path, *inputs: Path | None) -> None:
    """Raise if a file to be written is one of those to be read: the data would be lost.

    Args:
        option: That names the file, for the message.
        out: The file to be written.
        inputs: Files to be read; None for one that is not given.

    Raises:
        InputError: They are the same file, also under two names.
    """
    for file in inputs:
        both = file is not None and out.exists() and file.exists()
        if file is not None and (out.resolve() == file.resolve() or (both and out.samefile(file))):
            raise input_error(f"{option} {out} is read by this command, and would be overwritten; name another file.")


def distinct_columns(names: list[str]) -> None:
    """Raise if two columns of a table to be written have one name: one would hide the other.

    Args:
        names: Of all its columns.

    Raises:
        InputError: A name occurs twice.

    >>> distinct_columns(["sand", "sand_low", "sand_high"])
    """
    from snefy_ldl.datasets.cells import first_repeat

    if (twice := first_repeat(names)) is not None:
        raise input_error(
            f"the output would have two columns named {twice!r}: rename a label, or do not keep that column."
        )


def setting(text: str) -> tuple[str, Any]:
    """``name=value`` of an option ``--set``, the value as JSON if it is.

    Args:
        text: What was typed.

    Returns:
        Name and value.

    Raises:
        InputError: It is not such a pair.

    >>> setting("n_neurons=32"), setting("device=cpu"), setting("patience=None")
    (('n_neurons', 32), ('device', 'cpu'), ('patience', None))
    """
    name, sign, value = text.partition("=")
    if sign and name.strip() and not value.strip():
        raise input_error(f"--set {text}: {name.strip()} has no value; write {name.strip()}=VALUE.")
    if not sign or not name.strip():
        raise input_error(f"--set {text}: write NAME=VALUE, for example epochs=50.")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        words = {"True": True, "False": False, "None": None}
        return name.strip(), words.get(value.strip(), value.strip())


def training_rows(training: dict[str, Any]) -> str:
    """How many rows a fit was given and what they were for; models of version 0.1 hold only the rows that trained them.

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
    if given > rows + held:  # of a large table, guides use other rows
        parts.append(f"{given - rows - held:,} for the guides")
    if not held:
        return f"{rows:,} rows" if given == rows else f"{rows:,} of {given:,} rows"
    return f"{given:,} rows ({', '.join(parts)})"


def training_length(training: dict[str, Any]) -> str:
    """How long a model was trained.

    Args:
        training: Its ``training_``; with ``"steps"`` if it was trained by steps on all rows.

    Returns:
        The words.

    Example:
        >>> training_length({"epochs": 30}), training_length({"epochs": 0, "steps": 0})
        ('30 epochs', 'the starting mixture was kept, since training gained nothing')
    """
    if "steps" not in training:
        return f"{training['epochs']} epochs"
    steps = training["steps"]
    return f"{steps} steps" if steps else "the starting mixture was kept, since training gained nothing"


def training_kind(model: Any) -> str:
    """What the likelihoods of a fit are a density of; those of different kinds cannot be compared.

    Args:
        model: A fitted SnefyLDL or LogRatioLDL.

    Returns:
        "votes" ("votes of the panel" if annotators are known), "shares", or "shares with zeros" for log-ratios
        fitted to rows with zeros; "completed" ones after a fit with limits.
    """
    if model.training_.get("labels") in ("votes", "counts"):
        return f"votes of {model.whose}" if hasattr(model, "whose") else "votes"
    return str(model.training_.get("labels", "shares"))
