"""Likelihoods without gradients, a bounded number of rows at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.limits import BACKBONE_ROWS, EVALUATION_ROWS
from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.rows import gather_rows


@torch.no_grad()
def evaluate(net: SnefyNet, X: Any, objective: Objective, index: Tensor) -> Tensor:
    """Log likelihood of some rows under each member.

    Args:
        net: K members; its mode is left as it was.
        X: features of all rows.
        objective: what to explain.
        index: row numbers (K, B).

    Returns:
        (K, B).
    """
    training = net.training
    net.eval()
    parts = []
    step = BACKBONE_ROWS if isinstance(net.backbone, CustomBackbone) else EVALUATION_ROWS
    for start in range(0, index.shape[1], step):
        rows = index[:, start : start + step]
        parts.append(objective.log_prob(net, gather_rows(net, X, rows), rows))
    net.train(training)
    return torch.cat(parts, 1)
