"""The one entry of training: jobs in, fitted states out."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from joblib import Parallel, delayed

from snefy_ldl._internal.progress import Progress
from snefy_ldl.training.checkpoint import Checkpoint, checkpoint_of
from snefy_ldl.training.plan import Job
from snefy_ldl.training.race import candidates_of, conclude_stack, describe, run_race
from snefy_ldl.training.stack import Stack
from snefy_ldl.training.state import FittedState

#: Members in one stack, at most. On a CPU the cost a member is flat from about 4 on; more only takes memory.
CPU_STACK, GPU_STACK = 16, 1024
#: Steps of single members below which processes of their own take longer to start than to work (a few seconds).
FEW_STEPS = 10_000


def fit(jobs: Sequence[Job], n_jobs: int | None = 1, progress: Progress | None = None) -> list[FittedState]:
    """Train some jobs, stacked where their members have one shape; each gets what it would get alone.

    Args:
        jobs: on one and the same data and device. A job that goes on from a state or makes one pass must be the only
            one; only a single job writes a checkpoint.
        n_jobs: processes on a CPU; None takes all cores, or one where the work is over in a few seconds.
        progress: where to show how far it is; a new one by default, if the settings ask for it.

    Returns:
        Fitted states, in the order of the jobs.

    Raises:
        TrainingError: where losses stay infinite after several repairs.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.training.data import TrainingData
        >>> from snefy_ldl.training.settings import Settings
        >>> data = TrainingData(np.eye(6), np.full((6, 2), 0.5), None, None, custom=False)
        >>> fit([Job(Settings(epochs=1, random_state=0), data)])[0].n_labels
        2
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
        answers = Parallel(n_jobs=workers)(delayed(_train_alone)(stack) for stack in stacks)
    else:
        checkpoint = checkpoint_of(jobs[0]) if len(jobs) == 1 else None
        if progress is None:
            show = jobs[0].settings.verbose >= 1 and not jobs[0].one_pass
            with Progress("fit", 0, show=show) as progress:
                answers = [_train(stack, device, progress, checkpoint) for stack in stacks]
        else:
            answers = [_train(stack, device, progress, checkpoint) for stack in stacks]
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


def _train(
    jobs: Sequence[Job], device: torch.device, progress: Progress, checkpoint: Checkpoint | None = None
) -> list[FittedState]:
    """Train the members of some jobs in one stack; the candidates of each job are rivals."""
    stack = Stack(jobs, device, checkpoint)
    field = candidates_of(stack)
    progress.extend(stack.recipe.epochs)
    rivals = [[one for one in field if one.job is job] for job in jobs]
    more = f"{len(field[0].members)} more network(s), " if jobs[0].members_done else ""
    run_race([stack], rivals, progress, lambda stack: more + (describe(stack, field) if len(jobs) == 1 else stack.note))
    states = [state for state in conclude_stack(stack, field) if state is not None]  # no race is without a winner
    kept = f", kept {next(one.name for one in field if one.outcome == 'kept')}" if len(rivals[0]) > 1 else ""
    progress.update(progress.completed, stack.note + (kept if len(jobs) == 1 else ""))
    return states


def _train_alone(jobs: Sequence[Job]) -> list[FittedState]:
    """The same in a process of its own, with one thread and nothing to show."""
    torch.set_num_threads(1)
    return _train(jobs, torch.device("cpu"), Progress("fit", 0, show=False))
