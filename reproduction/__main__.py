"""Run the paper's experiments again and write a report; a run that was stopped continues where it was.

python -m reproduction                        # all tables and the figure, hours
python -m reproduction --quick                # all of them with a few repeats, minutes
python -m reproduction table3 --recipe paper
python -m reproduction --report-only          # write the report again
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from reproduction.config import RECIPES, STUDIES, quick, select
from snefy_ldl.errors import SnefyError

#: Where results and report go; git ignores it.
OUT = Path(__file__).parent / "run"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m reproduction",
        description=summary,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"{', '.join(STUDIES)} or all (the default)")
    parser.add_argument(
        "--recipe",
        default=",".join(RECIPES),
        metavar="A,B",
        help="how to train: paper (as described there), plain (as version 0.1 did), default (SnefyLDL() as it is)",
    )
    parser.add_argument("--repeats", type=positive, help="random splits per study; by default as many as in the paper")
    parser.add_argument("--jobs", type=positive, help="worker processes; by default one per core")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for results and report")
    parser.add_argument("--quick", action="store_true", help="all studies with a few repeats, in minutes")
    parser.add_argument("--report-only", action="store_true", help="only write the report again")
    return parser


def positive(word: str) -> int:
    """Return a whole number of at least 1.

    Example:
        >>> positive("3")
        3
    """
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least 1")
    return int(word)


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, run what is missing, and write the report.

    Args:
        words: arguments; by default those of the process.
    """
    parser = make_parser()
    given = parser.parse_args(words)
    recipes = list(dict.fromkeys(word.strip() for word in given.recipe.split(",") if word.strip()))
    if not recipes or any(name not in RECIPES for name in recipes):
        parser.error(f"--recipe {given.recipe!r}: use any of {', '.join(RECIPES)}, separated by commas")
    if given.report_only and (given.studies or given.quick or given.repeats):
        parser.error("--report-only reports on everything in --out; leave out the studies, --quick and --repeats")
    try:
        chosen = select(given.studies)
    except SnefyError as error:
        parser.error(str(error))
    from reproduction.report import write_report  # needs jinja2: fails before hours of work, not after them
    from reproduction.runner import reproduce

    try:
        if not given.report_only:
            wanted = [quick(study) for study in chosen] if given.quick else chosen
            reproduce(wanted, given.out, recipes=recipes, repeats=given.repeats, jobs=given.jobs)
        print(f"The report: {write_report(given.out)}, every table in full: {given.out / 'tables.md'}")
    except SnefyError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()
