"""The last step of a fit to rows in groups: the network learns to use what is known of a row's group.

The fit before it has split rows by group, so its network is that of a row of a new group. Here every training row is
shown in three ways: as a row of an unknown group, as before; as one of a group that was never there, its label moved by
the effect of another group, which is drawn from the prior; and together with the effect of its own group as the other
rows tell it.
The network goes on from where it is, now on rows of all groups, and sees what is known of a group where rows held back
gain by that.

Where features tell a row's group, as the place of a soil tells its country, guides that learnt from rows of all groups
know as much as effects say. Two small forests are therefore asked first, and where groups tell little beside the
features, rows are fitted as if they had no groups.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn

from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.grouping import Groups
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.effects import (
    GroupEffects,
    MixedModel,
    beside,
    fit_mixed_model,
    group_columns,
    log_residuals,
    posterior_means,
)
from snefy_ldl.training.guides import Guides, best_weights, fit_guides
from snefy_ldl.training.policy import POLICY
from snefy_ldl.training.prepare import GuideTable, Problem, Task, guide_labels, make_objective, prepare, prepare_guides
from snefy_ldl.training.select import paired_lead
from snefy_ldl.training.settings import CandidateSpec
from snefy_ldl.training.steps import evaluate
from snefy_ldl.training.train import train

if TYPE_CHECKING:
    from snefy_ldl.training.model import FittedModel

#: Folds of the rows of every group: the effect that a row is shown comes from the other folds.
FOLDS = 5
#: Part of the rows that are shown less of their group than there is.
SHOWN_LESS = 0.3
#: Part of the prediction that is mixed into shares before their logarithm, and where they hold zeros: logarithms of
#: small shares vary so much that effects would look larger than they are.
PULL, PULL_OF_ZEROS = 0.1, 0.2
#: Epochs of the last step, as a part of those of the fit; and with many rows.
EPOCHS, FEWER_EPOCHS, MANY_ROWS = 0.6, 0.4, 20_000
#: Epochs of the network before it sees groups, as a part of those of a fit: all of them gained nothing on two splits of
#: stools of children each, by rows and by child.
EPOCHS_BEFORE_GROUPS = 1.0 / 3.0
#: Standard errors by which rows held back must gain from what is known of a row's group.
LEAST_GAIN = 1.0
#: Trees of the forests by which it is seen whether groups tell more than features do, and the part of what groups tell
#: that features must leave open: 0.08 to 0.23 for soils with their coordinates by country, whose effects were worth
#: nothing, 0.45 to 0.7 without the coordinates and for stools of children, 1 for made-up groups.
SCOUT_TREES, LEAST_PART = 50, 1.0 / 3.0
#: Why a fit has no group effects.
NO_DIFFERENCE, TOLD_BY_FEATURES = "groups do not differ by more than chance", "features tell as much as groups"


@dataclass(frozen=True)
class Shown:
    """What a network was shown of rows of unknown groups.

    Args:
        task: its task, under the zero policy that was chosen.
        data: what it saw of all rows.
        base: point learners, fitted; from their predictions residuals are taken.
        log_centre: logarithm of what shares were divided by for them (L,), or None.
    """

    task: Task
    data: TrainingData
    base: Guides
    log_centre: Array | None


def wants_effects(task: Task) -> bool:
    """Whether a job has groups whose effects may be learnt: a table of features, and groups that repeat."""
    settings, data = task.settings, task.data
    if data.groups is None or settings.group_effects is None or settings.backbone is not None or settings.is_paper:
        return False
    return data.partial is None and task.start is None and not task.one_pass and settings.validation_fraction > 0


def fit_grouped(task: Task, choose: Callable[..., FittedModel], progress: Progress) -> FittedModel:
    """Fit a model of rows in groups.

    Args:
        task: for which :func:`wants_effects` holds.
        choose: fits a task, given the progress and the fitted guides.
        progress: where to show how far it is.

    Returns:
        The model, with group effects if they help.
    """
    groups, guided, no_effects, measured = task.data.groups, None, None, None
    assert groups is not None
    plain = task
    if POLICY.guides(task):
        progress.update(progress.completed, "looking at groups")
        no_effects = why_no_effects(task, *guide_labels(task)[:2])
        if no_effects == TOLD_BY_FEATURES:
            data = copy.copy(task.data)
            data.groups = data.blocks = None
            return without_effects(choose(replace(task, data=data), progress), groups.take(task.rows), no_effects)
        progress.update(progress.completed, "fitting guides")
        guided = prepare_guides(task)
        if no_effects is None:
            measured = measure_effects(task, guided.table, guided.labels, guided.guides)
        if measured is not None:
            epochs = max(1, round(EPOCHS_BEFORE_GROUPS * task.settings.epochs))
            settings = replace(task.settings, epochs=epochs, candidates=[CandidateSpec("guides")])
            plain = replace(task, settings=settings)
    model = choose(plain, progress, guided)
    if guided is None:
        base, table = base_learners(task, task.rows)
        guided = GuideTable(base, table, task.rows, task.labels.shares, None)
        measured = measure_effects(task, table, guided.labels, None)
    assert model.shown is not None
    return add_effects(model, Shown(task, model.shown.data, guided.guides, guided.log_centre), measured, progress)


def pull_of(labels: Array) -> float:
    """Part of a prediction that is mixed into shares (N, L)."""
    return PULL_OF_ZEROS if bool((labels <= 0.0).any()) else PULL


def base_learners(task: Task, rows: Index) -> tuple[Guides, Array]:
    """Point learners for residuals where the network has no guides, and their predictions without each row's group."""
    groups = task.data.groups
    assert groups is not None
    seed = derive_seed(task.seed, 14)
    return fit_guides([SABFGS()], task.data.features, task.labels.shares, rows, 1e-6, seed, groups.first)


