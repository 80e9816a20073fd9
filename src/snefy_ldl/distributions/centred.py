"""The family with a centre: shares of very unequal size, within one and the same square.

A label distribution is read as ``ℓ = C(c ℓ')`` with ℓ' a :class:`~snefy_ldl.distributions.snefy.SnefySimplex` and C the
closure: each component is a vector of gammas with scales c, closed. Its density is that of ℓ' times a Jacobian; its
moments and the laws of its shares are one-dimensional integrals, made once for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Size, Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.centred_conditioning import condition_centred, ratios_centred
from snefy_ldl.distributions.conditioned import ConditionedDraws, KnownShares
from snefy_ldl.distributions.expectations import beta_half
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.integrals import CentredMoments
from snefy_ldl.distributions.law import Rows, SimplexLaw
from snefy_ldl.distributions.marginal import Marginal, TableMarginal
from snefy_ldl.distributions.ratio_table import RatioTable
from snefy_ldl.distributions.ratios import ConditionedRatios, KnownRatios
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.distributions.table_cache import TableCache
from snefy_ldl.distributions.tables import quantiles_from_tables
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_share, symmetric
from snefy_ldl.special.tolerances import SAME_CENTRE

_moments, _ratios = TableCache(), TableCache()


class CentredSnefy(SnefySimplex):
    """Conditional density over label distributions with a centre; see the module.

    Args:
        exponents: ``W`` (n, L), or (K, n, L) for K members.
        readout: ``V`` (m, n), or (K, m, n).
        log_scale: ``h̃`` (*batch, n), or (*batch, K, n).
        centre: ``c`` (L,), positive; only its proportions matter.
        log_members: log weight of each member (K,) or (*batch, K); equal by default.
        validate_args: whether to check points of the density, as in torch.
        family: what is known of these exponents and this readout already; None to work it out.

    Example:
        >>> w, one = torch.tensor([[0.5, 1.0, 2.0]]).double(), torch.ones(1, 1).double()
        >>> law = CentredSnefy(w, one, torch.zeros(1, 1).double(), torch.tensor([1.0, 1.0, 100.0]))
        >>> law.mean.round(decimals=4)
        tensor([[0.0049, 0.0074, 0.9877]], dtype=torch.float64)
    """

    def __init__(
        self,
        exponents: Tensor,
        readout: Tensor,
        log_scale: Tensor,
        centre: Tensor,
        log_members: Tensor | None = None,
        validate_args: bool | None = None,
        family: PairFamily | None = None,
    ) -> None:
        super().__init__(exponents, readout, log_scale, None, log_members, validate_args, family)
        if centre.shape != (self.n_labels,) or not bool((torch.isfinite(centre) & (centre > 0.0)).all()):
            raise InputError(f"centre must hold {self.n_labels} positive numbers; got {centre.tolist()}.")
        self.centre = centre.double().to(self.device) / centre.double().sum()

    def _with(self, log_scale: Tensor, offset: Tensor | None, log_members: Tensor) -> CentredSnefy:
        return CentredSnefy(self.exponents, self.readout, log_scale, self.centre, log_members, False, self.family)

    def members(self) -> list[SimplexLaw]:
        """The K densities that are averaged, each with this batch."""
        if self.n_members == 1:
            return [self]
        return [
            CentredSnefy(self.exponents[k], self.readout[k], self.log_scale[..., k, :], self.centre)
            for k in range(self.n_members)
        ]

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> CentredSnefy:
        """The same law with its batch broadcast to a larger shape."""
        shape = torch.Size(batch_shape)
        log_members = self.log_members.reshape(*self.batch_shape, -1).expand(*shape, -1)
        scale = self.log_scale.expand(*shape, *self.log_scale.shape[-2:])
        check, family = self._validate_args, self.family
        other = CentredSnefy(self.exponents, self.readout, scale, self.centre, log_members, check, family)
        return other.named(self.label_names)

    # -- to the plain family and back --------------------------------------------------------------------------------

    @property
    def log_centre(self) -> Tensor:
        """``log c``, the same in every row (1, L)."""
        return self.centre.log()[None]

    def plain(self) -> SnefySimplex:
        """The law of ``ℓ' = C(ℓ / c)``, without a centre."""
        log_members = self.log_members.reshape(*self.batch_shape, -1)
        check, family = self._validate_args, self.family
        return SnefySimplex(self.exponents, self.readout, self.log_scale, None, log_members, check, family)

    def plain_logs(self, logs: Tensor) -> Tensor:
        """``log ℓ'`` of ``log ℓ`` (..., L)."""
        return torch.log_softmax(logs - self.centre.log(), -1)

    def centred_logs(self, logs: Tensor) -> Tensor:
        """``log ℓ`` of ``log ℓ'`` (..., L)."""
        return torch.log_softmax(logs + self.centre.log(), -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch, L): ``log p'(ℓ') + Σ log ℓ'_r - Σ log ℓ_r``."""
        value = self.points(value)
        logs = log_share(value.double())
        plain = self.plain_logs(logs)
        log_p = super().log_prob(plain.exp()) if value.requires_grad else self._log_prob_of_logs(plain)
        return log_p + (plain - logs).sum(-1).to(self.dtype)

    def _log_prob_of_logs(self, logs: Tensor) -> Tensor:
        shape = common_shape(logs.shape[:-1], self.batch_shape)
        if not self._ends(shape):
            return self.plain().expand(shape).log_prob(logs.exp())
        points = logs.expand(*shape, self.n_labels).reshape(-1, len(self), self.n_labels)  # (S, N, L)
        columns = [self.log_densities(rows, points[:, rows])[0] for rows in self.chunks()]
        return torch.cat(columns, 1).reshape(shape).to(self.dtype)

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: log shares (S, L) -> (S, b)."""
        plain = self.plain_logs(logs)
        return super().log_prob_grid(plain, rows) + (plain - logs).sum(-1)[:, None]

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws a row (n, N, L)."""
        return self.centred_logs(super().draw_logs(n, generator))

    def entropy(  # type: ignore[override]
        self,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        generator: torch.Generator | None = None,
        return_std_error: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Differential entropy (*batch,) by n draws; see the base class."""
        if method != "model":
            return super().entropy(n, method, generator, return_std_error)
        if n < 2:
            raise InputError(f"entropy needs at least 2 draws; got n={n}.")
        log_p = self.log_prob(self.sample((n,), generator)).double()
        value, error = -log_p.mean(0).to(self.dtype), (log_p.std(0) / n**0.5).to(self.dtype)
        return (value, error) if return_std_error else value

    # -- expectations ------------------------------------------------------------------------------------------------

    def _tables(self) -> CentredMoments:
        alpha, centre = self.concentration.detach(), self.centre
        key = (alpha.cpu().numpy(), centre.cpu().numpy(), str(self.device))
        tables: CentredMoments = _moments.get(lambda: CentredMoments(alpha, centre), *key)
        return tables

    def _first_moments(self) -> Tensor:
        return self._expectation(self._tables().first())

    def _second_moments(self) -> Tensor:
        return self._expectation(self._tables().second())

    def _product_moments(self) -> Tensor:
        return symmetric(self._expectation(self._tables().products()), self.n_labels)

    def _two_moments(self) -> tuple[Tensor, Tensor]:
        tables = self._tables()
        first, second = self._expectation(torch.cat([tables.first(), tables.second()], 1)).chunk(2, 1)
        return first, second

    def _all_moments(self) -> tuple[Tensor, Tensor]:
        return self._first_moments(), self._product_moments()

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x]`` (*batch, L)."""
        return self.shaped(self._expectation(self._tables().expected_log()))

    def expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""
        return self._expectation(self._tables().entropy_parts())

    def prob_greater(self, j: int | str, k: int | str) -> Tensor:
        """``P(ℓ_j > ℓ_k|x) = Σ c I_x(α_k, α_j)`` with ``x = c_j / (c_j + c_k)`` (*batch,)."""
        first, second = self._two_labels(j, k)
        at = float(self.centre[first] / (self.centre[first] + self.centre[second]))
        name = f"{first} over {second} at {at!r}"
        below = self._column(name, lambda alpha: beta_half(alpha[:, second], alpha[:, first], at))
        return self.shaped(self._expectation(below[:, None])[:, 0].clamp(0.0, 1.0))

    # -- one share ---------------------------------------------------------------------------------------------------

    def _ratio_table(self, inside: list[int]) -> RatioTable:
        halves = (self.exponents.detach().double() + 0.5).cpu()
        key = (halves.numpy(), self.centre.cpu().numpy(), inside)
        table: RatioTable = _ratios.get(lambda: RatioTable(halves, self.centre.cpu(), inside), *key)
        return table

    def marginal(self, labels: int | str | Sequence[int | str]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several."""
        inside = self._group(labels)
        return TableMarginal(self, inside, self._ratio_table(inside))

    def _label_quantiles(self, levels: Array) -> Array:
        return quantiles_from_tables(self, levels, lambda r: self._ratio_table([r]))

    # -- some shares known -------------------------------------------------------------------------------------------

    def condition(
        self, known: Mapping[Any, Any], *, n_draws: int = 4000, generator: torch.Generator | None = None
    ) -> ConditionedDraws:
        """All shares when some are known, by weighted draws; see the base class.

        Known *ratios* of shares stay in the family (:meth:`condition_ratios`): a Dirichlet's ratios within a group do
        not depend on its total. Known shares leave it, because the centre ties the two, so the answers have standard
        errors.
        """
        return condition_centred(self, KnownShares.of(self, known), n_draws, generator)

    def condition_ratios(self, ratios: Mapping[Any, Any]) -> ConditionedRatios:
        """All shares when ratios of some, the same in every row, are known: exact; see the base class."""
        return ratios_centred(self, KnownRatios.of(self, ratios))

    def _to_chain(self, logs: Tensor) -> Tensor:
        return self.plain_logs(logs)

    def _from_chain(self, logs: Tensor) -> Tensor:
        return self.centred_logs(logs)

    # -- other laws --------------------------------------------------------------------------------------------------

    def subcomposition(self, labels: Sequence[int]) -> CentredSnefy:
        """The law of the proportions among some labels: exponents and centre restricted to them."""
        keep = self._subset(labels)
        plain = self.plain().same_weights(self.exponents[..., keep].double())
        return self._around(plain, self.centre[keep])

    def _around(self, plain: SnefySimplex, centre: Tensor) -> CentredSnefy:
        members = self._shaped_members()
        return CentredSnefy(
            plain.exponents, plain.readout, plain.log_scale, centre, members, self._validate_args, plain.family
        )

    def amalgamate(self, groups: Sequence[Sequence[int]]) -> CentredSnefy:
        """The law of the group totals, where the centre is the same within every group; else see the error."""
        checked = self._groups(groups)
        centre = []
        for group in checked:
            values = self.centre[group]
            if bool((values / values[0] - 1.0).abs().max() > SAME_CENTRE):
                raise InputError(
                    f"the labels {group} have different centres, and the joint law of merged labels then leaves the "
                    "family. dist.marginal(group) is the exact law of one group's total; for the joint law take draws "
                    "(dist.sample) and add them up, or fit with centre=None."
                )
            centre.append(values[0])
        plain = self.plain().amalgamate(checked)
        assert isinstance(plain, SnefySimplex)
        return self._around(plain, torch.stack(centre))

    def _shaped_members(self) -> Tensor:
        return self.log_members.reshape(*self.batch_shape, -1)

    def posterior(self, counts: Any) -> SnefySimplex:
        """Not in the family: votes change the total of the gammas, which a centre does not allow."""
        raise InputError(
            "votes cannot be added to a law with a centre; fit with centre=None, or on the votes: fit(X, counts=K)."
        )

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Exact log probability of vote counts k (*batch,), multinomial coefficient included.

        ``E[Π ℓ_r^{k_r}] = Π c_r^{k_r} Γ(α_r + k_r)/Γ(α_r) ∫ t^{|k|-1}/Γ(|k|) Π (1 + c_s t)^{-α_s - k_s} dt``.
        """
        table = self._count_rows(counts)
        coefficient = torch.lgamma(table.sum(-1) + 1.0) - torch.lgamma(table + 1.0).sum(-1)
        moments = self._tables()

        def answer(rows: Rows) -> Tensor:
            return torch.log((self.weights(rows) * moments.powers(table[rows])).sum(-1)) + coefficient[rows]

        return self.shaped(self.collect(answer, per_pair=64))
