"""Log-ratio transforms of compositions, and the inverse of the isometric one.

Compositions are positive parts of a whole: shares, percentages or amounts, since only ratios count. A table with column
names comes back as one: columns of log-ratios are named after the parts they compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import helmert
from scipy.special import softmax

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_table, refuse_first
from snefy_ldl.datasets.cells import frame_of
from snefy_ldl.errors import InputError

__all__ = ["alr", "clr", "ilr", "ilr_inverse"]


def _positive(D: Any) -> tuple[Array, list[str] | None]:
    """A table of positive parts, and the names of its columns."""
    table, names = check_table(D, "D", "parts")
    if table.shape[1] < 2:
        raise InputError(f"D has {table.shape[1]} column; log-ratios need at least 2 parts.")
    rule = "D is zero at {place}, where log-ratios do not exist. Use LogRatioLDL, which models zeros, or replace zeros "
    refuse_first(table == 0.0, table, rule + "by small shares first.", names)
    rule = "D is {value:g} at {place}; parts must be positive numbers."
    refuse_first(~(np.isfinite(table) & (table > 0.0)), table, rule, names)
    return table, names


def _back(values: Array, names: Sequence[str] | None, like: Any) -> Any:
    return values if names is None else frame_of(values, names, like)


def clr(D: Any) -> Any:
    """Centred log-ratios, ``log ℓ_r - mean_s log ℓ_s``.

    Args:
        D: Positive parts (N, L).

    Returns:
        (N, L), rows that sum to zero; a DataFrame with the parts' names where D is one.

    Raises:
        InputError: A part is zero, negative or not finite.

    Example:
        >>> clr([[0.25, 0.25, 0.5]]).round(3)
        array([[-0.231, -0.231,  0.462]])
    """
    table, names = _positive(D)
    logs = np.log(table)
    return _back(logs - logs.mean(axis=1, keepdims=True), names, D)


def alr(D: Any, reference: int | str = -1) -> Any:
    """Additive log-ratios, ``log ℓ_r / ℓ_reference``.

    Args:
        D: Positive parts (N, L).
        reference: Number or name of the part that the others are compared with.

    Returns:
        (N, L-1), the other parts in their order; columns named ``"part/reference"`` where D has names.

    Raises:
        InputError: A part is not positive, or there is no such reference.

    Example:
        >>> alr([[0.25, 0.25, 0.5]]).round(3)
        array([[-0.693, -0.693]])
    """
    table, names = _positive(D)
    at = _part_number(reference, table.shape[1], names)
    logs = np.log(table)
    values = np.delete(logs - logs[:, [at]], at, axis=1)
    named = None if names is None else [f"{name}/{names[at]}" for r, name in enumerate(names) if r != at]
    return _back(values, named, D)


def ilr(D: Any) -> Any:
    """Isometric log-ratios: coordinates in Helmert's basis, each comparing the parts so far with the next one.

    Args:
        D: Positive parts (N, L).

    Returns:
        (N, L-1); columns named after the parts they compare, ``"sand+silt/clay"``, where D has names.

    Raises:
        InputError: A part is not positive.

    Example:
        >>> ilr([[0.25, 0.25, 0.5]]).round(3)
        array([[ 0.   , -0.566]])
    """
    table, names = _positive(D)
    named = None if names is None else [f"{'+'.join(names[:k])}/{names[k]}" for k in range(1, len(names))]
    return _back(np.log(table) @ helmert(table.shape[1]).T, named, D)


def ilr_inverse(Z: Any, names: Sequence[str] | None = None) -> Any:
    """Shares whose isometric log-ratios these are.

    Args:
        Z: (N, L-1).
        names: Names of the L parts, for a DataFrame.

    Returns:
        (N, L), rows that sum to one.

    Raises:
        InputError: A coordinate is not a finite number.

    Example:
        >>> ilr_inverse(ilr([[1.0, 1.0, 2.0]]))
        array([[0.25, 0.25, 0.5 ]])
    """
    table, columns = check_table(Z, "Z", "coordinates")
    refuse_first(~np.isfinite(table), table, "Z is not a finite number at {place}.", columns)
    return _back(softmax(table @ helmert(table.shape[1] + 1), axis=1), names, Z)


def _part_number(part: int | str, n_parts: int, names: Sequence[str] | None) -> int:
    if isinstance(part, str):
        if names is None or part not in names:
            raise InputError(f"there is no part {part!r}" + (f"; the parts are {', '.join(names)}." if names else "."))
        return list(names).index(part)
    if not isinstance(part, (int, np.integer)) or not -n_parts <= part < n_parts:
        raise InputError(f"part {part!r}: use a name, or a whole number from 0 to {n_parts - 1}.")
    return int(part) % n_parts
