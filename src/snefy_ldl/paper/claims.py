"""What a run's results say beside the paper's figures: differences on the same splits, and a rule for each claim."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.stats import t as student

from snefy_ldl.errors import InputError
from snefy_ldl.paper.config import RECIPES
from snefy_ldl.paper.runner import VERSION


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper.

    Args:
        name: the study that runs it again, ``"table3"``.
        place: where it stands, ``"Table 3, section 6.1"``.
        dataset: the data set, as :func:`snefy_ldl.load_dataset` calls it.
        splits: random splits that the paper averages over.
        cells: key to (mean, standard deviation). Tables 2 and 3: ("snefy" or "dirichlet", number of groups, label from
            0); tables 4 and 5: (strategy, measure); tables 6 and 7: (learner, "Average" or "Weighted", measure).

    Example:
        >>> TABLES["table3"].cells["snefy", "2", "0"]
        (0.8948, 0.0175)
    """

    name: str
    place: str
    dataset: str
    splits: int
    cells: Mapping[tuple[str, ...], tuple[float, float]]


def _load() -> dict[str, PublishedTable]:
    content = json.loads(files("snefy_ldl.paper").joinpath("published.json").read_text(encoding="utf-8"))
    return {
        name: PublishedTable(
            name,
            table["place"],
            table["dataset"],
            table["splits"],
            MappingProxyType({tuple(key): (mean, std) for key, mean, std in table["cells"]}),
        )
        for name, table in content.items()
    }


#: Tables 2 to 7, by the name of the study that runs them again.
TABLES: dict[str, PublishedTable] = _load()


#: Level of every interval of the report.
LEVEL = 0.95
#: A figure of each repeat, by the repeat's number.
Series = dict[int, float]


@dataclass(frozen=True)
class Metric:
    """A measure of the paper: its short name and which way is better."""

    name: str
    higher: bool


#: The six measures of tables 4 to 7, in the paper's order.
METRICS = {
    "cheby": Metric("Cheby", False),
    "clark": Metric("Clark", False),
    "canb": Metric("Canb", False),
    "kl": Metric("KL", False),
    "cos": Metric("Cos", True),
    "inter": Metric("Inter", True),
}
#: With the mean log density at the test labels, which judges the whole law and not its mean alone.
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
        """The spread of a series; None where it is empty, without a deviation where it holds one repeat."""
        if not series:
            return None
        values = np.array([series[repeat] for repeat in sorted(series)])
        return cls(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Gap:
    """The difference of two sides, first minus second, with its interval (None where there is one repeat only)."""

    mean: float
    low: float | None
    high: float | None
    n: int
    higher: bool = True

    @property
    def gain(self) -> float:
        """The difference, positive where the first side is the better one."""
        return self.mean if self.higher else -self.mean

    @property
    def better(self) -> bool:
        """Whether the first side is better on average."""
        return self.gain > 0.0

    @property
    def worse(self) -> bool:
        """Whether the first side is worse on average."""
        return self.gain < 0.0

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)

    @property
    def mark(self) -> str:
        """▲ better, ▼ worse, both clear of zero; △ ▽ on average only; = no difference at all."""
        if self.better:
            return "▲" if self.clear else "△"
        if self.worse:
            return "▼" if self.clear else "▽"
        return "="


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
    repeats = sorted(first.keys() & second.keys())
    if not repeats:
        return None
    differences = np.array([first[repeat] - second[repeat] for repeat in repeats])
    mean, n = float(differences.mean()), len(repeats)
    if n < 2:
        return Gap(mean, None, None, n, higher)
    half = float(student.ppf(0.5 + LEVEL / 2, n - 1) * differences.std(ddof=1) / math.sqrt(n))
    return Gap(mean, mean - half, mean + half, n, higher)


