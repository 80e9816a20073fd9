"""Calibration of noisy labels: votes by moments, posteriors against quadrature and by hand, recovery, files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import softmax

from snefy_ldl.errors import InputError
from snefy_ldl.learners import SABFGS
from snefy_ldl.learners.supervision import (
    LabelCalibrator,
    estimate_votes,
)
from snefy_ldl.metrics import kl_divergence

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 3))
TRUTH = softmax(X @ RANDOM.normal(size=(3, 4)) + 0.2 * RANDOM.normal(size=(300, 4)), axis=1)
NOISY = RANDOM.multinomial(10, TRUTH) / 10
QUICK = {"epochs": 10, "guides": None}


def test_votes_are_those_that_were_drawn() -> None:
    truth = np.random.default_rng(1).dirichlet(np.ones(5), size=4000)
    assert estimate_votes(np.random.default_rng(2).multinomial(12, truth) / 12, truth) == pytest.approx(12, rel=0.05)
    assert estimate_votes(truth, truth) == 1000.0
    with pytest.raises(InputError, match="same shape"):
        estimate_votes(truth, truth[:5])


@pytest.mark.slow
def test_the_update_is_bayes_by_quadrature() -> None:
    share = NOISY[:, :1] + NOISY[:, 1:2]
    two = np.hstack([share, 1 - share])
    model = LabelCalibrator(votes=6.5, density_params={"epochs": 3, "guides": None}, random_state=0).fit(X, two)
    mean, sd = model.calibrate(X[:3], two[:3])
    for row in range(3):
        dist = model.density_.predict_dist(X[row : row + 1])
        k = 6.5 * two[row]

        def weight(s: float, dist: Any = dist, k: Any = k) -> float:
            point = dist.mean.new_tensor([[s, 1 - s]])
            return float(dist.log_prob(point).exp()) * s ** k[0] * (1 - s) ** k[1]

        mass = quad(weight, 0, 1, epsabs=1e-12)[0]
        first = quad(lambda s: s * weight(s), 0, 1, epsabs=1e-12)[0] / mass
        second = quad(lambda s: s * s * weight(s), 0, 1, epsabs=1e-12)[0] / mass
        assert mean[row, 0] == pytest.approx(first, abs=1e-4)
        assert sd[row, 0] == pytest.approx(np.sqrt(second - first**2), abs=1e-3)


@pytest.mark.slow
def test_calibrated_labels_are_nearer_to_the_truth() -> None:
    lifted = (10 * NOISY + 0.5) / 12
    model = LabelCalibrator(votes=10, density_params=QUICK, random_state=0).fit(X, NOISY)
    observed = kl_divergence(TRUTH, lifted)
    assert kl_divergence(TRUTH, model.transform()) < 0.7 * observed
    np.testing.assert_allclose(model.calibrate(X, NOISY)[0], model.transform(), atol=1e-6)


@pytest.mark.slow
def test_many_votes_leave_labels_alone_and_unknown_votes_are_a_lower_bound() -> None:
    certain = LabelCalibrator(votes=1e6, density_params={"epochs": 2, "guides": None}, random_state=0).fit(X, TRUTH)
    assert np.abs(certain.transform() - TRUTH).max() < 1e-2
    guessed = LabelCalibrator(density_params={"epochs": 2, "guides": None}, random_state=0).fit(X, NOISY)
    assert 5 < guessed.votes_ < 12
    out = [SABFGS().fit(X[:150], NOISY[:150]).predict(X[150:]), NOISY[150:]]
    assert guessed.votes_ == pytest.approx(estimate_votes(out[1], out[0]), rel=0.3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (LabelCalibrator(votes="some"), "votes"),
        (LabelCalibrator(votes=0.0), "votes"),
        (LabelCalibrator(density_params={"x": 1}), "density"),
    ],
)
def test_bad_settings(model: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model.fit(X, NOISY)
