"""Fits to votes: every label counted, some not on offer, votes for sets of labels, and very many votes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from torch.utils.data import IterableDataset

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.errors import InputError
from snefy_ldl.snefy import fit_stream
from snefy_ldl.training.data import fill_missing, fit_dirichlet_multinomial

TINY = {"n_neurons": 6, "n_readouts": 3, "hidden_sizes": (4,), "guides": None, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    return make_annotators(n=400, n_labels=3, votes=(1, 12), random_state=0)


def small(**changes) -> SnefyLDL:
    settings = {"n_neurons": 12, "n_readouts": 6, "epochs": 12, "random_state": 0, "device": "cpu", "guides": None}
    return SnefyLDL(**(settings | changes))


@pytest.mark.parametrize("kind", ["votes", "not all on offer"])
def test_a_fit_comes_near_the_truth(data, kind: str) -> None:
    rng, counts, rows = np.random.default_rng(1), data.counts.astype(float), np.arange(400)
    labels: object = counts
    if kind == "not all on offer":
        hidden = rng.random(400) < 0.4
        counts[hidden, rng.integers(0, 3, hidden.sum())] = np.nan
        rows = np.flatnonzero(np.nansum(counts, 1) > 0)
        labels = counts[rows]
    own = small().fit(data.X[rows], counts=labels).score(data.X, counts=data.counts)
    weights, alpha = data.truth.components(data.X)
    votes = stats.dirichlet_multinomial.pmf(
        data.counts[:, None].astype(int), alpha, data.counts.sum(1, dtype=int)[:, None]
    )
    assert own > np.log((weights * votes).sum(1)).mean() - 0.25


@pytest.mark.parametrize("votes_each", [3000, 10**5, 10**9])
def test_very_many_votes_can_be_fitted(data, votes_each: int) -> None:
    counts = np.round(np.random.default_rng(1).dirichlet([2.0, 3.0, 4.0], 60) * votes_each)
    counts[0] = [votes_each, 0, 0]
    counts[1, 1] = np.nan
    model = SnefyLDL(epochs=2, **TINY).fit(data.X[:60], counts=counts)
    assert np.isfinite(model.predict(data.X[:60])).all()
    assert np.isfinite(model.log_prob(data.X[:60], counts=counts)).all()
    # the loss leaves out what grows with the votes; the rest distinguishes one epoch from the next
    assert all(abs(epoch["loss"]) < 1e3 for epoch in model.history_)


@pytest.mark.parametrize("votes_per_item", [12, 3000])
def test_the_fit_reports_the_likelihood_that_log_prob_gives(votes_per_item: int) -> None:
    """Multinomial coefficient included: the figure of the fit is that of ``log_prob`` on the same held-back rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    counts = np.array([rng.multinomial(votes_per_item, rng.dirichlet([2.0, 3.0, 1.0])) for _ in range(40)])
    model = SnefyLDL(epochs=1, validation_fraction=0.5, **TINY).fit(X, counts=counts)
    held = np.flatnonzero(~np.isnan(model.validation_log_prob_))
    assert len(held) == 20
    exact = model.log_prob(X[held], counts=counts[held])
    np.testing.assert_allclose(model.validation_log_prob_[held], exact, rtol=2e-5, atol=2e-4)
    assert -model.training_["validation_loss"][0] == pytest.approx(exact.mean(), abs=1e-3)


class Pairs(IterableDataset):
    def __init__(self, X: np.ndarray, counts: np.ndarray) -> None:
        self.rows = list(zip(X, counts))

    def __iter__(self):
        return iter(self.rows)


def test_a_stream_of_votes_reports_the_same_likelihood() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    counts = np.array([rng.multinomial(12, rng.dirichlet([2.0, 3.0, 1.0])) for _ in range(200)])
    model = fit_stream(SnefyLDL(epochs=1, validation_fraction=0.5, **TINY), Pairs(X, counts))
    # the rows held back are half of all: their mean is near that of all, and 7 nats from one without coefficients
    assert -model.training_["validation_loss"][0] == pytest.approx(model.score(X, counts=counts), abs=1.0)


def test_the_papers_recipe_takes_counts(data) -> None:
    model = SnefyLDL.paper(epochs=3, n_neurons=8, n_readouts=4, random_state=0, device="cpu")
    assert np.isfinite(model.fit(data.X, counts=data.counts).score(data.X, counts=data.counts))


def test_the_prior_of_votes_is_that_of_their_shares() -> None:
    shares = np.random.default_rng(0).dirichlet([0.7, 3.0, 9.0], 400)
    for n in (900, 10**9):
        np.testing.assert_allclose(fit_dirichlet_multinomial(np.round(shares * n)), [0.7, 3.0, 9.0], rtol=0.15)


def test_missing_votes_start_from_what_is_expected() -> None:
    counts = np.array([[3.0, 1.0, np.nan], [2.0, 2.0, 4.0], [1.0, np.nan, np.nan]])
    filled = fill_missing(counts)
    assert (filled >= 0).all()
    np.testing.assert_array_equal(filled[1], counts[1])
    assert filled[0, 2] > 0


@pytest.mark.parametrize(
    ("first", "rule"),
    [
        ([1.0, np.nan, np.nan], "row 0 has fewer than 2 labels"),
        ([0.0, 0.0, np.nan], "row 0 holds no vote"),
        ([1.5, 0.0, np.nan], "whole numbers"),
        ([-1.0, 0.0, np.nan], "negative"),
    ],
)
def test_bad_counts_are_named(first: list, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        small().fit(np.eye(4), counts=np.array([first, [1, 2, 3], [1, 1, 1], [1, 0, 0]]))
