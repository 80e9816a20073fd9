"""The rows farthest from what is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.active.diversity import nearest_distance, squared_distances
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.feature import FeatureStrategy

__all__ = ["CoreSet"]


class CoreSet(FeatureStrategy, name="coreset"):
    """Greedy k-centre (Sener & Savarese, 2018): always the row farthest from every labelled or chosen row.

    Without labelled rows it starts at the row nearest to the middle. The utility is the distance to the nearest
    labelled row, or to that start.

    Args:
        standardize: scale the features by their standard deviation in the pool, and clip them at five.
        max_rows: a larger pool is thinned at random to this many rows.

    Example:
        >>> from snefy_ldl.active import query
        >>> query(CoreSet(), [[0.0], [0.1], [5.0], [5.1], [10.0]], 2, X_labeled=[[0.0]])
        array([4, 2])
    """

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        X_labeled: Any = None,
        random: np.random.RandomState,
        exclude: Mask | None = None,
        **more: Any,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        compared = self.rows_to_compare(pool, n, X_labeled, random, exclude)
        Z = compared.features
        chosen: list[int] = []
        if compared.labeled is None:
            chosen.append(int(np.argmin(squared_distances(Z, Z.mean(axis=0)))))
            anchor = Z[chosen]
        else:
            anchor = compared.labeled
        gap = nearest_distance(Z, anchor) ** 2
        while len(chosen) < n:
            gap[chosen] = -1.0
            chosen.append(int(np.argmax(gap)))
            gap = np.minimum(gap, squared_distances(Z, Z[chosen[-1]]))
        utilities = np.empty(len(compared.free))
        for start, table in pool.tables("distance"):
            utilities[start : start + len(table)] = nearest_distance(compared.scale(table), anchor)
        return compared.index[chosen], utilities