def unpaired(first: Spread | None, published: tuple[float, float], splits: int, *, higher: bool = True) -> Gap | None:
    """Our mean minus a published one, with Welch's interval from both standard deviations: the splits are not shared.

    Args:
        first: Our side.
        published: Mean and standard deviation that the paper prints.
        splits: Over how many splits the paper averages.
        higher: Whether a higher figure is better.

    Examples:
        >>> gap = unpaired(Spread(0.12, 0.003, 10), (0.13, 0.004), 10, higher=False)
        >>> gap.mark, round(gap.gain, 3)
        ('▲', 0.01)
    """
    if first is None:
        return None
    mean = first.mean - published[0]
    if first.std is None:
        return Gap(mean, None, None, first.n, higher)
    ours, theirs = first.std**2 / first.n, published[1] ** 2 / splits
    if ours + theirs == 0.0:
        return Gap(mean, mean, mean, first.n, higher)
    freedom = (ours + theirs) ** 2 / (ours**2 / (first.n - 1) + theirs**2 / (splits - 1))
    half = float(student.ppf(0.5 + LEVEL / 2, freedom) * math.sqrt(ours + theirs))
    return Gap(mean, mean - half, mean + half, first.n, higher)


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
        """The repeats of a study with a recipe; empty where there are none."""
        return self.records.get((study, recipe), {})

    def has(self, study: str) -> bool:
        """Whether any recipe of a study has a result."""
        return any(name == study and repeats for (name, _), repeats in self.records.items())

    def recipes(self, study: str) -> list[str]:
        """The recipes of a study that have results: the paper's first, then 0.1's, then the default."""
        return [recipe for recipe in RECIPES if self.repeats(study, recipe)]

    def series(self, study: str, recipe: str, *path: str | int) -> Series:
        """The figure at a path in each repeat that has it.

        Args:
            study: for example ``"table3"``.
            recipe: ``"paper"``, ``"plain"``, ``"default"`` or ``"baseline"``.
            path: Keys and places inside the figures; a list at the end of it is averaged.
        """
        series = {}
        for repeat, record in self.repeats(study, recipe).items():
            value = _walk(record.figures, path)
            if value is not None:
                series[repeat] = value
        return series

    def first(self, study: str, *path: str | int) -> Any:
        """What stands at a path in the first repeat that has it, whatever the recipe; None where none does."""
        for (name, _), records in self.records.items():
            if name == study:
                for record in records.values():
                    value = _follow(record.figures, path)
                    if value is not None:
                        return value
        return None


