"""Rows at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategies.base import Strategy, free_rows, top_rows

__all__ = ["RandomSampling"]


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
