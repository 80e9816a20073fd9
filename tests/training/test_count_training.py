"""Training on votes: the fused likelihood against the distribution's own, quadrature and brute-force sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from torch import Tensor
from torch.utils.data import IterableDataset

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl._internal.special import log_beta
from snefy_ldl.datasets import make_annotators
from snefy_ldl.errors import InputError
from snefy_ldl.snefy import fit_many, fit_stream
from snefy_ldl.training.data import fill_missing, fit_dirichlet_multinomial
from snefy_ldl.training.kernels.counts import (
    INTERVAL_STEP,
    MOST_VOTES,
    CountLogDensity,
    DirectFactors,
    LargeFactors,
    SmoothFactors,
    VoteFactors,
    VotePass,
    chebyshev,
    log_prob_factors,
    pair_columns,
    reduced_series,
    rising_series,
    series_length,
)
from snefy_ldl.training.objectives import Counts
from snefy_ldl.votes.partial import PartialCounts


def coefficient(counts: Tensor) -> Tensor:
    return torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)


def pieces(n_labels: int, rows: int, members: int = 1, n: int = 5, high: float = 8.0, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    low = np.log(0.02)
    place = torch.rand(members, n, n_labels, generator=rng, dtype=torch.float64)
    exponents = 0.5 * ((low + (np.log(high) - low) * place).exp() - 1.0)
    return normal(members, rows, n), exponents, normal(members, 3, n)


def votes(rows: int, n_labels: int, most: int, members: int = 1, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(n_labels, 0.4), size=members * rows)
    totals = rng.integers(1, most, members * rows, endpoint=True)
    return torch.as_tensor(rng.multinomial(totals, shares).astype(float)).reshape(members, rows, n_labels)


def evaluate(scale: Tensor, exponents: Tensor, readout: Tensor, factors: VoteFactors, balanced: bool = True):
    return CountLogDensity.apply(scale, exponents, readout, DirectFactors(factors), balanced)


def as_law(scale: Tensor, exponents: Tensor, readout: Tensor, member: int = 0) -> SnefySimplex:
    return SnefySimplex(exponents[member], readout[member], scale[member])


@pytest.mark.parametrize(("most", "high"), [(1, 8.0), (4, 8.0), (110, 300.0), (5000, 2000.0)])
def test_equals_the_distribution(most: int, high: float) -> None:
    parts = pieces(4, 9, members=2, high=high)
    counts = votes(9, 4, most, members=2)
    answer = evaluate(*parts, VoteFactors.of(counts))
    for k in range(2):
        expected = as_law(*parts, k).log_prob_counts(counts[k]) - coefficient(counts[k])
        torch.testing.assert_close(answer[k], expected, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("most", [5, 110])
def test_gradient_equals_plain_autograd(most: int) -> None:
    parts = [part.requires_grad_() for part in pieces(3, 6, members=1, high=60.0, seed=3)]
    counts, weights = votes(6, 3, most, seed=1), torch.linspace(-1.0, 2.0, 6, dtype=torch.float64)
    ours = torch.autograd.grad((evaluate(*parts, VoteFactors.of(counts)) * weights).sum(), parts)
    plain = torch.autograd.grad((as_law(*parts).log_prob_counts(counts[0]) * weights).sum(), parts)
    for mine, other in zip(ours, plain):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("balanced", [True, False])
def test_gradcheck(balanced: bool) -> None:
    scale, exponents, readout = (part.requires_grad_() for part in pieces(3, 4, members=2, n=3, seed=5))
    counts = votes(4, 3, 40, members=2, seed=2)
    counts[0, 1, 2] = torch.nan
    counts[1, 0, 0] = torch.nan
    factors = VoteFactors.of(counts)
    assert torch.autograd.gradcheck(
        lambda *parts: evaluate(*parts, factors, balanced), (scale, exponents, readout), atol=1e-6
    )


def test_gradcheck_of_votes_for_sets() -> None:
    parts = [part.requires_grad_() for part in pieces(4, 3, n=3, seed=6)]
    sets = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    factors = VoteFactors.of(votes(3, 4, 9, seed=4), torch.tensor([[[2, 0], [0, 20], [1, 1]]]), sets)
    assert torch.autograd.gradcheck(lambda *p: evaluate(*p, factors), parts, atol=1e-6)


def test_unbalanced_output_is_the_papers_h() -> None:
    scale, exponents, readout = pieces(3, 5)
    counts = votes(5, 3, 20)
    plain = evaluate(scale, exponents, readout, VoteFactors.of(counts), False)[0]
    law = SnefySimplex.from_raw(exponents[0], readout[0], scale[0])
    torch.testing.assert_close(plain, law.log_prob_counts(counts[0]) - coefficient(counts[0]), rtol=1e-10, atol=1e-10)


def test_float32_keeps_six_digits_of_the_gradient() -> None:
    scale, exponents, readout = pieces(5, 32, n=16, high=200.0)
    factors = VoteFactors.of(votes(32, 5, 110))
    values, gradients = [], []
    for dtype in (torch.float64, torch.float32):
        parts = [
            scale.to(dtype).requires_grad_(),
            exponents.clone().requires_grad_(),
            readout.to(dtype).requires_grad_(),
        ]
        value = log_prob_factors(*parts, factors)
        values.append(value.detach())
        gradients.append([g.double() for g in torch.autograd.grad(value.sum(), parts)])
    assert values[1].dtype == torch.float64
    torch.testing.assert_close(values[1], values[0], rtol=1e-6, atol=2e-4)
    for rough, exact in zip(gradients[1], gradients[0]):
        assert float((rough - exact).abs().max() / exact.abs().max()) < 1e-4


def test_pieces_without_gradient_equal_the_whole() -> None:
    scale, exponents, readout = pieces(3, 700, n=40)
    factors = VoteFactors.of(votes(700, 3, 12))
    with torch.no_grad():
        pieced = log_prob_factors(scale, exponents, readout, factors)
    whole = log_prob_factors(scale, exponents, readout, factors)
    torch.testing.assert_close(pieced, whole)


def test_two_graphs_at_once_do_not_mix() -> None:
    parts = [part.requires_grad_() for part in pieces(3, 2)]
    first, second = VoteFactors.of(votes(2, 3, 9)), VoteFactors.of(votes(2, 3, 30, seed=1))
    alone = [torch.autograd.grad(evaluate(*parts, f).sum(), parts) for f in (first, second)]
    values = [evaluate(*parts, f).sum() for f in (first, second)]
    for value, expected in zip(values, alone):
        for _ in range(2):
            for ours, other in zip(torch.autograd.grad(value, parts, retain_graph=True), expected):
                torch.testing.assert_close(ours, other, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(("n_labels", "total"), [(2, 6), (3, 4), (4, 3)])
def test_probabilities_of_all_count_vectors_sum_to_one(n_labels: int, total: int) -> None:
    every = [k for k in itertools.product(range(total + 1), repeat=n_labels) if sum(k) == total]
    counts = torch.tensor(every, dtype=torch.float64)[None]
    scale, exponents, readout = pieces(n_labels, 1, n=4)
    log_p = evaluate(scale.expand(-1, len(every), -1), exponents, readout, VoteFactors.of(counts))
    assert float((log_p + coefficient(counts)).exp().sum()) == pytest.approx(1.0, abs=1e-12)


# -- series ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 4), (0, 12), (3, 30)])
def test_series_equals_the_rising_factorial(low: int, high: int) -> None:
    series = rising_series(low, high, 64)
    ends = np.array([low, high]) * INTERVAL_STEP
    u = np.linspace(ends[0] + 1e-3, ends[1], 200)
    beta, x = np.expm1(u), (u - ends.mean()) / (0.5 * (ends[1] - ends[0]))
    terms = np.polynomial.chebyshev.chebvander(x, series.value.shape[1] - 2)
    for m in (0, 1, 2, 17, 64):
        first = np.log(beta) if m else 0.0
        value = first + series.constant[m].item() + terms @ series.value[m, 1:].double().numpy()
        np.testing.assert_allclose(value, gammaln(beta + m) - gammaln(beta), rtol=2e-6, atol=2e-5)
        slope = (1.0 / beta if m else 0.0) + terms @ series.slope[m, 1:].double().numpy() / (1.0 + beta)
        np.testing.assert_allclose(slope, digamma(beta + m) - digamma(beta), rtol=1e-4, atol=1e-6)


def test_longer_intervals_need_more_terms() -> None:
    assert series_length(1.0) < series_length(3.0) < series_length(9.0) < 60


def test_chebyshev_equals_numpy() -> None:
    x = torch.linspace(-1.0, 1.0, 50)
    for length in (2, 3, 8, 21):
        table = torch.empty(length, 50)
        chebyshev(x, table)
        expected = np.polynomial.chebyshev.chebvander(x.double().numpy(), length - 1).T
        np.testing.assert_allclose(table.numpy(), expected, atol=2e-4)


def exact_factors(factors: VoteFactors, columns: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Differences to the middle component, that component and the gradient, with 40 digits."""
    rows, n_pairs = factors.count.shape[1], columns.shape[-1]
    values = torch.zeros(len(columns), rows, n_pairs, dtype=torch.float64)
    middle, gradient = torch.zeros(values.shape[:2], dtype=torch.float64), torch.zeros_like(columns)
    with mpmath.workdps(40):
        for k, b in itertools.product(range(len(columns)), range(rows)):
            sums = [mpmath.mpf(0)] * n_pairs
            for t, sign in enumerate(factors.sign.tolist()):
                m, q = factors.count[k, b, t].item(), factors.column[k, b, t].item()
                for p in range(n_pairs):
                    beta = mpmath.mpf(columns[k, q, p].item())
                    sums[p] += int(sign) * (mpmath.loggamma(beta + m) - mpmath.loggamma(beta))
                    gradient[k, q, p] += sign * float(mpmath.psi(0, beta + m) - mpmath.psi(0, beta)) * weights[k, b, p]
            middle[k, b] = float(sums[n_pairs // 2])
            values[k, b] = torch.tensor([float(one - sums[n_pairs // 2]) for one in sums])
    return values, middle, gradient


def _middle(ratio: Tensor) -> Tensor:
    """Where exact differences are zero."""
    return ratio[..., ratio.shape[-1] // 2].double()


def _differences(ratio: Tensor) -> Tensor:
    return ratio.double() - _middle(ratio)[..., None]


@pytest.mark.parametrize("kind", ["plain", "gaps", "sets"])
@pytest.mark.parametrize("most", [1001, 10**5, 10**9, 10**12])
def test_large_votes_in_float32_equal_high_precision(most: int, kind: str) -> None:
    # the tolerated error is what float32 can hold of a difference
    counts = (votes(6, 4, 1000, members=2, seed=5) * (most / 1000.0)).round()
    counts[:, :2] = votes(2, 4, 20, members=2, seed=6)  # few votes, and none for some labels, in the same batch
    counts[:, 0, 0], named, sets = float(most), None, None
    if kind == "gaps":
        counts[0, 1::3, 1] = torch.nan
    elif kind == "sets":
        sets = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
        named = torch.arange(12).reshape(2, 6, 1) % 4 * most // 7
    factors = VoteFactors.of(counts, named, sets)
    columns = pair_columns(pieces(4, 1, members=2, n=4, high=500.0)[1], factors.groups)
    large = LargeFactors(factors)
    ratio, offset = large.ratio(columns, torch.float32)
    weights = torch.softmax(torch.randn(ratio.shape, generator=torch.Generator().manual_seed(0)), -1)
    exact, centre, gradient = exact_factors(factors, columns, weights.double())
    assert ratio.dtype == torch.float32
    # the offset holds log Γ of the counts, of which float64 loses digits at a billion votes; components differ in this
    torch.testing.assert_close(_differences(ratio), exact, rtol=2e-7, atol=5e-4)
    torch.testing.assert_close(offset + _middle(ratio), centre, rtol=0.0, atol=5e-4 + 1e-14 * most)
    ours = large.gradient(columns, weights)
    assert float((ours - gradient).abs().max() / gradient.abs().max()) < 3e-6


def test_a_row_of_large_counts_alone_is_right_to_float32s_last_digits() -> None:
    counts = torch.tensor([[[2e4, 3e8, 5e5], [4e3, 9e3, 6e6]]], dtype=torch.float64)
    factors = VoteFactors.of(counts)
    columns = pair_columns(pieces(3, 1, n=8, high=500.0)[1], factors.groups)
    ratio, offset = LargeFactors(factors).ratio(columns, torch.float32)
    exact, centre, _ = exact_factors(factors, columns, torch.zeros(ratio.shape))
    torch.testing.assert_close(_differences(ratio), exact, rtol=2e-7, atol=1e-5)
    torch.testing.assert_close(offset + _middle(ratio), centre, rtol=1e-13, atol=1e-5)


def test_a_fit_on_2000_votes_equals_the_exact_route(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_annotators(n=60, random_state=0)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(2000, rng.dirichlet([2.0, 3.0, 4.0], 60))

    def fitted() -> np.ndarray:
        model = SnefyLDL(n_neurons=6, n_readouts=3, hidden_sizes=(4,), epochs=2, guides=None, random_state=0)
        return model.fit(data.X, counts=counts).predict(data.X)

    by_series = fitted()
    used = []
    monkeypatch.setattr("snefy_ldl.training.kernels.counts.MOST_VOTES", 10**6)
    few_votes = "snefy_ldl.training.kernels.counts.SmoothFactors"
    monkeypatch.setattr(few_votes, lambda factors: used.append(1) or DirectFactors(factors))
    np.testing.assert_allclose(fitted(), by_series, atol=2e-5)
    assert used


@pytest.mark.parametrize("votes_each", [10**9, 10**12])
def test_a_billion_votes_an_item_can_be_fitted(votes_each: int) -> None:
    data = make_annotators(n=60, random_state=0)
    shares = np.random.default_rng(1).dirichlet([2.0, 3.0, 4.0], 60)
    counts = np.round(shares * votes_each)
    counts[0] = [votes_each, 0, 0]
    counts[1, 1] = np.nan
    model = SnefyLDL(n_neurons=6, n_readouts=3, hidden_sizes=(4,), epochs=2, guides=None, random_state=0)
    model.fit(data.X, counts=counts)
    assert np.isfinite(model.predict(data.X)).all()
    assert np.isfinite(model.log_prob(data.X, counts=counts)).all()
    # the loss leaves out what grows with the votes; what remains tells one epoch from the next
    assert all(abs(epoch["loss"]) < 1e3 for epoch in model.history_)


def test_the_prior_of_many_votes_equals_that_of_their_shares() -> None:
    shares = np.random.default_rng(0).dirichlet([0.7, 3.0, 9.0], 400)
    some, many = (fit_dirichlet_multinomial(np.round(shares * n)) for n in (900, 10**9))
    near = fit_dirichlet_multinomial(np.round(shares * 1100))  # the other route
    np.testing.assert_allclose(near, some, rtol=0.01)
    np.testing.assert_allclose(many, [0.7, 3.0, 9.0], rtol=0.15)


@pytest.mark.parametrize("kind", ["plain", "gaps", "sets"])
def test_smooth_factors_equal_lgamma(kind: str) -> None:
    counts, named, sets = votes(20, 4, 110, members=2, seed=3), None, None
    if kind == "gaps":
        counts[0, ::3, 1] = torch.nan
        counts[1, ::2, 0] = torch.nan
    elif kind == "sets":
        sets = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
        named = torch.arange(40).reshape(2, 20, 1) % 4
    factors = VoteFactors.of(counts, named, sets)
    columns = pair_columns(pieces(4, 1, members=2, n=12, high=300.0)[1], factors.groups)
    smooth, direct = SmoothFactors(factors), DirectFactors(factors)
    (ratio, offset), (exact, centre) = smooth.ratio(columns, torch.float32), direct.ratio(columns, torch.float64)
    torch.testing.assert_close(ratio + offset[..., None], exact + centre[..., None], rtol=1e-6, atol=3e-4)
    slope = torch.randn(ratio.shape, generator=torch.Generator().manual_seed(0))
    ours, other = smooth.gradient(columns, slope), direct.gradient(columns, slope.double())
    assert float((ours - other).abs().max() / other.abs().max()) < 2e-6


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("n", [12, 7])
def test_the_pass_without_autograd_equals_the_density_and_its_gradient(n: int, balanced: bool) -> None:
    parts = [part.requires_grad_() for part in pieces(4, 9, members=2, n=n, high=300.0)]
    work, slope = VotePass((2, 9, n, 4), parts[2].float(), 110), torch.linspace(-1.0, 1.0, 18).reshape(2, 9)
    for most in (1, 110, 4):  # arrays are used again
        factors = VoteFactors.of(votes(9, 4, most, members=2, seed=most))
        exact = evaluate(*parts, factors, balanced)  # by lgamma, in float64
        gradients = torch.autograd.grad(exact, parts, slope.double())
        scale, exponents, readout = (part.detach() for part in parts)
        into = [torch.empty_like(part, dtype=torch.float32) for part in parts]
        log_p = work.forward(scale.float(), exponents, readout.float(), factors.count, balanced)
        torch.testing.assert_close(log_p, exact.detach(), rtol=1e-6, atol=3e-4)
        work.backward(slope, *into)
        for ours, other in zip(into, gradients):
            assert float((ours - other).abs().max() / other.abs().max()) < 1e-4  # of sums that cancel, in float32


@pytest.mark.parametrize("most", [1, 2, 5, 130])
def test_few_functions_make_up_all_rising_factorials(most: int) -> None:
    low, high = 0, 14
    series = reduced_series(low, high, most)
    beta, m = np.geomspace(0.02, 1000.0, 60), np.arange(1, most + 1)[:, None]
    x = (2.0 * np.log1p(beta) / INTERVAL_STEP - (high + low)) / (high - low)
    both = np.polynomial.chebyshev.chebval(x, series.basis.double().numpy().T)
    functions, slopes = both[: len(both) // 2], both[len(both) // 2 :]
    values = series.constant.numpy()[1:, None] + np.log(beta) + series.value[1:, 1:].double().numpy() @ functions
    exact = gammaln(beta + m) - gammaln(beta)
    np.testing.assert_allclose(values, exact, atol=2e-7 * np.abs(exact).max())
    change = 1.0 / beta + series.value[1:, 1:].double().numpy() @ slopes / (1.0 + beta)
    exact = digamma(beta + m) - digamma(beta)
    np.testing.assert_allclose(change, exact, rtol=2e-5, atol=1e-6 * most)
    assert len(functions) <= min(max(1, most - 1), 11)


def test_two_graphs_in_float32_do_not_share_memory() -> None:
    scale, exponents, readout = pieces(3, 8, n=16)
    parts = [scale.float().requires_grad_(), exponents.requires_grad_(), readout.float().requires_grad_()]
    both = [VoteFactors.of(votes(8, 3, most, seed=most)) for most in (9, 30)]
    alone = [torch.autograd.grad(log_prob_factors(*parts, f).sum(), parts) for f in both]
    values = [log_prob_factors(*parts, f).sum() for f in both]
    for value, expected in zip(values, alone):
        for _ in range(2):
            for ours, other in zip(torch.autograd.grad(value, parts, retain_graph=True), expected):
                torch.testing.assert_close(ours, other, rtol=0.0, atol=0.0)


def test_very_many_votes_leave_the_series() -> None:
    scale, exponents, readout = pieces(3, 4, n=6)
    counts = votes(4, 3, 3, seed=1)
    counts[0, 0, 0] = MOST_VOTES + 1.0
    factors = VoteFactors.of(counts)
    rough = log_prob_factors(scale.float(), exponents, readout.float(), factors)
    torch.testing.assert_close(rough, log_prob_factors(scale, exponents, readout, factors), rtol=1e-5, atol=1e-3)


# -- missing and partial labels --------------------------------------------------------------------------------------


def test_a_missing_label_by_quadrature(snefy: Callable[..., SnefySimplex], quadrature: Callable) -> None:
    law = snefy(3)
    expect = quadrature(3).expectation(law)
    for counts in ([4.0, 1.0, np.nan], [np.nan, 0.0, 7.0], [2.0, np.nan, 2.0]):
        k = torch.tensor(counts, dtype=torch.float64)
        seen = ~torch.isnan(k)

        def likelihood(points: Tensor, k: Tensor = k, seen: Tensor = seen) -> Tensor:
            among = points[:, seen] / points[:, seen].sum(-1, keepdim=True)
            return (k[seen] * among.log()).sum(-1).exp()

        rows = k.expand(1, 2, 3)
        ours = evaluate(law.log_scale[:, 0][None], law.exponents, law.readout, VoteFactors.of(rows))
        torch.testing.assert_close(ours[0].exp(), expect(likelihood), rtol=1e-6, atol=1e-9)


def test_a_missing_label_is_the_subcomposition(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(4, batch=(3,))
    k = torch.tensor([[5.0, 2.0, torch.nan, 0.0]], dtype=torch.float64).expand(3, -1)
    ours = evaluate(law.log_scale[:, 0][None], law.exponents, law.readout, VoteFactors.of(k[None]))[0]
    among = law.subcomposition([0, 1, 3])
    rest = k[:, [0, 1, 3]]
    torch.testing.assert_close(ours + coefficient(rest), among.log_prob_counts(rest), rtol=1e-10, atol=1e-10)


def test_votes_for_sets_by_quadrature(snefy: Callable[..., SnefySimplex], quadrature: Callable) -> None:
    law = snefy(3, seed=2)
    k, named = torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)
    sets = torch.tensor([[1.0, 1.0, 0.0]])
    expect = quadrature(3).expectation(law)
    expected = expect(lambda p: (k * p.log()).sum(-1).exp() * (p[:, 0] + p[:, 1]) ** 4)
    factors = VoteFactors.of(k.expand(1, 2, 3), named.expand(1, 2, 1), sets)
    ours = evaluate(law.log_scale[:, 0][None], law.exponents, law.readout, factors)[0]
    torch.testing.assert_close(ours.exp(), expected, rtol=1e-6, atol=1e-10)


def test_a_vote_for_a_set_is_the_sum_over_its_labels(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(4, batch=(1,))
    k = torch.tensor([[1.0, 2.0, 0.0, 1.0]], dtype=torch.float64)
    sets = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    factors = VoteFactors.of(k[None], torch.ones(1, 1, 1), sets)
    ours = evaluate(law.log_scale[:, 0][None], law.exponents, law.readout, factors)[0]
    ways = []
    for r in (1, 2):
        more = k.clone()
        more[0, r] += 1
        ways.append(law.log_prob_counts(more) - coefficient(more))
    torch.testing.assert_close(ours, torch.logsumexp(torch.stack(ways), 0), rtol=1e-11, atol=1e-11)


def test_missing_votes_start_from_what_is_expected() -> None:
    counts = np.array([[3.0, 1.0, np.nan], [2.0, 2.0, 4.0], [1.0, np.nan, np.nan]])
    filled = fill_missing(counts)
    assert np.isfinite(filled).all()
    assert (filled >= 0).all()
    assert fill_missing(counts[1:2]) is not None
    np.testing.assert_array_equal(filled[1], counts[1])
    assert filled[0, 2] > 0


# -- fits ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    return make_annotators(n=400, n_labels=3, votes=(1, 12), random_state=0)


def small(**changes) -> SnefyLDL:
    return SnefyLDL(
        **(
            {"n_neurons": 12, "n_readouts": 6, "epochs": 12, "random_state": 0, "device": "cpu", "guides": None}
            | changes
        )
    )


def test_fit_on_counts_beats_the_average_law(data) -> None:
    model = small().fit(data.X[:300], counts=data.counts[:300])
    own = model.score(data.X[300:], counts=data.counts[300:])
    order = np.random.default_rng(0).permutation(100)
    shuffled = model.score(data.X[300:][order], counts=data.counts[300:])
    truth = data.truth.log_prob_counts(data.X[300:], data.counts[300:]).mean()
    assert own > shuffled + 0.1
    assert own > truth - 0.25


@pytest.mark.slow
def test_fit_with_missing_labels(data) -> None:
    counts = data.counts.copy()
    rng = np.random.default_rng(1)
    hidden = rng.random(len(counts)) < 0.4
    counts[hidden, rng.integers(0, 3, hidden.sum())] = np.nan
    keep = np.nansum(counts, 1) > 0
    model = small().fit(data.X[keep], counts=counts[keep])
    truth = data.truth.log_prob_counts(data.X, data.counts).mean()
    assert model.score(data.X, counts=data.counts) > truth - 0.25


@pytest.mark.slow
def test_fit_with_votes_for_sets(data) -> None:
    rng = np.random.default_rng(2)
    vague = rng.binomial(data.counts[:, 1:].astype(int), 0.5)
    single = data.counts.copy()
    single[:, 1:] -= vague
    partial = PartialCounts(single, [[1, 2]], vague.sum(1, keepdims=True))
    model = small().fit(data.X, counts=partial)
    truth = data.truth.log_prob_counts(data.X, data.counts).mean()
    assert model.score(data.X, counts=data.counts) > truth - 0.25


def test_many_models_on_counts_equal_lone_fits(data) -> None:
    halves = [np.arange(0, 200), np.arange(200, 400)]
    models = fit_many(small(epochs=3), data.X, splits=halves, counts=data.counts, n_jobs=1)
    for model, rows in zip(models, halves):
        alone = small(epochs=3).fit(data.X[rows], counts=data.counts[rows])
        np.testing.assert_allclose(model.predict(data.X[:5]), alone.predict(data.X[:5]), rtol=1e-3, atol=1e-4)


def test_same_seed_same_bits(data) -> None:
    first, second = (small(epochs=2).fit(data.X, counts=data.counts).predict(data.X[:4]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_papers_recipe_takes_counts(data) -> None:
    model = SnefyLDL.paper(epochs=3, n_neurons=8, n_readouts=4, random_state=0, device="cpu")
    assert np.isfinite(model.fit(data.X, counts=data.counts).score(data.X, counts=data.counts))


@pytest.mark.parametrize(
    ("counts", "rule"),
    [
        ([[1.0, np.nan, np.nan], [1, 2, 3], [1, 1, 1], [1, 0, 0]], "row 0 has fewer than 2 labels"),
        ([[0.0, 0.0, np.nan], [1, 2, 3], [1, 1, 1], [1, 0, 0]], "row 0 holds no vote"),
        ([[1.5, 0.0, np.nan], [1, 2, 3], [1, 1, 1], [1, 0, 0]], "whole numbers"),
        ([[-1.0, 0.0, np.nan], [1, 2, 3], [1, 1, 1], [1, 0, 0]], "negative"),
    ],
)
def test_bad_counts_are_named(counts: list, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        small().fit(np.eye(4), counts=np.array(counts))


@pytest.mark.parametrize(
    ("sets", "named", "rule"),
    [
        ([[0]], [[1], [1]], "two or more"),
        ([[0, 1], [1, 2]], [[1, 0], [1, 0]], "no label twice"),
        ([[0, 1]], [[1, 1], [1, 1]], "shape"),
        ([[0, 1]], [[0.5], [1]], "whole numbers"),
        ([[0, 1]], [[0], [0]], "row 1 holds no vote"),
    ],
)
def test_bad_sets_are_named(sets: list, named: list, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        PartialCounts([[1, 0, 2], [0, 0, 0]], sets, named)


def test_log_beta_of_one_neuron_is_a_dirichlet_multinomial() -> None:
    alpha = torch.tensor([0.7, 2.0, 5.0], dtype=torch.float64)
    counts = votes(6, 3, 30)
    ours = evaluate(
        torch.zeros(1, 6, 1, dtype=torch.float64),
        (0.5 * (alpha - 1.0))[None, None],
        torch.ones(1, 1, 1, dtype=torch.float64),
        VoteFactors.of(counts),
    )
    torch.testing.assert_close(ours, log_beta(alpha + counts) - log_beta(alpha))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_cuda_learns_the_same_from_votes(data) -> None:
    here = small(device="cpu").fit(data.X, counts=data.counts)
    there = small(device="cuda").fit(data.X, counts=data.counts)
    assert there.score(data.X, counts=data.counts) == pytest.approx(here.score(data.X, counts=data.counts), abs=0.02)


class Pairs(IterableDataset):
    def __init__(self, X: np.ndarray, counts: np.ndarray) -> None:
        self.rows = list(zip(X, counts))

    def __iter__(self):
        return iter(self.rows)


@pytest.mark.parametrize("votes_per_item", [12, 3000])
def test_the_fit_reports_the_likelihood_that_log_prob_gives(votes_per_item: int) -> None:
    """Multinomial coefficient included: the figure of the fit is that of ``log_prob`` on the same held-back rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    counts = np.array([rng.multinomial(votes_per_item, rng.dirichlet([2.0, 3.0, 1.0])) for _ in range(40)])
    settings = {"n_neurons": 6, "n_readouts": 3, "epochs": 1, "validation_fraction": 0.5, "random_state": 0}
    settings["guides"] = None
    model = SnefyLDL(**settings).fit(X, counts=counts)
    held = np.flatnonzero(~np.isnan(model.validation_log_prob_))
    assert len(held) == 20
    exact = model.log_prob(X[held], counts=counts[held])
    np.testing.assert_allclose(model.validation_log_prob_[held], exact, rtol=2e-5, atol=1e-4)
    assert -model.training_["validation_loss"][0] == pytest.approx(exact.mean(), abs=1e-3)
    objective = Counts(torch.as_tensor(counts).double(), model.net_)
    assert objective.left_out is not None
    assert abs(float(objective.left_out[held].mean())) > 5.0  # by which the figure of training differs


def test_a_stream_of_votes_reports_the_same_likelihood() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    counts = np.array([rng.multinomial(12, rng.dirichlet([2.0, 3.0, 1.0])) for _ in range(200)])
    settings = {"n_neurons": 6, "n_readouts": 3, "epochs": 1, "validation_fraction": 0.5, "random_state": 0}
    model = fit_stream(SnefyLDL(**settings), Pairs(X, counts))
    # the rows held back are half of all: their mean is near that of all, and 7 nats from one without coefficients
    assert -model.training_["validation_loss"][0] == pytest.approx(model.score(X, counts=counts), abs=1.0)
