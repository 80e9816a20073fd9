"""A network that was trained elsewhere is a model like any other: it answers, saves, loads, conformalizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from snefy_ldl import SnefyHead, SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, ModelFileError

CITY = make_city_districts(n=120, random_state=0)
NAMES = ["work", "home", "leisure"]
WORDS = ["good", "bad", "odd"]


def make_body() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU())


def make_head(n_members: int = 1) -> SnefyHead:
    head = SnefyHead(8, n_labels=3, n_neurons=6, n_readouts=4, n_members=n_members).start_from(CITY.D)
    with torch.no_grad():
        head.net.head_weight.normal_(generator=torch.Generator().manual_seed(1))
    return head


@pytest.fixture
def model() -> SnefyLDL:
    return SnefyLDL.from_head(make_body(), make_head(), CITY.X, label_names=NAMES)


@pytest.fixture
def folder(model: SnefyLDL, tmp_path: Path) -> Path:
    return model.save(tmp_path / "model")


@pytest.mark.parametrize("n_members", [1, 2])
def test_answers_are_those_of_the_training_loop(n_members: int) -> None:
    body, head = make_body(), make_head(n_members)
    model = SnefyLDL.from_head(body, head, CITY.X)
    with torch.no_grad():
        dist = head(body(torch.as_tensor(CITY.X).float()))
    np.testing.assert_array_equal(model.predict(CITY.X), dist.mean.numpy())
    np.testing.assert_allclose(
        model.log_prob(CITY.X, CITY.D), dist.log_prob(torch.as_tensor(CITY.D)).numpy(), atol=1e-9
    )
    np.testing.assert_allclose(
        model.predict_interval(CITY.X[:5], 0.9)[..., 1], model.predict_dist(CITY.X[:5]).quantiles([0.95])[..., 0]
    )
    assert model.sample(CITY.X[:5], 7, random_state=0).shape == (7, 5, 3)


def test_training_on_leaves_the_model_as_it_was() -> None:
    body, head = make_body(), make_head()
    model = SnefyLDL.from_head(body, head, CITY.X)
    before = model.predict(CITY.X)
    with torch.no_grad():
        body[0].weight.zero_()
        head.net.raw_exponents.zero_()
    np.testing.assert_array_equal(model.predict(CITY.X), before)
    assert body.training, "and the module as it was"


def test_a_brain_float_network() -> None:
    body = make_body().bfloat16()
    model = SnefyLDL.from_head(body, make_head(), CITY.X)
    assert np.isfinite(model.predict(CITY.X)).all()


def test_saved_and_loaded_with_code_named_again(model: SnefyLDL, folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"load\(folder, backbone=\.\.\.\) needs the module"):
        SnefyLDL.load(folder)
    again = SnefyLDL.load(folder, backbone=make_body)
    np.testing.assert_array_equal(again.predict(CITY.X), model.predict(CITY.X))
    assert list(again.predict(CITY.X).columns) == NAMES
    twice = SnefyLDL.load(again.save(folder), backbone=make_body())
    np.testing.assert_array_equal(twice.log_prob(CITY.X, CITY.D), model.log_prob(CITY.X, CITY.D))


def test_goes_on_with_fits_of_the_library(model: SnefyLDL) -> None:
    model.set_params(epochs=1).partial_fit(CITY.X, CITY.D)
    assert len(model.history_) == 1


@pytest.mark.parametrize(
    ("backbone", "X", "settings", "words"),
    [
        (nn.Linear(5, 7), CITY.X, {}, "width 7, and the head takes 8"),
        (make_body, CITY.X, {}, "pass that module"),
        (nn.Linear(4, 8), CITY.X, {}, r"the backbone Linear .* and failed"),
        (nn.Linear(5, 8), CITY.X, {"label_names": ["a", "a", "b"]}, "3 different names"),
        (nn.Linear(5, 8), CITY.X, {"zeros": "model"}, "zeros='model'"),
        (nn.Linear(5, 8), CITY.X[:0], {}, "0 rows"),
    ],
)
def test_what_does_not_fit_is_told(backbone: Any, X: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SnefyLDL.from_head(backbone, make_head(), X, **settings)
