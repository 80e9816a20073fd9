"""What training leaves behind: the course of a run, and the whole fitted state of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import Scaling
from snefy_ldl.training.optimiser import StackedAdamW
from snefy_ldl.validation import ZeroPolicy


@dataclass
class Run:
    """The course of a fit: the best validation loss of each member, its epoch, and the history.

    Args:
        best_loss: smallest validation loss of each member (K); infinite where there was none.
        best_epoch: its epoch (K); -1 where there was none.
        history: one record an epoch: ``epoch``, ``loss``, ``seconds`` and ``validation_loss``, means over the members.
        next_epoch: epochs done.
        repairs: how often an epoch was undone.
        seconds: spent in epochs.
    """

    best_loss: list[float]
    best_epoch: list[int]
    history: list[dict[str, float]] = field(default_factory=list)
    next_epoch: int = 0
    repairs: int = 0
    seconds: float = 0.0

    def of(self, members: list[int]) -> Run:
        """The part that concerns some of the members."""
        best = [self.best_loss[k] for k in members], [self.best_epoch[k] for k in members]
        return Run(*best, self.history, self.next_epoch, self.repairs, self.seconds)


@dataclass(frozen=True)
class FittedState:
    """A fitted model without its settings: training returns it, an estimator adopts it, files restore it.

    Args:
        net: the trained members.
        scaling: how features are scaled.
        history: one record an epoch; see :class:`Run`.
        summary: what the fit did, as JSON can hold it.
        zero_policy: what happens to shares of zero.
        label_names: of the L labels.
        labels_were_named: whether those came with the labels, so that predictions carry them.
        n_features: d; None with a custom backbone.
        feature_names: of the d features, or None where they had none.
        optimizer: where ``partial_fit`` goes on.
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

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.net.raw_exponents.shape[2])
