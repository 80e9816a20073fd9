"""How the model of a round is fitted to the labels so far, and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_counts, check_distributions
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import score

__all__ = ["RoundFitter", "check_pair"]


class RoundFitter:
    """Fits a clone of a model to labels, and measures it on rows kept aside.

    Args:
        model: an unfitted model.
        votes: whether labels are vote counts, fitted with ``fit(X, counts=...)``.
        random_state: seed of models that have none.
        X_val: rows to measure on, or None.
        D_val: their label distributions (or votes), or None.

    Raises:
        InputError: one of ``X_val`` and ``D_val`` is missing, or they have different numbers of rows.

    Example:
        >>> from snefy_ldl.learners import SABFGS
        >>> fitter = RoundFitter(SABFGS(), False, 0, [[0.5]], [[0.5, 0.5]])
        >>> model = fitter.fit(np.array([[0.0], [1.0]]), fitter.check_labels([[0.2, 0.8], [0.8, 0.2]]))
        >>> round(fitter.measure(model)["chebyshev"], 2)
        0.0
    """

    def __init__(self, model: Any, votes: bool, random_state: int, X_val: Any = None, D_val: Any = None) -> None:
        check_pair(X_val, D_val, "val")
        self.model, self.votes, self.random_state = model, votes, random_state
        self.X_val, self.D_val = X_val, D_val

    def check_labels(self, labels: Any, n_rows: int | None = None) -> Array:
        """Labels as numbers.

        Args:
            labels: label distributions, or votes, (N, L).
            n_rows: how many rows there must be; None takes any number.

        Returns:
            The labels (N, L).

        Raises:
            InputError: they are not what they must be; the cell is named.
        """
        return (check_counts if self.votes else check_distributions)(labels, n_rows=n_rows)[0]

    def fit(self, X: Any, labels: Array) -> Any:
        """A clone of the model fitted to some labels.

        Args:
            X: features (N, d).
            labels: what :meth:`check_labels` gave, (N, L).

        Returns:
            The fitted model.
        """
        model = clone(self.model)
        if "random_state" in model.get_params() and model.random_state is None:
            model.set_params(random_state=self.random_state)  # or a run could not be repeated
        return model.fit(X, counts=labels) if self.votes else model.fit(X, labels)

    def measure(self, model: Any, need_likelihood: bool = False) -> dict[str, float]:
        """Figures of a fitted model on the rows kept aside.

        Args:
            model: what :meth:`fit` gave.
            need_likelihood: raise where the model has no ``log_prob``.

        Returns:
            The mean log likelihood, where the model has one, and the six measures; nothing without rows.

        Raises:
            InputError: the likelihood is needed, and the model has none.
        """
        if self.X_val is None:
            return {}
        figures = {}
        if hasattr(model, "log_prob"):
            given = {"counts": self.D_val} if self.votes else {"D": self.D_val}
            figures["validation_log_likelihood"] = float(np.mean(model.log_prob(self.X_val, **given)))
        elif need_likelihood:
            raise InputError(f"patience needs a model with log_prob; {type(model).__name__} has none.")
        table = self.check_labels(self.D_val)
        return figures | score(table / table.sum(axis=1, keepdims=True), np.asarray(model.predict(self.X_val)))


def check_pair(X: Any, D: Any, what: str) -> None:
    """Raise unless features and labels are both given or both not, with as many rows.

    Args:
        X: features, or None.
        D: labels, or None.
        what: the end of both names, for the message.

    Raises:
        InputError: they do not go together.
    """
    if (X is None) != (D is None):
        raise InputError(f"X_{what} and D_{what} go together; one of them is missing.")
    if X is not None and count_rows(as_rows(X)) != len(D):
        raise InputError(f"X_{what} has {count_rows(as_rows(X))} rows, D_{what} {len(D)}.")
