"""Laws with zeros: the Rosenblatt map with its atoms, and what known zeros and known shares say of the rest."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from laws import with_zeros
from snefy_ldl import SnefySimplex
from snefy_ldl.distributions import ConditionedDraws, ConditionedLaw
from snefy_ldl.distributions.rosenblatt import PresenceSteps
from snefy_ldl.errors import InputError

#: A comparison at 5.5 standard errors fails by chance once in 26 million; seeds are fixed, so a pass stays a pass.
SIGMAS = 5.5
CENTRE = torch.tensor([0.05, 1.0, 0.3, 0.2], dtype=torch.float64)


def make(
    n_labels: int = 4,
    n: int = 4,
    batch: tuple[int, ...] = (2,),
    members: int = 1,
    seed: int = 0,
    smallest: float = 0.25,
    **options: Tensor,
) -> SnefySimplex:
    """A law with weights of both signs, moderate odds and concentrations from twice the smallest half to about 20."""
    random = np.random.default_rng(seed)
    halves = np.exp(random.uniform(math.log(smallest), 2.3, (members, n, n_labels)))
    odds = 1.5 * random.normal(size=halves.shape)  # log odds of the diagonal
    presence = 0.5 * (odds - scipy.special.gammaln(2.0 * halves))
    readout, scale = random.normal(size=(members, 3, n)) + 0.4, 0.7 * random.normal(size=(*batch, members, n))
    return with_zeros(*(torch.as_tensor(part) for part in (halves - 0.5, presence, readout, scale)), **options)


LAWS = {
    "signed": lambda: make(),
    "centred": lambda: make(centre=CENTRE, seed=1),
    "members": lambda: make(n=3, members=2, seed=2, centre=CENTRE),
    "two labels": lambda: make(2, seed=3),
    "votes": lambda: make(3, n=3, seed=1, centre=CENTRE[:3]).posterior(
        torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]])
    ),
}


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- Rosenblatt --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_labels_by_hand() -> None:
    """Odds 3 and 1 with shapes 1: of K = 7, {0} has 3, {1} has 1 and both 3; both are there uniformly."""
    law = with_zeros(
        torch.zeros(1, 2).double(),
        torch.tensor([[0.5 * math.log(3.0), 0.0]]).double(),
        torch.ones(1, 1).double(),
        torch.zeros(1, 1).double(),
    )
    q, pi = 1 / 7, 1 / 2
    both = law.rosenblatt(torch.tensor([[[0.2, 0.8]], [[0.9, 0.1]]]))[:, 0, 0]
    np.testing.assert_allclose(both, [q + (1 - q) * pi * 0.2, q + (1 - q) * pi * 0.9], atol=1e-12)
    absent, alone = (
        np.array([float(law.rosenblatt([point], random_state=s)) for s in range(200)]) for point in ([0, 1], [1, 0])
    )
    # 200 places each, uniform in the bands: two Kolmogorov-Smirnov tests at 1e-5
    assert scipy.stats.kstest(absent / q, "uniform").pvalue > 1e-5
    assert scipy.stats.kstest((alone - q - (1 - q) * pi) / ((1 - q) * (1 - pi)), "uniform").pvalue > 1e-5
    back = law.inverse_rosenblatt(np.array([0.0, 0.14, 0.5, 0.6, 1.0])[:, None, None])[:, 0]
    np.testing.assert_allclose(back[:, 0], [0, 0, (0.5 - q) / (1 - q) / pi, 1, 1], atol=1e-12)
    np.testing.assert_array_equal(back[:, 0] == 0.0, [True, True, False, False, False])


@pytest.mark.parametrize("kind", list(LAWS))
def test_own_draws_become_uniform_and_come_back(kind: str) -> None:
    """5 kinds x up to 3 KS tests and 2 x 3 rank correlations at 1e-5: a false alarm in 3,000 such suites."""
    law = LAWS[kind]()
    n = 150 if kind == "votes" else 2000
    draws = law.sample((n,), generator=rng(3))
    assert 0.05 < float((draws == 0.0).double().mean()) < 0.8
    uniforms = law.rosenblatt(draws, random_state=1)
    assert uniforms.shape == (n, 2, law.n_labels - 1)
    again = law.inverse_rosenblatt(uniforms)
    torch.testing.assert_close(again, draws, rtol=0, atol=1e-8)
    assert torch.equal(again == 0.0, draws == 0.0)
    flat = uniforms.reshape(-1, law.n_labels - 1).numpy()
    for k in range(flat.shape[1]):
        assert scipy.stats.kstest(flat[:, k], "uniform").pvalue > 1e-5
        for j in range(k):
            assert scipy.stats.spearmanr(flat[:, j], flat[:, k]).pvalue > 1e-5
            assert scipy.stats.spearmanr(abs(flat[:, j] - 0.5), abs(flat[:, k] - 0.5)).pvalue > 1e-5


@pytest.mark.parametrize("kind", ["signed", "members"])
def test_the_cube_is_filled_evenly(kind: str) -> None:
    """4 x 4 x 4 cells of the unit cube: one chi-square test at 1e-5, which also sees what pairs cannot show."""
    law = LAWS[kind]()
    flat = law.rosenblatt(law.sample((4000,), generator=rng(4))).reshape(-1, 3).numpy()
    counts = np.histogramdd(flat, bins=4, range=[(0, 1)] * 3)[0].ravel()
    assert scipy.stats.chisquare(counts).pvalue > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["signed", "centred", "members", "two labels"])
def test_uniform_numbers_become_draws(kind: str) -> None:
    """Means, second moments and chances of zeros of 8,000 draws a row, each at 5.5 standard errors."""
    law = LAWS[kind]()
    uniforms = np.random.default_rng(5).uniform(size=(8000, 2, law.n_labels - 1))
    draws = law.inverse_rosenblatt(uniforms)
    products = draws[..., :, None] * draws[..., None, :]
    second = law.covariance_matrix + law.mean[..., :, None] * law.mean[..., None, :]
    for values, expected in ((draws, law.mean), ((draws == 0.0).double(), law.prob_zero()), (products, second)):
        error = values.std(0) / math.sqrt(len(values))
        assert ((values.mean(0) - expected).abs() <= SIGMAS * error).all()
    # levels of labels that are there, the last of which also tells of the last label, come back
    again = law.rosenblatt(draws, random_state=6)
    there = draws[..., :-1] > 0.0
    kept = there & ((there.flip(-1).cumsum(-1).flip(-1) > 1) | (draws[..., -1:] > 0.0))
    assert float(kept.double().mean()) > 0.2
    torch.testing.assert_close(again[kept], torch.as_tensor(uniforms)[kept], rtol=0, atol=1e-7)


def test_bands_and_places_against_supports_and_faces() -> None:
    """Every support of three labels: chances by summing over supports, places by the law on the face."""
    law = make(3, centre=CENTRE[:3], seed=7)
    supports = [np.array(s, dtype=bool) for s in itertools.product([0, 1], repeat=3) if any(s)]
    chance = {}
    for mask in supports:
        log_p = law.family.components.log_support(torch.as_tensor(mask))
        chance[tuple(mask)] = (law.weights() * log_p.exp()).sum(1)

    def mass(*start: bool) -> Tensor:
        return sum(p for s, p in chance.items() if s[: len(start)] == start)  # type: ignore[return-value]

    for mask in supports:
        point = torch.zeros(2, 3).double()
        point[:, mask] = torch.as_tensor(np.random.default_rng(8).dirichlet(np.ones(mask.sum()), size=2))
        u = law.rosenblatt(point, random_state=9)
        places = torch.zeros(2, 3).double()
        if mask.sum() > 1:
            places[:, np.flatnonzero(mask)[:-1]] = law.given_support(mask).rosenblatt(point[:, mask])
        pi = mass(bool(mask[0]), bool(mask[1]), True) / mass(bool(mask[0]), bool(mask[1]))
        z = max(np.flatnonzero(mask[:2]), default=None)
        for r in range(2):
            before = tuple(bool(m) for m in mask[:r])
            q = mass(*before, False) / mass(*before)
            if not mask[r]:
                assert ((u[:, r] >= 0) & (u[:, r] < q)).all()
                continue
            inner = (u[:, r] - q) / (1 - q)
            if r != z:
                torch.testing.assert_close(inner, places[:, r], rtol=0, atol=1e-10)
            elif mask[2]:
                torch.testing.assert_close(inner, places[:, r] * pi, rtol=0, atol=1e-10)
            else:
                assert ((inner >= pi) & (inner <= 1)).all()


@pytest.mark.slow
def test_against_conditional_cdfs_of_draws() -> None:
    """A point whose labels are all there: each level against draws near it, at 5.5 standard errors and a window's bias.

    The first level does not look at other labels' shares but at their presence: among draws with the same support, the
    share of those with a smaller first one is v_1.
    """
    law = make(3, seed=11, batch=(1,))
    draws = law.sample((400_000,), generator=rng(12))[:, 0]
    full = draws[(draws > 0).all(-1)]
    point = full.median(0).values
    point = point / point.sum()
    u = law.rosenblatt(point[None])[0]
    q = (draws[:, 0] == 0).double().mean()
    below = (full[:, 0] <= point[0]).double().mean()
    error = SIGMAS * (0.5 / math.sqrt(len(full)) + 0.5 / math.sqrt(len(draws)))
    assert abs(float(u[0] - (q + (1 - q) * below))) < error
    some = draws[draws[:, 0] > 0]
    q = (some[:, 1] == 0).double().mean()
    both = some[some[:, 1] > 0]
    pi = (both[:, 2] > 0).double().mean()
    near = full[(full[:, 0] - point[0]).abs() < 0.01]
    assert len(near) > 1000
    below = (near[:, 1] / (1 - near[:, 0]) <= point[1] / (1 - point[0])).double().mean()
    assert abs(float(u[1] - (q + (1 - q) * pi * below))) < SIGMAS * 1.5 / math.sqrt(len(near)) + 0.01


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.floats(0.0, 12.0))
def test_there_and_back_whatever_the_odds(seed: int, n_labels: int, spread: float) -> None:
    random = np.random.default_rng(seed)
    halves = np.exp(random.uniform(-1.0, 4.0, (2, 3, n_labels)))
    presence = spread * random.normal(size=halves.shape) - 0.5 * scipy.special.gammaln(2.0 * halves)
    parts = (halves - 0.5, presence, random.normal(size=(2, 2, 3)) + 0.5, random.normal(size=(3, 2, 3)))
    law = with_zeros(*(torch.as_tensor(p) for p in parts), torch.as_tensor(np.exp(random.normal(size=n_labels) * 2)))
    uniforms = random.uniform(size=(3, n_labels - 1))
    shares = law.inverse_rosenblatt(uniforms)
    torch.testing.assert_close(shares.sum(-1), torch.ones(3).double())
    again = law.rosenblatt(shares, random_state=seed % 1000)
    assert ((again >= 0.0) & (again <= 1.0)).all()
    torch.testing.assert_close(law.inverse_rosenblatt(again), shares, rtol=0, atol=1e-7)
    order = random.permutation(3)
    torch.testing.assert_close(law[order].inverse_rosenblatt(uniforms[order]), shares[order], rtol=0, atol=1e-8)


def test_the_seed_decides_what_atoms_leave_open() -> None:
    law = make()
    draws = law.sample((50,), generator=rng(1))
    one, two, other = (law.rosenblatt(draws, random_state=s) for s in (0, 0, 1))
    assert torch.equal(one, two)
    drawn = draws[..., :-1] == 0.0
    assert (one != other)[drawn].all()
    assert torch.equal(one, law.rosenblatt(draws.numpy()))
    generator = np.random.default_rng(0)
    assert not torch.equal(law.rosenblatt(draws, generator), law.rosenblatt(draws, generator))


def test_impossible_presences_give_finite_answers() -> None:
    """A label that is never there, and one that always is: ends of the cube, no NaN."""
    presence = torch.tensor([[-400.0, 400.0, 0.0]]).double()
    law = with_zeros(torch.zeros(1, 3).double(), presence, torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    for point in ([1.0, 0.0, 0.0], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]):
        assert torch.isfinite(law.rosenblatt([point])).all()
    for levels in ([0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.0]):
        shares = law.inverse_rosenblatt([levels])
        assert (shares[:, 0] == 0.0).all()
        assert (shares[:, 1] > 0.0).all()


def test_chances_of_presences_sum_to_one() -> None:
    steps = PresenceSteps(np.random.default_rng(0).normal(size=(5, 4)) * 100)
    weights = np.full((2, 5), 0.2)
    for label in range(4):
        absent, present = steps.split(label, weights, np.array([False, True]))
        np.testing.assert_allclose(absent + present, 1.0)
    assert absent[0] == 0.0  # somebody must come


def test_points_must_fit() -> None:
    law = make(3)
    for bad, message in (
        (torch.ones(2, 4) / 4, "expected 3 columns"),
        (torch.ones(5, 3) / 3, "do not fit"),
        (torch.tensor([0.5, 0.6, -0.1]), "sum to one"),
        (torch.tensor([0.5, math.nan, 0.5]), "finite"),
    ):
        with pytest.raises(InputError, match=message):
            law.rosenblatt(bad)
    with pytest.raises(InputError, match="between 0 and 1"):
        law.inverse_rosenblatt([[0.5, 1.5]])


# -- known zeros -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["signed", "centred", "members"])
def test_known_zeros_leave_the_law_of_the_rest(kind: str) -> None:
    """The density of every row without label 1 is that of the rest times the chance of its absence."""
    law = LAWS[kind]().named(["a", "b", "c", "d"])
    given_zero = law.condition({"b": 0.0})
    assert isinstance(given_zero, ConditionedLaw)
    assert given_zero.rest.label_names == ("a", "c", "d")
    torch.testing.assert_close(given_zero.log_prob_known.exp(), law.prob_zero()[:, 1])
    draws = given_zero.sample((300,), generator=rng(1))
    assert (draws[..., 1] == 0.0).all()
    torch.testing.assert_close(
        given_zero.log_prob(draws) + given_zero.log_prob_known, law.log_prob(draws), rtol=0, atol=1e-8
    )
    # by total probability over two zeros
    both = law.condition({0: 0.0, 1: 0.0})
    expected = (law.weights() @ law.family.components.prob_absent([0, 1])[:, None])[:, 0]
    torch.testing.assert_close(both.log_prob_known.exp(), expected)
    torch.testing.assert_close(given_zero.prob_zero()[:, 0] * law.prob_zero()[:, 1], expected)
    assert (both.prob_zero()[:, :2] == 1.0).all()
    torch.testing.assert_close(both.mean.sum(-1), torch.ones(2).double())


@pytest.mark.slow
def test_known_zeros_against_draws() -> None:
    """4 means and 4 chances of zeros of 2 rows at 5.5 standard errors."""
    law = make(centre=CENTRE, seed=4)
    draws = law.sample((60_000,), generator=rng(2))
    given_zero = law.condition({2: 0.0})
    for row in range(2):
        part = draws[:, row][draws[:, row, 2] == 0.0]
        assert len(part) > 2000
        for values, expected in ((part, given_zero.mean), ((part == 0.0).double(), given_zero.prob_zero())):
            error = values.std(0) / math.sqrt(len(values))
            assert ((values.mean(0) - expected[row]).abs() <= SIGMAS * error + 1e-12).all()
        median = given_zero.quantiles([0.5])[row, 1, 0]
        below = [(part[:, 1] < median - 1e-5).double().mean(), (part[:, 1] <= median + 1e-5).double().mean()]
        slack = SIGMAS * 0.5 / math.sqrt(len(part))
        assert float(below[0]) - slack <= 0.5 <= float(below[1]) + slack
    at = torch.full((2,), 0.4, dtype=torch.float64)
    cdf = given_zero.marginal(1).cdf(at)
    for row in range(2):
        part = draws[:, row][draws[:, row, 2] == 0.0]
        assert abs(float((part[:, 1] <= 0.4).double().mean() - cdf[row])) < SIGMAS * 0.5 / math.sqrt(len(part))


# -- known shares ------------------------------------------------------------------------------------------------------


def on_faces(law: SnefySimplex, row: int, share: float) -> tuple[float, Tensor, Tensor]:
    """Density of the first of three shares, and the others' means and chances of zero, by quadrature on the faces."""
    left = 1.0 - share
    nodes, gauss = np.polynomial.legendre.leggauss(400)
    angle = torch.as_tensor(math.pi * (nodes + 1.0) / 4.0)
    t, weight = angle.sin().square(), torch.as_tensor(gauss) * math.pi / 4.0 * (2.0 * angle).sin() * left
    points = torch.stack([torch.full_like(t, share), left * t, left * (1.0 - t)], -1)[:, None]
    between = law[row].log_prob(points)[:, 0].exp() * weight
    ends = torch.tensor([[[share, left, 0.0]], [[share, 0.0, left]]], dtype=torch.float64)
    alone = law[row].log_prob(ends)[:, 0].exp()
    total = alone.sum() + between.sum()
    first = float((alone[0] * left + (between * left * t).sum()) / total)
    zeros = torch.stack([torch.zeros_like(total), alone[1] / total, alone[0] / total])
    return float(total.log()), torch.tensor([share, first, left - first], dtype=torch.float64), zeros


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("centred", [False, True])
def test_known_shares_against_quadrature(share: float, centred: bool) -> None:
    """2 x 3 shares x 2 rows x 7 figures at 5.5 standard errors."""
    law = make(3, seed=5, smallest=0.8, **({"centre": CENTRE[:3]} if centred else {}))
    answer = law.condition({0: share}, n_draws=8000, generator=rng(3))
    assert isinstance(answer, ConditionedDraws)
    assert (answer.effective_draws > 400).all()
    for row in range(2):
        log_p, mean, zeros = on_faces(law, row, share)
        assert abs(float(answer.log_prob_known[row]) - log_p) <= SIGMAS * float(answer.log_prob_std_error[row])
        assert ((answer.mean[row] - mean).abs() <= SIGMAS * answer.std_error[row] + 1e-9).all()
        chance = (zeros * (1 - zeros) / answer.effective_draws[row]).sqrt()
        assert ((answer.prob_zero()[row] - zeros).abs() <= SIGMAS * chance + 1e-9).all()


