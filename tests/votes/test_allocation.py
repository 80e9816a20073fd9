"""Where votes go: posteriors, and expected values of a vote against brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.votes import next_vote, update, vote_value


class Fixed:
    """A model whose distributions are given; X holds row numbers."""

    def __init__(self, dist: SnefySimplex) -> None:
        self.dist = dist

    def predict_dist(self, X) -> SnefySimplex:
        rows = np.asarray(X)[:, 0].astype(int)
        return SnefySimplex(self.dist.exponents, self.dist.readout, self.dist.log_scale[rows])


def rows_of(dist: SnefySimplex) -> np.ndarray:
    return np.arange(len(dist.mean), dtype=float)[:, None]


def dirichlet(*alpha: float) -> SnefySimplex:
    a = torch.tensor([alpha], dtype=torch.float64)
    return SnefySimplex(0.5 * (a - 1), torch.ones(1, 1).double(), torch.zeros(1, 1).double())


@pytest.mark.parametrize("seen", [None, [[2.0, 0.0, 5.0], [0.0, 1.0, 0.0]]])
def test_value_of_a_vote_by_trying_every_outcome(snefy: Callable[..., SnefySimplex], seen) -> None:
    dist = snefy(3, members=2)
    dist = dist if seen is None else dist.posterior(torch.tensor(seen))
    reduction = np.zeros(2)
    for vote in range(3):
        k = torch.zeros(2, 3, dtype=torch.float64)
        k[:, vote] = 1.0
        after, chance = dist.posterior(k), dist.mean[:, vote]
        reduction += (chance * (dist.variance - after.variance).sum(-1)).numpy()
    np.testing.assert_allclose(vote_value(dist, "variance"), reduction, rtol=1e-8, atol=1e-12)
    # mutual information of vote and ℓ, by the entropy of the vote with and without ℓ
    draws = dist.sample((200_000,), torch.Generator().manual_seed(0))
    given = -(draws * draws.log()).sum(-1)
    information = (-(dist.mean * dist.mean.log()).sum(-1) - given.mean(0)).numpy()
    error = (given.std(0) / np.sqrt(len(draws))).numpy()
    assert (np.abs(vote_value(dist, "information") - information) < 5 * error).all()  # false alarm below 1e-6


def test_next_vote_takes_the_most_valuable(snefy: Callable[..., SnefySimplex]) -> None:
    dist = snefy(4, batch=(30,))
    counts = np.random.default_rng(0).integers(0, 4, (30, 4)).astype(float)
    counts[:10] = 0
    model, X = Fixed(dist), rows_of(dist)
    for criterion in ("variance", "information"):
        values = vote_value(dist.posterior(torch.as_tensor(counts)), criterion)
        chosen, worth = next_vote(model, X, counts, 5, criterion=criterion, return_values=True)
        np.testing.assert_array_equal(chosen, np.argsort(-values)[:5])
        np.testing.assert_allclose(worth, np.sort(values)[::-1][:5])
    values = vote_value(dist)
    np.testing.assert_array_equal(next_vote(model, X, n=30), np.argsort(-values))


def test_several_votes_an_item_follow_the_dirichlet() -> None:
    dist = dirichlet(2.0, 3.0, 5.0)
    chosen, worth = next_vote(Fixed(dist), np.zeros((1, 1)), n=4, max_per_item=4, return_values=True)
    np.testing.assert_array_equal(chosen, 0)
    variance = float(dist.variance.sum())
    left = [variance * 10.0 / (10.0 + t) for t in range(5)]
    np.testing.assert_allclose(worth, -np.diff(left), rtol=1e-8)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda m, X: next_vote(m, X, n=0), "n must be"),
        (lambda m, X: next_vote(m, X, n=3), "n must be"),
        (lambda m, X: next_vote(m, X, criterion="luck"), "criterion"),
        (lambda m, X: next_vote(m, X, [[1, 2, 3]]), "one row per item"),
        (lambda m, X: update(m, X, [[1, 2, 0.5], [0, 0, 0]]), "0.5 at row 0, column 2"),
        (lambda m, X: update(m, X, [[1, 2, np.nan], [0, 0, 0]]), "whole numbers"),
    ],
)
def test_bad_requests_are_named(snefy: Callable[..., SnefySimplex], call: Callable, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        call(Fixed(snefy(3)), np.array([[0.0], [1.0]]))
