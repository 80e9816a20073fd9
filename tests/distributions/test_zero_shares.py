"""Laws of shares where labels may be absent: against sums over supports with Betas, quadrature, and plain laws."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, special

from laws import with_zeros
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.component_table import ComponentTable
from snefy_ldl.distributions.log_densities import log_density_at_zero
from snefy_ldl.distributions.sparse_shares import SparseShares

#: Largest error of a cdf that is promised.
ERROR = 1e-6


def supports(n_labels: int) -> np.ndarray:
    return np.array(list(itertools.product([False, True], repeat=n_labels)))[1:]


def cdf_by_supports(alpha, odds, group, points, votes=None):
    """``P(share <= v)`` of a component without a centre, after votes if there are any: supports one by one."""
    votes = np.zeros_like(alpha) if votes is None else votes
    inside, logs, below = np.isin(np.arange(len(alpha)), group), [], []
    for support in supports(len(alpha)):
        if votes[~support].any():
            continue
        size = alpha[support].sum()
        log_weight = np.log(odds[support]).sum() + special.gammaln(size) - special.gammaln(size + votes.sum())
        logs.append(log_weight + (special.gammaln(alpha + votes) - special.gammaln(alpha))[support].sum())
        own, rest = ((alpha + votes)[support & side].sum() for side in (inside, ~inside))
        if own > 0.0 and rest > 0.0:
            below.append(special.betainc(own, rest, points))
        else:
            below.append(np.full_like(points, float(rest > 0.0)))
    return special.softmax(logs) @ np.array(below)


def row_of(alpha, odds, group, log_centre=None) -> SparseShares:
    """One neuron, whose only pair is itself."""
    half, only = 0.5 * torch.as_tensor(alpha)[None], torch.tensor([0])
    centre = np.zeros_like(alpha) if log_centre is None else log_centre
    parts = torch.ones(1).double(), torch.as_tensor(np.log(odds))[None], torch.as_tensor(centre)
    return SparseShares(half, only, only, *parts, [group])


def cdf_of(row: SparseShares, points: np.ndarray) -> np.ndarray:
    u, only = torch.logit(torch.as_tensor(points))[None], torch.tensor([0])
    row.prepare(u.amin(1), u.amax(1), only)
    return row.at(u, only)[0][0].numpy()


ALPHA = np.array([0.21, 0.09, 0.4, 0.3])
ODDS = np.array([0.8, 30.0, 2.0, 0.02])


@pytest.mark.parametrize("total", [0.5, 5.0, 60.0, 900.0, 30_000.0])
@pytest.mark.parametrize("group", [[0], [3], [2, 1]])
def test_cdfs_by_supports(total, group):
    alpha = total * ALPHA
    points = special.expit(np.linspace(-6.0, 6.0, 23))
    expected = cdf_by_supports(alpha, ODDS, group, points)
    np.testing.assert_allclose(cdf_of(row_of(alpha, ODDS, group), points), expected, atol=ERROR)


@pytest.mark.parametrize("total", [5.0, 60.0, 900.0, 30_000.0])
@pytest.mark.parametrize("groups", [[[0], [1], [2], [3]], [[2, 1]]])
def test_tables_by_supports(total, groups):
    """A pair of different neurons, from their factors."""
    half = total * np.stack([0.5 * ALPHA, 0.5 * ALPHA[::-1]])
    alpha = np.stack([2.0 * half[0], half.sum(0), 2.0 * half[1]])
    ends = np.array([[0, 0, 1], [0, 1, 1]])
    log_odds = np.log(np.stack([ODDS, ODDS[::-1], 0.1 * ODDS]))
    table = ComponentTable(alpha, np.zeros(4), log_odds, groups, np.arange(3), (half, ends))
    alone = ComponentTable(alpha, np.zeros(4), log_odds, groups, np.arange(3))
    u = np.linspace(-6.0, 6.0, 101)[None]
    for number, group in enumerate(groups):
        for component in range(3):
            weights = np.eye(3)[[component]]
            expected = cdf_by_supports(alpha[component], np.exp(log_odds[component]), group, special.expit(u[0]))
            for one in (table, alone):
                np.testing.assert_allclose(one.rows(weights, number).at(u)[0][0], expected, atol=ERROR)


@pytest.mark.slow
def test_cdfs_where_some_concentrations_are_tiny_and_others_are_sharp():
    """A label with a tiny concentration hardly lowers an integrand, so the phases of a sharp one last."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        sharp = rng.random(4) < 0.5
        alpha = np.where(sharp, 10.0 ** rng.uniform(0.0, 4.0, 4), 10.0 ** rng.uniform(-2.5, -1.3, 4))
        odds = np.exp(3.0 * rng.normal(size=4))
        group = [[0], [3], [2, 1]][rng.integers(3)]
        middle = np.log(alpha[group].sum() / np.delete(alpha, group).sum()) - rng.choice([0.0, 20.0, 60.0])
        points = special.expit(middle + rng.choice([0.5, 8.0]) * np.linspace(-1.0, 1.0, 7))
        expected = cdf_by_supports(alpha, odds, group, points)
        np.testing.assert_allclose(cdf_of(row_of(alpha, odds, group), points), expected, atol=ERROR)


