"""The rows of a page, their encoded features, and the controls that change features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.apps.table_rows import feature_names, row_names, takes_gaps
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.datasets.recognise import CategoryColumn, NumberColumn
from snefy_ldl.datasets.table_files import TableSource


@dataclass(frozen=True, eq=False)
class PageRows:
    """Rows for a page.

    Args:
        table: as the model takes it: a DataFrame, or an array (N, d).
        ids: names of the rows, or None for row numbers.
        id_name: column of the names.
        title: of the table, or None.

    Example:
        >>> len(PageRows(np.zeros((3, 2))))
        3
    """

    table: Any
    ids: list[str] | None = None
    id_name: str = "row"
    title: str | None = None

    def __len__(self) -> int:
        return int(self.table.shape[0])

    @classmethod
    def read(cls, model: Any, file: Path, id_name: str | None = None, sheet: str | None = None) -> PageRows:
        """Read rows from a table on disk, with the columns of the model's fit.

        Args:
            model: fitted.
            file: CSV, TSV or Parquet.
            id_name: column that names the rows; by default the one of the training table, or item, id or row.
            sheet: of a workbook; the first by default.

        Returns:
            The rows.

        Raises:
            InputError: a column is missing, or a cell that must be a number is not one.
        """
        source = TableSource(file, sheet)
        key = row_names(model, source.columns, id_name)
        if id_name is not None:
            source.need([id_name], "--id")
        names = feature_names(model, source, (key,) if key else ())
        texts = [] if not takes_gaps(model) else [one.name for one in model.columns_.used if one.kind != "number"]
        frame = source.whole([name for name in names if name not in texts], [*texts, *([key] if key else [])])
        return cls(frame[names], [str(cell) for cell in frame[key]] if key else None, key or "row", file.stem)

    def take(self, rows: Any) -> PageRows:
        """Some of the rows.

        Args:
            rows: their numbers.

        Returns:
            The rows in that order.
        """
        table = self.table.iloc[rows].reset_index(drop=True) if hasattr(self.table, "iloc") else self.table[rows]
        return replace(self, table=table, ids=None if self.ids is None else [self.ids[row] for row in rows])


def make_controls(model: Any, encoded: Array) -> list[dict[str, Any]]:
    """The controls of the page: a slider per number, a menu per category.

    Args:
        model: fitted.
        encoded: encoded features of all rows (N, d).

    Returns:
        One entry per column: its name, its kind, and which features it sets.
    """
    columns = model.columns_
    if columns is not None:
        return [entry for entry in _encoded_controls(columns, encoded) if entry is not None]
    known = getattr(model, "feature_names_in_", None)
    n_columns = encoded[:1].size
    encoded = encoded.reshape(len(encoded), -1)
    names = [f"feature {k}" for k in range(n_columns)] if known is None else [str(name) for name in known]
    return [_slider(name, k, None, encoded[:, k]) for k, name in enumerate(names)]


def _encoded_controls(columns: TableEncoder, encoded: Array) -> list[dict[str, Any] | None]:
    controls: list[dict[str, Any] | None] = []
    start = 0
    for column in columns.columns:
        width = len(column.names_out)
        if isinstance(column, NumberColumn) and width:
            controls.append(_slider(column.name, start, start + 1 if width > 1 else None, encoded[:, start]))
        elif isinstance(column, CategoryColumn) and width:
            levels = [*column.levels, *(["other"] if column.other else [])]
            controls.append({"name": column.name, "kind": "category", "at": start, "levels": levels, "width": width})
        elif width:
            controls.append({"name": column.name, "kind": "fixed", "at": start, "width": width})
        start += width
    return controls


def _slider(name: str, at: int, indicator: int | None, values: Array) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    if not high > low:
        room = abs(low) or 1.0
        low, high = low - room, high + room
    whole = bool((values == np.round(values)).all()) and high - low <= 1000
    return {
        "name": name,
        "kind": "number",
        "at": at,
        "indicator": indicator,
        "low": low,
        "high": high,
        "step": 1.0 if whole else (high - low) / 500.0,
    }
