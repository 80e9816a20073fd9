"""A law whose centre and presence are each row's own, against the law of each row."""

import pytest
import torch

from laws import moving
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

N, L = 4, 4


def make(presence: bool, members: int = 2, scale: float = 3.0, seed: int = 0) -> SnefySimplex:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    exponents = torch.rand(members, 3, L, generator=random, dtype=torch.float64) * scale - 0.3
    a = normal(members, 3, L) - 0.5 * torch.lgamma(1.0 + 2.0 * exponents) if presence else None
    readout, log_scale, centre = normal(members, 2, 3), normal(N, members, 3), 1.5 * normal(N, L)
    return moving(exponents, a, readout, log_scale, centre, normal(N, L) if presence else None)


def row_of(law: SnefySimplex, k: int) -> SnefySimplex:
    """The law of one row by itself: its centre is that of all its rows, its shift is in the presence of the neurons."""
    presence = law.presence
    if presence is not None:
        presence = presence + 0.5 * law.shift[k]  # a_i + a_j + b
    alone = SnefySimplex(
        law.exponents, law.readout, law.log_scale[[k]], centre=law.log_centre[k].exp(), presence=presence
    )
    assert not alone.moves
    return alone


@pytest.fixture(params=[False, True], ids=["all there", "with zeros"])
def law(request):
    return make(request.param)


def test_every_row_is_the_law_of_that_row(law):
    rows = [row_of(law, k) for k in range(N)]
    mean, variance = law.mean_and_variance()
    torch.testing.assert_close(mean, torch.cat([row.mean for row in rows]), atol=1e-8, rtol=0)
    torch.testing.assert_close(variance, torch.cat([row.variance for row in rows]), atol=1e-8, rtol=0)
    torch.testing.assert_close(law.covariance_matrix.diagonal(dim1=1, dim2=2), variance, atol=1e-7, rtol=0)
    torch.testing.assert_close(law.weights(), torch.cat([row.weights() for row in rows]), atol=1e-10, rtol=0)
    points = law.sample((3,), torch.Generator().manual_seed(1))
    expected = torch.cat([row.log_prob(points[:, [k]]) for k, row in enumerate(rows)], 1)
    torch.testing.assert_close(law.log_prob(points), expected, atol=1e-9, rtol=0)
    grid = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).double()
    torch.testing.assert_close(law.log_prob_at(grid), torch.cat([row.log_prob_at(grid) for row in rows], 1))


def test_draws_have_the_laws_moments(law):
    n = 20_000
    draws = law.sample((n,), torch.Generator().manual_seed(2))
    mean, variance = law.mean_and_variance()
    z = (draws.mean(0) - mean) / (variance / n).sqrt()
    assert float(z.abs().max()) < 5.0  # 16 numbers: a false alarm once in 100,000 runs
    share = (draws == 0).double().mean(0)
    chance = law.prob_zero()
    assert float((share - chance).abs().max()) < 5.0 * 0.5 / n**0.5


def test_quantiles_stand_where_the_rows_own_cdfs_say(law):
    levels = [0.02, 0.5, 0.9]
    quantiles = law.quantiles(levels)
    for k in (0, 3):  # tables of a row's own law take a second each
        for r in (0, 2):
            share = row_of(law, k).marginal(r)
            for level, q in zip(levels, quantiles[k, r]):
                if 0.0 < float(q) < 1.0:
                    assert float(share.cdf(q[None])) == pytest.approx(level, abs=1e-6)
                elif float(q) == 0.0:
                    assert float(share.cdf(torch.zeros(1).double())) >= level - 1e-9
                else:
                    assert float(share.cdf(torch.tensor([1.0 - 1e-9], dtype=torch.float64))) <= level + 1e-6


def test_extreme_levels_need_no_draws():
    law = make(presence=False, members=1)
    quantiles = law.quantiles([1e-5, 1.0 - 1e-5])
    for k in range(N):
        cdf = [float(row_of(law, k).marginal(0).cdf(q[None])) for q in quantiles[k, 0]]
        assert cdf == pytest.approx([1e-5, 1.0 - 1e-5], abs=1e-6)


def test_rows_members_and_joined_laws(law):
    part = law[1:3]
    torch.testing.assert_close(part.mean, law.mean[1:3])
    torch.testing.assert_close(law.joined([law[:1], law[1:]]).mean, law.mean)
    members = law.members()
    average = torch.stack([member.mean for member in members]).mean(0)
    torch.testing.assert_close(law.mean, average, atol=1e-8, rtol=0)
    assert len(law) == N
    assert law.moves
    assert "each row its own centre" in repr(law)


