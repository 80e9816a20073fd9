"""Rows in groups: how far each group lies from where its features put it, and a network that is shown this.

With r_i the log-ratio residual of row i from a prediction that has not seen its group,

    r_i = μ + u_g(i) + e_i,     u_g ~ N(0, T),  e_i ~ N(0, S).

A change of basis V with ``VᵀSV = 1`` and VᵀTV diagonal makes directions of it that do not depend on each other, each
with one ratio of variances. Those are settled by maximum marginal likelihood (empirical Bayes), and directions in which
groups do not differ are dropped.

The network sees the posterior mean of the effect of a row's group, and the part of the variance between groups that is
still open. A first fit splits rows by group, so that its network is that of a row of a new group. Then every training
row is shown in three ways: as a row of an unknown group, as before; as one of a made-up group, its label
shifted by a group effect drawn from the prior; and with the effect of its own group, estimated from the other rows of
that group. Effects are kept if rows held back gain. Every closed form stays exact.

Where features identify a row's group, as coordinates identify the country of a soil, guides fitted to rows of
all groups have the effects already. Two small forests are therefore compared first.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from torch import Tensor, nn
from torch.nn.functional import pad

from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.grouping import Groups
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.choose import FittedModel, choose
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.guides import Guides, fit_guides, guides_mean
from snefy_ldl.training.policy import POLICY, CandidateSpec
from snefy_ldl.training.prepare import GuideTable, Problem, Task, guide_labels, make_objective, prepare, prepare_guides
from snefy_ldl.training.steps import evaluate
from snefy_ldl.training.train import is_better, train

#: Logarithms of the smallest and largest ratio of variances between and within groups.
RATIO_RANGE = (-9.0, 6.0)
#: Part of the mean variance that every direction is given, so that residuals of a constant share have a scale.
RIDGE = 1e-3
#: A row of whose groups a larger part of the variance is open is one of unknown groups.
NOTHING_KNOWN = 1.0 - 1e-9
#: Why a fit has no group effects.
NOT_WANTED, NO_DIFFERENCE = "not asked for, or not available for this fit", "groups do not differ by more than chance"
TOLD_BY_FEATURES, NO_GAIN = "features are as informative as groups", "no gain on rows held back"


# -- the mixed model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixedModel:
    """The fitted linear mixed model.

    Args:
        mean: ``μ`` (L,).
        weights: from residuals to directions (L, q).
        directions: back, from directions to log-ratios (L, q); the within-group variance of each is one.
        ratios: variance of the effects, in units of the variance within groups (q,).
        within: ``S`` (L, L).
    """

    mean: Array
    weights: Array
    directions: Array
    ratios: Array
    within: Array

    def scores(self, residuals: Array) -> Array:
        """Residuals (N, L) in the directions of the effects (N, q)."""
        return np.matmul(residuals - self.mean, self.weights)

    def covariance(self) -> Array:
        """``T`` (L, L): covariance of the effects as shifts of log-ratios."""
        return np.matmul(self.directions * self.ratios, self.directions.T)


def group_sums(values: Array, codes: Index, n_groups: int) -> tuple[Array, Array]:
    """Sums of the rows' values (N, q) in each group (G, q), and rows of each (G,); codes of -1 are no group."""
    known, sums = codes >= 0, np.zeros((n_groups, values.shape[1]))
    np.add.at(sums, codes[known], values[known])
    return sums, np.bincount(codes[known], minlength=n_groups).astype(float)


def posterior_means(sums: Array, counts: Array, ratios: Array) -> Array:
    """Posterior means of the groups' effects.

    Args:
        sums: of the scores of each group's rows (G, q), with variance one within groups.
        counts: these rows (G,).
        ratios: prior variances (q,).

    Returns:
        (G, q).

    Example:
        >>> posterior_means(np.array([[4.0], [0.0]]), np.array([2.0, 0.0]), np.array([1.0])).ravel().round(3)
        array([1.333, 0.   ])
    """
    return sums * ratios / (1.0 + counts[:, None] * ratios)


