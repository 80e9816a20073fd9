"""Moments, cdfs and quantiles of rows with their own centres: against Betas, mpmath, quadrature and draws."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats
from torch import Tensor

from laws import moving
from snefy_ldl.distributions import SnefySimplex, present_shares
from snefy_ldl.distributions.components import RowMoments
from snefy_ldl.distributions.present_shares import PresentShares
from snefy_ldl.distributions.share_quantiles import ShareRow, beta_guess, solve_quantiles

LEVELS = [0.001, 0.05, 0.5, 0.95, 0.999]


def dirichlet(alpha, log_centre=None) -> tuple[Tensor, Tensor, Tensor]:
    """One neuron: half of its concentration (1, 1, L), its weight (1, 1, 1) and the log centre (1, L)."""
    half = 0.5 * torch.tensor(alpha, dtype=torch.float64)[None, None]
    centre = [0.0] * half.shape[-1] if log_centre is None else log_centre
    return half, torch.ones(1, 1, 1).double(), torch.tensor([centre], dtype=torch.float64)


def moments_of(half, one, centre) -> RowMoments:
    return RowMoments(half, one, one, centre)


def shares_of(half, one, centre, group) -> PresentShares:
    return PresentShares(half, one[None], centre, [group])


def cdf_of(row: ShareRow, u: Tensor) -> tuple[Tensor, Tensor]:
    """Cdf of the only sum of a row and density of its logit at logits u (A,): (A,) each."""
    only = torch.tensor([0])
    row.prepare(u.min()[None], u.max()[None], only)
    value, density = row.at(u[None], only)
    return value[0], density[0]


def signed_law(concentration: float, n_rows: int = 6, n_labels: int = 4, seed: int = 0) -> SnefySimplex:
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
    parts = dirichlet(alpha.tolist())
    moments = moments_of(*parts)
    first, second = moments.two()
    torch.testing.assert_close(moments.first(), first)
    expected = stats.dirichlet(alpha)
    np.testing.assert_allclose(first[0], expected.mean(), atol=1e-9)
    np.testing.assert_allclose((second - first.square())[0], expected.var(), atol=1e-9)
    products = moments.products()[0].numpy()
    np.testing.assert_allclose(products - np.outer(expected.mean(), expected.mean()), expected.cov(), atol=1e-9)
    for group in ([0], [1], [0, 2]):
        beta = stats.beta(alpha[group].sum(), alpha.sum() - alpha[group].sum())
        points = beta.ppf(LEVELS)
        row = shares_of(*parts, group)
        value, density = cdf_of(row, torch.logit(torch.as_tensor(points)))
        np.testing.assert_allclose(value, LEVELS, atol=1e-7)
        np.testing.assert_allclose(density.numpy() / (points * (1.0 - points)), beta.pdf(points), rtol=1e-4)
        levels, none = torch.tensor([LEVELS]).double(), torch.zeros(1).double()
        guess = beta_guess(torch.tensor([0.5]).double(), torch.tensor([0.26]).double(), none, none, levels)
        np.testing.assert_allclose(beta.cdf(solve_quantiles(row, levels, *guess)[0]), LEVELS, atol=2e-7)


def test_mean_with_a_centre_by_mpmath():
    alpha, centre = [0.7, 2.5, 4.0], [1.0, 0.01, 0.3]
    rows = moments_of(*dirichlet(alpha, np.log(centre).tolist()))

    def integrand(t, r):
        product = mpmath.mpf(1)
        for a, c in zip(alpha, centre):
            product *= (1 + c * t) ** (-a)
        return alpha[r] * centre[r] / (1 + centre[r] * t) * product

    expected = [float(mpmath.quad(lambda t, r=r: integrand(t, r), [0, 1, 10, 100, 1000, mpmath.inf])) for r in range(3)]
    np.testing.assert_allclose(rows.first()[0], expected, atol=1e-9)


@pytest.mark.parametrize("centre", [[0.0, -3.0], [-6.0, 0.0]])
def test_two_labels_with_a_centre_by_quadrature(centre):
    """``ℓ = c_0 b / (c_0 b + c_1 (1 - b))`` with b a Beta: the cdf is that of b at the point that goes there."""
    parts = dirichlet([1.7, 4.2], centre)
    beta, ratio = stats.beta(1.7, 4.2), np.exp(centre[1] - centre[0])
    b = beta.ppf(LEVELS)
    share = b / (b + ratio * (1.0 - b))
    value, _ = cdf_of(shares_of(*parts, [0]), torch.logit(torch.as_tensor(share)))
    np.testing.assert_allclose(value, LEVELS, atol=1e-7)
    total, _ = integrate.quad(lambda x: x / (x + ratio * (1.0 - x)), 0, 1, weight="alg", wvar=(0.7, 3.2), epsabs=1e-12)
    assert float(moments_of(*parts).first()[0, 0]) == pytest.approx(total / special.beta(1.7, 4.2), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("concentration", [4.0, 60.0, 4000.0])
def test_signed_rows_against_their_own_draws(concentration):
    """Twelve cdfs of 100,000 draws each; the bound is that of Dvoretzky, Kiefer, Wolfowitz and Massart for 1e-6."""
    law, n = signed_law(concentration), 100_000
    draws = law.sample((n,), torch.Generator().manual_seed(1))
    band = np.sqrt(np.log(2.0 / 1e-6) / (2.0 * n))
    for group in ([0], [3, 1]):
        share = draws[..., group].sum(-1)
        points = torch.quantile(share[:1000], torch.tensor(LEVELS).double(), dim=0).T.clamp(1e-12, 1.0 - 1e-12)
        value = torch.as_tensor(law.share_cdf(group, points.numpy()))
        seen = (share[..., None] <= points).double().mean(0)
        assert float((value - seen).abs().max()) < band


@pytest.mark.slow
def test_quantiles_are_found_far_from_the_guess():
    law = signed_law(60.0)
    levels = torch.tensor([LEVELS]).double()
    wrong = torch.full((1, len(LEVELS)), 7.0).double()  # the logit of 0.999
    for k in range(len(law)):
        row = law.rows.share_row(k, [[0]])
        quantiles = solve_quantiles(row, levels, wrong, torch.tensor([0.03]).double())
        value, _ = cdf_of(row, torch.logit(quantiles[0]))
        torch.testing.assert_close(value, levels[0], atol=1e-6, rtol=0)


def test_covariances_are_those_of_each_rows_law():
    law = signed_law(20.0)
    alone = [
        SnefySimplex(law.exponents, law.readout, law.log_scale[[k]], centre=law.log_centre[k].exp())
        for k in range(len(law))
    ]
    expected = torch.cat([row.covariance_matrix for row in alone])
    torch.testing.assert_close(law.covariance_matrix, expected, atol=1e-8, rtol=0)
    first, second = law.rows.two_moments()
    torch.testing.assert_close((second - first.square()), expected.diagonal(dim1=1, dim2=2), atol=1e-8, rtol=0)


@pytest.mark.slow
def test_marginal_of_one_label():
    law = signed_law(20.0)
    share = law.marginal(1)
    levels = torch.tensor([0.1, 0.7]).double()[:, None].expand(-1, len(law))
    torch.testing.assert_close(share.cdf(share.icdf(levels)), levels, atol=1e-6, rtol=0)
    points = torch.linspace(0.2, 0.5, 1001).double()[:, None].expand(-1, len(law))
    between = torch.trapezoid(share.log_prob(points).exp(), points, dim=0)
    torch.testing.assert_close(between, share.cdf(points[-1]) - share.cdf(points[0]), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_many_points_of_many_rows_are_those_asked_one_by_one():
    law = signed_law(20.0, n_rows=9)
    points = torch.linspace(0.01, 0.99, 40).double()  # three blocks of points
    share = law.marginal(2)
    together = share.cdf(points[:, None]), share.log_prob(points[:, None]).exp() * (points * (1.0 - points))[:, None]
    for row, at in ((0, 0), (4, 21), (8, 39)):
        alone = cdf_of(law.rows.share_row(row, [[2]]), torch.logit(points[[at]]))
        for part, single in zip(together, alone):
            torch.testing.assert_close(part[[at], row], single, atol=1e-7, rtol=0)


@pytest.mark.slow
def test_answers_do_not_depend_on_threads(monkeypatch):
    law = signed_law(20.0, n_rows=60)
    points, answers = np.full((60, 30), 0.5), []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        answers.append((law.rows.first_moments(), torch.as_tensor(law.share_cdf([0], points))))
    assert all(torch.equal(one, two) for one, two in zip(*answers))


@pytest.mark.slow
def test_nodes_are_as_far_apart_as_phases_allow(monkeypatch):
    """Sharp neurons close to each other and far apart, at logits near and far: shorter steps change nothing."""
    rng, counts = np.random.default_rng(0), []
    only = torch.tensor([0])
    quick, slow = {}, {"WIDEST": 0.05, "STRAIGHT_RATE": 200.0, "TILTED_RATE": 300.0, "AFTER": 2.0, "SLOW": 0.0}

    for scale in (5.0, 300.0, 20_000.0):
        for spread in (0.02, 1.0):
            shares = torch.as_tensor(np.exp(spread * rng.normal(size=(1, 5, 4))))
            half = 0.5 * scale * shares / shares.sum(-1, keepdim=True) + 0.1
            even = torch.full((1, 5, 5), 1.0 / 25.0).double()  # every pair alike
            centre = torch.as_tensor(0.01 * rng.normal(size=(3, 4)))
            centre = centre - centre.amax(1, keepdim=True)
            mean = RowMoments(half, even, torch.ones(1, 3, 5).double(), centre).first()[:, 0]
            for width in (0.1, 3.0):
                for k in range(3):
                    u = torch.logit(mean[k]) + torch.linspace(-width, width, 5).double()[None]
                    answers = []
                    for settings in (quick, slow):
                        with monkeypatch.context() as patched:
                            for name, value in settings.items():
                                patched.setattr(present_shares, name, value)
                            row = PresentShares(half, even[None], centre[[k]], [[0]])
                            answers.append(row.at(u, only))
                        counts.append(sum(block.factors.shape[-1] for path in row._paths for block in path._blocks))
                    torch.testing.assert_close(answers[0][0], answers[1][0], rtol=0.0, atol=1e-7)
                    torch.testing.assert_close(answers[0][1], answers[1][1], rtol=1e-5, atol=1e-5)
    assert min(quick / slow for quick, slow in zip(counts[::2], counts[1::2])) < 0.4


def beta_mixture(half, weights, log_centre, u):
    """Cdf at a logit of the first share where all other labels have the same centre: a mixture of Betas."""
    first = half[:, None, 0] + half[None, :, 0]
    rest = (half[:, None] + half[None]).sum(-1) - first
    low, high = special.expit(u - log_centre), special.expit(log_centre - u)
    below = special.betainc(first, rest, low) if low < 0.5 else 1.0 - special.betainc(rest, first, high)
    return float((weights * below).sum())


def assert_like_betas(half, weights, log_centre):
    n_labels, only = half.shape[1], torch.tensor([0])
    centre = torch.tensor([log_centre] + [0.0] * (n_labels - 1), dtype=torch.float64)
    row = PresentShares(torch.as_tensor(half)[None], torch.as_tensor(weights)[None, None], centre[None], [[0]])
    for level in (1e-3, 0.05, 0.5, 0.95):
        if not beta_mixture(half, weights, log_centre, -680.0) < level < beta_mixture(half, weights, log_centre, 50.0):
            continue  # shares that are 0 or 1 to every digit
        u = optimize.bisect(lambda at, level=level: beta_mixture(half, weights, log_centre, at) - level, -680.0, 50.0)
        at = torch.tensor([[u]], dtype=torch.float64)
        for width in (0.0, 1.0):
            row.at(torch.cat([at - width, at + width], 1), only)  # nodes for a wider range
            assert float(row.at(at, only)[0]) == pytest.approx(level, abs=1e-6)


@pytest.mark.parametrize("total", [1.0, 30.0, 350.0, 3000.0, 30_000.0])
@pytest.mark.parametrize("shares", [(1.0, 1.0, 1.0), (0.02, 1.0, 1.0), (30.0, 1.0, 1.0), None])
def test_cdfs_are_those_of_betas_however_sharp_and_uneven(total, shares):
    rng = np.random.default_rng(int(total))
    for log_centre in (0.0, np.log(1e-8), 5.0):
        mean = (
            rng.dirichlet([0.5] * 3, 6) if shares is None else np.array(shares) * np.exp(0.1 * rng.normal(size=(6, 3)))
        )
        mean = np.maximum(mean / mean.sum(1, keepdims=True), 1e-3)
        half = 0.5 * total * mean * np.exp(rng.uniform(-1.5, 0.0, size=(6, 1)))
        weights = np.abs(rng.normal(size=(6, 6)))
        weights = (weights + weights.T) / (2.0 * weights.sum())
        assert_like_betas(half, weights, log_centre)


def test_a_component_far_above_a_point_keeps_its_phases():
    """Most of the law is near one; what is not reaches down to e^-60, where the first component's phases turn fast."""
    half = 0.5 * np.array([[88.0, 3.0, 2.4], [0.028, 10.0, 4.0], [0.03, 20.0, 24.0]])
    assert_like_betas(half, np.diag([0.6, 0.2, 0.2]), -0.3)


