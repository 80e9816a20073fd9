"""The served models: loading, reloading, typical rows and model cards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.model_files import CALIBRATION_FILE, CONFIG, load_calibration, read_head
from snefy_ldl.apps.serve.explorer.rows import past_columns, typical_features
from snefy_ldl.apps.serve.limits import Fault
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.columns import TableEncoder, columns_of
from snefy_ldl.datasets.recognise import CategoryColumn, NumberColumn
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.persistence import load

#: Modification times, sizes and inodes of a folder's files.
Fingerprint = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One version of a model; it is never changed, only replaced.

    Args:
        name: of the folder.
        folder: where it came from.
        model: fitted, a SnefyLDL or a LogRatioLDL.
        inner: the same model, for features that are already encoded.
        calibrated: its conformal intervals, or None.
        config: the folder's JSON configuration.
        version: first digits of the weights' checksum.
        loaded: when, in seconds since 1970.
    """

    name: str
    folder: Path
    model: Any
    inner: Any
    calibrated: ConformalIntervals | None
    config: dict[str, Any]
    version: str
    loaded: float

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        names = self.model.label_names_
        return [f"label_{r}" for r in range(self.model.n_labels_)] if names is None else [str(name) for name in names]

    @property
    def features(self) -> list[str] | None:
        """Names of the columns that a row must have, or None if the model has no names."""
        return columns_of(self.model)

    @property
    def is_own(self) -> bool:
        """Whether it has a custom network, whose input format is unknown."""
        return self.model.backbone is not None

    @property
    def takes_numbers(self) -> bool:
        """Whether rows are numbers, rather than what a network's ``collate`` takes."""
        return getattr(self.model.backbone, "collate", None) is None

    @property
    def moves(self) -> bool:
        """Whether the components of the law differ between rows."""
        return bool(getattr(self.model, "inputs_", None) == "moving")


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
        head = read_head(folder)
        model = load(folder, backbone if head.custom_backbone else None)
        inner = past_columns(model)
        calibrated = load_intervals(folder, inner)
        if read_head(folder).checksum == head.checksum:  # not overwritten in between
            break
    else:
        raise ModelFileError(f"{folder} is being overwritten repeatedly; it will be loaded when that ends.")
    return ServedModel(name, folder, model, inner, calibrated, head.config, head.checksum[:12], time.time())


class ModelStore:
    """Models by name; each is reloaded as a whole when its folder changes.

    Args:
        folders: of the models; the first is the default. Their names must differ.
        on_event: called with an event's name and fields ("loaded", "load failed"), for logs and counters.
        prepare: called with a reloaded model before it replaces the old one.
        backbone: custom network of models that were saved without its code, or None.

    Raises:
        ModelFileError: one of them cannot be loaded.
        InputError: there is no folder, or two have the same name.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        on_event: Callable[..., None],
        prepare: Callable[[ServedModel], None],
        backbone: Any = None,
    ) -> None:
        self._backbone, self._event, self._prepare = backbone, on_event, prepare
        names = [Path(folder).resolve().name or "model" for folder in folders]
        if not names:
            raise InputError("name at least one model folder to serve.")
        if len(set(names)) < len(names):
            twice = next(name for k, name in enumerate(names) if name in names[:k])
            raise InputError(f"two model folders are named {twice!r}; requests could not tell them apart.")
        self._seen: dict[str, Fingerprint] = {}
        self._models: dict[str, ServedModel] = {}
        self._lock = threading.Lock()
        for name, folder in zip(names, folders):
            self._seen[name] = _fingerprint(Path(folder))
            self._models[name] = load_served(Path(folder), name, backbone)
            self._event("loaded", model=name, version=self._models[name].version)

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
            return next(iter(self._models.values()))
        if name not in self._models:
            raise Fault(404, f"there is no model {name!r}; the models are: {', '.join(self._models)}.", field="model")
        return self._models[name]

    def refresh(self) -> list[str]:
        """Reload models whose folders changed; a model that cannot be loaded stays as it was.

        Returns:
            Names of the models that were replaced.
        """
        replaced = []
        with self._lock:
            for name, present in list(self._models.items()):
                now = _fingerprint(present.folder)
                if now == self._seen[name]:
                    continue
                try:
                    fresh = load_served(present.folder, name, self._backbone)
                    self._prepare(fresh)
                except Exception as error:  # whatever a damaged folder raises, the model in memory stays
                    self._seen[name] = now
                    self._event("load failed", model=name, version=present.version, reason=str(error)[:300])
                    continue
                self._models[name], self._seen[name] = fresh, now
                self._event("loaded", model=name, version=fresh.version)
                replaced.append(name)
        return replaced


def _fingerprint(folder: Path) -> Fingerprint:
    marks: list[tuple[int, int, int] | None] = []
    for name in (CONFIG, CALIBRATION_FILE):
        try:
            state = (folder / name).stat()
            marks.append((state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:
            marks.append(None)
    return tuple(marks)


def typical_row(served: ServedModel) -> Any:
    """A typical row of the training data, as a request would send it.

    Args:
        served: the model.

    Returns:
        A dict by name, or a list if the model has no feature names; None if it has a custom network that does not take
        plain numbers.
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
    training, state = model.training_, served.calibrated
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    return {
        "name": served.name,
        "version": served.version,
        "library_version": config["library_version"],
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
            "exact_under_the_model": hasattr(model, "net_"),
            "calibrated_levels": [] if state is None else np.atleast_1d(state.confidence_level).tolist(),
            "calibration_rows": None if state is None else state.n_calibration_,
        },
        "law": _law_facts(model),
        "limits": _limits(served),
        "example_row": typical_row(served),
    }


def _law_facts(model: Any) -> dict[str, Any]:
    """What the predicted laws are made of."""
    choice = {} if model.density_choice_ is None else {"chosen_because": model.density_choice_["reason"]}
    if not hasattr(model, "net_"):
        return {"density": "logratio", "members": len(model.net_centres_), "components": model.n_components, **choice}
    net = model.net_
    facts = {"members": net.n_members, "neurons": int(net.raw_exponents.shape[1]), "sees": model.inputs_}
    return {**facts, **choice}


def _limits(served: ServedModel) -> list[str]:
    """What the model cannot answer, one sentence each."""
    model = served.model
    limits = ["It has seen only rows like its training data; far from them its answers are extrapolations."]
    if not hasattr(model, "net_"):
        return [*limits, "It knows no votes, no zeros and no joint law of sums; shares are answered by 4,096 draws."]
    return limits
