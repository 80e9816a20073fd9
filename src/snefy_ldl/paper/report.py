"""The report of a reproduction: tables, pictures, one page that holds them, and the conclusion as a text."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from snefy_ldl._internal.files import write_bytes
from snefy_ldl._internal.progress import track
from snefy_ldl._internal.version import __version__
from snefy_ldl.paper.claims import (
    DATASETS,
    LEARNERS,
    LEVEL,
    LEVELS,
    MARKS,
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
    """One entry: a mark, the figure, what stands small beside it, and a tone ("better", "worse" or none)."""

    text: str = "–"
    small: str = ""
    mark: str = ""
    tone: str = ""
    best: bool = False

    @property
    def plain(self) -> str:
        """The entry in one line of text."""
        return " ".join(part for part in (self.mark, self.text, self.small) if part)


@dataclass(frozen=True)
class Row:
    """A line of a table; ``total`` sets it apart from the lines it sums up."""

    head: str
    cells: list[Cell]
    total: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: column names under group names, and blocks of rows under a heading each; ``tall`` saves width."""

    columns: list[tuple[str, str]]
    blocks: list[tuple[str, list[Row]]]
    corner: str = ""
    tall: bool = False

    @property
    def shape(self) -> str:
        """Class names for the page: "tall" sets what is small on a line of its own, "wide" does so on paper alone."""
        return "tall" if self.tall else "wide" if len(self.columns) > 5 else "narrow" if len(self.columns) < 4 else ""

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The group names with the number of columns each spans."""
        spans: list[tuple[str, int]] = []
        for group, _ in self.columns:
            if spans and spans[-1][0] == group:
                spans[-1] = (group, spans[-1][1] + 1)
            else:
                spans.append((group, 1))
        return spans

    @property
    def firsts(self) -> list[bool]:
        """Whether a column is the first of its group: where a thin rule goes."""
        return [place > 0 and group != self.columns[place - 1][0] for place, (group, _) in enumerate(self.columns)]


def value_cell(spread: Spread | None, digits: int, *, best: bool = False) -> Cell:
    """Mean ± standard deviation; the mean alone for one repeat."""
    if spread is None:
        return Cell()
    return Cell(f"{spread.mean:.{digits}f}", f"± {spread.std:.{digits}f}" if spread.std is not None else "", best=best)


def printed_cell(printed: tuple[float, float] | None, digits: int, *, best: bool = False) -> Cell:
    """A published mean ± standard deviation."""
    return value_cell(Spread(*printed, 0) if printed else None, digits, best=best)


def gap_cell(gap: Gap | None, digits: int) -> Cell:
    """A difference, its interval, and whether it speaks for the first side."""
    if gap is None:
        return Cell()
    interval = "" if gap.low is None or gap.high is None else f"[{signed(gap.low, digits)}, {signed(gap.high, digits)}]"
    tone = "" if not gap.clear else "better" if gap.better else "worse"
    return Cell(signed(gap.mean, digits), interval, gap.mark, tone)


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
        return Row(
            head if details else f"G = {level}{_ceiling(results, study, level)}", cells, details and label is None
        )

    if not details:
        return Grid(columns, [("", [row(level, None) for level in LEVELS])], "groups", tall=True)
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
    rows.append(Row("a perfect model", [Cell("0.900"), Cell(), Cell(), *ceilings], total=True))
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
    return Grid(columns, blocks, "learner", tall=True)


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
                    cells.append(Cell(value.text, difference, gap.mark, gap.tone))
                for figure in ("coverage", "width"):
                    spread = Spread.of(panel(results, recipe, name, setting, figure))
                    cells.append(Cell() if spread is None else Cell(f"{spread.mean:.3f}"))
            rows.append(Row(setting, cells))
        blocks.append((words, rows))
    return Grid(columns, blocks, "setting", tall=True)


INK, QUIET, FAINT = "#1f2933", "#6b7785", "#e3e8ee"
#: One colour and one shape per side, told apart with any kind of colour vision.
COLORS = {"paper": "#D98200", "plain": "#2E8B6F", "default": "#0072B2", "dirichlet": "#8a94a0", "published": INK}
SHAPES = {"paper": "s", "plain": "^", "default": "o", "dirichlet": "v", "published": "D"}
NAMES = {recipe: f"ours, {name}" for recipe, name in RECIPE_NAMES.items()} | {"dirichlet": "ours, Dirichlet"}
#: The level that the conformal intervals ask for.
ASKED = 0.9


def _printed_marks(ax: Any, x: Any, y: Any, color: str, label: str) -> None:
    """The paper's own figures: open diamonds in every picture."""
    ax.scatter(x, y, marker="D", s=22, facecolor="white", edgecolor=color, linewidth=1.2, zorder=3, label=label)


