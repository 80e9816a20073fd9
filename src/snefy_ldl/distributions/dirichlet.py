"""Rows of a plain law: signed mixtures of Dirichlets, where every question is one matrix product.

    p(ℓ|x) = Σ_p c_p(x) · Dirichlet(ℓ; α_p + k(x)),   Σ_p c_p(x) = 1,

with weights of either sign, concentrations ``α_p`` shared by all rows, and votes ``k(x)`` where some were seen. An
expectation is ``E[φ(ℓ)|x] = Σ_p c_p(x) E_p[φ]``: (rows × pairs) @ (pairs × answers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import scipy.special
import torch
from torch import Tensor

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, DIRECT_EVALUATIONS, FEW_ROWS, block_elements
from snefy_ldl._internal.special import (
    log_beta,
    log_beta_ratio,
    log_quadratic_form,
    log_share,
    log_signed_sum,
    log_squared_norm,
    pair_index,
    quick_log_norms,
    symmetric,
    unit_kernel,
)
from snefy_ldl._internal.tolerances import NEGLIGIBLE_FACTOR_EXPONENT, SMALLEST_DENSITY_SHARE, SMALLEST_SHARED_DENSITY
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.distributions.conditioned import KnownRatios, KnownShares, Remainder, WeightedDraws
from snefy_ldl.distributions.family import Order, PairFamily, QuadraticForms, root_of
from snefy_ldl.distributions.parts import Listed, Parts, Rows, Square, check_sizes, check_weights
from snefy_ldl.distributions.rosenblatt import StickMap
from snefy_ldl.distributions.sampling import draw
from snefy_ldl.distributions.square_quantiles import square_quantiles
from snefy_ldl.distributions.tables import (
    beta_table,
    direct_cdf,
    direct_quantile,
    label_quantiles,
    row_blocks,
    row_weights,
)
from snefy_ldl.errors import InputError

#: Steps of a root search, at most, for which it is weighed against a table.
SEARCH_STEPS = 60


class RowBlocks:
    """Rows that are worked on some at a time: what all kinds of rows have in common.

    Attributes:
        square: what has one entry per row.
        n_components: of every row.
        device: where the numbers live.
    """

    square: Any
    n_components: int
    device: torch.device

    def __len__(self) -> int:
        return len(self.square)

    def chunks(self, per_pair: int = 1) -> Iterator[slice]:
        """Rows that are worked on at a time, ``per_pair`` numbers held for each of their components."""
        return self.blocks(self.n_components * per_pair)

    def blocks(self, per_row: int) -> Iterator[slice]:
        """Rows that are worked on at a time, each of them holding so many numbers."""
        step = max(1, block_elements(self.device.type) // max(1, per_row))
        for start in range(0, max(len(self), 1), step):
            yield slice(start, start + step)

    def collect(self, answer: Callable[[slice], Tensor], per_pair: int = 1) -> Tensor:
        """Answer for every row (N, ...), a chunk of rows at a time."""
        return torch.cat([answer(rows) for rows in self.chunks(per_pair)])


class DirichletRows(RowBlocks):
    """N rows of a plain law: no centre, every label there.

    Args:
        square: the weights of the components.
        votes: already seen (N, L), or None.
    """

    square: Square | Listed
    #: Where weights factor over neurons: what all rows share, ``h̃`` (N, K, n) and log weights of the members (N, K).
    family: PairFamily
    flat_log_scale: Tensor
    log_members: Tensor

    def __init__(self, square: Square | Listed, votes: Tensor | None) -> None:
        self.square, self.offset = square, votes
        if isinstance(square, Square):
            self.family, self.flat_log_scale, self.log_members = square.family, square.log_scale, square.log_members
        self.concentration, self.total = square.concentration, square.total
        self.device = self.concentration.device
        self.n_components, self.n_labels = len(self.total), int(self.concentration.shape[1])
        if votes is not None and not bool((self.concentration.amin(0) + votes > 0.0).all()):
            raise InputError("concentration + offset must be a positive number for every component and label.")

    @property
    def has_members(self) -> bool:
        """Whether the law is an average of squares whose pairs do not depend on the row: not after votes."""
        return isinstance(self.square, Square) and self.offset is None

    #: Whether shares may be exactly zero.
    has_atoms = False

    @property
    def neurons(self) -> Square:
        """The weights, which factor over neurons."""
        assert isinstance(self.square, Square)
        return self.square

    def log_members_after_votes(self) -> Tensor:
        """Log weight of each member once the votes are known (N, K)."""
        return self.log_members

    def offset_rows(self, rows: Rows) -> Tensor | None:
        """The votes of some rows (b, L), or None."""
        return None if self.offset is None else self.offset[rows]

    # -- weights and normaliser --------------------------------------------------------------------------------------

    def _log_terms(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``h̃_i + h̃_j + log B(α_ij + k) - g_i - g_j`` (b, K, P), k the votes seen and further ones."""
        i, j = pair_index(self.family.n_neurons, self.device)
        scale = self.flat_log_scale[rows].double()
        kernel = self.family.log_kernel[None]
        votes = self.offset_rows(rows)
        if added is not None:
            votes = added[rows] if votes is None else votes + added[rows]
        if votes is not None:
            ratio = log_beta_ratio(self.concentration, None, votes)
            kernel = self.family.log_kernel + ratio.reshape(len(votes), self.family.n_members, -1)
        return scale[..., i] + scale[..., j] + kernel

    def log_normaliser(self, rows: Rows, added: Tensor | None = None) -> Tensor:
        """``log Z̃`` of each member (b, K)."""
        if self.offset is None and added is None:
            return log_quadratic_form(self.family.matrix(), self.flat_log_scale[rows].double().transpose(0, 1)).T
        terms = self._log_terms(rows, added)
        top = terms.amax(-1)
        return ((terms - top[..., None]).exp() * self.family.gram).sum(-1).log() + top

    def unit_features(self, rows: Rows = slice(None)) -> tuple[Tensor, Tensor]:
        """``ê = e √(π / Z)`` (K, b, n) without votes, so that ``Σ_k ê_kᵀ (M ∘ R) ê_k = 1``; and ``Σ|c|`` (b,)."""
        e, matrix, share = self.neurons.features(rows), self.family.matrix(), self.log_members[rows].exp().T  # (K, b)
        norm, size = ((e @ form * e).sum(-1) for form in (matrix, matrix.abs()))
        size = (share * size / norm).sum(0)
        check_sizes((share * norm / norm).sum(0), size, (rows.start or 0) if isinstance(rows, slice) else 0)
        return e * (share / norm).sqrt()[..., None], size

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` for some rows, float64 (b, P)."""
        if isinstance(self.square, Listed):
            return self.square.weights[rows].double()
        if self.offset is None:
            return self.square.weights(rows)
        logs = self._log_terms(rows)
        terms = (logs - logs.amax(-1, keepdim=True)).exp() * self.family.gram
        member = self.log_members[rows].exp()[..., None] / terms.sum(-1, keepdim=True)
        return (terms * member).flatten(1)

    # -- expectations ------------------------------------------------------------------------------------------------

    def expectation(self, table: Tensor) -> Tensor:
        """``Σ_p c_p(x) t_p`` for answers that all rows share: (P, A) -> (N, A) in float64."""
        step = max(1, CHUNK_ELEMENTS // self.n_components)
        return torch.cat([self._expectation_block(block) for block in table.split(step, 1)], 1)

    def _expectation_block(self, table: Tensor) -> Tensor:
        """``Σ_k π_k eᵀ(M∘R∘T_a)e / eᵀ(M∘R)e``: a quadratic form per answer needs no (rows, P) array of weights."""
        if not self.has_members or len(self) <= FEW_ROWS:
            return self.collect(lambda rows: self.weights(rows) @ table)
        family = self.family
        per_row = family.exponents.shape[:2].numel() * (table.shape[1] + 1)
        forms = QuadraticForms(family.half_gram() * family.log_kernel.exp(), family.n_neurons, table)
        features, members = self.neurons.features, self.log_members
        return torch.cat([forms.answer(features(rows), members[rows]) for rows in self.blocks(per_row)])

    def _product_expectation(self, table: Tensor) -> Tensor:
        """``Σ_p c_p(x) t_pr t_pq`` for every two labels: t (P, L) -> (N, L, L)."""
        r, q = pair_index(self.n_labels, table.device)
        step = max(1, CHUNK_ELEMENTS // self.n_components)
        answers = []
        for first, second in zip(r.split(step), q.split(step)):
            answers.append(self.expectation(table[:, first] * table[:, second]))
        return symmetric(torch.cat(answers, 1), self.n_labels)

    def _label_expectation(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``Σ_p c_p f(α_pr + k_r, A_p + Σ k)`` for each label r: (N, L) in float64."""
        if self.offset is None:
            return self.expectation(function(self.concentration, self.total[:, None]))
        alpha, table = self.concentration, self.offset

        def answer(rows: Rows) -> Tensor:
            weights, offset = self.weights(rows), table[rows]
            total = self.total + offset.sum(-1, keepdim=True)  # (b, P)
            columns = [
                (weights * function(alpha[:, r] + offset[:, r, None], total)).sum(-1) for r in range(self.n_labels)
            ]
            return torch.stack(columns, -1)

        return self.collect(answer)

    def _moments(self, order: Order) -> Tensor:
        """Moments of every row, see :class:`PairMoments`; only of squares without votes."""
        tables, family = self.family.moments(), self.family
        features, rows = self.neurons.features, self.blocks(4 * family.exponents.numel())
        return torch.cat([tables.answer(features(part), self.log_members[part], order) for part in rows])

    def member_means(self) -> Tensor:
        """The mean of every member by itself, of laws without votes (K, N, L)."""
        return self.family.moments().member_means(self.neurons.features(slice(None)))

    def first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L) in float64."""
        if self.has_members:
            return self._moments("first")

        def answer(rows: Rows) -> Tensor:
            scaled, _, offset = self._scaled_weights(rows)
            return scaled @ self.concentration + offset * scaled.sum(-1, keepdim=True)

        return self.collect(answer)

    def two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        if self.has_members:
            first, second = self._moments("diagonal").unbind(1)
            return first, second
        return self.first_moments(), self._second_moments()

    def _second_moments(self) -> Tensor:
        alpha = self.concentration

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows)
            mass = offset * (offset + 1.0) * scaled.sum(-1, keepdim=True)
            return scaled @ alpha.square() + (2.0 * offset + 1.0) * (scaled @ alpha) + mass

        return self.collect(answer)

    def all_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` (N, L) and ``E[ℓ_r ℓ_q]`` (N, L, L)."""
        if self.has_members:
            both = self._moments("full")
            return both[:, 0], both[:, 1:]
        return self.first_moments(), self._product_moments()

    def _product_moments(self) -> Tensor:
        alpha = self.concentration

        def answer(rows: Rows) -> Tensor:
            _, scaled, offset = self._scaled_weights(rows)
            linear, mass = scaled @ alpha, scaled.sum(-1, keepdim=True)
            quadratic = torch.stack([(scaled * column) @ alpha for column in alpha.T], 1)
            products = quadratic + offset[:, :, None] * (2.0 * linear + offset * mass)[:, None, :]
            symmetrised = 0.5 * (products + products.transpose(1, 2))
            return symmetrised + torch.diag_embed(linear + offset * mass)

        return self.collect(answer)

    def _scaled_weights(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """``c / A`` and ``c / (A (A + 1))`` (b, P) with the row's own totals A, and its votes (b or 1, L)."""
        none = self.concentration.new_zeros(1, self.n_labels)
        offset = none if self.offset is None else self.offset[rows]
        total = self.total + offset.sum(-1, keepdim=True)
        scaled = self.weights(rows) / total
        return scaled, scaled / (total + 1.0), offset

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r] = Σ c (ψ(α_r) - ψ(A))`` (N, L)."""
        return self._label_expectation(lambda a, total: torch.digamma(a) - torch.digamma(total))

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ]`` (N, L, L), by digamma and trigamma."""
        diagonal = self._label_expectation(lambda a, total: torch.polygamma(1, a))
        shared = self._label_expectation(lambda a, total: torch.polygamma(1, total).expand_as(a))[:, :1, None]
        first = self.expected_log()
        second = self._expected_log_products()
        covariance = second - first[:, :, None] * first[:, None, :]
        return covariance + torch.diag_embed(diagonal) - shared

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

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L)."""
        return self._label_expectation(
            lambda a, total: (torch.digamma(total + 1.0) - torch.digamma(a + 1.0)) * a / total
        )

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0)`` (N, L): none."""
        return torch.zeros(len(self), self.n_labels, dtype=torch.float64, device=self.device)

    def prob_greater(self, first: int, second: int) -> Tensor:
        """``P(ℓ_j > ℓ_k) = Σ c I_½(α_k, α_j)`` (N,)."""
        alpha, table = self.concentration.detach(), self.offset
        if table is None:

            def below() -> Tensor:
                return beta_below(alpha[:, second], alpha[:, first])

            named = isinstance(self.square, Square)
            half = self.family.keep(f"{first} over {second}", below) if named else below()
            return self.expectation(half[:, None])[:, 0].clamp(0.0, 1.0)

        def answer(rows: Rows) -> Tensor:
            a, b = (alpha[:, r] + table[rows, r, None] for r in (second, first))
            return (self.weights(rows) * beta_below(a, b)).sum(-1)

        return self.collect(answer).clamp(0.0, 1.0)

    # -- one share ---------------------------------------------------------------------------------------------------

    def _two_parts(self, group: list[int]) -> DirichletRows:
        rest = [r for r in range(self.n_labels) if r not in group]
        parts = self.amalgamate([group, rest])
        return DirichletRows(parts.square, parts.votes)

    def ends(self, group: list[int]) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` (N,): 0 and 1, there are no atoms."""
        return np.zeros(len(self)), np.ones(len(self))

    def _is_quick(self, queries: int) -> bool:
        """Whether so many queries per row are answered sooner without a table."""
        return len(self) * queries * self.n_components <= DIRECT_EVALUATIONS

    def _ask_each(self, answer: Callable[..., Array], values: Array) -> Array:
        """Answers of the first of two shares, by the Beta laws of every row: values (N, Q) -> (N, Q)."""
        parts = []
        for rows in self.chunks():
            weights, votes = self.weights(rows).detach().cpu().numpy(), self.offset_rows(rows)
            check_weights(weights, rows.start)
            alpha = self.concentration if votes is None else self.concentration + votes[:, None]
            first, second = np.moveaxis(alpha.detach().cpu().numpy(), -1, 0)
            parts.append(np.stack([answer(first, second, weights, column) for column in values[rows].T], 1))
        return np.concatenate(parts)

    def share_cdf(self, group: list[int], points: Array) -> Array:
        """``P(share <= t)`` at points inside (0, 1), each row's own (N, Q)."""
        pair = self._two_parts(group)
        if pair.offset is not None or pair._is_quick(points.shape[1]):
            with np.errstate(divide="ignore"):
                return pair._ask_each(direct_cdf, scipy.special.logit(np.clip(points, 0.0, 1.0)))
        a, b = pair.concentration.detach().cpu().numpy().T
        table = beta_table(a, b)
        parts = []
        for rows in row_blocks(pair):
            weights, keep = row_weights(pair, rows)
            parts.append(table.cdf(weights, points[rows], keep))
        return np.concatenate(parts)

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of the share at points inside (0, 1), each row's own (S, N)."""
        return self._two_parts(group).log_prob(log_share(torch.stack([value, 1.0 - value], -1).double()))

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles at levels, each row's own (N, Q)."""
        pair = self._two_parts(group)
        if pair.n_components > 1 and pair._is_quick(levels.shape[1] * SEARCH_STEPS):
            return scipy.special.expit(pair._ask_each(direct_quantile, levels))
        return label_quantiles(pair, levels[:, None])[:, 0]

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every label's share at levels (N, L, A)."""
        if self.has_members and self.n_components > 1:
            return square_quantiles(self, levels)
        return label_quantiles(self, levels)

    # -- density -----------------------------------------------------------------------------------------------------

    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L): (S, N)."""
        return torch.cat([self.log_densities(rows, logs[:, rows])[0] for rows in self.chunks()], 1)

    def _by_points(self, densities: Callable[[Tensor], list[Tensor]], logs: Tensor) -> list[Tensor]:
        """Densities at S points per row, some points at a time: logs (S, b, L) -> each (S, b)."""
        width = self.n_components
        if isinstance(self.square, Square):
            width = self.family.n_members * self.family.n_neurons * 4
        chunk = max(1, block_elements(self.device.type) // width)
        parts = logs.split(max(1, chunk // max(1, logs.shape[1])))
        return [torch.cat(answers) for answers in zip(*(densities(part) for part in parts))]

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """log p, and log of its positive part ``Σ c⁺ Dir(α)`` if asked, at S points per row: (S, b, L) -> (S, b)."""
        if isinstance(self.square, Listed):
            return self._listed_densities(rows, logs, envelope)
        family = self.family
        base = (self.log_members[rows] - self.log_normaliser(rows)).T[:, None]  # (K, 1, b)
        offset = self.offset_rows(rows)
        readout = family.readout.double()
        positive = symmetric(family.half_gram(), family.n_neurons).clamp_min(0.0) if envelope else None

        def densities(points: Tensor) -> list[Tensor]:
            features = self.neurons.log_features(rows, points)
            squares = [log_squared_norm(readout, features)]
            if positive is not None:
                squares.append(log_quadratic_form(positive, features))
            answers = [torch.logsumexp(square.unflatten(1, points.shape[:2]) + base, 0) for square in squares]
            return answers if offset is None else [answer + (offset * points).sum(-1) for answer in answers]

        return self._by_points(densities, logs)

    def _listed_densities(self, rows: Rows, logs: Tensor, envelope: bool) -> list[Tensor]:
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
        """Log density at n points per row, logs (b, n, L) -> (b, n), of a law without negative weights.

        Exponents are formed in float64, their exponentials summed in float32. Without negative weights the columns of V
        have no negative product, ``‖V e‖² >= Σ_i ‖V_i‖² e_i²``: nothing cancels, and float32 is good to about 1e-6.
        """
        if isinstance(self.square, Listed):
            return self.log_densities(rows, logs.transpose(0, 1))[0].T
        base = self.log_members[rows] - self.log_normaliser(rows)  # (b, K)
        offset, family = self.offset_rows(rows), self.family
        members = []
        for k, exponents in enumerate(family.exponents.double().transpose(-1, -2)):
            # columns of unit length, so that the largest exponent is the largest term
            length = family.readout[k].double().square().sum(0).sqrt()
            readout = (family.readout[k].double() / torch.where(length > 0.0, length, 1.0)).T.float()  # (n, m)
            scale = self.flat_log_scale[rows, k].double() - family.log_root_norm[k] + length.log()
            members.append(quick_log_norms(scale, exponents, readout, logs) + base[:, k, None])
        answer = members[0] if len(members) == 1 else torch.logsumexp(torch.stack(members), 0)
        return answer if offset is None else answer + (logs @ offset[..., None]).squeeze(-1)

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: logs (S, L) -> (S, b), as m products (S, n) @ (n, b)."""
        if isinstance(self.square, Listed):
            n_rows = len(range(len(self))[rows])
            return self.log_densities(rows, logs[:, None].expand(-1, n_rows, -1))[0]
        family = self.family
        powers = logs @ family.exponents.double().transpose(-1, -2) - family.log_root_norm[:, None, :]  # (K, S, n)
        scale = self.flat_log_scale[rows].double().transpose(0, 1)  # (K, b, n)
        top_point, top_row = powers.amax(-1, keepdim=True), scale.amax(-1, keepdim=True)
        points, neurons = (powers - top_point).exp(), (scale - top_row).exp().transpose(-1, -2)
        total = torch.zeros((), dtype=torch.float64, device=logs.device)
        for q in range(family.readout.shape[1]):
            total = total + ((points * family.readout[:, q, None, :].double()) @ neurons).square()
        base = self.log_members[rows] - self.log_normaliser(rows)  # (b, K)
        log_p = total.log() + 2.0 * (top_point + top_row.transpose(-1, -2)) + base.T[:, None, :]
        if self.offset is not None:
            log_p = log_p + logs @ self.offset[rows].T
        return torch.logsumexp(log_p, 0)

    def shared_log_prob(self, logs: Tensor) -> Callable[[slice], Tensor]:
        """Log densities at points (S, L) that all rows share, by float32 products: rows -> (b, S).

        A member's density is ``‖V (p_s ∘ e)‖²`` with ``p_s`` of the point and ``e`` of the row: m float32 products
        (b, n) @ (n, S). It is a sum of squares, so an error of 1e-7 in each product leaves it good to 1e-7 √(p⁺/p), p⁺
        the density's positive part. Points so far from a row that their component has no weight in it (some 1e-13) may
        come out as any finite number.
        """
        if not self.has_members:
            return lambda rows: self.log_prob_grid(logs, rows).T
        family = self.family
        powers = logs @ family.exponents.double().transpose(-1, -2) - family.log_root_norm[:, None, :]  # (K, S, n)
        top = powers.amax(-1)  # (K, S)
        shifted = (powers - top[..., None]).float().clamp_min_(NEGLIGIBLE_FACTOR_EXPONENT)
        points = shifted.exp_().transpose(-1, -2)  # (K, n, S)
        readout = family.readout.double()
        length = readout.square().sum(1).sqrt()  # (K, n); columns of unit length, so that factors compare as terms do
        unit = (readout / torch.where(length > 0.0, length, 1.0)[:, None]).float()

        def log_prob(rows: slice) -> Tensor:
            scale = self.flat_log_scale[rows].double().transpose(0, 1) + length.log()[:, None]  # (K, b, n)
            highest = scale.amax(-1, keepdim=True)
            neurons = (scale - highest).float().clamp_min_(NEGLIGIBLE_FACTOR_EXPONENT).exp_()
            base = (self.log_members[rows] - self.log_normaliser(rows)).T[..., None] + 2.0 * highest  # (K, b, 1)
            members = []
            for k in range(family.n_members):
                total = torch.zeros(neurons.shape[1], len(logs), dtype=torch.float32, device=logs.device)
                for row in unit[k]:
                    product = (neurons[k] * row) @ points[k]
                    total.addcmul_(product, product)
                members.append(total.clamp_min_(SMALLEST_SHARED_DENSITY).log_().double() + 2.0 * top[k] + base[k])
            return members[0] if len(members) == 1 else torch.logsumexp(torch.stack(members), 0)

        return log_prob

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws per row (n, N, L): from the positive part, kept with probability p / p⁺."""
        return draw(self, n, generator)

    # -- votes -------------------------------------------------------------------------------------------------------

    def log_counts(self, table: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of further votes k (N, L): (N,)."""

        def answer(rows: Rows) -> Tensor:
            if isinstance(self.square, Listed):
                return log_signed_sum(self._vote_factors(rows, table), self.weights(rows))
            ratio = self.log_normaliser(rows, table) - self.log_normaliser(rows)
            return torch.logsumexp(self.log_members[rows] + ratio, -1)

        return self.collect(answer)

    def _vote_factors(self, rows: Rows, table: Tensor) -> Tensor:
        """``log E_p[Π ℓ^k]`` of further votes under every component (b, P)."""
        return log_beta_ratio(self.concentration, self.offset_rows(rows), table[rows])

    def with_votes(self, table: Tensor) -> Square | Listed:
        """The weights after further votes (N, L), which are to be added to those already seen."""
        if isinstance(self.square, Listed):

            def listed(rows: Rows) -> Tensor:
                factor = self._vote_factors(rows, table)
                weights = self.weights(rows) * (factor - factor.amax(-1, keepdim=True)).exp()
                return weights / weights.sum(-1, keepdim=True)

            return Listed(self.collect(listed), self.concentration)

        def members(rows: Rows) -> Tensor:
            return self.log_members[rows] + self.log_normaliser(rows, table) - self.log_normaliser(rows)

        return Square(self.family, self.flat_log_scale, torch.log_softmax(self.collect(members), -1))

    # -- smaller compositions ----------------------------------------------------------------------------------------

    def same_weights(self, exponents: Tensor) -> Square:
        """The member of the family with other exponents and these weights: readout ``V'ᵀV' = M ∘ R / R'``.

        The ratio of kernels is itself a positive semidefinite kernel (an integral of products), so by Schur's
        theorem the root exists; rounding below zero is cut off.
        """
        family = self.family
        log_kernel, _ = unit_kernel(exponents)
        ratio = (family.log_kernel - log_kernel).exp()
        readout = root_of(symmetric(family.half_gram() * ratio, family.n_neurons))
        # a gram matrix not rounded by the root, so that the weights are the same to the last digits
        return Square(PairFamily(exponents, readout, family.gram * ratio), self.flat_log_scale, self.log_members)

    def _merged(self, merge: Callable[[Tensor], Tensor], exponents: Callable[[Tensor], Tensor]) -> Parts:
        if self.has_members:
            return Parts(self.same_weights(exponents(self.family.exponents.double())))
        votes = None if self.offset is None else merge(self.offset)
        return Parts(Listed(self.weights(), merge(self.concentration)), votes=votes)

    def amalgamate(self, groups: list[list[int]]) -> Parts:
        """The law of the group totals: same family, ``w'_iS = Σ_{l in S} w_il + (|S|-1)/2``, weights unchanged."""
        return self._merged(
            lambda t: torch.stack([t[:, g].sum(-1) for g in groups], -1),
            lambda w: torch.stack([w[..., g].sum(-1) + (len(g) - 1) / 2 for g in groups], -1),
        )

    def subcomposition(self, labels: list[int]) -> Parts:
        """The law of the proportions among some labels: exponents restricted to them, weights unchanged."""
        return self._merged(lambda t: t[:, labels], lambda w: w[..., labels])

    def log_prob_known(self, values: Tensor) -> Tensor:
        """Log density of the known shares of every row, NaN where one is unknown, the same labels in all rows (N,)."""
        unknown = torch.isnan(values[0]).nonzero().flatten().tolist()
        known = [r for r in range(self.n_labels) if r not in unknown]
        rest = 1.0 - values[:, known].sum(1, keepdim=True)
        parts = self.amalgamate([[r] for r in known] + [unknown])
        merged = DirichletRows(parts.square, parts.votes)
        return merged.log_prob(log_share(torch.cat([values[:, known], rest], 1).double())[None])[0]

    # -- known shares ------------------------------------------------------------------------------------------------

    def reweighted(self, shares: KnownShares, merged: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (N, P) given log shares of known labels and of all others together (N, K+1); their density (N,)."""

        def merge(table: Tensor) -> Tensor:
            return torch.cat([table[:, shares.labels], table[:, shares.others].sum(-1, keepdim=True)], 1)

        alpha = merge(self.concentration)  # (P, K+1)
        log_normaliser = log_beta(alpha)

        def log_density(rows: slice) -> Tensor:
            points, offset = merged[rows], self.offset_rows(rows)
            logs = points @ (alpha - 1.0).T - log_normaliser
            if offset is None:
                return logs
            votes = merge(offset)
            return logs + (votes * points).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, votes)

        return self._reweight(log_density, "shares")

    def _reweight(
        self, log_density: Callable[[slice], Tensor], what: Literal["shares", "ratios"]
    ) -> tuple[Tensor, Tensor]:
        """Weights (N, P) times densities whose logarithms these are, closed; and the log of their sums (N,)."""
        parts = []
        for rows in self.chunks(per_pair=2):
            current = self.weights(rows)
            check_weights(current, rows.start or 0)
            parts.append(_times(current, log_density(rows), what, rows.start or 0))
        weights, densities = (torch.cat(column) for column in zip(*parts))
        return weights, densities

    def condition(self, shares: KnownShares, n: int, generator: torch.Generator | None) -> Remainder | WeightedDraws:
        """The law of the other shares: exact."""
        merged = torch.cat([shares.values, shares.left[:, None]], 1).log()
        weights, log_p = self.reweighted(shares, merged)
        votes = None if self.offset is None else self.offset[:, shares.others]
        return Remainder(Parts(Listed(weights, self.concentration[:, shares.others]), votes=votes), log_p)

    def condition_ratios(self, known: KnownRatios) -> tuple[Parts, Tensor]:
        """The law of the groups' totals, and the log density of the ratios (N,)."""

        def log_density(rows: slice) -> Tensor:
            points, offset = known.log_proportions[rows], self.offset_rows(rows)
            # density of log ratios: that of the proportions times their product
            logs = points @ self.concentration.T - known.log_ratios[rows, None]
            for group in known.groups:
                alpha = self.concentration[:, group]
                logs = logs - log_beta(alpha)
                if offset is not None:
                    votes = offset[:, group]
                    logs = logs + (votes * points[:, group]).sum(-1, keepdim=True) - log_beta_ratio(alpha, None, votes)
            return logs

        weights, log_p = self._reweight(log_density, "ratios")
        seen = None if self.offset is None else known.merged(self.offset)
        return Parts(Listed(weights, known.merged(self.concentration)), votes=seen), log_p

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def chain_rows(self, numbers: Index) -> tuple[Array, Array | None]:
        """Weights and votes of points, which fall to the rows in order, over and over."""
        rows = torch.as_tensor(numbers % len(self), device=self.device)
        offset, weights = self.offset_rows(rows), self.weights(rows).detach().cpu().numpy()
        check_weights(weights)
        return weights, None if offset is None else offset.detach().cpu().numpy()

    @property
    def stick_map(self) -> StickMap:
        """How shares and uniforms map to each other, of points that fall to the rows in order."""
        return StickMap(self.concentration.detach().cpu().numpy(), self.chain_rows)

    def rosenblatt(self, logs: Tensor, random_state: Any) -> Tensor:
        """Independent uniforms (T, L-1) of log shares (T, L), which fall to the rows in order, over and over."""
        return torch.as_tensor(self.stick_map.to_uniforms(logs.cpu().numpy()), device=self.device)

    def inverse_rosenblatt(self, levels: Tensor) -> Tensor:
        """Log shares (T, L) whose :meth:`rosenblatt` these are (T, L-1)."""
        return torch.as_tensor(self.stick_map.to_shares(levels.cpu().numpy()), device=self.device)


def beta_below(a: Tensor, b: Tensor, at: float | Array = 0.5) -> Tensor:
    """``I_x(a, b)``, the chance that Beta(a, b) falls below x, one half by default."""
    return torch.as_tensor(scipy.special.betainc(a.cpu().numpy(), b.cpu().numpy(), at), device=a.device)


def _times(current: Tensor, logs: Tensor, what: Literal["shares", "ratios"], first_row: int) -> tuple[Tensor, Tensor]:
    """Signed weights (b, P) times densities whose logarithms these are, closed; and the log of their sum (b,)."""
    logs = logs + torch.where(current != 0.0, current.abs(), 1.0).log()
    logs = logs.masked_fill(current == 0.0, -torch.inf)
    top = logs.amax(-1, keepdim=True)
    terms = current.sign() * (logs - top).exp()
    total = terms.sum(-1, keepdim=True)
    lost = ~(total > SMALLEST_DENSITY_SHARE * terms.clamp_min(0.0).sum(-1, keepdim=True))
    if bool(lost.any()):
        row = int(torch.nonzero(lost[:, 0])[0]) + first_row
        raise InputError(f"the law of row {row} has no density at the known {what}; nothing follows from them.")
    return terms / total, (total.log() + top)[:, 0]
