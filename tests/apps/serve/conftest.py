"""Small models of each kind for the service and the page, fitted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.persistence import save_calibration

Table = tuple[pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="session")
def city() -> Table:
    """Features and shares, both with names."""
    made = make_city_districts(n=160, random_state=0)
    return pd.DataFrame(made.X, columns=made.feature_names), pd.DataFrame(made.D, columns=made.label_names)


@pytest.fixture(scope="session")
def small(city: Table) -> SnefyLDL:
    """A model of the squared family."""
    settings: dict[str, Any] = {"n_neurons": 12, "n_readouts": 6, "epochs": 4, "guides": None, "random_state": 0}
    return SnefyLDL(**settings).fit(*city)


@pytest.fixture(scope="session")
def ratios(city: Table) -> LogRatioLDL:
    """A log-ratio model of shares of which a third are exactly zero."""
    shares = city[1].where(np.random.default_rng(0).random(city[1].shape) > 0.3, 0.0)
    shares = shares.div(shares.sum(axis=1), axis=0).fillna(1.0 / 3.0)
    return LogRatioLDL(n_trees=10, max_iter=20, random_state=0).fit(city[0], shares)


def saved(model: Any, place: Path, city: Table) -> Path:
    """The folder of a model that is calibrated at 0.8, on rows as if they were new."""
    folder = model.save(place)
    intervals = ConformalIntervals(model, confidence_level=0.8).conformalize(city[0] * 1.001, city[1])
    save_calibration(folder, intervals.to_dict())
    return Path(folder)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, small: SnefyLDL, city: Table) -> Path:
    """The first model's folder."""
    return saved(small, tmp_path_factory.mktemp("serve") / "city", city)


@pytest.fixture(scope="session")
def ratio_folder(tmp_path_factory: pytest.TempPathFactory, ratios: LogRatioLDL, city: Table) -> Path:
    """The second model's folder."""
    return saved(ratios, tmp_path_factory.mktemp("serve") / "ratios", city)
