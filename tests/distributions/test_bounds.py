"""Parts known to lie within bounds, and published quantiles: against plain simulation and closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from snefy_ldl import LogRatioSimplex, SnefySimplex
from snefy_ldl.distributions.bounds import Bounds
from snefy_ldl.distributions.logratio import Mixture
from snefy_ldl.errors import InputError

N, M, K, L = 3, 2, 4, 5


def make_dist(presence: bool = False) -> LogRatioSimplex:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.as_tensor(random.normal(size=shape))

    weights = torch.log_softmax(normal(N, M * K), -1).reshape(N, M, K)
    factor = torch.eye(L - 1).double() + 0.3 * normal(N, M, L - 1, L - 1)
    odds = (normal(N, M, L), normal(M, K, L)) if presence else (None, None)
    return LogRatioSimplex(
        Mixture(weights, 0.5 * normal(N, M, L - 1), factor, normal(M, K, L - 1), 0.3 * normal(M, K), *odds)
    )


@pytest.fixture(scope="module")
def dist() -> LogRatioSimplex:
    return make_dist()


@pytest.fixture(scope="module")
def amounts(dist: LogRatioSimplex) -> Any:
    """One row of amounts that do not sum to one."""
    return 7.0 * dist.sample((), torch.Generator().manual_seed(1)).numpy()


@pytest.fixture(scope="module")
def draws(dist: LogRatioSimplex) -> Any:
    return dist.sample((200_000,), torch.Generator().manual_seed(2)).numpy()


def test_no_hidden_part_is_the_density(dist: LogRatioSimplex, amounts: Any) -> None:
    nothing = np.full((N, L), np.nan)
    np.testing.assert_allclose(
        dist.condition_bounds(amounts, below=nothing).log_prob_known, dist.log_prob(amounts / 7.0), atol=1e-10
    )


def test_equal_ends_are_exact_and_zeros_absent() -> None:
    low, high = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 5.0]]), np.array([[0.0, 2.0, 4.0], [3.0, 1.0, 9.0]])
    ends = [np.where(low < high, end, np.nan) for end in (low, high)]
    given = Bounds.of([[0.0, 7.0, 4.0], [7.0, 7.0, 7.0]], between=ends)
    ours = Bounds.of(None, between=(low, high))
    for name in ("values", "low", "high"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(given, name))


@pytest.mark.parametrize("hidden", [[1], [1, 3], [1, 3, 4]])
def test_bounds_next_to_one_exact_part_are_counted_among_draws(
    dist: LogRatioSimplex, amounts: Any, draws: Any, hidden: list[int]
) -> None:
    labels = [0, *hidden]
    part, shares = dist.subcomposition(labels), draws[..., labels] / draws[..., labels].sum(-1, keepdims=True)
    limits = np.where(np.arange(len(labels)) > 0, 1.3 * amounts[:, labels], np.nan)
    inside = (shares[..., 1:] / shares[..., :1] < (limits / amounts[:, :1])[:, 1:]).all(-1)
    given = part.condition_bounds(amounts[:, labels], below=limits)
    counted = inside.mean(0)
    error = np.sqrt(counted * (1 - counted) / len(draws)) + np.asarray(given.log_prob_std_error) * counted
    assert (np.abs(given.log_prob_known.exp().numpy() - counted) < 4.5 * error).all()  # false alarms: 1 in 50,000
    assert bool((given.log_prob_std_error == 0.0).all()) is (len(hidden) == 1)  # exact for one hidden part
    for row in range(N):
        np.testing.assert_allclose(given.mean[row], shares[inside[:, row], row].mean(0), atol=0.01)
    lower = part.condition_bounds(None, between=(0.5 * amounts[:, labels], 2 * amounts[:, labels]))
    assert torch.isfinite(lower.log_prob_known).all()


def test_several_exact_parts_multiply_by_their_density(dist: LogRatioSimplex, amounts: Any) -> None:
    exact, limit = [0, 2, 3, 4], 1.2 * amounts[:, 1]
    value = dist.condition_bounds(
        np.where(np.arange(L) == 1, np.nan, amounts), below=np.where(np.arange(L) == 1, limit[:, None], np.nan)
    ).log_prob_known
    known = amounts[:, exact] / amounts[:, exact].sum(1, keepdims=True)
    totals = dist.condition_ratios({(0, r): amounts[:, 0] / amounts[:, r] for r in exact[1:]})
    share = torch.as_tensor(limit / (limit + amounts[:, exact].sum(1)))
    chance = totals.rest.marginal(totals.groups.index([1])).cdf(share)
    np.testing.assert_allclose(value, dist.subcomposition(exact).log_prob(known) + chance.log(), atol=1e-9)


def test_classes_of_all_parts_are_counted_among_draws(dist: LogRatioSimplex, amounts: Any, draws: Any) -> None:
    low, high = 0.6 * amounts, 1.6 * amounts
    given = dist.condition_bounds(None, between=(low, high), n_draws=4096)
    # the total has a flat logarithm: how long a row of shares stays inside, on that scale
    logs = np.log(draws)
    stay = np.maximum((np.log(high) - logs).min(-1) - (np.log(low) - logs).max(-1), 0.0)
    error = stay.std(0) / stay.mean(0) / len(draws) ** 0.5
    assert (np.abs(given.log_prob_known.numpy() - np.log(stay.mean(0))) < 4.5 * error).all()


def test_absent_and_hidden_are_different() -> None:
    dist = make_dist(presence=True)
    draws = dist.sample((100_000,), torch.Generator().manual_seed(3)).numpy()
    D = np.array([[0.5, 0.0, np.nan, 0.0, 0.0]] * N)
    inside = (
        (draws[..., [1, 3, 4]] == 0).all(-1) & (draws[..., [0, 2]] > 0).all(-1) & (draws[..., 2] < 0.4 * draws[..., 0])
    )
    given = dist.condition_bounds(D, below=np.where(np.isnan(D), 0.2, np.nan)).log_prob_known.exp().numpy()
    counted = inside.mean(0)
    assert (np.abs(given - counted) < 4.5 * np.sqrt(counted / len(draws)) + 1e-6).all()
    with pytest.raises(InputError, match="zero without a limit"):
        make_dist().condition_bounds(D, below=np.where(np.isnan(D), 0.2, np.nan))


def test_far_tails_stay_finite(dist: LogRatioSimplex, amounts: Any) -> None:
    tiny = dist.condition_bounds(np.where(np.arange(L) < 3, np.nan, amounts), below=1e-30)
    assert torch.isfinite(tiny.log_prob_known).all()
    assert (tiny.mean[:, :3] <= 1e-30).all()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"below": -1.0}, "must be positive"),
        ({"below": 100.0}, "nothing is known"),
        ({"below": np.ones(3)}, "below must be one limit"),
        ({"below": {9: 1.0}}, "none of the labels"),
        ({"between": 1.0}, "two tables"),
        ({"between": (np.full((N, L), 2.0), np.ones((N, L)))}, "larger than the lower"),
        ({"below": 1.0, "between": (0, 1)}, "one of them"),
    ],
)
def test_wrong_bounds_are_named(dist: LogRatioSimplex, amounts: Any, limits: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        dist.condition_bounds(amounts, **limits)
    nothing = np.full((N, L), np.nan)
    with pytest.raises(InputError, match="D is nan at row 0, column 0"):
        dist.condition_bounds(nothing, below=nothing)


@pytest.mark.parametrize(("n_labels", "with_means"), [(2, False), (3, True), (3, False), (4, True)])
def test_published_quantiles_are_met(n_labels: int, with_means: bool) -> None:
    random, n_rows = np.random.default_rng(n_labels), 40
    location = torch.as_tensor(0.5 * random.normal(size=(n_rows, 1, n_labels - 1)))
    factor = torch.as_tensor(0.2 * random.normal(size=(n_rows, 1, n_labels - 1, n_labels - 1)))
    factor = torch.tril(factor) + 0.4 * torch.eye(n_labels - 1).double()
    nothing = torch.zeros(n_rows, 1, 1).double()
    true = LogRatioSimplex(Mixture(nothing, location, factor, torch.zeros(1, 1, n_labels - 1).double(), nothing[0]))
    levels = (0.05, 0.5, 0.95)
    means = true.mean if with_means else None
    fitted = LogRatioSimplex.from_quantiles(quantiles=true.quantiles(levels), means=means)
    apart = (fitted.quantiles(levels) - true.quantiles(levels)).abs().amax((1, 2))
    assert float(apart.max()) < 0.01
    assert bool((fitted.misfit >= apart).all())
    if n_labels == 3:  # three variances of logits settle three entries of a covariance
        cov = [dist.rows.mixture.factor @ dist.rows.mixture.factor.transpose(-1, -2) for dist in (fitted, true)]
        assert float((cov[0] - cov[1]).abs().quantile(0.9)) < 0.02


def test_contradictory_quantiles_show_in_the_misfit() -> None:
    table = np.full((1, 3, 3), [0.5, 0.6, 0.7])  # medians that sum to 1.8
    assert float(LogRatioSimplex.from_quantiles(quantiles=table).misfit) > 0.1
    with pytest.raises(InputError, match="strictly between"):
        LogRatioSimplex.from_quantiles(quantiles=np.zeros((1, 3, 3)))
    with pytest.raises(InputError, match="quantiles must be"):
        LogRatioSimplex.from_quantiles(quantiles=table, levels=(0.1, 0.9))


@pytest.mark.parametrize("family", ["snefy", "logratio", "presence"])
def test_a_known_sum(family: str) -> None:
    if family == "snefy":
        concentrations = torch.tensor([[2.0, 3.0, 5.0, 1.5], [4.0, 1.2, 2.0, 3.0]]).double()
        dist: Any = SnefySimplex.from_mixture(torch.tensor([[0.4, 0.6], [0.9, 0.1]]).double(), concentrations)
    else:
        dist = make_dist(presence=family == "presence")
    generator = torch.Generator().manual_seed(0)
    given = dist.condition({(1, 2): 0.45}, n_draws=2000, generator=generator)
    np.testing.assert_allclose(given.mean[:, [1, 2]].sum(1), 0.45, atol=1e-12)
    exact = dist.marginal([1, 2]).log_prob(torch.full(dist.batch_shape, 0.45).double())
    assert bool(((given.log_prob_known - exact).abs() < 4.5 * given.log_prob_std_error + 0.01).all())
    draws = dist.sample((50_000,), generator)
    for row in range(2):
        near = (draws[:, row, [1, 2]].sum(-1) - 0.45).abs() < 0.01
        error = draws[near, row].std(0) / near.sum() ** 0.5 + given.std_error[row]
        assert bool(((draws[near, row].mean(0) - given.mean[row]).abs() < 4.5 * error + 0.005).all())
    with pytest.raises(InputError, match="alone"):
        dist.condition({(1, 2): 0.4, 0: 0.1})
