"""Label distributions with exact zeros, by the law in which labels may be absent.

    log p(S, ℓ_S | x) = log Σ_ij M_ij e^{u_i + u_j} Γ(s_i + s_j) - log Σ_ij M_ij R_ij e^{h̃_i + h̃_j},
    u_i = h̃_i - g_i + Σ_{r in S} (a_ir + w_ir log ℓ'_r),   s_i = Σ_{r in S} (w_ir + ½),   g_i = ½ log K_ii,

with ``K_ij`` and its unit form R as in :mod:`snefy_ldl.distributions.gammas`. Both sums run over the pairs i <= j.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl.distributions.components import log_expm1, moved_log_norm
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.special import LogGamma, log_quadratic_form, log_signed_sum, pair_gram, pair_index, symmetric
from snefy_ldl.special.tolerances import NEGLIGIBLE_TERM_EXPONENT
from snefy_ldl.training.objectives.base import Objective
from snefy_ldl.validation import ZERO_SHARE

if TYPE_CHECKING:
    from typing_extensions import Self

#: Largest norm of a member's gradient.
GRADIENT_LIMIT = 1.0


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _pair_sums(n: int, device: str) -> Tensor:
    """The matrix (n, P) that takes n numbers to ``x_i + x_j``, and numbers of pairs back to their neurons."""
    i, j = pair_index(n, device)
    matrix = torch.zeros(n, len(i), dtype=torch.float64, device=device)
    place = torch.arange(len(i), device=device)
    matrix.index_put_((i, place), matrix.new_ones(()), accumulate=True)
    return matrix.index_put_((j, place), matrix.new_ones(()), accumulate=True)


class _LogGamma(torch.autograd.Function):
    """``log Γ`` with the library's own slope, several times as fast as torch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        both = LogGamma(x)
        ctx.both = both
        return both.value

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        slope: Tensor = ctx.both.slope()
        return slopes[0] * slope


class _GammaForm(torch.autograd.Function):
    """``log Σ_p gram_p e^{u_i + u_j} Γ(s_i + s_j)`` over the pairs p = (i, j): (K, B).

    Args of forward: u (K, B, n); s (K, Q, n), one row a support; place (K, B), the support of each row, or None where
    Q = B; gram (K, P). The slopes are written out: of a pair's term, one sum for u, one for s.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, s: Tensor, place: Tensor | None, gram: Tensor) -> Tensor:
        sums = _pair_sums(u.shape[-1], str(u.device))
        both = LogGamma(s @ sums)  # (K, Q, P)
        terms = u @ sums
        terms += both.value if place is None else _rows(both.value, place)
        top = terms.amax(-1, keepdim=True)
        # what is added up is of the network's dtype: float32 halves the time of a step
        lowest = NEGLIGIBLE_TERM_EXPONENT if gram.dtype == torch.float32 else -700.0  # else slow denormal numbers
        terms = terms.sub_(top).clamp_min_(lowest).to(gram.dtype).exp_()  # (K, B, P)
        total = (terms @ gram[..., None]).squeeze(-1).clamp_min(torch.finfo(terms.dtype).tiny)
        ctx.save_for_backward(terms, total, gram, place)
        ctx.both, ctx.sums, ctx.n_supports = both, sums, s.shape[1]
        answer: Tensor = total.double().log() + top.squeeze(-1)
        return answer

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None, Tensor]:
        terms, total, gram, place = ctx.saved_tensors
        share = terms * (slopes[0] / total).to(terms.dtype)[..., None]  # (K, B, P)
        gram_slope = share.sum(1)
        share *= gram[:, None]
        back, psi = ctx.sums.T.to(share.dtype), ctx.both.slope().to(share.dtype)
        if place is None:
            shape_slope = (share * psi) @ back
        else:
            pooled = share.new_zeros(share.shape[0], ctx.n_supports, share.shape[2])
            pooled.scatter_add_(1, place[..., None].expand_as(share), share)
            shape_slope = (pooled * psi) @ back
        return (share @ back).double(), shape_slope.double(), None, gram_slope


def _rows(table: Tensor, place: Tensor) -> Tensor:
    """Rows of each member's table: (K, Q, A), (K, B) -> (K, B, A)."""
    return table[torch.arange(len(table), device=table.device)[:, None], place]


