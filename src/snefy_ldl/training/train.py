"""Problems in, fits out: the only code for stacking, checkpoints and devices.

Members of problems of one shape train in one computation, a *stack*; each gets what it would get alone.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.adam import Adam
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.threads import one_thread
from snefy_ldl._internal.types import Array
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.checkpoint import FILE_NAME, Checkpoint
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.policy import POLICY, Schedule
from snefy_ldl.training.prepare import Problem, build_net, make_objective
from snefy_ldl.training.steps import (
    Copies,
    GraphedStep,
    evaluate,
    live_tensors,
    make_optimizer,
    run_steps,
    seeded,
    shuffles,
)

#: A share of the peak rate, by number of step and how many steps a pass has.
Rate = Callable[[int, int], float]


# -- what training returns, and the choice ---------------------------------------------------------------------------


@dataclass
class Run:
    """The course of a fit.

    Args:
        best_loss: smallest validation loss of each member (K); infinite where there was none.
        best_epoch: its epoch (K); -1 where there was none.
        epochs: one record per epoch: ``loss`` and ``validation_loss`` of each member (K) and ``seconds``; of streams
            also ``rows`` and ``steps``.
    """

    best_loss: list[float]
    best_epoch: list[int]
    epochs: list[dict[str, Any]] = field(default_factory=list)

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

    def of(self, members: slice) -> Run:
        """The part that concerns some of the members; time is shared out evenly."""
        losses, epochs = self.best_loss[members], []
        for record in self.epochs:
            own = {k: value[members] for k, value in record.items() if isinstance(value, list)}
            epochs.append({**record, **own, "seconds": len(losses) / len(self.best_loss) * record["seconds"]})
        return Run(losses, self.best_epoch[members], epochs)


@dataclass(frozen=True, eq=False)
class Fit:
    """What became of a problem.

    Args:
        problem: as it was given.
        run: the course of the fit.
        net: its members at their best validated weights; None if training failed.
        log_prob: log likelihood of each member's validation rows, (B,) each, as the fitted model gives them; None if
            no rows were held back.
        optimizer: where a further pass may continue.
        failure: why training failed, if it did.
    """

    problem: Problem
    run: Run
    net: SnefyNet | None = None
    log_prob: list[Array] | None = None
    optimizer: Adam | None = None
    failure: TrainingError | None = None

    @cached_property
    def scores(self) -> Array:
        """Log likelihoods of the rows by which candidates are compared (B,): those that count, of all members."""
        assert self.log_prob is not None
        return np.concatenate([values[rows] for values, rows in zip(self.log_prob, self.problem.counted)])

    def record(self, is_kept: bool) -> dict[str, Any]:
        """An entry of ``SnefyLDL.candidates_``."""
        value = None if self.log_prob is None else float(self.scores.mean())
        return {
            "name": self.problem.name,
            "log_likelihood": value,
            "epochs": self.run.next_epoch,
            "networks": len(self.problem.members),
            "seconds": round(self.run.seconds, 3),
            "outcome": "failed" if self.failure is not None else "kept" if is_kept else "not chosen",
        }


def paired_lead(challenger: Array, incumbent: Array) -> tuple[float, float]:
    """By how much one candidate's log densities of the same rows are larger.

    Args:
        challenger: log densities (B,).
        incumbent: those of the other candidate (B,).

    Returns:
        The mean difference, and its standard error, infinite for fewer than two rows.

    Example:
        >>> mean, error = paired_lead(np.array([1.0, 2.0, 3.0]), np.zeros(3))
        >>> round(mean / error, 3)
        3.464
    """
    gain = np.asarray(challenger, dtype=np.float64) - np.asarray(incumbent, dtype=np.float64)
    if len(gain) < 2:
        return float(gain.sum()), np.inf
    return float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))


def is_better(challenger: Array, incumbent: Array, least: float = 0.0) -> bool:
    """The one rule by which a fit, and :class:`snefy_ldl.AutoLDL`, choose: paired held-out log likelihoods.

    Args:
        challenger: log densities (B,).
        incumbent: those of the candidate that is preferred to it (B,).
        least: standard errors by which it must lead. None among candidates of one fit, which answer alike: asking for
            one lost .03 to .06 nats on GEMAS texture, Yeast and SBU_3DFE, and gained nothing on four other tables.

    Returns:
        Whether the challenger leads.

    Example:
        >>> even = np.linspace(-1.0, 1.0, 20)
        >>> is_better(even + 0.1, np.zeros(20)), is_better(even + 0.1, np.zeros(20), least=1.0)
        (True, False)
    """
    mean, error = paired_lead(challenger, incumbent)
    return mean > (least * error if least else 0.0)


def select(fits: Sequence[Fit]) -> Fit:
    """The fit to keep.

    Args:
        fits: of one task, in the order of preference; at least one was trained to the end.

    Returns:
        The first of them, unless a later one leads the best before it on the rows that all held back.
    """
    ended = [fit for fit in fits if fit.failure is None]
    best = ended[0]
    for fit in ended[1:]:
        if fit.log_prob is not None and is_better(fit.scores, best.scores):
            best = fit
    return best


# -- training --------------------------------------------------------------------------------------------------------


def train(problems: Sequence[Problem], progress: Progress) -> list[Fit]:
    """Train some problems.

    Args:
        problems: on one device. A task that continues, or passes once, must be alone; so must one with a checkpoint.
        progress: gets one unit per epoch of a stack.

    Returns:
        The fits, in the order of the problems.

    Raises:
        TrainingError: every candidate of a task has losses that are not finite.
    """
    device = problems[0].task.settings.torch_device
    groups: dict[tuple[Any, ...], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(problem.shape, []).append(problem)
    stacks: list[list[Problem]] = []
    for group in groups.values():
        first = group[0]
        size = max(1, POLICY.stack[device.type != "cpu"] // len(first.members))
        stacks += [group[k : k + size] for k in range(0, len(group), size)]
    progress.extend(sum(stack[0].schedule.epochs for stack in stacks))
    fits = {
        id(fit.problem): fit for stack in stacks for fit in Stack(stack, device, len(problems) == 1).train(progress)
    }
    for task in dict.fromkeys(problem.task for problem in problems):
        own = [fits[id(problem)] for problem in problems if problem.task is task]
        if all(fit.failure is not None for fit in own):
            raise next(fit.failure for fit in own if fit.failure is not None)
    return [fits[id(problem)] for problem in problems]


class Course:
    """Members while they train: what fits to tables and to streams have in common.

    Args:
        net: K members, initialised.
        schedule: how to train.
        teams: for each member a number; members with the same one stop at a common epoch.
        optimizer: one to continue with; a new one by default.

    Attributes:
        run: the course of the fit so far.
        best: the weights at which each member did best.
    """

    def __init__(self, net: SnefyNet, schedule: Schedule, teams: Sequence[int], optimizer: Adam | None = None) -> None:
        self.net, self.schedule, self.teams = net, schedule, list(teams)
        self.optimizer = optimizer or make_optimizer(net, schedule)
        self.run = Run([math.inf] * net.n_members, [-1] * net.n_members)
        self.best = Copies(live_tensors(net, optimizer))  # where a pass that fails goes back to
        self.graphs: dict[Objective, GraphedStep] | None = None
        self.steps_done = 0

    @property
    def stopped(self) -> list[bool]:
        """Whether each member has seen so many epochs without a better validation loss (K)."""
        now, patience = self.run.next_epoch - 1, self.schedule.patience
        return [patience is not None and best >= 0 and now - best >= patience for best in self.run.best_epoch]

    @property
    def finished(self) -> bool:
        """Whether every epoch is done, or every member has run out of patience."""
        return self.run.next_epoch >= self.schedule.epochs or all(self.stopped)

    def thaw(self) -> None:
        """Freeze a backbone of the user's own, or let it learn, as it is due in this epoch."""
        backbone = self.net.backbone
        if isinstance(backbone, CustomBackbone):
            backbone.freeze(self.run.next_epoch < backbone.settings.freeze_epochs)

    def learn(
        self, X: Any, objective: Objective, order: Tensor, rate: Rate, seed: int, weights: Tensor | None = None
    ) -> Tensor:
        """Some rows once; mean loss of each member (K,).

        Args:
            X: features of all rows.
            objective: their labels.
            order: the rows of each member (K, n).
            rate: share of the peak rate, by number of step and how many steps there are.
            seed: of what a backbone of the user's own draws.
            weights: row weights, or None.
        """
        size = min(self.schedule.batch_size, order.shape[1])
        n_steps = math.ceil(order.shape[1] / size)
        # The last batch is filled up from the first, so that all have one size and every row is seen.
        rows = torch.cat([order, order[:, : n_steps * size - order.shape[1]]], 1)
        rates = [rate(step, n_steps) for step in range(n_steps)]
        self.net.train()
        with seeded(seed, order.device):
            loss = run_steps(self.net, X, objective, self.optimizer, rows, size, rates, weights, self.graphs)
        self.steps_done += n_steps
        return loss

    def conclude(self, held: Sequence[tuple[Any, Objective, Tensor]]) -> Array | None:
        """Put the best validated weights in place, and let the validation rows settle the background's share.

        Args:
            held: features, labels, and row numbers (K, b) of validation rows.

        Returns:
            Log likelihood of each member's validation rows (K, B); None without such rows.
        """
        if isinstance(self.net.backbone, CustomBackbone):
            self.net.backbone.freeze(False)
        self.net.eval()
        if not held:
            return None
        self.best.put_back()
        return held_log_prob(self.net, held)

    def keep_best(self, losses: list[float]) -> None:
        """Keep the weights of the members that have their best validation loss yet.

        Args:
            losses: validation loss of each member in this epoch (K).
        """
        run, teams = self.run, np.array(self.teams)
        losses = [float(np.mean(np.array(losses)[teams == team])) for team in teams]
        better = [loss < best and not stopped for loss, best, stopped in zip(losses, run.best_loss, self.stopped)]
        for k in np.flatnonzero(better).tolist():
            run.best_loss[k], run.best_epoch[k] = losses[k], run.next_epoch
        self.best.keep(better)

    def check(self, *losses: Tensor) -> None:
        """Raise unless parameters and losses are all finite."""
        sizes = torch.stack([norm.double() for norm in torch._foreach_norm([*self.net.parameters()])])
        if not bool(torch.stack([torch.isfinite(one).all() for one in (sizes, *losses)]).all()):
            raise TrainingError(
                f'epoch {self.run.next_epoch}: a loss was not finite. Scale the features (standardize="auto"), lower '
                "learning_rate, or check the backbone for NaN."
            )


