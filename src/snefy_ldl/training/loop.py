"""The one fit loop: K stacked members, seeds, early stopping, checkpoints, history and progress."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from snefy_ldl._random import derive_seed
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.files.atomic import load_tensors, save_tensors
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches, ScaledFeatures, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.cuda_graph import GraphedStep, StepQueue
from snefy_ldl.training.kernels.step import WrittenOutStep
from snefy_ldl.training.objectives.targets import DistributionTarget, Target
from snefy_ldl.training.optimiser import StackedAdamW, copy_of_member, make_optimizer, set_rate
from snefy_ldl.training.recipe import Recipe, shuffles
from snefy_ldl.validation.rows import take_rows

#: How often a fit may undo an epoch and halve its learning rate before it gives up.
MAX_REPAIRS = 8
#: Rows a forward pass sees at a time when it only evaluates.
EVALUATION_ROWS = 4096
#: Features are scaled once for all members when that takes at most this many numbers (1 GiB of float32; 16 on a GPU).
SCALED_NUMBERS = {"cpu": 1 << 28, "cuda": 1 << 32}
#: A step of fewer multiplications than this (a few milliseconds) is done by one thread.
SHARED_PRODUCTS = 10**9


@dataclass
class Run:
    """What a fit leaves behind: the best validation loss of each member, its epoch, and the history."""

    best_loss: list[float]
    best_epoch: list[int]
    history: list[dict[str, float]] = field(default_factory=list)
    next_epoch: int = 0
    repairs: int = 0
    seconds: float = 0.0

    def of(self, members: list[int]) -> Run:
        """The part that concerns some of the members."""
        best = [self.best_loss[k] for k in members], [self.best_epoch[k] for k in members]
        return Run(*best, self.history, self.next_epoch, self.repairs, self.seconds)


def gather_rows(net: SnefyNet, X: Any, index: Tensor) -> Any:
    """Features of the rows index (K, B), in the form the backbone takes."""
    if isinstance(net.backbone, CustomBackbone):
        return MemberBatches(take_rows(X, rows) for rows in index)
    return X.rows(index) if isinstance(X, ScaledFeatures) else X[index]


@torch.no_grad()
def evaluate(net: SnefyNet, X: Any, target: Target, index: Tensor) -> Tensor:
    """Log likelihood (K, B) of the rows index (K, B), without gradients."""
    training = net.training
    net.eval()
    parts = []
    for start in range(0, index.shape[1], EVALUATION_ROWS):
        rows = index[:, start : start + EVALUATION_ROWS]
        parts.append(target.log_prob(net, gather_rows(net, X, rows), rows))
    net.train(training)
    return torch.cat(parts, 1)


def fit_net(
    net: SnefyNet,
    X: Any,
    target: Target,
    splits: Sequence[tuple[Tensor, Tensor]],
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    weights: Tensor | None = None,
    optimizer: StackedAdamW | None = None,
    rates: tuple[Tensor, Tensor] | None = None,
    verbose: int = 0,
    checkpoint: Path | None = None,
    fingerprint: str = "",
) -> Run:
    """Maximise the likelihood of every member on its own rows; the net ends at its best validated weights.

    Args:
        net: K members, initialised.
        X: features: a tensor (N, d), or what a custom backbone takes.
        target: what to explain.
        splits: (training rows, validation rows) of each member, all of one size; no validation rows means that the
            last weights stay.
        recipe: the optimiser.
        seeds: one a member; shuffles depend on nothing else.
        weights: row weights (N,).
        optimizer: one to go on with; a new one by default.
        rates: learning rate and weight decay of each member (K,), where they differ from the recipe's.
        verbose: 1 draws a progress bar.
        checkpoint: file written after every epoch; a fit that finds its own there goes on from it.
        fingerprint: names the data and settings, so that a foreign checkpoint is refused.
    """
    with _threads(net, recipe.batch_size):
        return _fit(
            _Loop(net, X, target, splits, recipe, seeds, weights, optimizer, rates), verbose, checkpoint, fingerprint
        )


@contextmanager
def _threads(net: SnefyNet, batch_size: int) -> Iterator[None]:
    """One thread while a step is too small to share: threads that wait for each other cost more than they save.

    On a busy machine they cost ten times as much. Custom backbones keep the threads they are given.
    """
    before = torch.get_num_threads()
    numbers = sum(parameter.numel() for parameter in net.parameters())
    small = 6 * batch_size * numbers < SHARED_PRODUCTS
    if net.readout.device.type != "cpu" or isinstance(net.backbone, CustomBackbone) or not small or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit(loop: _Loop, verbose: int, checkpoint: Path | None, fingerprint: str) -> Run:
    """Epochs until the end, with a progress bar."""
    recipe, may_shrink = loop.recipe, checkpoint is None and loop.owns_optimizer
    if checkpoint is not None:
        loop.resume(checkpoint, fingerprint)
    columns = (
        TextColumn("fit"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  validation {task.fields[validation]:.3f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=verbose < 1) as progress:
        bar = progress.add_task(
            "fit", total=recipe.epochs, completed=loop.run.next_epoch, loss=math.nan, validation=math.nan
        )
        whole = loop
        while not loop.finished:
            loop.epoch()
            if checkpoint is not None:
                loop.save(checkpoint, fingerprint)
            last = loop.run.history[-1]
            progress.update(
                bar, completed=loop.run.next_epoch, loss=last["loss"], validation=last.get("validation_loss", math.nan)
            )
            if may_shrink and loop.mostly_stopped:
                loop = loop.without_the_stopped()
    loop.finish()
    while loop is not whole:
        loop = loop.hand_back()
    return whole.run


class _Loop:
    """State of a fit between two epochs."""

    def __init__(
        self,
        net: SnefyNet,
        X: Any,
        target: Target,
        splits: Sequence[tuple[Tensor, Tensor]],
        recipe: Recipe,
        seeds: Sequence[int],
        weights: Tensor | None,
        optimizer: StackedAdamW | None,
        rates: tuple[Tensor, Tensor] | None,
    ) -> None:
        self.net, self.X, self.target, self.recipe, self.seeds, self.weights = net, X, target, recipe, seeds, weights
        self.device = net.readout.device
        if isinstance(net.backbone, StackedMLP) and isinstance(X, Tensor):
            room = SCALED_NUMBERS.get(self.device.type, 0)
            if ScaledFeatures.tables(net.backbone.scaler) * X.numel() <= room:
                self.X = ScaledFeatures.of(net.backbone.scaler, X)
        self.train_rows = torch.stack([train for train, _ in splits]).to(self.device)  # (K, n_train)
        self.valid_rows = torch.stack([valid for _, valid in splits]).to(self.device)  # (K, n_valid)
        self.batch_size = min(recipe.batch_size, self.train_rows.shape[1])
        self.steps = math.ceil(self.train_rows.shape[1] / self.batch_size)
        self.owns_optimizer = optimizer is None
        self.optimizer = optimizer or make_optimizer(
            net, recipe.learning_rate, recipe.exponent_rate, recipe.weight_decay, rates
        )
        n_members = net.n_members
        self.index = self.train_rows[:, : self.batch_size].clone()
        self.total = torch.zeros(n_members, device=self.device, dtype=net.readout.dtype)
        self.slope = torch.full_like(self.index, -1.0 / self.batch_size, dtype=net.readout.dtype)
        self.written_out: WrittenOutStep | None = None
        if isinstance(self.X, ScaledFeatures) and type(target) is DistributionTarget:
            self.written_out = WrittenOutStep(net, self.X, target, self.batch_size)
        self.step: Callable[[], None] = self._step
        self.queue: StepQueue | None = None
        if self.device.type == "cuda":
            self.queue = StepQueue(self.index, self.optimizer, self.steps)
            if isinstance(net.backbone, StackedMLP):
                self.step = GraphedStep(self._step, self._before_rehearsal, self._after_rehearsal)
        self.run = Run([math.inf] * n_members, [-1] * n_members)
        self.rates, self.parent, self.members = rates, self, list(range(n_members))
        self.rate_factor = 1.0
        self._saved: dict[str, Tensor] = {}
        self.best = {name: value.detach().clone() for name, value in net.named_parameters()}

    @property
    def finished(self) -> bool:
        """Whether every epoch is done, or every member has run out of patience."""
        if self.run.next_epoch >= self.recipe.epochs:
            return True
        return all(self._stopped(k) for k in range(self.net.n_members))

    def _stopped(self, member: int) -> bool:
        patience, best = self.recipe.patience, self.run.best_epoch[member]
        return patience is not None and best >= 0 and self.run.next_epoch - 1 - best >= patience

    # -- members that have stopped -----------------------------------------------------------------------------------

    @property
    def mostly_stopped(self) -> bool:
        """Whether a stack of those that still learn would be at most half as large."""
        stopped = sum(self._stopped(k) for k in range(self.net.n_members))
        stackable = isinstance(self.net.backbone, StackedMLP) and isinstance(self.X, ScaledFeatures)
        return stackable and not self.finished and 2 * stopped >= self.net.n_members

    def without_the_stopped(self) -> _Loop:
        """A loop that goes on with the others, at the same place and with the same moments."""
        keep = [k for k in range(self.net.n_members) if not self._stopped(k)]
        splits = [(self.train_rows[k], self.valid_rows[k]) for k in keep]
        rates = None if self.rates is None else (self.rates[0][keep], self.rates[1][keep])
        net, features = self.net.select(keep), self.X.select(keep)
        seeds = [self.seeds[k] for k in keep]
        part = _Loop(net, features, self.target.select(keep), splits, self.recipe, seeds, self.weights, None, rates)
        mine = dict(self.net.named_parameters())
        for name, parameter in net.named_parameters():
            part.best[name].copy_(self.best[name][keep])
            for key, moment in part.optimizer.state[parameter].items():
                own = self.optimizer.state[mine[name]][key]
                moment.copy_(own if key == "step" else own[keep])
        part.run, part.rate_factor = self.run.of(keep), self.rate_factor
        part.parent, part.members = self, keep
        return part

    @torch.no_grad()
    def hand_back(self) -> _Loop:
        """Put what was learnt since :meth:`without_the_stopped` into the loop it came from."""
        whole, run = self.parent, self.run
        for place, k in enumerate(self.members):
            whole.run.best_loss[k], whole.run.best_epoch[k] = run.best_loss[place], run.best_epoch[place]
        for name, value in self.net.named_parameters():
            whole.best[name][self.members] = value
        whole.run.next_epoch, whole.run.repairs, whole.run.seconds = run.next_epoch, run.repairs, run.seconds
        whole.finish()
        return whole

    def epoch(self) -> None:
        """One pass, undone with the rate halved if anything in it was not finite."""
        started = time.perf_counter()
        while True:
            before = self._snapshot()
            loss = self._pass()
            validation = self._validate()
            if self._sound(loss, validation):
                break
            self._restore(before)
            self._repair(loss)
        number = self.run.next_epoch
        record = {"epoch": float(number), "loss": float(loss.mean()), "seconds": time.perf_counter() - started}
        if validation is not None:
            record["validation_loss"] = float(validation.mean())
            self._keep_best(number, validation)
        self.run.seconds += record["seconds"]
        self.run.history.append(record)
        self.run.next_epoch += 1

    def _pass(self) -> Tensor:
        net, recipe, number = self.net, self.recipe, self.run.next_epoch
        net.train()
        rows = self.train_rows.gather(1, shuffles(self.seeds, number, self.train_rows.shape[1], self.device))
        # the last batch is filled up from the first, so that all have one size and every row is seen
        rows = torch.cat([rows, rows[:, : self.steps * self.batch_size - rows.shape[1]]], 1)
        first, last = number * self.steps, recipe.epochs * self.steps
        rates = [recipe.rate((first + step) / last) * self.rate_factor for step in range(self.steps)]
        if self.queue is not None:
            self.queue.fill(rows, rates)
        self.total.zero_()
        with self._own_randomness(number):
            for step, rate in enumerate(rates):
                if self.queue is None:
                    set_rate(self.optimizer, rate)
                    self.index.copy_(rows[:, step * self.batch_size : (step + 1) * self.batch_size])
                self.step()
        return self.total / self.steps

    @contextmanager
    def _own_randomness(self, number: int) -> Iterator[None]:
        """Dropout and the like in custom backbones draw from the fit's seed and leave the caller's generator alone."""
        if isinstance(self.net.backbone, StackedMLP):
            yield
            return
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(derive_seed(self.seeds[0], 2, number))
            yield

    def _step(self) -> None:
        """One update on the rows in ``index``, its loss added to ``total``."""
        if self.queue is not None:
            self.queue.next()
        # the loss is -mean(log p), so its gradient is a constant
        slope = self.slope if self.weights is None else self.slope * self.weights[self.index]
        if self.written_out is not None:
            log_p = self.written_out(self.index, slope)
        else:
            log_p = self.target.log_prob(self.net, gather_rows(self.net, self.X, self.index), self.index)
            self.optimizer.zero_grad()
            torch.autograd.backward(log_p, slope.to(log_p.dtype))
        self.optimizer.step()
        self.net.project()
        self.total += (log_p.detach() * slope).sum(1)

    def _before_rehearsal(self) -> dict[str, Tensor]:
        assert self.queue is not None
        return self._snapshot() | {"total": self.total.clone(), "place": self.queue.place.clone()}

    def _after_rehearsal(self, state: dict[str, Tensor]) -> None:
        assert self.queue is not None
        self._restore(state)
        self.total.copy_(state["total"])
        self.queue.place.copy_(state["place"])

    def _validate(self) -> Tensor | None:
        if self.valid_rows.shape[1] == 0:
            return None
        log_p = evaluate(self.net, self.X, self.target, self.valid_rows)
        if self.weights is not None:
            weights = self.weights[self.valid_rows]
            return -(log_p * weights).sum(1) / weights.sum(1).clamp_min(1e-12)
        return -log_p.mean(1)

    # -- repair ------------------------------------------------------------------------------------------------------

    def _sound(self, loss: Tensor, validation: Tensor | None) -> bool:
        sizes = torch.stack([norm.double() for norm in torch._foreach_norm([*self.net.parameters()])])
        checks = torch.isfinite(sizes).all() & torch.isfinite(loss).all()
        return bool(checks if validation is None else checks & torch.isfinite(validation).all())

    def _snapshot(self) -> dict[str, Tensor]:
        state = self._state()
        if self._saved.keys() != state.keys():
            self._saved = {name: torch.empty_like(value) for name, value in state.items()}
        torch._foreach_copy_([*self._saved.values()], [*state.values()])
        return self._saved

    @torch.no_grad()
    def _restore(self, state: dict[str, Tensor]) -> None:
        """Put parameters and moments back, in place: a captured graph keeps their addresses."""
        for name, parameter in self.net.named_parameters():
            parameter.copy_(state[f"net.{name}"])
            moments = self.optimizer.state[parameter]
            for key in ("step", "exp_avg", "exp_avg_sq"):
                saved = state.get(f"{key}.{name}")
                if key in moments:
                    moments[key].copy_(saved) if saved is not None else moments[key].zero_()
                elif saved is not None:
                    moments[key] = saved.clone()

    def _repair(self, loss: Tensor) -> None:
        self.run.repairs += 1
        self.rate_factor *= 0.5
        member = int(torch.nonzero(~torch.isfinite(loss)).flatten()[0]) if not torch.isfinite(loss).all() else 0
        what = f"epoch {self.run.next_epoch}: the loss of member {member} was not finite"
        if self.run.repairs > MAX_REPAIRS:
            raise TrainingError(f"{what} {self.run.repairs} times in a row of repairs. {self._diagnosis()}")
        warnings.warn(
            f"{what}; the epoch was undone and the learning rate halved (repair {self.run.repairs} of {MAX_REPAIRS}).",
            TrainingWarning,
            stacklevel=6,
        )

    def _diagnosis(self) -> str:
        facts = []
        features = self.X.values if isinstance(self.X, ScaledFeatures) else self.X
        if isinstance(features, Tensor):
            facts.append(f"largest |feature| {float(features.abs().max()):.3g}")
        exponents = self.net.exponents.detach()
        facts.append(f"largest exponent {float(exponents.max()):.3g}")
        return (
            f"Diagnosis: {', '.join(facts)}, learning rate now {self.recipe.learning_rate * self.rate_factor:.2g}. "
            'Scale the features (standardize="auto"), lower learning_rate, or check the backbone for NaN.'
        )

    # -- best weights ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _keep_best(self, number: int, validation: Tensor) -> None:
        losses = validation.tolist()
        better = [losses[k] < self.run.best_loss[k] and not self._stopped(k) for k in range(self.net.n_members)]
        for k, is_better in enumerate(better):
            if is_better:
                self.run.best_loss[k], self.run.best_epoch[k] = losses[k], number
        for name, value in self.net.named_parameters():
            member = copy_of_member(name)
            if member is not None:
                if better[member]:
                    self.best[name].copy_(value)
            elif any(better):
                mask = torch.tensor(better, device=value.device).view(-1, *[1] * (value.dim() - 1))
                torch.where(mask, value, self.best[name], out=self.best[name])

    @torch.no_grad()
    def finish(self) -> None:
        """Put the best validated weights into the net."""
        self.net.eval()
        if self.valid_rows.shape[1]:
            for name, value in self.net.named_parameters():
                value.copy_(self.best[name])
        for parameter in self.net.parameters():
            parameter.grad = None
        self.step = self._step  # a captured graph must not outlive the fit in a cycle of references

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Tensor]:
        tensors = {}
        for name, parameter in self.net.named_parameters():
            tensors[f"net.{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value.detach()
        return tensors

    def save(self, path: Path, fingerprint: str) -> None:
        """Write the state to a temporary name, then rename."""
        tensors = self._state() | {f"best.{name}": value for name, value in self.best.items()}
        tensors |= {f"buffer.{name}": value for name, value in self.net.named_buffers()}
        meta = {"fingerprint": fingerprint, "run": json.dumps(asdict(self.run)), "rate_factor": repr(self.rate_factor)}
        save_tensors(path, tensors, meta)

    @torch.no_grad()
    def resume(self, path: Path, fingerprint: str) -> None:
        """Go on from a checkpoint of this very fit; start afresh where there is none."""
        if not path.exists():
            return
        tensors, meta = load_tensors(path)
        if meta.get("fingerprint") != fingerprint:
            raise TrainingError(
                f"the checkpoint {path} belongs to other data or settings. Remove it, or use another checkpoint_dir."
            )
        tensors = {name: value.to(self.device) for name, value in tensors.items()}
        self._restore(tensors)
        for name in self.best:
            self.best[name].copy_(tensors[f"best.{name}"])
        for name, value in self.net.named_buffers():
            value.copy_(tensors[f"buffer.{name}"])
        self.run = Run(**json.loads(meta["run"]))
        self.rate_factor = float(meta["rate_factor"])
