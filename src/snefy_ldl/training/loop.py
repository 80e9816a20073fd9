"""The one fit loop: K stacked members, seeds, early stopping, history and progress."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._limits import SCALED_NUMBERS
from snefy_ldl._progress import Progress
from snefy_ldl._random import derive_seed
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.special.threads import one_thread
from snefy_ldl.training.backbone_steps import BackboneSteps
from snefy_ldl.training.best import BestWeights
from snefy_ldl.training.checkpoint import Checkpoint, Snapshot
from snefy_ldl.training.evaluate import evaluate
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, make_optimizer
from snefy_ldl.training.recipe import Recipe
from snefy_ldl.training.repair import count_repair, diagnose, is_sound
from snefy_ldl.training.rows import shuffles
from snefy_ldl.training.state import Run
from snefy_ldl.training.step import Steps

#: A step of fewer multiplications than this (a few milliseconds) is done by one thread.
SHARED_PRODUCTS = 10**9

#: Training and validation rows of each member, all of one size.
Splits = Sequence[tuple[Tensor, Tensor]]


def fit_net(
    net: SnefyNet,
    X: Any,
    objective: Objective,
    splits: Splits,
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    weights: Tensor | None = None,
    optimizer: StackedAdamW | None = None,
    rates: tuple[Tensor, Tensor] | None = None,
    verbose: int = 0,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Maximise the likelihood of every member on its own rows; the net ends at its best validated weights.

    Args:
        net: K members, initialised.
        X: features: a tensor (N, d), or what a custom backbone takes.
        objective: what to explain.
        splits: (training rows, validation rows) of each member, all of one size; no validation rows means that the
            last weights stay.
        recipe: how to train.
        seeds: one a member; shuffles depend on nothing else.
        weights: row weights (N,).
        optimizer: one to go on with; a new one by default.
        rates: learning rate and weight decay of each member (K,), where they differ from the recipe's.
        verbose: 1 shows progress.
        checkpoint: written after every epoch; a fit whose file is there goes on from it.

    Returns:
        The course of the fit.

    Raises:
        TrainingError: where losses stay infinite after several repairs, or the checkpoint belongs to another fit.
    """
    with _threads(net, recipe.batch_size):
        loop = TrainingLoop(net, X, objective, splits, recipe, seeds, weights, optimizer, rates)
        return _run(loop, verbose, checkpoint, may_shrink=checkpoint is None and optimizer is None)


@contextmanager
def _threads(net: SnefyNet, batch_size: int) -> Iterator[None]:
    """One thread while a step is too small to share: threads that wait for each other cost more than they save.

    On a busy machine they cost ten times as much. Custom backbones keep the threads they are given.
    """
    numbers = sum(parameter.numel() for parameter in net.parameters())
    small = 6 * batch_size * numbers < SHARED_PRODUCTS
    on_cpu = net.readout.device.type == "cpu"
    with one_thread(small and on_cpu and not isinstance(net.backbone, CustomBackbone)):
        yield


def _run(loop: TrainingLoop, verbose: int, checkpoint: Checkpoint | None, may_shrink: bool) -> Run:
    """Epochs until the end; loops of fewer members take over where most have stopped."""
    if checkpoint is not None:
        loop.resume(checkpoint)
    loops = [loop]
    with Progress("fit", loop.recipe.epochs, show=verbose >= 1, completed=loop.run.next_epoch) as progress:
        while not loop.finished:
            loop.epoch()
            if checkpoint is not None:
                checkpoint.save(loop.snapshot, loop.best, loop.run, loop.rate_factor)
            last = loop.run.history[-1]
            note = f"loss {last['loss']:.3f} validation {last.get('validation_loss', math.nan):.3f}"
            progress.update(loop.run.next_epoch, note)
            if may_shrink and loop.mostly_stopped:
                loop = loop.without_the_stopped()
                loops.append(loop)
    loop.finish()
    for whole, part in zip(loops[-2::-1], loops[:0:-1]):
        whole.take_back(part)
    return loops[0].run