def fit_mixed_model(residuals: Array, codes: Index, n_groups: int, seed: int = 0) -> MixedModel | None:
    """Fit the linear mixed model.

    Args:
        residuals: log-ratio residuals (N, L), each row summing to zero.
        codes: number of each row's group (N,), -1 where it is not known.
        n_groups: G.
        seed: of shuffled rows, by which it is seen how much groups differ by chance.

    Returns:
        The model, or None if groups do not differ by more than chance, or are too few.
    """
    if (np.bincount(codes[codes >= 0], minlength=1) >= 2).sum() < 2:
        return None
    mean = residuals.mean(0)
    centred = residuals - mean
    random = np.random.default_rng(seed)
    shuffled = [
        _directions(centred[random.permutation(len(centred))], codes, n_groups, 1)[1] for _ in range(POLICY.shuffles)
    ]
    found, gains = _directions(centred, codes, n_groups, POLICY.most_directions)
    kept = gains > POLICY.least_ratio + max(float(gain.max()) for gain in shuffled)
    if not kept.any():
        return None
    return MixedModel(mean, found.weights[:, kept], found.directions[:, kept], found.ratios[kept], found.within)


def _directions(centred: Array, codes: Index, n_groups: int, most: int) -> tuple[MixedModel, Array]:
    """The directions in which groups differ most, each with its best ratio, and twice the log likelihood they gain."""
    n_rows, n_labels = centred.shape
    sums, counts = group_sums(centred, codes, n_groups)
    n, means = counts[counts > 0], sums / np.maximum(counts, 1.0)[:, None]
    left = np.where((codes >= 0)[:, None], centred - means[codes], centred)
    # the analysis of variance
    within = left.T @ left / max(1, n_rows - min(len(n), int(0.9 * n_rows)))
    typical = (n.sum() - (n**2).sum() / n.sum()) / max(1.0, len(n) - 1.0)
    between = ((means * counts[:, None]).T @ means / max(1.0, len(n) - 1.0) - within) / max(typical, 1.0)
    scale = within + (RIDGE * np.trace(within) / n_labels + 1e-12) * np.eye(n_labels)
    values, basis = eigh(between, scale)
    basis = basis[:, np.argsort(-values)[: min(most, n_labels - 1)]]
    squares = ((centred @ basis) ** 2).sum(0)
    parts = [_best_ratio(n_rows, *one, counts) for one in zip(squares, (sums @ basis).T)]
    ratios, gains, variances = (np.array(part) for part in zip(*parts))
    deviations = np.sqrt(variances)
    model = MixedModel(np.zeros(n_labels), basis / deviations, (scale @ basis) * deviations, ratios, within)
    return model, gains


def _best_ratio(n_rows: int, squares: float, sums: Array, counts: Array) -> tuple[float, float, float]:
    """Ratio of variances of one direction, twice the log likelihood it gains, and the variance within groups.

    Args:
        n_rows: rows.
        squares: sum of their squared scores.
        sums: of the scores of each group (G,).
        counts: rows of each group (G,).
    """

    def variance(log_ratio: float) -> float:
        ratio = np.exp(log_ratio)
        return max((squares - float((ratio * sums**2 / (1.0 + counts * ratio)).sum())) / n_rows, 1e-300)

    def loss(log_ratio: float) -> float:
        return 0.5 * (n_rows * np.log(variance(log_ratio)) + float(np.log1p(counts * np.exp(log_ratio)).sum()))

    best = float(minimize_scalar(loss, bounds=RATIO_RANGE, method="bounded", options={"xatol": 0.01}).x)
    return float(np.exp(best)), 2.0 * (loss(RATIO_RANGE[0]) - loss(best)), variance(best)


# -- effects ---------------------------------------------------------------------------------------------------------


def log_residuals(table: Array, labels: Array, pull: float) -> Array:
    """Log-ratios between shares (N, L) and the mean of some learners' predictions, centred logs (N, B L).

    Args:
        table: the predictions.
        labels: the shares.
        pull: part of the mean that is mixed into the shares; above zero where shares may be zero. Small ratios stay
            what they are.

    Returns:
        (N, L); rows sum to zero.
    """
    mean = guides_mean(table, labels.shape[1])
    ratios = (np.log((1.0 - pull) * labels + pull * mean) - np.log(mean)) / (1.0 - pull)
    return ratios - ratios.mean(1, keepdims=True)


