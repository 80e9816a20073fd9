"""Hyperparameter search by cross-validation: every setting on every fold, trained side by side."""

from __future__ import annotations

import difflib
import math
import numbers
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.model_selection import KFold, ParameterGrid, ParameterSampler
from sklearn.pipeline import Pipeline

from snefy_ldl import metrics
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_count, check_rows
from snefy_ldl.datasets.grouping import leave_groups_out
from snefy_ldl.errors import InputError, TrainingError, TrainingWarning
from snefy_ldl.snefy import SnefyLDL, fit_many
from snefy_ldl.training import TrainingData

__all__ = ["TuneResult", "tune"]

Space = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Fold = tuple[Index, Index]

#: Settings of where and how a fit runs, which do not change what it learns.
NOT_SEARCHED = ("device", "verbose", "warm_start", "checkpoint_dir")
#: Fewest training rows a fold may leave: two to learn from, one to validate on, and one to spare.
LEAST_ROWS = 4


def last_step(estimator: Any) -> str | None:
    """Name of the last step of a pipeline.

    Args:
        estimator: anything.

    Returns:
        The name; None where it is not a pipeline.

    Example:
        >>> last_step(SnefyLDL()) is None
        True
    """
    return str(estimator.steps[-1][0]) if isinstance(estimator, Pipeline) else None


def check_estimator(estimator: Any) -> SnefyLDL:
    """The model to be searched.

    Args:
        estimator: a SnefyLDL, or a pipeline that ends in one.

    Returns:
        The model itself, or the last step.

    Raises:
        InputError: where there is no SnefyLDL.
    """
    if last_step(estimator) is not None:
        if not hasattr(estimator, "encode"):  # a plain pipeline loses the density
            raise InputError(
                "tune takes an LDLPipeline (snefy_ldl.LDLPipeline), which keeps the density; got a Pipeline."
            )
        estimator = estimator.steps[-1][1]
    if not isinstance(estimator, SnefyLDL):
        raise InputError(
            f"tune trains SnefyLDL models; got {type(estimator).__name__}. Other learners work with scikit-learn's "
            "GridSearchCV."
        )
    return estimator


def check_scoring(scoring: Any) -> tuple[str, bool]:
    """What is scored.

    Args:
        scoring: the name of a score, or a function.

    Returns:
        The score's name, and whether higher is better.

    Raises:
        InputError: where there is no such score.

    Example:
        >>> check_scoring("kl")
        ('kl_divergence', False)
    """
    if callable(scoring):
        return str(getattr(scoring, "__name__", "score")), True
    if scoring == "log_likelihood":
        return "log_likelihood", True
    name = "kl_divergence" if scoring == "kl" else scoring
    if name not in metrics.HIGHER_IS_BETTER:
        known = ", ".join(["log_likelihood", "kl", *metrics.HIGHER_IS_BETTER])
        raise InputError(f"scoring={scoring!r}: use one of {known}, or a function (model, X, D) -> number.")
    return name, metrics.HIGHER_IS_BETTER[name]


def list_settings(estimator: Any, space: Any, n_iter: int | None, seed: int, scored: str) -> list[dict[str, Any]]:
    """The settings to try, each of them one that the estimator accepts.

    Args:
        estimator: the settings that stay.
        space: for each parameter its values, or a distribution; or a list of such dicts.
        n_iter: number of draws; None for the full grid.
        seed: of the draws.
        scored: name of the score.

    Returns:
        One dict per setting.

    Raises:
        InputError: where the space names no parameter, or holds a setting that no fit accepts.
    """
    model, last = check_estimator(estimator), last_step(estimator)
    known = model.get_params() if last is None else estimator.get_params()
    parts = [space] if isinstance(space, Mapping) else list(space or [])
    if not parts or not all(isinstance(part, Mapping) and part for part in parts):
        raise InputError('space is empty: give values to try, e.g. {"learning_rate": [1e-3, 5e-3]}.')
    if last is not None:  # a setting of the model itself needs no prefix
        mine = model.get_params()
        parts = [
            {f"{last}__{name}" if name in mine and name not in known else name: part[name] for name in part}
            for part in parts
        ]
    for part in parts:
        for name, values in part.items():
            _check_values(name, values, known, n_iter)
            if name.removeprefix(f"{last}__") == "zeros" and scored == "log_likelihood":
                raise InputError("log likelihoods under different zeros= do not compare; search it by another score.")
    if n_iter is None:
        settings = list(ParameterGrid(parts))
    else:
        draws = check_count("n_iter, unless None,", n_iter)
        settings = list(ParameterSampler(parts, draws, random_state=seed))
    for setting in settings:
        try:
            check_estimator(clone(estimator).set_params(**setting)).settings()
        except (InputError, TypeError) as error:
            hint = " Each value of hidden_sizes is a tuple: [(64,), (128,)]." if "hidden_sizes" in setting else ""
            raise InputError(f"space holds a setting that no fit accepts, {setting}: {error}{hint}") from None
    return settings


