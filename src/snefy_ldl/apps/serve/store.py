"""The served models: loading, and loading again when their folders change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snefy_ldl.apps.rows import label_names, load_intervals
from snefy_ldl.apps.serve.limits import Fault
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.columns import columns_of
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.persistence import CALIBRATION_FILE, CONFIG, load, read_config
from snefy_ldl.prediction import innermost

#: The log of uvicorn, which prints events on standard error.
_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One version of a model; it is never changed, only replaced.

    Args:
        name: of the folder.
        folder: where it came from.
        model: fitted; of an estimator around a model the model inside.
        calibrated: its conformal intervals, or None.
        version: first digits of the weights' checksum.
        lock: held while it computes.
    """

    name: str
    folder: Path
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
    """Load a model and its calibration, both of the same version.

    Args:
        folder: of the model.
        name: under which it is served.

    Returns:
        The model.

    Raises:
        ModelFileError: the folder holds no complete model, or one with a custom network, whose code it does not hold.
    """
    for _ in range(5):
        config = read_config(folder)
        model = innermost(load(folder))
        calibrated = load_intervals(folder, model)
        if read_config(folder)["weights"] == config["weights"]:  # not overwritten in between
            break
    else:
        raise ModelFileError(f"{folder} is being overwritten repeatedly; it will be loaded when that ends.")
    return ServedModel(name, folder, model, calibrated, config["weights"]["sha256"][:12])


class ModelStore:
    """Models by name; each is reloaded as a whole when its folder changes.

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
        self._seen = {name: _fingerprint(folder) for name, folder in places.items()}
        self._models = {name: load_served(folder, name) for name, folder in places.items()}

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
                self._models[name] = load_served(present.folder, name)
                replaced.append(name)
                _log.info("model %s loaded again, version %s", name, self._models[name].version)
            except Exception as error:  # any error of a damaged folder: the model in memory stays
                _log.warning("model %s stays at version %s: %.300s", name, present.version, error)
        return replaced


def _fingerprint(folder: Path) -> list[tuple[int, int, int]]:
    """Modification times, sizes and inodes of a folder's files."""
    states = [path.stat() for path in (folder / CONFIG, folder / CALIBRATION_FILE) if path.exists()]
    return [(state.st_mtime_ns, state.st_size, state.st_ino) for state in states]
