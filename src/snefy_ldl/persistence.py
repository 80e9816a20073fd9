"""Model folders, and the one registry of what reads and writes them; nothing in a folder is executed.

A folder holds a JSON file and a safetensors file, written all or nothing. The JSON names the weights file and its
checksum, and is renamed into place last: at whatever moment a crash comes, the folder holds the old model or the new
one. Its entries are checked before anything is built from them.

Every estimator has one ``pack(arrays)``, which returns plain JSON values and puts its arrays into a dict, and one
``unpack(config, arrays, asked)``, which is the way back; :data:`KINDS` names the classes. A new estimator needs an
entry there, a new fitted attribute a line in each of the two methods.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from snefy_ldl._internal.files import (
    LOOKS,
    PAUSE,
    format_tensors,
    only_writer,
    parse_tensors,
    read_checked,
    read_json,
    read_whole,
    remove_leftovers,
    write_json,
    write_pair,
)
from snefy_ldl._internal.schema import check_calibration, require
from snefy_ldl._internal.version import __version__
from snefy_ldl.errors import ModelFileError

__all__ = ["load", "load_calibration", "save_calibration"]

#: The module of each kind of estimator. Learners, LogRatioLDL among them, are one kind with a registry of their own.
KINDS = {
    "SnefyLDL": "snefy_ldl.snefy",
    "GroupedLDL": "snefy_ldl.grouped",
    "AnnotatorLDL": "snefy_ldl.annotators",
    "Learner": "snefy_ldl.learners.base",
}
#: Module and class of what is several folders, by the name of the JSON file beside them.
COMPOSITES = {
    "pipeline.json": ("snefy_ldl.pipeline", "LDLPipeline"),
    "ensemble.json": ("snefy_ldl.ensemble", "DensityWeightedBagging"),
}
#: Modules whose import registers the classes of learners.
LEARNERS = ("learners", "logratio", "learners.enhancement", "learners.supervision")

FORMAT, FORMAT_VERSION = "snefy-ldl model", 1
#: The format of folders of learners before 0.2.
LEARNER_FORMAT = "snefy_ldl.learner"
CONFIG, CALIBRATION_FILE = "model.json", "calibration.json"
WEIGHTS, EARLIER_ARRAYS = "weights-*.safetensors", "arrays-*.safetensors"
#: Where 0.1.0 put weights before it knew their checksum.
EARLIER_TEMPORARY = ".weights.tmp.safetensors"

# -- what a caller may ask ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What the caller of :func:`load` gave beside the folder.

    Args:
        folder: where the model is.
        backbone: the custom network, whose code is never saved.
        device: where to compute.
        guides: fitted guides that could not be saved.
    """

    folder: Path
    backbone: Any = None
    device: str | None = None
    guides: Any = None


def load(folder: str | Path, backbone: Any = None, device: str | None = None, guides: Any = None) -> Any:
    """Load a saved model, whichever estimator wrote it; nothing in the folder is executed.

    Args:
        folder: written by ``save`` of an estimator of this library, or by version 0.1.
        backbone: the custom network of a SnefyLDL, as :meth:`SnefyLDL.load` takes it.
        device: where a SnefyLDL computes; the GPU if available by default.
        guides: fitted guides of a SnefyLDL, if they could not be saved.

    Returns:
        The fitted estimator: a SnefyLDL, LogRatioLDL, AutoLDL, GroupedLDL, AnnotatorLDL, pipeline, ensemble or learner.

    Raises:
        ModelFileError: the folder is missing, damaged, foreign or of a newer version.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(f"{folder}/model")
        ...     type(load(place)).__name__
        'SnefyLDL'
    """
    asked = Asked(Path(folder), backbone, device, guides)
    for name, (module, kind) in COMPOSITES.items():
        if (asked.folder / name).is_file():
            return getattr(import_module(module), kind).load(asked.folder)
    config, arrays = read_model(asked.folder)
    kind = config["kind"]
    if kind == "Learner":
        for module in LEARNERS:
            import_module(f"snefy_ldl.{module}")
    model = getattr(import_module(KINDS[kind]), kind).unpack(config, arrays, asked)
    return import_module("snefy_ldl.auto").AutoLDL.around(model)


