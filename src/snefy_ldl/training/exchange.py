"""What workers that train one model together tell each other: sums of gradients, losses and running statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, distributed

__all__ = ["Exchange", "ProcessGroup"]


class Exchange(Protocol):
    """Workers that hold the same net and different rows.

    Attributes:
        n_workers: how many there are.
    """

    n_workers: int

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over all workers; each worker calls it at the same place.

        Args:
            tensors: of the same shapes everywhere.
        """


class ProcessGroup:
    """The workers of torch's process group, which must be there: gloo between processors, nccl between GPUs.

    Attributes:
        n_workers: how many there are.
    """

    def __init__(self) -> None:
        self.n_workers = distributed.get_world_size()
        self._messages: dict[tuple[object, ...], tuple[Tensor, list[Tensor]]] = {}

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """See :meth:`Exchange.average`; all tensors of one kind travel in one message."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for group in kinds.values():
            message, parts = self._message(group)
            torch._foreach_copy_(parts, group)
            distributed.all_reduce(message)
            message /= self.n_workers
            torch._foreach_copy_(group, parts)

    def _message(self, group: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One vector for tensors of one kind, used again at every step, and its parts in their shapes."""
        key = (group[0].dtype, group[0].device, *(tensor.shape for tensor in group))
        if key not in self._messages:
            sizes = [tensor.numel() for tensor in group]
            message = torch.empty(sum(sizes), dtype=group[0].dtype, device=group[0].device)
            parts = [part.view(tensor.shape) for part, tensor in zip(message.split(sizes), group)]
            self._messages[key] = message, parts
        return self._messages[key]
