"""Conformal intervals: the guarantee from both sides, its exact law, every edge, and agreement with other code."""

from __future__ import annotations

import importlib.util
import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from scipy import stats
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, ShuffleSplit

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion, coverage_report
from snefy_ldl.conformal.thresholds import rank, rows_needed
from snefy_ldl.distributions import blocks as laws
from snefy_ldl.errors import CalibrationWarning, InputError, NotConformalizedError
from snefy_ldl.metrics import coverage, group_coverage, joint_coverage
from snefy_ldl.synthetic import make_city_districts

METHODS = ("chebyshev", "quantile", "cdf")


# -- models whose truth is known ---------------------------------------------------------------------------------------


class KnownLaw:
    """A model that is exactly right about the data it draws; ``distort`` makes a wrong one of it."""

    def __init__(self, n_labels=3, n_neurons=3, seed=0, distort=1.0):
        rng = np.random.default_rng(seed)
        self.exponents = torch.as_tensor(rng.uniform(0.2, 4.0, (n_neurons, n_labels)))
        self.readout = torch.as_tensor(rng.normal(size=(2, n_neurons)))
        self.slopes = torch.as_tensor(rng.normal(size=(2, n_neurons)))
        self.distort = distort

    def predict_dist(self, X):
        scale = torch.as_tensor(np.asarray(X, dtype=np.float64)) @ self.slopes
        return SnefySimplex(self.distort * self.exponents, self.readout, scale)

    def wrong(self, distort=3.0):
        other = KnownLaw.__new__(KnownLaw)
        other.__dict__.update(self.__dict__, distort=distort)
        return other

    def draw(self, n, seed):
        X = np.random.default_rng(seed).normal(size=(n, 2))
        D = self.predict_dist(X).sample((), torch.Generator().manual_seed(seed)).numpy()
        return X, D / D.sum(1, keepdims=True)


class DirichletModel:
    """One Dirichlet a row whose concentrations depend on x, as an offset: what DirichletLDL predicts."""

    def __init__(self, n_labels=3, distort=1.0):
        self.slopes = np.random.default_rng(n_labels).normal(0.0, 0.5, (2, n_labels))
        self.distort = distort

    def predict_dist(self, X):
        alpha = torch.as_tensor(self.distort * 3.0 * np.exp(np.asarray(X) @ self.slopes))
        zero = torch.zeros(1, alpha.shape[1], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        return SnefySimplex(zero, one, torch.zeros(len(alpha), 1, dtype=torch.float64), offset=alpha - 1.0)

    def draw(self, n, seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 2))
        gammas = rng.standard_gamma(3.0 * np.exp(X @ self.slopes))
        return X, gammas / gammas.sum(1, keepdims=True)


