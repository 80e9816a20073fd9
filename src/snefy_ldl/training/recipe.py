"""What an epoch is made of: the recipe with its learning rates, seeds, and the order of the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from snefy_ldl._random import derive_seed


@dataclass(frozen=True)
class Recipe:
    """How to train: everything about the optimiser.

    Args:
        epochs: passes over the training rows.
        batch_size: rows a step.
        learning_rate: the peak rate.
        exponent_rate: the exponents' rate in units of ``learning_rate``; they live on a log scale and must travel far.
        weight_decay: AdamW's, on the network's matrices only.
        schedule: ``"one_cycle"`` (warm up, then cosine to zero) or ``"constant"``.
        patience: epochs without a better validation likelihood before a member stops; None never stops early.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    exponent_rate: float = 20.0
    weight_decay: float = 0.0
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    patience: int | None = None
    warm_up: float = 0.3

    def rate(self, progress: float) -> float:
        """Share of the peak rate at ``progress`` in [0, 1)."""
        if self.schedule == "constant":
            return 1.0
        if progress < self.warm_up:
            return max(0.04, progress / self.warm_up)
        return max(1e-3, 0.5 * (1.0 + math.cos(math.pi * (progress - self.warm_up) / (1.0 - self.warm_up))))


def shuffles(seeds: Sequence[int], epoch: int, n: int, device: torch.device) -> Tensor:
    """A permutation of n rows for each seed (K, n), the same on every device and in every stack.

    Rows are sorted by a hash (SplitMix64) of seed, epoch and row, in one vectorised computation.
    """
    mixed = [_signed(derive_seed(seed, 1, epoch)) for seed in seeds]
    keys = torch.tensor(mixed, device=device)[:, None] + torch.arange(n, device=device) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ ((keys >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return keys.argsort(dim=1, stable=True)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
