"""Checks of what users give: everything passes here once, before any work starts.

Each rule raises one :class:`~snefy_ldl.errors.InputError` that names the row, the column and the rule.
"""

from __future__ import annotations

import numbers
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from snefy_ldl._internal.memory import SINGLE_NUMBERS
from snefy_ldl._internal.text import plain_names, shorten
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.errors import InputError, LabelWarning

#: How messages about names of columns start, in the words of scikit-learn.
NAMES_DIFFER = "The feature names should match those that were passed during fit.\n"


def column_names(table: Any) -> list[str] | None:
    """Column names of a table as strings, None for anything else."""
    # Arrow's column_names; its columns are the cells themselves
    columns = getattr(table, "column_names", getattr(table, "columns", None))
    return None if columns is None else [str(c) for c in columns]


def cell_name(row: int, column: int, names: list[str] | None) -> str:
    """Row and column of a cell as messages name it: in a table as a person counts, in an array as it is indexed."""
    return f"{row_name(row, names)}, column {names[column]!r}" if names else f"{row_name(row, names)}, column {column}"


def row_name(row: int, names: list[str] | None) -> str:
    """A row as messages name it: the first data row of a table with column names is 1, that of an array is row 0.

    >>> row_name(0, ["sand", "silt"]), row_name(0, None)
    ('data row 1', 'row 0')
    """
    return f"data row {row + 1}" if names else f"row {row}"


def as_float(values: Any, what: str) -> Array:
    """Numbers in any container as a float64 array; a copy. What a masked array hides is NaN."""
    if hasattr(values, "detach"):  # a tensor; torch is not imported to find out
        values = values.detach().cpu()
        values = values.to_dense() if values.is_sparse else values
        values = values.resolve_conj().resolve_neg() if values.is_complex() else values.double()
        values = values.numpy()
    if sp.issparse(values):
        values = values.toarray()
    try:
        array = np.asarray(values)
        if np.iscomplexobj(array):
            raise InputError(f"{what} holds complex numbers. Complex data not supported.")
        if array.dtype.kind in "mMV":
            raise InputError(f"{what} must be numeric; got {array.dtype}.")
        try:
            table: Array = array.astype(np.float64)
        except ValueError:
            table = _without_percent(array).astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what} must be numeric; could not turn it into numbers: {error}") from None
    if isinstance(values, np.ma.MaskedArray):
        table[np.ma.getmaskarray(values)] = np.nan
    return table


def _without_percent(cells: NDArray[Any]) -> NDArray[Any]:
    """Text such as 55.9% without its sign, of any shape."""
    plain = [cell.strip().removesuffix("%") if isinstance(cell, str) else cell for cell in cells.ravel()]
    return np.array(plain, dtype=object).reshape(cells.shape)


def refuse_first(bad: Any, values: Any, rule: str, names: list[str] | None = None) -> None:
    """Raise at the first cell, or row, that a mask marks.

    Args:
        bad: Which cells (N, L), or rows (N,), break a rule.
        values: Of the same shape.
        rule: The message, ``{place}`` and ``{value}`` in the places of where it was broken and by what.
        names: Of the columns, where they have some.

    Raises:
        InputError: Something is marked.

    >>> refuse_first(np.array([[False, True]]), np.array([[1.0, -2.0]]), "D is {value:g} at {place}.")
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: D is -2 at row 0, column 1.
    """
    if bad.any():
        at = np.argwhere(bad)[0].tolist()
        place = row_name(at[0], names) if len(at) == 1 else cell_name(at[0], at[1], names)
        raise InputError(rule.format(place=place, value=values[tuple(at)]))


def check_table(values: Any, what: str, columns_are: str) -> tuple[Array, list[str] | None]:
    """A table of numbers (rows, columns) with at least one row, and its column names if it had any."""
    names = column_names(values)
    table = as_float(values, what)
    if table.ndim != 2:
        raise InputError(
            f"{what} must be two-dimensional (rows, {columns_are}); got shape {table.shape}. Reshape your data: "
            f"{what}.reshape(-1, 1) for one column, {what}.reshape(1, -1) for one row."
        )
    if table.shape[0] == 0:
        raise InputError(f"{what} is empty: 0 rows (0 sample(s)); a minimum of 1 is required.")
    return table, names


