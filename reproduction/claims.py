"""A run's results next to the paper's figures: differences on the same splits, and a rule for each claim."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from reproduction.config import GRID, RECIPES, STUDIES
from reproduction.runner import VERSION
from snefy_ldl.errors import InputError


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper.

    Args:
        place: where it stands, ``"Table 3, section 6.1"``.
        dataset: the data set, as :func:`snefy_ldl.load_dataset` calls it.
        splits: random splits that the paper averages over.
        cells: key to (mean, standard deviation). Tables 2 and 3: ("snefy" or "dirichlet", number of groups, label from
            0); tables 4 and 5: (strategy, measure); tables 6 and 7: (learner, "Average" or "Weighted", measure).

    Example:
        >>> TABLES["table3"].cells["snefy", "2", "0"]
        (0.8948, 0.0175)
    """

    place: str
    dataset: str
    splits: int
    cells: dict[tuple[str, ...], tuple[float, float]]


def _load(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


#: Tables 2 to 7, by the name of the study that runs them again.
TABLES = {
    name: PublishedTable(**{**table, "cells": {tuple(key): (mean, std) for key, mean, std in table["cells"]}})
    for name, table in _load("published.json").items()
}
#: Titles, quotes, rules and captions of the report.
WORDS: dict[str, Any] = _load("words.json")

#: Level of every interval of the report.
LEVEL = 0.95
#: A figure of each repeat, by the repeat's number.
Series = dict[int, float]


@dataclass(frozen=True)
class Metric:
    """A measure of the paper: its short name and which way is better."""

    name: str
    higher: bool

    def __str__(self) -> str:
        return f"{self.name} {'↑' if self.higher else '↓'}"


#: The six measures of tables 4 to 7, in the paper's order.
METRICS = {
    "cheby": Metric("Cheby", False),
    "clark": Metric("Clark", False),
    "canb": Metric("Canb", False),
    "kl": Metric("KL", False),
    "cos": Metric("Cos", True),
    "inter": Metric("Inter", True),
}
#: With the mean log density at the test labels, which judges the whole distribution and not its mean alone.
MEASURES = METRICS | {"log_likelihood": Metric("Log-likelihood", True)}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (divisor ``n - 1``) of a figure over ``n`` repeats.

    Examples:
        >>> Spread.of({0: 1.0, 1: 3.0})
        Spread(mean=2.0, std=1.4142135623730951, n=2)
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, series: Series) -> Spread | None:
        """The spread of a series; None if it is empty, without a deviation where it holds one repeat."""
        if not series:
            return None
        values = np.array([series[repeat] for repeat in sorted(series)])
        return cls(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Gap:
    """The difference of two sides, first minus second, with half its interval (None if there is one repeat only)."""

    mean: float
    half: float | None
    n: int
    higher: bool = True

    @property
    def better(self) -> bool:
        """Whether the first side is better on average."""
        return self.mean > 0.0 if self.higher else self.mean < 0.0

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def mark(self) -> str:
        """▲ better, ▼ worse, both clear of zero; △ ▽ on average only; = no difference at all."""
        if self.mean == 0.0:
            return "="
        return ("▲" if self.clear else "△") if self.better else ("▼" if self.clear else "▽")

    def text(self, digits: int = 3) -> str:
        """The difference with its interval in brackets."""
        if self.half is None:
            return signed(self.mean, digits)
        low, high = (signed(end, digits) for end in (self.mean - self.half, self.mean + self.half))
        return f"{signed(self.mean, digits)} [{low}, {high}]"


def paired(first: Series, second: Series, *, higher: bool = True) -> Gap | None:
    """Mean of ``first - second`` over the repeats that both have, with the Student interval of a paired test.

    The interval is ``d ± t(n - 1) · s / √n``, with ``s`` the standard deviation of the n differences.

    Args:
        first: The side that is judged.
        second: What it is compared with.
        higher: Whether a higher figure is better.

    Examples:
        >>> gap = paired({0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.5, 1: 1.0, 2: 2.5, 3: 9.0})
        >>> round(gap.mean, 3), gap.n, gap.mark
        (1.0, 3, '△')
    """
    spread = Spread.of({repeat: first[repeat] - second[repeat] for repeat in first.keys() & second.keys()})
    if spread is None:
        return None
    half = None
    if spread.std is not None:
        half = float(student.ppf(0.5 + LEVEL / 2, spread.n - 1) * spread.std / math.sqrt(spread.n))
    return Gap(spread.mean, half, spread.n, higher)


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One repeat of one study with one recipe: its figures, how long it took, and the version that wrote it."""

    figures: Mapping[str, Any]
    seconds: float
    snefy_ldl: str


@dataclass(frozen=True)
class Results:
    """Everything a run has written so far: ``records[study, recipe][repeat]``."""

    run: Mapping[str, Any]
    records: Mapping[tuple[str, str], Mapping[int, Record]]

    def repeats(self, study: str, recipe: str) -> Mapping[int, Record]:
        """The repeats of a study with a recipe; empty if there are none."""
        return self.records.get((study, recipe), {})

    def recipes(self, study: str) -> list[str]:
        """The recipes of a study that have results, in the order of ``RECIPES``."""
        return [recipe for recipe in RECIPES if self.repeats(study, recipe)]

    def labels(self, study: str) -> list[str]:
        """Names of the labels of tables 2 and 3."""
        for recipe in ("baseline", *RECIPES):
            for record in self.repeats(study, recipe).values():
                return [str(name) for name in record.figures.get("labels", [])]
        return []

    def series(self, study: str, recipe: str, *path: str | int) -> Series:
        """The figure at a path in each repeat that has it.

        Args:
            study: for example ``"table3"``.
            recipe: a name in ``RECIPES``, or ``"baseline"``.
            path: Keys and places inside the figures; a list at the end of it is averaged.
        """
        figures = {number: _figure(one.figures, path) for number, one in self.repeats(study, recipe).items()}
        return {number: figure for number, figure in figures.items() if figure is not None}


def load_results(folder: Path) -> Results:
    """Read ``run.json`` and every result of a run, or raise an error that names the file in the way.

    Args:
        folder: What ``python -m reproduction`` wrote into.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name the one that `python -m reproduction` wrote into.")
    run = _read(folder / "run.json") if (folder / "run.json").exists() else {}
    records: dict[tuple[str, str], dict[int, Record]] = {}
    for path in sorted(folder.glob("results/*/*/[0-9]*.json")):
        content = _read(path)
        try:
            if content["version"] > VERSION:
                raise InputError(f"{path} was written by a newer version: update snefy-ldl, then report again.")
            key, repeat = (str(content["study"]), str(content["recipe"])), int(content["repeat"])
            if key != (path.parent.parent.name, path.parent.name):
                raise InputError(f"{path} is labelled as a result of {key[0]}/{key[1]}: move it there, or delete it.")
            record = Record(dict(content["figures"]), float(content["seconds"]), str(content.get("snefy_ldl", "")))
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a result file ({error}): delete it and run that study again.") from None
        records.setdefault(key, {})[repeat] = record
    if not records:
        raise InputError(f"{folder} holds no results: run `python -m reproduction` into it first.")
    return Results(run, records)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): delete it and run that study again.") from None


