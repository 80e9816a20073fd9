"""One small data set, models fitted to a part of it, and the rest as a pool."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl.datasets import Dataset, make_city_districts


@pytest.fixture(scope="session")
def city() -> Dataset:
    return make_city_districts(n=360, random_state=1)


@pytest.fixture(scope="session")
def model(city: Dataset) -> SnefyLDL:
    """Members, and a forest among the feature-based predictions."""
    return SnefyLDL(n_neurons=8, n_readouts=4, n_members=3, epochs=3, random_state=0, device="cpu").fit(
        city.X[:120], city.D[:120]
    )


@pytest.fixture(scope="session")
def logratio(city: Dataset) -> LogRatioLDL:
    return LogRatioLDL(n_components=2, n_members=3, max_iter=30, random_state=0).fit(city.X[:120], city.D[:120])


@pytest.fixture(scope="session")
def pool(city: Dataset) -> np.ndarray:
    return city.X[120:]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools are read 50 rows at a time."""
    monkeypatch.setattr(import_module("snefy_ldl.active.query"), "POOL_ROWS", 50)