def _first_bad(table: Any, largest: float, missing: bool) -> tuple[int, int] | None:
    """First cell that is not finite or too large; a large table is not copied unless there is one."""
    if sp.issparse(table):
        cells = table.tocoo()
        at = np.flatnonzero(~(np.abs(cells.data) <= np.float64(largest)))
        return (int(cells.row[at[0]]), int(cells.col[at[0]])) if len(at) else None
    lowest, highest = (np.fmin, np.fmax) if missing else (np.minimum, np.maximum)
    if lowest.reduce(table, axis=None) >= -largest and highest.reduce(table, axis=None) <= largest:
        return None
    bad = np.argwhere(~(np.abs(table) <= np.float64(largest)) & ~(np.isnan(table) & missing))
    return (int(bad[0, 0]), int(bad[0, 1])) if len(bad) else None


def _is_plain(X: Any) -> bool:
    """Whether X is a table that needs no conversion; a matrix multiplies differently, a masked array hides cells."""
    odd = isinstance(X, (np.matrix, np.ma.MaskedArray))
    return isinstance(X, np.ndarray) and not odd and X.dtype in (np.float32, np.float64) and X.ndim == 2


def _large_single(X: Any) -> NDArray[Any] | None:
    """The numbers of a frame that holds very many of them in float32, so that no float64 copy is made; else None."""
    if not hasattr(X, "dtypes") or getattr(X, "ndim", 0) != 2 or X.shape[0] * X.shape[1] <= SINGLE_NUMBERS:
        return None
    return X.to_numpy() if all(kind == np.float32 for kind in X.dtypes) else None


def check_features(
    X: Any, *, n_features: int | None = None, largest: float = np.finfo(np.float64).max, missing: bool = False
) -> Any:
    """Features as a finite float array (N, d), or CSR when sparse; raises InputError naming the bad cell.

    float32 and float64 arrays come back as they are, without a copy. Networks, which compute in float32, take no value
    beyond ``largest``. With ``missing``, NaN in an array is a missing cell and stays.
    """
    names = column_names(X)
    if sp.issparse(X):
        if np.iscomplexobj(X) or X.dtype == object:
            raise InputError(f"X must be numeric; got a sparse matrix of {X.dtype}. Complex data not supported.")
        if X.ndim != 2:
            raise InputError(f"X must be two-dimensional (rows, features); got shape {X.shape}.")
        table = sp.csr_matrix(X)
        if table.dtype not in (np.float32, np.float64):
            table = table.astype(np.float64)
    elif _is_plain(X):
        table = X
    elif (large := _large_single(X)) is not None:
        table = large
    else:
        table, names = check_table(X, "X", "features")
    if table.shape[0] == 0:
        raise InputError("X is empty: 0 rows (0 sample(s)); a minimum of 1 is required.")
    if table.shape[1] == 0:
        raise InputError(f"X has no columns: 0 feature(s) (shape={table.shape}) while a minimum of 1 is required.")
    bad = _first_bad(table, largest, missing)
    if bad is not None:
        value, cell = float(table[bad]), cell_name(*bad, names)
        if np.isfinite(value):
            raise InputError(f"X holds {value:g} at {cell}; features must lie within ±{largest:g}. Rescale it.")
        kind = "NaN" if np.isnan(value) else "inf"
        raise InputError(f"X contains {kind} at {cell}; features must be finite. Impute it first.")
    if n_features is not None and table.shape[1] != n_features:
        raise InputError(f"X has {table.shape[1]} features, but model is expecting {n_features} features as input.")
    return table


def check_names(X: Any, known: Any) -> None:
    """Check that the columns of X, where it has named ones, are those that a model was fitted with.

    Args:
        X: features in any container.
        known: names of the columns at fit time, or None if they had none.

    Raises:
        InputError: where names are unseen, missing or in another order.
    """
    names = column_names(X)
    if names is None or known is None or names == list(known):
        return
    refuse_names([name for name in known if name not in names], [name for name in names if name not in known])
    raise InputError(f"{NAMES_DIFFER}Feature names must be in the same order as they were in fit.\n")


def refuse_names(missing: list[str], extra: list[str]) -> None:
    """Raise, in the words of scikit-learn, where names of columns are missing or unknown.

    Args:
        missing: names at fit time that the table lacks.
        extra: names of the table that were not there at fit time.

    Raises:
        InputError: there are any.
    """
    if missing or extra:
        seen = f"Feature names seen at fit time, yet now missing:\n- {shorten(missing)}\n" if missing else ""
        unseen = f"Feature names unseen at fit time:\n- {shorten(extra)}\n" if extra else ""
        raise InputError(f"{NAMES_DIFFER}{unseen}{seen}")