@dataclass(frozen=True)
class Measured:
    """How far the groups of a job's rows lie from where their features put them.

    Args:
        model: the linear mixed model.
        scores: residuals of the rows in its directions (n, q).
        mix: weights of the learners in the prediction that residuals are taken from (B,).
        pull: part of that prediction that is mixed into shares.
        columns: what the network sees of each row's group, told by other rows (n, q + 1).
        guides: point learners that see the effects beside the features; None where the network has no guides.
        table: their predictions of the rows, out of sample (n, B L), or None.
    """

    model: MixedModel
    scores: Array
    mix: Array
    pull: float
    columns: Array
    guides: Guides | None = None
    table: Array | None = None


def measure_effects(task: Task, table: Array, labels: Array, guides: Guides | None) -> Measured | None:
    """Measure how much the groups of a job's rows differ.

    Args:
        task: with groups.
        table: predictions of all rows, each without the row's group (N, B L).
        labels: label distributions of all rows as the learners know them (N, L).
        guides: point learners whose like are to see the effects beside the features; None for none.

    Returns:
        The effects, or None where groups do not differ by more than chance.
    """
    assert task.data.groups is not None
    groups, table, labels = task.data.groups.take(task.rows), table[task.rows], labels[task.rows]
    pull = pull_of(labels)
    mix = best_weights(table, labels)
    residuals = log_residuals(table, labels, mix, pull)
    model = fit_mixed_model(residuals, groups, derive_seed(task.seed, 15) % 2**31)
    if model is None:
        return None
    scores, sizes = model.scores(residuals), [len(part) for part in groups.names]
    columns = _columns_without_own(model, scores, groups.codes, sizes, derive_seed(task.seed, 16))
    measured = Measured(model, scores, mix, pull, columns)
    if guides is None:
        return measured
    X = beside(task.data.features[task.rows], columns[:, :-1])
    learners, everyone = [clone(learner) for learner in guides.learners], np.arange(len(labels))
    known, seen = fit_guides(learners, X, labels, everyone, guides.floor, derive_seed(task.seed, 17))
    return replace(measured, guides=known, table=seen)


