"""Dependence on features: by hand, against the exact distribution of synthetic data, and the bands' order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from snefy_ldl import LDLPipeline, SnefyLDL, SnefySimplex
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.explain import dependence
from snefy_ldl.learners import SABFGS

CITY = make_city_districts(n=150, random_state=0)


class Soil:
    """One Dirichlet a row, which rain and the kind of rock move; every answer is known from scipy."""

    label_names_ = ("sand", "silt", "clay")

    def alpha(self, X: Any) -> np.ndarray:
        rain = np.asarray(X["rain"], dtype=float)
        lime = (X["rock"].astype(object) == "lime").to_numpy(dtype=float)
        return np.stack([2 + rain, np.full(len(rain), 3.0), 4 + 2 * lime], 1)

    def predict_dist(self, X: Any) -> SnefySimplex:
        alpha = self.alpha(X)
        # every row is a component of its own
        return SnefySimplex.from_mixture(torch.eye(len(alpha)).double(), torch.as_tensor(alpha))


def soil_rows(n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rocks = rng.choice(["lime", "chalk"], n, p=[0.3, 0.7])
    return pd.DataFrame({"rain": rng.uniform(0, 5, n), "rock": rocks, "note": ["a"] * n})


@pytest.fixture(scope="module")
def model() -> SnefyLDL:
    return SnefyLDL(n_members=3, epochs=8, random_state=0).fit(CITY.X, CITY.D)


def test_mean_is_the_average_of_the_exact_mean() -> None:
    rows, grid = soil_rows(), [0.0, 1.0, 4.0]
    curve = dependence(Soil(), rows, "rain", grid=grid)
    for k, rain in enumerate(grid):
        alpha = Soil().alpha(rows.assign(rain=rain))
        np.testing.assert_allclose(curve.estimate[k], (alpha / alpha.sum(1, keepdims=True)).mean(0), rtol=1e-9)
    ends = ["distribution_low", "distribution_high"]
    assert list(curve.frame.columns) == ["rain", "label", "estimate", *ends]
    assert curve.frame["label"].tolist() == ["sand", "silt", "clay"] * 3


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_other_quantities_against_scipy(level: float) -> None:
    rows, soil, tails = soil_rows(6), Soil(), [0.5 - level / 2, 0.5 + level / 2]
    alpha = soil.alpha(rows.assign(rain=1.5))
    a, b, c = alpha.T
    width = dependence(soil, rows, "rain", of="width", grid=[1.5], confidence_level=level)
    exact = [np.mean(np.diff(stats.beta(p, alpha.sum(1) - p).ppf(np.array(tails)[:, None]), axis=0)) for p in (a, b, c)]
    np.testing.assert_allclose(width.estimate[0], exact, atol=1e-5)
    greater = dependence(soil, rows, "rain", of=("greater", "sand", "clay"), grid=[1.5])
    np.testing.assert_allclose(greater.estimate[0, 0], stats.beta(a, c).sf(0.5).mean(), atol=1e-8)
    ratio = dependence(soil, rows, "rain", of=("log_ratio", "sand", 2), grid=[1.5], confidence_level=level)
    from scipy.special import digamma, logit

    np.testing.assert_allclose(ratio.estimate[0, 0], (digamma(a) - digamma(c)).mean(), atol=1e-9)
    ends = [logit(stats.beta(a, c).ppf(tail)).mean() for tail in tails]
    np.testing.assert_allclose(ratio.bands["distribution"][0, 0], ends, atol=1e-4)


def test_levels_of_a_text_column_are_the_grid() -> None:
    rows = soil_rows()
    curve = dependence(Soil(), rows, "rock")
    assert curve.grids[0] == ["chalk", "lime"]  # the most frequent first
    alpha = Soil().alpha(rows.assign(rock="lime"))
    np.testing.assert_allclose(curve.estimate[1], (alpha / alpha.sum(1, keepdims=True)).mean(0), rtol=1e-9)
    ordered = rows.assign(rock=pd.Categorical(rows["rock"], categories=["lime", "chalk", "marl"]))
    assert dependence(Soil(), ordered, "rock").grids[0] == ["lime", "chalk"]
    both = dependence(Soil(), rows, ("rain", "rock"), grid={"rain": 3})
    assert both.estimate.shape == (3, 2, 3)
    np.testing.assert_allclose(both.frame["estimate"].to_numpy()[-3:], both.estimate[-1, -1])


@pytest.mark.slow
def test_members_are_those_of_the_law(model: SnefyLDL) -> None:
    X = CITY.X.copy()
    X[:, 1] = 5000.0
    each = np.stack([dist.mean.numpy().mean(0) for dist in model.predict_dist(X).members()])
    reach = stats.t.ppf(0.95, 2) * each.std(0, ddof=1)
    curve = dependence(model, CITY.X, 1, grid=[5000.0], max_rows=None)
    np.testing.assert_allclose(curve.estimate[0], each.mean(0), atol=1e-6)
    np.testing.assert_allclose(curve.bands["members"][0, :, 1], np.minimum(curve.estimate[0] + reach, 1), atol=1e-6)


@pytest.mark.slow
def test_models_of_tables_pipelines_and_points() -> None:
    from sklearn.preprocessing import StandardScaler

    frame = pd.DataFrame(CITY.X, columns=CITY.feature_names).assign(
        zone=np.where(CITY.X[:, 0] > 4, "outer", "inner"), built=pd.date_range("2001-01-01", periods=len(CITY.X))
    )
    fitted = SnefyLDL(epochs=2, random_state=0).fit(frame, CITY.D)
    before = fitted.predict(frame)
    assert dependence(fitted, frame, "zone").grids[0] == ["outer", "inner"]
    assert dependence(fitted, frame, "built", grid=3).estimate.shape == (3, 3)
    assert dependence(fitted, frame, "night_bus_lines", grid=5).frame.shape == (15, 7)
    np.testing.assert_array_equal(before, fitted.predict(frame))
    pipeline = LDLPipeline([("scale", StandardScaler()), ("model", SnefyLDL(epochs=1, random_state=0))])
    assert dependence(pipeline.fit(CITY.X, CITY.D), CITY.X, 0, grid=3).estimate.shape == (3, 3)
    point = SABFGS().fit(CITY.X, CITY.D)
    assert dependence(point, CITY.X, 0, grid=3).estimate.shape == (3, 3)
    with pytest.raises(InputError, match="means alone"):
        dependence(point, CITY.X, 0, of="width")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature": "rains"}, "no column 'rains'"),
        ({"feature": 9}, "numbered from 0 to 2"),
        ({"feature": ("rain", "rain")}, "two different"),
        ({"of": "median"}, "of='median'"),
        ({"of": ("greater", "sand", "sand")}, "two different labels"),
        ({"of": ("greater", "sand", "gravel")}, "no label 'gravel'"),
        ({"feature": "rock", "grid": ["granite"]}, "no level 'granite'"),
        ({"grid": [np.nan]}, "finite"),
        ({"grid": 1}, "grid must be"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        dependence(Soil(), soil_rows(), **({"feature": "rain"} | settings))
    with pytest.raises(InputError, match="empty"):
        dependence(Soil(), soil_rows().iloc[:0], "rain")
