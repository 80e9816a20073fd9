"""Pools of unlabelled rows, and the query strategies that look at features alone.

A pool is read a block at a time, so that a million rows on disk need no more memory than one block. The strategies that
ask a model are in :mod:`snefy_ldl.active`; they share the pool, the scaling and the diverse batches made here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.neighbors import NearestNeighbors

from snefy_ldl.errors import InputError
from snefy_ldl.laws import as_rows, count_rows, take_rows
from snefy_ldl.tables import TableSource, table_kind
from snefy_ldl.validation import Array, check_features

Index = NDArray[np.intp]
Diverse = bool | Literal["kmeans++", "greedy", "kmeans"]

#: Most rows of a pool that are held at one time.
BLOCK_ROWS = 1 << 14
#: Most numbers in a dense block, for pools with very many features.
BLOCK_ELEMENTS = 1 << 24
#: Most numbers that rows compared with each other may hold together.
SAMPLE_ELEMENTS = 1 << 26
#: A pool of at least this many rows shows a progress bar on a terminal.
BAR_ROWS = 100_000
#: Scaled features are clipped here, so that one far row does not decide every distance.
CLIP = 5.0
#: KMeans up to this many rows, MiniBatchKMeans beyond.
FULL_KMEANS_ROWS = 20_000
#: The determinantal greedy choice stops when a further row adds no more than this share of the first one's volume.
SMALLEST_GAIN = 1e-12


# -- pools -------------------------------------------------------------------------------------------------------------


class Pool:
    """Unlabelled rows, read in blocks.

    Args:
        source: rows (array, memory-mapped array, DataFrame, sparse matrix, tensors), the path of a Parquet, CSV or TSV
            file, an iterator of blocks of rows (it can be read once), or a function that returns such an iterator.
        columns: columns of a file to read, in this order; all by default.
        block_rows: rows a block of a file or array has at most.
        verbose: True shows a progress bar, False none, None only for long pools on a terminal.
    """

    def __init__(
        self,
        source: Any,
        columns: list[str] | None = None,
        block_rows: int = BLOCK_ROWS,
        verbose: bool | None = None,
    ) -> None:
        self.verbose, self._columns, self._step = verbose, columns, block_rows
        self.n_rows: int | None = None
        self.once = isinstance(source, Iterator)
        self._read = False
        self._rows: Any = None
        self._open: Callable[[], Iterator[Any]]
        if isinstance(source, (str, os.PathLike)):
            self._open = self._file(Path(source))
        elif isinstance(source, Iterator):
            self._open = lambda: source
        elif callable(source) and not hasattr(source, "shape"):
            self._open = lambda: iter(source())
        else:
            self._rows = as_rows(source)
            try:
                self.n_rows = count_rows(self._rows)
            except (AttributeError, IndexError, TypeError, RecursionError):
                raise InputError(f"X_pool must hold rows; got {type(source).__name__}.") from None
            shape: tuple[Any, ...] = tuple(getattr(self._rows, "shape", ()))
            if len(shape) == 1:
                raise InputError(f"X_pool must be two-dimensional (rows, features); got shape {shape}.")
            if len(shape) == 2:
                self._step = max(1, min(block_rows, BLOCK_ELEMENTS // max(1, int(shape[1]))))
            if not self.n_rows:
                raise InputError("X_pool is empty: 0 rows.")
            self._open = self._slices

    def _slices(self) -> Iterator[Any]:
        assert self.n_rows is not None
        if self.n_rows <= self._step:
            yield self._rows
            return
        rows = self._rows.tocsr() if hasattr(self._rows, "tocsr") else self._rows
        for start in range(0, self.n_rows, self._step):
            yield take_rows(rows, slice(start, min(start + self._step, self.n_rows)))

    def _file(self, path: Path) -> Callable[[], Iterator[Any]]:
        source = TableSource(path)
        columns = self._columns or source.columns
        source.need(columns, "features")
        step = max(256, min(self._step, BLOCK_ELEMENTS // len(columns)))
        if table_kind(path) != "parquet":
            return lambda: source.chunks(columns, [], lambda done, total: None)
        from pyarrow import parquet

        self.n_rows = int(parquet.read_metadata(path).num_rows)

        def read() -> Iterator[Any]:
            # a buffered stream: otherwise a whole row group is read at once, and a file may be one row group
            with parquet.ParquetFile(path, buffer_size=1 << 17) as file:
                for batch in file.iter_batches(step, columns=columns):
                    frame = batch.to_pandas()[columns]
                    yield frame if self._columns else frame.to_numpy()

        return read

    def blocks(self, what: str = "pool") -> Iterator[tuple[int, Any]]:
        """The number of each block's first row, and the block."""
        if self.once and self._read:
            raise InputError(
                "this strategy reads the pool more than once, but X_pool is an iterator, which can be read once. "
                "Pass a function that returns the iterator, an array or a Parquet file."
            )
        self._read = True
        start = 0
        with _bar(what, self.n_rows, self.verbose) as advance:
            for block in self._open():
                if isinstance(block, np.ndarray) and not block.flags.writeable:
                    block = np.array(block)  # torch warns about memory it must not write to
                rows = count_rows(as_rows(block))
                if rows:
                    yield start, block
                    start += rows
                    advance(rows)
        if start == 0:
            raise InputError("X_pool is empty: 0 rows.")
        self.n_rows = start

    def tables(self, what: str = "pool") -> Iterator[tuple[int, NDArray[Any]]]:
        """The same with every block as a dense, finite array (rows, features)."""
        width = None
        for start, block in self.blocks(what):
            table = dense_table(block, f"X_pool, rows from {start} on")
            if width not in (None, table.shape[1]):
                raise InputError(f"X_pool: the block at row {start} has {table.shape[1]} features, the first {width}.")
            width = table.shape[1]
            yield start, table

    def count(self) -> int:
        """How many rows there are; reads the pool if nothing else tells."""
        if self.n_rows is None:
            for _ in self.blocks("count"):
                pass
        assert self.n_rows is not None
        return self.n_rows

    def take(self, index: Index) -> Any:
        """Rows by number, in that order and in the form the pool has."""
        if self._rows is not None:
            return take_rows(self._rows, index)
        parts, places = [], []
        wanted = np.argsort(index, kind="stable")
        ordered = index[wanted]
        for start, block in self.blocks("gather"):
            low, high = np.searchsorted(ordered, [start, start + count_rows(as_rows(block))])
            if high > low:
                parts.append(take_rows(as_rows(block), ordered[low:high] - start))
                places.append(wanted[low:high])
        return take_rows(stack_rows(parts), np.argsort(np.concatenate(places), kind="stable"))