class BetaModel:
    """Two labels, the first Beta(2, 5) whatever the features: one Dirichlet."""

    def predict_dist(self, X):
        w = torch.tensor([[0.5, 2.0]], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        return SnefySimplex(w, one, torch.zeros(len(X), 1, dtype=torch.float64))

    @staticmethod
    def draw(n, rng):
        first = rng.beta(2.0, 5.0, n)
        return np.zeros((n, 1)), np.column_stack([first, 1.0 - first])


class NormalMarginal:
    def __init__(self, mean, sd):
        self.law = stats.norm(mean, sd)

    def quantiles(self, alpha):
        return torch.as_tensor(np.stack([self.law.ppf(a) for a in alpha], axis=-1))

    def cdf(self, value):
        return torch.as_tensor(self.law.cdf(value.numpy()))

    def icdf(self, value):
        return torch.as_tensor(np.broadcast_to(self.law.ppf(value.numpy()), (len(value), len(self.law.args[0]))).copy())


class NormalLaw:
    """A user's own law: not a torch distribution, only the parts that are asked for."""

    def __init__(self, mean, sd):
        self._mean, self._sd = mean, np.broadcast_to(sd, mean.shape)
        self.event_shape = mean.shape[1:]

    @property
    def mean(self):
        return torch.as_tensor(self._mean)

    @property
    def variance(self):
        return torch.as_tensor(self._sd**2)

    def marginal(self, r):
        return NormalMarginal(self._mean[:, r], self._sd[:, r])


class LinearModel(BaseEstimator):
    """Least squares on the first label and a normal law of fixed width: a user's own estimator."""

    def __init__(self, sd=0.1):
        self.sd = sd

    def fit(self, X, D):
        self.regression_ = LinearRegression().fit(np.asarray(X), D[:, 0])
        return self

    def predict_dist(self, X):
        first = self.regression_.predict(np.asarray(X))
        return NormalLaw(np.column_stack([first, 1.0 - first]), self.sd)


def linear_data(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    first = np.clip(0.5 + 0.05 * X[:, 0] + 0.03 * rng.normal(size=n), 0.01, 0.99)
    return X, np.column_stack([first, 1.0 - first])


# -- the guarantee -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("simultaneous", [False, True])
def test_coverage_from_both_sides_with_a_wrong_model(method, simultaneous):
    """Mean coverage over splits is ⌈c(n+1)⌉/(n+1) for continuous scores, whatever the model.

    Tolerance: 4.5 standard errors, a false alarm about once in 150,000 seeds for each of the checks.
    """
    n_splits, n_cal, n_test, level = 250, 40, 60, 0.9
    model = DirichletModel(distort=3.0)
    X, D = DirichletModel().draw(n_splits * (n_cal + n_test), seed=2)
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


def test_coverage_given_the_calibration_rows_follows_the_exact_beta_law():
    """P(covered | calibration) ~ Beta(k, n+1-k), k = ⌈c(n+1)⌉; Kolmogorov-Smirnov over 800 calibrations.

    With the right law the score |F - 1/2| is uniform on [0, 1/2], so the coverage is exactly 2 q̂; the coverage of a
    Chebyshev interval is the exact Beta probability of it.
    """
    n, level, rng, model = 30, 0.8, np.random.default_rng(3), BetaModel()
    k = rank(level, n)
    law = stats.beta(k, n + 1 - k)
    share = stats.beta(2.0, 5.0)
    by_cdf, by_chebyshev = [], []
    for _ in range(800):
        X, D = model.draw(n, rng)
        by_cdf.append(2.0 * ConformalIntervals(model, level, "cdf").conformalize(X, D).thresholds_[0, 0])
        low, high = ConformalIntervals(model, level).conformalize(X, D).predict_interval(X[:1])[0, 0]
        by_chebyshev.append(share.cdf(high) - share.cdf(low))
    for found in (by_cdf, by_chebyshev):
        assert stats.kstest(found, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_thresholds_approach_the_known_truth(method):
    """The right model needs no correction: cdf thresholds 2q̂ -> c, quantile shifts -> 0, intervals -> the truth's."""
    truth = KnownLaw(seed=4)
    X, D = truth.draw(3000, seed=5)
    ci = ConformalIntervals(truth, 0.9, method).conformalize(X, D)
    if method == "cdf":  # the standard error of a 0.9 quantile of uniforms on 3,000 rows is 0.0055
        np.testing.assert_allclose(2.0 * ci.thresholds_, 0.9, atol=4.5 * 0.0055)
    if method == "quantile":
        np.testing.assert_allclose(ci.thresholds_, 0.0, atol=0.02)
    if method != "chebyshev":
        exact = np.stack([truth.predict_dist(X[:50]).marginal(r).quantiles([0.05, 0.95]) for r in range(3)], axis=1)
        np.testing.assert_allclose(ci.predict_interval(X[:50]), exact, atol=0.02)


class CityTruth:
    """The synthetic cities' own law, behind the same two methods a model has."""

    def __init__(self, truth):
        self.truth = truth

    def predict_dist(self, X):
        law = NormalLaw(self.truth.mean(X), np.sqrt(self.truth.variance(X)))
        truth = self.truth

        class Marginal:
            def __init__(self, r):
                self.r = r

            def quantiles(self, alpha):
                return torch.as_tensor(truth.quantiles(X, alpha)[:, self.r])

            def cdf(self, value):
                return torch.as_tensor(truth.cdf(X, np.repeat(value.numpy()[:, None], truth.n_labels, 1))[:, self.r])

            def icdf(self, value):
                levels = value.numpy()[:, 0]
                return torch.as_tensor(truth.quantiles(X, levels)[:, self.r].T)

        law.marginal = Marginal
        return law


@pytest.mark.parametrize("method", ["quantile", "cdf"])
def test_intervals_match_the_synthetic_truth(method):
    city = make_city_districts(n=1500, random_state=6)
    ci = ConformalIntervals(CityTruth(city.truth), 0.9, method).conformalize(city.X[:1400], city.D[:1400])
    exact = city.truth.interval(city.X[1400:], 0.9)
    assert np.abs(ci.predict_interval(city.X[1400:]) - exact).mean() < 0.01
    np.testing.assert_allclose(ci.predict_interval(city.X[1400:]), exact, atol=0.06)


# -- against other code ------------------------------------------------------------------------------------------------


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
    truth = KnownLaw(seed=8)
    X, D = truth.draw(80, seed=9)
    ci = ConformalIntervals(truth, 0.9).conformalize(X[:60], D[:60])
    law = truth.predict_dist(X)
    mean, sd = law.mean.numpy(), law.variance.sqrt().numpy()
    k = np.sqrt(10.0)
    q = np.sort(np.abs(D - mean)[:60] / (k * sd[:60]), axis=0)[math.ceil(0.9 * 61) - 1]
    np.testing.assert_allclose(ci.thresholds_[0], q, rtol=1e-12)
    wanted = np.clip(np.stack([mean - k * q * sd, mean + k * q * sd], axis=-1), 0, 1)
    np.testing.assert_allclose(ci.predict_interval(X), wanted, atol=1e-12)


needs_mapie = pytest.mark.skipif(
    importlib.util.find_spec("mapie") is None, reason="MAPIE is not installed (pip install mapie); not a dependency"
)


class _First:
    """One output of a law as a scikit-learn regressor, for MAPIE."""

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
    from mapie.regression import ConformalizedQuantileRegressor, CrossConformalRegressor, SplitConformalRegressor

    X, D = linear_data(200, seed=10)
    X_new, _ = linear_data(50, seed=11)
    model = LinearModel().fit(X[:80], D[:80])
    mean = _First(lambda rows: model.predict_dist(rows).mean.numpy()[:, 0])
    for level in (0.8, 0.9):
        theirs = SplitConformalRegressor(mean, confidence_level=level, prefit=True)
        wanted = theirs.conformalize(X[80:], D[80:, 0]).predict_interval(X_new)[1][:, :, 0]
        ours = ConformalIntervals(model, level).conformalize(X[80:], D[80:]).predict_interval(X_new)[:, 0]
        np.testing.assert_allclose(ours, wanted, atol=1e-10)

        tails = [_First(lambda rows, a=a: model.predict_dist(rows).marginal(0).law.ppf(a)) for a in _tails(level)]
        theirs = ConformalizedQuantileRegressor([*tails, mean], confidence_level=level, prefit=True)
        theirs.conformalize(X[80:], D[80:, 0])
        wanted = theirs.predict_interval(X_new, symmetric_correction=True)[1][:, :, 0]
        ci = ConformalIntervals(model, level, "quantile").conformalize(X[80:], D[80:])
        np.testing.assert_allclose(ci.predict_interval(X_new)[:, 0], wanted, atol=1e-10)

        folds = KFold(5, shuffle=True, random_state=0)
        theirs = CrossConformalRegressor(LinearRegression(), confidence_level=level, method="plus", cv=folds)
        wanted = theirs.fit_conformalize(X, D[:, 0]).predict_interval(X_new)[1][:, :, 0]
        ci = ConformalIntervals(LinearModel(), level, cv=folds).conformalize(X, D)
        np.testing.assert_allclose(ci.predict_interval(X_new)[:, 0], wanted, atol=1e-10)


def _tails(level):
    return (1.0 - level) / 2.0, 1.0 - (1.0 - level) / 2.0


# -- edges -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_ranks_are_exact_and_rows_needed_is_the_edge(level):
    n = rows_needed(level)
    assert rank(level, n) <= n
    assert rank(level, n - 1) > n - 1
    for n in range(1, 400):  # integers out of 100, no floating point
        assert rank(level, n) == -(-round(100 * level) * (n + 1) // 100)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_rows_give_the_whole_range_and_one_warning(method):
    truth = KnownLaw()
    X, D = truth.draw(9, seed=12)
    with pytest.warns(CalibrationWarning, match="8 calibration") as caught:
        ci = ConformalIntervals(truth, [0.5, 0.9], method).conformalize(X[:8], D[:8])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    ends = ci.predict_interval(X)
    np.testing.assert_array_equal(ends[..., 1], np.broadcast_to([0.0, 1.0], (9, 3, 2)))
    assert (np.diff(ends[..., 0], axis=-1) < 1.0).any()
    nine = ConformalIntervals(truth, 0.9, method).conformalize(X, D)  # warnings are errors here
    assert np.isfinite(nine.thresholds_).all()


def test_one_calibration_row_works():
    truth = KnownLaw()
    X, D = truth.draw(5, seed=13)
    ends = ConformalIntervals(truth, 0.5).conformalize(X[:1], D[:1]).predict_interval(X[:1])
    low, high = ends[0, :, 0], ends[0, :, 1]
    assert ((low - 1e-12 <= D[0]) & (D[0] <= high + 1e-12)).all()


def test_ties_never_lower_coverage():
    """Discrete shares: every score occurs many times; the interval keeps at least its level of the calibration rows."""
    rng = np.random.default_rng(14)
    first = rng.integers(1, 5, 200) / 5.0
    D = np.column_stack([first, 1.0 - first])
    X = np.zeros((200, 1))
    for method in METHODS:
        ends = ConformalIntervals(BetaModel(), 0.7, method).conformalize(X, D).predict_interval(X)
        slack = np.array([-1e-9, 1e-9])
        assert coverage(D, np.clip(ends + slack, 0, 1)) >= 0.7


def test_labels_at_the_border_of_the_simplex():
    """Exact zeros and ones are ordinary values for every method."""
    D = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]] * 10)
    X = np.zeros((30, 1))
    for method in METHODS:
        ends = ConformalIntervals(BetaModel(), 0.9, method).conformalize(X, D).predict_interval(X)
        assert np.isfinite(ends).all()
        assert coverage(D, np.clip(ends + np.array([-1e-9, 1e-9]), 0, 1)) == 1.0


def test_a_law_without_spread():
    class Certain:
        def predict_dist(self, X):
            return NormalLaw(np.full((len(X), 2), 0.5), 0.0)

    X = np.zeros((20, 1))
    right, wrong = np.full((20, 2), 0.5), np.tile([0.4, 0.6], (20, 1))
    np.testing.assert_array_equal(ConformalIntervals(Certain()).conformalize(X, right).predict_interval(X), 0.5)
    ends = ConformalIntervals(Certain()).conformalize(X, wrong).predict_interval(X)
    np.testing.assert_array_equal(ends[..., 0], 0.0)  # infinitely wrong scores: nothing is known
    np.testing.assert_array_equal(ends[..., 1], 1.0)


def test_crossed_quantiles_become_a_point():
    """A model far too wide needs a negative shift; where the ends cross the answer is one point, never reversed."""
    X, D = linear_data(60, seed=15)
    model = LinearModel(sd=0.1).fit(X, D)
    model.predict_dist = lambda rows: NormalLaw(
        np.full((len(rows), 2), 0.5), np.linspace(0.01, 0.4, len(rows))[:, None]
    )
    ends = ConformalIntervals(model, 0.5, "quantile").conformalize(X, np.full((60, 2), 0.5)).predict_interval(X)
    assert (ends[..., 0] <= ends[..., 1]).all()
    assert (ends[..., 0] == ends[..., 1]).any()


def test_wrong_order_raises_a_named_error():
    ci = ConformalIntervals(KnownLaw())
    for call in (lambda: ci.predict_interval(np.zeros((2, 2))), ci.to_dict):
        with pytest.raises(NotConformalizedError, match="conformalize"):
            call()
    assert issubclass(NotConformalizedError, NotFittedError)
    with pytest.raises(NotConformalizedError):
        coverage_report(ci, np.zeros((2, 2)), np.full((2, 3), 1 / 3))


def test_the_model_is_unchanged():
    city = make_city_districts(n=120, random_state=0)
    model = SnefyLDL(n_neurons=8, n_readouts=4, hidden_sizes=(8,), epochs=2, random_state=0).fit(
        city.X[:60], city.D[:60]
    )
    before = {name: value.clone() for name, value in model.net_.state_dict().items()}
    settings, prediction = repr(model.get_params()), model.predict(city.X)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for method in METHODS:
        ConformalIntervals(model, 0.8, method).conformalize(city.X[60:], city.D[60:]).predict_interval(city.X)
    for method in ("density", "hpd", "mahalanobis"):
        region = ConformalRegion(model, 0.8, method, n_draws=50).conformalize(city.X[60:], city.D[60:])
        region.volume(city.X[:5], n=50)
        region.sample(city.X[:2], 3)
    after = model.net_.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert repr(model.get_params()) == settings
    np.testing.assert_array_equal(model.predict(city.X), prediction)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConformalIntervals(object()), "predict_dist"),
        (lambda: ConformalIntervals(KnownLaw(), 1.0), "strictly between 0 and 1"),
        (lambda: ConformalIntervals(KnownLaw(), []), "empty"),
        (lambda: ConformalIntervals(KnownLaw(), method="median"), "'chebyshev', 'quantile', 'cdf'"),
        (lambda: ConformalIntervals(KnownLaw(), small_groups="drop"), "small_groups"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bad_data_are_named():
    truth = KnownLaw()
    X, D = truth.draw(20, seed=16)
    ci = ConformalIntervals(truth)
    with pytest.raises(InputError, match="same number of rows"):
        ci.conformalize(X, D[:5])
    with pytest.raises(InputError, match="predicts 3"):
        ci.conformalize(X, np.full((20, 2), 0.5))
    with pytest.raises(InputError, match="sums to"):
        ci.conformalize(X, 2.0 * D)
    with pytest.raises(InputError, match="0 rows"):
        ci.conformalize(X[:0], D[:0])
    with pytest.raises(InputError, match="one group a row"):
        ci.conformalize(X, D, groups=["a"])
    with pytest.raises(InputError, match="groups row 1 is missing"):
        ci.conformalize(X, D, groups=["a", None] * 10)
    with pytest.raises(InputError, match="sample_weight row 0"):
        ci.conformalize(X, D, sample_weight=-np.ones(20))
    nan = KnownLaw()
    nan.predict_dist = lambda rows: NormalLaw(np.full((len(rows), 3), np.nan), 1.0)
    with pytest.raises(InputError, match="calibration row 0 is not a number"):
        ConformalIntervals(nan).conformalize(X, D)


def test_torch_laws_serve_where_they_can():
    class Torch:
        def predict_dist(self, X):
            return torch.distributions.Dirichlet(torch.full((len(X), 3), 2.0))

    D = np.random.default_rng(0).dirichlet([2, 2, 2], 50)
    ends = ConformalIntervals(Torch()).conformalize(np.zeros((50, 1)), D).predict_interval(np.zeros((4, 1)))
    assert ends.shape == (4, 3, 2)
    with pytest.raises(InputError, match='method="chebyshev"'):
        ConformalIntervals(Torch(), method="cdf").conformalize(np.zeros((50, 1)), D)


# -- levels, joint boxes, groups, weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_several_levels_at_once_equal_one_at_a_time_and_nest(method):
    truth = KnownLaw(seed=17)
    X, D = truth.draw(70, seed=18)
    levels = [0.5, 0.8, 0.95]
    ends = ConformalIntervals(truth, levels, method).conformalize(X[:50], D[:50]).predict_interval(X[50:])
    assert ends.shape == (20, 3, 2, 3)
    for a, level in enumerate(levels):
        one = ConformalIntervals(truth, level, method).conformalize(X[:50], D[:50]).predict_interval(X[50:])
        np.testing.assert_allclose(ends[..., a], one, atol=1e-12)
    if method != "quantile":  # its score differs by level, so nesting is usual, not certain
        assert (np.diff(ends[:, :, 0], axis=-1) <= 1e-12).all()
        assert (np.diff(ends[:, :, 1], axis=-1) >= -1e-12).all()


def test_simultaneous_thresholds_are_of_the_largest_score():
    truth = KnownLaw(n_labels=4, seed=19)
    X, D = truth.draw(200, seed=20)
    each = ConformalIntervals(truth, 0.8).conformalize(X, D)
    joint = ConformalIntervals(truth, 0.8, simultaneous=True).conformalize(X, D)
    law = truth.predict_dist(X)
    scores = (np.abs(D - law.mean.numpy()) / (np.sqrt(5.0) * law.variance.sqrt().numpy())).max(axis=1)
    assert joint.thresholds_.shape == (1, 1)
    np.testing.assert_allclose(joint.thresholds_[0, 0], np.sort(scores)[rank(0.8, 200) - 1], rtol=1e-12)
    assert (joint.thresholds_ >= each.thresholds_).all()


class TwoNoises:
    """One fixed law for rows of which some are far noisier than it says."""

    def predict_dist(self, X):
        return NormalLaw(np.full((len(X), 2), 0.5), 0.05)

    @staticmethod
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        groups = rng.choice(["calm", "wild"], n, p=[0.8, 0.2])
        first = np.clip(0.5 + np.where(groups == "wild", 0.15, 0.02) * rng.normal(size=n), 0, 1)
        return np.zeros((n, 1)), np.column_stack([first, 1.0 - first]), groups


def test_groups_are_covered_each():
    """Marginal calibration starves the wild group; Mondrian calibration does not. Standard error of each about 0.01."""
    X, D, groups = TwoNoises.draw(6000, seed=21)
    cal, new = slice(0, 2000), slice(2000, None)
    plain = ConformalIntervals(TwoNoises()).conformalize(X[cal], D[cal]).predict_interval(X[new])
    mondrian = ConformalIntervals(TwoNoises()).conformalize(X[cal], D[cal], groups=groups[cal])
    ends = mondrian.predict_interval(X[new], groups=groups[new])
    assert group_coverage(groups[new], D[new], plain)["wild"][0] < 0.7
    for share in group_coverage(groups[new], D[new], ends).values():
        assert abs(share[0] - 0.9) < 0.05


def test_small_and_unseen_groups():
    X, D, _ = TwoNoises.draw(103, seed=22)
    groups = np.array([1] * 100 + [2] * 3)
    new = [1.0, 2.0, 7.0]  # a group is its name: 1 and 1.0 are the same
    with pytest.warns(
        CalibrationWarning, match=r"1 group\(s\) have fewer than the 9.*'2' \(3\).*whole range"
    ) as caught:
        full = ConformalIntervals(TwoNoises()).conformalize(X, D, groups=groups)
    assert len(caught) == 1
    with pytest.warns(CalibrationWarning, match="1 of 3 rows.*not calibrated.*row 2"):
        ends = full.predict_interval(X[:3], groups=new)
    np.testing.assert_array_equal(ends[1:], np.broadcast_to([0.0, 1.0], (2, 2, 2)))
    assert (ends[0, :, 1] - ends[0, :, 0] < 0.9).all()

    with pytest.warns(CalibrationWarning, match="share the threshold of all rows"):
        pool = ConformalIntervals(TwoNoises(), small_groups="pool").conformalize(X, D, groups=groups)
    pooled = ConformalIntervals(TwoNoises()).conformalize(X, D).predict_interval(X[:2])
    np.testing.assert_array_equal(pool.predict_interval(X[:3], groups=new)[1:], pooled)

    with pytest.raises(InputError, match=r"'2' \(3\).*Merge groups"):
        ConformalIntervals(TwoNoises(), small_groups="error").conformalize(X, D, groups=groups)
    strict = ConformalIntervals(TwoNoises(), small_groups="error").conformalize(X[:100], D[:100], groups=groups[:100])
    with pytest.raises(InputError, match=r"group '7' \(row 2\)"):
        strict.predict_interval(X[:3], groups=[1, 1, 7])
    with pytest.raises(InputError, match="calibration used groups"):
        strict.predict_interval(X[:3])
    with pytest.raises(InputError, match="calibration used none"):
        ConformalIntervals(TwoNoises()).conformalize(X, D).predict_interval(X[:3], groups=new)


class Shifting:
    """Noise grows with x; the model does not know."""

    def predict_dist(self, X):
        return NormalLaw(np.full((len(X), 2), 0.5), 0.05)

    @staticmethod
    def draw(n, shift, rng):
        x = rng.normal(shift, 1.0, n)
        first = np.clip(0.5 + 0.04 * np.exp(0.5 * x) * rng.normal(size=n), 0, 1)
        return x[:, None], np.column_stack([first, 1.0 - first])

    @staticmethod
    def ratio(X):
        return np.exp(np.asarray(X)[:, 0] - 0.5)  # N(1, 1) against N(0, 1)


def test_weights_restore_coverage_under_covariate_shift():
    """30 repeats of 600 calibration and 200 shifted rows: the mean's standard error is below 0.006."""
    rng = np.random.default_rng(23)
    plain, weighted = [], []
    for _ in range(30):
        X, D = Shifting.draw(600, 0.0, rng)
        X_new, D_new = Shifting.draw(200, 1.0, rng)
        ci = ConformalIntervals(Shifting())
        plain.append(coverage(D_new, ci.conformalize(X, D).predict_interval(X_new)))
        ci.conformalize(X, D, sample_weight=Shifting.ratio)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)  # a row may outweigh all others: [0, 1] there
            ends = ci.predict_interval(X_new)
            again = ConformalIntervals(Shifting()).conformalize(X, D, sample_weight=3.0 * Shifting.ratio(X))
            np.testing.assert_array_equal(
                again.predict_interval(X_new, sample_weight=3.0 * Shifting.ratio(X_new)), ends
            )
        weighted.append(coverage(D_new, ends))
    assert np.mean(plain) < 0.82
    assert 0.9 - 0.025 < np.mean(weighted) < 0.9 + 0.04


