"""Everything the experiments depend on, in one place: data sets, splits, strategies, learners, grids and repeats.

Nothing here is computed and nothing heavy is imported, so that ``--help`` answers at once. What decides a figure is
part of its fingerprint (:mod:`reproduction.runner`); a changed setting makes the old results stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

#: Raise it when the code of a study, or of what it uses, changes what a figure means: old results are then stale.
RESULTS_VERSION = 1
#: Ways to train the density: as the paper describes it, as ``SnefyLDL()`` of version 0.1 did, and as it does today.
RECIPES = ("paper", "plain", "default")
#: Settings as pairs, so that they can be frozen.
Options = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Conformal:
    """Tables 2 and 3: calibrated intervals of each label's share (Algorithm A1), judged by their worst group.

    Args:
        train: share of the rows to train on; the paper has 50 %.
        calibration: share of the rows to calibrate on; the rest is the test.
        level: confidence level, ``1 - 1/k²`` in the paper.
        groups: numbers G of equal-width bins of the first feature.
        score: the paper's conformity score.
        extra_score: one of our own beside it.
    """

    train: float = 0.5
    calibration: float = 0.25
    level: float = 0.9
    groups: tuple[int, ...] = (2, 4, 8)
    score: str = "chebyshev"
    extra_score: str = "quantile"


@dataclass(frozen=True)
class Query:
    """A row of tables 4 and 5.

    Args:
        name: its name there.
        strategy: its name in :mod:`reproduction.strategies`, or of :func:`snefy_ldl.active.query`.
        options: of the strategy.
        recipes: the recipes it is run with.
    """

    name: str
    strategy: str
    options: Options = ()
    recipes: tuple[str, ...] = RECIPES


@dataclass(frozen=True)
class Active:
    """Tables 4 and 5: some labels, a query for more, and the retrained model's scores (Algorithms A2 and A3).

    Args:
        test: share of the rows kept for the test.
        first: labels at the start.
        queried: labels that each strategy may ask for.
        queries: the strategies. "SNEFY-LDL" is the paper's entropy, by uniform importance sampling (A2); "entropy" is
            the same quantity by exact draws, our own extra, not with the paper's recipe: under it the terms of the
            density nearly cancel, and one exact draw costs about a hundred tries.
    """

    test: float = 0.1
    first: int = 400
    queried: int = 100
    queries: tuple[Query, ...] = (
        Query("Random", "random"),
        Query("Kmeans", "kmeans"),
        Query("CoreSet", "coreset"),
        Query("Graph Density", "graph_density"),
        Query("Dirichlet", "dirichlet"),
        Query("SNEFY-LDL", "entropy", (("method", "uniform"), ("n_draws", 1000))),
        Query("entropy", "entropy", (("method", "model"), ("n_draws", 400)), recipes=("plain", "default")),
    )


@dataclass(frozen=True)
class Ensemble:
    """Tables 6 and 7: bags of a few rows each, averaged plainly or weighted by the density (Algorithm A4).

    Args:
        test: share of the rows kept for the test.
        members: learners in a bag.
        rows: rows each of them is fitted to, drawn without replacement.
        learners: name in the table, and the class in :mod:`snefy_ldl.learners`.
        settings: of every learner. Features as they are and no penalty, as these learners were published: members that
            saw a few rows each must differ to be worth choosing from, and a penalty makes them alike. Settled on
            training rows of two splits beyond those that are reported.
    """

    test: float = 0.1
    members: int = 25
    rows: int = 50
    learners: tuple[tuple[str, str], ...] = (
        ("SA-BFGS", "SABFGS"),
        ("DF-LDL", "DFLDL"),
        ("LDL-SCL", "LDLSCL"),
        ("LDL-LRR", "LDLLRR"),
    )
    settings: Options = (("l2", 0.0), ("standardize", False))


@dataclass(frozen=True)
class Sensitivity:
    """Figure A1: the conformal study again, one of four settings varied at a time.

    Args:
        protocol: splits, level and groups.
        panels: setting of :class:`~snefy_ldl.SnefyLDL`, and its values. The paper names m = 48 and 96 and batch sizes
            32 and 96; the rest of the grid is ours.
    """

    protocol: Conformal = Conformal(groups=(2, 4))
    panels: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("n_neurons", (16, 32, 48, 64, 96, 128)),
        ("n_readouts", (16, 32, 48, 64, 96, 128)),
        ("batch_size", (16, 32, 48, 64, 96, 128)),
        ("epochs", (25, 50, 75, 100, 150, 200)),
    )


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper.

    Args:
        name: ``"table3"``, say; also the folder of its results.
        dataset: a name that :func:`snefy_ldl.load_dataset` knows.
        protocol: how it is run.
        repeats: random splits in a full run, as many as the paper has.
        chunk: repeats that one task trains together; it decides speed, and no more than the last bits of a figure.
        baseline: whether something beside the recipes is measured, under the recipe ``"baseline"``.
        model: changes to the settings of every density, for trials.
    """

    name: str
    dataset: str
    protocol: Conformal | Active | Ensemble | Sensitivity
    repeats: int
    chunk: int
    baseline: bool = False
    model: Options = ()

    def recipes(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The recipes that are wanted, in order, and the baseline if there is one.

        Args:
            wanted: Names of recipes.

        Returns:
            Names of recipes, ``"baseline"`` last.
        """
        return (*(recipe for recipe in RECIPES if recipe in wanted), *(("baseline",) if self.baseline else ()))


_ALL = (
    Study("table2", "natural_scene", Conformal(), 100, 8, baseline=True),
    Study("table3", "sbu_3dfe", Conformal(), 100, 8, baseline=True),
    Study("table4", "movie", Active(), 10, 2),
    Study("table5", "natural_scene", Active(), 10, 2),
    Study("table6", "sbu_3dfe", Ensemble(), 10, 2),
    Study("table7", "sjaffe", Ensemble(), 10, 2),
    Study("figureA1", "natural_scene", Sensitivity(), 10, 5),
)
#: The paper's experiments, by name.
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

#: Repeats of a quick run, by kind of study.
QUICK_REPEATS: dict[type, int] = {Conformal: 4, Active: 2, Ensemble: 2, Sensitivity: 1}
#: The grid of a quick run: both ends, the paper's own value and one that it names.
QUICK_PANELS = (
    ("n_neurons", (16, 64, 128)),
    ("n_readouts", (16, 32, 96)),
    ("batch_size", (32, 64, 128)),
    ("epochs", (25, 100)),
)


def quick(study: Study) -> Study:
    """A study with a few repeats, and on a thinner grid.

    Example:
        >>> quick(STUDIES["table3"]).repeats
        4
    """
    protocol, repeats = study.protocol, QUICK_REPEATS[type(study.protocol)]
    if isinstance(protocol, Sensitivity):
        protocol = replace(protocol, panels=QUICK_PANELS)
    return replace(study, protocol=protocol, repeats=min(repeats, study.repeats))


def select(names: Sequence[str]) -> list[Study]:
    """Studies by name, in the paper's order; ``"all"``, or no name, selects all.

    Example:
        >>> [study.name for study in select(["table3", "table2"])]
        ['table2', 'table3']
    """
    known = {name.lower(): name for name in STUDIES}
    wanted: set[str] = set()
    for name in names or ["all"]:
        if name.lower() == "all":
            wanted.update(STUDIES)
        elif name.lower() in known:
            wanted.add(known[name.lower()])
        else:
            from snefy_ldl.errors import InputError  # loads scikit-learn: a second that --help need not wait

            raise InputError(f"there is no study {name!r}; use {', '.join(STUDIES)} or all.")
    return [study for study in STUDIES.values() if study.name in wanted]
