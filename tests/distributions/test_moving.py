from laws import moving

"""A law whose centre and presence are each row's own, against the law of each row."""

import pytest
import torch
from snefy_ldl.distributions.row_laws import ListedLaws

from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

N, L = 4, 4


def make(presence: bool, members: int = 2, scale: float = 3.0, seed: int = 0) -> moving:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    exponents = torch.rand(members, 3, L, generator=random, dtype=torch.float64) * scale - 0.3
    a = normal(members, 3, L) - 0.5 * torch.lgamma(1.0 + 2.0 * exponents) if presence else None
    readout, log_scale, centre = normal(members, 2, 3), normal(N, members, 3), 1.5 * normal(N, L)
    return moving(exponents, a, readout, log_scale, centre, normal(N, L) if presence else None)


@pytest.fixture(params=[False, True], ids=["all there", "with zeros"])
def law(request):
    return make(request.param)


def test_every_row_is_the_law_of_that_row(law):
    rows = [law.row(k) for k in range(N)]
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
            share = law.row(k).marginal(r)
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
        cdf = [float(law.row(k).marginal(0).cdf(q[None])) for q in quantiles[k, 0]]
        assert cdf == pytest.approx([1e-5, 1.0 - 1e-5], abs=1e-6)


def test_rows_members_and_joined_laws(law):
    part = law[1:3]
    torch.testing.assert_close(part.mean, law.mean[1:3])
    torch.testing.assert_close(law.joined([law[:1], law[1:]]).mean, law.mean)
    members = law.members()
    average = torch.stack([member.mean for member in members]).mean(0)
    torch.testing.assert_close(law.mean, average, atol=1e-8, rtol=0)
    assert len(law) == N
    assert "moving" in repr(law)


def test_other_questions_are_put_to_each_row(law):
    torch.testing.assert_close(law.prob_greater(0, 2)[1:2], law.row(1).prob_greater(0, 2))
    torch.testing.assert_close(law.expected_entropy()[2:3], law.row(2).expected_entropy())
    torch.testing.assert_close(law.vote_information()[2:3], law.row(2).vote_information())
    torch.testing.assert_close(law.expected_entropy_parts().sum(-1), law.expected_entropy())
    sub = law.subcomposition([0, 2])
    torch.testing.assert_close(sub.mean[3:4], law.row(3).subcomposition([0, 2]).mean)
    torch.testing.assert_close(sub[[3]].mean, sub.mean[3:4])
    both = law.marginal([0, 1])
    torch.testing.assert_close(both.mean, law.mean[:, :2].sum(-1))
    at = torch.tensor(0.3).double()
    torch.testing.assert_close(both.cdf(at)[1:2], law.row(1).marginal([0, 1]).cdf(at))
    torch.testing.assert_close(both.icdf(both.cdf(at)), at.expand(N), atol=1e-5, rtol=0)
    assert both.sample((5,)).shape == (5, N)
    assert bool((both.variance > 0).all())


def test_conditioning_of_all_rows_is_that_of_each():
    """Eight means of 20,000 weighted draws a side; six joint standard errors are passed once in 10^8 such tests."""
    law = make(presence=False, members=1).named(["a", "b", "c", "d"])
    given = law.condition({"a": 0.2}, n_draws=20_000, generator=torch.Generator().manual_seed(0))
    assert given.mean.shape == (N, L)
    for k in (0, 2):
        alone = law.row(k).named(law.label_names).condition({"a": 0.2}, n_draws=20_000)
        error = (given.std_error[k].square() + alone.std_error[0].square()).sqrt()
        assert bool(((given.mean[k] - alone.mean[0]).abs() <= 6.0 * error + 1e-12).all())


def test_conditioning_with_zeros_is_for_one_row_at_a_time():
    law = make(presence=True, members=1).named(["a", "b", "c", "d"])
    with pytest.raises(InputError, match="one at a time"):
        law.condition({"a": 0.2})
    assert law[[2]].condition({"a": 0.2}).mean.shape[0] == 1


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
    alone = law.row(2).rosenblatt(points[:, [2]])
    torch.testing.assert_close(uniforms[:, [2]], alone, atol=1e-8, rtol=0)
    torch.testing.assert_close(law.inverse_rosenblatt(uniforms), points, atol=1e-8, rtol=0)


def test_votes_where_every_label_is_there():
    law = make(presence=False, members=1)
    votes = torch.tensor([[1.0, 0.0, 2.0, 0.0]]).double().expand(N, -1)
    torch.testing.assert_close(law.log_prob_counts(votes)[1:2], law.row(1).log_prob_counts(votes[:1]))


def test_votes_are_refused_in_words_where_labels_may_be_absent():
    law, votes = make(presence=True, members=1), torch.ones(N, L)
    for ask in (law.posterior, law.log_prob_counts):
        with pytest.raises(InputError, match="votes have no closed form"):
            ask(votes)


def test_a_batch_of_laws_needs_a_row():
    with pytest.raises(InputError, match="at least one"):
        ListedLaws([])
    one = torch.ones(1, 1).double()
    laws = [SnefySimplex(torch.full((1, 2), w).double(), one, one) for w in (0.0, 1.0)]
    assert ListedLaws(laws).joined([ListedLaws(laws)]).n_components == 1
    assert "rows=2" in repr(ListedLaws(laws))


def test_shapes_must_fit():
    with pytest.raises(InputError, match="does not fit"):
        moving(torch.zeros(1, 1, 2), None, torch.ones(1, 1, 1), torch.zeros(2, 1, 1), torch.zeros(3, 2))
