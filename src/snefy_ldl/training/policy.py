"""What a user sets, which candidates a fit tries, and how they are trained: the only place with thresholds.

``benchmarks/thresholds.py`` fits with each number of :class:`Policy`, and with a smaller and a larger one, on tables
where it acts. Comments name some of these neighbours, with the mean difference of the held-out log likelihood that
they make. A number without a distinct neighbour goes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from snefy_ldl._internal.adam import one_cycle
from snefy_ldl._internal.validation import check_choice, check_count, check_number
from snefy_ldl.datasets.zeros import ZeroOption
from snefy_ldl.errors import InputError
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.backbones import Scaling
from snefy_ldl.networks.custom import BackboneLike
from snefy_ldl.networks.net import CONCENTRATION_RANGE, EXPONENT_RATE

if TYPE_CHECKING:
    from snefy_ldl.training.prepare import Task

#: Point learners whose predictions the network may see: "auto" tries the library's own; None uses none.
GuideOption = Literal["auto"] | None | Any


#: What a network sees.
Inputs = Literal["features", "guides", "both"]
#: What a candidate is called after its inputs.
TITLES: dict[Inputs, str] = {"features": "features", "guides": "guides", "both": "features and guides"}


@dataclass(frozen=True)
class CandidateSpec:
    """One way to fit a model.

    Args:
        inputs: what the network sees: the ``"features"``, the ``"guides"`` (predictions of quick learners), or
            ``"both"``.
        scaling: how these are scaled; see :mod:`snefy_ldl.networks.backbones`.
        n_members: networks that are compared; the policy sets it.
        folds: whether each member leaves out another part of the rows, so that every row is a validation row, and all
            stop at one common epoch; the policy sets it.

    Raises:
        InputError: inputs or scaling are none of these.

    Example:
        >>> CandidateSpec("both", "pooled").name
        'features and guides, pooled scaling'
    """

    inputs: Inputs = "features"
    scaling: Scaling = "unit"
    n_members: int = 1
    folds: bool = False

    def __post_init__(self) -> None:
        if self.inputs not in TITLES or self.scaling not in ("unit", "pooled", "none"):
            raise InputError(
                f"no candidate sees inputs={self.inputs!r} with scaling={self.scaling!r}: inputs are "
                f'{", ".join(map(repr, TITLES))}, scalings "unit", "pooled" or "none".'
            )

    @property
    def name(self) -> str:
        """The candidate in words."""
        return TITLES[self.inputs] + (", pooled scaling" if self.scaling == "pooled" else "")


@dataclass(eq=False, repr=False, kw_only=True)
class Parameters:
    """Parameters of one model; :class:`snefy_ldl.snefy.SnefyLDL` explains each of them."""

    n_neurons: int = 64
    n_readouts: int = 32
    hidden_sizes: tuple[int, ...] = (64,)
    backbone: BackboneLike | None = None
    n_members: int | Literal["auto"] = "auto"
    epochs: int = 30
    batch_size: int | Literal["auto"] = "auto"
    learning_rate: float = 5e-3
    weight_decay: float = 1.0
    validation_fraction: float = 0.15
    patience: int | None = None
    standardize: str | bool | None = "auto"
    zeros: ZeroOption = "shrink"
    guides: GuideOption = "auto"
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0
    warm_start: bool = False
    checkpoint_dir: str | Path | None = None
    recipe: Literal["default", "paper", "paper-sgd"] = "default"
    columns: Any = "auto"
    candidates: Sequence[Any] | None = None


@dataclass(eq=False, kw_only=True)
class Settings(Parameters):
    """Parameters of one model, checked.

    Raises:
        InputError: where one of them breaks its rule, which the message names.

    Example:
        >>> Settings(epochs=0)
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: epochs must be a whole number >= 1; got 0.
    """

    def __post_init__(self) -> None:
        for name in ("n_neurons", "n_readouts", "epochs"):
            check_count(name, getattr(self, name))
        for name in ("n_members", "batch_size"):
            if getattr(self, name) != "auto":
                check_count(f'{name}, unless "auto",', getattr(self, name))
        check_number("learning_rate", self.learning_rate, strict=True)
        check_number("weight_decay", self.weight_decay)
        if check_number("validation_fraction", self.validation_fraction) >= 1.0:
            raise InputError(f"validation_fraction must lie in [0, 1); got {self.validation_fraction!r}.")
        if self.patience is not None:
            check_count("patience, unless None,", self.patience)
        check_choice("recipe", self.recipe, ("default", "paper", "paper-sgd"))
        scalings = {"auto", "unit", "pooled", True, False, None}
        if not isinstance(self.standardize, Hashable) or self.standardize not in scalings:
            raise InputError(f'standardize={self.standardize!r}: use "auto", "unit", "pooled" or False.')
        is_text = isinstance(self.guides, str)
        if (is_text and self.guides != "auto") or not isinstance(self.guides, (Iterable, type(None))):
            raise InputError(f'guides={self.guides!r}: use "auto", None or a list of regressors.')
        if self.candidates is not None and not all(isinstance(one, CandidateSpec) for one in self.candidates):
            raise InputError(
                'candidates: give a list such as [CandidateSpec("guides"), CandidateSpec("both", "pooled")].'
            )
        resolve_device(self.device)
        if not isinstance(self.hidden_sizes, Iterable):
            raise InputError(f"hidden_sizes={self.hidden_sizes!r}: give one whole number per layer, (64,) say.")
        for width in self.hidden_sizes:
            check_count("each of hidden_sizes", width)

    @property
    def is_paper(self) -> bool:
        """Whether the model is trained as the paper describes it."""
        return self.recipe != "default"

    @property
    def torch_device(self) -> torch.device:
        """Where to train."""
        return resolve_device(self.device)


def resolve_device(device: str) -> torch.device:
    """A device by name.

    Args:
        device: ``"auto"`` is a GPU if available; any other name is torch's.

    Returns:
        The device.

    Raises:
        InputError: there is no such device on this machine.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # a device that cannot hold a number fails here, before any work
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        there = f"{torch.cuda.device_count()} CUDA device(s)" if torch.cuda.is_available() else "no CUDA"
        raise InputError(
            f'device={device!r} cannot be used here ({there}): {str(error).splitlines()[0]} Use "auto" or "cpu".'
        ) from None
    return place


