"""The race between candidates: all start, at a few epochs those that are clearly behind are dropped, the rest go on.

A candidate is one way to fit a job: what the network sees, and how that is scaled. All candidates follow the schedule
they would follow alone and are compared at the same epoch, so that one that is never dropped ends with exactly the
weights it would have had without a race.

At each *rung* a candidate is dropped where another one leads on the validation rows by more than a margin: the mean
difference of their log likelihoods, row by row and each at its best epoch so far, in standard errors. Candidates that
learn slowly get the benefit: if the gap has become smaller since half the epochs, it is taken to shrink as much again.

What was tried is recorded as plain values, which end up in ``SnefyLDL.candidates_``:

========================  =====================================================================================
``name``                  the candidate in words, ``"guides, pooled scaling"`` say
``log_likelihood``        mean over its validation rows at its best epoch; None without validation rows
``kl``                    mean KL divergence of its mean prediction there; None where nobody had to know
``epochs``                that its networks trained
``networks``              how many it has
``seconds``               that their training took
``outcome``               ``"kept"``, ``"not chosen"``, ``"dropped early"`` or ``"failed"``
========================  =====================================================================================
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import Tensor

from snefy_ldl._internal.limits import EVALUATION_ROWS
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.special import log_share
from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE
from snefy_ldl.errors import TrainingError
from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import as_slice
from snefy_ldl.training.checkpoint import Checkpoint, checkpoint_of
from snefy_ldl.training.loop import Standing, Trainer, TrainingLoop, evaluate, gather_rows
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW, make_optimizer
from snefy_ldl.training.plan import Job, Member, build_net, make_objective
from snefy_ldl.training.settings import Recipe
from snefy_ldl.training.state import FittedState, Inputs, Run, Validation, lead, summarise

#: Part of the epochs at which candidates are compared, and the standard errors by which one may be behind there.
#: Earlier, or by fewer standard errors, the winner of a full search was dropped on two of five splits of a data set
#: whose candidates learnt fast and ended behind.
RUNGS = ((0.3, 4.0), (0.5, 3.0), (0.7, 2.0))
#: Part of those standard errors by which one may be behind where nothing but scaling differs.
SIBLINGS = 0.25
#: Epochs and validation rows below which nobody is dropped: too few to tell who is behind.
LEAST_EPOCHS, LEAST_ROWS = 10, 20
#: What a candidate is called after its inputs.
TITLES: dict[Inputs, str] = {
    "features": "features",
    "guides": "guides",
    "both": "features and guides",
}
#: Standard errors that a candidate may be behind another by the rules of the final choice.
Handicap = Callable[[Job, Job], float]
#: From this many labels on, networks learn without their background, which joins them on validation rows.
MANY_LABELS = 15
#: Members in one stack, at most. On a CPU the cost per member is flat from about 4 on; more only takes memory.
CPU_STACK, GPU_STACK = 16, 1024
#: Steps of single members below which processes of their own take longer to start than to work (a few seconds).
FEW_STEPS = 10_000


@dataclass(eq=False)
class Candidate:
    """One candidate in a race.

    Args:
        name: in words.
        job: whose it is.
        stack: that trains it.
        members: its networks' numbers there.
        outcome: None as long as it is in the race.
        kl: mean KL divergence of its mean prediction, once that is known.
    """

    name: str
    job: Job
    stack: Stack
    members: list[int]
    outcome: str | None = None
    kl: float | None = None

    @property
    def scaling(self) -> str:
        """How its features are scaled."""
        return self.stack.members[self.members[0]].scaling

    def record(self) -> dict[str, Any]:
        """Its record, once its stack has concluded; see the module."""
        epochs, seconds = self.stack.effort(self.members)
        return {
            "name": self.name,
            "log_likelihood": self.stack.log_likelihood(self.members),
            "kl": self.kl,
            "epochs": epochs,
            "networks": len(self.members),
            "seconds": round(seconds, 3),
            "outcome": self.outcome,
        }


def job_title(job: Job) -> str:
    """What the candidates of a job have in common, in words."""
    return TITLES[job.inputs] if job.settings.backbone is None else "backbone"


def candidates_of(stack: Stack) -> list[Candidate]:
    """The candidates that a stack trains, job by job, in the order in which they will be compared."""
    field = []
    for job in stack.jobs:
        numbers, size = stack.members_of(job), job.n_members
        for start in range(0, len(numbers), size):
            first = job.members[start]
            name = job_title(job) + (", pooled scaling" if first.scaling == "pooled" else "")
            field.append(Candidate(name, job, stack, numbers[start : start + size]))
    return field


def conclude_stack(stack: Stack, field: Sequence[Candidate]) -> list[FittedState | None]:
    """End the training of a stack.

    Args:
        stack: whose race is over.
        field: its candidates, as :func:`candidates_of` lists them.

    Returns:
        The state of each of its jobs with the records of the job's candidates; None where all were dropped.
    """
    states = stack.conclude()
    for number, (job, state) in enumerate(zip(stack.jobs, states)):
        if state is None:
            continue
        own = [candidate for candidate in field if candidate.job is job]
        if job.start is not None:  # nothing was chosen: the records stay those of the first fit
            own[0].outcome = "kept"
            continue
        at_end = [candidate for candidate in own if candidate.outcome is None]
        for candidate, found in zip(at_end, state.candidates):
            candidate.outcome, candidate.kl = "kept" if found.get("kept") else "not chosen", found.get("kl")
        states[number] = replace(state, candidates=[candidate.record() for candidate in own])
    return states


def run_race(
    stacks: Sequence[Stack],
    rivals: Sequence[Sequence[Candidate]],
    progress: Progress,
    say: Callable[[Stack], str],
    handicap: Handicap | None = None,
) -> None:
    """Train some stacks to the end, side by side; candidates that are clearly behind a rival are dropped on the way.

    Args:
        stacks: all with the same number of epochs.
        rivals: the candidates of these stacks, those that are compared with each other together.
        progress: gets one unit per epoch of a stack.
        say: what to show while a stack trains.
        handicap: standard errors given to a candidate's job over another's; none by default.

    Raises:
        TrainingError: where no stack can be trained.
    """
    epochs = stacks[0].recipe.epochs
    rungs = [(math.ceil(part * epochs), margin) for part, margin in RUNGS] if epochs >= LEAST_EPOCHS else []
    shown = {id(stack): 0 for stack in stacks}

    def show(stack: Stack, done: int) -> None:
        progress.update(progress.completed + done - shown[id(stack)], say(stack))
        shown[id(stack)] = done

    for until, margin in [*rungs, (epochs, None)]:
        for stack in stacks:
            if stack.failure is None:
                try:
                    stack.trainer.advance(until, lambda stack=stack: show(stack, stack.trainer.run.next_epoch))  # type: ignore[misc]
                except TrainingError as error:  # the others may do
                    _fail(stack, error, rivals)
        if margin is not None:
            for group in rivals:
                for candidate in find_behind(group, margin, handicap):
                    candidate.outcome = "dropped early"
        _drop(stacks, rivals)
    for stack in stacks:
        show(stack, epochs)
    if all(stack.failure is not None for stack in stacks):
        raise stacks[-1].failure or TrainingError("there is nothing to train.")


def _fail(stack: Stack, error: TrainingError, rivals: Sequence[Sequence[Candidate]]) -> None:
    stack.failure = error
    for group in rivals:
        for candidate in group:
            if candidate.stack is stack and candidate.outcome is None:
                candidate.outcome = "failed"


def _drop(stacks: Sequence[Stack], rivals: Sequence[Sequence[Candidate]]) -> None:
    for stack in stacks:
        gone = [one for group in rivals for one in group if one.stack is stack and one.outcome == "dropped early"]
        stack.trainer.drop([member for one in gone for member in one.members])


def describe(stack: Stack, field: Sequence[Candidate]) -> str:
    """What to show while a stack trains.

    Args:
        stack: that trains.
        field: all candidates of the search, in their order.

    Returns:
        ``"choosing: 4 of 11, guides, pooled scaling"``, or the losses where nothing is left to choose.
    """
    if sum(one.outcome is None for one in field) < 2:
        return stack.trainer.note
    here = [(number, one) for number, one in enumerate(field, 1) if one.stack is stack and one.outcome is None]
    if len(here) == 1:
        number, one = here[0]
        return f"choosing: {number} of {len(field)}, {one.name}"
    if not here:
        return stack.trainer.note
    return f"choosing: {here[0][0]} to {here[-1][0]} of {len(field)}, {job_title(stack.jobs[0])}"


def find_behind(group: Sequence[Candidate], margin: float, handicap: Handicap | None = None) -> list[Candidate]:
    """The candidates of a group that are clearly behind another.

    Args:
        group: rivals, with validation rows in common.
        margin: standard errors that a candidate may be behind.
        handicap: standard errors given to a candidate's job over another's.

    Returns:
        Never all of those that are in the race.
    """
    field = [one for one in group if one.outcome is None and one.stack.may_drop]
    if len(field) < 2:
        return []
    scores = [_scores(one) for one in field]
    behind = []
    for one, own in zip(field, scores):
        for other, best in zip(field, scores):
            if other is one or own is None or best is None:
                continue
            allowed = margin + (0.0 if handicap is None else max(0.0, handicap(one.job, other.job)))
            if one.job is other.job:  # scalings that are about as good are as good a choice
                allowed = SIBLINGS * margin
            if expected_lead(best, own) > allowed:
                behind.append(one)
                break
    return behind if len(behind) < len(field) else []


def _scores(candidate: Candidate) -> Standing | None:
    """How the members of a candidate stand together; None where there are too few validation rows to compare."""
    standings, weights = candidate.stack.trainer.standings(), candidate.job.data.weights
    parts = [standings[member] for member in candidate.members if member in standings]
    if len(parts) < len(candidate.members):
        return None
    rows = []
    for member, part in zip(candidate.members, parts):
        counted = slice(None)
        if weights is not None:  # a row that does not count in training has no voice here
            counted = torch.as_tensor(weights)[candidate.stack.members[member].valid.cpu()] > 0.0  # type: ignore[assignment]
        rows.append(part.log_prob[counted])
    log_prob = torch.cat(rows)
    if len(log_prob) < LEAST_ROWS:
        return None
    losses = [sum(column) / len(parts) for column in zip(*(part.best_losses for part in parts))]
    return Standing(log_prob, losses)


def expected_lead(leader: Standing, other: Standing) -> float:
    """By how many standard errors one candidate leads another, were the gap to shrink on as it did.

    Args:
        leader: who may lead.
        other: on the same rows, after as many epochs.

    Returns:
        Standard errors; zero or less where it does not lead.

    Example:
        >>> ahead, behind = torch.tensor([2.0, 1.0, 3.0]), torch.zeros(3)
        >>> steady = expected_lead(Standing(ahead, [0.0, -2.0]), Standing(behind, [2.0, 0.0]))
        >>> closing = expected_lead(Standing(ahead, [-2.0, -2.0]), Standing(behind, [1.0, 0.0]))
        >>> round(steady, 3), round(closing, 3)
        (3.464, 1.732)
    """
    gain = (leader.log_prob - other.log_prob).double()
    error = float(gain.std()) / len(gain) ** 0.5
    half = max(0, len(leader.best_losses) // 2 - 1)
    before = other.best_losses[half] - leader.best_losses[half]
    now = other.best_losses[-1] - leader.best_losses[-1]
    closing = max(0.0, before - now)
    return float((float(gain.mean()) - closing) / max(error, SMALLEST_POSITIVE))


class Stack:
    """Members of some jobs that have one shape.

    Args:
        jobs: on one and the same data.
        device: where to train.
        checkpoint: written after every epoch; no member is dropped then, so that a fit that was killed can go on.

    Attributes:
        jobs: as given.
        members: of all jobs.
        trainer: trains them.
        may_drop: whether members may be dropped.
        failure: why the stack trains no further, or None.
    """

    def __init__(self, jobs: Sequence[Job], device: torch.device, checkpoint: Checkpoint | None = None) -> None:
        self.jobs = list(jobs)
        self.failure: TrainingError | None = None
        self._run: Run | None = None
        first = self.jobs[0]
        self.members = [member for job in jobs for member in job.members]
        self._net = (build_net(self.members) if first.start is None else first.start.net).to(device)
        self._X = first.data.tensor(device)
        self._objective = objective = make_objective(self._net, self.members, device)
        self._optimizer = None
        self.recipe = recipe = first.recipe
        if first.one_pass:
            kept = None if first.start is None else first.start.optimizer
            rates = recipe.learning_rate, recipe.exponent_rate, recipe.weight_decay
            self._optimizer = kept or make_optimizer(self._net, *rates)
        # With many labels a background can out-score untrained networks by so many nats that their gradients vanish.
        alone = first.data.n_labels >= MANY_LABELS and objective.background is not None
        loop = TrainingLoop(
            self._net,
            self._X,
            objective.without_background() if alone else objective,
            [(member.train, member.valid) for member in self.members],
            recipe,
            [member.shuffle_seed for member in self.members],
            first.data.weight_tensor(device),
            self._optimizer,
            _rates([member.job.recipe for member in self.members], device),
            self._teams(),
        )
        self.trainer = Trainer(loop, checkpoint)
        self.may_drop = checkpoint is None and not first.one_pass

    def _teams(self) -> list[int]:
        """For each member the first one of those that stop at the same epoch: itself, unless its job has folds."""
        teams, place = [], 0
        for job in self.jobs:
            for k in range(len(job.members)):
                teams.append(place + (k // job.n_members * job.n_members if job.folds else k))
            place += len(job.members)
        return teams

    def members_of(self, job: Job) -> list[int]:
        """The numbers of a job's members."""
        return [k for k, member in enumerate(self.members) if member.job is job]

    def effort(self, members: Sequence[int]) -> tuple[int, float]:
        """Epochs that some members trained, and the seconds that took."""
        return max(self.trainer.epochs[k] for k in members), sum(self.trainer.seconds[k] for k in members)

    def log_likelihood(self, members: Sequence[int]) -> float | None:
        """Mean log likelihood of some members' validation rows at their best epochs; None where there is none."""
        losses = [] if self._run is None else [self._run.best_loss[k] for k in members]
        value = -sum(losses) / len(losses) if losses else -math.inf
        return value if math.isfinite(value) else None

    def conclude(self) -> list[FittedState | None]:
        """End the training.

        Returns:
            The state of each job, None where all of its members were dropped.
        """
        self._run = run = self.trainer.finish()
        net, objective, members = self._net, self._objective, self.members
        alive = [k for k in range(len(members)) if k not in self.trainer.dropped]
        if not alive:
            return [None] * len(self.jobs)
        if len(alive) < len(members):
            net, objective, run = net.select(alive), objective.select(alive), run.of(alive)
            members = [members[k] for k in alive]
        scores = score_held(net, self._X, objective, members)
        states: list[FittedState | None] = []
        start = 0
        for job in self.jobs:
            own = [member for member in members if member.job is job]
            state = conclude(job, net, run, self._X, scores, self._optimizer, start, own) if own else None
            states.append(state)
            start += len(own)
        return states


