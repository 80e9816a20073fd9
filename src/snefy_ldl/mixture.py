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

from snefy_ldl.errors import InputError
from snefy_ldl.special import CHUNK_ELEMENTS, log_beta, log_beta_ratio, log_share, log_signed_sum

if TYPE_CHECKING:
    from snefy_ldl.marginal import Marginal

Rows = slice | Tensor
Loss = Literal["kl", "squared", "reverse_kl", "l1"]


class SignedDirichletMixture(Distribution):
    """A density on the simplex that is a signed mixture of Dirichlets.

    Args:
        weights: ``c`` (*batch, P), rows summing to one; may be negative as long as the density is not.
        concentration: ``α`` (P, L), shared by all rows.
        offset: ``o`` (*batch, L), added to every component's concentration; None for zero.

    Example:
        >>> one = SignedDirichletMixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> one.mean
        tensor([[0.2000, 0.3000, 0.5000]])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 - torch's own spelling
    support = constraints.simplex  # type: ignore[assignment]
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
        self._dtype = dtype
        self._concentration = concentration.double()  # (P, L)
        n_labels = concentration.shape[-1]
        self._offset = None
        if offset is not None:
            self._offset = offset.double().expand(*batch_shape, n_labels).reshape(-1, n_labels)  # (N, L)
        self._total = self._concentration.sum(-1)  # (P,)
        super().__init__(batch_shape, torch.Size([n_labels]), validate_args=validate_args)

    # -- the pieces every answer is made of ------------------------------------------------------------------------

    @property
    def n_labels(self) -> int:
        """L, the number of parts."""
        return int(self._concentration.shape[-1])

    @property
    def n_components(self) -> int:
        """P, the number of Dirichlets in the sum."""
        return int(self._concentration.shape[0])

    @property
    def _n_rows(self) -> int:
        return math.prod(self.batch_shape)

    def _weights(self, rows: Rows) -> Tensor:
        """``c`` for some rows, float64 (b, P)."""
        return self._explicit_weights[rows].double()

    def _chunks(self, per_pair: int = 1) -> Iterator[slice]:
        step = max(1, CHUNK_ELEMENTS // max(1, self.n_components * per_pair))
        for start in range(0, max(self._n_rows, 1), step):
            yield slice(start, start + step)

    def _by_chunk(self, answer: Callable[[Rows], Tensor], per_pair: int = 1, event: Sequence[int] = ()) -> Tensor:
        """Answer for every row, a chunk of rows at a time, back in the batch's shape and dtype."""
        parts = [answer(rows) for rows in self._chunks(per_pair)]
        return torch.cat(parts).reshape(*self.batch_shape, *event).to(self._dtype)

    def _label_expectation(self, rows: Rows, weights: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """``Σ_p c_p f(α_pr + o_r)`` for each label r: (b, L)."""
        if self._offset is None:
            return weights @ function(self._concentration)
        offset = self._offset[rows]
        columns = [
            (weights * function(self._concentration[:, r] + offset[:, r, None])).sum(-1) for r in range(self.n_labels)
        ]
        return torch.stack(columns, -1)

    def _offset_rows(self, rows: Rows) -> Tensor | None:
        return None if self._offset is None else self._offset[rows]

    def _row_total(self, rows: Rows) -> Tensor:
        """Total concentration ``A_p + Σ o`` (b or 1, P)."""
        if self._offset is None:
            return self._total[None]
        return self._total + self._offset[rows].sum(-1, keepdim=True)

    # -- moments (Theorem 3) ---------------------------------------------------------------------------------------

    def _raw_moments(self, rows: Rows, second: Literal["none", "diagonal", "full"]) -> tuple[Tensor, Tensor | None]:
        """First moments (b, L) and second raw moments (b, L) or (b, L, L)."""
        weights = self._weights(rows)
        alpha, total, n_labels = self._concentration, self._row_total(rows), self.n_labels
        offset = None if self._offset is None else self._offset[rows]
        if offset is None:
            tables = [alpha / self._total[:, None]]
            scale = (1.0 / (self._total * (self._total + 1.0)))[:, None]
            if second == "diagonal":
                tables.append(alpha * (alpha + 1.0) * scale)
            elif second == "full":
                outer = alpha[:, :, None] * alpha[:, None, :] + torch.diag_embed(alpha)
                tables.append(outer.reshape(len(alpha), -1) * scale)
            answers = weights @ torch.cat(tables, 1)
            first, rest = answers[:, :n_labels], answers[:, n_labels:]
            if second == "none":
                return first, None
            return first, rest if second == "diagonal" else rest.reshape(-1, n_labels, n_labels)
        scaled = weights / total
        first = scaled @ alpha + offset * scaled.sum(-1, keepdim=True)
        if second == "none":
            return first, None
        scaled = scaled / (total + 1.0)
        linear, mass = scaled @ alpha, scaled.sum(-1, keepdim=True)
        if second == "diagonal":
            return first, scaled @ alpha.square() + (2.0 * offset + 1.0) * linear + offset * (offset + 1.0) * mass
        outer = (alpha[:, :, None] * alpha[:, None, :]).reshape(len(alpha), -1)
        quadratic = (scaled @ outer).reshape(-1, n_labels, n_labels)
        cross = offset[:, :, None] * linear[:, None, :]
        quadratic = quadratic + cross + cross.transpose(1, 2) + mass[:, :, None] * offset[:, :, None] * offset[:, None]
        return first, quadratic + torch.diag_embed(linear + offset * mass)

    @property
    def mean(self) -> Tensor:
        """``E[ℓ|x]`` (*batch, L), the paper's Eq. for the mean in Theorem 3."""
        answer = self._by_chunk(lambda rows: self._raw_moments(rows, "none")[0], event=self.event_shape)
        return answer / answer.sum(-1, keepdim=True)

    def mean_and_variance(self) -> tuple[Tensor, Tensor]:
        """Mean and variance (*batch, L) in one pass over the rows."""

        def both(rows: Rows) -> Tensor:
            first, second = self._raw_moments(rows, "diagonal")
            assert second is not None
            return torch.stack([first, (second - first.square()).clamp_min(0.0)], 1)

        answer = self._by_chunk(both, event=(2, self.n_labels))
        mean, variance = answer.unbind(-2)
        return mean / mean.sum(-1, keepdim=True), variance

    @property
    def variance(self) -> Tensor:
        """``Var[ℓ_r|x]`` (*batch, L), Theorem 3."""
        return self.mean_and_variance()[1]

    @property
    def covariance_matrix(self) -> Tensor:
        """``Cov[ℓ|x]`` (*batch, L, L), Theorem 3; its rows sum to zero."""

        def covariance(rows: Rows) -> Tensor:
            first, second = self._raw_moments(rows, "full")
            assert second is not None
            return second - first[:, :, None] * first[:, None, :]

        return self._by_chunk(covariance, event=(self.n_labels, self.n_labels))

    # -- logarithms and entropies of the label distribution ----------------------------------------------------------

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x] = Σ c (ψ(α_r) - ψ(A))`` (*batch, L)."""

        def answer(rows: Rows) -> Tensor:
            weights = self._weights(rows)
            total = (weights * torch.digamma(self._row_total(rows))).sum(-1, keepdim=True)
            return self._label_expectation(rows, weights, torch.digamma) - total

        return self._by_chunk(answer, event=self.event_shape)

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ|x]`` (*batch, L, L), by digamma and trigamma."""

        def trigamma(x: Tensor) -> Tensor:
            return torch.polygamma(1, x)

        def answer(rows: Rows) -> Tensor:
            weights, total = self._weights(rows), self._row_total(rows)
            mean_total = torch.digamma(total)
            own = self._label_expectation(rows, weights, trigamma)
            shared = (weights * trigamma(total)).sum(-1)
            if self._offset is None:
                centred = torch.digamma(self._concentration) - mean_total[0][:, None]  # (P, L)
                outer = centred[:, :, None] * centred[:, None, :]
                first = weights @ centred
                second = (weights @ outer.reshape(len(outer), -1)).reshape(-1, self.n_labels, self.n_labels)
            else:
                offset = self._offset[rows]
                parts = [
                    torch.digamma(self._concentration[:, r] + offset[:, r, None]) - mean_total
                    for r in range(self.n_labels)
                ]
                first = torch.stack([(weights * part).sum(-1) for part in parts], -1)
                second = torch.stack(
                    [torch.stack([(weights * a * b).sum(-1) for b in parts], -1) for a in parts], -2
                )
            covariance = second - first[:, :, None] * first[:, None, :]
            return covariance + torch.diag_embed(own) - shared[:, None, None]

        per_pair = 1 if self._offset is None else self.n_labels
        return self._by_chunk(answer, per_pair=per_pair, event=(self.n_labels, self.n_labels))

    def expected_entropy(self) -> Tensor:
        """``E[H(ℓ)|x]`` in nats, H the Shannon entropy: ``Σ c (ψ(A+1) - Σ_r α_r/A · ψ(α_r+1))`` (*batch,)."""

        def answer(rows: Rows) -> Tensor:
            weights, total = self._weights(rows), self._row_total(rows)
            spread = (weights * torch.digamma(total + 1.0)).sum(-1)
            return spread - self._label_expectation(
                rows, weights / total, lambda a: a * torch.digamma(a + 1.0)
            ).sum(-1)

        return self._by_chunk(answer)

    def vote_information(self) -> Tensor:
        """``H(E ℓ) - E[H(ℓ)]`` (*batch,): nats one more vote tells about ℓ; never negative."""
        return (torch.special.entr(self.mean).sum(-1) - self.expected_entropy()).clamp_min(0.0)

    def prob_greater(self, j: int, k: int) -> Tensor:
        """``P(ℓ_j > ℓ_k|x) = Σ c I_½(α_k, α_j)`` (*batch,)."""
        first, second = self._label(j), self._label(k)
        if first == second:
            raise InputError(f"prob_greater compares two different labels; got {j} twice.")

        def answer(rows: Rows) -> Tensor:
            shift = 0.0 if self._offset is None else self._offset[rows].cpu().numpy()
            alpha = self._concentration.detach().cpu().numpy()
            a, b = (
                alpha[:, r] if self._offset is None else alpha[:, r] + shift[:, r, None]  # type: ignore[index]
                for r in (second, first)
            )
            half = torch.as_tensor(scipy.special.betainc(a, b, 0.5), device=self._concentration.device)
            return (self._weights(rows) * half).sum(-1).clamp(0.0, 1.0)

        return self._by_chunk(answer)

    def bayes_point(self, loss: Loss = "kl") -> Tensor:
        """The point prediction q (*batch, L) with the smallest expected loss.

        Args:
            loss: ``"kl"`` for KL(ℓ‖q) and ``"squared"``: the mean; ``"reverse_kl"`` for KL(q‖ℓ): normalised
                ``exp E[log ℓ]``; ``"l1"``: the marginal medians, re-closed.
        """
        if loss in ("kl", "squared"):
            return self.mean
        if loss == "reverse_kl":
            return torch.softmax(self.expected_log(), -1)
        if loss == "l1":
            half = torch.full((), 0.5, dtype=torch.float64, device=self._concentration.device)
            medians = torch.stack([self.marginal(r).icdf(half) for r in range(self.n_labels)], -1)
            return medians / medians.sum(-1, keepdim=True)
        raise InputError(f'loss={loss!r}: use "kl", "squared", "reverse_kl" or "l1".')

    # -- votes -----------------------------------------------------------------------------------------------------

    def _count_rows(self, counts: Any) -> Tensor:
        table = torch.as_tensor(np.asarray(counts) if isinstance(counts, list) else counts)
        table = table.to(self._concentration)
        if table.shape[-1:] != self.event_shape:
            raise InputError(f"counts must have {self.n_labels} columns; got shape {tuple(table.shape)}.")
        if not bool((torch.isfinite(table) & (table >= 0)).all()):
            raise InputError("counts must be finite and >= 0.")
        return table.expand(*self.batch_shape, self.n_labels).reshape(-1, self.n_labels)

    def log_prob_counts(self, counts: Any) -> Tensor:
        """Exact log probability of vote counts k (*batch,), multinomial coefficient included.

        ``P(k|x) = (|k|! / Π k_r!) Σ c_p B(α_p + k) / B(α_p)``: a signed Dirichlet-multinomial mixture.
        """
        table = self._count_rows(counts)
        coefficient = torch.lgamma(table.sum(-1) + 1.0) - torch.lgamma(table + 1.0).sum(-1)

        def answer(rows: Rows) -> Tensor:
            factor = log_beta_ratio(self._concentration, self._offset_rows(rows), table[rows])
            return log_signed_sum(factor, self._weights(rows)) + coefficient[rows]

        return self._by_chunk(answer)

    def posterior(self, counts: Any) -> SignedDirichletMixture:
        """The law of ℓ after also seeing votes k: every ``α`` grows by k, weights re-normalised."""
        table = self._count_rows(counts)

        def answer(rows: Rows) -> Tensor:
            factor = log_beta_ratio(self._concentration, self._offset_rows(rows), table[rows])
            weights = self._weights(rows) * (factor - factor.amax(-1, keepdim=True)).exp()
            return weights / weights.sum(-1, keepdim=True)

        weights = self._by_chunk(answer, event=(self.n_components,))
        offset = table if self._offset is None else self._offset + table
        return SignedDirichletMixture(
            weights, self._concentration, offset.reshape(*self.batch_shape, self.n_labels), validate_args=False
        )

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

    def _all_weights(self) -> Tensor:
        return torch.cat([self._weights(rows) for rows in self._chunks()]).reshape(*self.batch_shape, -1)

    def _reduced(self, map_labels: Callable[[Tensor], Tensor]) -> SignedDirichletMixture:
        offset = None
        if self._offset is not None:
            offset = map_labels(self._offset).reshape(*self.batch_shape, -1)
        weights = self._all_weights().to(self._dtype)
        return SignedDirichletMixture(weights, map_labels(self._concentration), offset, validate_args=False)

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
        from snefy_ldl.marginal import Marginal

        group = [labels] if isinstance(labels, (int, np.integer)) else list(labels)
        inside = [self._label(r) for r in group]
        outside = [r for r in range(self.n_labels) if r not in inside]
        return Marginal(self.amalgamate([inside, outside]))

    # -- density and draws -------------------------------------------------------------------------------------------

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density at value (..., *batch, L)."""
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        logs = log_share(value.double()).expand(*shape, self.n_labels).reshape(-1, self.n_labels)
        row = torch.arange(len(logs), device=logs.device) % max(self._n_rows, 1)
        step = self._density_chunk()
        parts = [
            self._log_density_parts(row[start : start + step], logs[start : start + step])[0]
            for start in range(0, len(logs), step)
        ]
        return torch.cat(parts).reshape(shape).to(self._dtype)

    def _density_chunk(self) -> int:
        """How many points a density evaluation takes at a time."""
        return max(1, CHUNK_ELEMENTS // self.n_components)

    def _log_density_parts(self, rows: Rows, logs: Tensor) -> tuple[Tensor, Tensor]:
        """log p and log of its positive part at one point a row: logs (b, L) -> two (b,)."""
        weights = self._weights(rows)
        powers = logs @ (self._concentration - 1.0).T  # (b, P)
        if self._offset is None:
            powers = powers - log_beta(self._concentration)
        else:
            offset = self._offset[rows]
            normaliser = log_beta(self._concentration) + log_beta_ratio(self._concentration, None, offset)
            powers = powers + (offset * logs).sum(-1, keepdim=True) - normaliser
        return log_signed_sum(powers, weights), log_signed_sum(powers, weights.clamp_min(0.0))

    def _log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of every row at the same points: logs (S, L) -> (S, b)."""
        index = torch.arange(self._n_rows, device=logs.device)[rows]
        return torch.stack([self._log_density_parts(index, point.expand(len(index), -1))[0] for point in logs])

    @property
    def sum_abs_weights(self) -> Tensor:
        """``Σ_p |c_p|`` (*batch,), the condition number of every signed sum: 1 is a plain mixture."""
        return self._by_chunk(lambda rows: self._weights(rows).abs().sum(-1))

    @property
    def acceptance_rate(self) -> Tensor:
        """Share of proposals that exact sampling keeps, ``1 / Σ c⁺`` (*batch,)."""
        return self._by_chunk(lambda rows: 1.0 / self._weights(rows).clamp_min(0.0).sum(-1))

    def sample(  # type: ignore[override]
        self, sample_shape: Size | Sequence[int] = torch.Size(), generator: torch.Generator | None = None
    ) -> Tensor:
        """Exact draws (*sample_shape, *batch, L): propose from the positive part, keep with probability p / p⁺."""
        from snefy_ldl.sampling import draw

        shape = torch.Size(sample_shape)
        logs = draw(self, math.prod(shape), generator)
        return logs.exp().reshape(*shape, *self.batch_shape, self.n_labels).to(self._dtype)

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
        from snefy_ldl.sampling import estimate_entropy

        value, error = estimate_entropy(self, n, method, generator)
        return (value, error) if return_std_error else value

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, labels={self.n_labels}, "
            f"components={self.n_components}{', with votes' if self._offset is not None else ''})"
        )
