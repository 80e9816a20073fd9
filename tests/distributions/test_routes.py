"""Every route to a log density, held against the plain one on random laws.

The plain route is the definition: ``Σ_p c_p Dirichlet(ℓ; α_p)`` summed up with scipy. A new route goes into ROUTES.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from torch import Tensor

from laws import centred, mixture
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.kernels.pairs import SquaredLogDensity
from snefy_ldl.training.objectives import Gaps, Shares

Build = Callable[..., SnefySimplex]
ROWS, LABELS = 5, 4


def plain(law: SnefySimplex, points: Tensor) -> Tensor:
    """Log density (S, N) of the same points (S, L) for every row, by the definition."""
    alpha, weights = law.concentration.numpy(), law.weights().numpy()
    log_beta = gammaln(alpha).sum(1) - gammaln(alpha.sum(1))
    components = np.exp(np.log(points.numpy()) @ (alpha - 1.0).T - log_beta)  # (S, P)
    return torch.as_tensor(np.log(components @ weights.T))


def net_of(law: SnefySimplex) -> tuple[SnefyNet, Tensor]:
    """A network whose output at row i is the law's log scale, and those rows as features."""
    net = SnefyNet(StackedMLP(1, ROWS, ()), LABELS, law.exponents.shape[1], law.readout.shape[1]).double()
    net.set_exponents(0, law.exponents[0])
    with torch.no_grad():
        net.readout[0], net.head_weight[0] = law.readout[0], law.flat_log_scale[:, 0]
    return net, torch.eye(ROWS, dtype=torch.float64)


def by_objective(kind: type, law: SnefySimplex, points: Tensor) -> Tensor:
    """Training's likelihood: each row at each point."""
    net, X = net_of(law)
    table = points.repeat_interleave(ROWS, 0)  # point s for row i stands at s ROWS + i
    group = torch.zeros(1, dtype=torch.long)
    objective = kind(table.log()[None], net, group) if kind is Shares else kind([table], net, group)
    index = torch.arange(len(table))[None]
    with torch.no_grad():
        log_p = objective.log_prob(net, X.repeat(len(points), 1)[None], index)
    return log_p[0].reshape(len(points), ROWS)


def by_kernel(law: SnefySimplex, points: Tensor) -> Tensor:
    """The training kernel on its own."""
    scale = law.flat_log_scale[:, 0].repeat(len(points), 1)[None]
    logs = points.log().repeat_interleave(ROWS, 0)[None]
    log_p = SquaredLogDensity.apply(scale, law.exponents.double(), law.readout.double(), logs)
    return log_p[0].reshape(len(points), ROWS)


def quickly(law: SnefySimplex, points: Tensor) -> Tensor:
    logs = points.log()[None].expand(ROWS, -1, -1).contiguous()
    return law.rows.quick_log_prob(slice(0, ROWS), logs).T


def with_a_centre_of_ones(law: SnefySimplex, points: Tensor) -> Tensor:
    same = centred(law.exponents, law.readout, law.log_scale, torch.ones(LABELS))
    return same.log_prob(points[:, None])


ROUTES: dict[str, tuple[Callable[[SnefySimplex, Tensor], Tensor], float]] = {
    "the square, point by point": (lambda law, points: law.log_prob(points[:, None]), 1e-10),
    "the square, shared points": (lambda law, points: law.log_prob_at(points), 1e-10),
    "the sum of Dirichlets": (
        lambda law, points: mixture(law.weights(), law.concentration).log_prob(points[:, None]),
        1e-10,
    ),
    "with its envelope": (
        lambda law, points: law.rows.log_densities(slice(0, ROWS), points.log()[:, None].expand(-1, ROWS, -1), True)[0],
        1e-10,
    ),
    "sums in float32": (quickly, 1e-4),
    "shared draws in float32": (lambda law, points: law.shared_log_prob(points.log())(slice(0, ROWS)).T, 1e-4),
    "known parts, none unknown": (
        lambda law, points: torch.stack([law.log_prob_known(point.expand(ROWS, -1).numpy()) for point in points]),
        1e-10,
    ),
    "training on shares": (lambda law, points: by_objective(Shares, law, points), 1e-8),
    "training on shares with gaps": (lambda law, points: by_objective(Gaps, law, points), 1e-8),
    "the training kernel": (by_kernel, 1e-8),
    "a centre of ones": (with_a_centre_of_ones, 1e-9),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", list(ROUTES))
def test_every_route_is_the_plain_one(snefy: Build, name: str, seed: int) -> None:
    law = snefy(LABELS, n=6, m=3, batch=(ROWS,), concentration=(1.2, 12.0), seed=seed)
    positive = SnefySimplex(law.exponents[0], law.readout[0].abs(), law.log_scale[:, 0])  # float32 routes need it
    points = torch.distributions.Dirichlet(torch.full((LABELS,), 2.0, dtype=torch.float64)).sample((7,))
    route, tolerance = ROUTES[name]
    torch.testing.assert_close(
        route(positive, points).double(), plain(positive, points), rtol=tolerance, atol=tolerance
    )
