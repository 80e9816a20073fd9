"""Run the paper's experiments again and write a report; a run that was stopped continues where it was.

python -m reproduction                        # all tables and the figure, hours
python -m reproduction --quick                # all of them with a few repeats, minutes
python -m reproduction table3 --recipe raw
python -m reproduction --grid --out grid      # compare settings of what the paper leaves open
python -m reproduction --report-only          # write the report again
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from reproduction.config import GRID, GRID_STUDIES, NEAREST_FILE, RECIPES, STUDIES, quick, select
from snefy_ldl._internal.files import write_json
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
        help="how to train: raw, standard or nearest (the paper's model, see config.py), default (SnefyLDL() as it is)",
    )
    parser.add_argument("--repeats", type=positive, help="random splits per study; by default as many as in the paper")
    parser.add_argument("--jobs", type=positive, help="worker processes; by default one per core")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for results and report")
    parser.add_argument("--page", type=Path, help="folder for the report; by default that of the results")
    parser.add_argument("--quick", action="store_true", help="all studies with a few repeats, in minutes")
    parser.add_argument("--grid", action="store_true", help="only compare settings of what the paper leaves open")
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
    from reproduction.claims import grid_distances, load_results
    from reproduction.runner import reproduce

    if given.grid:
        out = reproduce(GRID_STUDIES, given.out, recipes=tuple(GRID), jobs=given.jobs)
        distances = grid_distances(load_results(out))
        finite = {  # JSON has no infinity
            recipe: {study: value if math.isfinite(value) else None for study, value in found.items()}
            for recipe, found in distances.items()
        }
        write_json(NEAREST_FILE, {"recipe": next(iter(distances)), "distances": finite})
        print(f"Nearest to the printed cells: {next(iter(distances))}, written to {NEAREST_FILE}")
        return
    from reproduction.report import write_report  # needs jinja2: fails before hours of work, not after them

    try:
        if not given.report_only:
            wanted = [quick(study) for study in chosen] if given.quick else chosen
            reproduce(wanted, given.out, recipes=recipes, repeats=given.repeats, jobs=given.jobs)
        print(f"The report: {write_report(given.out, given.page)}")
    except SnefyError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()
