"""Small models for the service and the page, fitted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl._internal.model_files import save_calibration
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners import SABFGS, TreesLDL
from snefy_ldl.training import search


@pytest.fixture(scope="session")
def city() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Features and shares, both with names."""
    made = make_city_districts(n=160, random_state=0)
    return pd.DataFrame(made.X, columns=made.feature_names), pd.DataFrame(made.D, columns=made.label_names)


@pytest.fixture(scope="session")
def small(city: tuple[pd.DataFrame, pd.DataFrame]) -> SnefyLDL:
    """A model without guides or a centre."""
    settings = {"n_neurons": 12, "n_readouts": 6, "epochs": 4, "guides": None, "centre": None, "random_state": 0}
    return SnefyLDL(**settings).fit(*city)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, small: SnefyLDL, city: tuple[pd.DataFrame, pd.DataFrame]) -> Path:
    """That model, saved, calibrated at 0.8."""
    place = small.save(tmp_path_factory.mktemp("serve") / "city")
    calibrated = ConformalIntervals(small, confidence_level=0.8).conformalize(city[0] * 1.001, city[1])  # as if new
    save_calibration(place, calibrated.to_dict())
    return place


@pytest.fixture(scope="session")
def moved_city(city: tuple[pd.DataFrame, pd.DataFrame]) -> SnefyLDL:
    """A model of few labels whose guides move the centre of each row's law."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MANY_LABELS", 2)  # as from so many labels on, nothing but the law that moves is tried
        guides = [SABFGS(), TreesLDL(n_trees=15, random_state=0)]
        settings = {"n_neurons": 12, "epochs": 6, "validation_fraction": 0.0, "random_state": 0}
        model = SnefyLDL(guides=guides, **settings).fit(*city)
    assert model.inputs_ == "moving"
    return model


@pytest.fixture(scope="session")
def moving() -> tuple[SnefyLDL, Any]:
    """A model of many labels whose guides move the law of each row, and features."""
    random = np.random.default_rng(0)
    X = random.normal(size=(220, 4))
    score = X @ random.normal(size=(4, 22)) * 0.6 + random.normal(size=22) * 1.5
    amount = random.gamma(2.0, size=score.shape) * np.exp(score) * (random.random(score.shape) < 0.7)
    amount[np.arange(len(X)), score.argmax(1)] += 0.1
    model = SnefyLDL(n_neurons=8, epochs=4, random_state=0).fit(X, amount / amount.sum(1, keepdims=True))
    assert model.inputs_ == "moving"
    return model, X
