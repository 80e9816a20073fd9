"""What every check is made of: tables of numbers, names of columns, and the cell a message points at."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from snefy_ldl._internal.limits import SINGLE_NUMBERS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.errors import InputError


def column_names(table: Any) -> list[str] | None:
    """Column names of a table as strings, None for anything else."""
    columns = getattr(table, "column_names", None)  # Arrow's; its columns are the cells themselves
    columns = getattr(table, "columns", None) if columns is None else columns
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
    if hasattr(values, "detach"):  # a tensor, told by what it can do: checks start without torch
        values = values.detach().cpu()
        values = values.to_dense() if values.is_sparse else values
        values = values.resolve_conj().resolve_neg() if values.is_complex() else values.double()
        values = values.numpy()
    if sp.issparse(values):
        values = values.toarray()
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.asarray(values)
        if np.iscomplexobj(array):
            raise InputError(f"{what} holds complex numbers. Complex data not supported.")
        if array.dtype.kind in "mMV":
            raise InputError(f"{what} must be numeric; got {array.dtype}.")
        table: Array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what} must be numeric; could not turn it into numbers: {error}") from None
    if hidden is not None:
        table[hidden] = np.nan
    return table


def first_cell(mask: Mask) -> tuple[int, int]:
    """Row and column of the first cell that a mask marks."""
    row, column = np.argwhere(mask)[0]
    return int(row), int(column)


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


def _first_bad(table: NDArray[Any], largest: float, missing: bool) -> tuple[int, int] | None:
    """First cell that is not finite or too large, looked for a block of rows at a time: a large table is not copied."""
    step = max(1, (1 << 22) // max(1, table.shape[1]))
    for start in range(0, len(table), step):
        part = np.abs(table[start : start + step])
        usable = part <= np.float64(largest)  # not so for NaN
        if not usable.all():
            usable |= np.isnan(part) if missing else False
        if not usable.all():
            row, column = first_cell(~usable)
            return start + row, column
    return None


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
    bad = None
    if sp.issparse(table):
        at = np.flatnonzero(~(np.abs(table.data) <= np.float64(largest)))
        if len(at):
            row = int(np.searchsorted(table.indptr, at[0], side="right") - 1)
            bad = row, int(table.indices[at[0]])
    else:
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
        known: names of the columns at fit time, or None where they had none.

    Raises:
        InputError: where names are unseen, missing or in another order.
    """
    names = column_names(X)
    if names is None or known is None or names == list(known):
        return
    missing, extra = [name for name in known if name not in names], [name for name in names if name not in known]
    raise InputError(
        "The feature names should match those that were passed during fit.\n"
        + (f"Feature names unseen at fit time:\n- {', '.join(extra)}\n" if extra else "")
        + (f"Feature names seen at fit time, yet now missing:\n- {', '.join(missing)}\n" if missing else "")
        + ("Feature names must be in the same order as they were in fit.\n" if not extra + missing else "")
    )


def check_rows(rows: Any, n_rows: int, what: str) -> Index:
    """Row numbers, or a mask with one entry a row, as row numbers.

    >>> check_rows([True, False, True], 3, "split 0")
    array([0, 2])
    """
    array = np.asarray(rows)
    if array.dtype == bool:
        if array.shape != (n_rows,):
            raise InputError(f"{what} is a mask of shape {array.shape}; it must have one entry a row ({n_rows}).")
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
        raise InputError(f"sample_weight must be 1D (one number a row); got shape {array.shape}.")
    if array.shape != (n_rows,):
        raise InputError(f"sample_weight must hold one number a row: shape ({n_rows},), got {array.shape}.")
    if not np.isfinite(array).all() or (array < 0).any():
        row = int(np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[0])
        raise InputError(f"sample_weight row {row} is {array[row]:g}; weights must be finite and >= 0.")
    if array.sum() == 0:
        raise InputError("sample_weight is zero for every row; at least one row must count.")
    scaled: Array = array / array.mean()
    return scaled


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


def check_number(name: str, value: Any, *, low: float = 0.0, strict: bool = False) -> float:
    """A finite real number at (or, when strict, above) its lower limit."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not np.isfinite(float(value)):
        raise InputError(f"{name} must be a finite number; got {value!r}.")
    if float(value) < low or (strict and float(value) == low):
        raise InputError(f"{name} must be {'>' if strict else '>='} {low:g}; got {value!r}.")
    return float(value)
