"""Predicted distributions of rows of any kind, one block at a time, and the probability of observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.rows import count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions import SimplexDistribution

#: Rows whose predicted distributions are held at one time, and those with limits that draws are made for at a time.
BLOCK_ROWS, LIMITED_ROWS = 1 << 15, 256


@dataclass(frozen=True)
class PredictedRows:
    """Rows with their predicted distributions, so that the network runs once for several questions about them.

    Args:
        X: the rows.
        dist: their distributions, batch (N,).
    """

    X: Any
    dist: Any

    @classmethod
    def of(cls, model: Any, X: Any) -> Any:
        """The rows with what a model predicts for them; the rows alone if they are too many to hold."""
        if count_rows(X) > BLOCK_ROWS:
            return X
        with torch.no_grad():
            dist = model.predict_dist(X)
        return cls(X, dist) if isinstance(dist, SimplexDistribution) else X

    @property
    def n_rows(self) -> int:
        """N."""
        return count_rows(self.X)

    def __getitem__(self, rows: Any) -> PredictedRows:
        index = torch.as_tensor(rows) if isinstance(rows, np.ndarray) else rows
        return PredictedRows(take_rows(self.X, rows), self.dist[index])


def dist_blocks(model: Any, X: Any, block_rows: int | None = None) -> Iterator[tuple[slice, Any]]:
    """The predicted distributions of a block of rows at a time; memory does not grow with the rows."""
    n_rows, step = count_rows(X), min(block_rows or BLOCK_ROWS, BLOCK_ROWS)
    for start in range(0, max(n_rows, 1), step):
        rows = slice(start, min(start + step, n_rows))
        with torch.no_grad():
            part = X if n_rows <= step else take_rows(X, rows)
            dist = part.dist if isinstance(part, PredictedRows) else model.predict_dist(part)
        yield rows, dist  # outside: a generator left half-way would leave gradients switched off


def tensor_for(dist: Any, values: Array) -> Tensor:
    """Values on the device of the distribution."""
    return torch.as_tensor(values, device=dist.device if isinstance(dist, SimplexDistribution) else "cpu")


def to_numpy(values: Tensor) -> Array:
    """float64 array of a tensor."""
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float64)


def draw_from(dist: Any, n: int, seed: Callable[[], int]) -> Tensor:
    """n draws (n, b, L) of a distribution, reproducible also for torch's own distributions, which take no generator."""
    if isinstance(dist, SimplexDistribution):
        generator = torch.Generator(dist.device).manual_seed(seed())
        return dist.sample((n,), generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed())
        draws: Tensor = dist.sample((n,))
    return draws


def draw_shares(dist: SimplexDistribution, n: int, random_state: Any, tilt: Array | None = None) -> Array:
    """Draws of label distributions (N, n, L), from the posterior of votes (N, L) if some are given."""
    seed = int(np.random.default_rng(random_state).integers(2**31))
    generator = torch.Generator(dist.device).manual_seed(seed)
    with torch.no_grad():
        draws = (dist if tilt is None else dist.posterior(tilt)).sample((n,), generator)
    return to_numpy(draws).transpose(1, 0, 2)


def gap_patterns(table: Array) -> Iterator[tuple[Index, Index]]:
    """Rows that have the same labels unknown.

    Args:
        table: shares or votes (N, L), NaN where one is unknown.

    Yields:
        Row numbers, and the numbers of the labels unknown in them.

    Example:
        >>> [(rows.tolist(), unknown.tolist()) for rows, unknown in gap_patterns(np.array([[1, np.nan], [1, 2]]))]
        [([1], []), ([0], [1])]
    """
    patterns, which = np.unique(np.isnan(table), axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        yield np.flatnonzero(which.reshape(-1) == k), np.flatnonzero(pattern)


def log_probs(dist: Any, shares: Array, counts: Array | None, below: Array | None = None) -> Array:
    """Log density of the observed shares, or log probability of the votes.

    Args:
        dist: Predicted distributions of the rows, batch (b,).
        shares: Observed shares, zeros treated as the model's fit treated them (b, L); not used with votes.
        counts: Numbers of votes (b, L), NaN where a label was not on offer; None for shares.
        below: Limits of shares that are known to lie below them (b, L), NaN elsewhere; of log-ratios alone.

    Returns:
        One figure per row (b,): the density of exact shares times the probability of the others' limits given those.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> log_probs(flat, np.array([[0.3, 0.7]]), None)
        array([0.])
    """
    if counts is not None:
        return to_numpy(dist.log_prob_counts(tensor_for(dist, counts)))
    log_p = to_numpy(dist.log_prob(tensor_for(dist, shares)))
    hidden = np.zeros(0, int) if below is None else np.flatnonzero(~np.isnan(below).all(1))
    for rows in np.split(hidden, range(LIMITED_ROWS, len(hidden), LIMITED_ROWS)) if len(hidden) else []:
        given = dist[rows].condition_bounds(shares[rows], below=below[rows])  # type: ignore[index]
        log_p[rows] = to_numpy(given.log_prob_known)
    return log_p
