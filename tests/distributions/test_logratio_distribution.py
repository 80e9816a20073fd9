"""The log-ratio distribution: quadrature, scipy and many draws are the oracles."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.linalg import helmert
from scipy.special import logsumexp

from snefy_ldl.distributions.logratio import LogRatioSimplex, Mixture

#: Standard errors that an average of draws may be off: one comparison in 15,000 is a false alarm.
FOUR = 4.0


def make_mixture(
    n_rows: int = 2, n_labels: int = 3, n_members: int = 2, n_components: int = 3, seed: int = 0, zeros: float = 0.0
) -> Mixture:
    """A mixture of any kind; with ``zeros`` log odds of presence spread by so much."""
    random = np.random.default_rng(seed)
    p = n_labels - 1
    weights = np.log(random.dirichlet(np.ones(n_members * n_components), n_rows)).reshape(n_rows, n_members, -1)
    parts = (
        weights,
        0.5 * random.normal(size=(n_rows, n_members, p)),
        0.6 * np.eye(p) + 0.2 * random.normal(size=(n_rows, n_members, p, p)),
        0.8 * random.normal(size=(n_members, n_components, p)),
        np.log(random.uniform(0.5, 1.2, (n_members, n_components))),
    )
    mixture = Mixture(*(torch.as_tensor(part) for part in parts))
    if not zeros:
        return mixture
    row_odds = torch.as_tensor(zeros * random.normal(size=(n_rows, n_members, n_labels)))
    odds = torch.as_tensor(zeros * random.normal(size=(n_members, n_components, n_labels)))
    return replace(mixture, row_odds=row_odds, odds=odds)


@pytest.fixture(scope="module")
def positive() -> LogRatioSimplex:
    return LogRatioSimplex(make_mixture()).named(["sand", "silt", "clay"])


@pytest.fixture(scope="module")
def grid() -> tuple[Any, Any]:
    """Points of the triangle (S, 3) and their weights, by Gauss and Legendre on sand and on silt's part of the rest."""
    nodes, weights = np.polynomial.legendre.leggauss(300)
    nodes, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    first, part = np.meshgrid(nodes, nodes, indexing="ij")
    points = np.stack([first, (1 - first) * part, (1 - first) * (1 - part)], -1).reshape(-1, 3)
    return torch.as_tensor(points), (np.outer(weights, weights) * (1 - first)).ravel()


# -- labels that may be absent -----------------------------------------------------------------------------------------


def masks(n_labels: int) -> list[tuple[bool, ...]]:
    return [mask for mask in product([False, True], repeat=n_labels) if any(mask)]


def presence_by_hand(mixture: Mixture, mask: Any) -> Any:
    """P_k(S) (N, M, K), written out."""
    q = torch.sigmoid(mixture.row_odds[:, :, None] + mixture.odds)
    there = torch.as_tensor(mask)
    return torch.where(there, q, 1 - q).prod(-1) / (1 - (1 - q).prod(-1))


def log_prob_by_hand(mixture: Mixture, share: Any) -> Any:
    """Log densities (N,) at one point, by scipy."""
    mask = share > 0
    labels, B = np.flatnonzero(mask), helmert(len(share))
    terms = (mixture.log_weights + presence_by_hand(mixture, mask).log()).numpy()
    if len(labels) == 1:
        return logsumexp(terms, (1, 2))
    H = helmert(len(labels))
    pick = H @ B[:, labels].T
    for n, m, k in product(*map(range, terms.shape)):
        factor = pick @ mixture.factor[n, m].numpy()
        mean = pick @ mixture.location[n, m].numpy() + factor @ mixture.centres[m, k].numpy()
        width = float(mixture.log_widths[m, k].exp())
        normal = scipy.stats.multivariate_normal(mean, width**2 * factor @ factor.T)
        terms[n, m, k] += normal.logpdf(H @ np.log(share[mask]))
    return logsumexp(terms, (1, 2)) - np.log(share[mask]).sum() - 0.5 * math.log(len(labels))


