"""The part of the network that sees x: a stacked MLP by default, or any module of the user's.

Every backbone holds K members and maps a batch for each of them to features (K, B, width), so that one computation
trains them all.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from snefy_ldl.datasets.objects import describe
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone, BackboneLike, call_module, explain_failure
from snefy_ldl.networks.scaling import ScaledBatch, Scaler, as_slice


class StackedMLP(nn.Module):
    """K independent ReLU networks in one computation.

    Args:
        n_members: K.
        n_features: d, the input width.
        hidden_sizes: width of each layer; empty for a linear model.

    Attributes:
        scaler: scales the features of each member.
        weights: one matrix per layer (K, in, out).
        biases: one row per layer (K, 1, out).
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
        """d, features per row."""
        return int(self.scaler.centre.shape[1])

    def select(self, members: list[int]) -> StackedMLP:
        """Some of the members only."""
        other, places = copy.copy(self), as_slice(members)
        other.n_members, other._modules = len(members), {"scaler": self.scaler.select(members)}
        for name in ("weights", "biases"):
            stack = (nn.Parameter(value.detach()[places].clone()) for value in getattr(self, name))
            other._modules[name] = nn.ParameterList(stack)
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
    """Networks of the user's own, one for each of K members or one for all.

    Args:
        n_members: K.
        make: a :class:`~snefy_ldl.networks.custom.Backbone`, or a module or a function that makes one.
        example: a batch of a few rows, which tells the three below; None where they are known, as for a saved model.
        width: of the features that come out.
        reads: what it was fitted on, in words, for messages.
        row: shape and type of one row, where a batch is one tensor; None where it is anything else.

    Attributes:
        settings: how they train.
        copies: the modules, K or one.
        frozen: whether it learns nothing for now.

    Raises:
        InputError: where ``make`` gives no module, the module cannot take the example, or its answer is not of shape
            (rows, width).
    """

    copies: nn.ModuleList

    def __init__(
        self,
        n_members: int,
        make: BackboneLike,
        example: Any = None,
        width: int = 0,
        reads: str | None = None,
        row: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.n_members, self.settings, self.frozen = n_members, Backbone.of(make), False
        self.copies = nn.ModuleList(self.settings.make() for _ in range(1 if self.settings.shared else n_members))
        self.width, self.reads, self.row = width, reads, row
        if example is None:
            return
        training = self.copies[0].training
        with torch.no_grad():
            # every copy, since lazy modules get their weights by being called
            features = [self._features(module.eval(), example) for module in self.copies]
        self.copies.train(training)
        self.width, self.reads = features[0].shape[1], describe(example, rows=True)
        if isinstance(example, Tensor):
            self.row = {"shape": list(example.shape[1:]), "dtype": str(example.dtype).removeprefix("torch.")}

    @property
    def shared(self) -> bool:
        """Whether one module serves all members."""
        return self.settings.shared

    def freeze(self, frozen: bool) -> bool:
        """Let the modules learn, or not; returns whether that is a change."""
        changed = frozen != self.frozen
        self.frozen = frozen
        if changed:
            self.copies.requires_grad_(not frozen)
        return changed

    def train(self, mode: bool = True) -> CustomBackbone:
        """Training or evaluation mode; frozen modules stay in the latter."""
        super().train(mode)
        if self.frozen:
            self.copies.eval()
        return self

    def select(self, members: list[int]) -> CustomBackbone:
        """Some of the members only."""
        other = copy.copy(self)
        copies = self.copies if self.shared else nn.ModuleList(self.copies[k] for k in members)
        other._modules = {"copies": copies}
        other.n_members = len(members)
        return other

    def _features(self, module: nn.Module, batch: Any) -> Tensor:
        weight = next(module.parameters(), None)
        device = torch.device("cpu") if weight is None else weight.device
        try:
            with self.settings.autocast(device):
                return call_module(module, batch)
        except (InputError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:  # what a module says to a batch it cannot take depends on the module
            if module.training:  # it took its like before: the trouble is the module's own, with its own words
                raise
            raise explain_failure(module, batch, self.reads, error) from error

    def forward(self, x: Any) -> Tensor:
        """One batch for all members, or a list with one batch each -> (K, B, width)."""
        batches = x if isinstance(x, MemberBatches) else [x] * len(self.copies)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = [self._features(module, batch) for module, batch in zip(self.copies, batches)]
        stacked = torch.stack(features).float() if self.settings.mixed_precision else torch.stack(features)
        return stacked.expand(self.n_members, *stacked.shape[1:]) if self.shared else stacked


class MemberBatches(list[Any]):
    """One batch for each module of a :class:`CustomBackbone`."""
