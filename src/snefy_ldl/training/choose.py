"""The one entry of training: tasks in, fitted models out, in five plain steps (:func:`choose`)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs

from snefy_ldl._internal.adam import Adam
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import TrainingWarning
from snefy_ldl.networks.backbones import CustomBackbone, Scaling
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.guides import Guides
from snefy_ldl.training.policy import POLICY, Inputs
from snefy_ldl.training.prepare import GuideTable, Task, prepare, prepare_guides
from snefy_ldl.training.train import Fit, select, train


@dataclass(frozen=True)
class FittedModel:
    """A fitted model without its settings: training returns it, an estimator adopts it, files restore it.

    Args:
        net: the trained members.
        scaling: how features are scaled.
        history: one record per epoch; see :class:`snefy_ldl.training.train.Run`.
        summary: what the fit did, as JSON can hold it.
        zero_policy: what happens to shares of zero.
        label_names: of the L labels.
        labels_were_named: whether those came with the labels, so that predictions carry them.
        n_features: d; None with a custom backbone.
        feature_names: of the d features, or None if they had none.
        optimizer: where ``partial_fit`` continues.
        inputs: what the network sees: the features, the guides' predictions, or both.
        guides: the fitted guides, or None if the network does not see any.
        columns: what makes features of the columns of a table, or None.
        held_log_prob: log likelihood of every row by the members that did not learn from it (N,), NaN where all did;
            None if no rows were held back.
        candidates: one record for each candidate: ``name`` in words, ``log_likelihood`` (mean over its validation
            rows), ``epochs``, ``networks``, ``seconds`` and ``outcome``: "kept", "not chosen" or "failed".
        seen: fingerprints of the training rows; None if features are not numbers, or an old file has none.
    """

    net: SnefyNet
    scaling: Scaling
    history: list[dict[str, float]]
    summary: dict[str, Any]
    zero_policy: ZeroPolicy
    label_names: list[str]
    labels_were_named: bool
    n_features: int | None = None
    feature_names: list[str] | None = None
    optimizer: Adam | None = None
    inputs: Inputs = "features"
    guides: Guides | None = None
    columns: TableEncoder | None = None
    held_log_prob: Array | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)
    seen: SeenRows | None = None

    @classmethod
    def of(cls, fit: Fit, candidates: list[dict[str, Any]], guided: bool = False) -> FittedModel:
        """The model of the fit that was kept.

        Args:
            fit: of all its members.
            candidates: records of all candidates.
            guided: whether guides were tried.

        Returns:
            The model, without fingerprints.
        """
        problem, net, log_prob = fit.problem, fit.net, fit.log_prob
        assert net is not None
        task, data, first = problem.task, problem.data, problem.members[0]
        history, run, body = fit.run.history, fit.run, net.backbone
        held = [member.valid.numpy() for member in problem.members]
        if log_prob is not None:
            weights = [np.ones(len(rows)) if data.weights is None else data.weights[rows] for rows in held]
            means = [float((own * w).sum() / max(w.sum(), 1e-12)) for own, w in zip(log_prob, weights)]
            run = replace(run, best_loss=[-mean for mean in means])
        reads = {"reads": body.reads} if isinstance(body, CustomBackbone) and body.reads else {}
        summary = reads | {
            "rows": len(first.train),
            "validation_rows": len(first.valid),
            "epochs": run.next_epoch,
            "best_epoch": run.best_epoch,
            "validation_loss": [loss if math.isfinite(loss) else None for loss in run.best_loss],
            "seconds": round(run.seconds, 3),
            "scaling": problem.spec.scaling,
            "background_share": [round(share, 6) for share in torch.sigmoid(net.log_odds).tolist()],
            "device": str(net.readout.device),
            "labels": "votes" if data.are_counts else "shares",
        }
        if data.note is not None:
            summary["note"] = data.note
        if task.start is not None:  # names and zero policy stay those of the first fit
            if task.one_pass:
                history = [*task.start.history, {**history[0], "epoch": float(task.passes_done)}]
            return replace(task.start, net=net, history=history, summary=summary, optimizer=fit.optimizer)
        if guided:
            summary["inputs"] = problem.spec.inputs
        given = task.data
        return cls(
            net=net,
            scaling=problem.spec.scaling,
            history=history,
            summary=summary,
            zero_policy=task.labels.policy,
            label_names=given.label_names or [f"label_{r}" for r in range(given.n_labels)],
            labels_were_named=given.label_names is not None,
            n_features=given.n_features,
            feature_names=given.feature_names,
            columns=given.columns,
            optimizer=fit.optimizer,
            inputs=problem.spec.inputs,
            guides=problem.guides,
            held_log_prob=None if log_prob is None else _by_row(held, log_prob, given.n_rows),
            candidates=candidates,
        )

    def finished(self, task: Task, seconds: float = 0.0, table: SeenRows | None = None) -> FittedModel:
        """This model as a fit to these rows leaves it: with their fingerprints, and all the time that it took.

        Args:
            task: what was fitted.
            seconds: the time.
            table: fingerprints of all rows of the task's data, if they are known.

        Returns:
            The model.
        """
        seen = SeenRows.of(task.data.features, task.data.labels, task.rows) if table is None else table.part(task.rows)
        if self.seen is not None:
            seen = self.seen.joined(seen)
        whole = max(self.summary["seconds"], round(seconds, 3))
        return replace(self, seen=seen, summary={**self.summary, "given_rows": len(task.rows), "seconds": whole})

    def guided(self, data: TrainingData) -> TrainingData:
        """Rows as this model's network sees them: through its guides, if it has any."""
        return data if self.guides is None else data.with_features(self.guides.inputs(data.features, self.inputs))

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.net.raw_exponents.shape[2])


