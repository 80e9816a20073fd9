"""CV+: every row trains and calibrates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from known_models import (
    METHODS,
    LinearModel,
    linear_data,
)
from scipy import stats
from sklearn.model_selection import KFold, ShuffleSplit

from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.metrics import coverage


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


@pytest.mark.slow
def test_cv_covers_and_leaves_the_template_unfitted():
    """60 data sets of 40 rows: CV+ promises 0.6 for c = 0.8 and gives about 0.8; standard error about 0.01."""
    template, found = LinearModel(), []
    for seed in range(60):
        X, D = linear_data(60, seed=100 + seed)
        ci = ConformalIntervals(template, 0.8, cv=5, method="chebyshev").conformalize(X[:40], D[:40])
        found.append(coverage(D[40:], ci.predict_interval(X[40:])))
    assert not hasattr(template, "regression_")
    assert len(ci.models_) == 5
    assert abs(np.mean(found) - 0.8) < 0.05


def test_cv_with_groups_and_with_too_few_rows():
    X, D = linear_data(80, seed=28)
    groups = np.where(np.arange(80) % 2 == 0, "even", "odd")
    ci = ConformalIntervals(LinearModel(), 0.8, cv=4, method="chebyshev").conformalize(X, D, groups=groups)
    ends = ci.predict_interval(X[:6], groups=groups[:6])
    even = groups == "even"
    alone = ConformalIntervals(LinearModel(), 0.8, cv=4, method="chebyshev").conformalize(X, D)
    alone = ConformalIntervals.from_dict(alone.models_, _only(alone.to_dict(), even))
    np.testing.assert_array_equal(ends[0:6:2], alone.predict_interval(X[0:6:2]))
    with pytest.warns(CalibrationWarning, match="not calibrated"):
        np.testing.assert_array_equal(ci.predict_interval(X[:1], groups=["new"])[0, 0], [0.0, 1.0])
    with pytest.warns(CalibrationWarning, match="6 calibration"):
        few = ConformalIntervals(LinearModel(), 0.9, cv=3, method="chebyshev").conformalize(X[:6], D[:6])
    np.testing.assert_array_equal(few.predict_interval(X[:2]), np.broadcast_to([0.0, 1.0], (2, 2, 2)))
    with pytest.raises(InputError, match="not supported with cv"):
        ConformalIntervals(LinearModel(), cv=3, method="chebyshev").conformalize(X, D, sample_weight=np.ones(80))
    with pytest.raises(InputError, match="two test folds"):
        ConformalIntervals(LinearModel(), cv=ShuffleSplit(4, random_state=0), method="chebyshev").conformalize(X, D)
    with pytest.raises(InputError, match="out of every test fold"):
        ConformalIntervals(LinearModel(), cv=ShuffleSplit(1, random_state=0), method="chebyshev").conformalize(X, D)


def _only(state, rows):
    """A stored calibration as if some of its rows had been all."""
    held = state["calibration"]
    scores = np.array(held["scores"]).reshape(held["shape"])[rows]
    calibration = {**held, "scores": scores.ravel().tolist(), "shape": list(scores.shape)}
    return {**state, "folds": np.array(state["folds"])[rows].tolist(), "calibration": calibration}