def why_no_effects(task: Task, labels: Array, floor: float) -> str | None:
    """Why the groups of a job have no effects worth learning, as a small forest sees them.

    What a row's group tells is measured twice: of the residuals of trees that have seen no row of the group, and of
    those that have seen the others. Trees of the second kind know what features tell of a group.

    Args:
        task: with groups.
        labels: label distributions of all rows as guides learn them (N, L).
        floor: to which guides' predictions are lifted.

    Returns:
        One of the reasons above, or None where effects are to be learnt.
    """
    assert task.data.groups is not None
    groups, D, seed = task.data.groups.take(task.rows), labels[task.rows], derive_seed(task.seed, 19)
    scout = TreesLDL(n_trees=SCOUT_TREES, max_features="sqrt", random_state=seed % 2**31)

    def told(first: Index | None) -> float:
        """Nats that a group tells of a row."""
        table = fit_guides([scout], task.data.features, labels, task.rows, floor, seed, first)[1][task.rows]
        model = fit_mixed_model(log_residuals(table, D, np.ones(1), pull_of(D)), groups, seed % 2**31)
        return 0.0 if model is None else 0.5 * float(np.log1p(model.ratios.sum(0)).sum())

    of_new_groups = told(task.data.groups.first)
    if not of_new_groups:
        return NO_DIFFERENCE
    return None if told(None) >= LEAST_PART * of_new_groups else TOLD_BY_FEATURES


def add_effects(state: FittedModel, shown: Shown, measured: Measured | None, progress: Progress) -> FittedModel:
    """The state with group effects, where they help.

    Args:
        state: of the fit, whose validation rows were split by group.
        shown: what its network was shown.
        measured: the effects, or None where there are none.
        progress: where to show how far it is.

    Returns:
        The state as it was, or one whose network sees groups; its summary says which.
    """
    task = shown.task
    assert task.data.groups is not None
    groups = task.data.groups.take(task.rows)
    if measured is None:
        return without_effects(state, groups, NO_DIFFERENCE)
    progress.update(progress.completed, "fitting group effects")
    model, scores, codes, sizes = measured.model, measured.scores, groups.codes, [len(part) for part in groups.names]
    whole = posterior_means(scores, codes, sizes, model.ratios)
    means = np.split(whole, np.cumsum(sizes)[:-1])
    seen, guides = _seen_with_groups(state, shown, measured)
    effects = GroupEffects(
        model,
        groups.levels,
        groups.names,
        tuple(means),
        tuple(_count(codes, sizes)),
        shown.base,
        measured.mix,
        measured.pull,
        shown.log_centre,
        guides,
        cells=_cells(codes) if len(sizes) > 1 else None,
    )
    return _train(state, shown, effects, measured.columns, seen, progress)


def _count(codes: Index, sizes: list[int]) -> list[Array]:
    """Rows of every group, per level."""
    return [np.bincount(codes[codes[:, k] >= 0, k], minlength=size).astype(float) for k, size in enumerate(sizes)]


def _cells(codes: Index) -> Index:
    """Combinations of groups that rows have, and how many rows have them in the last column (M, k + 1)."""
    combinations, rows = np.unique(codes, axis=0, return_counts=True)
    cells: Index = np.column_stack([combinations, rows]).astype(np.int64)
    return cells


def without_effects(state: FittedModel, groups: Groups, why: str) -> FittedModel:
    """The state, whose summary now says why it has no group effects."""
    summary = {"groups": [len(names) for names in groups.names], "levels": list(groups.levels), "effects": why}
    return replace(state, summary={**state.summary, "group_effects": summary})


