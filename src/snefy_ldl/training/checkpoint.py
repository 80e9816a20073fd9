"""The course of a fit, copies of its best weights, and the file from which a killed fit continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from snefy_ldl._internal.files import load_tensors, save_tensors
from snefy_ldl.errors import TrainingError
from snefy_ldl.networks.custom import Backbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.optimiser import StackedAdamW, copy_of_member

if TYPE_CHECKING:
    from snefy_ldl.training.prepare import Task

#: Settings that do not change what is learnt.
PASSING = ("verbose", "checkpoint_dir", "warm_start", "columns", "guides", "candidates")
#: Name of the file in ``checkpoint_dir``.
FILE_NAME = "checkpoint.safetensors"


@dataclass
class Run:
    """The course of a fit.

    Args:
        best_loss: smallest validation loss of each member (K); infinite where there was none.
        best_epoch: its epoch (K); -1 where there was none.
        epochs: one record per epoch: ``loss`` and ``validation_loss`` of each member (K) and ``seconds``; of streams
            also ``rows`` and ``steps``.
        repairs: how often an epoch was undone.
    """

    best_loss: list[float]
    best_epoch: list[int]
    epochs: list[dict[str, Any]] = field(default_factory=list)
    repairs: int = 0

    @property
    def next_epoch(self) -> int:
        """Epochs done."""
        return len(self.epochs)

    @property
    def seconds(self) -> float:
        """Time spent in epochs."""
        return float(sum(record["seconds"] for record in self.epochs))

    @property
    def history(self) -> list[dict[str, float]]:
        """One record per epoch: ``epoch``, ``loss``, ``validation_loss`` and ``seconds``, losses as member means."""
        return [
            {"epoch": float(number)}
            | {k: float(np.mean(value)) if isinstance(value, list) else value for k, value in record.items()}
            for number, record in enumerate(self.epochs)
        ]

    def of(self, members: list[int]) -> Run:
        """The part that concerns some of the members; time is shared out evenly."""
        part, epochs = len(members) / len(self.best_loss), []
        for record in self.epochs:
            own = {k: [value[m] for m in members] for k, value in record.items() if isinstance(value, list)}
            epochs.append({**record, **own, "seconds": part * record["seconds"]})
        best = [self.best_loss[k] for k in members], [self.best_epoch[k] for k in members]
        return Run(*best, epochs, self.repairs)

    def joined(self, other: Run) -> Run:
        """The course of these members and others, trained after them."""
        epochs = []
        for mine, theirs in zip_longest(self.epochs, other.epochs):
            if mine is None or theirs is None:  # members that ran out of patience
                epochs.append(mine or theirs)
            else:
                epochs.append({k: mine[k] + theirs[k] for k in mine})
        best = self.best_loss + other.best_loss, self.best_epoch + other.best_epoch
        return Run(*best, epochs, self.repairs + other.repairs)


def changing_tensors(net: SnefyNet) -> Iterator[tuple[str, Tensor]]:
    """What training changes, by name: parameters, and the running statistics of a backbone of the user's own."""
    yield from net.named_parameters()
    yield from ((name, value) for name, value in net.named_buffers() if copy_of_member(name) is not None)


class BestWeights:
    """A copy of a net's parameters, renewed member by member.

    Args:
        net: K members.

    Attributes:
        values: the copies by the parameters' names.
    """

    def __init__(self, net: SnefyNet) -> None:
        self.net = net
        self.values: dict[str, Tensor] = {name: value.detach().clone() for name, value in changing_tensors(net)}

    @torch.no_grad()
    def keep(self, better: list[bool]) -> None:
        """Copy the present weights of the members that are better (K)."""
        for name, value in changing_tensors(self.net):
            member = copy_of_member(name)
            if member is not None:
                if better[member]:  # of a backbone that all share, members are better or worse together
                    self.values[name].copy_(value)
            elif any(better):
                mask = torch.tensor(better, device=value.device).view(-1, *[1] * (value.dim() - 1))
                torch.where(mask, value, self.values[name], out=self.values[name])

    @torch.no_grad()
    def put_back(self) -> None:
        """Put the best weights into the net."""
        for name, value in changing_tensors(self.net):
            value.copy_(self.values[name])


