"""Kernels of what a model knows, each against an independent route: autograd, Monte Carlo, brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.random import RandomState

from snefy_ldl import SnefyLDL
from snefy_ldl.active.kernels import KERNELS, FisherKernel, Laplace, NetworkRows, fisher_information, make_kernel
from snefy_ldl.errors import InputError
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks import SnefyNet
from snefy_ldl.networks.backbones import StackedMLP


def small_net(n_readouts: int, n_members: int = 1, n: int = 4) -> SnefyNet:
    net = SnefyNet(StackedMLP(n_members, 3, (5,)), 3, n, n_readouts).double()
    generator = torch.Generator().manual_seed(n_readouts)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=generator).double() * 0.6)
    return net


@pytest.fixture(scope="module")
def guided(city) -> SnefyLDL:
    return SnefyLDL(epochs=3, n_neurons=8, n_readouts=4, n_members=1, random_state=0, device="cpu").fit(
        city.X[:120], city.D[:120]
    )


@pytest.mark.slow
def test_one_readout_row_has_the_textbook_information():
    rows = NetworkRows.from_inputs(small_net(1), (torch.ones(1, 3).double(),))
    law = rows.net.law(rows.output)
    half = law.exponents[0] + 0.5
    total = half[:, None] + half[None]
    log_kernel = torch.lgamma(total).sum(-1) - torch.lgamma(total.sum(-1))  # log B(α_ij)
    g = 0.5 * log_kernel.diagonal()
    kernel = (log_kernel - g[:, None] - g).exp()
    theta = law.readout[0, 0] * law.flat_log_scale[0, 0].exp()
    z = theta @ kernel @ theta
    by_theta = 4.0 / z * (kernel - torch.outer(kernel @ theta, kernel @ theta) / z)
    expected = theta[:, None] * by_theta * theta  # θ = v ∘ exp(h)
    torch.testing.assert_close(rows.information()[0, 0], expected)


@pytest.mark.parametrize("n_readouts", [1, 3])
def test_the_information_is_the_mean_square_of_the_scores(n_readouts):
    rows = NetworkRows.from_inputs(small_net(n_readouts), (torch.ones(1, 3).double(),))
    n_draws, net = 40_000, rows.net
    draws = net.law(rows.output).sample((n_draws,), torch.Generator().manual_seed(0))[:, 0]
    output = rows.output.detach().expand(1, n_draws, -1).clone().requires_grad_()
    law = net.law(output)
    (of_points,) = torch.autograd.grad(law.log_prob(draws).sum(), output)
    of_points = of_points[0]
    features = law.exponents[0] @ draws.log().T - law.family.log_root_norm[0][:, None]  # (n, S)
    made_by = (law.readout[0] @ (features.T + output[0]).exp().T).square()  # (m, S), ∝ p(row of the readout | point)
    row = torch.multinomial((made_by / made_by.sum(0)).T, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    terms = law.readout[0][row] * (features.T + output[0]).exp()  # θ_a ∘ ψ, (S, n)
    log_z = ((output[0].exp() @ law.family.matrix()[0]) * output[0].exp()).sum(-1).log()
    (of_pairs,) = torch.autograd.grad((2.0 * terms.sum(-1).abs().log() - log_z).sum(), output)
    of_pairs = of_pairs[0]
    closed = rows.information()[0, 0]
    products = of_pairs[:, :, None] * of_pairs[:, None, :]
    error = products.std(0) / n_draws**0.5
    assert ((products.mean(0) - closed).abs() <= 5.0 * error + 1e-9).all()  # one false alarm in 100,000
    excess = torch.linalg.eigvalsh(closed - of_points.T @ of_points / n_draws)
    assert excess.min() > -5.0 * error.max()  # a point alone never tells more
    if n_readouts == 1:
        assert excess.abs().max() < 5.0 * error.max() * len(closed)


@pytest.mark.slow
def test_the_sketch_keeps_inner_products_of_the_derivatives(monkeypatch):
    net, seen = small_net(3, n_members=2), torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()

    def root_of_law(head: torch.Tensor) -> torch.Tensor:  # (K, w + 1, n) -> (b, K, n)
        with_weights = torch.func.functional_call  # keeps the network as it is
        hidden = with_weights(net.backbone, {}, (seen,))
        output = torch.baddbmm(head[:, -1:], hidden, head[:, :-1])
        matrix = net.law(output).family.matrix()
        norm = ((output.exp() @ matrix) * output.exp()).sum(-1, keepdim=True)
        rows = NetworkRows.from_inputs(net, (seen,))
        return (output.exp() / norm.sqrt() @ rows.root.transpose(-1, -2)).transpose(0, 1)

    head = torch.cat([net.head_weight, net.head_bias], 1).detach()
    exact = torch.autograd.functional.jacobian(root_of_law, head).flatten(1)  # all numbers of one row side by side
    gram = 4.0 * exact @ exact.T / net.n_members
    model = _Holder(net)
    monkeypatch.setattr(FisherKernel, "WIDTH", 40_000)
    monkeypatch.setattr("snefy_ldl.active.kernels._encoded", lambda model, X: X)
    monkeypatch.setattr("snefy_ldl.active.kernels.network_inputs", lambda net, a, b, X, rows, *more: (seen[rows],))
    Z = torch.as_tensor(make_kernel("fisher", model, RandomState(0)).features(seen)).double()
    assert (Z @ Z.T - gram).abs().max() < 0.08 * gram.max()
    full = {name: value.detach() for name, value in net.named_parameters() if name[:4] in ("back", "head")}

    def root_by_all(*values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(full, values))
        part = {name.removeprefix("backbone."): value for name, value in given.items() if name.startswith("back")}
        hidden = torch.func.functional_call(net.backbone, part, (seen,))
        output = torch.baddbmm(given["head_bias"], hidden, given["head_weight"])
        matrix = net.law(output).family.matrix()
        norm = ((output.exp() @ matrix) * output.exp()).sum(-1, keepdim=True)
        rows = NetworkRows.from_inputs(net, (seen,))
        return (output.exp() / norm.sqrt() @ rows.root.transpose(-1, -2)).transpose(0, 1)

    parts = torch.autograd.functional.jacobian(root_by_all, tuple(full.values()))
    exact = torch.cat([part.flatten(3).flatten(1) for part in parts], 1)
    gram = 4.0 * exact @ exact.T / net.n_members
    monkeypatch.setattr(FisherKernel, "WIDTH", 1500)
    Z = torch.as_tensor(make_kernel("gradients", model, RandomState(0)).features(seen)).double()
    assert (Z @ Z.T - gram).abs().max() < 0.3 * gram.max()
    assert np.corrcoef((Z @ Z.T).ravel(), gram.ravel())[0, 1] > 0.98


class _Holder:
    """A network as a fitted model holds it."""

    guides_ = inputs_ = group_effects_ = None

    def __init__(self, net):
        self.net_ = net


@pytest.mark.slow
def test_trees_are_each_predictions_less_their_mean(guided, pool):
    kernel = make_kernel("trees", guided, RandomState(3))
    forest = next(one for one in guided.guides_.learners if isinstance(one, TreesLDL))
    predicted = forest.value_[forest.leaves(pool[:20], 100)]  # (trees, 20, L)
    projections = RandomState(3).standard_normal((100, 3, 96)) / np.sqrt(100 * 96)
    expected = np.einsum("tbl,tlw->bw", predicted - predicted.mean(0), projections)
    np.testing.assert_allclose(kernel.features(pool[:20]), expected, atol=1e-6)


@pytest.mark.slow
def test_members_are_compared_by_their_centred_logs(model, pool):
    Z = make_kernel("members", model, RandomState(0)).features(pool[:9]).reshape(9, 3, 3)
    logs = np.stack([one.mean.log().numpy() for one in model.predict_dist(pool[:9]).members()], 1)
    logs = logs - logs.mean(2, keepdims=True)
    np.testing.assert_allclose(Z, (logs - logs.mean(1, keepdims=True)) / 3**0.5, atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_have_the_features_of_the_whole(name, model, guided, pool, monkeypatch):
    monkeypatch.setattr(FisherKernel, "WIDTH", 12)
    kernel = make_kernel(name, model if name == "members" else guided, RandomState(0))
    whole = kernel.features(pool[:50])
    assert whole.dtype == np.float32
    np.testing.assert_allclose(
        np.concatenate([kernel.features(pool[:20]), kernel.features(pool[20:50])]), whole, atol=1e-5
    )


@pytest.mark.slow
def test_laplace_of_one_labelled_row_is_exact(guided, pool):
    laplace = Laplace(guided, pool[:1])
    known, new = next(NetworkRows.of(guided, pool[:1])), next(NetworkRows.of(guided, pool[1:2]))
    t, u = known.hidden[0, 0], new.hidden[0, 0]
    n = known.output.shape[-1]
    precision = torch.kron(torch.outer(t, t), known.information()[0, 0])
    covariance = torch.linalg.inv(precision + laplace.prior_precision[0] * torch.eye(len(precision)).double())
    pull = torch.kron(u[None], torch.eye(n).double())  # output = pull · weights
    expected = pull @ covariance @ pull.T
    torch.testing.assert_close(laplace.output_covariance(new)[0, 0], expected, rtol=1e-6, atol=1e-9)
    nats = 0.5 * np.trace(fisher_information(guided, pool[1:2])[0, 0] @ expected.numpy())
    np.testing.assert_allclose(laplace.nats(pool[1:2]), nats, rtol=1e-6)


def test_one_member_knows_less_far_from_its_rows(guided, city):
    laplace = Laplace(guided, city.X[:120])
    near, far = city.X[:40], city.X[:40] + 3.0 * city.X.std(0)
    assert laplace.nats(far).mean() > laplace.nats(near).mean() > 0.0
    variance = laplace.variance(near)
    assert variance.shape == (40,)
    assert (variance > 0.0).all()
    few = Laplace(guided, city.X[:10])
    assert few.variance(near).mean() > variance.mean()


def test_kernels_that_a_model_cannot_have_are_refused(guided, pool):
    with pytest.raises(InputError, match='use "auto"'):
        make_kernel("tree", guided, RandomState(0))
    for name, message in [("members", "n_members"), ("trees", "forest"), ("fisher", "SnefyLDL"), ("auto", "no forest")]:
        with pytest.raises(InputError, match=message):
            make_kernel(name, object(), RandomState(0))
    with pytest.raises(InputError, match="SnefyLDL"):
        Laplace(object(), pool)
