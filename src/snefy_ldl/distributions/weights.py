"""Checks of mixture weights that share a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.tolerances import SMALLEST_DENSITY_SHARE, WEIGHT_SUM_ROUNDING
from snefy_ldl.errors import InputError


def check_weights(weights: Any, first_row: int = 0) -> None:
    """Weights must be finite and sum to one, and not cancel each other to the last digit.

    Args:
        weights: ``c`` (b, P), an array or a tensor.
        first_row: number of the first row, for the message.

    Raises:
        InputError: a row's weights are invalid: its normaliser is zero or not finite, or nothing but rounding
            is left.

    Example:
        >>> check_weights(np.array([[2.0, -1.0]]))
        >>> check_weights(np.array([[np.nan, 1.0]]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: row 0 is not a valid distribution: its weights sum to nan...
    """
    with np.errstate(invalid="ignore"):  # infinities of both signs, which are named below
        total, size = weights.sum(-1), abs(weights).sum(-1)
    check_sizes(total, size, first_row)


def check_sizes(total: Any, size: Any, first_row: int = 0) -> None:
    """The same where only ``Σ c`` and ``Σ |c|`` (b,) are known."""
    # sizes below one, which no weights have, come of a normaliser that is nothing but rounding
    possible = (size >= 1.0 - WEIGHT_SUM_ROUNDING) & (size <= 1.0 / SMALLEST_DENSITY_SHARE)
    good = (abs(total - 1.0) <= WEIGHT_SUM_ROUNDING) & possible
    if bool(good.all()):
        return
    row = next(i for i, fine in enumerate(good.tolist()) if not fine)
    raise InputError(
        f"row {first_row + row} is not a valid distribution: its weights sum to {float(total[row]):g}, their sizes to "
        f"{float(size[row]):g}; the normaliser is zero or not finite."
    )
