"""The Hub integration on local folders: what is saved comes back, and the card states what is known."""

from __future__ import annotations

import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from integration_models import CITY, fitted
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve.explorer.rows import label_names
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import InputError, ModelFileError

pytest.importorskip("huggingface_hub", reason="the Hub needs the extra hub")
from huggingface_hub import HfApi, ModelCard

from snefy_ldl.apps.integrations.hub import HubModel, from_pretrained, push_to_hub

MEASURES = {"kl_divergence": 0.0321, "clark": 0.4}


@pytest.mark.parametrize("kind", ["plain", "ratios", "guides"])
def test_a_folder_comes_back(kind: str, tmp_path: Path) -> None:
    model, X, _ = fitted(kind)
    HubModel(model, data="Made up.", measures=MEASURES, license="mit").save_pretrained(tmp_path / "model")
    again = HubModel.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(again.model.predict(X), model.predict(X))
    assert (again.data, again.measures, again.license) == ("Made up.", MEASURES, "mit")
    np.testing.assert_array_equal(from_pretrained(tmp_path / "model").predict(X), model.predict(X))


def test_calibration_comes_along(tmp_path: Path) -> None:
    model, X, D = fitted("plain")
    intervals = ConformalIntervals(model, [0.8, 0.9], "chebyshev").conformalize(X[:80] + 0.01, D[:80])
    HubModel(model, intervals).save_pretrained(tmp_path / "model")
    again = HubModel.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(again.intervals.predict_interval(X), intervals.predict_interval(X), atol=1e-12)
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert "80 %, 90 %" in card.text
    assert "calibrated on 80 rows" in card.text


def test_the_card_says_what_is_known(tmp_path: Path) -> None:
    model, _, _ = fitted("ratios")
    HubModel(model, data="Districts of a made-up city.", measures=MEASURES, license="mit").save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit"
    assert card.data.library_name == "snefy-ldl"
    assert "Districts of a made-up city." in card.text
    assert "| kl_divergence | 0.0321 |" in card.text
    rows, epochs = (model.training_[name] for name in ("rows", "epochs"))
    assert f"Trained on {rows:,} rows, {epochs} epochs" in card.text
    assert "does not support votes" in card.text
    assert "**not** calibrated" in card.text
    for label in label_names(model):
        assert f"`{label}`" in card.text


def test_the_card_says_what_nobody_said() -> None:
    card = HubModel(fitted("plain")[0]).generate_model_card()
    assert "training data were not described" in card.text
    assert "No measures" in card.text


def test_a_network_of_ones_own_goes_with_its_code_left_out(tmp_path: Path) -> None:
    X = (CITY.X - CITY.X.mean(0)) / CITY.X.std(0)
    model = SnefyLDL(n_neurons=4, epochs=1, backbone=torch.nn.Linear(5, 4), random_state=0).fit(X, CITY.D)
    HubModel(model).save_pretrained(tmp_path)
    assert "the input of its custom network" in (tmp_path / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ModelFileError, match="backbone"):
        from_pretrained(tmp_path)
    again = from_pretrained(tmp_path, backbone=torch.nn.Linear(5, 4))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_pushing_uploads_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, X, _ = fitted("plain")

    def create_repo(self: Any, repo_id: str, **settings: Any) -> Any:
        assert settings["private"] is True
        return types.SimpleNamespace(repo_id=repo_id)

    def upload_folder(self: Any, *, repo_id: str, folder_path: Any, **settings: Any) -> str:
        shutil.copytree(folder_path, tmp_path / repo_id)
        return f"https://example.org/{repo_id}"

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    assert push_to_hub(model, "me/city", data="Made up.", private=True) == "https://example.org/me/city"
    np.testing.assert_array_equal(from_pretrained(tmp_path / "me" / "city").predict(X), model.predict(X))
    card = (tmp_path / "me" / "city" / "README.md").read_text(encoding="utf-8")
    assert "# city" in card
    assert 'from_pretrained("me/city")' in card


def test_a_name_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, X, _ = fitted("plain")
    HubModel(model).save_pretrained(tmp_path / "kept")
    wanted = []

    def fetch(name: str, **settings: Any) -> str:
        wanted.append(name)
        return str(tmp_path / "kept")

    def no_config(*words: Any, **settings: Any) -> str:
        return str(tmp_path / "kept" / "config.json")

    monkeypatch.setattr("snefy_ldl.apps.integrations.hub.snapshot_download", fetch)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", no_config)
    np.testing.assert_array_equal(from_pretrained("me/city").predict(X), model.predict(X))
    assert wanted == ["me/city"]


def test_refuses_other_models() -> None:
    with pytest.raises(InputError, match="estimator of this library"):
        HubModel(torch.nn.Linear(1, 1))
    with pytest.raises(NotFittedError):
        HubModel(SnefyLDL())
