"""What training leaves behind: the course of a run, and the whole fitted state of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from snefy_ldl._internal.rows import move_rows, take_rows
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.datasets.columns import Encoder
from snefy_ldl.datasets.objects import Objects
from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import Scaling
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.effects import GroupEffects
from snefy_ldl.training.guides import Guides
from snefy_ldl.training.optimiser import StackedAdamW
from snefy_ldl.votes.confusion import Annotators

#: Standard errors, likelihood and mean added up, by which a challenger must lead: a later candidate costs more to ask.
LEAST_LEAD = 0.5

#: What a network sees.
Inputs = Literal["features", "guides", "both"]


@dataclass
class Run:
    """The course of a fit: the best validation loss of each member, its epoch, and the history.

    Args:
        best_loss: smallest validation loss of each member (K); infinite where there was none.
        best_epoch: its epoch (K); -1 where there was none.
        history: one record per epoch: ``epoch``, ``loss``, ``seconds`` and ``validation_loss``, means over the members.
        next_epoch: epochs done.
        repairs: how often an epoch was undone.
        seconds: spent in epochs.
        losses: training loss of each member in each epoch (epochs, K); None where it no longer trained.
        validation_losses: the same of the validation loss; empty without validation rows.
    """

    best_loss: list[float]
    best_epoch: list[int]
    history: list[dict[str, float]] = field(default_factory=list)
    next_epoch: int = 0
    repairs: int = 0
    seconds: float = 0.0
    losses: list[list[float | None]] = field(default_factory=list)
    validation_losses: list[list[float | None]] = field(default_factory=list)

    def of(self, members: list[int]) -> Run:
        """The part that concerns some of the members; its history is theirs alone."""
        best = [self.best_loss[k] for k in members], [self.best_epoch[k] for k in members]
        parts = [[[row[k] for k in members] for row in rows] for rows in (self.losses, self.validation_losses)]
        history = [dict(record) for record in self.history]
        for name, rows in zip(("loss", "validation_loss"), parts):
            for record, row in zip(history, rows):
                known = [value for value in row if value is not None]
                if known:
                    record[name] = sum(known) / len(known)
        return Run(*best, history, self.next_epoch, self.repairs, self.seconds, *parts)

    def go_on_with(self, other: Run, members: list[int]) -> None:
        """Take over what a run of some of the members did since it left this one."""
        for name in ("history", "next_epoch", "repairs", "seconds"):
            setattr(self, name, getattr(other, name))
        for place, k in enumerate(members):
            self.best_loss[k], self.best_epoch[k] = other.best_loss[place], other.best_epoch[place]
        for mine, theirs in ((self.losses, other.losses), (self.validation_losses, other.validation_losses)):
            for row in theirs[len(mine) :]:
                whole: list[float | None] = [None] * len(self.best_loss)
                for place, k in enumerate(members):
                    whole[k] = row[place]
                mine.append(whole)

    def with_left_out(self, left_out: list[float]) -> Run:
        """Add what the losses leave out of the log likelihood, one figure per member."""
        losses = [loss - part for loss, part in zip(self.best_loss, left_out)]
        return replace(self, best_loss=losses)


@dataclass(frozen=True)
class Validation:
    """What members of one candidate make of their validation rows, each its own.

    Args:
        log_prob: log densities, all members' rows one after the other (B,).
        divergence: KL divergence of the mean prediction from each row's label distribution (B,).
        rows: which rows these are (B,).
    """

    log_prob: Tensor
    divergence: Tensor
    rows: Tensor

    def by_row(self) -> Array:
        """Log density of every row of the data, NaN where a network learned from it; ends with the last held one."""
        rows, values = self.rows.numpy(), self.log_prob.double().numpy()
        total, times = np.bincount(rows, values), np.bincount(rows)
        return np.where(times > 0, total / np.maximum(times, 1), np.nan)

    @property
    def log_likelihood(self) -> float:
        """Mean of the log densities."""
        return float(self.log_prob.double().mean())

    def beats(self, other: Validation, allowance: float = 0.0) -> bool:
        """Whether this is the better candidate, by likelihood and by mean together.

        Both gains count in units of the standard error of the paired differences, and neither may be a clear loss: a
        density can win on spiky labels with features it hardly sees, and its mean must not pay for that.

        Args:
            other: of the candidate to beat, on the same rows.
            allowance: standard errors given to this one, where it will do better on new rows than on these.

        Returns:
            Whether it does.
        """
        gains = (lead(self.log_prob, other.log_prob), lead(-self.divergence, -other.divergence))
        return bool(sum(gains) + allowance > LEAST_LEAD and min(gains) + 0.5 * allowance > -1.0)


def choose(candidates: Sequence[Validation | None]) -> int:
    """The candidate with the best mean among those whose likelihood is as good as the best, by one standard error.

    Args:
        candidates: of the same rows, at least one; None for one without validation rows.

    Returns:
        Its number.

    Example:
        >>> likely, close = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([2.0, 2.0, 1.5])
        >>> choose([Validation(likely, 0.2 * torch.ones(3)), Validation(close, 0.1 * torch.ones(3))])
        1
    """
    known = {number: one for number, one in enumerate(candidates) if one is not None}
    if not known:
        return 0
    best = max(known.values(), key=lambda one: one.log_likelihood)
    close = {number: one for number, one in known.items() if lead(best.log_prob, one.log_prob) <= 1.0}
    return min(close, key=lambda number: float(close[number].divergence.double().mean()))


def lead(challenger: Tensor, incumbent: Tensor) -> float:
    """By how many standard errors the challenger's paired scores lead; zero for fewer than two rows.

    Args:
        challenger: scores of any shape, larger is better.
        incumbent: those of the same rows.

    Returns:
        The mean difference divided by its standard error.

    Example:
        >>> import torch
        >>> round(lead(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)), 3)
        3.464
    """
    gain = (challenger - incumbent).double().flatten()
    if len(gain) < 2:
        return 0.0
    error = float(gain.std()) / len(gain) ** 0.5
    return float(gain.mean() / max(error, SMALLEST_POSITIVE))


@dataclass(frozen=True)
class FittedState:
    """A fitted model without its settings: training returns it, an estimator adopts it, files restore it.

    Args:
        net: the trained members.
        scaling: how features are scaled.
        history: one record per epoch; see :class:`Run`.
        summary: what the fit did, as JSON can hold it.
        zero_policy: what happens to shares of zero.
        label_names: of the L labels.
        labels_were_named: whether those came with the labels, so that predictions carry them.
        n_features: d; None with a custom backbone.
        feature_names: of the d features, or None where they had none.
        optimizer: where ``partial_fit`` goes on.
        inputs: what the network sees: the features, the guides' predictions, or both.
        guides: the fitted guides, or None where the network does not see any.
        columns: what makes features of the columns of a table, or None.
        validation: how the kept members did on their validation rows; None where there were none.
        candidates: one record for each candidate that was tried; see :mod:`snefy_ldl.training.race`.
        seen: fingerprints of the training rows; None where features are not numbers, or an old file has none.
        self_check: what :func:`snefy_ldl.training.selfcheck.check_law` found; None in an old file.
        effects: what is known of the groups of rows; None where rows came without groups, or groups do not matter.
        annotators: what a fit to single votes learnt about who cast them; None for other fits.
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
    validation: Validation | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)
    seen: SeenRows | None = None
    self_check: dict[str, Any] | None = None
    effects: GroupEffects | None = None
    annotators: Annotators | None = None

    def guided(self, data: TrainingData) -> TrainingData:
        """Rows as this state's network sees them: through its guides, and with their groups, where it has some."""
        if self.effects is not None:
            columns = self.effects.columns(data.groups, data.n_rows)
            return data.with_features(self.effects.inputs(self.guides, self.inputs, data.features, columns))
        if self.guides is None:
            return data
        return data.with_features(self.guides.inputs(data.features, self.inputs))

    @classmethod
    def of_net(cls, net: SnefyNet, policy: ZeroPolicy, label_names: list[str], named: bool) -> FittedState:
        """The state of a net with a custom backbone that was trained elsewhere.

        Args:
            net: the members.
            policy: what happens to shares of zero.
            label_names: of the L labels.
            named: whether those were given, and not made up.

        Returns:
            The state, without a history.
        """
        run, body = Run([math.inf] * net.n_members, [-1] * net.n_members), net.backbone
        return cls(
            net=net,
            scaling="none",
            history=[],
            summary={"reads": body.reads, "row": body.row, **summarise(net, run, 0, 0, "none")},
            zero_policy=policy,
            label_names=label_names,
            labels_were_named=named,
        )

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.net.raw_exponents.shape[2])

    @property
    def n_inputs(self) -> int | None:
        """Numbers that the columns of a table become, d'; None with a custom backbone."""
        return self.n_features if self.columns is None else self.columns.n_out


def summarise(net: SnefyNet, run: Run, rows: int, validation_rows: int, scaling: str) -> dict[str, Any]:
    """What a fit did, as JSON can hold it.

    Args:
        net: as it ended.
        run: its course.
        rows: it learnt from, per member.
        validation_rows: held back from it, to pick the best epoch and candidate.
        scaling: of its features.

    Returns:
        The estimator's ``training_``.
    """
    return {
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
        net: The fitted network.
        guides: The fitted guides, or None.
        inputs: What the network sees.
        features: Features of all rows, encoded.
        rows: A slice, or row numbers.
        effects: What is known of groups of rows, or None.
        columns: What the network sees of the groups of all rows, as :meth:`GroupEffects.columns` makes it; None where
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
