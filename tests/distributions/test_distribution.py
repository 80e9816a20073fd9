"""SnefySimplex against independent routes: torch's own distributions, brute-force sums, quadrature and autograd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor
from torch.distributions import Categorical, Dirichlet, MixtureSameFamily
from torch.utils._python_dispatch import TorchDispatchMode

from snefy_ldl import SnefySimplex
from snefy_ldl._internal.memory import CACHE_ELEMENTS
from snefy_ldl._internal.special import log_beta
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
OfKind = Callable[[str, int], SnefySimplex]
float64 = torch.float64


def double(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=float64)


def interior(n: int, n_labels: int, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return Dirichlet(torch.full((n_labels,), 2.0, dtype=float64)).sample((n,))


# -- torch's own distributions -----------------------------------------------------------------------------------------


def test_one_neuron_is_a_dirichlet() -> None:
    exponents = double([[0.5, -0.2, 2.0, 7.0]])
    ours = SnefySimplex(exponents, double([[-1.7]]), double([[0.3], [-2.0]]))
    peer = Dirichlet((1.0 + 2.0 * exponents).expand(2, -1))
    points = interior(50, 4)[:, None].expand(-1, 2, -1)
    torch.testing.assert_close(ours.log_prob(points), peer.log_prob(points))
    torch.testing.assert_close(ours.mean, peer.mean)
    torch.testing.assert_close(ours.variance, peer.variance)
    total = peer.concentration[0].sum()
    covariance = (torch.diag(peer.mean[0]) - torch.outer(peer.mean[0], peer.mean[0])) / (total + 1.0)
    torch.testing.assert_close(ours.covariance_matrix, covariance.expand(2, -1, -1))
    # 5 standard errors twice: a false alarm in 900,000 runs
    entropy, error = ours.entropy(4000, return_std_error=True)
    assert ((entropy - peer.entropy()).abs() < 5.0 * error).all()
    entropy, error = ours.entropy(100_000, method="uniform", return_std_error=True)
    assert ((entropy - peer.entropy()).abs() < 5.0 * error).all()


def test_diagonal_gram_is_a_plain_mixture() -> None:
    concentration = double([[2.0, 3.0, 0.6], [9.0, 1.0, 4.0], [1.0, 1.0, 1.0]])
    size, log_scale = double([1.0, -0.5, 2.0]), double([[0.0, 1.0, -1.0], [0.5, 0.2, 0.0]])
    ours = SnefySimplex((concentration - 1.0) / 2.0, torch.diag(size), log_scale)
    peer = MixtureSameFamily(
        Categorical(logits=2.0 * (log_scale + size.abs().log())), Dirichlet(concentration.expand(2, -1, -1))
    )
    points = interior(50, 3)[:, None].expand(-1, 2, -1)
    torch.testing.assert_close(ours.log_prob(points), peer.log_prob(points))
    torch.testing.assert_close(ours.mean, peer.mean)
    torch.testing.assert_close(ours.variance, peer.variance)


# -- the paper's formula, term by term --------------------------------------------------------------------------------


def brute_force(W: np.ndarray, V: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights c (n, n), concentrations (n, n, L) and log Z by the double sum, in scipy."""
    alpha = 1.0 + W[:, None] + W[None]
    log_beta_ = scipy.special.gammaln(alpha).sum(-1) - scipy.special.gammaln(alpha.sum(-1))
    terms = (V.T @ V) * np.exp(log_beta_ + h[:, None] + h[None])
    return terms / terms.sum(), alpha, math.log(terms.sum())


@pytest.mark.parametrize("n_labels", [2, 5])
def test_raw_parameters_give_the_papers_density(n_labels: int) -> None:
    rng = np.random.default_rng(n_labels)
    W, V, h = rng.uniform(-0.4, 3.0, (6, n_labels)), rng.normal(size=(4, 6)), rng.normal(size=(3, 6)) * 2.0
    dist = SnefySimplex.from_raw(double(W), double(V), double(h))
    points = rng.dirichlet(np.ones(n_labels), size=3)
    weights = [brute_force(W, V, row) for row in h]
    expected = [
        2.0 * np.log(np.linalg.norm(V @ np.exp(W @ np.log(point) + row))) - w[2]
        for point, row, w in zip(points, h, weights)
    ]
    np.testing.assert_allclose(dist.log_prob(double(points)), expected, rtol=1e-11)
    positive = dist.weights().clamp_min(0.0).sum(-1)
    np.testing.assert_allclose(positive, [w[0].clip(0.0).sum() for w in weights], rtol=1e-11)
    means = [np.einsum("ij,ijl->l", w[0], w[1] / w[1].sum(-1, keepdims=True)) for w in weights]
    np.testing.assert_allclose(dist.mean, means, rtol=1e-11)
    assert (dist.n_members, dist.n_labels, dist.n_components) == (1, n_labels, 21)


