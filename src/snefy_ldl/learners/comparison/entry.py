"""The call: any learners, one's own data, a table that says which differences are more than luck."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.random import seed_from
from snefy_ldl.errors import TrainingWarning
from snefy_ldl.learners.comparison.plan import Plan
from snefy_ldl.learners.comparison.result import Comparison
from snefy_ldl.learners.comparison.runner import run_plan

__all__ = ["compare"]


def compare(
    learners: Any,
    X: Any,
    D: Any = None,
    *,
    cv: Any = 10,
    repeats: int = 1,
    measures: Sequence[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    random_state: Any = 0,
    verbose: int = 0,
) -> Comparison:
    """Score learners by repeated cross-validation on the same folds.

    All folds of a ``SnefyLDL`` train as one stack. A learner that fails is left out of the tables with a warning.

    Args:
        learners: Name to learner: the library's, your own (``fit``, ``predict``), or scikit-learn regressors, which are
            wrapped as :class:`RegressorLDL`. A sequence takes the names of the classes. They are cloned, not changed.
        X: Features (N, d); or several data sets, name to ``(X, D)`` or to a ``Dataset``, with ``D`` left out.
        D: Label distributions (N, L).
        cv: Number of folds, shuffled; or, without repeats, a splitter or (train, test) pairs of row numbers.
        repeats: Cross-validations, each with the rows shuffled anew.
        measures: Names out of ``metrics.MEASURES``; the six of Geng (2016) by default.
        checkpoint: Folder where each finished piece is kept. A comparison that was stopped goes on from it, and one
            with a learner, a data set or repeats more fits only what is new.
        n_jobs: Processes; one by default, -1 takes all cores.
        random_state: Seed of the folds, and of learners that have none.
        verbose: 1 shows a progress bar on stderr.

    Returns:
        Means, tests and times; tables and a picture.

    Raises:
        InputError: Learners, data, folds or measures break a rule; before any work starts.

    Example:
        >>> from snefy_ldl.learners import AAKNN, SABFGS
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> result = compare({"linear": SABFGS(), "neighbours": AAKNN()}, city.X, city.D, cv=3, repeats=2)
        >>> result.best("kl_divergence"), result.mean("kl_divergence").shape
        ('linear', (1, 2))
    """
    plan = Plan.of(learners, X, D, cv, repeats, measures, seed_from(random_state))
    records = run_plan(plan, checkpoint, n_jobs, verbose)
    shape = (len(plan.sets), len(plan.names))
    n_folds = [sum(len(folds) for folds in plan.folds[d]) for d in range(shape[0])]
    scores = {name: [np.full((shape[1], n), np.nan) for n in n_folds] for name in plan.measures}
    fit_seconds, predict_seconds = np.full(shape, np.nan), np.full(shape, np.nan)
    errors: dict[tuple[str, str], str] = {}
    for d, data in enumerate(plan.sets):
        for k, name in enumerate(plan.names):
            parts = [
                records[unit] for unit in sorted(records, key=lambda u: u.repeat) if (unit.data, unit.learner) == (d, k)
            ]
            failures = [part["error"] for part in parts if "error" in part]
            if failures:
                errors[data.name, name] = failures[0]
                warnings.warn(f"{name} failed on {data.name}: {failures[0]}", TrainingWarning, stacklevel=2)
                continue
            for measure in plan.measures:
                scores[measure][d][k] = np.concatenate([part["scores"][measure] for part in parts])
            fit_seconds[d, k] = np.mean(np.concatenate([part["fit_seconds"] for part in parts]))
            predict_seconds[d, k] = np.mean(np.concatenate([part["predict_seconds"] for part in parts]))
    ratios = [
        float(np.mean([len(test) / len(train) for folds in plan.folds[d] for train, test in folds]))
        for d in range(shape[0])
    ]
    return Comparison(
        learners=plan.names,
        data_sets=[data.name for data in plan.sets],
        measures=plan.measures,
        scores=scores,
        fit_seconds=fit_seconds,
        predict_seconds=predict_seconds,
        test_to_train=ratios,
        repeats=repeats,
        errors=errors,
    )
