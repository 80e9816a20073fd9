"""Rows in the middle of many others."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.feature import FeatureStrategy

__all__ = ["GraphDensity", "graph_density"]


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
    gaps, neighbors = search.kneighbors()
    scale = 2.0 * float(np.mean(gaps**2))
    weight = np.exp(-(gaps**2) / scale) if scale > 0.0 else np.ones_like(gaps)
    start = np.arange(0, gaps.size + 1, gaps.shape[1])
    graph = sp.csr_matrix((weight.ravel(), neighbors.ravel(), start), shape=(len(Z), len(Z)))
    graph = graph.maximum(graph.T).tocsr()
    total, degree = np.asarray(graph.sum(axis=1)).ravel(), np.diff(graph.indptr)
    return total / np.maximum(degree, 1), graph
