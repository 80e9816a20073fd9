"""Steps of stacked members by the fastest route that objective and device allow, and evaluation without a step."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.limits import BACKBONE_ROWS, EVALUATION_ROWS, SCALED_NUMBERS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl._internal.special import EXPONENT_MARGIN
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches, ScaledFeatures, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.likelihoods import Objective, Pass
from snefy_ldl.training.policy import Schedule

#: Decay of Adam's two moments, and what is added to the root of the second.
FUSED: Any = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
#: Times a step runs for real before and while it is captured.
REHEARSALS = 4
log = logging.getLogger(__name__)


# -- rows ------------------------------------------------------------------------------------------------------------


def scaled_once(net: SnefyNet, X: Any) -> Any:
    """Features scaled for every member before training, where memory allows; else as they are."""
    if not isinstance(net.backbone, StackedMLP) or not isinstance(X, Tensor):
        return X
    scaler = net.backbone.scaler
    if ScaledFeatures.tables(scaler) * X.numel() > SCALED_NUMBERS.get(X.device.type, 0):
        return X
    return ScaledFeatures.of(scaler, X)


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
    return X.rows(index) if isinstance(X, ScaledFeatures) else X[index]


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
        """Put the copies back, in place: a captured graph keeps the addresses."""
        torch._foreach_copy_([*self.tensors.values()], [*self.values.values()])


# -- the optimiser ---------------------------------------------------------------------------------------------------


class StackedAdamW:
    """AdamW by torch's fused kernel, with the least work per step that Python allows.

    It is not a ``torch.optim.Optimizer`` because that class's hooks cost more than the update of models this small.

    Args:
        groups: dicts with ``params``, ``peak`` (the rate that a schedule scales) and ``weight_decay``.
        device: of the parameters; on a GPU the rates are one small array there, which a captured graph can fill.

    Attributes:
        before_step: called before every update, where workers exchange their gradients; None calls nothing.
    """

    def __init__(self, groups: list[dict[str, Any]], device: torch.device) -> None:
        self.groups = groups
        self.before_step: Callable[[], None] | None = None
        self.rates = torch.tensor([group["peak"] for group in groups], dtype=torch.float32, device=device)
        self.peaks = self.rates.cpu()
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        for number, group in enumerate(groups):
            group["lr"] = self.rates[number] if device.type == "cuda" else float(group["peak"])
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    def set_rate(self, share: float) -> None:
        """Put every group at a share of its peak rate."""
        if self.rates.is_cuda:
            self.rates.copy_(self.peaks * share)
            return
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
    return StackedAdamW(groups, net.readout.device)


# -- steps -----------------------------------------------------------------------------------------------------------


def _gradient_of(parameter: Tensor) -> Tensor:
    """A gradient array for the parameter, made now, so that every step writes into the same one."""
    parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class WrittenOutStep:
    """Gradients of ``Σ_kb slope_kb log p_kb`` for every parameter of a net with the library's own backbone.

    Models this small spend most of a step in bookkeeping. Here every array is made once, every product writes where the
    next one reads, and autograd is not asked.

    Args:
        net: what to train; its parameters get ``grad`` arrays that stay.
        X: features, scaled for every member.
        objective: what to explain.
        work: its likelihood.
        batch_size: rows per step.
    """

    def __init__(self, net: SnefyNet, X: ScaledFeatures, objective: Objective, work: Pass, batch_size: int) -> None:
        self.net, self.objective, self.work = net, objective, work
        n_members = net.n_members
        self.weights = [*net.backbone.weights, net.head_weight]
        self.biases = [*net.backbone.biases, net.head_bias]
        self.d_weights, self.d_biases = [_gradient_of(p) for p in self.weights], [_gradient_of(p) for p in self.biases]
        self.d_exponents, self.d_readout = _gradient_of(net.raw_exponents), _gradient_of(net.readout)
        like = net.readout
        self.layers = [like.new_empty(n_members, batch_size, weight.shape[2]) for weight in self.weights]
        self.d_layers = [torch.empty_like(layer) for layer in self.layers]
        self.table, self.first_row = X.values.flatten(0, 1), X.first_row
        self.gathered = torch.empty(n_members, batch_size, dtype=torch.long, device=like.device)
        self.features = like.new_empty(n_members, batch_size, self.table.shape[1])
        self.flat = self.features.flatten(0, 1)
        self.exponents = torch.empty_like(net.raw_exponents, dtype=torch.float64)
        self.powers = torch.empty_like(net.raw_exponents)
        self.shares = [
            -softplus(sign * net.log_odds)[:, None].to(like.dtype) for sign in (1.0, -1.0)
        ]  # log(1-ε), log ε

    @torch.no_grad()
    def __call__(self, index: Tensor, slope: Tensor) -> Tensor:
        """Log likelihood (K, B) of the rows index (K, B); gradients lie in the parameters' ``grad`` afterwards."""
        torch.index_select(self.table, 0, torch.add(index, self.first_row, out=self.gathered).view(-1), out=self.flat)
        inputs = self.features  # (K, B, d)
        for number, (weight, bias, layer) in enumerate(zip(self.weights, self.biases, self.layers)):
            torch.baddbmm(bias, inputs, weight, out=layer)
            inputs = layer.relu_() if number + 1 < len(self.layers) else layer
        net, background = self.net, self.objective.background_of(index)
        labels = self.objective.labels(index)
        log_p = self.work.forward(self.layers[-1], self._take_exponents(), net.readout, labels)
        if background is not None:  # log((1-ε) p + ε p_background), and how much of it is the network's
            log_p, other = log_p.add_(self.shares[0]), background + self.shares[1]
            slope = slope * torch.sigmoid(log_p - other).to(slope.dtype)
            log_p = torch.logaddexp(log_p, other)
        self.work.backward(slope, self.d_layers[-1], self.d_exponents, self.d_readout)
        if net.exponent_form == "log":
            self.d_exponents.mul_(self.powers)
        for number in range(len(self.layers) - 1, -1, -1):
            d_layer, below = self.d_layers[number], self.layers[number - 1] if number else self.features
            torch.bmm(below.transpose(1, 2), d_layer, out=self.d_weights[number])
            torch.sum(d_layer, 1, keepdim=True, out=self.d_biases[number])
            if number:
                d_below = torch.bmm(d_layer, self.weights[number].transpose(1, 2), out=self.d_layers[number - 1])
                d_below.mul_(below.sign())  # what the ReLU let through
        return log_p

    def _take_exponents(self) -> Tensor:
        """The exponents of all neurons (K, n, L), float64."""
        if self.net.exponent_form == "clip":
            return self.exponents.copy_(self.net.raw_exponents)
        torch.exp(self.net.raw_exponents, out=self.powers)
        return self.exponents.copy_(self.powers + (EXPONENT_MARGIN - 0.5))