def save(model: Any, kind: str, folder: str | Path) -> Path:
    """Write a fitted estimator into a folder, replacing a model that is there.

    Args:
        model: with ``pack``.
        kind: its name in :data:`KINDS`.
        folder: made if it is missing.

    Returns:
        The folder.
    """
    arrays: dict[str, Any] = {}
    description = model.pack(arrays)
    return write_model(Path(folder), {"kind": kind, **description}, arrays)


# -- folders -----------------------------------------------------------------------------------------------------------


def make_head(kind: str) -> dict[str, Any]:
    """Format and versions, which every JSON file starts with."""
    return {"format": kind, "format_version": FORMAT_VERSION, "library_version": __version__}


def check_version(config: dict[str, Any], newest: int, folder: Path) -> None:
    """Raise unless this library reads the version of a file's JSON; ``newest`` is the newest that it reads."""
    version = config.get("format_version")
    whole = isinstance(version, int) and not isinstance(version, bool) and version >= 1
    require(whole, folder, f"format_version is {version!r}, not a whole number >= 1.")
    if version > newest:  # type: ignore[operator]
        raise ModelFileError(
            f"{folder} has format version {version}, newer than {newest}, which this library reads. Upgrade "
            f"snefy-ldl (it was written by {config.get('library_version')})."
        )


def _check_name(name: Any, pattern: str, path: Path) -> None:
    """Raise unless a binary file's name looks like a pattern with a checksum, which cannot lead out of its folder."""
    wanted = re.escape(pattern).replace(r"\*", "[0-9a-f]+")
    fits = isinstance(name, str) and re.fullmatch(wanted, name) is not None
    require(fits, path, f"the file it names is {name!r}, not {pattern}.")


