"""Which candidates a fit tries, and how they are trained: the only place with thresholds.

Each number says which tables it comes from; ``benchmarks/density.py`` (shares) and ``benchmarks/votes.py`` (votes) are
the runs that would notice a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from snefy_ldl.errors import InputError
from snefy_ldl.networks.scaling import Scaling
from snefy_ldl.training.guides import default_guides
from snefy_ldl.training.settings import CandidateSpec, Inputs, Settings, VoteSettings

if TYPE_CHECKING:
    from snefy_ldl.training.prepare import Task


@dataclass(frozen=True)
class Schedule:
    """How to train: everything about the optimiser.

    Args:
        epochs: passes over the training rows.
        batch_size: rows per step.
        learning_rate: the peak rate.
        exponent_rate: the exponents' rate in units of ``learning_rate``; they live on a log scale and must travel far.
        weight_decay: AdamW's, on the network's matrices only.
        shape: ``"one_cycle"`` (warm up, then cosine to zero) or ``"constant"``.
        patience: epochs without a better validation likelihood before a member stops; None never stops early.
        warm_up: part of the epochs in which a one-cycle rate grows.

    Example:
        >>> [round(Schedule(epochs=1, batch_size=1, learning_rate=1.0).rate(p), 2) for p in (0.0, 0.15, 0.3, 0.65)]
        [0.04, 0.5, 1.0, 0.5]
    """

    epochs: int
    batch_size: int
    learning_rate: float
    exponent_rate: float = 20.0
    weight_decay: float = 0.0
    shape: Literal["one_cycle", "constant"] = "one_cycle"
    patience: int | None = None
    warm_up: float = 0.3

    def rate(self, progress: float) -> float:
        """Share of the peak rate at ``progress`` in [0, 1)."""
        if self.shape == "constant":
            return 1.0
        if progress < self.warm_up:
            return max(0.04, progress / self.warm_up)
        return max(1e-3, 0.5 * (1.0 + math.cos(math.pi * (progress - self.warm_up) / (1.0 - self.warm_up))))


@dataclass(frozen=True)
class Policy:
    """The thresholds of a fit, and the rules that use them."""

    #: Rows from which the library's own guides are fitted: fewer leave no fold a learner could learn from.
    least_rows: int = 12
    #: Rows below which every candidate has five members, each leaving out another fifth: with 15 % of 100 to 500 rows
    #: held back, the choice was a coin's (SJAFFE, ArcticLake, Jura, mites).
    few_rows: int = 500
    folds: int = 5
    #: Rows from which a network on features alone is tried on so few rows (it wins on SJAFFE, 107 rows; not below).
    feature_rows: int = 100
    #: Labels from which nothing but guides is tried: by far the best on ECAM, GEMAS elements and foods (20 to 134).
    many_labels: int = 20
    #: Features above which a network sees guides alone: on Movie (1,869) it takes half the time and ties.
    wide: int = 600
    #: Members of a guided model, and the rows up to which so many pay (.05 to .3 nats on SBU_3DFE, Yeast, GEMAS).
    members: int = 3
    member_rows: int = 10_000
    #: Rows of votes below which as many members are compared: one member's rows could not tell candidates apart.
    vote_rows: int = 2_000
    #: Votes per item below which they are completed, and how many an item has then: single votes say nothing of how far
    #: items differ; with two votes or more, completed ones lost .1 to .7 nats on two of four sets.
    single_votes: float = 1.5
    completed_votes: int = 32
    #: A label whose geometric mean is below this is too small for a guide to see: guides then learn shares divided by
    #: the geometric means (parts of 1e-5 to 1e-7 lose .4 to 1.1 nats without).
    small_part: float = 1e-4
    #: Guides' predictions of votes are lifted to the share of this part of a vote.
    part_of_vote: float = 0.1
    #: Rows from which a sample of so many rows, in so many epochs, chooses, and nats by which guides must lead there.
    large_rows: int = 100_000
    sample_rows: int = 20_000
    sample_epochs: int = 10
    guide_gain: float = 0.1
    #: Part of the epochs at which candidates are compared, and standard errors by which one may be behind: earlier, or
    #: by fewer, the winner of a full search was dropped on two of five splits of SBU_3DFE.
    rungs: tuple[tuple[float, float], ...] = ((0.3, 3.0), (0.6, 1.5))
    #: Epochs and validation rows below which nobody is dropped.
    rung_epochs: int = 10
    rung_rows: int = 20
    #: Labels from which networks train without their background, which joins them on validation rows: on 20 labels and
    #: more it out-scores untrained networks by so many nats that their gradients vanish.
    background_labels: int = 15
    #: Largest numbers of rows for which a step takes 16, 32, ... of them, and how many it takes beyond the last (of a
    #: million synthetic rows 7.37, 7.45, 7.51 and 7.52 nats with 256, 512, 1,024 and 2,048).
    batch_limits: tuple[tuple[int, int], ...] = (
        (16, 200),
        (32, 500),
        (64, 10_000),
        (128, 40_000),
        (256, 85_000),
        (1024, 400_000),
    )
    largest_batch: int = 2048
    #: Of shares, steps of 64 rows become steps of 128 at so many times the rate: as good, in two thirds of the time.
    doubled_batch: int = 64
    doubled_rate: float = 1.6
    #: A pass of ``partial_fit`` runs at this share of the learning rate.
    one_pass_rate: float = 0.2

    def specs(self, task: Task) -> list[CandidateSpec]:
        """The candidates of a fit, in the order of preference.

        Args:
            task: the model, its rows and settings.

        Returns:
            At least one candidate.

        Raises:
            InputError: the user's candidates need guides, and there are none.
        """
        settings = task.settings
        if settings.candidates is not None and self.may_choose(task):
            specs = list(settings.candidates)
            if any(spec.inputs != "features" for spec in specs) and not self.guides(task):
                raise InputError("candidates that see guides need them: guides=None, or too few rows.")
        else:
            specs = [
                CandidateSpec(inputs, scaling)
                for inputs in self.inputs(task)
                for scaling in self.scalings(task, inputs)
            ]
        folds = self.uses_folds(task)
        return [replace(spec, n_members=self.first_members(task, len(specs), folds), folds=folds) for spec in specs]

    @staticmethod
    def may_choose(task: Task) -> bool:
        """Whether anything may be chosen: a fit that goes on, or passes once, keeps what it has."""
        fresh = task.start is None and not task.one_pass
        return fresh and not task.settings.is_paper and task.settings.backbone is None

    def guides(self, task: Task, light: bool = False) -> list[Any]:
        """The learners whose predictions networks may see, unfitted; none where data or settings leave no room."""
        settings, n_rows = task.settings, len(task.rows)
        if settings.guides is None or not self.may_choose(task):
            return []
        if not isinstance(settings.guides, str):
            return list(settings.guides)
        if settings.validation_fraction <= 0 or not self.least_rows <= n_rows < self.large_rows:
            return []
        return default_guides(n_rows, int(task.data.features.shape[1]), task.seed_of(10), light)

    def inputs(self, task: Task) -> Sequence[Inputs]:
        """What networks see, by the settings and the size of the data."""
        settings, data, n_rows = task.settings, task.data, len(task.rows)
        if not self.guides(task):
            return ["features"]
        if not isinstance(settings.guides, str):  # the user's own: they are meant to be used
            return ["guides", "both"] if settings.validation_fraction > 0 else ["both"]
        if data.has_whole_shares:
            if data.n_labels >= self.many_labels or n_rows < self.feature_rows:
                return ["guides"]
            if n_rows < self.few_rows:
                return ["guides", "features"]
        return ["guides"] if data.features.shape[1] > self.wide else ["guides", "both"]

    def scalings(self, task: Task, inputs: Inputs) -> Sequence[Scaling]:
        """How inputs are scaled; guides are logarithms, which share a unit that is theirs."""
        settings = task.settings
        if task.start is not None:
            return [task.start.scaling]
        if settings.backbone is not None or settings.standardize in (False, None):
            return ["unit" if inputs == "guides" else "none"]
        if settings.standardize == "pooled" and inputs != "guides":
            return ["pooled"]
        few = bool(self.guides(task)) and len(task.rows) < self.few_rows and inputs == "features"
        open_to_both = settings.standardize == "auto" and settings.validation_fraction > 0 and not task.one_pass
        return ["unit", "pooled"] if open_to_both and inputs != "guides" and not few else ["unit"]

    def uses_folds(self, task: Task) -> bool:
        """Whether members leave out one fifth of the rows each."""
        few = len(task.rows) < self.few_rows and task.settings.validation_fraction > 0
        return few and task.data.has_whole_shares and task.data.blocks is None and bool(self.guides(task))

    def first_members(self, task: Task, n_specs: int, folds: bool) -> int:
        """Networks of each candidate while candidates are compared."""
        wanted, guided = task.settings.n_members, bool(self.guides(task))
        if n_specs == 1 and wanted != "auto":
            return int(wanted)
        if folds:
            return self.folds
        if not guided:  # a few networks are all there is to a fit
            if wanted != "auto":
                return int(wanted)
            return 1 if task.start is None else task.start.net.n_members
        return self.members if task.data.are_counts and self.few_rows <= len(task.rows) < self.vote_rows else 1

    def all_members(self, task: Task, compared: int) -> int:
        """Networks of the model in the end, of which so many were compared."""
        wanted, n_rows = task.settings.n_members, len(task.rows)
        if wanted != "auto":
            return int(wanted)
        return self.members if compared == 1 and self.guides(task) and n_rows <= self.member_rows else compared

    def is_large(self, task: Task) -> bool:
        """Whether there are very many rows, and something to choose that a sample of them can settle."""
        settings, data = task.settings, task.data
        own = settings.candidates is not None or not (settings.guides is None or settings.guides == "auto")
        if len(task.rows) < self.large_rows or own or settings.validation_fraction <= 0 or not self.may_choose(task):
            return False
        tries_guides = settings.guides is not None and data.has_whole_shares
        return data.partial is None and (tries_guides or len(self.scalings(task, "features")) > 1)

    def schedule(
        self, settings: Settings, n_rows: int, votes: VoteSettings | None = None, one_pass: bool = False
    ) -> Schedule:
        """How networks of some settings train.

        Args:
            settings: of the model.
            n_rows: rows that the model may see.
            votes: where votes are trained on, how.
            one_pass: for one pass at a constant rate (``partial_fit``).

        Returns:
            The schedule.

        Example:
            >>> Policy().schedule(Settings(), 1000).batch_size, Policy().schedule(Settings(), 100).batch_size
            (128, 16)
        """
        size, exponent_rate = settings.batch_size, 1.0 if settings.is_paper else 20.0
        rate = self.one_pass_rate if one_pass and not settings.is_paper else 1.0
        if size == "auto":
            rows = n_rows * (1.0 - settings.validation_fraction)
            size = next((size for size, limit in self.batch_limits if rows < limit), self.largest_batch)
            plain = votes is None and settings.backbone is None and not (settings.is_paper or one_pass)
            if size == self.doubled_batch and plain:
                size, rate = 2 * size, self.doubled_rate
        if votes is not None and not settings.is_paper:
            # Votes are a noisier teacher than shares, and a few of them say nothing about concentrations.
            rate, exponent_rate = votes.rate * rate, votes.exponent_rate
        return Schedule(
            epochs=1 if one_pass else int(settings.epochs),
            batch_size=int(size),
            learning_rate=float(settings.learning_rate) * rate,
            exponent_rate=exponent_rate,
            weight_decay=float(settings.weight_decay),
            shape="constant" if settings.is_paper or one_pass else "one_cycle",
            patience=settings.patience,
        )


#: What every fit follows; tests replace it.
POLICY = Policy()
