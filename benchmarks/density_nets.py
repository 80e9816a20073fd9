"""Densities with a network's parameters: ``dist(x, y)`` is a log density in their coordinates, ``draw(x, n)`` draws.

Each is made from the rows it will learn from (to start near them) and a size out of ``SIZES``. ``y`` holds standardised
log-ratios, log shares (:class:`DirichletMixture`) or shares with their zeros (:class:`WithZeros`).
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.distributions import Dirichlet
from torch.nn.functional import logsigmoid

LOG_CONCENTRATION = (-7.0, 14.0)
#: A standardised coordinate is predicted with a standard deviation of at least exp(-7).
LOG_SCALE = 7.0


def mlp(inputs, hidden, outputs, quiet=0.1):
    """A network whose last layer starts small, so that the bias says where the distribution starts."""
    layers, width = [], inputs
    for size in hidden:
        layers += [nn.Linear(width, size), nn.SiLU()]
        width = size
    last = nn.Linear(width, outputs)
    with torch.no_grad():
        last.weight.mul_(quiet)
        last.bias.zero_()
    return nn.Sequential(*layers, last)


def pick(rows, n, blend=0.5):
    """n rows blended with the average, as starting points of components."""
    centre = rows.mean(0)
    if n == 1:
        return centre[None]
    return centre + blend * (rows[torch.randint(len(rows), (n,))] - centre)


def draw_components(logits, n):
    """Components (n, N) drawn from weights (N, K)."""
    return torch.multinomial(logits.softmax(-1), n, replacement=True).T


class DirichletMixture(nn.Module):
    """K Dirichlets whose weights and concentrations are a network's."""

    #: components and hidden layers
    SIZES = ((1, (64,)), (4, (64,)), (8, (64, 64)))

    def __init__(self, x, y, size):
        super().__init__()
        self.k, self.n_labels = size[0], y.shape[1]
        self.net = mlp(x.shape[1], size[1], self.k * (1 + self.n_labels))
        D = y.exp()
        total = ((D.mean(0) * (1 - D.mean(0))).sum() / D.var(0).sum() - 1.0).clamp(1.0, 1e4)
        with torch.no_grad():
            self.net[-1].bias[self.k :] = (total * pick(D, self.k)).log().flatten()

    def params(self, x):
        out = self.net(x)
        log_alpha = out[:, self.k :].reshape(-1, self.k, self.n_labels).clamp(*LOG_CONCENTRATION)
        return out[:, : self.k].log_softmax(-1), log_alpha.double().exp()

    def forward(self, x, y):
        weights, alpha = self.params(x)
        value = ((alpha - 1) * y[:, None].double()).sum(-1) + alpha.sum(-1).lgamma() - alpha.lgamma().sum(-1)
        return torch.logsumexp(weights + value, -1)

    def draw(self, x, n):
        weights, alpha = self.params(x)
        chosen = draw_components(weights, n)
        return Dirichlet(alpha[torch.arange(len(x)), chosen].clamp(min=1e-3)).sample()

    def mean(self, x):
        weights, alpha = self.params(x)
        return (weights.exp()[..., None] * alpha / alpha.sum(-1, keepdim=True)).sum(1)


