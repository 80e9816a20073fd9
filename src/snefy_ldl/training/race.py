"""The race between candidates: all start, at a few epochs those that are clearly behind are dropped, the rest go on.

A candidate is one way to fit a job: what the network sees, how that is scaled, and by what labels are divided. All
candidates follow the schedule they would follow alone and are compared at the same epoch, so that one that is never
dropped ends with exactly the weights it would have had without a race.

At each *rung* a candidate is dropped where another one leads on the validation rows by more than a margin: the mean
difference of their log likelihoods, row by row and each at its best epoch so far, in standard errors. Candidates that
learn slowly get the benefit: if the gap has become smaller since half the epochs, it is taken to shrink as much again.

What was tried is recorded as plain values, which end up in ``SnefyLDL.candidates_``:

========================  =====================================================================================
``name``                  the candidate in words, ``"guides with centre"`` say
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
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import Tensor

from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE
from snefy_ldl.errors import TrainingError
from snefy_ldl.training.checkpoint import Checkpoint, checkpoint_of
from snefy_ldl.training.conclude import conclude, score_held
from snefy_ldl.training.loop import Standing, Trainer, TrainingLoop
from snefy_ldl.training.optimiser import make_optimizer
from snefy_ldl.training.plan import Job, build_net, make_objective
from snefy_ldl.training.settings import Recipe
from snefy_ldl.training.state import FittedState, Inputs, Run

#: Part of the epochs at which candidates are compared, and the standard errors by which one may be behind there.
#: Earlier, or by fewer standard errors, the winner of a full search was dropped on two of five splits of a data set
#: whose candidates with a centre learn fast and end behind.
RUNGS = ((0.5, 3.0), (0.7, 2.0))
#: Epochs and validation rows below which nobody is dropped: too few to tell who is behind.
LEAST_EPOCHS, LEAST_ROWS = 10, 20
#: What a candidate is called after its inputs.
TITLES: dict[Inputs, str] = {
    "features": "features",
    "guides": "guides",
    "both": "features and guides",
    "moving": "moving law",
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
    return (TITLES[job.inputs] if job.settings.backbone is None else "backbone") + job.remark


def candidates_of(stack: Stack) -> list[Candidate]:
    """The candidates that a stack trains, job by job, in the order in which they will be compared."""
    field = []
    for job in stack.jobs:
        numbers, size = stack.members_of(job), job.n_members
        for start in range(0, len(numbers), size):
            first = job.members[start]
            name = TITLES[job.inputs] if job.settings.backbone is None else "backbone"
            name += " with centre" if first.centre is not None else ""
            name += ", pooled scaling" if first.scaling == "pooled" else ""
            name += ", taught" if job.lessons is not None else ""
            field.append(Candidate(name + job.remark, job, stack, numbers[start : start + size]))
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
        ``"choosing: 4 of 11, guides with centre"``, or the losses where nothing is left to choose.
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