def _figure(value: Any, path: tuple[str | int, ...]) -> float | None:
    """The number at a path, or the mean of the numbers there."""
    try:
        for step in path:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        return None
    if isinstance(value, list):  # a mean over other labels than its partner's would compare unlike things
        return float(np.mean(value)) if value and None not in value else None
    return None if value is None else float(value)


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, and a true minus; the sign stays where it rounds to zero, as it shows the side.

    Examples:
        >>> signed(-0.01234), signed(0.5, 1), signed(-0.0001)
        ('−0.012', '+0.5', '−0.000')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


# --- figures and their differences ------------------------------------------------------------------------------------

#: How the paper writes its data sets.
DATASETS = {"natural_scene": "Natural_Scene", "sbu_3dfe": "SBU_3DFE", "movie": "Movie", "sjaffe": "SJAFFE"}
#: Numbers of groups, G, in the feature-stratified coverage.
LEVELS = ("2", "4", "8")
#: The query strategies that the paper compares.
STRATEGIES = ("Random", "Kmeans", "CoreSet", "Graph Density", "Dirichlet", "SNEFY-LDL")
#: The base learners of the ensembles.
LEARNERS = ("SA-BFGS", "DF-LDL", "LDL-SCL", "LDL-LRR")
#: The four panels of figure A1.
PANELS = {"n_neurons": "n, neurons", "n_readouts": "m, readouts", "batch_size": "batch size", "epochs": "epochs"}

