"""The border guard: arrays, label distributions, counts and the zero policy.

Everything a user hands in passes here once, before any work starts. Each rule raises one
:class:`~snefy_ldl.errors.InputError` that names the row, the column and the rule.
"""

from __future__ import annotations

import numbers
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from snefy_ldl.errors import InputError, ZeroLabelWarning

Array = NDArray[np.float64]
ZeroOption = float | Literal["shrink", "error"]

#: Rows may miss a sum of one by this much; inside it they are re-closed.
CLOSURE_TOLERANCE = 1e-3
#: A share this small is rounding dust, and is treated as an exact zero.
ZERO_SHARE = 1e-9


def column_names(table: Any) -> list[str] | None:
    """Column names of a DataFrame as strings, None for anything else."""
    columns = getattr(table, "columns", None)
    return None if columns is None else [str(c) for c in columns]


def _cell(row: int, column: int, names: list[str] | None) -> str:
    return f"row {row}, column {column}" + (f" ({names[column]!r})" if names else "")


def _as_float(values: Any, what: str) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if sp.issparse(values):
        values = values.toarray()
    array = np.asarray(values)
    if np.iscomplexobj(array):
        raise InputError(f"{what} holds complex numbers. Complex data not supported.")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be numeric; could not turn it into numbers: {error}") from None


def _first(mask: NDArray[np.bool_]) -> tuple[int, int]:
    row, column = np.argwhere(mask)[0]
    return int(row), int(column)


def _check_table(values: Any, what: str, columns_are: str) -> tuple[Array, list[str] | None]:
    names = column_names(values)
    table = _as_float(values, what)
    if table.ndim != 2:
        raise InputError(
            f"{what} must be two-dimensional (rows, {columns_are}); got shape {table.shape}. Reshape your data: "
            f"{what}.reshape(-1, 1) for one column, {what}.reshape(1, -1) for one row."
        )
    if table.shape[0] == 0:
        raise InputError(f"{what} is empty: 0 rows (0 sample(s)); a minimum of 1 is required.")
    return table, names


