"""AdamW in one call of torch's fused kernel: importing ``torch.optim`` takes a second, and its hooks cost more here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class Adam:
    """Updates groups of parameters, each with a rate and a weight decay.

    Args:
        groups: parameters, rate and decay of each group.
        betas: decays of both moments.

    Attributes:
        state: both moments and the number of steps of every parameter.
        before_step: called before every update, where workers exchange their gradients; None calls nothing.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> adam = Adam([([x], 0.1, 0.0)])
        >>> (x**2).sum().backward()
        >>> adam.step()
        >>> x.detach(), x.grad is None
        (tensor([0.9000]), True)
    """

    def __init__(
        self, groups: Iterable[tuple[Iterable[Tensor], float, float]], betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.groups, self.betas = [(list(params), rate, decay) for params, rate, decay in groups], betas
        self.before_step: Callable[[], None] | None = None
        self.state: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {
            p: (torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device=p.device))
            for params, _, _ in self.groups
            for p in params
        }

    @torch.no_grad()
    def step(self, share: float | Tensor = 1.0) -> None:
        """One update of every parameter that has a gradient, which is then forgotten.

        Args:
            share: of each group's rate; a tensor where the step is captured for a GPU.
        """
        if self.before_step is not None:
            self.before_step()
        for params, rate, decay in self.groups:
            params = [p for p in params if p.grad is not None]
            if params:
                self._update(params, share * rate, decay)
            for p in params:
                p.grad = None

    def _update(self, params: list[Tensor], rate: float | Tensor, decay: float) -> None:
        first, second, counts = (list(values) for values in zip(*(self.state[p] for p in params)))
        torch._foreach_add_(counts, 1.0)
        torch._fused_adamw_(
            params, gradients(params), first, second, [], counts, lr=rate, beta1=self.betas[0],
            beta2=self.betas[1], weight_decay=decay, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


class SGD(Adam):
    """Gradient descent without momentum, one of the readings of the paper's recipe."""

    def _update(self, params: list[Tensor], rate: float | Tensor, decay: float) -> None:
        for param, gradient in zip(params, gradients(params)):
            param.sub_(rate * gradient)


def gradients(params: list[Tensor]) -> list[Tensor]:
    """Of the parameters that have one."""
    return [p.grad for p in params if p.grad is not None]


def one_cycle(progress: float, warm_up: float = 0.3) -> float:
    """Share of the peak rate at ``progress`` in [0, 1): a linear warm-up, then a cosine to zero.

    Example:
        >>> [round(one_cycle(p), 2) for p in (0.0, 0.15, 0.3, 0.65)]
        [0.04, 0.5, 1.0, 0.5]
    """
    if progress < warm_up:
        return max(0.04, progress / warm_up)
    return max(1e-3, 0.5 * (1.0 + math.cos(math.pi * (progress - warm_up) / (1.0 - warm_up))))