def test_float32_raw_parameters_do_not_round_the_kernel_first() -> None:
    """g is in the thousands for sharp distributions; it must meet h in float64."""
    W = double([[400.3, 250.1, 800.7], [401.0, 250.0, 799.0]]).float()
    h = -0.5 * log_beta(1.0 + 2.0 * W.double())
    ours = SnefySimplex.from_raw(W, torch.eye(2), h.float())
    error = (h.float().double() - h).abs().max()
    assert (ours.log_scale.double().squeeze() - (h.float().double() - h)).abs().max() < 1e-6 + 1e-3 * error


# -- kinds of distributions --------------------------------------------------------------------------------------------


# -- smaller compositions, by integrating labels out -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["signed", "cancelling", "members", "votes"])
def test_amalgamation_and_subcomposition_integrate_the_rest_out(
    kind: str, of_kind: OfKind, quadrature: Callable[[int], Any]
) -> None:
    dist, rule = of_kind(kind, 3), quadrature(2)
    inner, rest = rule.points.T
    at = double([0.05, 0.3, 0.6, 0.97])

    def integrate(parts: Callable[[Tensor], list[Tensor]], jacobian: Callable[[Tensor], Tensor | float]) -> Tensor:
        answers = []
        for t in at:
            density = dist.log_prob(torch.stack(parts(t), -1)[:, None]).exp()
            answers.append(((rule.weights * jacobian(t))[:, None] * density).sum(0))
        return torch.stack(answers)

    two = torch.stack([at, 1.0 - at], -1)[:, None]
    summed = integrate(lambda t: [t * inner, (1.0 - t).expand_as(inner), t * rest], lambda t: t)
    torch.testing.assert_close(dist.amalgamate([[0, 2], [1]]).log_prob(two).exp(), summed, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(dist.marginal([0, 2]).log_prob(at[:, None]).exp(), summed, rtol=1e-7, atol=1e-8)
    among = integrate(lambda t: [t * rest, inner, (1.0 - t) * rest], lambda t: rest)
    torch.testing.assert_close(dist.subcomposition([0, 2]).log_prob(two).exp(), among, rtol=1e-7, atol=1e-8)


def test_reduced_laws_keep_weights_and_digits_when_readouts_differ_in_size() -> None:
    """Readout columns ten orders of magnitude apart, undone by the scale: the root must not round the small ones."""
    torch.manual_seed(1)
    size = torch.logspace(0, -10, 6, dtype=float64)
    exponents, readout = torch.rand(6, 4, dtype=float64) * 3.0, torch.randn(8, 6, dtype=float64)
    plain = SnefySimplex(exponents, readout, torch.zeros(1, 6, dtype=float64)).amalgamate([[0, 1], [2], [3]])
    skewed = SnefySimplex(exponents, readout * size, -size.log()[None]).amalgamate([[0, 1], [2], [3]])
    points = interior(20, 3)[:, None]
    torch.testing.assert_close(skewed.mean, plain.mean, rtol=1e-11, atol=0.0)
    torch.testing.assert_close(skewed.log_prob(points), plain.log_prob(points), rtol=1e-9, atol=1e-9)


# -- votes ------------------------------------------------------------------------------------------------------------


def vote_tables(total: int, n_labels: int = 3) -> Tensor:
    tables = [k for k in itertools.product(range(total + 1), repeat=n_labels) if sum(k) == total]
    return double(tables)


@pytest.mark.parametrize("kind", ["signed", "cancelling", "members", "votes", "merged, votes"])
def test_vote_probabilities_sum_to_one_and_chain(kind: str, of_kind: OfKind) -> None:
    dist = of_kind(kind, 3)
    for total in range(1, 5):
        probability = sum(dist.log_prob_counts(k).exp() for k in vote_tables(total))
        torch.testing.assert_close(probability, torch.ones(2, dtype=float64), rtol=1e-10, atol=1e-10)
    first, second = double([2, 0, 3]), double([[1, 4, 0], [0, 0, 2]])
    step, both = dist.posterior(first), dist.posterior(first + second)
    ell = interior(2, 3)
    torch.testing.assert_close(step.posterior(second).log_prob(ell), both.log_prob(ell))
    torch.testing.assert_close(step.posterior(second).mean, both.mean)
    torch.testing.assert_close(dist.posterior(first * 0.0).log_prob(ell), dist.log_prob(ell))

    def coefficient(k: Tensor) -> Tensor:
        return torch.lgamma(k.sum(-1) + 1.0) - torch.lgamma(k + 1.0).sum(-1)

    chained = dist.log_prob_counts(first) - coefficient(first) + step.log_prob_counts(second) - coefficient(second)
    torch.testing.assert_close(dist.log_prob_counts(first + second) - coefficient(first + second), chained)
    # Bayes' rule, point by point
    likelihood = coefficient(first) + (first * ell.log()).sum(-1)
    torch.testing.assert_close(
        step.log_prob(ell), dist.log_prob(ell) + likelihood - dist.log_prob_counts(first), rtol=1e-9, atol=1e-9
    )
    # one vote for label r has the probability E[ℓ_r]
    single = torch.stack([dist.log_prob_counts(vote).exp() for vote in torch.eye(3, dtype=float64)], -1)
    torch.testing.assert_close(single, dist.mean)


# -- members ----------------------------------------------------------------------------------------------------------


def test_members_average_the_densities(snefy: Build) -> None:
    together = snefy(4, n=3, members=3, batch=(5,))
    alone = [SnefySimplex(together.exponents[k], together.readout[k], together.log_scale[:, k]) for k in range(3)]

    def average(answer: Callable[[SnefySimplex], Tensor]) -> Tensor:
        return torch.stack([answer(member) for member in alone]).mean(0)

    ell, at, votes = interior(5, 4), double(0.3), double([3, 0, 1, 2])
    torch.testing.assert_close(together.log_prob(ell).exp(), average(lambda d: d.log_prob(ell).exp()))
    torch.testing.assert_close(together.mean, average(lambda d: d.mean))
    torch.testing.assert_close(together.marginal(1).cdf(at), average(lambda d: d.marginal(1).cdf(at)))
    torch.testing.assert_close(together.log_prob_counts(votes).exp(), average(lambda d: d.log_prob_counts(votes).exp()))
    second = average(lambda d: d.covariance_matrix + d.mean[:, :, None] * d.mean[:, None])
    expected = second - together.mean[:, :, None] * together.mean[:, None]
    torch.testing.assert_close(together.covariance_matrix, expected)
    # after votes, members count by how well they foresaw them
    evidence = torch.stack([d.log_prob_counts(votes) for d in alone]).softmax(0)  # (K, N)
    assert (evidence.max(0).values > 0.4).any()
    after = torch.stack([d.posterior(votes).log_prob(ell) for d in alone])
    torch.testing.assert_close(together.posterior(votes).log_prob(ell), torch.logsumexp(evidence.log() + after, 0))
    means = torch.stack([d.posterior(votes).mean for d in alone])
    torch.testing.assert_close(together.posterior(votes).mean, (evidence[..., None] * means).sum(0))


# -- the best point for a loss -----------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": lambda ell, q: (torch.special.xlogy(ell, ell) - ell * q.log()).sum(-1),
    "squared": lambda ell, q: (ell - q).square().sum(-1),
    "reverse_kl": lambda ell, q: (q * (q.log() - ell.log())).sum(-1),
    "l1": lambda ell, q: (ell - q).abs().sum(-1),
}


