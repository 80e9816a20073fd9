"""Strategies on features, and diverse batches, against naive code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from queries import seeded
from snefy_ldl.active import query
from snefy_ldl.active.features import choose_apart, graph_density


def standard(X, reference=None):
    reference = X if reference is None else reference
    return np.clip((X - reference.mean(0)) / reference.std(0), -5, 5)


@pytest.mark.parametrize("labeled", [True, False])
def test_coreset_is_the_naive_greedy_choice(pool, city, labeled):
    Z = standard(pool)
    known = list(standard(city.X[:30], pool)) if labeled else []
    chosen = []
    if not labeled:
        chosen.append(int(np.argmin([np.sum((z - Z.mean(0)) ** 2) for z in Z])))
    while len(chosen) < 12:
        gaps = []
        for i, z in enumerate(Z):
            others = [math.dist(z, other) for other in known] + [math.dist(z, Z[j]) for j in chosen]
            gaps.append(-1.0 if i in chosen else min(others))
        chosen.append(int(np.argmax(gaps)))
    found, far = query("coreset", pool, 12, X_labeled=city.X[:30] if labeled else None, return_utilities=True)
    assert found.tolist() == chosen
    anchors = known if labeled else [Z[chosen[0]]]
    naive = [min(math.dist(z, other) for other in anchors) for z in Z]
    np.testing.assert_allclose(far, naive, atol=1e-6)


def test_graph_density_is_the_naive_sum(pool):
    Z = standard(pool)[:60]
    gaps = np.linalg.norm(Z[:, None] - Z[None], axis=2)
    near = np.zeros((60, 60), dtype=bool)
    for i in range(60):
        near[i, np.argsort(np.where(np.arange(60) == i, np.inf, gaps[i]))[:4]] = True
    sigma = np.mean(gaps[near] ** 2)
    near = near | near.T
    naive = np.array([np.mean(np.exp(-(gaps[i, near[i]] ** 2) / (2 * sigma))) for i in range(60)])
    density, graph = graph_density(Z, 4)
    np.testing.assert_allclose(density, naive, rtol=1e-9)
    np.testing.assert_array_equal(graph.toarray() > 0, near)
    values, chosen = naive.copy(), []
    for _ in range(10):
        pick = int(np.argmax(np.where(np.isin(np.arange(60), chosen), -np.inf, values)))
        values[near[pick]] -= values[pick]
        chosen.append(pick)
    found = query("graph_density", Z, 10, n_neighbors=4, standardize=False)
    assert found.tolist() == chosen


def test_kmeans_takes_a_row_of_each_cluster(rng):
    random = np.random.default_rng(0)
    centres = random.normal(0, 50, (8, 3))
    X = np.concatenate([centre + random.normal(0, 0.1, (20, 3)) for centre in centres])
    found = query("kmeans", X, 8, random_state=0, standardize=False)
    assert sorted(row // 20 for row in found) == list(range(8))
    for row in found:
        group = X[row // 20 * 20 : row // 20 * 20 + 20]
        assert np.argmin(np.linalg.norm(group - group.mean(0), axis=1)) == row % 20


@pytest.mark.slow
def test_kmeans_plusplus_draws_by_weight_and_squared_distance():
    Z = np.array([[0.0], [1.0], [3.0], [3.0]])
    weight = np.array([1.0, 2.0, 1.0, 0.5])
    count = np.zeros(4)
    for seed in range(2000):
        count[choose_apart(Z, weight, 1, "kmeans++", seeded(seed), labeled=np.zeros((1, 1)))[0]] += 1
    expected = weight * np.array([0.0, 1.0, 9.0, 9.0])
    found = stats.chisquare(count[1:], 2000 * expected[1:] / expected.sum())
    assert count[0] == 0
    assert found.pvalue > 1e-4  # false alarm once in ten thousand seeds; this one is fixed


@pytest.mark.parametrize("method", ["kmeans++", "kmeans"])
def test_equal_rows_and_zero_weights_still_fill_a_batch(method):
    Z = np.zeros((9, 2))
    assert len(set(choose_apart(Z, np.ones(9), 6, method, seeded(0)).tolist())) == 6
    assert len(set(choose_apart(Z, np.zeros(9), 9, method, seeded(0)).tolist())) == 9
    assert len(set(query("kmeans", Z, 7, random_state=0).tolist())) == 7
    assert len(set(query("coreset", Z, 7).tolist())) == 7