@pytest.fixture(scope="module")
def sparse() -> LogRatioSimplex:
    return LogRatioSimplex(make_mixture(zeros=1.0)).named(["sand", "silt", "clay"])


def test_the_density_on_every_face_equals_scipy() -> None:
    mixture = make_mixture(3, 4, zeros=1.5)
    dist, random = LogRatioSimplex(mixture), np.random.default_rng(0)
    points = np.array([random.dirichlet(np.ones(4)) * mask for mask in masks(4)] * 2)
    points = np.vstack(
        [points / points.sum(1, keepdims=True), [[1 - 3e-12, 1e-12, 2e-12, 0], [1e-12, 1 - 1e-12, 0, 0]]]
    )
    expected = np.array([log_prob_by_hand(mixture, point) for point in points])
    np.testing.assert_allclose(dist.log_prob_at(torch.as_tensor(points)), expected, rtol=1e-10, atol=1e-9)
    shuffled = random.permutation(len(points))  # another support in every row
    value = torch.as_tensor(np.stack([points, points[shuffled], points[::-1]], 1))
    np.testing.assert_allclose(
        dist.log_prob(value),
        np.stack([expected[:, 0], expected[shuffled, 1], expected[::-1, 2]], 1),
        rtol=1e-10,
        atol=1e-9,
    )
    chances = torch.stack([dist.prob_support(mask) for mask in masks(4)])
    np.testing.assert_allclose(chances.sum(0), 1.0, atol=1e-12)
    by_hand = [(mixture.log_weights.exp() * presence_by_hand(mixture, mask)).sum((1, 2)) for mask in masks(4)]
    np.testing.assert_allclose(chances, torch.stack(by_hand), rtol=1e-12)
    zero = sum(chance[:, None] * ~torch.tensor(mask) for chance, mask in zip(chances, masks(4)))
    np.testing.assert_allclose(dist.prob_zero(), zero, atol=1e-12)
    mask = torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4])
    expected_chance = [dist.prob_support(one)[row] for row, one in enumerate(mask)]
    np.testing.assert_allclose(dist.prob_support(mask), torch.stack(expected_chance), rtol=1e-12)


def test_the_mass_of_all_faces_is_one(sparse: LogRatioSimplex, grid: Any) -> None:
    mass = sparse.log_prob_at(grid[0]).exp().numpy().T @ grid[1]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    nodes, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    for absent in range(3):
        edge = np.insert(np.stack([nodes, 1 - nodes], 1), absent, 0.0, axis=1)
        mass += sparse.log_prob_at(torch.as_tensor(edge)).exp().numpy().T @ weights
        mass += sparse.log_prob_at(torch.eye(3)[[absent]].double()).exp().numpy()[0]
    np.testing.assert_allclose(mass, 1.0, atol=1e-6)