def write_model(folder: Path, description: dict[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Write a JSON file and the arrays that it describes into a folder, all or nothing.

    Args:
        folder: made if it is missing.
        description: what the JSON holds besides format, versions and checksum; plain values only.
        arrays: tensors or C-ordered arrays by name.

    Returns:
        The folder.

    Raises:
        ModelFileError: the place is a file, or another process has been writing for a minute.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = write_model(Path(place) / "m", {"kind": "SnefyLDL"}, {"w": torch.ones(2)})
        ...     config, tensors = read_model(folder)
        >>> config["kind"], tensors["w"].tolist()
        ('SnefyLDL', [1.0, 1.0])
    """
    if folder.is_file():
        raise ModelFileError(f"{folder} is a file; a model is saved as a folder. Choose another name.")
    payload = format_tensors(arrays)

    def describe(name: str, checksum: str) -> dict[str, Any]:
        return make_head(FORMAT) | {"weights": {"file": name, "sha256": checksum}} | description

    with only_writer(folder) as alone:
        remove_leftovers(folder, CALIBRATION_FILE, WEIGHTS)
        if alone:
            (folder / EARLIER_TEMPORARY).unlink(missing_ok=True)
        checksum = write_pair(folder, CONFIG, WEIGHTS, 12, payload, describe)
        _remove_outdated(folder, checksum)
    return folder


def _remove_outdated(folder: Path, checksum: str) -> None:
    """Remove a calibration of other weights, and the arrays of an earlier version's learner."""
    calibration = folder / CALIBRATION_FILE
    if calibration.exists():
        try:
            kept = read_json(calibration)["weights_sha256"] == checksum
        except (ModelFileError, KeyError, TypeError):  # it cannot be read
            kept = False
        if not kept:
            calibration.unlink()
    for old in folder.glob(EARLIER_ARRAYS):
        with contextlib.suppress(PermissionError):  # Windows keeps a file that is being read
            old.unlink(missing_ok=True)


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, checked for format, version and kind; that of an earlier version in today's form.

    Args:
        folder: where the model is.

    Returns:
        Everything the file holds.

    Raises:
        ModelFileError: the folder or the file is missing, damaged, foreign, or of a newer version.
    """
    if not folder.is_dir():
        message = f"{folder} is not a folder; a model is saved as one"
        command = f"{message} (snefy-ldl fit TABLE --out FOLDER)."
        raise ModelFileError(f"{message} (model.save(folder)).", command=command)
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or config.get("format") not in (FORMAT, LEARNER_FORMAT):
        raise ModelFileError(f"{path} was not written by this library: no {FORMAT!r} in it.")
    check_version(config, FORMAT_VERSION, folder)
    if config["format"] == LEARNER_FORMAT:
        config["weights"] = {"file": config.get("arrays"), "sha256": config.get("arrays_sha256")}
        config["kind"] = "Learner"
    entry: Any = config.get("weights")
    holds = isinstance(entry, dict) and isinstance(entry.get("sha256"), str)
    require(holds, path, "it names no weights file with a checksum.")
    _check_name(entry.get("file"), WEIGHTS if config["format"] == FORMAT else EARLIER_ARRAYS, path)
    kind = config.setdefault("kind", "SnefyLDL")  # 0.1 wrote no kind
    require(isinstance(kind, str) and kind in KINDS, path, f"kind is {kind!r}, which is not known here.")
    return config


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's JSON and its arrays, the latter checked by their checksum.

    Args:
        folder: where the model is.

    Returns:
        Everything the JSON holds, and tensors by name.

    Raises:
        ModelFileError: a file is missing, damaged, foreign, or of a newer version.
    """

    def read() -> tuple[dict[str, Any], dict[str, Any]]:
        config = read_config(folder)
        path = folder / config["weights"]["file"]
        return config, dict(parse_tensors(read_checked(path, config["weights"]["sha256"]), path))

    return read_whole(read)


@dataclass(frozen=True)
class Head:
    """The JSON of a model folder.

    Args:
        config: everything it holds.
        checksum: of the weights.
    """

    config: dict[str, Any]
    checksum: str

    @property
    def is_learner(self) -> bool:
        """Whether it is a learner, such as a LogRatioLDL."""
        return bool(self.config["kind"] == "Learner")

    @property
    def custom_backbone(self) -> bool:
        """Whether the model has a network of the user's own."""
        return not self.is_learner and bool(self.config["network"]["custom_backbone"])


def read_head(folder: Path) -> Head:
    """The JSON of a model folder, and the checksum of what it describes; raises as :func:`read_config` does."""
    config = read_config(folder)
    return Head(config, config["weights"]["sha256"])


# -- calibrations ------------------------------------------------------------------------------------------------------


def save_calibration(folder: Path, state: dict[str, Any]) -> Path:
    """Put a conformal calibration beside the model it was made with.

    Args:
        folder: of the model.
        state: plain values (``ConformalIntervals.to_dict``).

    Returns:
        The file.

    Raises:
        ModelFileError: where the folder holds no model.
    """
    read_head(folder)  # no lock, and no folder, where there is no model
    path = folder / CALIBRATION_FILE
    with only_writer(folder):
        remove_leftovers(folder, CONFIG, WEIGHTS)
        write_json(path, {"weights_sha256": read_head(folder).checksum, "intervals": state})
    return path


def load_calibration(folder: Path) -> dict[str, Any] | None:
    """The calibration of a saved model.

    Args:
        folder: of the model.

    Returns:
        What :func:`save_calibration` was given, or None where there is none.

    Raises:
        ModelFileError: where the file is damaged, or was made for other weights.
    """
    path = folder / CALIBRATION_FILE
    for look in range(LOOKS):
        if not path.exists():
            return None
        try:
            content = read_json(path)
        except ModelFileError:
            if not path.exists():
                return None
            raise
        head = read_head(folder)
        state = check_calibration(content, head.config.get("network"), path)
        if content["weights_sha256"] == head.checksum:
            return state
        if look + 1 < LOOKS:
            time.sleep(PAUSE)  # a writer may just be replacing both
    raise ModelFileError(f"{path} was made for other weights. Make it again with snefy-ldl conformalize.")
