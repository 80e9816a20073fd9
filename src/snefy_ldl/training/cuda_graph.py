"""A training step captured once as a CUDA graph and replayed: hundreds of small kernels for the price of one launch."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from snefy_ldl.training.optimiser import StackedAdamW, rate_table

#: Times a step runs for real before and while it is captured.
REHEARSALS = 4

log = logging.getLogger(__name__)


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
        steps: an epoch.
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
