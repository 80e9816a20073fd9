"""Hyperparameter search: every setting on every fold, trained side by side through ``fit_many``."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from snefy_ldl import metrics
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation.rows import as_rows, count_rows, take_rows
from snefy_ldl.errors import InputError, TrainingError, TrainingWarning
from snefy_ldl.estimator import SnefyLDL, fit_many
from snefy_ldl.training import TrainingData
from snefy_ldl.tuning.result import TuneResult, score_table
from snefy_ldl.tuning.space import Fold, Space, check_estimator, check_scoring, last_step, list_folds, list_settings

Scoring = str | Callable[[SnefyLDL, Any, Any], float]

#: Models handed to ``fit_many`` at a time, a CPU process and a GPU: enough for full stacks, and the bar moves.
CPU_MODELS, GPU_MODELS = 16, 1024
#: Settings that may differ inside one stack.
STACKED = ("learning_rate", "weight_decay", "random_state")


def tune(
    estimator: SnefyLDL,
    X: Any,
    D: Any = None,
    space: Space | None = None,
    *,
    counts: Any = None,
    sample_weight: Any = None,
    cv: Any = 5,
    n_iter: int | None = None,
    scoring: Scoring = "log_likelihood",
    refit: bool = True,
    random_state: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> TuneResult:
    """Search settings by cross-validation, all folds of all settings trained together.

    Each score is the one a lone fit on the fold's training rows would get; fits that differ in learning rate, weight
    decay, seed or rows only share a stack. Hand in training rows only: the best of many scores is an optimistic one.

    Args:
        estimator: the settings that stay; left unfitted. Without a ``random_state`` of its own every fit gets one and
            the same seed, so that settings are compared on equal terms.
        X: features, as :meth:`SnefyLDL.fit` takes them.
        D: label distributions (N, L); or ``counts``.
        space: for each parameter a list of values, or with ``n_iter`` a ``scipy.stats`` distribution; or a list of
            such dicts.
        counts: votes (N, L) instead of label distributions.
        sample_weight: row weights (N,), in the fits and the scores.
        cv: number of folds (shuffled), a scikit-learn splitter, or (train, test) pairs of row numbers.
        n_iter: None tries the full grid; a number draws that many settings.
        scoring: ``"log_likelihood"``, ``"kl"``, another measure of :func:`snefy_ldl.metrics.points.score` (of the mean
            prediction; votes count as their proportions), or a function ``(model, X, D) -> number``, higher is better.
        refit: whether to fit the best setting to all rows.
        random_state: seed of the folds, of the draws, and of the fits where ``estimator`` has none.
        n_jobs: processes on a CPU; all cores by default.
        verbose: 1 shows progress on stderr.

    Returns:
        Scores of all settings, and the best of them, refitted.

    Raises:
        InputError: where data, space, folds or score break a rule; before any work starts.
        TrainingError: where no setting could be trained on every fold.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> base = SnefyLDL(n_neurons=8, n_readouts=4, epochs=3, random_state=0)
        >>> result = tune(base, city.X, city.D, {"learning_rate": [1e-4, 1e-2]}, cv=3, random_state=0, n_jobs=1)
        >>> result.best_params_, result.best_estimator_.predict(city.X[:2]).shape
        ({'learning_rate': 0.01}, (2, 3))
    """
    started = time.perf_counter()
    name, higher = check_scoring(scoring)
    seed = seed_from(random_state)
    settings = list_settings(estimator, space, n_iter, seed, name)
    checked = check_estimator(estimator)
    last = last_step(estimator)
    if last is None:
        data = TrainingData(X, D, counts, sample_weight, checked.backbone, checked.columns)
    else:  # only the transformers know what X is; the labels are checked beside a column of zeros
        data = TrainingData(np.zeros((count_rows(as_rows(X)), 1)), D, counts, sample_weight, None)
    if data.partial is not None or not np.isfinite(data.labels).all():
        raise InputError("tune scores whole votes only; drop the rows whose counts hold a missing label.")
    folds = list_folds(cv, data.n_rows, seed)
    base = clone(estimator)
    if check_estimator(base).random_state is None:
        base.set_params(**{"random_state" if last is None else f"{last}__random_state": seed})
    kind = Search if last is None else PipelineSearch
    search = kind(base, X, D, counts, sample_weight, data, folds, settings, scoring, n_jobs)
    table = score_table(settings, search.scores(verbose), higher)
    if not np.isfinite(table["mean_test_score"]).any():
        raise TrainingError("no setting could be trained on every fold; lower the learning rates in the space.")
    best = int(np.argmin(table["rank_test_score"]))
    model = None
    if refit:
        model = clone(base).set_params(**settings[best])
        given = {"counts": counts, "sample_weight": sample_weight}
        if last is not None:
            given = {f"{last}__{name}": value for name, value in given.items() if value is not None}
        model = model.fit(X, D, **given)
    return TuneResult(
        best_params_=dict(settings[best]),
        best_score_=float(table["mean_test_score"][best]),
        best_index_=best,
        best_estimator_=model,
        cv_results_=table,
        scoring=name,
        higher_is_better=higher,
        n_splits_=len(folds),
        seconds_=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class Search:
    """Everything the fits and their scores need; a task is a pair (setting, fold).

    Args:
        base: the settings that stay.
        X: features of all rows, as they were given.
        D: label distributions, or None.
        counts: votes, or None.
        sample_weight: row weights, or None.
        data: all of these, checked.
        folds: training and test rows.
        settings: to try.
        scoring: what is scored.
        n_jobs: processes on a CPU.
        troubles: what went wrong, by setting.
    """

    base: SnefyLDL
    X: Any
    D: Any
    counts: Any
    sample_weight: Any
    data: TrainingData
    folds: list[Fold]
    settings: list[dict[str, Any]]
    scoring: Scoring
    n_jobs: int | None
    troubles: dict[int, str] = field(default_factory=dict)

    def scores(self, verbose: int) -> Array:
        """Score of each setting on each fold (settings, folds); NaN where a fit failed."""
        scores = np.full((len(self.settings), len(self.folds)), np.nan)
        # fits of one shape next to each other, so that they fall into the same stacks
        tasks = [(s, f) for s in range(len(self.settings)) for f in range(len(self.folds))]
        tasks.sort(key=lambda task: (self._shape(task[0]), len(self.folds[task[1]][0])))
        on_gpu = check_estimator(self.base).settings().torch_device.type != "cpu"
        size = GPU_MODELS if on_gpu else CPU_MODELS * (self.n_jobs or os.cpu_count() or 1)
        with Progress("tune", len(tasks), show=verbose >= 1) as progress:
            for start in range(0, len(tasks), size):
                part = tasks[start : start + size]
                for (setting, fold), model in zip(part, self._fit(part)):
                    if model is not None:
                        scores[setting, fold] = self._score(model, self.folds[fold][1])
                progress.advance(len(part))
        for setting, trouble in self.troubles.items():
            warnings.warn(f"{self.settings[setting]} {trouble}", TrainingWarning, stacklevel=3)
        return scores

    def _shape(self, setting: int) -> str:
        return repr([(name, value) for name, value in self.settings[setting].items() if name not in STACKED])

    def _fit(self, tasks: list[tuple[int, int]]) -> list[SnefyLDL | None]:
        """Fitted models of some tasks, None where training failed."""
        if len(tasks) == 1:
            return [self._fit_alone(tasks[0])]
        models: list[SnefyLDL | None]
        try:
            models = list(self._fit_many(tasks))
        except TrainingError:
            models = [None] * len(tasks)
        # a stack repairs its epochs as one: where it did, its fits are not what lone fits are, and are done again
        return [
            self._fit_alone(task) if model is None or model.training_["repairs"] else model
            for task, model in zip(tasks, models)
        ]

    def _fit_alone(self, task: tuple[int, int]) -> SnefyLDL | None:
        try:
            model = self._fit_many([task])[0]
        except TrainingError as error:
            self.troubles[task[0]] = f"could not be trained on fold {task[1]} and is out: {error}"
            return None
        if model.training_["repairs"]:
            self.troubles.setdefault(task[0], f"undid {model.training_['repairs']} epochs on fold {task[1]}")
        return model

    def _fit_many(self, tasks: list[tuple[int, int]]) -> list[SnefyLDL]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # scores() says it once a setting
            return fit_many(
                clone(self.base).set_params(verbose=0),
                self.X,
                self.D,
                [self.folds[fold][0] for _, fold in tasks],
                [self.settings[setting] for setting, _ in tasks],
                counts=self.counts,
                sample_weight=self.sample_weight,
                n_jobs=self.n_jobs,
            )

    def _features(self, model: SnefyLDL, rows: Index) -> Any:
        """Features of some rows, as the model takes them."""
        columns = self.data.columns
        plain = model.backbone is None and (columns is None or columns.is_plain)
        return self.data.features[rows] if plain else take_rows(as_rows(self.X), rows)

    def _score(self, model: SnefyLDL, rows: Index) -> float:
        data = self.data
        features = self._features(model, rows)
        labels, weights = data.labels[rows], None if data.weights is None else data.weights[rows]
        if callable(self.scoring):
            return float(self.scoring(model, features, labels))
        if self.scoring == "log_likelihood":
            return model.score(features, **{"counts" if data.are_counts else "D": labels}, sample_weight=weights)
        metric = getattr(metrics, check_scoring(self.scoring)[0])
        shares = labels / labels.sum(1, keepdims=True)
        return float(np.average(metric(shares, np.asarray(model.predict(features)), per_row=True), weights=weights))


class PipelineSearch(Search):
    """The same for a pipeline: every task fits its own transformers, one task after the other."""

    def _fit_many(self, tasks: list[tuple[int, int]]) -> list[Any]:
        last, models = last_step(self.base), []
        for setting, fold in tasks:
            rows = self.folds[fold][0]
            parts = {"counts": self.counts, "sample_weight": self.sample_weight}
            given = {
                f"{last}__{name}": take_rows(as_rows(part), rows) for name, part in parts.items() if part is not None
            }
            model = clone(self.base).set_params(**{f"{last}__verbose": 0}, **self.settings[setting])
            D = None if self.D is None else take_rows(as_rows(self.D), rows)
            models.append(model.fit(take_rows(as_rows(self.X), rows), D, **given))
        return models

    def _features(self, model: Any, rows: Index) -> Any:
        return take_rows(as_rows(self.X), rows)
