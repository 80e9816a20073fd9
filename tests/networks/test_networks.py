"""Networks: members, starting points and scaling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from snefy_ldl.networks.backbones import StackedMLP, column_moments, scaling_of
from snefy_ldl.networks.net import SnefyNet, fit_dirichlet, label_concentration, prototype_init


def test_prototype_start_sits_at_the_data():
    D = torch.distributions.Dirichlet(torch.tensor([4.0, 8.0, 28.0]).double()).sample((3000,))
    assert label_concentration(D) == pytest.approx(40.0, rel=0.1)
    net = SnefyNet(StackedMLP(1, 2, (4,)), 3)
    prototype_init(net, 0, D, torch.Generator().manual_seed(0))
    alpha = 1.0 + 2.0 * net.exponents[0].detach().double()
    shares = alpha / alpha.sum(-1, keepdim=True)
    assert torch.allclose(shares.mean(0), D.mean(0), atol=0.05)
    assert alpha.sum(-1).min() > 20


def test_dirichlet_fit_finds_the_maximum():
    D = torch.from_numpy(np.random.default_rng(0).dirichlet([0.4, 2.0, 7.0], 500))
    alpha = fit_dirichlet(D)
    torch.testing.assert_close(torch.digamma(alpha) - torch.digamma(alpha.sum()), D.log().mean(0), rtol=1e-8, atol=1e-8)


def test_scaling():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(5, 2, 500), rng.normal(0, 1e-6, 500), np.full(500, 7.0)])
    for kind in ("unit", "pooled"):
        centre, scale, limit = scaling_of(*column_moments(X), kind)
        scaled = (X - centre.numpy()) / scale.numpy()
        assert np.isfinite(scaled).all()
        assert limit < 10
        assert scaled[:, 0].std() == pytest.approx(1.0 if kind == "unit" else 1 / np.sqrt(4 / 3), rel=0.01)
    assert scaling_of(*column_moments(X), "pooled")[1][1] > 1.0, "a tiny spread stays tiny"