class LogisticNormals(nn.Module):
    """K Gaussians on ILR with full covariances: the Cholesky factor of each precision is a network's."""

    #: components, hidden layers, whether the factor's off-diagonal entries depend on x
    SIZES = ((1, (64,), True), (4, (64,), False), (8, (64, 64), True))

    def __init__(self, x, y, size):
        super().__init__()
        self.k, hidden, self.moving = size
        self.d = y.shape[1]
        self.rows, self.columns = torch.tril_indices(self.d, self.d, -1)
        pairs = self.k * len(self.rows)
        self.net = mlp(x.shape[1], hidden, self.k * (1 + 2 * self.d) + (pairs if self.moving else 0))
        covariance = torch.cov(y.T.double()).reshape(self.d, self.d) + 1e-3 * torch.eye(self.d)
        factor = torch.linalg.cholesky(torch.linalg.inv(covariance)).mT  # upper: z = factor (y - mean)
        self.pairs = nn.Parameter(factor.T[self.rows, self.columns].float().repeat(self.k, 1))
        with torch.no_grad():
            bias = self.net[-1].bias
            bias[self.k : self.k * (1 + self.d)] = pick(y, self.k).flatten()
            bias[self.k * (1 + self.d) : self.k * (1 + 2 * self.d)] = factor.diagonal().log().float().repeat(self.k)

    def params(self, x):
        k, d = self.k, self.d
        out = self.net(x)
        mean, log_diagonal = (part.reshape(-1, k, d) for part in out[:, k : k * (1 + 2 * d)].split(k * d, 1))
        log_diagonal = log_diagonal.clamp(-LOG_SCALE, LOG_SCALE)
        off = self.pairs.expand(len(x), -1, -1)
        if self.moving:
            off = off + out[:, k * (1 + 2 * d) :].reshape(off.shape)
        upper = torch.diag_embed(log_diagonal.exp())
        upper[..., self.columns, self.rows] = off
        return out[:, :k].log_softmax(-1), mean, upper, log_diagonal

    def forward(self, x, y):
        weights, mean, upper, log_diagonal = self.params(x)
        z = (upper @ (y[:, None] - mean)[..., None])[..., 0]
        value = -0.5 * z.square().sum(-1) + log_diagonal.sum(-1) - 0.5 * self.d * math.log(2 * math.pi)
        return torch.logsumexp(weights + value, -1)

    def draw(self, x, n):
        weights, mean, upper, _ = self.params(x)
        chosen, rows = draw_components(weights, n), torch.arange(len(x))
        noise = torch.randn(n, len(x), self.d, 1)
        return mean[rows, chosen] + torch.linalg.solve_triangular(upper[rows, chosen], noise, upper=True)[..., 0]


class ZukoMixture(nn.Module):
    """zuko's conditional Gaussian mixture on ILR, started by its own clustering if that succeeds."""

    #: components, kind of covariance, the same covariance in every component
    SIZES = ((2, "full", False), (4, "full", True), (8, "diagonal", False))

    def __init__(self, x, y, size):
        from zuko.mixtures import GMM

        super().__init__()
        components, kind, tied = size
        self.dist = GMM(y.shape[1], x.shape[1], components, kind, tied, hidden_features=(64,))
        backup = copy.deepcopy(self.dist.state_dict())
        try:
            self.dist.initialize(y, "kmeans")
            if not torch.isfinite(self(x, y)).all():
                raise ValueError("a cluster without a covariance")
        except (RuntimeError, ValueError, AssertionError):
            self.dist.load_state_dict(backup)

    def forward(self, x, y):
        return self.dist(x).log_prob(y)

    def draw(self, x, n):
        return self.dist(x).sample((n,))


class SplineFlow(nn.Module):
    """zuko's neural spline flow on ILR; more than 64 features are first brought to 32 by a network trained with it."""

    #: transformations and their hidden layers
    SIZES = ((1, (32,)), (2, (64,)), (3, (64, 64)))

    def __init__(self, x, y, size):
        from zuko.flows import NSF

        super().__init__()
        wide, self.n_ratios = x.shape[1] > 64, y.shape[1]
        self.embed = mlp(x.shape[1], (64,), 32, quiet=1.0) if wide else nn.Identity()
        self.dist = NSF(y.shape[1], 32 if wide else x.shape[1], transforms=size[0], hidden_features=size[1])

    def forward(self, x, y):
        return self.dist(self.embed(x)).log_prob(y)

    def draw(self, x, n):
        context = self.embed(x).repeat(n, 1)
        value = torch.randn(len(context), self.n_ratios)
        for layer in reversed(list(self.dist.transform.transforms)):
            value = invert(layer, value, context)
        return value.reshape(n, len(x), -1)


