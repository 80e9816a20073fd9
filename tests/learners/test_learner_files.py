"""Saved learners: damaged, foreign and newer files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_cases import (
    D,
    X,
)
from sklearn.exceptions import NotFittedError

from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners import (
    AAKNN,
    SABFGS,
)
from snefy_ldl.learners.learner import Learner
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.persistence import seal


@pytest.fixture
def saved(tmp_path: Any) -> Any:
    return SABFGS().fit(X, D).save(tmp_path / "model")


def _edit(folder: Any, **changes: Any) -> None:
    config = json.loads((folder / "model.json").read_text())
    config.pop("checksum", None)
    (folder / "model.json").write_text(json.dumps(seal(config | changes)))


def test_damaged_foreign_and_newer_files_are_refused(saved: Any, tmp_path: Any) -> None:
    with pytest.raises(ModelFileError, match="is not a folder"):
        SABFGS.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="holds a SABFGS, not a AAKNN"):
        AAKNN.load(saved)
    assert type(Learner.load(saved)) is SABFGS
    (array_file,) = saved.glob("*.safetensors")
    with pytest.raises(ModelFileError, match="is not a folder"):
        SABFGS.load(array_file)
    whole = array_file.read_bytes()
    array_file.write_bytes(whole[:-8])
    with pytest.raises(ModelFileError, match="checksum"):
        SABFGS.load(saved)
    array_file.unlink()
    with pytest.raises(ModelFileError, match="missing"):
        SABFGS.load(saved)
    array_file.write_bytes(whole)
    before = json.loads((saved / "model.json").read_text())
    del before["checksum"]
    _edit(saved, format_version=99)
    with pytest.raises(ModelFileError, match="Upgrade"):
        SABFGS.load(saved)
    _edit(saved, format_version=1, format="other")
    with pytest.raises(ModelFileError, match="not written by"):
        SABFGS.load(saved)
    _edit(saved, **before | {"learner": {"class": "os.system"}})
    with pytest.raises(ModelFileError, match="unknown learner"):
        SABFGS.load(saved)
    _edit(saved, learner={"class": "SABFGS", "params": {"l2": {"value": 1}, "evil": {"value": 1}}})
    with pytest.raises(ModelFileError, match="damaged"):
        SABFGS.load(saved)
    (saved / "model.json").write_text("{")
    with pytest.raises(ModelFileError, match="damaged"):
        SABFGS.load(saved)


def test_save_leaves_foreign_folders_alone_and_replaces_its_own(saved: Any, tmp_path: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelFileError, match="left alone"):
        SABFGS().fit(X, D).save(tmp_path / "mine")
    AAKNN().fit(X, D).save(saved)
    assert len(list(saved.iterdir())) == 2
    assert type(Learner.load(saved)) is AAKNN
    with pytest.raises(NotFittedError):
        SABFGS().save(tmp_path / "new")


# -- forests -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forest() -> TreesLDL:
    city = make_city_districts(n=90, random_state=0)
    return TreesLDL(n_trees=10, random_state=0).fit(city.X, city.D)


def test_a_saved_forest_is_small_and_answers_the_same(forest: TreesLDL, tmp_path: Path) -> None:
    X = make_city_districts(n=300, random_state=1).X
    again = Learner.load(forest.save(tmp_path / "forest"))
    np.testing.assert_array_equal(again.predict(X), forest.predict(X))
    np.testing.assert_array_equal(again.children_, forest.children_)
    leaves = forest.children_[:, 0] < 0
    np.testing.assert_array_equal(again.value_[leaves], forest.value_[leaves])
    nodes = sum(array.nbytes for array in (forest.children_, forest.feature_, forest.threshold_, forest.value_))
    short = sum(array.nbytes for name, array in forest.stored().items() if name.startswith(("leaf_", "inner_")))
    assert 5 * short < nodes
    twice = Learner.load(again.save(tmp_path / "again"))
    np.testing.assert_array_equal(twice.predict(X), forest.predict(X))


@pytest.mark.parametrize("name", ["leaf_bits_", "leaf_shares_", "leaf_which_", "inner_right_", "inner_threshold_"])
def test_a_damaged_forest_is_told(forest: TreesLDL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    entries = forest.stored()
    for number, broken in enumerate([{name: entries[name][:3]}, {}]):
        changed = {key: value for key, value in entries.items() if broken or key != name} | broken
        with monkeypatch.context() as patch:
            patch.setattr(TreesLDL, "stored", lambda self, changed=changed: changed)
            folder = forest.save(tmp_path / str(number))
        with pytest.raises(ModelFileError, match="do not fit each other"):
            Learner.load(folder)
