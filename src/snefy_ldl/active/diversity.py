"""Rows on one scale, their distances and clusters, and batches whose rows differ from each other."""

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

from snefy_ldl._types import Array, Index
from snefy_ldl.active.pool import Pool

Diverse = bool | Literal["kmeans++", "greedy", "kmeans"]

#: Most numbers that rows compared with each other may hold together.
SAMPLE_ELEMENTS = 1 << 26
#: Scaled features are clipped here, so that one far row does not decide every distance.
CLIP = 5.0
#: KMeans up to this many rows, MiniBatchKMeans beyond.
FULL_KMEANS_ROWS = 20_000
#: The determinantal greedy choice stops when a further row adds no more than this share of the first one's volume.
SMALLEST_GAIN = 1e-12


@dataclass(frozen=True)
class Geometry:
    """Features on one scale: ``clip((x - μ) / sd, ±5)``, or as they are."""

    mean: Array | None = None
    spread: Array | None = None

    @classmethod
    def of(cls, pool: Pool, standardize: bool) -> Geometry:
        """Column means and spreads of a pool in one pass (Chan's update, so that far means lose no digits)."""
        if not standardize:
            return cls()
        count, mean, square = 0, np.zeros(0), np.zeros(0)
        for _, table in pool.tables("scale"):
            rows, own = len(table), table.mean(axis=0, dtype=np.float64)
            scatter = rows * table.var(axis=0, dtype=np.float64)
            if not count:
                count, mean, square = rows, own, scatter
                continue
            shift, total = own - mean, count + rows
            mean = mean + shift * (rows / total)
            square = square + scatter + shift**2 * (count * rows / total)
            count = total
        spread = np.sqrt(square / count)
        constant = spread <= 1e-12 * np.maximum(np.abs(mean), 1e-30)  # rounding in a constant is no spread
        return cls(mean, np.where(constant, 1.0, spread))

    def __call__(self, table: NDArray[Any]) -> NDArray[Any]:
        """Scaled rows, in the dtype they came in."""
        if self.mean is None or self.spread is None:
            return table
        scaled = (table - self.mean.astype(table.dtype)) / self.spread.astype(table.dtype)
        clipped: NDArray[Any] = np.clip(scaled, -CLIP, CLIP)
        return clipped


def squared_distances(Z: NDArray[Any], row: NDArray[Any]) -> Array:
    """Squared Euclidean distance of every row to one row."""
    difference = Z - row
    squares: Array = np.einsum("ij,ij->i", difference, difference).astype(np.float64)
    return squares


def nearest_distance(Z: NDArray[Any], others: NDArray[Any]) -> Array:
    """Distance of every row to the nearest of some others."""
    search = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(others)
    return np.asarray(search.kneighbors(Z)[0][:, 0], dtype=np.float64)


def cluster(Z: NDArray[Any], n: int, seed: int, weight: Array | None = None) -> NDArray[Any]:
    """Centres (n, d) of k-means clusters."""
    kind = KMeans if len(Z) <= FULL_KMEANS_ROWS else MiniBatchKMeans
    options = {"n_init": 1} if kind is KMeans else {"n_init": 1, "batch_size": max(4096, 4 * n)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters is no fault of the user
        found = kind(n_clusters=n, random_state=seed, **options).fit(Z, sample_weight=weight)
    centres: NDArray[Any] = found.cluster_centers_.astype(Z.dtype)
    return centres


def spread_out(
    Z: NDArray[Any],
    weight: Array,
    n: int,
    method: Diverse,
    random: np.random.RandomState,
    labeled: NDArray[Any] | None = None,
) -> Index:
    """n rows of Z that are both heavy and far from each other.

    ``"kmeans++"``: a row is drawn with probability proportional to ``w_i d_i²``, d its distance to the nearest row
    that is labelled or drawn already. ``"greedy"``: the greedy mode of a determinantal process with kernel
    ``w_i w_j exp(-‖z_i - z_j‖² / h)``, h the mean squared distance (Chen, Zhang & Zhou, NeurIPS 2018). ``"kmeans"``:
    the row nearest to each centre of a weighted k-means (Zhdanov, 2019).
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
        own = squared_distances(Z, Z[pick])
        gap = own if labeled is None and not chosen else np.minimum(gap, own)
        chosen.append(pick)
        free[pick] = False
    return np.array(chosen, dtype=np.intp)


def _determinantal(
    Z: NDArray[Any], weight: Array, n: int, random: np.random.RandomState, labeled: NDArray[Any] | None
) -> Index:
    spread = 2.0 * float(Z.var(axis=0, dtype=np.float64).sum())  # the mean squared distance of two rows
    gain, factors = weight**2, np.zeros((n, len(Z)))
    chosen: list[int] = []
    for k in range(n):
        pick = int(np.argmax(gain))
        if gain[pick] <= SMALLEST_GAIN:
            break
        kernel = weight[pick] * weight * np.exp(-squared_distances(Z, Z[pick]) / max(spread, 1e-300))
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
    """Update, in place, the row nearest to each centre among the rows of its own cluster.

    A row belongs to one cluster, so that no row is chosen twice.

    Args:
        label: cluster of each row.
        gap: distance of each row to that cluster's centre.
        rows: number of each row.
        distance: smallest distance so far, one a centre.
        chosen: the row that has it, one a centre.
    """
    order = np.lexsort((gap, label))
    clusters, first = np.unique(label[order], return_index=True)
    best = order[first]
    nearer = gap[best] < distance[clusters]
    distance[clusters[nearer]] = gap[best[nearer]]
    chosen[clusters[nearer]] = rows[best[nearer]]