class Stack(Course):
    """Joint training of problems of one shape, in which each member maximises the likelihood of its rows.

    Args:
        problems: of one shape.
        device: where to train.
        alone: whether nothing else is trained, so that the checkpoint has its folder for itself.
    """

    def __init__(self, problems: Sequence[Problem], device: torch.device, alone: bool = True) -> None:
        self.problems, self.device, first = list(problems), device, problems[0]
        task, data = first.task, first.data
        net = (build_net(problems) if first.net is None else first.net).to(device)
        offsets = np.cumsum([0] + [len(problem.members) for problem in problems])
        teams = [int(start) + team for problem, start in zip(problems, offsets) for team in problem.teams]
        kept = task.start.optimizer if task.one_pass and task.start is not None else None
        super().__init__(net, first.schedule, teams, kept)
        self.places = {id(p): slice(int(a), int(b)) for p, a, b in zip(problems, offsets, offsets[1:])}
        members = [member for problem in problems for member in problem.members]
        self.seeds = [member.shuffle_seed for member in members]
        self.train_rows = torch.stack([member.train for member in members]).to(device)  # (K, n_train)
        self.valid_rows = torch.stack([member.valid for member in members]).to(device)  # (K, n_valid)
        self.X, self.weights = data.tensor(device), data.weight_tensor(device)
        # With many labels a background can out-score untrained networks by so many nats that their gradients vanish.
        self.objective = objective = make_objective(net, problems, device)
        self.learnt = objective.without_background() if data.n_labels >= POLICY.many_labels else objective
        self.graphs = {}  # the rows stay, so steps can be captured
        self.held = [(self.X, objective, self.valid_rows)] if self.valid_rows.shape[1] else []
        self.checkpoint: Checkpoint | None = None
        folder = task.settings.checkpoint_dir
        if folder is not None and not task.one_pass:
            place = Path(folder) if alone else Path(folder) / f"{first.spec.inputs}-{first.spec.scaling}"
            self.checkpoint = Checkpoint(place / FILE_NAME, self, task, f"{first.name} {len(members)}")

    @property
    def is_small(self) -> bool:
        """Whether a step is too small to share: threads that wait for each other cost more than they save.

        On a busy machine they cost ten times as much. Custom backbones keep the threads they are given.
        """
        numbers = sum(parameter.numel() for parameter in self.net.parameters())
        small = 6 * min(self.schedule.batch_size, self.train_rows.shape[1]) * numbers < POLICY.shared_products
        return small and self.net.readout.device.type == "cpu" and isinstance(self.net.backbone, StackedMLP)

    def train(self, progress: Progress) -> list[Fit]:
        """Train to the end: the fits, in the order of the problems."""
        start, epochs, failure = progress.completed, self.schedule.epochs, None
        try:
            with one_thread(self.is_small):
                while not self.finished:
                    self.epoch()
                    if self.checkpoint is not None:
                        self.checkpoint.save()
                    last = self.run.history[-1]
                    losses = f"loss {last['loss']:.3f} validation {last.get('validation_loss', math.nan):.3f}"
                    progress.update(start + self.run.next_epoch, f"{losses} ({self.problems[0].name})")
                log_prob = self.conclude(self.held)
        except TrainingError as error:
            if len(self.problems) > 1:  # the others are what they would be alone
                return [
                    fit for problem in self.problems for fit in Stack([problem], self.device, False).train(progress)
                ]
            failure = error  # other candidates may do
            self.best.put_back()
            if min(self.run.best_epoch) >= 0:
                warnings.warn(f"{error} The best weights so far are kept.", TrainingWarning, stacklevel=8)
                failure, log_prob = None, self.conclude(self.held)
        progress.update(start + epochs, progress.note)
        if failure is not None:
            return [Fit(problem, self.run.of(self.places[id(problem)]), failure=failure) for problem in self.problems]
        return [self._fit_of(problem, log_prob) for problem in self.problems]

    def _fit_of(self, problem: Problem, log_prob: Array | None) -> Fit:
        places = self.places[id(problem)]
        net = self.net if len(self.problems) == 1 else self.net.select(places)
        own = None if log_prob is None else list(log_prob[places])
        return Fit(problem, self.run.of(places), net.eval(), own, self.optimizer if problem.task.one_pass else None)

    def epoch(self) -> None:
        """One pass."""
        started = time.perf_counter()
        losses = {"loss": self._pass()}
        if self.held:
            losses["validation_loss"] = self._mean_loss(evaluate(self.net, self.X, self.learnt, self.valid_rows))
        self.check(*losses.values())
        record: dict[str, Any] = {name: values.tolist() for name, values in losses.items()}
        if "validation_loss" in record:
            self.keep_best(record["validation_loss"])
        self.run.epochs.append(record | {"seconds": time.perf_counter() - started})

    def _pass(self) -> Tensor:
        """Every training row once; mean loss of each member (K,)."""
        number, epochs = self.run.next_epoch, self.schedule.epochs
        self.thaw()
        order = shuffles(self.seeds, number, self.train_rows.shape[1], self.train_rows.device)
        rows, seed = self.train_rows.gather(1, order), derive_seed(self.seeds[0], 2, number)
        rate = lambda step, steps: self.schedule.rate((number + step / steps) / epochs)  # noqa: E731
        return self.learn(self.X, self.learnt, rows, rate, seed, self.weights)

    def _mean_loss(self, log_p: Tensor) -> Tensor:
        """Validation loss of each member (K,)."""
        if self.weights is None:
            return -log_p.mean(1)
        weights = self.weights[self.valid_rows]
        return -(log_p * weights).sum(1) / weights.sum(1).clamp_min(1e-12)


def held_log_prob(net: SnefyNet, parts: Sequence[tuple[Any, Objective, Tensor]]) -> Array:
    """Log likelihood of each member's validation rows (K, B), once the background's share is settled on them.

    Args:
        net: K members.
        parts: features, labels, and row numbers (K, b) of validation rows.
    """
    log_p = torch.cat([evaluate(net, X, one.without_background(), rows) for X, one, rows in parts], 1).double()
    known = [one.background_of(rows) for _, one, rows in parts]
    left_out = [0.0 if one.left_out is None else one.left_out[rows] for _, one, rows in parts]
    backgrounds = [value.double() + rest for value, rest in zip(known, left_out) if value is not None]
    if backgrounds:
        background = torch.cat(backgrounds, 1)
        net.refine_background(log_p, background)
        log_p = net.mix(log_p, background)
    return log_p.cpu().numpy()
