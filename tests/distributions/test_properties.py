"""What must hold for any law of the family, with hypothesis looking for the exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from snefy_ldl import SnefySimplex


@st.composite
def laws(draw: Any, min_labels: int = 2, votes: bool = True) -> SnefySimplex:
    """Signed laws: L from 2 to 8, n from 1 to 12, concentrations from 0.02 to 10,000, sometimes members and votes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_labels, n, m = draw(st.integers(min_labels, 8)), draw(st.integers(1, 12)), draw(st.integers(1, 4))
    members, batch = draw(st.integers(1, 3)), draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    low, high = sorted(draw(st.tuples(*[st.floats(-1.7, 4.0)] * 2)))
    alpha = 10.0 ** rng.uniform(low, high, (members, n, n_labels))
    readout = rng.normal(size=(members, m, n)) + draw(st.sampled_from([0.0, 1.0]))
    scale = rng.normal(size=(*batch, members, n)) * draw(st.sampled_from([0.1, 1.0, 5.0]))
    dist = SnefySimplex(*(torch.as_tensor(a) for a in ((alpha - 1.0) / 2.0, readout, scale)))
    if votes and draw(st.booleans()):
        return dist.posterior(torch.as_tensor(rng.integers(0, 6, (*batch, n_labels))))
    return dist


def well_posed(dist: SnefySimplex) -> float:
    """Rounding that signed sums may show: machine precision times their condition number."""
    return 1e-13 * float(dist.sum_abs_weights.max()) + 1e-12


def points(dist: SnefySimplex, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.dirichlet(np.ones(dist.n_labels), size=tuple(dist.batch_shape)))


@pytest.mark.slow
@given(laws(votes=False), st.randoms(use_true_random=False))
def test_permuting_labels_permutes_the_answers(dist: SnefySimplex, random: Any) -> None:
    order = list(range(dist.n_labels))
    random.shuffle(order)
    other = SnefySimplex(dist.exponents[..., order], dist.readout, dist.log_scale)
    tolerance = {"rtol": 1e-8, "atol": 10 * well_posed(dist)}
    ell, votes = points(dist), torch.arange(dist.n_labels)
    torch.testing.assert_close(other.mean, dist.mean[..., order], **tolerance)
    torch.testing.assert_close(other.variance, dist.variance[..., order], **tolerance)
    torch.testing.assert_close(other.covariance_matrix, dist.covariance_matrix[..., order, :][..., order], **tolerance)
    torch.testing.assert_close(other.log_prob(ell[..., order]), dist.log_prob(ell), rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(other.expected_entropy(), dist.expected_entropy(), **tolerance)
    torch.testing.assert_close(
        other.log_prob_counts(votes[order]), dist.log_prob_counts(votes), rtol=1e-6, atol=1e3 * well_posed(dist)
    )
    j, k = order.index(0), order.index(1)
    torch.testing.assert_close(other.prob_greater(j, k), dist.prob_greater(0, 1), **tolerance)


@pytest.mark.slow
@given(laws())
def test_moments_stay_in_the_simplex(dist: SnefySimplex) -> None:
    slack = well_posed(dist)
    mean, variance = dist.mean_and_variance()
    assert (mean >= 0.0).all()
    torch.testing.assert_close(mean.sum(-1), torch.ones_like(mean[..., 0]))
    assert ((variance >= 0.0) & (variance <= mean * (1.0 - mean) + slack)).all()
    covariance = dist.covariance_matrix
    assert covariance.sum(-1).abs().max() <= 10 * slack
    torch.testing.assert_close(covariance, covariance.transpose(-1, -2), rtol=0.0, atol=0.0)
    assert (torch.linalg.eigvalsh(covariance) >= -10 * slack).all()
    entropy = dist.expected_entropy()
    assert ((entropy >= -slack) & (entropy <= np.log(dist.n_labels) + slack)).all()
    assert (dist.vote_information() >= 0.0).all()
    assert (dist.sum_abs_weights >= 1.0 - 1e-12).all()
    assert ((dist.acceptance_rate > 0.0) & (dist.acceptance_rate <= 1.0 + 1e-12)).all()
    # Jensen: E[log ℓ] <= log E[ℓ]
    assert (dist.expected_log() <= mean.log() + 1e-6 + 1e4 * slack).all()


@given(laws(min_labels=3), st.randoms(use_true_random=False))
def test_amalgamating_then_averaging_is_averaging_then_amalgamating(dist: SnefySimplex, random: Any) -> None:
    labels = list(range(dist.n_labels))
    random.shuffle(labels)
    cut = random.randint(1, dist.n_labels - 1)
    groups = [labels[:cut], labels[cut:]]
    merged, slack = dist.amalgamate(groups), 10 * well_posed(dist)
    indicator = torch.zeros(2, dist.n_labels, dtype=torch.float64)
    for g, group in enumerate(groups):
        indicator[g, group] = 1.0
    torch.testing.assert_close(merged.mean, dist.mean @ indicator.T, rtol=1e-9, atol=slack)
    covariance = indicator @ dist.covariance_matrix @ indicator.T
    torch.testing.assert_close(merged.covariance_matrix, covariance, rtol=1e-7, atol=slack)
    share = dist.marginal(groups[0])
    torch.testing.assert_close(share.mean, merged.mean[..., 0], rtol=1e-9, atol=slack)
    torch.testing.assert_close(share.variance, merged.variance[..., 0], rtol=1e-7, atol=slack)
    # votes by group are as likely under the merged law as their sum over the ways to split them
    vote = torch.tensor([1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(merged.log_prob_counts(vote).exp(), merged.mean[..., 0], rtol=1e-7, atol=slack)
