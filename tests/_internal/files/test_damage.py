"""Damaged folders: every mistake is one ModelFileError of one sentence, before room is made for anything."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save

from commands import fail
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners import AAKNN, SABFGS, TreesLDL
from snefy_ldl.persistence import load, load_calibration

OLD = Path(__file__).parent / "fixtures" / "shares-0.1.0"
SMALL = {"n_neurons": 5, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "random_state": 0}
REMOVED = object()


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose network sees a guide."""
    city = make_city_districts(n=60, random_state=0)
    X = pd.DataFrame(city.X, columns=city.feature_names)
    model = SnefyLDL(**SMALL, guides=[SABFGS(max_iter=3)]).fit(X, city.D)
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
        part = part[int(key) if isinstance(part, list) else key]
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
        ("format_version", True, "format_version is True"),
        ("format_version", 2, "newer"),
        ("weights", {"file": "x", "sha256": "y"}, "the file it names"),
        ("weights.file", "/etc/passwd", "the file it names"),
        ("weights", "weights-00.safetensors", "names no weights"),
        ("network.n_neurons", HUGE, "raw_exponents has shape"),
        ("network.n_members", "2", "n_members is '2'"),
        ("network.n_neurons", True, "n_neurons is True"),
        ("network.width", 7, "width is 7"),
        ("network.n_labels", 4, "label_names for 4 labels"),
        ("network.exponent_form", "square", "exponent_form"),
        ("network.n_inputs", HUGE, "inputs"),
        ("parameters.hidden_sizes", [HUGE], "width"),
        ("parameters.device", "bogus", "device 'bogus'"),
        ("parameters.surprise", 1, "surprise"),
        ("label_names", ["a", "b"], "2 label_names for 3"),
        ("feature_names", ["a"], "1 feature_names for 5"),
        ("n_features", None, "feature_names for None"),
        ("zero_policy", {"mode": "shrink", "floor": "x"}, "zero_policy.floor"),
        ("zero_policy.extra", 1, "extra"),
        ("scaling", "other", "scaling"),
        ("training", [], "training"),
        ("inputs", "other", "inputs is 'other'"),
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
        ("guides.learners", [{}], "guides .* are damaged"),
        ("guides.learners", [{"learner": {"class": "Other"}}], "not known here"),
        ("network.n_inputs", 99, "99 inputs, and the rows have"),
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
        *[(set_first(name, math.nan), f"{name} holds") for name in ("backbone.scaler.centre", "log_odds")],
        *[(set_first(name, math.inf), f"{name} holds") for name in ("backbone.scaler.scale", "log_odds", "readout")],
        *[
            (set_first(name, 0.0), f"{name} holds numbers that are not from")
            for name in ("backbone.scaler.scale", "background")
        ],
        (set_first("backbone.scaler.limit", -1.0), "limit holds numbers that are not from"),
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


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the library's own guides: SA-BFGS and trees."""
    city = make_city_districts(n=60, random_state=3)
    model = SnefyLDL(**SMALL, guides=[SABFGS(), TreesLDL(n_trees=20, random_state=0)]).fit(city.X, city.D)
    return model.save(tmp_path_factory.mktemp("forest") / "m")


def fill(name: str, number: float) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors[name].fill_(number).sum().item() and None


def cut(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensors[name][:-1].contiguous()})


