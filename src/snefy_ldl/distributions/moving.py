"""MovingSnefy: a law whose centre, and odds of presence, are each row's own.

With many labels no set of fixed components reaches the mean. Here quick learners move the law itself: row x has a
centre ``c(x)`` (L,) and, where labels may be absent, a shift ``b(x)`` of their log odds,

    o_ijr(x) = exp(a_ir + a_jr + b_r(x)) Γ(α_ijr),

while exponents, presence and readout stay shared. Each row's law is in the family, :class:`CentredSnefy` or
:class:`ZeroSnefy`, so every question keeps its answer; only tables are no longer shared. A shift multiplies every
neuron's term of a support S by the same ``exp(½ Σ_S b_r)``, so densities of all rows are still computed together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._types import Array
from snefy_ldl.distributions.centred import CentredSnefy
from snefy_ldl.distributions.centred_conditioning import condition_centred
from snefy_ldl.distributions.conditioned import KnownShares
from snefy_ldl.distributions.law import Rows, SimplexLaw
from snefy_ldl.distributions.marginal import Marginal
from snefy_ldl.distributions.moving_moments import moments_with_presence
from snefy_ldl.distributions.moving_quantiles import PresenceRowCdf, rough_logits
from snefy_ldl.distributions.row_laws import RowLaws
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.distributions.square_marginal import SquareMarginal, square_prob_greater, square_quantiles_of_labels
from snefy_ldl.distributions.square_rows import SquareRows
from snefy_ldl.distributions.zero_moments import log_expm1
from snefy_ldl.distributions.zero_square import jacobian, support_logs
from snefy_ldl.distributions.zeros import ZeroSnefy
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_share, log_signed_sum, pair_index
from snefy_ldl.special.tolerances import LOG_ODDS_LIMIT

if TYPE_CHECKING:
    from typing_extensions import Self


#: Draws a row that tell where its quantiles are before they are computed.
ROUGH_DRAWS = 2000


def moved_log_norm(log_odds: Tensor, shift: Tensor) -> Tensor:
    """``log K_ij(x) = log(Π_r (1 + o_ijr e^{b_r(x)}) - 1)``.

    Args:
        log_odds: of the pairs, without a shift (K, P, L).
        shift: b, each member's rows (K or 1, B, L).

    Returns:
        (K, B, P), through which gradients flow.

    Example:
        >>> moved_log_norm(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)).exp()
        tensor([[[3.]]])
    """
    total = softplus((log_odds[:, None] + shift[:, :, None]).clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)).sum(-1)
    return log_expm1(total)


class MovingSnefy(RowLaws):
    """Conditional law of label distributions with each row's own centre; see the module.

    Args:
        exponents: ``w`` (K, n, L) of K members; every entry above -1/2.
        presence: ``a`` (K, n, L) where labels may be absent, or None.
        readout: ``V`` (K, m, n).
        log_scale: ``h̃ = h + g(x)`` (N, K, n), with ``g_i = ½ log K_ii(x)`` of each row.
        log_centre: ``log c(x)`` (N, L).
        shift: ``b(x)`` (N, L); None for none, and without presence.

    Example:
        >>> w, one = torch.zeros(1, 1, 2).double(), torch.ones(1, 1, 1).double()
        >>> centre = torch.tensor([[1.0, 1.0], [9.0, 1.0]]).double().log()
        >>> MovingSnefy(w, None, one, torch.zeros(2, 1, 1).double(), centre).prob_greater(0, 1)
        tensor([0.5000, 0.9000], dtype=torch.float64)
    """

    def __init__(
        self,
        exponents: Tensor,
        presence: Tensor | None,
        readout: Tensor,
        log_scale: Tensor,
        log_centre: Tensor,
        shift: Tensor | None = None,
    ) -> None:
        n_rows, n_labels = log_centre.shape
        if log_scale.shape[0] != n_rows or exponents.shape[-1] != n_labels:
            raise InputError(f"log_centre {tuple(log_centre.shape)} does not fit {log_scale.shape[0]} rows.")
        if presence is not None:
            shift = torch.zeros_like(log_centre) if shift is None else shift
        self.exponents, self.presence, self.readout = exponents.double(), presence, readout.double()
        self.log_scale, self.shift = log_scale.double(), shift
        # only ratios of a centre count; this range keeps every integral within floating point
        self.log_centre = (log_centre.double() - log_centre.double().amax(-1, keepdim=True)).clamp_min(-100.0)
        self.frame: Any = (
            SnefySimplex(self.exponents, self.readout, self.log_scale, validate_args=False)
            if presence is None
            else ZeroSnefy(self.exponents, presence.double(), self.readout, self.log_scale, validate_args=False)
        )
        self.dtype = log_scale.dtype
        super().__init__(torch.Size([n_rows]), torch.Size([n_labels]), validate_args=False)

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def n_components(self) -> int:
        """All pairs of neurons of all members."""
        return int(self.frame.n_components)

    @property
    def concentration(self) -> Tensor:
        """``α`` of every component (P, L), the same in every row."""
        alpha: Tensor = self.frame.concentration
        return alpha

    @property
    def device(self) -> torch.device:
        """Where the law's numbers live."""
        return self.log_scale.device

    def _with(self, members: list[int] | slice, rows: Rows) -> MovingSnefy:
        presence = None if self.presence is None else self.presence[members]
        parts = self.exponents[members], presence, self.readout[members]
        shift = None if self.shift is None else self.shift[rows]
        law = MovingSnefy(*parts, self.log_scale[rows][:, members].to(self.dtype), self.log_centre[rows], shift)
        return law.named(self.label_names)

    def __getitem__(self, rows: Rows | Any) -> MovingSnefy:
        """The law of some rows: a slice, row numbers or a mask -> batch (b,)."""
        return self._with(slice(None), self._row_index(rows))

    def members(self) -> list[SimplexLaw]:
        """The K laws that are averaged, each with this batch."""
        if len(self.exponents) == 1:
            return [self]
        return [self._with([k], slice(None)) for k in range(len(self.exponents))]

    def joined(self, laws: Sequence[Self]) -> MovingSnefy:
        """One law of the rows of several that share their exponents: batch (N,)."""
        shift = None if self.shift is None else torch.cat([law.shift for law in laws if law.shift is not None])
        scale = torch.cat([law.log_scale for law in laws]).to(self.dtype)
        centre = torch.cat([law.log_centre for law in laws])
        return MovingSnefy(self.exponents, self.presence, self.readout, scale, centre, shift).named(self.label_names)

    def row(self, number: int) -> Any:
        """The law of one row, batch (1,): a :class:`CentredSnefy`, or a :class:`ZeroSnefy`."""
        at = slice(number, number + 1)
        centre, scale = self.log_centre[number].exp(), self.log_scale[at].to(self.dtype)
        if self.presence is None or self.shift is None:
            return CentredSnefy(self.exponents, self.readout, scale, centre, validate_args=False)
        presence = self.presence.double() + 0.5 * self.shift[number]
        return ZeroSnefy(self.exponents, presence, self.readout, scale, centre, validate_args=False)

    # -- densities ---------------------------------------------------------------------------------------------------

    def _normaliser(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """``g`` (b, K, n), log terms ``h̃_i + h̃_j + log R_ij(x)`` (b, K, P), and ``log Z`` of each member (b, K)."""
        n, n_members = self.exponents.shape[1], len(self.exponents)
        i, j = pair_index(n, self.device)
        assert self.shift is not None
        log_odds = self.frame.components.log_odds.unflatten(0, (n_members, -1))
        log_norm = moved_log_norm(log_odds, self.shift[None, rows]).transpose(0, 1)
        g = 0.5 * log_norm[..., i == j]
        scale = self.log_scale[rows]
        terms = scale[..., i] + scale[..., j] + log_norm - g[..., i] - g[..., j]
        return g, terms, log_signed_sum(terms, self.frame.gram)

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows, float64 (b, P): signed, rows sum to one."""
        if self.shift is None:
            plain: Tensor = self.frame.weights(rows)
            return plain
        numbers = torch.arange(len(self), device=self.device)[rows]
        return torch.cat([self._weights(slice(int(k), int(k) + 1)) for k in numbers])

    def _weights(self, rows: slice) -> Tensor:
        _, terms, log_z = self._normaliser(rows)
        share: Tensor = (terms - log_z[..., None]).exp() * self.frame.gram / len(self.exponents)
        return share.flatten(1)

    def plain_logs(self, logs: Tensor) -> Tensor:
        """``log ℓ' = log C(ℓ / c(x))``: logs (..., N, L), -inf for absent labels, as in what comes back."""
        return torch.log_softmax(logs - self.log_centre, -1)

    def log_prob(self, value: Any) -> Tensor:
        """Log density at value (..., N, L), rows of which may hold exact zeros where labels may be absent."""
        value = self.points(value)
        shape = common_shape(value.shape[:-1], self.batch_shape)
        logs = log_share(value.double()).expand(*shape, self.n_labels).reshape(-1, len(self), self.n_labels)
        return self.log_prob_of_logs(logs).reshape(shape).to(self.dtype)

    def log_prob_of_logs(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L): (S, N)."""
        if self.shift is None:
            plain = self.plain_logs(logs)
            columns = [self.frame.log_densities(rows, plain[:, rows])[0] for rows in self.chunks()]
            return torch.cat(columns, 1) + (plain - logs).sum(-1)
        logs = support_logs(logs)
        plain = self.plain_logs(logs)
        columns = [self._log_prob_rows(plain[:, rows], rows) for rows in self.chunks(per_pair=self.n_labels)]
        return torch.cat(columns, 1) + jacobian(plain, logs)

    def _log_prob_rows(self, plain: Tensor, rows: slice) -> Tensor:
        assert self.shift is not None
        g, _, log_z = self._normaliser(rows)
        scale = self.log_scale[rows] - g  # (b, K, n)
        moved = torch.where(torch.isneginf(plain), 0.0, self.shift[rows]).sum(-1)  # (S, b)
        squares = self.frame.log_squares(
            plain.flatten(0, 1), scale.repeat(len(plain), 1, 1), [self.frame.gram]
        )[0]  # fmt: skip
        members = squares.unflatten(0, plain.shape[:2]) - log_z  # (S, b, K)
        average: Tensor = torch.logsumexp(members, -1) - math.log(members.shape[-1])
        return average + moved

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: log shares (S, L) -> (S, b)."""
        part = self[rows]
        return part.log_prob_of_logs(logs[:, None].expand(-1, len(part), -1))

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws a row (n, N, L); -inf where a share is exactly zero."""
        if self.shift is None:
            return torch.log_softmax(self.frame.draw_logs(n, generator) + self.log_centre, -1)
        return super().draw_logs(n, generator)

    # -- moments -----------------------------------------------------------------------------------------------------

    def _first_moments(self) -> Tensor:
        return self._two_moments()[0] if self.presence is not None else self.square_rows().first_moments()

    def _second_moments(self) -> Tensor:
        return self._two_moments()[1]

    def _two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]`` (N, L), to 1e-8."""
        if self.presence is None:
            return self.square_rows().two_moments()
        alpha = self.concentration.detach()
        answers = []
        for number in range(len(self)):
            weights, centre = self.weights(slice(number, number + 1))[0], self.log_centre[number]
            answers.append(moments_with_presence(self.exponents, alpha, self._row_odds(number), centre, weights))
        return torch.stack([first for first, _ in answers]), torch.stack([second for _, second in answers])

    def _product_moments(self) -> Tensor:
        return super()._product_moments() if self.presence is not None else self.square_rows().product_moments()

    def square_rows(self) -> SquareRows:
        """What answers for all rows together where every label is there."""
        with torch.no_grad():
            features = self.frame.unit_features()[0]
            return SquareRows(0.5 + self.exponents.detach(), self.frame.family.matrix(), features, self.log_centre)

    def prob_greater(self, j: int | str, k: int | str) -> Tensor:
        """``P(ℓ_j > ℓ_k|x)`` (N,)."""
        if self.presence is not None:
            return super().prob_greater(j, k)
        return self.shaped(square_prob_greater(self, self.log_centre, *self._two_labels(j, k)))

    # -- shares ------------------------------------------------------------------------------------------------------

    def plain(self) -> Any:
        """The law of ``ℓ' = C(ℓ / c(x))``, without centres."""
        return self.frame

    def condition(
        self, known: Mapping[Any, Any], *, n_draws: int = 4000, generator: torch.Generator | None = None
    ) -> Any:
        """All shares when some are known, by weighted draws; where labels may be absent, for one row at a time."""
        if self.presence is not None:
            return super().condition(known, n_draws=n_draws, generator=generator)
        return condition_centred(self, KnownShares.of(self, known), n_draws, generator)

    def rosenblatt(self, value: Any, *settings: Any, **named: Any) -> Tensor:
        """Uniform numbers (..., N, L-1) from label distributions (..., N, L), through ``ℓ'`` of every row."""
        if self.presence is not None:
            return super().rosenblatt(value, *settings, **named)
        uniforms: Tensor = self.frame.rosenblatt(self.plain_logs(log_share(self.points(value).double())).exp())
        return uniforms

    def inverse_rosenblatt(self, uniforms: Any) -> Tensor:
        """Label distributions (..., N, L) from uniform numbers (..., N, L-1)."""
        if self.presence is not None:
            return super().inverse_rosenblatt(uniforms)
        plain: Tensor = self.frame.inverse_rosenblatt(uniforms)
        return torch.softmax(log_share(plain.double()) + self.log_centre, -1).to(self.dtype)

    def marginal(self, labels: int | str | Sequence[int | str]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several, for every row."""
        return super().marginal(labels) if self.presence is not None else SquareMarginal(self, self._group(labels))

    def _label_quantiles(self, levels: Array) -> Array:
        """Quantiles row by row, of the labels for which they are not all at zero."""
        if self.presence is None:
            return square_quantiles_of_labels(self, levels)
        out = np.zeros(levels.shape)
        absent = self.prob_zero().double().cpu().numpy()
        for number in range(len(self)):
            wanted = levels[number]
            labels = np.flatnonzero((wanted > absent[number][:, None]).any(1))
            if not len(labels):
                continue
            weights = self.weights(slice(number, number + 1))[0]
            index = torch.as_tensor(labels, device=self.device)
            target = torch.as_tensor(wanted[labels], device=self.device)
            parts = (self.exponents.detach(), self._row_odds(number), self.log_centre[number], weights.detach(), index)
            draws = self.row(number).draw_logs(ROUGH_DRAWS, torch.Generator(self.device).manual_seed(number))
            cdf = PresenceRowCdf(*parts, rough_logits(draws[:, 0, index], target))
            answer = cdf.quantiles(target)
            out[number, labels] = answer.cpu().numpy()
        return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, out))

    def _row_odds(self, number: int) -> Tensor:
        """Log odds of presence of one row's components (P, L)."""
        assert self.shift is not None
        odds: Tensor = self.frame.components.log_odds.detach() + self.shift[number]
        return odds.clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)

    def __repr__(self) -> str:
        return f"MovingSnefy(rows={len(self)}, labels={self.n_labels}, neurons={self.exponents.shape[1]})"
