"""What a query strategy is, and those that look at features alone.

The strategies that ask a model are in :mod:`snefy_ldl.active.strategies.laws`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.neighbors import NearestNeighbors

from snefy_ldl._types import Array, Index
from snefy_ldl.active.diversity import (
    SAMPLE_ELEMENTS,
    Geometry,
    cluster,
    nearest_distance,
    nearest_in_cluster,
    squared_distances,
)
from snefy_ldl.active.pool import BLOCK_ROWS, Pool, dense_table
from snefy_ldl.errors import InputError
from snefy_ldl.validation.rows import as_rows, count_rows


class Strategy(ABC):
    """How to choose n rows of a pool; a strategy holds settings only and may be used again."""

    #: Whether ``query`` must be given a fitted model.
    needs_model = False

    def block_rows(self, model: Any) -> int:
        """Rows to read at one time."""
        return BLOCK_ROWS

    @abstractmethod
    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: np.random.RandomState,
        exclude: NDArray[np.bool_] | None = None,
    ) -> tuple[Index, Array]:
        """Numbers of n rows, best first, and the utility of every row (NaN: not looked at).

        Args:
            pool: the rows.
            n: how many.
            model: a fitted model with ``predict_dist``, where one is needed.
            X_labeled: rows with labels, for the strategies that keep away from them.
            random: source of randomness.
            exclude: mask of rows that must not be chosen.
        """

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


def free_rows(n_rows: int, n: int, exclude: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Mask of rows that may be chosen; raises unless there are n."""
    free = np.ones(n_rows, dtype=bool) if exclude is None else ~exclude
    if free.shape != (n_rows,):
        raise InputError(f"exclude must have one entry a row of X_pool ({n_rows}); got shape {free.shape}.")
    if free.sum() < n:
        raise InputError(f"n={n} rows were asked for, but the pool has {int(free.sum())} to choose from.")
    return free


def top_rows(utilities: Array, n: int, free: NDArray[np.bool_], random: np.random.RandomState) -> Index:
    """The n free rows with the largest utilities, best first; equal ones in random order."""
    values = np.where(free & ~np.isnan(utilities), utilities, -np.inf)
    shuffled = random.permutation(np.flatnonzero(free))
    return np.asarray(shuffled[np.argsort(-values[shuffled], kind="stable")[:n]], dtype=np.intp)


class RandomSampling(Strategy):
    """Rows at random: what every other strategy must beat."""

    def choose(self, pool: Pool, n: int, *, random: np.random.RandomState, **asked: Any) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        n_rows = pool.count()
        free = free_rows(n_rows, n, asked.get("exclude"))
        keys = random.random_sample(n_rows)
        return top_rows(keys, n, free, random), keys