def group_columns(codes: Index, means: Array, counts: Array, ratios: Array) -> Array:
    """What the network sees of groups: posterior means in units of the prior's deviation, and what part of it is open.

    Args:
        codes: of the rows' groups (N,), -1 where one is not known.
        means: posterior means of the groups' effects (G, q).
        counts: rows behind them (G,).
        ratios: prior variances (q,).

    Returns:
        (N, q + 1); a row of an unknown group has zeros, and a last entry of one.
    """
    known, columns = codes >= 0, np.zeros((len(codes), len(ratios) + 1))
    left = (ratios / (1.0 + counts[:, None] * ratios)).sum(1) / ratios.sum()
    columns[known, :-1] = means[codes[known]] / np.sqrt(ratios)
    columns[:, -1] = np.where(known, left[codes], 1.0)
    return columns


def _beside(X: Any, columns: Array) -> Any:
    """Features (N, d) and further columns side by side; sparse where X is."""
    return sp.hstack([X, columns]).tocsr() if sp.issparse(X) else np.hstack([X, columns])


@dataclass(frozen=True)
class GroupEffects:
    """Estimated effects of groups of rows.

    Args:
        model: the linear mixed model.
        levels: name of the column of groups, (1,).
        names: of the groups, one tuple (G,).
        means: posterior means of their effects, in the directions of the model (G, q).
        counts: rows that each group had (G,).
        guides: point learners that see the effects and the features, for rows of known groups.
        pull: part of the prediction that is mixed into shares before their logarithm, so that a zero has one.
        default: code of the group of rows that come without one, after :meth:`~snefy_ldl.GroupedLDL.adapt`.
    """

    model: MixedModel
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    means: Array
    counts: Array
    guides: Guides
    pull: float
    default: int | None = None

    def columns(self, groups: Groups | None, n_rows: int) -> Array:
        """What the network sees of the groups of some rows (N, q + 1)."""
        default = -1 if self.default is None else self.default
        codes = np.full(n_rows, default) if groups is None else groups.renamed(self.names[0])
        return group_columns(codes, self.means, self.counts, self.model.ratios)

    def inputs(self, guides: Guides, X: Any, columns: Array) -> Array:
        """What the network takes of some rows.

        Args:
            guides: of the model, for rows whose groups are not known.
            X: features (N, d).
            columns: what it sees of the groups (N, q + 1).

        Returns:
            Its inputs (N, d' + q + 1).
        """
        known = columns[:, -1] < NOTHING_KNOWN
        seen = np.empty((len(columns), len(guides.learners) * len(self.model.mean)))
        for rows, learners, table in ((~known, guides, X), (known, self.guides, _beside(X, columns[:, :-1]))):
            if rows.any():
                seen[rows] = learners.features(table[rows])
        return np.hstack([seen, columns])

    def learn(self, guides: Guides, X: Any, labels: Array, name: str) -> GroupEffects:
        """These effects with one more group, from a few of its rows.

        Args:
            guides: of the model.
            X: features (n, d).
            labels: label distributions (n, L).
            name: of the group.

        Returns:
            The effects; the new group has the last number.
        """
        scores = self.model.scores(log_residuals(guides.features(X), labels, self.pull))
        sums, counts = group_sums(scores, np.zeros(len(scores), dtype=np.intp), 1)
        return replace(
            self,
            names=((*self.names[0], name),),
            means=np.vstack([self.means, posterior_means(sums, counts, self.model.ratios)]),
            counts=np.append(self.counts, counts),
        )

    def redraw(self, codes: Index, random: np.random.Generator) -> Array:
        """Changes of the rows' effects (N, q) that make each row the only one of its group.

        The posterior mean of a row's effect is taken out, to which the row itself belongs, so that ``1 - t/(1 + n t)``
        of the variance ``1 + t`` is left, t the ratio and n the rows of the group. A draw makes up for the rest.

        Args:
            codes: of the rows' groups (N,), -1 where one is not known.
            random: source of the draws.

        Returns:
            The changes, in the directions of the model.
        """
        change, ratio, known = np.zeros((len(codes), len(self.model.ratios))), self.model.ratios, codes >= 0
        at = codes[known]
        deviation = np.sqrt(ratio + ratio / (1.0 + self.counts[at, None] * ratio))
        change[known] = random.normal(size=deviation.shape) * deviation - self.means[at]
        return change

    def variance_shares(self) -> Array:
        """Shares of the variance of log-ratios, given the features, between groups and within groups.

        Returns:
            (2, L); shares of one label sum to one.
        """
        between = self.model.ratios @ self.model.directions.T**2
        left = np.maximum(np.diag(self.model.within), (self.model.directions**2).sum(1))
        return np.stack([between, left]) / (between + left)


