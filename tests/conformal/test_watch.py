"""The watch for changes: false alarms at most as stated, changes found, p-values by hand, the command and the plot."""

from __future__ import annotations

import numpy as np
import pytest
from known_models import DirichletModel, LinearModel, ZeroModel, linear_data
from scipy import stats
from sklearn.exceptions import NotFittedError

from snefy_ldl.conformal import ConformalIntervals, ConformalRegion, watch
from snefy_ldl.errors import InputError


def test_p_values_by_hand_and_uniform():
    model = DirichletModel()
    X, D = model.draw(1050, seed=1)
    ci = ConformalIntervals(model.__class__(distort=3.0), 0.9, "chebyshev").conformalize(X[:50], D[:50])
    found = watch(ci, X[50:], D[50:], random_state=4)
    coins = np.random.default_rng(4).random((1000, 3))
    scores = ci.row_scores(X, D)
    for row in (0, 1, 17, 999):
        bag, score = scores[: 50 + row], scores[50 + row]
        wanted = ((bag > score).sum(axis=0) + coins[row] * ((bag == score).sum(axis=0) + 1)) / (len(bag) + 1)
        np.testing.assert_allclose(found.p_values[row], wanted)
    for label in range(3):
        assert stats.kstest(found.p_values[:, label], "uniform").pvalue > 1e-3
    assert not found.changed


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    """At 20 to 1: at most 5 % of 150 streams of 100 rows; binomial 4.5 standard errors, once in 150,000 seeds."""
    alarms = 0
    model = DirichletModel()
    X, D = model.draw(150 * 130, seed=2)
    for X_part, D_part in zip(np.split(X, 150), np.split(D, 150)):
        ci = ConformalIntervals(model, 0.8, "chebyshev").conformalize(X_part[:30], D_part[:30])
        alarms += watch(ci, X_part[30:], D_part[30:], alarm=20.0).changed
    assert alarms / 150 <= 0.05 + 4.5 * np.sqrt(0.05 * 0.95 / 150)


@pytest.mark.parametrize("made", [ConformalIntervals, ConformalRegion])
def test_a_change_is_found_soon_after_it_happened(made):
    model, other = DirichletModel(), DirichletModel(distort=6.0)
    X, D = model.draw(500, seed=3)
    calibrated = made(other).conformalize(X[:200], D[:200])
    rng = np.random.default_rng(0)
    shifted = D[350:] ** rng.uniform(1.5, 3.0, (150, 1))
    after = np.vstack([D[200:350], shifted / shifted.sum(axis=1, keepdims=True)])
    found = watch(calibrated, X[200:], after)
    assert found.changed
    assert 150 < found.alarm_row < 300
    assert "have changed since calibration: the evidence passed 100 to 1 at row" in str(found)
    calm = watch(calibrated, X[200:350], D[200:350])
    assert not calm.changed
    assert "no sign of a change" in str(calm)


def test_groups_zeros_and_refusals():
    model = ZeroModel(shift=1.0)
    X, D = model.draw(300, seed=4)
    groups = np.where(X[:, 0] > 0, "a", "b")
    ci = ConformalIntervals(model, 0.8, "chebyshev").conformalize(X[:150], D[:150], groups=groups[:150])
    found = watch(ci, X[150:], D[150:], groups=groups[150:])
    assert not found.changed
    with pytest.raises(InputError, match="give the groups"):
        watch(ci, X[150:], D[150:])
    with pytest.raises(InputError, match="above 1"):
        watch(ci, X[150:], D[150:], groups=groups[150:], alarm=1.0)
    with pytest.raises(NotFittedError):
        watch(ConformalIntervals(model), X, D)
    X, D = linear_data(40, seed=5)
    with pytest.raises(InputError, match="without cv"):
        watch(ConformalIntervals(LinearModel(), 0.8, "chebyshev", cv=2).conformalize(X, D), X, D)