@pytest.mark.parametrize("loss", list(LOSSES))
def test_bayes_points_beat_their_neighbours(loss: str, snefy: Build, rng: Callable[[int], torch.Generator]) -> None:
    dist = snefy(4, concentration=(0.8, 5.0), seed=11)
    best = dist.bayes_point(loss)  # type: ignore[arg-type]
    torch.testing.assert_close(best.sum(-1), torch.ones(2, dtype=float64))
    draws = dist.sample((20_000,), generator=rng(0)).clamp_min(1e-300)
    for size, seed in itertools.product((0.03, 0.3), range(10)):
        noise = torch.randn(best.shape, generator=rng(seed), dtype=float64)
        other = torch.softmax(best.log() + size * noise, -1)
        difference = LOSSES[loss](draws, other) - LOSSES[loss](draws, best)
        error = difference.std(0) / math.sqrt(len(draws))
        assert (difference.mean(0) > -5.0 * error).all()  # 160 one-sided comparisons: 1 in 20,000 runs


def test_l1_point_is_optimal_and_beats_reclosed_medians() -> None:
    """The exact expected loss, ``E|ℓ - q| = ∫_0^q F + ∫_q^1 (1 - F)``, for medians that are far from closed."""
    dist = SnefySimplex(double([[-0.3, -0.2, 1.0, -0.4]]), double([[1.0]]), double([[0.0]]))
    grid = torch.linspace(0.0, 1.0, 4001, dtype=float64)
    cdfs = [dist.marginal(r).cdf(grid[:, None])[:, 0] for r in range(4)]

    def expected_loss(q: Tensor) -> float:
        return sum(float(torch.trapezoid(torch.where(grid < q[r], cdfs[r], 1.0 - cdfs[r]), grid)) for r in range(4))

    best = dist.bayes_point("l1")[0]
    medians = torch.stack([dist.marginal(r).icdf(double(0.5))[0] for r in range(4)])
    assert expected_loss(best) < expected_loss(medians / medians.sum()) - 1e-3
    levels = torch.stack([dist.marginal(r).cdf(best[r, None])[0] for r in range(4)])
    torch.testing.assert_close(levels, levels[:1].expand(4), rtol=0.0, atol=1e-7)
    torch.manual_seed(0)
    for _ in range(20):
        other = torch.softmax(best.log() + 0.3 * torch.randn(4, dtype=float64), -1)
        assert expected_loss(best) < expected_loss(other) + 1e-6


