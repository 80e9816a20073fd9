"""The four families of studies at a size that runs in seconds, and ways to run and compare them."""

from __future__ import annotations

import json
from pathlib import Path

from reproduction import runner
from reproduction.config import Active, Conformal, Ensemble, Query, Sensitivity, Study
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.dataset import Dataset

TINY = (("n_neurons", 6), ("n_readouts", 3), ("hidden_sizes", (8,)), ("epochs", 3), ("guides", None))
QUERIES = (
    Query("Random", "random"),
    Query("Kmeans", "kmeans"),
    Query("Dirichlet", "dirichlet"),
    Query("SNEFY-LDL", "entropy", (("method", "uniform"), ("n_draws", 50))),
)
GRID = Sensitivity(Conformal(groups=(2,)), (("n_neurons", (4, 6)), ("epochs", (2, 3))))
STUDIES = {
    "conformal": Study("table3", "city", Conformal(groups=(2, 4)), 5, 3, model=TINY),
    "active": Study("table4", "city", Active(first=40, queried=10, queries=QUERIES), 3, 2, model=TINY),
    "ensemble": Study("table6", "city", Ensemble(members=4, rows=20), 3, 2, model=TINY),
    "figure": Study("figureA1", "city", GRID, 3, 2, model=TINY),
}


def tiny_data(name: str) -> Dataset:
    """A made-up city in place of a data set; importable, so that worker processes can load it."""
    return make_city_districts(n=160, random_state=3)


def run(studies, out, **options):
    return runner.reproduce(studies, out, loader=tiny_data, **{"jobs": 1, **options})


def records(out: Path) -> dict[str, dict]:
    """Every record by its place, without what may differ: the time it took."""
    found = {}
    for path in sorted(out.glob("results/*/*/*.json")):
        record = json.loads(path.read_text())
        assert record.pop("seconds") >= 0.0
        found[path.relative_to(out).as_posix()] = record
    return found


def those(found: dict[str, dict], *words: str) -> dict[str, dict]:
    """Records whose place holds one of these words."""
    return {place: record for place, record in found.items() if any(word in place for word in words)}
