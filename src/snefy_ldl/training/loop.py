"""The fit loop: steps by the fastest route that objective and device allow, and epochs of K stacked members.

Seeds, early stopping, repairs, members that leave the stack, and history.
"""

from __future__ import annotations

import gc
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.limits import BACKBONE_ROWS, EVALUATION_ROWS, SCALED_NUMBERS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl._internal.threads import one_thread
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.networks.backbones import CustomBackbone, MemberBatches, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.checkpoint import BestWeights, Checkpoint, Snapshot
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, make_optimizer, rate_table, set_rate
from snefy_ldl.training.settings import Recipe
from snefy_ldl.training.state import Run

#: How often a fit may undo an epoch and halve its learning rate before it gives up.
MAX_REPAIRS = 8
#: A step of fewer multiplications than this (a few milliseconds) is done by one thread.
SHARED_PRODUCTS = 10**9
#: Training and validation rows of each member, all of one size.
Splits = Sequence[tuple[Tensor, Tensor]]


def is_sound(net: SnefyNet, loss: Tensor, validation: Tensor | None) -> bool:
    """Whether parameters, training losses and validation losses are all finite."""
    sizes = torch.stack([norm.double() for norm in torch._foreach_norm([*net.parameters()])])
    checks = torch.isfinite(sizes).all() & torch.isfinite(loss).all()
    return bool(checks if validation is None else checks & torch.isfinite(validation).all())


def count_repair(run: Run, loss: Tensor, diagnosis: str) -> None:
    """Count one more repair in the run, and warn of it.

    Args:
        run: the fit so far.
        loss: of each member (K,), in the epoch that was undone.
        diagnosis: what is known about the trouble.

    Raises:
        TrainingError: where it was one too many.
    """
    run.repairs += 1
    member = int(torch.nonzero(~torch.isfinite(loss)).flatten()[0]) if not torch.isfinite(loss).all() else 0
    what = f"epoch {run.next_epoch}: the loss of member {member} was not finite"
    if run.repairs > MAX_REPAIRS:
        raise TrainingError(f"{what} {run.repairs} times in a row of repairs. {diagnosis}")
    warnings.warn(
        f"{what}; the epoch was undone and the learning rate halved (repair {run.repairs} of {MAX_REPAIRS}).",
        TrainingWarning,
        stacklevel=8,  # the line that called SnefyLDL.fit
    )


def diagnose(net: SnefyNet, X: Any, learning_rate: float) -> str:
    """What is known about a net that does not train.

    Args:
        net: K members.
        X: features of all rows.
        learning_rate: as it is now.

    Returns:
        A sentence with the largest feature and exponent, and what to try.
    """
    facts = []
    features = X.values if isinstance(X, ScaledFeatures) else X
    if isinstance(features, Tensor):
        facts.append(f"largest |feature| {float(features.abs().max()):.3g}")
    facts.append(f"largest exponent {float(net.exponents.detach().max()):.3g}")
    return (
        f"Diagnosis: {', '.join(facts)}, learning rate now {learning_rate:.2g}. "
        'Scale the features (standardize="auto"), lower learning_rate, or check the backbone for NaN.'
    )


def _is_small(net: SnefyNet, batch_size: int) -> bool:
    """Whether a step is too small to share: threads that wait for each other cost more than they save.

    On a busy machine they cost ten times as much. Custom backbones keep the threads they are given.
    """
    numbers = sum(parameter.numel() for parameter in net.parameters())
    small = 6 * batch_size * numbers < SHARED_PRODUCTS
    return small and net.readout.device.type == "cpu" and not isinstance(net.backbone, CustomBackbone)


class Standing(NamedTuple):
    """How a member stands between two epochs.

    Args:
        log_prob: log likelihoods of its validation rows at its best epoch so far (B,), on the CPU.
        best_losses: its smallest validation loss up to each epoch.
    """

    log_prob: Tensor
    best_losses: list[float]