@pytest.mark.parametrize("zeros", [True, False])
def test_tables_where_some_concentrations_are_tiny(zeros):
    """Shares down to e^-690, where cdfs are powers; quantiles there, too."""
    rng = np.random.default_rng(2)
    u, levels = np.concatenate([np.linspace(-690.0, 20.0, 90), np.linspace(-30.0, 15.0, 90)]), np.array([[0.05, 0.5]])
    for _ in range(12):
        alpha = 10.0 ** rng.uniform(-2.5, 0.0, (3, 4))
        alpha[2, :2] = 10.0 ** rng.uniform(0.0, 3.5, 2)
        odds = np.exp(2.0 * rng.normal(size=(3, 4))) if zeros else np.full((3, 4), 1e200)
        table = ComponentTable(alpha, np.zeros(4), np.log(odds) if zeros else None, [[1]], np.arange(3))
        weights = rng.dirichlet(np.ones(3))
        curves = table.rows(weights[None], 0)

        def exact(at, alpha=alpha, odds=odds, weights=weights):
            rows = [cdf_by_supports(*pair, [1], special.expit(at)) for pair in zip(alpha, odds)]
            return weights @ np.array(rows)

        np.testing.assert_allclose(curves.at(u[None])[0][0], exact(u), atol=2.0 * ERROR)
        found = curves.quantiles(levels)[0]
        inside = (levels[0] > exact(np.array([-690.0]))) & (found < 20.0)
        np.testing.assert_allclose(exact(found)[inside], levels[0][inside], atol=2.0 * ERROR)


@pytest.mark.slow
def test_density_of_a_difference_of_gammas():
    """Both scaled, their densities' product integrated over the common value: a gamma integral."""
    rng, scale = np.random.default_rng(1), 0.3

    def exact(own, rest, centre):
        log_p = special.gammaln(own + rest - 1.0) - special.gammaln(own) - special.gammaln(rest) - own * scale
        return log_p - rest * centre - (own + rest - 1.0) * np.logaddexp(-scale, -centre)

    for _ in range(60):
        own, alpha = 1.0 + 10.0 ** rng.uniform(-2.5, 3.0), 10.0 ** rng.uniform(-2.5, rng.choice([-1.3, 3.0]), 3)
        middle = scale + np.log(own / alpha.sum())
        for centre in (middle, middle + rng.normal(), 0.0, middle + 40.0, middle - 40.0):
            log_p = log_density_at_zero(
                torch.tensor([own], dtype=torch.float64),
                torch.tensor(scale, dtype=torch.float64),
                torch.as_tensor(alpha)[None],
                torch.full((3,), centre, dtype=torch.float64),
                None,
                torch.zeros(3, dtype=torch.bool),
                torch.zeros(1, dtype=torch.float64),
            )
            assert float(log_p) == pytest.approx(exact(own, alpha.sum(), centre), rel=1e-9, abs=1e-5)