def conformal_figure(results: Results, tables: Tables, study: str) -> str:
    """Mean feature-stratified coverage of each label, the paper's and ours, with the ceiling of a perfect model."""
    names, table = labels_of(results, study), tables[study]
    sides = [side for side in ("dirichlet", *results.recipes(study)) if fsc(results, study, side)]
    figure, axes = _axes(1, 3, (9.6, 0.9 + 0.34 * len(names)), sharey=True)
    rows = np.arange(len(names))
    for ax, level in zip(axes, LEVELS):
        ceiling = Spread.of(results.series(study, results.recipes(study)[0], "ceiling", level)) if sides else None
        if ceiling is not None:
            ax.axvline(ceiling.mean, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1, label="ceiling")
        for kind, face in (("dirichlet", COLORS["dirichlet"]), ("snefy", INK)):
            means = [table.cells.get((kind, level, str(row)), (np.nan, 0.0))[0] for row in rows]
            name = f"published, {'Dirichlet' if kind == 'dirichlet' else 'SNEFY-LDL'}"
            _printed_marks(ax, means, rows + 0.17, face, name)
        for side in sides:
            spreads = [Spread.of(fsc(results, study, side, level, int(row))) for row in rows]
            means = [spread.mean if spread else np.nan for spread in spreads]
            ax.scatter(
                means,
                rows - 0.13,
                marker=SHAPES[side],
                s=30,
                color=COLORS[side],
                linewidth=0,
                zorder=4,
                label=NAMES[side],
            )
        ax.set_title(f"G = {level}", loc="left", fontsize=9.5, color=INK, fontweight="bold")
        ax.set_yticks(rows, names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.locator_params(axis="x", nbins=5)
        for edge in rows[:-1] + 0.5:
            ax.axhline(edge, color=FAINT, linewidth=0.7, zorder=0)
        ax.set_xlabel("lowest coverage of any group")
        _calm(ax, "x")
    _legend(figure, axes[0])
    return _address(figure)


def calibration_figure(results: Results, study: str) -> str | None:
    """PIT histograms label by label and, last, coverage against its level; None where no repeat holds any."""
    counts = {recipe: pit_counts(results, study, recipe) for recipe in results.recipes(study)}
    counts = {recipe: histograms for recipe, histograms in counts.items() if histograms is not None}
    if not counts:
        return None
    names = labels_of(results, study)
    across = 4 if len(names) % 4 != 1 else 5
    down = -(-(len(names) + 1) // across)
    figure, axes = _axes(down, across, (9.6, 1.95 * down + 0.4))
    for place, name in enumerate(names):
        ax = axes[place]
        ax.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        for recipe, histograms in counts.items():
            heights = histograms[place] / histograms[place].mean()
            edges = np.linspace(0.0, 1.0, len(heights) + 1)
            filled = recipe == "default"
            ax.stairs(
                heights,
                edges,
                baseline=0.0 if filled else None,
                fill=filled,
                color=COLORS[recipe],
                alpha=0.45 if filled else 1.0,
                linewidth=1.4,
                zorder=2 + (not filled),
                label=NAMES[recipe],
            )
        ax.set_title(name, loc="left", fontsize=9, color=INK)
        ax.set_xlim(0.0, 1.0)
        ax.set_ylim(0.0, max(2.0, ax.get_ylim()[1]))
        ax.set_xticks([0.0, 0.5, 1.0], ["0", "½", "1"])
        _calm(ax, None)
    curve = axes[len(names)]
    curve.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for recipe, histograms in counts.items():
        levels, inside = reliability(histograms.sum(axis=0))
        curve.plot(levels, inside, color=COLORS[recipe], marker=SHAPES[recipe], markersize=3.2, linewidth=1.4, zorder=3)
    curve.set_title("level →, inside ↑", loc="left", fontsize=9, color=INK, fontweight="bold")
    curve.set_xlim(0.0, 1.0)
    curve.set_ylim(0.0, 1.0)
    curve.set_xticks([0.0, 0.5, 1.0], ["0", "½", "1"])
    _calm(curve, "both")
    for ax in axes[len(names) + 1 :]:
        ax.set_visible(False)
    _legend(figure, axes[0])
    return _address(figure)


def pit_counts(results: Results, study: str, recipe: str) -> Any:
    """PIT histograms (L, bins) summed over the repeats; None where no repeat holds any."""
    histograms = [
        record.figures.get("models", {}).get("snefy", {}).get("pit")
        for record in results.repeats(study, recipe).values()
    ]
    kept = [np.asarray(one, dtype=np.float64) for one in histograms if one is not None]
    return np.sum(kept, axis=0) if kept else None


def reliability(counts: Any) -> tuple[Any, Any]:
    """Levels of central intervals and the share of values inside them, read off a PIT histogram.

    Args:
        counts: Numbers of values in equal bins of [0, 1]; an even number of bins.

    Examples:
        >>> levels, inside = reliability([1, 4, 4, 1])
        >>> levels.tolist(), inside.tolist()
        ([0.5, 1.0], [0.8, 1.0])
    """
    values = np.asarray(counts, dtype=np.float64)
    half = len(values) // 2
    levels = np.arange(1, half + 1) / half
    inside = np.cumsum(values[half:] + values[:half][::-1]) / values.sum()
    return levels, inside


def active_figure(results: Results, tables: Tables, study: str) -> str:
    """Gain over random queries for each strategy and measure, in percent of Random's score, with paired intervals."""
    names = [*STRATEGIES[1:], "entropy"]
    table = tables[study]

    def printed(name: str, metric: str) -> float | None:
        printed, random = table.cells.get((name, metric)), table.cells.get(("Random", metric))
        return None if printed is None or random is None else (printed[0] - random[0]) / random[0]

    def ours(recipe: str, name: str, metric: str) -> tuple[Gap | None, float]:
        random = query(results, study, recipe, "Random", metric)
        spread = Spread.of(random)
        gap = paired(query(results, study, recipe, name, metric), random, higher=METRICS[metric].higher)
        return gap, spread.mean if spread else 1.0

    rows = [*names[:-1], "entropy, exact"]
    return _forest(results.recipes(study), rows, names, printed, ours, "gain over Random, %")


def ensemble_figure(results: Results, tables: Tables, study: str) -> str:
    """Gain of Weighted over Average for each learner and measure, in percent of Average's score."""
    table = tables[study]

    def printed(name: str, metric: str) -> float | None:
        average, weighted = (table.cells.get((name, kind, metric)) for kind in ("Average", "Weighted"))
        return None if average is None or weighted is None else (weighted[0] - average[0]) / average[0]

    def ours(recipe: str, name: str, metric: str) -> tuple[Gap | None, float]:
        average = weighting(results, study, recipe, name, "Average", metric)
        spread = Spread.of(average)
        weighted = weighting(results, study, recipe, name, "Weighted", metric)
        return paired(weighted, average, higher=METRICS[metric].higher), spread.mean if spread else 1.0

    return _forest(results.recipes(study), LEARNERS, LEARNERS, printed, ours, "gain of Weighted, %")


def _forest(recipes: list[str], rows: Iterable[str], names: Iterable[str], printed: Any, ours: Any, words: str) -> str:
    """Six panels, a measure each: gains in percent, better to the right whichever way the measure goes."""
    rows, names = list(rows), list(names)
    figure, axes = _axes(2, 3, (9.6, 2 * (0.75 + 0.33 * len(rows))), sharey=True)
    shifts = np.linspace(-0.2, 0.2, len(recipes) + 1)
    for ax, (metric, measure) in zip(axes, METRICS.items()):
        sign = 100.0 if measure.higher else -100.0
        ax.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
        marks = [(place, printed(name, metric)) for place, name in enumerate(names)]
        gains = [sign * gain for _, gain in marks if gain is not None]
        places = [place + shifts[0] for place, gain in marks if gain is not None]
        _printed_marks(ax, gains, places, INK, "published")
        for shift, recipe in zip(shifts[1:], recipes):
            shown = [(place, *ours(recipe, name, metric)) for place, name in enumerate(names)]
            shown = [(place, gap, unit) for place, gap, unit in shown if gap is not None]
            half = [0.0 if gap.high is None else 100.0 * (gap.high - gap.mean) / unit for _, gap, unit in shown]
            ax.errorbar(
                [sign * gap.mean / unit for _, gap, unit in shown],
                [place + shift for place, _, _ in shown],
                xerr=half,
                fmt=SHAPES[recipe],
                markersize=4.6,
                color=COLORS[recipe],
                elinewidth=1.5,
                zorder=4,
                label=NAMES[recipe],
            )
        ax.set_title(measure.name, loc="left", fontsize=9.5, color=INK, fontweight="bold")
        ax.set_yticks(range(len(rows)), rows)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        for edge in np.arange(len(rows) - 1) + 0.5:
            ax.axhline(edge, color=FAINT, linewidth=0.7, zorder=0)
        _calm(ax, "x")
    for ax in axes[3:]:
        ax.set_xlabel(f"{words}  (better →)")
    _legend(figure, axes[0])
    return _address(figure)


def sensitivity_figure(results: Results) -> str:
    """Figure A1: coverage against n, m, batch size and epochs, with the 95 % interval of each mean."""
    recipes = results.recipes("figureA1")
    figure, axes = _axes(2, 4, (9.6, 4.6), sharey="row")
    for column, (name, words) in enumerate(PANELS.items()):
        settings = panel_settings(results, name)
        for row, level in enumerate(("2", "4")):
            ax = axes[4 * row + column]
            ceiling = Spread.of(results.series("figureA1", recipes[0], "ceiling", level))
            if ceiling is not None:
                ax.axhline(ceiling.mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label="ceiling")
            for recipe in recipes:
                series = [panel(results, recipe, name, setting, "fsc", level) for setting in settings]
                # Against zero, the paired interval is the interval of the mean itself.
                gaps = [paired(one, dict.fromkeys(one, 0.0)) for one in series]
                shown = [(place, gap) for place, gap in enumerate(gaps) if gap is not None]
                ax.errorbar(
                    [place for place, _ in shown],
                    [gap.mean for _, gap in shown],
                    yerr=[0.0 if gap.high is None else gap.high - gap.mean for _, gap in shown],
                    marker=SHAPES[recipe],
                    markersize=4.4,
                    color=COLORS[recipe],
                    linewidth=1.5,
                    elinewidth=1.2,
                    zorder=3,
                    label=NAMES[recipe],
                )
            ax.set_xticks(range(len(settings)), settings)
            ax.set_xlim(-0.4, len(settings) - 0.6)
            if row == 0:
                ax.set_title(words, loc="left", fontsize=9.5, color=INK, fontweight="bold")
            if column == 0:
                ax.set_ylabel(f"FSC, G = {level}")
            _calm(ax, "y")
    _legend(figure, axes[0])
    return _address(figure)


# --- drawing ----------------------------------------------------------------------------------------------------------


def _axes(down: int, across: int, size: tuple[float, float], **shared: Any) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("the report's pictures need matplotlib: pip install 'snefy-ldl[plot]'") from None
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(np.ravel(figure.subplots(down, across, **shared)))


def _calm(ax: Any, grid: str | None) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#c3ccd5")
    ax.tick_params(colors=QUIET, labelsize=8, length=0)
    ax.xaxis.label.set(color=QUIET, fontsize=8.5)
    ax.yaxis.label.set(color=QUIET, fontsize=8.5)
    if grid:
        ax.grid(axis=grid, color=FAINT, linewidth=0.7)
    ax.set_axisbelow(True)


def _legend(figure: Any, ax: Any) -> None:
    handles, names = ax.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=len(names),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handletextpad=0.4,
        columnspacing=1.6,
    )


def _address(figure: Any) -> str:
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "snefy-ldl", "svg.fonttype": "path"}):  # the same results, the same bytes
        figure.savefig(content, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(content.getvalue()).decode()


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
    """One study with one recipe: which version ran how many repeats in which time, and how to run them again."""

    study: str
    recipe: str
    version: str
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
    sections = [
        build_section(results, TABLES, study)
        for study in track(HEADINGS, len(HEADINGS), "report", show=Console(stderr=True).is_terminal)
    ]
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
        for recipe in ("baseline", *RECIPES):
            records = results.repeats(study, recipe)
            if records:
                seconds = sum(record.seconds for record in records.values())
                command = rerun_command(study, None if recipe == "baseline" else recipe)
                version = ", ".join(sorted({record.snefy_ldl for record in records.values()}))
                rows.append(Timing(study, recipe, version, len(records), planned.get(study), seconds, command))
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
