"""Comparing learners: what is fitted, each piece of work kept when it is done, and the result put together."""

from __future__ import annotations

import hashlib
import numbers
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from joblib import Parallel, delayed
from sklearn.base import clone, is_regressor
from sklearn.model_selection import KFold, check_cv
from sklearn.multioutput import MultiOutputRegressor
from sklearn.utils import get_tags
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from snefy_ldl import metrics
from snefy_ldl._internal.files import read_json, write_json
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import derive_seed, seed_from
from snefy_ldl._internal.rows import as_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_count, check_distributions, check_features, check_rows
from snefy_ldl._internal.version import __version__
from snefy_ldl.datasets.cells import is_frame
from snefy_ldl.datasets.columns import has_gaps, learn_columns
from snefy_ldl.datasets.grouping import in_groups, leave_groups_out, read_groups
from snefy_ldl.errors import InputError, LabelWarning, ModelFileError, TrainingWarning
from snefy_ldl.learners.comparison.result import Comparison
from snefy_ldl.learners.learner import Learner, close_rows, seeded_clone, share_floor
from snefy_ldl.prediction import takes_groups
from snefy_ldl.snefy import fit_folds

#: Training and test rows.
Fold = tuple[Index, Index]
#: Training rows that a fold needs.
LEAST_ROWS = 4


@dataclass(eq=False, repr=False)
class RegressorLDL(Learner):
    """Any scikit-learn regressor as a label distribution learner.

    It learns the shares; predictions are cut at zero, and rows divided by their sums. A regressor of one output is
    fitted once per label.

    Args:
        regressor: With ``fit(X, Y)`` and ``predict(X)``; cloned.
        random_state: Given to the regressor if it takes one and has none.

    Attributes:
        regressor_: The fitted regressor. It is not written by ``save``: scikit-learn's objects have their own files.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> X, D = [[0.0], [1.0], [2.0]], [[0.2, 0.8], [0.4, 0.6], [0.6, 0.4]]
        >>> RegressorLDL(Ridge(alpha=0.0)).fit(X, D).predict([[1.5]]).round(3)
        array([[0.5, 0.5]])
    """

    regressor: Any
    random_state: Any = None

    def _check_params(self) -> None:
        if isinstance(self.regressor, type) or not hasattr(self.regressor, "fit"):
            raise InputError(f"regressor must be an object with fit and predict; got {self.regressor!r}.")
        super()._check_params()

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        regressor = seeded_clone(self.regressor, int(random.randint(2**31 - 1)), keep=True)
        if not get_tags(regressor).target_tags.multi_output:
            regressor = MultiOutputRegressor(regressor)
        self.regressor_ = regressor.fit(X, D)

    def _predict(self, X: Array) -> Array:
        values = np.asarray(self.regressor_.predict(X), dtype=np.float64).reshape(len(X), self.n_labels_)
        values = np.maximum(values, 0.0)
        return np.where(values.sum(axis=1, keepdims=True) > 0.0, values, 1.0)  # a row of zeros becomes uniform


#: A function of observed and predicted shares (N, L).
Measure = Callable[[Array, Array], float]
#: What no result depends on, taken out of the words that describe a learner.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, eq=False)
class TestSet:
    """One data set of a comparison.

    Args:
        name: What tables call it.
        X: Features, as they were given.
        D: Label distributions, (N, L), checked.
        labels: The same as they were given, for learners that keep names.
        digest: Checksum of both.
        groups: Of the rows, or None.
    """

    __test__ = False  # no test class, despite its name

    name: str
    X: Any
    D: Array
    labels: Any
    digest: str
    groups: Any = None


@dataclass(frozen=True, eq=False)
class Unit:
    """The smallest piece of work that is done and written as one: a learner on all folds of one repeat.

    Args:
        place: Numbers of the data set and of the learner.
        words: What progress calls it.
        model: Unfitted, with its seed.
        data: The data set.
        folds: Training and test rows.
        measures: Name to function of observed and predicted shares.
        signature: Checksum of everything its result depends on.
    """

    place: tuple[int, int]
    words: str
    model: Any
    data: TestSet
    folds: list[Fold]
    measures: dict[str, Measure]
    signature: str


