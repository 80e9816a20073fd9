"""What logical labels say of a label distribution: some labels are larger than the others, and hold half of it.

``S`` is the set of labels that apply. The constraint is ``min_{r∈S} ℓ_r ≥ max_{r∉S} ℓ_r``; with a threshold ``T`` also
``Σ_{r∈S} ℓ_r ≥ T``, and ``Σ_{r∈S} ℓ_r - min_{r∈S} ℓ_r < T``: no smaller set of the largest labels holds as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from snefy_ldl._internal.types import Array, Index, Mask

__all__ = ["Pool", "Recovered", "condition_rows", "dirichlet_log_density", "groups_of", "size_concentration"]

#: Fewest draws of a set's size; where the threshold leaves fewer, the order alone counts.
_FEWEST = 200
#: Draws are made until every size that occurs has enough, or this many times as many as wanted.
_MOST_TIMES = 10

#: Concentrations a label that are tried for the start, and draws for each.
_START_GRID = np.geomspace(0.03, 1000.0, 40)
_START_DRAWS = 2000

#: Log densities of rows at points: (rows, points (S, L)) -> (len(rows), S).
LogDensity = Callable[[Index, Array], Array]


@dataclass(frozen=True, eq=False)
class Pool:
    """Sorted draws of a symmetric Dirichlet, from which draws that keep any set's constraint are made by permuting.

    Args:
        shares: Rows in descending order, (M, L).
        size: Number of labels that hold the threshold, (M,); 0 where there is no threshold.
        concentration: Of the Dirichlet, a label.
    """

    shares: Array
    size: Index
    concentration: float

    @classmethod
    def draw(
        cls,
        n_labels: int,
        concentration: float,
        threshold: float | None,
        sizes: Index,
        n: int,
        random: np.random.Generator,
    ) -> Pool:
        """Draw until each of some sizes of sets has n draws, or ten times as many in all.

        Args:
            n_labels: L.
            concentration: Of the symmetric Dirichlet, a label.
            threshold: T, or None.
            sizes: Sizes of sets that occur.
            n: Draws wanted a size.
            random: Source of randomness.

        Returns:
            The pool.
        """
        parts, total = [], 0
        while True:
            gammas = random.standard_gamma(concentration, size=(4 * n, n_labels))
            gammas = np.maximum(gammas, 1e-290)  # draws of tiny concentrations underflow
            shares = -np.sort(-gammas / gammas.sum(axis=1, keepdims=True), axis=1)
            parts.append(np.maximum(shares, 1e-12))
            total += len(shares)
            pool = np.concatenate(parts)
            if threshold is None:
                return cls(pool[: 2 * n], np.zeros(min(2 * n, len(pool)), dtype=np.intp), concentration)
            size = 1 + (np.cumsum(pool, axis=1)[:, :-1] < threshold).sum(axis=1)
            if total >= _MOST_TIMES * 4 * n or all((size == k).sum() >= n for k in sizes):
                return cls(pool, size, concentration)

    def points(self, relevant: Mask, n: int, random: np.random.Generator) -> Array:
        """Draws (at most n, L) that keep the constraint of one set of labels.

        Args:
            relevant: The set, (L,).
            n: Most draws.
            random: Source of randomness.

        Returns:
            Shares, (m, L).
        """
        k = int(relevant.sum())
        rows = np.flatnonzero(self.size == k)
        if len(rows) < _FEWEST:
            rows = np.arange(len(self.shares))
        rows = rows[random.permutation(len(rows))[:n]]
        sorted_shares = self.shares[rows]
        points = np.empty_like(sorted_shares)
        points[:, relevant] = random.permuted(sorted_shares[:, :k], axis=1)
        points[:, ~relevant] = random.permuted(sorted_shares[:, k:], axis=1)
        return points

    def log_density(self, points: Array) -> Array:
        """Log density of the symmetric Dirichlet, up to a constant, (m,)."""
        logs: Array = (self.concentration - 1.0) * np.log(points).sum(axis=1)
        return logs


@dataclass(frozen=True, eq=False)
class Recovered:
    """What is known of each row's distribution, given its features and its set of labels.

    Args:
        mean: ``E[ℓ|x, S]``, (N, L).
        second: ``E[ℓ²|x, S]``, (N, L).
        log_mean: ``E[log ℓ|x, S]``, (N, L).
        draws: One draw a row, (N, L).
        effective: Effective number of draws behind each row, (N,).
        log_probability: ``log P(S|x)`` up to a constant of each size, (N,).
    """

    mean: Array
    second: Array
    log_mean: Array
    draws: Array
    effective: Array
    log_probability: Array


def groups_of(relevant: Mask) -> Iterator[tuple[Mask, Index]]:
    """Rows that share a set of labels: (set (L,), row numbers)."""
    sets, member = np.unique(relevant, axis=0, return_inverse=True)
    order = np.argsort(member.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(member.ravel(), minlength=len(sets)))
    yield from zip(sets, np.split(order, ends[:-1]))


def condition_rows(
    relevant: Mask, log_density: LogDensity, pool: Pool, n: int, random: np.random.Generator
) -> Recovered:
    """Condition each row's law on its set of labels, by weighted draws that all keep the constraint.

    Args:
        relevant: Sets of labels, (N, L).
        log_density: Of the rows' laws at points.
        pool: Draws to permute.
        n: Draws a set.
        random: Source of randomness.

    Returns:
        Conditional moments, and one conditional draw a row.
    """
    mean, second, log_mean, draws = (np.empty(relevant.shape) for _ in range(4))
    effective, probability = np.empty(len(relevant)), np.empty(len(relevant))
    for one, rows in groups_of(relevant):
        points = pool.points(one, n, random)
        logs = log_density(rows, points) - pool.log_density(points)  # (rows, S)
        total = logsumexp(logs, axis=1)
        weights = np.exp(logs - total[:, None])
        mean[rows], second[rows] = weights @ points, weights @ points**2
        log_mean[rows] = weights @ np.log(points)
        effective[rows] = 1.0 / (weights**2).sum(axis=1)
        probability[rows] = total - np.log(len(points))
        ladder = np.cumsum(weights, axis=1)
        place = (ladder < random.random((len(rows), 1)) * ladder[:, -1:]).sum(axis=1)
        draws[rows] = points[np.minimum(place, len(points) - 1)]
    return Recovered(mean, second, log_mean, draws, effective, probability)


def dirichlet_log_density(alpha: Array) -> LogDensity:
    """Log densities of one Dirichlet a row, ``alpha`` (N, L)."""
    constant = gammaln(alpha.sum(axis=1)) - gammaln(alpha).sum(axis=1)

    def log_density(rows: Index, points: Array) -> Array:
        values: Array = constant[rows, None] + (alpha[rows] - 1.0) @ np.log(points).T
        return values

    return log_density


def size_concentration(sizes: Index, n_labels: int, threshold: float, random: np.random.Generator) -> float:
    """Concentration a label of the symmetric Dirichlet under which sets of the observed sizes are most frequent.

    Args:
        sizes: Number of labels that apply, a row, (N,).
        n_labels: L.
        threshold: T.
        random: Source of randomness.

    Returns:
        A positive number.

    Example:
        >>> few, many = (np.full(50, k) for k in (1, 4))
        >>> random = np.random.default_rng(0)
        >>> size_concentration(few, 9, 0.5, random) < size_concentration(many, 9, 0.5, random)
        True
    """
    observed = np.bincount(sizes, minlength=n_labels + 1)[1:]
    fits = []
    for concentration in _START_GRID:
        shares = random.dirichlet(np.full(n_labels, concentration), size=_START_DRAWS)
        held = np.cumsum(-np.sort(-shares, axis=1), axis=1)[:, :-1]
        expected = np.bincount((held < threshold).sum(axis=1), minlength=n_labels) + 0.5  # no size is impossible
        fits.append(float(observed @ np.log(expected)))
    return float(_START_GRID[int(np.argmax(fits))])