def test_other_questions_are_put_to_each_row(law):
    torch.testing.assert_close(law.prob_greater(0, 2)[1:2], row_of(law, 1).prob_greater(0, 2))
    torch.testing.assert_close(law.expected_entropy()[2:3], row_of(law, 2).expected_entropy())
    torch.testing.assert_close(law.vote_information()[2:3], row_of(law, 2).vote_information())
    torch.testing.assert_close(law.expected_entropy_parts().sum(-1), law.expected_entropy())
    if law.supports("subcomposition"):
        sub = law.subcomposition([0, 2])
        torch.testing.assert_close(sub.mean[3:4], row_of(law, 3).subcomposition([0, 2]).mean)
        torch.testing.assert_close(sub[[3]].mean, sub.mean[3:4])
    else:
        with pytest.raises(InputError, match="leave the family"):
            law.subcomposition([0, 2])
    both = law.marginal([0, 1])
    torch.testing.assert_close(both.mean, law.mean[:, :2].sum(-1))
    at = torch.tensor(0.3).double()
    torch.testing.assert_close(both.cdf(at)[1:2], row_of(law, 1).marginal([0, 1]).cdf(at))
    torch.testing.assert_close(both.icdf(both.cdf(at)), at.expand(N), atol=1e-5, rtol=0)
    assert both.sample((5,)).shape == (5, N)
    assert bool((both.variance > 0).all())


def test_conditioning_of_all_rows_is_that_of_each():
    """Eight means of 20,000 weighted draws a side; six joint standard errors are passed once in 10^8 such tests."""
    law = make(presence=False, members=1).named(["a", "b", "c", "d"])
    given = law.condition({"a": 0.2}, n_draws=20_000, generator=torch.Generator().manual_seed(0))
    assert given.mean.shape == (N, L)
    for k in (0, 2):
        alone = row_of(law, k).named(law.label_names).condition({"a": 0.2}, n_draws=20_000)
        error = (given.std_error[k].square() + alone.std_error[0].square()).sqrt()
        assert bool(((given.mean[k] - alone.mean[0]).abs() <= 6.0 * error + 1e-12).all())


@pytest.mark.slow
def test_conditioning_with_zeros_is_that_of_each_row():
    """Eight means of 20,000 weighted draws a side, and eight chances of zero; as above."""
    law = make(presence=True, members=1).named(["a", "b", "c", "d"])
    given = law.condition({"a": 0.2}, n_draws=20_000, generator=torch.Generator().manual_seed(0))
    assert given.mean.shape == (N, L)
    for k in (0, 2):
        alone = row_of(law, k).named(law.label_names).condition({"a": 0.2}, n_draws=20_000)
        error = (given.std_error[k].square() + alone.std_error[0].square()).sqrt()
        assert bool(((given.mean[k] - alone.mean[0]).abs() <= 6.0 * error + 1e-12).all())
        zero = alone.prob_zero()[0]
        error = (zero * (1.0 - zero) * (1.0 / given.effective_draws[k] + 1.0 / alone.effective_draws[0])).sqrt()
        assert bool(((given.prob_zero()[k] - zero).abs() <= 6.0 * error + 1e-12).all())


def test_entropy_comes_with_its_standard_error():
    law = make(presence=False, members=1)
    value, error = law.entropy(500, return_std_error=True)
    assert value.shape == error.shape == (N,)
    assert bool((error > 0).all())
    assert law.entropy(500).shape == (N,)


def test_rosenblatt_there_and_back():
    law = make(presence=False, members=1)
    points = law.sample((2,), torch.Generator().manual_seed(3))
    uniforms = law.rosenblatt(points)
    assert uniforms.shape == (2, N, L - 1)
    alone = row_of(law, 2).rosenblatt(points[:, [2]])
    torch.testing.assert_close(uniforms[:, [2]], alone, atol=1e-8, rtol=0)
    torch.testing.assert_close(law.inverse_rosenblatt(uniforms), points, atol=1e-8, rtol=0)


def test_votes_of_all_rows_are_those_of_each(law):
    votes = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    after, chance = law.posterior(votes), law.log_prob_counts(votes)
    assert float(chance[1]) == 0.0  # no votes
    for k in range(N):
        alone = row_of(law, k)
        torch.testing.assert_close(chance[[k]], alone.log_prob_counts(votes[[k]]), rtol=0, atol=1e-9)
        seen = alone.posterior(votes[[k]])
        torch.testing.assert_close(after.mean[[k]], seen.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(after.prob_zero()[[k]], seen.prob_zero(), rtol=0, atol=1e-9)


def test_votes_against_draws(law):
    """``E[Π ℓ^k]`` and the means after votes by 40,000 draws of each row; five standard errors of 40 figures."""
    n, votes = 40_000, torch.tensor([1.0, 0.0, 2.0, 0.0]).double()
    draws = law.sample((n,), torch.Generator().manual_seed(4))
    power = draws[..., 0] * draws[..., 2].square()
    error = power.std(0) / n**0.5
    chance = law.log_prob_counts(votes).exp() / 3.0  # three orders in which the votes may come
    assert bool(((power.mean(0) - chance).abs() < 5.0 * error).all())
    after = law.posterior(votes).mean
    gap = power[..., None] * (draws - after)  # its mean is zero
    assert bool((gap.mean(0).abs() < 5.0 * gap.std(0) / n**0.5 + 1e-12).all())


def test_shapes_must_fit():
    with pytest.raises(InputError, match="do not fit"):
        moving(torch.zeros(1, 1, 2), None, torch.ones(1, 1, 1), torch.zeros(2, 1, 1), torch.zeros(3, 2))
