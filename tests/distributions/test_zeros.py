"""Laws with exact zeros: against sums over all supports, draws, and densities without zeros."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor
from torch.distributions import Dirichlet

from laws import mixture, with_zeros
from snefy_ldl._internal.special import pair_index
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.distributions.sparse_shares import SparseShares
from snefy_ldl.errors import InputError

CENTRE = torch.tensor([0.05, 1.0, 0.3], dtype=torch.float64)


def make(
    n_labels: int = 3, n: int = 4, batch: tuple[int, ...] = (2,), members: int = 1, seed: int = 0, **options: Tensor
) -> SnefySimplex:
    """A law with weights of both signs, moderate odds and concentrations from 0.3 to about 20."""
    generator = torch.Generator().manual_seed(seed)
    halves = torch.exp(torch.rand(members, n, n_labels, generator=generator, dtype=torch.float64) * 4.2 - 1.9)
    exponents = halves - 0.5
    wanted = 1.5 * torch.randn(
        members, n, n_labels, generator=generator, dtype=torch.float64
    )  # log odds of the diagonal
    presence = 0.5 * (wanted - torch.lgamma(2.0 * halves))
    readout = torch.randn(members, 3, n, generator=generator, dtype=torch.float64) + 0.5
    log_scale = 0.7 * torch.randn(*batch, members, n, generator=generator, dtype=torch.float64)
    return with_zeros(exponents, presence, readout, log_scale, **options)


def supports(n_labels: int) -> Iterator[list[int]]:
    for size in range(1, n_labels + 1):
        yield from (list(support) for support in itertools.combinations(range(n_labels), size))


def by_support(law: SnefySimplex) -> list[tuple[list[int], Tensor, Tensor]]:
    """Every support, its components' joint weights (N, P), and their concentrations on it (P, |S|), by the formulas."""
    n = law.exponents.shape[1]
    i, j = pair_index(n)
    answers = []
    w, a, v = law.exponents[0], law.presence[0], law.readout[0]
    alpha = 1.0 + w[i] + w[j]
    odds = torch.exp(a[i] + a[j] + torch.lgamma(alpha))
    norm = (1.0 + odds).prod(1) - 1.0
    h = law.flat_log_scale[:, 0] - 0.5 * norm[i == j].log()
    joint = (v.T @ v)[i, j] * torch.where(i == j, 1.0, 2.0) * torch.exp(h[:, i] + h[:, j]) * norm
    joint = joint / joint.sum(1, keepdim=True)
    for support in supports(law.n_labels):
        answers.append((support, joint * odds[:, support].prod(1) / norm, alpha[:, support]))
    return answers


def test_weights_and_supports_sum_to_one() -> None:
    law = make()
    assert bool((law.weights() < 0).any()), "the test should see negative weights"
    torch.testing.assert_close(law.weights().sum(1), torch.ones(2).double())
    total = sum(joint.sum(1) for _, joint, _ in by_support(law))
    torch.testing.assert_close(total, torch.ones(2).double())
    torch.testing.assert_close(law.mean.sum(-1), torch.ones(2).double())


