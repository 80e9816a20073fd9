"""Model folders: a JSON file and a safetensors file, written all or nothing, read without running code.

The JSON names its weights file and the checksum of that file, and is renamed into place last: at whatever moment a
crash comes, the folder holds the old model or the new one. Its entries are checked before anything is built from them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as format_arrays

from snefy_ldl._internal.files import (
    LOOKS,
    PAUSE,
    format_tensors,
    is_empty,
    only_writer,
    parse_tensors,
    read_checked,
    read_json,
    read_whole,
    remove_leftovers,
    write_json,
    write_pair,
)
from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl._internal.version import __version__
from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from torch import Tensor

Rule = tuple[Callable[[Any], bool], str]


# -- rules -------------------------------------------------------------------------------------------------------------


def _whole(value: Any, low: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _feature(value: Any) -> bool:
    return _number(value) and abs(value) <= LARGEST_FEATURE


def _level(value: Any) -> bool:
    return _number(value) and 0.0 < value < 1.0


def _each(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(rule(item) for item in value)


def _optional(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or rule(value)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _one_of(*words: str) -> Rule:
    return (lambda value: isinstance(value, str) and value in words), f"one of {', '.join(words)}"


def _date(value: str) -> bool:
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}( \d{2}:\d{2}:\d{2}(\.\d+)?)?", value) is not None


def _is_candidate(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    words = all(isinstance(value.get(name), str) for name in ("name", "outcome"))
    scores = all(value.get(name) is None or _number(value[name]) for name in ("log_likelihood", "kl"))
    sizes = all(_whole(value.get(name), 0) for name in ("epochs", "networks"))
    return words and scores and sizes and _number(value.get("seconds"))


COUNT: Rule = (_whole, "a whole number >= 1")
FLAG: Rule = (_is(bool), "true or false")
TEXT: Rule = (_is(str), "a text")
OBJECT: Rule = (_is(dict), "an object")
NAMES: Rule = (_each(_is(str)), "a list of names")

#: What :func:`check_description` asks of each place; a ``?`` marks keys that models of 0.1.0 lack.
DESCRIPTION: dict[str, Rule] = {
    "parameters": OBJECT,
    "parameters.hidden_sizes": (_each(_whole), "a list of whole numbers >= 1"),
    "parameters.device": TEXT,
    "network": OBJECT,
    "network.n_members": COUNT,
    "network.n_neurons": COUNT,
    "network.n_labels": (lambda value: _whole(value, 2), "a whole number >= 2"),
    "network.n_readouts": COUNT,
    "network.exponent_form": _one_of("log", "clip"),
    "network.balanced": FLAG,
    "network.custom_backbone": FLAG,
    "network.width": COUNT,
    "network.n_inputs?": (_optional(_whole), "a whole number >= 1 or null"),
    "label_names": NAMES,
    "labels_were_named": FLAG,
    "feature_names": (_optional(_each(_is(str))), "a list of names or null"),
    "n_features": (_optional(_whole), "a whole number >= 1 or null"),
    "zero_policy": OBJECT,
    "zero_policy.mode": _one_of("shrink", "error", "floor"),
    "zero_policy.floor": (lambda value: _number(value) and 0.0 <= value < 1.0, "a number from 0 to below 1"),
    "scaling": _one_of("unit", "pooled", "none"),
    "training": OBJECT,
    "training.rows": (lambda value: _whole(value, 0), "a whole number"),
    "training.epochs": (lambda value: _whole(value, 0), "a whole number"),
    "training.seconds": (_number, "a number"),
    "training.device": TEXT,
    "training.best_epoch": (_each(lambda value: _whole(value, -1)), "a list of whole numbers"),
    "training.validation_loss": (_each(_optional(_number)), "a list of numbers"),
    "history": (_each(_is(dict)), "a list of objects"),
    "inputs?": _one_of("features", "guides", "both"),
    "candidates?": (
        _each(_is_candidate),
        "a list of what was tried, each with its name, scores, epochs, networks, seconds and outcome",
    ),
    "guides?": (_optional(_is(dict)), "an object or null"),
    "columns?": (_optional(_is(dict)), "an object or null"),
    "seen_rows?": COUNT,
    "self_check?": (_optional(_is(dict)), "an object or null"),
    "effects?": (_optional(_is(dict)), "an object or null"),
    "effects.n_columns?": COUNT,
}
ENCODER: dict[str, Rule] = {"named": FLAG, "width": COUNT}
FILLER: dict[str, Rule] = {
    "fills": (_each(_feature), "a list of numbers"),
    "indicators": (_each(lambda value: _whole(value, 0)), "a list of whole numbers"),
}
TABLE: dict[str, Rule] = {"columns": (_each(_is(dict)), "a list of objects"), "notes": NAMES}
#: Fields of each kind of column (:mod:`snefy_ldl.datasets.recognise`).
COLUMNS: dict[str, dict[str, Rule]] = {
    "number": {"name": TEXT, "fill": (_feature, "a number"), "indicator": FLAG, "gaps": FLAG},
    "category": {
        "name": TEXT,
        "levels": NAMES,
        "other": FLAG,
        "share": (lambda value: _number(value) and 0.0 <= value <= 1.0, "a number from 0 to 1"),
        "gaps": FLAG,
        "pooled": NAMES,
    },
    "date": {
        "name": TEXT,
        "form": (_optional(_is(str)), "a text or null"),
        "start": (lambda value: isinstance(value, str) and _date(value), "a date"),
        "parts": (_each(lambda value: value in ("year", "day of year", "days")), "a list of parts of dates"),
        "fills": (_each(_feature), "a list of numbers"),
        "indicator": FLAG,
        "gaps": FLAG,
    },
    "left out": {"name": TEXT, "reason": TEXT, "example": TEXT},
}
GUIDES: dict[str, Rule] = {
    "floor": (lambda value: _number(value) and value > 0.0, "a number above 0"),
    "learners": (_each(_is(dict)), "a list of objects"),
}
CALIBRATION: dict[str, Rule] = {
    "weights_sha256": TEXT,
    "intervals": OBJECT,
    "intervals.kind": _one_of("intervals", "new group intervals"),
    "intervals.method": TEXT,
    "intervals.confidence_level": (
        lambda value: _level(value) or (bool(value) and _each(_level)(value)),
        "a level between 0 and 1, or a list of them",
    ),
    "intervals.simultaneous": FLAG,
    "intervals.n_labels": COUNT,
    "intervals.folds": (_optional(_each(lambda value: _whole(value, 0))), "a list of whole numbers or null"),
    "intervals.calibration": OBJECT,
    "intervals.calibration.shape": (_each(_whole), "a list of whole numbers >= 1"),
    "intervals.calibration.scores": (_each(_optional(_number)), "a list of numbers"),
    "intervals.calibration.groups": (_optional(_is(list)), "a list or null"),
    "intervals.calibration.weights": (_optional(_each(_number)), "a list of numbers or null"),
    "intervals.calibration.small_groups": TEXT,
}


def require(holds: bool, path: Path, words: str) -> None:
    """Raise unless something holds that every written file fulfils."""
    if not holds:
        raise ModelFileError(f"{path} is damaged: {words}")


def _check(content: Any, rules: Mapping[str, Rule], path: Path, prefix: str = "") -> None:
    """Raise at the first place that breaks its rule."""
    for place, (is_right, words) in rules.items():
        value, optional = content, place.endswith("?")
        for key in place.rstrip("?").split("."):
            if not isinstance(value, dict) or key not in value:
                if optional:
                    break
                raise ModelFileError(f"{path} is damaged: {prefix}{place} is missing.")
            value = value[key]
        else:
            if not is_right(value):
                shown = repr(value)
                shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
                raise ModelFileError(f"{path} is damaged: {prefix}{place.rstrip('?')} is {shown}, not {words}.")


# -- the head of every file --------------------------------------------------------------------------------------------


def check_version(config: dict[str, Any], newest: int, folder: Path) -> None:
    """Raise unless this library reads the file's version.

    Args:
        config: The JSON.
        newest: The newest version that is read.
        folder: For the message.

    Raises:
        ModelFileError: The version is no whole number from 1 to the newest.
    """
    version = config.get("format_version")
    require(_whole(version), folder, f"format_version is {version!r}, not a whole number >= 1.")
    if version > newest:  # type: ignore[operator]
        raise ModelFileError(
            f"{folder} has format version {version}, newer than {newest}, which this library reads. Upgrade "
            f"snefy-ldl (it was written by {config.get('library_version')})."
        )


def check_name(name: Any, pattern: str, path: Path) -> str:
    """The name of a binary file, which cannot lead out of its folder.

    Args:
        name: What the JSON says.
        pattern: What it must look like, a ``*`` in the place of a checksum.
        path: Of the JSON, for the message.

    Returns:
        The name.

    Raises:
        ModelFileError: It is another kind of name.

    >>> check_name("weights-0a1b.safetensors", "weights-*.safetensors", Path("model.json"))
    'weights-0a1b.safetensors'
    """
    wanted = re.escape(pattern).replace(r"\*", "[0-9a-f]+")
    fits = isinstance(name, str) and re.fullmatch(wanted, name) is not None
    require(fits, path, f"the file it names is {name!r}, not {pattern}.")
    return str(name)


def check_description(config: dict[str, Any], path: Path) -> None:
    """Raise unless a model's JSON describes a model, by itself.

    Args:
        config: The JSON.
        path: Of the file, for the message.

    Raises:
        ModelFileError: A place is missing, of another kind, or does not fit another place.
    """
    _check(config, DESCRIPTION, path)
    network, features, names = config["network"], config["n_features"], config["feature_names"]
    labels, given = network["n_labels"], len(config["label_names"])
    require(given == labels, path, f"{given} label_names for {labels} labels.")
    n_names = features if names is None else len(names)
    require(n_names == features, path, f"{n_names} feature_names for {features} features.")
    inputs, guides = config.get("inputs", "features"), config.get("guides")
    floor = config["zero_policy"]["floor"]
    require(floor < 1.0 / labels, path, "zero_policy.floor is not below an even share of the labels.")
    if network["custom_backbone"]:
        plain = inputs == "features" and guides is None and config.get("columns") is None
        require(plain, path, f"a custom backbone sees what it is given, not {inputs!r}.")
        return
    require(features is not None, path, "n_features is null, without a custom backbone.")
    seen, read = int(network.get("n_inputs") or features), n_encoded(config, path)
    require(guides is not None or inputs == "features", path, f"inputs is {inputs!r}, and there are no guides.")
    require(guides is None or inputs != "features", path, "inputs is 'features', and there are guides.")
    made = read if guides is None else _check_guides(config, path) + (read if inputs == "both" else 0)
    made += 0 if config.get("effects") is None else int(config["effects"].get("n_columns", 0))
    if seen != made:
        raise ModelFileError(
            f"the weights do not fit the model {path.name} describes: {seen} inputs, and the rows have {made}."
        )
    last = ([*config["parameters"]["hidden_sizes"]] or [seen])[-1]
    require(last == network["width"], path, f"width is {network['width']}, and the last layer has {last}.")


def _check_guides(config: dict[str, Any], path: Path) -> int:
    """How many numbers the predictions of the guides are; raises unless the JSON says what the guides are."""
    guides, labels = config["guides"], config["network"]["n_labels"]
    _check(guides, GUIDES, path, "guides.")
    floor = guides["floor"]
    require(floor < 1.0 / labels, path, f"guides.floor is {floor}, not below 1/{labels}.")
    return len(guides["learners"]) * int(labels)


def n_encoded(config: dict[str, Any], path: Path) -> int:
    """How many numbers the columns of a table become.

    Args:
        config: The JSON, with ``columns`` and ``n_features``.
        path: Of the file, for the message.

    Returns:
        The number of features that learners and networks see.

    Raises:
        ModelFileError: The JSON does not say what each column is.
    """
    encoder, features = config.get("columns"), config["n_features"]
    if encoder is None:
        return int(features)
    _check(encoder, ENCODER, path, "columns.")
    if not encoder["named"]:
        _check(encoder, FILLER, path, "columns.")
        given, where = len(encoder["fills"]), encoder["indicators"]
        width = given + len(where)
        fits = len(set(where)) == len(where) and all(place < given for place in where)
    else:
        _check(encoder, TABLE, path, "columns.")
        given, width, fits = len(encoder["columns"]), 0, True
        for k, column in enumerate(encoder["columns"]):
            kind = column.get("kind")
            require(kind in COLUMNS, path, f"columns.{k} is of the unknown kind {kind!r}.")
            _check(column, COLUMNS[kind], path, f"columns.{k}.")
            fits = fits and len(column.get("parts", [])) == len(column.get("fills", []))
            width += _column_width(column)
    fits = fits and given == features and width == encoder["width"]
    named = f"{features} and {encoder['width']}"
    require(fits, path, f"{given} columns become {width} numbers, not the {named} it names.")
    return int(width)


def _column_width(column: dict[str, Any]) -> int:
    """How many numbers a column becomes."""
    if column["kind"] == "number":
        return 1 + int(column["indicator"])
    if column["kind"] == "category":
        levels = len(column["levels"])
        return 1 if levels == 2 and not column["other"] else levels + int(column["other"])
    return len(column["parts"]) + int(column["indicator"]) if column["kind"] == "date" else 0


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], free: tuple[str, ...], folder: Path
) -> None:
    """Raise unless the weights are those that the JSON describes, before room is made for any.

    Args:
        shapes: Of the weights in the file, by name.
        wanted: Of the weights that must be there.
        free: Patterns of names that may be there besides.
        folder: For the message.

    Raises:
        ModelFileError: A weight is missing, of another shape, or unknown.
    """
    start = f"the weights in {folder} do not fit the model its JSON describes"
    for name, shape in wanted.items():
        if name not in shapes:
            raise ModelFileError(f"{start}: {name} is missing.")
        if tuple(shapes[name]) != shape:
            raise ModelFileError(f"{start}: {name} has shape {tuple(shapes[name])}, not {shape}.")
    for name in shapes:
        if name not in wanted and not any(fnmatch.fnmatchcase(name, pattern) for pattern in free):
            raise ModelFileError(f"{start}: {name} is unknown.")


# -- calibrations ------------------------------------------------------------------------------------------------------


def check_calibration(content: Any, network: Any, path: Path) -> dict[str, Any]:
    """The intervals of a calibration file.

    Args:
        content: The JSON.
        network: That of the model beside it.
        path: Of the file, for the message.

    Returns:
        What ``ConformalIntervals.from_dict`` takes.

    Raises:
        ModelFileError: A place is missing, of another kind, or does not fit another place.
    """
    again = "Make it again with snefy-ldl conformalize."
    holds = isinstance(content, dict) and isinstance(content.get("intervals"), dict)
    require(holds, path, f"it holds no calibration. {again}")
    _check(content, CALIBRATION, path)
    state: dict[str, Any] = content["intervals"]
    table = state["calibration"]
    shape, rows = table["shape"], (table["shape"] or [0])[0]
    n_scores, n_labels = len(table["scores"]), state["n_labels"]
    require(math.prod(shape) == n_scores, path, f"{n_scores} scores for the shape {shape}. {again}")
    for name, entries in (("groups", table["groups"]), ("weights", table["weights"]), ("folds", state["folds"])):
        n_entries = rows if entries is None else len(entries)
        require(n_entries == rows, path, f"{n_entries} {name} for {rows} rows. {again}")
    labels = network.get("n_labels", n_labels) if isinstance(network, dict) else n_labels
    require(n_labels == labels, path, f"n_labels is {n_labels}, that of the model {labels}. {again}")
    return state


FORMAT = "snefy-ldl model"
#: Of folders of learners, :class:`snefy_ldl.LogRatioLDL` among them.
LEARNER_FORMAT = "snefy_ldl.learner"
FORMAT_VERSION = 1
CONFIG = "model.json"
CALIBRATION_FILE = "calibration.json"
WEIGHTS = "weights-*.safetensors"
ARRAY_FILES = "arrays-*.safetensors"
#: Where 0.1.0 put weights before it knew their checksum.
EARLIER_TEMPORARY = ".weights.tmp.safetensors"


def make_head(kind: str) -> dict[str, Any]:
    """What every JSON file starts with.

    Args:
        kind: what the folder holds, in words that reading it checks.

    Returns:
        Format and versions.
    """
    return {"format": kind, "format_version": FORMAT_VERSION, "library_version": __version__}


def write_model(folder: Path, description: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a model into a folder, replacing one that is there.

    Args:
        folder: made where it is missing.
        description: what the JSON holds beside format, versions and checksum; plain values only.
        tensors: the weights by name.

    Returns:
        The folder.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = write_model(Path(place) / "m", {"labels": 3}, {"w": torch.ones(2)})
        ...     config, tensors = read_model(folder)
        >>> config["labels"], tensors["w"].tolist()
        (3, [1.0, 1.0])
    """
    payload = format_tensors(tensors)

    def describe(name: str, checksum: str) -> dict[str, Any]:
        return make_head(FORMAT) | {"weights": {"file": name, "sha256": checksum}} | description

    with only_writer(folder) as alone:
        remove_leftovers(folder, CALIBRATION_FILE, WEIGHTS)
        if alone:
            (folder / EARLIER_TEMPORARY).unlink(missing_ok=True)
        checksum = write_pair(folder, CONFIG, WEIGHTS, 12, payload, describe)
        _remove_outdated(folder, checksum, ARRAY_FILES)
    return folder


