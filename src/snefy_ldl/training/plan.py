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
from itertools import product

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
from snefy_ldl.networks.starts import (
    BLEND,
    fit_dirichlet,
    label_concentration,
    paper_init,
    presence_init,
    prototype_init,
)
from snefy_ldl.training.data import Labels, TrainingData, prepare_shares, prepare_votes
from snefy_ldl.training.objectives import CentredCounts, Counts, Gaps, Objective, Shares, ZeroObjective
from snefy_ldl.training.settings import Recipe, Settings, make_recipe
from snefy_ldl.training.state import FittedState, Inputs

#: Parts whose geometric means differ by this factor are unequal enough for a centre to be tried by itself.
UNEQUAL = 8.0
#: A part of rows with zeros from which modelling them is tried.
ENOUGH_ZEROS = 0.05
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
        settled: whether the zero policy is no longer open.
        inputs: what the features of the data are.
        remark: what a candidate's name ends with, where jobs of several zero policies are compared.
        members_done: members that were trained before; the job trains those that come after them.
        folds: whether each member leaves out another part of the rows, so that every row is a validation row, and the
            members of a candidate stop at one common epoch.
        lessons: rows of the data that the member of each part learns from, too (N_FOLDS, n), or every member where
            there are no parts (1, n); None for none.
        may_move: whether a law that moves may be tried; it answers questions about votes row by row.
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
        settled: bool = False,
        inputs: Inputs = "features",
        remark: str = "",
        members_done: int = 0,
        folds: bool = False,
        lessons: Index | None = None,
        may_move: bool = True,
    ) -> None:
        self.folds, self.lessons, self.may_move = folds, lessons, may_move
        self.compared, self.settled = compared, settled
        self.inputs, self.remark, self.members_done = inputs, remark, members_done
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
            if policy.mode == "model" and (data.has_gaps or settings.is_paper or one_pass):
                policy = ZeroPolicy("shrink", policy.floor)  # those likelihoods have no room for zeros
            self.labels = prepare_shares(data, self.rows, policy)
            if not self.may_model_zeros:
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

    @property
    def zero_rows(self) -> float:
        """Part of the rows that hold an exact zero."""
        if self.data.are_counts or self.data.has_gaps:
            return 0.0
        return float((self.data.labels[self.rows] <= 0.0).any(1).mean())

    @property
    def may_model_zeros(self) -> bool:
        """Whether zeros are to be modelled by validation: the settings leave it open, and enough rows hold one."""
        if self.settings.zeros != "auto" or self.settings.is_paper or self.one_pass or self.start is not None:
            return False
        if self.settings.backbone is not None or self.models_zeros or self.settled:
            return False
        return self.zero_rows >= ENOUGH_ZEROS and self.zero_rows * len(self.rows) >= 20

    def with_policy(self, mode: str) -> Job:
        """This job under another zero policy."""
        policy = ZeroPolicy(mode, self.labels.policy.floor)
        remark = ", zeros modelled" if mode == "model" else ", zeros shrunk"
        return Job(
            self.settings, self.data, self.rows, policy=policy, warn=False, seed=self.seed, compared=True, remark=remark
        )

    def without_groups(self) -> Job:
        """This job, whose rows come without groups."""
        other = copy.copy(self)
        other.__dict__.pop("members", None)
        other.data = copy.copy(self.data)
        other.data.groups = None
        return other

    @property
    def models_zeros(self) -> bool:
        """Whether shares of exactly zero are part of the law."""
        return self.labels.policy.mode == "model"

    @cached_property
    def centres(self) -> list[Array | None]:
        """The centres to try (L,), None for none."""
        data = self.data
        if self.start is not None:
            return [self.start.centre]
        if data.are_counts or data.has_gaps or self.one_pass or data.moves is not None:
            return [None]
        if self.models_zeros and isinstance(self.settings.centre, str):
            return [None]  # presence takes over what a centre does for small parts
        centres: list[Array | None] = []
        for option in self.settings.centres:
            if option is None or not isinstance(option, str):
                centres.append(option)
                continue
            shares = self.labels.shares[self.rows]
            there = shares > 0.0  # where zeros are modelled, of the rows that hold the label
            logs = np.where(there, np.log(np.where(there, shares, 1.0)), 0.0)
            mean = logs.sum(0) / np.maximum(there.sum(0), 1)
            if len(self.settings.centres) == 1 or np.ptp(mean) > math.log(UNEQUAL):
                centres.append(np.exp(mean - mean.mean()))
        for centre in centres:
            if centre is not None and centre.shape != (data.n_labels,):
                raise InputError(f"centre must hold {data.n_labels} positive numbers, one per label; got {centre!r}.")
        return centres

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
        """``n_members`` for each scaling and centre to try, all side by side on the same rows."""
        n_rows, fraction = len(self.rows), self.settings.validation_fraction
        n_held = 0
        if fraction > 0 and not self.one_pass:
            n_held = min(max(1, round(fraction * n_rows)), n_rows - 2)
        # members of one backbone see the same rows
        numbers = range(self.members_done, self.members_done + self.n_members)
        same = [0 if self.settings.shares_backbone else k for k in numbers]
        if self.folds:
            parts = self._folds()
            splits = {k: parts[k % N_FOLDS] for k in set(same)}
        else:
            splits = {k: self._split(derive_seed(self.seed, 4, k), n_held) for k in set(same)}
        if self.data.groups is not None:  # groups differ in size, and members of one stack have as many rows each
            sizes = [min(len(split[part]) for split in splits.values()) for part in (0, 1)]
            splits = {k: (train[: sizes[0]], valid[: sizes[1]]) for k, (train, valid) in splits.items()}
        if self.lessons is not None and not self.folds:
            drawn = torch.as_tensor(self.lessons[0])
            splits = {k: (torch.cat([train, drawn]), valid) for k, (train, valid) in splits.items()}
        members = []
        for scaling, centre in product(self.scalings, self.centres):
            for k, at in zip(numbers, same):
                start_seed, shuffle_seed = derive_seed(self.seed, 5, k), derive_seed(self.seed, 7, at)
                if self.one_pass:  # each pass in an order of its own
                    shuffle_seed = derive_seed(shuffle_seed, self.passes_done)
                members.append(Member(self, *splits[at], scaling, centre, start_seed, shuffle_seed))
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

    def _folds(self) -> list[tuple[Tensor, Tensor]]:
        """Training and validation rows of each part; beside lessons, training rows count several times."""
        parts = fold_rows(self.rows, self.seed)
        if self.lessons is None:
            return parts
        times = max(1, self.lessons.shape[1] // (2 * len(parts[0][0])))
        lessons = torch.as_tensor(self.lessons)
        return [(torch.cat([train.repeat(times), own]), valid) for (train, valid), own in zip(parts, lessons)]

    @property
    def passes_done(self) -> int:
        """Passes of ``partial_fit`` before this one."""
        return len(self.start.history) if self.one_pass and self.start is not None else 0

    @cached_property
    def recipe(self) -> Recipe:
        """How to train."""
        return make_recipe(self.settings, len(self.rows), self.labels.votes, self.one_pass, self.models_zeros)


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
        centre: by which its labels are divided (L,), or None.
        start_seed: of its first weights.
        shuffle_seed: of the order of its rows.
    """

    job: Job
    train: Tensor
    valid: Tensor
    scaling: Scaling
    centre: Array | None
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
        presence=job.models_zeros,
    )
    starts: dict[tuple[int, int], _Start] = {}  # members that differ in their scaling alone start alike
    for k, member in enumerate(members):
        key = (id(member.train), id(member.centre))
        starts[key] = starts.get(key) or _Start(member)
        _initialise(net, k, member, starts[key])
    return net


class _Start:
    """What the training rows of a member say before it starts.

    Args:
        member: one of those that share rows and centre.

    Attributes:
        shares: labels of the training rows, as the network sees them (N, L).
    """

    def __init__(self, member: Member) -> None:
        self._rows, self._job = member.train.numpy(), member.job
        shares, moves = torch.as_tensor(self._job.labels.prototypes[self._rows]), self._job.data.moves
        if member.centre is not None:
            shares = shares / torch.as_tensor(member.centre)
        elif moves is not None:
            shares = (shares.log() - torch.as_tensor(moves.log_centre[self._rows])).softmax(-1)
        self.shares = shares / shares.sum(-1, keepdim=True)

    @cached_property
    def concentration(self) -> float:
        """The labels' own."""
        return label_concentration(self.shares)

    @cached_property
    def background(self) -> Tensor:
        """Concentration of the background Dirichlet (L,)."""
        if self._job.labels.prior is not None and self._job.data.moves is None:
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
    job_models_zeros = member.job.models_zeros
    shares, moves = start.shares, member.job.data.moves
    if member.centre is not None:
        net.set_centre(k, torch.as_tensor(member.centre))
    generator = torch.Generator().manual_seed(member.start_seed)
    if job_models_zeros:
        blend = BLEND if moves is None else 1.0  # rows differ by their moves, not by neurons made for some of them
        presence_init(net, k, shares, generator, BACKGROUND_SHARE, labels.concentration_range, blend)
    elif is_paper:
        paper_init(net, k, shares, generator)
    else:
        prototype_init(net, k, shares, generator, labels.concentration_range, start.concentration)
    if isinstance(net.backbone, StackedMLP) and member.scaling != "none":
        net.backbone.scaler.set(k, *scaling_of(*start.moments, member.scaling))
    if not is_paper and not job_models_zeros:
        net.set_background(k, start.background, BACKGROUND_SHARE)


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
        if data.moves is not None:
            return CentredCounts(counts, net, torch.as_tensor(data.moves.log_centre, device=device))
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
    row_centre = None if data.moves is None else torch.as_tensor(data.moves.log_centre, device=device)
    if members[0].job.models_zeros:
        log_centre, shift = None if row_centre is None else row_centre[None], None
        if data.moves is not None and data.moves.shift is not None:
            shift = torch.as_tensor(data.moves.shift, device=device)
        if any(member.centre is not None for member in members):
            ones = np.ones(data.n_labels)
            centre = np.log(np.stack([ones if m.centre is None else m.centre for m in members]))
            log_centre = torch.as_tensor(centre, device=device)[:, None]
        shares = [torch.as_tensor(job.labels.shares, device=device) for job in jobs]
        return ZeroObjective(shares, net, group, log_centre, shift)
    tables: list[Tensor] = []
    jacobians: list[Tensor] = []
    which: list[int] = []
    distinct: dict[tuple[int, bytes], int] = {}
    for number, member in zip(group.tolist(), members):
        key = (number, b"" if member.centre is None else member.centre.tobytes())
        if key not in distinct:
            distinct[key] = len(tables)
            logs = torch.as_tensor(jobs[number].labels.shares, device=device).log()
            divided = logs if row_centre is None else torch.log_softmax(logs - row_centre, -1)
            if member.centre is not None:
                divided = torch.log_softmax(logs - torch.as_tensor(member.centre, device=device).log(), -1)
            tables.append(divided)
            jacobians.append((divided - logs).sum(-1))
        which.append(distinct[key])
    plain = row_centre is None and all(member.centre is None for member in members)
    jacobian = None if plain else torch.stack(jacobians)
    return Shares(torch.stack(tables), net, torch.tensor(which, device=device), jacobian)