def _make_folds(cv: Any, data: TestSet, seed: int) -> list[Fold]:
    """Folds of one repeat; a number of folds splits whole groups if rows come in groups."""
    if data.groups is not None and isinstance(cv, (int, np.integer)):
        cv = list(leave_groups_out(data.groups, len(data.D), int(cv), seed))
    try:
        splitter = KFold(int(cv), shuffle=True, random_state=seed) if isinstance(cv, numbers.Integral) else check_cv(cv)
        pairs = list(splitter.split(np.zeros((len(data.D), 1))))
    except (ValueError, TypeError) as error:
        raise InputError(f"cv must be a number of folds, a splitter, or (train, test) pairs: {error}") from None
    folds = [(check_rows(train, len(data.D), "cv"), check_rows(test, len(data.D), "cv")) for train, test in pairs]
    for k, (train, test) in enumerate(folds):
        if len(train) < LEAST_ROWS or not len(test):
            raise InputError(f"fold {k} has {len(train)} training and {len(test)} test rows; too few. Use fewer folds.")
        if np.intersect1d(train, test).size:
            raise InputError(f"fold {k} tests on rows it trains on; its score would be meaningless.")
    return folds


def _check_learners(learners: Any) -> dict[str, Any]:
    """Names and unfitted learners; scikit-learn regressors are wrapped."""
    if not isinstance(learners, Mapping):
        listed = list(learners) if np.iterable(learners) and not isinstance(learners, str) else [learners]
        learners = {type(one).__name__: one for one in listed}
        if len(learners) < len(listed):
            raise InputError('two learners are of one class: name them, e.g. {"few": AAKNN(5), "many": AAKNN(20)}.')
    if not learners:
        raise InputError('no learner to compare: give {"name": learner, ...}.')
    checked = {}
    for name, one in learners.items():
        if isinstance(one, type):
            raise InputError(f"{name!r} is a class; give an object: {one.__name__}().")
        if not (hasattr(one, "fit") and hasattr(one, "predict") and hasattr(one, "get_params")):
            raise InputError(f"{name!r} must have fit, predict and get_params; derive it from sklearn's BaseEstimator.")
        try:
            checked[str(name)] = clone(RegressorLDL(one) if not _is_learner(one) and is_regressor(one) else one)
        except (TypeError, RuntimeError) as error:
            raise InputError(f"{name!r} cannot be cloned: {error}") from None
    return checked


def _is_learner(one: Any) -> bool:
    """Whether something predicts label distributions by itself, though scikit-learn may call it a regressor."""
    return isinstance(one, Learner) or callable(getattr(one, "predict_dist", None))


def _check_sets(X: Any, D: Any) -> list[TestSet]:
    """Data sets, checked: X and D, a Dataset, or name to ``(X, D)`` or a Dataset."""
    if D is not None:
        return [_check_set("data", X, D)]
    if hasattr(X, "X") and hasattr(X, "D"):
        X = {getattr(X, "name", "data"): X}
    if not isinstance(X, Mapping) or not X:
        raise InputError('compare needs X and D, or several data sets: {"name": (X, D), ...}.')
    sets = []
    for name, data in X.items():
        pair = (data.X, data.D) if hasattr(data, "X") and hasattr(data, "D") else data
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(f"data set {name!r} must be a pair (X, D), or hold .X and .D.")
        sets.append(_check_set(str(name), *pair))
    return sets


def _check_set(name: str, X: Any, D: Any) -> TestSet:
    X = as_rows(X)
    columns = learn_columns(X) if is_frame(X) or has_gaps(X) else None
    features = check_features(X) if columns is None else columns.transform(X)
    labels, _ = check_distributions(D, n_rows=features.shape[0])
    dense = sp.csr_matrix(features).toarray() if sp.issparse(features) else np.ascontiguousarray(features)
    digest = hashlib.sha256(repr((dense.shape, labels.shape)).encode() + dense.tobytes() + labels.tobytes())
    named = D if hasattr(D, "columns") else labels
    return TestSet(name, X, labels, named, digest.hexdigest())


def _check_measures(measures: Any) -> dict[str, Measure]:
    """Measures by name; the six of Geng (2016) by default."""
    chosen = list(metrics.points.HIGHER_IS_BETTER) if measures is None else measures
    chosen = [chosen] if isinstance(chosen, str) or callable(chosen) else list(chosen)
    unknown = [one for one in chosen if not callable(one) and one not in metrics.MEASURES]
    if unknown or not chosen:
        raise InputError(f"measures={chosen!r}: use functions of (D, P), or names from {', '.join(metrics.MEASURES)}.")
    functions = [getattr(metrics, one) if isinstance(one, str) else one for one in chosen]
    return {one.__name__: one for one in functions}