class TrainingLoop:
    """A fit between two epochs; the arguments are those of :func:`fit_net`.

    Attributes:
        run: the course of the fit so far.
        best: the weights at which each member did best.
        rate_factor: halved by every repair.
        members: which members of the loop it came from these are; see :meth:`without_the_stopped`.
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
    ) -> None:
        self.net, self.objective, self.recipe, self.seeds = net, objective, recipe, seeds
        self.weights, self.rates = weights, rates
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

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this very fit; start afresh where there is none."""
        progress = checkpoint.resume(self.snapshot, self.best)
        if progress is not None:
            self.run, self.rate_factor = progress

    # -- epochs ------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every epoch is done, or every member has run out of patience."""
        return self.run.next_epoch >= self.recipe.epochs or all(self._stopped)

    @property
    def _stopped(self) -> list[bool]:
        """Whether each member has run out of patience (K)."""
        patience, now = self.recipe.patience, self.run.next_epoch - 1
        return [patience is not None and best >= 0 and now - best >= patience for best in self.run.best_epoch]

    def epoch(self) -> None:
        """One pass, undone with the rate halved if anything in it was not finite."""
        started = time.perf_counter()
        while True:
            before = self.snapshot.take()
            loss = self._pass()
            validation = self._validate()
            if is_sound(self.net, loss, validation):
                break
            self.snapshot.put_back(before)
            self.rate_factor *= 0.5
            rate = self.recipe.learning_rate * self.rate_factor
            count_repair(self.run, loss, diagnose(self.net, self.X, rate))
        number = self.run.next_epoch
        record = {"epoch": float(number), "loss": float(loss.mean()), "seconds": time.perf_counter() - started}
        if validation is not None:
            record["validation_loss"] = float(validation.mean())
            self._keep_best(number, validation.tolist())
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
        with self._seeded_backbone(number):
            return self.steps.run(rows, rates)

    @contextmanager
    def _seeded_backbone(self, number: int) -> Iterator[None]:
        """Dropout and the like in custom backbones draw from the fit's seed and leave the caller's generator alone."""
        if isinstance(self.net.backbone, StackedMLP):
            yield
            return
        device = self.train_rows.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(derive_seed(self.seeds[0], 2, number))
            yield

    def _validate(self) -> Tensor | None:
        """Validation loss of each member (K,), or None without validation rows."""
        if self.valid_rows.shape[1] == 0:
            return None
        log_p = evaluate(self.net, self.X, self.objective, self.valid_rows)
        if self.weights is not None:
            weights = self.weights[self.valid_rows]
            return -(log_p * weights).sum(1) / weights.sum(1).clamp_min(1e-12)
        return -log_p.mean(1)

    def _keep_best(self, number: int, losses: list[float]) -> None:
        run = self.run
        if isinstance(self.net.backbone, CustomBackbone) and self.net.backbone.shared:  # one backbone, one best epoch
            losses = [sum(losses) / len(losses)] * len(losses)
        better = [loss < best and not stopped for loss, best, stopped in zip(losses, run.best_loss, self._stopped)]
        for k, is_better in enumerate(better):
            if is_better:
                run.best_loss[k], run.best_epoch[k] = losses[k], number
        self.best.keep(better)

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
    def mostly_stopped(self) -> bool:
        """Whether a stack of those that still learn would be at most half as large."""
        stackable = isinstance(self.net.backbone, StackedMLP) and isinstance(self.X, ScaledFeatures)
        return stackable and not self.finished and 2 * sum(self._stopped) >= self.net.n_members

    def without_the_stopped(self) -> TrainingLoop:
        """A loop that goes on with the others, at the same place and with the same moments."""
        keep = [k for k, stopped in enumerate(self._stopped) if not stopped]
        splits = [(self.train_rows[k], self.valid_rows[k]) for k in keep]
        rates = None if self.rates is None else (self.rates[0][keep], self.rates[1][keep])
        net, X, objective = self.net.select(keep), self.X.select(keep), self.objective.select(keep)
        seeds = [self.seeds[k] for k in keep]
        part = TrainingLoop(net, X, objective, splits, self.recipe, seeds, self.weights, None, rates)
        parameters = dict(self.net.named_parameters())
        for name, parameter in net.named_parameters():
            part.best.values[name].copy_(self.best.values[name][keep])
            for key, moment in part.optimizer.state[parameter].items():
                whole = self.optimizer.state[parameters[name]][key]
                moment.copy_(whole if key == "step" else whole[keep])
        part.run, part.rate_factor, part.members = self.run.of(keep), self.rate_factor, keep
        return part

    @torch.no_grad()
    def take_back(self, part: TrainingLoop) -> None:
        """Take over what was learnt since :meth:`without_the_stopped` made a part, and finish."""
        run = part.run
        for place, k in enumerate(part.members):
            self.run.best_loss[k], self.run.best_epoch[k] = run.best_loss[place], run.best_epoch[place]
        for name, value in part.net.named_parameters():
            self.best.values[name][part.members] = value
        self.run.next_epoch, self.run.repairs, self.run.seconds = run.next_epoch, run.repairs, run.seconds
        self.finish()


def _scaled_once(net: SnefyNet, X: Any) -> Any:
    """Features scaled for every member before training, where memory allows; else as they are."""
    if not isinstance(net.backbone, StackedMLP) or not isinstance(X, Tensor):
        return X
    scaler = net.backbone.scaler
    if ScaledFeatures.tables(scaler) * X.numel() > SCALED_NUMBERS.get(X.device.type, 0):
        return X
    return ScaledFeatures.of(scaler, X)
