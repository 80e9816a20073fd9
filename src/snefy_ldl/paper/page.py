"""The report of a reproduction: one page that holds its own pictures, and the conclusion as a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from snefy_ldl._internal.files.atomic import write_bytes
from snefy_ldl._internal.version import __version__
from snefy_ldl.paper.claims import (
    DATASETS,
    LEVEL,
    MARKS,
    STABLE,
    TABLES,
    WORDS,
    Claim,
    Results,
    Tables,
    claims_of_ours,
    claims_of_the_paper,
    duration,
    load_results,
    tally,
)
from snefy_ldl.paper.figures import (
    active_figure,
    calibration_figure,
    conformal_figure,
    ensemble_figure,
    sensitivity_figure,
)
from snefy_ldl.paper.tables import (
    RECIPE_NAMES,
    Grid,
    active_counts,
    active_grid,
    conformal_grid,
    coverage_grid,
    ensemble_extras,
    ensemble_grid,
    sensitivity_grid,
)

#: What each study shows: its name in the paper, and a heading.
HEADINGS = {
    "table2": ("Table 2", "Conformal intervals"),
    "table3": ("Table 3", "Conformal intervals"),
    "table4": ("Table 4", "Active learning"),
    "table5": ("Table 5", "Active learning"),
    "table6": ("Table 6", "Ensembles"),
    "table7": ("Table 7", "Ensembles"),
    "figureA1": ("Figure A1", "Sensitivity to settings"),
}


#: Kinds of studies.
KINDS = dict.fromkeys(("table2", "table3"), "conformal") | dict.fromkeys(("table4", "table5"), "active")
KINDS |= dict.fromkeys(("table6", "table7"), "ensemble") | {"figureA1": "sensitivity"}


@dataclass(frozen=True)
class Picture:
    """A picture as a data address, what it shows in words, and how to read it."""

    address: str
    words: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper beside ours; a study without results has neither."""

    study: str
    name: str
    title: str
    dataset: str
    place: str
    command: str
    notes: list[str] = field(default_factory=list)
    summary: Grid | None = None
    summary_caption: str = ""
    pictures: list[Picture] = field(default_factory=list)
    grids: list[tuple[str, Grid]] = field(default_factory=list)


def rerun_command(study: str, recipe: str | None = None) -> str:
    """What to type to compute a study, or one recipe of it, anew: into a folder of its own."""
    return f"snefy-ldl reproduce {study}" + (f" --recipe {recipe}" if recipe else "") + " --out again"


def build_section(results: Results, tables: Tables, study: str) -> Section:
    """The tables and pictures of one study."""
    name, title = HEADINGS[study]
    place = tables[study].place if study in tables else "Figure A1, appendix"
    dataset = DATASETS[tables[study].dataset if study in tables else "natural_scene"]
    heading: dict[str, Any] = {"study": study, "name": name, "title": title, "dataset": dataset, "place": place}
    command = rerun_command(study)
    if not results.has(study):
        return Section(**heading, command=command, notes=[f"Not run yet: `snefy-ldl reproduce {study}` adds it."])
    notes = _gaps_in_the_run(results, study, tables[study].splits if study in tables else None)
    if not results.recipes(study):
        return Section(**heading, command=command, notes=notes)
    kind = KINDS[study]
    summary, pictures, grids = _CONTENT[kind](results, tables, study)
    words = WORDS["sections"][kind]
    return Section(
        **heading,
        command=command,
        notes=notes,
        summary=summary,
        summary_caption=words["summary"],
        pictures=[Picture(one, *text) for one, text in zip(pictures, words["pictures"]) if one is not None],
        grids=[(caption.format(stable=STABLE), grid) for caption, grid in zip(words["tables"], grids)],
    )


def _gaps_in_the_run(results: Results, study: str, splits: int | None) -> list[str]:
    """What is missing from a study, in words; ``splits`` is how many the paper has."""
    wanted = ["baseline"] if study in ("table2", "table3") else []
    wanted += [str(recipe) for recipe in results.run.get("recipes", RECIPE_NAMES)]
    words = {"baseline": "the Dirichlet baseline", "paper": "the paper's recipe", "default": "the default recipe"}
    planned, notes = results.run.get("repeats", {}).get(study), []
    for recipe in wanted:
        done = len(results.repeats(study, recipe))
        if done == 0:
            notes.append(f"No results with {words.get(recipe, recipe)} yet.")
        elif planned is not None and done < planned:
            notes.append(f"Only {done} of {planned} repeats with {words.get(recipe, recipe)} so far.")
        elif splits is not None and done < splits:
            notes.append(f"The paper has {splits} splits; here are {done} with {words.get(recipe, recipe)}.")
        if done == 1:
            notes.append(f"One repeat with {words.get(recipe, recipe)}: no standard deviation and no interval.")
    return notes


#: Kind of study -> its summary, pictures and tables; ``words.json`` has the captions, in the same order.
_CONTENT: dict[str, Callable[[Results, Tables, str], tuple[Grid | None, list[str | None], list[Grid]]]] = {
    "conformal": lambda results, tables, study: (
        conformal_grid(results, tables, study, details=False),
        [conformal_figure(results, tables, study), calibration_figure(results, study)],
        [coverage_grid(results, study), conformal_grid(results, tables, study)],
    ),
    "active": lambda results, tables, study: (
        active_counts(results, study),
        [active_figure(results, tables, study)],
        [active_grid(results, tables, study)],
    ),
    "ensemble": lambda results, tables, study: (
        None,
        [ensemble_figure(results, tables, study)],
        [ensemble_grid(results, tables, study), ensemble_extras(results, study)],
    ),
    "sensitivity": lambda results, tables, study: (None, [sensitivity_figure(results)], [sensitivity_grid(results)]),
}


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
    loader = jinja2.PackageLoader("snefy_ldl.paper")
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
