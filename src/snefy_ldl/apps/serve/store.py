"""The served models."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snefy_ldl.apps.serve.limits import Fault
from snefy_ldl.apps.table_rows import label_names, load_intervals
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.columns import columns_of
from snefy_ldl.errors import InputError
from snefy_ldl.persistence import load, read_config
from snefy_ldl.prediction import innermost


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that is served.

    Args:
        name: of the folder.
        model: fitted; of an estimator around a model the model inside.
        calibrated: its conformal intervals, or None.
        version: first digits of the weights' checksum.
        lock: held while it computes.
    """

    name: str
    model: Any
    calibrated: ConformalIntervals | None
    version: str
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        return label_names(self.model)

    @property
    def features(self) -> list[str] | None:
        """Names of the columns that a row must have, or None if the model has no names."""
        return columns_of(self.model)


def load_served(folder: Path, name: str) -> ServedModel:
    """Load a model and its calibration.

    Args:
        folder: of the model.
        name: under which it is served.

    Returns:
        The model.

    Raises:
        ModelFileError: the folder holds no complete model, or one with a custom network, whose code it does not hold.
    """
    model = innermost(load(folder))
    calibrated = load_intervals(folder, model)
    return ServedModel(name, model, calibrated, read_config(folder)["weights"]["sha256"][:12])


class ModelStore:
    """Models by name.

    Args:
        folders: of the models; the first is the default. Their names must differ.

    Raises:
        ModelFileError: one of them cannot be loaded.
        InputError: there is no folder, or two have the same name.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        places = {folder.resolve().name or "model": folder for folder in folders}
        if not folders:
            raise InputError("name at least one model folder to serve.")
        if len(places) < len(folders):
            raise InputError("two model folders have the same name; requests could not distinguish them.")
        self._models = {name: load_served(folder, name) for name, folder in places.items()}

    @property
    def models(self) -> list[ServedModel]:
        """All models, the default first."""
        return list(self._models.values())

    def get(self, name: str | None = None) -> ServedModel:
        """A model by name.

        Args:
            name: None for the default.

        Returns:
            The model.

        Raises:
            Fault: 404, there is no such model.
        """
        if name is None:
            return self.models[0]
        if name not in self._models:
            raise Fault(404, f"there is no model {name!r}; the models are: {', '.join(self._models)}.", field="model")
        return self._models[name]
