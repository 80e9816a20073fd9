"""Rows of a table as a model takes them, and columns of answers; light to import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snefy_ldl._internal.types import Array
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.datasets.table_files import TableSource
    from snefy_ldl.snefy import SnefyLDL


def interval_columns(labels: list[str]) -> list[str]:
    """Names of the columns that hold both ends of each label's interval.

    Args:
        labels: names of the labels (L).

    Returns:
        Two names a label (2 L).

    Example:
        >>> interval_columns(["sand"])
        ['sand_low', 'sand_high']
    """
    return [f"{label}_{end}" for label in labels for end in ("low", "high")]


def label_names(model: Any) -> list[str]:
    """Names of a fitted model's labels; numbered ones if it was fitted without.

    Args:
        model: a fitted model.

    Returns:
        As many names as labels.
    """
    names = model.label_names_
    return [f"label_{r}" for r in range(model.n_labels_)] if names is None else [str(name) for name in names]


def update_columns(model: Any, X: Any, counts: Any, level: float, single: Any = None) -> dict[str, Any]:
    """Number of votes, and means and intervals of every label given the votes, a column each.

    Args:
        model: a fitted model.
        X: features (N, d).
        counts: votes so far (N, L).
        level: of the intervals.
        single: the same votes with who cast them, for a model of annotators; None if that is not known.

    Returns:
        Columns (N,) by name, rounded as every table is.
    """
    import numpy as np

    from snefy_ldl.datasets.table_files import round_shares

    labels, tail = label_names(model), 0.5 * (1.0 - level)
    from snefy_ldl.votes.allocation import update  # torch

    if single is not None and single.annotators and hasattr(model, "annotators_"):
        mean, _, ends = model.predict_given_votes(X, single, alpha=[tail, 1.0 - tail])
    else:
        dist = update(model, X, counts)
        mean, ends = dist.mean.cpu().numpy(), dist.quantiles([tail, 1.0 - tail]).cpu().numpy()
    columns: dict[str, Any] = {"votes": counts.sum(axis=1).astype(np.int64)}
    for r, label in enumerate(labels):
        columns[label] = round_shares(mean[:, r])
        columns |= dict(zip(interval_columns([label]), round_shares(ends[:, r]).T))
    return columns


def takes_gaps(model: SnefyLDL) -> bool:
    """Whether a model reads text and gaps by itself, as one that was fitted to a table does; those of 0.1 do not.

    Args:
        model: a fitted model.
    """
    return model.columns_ is not None and model.columns_.named


def model_rows(model: SnefyLDL, table: Any, names: list[str]) -> Any:
    """Rows of a table as a model takes them.

    Args:
        model: a fitted model.
        table: a DataFrame that has these columns.
        names: the columns to feed the model, in its order.

    Returns:
        A DataFrame with the model's names, or an array for a model without names.
    """
    from snefy_ldl.datasets.shares import label_numbers

    if takes_gaps(model):
        return table[names].set_axis(model.columns_.names_used, axis=1)
    return label_numbers(table, names)


def recorded(model: Any, name: str) -> Any:
    """What ``fit`` recorded about the table that it read.

    Args:
        model: A fitted model.
        name: "id", "form", "normalize", "vote_columns" or "unit".

    Returns:
        The recorded value; None for a model that the command line did not fit.
    """
    return model.training_.get("table", {}).get(name)


def row_names(model: Any, columns: list[str], wanted: str | None = None) -> str | None:
    """The column that names the rows of a table.

    Args:
        model: A fitted model.
        columns: Of the table.
        wanted: Text of ``--id``, or None.

    Returns:
        The column that was asked for, the one that named the rows of the training table, or item, id or row; None if
        the table has none of them.
    """
    from snefy_ldl.datasets.columns import columns_of
    from snefy_ldl.datasets.labelled import find_id

    return find_id(columns, wanted or recorded(model, "id"), columns_of(model))


def feature_names(model: SnefyLDL, source: TableSource, others: tuple[str, ...] = ()) -> list[str]:
    """The columns of a table to feed a model.

    Args:
        model: A fitted model.
        source: The table.
        others: Columns that are no features, for a model without column names.

    Returns:
        The model's names, or all columns but the labels and the others.

    Raises:
        InputError: The table lacks one of them, or their number is wrong.
    """
    from snefy_ldl.datasets.columns import columns_of
    from snefy_ldl.datasets.labelled import is_answer
    from snefy_ldl.errors import InputError

    names = columns_of(model)
    if names is None:
        labels = label_names(model)
        others = (*labels, *others, *group_levels(model))
        names = [c for c in source.columns if c not in others and not is_answer(c, labels)]
    source.need(names, "features of the model")
    wanted = len(columns_of(model) or []) if takes_gaps(model) else model.n_features_in_
    if len(names) != wanted:
        raise InputError(
            f"{source.file.name}: the model takes {wanted} features without names, but there are {len(names)} columns "
            "for them. Leave the others out of the table, or fit to a table whose columns have names."
        )
    return names


def group_levels(model: SnefyLDL) -> tuple[str, ...]:
    """Columns that hold the groups of rows, for a model that was fitted with groups.

    Args:
        model: a fitted model.

    Returns:
        One name per level; none if the fit was given no groups.
    """
    effects = getattr(model, "group_effects_", None)
    known = model.training_.get("group_effects") if effects is None else {"levels": effects.levels}
    return tuple(known["levels"]) if known else ()


def table_groups(model: SnefyLDL, table: Any) -> Any:
    """Groups of the rows of a table, from the group columns of a model.

    Args:
        model: a fitted model.
        table: a DataFrame.

    Returns:
        A DataFrame of one column; None if the table has no such column.
    """
    there = [name for name in group_levels(model) if name in table.columns]
    return table[there].apply(_typed_cells) if there else None


def _typed_cells(cells: Any) -> Any:
    """Cells of a column that was read as text, of the type they would have had; others as they are."""
    import pandas as pd

    if not pd.api.types.is_string_dtype(cells):
        return cells
    try:
        return pd.to_numeric(cells)
    except (TypeError, ValueError):
        return cells.where(cells != "", None)


def load_intervals(folder: Path, model: Any) -> ConformalIntervals | None:
    """Load the conformal intervals of a saved model.

    Args:
        folder: of the model.
        model: loaded from it.

    Returns:
        The intervals; None if the model is not calibrated.
    """
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.persistence import load_calibration

    state = load_calibration(folder)
    return None if state is None else ConformalIntervals.from_dict(model, state)


def calibrated_levels(calibrated: ConformalIntervals | None) -> list[float]:
    """The confidence levels of a calibration.

    Args:
        calibrated: conformal intervals, or None.

    Returns:
        Its levels, also if there is only one; none without a calibration.
    """
    levels: Any = [] if calibrated is None else calibrated.confidence_level
    return list(levels) if isinstance(levels, (list, tuple)) else [levels]


def calibrated_ends(calibrated: ConformalIntervals, X: Any) -> Array:
    """Calibrated intervals at all levels (N, L, 2, levels).

    Args:
        calibrated: conformal intervals.
        X: features (N, d).
    """
    ends = calibrated.predict_interval(X)
    return ends if ends.ndim == 4 else ends[..., None]


def interval_maker(model: Any, calibrated: ConformalIntervals | None, level: float) -> Callable[[Any], Array]:
    """Features to intervals (N, L, 2): calibrated ones, or the model's own if there are none of that level.

    Args:
        model: a fitted model.
        calibrated: its conformal intervals, or None.
        level: confidence level.
    """
    if calibrated is None or level not in calibrated_levels(calibrated):
        return lambda X: model.predict_interval(X, level)
    place = calibrated_levels(calibrated).index(level)
    return lambda X: calibrated_ends(calibrated, X)[..., place]


def prediction_columns(model: SnefyLDL, X: Any, intervals: Callable[[Any], Any] | None) -> dict[str, Any]:
    """Means, and both ends of intervals if these are wanted, a column each.

    Args:
        model: a fitted model.
        X: features (N, d).
        intervals: features to intervals (N, L, 2), or None.

    Returns:
        Columns (N,) by name, rounded as every table is.
    """
    import numpy as np

    from snefy_ldl.datasets.table_files import round_shares

    labels = label_names(model)
    columns = dict(zip(labels, np.asarray(model.predict(X)).T))
    if intervals is not None:
        columns |= dict(zip(interval_columns(labels), intervals(X).reshape(-1, 2 * len(labels)).T))
    return {name: round_shares(values) for name, values in columns.items()}
