"""Rows of a request as the model takes them, checked cell by cell before they meet the rows of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._types import Array
from snefy_ldl.serve.faults import Fault
from snefy_ldl.serve.store import ServedModel
from snefy_ldl.validation import LARGEST_FEATURE

__all__ = ["feature_rows", "joined_rows"]


def feature_rows(served: ServedModel, rows: Sequence[Any]) -> Array:
    """Features (N, d) of rows that name their cells, or list them in the model's order.

    Args:
        served: the model.
        rows: each a dict with at least the model's features, or a list of them.

    Returns:
        Finite numbers.

    Raises:
        Fault: 422, a cell is missing or no usable number; row and field are named.

    Example:
        >>> from types import SimpleNamespace
        >>> feature_rows(SimpleNamespace(features=["a", "b"]), [{"b": 2, "a": 1, "other": "x"}, [3, 4.5]])
        array([[1. , 2. ],
               [3. , 4.5]])
    """
    names = served.features
    n_features = len(names) if names is not None else int(served.model.n_features_in_)
    cells: list[Sequence[Any]] = []
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            if names is None:
                raise Fault(422, f"row {number}: this model knows no feature names; send {n_features} numbers a row.")
            try:
                cells.append([row[name] for name in names])
            except KeyError as missing:
                raise Fault(
                    422, f"row {number} lacks the field {missing.args[0]!r}.", number, missing.args[0]
                ) from None
        elif isinstance(row, (list, tuple)):
            if len(row) != n_features:
                raise Fault(422, f"row {number} has {len(row)} numbers; the model takes {n_features}.", number)
            cells.append(row)
        else:
            raise Fault(422, f"row {number} must be an object with the fields, or a list of numbers.", number)
    wrong = {kind for line in cells for kind in map(type, line)} - {int, float}
    if wrong:
        _name_cell(cells, names, lambda cell: type(cell) not in (int, float), "is not a number")
    try:
        table = np.array(cells, dtype=np.float64).reshape(len(cells), n_features)
    except OverflowError:
        _name_cell(cells, names, lambda cell: abs(cell) > LARGEST_FEATURE, f"is beyond ±{LARGEST_FEATURE:g}")
        raise
    if not bool((np.abs(table) <= LARGEST_FEATURE).all()):  # also where it is no number at all
        _name_cell(cells, names, lambda cell: not abs(cell) <= LARGEST_FEATURE, f"is not within ±{LARGEST_FEATURE:g}")
    return table


def _name_cell(cells: list[Sequence[Any]], names: list[str] | None, is_wrong: Any, rule: str) -> None:
    for number, line in enumerate(cells):
        for place, cell in enumerate(line):
            if is_wrong(cell):
                field = str(place) if names is None else names[place]
                raise Fault(422, f"row {number}, field {field!r} {rule}.", number, field)


def joined_rows(parts: Sequence[Array]) -> Array:
    """Rows of several requests as one table.

    Args:
        parts: features (n_k, d) of each.

    Returns:
        (Σ n_k, d).

    Example:
        >>> joined_rows([np.zeros((1, 2)), np.ones((2, 2))]).shape
        (3, 2)
    """
    return parts[0] if len(parts) == 1 else np.concatenate(list(parts))
