"""AdamW in one call of torch's fused kernel: importing ``torch.optim`` takes a second, and its hooks cost more here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Adam:
    """Updates groups of parameters, each with a rate and a weight decay.

    Args:
        groups: parameters of each group, and the decay of these.
        betas: decays of both moments.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> adam = Adam([([x], 0.0)])
        >>> (x**2).sum().backward()
        >>> adam.step([0.1])
        >>> x.detach(), x.grad is None
        (tensor([0.9000]), True)
    """

    def __init__(
        self, groups: Sequence[tuple[Sequence[Tensor], float]], betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.groups, self.betas = [(list(params), decay) for params, decay in groups], betas
        self.moments = [
            (
                [torch.zeros_like(p) for p in params],
                [torch.zeros_like(p) for p in params],
                [torch.zeros(()) for _ in params],
            )
            for params, _ in self.groups
        ]

    @torch.no_grad()
    def step(self, rates: Sequence[float]) -> None:
        """One update, after which gradients are forgotten.

        Args:
            rates: of every group.
        """
        gradients = [
            [p.grad if p.grad is not None else torch.zeros_like(p) for p in params] for params, _ in self.groups
        ]
        for (params, decay), group, moments, rate in zip(self.groups, gradients, self.moments, rates):
            first, second, counts = moments
            torch._foreach_add_(counts, 1.0)
            torch._fused_adamw_(
                params, group, first, second, [], counts, lr=rate, beta1=self.betas[0], beta2=self.betas[1],
                weight_decay=decay, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
            for p in params:
                p.grad = None


def one_cycle(progress: float, warm_up: float = 0.3) -> float:
    """Share of the peak rate at ``progress`` in [0, 1): a linear warm-up, then a cosine to zero.

    Example:
        >>> [round(one_cycle(p), 2) for p in (0.0, 0.15, 0.3, 0.65)]
        [0.04, 0.5, 1.0, 0.5]
    """
    if progress < warm_up:
        return max(0.04, progress / warm_up)
    return max(1e-3, 0.5 * (1.0 + math.cos(math.pi * (progress - warm_up) / (1.0 - warm_up))))
