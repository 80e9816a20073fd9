"""Shares that are tiny but not zero: a table with a part of some 1e-11 is fitted as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl._internal.special import log_share
from snefy_ldl._internal.validation import check_distributions, spread_rest
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.learners import SABFGS, LDLForest
from snefy_ldl.learners.learner import PREDICTED_SHARE_FLOOR

QUICK = {"n_neurons": 10, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 4, "random_state": 0, "guides": None}


def ions(n: int, seed: int = 0, part: float = 1e-11) -> tuple[np.ndarray, np.ndarray]:
    """Five parts, log-ratios linear in four features with normal noise; the last part is tiny, by default like H+."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    slopes = rng.normal(size=(4, 5)) * np.array([0.3, 0.3, 0.3, 0.3, 0.8])
    logs = np.log([0.4, 0.3, 0.2, 0.1, part]) + X @ slopes
    logs += rng.normal(size=(n, 5)) * np.array([0.15, 0.15, 0.15, 0.15, 0.4])
    D = np.exp(logs - logs.max(1, keepdims=True))
    return X, D / D.sum(1, keepdims=True)


def test_refusing_zeros_accepts_tiny_shares():
    X, D = ions(60)
    assert np.isfinite(SnefyLDL(**QUICK, zeros="error").fit(X, D).log_prob(X, D)).all()
    D[7, 4] = 0.0
    with pytest.raises(InputError, match="D is zero at row 7"):
        SnefyLDL(**QUICK, zeros="error").fit(X, D / D.sum(1, keepdims=True))


@pytest.mark.parametrize("mode", ["shrink", "error"])
def test_no_policy_touches_tiny_shares(mode):
    D = np.array([[1.0, 1e-11], [1.0, 5e-324]])
    np.testing.assert_array_equal(ZeroPolicy.from_data(D, mode).apply(D), D)


def test_rows_with_exact_zeros_shrink_beside_tiny_ones():
    D = np.array([[1.0 - 4e-13, 4e-13], [1.0, 0.0]])
    lifted = ZeroPolicy.from_data(D, "shrink").apply(D)
    np.testing.assert_array_equal(lifted[0], D[0])
    assert lifted[1, 1] == pytest.approx(2e-13, rel=1e-12)


@pytest.mark.parametrize("size", [1e-40, 1e-300, 5e-324])
def test_closing_makes_no_zeros(size):
    D = np.array([[60.0, 40.05, size]])
    with pytest.warns(LabelWarning, match="percentages"):
        closed = check_distributions(D)[0]
    assert 0.0 < closed[0, 2] <= size


def test_single_precision_shares_below_its_smallest_normal_number_stay():
    D = np.array([[0.5, 0.5, 1e-40]], dtype=np.float32)
    assert check_distributions(D)[0][0, 2] == np.float64(np.float32(1e-40))
    assert float(log_share(torch.as_tensor(D))[0, 2]) == pytest.approx(np.log(1e-40), abs=1e-4)
    X, rows = ions(40)
    rows = np.float32(rows) * np.float32([1, 1, 1, 1, 1e-29])
    assert 0.0 < rows[:, 4].min() < 1e-40
    assert np.isfinite(SnefyLDL(**QUICK, zeros="error").fit(X, rows).log_prob(X, rows)).all()


def test_what_is_left_by_subtraction_is_nothing_where_it_is_rounding():
    D = np.array([[0.1, 0.2, 0.7 - 1e-16, np.nan, np.nan]])
    assert 1.0 - np.nansum(D) != 0.0
    np.testing.assert_array_equal(spread_rest(D)[0, 3:], 0.0)


@pytest.mark.parametrize("learner", [SABFGS(l2=1e-9), LDLForest(n_rounds=2, max_iter=3, random_state=0)])
def test_learners_predict_shares_as_small_as_those_they_saw(learner):
    X, D = ions(60)
    D = D * np.array([1.0, 1.0, 1.0, 1.0, 1e-3])
    D[:, 4] = np.maximum(D[:, 4], 1e-15)
    D /= D.sum(1, keepdims=True)
    learner.fit(np.zeros_like(X), D)
    assert learner.share_floor_ < PREDICTED_SHARE_FLOOR
    if isinstance(learner, LDLForest):
        assert np.asarray(learner.predict(X)).min() < PREDICTED_SHARE_FLOOR