def _remove_outdated(folder: Path, checksum: str, other_kind: str) -> None:
    """Remove a calibration of other weights, and the arrays of a model of the other kind that was there before."""
    calibration = folder / CALIBRATION_FILE
    if calibration.exists():
        try:
            kept = read_json(calibration)["weights_sha256"] == checksum
        except (ModelFileError, KeyError, TypeError):  # it cannot be read
            kept = False
        if not kept:
            calibration.unlink()
    for old in folder.glob(other_kind):
        with contextlib.suppress(PermissionError):  # Windows keeps a file that is being read
            old.unlink(missing_ok=True)


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, checked for format and version.

    Args:
        folder: where the model is.

    Returns:
        Everything the file holds.

    Raises:
        ModelFileError: where the folder or the file is missing, damaged, foreign, or of a newer version.
    """
    if not folder.is_dir():
        message = f"{folder} is not a folder; a model is saved as one"
        command = f"{message} (snefy-ldl fit TABLE --out FOLDER)."
        raise ModelFileError(f"{message} (model.save(folder)).", command=command)
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{folder / CONFIG} was not written by this library: no {FORMAT!r} in it.")
    check_version(config, FORMAT_VERSION, folder)
    entry = config.get("weights")
    holds = isinstance(entry, dict) and isinstance(entry.get("sha256"), str)
    require(holds, folder / CONFIG, "it names no weights file with a checksum.")
    check_name(config["weights"].get("file"), WEIGHTS, folder / CONFIG)
    return config


@dataclass(frozen=True)
class Head:
    """The JSON of a folder that holds a :class:`~snefy_ldl.SnefyLDL` or a learner.

    Args:
        config: Everything it holds.
        checksum: Of the weights or arrays.
        is_learner: Whether it is a learner.
    """

    config: dict[str, Any]
    checksum: str
    is_learner: bool

    @property
    def custom_backbone(self) -> bool:
        """Whether the model has a network of the user's own."""
        return not self.is_learner and bool(self.config["network"]["custom_backbone"])