def _describe(learner: Any) -> str:
    """A learner's class and settings in words that are the same in every process."""
    params = sorted(learner.get_params(deep=True).items())
    kind = f"{type(learner).__module__}.{type(learner).__qualname__}"
    return _ADDRESS.sub("", f"{kind}({', '.join(f'{name}={value!r}' for name, value in params)})")


#: Scores and times of one piece of work, or the words of its failure; plain JSON values.
Record = dict[str, Any]


def _run(units: list[Unit], folder: str | os.PathLike[str] | None, n_jobs: int | None, verbose: int) -> list[Record]:
    """Do every piece of work that the folder does not hold yet; a file that cannot be read is as good as none."""
    files = [None if folder is None else Path(folder) / f"{unit.signature}.json" for unit in units]
    records: list[Record] = [{} for _ in units]
    for k, file in enumerate(files):
        with suppress(ModelFileError):
            kept = read_json(file) if file is not None and file.is_file() else None
            records[k] = kept if isinstance(kept, dict) and "scores" in kept else {}
    todo = [k for k, record in enumerate(records) if not record]
    with Progress("compare", len(units), show=verbose >= 1, completed=len(units) - len(todo)) as progress:
        results: Any
        if n_jobs in (None, 1) or len(todo) < 2:
            results = (_score_folds(units[k], None) for k in todo)
        else:
            calls = (delayed(_score_alone)(units[k]) for k in todo)
            results = Parallel(n_jobs=n_jobs, return_as="generator")(calls)
        for k, record in zip(todo, results):
            records[k], file = record, files[k]
            if file is not None and "error" not in record:  # what failed is tried again
                write_json(file, record)
            progress.update(progress.completed + 1, units[k].words)
    return records


def _score_alone(unit: Unit) -> Record:
    """In a process among others: one thread each, and no further processes."""
    with threadpool_limits(1):
        return _score_folds(unit, 1)


def _score_folds(unit: Unit, n_jobs: int | None) -> Record:
    """Fit one clone per fold, and score it on the rows it has not seen."""
    data, folds = unit.data, unit.folds
    scores: dict[str, list[float]] = {name: [] for name in unit.measures}
    floor, everything = share_floor(data.D), in_groups(data.X, data.groups)
    predict_seconds, started = [], time.perf_counter()
    try:
        with warnings.catch_warnings():
            for kind in (TrainingWarning, LabelWarning):
                warnings.simplefilter("ignore", kind)  # would be repeated for every fold
            models = fit_folds(unit.model, everything, data.labels, [train for train, _ in folds], n_jobs)
            fit_seconds = [(time.perf_counter() - started) / len(folds)] * len(folds)
            for fitted, (_, test) in zip(models, folds):
                started = time.perf_counter()
                rows = take_rows(everything if takes_groups(fitted) else data.X, test)
                shares = np.asarray(fitted.predict(rows), dtype=np.float64)
                predict_seconds.append(time.perf_counter() - started)
                for name, measure in unit.measures.items():
                    scores[name].append(float(np.mean(measure(data.D[test], close_rows(shares, floor)))))
    except Exception as error:  # one learner's failure must not lose the others' work
        return {"error": f"{type(error).__name__}: {error}"}
    return {"scores": scores, "fit_seconds": fit_seconds, "predict_seconds": predict_seconds}