# -- the fit ---------------------------------------------------------------------------------------------------------


#: A model, the effects that its network sees or None, and a report.
Outcome = tuple[FittedModel, GroupEffects | None, dict[str, Any]]


def fit_grouped(task: Task, wanted: bool = True) -> tuple[FittedModel, GroupEffects | None]:
    """Fit a model of rows in groups.

    Args:
        task: whose data have groups.
        wanted: whether effects may be fitted.

    Returns:
        The model, whose summary holds ``group_effects``; and the effects, which its network then sees, or None.
    """
    started, settings, seen = time.perf_counter(), task.settings, _groups_of(task)
    possible = bool(POLICY.guides(task)) and settings.validation_fraction > 0 and len(settings.hidden_sizes) > 0
    with Progress("fit", 0, show=settings.verbose >= 1) as progress:
        model, effects, report = _fit_with_effects(task, wanted and possible, progress)
    report = {"groups": [len(seen.names)], "levels": [seen.column]} | report
    model = replace(model, summary={**model.summary, "group_effects": report})
    return model.finished(task, time.perf_counter() - started), effects


def _fit_with_effects(task: Task, wanted: bool, progress: Progress) -> Outcome:
    """A model, its effects or None, and a report."""
    guided, measured = None, None
    progress.update(progress.completed, "looking at groups")
    why = why_no_effects(task, *guide_labels(task)) if wanted else NOT_WANTED
    if why == TOLD_BY_FEATURES:
        task = replace(task, data=copy.copy(task.data))
        task.data.groups = task.data.blocks = None
    elif not why:
        guided = prepare_guides(task)
        measured = measure_effects(task, guided)
    if guided is None or measured is None:
        return choose([task], progress, guided)[0][0], None, {"effects": why or NO_DIFFERENCE}
    epochs = max(1, round(POLICY.epochs_before_groups * task.settings.epochs))
    plain = replace(task, settings=replace(task.settings, epochs=epochs, candidates=[CandidateSpec("guides")]))
    ((model, data),) = choose([plain], progress, guided)
    progress.update(progress.completed, "fitting group effects")
    return _train(model, task, data, measured, progress)


def _groups_of(task: Task) -> Groups:
    """The groups of the rows that a task may see."""
    assert task.data.groups is not None
    return task.data.groups.take(task.rows)


def why_no_effects(task: Task, labels: Array, floor: float) -> str | None:
    """Why the groups of a task have no effects worth learning, as a small forest sees them.

    The effect of a group is measured twice: by the residuals of trees that have seen no row of the group, and of those
    that have seen the others. Trees of the second kind identify groups where features do.

    Args:
        task: with groups.
        labels: label distributions of all rows as guides learn them (N, L).
        floor: to which guides' predictions are lifted.

    Returns:
        One of the reasons above, or None if effects are to be fitted.
    """
    groups, D, seed = _groups_of(task), labels[task.rows], task.seed_of(19)
    scout = TreesLDL(n_trees=POLICY.scout_trees, max_features="sqrt", random_state=seed % 2**31)

    def information(first: Index | None) -> float:
        """Nats that a group adds to a row."""
        table = fit_guides([scout], task.data.features, labels, task.rows, floor, seed, first)[1][task.rows]
        residuals = log_residuals(table, D, POLICY.pull[bool((D <= 0.0).any())])
        model = fit_mixed_model(residuals, groups.codes, len(groups.names), seed % 2**31)
        return 0.0 if model is None else 0.5 * float(np.log1p(model.ratios).sum())

    of_new_groups = information(task.data.blocks)
    if not of_new_groups:
        return NO_DIFFERENCE
    return None if information(None) >= POLICY.least_part * of_new_groups else TOLD_BY_FEATURES