@pytest.mark.slow
@pytest.mark.parametrize("concentration", [0.4, 60.0, 4000.0])
def test_quantiles_of_many_rows_together_are_those_of_each(concentration):
    """Together they come from float32 sums and from nodes of their own; tiny concentrations give shares of e^-100."""
    law = signed_law(concentration, n_rows=40)
    levels = np.broadcast_to([0.01, 0.5, 0.99], (40, 4, 3)).copy()
    quantiles = law.rows.label_quantiles(levels)
    for label in range(4):
        inner = np.clip(quantiles[:, label], 1e-300, 1.0 - 1e-15)
        np.testing.assert_allclose(law.share_cdf([label], inner), levels[:, label], atol=3e-6)


def by_even_nodes(half: Tensor, weights: Tensor, log_centre: Tensor, inside: Tensor, u: float) -> float:
    """The cdf of a sum at a logit by Gil-Pelaez's integral over log t with even steps of 1.2 over √total or less."""
    total = 2.0 * half.sum(1)
    step = min(0.1, 1.2 / float(total.max()) ** 0.5)
    scale = torch.where(inside, log_centre - u, log_centre)
    size = float(torch.logsumexp((2.0 * half.amax(0)).log() + scale, 0))
    end = min(max(20.0 - size, float(-scale.min()) + 30.0 / float(total.min())), 300.0 - float(scale.min()))
    out = 0.0
    for y in torch.arange(-size - 26.0, end, step, dtype=torch.float64).split(8192):
        phase = y[:, None] + scale
        modulus = 0.5 * torch.nn.functional.softplus(2.0 * phase)
        angle = torch.atan(phase.clamp_max(700.0).exp()) * torch.where(inside, -1.0, 1.0)
        factor = torch.exp(torch.complex(-(modulus @ half.T), -(angle @ half.T)))
        out += float((factor * (factor @ weights.to(factor.dtype))).sum(1).imag.sum())
    return 0.5 * float(weights.sum()) - step * out / np.pi