def test_expectations_against_a_sum_over_supports() -> None:
    """1e-8 is promised for moments: Dirichlet formulas on every face, c = 1."""
    law = make()
    mean, absent = torch.zeros(2, 2, 3, dtype=torch.float64)
    greater, entropy = torch.zeros(2, 2, dtype=torch.float64)
    second = torch.zeros(2, 3, 3, dtype=torch.float64)
    for support, joint, alpha in by_support(law):
        total = alpha.sum(1, keepdim=True)
        here = torch.zeros(len(alpha), 3).double()
        here[:, support] = alpha / total
        squares = torch.zeros(len(alpha), 3, 3).double()
        block = (alpha[:, :, None] * alpha[:, None, :] + torch.diag_embed(alpha)) / (total * (total + 1))[:, :, None]
        for x, r in enumerate(support):
            squares[:, r, support] = block[:, x]
        mean += joint @ here
        second += torch.einsum("np,prq->nrq", joint, squares)
        absent += joint.sum(1, keepdim=True) * torch.tensor([r not in support for r in range(3)])
        parts = alpha / total * (torch.digamma(alpha + 1) - torch.digamma(total + 1))
        entropy -= (joint * parts.sum(1)).sum(1)
        if 0 in support:
            chance = torch.ones(len(alpha)).double()
            if 2 in support:
                zero, two = alpha[:, support.index(0)], alpha[:, support.index(2)]
                chance = torch.as_tensor(scipy.special.betainc(two.numpy(), zero.numpy(), 0.5))
            greater += joint @ chance
    expected = second - mean[:, :, None] * mean[:, None, :]
    torch.testing.assert_close(law.mean, mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.covariance_matrix, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.variance, expected.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-9)
    torch.testing.assert_close(law.prob_zero(), absent, rtol=0, atol=1e-12)
    torch.testing.assert_close(law.prob_greater(0, 2), greater, rtol=0, atol=1e-12)
    torch.testing.assert_close(law.expected_entropy(), entropy, rtol=0, atol=1e-9)


@pytest.mark.parametrize("labels", [0, [0, 2]])
def test_cdf_against_a_sum_over_supports(labels: int | list[int]) -> None:
    """1e-6 is promised for cdfs: Betas on every face, c = 1, atoms included."""
    law = make(seed=1)
    inside = [labels] if isinstance(labels, int) else labels
    points = np.array([0.0, 1e-6, 0.003, 0.1, 0.4, 0.77, 0.99, 1.0 - 1e-6, 1.0])
    expected = np.zeros((len(points), 2))
    for support, joint, alpha in by_support(law):
        place = [x for x, r in enumerate(support) if r in inside]
        first = alpha[:, place].sum(1).numpy()
        rest = alpha.sum(1).numpy() - first
        if not place:
            below = np.ones((len(points), len(alpha)))
        elif len(place) == len(support):
            below = np.repeat((points == 1.0)[:, None].astype(float), len(alpha), 1)
        else:
            below = scipy.special.betainc(first, rest, points[:, None])
        expected += below @ joint.numpy().T
    share = law.marginal(labels)
    value = share.cdf(torch.as_tensor(points)[:, None].expand(-1, 2))
    np.testing.assert_allclose(value.numpy(), expected, rtol=0, atol=1e-7)
    if isinstance(labels, int):
        torch.testing.assert_close(share.cdf(torch.zeros(2).double()), law.prob_zero()[:, 0])
    levels = torch.tensor([0.001, 0.2, 0.5, 0.9, 0.999]).double()
    quantile = share.quantiles(levels)
    below, above = share.cdf(quantile.T - 1e-9), share.cdf(quantile.T + 1e-9)
    assert bool((below <= levels[:, None] + 1e-6).all())
    assert bool((above >= levels[:, None] - 1e-6).all())
    if isinstance(labels, int):
        torch.testing.assert_close(law.quantiles(levels)[:, labels], quantile, rtol=0, atol=1e-9)


def test_density_against_a_sum_over_supports() -> None:
    law = make(seed=2)
    rows = torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.0, 0.6], [0.0, 1.0, 0.0], [0.7, 0.3, 1e-10]], dtype=torch.float64)
    for row in rows:
        inside = [r for r in range(3) if row[r] > 0.0]  # however small a share is
        joint, alpha = next((joint, alpha) for support, joint, alpha in by_support(law) if support == inside)
        density = torch.ones(len(alpha)).double()
        if len(inside) > 1:
            shares = row[inside] / row[inside].sum()
            density = Dirichlet(alpha).log_prob(shares).exp()
        torch.testing.assert_close(law.log_prob(row), (joint @ density).log(), rtol=0, atol=1e-9)
    torch.testing.assert_close(law.log_prob_at(rows), law.log_prob(rows[:, None].expand(-1, 2, -1)))


