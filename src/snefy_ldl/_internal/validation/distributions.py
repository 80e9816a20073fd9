"""Label distributions and vote counts: rows that sum to one, whole numbers, and what is not known of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation.arrays import as_float, cell_name, check_table, column_names, first_cell, row_name
from snefy_ldl.errors import ClosureNote, InputError

#: Rows may miss a sum of one by this much; inside it they are re-closed.
CLOSURE_TOLERANCE = 1e-3
#: Shares that were rounded may miss it by this much; they are re-closed, with a note.
ROUNDING_TOLERANCE = 0.02
#: Units in which shares may come, if the rows sum to that many; they are divided, with a note.
UNITS = {100.0: "percentages", 1000.0: "shares per mille"}
#: What is left of a row by subtraction is rounding below this, and then nothing is left.
REST_ROUNDING = 1e-9
#: A float64 tells whole numbers apart up to 9e15; totals must stay below it, too.
LARGEST_COUNT = 1e15
#: Votes an item up to which shares are looked at as votes, and how far from a whole number of them they may be.
MOST_SUGGESTED, SHARE_ROUNDING = 60, 1e-6


def _refuse_one_column(values: Any, what: str) -> None:
    """Raise where labels are one number or one class per row, with what makes shares of them."""
    if hasattr(values, "detach"):  # a tensor
        values = as_float(values, what)
    try:
        shape = np.shape(values)
    except ValueError:  # rows of different lengths, which have a message of their own
        return
    if len(shape) == 2 and shape[1] == 1:
        rule = f"{what} has 1 label column; a label distribution needs at least 2."
    elif len(shape) == 1:
        rule = f"{what} must be two-dimensional (rows, labels); got shape {shape}."
    else:
        return
    flat = np.ravel(np.asarray(values))
    numbers = flat.astype(np.float64) if flat.dtype.kind in "fiu" else np.zeros(0)
    if len(numbers) and ((numbers >= 0) & (numbers <= 1)).all() and (numbers != np.round(numbers)).any():
        advice = f"Shares of one of two labels: y = np.ravel({what}); {what} = np.column_stack([1 - y, y])"
    else:
        one_hot = f"y = np.ravel({what}); {what} = (y[:, None] == np.unique(y)).astype(float)"
        advice = f"One class per row, as one-hot shares: {one_hot}"
    raise InputError(f"{rule} {advice}")


def _check_labels(values: Any, what: str, n_rows: int | None, n_labels: int | None) -> tuple[Array, list[str] | None]:
    table, names = check_table(values, what, "labels")
    if table.shape[1] < 2:
        raise InputError(f"{what} has {table.shape[1]} label columns; a label distribution needs at least 2.")
    if n_labels is not None and table.shape[1] != n_labels:
        raise InputError(f"{what} has {table.shape[1]} labels, but the model was fitted with {n_labels}.")
    if n_rows is not None and table.shape[0] != n_rows:
        raise InputError(f"X and {what} must have the same number of rows; got {n_rows} and {table.shape[0]}.")
    if not np.isfinite(table).all():
        row, column = first_cell(~np.isfinite(table))
        kind = "NaN" if np.isnan(table[row, column]) else "inf"
        raise InputError(
            f"{what} contains {kind} at {cell_name(row, column, names)}; every share must be a finite number."
        )
    if (table < 0).any():
        row, column = first_cell(table < 0)
        raise InputError(
            f"{what} is negative ({table[row, column]:g}) at {cell_name(row, column, names)}; shares must be >= 0."
        )
    return table, names


def check_distributions(
    D: Any, *, n_rows: int | None = None, n_labels: int | None = None, what: str = "D", missing: bool = False
) -> tuple[Array, list[str] | None]:
    """Label distributions as a closed float64 array (N, L), and their column names if they had any.

    With ``missing``, NaN stands for a share that is not known. One unknown share of a row follows from the others and
    is filled in; two or more stay NaN, and the row's other shares may not sum to more than one.

    >>> check_distributions([[0.2, 0.3, 0.5]])[0]
    array([[0.2, 0.3, 0.5]])
    >>> check_distributions([[0.25, np.nan, 0.5], [0.25, np.nan, np.nan]], missing=True)[0]
    array([[0.25, 0.25, 0.5 ],
           [0.25,  nan,  nan]])

    Percentages and shares per mille are divided, and rounded shares re-closed, with a
    :class:`~snefy_ldl.errors.ClosureNote`.

    >>> check_distributions([[0.2, 0.3, 0.9]])
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: D row 0 sums to 1.4; a label distribution must sum to 1 (tolerance 0.02). \
Divide each row by its sum, or pass vote counts with fit(X, counts=...).
    """
    _refuse_one_column(D, what)
    gaps = np.zeros((0, 0), dtype=bool)
    if missing:
        names, given = check_table(D, what, "labels")[1], as_float(D, what)
        gaps = np.isnan(given)
        table, _ = _check_labels(np.where(gaps, 0.0, given), what, n_rows, n_labels)
    else:
        table, names = _check_labels(D, what, n_rows, n_labels)
    whole: Mask = np.asarray(~gaps.any(axis=1) if gaps.size else np.ones(len(table), dtype=bool))
    table = _in_shares(table, whole, what)
    with np.errstate(over="ignore"):  # huge numbers are told as such
        sums = table.sum(axis=1)
    if gaps.any():
        return _fill_gaps(table, gaps, sums, what, names), names
    wrong = ~(np.abs(sums - 1.0) <= ROUNDING_TOLERANCE)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{what} {row_name(row, names)} sums to {sums[row]:.6g}; a label distribution must sum to 1 (tolerance "
            f"{ROUNDING_TOLERANCE:g}). Divide each row by its sum, or pass vote counts with fit(X, counts=...)."
        )
    _note_rounding(sums, what, names)
    return divide_shares(table, sums[:, None]), names


def divide_shares(table: Array, by: Array | float) -> Array:
    """Shares divided by positive numbers; a positive share stays positive, however small it is.

    Args:
        table: (N, L).
        by: what broadcasts with it.

    Returns:
        (N, L).

    >>> divide_shares(np.array([[5e-324, 2.0]]), 2.0)
    array([[5.e-324, 1.e+000]])
    """
    shares: Array = table / by
    smallest = float(np.finfo(np.float64).smallest_subnormal)
    return np.where((shares == 0.0) & (table > 0.0), smallest, shares)


def _in_shares(table: Array, whole: Mask, what: str) -> Array:
    """The table divided by its unit, where the sums of all its whole rows say that it comes in one."""
    with np.errstate(over="ignore"):
        sums = table[whole].sum(axis=1)
    for unit, words in UNITS.items():
        if len(sums) and (np.abs(sums - unit) <= ROUNDING_TOLERANCE * unit).all():
            _note(f"{what} holds {words}: every row sums to about {unit:g}; it was divided by {unit:g}.")
            return divide_shares(table, unit)
    return table


def _note_rounding(sums: Array, what: str, names: list[str] | None) -> None:
    rounded = np.abs(sums - 1.0) > CLOSURE_TOLERANCE
    if rounded.any():
        row = int(np.flatnonzero(rounded)[0])
        _note(
            f"{what} holds rounded shares: {int(rounded.sum())} of {len(sums)} rows miss a sum of 1 by more than "
            f"{CLOSURE_TOLERANCE:g} ({row_name(row, names)} sums to {sums[row]:.6g}); each was divided by its sum."
        )


def _note(words: str) -> None:
    warnings.warn(words, ClosureNote, stacklevel=5)


def common_denominator(D: Array, most: int = MOST_SUGGESTED) -> int | None:
    """Smallest m so that every share is a multiple of 1/m, as the shares of m votes are; None where there is none.

    Args:
        D: label distributions (N, L); NaN where unknown.
        most: the largest m to try.

    Returns:
        m, or None.

    >>> common_denominator(np.array([[0.2, 0.8], [1 / 3, 2 / 3]]))
    15
    """
    for m in range(1, most + 1):
        for part in (D[:64], D):  # few rows tell for most m
            votes = part * m
            if not (np.abs(votes - np.round(votes)) <= SHARE_ROUNDING * m).all():
                break
        else:
            return m
    return None


def _fill_gaps(table: Array, gaps: Mask, sums: Array, what: str, names: list[str] | None) -> Array:
    """Rows whose gaps hold zeros: one gap is filled, more become NaN."""
    n_gaps = gaps.sum(axis=1)
    if (n_gaps == table.shape[1]).any():
        row = int(np.flatnonzero(n_gaps == table.shape[1])[0])
        raise InputError(f"{what} {row_name(row, names)} holds no share at all (NaN in every column); drop such rows.")
    wrong = ~(np.where(n_gaps > 0, sums - 1.0, np.abs(sums - 1.0)) <= ROUNDING_TOLERANCE)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        rule = "known shares may sum to at most 1" if n_gaps[row] else "a label distribution must sum to 1"
        place = f"{what} {row_name(row, names)}"
        raise InputError(f"{place} sums to {sums[row]:.6g}; {rule} (tolerance {ROUNDING_TOLERANCE:g}).")
    _note_rounding(np.where(n_gaps > 0, np.maximum(sums, 1.0), sums), what, names)
    closed = divide_shares(table, np.where((n_gaps == 0) | (sums > 1.0), sums, 1.0)[:, None])
    rest = _rest(closed.sum(axis=1))
    return np.where(gaps, np.where(n_gaps == 1, rest, np.nan)[:, None], closed)


def _rest(sums: Array) -> Array:
    """What known shares that sum to this much leave for the others, exactly zero where that is rounding."""
    left = 1.0 - sums
    return np.where(left < REST_ROUNDING, 0.0, left)


def spread_rest(D: Array, shares: Array | None = None) -> Array:
    """Label distributions (N, L) with the rest of each row shared out among its unknown labels.

    Args:
        D: NaN where unknown.
        shares: how to share it out (L,), in proportion; evenly by default.

    >>> spread_rest(np.array([[0.4, np.nan, np.nan], [0.2, 0.3, 0.5]]))
    array([[0.4, 0.3, 0.3],
           [0.2, 0.3, 0.5]])
    """
    gaps = np.isnan(D)
    weight = gaps * (np.ones(D.shape[1]) if shares is None else np.where(shares > 0.0, shares, 1e-6))
    rest = _rest(np.nansum(D, 1))
    spread: Array = np.where(gaps, weight * (rest / np.maximum(weight.sum(1), 1e-300))[:, None], D)
    return spread


def check_counts(
    counts: Any, *, n_rows: int | None = None, n_labels: int | None = None, missing: bool = False
) -> tuple[Array, list[str] | None]:
    """Vote counts as a float64 array (N, L) of whole numbers; zeros are fine, an all-zero row is not.

    With ``missing``, NaN stands for a label that was not counted in that row; two labels must have been.
    """
    _refuse_one_column(counts, "counts")
    gaps = np.isnan(as_float(counts, "counts")) if missing else np.zeros(0, dtype=bool)
    if gaps.any():
        names = column_names(counts)
        table, _ = _check_labels(np.where(gaps, 0.0, as_float(counts, "counts")), "counts", n_rows, n_labels)
        few = (~gaps).sum(axis=1) < 2
        if few.any():
            row = int(np.flatnonzero(few)[0])
            place = row_name(row, names)
            raise InputError(f"counts {place} has fewer than 2 labels that were counted; such a row tells nothing.")
    else:
        table, names = _check_labels(counts, "counts", n_rows, n_labels)
    whole = table == np.round(table)
    if not whole.all():
        row, column = first_cell(~whole)
        raise InputError(
            f"counts holds {table[row, column]:g} at {cell_name(row, column, names)}; votes must be whole numbers. "
            "Shares go in as fit(X, D)."
        )
    if (table > LARGEST_COUNT).any():
        row, column = first_cell(table > LARGEST_COUNT)
        raise InputError(
            f"counts holds {table[row, column]:g} at {cell_name(row, column, names)}; at most {LARGEST_COUNT:g} votes."
        )
    empty = table.sum(axis=1) == 0
    if empty.any():
        place = row_name(int(np.flatnonzero(empty)[0]), names)
        raise InputError(f"counts {place} holds no vote at all; drop such rows.")
    return np.where(gaps, np.nan, table) if gaps.any() else table, names
