"""Hyperparameter search by cross-validation: every setting on every fold, trained side by side."""

from __future__ import annotations

import math
import numbers
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.model_selection import KFold, ParameterGrid, ParameterSampler, check_cv

from snefy_ldl import metrics
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_rows
from snefy_ldl.errors import InputError, TrainingError, TrainingWarning
from snefy_ldl.snefy import SnefyLDL, fit_many

__all__ = ["tune"]

Space = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Scoring = str | Callable[[SnefyLDL, Any, Any], float]
Fold = tuple[Index, Index]

#: Fewest training rows a fold may leave: two to learn from, one to validate on, and one to spare.
LEAST_ROWS = 4
#: Models handed to ``fit_many`` at a time, per CPU process and per GPU: enough for full stacks, and the bar moves.
CPU_MODELS, GPU_MODELS = 16, 1024
#: Settings that may differ inside one stack.
STACKED = ("learning_rate", "weight_decay", "random_state")


@dataclass(frozen=True, repr=False, eq=False)
class TuneResult:
    """The result of a search; scores are in their own units (a KL divergence is positive, and lower is better).

    Args:
        best_params_: the setting with the best mean score.
        best_score_: that mean, over the folds.
        best_index_: its place in ``cv_results_``.
        best_estimator_: a model with that setting, fitted to all rows; None with ``refit=False``.
        cv_results_: a table as scikit-learn's ``GridSearchCV`` has, one entry per setting in each column: ``params``,
            ``param_*``, ``split*_test_score``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``, and
            ``se_test_score`` (standard error of the mean over folds) and ``within_one_se`` (whether the mean lies
            within the best setting's standard error of the best).
        scoring: name of the score.
        higher_is_better: whether it is a gain.
        n_splits_: folds.
        seconds_: wall-clock time of all fits and scores.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.tuning import tune
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> base = SnefyLDL(epochs=1, guides=None)
        >>> result = tune(base, city.X, city.D, {"n_neurons": [8, 16]}, cv=2, random_state=0, n_jobs=1)
        >>> len(result.cv_results_["params"]), result.n_splits_
        (2, 2)
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_index_: int
    best_estimator_: SnefyLDL | None
    cv_results_: dict[str, Any]
    scoring: str
    higher_is_better: bool
    n_splits_: int
    seconds_: float

    def to_frame(self) -> Any:
        """The table as a DataFrame, best setting first, one row per setting."""
        import pandas as pd

        table = {name: np.ma.filled(column, np.nan) for name, column in self.cv_results_.items() if name != "params"}
        return pd.DataFrame(table).sort_values("rank_test_score", kind="stable").reset_index(names="setting")

    def __repr__(self) -> str:
        table, direction = self.cv_results_, "higher" if self.higher_is_better else "lower"
        lines = [
            f"{len(table['params'])} settings x {self.n_splits_} folds, {self.scoring} ({direction} is better), "
            f"{self.seconds_:.1f} s; * within one standard error of the best"
        ]
        order = np.argsort(table["rank_test_score"], kind="stable")
        for k in order[:5]:
            words = ", ".join(f"{name}={value!r}" for name, value in table["params"][k].items())
            mark = "*" if table["within_one_se"][k] else " "
            score = f"{table['mean_test_score'][k]:10.4f} ± {table['se_test_score'][k]:.4f}"
            lines.append(f"{table['rank_test_score'][k]:4d}{mark} {score}  {words}")
        if len(order) > 5:
            lines.append(f"      ... {len(order) - 5} more: to_frame()")
        return "\n".join(lines)


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

    Each score equals that of a separate fit on the fold's training rows; fits that differ only in learning rate, weight
    decay, seed or rows share a stack. Pass training rows only: the best of many scores is an optimistic one. A pipeline
    is searched by scikit-learn's ``GridSearchCV``, one fit after the other.

    Args:
        estimator: the settings that stay; left unfitted. If it has no ``random_state``, every fit gets the same
            seed, so that settings are compared on equal terms.
        X: features, as :meth:`SnefyLDL.fit` takes them.
        D: label distributions (N, L); or ``counts``.
        space: for each parameter a list of values, or with ``n_iter`` a ``scipy.stats`` distribution; or a list of
            such dicts.
        counts: votes (N, L) instead of label distributions.
        sample_weight: row weights (N,), in the fits and the scores.
        cv: number of folds (shuffled), a scikit-learn splitter, or (train, test) pairs of row numbers, such as those of
            ``GroupKFold(5).split(X, groups=groups)``.
        n_iter: None tries the full grid; a number draws that many settings.
        scoring: ``"log_likelihood"``, ``"kl"``, another measure of :func:`snefy_ldl.metrics.score` (of the mean
            prediction; votes count as their proportions), or a function ``(model, X, D) -> number``, higher is better.
        refit: whether to fit the best setting to all rows.
        random_state: seed of the folds, of the draws, and of the fits if ``estimator`` has none.
        n_jobs: processes on a CPU; all cores by default.
        verbose: 1 shows progress on stderr.

    Returns:
        Scores of all settings, and the best of them, refitted.

    Raises:
        InputError: data, space, folds or score break a rule; before any work starts.
        TrainingError: no setting could be trained on every fold.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> base = SnefyLDL(n_neurons=8, n_readouts=4, epochs=3, guides=None, random_state=0)
        >>> result = tune(base, city.X, city.D, {"learning_rate": [1e-4, 1e-2]}, cv=3, random_state=0, n_jobs=1)
        >>> result.best_params_, result.best_estimator_.predict(city.X[:2]).shape
        ({'learning_rate': 0.01}, (2, 3))
    """
    started = time.perf_counter()
    if not isinstance(estimator, SnefyLDL):
        raise InputError(
            f"tune trains SnefyLDL models; got {type(estimator).__name__}. Other learners and pipelines work with "
            "scikit-learn's GridSearchCV."
        )
    name, higher = _check_scoring(scoring)
    seed = seed_from(random_state)
    settings = _list_settings(estimator, space, n_iter, seed, name)
    base = clone(estimator).set_params(verbose=0)
    if base.random_state is None:
        base.set_params(random_state=seed)
    labels = {"D": D, "counts": counts, "sample_weight": sample_weight}
    data = {"X": X} | {key: value for key, value in labels.items() if value is not None}
    data = {key: as_rows(value) for key, value in data.items()}
    search = _Search(base, data, list_folds(cv, count_rows(data["X"]), seed), settings, scoring, n_jobs)
    table = score_table(settings, search.scores(verbose), higher)
    if not np.isfinite(table["mean_test_score"]).any():
        raise TrainingError("no setting could be trained on every fold; lower the learning rates in the space.")
    best = int(np.argmin(table["rank_test_score"]))
    return TuneResult(
        best_params_=dict(settings[best]),
        best_score_=float(table["mean_test_score"][best]),
        best_index_=best,
        best_estimator_=clone(base).set_params(**settings[best]).fit(**data) if refit else None,
        cv_results_=table,
        scoring=name,
        higher_is_better=higher,
        n_splits_=len(search.folds),
        seconds_=time.perf_counter() - started,
    )


