"""Points of the probability simplex: uniform draws, and a grid over mixes of three."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array


def uniform(n: int, n_labels: int, random_state: Any = None) -> Array:
    """Points drawn uniformly from the simplex, whose density is ``(L-1)!``.

    Args:
        n: how many.
        n_labels: L, parts of a point.
        random_state: seed, or a NumPy generator.

    Returns:
        Points (n, L); rows sum to one.

    Example:
        >>> uniform(4, 3, random_state=0).sum(axis=1).round(12)
        array([1., 1., 1., 1.])
    """
    draws: Array = np.random.default_rng(random_state).dirichlet(np.ones(n_labels), size=n)
    return draws


def ternary_grid(resolution: int = 60) -> Array:
    """Interior points of a regular triangular grid over mixes of three.

    Args:
        resolution: points along a side.

    Returns:
        Points (T, 3), strictly positive, T = resolution (resolution + 1) / 2.

    Example:
        >>> ternary_grid(4).shape
        (10, 3)
    """
    steps = [(i, j) for i in range(resolution) for j in range(resolution - i)]
    a, b = np.array(steps, dtype=np.float64).T
    return np.column_stack([a + 1 / 3, b + 1 / 3, resolution - 1 - a - b + 1 / 3]) / resolution
