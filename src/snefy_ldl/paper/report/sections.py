"""The sections of the report: for each study its pictures, its tables and the words that go with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from snefy_ldl.paper.analysis import Results
from snefy_ldl.paper.report.cells import Grid
from snefy_ldl.paper.report.figures import (
    active_figure,
    calibration_figure,
    conformal_figure,
    ensemble_figure,
    sensitivity_figure,
)
from snefy_ldl.paper.report.gaps import DATASETS, Tables
from snefy_ldl.paper.report.tables import (
    RECIPE_NAMES,
    active_counts,
    active_grid,
    conformal_grid,
    coverage_grid,
    ensemble_extras,
    ensemble_grid,
    sensitivity_grid,
)
from snefy_ldl.paper.report.verdicts import STABLE

__all__ = ["HEADINGS", "Picture", "Section", "build_section", "rerun_command"]

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
    build = {"table2": _conformal, "table3": _conformal, "table4": _active, "table5": _active}
    build |= {"table6": _ensemble, "table7": _ensemble, "figureA1": _sensitivity}
    return Section(**heading, command=command, notes=notes, **build[study](results, tables, study))


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


def _conformal(results: Results, tables: Tables, study: str) -> dict[str, Any]:
    pictures = [
        Picture(
            conformal_figure(results, tables, study),
            "Dots: mean feature-stratified coverage of each label with 2, 4 and 8 groups, published and ours.",
            "Open diamonds are the paper's figures, filled marks ours. The dashed line is the ceiling: what a model "
            "with perfect conditional coverage of 0.9 reaches, because the lowest of several small groups is low by "
            "chance.",
        )
    ]
    calibration = calibration_figure(results, study)
    if calibration is not None:
        pictures.append(
            Picture(
                calibration,
                "Histograms of the model's own cdf at the test labels, one for each label, and a reliability curve.",
                "Calibration before any conformal correction: the model's own cdf at the observed share, all repeats "
                "together. Flat is right; a bowl means intervals too narrow, a hump too wide, a slope a bias. The last "
                "panel: how many shares fall into the model's central intervals, against their level.",
            )
        )
    return {
        "summary": conformal_grid(results, tables, study, details=False),
        "summary_caption": "Feature-stratified coverage, mean over labels; labels won: SNEFY-LDL's mean above the "
        "Dirichlet's (clear: the interval leaves zero out). The paper prints no deviation of this mean.",
        "pictures": pictures,
        "grids": [
            (
                "What it costs: coverage should be 0.9, and among those narrow is good. FSC far below its ceiling "
                "means that some group is served badly; above it, over-coverage or luck. Exact quantiles: our own "
                "intervals from the density's marginal quantiles, where all other rows use the paper's score. The "
                "interval score (lower is better) weighs width and misses together.",
                coverage_grid(results, study),
            ),
            ("Feature-stratified coverage of each label.", conformal_grid(results, tables, study)),
        ],
    }


def _active(results: Results, tables: Tables, study: str) -> dict[str, Any]:
    return {
        "summary": active_counts(results, study),
        "summary_caption": "In how many of the six measures a strategy is better than Random on the same splits.",
        "pictures": [
            Picture(
                active_figure(results, tables, study),
                "Gain of each strategy over random queries in six measures, with intervals, published and ours.",
                "Right of the line is better than Random, whichever way the measure goes. Bars are paired 95 % "
                "intervals over the repeats; the paper's differences come without one.",
            )
        ],
        "grids": [
            (
                "Scores of the model after 100 queried labels. Bold: the best of the paper's six strategies. * not in "
                "the paper: the same entropy from exact draws of the model, the model before any query, and the "
                "log-likelihood.",
                active_grid(results, tables, study),
            )
        ],
    }


def _ensemble(results: Results, tables: Tables, study: str) -> dict[str, Any]:
    return {
        "pictures": [
            Picture(
                ensemble_figure(results, tables, study),
                "Gain of the weighted over the plain ensemble for four learners in six measures, with intervals.",
                "Right of the line the weighted ensemble is better. Bars are paired 95 % intervals over the repeats.",
            )
        ],
        "grids": [
            (
                "Average and Weighted, 25 learners of 50 rows each. The last columns hold our Weighted against the "
                "paper's printed one: their splits are not ours, so clear means Welch's interval.",
                ensemble_grid(results, tables, study),
            ),
            (
                "Beside the ensembles: how many of the 25 members the weights leave in effect, and the mean of the "
                "density that weighs them, taken as a prediction of its own.",
                ensemble_extras(results, study),
            ),
        ],
    }


def _sensitivity(results: Results, tables: Tables, study: str) -> dict[str, Any]:
    return {
        "pictures": [
            Picture(
                sensitivity_figure(results),
                "Feature-stratified coverage for 2 and 4 groups against n, m, batch size and epochs.",
                "One setting varied at a time, all others as the recipe has them; mean over labels, with the 95 % "
                "interval of the mean over repeats. The paper prints its figure without numbers.",
            )
        ],
        "grids": [
            (
                "FSC, and under it its difference to the mean of the panel's other settings, on the same splits. "
                f"Stable is by another rule: within {STABLE} of the panel's median setting.",
                sensitivity_grid(results),
            )
        ],
    }
