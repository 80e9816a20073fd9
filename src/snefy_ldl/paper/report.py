"""The report of a reproduction: the conclusion as a text, and every table in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from snefy_ldl._internal.files import write_bytes
from snefy_ldl._internal.progress import track
from snefy_ldl.paper.claims import (
    DATASETS,
    LEARNERS,
    LEVEL,
    LEVELS,
    MEASURES,
    METRICS,
    PANELS,
    QUERIES,
    STABLE,
    STRATEGIES,
    TABLES,
    WORDS,
    Claim,
    Gap,
    Gaps,
    Results,
    Spread,
    Tables,
    claims_of_ours,
    claims_of_the_paper,
    conformal,
    duration,
    fsc,
    fsc_gaps,
    labels_of,
    load_results,
    paired,
    panel,
    panel_gaps,
    panel_settings,
    query,
    query_gaps,
    signed,
    tally,
    unpaired,
    weighting,
    weighting_gaps,
)
from snefy_ldl.paper.config import RECIPES


@dataclass(frozen=True)
class Cell:
    """One entry: a mark, the figure, and what stands beside it."""

    text: str = "–"
    small: str = ""
    mark: str = ""
    best: bool = False

    @property
    def plain(self) -> str:
        """The entry in one line of text."""
        return " ".join(part for part in (self.mark, self.text, self.small) if part)


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    head: str
    cells: list[Cell]


@dataclass(frozen=True)
class Grid:
    """A table: column names under group names, and blocks of rows under a heading each."""

    columns: list[tuple[str, str]]
    blocks: list[tuple[str, list[Row]]]
    corner: str = ""


def value_cell(spread: Spread | None, digits: int, *, best: bool = False) -> Cell:
    """Mean ± standard deviation; the mean alone for one repeat."""
    if spread is None:
        return Cell()
    return Cell(f"{spread.mean:.{digits}f}", f"± {spread.std:.{digits}f}" if spread.std is not None else "", best=best)


def printed_cell(printed: tuple[float, float] | None, digits: int, *, best: bool = False) -> Cell:
    """A published mean ± standard deviation."""
    return value_cell(Spread(*printed, 0) if printed else None, digits, best=best)


def gap_cell(gap: Gap | None, digits: int) -> Cell:
    """A difference and its interval."""
    if gap is None:
        return Cell()
    interval = "" if gap.low is None or gap.high is None else f"[{signed(gap.low, digits)}, {signed(gap.high, digits)}]"
    return Cell(signed(gap.mean, digits), interval, gap.mark)


def count_cell(gaps: Iterable[Gap]) -> Cell:
    """How many of several differences are better, and how many of those clearly."""
    gaps = list(gaps)
    if not gaps:
        return Cell()
    better, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    return Cell(f"{better} of {len(gaps)}", f"({clear} clear)")


#: What a recipe is called in a heading.
RECIPE_NAMES = {"paper": "paper's recipe", "plain": "0.1's recipe", "default": "default recipe"}


# --- tables 2 and 3 ---------------------------------------------------------------------------------------------------


def conformal_grid(results: Results, tables: Tables, study: str, *, details: bool = True) -> Grid:
    """Feature-stratified coverage: a block for each number of groups, a row for each label and for their mean.

    Args:
        results: The run.
        tables: The paper's figures.
        study: "table2" or "table3".
        details: Without them, one row per level: the mean over labels, and the number of labels won.
    """
    recipes = results.recipes(study)
    names = labels_of(results, study)
    sides = [*(["dirichlet"] if results.repeats(study, "baseline") else []), *recipes]
    compared = recipes if "dirichlet" in sides else []
    columns = [("the paper", "Dirichlet"), ("the paper", "SNEFY-LDL")]
    columns += [("ours", "Dirichlet" if side == "dirichlet" else RECIPE_NAMES[side]) for side in sides]
    columns += [("SNEFY-LDL minus Dirichlet", RECIPE_NAMES[recipe]) for recipe in compared]
    if not details:
        columns += [("labels won", "the paper"), *(("labels won", RECIPE_NAMES[recipe]) for recipe in compared)]
    gaps = {recipe: fsc_gaps(results, study, recipe) for recipe in compared}

    def row(level: str, label: int | None) -> Row:
        places = range(len(names)) if label is None else [label]
        printed = {side: _printed_mean(tables, study, side, level, places) for side in ("dirichlet", "snefy")}
        known = [mean for mean, _ in printed.values() if mean is not None]
        cells = [
            Cell()
            if mean is None
            else Cell(f"{mean:.3f}", f"± {std:.3f}" if std is not None else "", best=mean == max(known))
            for mean, std in printed.values()
        ]
        cells += [value_cell(Spread.of(fsc(results, study, side, level, label)), 3) for side in sides]
        against = fsc(results, study, "dirichlet", level, label)
        cells += [gap_cell(paired(fsc(results, study, recipe, level, label), against), 3) for recipe in compared]
        if not details:
            wins = [_printed_wins(tables, study, level, place) for place in places]
            cells.append(Cell(f"{sum(wins)} of {len(wins)}"))
            cells += [count_cell(gap for key, gap in gaps[recipe].items() if key[0] == level) for recipe in compared]
        head = "mean over labels" if label is None else f"{label + 1} {names[label]}"
        return Row(head if details else f"G = {level}{_ceiling(results, study, level)}", cells)

    if not details:
        return Grid(columns, [("", [row(level, None) for level in LEVELS])], "groups")
    blocks = [
        (
            f"G = {level}{_ceiling(results, study, level)}",
            [*(row(level, label) for label in range(len(names))), row(level, None)],
        )
        for level in LEVELS
    ]
    return Grid(columns, blocks, "label")


def _ceiling(results: Results, study: str, level: str) -> str:
    for recipe in (*RECIPES, "baseline"):
        spread = Spread.of(results.series(study, recipe, "ceiling", level))
        if spread is not None:
            return f" (ceiling {spread.mean:.3f})"
    return ""


def _printed_mean(
    tables: Tables, study: str, side: str, level: str, places: Iterable[int]
) -> tuple[float | None, float | None]:
    cells = [tables[study].cells.get((side, level, str(place))) for place in places]
    known = [cell for cell in cells if cell is not None]
    if len(known) == 1:
        return known[0]
    # The deviation of a mean over labels cannot be had from the labels' own: they share their splits.
    return (sum(mean for mean, _ in known) / len(known), None) if known else (None, None)


def _printed_wins(tables: Tables, study: str, level: str, place: int) -> bool:
    cells = [tables[study].cells.get((side, level, str(place))) for side in ("snefy", "dirichlet")]
    return cells[0] is not None and cells[1] is not None and cells[0][0] > cells[1][0]


def coverage_grid(results: Results, study: str) -> Grid:
    """What a high FSC may be bought with: marginal coverage, mean width and interval score, a row for each model."""
    sides = {"dirichlet": "Dirichlet"}
    for recipe in results.recipes(study):
        sides[recipe] = f"SNEFY-LDL, {RECIPE_NAMES[recipe]}"
        sides[f"{recipe} quantile"] = f"SNEFY-LDL, {RECIPE_NAMES[recipe]}, exact quantiles"
    columns = [("mean over labels", "coverage"), ("mean over labels", "width"), ("mean over labels", "interval score")]
    columns += [("feature-stratified coverage", f"G = {level}") for level in LEVELS]
    rows = []
    for side, name in sides.items():
        figures = [conformal(results, study, side, path) for path in ("coverage", "width", "interval_score")]
        figures += [fsc(results, study, side, level) for level in LEVELS]
        if any(figures):
            rows.append(Row(name, [value_cell(Spread.of(series), 3) for series in figures]))
    ceilings = [Cell(_ceiling(results, study, level).strip(" ()").removeprefix("ceiling ") or "–") for level in LEVELS]
    rows.append(Row("a perfect model", [Cell("0.900"), Cell(), Cell(), *ceilings]))
    return Grid(columns, [("", rows)], "intervals")


# --- tables 4 and 5 ---------------------------------------------------------------------------------------------------


def active_grid(results: Results, tables: Tables, study: str, *, metrics: Iterable[str] = MEASURES) -> Grid:
    """Scores after each strategy's query: a block for each measure, a row for each strategy."""
    recipes, table = results.recipes(study), tables[study]
    columns = [("mean ± std", "the paper"), *(("mean ± std", f"ours, {RECIPE_NAMES[recipe]}") for recipe in recipes)]
    columns += [("minus Random", RECIPE_NAMES[recipe]) for recipe in recipes]
    both = {"paper", "default"} <= set(recipes)
    columns += [("same splits", "default minus paper's")] if both else []
    blocks = []
    for metric in metrics:
        higher = MEASURES[metric].higher
        pick = max if higher else min
        means = {
            "published": {name: table.cells[name, metric][0] for name in STRATEGIES if (name, metric) in table.cells}
        }
        for recipe in recipes:
            spreads = {name: Spread.of(query(results, study, recipe, name, metric)) for name in STRATEGIES}
            means[recipe] = {name: spread.mean for name, spread in spreads.items() if spread is not None}
        best = {source: pick(known.values(), default=None) for source, known in means.items()}
        rows = []
        for name in (*STRATEGIES, "entropy", "start"):
            ours = {recipe: query(results, study, recipe, name, metric) for recipe in recipes}
            if name not in STRATEGIES and not any(ours.values()):
                continue
            wins = {
                source: means[source].get(name) is not None and means[source][name] == best[source] for source in means
            }
            cells = [printed_cell(table.cells.get((name, metric)), 4, best=wins["published"])]
            cells += [value_cell(Spread.of(ours[recipe]), 4, best=wins[recipe]) for recipe in recipes]
            for recipe in recipes:
                random = query(results, study, recipe, "Random", metric)
                cells.append(Cell() if name == "Random" else gap_cell(paired(ours[recipe], random, higher=higher), 4))
            cells += [gap_cell(paired(ours["default"], ours["paper"], higher=higher), 4)] if both else []
            extra = {"entropy": "entropy, exact draws *", "start": "before the query *"}
            rows.append(Row(extra.get(name, name), cells))
        blocks.append((f"{MEASURES[metric].name} {'↑' if higher else '↓'}", rows))
    return Grid(columns, blocks, "query")


