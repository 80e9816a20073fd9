"""The report of a reproduction: the conclusion as a text, and every table in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console

from reproduction import claims as figures
from reproduction.claims import LEARNERS, LEVELS, MEASURES, METRICS, STRATEGIES, TABLES, Gap, Results, Spread
from reproduction.config import RECIPES
from snefy_ldl._internal.files import write_bytes
from snefy_ldl._internal.progress import track

#: What a recipe is called in a heading.
RECIPE_NAMES = {"paper": "paper's recipe", "plain": "0.1's recipe", "default": "default recipe"}
#: A cell without a figure.
NOTHING = "–"


def markdown_table(corner: str, columns: list[tuple[str, str]], rows: list[list[str]]) -> str:
    """A table in Markdown; the columns are a group and a name, the first cell of a row is its head."""
    heads = [f" {group}: {name} |" for group, name in columns]
    lines = [f"| {corner or ' '} |{''.join(heads)}", f"|---|{'---:|' * len(columns)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, ""])


def value_cell(spread: Spread | None, digits: int, best: bool = False) -> str:
    """Mean ± standard deviation, the best one bold; the mean alone for one repeat."""
    if spread is None:
        return NOTHING
    text = f"{spread.mean:.{digits}f}" + ("" if spread.std is None else f" ± {spread.std:.{digits}f}")
    return f"**{text}**" if best else text


def gap_cell(gap: Gap | None, digits: int) -> str:
    """A difference and its interval, with a mark."""
    return NOTHING if gap is None else f"{gap.mark} {gap.text(digits)}"


def count_cell(gaps: Iterable[Gap]) -> str:
    """How many of several differences are better, and how many of those clearly."""
    gaps = list(gaps)
    better, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    return f"{better} of {len(gaps)} ({clear} clear)" if gaps else NOTHING


# --- tables 2 and 3 ---------------------------------------------------------------------------------------------------


def conformal_table(results: Results, study: str, details: bool) -> str:
    """Feature-stratified coverage by number of groups and label.

    Args:
        results: The run.
        study: "table2" or "table3".
        details: Without them, one row per number of groups: the mean over labels, and the number of labels won.
    """
    recipes, labels, cells = results.recipes(study), results.labels(study), TABLES[study].cells
    has_baseline = bool(results.repeats(study, "baseline"))
    sides = {"dirichlet": "Dirichlet"} if has_baseline else {}
    sides |= {recipe: RECIPE_NAMES[recipe] for recipe in recipes}
    compared = recipes if has_baseline else []
    columns = [("the paper", "Dirichlet"), ("the paper", "SNEFY-LDL")]
    columns += [("ours", name) for name in sides.values()]
    columns += [("SNEFY-LDL minus Dirichlet", RECIPE_NAMES[recipe]) for recipe in compared]
    if not details:
        columns += [("labels won", "the paper"), *(("labels won", RECIPE_NAMES[recipe]) for recipe in compared)]

    def row(level: str, label: int | None) -> list[str]:
        places = range(len(labels)) if label is None else [label]
        printed = [[cells[side, level, str(place)] for place in places] for side in ("dirichlet", "snefy")]
        means = [sum(mean for mean, _ in side) / len(side) for side in printed]
        # the deviation of a mean over labels cannot be had from the labels' own: they share their splits
        spreads = [Spread(mean, None if label is None else side[0][1], 0) for mean, side in zip(means, printed)]
        line = [value_cell(spread, 3, spread.mean == max(means)) for spread in spreads]
        line += [value_cell(Spread.of(figures.fsc(results, study, side, level, label)), 3) for side in sides]
        against = figures.fsc(results, study, "dirichlet", level, label)
        gaps = [figures.paired(figures.fsc(results, study, recipe, level, label), against) for recipe in compared]
        line += [gap_cell(gap, 3) for gap in gaps]
        head = f"G = {level}"
        if ceiling := _ceiling(results, study, level):
            head += f" (ceiling {ceiling})"
        if details:
            return [f"{head}, " + ("mean over labels" if label is None else f"{label + 1} {labels[label]}"), *line]
        wins = sum(ours[0] > theirs[0] for theirs, ours in zip(*printed))
        each = [figures.fsc_gaps(results, study, recipe) for recipe in compared]
        counts = [count_cell(gap for key, gap in gaps.items() if key[0] == level) for gaps in each]
        return [head, *line, f"{wins} of {len(labels)}", *counts]

    which: list[int | None] = [*range(len(labels)), None] if details else [None]
    rows = [row(level, label) for level in LEVELS for label in which]
    return markdown_table("label" if details else "groups", columns, rows)


def _ceiling(results: Results, study: str, level: str) -> str:
    """The coverage of the worst of some groups that perfect intervals would show."""
    for recipe in (*RECIPES, "baseline"):
        spread = Spread.of(results.series(study, recipe, "ceiling", level))
        if spread is not None:
            return f"{spread.mean:.3f}"
    return ""


def coverage_table(results: Results, study: str) -> str:
    """What a high FSC may be bought with: marginal coverage, mean width and interval score, a row for each model."""
    sides = {"dirichlet": "Dirichlet"}
    for recipe in results.recipes(study):
        sides[recipe] = f"SNEFY-LDL, {RECIPE_NAMES[recipe]}"
        sides[f"{recipe} quantile"] = f"SNEFY-LDL, {RECIPE_NAMES[recipe]}, exact quantiles"
    columns = [("mean over labels", name) for name in ("coverage", "width", "interval score")]
    columns += [("feature-stratified coverage", f"G = {level}") for level in LEVELS]
    rows = []
    for side, name in sides.items():
        series = [figures.conformal(results, study, side, path) for path in ("coverage", "width", "interval_score")]
        series += [figures.fsc(results, study, side, level) for level in LEVELS]
        if any(series):
            rows.append([name, *(value_cell(Spread.of(one), 3) for one in series)])
    ceilings = [_ceiling(results, study, level) or NOTHING for level in LEVELS]
    rows.append(["a perfect model", "0.900", NOTHING, NOTHING, *ceilings])
    return markdown_table("intervals", columns, rows)


# --- tables 4 and 5 ---------------------------------------------------------------------------------------------------


def active_table(results: Results, study: str, metrics: Iterable[str]) -> str:
    """Scores after each strategy's query, by measure and strategy."""
    recipes, cells = results.recipes(study), TABLES[study].cells
    columns = [("mean ± std", "the paper"), *(("mean ± std", f"ours, {RECIPE_NAMES[recipe]}") for recipe in recipes)]
    columns += [("minus Random", RECIPE_NAMES[recipe]) for recipe in recipes]
    both = {"paper", "default"} <= set(recipes)
    columns += [("same splits", "default minus paper's")] if both else []
    extra = {"entropy": "entropy, exact draws *", "start": "before the query *"}
    rows = []
    for metric in metrics:
        higher = MEASURES[metric].higher
        pick = max if higher else min
        printed = {name: Spread(*cells[name, metric], 0) for name in STRATEGIES if (name, metric) in cells}
        series = {
            recipe: {name: figures.query(results, study, recipe, name, metric) for name in (*STRATEGIES, *extra)}
            for recipe in recipes
        }
        sources: list[dict[str, Spread]] = [printed]
        for known in series.values():
            sources.append({name: spread for name, one in known.items() if (spread := Spread.of(one)) is not None})
        best = [pick((source[name].mean for name in STRATEGIES if name in source), default=None) for source in sources]
        for name in (*STRATEGIES, *extra):
            if name in extra and not any(series[recipe][name] for recipe in recipes):
                continue
            line = []
            for source, mean in zip(sources, best):
                spread = source.get(name)
                line.append(value_cell(spread, 4, name in STRATEGIES and spread is not None and spread.mean == mean))
            for known in series.values():
                gap = figures.paired(known[name], known["Random"], higher=higher) if name != "Random" else None
                line.append(gap_cell(gap, 4))
            if both:
                line.append(gap_cell(figures.paired(series["default"][name], series["paper"][name], higher=higher), 4))
            rows.append([f"{MEASURES[metric]}, {extra.get(name, name)}", *line])
    return markdown_table("query", columns, rows)


