"""Measures of the LeWiDi shared tasks against independent formulas."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import wasserstein_distance

from snefy_ldl.errors import InputError
from snefy_ldl.metrics import cross_entropy, error_rate, manhattan, normalized_absolute_distance, wasserstein


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.ones(5), 20), rng.dirichlet(np.ones(5), 20)


def test_wasserstein_is_scipys(tables):
    true, predicted = tables
    place = np.arange(5)
    wanted = [wasserstein_distance(place, place, p, q) for p, q in zip(true, predicted)]
    assert_allclose(wasserstein(true, predicted, per_row=True), wanted)


def test_manhattan_and_cross_entropy(tables):
    true, predicted = tables
    assert_allclose(manhattan(true, predicted), np.abs(true - predicted).sum() / 20)
    assert_allclose(cross_entropy(true, predicted), -(true * np.log(predicted)).sum() / 20)


def test_votes_are_averaged_within_items_first():
    true, predicted, items = [1, 2, 5, 3], [1, 1, 5, 1], ["a", "a", "a", "b"]
    assert_allclose(error_rate(true, predicted, items), (1 / 3 + 1) / 2)
    assert_allclose(error_rate(true, predicted), 0.5)
    assert_allclose(normalized_absolute_distance(true, predicted, items, span=4), ((0.25 / 3) + 0.5) / 2)
    assert error_rate(true, predicted, items, return_std_error=True)[1] > 0
    with pytest.raises(InputError, match="equally long"):
        error_rate([1], [1, 2])
    with pytest.raises(InputError, match="one item per vote"):
        error_rate([1, 2], [1, 2], [1])
    with pytest.raises(InputError, match="above 0"):
        normalized_absolute_distance([1, 1], [1, 2])
