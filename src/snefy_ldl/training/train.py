"""Problems in, fits out: the only code that knows stacking, early dropping, checkpoints and devices.

Members of problems of one shape train in one computation, a *stack*; each gets what it would get alone. Candidates of
one task are compared at a few epochs, at equal steps, and those that are clearly behind are dropped.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from joblib import Parallel, delayed
from torch import Tensor

from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.threads import one_thread
from snefy_ldl._internal.types import Array
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.checkpoint import FILE_NAME, BestWeights, Checkpoint, Run, Snapshot, fingerprint
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, make_optimizer
from snefy_ldl.training.policy import POLICY, Schedule
from snefy_ldl.training.prepare import Problem, build_net, checkpoint_folder, make_objective
from snefy_ldl.training.select import paired_lead
from snefy_ldl.training.steps import BackboneSteps, Steps, evaluate, scaled_once, seeded, shuffles

#: How often a fit may undo an epoch and halve its learning rate before it gives up.
MAX_REPAIRS = 8
#: A step of fewer multiplications than this (a few milliseconds) is done by one thread.
SHARED_PRODUCTS = 10**9
#: Members in one stack, at most. On a CPU the cost per member is flat from about 4 on; more only takes memory.
CPU_STACK, GPU_STACK = 16, 1024
#: Steps of single members below which processes of their own take longer to start than to work (a few seconds).
FEW_STEPS = 10_000


@dataclass(frozen=True, eq=False)
class Fit:
    """What became of a problem.

    Args:
        problem: as it was given.
        outcome: ``"trained"`` to the end, ``"dropped early"`` or ``"failed"``.
        run: the course of the fit.
        net: its members at their best validated weights; None unless trained to the end.
        log_prob: log likelihood of each member's validation rows, (B,) each, as the fitted model gives them; None where
            no rows were held back.
        optimizer: where a further pass may continue.
    """

    problem: Problem
    outcome: Literal["trained", "dropped early", "failed"]
    run: Run
    net: SnefyNet | None = None
    log_prob: list[Array] | None = None
    optimizer: StackedAdamW | None = None

    @cached_property
    def scores(self) -> Array:
        """Log likelihoods of the rows by which candidates are compared (B,): those that count, of all members."""
        assert self.log_prob is not None
        return np.concatenate([values[rows] for values, rows in zip(self.log_prob, counted(self.problem))])

    def record(self, is_kept: bool) -> dict[str, Any]:
        """An entry of ``SnefyLDL.candidates_``."""
        value = None if self.log_prob is None else float(self.scores.mean())
        if self.outcome == "dropped early":
            value = -float(np.mean(self.run.best_loss))
        return {
            "name": self.problem.name,
            "log_likelihood": value,
            "epochs": self.run.next_epoch,
            "networks": len(self.problem.members),
            "seconds": round(self.run.seconds, 3),
            "outcome": ("kept" if is_kept else "not chosen") if self.outcome == "trained" else self.outcome,
        }

    def take(self, n_members: int) -> Fit:
        """The first few members."""
        if n_members >= len(self.problem.members):
            return self
        assert self.net is not None
        keep = list(range(n_members))
        problem = replace(self.problem, members=self.problem.members[:n_members])
        log_prob = None if self.log_prob is None else self.log_prob[:n_members]
        net = self.net.select(keep).eval()
        return replace(self, problem=problem, run=self.run.of(keep), net=net, log_prob=log_prob)

    def joined(self, other: Fit) -> Fit:
        """One fit of the members of two, of one shape and scaling."""
        one, two = self.net, other.net
        assert one is not None
        assert two is not None
        net, tensors = one.select([0] * (one.n_members + two.n_members)), two.state_dict()
        net.load_state_dict({name: torch.cat([value, tensors[name]]) for name, value in one.state_dict().items()})
        problem = replace(self.problem, members=self.problem.members + other.problem.members)
        log_prob = None if self.log_prob is None else self.log_prob + (other.log_prob or [])
        return Fit(problem, self.outcome, self.run.joined(other.run), net.eval(), log_prob)


def counted(problem: Problem) -> list[Any]:
    """Which validation rows of each member count in training, (B,) each."""
    weights, rows = problem.data.weights, [member.valid.numpy() for member in problem.members]
    return [np.ones(len(own), dtype=bool) if weights is None else weights[own] > 0.0 for own in rows]


def train(problems: Sequence[Problem], progress: Progress, n_jobs: int | None = 1) -> list[Fit]:
    """Train some problems; candidates of one task that are clearly behind another are dropped on the way.

    Args:
        problems: on one device. A task that continues, or passes once, must be alone; so must one with a checkpoint.
        progress: gets one unit per epoch of a stack.
        n_jobs: processes on a CPU; None takes all cores, or one where the work is over in a few seconds.

    Returns:
        The fits, in the order of the problems.

    Raises:
        TrainingError: losses of every candidate of a task stay infinite after several repairs.
    """
    settings = problems[0].task.settings
    device, workers = settings.torch_device, 1
    tasks = list(dict.fromkeys(problem.task for problem in problems))
    if device.type == "cpu" and settings.backbone is None:
        workers = min(len(tasks), (n_jobs or os.cpu_count() or 1) if n_jobs or _steps(problems) >= FEW_STEPS else 1)
    if workers == 1:
        return _train_here(problems, device, progress)
    parts = [
        [p for k, task in enumerate(tasks) if k % workers == part for p in problems if p.task is task]
        for part in range(workers)
    ]
    progress.extend(workers)
    answers = Parallel(n_jobs=workers)(delayed(_train_in_process)(part) for part in parts)
    progress.advance(workers)
    fits = {id(problem): fit for part, answer in zip(parts, answers) for problem, fit in zip(part, answer)}
    return [replace(fits[id(problem)], problem=problem) for problem in problems]


def _train_in_process(problems: Sequence[Problem]) -> list[Fit]:
    """Train some problems in another process, with one thread and nothing to show."""
    torch.set_num_threads(1)
    fits = _train_here(problems, torch.device("cpu"), Progress("fit", 0, show=False))
    return [replace(fit, problem=None) for fit in fits]  # type: ignore[arg-type]  # it is there already


def _steps(problems: Sequence[Problem]) -> int:
    """Steps of all members, if none stops early."""
    return sum(
        len(problem.members)
        * problem.schedule.epochs
        * math.ceil(len(problem.members[0].train) / problem.schedule.batch_size)
        for problem in problems
    )


def _train_here(problems: Sequence[Problem], device: torch.device, progress: Progress) -> list[Fit]:
    """Train problems in this process: all stacks to the first rung, then those that are left to the next."""
    stacks = _stacks(problems, device)
    epochs = stacks[0].loop.schedule.epochs
    rungs = (
        [(math.ceil(part * epochs), margin) for part, margin in POLICY.rungs] if epochs >= POLICY.rung_epochs else []
    )
    progress.extend(epochs * len(stacks))
    for until, margin in [*rungs, (epochs, math.inf)]:
        for stack in stacks:
            stack.advance(until, progress, lambda stack=stack: _describe(stack, stacks))  # type: ignore[misc]
        for task in dict.fromkeys(problem.task for problem in problems):
            for stack, problem in _behind([(s, p) for s in stacks for p in s.alive if p.task is task], margin):
                stack.outcomes[id(problem)] = "dropped early"
    fits = {id(fit.problem): fit for stack in stacks for fit in stack.conclude()}
    for task in dict.fromkeys(problem.task for problem in problems):
        if not any(fits[id(problem)].outcome == "trained" for problem in problems if problem.task is task):
            raise next(stack.failure for stack in stacks if stack.failure is not None)
    return [fits[id(problem)] for problem in problems]


def _stacks(problems: Sequence[Problem], device: torch.device) -> list[_Stack]:
    """Problems by shape, as many in one stack as its size allows."""
    groups: dict[tuple[Any, ...], list[Problem]] = {}
    for problem in problems:
        groups.setdefault(problem.shape, []).append(problem)
    stacks = []
    for group in groups.values():
        first = group[0]
        size = max(1, (CPU_STACK if device.type == "cpu" else GPU_STACK) // len(first.members))
        size = 1 if first.task.settings.shares_backbone else size
        stacks += [
            _Stack(group[start : start + size], device, len(problems) == 1) for start in range(0, len(group), size)
        ]
    return stacks


def _describe(stack: _Stack, stacks: Sequence[_Stack]) -> str:
    """What to show while a stack trains: what is tried, or the losses where nothing is left to choose."""
    field = [problem for other in stacks for problem in other.problems]
    alone = len({id(problem.task) for problem in field}) < len(field)
    if not alone or sum(len(other.alive) for other in stacks) < 2:
        return stack.loop.note
    return f"choosing: {field.index(stack.problems[0]) + 1} of {len(field)}, {stack.problems[0].name}"


def _behind(rivals: list[tuple[_Stack, Problem]], margin: float) -> list[tuple[_Stack, Problem]]:
    """The rivals that are clearly behind another; never all of them."""
    rivals = [(stack, problem) for stack, problem in rivals if stack.may_drop]
    scores = [stack.scores(problem) for stack, problem in rivals]
    if math.isinf(margin) or len(rivals) < 2 or any(len(own) < POLICY.rung_rows for own in scores):
        return []
    leads = [max(_in_errors(paired_lead(other, own)) for other in scores) for own in scores]
    return [rival for rival, lead in zip(rivals, leads) if lead > margin and lead > min(leads)]


def _in_errors(lead: tuple[float, float]) -> float:
    return lead[0] / max(lead[1], 1e-300)


class _Stack:
    """Problems of one shape while they train."""

    def __init__(self, problems: Sequence[Problem], device: torch.device, alone: bool) -> None:
        self.problems, first = list(problems), problems[0]
        self.members = [member for problem in problems for member in problem.members]
        self.outcomes: dict[int, Literal["dropped early", "failed"]] = {}
        self.failure: TrainingError | None = None
        self.shown = 0
        task, schedule, data = first.task, first.schedule, first.data
        net = (build_net(problems) if first.net is None else first.net).to(device)
        self.X, self.objective = data.tensor(device), make_objective(net, problems, device)
        optimizer = None
        if task.one_pass:
            kept = None if task.start is None else task.start.optimizer
            optimizer = kept or make_optimizer(net, schedule)
        # With many labels a background can out-score untrained networks by so many nats that their gradients vanish.
        objective = self.objective
        if data.n_labels >= POLICY.background_labels:
            objective = objective.without_background()
        schedules = [problem.schedule for problem in problems for _ in problem.members]
        rates = {(one.learning_rate, one.weight_decay) for one in schedules}
        table = torch.tensor([(one.learning_rate, one.weight_decay) for one in schedules], device=device)
        offsets = np.cumsum([0] + [len(problem.members) for problem in problems])
        self.places = {id(p): list(range(a, b)) for p, a, b in zip(problems, offsets, offsets[1:])}
        self.loop = TrainingLoop(
            net,
            self.X,
            objective,
            [(member.train, member.valid) for member in self.members],
            schedule,
            [member.shuffle_seed for member in self.members],
            data.weight_tensor(device),
            optimizer,
            (table[:, 0], table[:, 1]) if len(rates) > 1 else None,
            [int(start) + team for problem, start in zip(problems, offsets) for team in problem.teams],
        )
        folder = checkpoint_folder(first, alone)
        self.checkpoint: Checkpoint | None = None
        if folder is not None:
            self.checkpoint = Checkpoint(folder / FILE_NAME, fingerprint(task, f"{first.name} {len(self.members)}"))
            self.loop.resume(self.checkpoint)
        self.may_drop = self.checkpoint is None and not task.one_pass

    @property
    def alive(self) -> list[Problem]:
        """Problems that are still to be trained."""
        return [problem for problem in self.problems if id(problem) not in self.outcomes]

    def advance(self, until: int, progress: Progress, say: Callable[[], str]) -> None:
        """Train until so many epochs are done, unless no problem is left."""

        def show(done: int) -> None:
            progress.update(progress.completed + done - self.shown, say())
            self.shown = done

        loop = self.loop
        if self.alive:
            try:
                with one_thread(loop.is_small):
                    while not loop.finished and loop.run.next_epoch < until:
                        loop.epoch()
                        if self.checkpoint is not None:
                            self.checkpoint.save(loop.snapshot, loop.best, loop.run, loop.rate_factor)
                        show(loop.run.next_epoch)
            except TrainingError as error:  # the others may do
                self.failure = error
                self.outcomes |= {id(problem): "failed" for problem in self.alive}
        if self.shown < until:
            show(until)

    def scores(self, problem: Problem) -> Array:
        """Log likelihoods of a problem's validation rows at its members' best epochs so far (B,)."""
        if self.loop.held is None:
            return np.empty(0)
        held = self.loop.held[self.places[id(problem)]].cpu().numpy()
        return np.concatenate([values[rows] for values, rows in zip(held, counted(problem))])

    def conclude(self) -> list[Fit]:
        """End the training, and let the validation rows settle the background's share."""
        loop, alive, log_prob = self.loop, self.alive, None
        if alive:
            with one_thread(loop.is_small):
                loop.finish()
                log_prob = held_log_prob(loop.net, self.X, self.objective, loop.valid_rows)
        fits = []
        for problem in self.problems:
            places = self.places[id(problem)]
            run, outcome = loop.run.of(places), self.outcomes.get(id(problem))
            if outcome is not None:
                fits.append(Fit(problem, outcome, run))
                continue
            net = loop.net if len(self.problems) == 1 else loop.net.select(places)
            own = None if log_prob is None else list(log_prob[places])
            optimizer = loop.optimizer if problem.task.one_pass else None
            fits.append(Fit(problem, "trained", run, net.eval(), own, optimizer))
        return fits