def active_counts(results: Results, study: str) -> str:
    """For each strategy, in how many of the six measures it is better than Random."""
    recipes, rows = results.recipes(study), []
    for name in (*STRATEGIES[1:], "entropy"):
        gaps = [figures.query_gaps(results, study, recipe, name) for recipe in recipes]
        if any(gaps):
            head = f"{name} ({figures.QUERIES[name]})" if name in figures.QUERIES else name
            rows.append([head, *(count_cell(one.values()) for one in gaps)])
    return markdown_table("query", [("better than Random", RECIPE_NAMES[recipe]) for recipe in recipes], rows)


# --- tables 6 and 7 ---------------------------------------------------------------------------------------------------


def ensemble_table(results: Results, study: str, metrics: Iterable[str]) -> str:
    """Ensembles by learner and measure: Average and Weighted, the paper's and ours."""
    recipes, cells = results.recipes(study), TABLES[study].cells
    averages = _averages(results, study, recipes)
    columns = [("the paper", "Average"), ("the paper", "Weighted")]
    columns += [("ours", f"Average{words}") for words in averages.values()]
    columns += [("ours", f"Weighted, {RECIPE_NAMES[recipe]}") for recipe in recipes]
    columns += [("Weighted minus Average", RECIPE_NAMES[recipe]) for recipe in recipes]
    columns += [("ours against the paper's Weighted", RECIPE_NAMES[recipe]) for recipe in recipes]
    gaps = [figures.weighting_gaps(results, study, recipe) for recipe in recipes]
    gaps += [figures.published_gaps(results, study, recipe) for recipe in recipes]
    shown = [("Average", recipe) for recipe in averages] + [("Weighted", recipe) for recipe in recipes]
    rows = []
    for learner in LEARNERS:
        for metric in metrics:
            line = [f"{learner}, {METRICS[metric]}"]
            for kind in ("Average", "Weighted"):
                line.append(value_cell(Spread(*cells[learner, kind, metric], 0), 4))
            for kind, recipe in shown:
                line.append(value_cell(Spread.of(figures.weighting(results, study, recipe, learner, kind, metric)), 4))
            rows.append([*line, *(gap_cell(one.get((learner, metric)), 4) for one in gaps)])
    return markdown_table("learner", columns, rows)


