"""Logical labels, and the contract of label enhancers: that of the learners, with logical labels going in."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_distributions, check_features, check_number, check_table, refuse_first
from snefy_ldl.errors import InputError
from snefy_ldl.learners.learner import close_rows
from snefy_ldl.learners.linear import ScaledLearner


def binarise(D: Any, threshold: float = 0.5) -> Mask:
    """Logical labels of label distributions: the largest labels, as few as hold ``threshold`` of the whole.

    Args:
        D: Label distributions, (N, L).
        threshold: Share that the relevant labels reach together, in (0, 1).

    Returns:
        Which labels apply, (N, L); at least one per row. Of equal shares the first counts as larger.

    Raises:
        InputError: Rows that are no label distributions, or a threshold outside (0, 1).

    References:
        Xu, Tao, Geng, Label enhancement for label distribution learning, IJCAI 2018, section 4.1.

    Example:
        >>> binarise([[0.3, 0.45, 0.25], [0.6, 0.3, 0.1]]).astype(int)
        array([[1, 1, 0],
               [1, 0, 0]])
    """
    shares, _ = check_distributions(D)
    if not 0.0 < check_number("threshold", threshold) < 1.0:
        raise InputError(f"threshold={threshold!r} must lie between 0 and 1.")
    order = np.argsort(-shares, axis=1, kind="stable")
    before = np.cumsum(np.take_along_axis(shares, order, axis=1), axis=1)
    needed = np.concatenate([np.ones((len(shares), 1), bool), before[:, :-1] < threshold - 1e-12], axis=1)
    relevant = np.zeros(shares.shape, dtype=bool)
    np.put_along_axis(relevant, order, needed, axis=1)
    return relevant


def check_logical(L: Any, n_rows: int | None = None) -> tuple[Mask, list[str] | None]:
    """Logical labels as a boolean array, and their names if they had any.

    Args:
        L: Zeros and ones, or booleans, (N, L); -1 counts as 0.
        n_rows: Number of rows there must be.

    Returns:
        Which labels apply (N, L), and the names.

    Raises:
        InputError: Another number than 0, 1 or -1, a row without a label, fewer than two labels, or other rows.

    Example:
        >>> check_logical([[0, 1], [1, 1]])[0]
        array([[False,  True],
               [ True,  True]])
    """
    table, names = check_table(L, "L", "labels")
    if n_rows is not None and len(table) != n_rows:
        raise InputError(f"X and L must have the same number of rows; got {n_rows} and {len(table)}.")
    if table.shape[1] < 2:
        raise InputError(f"L has {table.shape[1]} label column; label enhancement needs at least 2.")
    rule = "L holds {value:g} at {place}; logical labels are 0 or 1."
    refuse_first(~np.isin(table, (-1.0, 0.0, 1.0)), table, rule, names)
    relevant = table > 0.0
    rule = "L has no label in {place}; every row needs at least one that applies."
    refuse_first(~relevant.any(axis=1), table[:, 0], rule)
    return relevant, names


def closed_logical(relevant: Mask) -> Array:
    """Equal shares for the labels that apply, (N, L)."""
    return relevant / relevant.sum(axis=1, keepdims=True)


Self = TypeVar("Self", bound="Enhancer")


class Enhancer(ScaledLearner):
    """Base of all label enhancers: ``_enhance`` recovers the distributions of the rows at hand.

    Attributes:
        label_distributions_: Recovered label distributions of the fitted rows, (N, L).
        n_features_in_: d.
        n_labels_: L.
        label_names_: Names of the labels, or None.

    Example:
        >>> from snefy_ldl.learners.enhancement import KM
        >>> isinstance(KM(), Enhancer)
        True
    """

    label_distributions_: Array
    #: Whether features are divided by their spreads and clipped; otherwise they keep their units.
    standardize: bool = True

    _choices = {"standardize": (True, False)}  # noqa: RUF012 - never changed

    @abstractmethod
    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        """Distributions (N, L) of rows whose logical labels are known."""

    def fit(self: Self, X: Any, D: Any = None, *, y: Any = None) -> Self:
        """Recover label distributions.

        Args:
            X: Features (N, d): array, DataFrame or sparse matrix.
            D: Logical labels (N, L): 1 where a label applies to a row, 0 where it does not; names of a DataFrame come
                back out.
            y: Another name of D.

        Returns:
            The enhancer itself.

        Raises:
            InputError: Rows, labels or hyperparameters that break a rule.
        """
        relevant, names = check_logical(y if D is None else D, check_features(X).shape[0])
        shares: Any = closed_logical(relevant)
        if names is not None:
            import pandas as pd  # labels came as a DataFrame, so it is there

            shares = pd.DataFrame(shares, columns=names)
        return super().fit(X, shares)

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self.label_distributions_ = close_rows(self._enhance(self._scale(X), D > 0.0, random))

    def transform(self, X: Any = None) -> Any:
        """Label distributions: of the fitted rows, or as :meth:`predict` of new ones.

        Args:
            X: Features (N, d), or None for the rows of ``fit``.

        Returns:
            Rows that sum to one, (N, L); a DataFrame if the labels came as one.
        """
        check_is_fitted(self, "n_labels_")
        return self._named(self.label_distributions_.copy(), None) if X is None else self.predict(X)

    def fit_transform(self, X: Any, D: Any) -> Any:
        """Recovered label distributions of these rows.

        Args:
            X: Features (N, d).
            D: Logical labels (N, L).

        Returns:
            Rows that sum to one, (N, L); a DataFrame if the labels came as one.
        """
        return self.fit(X, D).transform()

    def _predict(self, X: Array) -> Array:
        raise InputError(
            f"{type(self).__name__} predicts only the rows it was fitted to; fit a learner to transform() for new rows."
        )