class Trainer:
    """A fit that goes on in parts: between them members can be compared, and some of them dropped.

    Loops of fewer members take over where members have stopped or were dropped; members are numbered as in the first
    one throughout.

    Args:
        loop: all members, before their first epoch.
        checkpoint: written after every epoch; a fit whose file is there goes on from it. No member leaves the stack.

    Attributes:
        epochs: done by each member (K).
        seconds: spent on each member (K); members of a stack share its time evenly.
        dropped: members that were dropped.

    Raises:
        TrainingError: where the checkpoint belongs to another fit.
    """

    def __init__(self, loop: TrainingLoop, checkpoint: Checkpoint | None = None) -> None:
        if checkpoint is not None:
            loop.resume(checkpoint)
        self._loops, self._checkpoint = [loop], checkpoint
        self._small = _is_small(loop.net, loop.recipe.batch_size)
        self._may_shrink, n_members = checkpoint is None, loop.net.n_members
        self._places = list(range(n_members))  # of the present loop's members
        self.epochs, self.seconds = [loop.run.next_epoch] * n_members, [0.0] * n_members
        self.dropped: set[int] = set()

    @property
    def _loop(self) -> TrainingLoop:
        return self._loops[-1]

    @property
    def run(self) -> Run:
        """The course of the fit so far, of the members that are still in it."""
        return self._loop.run

    @property
    def finished(self) -> bool:
        """Whether no member has an epoch to do."""
        return self._loop.finished

    @property
    def note(self) -> str:
        """The last epoch's losses in words."""
        if not self.run.history:
            return ""
        last = self.run.history[-1]
        return f"loss {last['loss']:.3f} validation {last.get('validation_loss', math.nan):.3f}"

    def advance(self, until: int, after_epoch: Callable[[], None] | None = None) -> None:
        """Train until so many epochs are done, or every member has stopped.

        Args:
            until: epochs in all.
            after_epoch: called after each.

        Raises:
            TrainingError: where losses stay infinite after several repairs.
        """
        with one_thread(self._small):
            while not self.finished and self.run.next_epoch < until:
                self._epoch()
                if after_epoch is not None:
                    after_epoch()

    def _epoch(self) -> None:
        loop = self._loop
        learning = [place for place, stopped in zip(self._places, loop.stopped) if not stopped]
        loop.epoch()
        for place in learning:
            self.epochs[place] = loop.run.next_epoch
            self.seconds[place] += loop.run.history[-1]["seconds"] / len(learning)
        if self._checkpoint is not None:
            self._checkpoint.save(loop.snapshot, loop.best, loop.run, loop.rate_factor)
        if self._may_shrink and loop.mostly_stopped:
            self._shrink()

    def standings(self) -> dict[int, Standing]:
        """How the members stand that are still in the fit, by number."""
        loop = self._loop
        rows = {} if loop.held is None else dict(zip(self._places, loop.held.cpu()))
        numbers = {place: k for k, place in enumerate(self._places)}
        return {
            place: Standing(row, [losses[numbers[place]] for losses in loop.best_losses])
            for place, row in rows.items()
            if place not in self.dropped
        }

    def drop(self, members: Sequence[int]) -> None:
        """Train some members no further."""
        loop, leaving = self._loop, set(members) - self.dropped
        self.dropped |= leaving
        loop.dropped |= {k for k, place in enumerate(self._places) if place in leaving}
        if not leaving:
            return
        # A GPU trains a few members in the time of one, and a smaller stack would have to be captured anew.
        if self._may_shrink and loop.net.readout.device.type == "cpu" and loop.can_shrink and not loop.finished:
            with one_thread(self._small):
                self._shrink()

    def _shrink(self) -> None:
        part = self._loop.without_the_stopped()
        self._places = [self._places[k] for k in part.members]
        self._loops.append(part)

    def finish(self) -> Run:
        """Put every member's best validated weights into the net.

        Returns:
            The course of the fit, of all members.
        """
        with one_thread(self._small):
            self._loop.finish()
            for whole, part in zip(self._loops[-2::-1], self._loops[:0:-1]):
                whole.take_back(part)
        return self._loops[0].run


