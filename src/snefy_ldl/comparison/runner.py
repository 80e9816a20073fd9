"""The fits of a comparison: one piece of work at a time or on several processes, each written down when done."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from snefy_ldl import metrics
from snefy_ldl._progress import Progress
from snefy_ldl.comparison.plan import Plan, TestSet, Unit
from snefy_ldl.errors import ClosureNote, ModelFileError, TrainingWarning, ZeroLabelWarning
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.files.atomic import read_json, write_json
from snefy_ldl.learners.base import close_rows, share_floor
from snefy_ldl.many import fit_many
from snefy_ldl.tuning.search import Fold
from snefy_ldl.validation.rows import take_rows

__all__ = ["run_plan"]

#: Scores and times of one piece of work, or the words of its failure; plain JSON values.
Record = dict[str, Any]


def run_plan(plan: Plan, folder: str | os.PathLike[str] | None, n_jobs: int | None, verbose: int) -> dict[Unit, Record]:
    """Do every piece of work that the folder does not hold yet.

    Args:
        plan: What to do.
        folder: Where results are kept, one file a piece of work; None keeps none.
        n_jobs: Processes; None is one.
        verbose: 1 shows a progress bar.

    Returns:
        A record of each piece of work.
    """
    store = None if folder is None else Path(folder)
    units = list(plan.units())
    records = {unit: record for unit in units if (record := _read(store, unit)) is not None}
    todo = [unit for unit in units if unit not in records]
    with Progress("compare", len(units), show=verbose >= 1, completed=len(records)) as progress:
        for unit, record in _work(plan, todo, n_jobs):
            records[unit] = record
            if store is not None and "error" not in record:  # what failed is tried again
                write_json(store / f"{unit.signature}.json", record)
            progress.update(progress.completed + 1, f"{plan.names[unit.learner]}, {plan.sets[unit.data].name}")
    return records


def _read(store: Path | None, unit: Unit) -> Record | None:
    """The record of an earlier run; a file that cannot be read is as good as none."""
    if store is None or not (store / f"{unit.signature}.json").is_file():
        return None
    try:
        record = read_json(store / f"{unit.signature}.json")
    except ModelFileError:
        return None
    return record if isinstance(record, dict) and "scores" in record else None


def _work(plan: Plan, units: list[Unit], n_jobs: int | None) -> Iterator[tuple[Unit, Record]]:
    if n_jobs in (None, 1) or len(units) < 2:
        for unit in units:
            yield unit, _score_folds(plan.model(unit), plan.sets[unit.data], _folds(plan, unit), plan.measures, None)
        return
    calls = (
        delayed(_numbered)(k, plan.model(unit), plan.sets[unit.data], _folds(plan, unit), plan.measures)
        for k, unit in enumerate(units)
    )
    for k, record in Parallel(n_jobs=n_jobs, return_as="generator_unordered")(calls):
        yield units[k], record


def _folds(plan: Plan, unit: Unit) -> list[Fold]:
    return plan.folds[unit.data][unit.repeat]


def _numbered(k: int, model: Any, data: TestSet, folds: list[Fold], measures: list[str]) -> tuple[int, Record]:
    """In a process among others: one thread each, and no processes of its own."""
    with threadpool_limits(1):
        return k, _score_folds(model, data, folds, measures, 1)


def _score_folds(model: Any, data: TestSet, folds: list[Fold], measures: list[str], n_jobs: int | None) -> Record:
    """Fit one clone a fold, and score it on the rows it has not seen."""
    scores: dict[str, list[float]] = {name: [] for name in measures}
    floor = share_floor(data.D)
    fit_seconds, predict_seconds = [], []
    try:
        with warnings.catch_warnings():
            for kind in (TrainingWarning, ZeroLabelWarning, ClosureNote):
                warnings.simplefilter("ignore", kind)  # would be said once a fold
            for fitted, seconds, (_, test) in _fitted(model, data, folds, n_jobs):
                started = time.perf_counter()
                shares = np.asarray(fitted.predict(take_rows(data.X, test)), dtype=np.float64)
                predict_seconds.append(time.perf_counter() - started)
                fit_seconds.append(seconds)
                for name in measures:
                    value = float(getattr(metrics, name)(data.D[test], close_rows(shares, floor)))
                    scores[name].append(value)
    except Exception as error:  # one learner's failure must not lose the others' work
        return {"error": f"{type(error).__name__}: {error}"}
    return {"scores": scores, "fit_seconds": fit_seconds, "predict_seconds": predict_seconds}


def _fitted(model: Any, data: TestSet, folds: list[Fold], n_jobs: int | None) -> Iterator[tuple[Any, float, Fold]]:
    """Fitted clones with the seconds of a fit; stacked fits share their time."""
    started = time.perf_counter()
    trains = [train for train, _ in folds]
    if type(model) is SnefyLDL and model.backbone is None:  # a subclass may fit in its own way
        models = fit_many(model, data.X, data.labels, trains, n_jobs=n_jobs)
    elif callable(getattr(model, "fit_folds", None)):
        models = list(model.fit_folds(data.X, data.labels, trains))
    else:
        for fold in folds:
            started = time.perf_counter()
            one = clone(model).fit(take_rows(data.X, fold[0]), take_rows(data.labels, fold[0]))
            yield one, time.perf_counter() - started, fold
        return
    seconds = (time.perf_counter() - started) / len(folds)
    for one, fold in zip(models, folds):
        yield one, seconds, fold