def active_counts(results: Results, study: str) -> Grid:
    """For each strategy, in how many of the six measures it is better than Random."""
    recipes = results.recipes(study)
    rows = []
    for name in (*STRATEGIES[1:], "entropy"):
        gaps = [query_gaps(results, study, recipe, name) for recipe in recipes]
        if any(gaps):
            rows.append(
                Row(f"{name} ({QUERIES[name]})" if name in QUERIES else name, [count_cell(g.values()) for g in gaps])
            )
    return Grid([("better than Random", RECIPE_NAMES[recipe]) for recipe in recipes], [("", rows)], "query")


# --- tables 6 and 7 ---------------------------------------------------------------------------------------------------


def ensemble_grid(results: Results, tables: Tables, study: str, *, metrics: Iterable[str] = METRICS) -> Grid:
    """Ensembles: a block for each learner, a row for each measure; Average and Weighted, the paper's and ours."""
    recipes, table = results.recipes(study), tables[study]
    averages = _averages(results, study, recipes)
    columns = [("the paper", "Average"), ("the paper", "Weighted")]
    columns += [("ours", f"Average{words}") for words in averages.values()]
    columns += [("ours", f"Weighted, {RECIPE_NAMES[recipe]}") for recipe in recipes]
    columns += [("Weighted minus Average", RECIPE_NAMES[recipe]) for recipe in recipes]
    columns += [("ours against the paper's Weighted", RECIPE_NAMES[recipe]) for recipe in recipes]
    gaps: dict[str, Gaps] = {recipe: weighting_gaps(results, study, recipe) for recipe in recipes}
    blocks = []
    for learner in LEARNERS:
        rows = []
        for metric in metrics:
            higher = METRICS[metric].higher
            printed = {kind: table.cells.get((learner, kind, metric)) for kind in ("Average", "Weighted")}
            cells = [printed_cell(one, 4) for one in printed.values()]
            series = {
                kind: {recipe: weighting(results, study, recipe, learner, kind, metric) for recipe in recipes}
                for kind in ("Average", "Weighted")
            }
            cells += [value_cell(Spread.of(series["Average"][recipe]), 4) for recipe in averages]
            cells += [value_cell(Spread.of(series["Weighted"][recipe]), 4) for recipe in recipes]
            cells += [gap_cell(gaps[recipe].get((learner, metric)), 4) for recipe in recipes]
            for recipe in recipes:
                spread, weighted = Spread.of(series["Weighted"][recipe]), printed["Weighted"]
                gap = unpaired(spread, weighted, table.splits, higher=higher) if weighted else None
                cells.append(gap_cell(gap, 4))
            rows.append(Row(f"{METRICS[metric].name} {'↑' if higher else '↓'}", cells))
        blocks.append((learner, rows))
    return Grid(columns, blocks, "learner")