def test_answers_with_zeros_equal_many_draws(sparse: LogRatioSimplex) -> None:
    # some 60 comparisons at four standard errors: a false alarm in 1 of 250 seeds
    n = 40_000
    draws = sparse.sample((n,), torch.Generator().manual_seed(0)).numpy()

    def check(chance: Any, event: Any) -> None:
        chance = chance.numpy()
        assert (np.abs(event.mean(0) - chance) <= FOUR * np.sqrt(chance * (1 - chance) / n)).all()

    check(sparse.prob_zero(), draws == 0)
    for mask in masks(3):
        check(sparse.prob_support(mask), ((draws > 0) == mask).all(-1))
    for ratio in (0.5, 1.0, 3.0):
        check(sparse.prob_greater("sand", "clay", ratio), draws[..., 0] > ratio * draws[..., 2])
    contrast = sparse.log_ratio("sand", ["silt", "clay"])
    check(contrast.prob_present, (draws > 0).all(-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(draws[..., 0]) - np.log(draws[..., 1:]).mean(-1)
        whole = np.log(draws) - np.log(draws).mean(-1, keepdims=True)
    for row in range(2):
        there = (draws[:, row] > 0).all(-1)
        own, cdf = values[there, row], lambda t, row=row: contrast.cdf(torch.as_tensor(t)[:, None])[:, row].numpy()
        assert scipy.stats.kstest(own, cdf).pvalue > 1e-4
        logs = sparse.given_support([True] * 3).expected_log()[row]
        gap = whole[there, row].mean(0) - (logs - logs.mean()).numpy()
        assert (np.abs(gap) < FOUR * whole[there, row].std(0) / math.sqrt(there.sum())).all()


def test_moments_and_marginals_with_zeros_equal_quadrature(sparse: LogRatioSimplex, grid: Any) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(400)
    nodes, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    edges = [np.insert(np.stack([nodes, 1 - nodes], 1), absent, 0.0, axis=1) for absent in range(3)]
    points = np.vstack([grid[0].numpy(), *edges, np.eye(3)])
    measure = np.concatenate([grid[1], *[weights] * 3, np.ones(3)])
    mass = sparse.log_prob_at(torch.as_tensor(points)).exp().numpy() * measure[:, None]
    mean = mass.T @ points
    assert (np.abs(sparse.mean.numpy() - mean) < 6.0 * sparse.mean_error.numpy() + 2e-4).all()
    assert float(sparse.mean_error.max()) < 4e-3
    variance = mass.T @ points**2 - mean**2
    assert (np.abs(sparse.variance.numpy() - variance) < 6.0 * sparse.variance_error.numpy() + 2e-4).all()
    entropy = mass.T @ scipy.special.entr(points).sum(1)
    np.testing.assert_allclose(sparse.expected_entropy(), entropy, atol=1e-2)
    assert bool(torch.isneginf(sparse.expected_log()).all())
    for group in ([0], [0, 2]):
        share, total = sparse.marginal(group), points[:, group].sum(1)
        for at in (0.0, 0.1, 0.3, 0.6, 1.0):
            expected = (mass * (total <= at)[:, None]).sum(0)
            np.testing.assert_allclose(share.cdf(torch.full((2,), at).double()), expected, atol=1.5e-2)
        ends = share.log_prob(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()).exp()
        expected = np.stack([(mass * (total == end)[:, None]).sum(0) for end in (0.0, 1.0)])
        np.testing.assert_allclose(ends, expected, atol=1e-12)
        x = torch.linspace(1e-4, 1 - 1e-4, 801).double()
        inside = np.trapezoid(share.log_prob(x[:, None].expand(-1, 2)).exp(), x, axis=0)
        np.testing.assert_allclose(inside + expected.sum(0), 1.0, atol=2e-3)
        levels = torch.tensor([0.02, 0.5, 0.98])
        quantiles = share.quantiles(levels).numpy()
        for row, a in product(range(2), range(3)):
            value, level = quantiles[row, a], float(levels[a])
            low, high = (float((mass[:, row] * rule).sum()) for rule in (total < value, total <= value))
            assert low - 1.5e-2 <= level <= high + 1.5e-2
            if 0.0 < value < 1.0:
                assert float(share.cdf(torch.tensor([value] * 2))[row]) == pytest.approx(level, abs=1e-7)
    zero, alone = sparse.prob_zero().numpy(), np.stack([sparse.prob_support(mask) for mask in np.eye(3) > 0], -1)
    levels = np.stack([zero - 1e-9, zero + 1e-9, 1 - alone - 1e-9, 1 - alone + 1e-9], -1)
    edges = sparse.quantiles(levels).numpy()
    assert (edges[..., 0] == 0).all()
    assert ((edges[..., 1] > 0) & (edges[..., 1] < 0.2)).all()
    assert ((edges[..., 2] > 0.8) & (edges[..., 2] < 1)).all()
    assert (edges[..., 3] == 1).all()


def test_smaller_compositions_with_zeros(sparse: LogRatioSimplex) -> None:
    n = 40_000
    draws = sparse.sample((n,), torch.Generator().manual_seed(0)).numpy()
    part = sparse.subcomposition(["clay", "sand"])
    for row in range(2):
        own = draws[:, row][:, [2, 0]]
        own = own[own.sum(1) > 0]
        zero = part.prob_zero()[row].numpy()
        assert (np.abs((own == 0).mean(0) - zero) < FOUR * np.sqrt(zero * (1 - zero) / len(own))).all()
        given = sparse.given_support([True, False, True])
        edge = draws[:, row][((draws[:, row] > 0) == [True, False, True]).all(-1)]
        for shares, dist in ((own[(own > 0).all(1)][:, ::-1], part), (edge[:, [0, 2]], given)):
            ratio = dist.log_ratio("sand", "clay")
            values = np.log(shares[:, 0] / shares[:, 1])
            cdf = lambda t, ratio=ratio, row=row: ratio.cdf(torch.as_tensor(t)[:, None])[:, row].numpy()  # noqa: E731
            assert scipy.stats.kstest(values, cdf).pvalue > 1e-4
        assert not given.rows.may_be_zero
    both = sparse.log_ratio("sand", "clay")  # given that both are there, whatever silt is
    np.testing.assert_allclose(part.log_ratio("sand", "clay").mean, both.mean, atol=1e-12)


@pytest.mark.parametrize("odds", [-700.0, -40.0, 40.0, 700.0])
def test_extreme_odds_give_numbers(odds: float) -> None:
    mixture = make_mixture(2, 4)
    table = torch.zeros(2, 3, 4).double()
    table[..., 0] = -odds
    dist = LogRatioSimplex(replace(mixture, row_odds=torch.full((2, 2, 4), odds).double(), odds=table))
    chances = torch.stack([dist.prob_support(mask) for mask in masks(4)])
    np.testing.assert_allclose(chances.sum(0), 1.0, atol=1e-12)
    draws = dist.sample((50,), torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(dist.log_prob(draws)).all())
    uniforms = dist.rosenblatt(draws)
    np.testing.assert_allclose(dist.inverse_rosenblatt(uniforms), draws, atol=1e-7)
    for answer in (
        dist.mean,
        dist.variance,
        dist.prob_zero(),
        dist.prob_greater(0, 1),
        dist.quantiles([1e-4, 0.3, 0.9999]),
        dist.quantiles_error([1e-4, 0.3, 0.9999]),
        dist.expected_entropy(),
        dist.subcomposition([1, 2]).prob_zero(),
        dist.log_ratio(1, 2).mean,
        dist.marginal(1).cdf(torch.tensor(0.3)),
        dist.condition_ratios({(0, 1): 2.0}).log_prob_known,
    ):
        assert bool(torch.isfinite(answer).all())


def test_many_labels_with_components_that_share_their_presence() -> None:
    mixture = make_mixture(2, 50, zeros=1.5)
    dist = LogRatioSimplex(replace(mixture, odds=mixture.odds[:, [0, 1, 1]]))
    assert dist.rows.patterns[0].shape[1] == 2
    draws = dist.sample((20_000,), torch.Generator().manual_seed(0))
    error = (draws.var(0) / len(draws) + dist.mean_error.square()).sqrt()
    # 100 labels; t with 7 degrees of freedom, the nets': one of them beyond 7 errors has probability .02
    assert bool(((dist.mean - draws.mean(0)).abs() < 7.0 * error).all())
    zero = dist.prob_zero()
    np.testing.assert_allclose((draws == 0).double().mean(0), zero, atol=4.5 * 0.5 / len(draws) ** 0.5)
    below = (draws <= dist.quantiles([0.9])[..., 0]).double().mean(0)
    np.testing.assert_allclose(below, zero.clamp_min(0.9), atol=0.04)  # 1,024 points: four errors


# -- what is known, with and without zeros -----------------------------------------------------------------------------


def line() -> tuple[Any, Any]:
    """Gauss and Legendre between 0 and 1."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    return 0.5 * (nodes + 1.0), 0.5 * weights


@pytest.mark.parametrize("kind", ["positive", "sparse"])
def test_known_ratios_equal_quadrature(kind: str, request: pytest.FixtureRequest) -> None:
    dist: LogRatioSimplex = request.getfixturevalue(kind)
    ratio, (total, weights) = 2.0, line()
    given = dist.condition_ratios({("sand", "silt"): ratio})
    points = torch.as_tensor(np.stack([total * ratio / (1 + ratio), total / (1 + ratio), 1 - total], -1))
    joint = (
        dist.log_prob_at(points).exp().numpy() * (total / (1 + ratio) ** 2)[:, None]
    )  # d(sand, silt)/d(ratio, total)
    edge = dist.log_prob_at(torch.tensor([[ratio / (1 + ratio), 1 / (1 + ratio), 0.0]]).double()).exp().numpy()[0]
    edge = edge * dist.rows.may_be_zero / (1 + ratio) ** 2  # d sand / d ratio
    known = weights @ joint + edge
    np.testing.assert_allclose(given.log_prob_known, np.log(known), atol=1e-6)
    np.testing.assert_allclose(given.rest.prob_zero()[:, 1], edge / known, atol=1e-6)
    assert bool((given.prob_zero()[:, :2] < 1e-200).all())
    totals = torch.stack([points[:, 0] + points[:, 1], points[:, 2]], -1)
    np.testing.assert_allclose(given.rest.log_prob(totals[:, None]).exp(), joint / known, rtol=1e-6)
    np.testing.assert_allclose(given.mean[:, 2], (weights * (1 - total)) @ joint / known, atol=2e-3)
    np.testing.assert_allclose(given.mean[:, 0], ratio * given.mean[:, 1], rtol=1e-9)


@pytest.mark.parametrize("kind", ["positive", "sparse"])
def test_known_shares_come_by_weighted_draws(kind: str, request: pytest.FixtureRequest) -> None:
    dist: LogRatioSimplex = request.getfixturevalue(kind)
    given = dist.condition({"sand": 0.3}, generator=torch.Generator().manual_seed(0))
    silt, weights = 0.7 * line()[0], 0.7 * line()[1]
    inside = torch.as_tensor(np.stack([np.full_like(silt, 0.3), silt, 0.7 - silt], -1))
    ends = torch.tensor([[0.3, 0.7, 0.0], [0.3, 0.0, 0.7]]).double()
    edges = dist.log_prob_at(ends).exp().numpy() * dist.rows.may_be_zero
    mass = np.vstack([dist.log_prob_at(inside).exp().numpy() * weights[:, None], edges])
    known = mass.sum(0)
    assert (np.abs(given.log_prob_known.numpy() - np.log(known)) < FOUR * given.log_prob_std_error.numpy()).all()
    expected = mass.T @ np.append(silt, [0.7, 0.0]) / known
    assert (np.abs(given.mean[:, 1].numpy() - expected) < FOUR * given.std_error[:, 1].numpy()).all()
    table = np.array([[0.3, np.nan, np.nan]] * 2)
    np.testing.assert_allclose(dist.log_prob_known(table), np.log(known), atol=0.1)
    if dist.rows.may_be_zero:
        absent = dist.condition({"sand": 0.0}, generator=torch.Generator().manual_seed(0))
        np.testing.assert_allclose(absent.log_prob_known.exp(), dist.prob_zero()[:, 0], rtol=0.1)


def test_members_average_the_densities(positive: LogRatioSimplex) -> None:
    value = torch.tensor([0.2, 0.3, 0.5]).double().expand(2, 3)
    members = torch.stack([member.log_prob(value) for member in positive.members()], -1)
    average = (members + positive.rows.mixture.log_weights.logsumexp(-1)).logsumexp(-1)
    np.testing.assert_allclose(average, positive.log_prob(value), atol=1e-12)
