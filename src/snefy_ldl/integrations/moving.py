"""Means and variances of laws that move with their rows, as torch modules of plain operations.

Where guides give each row its own centre ``c(x)`` and odds of presence, rows no longer share their components, and
moments are integrals over ``y = log t`` of each row (:mod:`snefy_ldl.distributions.components`). The nodes are the
same for all rows here: they reach from the smallest to the largest centre that a mover can give.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from snefy_ldl._internal.special import pair_index
from snefy_ldl._internal.tolerances import LOG_ODDS_LIMIT
from snefy_ldl.distributions.components import integral_nodes
from snefy_ldl.integrations.components import Components
from snefy_ldl.integrations.guides import TreesGraph
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.guides import LOWEST_MEAN, LOWEST_PRESENCE, Mover

__all__ = ["MovingMoments", "MovingRows"]


#: Numbers per row that some components take at a time, where labels may be absent.
BLOCK_NUMBERS = 1 << 18


class MovingRows(nn.Module):
    """What a mover makes of rows: their centres ``log c``, and shifts ``b`` of the log odds of presence.

    ``log c`` is moved so that its largest is 0, which leaves the law as it is; ``b`` is 0 where all labels are there.

    Args:
        mover: fitted.
        n_labels: L.
    """

    weights: Tensor
    base: Tensor

    def __init__(self, mover: Mover, n_labels: int) -> None:
        super().__init__()
        self._n_labels, self._slope = n_labels, mover.slope
        self.register_buffer("weights", torch.as_tensor(mover.weights)[:, None])
        self.trees = None if mover.trees is None else TreesGraph(mover.trees)
        if mover.base is not None:
            self.register_buffer("base", torch.as_tensor(mover.base))

    def forward(self, seen: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Centred logs of the guides' shares (B, G L) and features (B, d) -> ``log c`` and ``b``, (B, L) each."""
        shares = torch.softmax(seen.unflatten(1, (-1, self._n_labels)), -1)  # (B, G, L)
        mean = torch.clamp((shares * self.weights).sum(1), min=LOWEST_MEAN / self._n_labels)
        mean = mean / mean.sum(1, keepdim=True)
        shift = torch.zeros_like(mean)
        if self.trees is not None:
            frequency = torch.sigmoid(self.base)
            chance = self.trees(x)[:, : self._n_labels] * self._n_labels
            low, high = 0.02 * frequency, 1.0 - 0.02 * (1.0 - frequency)
            chance = torch.where(chance < low, low, torch.where(chance > high, high, chance))
            shift = self._slope * (torch.log(chance) - torch.log(1.0 - chance) - self.base)
            mean = mean / torch.clamp(torch.sigmoid(self.base + shift), min=LOWEST_PRESENCE)
        log_centre = torch.log(mean)
        return log_centre - log_centre.amax(1, keepdim=True), shift