def _first_bad(table: NDArray[Any]) -> tuple[int, int] | None:
    """First cell that is not finite, looked for a block of rows at a time so that a large table is not copied."""
    step = max(1, (1 << 22) // max(1, table.shape[1]))
    for start in range(0, len(table), step):
        finite = np.isfinite(table[start : start + step])
        if not finite.all():
            row, column = _first(~finite)
            return start + row, column
    return None


def check_features(X: Any, *, n_features: int | None = None) -> Any:
    """Features as a finite float array (N, d), or CSR when sparse; raises InputError naming the bad cell.

    float32 and float64 arrays come back as they are, without a copy.
    """
    names = column_names(X)
    if sp.issparse(X):
        table = sp.csr_matrix(X)
        if table.dtype not in (np.float32, np.float64):
            table = table.astype(np.float64)
    elif isinstance(X, np.ndarray) and X.dtype in (np.float32, np.float64) and X.ndim == 2:
        table = X
    else:
        table, names = _check_table(X, "X", "features")
    if table.shape[0] == 0:
        raise InputError("X is empty: 0 rows (0 sample(s)); a minimum of 1 is required.")
    if table.shape[1] == 0:
        raise InputError(f"X has no columns: 0 feature(s) (shape={table.shape}) while a minimum of 1 is required.")
    bad = None
    if sp.issparse(table):
        at = np.flatnonzero(~np.isfinite(table.data))
        if len(at):
            row = int(np.searchsorted(table.indptr, at[0], side="right") - 1)
            bad = row, int(table.indices[at[0]])
    else:
        bad = _first_bad(table)
    if bad is not None:
        kind = "NaN" if np.isnan(table[bad]) else "inf"
        raise InputError(f"X contains {kind} at {_cell(*bad, names)}; features must be finite. Impute it first.")
    if n_features is not None and table.shape[1] != n_features:
        raise InputError(f"X has {table.shape[1]} features, but model is expecting {n_features} features as input.")
    return table


def _check_labels(values: Any, what: str, n_rows: int | None, n_labels: int | None) -> tuple[Array, list[str] | None]:
    table, names = _check_table(values, what, "labels")
    if table.shape[1] < 2:
        raise InputError(f"{what} has {table.shape[1]} label column; a label distribution needs at least 2.")
    if n_labels is not None and table.shape[1] != n_labels:
        raise InputError(f"{what} has {table.shape[1]} labels, but the model was fitted with {n_labels}.")
    if n_rows is not None and table.shape[0] != n_rows:
        raise InputError(f"X and {what} must have the same number of rows; got {n_rows} and {table.shape[0]}.")
    if not np.isfinite(table).all():
        row, column = _first(~np.isfinite(table))
        kind = "NaN" if np.isnan(table[row, column]) else "inf"
        raise InputError(f"{what} contains {kind} at {_cell(row, column, names)}; every share must be a finite number.")
    if (table < 0).any():
        row, column = _first(table < 0)
        raise InputError(
            f"{what} is negative ({table[row, column]:g}) at {_cell(row, column, names)}; shares must be >= 0."
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
    >>> check_distributions([[0.2, 0.3, 0.9]])
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: D row 0 sums to 1.4; a label distribution must sum to 1 (tolerance 0.001). \
Divide each row by its sum, or pass vote counts with fit(X, counts=...).
    """
    gaps = np.zeros((0, 0), dtype=bool)
    if missing:
        names, given = _check_table(D, what, "labels")[1], _as_float(D, what)
        gaps = np.isnan(given)
        table, _ = _check_labels(np.where(gaps, 0.0, given), what, n_rows, n_labels)
    else:
        table, names = _check_labels(D, what, n_rows, n_labels)
    sums = table.sum(axis=1)
    if gaps.any():
        return _fill_gaps(table, gaps, sums, what), names
    wrong = np.abs(sums - 1.0) > CLOSURE_TOLERANCE
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{what} row {row} sums to {sums[row]:.6g}; a label distribution must sum to 1 (tolerance "
            f"{CLOSURE_TOLERANCE:g}). Divide each row by its sum, or pass vote counts with fit(X, counts=...)."
        )
    return table / sums[:, None], names


def _fill_gaps(table: Array, gaps: NDArray[np.bool_], sums: Array, what: str) -> Array:
    """Rows whose gaps hold zeros: one gap is filled, more become NaN."""
    n_gaps = gaps.sum(axis=1)
    if (n_gaps == table.shape[1]).any():
        row = int(np.flatnonzero(n_gaps == table.shape[1])[0])
        raise InputError(f"{what} row {row} holds no share at all (NaN in every column); drop such rows.")
    wrong = np.where(n_gaps > 0, sums - 1.0, np.abs(sums - 1.0)) > CLOSURE_TOLERANCE
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        rule = "known shares may sum to at most 1" if n_gaps[row] else "a label distribution must sum to 1"
        raise InputError(f"{what} row {row} sums to {sums[row]:.6g}; {rule} (tolerance {CLOSURE_TOLERANCE:g}).")
    closed = table / np.where((n_gaps == 0) | (sums > 1.0), sums, 1.0)[:, None]
    rest = np.maximum(1.0 - closed.sum(axis=1), 0.0)
    return np.where(gaps, np.where(n_gaps == 1, rest, np.nan)[:, None], closed)


def check_rows(rows: Any, n_rows: int, what: str) -> NDArray[np.intp]:
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
    weight = gaps * (np.ones(D.shape[1]) if shares is None else np.maximum(shares, 1e-6))
    rest = np.maximum(1.0 - np.nansum(D, 1), 0.0)
    spread: Array = np.where(gaps, weight * (rest / np.maximum(weight.sum(1), 1e-300))[:, None], D)
    return spread


def check_counts(
    counts: Any, *, n_rows: int | None = None, n_labels: int | None = None, missing: bool = False
) -> tuple[Array, list[str] | None]:
    """Vote counts as a float64 array (N, L) of whole numbers; zeros are fine, an all-zero row is not.

    With ``missing``, NaN stands for a label that was not counted in that row; two labels must have been.
    """
    gaps = np.isnan(_as_float(counts, "counts")) if missing else np.zeros(0, dtype=bool)
    if gaps.any():
        names = column_names(counts)
        table, _ = _check_labels(np.where(gaps, 0.0, _as_float(counts, "counts")), "counts", n_rows, n_labels)
        few = (~gaps).sum(axis=1) < 2
        if few.any():
            row = int(np.flatnonzero(few)[0])
            raise InputError(f"counts row {row} has fewer than 2 labels that were counted; such a row tells nothing.")
    else:
        table, names = _check_labels(counts, "counts", n_rows, n_labels)
    whole = table == np.round(table)
    if not whole.all():
        row, column = _first(~whole)
        raise InputError(
            f"counts holds {table[row, column]:g} at {_cell(row, column, names)}; votes must be whole numbers. "
            "Shares go in as fit(X, D)."
        )
    empty = table.sum(axis=1) == 0
    if empty.any():
        raise InputError(f"counts row {int(np.flatnonzero(empty)[0])} holds no vote at all; drop such rows.")
    return np.where(gaps, np.nan, table) if gaps.any() else table, names


def check_sample_weight(weights: Any, n_rows: int) -> Array | None:
    """Non-negative row weights (N,), scaled to mean one; None stays None."""
    if weights is None:
        return None
    array = _as_float(weights, "sample_weight")
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


@dataclass(frozen=True)
class ZeroPolicy:
    """What happens to shares of zero, whose logarithm the density needs.

    A row whose smallest share lies below the floor ``f`` is shrunk toward the uniform just enough to lift it there,
    ``ℓ' = (1-λ) ℓ + λ/L`` with ``λ = (f - min ℓ) / (1/L - min ℓ)``. Other rows stay as they are.

    Args:
        mode: ``"shrink"``, ``"error"`` or ``"floor"``.
        floor: ``f``; with ``"shrink"`` only rows that hold an exact zero are lifted.
    """

    mode: str
    floor: float

    @classmethod
    def from_data(cls, D: Array, zeros: ZeroOption) -> ZeroPolicy:
        """Settle the floor from the training labels: min(half the smallest positive share, 1/(20 L))."""
        n_labels = D.shape[1]
        if isinstance(zeros, numbers.Real) and not isinstance(zeros, bool):
            if not 0.0 < float(zeros) < 1.0 / n_labels:
                raise InputError(f"zeros={zeros!r}: a floor must lie strictly between 0 and 1/L = {1 / n_labels:.4g}.")
            return cls("floor", float(zeros))
        if zeros not in ("shrink", "error"):
            raise InputError(f'zeros={zeros!r}: use "shrink", "error" or a number for the floor.')
        positive = D[D > ZERO_SHARE]
        return cls(str(zeros), float(min(positive.min() / 2.0, 1.0 / (20.0 * n_labels))))

    def apply(self, D: Array, *, warn: bool = False, names: list[str] | None = None) -> Array:
        """Label distributions that are strictly positive; where shares are unknown (NaN), so is what is left for them.

        Rows with unknown shares are treated as if these were all alike, and stay unknown.
        """
        gaps = np.isnan(D)
        if gaps.any():
            return np.where(gaps, np.nan, self._lift(spread_rest(D), warn, names))
        return self._lift(D, warn, names)

    def _lift(self, D: Array, warn: bool, names: list[str] | None) -> Array:
        smallest = D.min(axis=1)
        threshold = self.floor if self.mode == "floor" else ZERO_SHARE
        low = smallest < threshold
        if not low.any():
            return D
        if self.mode == "error":
            row, column = _first(threshold > D)
            raise InputError(
                f"D is zero at {_cell(row, column, names)}, and zeros='error' was asked for. "
                'Use zeros="shrink", a floor, or fit(X, counts=...), whose likelihood is exact with zeros.'
            )
        if warn:
            warnings.warn(
                f"{int(low.sum())} of {len(D)} label distributions hold a share below {threshold:g}; those rows were "
                f"shrunk toward the uniform so that their smallest share is {self.floor:.3g} (zeros={self.mode!r}).",
                ZeroLabelWarning,
                stacklevel=5,
            )
        out = D.copy()
        amount = (self.floor - smallest[low]) / (1.0 / D.shape[1] - smallest[low])
        out[low] = (1.0 - amount[:, None]) * D[low] + amount[:, None] / D.shape[1]
        return out
