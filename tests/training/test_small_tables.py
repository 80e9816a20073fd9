"""Small tables: members that leave out one part each, a common stopping epoch, and the choice of the mean."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.training.plan import N_FOLDS, fold_rows


def make_rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(n, 2))
    logs = np.stack([X[:, 0], -X[:, 0], X[:, 1]], 1) + 0.3 * random.normal(size=(n, 1)) * [1.0, 1.0, -2.0]
    shares = np.exp(logs + 0.05 * random.normal(size=(n, 3)))
    return X, shares / shares.sum(1, keepdims=True)


@pytest.mark.parametrize("n", [30, 33, 101])
def test_every_row_is_a_validation_row(n: int) -> None:
    parts = fold_rows(np.arange(n) + 5, 3)
    assert len(parts) == N_FOLDS
    for train, valid in parts:
        assert sorted([*train.tolist(), *valid.tolist()]) == list(range(5, n + 5))
        assert len(valid) == -(-n // N_FOLDS)
    assert {row for _, valid in parts for row in valid.tolist()} == set(range(5, n + 5))


@pytest.mark.slow
def test_members_stop_at_one_epoch() -> None:
    model = SnefyLDL(n_neurons=8, n_readouts=4, epochs=4, random_state=0).fit(*make_rows(60))
    assert model.net_.n_members == N_FOLDS
    assert len(set(model.training_["best_epoch"])) == 1
    assert model.training_["rows"] + model.training_["validation_rows"] == 60
    again = SnefyLDL(n_neurons=8, n_readouts=4, epochs=4, random_state=0).fit(*make_rows(60))
    np.testing.assert_array_equal(model.predict(make_rows(60)[0]), again.predict(make_rows(60)[0]))


@pytest.mark.slow
def test_many_rows_are_fitted_as_before() -> None:
    model = SnefyLDL(n_neurons=6, n_readouts=3, epochs=1, random_state=0).fit(*make_rows(500))
    assert any("pooled" in one["name"] for one in model.candidates_)
