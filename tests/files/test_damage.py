"""Damaged folders: every mistake is one ModelFileError of one sentence, before room is made for anything."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save

from commands import fail
from snefy_ldl import SnefyLDL
from snefy_ldl.errors import ModelFileError
from snefy_ldl.files.arrays import ArrayFolder
from snefy_ldl.files.models import load_calibration
from snefy_ldl.learners import SABFGS
from snefy_ldl.synthetic import make_city_districts

OLD = Path(__file__).parent / "fixtures" / "shares-0.1.0"
SMALL = {"n_neurons": 5, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "random_state": 0}
REMOVED = object()


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose network sees a guide, with a centre."""
    city = make_city_districts(n=60, random_state=0)
    X = pd.DataFrame(city.X, columns=city.feature_names)
    model = SnefyLDL(**SMALL, centre="geometric", guides=[SABFGS(max_iter=3)]).fit(X, city.D)
    folder = tmp_path_factory.mktemp("guided") / "m"
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    city = make_city_districts(n=60, random_state=0)
    model = SnefyLDL(**SMALL, guides=None).fit(pd.DataFrame(city.X, columns=city.feature_names), city.D)
    return model.save(tmp_path_factory.mktemp("plain") / "m")


def edit_json(file: Path, place: str, value: Any) -> None:
    """Put a value into a place of a JSON file."""
    content = json.loads(file.read_text())
    *path, last = place.split(".")
    part = content
    for key in path:
        part = part[key]
    if value is REMOVED:
        del part[last]
    else:
        part[last] = value
    file.write_text(json.dumps(content))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the weights, and let the JSON agree with them."""
    config = json.loads((folder / "model.json").read_text())
    path = folder / config["weights"]["file"]
    tensors = load_file(path)
    change(tensors)
    payload = save(tensors)
    path.write_bytes(payload)
    edit_json(folder / "model.json", "weights.sha256", hashlib.sha256(payload).hexdigest())


def one_sentence(folder: Path, match: str, **arguments: Any) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        SnefyLDL.load(folder, **arguments)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) - len(str(folder)) < 260


def copied(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "m"))


HUGE = 10**12


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("format_version", 0, "format_version is 0"),
        ("format_version", -1, "format_version is -1"),
        ("format_version", "1", "format_version is '1'"),
        ("format_version", True, "format_version is True"),
        ("format_version", 1.0, "format_version is 1.0"),
        ("format_version", 2, "newer"),
        ("weights", {"file": "x", "sha256": "y"}, "the file it names"),
        ("weights.file", "..", "the file it names"),
        ("weights.file", "/etc/passwd", "the file it names"),
        ("weights.file", "../weights-00.safetensors", "the file it names"),
        ("weights.file", 3, "the file it names"),
        ("weights", "weights-00.safetensors", "names no weights"),
        ("network.n_neurons", HUGE, "raw_exponents has shape"),
        ("network.n_readouts", HUGE, "readout has shape"),
        ("network.n_members", HUGE, "raw_exponents has shape"),
        ("network.n_members", "2", "n_members is '2'"),
        ("network.n_neurons", True, "n_neurons is True"),
        ("network.n_neurons", -3, "n_neurons is -3"),
        ("network.width", 7, "width is 7"),
        ("network.n_labels", 4, "label_names for 4 labels"),
        ("network.exponent_form", "square", "exponent_form"),
        ("network.n_inputs", HUGE, "inputs"),
        ("network.n_inputs", "5", "n_inputs is '5'"),
        ("network.presence", 1, "presence is 1"),
        ("network.presence", True, "raw_presence is missing"),
        ("parameters.hidden_sizes", [HUGE], "width"),
        ("parameters.hidden_sizes", "6", "hidden_sizes"),
        ("parameters.device", "bogus", "device 'bogus'"),
        ("parameters.device", 5, "parameters.device is 5"),
        ("parameters.surprise", 1, "surprise"),
        ("label_names", ["a", "b"], "2 label_names for 3"),
        ("label_names", [1, 2, 3], "label_names"),
        ("feature_names", ["a"], "1 feature_names for 5"),
        ("n_features", None, "feature_names for None"),
        ("n_features", "5", "n_features"),
        ("zero_policy", {"mode": "shrink", "floor": "x"}, "zero_policy.floor"),
        ("zero_policy.mode", "other", "zero_policy.mode"),
        ("zero_policy.extra", 1, "extra"),
        ("scaling", "other", "scaling"),
        ("history", {}, "history"),
        ("training", [], "training"),
        ("inputs", "other", "inputs is 'other'"),
        ("inputs", "both", "no guides"),
        ("guides", [], "guides"),
        ("labels_were_named", REMOVED, "labels_were_named is missing"),
    ],
)
def test_json_that_is_wrong(plain: Path, tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(plain, tmp_path)
    edit_json(folder / "model.json", place, value)
    one_sentence(folder, match)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("guides", REMOVED, "no guides"),
        ("guides.floor", "x", "guides.floor"),
        ("guides.learners", [1], "guides.learners"),
        ("guides.learners", [{}], "guide .* is damaged"),
        ("guides.learners", [{"learner": {"class": "Other"}}], "not known here"),
        ("network.n_inputs", 99, "backbone.scaler.centre has shape"),
    ],
)
def test_guides_that_are_wrong(guided: Path, tmp_path: Path, place: str, value: Any, match: str) -> None:
    assert json.loads((guided / "model.json").read_text())["inputs"] != "features"
    folder = copied(guided, tmp_path)
    SnefyLDL.load(folder)
    edit_json(folder / "model.json", place, value)
    one_sentence(folder, match)


def set_first(name: str, number: float) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors[name].view(-1)[:1].fill_(number).sum().item() and None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        *[(set_first(name, math.nan), f"{name} holds") for name in ("backbone.scaler.centre", "log_odds", "centre")],
        *[(set_first(name, math.inf), f"{name} holds") for name in ("backbone.scaler.scale", "log_odds", "readout")],
        *[(set_first(name, 0.0), "not above 0") for name in ("backbone.scaler.scale", "background", "centre")],
        (set_first("backbone.scaler.limit", -1.0), "not above 0"),
        (lambda tensors: tensors["readout"].zero_(), "zero everywhere"),
        (lambda tensors: tensors.pop("head_bias"), "head_bias is missing"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "extra is unknown"),
        (lambda tensors: tensors.update(readout=tensors["readout"].long()), "real numbers"),
        (lambda tensors: tensors.update(readout=tensors["readout"][:, :1].contiguous()), "readout has shape"),
    ],
)
def test_weights_that_are_wrong(plain: Path, tmp_path: Path, change: Any, match: str) -> None:
    folder = copied(plain, tmp_path)
    edit_weights(folder, change)
    one_sentence(folder, match)


def test_no_background_is_legal(plain: Path, tmp_path: Path) -> None:
    folder = copied(plain, tmp_path)
    edit_weights(folder, set_first("log_odds", -math.inf))
    assert not SnefyLDL.load(folder).net_.has_background


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "NaN", "", "[1", '{"x": ' + "9" * 6000 + "}"])
def test_text_that_is_no_json(plain: Path, tmp_path: Path, text: str) -> None:
    folder = copied(plain, tmp_path)
    (folder / "model.json").write_text(text)
    one_sentence(folder, "damaged|not written by this library")


def test_a_bad_device_in_the_call(plain: Path) -> None:
    one_sentence(plain, "device 'bogus'", device="bogus")


def test_info_says_it_too(plain: Path, tmp_path: Path) -> None:
    folder = copied(plain, tmp_path)
    edit_json(folder / "model.json", "training.seconds", "long")
    assert "training.seconds" in fail("info", folder)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("intervals", [], "holds no calibration"),
        ("weights_sha256", "0" * 64, "other weights"),
        ("weights_sha256", REMOVED, "weights_sha256 is missing"),
        ("intervals.confidence_level", 1.5, "confidence_level is 1.5"),
        ("intervals.confidence_level", [], "confidence_level"),
        ("intervals.method", None, "method is None"),
        ("intervals.n_labels", 4, "n_labels is 4"),
        ("intervals.calibration.shape", [139, 3, 1], "scores for the shape"),
        ("intervals.calibration.scores", ["x"], "scores is"),
        ("intervals.calibration.groups", ["a"], "1 groups for 140 rows"),
        ("intervals.calibration.weights", [1.0], "1 weights for 140 rows"),
        ("intervals.folds", [0], "1 folds for 140 rows"),
        ("intervals.calibration", REMOVED, "calibration is missing"),
    ],
)
def test_calibrations_that_are_wrong(tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(OLD, tmp_path)
    assert load_calibration(folder) is not None
    edit_json(folder / "calibration.json", place, value)
    with pytest.raises(ModelFileError, match=match):
        load_calibration(folder)


@pytest.mark.parametrize(
    ("place", "value"), [("format_version", 0), ("format_version", True), ("arrays", ".."), ("arrays", "/etc/hosts")]
)
def test_folders_of_arrays_too(tmp_path: Path, place: str, value: Any) -> None:
    kind = ArrayFolder("test", 1, "table")
    kind.write(tmp_path / "t", {}, {})
    edit_json(tmp_path / "t" / "model.json", place, value)
    with pytest.raises(ModelFileError, match="is damaged"):
        kind.read(tmp_path / "t")
