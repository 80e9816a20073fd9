"""The rows of a page, their encoded features, and the controls that change features."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.apps.rows import label_names, takes_gaps
from snefy_ldl.datasets.columns import TableEncoder, columns_of
from snefy_ldl.datasets.labelled import find_id
from snefy_ldl.datasets.recognise import CategoryColumn, NumberColumn
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import InputError
from snefy_ldl.prediction import innermost
from snefy_ldl.snefy import SnefyLDL

#: With fewer rows, sliders extend this many units of the fit's scaling to either side of its centre.
FEW_ROWS, REACH = 20, 2.5


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
        source, recorded = TableSource(file, sheet), model.training_.get("table", {}).get("id")
        names, texts = columns_of(model) or [], list[str]()
        if takes_gaps(model):
            texts = [column.name for column in model.columns_.used if column.kind != "number"]
        if not names:
            labels = label_names(model)
            key = find_id(source.columns, id_name)
            names = [name for name in source.columns if name not in labels and name != key]
            wanted = getattr(model, "n_features_in_", len(names))  # a custom network may take any number
            if len(names) != wanted:
                raise InputError(
                    f"{file.name}: the model takes {wanted} features, whose names it does not know; the table "
                    f"has {len(names)} columns besides labels and row names."
                )
        source.need([*names, *([] if id_name is None else [id_name])], "features of the model")
        key = find_id(source.columns, id_name or recorded, names)
        frame = source.whole([name for name in names if name not in texts], [*texts, *([key] if key else [])])
        ids = [str(cell) for cell in frame[key]] if key else None
        return cls(frame[names], ids, key or "row", file.stem)

    def take(self, rows: Any) -> PageRows:
        """Some of the rows.

        Args:
            rows: their numbers.

        Returns:
            The rows in that order.
        """
        table = self.table.iloc[rows].reset_index(drop=True) if hasattr(self.table, "iloc") else self.table[rows]
        return replace(self, table=table, ids=None if self.ids is None else [self.ids[row] for row in rows])


def past_columns(model: Any) -> tuple[Any, Any]:
    """The fitted model itself, and a copy that takes encoded features and shares everything else.

    Args:
        model: fitted; of an estimator around a model, such as :class:`~snefy_ldl.AutoLDL`, the model inside.

    Returns:
        Both; the same one twice if there are no columns to encode.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, random_state=0).fit(city.X, city.D)
        >>> same, inner = past_columns(model)
        >>> bool((inner.predict(city.X) == model.predict(city.X)).all())
        True
    """
    model = innermost(model)
    if model.columns_ is None:
        return model, model
    return model, _for_encoded(model)


@singledispatch
def _for_encoded(model: Any) -> Any:
    """A copy of a model with columns that takes encoded features."""
    inner = copy.copy(model)
    inner.n_features_in_, inner.columns_ = model.columns_.n_out, None
    vars(inner).pop("feature_names_in_", None)
    return inner


@_for_encoded.register(SnefyLDL)
def _(model: SnefyLDL) -> Any:
    inner = copy.copy(model)
    inner.model_ = replace(model.model_, columns=None, feature_names=None, n_features=model.columns_.n_out)
    return inner


@singledispatch
def typical_features(model: Any) -> Array:
    """Encoded features (1, d) in the centre of the training data.

    Args:
        model: fitted, without a custom network.

    Returns:
        Encoded features.
    """
    return np.asarray(model.feature_mean_, dtype=np.float64)[None]


@typical_features.register(SnefyLDL)
def _(model: SnefyLDL) -> Array:
    n_features = model.columns_.n_out if model.columns_ is not None else int(model.n_features_in_)
    if model.inputs_ == "guides":
        middle = getattr(model.guides_.learners[0], "feature_mean_", np.zeros(n_features))
    else:
        middle = model.net_.backbone.scaler.centre[0].cpu().numpy()[:n_features]
    return np.asarray(middle, dtype=np.float64)[None]


def make_controls(model: Any, encoded: Array, changes: bool) -> list[dict[str, Any]]:
    """The controls of the page: a slider per number, a menu per category.

    Args:
        model: fitted.
        encoded: encoded features of all rows (N, d).
        changes: whether the page can change features, with the library's own network.

    Returns:
        One entry per column: its name, its kind, and which features it sets.
    """
    columns = model.columns_
    if len(encoded) < FEW_ROWS and changes and model.inputs_ != "guides":
        # few rows are a poor guide to a feature's range; the fit's scaling is a better one
        scaler = model.net_.backbone.scaler
        middle, unit = (part[0].cpu().double().numpy()[: encoded.shape[1]] for part in (scaler.centre, scaler.scale))
        if not scaler.is_identity():
            encoded = np.vstack([encoded, middle - REACH * unit, middle + REACH * unit])
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
