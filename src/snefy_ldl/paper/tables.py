"""The tables of the report, as cells that a page or a text can print: the paper's figures and ours side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from snefy_ldl.paper.claims import (
    LEARNERS,
    LEVELS,
    MEASURES,
    METRICS,
    PANELS,
    QUERIES,
    STRATEGIES,
    Gap,
    Gaps,
    Results,
    Spread,
    Tables,
    conformal,
    fsc,
    fsc_gaps,
    labels_of,
    paired,
    panel,
    panel_gaps,
    panel_settings,
    query,
    query_gaps,
    signed,
    unpaired,
    weighting,
    weighting_gaps,
)


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
RECIPE_NAMES = {"paper": "paper's recipe", "default": "default recipe"}


# --- tables 2 and 3 ---------------------------------------------------------------------------------------------------


def conformal_grid(results: Results, tables: Tables, study: str, *, details: bool = True) -> Grid:
    """Feature-stratified coverage: a block for each number of groups, a row for each label and for their mean.

    Args:
        results: The run.
        tables: The paper's figures.
        study: "table2" or "table3".
        details: Without them, one row a level: the mean over labels, and the number of labels won.
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
    for recipe in ("default", "paper", "baseline"):
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
    both = len(recipes) == 2
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
    same = len(recipes) < 2 or series[0] == series[1]
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
