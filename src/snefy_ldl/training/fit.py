"""The one entry of training: tasks or a stream in, fitted models out."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed

from snefy_ldl._internal.limits import PREDICTION_ROWS
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import TrainingWarning
from snefy_ldl.training.groups import fit_grouped, wants_effects
from snefy_ldl.training.model import FittedModel
from snefy_ldl.training.policy import POLICY
from snefy_ldl.training.prepare import GuideTable, Problem, Task, prepare, prepare_guides
from snefy_ldl.training.select import select
from snefy_ldl.training.settings import CandidateSpec, Settings
from snefy_ldl.training.stream import StreamFit
from snefy_ldl.training.train import Fit, train


def fit(tasks: Sequence[Task], n_jobs: int | None = 1) -> list[FittedModel]:
    """Fit some models; each is what it would be alone. Tasks without guides are trained together.

    Every fit ends with fingerprints of its rows.

    Args:
        tasks: on one and the same data and device. A task that continues from a model or makes one pass must be the
            only one; only a single task writes a checkpoint.
        n_jobs: processes on a CPU; None takes all cores, or one where the work is over in a few seconds.

    Returns:
        Fitted models, in the order of the tasks.

    Raises:
        TrainingError: losses stay infinite after several repairs.

    Warns:
        TrainingWarning: a fit did not learn.

    Example:
        >>> from snefy_ldl.training.data import TrainingData
        >>> data = TrainingData(np.eye(6), np.full((6, 2), 0.5), None, None, custom=False)
        >>> fit([Task(Settings(epochs=1, guides=None, random_state=0), data)])[0].n_labels
        2
    """
    settings = tasks[0].settings
    simple = [not (POLICY.guides(task) or POLICY.is_large(task) or wants_effects(task)) for task in tasks]
    together = len(tasks) > 1 and all(simple)
    workers = 1 if together or settings.torch_device.type != "cpu" else min(n_jobs or os.cpu_count() or 1, len(tasks))
    if workers > 1:
        models = Parallel(n_jobs=workers)(delayed(_fit_in_process)(task) for task in tasks)
    else:
        with Progress("fit", 0, show=settings.verbose >= 1 and not tasks[0].one_pass) as progress:
            models = _fit_together(tasks, progress, n_jobs) if together else [fit_one(task, progress) for task in tasks]
    if not together:
        for model in models:
            _warn_if_nothing_was_learnt(model)
    return models


def _fit_together(tasks: Sequence[Task], progress: Progress, n_jobs: int | None) -> list[FittedModel]:
    """Fit tasks without guides, members of all of them stacked."""
    problems = [prepare(spec, task) for task in tasks for spec in POLICY.specs(task)]
    fits = train(problems, progress, n_jobs)
    models = []
    for task in tasks:
        own = [fit for fit in fits if fit.problem.task is task]
        best = select(own)
        models.append(FittedModel.of(best, [fit.record(fit is best) for fit in own]).finished(task))
    return models


def fit_one(task: Task, progress: Progress) -> FittedModel:
    """Fit one model, whatever there is to choose, with fingerprints of its rows."""
    started = time.perf_counter()
    model = fit_grouped(task, choose, progress) if wants_effects(task) else choose(task, progress)
    # the guides and the candidates that were not chosen took their time, too
    seconds = max(model.summary["seconds"], round(time.perf_counter() - started, 3))
    return replace(model, summary={**model.summary, "seconds": seconds}).finished(task)


def _fit_in_process(task: Task) -> FittedModel:
    """Fit one model in another process, with one thread and nothing to show."""
    torch.set_num_threads(1)
    return fit_one(task, Progress("fit", 0, show=False))


def choose(task: Task, progress: Progress, guided: GuideTable | None = None) -> FittedModel:
    """The five steps: candidates, problems, fits, the best of them, a model.

    Args:
        task: the model.
        progress: where to show how far it is.
        guided: the guides of the task, if they are fitted already.

    Returns:
        The model, without fingerprints and self-check.
    """
    if POLICY.is_large(task):
        return _choose_on_sample(task, progress)
    specs = POLICY.specs(task)
    if guided is None and any(spec.inputs != "features" for spec in specs):
        progress.update(progress.completed, "fitting guides")
        guided = prepare_guides(task)
    fits = train([prepare(spec, task, guided) for spec in specs], progress)
    best = select(fits)
    records = [fit.record(fit is best) for fit in fits]
    whole = _with_members(best, guided, progress)
    if task.start is not None:  # nothing was chosen: the records stay those of the first fit
        return FittedModel.of(whole, [], guided)
    records[fits.index(best)] |= {"networks": len(whole.problem.members), "seconds": round(whole.run.seconds, 3)}
    name = f", kept {best.problem.name}" if len(fits) > 1 else ""
    last = whole.run.history[-1]
    note = f"loss {last['loss']:.3f} validation {last.get('validation_loss', np.nan):.3f}{name}"
    progress.update(progress.completed, note)
    return FittedModel.of(whole, records, guided)


def _with_members(best: Fit, guided: GuideTable | None, progress: Progress) -> Fit:
    """The best fit with as many members as are wanted; further ones are trained as it was."""
    problem: Problem = best.problem
    done = len(problem.members)
    wanted = POLICY.all_members(problem.task, done)
    if wanted <= done:
        return best.take(wanted)
    further = replace(problem.spec, n_members=wanted - done)
    return best.joined(train([prepare(further, problem.task, guided, first=done)], progress)[0])


def _choose_on_sample(task: Task, progress: Progress) -> FittedModel:
    """Choose scaling and inputs on a sample of very many rows, and train on all of them.

    Guides learn from the sample. If they are kept, the network learns from the other rows, whose labels they have not
    seen.
    """
    settings, data, rng = task.settings, task.data, np.random.default_rng(task.seed_of(11))
    sample = _sample(task, rng)
    short = min(settings.epochs, POLICY.sample_epochs)
    brief = replace(settings, n_members=1, epochs=short, verbose=0, checkpoint_dir=None, patience=None)
    # the floor is that of all rows, or the two fits would not speak of the same labels
    policy = None if data.are_counts else task.labels.policy
    part = data.take(sample)

    def fit_sample(guides: Any) -> FittedModel:
        return choose(Task(replace(brief, guides=guides), part, policy=policy, warn=False, seed=task.seed), progress)

    chosen = fit_sample(None)
    if settings.guides is not None and data.has_whole_shares:
        guided = fit_sample(settings.guides)
        gain = np.nanmean(guided.held_log_prob) - np.nanmean(chosen.held_log_prob)  # type: ignore[arg-type]
        if guided.guides is not None and gain > POLICY.guide_gain:
            chosen = guided
    rows, seen = task.rows, data
    if chosen.guides is not None:
        seen, rows = data.with_features(_seen_by(chosen, data.features)), np.setdiff1d(rows, sample)
    settled = replace(settings, guides=None, candidates=[CandidateSpec("features", chosen.scaling)])
    whole = None if policy is None else ZeroPolicy(chosen.zero_policy.mode, policy.floor)
    model = choose(Task(settled, seen, rows, policy=whole, warn=False, seed=task.seed), progress)
    summary = {**model.summary, "inputs": chosen.inputs, "chosen_by": len(sample)}
    return replace(
        model,
        inputs=chosen.inputs,
        guides=chosen.guides,
        n_features=data.n_features,
        summary=summary,
        candidates=chosen.candidates,
    )


def _sample(task: Task, rng: np.random.Generator) -> Any:
    """Rows by which a large fit chooses; of rows in blocks, whole blocks."""
    if task.data.blocks is None:
        return np.sort(rng.choice(task.rows, POLICY.sample_rows, replace=False))
    blocks, which = np.unique(task.data.blocks[task.rows], return_inverse=True)
    place = rng.permutation(len(blocks))[which.reshape(-1)]
    return np.sort(task.rows[np.argsort(place, kind="stable")[: POLICY.sample_rows]])


def _seen_by(chosen: FittedModel, features: Any) -> Array:
    """What the network sees of every row, float32: guides' predictions, a part of the rows at a time."""
    assert chosen.guides is not None
    starts = range(0, features.shape[0], PREDICTION_ROWS)
    parts = [chosen.guides.inputs(features[start : start + PREDICTION_ROWS], chosen.inputs) for start in starts]
    return np.concatenate([part.astype(np.float32) for part in parts])


