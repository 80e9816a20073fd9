"""Geometry of the probability simplex: closure, log-ratios, uniform draws and ternary coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from snefy_ldl._types import Array


def closure(parts: ArrayLike) -> Array:
    """Divide each row by its sum.

    >>> closure([[1, 1, 2]])
    array([[0.25, 0.25, 0.5 ]])
    """
    array = np.asarray(parts, dtype=np.float64)
    closed: Array = array / array.sum(axis=-1, keepdims=True)
    return closed


def clr(parts: ArrayLike) -> Array:
    """Centred log-ratio ``log ℓ_r - mean_s log ℓ_s`` of strictly positive parts.

    >>> clr([[0.25, 0.25, 0.5]]).round(3)
    array([[-0.231, -0.231,  0.462]])
    """
    logs = np.log(np.asarray(parts, dtype=np.float64))
    centred: Array = logs - logs.mean(axis=-1, keepdims=True)
    return centred


def uniform(n: int, n_labels: int, random_state: Any = None) -> Array:
    """n points drawn uniformly from the simplex with ``n_labels`` parts (density ``(L-1)!``)."""
    draws: Array = np.random.default_rng(random_state).dirichlet(np.ones(n_labels), size=n)
    return draws


def ternary_grid(resolution: int = 60) -> Array:
    """Interior points (T, 3) of a regular triangular grid, strictly positive.

    >>> ternary_grid(4).shape
    (10, 3)
    """
    steps = [(i, j) for i in range(resolution) for j in range(resolution - i)]
    a, b = np.array(steps, dtype=np.float64).T
    return np.column_stack([a + 1 / 3, b + 1 / 3, resolution - 1 - a - b + 1 / 3]) / resolution


def ternary_to_xy(parts: ArrayLike) -> Array:
    """Plane coordinates of three-part compositions: corners (0, 0), (1, 0), (1/2, √3/2)."""
    closed = closure(parts)
    return np.column_stack([closed[:, 1] + closed[:, 2] / 2, closed[:, 2] * np.sqrt(3) / 2])
