"""Calibration on proportions of few votes: the default says something, and a method that does not is told on."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import CalibrationWarning
from snefy_ldl.metrics import coverage, interval_width


@pytest.fixture(scope="module")
def votes():
    """A model fitted to three votes per item, and further items: features and proportions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    weights = np.exp(np.stack([X[:, 0], X[:, 1], np.zeros(500), np.full(500, -1.0)], axis=1))
    shares = [rng.dirichlet(3.0 * row / row.sum()) for row in weights]
    counts = np.array([rng.multinomial(3, row) for row in shares])
    model = SnefyLDL(n_neurons=12, n_readouts=6, epochs=5, random_state=0).fit(X[:200], counts=counts[:200])
    return model, X[200:], counts[200:] / 3.0


@pytest.mark.slow
def test_auto_says_something_about_few_votes(votes):
    model, X, D = votes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = ConformalIntervals(model, 0.9, method="auto").conformalize(X[:150], D[:150])
    assert made.method != "cdf"  # which gives [0, 1] to every share here
    ends = made.predict_interval(X[150:])
    assert interval_width(ends) < 0.85
    assert coverage(D[150:], ends) > 0.85
    again = ConformalIntervals.from_dict(model, made.to_dict())
    np.testing.assert_array_equal(again.predict_interval(X[150:]), ends)


@pytest.mark.slow
def test_a_method_that_says_nothing_is_told_on_at_once(votes):
    model, X, D = votes
    with pytest.warns(CalibrationWarning, match=r"say nothing: .* whole of .* exactly 0 or 1 \(few votes per row"):
        ConformalIntervals(model, 0.9, method="cdf").conformalize(X, D)
