"""Missing cells of arrays: filled with medians, and told by a feature of their own where enough rows lack a number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import LARGEST_FEATURE, as_float, check_features
from snefy_ldl.datasets.kinds import fill_values, matters
from snefy_ldl.errors import InputError

__all__ = ["GapFiller", "PlainState", "fill_gaps", "has_gaps"]


class PlainState(ABC):
    """Something that its plain values say everything about."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainState) and type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def has_gaps(X: Any) -> bool:
    """Whether an array of numbers has missing cells.

    Args:
        X: Anything; what is no array of real numbers has none.

    Returns:
        True where some number is NaN.

    Example:
        >>> has_gaps([[1.0, float("nan")]]), has_gaps([["a"]])
        (True, False)
    """
    if sp.issparse(X):
        return False
    try:
        table = np.asarray(as_float(X, "X") if hasattr(X, "detach") else X)
    except (TypeError, ValueError):
        return False
    return table.dtype.kind == "f" and bool(np.isnan(table).any())


def fill_gaps(features: Any, fills: Array, indicators: Mask) -> Any:
    """Gaps filled, and a column for each indicator.

    Args:
        features: Numbers (N, c), NaN where a cell is missing.
        fills: What each column gets (c,).
        indicators: For which columns absence is a feature of its own (c,).

    Returns:
        Numbers (N, d); an array without gaps and indicators comes back as it is.

    Example:
        >>> fill_gaps(np.array([[np.nan, 1.0]]), np.array([5.0, 0.0]), np.array([True, False]))
        array([[5., 1., 1.]])
    """
    missing = np.isnan(features)
    if missing.any():
        features = np.where(missing, fills.astype(features.dtype), features)
    return np.hstack([features, missing[:, indicators]]).astype(features.dtype) if indicators.any() else features


class GapFiller(PlainState):
    """The columns of an array as features: NaN is a missing cell, which gets the median of its column.

    Args:
        fills: Medians (c,).
        indicators: For which columns absence is a feature of its own (c,).
        has_gaps: Whether the array of the fit had missing cells.

    Example:
        >>> filler = GapFiller.fit(np.array([[1.0], [3.0], [np.nan]]))
        >>> filler.transform([[np.nan], [5.0]])
        array([[2.],
               [5.]])
    """

    def __init__(self, fills: Array, indicators: Mask, has_gaps: bool = False) -> None:
        self.fills, self.indicators, self.has_gaps = fills, indicators, has_gaps
        self.notes: tuple[str, ...] = ()

    @classmethod
    def fit(cls, table: Array) -> GapFiller:
        """Medians and gaps of an array.

        Args:
            table: Checked numbers (N, c), NaN where a cell is missing.

        Returns:
            The encoder.

        Example:
            >>> GapFiller.fit(np.array([[1.0], [3.0]])).fills
            array([2.])
        """
        fills, missing = fill_values(table)
        return cls(fills, matters(missing), bool(missing.any()))

    @property
    def n_in(self) -> int:
        """Number of columns, c."""
        return len(self.fills)

    @property
    def n_out(self) -> int:
        """Number of features, d."""
        return self.n_in + int(self.indicators.sum())

    @property
    def is_plain(self) -> bool:
        """Whether the features are the columns themselves."""
        return not self.indicators.any()

    def transform(self, table: Any) -> Any:
        """The features of an array or of a DataFrame of numbers.

        Args:
            table: Numbers (N, c).

        Returns:
            Features (N, d); an array without gaps, or a sparse matrix, comes back as it is.

        Raises:
            InputError: It has another number of columns, or holds infinity.

        Example:
            >>> GapFiller(np.zeros(1), np.array([True])).transform([[np.nan], [4.0]])
            array([[0., 1.],
                   [4., 0.]])
        """
        if sp.issparse(table) and not self.is_plain:
            raise InputError("the model was fitted to an array with gaps; X must not be sparse.")
        features = check_features(table, n_features=self.n_in, largest=LARGEST_FEATURE, missing=not sp.issparse(table))
        return features if sp.issparse(table) else fill_gaps(features, self.fills, self.indicators)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which :func:`snefy_ldl.datasets.columns.read_encoder` takes.

        Returns:
            A dict.

        Example:
            >>> GapFiller(np.zeros(2), np.array([False, True])).to_dict()
            {'named': False, 'width': 3, 'fills': [0.0, 0.0], 'indicators': [1]}
        """
        where = [int(k) for k in np.flatnonzero(self.indicators)]
        return {"named": False, "width": self.n_out, "fills": self.fills.tolist(), "indicators": where}