def written_out_step(net: SnefyNet, X: Any, objective: Objective, batch_size: int) -> WrittenOutStep | None:
    """The step without autograd, or None for a custom backbone, unscaled features, or labels that have no pass."""
    if not isinstance(X, ScaledFeatures):
        return None
    n_members, n, n_labels = net.raw_exponents.shape
    shape = n_members, batch_size, n, net.readout.shape[1], n_labels
    work = objective.make_pass(shape, net.readout, net.balanced)
    return None if work is None else WrittenOutStep(net, X, objective, work, batch_size)


class Steps:
    """Updates of a net, one batch after the other: written out where possible, by autograd otherwise.

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
        self.net, self.X, self.objective, self.optimizer, self.weights = net, X, objective, optimizer, weights
        self.n_steps, self.index, like = n_steps, batch.clone(), net.readout
        self.total = torch.zeros(len(batch), device=like.device, dtype=like.dtype)
        self.slope = torch.full_like(batch, -1.0 / batch.shape[1], dtype=like.dtype)
        self.written_out = written_out_step(net, X, objective, batch.shape[1])
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
        if self.written_out is not None:
            log_p = self.written_out(self.index, slope)
        else:
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

    def release(self) -> None:
        """Drop gradients, and what else must not outlive the fit."""
        for parameter in self.net.parameters():
            parameter.grad = None


@lru_cache(maxsize=1)
def _warn_once() -> None:
    """Print a warning, once per process, that steps are not captured: fits are right, but slower."""
    log.warning("training steps could not be captured as a CUDA graph, so this process runs them one by one: slower")


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: an older graph that is freed in the middle of a capture would spoil it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class GraphedSteps(Steps):
    """Steps on a GPU that are captured once and replayed; one by one where capture fails. See :class:`Steps`.

    A graph reads and writes the same tensors every time, so rows and rates of an epoch are put on the device
    beforehand, and each step takes the next.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False
        room, rates = self.n_steps + REHEARSALS, self.optimizer.rates  # rehearsals go past the end of a short epoch
        self.rows, self.rates = self.index.new_zeros(room, self.index.numel()), rates.new_zeros(room, len(rates))
        self.place = torch.zeros(1, dtype=torch.long, device=rates.device)

    def run(self, rows: Tensor, rates: list[float]) -> Tensor:
        """One epoch; see :meth:`Steps.run`."""
        steps, members = self.n_steps, len(rows)
        self.rows[:steps].view(steps, members, -1).copy_(rows.view(members, steps, -1).transpose(0, 1))
        self.rates[:steps].copy_(torch.tensor(rates)[:, None] * self.optimizer.peaks)
        self.place.zero_()
        self.total.zero_()
        if self.graph is None and not self.failed:
            self._capture()
        if self.graph is None:
            return super().run(rows, rates)
        for _ in rates:
            self.graph.replay()
        return self.total / steps

    def next(self) -> None:
        """Take the next rows and rates, and update."""
        torch.index_select(self.rows, 0, self.place, out=self.index.view(1, -1))
        torch.index_select(self.rates, 0, self.place, out=self.optimizer.rates.view(1, -1))
        self.place.add_(1)
        self.update()

    def _capture(self) -> None:
        """Warm-up and capture run a step for real, so the state is put back afterwards."""
        before = Copies(live_tensors(self.net, self.optimizer) | {"total": self.total, "place": self.place})
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(REHEARSALS - 1):
                    self.next()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with _no_collection(), torch.cuda.graph(graph):
                self.next()
            self.graph = graph
        except RuntimeError:  # of memory, or of a step that asks the device: what CUDA says of it helps nobody
            self.failed = True
            torch.cuda.synchronize()
            _warn_once()
        before.put_back()

    def release(self) -> None:
        """See :meth:`Steps.release`: the captured graph goes, too."""
        super().release()
        self.graph = None


def make_steps(net: SnefyNet, *args: Any) -> Steps:
    """Steps of a net, captured as a graph for the library's own backbone on a GPU; arguments of :class:`Steps`."""
    graphed = net.readout.is_cuda and isinstance(net.backbone, StackedMLP)
    return (GraphedSteps if graphed else Steps)(net, *args)
