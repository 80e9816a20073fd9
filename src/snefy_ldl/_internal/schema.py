"""What the JSON of a model folder may hold: a rule for every place, checked before anything is built from it."""

from __future__ import annotations

import fnmatch
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl.errors import ModelFileError

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
    scores = all(value.get(name) is None or _number(value[name]) for name in ("log_likelihood",))
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


# -- the description of a SnefyLDL -------------------------------------------------------------------------------------


def check_description(config: dict[str, Any], path: Path) -> None:
    """Raise unless the JSON of a SnefyLDL describes a model: every place there, of its kind, and fitting the others."""
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
    """How many numbers the columns of a table become; raises unless the JSON describes each column."""
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


# -- calibrations ------------------------------------------------------------------------------------------------------


def check_calibration(content: Any, network: Any, path: Path) -> dict[str, Any]:
    """The intervals of a calibration file, as ``ConformalIntervals.from_dict`` takes them; ``network``: the model's."""
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