def _check_scoring(scoring: Any) -> tuple[str, bool]:
    """Name of a score, and whether higher is better."""
    if callable(scoring):
        return str(getattr(scoring, "__name__", "score")), True
    name = "kl_divergence" if scoring == "kl" else scoring
    if name == "log_likelihood":
        return name, True
    if name not in metrics.points.HIGHER_IS_BETTER:
        known = ", ".join(["log_likelihood", "kl", *metrics.points.HIGHER_IS_BETTER])
        raise InputError(f"scoring={scoring!r}: use one of {known}, or a function (model, X, D) -> number.")
    return name, metrics.points.HIGHER_IS_BETTER[name]


def _list_settings(estimator: SnefyLDL, space: Any, n_iter: int | None, seed: int, scored: str) -> list[dict[str, Any]]:
    """The settings to try, each of them one that the estimator accepts."""
    if not space:
        raise InputError('space is empty: give values to try, e.g. {"learning_rate": [1e-3, 5e-3]}.')
    try:
        grid = ParameterGrid(space) if n_iter is None else ParameterSampler(space, n_iter, random_state=seed)
        settings = [dict(setting) for setting in grid]
        for setting in settings:
            clone(estimator).set_params(**setting).settings()
    except (InputError, ValueError, TypeError) as error:
        hint = " n_iter draws from distributions." if n_iter is None else ""
        raise InputError(f"space does not fit SnefyLDL: {error}{hint}") from None
    if scored == "log_likelihood" and any("zeros" in setting for setting in settings):
        raise InputError("log likelihoods under different zeros= do not compare; search it by another score.")
    return settings


def list_folds(cv: Any, n_rows: int, seed: int) -> list[Fold]:
    """Training and test rows of each fold."""
    try:
        splitter = KFold(int(cv), shuffle=True, random_state=seed) if isinstance(cv, numbers.Integral) else check_cv(cv)
        pairs = [(train, test) for train, test in splitter.split(np.zeros((n_rows, 1)))]
    except (ValueError, TypeError) as error:
        raise InputError(f"cv must be a number of folds, a splitter, or (train, test) pairs: {error}") from None
    folds = [(check_rows(train, n_rows, "cv"), check_rows(test, n_rows, "cv")) for train, test in pairs]
    for k, (train, test) in enumerate(folds):
        if len(train) < LEAST_ROWS or not len(test):
            raise InputError(f"fold {k} has {len(train)} training and {len(test)} test rows; too few. Use fewer folds.")
        if np.intersect1d(train, test).size:
            raise InputError(f"fold {k} tests on rows it trains on; its score would be meaningless.")
    return folds


