"""Steps of stacked members, and evaluation without a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.limits import BACKBONE_ROWS, EVALUATION_ROWS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.likelihoods import Objective
from snefy_ldl.training.policy import Schedule

#: Decay of Adam's two moments, and what is added to the root of the second.
FUSED: Any = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}


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
        if net.backbone.shared:  # members of one backbone see the same rows
            index = index[:1]
        if isinstance(X, Objects):
            return MemberBatches(move_rows(X.batch(rows), net.readout.device) for rows in index)
        return MemberBatches(take_rows(X, rows) for rows in index)
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
            torch.default_generator.manual_seed(seed)  # torch.manual_seed looks for every kind of GPU, each time
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


def live_tensors(net: SnefyNet, optimizer: Any = None) -> dict[str, Tensor]:
    """What training changes: parameters, running statistics of a custom backbone, and the optimiser's moments."""
    tensors = {name: parameter.detach() for name, parameter in net.named_parameters()}
    tensors |= {name: value for name, value in net.named_buffers() if copy_of_member(name) is not None}
    if optimizer is not None:
        for name, parameter in net.named_parameters():
            tensors |= {f"{key}:{name}": value for key, value in optimizer.state.get(parameter, {}).items()}
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
    def take(self) -> None:
        """Copy the present values."""
        torch._foreach_copy_([*self.values.values()], [*self.tensors.values()])

    @torch.no_grad()
    def keep(self, better: list[bool]) -> None:
        """Copy the present values of the members that are better (K)."""
        for name, value in self.tensors.items():
            member = copy_of_member(name)
            if member is not None:
                if better[member]:  # of a backbone that all share, members are better or worse together
                    self.values[name].copy_(value)
            elif any(better):
                mask = torch.tensor(better, device=value.device).view(-1, *[1] * (value.dim() - 1))
                torch.where(mask, value, self.values[name], out=self.values[name])

    @torch.no_grad()
    def put_back(self) -> None:
        """Put the copies back, in place."""
        torch._foreach_copy_([*self.tensors.values()], [*self.values.values()])


# -- the optimiser ---------------------------------------------------------------------------------------------------


class StackedAdamW:
    """AdamW by torch's fused kernel, with the least work per step that Python allows.

    It is not a ``torch.optim.Optimizer`` because that class's hooks cost more than the update of models this small.

    Args:
        groups: dicts with ``params``, ``peak`` (the rate that a schedule scales) and ``weight_decay``.

    Attributes:
        before_step: called before every update, where workers exchange their gradients; None calls nothing.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.groups = groups
        self.before_step: Callable[[], None] | None = None
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.set_rate(1.0)
        for group in groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    def set_rate(self, share: float) -> None:
        """Put every group at a share of its peak rate."""
        for group in self.groups:
            group["lr"] = group["peak"] * share

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.state:
            parameter.grad = None

    def forget_layout(self) -> None:
        """Look again at which parameters have gradients: a backbone was frozen, or thawed."""
        for group in self.groups:
            group.pop("kept", None)

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        if self.before_step is not None:
            self.before_step()
        for group in self.groups:
            kept = group.get("kept")
            if kept is None:
                params = [parameter for parameter in group["params"] if parameter.grad is not None]
                states = [self.state[parameter] for parameter in params]
                moments = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
                kept = group["kept"] = (params, *moments)
            params, first, second, steps = kept
            if params:
                torch._foreach_add_(steps, 1.0)
                gradients = [parameter.grad for parameter in params]
                rates = {"lr": group["lr"], "weight_decay": group["weight_decay"]}
                torch._fused_adamw_(params, gradients, first, second, [], steps, **rates, **FUSED)


class StackedSGD(StackedAdamW):
    """Gradient descent without momentum, one of the readings of the paper's recipe."""

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        if self.before_step is not None:
            self.before_step()
        for group in self.groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            torch._foreach_add_(params, [parameter.grad for parameter in params], alpha=-group["lr"])


def make_optimizer(net: SnefyNet, schedule: Schedule) -> StackedAdamW:
    """AdamW with decay on the network's matrices, a faster rate for exponents, and the user's rates for a backbone.

    Args:
        net: what to train.
        schedule: rates and decay.

    Returns:
        The optimiser, its moments zero.
    """
    rate, decay = schedule.learning_rate, schedule.weight_decay
    settings = net.backbone.settings if isinstance(net.backbone, CustomBackbone) else None
    parts: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in net.named_parameters():
        own = rate, decay
        flat = name == "readout" or "bias" in name
        if name == "raw_exponents":  # they live on a log scale and must travel far
            own, flat = (rate * schedule.exponent_rate, 0.0), True
        elif settings is not None and copy_of_member(name) is not None:
            apart = settings.learning_rate is not None or settings.weight_decay is not None
            flat = parameter.dim() <= 1 if apart else flat  # also the factors of normalisations
            own = (
                rate if settings.learning_rate is None else float(settings.learning_rate),
                decay if settings.weight_decay is None else float(settings.weight_decay),
            )
        parts.setdefault((own[0], 0.0 if flat else own[1]), []).append(parameter)
    groups = [{"params": params, "peak": peak, "weight_decay": decay} for (peak, decay), params in parts.items()]
    return StackedSGD(groups) if schedule.optimizer == "sgd" else StackedAdamW(groups)