class Snapshot:
    """A copy of parameters and moments, in memory that is used again.

    Args:
        net: whose parameters.
        optimizer: whose moments.
    """

    def __init__(self, net: SnefyNet, optimizer: StackedAdamW) -> None:
        self.net, self.optimizer = net, optimizer
        self._copies: dict[str, Tensor] = {}

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and moments themselves, by name."""
        tensors = {}
        for name, parameter in self.net.named_parameters():
            tensors[f"net.{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value.detach()
        for name, value in self.net.named_buffers():
            if copy_of_member(name) is not None:  # running statistics of a backbone
                tensors[f"buffer.{name}"] = value
        return tensors

    def take(self) -> dict[str, Tensor]:
        """Copies of them, which the next call overwrites."""
        state = self.tensors()
        if self._copies.keys() != state.keys():
            self._copies = {name: torch.empty_like(value) for name, value in state.items()}
        torch._foreach_copy_([*self._copies.values()], [*state.values()])
        return self._copies

    @torch.no_grad()
    def put_back(self, state: dict[str, Tensor]) -> None:
        """Put copies back, in place: a captured graph keeps the addresses."""
        for name, parameter in self.net.named_parameters():
            parameter.copy_(state[f"net.{name}"])
            for key, moment in self.optimizer.state[parameter].items():
                moment.copy_(state[f"{key}.{name}"])
        for name, buffer in self.net.named_buffers():
            if f"buffer.{name}" in state:
                buffer.copy_(state[f"buffer.{name}"])


class Checkpoint:
    """The file from which a killed fit goes on.

    Args:
        path: where it is, or will be.
        fingerprint: names data and settings, so that a foreign file is refused.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint

    def save(self, snapshot: Snapshot, best: BestWeights, run: Run, rate_factor: float) -> None:
        """Write everything to a temporary name, then rename."""
        tensors = snapshot.tensors() | {f"best.{name}": value for name, value in best.values.items()}
        tensors |= {f"buffer.{name}": value for name, value in snapshot.net.named_buffers()}
        meta = {"fingerprint": self.fingerprint, "run": json.dumps(asdict(run)), "rate_factor": repr(rate_factor)}
        save_tensors(self.path, tensors, meta)

    @torch.no_grad()
    def resume(self, snapshot: Snapshot, best: BestWeights) -> tuple[Run, float] | None:
        """Put what the file holds into net, optimiser and best weights.

        Args:
            snapshot: of the net and optimiser that go on.
            best: their best weights.

        Returns:
            The run so far and the factor of its rates, or None where there is no file.

        Raises:
            TrainingError: where the file belongs to another fit.
        """
        if not self.path.exists():
            return None
        tensors, meta = load_tensors(self.path)
        if meta.get("fingerprint") != self.fingerprint:
            raise TrainingError(
                f"the checkpoint {self.path} belongs to other data or settings. Remove it, or use another "
                "checkpoint_dir."
            )
        tensors = {name: value.to(snapshot.net.readout.device) for name, value in tensors.items()}
        snapshot.put_back(tensors)
        for name, value in best.values.items():
            value.copy_(tensors[f"best.{name}"])
        for name, value in snapshot.net.named_buffers():
            value.copy_(tensors[f"buffer.{name}"])
        return Run(**json.loads(meta["run"])), float(meta["rate_factor"])


def fingerprint(task: Task, what: str) -> str:
    """A digest of a task's settings, seed and data, and of the candidate in words."""
    digest = hashlib.blake2b(digest_size=16)
    names = [field.name for field in fields(task.settings) if field.name not in PASSING]
    settings = {name: repr(getattr(task.settings, name)) for name in names}
    if task.settings.backbone is not None:
        settings["backbone"] = repr(Backbone.of(task.settings.backbone))
    digest.update(json.dumps([settings, task.seed, what], sort_keys=True).encode())
    data = task.data
    parts = [data.labels, task.rows]
    if data.partial is not None:
        parts += [data.partial.named, data.partial.sets]
    if data.weights is not None:
        parts.append(data.weights)
    if isinstance(data.features, np.ndarray):
        parts.append(data.features)
    elif sp.issparse(data.features):
        parts += [data.features.data, data.features.indices, data.features.indptr]
    for part in parts:
        digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return digest.hexdigest()
