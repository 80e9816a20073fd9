"""Saved models: they come back bit for bit, run nothing, and say what is wrong when they cannot."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import field, make_dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.training import FittedModel, stored

SMALL = {"n_neurons": 8, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 2, "random_state": 0, "guides": None}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=120, random_state=1)


@pytest.fixture(scope="module")
def saved(city, tmp_path_factory):
    X = pd.DataFrame(city.X, columns=city.feature_names)
    D = pd.DataFrame(city.D, columns=city.label_names)
    model = SnefyLDL(**SMALL, n_members=2).fit(X, D)
    folder = tmp_path_factory.mktemp("model")
    model.save(folder)
    return model, folder, X


def test_round_trip_is_exact(saved):
    model, folder, X = saved
    loaded = SnefyLDL.load(folder)
    pd.testing.assert_frame_equal(loaded.predict(X), model.predict(X), check_exact=True)
    np.testing.assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))
    assert loaded.get_params() == model.get_params()
    assert loaded.label_names_ == model.label_names_
    assert list(loaded.feature_names_in_) == list(model.feature_names_in_)
    assert loaded.training_ == model.training_
    assert loaded.zero_policy_ == model.zero_policy_
    assert loaded.score(X, model.predict(X)) == model.score(X, model.predict(X))


def test_a_loaded_model_can_go_on(saved, city):
    D = pd.DataFrame(city.D, columns=city.label_names)
    loaded = SnefyLDL.load(saved[1]).set_params(warm_start=True, epochs=6)
    before = loaded.score(saved[2], D)
    assert loaded.fit(saved[2], D).score(saved[2], D) > before
    after, epochs = loaded.predict(saved[2]), len(loaded.history_)
    loaded.partial_fit(saved[2], D)
    assert len(loaded.history_) == epochs + 1
    assert not loaded.predict(saved[2]).equals(after)
    assert list(loaded.predict(saved[2]).columns) == list(city.label_names)


def test_the_folder_holds_json_and_safetensors_alone(saved):
    names = sorted(path.suffix for path in saved[1].iterdir())
    assert names == [".json", ".safetensors"]
    config = json.loads((saved[1] / "model.json").read_text())
    assert config["format_version"] == 1
    assert config["label_names"] == saved[0].label_names_


@pytest.fixture
def broken(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "m")
    return tmp_path / "m"


def test_saving_again_replaces_and_leaves_nothing_behind(saved, broken, city):
    other = SnefyLDL(**{**SMALL, "random_state": 5}).fit(city.X, city.D)
    other.save(broken)
    assert len(list(broken.iterdir())) == 2
    np.testing.assert_array_equal(SnefyLDL.load(broken).predict(city.X), other.predict(city.X))


def test_a_crash_between_the_two_files_leaves_the_old_model(saved, broken, city, monkeypatch):
    monkeypatch.setattr("snefy_ldl._internal.files.write_json", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        SnefyLDL(**{**SMALL, "random_state": 5}).fit(city.X, city.D).save(broken)
    monkeypatch.undo()
    np.testing.assert_array_equal(SnefyLDL.load(broken).predict(saved[2]), saved[0].predict(saved[2]))


def _weights(folder: Path) -> Path:
    return next(folder.glob("weights-*.safetensors"))


def test_loading_executes_nothing(saved, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    SnefyLDL.load(saved[1])


def test_a_new_fitted_attribute_is_one_field(saved, tmp_path, monkeypatch):
    longer = make_dataclass("Longer", [("season", str, field(default="dry"))], bases=(FittedModel,), frozen=True)
    monkeypatch.setattr(stored, "FittedModel", longer)
    monkeypatch.setattr(stored, "PLAIN", [*stored.PLAIN, "season"])  # as the module finds it
    model = SnefyLDL(**SMALL).adopt(longer(**vars(saved[0].model_) | {"season": "wet"}))
    assert SnefyLDL.load(model.save(tmp_path / "m")).model_.season == "wet"
    assert SnefyLDL.load(saved[1]).model_.season == "dry", "a folder that is older than the attribute"


def test_unfitted_models_are_not_saved(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        SnefyLDL().save(tmp_path)