# -- steps -----------------------------------------------------------------------------------------------------------


class Steps:
    """Updates of a net, one batch after the other.

    A step of a custom backbone may work on its rows in parts, one after the other: gradients add up, and memory is that
    of one part.

    Args:
        net: what to train.
        X: features of all rows.
        objective: what to explain.
        optimizer: of the net.
        batch: any rows (K, B): the size of every step.
        n_steps: steps per epoch.
        weights: row weights (N,), or None.
    """

    def __init__(
        self,
        net: SnefyNet,
        X: Any,
        objective: Objective,
        optimizer: StackedAdamW,
        batch: Tensor,
        n_steps: int,
        weights: Tensor | None,
    ) -> None:
        self.net, self.X, self.optimizer, self.weights = net, X, optimizer, weights
        self.objective = copy.copy(objective)
        self.objective.passes = {}
        self.n_steps, self.index, like = n_steps, batch.clone(), net.readout
        self.total = torch.zeros(len(batch), device=like.device, dtype=like.dtype)
        self.slope = torch.full_like(batch, -1.0 / batch.shape[1], dtype=like.dtype)
        self.custom: CustomBackbone | None = net.backbone if isinstance(net.backbone, CustomBackbone) else None
        size = batch.shape[1]
        step = size if self.custom is None else -(-size // self.custom.settings.accumulate)
        self.parts = [slice(start, min(start + step, size)) for start in range(0, size, step)]
        self._batches: Iterator[Any] | None = None

    def run(self, rows: Tensor, rates: list[float]) -> Tensor:
        """One epoch.

        Args:
            rows: of all steps, one after the other (K, steps · B).
            rates: share of the peak rate at each step.

        Returns:
            Mean loss of each member (K,).
        """
        size = self.index.shape[1]
        self._batches = self._read_ahead(rows) if isinstance(self.X, Objects) else None
        self.total.zero_()
        for number, rate in enumerate(rates):
            self.optimizer.set_rate(rate)
            self.index.copy_(rows[:, number * size : (number + 1) * size])
            self.update()
        self._batches = None
        return self.total / self.n_steps

    def update(self) -> None:
        """One update on the rows in ``index``, its loss added to ``total``."""
        # The loss is -mean(log p), so its gradient for log p is a constant.
        slope = self.slope if self.weights is None else self.slope * self.weights[self.index]
        self.optimizer.zero_grad()
        log_p = self._differentiate(slope)
        self.optimizer.step()
        self.net.project()
        self.total += (log_p * slope).sum(1)

    def _differentiate(self, slope: Tensor) -> Tensor:
        """Log likelihoods (K, B) of the rows in ``index``, and gradients of their sum with slopes as weights."""
        logs = []
        for part in self.parts:
            index = self.index[:, part]
            x = gather_rows(self.net, self.X, index) if self._batches is None else next(self._batches)
            log_p = self.objective.log_prob(self.net, x, index)
            torch.autograd.backward(log_p, slope[:, part].to(log_p.dtype))
            logs.append(log_p.detach())
        if self.custom is not None and self.custom.settings.clip is not None and not self.custom.frozen:
            for module in self.custom.copies:  # each member's by itself
                torch.nn.utils.clip_grad_norm_(module.parameters(), self.custom.settings.clip)
        return logs[0] if len(logs) == 1 else torch.cat(logs, 1)

    def _read_ahead(self, rows: Tensor) -> Iterator[Any]:
        """Batches of every part of every step, in the order in which they are needed."""
        assert self.custom is not None
        size, modules = self.index.shape[1], len(self.custom.copies)
        numbers = rows[:modules].cpu()
        plan = [
            numbers[k, start + part.start : start + part.stop]
            for start in range(0, numbers.shape[1], size)
            for part in self.parts
            for k in range(modules)
        ]
        batches = self.X.batches(plan, self.net.readout.device)
        for _ in range(len(plan) // modules):
            yield MemberBatches(next(batches) for _ in range(modules))
