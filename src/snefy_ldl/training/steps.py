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

from snefy_ldl._internal.limits import BACKBONE_ROWS, EVALUATION_ROWS, SCALED_NUMBERS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.checkpoint import Snapshot
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, rate_table, set_rate

#: Times a step runs for real before and while it is captured.
REHEARSALS = 4
log = logging.getLogger(__name__)


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


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


@torch.no_grad()
def evaluate(net: SnefyNet, X: Any, objective: Objective, index: Tensor) -> Tensor:
    """Log likelihood of some rows under each member.

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
    parts = []
    step = BACKBONE_ROWS if isinstance(net.backbone, CustomBackbone) else EVALUATION_ROWS
    for start in range(0, index.shape[1], step):
        rows = index[:, start : start + step]
        parts.append(objective.log_prob(net, gather_rows(net, X, rows), rows))
    net.train(training)
    return torch.cat(parts, 1)


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


class StepQueue:
    """Rows and rates of an epoch's steps on the device; each step takes the next, so that a graph can do it, too.

    Args:
        index: where a step finds its rows (K, B).
        optimizer: whose rates to set.
        steps: steps per epoch.
    """

    def __init__(self, index: Tensor, optimizer: StackedAdamW, steps: int) -> None:
        self.index, self.optimizer, self.steps = index.view(1, -1), optimizer, steps
        room = steps + REHEARSALS  # a graph's rehearsals go past the end of a short epoch
        self.rows = index.new_zeros(room, index.numel())
        self.rates = optimizer.current.new_zeros(room, len(optimizer.current))
        self.current = optimizer.current.view(1, -1)
        self.place = torch.zeros(1, dtype=torch.long, device=index.device)

    def fill(self, rows: Tensor, shares: list[float]) -> None:
        """The epoch's rows (K, steps * B) and, for each step, the share of the peak rate."""
        members = len(rows)
        self.rows[: self.steps].view(self.steps, members, -1).copy_(rows.view(members, self.steps, -1).transpose(0, 1))
        self.rates[: self.steps].copy_(rate_table(self.optimizer, shares))
        self.place.zero_()

    def next(self) -> None:
        """Put the next step's rows and rates in place."""
        torch.index_select(self.rows, 0, self.place, out=self.index)
        torch.index_select(self.rates, 0, self.place, out=self.current)
        self.place.add_(1)


class GraphedStep:
    """Runs a step eagerly a few times, then captures and replays it; stays eager where capture fails.

    The step must read and write the same tensors every time. Warm-up and capture run it for real, so the state is put
    back afterwards and the first call counts as one step like any other.

    Args:
        step: the work.
        snapshot: copies the state the step changes.
        restore: puts such a copy back, in place.
    """

    def __init__(
        self,
        step: Callable[[], None],
        snapshot: Callable[[], dict[str, Tensor]],
        restore: Callable[[dict[str, Tensor]], None],
    ) -> None:
        self.step, self.snapshot, self.restore = step, snapshot, restore
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False

    def __call__(self) -> None:
        """One step."""
        if self.graph is None and not self.failed:
            self._capture()
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()

    def _capture(self) -> None:
        before = self.snapshot()
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(REHEARSALS - 1):
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with _no_collection(), torch.cuda.graph(graph):
                self.step()
            self.graph = graph
        except RuntimeError:  # of memory, or of a step that asks the device: what CUDA says of it helps nobody
            self.failed = True
            torch.cuda.synchronize()
            _warn_once()
        self.restore(before)


