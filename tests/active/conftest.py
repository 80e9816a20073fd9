"""One small data set, models fitted to a part of it, and the rest as a pool."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from snefy_ldl import AutoLDL, LogRatioLDL, SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.learners.trees import TreesLDL


@pytest.fixture(scope="session")
def city() -> Dataset:
    return make_city_districts(n=360, random_state=1)


@pytest.fixture(scope="session")
def model(city: Dataset) -> SnefyLDL:
    """Members, and a forest among the feature-based predictions."""
    quick = {"n_neurons": 8, "n_readouts": 4, "n_members": 3, "epochs": 3, "random_state": 0, "device": "cpu"}
    return SnefyLDL(**quick, guides=[TreesLDL(n_trees=100, random_state=0)]).fit(city.X[:120], city.D[:120])


@pytest.fixture(scope="session")
def logratio(city: Dataset) -> LogRatioLDL:
    return LogRatioLDL(n_components=2, n_members=3, max_iter=30, random_state=0).fit(city.X[:120], city.D[:120])


@pytest.fixture(scope="session")
def auto(city: Dataset) -> AutoLDL:
    kinds = {"snefy": SnefyLDL(epochs=2, n_members=2), "logratio": LogRatioLDL(n_components=2, max_iter=5)}
    return AutoLDL(**kinds, random_state=0).fit(city.X[:120], city.D[:120])


@pytest.fixture(scope="session")
def single(city: Dataset) -> SnefyLDL:
    """One member, and no forest."""
    plain = {"epochs": 1, "guides": None, "n_members": 1, "n_neurons": 4, "n_readouts": 2}
    return SnefyLDL(**plain, random_state=0).fit(city.X[:60], city.D[:60])


@pytest.fixture(scope="session")
def pool(city: Dataset) -> np.ndarray:
    return city.X[120:]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools are read 50 rows at a time."""
    monkeypatch.setattr(import_module("snefy_ldl.active.strategy"), "POOL_ROWS", 50)
