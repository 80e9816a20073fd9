"""The comparisons of the report: which figure is held against which, study by study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from snefy_ldl.paper.analysis import METRICS, Gap, Results, Series, Spread, paired
from snefy_ldl.paper.published import PublishedTable

__all__ = [
    "DATASETS",
    "LEARNERS",
    "LEVELS",
    "PANELS",
    "QUERIES",
    "STRATEGIES",
    "fsc",
    "fsc_gaps",
    "mean_series",
    "panel_gaps",
    "panel_settings",
    "query",
    "query_gaps",
    "recipe_gaps",
    "weighting",
    "weighting_gaps",
]

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


def fsc_gaps(results: Results, study: str, side: str, against: str = "dirichlet") -> Gaps:
    """One difference in coverage for each label and level."""
    pairs = {
        (level, str(label)): paired(fsc(results, study, side, level, label), fsc(results, study, against, level, label))
        for level in LEVELS
        for label in range(len(labels_of(results, study)))
    }
    return {key: gap for key, gap in pairs.items() if gap is not None}


def query(results: Results, study: str, recipe: str, strategy: str, metric: str) -> Series:
    """A score after a strategy's query (tables 4 and 5); "start" is the model before it."""
    if strategy == "start":
        return results.series(study, recipe, "start", metric)
    return results.series(study, recipe, "strategies", strategy, metric)


def query_gaps(results: Results, study: str, recipe: str, strategy: str, against: str = "Random") -> Gaps:
    """One difference between two strategies for each measure."""
    pairs = {
        (metric,): paired(
            query(results, study, recipe, strategy, metric),
            query(results, study, recipe, against, metric),
            higher=METRICS[metric].higher,
        )
        for metric in METRICS
    }
    return {key: gap for key, gap in pairs.items() if gap is not None}


def weighting(results: Results, study: str, recipe: str, learner: str, kind: str, metric: str) -> Series:
    """A score of an ensemble (tables 6 and 7); kind is "Average" or "Weighted"."""
    return results.series(study, recipe, "learners", learner, kind, metric)


def weighting_gaps(results: Results, study: str, recipe: str) -> Gaps:
    """Weighted against Average for each learner and measure."""
    pairs = {
        (learner, metric): paired(
            weighting(results, study, recipe, learner, "Weighted", metric),
            weighting(results, study, recipe, learner, "Average", metric),
            higher=METRICS[metric].higher,
        )
        for learner in LEARNERS
        for metric in METRICS
    }
    return {key: gap for key, gap in pairs.items() if gap is not None}


def recipe_gaps(results: Results, study: str) -> Gaps:
    """The default recipe against the paper's on the same splits: each cell of a table in which SNEFY-LDL has a part."""
    if study in ("table2", "table3"):
        return fsc_gaps(results, study, "default", "paper")
    pairs: dict[tuple[str, ...], Gap | None] = {}
    for metric, measure in METRICS.items():
        if study in ("table4", "table5"):
            sides = [query(results, study, recipe, "SNEFY-LDL", metric) for recipe in ("default", "paper")]
            pairs[metric,] = paired(*sides, higher=measure.higher)
        else:
            for learner in LEARNERS:
                sides = [
                    weighting(results, study, recipe, learner, "Weighted", metric) for recipe in ("default", "paper")
                ]
                pairs[learner, metric] = paired(*sides, higher=measure.higher)
    return {key: gap for key, gap in pairs.items() if gap is not None}


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
        recipe: "paper" or "default".
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
