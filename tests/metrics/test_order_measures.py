"""Ordinal measures against scipy and by definition; every one is listed with its direction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from snefy_ldl import metrics

RANDOM = np.random.default_rng(0)
D, P = RANDOM.dirichlet(np.ones(5), size=30), RANDOM.dirichlet(np.ones(5), size=30)


def test_cumulative_distances_are_scipys_wasserstein_and_squares() -> None:
    place = np.arange(5)
    moved = np.array([stats.wasserstein_distance(place, place, a, b) for a, b in zip(D, P)])
    np.testing.assert_allclose(metrics.cumulative_absolute_distance(D, P, per_row=True), moved)
    F, G = D.cumsum(axis=1), P.cumsum(axis=1)
    np.testing.assert_allclose(metrics.ranked_probability_score(D, P, per_row=True), ((F - G) ** 2).sum(axis=1) / 4)


@pytest.mark.parametrize("name", metrics.MEASURES)
def test_directions_and_perfect_predictions(name: str) -> None:
    measure, higher = getattr(metrics, name), metrics.MEASURES[name]
    perfect, other = measure(D, D), measure(D, P)
    assert perfect > other if higher else perfect < other
    assert perfect == pytest.approx(1.0 if higher else 0.0, abs=1e-9)
    value, error = measure(D, P, return_std_error=True)
    assert value == pytest.approx(other)
    assert error > 0
