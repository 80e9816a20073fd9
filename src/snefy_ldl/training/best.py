"""The weights at which each member explained its validation rows best."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.optimiser import copy_of_member


def changing_tensors(net: SnefyNet) -> Iterator[tuple[str, Tensor]]:
    """What training changes, by name: parameters, and the running statistics of a backbone of the user's own."""
    yield from net.named_parameters()
    yield from ((name, value) for name, value in net.named_buffers() if copy_of_member(name) is not None)


class BestWeights:
    """A copy of a net's parameters, renewed member by member.

    Args:
        net: K members.

    Attributes:
        values: the copies by the parameters' names.
    """

    def __init__(self, net: SnefyNet) -> None:
        self.net = net
        self.values: dict[str, Tensor] = {name: value.detach().clone() for name, value in changing_tensors(net)}

    @torch.no_grad()
    def keep(self, better: list[bool]) -> None:
        """Copy the present weights of the members that are better (K)."""
        for name, value in changing_tensors(self.net):
            member = copy_of_member(name)
            if member is not None:
                if better[member]:  # of a backbone that all share, members are better or worse together
                    self.values[name].copy_(value)
            elif any(better):
                mask = torch.tensor(better, device=value.device).view(-1, *[1] * (value.dim() - 1))
                torch.where(mask, value, self.values[name], out=self.values[name])

    @torch.no_grad()
    def put_back(self) -> None:
        """Put the best weights into the net."""
        for name, value in changing_tensors(self.net):
            value.copy_(self.values[name])
