"""What a comparison does, checked before any work: learners, data sets, folds, measures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone, is_regressor

from snefy_ldl import metrics
from snefy_ldl._random import derive_seed
from snefy_ldl._types import Array
from snefy_ldl._version import __version__
from snefy_ldl.comparison.adapter import RegressorLDL
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner
from snefy_ldl.tuning.search import Fold, list_folds
from snefy_ldl.validation import check_count, check_distributions, check_features
from snefy_ldl.validation.rows import as_rows

__all__ = ["Plan", "TestSet", "Unit", "check_learners", "check_measures", "check_sets"]

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
    """

    __test__ = False  # no test class, whatever its name suggests

    name: str
    X: Any
    D: Array
    labels: Any
    digest: str


@dataclass(frozen=True, eq=False)
class Unit:
    """The smallest piece of work that is done and written as one: a learner on all folds of one repeat.

    Args:
        data: Number of the data set.
        learner: Number of the learner.
        repeat: Number of the repeat.
        signature: Checksum of everything its result depends on.
    """

    data: int
    learner: int
    repeat: int
    signature: str


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything a comparison does.

    Args:
        names: Of the learners.
        learners: Unfitted.
        sets: Data sets.
        folds: Training and test rows, by data set and repeat.
        measures: Names of measures.
        seed: Of folds and of learners without a seed.
    """

    names: list[str]
    learners: list[Any]
    sets: list[TestSet]
    folds: list[list[list[Fold]]]
    measures: list[str]
    seed: int

    @classmethod
    def of(
        cls, learners: Any, X: Any, D: Any, cv: Any, repeats: int, measures: Sequence[str] | None, seed: int
    ) -> Plan:
        """Check everything, and lay out the folds; the arguments are those of ``compare``."""
        names, models = check_learners(learners)
        sets = check_sets(X, D)
        check_count("repeats", repeats)
        if repeats > 1 and not isinstance(cv, (int, np.integer)):
            raise InputError("repeats > 1 shuffles the rows anew each time: give cv as a number of folds.")
        folds = [
            [list_folds(cv, len(data.D), derive_seed(seed, repeat) % 2**31) for repeat in range(repeats)]
            for data in sets
        ]
        return cls(names, models, sets, folds, check_measures(measures), seed)

    def units(self) -> Iterator[Unit]:
        """All pieces of work, in the order in which they are done."""
        words = [_describe(learner) for learner in self.learners]
        for d, data in enumerate(self.sets):
            for r, folds in enumerate(self.folds[d]):
                rows = b"".join(np.asarray(part, dtype=np.int64).tobytes() + b"|" for fold in folds for part in fold)
                for k in range(len(self.learners)):
                    parts = [__version__, data.digest, words[k], ",".join(self.measures), str(self.seed), str(r)]
                    signature = hashlib.sha256("\0".join(parts).encode() + rows).hexdigest()[:24]
                    yield Unit(d, k, r, signature)

    def model(self, unit: Unit) -> Any:
        """An unfitted learner for one piece of work; a seed that is not set comes from the repeat's number."""
        model = clone(self.learners[unit.learner])
        missing = [
            name
            for name, value in model.get_params().items()
            if value is None and (name == "random_state" or name.endswith("__random_state"))
        ]
        seed = derive_seed(self.seed, unit.repeat, 1) % (2**31 - 1)
        return model.set_params(**dict.fromkeys(missing, seed))


def check_learners(learners: Any) -> tuple[list[str], list[Any]]:
    """Names and unfitted learners; scikit-learn regressors are wrapped.

    Args:
        learners: Name to learner; or a sequence of learners, named by their classes.

    Returns:
        Names and learners.

    Raises:
        InputError: Nothing to compare, a class instead of an object, or one that cannot be cloned.

    Example:
        >>> from snefy_ldl.learners import SABFGS
        >>> check_learners([SABFGS()])[0]
        ['SABFGS']
    """
    if not isinstance(learners, Mapping):
        listed = list(learners) if np.iterable(learners) and not isinstance(learners, str) else [learners]
        learners = {type(one).__name__: one for one in listed}
        if len(learners) < len(listed):
            raise InputError('two learners are of one class: name them, e.g. {"few": AAKNN(5), "many": AAKNN(20)}.')
    if not learners:
        raise InputError('no learner to compare: give {"name": learner, ...}.')
    checked = []
    for name, one in learners.items():
        if isinstance(one, type):
            raise InputError(f"{name!r} is a class; give an object: {one.__name__}().")
        if not (hasattr(one, "fit") and hasattr(one, "predict") and hasattr(one, "get_params")):
            raise InputError(f"{name!r} must have fit, predict and get_params; derive it from sklearn's BaseEstimator.")
        one = RegressorLDL(one) if not _is_learner(one) and is_regressor(one) else one
        try:
            checked.append(clone(one))
        except (TypeError, RuntimeError) as error:
            raise InputError(f"{name!r} cannot be cloned: {error}") from None
    return [str(name) for name in learners], checked


def _is_learner(one: Any) -> bool:
    """Whether something predicts label distributions by itself, though scikit-learn may call it a regressor."""
    return isinstance(one, Learner) or callable(getattr(one, "predict_dist", None))


def check_sets(X: Any, D: Any) -> list[TestSet]:
    """Data sets, checked.

    Args:
        X: Features with ``D`` beside them; or without it, name to ``(X, D)`` or to an object with ``.X`` and ``.D``.
        D: Label distributions, or None.

    Returns:
        One entry a data set.

    Raises:
        InputError: Rows or labels that break a rule, or no data at all.
    """
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
    features = check_features(X)
    labels, _ = check_distributions(D, n_rows=features.shape[0])
    dense = sp.csr_matrix(features).toarray() if sp.issparse(features) else np.ascontiguousarray(features)
    digest = hashlib.sha256(repr((dense.shape, labels.shape)).encode() + dense.tobytes() + labels.tobytes())
    named = D if hasattr(D, "columns") else labels
    return TestSet(name, X, labels, named, digest.hexdigest())


def check_measures(measures: Sequence[str] | None) -> list[str]:
    """Names of measures; the six of Geng (2016) by default.

    Args:
        measures: Names, or None.

    Returns:
        The names.

    Raises:
        InputError: There is no such measure.

    Example:
        >>> check_measures(["kl_divergence"]), len(check_measures(None))
        (['kl_divergence'], 6)
    """
    chosen = (
        list(metrics.HIGHER_IS_BETTER) if measures is None else [measures] if isinstance(measures, str) else measures
    )
    unknown = [name for name in chosen if name not in metrics.MEASURES]
    if unknown or not chosen:
        raise InputError(f"measures={list(chosen)!r}: use names out of {', '.join(metrics.MEASURES)}.")
    return list(chosen)


def _describe(learner: Any) -> str:
    """A learner's class and settings in words that are the same in every process."""
    params = sorted(learner.get_params(deep=True).items())
    kind = f"{type(learner).__module__}.{type(learner).__qualname__}"
    return _ADDRESS.sub("", f"{kind}({', '.join(f'{name}={value!r}' for name, value in params)})")
