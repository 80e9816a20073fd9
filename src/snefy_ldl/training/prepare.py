"""From a task and a candidate to a problem that :func:`snefy_ldl.training.train.train` solves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.random import derive_seed, seed_from
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_features
from snefy_ldl.datasets.grouping import split_groups
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP, batch_of, column_moments, scaling_of
from snefy_ldl.networks.net import CONCENTRATION_RANGE, SnefyNet, fit_dirichlet, paper_init, prototype_init
from snefy_ldl.training.data import Labels, TrainingData, complete_votes, prepare_shares, prepare_votes
from snefy_ldl.training.guides import Guides, fit_guides, guides_mean, join_features
from snefy_ldl.training.objectives import Counts, Gaps, Objective, Shares
from snefy_ldl.training.policy import POLICY, CandidateSpec, Schedule, Settings

if TYPE_CHECKING:
    from snefy_ldl.training.choose import FittedModel


@dataclass(eq=False)
class Task:
    """One model to fit.

    Args:
        settings: of the model.
        data: features and labels of all rows.
        rows: numbers of the rows it may see; all by default.
        start: a fitted model to continue from; its network is trained further, in place.
        one_pass: train for one pass at a constant rate, without validation rows, and keep the optimiser.
        policy: what happens to shares of zero; settled on the rows by default.
        warn: whether to warn of shrunk labels.
        seed: of the fit; drawn from ``settings.random_state`` by default.

    Raises:
        InputError: there are too few rows, or the data do not have the shape of ``start``.
    """

    settings: Settings
    data: TrainingData
    rows: Index = None  # type: ignore[assignment]
    start: FittedModel | None = None
    one_pass: bool = False
    policy: ZeroPolicy | None = None
    warn: bool = True
    seed: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        data, start, fraction = self.data, self.start, self.settings.validation_fraction
        self.rows = np.arange(data.n_rows) if self.rows is None else self.rows
        self.seed = seed_from(self.settings.random_state) if self.seed is None else self.seed
        n_rows, needed = len(self.rows), 2 if fraction == 0 else 4
        if n_rows < needed:
            raise InputError(
                f"X has {n_rows} row(s) ({n_rows} sample(s)); a fit with validation_fraction={fraction:g} needs at "
                f"least {needed}."
            )
        if start is not None:
            if data.n_labels != start.n_labels:
                raise InputError(f"D has {data.n_labels} labels, but the model was fitted with {start.n_labels}.")
            if self.settings.backbone is None:
                n_inputs = start.n_features if start.columns is None else start.columns.n_out
                check_features(data.features, n_features=n_inputs)
        policy = self.labels.policy  # labels that break a rule fail before any work starts
        if not data.are_counts:
            policy.apply(data.labels[self.rows], warn=self.warn, names=data.label_names)

    @cached_property
    def labels(self) -> Labels:
        """Labels of all rows, as every candidate uses them."""
        data, zeros = self.data, self.settings.zeros
        if data.are_counts:
            return prepare_votes(data, self.rows, zeros, self.seed)
        policy = self.policy or ZeroPolicy.from_data(data.labels[self.rows], zeros)
        return prepare_shares(data, self.rows, policy)

    def seed_of(self, *parts: int) -> int:
        """A seed for one part of the fit."""
        return derive_seed(self.seed, *parts)

    @property
    def passes_done(self) -> int:
        """Passes of ``partial_fit`` before this one."""
        return len(self.start.history) if self.one_pass and self.start is not None else 0

    @cached_property
    def schedule(self) -> Schedule:
        """How its networks train."""
        return POLICY.schedule(self.settings, len(self.rows), self.labels.votes, self.one_pass)


@dataclass(frozen=True, eq=False)
class Member:
    """One network to train: its training and validation rows, and the seeds of its weights and of its row order.

    No validation rows mean that the last weights stay.
    """

    train: Tensor
    valid: Tensor
    start_seed: int
    shuffle_seed: int


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to train for one candidate.

    Args:
        task: the model.
        spec: the candidate.
        data: rows as its networks see them.
        labels: of these rows.
        members: its networks, all with as many rows.
        schedule: how they train.
        guides: the fitted guides whose predictions are among the inputs, or None.
        net: a network to continue from; a new one by default.
    """

    task: Task
    spec: CandidateSpec
    data: TrainingData
    labels: Labels
    members: tuple[Member, ...]
    schedule: Schedule
    guides: Guides | None = None
    net: SnefyNet | None = None

    @property
    def name(self) -> str:
        """The candidate in words."""
        return self.spec.name if self.task.settings.backbone is None else "backbone"

    @property
    def shape(self) -> tuple[Any, ...]:
        """What problems must have in common to be trained in one stack."""
        settings, how, first = self.task.settings, self.schedule, self.members[0]
        sizes = len(first.train), len(first.valid), min(how.batch_size, len(first.train))
        widths = settings.n_neurons, settings.n_readouts, tuple(settings.hidden_sizes), settings.recipe
        return id(self.data.features), self.spec, sizes, widths, replace(how, batch_size=0)

    @property
    def counted(self) -> list[Any]:
        """Which validation rows of each member count in training, (B,) each."""
        weights, rows = self.data.weights, [member.valid.numpy() for member in self.members]
        return [np.ones(len(own), dtype=bool) if weights is None else weights[own] > 0.0 for own in rows]

    @cached_property
    def teams(self) -> list[int]:
        """For each member the first of those that stop at the same epoch as it does."""
        return [0 if self.spec.folds else k for k in range(len(self.members))]


