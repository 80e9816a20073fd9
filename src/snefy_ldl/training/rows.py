"""Rows of an epoch: their order, and their features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures


def gather_rows(net: SnefyNet, X: Any, index: Tensor) -> Any:
    """Features of each member's rows, in the form the backbone takes.

    Args:
        net: K members.
        X: features of all rows.
        index: row numbers (K, B).

    Returns:
        What ``net.output`` takes.
    """
    if isinstance(net.backbone, CustomBackbone):
        if net.backbone.shared:  # members of one backbone see the same rows
            index = index[:1]
        if isinstance(X, Objects):
            return MemberBatches(move_rows(X.batch(rows), net.readout.device) for rows in index)
        return MemberBatches(take_rows(X, rows) for rows in index)
    return X.rows(index) if isinstance(X, ScaledFeatures) else X[index]


def shuffles(seeds: Sequence[int], epoch: int, n: int, device: torch.device) -> Tensor:
    """A permutation of n rows for each seed (K, n), the same on every device and in every stack.

    Rows are sorted by a hash (SplitMix64) of seed, epoch and row, in one vectorised computation.

    Args:
        seeds: one a member (K).
        epoch: which pass.
        n: rows.
        device: where.

    Returns:
        Row numbers (K, n).

    Example:
        >>> shuffles([3], 0, 4, torch.device("cpu")).sort().values
        tensor([[0, 1, 2, 3]])
    """
    mixed = [_signed(derive_seed(seed, 1, epoch)) for seed in seeds]
    keys = torch.tensor(mixed, device=device)[:, None] + torch.arange(n, device=device) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ ((keys >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return keys.argsort(dim=1, stable=True)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
