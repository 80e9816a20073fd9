"""The part of the network that sees x: a stacked MLP by default, or any module of the user's.

Every backbone holds K members and maps a batch for each of them to features (K, B, width), so that one computation
trains them all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from snefy_ldl.errors import InputError
from snefy_ldl.networks.scaling import ScaledBatch, Scaler

#: What a user may pass as ``backbone``: a module (copied for each member) or a function that makes one.
BackboneLike = nn.Module | Callable[[], nn.Module]


class StackedMLP(nn.Module):
    """K independent ReLU networks in one computation.

    Args:
        n_members: K.
        n_features: d, the input width.
        hidden_sizes: width of each layer; empty for a linear model.

    Attributes:
        scaler: scales the features of each member.
        weights: one matrix a layer (K, in, out).
        biases: one row a layer (K, 1, out).
        width: of the features that come out.

    Example:
        >>> StackedMLP(2, 3, (8,))(torch.zeros(5, 3)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, n_members: int, n_features: int, hidden_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.n_members = n_members
        self.scaler = Scaler(n_members, n_features)
        widths = [n_features, *hidden_sizes]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(n_members, a, b)) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(n_members, 1, b)) for b in widths[1:])
        self.width = widths[-1]

    def reset(self, member: int, generator: torch.Generator) -> None:
        """Draw one member's initial weights (torch's own rule for linear layers)."""
        with torch.no_grad():
            for weight, bias in zip(self.weights, self.biases):
                bound = 1.0 / math.sqrt(weight.shape[1])
                weight[member] = (torch.rand(weight.shape[1:], generator=generator) * 2 - 1) * bound
                bias[member] = (torch.rand(bias.shape[1:], generator=generator) * 2 - 1) * bound

    @property
    def n_inputs(self) -> int:
        """d, features a row."""
        return int(self.scaler.centre.shape[1])

    def select(self, members: list[int]) -> StackedMLP:
        """Some of the members only."""
        widths = [w.shape[2] for w in self.weights]
        other = StackedMLP(len(members), self.scaler.centre.shape[1], tuple(widths)).to(self.scaler.centre)
        with torch.no_grad():
            for name, value in [*other.named_parameters(), *other.named_buffers()]:
                value.copy_(self.get_buffer(name)[members] if "scaler" in name else self.get_parameter(name)[members])
        return other

    def forward(self, x: Tensor | ScaledBatch) -> Tensor:
        """(K, B, d), or (B, d) seen by every member -> (K, B, width)."""
        if isinstance(x, ScaledBatch):
            out = x.values
        else:
            out = self.scaler(x.expand(self.n_members, *x.shape) if x.dim() == 2 else x)
        for weight, bias in zip(self.weights, self.biases):
            out = torch.relu(torch.baddbmm(bias, out, weight))
        return out


class CustomBackbone(nn.Module):
    """K copies of a user's module, which may take any tensor or nested batch and must return (B, width).

    Args:
        n_members: K.
        make: the module, copied for each member, or a function that makes one.
        example: a few rows, by which the width of what comes out is found.

    Raises:
        InputError: where ``make`` gives no module, or the module's answer is not of shape (rows, width).
    """

    def __init__(self, n_members: int, make: BackboneLike, example: Any) -> None:
        super().__init__()
        self.n_members = n_members
        copies = [copy.deepcopy(make) if isinstance(make, nn.Module) else make() for _ in range(n_members)]
        if not all(isinstance(module, nn.Module) for module in copies):
            raise InputError("backbone must be a torch.nn.Module, or a function without arguments that returns one.")
        self.copies = nn.ModuleList(copies)
        with torch.no_grad():
            training = copies[0].training
            features = copies[0].eval()(example)
            copies[0].train(training)
        if not isinstance(features, Tensor) or features.dim() != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InputError(f"the backbone must return features of shape (rows, width); got {shape}.")
        self.width = features.shape[1]

    @classmethod
    def with_width(cls, n_members: int, make: BackboneLike, width: int) -> CustomBackbone:
        """Copies whose output width is already known, as for a saved model."""
        backbone = cls.__new__(cls)
        nn.Module.__init__(backbone)
        backbone.n_members, backbone.width = n_members, width
        backbone.copies = nn.ModuleList(
            copy.deepcopy(make) if isinstance(make, nn.Module) else make() for _ in range(n_members)
        )
        return backbone

    def select(self, members: list[int]) -> CustomBackbone:
        """Some of the members only."""
        other = copy.copy(self)
        other._modules = {"copies": nn.ModuleList(self.copies[k] for k in members)}
        other.n_members = len(members)
        return other

    def forward(self, x: Any) -> Tensor:
        """One batch for all members, or a list with one batch each -> (K, B, width)."""
        batches = x if isinstance(x, MemberBatches) else [x] * self.n_members
        return torch.stack([module(batch) for module, batch in zip(self.copies, batches)])


class MemberBatches(list[Any]):
    """One batch for each member of a :class:`CustomBackbone`."""
