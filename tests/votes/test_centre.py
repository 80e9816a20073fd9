"""Votes and shared draws on laws with a centre: right by another route, never silently without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from laws import centred
from snefy_ldl import SnefySimplex
from snefy_ldl._internal.laws import log_prob_votes, rows_of
from snefy_ldl._internal.vote_prediction import expected_width, next_vote, vote_value, votes_needed
from snefy_ldl.active import shared_entropy

CENTRE = torch.tensor([1.0, 4.0, 30.0], dtype=torch.float64)


@pytest.fixture
def law(snefy: Callable[..., SnefySimplex]) -> SnefySimplex:
    plain = snefy(3, members=2, batch=(3,), seed=3)
    return centred(plain.exponents, plain.readout, plain.log_scale, CENTRE)


class Fixed:
    """A model that predicts one law, whatever the rows."""

    def __init__(self, law: SnefySimplex) -> None:
        self.law = law

    def predict_dist(self, X: object) -> SnefySimplex:
        return self.law


def test_rows_keep_the_centre(law: SnefySimplex) -> None:
    torch.testing.assert_close(rows_of(law, np.array([2, 0])).mean, law.mean[[2, 0]])


def test_value_of_a_vote_from_the_probabilities_of_two_votes(law: SnefySimplex) -> None:
    mean, second = np.empty((3, 3)), np.empty((3, 3, 3))
    for r in range(3):
        one = torch.zeros(3, 3, dtype=torch.float64)
        one[:, r] = 1.0
        mean[:, r] = law.log_prob_counts(one).exp()
        for q in range(3):
            two = one.clone()
            two[:, q] += 1.0
            second[:, r, q] = law.log_prob_counts(two).exp() / (1.0 if r == q else 2.0)
    covariance = second - mean[:, :, None] * mean[:, None, :]
    wanted = (covariance**2 / mean[:, None, :]).sum((1, 2))
    np.testing.assert_allclose(vote_value(law), wanted, rtol=1e-6)
    assert next_vote(Fixed(law), np.zeros((3, 1))).tolist() == [int(wanted.argmax())]


def test_votes_among_some_labels_sum_to_one(law: SnefySimplex) -> None:
    table = np.array([[2.0, np.nan, 0.0], [1.0, np.nan, 1.0], [0.0, np.nan, 2.0]])
    chances = [log_prob_votes(law[[row] * 3], table).exp().sum() for row in range(3)]
    np.testing.assert_allclose(chances, 1.0, rtol=1e-8)


def test_shared_draws_see_the_centre(law: SnefySimplex) -> None:
    points = torch.tensor([[0.01, 0.2, 0.79], [0.3, 0.3, 0.4]], dtype=torch.float64)
    wanted = torch.stack([law.log_prob(point) for point in points], 1)
    torch.testing.assert_close(law.shared_log_prob(points.log())(slice(0, 3)), wanted)
    value, error = law.entropy(4000, generator=torch.Generator().manual_seed(0), return_std_error=True)
    shared = shared_entropy(law, 4000, torch.Generator().manual_seed(1))
    assert (np.abs(shared - value.numpy()) < 6.0 * error.numpy()).all()  # each within 4.2 of the difference's error


@pytest.mark.slow
def test_widths_after_further_votes(law: SnefySimplex) -> None:
    """Exact now; after three votes by the density of each share, for which one Beta stands in: right to 8 %."""
    z = 2.0 * scipy.stats.norm.ppf(0.95)
    np.testing.assert_allclose(expected_width(law, 0), z * law.stddev.numpy(), rtol=1e-6)
    u = np.linspace(-16.0, 16.0, 129)
    share, rest = scipy.special.expit(u), scipy.special.expit(-u)
    wanted = np.zeros((3, 3))
    for label in range(3):
        log_p = law.marginal(label).log_prob(torch.as_tensor(share)[:, None]).numpy()
        mass = np.exp(log_p) * (share * rest * (u[1] - u[0]))[:, None]  # (T, 3)
        np.testing.assert_allclose(mass.sum(0), 1.0, atol=1e-4)
        for hits in range(4):
            after = mass * scipy.stats.binom.pmf(hits, 3, share)[:, None]
            chance = after.sum(0)
            mean = (after * share[:, None]).sum(0) / chance
            spread = (after * np.square(share[:, None] - mean)).sum(0) / chance
            wanted[:, label] += chance * np.sqrt(spread)
    np.testing.assert_allclose(expected_width(law, 3), z * wanted, rtol=0.08)
    needed = votes_needed(Fixed(law), np.zeros((3, 1)), 0.05)
    for row in range(3):
        assert expected_width(law[row], int(needed[row])).max() <= 0.05 * 1.01
        assert needed[row] == 0 or expected_width(law[row], int(needed[row]) - 1).max() > 0.05 * 0.99


def test_the_next_vote_knows_the_votes_so_far(law: SnefySimplex) -> None:
    """After one vote each, by the probabilities of further votes."""
    seen = law.posterior(np.eye(3))
    mean = torch.stack([seen.log_prob_counts(one.double()).exp() for one in torch.eye(3)], 1)
    torch.testing.assert_close(seen.mean, mean, rtol=0, atol=1e-9)
    rows, worth = next_vote(Fixed(law), np.zeros((3, 1)), np.eye(3), 3, return_values=True)
    value = vote_value(seen)
    assert rows.tolist() == np.argsort(-value).tolist()
    np.testing.assert_allclose(worth, np.sort(value)[::-1])
    assert not np.allclose(value, vote_value(law))
