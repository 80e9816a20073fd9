"""Steps of an epoch: rows and rates in, losses out, by the fastest route that objective and device allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.checkpoint import Snapshot
from snefy_ldl.training.cuda_graph import GraphedStep, StepQueue
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, limit_gradients, set_rate
from snefy_ldl.training.rows import gather_rows


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
        n_steps: an epoch.
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
            log_p = self.objective.log_prob(self.net, gather_rows(self.net, self.X, self.index), self.index)
            self.optimizer.zero_grad()
            torch.autograd.backward(log_p, slope.to(log_p.dtype))
        if self.objective.gradient_limit is not None:
            limit_gradients(self.net, self.objective.gradient_limit)
        self.optimizer.step()
        self.net.project()
        self.total += (log_p.detach() * slope).sum(1)

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