def test_density_with_a_centre_integrates_to_the_chance_of_the_support() -> None:
    """On an edge of the triangle by Gauss-Legendre in the logit; the mass is given by the odds alone."""
    law = make(seed=3, centre=CENTRE)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    z = torch.as_tensor(60.0 * nodes)
    share = torch.sigmoid(z)
    rest = torch.sigmoid(-z)
    points = torch.stack([share, torch.zeros_like(share), rest], 1)
    step = torch.as_tensor(60.0 * weights) * share * rest
    mass = step @ law.log_prob_at(points).exp()
    chance = law.weights() @ law.family.components.log_support(torch.tensor([True, False, True])).exp()
    torch.testing.assert_close(mass, chance, rtol=0, atol=1e-7)
    torch.testing.assert_close(law.log_prob_at(torch.eye(3).double()).exp(), (
        torch.stack([law.weights() @ law.family.components.log_support(torch.eye(3).bool()[r]).exp() for r in range(3)])
    ), rtol=0, atol=1e-12)  # fmt: skip


@pytest.mark.slow
def test_draws_with_a_centre_agree_with_every_answer() -> None:
    """200,000 draws a row; each of 40 means and frequencies within 5 standard errors: false alarm 2e-5 in all."""
    law = make(seed=4, centre=CENTRE)
    n = 200_000
    draws = law.sample((n,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.sum(-1), torch.ones(n, 2).double())

    def close(values: Tensor, expected: Tensor) -> None:
        error = values.std(0) / n**0.5 + 1e-12
        assert bool(((values.mean(0) - expected).abs() < 5.0 * error).all()), (values.mean(0), expected, error)

    close(draws, law.mean)
    close((draws - law.mean).square(), law.variance)
    product = (draws - law.mean)[..., 0] * (draws - law.mean)[..., 2]
    close(product, law.covariance_matrix[:, 0, 2])
    close((draws == 0.0).double(), law.prob_zero())
    close((draws[..., 0] > draws[..., 1]).double(), law.prob_greater(0, 1))
    close(torch.special.entr(draws).sum(-1), law.expected_entropy())
    for point in (0.0, 0.05, 0.3, 0.9):
        at = torch.full((2,), point).double()
        close((draws[..., 2] <= point).double(), law.marginal(2).cdf(at))
        close((draws[..., [0, 1]].sum(-1) <= point).double(), law.marginal([0, 1]).cdf(at))
    pair = law.subcomposition([0, 2])
    for row in range(2):
        some = draws[:, row, [0, 2]]
        some = some[some.sum(-1) > 0]
        share = some[:, 0] / some.sum(-1)
        error = share.std() / len(share) ** 0.5
        assert abs(float(share.mean() - pair.mean[row, 0])) < 5.0 * float(error)
        absent = (share == 0.0).double()
        assert abs(float(absent.mean() - pair.prob_zero()[row, 0])) < 5.0 * float(absent.std() / len(share) ** 0.5)


def test_all_present_is_a_density_without_zeros() -> None:
    """Where odds are endless, pair weights differ from the plain family's by Γ(Σ α), in both families a square."""
    law = make(seed=5)
    sure = with_zeros(law.exponents, law.presence + 12.0, law.readout, law.log_scale)
    # moving every presence by a constant moves g_i and leaves log_scale: c_ij -> M_ij e^{h̃_i + h̃_j} R_ij
    plain = mixture(sure.weights(), sure.concentration)
    point = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    torch.testing.assert_close(sure.log_prob(point), plain.log_prob(point), rtol=0, atol=1e-6)
    torch.testing.assert_close(sure.mean, plain.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(sure.covariance_matrix, plain.covariance_matrix, rtol=0, atol=1e-7)
    at = torch.tensor([0.3, 0.6]).double()
    torch.testing.assert_close(sure.marginal(1).cdf(at), plain.marginal(1).cdf(at), rtol=0, atol=1e-6)
    i, j = pair_index(4)
    total = sure.concentration.sum(1)
    norm = torch.lgamma(total)
    unit = (norm - 0.5 * norm[i == j][i] - 0.5 * norm[i == j][j]).exp()
    ratio = sure.weights() / (SnefySimplex(law.exponents, law.readout, law.log_scale).weights() * unit)
    torch.testing.assert_close(ratio / ratio[:, :1], torch.ones_like(ratio), rtol=1e-6, atol=0)


@pytest.mark.parametrize("centre", [None, CENTRE])
def test_given_support_is_the_law_on_the_face(centre: Tensor | None) -> None:
    law = make(seed=6, members=2, centre=centre) if centre is not None else make(seed=6, members=2)
    face = law.given_support([True, False, True])
    assert (face.log_centre is not None) == (centre is not None)
    assert not face.has_atoms
    points = torch.tensor([[0.1, 0.9], [0.6, 0.4]], dtype=torch.float64)
    whole = torch.stack([points[:, 0], torch.zeros(2).double(), points[:, 1]], 1)
    chance = law.weights() @ law.family.components.log_support(torch.tensor([True, False, True])).exp()
    expected = law.log_prob_at(whole) - chance.log()
    torch.testing.assert_close(face.log_prob_at(points), expected, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="support"):
        law.given_support([True, False, False])


def test_rows_members_and_batches() -> None:
    law = make(batch=(2, 3), members=2, seed=7, centre=CENTRE)
    torch.testing.assert_close(law[4].mean[0], law.mean[1, 1])
    torch.testing.assert_close(torch.stack([m.mean for m in law.members()]).mean(0), law.mean)
    assert len(law) == 6
    assert law.expand((5, 2, 3)).mean.shape == (5, 2, 3, 3)
    value = torch.tensor([0.0, 0.5, 0.5]).double()
    torch.testing.assert_close(law.expand((5, 2, 3)).log_prob(value)[2], law.log_prob(value))
    members = torch.stack([m.log_prob(value) for m in law.members()])  # type: ignore[no-untyped-call]
    torch.testing.assert_close(torch.logsumexp(members, 0) - np.log(2.0), law.log_prob(value))


def test_entropy_sums_over_supports() -> None:
    """Two labels: two atoms and an integral over the edge; at 5.5 standard errors."""
    law = make(2, seed=9, centre=CENTRE[:2])
    nodes, weights = np.polynomial.legendre.leggauss(600)
    z = torch.as_tensor(60.0 * nodes)
    points = torch.stack([torch.sigmoid(z), torch.sigmoid(-z)], 1)
    inside = torch.special.entr(law.log_prob_at(points).exp()).T @ (torch.as_tensor(60.0 * weights) * points.prod(1))
    expected = inside + torch.special.entr(law.log_prob_at(torch.eye(2).double()).exp()).sum(0)
    value, error = law.entropy(20_000, generator=torch.Generator().manual_seed(0), return_std_error=True)
    assert bool(((value - expected).abs() < 5.5 * error).all())
    assert bool((error < 0.05).all())


@pytest.mark.slow
def test_logarithms_of_labels_that_may_be_absent_are_minus_infinity() -> None:
    law = make()
    assert bool(torch.isneginf(law.expected_log()).all())
    # votes say that a label is there; 200,000 weighted draws, five standard errors
    after = law.posterior(torch.tensor([2.0, 0.0, 0.0])).expected_log()
    assert bool(torch.isneginf(after[:, 1:]).all())
    draws = law.sample((200_000,), torch.Generator().manual_seed(1))[..., 0]
    gap = torch.where(draws > 0.0, draws.square() * (draws.clamp_min(1e-300).log() - after[:, 0]), 0.0)
    assert bool((gap.mean(0).abs() < 5.0 * gap.std(0) / 200_000**0.5).all())


@pytest.mark.slow
@pytest.mark.parametrize("centre", [None, CENTRE])
def test_votes_agree_with_weighted_draws(centre: Tensor | None) -> None:
    """Every answer after votes by 200,000 draws of before; each of 60 figures within 5 standard errors."""
    law = make(seed=4, centre=centre) if centre is not None else make(seed=4)
    n, votes = 200_000, torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]).double()
    draws = law.sample((n,), generator=torch.Generator().manual_seed(0))
    power = torch.stack([draws[:, 0, 0] * draws[:, 0, 2].square(), draws[:, 1, 1] ** 3], 1)
    coefficient = torch.tensor([3.0, 1.0]).double()
    after = law.posterior(votes)

    def close(values: Tensor, expected: Tensor) -> None:
        """The weighted mean of values less their expectation is zero."""
        gap = power.reshape(*power.shape, *[1] * (values.dim() - 2)) * (values - expected)
        error = gap.std(0) / n**0.5 + 1e-12
        assert bool((gap.mean(0).abs() < 5.0 * error).all()), (gap.mean(0), error)

    chance = law.log_prob_counts(votes).exp() / coefficient
    assert bool(((power.mean(0) - chance).abs() < 5.0 * power.std(0) / n**0.5).all())
    close(draws, after.mean)
    close((draws - after.mean).square(), after.variance)
    product = (draws - after.mean)[..., 0] * (draws - after.mean)[..., 2]
    close(product, after.covariance_matrix[:, 0, 2])
    close((draws == 0.0).double(), after.prob_zero())
    close((draws[..., 0] > draws[..., 1]).double(), after.prob_greater(0, 1))
    close(torch.special.entr(draws).sum(-1), after.expected_entropy())
    points = torch.tensor([0.0, 0.05, 0.3, 0.9]).double()[:, None].expand(-1, 2)
    both = after.marginal(2).cdf(points), after.marginal([0, 1]).cdf(points)
    for point, one, two in zip(points[:, 0], *both):
        close((draws[..., 2] <= point).double(), one)
        close((draws[..., [0, 1]].sum(-1) <= point).double(), two)
    level = torch.tensor(0.4).double()
    median = after.marginal(1).icdf(level)
    inside = (median > 0.0) & (median < 1.0)
    torch.testing.assert_close(after.marginal(1).cdf(median)[inside], level.expand(2)[inside], rtol=0, atol=1e-6)
    # the density is that of before times the votes' own; draws after votes have the same means
    rows = torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.4, 0.6]]).double()[:, None].expand(-1, 2, -1)
    seen = torch.where(votes > 0.0, votes * rows.log(), 0.0).sum(-1)
    torch.testing.assert_close(after.log_prob(rows), law.log_prob(rows) + seen - chance.log())
    again = after.sample((20_000,), torch.Generator().manual_seed(1))
    error = again.std(0) / 20_000**0.5 + 1e-12
    assert bool(((again.mean(0) - after.mean).abs() < 5.0 * error).all())


