"""What a fit leaves behind: a frozen model without its settings, and what its network takes of new rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.columns import Encoder
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import Scaling
from snefy_ldl.training.checkpoint import Run
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.effects import GroupEffects
from snefy_ldl.training.guides import Guides
from snefy_ldl.training.optimiser import StackedAdamW
from snefy_ldl.training.prepare import GuideTable, Task
from snefy_ldl.training.settings import Inputs
from snefy_ldl.training.train import Fit
from snefy_ldl.votes.confusion import Annotators


@dataclass(frozen=True)
class Shown:
    """What the networks of a fit were shown: the group effects of rows continue from it.

    Args:
        task: the rows, seed and labels of the fit.
        data: rows as the networks saw them.
        guided: guides and their predictions of those rows, or None.
    """

    task: Task
    data: TrainingData
    guided: GuideTable | None


@dataclass(frozen=True)
class FittedModel:
    """A fitted model without its settings: training returns it, an estimator adopts it, files restore it.

    Args:
        net: the trained members.
        scaling: how features are scaled.
        history: one record per epoch; see :class:`snefy_ldl.training.checkpoint.Run`.
        summary: what the fit did, as JSON can hold it.
        zero_policy: what happens to shares of zero.
        label_names: of the L labels.
        labels_were_named: whether those came with the labels, so that predictions carry them.
        n_features: d; None with a custom backbone.
        feature_names: of the d features, or None where they had none.
        optimizer: where ``partial_fit`` continues.
        inputs: what the network sees: the features, the guides' predictions, or both.
        guides: the fitted guides, or None where the network does not see any.
        columns: what makes features of the columns of a table, or None.
        held_log_prob: log likelihood of every row by the members that did not learn from it (N,), NaN where all did;
            None where no rows were held back.
        candidates: one record for each candidate: ``name`` in words, ``log_likelihood`` (mean over its validation
            rows), ``epochs``, ``networks``, ``seconds`` and ``outcome``: "kept", "not chosen", "dropped early" or
            "failed".
        seen: fingerprints of the training rows; None where features are not numbers, or an old file has none.
        effects: what is known of the groups of rows; None where rows came without groups, or groups do not matter.
        annotators: what a fit to single votes learnt about who cast them; None for other fits.
        shown: what the networks were shown, as long as a fit lasts.
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
    optimizer: StackedAdamW | None = None
    inputs: Inputs = "features"
    guides: Guides | None = None
    columns: Encoder | None = None
    held_log_prob: Array | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)
    seen: SeenRows | None = None
    effects: GroupEffects | None = None
    annotators: Annotators | None = None
    shown: Shown | None = None

    @classmethod
    def of(cls, fit: Fit, candidates: list[dict[str, Any]], guided: GuideTable | None = None) -> FittedModel:
        """The model of the fit that was kept.

        Args:
            fit: of all its members.
            candidates: records of all candidates.
            guided: the guides that were fitted, or None.

        Returns:
            The model, without fingerprints.
        """
        problem, net, log_prob = fit.problem, fit.net, fit.log_prob
        assert net is not None
        task, data, first = problem.task, problem.data, problem.members[0]
        history, run = fit.run.history, fit.run
        held = [member.valid.numpy() for member in problem.members]
        if log_prob is not None:
            weights = [np.ones(len(rows)) if data.weights is None else data.weights[rows] for rows in held]
            means = [float((own * w).sum() / max(w.sum(), 1e-12)) for own, w in zip(log_prob, weights)]
            run = replace(run, best_loss=[-mean for mean in means])
        summary = summarise(net, run, len(first.train), len(first.valid), problem.spec.scaling)
        summary["labels"] = "votes" if data.are_counts else "shares"
        if data.note is not None:
            summary["note"] = data.note
        if task.start is not None:  # names and zero policy stay those of the first fit
            if task.one_pass:
                history = [*task.start.history, {**history[0], "epoch": float(task.passes_done)}]
            return replace(task.start, net=net, history=history, summary=summary, optimizer=fit.optimizer)
        if problem.guides is not None or guided is not None:
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
            shown=Shown(task, data, guided),
        )

    @classmethod
    def of_net(cls, net: SnefyNet, policy: ZeroPolicy, label_names: list[str], named: bool) -> FittedModel:
        """The model of a net with a custom backbone that was trained elsewhere.

        Args:
            net: the members.
            policy: what happens to shares of zero.
            label_names: of the L labels.
            named: whether those were given, and not made up.

        Returns:
            The model, without a history.
        """
        run = Run([math.inf] * net.n_members, [-1] * net.n_members)
        return cls(net, "none", [], summarise(net, run, 0, 0, "none"), policy, label_names, named)

    def finished(self, task: Task) -> FittedModel:
        """This model as a fit to these rows leaves it: with their fingerprints, and without the rows themselves."""
        seen = SeenRows.of(task.data.features, task.data.labels, task.rows)
        if self.seen is not None:
            seen = self.seen.joined(seen)
        return replace(self, seen=seen, summary={**self.summary, "given_rows": len(task.rows)}, shown=None)

    def guided(self, data: TrainingData) -> TrainingData:
        """Rows as this model's network sees them: through its guides, and with their groups, where it has some."""
        if self.effects is not None:
            columns = self.effects.columns(data.groups, data.n_rows)
            return data.with_features(self.effects.inputs(self.guides, self.inputs, data.features, columns))
        if self.guides is None:
            return data
        return data.with_features(self.guides.inputs(data.features, self.inputs))

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.net.raw_exponents.shape[2])

    @property
    def n_inputs(self) -> int | None:
        """Numbers that the columns of a table become, d'; None with a custom backbone."""
        return self.n_features if self.columns is None else self.columns.n_out


