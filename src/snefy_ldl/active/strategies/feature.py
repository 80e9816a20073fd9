"""Strategies that look at features alone: what they have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.limits import COMPARED_ELEMENTS
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Index, Mask
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.diversity import Geometry
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.base import Strategy, free_rows
from snefy_ldl.errors import InputError

__all__ = ["FeatureStrategy", "Rows", "labeled_table"]


@dataclass(frozen=True)
class Rows:
    """The rows that a strategy compares.

    Args:
        scale: how features are brought to one scale.
        free: mask (N,) of rows that may be chosen.
        index: numbers (r,) of the rows that are compared.
        features: their scaled features (r, d).
        labeled: scaled features of the labelled rows, or None without any.
    """

    scale: Geometry
    free: Mask
    index: Index
    features: NDArray[Any]
    labeled: NDArray[Any] | None


class FeatureStrategy(Strategy):
    """A strategy on scaled features; those that compare rows with each other look at ``max_rows`` of them.

    Args:
        standardize: scale the features by their standard deviation in the pool, and clip them at five.
        max_rows: a larger pool is thinned at random to this many rows before rows are compared.

    Raises:
        InputError: ``max_rows`` is no whole number of at least 1.

    Example:
        >>> from snefy_ldl.active import CoreSet
        >>> issubclass(CoreSet, FeatureStrategy), CoreSet(max_rows=500).max_rows
        (True, 500)
    """

    def __init__(self, standardize: bool = True, max_rows: int = 100_000) -> None:
        self.standardize = standardize
        self.max_rows = check_count("max_rows", max_rows)

    def rows_to_compare(
        self, pool: Pool, n: int, X_labeled: Any, random: np.random.RandomState, exclude: Mask | None
    ) -> Rows:
        """Scale the pool and take the rows that are compared.

        Args:
            pool: the N rows.
            n: how many will be chosen.
            X_labeled: rows with labels, or None.
            random: source of randomness, for thinning.
            exclude: mask (N,) of rows that must not be chosen, or None.

        Returns:
            The rows, at least n of them.

        Raises:
            InputError: there are fewer than n rows, or the labelled ones have other features.
        """
        scale = Geometry.of(pool, self.standardize)
        free = free_rows(pool.count(), n, exclude)
        rows = np.flatnonzero(free)
        width = 1 if scale.mean is None else len(scale.mean)
        most = max(n, min(self.max_rows, COMPARED_ELEMENTS // width))
        if len(rows) > most:
            rows = np.sort(random.choice(rows, most, replace=False))
        features = scale(pool.as_table(pool.take(rows), "X_pool"))
        return Rows(scale, free, rows, features, labeled_table(X_labeled, pool, scale, features.shape[1]))


def labeled_table(X_labeled: Any, pool: Pool, scale: Geometry, width: int) -> NDArray[Any] | None:
    """Scaled features of the labelled rows.

    Args:
        X_labeled: rows with labels, or None.
        pool: the rows to choose from, which say how rows become numbers.
        scale: how the pool's features are scaled.
        width: how many features the pool has.

    Returns:
        A table (k, width), or None without any row.

    Raises:
        InputError: the rows have another number of features.
    """
    if X_labeled is None or count_rows(as_rows(X_labeled)) == 0:
        return None
    table = pool.as_table(X_labeled, "X_labeled")
    if table.shape[1] != width:
        raise InputError(f"X_labeled has {table.shape[1]} features, X_pool {width}.")
    return scale(table)
