"""The contract of an objective: what members must explain, and how likely they find it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures

if TYPE_CHECKING:
    from typing_extensions import Self

#: A written-out step: rows (K, B) and slopes (K, B) in, log likelihoods (K, B) out, gradients left in ``grad``.
WrittenOut = Callable[[Tensor, Tensor], Tensor]


class Objective(ABC):
    """Labels of all rows, in the form their likelihood needs; K members may each see other rows.

    A new kind of label is one subclass with :meth:`log_prob`; parameters that it needs beside the network's usual ones
    belong to the net. Whatever has a first dimension K must follow :meth:`select`.

    Attributes:
        background: log likelihood of every row under each member's background (K, N), or None without one. The
            background does not change in training, so this is computed once.
        left_out: part of every row's log likelihood (N,) that no network changes and :meth:`log_prob` leaves out; None
            for nothing. What people are told of a fit has it.
        gradient_limit: largest norm of a member's gradient, to which longer ones are cut; None for no limit.
    """

    background: Tensor | None = None
    left_out: Tensor | None = None
    gradient_limit: float | None = None

    @abstractmethod
    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log likelihood of some rows, background included.

        Args:
            net: K members.
            x: features of those rows, as the backbone takes them.
            index: row numbers (K, B).

        Returns:
            (K, B), through which gradients flow.
        """

    def written_out_step(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> WrittenOut | None:
        """A step without autograd for nets with the library's own backbone, or None where there is none.

        Args:
            net: what to train.
            X: features, scaled for every member.
            batch_size: rows a step.

        Returns:
            A function of rows and slopes, or None.
        """
        return None

    def without_background(self) -> Self:
        """The same labels, for the networks alone."""
        other = copy.copy(self)
        other.background = None
        return other

    def select(self, members: list[int]) -> Self:
        """The same labels, for some of the members."""
        other = copy.copy(self)
        other.background = None if self.background is None else self.background[members]
        return other

    def mean_left_out(self, index: Tensor) -> Tensor | None:
        """Mean of :attr:`left_out` over the rows index (K, B) of each member (K,), on the CPU; None for nothing."""
        return None if self.left_out is None else self.left_out[index].mean(1).cpu()

    def background_of(self, index: Tensor) -> Tensor | None:
        """The background's log likelihood (K, B) of the rows index (K, B), or None."""
        return None if self.background is None else self.background.gather(1, index)