def test_equal_weights_are_no_weights_and_heavy_rows_are_honest():
    truth = KnownLaw(seed=24)
    X, D = truth.draw(99, seed=25)
    for n in (9, 49, 99):
        plain = ConformalIntervals(truth, [0.5, 0.9]).conformalize(X[:n], D[:n]).predict_interval(X[:5])
        ci = ConformalIntervals(truth, [0.5, 0.9]).conformalize(X[:n], D[:n], sample_weight=np.full(n, 0.1))
        np.testing.assert_array_equal(ci.predict_interval(X[:5], sample_weight=np.full(5, 0.1)), plain)
    with pytest.raises(InputError, match="calibration used weights"):
        ci.predict_interval(X[:5])
    with pytest.warns(CalibrationWarning, match="1 of 5 rows.*outweigh.*row 3"):
        ends = ci.predict_interval(X[:5], sample_weight=[0.1, 0.1, 0.1, 100.0, 0.1])
    np.testing.assert_array_equal(ends[3], np.broadcast_to([[0.0], [1.0]], (3, 2, 2)))
    with pytest.raises(InputError, match="calibration used none"):
        ConformalIntervals(truth).conformalize(X, D).predict_interval(X[:5], sample_weight=np.ones(5))


# -- cross-conformal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("simultaneous", [False, True])
def test_cv_plus_is_the_order_statistic_of_the_held_out_ends(method, simultaneous):
    """Every calibration row's own interval written out, then sorted (Barber et al., 2021)."""
    X, D = linear_data(43, seed=26)
    X_new, _ = linear_data(6, seed=27)
    level, folds = 0.8, KFold(4, shuffle=True, random_state=1)
    ci = ConformalIntervals(LinearModel(), level, method, simultaneous, cv=folds).conformalize(X, D)
    low, high = np.empty((43, 6, 2)), np.empty((43, 6, 2))
    for train, test in folds.split(X):
        model = LinearModel().fit(X[train], D[train])
        mean, sd = model.predict_dist(X[test]).mean.numpy(), 0.1
        new = model.predict_dist(X_new).mean.numpy()
        z = stats.norm.ppf(0.9)
        residual = np.abs(D[test] - mean)
        score = {
            "chebyshev": residual / sd,
            "quantile": residual - z * sd,
            "cdf": stats.norm.cdf(residual / sd) - 0.5,
        }[method]
        if simultaneous:
            score = score.max(axis=1, keepdims=True)
        reach = {
            "chebyshev": score * sd,
            "quantile": z * sd + score,
            "cdf": sd * stats.norm.ppf(np.minimum(0.5 + score, 1.0)),
        }[method]
        low[test], high[test] = new - reach[:, None], new + reach[:, None]
    k_low, k_high = math.floor(round(0.2 * 44, 9)), math.ceil(round(0.8 * 44, 9))
    wanted = np.stack([np.sort(low, axis=0)[k_low - 1], np.sort(high, axis=0)[k_high - 1]], axis=-1)
    found = ci.predict_interval(X_new)
    np.testing.assert_allclose(found, np.clip(wanted, 0, 1), atol=1e-9)


