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

#: What a user may pass as ``backbone``: a module (copied for each member) or a function that makes one.
BackboneLike = nn.Module | Callable[[], nn.Module]


class Scaler(nn.Module):
    """``clip((x - centre) / scale, ±limit)``, its own for each member: (K, B, d) -> (K, B, d)."""

    centre: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(self, n_members: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(n_members, n_features))
        self.register_buffer("scale", torch.ones(n_members, n_features))
        self.register_buffer("limit", torch.full((n_members,), torch.inf))

    def is_identity(self) -> bool:
        """Whether features stay as they are: only a scaler that was set has limits."""
        return bool(torch.isinf(self.limit).all())

    def forward(self, x: Tensor) -> Tensor:
        """Scaled features of every member."""
        if self.is_identity():
            return x
        scaled = (x - self.centre[:, None]).div_(self.scale[:, None])
        limits = set(self.limit.tolist())
        if len(limits) == 1:  # a clamp at numbers is several times faster than one at tensors
            limit = limits.pop()
            return scaled.clamp_(-limit, limit)
        bounds = self.limit[:, None, None]
        return torch.clamp(scaled, -bounds, bounds)


class ScaledBatch:
    """Rows (K, B, d) that went through each member's scaler already."""

    def __init__(self, values: Tensor) -> None:
        self.values = values


class ScaledFeatures:
    """Features that went through each member's scaler already, so that no training step repeats it.

    Args:
        values: one table a member (K, N, d), or (1, N, d) where all members see the same.
        first_row: where each member's table begins, counted in rows (K, 1).
    """

    def __init__(self, values: Tensor, first_row: Tensor) -> None:
        self.values, self.first_row = values, first_row

    @staticmethod
    def tables(scaler: Scaler) -> int:
        """How many tables of the features it takes."""
        return 1 if scaler.is_identity() else len(scaler.limit)

    @classmethod
    def of(cls, scaler: Scaler, X: Tensor) -> ScaledFeatures:
        """All rows, scaled for every member."""
        if scaler.is_identity():
            return cls(X[None], torch.zeros(len(scaler.limit), 1, dtype=torch.long, device=X.device))
        values = X.new_empty(len(scaler.limit), *X.shape)
        for k, (centre, scale, limit) in enumerate(zip(scaler.centre, scaler.scale, scaler.limit)):
            torch.sub(X, centre, out=values[k]).div_(scale).clamp_(-float(limit), float(limit))
        return cls(values, torch.arange(len(values), device=X.device)[:, None] * len(X))

    def select(self, members: list[int]) -> ScaledFeatures:
        """The same for some of the members, without a copy."""
        return ScaledFeatures(self.values, self.first_row[members])

    def rows(self, index: Tensor) -> ScaledBatch:
        """The rows index (K, B) of each member."""
        values = self.values.flatten(0, 1).index_select(0, (index + self.first_row).flatten())
        return ScaledBatch(values.view(*index.shape, -1))


class StackedMLP(nn.Module):
    """K independent ReLU networks in one computation.

    Args:
        n_members: K.
        n_features: d, the input width.
        hidden_sizes: width of each layer; empty for a linear model.
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

    def select(self, members: list[int]) -> StackedMLP:
        """Some of the members only."""
        widths = [w.shape[2] for w in self.weights]
        other = StackedMLP(len(members), self.scaler.centre.shape[1], tuple(widths)).to(self.scaler.centre.device)
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
    """K copies of a user's module, which may take any tensor or nested batch and must return (B, width)."""

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
