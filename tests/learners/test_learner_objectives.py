"""Objectives, gradients, optima and known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learner_cases import (
    D,
    X,
    softmax,
)
from scipy.special import rel_entr
from sklearn.linear_model import Ridge

from snefy_ldl.learners import AAKNN, ACPNN, DFLDL, LDLDPA, LDLLRR, SABFGS, SAIIS, PTBayes
from snefy_ldl.learners.learner import mean_kl
from snefy_ldl.learners.linear import CLIP, column_scale, leave_one_out
from snefy_ldl.learners.neural import leaf_probabilities


def test_ranking_term_equals_the_sum_over_all_ordered_pairs() -> None:
    P, rows = softmax(np.random.default_rng(0).normal(size=(6, 4))), D[:6]
    rows = np.concatenate([rows[:5], [[0.25, 0.25, 0.3, 0.2]]])  # with a tie
    naive = 0.0
    for p, d in zip(P, rows):
        for j in range(4):
            for k in range(4):
                order = 1.0 if d[j] > d[k] else 0.5 if d[j] == d[k] else 0.0
                guess = 1.0 / (1.0 + np.exp(-7.0 * (p[j] - p[k])))
                naive -= (d[j] - d[k]) ** 2 * (order * np.log(guess) + (1 - order) * np.log(1 - guess))
    found = LDLLRR(0.3, 7.0).fit(X, D)._rows(rows)(torch.from_numpy(np.log(P))).numpy()
    assert (found - rel_entr(rows, P).sum(axis=1)).mean() == pytest.approx(0.3 * naive / (2 * 6))


def test_percentile_terms_by_hand() -> None:
    P = softmax(np.random.default_rng(0).normal(size=D.shape))
    ranks = D.argsort(axis=1).argsort(axis=1) + 1.0  # no ties
    expected = rel_entr(D, P).sum(axis=1) - 0.3 / 4 * (ranks * P).sum(axis=1)
    expected += 5.0 * (D.var(axis=1) - P.var(axis=1)) ** 2
    np.testing.assert_allclose(LDLDPA(0.3, 5.0)._rows(D)(torch.from_numpy(np.log(P))), expected)


@pytest.mark.parametrize("l2", [0.0, 0.5, "auto"])
def test_iis_and_bfgs_reach_the_same_optimum(l2: Any) -> None:
    bfgs, iis = SABFGS(l2=l2).fit(X, D), SAIIS(l2=l2).fit(X, D)
    assert abs(bfgs.score(X, D) - iis.score(X, D)) < 1e-4
    np.testing.assert_allclose(iis.predict(X), bfgs.predict(X), atol=2e-3)
    assert mean_kl(bfgs.predict(X), iis.predict(X)) < 1e-4


def test_bfgs_optimum_is_a_stationary_point_in_plain_coordinates() -> None:
    model = SABFGS(l2=0.7, tol=1e-9).fit(X, D)
    scaled = np.clip((X - X.mean(axis=0)) / X.std(axis=0), -CLIP, CLIP)
    P = softmax(scaled @ model.coef_ + model.intercept_)
    assert np.abs(scaled.T @ (P - D) + 0.7 * model.coef_).max() < 1e-4
    assert np.abs((P - D).sum(axis=0)).max() < 1e-4


def test_decomposition_models_equal_fits_on_their_rows() -> None:
    model = DFLDL(l2=1.0, standardize=False, tol=1e-9).fit(X[:, :1], D)
    rows = D[:, 0] >= D[:, 1]  # the first ordered pair
    single = SABFGS(l2=1.0, standardize=False, tol=1e-9).fit(X[rows, :1], D[rows])
    logits = X[:, :1] @ model.coef_[:, :4] + model.intercept_[:4]
    np.testing.assert_allclose(softmax(logits), single.predict(X[:, :1]), atol=1e-4)


def test_fusion_by_hand() -> None:
    model = DFLDL(n_neighbors=3, standardize=False).fit(X[:, :1], D)
    near = D[np.argsort(np.abs(X[:, 0] - 3.3))[:3]].mean(axis=0)
    P = softmax((np.array([[3.3]]) @ model.coef_ + model.intercept_).reshape(-1, 4))
    expected = np.zeros(4)
    for p, (j, k) in zip(P, [(j, k) for j in range(4) for k in range(4) if j != k]):
        expected += (near[j] > near[k]) * p / 6
    np.testing.assert_allclose(model.predict([[3.3]])[0], expected)


def test_naive_bayes_equals_scikit_learn_on_weighted_copies() -> None:
    from sklearn.decomposition import PCA
    from sklearn.naive_bayes import GaussianNB

    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    ours = PTBayes(0.5, standardize=False).fit(scaled, D)
    parts = PCA().fit_transform(scaled)
    theirs = GaussianNB(var_smoothing=0.5 / parts.var(axis=0).max())
    copies, labels = np.repeat(parts, 4, axis=0), np.tile(np.arange(4), len(X))
    theirs.fit(copies, labels, sample_weight=D.ravel())
    theirs.var_[:] = theirs.class_prior_ @ theirs.var_  # one variance for all labels
    np.testing.assert_allclose(ours.predict(scaled), theirs.predict_proba(parts), atol=1e-5)


def test_nearest_neighbours_by_hand() -> None:
    model = AAKNN(n_neighbors=3, weights="distance", standardize=False).fit(X[:, :1], D)
    distance = np.abs(X[:, 0] - 3.3)
    nearest = np.argsort(distance)[:3]
    weight = 1.0 / distance[nearest]
    np.testing.assert_allclose(model.predict([[3.3]])[0], weight @ D[nearest] / weight.sum())
    np.testing.assert_allclose(model.predict(X[:1, :1]), D[:1])  # a training row is its own neighbour


def test_augmented_copies_equal_their_mean() -> None:
    model = ACPNN(n_copies=2, strength=0.4)
    copies = []
    for v in (1, 2):
        copy = D.copy()
        copy[np.arange(len(D)), D.argmax(axis=1)] *= 1.0 + 0.4 / v
        copies.append(copy)
    np.testing.assert_allclose(model._targets(D), np.mean(copies, axis=0))


def test_leaf_probabilities_by_hand() -> None:
    values = torch.tensor([[0.3, -1.2, 2.0]], dtype=torch.float64)
    reach = leaf_probabilities(values, torch.tensor([[2, 0, 1]]), depth=2)
    root, left, right = torch.sigmoid(torch.tensor([2.0, 0.3, -1.2], dtype=torch.float64))
    expected = torch.stack([root * left, root * (1 - left), (1 - root) * right, (1 - root) * (1 - right)])
    torch.testing.assert_close(reach[0, 0], expected)


@pytest.mark.parametrize("n_features", [5, 40], ids=["tall", "wide"])
def test_leave_one_out_losses_equal_refits(n_features: int) -> None:
    features, labels = np.random.default_rng(0).normal(size=(15, n_features)), D[:15]
    penalties = np.array([0.5, 4.0])
    mean = labels.mean(axis=0)
    target = (labels - mean) / np.sqrt(mean)
    naive = np.empty((2, 15))
    for k, penalty in enumerate(penalties):
        for i in range(15):
            rest = np.delete(np.arange(15), i)
            ridge = Ridge(alpha=penalty * 4).fit(features[rest], target[rest])
            naive[k, i] = 0.5 * ((ridge.predict(features[[i]])[0] - target[i]) ** 2).sum()
    np.testing.assert_allclose(leave_one_out(features, labels, penalties), naive)


def test_automatic_scaling_follows_the_evidence() -> None:
    random = np.random.default_rng(0)
    signal, noise = 100.0 * random.normal(size=(200, 3)), 0.01 * random.normal(size=(200, 60))
    labels = softmax(signal @ random.normal(size=(3, 4)) / 100.0)
    damped = SABFGS().fit(np.concatenate([signal, noise], axis=1), labels)
    assert (damped.feature_inverse_scale_[3:] < 0.1 / 0.01).all()  # noise of tiny spread is not blown up
    mixed = SABFGS().fit(X, D)  # the same signal in other units: the unit-free scaling stays
    np.testing.assert_allclose(mixed.feature_inverse_scale_, 1.0 / X.std(axis=0))


def test_scaling_marks_constant_columns_and_survives_extremes() -> None:
    table = np.array([[1.0, 1e300, 1e-300, 7.1], [2.0, -1e300, 3e-300, 7.1], [3.0, 1e300, 2e-300, 7.1]])
    mean, inverse = column_scale(table)
    assert inverse[3] == 0.0
    assert np.isfinite(mean).all()
    np.testing.assert_allclose(((table - mean) * inverse)[:, 0], [-(1.5**0.5), 0.0, 1.5**0.5])