def _by_row(held: list[Array], log_prob: list[Array], n_rows: int) -> Array:
    """Mean log likelihood of every row over the members that held it back (N,), NaN for the others."""
    rows = np.concatenate(held)
    total, times = np.bincount(rows, np.concatenate(log_prob), n_rows), np.bincount(rows, minlength=n_rows)
    return np.where(times > 0, total / np.maximum(times, 1), np.nan)


def summarise(net: SnefyNet, run: Run, rows: int, validation_rows: int, scaling: str) -> dict[str, Any]:
    """What a fit did, as JSON can hold it: the estimator's ``training_``.

    Args:
        net: as it ended.
        run: its course.
        rows: it learnt from, per member.
        validation_rows: held back from it, to pick the best epoch and candidate.
        scaling: of its features.

    Returns:
        Plain values.
    """
    body = net.backbone
    reads = {"reads": body.reads, "row": body.row} if isinstance(body, CustomBackbone) and body.reads else {}
    return reads | {
        "rows": rows,
        "validation_rows": validation_rows,
        "epochs": run.next_epoch,
        "best_epoch": run.best_epoch,
        "validation_loss": [loss if math.isfinite(loss) else None for loss in run.best_loss],
        "seconds": round(run.seconds, 3),
        "repairs": run.repairs,
        "scaling": scaling,
        "background_share": [round(share, 6) for share in torch.sigmoid(net.log_odds).tolist()],
        "device": str(net.readout.device),
    }


def network_inputs(
    net: SnefyNet,
    guides: Guides | None,
    inputs: Inputs,
    features: Any,
    rows: Any,
    effects: GroupEffects | None = None,
    columns: Array | None = None,
) -> tuple[Any, ...]:
    """What the network takes of some rows.

    Args:
        net: the fitted network.
        guides: the fitted guides, or None.
        inputs: what the network sees.
        features: features of all rows, encoded.
        rows: a slice, or row numbers.
        effects: what is known of groups of rows, or None.
        columns: what the network sees of the groups of all rows, as :meth:`GroupEffects.columns` makes it; None where
            groups are not known.

    Returns:
        The arguments of the network, on its device.
    """
    device = net.readout.device
    if isinstance(net.backbone, CustomBackbone):
        index = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else torch.as_tensor(rows)
        fetched = isinstance(features, Objects)
        return (move_rows(features.batch(index) if fetched else take_rows(features, index), device),)
    seen = part = features[rows]
    if effects is not None:
        shown = effects.columns(None, part.shape[0]) if columns is None else columns[rows]
        seen = effects.inputs(guides, inputs, part, shown)
    elif guides is not None:
        seen = guides.inputs(part, inputs)
    seen = seen.toarray() if sp.issparse(seen) else seen
    return (torch.as_tensor(np.require(seen, np.float32, ["C", "W"]), device=device),)