# -- gradients --------------------------------------------------------------------------------------------------------

ANSWERS: dict[str, Callable[[SnefySimplex], Tensor]] = {
    "log_prob": lambda d: d.log_prob(double([[0.2, 0.3, 0.5], [0.7, 0.1, 0.2]])),
    "mean": lambda d: d.mean,
    "variance": lambda d: d.variance,
    "covariance": lambda d: d.covariance_matrix,
    "log_prob_counts": lambda d: d.log_prob_counts(double([[2, 0, 1], [0, 3, 5]])),
    "expected_log": lambda d: d.expected_log(),
    "posterior mean": lambda d: d.posterior(double([1, 0, 4])).mean,
    "amalgamated mean": lambda d: d.amalgamate([[0, 1], [2]]).mean,
    "amalgamated density": lambda d: d.amalgamate([[0, 1], [2]]).log_prob(double([[0.2, 0.8], [0.7, 0.3]])),
}


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("answer", list(ANSWERS))
def test_gradients(answer: str, members: int, snefy: Build) -> None:
    base = snefy(3, n=3, m=4, members=members, seed=8)
    inputs = [base.exponents, base.readout, base.log_scale]
    if not members:
        inputs = [base.exponents[0], base.readout[0], base.log_scale[:, 0]]
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(lambda w, v, h: ANSWERS[answer](SnefySimplex(w, v, h)), inputs, atol=1e-6)


# -- ranges, dtypes, memory --------------------------------------------------------------------------------------------

RANGES = [
    *itertools.product((0.02, 0.5, 30.0, 10_000.0), (2, 20, 150), (1, 16)),
    (0.02, 2, 256),
    (10_000.0, 6, 256),
    (100.0, 150, 64),
]


@pytest.mark.parametrize(("concentration", "n_labels", "n"), RANGES)
def test_the_whole_range_is_finite_and_bounded(concentration: float, n_labels: int, n: int, snefy: Build) -> None:
    dist = snefy(n_labels, n=n, m=5, concentration=(concentration, 1.2 * concentration))
    mean, variance = dist.mean_and_variance()
    assert (mean > 0.0).all()
    torch.testing.assert_close(mean.sum(-1), torch.ones(2, dtype=float64))
    assert ((variance > 0.0) & (variance <= mean * (1.0 - mean))).all()
    covariance = dist.covariance_matrix
    assert covariance.sum(-1).abs().max() < 1e-9
    assert (torch.linalg.eigvalsh(covariance) > -1e-9).all()
    torch.testing.assert_close(covariance.diagonal(dim1=1, dim2=2), variance, rtol=1e-6, atol=1e-15)
    draws = dist.sample((3,))
    assert torch.isfinite(dist.log_prob(draws)).all()
    assert torch.isfinite(dist.log_prob(mean)).all()
    for answer in (dist.expected_log(), dist.expected_entropy(), dist.prob_greater(0, 1)):
        assert torch.isfinite(answer).all()
    assert ((dist.expected_entropy() >= 0.0) & (dist.expected_entropy() <= math.log(n_labels))).all()
    votes = torch.zeros(n_labels, dtype=float64)
    votes[0] = 3.0
    assert ((dist.log_prob_counts(votes) <= 0.0) & torch.isfinite(dist.log_prob_counts(votes))).all()
    assert (dist.posterior(votes).mean[:, 0] >= mean[:, 0]).all()
    levels = dist.marginal(0).quantiles([0.1, 0.5, 0.9])
    assert ((levels >= 0.0) & (levels <= 1.0)).all()
    assert (levels.diff(dim=-1) >= 0.0).all()