def _check_values(name: str, values: Any, known: Mapping[str, Any], n_iter: int | None) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise InputError(
            f"space names {name!r}, which SnefyLDL does not have"
            + (f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}.")
        )
    if name.rsplit("__", 1)[-1] in NOT_SEARCHED:
        raise InputError(f"{name!r} does not change what is learnt; set it on the estimator instead.")
    if hasattr(values, "rvs"):
        if n_iter is None:
            raise InputError(f"space[{name!r}] is a distribution; set n_iter, the number of settings to draw.")
    elif isinstance(values, str) or not isinstance(values, (Sequence, np.ndarray)):
        raise InputError(f"space[{name!r}] must be a list of values or a distribution; got {values!r}.")
    elif not len(values):
        raise InputError(f"space[{name!r}] is empty; list at least one value.")


def list_folds(cv: Any, n_rows: int, seed: int) -> list[Fold]:
    """Training and test rows of each fold.

    Args:
        cv: number of folds (shuffled), a splitter, or pairs of row numbers.
        n_rows: N.
        seed: of the shuffle.

    Returns:
        Pairs of row numbers.

    Raises:
        InputError: where folds are too small, or test on rows they train on.
    """
    if isinstance(cv, numbers.Integral):
        if not 2 <= int(cv) <= n_rows:
            raise InputError(f"cv={cv}: the number of folds must lie between 2 and the number of rows ({n_rows}).")
        cv = KFold(int(cv), shuffle=True, random_state=seed)
    pairs: Any = list(cv.split(np.zeros((n_rows, 1))) if hasattr(cv, "split") else cv if np.iterable(cv) else ())
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise InputError("cv must be a number of folds, a splitter, or (train, test) pairs of row numbers.")
    folds = [(check_rows(train, n_rows, "cv"), check_rows(test, n_rows, "cv")) for train, test in pairs]
    for k, (train, test) in enumerate(folds):
        if len(train) < LEAST_ROWS or not len(test):
            raise InputError(f"fold {k} has {len(train)} training and {len(test)} test rows; too few. Use fewer folds.")
        if np.intersect1d(train, test).size:
            raise InputError(f"fold {k} tests on rows it trains on; its score would be meaningless.")
    return folds


