"""The one entry of training: jobs or a stream in, fitted states out."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from joblib import Parallel, delayed

from snefy_ldl._internal.progress import Progress
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.errors import TrainingWarning
from snefy_ldl.training.plan import Job
from snefy_ldl.training.race import train_jobs
from snefy_ldl.training.search import needs_search, search
from snefy_ldl.training.selfcheck import finish, warn_if_failed
from snefy_ldl.training.settings import Settings
from snefy_ldl.training.state import FittedState, Inputs
from snefy_ldl.training.stream import StreamFit


def fit(jobs: Sequence[Job], n_jobs: int | None = 1, inputs: Inputs | None = None) -> list[FittedState]:
    """Train some jobs: a single job, and jobs that compare candidates, one by one; the others stacked.

    Each job gets what it would get alone. Every fit ends with fingerprints of its rows and a check of its law.

    Args:
        jobs: on one and the same data and device. A job that goes on from a state or makes one pass must be the only
            one; only a single job writes a checkpoint.
        n_jobs: processes on a CPU; None takes all cores, or one where the work is over in a few seconds.
        inputs: what the networks see, where an earlier fit has chosen that; None lets each job choose.

    Returns:
        Fitted states, in the order of the jobs.

    Raises:
        TrainingError: where losses stay infinite after several repairs.

    Warns:
        SelfCheckWarning: a fitted law disagrees with its own draws.
        TrainingWarning: a fit did not learn.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.training.data import TrainingData
        >>> data = TrainingData(np.eye(6), np.full((6, 2), 0.5), None, None, custom=False)
        >>> fit([Job(Settings(epochs=1, guides=None, random_state=0), data)])[0].n_labels
        2
    """
    settings = jobs[0].settings
    stacked = len(jobs) > 1 and not any(needs_search(job) for job in jobs)
    workers = 1 if stacked or settings.torch_device.type != "cpu" else min(n_jobs or os.cpu_count() or 1, len(jobs))
    states: list[FittedState]
    if workers > 1:
        states = Parallel(n_jobs=workers)(delayed(_fit_in_process)(job, inputs) for job in jobs)
    else:
        with Progress("fit", 0, show=settings.verbose >= 1 and not jobs[0].one_pass) as progress:
            if stacked:
                states = [finish(state, job) for job, state in zip(jobs, train_jobs(jobs, progress, n_jobs))]
            else:
                states = [_fit_one(job, progress, inputs) for job in jobs]
    for state in states:
        warn_if_failed(state)
        if not stacked:
            _warn_if_nothing_was_learnt(state)
    return states


def _fit_one(job: Job, progress: Progress, inputs: Inputs | None) -> FittedState:
    started = time.perf_counter()
    state = search(job, progress, inputs)
    # the guides and the candidates that were not chosen took their time, too
    seconds = max(state.summary["seconds"], round(time.perf_counter() - started, 3))
    return finish(replace(state, summary={**state.summary, "seconds": seconds}), job)


def _fit_in_process(job: Job, inputs: Inputs | None) -> FittedState:
    """Fit one job in a process of its own, with one thread and nothing to show."""
    torch.set_num_threads(1)
    return _fit_one(job, Progress("fit", 0, show=False), inputs)


def _warn_if_nothing_was_learnt(state: FittedState) -> None:
    """Warn of a fit that stays at its background, which is worse than the mean label."""
    report = state.summary
    if report["epochs"] >= 10 and max(report["best_epoch"]) == 0 and min(report["background_share"]) > 0.5:
        warnings.warn(
            f"the fit did not learn: no epoch was better than the first, and {min(report['background_share']):.0%} of "
            "the density is the labels' overall law. Try a lower learning_rate, fewer labels (merge rare ones), "
            "guides=[...] with a learner that does well on this data, or more rows.",
            TrainingWarning,
            stacklevel=4,
        )


def fit_stream(settings: Settings, stream: Stream, columns: Any = "auto") -> FittedState:
    """Train on a stream: neurons start at its first rows, a sample of its rows is held back for validation.

    Nothing is loaded whole: a chunk of rows is in memory at a time, shuffled by itself. What needs all rows beforehand
    is settled simply: no guides, zeros are shrunk, features scaled by the first chunk.

    Args:
        settings: of the model.
        stream: pairs of x and labels.
        columns: what the user says of some columns of tables; "auto" looks at the first chunk.

    Returns:
        The fitted state.

    Raises:
        InputError: where the stream is empty or has no labels, or a chunk breaks a rule.
        TrainingError: where losses stay infinite after several repairs.
    """
    part = StreamFit(settings, stream, columns)
    with Progress("stream", part.recipe.epochs, show=settings.verbose >= 1, completed=part.run.next_epoch) as progress:
        while not part.finished:
            part.epoch()
            progress.update(part.run.next_epoch, f"loss {part.run.history[-1]['loss']:.3f}")
    state = part.conclude()
    warn_if_failed(state)
    return state
