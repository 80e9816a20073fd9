"""Model folders, and the one registry of what reads and writes them; nothing in a folder is executed.

A folder holds a JSON file and a safetensors file, written all or nothing. The weights file is named by its content; the
JSON names it and its checksum, and is renamed into place last: after a crash at any moment, the folder holds the old
model or the new one. Many processes may write it, and read it meanwhile: a writer removes the weights that it replaced,
and others once they are a minute old. Both files are checked by their checksums before anything is built from them.

Every estimator has one ``pack(arrays)``, which returns plain JSON values and puts its arrays into a dict, and one
``unpack(config, arrays, asked)``, which is the way back; :data:`KINDS` names the classes. A new estimator needs an
entry there, a new fitted attribute a line in each of the two methods.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from snefy_ldl._internal import files
from snefy_ldl._internal.version import __version__
from snefy_ldl.errors import ModelFileError, SnefyError

__all__ = ["load", "load_calibration", "save_calibration"]

#: The module of each kind of estimator. Learners, LogRatioLDL among them, are one kind with their own registry.
KINDS = {
    "SnefyLDL": "snefy_ldl.snefy",
    "GroupedLDL": "snefy_ldl.grouped",
    "AnnotatorLDL": "snefy_ldl.annotators",
    "Learner": "snefy_ldl.learners.learner",
}
#: Module and class of what is several folders, by the name of the JSON file next to them.
COMPOSITES = {
    "pipeline.json": ("snefy_ldl.pipeline", "LDLPipeline"),
    "ensemble.json": ("snefy_ldl.ensemble", "DensityWeightedBagging"),
}
#: Module and class of estimators that a fitted model records it was part of.
WRAPPERS = (("snefy_ldl.auto", "AutoLDL"), ("snefy_ldl.grouped", "GroupedLDL"))
#: Modules whose import registers the classes of learners.
LEARNERS = ("learners", "logratio", "learners.enhancement")

FORMAT, FORMAT_VERSION = "snefy-ldl model", 1
#: The format of folders of learners before 0.2.
LEARNER_FORMAT = "snefy_ldl.learner"
CONFIG, CALIBRATION_FILE = "model.json", "calibration.json"
WEIGHTS, EARLIER_ARRAYS = "weights-*.safetensors", "arrays-*.safetensors"
#: Threads write folders one after the other: the weights that one replaces, another may just have named again.
WRITING = threading.Lock()

# -- what a caller may ask ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What the caller of :func:`load` gave with the folder.

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
    """Load a saved model of any estimator; nothing in the folder is executed.

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
    model = unpack(getattr(import_module(KINDS[kind]), kind), config, arrays, asked)
    for module, kind in WRAPPERS:
        model = getattr(import_module(module), kind).around(model)
    return model


def unpack(kind: Any, config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> Any:
    """The model of a class that a folder holds; any fault of the folder is one error that names it."""
    try:
        return kind.unpack(config, arrays, asked)
    except SnefyError as error:
        if str(asked.folder) in str(error):
            raise
        raise ModelFileError(f"{asked.folder} cannot be loaded: {error}") from None
    except Exception as error:  # what a damaged entry meets depends on the entry
        raise ModelFileError(f"{asked.folder} is damaged: {type(error).__name__} {error}.") from None


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


def read_description(path: Path, *formats: str) -> dict[str, Any]:
    """The JSON of one of our files, checked for its format and version."""
    config = files.read_json(path)
    if not isinstance(config, dict) or config.get("format") not in formats:
        raise ModelFileError(f"{path} was not written by this library: no {formats[0]!r} in it.")
    version: Any = config.get("format_version")
    whole = isinstance(version, int) and not isinstance(version, bool) and version >= 1
    require(whole, path.parent, f"format_version is {version!r}, not a whole number >= 1.")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{path.parent} has format version {version}, newer than {FORMAT_VERSION}, which this library reads. "
            f"Upgrade snefy-ldl (it was written by {config.get('library_version')})."
        )
    return config


def write_model(folder: Path, description: dict[str, Any], arrays: Mapping[str, Any]) -> Path:
    """Write a JSON file and the arrays that it describes into a folder, all or nothing.

    Args:
        folder: made if it is missing.
        description: what the JSON holds besides format, versions and checksum; plain values only.
        arrays: tensors or C-ordered arrays by name.

    Returns:
        The folder.

    Raises:
        ModelFileError: the place is a file.

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
    payload = files.format_tensors(arrays)
    checksum = hashlib.sha256(payload).hexdigest()
    name, calibration = WEIGHTS.replace("*", checksum[:12]), folder / CALIBRATION_FILE
    content = seal(make_head(FORMAT) | {"weights": {"file": name, "sha256": checksum}} | description)
    replaced, calibrated = None, False
    with WRITING:
        with suppress(ModelFileError, KeyError, TypeError):  # there is none, or it cannot be read
            replaced = files.read_json(folder / CONFIG)["weights"]["file"]
        files.write_bytes(folder / name, payload)
        files.write_json(folder / CONFIG, content)
        for old in folder.glob(WEIGHTS):
            if old.name != name:
                files.remove_stale(folder, old.name, seconds=0.0 if old.name == replaced else files.STALE)
        if not (folder / name).exists():  # another process has just replaced the same weights by others
            files.write_bytes(folder / name, payload)
    with suppress(ModelFileError, KeyError, TypeError):
        calibrated = files.read_json(calibration)["weights_sha256"] == checksum
    if not calibrated:
        calibration.unlink(missing_ok=True)
    files.remove_stale(folder, files.TEMPORARY.format(WEIGHTS))
    files.remove_stale(folder, EARLIER_ARRAYS, seconds=0.0)
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, checked; that of an earlier version in today's form.

    Args:
        folder: where the model is.

    Returns:
        Everything the file holds.

    Raises:
        ModelFileError: the folder or the file is missing, damaged, foreign, or of a newer version.
    """
    return _sealed(_parse_config(folder), folder)


