"""The contract every learner keeps: checks, names in and out, scores, and files without pickle.

A learner states its objective in ``_fit`` and its answer in ``_predict``; both see clean float64 arrays only.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from snefy_ldl._types import Array
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners.storage import REGISTRY, is_fitted_name, read_learner, write_learner
from snefy_ldl.validation import check_distributions, check_features

#: No predicted share is smaller than this, so that logarithms of predictions always exist.
SMALLEST_SHARE = 1e-12

Self = TypeVar("Self", bound="Learner")


def close_rows(P: Array) -> Array:
    """Rows lifted to at least :data:`SMALLEST_SHARE` and divided by their sums."""
    P = np.maximum(P, SMALLEST_SHARE)
    closed: Array = P / P.sum(axis=1, keepdims=True)
    return closed


class Learner(BaseEstimator, ABC):  # type: ignore[misc]
    """Base of all label distribution learners.

    Subclasses write ``_check_params()``, ``_fit(X, D, random)`` and ``_predict(X)``. Everything a fit leaves behind
    ends in an underscore and is an array, a plain value or another learner: that is what :meth:`save` writes.
    """

    random_state: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("snefy_ldl.") and not cls.__name__.startswith("_"):
            REGISTRY[cls.__name__] = cls

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    # What a learner states ------------------------------------------------------------------------------------------

    def _check_params(self) -> None:
        """Raise InputError for a hyperparameter outside its range."""

    @abstractmethod
    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        """Learn from clean arrays."""

    @abstractmethod
    def _predict(self, X: Array) -> Array:
        """Shares (N, L) of clean features."""

    def _after_load(self) -> None:
        """Rebuild what is derived from the saved arrays (a search tree, say)."""

    # The shared contract --------------------------------------------------------------------------------------------

    def fit(self: Self, X: Any, D: Any) -> Self:
        """Learn from features (N, d) and label distributions (N, L)."""
        self._check_params()
        features = _dense(check_features(X))
        labels, names = check_distributions(D, n_rows=features.shape[0])
        for name in [name for name in vars(self) if is_fitted_name(name)]:
            delattr(self, name)
        self._check_names(X, reset=True)
        self.n_features_in_ = features.shape[1]
        self.n_labels_ = labels.shape[1]
        self.label_names_ = names
        self._fit(features, np.ascontiguousarray(labels), check_random_state(self.random_state))
        return self

    def predict(self, X: Any) -> Any:
        """Label distributions (N, L); a DataFrame when the labels of ``fit`` came as one."""
        return self._named(self._predict_array(self._check_X(X)), X)

    def score(self, X: Any, D: Any) -> float:
        """Minus the mean Kullback-Leibler divergence ``KL(D ‖ predict(X))``: larger is better, 0 is perfect."""
        features = self._check_X(X)
        labels, _ = check_distributions(D, n_rows=features.shape[0], n_labels=self.n_labels_)
        return -mean_kl(labels, self._predict_array(features))

    def _predict_array(self, features: Array) -> Array:
        return close_rows(self._predict(features))

    def _check_X(self, X: Any) -> Array:
        check_is_fitted(self, "n_labels_")
        self._check_names(X, reset=False)
        features = _dense(check_features(X))
        if features.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {features.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input."
            )
        return features

    def _check_names(self, X: Any, *, reset: bool) -> None:
        try:
            _check_feature_names(self, X, reset=reset)
        except ValueError as error:
            raise InputError(str(error)) from None

    def _named(self, P: Array, X: Any) -> Any:
        if self.label_names_ is None:
            return P
        import pandas as pd

        index = X.index if hasattr(X, "index") and hasattr(X, "columns") else None
        return pd.DataFrame(P, columns=self.label_names_, index=index)

    # Files ----------------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the fitted learner to a folder: safetensors arrays and ``model.json``, no pickle."""
        check_is_fitted(self, "n_labels_")
        write_learner(self, Path(folder))
        return Path(folder)

    @classmethod
    def load(cls: type[Self], folder: str | os.PathLike[str]) -> Self:
        """Read a learner back; ModelFileError says what is wrong with a damaged, foreign or newer file."""
        learner = read_learner(Path(folder))
        if not isinstance(learner, cls):
            raise ModelFileError(f"{folder} holds a {type(learner).__name__}, not a {cls.__name__}.")
        return learner


def mean_kl(D: Array, P: Array) -> float:
    """Mean over rows of ``Σ_j d_j log(d_j / p_j)``, with ``0 log 0 = 0``."""
    positive = D > 0
    ratio = np.log(np.where(positive, D, 1.0)) - np.log(np.where(positive, P, 1.0))
    return float((D * ratio).sum(axis=1).mean())


def _dense(X: Any) -> Array:
    """A C-ordered array: memory order would otherwise change the last bits of matrix products."""
    return np.ascontiguousarray(sp.csr_matrix(X).toarray() if sp.issparse(X) else X)
