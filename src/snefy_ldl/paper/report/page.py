"""The report of a reproduction: one page that holds its own pictures, and the conclusion as a text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from snefy_ldl._internal.files.atomic import write_bytes
from snefy_ldl._internal.version import __version__
from snefy_ldl.paper.analysis import LEVEL, Results, load_results
from snefy_ldl.paper.published import TABLES
from snefy_ldl.paper.report.cells import Grid
from snefy_ldl.paper.report.claims import Claim, claims_of_ours, claims_of_the_paper, tally
from snefy_ldl.paper.report.gaps import DATASETS, Tables
from snefy_ldl.paper.report.sections import HEADINGS, Section, build_section, rerun_command
from snefy_ldl.paper.report.tables import (
    RECIPE_NAMES,
    active_counts,
    active_grid,
    conformal_grid,
    coverage_grid,
    ensemble_grid,
)
from snefy_ldl.paper.report.verdicts import MARKS
from snefy_ldl.paper.report.words import duration

__all__ = ["Timing", "write_report"]


@dataclass(frozen=True)
class Timing:
    """One study with one recipe: how many repeats are there, how long they took, how to run them again."""

    study: str
    recipe: str
    done: int
    planned: int | None
    seconds: float
    command: str

    @property
    def partial(self) -> bool:
        """Whether repeats are missing."""
        return self.planned is not None and self.done < self.planned


def write_report(folder: Path) -> Path:
    """Read a run and write ``report.html`` and ``reproduction.md`` beside its results; returns the page.

    Args:
        folder: What ``snefy-ldl reproduce`` wrote into: ``run.json`` and ``results/``. A run that has not finished
            is reported as far as it goes, and the page says what is missing.
    """
    folder = Path(folder)
    results = load_results(folder)
    environment = _environments()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("report", total=len(HEADINGS))
        sections = []
        for study in HEADINGS:
            progress.update(task, description=f"report: {HEADINGS[study][0]}")
            sections.append(build_section(results, TABLES, study))
            progress.advance(task)
    view = _view(results, TABLES, sections)
    page = folder / "report.html"
    write_bytes(page, environment[".html"].get_template("reproduction.html.j2").render(view).encode())
    text = environment[".md"].get_template("reproduction.md.j2").render(view)
    write_bytes(folder / "reproduction.md", (text.strip() + "\n").encode())
    return page


def timings(results: Results) -> list[Timing]:
    """How far each study has come with each recipe, and how long it took."""
    planned = results.run.get("repeats", {})
    rows = []
    for study in HEADINGS:
        for recipe in ("baseline", "paper", "default"):
            records = results.repeats(study, recipe)
            if records:
                seconds = sum(record.seconds for record in records.values())
                command = rerun_command(study, None if recipe == "baseline" else recipe)
                rows.append(Timing(study, recipe, len(records), planned.get(study), seconds, command))
    return rows


# --- the page ---------------------------------------------------------------------------------------------------------


def _environments() -> dict[str, Any]:
    try:
        import jinja2
    except ImportError:
        raise ImportError("the report needs jinja2 and matplotlib: pip install 'snefy-ldl[plot]'") from None
    loader = jinja2.PackageLoader("snefy_ldl.paper.report")
    options = {"loader": loader, "undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return {".html": jinja2.Environment(autoescape=True, **options), ".md": jinja2.Environment(**options)}


def _view(results: Results, tables: Tables, sections: list[Section]) -> dict[str, Any]:
    theirs, ours = claims_of_the_paper(results, tables), claims_of_ours(results, tables)
    times = timings(results)
    return {
        "claims": theirs,
        "beyond": ours,
        "short": [summary_sentence(theirs, recipe) for recipe in RECIPE_NAMES],
        "tallies": {recipe: tally(theirs, recipe) for recipe in RECIPE_NAMES},
        "sections": sections,
        "small": _small_tables(results, tables),
        "timings": times,
        "run": results.run,
        "machine": results.run.get("machine", {}),
        "wall": duration(results.run["wall_seconds"])
        if results.run.get("wall_seconds") is not None
        else "not recorded",
        "computed": duration(sum(time.seconds for time in times)),
        "unfinished": any(section.notes for section in sections),
        "recipes": RECIPE_NAMES,
        "marks": MARKS,
        "level": f"{LEVEL:.0%}".replace("%", " %"),
        "duration": duration,
        "version": __version__,
    }


def summary_sentence(claims: list[Claim], recipe: str) -> str:
    """How the claims came out for a recipe, in one sentence."""
    counts = tally(claims, recipe)
    total = sum(counts.values())
    words = {
        "holds": ("holds", "hold"),
        "in part": ("holds in part", "hold in part"),
        "does not hold": ("does not hold", "do not hold"),
        "not decided": ("cannot be decided yet",) * 2,
        "not run": ("has not been run", "have not been run"),
    }
    parts = [f"{count} {words[word][count > 1]}" for word, count in counts.items()]
    whole = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return f"With the {RECIPE_NAMES[recipe]}: of {total} checks, each a claim of the paper on one data set, {whole}."


def _small_tables(results: Results, tables: Tables) -> list[tuple[str, Grid]]:
    """The tables of the text: means over labels, the KL divergence, and counts."""
    small = []
    for study, (name, title) in HEADINGS.items():
        if not results.recipes(study) or study == "figureA1":
            continue
        head = f"{name}: {title.lower()}, {DATASETS[tables[study].dataset]}"
        if study in ("table2", "table3"):
            small.append((f"{head}, FSC", conformal_grid(results, tables, study, details=False)))
            small.append((f"{head}, what the coverage costs", coverage_grid(results, study)))
        elif study in ("table4", "table5"):
            small.append((f"{head}, measures won against Random", active_counts(results, study)))
            small.append((f"{head}, KL divergence", active_grid(results, tables, study, metrics=["kl"])))
        else:
            small.append((f"{head}, KL divergence", ensemble_grid(results, tables, study, metrics=["kl"])))
    return small