@pytest.mark.slow
def test_rows_without_votes_stay_as_they_were() -> None:
    """One row with votes and one without: draws, levels and moments of the latter are those of before."""
    law = make(seed=4, centre=CENTRE)
    after = law.posterior(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]))
    for answer, before in (
        (after.mean, law.mean),
        (after.variance, law.variance),
        (after.prob_zero(), law.prob_zero()),
    ):
        torch.testing.assert_close(answer[1], before[1], rtol=0, atol=1e-9)
        assert not torch.allclose(answer[0], before[0])
    torch.testing.assert_close(after.quantiles([0.4])[1], law.quantiles([0.4])[1], rtol=0, atol=1e-6)
    draws = after.sample((4000,), torch.Generator().manual_seed(1))
    error = draws.std(0) / 4000**0.5 + 1e-12
    assert bool(((draws.mean(0) - after.mean).abs() < 5.0 * error).all())
    few = draws[:20]
    torch.testing.assert_close(after.inverse_rosenblatt(after.rosenblatt(few)), few, rtol=0, atol=1e-8)


@pytest.mark.parametrize("centre", [None, CENTRE])
def test_known_shares_among_unknown_ones(centre: Tensor | None) -> None:
    """One share known of three: the others' faces by Gauss-Legendre; a zero among three: its chance."""
    law = make(seed=4, centre=centre) if centre is not None else make(seed=4)
    nodes, gauss = np.polynomial.legendre.leggauss(400)
    z = torch.as_tensor(60.0 * nodes)
    t, rest = torch.sigmoid(z), torch.sigmoid(-z)
    for share in (1e-20, 1e-9, 0.3, 1.0 - 2.0**-30):
        left = 1.0 - share
        points = torch.stack([torch.full_like(t, share), left * t, left * rest], 1)
        step = torch.as_tensor(60.0 * gauss) * t * rest * left
        ends = torch.tensor([[share, left, 0.0], [share, 0.0, left]]).double()
        expected = step @ law.log_prob_at(points).exp() + law.log_prob_at(ends).exp().sum(0)
        value = law.log_prob_known([[share, np.nan, np.nan]] * 2)
        torch.testing.assert_close(value, expected.log(), rtol=1e-6, atol=1e-6)
        at = torch.full((2,), share, dtype=torch.float64)
        torch.testing.assert_close(law.marginal(0).log_prob(at), expected.log(), rtol=1e-5, atol=1e-5)
        if left < 1.0:
            torch.testing.assert_close(law.marginal([1, 2]).log_prob(1.0 - at), expected.log(), rtol=1e-5, atol=1e-5)
    absent = law.log_prob_known([[0.0, np.nan, np.nan]] * 2)
    torch.testing.assert_close(absent.exp(), law.prob_zero()[:, 0], rtol=0, atol=1e-9)


