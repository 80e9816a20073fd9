"""What a served model is: on what it was trained, how that was measured, and what it cannot answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.datasets.kinds import CategoryColumn, NumberColumn
from snefy_ldl.serve.explorer.rows import typical_features
from snefy_ldl.serve.store import ServedModel

__all__ = ["model_card", "typical_row"]


def typical_row(served: ServedModel) -> Any:
    """Features in the middle of what the model was trained on, as a request holds them.

    Args:
        served: the model.

    Returns:
        A dict by name, or a list where the model knows no names; None where its network is the user's own and takes
        anything but plain numbers.
    """
    if served.is_own:
        row = served.model.training_.get("row")
        return np.zeros(row["shape"]).tolist() if row is not None and served.takes_numbers else None
    columns = served.model.columns_
    if isinstance(columns, TableEncoder):
        return {column.name: _typical_cell(column) for column in columns.columns if column.names_out}
    middle = typical_features(served.model)[0]
    if columns is not None:
        middle = middle[: columns.n_in]
    values = [float(f"{value:.4g}") for value in middle]
    return values if served.features is None else dict(zip(served.features, values))


def _typical_cell(column: Any) -> Any:
    if isinstance(column, CategoryColumn):
        return column.levels[0]
    return float(f"{column.fill:.4g}") if isinstance(column, NumberColumn) else None


def model_card(served: ServedModel) -> dict[str, Any]:
    """The card of a model, plain values only.

    Args:
        served: the model.

    Returns:
        What it is, how it was trained and measured, and its limits.
    """
    model, config = served.model, served.config
    training, state = config["training"], served.calibrated
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    net = model.net_
    return {
        "name": served.name,
        "version": served.version,
        "library_version": config["library_version"],
        "loaded": served.loaded,
        "labels": served.labels,
        "features": served.features,
        "n_features": getattr(model, "n_features_in_", None),  # a network of the user's own may take anything
        "trained_on": {"rows": training["rows"], "epochs": training["epochs"], "device": training["device"]},
        "measured": {
            "mean_log_likelihood_of_rows_held_back": -sum(losses) / len(losses) if losses else None,
            "how": "rows of the training table that chose the epoch; evaluate on other rows for an honest figure",
        },
        "intervals": {
            "exact_under_the_model": True,
            "calibrated_levels": [] if state is None else np.atleast_1d(state.confidence_level).tolist(),
            "calibration_rows": None if state is None else state.n_calibration_,
        },
        "law": {"members": net.n_members, "neurons": int(net.raw_exponents.shape[1]), "sees": model.inputs_},
        "limits": _limits(served),
        "example_row": typical_row(served),
    }


def _limits(served: ServedModel) -> list[str]:
    """What the model does not answer, in sentences."""
    model = served.model
    limits = ["It knows rows like those it was trained on; far from them its answers are extrapolation."]
    if model.centre_ is not None or served.moves:
        limits.append("Its law has a centre, so condition answers by draws, with their standard errors.")
    if model.net_.has_presence:
        limits.append("Shares may be exactly zero: zero is the chance of that.")
    return limits
