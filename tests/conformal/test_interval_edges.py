"""Conformal intervals if rows are few, tied, degenerate or wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_models import (
    METHODS,
    BetaModel,
    KnownModel,
    LinearModel,
    NormalDistribution,
    linear_data,
)
from sklearn.exceptions import NotFittedError

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion, coverage_report
from snefy_ldl.conformal.thresholds import rank, rows_needed
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.metrics import coverage


@pytest.mark.parametrize("level", [0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_ranks_are_exact_and_rows_needed_is_the_edge(level):
    n = rows_needed(level)
    assert rank(level, n) <= n
    assert rank(level, n - 1) > n - 1
    for n in range(1, 400):  # integers out of 100, no floating point
        assert rank(level, n) == -(-round(100 * level) * (n + 1) // 100)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_rows_give_the_whole_range_and_one_warning(method):
    truth = KnownModel()
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
        with pytest.warns(CalibrationWarning, match="whole of"):  # true, but of no use, and said
            ends = ConformalIntervals(BetaModel(), 0.9, method).conformalize(X, D).predict_interval(X)
        assert np.isfinite(ends).all()
        assert coverage(D, np.clip(ends + np.array([-1e-9, 1e-9]), 0, 1)) == 1.0


def test_a_distribution_without_spread():
    class Certain:
        def predict_dist(self, X):
            return NormalDistribution(np.full((len(X), 2), 0.5), 0.0)

    X = np.zeros((20, 1))
    right, wrong = np.full((20, 2), 0.5), np.tile([0.4, 0.6], (20, 1))
    np.testing.assert_array_equal(
        ConformalIntervals(Certain(), method="chebyshev").conformalize(X, right).predict_interval(X), 0.5
    )
    ends = ConformalIntervals(Certain(), method="chebyshev").conformalize(X, wrong).predict_interval(X)
    np.testing.assert_array_equal(ends[..., 0], 0.0)  # infinitely wrong scores: nothing is known
    np.testing.assert_array_equal(ends[..., 1], 1.0)


def test_crossed_quantiles_become_a_point():
    """A model far too wide needs a negative shift; if the ends cross, the answer is one point, never reversed."""
    X, D = linear_data(60, seed=15)
    model = LinearModel(sd=0.1).fit(X, D)
    model.predict_dist = lambda rows: NormalDistribution(
        np.full((len(rows), 2), 0.5), np.linspace(0.01, 0.4, len(rows))[:, None]
    )
    ends = ConformalIntervals(model, 0.5, "quantile").conformalize(X, np.full((60, 2), 0.5)).predict_interval(X)
    assert (ends[..., 0] <= ends[..., 1]).all()
    assert (ends[..., 0] == ends[..., 1]).any()


def test_wrong_order_raises_a_named_error():
    ci = ConformalIntervals(KnownModel(), method="chebyshev")
    for call in (lambda: ci.predict_interval(np.zeros((2, 2))), ci.to_dict):
        with pytest.raises(NotFittedError, match="conformalize"):
            call()
    with pytest.raises(NotFittedError):
        coverage_report(ci, np.zeros((2, 2)), np.full((2, 3), 1 / 3))


@pytest.mark.slow
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
    for method in ("density", "hpd"):
        region = ConformalRegion(model, 0.8, method, n_draws=50).conformalize(city.X[60:], city.D[60:])
        region.volume(city.X[:5], n=50)
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
        (lambda: ConformalIntervals(object(), method="chebyshev"), "predict_dist"),
        (lambda: ConformalIntervals(KnownModel(), 1.0, method="chebyshev"), "strictly between 0 and 1"),
        (lambda: ConformalIntervals(KnownModel(), [], method="chebyshev"), "empty"),
        (
            lambda: ConformalIntervals(KnownModel(), method="median"),
            "'chebyshev', 'absolute', 'beta', 'outlying'",
        ),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bad_data_are_named():
    truth = KnownModel()
    X, D = truth.draw(20, seed=16)
    ci = ConformalIntervals(truth, method="chebyshev")
    with pytest.raises(InputError, match="same number of rows"):
        ci.conformalize(X, D[:5])
    with pytest.raises(InputError, match="predicts 3"):
        ci.conformalize(X, np.full((20, 2), 0.5))
    with pytest.raises(InputError, match="sums to"):
        ci.conformalize(X, 2.0 * D)
    with pytest.raises(InputError, match="0 rows"):
        ci.conformalize(X[:0], D[:0])
    with pytest.raises(InputError, match="one group per row"):
        ci.conformalize(X, D, groups=["a"])
    with pytest.raises(InputError, match="groups row 1 is missing"):
        ci.conformalize(X, D, groups=["a", None] * 10)
    nan = KnownModel()
    nan.predict_dist = lambda rows: NormalDistribution(np.full((len(rows), 3), np.nan), 1.0)
    with pytest.raises(InputError, match="calibration row 0 is not a number"):
        ConformalIntervals(nan, method="chebyshev").conformalize(X, D)


def test_distributions_of_torch_can_be_used():
    class Torch:
        def predict_dist(self, X):
            return torch.distributions.Dirichlet(torch.full((len(X), 3), 2.0))

    D = np.random.default_rng(0).dirichlet([2, 2, 2], 50)
    ends = (
        ConformalIntervals(Torch(), method="chebyshev")
        .conformalize(np.zeros((50, 1)), D)
        .predict_interval(np.zeros((4, 1)))
    )
    assert ends.shape == (4, 3, 2)
    with pytest.raises(InputError, match='method="chebyshev"'):
        ConformalIntervals(Torch(), method="cdf").conformalize(np.zeros((50, 1)), D)