def _averages(results: Results, study: str, recipes: list[str]) -> dict[str, str]:
    """Which recipes get a column for the plain average: one if they agree, as they do with the same members."""
    cells = [(learner, "Average", metric) for learner in LEARNERS for metric in METRICS]
    series = [[figures.weighting(results, study, recipe, *cell) for cell in cells] for recipe in recipes]
    same = all(one == series[0] for one in series)
    return {recipes[0]: ""} if same and recipes else {recipe: f", {RECIPE_NAMES[recipe]}" for recipe in recipes}


def ensemble_extras(results: Results, study: str) -> str:
    """Beside the ensembles: how many members the weights leave, and the density's own mean as a prediction."""
    recipes, rows = results.recipes(study), []
    lines = [(f"effective members of 25, {name}", 1, ("effective_members", name)) for name in LEARNERS]
    lines += [(f"the density's own mean, {MEASURES[name]}", 4, ("density", name)) for name in MEASURES]
    for head, digits, path in lines:
        spreads = [Spread.of(results.series(study, recipe, *path)) for recipe in recipes]
        if any(spreads):
            rows.append([head, *(value_cell(spread, digits) for spread in spreads)])
    return markdown_table("", [("SNEFY-LDL", RECIPE_NAMES[recipe]) for recipe in recipes], rows)


# --- figure A1 --------------------------------------------------------------------------------------------------------


