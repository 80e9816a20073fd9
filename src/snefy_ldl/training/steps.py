"""Steps of stacked members, and evaluation without a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.adam import SGD, Adam
from snefy_ldl._internal.memory import BACKBONE_ROWS, EVALUATION_ROWS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches, batch_of
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.policy import Schedule

# -- rows ------------------------------------------------------------------------------------------------------------


def gather_rows(net: SnefyNet, X: Any, index: Tensor) -> Any:
    """Features of each member's rows, in the form the backbone takes.

    Args:
        net: K members.
        X: features of all rows.
        index: row numbers (K, B).

    Returns:
        What ``net.output`` takes.
    """
    if isinstance(net.backbone, CustomBackbone):
        return MemberBatches(batch_of(X, rows, net.readout.device) for rows in index)
    return X.index_select(0, index.flatten()).view(*index.shape, -1)


def shuffles(seeds: Sequence[int], epoch: int, n: int, device: torch.device) -> Tensor:
    """A permutation of n rows for each seed (K, n), the same on every device and in every stack.

    Rows are sorted by a hash (SplitMix64) of seed, epoch and row, in one vectorised computation.

    Args:
        seeds: one per member (K).
        epoch: which pass.
        n: rows.
        device: where.

    Returns:
        Row numbers (K, n).

    Example:
        >>> shuffles([3], 0, 4, torch.device("cpu")).sort().values
        tensor([[0, 1, 2, 3]])
    """
    mixed = [_signed(derive_seed(seed, 1, epoch)) for seed in seeds]
    keys = torch.tensor(mixed, device=device)[:, None] + torch.arange(n, device=device) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ ((keys >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return keys.argsort(dim=1, stable=True)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Let dropout and the like draw from a seed, and leave the caller's generators as they were.

    Args:
        seed: of this part of a fit.
        device: where the fit runs.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cuda":
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too
        yield


@torch.no_grad()
def evaluate(net: SnefyNet, X: Any, objective: Objective, index: Tensor) -> Tensor:
    """Log likelihood of some rows under each member, with the part that no network changes.

    Args:
        net: K members; its mode is left as it was.
        X: features of all rows.
        objective: what to explain.
        index: row numbers (K, B).

    Returns:
        (K, B).
    """
    training = net.training
    net.eval()
    size = BACKBONE_ROWS if isinstance(net.backbone, CustomBackbone) else EVALUATION_ROWS
    parts = [objective.log_prob(net, gather_rows(net, X, rows), rows) for rows in index.split(size, 1)]
    net.train(training)
    log_p = torch.cat(parts, 1)
    return log_p if objective.left_out is None else log_p + objective.left_out[index]


# -- copies of weights ------------------------------------------------------------------------------------------------


def copy_of_member(name: str) -> int | None:
    """Which member a custom backbone's parameter belongs to; None for stacked parameters."""
    prefix = "backbone.copies."
    return int(name[len(prefix) :].split(".")[0]) if name.startswith(prefix) else None


def live_tensors(net: SnefyNet, optimizer: Adam | None = None) -> dict[str, Tensor]:
    """What training changes: parameters, running statistics of a custom backbone, and the optimiser's moments."""
    tensors = {name: parameter.detach() for name, parameter in net.named_parameters()}
    tensors |= {name: value for name, value in net.named_buffers() if copy_of_member(name) is not None}
    if optimizer is not None:
        for name, parameter in net.named_parameters():
            tensors |= {f"moment {k}:{name}": value for k, value in enumerate(optimizer.state[parameter])}
    return tensors


