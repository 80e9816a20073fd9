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

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """See :meth:`Exchange.average`; all tensors of one kind travel in one message."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for group in kinds.values():
            message = torch.cat([tensor.reshape(-1) for tensor in group])
            distributed.all_reduce(message)
            message /= self.n_workers
            parts = message.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts):
                tensor.copy_(part.view_as(tensor))