Gaps = dict[tuple[str, ...], Gap]


def mean_series(parts: Iterable[Series]) -> Series:
    """The mean of several figures in each repeat that has them all.

    Examples:
        >>> mean_series([{0: 1.0, 1: 2.0}, {0: 3.0}])
        {0: 2.0}
    """
    columns = list(parts)
    common = set.intersection(*(set(column) for column in columns)) if columns else set()
    return {repeat: float(np.mean([column[repeat] for column in columns])) for repeat in sorted(common)}


def _gaps(pairs: Iterable[tuple[tuple[str, ...], list[Series], bool]]) -> Gaps:
    """Differences by key, where both sides have repeats in common."""
    gaps = {key: paired(first, second, higher=higher) for key, (first, second), higher in pairs}
    return {key: gap for key, gap in gaps.items() if gap is not None}


def conformal(results: Results, study: str, side: str, *path: str | int) -> Series:
    """A figure of tables 2 and 3: ``side`` is "dirichlet" (around SA-BFGS), "constant" (featureless) or a recipe."""
    if side in ("dirichlet", "constant"):
        return results.series(study, "baseline", "models", side, *path)
    return results.series(study, side, "models", "snefy", *path)


def fsc(results: Results, study: str, side: str, level: str | None = None, label: int | None = None) -> Series:
    """Feature-stratified coverage of one label, or its mean over the labels, or over labels and levels."""
    if level is None:
        return mean_series(conformal(results, study, side, "fsc", name) for name in LEVELS)
    return conformal(results, study, side, "fsc", level, *(() if label is None else (label,)))


def fsc_gaps(results: Results, study: str, side: str, against: str = "dirichlet") -> Gaps:
    """One difference in coverage for each label and level."""
    return _gaps(
        ((level, str(label)), [fsc(results, study, one, level, label) for one in (side, against)], True)
        for level in LEVELS
        for label in range(len(results.labels(study)))
    )


def query(results: Results, study: str, recipe: str, strategy: str, metric: str) -> Series:
    """A score after a strategy's query (tables 4 and 5); "start" is the model before it."""
    place = ("start",) if strategy == "start" else ("strategies", strategy)
    return results.series(study, recipe, *place, metric)


def query_gaps(results: Results, study: str, recipe: str, strategy: str) -> Gaps:
    """A strategy against Random for each measure."""
    return _gaps(
        ((metric,), [query(results, study, recipe, one, metric) for one in (strategy, "Random")], measure.higher)
        for metric, measure in METRICS.items()
    )


def weighting(results: Results, study: str, recipe: str, learner: str, kind: str, metric: str) -> Series:
    """A score of an ensemble (tables 6 and 7); kind is "Average" or "Weighted"."""
    return results.series(study, recipe, "learners", learner, kind, metric)


def weighting_gaps(results: Results, study: str, recipe: str) -> Gaps:
    """Weighted against Average for each learner and measure."""
    kinds = ("Weighted", "Average")
    return _gaps(
        ((name, metric), [weighting(results, study, recipe, name, kind, metric) for kind in kinds], measure.higher)
        for name in LEARNERS
        for metric, measure in METRICS.items()
    )