def held_log_prob(net: SnefyNet, X: Any, objective: Objective, rows: Tensor) -> Array | None:
    """Log likelihood of each member's validation rows (K, B), once the background's share is settled on them."""
    if not rows.shape[1]:
        return None
    log_p, background = evaluate(net, X, objective.without_background(), rows), objective.background_of(rows)
    if background is not None:
        net.refine_background(log_p, background)
        log_p = net.mix(log_p.double(), background.double())
    left_out = 0.0 if objective.left_out is None else objective.left_out[rows]
    return (log_p + left_out).cpu().double().numpy()


class TrainingLoop:
    """A fit between two epochs: it maximises the likelihood of every member on its own rows.

    Args:
        net: K members, initialised; it ends at its best validated weights.
        X: features: a tensor (N, d), or what a custom backbone takes.
        objective: what to explain.
        splits: (training rows, validation rows) of each member, all of one size; no validation rows means that the
            last weights stay.
        schedule: how to train.
        seeds: one per member; shuffles depend on nothing else.
        weights: row weights (N,).
        optimizer: one to continue with; a new one by default.
        rates: learning rate and weight decay of each member (K,), where they differ from the schedule's.
        teams: for each member a number; members with the same one stop at a common epoch. Each by itself by default.

    Attributes:
        run: the course of the fit so far.
        best: the weights at which each member did best.
        rate_factor: halved by every repair.
        held: log likelihoods of the validation rows at each member's best epoch (K, B); None before the first epoch.
    """

    def __init__(
        self,
        net: SnefyNet,
        X: Any,
        objective: Objective,
        splits: Sequence[tuple[Tensor, Tensor]],
        schedule: Schedule,
        seeds: Sequence[int],
        weights: Tensor | None = None,
        optimizer: StackedAdamW | None = None,
        rates: tuple[Tensor, Tensor] | None = None,
        teams: Sequence[int] | None = None,
    ) -> None:
        self.teams = list(range(net.n_members) if teams is None else teams)
        self.net, self.objective, self.schedule, self.seeds, self.weights = net, objective, schedule, seeds, weights
        device = net.readout.device
        self.X = scaled_once(net, X)
        self.train_rows = torch.stack([train for train, _ in splits]).to(device)  # (K, n_train)
        self.valid_rows = torch.stack([valid for _, valid in splits]).to(device)  # (K, n_valid)
        self.batch_size = min(schedule.batch_size, self.train_rows.shape[1])
        self.n_steps = math.ceil(self.train_rows.shape[1] / self.batch_size)
        self.optimizer = optimizer or make_optimizer(net, schedule, rates)
        self.snapshot = Snapshot(net, self.optimizer)
        batch = self.train_rows[:, : self.batch_size]
        make_steps = BackboneSteps if isinstance(net.backbone, CustomBackbone) else Steps
        self.steps = make_steps(net, self.X, objective, self.optimizer, self.snapshot, batch, self.n_steps, weights)
        self.run = Run([math.inf] * net.n_members, [-1] * net.n_members)
        self.rate_factor = 1.0
        self.best = BestWeights(net)
        self.held: Tensor | None = None

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of this very fit; start afresh where there is none."""
        progress = checkpoint.resume(self.snapshot, self.best)
        if progress is not None:
            self.run, self.rate_factor = progress

    @property
    def is_small(self) -> bool:
        """Whether a step is too small to share: threads that wait for each other cost more than they save.

        On a busy machine they cost ten times as much. Custom backbones keep the threads they are given.
        """
        numbers = sum(parameter.numel() for parameter in self.net.parameters())
        small = 6 * self.batch_size * numbers < SHARED_PRODUCTS
        return small and self.net.readout.device.type == "cpu" and not isinstance(self.net.backbone, CustomBackbone)

    @property
    def finished(self) -> bool:
        """Whether every epoch is done, or every member has run out of patience."""
        return self.run.next_epoch >= self.schedule.epochs or all(self.stopped)

    @property
    def stopped(self) -> list[bool]:
        """Whether each member has run out of patience (K)."""
        return out_of_patience(self.run, self.schedule.patience)

    @property
    def note(self) -> str:
        """The last epoch's losses in words."""
        if not self.run.epochs:
            return ""
        last = self.run.history[-1]
        return f"loss {last['loss']:.3f} validation {last.get('validation_loss', math.nan):.3f}"

    def epoch(self) -> None:
        """One pass, undone with the rate halved if anything in it was not finite."""
        started = time.perf_counter()
        while True:
            before = self.snapshot.take()
            loss, log_p = self._pass(), None
            if self.valid_rows.shape[1]:
                log_p = evaluate(self.net, self.X, self.objective, self.valid_rows)
            validation = None if log_p is None else self._mean_loss(log_p)
            if is_sound(self.net, loss, validation):
                break
            self.snapshot.put_back(before)
            self.rate_factor *= 0.5
            rate = self.schedule.learning_rate * self.rate_factor
            count_repair(self.run, loss, diagnose(self.net, self.X, rate))
        record: dict[str, Any] = {"loss": loss.tolist(), "seconds": 0.0}
        if log_p is not None and validation is not None:
            record["validation_loss"] = validation.tolist()
            mask = keep_best(self, record["validation_loss"]).to(log_p.device)[:, None]
            self.held = log_p if self.held is None else torch.where(mask, log_p, self.held)
        record["seconds"] = time.perf_counter() - started
        self.run.epochs.append(record)

    def _pass(self) -> Tensor:
        """Every training row once; mean loss of each member (K,)."""
        number, n_steps, backbone = self.run.next_epoch, self.n_steps, self.net.backbone
        thaw(self, number)
        self.net.train()
        order = shuffles(self.seeds, number, self.train_rows.shape[1], self.train_rows.device)
        rows = self.train_rows.gather(1, order)
        # The last batch is filled up from the first, so that all have one size and every row is seen.
        rows = torch.cat([rows, rows[:, : n_steps * self.batch_size - rows.shape[1]]], 1)
        first, last = number * n_steps, self.schedule.epochs * n_steps
        rates = [self.schedule.rate((first + step) / last) * self.rate_factor for step in range(n_steps)]
        if isinstance(backbone, StackedMLP):  # draws nothing
            return self.steps.run(rows, rates)
        with seeded(derive_seed(self.seeds[0], 2, number), rows.device):
            return self.steps.run(rows, rates)

    def _mean_loss(self, log_p: Tensor) -> Tensor:
        """Validation loss of each member (K,)."""
        if self.weights is not None:
            weights = self.weights[self.valid_rows]
            return -(log_p * weights).sum(1) / weights.sum(1).clamp_min(1e-12)
        return -log_p.mean(1)

    def finish(self) -> None:
        """Put the best validated weights into the net, and free what only training needs."""
        if isinstance(self.net.backbone, CustomBackbone):
            self.net.backbone.freeze(False)
        self.net.eval()
        if self.valid_rows.shape[1]:
            self.best.put_back()
        self.steps.release()


