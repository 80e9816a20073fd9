"""The command ``snefy-ldl reproduce``: the paper's tables and figure run again, and a report of what came out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from snefy_ldl.apps.cli.entry import command
from snefy_ldl.paper.config import RECIPES, STUDIES, quick, select


@command()
def reproduce(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help=f"{', '.join(STUDIES)} or all (the default).")
    ] = None,
    recipe: str = ",".join(RECIPES),
    repeats: Annotated[int | None, typer.Option(min=1)] = None,
    jobs: Annotated[int | None, typer.Option(min=1)] = None,
    out: Path = Path("reproduction"),
    quick_run: Annotated[bool, typer.Option("--quick")] = False,
    report_only: bool = False,
) -> None:
    """Run the paper's experiments again and write a report; a run that was stopped continues where it was.

    Args:
        recipe (A,B): How to train: paper (as described there), plain (as version 0.1 did), default (SnefyLDL()
            as it is).
        repeats: Random splits per study; by default as many as in the paper.
        jobs: Worker processes; by default one per core.
        out: Folder for results and report; a stopped run continues there.
        quick_run: All studies with a few repeats, in minutes.
        report_only: Only write the report again.
    """
    from snefy_ldl.errors import InputError

    try:
        chosen = select(studies or [])
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="STUDY") from None
    recipes = list(dict.fromkeys(word.strip() for word in recipe.split(",") if word.strip()))
    if not recipes or any(name not in RECIPES for name in recipes):
        raise typer.BadParameter(
            f"{recipe!r}: use any of {', '.join(RECIPES)}, separated by commas.", param_hint="--recipe"
        )
    if report_only and (studies or quick_run or repeats):
        raise typer.BadParameter(
            "it reports on everything in --out; leave out the studies, --quick and --repeats.",
            param_hint="--report-only",
        )
    if find_spec("jinja2") is None:  # before hours of work, not after them
        raise ImportError("the report needs jinja2: pip install 'snefy-ldl[plot]'")
    if not report_only:
        from snefy_ldl.paper.runner import reproduce as run

        run(
            [quick(study) for study in chosen] if quick_run else chosen,
            out,
            recipes=recipes,
            repeats=repeats,
            jobs=jobs,
        )
    from snefy_ldl.paper.report import write_report

    typer.echo(f"The report: {write_report(out)}, every table in full: {out / 'tables.md'}")
