"""Everything the experiments depend on, in one place: data sets, splits, strategies, learners, grids and repeats.

Nothing here is computed and nothing heavy is imported, so that ``--help`` answers at once. What decides a figure is
part of its fingerprint (:mod:`reproduction.runner`); a changed setting makes the old results stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Raise it when the code of a study, or of what it uses, changes what a figure means: old results are then stale.
RESULTS_VERSION = 2
#: Settings as pairs, so that they can be frozen.
Options = tuple[tuple[str, object], ...]
#: The open choices, all combined: "normal" starts at ``W1 ~ N(0, 2/L)`` as PyLDL does, "linear" as ``torch.nn.Linear``.
GRID: dict[str, Options] = {
    f"{optimizer}-{rate:g}-{scaling}-{start}": (
        ("scaling", scaling),
        ("optimizer", optimizer),
        ("learning_rate", rate),
        ("start", start),
    )
    for optimizer, rates in (("adam", (1e-4, 1e-3, 1e-2)), ("sgd", (1e-3, 1e-2, 1e-1)))
    for rate in rates
    for scaling in ("raw", "standard")
    for start in ("normal", "linear")
}
#: What ``python -m reproduction --grid`` found: the setting nearest to the printed cells, and how far each one is.
NEAREST_FILE = Path(__file__).with_name("nearest.json")
NEAREST: dict[str, Any] = json.loads(NEAREST_FILE.read_text()) if NEAREST_FILE.exists() else {}
#: Ways to train the density, as arguments of ``SnefyLDL.paper``: the paper leaves scaling, optimiser, rate and start
#: open. "nearest" was chosen on splits that are not reported. "default" is ``SnefyLDL()``, our own.
RECIPES: dict[str, Options] = {
    "raw": GRID["adam-0.001-raw-normal"],
    "standard": GRID["adam-0.001-standard-normal"],
    "nearest": GRID[NEAREST.get("recipe", "adam-0.001-standard-normal")],
    "default": (),
}


@dataclass(frozen=True)
class Conformal:
    """Tables 2 and 3: calibrated intervals of each label's share (Algorithm A1), judged by their worst group.

    Args:
        train: share of the rows to train on; the paper has 50 %.
        calibration: share of the rows to calibrate on; the rest is the test.
        level: confidence level, ``1 - 1/k²`` in the paper.
        groups: numbers G of equal-width bins of the first feature.
        score: the paper's conformity score.
    """

    train: float = 0.5
    calibration: float = 0.25
    level: float = 0.9
    groups: tuple[int, ...] = (2, 4, 8)
    score: str = "chebyshev"


@dataclass(frozen=True)
class Query:
    """A row of tables 4 and 5.

    Args:
        name: its name there.
        strategy: its name in :mod:`reproduction.strategies`, or of :func:`snefy_ldl.active.strategy`.
        options: of the strategy.
    """

    name: str
    strategy: str
    options: Options = ()


#: The paper's own query: the entropy of the density by uniform importance sampling (A2).
QUERY = Query("SNEFY-LDL", "entropy", (("method", "uniform"), ("n_draws", 1000)))


@dataclass(frozen=True)
class Active:
    """Tables 4 and 5: some labels, a query for more, and the retrained model's scores (Algorithms A2 and A3).

    Args:
        test: share of the rows kept for the test.
        first: labels at the start.
        queried: labels that each strategy may ask for.
        queries: the strategies. "SNEFY-LDL" is the paper's entropy, by uniform importance sampling (A2).
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
        QUERY,
    )


@dataclass(frozen=True)
class Ensemble:
    """Tables 6 and 7: bags of a few rows each, averaged plainly or weighted by the density (Algorithm A4).

    Args:
        test: share of the rows kept for the test.
        members: learners in a bag.
        rows: rows each of them is fitted to, drawn without replacement.
        learners: name in the table, the class in :mod:`snefy_ldl.learners`, and settings of its own. LDL-LRR chooses
            ``alpha`` by left-out rows, as its authors do; the default of their code makes it SA-BFGS.
        settings: of every learner. Features as they are and no penalty, as these learners were published: members that
            saw a few rows each must differ to be worth choosing from, and a penalty makes them alike. Settled on
            training rows of two splits beyond those that are reported.
        shared: whether the recipes share the members, and so a task.
    """

    test: float = 0.1
    members: int = 25
    rows: int = 50
    learners: tuple[tuple[str, str, Options], ...] = (
        ("SA-BFGS", "SABFGS", ()),
        ("DF-LDL", "DFLDL", ()),
        ("LDL-SCL", "LDLSCL", ()),
        ("LDL-LRR", "LDLLRR", ()),
        ("LDL-LRR, alpha .001", "LDLLRR", (("alpha", 1e-3),)),
    )
    settings: Options = (("l2", 0.0), ("standardize", False))
    shared: bool = True


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
        model: changes to the settings of every density, for trials.
        first: number of the first repeat; the reported ones start at 0.
    """

    name: str
    dataset: str
    protocol: Conformal | Active | Ensemble | Sensitivity
    repeats: int
    chunk: int
    model: Options = ()
    first: int = 0

    @property
    def numbers(self) -> range:
        """Numbers of its repeats."""
        return range(self.first, self.first + self.repeats)

    def recipes(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The recipes that are wanted, and the baseline; figure A1 varies the paper's model, so not the default.

        Args:
            wanted: Names of recipes.

        Returns:
            Names of recipes, ``"baseline"`` last.
        """
        skipped = {"default"} if isinstance(self.protocol, Sensitivity) else set()
        return (*(recipe for recipe in wanted if recipe not in skipped), "baseline")


_ALL = (
    Study("table2", "natural_scene", Conformal(), 100, 8),
    Study("table3", "sbu_3dfe", Conformal(), 100, 8),
    Study("table4", "movie", Active(), 10, 1),
    Study("table5", "natural_scene", Active(), 10, 1),
    Study("table6", "sbu_3dfe", Ensemble(), 10, 2),
    Study("table7", "sjaffe", Ensemble(), 10, 2),
    Study("figureA1", "natural_scene", Sensitivity(), 10, 5),
)
#: The paper's experiments, by name.
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

#: The number of the first split that the grid uses: none of those that are reported.
GRID_SPLITS = 1000
#: What the grid runs: fewer splits of every table, two of the queries and one of the learners.
GRID_STUDIES = tuple(
    replace(STUDIES[name], protocol=protocol or STUDIES[name].protocol, repeats=repeats, chunk=4, first=GRID_SPLITS)
    for name, protocol, repeats in (
        ("table2", None, 4),
        ("table3", None, 4),
        ("table4", Active(queries=(Query("Random", "random"), QUERY)), 1),
        ("table5", Active(queries=(Query("Random", "random"), QUERY)), 2),
        ("table6", Ensemble(learners=(("SA-BFGS", "SABFGS", ()),), shared=False), 1),
        ("table7", Ensemble(learners=(("SA-BFGS", "SABFGS", ()),), shared=False), 2),
    )
)

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