def measure_effects(task: Task, guided: GuideTable) -> tuple[GroupEffects, Array, Array] | None:
    """Measure how much the groups of a task's rows differ.

    Args:
        task: with groups.
        guided: learners, and predictions of all rows, each without the row's group.

    Returns:
        The effects, what the network sees of each row's group by other rows (n, q + 1), and predictions of the rows by
        learners that see the effects (n, B L); None if groups do not differ by more than chance.
    """
    groups, table, labels = _groups_of(task), guided.table[task.rows], guided.labels[task.rows]
    pull = POLICY.pull[bool((labels <= 0.0).any())]
    residuals = log_residuals(table, labels, pull)
    codes, n_groups = groups.codes, len(groups.names)
    model = fit_mixed_model(residuals, codes, n_groups, task.seed_of(15) % 2**31)
    if model is None:
        return None
    scores = model.scores(residuals)
    columns = _columns_without_own(model, scores, codes, n_groups, task.seed_of(16))
    sums, counts = group_sums(scores, codes, n_groups)
    means = posterior_means(sums, counts, model.ratios)
    X, learners = _beside(task.data.features[task.rows], columns[:, :-1]), map(clone, guided.guides.learners)
    rows, floor = np.arange(len(labels)), guided.guides.floor
    guides, seen = fit_guides(list(learners), X, labels, rows, floor, task.seed_of(17))
    effects = GroupEffects(model, (groups.column,), (groups.names,), means, counts, guides, pull)
    return effects, columns, seen


def _columns_without_own(model: MixedModel, scores: Array, codes: Index, n_groups: int, seed: int) -> Array:
    """What the network sees of each row's group, by the rows of the other folds (N, q + 1)."""
    fold = np.random.default_rng(seed).integers(0, POLICY.folds, len(scores))
    columns = np.empty((len(scores), scores.shape[1] + 1))
    for k in range(POLICY.folds):
        own, used = fold == k, fold != k
        sums, counts = group_sums(scores[used], codes[used], n_groups)
        columns[own] = group_columns(codes[own], posterior_means(sums, counts, model.ratios), counts, model.ratios)
    return columns


