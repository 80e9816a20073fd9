"""The program ``snefy-ldl``: its commands wired together, and what it says when one fails.

Exit codes: 0 done, 1 the data or the files do not allow it, 2 wrong usage. Either way one line on standard error,
``error: ...``, says why. The commands import what is heavy (torch, pandas, pyarrow) inside their functions, so that
``snefy-ldl --help`` and shell completion answer at once.
"""

from __future__ import annotations

import gc
import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from snefy_ldl._internal.version import __version__
from snefy_ldl.cli.common import explain, say
from snefy_ldl.cli.compare import EXAMPLES as COMPARE_EXAMPLES
from snefy_ldl.cli.compare import compare
from snefy_ldl.cli.conformalize import conformalize
from snefy_ldl.cli.demo import demo
from snefy_ldl.cli.evaluate import evaluate
from snefy_ldl.cli.explain import EXAMPLES as EXPLAIN_EXAMPLES
from snefy_ldl.cli.explain import explain_model
from snefy_ldl.cli.explore import explore
from snefy_ldl.cli.export import EXAMPLES as EXPORT_EXAMPLES
from snefy_ldl.cli.export import export
from snefy_ldl.cli.fit import EXAMPLES as FIT_EXAMPLES
from snefy_ldl.cli.fit import fit
from snefy_ldl.cli.info import info
from snefy_ldl.cli.next import EXAMPLES as NEXT_EXAMPLES
from snefy_ldl.cli.next import next_items
from snefy_ldl.cli.plot import EXAMPLES as PLOT_EXAMPLES
from snefy_ldl.cli.plot import plot
from snefy_ldl.cli.predict import predict
from snefy_ldl.cli.query import EXAMPLES as QUERY_EXAMPLES
from snefy_ldl.cli.query import query
from snefy_ldl.cli.report import EXAMPLES as REPORT_EXAMPLES
from snefy_ldl.cli.report import report
from snefy_ldl.cli.reproduce import reproduce
from snefy_ldl.cli.serve import EXAMPLES as SERVE_EXAMPLES
from snefy_ldl.cli.serve import serve
from snefy_ldl.cli.update import EXAMPLES as UPDATE_EXAMPLES
from snefy_ldl.cli.update import update
from snefy_ldl.cli.watch import watch_rows

__all__ = ["app", "main", "options"]

#: New objects before garbage is looked for; Python's own 700 suit programs that load little.
YOUNG_OBJECTS = 50_000
#: Wrong options and arguments. Newer versions of typer hold their own copy of click, so the class is taken from the
#: one that typer exports.
UsageError: type[Any] = typer.BadParameter.__mro__[1]


class _Group(TyperGroup):
    """Commands whose failures are one line, not a traceback; ``--debug`` may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``--debug`` follow the command, too."""
        if "--debug" in args:
            args = ["--debug", *(word for word in args if word != "--debug")]
        if not args:
            return super().parse_args(ctx, args)  # shows the help, which typer treats as an error
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise _complain(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what goes wrong is said in one red line."""
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


def _complain(error: Any) -> typer.Exit:
    """Say what is wrong with the options, and where they are described."""
    program = error.ctx.command_path if error.ctx else "snefy-ldl"
    message = " ".join(error.format_message().split())
    say(f"error: {message.rstrip('.')}. See: {program} --help", "bold red")
    return typer.Exit(2)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Label distribution learning with a full probability density over the simplex.",
    epilog="Start with: snefy-ldl demo",
)


def main() -> None:
    """Entry point of the program ``snefy-ldl``."""
    # Loading torch and scikit-learn makes a million objects that all stay; looking through them again and again for
    # garbage takes a fifth of the time. Garbage is still collected, at longer intervals.
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what goes to a file on Windows may have no arrow, and no ±
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="snefy-ldl")


def _show_version(wanted: bool) -> None:
    if wanted:
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


# In the order of the help page.
app.command()(demo)
app.command(epilog=FIT_EXAMPLES)(fit)
app.command()(conformalize)
app.command()(predict)
app.command()(evaluate)
app.command("watch")(watch_rows)
app.command(epilog=COMPARE_EXAMPLES)(compare)
app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=PLOT_EXAMPLES)(plot)
app.command("explain", epilog=EXPLAIN_EXAMPLES)(explain_model)
app.command()(info)
app.command()(reproduce)
app.command(epilog=QUERY_EXAMPLES)(query)
app.command(epilog=UPDATE_EXAMPLES)(update)
app.command("next", epilog=NEXT_EXAMPLES)(next_items)
app.command(epilog=SERVE_EXAMPLES)(serve)
app.command()(explore)
app.command(epilog=EXPORT_EXAMPLES)(export)
