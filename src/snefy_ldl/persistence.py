"""Model folders, and the one registry of what reads and writes them; nothing in a folder is executed.

A folder holds a JSON file and a safetensors file, written all or nothing. The JSON names the weights file and its
checksum, and is renamed into place last: at whatever moment a crash comes, the folder holds the old model or the new
one. Its entries are checked before anything is built from them.

Every estimator has one ``pack(arrays)``, which returns plain JSON values and puts its arrays into a dict, and one
``unpack(config, arrays, asked)``, which is the way back; :data:`KINDS` names the classes. A new estimator needs an
entry there, a new fitted attribute a line in each of the two methods.
"""

from __future__ import annotations

import fnmatch
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from snefy_ldl._internal.files import (
    LOOKS,
    PAUSE,
    format_tensors,
    read_json,
    read_pair,
    remove_stale,
    write_json,
    write_pair,
)
from snefy_ldl._internal.limits import LARGEST_FEATURE
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
#: Module and class of what is several folders, by the name of the JSON file next to them.
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


def read_description(path: Path, *formats: str) -> dict[str, Any]:
    """The JSON of one of our files, checked for its format and version."""
    config = read_json(path)
    if not isinstance(config, dict) or config.get("format") not in formats:
        raise ModelFileError(f"{path} was not written by this library: no {formats[0]!r} in it.")
    version = config.get("format_version")
    require(is_whole(version), path.parent, f"format_version is {version!r}, not a whole number >= 1.")
    if version > FORMAT_VERSION:  # type: ignore[operator]
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

    def describe(name: str, checksum: str) -> dict[str, Any]:
        return make_head(FORMAT) | {"weights": {"file": name, "sha256": checksum}} | description

    checksum = write_pair(folder, CONFIG, WEIGHTS, 12, format_tensors(arrays), describe)
    calibration = folder / CALIBRATION_FILE
    if calibration.exists():
        try:
            fits = read_json(calibration)["weights_sha256"] == checksum
        except (ModelFileError, KeyError, TypeError):  # it cannot be read
            fits = False
        if not fits:
            calibration.unlink(missing_ok=True)
    remove_stale(folder, EARLIER_ARRAYS, seconds=0.0)
    return folder


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
    return read_pair(folder, lambda: read_config(folder))


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
    write_json(path, {"weights_sha256": read_config(folder)["weights"]["sha256"], "intervals": state})
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
    for look in range(LOOKS):
        if not path.exists():
            return None
        content, config = read_json(path), read_config(folder)
        state = check_calibration(content, config.get("network"), path)
        if content["weights_sha256"] == config["weights"]["sha256"]:
            return state
        if look + 1 < LOOKS:
            time.sleep(PAUSE)  # a writer may just be replacing both
    raise ModelFileError(f"{path} was made for other weights. Make it again with snefy-ldl conformalize.")


# -- what the JSON of a model folder may hold --------------------------------------------------------------------------

#: A type, a set of words, a predicate, a list with the rule of its entries, or a tuple of rules, one of which holds.
Rule = Any


