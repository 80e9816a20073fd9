"""Rows of a request as features, checked cell by cell before they are joined with rows of other requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.errors import InputError
from snefy_ldl.serve.limits import Fault
from snefy_ldl.serve.store import ServedModel


def feature_rows(served: ServedModel, rows: Sequence[Any]) -> Any:
    """Features of rows that are given as objects by name, or as lists in the model's order.

    Args:
        served: the model.
        rows: each a dict with at least the model's columns, or a list of them.

    Returns:
        Finite numbers (N, d), encoded by the model's columns; for a custom network, numbers of any shape, or the list
        itself if the network has a ``collate``.

    Raises:
        Fault: 422, a cell is missing or does not fit its column; row and field are named.

    Example:
        >>> from types import SimpleNamespace
        >>> served = SimpleNamespace(features=["a", "b"], model=SimpleNamespace(columns_=None), is_own=False)
        >>> feature_rows(served, [{"b": 2, "a": 1, "other": "x"}, [3, 4.5]])
        array([[1. , 2. ],
               [3. , 4.5]])
    """
    if served.is_own:
        return _own_rows(served, rows)
    columns = served.model.columns_
    cells = _cells(served, rows)
    if columns is None or (columns.is_plain and not columns.has_gaps):
        return _numbers(cells, served.features)
    return _encoded(cells, served.features, columns)


def _own_rows(served: ServedModel, rows: Sequence[Any]) -> Any:
    """Rows for a custom network: an array of numbers, or the rows as they are if the network has a ``collate``."""
    if not served.takes_numbers:
        return list(rows)
    try:
        table = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Fault(422, "rows for this custom network must be lists of numbers, all of the same shape.") from None
    if not np.isfinite(table).all():
        raise Fault(422, "rows hold numbers that are not finite.")
    return table


def _cells(served: ServedModel, rows: Sequence[Any]) -> list[Sequence[Any]]:
    names = served.features
    n_features = len(names) if names is not None else int(served.model.n_features_in_)
    cells: list[Sequence[Any]] = []
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            if names is None:
                raise Fault(422, f"row {number}: this model has no feature names; send {n_features} numbers per row.")
            try:
                cells.append([row[name] for name in names])
            except KeyError as missing:
                name = missing.args[0]
                raise Fault(422, f"row {number} lacks the field {name!r}.", number, name) from None
        elif isinstance(row, (list, tuple)):
            if len(row) != n_features:
                raise Fault(422, f"row {number} has {len(row)} cells; the model takes {n_features}.", number)
            cells.append(row)
        else:
            raise Fault(422, f"row {number} must be an object with the fields, or a list of cells.", number)
    return cells


def _numbers(cells: list[Sequence[Any]], names: list[str] | None) -> Array:
    wrong = {kind for line in cells for kind in map(type, line)} - {int, float}
    if wrong:
        _name_cell(cells, names, lambda cell: type(cell) not in (int, float), "is not a number")
    try:
        table = np.array(cells, dtype=np.float64).reshape(len(cells), -1)
    except OverflowError:
        _name_cell(cells, names, lambda cell: abs(cell) > LARGEST_FEATURE, f"is beyond ±{LARGEST_FEATURE:g}")
        raise
    if not bool((np.abs(table) <= LARGEST_FEATURE).all()):  # also true for NaN
        _name_cell(cells, names, lambda cell: not abs(cell) <= LARGEST_FEATURE, f"is not within ±{LARGEST_FEATURE:g}")
    return table


def _name_cell(cells: list[Sequence[Any]], names: list[str] | None, is_wrong: Any, rule: str) -> None:
    for number, line in enumerate(cells):
        for place, cell in enumerate(line):
            if is_wrong(cell):
                field = str(place) if names is None else names[place]
                raise Fault(422, f"row {number}, field {field!r} {rule}.", number, field)


def _encoded(cells: list[Sequence[Any]], names: list[str] | None, columns: Any) -> Array:
    """Cells of any kind as features; a cell that cannot be read is named."""
    _name_cell(cells, names, lambda cell: not isinstance(cell, (int, float, str, type(None))), "is no number or text")
    if not isinstance(columns, TableEncoder):  # an array with gaps
        _name_cell(cells, names, lambda cell: type(cell) not in (int, float, type(None)), "is not a number")
        filled: Array = _in_words(columns.transform, np.array(cells, dtype=np.float64))
        return filled
    import pandas as pd  # an extra: only tables with other cells than numbers need it

    assert names is not None
    kinds, parts = {column.name: column for column in columns.columns}, []
    for place, name in enumerate(names):
        series = pd.Series([line[place] for line in cells], dtype=object)
        part, odd = _in_words(kinds[name].encode, series)
        if any(one.what == "unreadable" for one in odd):
            for number in range(len(cells)):
                _, alone = kinds[name].encode(series[number : number + 1])
                if any(one.what == "unreadable" for one in alone):
                    raise Fault(422, f"row {number}, field {name!r} is not a {kinds[name].kind}.", number, name)
        parts.append(part)
    return np.hstack(parts)


def _in_words(read: Any, cells: Any) -> Any:
    """Apply a reader to cells; its errors become faults of the request."""
    try:
        return read(cells)
    except InputError as error:
        raise Fault(422, " ".join(str(error).split())) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise Fault(422, f"a cell cannot be read ({type(error).__name__}).") from None


def joined_rows(parts: Sequence[Any]) -> Any:
    """Rows of several requests as one table.

    Args:
        parts: features (n_k, d) of each, or lists.

    Returns:
        (Σ n_k, d), or one list.

    Example:
        >>> joined_rows([np.zeros((1, 2)), np.ones((2, 2))]).shape
        (3, 2)
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return np.concatenate(list(parts))
