"""A log-ratio distribution from what is published of shares: their means and quantiles."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import helmert
from scipy.stats import qmc
from torch import Tensor

#: Quasi-random normal points, nodes of a quadrature where one dimension is left, and most steps of the search.
POINTS, NODES, STEPS = 128, 20, 20
#: Step of the finite differences, and levels that probabilities keep from 0 and 1.
DIFFERENCE, SMALLEST_LEVEL = 1e-4, 1e-9
#: Rows whose squared errors fall by less than this part are done.
PROGRESS = 1e-4


def fit_normals(means: Tensor | None, quantiles: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Location (N, P) and factor (N, P, P) of normal log-ratios, by least squares for all rows at once.

    Errors are those of the probits of ``P(ℓ_r <= quantile)`` and of the logits of means. One normal number, along which
    the balance of label r against the rest moves, is integrated out of each probability; the others, and means, take
    fixed quasi-random points, so that errors are smooth in the parameters (Levenberg and Marquardt's method).

    Args:
        means: expected shares (N, L), or None.
        quantiles: of every share (N, L, A), strictly between 0 and 1.
        levels: of the quantiles (A,).

    Example:
        >>> even = torch.tensor([[[0.2, 0.5, 0.8]] * 2]).double()
        >>> location, factor = fit_normals(None, even, torch.tensor([0.05, 0.5, 0.95]).double())
        >>> bool(location.abs().max() < 1e-6), float(factor.abs().round(decimals=2))  # log 4 / 1.645 / √2
        (True, 0.6)
    """
    n_labels = quantiles.shape[1]
    p, basis = n_labels - 1, torch.as_tensor(helmert(n_labels))  # B (P, L)
    points = torch.special.ndtri(torch.as_tensor(qmc.Sobol(p, seed=0).random(POINTS)))  # (S, P)
    own, weights = points[:, : p - 1], torch.full((POINTS,), 1.0 / POINTS).double()
    if p == 2:
        nodes, weights = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(NODES))
        own, weights = nodes[:, None], weights / weights.sum()
    lower, smaller = torch.tril_indices(p, p), torch.as_tensor(helmert(p)) if p > 1 else torch.zeros(0, 1).double()
    logits, probits = torch.logit(quantiles), torch.special.ndtri(levels)

    def parameters(theta: Tensor) -> tuple[Tensor, Tensor]:
        factor = theta.new_zeros(len(theta), p, p)
        factor[:, lower[0], lower[1]] = theta[:, p:]
        return theta[:, :p], factor

    def errors(theta: Tensor, rows: Tensor) -> Tensor:
        location, factor = parameters(theta)
        parts = []
        for r in range(n_labels):
            turn = basis.new_zeros(p, n_labels)  # contrasts among the rest, then the balance of r against it
            rest = [k for k in range(n_labels) if k != r]
            turn[: p - 1, rest] = smaller
            turn[-1], turn[-1, r] = -1.0 / math.sqrt(n_labels * p), math.sqrt(p / n_labels)
            turn = turn @ basis.T
            mean, half = location @ turn.T, turn @ factor
            chol = torch.linalg.cholesky(half @ half.transpose(1, 2) + 1e-10 * torch.eye(p).to(half))
            others = (mean[:, None, : p - 1] + own @ chol[:, : p - 1, : p - 1].transpose(1, 2)) @ smaller
            ends = (logits[rows, r, None] + torch.logsumexp(others, -1)[..., None]) * math.sqrt(
                p / n_labels
            )  # (N, S, A)
            middle = mean[:, -1:] + (own @ chol[:, -1, : p - 1, None])[..., 0]
            chance = weights @ torch.special.ndtr((ends - middle[..., None]) / chol[:, -1:, -1:])
            parts.append(torch.special.ndtri(chance.clamp(SMALLEST_LEVEL, 1.0 - SMALLEST_LEVEL)) - probits)
        answer = torch.cat(parts, 1)
        if means is not None:
            shares = torch.softmax((location[:, None] + points @ factor.transpose(1, 2)) @ basis, -1).mean(1)
            answer = torch.cat([answer, torch.logit(shares) - torch.logit(means[rows])], 1)
        return answer

    low, high, middle = (int(one) for one in (levels.argmin(), levels.argmax(), (levels - 0.5).abs().argmin()))
    spread = (logits[..., high] - logits[..., low]).mean(1) / (probits[high] - probits[low]) / math.sqrt(2.0)
    start = torch.eye(p).double()[lower[0], lower[1]]
    theta = torch.cat([quantiles[..., middle].log() @ basis.T, spread[:, None] * start], 1)
    rows = torch.arange(len(theta))  # those that are not done
    gap, damping = errors(theta, rows), theta.new_full((len(theta),), 1e-2)
    moves = DIFFERENCE * torch.eye(theta.shape[1]).double()
    for _ in range(STEPS):
        at, before = theta[rows], gap[rows]
        slopes = torch.stack([(errors(at + move, rows) - before) / DIFFERENCE for move in moves], -1)  # (N, E, T)
        inner = slopes.transpose(1, 2) @ slopes
        size = torch.diag_embed(damping[rows, None] * (torch.diagonal(inner, dim1=1, dim2=2) + 1e-6))
        tried = at - torch.linalg.solve(inner + size, slopes.transpose(1, 2) @ before[..., None])[..., 0]
        new = errors(tried, rows)
        gain = 1.0 - new.square().sum(1) / before.square().sum(1).clamp_min(1e-12)
        better = gain > 0.0
        theta[rows[better]], gap[rows[better]] = tried[better], new[better]
        damping[rows] = torch.where(better, damping[rows] / 5.0, damping[rows] * 5.0)
        rows = rows[(gain > PROGRESS) | (gain < -PROGRESS)]
        if not len(rows):
            break
    return parameters(theta)