class VoteSettings(NamedTuple):
    """Where training on votes differs from training on label distributions.

    Args:
        exponent_rate: the exponents' rate in units of the rest's.
        sharpness: neurons start at draws of each item's posterior, under one Dirichlet for all items, with this many
            times its concentration; 1 is the posterior itself.
        concentration_range: of the neurons at the start, in units of the start labels' own concentration.
    """

    exponent_rate: float
    sharpness: float
    concentration_range: tuple[float, float]


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
        optimizer: ``"adam"``, or ``"sgd"`` without momentum.

    Example:
        >>> [round(Schedule(epochs=1, batch_size=1, learning_rate=1.0).rate(p), 2) for p in (0.0, 0.15, 0.3, 0.65)]
        [0.04, 0.5, 1.0, 0.5]
    """

    epochs: int
    batch_size: int
    learning_rate: float
    exponent_rate: float = EXPONENT_RATE
    weight_decay: float = 0.0
    shape: Literal["one_cycle", "constant"] = "one_cycle"
    patience: int | None = None
    optimizer: Literal["adam", "sgd"] = "adam"

    def rate(self, progress: float) -> float:
        """Share of the peak rate at ``progress`` in [0, 1)."""
        return 1.0 if self.shape == "constant" else one_cycle(progress)


@dataclass(frozen=True)
class Policy:
    """The thresholds of a fit, and the rules that use them."""

    #: Rows from which the library's own guides are fitted. 6 gains .40 nats on 9 rows, with 2 % more KL; 24 loses .64
    #: on 16.
    least_rows: int = 12
    #: Rows below which every candidate has five members, each leaving out another fifth: 15 % of 100 to 500 rows are
    #: too few for a choice. 250 loses .20 ± .07 nats; 1,000 gains .20 ± .06, and costs 2 % of KL and 39 % of time. 3
    #: folds lose .44 nats, 10 gain .43 ± .25 in 1.8 times the time.
    few_rows: int = 500
    folds: int = 5
    #: Labels from which nothing but guides is tried, and from which networks train without their background, which
    #: joins them on validation rows: it out-scores untrained networks by so many nats that their gradients vanish. With
    #: 18 labels guides alone gain .03 ± .03 nats on GEMAS, and tie on Yeast, in two thirds of the time.
    many_labels: int = 15
    #: Features above which a network sees guides alone. 150 and 2,500 alter no prediction, in .88 and 1.40 of the time.
    wide: int = 600
    #: Members of a guided model, and the rows up to which it has so many. 1, 2 and 6 members: -.52, -.15 and +.18 nats
    #: in .87, 1.07 and 1.85 of the time. Up to 5,000 or 20,000 rows: within .003 nats, in .81 and 1.34 of the time.
    members: int = 3
    member_rows: int = 10_000
    #: Votes per item below which they are completed, and how many an item has then: single votes do not show how far
    #: items differ. Without: -.21 ± .08 nats. Two votes completed, too: -.06 ± .05. To 16 votes: -.04 ± .04.
    single_votes: float = 1.5
    completed_votes: int = 32
    #: Guides' predictions of votes are lifted to the share of this part of a vote. .5 loses .16 ± .06 nats.
    part_of_vote: float = 0.1
    #: Rows from which nothing is chosen: features alone, each by its own deviation. 35,000: -.006 ± .004 nats in a
    #: third of the time; 200,000: +.003 in four times the time.
    large_rows: int = 100_000
    #: Largest numbers of rows for which a step takes 16, 32, ... of them, and how many it takes beyond the last (of a
    #: million synthetic rows 7.37, 7.45, 7.51 and 7.52 nats with 256, 512, 1,024 and 2,048). Steps of twice as many
    #: rows: -.09 ± .04 nats; of half as many: -.01 ± .04 in twice the time.
    batch_limits: tuple[tuple[int, int], ...] = (
        (16, 200),
        (32, 500),
        (64, 10_000),
        (128, 40_000),
        (256, 85_000),
        (1024, 400_000),
    )
    largest_batch: int = 2048
    #: Of shares, steps of 64 rows become steps of 128 at so many times the rate: as good (.002 ± .009 nats), in two
    #: thirds of the time. At the same rate: -.10 ± .05; at 2.4 times: -.02 ± .02.
    doubled_batch: int = 64
    doubled_rate: float = 1.6
    #: A pass of ``partial_fit`` runs at this share of the learning rate. Neighbours were not run.
    one_pass_rate: float = 0.2

    # Guides.
    #: Guides learn from at most this many rows; the others are new to them. 10,000 and 40,000: within .002 nats.
    guide_rows: int = 20_000
    #: Trees of a forest: the second number below ``few_rows`` and above so many cells. Folds of other guides: below
    #: ``few_rows``, above it, and above so many cells. Half of either: no nats, and 1 % more KL; 100 trees and fewer
    #: folds everywhere: 1 to 2.6 % more KL in .82 of the time. Half as many cells: 2 % more KL.
    trees: tuple[int, int] = (200, 100)
    folds_of_guides: tuple[int, int, int] = (10, 5, 3)
    many_cells: int = 600_000

    # Votes.
    #: How far items are expected to differ beyond their features, before any votes: a and b of
    #: ``usual_concentrations``. Settled on four data sets with one vote per item. An a of log .6 loses .15 ± .05 nats;
    #: a b of 1, .05 ± .04.
    usual_spread: tuple[float, float] = (math.log(1.25), 0.5)
    #: Learning rate in units of the estimator's: .8 loses .024 ± .009 nats. Votes per item at which the exponents' rate
    #: is half-way between that of the rest and that of shares: 3 and 30 make +.013 and -.010 ± .007. Of the most
    #: sharpness, 4 loses .02 ± .01; of the widest start, 1 loses .10 ± .07 without guides.
    vote_rate: float = 0.4
    half_votes: float = 10.0
    most_sharpness: float = 16.0
    widest_start: float = 0.5

    # Groups of rows.
    #: Directions of effects, at most.
    most_directions: int = 8
    #: How much larger than with shuffled rows twice the log likelihood ratio of a direction must be, and how many times
    #: the rows are shuffled: directions are those in which groups differ most, and with many labels some differ by
    #: chance. Of ten made-up tables without effects none then shows one.
    least_ratio: float = 4.0
    shuffles: int = 5
    #: Part of the prediction that is mixed into shares before their logarithm, and where they hold zeros: logarithms of
    #: small shares vary so much that effects would look larger than they are (made-up groups; ECAM).
    pull: tuple[float, float] = (0.1, 0.2)

    # Streams. Neighbours of these three were not run.
    #: Rows per step.
    stream_batch: int = 256
    #: Steps in which the rate of a stream of unknown length grows, and from which on it falls with their square root.
    warm_up: int = 100
    plateau: int = 1000

    # Machines.
    #: A step of fewer multiplications than this (a few milliseconds) is done by one thread. It sets the time alone.
    shared_products: int = 10**9
    #: Members in one stack, at most, on a processor and on a GPU. On a processor, 8 take 13 % more time and 32 take 7 %
    #: less, and more memory.
    stack: tuple[int, int] = (16, 1024)

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
        return [replace(spec, n_members=self.n_members(task, folds), folds=folds) for spec in specs]

    @staticmethod
    def may_choose(task: Task) -> bool:
        """Whether anything may be chosen: a fit that goes on, or passes once, keeps what it has."""
        fresh = task.start is None and not task.one_pass
        return fresh and not task.settings.is_paper and task.settings.backbone is None

    def guides(self, task: Task) -> list[Any]:
        """The learners whose predictions networks may see, unfitted; none if data or settings leave no room."""
        settings, n_rows = task.settings, len(task.rows)
        if settings.guides is None or not self.may_choose(task):
            return []
        if not isinstance(settings.guides, str):
            return list(settings.guides)
        if settings.validation_fraction <= 0 or not self.least_rows <= n_rows < self.large_rows:
            return []
        few = n_rows < self.few_rows or self.has_many_cells(n_rows, int(task.data.features.shape[1]))
        return [SABFGS(), TreesLDL(n_trees=self.trees[few], max_features="sqrt", random_state=task.seed_of(10) % 2**31)]

    def has_many_cells(self, n_rows: int, n_features: int) -> bool:
        """Whether guides take so long that they are made cheaper."""
        return min(n_rows, self.guide_rows) * n_features >= self.many_cells

    def guide_folds(self, n_rows: int, n_features: int) -> int:
        """Folds in which guides predict so many rows."""
        return self.folds_of_guides[0 if n_rows < self.few_rows else 1 + self.has_many_cells(n_rows, n_features)]

    def inputs(self, task: Task) -> Sequence[Inputs]:
        """What networks see, by the settings and the size of the data."""
        settings, data, n_rows = task.settings, task.data, len(task.rows)
        if not self.guides(task):
            return ["features"]
        if not isinstance(settings.guides, str):  # the user's own: they are meant to be used
            return ["guides", "both"] if settings.validation_fraction > 0 else ["both"]
        if data.has_whole_shares:
            if data.n_labels >= self.many_labels:
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
        # with guides, pooled scaling gained at most .02 nats (SBU_3DFE, Yeast) and took a third of the time
        may_compare = settings.validation_fraction > 0 and not task.one_pass and not self.guides(task)
        both = settings.standardize == "auto" and may_compare and len(task.rows) < self.large_rows
        return ["unit", "pooled"] if both else ["unit"]

    def uses_folds(self, task: Task) -> bool:
        """Whether members leave out one fifth of the rows each."""
        few = len(task.rows) < self.few_rows and task.settings.validation_fraction > 0
        return few and task.data.has_whole_shares and task.data.blocks is None and bool(self.guides(task))

    def n_members(self, task: Task, folds: bool) -> int:
        """Networks of each candidate."""
        if task.start is not None:
            return task.start.net.n_members
        if task.settings.n_members != "auto":
            return int(task.settings.n_members)
        if folds:
            return self.folds
        return self.members if self.guides(task) and len(task.rows) <= self.member_rows else 1

    def vote_settings(self, votes: float) -> VoteSettings:
        """The settings for so many votes per item, on average.

        A start uses what the votes identify. One vote per item does not show how far items differ beyond
        their features: neurons then start wide, at draws only a little sharper than the posterior. The more votes, the
        nearer they start to the posterior means, and the higher their concentrations may be.

        Args:
            votes: per item, on average.

        Returns:
            The settings.

        Example:
            >>> POLICY.vote_settings(1).concentration_range, POLICY.vote_settings(100).concentration_range
            ((0.5, 1.0), (1.0, 32.0))
        """
        low, high = CONCENTRATION_RANGE
        return VoteSettings(
            exponent_rate=round(1.0 + (EXPONENT_RATE - 1.0) * (votes - 1.0) / (votes + self.half_votes)),
            sharpness=min(self.most_sharpness, 4.0 * votes**2),
            concentration_range=(min(low, self.widest_start * votes), max(low, min(high, votes**2))),
        )

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
        size, exponent_rate = settings.batch_size, 1.0 if settings.is_paper else EXPONENT_RATE
        rate = self.one_pass_rate if one_pass and not settings.is_paper else 1.0
        if size == "auto":
            rows = n_rows * (1.0 - settings.validation_fraction)
            size = next((size for size, limit in self.batch_limits if rows < limit), self.largest_batch)
            plain = votes is None and settings.backbone is None and not (settings.is_paper or one_pass)
            if size == self.doubled_batch and plain:
                size, rate = 2 * size, self.doubled_rate
        if votes is not None and not settings.is_paper:
            # Votes are a noisier teacher than shares, and a few of them do not identify concentrations.
            rate, exponent_rate = self.vote_rate * rate, votes.exponent_rate
        return Schedule(
            epochs=1 if one_pass else int(settings.epochs),
            batch_size=int(size),
            learning_rate=float(settings.learning_rate) * rate,
            exponent_rate=exponent_rate,
            weight_decay=float(settings.weight_decay),
            shape="constant" if settings.is_paper or one_pass else "one_cycle",
            patience=settings.patience,
            optimizer="sgd" if settings.recipe == "paper-sgd" else "adam",
        )


#: What every fit follows; tests replace it.
POLICY = Policy()
