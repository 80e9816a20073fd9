"""Rows on one scale, their distances and clusters, and batches whose rows lie apart from each other."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.neighbors import NearestNeighbors

from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE, SMALLEST_VOLUME_GAIN
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.active.pool import Pool
from snefy_ldl.networks.scaling import LIMITS, divisors

__all__ = [
    "Diverse",
    "Geometry",
    "choose_apart",
    "cluster",
    "nearest_distance",
    "nearest_in_cluster",
    "squared_distances",
]

Diverse = bool | Literal["kmeans++", "greedy", "kmeans"]

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
        count, mean, square = 0, np.zeros(0), np.zeros(0)
        for _, table in pool.tables("scale"):
            rows, block_mean = len(table), table.mean(axis=0, dtype=np.float64)
            scatter = rows * table.var(axis=0, dtype=np.float64)
            if not count:
                count, mean, square = rows, block_mean, scatter
                continue
            shift, total = block_mean - mean, count + rows
            mean = mean + shift * (rows / total)
            square = square + scatter + shift**2 * (count * rows / total)
            count = total
        return cls(mean, divisors(mean, np.sqrt(square / count)))

    def __call__(self, table: NDArray[Any]) -> NDArray[Any]:
        """Scaled rows, in the dtype they came in."""
        if self.mean is None or self.deviation is None:
            return table
        scaled = (table - self.mean.astype(table.dtype)) / self.deviation.astype(table.dtype)
        clipped: NDArray[Any] = np.clip(scaled, -LIMITS["unit"], LIMITS["unit"])
        return clipped


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
    squares: Array = np.einsum("ij,ij->i", difference, difference).astype(np.float64)
    return squares


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
    search = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(others)
    return np.asarray(search.kneighbors(Z)[0][:, 0], dtype=np.float64)


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
    centres: NDArray[Any] = fitted.cluster_centers_.astype(Z.dtype)
    return centres


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
    that is labelled or drawn already. ``"greedy"``: the greedy mode of a determinantal process with kernel
    ``w_i w_j exp(-‖z_i - z_j‖² / h)``, h the mean squared distance (Chen, Zhang & Zhou, NeurIPS 2018). ``"kmeans"``:
    the row nearest to each centre of a weighted k-means (Zhdanov, 2019).

    Args:
        Z: rows (r, d) on one scale.
        weight: how much each row is wanted (r,); all zeros count as equal.
        n: how many rows.
        method: one of the three.
        random: source of randomness.
        labeled: rows (k, d) to keep away from as well, for ``"kmeans++"``; None without any.

    Returns:
        Row numbers (n,).

    Example:
        >>> Z = np.array([[0.0], [0.1], [9.0], [9.1]])
        >>> sorted(choose_apart(Z, np.array([1.0, 0.9, 0.8, 0.7]), 2, "greedy", np.random.RandomState(0)).tolist())
        [0, 2]
    """
    weight = np.where(np.isfinite(weight), np.maximum(weight, 0.0), 0.0)
    weight = weight / weight.max() if weight.max() > 0.0 else np.ones_like(weight)
    if method == "kmeans":
        chosen = np.full(n, -1, dtype=np.intp)
        centres = cluster(Z, n, int(random.randint(2**31 - 1)), weight)
        label, gap = pairwise_distances_argmin_min(Z, centres)
        nearest_in_cluster(label, gap, np.arange(len(Z)), np.full(n, np.inf), chosen)
        return _fill(chosen, weight, n)
    return (_determinantal if method == "greedy" else _plusplus)(Z, weight, n, random, labeled)


def _plusplus(
    Z: NDArray[Any], weight: Array, n: int, random: np.random.RandomState, labeled: NDArray[Any] | None
) -> Index:
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


def _determinantal(
    Z: NDArray[Any], weight: Array, n: int, random: np.random.RandomState, labeled: NDArray[Any] | None
) -> Index:
    mean_square = 2.0 * float(Z.var(axis=0, dtype=np.float64).sum())  # the mean squared distance of two rows
    gain, factors = weight**2, np.zeros((n, len(Z)))
    chosen: list[int] = []
    for k in range(n):
        pick = int(np.argmax(gain))
        if gain[pick] <= SMALLEST_VOLUME_GAIN:
            break
        kernel = weight[pick] * weight * np.exp(-squared_distances(Z, Z[pick]) / max(mean_square, SMALLEST_POSITIVE))
        factors[k] = (kernel - factors[:k, pick] @ factors[:k]) / np.sqrt(gain[pick])
        gain = gain - factors[k] ** 2
        chosen.append(pick)
        gain[chosen] = -np.inf
    return _fill(np.array(chosen, dtype=np.intp), weight, n)


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
