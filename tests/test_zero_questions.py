"""A fitted model of labels with zeros: every question of its predicted laws, from fit to answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import coverage_report
from snefy_ldl.distributions import ConditionedDraws, ConditionedLaw
from snefy_ldl.metrics import joint_calibration_test, joint_pit

NAMES = ["oak", "pine", "fir", "ash"]


def trees(n: int, seed: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Shares of four kinds: which are there depends on the first feature, how much on the second."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    gammas = rng.gamma(np.exp(1.0 + 0.5 * np.outer(X[:, 1], [1.0, -1.0, 0.5, 0.0])))
    chance = 1.0 / (1.0 + np.exp(-np.outer(X[:, 0], [2.0, -2.0, 0.0, 1.0])))
    gammas[:, :3] *= rng.uniform(size=(n, 3)) < chance[:, :3]
    return X, pd.DataFrame(gammas / gammas.sum(1, keepdims=True), columns=NAMES)


@pytest.fixture(scope="module")
def model() -> SnefyLDL:
    X, D = trees(300, 0)
    recipe = {"n_neurons": 12, "n_readouts": 6, "hidden_sizes": (16,), "epochs": 25, "guides": None}
    return SnefyLDL(**recipe, zeros="model", random_state=0).fit(X, D)


@pytest.mark.slow
def test_predicted_laws_answer_conditions(model: SnefyLDL) -> None:
    X, _ = trees(6, 1)
    law = model.predict_dist(X)
    assert law.has_atoms
    without = law.condition({"oak": 0.0})
    assert isinstance(without, ConditionedLaw)
    assert (without.mean[:, 0] == 0.0).all()
    np.testing.assert_allclose(without.mean.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(without.log_prob_known.exp(), model.predict_zero(X)["oak"], rtol=1e-4)
    known = law.condition({"ash": 0.5, "fir": 0.0}, n_draws=2000, generator=torch.Generator().manual_seed(0))
    assert isinstance(known, ConditionedDraws)
    assert (known.effective_draws > 50).all()
    np.testing.assert_allclose(known.mean[:, 2:], np.tile([0.0, 0.5], (6, 1)), atol=1e-6)
    # P(oak absent) P(pine absent | oak absent) = P(both absent)
    in_turn = without.log_prob_known.exp() * without.prob_zero()[:, 1]
    np.testing.assert_allclose(in_turn, law.weights() @ law.family.components.prob_absent([0, 1]), atol=1e-5)


@pytest.mark.slow
def test_predicted_laws_go_to_uniforms_and_back(model: SnefyLDL, tmp_path) -> None:
    X, D = trees(400, 2)
    law = model.predict_dist(X)
    u = law.rosenblatt(D.to_numpy(), random_state=0)
    assert u.shape == (400, 3)
    np.testing.assert_allclose(law.inverse_rosenblatt(u), D, atol=1e-8)
    np.testing.assert_array_equal(SnefyLDL.load(model.save(tmp_path / "m")).predict_dist(X).rosenblatt(D.to_numpy()), u)
    # draws of the model itself are jointly calibrated; at false alarms of 1e-4 with a fixed seed
    draws = law.sample(generator=torch.Generator().manual_seed(1)).double().numpy()
    draws = draws / draws.sum(1, keepdims=True)
    assert joint_calibration_test(joint_pit(model, X, draws), false_alarm=1e-4).calibrated
    backwards = joint_pit(model, X, draws[::-1])
    assert not joint_calibration_test(backwards, false_alarm=1e-4).calibrated
    assert coverage_report(model, X, D).joint_calibration[""].n == 400