def check_rows(rows: Any, n_rows: int, what: str) -> Index:
    """Row numbers, or a mask with one entry per row, as row numbers.

    >>> check_rows([True, False, True], 3, "split 0")
    array([0, 2])
    """
    try:
        array = np.asarray(rows)
    except ValueError:  # lists of different lengths
        array = np.zeros(0)
    if array.dtype == bool:
        if array.shape != (n_rows,):
            raise InputError(f"{what} is a mask of shape {array.shape}; it must have one entry per row ({n_rows}).")
        array = np.flatnonzero(array)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{what} must be a one-dimensional array of row numbers, or a mask.")
    if len(array) and (array.min() < 0 or array.max() >= n_rows):
        raise InputError(f"{what} names row {array.min() if array.min() < 0 else array.max()}; X has {n_rows} rows.")
    return array.astype(np.intp)


def check_sample_weight(weights: Any, n_rows: int) -> Array | None:
    """Non-negative row weights (N,), scaled to mean one; None stays None."""
    if weights is None:
        return None
    array = as_float(weights, "sample_weight")
    if array.ndim != 1:
        raise InputError(f"sample_weight must be 1D (one number per row); got shape {array.shape}.")
    if array.shape != (n_rows,):
        raise InputError(f"sample_weight must hold one number per row: shape ({n_rows},), got {array.shape}.")
    bad = ~(np.isfinite(array) & (array >= 0))
    refuse_first(bad, array, "sample_weight {place} is {value:g}; weights must be finite and >= 0.")
    if array.sum() == 0:
        raise InputError("sample_weight is zero for every row; at least one row must count.")
    return array / array.mean()


def check_confidence(level: Any, name: str = "confidence_level") -> float:
    """A number strictly between 0 and 1."""
    if not isinstance(level, numbers.Real) or not 0.0 < float(level) < 1.0:
        raise InputError(f"{name} must lie strictly between 0 and 1; got {level!r}.")
    return float(level)


def check_count(name: str, value: Any, *, low: int = 1) -> int:
    """A whole number at or above its lower limit."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise InputError(f"{name} must be a whole number >= {low}; got {value!r}.")
    return int(value)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise unless a value is one of a few.

    >>> check_choice("kind", "lines", ("bars", "dots"))
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: kind='lines': use "bars" or "dots".
    """
    if value not in choices:
        *words, last = (f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices)
        raise InputError(f"{name}={value!r}: use {', '.join(words)} or {last}.")


def check_number(name: str, value: Any, *, strict: bool = False) -> float:
    """A finite real number of at least (or, when strict, above) zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
        raise InputError(f"{name} must be a finite number; got {value!r}.")
    if float(value) < 0.0 or (strict and float(value) == 0.0):
        raise InputError(f"{name} must be {'>' if strict else '>='} 0; got {value!r}.")
    return float(value)


#: Rows may miss a sum of one by this much; inside it they are re-closed.
CLOSURE_TOLERANCE = 1e-3
#: Shares that were rounded may miss it by this much; they are re-closed, with a note.
ROUNDING_TOLERANCE = 0.02
#: Units in which shares may come, if the rows sum to that many; they are divided, with a note.
UNITS = {100.0: "percentages", 1000.0: "shares per mille", 1e6: "parts per million"}
#: What is left of a row by subtraction is rounding below this, and then nothing is left.
REST_ROUNDING = 1e-9
#: A float64 is exact for whole numbers up to 9e15; totals must stay below it, too.
LARGEST_COUNT = 1e15
#: Votes per item up to which shares are looked at as votes, and how far from a whole number of them they may be.
MOST_SUGGESTED, SHARE_ROUNDING = 60, 1e-6


def text_names(table: Any) -> list[str] | None:
    """Names of the columns of a frame, or of the entries of one row (a pandas Series), where all of them are text.

    >>> text_names(np.eye(2)) is None
    True
    """
    columns = getattr(table, "column_names", getattr(table, "columns", None))
    if columns is None and getattr(table, "ndim", 0) == 1:
        columns = getattr(table, "index", None)
    if columns is None or callable(columns):
        return None
    names = list(columns)
    return [str(name) for name in names] if names and all(isinstance(name, str) for name in names) else None


def known_labels(model: Any) -> Any:
    """Names of a fitted model's labels; None if its labels had none, or there is no model."""
    return getattr(model, "label_names_", None) if getattr(model, "_labels_were_named", True) else None


