"""The models that a service answers from: whole ones only, and the newest that is whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snefy_ldl._internal.model_files import CALIBRATION_FILE, CONFIG, load_calibration, read_config
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.serve.explorer.rows import past_columns
from snefy_ldl.serve.faults import Fault
from snefy_ldl.serve.pace import Meter

__all__ = ["ModelStore", "ServedModel", "load_served"]

#: Changed times and sizes of a folder's files.
Fingerprint = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One model as it was at one moment; it is never changed, only replaced.

    Args:
        name: of the folder.
        folder: where it came from.
        model: fitted, on the CPU or where it was put.
        inner: the same model for features that its columns made already.
        calibrated: its conformal intervals, or None.
        config: what the folder's JSON says.
        version: first digits of the weights' checksum.
        loaded: when, in seconds since 1970.
        meter: how long its answers take.
    """

    name: str
    folder: Path
    model: SnefyLDL
    inner: SnefyLDL
    calibrated: ConformalIntervals | None
    config: dict[str, Any]
    version: str
    loaded: float
    meter: Meter = field(default_factory=Meter)

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        return [str(label) for label in self.model.label_names_]

    @property
    def features(self) -> list[str] | None:
        """Names of the columns that a row must hold, or None where the model knows none."""
        if isinstance(self.model.columns_, TableEncoder):
            return self.model.columns_.names_used
        names = getattr(self.model, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    @property
    def is_own(self) -> bool:
        """Whether its network is the user's own, of which nobody else knows what it takes."""
        return self.model.backbone is not None

    @property
    def takes_numbers(self) -> bool:
        """Whether a row is numbers, and not what a network's ``collate`` takes."""
        return getattr(self.model.backbone, "collate", None) is None

    @property
    def moves(self) -> bool:
        """Whether every row's law has components of its own."""
        return bool(self.model.inputs_ == "moving")


def load_served(folder: Path, name: str, backbone: Any = None) -> ServedModel:
    """Read a model and its calibration, both of one moment.

    Args:
        folder: of the model.
        name: under which it is served.
        backbone: the network of a model whose code is not saved with it, or None.

    Returns:
        The model.

    Raises:
        ModelFileError: the folder holds no whole model, or one whose code is not saved with it.
    """
    for _ in range(5):
        config = read_config(folder)
        model = SnefyLDL.load(folder, backbone if config["network"]["custom_backbone"] else None)
        state = load_calibration(folder)
        if read_config(folder)["weights"] == config["weights"]:  # nobody wrote in between
            break
    else:
        raise ModelFileError(f"{folder} is being written over and over; it will be read when that ends.")
    calibrated, inner = None, past_columns(model)
    if state is not None and state["folds"] is None:
        calibrated = ConformalIntervals.from_dict(inner, state)
    return ServedModel(name, folder, model, inner, calibrated, config, config["weights"]["sha256"][:12], time.time())


class ModelStore:
    """Models by name; each is replaced as a whole when its folder changes.

    Args:
        folders: of the models; the first is the default. Their names must differ.
        on_event: called with an event's name and fields ("loaded", "load failed"), for logs and counters.
        prepare: called with a model that is to replace another, before it does.
        backbone: the network of those models whose code is not saved with them, or None.

    Raises:
        ModelFileError: one of them cannot be read.
        InputError: there is none, or two have one name.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        on_event: Callable[..., None] | None = None,
        prepare: Callable[[ServedModel], None] | None = None,
        backbone: Any = None,
    ) -> None:
        self._backbone = backbone
        self._event = on_event or (lambda name, **fields: None)
        self._prepare = prepare or (lambda served: None)
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
        """All models as they are now, the default first."""
        return list(self._models.values())

    def get(self, name: str | None = None) -> ServedModel:
        """A model as it is now.

        Args:
            name: None for the default.

        Returns:
            The model; a later change of the folder does not touch it.

        Raises:
            Fault: 404, there is no such model.
        """
        if name is None:
            return next(iter(self._models.values()))
        if name not in self._models:
            raise Fault(404, f"there is no model {name!r}; there are: {', '.join(self._models)}.", field="model")
        return self._models[name]

    def refresh(self) -> list[str]:
        """Read again what changed; what cannot be read stays as it was.

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
                except Exception as error:  # whatever a damaged folder meets, the whole model in memory goes on
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