def _train(
    state: FittedModel, task: Task, data: TrainingData, measured: tuple[GroupEffects, Array, Array], progress: Progress
) -> Outcome:
    """Go on with training on rows of unknown and of known groups, and keep the effects where rows held back gain."""
    (effects, columns, table), rows, n = measured, task.rows, len(task.rows)
    unknown = np.zeros_like(columns)
    unknown[:, -1] = 1.0
    inputs = [np.hstack([data.features[rows], unknown]), np.hstack([table, columns])]
    shifted = _shifted_labels(task, effects)
    ways = inputs if shifted is None else [*inputs, inputs[0]]
    # a row of any group is held back in all ways: known groups are those that the network learns from
    shown = task.data.take(np.tile(rows, len(ways))).with_features(np.vstack(ways))
    shown.groups, shown.blocks = None, np.tile(np.arange(n), len(ways))
    if shifted is not None:
        shown.labels = np.concatenate([shown.labels[: 2 * n], shifted])
    epochs = max(1, round(POLICY.group_epochs[n >= POLICY.many_group_rows] * task.settings.epochs))
    settings = replace(task.settings, guides=None, checkpoint_dir=None, patience=None, epochs=epochs)
    wide = widen(state.net, columns)
    start = replace(state, net=wide, guides=None, columns=None, n_features=shown.features.shape[1])
    further = Task(settings, shown, start=start, policy=state.zero_policy, warn=False, seed=task.seed)
    (done,) = train([prepare(spec, further) for spec in POLICY.specs(further)], progress)
    assert done.net is not None
    known = torch.stack([member.valid[member.valid // n == 1] for member in done.problem.members])
    with_group, without = (_log_prob(done.net, done.problem, seen) for seen in (known, known - n))
    if not is_better(with_group.ravel(), without.ravel()):
        return replace(state, net=forget_groups(done.net, effects)), None, {"effects": NO_GAIN}
    summary = {
        **state.summary,
        "background_share": [round(share, 6) for share in torch.sigmoid(done.net.log_odds).tolist()],
        "epochs": state.summary["epochs"] + done.run.next_epoch,
        "best_epoch": [state.summary["epochs"] + epoch for epoch in done.run.best_epoch],
        "validation_loss": (-with_group.mean(1)).tolist(),
        "rows": n - known.shape[1],
        "validation_rows": known.shape[1],
    }
    report = {"directions": len(effects.model.ratios), "gain": float((with_group - without).mean()), "effects": "kept"}
    return replace(state, net=done.net, summary=summary), effects, report


def _shifted_labels(task: Task, effects: GroupEffects) -> Array | None:
    """Label distributions that the rows might have had in other groups (n, L); None of votes and of shares with gaps.

    The rows' own groups are few, and a network that has seen no others takes what they have in common for a rule.
    """
    if not task.data.has_whole_shares:
        return None
    random = np.random.default_rng(task.seed_of(18))
    changes = effects.redraw(_groups_of(task).codes, random)
    shares = task.data.labels[task.rows] * np.exp(changes @ effects.model.directions.T)
    return shares / shares.sum(1, keepdims=True)


def _log_prob(net: SnefyNet, problem: Problem, rows: Tensor) -> Array:
    """Log density of each member's rows (K, V), float64."""
    device = net.readout.device
    objective = make_objective(net, [problem], device)
    return evaluate(net, problem.data.tensor(device), objective, rows.to(device)).double().cpu().numpy()


def widen(net: SnefyNet, columns: Array) -> SnefyNet:
    """A copy of a net with further inputs that have no weight yet.

    Args:
        net: the members.
        columns: some rows of the further inputs (N, q).

    Returns:
        The net; for any further inputs, its distributions are those of ``net``.
    """
    net = copy.deepcopy(net)
    scaler, weights = net.backbone.scaler, net.backbone.weights
    for name, further in (("centre", columns.mean(0)), ("scale", np.maximum(columns.std(0), 0.05))):
        old = getattr(scaler, name)
        extra = torch.as_tensor(further, dtype=torch.float32, device=old.device).expand(len(old), -1)
        setattr(scaler, name, torch.cat([old, extra], 1))
    weights[0] = nn.Parameter(pad(weights[0].detach(), (0, 0, 0, columns.shape[1])))
    return net


@torch.no_grad()
def forget_groups(net: SnefyNet, effects: GroupEffects) -> SnefyNet:
    """A copy of a net for rows of unknown groups, without the inputs that describe a group.

    Args:
        net: whose last inputs are what :meth:`GroupEffects.columns` makes.
        effects: of the groups.

    Returns:
        The net.
    """
    net, n_columns = copy.deepcopy(net), len(effects.model.ratios) + 1
    scaler, weight, bias = net.backbone.scaler, net.backbone.weights[0], net.backbone.biases[0]
    unknown = torch.zeros_like(scaler.centre[0])
    unknown[-1] = 1.0
    constant: Tensor = scaler(unknown.expand(len(weight), 1, -1))[..., -n_columns:]  # (K, 1, q)
    bias.add_(constant @ weight[:, -n_columns:])
    scaler.centre, scaler.scale = scaler.centre[:, :-n_columns].clone(), scaler.scale[:, :-n_columns].clone()
    net.backbone.weights[0] = nn.Parameter(weight[:, :-n_columns].clone())
    return net