def sensitivity_table(results: Results) -> str:
    """Figure A1 in figures, by panel and setting."""
    recipes = results.recipes("figureA1")
    columns = [(RECIPE_NAMES[recipe], words) for recipe in recipes for words in ("G = 2", "G = 4", "coverage", "width")]
    gaps = {recipe: figures.panel_gaps(results, recipe)[1] for recipe in recipes}
    rows = []
    for name, words in figures.PANELS.items():
        for setting in figures.panel_settings(results, name):
            line = [f"{words}, {setting}"]
            for recipe in recipes:
                for path in (("fsc", "2"), ("fsc", "4"), ("coverage",), ("width",)):
                    spread = Spread.of(figures.panel(results, recipe, name, setting, *path))
                    text = NOTHING if spread is None else f"{spread.mean:.3f}"
                    gap = gaps[recipe].get((name, path[-1], setting))
                    line.append(text if gap is None else f"{gap.mark} {text} {gap.text(3)}")
            rows.append(line)
    return markdown_table("setting", columns, rows)


# --- the report -------------------------------------------------------------------------------------------------------

#: What each study shows: its name in the paper, a heading, and its kind.
HEADINGS = {
    "table2": ("Table 2", "Conformal intervals", "conformal"),
    "table3": ("Table 3", "Conformal intervals", "conformal"),
    "table4": ("Table 4", "Active learning", "active"),
    "table5": ("Table 5", "Active learning", "active"),
    "table6": ("Table 6", "Ensembles", "ensemble"),
    "table7": ("Table 7", "Ensembles", "ensemble"),
    "figureA1": ("Figure A1", "Sensitivity to settings", "sensitivity"),
}
#: Kind of study -> its tables; ``words.json`` has the captions, in the same order.
FULL_TABLES: dict[str, Callable[[Results, str], list[str]]] = {
    "conformal": lambda results, study: [
        conformal_table(results, study, details=False),
        coverage_table(results, study),
        conformal_table(results, study, details=True),
    ],
    "active": lambda results, study: [active_counts(results, study), active_table(results, study, MEASURES)],
    "ensemble": lambda results, study: [ensemble_table(results, study, METRICS), ensemble_extras(results, study)],
    "sensitivity": lambda results, study: [sensitivity_table(results)],
}
#: Kind of study -> the tables of the text, by their captions: means over labels, the KL divergence, and counts.
SMALL_TABLES: dict[str, Callable[[Results, str], dict[str, str]]] = {
    "conformal": lambda results, study: {
        "FSC": conformal_table(results, study, details=False),
        "what the coverage costs": coverage_table(results, study),
    },
    "active": lambda results, study: {
        "measures won against Random": active_counts(results, study),
        "KL divergence": active_table(results, study, ["kl"]),
    },
    "ensemble": lambda results, study: {"KL divergence": ensemble_table(results, study, ["kl"])},
    "sensitivity": lambda results, study: {},
}


def build_section(results: Results, study: str) -> dict[str, Any]:
    """One table or figure of the paper beside ours: headings, what is missing, and tables with their captions."""
    name, title, kind = HEADINGS[study]
    table = TABLES.get(study)
    section: dict[str, Any] = {
        "name": name,
        "title": title,
        "dataset": figures.DATASETS[table.dataset if table else "natural_scene"],
        "place": table.place if table else "Figure A1, appendix",
        "notes": [f"Not run yet: `python -m reproduction {study}` adds it."],
        "tables": [],
        "small": {},
    }
    if any(results.repeats(study, recipe) for recipe in ("baseline", *RECIPES)):
        section["notes"] = _gaps_in_the_run(results, study, table.splits if table else None)
    if results.recipes(study):
        captions = [caption.format(stable=figures.STABLE) for caption in figures.WORDS["sections"][kind]]
        section["tables"] = list(zip(captions, FULL_TABLES[kind](results, study)))
        section["small"] = SMALL_TABLES[kind](results, study)
    return section