def test_cv_covers_and_leaves_the_template_unfitted():
    """60 data sets of 40 rows: CV+ promises 0.6 for c = 0.8 and gives about 0.8; standard error about 0.01."""
    template, found = LinearModel(), []
    for seed in range(60):
        X, D = linear_data(60, seed=100 + seed)
        ci = ConformalIntervals(template, 0.8, cv=5).conformalize(X[:40], D[:40])
        found.append(coverage(D[40:], ci.predict_interval(X[40:])))
    assert not hasattr(template, "regression_")
    assert len(ci.models_) == 5
    assert abs(np.mean(found) - 0.8) < 0.05


def test_cv_with_groups_and_with_too_few_rows():
    X, D = linear_data(80, seed=28)
    groups = np.where(np.arange(80) % 2 == 0, "even", "odd")
    ci = ConformalIntervals(LinearModel(), 0.8, cv=4).conformalize(X, D, groups=groups)
    ends = ci.predict_interval(X[:6], groups=groups[:6])
    even = groups == "even"
    alone = ConformalIntervals(LinearModel(), 0.8, cv=4).conformalize(X, D)
    alone._set(_only(alone._calibration, even), alone.models_, alone._folds[even], 2)
    np.testing.assert_array_equal(ends[0:6:2], alone.predict_interval(X[0:6:2]))
    with pytest.warns(CalibrationWarning, match="not calibrated"):
        np.testing.assert_array_equal(ci.predict_interval(X[:1], groups=["new"])[0, 0], [0.0, 1.0])
    with pytest.warns(CalibrationWarning, match="6 calibration"):
        few = ConformalIntervals(LinearModel(), 0.9, cv=3).conformalize(X[:6], D[:6])
    np.testing.assert_array_equal(few.predict_interval(X[:2]), np.broadcast_to([0.0, 1.0], (2, 2, 2)))
    with pytest.raises(InputError, match="not supported with cv"):
        ConformalIntervals(LinearModel(), cv=3).conformalize(X, D, sample_weight=np.ones(80))
    with pytest.raises(InputError, match="two test folds"):
        ConformalIntervals(LinearModel(), cv=ShuffleSplit(4, random_state=0)).conformalize(X, D)
    with pytest.raises(InputError, match="out of every test fold"):
        ConformalIntervals(LinearModel(), cv=ShuffleSplit(1, random_state=0)).conformalize(X, D)


