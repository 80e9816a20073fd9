from laws import moving

"""Moments, cdfs and quantiles of rows with their own centres: against Betas, mpmath, quadrature and draws."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from snefy_ldl.distributions.square_rows import SquareRows

from snefy_ldl.distributions import phase_nodes

LEVELS = [0.001, 0.05, 0.5, 0.95, 0.999]


def dirichlet(alpha, log_centre=None) -> SquareRows:
    """One neuron: a Dirichlet of this concentration, moved by a centre."""
    half = 0.5 * torch.tensor(alpha, dtype=torch.float64)[None, None]
    one = torch.ones(1, 1, 1).double()
    centre = [0.0] * half.shape[-1] if log_centre is None else log_centre
    return SquareRows(half, one, one, torch.tensor([centre], dtype=torch.float64))


def signed_law(concentration: float, n_rows: int = 6, n_labels: int = 4, seed: int = 0) -> moving:
    """Two members whose readouts have both signs."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    shares = torch.softmax(normal(2, 5, n_labels), -1)
    exponents = 0.5 * (concentration * shares - 1.0).clamp_min(-0.9)
    centre = 1.5 * normal(n_rows, n_labels)
    return moving(exponents, None, normal(2, 3, 5), normal(n_rows, 2, 5), centre)


@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0, 3000.0])
def test_without_a_centre_shares_are_betas(scale):
    alpha = scale * np.array([2.0, 5.0, 3.0])
    rows = dirichlet(alpha.tolist())
    first, second = rows.two_moments()
    expected = stats.dirichlet(alpha)
    np.testing.assert_allclose(first[0], expected.mean(), atol=1e-9)
    np.testing.assert_allclose((second - first.square())[0], expected.var(), atol=1e-9)
    products = rows.product_moments()[0].numpy()
    np.testing.assert_allclose(products - np.outer(expected.mean(), expected.mean()), expected.cov(), atol=1e-9)
    for group in ([0], [1], [0, 2]):
        beta = stats.beta(alpha[group].sum(), alpha.sum() - alpha[group].sum())
        points = beta.ppf(LEVELS)
        value, density = rows.cdf(group, torch.logit(torch.as_tensor(points)[None]))
        np.testing.assert_allclose(value[0], LEVELS, atol=1e-7)
        np.testing.assert_allclose(density[0].numpy() / (points * (1.0 - points)), beta.pdf(points), rtol=2e-4)
        levels = torch.tensor([LEVELS]).double()
        quantiles = rows.quantiles(group, levels, torch.tensor([0.5]).double(), torch.tensor([0.01]).double())
        np.testing.assert_allclose(beta.cdf(quantiles[0]), LEVELS, atol=2e-7)


def test_mean_with_a_centre_by_mpmath():
    alpha, centre = [0.7, 2.5, 4.0], [1.0, 0.01, 0.3]
    rows = dirichlet(alpha, np.log(centre).tolist())

    def integrand(t, r):
        product = mpmath.mpf(1)
        for a, c in zip(alpha, centre):
            product *= (1 + c * t) ** (-a)
        return alpha[r] * centre[r] / (1 + centre[r] * t) * product

    expected = [float(mpmath.quad(lambda t, r=r: integrand(t, r), [0, 1, 10, 100, 1000, mpmath.inf])) for r in range(3)]
    np.testing.assert_allclose(rows.first_moments()[0], expected, atol=1e-9)


@pytest.mark.parametrize("centre", [[0.0, -3.0], [-6.0, 0.0]])
def test_two_labels_with_a_centre_by_quadrature(centre):
    """``ℓ = c_0 b / (c_0 b + c_1 (1 - b))`` with b a Beta: the cdf is that of b at the point that goes there."""
    rows = dirichlet([1.7, 4.2], centre)
    beta, ratio = stats.beta(1.7, 4.2), np.exp(centre[1] - centre[0])
    b = beta.ppf(LEVELS)
    share = b / (b + ratio * (1.0 - b))
    value, _ = rows.cdf([0], torch.logit(torch.as_tensor(share)[None]))
    np.testing.assert_allclose(value[0], LEVELS, atol=1e-7)
    total, _ = integrate.quad(lambda x: x / (x + ratio * (1.0 - x)), 0, 1, weight="alg", wvar=(0.7, 3.2), epsabs=1e-12)
    assert float(rows.first_moments()[0, 0]) == pytest.approx(total / special.beta(1.7, 4.2), abs=1e-9)


