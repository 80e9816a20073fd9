"""Votes and shared draws on laws with a centre: right by another route, or refused, never silently without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from snefy_ldl.distributions.shared_draws import shared_log_prob

from laws import centred
from snefy_ldl import SnefySimplex
from snefy_ldl.active import shared_entropy
from snefy_ldl.distributions.partial import log_prob_votes, rows_of
from snefy_ldl.distributions.votes import choose_votes, expected_width, vote_value
from snefy_ldl.errors import InputError

CENTRE = torch.tensor([1.0, 4.0, 30.0], dtype=torch.float64)


@pytest.fixture
def law(snefy: Callable[..., SnefySimplex]) -> SnefySimplex:
    plain = snefy(3, members=2, batch=(3,), seed=3)
    return centred(plain.exponents, plain.readout, plain.log_scale, CENTRE)


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
    assert choose_votes([(slice(0, 3), law)], 3)[0].tolist() == [int(wanted.argmax())]


def test_votes_among_some_labels_sum_to_one(law: SnefySimplex) -> None:
    table = np.array([[2.0, np.nan, 0.0], [1.0, np.nan, 1.0], [0.0, np.nan, 2.0]])
    chances = [log_prob_votes(law[[row] * 3], table).exp().sum() for row in range(3)]
    np.testing.assert_allclose(chances, 1.0, rtol=1e-8)


def test_shared_draws_see_the_centre(law: SnefySimplex) -> None:
    points = torch.tensor([[0.01, 0.2, 0.79], [0.3, 0.3, 0.4]], dtype=torch.float64)
    wanted = torch.stack([law.log_prob(point) for point in points], 1)
    torch.testing.assert_close(shared_log_prob(law, points.log())(slice(0, 3)), wanted)
    value, error = law.entropy(4000, generator=torch.Generator().manual_seed(0), return_std_error=True)
    shared = shared_entropy(law, 4000, torch.Generator().manual_seed(1))
    assert (np.abs(shared - value.numpy()) < 6.0 * error.numpy()).all()  # each within 4.2 of the difference's error


def test_what_the_centre_does_not_allow_is_refused(law: SnefySimplex) -> None:
    with pytest.raises(InputError, match="without a centre"):
        expected_width(law, 3)
    with pytest.raises(InputError, match="centre"):
        choose_votes([(slice(0, 3), law)], 3, np.eye(3))