def _only(calibration, rows):
    from snefy_ldl.conformal.thresholds import Calibration

    return Calibration(calibration.scores[rows])


def test_cv_with_the_real_model():
    city = make_city_districts(n=60, random_state=1)
    small = SnefyLDL(n_neurons=4, n_readouts=2, hidden_sizes=(4,), epochs=2, random_state=0)
    ci = ConformalIntervals(small, 0.8, "cdf", cv=2).conformalize(city.X[:50], city.D[:50])
    ends = ci.predict_interval(city.X[50:])
    assert ends.shape == (10, 3, 2)
    assert (ends[..., 0] < ends[..., 1]).all()
    assert not hasattr(small, "net_")
    for fitted, (train, _) in zip(ci.models_, KFold(2).split(city.X[:50])):  # trained together, as if alone
        alone = clone(small).fit(city.X[train], city.D[train])
        np.testing.assert_allclose(fitted.predict(city.X), alone.predict(city.X), atol=1e-4)


# -- forms of input, memory, files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_rows_in_blocks_give_the_same_answer(method, monkeypatch):
    truth = KnownLaw(seed=29)
    X, D = truth.draw(60, seed=30)
    groups = np.arange(60) % 2
    whole = ConformalIntervals(truth, [0.5, 0.8], method).conformalize(X[:40], D[:40], groups=groups[:40])
    wanted = whole.predict_interval(X[40:], groups=groups[40:])
    monkeypatch.setattr(laws, "BLOCK_ROWS", 7)
    blocks = ConformalIntervals(truth, [0.5, 0.8], method).conformalize(X[:40], D[:40], groups=groups[:40])
    np.testing.assert_allclose(blocks.predict_interval(X[40:], groups=groups[40:]), wanted, atol=1e-9)
    X, D = linear_data(40, seed=31)
    cross = ConformalIntervals(LinearModel(), 0.8, cv=3).conformalize(X, D)
    monkeypatch.undo()
    again = ConformalIntervals(LinearModel(), 0.8, cv=3).conformalize(X, D)
    np.testing.assert_allclose(cross.predict_interval(X), again.predict_interval(X), atol=1e-12)