def _averages(results: Results, study: str, recipes: list[str]) -> dict[str, str]:
    """Which recipes get a column for the plain average: one where they agree, as they do with the same members."""
    series = [
        [weighting(results, study, recipe, learner, "Average", metric) for learner in LEARNERS for metric in METRICS]
        for recipe in recipes
    ]
    same = all(one == series[0] for one in series)
    return {recipes[0]: ""} if same and recipes else {recipe: f", {RECIPE_NAMES[recipe]}" for recipe in recipes}


def ensemble_extras(results: Results, study: str) -> Grid:
    """Beside the ensembles: how many members the weights leave, and the density's own mean as a prediction."""
    recipes = results.recipes(study)
    rows = []
    for learner in LEARNERS:
        members = [Spread.of(results.series(study, recipe, "effective_members", learner)) for recipe in recipes]
        if any(members):
            rows.append(Row(f"effective members of 25, {learner}", [value_cell(spread, 1) for spread in members]))
    for metric, measure in MEASURES.items():
        spreads = [Spread.of(results.series(study, recipe, "density", metric)) for recipe in recipes]
        if any(spreads):
            name = f"the density's own mean, {measure.name} {'↑' if measure.higher else '↓'}"
            rows.append(Row(name, [value_cell(spread, 4) for spread in spreads]))
    return Grid([("SNEFY-LDL", RECIPE_NAMES[recipe]) for recipe in recipes], [("", rows)])


