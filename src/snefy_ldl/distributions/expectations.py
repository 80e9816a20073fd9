"""Expectations under a signed mixture of Dirichlets: each is one matrix product, ``E[φ|x] = Σ_p c_p(x) E_p[φ]``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import scipy.special
import torch
from torch import Tensor

from snefy_ldl._limits import CHUNK_ELEMENTS
from snefy_ldl.distributions.law import Rows, SimplexLaw
from snefy_ldl.special import pair_index, symmetric


class MixtureExpectations(SimplexLaw):
    """Moments, logarithms and comparisons of shares, from weights ``c`` (N, P) and concentrations ``α`` (P, L)."""

    concentration: Tensor
    offset: Tensor | None
    total: Tensor

    @abstractmethod
    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows of the flattened batch, float64 (b, P)."""

    def _column(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a component, made of the concentrations (P, L) -> (P,); a law may keep it under its name."""
        return make(self.concentration.detach())

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

    def _label_expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``Σ_p c_p f(α_pr + o_r, A_p + Σ o)`` for each label r: (N, L) in float64."""
        if self.offset is None:
            return self._expectation(function(self.concentration, self.total[:, None]))
        alpha, table = self.concentration, self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = self.total + offset.sum(-1, keepdim=True)  # (b, P)
            columns = [
                (weights * function(alpha[:, r] + offset[:, r, None], total)).sum(-1) for r in range(self.n_labels)
            ]
            return torch.stack(columns, -1)

        return self.collect(answer)

    # -- moments (Theorem 3) ---------------------------------------------------------------------------------------

    def _first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L) in float64."""
        if self.offset is None:
            return self._expectation(self.concentration / self.total[:, None])
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            scaled, _, offset = self._scaled_weights(rows, table)
            return scaled @ self.concentration + offset * scaled.sum(-1, keepdim=True)

        return self.collect(answer)

    def _second_moments(self) -> Tensor:
        """``E[ℓ_r²]`` (N, L) in float64."""
        alpha = self.concentration
        if self.offset is None:
            return self._expectation(alpha * (alpha + 1.0) / (self.total * (self.total + 1.0))[:, None])
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
            scale = 1.0 / (self.total * (self.total + 1.0))
            diagonal = self._expectation(alpha * scale[:, None])
            return self._product_expectation(alpha, scale) + torch.diag_embed(diagonal)
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows, table)
            linear, mass = scaled @ alpha, scaled.sum(-1, keepdim=True)
            quadratic = torch.stack([(scaled * alpha[:, r]) @ alpha for r in range(n_labels)], 1)
            products = quadratic + offset[:, :, None] * (2.0 * linear + offset * mass)[:, None, :]
            symmetrised = 0.5 * (products + products.transpose(1, 2))
            return symmetrised + torch.diag_embed(linear + offset * mass)

        return self.collect(answer)

    def _scaled_weights(self, rows: Rows, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``c / A`` and ``c / (A (A + 1))`` (b, P) with the row's own totals A, and its offset (b, L)."""
        offset = table[rows]
        total = self.total + offset.sum(-1, keepdim=True)
        scaled = self.weights(rows) / total
        return scaled, scaled / (total + 1.0), offset

    # -- logarithms and entropies of the label distribution ----------------------------------------------------------

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r|x] = Σ c (ψ(α_r) - ψ(A))`` (*batch, L)."""
        return self.shaped(self._label_expectation(lambda a, total: torch.digamma(a) - torch.digamma(total)))

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ|x]`` (*batch, L, L), by digamma and trigamma."""
        diagonal = self._label_expectation(lambda a, total: torch.polygamma(1, a))
        shared = self._label_expectation(lambda a, total: torch.polygamma(1, total).expand_as(a))[:, :1, None]
        first = self._label_expectation(lambda a, total: torch.digamma(a) - torch.digamma(total))
        second = self._expected_log_products()
        covariance = second - first[:, :, None] * first[:, None, :]
        return self.shaped(covariance + torch.diag_embed(diagonal) - shared)

    def _expected_log_products(self) -> Tensor:
        """``Σ c μ_r μ_q`` with ``μ_r = ψ(α_r) - ψ(A)``, the expected logarithm under each component: (N, L, L)."""
        if self.offset is None:
            return self._product_expectation(torch.digamma(self.concentration) - torch.digamma(self.total)[:, None])
        table = self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = torch.digamma(self.total + offset.sum(-1, keepdim=True))
            parts = [torch.digamma(self.concentration[:, r] + offset[:, r, None]) - total for r in range(self.n_labels)]
            return torch.stack([torch.stack([(weights * a * b).sum(-1) for b in parts], -1) for a in parts], -2)

        return self.collect(answer, per_pair=self.n_labels)

    def expected_entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L) in float64."""
        return self._label_expectation(
            lambda a, total: (torch.digamma(total + 1.0) - torch.digamma(a + 1.0)) * a / total
        )

    def prob_greater(self, j: int | str, k: int | str) -> Tensor:
        """``P(ℓ_j > ℓ_k|x) = Σ c I_½(α_k, α_j)`` (*batch,).

        Args:
            j: number or name of the label that should be larger.
            k: number or name of the other one.

        Returns:
            One probability a row (*batch,).
        """
        first, second = self._two_labels(j, k)
        alpha, table = self.concentration.detach(), self.offset
        if table is None:
            half = self._column(f"{first} over {second}", lambda a: beta_half(a[:, second], a[:, first]))
            return self.shaped(self._expectation(half[:, None])[:, 0].clamp(0.0, 1.0))

        def answer(rows: Rows) -> Tensor:
            a, b = (alpha[:, r] + table[rows, r, None] for r in (second, first))
            return (self.weights(rows) * beta_half(a, b)).sum(-1)

        return self.shaped(self.collect(answer).clamp(0.0, 1.0))


def beta_half(a: Tensor, b: Tensor, at: float | Tensor = 0.5) -> Tensor:
    """``I_x(a, b)``, the chance that Beta(a, b) falls below x, one half by default."""
    point = at.cpu().numpy() if isinstance(at, Tensor) else at
    return torch.as_tensor(scipy.special.betainc(a.cpu().numpy(), b.cpu().numpy(), point), device=a.device)