def align_labels(frame: Any, names: Sequence[Any] | None, what: str = "D") -> Any:
    """Values of labels in a known order: by the names of their columns, where they have names.

    Args:
        frame: One column per label: a frame of pandas, polars or Arrow; or a pandas Series, one row. Arrays, tensors
            and frames whose columns are not all named by text go by position.
        names: Known labels in their order; None if they have no names, and then everything goes by position.
        what: Name of the frame in messages.

    Returns:
        Columns (or entries) in the order of ``names`` as float64 where something was aligned; else ``frame`` itself.

    Raises:
        InputError: A label is unknown, missing or there twice.

    >>> import pandas as pd
    >>> align_labels(pd.DataFrame([[0.8, 0.2]], columns=["b", "a"]), ["a", "b"])
    array([[0.2, 0.8]])
    """
    given, known = text_names(frame), None if names is None else [str(name) for name in names]
    if given is None or known is None:
        return frame
    if set(given) != set(known) and set(plain_names(given)) == set(plain_names(known)):
        given, known = plain_names(given), plain_names(known)  # "Sand (%)" is "Sand"
    faults = {
        "unknown": [name for name in given if name not in known],
        "missing": [name for name in known if name not in given],
        "there twice": sorted({name for name in given if given.count(name) > 1}),
    }
    said = "; ".join(f"{fault}: {shorten(labels)}" for fault, labels in faults.items() if labels)
    if said:
        raise InputError(f"{what} does not have the labels {shorten(known)} ({said}). Rename or select its columns.")
    return as_float(frame, what)[..., [given.index(name) for name in known]]


def check_same_index(first: Any, second: Any, what: tuple[str, str] = ("X", "D")) -> None:
    """Raise if two frames, or a frame and a Series, hold the same row labels in another order.

    Rows go by position, as in scikit-learn; an index that was shuffled in one of two tables alone is a mistake.

    Args:
        first: Rows of any kind; only what has a pandas index is compared.
        second: Likewise.
        what: Names of the two in messages.

    Raises:
        InputError: Their indexes hold the same labels in another order.
    """
    one: Any = getattr(first, "index", None)
    two: Any = getattr(second, "index", None)
    are_indexes = hasattr(one, "equals") and hasattr(two, "equals")
    if are_indexes and not one.equals(two) and Counter(one) == Counter(two):
        row = next(row for row, (a, b) in enumerate(zip(one, two)) if a != b)
        raise InputError(
            f"{what[0]} and {what[1]} hold the same rows in another order: row {row} is {one[row]} in {what[0]} and "
            f"{two[row]} in {what[1]}. Sort one of them, {what[1]} = {what[1]}.loc[{what[0]}.index], or drop the "
            "index with reset_index(drop=True) if rows go by position."
        )


def _check_labels(
    values: Any, what: str, n_rows: int | None, n_labels: int | None, missing: bool, model: Any
) -> tuple[Array, list[str] | None, Mask]:
    """Numbers >= 0 (N, L), zeros where one is missing; their names; and which are missing."""
    try:
        shape = np.shape(values)
    except ValueError:  # rows of different lengths have their own message
        shape = (0, 0)
    if len(shape) == 1 or shape[1:] == (1,):
        raise InputError(
            f"{what} must be two-dimensional with at least 2 label columns; got shape {shape}. From one class per row: "
            "D = (y[:, None] == np.unique(y)).astype(float). From the share of one of two labels: "
            "D = np.column_stack([1 - y, y])."
        )
    known = known_labels(model)
    aligned = align_labels(values, known, what)
    table, names = check_table(aligned, what, "labels")
    names = column_names(values) if aligned is values else [str(name) for name in known]
    gaps = np.isnan(table) & missing
    table[gaps] = 0.0
    if n_labels is not None and table.shape[1] != n_labels:
        raise InputError(f"{what} has {table.shape[1]} labels, but the model was fitted with {n_labels}.")
    if n_rows is not None and table.shape[0] != n_rows:
        raise InputError(f"X and {what} must have the same number of rows; got {n_rows} and {table.shape[0]}.")
    for kind, bad in (("NaN", np.isnan(table)), ("inf", np.isinf(table))):
        refuse_first(bad, table, f"{what} contains {kind} at {{place}}; every share must be a finite number.", names)
    refuse_first(table < 0, table, f"{what} is negative ({{value:g}}) at {{place}}; shares must be >= 0.", names)
    return table, names, gaps