def _gaps_in_the_run(results: Results, study: str, splits: int | None) -> list[str]:
    """What is missing from a study, in words; ``splits`` is how many the paper has."""
    wanted = ["baseline"] if study in ("table2", "table3") else []
    wanted += [str(recipe) for recipe in results.run.get("recipes", RECIPE_NAMES)]
    names = {"baseline": "the Dirichlet baseline", **{recipe: _with_article(recipe) for recipe in RECIPE_NAMES}}
    planned, notes = results.run.get("repeats", {}).get(study), []
    for recipe in wanted:
        done, name = len(results.repeats(study, recipe)), names.get(recipe, recipe)
        if done == 0:
            notes.append(f"No results with {name} yet.")
        elif planned is not None and done < planned:
            notes.append(f"Only {done} of {planned} repeats with {name} so far.")
        elif splits is not None and done < splits:
            notes.append(f"The paper has {splits} splits; here are {done} with {name}.")
        if done == 1:
            notes.append(f"One repeat with {name}: no standard deviation and no interval.")
    return notes


def _with_article(recipe: str) -> str:
    return RECIPE_NAMES[recipe] if recipe == "plain" else f"the {RECIPE_NAMES[recipe]}"


def write_report(folder: Path) -> Path:
    """Read a run and write ``reproduction.md`` and ``tables.md`` beside its results.

    Args:
        folder: What ``python -m reproduction`` wrote into: ``run.json`` and ``results/``. A run that has not finished
            is reported as far as it goes, and the text lists what is missing.

    Returns:
        The text with the verdicts, ``reproduction.md``; ``tables.md`` has every table in full.
    """
    folder = Path(folder)
    results = figures.load_results(folder)
    options: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), **options)
    studies = track(HEADINGS, len(HEADINGS), "report", show=Console(stderr=True).is_terminal)
    theirs, times, wall = figures.claims_of_the_paper(results), timings(results), results.run.get("wall_seconds")
    view = {
        "claims": theirs,
        "beyond": figures.claim_of_ours(results),
        "short": [summary_sentence(theirs, recipe) for recipe in RECIPE_NAMES],
        "sections": [build_section(results, study) for study in studies],
        "timings": times,
        "run": results.run,
        "wall": "not recorded" if wall is None else duration(wall),
        "computed": duration(sum(time["seconds"] for time in times)),
        "recipes": RECIPE_NAMES,
        "level": f"{100 * figures.LEVEL:g} %",
        "duration": duration,
    }
    for name in ("reproduction.md", "tables.md"):
        text = environment.get_template(f"{name}.j2").render(view)
        write_bytes(folder / name, (text.strip() + "\n").encode())
    return folder / "reproduction.md"


def timings(results: Results) -> list[dict[str, Any]]:
    """How far each study has come with each recipe, how long it took, and how to run it again."""
    rows = []
    for study in HEADINGS:
        for recipe in ("baseline", *RECIPES):
            records = results.repeats(study, recipe).values()
            if records:
                option = "" if recipe == "baseline" else f" --recipe {recipe}"
                rows.append(
                    {
                        "study": study,
                        "recipe": recipe,
                        "version": ", ".join(sorted({record.snefy_ldl for record in records})),
                        "done": len(records),
                        "planned": results.run.get("repeats", {}).get(study),
                        "seconds": sum(record.seconds for record in records),
                        "command": f"python -m reproduction {study}{option} --out again",
                    }
                )
    return rows


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> duration(42.4), duration(3700.0)
        ('42 s', '1 h 2 min')
    """
    if seconds < 100.0:
        return f"{seconds:.0f} s" if seconds >= 10.0 else f"{seconds:.1f} s"
    minutes = round(seconds / 60.0)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def summary_sentence(claims: list[figures.Claim], recipe: str) -> str:
    """How the claims came out for a recipe, in one sentence."""
    counts = figures.tally(claims, recipe)
    words = {
        "holds": ("holds", "hold"),
        "in part": ("holds in part", "hold in part"),
        "does not hold": ("does not hold", "do not hold"),
        "not decided": ("cannot be decided yet",) * 2,
        "not run": ("has not been run", "have not been run"),
    }
    parts = [f"{count} {words[word][count > 1]}" for word, count in counts.items()]
    whole = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    total = sum(counts.values())
    return f"With {_with_article(recipe)}: of {total} checks, each a claim of the paper on one data set, {whole}."
