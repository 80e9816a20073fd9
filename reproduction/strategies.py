"""The query strategies that the paper compares its entropy with, on features alone or by a single Dirichlet.

Each takes the features of the pool (N, d), the number of rows to choose, the labelled rows (k, d) and a seed, and
returns row numbers of the pool (n,).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.neighbors import NearestNeighbors

from snefy_ldl._internal.types import Array

Rows = NDArray[np.intp]
#: Standardised features are clipped here.
LIMIT = 5.0


def standardized(pool: Array, labeled: Array) -> tuple[Array, Array]:
    """Both tables as ``clip((x - μ) / sd, ±5)`` with the mean and deviation of the pool.

    Example:
        >>> standardized(np.array([[1.0], [3.0]]), np.array([[5.0]]))[1]
        array([[3.]])
    """
    mean, deviation = pool.mean(axis=0), pool.std(axis=0)
    deviation = np.where(deviation > 0.0, deviation, 1.0)
    scaled = [np.clip((table - mean) / deviation, -LIMIT, LIMIT) for table in (pool, labeled)]
    return scaled[0], scaled[1]


def kmeans(pool: Array, n: int, labeled: Array, seed: int) -> Rows:
    """The row nearest to each centre of n k-means clusters (Zhdanov, 2019).

    Example:
        >>> pool = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
        >>> sorted(kmeans(pool, 2, pool[:0], seed=0).tolist())
        [1, 4]
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        centres = KMeans(n, n_init=1, random_state=seed).fit(pool).cluster_centers_
    label, gap = pairwise_distances_argmin_min(pool, centres)
    order = np.lexsort((gap, label))
    nearest = order[np.unique(label[order], return_index=True)[1]]  # the first row of each cluster that has one
    others = np.argsort(gap, kind="stable")
    return np.concatenate([nearest, others[~np.isin(others, nearest)]])[:n]


def core_set(pool: Array, n: int, labeled: Array, seed: int) -> Rows:
    """Greedy k-centre (Sener & Savarese, 2018): always the row farthest from every labelled or chosen row.

    Example:
        >>> core_set(np.array([[0.0], [0.1], [5.0], [5.1], [10.0]]), 2, np.array([[0.0]]), seed=0)
        array([4, 2])
    """
    gap = pairwise_distances_argmin_min(pool, labeled)[1] ** 2
    chosen: list[int] = []
    for _ in range(n):
        chosen.append(int(np.argmax(gap)))
        gap = np.minimum(gap, ((pool - pool[chosen[-1]]) ** 2).sum(axis=1))
        gap[chosen] = -1.0
    return np.array(chosen, dtype=np.intp)


def graph_density(pool: Array, n: int, labeled: Array, seed: int, n_neighbors: int = 10) -> Rows:
    """Rows with close neighbours in a k-nearest-neighbour graph; neighbours of a chosen row step back (Ebert, 2012).

    ``g_i = Σ_j W_ij / Σ_j P_ij`` with P the symmetric graph and ``W_ij = P_ij exp(-d_ij² / 2σ²)``, σ² the mean squared
    distance of neighbours. When i is chosen (or labelled), ``g_j -= g_i`` for its neighbours j.

    Example:
        >>> pool = np.array([[0.0], [0.1], [0.2], [9.0], [9.5]])
        >>> graph_density(pool, 2, pool[:0], seed=0, n_neighbors=2)
        array([1, 3])
    """
    every = np.concatenate([pool, labeled])
    graph = NearestNeighbors(n_neighbors=min(n_neighbors, len(every) - 1)).fit(every).kneighbors_graph(mode="distance")
    scale = 2.0 * float(np.mean(graph.data**2))
    graph.data = np.exp(-(graph.data**2) / scale) if scale > 0.0 else np.ones_like(graph.data)
    graph = graph.maximum(graph.T).tocsr()
    density = np.asarray(graph.sum(axis=1)).ravel() / np.maximum(np.diff(graph.indptr), 1)
    open_rows, chosen = np.arange(len(every)) < len(pool), []
    for step in range(len(labeled) + n):
        is_labeled = step < len(labeled)
        row = len(pool) + step if is_labeled else int(np.argmax(np.where(open_rows, density, -np.inf)))
        density[graph.indices[graph.indptr[row] : graph.indptr[row + 1]]] -= density[row]
        if not is_labeled:
            open_rows[row] = False
            chosen.append(row)
    return np.array(chosen, dtype=np.intp)


#: Strategies by the name that :class:`reproduction.config.Query` has.
STRATEGIES: dict[str, Callable[[Array, int, Array, int], Rows]] = {
    "kmeans": kmeans,
    "coreset": core_set,
    "graph_density": graph_density,
}
