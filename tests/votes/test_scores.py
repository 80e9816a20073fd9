"""Scores of predicted votes, each against another way to the same number."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.votes.held_out import (
    brier_score,
    calibrate_counts,
    evaluate,
    log_likelihood,
    noise_ceiling,
    predictive_cdf,
)


def test_log_likelihood_with_gaps_sums_to_one(snefy: Callable[..., SnefySimplex]) -> None:
    """Over all outcomes of two votes on the labels that are counted."""
    dist = snefy(3, batch=(1,), members=2)
    outcomes = [[2, 0], [1, 1], [0, 2]]
    wide = dist.expand((3,))
    table = np.array([[a, np.nan, b] for a, b in outcomes], dtype=float)
    assert np.exp(log_likelihood(wide, table)).sum() == pytest.approx(1.0, abs=1e-12)


def test_brier_is_the_mean_over_single_votes() -> None:
    rng = np.random.default_rng(0)
    mean, counts = rng.dirichlet(np.ones(3), 5), rng.integers(0, 4, (5, 3)) + np.eye(3)[rng.integers(0, 3, 5)]
    expected = []
    for p, k in zip(mean, counts.astype(int)):
        votes = np.eye(3)[np.repeat(np.arange(3), k)]
        expected.append(np.square(p - votes).sum(1).mean())
    np.testing.assert_allclose(brier_score(mean, counts), expected)
    with pytest.raises(InputError, match="one shape"):
        brier_score(mean[:2], counts)


@pytest.mark.parametrize("seen", [False, True])
def test_predictive_cdf_by_enumeration(snefy: Callable[..., SnefySimplex], seen: bool) -> None:
    dist = snefy(3, batch=(2,), members=2)
    dist = dist.posterior(torch.tensor([[1.0, 0.0, 4.0], [0.0, 2.0, 0.0]])) if seen else dist
    counts = np.array([[2, 1, 0], [0, 1, 4]])
    found = predictive_cdf(dist, counts)
    for row, total in enumerate(counts.sum(1)):
        every = [k for k in itertools.product(range(total + 1), repeat=3) if sum(k) == total]
        chance = [float(dist.log_prob_counts(torch.tensor(k, dtype=torch.float64)).exp()[row]) for k in every]
        for label in range(3):
            for side in (0, 1):
                limit = counts[row, label] + side
                below = sum(p for p, k in zip(chance, every) if k[label] < limit)
                assert found[row, label, side] == pytest.approx(below, abs=0.1)  # 256 draws


def test_calibration_tells_right_laws_from_wrong_ones(snefy: Callable[..., SnefySimplex]) -> None:
    dist = snefy(3, batch=(1,), seed=4).expand((1500,))
    rng = np.random.default_rng(0)
    hidden = dist.sample((), torch.Generator().manual_seed(0)).numpy()
    counts = rng.multinomial(rng.integers(3, 12, 1500), hidden / hidden.sum(1, keepdims=True))
    right = calibrate_counts(dist, counts)
    assert right.error < 0.01
    assert right.histogram.sum() == pytest.approx(1.0)
    for level, share in right.coverage.items():
        assert share == pytest.approx(level, abs=0.03)
    sure = dist.posterior(torch.tensor([20.0, 20.0, 20.0]))
    assert calibrate_counts(sure, counts).error > 3 * right.error


def test_noise_ceiling_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([2.0, 1.0, 0.5], 4000)
    counts = rng.multinomial(8, shares)
    found = noise_ceiling(counts)
    assert found.brier == pytest.approx(np.mean(1 - np.square(shares).sum(1)), abs=0.015)
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1).mean()
    assert found.log_loss == pytest.approx(entropy, abs=0.05)
    assert found.squared_error == pytest.approx(np.square(counts / 8 - shares).sum(1).mean(), abs=0.004)
    # no prediction beats the floor: the truth itself reaches it
    assert brier_score(shares, counts).mean() == pytest.approx(found.brier, abs=0.02)
    with pytest.raises(InputError, match="two votes"):
        noise_ceiling([[1, 0], [0, 1]])


def test_evaluate_gathers_the_figures(snefy: Callable[..., SnefySimplex]) -> None:
    dist = snefy(3, batch=(4,))
    found = evaluate(dist, np.array([[1, 2, 0], [3, 0, 0], [1, 0, 0], [0, 2, 2]]))
    assert {"log_likelihood", "log_loss", "brier", "calibration_error", "brier_floor", "log_loss_floor"} == set(found)
    assert "brier_floor" not in evaluate(dist, np.eye(3)[[0, 1, 2, 0]])


def test_scores_with_labels_that_were_not_on_offer(snefy: Callable[..., SnefySimplex]) -> None:
    dist = snefy(3, batch=(3,))
    counts = np.array([[4.0, np.nan, 2.0], [1.0, 3.0, 2.0], [0.0, np.nan, 5.0]])
    among, whole = dist[[0, 2]].subcomposition([0, 2]), dist[[1]]
    parts = [evaluate(among, counts[[0, 2]][:, [0, 2]]), evaluate(whole, counts[[1]])]
    found = evaluate(dist, counts)
    for key in ("log_likelihood", "log_loss", "brier", "brier_floor"):
        assert found[key] == pytest.approx((2 * parts[0][key] + parts[1][key]) / 3)
    cdf = predictive_cdf(dist, counts)
    assert np.isnan(cdf[[0, 2], 1]).all()
    # two labels only: fewer than k votes for one are more than n - k for the other
    np.testing.assert_allclose(cdf[0, 0, 0], 1.0 - cdf[0, 2, 1], atol=1e-9)
    np.testing.assert_allclose(
        brier_score([[0.2, 0.5, 0.3]], [[4.0, np.nan, 2.0]]), brier_score([[0.4, 0.6]], [[4, 2]])
    )
