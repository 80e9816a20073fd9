"""Strategies that look at features alone, and the geometry they share: scales, distances, clusters, batches apart."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from snefy_ldl._internal.limits import COMPARED_ELEMENTS
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.query import Strategy, free_rows, top_rows
from snefy_ldl.errors import InputError
from snefy_ldl.networks.scaling import LIMITS, divisors

Diverse = bool | Literal["kmeans++", "kmeans"]

#: KMeans up to this many rows, MiniBatchKMeans beyond.
FULL_KMEANS_ROWS = 20_000


@dataclass(frozen=True)
class Geometry:
    """Features on one scale: ``clip((x - μ) / sd, ±5)``, the ``"unit"`` scaling of the networks, or as they are.

    Args:
        mean: μ of each column (d,); None leaves features as they are.
        deviation: sd of each column (d,), 1 for a constant one.

    Example:
        >>> Geometry(np.array([1.0]), np.array([2.0]))(np.array([[5.0], [99.0]]))
        array([[2.],
               [5.]])
    """

    mean: Array | None = None
    deviation: Array | None = None

    @classmethod
    def of(cls, pool: Pool, standardize: bool) -> Geometry:
        """The scale of a pool, in one pass over its blocks.

        Means and variances follow Chan's update, so that columns far from zero lose no digits.

        Args:
            pool: the rows.
            standardize: False leaves features as they are.

        Returns:
            The scale.
        """
        if not standardize:
            return cls()
        moments = StandardScaler()
        for _, table in pool.tables("scale"):
            moments.partial_fit(table)
        return cls(moments.mean_, divisors(moments.mean_, np.sqrt(moments.var_)))

    def __call__(self, table: NDArray[Any]) -> NDArray[Any]:
        """Scaled rows, in the dtype they came in."""
        if self.mean is None or self.deviation is None:
            return table
        scaled = (table - self.mean.astype(table.dtype)) / self.deviation.astype(table.dtype)
        return np.clip(scaled, -LIMITS["unit"], LIMITS["unit"])


def squared_distances(Z: NDArray[Any], row: NDArray[Any]) -> Array:
    """Squared Euclidean distance of every row to one row.

    Args:
        Z: rows (r, d).
        row: the one row (d,).

    Returns:
        Squared distances (r,).

    Example:
        >>> squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]]), np.zeros(2))
        array([ 0., 25.])
    """
    difference = Z - row
    return np.einsum("ij,ij->i", difference, difference).astype(np.float64)


def nearest_distance(Z: NDArray[Any], others: NDArray[Any]) -> Array:
    """Distance of every row to the nearest of some others.

    Args:
        Z: rows (r, d).
        others: rows (k, d), at least one.

    Returns:
        Distances (r,).

    Example:
        >>> nearest_distance(np.array([[0.0], [4.0]]), np.array([[1.0], [9.0]]))
        array([1., 3.])
    """
    return np.asarray(pairwise_distances_argmin_min(Z, others)[1], dtype=np.float64)


def cluster(Z: NDArray[Any], n: int, seed: int, weight: Array | None = None) -> NDArray[Any]:
    """Centres of k-means clusters.

    Args:
        Z: rows (r, d).
        n: how many clusters.
        seed: of the start.
        weight: how much each row counts (r,); equally by default.

    Returns:
        Centres (n, d) in the dtype of Z.

    Example:
        >>> np.sort(cluster(np.array([[0.0], [2.0], [8.0], [10.0]]), 2, 0).ravel())
        array([1., 9.])
    """
    kind = KMeans if len(Z) <= FULL_KMEANS_ROWS else MiniBatchKMeans
    options = {"n_init": 1} if kind is KMeans else {"n_init": 1, "batch_size": max(4096, 4 * n)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters is no fault of the user
        fitted = kind(n_clusters=n, random_state=seed, **options).fit(Z, sample_weight=weight)
    return fitted.cluster_centers_.astype(Z.dtype)


def choose_apart(
    Z: NDArray[Any],
    weight: Array,
    n: int,
    method: Diverse,
    random: np.random.RandomState,
    labeled: NDArray[Any] | None = None,
) -> Index:
    """Rows that are both heavy and far from each other.

    ``"kmeans++"``: a row is drawn with probability proportional to ``w_i d_i²``, d its distance to the nearest row
    that is labelled or drawn already. ``"kmeans"``: the row nearest to each centre of a weighted k-means (Zhdanov,
    2019).

    Args:
        Z: rows (r, d) on one scale.
        weight: how much each row is wanted (r,); all zeros count as equal.
        n: how many rows.
        method: one of the two.
        random: source of randomness.
        labeled: rows (k, d) to keep away from as well, for ``"kmeans++"``; None without any.

    Returns:
        Row numbers (n,).

    Example:
        >>> Z = np.array([[0.0], [0.1], [9.0], [9.1]])
        >>> sorted(choose_apart(Z, np.array([1.0, 0.9, 0.8, 0.7]), 2, "kmeans", np.random.RandomState(0)).tolist())
        [0, 2]
    """
    weight = np.where(np.isfinite(weight), np.maximum(weight, 0.0), 0.0)
    weight = weight / weight.max() if weight.max() > 0.0 else np.ones_like(weight)
    if method == "kmeans":
        nearest = np.full(n, -1, dtype=np.intp)
        centres = cluster(Z, n, int(random.randint(2**31 - 1)), weight)
        label, gap = pairwise_distances_argmin_min(Z, centres)
        nearest_in_cluster(label, gap, np.arange(len(Z)), np.full(n, np.inf), nearest)
        return _fill(nearest, weight, n)
    gap = np.ones(len(Z)) if labeled is None else nearest_distance(Z, labeled) ** 2
    chosen: list[int] = []
    free = np.ones(len(Z), dtype=bool)
    for _ in range(n):
        mass = np.where(free, weight * gap, 0.0)
        if not mass.sum() > 0.0:  # only copies of chosen rows are left
            mass = np.where(free, weight, 0.0) if weight[free].sum() > 0.0 else free.astype(np.float64)
        pick = int(random.choice(len(Z), p=mass / mass.sum()))
        to_pick = squared_distances(Z, Z[pick])
        gap = to_pick if labeled is None and not chosen else np.minimum(gap, to_pick)
        chosen.append(pick)
        free[pick] = False
    return np.array(chosen, dtype=np.intp)


def _fill(chosen: Index, weight: Array, n: int) -> Index:
    """The chosen rows (-1 is none), made up to n with the heaviest of the others."""
    chosen = chosen[chosen >= 0]
    order = np.argsort(-weight, kind="stable")
    rest = order[~np.isin(order, chosen)]
    return np.concatenate([chosen, rest[: n - len(chosen)]]).astype(np.intp)


def nearest_in_cluster(label: Index, gap: Array, rows: Index, distance: Array, chosen: Index) -> None:
    """Update, in place, the row nearest to each centre among the rows of its cluster.

    A row belongs to one cluster, so that no row is chosen twice.

    Args:
        label: cluster of each row.
        gap: distance of each row to that cluster's centre.
        rows: number of each row.
        distance: smallest distance so far, one a centre.
        chosen: the row that has it, one a centre.

    Example:
        >>> distance, chosen = np.full(2, np.inf), np.full(2, -1)
        >>> nearest_in_cluster(np.array([0, 0, 1]), np.array([3.0, 1.0, 2.0]), np.arange(3), distance, chosen)
        >>> chosen
        array([1, 2])
    """
    order = np.lexsort((gap, label))
    clusters, first = np.unique(label[order], return_index=True)
    best = order[first]
    nearer = gap[best] < distance[clusters]
    distance[clusters[nearer]] = gap[best[nearer]]
    chosen[clusters[nearer]] = rows[best[nearer]]


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


class RandomSampling(Strategy, name="random"):
    """Rows at random: what every other strategy must beat.

    Example:
        >>> from snefy_ldl.active import query
        >>> len(set(query(RandomSampling(), np.zeros((9, 1)), 4, random_state=0)))
        4
    """

    def choose(
        self, pool: Pool, n: int, *, random: np.random.RandomState, exclude: Mask | None = None, **more: Any
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        n_rows = pool.count()
        free = free_rows(n_rows, n, exclude)
        keys = random.random_sample(n_rows)
        return top_rows(keys, n, free, random), keys


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


class GraphDensity(FeatureStrategy, name="graph_density"):
    """Rows with close neighbours in a k-nearest-neighbour graph, their neighbours then stepping back (Ebert, 2012).

    ``g_i = Σ_j W_ij / Σ_j P_ij`` with P the symmetric graph and ``W_ij = P_ij exp(-d_ij² / 2σ²)``, σ² the mean squared
    distance of neighbours. When i is chosen (or labelled), ``g_j -= g_i`` for its neighbours j. The utility is g
    before any choice.

    Args:
        n_neighbors: k.
        standardize: scale the features by their standard deviation in the pool, and clip them at five.
        max_rows: a larger pool is thinned to this many rows; the others get utility NaN.

    Raises:
        InputError: ``n_neighbors`` or ``max_rows`` is no whole number of at least 1.

    Example:
        >>> from snefy_ldl.active import query
        >>> query("graph_density", [[0.0], [0.1], [0.2], [9.0], [9.5]], 2, n_neighbors=2)
        array([1, 3])
    """

    def __init__(self, n_neighbors: int = 10, standardize: bool = True, max_rows: int = 20_000) -> None:
        super().__init__(standardize, max_rows)
        self.n_neighbors = check_count("n_neighbors", n_neighbors)

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
        Z, labeled = compared.features, compared.labeled
        every = Z if labeled is None else np.concatenate([Z, labeled])
        density, graph = graph_density(every, self.n_neighbors)
        utilities = np.full(len(compared.free), np.nan)
        utilities[compared.index] = density[: len(Z)]

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
        return compared.index[chosen], utilities


def graph_density(Z: NDArray[Any], n_neighbors: int) -> tuple[Array, sp.csr_matrix]:
    """Density of each row in its neighbour graph.

    Args:
        Z: rows (r, d).
        n_neighbors: neighbours that each row looks for.

    Returns:
        Densities (r,), and the symmetric graph of weights (r, r).

    Example:
        >>> density, graph = graph_density(np.array([[0.0], [1.0], [5.0]]), 1)
        >>> graph.nnz, int(density.argmin())  # two edges, each seen from both ends; the far row is the loneliest
        (4, 2)
    """
    if len(Z) == 1:
        return np.zeros(1), sp.csr_matrix((1, 1))
    search = NearestNeighbors(n_neighbors=min(n_neighbors, len(Z) - 1)).fit(Z)
    graph = search.kneighbors_graph(mode="distance")
    scale = 2.0 * float(np.mean(graph.data**2))
    graph.data = np.exp(-(graph.data**2) / scale) if scale > 0.0 else np.ones_like(graph.data)
    graph = graph.maximum(graph.T).tocsr()
    total, degree = np.asarray(graph.sum(axis=1)).ravel(), np.diff(graph.indptr)
    return total / np.maximum(degree, 1), graph