def stack_rows(parts: list[Any]) -> Any:
    """Blocks of rows of one kind on top of each other."""
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts, ignore_index=True)
    if any(sp.issparse(part) for part in parts):
        return sp.vstack(parts, format="csr")
    return np.concatenate([np.asarray(part) for part in parts])


def dense_table(X: Any, what: str) -> NDArray[Any]:
    """Rows as a dense, finite float array; the error says which rows they are."""
    try:
        table = check_features(X)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    return np.asarray(table.toarray() if sp.issparse(table) else table)


class _bar:
    """A progress bar on stderr as a context: the value is told how many more rows are done."""

    def __init__(self, what: str, total: int | None, verbose: bool | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if verbose is None:
            verbose = (total is None or total >= BAR_ROWS) and console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=console.is_terminal, disable=not verbose)
        self._what, self._total = what, total

    def __enter__(self) -> Callable[[int], None]:
        self._progress.__enter__()
        task = self._progress.add_task(self._what, total=self._total)
        return lambda rows: self._progress.advance(task, rows)

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)


# -- geometry ----------------------------------------------------------------------------------------------------------


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


# -- strategies --------------------------------------------------------------------------------------------------------


class Strategy:
    """How to choose n rows of a pool; a strategy holds settings only and may be used again."""

    #: Whether ``query`` must be given a fitted model.
    needs_model = False

    def block_rows(self, model: Any) -> int:
        """Rows to read at one time."""
        return BLOCK_ROWS

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
        raise NotImplementedError

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
