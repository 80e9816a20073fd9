"""A training step captured once as a CUDA graph and replayed: hundreds of small kernels for the price of one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

log = logging.getLogger(__name__)


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
                for _ in range(3):
                    self.step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            self.graph = graph
        except RuntimeError as error:
            self.failed = True
            torch.cuda.synchronize()
            log.warning("the training step could not be captured as a CUDA graph and runs eagerly: %s", error)
        self.restore(before)