def _rates(recipes: Sequence[Recipe], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Learning rate and weight decay of each member (K,), or None where all are alike."""
    pairs = [(recipe.learning_rate, recipe.weight_decay) for recipe in recipes]
    if len(set(pairs)) == 1:
        return None
    table = torch.tensor(pairs, device=device)
    return table[:, 0], table[:, 1]


def train_jobs(jobs: Sequence[Job], progress: Progress, n_jobs: int | None = 1) -> list[FittedState]:
    """Train some jobs, stacked where their members have one shape; each gets what it would get alone.

    Args:
        jobs: on one and the same data and device; see :func:`snefy_ldl.training.fit.fit`.
        progress: where to show how far it is.
        n_jobs: processes on a CPU; None takes all cores, or one where the work is over in a few seconds.

    Returns:
        Fitted states, in the order of the jobs.

    Raises:
        TrainingError: where losses stay infinite after several repairs.
    """
    device = jobs[0].settings.torch_device
    workers, limit = 1, GPU_STACK
    if device.type == "cpu":
        workers = (n_jobs or os.cpu_count() or 1) if n_jobs or _steps(jobs) >= FEW_STEPS else 1
        members = sum(len(job.members) for job in jobs)
        limit = min(CPU_STACK, math.ceil(members / workers))  # no core stands idle while another has a full stack
    stacks = _stacks(jobs, limit)
    workers = min(len(stacks), workers)
    if workers > 1 and jobs[0].settings.backbone is None:
        progress.extend(len(stacks))
        answers = Parallel(n_jobs=workers)(delayed(_train_in_process)(stack) for stack in stacks)
        progress.advance(len(stacks))
    else:
        checkpoint = checkpoint_of(jobs[0]) if len(jobs) == 1 else None
        answers = [_train_stack(stack, device, progress, checkpoint) for stack in stacks]
    states = {id(job): state for stack, answer in zip(stacks, answers) for job, state in zip(stack, answer)}
    return [states[id(job)] for job in jobs]


def _shape(job: Job) -> tuple[Any, ...]:
    """What must agree for members to share a stack."""
    settings, recipe, first = job.settings, job.recipe, job.members[0]
    sizes = (len(first.train), len(first.valid), min(recipe.batch_size, len(first.train)))
    widths = (settings.n_neurons, settings.n_readouts, tuple(settings.hidden_sizes), settings.recipe)
    return (*sizes, *widths, recipe.epochs, recipe.schedule, recipe.patience, recipe.exponent_rate)


def _steps(jobs: Sequence[Job]) -> int:
    """Steps of all members of some jobs, if none stops early."""
    return sum(
        len(job.members) * job.recipe.epochs * math.ceil(len(job.members[0].train) / job.recipe.batch_size)
        for job in jobs
    )


def _stacks(jobs: Sequence[Job], limit: int) -> list[list[Job]]:
    """Jobs grouped by shape, at most ``limit`` members a stack (or one job, if it has more)."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_shape(job), []).append(job)
    stacks = []
    for group in groups.values():
        size = 1 if group[0].settings.shares_backbone else max(1, limit // len(group[0].members))
        stacks += [group[start : start + size] for start in range(0, len(group), size)]
    return stacks


def _train_stack(
    jobs: Sequence[Job], device: torch.device, progress: Progress, checkpoint: Checkpoint | None = None
) -> list[FittedState]:
    """Train the members of some jobs in one stack; the candidates of each job are rivals."""
    stack = Stack(jobs, device, checkpoint)
    field = candidates_of(stack)
    progress.extend(stack.recipe.epochs)
    rivals = [[one for one in field if one.job is job] for job in jobs]
    more = f"{len(field[0].members)} more network(s), " if jobs[0].members_done else ""
    run_race(
        [stack],
        rivals,
        progress,
        lambda stack: more + (describe(stack, field) if len(jobs) == 1 else stack.trainer.note),
    )
    states = [state for state in conclude_stack(stack, field) if state is not None]  # no race is without a winner
    kept = f", kept {next(one.name for one in field if one.outcome == 'kept')}" if len(rivals[0]) > 1 else ""
    progress.update(progress.completed, stack.trainer.note + (kept if len(jobs) == 1 else ""))
    return states


def _train_in_process(jobs: Sequence[Job]) -> list[FittedState]:
    """Train a stack in a process of its own, with one thread and nothing to show."""
    torch.set_num_threads(1)
    return _train_stack(jobs, torch.device("cpu"), Progress("fit", 0, show=False))


@dataclass(frozen=True)
class HeldScores:
    """What members make of their validation rows.

    Args:
        rows: the validation rows of each member (K, B), on the net's device.
        log_prob: log densities as the members were trained (K, B), on the CPU; None where nothing is to be compared.
        log_odds: of the background's share as those rows settle it (K,), or None without a background.
        means: the members' mean predictions (K, B, L), on the CPU; None where each has to be asked by itself.
        left_out: what the losses leave out of each member's mean log likelihood (K,), or None for nothing.
    """

    rows: Tensor
    log_prob: Tensor | None
    log_odds: Tensor | None
    means: Tensor | None = None
    left_out: Tensor | None = None

    def of(self, part: list[int]) -> HeldScores:
        """The part that concerns some of the members, which stand in a row."""
        here = as_slice(part)
        values = (self.log_prob, self.log_odds, self.means, self.left_out)
        return HeldScores(self.rows[here], *(None if value is None else value[here] for value in values))


def score_held(net: SnefyNet, X: Any, objective: Objective, members: Sequence[Member]) -> HeldScores:
    """Score validation rows for a whole stack at once: asked job by job, a GPU waits for Python.

    Args:
        net: the trained stack of exactly these members; it stays as it is.
        X: features of all rows, on the net's device.
        objective: for exactly these members.
        members: as planned, all with as many validation rows.

    Returns:
        The scores.
    """
    rows = torch.stack([member.valid for member in members]).to(net.readout.device)
    if not rows.shape[1]:
        return HeldScores(rows, None, None)
    log_prob, left_out = evaluate(net, X, objective, rows).cpu(), objective.mean_left_out(rows)
    means = _member_means(net, X, rows)
    if objective.background is None:
        return HeldScores(rows, log_prob, None, means, left_out)
    before = net.log_odds.clone()
    net.refine_background(evaluate(net, X, objective.without_background(), rows), objective.background.gather(1, rows))
    settled = net.log_odds.clone()
    with torch.no_grad():
        net.log_odds.copy_(before)  # candidates are compared as they were trained
    return HeldScores(rows, log_prob, settled, means, left_out)


@torch.no_grad()
def _member_means(net: SnefyNet, X: Any, rows: Tensor) -> Tensor | None:
    """Mean predictions of all members for their own rows, on the CPU (K, B, L).

    None for backbones that members share or that read rows one by one.
    """
    if isinstance(net.backbone, CustomBackbone):
        return None
    parts = []
    for start in range(0, rows.shape[1], EVALUATION_ROWS):
        law = net(gather_rows(net, X, rows[:, start : start + EVALUATION_ROWS]))
        parts.append(law.member_means().cpu())
    return torch.cat(parts, 1)


def conclude(
    job: Job,
    net: SnefyNet,
    run: Run,
    X: Any,
    scores: HeldScores | None,
    optimizer: StackedAdamW | None = None,
    first_member: int = 0,
    members: Sequence[Member] | None = None,
) -> FittedState:
    """Keep the job's best scaling, and settle the background's share on validation rows.

    Args:
        job: whose members these are.
        net: the trained stack that holds the job's members.
        run: the course of its fit.
        X: features of all rows, on the net's device.
        scores: of the whole stack; None where no rows were held back, or what they say is in the net already.
        optimizer: to be kept, where a further pass may go on with it.
        first_member: where the job's members begin in the stack.
        members: those of the job that are in the stack; all of them by default.

    Returns:
        The fitted state; its ``candidates`` say of each group of members whether it was kept, and the KL divergence of
        its mean where that was asked for.
    """
    members, n_members = job.members if members is None else members, job.n_members
    keep, validation = list(range(n_members)), None
    candidates: list[dict[str, Any]] = [{} for _ in range(0, len(members), n_members)]
    if scores is not None and scores.log_prob is not None:
        part = list(range(first_member, first_member + len(members)))
        rivals = _Candidates(job, members, net, X, scores.of(part), first_member)
        keep, validation = rivals.best()
        for start, group in enumerate(candidates):
            group["kl"] = rivals.divergences.get(start * n_members)
    candidates[keep[0] // n_members]["kept"] = True
    first = members[keep[0]]
    keep = [first_member + k for k in keep]
    if len(keep) < net.n_members:
        net = net.select(keep)
    if scores is not None and scores.log_odds is not None:
        with torch.no_grad():
            net.log_odds.copy_(scores.log_odds[as_slice(keep)])
    run = run.of(keep)
    history = run.history
    if job.one_pass:
        done = [] if job.start is None else job.start.history
        history = [*done, {**run.history[0], "epoch": float(job.passes_done)}]
    report: dict[str, Any] = {}
    if isinstance(net.backbone, CustomBackbone) and net.backbone.reads is not None:
        report |= {"reads": net.backbone.reads, "row": net.backbone.row}
    if scores is not None and scores.left_out is not None:
        run = run.with_left_out(scores.left_out[as_slice(keep)].tolist())
    report |= summarise(net, run, len(first.train), len(first.valid), first.scaling)
    report["labels"] = "votes" if job.data.are_counts else "shares"
    if job.data.note is not None:
        report["note"] = job.data.note
    if job.start is not None:  # names and zero policy stay those of the first fit
        return replace(job.start, net=net.eval(), history=history, summary=report, optimizer=optimizer)
    data = job.data
    return FittedState(
        net=net.eval(),
        scaling=first.scaling,
        history=history,
        summary=report,
        zero_policy=job.labels.policy,
        label_names=data.label_names or [f"label_{r}" for r in range(data.n_labels)],
        labels_were_named=data.label_names is not None,
        n_features=data.n_features,
        feature_names=data.feature_names,
        columns=data.columns,
        optimizer=optimizer,
        validation=validation,
        candidates=[] if scores is None else candidates,  # a stream tries one only
    )


class _Candidates:
    """The members of one job, in groups that differ in scaling.

    Args:
        job: whose they are.
        members: those that were trained to the end.
        net: the stack that holds them.
        X: features of all rows.
        scores: of exactly these members.
        first_member: where they begin in the stack.

    Attributes:
        divergences: mean KL divergence of the groups that were asked for their means, by their first member.
    """

    def __init__(
        self, job: Job, members: Sequence[Member], net: SnefyNet, X: Any, scores: HeldScores, first_member: int
    ) -> None:
        self._job, self._members, self._net, self._X = job, members, net, X
        self._scores, self._first = scores, first_member
        self.divergences: dict[int, float] = {}

    def best(self) -> tuple[list[int], Validation | None]:
        """Members of the candidate that does best on the validation rows, and how it does there."""
        members, n_members, log_p = self._members, self._job.n_members, self._scores.log_prob
        assert log_p is not None
        best, best_validation = list(range(n_members)), None
        for start in range(n_members, len(members), n_members):
            part = list(range(start, start + n_members))
            if lead(log_p[part], log_p[best]) <= -1.0:  # a clear loss that no mean makes good
                continue
            best_validation = best_validation or self._validation(log_p, best)
            validation = self._validation(log_p, part)
            if validation.beats(best_validation):
                best, best_validation = part, validation
        if best_validation is None:
            best_validation = self._validation(log_p, best)
        return best, best_validation

    def _validation(self, log_p: Tensor, part: list[int]) -> Validation:
        """What some members make of their validation rows; a row that does not count in training has no voice here."""
        divergence = torch.stack([self._divergence(k) for k in part])
        counted = torch.ones_like(divergence, dtype=torch.bool)
        if self._job.data.weights is not None:
            counted = torch.as_tensor(self._job.data.weights)[self._scores.rows[part].cpu()] > 0.0
        rows = torch.stack([self._members[k].valid for k in part])
        validation = Validation(log_p[part][counted], divergence[counted], rows[counted])
        self.divergences[part[0]] = float(validation.divergence.double().mean())
        return validation

    def _divergence(self, k: int) -> Tensor:
        """KL divergence of a member's mean prediction on each of its validation rows (B,)."""
        job, rows = self._job, self._members[k].valid
        mean = self._mean(k) if self._scores.means is None else self._scores.means[k]
        plain = not (job.data.are_counts or job.data.has_gaps)  # then zeros of the labels are zeros here, too
        shares = torch.as_tensor((job.data.labels if plain else job.labels.shares)[rows.numpy()])
        return torch.special.xlogy(shares, shares).sum(-1) - (shares * log_share(mean)).sum(-1)

    def _mean(self, k: int) -> Tensor:
        """A member's mean prediction for its validation rows (B, L), asked by itself."""
        rows, net = self._members[k].valid, self._net.select([self._first + k])
        with torch.no_grad():
            mean: Tensor = net(gather_rows(net, self._X, rows[None].to(net.readout.device))).mean.cpu()
        return mean


def join_states(first: FittedState, second: FittedState) -> FittedState:
    """One model of the members of two, which must have one shape and one scaling.

    Args:
        first: whose names, guides and candidates stay.
        second: trained in the same way.

    Returns:
        The fitted state of all members.
    """
    one, other = first.net, second.net
    net = one.select([0] * (one.n_members + other.n_members))
    tensors = other.state_dict()
    net.load_state_dict({name: torch.cat([value, tensors[name]]) for name, value in one.state_dict().items()})
    history = []
    sizes = one.n_members, other.n_members
    for mine, theirs in zip_longest(first.history, second.history):
        if mine is None or theirs is None:  # members that ran out of patience
            history.append(mine or theirs)
            continue
        record = {**mine, "seconds": mine["seconds"] + theirs["seconds"]}
        for name in ("loss", "validation_loss"):
            if name in record:
                record[name] = (sizes[0] * mine[name] + sizes[1] * theirs[name]) / sum(sizes)
        history.append(record)
    summary = {**first.summary, "epochs": max(first.summary["epochs"], second.summary["epochs"])}
    for name in ("best_epoch", "validation_loss", "background_share", "repairs", "seconds"):
        summary[name] = first.summary[name] + second.summary[name]
    return replace(first, net=net.eval(), history=history, summary=summary)


def first_members(state: FittedState, number: int) -> FittedState:
    """A model reduced to its first few members.

    Args:
        state: of at least as many.
        number: how many to keep.

    Returns:
        The fitted state.
    """
    if state.net.n_members == number:
        return state
    summary = dict(state.summary)
    for name in ("best_epoch", "validation_loss", "background_share"):
        summary[name] = summary[name][:number]
    return replace(state, net=state.net.select(list(range(number))).eval(), summary=summary)