def test_even_nodes_are_right():
    for a, b in [(0.05, 1e4), (3.0, 5.0), (500.0, 1000.0), (1e5, 3.0)]:
        u = float(special.logit(stats.beta(a, b).ppf(0.3)))
        half, inside = torch.tensor([[a / 2, b / 2]]).double(), torch.tensor([True, False])
        assert by_even_nodes(half, torch.ones(1, 1).double(), torch.zeros(2).double(), inside, u) == pytest.approx(
            0.3, abs=1e-7
        )


# among them seeds at which paths that leave the imaginary axis (7), a forgotten bracket (83), or a gap between two
# modes in which the density changes fast (28) misled
@pytest.mark.parametrize("seed", [2, 7, 28, 31, 83, 272])
def test_quantiles_of_mixtures_of_sharp_and_of_broad_components(seed):
    random = torch.Generator().manual_seed(seed)
    n, n_labels = (int(torch.randint(*ends, (1,), generator=random)) for ends in ((1, 14), (2, 10)))
    shape, lowest, range_ = ((1, n_labels), -2.0, 6.0) if seed % 2 else ((1, 1), -1.0, 4.0)
    spread = [0.2, 0.5, 1.0][seed % 3] * torch.randn(n, n_labels, generator=random).double()
    half = 0.5 * 10.0 ** (lowest + range_ * torch.rand(*shape, generator=random) + spread).clamp(-2.0, 5.0)
    readout = torch.rand(n, 3, generator=random).double() ** 4
    weights = readout @ readout.T
    weights = weights / weights.sum()
    log_centre = -[0.0, 3.0, 9.0, 18.0][seed % 4] * torch.rand(1, n_labels, generator=random).double()
    groups = [[label] for label in range(n_labels)]
    levels = torch.tensor([[0.05], [0.5], [0.95]]).double().repeat(n_labels, 1)
    row = PresentShares(half[None], weights[None, None], log_centre, [group for group in groups for _ in range(3)])
    alpha = 2.0 * half.mean(0)
    mean = torch.softmax(alpha.log() + log_centre[0], 0).repeat_interleave(3)
    zero = torch.zeros_like(mean)
    guess, deviation = beta_guess(mean, mean.square() * 1.1, zero, zero, levels)
    shares = solve_quantiles(row, levels, guess, deviation).flatten()
    for number, share in enumerate(shares.tolist()):
        if 1e-250 < share < 1.0 - 1e-12:
            inside = torch.arange(n_labels) == number // 3
            cdf = by_even_nodes(half, weights, log_centre[0], inside, float(special.logit(share)))
            assert cdf == pytest.approx(float(levels[number]), abs=1e-6)