def read_head(folder: Path) -> Head:
    """The JSON of a model folder of either kind, checked for format and version.

    Args:
        folder: where the model is.

    Returns:
        The JSON, and the checksum of what it describes.

    Raises:
        ModelFileError: where the folder or the file is missing, damaged, foreign, or of a newer version.
    """
    if (folder / CONFIG).is_file():
        config = read_json(folder / CONFIG)
        if isinstance(config, dict) and config.get("format") == LEARNER_FORMAT:
            check_version(config, FORMAT_VERSION, folder)
            checksum = config.get("arrays_sha256")
            if not isinstance(checksum, str):
                raise ModelFileError(f"{folder / CONFIG} is damaged: arrays_sha256 is missing.")
            return Head(config, checksum, True)
    config = read_config(folder)
    return Head(config, config["weights"]["sha256"], False)


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model's JSON and its weights, the latter checked by their checksum.

    Args:
        folder: where the model is.

    Returns:
        Everything the JSON holds, and the weights by name.

    Raises:
        ModelFileError: where a file is missing, damaged, foreign, or of a newer version.
    """

    def read() -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = read_config(folder)
        path = folder / config["weights"]["file"]
        return config, parse_tensors(read_checked(path, config["weights"]["sha256"]), path)

    return read_whole(read)


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
        remove_leftovers(folder, CONFIG, WEIGHTS, ARRAY_FILES)
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


def write_arrays(folder: Path, description: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Write the folder of a learner, replacing one that is there.

    Args:
        folder: Where; missing folders are made.
        description: Plain JSON values.
        arrays: C-ordered arrays by name.

    Raises:
        ModelFileError: The folder holds something else.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_arrays(Path(place) / "t", {"title": "two"}, {"x": np.ones(2)})
        ...     read_arrays(Path(place) / "t")
        ({'title': 'two'}, {'x': array([1., 1.])})
    """
    foreign = f"{folder} exists and holds no saved learner; it was left alone. Choose another folder."
    if folder.is_file():
        raise ModelFileError(foreign)
    payload = format_arrays(arrays)

    def describe(name: str, checksum: str) -> dict[str, Any]:
        return make_head(LEARNER_FORMAT) | {"arrays": name, "arrays_sha256": checksum, "learner": description}

    with only_writer(folder):
        if not (folder / CONFIG).is_file() and not is_empty(folder):
            raise ModelFileError(foreign)
        remove_leftovers(folder, ARRAY_FILES)
        checksum = write_pair(folder, CONFIG, ARRAY_FILES, 16, payload, describe)
        _remove_outdated(folder, checksum, WEIGHTS)


def read_arrays(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the folder of a learner back.

    Args:
        folder: Where.

    Returns:
        The description, and the arrays by name.

    Raises:
        ModelFileError: A folder that is missing, damaged, foreign or written by a newer version.
    """
    if folder.is_file():
        raise ModelFileError(f"{folder} is a file; a saved learner is a folder.")

    def read() -> tuple[dict[str, Any], dict[str, Any]]:
        config = read_json(folder / CONFIG)
        if not isinstance(config, dict) or config.get("format") != LEARNER_FORMAT:
            raise ModelFileError(f"{folder} was not written by a snefy_ldl learner.")
        check_version(config, FORMAT_VERSION, folder)
        path = folder / check_name(config.get("arrays"), ARRAY_FILES, folder / CONFIG)
        try:
            return config["learner"], parse_arrays(read_checked(path, config["arrays_sha256"]))
        except (KeyError, TypeError, SafetensorError) as error:
            raise ModelFileError(f"{folder} is damaged: {type(error).__name__}: {error}.") from None

    return read_whole(read)