def _warn_if_nothing_was_learnt(model: FittedModel) -> None:
    """Warn of a fit that stays at its background, which is worse than the mean label."""
    report = model.summary
    if report["epochs"] >= 10 and max(report["best_epoch"]) == 0 and min(report["background_share"]) > 0.5:
        warnings.warn(
            f"the fit did not learn: no epoch was better than the first, and {min(report['background_share']):.0%} of "
            "the density is the labels' overall distribution. Try a lower learning_rate, fewer labels (merge rare "
            "ones), guides=[...] with a learner that does well on this data, or more rows.",
            TrainingWarning,
            stacklevel=4,
        )


def fit_stream(settings: Settings, stream: Stream, columns: Any = "auto") -> FittedModel:
    """Train on a stream: neurons start at its first rows, a sample of its rows is held back for validation.

    Nothing is loaded whole: a chunk of rows is in memory at a time, shuffled by itself. What needs all rows beforehand
    is settled simply: no guides, zeros are shrunk, features scaled by the first chunk.

    Args:
        settings: of the model.
        stream: pairs of x and labels.
        columns: what the user says of some columns of tables; "auto" looks at the first chunk.

    Returns:
        The fitted model.

    Raises:
        InputError: the stream is empty or has no labels, or a chunk breaks a rule.
        TrainingError: losses stay infinite after several repairs.
    """
    part = StreamFit(settings, stream, columns)
    with Progress(
        "stream", part.schedule.epochs, show=settings.verbose >= 1, completed=part.run.next_epoch
    ) as progress:
        while not part.finished:
            part.epoch()
            progress.update(part.run.next_epoch, f"loss {part.run.history[-1]['loss']:.3f}")
    return part.conclude()