class TrainingLoop:
    """A fit between two epochs: it maximises the likelihood of every member on its own rows.

    Args:
        net: K members, initialised; it ends at its best validated weights.
        X: features: a tensor (N, d), or what a custom backbone takes.
        objective: what to explain.
        splits: (training rows, validation rows) of each member, all of one size; no validation rows means that the
            last weights stay.
        recipe: how to train.
        seeds: one per member; shuffles depend on nothing else.
        weights: row weights (N,).
        optimizer: one to go on with; a new one by default.
        rates: learning rate and weight decay of each member (K,), where they differ from the recipe's.
        teams: for each member a number; members with the same one stop at a common epoch. Each by itself by default.

    Attributes:
        run: the course of the fit so far.
        best: the weights at which each member did best.
        rate_factor: halved by every repair.
        members: which members of the loop it came from these are; see :meth:`without_the_stopped`.
        dropped: members that train no further.
        held: log likelihoods of the validation rows at each member's best epoch (K, B); None before the first epoch.
        best_losses: the smallest validation loss of each member up to each epoch.
    """

    def __init__(
        self,
        net: SnefyNet,
        X: Any,
        objective: Objective,
        splits: Splits,
        recipe: Recipe,
        seeds: Sequence[int],
        weights: Tensor | None = None,
        optimizer: StackedAdamW | None = None,
        rates: tuple[Tensor, Tensor] | None = None,
        teams: Sequence[int] | None = None,
    ) -> None:
        self.teams = list(range(net.n_members) if teams is None else teams)
        self.net, self.objective, self.recipe, self.seeds = net, objective, recipe, seeds
        self.weights, self.rates, self._goes_on = weights, rates, optimizer is not None
        device = net.readout.device
        self.X = _scaled_once(net, X)
        self.train_rows = torch.stack([train for train, _ in splits]).to(device)  # (K, n_train)
        self.valid_rows = torch.stack([valid for _, valid in splits]).to(device)  # (K, n_valid)
        self.batch_size = min(recipe.batch_size, self.train_rows.shape[1])
        self.n_steps = math.ceil(self.train_rows.shape[1] / self.batch_size)
        self.optimizer = optimizer or make_optimizer(
            net, recipe.learning_rate, recipe.exponent_rate, recipe.weight_decay, rates
        )
        self.snapshot = Snapshot(net, self.optimizer)
        batch = self.train_rows[:, : self.batch_size]
        make_steps = BackboneSteps if isinstance(net.backbone, CustomBackbone) else Steps
        self.steps = make_steps(net, self.X, objective, self.optimizer, self.snapshot, batch, self.n_steps, weights)
        self.run = Run([math.inf] * net.n_members, [-1] * net.n_members)
        self.rate_factor = 1.0
        self.members = list(range(net.n_members))
        self.best = BestWeights(net)
        self.dropped: set[int] = set()
        self.held: Tensor | None = None
        self.best_losses: list[list[float]] = []

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this very fit; start afresh where there is none."""
        progress = checkpoint.resume(self.snapshot, self.best)
        if progress is not None:
            self.run, self.rate_factor = progress

    # -- epochs ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every epoch is done, or every member has run out of patience."""
        return self.run.next_epoch >= self.recipe.epochs or all(self.stopped)

    @property
    def stopped(self) -> list[bool]:
        """Whether each member has run out of patience or was dropped (K)."""
        patience, now = self.recipe.patience, self.run.next_epoch - 1
        return [
            k in self.dropped or (patience is not None and best >= 0 and now - best >= patience)
            for k, best in enumerate(self.run.best_epoch)
        ]

    def epoch(self) -> None:
        """One pass, undone with the rate halved if anything in it was not finite."""
        started = time.perf_counter()
        while True:
            before = self.snapshot.take()
            loss = self._pass()
            log_p = self._log_prob_of_held()
            validation = None if log_p is None else self._mean_loss(log_p)
            if is_sound(self.net, loss, validation):
                break
            self.snapshot.put_back(before)
            self.rate_factor *= 0.5
            rate = self.recipe.learning_rate * self.rate_factor
            count_repair(self.run, loss, diagnose(self.net, self.X, rate))
        number = self.run.next_epoch
        record = {"epoch": float(number), "loss": float(loss.mean()), "seconds": time.perf_counter() - started}
        self.run.losses.append(loss.tolist())
        if validation is not None and log_p is not None:
            record["validation_loss"] = float(validation.mean())
            self.run.validation_losses.append(validation.tolist())
            self._keep_best(number, validation.tolist(), log_p)
        self.run.seconds += record["seconds"]
        self.run.history.append(record)
        self.run.next_epoch += 1

    def _pass(self) -> Tensor:
        """Every training row once; mean loss of each member (K,)."""
        recipe, number, n_steps = self.recipe, self.run.next_epoch, self.n_steps
        backbone = self.net.backbone
        if isinstance(backbone, CustomBackbone) and backbone.freeze(number < backbone.settings.freeze_epochs):
            self.optimizer.forget_layout()
        self.net.train()
        order = shuffles(self.seeds, number, self.train_rows.shape[1], self.train_rows.device)
        rows = self.train_rows.gather(1, order)
        # The last batch is filled up from the first, so that all have one size and every row is seen.
        rows = torch.cat([rows, rows[:, : n_steps * self.batch_size - rows.shape[1]]], 1)
        first, last = number * n_steps, recipe.epochs * n_steps
        rates = [recipe.rate((first + step) / last) * self.rate_factor for step in range(n_steps)]
        if isinstance(backbone, StackedMLP):  # draws nothing
            return self.steps.run(rows, rates)
        with seeded(derive_seed(self.seeds[0], 2, number), rows.device):
            return self.steps.run(rows, rates)

    def _log_prob_of_held(self) -> Tensor | None:
        """Log likelihood of each member's validation rows (K, B), or None without any."""
        if self.valid_rows.shape[1] == 0:
            return None
        return evaluate(self.net, self.X, self.objective, self.valid_rows)

    def _mean_loss(self, log_p: Tensor) -> Tensor:
        """Validation loss of each member (K,)."""
        if self.weights is not None:
            weights = self.weights[self.valid_rows]
            return -(log_p * weights).sum(1) / weights.sum(1).clamp_min(1e-12)
        return -log_p.mean(1)

    def _keep_best(self, number: int, losses: list[float], log_p: Tensor) -> None:
        run = self.run
        if isinstance(self.net.backbone, CustomBackbone) and self.net.backbone.shared:  # one backbone, one best epoch
            losses = [sum(losses) / len(losses)] * len(losses)
        if len(set(self.teams)) < len(self.teams):
            means = {team: float(np.mean([x for x, t in zip(losses, self.teams) if t == team])) for team in self.teams}
            losses = [means[team] for team in self.teams]
        better = [loss < best and not stopped for loss, best, stopped in zip(losses, run.best_loss, self.stopped)]
        for k, is_better in enumerate(better):
            if is_better:
                run.best_loss[k], run.best_epoch[k] = losses[k], number
        self.best.keep(better)
        mask = torch.tensor(better, device=log_p.device)[:, None]
        self.held = log_p if self.held is None else torch.where(mask, log_p, self.held)
        self.best_losses.append(list(run.best_loss))

    def finish(self) -> None:
        """Put the best validated weights into the net, and free what only training needs."""
        if isinstance(self.net.backbone, CustomBackbone):
            self.net.backbone.freeze(False)
        self.net.eval()
        if self.valid_rows.shape[1]:
            self.best.put_back()
        self.steps.release()

    # -- members that have stopped -----------------------------------------------------------------------------------

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller stack can take over."""
        plain = isinstance(self.net.backbone, StackedMLP) and isinstance(self.X, ScaledFeatures)
        return plain and not self._goes_on

    @property
    def mostly_stopped(self) -> bool:
        """Whether a stack of those that still learn would be at most half as large."""
        return self.can_shrink and not self.finished and 2 * sum(self.stopped) >= self.net.n_members

    def without_the_stopped(self) -> TrainingLoop:
        """A loop that goes on with the others, at the same place and with the same moments."""
        keep = [k for k, stopped in enumerate(self.stopped) if not stopped]
        splits = [(self.train_rows[k], self.valid_rows[k]) for k in keep]
        rates = None if self.rates is None else (self.rates[0][keep], self.rates[1][keep])
        net, X, objective = self.net.select(keep), self.X.select(keep), self.objective.select(keep)
        seeds = [self.seeds[k] for k in keep]
        teams = [self.teams[k] for k in keep]
        part = TrainingLoop(net, X, objective, splits, self.recipe, seeds, self.weights, None, rates, teams)
        parameters = dict(self.net.named_parameters())
        for name, parameter in net.named_parameters():
            part.best.values[name].copy_(self.best.values[name][keep])
            for key, moment in part.optimizer.state[parameter].items():
                whole = self.optimizer.state[parameters[name]][key]
                moment.copy_(whole if key == "step" else whole[keep])
        part.run, part.rate_factor, part.members = self.run.of(keep), self.rate_factor, keep
        part.held = None if self.held is None else self.held[keep]
        part.best_losses = [[losses[k] for k in keep] for losses in self.best_losses]
        return part

    @torch.no_grad()
    def take_back(self, part: TrainingLoop) -> None:
        """Take over what was learnt since :meth:`without_the_stopped` made a part, and finish."""
        for name, value in part.net.named_parameters():
            self.best.values[name][part.members] = value
        self.run.go_on_with(part.run, part.members)
        self.finish()


def _scaled_once(net: SnefyNet, X: Any) -> Any:
    """Features scaled for every member before training, where memory allows; else as they are."""
    if not isinstance(net.backbone, StackedMLP) or not isinstance(X, Tensor):
        return X
    scaler = net.backbone.scaler
    if ScaledFeatures.tables(scaler) * X.numel() > SCALED_NUMBERS.get(X.device.type, 0):
        return X
    return ScaledFeatures.of(scaler, X)


#: Times a step runs for real before and while it is captured.
REHEARSALS = 4
log = logging.getLogger(__name__)


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
    """Updates of a net whose backbone is the user's; see :class:`~snefy_ldl.training.loop.Steps`.

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