@pytest.mark.parametrize("convert", [pd.DataFrame, sp.csr_matrix, sp.coo_matrix, np.float32, np.ndarray.tolist])
def test_rows_of_every_form(convert, monkeypatch):
    city = make_city_districts(n=90, random_state=2)
    X = np.round(city.X, 1)
    model = SnefyLDL(n_neurons=4, n_readouts=2, hidden_sizes=(4,), epochs=1, random_state=0).fit(X[:40], city.D[:40])
    wanted = ConformalIntervals(model).conformalize(X[40:80], city.D[40:80]).predict_interval(X[80:])
    monkeypatch.setattr(laws, "BLOCK_ROWS", 16)
    ci = ConformalIntervals(model).conformalize(convert(X[40:80]), pd.DataFrame(city.D[40:80]))
    np.testing.assert_allclose(ci.predict_interval(convert(X[80:])), wanted, atol=1e-5)


def test_a_backbones_nested_tensors(monkeypatch):
    class Nested:
        def predict_dist(self, X):
            mean = 0.5 + 0.1 * X["a"][:, 0].numpy()
            return NormalLaw(np.column_stack([mean, 1.0 - mean]), 0.1)

    batch = {"a": torch.linspace(-1, 1, 30)[:, None], "b": (torch.zeros(30),)}
    D = np.tile([0.4, 0.6], (30, 1))
    wanted = ConformalIntervals(Nested()).conformalize(batch, D).predict_interval(batch)
    monkeypatch.setattr(laws, "BLOCK_ROWS", 8)
    np.testing.assert_array_equal(ConformalIntervals(Nested()).conformalize(batch, D).predict_interval(batch), wanted)


