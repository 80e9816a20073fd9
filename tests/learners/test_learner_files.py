"""Saved learners: damaged, foreign and newer files are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from learner_cases import (
    D,
    X,
)
from sklearn.exceptions import NotFittedError

from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners import (
    AAKNN,
    SABFGS,
)
from snefy_ldl.learners.base import Learner


@pytest.fixture
def saved(tmp_path: Any) -> Any:
    return SABFGS().fit(X, D).save(tmp_path / "model")


def _edit(folder: Any, **changes: Any) -> None:
    config = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(config | changes))


def test_damaged_foreign_and_newer_files_are_refused(saved: Any, tmp_path: Any) -> None:
    with pytest.raises(ModelFileError, match="missing"):
        SABFGS.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="holds a SABFGS, not a AAKNN"):
        AAKNN.load(saved)
    assert type(Learner.load(saved)) is SABFGS
    (array_file,) = saved.glob("*.safetensors")
    with pytest.raises(ModelFileError, match="is a file"):
        SABFGS.load(array_file)
    whole = array_file.read_bytes()
    array_file.write_bytes(whole[:-8])
    with pytest.raises(ModelFileError, match="checksum"):
        SABFGS.load(saved)
    array_file.unlink()
    with pytest.raises(ModelFileError, match="missing"):
        SABFGS.load(saved)
    array_file.write_bytes(whole)
    _edit(saved, format_version=99)
    with pytest.raises(ModelFileError, match="Upgrade"):
        SABFGS.load(saved)
    _edit(saved, format_version=1, format="other")
    with pytest.raises(ModelFileError, match="not written by"):
        SABFGS.load(saved)
    _edit(saved, format="snefy_ldl.learner", learner={"class": "os.system"})
    with pytest.raises(ModelFileError, match="not known"):
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
