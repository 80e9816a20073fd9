"""The served models: loading, reloading, typical rows and model cards."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snefy_ldl.apps.rows import label_names
from snefy_ldl.apps.serve.explorer.rows import past_columns, typical_features
from snefy_ldl.apps.serve.limits import Fault
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.columns import TableEncoder, columns_of
from snefy_ldl.datasets.recognise import CategoryColumn, NumberColumn
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.persistence import CALIBRATION_FILE, CONFIG, load, load_calibration, read_config

#: The log of uvicorn, which prints events on standard error.
_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One version of a model; it is never changed, only replaced.

    Args:
        name: of the folder.
        folder: where it came from.
        model: fitted; of an estimator around a model the model inside.
        inner: the same model, for features that are already encoded.
        calibrated: its conformal intervals, or None.
        config: the folder's JSON configuration.
        version: first digits of the weights' checksum.
        loaded: when, in seconds since 1970.
        lock: held while it computes.
    """

    name: str
    folder: Path
    model: Any
    inner: Any
    calibrated: ConformalIntervals | None
    config: dict[str, Any]
    version: str
    loaded: float = field(default_factory=time.time)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        return label_names(self.model)

    @property
    def features(self) -> list[str] | None:
        """Names of the columns that a row must have, or None if the model has no names."""
        return columns_of(self.model)

    @property
    def is_custom(self) -> bool:
        """Whether it has a custom network, whose input format is unknown."""
        return self.model.backbone is not None

    @property
    def takes_numbers(self) -> bool:
        """Whether rows are numbers, rather than what a network's ``collate`` takes."""
        return getattr(self.model.backbone, "collate", None) is None

    @cached_property
    def typical(self) -> SimplexDistribution | None:
        """The distribution of a typical row; None if a custom network does not take plain numbers."""
        row = typical_row(self)
        if row is None:
            return None
        with torch.no_grad():
            return self.inner.predict_dist(np.array([row]) if self.is_custom else typical_features(self.model))


def load_intervals(folder: Path, model: Any) -> ConformalIntervals | None:
    """Load the conformal intervals of a saved model.

    Args:
        folder: of the model.
        model: loaded from it.

    Returns:
        The intervals; None if the model is not calibrated, or by folds, whose models the folder does not hold.
    """
    state = load_calibration(folder)
    return None if state is None or state["folds"] is not None else ConformalIntervals.from_dict(model, state)


def load_served(folder: Path, name: str, backbone: Any = None) -> ServedModel:
    """Load a model and its calibration, both of the same version.

    Args:
        folder: of the model.
        name: under which it is served.
        backbone: custom network of a model that was saved without its code, or None.

    Returns:
        The model.

    Raises:
        ModelFileError: the folder holds no complete model, or one whose custom network is missing.
    """
    for _ in range(5):
        config = read_config(folder)
        custom = config["kind"] != "Learner" and config["network"]["custom_backbone"]
        model, inner = past_columns(load(folder, backbone if custom else None))
        calibrated = load_intervals(folder, inner)
        if read_config(folder)["weights"] == config["weights"]:  # not overwritten in between
            break
    else:
        raise ModelFileError(f"{folder} is being overwritten repeatedly; it will be loaded when that ends.")
    version = config["weights"]["sha256"][:12]
    served = ServedModel(name, folder, model, inner, calibrated, config, version)
    if served.typical is not None:  # tables are made before the first request
        served.typical.quantiles([0.05, 0.95])
    return served


