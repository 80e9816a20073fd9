"""Joint calibration: the transform against the distribution's own, and a test that sees what marginal tests cannot."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import joint_calibration_test, joint_pit


class Dirichlets:
    """A model whose every row has the same mixture of Dirichlets."""

    def __init__(self, *alpha: list[float]) -> None:
        self.alpha = torch.tensor(alpha, dtype=torch.float64)

    def predict_dist(self, X: object) -> SnefySimplex:
        weights = torch.full((len(np.asarray(X)), len(self.alpha)), 1.0 / len(self.alpha), dtype=torch.float64)
        return SnefySimplex.from_mixture(weights, self.alpha)

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


class WithZeros:
    """One label of two, absent with probability 0.3 and uniform otherwise; its model is a distribution, too."""

    label_names_ = ("a", "b")

    def rosenblatt(self, value: np.ndarray, random_state: int) -> torch.Tensor:
        share = value[:, :1]
        band = np.random.default_rng(random_state).random(share.shape)
        return torch.as_tensor(np.where(share == 0.0, 0.3 * band, 0.3 + 0.7 * share))

    def predict_dist(self, X: object) -> WithZeros:
        return self


def test_atoms_are_filled_by_draws_of_their_own_in_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    share = np.where(rng.random(2000) < 0.3, 0.0, rng.random(2000))
    X, D = np.zeros((2000, 1)), np.column_stack([share, 1.0 - share])
    monkeypatch.setattr("snefy_ldl._internal.dists.BLOCK_ROWS", 100)
    pit = joint_pit(WithZeros(), X, D, random_state=3)
    assert len(np.unique(pit)) == 2000  # were the blocks to share a seed, bands would repeat
    assert joint_calibration_test(pit).calibrated
    np.testing.assert_array_equal(pit, joint_pit(WithZeros(), X, D, random_state=3))
    atoms = share == 0.0
    other = joint_pit(WithZeros(), X, D, random_state=4)
    assert (pit[atoms] != other[atoms]).all()
    np.testing.assert_array_equal(pit[~atoms], other[~atoms])


def test_shares_are_aligned_by_name() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).dirichlet([1.0, 2.0], 30), columns=["a", "b"])
    distribution = SimpleNamespace(rosenblatt=WithZeros().rosenblatt, label_names=["a", "b"])
    for model, X in ((distribution, None), (WithZeros(), np.zeros((30, 1)))):
        np.testing.assert_array_equal(joint_pit(model, X, frame[["b", "a"]]), joint_pit(model, X, frame.to_numpy()))
        with pytest.raises(InputError, match="unknown: c; missing: b"):
            joint_pit(model, X, frame.rename(columns={"b": "c"}))


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