@pytest.mark.parametrize("method", METHODS)
def test_calibrations_survive_json(method):
    truth = KnownLaw(seed=32)
    X, D = truth.draw(80, seed=33)
    groups, weights = np.arange(80) % 2, np.linspace(1, 2, 80)
    ci = ConformalIntervals(truth, [0.5, 0.8], method, True).conformalize(X, D, groups=groups, sample_weight=weights)
    text = json.dumps(ci.to_dict(), allow_nan=False)
    back = ConformalIntervals.from_dict(truth, json.loads(text))
    asked = {"groups": groups[:9], "sample_weight": weights[:9]}
    np.testing.assert_array_equal(back.predict_interval(X[:9], **asked), ci.predict_interval(X[:9], **asked))
    one = ConformalIntervals(truth, 0.8, method).conformalize(X, D)
    again = ConformalIntervals.from_dict(truth, json.loads(json.dumps(one.to_dict())))
    assert again.predict_interval(X[:2]).shape == (2, 3, 2)
    with pytest.raises(InputError, match="not a calibration"):
        ConformalRegion.from_dict(truth, one.to_dict())
    with pytest.raises(InputError, match="format 99"):
        ConformalIntervals.from_dict(truth, {**one.to_dict(), "format": 99})


def test_infinite_scores_and_fold_models_survive_json():
    class Certain:
        def predict_dist(self, X):
            return NormalLaw(np.full((len(X), 2), 0.5), 0.0)

    X = np.zeros((20, 1))
    ci = ConformalIntervals(Certain()).conformalize(X, np.tile([0.4, 0.6], (20, 1)))
    back = ConformalIntervals.from_dict(Certain(), json.loads(json.dumps(ci.to_dict(), allow_nan=False)))
    assert np.isinf(back.thresholds_).all()
    X, D = linear_data(40, seed=34)
    cross = ConformalIntervals(LinearModel(), 0.8, cv=4).conformalize(X, D)
    state = json.loads(json.dumps(cross.to_dict()))
    back = ConformalIntervals.from_dict(cross.models_, state)
    np.testing.assert_array_equal(back.predict_interval(X), cross.predict_interval(X))
    with pytest.raises(InputError, match="4 fold models"):
        ConformalIntervals.from_dict(cross.models_[:3], state)


def test_repr_says_where_it_stands():
    ci = ConformalIntervals(KnownLaw())
    assert "not conformalized" in repr(ci)
    assert "20 calibration rows" in repr(ci.conformalize(*KnownLaw().draw(20, seed=0)))