def recipe_gaps(results: Results, study: str, against: str) -> Gaps:
    """The default against another recipe on the same splits: each cell of a table in which SNEFY-LDL has a part."""
    if study in ("table2", "table3"):
        return fsc_gaps(results, study, "default", against)
    is_query = study in ("table4", "table5")
    kind, names, rest = ("strategies", ("SNEFY-LDL",), ()) if is_query else ("learners", LEARNERS, ("Weighted",))
    recipes = ("default", against)
    return _gaps(
        ((name, metric), [results.series(study, one, kind, name, *rest, metric) for one in recipes], m.higher)
        for metric, m in METRICS.items()
        for name in names
    )


def grid_distances(results: Results) -> dict[str, dict[str, float]]:
    """How far the cells of each setting of ``GRID`` are from the printed ones, table by table.

    The distance of a table is the mean of ``|ours - printed| / printed deviation`` over the cells of SNEFY-LDL: its
    coverages (tables 2 and 3), the scores after its own query and a random one (4 and 5), and those of the weighted
    SA-BFGS bags (6 and 7); infinite if training diverged.

    Returns:
        Setting -> table -> distance, the nearest setting on average first.
    """
    found: dict[str, dict[str, float]] = {}
    for recipe in GRID:
        found[recipe] = {}
        for study, table in TABLES.items():
            cells = []
            for key, (mean, std) in table.cells.items():
                if study in ("table2", "table3") and key[0] == "snefy":
                    ours = conformal(results, study, recipe, "fsc", key[1], int(key[2]))
                elif key[0] in ("Random", "SNEFY-LDL"):
                    ours = query(results, study, recipe, *key)
                elif key[:2] == ("SA-BFGS", "Weighted"):
                    ours = weighting(results, study, recipe, *key)
                else:
                    continue
                cells.append(abs(sum(ours.values()) / len(ours) - mean) / std if ours else math.inf)
            found[recipe][study] = float(np.mean(cells))
    return dict(sorted(found.items(), key=lambda item: sum(item[1].values())))


def panel_settings(results: Results, panel: str) -> list[str]:
    """The settings of one panel of figure A1 that any repeat has, in rising order."""
    names = {
        name
        for recipe in results.recipes("figureA1")
        for record in results.repeats("figureA1", recipe).values()
        for name in record.figures.get("panels", {}).get(panel, {})
    }
    return sorted(names, key=float)


def panel(results: Results, recipe: str, name: str, setting: str, *path: str) -> Series:
    """A figure of one setting in figure A1."""
    return results.series("figureA1", recipe, "panels", name, setting, *path)


def panel_gaps(results: Results, recipe: str) -> tuple[Gaps, Gaps]:
    """Coverage of each setting of figure A1 against others of its panel, by panel, number of groups and setting.

    Returns:
        Differences of means to the panel's median setting, without intervals; and, on the same splits, to the mean of
        its other settings.
    """
    to_median: Gaps = {}
    to_others: Gaps = {}
    for name in PANELS:
        for level in ("2", "4"):
            settings = panel_settings(results, name)
            series = {setting: panel(results, recipe, name, setting, "fsc", level) for setting in settings}
            spreads = {setting: spread for setting, one in series.items() if (spread := Spread.of(one))}
            for setting, spread in spreads.items():
                middle = float(np.median([one.mean for one in spreads.values()]))
                to_median[name, level, setting] = Gap(spread.mean - middle, None, spread.n)
                gap = paired(series[setting], mean_series(series[other] for other in spreads if other != setting))
                if gap is not None:
                    to_others[name, level, setting] = gap
    return to_median, to_others


# --- verdicts ---------------------------------------------------------------------------------------------------------

#: A setting of figure A1 counts as stable when its mean coverage is this close to the panel's median setting.
STABLE = 0.05
#: The settings at which the paper itself reports a drop.
NAMED_DROPS = (("n_readouts", "48"), ("n_readouts", "96"), ("batch_size", "32"), ("batch_size", "96"))

HOLDS, IN_PART, FAILS, OPEN, MISSING = "holds", "in part", "does not hold", "not decided", "not run"
MARKS = {HOLDS: "✓", IN_PART: "◐", FAILS: "✗", OPEN: "?", MISSING: "–"}


@dataclass(frozen=True)
class Verdict:
    """What the results say about a claim, and the figures behind it."""

    word: str
    evidence: str = ""

    @property
    def mark(self) -> str:
        """A sign for the word, so that colour is not needed."""
        return MARKS[self.word]