@dataclass(frozen=True)
class GuideTable:
    """Guides and their predictions of the rows of a task.

    Args:
        guides: fitted.
        table: centred logs of their predictions of all rows, out of sample (N, G L).
        labels: label distributions of all rows as the guides were fitted to them (N, L).
    """

    guides: Guides
    table: Array
    labels: Array


def guide_labels(task: Task) -> tuple[Array, float]:
    """Label distributions of all rows for guides (N, L), and to what their predictions are lifted."""
    data, votes = task.data, task.data.votes_per_item(task.rows)
    labels = data.labels if data.has_whole_shares else task.labels.proportions
    if votes < math.inf:
        return labels, POLICY.part_of_vote / (votes + data.n_labels)
    return labels, min(task.labels.policy.floor, 1e-3)


def prepare_guides(task: Task) -> GuideTable:
    """Fit the guides of a task, and predict every row without having seen its label.

    Args:
        task: one with guides.

    Returns:
        The guides and what they predict.
    """
    data, (labels, floor) = task.data, guide_labels(task)
    seen = task.rows if data.weights is None else task.rows[data.weights[task.rows] > 0]  # rows that count
    guides, table = fit_guides(POLICY.guides(task), data.features, labels, seen, floor, task.seed_of(9), data.blocks)
    return GuideTable(guides, table, labels)


def prepare(spec: CandidateSpec, task: Task, guided: GuideTable | None = None) -> Problem:
    """What there is to train for one candidate.

    Args:
        spec: the candidate.
        task: the model.
        guided: the task's guides; None if the candidate sees features alone.

    Returns:
        The problem.
    """
    data = task.data if task.start is None else task.start.guided(task.data)
    labels, schedule, guides = task.labels, task.schedule, None
    if guided is not None:
        table = guided.table
        if data.blocks is None and data.votes_per_item(task.rows) < POLICY.single_votes:
            rng = np.random.default_rng(task.seed_of(13))
            completed = complete_votes(data.labels, guides_mean(table, data.n_labels), POLICY.completed_votes, rng)
            data, table = data.with_completed(completed), np.vstack([table, table])
            labels = prepare_votes(data, data.learnt_from + task.rows, task.settings.zeros, task.seed)
            schedule = POLICY.schedule(task.settings, len(task.rows), labels.votes)
        if spec.inputs != "features":
            data, guides = data.with_features(join_features(data.features, table, spec.inputs)), guided.guides
    members = make_members(task, spec, data)
    net = None if task.start is None else task.start.net
    return Problem(task, spec, data, labels, members, schedule, guides, net)


def make_members(task: Task, spec: CandidateSpec, data: TrainingData) -> tuple[Member, ...]:
    """The members of a candidate: the same rows for every candidate of a task."""
    fraction, n_rows = task.settings.validation_fraction, len(task.rows)
    n_held = min(max(1, round(fraction * n_rows)), n_rows - 2) if fraction > 0 and not task.one_pass else 0
    numbers = range(spec.n_members)
    if spec.folds:
        parts = fold_rows(task.rows, task.seed, POLICY.folds)
        splits = [parts[k % POLICY.folds] for k in numbers]
    else:
        splits = [_split(task, data, task.seed_of(4, k), n_held) for k in numbers]
    if data.blocks is not None:  # blocks differ in size, and members of one stack have as many rows each
        sizes = [min(len(split[part]) for split in splits) for part in (0, 1)]
        splits = [(train[: sizes[0]], valid[: sizes[1]]) for train, valid in splits]
    members = []
    for k, split in enumerate(splits):
        shuffle = task.seed_of(7, k)
        if task.one_pass:  # each pass in another order
            shuffle = derive_seed(shuffle, task.passes_done)
        members.append(Member(*split, task.seed_of(5, k), shuffle))
    return tuple(members)


