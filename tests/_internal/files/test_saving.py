"""One folder, many processes: readers see one model or the other, and nothing is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from children import Child
from snefy_ldl import SnefyLDL
from snefy_ldl._internal import files
from snefy_ldl._internal.files import write_bytes
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.persistence import (
    load_calibration,
    read_model,
    save_calibration,
    write_model,
)

SAVES = 12


def write_models(channel: Any, source: Path, target: Path) -> None:
    """Save a model again and again."""
    model = SnefyLDL.load(source)
    channel.send("ready")
    channel.recv()
    for _ in range(SAVES):
        model.save(target)


def read_models(channel: Any, target: Path, X: Any, wanted: list[Any]) -> None:
    """Load a model again and again until told to stop; it is always one of those that are written."""
    seen = 0
    channel.send("ready")
    channel.recv()
    while not (channel.poll(0.01) and seen):
        answer = SnefyLDL.load(target).predict(X)
        assert sum((answer == mean).all() for mean in wanted) == 1, answer
        seen += 1
    channel.send(seen)


@pytest.mark.slow
def test_two_writers_and_two_readers(tmp_path: Path) -> None:
    city = make_city_districts(n=60, random_state=0)
    X, means, target = city.X[:3], [], tmp_path / "target"
    for seed in (1, 2):
        settings = {"n_neurons": 5, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "guides": None}
        model = SnefyLDL(**settings, random_state=seed).fit(city.X, city.D)
        model.save(tmp_path / f"source{seed}")
        means.append(model.predict(X))
    SnefyLDL.load(tmp_path / "source1").save(target)
    readers = [Child(read_models, target, X, means) for _ in range(2)]
    writers = [Child(write_models, tmp_path / f"source{seed}", target) for seed in (1, 2)]
    try:
        for child in (*readers, *writers):  # all begin at once
            assert child.hear() == "ready"
        for child in (*readers, *writers):
            child.tell("go")
        assert [writer.end() for writer in writers] == [0, 0]
        for reader in readers:
            reader.tell("stop")
        assert all(reader.hear() > 0 for reader in readers)
        assert [reader.end() for reader in readers] == [0, 0]
    finally:
        for child in (*readers, *writers):
            child.kill()
    assert not list(target.glob(".*"))
    assert any((SnefyLDL.load(target).predict(X) == mean).all() for mean in means)


def test_leftovers_of_a_killed_save_are_removed_after_a_minute(tmp_path: Path) -> None:
    write_model(tmp_path, {}, {})
    left = (".model.json.a1345678.part", ".weights-00.safetensors.b2345678.part", "weights-0123456789ab.safetensors")
    stay = (".predicted.csv.d4345678.part", ".model.json.part", "model.json.a1345678.part", "weights-0f.safetensors")
    for name in (*left, *stay):  # a table being written, files of other programs, and what another process writes now
        (tmp_path / name).touch()
    for name in (*left, *stay[:3]):
        os.utime(tmp_path / name, (time.time() - 100, time.time() - 100))
    write_model(tmp_path, {"new": 1}, {})
    weights = read_model(tmp_path)[0]["weights"]["file"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*stay, "model.json", weights])


def write_half(channel: Any, target: Path) -> None:
    with files.replace_file(target) as temporary:
        temporary.write_text("half")
        channel.send(temporary.name)
        time.sleep(60)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_killed_writer_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "shares [1].csv"
    write_bytes(target, b"whole")
    writer = Child(write_half, target)
    try:
        name = writer.hear()
    finally:
        writer.kill()
    assert target.read_bytes() == b"whole"
    os.utime(tmp_path / name, (0, 0))
    write_bytes(target, b"again")
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name]


@pytest.mark.skipif(os.name != "posix", reason="rights are POSIX's")
def test_files_have_the_rights_of_the_umask_which_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)
            with files.replace_file(tmp_path / "a") as temporary:
                assert temporary.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(usual)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_reader_looks_again_when_the_weights_were_just_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    write_model(tmp_path, {}, {"w": torch.zeros(1)})
    usual, replaced = Path.read_bytes, []

    def read_late(path: Path) -> bytes:
        if path.suffix == ".safetensors" and not replaced:
            replaced.append(path)
            write_model(tmp_path, {}, {"w": torch.ones(1)})  # between the reader's two files
        return usual(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    assert read_model(tmp_path)[1]["w"].item() == 1.0
    assert replaced


def test_a_calibration_goes_with_its_weights(tmp_path: Path) -> None:
    import torch

    state = {"kind": "intervals", "method": "cdf", "confidence_level": 0.9, "simultaneous": False, "n_labels": 2}
    table = {"shape": [1, 2, 1], "scores": [0.1, None], "groups": None, "weights": None}
    state |= {"folds": None, "calibration": table}
    write_model(tmp_path, {}, {"w": torch.zeros(1)})
    save_calibration(tmp_path, state)
    write_model(tmp_path, {"other": "settings"}, {"w": torch.zeros(1)})
    assert load_calibration(tmp_path) == state
    write_model(tmp_path, {}, {"w": torch.ones(1)})
    assert load_calibration(tmp_path) is None
