"""The contract of label enhancers: that of the learners, with logical labels going in."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_features
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner, close_rows
from snefy_ldl.learners.enhancement.logical import check_logical, closed_logical
from snefy_ldl.learners.features import apply_scale, column_scale

__all__ = ["Enhancer"]

Self = TypeVar("Self", bound="Enhancer")


class Enhancer(Learner):
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

    def _check_params(self) -> None:
        if self.standardize not in (True, False):
            raise InputError(f"standardize={self.standardize!r}: use True or False.")

    @abstractmethod
    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        """Distributions (N, L) of rows whose logical labels are known."""

    def fit(self: Self, X: Any, D: Any) -> Self:
        """Recover label distributions.

        Args:
            X: Features (N, d): array, DataFrame or sparse matrix.
            D: Logical labels (N, L): 1 where a label applies to a row, 0 where it does not; names of a DataFrame come
                back out.

        Returns:
            The enhancer itself.

        Raises:
            InputError: Rows, labels or hyperparameters that break a rule.
        """
        relevant, names = check_logical(D, check_features(X).shape[0])
        shares: Any = closed_logical(relevant)
        if names is not None:
            import pandas as pd  # labels came as a DataFrame, so it is there

            shares = pd.DataFrame(shares, columns=names)
        return super().fit(X, shares)

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self.feature_mean_, self.feature_inverse_scale_ = column_scale(X)
        self.label_distributions_ = close_rows(self._enhance(self._scaled(X), D > 0.0, random))

    def _scaled(self, X: Array) -> Array:
        return X if not self.standardize else apply_scale(X, self.feature_mean_, self.feature_inverse_scale_)

    def transform(self, X: Any = None) -> Any:
        """Label distributions: of the fitted rows, or as :meth:`predict` of new ones.

        Args:
            X: Features (N, d), or None for the rows of ``fit``.

        Returns:
            Rows that sum to one, (N, L); a DataFrame where the labels came as one.
        """
        check_is_fitted(self, "n_labels_")
        return self._named(self.label_distributions_.copy(), None) if X is None else self.predict(X)

    def fit_transform(self, X: Any, D: Any) -> Any:
        """Recovered label distributions of these rows.

        Args:
            X: Features (N, d).
            D: Logical labels (N, L).

        Returns:
            Rows that sum to one, (N, L); a DataFrame where the labels came as one.
        """
        return self.fit(X, D).transform()

    def _predict(self, X: Array) -> Array:
        raise InputError(
            f"{type(self).__name__} knows the rows it was fitted to only; fit a learner to transform() for new rows."
        )