def _columns_without_own(model: MixedModel, scores: Array, codes: Index, sizes: list[int], seed: int) -> Array:
    """What the network sees of each row's group, told by the rows of the other folds (N, q + 1).

    A part of the rows is shown less, as groups of few rows and rows of which one level is new will be: what a single
    fold tells, or what is known of some of the levels.
    """
    random = np.random.default_rng(seed)
    fold, ends = random.integers(0, FOLDS, len(scores)), np.cumsum(sizes)[:-1]
    less = random.random(len(scores)) < SHOWN_LESS
    hidden = random.random(codes.shape) < 0.5
    masked = np.where(hidden & ~hidden.all(1, keepdims=True), -1, codes) if len(sizes) > 1 else codes
    columns = np.empty((len(scores), scores.shape[1] + 1))
    for k in range(FOLDS):
        few = fold == (k + 1) % FOLDS if len(sizes) == 1 else fold != k
        for rows, told, seen in ((~less, fold != k, codes), (less, few, masked)):
            own = (fold == k) & rows
            means = np.split(posterior_means(scores[told], codes[told], sizes, model.ratios), ends)
            columns[own] = group_columns(seen[own], means, _count(codes[told], sizes), model.ratios)
    return columns


def _seen_with_groups(state: FittedModel, shown: Shown, measured: Measured) -> tuple[Array, Guides | None]:
    """What the network sees of the rows beside their groups (n, d'), and the guides that say so."""
    features = shown.task.data.features[shown.task.rows]
    dense = features.toarray() if hasattr(features, "toarray") else features
    if state.guides is None or measured.guides is None or measured.table is None:
        seen = shown.data.features[shown.task.rows]
        return (seen.toarray() if hasattr(seen, "toarray") else seen), None
    table = measured.table
    return (np.hstack([dense, table]) if state.inputs == "both" else table), measured.guides


