"""The fit loop: K stacked members, seeds, early stopping, repairs, members that leave the stack, and history."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.limits import SCALED_NUMBERS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.threads import one_thread
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.checkpoint import BestWeights, Checkpoint, Snapshot
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, make_optimizer
from snefy_ldl.training.settings import Recipe
from snefy_ldl.training.state import Run
from snefy_ldl.training.step import BackboneSteps, Steps, evaluate, seeded, shuffles

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