def load_results(folder: Path) -> Results:
    """Read ``run.json`` and every result of a run, or raise an error that names the file in the way.

    Args:
        folder: What ``snefy-ldl reproduce`` wrote into.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name the one that `snefy-ldl reproduce` wrote into.")
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
        raise InputError(f"{folder} holds no results: run `snefy-ldl reproduce` into it first.")
    return Results(run, records)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): delete it and run that study again.") from None


def _follow(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _walk(figures: Any, path: tuple[str | int, ...]) -> float | None:
    value = _follow(figures, path)
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


def gap_text(gap: Gap, digits: int = 3) -> str:
    """A difference with its interval in brackets."""
    if gap.low is None or gap.high is None:
        return signed(gap.mean, digits)
    return f"{signed(gap.mean, digits)} [{signed(gap.low, digits)}, {signed(gap.high, digits)}]"


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


#: How the paper writes its data sets.
DATASETS = {
    "natural_scene": "Natural_Scene",
    "sbu_3dfe": "SBU_3DFE",
    "movie": "Movie",
    "sjaffe": "SJAFFE",
}
#: Numbers of groups, G, in the feature-stratified coverage.
LEVELS = ("2", "4", "8")
#: The query strategies that the paper compares.
STRATEGIES = ("Random", "Kmeans", "CoreSet", "Graph Density", "Dirichlet", "SNEFY-LDL")
#: The entropy queries: the paper's estimate, and the same entropy from exact draws.
QUERIES = {"SNEFY-LDL": "the paper's estimate", "entropy": "exact draws"}
#: The base learners of the ensembles.
LEARNERS = ("SA-BFGS", "DF-LDL", "LDL-SCL", "LDL-LRR")
#: The four panels of figure A1.
PANELS = {
    "n_neurons": "n, neurons",
    "n_readouts": "m, readouts",
    "batch_size": "batch size",
    "epochs": "epochs",
}

Tables = Mapping[str, PublishedTable]
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


def conformal(results: Results, study: str, side: str, *path: str | int) -> Series:
    """A figure of tables 2 and 3: ``side`` is "dirichlet", a recipe, or a recipe with " quantile" after it."""
    if side == "dirichlet":
        return results.series(study, "baseline", "models", "dirichlet", *path)
    recipe, _, method = side.partition(" ")
    if not method:
        return results.series(study, recipe, "models", "snefy", *path)
    series = results.series(study, recipe, "methods", "snefy_quantile", *path)
    return series or results.series(study, recipe, "models", "snefy_quantile", *path)


def fsc(results: Results, study: str, side: str, level: str | None = None, label: int | None = None) -> Series:
    """Feature-stratified coverage of one label, or its mean over the labels, or over labels and levels."""
    if level is None:
        return mean_series(conformal(results, study, side, "fsc", name) for name in LEVELS)
    return conformal(results, study, side, "fsc", level, *(() if label is None else (label,)))


def labels_of(results: Results, study: str) -> list[str]:
    """Names of the labels of tables 2 and 3."""
    return [str(name) for name in results.first(study, "labels") or []]


def _gaps(pairs: Iterable[tuple[tuple[str, ...], list[Series], bool]]) -> Gaps:
    """Differences by key, where both sides have repeats in common."""
    gaps = {key: paired(first, second, higher=higher) for key, (first, second), higher in pairs}
    return {key: gap for key, gap in gaps.items() if gap is not None}


def fsc_gaps(results: Results, study: str, side: str, against: str = "dirichlet") -> Gaps:
    """One difference in coverage for each label and level."""
    return _gaps(
        ((level, str(label)), [fsc(results, study, one, level, label) for one in (side, against)], True)
        for level in LEVELS
        for label in range(len(labels_of(results, study)))
    )


def query(results: Results, study: str, recipe: str, strategy: str, metric: str) -> Series:
    """A score after a strategy's query (tables 4 and 5); "start" is the model before it."""
    if strategy == "start":
        return results.series(study, recipe, "start", metric)
    return results.series(study, recipe, "strategies", strategy, metric)


