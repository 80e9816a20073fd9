"""Logical labels: which labels apply to a row. Checked, and made from distributions to see how well those come back."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_distributions, check_number
from snefy_ldl._internal.validation.arrays import cell_name, check_table, first_cell
from snefy_ldl.errors import InputError

__all__ = ["binarise", "check_logical"]


def binarise(D: Any, threshold: float = 0.5) -> Mask:
    """Logical labels of label distributions: the largest labels, as few as hold ``threshold`` of the whole.

    Args:
        D: Label distributions, (N, L).
        threshold: Share that the relevant labels reach together, in (0, 1).

    Returns:
        Which labels apply, (N, L); at least one a row. Of equal shares the first counts as larger.

    Raises:
        InputError: Rows that are no label distributions, or a threshold outside (0, 1).

    References:
        Xu, Tao, Geng, Label enhancement for label distribution learning, IJCAI 2018, section 4.1.

    Example:
        >>> binarise([[0.3, 0.45, 0.25], [0.6, 0.3, 0.1]]).astype(int)
        array([[1, 1, 0],
               [1, 0, 0]])
    """
    shares, _ = check_distributions(D)
    if not 0.0 < check_number("threshold", threshold) < 1.0:
        raise InputError(f"threshold={threshold!r} must lie between 0 and 1.")
    order = np.argsort(-shares, axis=1, kind="stable")
    before = np.cumsum(np.take_along_axis(shares, order, axis=1), axis=1)
    needed = np.concatenate([np.ones((len(shares), 1), bool), before[:, :-1] < threshold - 1e-12], axis=1)
    relevant = np.zeros(shares.shape, dtype=bool)
    np.put_along_axis(relevant, order, needed, axis=1)
    return relevant


def check_logical(L: Any, n_rows: int | None = None) -> tuple[Mask, list[str] | None]:
    """Logical labels as a boolean array, and their names if they had any.

    Args:
        L: Zeros and ones, or booleans, (N, L); -1 counts as 0.
        n_rows: Number of rows there must be.

    Returns:
        Which labels apply (N, L), and the names.

    Raises:
        InputError: Another number than 0, 1 or -1, a row without a label, fewer than two labels, or other rows.

    Example:
        >>> check_logical([[0, 1], [1, 1]])[0]
        array([[False,  True],
               [ True,  True]])
    """
    table, names = check_table(L, "L", "labels")
    if n_rows is not None and len(table) != n_rows:
        raise InputError(f"X and L must have the same number of rows; got {n_rows} and {len(table)}.")
    if table.shape[1] < 2:
        raise InputError(f"L has {table.shape[1]} label column; label enhancement needs at least 2.")
    odd = ~np.isin(table, (-1.0, 0.0, 1.0))
    if odd.any():
        row, column = first_cell(odd)
        raise InputError(
            f"L holds {table[row, column]:g} at {cell_name(row, column, names)}; logical labels are 0 or 1."
        )
    relevant = table > 0.0
    empty = np.flatnonzero(~relevant.any(axis=1))
    if len(empty):
        raise InputError(f"L has no label in row {empty[0]}; every row needs at least one that applies.")
    return relevant, names


def closed_logical(relevant: Mask) -> Array:
    """Equal shares for the labels that apply, (N, L)."""
    shares: Array = relevant / relevant.sum(axis=1, keepdims=True)
    return shares
