"""Joint calibration: the transform against the law's own, and a test that sees what marginal tests cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conformal.known_laws import ZeroModel
from laws import mixture
from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import joint_calibration_test, joint_pit


class Dirichlets:
    """A model whose every row has the same mixture of Dirichlets."""

    def __init__(self, *alpha: list[float]) -> None:
        self.alpha = torch.tensor(alpha, dtype=torch.float64)

    def predict_dist(self, X: object) -> SnefySimplex:
        weights = torch.full((len(np.asarray(X)), len(self.alpha)), 1.0 / len(self.alpha), dtype=torch.float64)
        return mixture(weights, self.alpha)

    def draw(self, n: int, seed: int) -> np.ndarray:
        return self.predict_dist(np.zeros((n, 1))).sample(generator=torch.Generator().manual_seed(seed)).numpy()


def test_the_transform_is_the_laws_own() -> None:
    model = Dirichlets([2.0, 3.0, 4.0], [5.0, 1.0, 1.0])
    D, X = model.draw(40, 0), np.zeros((40, 1))
    pit = joint_pit(model, X, D)
    np.testing.assert_array_equal(pit, joint_pit(model.predict_dist(X), None, D))
    np.testing.assert_allclose(pit[:, 0], model.predict_dist(X).marginal(0).cdf(torch.as_tensor(D[:, 0])), atol=1e-9)
    with pytest.raises(InputError, match="same number of rows"):
        joint_pit(model, X[:10], D)
    with pytest.raises(InputError, match="no Rosenblatt map"):
        joint_pit(torch.distributions.Dirichlet(torch.ones(3)), None, D)


@pytest.mark.slow
def test_false_alarms_come_at_the_stated_rate() -> None:
    """300 tables of uniforms at 10 %: more than 50 alarms have a probability below 1e-4, none at all below 1e-13."""
    rng = np.random.default_rng(0)
    alarms = sum(not joint_calibration_test(rng.uniform(size=(200, 3)), false_alarm=0.1).calibrated for _ in range(300))
    assert 0 < alarms <= 50


def test_a_right_model_passes_and_wrong_ones_do_not() -> None:
    right, sharp = Dirichlets([2.0, 3.0, 4.0]), Dirichlets([4.0, 6.0, 8.0])
    D, X = right.draw(800, 1), np.zeros((800, 1))
    assert joint_calibration_test(joint_pit(right, X, D)).calibrated
    wrong = joint_calibration_test(joint_pit(sharp, X, D))
    assert not wrong.calibrated
    assert "the model is off" in str(wrong)


@pytest.mark.slow
def test_false_alarms_with_zeros_come_at_the_stated_rate() -> None:
    """80 tables of 60 rows at 10 %: more than 24 alarms have a probability below 1e-6, none at all below 3e-4."""
    model = ZeroModel()
    X, D = model.draw(80 * 60, 0)
    assert 0.1 < (D == 0.0).mean() < 0.6
    tables = joint_pit(model, X, D).reshape(80, 60, 2)
    alarms = sum(not joint_calibration_test(table, false_alarm=0.1).calibrated for table in tables)
    assert 0 < alarms <= 24
    # all rows at once: a right model is called off once in a hundred seeds, and this seed is fixed
    assert joint_calibration_test(tables.reshape(-1, 2)).calibrated
    assert not joint_calibration_test(joint_pit(ZeroModel(shift=1.0), X, D)).calibrated


def test_every_block_has_its_own_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ZeroModel()
    X, D = np.zeros((40, 2)), np.tile([0.0, 0.4, 0.6], (40, 1))
    monkeypatch.setattr("snefy_ldl._internal.laws.BLOCK_ROWS", 10)
    pit = joint_pit(model, X, D, random_state=3)
    assert len(np.unique(pit[:, 0])) == 40
    np.testing.assert_array_equal(pit, joint_pit(model, X, D, random_state=3))
    assert (pit[:, 0] != joint_pit(model, X, D, random_state=4)[:, 0]).all()
    np.testing.assert_allclose(pit[:, 1], pit[0, 1])


def test_dependence_that_every_margin_hides() -> None:
    """Uniform columns that are far out together: no column is odd, nor is a straight rank correlation."""
    rng = np.random.default_rng(2)
    first, sign = rng.uniform(size=1000), rng.choice([-1.0, 1.0], size=1000)
    pit = np.stack([first, 0.5 + sign * (first - 0.5)], 1)
    test = joint_calibration_test(pit)
    assert test.uniform.min() > 0.01
    assert abs(test.correlation[0, 1]) < 0.15
    assert not test.calibrated


def test_one_column_has_no_pairs() -> None:
    grid = ((np.arange(100) + 0.5) / 100)[:, None]
    assert joint_calibration_test(grid).p_value == 1.0
    assert joint_calibration_test(np.full((100, 2), 0.5)).p_value < 1e-6


@pytest.mark.parametrize(
    ("pit", "rate", "message"),
    [
        (np.full((30, 2), 1.5), 0.01, "values in"),
        (np.full(30, 0.5), 0.01, "array of values"),
        (np.full((5, 2), 0.5), 0.01, "at least 20 rows"),
        (np.full((30, 2), 0.5), 1.5, "false_alarm"),
    ],
)
def test_mistakes_are_named(pit: np.ndarray, rate: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        joint_calibration_test(pit, false_alarm=rate)