class Steps:
    """Updates of a net, one batch after the other.

    A step is written out where the objective offers that, and uses autograd otherwise. On a GPU, steps of the library's
    own backbone are captured once and replayed, so a step reads its rows and rates from where a graph finds them.

    Args:
        net: what to train.
        X: features of all rows.
        objective: what to explain.
        optimizer: of the net.
        snapshot: of both; rehearsals of a graph are undone with it.
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
        snapshot: Snapshot,
        batch: Tensor,
        n_steps: int,
        weights: Tensor | None,
    ) -> None:
        self.net, self.X, self.objective, self.optimizer, self.weights = net, X, objective, optimizer, weights
        self.snapshot, self.n_steps = snapshot, n_steps
        self.index = batch.clone()
        like = net.readout
        self.total = torch.zeros(len(batch), device=like.device, dtype=like.dtype)
        self.slope = torch.full_like(batch, -1.0 / batch.shape[1], dtype=like.dtype)
        self.written_out = None
        if isinstance(X, ScaledFeatures):
            self.written_out = objective.written_out_step(net, X, batch.shape[1])
        self.queue: StepQueue | None = None
        self.step: Callable[[], None] = self.update
        if like.device.type == "cuda":
            self.queue = StepQueue(self.index, optimizer, n_steps)
            if isinstance(net.backbone, StackedMLP):
                self.step = GraphedStep(self.update, self._before_rehearsal, self._after_rehearsal)

    def run(self, rows: Tensor, rates: list[float]) -> Tensor:
        """One epoch.

        Args:
            rows: of all steps, one after the other (K, steps · B).
            rates: share of the peak rate at each step.

        Returns:
            Mean loss of each member (K,).
        """
        size = self.index.shape[1]
        if self.queue is not None:
            self.queue.fill(rows, rates)
        self.total.zero_()
        for number, rate in enumerate(rates):
            if self.queue is None:
                set_rate(self.optimizer, rate)
                self.index.copy_(rows[:, number * size : (number + 1) * size])
            self.step()
        return self.total / self.n_steps

    def update(self) -> None:
        """One update on the rows in ``index``, its loss added to ``total``."""
        if self.queue is not None:
            self.queue.next()
        # The loss is -mean(log p), so its gradient for log p is a constant.
        slope = self.slope if self.weights is None else self.slope * self.weights[self.index]
        if self.written_out is not None:
            log_p = self.written_out(self.index, slope)
        else:
            self.optimizer.zero_grad()
            log_p = self.differentiate(slope)
        self.optimizer.step()
        self.net.project()
        self.total += (log_p * slope).sum(1)

    def differentiate(self, slope: Tensor) -> Tensor:
        """Log likelihoods (K, B) of the rows in ``index``, and gradients of their sum with slopes as weights."""
        log_p = self.objective.log_prob(self.net, gather_rows(self.net, self.X, self.index), self.index)
        torch.autograd.backward(log_p, slope.to(log_p.dtype))
        return log_p.detach()

    def release(self) -> None:
        """Drop gradients and the captured graph, which must not outlive the fit in a cycle of references."""
        for parameter in self.net.parameters():
            parameter.grad = None
        self.step = self.update

    def _before_rehearsal(self) -> dict[str, Tensor]:
        assert self.queue is not None
        return self.snapshot.take() | {"total": self.total.clone(), "place": self.queue.place.clone()}

    def _after_rehearsal(self, state: dict[str, Tensor]) -> None:
        assert self.queue is not None
        self.snapshot.put_back(state)
        self.total.copy_(state["total"])
        self.queue.place.copy_(state["place"])


class BackboneSteps(Steps):
    """Updates of a net whose backbone is the user's; see :class:`Steps`.

    A step may work on its rows in parts, one after the other: gradients add up, and memory is that of one part.
    """

    _batches: Iterator[Any] | None = None

    def run(self, rows: Tensor, rates: list[float]) -> Tensor:
        """One epoch; see :meth:`Steps.run`."""
        self._batches = self._read_ahead(rows) if isinstance(self.X, Objects) else None
        try:
            return super().run(rows, rates)
        finally:
            self._batches = None

    @property
    def _parts(self) -> list[slice]:
        """Columns of ``index`` that are worked on together."""
        size = self.index.shape[1]
        step = -(-size // self._backbone.settings.accumulate)
        return [slice(start, min(start + step, size)) for start in range(0, size, step)]

    @property
    def _backbone(self) -> CustomBackbone:
        return self.net.backbone

    def _read_ahead(self, rows: Tensor) -> Iterator[Any]:
        """Batches of every part of every step, in the order in which they are needed."""
        size = self.index.shape[1]
        modules = len(self._backbone.copies)
        numbers = rows[:modules].cpu()
        plan = [
            numbers[k, start + part.start : start + part.stop]
            for start in range(0, numbers.shape[1], size)
            for part in self._parts
            for k in range(modules)
        ]
        batches = self.X.batches(plan, self.net.readout.device)
        while True:
            batch = MemberBatches(next(batches, None) for _ in range(modules))
            if batch[-1] is None:
                return
            yield batch

    def differentiate(self, slope: Tensor) -> Tensor:
        """See :meth:`Steps.differentiate`; part by part, and each member's gradient cut to its limit."""
        logs = []
        for part in self._parts:
            index = self.index[:, part]
            x = gather_rows(self.net, self.X, index) if self._batches is None else next(self._batches)
            log_p = self.objective.log_prob(self.net, x, index)
            torch.autograd.backward(log_p, slope[:, part].to(log_p.dtype))
            logs.append(log_p.detach())
        if self._backbone.settings.clip is not None and not self._backbone.frozen:
            for module in self._backbone.copies:  # each member's by itself
                torch.nn.utils.clip_grad_norm_(module.parameters(), self._backbone.settings.clip)
        return torch.cat(logs, 1)
