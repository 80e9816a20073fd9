"""What is asked for, checked before any work: the settings to try, the folds and the score."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold, ParameterGrid, ParameterSampler
from sklearn.pipeline import Pipeline

from snefy_ldl import metrics
from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import check_count, check_rows
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL

Space = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Fold = tuple[Index, Index]

#: Settings that say where and how a fit runs, not what it learns.
NOT_SEARCHED = ("device", "verbose", "warm_start", "checkpoint_dir")
#: Fewest training rows a fold may leave: two to learn from, one to validate on, and one to spare.
LEAST_ROWS = 4


def last_step(estimator: Any) -> str | None:
    """Name of the last step of a pipeline.

    Args:
        estimator: anything.

    Returns:
        The name; None where it is no pipeline.

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
        n_iter: None for the full grid, else so many draws.
        seed: of the draws.
        scored: name of the score.

    Returns:
        One dict a setting.

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
            raise InputError(f"space[{name!r}] is a distribution; say with n_iter how many settings to draw.")
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
            raise InputError(f"fold {k} tests on rows it trains on; its score would say nothing.")
    return folds