def test_zeros_and_shares_together() -> None:
    """Knowing label 3's absence and then label 0's share is knowing both at once: two routes, 5.5 standard errors."""
    law = make(centre=CENTRE, seed=6)
    at_once = law.condition({0: 0.3, 3: 0.0}, n_draws=8000, generator=rng(4))
    in_turn = law.condition({3: 0.0})
    rest = in_turn.rest.condition({0: 0.3}, n_draws=8000, generator=rng(5))
    error = (at_once.std_error[:, :3].square() + rest.std_error.square()).sqrt()
    assert ((at_once.mean[:, :3] - rest.mean).abs() <= SIGMAS * error + 1e-12).all()
    error = (at_once.log_prob_std_error.square() + rest.log_prob_std_error.square()).sqrt()
    difference = at_once.log_prob_known - rest.log_prob_known - in_turn.log_prob_known
    assert (difference.abs() <= SIGMAS * error).all()
    draws = at_once.sample((100,), generator=rng(6))
    assert (draws[..., 3] == 0.0).all()
    torch.testing.assert_close(draws[..., 0], torch.full((100, 2), 0.3, dtype=torch.float64))
    torch.testing.assert_close(draws.sum(-1), torch.ones(100, 2).double())


def test_labels_that_are_hardly_ever_there_can_be_drawn() -> None:
    """Given label 0's share, one of two labels with odds e^-60 must be there: no waiting for it by chance."""
    presence = torch.tensor([[0.0, -30.0, -30.0]]).double()
    law = with_zeros(torch.zeros(1, 3).double(), presence, torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    answer = law.condition({0: 0.4}, n_draws=500, generator=rng(7))
    torch.testing.assert_close(answer.prob_zero()[0], torch.tensor([0.0, 0.5, 0.5]).double(), rtol=0, atol=0.15)
    draws = answer.sample((50,), generator=rng(8))
    assert ((draws[..., 1:] > 0.0).sum(-1) == 1).all()


def test_mistakes_are_named() -> None:
    law = make()
    for known, message in (
        ({0: -0.1}, "strictly between"),
        ({0: 1.0}, "strictly between"),
        ({0: [0.0, 0.2]}, "zero in row 0 and positive"),
        ({0: 0.6, 1: 0.5}, "sum to 1.1"),
        ({0: 0.0, 1: 0.0, 2: 0.0}, "at least two labels unknown"),
    ):
        with pytest.raises(InputError, match=message):
            law.condition(known)
    with pytest.raises(InputError, match="at least 2 draws"):
        law.condition({0: 0.3}, n_draws=1)
    with pytest.raises(InputError, match="given_support"):
        law.condition_ratios({(0, 1): 2.0})