def widen_first(name: str, number: int) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].long()
        tensors[name][0] = number

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (fill("guide.1.inner_right_", 0), r"guide.1.children_ of node 0 do not come after it"),
        (widen_first("guide.1.inner_right_", 10**9), r"guide.1.children_ of node 0 do not"),
        (set_first("guide.1.inner_feature_", 5), r"guide.1.feature_ names a feature that none of the 5 is"),
        (set_first("guide.1.inner_threshold_", math.nan), r"guide.1.threshold_ holds numbers that are not finite"),
        (fill("guide.1.leaf_shares_", -1.0), r"guide.1.value_ does not hold shares"),
        (cut("guide.1.leaf_shares_"), "arrays of a forest do not fit each other"),
        (set_first("guide.1.roots_", 1), r"guide.1.roots_ does not name"),
        (lambda tensors: tensors.pop("guide.1.inner_threshold_"), "arrays of a forest do not fit each other"),
        (set_first("guide.0.coef_", math.inf), r"guide.0.coef_ holds numbers that are not finite"),
        (lambda tensors: tensors.update({"guide.0.intercept_": torch.zeros(1)}), r"guide.0.intercept_ has shape"),
        (lambda tensors: tensors.pop("guide.0.feature_mean_"), r"guide.0 does not answer: AttributeError"),
        (set_first("background", 1e30), "background holds numbers that are not from"),
        (set_first("raw_exponents", 1e3), "raw_exponents holds numbers that are not from"),
    ],
)
def test_arrays_of_guides_and_bounds(forest: Path, tmp_path: Path, change: Any, match: str) -> None:
    folder = copied(forest, tmp_path)
    edit_weights(folder, change)
    one_sentence(folder, match)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("guides.floor", 1e308, "guides.floor is 1e[+]308, not below 1/3"),
        ("guides.floor", 10**400, "guides.floor is 1000"),
        ("zero_policy.floor", 0.5, "zero_policy.floor"),
        ("guides.learners.0.learner.fitted.n_labels_", REMOVED, "guide.0 does not answer: NotFittedError"),
        ("guides.learners.0.learner.fitted.n_features_in_.value", 10**12, "guide.0.n_features_in_ is 1000"),
        ("guides.learners.0.learner.fitted._check_X", {"value": 7}, "guide.0._check_X is not what a fit leaves behind"),
        ("guides.learners.0.learner.params.max_iter.value", "x", "guide.0.params do not fit SABFGS"),
        ("n_features", 6, "5 columns become 5 numbers, not the 6"),
        ("inputs", "features", "there are guides"),
    ],
)
def test_descriptions_of_guides(forest: Path, tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(forest, tmp_path)
    edit_json(folder / "model.json", place, value)
    one_sentence(folder, match)


@pytest.mark.parametrize(
    ("learner", "place", "value", "match"),
    [
        (TreesLDL(4, random_state=0), "inner_right_", 0, "children_ of node 0 do not come after it"),
        (TreesLDL(4, random_state=0), "learner.fitted.n_labels_", REMOVED, "n_labels_ is missing"),
        (AAKNN(), "learner.fitted.label_names_", REMOVED, "label_names_ does not hold 3 names"),
        (AAKNN(), "learner.params.n_neighbors.value", -1, "params do not fit AAKNN"),
    ],
)
def test_folders_of_learners(tmp_path: Path, learner: Any, place: str, value: Any, match: str) -> None:
    city = make_city_districts(n=30, random_state=0)
    file = learner.fit(city.X, city.D).save(tmp_path / "m") / "model.json"
    if "." in place:
        edit_json(file, place, value)
    else:
        arrays = file.parent / json.loads(file.read_text())["weights"]["file"]
        tensors = load_file(arrays)
        tensors[place].fill_(value)
        arrays.write_bytes(payload := save(tensors))
        edit_json(file, "weights.sha256", hashlib.sha256(payload).hexdigest())
    with pytest.raises(ModelFileError, match=match):
        type(learner).load(tmp_path / "m")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX's")
@pytest.mark.parametrize("name", ["model.json", "weights", "calibration.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "socket", "loop"])
def test_special_files_are_not_read(plain: Path, tmp_path: Path, name: str, kind: str) -> None:
    folder = copied(plain, tmp_path)
    file = folder / (json.loads((folder / "model.json").read_text())["weights"]["file"] if name == "weights" else name)
    file.unlink(missing_ok=True)
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "loop":
        file.symlink_to(file)
    else:
        before = Path.cwd()
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(folder)  # names of sockets are short
            try:
                server.bind(file.name)
            finally:
                os.chdir(before)
    words = rf"^{re.escape(str(file))} " + ("cannot be read" if kind == "loop" else f"is a {kind}, not a file")
    if name == "calibration.json":
        if kind == "loop":
            assert load_calibration(folder) is None
            return
        with pytest.raises(ModelFileError, match=words):
            load_calibration(folder)
        return
    one_sentence(folder, words)


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
        ("intervals.n_labels", 4, "n_labels is 4"),
        ("intervals.calibration.shape", [139, 3, 1], "scores for the shape"),
        ("intervals.calibration.scores", ["x"], "scores is"),
        ("intervals.calibration.groups", ["a"], "1 groups for 140 rows"),
        ("intervals.calibration", REMOVED, "calibration.shape is missing"),
    ],
)
def test_calibrations_that_are_wrong(tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(OLD, tmp_path)
    assert load_calibration(folder) is not None
    edit_json(folder / "calibration.json", place, value)
    with pytest.raises(ModelFileError, match=match):
        load_calibration(folder)


def make_earlier(folder: Path) -> Path:
    """Put a learner's folder into the form of version 0.1."""
    file = folder / "model.json"
    content = json.loads(file.read_text())
    weights = content.pop("weights")
    name = f"arrays-{weights['sha256'][:16]}.safetensors"
    (folder / weights["file"]).rename(folder / name)
    del content["kind"]
    content |= {"format": "snefy_ldl.learner", "arrays": name, "arrays_sha256": weights["sha256"]}
    file.write_text(json.dumps(content))
    return file


def test_learners_of_an_earlier_version(tmp_path: Path) -> None:
    city = make_city_districts(n=30, random_state=0)
    learner = TreesLDL(4, random_state=0).fit(city.X, city.D)
    file = make_earlier(learner.save(tmp_path / "m"))
    for again in (TreesLDL.load(file.parent), load(file.parent)):
        assert (again.predict(city.X) == learner.predict(city.X)).all()
    learner.save(file.parent)
    assert not list(file.parent.glob("arrays-*")), "the arrays of the earlier form are removed"
    make_earlier(file.parent)
    for place, value in (("format_version", 0), ("arrays", ".."), ("arrays", "/etc/hosts"), ("arrays_sha256", 3)):
        before = file.read_text()
        edit_json(file, place, value)
        with pytest.raises(ModelFileError, match="is damaged"):
            load(file.parent)
        file.write_text(before)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("kind", "Surprise", "kind is 'Surprise'"),
        ("kind", "GroupedLDL", "damaged|holds a GroupedLDL"),
    ],
)
def test_kinds_that_are_wrong(plain: Path, tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(plain, tmp_path)
    edit_json(folder / "model.json", place, value)
    one_sentence(folder, match)


@pytest.mark.parametrize("what", ["centre", "zeros", "moves"])
def test_a_model_of_a_development_version_says_what_to_fit_instead(guided: Path, tmp_path: Path, what: str) -> None:
    folder = copied(guided, tmp_path)
    if what == "centre":
        edit_weights(folder, lambda tensors: tensors.update(centre=torch.tensor([[1.0, 2.0, 3.0]])))
    else:
        place, value = {"zeros": ("network.presence", True), "moves": ("guides.mover", {"weights": [1.0]})}[what]
        edit_json(folder / "model.json", place, value)
    one_sentence(folder, "fit again with LogRatioLDL")


def test_a_plain_model_of_a_development_version_loads(plain: Path, tmp_path: Path) -> None:
    folder = copied(plain, tmp_path)
    edit_weights(folder, lambda tensors: tensors.update(centre=torch.ones(1, 3)))
    for place, value in (("parameters.centre", None), ("parameters.zeros", "auto"), ("network.presence", False)):
        edit_json(folder / "model.json", place, value)
    assert SnefyLDL.load(folder).zeros == "shrink"