def _verdict(everywhere: bool, won: int, cases: int, text: str, repeats: int) -> Verdict:
    """The rule of most claims: it holds everywhere, or in more than half of the cases, or not."""
    if repeats < 2:
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    return Verdict(HOLDS if everywhere else IN_PART if 2 * won > cases else FAILS, text)


def _counts(gaps: Iterable[Gap]) -> tuple[int, int, int, int]:
    """How many differences are better, clearly better, worse, and clearly worse."""
    marks = [gap.mark for gap in gaps]
    better, worse = marks.count("▲"), marks.count("▼")
    return better + marks.count("△"), better, worse + marks.count("▽"), worse


def _all_better(gaps: Gaps, cells: str, expected: int | None = None) -> Verdict:
    """The rule of "better in all": everywhere and clearly, or in more than half of the cells, or not."""
    if not gaps:
        return Verdict(MISSING)
    better, clear, worse, against = _counts(gaps.values())
    text = f"better in {better} of {len(gaps)} {cells}, {clear} clear"
    text += f"; worse in {worse}, {against} clear" if worse else ""
    repeats = min(gap.n for gap in gaps.values())
    if repeats > 1 and expected is not None and len(gaps) < expected:
        return Verdict(OPEN, f"{text}. Of {expected} {cells} the others have no results")
    return _verdict(clear == len(gaps), better, len(gaps), text, repeats)


def judge_fsc(results: Results, study: str, recipe: str) -> Verdict:
    """SNEFY-LDL against the Dirichlet, cell by cell and on average (tables 2 and 3)."""
    gaps = fsc_gaps(results, study, recipe)
    average = paired(fsc(results, study, recipe), fsc(results, study, "dirichlet"))
    if not gaps or average is None:
        return Verdict(MISSING)
    higher, clear, _, lower = _counts(gaps.values())
    text = f"higher in {higher} of {len(gaps)} cells, {clear} clear; clearly lower in {lower}; mean {average.text()}"
    widths = [Spread.of(conformal(results, study, side, "width")) for side in (recipe, "dirichlet")]
    if all(widths):  # a higher FSC may be bought with them
        text += "; width " + " against ".join(f"{side.mean:.3f}" for side in widths if side)
    signs = (2 * higher > len(gaps)) + (average.better and average.clear)
    return _verdict(signs == 2, signs, 1, text, average.n)


def judge_best_query(results: Results, study: str, recipe: str) -> Verdict:
    """Whether the entropy query has the best mean of the six strategies (tables 4 and 5)."""
    leaders, leads, repeats = [], [], []
    for metric, measure in METRICS.items():
        series = {name: query(results, study, recipe, name, metric) for name in STRATEGIES}
        means = {name: spread.mean for name, one in series.items() if (spread := Spread.of(one)) is not None}
        if "SNEFY-LDL" not in means or len(means) < 2:
            continue
        first, second, *_ = sorted(means, key=means.__getitem__, reverse=measure.higher)
        leaders.append(first)
        repeats.append(len(series["SNEFY-LDL"]))
        lead = paired(series[first], series[second], higher=measure.higher)
        leads.append(first == "SNEFY-LDL" and lead is not None and lead.clear)
    if not leaders:
        return Verdict(MISSING)
    won = leaders.count("SNEFY-LDL")
    text = f"best in {won} of {len(leaders)} measures"
    text += f", clear in {sum(leads)}" if won else ""
    others = {name: leaders.count(name) for name in STRATEGIES if name in leaders and name != "SNEFY-LDL"}
    text += "; else " + ", ".join(f"{name} ({count})" for name, count in others.items()) if others else ""
    return _verdict(won == len(METRICS), won, len(METRICS), text, min(repeats))


def judge_recipe(results: Results, study: str, against: str) -> Verdict:
    """The default recipe against another one, on the same splits."""
    return _all_better(recipe_gaps(results, study, against), "cells")