@pytest.mark.parametrize("log_centre", [[0.0, -3.0, -9.0], [-18.4, 0.0, -2.0], [-1.0, -18.4, 0.0]])
def test_cdfs_with_a_centre_by_quadrature(log_centre):
    """Given ``b = g_1 / (g_1 + g_2)`` a Beta, the first share's odds are those of a Beta times a number."""
    alpha, odds, centre = np.array([1.3, 0.8, 4.0]), np.array([0.7, 3.0, 1.2]), np.exp(log_centre)

    def below(v, present):
        ratio = v / (1.0 - v) / centre[0]
        if len(present) == 1:
            k = ratio * centre[present[0]]
            return special.betainc(alpha[0], alpha[present[0]], k / (1.0 + k))
        one, two = alpha[1:]

        def integrand(b):
            k = ratio * (centre[1] * b + centre[2] * (1.0 - b))
            return special.betainc(alpha[0], one + two, k / (1.0 + k))

        answer = integrate.quad(integrand, 0, 1, weight="alg", wvar=(one - 1.0, two - 1.0), epsabs=1e-11, limit=500)[0]
        return answer / special.beta(one, two)

    norm = np.prod(1.0 + odds) - 1.0
    middle = log_centre[0] - np.log(centre[1] * 0.2 + centre[2])
    points = special.expit(np.linspace(middle - 6.0, middle + 4.0, 9))
    expected = np.full(len(points), (1.0 + odds[1]) * (1.0 + odds[2]) - 1.0)  # the first label is absent
    for present in ([1], [2], [1, 2]):
        weight = odds[0] * odds[present].prod()
        expected += weight * np.array([below(v, present) for v in points])
    np.testing.assert_allclose(
        cdf_of(row_of(alpha, odds, [0], np.array(log_centre)), points), expected / norm, atol=ERROR
    )


def one_component(alpha, odds) -> SnefySimplex:
    exponents = 0.5 * (torch.as_tensor(alpha) - 1.0)
    presence = 0.5 * (torch.as_tensor(np.log(odds)) - torch.lgamma(torch.as_tensor(alpha)))
    one = torch.ones(1, 1).double()
    return with_zeros(exponents[None], presence[None], one, torch.zeros(1, 1).double())


@pytest.mark.parametrize("votes", [[1, 0, 0, 0], [3, 0, 2, 0], [60_000, 0, 39_000, 1_000], [100_000, 0, 0, 0]])
def test_after_votes_by_supports(votes):
    """A hundred thousand votes, too, quantiles and cdfs alike."""
    alpha, votes = 10.0 * ALPHA, np.array(votes, dtype=np.float64)
    law = one_component(alpha, ODDS).posterior(votes[None])
    levels = [0.05, 0.5, 0.95]
    quantiles = law.quantiles(levels)[0].numpy()
    assert np.isfinite(quantiles).all()
    for label in range(4):
        inner = (quantiles[label] > 0.0) & (quantiles[label] < 1.0)
        expected = cdf_by_supports(alpha, ODDS, [label], quantiles[label][inner], votes)
        np.testing.assert_allclose(np.array(levels)[inner], expected, atol=ERROR)
        mean = float(law.mean[0, label])
        if 1e-9 < mean < 1.0 - 1e-9:
            exact = cdf_by_supports(alpha, ODDS, [label], np.array([mean]), votes)
            value = law.marginal(label).cdf(torch.tensor([mean], dtype=torch.float64))
            np.testing.assert_allclose(value.numpy(), exact, atol=ERROR)


def several_members(zeros: bool, centre=None) -> SnefySimplex:
    random = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    exponents, readout, log_scale = normal(3, 4, 3).exp(), normal(3, 2, 4), normal(5, 3, 4)
    presence = normal(3, 4, 3) if zeros else None
    return SnefySimplex(exponents, readout, log_scale, centre=centre, presence=presence)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("centre", [None, [1.0, 0.2, 3.0]])
def test_members_count_by_their_posterior_after_votes(zeros, centre):
    law = several_members(zeros, None if centre is None else torch.tensor(centre).double())
    votes = np.array([[4, 0, 1], [0, 0, 0], [0, 9, 0], [1, 1, 1], [0, 1, 0]])
    after = law.posterior(votes)
    mean = (after.log_members.exp()[..., None] * after.member_means().transpose(0, 1)).sum(1)
    torch.testing.assert_close(mean, after.mean, atol=1e-9, rtol=0)
    assert float((after.log_members - law.log_members).abs().max()) > 0.1
    torch.testing.assert_close(after.log_members[1], law.log_members[1])


def test_members_after_votes_are_those_of_a_plain_law_where_all_centres_are_one():
    votes = np.array([[4, 0, 1], [0, 2, 0], [0, 9, 0], [1, 1, 1], [0, 1, 0]])
    plain, centred = (several_members(False, one).posterior(votes) for one in (None, torch.ones(3).double()))
    torch.testing.assert_close(plain.log_members, centred.log_members, atol=1e-9, rtol=1e-9)
