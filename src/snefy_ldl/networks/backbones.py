"""The part of the network that sees x: a stacked MLP by default, or any module of the user's.

Every backbone holds K members and maps a batch for each of them to features (K, B, width), so that one computation
trains them all. Features are scaled in one of two ways: ``"unit"`` is ``(x - μ) / sd``, each column by its own standard
deviation, in any units; ``"pooled"`` is ``(x - μ) / √(sd² + g²)``, g² the mean of all columns' variances: columns
with a tiny standard deviation stay small, which is right if the columns share a unit and wrong if they do not. Both are
clipped, so that one far row or one nearly constant column cannot wreck a model.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches
from torch import Tensor, nn

from snefy_ldl._internal.memory import CACHE_ELEMENTS
from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.objects import Objects, describe
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone, BackboneLike, call_module, explain_failure

Scaling = Literal["unit", "pooled", "none"]
#: Scaled features are clipped here.
LIMITS = {"unit": 5.0, "pooled": 4.0}
#: A standard deviation below this part of its column's mean is rounding, and the column constant.
CONSTANT = 1e-12


def column_moments(X: Any) -> tuple[Array, Array]:
    """Mean and standard deviation of every column.

    Args:
        X: features (N, d), dense or sparse.

    Returns:
        Means and standard deviations, (d,) each.

    Example:
        >>> column_moments(np.array([[1.0, 5.0], [3.0, 5.0]]))
        (array([2., 5.]), array([1., 0.]))
    """
    if not sp.issparse(X) and X.size <= CACHE_ELEMENTS:  # a thousand small fits would wait for the scaler
        values = np.asarray(X, dtype=np.float64)
        return values.mean(0), values.std(0)
    scaler = StandardScaler(with_mean=not sp.issparse(X))
    for rows in gen_batches(X.shape[0], max(1, CACHE_ELEMENTS // X.shape[1])):  # without a float64 copy of all rows
        scaler.partial_fit(X[rows])
    return scaler.mean_, np.sqrt(scaler.var_)


def scaling_of(mean: Array, deviation: Array, kind: Scaling) -> tuple[Tensor, Tensor, float]:
    """Centre, divisor and clipping limit of one kind of scaling.

    Args:
        mean: means of the columns (d,).
        deviation: their standard deviations (d,).
        kind: ``"unit"`` or ``"pooled"``.

    Returns:
        Centres (d,) and divisors (d,), float32, and the limit.

    Example:
        >>> scaling_of(*column_moments(np.array([[1.0, 5.0], [3.0, 5.0]])), "unit")
        (tensor([2., 5.]), tensor([1., 1.]), 5.0)
    """
    if kind == "pooled":
        deviation = np.sqrt(deviation**2 + np.mean(deviation**2))
    # the rounding of constant columns must not grow
    divisor = np.where(deviation <= CONSTANT * np.maximum(np.abs(mean), 1e-30), 1.0, deviation)
    return torch.as_tensor(mean).float(), torch.as_tensor(divisor).float(), LIMITS[kind]


Module = TypeVar("Module", bound=nn.Module)


def part_of(module: Module, members: slice) -> Module:
    """A copy of a stacked module with some of its members.

    Every parameter and buffer has the members first; a network of the user's own has a module for each instead.
    """
    other = copy.copy(module)  # much faster than a new one: a thousand models are taken out of one stack
    if isinstance(module, CustomBackbone):
        other._modules = {"copies": module.copies[members]}
        return other
    part = {name: value.detach()[members].clone() for name, value in module.named_parameters(recurse=False)}
    other._parameters = {name: nn.Parameter(value) for name, value in part.items()}
    other._buffers = {name: value[members].clone() for name, value in module.named_buffers(recurse=False)}
    other._modules = {name: part_of(child, members) for name, child in module.named_children()}
    return other


class Scaler(nn.Module):
    """``clip((x - centre) / scale, ±limit)``: (K, B, d) -> (K, B, d); members have their own, and one limit."""

    centre: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(self, n_members: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(n_members, n_features))
        self.register_buffer("scale", torch.ones(n_members, n_features))
        self.register_buffer("limit", torch.full((n_members,), torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        """Scaled features of every member."""
        if x.is_cuda or torch.compiler.is_compiling():  # no branch of a captured or exported graph depends on numbers
            bounds = self.limit[:, None, None]
            return torch.clamp((x - self.centre[:, None]) / self.scale[:, None], -bounds, bounds)
        limit = float(self.limit[0])  # a clamp at numbers is several times faster than one at tensors
        if math.isinf(limit):  # it was never set
            return x
        return (x - self.centre[:, None]).div_(self.scale[:, None]).clamp_(-limit, limit)


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
        self.scaler = Scaler(n_members, n_features)
        widths = [n_features, *hidden_sizes]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(n_members, a, b)) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(n_members, 1, b)) for b in widths[1:])
        self.width = widths[-1]

    @torch.no_grad()
    def reset(self, member: int, generator: torch.Generator) -> None:
        """Draw one member's initial weights (torch's own rule for linear layers)."""
        for weight, bias in zip(self.weights, self.biases):
            bound = 1.0 / math.sqrt(weight.shape[1])
            weight[member] = (torch.rand(weight.shape[1:], generator=generator) * 2 - 1) * bound
            bias[member] = (torch.rand(bias.shape[1:], generator=generator) * 2 - 1) * bound

    @property
    def n_members(self) -> int:
        """K."""
        return len(self.scaler.centre)

    @property
    def n_inputs(self) -> int:
        """d, features per row."""
        return int(self.scaler.centre.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """(K, B, d), or (B, d) seen by every member -> (K, B, width)."""
        out = self.scaler(x.expand(self.n_members, *x.shape) if x.dim() == 2 else x)
        for weight, bias in zip(self.weights, self.biases):
            out = torch.relu(torch.baddbmm(bias, out, weight))
        return out


class CustomBackbone(nn.Module):
    """Networks of the user's own, one for each of K members or one for all.

    Args:
        n_members: K.
        make: a :class:`~snefy_ldl.networks.custom.Backbone`, or a module or a function that makes one.
        example: a batch of a few rows, the source of the two below; None if they are known, as for a saved model.
        width: of the features that come out.
        reads: what it was fitted on, in words, for messages.

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
        self, n_members: int, make: BackboneLike, example: Any = None, width: int = 0, reads: str | None = None
    ) -> None:
        super().__init__()
        self.settings, self.frozen = Backbone.of(make), False
        self.copies = nn.ModuleList(self.settings.make() for _ in range(n_members))
        self.width, self.reads = width, reads
        if example is None:
            return
        training = self.copies[0].training
        with torch.no_grad():
            # every copy, since lazy modules get their weights by being called
            features = [self._features(module.eval(), example) for module in self.copies]
        self.copies.train(training)
        self.width, self.reads = features[0].shape[1], describe(example, rows=True)

    @property
    def n_members(self) -> int:
        """K."""
        return len(self.copies)

    def freeze(self, frozen: bool) -> None:
        """Let the modules learn, or not."""
        if frozen != self.frozen:
            self.frozen = frozen
            self.copies.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> CustomBackbone:
        """Training or evaluation mode; frozen modules stay in the latter."""
        super().train(mode)
        if self.frozen:
            self.copies.eval()
        return self

    def _features(self, module: nn.Module, batch: Any) -> Tensor:
        weight = next(module.parameters(), None)
        device = torch.device("cpu") if weight is None else weight.device
        try:
            with self.settings.autocast(device):
                return call_module(module, batch)
        except Exception as error:  # the error for a batch it cannot take depends on the module
            # one in training took its like before: the trouble is the module's own, with its own words
            if module.training or isinstance(error, (InputError, torch.cuda.OutOfMemoryError)):
                raise
            raise explain_failure(module, batch, self.reads, error) from error

    def forward(self, x: Any) -> Tensor:
        """One batch for all members, or a list with one batch each -> (K, B, width)."""
        batches = x if isinstance(x, MemberBatches) else [x] * len(self.copies)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = [self._features(module, batch) for module, batch in zip(self.copies, batches)]
        stacked = torch.stack(features)
        return stacked.float() if self.settings.mixed_precision else stacked


class MemberBatches(list[Any]):
    """One batch for each module of a :class:`CustomBackbone`."""


def batch_of(features: Any, rows: Tensor, device: torch.device) -> Any:
    """Some rows, fetched or taken, as a module of the user's own reads them."""
    return move_rows(features.batch(rows) if isinstance(features, Objects) else take_rows(features, rows), device)


def as_input(seen: Any, device: torch.device) -> torch.Tensor:
    """A table as the library's own network takes it: dense float32 on its device."""
    seen = seen.astype(np.float32).toarray() if sp.issparse(seen) else seen
    return torch.as_tensor(np.require(seen, np.float32, ["C", "W"]), device=device)
