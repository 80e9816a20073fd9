"""Conformal intervals keep their promise, agree with other code, and stand on the edges."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
from known_models import (
    METHODS,
    BetaModel,
    KnownModel,
    LinearModel,
    linear_data,
)
from scipy import stats
from sklearn.base import BaseEstimator

from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.conformal.thresholds import rank
from snefy_ldl.metrics import coverage, joint_coverage


@pytest.mark.parametrize(
    "method", [method if method == "chebyshev" else pytest.param(method, marks=pytest.mark.slow) for method in METHODS]
)
@pytest.mark.parametrize("simultaneous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_coverage_from_both_sides_with_a_wrong_model(method, simultaneous):
    """Mean coverage over splits is ⌈c(n+1)⌉/(n+1) for continuous scores and any model.

    Tolerance: 4.5 standard errors, a false alarm about once in 150,000 seeds for each of the checks.
    """
    n_splits = 250 if simultaneous else 150  # a row is covered or not, which varies more than a share of its labels
    n_cal, n_test, level = 40, 60, 0.9
    truth = KnownModel()
    model = truth.wrong()
    X, D = truth.draw(n_splits * (n_cal + n_test), seed=2)
    expected = rank(level, n_cal) / (n_cal + 1)
    assert level <= expected <= level + 1 / (n_cal + 1)
    found = []
    for X_split, D_split in zip(np.split(X, n_splits), np.split(D, n_splits)):
        ci = ConformalIntervals(model, level, method, simultaneous)
        ends = ci.conformalize(X_split[:n_cal], D_split[:n_cal]).predict_interval(X_split[n_cal:])
        measure = joint_coverage if simultaneous else coverage
        found.append(measure(D_split[n_cal:], ends))
    error = np.std(found, ddof=1) / np.sqrt(n_splits)
    assert error < 0.005
    assert np.mean(found) > level - 4.5 * error
    assert abs(np.mean(found) - expected) < 4.5 * error


@pytest.mark.slow
def test_coverage_given_the_calibration_rows_follows_the_exact_beta_distribution():
    """P(covered | calibration) ~ Beta(k, n+1-k), k = ⌈c(n+1)⌉; Kolmogorov-Smirnov over 400 calibrations.

    With the right distribution the score |F - 1/2| is uniform on [0, 1/2], so the coverage is exactly 2 q̂; the coverage
    of a Chebyshev interval is the exact Beta probability of it.
    """
    n, level, rng, model = 30, 0.8, np.random.default_rng(3), BetaModel()
    k = rank(level, n)
    dist = stats.beta(k, n + 1 - k)
    share = stats.beta(2.0, 5.0)
    by_cdf, by_chebyshev = [], []
    for _ in range(400):
        X, D = model.draw(n, rng)
        by_cdf.append(2.0 * ConformalIntervals(model, level, "cdf").conformalize(X, D).thresholds_[0, 0])
        low, high = (
            ConformalIntervals(model, level, method="chebyshev").conformalize(X, D).predict_interval(X[:1])[0, 0]
        )
        by_chebyshev.append(share.cdf(high) - share.cdf(low))
    for found in (by_cdf, by_chebyshev):
        assert stats.kstest(found, dist.cdf).pvalue > 1e-3


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_matches_split_conformal_written_by_hand(level):
    """Scores, ranks and ends from scipy's Beta alone."""
    rng = np.random.default_rng(7)
    X, D = BetaModel.draw(57, rng)
    share = stats.beta(2.0, 5.0)
    k = math.ceil(round(level * 58, 9))

    def threshold(scores):
        return sorted(scores)[k - 1]

    y = D[:, 0]
    q = threshold(np.abs(y - share.mean()) / share.std())
    chebyshev = np.clip([share.mean() - q * share.std(), share.mean() + q * share.std()], 0, 1)
    low, high = share.ppf([(1 - level) / 2, (1 + level) / 2])
    q = threshold(np.maximum(low - y, y - high))
    quantile = np.clip([low - q, high + q], 0, 1)
    q = threshold(np.abs(share.cdf(y) - 0.5))
    cdf = share.ppf([0.5 - q, 0.5 + q])
    for method, wanted in zip(METHODS, (chebyshev, quantile, cdf)):
        found = ConformalIntervals(BetaModel(), level, method).conformalize(X, D).predict_interval(X[:2])
        np.testing.assert_allclose(found[0, 0], wanted, atol=1e-10)
        np.testing.assert_allclose(found[1, 1], 1.0 - wanted[::-1], atol=1e-9)


def test_chebyshev_is_the_papers_score():
    """q̂ is the ⌈0.9(N+1)⌉-th of |ℓ - E| / (k sd) with k = √10, and the interval E ± k q̂ sd."""
    truth = KnownModel(seed=8)
    X, D = truth.draw(80, seed=9)
    ci = ConformalIntervals(truth, 0.9, method="chebyshev").conformalize(X[:60], D[:60])
    dist = truth.predict_dist(X)
    mean, sd = dist.mean.numpy(), dist.variance.sqrt().numpy()
    k = np.sqrt(10.0)
    q = np.sort(np.abs(D - mean)[:60] / (k * sd[:60]), axis=0)[math.ceil(0.9 * 61) - 1]
    np.testing.assert_allclose(ci.thresholds_[0], q, rtol=1e-12)
    wanted = np.clip(np.stack([mean - k * q * sd, mean + k * q * sd], axis=-1), 0, 1)
    np.testing.assert_allclose(ci.predict_interval(X), wanted, atol=1e-12)


needs_mapie = pytest.mark.skipif(
    importlib.util.find_spec("mapie") is None, reason="MAPIE is not installed (pip install mapie); not a dependency"
)


class _First:
    """One output of a distribution as a scikit-learn regressor, for MAPIE."""

    def __new__(cls, answer):
        from sklearn.base import RegressorMixin

        class Regressor(RegressorMixin, BaseEstimator):
            def fit(self, X, y):
                return self

            def predict(self, X):
                return answer(X)

            def __sklearn_is_fitted__(self):
                return True

        return Regressor()


@needs_mapie
@pytest.mark.filterwarnings("ignore")
def test_agrees_with_mapie_on_one_label():
    from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor

    X, D = linear_data(200, seed=10)
    X_new, _ = linear_data(50, seed=11)
    model = LinearModel().fit(X[:80], D[:80])
    mean = _First(lambda rows: model.predict_dist(rows).mean.numpy()[:, 0])
    for level in (0.8, 0.9):
        theirs = SplitConformalRegressor(mean, confidence_level=level, prefit=True)
        wanted = theirs.conformalize(X[80:], D[80:, 0]).predict_interval(X_new)[1][:, :, 0]
        ours = (
            ConformalIntervals(model, level, method="chebyshev")
            .conformalize(X[80:], D[80:])
            .predict_interval(X_new)[:, 0]
        )
        np.testing.assert_allclose(ours, wanted, atol=1e-10)

        tails = [_First(lambda rows, a=a: model.predict_dist(rows).marginal(0).dist.ppf(a)) for a in _tails(level)]
        theirs = ConformalizedQuantileRegressor([*tails, mean], confidence_level=level, prefit=True)
        theirs.conformalize(X[80:], D[80:, 0])
        wanted = theirs.predict_interval(X_new, symmetric_correction=True)[1][:, :, 0]
        ci = ConformalIntervals(model, level, "quantile").conformalize(X[80:], D[80:])
        np.testing.assert_allclose(ci.predict_interval(X_new)[:, 0], wanted, atol=1e-10)


def _tails(level):
    return (1.0 - level) / 2.0, 1.0 - (1.0 - level) / 2.0