def _sealed(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    earlier = config["format"] == LEARNER_FORMAT
    check_seal(config, folder / CONFIG, "0.1." if earlier else str(config.get("library_version")))
    kind = config.setdefault("kind", "SnefyLDL")  # 0.1 wrote no kind
    require(isinstance(kind, str) and kind in KINDS, folder / CONFIG, f"kind is {kind!r}, which is not known here.")
    return config


def _parse_config(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, checked for format, version and kind."""
    if not folder.is_dir():
        how = "model.save(folder), or snefy-ldl fit TABLE --out FOLDER"
        raise ModelFileError(f"{folder} is not a folder; a model is saved as one ({how}).")
    path = folder / CONFIG
    config = read_description(path, FORMAT, LEARNER_FORMAT)
    earlier = config["format"] == LEARNER_FORMAT
    if earlier:
        config["weights"] = {"file": config.get("arrays"), "sha256": config.get("arrays_sha256")}
        config["kind"] = "Learner"
    entry: Any = config.get("weights")
    holds = isinstance(entry, dict) and isinstance(entry.get("sha256"), str)
    require(holds, path, "it names no weights file with a checksum.")
    name, pattern = entry.get("file"), EARLIER_ARRAYS if earlier else WEIGHTS
    known = isinstance(name, str) and re.fullmatch(pattern.replace(".", r"\.").replace("*", "[0-9a-f]+"), name)
    require(known is not None and known is not False, path, f"the file it names is {name!r}, not {pattern}.")
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
    from safetensors import SafetensorError  # loads torch, which JSON files and tables do without
    from safetensors.torch import load as parse_tensors

    def read_both() -> tuple[dict[str, Any], Path, bytes]:  # quickly: a writer may replace both
        config = _parse_config(folder)
        path = folder / config["weights"]["file"]
        return config, path, files.read_regular(path)

    with files.damage(folder):
        config, path, content = files.retry(read_both, FileNotFoundError)
    if hashlib.sha256(content).hexdigest() != config["weights"]["sha256"]:
        raise ModelFileError(f"{path} is damaged: its checksum is not the one in the JSON file next to it.")
    with files.damage(path, SafetensorError, ValueError, KeyError):
        arrays = dict(parse_tensors(content))
    return _sealed(config, folder), arrays


# -- calibrations ------------------------------------------------------------------------------------------------------


def save_calibration(folder: Path, state: dict[str, Any]) -> Path:
    """Put a conformal calibration next to the model it was made with.

    Args:
        folder: of the model.
        state: plain values (``ConformalIntervals.to_dict``).

    Returns:
        The file.

    Raises:
        ModelFileError: the folder holds no model.
    """
    path = folder / CALIBRATION_FILE
    files.write_json(path, seal({"weights_sha256": read_config(folder)["weights"]["sha256"], "intervals": state}))
    return path


def load_calibration(folder: Path) -> dict[str, Any] | None:
    """The calibration of a saved model.

    Args:
        folder: of the model.

    Returns:
        What :func:`save_calibration` was given, or None if there is none.

    Raises:
        ModelFileError: the file is damaged, or was made for other weights.
    """
    path = folder / CALIBRATION_FILE
    for _ in range(files.LOOKS):
        if not path.exists():
            return None
        content, config = files.read_json(path), read_config(folder)
        holds = isinstance(content, dict) and isinstance(content.get("intervals"), dict)
        require(holds, path, "it holds no calibration. Make it again with snefy-ldl conformalize.")
        check_seal(content, path, str(config.get("library_version")))
        if content.get("weights_sha256") == config["weights"]["sha256"]:
            return dict(content["intervals"])
        time.sleep(files.PAUSE)  # a writer may just be replacing both
    raise ModelFileError(f"{path} was made for other weights. Make it again with snefy-ldl conformalize.")


# -- checks ------------------------------------------------------------------------------------------------------------


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """What a JSON file holds, and its checksum, by which a later change is noticed."""
    return content | {"checksum": _checksum(content)}


def check_seal(content: dict[str, Any], path: Path, version: str) -> None:
    """Raise unless the content of a file is what was written; version 0.1 wrote no checksum."""
    found = content.pop("checksum", None)
    if found is None and version.startswith("0.1."):
        return
    require(found == _checksum(content), path, "its checksum is not that of its content.")


def _checksum(content: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # names are texts, and tuples lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def require(holds: bool, path: Path, words: str) -> None:
    """Raise unless something holds that every written file fulfils."""
    if not holds:
        raise ModelFileError(f"{path} is damaged: {words}")
