"""Label distributions with exact zeros, by the law in which labels may be absent.

The density is :mod:`snefy_ldl.training.kernels.presence`'s; ``K_ij`` and its unit form R are as in
:mod:`snefy_ldl.distributions.gammas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl.distributions.components import log_expm1
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.kernels.presence import DENSE_SUPPORTS, ZeroRows, zero_log_density
from snefy_ldl.training.kernels.step import WrittenOutZeroStep
from snefy_ldl.training.objectives.base import Objective

if TYPE_CHECKING:
    from typing_extensions import Self

#: Largest norm of a member's gradient.
GRADIENT_LIMIT = 1.0


class ZeroObjective(Objective):
    """Label distributions with exact zeros.

    Args:
        tables: label distributions, one table (N, L) per group of members.
        net: with presence; gives the background, which does not change in training.
        group: which table each member uses (K,).
        log_centre: ``log c`` of each member (K, 1, L), or of each row (1, N, L); None for zeros.
        shift: of the log odds of presence of each row (N, L), or None for none.

    Example:
        >>> from snefy_ldl.networks import SnefyNet, StackedMLP
        >>> net = SnefyNet(StackedMLP(1, 3, (8,)), n_labels=2, n_neurons=6, n_readouts=3, presence=True)
        >>> rows = torch.tensor([[1.0, 0.0], [0.4, 0.6]], dtype=torch.float64)
        >>> objective = ZeroObjective([rows], net, torch.zeros(1, dtype=torch.long))
        >>> objective.log_prob(net, torch.zeros(1, 2, 3), torch.tensor([[0, 1]])).shape
        torch.Size([1, 2])
    """

    gradient_limit = GRADIENT_LIMIT

    def __init__(
        self,
        tables: list[Tensor],
        net: SnefyNet,
        group: Tensor,
        log_centre: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> None:
        D = torch.stack([table.double() for table in tables])  # (G, N, L)
        there = D[0] > 0.0
        if log_centre is not None and len(log_centre) > 1:  # one table a member
            D, group = D[group], torch.arange(len(group), device=group.device)
        logs = torch.where(there, D, 1.0).log().masked_fill(~there, -torch.inf)
        moved = logs if log_centre is None else logs - log_centre
        plain = torch.log_softmax(moved, -1)
        self.group, self.shift = group, shift
        logs_there = torch.where(there, plain, 0.0)
        self.known = torch.cat([there.double().expand_as(logs_there), logs_there], -1)  # (G, N, 2 L)
        self.offset = torch.where(there, logs_there - logs, 0.0).sum(-1)  # (G, N): labels divided by a centre
        if shift is not None:
            self.offset = self.offset + torch.where(there, shift, 0.0).sum(-1)  # a shift lifts all neurons alike
        supports, which = torch.unique(there, dim=0, return_inverse=True)
        few = len(supports) <= DENSE_SUPPORTS
        # single labels first, in their order, as the kernel's table has them
        first = torch.where(supports.sum(1) == 1, supports.int().argmax(1), supports.shape[1])
        order = torch.argsort(first, stable=True)
        self.supports: Tensor | None = supports[order].double() if few else None
        self.which: Tensor | None = torch.argsort(order)[which] if few else None
        if net.has_background:
            self.background = self._background(net)  # (K, N)

    def _background(self, net: SnefyNet) -> Tensor:
        """Log probability of every row under the one component that each member's background is."""
        odds, alpha = net.background_odds[:, None], net.background[:, None]  # (K, 1, L)
        moved = odds if self.shift is None else odds + self.shift
        log_norm = log_expm1(softplus(moved).sum(-1))
        n_labels = alpha.shape[-1]
        there, logs = self.known[self.group].split(n_labels, -1)
        powers = odds - torch.lgamma(alpha) + (alpha - 1.0) * logs
        shape = (alpha * there).sum(-1)
        log_p: Tensor = (powers * there).sum(-1) + torch.lgamma(shape) - log_norm
        return log_p + self.offset[self.group]

    def rows(self, net: SnefyNet, index: Tensor) -> ZeroRows:
        """Labels of the rows index (K, B), as the kernel takes them."""
        if len(self.known) == 1:
            flat = index.flatten()
            known = self.known[0].index_select(0, flat).view(*index.shape, -1)
            offset = self.offset[0].index_select(0, flat).view(index.shape)
        else:
            known, offset = self.known[self.group[:, None], index], self.offset[self.group[:, None], index]
        place = None if self.which is None else self.which[index]
        shift = None if self.shift is None else self.shift[index]
        background = self.background_of(index)
        return ZeroRows(known, offset, place, background, None if background is None else net.log_odds, shift)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B), float64; see :meth:`Objective.log_prob`."""
        rows = self.rows(net, index)
        return zero_log_density(
            net.output(x), net.exponents.double(), net.raw_presence, net.readout, rows, self.supports
        )

    def written_out_step(self, net: SnefyNet, X: ScaledFeatures, batch_size: int) -> WrittenOutZeroStep:
        """See :meth:`Objective.written_out_step`."""
        return WrittenOutZeroStep(net, X, self, batch_size, self.supports, self.shift is not None)

    def select(self, members: list[int]) -> Self:
        """The same labels, for some of the members."""
        other = super().select(members)
        other.group = self.group[members]
        return other