class _FeatureStrategy(Strategy):
    """A strategy on scaled features; those that compare rows with each other look at ``max_rows`` of them.

    Args:
        standardize: scale the features by their spread in the pool, and clip them at five.
        max_rows: a larger pool is thinned at random to this many rows before rows are compared.
    """

    def __init__(self, standardize: bool = True, max_rows: int = 100_000) -> None:
        if not isinstance(max_rows, (int, np.integer)) or max_rows < 1:
            raise InputError(f"max_rows must be a whole number of at least 1; got {max_rows!r}.")
        self.standardize = standardize
        self.max_rows = int(max_rows)

    def _start(
        self, pool: Pool, n: int, X_labeled: Any, random: np.random.RandomState, exclude: NDArray[np.bool_] | None
    ) -> tuple[Geometry, NDArray[np.bool_], Index, NDArray[Any], NDArray[Any] | None]:
        """Scaling, free rows, the rows to compare, their scaled features, and those of the labelled rows."""
        scale = Geometry.of(pool, self.standardize)
        free = free_rows(pool.count(), n, exclude)
        rows = np.flatnonzero(free)
        width = 1 if scale.mean is None else len(scale.mean)
        most = max(n, min(self.max_rows, SAMPLE_ELEMENTS // width))
        if len(rows) > most:
            rows = np.sort(random.choice(rows, most, replace=False))
        Z = scale(dense_table(pool.take(rows), "X_pool"))
        return scale, free, rows, Z, labeled_table(X_labeled, scale, Z.shape[1])


def labeled_table(X_labeled: Any, scale: Geometry, width: int) -> NDArray[Any] | None:
    """Scaled features of the labelled rows, or None without any."""
    if X_labeled is None or count_rows(as_rows(X_labeled)) == 0:
        return None
    table = dense_table(X_labeled, "X_labeled")
    if table.shape[1] != width:
        raise InputError(f"X_labeled has {table.shape[1]} features, X_pool {width}.")
    return scale(table)


class KMeansSampling(_FeatureStrategy):
    """The row nearest to each centre of n k-means clusters (Zhdanov, 2019); the utility is minus that distance."""

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        random: np.random.RandomState,
        exclude: NDArray[np.bool_] | None = None,
        **asked: Any,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        scale, free, _, Z, _ = self._start(pool, n, None, random, exclude)
        centres = cluster(Z, n, int(random.randint(2**31 - 1)))
        utilities = np.empty(len(free))
        distance, chosen = np.full(n, np.inf), np.full(n, -1, dtype=np.intp)
        for start, table in pool.tables("nearest"):
            label, gap = pairwise_distances_argmin_min(scale(table), centres)
            utilities[start : start + len(table)] = -gap
            own = np.flatnonzero(free[start : start + len(table)])
            nearest_in_cluster(label[own], gap[own], start + own, distance, chosen)
        found = chosen[chosen >= 0]
        found = found[np.argsort(-utilities[found], kind="stable")]
        if len(found) < n:  # empty clusters, as with many equal rows
            left = free.copy()
            left[found] = False
            found = np.concatenate([found, top_rows(utilities, n - len(found), left, random)])
        return found, utilities


class CoreSet(_FeatureStrategy):
    """Greedy k-centre (Sener & Savarese, 2018): always the row farthest from every labelled or chosen row.

    Without labelled rows it starts at the row nearest to the middle. The utility is the distance to the nearest
    labelled row, or to that start.
    """

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        X_labeled: Any = None,
        random: np.random.RandomState,
        exclude: NDArray[np.bool_] | None = None,
        **asked: Any,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        scale, free, rows, Z, labeled = self._start(pool, n, X_labeled, random, exclude)
        chosen: list[int] = []
        if labeled is None:
            chosen.append(int(np.argmin(squared_distances(Z, Z.mean(axis=0)))))
            anchor = Z[chosen]
        else:
            anchor = labeled
        gap = nearest_distance(Z, anchor) ** 2
        while len(chosen) < n:
            gap[chosen] = -1.0
            chosen.append(int(np.argmax(gap)))
            gap = np.minimum(gap, squared_distances(Z, Z[chosen[-1]]))
        utilities = np.empty(len(free))
        for start, table in pool.tables("distance"):
            utilities[start : start + len(table)] = nearest_distance(scale(table), anchor)
        return rows[chosen], utilities


class GraphDensity(_FeatureStrategy):
    """Rows with close neighbours in a k-nearest-neighbour graph, their neighbours then stepping back (Ebert, 2012).

    ``g_i = Σ_j W_ij / Σ_j P_ij`` with P the symmetric graph and ``W_ij = P_ij exp(-d_ij² / 2σ²)``, σ² the mean squared
    distance of neighbours. When i is chosen (or labelled), ``g_j -= g_i`` for its neighbours j. The utility is g
    before any choice.

    Args:
        n_neighbors: k.
        standardize: scale the features.
        max_rows: a larger pool is thinned to this many rows; the others get utility NaN.
    """

    def __init__(self, n_neighbors: int = 10, standardize: bool = True, max_rows: int = 20_000) -> None:
        super().__init__(standardize, max_rows)
        if not isinstance(n_neighbors, (int, np.integer)) or n_neighbors < 1:
            raise InputError(f"n_neighbors must be a whole number of at least 1; got {n_neighbors!r}.")
        self.n_neighbors = int(n_neighbors)

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        X_labeled: Any = None,
        random: np.random.RandomState,
        exclude: NDArray[np.bool_] | None = None,
        **asked: Any,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        _, free, rows, Z, labeled = self._start(pool, n, X_labeled, random, exclude)
        every = Z if labeled is None else np.concatenate([Z, labeled])
        density, graph = graph_density(every, self.n_neighbors)
        utilities = np.full(len(free), np.nan)
        utilities[rows] = density[: len(Z)]

        def step_back(row: int) -> None:
            density[graph.indices[graph.indptr[row] : graph.indptr[row + 1]]] -= density[row]

        for row in range(len(Z), len(every)):
            step_back(row)
        chosen: list[int] = []
        open_rows = np.arange(len(every)) < len(Z)
        for _ in range(n):
            pick = int(np.argmax(np.where(open_rows, density, -np.inf)))
            step_back(pick)
            open_rows[pick] = False
            chosen.append(pick)
        return rows[chosen], utilities


def graph_density(Z: NDArray[Any], n_neighbors: int) -> tuple[Array, sp.csr_matrix]:
    """Density of each row in its neighbour graph, and the symmetric graph itself."""
    if len(Z) == 1:
        return np.zeros(1), sp.csr_matrix((1, 1))
    search = NearestNeighbors(n_neighbors=min(n_neighbors, len(Z) - 1)).fit(Z)
    gaps, neighbors = search.kneighbors()
    scale = 2.0 * float(np.mean(gaps**2))
    weight = np.exp(-(gaps**2) / scale) if scale > 0.0 else np.ones_like(gaps)
    start = np.arange(0, gaps.size + 1, gaps.shape[1])
    graph = sp.csr_matrix((weight.ravel(), neighbors.ravel(), start), shape=(len(Z), len(Z)))
    graph = graph.maximum(graph.T).tocsr()
    total, degree = np.asarray(graph.sum(axis=1)).ravel(), np.diff(graph.indptr)
    return total / np.maximum(degree, 1), graph
