"""Damaged folders: every mistake is one ModelFileError of one sentence, before anything is built."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from commands import fail
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners import TreesLDL
from snefy_ldl.persistence import load, load_calibration, save_calibration, seal

OLD = Path(__file__).parent / "fixtures" / "shares-0.1.0"
SMALL = {"n_neurons": 5, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "random_state": 0}
REMOVED = object()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    city = make_city_districts(n=60, random_state=0)
    model = SnefyLDL(**SMALL, guides=None).fit(pd.DataFrame(city.X, columns=city.feature_names), city.D)
    return model.save(tmp_path_factory.mktemp("plain") / "m")


def edit_json(file: Path, place: str, value: Any, sealed: bool = False) -> None:
    """Put a value into a place of a JSON file, and let its checksum agree if ``sealed``."""
    content = json.loads(file.read_text())
    *path, last = place.split(".")
    part = content
    for key in path:
        part = part[int(key) if isinstance(part, list) else key]
    if value is REMOVED:
        del part[last]
    else:
        part[last] = value
    if sealed:
        content = seal({key: value for key, value in content.items() if key != "checksum"})
    file.write_text(json.dumps(content))


def one_sentence(folder: Path, match: str, **arguments: Any) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        SnefyLDL.load(folder, **arguments)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) - len(str(folder)) < 260


def copied(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "m"))


@pytest.mark.parametrize("place", ["library_version", "zero_policy", "label_names", "history", "checksum"])
@pytest.mark.parametrize("value", ["x", REMOVED])
def test_a_file_that_was_changed(plain: Path, tmp_path: Path, place: str, value: Any) -> None:
    folder = copied(plain, tmp_path)
    edit_json(folder / "model.json", place, value)
    one_sentence(folder, "model.json is damaged: its checksum is not that of its content")
    assert "checksum" in fail("info", folder)


def test_weights_that_were_changed(plain: Path, tmp_path: Path) -> None:
    (weights,) = copied(plain, tmp_path).glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    one_sentence(weights.parent, "its checksum is not the one in the JSON file")


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("format_version", 0, "format_version is 0"),
        ("format_version", True, "format_version is True"),
        ("format_version", 2, "newer"),
        ("weights", {"file": "x", "sha256": "y"}, "the file it names"),
        ("weights.file", "/etc/passwd", "the file it names"),
        ("weights", "weights-00.safetensors", "names no weights"),
        ("kind", "Surprise", "kind is 'Surprise'"),
        ("kind", "GroupedLDL", "damaged|holds a GroupedLDL"),
        ("network.n_neurons", 10**12, "do not fit the model.*head_bias"),
        ("network.n_members", "2", "is damaged: TypeError"),
        ("parameters.hidden_sizes", [10**12], "do not fit the model"),
        ("parameters.device", "bogus", "device 'bogus'"),
        ("parameters.surprise", 1, "surprise"),
        ("zero_policy.extra", 1, "extra"),
        ("labels_were_named", REMOVED, "labels_were_named"),
    ],
)
def test_json_that_is_wrong(plain: Path, tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(plain, tmp_path)
    edit_json(folder / "model.json", place, value, sealed=True)
    one_sentence(folder, match)


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("n_labels_", REMOVED, "n_labels_ is missing"),
        ("label_names_", REMOVED, "label_names_ does not hold 3 names"),
        ("_check_X", {"value": 7}, "_check_X is not what a fit leaves behind"),
    ],
)
def test_folders_of_learners(tmp_path: Path, place: str, value: Any, match: str) -> None:
    city = make_city_districts(n=30, random_state=0)
    file = TreesLDL(4, random_state=0).fit(city.X, city.D).save(tmp_path / "m") / "model.json"
    edit_json(file, f"learner.fitted.{place}", value, sealed=True)
    with pytest.raises(ModelFileError, match=match):
        load(tmp_path / "m")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX's")
@pytest.mark.parametrize("name", ["model.json", "weights", "calibration.json"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_special_files_are_not_read(plain: Path, tmp_path: Path, name: str, kind: str) -> None:
    folder = copied(plain, tmp_path)
    file = folder / (json.loads((folder / "model.json").read_text())["weights"]["file"] if name == "weights" else name)
    file.unlink(missing_ok=True)
    make = {"folder": file.mkdir, "pipe": lambda: os.mkfifo(file), "device": lambda: file.symlink_to("/dev/zero")}
    make[kind]()
    load_it = load_calibration if name == "calibration.json" else SnefyLDL.load
    with pytest.raises(ModelFileError, match=rf"^{re.escape(str(file))} is not a file"):
        load_it(folder)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "NaN", "", "[1", '{"x": ' + "9" * 6000 + "}"])
def test_text_that_is_no_json(plain: Path, tmp_path: Path, text: str) -> None:
    folder = copied(plain, tmp_path)
    (folder / "model.json").write_text(text)
    one_sentence(folder, "damaged|not written by this library")


def test_a_bad_device_in_the_call(plain: Path) -> None:
    one_sentence(plain, "device 'bogus'", device="bogus")


@pytest.mark.parametrize(
    ("place", "value", "match"),
    [
        ("intervals", [], "holds no calibration"),
        ("weights_sha256", "0" * 64, "other weights"),
        ("weights_sha256", REMOVED, "other weights"),
    ],
)
def test_calibrations_that_are_wrong(tmp_path: Path, place: str, value: Any, match: str) -> None:
    folder = copied(OLD, tmp_path)
    state = load_calibration(folder)
    assert state is not None
    edit_json(folder / "calibration.json", place, value)
    with pytest.raises(ModelFileError, match=match):
        load_calibration(folder)
    save_calibration(folder, state)
    assert load_calibration(folder) == state
    edit_json(folder / "calibration.json", "intervals.confidence_level", 0.5)
    with pytest.raises(ModelFileError, match="checksum"):
        load_calibration(folder)


def make_earlier(folder: Path) -> Path:
    """Put a learner's folder into the form of version 0.1."""
    file = folder / "model.json"
    content = json.loads(file.read_text())
    weights = content.pop("weights")
    name = f"arrays-{weights['sha256'][:16]}.safetensors"
    (folder / weights["file"]).rename(folder / name)
    del content["kind"], content["checksum"]
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