class ModelStore:
    """Models by name; each is reloaded as a whole when its folder changes.

    Args:
        folders: of the models; the first is the default. Their names must differ.
        backbone: custom network of models that were saved without its code, or None.

    Raises:
        ModelFileError: one of them cannot be loaded.
        InputError: there is no folder, or two have the same name.
    """

    def __init__(self, folders: Sequence[Path], backbone: Any = None) -> None:
        self._backbone = backbone
        places = {folder.resolve().name or "model": folder for folder in folders}
        if not folders:
            raise InputError("name at least one model folder to serve.")
        if len(places) < len(folders):
            raise InputError("two model folders have the same name; requests could not distinguish them.")
        self._seen = {name: _fingerprint(folder) for name, folder in places.items()}
        self._models = {name: load_served(folder, name, backbone) for name, folder in places.items()}

    @property
    def models(self) -> list[ServedModel]:
        """The current version of all models, the default first."""
        return list(self._models.values())

    def get(self, name: str | None = None) -> ServedModel:
        """The current version of a model.

        Args:
            name: None for the default.

        Returns:
            The model; later changes of the folder do not affect it.

        Raises:
            Fault: 404, there is no such model.
        """
        if name is None:
            return self.models[0]
        if name not in self._models:
            raise Fault(404, f"there is no model {name!r}; the models are: {', '.join(self._models)}.", field="model")
        return self._models[name]

    def refresh(self) -> list[str]:
        """Reload models whose folders changed; a model that cannot be loaded stays as it was.

        Returns:
            Names of the models that were replaced.
        """
        replaced = []
        for name, present in list(self._models.items()):
            try:
                now = _fingerprint(present.folder)
                if now == self._seen[name]:
                    continue
                self._seen[name] = now
                self._models[name] = load_served(present.folder, name, self._backbone)
                replaced.append(name)
                _log.info("model %s loaded again, version %s", name, self._models[name].version)
            except Exception as error:  # whatever a damaged folder raises, the model in memory stays
                _log.warning("model %s stays at version %s: %.300s", name, present.version, error)
        return replaced


def _fingerprint(folder: Path) -> list[tuple[int, int, int]]:
    """Modification times, sizes and inodes of a folder's files."""
    states = [path.stat() for path in (folder / CONFIG, folder / CALIBRATION_FILE) if path.exists()]
    return [(state.st_mtime_ns, state.st_size, state.st_ino) for state in states]


def typical_row(served: ServedModel) -> Any:
    """A typical row of the training data, as a request would send it.

    Args:
        served: the model.

    Returns:
        A dict by name, or a list if the model has no feature names; None if it has a custom network that does not take
        plain numbers.
    """
    if served.is_custom:
        row = served.model.training_.get("row")
        return np.zeros(row["shape"]).tolist() if row is not None and served.takes_numbers else None
    columns = served.model.columns_
    if isinstance(columns, TableEncoder):
        return {column.name: _typical_cell(column) for column in columns.columns if column.names_out}
    middle = typical_features(served.model)[0][: None if columns is None else columns.n_in]
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
    model, state, dist = served.model, served.calibrated, served.typical
    training = model.training_
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    kind = {} if dist is None else {"kind": type(dist).__name__, "exact": not bool(dist.mean_error.any())}
    return {
        "name": served.name,
        "version": served.version,
        "library_version": served.config["library_version"],
        "loaded": served.loaded,
        "labels": served.labels,
        "features": served.features,
        "n_features": getattr(model, "n_features_in_", None),  # a custom network may take anything
        "trained_on": {"rows": training["rows"], "epochs": training["epochs"], "device": training["device"]},
        "measured": {
            "mean_log_likelihood_of_rows_held_back": -sum(losses) / len(losses) if losses else None,
            "how": "rows of the training table that chose the epoch; evaluate on other rows for an unbiased value",
        },
        "intervals": {
            "calibrated_levels": [] if state is None else np.atleast_1d(state.confidence_level).tolist(),
            "calibration_rows": None if state is None else state.n_calibration_,
        },
        "distribution": {**kind, "chosen_because": training.get("choice", {}).get("reason")},
        "limits": [
            "It is fitted to rows like its training data; far from them its answers are extrapolations.",
            *([] if dist is None else sorted(set(dist.rows.why_not.values()))),
        ],
        "example_row": typical_row(served),
    }
