"""Rank and ordinal measures against scipy and by definition; every one is listed with its direction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from snefy_ldl import metrics
from snefy_ldl.errors import InputError

RANDOM = np.random.default_rng(0)
D, P = RANDOM.dirichlet(np.ones(5), size=30), RANDOM.dirichlet(np.ones(5), size=30)


def test_rank_correlations_are_scipys_with_ties() -> None:
    tied = np.round(D, 1)
    tied = np.where(tied.sum(axis=1, keepdims=True) > 0, tied, 1.0)
    tied /= tied.sum(axis=1, keepdims=True)
    for truth in (D, tied):
        expected = [stats.spearmanr(a, b).statistic for a, b in zip(truth, P)]
        np.testing.assert_allclose(metrics.spearman(truth, P, per_row=True), expected, atol=1e-12)
    flat = np.full((1, 5), 0.2)
    assert metrics.spearman(flat, P[:1]) == 0.0


def test_cumulative_distances_are_scipys_wasserstein_and_squares() -> None:
    place = np.arange(5)
    moved = np.array([stats.wasserstein_distance(place, place, a, b) for a, b in zip(D, P)])
    np.testing.assert_allclose(metrics.cumulative_absolute_distance(D, P, per_row=True), moved)
    F, G = D.cumsum(axis=1), P.cumsum(axis=1)
    np.testing.assert_allclose(metrics.ranked_probability_score(D, P, per_row=True), ((F - G) ** 2).sum(axis=1) / 4)


def test_largest_labels() -> None:
    for m in (1, 2, 5):
        hit = [np.argmax(a) in np.argsort(-b)[:m] for a, b in zip(D, P)]
        np.testing.assert_allclose(metrics.top_k_accuracy(D, P, m, per_row=True), hit)
    with pytest.raises(InputError, match="more than there are labels"):
        metrics.top_k_accuracy(D, P, 6)
    with pytest.raises(InputError, match="same shape"):
        metrics.top_k_accuracy(D, P[:3])


@pytest.mark.parametrize("name", metrics.MEASURES)
def test_directions_and_perfect_predictions(name: str) -> None:
    measure, higher = getattr(metrics, name), metrics.MEASURES[name]
    perfect, other = measure(D, D), measure(D, P)
    assert perfect > other if higher else perfect < other
    assert perfect == pytest.approx(1.0 if higher else 0.0, abs=1e-9)
    value, error = measure(D, P, return_std_error=True)
    assert value == pytest.approx(other)
    assert error > 0
