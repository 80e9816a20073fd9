"""A fit on rows that are read as they come: one chunk in memory, net and optimiser carried from one to the next."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.memory import STREAM_ROWS
from snefy_ldl._internal.rows import as_rows, take_rows
from snefy_ldl._internal.types import Mask
from snefy_ldl.datasets.streams import Chunk, Stream
from snefy_ldl.errors import InputError
from snefy_ldl.training.checkpoint import FILE_NAME, Checkpoint
from snefy_ldl.training.choose import FittedModel
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.policy import POLICY, Settings
from snefy_ldl.training.prepare import Task, build_net, make_objective, prepare
from snefy_ldl.training.steps import copy_of_member, evaluate
from snefy_ldl.training.train import Course, Fit

#: Validation rows that are kept in memory, at most.
MOST_HELD = STREAM_ROWS // 2


class StreamFit(Course):
    """A fit on a stream: neurons start at its first rows, a sample of its rows is held back for validation.

    Nothing is loaded whole: a chunk of rows is in memory at a time, shuffled by itself. What needs all rows beforehand
    is settled simply: no guides, zeros are shrunk, features scaled by the first chunk.

    Args:
        settings: of the model.
        stream: pairs of x and labels, from whose first rows the model starts.
        columns: a dict overriding the kinds of some columns of tables; "auto" looks at the first chunk.
        exchange: the workers that train the same model: ``n_workers``, and ``average(tensors)``; None trains alone.
        shard: the rows of this worker, as many as every other's and in chunks of the same sizes; ``stream`` by default.

    Raises:
        InputError: the stream is empty or has no labels, or a chunk breaks a rule.
        TrainingError: a loss is not finite.
    """

    def __init__(
        self, settings: Settings, stream: Stream, columns: Any, exchange: Any = None, shard: Stream | None = None
    ) -> None:
        self.stream, self.columns, self.exchange = shard or stream, columns, exchange
        simple = {"auto": "unit"}.get(str(settings.standardize), settings.standardize)
        self.settings = replace(settings, standardize=simple, guides=None, candidates=None, validation_fraction=0.0)
        self.fraction, self.device = settings.validation_fraction, settings.torch_device
        first = next(stream.chunks())
        if first.labels is None:
            raise InputError(
                f"the stream holds no pairs (x, labels), which a fit needs; its rows are {type(first.X).__name__}."
            )
        self.counts = first.split(stream.counts)[1] is not None
        task = Task(self.settings, self._data(first))
        (spec,) = POLICY.specs(task)
        self.problem = prepare(spec, task)
        self.columns = columns if task.data.columns is None else task.data.columns
        size = settings.batch_size if settings.batch_size != "auto" else stream.batch_size or POLICY.stream_batch
        net = build_net([self.problem]).to(self.device)
        super().__init__(net, replace(task.schedule, batch_size=int(size)), self.problem.teams)
        self.start = FittedModel.of(Fit(self.problem, self.run, net), [])
        if exchange is not None:
            weights = list(net.parameters())  # every worker takes the same step: that of the mean of all gradients
            self.optimizer.before_step = lambda: exchange.average([w.grad for w in weights if w.grad is not None])
        self.length = self.stream.n_rows
        self.masks: list[Mask] = []  # which rows of each chunk are held back
        self.held: list[tuple[Any, Objective, Tensor]] = []
        self.checkpoint: Checkpoint | None = None
        if settings.checkpoint_dir is not None:
            place = Path(settings.checkpoint_dir) / FILE_NAME
            self.checkpoint = Checkpoint(place, self, task, self.problem.name)
            self._go_on()

    def _go_on(self) -> None:
        """Find out what a checkpoint does not hold: where the stream is, and the validation rows."""
        if self.run.epochs:
            self.length = int(self.run.epochs[-1]["rows"])
            self.steps_done = int(sum(record["steps"] for record in self.run.epochs))
            for number, chunk in enumerate(self.stream.chunks()):  # the held rows again, as the first epoch took them
                if sum(int(mask.sum()) for mask in self.masks) >= MOST_HELD:
                    break
                self._hold_back(number, chunk)

    # -- chunks ------------------------------------------------------------------------------------------------------

    def _data(self, chunk: Chunk) -> TrainingData:
        shares, votes = chunk.split(self.counts)
        return TrainingData(chunk.X, shares, votes, None, self.settings.backbone, self.columns, keep_constant=True)

    def _take(self, chunk: Chunk, rows: Any) -> Chunk:
        return Chunk(take_rows(as_rows(chunk.X), rows), take_rows(as_rows(chunk.labels), rows), chunk.whole)

    def _hold_back(self, number: int, chunk: Chunk) -> Chunk:
        """The rows of a chunk that are trained on; the first epoch holds some back, later ones leave out the same."""
        if number == len(self.masks):
            room = MOST_HELD - sum(int(mask.sum()) for mask in self.masks)
            draw = np.random.default_rng(self.problem.task.seed_of(11, number)).random(len(chunk))
            mask = (draw < self.fraction) & (np.cumsum(draw < self.fraction) <= room)
            mask &= np.cumsum(~mask) > 1  # rows to train on remain
            self.masks.append(mask)
            if mask.any():
                rows = np.flatnonzero(mask)
                own = self._take(chunk, rows if len(rows) > 1 else np.repeat(rows, 2))  # a task has two rows or more
                self.held.append(self._labels(own))
        mask = self.masks[number]
        if not mask.any() or len(mask) != len(chunk):
            return chunk
        return self._take(chunk, np.flatnonzero(~mask))

    def _labels(self, chunk: Chunk) -> tuple[Any, Objective, Tensor]:
        """What the net reads of a chunk, what it must explain, and the rows in each member's order."""
        start, seed = self.start, self.problem.task.seed_of(self.run.next_epoch, self.steps_done)
        data, policy = self._data(chunk), start.zero_policy
        task = Task(self.settings, data, start=start, one_pass=True, policy=policy, warn=False, seed=seed)
        problem = prepare(self.problem.spec, task)
        order = torch.stack([member.train for member in problem.members]).to(self.device)
        return problem.data.tensor(self.device), make_objective(self.net, [problem], self.device), order

    # -- epochs ------------------------------------------------------------------------------------------------------

    def epoch(self) -> None:
        """One pass over the stream."""
        started = time.perf_counter()
        self.thaw()
        loss, rows, steps_before = torch.zeros(self.net.n_members, dtype=torch.float64), 0, self.steps_done
        seen = 0
        for place, chunk in enumerate(self.stream.chunks()):
            part = self._hold_back(place, chunk)
            seen += len(chunk)
            if len(part) < 2:
                continue
            loss += self._learn(part, seen) * len(part)
            rows += len(part)
        self.length = seen
        if self.exchange is not None:  # running statistics of a backbone
            buffers = [value for name, value in self.net.named_buffers() if copy_of_member(name) is not None]
            self.exchange.average([value for value in buffers if value.is_floating_point()])
        record: dict[str, Any] = {"loss": (loss / max(rows, 1)).tolist(), "rows": float(seen)}
        record |= {"steps": float(self.steps_done - steps_before), "seconds": time.perf_counter() - started}
        if self.held:
            parts = [evaluate(self.net, *held) for held in self.held]
            losses = -torch.cat(parts, 1).mean(1).double()
            if self.exchange is not None:  # each holds back as many rows as the others
                self.exchange.average([losses])
            record["validation_loss"] = losses.tolist()
            self.keep_best(losses.tolist())
        self.run.epochs.append(record)
        if self.checkpoint is not None:
            self.checkpoint.save()

    def _learn(self, chunk: Chunk, seen: int) -> Tensor:
        """Every row of a chunk once; mean loss of each member (K,), float64."""
        rate = lambda step, _: self._rate(step, seen)  # noqa: E731
        loss = self.learn(*self._labels(chunk), rate, self.problem.task.seed_of(2, self.steps_done))
        if self.exchange is not None:  # all find it sound, or none
            self.exchange.average([loss])
        self.check(loss)
        return loss.double().cpu()

    def _rate(self, step: int, seen: int) -> float:
        """Share of the peak rate at a step of the present chunk."""
        if self.length is not None:
            progress = (self.run.next_epoch + min(seen / self.length, 1.0)) / self.schedule.epochs
            return self.schedule.rate(min(progress, 1.0 - 1e-9))
        done = self.steps_done + step + 1
        return min(1.0, done / POLICY.warm_up) * min(1.0, math.sqrt(POLICY.plateau / done))

    def model(self) -> FittedModel:
        """The fitted model: best validated weights, the background's share settled on the rows held back."""
        self.conclude(self.held)
        model = FittedModel.of(Fit(self.problem, self.run, self.net), [])
        held = sum(int(mask.sum()) for mask in self.masks)
        workers = 1 if self.exchange is None else self.exchange.n_workers
        about = {"rows": workers * ((self.length or 0) - held), "validation_rows": workers * held, "streamed": True}
        summary = model.summary | about | ({} if workers == 1 else {"workers": workers})
        return replace(model, summary=summary)