class MovingMoments(nn.Module):
    """Mean and variance of laws that have a centre, and odds of presence, of their own in each row.

    Args:
        net: fitted, on the CPU.
        parts: its components, without moves.
    """

    first: Tensor
    second: Tensor
    diagonal: Tensor
    gram: Tensor
    alpha: Tensor
    log_odds: Tensor
    kernel: Tensor
    share: Tensor
    nodes: Tensor
    steps: Tensor

    def __init__(self, net: SnefyNet, parts: Components) -> None:
        super().__init__()
        n_members, n, n_labels = net.raw_exponents.shape
        i, j = (index.cpu() for index in pair_index(n))
        alpha = parts.law.concentration.detach()[parts.kept]  # (C, L), a background last in each member
        odds = parts.log_odds()
        readout = net.readout.detach().double()
        gram = (readout.transpose(1, 2) @ readout)[:, i, j] * torch.where(i == j, 1.0, 2.0)
        self._background, self._presence = len(alpha) > n_members * len(i), odds is not None
        self._n_members = n_members
        smallest = math.log(LOWEST_MEAN / n_labels) + (math.log(LOWEST_PRESENCE) if self._presence else 0.0) - 1.0
        ends = torch.tensor([[smallest], [0.0]], dtype=torch.float64).expand(2, n_labels)
        nodes, steps = integral_nodes(alpha, ends)
        size = max(1, BLOCK_NUMBERS // (n_labels * len(nodes)))
        self._blocks = [slice(start, min(start + size, len(alpha))) for start in range(0, len(alpha), size)]
        tables: dict[str, Any] = {
            "first": i,
            "second": j,
            "diagonal": torch.nonzero(i == j).flatten(),
            "gram": gram[:, None],  # (K, 1, P)
            "kernel": torch.as_tensor(parts.kernel()).reshape(n_members, -1)[:, None, : len(i)],
            "alpha": alpha,
            "share": torch.sigmoid(net.log_odds.double())[:, None, None],  # of the background
            "nodes": nodes,
            "steps": steps,
        }
        if odds is not None:
            tables["log_odds"] = odds
        for name, table in tables.items():
            self.register_buffer(name, table.clone())

    def _weights(self, scale: Tensor, log_norm: Tensor | None) -> Tensor:
        """Weights of all components (B, C); with presence, ``log_norm`` is that of the network's pairs (K, B, P)."""
        terms = torch.index_select(scale, 2, self.first) + torch.index_select(scale, 2, self.second)
        if log_norm is None:
            signed = torch.exp(terms - terms.amax(-1, keepdim=True)) * self.kernel
        else:
            half = 0.5 * torch.index_select(log_norm, 2, self.diagonal)
            terms = (
                terms + log_norm - torch.index_select(half, 2, self.first) - torch.index_select(half, 2, self.second)
            )
            signed = torch.exp(terms - terms.amax(-1, keepdim=True)) * self.gram
        weights = signed / signed.sum(-1, keepdim=True) * ((1.0 - self.share) / self._n_members)
        if self._background:
            weights = torch.cat([weights, (self.share / self._n_members).expand(-1, weights.shape[1], -1)], 2)
        return weights.permute(1, 0, 2).flatten(1)

    def forward(self, scale: Tensor, log_centre: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Scales of neurons (K, B, n), ``log c`` and ``b`` (B, L) -> mean and variance (B, L), float64."""
        at = log_centre[:, :, None] + self.nodes  # (B, L, Q)
        log1p, part = _softplus(at), torch.sigmoid(at)
        if not self._presence:
            weights = self._weights(scale, None)
            # Σ_p w_p α_p Π_r (1 + c_r t)^{-α_pr}: products over labels are one matrix product
            phi = torch.exp(-(log1p.transpose(1, 2) @ self.alpha.T)) * weights[:, None]  # (B, Q, C)
            first = ((phi @ self.alpha).transpose(1, 2) * part) @ self.steps
            second = ((phi @ (self.alpha * (self.alpha + 1.0))).transpose(1, 2) * part * part) @ self.steps
            return first, torch.clamp(second - first * first, min=0.0)
        odds = torch.clamp(self.log_odds + shift[:, None], -LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)  # (B, C, L)
        log_absent = -_softplus(odds)
        none_there = log_absent.sum(2)  # (B, C)
        pairs = none_there.unflatten(1, (self._n_members, -1)).permute(1, 0, 2)[..., : len(self.first)]
        weights = self._weights(scale, -pairs + torch.log(1.0 - torch.exp(pairs)))
        weights = weights / (1.0 - torch.exp(none_there))
        there, absent = torch.sigmoid(odds), torch.sigmoid(-odds)
        alone = torch.exp(none_there[..., None] - log_absent)
        by_itself = (weights[..., None] * there * alone).sum(1)
        first, second = by_itself, by_itself
        log1p, part = log1p[:, None], part[:, None]
        for some in self._blocks:
            alpha = self.alpha[some]
            present = torch.exp(-alpha[..., None] * log1p) * there[:, some, :, None]  # (B, some, L, Q)
            either = present + absent[:, some, :, None]
            rest = torch.prod(either, 2, keepdim=True) / either - alone[:, some, :, None]
            inside = present * rest * part * self.steps
            rising = weights[:, some, None] * alpha
            first = first + (rising * inside.sum(3)).sum(1)
            second = second + (rising * (alpha + 1.0) * (inside * part).sum(3)).sum(1)
        return first, torch.clamp(second - first * first, min=0.0)


def _softplus(x: Tensor) -> Tensor:
    """``log(1 + e^x)``, of operations that every runtime has in float64."""
    return torch.clamp(x, min=0.0) + torch.log(1.0 + torch.exp(-torch.abs(x)))