# --- figure A1 --------------------------------------------------------------------------------------------------------


def sensitivity_grid(results: Results) -> Grid:
    """Figure A1 in figures: a block for each panel, a row for each setting."""
    recipes = results.recipes("figureA1")
    columns = [(RECIPE_NAMES[recipe], words) for recipe in recipes for words in ("G = 2", "G = 4", "coverage", "width")]
    gaps = {recipe: panel_gaps(results, recipe, "others") for recipe in recipes}
    blocks = []
    for name, words in PANELS.items():
        rows = []
        for setting in panel_settings(results, name):
            cells = []
            for recipe in recipes:
                for level in ("2", "4"):
                    gap = gap_cell(gaps[recipe].get((name, level, setting)), 3)
                    value = value_cell(Spread.of(panel(results, recipe, name, setting, "fsc", level)), 3)
                    difference = f"{gap.text} {gap.small}".strip() if gap.mark else ""
                    cells.append(Cell(value.text, difference, gap.mark))
                for figure in ("coverage", "width"):
                    spread = Spread.of(panel(results, recipe, name, setting, figure))
                    cells.append(Cell() if spread is None else Cell(f"{spread.mean:.3f}"))
            rows.append(Row(setting, cells))
        blocks.append((words, rows))
    return Grid(columns, blocks, "setting")


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
class Section:
    """One table or figure of the paper beside ours, as tables with their captions; none for a study without results."""

    name: str
    title: str
    dataset: str
    place: str
    notes: list[str] = field(default_factory=list)
    tables: list[tuple[str, Grid]] = field(default_factory=list)


def rerun_command(study: str, recipe: str | None = None) -> str:
    """What to type to compute a study, or one recipe of it, anew: into a folder of its own."""
    return f"snefy-ldl reproduce {study}" + (f" --recipe {recipe}" if recipe else "") + " --out again"


def build_section(results: Results, tables: Tables, study: str) -> Section:
    """The tables of one study."""
    name, title = HEADINGS[study]
    table = tables.get(study)
    place = table.place if table else "Figure A1, appendix"
    dataset = DATASETS[table.dataset if table else "natural_scene"]
    if not results.has(study):
        return Section(name, title, dataset, place, [f"Not run yet: `snefy-ldl reproduce {study}` adds it."])
    notes = _gaps_in_the_run(results, study, table.splits if table else None)
    if not results.recipes(study):
        return Section(name, title, dataset, place, notes)
    captions, grids = WORDS["sections"][KINDS[study]], _CONTENT[KINDS[study]](results, tables, study)
    shown = [(caption.format(stable=STABLE), grid) for caption, grid in zip(captions, grids)]
    return Section(name, title, dataset, place, notes, shown)