def _split(task: Task, data: TrainingData, seed: int, n_held: int) -> tuple[Tensor, Tensor]:
    """Training and validation rows, without a block in common."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.as_tensor(task.rows)[torch.randperm(len(task.rows), generator=draw)]
    if data.blocks is None or not n_held:
        return data.learnt_from + rows[n_held:], rows[:n_held]
    train, valid = split_groups(data.blocks, task.settings.validation_fraction, rows.numpy(), seed % 2**63)
    return torch.as_tensor(train), torch.as_tensor(valid)


def fold_rows(rows: Index, seed: int, n_folds: int) -> list[tuple[Tensor, Tensor]]:
    """Training and validation rows of each fold, all of one size.

    Args:
        rows: to be divided.
        seed: of the fit.
        n_folds: how many.

    Returns:
        Pairs: every row is a validation row once, some are twice.

    Example:
        >>> [valid.tolist() for _, valid in fold_rows(np.arange(7), 0, 5)]
        [[4, 1], [1, 3], [3, 2], [5, 6], [6, 0]]
    """
    draw = torch.Generator().manual_seed(derive_seed(seed, 4))
    mixed = torch.as_tensor(rows)[torch.randperm(len(rows), generator=draw)]
    n_held = math.ceil(len(rows) / n_folds)
    turned = [mixed.roll(-(k * len(rows) // n_folds)) for k in range(n_folds)]
    return [(part[n_held:], part[:n_held]) for part in turned]


# -- networks and objectives -----------------------------------------------------------------------------------------


def build_net(problems: Sequence[Problem]) -> SnefyNet:
    """A stack of freshly initialised members.

    Args:
        problems: of one shape; their members in this order.

    Returns:
        The net, on the CPU.
    """
    task, data = problems[0].task, problems[0].data
    settings, n_members = task.settings, sum(len(problem.members) for problem in problems)
    body: StackedMLP | CustomBackbone
    if settings.backbone is None:
        body = StackedMLP(n_members, data.features.shape[1], tuple(int(width) for width in settings.hidden_sizes))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed_of(3))
            example = batch_of(data.features, torch.arange(min(2, data.n_rows)), torch.device("cpu"))
            body = CustomBackbone(n_members, settings.backbone, example)
    sizes = data.n_labels, int(settings.n_neurons), int(settings.n_readouts)
    net = SnefyNet(body, *sizes, "clip" if settings.is_paper else "log", balanced=not settings.is_paper)
    members = [(problem, member) for problem in problems for member in problem.members]
    for k, (problem, member) in enumerate(members):
        _initialise(net, k, problem, member)
    return net


def _initialise(net: SnefyNet, k: int, problem: Problem, member: Member) -> None:
    """Start one member: its neurons at training labels, the scaling of its features, and its background."""
    labels, rows = problem.labels, member.train.numpy()
    shares = torch.as_tensor(labels.prototypes[rows])
    shares = shares / shares.sum(-1, keepdim=True)
    generator = torch.Generator().manual_seed(member.start_seed)
    if problem.task.settings.is_paper:
        paper_init(net, k, shares, generator)
    else:
        concentrations = CONCENTRATION_RANGE if labels.votes is None else labels.votes.concentration_range
        prototype_init(net, k, shares, generator, concentrations)
        background = fit_dirichlet(shares) if labels.prior is None else torch.as_tensor(labels.prior)
        net.set_background(k, background)
    if isinstance(net.backbone, StackedMLP) and problem.spec.scaling != "none":
        moments, scaler = column_moments(problem.data.features[rows]), net.backbone.scaler
        scaler.centre[k], scaler.scale[k], scaler.limit[k] = scaling_of(*moments, problem.spec.scaling)


def make_objective(net: SnefyNet, problems: Sequence[Problem], device: torch.device) -> Objective:
    """What the members must explain.

    Args:
        net: the stack of exactly these members, on the device.
        problems: of one shape, on the same data.
        device: where to train.

    Returns:
        The objective, on the device.
    """
    data = problems[0].data
    if data.are_counts:
        return Counts(torch.as_tensor(data.labels, device=device), net)
    known = [problem.labels.known for problem in problems]
    # Most data hold no zeros, and then every problem sees the same shares.
    same = all(np.array_equal(other, known[0], equal_nan=True) for other in known[1:])
    tables = [torch.as_tensor(table, device=device) for table in (known[:1] if same else known)]
    which = [0 if same else k for k, problem in enumerate(problems) for _ in problem.members]
    group = torch.tensor(which, device=device)
    return Shares(torch.stack(tables).log(), net, group) if data.has_whole_shares else Gaps(tables, net, group)