# -- shared with fits to streams -------------------------------------------------------------------------------------


def out_of_patience(run: Run, patience: int | None) -> list[bool]:
    """Whether each member has seen so many epochs without a better validation loss (K)."""
    now = run.next_epoch - 1
    return [patience is not None and best >= 0 and now - best >= patience for best in run.best_epoch]


def keep_best(loop: Any, losses: list[float]) -> Tensor:
    """Keep the weights of the members that have their best validation loss yet.

    Args:
        loop: with ``net``, ``run``, ``best``, ``stopped`` and ``teams``, members of one team having one best epoch.
        losses: validation loss of each member in this epoch (K).

    Returns:
        Which members are better (K,).
    """
    means = {
        team: float(np.mean([x for x, other in zip(losses, loop.teams) if other == team])) for team in set(loop.teams)
    }
    losses, run = [means[team] for team in loop.teams], loop.run
    better = [loss < best and not stopped for loss, best, stopped in zip(losses, run.best_loss, loop.stopped)]
    for k, is_better in enumerate(better):
        if is_better:
            run.best_loss[k], run.best_epoch[k] = losses[k], run.next_epoch
    loop.best.keep(better)
    return torch.tensor(better)


def thaw(loop: Any, number: int) -> None:
    """Freeze a backbone of the user's own, or let it learn, as it is due in an epoch."""
    backbone = loop.net.backbone
    if isinstance(backbone, CustomBackbone) and backbone.freeze(number < backbone.settings.freeze_epochs):
        loop.optimizer.forget_layout()


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
        TrainingError: it was one too many.
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
    """A sentence on a net that does not train: its largest feature and exponent, its rate, and what to try."""
    facts = []
    features = X.values if isinstance(X, ScaledFeatures) else X
    if isinstance(features, Tensor):
        facts.append(f"largest |feature| {float(features.abs().max()):.3g}")
    facts.append(f"largest exponent {float(net.exponents.detach().max()):.3g}")
    return (
        f"Diagnosis: {', '.join(facts)}, learning rate now {learning_rate:.2g}. "
        'Scale the features (standardize="auto"), lower learning_rate, or check the backbone for NaN.'
    )