class Copies:
    """Copies of tensors, in memory that stays.

    Args:
        tensors: by name; stacked ones have the members first.

    Attributes:
        values: the copies.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.values = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    @torch.no_grad()
    def keep(self, better: list[bool]) -> None:
        """Copy the present values of the members that are better (K)."""
        for name, value in self.tensors.items():
            member = copy_of_member(name)
            if member is not None:
                if better[member]:
                    self.values[name].copy_(value)
            elif any(better):
                mask = torch.tensor(better, device=value.device).view(-1, *[1] * (value.dim() - 1))
                torch.where(mask, value, self.values[name], out=self.values[name])

    @torch.no_grad()
    def put_back(self) -> None:
        """Put the copies back, in place."""
        torch._foreach_copy_([*self.tensors.values()], [*self.values.values()])


# -- steps -----------------------------------------------------------------------------------------------------------


def make_optimizer(net: SnefyNet, schedule: Schedule) -> Adam:
    """AdamW with decay on the network's matrices, a faster rate for exponents, and the user's rates for a backbone.

    Args:
        net: what to train.
        schedule: rates and decay.

    Returns:
        The optimiser, its moments zero.
    """
    settings = net.backbone.settings if isinstance(net.backbone, CustomBackbone) else None
    parts: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in net.named_parameters():
        rate, decay = schedule.learning_rate, schedule.weight_decay
        flat = name in ("readout", "raw_exponents") or "bias" in name
        if name == "raw_exponents":  # they live on a log scale and must travel far
            rate *= schedule.exponent_rate
        elif settings is not None and copy_of_member(name) is not None:
            apart = settings.learning_rate is not None or settings.weight_decay is not None
            flat = parameter.dim() <= 1 if apart else flat  # also the factors of normalisations
            rate = rate if settings.learning_rate is None else float(settings.learning_rate)
            decay = decay if settings.weight_decay is None else float(settings.weight_decay)
        parts.setdefault((rate, 0.0 if flat else decay), []).append(parameter)
    kind = SGD if schedule.optimizer == "sgd" else Adam
    return kind((params, rate, decay) for (rate, decay), params in parts.items())


class GraphedStep:
    """A step captured as a CUDA graph: its small kernels then start without Python in between.

    Args:
        step: what an update does with rows (K, B) and a share of the peak rate; it returns losses (K,).
        tensors: what it changes, which capturing leaves as it was.
        index: rows of one step (K, B).

    Attributes:
        step: one update with rows (K, B) and a share of the rate; the losses (K,).
    """

    step: Callable[[Tensor, float], Tensor]

    def __init__(
        self, step: Callable[[Tensor, float | Tensor], Tensor], tensors: dict[str, Tensor], index: Tensor
    ) -> None:
        self.index, self.rate = index.clone(), torch.zeros((), device=index.device)
        self.graph, copies, main = torch.cuda.CUDAGraph(), Copies(tensors), torch.cuda.current_stream()
        apart: Any = torch.cuda.Stream()
        apart.wait_stream(main)
        with torch.cuda.stream(apart):
            for _ in range(3):  # libraries make their workspaces at first
                step(self.index, self.rate)
        main.wait_stream(apart)
        try:
            with torch.cuda.graph(self.graph):
                self.loss = step(self.index, self.rate)
            self.step = self._replay
        except RuntimeError as error:  # of memory, say: steps one by one are slower, and as right
            torch.cuda.synchronize()
            logging.getLogger("snefy_ldl").warning("training steps run one by one, without a CUDA graph: %s", error)
            self.step = step
        copies.put_back()

    def _replay(self, index: Tensor, rate: float) -> Tensor:
        self.index.copy_(index)
        self.rate.fill_(rate)
        self.graph.replay()
        return self.loss


def run_steps(
    net: SnefyNet,
    X: Any,
    objective: Objective,
    optimizer: Adam,
    rows: Tensor,
    size: int,
    rates: Sequence[float],
    weights: Tensor | None = None,
    graphs: dict[Objective, GraphedStep] | None = None,
) -> Tensor:
    """Updates of a net, one batch after the other.

    Args:
        net: what to train.
        X: features of all rows.
        objective: what to explain.
        optimizer: of the net.
        rows: of all steps, one after the other (K, steps · B).
        size: B, rows of a step.
        rates: share of the peak rate at each step.
        weights: row weights (N,), or None.
        graphs: where steps that a GPU has captured are kept between calls.

    Returns:
        Mean loss of each member (K,).
    """
    custom = net.backbone if isinstance(net.backbone, CustomBackbone) else None
    clip = None if custom is None or custom.frozen else custom.settings.clip
    steps = rows.split(size, 1)
    batches = _read_ahead(X, custom, steps, net.readout.device) if custom and isinstance(X, Objects) else None
    total = torch.zeros(len(rows), device=rows.device, dtype=net.readout.dtype)

    def update(index: Tensor, rate: float | Tensor) -> Tensor:
        x = gather_rows(net, X, index) if batches is None else next(batches)
        log_p = objective.log_prob(net, x, index)
        # The loss is -mean(log p), so its gradient for log p is a constant.
        slope = torch.full_like(log_p, -1.0 / size) if weights is None else weights[index].to(log_p) / -size
        torch.autograd.backward(log_p, slope)
        if custom is not None and clip is not None:
            for module in custom.copies:  # each member's by itself
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step(rate)
        net.project()
        return (log_p.detach() * slope).sum(1)

    step: Callable[[Tensor, float], Tensor] = update
    if rows.is_cuda and custom is None and objective.can_be_captured and graphs is not None:
        if objective not in graphs:
            graphs[objective] = GraphedStep(update, live_tensors(net, optimizer), rows[:, :size])
        step = graphs[objective].step
    for index, rate in zip(steps, rates):
        total += step(index, rate)
    return total / len(steps)


def _read_ahead(
    X: Objects, custom: CustomBackbone, steps: Sequence[Tensor], device: torch.device
) -> Iterator[MemberBatches]:
    """Batches of every step, in the order in which they are needed."""
    modules = len(custom.copies)
    batches = X.batches([rows for index in steps for rows in index[:modules].cpu()], device)
    for _ in steps:
        yield MemberBatches(next(batches) for _ in range(modules))