def presence_kernel(net: SnefyNet, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``log R_ij = log K_ij - g_i - g_j`` over the pairs (K, 1, P), and ``g`` (K, 1, n), float64.

    Args:
        net: with presence.
        shift: of the log odds of some rows (K, B, L), which then have a kernel each; None for none.

    Returns:
        Both, through which gradients flow; with a shift (K, B, P) and (K, B, n).
    """
    exponents, presence = net.exponents.double(), net.presence
    n = exponents.shape[1]
    i, j = pair_index(n, exponents.device)
    alpha = 1.0 + exponents.index_select(1, i) + exponents.index_select(1, j)
    log_odds = presence.index_select(1, i) + presence.index_select(1, j) + _LogGamma.apply(alpha)  # type: ignore[no-untyped-call]
    if shift is None:
        log_norm = log_expm1(softplus(log_odds).sum(-1))[:, None]
    else:
        log_norm = moved_log_norm(log_odds, shift)
    g = 0.5 * log_norm[..., i == j]
    return log_norm - g.index_select(-1, i) - g.index_select(-1, j), g


class ZeroObjective(Objective):
    """Label distributions with exact zeros.

    Args:
        tables: label distributions, one table (N, L) a group of members; shares below 1e-9 are zeros.
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
        there = D[0] > ZERO_SHARE
        if log_centre is not None and len(log_centre) > 1:  # one table a member
            D, group = D[group], torch.arange(len(group), device=group.device)
        logs = torch.where(there, D, 1.0).log().masked_fill(~there, -torch.inf)
        moved = logs if log_centre is None else logs - log_centre
        plain = torch.log_softmax(moved, -1)
        self.there, self.group, self.shift = there.double(), group, shift
        self.logs = torch.where(there, plain, 0.0)
        self.jacobian = torch.where(there, self.logs - torch.where(there, logs, 0.0), 0.0).sum(-1)  # (G, N)
        self.supports, self.which = torch.unique(there, dim=0, return_inverse=True)
        self.supports = self.supports.double()
        if net.has_background:
            self.background = self._background(net)  # (K, N)

    def _background(self, net: SnefyNet) -> Tensor:
        """Log probability of every row under the one component that each member's background is."""
        odds, alpha = net.background_odds[:, None], net.background[:, None]  # (K, 1, L)
        if self.shift is not None:
            odds = odds + self.shift
        log_norm = log_expm1(softplus(odds).sum(-1))
        powers = odds - torch.lgamma(alpha) + (alpha - 1.0) * self.logs[self.group]
        shape = (alpha * self.there).sum(-1)
        log_p: Tensor = (powers * self.there).sum(-1) + torch.lgamma(shape) - log_norm
        return log_p + self.jacobian[self.group]

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log density (K, B); see :meth:`Objective.log_prob`."""
        exponents, gram = net.exponents.double(), pair_gram(net.readout)
        shift = None if self.shift is None else self.shift[index]  # (K, B, L)
        log_kernel, g = presence_kernel(net, shift)
        scale = net.output(x).double()
        there, logs = self.there[index], self.logs[self.group[:, None], index]  # (K, B, L)
        u = scale - g + there @ net.presence.transpose(1, 2) + logs @ exponents.transpose(1, 2)
        if shift is not None:
            u = u + 0.5 * (there * shift).sum(-1, keepdim=True)
        supports, place = self._supports(index)
        halves = supports @ (exponents + 0.5).transpose(1, 2)  # (K, Q, n)
        value: Tensor = _GammaForm.apply(u, halves, place, gram)  # type: ignore[no-untyped-call]
        n = exponents.shape[1]
        i, j = pair_index(n, gram.device)
        if shift is None:
            matrix = symmetric(gram * log_kernel[:, 0].exp() * torch.where(i == j, 1.0, 0.5), n)
            log_z = log_quadratic_form(matrix, scale)
        else:
            terms = scale.index_select(-1, i) + scale.index_select(-1, j) + log_kernel
            log_z = log_signed_sum(terms, gram.double()[:, None])
        log_p = value - log_z + self.jacobian[self.group[:, None], index]
        return net.mix(log_p, self.background_of(index))

    def _supports(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Supports (K or 1, Q, L) of some rows (K, B), and which each row has; None where every row brings its own."""
        # A captured graph on a GPU may not ask which supports a batch holds.
        if index.device.type == "cpu":
            used, place = torch.unique(self.which[index], return_inverse=True)
            if 2 * len(used) <= index.shape[1]:
                return self.supports[used][None], place
        return self.there[index], None

    def select(self, members: list[int]) -> Self:
        """The same labels, for some of the members."""
        other = super().select(members)
        other.group = self.group[members]
        return other