def _gaps_in_the_run(results: Results, study: str, splits: int | None) -> list[str]:
    """What is missing from a study, in words; ``splits`` is how many the paper has."""
    wanted = ["baseline"] if study in ("table2", "table3") else []
    wanted += [str(recipe) for recipe in results.run.get("recipes", RECIPE_NAMES)]
    words = {"baseline": "the Dirichlet baseline"} | {recipe: f"the {name}" for recipe, name in RECIPE_NAMES.items()}
    words["plain"] = RECIPE_NAMES["plain"]
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


#: Kind of study -> its tables; ``words.json`` has the captions, in the same order.
_CONTENT: dict[str, Callable[[Results, Tables, str], list[Grid]]] = {
    "conformal": lambda results, tables, study: [
        conformal_grid(results, tables, study, details=False),
        coverage_grid(results, study),
        conformal_grid(results, tables, study),
    ],
    "active": lambda results, tables, study: [active_counts(results, study), active_grid(results, tables, study)],
    "ensemble": lambda results, tables, study: [
        ensemble_grid(results, tables, study),
        ensemble_extras(results, study),
    ],
    "sensitivity": lambda results, tables, study: [sensitivity_grid(results)],
}


@dataclass(frozen=True)
class Timing:
    """One study with one recipe: which version ran how many repeats in which time, and how to run them again."""

    study: str
    recipe: str
    version: str
    done: int
    planned: int | None
    seconds: float
    command: str


def write_report(folder: Path) -> Path:
    """Read a run and write ``reproduction.md`` and ``tables.md`` beside its results.

    Args:
        folder: What ``snefy-ldl reproduce`` wrote into: ``run.json`` and ``results/``. A run that has not finished
            is reported as far as it goes, and the text lists what is missing.

    Returns:
        The text with the verdicts, ``reproduction.md``; ``tables.md`` has every table in full.
    """
    try:
        import jinja2
    except ImportError:
        raise ImportError("the report needs jinja2: pip install 'snefy-ldl[plot]'") from None
    folder = Path(folder)
    results = load_results(folder)
    options: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.PackageLoader("snefy_ldl.paper"), **options)
    sections = [
        build_section(results, TABLES, study)
        for study in track(HEADINGS, len(HEADINGS), "report", show=Console(stderr=True).is_terminal)
    ]
    view = _view(results, TABLES, sections)
    for name in ("reproduction.md", "tables.md"):
        text = environment.get_template(f"{name}.j2").render(view)
        write_bytes(folder / name, (text.strip() + "\n").encode())
    return folder / "reproduction.md"


def timings(results: Results) -> list[Timing]:
    """How far each study has come with each recipe, and how long it took."""
    planned = results.run.get("repeats", {})
    rows = []
    for study in HEADINGS:
        for recipe in ("baseline", *RECIPES):
            records = results.repeats(study, recipe)
            if records:
                seconds = sum(record.seconds for record in records.values())
                command = rerun_command(study, None if recipe == "baseline" else recipe)
                version = ", ".join(sorted({record.snefy_ldl for record in records.values()}))
                rows.append(Timing(study, recipe, version, len(records), planned.get(study), seconds, command))
    return rows


def _view(results: Results, tables: Tables, sections: list[Section]) -> dict[str, Any]:
    theirs, ours = claims_of_the_paper(results, tables), claims_of_ours(results, tables)
    times = timings(results)
    return {
        "claims": theirs,
        "beyond": ours,
        "short": [summary_sentence(theirs, recipe) for recipe in RECIPE_NAMES],
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
        "level": f"{LEVEL:.0%}".replace("%", " %"),
        "duration": duration,
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
    name = RECIPE_NAMES[recipe] if recipe == "plain" else f"the {RECIPE_NAMES[recipe]}"
    return f"With {name}: of {total} checks, each a claim of the paper on one data set, {whole}."


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
