"""Signed mixtures of Dirichlets: every question whose answer is one matrix product.

    p(ℓ|x) = Σ_p c_p(x) · Dirichlet(ℓ; α_p + o(x)),   Σ_p c_p(x) = 1,

with weights of either sign, component concentrations ``α_p`` shared by all rows, and an optional offset ``o(x)`` (votes
already seen). An expectation is ``E[φ(ℓ)|x] = Σ_p c_p(x) E_p[φ]``: (rows × pairs) @ (pairs × answers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.special
import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from snefy_ldl._limits import CHUNK_ELEMENTS, block_elements
from snefy_ldl.distributions.tables import label_quantiles
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_beta, log_beta_ratio, log_share, log_signed_sum, pair_index, symmetric

if TYPE_CHECKING:
    from snefy_ldl.distributions.marginal import Marginal

Rows = slice | Tensor
Loss = Literal["kl", "squared", "reverse_kl", "l1"]


class SignedDirichletMixture(Distribution):
    """A density on the simplex that is a signed mixture of Dirichlets.

    Args:
        weights: ``c`` (*batch, P), rows summing to one; entries may be negative as long as the density is not.
        concentration: ``α`` (P, L), shared by all rows.
        offset: ``o`` (*batch, L), added to every component's concentration; None for zero.

    Example:
        >>> one = SignedDirichletMixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> one.mean
        tensor([[0.2000, 0.3000, 0.5000]])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.simplex
    has_rsample = False

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
    ) -> None:
        self.dtype = dtype
        self.concentration = concentration.double()  # (P, L)
        n_labels = concentration.shape[-1]
        self.offset = None
        if offset is not None:
            self.offset = _row_table(offset.double(), batch_shape, n_labels, "offset")  # (N, L)
            if not bool((self.concentration.amin(0) + self.offset > 0.0).all()):
                raise InputError("concentration + offset must be a positive number for every component and label.")
        self._total = self.concentration.sum(-1)  # (P,)
        super().__init__(batch_shape, torch.Size([n_labels]), validate_args=validate_args)

    # -- the pieces every answer is made of ------------------------------------------------------------------------

    @property
    def n_labels(self) -> int:
        """L, the number of parts."""
        return int(self.concentration.shape[-1])

    @property
    def n_components(self) -> int:
        """P, the number of Dirichlets in the sum."""
        return int(self.concentration.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the law's numbers live."""
        return self.concentration.device

    def __len__(self) -> int:
        """Rows of the batch, N."""
        return math.prod(self.batch_shape)

    def __getitem__(self, rows: Rows | Any) -> SignedDirichletMixture:
        """The law of some rows of the flattened batch: a slice, row numbers or a mask -> batch (b,)."""
        index = self._row_index(rows)
        offset = None if self.offset is None else self.offset[index]
        other = SignedDirichletMixture(self.weights(index), self.concentration, offset, validate_args=False)
        other.dtype = self.dtype
        return other

    def _row_index(self, rows: Any) -> Rows:
        if isinstance(rows, slice):
            return rows
        if isinstance(rows, (int, np.integer)):
            return slice(rows, rows + 1) if rows != -1 else slice(-1, None)
        return torch.as_tensor(rows, device=self.device)

    def members(self) -> list[SignedDirichletMixture]:
        """The laws that are averaged, each with this batch; a law that is no average is its own only member."""
        return [self]

    def log_prob_at(self, points: Tensor, rows: slice = slice(None)) -> Tensor:
        """Log density of some rows at the same points: points (S, L) -> (S, b)."""
        return self.log_prob_grid(log_share(points.double()), rows)

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows of the flattened batch, float64 (b, P)."""
        return self._explicit_weights[rows].double()

    def _ends(self, shape: Size) -> bool:
        """Whether a shape that includes the batch's ends with it, so that points fall to rows in order."""
        return len(self) == 1 or shape[len(shape) - len(self.batch_shape) :] == self.batch_shape

    def chunks(self, per_pair: int = 1) -> Iterator[slice]:
        """Rows that are worked on at a time, ``per_pair`` numbers held for each of their components."""
        step = max(1, block_elements(self.concentration.device.type) // max(1, self.n_components * per_pair))
        for start in range(0, max(len(self), 1), step):
            yield slice(start, start + step)

    def collect(self, answer: Callable[[slice], Tensor], per_pair: int = 1) -> Tensor:
        """Answer for every row (N, ...), a chunk of rows at a time."""
        return torch.cat([answer(rows) for rows in self.chunks(per_pair)])

    def shaped(self, answer: Tensor) -> Tensor:
        """An answer for every row (N, ...), in the batch's shape and dtype."""
        return answer.reshape((*self.batch_shape, *answer.shape[1:])).to(self.dtype)

    def _expectation(self, table: Tensor) -> Tensor:
        """``Σ_p c_p(x) t_p`` for answers that all rows share: (P, A) -> (N, A) in float64."""
        step = max(1, CHUNK_ELEMENTS // self.n_components)
        return torch.cat([self._expectation_block(block) for block in table.split(step, 1)], 1)

    def _expectation_block(self, table: Tensor) -> Tensor:
        return self.collect(lambda rows: self.weights(rows) @ table)

    def _product_expectation(self, table: Tensor, scale: Tensor | None = None) -> Tensor:
        """``Σ_p c_p(x) s_p t_pr t_pq`` for every two labels: t (P, L) -> (N, L, L)."""
        r, q = pair_index(self.n_labels, table.device)
        step = max(1, CHUNK_ELEMENTS // self.n_components)
        answers = []
        for first, second in zip(r.split(step), q.split(step)):
            products = table[:, first] * table[:, second]
            answers.append(self._expectation(products if scale is None else products * scale[:, None]))
        return symmetric(torch.cat(answers, 1), self.n_labels)

    def offset_rows(self, rows: Rows) -> Tensor | None:
        """The offset of some rows (b, L), or None."""
        return None if self.offset is None else self.offset[rows]

    def _label_expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``Σ_p c_p f(α_pr + o_r, A_p + Σ o)`` for each label r: (N, L) in float64."""
        if self.offset is None:
            return self._expectation(function(self.concentration, self._total[:, None]))
        alpha, table = self.concentration, self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = self._total + offset.sum(-1, keepdim=True)  # (b, P)
            columns = [
                (weights * function(alpha[:, r] + offset[:, r, None], total)).sum(-1) for r in range(self.n_labels)
            ]
            return torch.stack(columns, -1)

        return self.collect(answer)

    # -- moments (Theorem 3) ---------------------------------------------------------------------------------------

    def _first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L) in float64."""
        if self.offset is None:
            return self._expectation(self.concentration / self._total[:, None])
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            scaled, _, offset = self._scaled_weights(rows, table)
            return scaled @ self.concentration + offset * scaled.sum(-1, keepdim=True)

        return self.collect(answer)

    def _second_moments(self) -> Tensor:
        """``E[ℓ_r²]`` (N, L) in float64."""
        alpha = self.concentration
        if self.offset is None:
            return self._expectation(alpha * (alpha + 1.0) / (self._total * (self._total + 1.0))[:, None])
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows, table)
            mass = offset * (offset + 1.0) * scaled.sum(-1, keepdim=True)
            return scaled @ alpha.square() + (2.0 * offset + 1.0) * (scaled @ alpha) + mass

        return self.collect(answer)

    def _product_moments(self) -> Tensor:
        """``E[ℓ_r ℓ_q]`` for every two labels (N, L, L) in float64."""
        alpha, n_labels = self.concentration, self.n_labels
        if self.offset is None:
            scale = 1.0 / (self._total * (self._total + 1.0))
            own = self._expectation(alpha * scale[:, None])
            return self._product_expectation(alpha, scale) + torch.diag_embed(own)
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows, table)
            linear, mass = scaled @ alpha, scaled.sum(-1, keepdim=True)
            quadratic = torch.stack([(scaled * alpha[:, r]) @ alpha for r in range(n_labels)], 1)
            products = quadratic + offset[:, :, None] * (2.0 * linear + offset * mass)[:, None, :]
            symmetrised = 0.5 * (products + products.transpose(1, 2))
            return symmetrised + torch.diag_embed(linear + offset * mass)

        return self.collect(answer)

    def _two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        return self._first_moments(), self._second_moments()

    def _all_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` (N, L) and ``E[ℓ_r ℓ_q]`` (N, L, L)."""
        return self._first_moments(), self._product_moments()

    def _scaled_weights(self, rows: Rows, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``c / A`` and ``c / (A (A + 1))`` (b, P) with the row's own totals A, and its offset (b, L)."""
        offset = table[rows]
        total = self._total + offset.sum(-1, keepdim=True)
        scaled = self.weights(rows) / total
        return scaled, scaled / (total + 1.0), offset

    @property
    def mean(self) -> Tensor:
        """``E[ℓ|x]`` (*batch, L), the paper's Eq. for the mean in Theorem 3."""
        return self.shaped(_closed(self._first_moments()))

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (*batch, L)."""
        first, second = self._two_moments()
        return self.shaped(_closed(first)), self.shaped((second - first.square()).clamp_min(0.0))

    @property
    def variance(self) -> Tensor:
        """``Var[ℓ_r|x]`` (*batch, L), Theorem 3."""
        return self.mean_and_variance()[1]

    @property
    def covariance_matrix(self) -> Tensor:
        """``Cov[ℓ|x]`` (*batch, L, L), Theorem 3; its rows sum to zero."""
        first, products = self._all_moments()
        return self.shaped(products - first[:, :, None] * first[:, None, :])

    # -- logarithms and entropies of the label distribution ----------------------------------------------------------

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x] = Σ c (ψ(α_r) - ψ(A))`` (*batch, L)."""
        return self.shaped(self._label_expectation(lambda a, total: torch.digamma(a) - torch.digamma(total)))

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ|x]`` (*batch, L, L), by digamma and trigamma."""
        own = self._label_expectation(lambda a, total: torch.polygamma(1, a))
        shared = self._label_expectation(lambda a, total: torch.polygamma(1, total).expand_as(a))[:, :1, None]
        first = self._label_expectation(lambda a, total: torch.digamma(a) - torch.digamma(total))
        second = self._expected_log_products()
        covariance = second - first[:, :, None] * first[:, None, :]
        return self.shaped(covariance + torch.diag_embed(own) - shared)

    def _expected_log_products(self) -> Tensor:
        """``Σ c μ_r μ_q`` with ``μ_r = ψ(α_r) - ψ(A)``, the expected logarithm under each component: (N, L, L)."""
        if self.offset is None:
            return self._product_expectation(torch.digamma(self.concentration) - torch.digamma(self._total)[:, None])
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = torch.digamma(self._total + offset.sum(-1, keepdim=True))
            parts = [torch.digamma(self.concentration[:, r] + offset[:, r, None]) - total for r in range(self.n_labels)]
            return torch.stack([torch.stack([(weights * a * b).sum(-1) for b in parts], -1) for a in parts], -2)

        return self.collect(answer, per_pair=self.n_labels)

    def _expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""
        return self._label_expectation(
            lambda a, total: (torch.digamma(total + 1.0) - torch.digamma(a + 1.0)) * a / total
        )

    def expected_entropy(self) -> Tensor:
        """``E[H(ℓ)|x]`` in nats, H the Shannon entropy: ``Σ c Σ_r α_r/A · (ψ(A+1) - ψ(α_r+1))`` (*batch,)."""
        return self.shaped(self._expected_entropy_parts().sum(-1))

    def vote_information(self) -> Tensor:
        """``H(E ℓ) - E[H(ℓ)]`` (*batch,): nats one more vote tells about ℓ; never negative."""
        parts: Tensor = torch.special.entr(_closed(self._first_moments())) - self._expected_entropy_parts()
        return self.shaped(parts.sum(-1).clamp_min(0.0))

    def prob_greater(self, j: int, k: int) -> Tensor:
        """``P(ℓ_j > ℓ_k|x) = Σ c I_½(α_k, α_j)`` (*batch,)."""
        first, second = self._label(j), self._label(k)
        if first == second:
            raise InputError(f"prob_greater compares two different labels; got {j} twice.")

        alpha, table = self.concentration.detach(), self.offset
        if table is None:
            half = _beta_half(alpha[:, second], alpha[:, first])
            return self.shaped(self._expectation(half[:, None])[:, 0].clamp(0.0, 1.0))

        def answer(rows: Rows) -> Tensor:
            a, b = (alpha[:, r] + table[rows, r, None] for r in (second, first))
            return (self.weights(rows) * _beta_half(a, b)).sum(-1)

        return self.shaped(self.collect(answer).clamp(0.0, 1.0))

    def bayes_point(self, loss: Loss = "kl") -> Tensor:
        """The point prediction q (*batch, L) with the smallest expected loss.

        Args:
            loss: ``"kl"`` for KL(ℓ‖q) and ``"squared"``: the mean; ``"reverse_kl"`` for KL(q‖ℓ): normalised
                ``exp E[log ℓ]``; ``"l1"``: the marginal quantiles of the one level, near 1/2, at which they sum to one.
        """
        if loss in ("kl", "squared"):
            return self.mean
        if loss == "reverse_kl":
            return torch.softmax(self.expected_log(), -1)
        if loss == "l1":
            from snefy_ldl.distributions.marginal import equal_level_point

            return equal_level_point(self)
        raise InputError(f'loss={loss!r}: use "kl", "squared", "reverse_kl" or "l1".')

    # -- votes -----------------------------------------------------------------------------------------------------

    def _count_rows(self, counts: Any) -> Tensor:
        # a copy: arrays out of tables are often read-only, of which torch would warn
        table = counts if isinstance(counts, Tensor) else torch.tensor(np.asarray(counts))
        table = table.to(self.concentration)
        if table.shape[-1:] != self.event_shape:
            raise InputError(f"counts must have {self.n_labels} columns; got shape {tuple(table.shape)}.")
        if not bool((torch.isfinite(table) & (table >= 0)).all()):
            raise InputError("counts must be finite and >= 0.")
        return _row_table(table, self.batch_shape, self.n_labels, "counts")

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Exact log probability of vote counts k (*batch,), multinomial coefficient included.

        ``P(k|x) = (|k|! / Π k_r!) Σ c_p B(α_p + k) / B(α_p)``: a signed Dirichlet-multinomial mixture.
        """
        table = self._count_rows(counts)
        coefficient = torch.lgamma(table.sum(-1) + 1.0) - torch.lgamma(table + 1.0).sum(-1)

        def answer(rows: Rows) -> Tensor:
            factor = log_beta_ratio(self.concentration, self.offset_rows(rows), table[rows])
            return log_signed_sum(factor, self.weights(rows)) + coefficient[rows]

        return self.shaped(self.collect(answer))

    def posterior(self, counts: Any) -> SignedDirichletMixture:
        """The law of ℓ after also seeing votes k: every ``α`` grows by k, weights re-normalised."""
        table = self._count_rows(counts)

        def answer(rows: Rows) -> Tensor:
            factor = log_beta_ratio(self.concentration, self.offset_rows(rows), table[rows])
            weights = self.weights(rows) * (factor - factor.amax(-1, keepdim=True)).exp()
            return weights / weights.sum(-1, keepdim=True)

        offset = table if self.offset is None else self.offset + table
        return self._like(self.collect(answer), self.concentration, offset)

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def _label(self, r: int) -> int:
        if not isinstance(r, (int, np.integer)) or not -self.n_labels <= r < self.n_labels:
            raise InputError(f"label index must be a whole number from 0 to {self.n_labels - 1}; got {r!r}.")
        return int(r) % self.n_labels

    def _groups(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        checked = [[self._label(r) for r in group] for group in groups]
        if len(checked) < 2 or any(not group for group in checked):
            raise InputError("amalgamate needs at least two groups, none of them empty.")
        if sorted(r for group in checked for r in group) != list(range(self.n_labels)):
            raise InputError(
                f"groups must hold each of the labels 0 to {self.n_labels - 1} exactly once; got {checked}. "
                "For the proportions among some labels only, use subcomposition."
            )
        return checked

    def _subset(self, labels: Sequence[int]) -> list[int]:
        checked = [self._label(r) for r in labels]
        if len(checked) < 2 or len(set(checked)) < len(checked):
            raise InputError(f"subcomposition needs at least two different labels; got {list(labels)}.")
        return checked

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
        """The law of the group totals ``Σ_{r in group} ℓ_r``, one part a group."""
        checked = self._groups(groups)
        return self._reduced(lambda t: torch.stack([t[:, group].sum(-1) for group in checked], -1))

    def subcomposition(self, labels: Sequence[int]) -> SignedDirichletMixture:
        """The law of the proportions among some labels, ``ℓ_S / Σ ℓ_S``."""
        checked = self._subset(labels)
        return self._reduced(lambda t: t[:, checked])

    def marginal(self, labels: int | Sequence[int]) -> Marginal:
        """The univariate law of one label's share, or of the sum of several."""
        from snefy_ldl.distributions.marginal import Marginal

        group = [labels] if isinstance(labels, (int, np.integer)) else list(labels)
        inside = [self._label(r) for r in group]
        outside = [r for r in range(self.n_labels) if r not in inside]
        return Marginal(self.amalgamate([inside, outside]))

    def quantiles(self, alpha: Any) -> Tensor:
        """Exact quantiles of every label's share: alpha (A,), or (*batch, L, A) -> (*batch, L, A)."""
        levels = np.asarray(alpha, dtype=np.float64)
        if levels.ndim > 1:
            levels = levels.reshape(-1, self.n_labels, levels.shape[-1])
        levels = np.atleast_1d(levels)
        if not bool(((levels >= 0.0) & (levels <= 1.0)).all()):
            raise InputError("quantile levels must lie between 0 and 1.")
        if self.offset is None and self.n_components > 1:
            answer = label_quantiles(self, levels)
        else:
            wanted = np.broadcast_to(levels, (len(self), self.n_labels, levels.shape[-1]))
            columns = [self.marginal(r)._quantiles(wanted[:, r]) for r in range(self.n_labels)]
            answer = np.stack(columns, 1)
        return self.shaped(torch.as_tensor(answer, device=self.concentration.device))

    # -- density and draws -------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch, L)."""
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
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

    def sample(self, sample_shape: Size | Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Exact draws (*sample_shape, *batch, L): propose from the positive part, keep with probability p / p⁺."""
        from snefy_ldl.distributions.sampling import draw

        shape = torch.Size(sample_shape)
        logs = draw(self, math.prod(shape), generator)
        return logs.exp().reshape(*shape, *self.batch_shape, self.n_labels).to(self.dtype)

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
        """
        from snefy_ldl.distributions.sampling import estimate_entropy

        value, error = estimate_entropy(self, n, method, generator)
        return (value, error) if return_std_error else value

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> SignedDirichletMixture:
        """The same law with its batch broadcast to a larger shape."""
        shape = torch.Size(batch_shape)
        weights = self._explicit_weights.reshape(*self.batch_shape, -1).expand(*shape, -1)
        offset = None if self.offset is None else self.offset.reshape(*self.batch_shape, -1).expand(*shape, -1)
        other = SignedDirichletMixture(weights, self.concentration, offset, self._validate_args)
        other.dtype = self.dtype
        return other

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, "
            f"components={self.n_components}{', with votes' if self.offset is not None else ''})"
        )


def _row_table(values: Tensor, batch_shape: Size, n_labels: int, name: str) -> Tensor:
    """Values for every row and label, (*batch, L) or one row for all, as (N, L)."""
    try:
        return values.expand(*batch_shape, n_labels).reshape(-1, n_labels)
    except RuntimeError:
        raise InputError(
            f"{name} of shape {tuple(values.shape)} do not fit a batch of shape {tuple(batch_shape)} with {n_labels} "
            "labels: give one row for each row of the batch, or one for all."
        ) from None


def _closed(mean: Tensor) -> Tensor:
    """A mean back on the simplex: rounding in signed sums can leave it by some 1e-16 Σ|c|."""
    mean = mean.clamp_min(0.0)
    return mean / mean.sum(-1, keepdim=True)


def _beta_half(a: Tensor, b: Tensor) -> Tensor:
    """``I_½(a, b)``, the chance that Beta(a, b) falls below one half."""
    return torch.as_tensor(scipy.special.betainc(a.cpu().numpy(), b.cpu().numpy(), 0.5), device=a.device)
