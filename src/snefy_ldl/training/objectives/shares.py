"""Label distributions, by the log density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.kernels.density import squared_log_density
from snefy_ldl.training.kernels.step import WrittenOutStep
from snefy_ldl.training.objectives.base import Objective

if TYPE_CHECKING:
    from typing_extensions import Self


def log_density(net: SnefyNet, x: Any, logs: Tensor, background: Tensor | None = None) -> Tensor:
    """Log density of each member at its labels.

    Time and memory O(B n² + n² L + B n m) a member; the kernel table is float64, the rest the network's dtype.

    Args:
        net: K members.
        x: what the backbone takes.
        logs: log shares (K, B, L), float64.
        background: log density of the background Dirichlet at those labels (K, B), or None without one.

    Returns:
        (K, B).
    """
    exponents = net.exponents.double()
    odds = None if background is None else net.log_odds
    return squared_log_density(net.output(x), exponents, net.readout, logs, background, odds, net.balanced)


class Shares(Objective):
    """Label distributions without gaps.

    Args:
        logs: log shares (G, N, L), float64; G is 1 unless zero policies differ between members.
        net: gives the background's density.
        group: which of the G tables each member uses (K,).
        jacobian: added to the log density of every row (G, N): labels divided by a centre are another measure. None
            where no table has a centre.
    """

    def __init__(self, logs: Tensor, net: SnefyNet, group: Tensor, jacobian: Tensor | None = None) -> None:
        self.logs, self.group, self.jacobian = logs, group, jacobian
        if net.has_background:
            tables = logs if len(logs) == 1 else logs[group]
            self.background = net.background_log_prob(tables).to(net.readout.dtype)  # (K, N)

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log shares (K, B, L) and the background's log density (K, B) of the rows index (K, B)."""
        background = self.background_of(index)
        if len(self.logs) == 1:
            return self.logs[0].index_select(0, index.flatten()).view(*index.shape, -1), background
        return self.logs[self.group[:, None], index], background

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B); see :meth:`Objective.log_prob`."""
        return self.in_one_measure(log_density(net, x, *self.rows(index)), index)

    def in_one_measure(self, log_p: Tensor, index: Tensor) -> Tensor:
        """Log densities (K, B) of the rows index (K, B) with respect to the shares as they were given."""
        if self.jacobian is None:
            return log_p
        return log_p + self.jacobian[self.group[:, None], index].to(log_p.dtype)

    def written_out_step(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> WrittenOutStep:
        """See :meth:`Objective.written_out_step`."""
        return WrittenOutStep(net, X, self, batch_size)

    def select(self, members: list[int]) -> Self:
        """The same labels, for some of the members."""
        other = super().select(members)
        other.group = self.group[members]
        return other
