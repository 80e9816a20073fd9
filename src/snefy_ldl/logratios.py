"""Log-ratio transforms of compositions, their inverses, bases of balances, and the variation matrix.

Compositions are positive parts of a whole: shares, percentages or amounts, since only ratios count. A table with column
names comes back as one: columns of log-ratios are named after the parts they compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.linalg import helmert
from scipy.special import softmax

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import align_labels, check_table, refuse_first
from snefy_ldl.datasets.cells import frame_of
from snefy_ldl.errors import InputError

__all__ = [
    "Basis",
    "alr",
    "alr_inverse",
    "check_positive",
    "clr",
    "clr_inverse",
    "default_basis",
    "ilr",
    "ilr_inverse",
    "partition_basis",
    "principal_balances",
    "refuse_zeros",
    "variation_matrix",
]


@dataclass(frozen=True)
class Basis:
    """Orthonormal log-contrasts: coordinate k of a composition is ``Σ_r matrix[k, r] log ℓ_r``.

    Args:
        matrix: (L-1, L), orthonormal rows that sum to zero.
        part_names: Names of the L parts; None where they have none.

    Example:
        >>> default_basis(2).matrix.round(3)
        array([[ 0.707, -0.707]])
    """

    matrix: Array
    part_names: tuple[str, ...] | None = None

    @property
    def n_parts(self) -> int:
        """L."""
        return int(self.matrix.shape[1])

    @property
    def names(self) -> list[str]:
        """Name of every coordinate, the parts above the fraction line first: ``"sand+silt/clay"``."""
        parts = self.part_names or tuple(str(r) for r in range(self.n_parts))
        sides = [("+".join(p for p, w in zip(parts, row) if w > 0), row) for row in self.matrix]
        return [f"{above}/{'+'.join(p for p, w in zip(parts, row) if w < 0)}" for above, row in sides]


def check_positive(D: Any, what: str = "D") -> tuple[Array, list[str] | None]:
    """A table of positive parts, and the names of its columns.

    Args:
        D: Parts (N, L), shares or amounts.
        what: Its name in messages.

    Returns:
        The table in float64, and the names or None.

    Raises:
        InputError: A part is zero, negative or not finite; the message names the cell.

    Example:
        >>> check_positive([[1, 3]])
        (array([[1., 3.]]), None)
    """
    table, names = check_table(D, what, "parts")
    if table.shape[1] < 2:
        raise InputError(f"{what} has {table.shape[1]} column; log-ratios need at least 2 parts.")
    refuse_zeros(table == 0.0, names, what)
    rule = f"{what} is {{value:g}} at {{place}}; parts must be positive numbers."
    refuse_first(~(np.isfinite(table) & (table > 0.0)), table, rule, names)
    return table, names


def refuse_zeros(zero: Mask, names: list[str] | None, what: str = "D") -> None:
    """Raise where a part is zero, and name the model that has room for zeros.

    Args:
        zero: Which cells are zero (N, L).
        names: Names of the columns, or None.
        what: The table's name in messages.

    Raises:
        InputError: A cell is zero.

    Example:
        >>> refuse_zeros(np.zeros((1, 2), dtype=bool), None)
    """
    rule = f"{what} is zero at {{place}}, where log-ratios do not exist. Use "
    rule += "LogRatioLDL, which models zeros, or replace zeros by small shares first."
    refuse_first(zero, zero, rule, names)


def _back(values: Array, names: Sequence[str] | None, like: Any) -> Any:
    return values if names is None else frame_of(values, names, like)


def _coordinates(Z: Any, what: str = "Z") -> tuple[Array, list[str] | None]:
    table, names = check_table(Z, what, "coordinates")
    refuse_first(~np.isfinite(table), table, f"{what} is not a finite number at {{place}}.", names)
    return table, names


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
    table, names = check_positive(D)
    logs = np.log(table)
    return _back(logs - logs.mean(axis=1, keepdims=True), names, D)


def clr_inverse(Z: Any) -> Any:
    """Shares whose centred log-ratios these are.

    Args:
        Z: (N, L); a number added to a whole row changes nothing.

    Returns:
        (N, L), rows that sum to one; a DataFrame where Z is one.

    Raises:
        InputError: A coordinate is not a finite number.

    Example:
        >>> clr_inverse(clr([[1.0, 1.0, 2.0]]))
        array([[0.25, 0.25, 0.5 ]])
    """
    table, names = _coordinates(Z)
    return _back(softmax(table, axis=1), names, Z)


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
    table, names = check_positive(D)
    at = _part_number(reference, table.shape[1], names)
    logs = np.log(table)
    values = np.delete(logs - logs[:, [at]], at, axis=1)
    named = None if names is None else [f"{name}/{names[at]}" for r, name in enumerate(names) if r != at]
    return _back(values, named, D)


def alr_inverse(Z: Any, reference: int = -1, names: Sequence[str] | None = None) -> Any:
    """Shares whose additive log-ratios these are.

    Args:
        Z: (N, L-1).
        reference: Number of the part that the others were compared with, among all L.
        names: Names of the L parts, for a DataFrame.

    Returns:
        (N, L), rows that sum to one.

    Raises:
        InputError: A coordinate is not a finite number, or there is no such reference.

    Example:
        >>> alr_inverse(alr([[1.0, 1.0, 2.0]]))
        array([[0.25, 0.25, 0.5 ]])
    """
    table, _ = _coordinates(Z)
    n_parts = table.shape[1] + 1
    at = _part_number(reference, n_parts, None)
    return _back(softmax(np.insert(table, at, 0.0, axis=1), axis=1), names, Z)


def default_basis(n_parts: int, part_names: Sequence[str] | None = None) -> Basis:
    """Helmert's basis: each coordinate compares the parts so far with the next one.

    Args:
        n_parts: L.
        part_names: Names of the parts.

    Returns:
        The basis.

    Example:
        >>> default_basis(3, ["sand", "silt", "clay"]).names
        ['sand/silt', 'sand+silt/clay']
    """
    return Basis(helmert(n_parts), None if part_names is None else tuple(part_names))


def ilr(D: Any, basis: Basis | None = None) -> Any:
    """Isometric log-ratios: coordinates in an orthonormal basis of log-contrasts.

    Args:
        D: Positive parts (N, L), aligned by name if the basis has names.
        basis: The basis; :func:`default_basis` by default.

    Returns:
        (N, L-1); columns named after the parts they compare where D has names.

    Raises:
        InputError: A part is not positive, or the basis is for another number of parts.

    Example:
        >>> ilr([[0.25, 0.25, 0.5]]).round(3)
        array([[ 0.   , -0.566]])
    """
    aligned = align_labels(D, None if basis is None else basis.part_names)
    table, names = check_positive(aligned)
    names = names if aligned is D or basis is None else list(basis.part_names or ())
    basis = default_basis(table.shape[1]) if basis is None else basis
    if basis.n_parts != table.shape[1]:
        raise InputError(f"the basis is for {basis.n_parts} parts; D has {table.shape[1]}.")
    values = np.log(table) @ basis.matrix.T
    return _back(values, None if names is None else Basis(basis.matrix, tuple(names)).names, D)


def ilr_inverse(Z: Any, basis: Basis | None = None, names: Sequence[str] | None = None) -> Any:
    """Shares whose isometric log-ratios these are.

    Args:
        Z: (N, L-1).
        basis: The basis they were made with; :func:`default_basis` by default.
        names: Names of the L parts, for a DataFrame; the basis's own by default.

    Returns:
        (N, L), rows that sum to one.

    Raises:
        InputError: A coordinate is not a finite number, or the basis is for another number of parts.

    Example:
        >>> ilr_inverse(ilr([[1.0, 1.0, 2.0]]))
        array([[0.25, 0.25, 0.5 ]])
    """
    table, _ = _coordinates(Z)
    basis = default_basis(table.shape[1] + 1) if basis is None else basis
    if basis.n_parts != table.shape[1] + 1:
        raise InputError(f"the basis is for {basis.n_parts} parts, {basis.n_parts - 1} coordinates; got {table.shape}.")
    return _back(softmax(table @ basis.matrix, axis=1), names or basis.part_names, Z)


def partition_basis(partition: Any, part_names: Sequence[str] | None = None) -> Basis:
    """The balances of a sequential binary partition.

    Args:
        partition: Pairs within pairs, of part numbers or names, such as ``(("sand", "silt"), "clay")``; or a table of
            signs (L-1, L): 1 above the fraction line, -1 below, 0 for parts that a balance leaves out.
        part_names: Names of the L parts, in the order of the columns; needed where the partition uses names.

    Returns:
        A basis whose first balance compares the first two groups.

    Raises:
        InputError: A part is missing or named twice, or the signs are no sequential binary partition.

    Example:
        >>> basis = partition_basis((("sand", "silt"), "clay"), ["sand", "silt", "clay"])
        >>> basis.names, basis.matrix[0].round(3)
        (['sand+silt/clay', 'sand/silt'], array([ 0.408,  0.408, -0.816]))
    """
    names = None if part_names is None else [str(name) for name in part_names]
    balances: list[tuple[list[int], list[int]]] = []
    if _is_sign_table(partition):
        signs = np.asarray(partition)
        n_parts = signs.shape[1]
        balances = [(np.flatnonzero(row > 0).tolist(), np.flatnonzero(row < 0).tolist()) for row in signs]
    else:
        leaves = _split(partition, balances, names)
        n_parts = len(leaves) if names is None else len(names)
        if sorted(leaves) != list(range(n_parts)):
            raise InputError(f"a partition must hold each of the {n_parts} parts exactly once; got {partition!r}.")
    if names is not None and len(names) != n_parts:
        raise InputError(f"{len(names)} names for {n_parts} parts.")
    matrix = np.array([_balance(above, below, n_parts) for above, below in balances])
    if matrix.shape != (n_parts - 1, n_parts) or np.abs(matrix @ matrix.T - np.eye(n_parts - 1)).max() > 1e-9:
        raise InputError(
            f"the signs are no sequential binary partition of {n_parts} parts: each of {n_parts - 1} balances must "
            "split one group of the balances before it in two."
        )
    return Basis(matrix, None if names is None else tuple(names))


def _is_sign_table(partition: Any) -> bool:
    try:
        signs = np.asarray(partition, dtype=float)
    except (TypeError, ValueError, OverflowError):
        return False
    return signs.ndim == 2 and len(signs) == signs.shape[1] - 1 and bool(np.isin(signs, (-1.0, 0.0, 1.0)).all())


def _split(node: Any, balances: list[tuple[list[int], list[int]]], names: list[str] | None) -> list[int]:
    """Parts below a node of nested pairs; its balance comes before those below it."""
    if isinstance(node, (int, np.integer, str)):
        part = node if isinstance(node, str) else int(node)
        return [_part_number(part, len(names) if names is not None else int(1e9), names)]
    if not isinstance(node, Sequence) or len(node) != 2:
        raise InputError(f"a partition is made of pairs within pairs; got {node!r}.")
    place = len(balances)
    balances.append(([], []))
    above, below = (_split(side, balances, names) for side in node)
    balances[place] = (above, below)
    return above + below


def _balance(above: list[int], below: list[int], n_parts: int) -> Array:
    """``√(a b / (a + b)) (mean log above - mean log below)`` as a contrast (L,)."""
    row = np.zeros(n_parts)
    if above and below:
        a, b = len(above), len(below)
        row[above], row[below] = np.sqrt(b / (a * (a + b))), -np.sqrt(a / (b * (a + b)))
    return row


def _part_number(part: int | str, n_parts: int, names: Sequence[str] | None) -> int:
    if isinstance(part, str):
        if names is None or part not in names:
            raise InputError(f"there is no part {part!r}" + (f"; the parts are {', '.join(names)}." if names else "."))
        return list(names).index(part)
    if not isinstance(part, (int, np.integer)) or not -n_parts <= part < n_parts:
        raise InputError(f"part {part!r}: use a name, or a whole number from 0 to {n_parts - 1}.")
    return int(part) % n_parts


def principal_balances(D: Any) -> Basis:
    """A basis of balances that explain much of the variance with few coordinates.

    Parts are clustered by Ward's method on their centred log-ratios, so that parts that vary together share a group;
    each merge is a balance (Martín-Fernández et al., Advances in principal balances for compositional data,
    Mathematical Geosciences 50, 2018).

    Args:
        D: Positive parts (N, L), at least 2 rows.

    Returns:
        A basis, the balance of largest variance first.

    Raises:
        InputError: A part is not positive, or there is one row only.

    Example:
        >>> table = np.array([[1.0, 1.1, 5.0], [2.0, 2.1, 5.0], [4.0, 3.9, 5.0]])
        >>> principal_balances(table).names
        ['0+1/2', '0/1']
    """
    table, names = check_positive(D)
    if len(table) < 2:
        raise InputError("principal balances need at least 2 rows.")
    n_parts = table.shape[1]
    logs = np.log(table)
    merges = linkage(np.ascontiguousarray((logs - logs.mean(axis=1, keepdims=True)).T), "ward")
    groups = [[r] for r in range(n_parts)]
    rows = []
    for one, other, _, _ in merges:
        above, below = sorted((groups[int(one)], groups[int(other)]))
        rows.append(_balance(above, below, n_parts))
        groups.append(sorted(above + below))
    matrix = np.array(rows)
    order = np.argsort(-(logs @ matrix.T).var(axis=0), kind="stable")
    return Basis(matrix[order], None if names is None else tuple(names))


def variation_matrix(D: Any) -> Any:
    """Variances of all log-ratios, ``Var[log ℓ_r / ℓ_s]``: small where two parts rise and fall together.

    Args:
        D: Positive parts (N, L), at least 2 rows.

    Returns:
        (L, L), symmetric, zeros on the diagonal, with n-1 in the denominator; a pandas DataFrame with the parts' names
        as rows and columns where D has names.

    Raises:
        InputError: A part is not positive, or there is one row only.

    Example:
        >>> variation_matrix([[1.0, 2.0, 4.0], [2.0, 4.0, 4.0]]).round(3)
        array([[0.  , 0.  , 0.24],
               [0.  , 0.  , 0.24],
               [0.24, 0.24, 0.  ]])
    """
    table, names = check_positive(D)
    if len(table) < 2:
        raise InputError("a variation matrix needs at least 2 rows.")
    covariance = np.atleast_2d(np.cov(np.log(table), rowvar=False))
    variance = np.diag(covariance)
    variation = np.maximum(variance[:, None] + variance[None] - 2.0 * covariance, 0.0)
    np.fill_diagonal(variation, 0.0)
    if names is None:
        return variation
    frame = frame_of(variation, names)
    frame.index = names
    return frame
