"""Soil-texture classes of the United States Department of Agriculture, in the triangle of sand, silt and clay."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError

__all__ = ["USDA", "texture_classes"]

#: The twelve classes, in the order of the numbers that :func:`texture_classes` returns.
USDA = (
    "sand",
    "loamy sand",
    "sandy loam",
    "loam",
    "silt loam",
    "silt",
    "sandy clay loam",
    "clay loam",
    "silty clay loam",
    "sandy clay",
    "silty clay",
    "clay",
)


def texture_classes(shares: Any) -> Index:
    """Number of the texture class in :data:`USDA`, by the conditions of the Soil Survey Manual (2017, chapter 3).

    Args:
        shares: of sand, silt and clay (..., 3), rows that sum to one; draws of a distribution, say.

    Returns:
        Numbers from 0 to 11 (...,).

    Raises:
        InputError: the last axis does not have three shares.

    Example:
        >>> [USDA[k] for k in texture_classes([[0.9, 0.05, 0.05], [0.4, 0.4, 0.2], [0.2, 0.2, 0.6]])]
        ['sand', 'loam', 'clay']
    """
    table = 100.0 * as_float(shares, "shares")
    if table.shape[-1:] != (3,):
        raise InputError(f"shares must be of sand, silt and clay (..., 3); got shape {table.shape}.")
    sand, silt, clay = np.moveaxis(table, -1, 0)
    holds = [
        silt + 1.5 * clay < 15,
        silt + 2 * clay < 30,
        (clay < 7) & (silt < 50) | (clay < 20) & (sand > 52),
        (clay < 27) & (silt >= 28) & (silt < 50) & (sand <= 52),
        (clay < 27) & (silt >= 50) & ((silt < 80) | (clay >= 12)),
        (silt >= 80) & (clay < 12),
        (clay < 35) & (silt < 28) & (sand > 45),
        (clay < 40) & (sand > 20) & (sand <= 45),
        (clay < 40) & (sand <= 20),
        sand > 45,
        silt >= 40,
    ]
    return np.select(holds, list(range(11)), 11).astype(np.intp)
