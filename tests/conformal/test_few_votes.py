"""Calibration on proportions of few votes: the default is informative, and a method that is not causes a warning."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import CalibrationWarning


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
def test_a_method_that_says_nothing_is_told_on_at_once(votes):
    model, X, D = votes
    with pytest.warns(CalibrationWarning, match=r"uninformative: .* whole of .* exactly 0 or 1 \(few votes per row"):
        ConformalIntervals(model, 0.9, method="cdf").conformalize(X, D)
