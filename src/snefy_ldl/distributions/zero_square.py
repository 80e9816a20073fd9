"""The square behind a law with zeros: its parameters and rows, the weights of its components, its density and draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Size, Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import block_elements
from snefy_ldl.distributions.law import Rows, SimplexLaw
from snefy_ldl.distributions.sampling import RandomStream, draw
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.distributions.zero_moments import PresenceComponents, pair_components
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_share, log_signed_sum, pair_gram, pair_index
from snefy_ldl.validation import ZERO_SHARE

if TYPE_CHECKING:
    from typing_extensions import Self


class ZeroSquare(SimplexLaw):
    """What of :class:`~snefy_ldl.distributions.zeros.ZeroSnefy` is not an expectation; the same arguments."""

    def __init__(
        self,
        exponents: Tensor,
        presence: Tensor,
        readout: Tensor,
        log_scale: Tensor,
        centre: Tensor | None = None,
        log_members: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if exponents.dim() == 2:
            exponents, presence, readout = exponents[None], presence[None], readout[None]
            log_scale = log_scale[..., None, :]
        n_members, n, n_labels = _check_shapes(exponents, presence, readout, log_scale)
        if centre is None:
            centre = exponents.new_ones(n_labels)
        if centre.shape != (n_labels,) or not bool((torch.isfinite(centre) & (centre > 0.0)).all()):
            raise InputError(f"centre must hold {n_labels} positive numbers; got {centre.tolist()}.")
        self.exponents, self.presence, self.readout = exponents, presence, readout
        self.centre = centre.double().to(exponents.device) / centre.double().sum().to(exponents.device)
        batch_shape = log_scale.shape[:-2]
        self.flat_log_scale = log_scale.reshape(-1, n_members, n)  # (N, K, n)
        if log_members is None:
            log_members = log_scale.new_zeros(n_members)
        log_members = torch.log_softmax(log_members.double(), -1)
        self.log_members = log_members.expand(*batch_shape, n_members).reshape(-1, n_members)  # (N, K)
        self.components = pair_components(exponents, presence, self.centre)
        log_norm = self.components.log_norm.reshape(n_members, -1)  # (K, P)
        i, j = pair_index(n, exponents.device)
        self.log_root_norm = 0.5 * log_norm[:, i == j]  # g, (K, n)
        self.log_kernel = log_norm - self.log_root_norm[:, i] - self.log_root_norm[:, j]
        self.gram = pair_gram(readout.double())  # (K, P), pairs i < j counted twice
        self.dtype = log_scale.dtype
        super().__init__(batch_shape, torch.Size([n_labels]), validate_args=validate_args)

    # -- rows and components -----------------------------------------------------------------------------------------

    @property
    def n_members(self) -> int:
        """K, how many laws are averaged."""
        return int(self.exponents.shape[0])

    @property
    def n_components(self) -> int:
        """All pairs of neurons of all members."""
        return int(self.gram.numel())

    @property
    def concentration(self) -> Tensor:
        """``α`` of every component (P, L), in triangle order, one member after the other."""
        return self.components.alpha

    @property
    def device(self) -> torch.device:
        """Where the law's numbers live."""
        return self.flat_log_scale.device

    @property
    def log_scale(self) -> Tensor:
        """``h̃`` (*batch, K, n)."""
        return self.flat_log_scale.reshape(*self.batch_shape, self.n_members, -1)

    def _with(self, log_scale: Tensor, log_members: Tensor) -> Self:
        parts = (self.exponents, self.presence, self.readout, log_scale, self.centre, log_members)
        return type(self)(*parts, validate_args=self._validate_args).named(self.label_names)

    def __getitem__(self, rows: Rows | Any) -> Self:
        """The law of some rows of the flattened batch: a slice, row numbers or a mask -> batch (b,)."""
        index = self._row_index(rows)
        return self._with(self.flat_log_scale[index], self.log_members[index])

    def joined(self, laws: Sequence[Self]) -> Self:
        """One law of the rows of several that share their components: batch (N,)."""
        return self._with(torch.cat([law.flat_log_scale for law in laws]), torch.cat([law.log_members for law in laws]))

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> Self:
        """The same law with its batch broadcast to a larger shape."""
        shape = torch.Size(batch_shape)
        log_members = self.log_members.reshape(*self.batch_shape, -1).expand(*shape, -1)
        return self._with(self.log_scale.expand(*shape, *self.log_scale.shape[-2:]), log_members)

    def members(self) -> list[SimplexLaw]:
        """The K laws that are averaged, each with this batch."""
        if self.n_members == 1:
            return [self]
        return [
            type(self)(
                self.exponents[k], self.presence[k], self.readout[k], self.log_scale[..., k, :], self.centre,
                validate_args=False,
            )
            for k in range(self.n_members)
        ]  # fmt: skip

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows of the flattened batch, float64 (b, P): signed, rows sum to one."""
        i, j = pair_index(self.exponents.shape[1], self.device)
        scale = self.flat_log_scale[rows].double()
        e = (scale - scale.amax(-1, keepdim=True)).exp()  # (b, K, n)
        terms = e[..., i] * e[..., j] * (self.gram * self.log_kernel.exp())
        member = self.log_members[rows].exp()[..., None] / terms.sum(-1, keepdim=True)
        return (terms * member).flatten(1)

    def offset_rows(self, rows: Rows) -> Tensor | None:
        """None: there are no votes in this family."""
        return None

    @property
    def sum_abs_weights(self) -> Tensor:
        """``Σ_p |c_p|`` (*batch,), the condition number of every signed sum: 1 is a plain mixture."""
        return self.shaped(self.collect(lambda rows: self.weights(rows).abs().sum(-1)))

    # -- density -----------------------------------------------------------------------------------------------------

    def plain_logs(self, logs: Tensor) -> Tensor:
        """``log ℓ' = log C(ℓ / c)`` over the support: logs (..., L), -inf for absent labels, as in what comes back."""
        return torch.log_softmax(logs - self.centre.log(), -1)

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """log p of ``ℓ'``, and of its positive part if asked: logs (S, b, L), -inf for absent labels -> (S, b)."""
        grams = [self.gram, self.gram.clamp_min(0.0)] if envelope else [self.gram]
        scale = self.flat_log_scale[rows].double() - self.log_root_norm  # h, (b, K, n)
        base = self.log_members[rows] - self.log_normaliser(rows)  # (b, K)
        step = max(1, block_elements(self.device.type) // (2 * self.n_components * max(1, logs.shape[1])))
        parts = []
        for points in logs.split(step):
            squares = self.log_squares(points.flatten(0, 1), scale.repeat(len(points), 1, 1), grams)
            parts.append([
                torch.logsumexp(square + base.repeat(len(points), 1), -1).unflatten(0, points.shape[:2])
                for square in squares
            ])  # fmt: skip
        return [torch.cat(answers) for answers in zip(*parts)]

    def log_normaliser(self, rows: Rows) -> Tensor:
        """``log Z`` of each member (b, K)."""
        i, j = pair_index(self.exponents.shape[1], self.device)
        scale = self.flat_log_scale[rows].double()
        return log_signed_sum(scale[..., i] + scale[..., j] + self.log_kernel, self.gram)

    def log_squares(self, logs: Tensor, scale: Tensor, grams: list[Tensor]) -> list[Tensor]:
        """``log Σ_ij M_ij e^{u_i + u_j} Γ(Σ_S α_ij)`` at points (T, L) with scales h (T, K, n): each (T, K)."""
        there = ~torch.isneginf(logs)
        supports, which = torch.unique(there, dim=0, return_inverse=True)
        exponents, presence = self.exponents.double(), self.presence.double()
        known = torch.where(there, logs, 0.0)
        u = (
            scale
            + torch.einsum("tl,knl->tkn", known, exponents)
            + torch.einsum("tl,knl->tkn", there.double(), presence)
        )
        i, j = pair_index(exponents.shape[1], self.device)
        half = torch.einsum("ql,knl->qkn", supports.double(), exponents + 0.5)  # (Q, K, n)
        log_gamma = torch.lgamma(half[..., i] + half[..., j])  # (Q, K, P)
        terms = u[..., i] + u[..., j] + log_gamma[which]
        return [log_signed_sum(terms, gram) for gram in grams]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch, L), rows of which may hold exact zeros; see the module for the measure."""
        value = self.points(value)
        shape = common_shape(value.shape[:-1], self.batch_shape)
        if not self._ends(shape):
            return self.expand(shape).log_prob(value)
        logs = support_logs(log_share(value.double()))
        logs = logs.expand(*shape, self.n_labels).reshape(-1, len(self), self.n_labels)  # (S, N, L)
        plain = self.plain_logs(logs)
        columns = [self.log_densities(rows, plain[:, rows])[0] for rows in self.chunks()]
        return (torch.cat(columns, 1) + jacobian(plain, logs)).reshape(shape).to(self.dtype)

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: log shares (S, L) -> (S, b)."""
        logs = support_logs(logs)
        plain = self.plain_logs(logs)
        n_rows = len(range(len(self))[rows])
        return self.log_densities(rows, plain[:, None].expand(-1, n_rows, -1))[0] + jacobian(plain, logs)[:, None]

    # -- draws -------------------------------------------------------------------------------------------------------

    def propose(self, component: Tensor, source: RandomStream) -> Tensor:
        """One draw of ``log ℓ'`` from each of these components (...): (..., L), -inf for absent labels."""
        return propose_presence(self.components, component, source)

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws a row (n, N, L); -inf where a share is exactly zero."""
        return torch.log_softmax(draw(self, n, generator) + self.centre.log(), -1)

    def half_gram(self) -> Tensor:
        """``M`` over the pairs i <= j, each counted once (K, P)."""
        i, j = pair_index(self.exponents.shape[1], self.device)
        return self.gram * torch.where(i == j, 1.0, 0.5)


def propose_presence(parts: PresenceComponents, component: Tensor, source: RandomStream) -> Tensor:
    """One draw of ``log ℓ'`` from each of these components.

    Args:
        parts: the components.
        component: their numbers (...).
        source: of randomness.

    Returns:
        (..., L), -inf for absent labels.
    """
    odds, alpha = parts.log_odds[component], parts.alpha[component]
    chance = torch.sigmoid(odds)
    there = source.uniform(*chance.shape) < chance
    empty = ~there.any(-1)
    if bool(empty.any()):
        there[empty] = _some_presence(odds[empty], source)
    small = alpha < 1.0
    log_gamma = source.gamma(alpha + small).log()
    shapes = alpha[small]
    log_gamma[small] += torch.log1p(-source.uniform(*shapes.shape)) / shapes
    return torch.log_softmax(log_gamma.masked_fill(~there, -math.inf), -1)


def _some_presence(odds: Tensor, source: RandomStream) -> Tensor:
    """Which labels are there, given that one is: log odds (m, L) -> (m, L), however small the odds are.

    The first label that is there is drawn by its chance; those behind it are there independently of each other.
    """
    log_first = odds - softplus(odds).cumsum(-1)
    reached = torch.softmax(log_first, -1).cumsum(-1)
    first = (reached <= source.uniform(len(odds), 1)).sum(-1, keepdim=True).clamp_max(odds.shape[-1] - 1)
    label = torch.arange(odds.shape[-1], device=odds.device)
    behind = (source.uniform(*odds.shape) < torch.sigmoid(odds)) & (label > first)
    return behind | (label == first)


def _check_shapes(exponents: Tensor, presence: Tensor, readout: Tensor, log_scale: Tensor) -> tuple[int, int, int]:
    """K, n and L, once every shape and range is right."""
    if exponents.dim() != 3 or readout.dim() != 3:
        raise InputError("exponents must be (n, L) or (K, n, L), and readout (m, n) or (K, m, n).")
    n_members, n, n_labels = exponents.shape
    if presence.shape != exponents.shape:
        raise InputError(f"presence {tuple(presence.shape)} must have the shape of exponents {tuple(exponents.shape)}.")
    if (readout.shape[0], readout.shape[2]) != (n_members, n) or log_scale.shape[-2:] != (n_members, n):
        raise InputError(
            f"shapes do not fit: exponents {tuple(exponents.shape)}, readout {tuple(readout.shape)}, "
            f"log_scale {tuple(log_scale.shape)}; K, n must agree."
        )
    if n_labels < 2:
        raise InputError(f"a distribution on the simplex needs at least 2 labels; got {n_labels}.")
    if not bool((exponents > -0.5).all()) or not bool(torch.isfinite(presence).all()):
        raise InputError("every exponent must be a number above -1/2, and every presence a finite number.")
    return n_members, n, n_labels


def support_logs(logs: Tensor) -> Tensor:
    """Log shares with -inf in place of those that count as zeros."""
    return logs.masked_fill(logs < math.log(ZERO_SHARE), -math.inf)


def jacobian(plain: Tensor, logs: Tensor) -> Tensor:
    """``Σ_{r in S} (log ℓ'_r - log ℓ_r)`` (...)."""
    there = ~torch.isneginf(logs)
    return torch.where(there, torch.where(there, plain, 0.0) - torch.where(there, logs, 0.0), 0.0).sum(-1)
