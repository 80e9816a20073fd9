"""scikit-learn regressors as label distribution learners."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import clone
from sklearn.multioutput import MultiOutputRegressor
from sklearn.utils import get_tags

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner
from snefy_ldl.training.guides import centred_logs

__all__ = ["RegressorLDL"]


class RegressorLDL(Learner):
    """Any scikit-learn regressor as a label distribution learner.

    ``target="shares"`` regresses on the shares, cuts predictions at zero and divides rows by their sums;
    ``target="logs"`` regresses on ``log ℓ_r - mean_s log ℓ_s`` and predicts the softmax. A regressor of one output is
    fitted once a label.

    Args:
        regressor: With ``fit(X, Y)`` and ``predict(X)``; cloned.
        target: ``"shares"`` or ``"logs"``.
        floor: Shares are lifted here before the logarithm.
        random_state: Given to the regressor where it takes one and has none.

    Attributes:
        regressor_: The fitted regressor. It is not written by ``save``: scikit-learn's objects have files of their own.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> X, D = [[0.0], [1.0], [2.0]], [[0.2, 0.8], [0.4, 0.6], [0.6, 0.4]]
        >>> RegressorLDL(Ridge(alpha=0.0)).fit(X, D).predict([[1.5]]).round(3)
        array([[0.5, 0.5]])
    """

    def __init__(self, regressor: Any, target: str = "shares", floor: float = 1e-4, random_state: Any = None) -> None:
        self.regressor = regressor
        self.target = target
        self.floor = floor
        self.random_state = random_state

    def _check_params(self) -> None:
        if isinstance(self.regressor, type) or not hasattr(self.regressor, "fit"):
            raise InputError(f"regressor must be an object with fit and predict; got {self.regressor!r}.")
        if self.target not in ("shares", "logs"):
            raise InputError(f'target={self.target!r}: use "shares" or "logs".')
        check_number("floor", self.floor, strict=True)

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        regressor = clone(self.regressor)
        seeds = {
            name: int(random.randint(2**31 - 1))
            for name, value in sorted(regressor.get_params().items())
            if value is None and (name == "random_state" or name.endswith("__random_state"))
        }
        regressor.set_params(**seeds)
        if not get_tags(regressor).target_tags.multi_output:
            regressor = MultiOutputRegressor(regressor)
        self.regressor_ = regressor.fit(X, centred_logs(D, self.floor) if self.target == "logs" else D)

    def _predict(self, X: Array) -> Array:
        values = np.asarray(self.regressor_.predict(X), dtype=np.float64).reshape(len(X), self.n_labels_)
        if self.target == "logs":
            shares: Array = softmax(values, axis=1)
            return shares
        values = np.maximum(values, 0.0)
        return np.where(values.sum(axis=1, keepdims=True) > 0.0, values, 1.0)  # a row of zeros says nothing