def invert(layer, y, context):
    """The inverse of an autoregressive layer, a coordinate at a time.

    zuko inverts every coordinate in every pass, which costs L-1 times as much; with 512 draws per row that is minutes.
    """
    *body, last = layer.hyper
    weight = (last.mask * last.weight).unflatten(0, (-1, layer.total))
    bias = last.bias.unflatten(0, (-1, layer.total))
    value = torch.zeros_like(y)
    for i in layer.order.argsort().tolist():
        hidden = torch.cat([value, context], -1)
        for module in body:
            hidden = module(hidden)
        parts = nn.functional.linear(hidden, weight[i], bias[i]).split([math.prod(s) for s in layer.shapes], -1)
        value[:, i] = layer.univariate(*parts).inv(y[:, i])
    return value


class WithZeros(nn.Module):
    """K components, each a presence of every label (independent, if one is there) and a density of those present.

    The density is a Dirichlet restricted to the present labels, or normalised log-normals: ``g_r = exp N(m_r, s_r²)``
    closed over the present labels, which is a logistic normal on every face. Targets hold shares, zeros as they are.
    """

    SIZES = DirichletMixture.SIZES
    kind = "dirichlet"

    def __init__(self, x, y, size):
        super().__init__()
        self.k, self.n_labels = size[0], y.shape[1]
        self.net = mlp(x.shape[1], size[1], self.k * (1 + 3 * self.n_labels))
        there = (y > 0).float()
        often = (there.mean(0)).clamp(0.01, 0.99)
        centre = y.sum(0) / there.sum(0).clamp(min=1)
        logs = torch.where(y > 0, y, centre).log()
        with torch.no_grad():
            bias = self.net[-1].bias[self.k :].view(3, self.k, self.n_labels)
            bias[0] = often.logit()
            bias[1] = pick(logs, self.k) + (0.0 if self.kind == "normal" else math.log(10.0))
            bias[2] = -logs.std(0).clamp(min=0.1).log()

    def params(self, x):
        out = self.net(x)
        odds, place, precision = out[:, self.k :].reshape(-1, 3, self.k, self.n_labels).unbind(1)
        return out[:, : self.k].log_softmax(-1), odds, place.clamp(-20, 14), precision.clamp(-4, 7)

    def forward(self, x, y):
        weights, odds, place, precision = self.params(x)
        there = (y > 0)[:, None]
        nobody = logsigmoid(-odds).sum(-1).clamp(max=-1e-6)
        presence = torch.where(there, logsigmoid(odds), logsigmoid(-odds)).sum(-1) - torch.log(-torch.expm1(nobody))
        logs = torch.where(y > 0, y, 1.0).log()[:, None]
        if self.kind == "dirichlet":
            alpha = place.clamp(*LOG_CONCENTRATION).double().exp()
            terms = torch.where(there, (alpha - 1) * logs - alpha.lgamma(), 0.0).sum(-1)
            dist = terms + torch.where(there, alpha, 0.0).sum(-1).lgamma()
        else:
            # Independent Gaussians of log g, with the common factor of all g integrated out.
            w = torch.where(there, (2 * precision).exp(), 0.0)
            total, gap = w.sum(-1), logs - place
            square = (w * gap.square()).sum(-1) - (w * gap).sum(-1).square() / total
            size = there.sum(-1)
            dist = torch.where(there, precision - logs, 0.0).sum(-1) - 0.5 * (square + total.log())
            dist = dist - 0.5 * (size - 1) * math.log(2 * math.pi)
        return torch.logsumexp(weights + presence + dist, -1)

    def draw(self, x, n):
        weights, odds, place, precision = self.params(x)
        chosen, rows = draw_components(weights, n), torch.arange(len(x))
        odds, place, precision = odds[rows, chosen], place[rows, chosen], precision[rows, chosen]
        there = torch.rand_like(odds) < odds.sigmoid()
        while (empty := ~there.any(-1)).any():
            there[empty] = torch.rand_like(odds[empty]) < odds[empty].sigmoid()
        if self.kind == "dirichlet":
            logs = torch._standard_gamma(place.double().exp().clamp(min=1e-3)).clamp(min=1e-300).log()
        else:
            logs = (place + torch.randn_like(place) * (-precision).exp()).double()
        return torch.where(there, logs, -torch.inf).softmax(-1)


class LogNormalsWithZeros(WithZeros):
    """The logistic normals of :class:`WithZeros`."""

    kind = "normal"