@dataclass(frozen=True, repr=False, eq=False)
class TuneResult:
    """What a search found; scores are in their own units (a KL divergence is positive, and lower is better).

    Args:
        best_params_: the setting with the best mean score.
        best_score_: that mean, over the folds.
        best_index_: its place in ``cv_results_``.
        best_estimator_: a model with that setting, fitted to all rows; None with ``refit=False``.
        cv_results_: a table as scikit-learn's ``GridSearchCV`` has, one entry per setting in each column: ``params``,
            ``param_*``, ``split*_test_score``, ``mean_test_score``, ``std_test_score``, ``rank_test_score``, and
            ``se_test_score`` (standard error of the mean over folds) and ``within_one_se`` (whether the mean lies
            within the best setting's standard error of the best).
        scoring: what was scored.
        higher_is_better: whether it is a gain.
        n_splits_: folds.
        seconds_: wall-clock time of all fits and scores.

    Example:
        >>> from snefy_ldl import SnefyLDL, tune
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

        table = {name: column for name, column in self.cv_results_.items() if name != "params"}
        table = {name: np.ma.filled(column, np.nan) for name, column in table.items()}
        return pd.DataFrame(table).sort_values("rank_test_score", kind="stable").reset_index(names="setting")

    def simplest(self, *names: str) -> dict[str, Any]:
        """The setting with the smallest values of some parameters among those within one standard error of the best.

        Args:
            names: numeric parameters in order of importance, e.g. ``"n_neurons", "epochs"``.

        Returns:
            The setting, as a dict.

        Raises:
            InputError: where a parameter was not searched, or its values have no order.
        """
        searched = {name for params in self.cv_results_["params"] for name in params}
        if not names or not set(names) <= searched:
            raise InputError(f"simplest needs parameters that were searched: {', '.join(sorted(searched))}.")
        settings: list[dict[str, Any]] = self.cv_results_["params"]
        near = [settings[k] for k in np.flatnonzero(self.cv_results_["within_one_se"])]
        try:
            chosen = min(near, key=lambda params: [params.get(name, math.inf) for name in names])
        except TypeError:
            raise InputError(f"the values of {', '.join(names)} have no order; name numeric parameters.") from None
        return dict(chosen)

    def __repr__(self) -> str:
        table, direction = self.cv_results_, "higher" if self.higher_is_better else "lower"
        n_near = int(np.sum(table["within_one_se"]))
        lines = [
            f"{len(table['params'])} settings x {self.n_splits_} folds, {self.scoring} ({direction} is better), "
            f"{self.seconds_:.1f} s; {n_near} within one standard error of the best"
        ]
        order = np.argsort(table["rank_test_score"], kind="stable")
        for k in order[:5]:
            words = ", ".join(f"{name}={_short(value)}" for name, value in table["params"][k].items())
            mark = "*" if table["within_one_se"][k] else " "
            numbers_ = f"{table['mean_test_score'][k]:10.4f} ± {table['se_test_score'][k]:.4f}"
            lines.append(f"{table['rank_test_score'][k]:4d}{mark} {numbers_}  {words}")
        if len(order) > 5:
            lines.append(f"      ... {len(order) - 5} more: to_frame()")
        return "\n".join(lines)


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


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, numbers.Real) and not isinstance(value, bool) else repr(value)


Scoring = str | Callable[[SnefyLDL, Any, Any], float]

#: Models handed to ``fit_many`` at a time, per CPU process and per GPU: enough for full stacks, and the bar moves.
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
    groups: Any = None,
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
        estimator: the settings that stay; left unfitted. If it has no ``random_state``, every fit gets the same
            seed, so that settings are compared on equal terms.
        X: features, as :meth:`SnefyLDL.fit` takes them.
        D: label distributions (N, L); or ``counts``.
        space: for each parameter a list of values, or with ``n_iter`` a ``scipy.stats`` distribution; or a list of
            such dicts.
        counts: votes (N, L) instead of label distributions.
        sample_weight: row weights (N,), in the fits and the scores.
        groups: of the rows, (N,) or (N, k); a number of folds then splits whole groups, so that scores are those of new
            groups. The best setting fits groups as ``GroupedLDL(result.best_estimator_).fit(X, D, groups=groups)``.
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
        >>> base = SnefyLDL(n_neurons=8, n_readouts=4, epochs=3, guides=None, random_state=0)
        >>> result = tune(base, city.X, city.D, {"learning_rate": [1e-4, 1e-2]}, cv=3, random_state=0, n_jobs=1)
        >>> result.best_params_, result.best_estimator_.predict(city.X[:2]).shape
        ({'learning_rate': 0.01}, (2, 3))
    """
    started = time.perf_counter()
    name, higher = check_scoring(scoring)
    seed = seed_from(random_state)
    settings = list_settings(estimator, space, n_iter, seed, name)
    checked, last = check_estimator(estimator), last_step(estimator)
    prefix = "" if last is None else f"{last}__"
    if groups is not None and last is not None:
        raise InputError("groups: a pipeline cannot be tuned with groups; tune the SnefyLDL at its end.")
    if last is None:
        data = TrainingData(X, D, counts, sample_weight, checked.backbone, checked.columns)
    else:  # only the transformers know what X is; the labels are checked beside a column of zeros
        data = TrainingData(np.zeros((count_rows(as_rows(X)), 1)), D, counts, sample_weight, None)
    if data.partial is not None or not np.isfinite(data.labels).all():
        raise InputError("tune scores whole votes only; drop the rows whose counts hold a missing label.")
    if groups is not None and isinstance(cv, numbers.Integral):
        cv = list(leave_groups_out(groups, data.n_rows, int(cv), seed))
    folds = list_folds(cv, data.n_rows, seed)
    base = clone(estimator)
    if check_estimator(base).random_state is None:
        base.set_params(**{f"{prefix}random_state": seed})
    kind = Search if last is None else PipelineSearch
    search = kind(base, X, D, counts, sample_weight, data, folds, settings, scoring, n_jobs)
    table = score_table(settings, search.scores(verbose), higher)
    if not np.isfinite(table["mean_test_score"]).any():
        raise TrainingError("no setting could be trained on every fold; lower the learning rates in the space.")
    best = int(np.argmin(table["rank_test_score"]))
    model = None
    if refit:
        given = {"counts": counts, "sample_weight": sample_weight}
        model = clone(base).set_params(**settings[best])
        model.fit(X, D, **{prefix + name: value for name, value in given.items() if value is not None})
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
            warnings.simplefilter("ignore", TrainingWarning)  # scores() warns once per setting
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
        features = self.data.features[rows] if plain else take_rows(as_rows(self.X), rows)
        return features

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
    """A search over a pipeline: every task fits its own transformers, one task after the other."""

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
