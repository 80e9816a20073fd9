"""skpro's own tests pass, and its distribution is our law."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from integration_models import CITY, fitted
from snefy_ldl import SnefyLDL
from snefy_ldl.errors import InputError

pytest.importorskip("skpro", reason="skpro's regressor needs the extra skpro")
from skpro.utils import check_estimator

from snefy_ldl.integrations.skpro import LawRows, SnefyDistribution, SnefyRegressor

X = pd.DataFrame(CITY.X.copy(), columns=list("abcde"), index=pd.Index(range(100, 260)))
SMALL = SnefyLDL(n_neurons=6, epochs=2, guides=None, centre=None, random_state=0)


@pytest.mark.parametrize("kind", [SnefyRegressor, SnefyDistribution])
def test_skpros_own_suite(kind: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns left out in its tables, and of its own
        results = check_estimator(kind, raise_exceptions=False)
    failures = {name: result for name, result in results.items() if result != "PASSED"}
    assert len(results) > 30
    assert not failures


@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("centre", "zeros"))]
)
def test_answers_are_the_laws(kind: str) -> None:
    model, rows, D = fitted(kind)
    law = model.predict_dist(rows)
    dist = SnefyDistribution(LawRows(law), index=range(len(rows)), columns=["a", "b", "c"])
    np.testing.assert_allclose(dist.mean(), model.predict(rows))
    np.testing.assert_allclose(dist.var(), model.predict_var(rows))
    # tables of one label and of all have grids of their own
    tolerance = 1e-8 if kind == "plain" else 2e-7
    np.testing.assert_allclose(dist.ppf(0.3), model.predict_quantiles(rows, [0.3])[..., 0], atol=tolerance)
    shares = np.clip(D, 0.01, 0.99)
    for r, name in enumerate("abc"):
        marginal = law.marginal(r)
        np.testing.assert_allclose(dist.cdf(shares)[name], marginal.cdf(_tensor(shares[:, r])), atol=1e-9)
        np.testing.assert_allclose(dist.log_pdf(shares)[name], marginal.log_prob(_tensor(shares[:, r])), atol=1e-9)
    draws = dist.sample(4)
    np.testing.assert_allclose(draws.sum(axis=1), 1.0)


def test_shares_are_taken_as_they_are() -> None:
    D = pd.DataFrame(CITY.D, columns=["home", "work", "green"], index=X.index)
    regressor = SnefyRegressor(SMALL).fit(X, D)
    plain = SnefyLDL(**SMALL.get_params()).fit(X, CITY.D)
    np.testing.assert_allclose(regressor.predict(X), plain.predict(X))
    interval = regressor.predict_interval(X, coverage=0.8)
    np.testing.assert_allclose(interval["green"][0.8].to_numpy(), plain.predict_interval(X, 0.8)[:, 2], atol=1e-8)
    assert regressor.predict_proba(X).loc[[120, 101], ["work"]].mean().shape == (2, 1)


def test_other_targets_are_scaled_and_come_back() -> None:
    y = pd.DataFrame({"u": 100.0 + 20.0 * CITY.D[:, 0], "v": -3.0 * CITY.D[:, 1]}, index=X.index)
    dist = SnefyRegressor(SMALL).fit(X, y).predict_proba(X)
    assert (dist.ppf(1e-3).to_numpy() >= y.min().to_numpy() - 0.06 * np.ptp(y.to_numpy(), axis=0)).all()
    # the density integrates to the cdf
    grid = np.linspace(95.0, 140.0, 4001)
    density = np.array([dist.iloc[0, 0].pdf(point) for point in grid[::20]])
    area = np.trapezoid(density, grid[::20])
    assert area == pytest.approx(dist.iloc[0, 0].cdf(140.0) - dist.iloc[0, 0].cdf(95.0), abs=2e-3)


def test_bounds_must_hold_the_targets() -> None:
    y = pd.DataFrame({"u": CITY.D[:, 0] * 5.0}, index=X.index)
    with pytest.raises(InputError, match="row"):
        SnefyRegressor(SMALL, bounds=(0.0, 1.0)).fit(X, y)
    with pytest.raises(InputError, match="auto"):
        SnefyRegressor(SMALL, bounds="wide").fit(X, y)


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.ascontiguousarray(values))


def test_energy_and_norm_equal_averages_over_draws() -> None:
    """With 40,000 draws an average strays by 5 standard errors once in two million times."""
    dist = SnefyDistribution.create_test_instance()
    generator = torch.Generator().manual_seed(0)
    first, second = (dist.rows.law.sample((40_000,), generator).numpy() for _ in range(2))
    apart = np.abs(first - second).sum(2)
    error = 5.0 * apart.std(0) / 200.0 + 1e-4
    assert (np.abs(dist.energy()["energy"] - apart.mean(0)) < error).all()
    away = np.abs(first - second[0]).sum(2)
    error = 5.0 * away.std(0) / 200.0 + 1e-4
    point = pd.DataFrame(second[0], index=dist.index, columns=dist.columns)
    assert (np.abs(dist.energy(point)["energy"] - away.mean(0)) < error).all()
    share = np.linspace(1e-6, 1 - 1e-6, 20_001)
    square = dist.rows.law.marginal(1).log_prob(_tensor(np.repeat(share[:, None], 5, 1))).exp().square()
    np.testing.assert_allclose(dist.pdfnorm()["b"], np.trapezoid(square.numpy(), share, axis=0), rtol=0.15)
