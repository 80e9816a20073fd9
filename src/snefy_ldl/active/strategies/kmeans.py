"""A row of each cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import pairwise_distances_argmin_min

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.active.diversity import cluster, nearest_in_cluster
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.base import top_rows
from snefy_ldl.active.strategies.feature import FeatureStrategy

__all__ = ["KMeansSampling"]


class KMeansSampling(FeatureStrategy, name="kmeans"):
    """The row nearest to each centre of n k-means clusters (Zhdanov, 2019); the utility is minus that distance.

    Args:
        standardize: scale the features by their standard deviation in the pool, and clip them at five.
        max_rows: clusters of a larger pool are those of this many rows, drawn at random.

    Example:
        >>> from snefy_ldl.active import query
        >>> rows = query("kmeans", [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]], 2, random_state=0)
        >>> sorted(rows.tolist())
        [1, 4]
    """

    def choose(
        self, pool: Pool, n: int, *, random: np.random.RandomState, exclude: Mask | None = None, **more: Any
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        compared = self.rows_to_compare(pool, n, None, random, exclude)
        centres = cluster(compared.features, n, int(random.randint(2**31 - 1)))
        utilities = np.empty(len(compared.free))
        distance, nearest = np.full(n, np.inf), np.full(n, -1, dtype=np.intp)
        for start, table in pool.tables("nearest"):
            label, gap = pairwise_distances_argmin_min(compared.scale(table), centres)
            utilities[start : start + len(table)] = -gap
            free = np.flatnonzero(compared.free[start : start + len(table)])
            nearest_in_cluster(label[free], gap[free], start + free, distance, nearest)
        chosen = nearest[nearest >= 0]
        chosen = chosen[np.argsort(-utilities[chosen], kind="stable")]
        if len(chosen) < n:  # empty clusters, as with many equal rows
            left = compared.free.copy()
            left[chosen] = False
            chosen = np.concatenate([chosen, top_rows(utilities, n - len(chosen), left, random)])
        return chosen, utilities
