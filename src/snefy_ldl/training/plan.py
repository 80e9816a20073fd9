"""From settings and data to members: what one fit, an ensemble and many models at once have in common.

A *job* is one model and the rows it may see. It plans *members*: networks that differ in seed, validation rows or
feature scaling. Members of one shape train stacked, whichever job they belong to; then each job keeps its best.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.random import derive_seed, seed_from
from snefy_ldl._internal.rows import take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import ZeroPolicy, check_features
from snefy_ldl.datasets.groups import split_groups
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.errors import InputError
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import Scaling, column_moments, scaling_of
from snefy_ldl.networks.starts import fit_dirichlet, label_concentration, paper_init, prototype_init
from snefy_ldl.training.data import Labels, TrainingData, prepare_shares, prepare_votes
from snefy_ldl.training.objectives import Counts, Gaps, Objective, Shares
from snefy_ldl.training.settings import Recipe, Settings, make_recipe
from snefy_ldl.training.state import FittedState, Inputs

#: Parts of a small table, each of which another member leaves out.
N_FOLDS = 5
#: Share of the background Dirichlet while training; the validation rows settle it afterwards.
BACKGROUND_SHARE = 0.02


class Job:
    """One model to be fitted on some rows of the data.

    Args:
        settings: of the model.
        data: everything.
        rows: the rows it may see; all by default.
        start: a fitted state to go on from; its net is trained further, in place.
        one_pass: train for one pass at a constant rate, without validation rows, and keep the optimiser.
        policy: the zero policy; settled on the rows by default.
        warn: whether to say how many labels were shrunk.
        compared: whether its state will be compared with another's on validation rows.
        inputs: what the features of the data are.
        members_done: members that were trained before; the job trains those that come after them.
        folds: whether each member leaves out another part of the rows, so that every row is a validation row, and the
            members of a candidate stop at one common epoch.
        seed: of the job; drawn from ``settings.random_state`` by default.

    Attributes:
        seed: drawn once from ``settings.random_state``.
        given: the data before any guides of ``start``.
        labels: as the members use them.

    Raises:
        InputError: where there are too few rows, or the data do not have the shape of ``start``.
    """

    def __init__(
        self,
        settings: Settings,
        data: TrainingData,
        rows: Index | None = None,
        *,
        start: FittedState | None = None,
        one_pass: bool = False,
        policy: ZeroPolicy | None = None,
        warn: bool = True,
        seed: int | None = None,
        compared: bool = False,
        inputs: Inputs = "features",
        members_done: int = 0,
        folds: bool = False,
    ) -> None:
        self.folds, self.compared = folds, compared
        self.inputs, self.members_done = inputs, members_done
        self.settings, self.given, self.data, self.start, self.one_pass = settings, data, data, start, one_pass
        self.rows = np.arange(data.n_rows) if rows is None else rows
        self.seed = seed_from(settings.random_state) if seed is None else seed
        self._check_shape()
        if start is not None:
            self.data = data = start.guided(data)
        self.labels: Labels
        if data.are_counts:
            self.labels = prepare_votes(data, data.learnt_rows(self.rows), settings.zeros, self.seed)
        else:
            seen = data.labels[self.rows]
            policy = policy or ZeroPolicy.from_data(seen, settings.zeros)
            self.labels = prepare_shares(data, self.rows, policy)
            policy.apply(seen, warn=warn, names=data.label_names)

    def _check_shape(self) -> None:
        fraction, data = self.settings.validation_fraction, self.data
        needed = 2 if fraction == 0 else 4
        if len(self.rows) < needed:
            raise InputError(
                f"X has {len(self.rows)} row(s) ({len(self.rows)} sample(s)); a fit with "
                f"validation_fraction={fraction:g} needs at least {needed}."
            )
        if self.start is None:
            return
        if data.n_labels != self.start.n_labels:
            raise InputError(f"D has {data.n_labels} labels, but the model was fitted with {self.start.n_labels}.")
        if self.settings.backbone is None:
            check_features(data.features, n_features=self.start.n_inputs)

    def without_groups(self) -> Job:
        """This job, whose rows come without groups."""
        other = copy.copy(self)
        other.__dict__.pop("members", None)
        other.data = copy.copy(self.data)
        other.data.groups = None
        return other

    @property
    def scalings(self) -> list[Scaling]:
        """The feature scalings to try."""
        if self.start is not None:
            return [self.start.scaling]
        return self.settings.scalings[:1] if self.one_pass else self.settings.scalings

    @property
    def n_members(self) -> int:
        """Networks that the job trains for each candidate."""
        wanted = self.settings.n_members
        if wanted != "auto":
            return wanted - self.members_done
        return 1 if self.start is None else self.start.net.n_members

    @cached_property
    def members(self) -> list[Member]:
        """``n_members`` for each scaling to try, all side by side on the same rows."""
        n_rows, fraction = len(self.rows), self.settings.validation_fraction
        n_held = 0
        if fraction > 0 and not self.one_pass:
            n_held = min(max(1, round(fraction * n_rows)), n_rows - 2)
        # members of one backbone see the same rows
        numbers = range(self.members_done, self.members_done + self.n_members)
        same = [0 if self.settings.shares_backbone else k for k in numbers]
        if self.folds:
            parts = fold_rows(self.rows, self.seed)
            splits = {k: parts[k % N_FOLDS] for k in set(same)}
        else:
            splits = {k: self._split(derive_seed(self.seed, 4, k), n_held) for k in set(same)}
        if self.data.groups is not None:  # groups differ in size, and members of one stack have as many rows each
            sizes = [min(len(split[part]) for split in splits.values()) for part in (0, 1)]
            splits = {k: (train[: sizes[0]], valid[: sizes[1]]) for k, (train, valid) in splits.items()}
        members = []
        for scaling in self.scalings:
            for k, at in zip(numbers, same):
                start_seed, shuffle_seed = derive_seed(self.seed, 5, k), derive_seed(self.seed, 7, at)
                if self.one_pass:  # each pass in an order of its own
                    shuffle_seed = derive_seed(shuffle_seed, self.passes_done)
                members.append(Member(self, *splits[at], scaling, start_seed, shuffle_seed))
        return members

    def _split(self, seed: int, n_held: int) -> tuple[Tensor, Tensor]:
        """Training and validation rows; where rows come in groups, without a group in common."""
        draw = torch.Generator().manual_seed(seed)
        rows = torch.as_tensor(self.rows)[torch.randperm(len(self.rows), generator=draw)]
        if self.data.groups is None or not n_held:
            return self.data.learnt_rows(rows[n_held:]), rows[:n_held]
        train, valid = split_groups(
            self.data.groups.first, self.settings.validation_fraction, rows.numpy(), seed % 2**63
        )
        return torch.as_tensor(train), torch.as_tensor(valid)

    @property
    def passes_done(self) -> int:
        """Passes of ``partial_fit`` before this one."""
        return len(self.start.history) if self.one_pass and self.start is not None else 0

    @cached_property
    def recipe(self) -> Recipe:
        """How to train."""
        return make_recipe(self.settings, len(self.rows), self.labels.votes, self.one_pass)


def fold_rows(rows: Index, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Training and validation rows of :data:`N_FOLDS` parts.

    Args:
        rows: to be divided.
        seed: of a job.

    Returns:
        Pairs, all of one size: every row is a validation row once, some are twice.

    Example:
        >>> [valid.tolist() for _, valid in fold_rows(np.arange(7), 0)]
        [[4, 1], [1, 3], [3, 2], [5, 6], [6, 0]]
    """
    draw = torch.Generator().manual_seed(derive_seed(seed, 4))
    mixed = torch.as_tensor(rows)[torch.randperm(len(rows), generator=draw)]
    n_held = math.ceil(len(rows) / N_FOLDS)
    turned = [mixed.roll(-(k * len(rows) // N_FOLDS)) for k in range(N_FOLDS)]
    return [(part[n_held:], part[:n_held]) for part in turned]


@dataclass(frozen=True, eq=False)
class Member:
    """One network to train.

    Args:
        job: whose it is.
        train: its training rows.
        valid: its validation rows; none means that the last weights stay.
        scaling: of its features.
        start_seed: of its first weights.
        shuffle_seed: of the order of its rows.
    """

    job: Job
    train: Tensor
    valid: Tensor
    scaling: Scaling
    start_seed: int
    shuffle_seed: int


def build_net(members: Sequence[Member]) -> SnefyNet:
    """A stack of freshly initialised members.

    Args:
        members: as planned; all must have one shape.

    Returns:
        The net, on the CPU.
    """
    job = members[0].job
    settings, data = job.settings, job.data
    body: StackedMLP | CustomBackbone
    if settings.backbone is None:
        body = StackedMLP(len(members), data.features.shape[1], tuple(int(width) for width in settings.hidden_sizes))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(job.seed, 3))
            rows = torch.arange(min(2, data.n_rows))
            fetched = isinstance(data.features, Objects)
            example = data.features.batch(rows) if fetched else take_rows(data.features, rows)
            body = CustomBackbone(len(members), settings.backbone, example)
    net = SnefyNet(
        body,
        data.n_labels,
        int(settings.n_neurons),
        int(settings.n_readouts),
        exponent_form="clip" if settings.is_paper else "log",
        balanced=not settings.is_paper,
    )
    starts: dict[int, _Start] = {}  # members that differ in their scaling alone start alike
    for k, member in enumerate(members):
        key = id(member.train)
        starts[key] = starts.get(key) or _Start(member)
        _initialise(net, k, member, starts[key])
    return net


class _Start:
    """What the training rows of a member say before it starts.

    Args:
        member: one of those that share rows.

    Attributes:
        shares: labels of the training rows, as the network sees them (N, L).
    """

    def __init__(self, member: Member) -> None:
        self._rows, self._job = member.train.numpy(), member.job
        shares = torch.as_tensor(self._job.labels.prototypes[self._rows])
        self.shares = shares / shares.sum(-1, keepdim=True)

    @cached_property
    def concentration(self) -> float:
        """The labels' own."""
        return label_concentration(self.shares)

    @cached_property
    def background(self) -> Tensor:
        """Concentration of the background Dirichlet (L,)."""
        if self._job.labels.prior is not None:
            return torch.as_tensor(self._job.labels.prior)
        guess = self.shares.mean(0) * max(self.concentration, 1.0)
        return fit_dirichlet(self.shares.log().mean(0), guess)

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the features."""
        return column_moments(self._job.data.features[self._rows])


def _initialise(net: SnefyNet, k: int, member: Member, start: _Start) -> None:
    """Start one member: its neurons, the scaling of its features, and its background."""
    labels, is_paper = member.job.labels, member.job.settings.is_paper
    generator = torch.Generator().manual_seed(member.start_seed)
    if is_paper:
        paper_init(net, k, start.shares, generator)
    else:
        prototype_init(net, k, start.shares, generator, labels.concentration_range, start.concentration)
        net.set_background(k, start.background, BACKGROUND_SHARE)
    if isinstance(net.backbone, StackedMLP) and member.scaling != "none":
        net.backbone.scaler.set(k, *scaling_of(*start.moments, member.scaling))


def make_objective(net: SnefyNet, members: Sequence[Member], device: torch.device) -> Objective:
    """What the members must explain.

    Args:
        net: the stack of exactly these members, on the device.
        members: as planned; their jobs share the data.
        device: where to train.

    Returns:
        The objective, on the device.
    """
    data = members[0].job.data
    if data.are_counts:
        counts = torch.as_tensor(data.labels, device=device)
        named = None if data.partial is None else torch.as_tensor(data.partial.named, device=device)
        sets = None if data.partial is None else torch.as_tensor(data.partial.sets, device=device)
        return Counts(counts, net, named, sets)
    jobs = list(dict.fromkeys(member.job for member in members))
    # Most data hold no zeros, and then every job sees the same shares.
    if all(np.array_equal(job.labels.shares, jobs[0].labels.shares) for job in jobs[1:]):
        jobs = jobs[:1]
    group = torch.tensor([jobs.index(m.job) if len(jobs) > 1 else 0 for m in members], device=device)
    if data.has_gaps:
        return Gaps([torch.as_tensor(job.labels.known, device=device) for job in jobs], net, group)
    tables = torch.stack([torch.as_tensor(job.labels.shares, device=device).log() for job in jobs])
    return Shares(tables, net, group)