def compare(
    learners: Any,
    X: Any,
    D: Any = None,
    *,
    cv: Any = 10,
    repeats: int = 1,
    measures: Sequence[str | Measure] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    random_state: Any = 0,
    verbose: int = 0,
    groups: Any = None,
) -> Comparison:
    """Score learners by repeated cross-validation on the same folds.

    All folds of a ``SnefyLDL`` train as one stack. A learner that fails is left out of the tables with a warning.

    Args:
        learners: Name to learner: the library's, your own (``fit``, ``predict``), or scikit-learn regressors, which are
            wrapped as :class:`RegressorLDL`. A sequence takes the names of the classes. They are cloned, not changed.
        X: Features (N, d); or several data sets, name to ``(X, D)`` or to a ``Dataset``, with ``D`` left out.
        D: Label distributions (N, L).
        cv: Number of folds, shuffled; or, without repeats, a splitter or (train, test) pairs of row numbers.
        repeats: Cross-validations, each with the rows shuffled again.
        measures: Names out of ``metrics.MEASURES``, or functions of observed and predicted shares (both (N, L)) that
            return a number or one per row, lower being better unless their attribute ``higher_is_better`` is True; the
            six of Geng (2016) by default.
        checkpoint: Folder where each finished piece is kept. A comparison that was stopped continues from it, and one
            with more learners, data sets or repeats fits only what is new.
        n_jobs: Processes; one by default, -1 takes all cores.
        random_state: Seed of the folds, and of learners that have none.
        verbose: 1 shows a progress bar on stderr.
        groups: Of the rows (N,). A number of folds then splits whole groups, so that scores are those of new
            groups; learners that take groups, such as ``SnefyLDL``, are given them.

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
    seed = seed_from(random_state)
    models = _check_learners(learners)
    names, sets, chosen = list(models), _check_sets(X, D), _check_measures(measures)
    asked = ",".join(
        name if name in metrics.MEASURES else f"{one.__module__}.{one.__qualname__}" for name, one in chosen.items()
    )
    check_count("repeats", repeats)
    if repeats > 1 and not isinstance(cv, (int, np.integer)):
        raise InputError("repeats > 1 shuffles the rows again each time: give cv as a number of folds.")
    if groups is not None:
        if len(sets) > 1:
            raise InputError("groups are those of one data set: give X and D, not several data sets.")
        codes = read_groups(groups, len(sets[0].D)).codes
        digest = hashlib.sha256(sets[0].digest.encode() + codes.tobytes()).hexdigest()
        sets = [replace(sets[0], groups=groups, digest=digest)]
    folds = [[_make_folds(cv, data, derive_seed(seed, r) % 2**31) for r in range(repeats)] for data in sets]
    units = []
    for (d, data), r in product(enumerate(sets), range(repeats)):
        rows = b"".join(np.asarray(part, dtype=np.int64).tobytes() + b"|" for fold in folds[d][r] for part in fold)
        for k, model in enumerate(models.values()):
            parts = [__version__, data.digest, _describe(model), asked, str(seed), str(r)]
            signature = hashlib.sha256("\0".join(parts).encode() + rows).hexdigest()[:24]
            model = seeded_clone(model, derive_seed(seed, r, 1) % (2**31 - 1), keep=True)
            units.append(Unit((d, k), f"{names[k]}, {data.name}", model, data, folds[d][r], chosen, signature))
    records = _run(units, checkpoint, n_jobs, verbose)
    shape = (len(sets), len(names))
    n_folds = [sum(map(len, repeats_of)) for repeats_of in folds]
    scores = {name: [np.full((shape[1], n), np.nan) for n in n_folds] for name in chosen}
    fit_seconds, predict_seconds = np.full(shape, np.nan), np.full(shape, np.nan)
    errors: dict[tuple[str, str], str] = {}
    for d, k in np.ndindex(shape):
        found = [record for unit, record in zip(units, records) if unit.place == (d, k)]
        failures = [record["error"] for record in found if "error" in record]
        if failures:
            errors[sets[d].name, names[k]] = failures[0]
            warnings.warn(f"{names[k]} failed on {sets[d].name}: {failures[0]}", TrainingWarning, stacklevel=2)
            continue
        for measure in chosen:
            scores[measure][d][k] = np.concatenate([record["scores"][measure] for record in found])
        fit_seconds[d, k] = np.mean(np.concatenate([record["fit_seconds"] for record in found]))
        predict_seconds[d, k] = np.mean(np.concatenate([record["predict_seconds"] for record in found]))
    higher = {name: metrics.MEASURES.get(name, getattr(one, "higher_is_better", False)) for name, one in chosen.items()}
    ratios = [float(np.mean([len(test) / len(train) for part in each for train, test in part])) for each in folds]
    return Comparison(
        learners=names,
        data_sets=[data.name for data in sets],
        measures=higher,
        scores=scores,
        fit_seconds=fit_seconds,
        predict_seconds=predict_seconds,
        test_to_train=ratios,
        repeats=repeats,
        errors=errors,
    )
