"""One column of a table: what it holds, at which values to look, and the table with other values in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from snefy_ldl._internal.rows import take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import as_float, check_count
from snefy_ldl.datasets.cells import as_pandas, cell_numbers, is_frame
from snefy_ldl.datasets.grouping import in_groups, read_groups, split_rows
from snefy_ldl.datasets.recognise import recognise
from snefy_ldl.errors import InputError

#: Levels of a text column at most, the most frequent ones, unless a grid names more.
MOST_LEVELS = 30
#: A numeric column with no more distinct values than this is looked at exactly there.
FEW_VALUES = 8
#: Between these quantiles of the rows a numeric grid runs: beyond them the model has seen little.
GRID_ENDS = (0.05, 0.95)


def column_names(X: Any) -> list[str]:
    """Names of the columns of a table.

    Args:
        X: a DataFrame, or an array (N, d).

    Returns:
        The names (d); "x1", "x2", ... for an array.

    Raises:
        InputError: X is no table.

    Example:
        >>> column_names(np.zeros((3, 2)))
        ['x1', 'x2']
    """
    if hasattr(X, "columns"):
        return [str(name) for name in X.columns]
    if len(getattr(X, "shape", np.shape(X) if not sp.issparse(X) else ())) != 2:
        raise InputError("columns need a table: an array (N, d) or a DataFrame.")
    return [f"x{i + 1}" for i in range(X.shape[1])]


@dataclass(frozen=True, eq=False)
class Feature:
    """A column.

    Args:
        name: of the column.
        number: its place, counted from 0.
        kind: "number", "category" or "date".
        cells: what the rows hold (N,): float64 with NaN for gaps, or a pandas Series.

    Example:
        >>> Table(np.array([[1.0, 5.0], [2.0, 6.0]])).feature(1).grid(5)
        [5.0, 6.0]
    """

    name: str
    number: int
    kind: str
    cells: Any

    def grid(self, wanted: Any) -> list[Any]:
        """Values to look at.

        Args:
            wanted: how many values a numeric column gets, evenly from the 5 % to the 95 % quantile of the rows (all of
                them if there are few); or the values themselves. A text column's grid are its levels, the most
                frequent first.

        Returns:
            The values.

        Raises:
            InputError: the column is empty, or the grid does not fit it.
        """
        if not isinstance(wanted, (int, np.integer)):
            number = self.kind == "number"
            values = as_float(wanted, "grid").ravel().tolist() if number else np.atleast_1d(wanted).tolist()
            if not values or (number and not np.isfinite(values).all()):
                raise InputError(f"the grid of {self.name!r} must hold at least one value, and finite ones.")
            if self.kind == "category" and (odd := [v for v in values if v not in self.levels()]):
                known = ", ".join(str(level) for level in self.levels()[:10])
                raise InputError(f"column {self.name!r} has no level {odd[0]!r}; it has {known}.")
            return values
        n = check_count("grid", int(wanted), low=2)
        if self.kind == "category":
            return self.levels()[:MOST_LEVELS]
        if self.kind == "date":
            known = self.cells.dropna().sort_values()
            places = np.unique(np.linspace(0, len(known) - 1, n).round().astype(int))
            return list(dict.fromkeys(known.iloc[places].tolist()))
        numbers = self.known()
        distinct = np.unique(numbers)
        if len(distinct) <= min(n, FEW_VALUES):
            return [float(value) for value in distinct]
        low, high = np.quantile(numbers, GRID_ENDS)
        if low == high:
            low, high = distinct[0], distinct[-1]
        return [float(value) for value in np.linspace(low, high, n)]

    def setting(self, setting: Any, default: Any = None) -> Any:
        """The setting of this column.

        Args:
            setting: the same value for all columns, or a dict from a column's name or number to its value.
            default: for a column that is not in the dict.

        Returns:
            The value.
        """
        if isinstance(setting, dict):
            return setting.get(self.name, setting.get(self.number, default))
        return setting

    def known(self) -> Array:
        """The numbers of a numeric column, without gaps.

        Returns:
            (n,).

        Raises:
            InputError: there are none.
        """
        numbers: Array = self.cells[np.isfinite(self.cells)]
        if len(numbers) == 0:
            raise InputError(f"column {self.name!r} holds no numbers.")
        return numbers

    def levels(self) -> list[Any]:
        """Levels of a text column.

        Returns:
            In the order of a pandas Categorical, False before True, else the most frequent first.

        Raises:
            InputError: the column is empty.
        """
        known = self.cells.dropna()
        if len(known) == 0:
            raise InputError(f"column {self.name!r} is empty.")
        present = known.unique()
        if hasattr(known.dtype, "categories"):
            return [level for level in known.dtype.categories if level in set(present)]
        if known.map(lambda cell: isinstance(cell, (bool, np.bool_))).all():
            return sorted(present.tolist())
        counts = known.value_counts()
        return sorted(counts.index.tolist(), key=lambda level: (-int(counts[level]), str(level)))


class Table:
    """Rows whose columns can be set to other values.

    Args:
        X: a DataFrame (N, d) of pandas or polars, or an array or sparse matrix (N, d); with the groups of its rows,
            ``in_groups(X, groups)``.
        model: the fitted model, with the kind of each column; None to go by the cells alone.
        rows: numbers of the rows to keep; None for all.

    Raises:
        InputError: X is no table, or has no rows.

    Example:
        >>> table = Table(np.zeros((3, 2)))
        >>> table.replaced({1: 7.0})[0].tolist()
        [0.0, 7.0]
    """

    def __init__(self, X: Any, model: Any = None, rows: Index | None = None) -> None:
        X, groups = split_rows(X)
        X = as_pandas(X) if is_frame(X) else X
        if not hasattr(X, "iloc") and not sp.issparse(X):
            X = np.asarray(X)
        names = column_names(X)
        if X.shape[0] == 0:
            raise InputError("X is empty: there are no rows to average over.")
        if groups is not None:
            read_groups(groups, X.shape[0])  # or an error that names the problem
        if rows is not None:
            X, groups = split_rows(take_rows(in_groups(X, groups), rows))
        self.groups = groups
        self.X = X.reset_index(drop=True) if hasattr(X, "iloc") else (X.toarray() if sp.issparse(X) else X)
        known = getattr(model, "feature_names_in_", None)
        if not hasattr(X, "iloc") and known is not None and len(known) == len(names):
            names = [str(name) for name in known]
        self.names = names
        # behind a pipeline's transformers the model's columns are not those of the table
        encoder = None if hasattr(model, "steps") else getattr(model, "columns_", None)
        self._kinds: dict[str, str] = {}
        if encoder is not None and encoder.named:
            self._kinds = {str(column.name): column.kind for column in encoder.columns}

    def __len__(self) -> int:
        return len(self.X)

    def feature(self, feature: Any) -> Feature:
        """A column.

        Args:
            feature: its name, or its number counted from 0.

        Returns:
            The column.

        Raises:
            InputError: there is none, or the model leaves it out.
        """
        if isinstance(feature, (int, np.integer)) and not isinstance(feature, bool):
            if not -len(self.names) <= feature < len(self.names):
                raise InputError(f"feature {feature}: the columns are numbered from 0 to {len(self.names) - 1}.")
            number = int(feature) % len(self.names)
        elif str(feature) in self.names:
            number = self.names.index(str(feature))
        else:
            shown = ", ".join(self.names[:12]) + (", ..." if len(self.names) > 12 else "")
            raise InputError(f"there is no column {feature!r}; the table has {shown}.")
        name = self.names[number]
        kind = self._kinds.get(name, "auto")
        if kind == "left out":
            raise InputError(f"the model does not use column {name!r}.")
        if not hasattr(self.X, "iloc"):
            return Feature(name, number, "number", as_float(self.X[:, number], f"column {name!r}"))
        cells = self.X.iloc[:, number]
        if kind == "auto":  # constant columns keep their kind: rows move along them, too
            kind = recognise(name, cells, "feature", keep_constant=True)[0].kind
        return Feature(name, number, kind, cell_numbers(cells)[0] if kind == "number" else cells)

    def part(self, rows: Index) -> Table:
        """Some of the rows.

        Args:
            rows: their numbers.

        Returns:
            A table of these rows.
        """
        other = Table(in_groups(self.X, self.groups), None, rows)
        other.names, other._kinds = self.names, self._kinds
        return other

    def used(self) -> list[str]:
        """The columns that the model uses.

        Returns:
            Their names.
        """
        return [name for name in self.names if self._kinds.get(name) != "left out"]

    def replaced(self, values: dict[int, Any]) -> Any:
        """The table with other values in some columns.

        Args:
            values: column number -> one value for all rows, or one per row (N,).

        Returns:
            Rows of the kind that the model takes, with their groups; this table stays as it is.
        """
        if not hasattr(self.X, "iloc"):
            changed = np.array(self.X, dtype=np.result_type(self.X.dtype, np.float64))
            for number, value in values.items():
                changed[:, number] = value
            return in_groups(changed, self.groups)
        frame = self.X.copy()
        for number, value in values.items():
            cells = self.X.iloc[:, number]
            one = np.ndim(value) == 0
            column = [value] * len(frame) if one else value
            keep = hasattr(cells.dtype, "categories") or (one and cells.dtype.kind not in "iuf")
            frame[frame.columns[number]] = type(cells)(column, index=frame.index, dtype=cells.dtype if keep else None)
        return in_groups(frame, self.groups)


def choose_rows(n_rows: int, most: int | None, random: np.random.Generator) -> Index:
    """Numbers of the rows to average over, in their order.

    Args:
        n_rows: how many there are.
        most: how many to take at most, drawn at random; None for all.
        random: where the draw comes from.

    Returns:
        The numbers (n,).

    Example:
        >>> len(choose_rows(100, 10, np.random.default_rng(0)))
        10
    """
    if most is None or n_rows <= check_count("max_rows", most):
        return np.arange(n_rows)
    return np.sort(random.choice(n_rows, most, replace=False))