def test_float32_in_float32_out_and_equal_to_float64(snefy: Build) -> None:
    """Everything is computed in float64, so float32 answers are float64 ones rounded: 1e-6 relative."""
    single = snefy(5, n=6, dtype=torch.float32)
    exact = SnefySimplex(*(t.double() for t in (single.exponents, single.readout, single.log_scale)))
    values = interior(2, 5).float()
    votes = double([1, 0, 2, 0, 5])
    answers: dict[str, Callable[[SnefySimplex], Any]] = {
        "log_prob": lambda d: d.log_prob(values),
        "mean": lambda d: d.mean,
        "variance": lambda d: d.variance,
        "covariance": lambda d: d.covariance_matrix,
        "expected_log": lambda d: d.expected_log(),
        "prob_greater": lambda d: d.prob_greater(0, 3),
        "log_prob_counts": lambda d: d.log_prob_counts(votes),
        "icdf": lambda d: d.marginal(2).icdf(double(0.3)),
        "amalgamate": lambda d: d.amalgamate([[0, 1], [2, 3, 4]]).log_prob(values[:, :2] / values[:, :2].sum(-1, True)),
        "posterior": lambda d: d.posterior(votes).log_prob(values),
        "posterior amalgamate": lambda d: d.posterior(votes).amalgamate([[0, 1], [2, 3, 4]]).variance,
    }
    for name, answer in answers.items():
        low, high = answer(single), answer(exact)
        assert low.dtype == torch.float32, name
        assert high.dtype == float64, name
        torch.testing.assert_close(low.double(), high, rtol=1e-6, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")
    assert single.sample((4,)).dtype == torch.float32
    assert single.entropy(10).dtype == torch.float32


class Largest(TorchDispatchMode):
    """Remembers the largest tensor made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes() > tensor.element_size():
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.slow
@pytest.mark.parametrize("votes", [False, True])
def test_no_array_of_rows_by_pairs_by_labels(votes: bool, snefy: Build) -> None:
    """B = 2,000, n = 64, L = 20: (B, n, n) would be 8 million numbers, (B, n, n, L) 164 million."""
    dist: SnefySimplex = snefy(20, n=64, m=32, batch=(2000,))
    ell = interior(2000, 20)
    if votes:
        dist = dist.posterior(torch.ones(2000, 20))
    with Largest() as largest:
        dist.mean_and_variance()
        dist.mean  # noqa: B018
        dist.log_prob(ell)
        if not votes:
            dist.covariance_matrix  # noqa: B018
            dist.expected_log()
    assert largest.elements <= 2 * CACHE_ELEMENTS  # 1 million


# -- the contract of torch.distributions -------------------------------------------------------------------------------


def test_batches_broadcast_against_points(snefy: Build) -> None:
    """A batch of (2, 1) meets points of (3,): row by column, not in the order of memory."""
    dist = snefy(3, batch=(2, 1))
    ell, at = interior(3, 3), double([0.1, 0.3, 0.8])
    rows = [SnefySimplex(dist.exponents, dist.readout, dist.log_scale[b]) for b in range(2)]
    torch.testing.assert_close(dist.log_prob(ell), torch.stack([row.log_prob(ell) for row in rows]))
    share, shares = dist.marginal(0), [row.marginal(0) for row in rows]
    torch.testing.assert_close(share.cdf(at), torch.stack([s.cdf(at) for s in shares]))
    torch.testing.assert_close(share.icdf(at), torch.stack([s.icdf(at) for s in shares]))
    torch.testing.assert_close(share.log_prob(at), torch.stack([s.log_prob(at) for s in shares]))


def test_a_neuron_switched_off_is_not_there(snefy: Build) -> None:
    """A scale of -inf takes a neuron out, in every answer."""
    dist = snefy(3, n=4)
    scale = dist.log_scale.clone()
    scale[..., 2] = -torch.inf
    off, on = SnefySimplex(dist.exponents, dist.readout, scale), [0, 1, 3]
    without = SnefySimplex(dist.exponents[:, on], dist.readout[..., on], dist.log_scale[..., on])
    ell, votes = interior(2, 3), double([1, 0, 2])
    pairs: list[tuple[SnefySimplex, SnefySimplex]] = [
        (off, without),
        (off.posterior(votes), without.posterior(votes)),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.log_prob(ell), theirs.log_prob(ell))
        torch.testing.assert_close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.covariance_log(), theirs.covariance_log())
        torch.testing.assert_close(ours.marginal(0).cdf(double(0.3)), theirs.marginal(0).cdf(double(0.3)))
        assert torch.isfinite(ours.sample((10,))).all()
        assert torch.isfinite(ours.entropy(20, method="uniform")).all()


# -- errors -----------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[SnefySimplex], Any], str]] = {
    "exponent at -1/2": (lambda d: SnefySimplex(d.exponents * 0.0 - 0.5, d.readout, d.log_scale), "above -1/2"),
    "exponent nan": (lambda d: SnefySimplex(d.exponents * math.nan, d.readout, d.log_scale), "above -1/2"),
    "exponent huge": (lambda d: SnefySimplex(d.exponents + 1e300, d.readout, d.log_scale), "below 1e\\+100"),
    "scale infinite": (lambda d: SnefySimplex(d.exponents, d.readout, d.log_scale + math.inf), "neither NaN nor inf"),
    "no neuron on": (
        lambda d: SnefySimplex(d.exponents, d.readout, d.log_scale - math.inf),
        "row 0 is not a valid distribution",
    ),
    "no rows": (lambda d: SnefySimplex(d.exponents, d.readout, d.log_scale[:0]), "at least one row"),
    "scale beyond half floats": (
        lambda d: SnefySimplex.from_raw(d.exponents[0].half() * 0 + 6e4, d.readout[0].half(), d.log_scale[:, 0].half()),
        "not a valid distribution",
    ),
    "mixture too sharp": (lambda d: SnefySimplex.from_mixture(double([[1.0]]), double([[1, 1e300]])), "1e\\+100"),
    "neurons differ": (lambda d: SnefySimplex(d.exponents, d.readout[:, :, :2], d.log_scale), "shapes do not fit"),
    "exponents 1-d": (lambda d: SnefySimplex(d.exponents[0, 0], d.readout[0], d.log_scale), r"must be \(n, L\)"),
    "offset too low": (
        lambda d: SnefySimplex(d.exponents, d.readout, d.log_scale, offset=double([0.0, -9.0, 0.0])),
        "must be a positive number",
    ),
    "offset of another batch": (
        lambda d: SnefySimplex(d.exponents, d.readout, d.log_scale, offset=torch.ones(7, 3)),
        r"offset of shape \(7, 3\) does not fit the batch of shape \(2,\)",
    ),
    "one label": (lambda d: SnefySimplex(d.exponents[..., :1], d.readout, d.log_scale), "at least 2 labels"),
    "label too large": (lambda d: d.marginal(3), "from 0 to 2; got 3"),
    "label with itself": (lambda d: d.prob_greater(1, -2), "two different labels"),
    "all labels": (lambda d: d.marginal([0, 1, 2]), "all of them sum to one"),
    "label in two groups": (lambda d: d.amalgamate([[0, 1], [1, 2]]), "exactly once"),
    "label left out": (lambda d: d.amalgamate([[0], [1]]), "use subcomposition"),
    "one group": (lambda d: d.amalgamate([[0, 1, 2]]), "at least two groups"),
    "label twice": (lambda d: d.subcomposition([1, 1]), "at least 2 different labels"),
    "counts short": (lambda d: d.log_prob_counts([1, 2]), "3 real numbers"),
    "counts negative": (lambda d: d.log_prob_counts([1, -2, 0]), ">= 0"),
    "counts of another batch": (lambda d: d.posterior(torch.ones(5, 3)), r"batch of shape \(2,\)"),
    "unknown loss": (lambda d: d.bayes_point("l2"), '"reverse_kl"'),
    "unknown method": (lambda d: d.entropy(5, method="sobol"), "Algorithm A2"),
    "one draw": (lambda d: d.entropy(1), "at least 2 draws"),
    "quantile level": (lambda d: d.marginal(0).icdf(double(1.5)), "between 0 and 1"),
}


@pytest.mark.parametrize("mistake", list(BAD))
def test_mistakes_are_named(mistake: str, snefy: Build) -> None:
    act, message = BAD[mistake]
    with pytest.raises(InputError, match=message):
        act(snefy(3))


# -- the surface that other modules build on --------------------------------------------------------------------------