def _train(
    state: FittedModel,
    shown: Shown,
    effects: GroupEffects,
    columns: Array,
    seen: Array,
    progress: Progress,
) -> FittedModel:
    """Go on with training on rows of unknown and of known groups, and keep the effects where rows held back gain."""
    task, rows, n = shown.task, shown.task.rows, len(shown.task.rows)
    assert task.data.groups is not None
    before = shown.data.features[rows]
    before = before.toarray() if hasattr(before, "toarray") else before
    unknown = np.zeros_like(columns)
    unknown[:, -1] = 1.0
    inputs = [np.hstack([before, unknown]), np.hstack([seen, columns])]
    shifted = _shifted_labels(task, effects)
    n_ways = 2 if shifted is None else 3
    both = np.vstack([*inputs, inputs[0]][:n_ways])
    # a row is held back in all ways, whatever its group: known groups are those that the network learns from
    data = task.data.take(np.tile(rows, n_ways)).with_features(both)
    data.groups, data.blocks = None, np.tile(np.arange(n), n_ways)
    if shifted is not None:
        data.labels = np.concatenate([data.labels[: 2 * n], shifted])
    epochs = max(1, round((FEWER_EPOCHS if n >= MANY_ROWS else EPOCHS) * task.settings.epochs))
    settings = replace(task.settings, guides=None, checkpoint_dir=None, patience=None, epochs=epochs)
    wide = widen(state.net, columns)
    start = replace(state, net=wide, guides=None, columns=None, n_features=both.shape[1])
    further = Task(settings, data, start=start, policy=state.zero_policy, warn=False, seed=task.seed)
    problems = [prepare(spec, further) for spec in POLICY.specs(further)]
    (done,) = train(problems, progress)
    assert done.net is not None
    known = torch.stack([member.valid[member.valid // n == 1] for member in done.problem.members])
    with_group, without = _log_prob(done.net, done.problem, known), _log_prob(done.net, done.problem, known - n)
    report = {
        "groups": [len(names) for names in effects.names],
        "levels": list(effects.levels),
        "directions": effects.model.ratios.shape[1],
        "gain": float((with_group - without).mean()),
    }
    gain, error = paired_lead(with_group.numpy().ravel(), without.numpy().ravel())
    if gain < LEAST_GAIN * error:
        state = replace(state, net=forget_groups(done.net, effects.n_columns))
        return without_effects(state, task.data.groups, "no gain on rows held back")
    summary = {
        **state.summary,
        "group_effects": {**report, "effects": "kept"},
        "seconds": round(state.summary["seconds"] + done.run.seconds, 3),
        "background_share": [round(share, 6) for share in torch.sigmoid(done.net.log_odds).tolist()],
        "epochs": state.summary["epochs"] + done.run.next_epoch,
        "best_epoch": [state.summary["epochs"] + epoch for epoch in done.run.best_epoch],
        "validation_loss": (-with_group.double().mean(1)).tolist(),
        "rows": n - known.shape[1],
        "validation_rows": known.shape[1],
    }
    return replace(state, net=done.net, effects=effects, summary=summary)


def _shifted_labels(task: Task, effects: GroupEffects) -> Array | None:
    """Label distributions that the rows might have had in other groups (n, L); None of votes and of shares with gaps.

    The rows' own groups are few, and a network that has seen no others takes what they have in common for a rule.
    """
    data = task.data
    if data.are_counts or data.has_gaps:
        return None
    assert data.groups is not None
    random = np.random.default_rng(derive_seed(task.seed, 18))
    factors = np.exp(effects.redraw(data.groups.take(task.rows).codes, random) @ effects.model.directions.T)
    shares = data.labels[task.rows] * factors
    closed: Array = shares / shares.sum(1, keepdims=True)
    return closed


def _log_prob(net: SnefyNet, problem: Problem, rows: Tensor) -> Tensor:
    """Log density of each member's rows (K, V)."""
    device = net.readout.device
    objective = make_objective(net, [problem], device)
    return evaluate(net, problem.data.tensor(device), objective, rows.to(device)).cpu()


def widen(net: SnefyNet, columns: Array) -> SnefyNet:
    """A copy of a net with further inputs that have no weight yet.

    Args:
        net: the members.
        columns: some rows of the further inputs (N, q).

    Returns:
        The net; whatever the further inputs are, its laws are those of ``net``.
    """
    net, extra = copy.deepcopy(net), columns.shape[1]
    body = net.backbone
    assert isinstance(body, StackedMLP)
    device = body.scaler.centre.device
    scale = torch.as_tensor(np.maximum(columns.std(0), 0.05), dtype=torch.float32, device=device)
    centre = torch.as_tensor(columns.mean(0), dtype=torch.float32, device=device)
    wide = len(body.scaler.centre), extra
    body.scaler.centre = torch.cat([body.scaler.centre, centre.expand(wide)], 1)
    body.scaler.scale = torch.cat([body.scaler.scale, scale.expand(wide)], 1)

    def padded(weight: Tensor) -> nn.Parameter:
        return nn.Parameter(torch.cat([weight.detach(), weight.new_zeros(weight.shape[0], extra, weight.shape[2])], 1))

    if len(body.weights):
        body.weights[0] = padded(body.weights[0])
    else:
        net.head_weight = padded(net.head_weight)
        body.width += extra
    return net


def forget_groups(net: SnefyNet, n_columns: int) -> SnefyNet:
    """A copy of a net for rows of unknown groups, without the inputs that say what is known of a group.

    Args:
        net: whose last inputs are what :meth:`GroupEffects.columns` makes.
        n_columns: how many these are.

    Returns:
        The net.
    """
    net = copy.deepcopy(net)
    body = net.backbone
    assert isinstance(body, StackedMLP)
    unknown = torch.zeros(body.n_inputs, device=body.scaler.centre.device)
    unknown[-1] = 1.0
    with torch.no_grad():
        constant = body.scaler(unknown.expand(body.n_members, 1, -1))[..., -n_columns:]  # (K, 1, q)
        weight, bias = (body.weights[0], body.biases[0]) if len(body.weights) else (net.head_weight, net.head_bias)
        bias += constant @ weight[:, -n_columns:]
        kept = nn.Parameter(weight[:, :-n_columns].clone())
    body.scaler.centre = body.scaler.centre[:, :-n_columns].clone()
    body.scaler.scale = body.scaler.scale[:, :-n_columns].clone()
    if len(body.weights):
        body.weights[0] = kept
    else:
        net.head_weight = kept
        body.width -= n_columns
    return net
