"""The program ``snefy-ldl``: how commands are registered, and what it prints when one fails.

Exit codes: 0 done, 1 the data or the files do not allow it, 2 wrong usage. Either way one line on standard error,
``error: ...``, gives the reason. The commands import what is heavy (torch, pandas, pyarrow) inside their functions, so
that ``snefy-ldl --help`` and shell completion answer at once.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.cli import options as shared
from snefy_ldl.apps.cli.common import explain, given, say

#: New objects before garbage is looked for; Python's own 700 suit programs that load little.
YOUNG_OBJECTS = 50_000
#: Wrong options and arguments. Newer versions of typer hold their own copy of click, so the class is taken from the
#: one that typer exports.
UsageError: type[Any] = typer.BadParameter.__mro__[1]
#: The commands in the order of the help page.
ORDER = (
    *("demo", "fit", "conformalize", "predict", "evaluate", "report", "explain", "compare", "query", "info"),
    *("serve", "explore", "export"),
)
#: Options of the program that may stand anywhere on the line: flags, and options with a value.
FLAGS, VALUES = {"--debug", "--quiet", "-q"}, {"--sheet"}
Command = Callable[..., None]


class _Group(TyperGroup):
    """Commands whose failures are one line, not a traceback; options of the program may stand anywhere."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in the order of the help page."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let the program's options follow the command, too."""
        args = _program_first(args)
        if not args:
            return super().parse_args(ctx, args)  # shows the help, which typer treats as an error
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise _complain(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what goes wrong is printed as one red line."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except UsageError as error:
            raise _complain(error) from None
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            say(f"error: {explain(error)}", "bold red")
            raise typer.Exit(1) from None


def _program_first(words: list[str]) -> list[str]:
    """The words of a command line, the program's own options first.

    >>> _program_first(["fit", "t.xlsx", "--sheet", "2", "-q"])
    ['--sheet', '2', '-q', 'fit', 't.xlsx']
    """
    first, rest, left = [], [], iter(words)
    for word in left:
        if word in FLAGS:
            first.append(word)
        elif word.partition("=")[0] in VALUES:
            first += [word] if "=" in word else [word, *([value] if (value := next(left, None)) is not None else [])]
        else:
            rest.append(word)
    return first + rest


def _complain(error: Any) -> typer.Exit:
    """Print what is wrong with the options, and where they are described."""
    program = error.ctx.command_path if error.ctx else "snefy-ldl"
    message = " ".join(error.format_message().split())
    say(f"error: {message.rstrip('.')}. See: {program} --help", "bold red")
    return typer.Exit(2)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Predict shares that sum to 100 %, and how certain each one is.",
    epilog="Start with: snefy-ldl demo",
)


def command(name: str | None = None) -> Callable[[Command], Command]:
    """Register a function as a command; its docstring is the help.

    A parameter with a default is an option, one without is an argument; the docstring's ``Args`` hold their help,
    after the word that stands for the value, and its ``Examples`` are shown below.

    Args:
        name: The command; by default the function's name.

    Returns:
        A decorator, which leaves the function as it is.
    """

    def register(function: Command) -> Command:
        about, helps, examples = _read_docstring(function)
        app.command(name, help=about, epilog=examples)(_with_help(function, helps))
        return function

    return register


def _with_help(function: Command, helps: dict[str, dict[str, str | None]]) -> Command:
    """The function with the help of each parameter in its type."""
    hints, texts = get_type_hints(function, include_extras=True), _read_docstring(shared)[1] | helps
    parameters = inspect.signature(function).parameters.values()

    @functools.wraps(function)
    def run(**values: Any) -> None:
        function(**values)

    run.__annotations__ = {one.name: _described(one, hints[one.name], texts.get(one.name)) for one in parameters}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=one.KEYWORD_ONLY, annotation=run.__annotations__[one.name]) for one in parameters]
    )
    return run


def _read_docstring(described: Any) -> tuple[str, dict[str, dict[str, str | None]], str | None]:
    """What a command does, the texts of each line ``name (METAVAR): help`` of its ``Args``, and its ``Examples``."""
    text, _, examples = (inspect.getdoc(described) or "").partition("\n\nExamples:\n")
    about, _, lines = text.partition("\n\nArgs:\n")
    entries = re.findall(r"^    (\w+)(?: \((.+?)\))?: ((?:.+(?:\n        .+)*))", lines, re.MULTILINE)
    helps = {name: {"metavar": word or None, "help": " ".join(text.split())} for name, word, text in entries}
    return about, helps, textwrap.dedent(examples) or None


def _described(parameter: inspect.Parameter, kind: Any, texts: dict[str, str | None] | None) -> Any:
    """The type of a parameter with its help, as typer takes it; a parameter with a default is an option."""
    if texts is None:
        return kind
    plain, *settings = get_args(kind) if hasattr(kind, "__metadata__") else (kind,)
    if settings:
        setting = copy.copy(settings[0])
    elif parameter.default is parameter.empty:
        setting = typer.Argument()
    else:
        setting = typer.Option(*([f"--{parameter.name.replace('_', '-')}"] if kind is bool else []))
    vars(setting).update(texts)
    return Annotated[plain, setting]


def main() -> None:
    """Entry point of the program ``snefy-ldl``."""
    # Loading torch and scikit-learn makes a million objects that all stay; looking through them again and again for
    # garbage takes a fifth of the time. Garbage is still collected, at longer intervals.
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file on Windows may not take arrows and ±
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="snefy-ldl")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"snefy-ldl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback if something fails.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bars, and no log of good requests.")
    ] = False,
    sheet: Annotated[
        str | None, typer.Option(metavar="NAME", help="Sheet of an Excel file, its name or number; else the first.")
    ] = None,
) -> None:
    """Label distribution learning with a full probability density over the simplex."""
    given.quiet, given.sheet = quiet, sheet
