"""Figure A1: the conformal study with n, m, the batch size or the epochs changed, one at a time.

A *part* is one distinct setting, and a task trains one part over several splits. A record holds the parts that are
done; the next run adds what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.estimator import fit_many
from snefy_ldl.paper.config import Sensitivity, Study
from snefy_ldl.paper.studies.common import Outcome, make_model, parted_rows
from snefy_ldl.paper.studies.conformal import ceilings, interval_figures

__all__ = ["merge", "missing", "parts", "relative_cost", "run"]

#: The part in which nothing is changed; every panel that holds the recipe's own value shares it.
BASE = "base"


def parts(study: Study, recipe: str) -> dict[str, dict[str, int]]:
    """Distinct settings by name, each as changes to the recipe's model.

    Example:
        >>> from snefy_ldl.paper.config import STUDIES
        >>> grid = parts(STUDIES["figureA1"], "paper")
        >>> len(grid), grid["n_neurons=16"]
        (21, {'n_neurons': 16})
    """
    changes: dict[str, dict[str, int]] = {}
    for panel, values in _protocol(study).panels:
        for value in values:
            name = _part(study, recipe, panel, value)
            changes[name] = {} if name == BASE else {panel: value}
    return changes


def missing(study: Study, recipe: str, figures: Any) -> list[str]:
    """The parts that some panel of a record still needs."""
    panels = figures.get("panels", {}) if isinstance(figures, dict) else {}
    wanted: dict[str, None] = {}
    for panel, values in _protocol(study).panels:
        for value in values:
            if str(value) not in panels.get(panel, {}):
                wanted[_part(study, recipe, panel, value)] = None
    return list(wanted)


def merge(study: Study, recipe: str, part: str, figures: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A record's figures with one more part in every panel that shows it; values in the order of the grid."""
    held = (figures or {}).get("panels", {})
    panels: dict[str, Any] = {}
    for panel, values in _protocol(study).panels:
        shown = dict(held.get(panel, {}))
        for value in values:
            if _part(study, recipe, panel, value) == part:
                shown[str(value)] = new["setting"]
        panels[panel] = dict(sorted(shown.items(), key=lambda item: int(item[0])))
    return {"panels": panels, "ceiling": new["ceiling"]}


def relative_cost(study: Study, recipe: str, part: str) -> float:
    """Rough cost of a part against the others, for the order of the tasks and the time left."""
    model = make_model(study, recipe, **parts(study, recipe)[part])
    batch = 64 if model.batch_size == "auto" else model.batch_size
    return float(model.epochs / 100 * (0.3 + 64 / batch) * (0.5 + (model.n_neurons / 64) ** 1.5))


def run(study: Study, recipe: str, part: str, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """Fit, calibrate and measure one setting over some splits.

    Args:
        study: whose protocol is a :class:`Sensitivity`.
        recipe: ``"paper"`` or ``"default"``.
        part: a name of :func:`parts`.
        repeats: numbers of the splits; their models are trained together.
        data: features and label distributions.
    """
    protocol = _protocol(study).protocol
    splits = [parted_rows(len(data.D), repeat, protocol.train, protocol.calibration) for repeat in repeats]
    models = fit_many(
        make_model(study, recipe, **parts(study, recipe)[part]),
        data.X,
        data.D,
        [train for train, _, _ in splits],
        [{"random_state": repeat} for repeat in repeats],
        n_jobs=1,
    )
    outcomes = []
    for repeat, model, (_, calibration, test) in zip(repeats, models, splits):
        intervals = ConformalIntervals(model, protocol.level, protocol.score)
        intervals.conformalize(data.X[calibration], data.D[calibration])
        ends = intervals.predict_interval(data.X[test])
        figures = interval_figures(protocol, data.D[test], data.X[test, 0], ends)
        setting = {
            "fsc": {count: float(np.mean(labels)) for count, labels in figures["fsc"].items()},
            "coverage": float(np.mean(figures["coverage"])),
            "width": float(np.mean(figures["width"])),
        }
        outcomes.append(Outcome(recipe, repeat, {"setting": setting, "ceiling": ceilings(protocol, data.X[test, 0])}))
    return outcomes


def _protocol(study: Study) -> Sensitivity:
    assert isinstance(study.protocol, Sensitivity)
    return study.protocol


def _part(study: Study, recipe: str, panel: str, value: int) -> str:
    return BASE if getattr(make_model(study, recipe), panel) == value else f"{panel}={value}"