def is_whole(value: Any, low: int = 1) -> bool:
    """Whether a value is a whole number from ``low`` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _from(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _number(value) and low <= value <= high


COUNT, FROM_ZERO = is_whole, lambda value: is_whole(value, 0)
FEATURE, SHARE = _from(-LARGEST_FEATURE, LARGEST_FEATURE), _from(0.0, 1.0)
LEVEL = _from(5e-324, math.nextafter(1.0, 0.0))
NAMES: Rule = [str]
DATE = re.compile(r"\d{4}-\d{2}-\d{2}( \d{2}:\d{2}:\d{2}(\.\d+)?)?").fullmatch

#: The rule of each place; a ``?`` marks keys that models of 0.1 lack.
DESCRIPTION: dict[str, Rule] = {
    "parameters.hidden_sizes": [COUNT],
    "parameters.device": str,
    "network.n_members": COUNT,
    "network.n_neurons": COUNT,
    "network.n_labels": lambda value: is_whole(value, 2),
    "network.n_readouts": COUNT,
    "network.exponent_form": {"log", "clip"},
    "network.balanced": bool,
    "network.custom_backbone": bool,
    "network.width": COUNT,
    "network.n_inputs?": (COUNT, None),
    "label_names": NAMES,
    "labels_were_named": bool,
    "feature_names": (NAMES, None),
    "n_features": (COUNT, None),
    "zero_policy.mode": {"shrink", "error", "floor"},
    "zero_policy.floor": SHARE,
    "scaling": {"unit", "pooled", "none"},
    "training.rows": FROM_ZERO,
    "training.epochs": FROM_ZERO,
    "training.seconds": _number,
    "training.device": str,
    "training.best_epoch": [lambda value: is_whole(value, -1)],
    "training.validation_loss": [(_number, None)],
    "history": [dict],
    "inputs?": {"features", "guides", "both"},
    "candidates?": [dict],
    "guides?": (dict, None),
    "columns?": (dict, None),
    "seen_rows?": COUNT,
    "effects?": (dict, None),
    "effects.n_columns?": COUNT,
}
CANDIDATE: dict[str, Rule] = {
    "name": str,
    "outcome": str,
    "log_likelihood": (_number, None),
    "epochs": FROM_ZERO,
    "networks": FROM_ZERO,
    "seconds": _number,
}
GUIDES: dict[str, Rule] = {"floor": _from(5e-324, sys.float_info.max), "learners": [dict]}
ENCODER: dict[str, Rule] = {"named": bool, "width": COUNT}
FILLER: dict[str, Rule] = {"fills": [FEATURE], "indicators": [FROM_ZERO]}
TABLE: dict[str, Rule] = {"columns": [dict], "notes": NAMES}
#: Fields of each kind of column (:mod:`snefy_ldl.datasets.recognise`).
COLUMNS: dict[str, dict[str, Rule]] = {
    "number": {"name": str, "fill": FEATURE, "indicator": bool, "gaps": bool},
    "category": {"name": str, "levels": NAMES, "other": bool, "share": SHARE, "gaps": bool, "pooled": NAMES},
    "date": {
        "name": str,
        "form": (str, None),
        "start": lambda value: isinstance(value, str) and DATE(value),
        "parts": [{"year", "day of year", "days"}],
        "fills": [FEATURE],
        "indicator": bool,
        "gaps": bool,
    },
    "left out": {"name": str, "reason": str, "example": str},
}
CALIBRATION: dict[str, Rule] = {
    "weights_sha256": str,
    "intervals.kind": {"intervals", "new group intervals"},
    "intervals.method": str,
    "intervals.confidence_level": (LEVEL, lambda value: bool(value) and _fits(value, [LEVEL])),
    "intervals.simultaneous": bool,
    "intervals.n_labels": COUNT,
    "intervals.folds": ([FROM_ZERO], None),
    "intervals.calibration.shape": [COUNT],
    "intervals.calibration.scores": [(_number, None)],
    "intervals.calibration.groups": (list, None),
    "intervals.calibration.weights": ([_number], None),
    "intervals.calibration.small_groups": str,
}


def require(holds: bool, path: Path, words: str) -> None:
    """Raise unless something holds that every written file fulfils."""
    if not holds:
        raise ModelFileError(f"{path} is damaged: {words}")


def _fits(value: Any, rule: Rule) -> bool:
    if isinstance(rule, tuple):
        return any(_fits(value, one) for one in rule)
    if isinstance(rule, list):
        return isinstance(value, list) and all(_fits(entry, rule[0]) for entry in value)
    if isinstance(rule, set):
        return isinstance(value, str) and value in rule
    if isinstance(rule, type):
        return isinstance(value, rule)
    return value is None if rule is None else bool(rule(value))


def check_entries(content: Any, rules: Mapping[str, Rule], path: Path, prefix: str = "") -> None:
    """Raise at the first place that breaks its rule."""
    for place, rule in rules.items():
        value, name = content, place.rstrip("?")
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                require(name != place, path, f"{prefix}{name} is missing.")
                break
            value = value[key]
        else:
            shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
            require(_fits(value, rule), path, f"{prefix}{name} is {shown}, which no fit writes.")


def check_description(config: dict[str, Any], path: Path) -> None:
    """Raise unless the JSON of a SnefyLDL describes a model: every place there, of its kind, and fitting the others."""
    check_entries(config, DESCRIPTION, path)
    for k, candidate in enumerate(config.get("candidates", [])):
        check_entries(candidate, CANDIDATE, path, f"candidates.{k}.")
    network, features, names = config["network"], config["n_features"], config["feature_names"]
    labels, given, floor = network["n_labels"], len(config["label_names"]), config["zero_policy"]["floor"]
    require(given == labels, path, f"{given} label_names for {labels} labels.")
    n_names = features if names is None else len(names)
    require(n_names == features, path, f"{n_names} feature_names for {features} features.")
    require(floor < 1.0 / labels, path, "zero_policy.floor is not below an even share of the labels.")
    inputs, guides = config.get("inputs", "features"), config.get("guides")
    if network["custom_backbone"]:
        plain = inputs == "features" and guides is None and config.get("columns") is None
        require(plain, path, f"a custom backbone sees what it is given, not {inputs!r}.")
        return
    require(features is not None, path, "n_features is null, without a custom backbone.")
    there = "there are guides" if inputs == "features" else "there are no guides"
    require((guides is None) == (inputs == "features"), path, f"inputs is {inputs!r}, and {there}.")
    read = made = n_encoded(config, path)
    if guides is not None:
        check_entries(guides, GUIDES, path, "guides.")
        require(guides["floor"] < 1.0 / labels, path, f"guides.floor is {guides['floor']}, not below 1/{labels}.")
        made = len(guides["learners"]) * labels + (read if inputs == "both" else 0)
    made += (config.get("effects") or {}).get("n_columns", 0)
    seen = network.get("n_inputs") or features
    require(seen == made, path, f"its network has {seen} inputs, and the rows have {made}.")
    last = ([*config["parameters"]["hidden_sizes"]] or [seen])[-1]
    require(last == network["width"], path, f"width is {network['width']}, and the last layer has {last}.")


def n_encoded(config: dict[str, Any], path: Path) -> int:
    """How many numbers the columns of a table become; raises unless the JSON describes each column."""
    encoder, features = config.get("columns"), config["n_features"]
    if encoder is None:
        return int(features)
    check_entries(encoder, ENCODER, path, "columns.")
    if not encoder["named"]:
        check_entries(encoder, FILLER, path, "columns.")
        given, where = len(encoder["fills"]), encoder["indicators"]
        width, fits = given + len(where), len(set(where)) == len(where) and all(place < given for place in where)
    else:
        check_entries(encoder, TABLE, path, "columns.")
        given, width, fits = len(encoder["columns"]), 0, True
        for k, column in enumerate(encoder["columns"]):
            kind = column.get("kind")
            require(kind in COLUMNS, path, f"columns.{k} is of the unknown kind {kind!r}.")
            check_entries(column, COLUMNS[kind], path, f"columns.{k}.")
            fits = fits and len(column.get("parts", [])) == len(column.get("fills", []))
            width += _column_width(column)
    fits = fits and given == features and width == encoder["width"]
    named = f"{features} and {encoder['width']}"
    require(fits, path, f"{given} columns become {width} numbers, not the {named} it names.")
    return int(width)


def _column_width(column: dict[str, Any]) -> int:
    """How many numbers a column becomes."""
    if column["kind"] == "category":
        levels = len(column["levels"])
        return 1 if levels == 2 and not column["other"] else levels + int(column["other"])
    if column["kind"] == "left out":
        return 0
    return len(column.get("parts", [""])) + int(column["indicator"])


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], free: tuple[str, ...], folder: Path
) -> None:
    """Raise unless weights have the wanted names and shapes; names that match a free pattern may be there, too."""
    start = f"the weights in {folder} do not fit the model its JSON describes"
    for name, shape in wanted.items():
        if name not in shapes:
            raise ModelFileError(f"{start}: {name} is missing.")
        if tuple(shapes[name]) != shape:
            raise ModelFileError(f"{start}: {name} has shape {tuple(shapes[name])}, not {shape}.")
    for name in shapes:
        if name not in wanted and not any(fnmatch.fnmatchcase(name, pattern) for pattern in free):
            raise ModelFileError(f"{start}: {name} is unknown.")


def check_calibration(content: Any, network: Any, path: Path) -> dict[str, Any]:
    """The intervals of a calibration file, as ``ConformalIntervals.from_dict`` takes them; ``network``: the model's."""
    holds = isinstance(content, dict) and isinstance(content.get("intervals"), dict)
    require(holds, path, "it holds no calibration. Make it again with snefy-ldl conformalize.")
    check_entries(content, CALIBRATION, path)
    state: dict[str, Any] = content["intervals"]
    table = state["calibration"]
    shape, rows = table["shape"], (table["shape"] or [0])[0]
    n_scores, n_labels = len(table["scores"]), state["n_labels"]
    require(math.prod(shape) == n_scores, path, f"{n_scores} scores for the shape {shape}.")
    for name, entries in (("groups", table["groups"]), ("weights", table["weights"]), ("folds", state["folds"])):
        n_entries = rows if entries is None else len(entries)
        require(n_entries == rows, path, f"{n_entries} {name} for {rows} rows.")
    labels = network.get("n_labels", n_labels) if isinstance(network, dict) else n_labels
    require(n_labels == labels, path, f"n_labels is {n_labels}, that of the model {labels}.")
    return state
