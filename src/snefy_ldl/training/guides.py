"""Guides: quick point learners whose predictions a density may see with the features, or instead of them.

For the training rows the predictions must be out of sample, or the network would trust its guides too much: a learner
that has out-of-bag predictions gives those, any other is fitted once per fold; a last fit on all rows serves new ones.
What the network sees are the centred logarithms of the predicted shares.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, PredefinedSplit

from snefy_ldl._internal.rows import count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.grouping import group_folds
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners.learner import Learner, pack_learner, unpack_learner
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.training.policy import POLICY


@dataclass(frozen=True)
class Guides:
    """Fitted guides.

    Args:
        learners: each with ``predict(X)`` -> (N, L).
        floor: predicted shares are lifted here before the logarithm.
    """

    learners: list[Any]
    floor: float

    def features(self, X: Any) -> Array:
        """What the network sees of new rows: centred logs of every guide's prediction (N, G L)."""
        return np.hstack([centred_logs(np.asarray(one.predict(X)), self.floor) for one in self.learners])

    def inputs(self, X: Any, kind: str) -> Any:
        """What a network sees of rows X: the guides' predictions, with the features where ``kind`` is ``"both"``."""
        return join_features(X, self.features(X), kind)


def join_features(X: Any, seen: Array, kind: str) -> Array:
    """Guides' predictions (N, G L), or dense features (N, d) and these where ``kind`` is ``"both"``."""
    return np.hstack([X.toarray() if sp.issparse(X) else X, seen]) if kind == "both" else seen


def fit_guides(
    learners: Sequence[Any], X: Any, D: Array, rows: Index, floor: float, seed: int, groups: Index | None = None
) -> tuple[Guides, Array]:
    """Fit guides, and predict every row without having seen its label.

    Args:
        learners: scikit-learn regressors with several outputs, or label distribution learners; cloned.
        X: features of all rows.
        D: label distributions of all rows (N, L), no gaps.
        rows: the rows that may be seen; the others are predicted too.
        floor: predicted shares are lifted here before the logarithm.
        seed: of folds and samples.
        groups: of all rows (N,); a row is then predicted without having seen any row of its group. None if rows do
            not come in groups.

    Returns:
        The guides fitted on those rows, and what the network sees of all rows (N, G L).

    Raises:
        InputError: where a guide cannot be cloned, fitted, or predicts something else than (N, L).
    """
    random = np.random.default_rng(seed)
    most = POLICY.guide_rows
    used = rows if len(rows) <= most else np.sort(random.choice(rows, most, replace=False))
    fitted, tables = [], []
    for number, learner in enumerate(learners):
        whole = _fit(learner, X, D, used, number, groups)
        shares = _predict(whole, X, D.shape[1], number)
        out_of_bag = getattr(whole, "out_of_bag_", None)
        if out_of_bag is not None:
            known = ~np.isnan(out_of_bag).any(axis=1)
            shares[used[known]] = out_of_bag[known]
            shares[used[~known]] = D[used].mean(0)
        else:
            n_folds = min(POLICY.guide_folds(len(used), X.shape[1]), len(used))
            folds = KFold(n_folds, shuffle=True, random_state=seed % 2**31).split(used)
            if groups is not None:
                folds = PredefinedSplit(group_folds(groups[used], n_folds, random)).split()
            for train, test in folds:
                part = _fit(learner, X, D, used[train], number)
                shares[used[test]] = _predict(part, take_rows(X, used[test]), D.shape[1], number)
        fitted.append(whole)
        tables.append(centred_logs(shares, floor))
    return Guides(fitted, floor), np.hstack(tables)


def centred_logs(shares: Array, floor: float) -> Array:
    """``log ℓ_r - mean_s log ℓ_s`` of shares lifted to a floor (N, L).

    >>> centred_logs(np.array([[0.25, 0.25, 0.5]]), 1e-6).round(3)
    array([[-0.231, -0.231,  0.462]])
    """
    logs = np.log(np.maximum(shares, floor))
    return logs - logs.mean(axis=1, keepdims=True)


def _fit(learner: Any, X: Any, D: Array, rows: Index, number: int, groups: Index | None = None) -> Any:
    blocks = groups[rows] if groups is not None and isinstance(learner, TreesLDL) else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a guide need not be perfect
            fresh = clone(learner) if blocks is None else learner.leaving_out(blocks)
            return fresh.fit(take_rows(X, rows), D[rows])
    except Exception as error:
        raise InputError(
            f"guide {number} ({type(learner).__name__}) could not be fitted: {error} A guide is a regressor with "
            "fit(X, D) and predict(X) -> (N, L) that scikit-learn can clone."
        ) from error


def _predict(learner: Any, X: Any, n_labels: int, number: int) -> Array:
    shares = np.asarray(learner.predict(X), dtype=np.float64)
    if shares.shape != (count_rows(X), n_labels) or not np.isfinite(shares).all():
        raise InputError(
            f"guide {number} ({type(learner).__name__}) predicts shape {shares.shape}, or numbers that are not finite; "
            f"one row per row of X and one column per label are needed: ({count_rows(X)}, {n_labels})."
        )
    return np.array(shares)


# -- files -------------------------------------------------------------------------------------------------------------


def pack_guides(guides: Guides) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fitted guides as plain JSON values and arrays.

    The library's own learners become arrays. Any other is code: it must be passed again at loading, as a backbone must.

    Args:
        guides: to be written.

    Returns:
        The description, and the arrays by name.
    """
    arrays: dict[str, Any] = {}
    entries: list[dict[str, Any]] = []
    for number, learner in enumerate(guides.learners):
        if isinstance(learner, Learner):
            lean = copy.copy(learner)
            lean.__dict__.pop("out_of_bag_", None)  # of use in training only
            entries.append({"learner": pack_learner(lean, arrays, f"guide.{number}.")})
        else:
            entries.append({"class": type(learner).__name__})
    return {"floor": guides.floor, "learners": entries}, arrays


def unpack_guides(description: dict[str, Any], arrays: dict[str, Any], given: Sequence[Any] | None = None) -> Guides:
    """The guides that :func:`pack_guides` described.

    Args:
        description: as it was.
        arrays: all arrays of the file.
        given: fitted guides to use instead.

    Returns:
        Fitted guides.

    Raises:
        ModelFileError: where a guide was not saved and none is given.
    """
    entries = description["learners"]
    if given is not None:
        if len(given) != len(entries):
            raise ModelFileError(f"the model was fitted with {len(entries)} guide(s); {len(given)} were given.")
        return Guides(list(given), float(description["floor"]))
    learners: list[Any] = []
    for number, entry in enumerate(entries):
        if "learner" not in entry:
            raise ModelFileError(
                f"guide {number} ({entry['class']}) is not the library's own, and its code is not saved: pass the "
                "fitted guides again: SnefyLDL.load(folder, guides=[...])."
            )
        learners.append(unpack_learner(entry["learner"], arrays))
    return Guides(learners, float(description["floor"]))


def guides_mean(seen: Array, n_labels: int) -> Array:
    """The guides' mean (N, L), from centred logs of their predictions (N, G L).

    >>> guides_mean(np.log([[0.2, 0.8, 0.6, 0.4]]), 2)
    array([[0.4, 0.6]])
    """
    mean: Array = softmax(seen.reshape(len(seen), -1, n_labels), axis=-1).mean(1)
    return mean
