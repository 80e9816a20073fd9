"""Steps of a net with a backbone of the user's own: batches fetched ahead, in parts, gradients clipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches
from snefy_ldl.training.optimiser import limit_gradients
from snefy_ldl.training.rows import gather_rows
from snefy_ldl.training.step import Steps


class BackboneSteps(Steps):
    """Updates of a net whose backbone is the user's; see :class:`~snefy_ldl.training.step.Steps`.

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
        backbone: CustomBackbone = self.net.backbone
        return backbone

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

    def update(self) -> None:
        """One update on the rows in ``index``, its loss added to ``total``."""
        if self.queue is not None:
            self.queue.next()
        slope = self.slope if self.weights is None else self.slope * self.weights[self.index]
        self.optimizer.zero_grad()
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
        if self.objective.gradient_limit is not None:
            limit_gradients(self.net, self.objective.gradient_limit)
        self.optimizer.step()
        self.net.project()
        self.total += (torch.cat(logs, 1) * slope).sum(1)