def score_table(settings: list[dict[str, Any]], scores: Array, higher: bool) -> dict[str, Any]:
    """The columns of ``cv_results_``.

    Args:
        settings: as they were tried.
        scores: of each setting on each fold (settings, folds); NaN where a fit failed.
        higher: whether higher is better.

    Returns:
        The table, one entry per setting in each column.

    Example:
        >>> score_table([{"epochs": 1}, {"epochs": 2}], np.array([[1.0, 2.0], [2.0, 3.0]]), True)["rank_test_score"]
        array([2, 1], dtype=int32)
    """
    n_splits = scores.shape[1]
    table: dict[str, Any] = {}
    for name in sorted({name for setting in settings for name in setting}):
        column = np.ma.MaskedArray(np.empty(len(settings), dtype=object), mask=True)
        for k, setting in enumerate(settings):
            if name in setting:
                column[k] = setting[name]
        table[f"param_{name}"] = column
    table["params"] = settings
    table |= {f"split{fold}_test_score": scores[:, fold] for fold in range(n_splits)}
    mean = scores.mean(1)
    losses = np.where(np.isfinite(mean), -mean if higher else mean, np.inf)
    best = int(np.argmin(losses))
    error = scores.std(1, ddof=1) / math.sqrt(n_splits) if n_splits > 1 else np.full(len(mean), np.nan)
    table["mean_test_score"], table["std_test_score"], table["se_test_score"] = mean, scores.std(1), error
    table["rank_test_score"] = rankdata(losses, method="min").astype(np.int32)
    table["within_one_se"] = losses <= losses[best] + (error[best] if np.isfinite(error[best]) else 0.0)
    return table


@dataclass(frozen=True)
class _Search:
    """What the fits and their scores need; a task is a pair (setting, fold)."""

    base: SnefyLDL
    data: dict[str, Any]
    folds: list[Fold]
    settings: list[dict[str, Any]]
    scoring: Scoring
    n_jobs: int | None

    def scores(self, verbose: int) -> Array:
        """Score of each setting on each fold (settings, folds); NaN if a fit failed."""
        scores = np.full((len(self.settings), len(self.folds)), np.nan)
        # fits of one shape next to each other, so that they fall into the same stacks
        tasks = [(s, f) for s in range(len(self.settings)) for f in range(len(self.folds))]
        tasks.sort(key=lambda task: (self._shape(task[0]), len(self.folds[task[1]][0])))
        on_gpu = self.base.settings().torch_device.type != "cpu"
        size = GPU_MODELS if on_gpu else CPU_MODELS * (self.n_jobs or os.cpu_count() or 1)
        troubles: dict[int, str] = {}
        with Progress("tune", len(tasks), show=verbose >= 1) as progress:
            for start in range(0, len(tasks), size):
                part = tasks[start : start + size]
                for (setting, fold), model in zip(part, self._fit(part, troubles)):
                    if model is not None:
                        scores[setting, fold] = self._score(model, self.folds[fold][1])
                progress.advance(len(part))
        for setting, trouble in troubles.items():
            warnings.warn(f"{self.settings[setting]} {trouble}", TrainingWarning, stacklevel=3)
        return scores

    def _shape(self, setting: int) -> str:
        return repr([(name, value) for name, value in self.settings[setting].items() if name not in STACKED])

    def _fit(self, tasks: list[tuple[int, int]], troubles: dict[int, str]) -> list[SnefyLDL | None]:
        """Fitted models of some tasks, None if training failed."""
        models: list[SnefyLDL | None]
        try:
            models = list(self._fit_many(tasks))
        except TrainingError as error:
            models = [None] * len(tasks)
            if len(tasks) == 1:
                setting, fold = tasks[0]
                troubles[setting] = f"could not be trained on fold {fold} and is out: {error}"
        if len(tasks) == 1:
            return models
        # a stack repairs its epochs as one: its fits are not those of separate ones, and are done again
        return [
            self._fit([task], troubles)[0] if model is None or model.training_["repairs"] else model
            for task, model in zip(tasks, models)
        ]

    def _fit_many(self, tasks: list[tuple[int, int]]) -> list[SnefyLDL]:
        splits, settings = [self.folds[fold][0] for _, fold in tasks], [self.settings[setting] for setting, _ in tasks]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # scores() warns once per setting
            return fit_many(self.base, **self.data, splits=splits, params=settings, n_jobs=self.n_jobs)

    def _score(self, model: SnefyLDL, rows: Index) -> float:
        parts = {name: take_rows(value, rows) for name, value in self.data.items()}
        if self.scoring == "log_likelihood":
            return model.score(**parts)
        features, weights = parts.pop("X"), parts.pop("sample_weight", None)
        (labels,) = parts.values()
        if callable(self.scoring):
            return float(self.scoring(model, features, labels))
        metric = getattr(metrics, _check_scoring(self.scoring)[0])
        shares = np.asarray(labels, dtype=np.float64)
        shares = shares / shares.sum(1, keepdims=True)
        return float(np.average(metric(shares, np.asarray(model.predict(features)), per_row=True), weights=weights))