@pytest.mark.parametrize("concentration", [4.0, 60.0, 4000.0])
def test_signed_rows_against_their_own_draws(concentration):
    """Twelve cdfs of 100,000 draws each; the bound is that of Dvoretzky, Kiefer, Wolfowitz and Massart for 1e-6."""
    law, n = signed_law(concentration), 100_000
    draws = law.sample((n,), torch.Generator().manual_seed(1))
    rows, band = law.square_rows(), np.sqrt(np.log(2.0 / 1e-6) / (2.0 * n))
    for group in ([0], [3, 1]):
        share = draws[..., group].sum(-1)
        points = torch.quantile(share[:1000], torch.tensor(LEVELS).double(), dim=0).T.clamp(1e-12, 1.0 - 1e-12)
        value, _ = rows.cdf(group, torch.logit(points))
        seen = (share[..., None] <= points).double().mean(0)
        assert float((value - seen).abs().max()) < band


def test_quantiles_are_found_far_from_the_guess():
    rows = signed_law(60.0).square_rows()
    levels = torch.tensor(LEVELS).double().expand(len(rows), -1)
    wrong = torch.full((len(rows),), 0.999).double()
    quantiles = rows.quantiles([0], levels, wrong, 1e-6 * wrong)
    value, _ = rows.cdf([0], torch.logit(quantiles))
    torch.testing.assert_close(value, levels, atol=1e-6, rtol=0)


def test_covariances_are_those_of_each_rows_law():
    law = signed_law(20.0)
    expected = torch.cat([law.row(k).covariance_matrix for k in range(len(law))])
    torch.testing.assert_close(law.covariance_matrix, expected, atol=1e-8, rtol=0)
    first, second = law.square_rows().two_moments()
    torch.testing.assert_close((second - first.square()), expected.diagonal(dim1=1, dim2=2), atol=1e-8, rtol=0)


def test_marginal_of_one_label():
    law = signed_law(20.0)
    share = law.marginal(1)
    levels = torch.tensor([0.1, 0.7]).double()[:, None].expand(-1, len(law))
    torch.testing.assert_close(share.cdf(share.icdf(levels)), levels, atol=1e-6, rtol=0)
    points = torch.linspace(0.2, 0.5, 1001).double()[:, None].expand(-1, len(law))
    between = torch.trapezoid(share.log_prob(points).exp(), points, dim=0)
    torch.testing.assert_close(between, share.cdf(points[-1]) - share.cdf(points[0]), atol=1e-5, rtol=0)


def test_many_points_of_many_rows_are_those_asked_one_by_one():
    rows = signed_law(20.0, n_rows=9).square_rows()
    points = torch.logit(torch.linspace(0.01, 0.99, 120).double()).expand(9, -1).contiguous()
    together = rows.cdf([2], points)
    for row, at in ((0, 0), (4, 63), (8, 119)):
        alone = rows.take(slice(row, row + 1)).cdf([2], points[[row]][:, [at]])
        for part, single in zip(together, alone):
            torch.testing.assert_close(part[[row]][:, [at]], single, atol=1e-7, rtol=0)


def test_answers_do_not_depend_on_threads(monkeypatch):
    rows = signed_law(20.0, n_rows=400).square_rows()
    answers = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        answers.append((rows.first_moments(), *rows.cdf([0], torch.zeros(400, 30).double())))
    assert all(torch.equal(one, two) for one, two in zip(*answers))


def test_nodes_are_as_far_apart_as_phases_allow(monkeypatch):
    """Sharp neurons close to each other and far apart, at logits near and far: the longer steps change nothing."""
    rng, counts = np.random.default_rng(0), []
    for scale in (5.0, 300.0, 20_000.0):
        for spread in (0.02, 1.0):
            shares = torch.as_tensor(np.exp(spread * rng.normal(size=(1, 5, 4))))
            half = 0.5 * scale * shares / shares.sum(-1, keepdim=True) + 0.1
            even = torch.full((1, 5, 5), 1.0 / 25.0).double()  # every pair alike
            centre = torch.as_tensor(0.01 * rng.normal(size=(3, 4)))
            rows = SquareRows(half, even, torch.ones(1, 3, 5).double(), centre - centre.amax(1, keepdim=True))
            mean = rows.first_moments()[:, 0]
            for width in (0.1, 3.0):
                u = torch.logit(mean)[:, None] + torch.linspace(-width, width, 5).double()
                quick = rows.cdf([0], u)
                counts.append(len(rows._phases([0], float(u.min()), float(u.max())).y))
                with monkeypatch.context() as patch:
                    patch.setattr(phase_nodes, "_step", lambda *settings: 0.0)
                    slow = rows.cdf([0], u)
                    counts.append(len(rows._phases([0], float(u.min()), float(u.max())).y))
                torch.testing.assert_close(quick[0], slow[0], rtol=0.0, atol=1e-8)
                torch.testing.assert_close(quick[1], slow[1], rtol=1e-6, atol=1e-6)
    assert min(quick / slow for quick, slow in zip(counts[::2], counts[1::2])) < 0.4