def judge_stable(results: Results, study: str, recipe: str) -> Verdict:
    """Whether the settings of figure A1 stay near their panel's median."""
    gaps = panel_gaps(results, recipe)[0]
    if not gaps:
        return Verdict(MISSING)
    stable = {key: abs(gap.mean) <= STABLE for key, gap in gaps.items()}
    judged = [fine for (name, _, setting), fine in stable.items() if (name, setting) not in NAMED_DROPS]
    (name, level, setting), worst = max(gaps.items(), key=lambda item: abs(item[1].mean))
    text = (
        f"stable in {sum(judged)} of {len(judged)} cases without the four named settings, {sum(stable.values())} of "
        f"{len(stable)} with them; farthest: {name} = {setting}, G = {level}: {signed(worst.mean)}"
    )
    return _verdict(all(judged), sum(judged), len(judged), text, min(gap.n for gap in gaps.values()))


def judge_drops(results: Results, study: str, recipe: str) -> Verdict:
    """Whether coverage drops where the paper saw it drop (figure A1)."""
    gaps = [gap for key, gap in panel_gaps(results, recipe)[1].items() if (key[0], key[2]) in NAMED_DROPS]
    if not gaps:
        return Verdict(MISSING)
    drops = sum(gap.clear and gap.mean < 0.0 for gap in gaps)
    lowest = signed(min(gap.mean for gap in gaps))
    text = f"a clear drop in {drops} of {len(gaps)} cases; lowest difference {lowest}"
    return _verdict(drops == len(gaps), drops, len(gaps), text, min(gap.n for gap in gaps))


@dataclass(frozen=True)
class Case:
    """A claim on one data set: a verdict for each recipe."""

    name: str
    verdicts: dict[str, Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim, where it stands, in which words, by which rule it is judged, and how it came out."""

    title: str
    place: str
    quote: str
    rule: str
    cases: list[Case]


Judge = Callable[[Results, str, str], Verdict]
#: The rules of the paper's claims, as ``words.json`` names them.
JUDGES: dict[str, Judge] = {
    "fsc": judge_fsc,
    "best_query": judge_best_query,
    "random": lambda results, study, recipe: _all_better(
        query_gaps(results, study, recipe, "SNEFY-LDL"), "measures", len(METRICS)
    ),
    "weighting": lambda results, study, recipe: _all_better(weighting_gaps(results, study, recipe), "cells", 24),
    "stable": judge_stable,
    "drops": judge_drops,
}


def claims_of_the_paper(results: Results) -> list[Claim]:
    """The paper's claims, judged for every recipe."""
    return [
        Claim(
            words["title"],
            "; ".join(TABLES[study].place if study in TABLES else "Figure A1" for study in words["studies"]),
            words["quote"],
            words["rule"].format(stable=STABLE),
            _cases(results, words["studies"], JUDGES[words["judge"]]),
        )
        for words in WORDS["claims"]
    ]


def claim_of_ours(results: Results) -> Claim:
    """What the paper could not claim: this library's default is better than its model."""
    words, others = WORDS["beyond"], [recipe for recipe in RECIPES if recipe != "default"]
    cases = [
        Case(_name(study), {recipe: judge_recipe(results, study, recipe) for recipe in others})
        for study in words["studies"]
    ]
    return Claim(words["title"], "Tables 2 to 7", "", words["rule"], cases)


def tally(claims: Iterable[Claim], recipe: str) -> dict[str, int]:
    """How often each verdict was given to a recipe, over claims and data sets."""
    words = [case.verdicts[recipe].word for claim in claims for case in claim.cases if recipe in case.verdicts]
    return {word: words.count(word) for word in MARKS if word in words}


def _cases(results: Results, studies: Iterable[str], judge: Judge) -> list[Case]:
    return [
        Case(_name(study), {recipe: judge(results, study, recipe) for recipe in STUDIES[study].recipes(RECIPES)[:-1]})
        for study in studies
    ]


def _name(study: str) -> str:
    if study == "figureA1":
        return DATASETS["natural_scene"]
    return f"{DATASETS[TABLES[study].dataset]} (table\u00a0{study.removeprefix('table')})"