def query_gaps(results: Results, study: str, recipe: str, strategy: str, against: str = "Random") -> Gaps:
    """One difference between two strategies for each measure."""
    return _gaps(
        ((metric,), [query(results, study, recipe, one, metric) for one in (strategy, against)], measure.higher)
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


def recipe_gaps(results: Results, study: str, recipe: str = "default", against: str = "paper") -> Gaps:
    """One recipe against another on the same splits: each cell of a table in which SNEFY-LDL has a part."""
    if study in ("table2", "table3"):
        return fsc_gaps(results, study, recipe, against)
    is_query = study in ("table4", "table5")
    kind, names, rest = ("strategies", ("SNEFY-LDL",), ()) if is_query else ("learners", LEARNERS, ("Weighted",))
    recipes = (recipe, against)
    return _gaps(
        ((name, metric), [results.series(study, one, kind, name, *rest, metric) for one in recipes], m.higher)
        for metric, m in METRICS.items()
        for name in names
    )


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


def panel_gaps(results: Results, recipe: str, against: str = "median") -> Gaps:
    """Coverage of each panel's settings against the panel's median setting, or the mean of its other settings.

    Args:
        results: The run.
        recipe: "paper", "plain" or "default".
        against: "median": the difference of means to the middle one of the panel's means, without an interval;
            "others": on the same splits, to the mean of the panel's other settings.
    """
    gaps: Gaps = {}
    for name in PANELS:
        for level in ("2", "4"):
            measured = {
                setting: panel(results, recipe, name, setting, "fsc", level)
                for setting in panel_settings(results, name)
            }
            measured = {setting: series for setting, series in measured.items() if series}
            spreads = {setting: Spread.of(series) for setting, series in measured.items()}
            middle = float(np.median([spread.mean for spread in spreads.values() if spread])) if spreads else 0.0
            for setting, series in measured.items():
                if against == "median":
                    spread = spreads[setting]
                    gap = Gap(spread.mean - middle, None, None, spread.n) if spread else None
                else:
                    gap = paired(series, mean_series(other for key, other in measured.items() if key != setting))
                if gap is not None:
                    gaps[name, level, setting] = gap
    return gaps


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


def _all_better(gaps: Iterable[Gap], cells: str, expected: int) -> Verdict:
    """The rule of "better in all": everywhere and clearly, or in more than half of the cells, or not."""
    gaps = list(gaps)
    if not gaps:
        return Verdict(MISSING)
    better, worse = sum(gap.better for gap in gaps), sum(gap.worse for gap in gaps)
    clear, against = sum(gap.better and gap.clear for gap in gaps), sum(gap.worse and gap.clear for gap in gaps)
    text = f"better in {better} of {len(gaps)} {cells}, {clear} clear of zero"
    text += f"; worse in {worse}, {against} clear of zero" if worse else ""
    if any(gap.n < 2 for gap in gaps):
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    if len(gaps) < expected:
        return Verdict(OPEN, f"{text}. Of {expected} {cells} the others have no results")
    return Verdict(HOLDS if clear == len(gaps) else IN_PART if 2 * better > len(gaps) else FAILS, text)


def judge_fsc(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """SNEFY-LDL against the Dirichlet, cell by cell and on average (tables 2 and 3)."""
    gaps = list(fsc_gaps(results, study, recipe).values())
    average = paired(fsc(results, study, recipe), fsc(results, study, "dirichlet"))
    if not gaps or average is None:
        return Verdict(MISSING)
    higher, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    lower = sum(gap.worse and gap.clear for gap in gaps)
    text = (
        f"higher in {higher} of {len(gaps)} cells, {clear} clear of zero ({lower} clearly lower); "
        f"average {gap_text(average)}{_beside(results, study, recipe)}"
    )
    if average.n < 2:
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    signs = (2 * higher > len(gaps)) + (average.better and average.clear)
    return Verdict((FAILS, IN_PART, HOLDS)[signs], text)


def _beside(results: Results, study: str, recipe: str) -> str:
    """Coverage and width of both sides: a higher FSC may be bought with either."""
    parts = []
    for name in ("coverage", "width"):
        sides = [Spread.of(conformal(results, study, side, name)) for side in (recipe, "dirichlet")]
        if all(sides):
            parts.append(f"{name} " + " against ".join(f"{side.mean:.3f}" for side in sides if side))
    return f"; {', '.join(parts)}" if parts else ""


def judge_best_query(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
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
    text += f", the lead over the second clear of zero in {sum(leads)}" if won else ""
    others = {name: leaders.count(name) for name in STRATEGIES if name in leaders and name != "SNEFY-LDL"}
    text += "; best instead: " + ", ".join(f"{name} ({count})" for name, count in others.items()) if others else ""
    if min(repeats) < 2:
        return Verdict(OPEN, f"{text}. One repeat only")
    return Verdict(HOLDS if won == len(METRICS) else IN_PART if 2 * won > len(METRICS) else FAILS, text)


def judge_recipe(results: Results, study: str, recipe: str, against: str) -> Verdict:
    """One recipe against another, on the same splits."""
    gaps = recipe_gaps(results, study, recipe, against)
    verdict = _all_better(gaps.values(), "cells", len(gaps))
    parts = []
    for name in ("coverage", "width", "interval_score"):  # of tables 2 and 3 alone
        gap = paired(*(conformal(results, study, one, name) for one in (recipe, against)))
        if gap is not None:
            parts.append(f"{name.replace('_', ' ')} {gap_text(gap)}")
    return Verdict(verdict.word, "; ".join([verdict.evidence, *parts]))


def judge_published(results: Results, tables: Tables, studies: Iterable[str], recipe: str) -> Verdict:
    """Our Weighted against the paper's printed Weighted (tables 6 and 7)."""
    gaps, expected = [], 0
    for study in studies:
        table = tables[study]
        expected += len(LEARNERS) * len(METRICS)
        for learner in LEARNERS:
            for metric, measure in METRICS.items():
                ours = Spread.of(weighting(results, study, recipe, learner, "Weighted", metric))
                printed = table.cells.get((learner, "Weighted", metric))
                gap = unpaired(ours, printed, table.splits, higher=measure.higher) if printed else None
                if gap is not None:
                    gaps.append(gap)
    if not gaps:
        return Verdict(MISSING)
    better, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    text = f"better in {better} of {len(gaps)} cells, {clear} clear of the paper's"
    if len(gaps) < expected:
        return Verdict(OPEN, f"{text}. Of {expected} cells the others have no results")
    return Verdict(HOLDS if better == len(gaps) else IN_PART if 2 * better > len(gaps) else FAILS, text)


def judge_rows(results: Results, tables: Tables, study: str, recipe: str, strategy: str) -> Verdict:
    """Our model after a strategy's query against all printed rows (tables 4 and 5)."""

    def beaten(name: str) -> list[bool]:
        """For each measure, whether our mean is better than all printed ones."""
        wins = []
        for metric, measure in METRICS.items():
            ours = Spread.of(query(results, study, recipe, name, metric))
            if ours is not None:
                sign = 1.0 if measure.higher else -1.0
                printed = [mean for (_, one), (mean, _) in tables[study].cells.items() if one == metric]
                wins.append(all(sign * ours.mean > sign * mean for mean in printed))
        return wins

    wins = beaten(strategy)
    if not wins:
        return Verdict(MISSING)
    text = f"beats all published rows in {sum(wins)} of {len(wins)} measures (random queries: {sum(beaten('Random'))})"
    return Verdict(HOLDS if len(wins) == len(METRICS) and all(wins) else FAILS, text)


def judge_stable(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """Whether the settings of figure A1 stay near their panel's median."""
    gaps = panel_gaps(results, recipe, "median")
    if not gaps:
        return Verdict(MISSING)
    stable = {key: abs(gap.mean) <= STABLE for key, gap in gaps.items()}
    judged = [fine for (name, _, setting), fine in stable.items() if (name, setting) not in NAMED_DROPS]
    (name, level, setting), worst = max(gaps.items(), key=lambda item: abs(item[1].mean))
    text = (
        f"stable in {sum(judged)} of {len(judged)} cases that the paper does not except, in {sum(stable.values())} of "
        f"{len(stable)} in all; the farthest is {name} = {setting} at G = {level}: {signed(worst.mean)}"
    )
    if min(gap.n for gap in gaps.values()) < 2:
        return Verdict(OPEN, f"{text}. One repeat only")
    return Verdict(HOLDS if all(judged) else IN_PART if 2 * sum(judged) > len(judged) else FAILS, text)


def judge_drops(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """Whether coverage drops where the paper saw it drop (figure A1)."""
    gaps = {key: gap for key, gap in panel_gaps(results, recipe, "others").items() if (key[0], key[2]) in NAMED_DROPS}
    if not gaps:
        return Verdict(MISSING)
    drops = sum(gap.clear and gap.mean < 0.0 for gap in gaps.values())
    deepest = min(gap.mean for gap in gaps.values())
    text = f"a clear drop in {drops} of {len(gaps)} cases; the lowest difference is {signed(deepest)}"
    if min(gap.n for gap in gaps.values()) < 2:
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    return Verdict(HOLDS if drops == len(gaps) else IN_PART if 2 * drops > len(gaps) else FAILS, text)


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
    cases: list[Case] = field(default_factory=list)


#: Titles, quotes, rules and captions of the report.
WORDS: dict[str, Any] = json.loads(files("snefy_ldl.paper").joinpath("words.json").read_text(encoding="utf-8"))
Judge = Callable[[Results, Tables, str, str], Verdict]
#: The rules of the paper's claims, as ``words.json`` names them.
JUDGES: dict[str, Judge] = {
    "fsc": judge_fsc,
    "best_query": judge_best_query,
    "random": lambda results, _, study, recipe: _all_better(
        query_gaps(results, study, recipe, "SNEFY-LDL").values(), "measures", len(METRICS)
    ),
    "weighting": lambda results, _, study, recipe: _all_better(
        weighting_gaps(results, study, recipe).values(), "cells", len(LEARNERS) * len(METRICS)
    ),
    "stable": judge_stable,
    "drops": judge_drops,
}


def claims_of_the_paper(results: Results, tables: Tables) -> list[Claim]:
    """The paper's claims, judged for every recipe."""
    return [
        Claim(
            words["title"],
            _places(tables, *words["studies"]),
            words["quote"],
            words["rule"].format(stable=STABLE),
            _cases(results, tables, words["studies"], JUDGES[words["judge"]]),
        )
        for words in WORDS["claims"]
    ]


def claims_of_ours(results: Results, tables: Tables) -> list[Claim]:
    """What the paper could not claim: this library against the paper's own figures and recipe."""
    ensembles, queries, studies, again = (words["studies"] for words in WORDS["beyond"])
    both = {recipe: judge_published(results, tables, ensembles, recipe) for recipe in RECIPES}
    each = _cases(results, tables, ensembles, lambda r, t, study, recipe: judge_published(r, t, (study,), recipe))
    rows = [
        Case(
            f"{_name(tables, study)}, {words}",
            {recipe: judge_rows(results, tables, study, recipe, strategy) for recipe in RECIPES},
        )
        for study in queries
        for strategy, words in QUERIES.items()
    ]
    beside_paper, beside_plain = (
        [Case(_name(tables, study), {"default": judge_recipe(results, study, "default", other)}) for study in names]
        for other, names in (("paper", studies), ("plain", again))
    )
    cases = ([*each, Case("both tables", both)], rows, beside_paper, beside_plain)
    places = (_places(tables, *ensembles), _places(tables, *queries), "Tables 2 to 7", "Tables 2 to 7")
    return [
        Claim(words["title"], place, "", words["rule"], judged)
        for words, place, judged in zip(WORDS["beyond"], places, cases)
    ]


def tally(claims: Iterable[Claim], recipe: str) -> dict[str, int]:
    """How often each verdict was given to a recipe, over claims and data sets."""
    words = [case.verdicts[recipe].word for claim in claims for case in claim.cases if recipe in case.verdicts]
    return {word: words.count(word) for word in MARKS if word in words}


def _cases(results: Results, tables: Tables, studies: Iterable[str], judge: Judge) -> list[Case]:
    return [
        Case(_name(tables, study), {recipe: judge(results, tables, study, recipe) for recipe in RECIPES})
        for study in studies
    ]


def _name(tables: Tables, study: str) -> str:
    if study == "figureA1":
        return DATASETS["natural_scene"]
    return f"{DATASETS[tables[study].dataset]} (table\u00a0{study.removeprefix('table')})"


def _places(tables: Tables, *studies: str) -> str:
    if "figureA1" in studies:
        return "Figure A1"
    return "; ".join(tables[study].place for study in studies)