def test_an_atom_that_holds_nearly_everything_holds_levels_beyond_it_by_rounding() -> None:
    """A label that is there in two rows of ten million: integrals do not resolve the rest, and took minutes to fail."""
    exponents, presence = torch.ones(1, 2, 3).double(), torch.tensor([[[3.0, 3.0, -6.0], [2.0, 4.0, -6.0]]]).double()
    readout, log_scale = torch.eye(2).double()[None], torch.zeros(2, 1, 2).double()
    centre = torch.tensor([[1.0, 0.5, 0.2], [0.5, 1.0, 0.4]]).double()  # each row's own: no table
    law = with_zeros(exponents, presence, readout, log_scale, centre=centre)
    absent = float(law.prob_zero()[0, 2])
    level = absent + 1e-7
    assert 0.99 < absent < level < 1.0
    assert float(law.quantiles([level])[0, 2, 0]) == 0.0
    assert float(law.marginal(2).quantiles([absent + 0.5 * (1.0 - absent)])[0, 0]) > 0.0


def test_quantiles_of_a_tiny_share_are_found_where_its_components_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its moments are those of rare draws without the other labels: a search from there took 100 times as long."""
    exponents, presence = torch.ones(1, 2, 3).double(), torch.tensor([[[1.0, 5.0, 5.0], [0.5, 6.0, 4.0]]]).double()
    readout, log_scale = torch.eye(2).double()[None], torch.zeros(2, 1, 2).double()
    centre = torch.tensor([[1e-12, 0.5, 1.0], [3e-12, 1.0, 0.4]]).double()
    law = with_zeros(exponents, presence, readout, log_scale, centre=centre)
    asked, plain = [], SparseShares.at
    monkeypatch.setattr(SparseShares, "at", lambda *a: (asked.append(1), plain(*a))[1])
    quantiles = law.quantiles([0.5, 0.95])[:, 0]
    assert len(asked) <= 2 * 12
    monkeypatch.undo()
    levels = law.marginal(0).cdf(quantiles.T).T
    assert bool(((quantiles > 1e-14) & (quantiles < 1e-10)).all())
    np.testing.assert_allclose(levels, [[0.5, 0.95]] * 2, atol=1e-6)


def test_many_points_outside_the_unit_interval_have_cdf_zero_and_one() -> None:
    law = make(seed=4)
    share = law.marginal(0)
    assert bool((share.cdf(torch.full((100, 2), -1e-9).double()) == 0.0).all())
    assert bool((share.cdf(torch.full((100, 2), 1.5).double()) == 1.0).all())


def test_known_shares_that_leave_nothing_make_the_others_absent() -> None:
    law = make(seed=4)
    complete = law.log_prob_known([[0.25, 0.75, 0.0]] * 2)
    torch.testing.assert_close(law.log_prob_known([[0.25, 0.75, np.nan]] * 2), complete)
    with pytest.raises(InputError, match=r"row 1: known shares must .* to 1 if all are known"):
        law.log_prob_known([[0.25, 0.75, np.nan], [0.0, 0.0, 0.0]])


def test_wrong_questions_say_what_to_do() -> None:
    law = make()
    with pytest.raises(InputError, match="miss every face"):
        law.entropy(n=100, method="uniform")
    with pytest.raises(InputError, match="leaves the family"):
        law.amalgamate([[0, 1], [2]])
    with pytest.raises(InputError, match="no second moments"):
        law.covariance_log()
    for question in ("amalgamate", "covariance_log", "condition_ratios"):
        assert not law.supports(question)
    for question in ("posterior", "entropy", "expected_log", "subcomposition", "given_support"):
        assert law.supports(question)
    with pytest.raises(InputError, match="knows no question"):
        law.supports("tea")
    with pytest.raises(InputError, match="presence"):
        with_zeros(law.exponents, law.presence[..., :2], law.readout, law.log_scale)
    with pytest.raises(InputError, match="centre"):
        with_zeros(law.exponents, law.presence, law.readout, law.log_scale, centre=torch.ones(2))


def test_many_labels_with_small_and_large_concentrations() -> None:
    """A component with α from 0.02 to 400 and odds from e^-8 to e^8: sums over 4,095 supports."""
    generator = torch.Generator().manual_seed(8)
    halves = torch.exp(torch.rand(1, 1, 12, generator=generator).double() * 9.9 - 4.6)
    presence = 0.5 * (16.0 * torch.rand(1, 1, 12, generator=generator).double() - 8.0 - torch.lgamma(2 * halves))
    one = torch.ones(1, 1, 1).double()
    law = with_zeros(halves - 0.5, presence, one, one)
    torch.testing.assert_close(law.mean.sum(), torch.ones(()).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(law.covariance_matrix.sum(-1), torch.zeros(1, 12).double(), rtol=0, atol=1e-9)
    support = np.array(list(itertools.product([0, 1], repeat=12)))[1:]  # (4095, 12)
    odds, alpha = np.exp(law.family.components.log_odds[0].numpy()), law.family.components.alpha[0].numpy()
    chance = np.prod(np.where(support == 1, odds, 1.0), 1)
    chance /= chance.sum()
    points = np.array([1e-8, 1e-3, 0.02, 0.3, 0.9, 0.999])
    for r in (0, 9):
        here = support[:, r] == 1
        rest = (support * alpha).sum(1) - alpha[r] * here
        below = np.where(here, 0.0, 1.0)[:, None] * np.ones(len(points))
        mixed = here & (rest > 0)
        below[mixed] = scipy.special.betainc(alpha[r], rest[mixed][:, None], points)
        value = law.marginal(r).cdf(torch.as_tensor(points)[:, None])[:, 0].numpy()
        np.testing.assert_allclose(value, chance @ below, rtol=0, atol=1e-6, err_msg=str((r, alpha[r], odds[r])))


def test_quantiles_of_very_sharp_components_are_where_draws_are() -> None:
    """Total concentrations of 40,000: tables count them as 1,000, which moves a share's quantile by .02 at most."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    exponents = 0.5 * (40_000.0 * torch.softmax(normal(1, 3, 4), -1) - 1.0)
    presence = 0.5 * (normal(1, 3, 4) - torch.lgamma(1.0 + 2.0 * exponents)) + 0.5
    law = with_zeros(exponents, presence, normal(1, 3, 3).abs(), normal(2, 1, 3))
    draws = law.sample((20_000,), torch.Generator().manual_seed(0))
    levels = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).double()
    quantiles = law.quantiles(levels)  # (2, 4, 5)
    # three standard errors of 20,000 draws at .5 are .011: between the draws' quantiles at levels moved by that much
    low, high = (torch.quantile(draws, (levels + by).clamp(0.0, 1.0), dim=0).movedim(0, -1) for by in (-0.011, 0.011))
    assert bool(((quantiles > low - 0.02) & (quantiles < high + 0.02)).all())