def _by_row(held: list[Array], log_prob: list[Array], n_rows: int) -> Array:
    """Mean log likelihood of every row over the members that held it back (N,), NaN for the others."""
    rows = np.concatenate(held)
    total, times = np.bincount(rows, np.concatenate(log_prob), n_rows), np.bincount(rows, minlength=n_rows)
    return np.where(times > 0, total / np.maximum(times, 1), np.nan)


# -- fitting ---------------------------------------------------------------------------------------------------------


def fit(tasks: Sequence[Task], n_jobs: int | None = 1) -> list[FittedModel]:
    """Fit some models; each is what it would be alone. Tasks without guides are trained together.

    Every fit ends with fingerprints of its rows.

    Args:
        tasks: on one and the same data and device. A task that continues from a model or makes one pass must be the
            only one; only a single task writes a checkpoint.
        n_jobs: processes on a CPU, as scikit-learn counts them: None is all cores if there are guides, else one.

    Returns:
        Fitted models, in the order of the tasks.

    Raises:
        TrainingError: a loss is not finite.

    Warns:
        TrainingWarning: a fit did not learn.

    Example:
        >>> from snefy_ldl.training.policy import Settings
        >>> data = TrainingData(np.eye(6), np.full((6, 2), 0.5), None, None, custom=False)
        >>> fit([Task(Settings(epochs=1, guides=None, random_state=0), data)])[0].n_labels
        2
    """
    settings, simple = tasks[0].settings, not any(POLICY.guides(task) for task in tasks)
    on_cpu = settings.torch_device.type == "cpu" and settings.backbone is None
    workers = min(effective_n_jobs(n_jobs or (1 if simple else -1)), len(tasks)) if on_cpu else 1
    parts = [tasks[k::workers] for k in range(workers)] if simple else [[task] for task in tasks]
    if workers > 1:
        answers = Parallel(n_jobs=workers)(delayed(_fit_in_process)(part) for part in parts)
    else:
        with Progress("fit", 0, show=settings.verbose >= 1 and not tasks[0].one_pass) as progress:
            answers = list(map(partial(_fit_together, progress=progress), parts))
    found = {id(task): model for part, models in zip(parts, answers) for task, model in zip(part, models)}
    if len(tasks) == 1:
        _warn_if_nothing_was_learnt(found[id(tasks[0])])
    return [found[id(task)] for task in tasks]


def _fit_together(tasks: Sequence[Task], progress: Progress) -> list[FittedModel]:
    """Fit models in one stack, with fingerprints of their rows."""
    started, data = time.perf_counter(), tasks[0].data
    chosen = choose(tasks, progress)
    # the guides and the candidates that were not chosen took their time, too
    seconds = (time.perf_counter() - started) / len(tasks)
    # rows that many models share are read once, if each row of the table gets a fingerprint
    table = SeenRows.of(data.features, data.labels) if len(tasks) > 1 else None
    table = None if table is None or len(table.prints) < table.rows else table
    return [model.finished(task, seconds, table) for task, (model, _) in zip(tasks, chosen)]


def _fit_in_process(tasks: Sequence[Task]) -> list[FittedModel]:
    """Fit models in another process, with one thread and nothing to show."""
    torch.set_num_threads(1)
    return _fit_together(tasks, Progress("fit", 0, show=False))


def choose(
    tasks: Sequence[Task], progress: Progress, guided: GuideTable | None = None
) -> list[tuple[FittedModel, TrainingData]]:
    """The five steps for each task: candidates, problems, fits, the best of them, a model.

    Args:
        tasks: the models; one alone if it has guides.
        progress: where to show how far they are.
        guided: the guides of the task, if they are fitted already.

    Returns:
        Each model, without fingerprints, and the rows as its network saw them.
    """
    problems = []
    for task in tasks:
        specs = POLICY.specs(task)
        if guided is None and any(spec.inputs != "features" for spec in specs):
            progress.update(progress.completed, "fitting guides")
            guided = prepare_guides(task)
        problems += [prepare(spec, task, guided) for spec in specs]
    fits, chosen = train(problems, progress), []
    for task in tasks:
        own = [fit for fit in fits if fit.problem.task is task]
        best = select(own)
        # a fit that goes on chooses nothing: the records stay those of the first one
        records = [] if task.start else [fit.record(fit is best) for fit in own]
        chosen.append((FittedModel.of(best, records, guided is not None), best.problem.data))
    return chosen


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
