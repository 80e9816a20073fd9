"""Signed mixtures of Dirichlets: every question whose answer is one matrix product.

    p(ℓ|x) = Σ_p c_p(x) · Dirichlet(ℓ; α_p + o(x)),   Σ_p c_p(x) = 1,

with weights of either sign, component concentrations ``α_p`` shared by all rows, and an optional offset ``o(x)`` (votes
already seen). An expectation is ``E[φ(ℓ)|x] = Σ_p c_p(x) E_p[φ]``: (rows × pairs) @ (pairs × answers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl._limits import block_elements
from snefy_ldl._types import Array
from snefy_ldl.distributions.conditioning import MixtureConditioning
from snefy_ldl.distributions.law import Rows, row_table
from snefy_ldl.distributions.marginal import BetaMarginal, Marginal
from snefy_ldl.distributions.sampling import draw, estimate_entropy
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.distributions.tables import label_quantiles
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_beta, log_beta_ratio, log_share, log_signed_sum


class SignedDirichletMixture(MixtureConditioning):
    """A density on the simplex that is a signed mixture of Dirichlets.

    Args:
        weights: ``c`` (*batch, P), rows summing to one; entries may be negative as long as the density is not.
        concentration: ``α`` (P, L), shared by all rows.
        offset: ``o`` (*batch, L), added to every component's concentration; None for zero.
        validate_args: whether to check points of the density, as in torch.

    Example:
        >>> one = SignedDirichletMixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> one.mean
        tensor([[0.2000, 0.3000, 0.5000]])
    """

    def __init__(
        self,
        weights: Tensor,
        concentration: Tensor,
        offset: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        batch_shape = weights.shape[:-1]
        self._explicit_weights = weights.reshape(-1, weights.shape[-1])  # (N, P)
        self._set_up(batch_shape, concentration, offset, weights.dtype, validate_args)

    def _set_up(
        self,
        batch_shape: Size,
        concentration: Tensor,
        offset: Tensor | None,
        dtype: torch.dtype,
        validate_args: bool | None,
        total: Tensor | None = None,
    ) -> None:
        self.dtype = dtype
        self.concentration = concentration.double()  # (P, L)
        n_labels = concentration.shape[-1]
        self.offset = None
        if offset is not None:
            self.offset = row_table(offset.double(), batch_shape, n_labels, "offset")  # (N, L)
            if not bool((self.concentration.amin(0) + self.offset > 0.0).all()):
                raise InputError("concentration + offset must be a positive number for every component and label.")
        self.total = self.concentration.sum(-1) if total is None else total  # (P,)
        super().__init__(batch_shape, torch.Size([n_labels]), validate_args=validate_args)

    # -- rows and components -----------------------------------------------------------------------------------------

    @property
    def n_components(self) -> int:
        """P, the number of Dirichlets in the sum."""
        return int(self.concentration.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the law's numbers live."""
        return self.concentration.device

    def __getitem__(self, rows: Rows | Any) -> SignedDirichletMixture:
        """The law of some rows of the flattened batch: a slice, row numbers or a mask -> batch (b,)."""
        index = self._row_index(rows)
        offset = None if self.offset is None else self.offset[index]
        other = SignedDirichletMixture(self.weights(index), self.concentration, offset, validate_args=False)
        other.dtype = self.dtype
        return other.named(self.label_names)

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows of the flattened batch, float64 (b, P)."""
        return self._explicit_weights[rows].double()

    def offset_rows(self, rows: Rows) -> Tensor | None:
        """The offset of some rows (b, L), or None."""
        return None if self.offset is None else self.offset[rows]

    # -- votes -----------------------------------------------------------------------------------------------------

    def _count_rows(self, counts: Any) -> Tensor:
        # a copy: arrays out of tables are often read-only, of which torch would warn
        table = counts if isinstance(counts, Tensor) else torch.tensor(np.asarray(counts))
        table = table.to(self.concentration)
        if table.shape[-1:] != self.event_shape:
            raise InputError(f"counts must have {self.n_labels} columns; got shape {tuple(table.shape)}.")
        if not bool((torch.isfinite(table) & (table >= 0)).all()):
            raise InputError("counts must be finite and >= 0.")
        return row_table(table, self.batch_shape, self.n_labels, "counts")

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Exact log probability of vote counts k (*batch,), multinomial coefficient included.

        ``P(k|x) = (|k|! / Π k_r!) Σ c_p B(α_p + k) / B(α_p)``: a signed Dirichlet-multinomial mixture.

        Args:
            counts: votes a label (*batch, L); zeros where nobody voted.

        Returns:
            One number a row (*batch,), in nats.

        Raises:
            InputError: the votes do not fit the batch, or are negative or not finite.
        """
        table = self._count_rows(counts)
        coefficient = torch.lgamma(table.sum(-1) + 1.0) - torch.lgamma(table + 1.0).sum(-1)

        def answer(rows: Rows) -> Tensor:
            factor = log_beta_ratio(self.concentration, self.offset_rows(rows), table[rows])
            return log_signed_sum(factor, self.weights(rows)) + coefficient[rows]

        return self.shaped(self.collect(answer))

    def posterior(self, counts: Any) -> SignedDirichletMixture:
        """The law of ℓ after also seeing votes k: every ``α`` grows by k, weights re-normalised.

        Args:
            counts: votes a label (*batch, L); zeros where nobody voted.

        Returns:
            A law of the same batch.

        Raises:
            InputError: the votes do not fit the batch, or are negative or not finite.
        """
        table = self._count_rows(counts)

        def answer(rows: Rows) -> Tensor:
            factor = log_beta_ratio(self.concentration, self.offset_rows(rows), table[rows])
            weights = self.weights(rows) * (factor - factor.amax(-1, keepdim=True)).exp()
            return weights / weights.sum(-1, keepdim=True)

        offset = table if self.offset is None else self.offset + table
        return self._like(self.collect(answer), self.concentration, offset).named(self.label_names)

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def _like(self, weights: Tensor, concentration: Tensor, offset: Tensor | None) -> SignedDirichletMixture:
        """A mixture with this batch and dtype; its weights (N, P) stay in float64, or signed sums would lose digits."""
        offset = None if offset is None else offset.reshape(*self.batch_shape, -1)
        other = SignedDirichletMixture(
            weights.reshape(*self.batch_shape, -1), concentration, offset, validate_args=self._validate_args
        )
        other.dtype = self.dtype
        return other

    def _reduced(self, map_labels: Callable[[Tensor], Tensor]) -> SignedDirichletMixture:
        offset = None if self.offset is None else map_labels(self.offset)
        return self._like(self.collect(self.weights), map_labels(self.concentration), offset)

    def amalgamate(self, groups: Sequence[Sequence[int]]) -> SignedDirichletMixture:
        """The law of the group totals ``Σ_{r in group} ℓ_r``, one part a group.

        Args:
            groups: numbers of the labels in each group; every label in one of them.

        Returns:
            A law of as many labels as there are groups.

        Raises:
            InputError: a label is missing or in two groups.
        """
        checked = self._groups(groups)
        return self._reduced(lambda t: torch.stack([t[:, group].sum(-1) for group in checked], -1))

    def subcomposition(self, labels: Sequence[int]) -> SignedDirichletMixture:
        """The law of the proportions among some labels, ``ℓ_S / Σ ℓ_S``.

        Args:
            labels: numbers of two labels or more.

        Returns:
            A law of these labels, in this order.
        """
        checked = self._subset(labels)
        return self._reduced(lambda t: t[:, checked])

    def marginal(self, labels: int | str | Sequence[int | str]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several.

        Args:
            labels: number or name of a label, or several of them for their sum.

        Returns:
            A law of one number a row, with ``log_prob``, ``cdf``, ``icdf`` and ``quantiles``.
        """
        inside = self._group(labels)
        return BetaMarginal(self.amalgamate([inside, [r for r in range(self.n_labels) if r not in inside]]))

    def _label_quantiles(self, levels: Array) -> Array:
        return label_quantiles(self, levels)

    # -- density and draws -------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch, L).

        Args:
            value: label distributions (..., *batch, L); rows sum to one.

        Returns:
            One number a label distribution (..., *batch), in nats.
        """
        value = self.points(value)
        shape = common_shape(value.shape[:-1], self.batch_shape)
        if not self._ends(shape):
            return self.expand(shape).log_prob(value)
        logs = log_share(value.double()).expand(*shape, self.n_labels)
        logs = logs.reshape(-1, len(self), self.n_labels)  # (S, N, L)
        columns = [self.log_densities(rows, logs[:, rows])[0] for rows in self.chunks()]
        return torch.cat(columns, 1).reshape(shape).to(self.dtype)

    def _density_chunk(self) -> int:
        """How many points a density evaluation takes at a time."""
        return max(1, block_elements(self.concentration.device.type) // self.n_components)

    def _by_points(self, densities: Callable[[Tensor], list[Tensor]], logs: Tensor) -> list[Tensor]:
        """Densities at S points a row, some points at a time: logs (S, b, L) -> each (S, b)."""
        parts = logs.split(max(1, self._density_chunk() // max(1, logs.shape[1])))
        return [torch.cat(answers) for answers in zip(*(densities(part) for part in parts))]

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """log p, and log of its positive part ``Σ c⁺ Dir(α)`` if asked, at S points a row: (S, b, L) -> (S, b)."""
        weights = [self.weights(rows)]
        if envelope:
            weights.append(weights[0].clamp_min(0.0))
        log_normaliser = log_beta(self.concentration)
        powers, offset = self.concentration - 1.0, self.offset_rows(rows)
        if offset is not None:
            log_normaliser = log_normaliser + log_beta_ratio(self.concentration, None, offset)  # (b, P)

        def densities(points: Tensor) -> list[Tensor]:
            components = points @ powers.T - log_normaliser  # (S, b, P)
            if offset is not None:
                components = components + (offset * points).sum(-1, keepdim=True)
            return [log_signed_sum(components, w) for w in weights]

        return self._by_points(densities, logs)

    def quick_log_prob(self, rows: slice, logs: Tensor) -> Tensor:
        """Log density at n points a row, logs (b, n, L) -> (b, n), as quickly as the law can."""
        return self.log_densities(rows, logs.transpose(0, 1))[0].T

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: logs (S, L) -> (S, b)."""
        n_rows = len(range(len(self))[rows])
        return self.log_densities(rows, logs[:, None].expand(-1, n_rows, -1))[0]

    @property
    def sum_abs_weights(self) -> Tensor:
        """``Σ_p |c_p|`` (*batch,), the condition number of every signed sum: 1 is a plain mixture."""
        return self.shaped(self.collect(lambda rows: self.weights(rows).abs().sum(-1)))

    @property
    def acceptance_rate(self) -> Tensor:
        """Share of proposals that exact sampling keeps, ``1 / Σ c⁺`` (*batch,)."""
        return self.shaped(self.collect(lambda rows: 1.0 / self.weights(rows).clamp_min(0.0).sum(-1)))

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws a row (n, N, L): from the positive part, kept with probability p / p⁺."""
        return draw(self, n, generator)

    def entropy(  # type: ignore[override]
        self,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        generator: torch.Generator | None = None,
        return_std_error: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Differential entropy ``-E[log p(ℓ|x)]`` (*batch,) by n draws, with its standard error on request.

        Args:
            n: draws a row.
            method: ``"model"`` averages ``-log p`` over exact draws; ``"uniform"`` is the paper's Algorithm A2,
                ``-1/n Σ p/q log p`` with uniform draws (q = (L-1)!) that serve every row.
            generator: source of randomness.
            return_std_error: also return the standard error (*batch,).

        Returns:
            (*batch,), or two such tensors.
        """
        value, error = estimate_entropy(self, n, method, generator)
        return (value, error) if return_std_error else value

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> SignedDirichletMixture:
        """The same law with its batch broadcast to a larger shape."""
        shape = torch.Size(batch_shape)
        weights = self._explicit_weights.reshape(*self.batch_shape, -1).expand(*shape, -1)
        offset = None if self.offset is None else self.offset.reshape(*self.batch_shape, -1).expand(*shape, -1)
        other = SignedDirichletMixture(weights, self.concentration, offset, self._validate_args)
        other.dtype = self.dtype
        return other.named(self.label_names)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, "
            f"components={self.n_components}{', with votes' if self.offset is not None else ''})"
        )