def check_distributions(
    D: Any,
    *,
    n_rows: int | None = None,
    n_labels: int | None = None,
    what: str = "D",
    missing: bool = False,
    model: Any = None,
) -> tuple[Array, list[str] | None]:
    """Label distributions as a closed float64 array (N, L), and their column names if they had any.

    With ``missing``, NaN stands for a share that is not known. One unknown share of a row follows from the others and
    is filled in; two or more stay NaN, and the row's other shares may not sum to more than one. Named columns must be a
    ``model``'s labels and come in its order.

    >>> check_distributions([[0.2, 0.3, 0.5]])[0]
    array([[0.2, 0.3, 0.5]])
    >>> check_distributions([[0.25, np.nan, 0.5], [0.25, np.nan, np.nan]], missing=True)[0]
    array([[0.25, 0.25, 0.5 ],
           [0.25,  nan,  nan]])

    Percentages and shares per mille are divided, and rounded shares re-closed, with a
    :class:`~snefy_ldl.errors.LabelWarning`.

    >>> check_distributions([[0.2, 0.3, 0.9]])
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: D row 0 sums to 1.4; a label distribution must sum to 1 (tolerance 0.02). \
Divide each row by its sum, or pass vote counts with fit(X, counts=...).
    """
    table, names, gaps = _check_labels(D, what, n_rows, n_labels, missing, model)
    table = _in_shares(table, np.asarray(~gaps.any(axis=1)), what)
    with np.errstate(over="ignore"):  # the check of the sums reports huge numbers
        sums = table.sum(axis=1)
    if gaps.any():
        return _fill_gaps(table, gaps, sums, what, names), names
    rule = f"a label distribution must sum to 1 (tolerance {ROUNDING_TOLERANCE:g}). Divide each row by its sum, or pass"
    rule = f"{what} {{place}} sums to {{value:.6g}}; {rule} vote counts with fit(X, counts=...)."
    refuse_first(~(np.abs(sums - 1.0) <= ROUNDING_TOLERANCE), sums, rule, names)
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
    """The table divided by its unit, if the sums of all complete rows match one."""
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
    warnings.warn(words, LabelWarning, stacklevel=5)


def common_denominator(D: Array, most: int = MOST_SUGGESTED) -> int | None:
    """Smallest m so that every share is a multiple of 1/m, as the shares of m votes are; None if there is none.

    Args:
        D: label distributions (N, L); NaN where unknown.
        most: the largest m to try.

    Returns:
        m, or None.

    >>> common_denominator(np.array([[0.2, 0.8], [1 / 3, 2 / 3]]))
    15
    """
    for m in range(1, most + 1):
        parts = (part * m for part in (D[:64], D))  # few rows decide for most m
        if all((np.abs(votes - np.round(votes)) <= SHARE_ROUNDING * m).all() for votes in parts):
            return m
    return None


def _fill_gaps(table: Array, gaps: Mask, sums: Array, what: str, names: list[str] | None) -> Array:
    """Rows whose gaps hold zeros: one gap is filled, more become NaN."""
    n_gaps = gaps.sum(axis=1)
    rule = f"{what} {{place}} holds no share at all (NaN in every column); drop such rows."
    refuse_first(n_gaps == table.shape[1], sums, rule, names)
    wrong = ~(np.where(n_gaps > 0, sums - 1.0, np.abs(sums - 1.0)) <= ROUNDING_TOLERANCE)
    for kind, rule in (
        (n_gaps > 0, "known shares may sum to at most 1"),
        (n_gaps == 0, "a label distribution must sum to 1"),
    ):
        rule = f"{what} {{place}} sums to {{value:.6g}}; {rule} (tolerance {ROUNDING_TOLERANCE:g})."
        refuse_first(wrong & kind, sums, rule, names)
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
    return np.where(gaps, weight * (rest / np.maximum(weight.sum(1), 1e-300))[:, None], D)


def check_counts(
    counts: Any, *, n_rows: int | None = None, n_labels: int | None = None, missing: bool = False, model: Any = None
) -> tuple[Array, list[str] | None]:
    """Vote counts as a float64 array (N, L) of whole numbers; zeros are fine, an all-zero row is not.

    With ``missing``, NaN stands for a label that was not counted in that row; two labels must have been. Named
    columns must be a ``model``'s labels and come in its order.
    """
    table, names, gaps = _check_labels(counts, "counts", n_rows, n_labels, missing, model)
    rows = table.sum(axis=1)
    few, rule = (~gaps).sum(axis=1) < 2, "has fewer than 2 labels that were counted; such a row carries no information."
    refuse_first(few, rows, f"counts {{place}} {rule}", names)
    held = "counts holds {value:g} at {place}; "
    rule = "votes must be whole numbers. Shares go in as fit(X, D)."
    refuse_first(table != np.round(table), table, held + rule, names)
    refuse_first(table > LARGEST_COUNT, table, f"{held}at most {LARGEST_COUNT:g} votes.", names)
    refuse_first(rows == 0, rows, "counts {place} holds no vote at all; drop such rows.", names)
    return np.where(gaps, np.nan, table) if gaps.any() else table, names
