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
        for name, function in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
            expected = [function(a, b).statistic for a, b in zip(truth, P)]
            np.testing.assert_allclose(getattr(metrics, name)(truth, P, per_row=True), expected, atol=1e-12)
    flat = np.full((1, 5), 0.2)
    assert metrics.spearman(flat, P[:1]) == metrics.kendall(flat, P[:1]) == 0.0


def test_emd_is_scipys_wasserstein_and_cad_is_its_multiple() -> None:
    place = np.arange(5)
    moved = np.array([stats.wasserstein_distance(place, place, a, b) for a, b in zip(D, P)])
    np.testing.assert_allclose(metrics.cumulative_absolute_distance(D, P, per_row=True), moved)
    np.testing.assert_allclose(metrics.earth_movers_distance(D, P, per_row=True), moved / 4)


def test_squares_and_divergences_by_definition() -> None:
    F, G = D.cumsum(axis=1), P.cumsum(axis=1)
    np.testing.assert_allclose(metrics.ranked_probability_score(D, P, per_row=True), ((F - G) ** 2).sum(axis=1) / 4)
    A = 1 - np.abs(np.subtract.outer(range(5), range(5))) / 4
    quadratic = [np.sqrt((a - b) @ A @ (a - b)) for a, b in zip(D, P)]
    np.testing.assert_allclose(metrics.quadratic_form_distance(D, P, per_row=True), quadratic)
    js = 0.5 * (F * np.log(2 * F / (F + G)) + G * np.log(2 * G / (F + G))).sum(axis=1)
    np.testing.assert_allclose(metrics.cumulative_jensen_shannon(D, P, per_row=True), js, atol=1e-12)


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
