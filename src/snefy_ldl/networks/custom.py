"""A network of the user's own as t2: how it trains (:class:`Backbone`), how it is called, what comes back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from snefy_ldl._internal.rows import map_parts
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.datasets.objects import Collate, describe
from snefy_ldl.errors import InputError

MixedPrecision = Literal["auto", "bf16"] | None


@dataclass(eq=False, repr=False)
class Backbone:
    """A network that sees x, and how it trains: ``SnefyLDL(backbone=Backbone(module, ...))``.

    The module takes what a batch of X is (a tensor, keywords where X is a dictionary and its ``forward`` has arguments
    of these names, a batch of graphs, ...) and returns features (rows, width); of a Hugging Face model's output the
    last hidden states are averaged over the tokens. Real numbers come in the module's precision, images of whole
    numbers 0 to 255 as shares of 255.

    Args:
        module: an ``nn.Module``, copied for each member, or a function without arguments that makes one.
        learning_rate: peak rate of its parameters; None: that of the rest.
        weight_decay: AdamW's decay of its matrices; None: that of the rest.
        freeze_epochs: epochs at the start in which it does not learn and is not moved from evaluation mode, while the
            density finds its place; as many as the fit has epochs keep it as it is.
        collate: makes a batch of a list of rows: padding, tokenizing, joining graphs. None: tensors are stacked, graphs
            of PyTorch Geometric joined, texts left a list.
        mixed_precision: "auto" computes it in BF16 on GPUs that can, "bf16" everywhere, None nowhere; the density keeps
            its precision.
        clip: largest norm of its gradient; None for no limit.
        workers: processes that fetch rows ahead, into pinned memory for a GPU.

    Raises:
        InputError: where a setting breaks its rule.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl import Backbone, SnefyLDL
        >>> images = np.random.default_rng(0).integers(0, 256, (40, 1, 6, 6), dtype=np.uint8)
        >>> D = np.random.default_rng(1).dirichlet(np.ones(3), 40)
        >>> cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8))
        >>> model = SnefyLDL(backbone=Backbone(cnn, learning_rate=1e-3), epochs=2, random_state=0).fit(images, D)
        >>> model.predict(images[:5]).shape
        (5, 3)
    """

    module: nn.Module | Callable[[], nn.Module]
    learning_rate: float | None = 1e-4
    weight_decay: float | None = 0.01
    freeze_epochs: int = 0
    collate: Collate | None = None
    mixed_precision: MixedPrecision = "auto"
    clip: float | None = 1.0
    workers: int = 0

    def __post_init__(self) -> None:
        if not callable(self.module):
            raise InputError(
                "backbone must be a torch.nn.Module, or a function without arguments that returns one; got "
                f"{type(self.module).__name__}."
            )
        for name, strict in (("learning_rate", True), ("weight_decay", False), ("clip", True)):
            if getattr(self, name) is not None:
                check_number(f"the backbone's {name}, unless None,", getattr(self, name), strict=strict)
        for name in ("freeze_epochs", "workers"):
            check_count(name, getattr(self, name), low=0)
        if self.collate is not None and not callable(self.collate):
            raise InputError(f"collate must be a function of a list of rows; got {type(self.collate).__name__}.")
        if self.mixed_precision not in ("auto", "bf16", None):
            raise InputError(f'mixed_precision={self.mixed_precision!r}: use "auto", "bf16" or None.')

    @classmethod
    def of(cls, backbone: Any) -> Backbone:
        """A backbone as it is, or a bare module as one that trains like the rest of the network.

        >>> Backbone.of(nn.Flatten()).learning_rate is None
        True
        """
        if isinstance(backbone, Backbone):
            return backbone
        return cls(backbone, learning_rate=None, weight_decay=None, mixed_precision=None, clip=None)

    def make(self) -> nn.Module:
        """The module for one member: a copy, or what the function makes.

        Raises:
            InputError: where the function gives no module.
        """
        module = copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module()
        if not isinstance(module, nn.Module):
            raise InputError("backbone must be a torch.nn.Module, or a function without arguments that returns one.")
        return module

    def autocast(self, device: torch.device) -> torch.autocast:
        """The precision in which the module computes on a device, as a context."""
        auto = self.mixed_precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=auto or self.mixed_precision == "bf16")

    def __repr__(self) -> str:
        # functions by name, without an address: a checkpoint must know its fit again in another process
        module = self.module if isinstance(self.module, nn.Module) else getattr(self.module, "__qualname__", "function")
        collate = getattr(self.collate, "__qualname__", type(self.collate).__name__)
        numbers = {key: value for key, value in vars(self).items() if key not in ("module", "collate")}
        return f"Backbone({module}, collate={collate}, {', '.join(f'{k}={v!r}' for k, v in numbers.items())})"


#: What a user may pass as ``backbone``: a module (copied for each member), a function that makes one, or a Backbone.
BackboneLike = nn.Module | Callable[[], nn.Module] | Backbone


def call_module(module: nn.Module, batch: Any) -> Tensor:
    """Features of a batch, for all forms of batches and of the module's answers.

    Args:
        module: the user's.
        batch: a nested batch of tensors, keywords, graphs, or a list.

    Returns:
        (rows, width).

    Raises:
        InputError: where the answer is no matrix.
    """
    batch = _in_its_precision(module, batch)
    answer = _answer(module, batch)
    hidden = getattr(answer, "last_hidden_state", None)
    if hidden is not None:  # of a Hugging Face model: the mean over the tokens that are there
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        mask = torch.ones_like(hidden[..., 0]) if mask is None else mask.to(hidden.dtype)
        answer = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1.0)
    if not isinstance(answer, Tensor) or answer.dim() != 2:
        shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise InputError(f"the backbone must return features of shape (rows, width); got {shape}.")
    return answer


def _in_its_precision(module: nn.Module, batch: Any) -> Any:
    """Real numbers in the module's precision, 8-bit images as shares of 255; other whole numbers stay."""
    real = next((p for p in module.parameters() if p.is_floating_point()), None)
    dtype = torch.float32 if real is None else real.dtype
    looks_up = any(isinstance(part, nn.Embedding) for part in module.modules())

    def convert(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return map_parts(convert, value)
        if value.dtype == torch.uint8 and value.dim() > 2:
            return value.to(dtype) / 255.0
        if value.dtype == torch.uint8 and looks_up:
            return value.long()
        return value.to(dtype) if value.dtype == torch.uint8 or value.is_floating_point() else value

    return convert(batch)


def _answer(module: nn.Module, batch: Any) -> Any:
    """What a module makes of a batch; its parts are arguments if their names, or their number, are those of forward."""
    signature = inspect.signature(module.forward)
    arguments = [a for a in signature.parameters.values() if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    needed = [a.name for a in arguments if a.default is a.empty]
    if isinstance(batch, Mapping) and batch:
        named = {str(key): part for key, part in batch.items()}
        try:
            signature.bind(**named)
        except TypeError:  # it has other arguments
            return module(batch)
        return module(**named)
    if hasattr(batch, "edge_index") and needed and all(name in batch for name in needed):
        return module(**{a.name: batch[a.name] for a in arguments if a.name in batch})
    if isinstance(batch, (tuple, list)) and len(needed) == len(batch) > 1:
        return module(*batch)
    return module(batch)


def explain_failure(module: nn.Module, batch: Any, reads: str | None, error: Exception) -> InputError:
    """One sentence on a batch that a module could not take: what it expects, what came, and its message.

    Args:
        module: the user's.
        batch: what it was given.
        reads: what it was fitted on, in words; None before a fit.
        error: what it raised.

    Returns:
        The error to raise.
    """
    name = type(module).__name__
    expects = f"reads {reads}" if reads else f"takes {name}.forward{inspect.signature(module.forward)}"
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0][:200] if lines else 'no reason given'}"
    return InputError(f"the backbone {name} {expects}; got {describe(batch, rows=True)}, and failed ({reason}).")
