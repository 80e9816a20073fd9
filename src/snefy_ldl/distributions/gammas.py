"""Rows of a law with a centre, with labels that may be absent, or with both: closed gammas, by one integral each.

Every component is ``g_r = present_r · c_r · Gamma(α_r)``, closed. Its density is that of ``ℓ' = C(ℓ / c)`` times a
Jacobian; its moments (:mod:`snefy_ldl.distributions.components`) and the laws of its shares
(:mod:`snefy_ldl.distributions.share_quantiles`) are one-dimensional integrals. Where labels may be absent, with S the
labels that are there (the support),

    p(S, ℓ_S | x) = Σ_ij M_ij e^{h_i+h_j} Π_{r in S} e^{a_ir+a_jr+b_r(x)} ℓ'_r^{w_ir+w_jr} Γ(Σ_{r in S} α_ijr)  /  Z(x),
    Z(x) = Σ_ij M_ij e^{h_i+h_j} K_ij(x),   K_ij = Π_r (1 + o_ijr) - 1,   o_ijr = e^{a_ir+a_jr+b_r(x)} Γ(α_ijr),

with respect to the counting measure on supports times Lebesgue measure on the face (all present shares but one).

Votes k multiply the density by ``Π ℓ_r^{k_r}``. As ``T^{-|k|} = ∫ s^{|k|-1} e^{-sT} ds / Γ(|k|)``, each component
becomes a mixture over s of components of the same kind, with concentrations ``α + k``, centre ``c / (1 + c s)`` and,
for labels without a vote, odds ``o (1 + c s)^{-α}``: see :class:`Voted`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from snefy_ldl._internal.limits import CHUNK_ELEMENTS, block_elements
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.special import log_beta, log_signed_sum, pair_index, symmetric
from snefy_ldl._internal.threads import map_blocks
from snefy_ldl._internal.tolerances import (
    LOG_ODDS_LIMIT,
    LOGIT_LIMIT,
    NEGLIGIBLE_WEIGHT,
    SAME_CENTRE,
    SMALLEST_POSITIVE,
    TAIL_MASS,
)
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.distributions.component_table import ComponentTable
from snefy_ldl.distributions.components import (
    ComponentMoments,
    PresenceComponents,
    RowMoments,
    RowPresenceMoments,
    log_covariance,
    moved_log_norm,
)
from snefy_ldl.distributions.conditioned import KnownRatios, KnownShares, Remainder, WeightedDraws, condition_by_draws
from snefy_ldl.distributions.dirichlet import DirichletRows, RowBlocks, beta_below
from snefy_ldl.distributions.family import PairFamily, root_of
from snefy_ldl.distributions.log_densities import log_density_at_zero, log_known
from snefy_ldl.distributions.parts import Parts, Rows, Scale, Square, check_weights
from snefy_ldl.distributions.present_shares import FEW_SUMS, PresentShares
from snefy_ldl.distributions.rosenblatt import PresenceMap, RatioMap, StickMap, ratio_map
from snefy_ldl.distributions.sampling import RandomStream, draw, draw_closed
from snefy_ldl.distributions.share_quantiles import ShareRow, beta_guess, solve_quantiles
from snefy_ldl.distributions.sparse_shares import SparseShares
from snefy_ldl.distributions.voted import Voted
from snefy_ldl.errors import InputError

#: Components with a smaller share of their neurons' own kernels are not tabulated; a row that gives those more weight
#: than this in all is answered by itself.
UNUSED, LEFT_OUT = 1e-9, 1e-7
#: Up to this many points are answered one by one where a table would take longer.
FEW_POINTS = 64
#: A level this close to an atom that holds most of a share's law is the atom's: integrals do not tell them apart.
ATOM_SLACK = 2e-7
#: A guess of a logit's deviation beyond this is that of moments which rare draws make.
BROAD_GUESS = 5.0
#: Densities of a logit below this are computed in logarithms: integrals give them to about 1e-8.
UNRESOLVED = 1e-5
#: Sums of shares of several rows that are solved for at once, times neurons.
SUMS_TOGETHER = 1 << 15
#: Points of a row that are answered at a time: those that lie together need few nodes.
POINTS_TOGETHER = 16


class GammaRows(RowBlocks):
    """N rows of a law with a centre or with zeros.

    Args:
        parts: of the law; its square factors over neurons.
    """

    def __init__(self, parts: Parts) -> None:
        assert isinstance(parts.square, Square)
        self.parts, self.square, self.shift, self.offset = parts, parts.square, parts.shift, parts.votes
        #: ``h̃`` (N, K, n), and log weights of the members (N, K)
        self.flat_log_scale, self.log_members = parts.square.log_scale, parts.square.log_members
        self.family, self.device = parts.square.family, parts.square.family.device
        self.n_labels = self.family.n_labels
        self.concentration = self.family.concentration
        self.n_components = len(self.concentration)
        scale = parts.scale
        even = torch.zeros(1, self.n_labels, dtype=torch.float64, device=self.family.device)
        self.log_centre = even if scale is None else scale.log_centre
        self.per_row_centre = scale is not None and scale.per_row
        self.components = self.family.components
        #: whether shares may be exactly zero
        self.has_atoms = self.components is not None
        #: weights and expectations of the components; where all labels are there, also the law of ℓ'
        self.frame = DirichletRows(self.square, None)
        self.has_members = not self.has_atoms and self.shift is None

    def log_members_after_votes(self) -> Tensor:
        """Log weight of each member once the votes are known (N, K)."""
        answer = self.log_members.clone()
        for row in range(len(self)):
            if self.offset is not None and self.offset[row].any():
                voted = self.voted(row)
                total = answer.new_zeros(answer.shape[1])
                total.index_add_(0, voted.pairs // (self.n_components // len(total)), voted.weights.sum(1))
                answer[row] = total.clamp_min(SMALLEST_POSITIVE).log()
        return answer

    def offset_rows(self, rows: Rows) -> Tensor | None:
        """None: draws come from the law before the votes, which see to themselves."""
        return None

    def unit_features(self, rows: Rows = slice(None)) -> tuple[Tensor, Tensor]:
        """See :class:`DirichletRows`."""
        return self.frame.unit_features(rows)

    @property
    def _shared(self) -> bool:
        """Whether all rows have the same components."""
        return not self.per_row_centre and self.shift is None

    def _centre_rows(self, rows: Rows) -> Tensor:
        """``log c`` of some rows (b or 1, L)."""
        return self.log_centre[rows] if self.per_row_centre else self.log_centre

    def row_centre(self, row: int) -> Tensor:
        """``log c`` of one row (L,)."""
        return self.log_centre[row if self.per_row_centre else 0]

    def row_components(self, row: int) -> PresenceComponents:
        """Components of one row; where all labels are there, with odds that say so."""
        if self.components is None:
            return PresenceComponents.always_there(self.concentration.detach())
        parts = self.components.detached()
        return parts if self.shift is None else parts.moved(self.shift[row].detach())

    def row_weights(self, row: int) -> Tensor:
        """Weights of one row before votes (P,), without a gradient."""
        return self.weights(slice(row, row + 1))[0].detach()

    def stream(self, seed: int, generator: torch.Generator | None) -> RandomStream:
        """Random numbers where this law's numbers live."""
        return RandomStream(self.device, seed, generator)

    def propose_from(self, parts: PresenceComponents, component: Tensor, source: RandomStream) -> Tensor:
        """One draw of ``log ℓ'`` from each of these components (n,) -> (n, L), -inf for absent labels."""
        return draw_closed(parts.alpha[component], parts.log_odds[component], source)

    # -- weights and densities, before votes -------------------------------------------------------------------------

    def _normaliser(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """``g`` (b or 1, K, n), log terms ``h̃_i + h̃_j + log R_ij`` (b, K, P), and ``log Z`` of each member (b, K)."""
        family, scale = self.family, self.flat_log_scale[rows].double()
        i, j = pair_index(family.n_neurons, self.device)
        if self.shift is None:
            g, kernel = family.log_root_norm[None], family.log_kernel[None]
        else:
            assert self.components is not None
            log_odds = self.components.log_odds.unflatten(0, (family.n_members, -1))
            log_norm = moved_log_norm(log_odds, self.shift[rows][None]).transpose(0, 1)
            g = 0.5 * log_norm[..., i == j]
            kernel = log_norm - g[..., i] - g[..., j]
        terms = scale[..., i] + scale[..., j] + kernel
        return g, terms, log_signed_sum(terms, family.gram)

    def weights(self, rows: Rows = slice(None)) -> Tensor:
        """``c`` of some rows before votes, float64 (b, P): signed, rows sum to one."""
        if self.shift is None:
            return self.frame.weights(rows)
        numbers = torch.arange(len(self), device=self.device)[rows]
        step = max(1, block_elements(self.device.type) // (2 * self.concentration.numel()))

        def answer(part: Tensor) -> Tensor:
            _, terms, log_z = self._normaliser(part)
            member = self.log_members[part] - log_z
            return ((terms + member[..., None]).exp() * self.family.gram).flatten(1)

        return torch.cat([answer(part) for part in numbers.split(step)])

    def plain_logs(self, logs: Tensor, rows: Rows = slice(None)) -> Tensor:
        """``log ℓ' = log C(ℓ / c)``: logs (..., b, L), -inf for absent labels, as in what comes back."""
        return torch.log_softmax(logs - self._centre_rows(rows), -1)

    def log_densities(self, rows: Rows, logs: Tensor, envelope: bool = False) -> list[Tensor]:
        """log p of ``ℓ'``, and of its positive part if asked: logs (S, b, L), -inf for absent labels -> (S, b)."""
        if not self.has_atoms:
            return self.frame.log_densities(rows, logs, envelope)
        gram = self.family.gram
        grams = [gram, gram.clamp_min(0.0)] if envelope else [gram]
        g, _, log_z = self._normaliser(rows)
        scale = self.flat_log_scale[rows].double() - g  # h, (b, K, n)
        base = self.log_members[rows] - log_z  # (b, K)
        step = max(1, block_elements(self.device.type) // (2 * self.n_components * max(1, logs.shape[1])))
        parts = []
        for points in logs.split(step):
            squares = self._log_squares(points.flatten(0, 1), scale.repeat(len(points), 1, 1), grams)
            answers = [
                torch.logsumexp(square + base.repeat(len(points), 1), -1).unflatten(0, points.shape[:2])
                for square in squares
            ]
            if self.shift is not None:
                moved = torch.where(torch.isneginf(points), 0.0, self.shift[rows]).sum(-1)
                answers = [answer + moved for answer in answers]
            parts.append(answers)
        return [torch.cat(answers) for answers in zip(*parts)]

    def _log_squares(self, logs: Tensor, scale: Tensor, grams: list[Tensor]) -> list[Tensor]:
        """``log Σ_ij M_ij e^{u_i + u_j} Γ(Σ_S α_ij)`` at points (T, L) with scales h (T, K, n): each (T, K)."""
        family = self.family
        assert family.presence is not None
        there = ~torch.isneginf(logs)
        supports, which = torch.unique(there, dim=0, return_inverse=True)
        exponents, presence = family.exponents.double(), family.presence.double()
        known = torch.where(there, logs, 0.0)
        u = (
            scale
            + torch.einsum("tl,knl->tkn", known, exponents)
            + torch.einsum("tl,knl->tkn", there.double(), presence)
        )
        i, j = pair_index(family.n_neurons, self.device)
        half = torch.einsum("ql,knl->qkn", supports.double(), exponents + 0.5)  # (Q, K, n)
        log_gamma = torch.lgamma(half[..., i] + half[..., j])  # (Q, K, P)
        terms = u[..., i] + u[..., j] + log_gamma[which]
        return [log_signed_sum(terms, gram) for gram in grams]

    def _log_prob_before(self, logs: Tensor, rows: Rows) -> Tensor:
        """Log density before votes at log shares (S, b, L): (S, b)."""
        plain = self.plain_logs(logs, rows)
        return self.log_densities(rows, plain)[0] + _jacobian(plain, logs)

    def log_prob(self, logs: Tensor) -> Tensor:
        """Log density at log shares (S, N, L), -inf for exact zeros: (S, N)."""
        per_pair = 1 if self.shift is None else self.n_labels
        log_p = torch.cat([self._log_prob_before(logs[:, rows], rows) for rows in self.chunks(per_pair)], 1)
        if self.offset is None:
            return log_p
        # a label with votes is there; 0 · log 0 = 0
        seen = torch.where(self.offset > 0.0, self.offset * logs, 0.0).sum(-1)
        return log_p + seen - self.log_evidence()

    def log_prob_grid(self, logs: Tensor, rows: slice) -> Tensor:
        """Log density of some rows at the same points: log shares (S, L) -> (S, b)."""
        numbers = torch.arange(len(self), device=self.device)[rows]
        if self._shared and self.offset is None and not self.has_atoms:
            plain = self.plain_logs(logs)
            return self.frame.log_prob_grid(plain, rows) + (plain - logs).sum(-1)[:, None]
        part = GammaRows(self.parts.take(numbers))
        return part.log_prob(logs[:, None].expand(-1, len(numbers), -1))

    def shared_log_prob(self, logs: Tensor) -> Callable[[slice], Tensor]:
        """Log densities at points (S, L) that all rows share: rows -> (b, S)."""
        return lambda rows: self.log_prob_grid(logs, rows).T

    # -- draws -------------------------------------------------------------------------------------------------------

    def propose(self, component: Tensor, source: RandomStream, rows: Rows) -> Tensor:
        """One draw of ``log ℓ'`` from each of these components (b, n) of some rows: (b, n, L), -inf for absent ones."""
        assert self.components is not None
        log_odds = self.components.log_odds[component]
        if self.shift is not None:
            log_odds = (log_odds + self.shift[rows][:, None]).clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)
        return draw_closed(self.components.alpha[component], log_odds, source)

    def quick_log_prob(self, rows: slice, logs: Tensor) -> Tensor:
        """Log density of ``ℓ'`` at n points per row, logs (b, n, L) -> (b, n)."""
        return self.log_densities(rows, logs.transpose(0, 1))[0].T

    def draw_logs(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Logarithm of n exact draws per row (n, N, L); -inf where a share is exactly zero."""
        if self.offset is None:
            plain = draw(self if self.has_atoms else self.frame, n, generator)
            return torch.log_softmax(plain + self.log_centre, -1)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device if generator else None))
        source = RandomStream(self.device, seed, generator)
        rows = [
            self._voted_draws(row, n, source) if votes.any() else self._before(row).draw_logs(n, generator)[:, 0]
            for row, votes in enumerate(self.offset)
        ]
        return torch.stack(rows, 1)

    def _before(self, row: int) -> GammaRows:
        """One row before its votes."""
        return GammaRows(Parts(self.square, self.shift, self.parts.scale).take(slice(row, row + 1)))

    def _voted_draws(self, row: int, n: int, source: RandomStream) -> Tensor:
        """n draws of one row after votes (n, L): proposals from the positive part, kept as before the votes."""
        voted = self.voted(row)
        positive = voted.weights.clamp_min(0.0).flatten()
        ends = positive.cumsum(0)
        at, logs, filled = slice(row, row + 1), [], 0
        for _ in range(100_000):
            wanted = math.ceil((n - filled) / float(1.0 / positive.sum()) * 1.1) + 8
            wanted = min(wanted, block_elements(self.device.type) // (4 * self.n_labels))
            level = source.uniform(wanted) * ends[-1]
            pick = torch.searchsorted(ends, level, right=True).clamp_max(len(ends) - 1)
            pair, part = pick // voted.n_parts, pick % voted.n_parts
            log_odds = None if voted.log_odds is None else voted.log_odds[pair, part]
            proposal = draw_closed(voted.alpha[pair], log_odds, source, voted.log_centre[part])
            density, envelope = self.log_densities(at, self.plain_logs(proposal, at)[:, None], envelope=True)
            kept = source.uniform(wanted).log() <= (density - envelope)[:, 0]
            logs.append(proposal[kept])
            filled += int(kept.sum())
            if filled >= n:
                return torch.cat(logs)[:n]
        raise InputError(f"row {row} keeps next to none of its proposals: its density is not the one its weights say.")

    # -- votes -------------------------------------------------------------------------------------------------------

    def _has_votes(self, row: int) -> bool:
        return self.offset is not None and bool(self.offset[row].any())

    def voted(self, row: int, votes: Tensor | None = None, for_cdf: bool = False) -> Voted:
        """One row's components after its votes, or after these (L,)."""
        if votes is None:
            assert self.offset is not None
            votes = self.offset[row]
        weights = self.row_weights(row)
        presence = self.row_components(row) if self.has_atoms else None
        return Voted.of(weights, self.concentration.detach(), presence, self.row_centre(row), votes, for_cdf)

    def log_evidence(self) -> Tensor:
        """``log E[Π ℓ^k]`` of the votes seen so far (N,)."""
        if self.offset is None:
            return torch.zeros(len(self), dtype=torch.float64, device=self.device)
        return self._log_powers(self.offset)

    def _log_powers(self, table: Tensor) -> Tensor:
        rows = torch.arange(len(self), device=self.device)
        none = torch.zeros((), dtype=torch.float64, device=self.device)
        return torch.stack([self.voted(int(r), table[r]).log_total if table[r].any() else none for r in rows])

    def log_counts(self, table: Tensor) -> Tensor:
        """``log E[Π ℓ^k]`` of further votes k (N, L): (N,)."""
        whole = table if self.offset is None else table + self.offset
        return self._log_powers(whole) - self.log_evidence()

    def with_votes(self, table: Tensor) -> Square:
        """The weights after further votes: as they were, the votes are kept beside them."""
        return self.square

    # -- expectations ------------------------------------------------------------------------------------------------

    def _tables(self) -> ComponentMoments:
        """Moments of the components, which all rows share."""
        centre = self.log_centre[0].detach()
        name = f"moments at {centre.cpu().numpy().tobytes().hex()}"
        log_odds = None if self.components is None else self.components.log_odds.detach()
        alpha = self.concentration.detach()
        return self.family.keep(name, lambda: ComponentMoments(alpha, centre, log_odds))

    def _row_tables(self, row: int) -> tuple[Tensor, ComponentMoments]:
        """Weights of the components that one row uses (p,), and their moments."""
        weights, used = self._used_by(row)
        log_odds = self.row_components(row).log_odds[used] if self.has_atoms else None
        return weights, ComponentMoments(self.concentration.detach()[used], self.row_centre(row), log_odds)

    def _used_by(self, row: int) -> tuple[Tensor, Tensor]:
        """Weights of the components that one row uses, and their numbers (p,)."""
        weights = self.row_weights(row)
        used = torch.nonzero(weights.abs() > NEGLIGIBLE_WEIGHT).squeeze(1)
        return weights[used], used

    def _expected(self, before: Callable[[ComponentMoments], Tensor], after: Callable[[Voted], Tensor]) -> Tensor:
        """Expectations (N, A): of tables (P, A) before votes, of one row's voted components (A,) after them."""
        if self.offset is None and self._shared:
            return self.frame.expectation(before(self._tables()))

        def row_before(row: int) -> Tensor:
            weights, tables = self._row_tables(row)
            return weights @ before(tables)

        return self._each_row(row_before, after)

    def _each_row(self, before: Callable[[int], Tensor], after: Callable[[Voted], Tensor]) -> Tensor:
        """Answers of rows one by one (N, ...): from a row's number, or from its voted components where it has votes."""
        rows = range(len(self))
        return torch.stack([after(self.voted(row)) if self._has_votes(row) else before(row) for row in rows])

    def _row_moments(self) -> RowMoments:
        """What answers for all rows together where every label is there and each row has its own centre."""
        with torch.no_grad():
            features = self.unit_features()[0]
            return RowMoments(self.family.half(), self.family.matrix().detach(), features, self.log_centre)

    def _presence_moments(self, rows: slice) -> RowPresenceMoments:
        """What answers for some rows together where labels may be absent and each row has its own centre or odds."""
        assert self.components is not None
        even = torch.zeros(1, self.n_labels, dtype=torch.float64, device=self.device)
        shift = even if self.shift is None else self.shift[rows].detach().double()
        centre, weights = self._centre_rows(rows).detach(), self.weights(rows).detach()
        half, log_odds = self.family.half().flatten(0, 1), self.components.log_odds.detach()
        return RowPresenceMoments(half, self.family.pairs(), log_odds, shift, centre, weights)

    def first_moments(self) -> Tensor:
        """``E[ℓ_r]`` (N, L) in float64."""
        if self.offset is None and not self._shared:
            return self.two_moments()[0] if self.has_atoms else self._row_moments().first()
        return self._expected(lambda tables: tables.first(), lambda voted: voted.first())

    def two_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` and ``E[ℓ_r²]``, each (N, L)."""
        if self.offset is None and not self._shared:
            if not self.has_atoms:
                return self._row_moments().two()
            answers = [self._presence_moments(rows).two() for rows in self.chunks()]
            return torch.cat([one for one, _ in answers]), torch.cat([two for _, two in answers])
        both = self._expected(
            lambda tables: torch.cat([tables.first(), tables.second()], 1),
            lambda voted: torch.cat([voted.first(), voted.second()]),
        )
        first, second = both.chunk(2, 1)
        return first, second

    def all_moments(self) -> tuple[Tensor, Tensor]:
        """``E[ℓ_r]`` (N, L) and ``E[ℓ_r ℓ_q]`` (N, L, L)."""
        if self.offset is None and not self._shared and not self.has_atoms:
            rows = self._row_moments()
            return rows.first(), rows.products()
        products = self._expected(lambda tables: tables.products(), lambda voted: voted.products())
        return self.first_moments(), symmetric(products, self.n_labels)

    def expected_log(self) -> Tensor:
        """``E[log ℓ_r]`` (N, L): minus infinity for labels that may be absent."""
        if self.has_atoms:
            return self._log_with_atoms()
        return self._expected(lambda tables: tables.expected_log(), lambda voted: voted.expected_log())

    def _log_with_atoms(self) -> Tensor:
        """Finite only where votes say that a label is there, or its absence is less likely than any number."""
        answer = torch.full((len(self), self.n_labels), -math.inf, dtype=torch.float64, device=self.device)
        if self.offset is None:
            return answer
        for row in range(len(self)):
            if self.offset[row].any():
                answer[row] = torch.where(self.offset[row] > 0.0, self.voted(row).expected_log(), -math.inf)
        return answer

    def covariance_log(self) -> Tensor:
        """``Cov[log ℓ]`` (N, L, L), where all labels are there."""

        def before(row: int) -> Tensor:
            weights, used = self._used_by(row)
            return log_covariance(weights, self.concentration.detach()[used], self.row_centre(row))

        return self._each_row(before, lambda voted: voted.covariance_log())

    def entropy_parts(self) -> Tensor:
        """``-E[ℓ_r log ℓ_r]`` (N, L)."""
        return self._expected(lambda tables: tables.entropy_parts(), lambda voted: voted.entropy_parts())

    def prob_zero(self) -> Tensor:
        """``P(ℓ_r = 0)`` (N, L)."""
        if not self.has_atoms:
            return torch.zeros(len(self), self.n_labels, dtype=torch.float64, device=self.device)
        assert self.components is not None
        if self._shared and self.offset is None:
            return self.frame.expectation(self.components.prob_all_absent()).clamp(0.0, 1.0)

        def before(row: int) -> Tensor:
            return self.weights(slice(row, row + 1))[0] @ self.row_components(row).prob_all_absent()

        return self._each_row(before, lambda voted: voted.prob_zero()).clamp(0.0, 1.0)

    def prob_greater(self, first: int, second: int) -> Tensor:
        """``P(ℓ_j > ℓ_k)`` (N,): both there and j larger, or only j there; both absent is not greater."""
        alpha, log_ratio = self.concentration.detach(), self.log_centre[:, first] - self.log_centre[:, second]
        at = torch.sigmoid(log_ratio).cpu().numpy()

        def below(at: float | Array) -> Tensor:
            return beta_below(alpha[:, second], alpha[:, first], at)

        def greater(parts: PresenceComponents | None, below: Tensor) -> Tensor:
            if parts is None:
                return below
            return parts.prob_of([first, second], []) * below + parts.prob_of([first], [second])

        if self.offset is None and self._shared:
            half = self.family.keep(f"{first} over {second} at {at[0]!r}", lambda: below(at[0]))
            return self.frame.expectation(greater(self.components, half)[:, None])[:, 0].clamp(0.0, 1.0)
        if self.offset is None and self.shift is None:

            def answer(rows: slice) -> Tensor:
                return (self.weights(rows) * greater(self.components, below(at[rows, None]))).sum(-1)

            return self.collect(answer, per_pair=2).clamp(0.0, 1.0)

        def before(row: int) -> Tensor:
            parts = self.row_components(row) if self.has_atoms else None
            chance = greater(parts, below(at[row if self.per_row_centre else 0]))
            return self.weights(slice(row, row + 1))[0] @ chance

        return self._each_row(before, lambda voted: voted.prob_greater(first, second)).clamp(0.0, 1.0)

    # -- one share ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def share_row(self, row: int, groups: list[list[int]]) -> ShareRow:
        """The laws of some sums of shares of one row."""
        family = self.family
        if self.offset is not None and self._has_votes(row):
            return self.voted(row, for_cdf=True).shares(family, self.offset[row], groups)
        if not self.has_atoms:
            return self._present_shares(slice(row, row + 1), groups)
        weights = self.weights(slice(row, row + 1))[0]
        check_weights(weights[None], row)
        log_odds = self.row_components(row).log_odds
        half = family.half().flatten(0, 1)
        return SparseShares(half, *family.pairs(), weights, log_odds, self.row_centre(row), groups)

    def _present_shares(self, rows: slice, groups: list[list[int]]) -> PresentShares:
        """The laws of some sums of shares of several rows without votes and without atoms."""
        family, weights = self.family, self.weights(rows)
        check_weights(weights, rows.start)
        n, (i, j) = family.n_neurons, pair_index(family.n_neurons, self.device)
        pairs = weights.unflatten(1, (family.n_members, -1)) * torch.where(i == j, 1.0, 0.5)
        centre = self.log_centre[rows] if self.per_row_centre else self.log_centre[:1].expand(len(weights), -1)
        return PresentShares(family.half(), symmetric(pairs, n), centre, groups)

    def _group_moments(self, group: list[int]) -> tuple[Tensor, Tensor]:
        """``E[share]`` and ``E[share²]`` of a sum (N,)."""
        if len(group) == 1:
            first, second = self.two_moments()
            return first[:, group[0]], second[:, group[0]]
        first, products = self.all_moments()
        return first[:, group].sum(1), products[:, group][:, :, group].sum((1, 2))

    def _used(self) -> Array:
        """Components that rows may use (P,): a kernel far below its two neurons' own carries next to no weight."""

        def make() -> Array:
            gram, (i, j) = self.family.gram.detach(), pair_index(self.family.n_neurons, self.device)
            own = gram[:, i == j]
            size = gram.abs() * self.family.log_kernel.detach().exp()
            return (size > UNUSED * (own[:, i] * own[:, j]).sqrt()).flatten().cpu().numpy()

        return self.family.keep("used components", make)

    def _table(self, groups: list[list[int]]) -> ComponentTable | None:
        """Cdfs of sums of shares under the components that all rows share; None where there is no such table."""
        if not self._shared or self.offset is not None or self.device.type != "cpu":
            return None
        centre = self.log_centre[0].detach().cpu().numpy()
        log_odds = None if self.components is None else self.components.log_odds.detach().cpu().numpy()
        alpha, used = self.concentration.detach().cpu().numpy(), np.flatnonzero(self._used())
        name = f"cdfs of {groups} at {centre.tobytes().hex()}"
        neurons = self.family.half().flatten(0, 1).cpu().numpy(), torch.stack(self.family.pairs()).cpu().numpy()

        def make() -> ComponentTable | str:
            try:
                return ComponentTable(alpha, centre, log_odds, groups, used, neurons)
            except ValueError:  # concentrations so small that a table would be too long
                return "none"

        made = self.family.keep(name, make)
        return None if isinstance(made, str) else made

    def _table_of(self, group: list[int]) -> tuple[ComponentTable | None, int]:
        """A table that holds one sum, and its number there: single labels share one, which quantiles need as well."""
        if len(group) > 1:
            return self._table([group]), 0
        return self._table([[r] for r in range(self.n_labels)]), group[0]

    def _tabled(self, table: ComponentTable, rows: slice) -> tuple[Array, Mask]:
        """Weights of some rows (b, P), and which rows the table's components suffice for (b,)."""
        weights = self.weights(rows).detach().cpu().numpy()
        check_weights(weights, rows.start or 0)
        left = np.abs(weights).sum(1) - np.abs(weights[:, table.used]).sum(1)
        return weights, left < LEFT_OUT

    def _blocks(self) -> list[slice]:
        step = max(1, 2 * CHUNK_ELEMENTS // self.n_components)
        return [slice(start, min(start + step, len(self))) for start in range(0, len(self), step)]

    def ends(self, group: list[int]) -> tuple[Array, Array]:
        """``P(share <= 0)`` and ``P(share < 1)`` (N,): 0 and 1 for a law without atoms."""
        if not self.has_atoms:
            return np.zeros(len(self)), np.ones(len(self))
        if self._shared and self.offset is None:
            assert self.components is not None
            rest = [r for r in range(self.n_labels) if r not in group]
            both = torch.stack([self.components.prob_absent(group), self.components.prob_absent(rest)], 1)
            at_zero, at_one = self.frame.expectation(both.detach()).clamp(0.0, 1.0).cpu().numpy().T
            return at_zero, 1.0 - at_one
        rows = [self.share_row(row, [group]) for row in range(len(self))]
        at_zero = torch.cat([row.at_zero for row in rows]).clamp(0.0, 1.0)
        below = torch.cat([row.at_zero + row.inside for row in rows]).clamp(0.0, 1.0)
        return at_zero.cpu().numpy(), below.cpu().numpy()

    def _share_at(self, group: list[int], points: Array) -> tuple[Array, Array]:
        """Cdf of a sum and density of its logit at points inside (0, 1), each row's own (N, Q)."""
        tiny = np.finfo(np.float64).tiny
        z = np.log(np.maximum(points, tiny)) - np.log1p(-np.minimum(points, 1.0 - np.finfo(np.float64).epsneg))
        logits = torch.as_tensor(z, device=self.device)
        together = not self.has_atoms and self.offset is None
        each = self.family.half()[..., 0].numel() * min(POINTS_TOGETHER, max(1, logits.shape[1]))
        step = min(FEW_SUMS, max(1, SUMS_TOGETHER // each)) if together else 1

        def answer(start: int) -> tuple[Tensor, Tensor]:
            rows = slice(start, min(start + step, len(self)))
            law = self._present_shares(rows, [group]) if together else self.share_row(start, [group])
            u = logits[rows]
            cdf, density, every = torch.empty_like(u), torch.empty_like(u), torch.arange(len(u), device=self.device)
            for part in u.argsort(1).split(POINTS_TOGETHER, 1):
                at = u.gather(1, part)
                law.prepare(at.amin(1), at.amax(1), every)
                for out, values in zip((cdf, density), law.at(at, every)):
                    out.scatter_(1, part, values)
            return cdf, density

        parts = map_blocks(answer, range(0, len(self), step), self.device)
        cdf, density = (torch.cat(column).cpu().numpy() for column in zip(*parts))
        return np.clip(cdf, 0.0, 1.0), np.maximum(density, 0.0)

    def share_cdf(self, group: list[int], points: Array) -> Array:
        """``P(share <= t)`` at points inside (0, 1), each row's own (N, Q)."""
        table, number = self._table_of(group) if points.size > (1 if self.has_atoms else FEW_POINTS) else (None, 0)
        if table is None:
            return self._share_at(group, points)[0]
        with np.errstate(divide="ignore"):
            logits = np.clip(scipy.special.logit(np.clip(points, 0.0, 1.0)), -LOGIT_LIMIT, LOGIT_LIMIT)
        out = np.empty(points.shape)
        for rows in self._blocks():
            weights, enough = self._tabled(table, rows)
            out[rows] = table.rows(weights, number).at(logits[rows])[0]
            if not enough.all():
                few = np.flatnonzero(~enough) + rows.start
                out[few] = GammaRows(self.parts.take(torch.as_tensor(few)))._share_at(group, points[few])[0]
        return np.clip(out, 0.0, 1.0)

    def share_log_prob(self, group: list[int], value: Tensor) -> Tensor:
        """Log density of a sum at points, each row's own (S, N); of an atom, the log of its probability."""
        points = value.detach().double().T.cpu().numpy()
        inside = np.clip(points, np.finfo(np.float64).tiny, 1.0 - np.finfo(np.float64).epsneg)
        if self.has_atoms:  # the ends need no density, and it would take longest there
            inside = np.where((points <= 0.0) | (points >= 1.0), 0.5, inside)
        density = self._share_at(group, inside)[1]
        with np.errstate(divide="ignore"):
            log_p = np.log(density)
            for row, column in np.argwhere(density < UNRESOLVED):
                log_p[row, column] = self._log_share_density(int(row), group, inside[row, column])
            log_p = log_p - np.log(inside) - np.log1p(-inside)
            if self.has_atoms:
                at_zero, below_one = (end[:, None] for end in self.ends(group))
                log_p = np.where(points <= 0.0, np.log(at_zero), log_p)
                log_p = np.where(points >= 1.0, np.log(1.0 - below_one), log_p)
        return torch.as_tensor(np.ascontiguousarray(log_p.T), device=self.device)

    def _log_share_density(self, row: int, group: list[int], share: float) -> float:
        """Log density of the logit of a sum of shares, far out in a tail: a term per label that may bring it about."""
        u, rest = math.log(share) - math.log1p(-share), [r for r in range(self.n_labels) if r not in group]
        if not rest:
            return -math.inf
        logs, weights = [], []
        for alpha, centre, presence, weight in self._mixture(row, voted=self._has_votes(row)):
            for r in group:
                others = [k for k in group if k != r] + rest
                beside = torch.arange(len(others), device=self.device) < len(group) - 1
                log_p = alpha[:, r].log() + centre[r] - u
                odds = None
                if presence is not None:
                    odds, log_p = presence.log_odds[:, others], log_p + presence.log_odds[:, r] - presence.log_norm
                scales = torch.where(beside, centre[others] - u, centre[others])
                at_zero = log_density_at_zero(
                    *(alpha[:, r] + 1.0, centre[r] - u, alpha[:, others], scales, odds, beside), weight.abs().log()
                )
                logs.append(log_p + at_zero)
                weights.append(weight)
        return float(log_signed_sum(torch.cat(logs), torch.cat(weights)))

    def _mixture(self, row: int, voted: bool) -> Iterator[tuple[Tensor, Tensor, PresenceComponents | None, Tensor]]:
        """Concentrations, log centre, odds and weights of a row's components: before its votes, or per node after."""
        if voted:
            after = self.voted(row)
            for s in range(after.n_parts):
                parts = None if after.log_odds is None else PresenceComponents(after.alpha, after.log_odds[:, s])
                yield after.alpha, after.log_centre[s], parts, after.weights[:, s]
            return
        weights = self.row_weights(row)
        used = torch.nonzero(weights != 0.0).squeeze(1)
        parts = None
        if self.has_atoms:
            whole = self.row_components(row)
            parts = PresenceComponents(whole.alpha[used], whole.log_odds[used])
        yield self.concentration.detach()[used], self.row_centre(row), parts, weights[used]

    def share_quantiles(self, group: list[int], levels: Array) -> Array:
        """Quantiles of a sum at levels, each row's own (N, Q)."""
        table, number = self._table_of(group) if self.has_atoms or levels.size > FEW_POINTS else (None, 0)
        if table is not None:
            return self._from_table(table, levels[:, None], [number])[:, 0]
        first, second = self._group_moments(group)
        return self._solve([group], levels[:, None], first[:, None], second[:, None])[:, 0]

    def label_quantiles(self, levels: Array) -> Array:
        """Quantiles of every label's share at levels (N, L, A)."""
        groups = [[r] for r in range(levels.shape[1])]
        table = self._table(groups) if self.has_atoms or levels.size > FEW_POINTS else None
        if table is not None:
            answer = self._from_table(table, levels, list(range(len(groups))))
        else:
            answer = self._solve(groups, levels, *self.two_moments())
        return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))

    def _from_table(self, table: ComponentTable, levels: Array, numbers: list[int]) -> Array:
        """Quantiles of some of the table's sums at levels (N, R, A)."""
        inner, out = np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS), np.empty(levels.shape)
        for rows in self._blocks():
            weights, enough = self._tabled(table, rows)
            for place, number in enumerate(numbers):
                wanted, curves = inner[rows, place], table.rows(weights, number)
                shares = scipy.special.expit(curves.quantiles(wanted))
                if self.has_atoms:
                    shares = np.where(wanted <= curves.at_zero[:, None], 0.0, shares)
                    shares = np.where(wanted >= 1.0 - curves.at_one[:, None], 1.0, shares)
                out[rows, place] = shares
            if not enough.all():
                few = np.flatnonzero(~enough) + rows.start
                part = GammaRows(self.parts.take(torch.as_tensor(few)))
                groups = [table.groups[number] for number in numbers]
                moments = [part._group_moments(group) for group in groups]
                first, second = (torch.stack(column, 1) for column in zip(*moments))
                out[few] = part._solve(groups, inner[few], first, second)
        return out

    def _solve(self, groups: list[list[int]], levels: Array, first: Tensor, second: Tensor) -> Array:
        """Quantiles of some sums at levels (N, R, A), each row by itself or, where that can be, many together."""
        target, together = torch.tensor(np.ascontiguousarray(levels), device=self.device), False
        if not self.has_atoms and self.offset is None:
            together, (_, _, n_levels) = True, levels.shape
            # every level is a sum of its own: what lies far apart shares no nodes
            groups = [group for group in groups for _ in range(n_levels)]
            target = target.flatten(1)[..., None]
            first, second = (moment[:, : levels.shape[1]].repeat_interleave(n_levels, 1) for moment in (first, second))
        together_each = max(1, len(groups) * self.family.half()[..., 0].numel())
        step = max(1, SUMS_TOGETHER // together_each) if together else 1

        def answer(start: int) -> Tensor:
            rows = slice(start, min(start + step, len(self)))
            law = self._present_shares(rows, groups) if together else self.share_row(start, groups)
            at_one = (1.0 - law.at_zero - law.inside).clamp(0.0, 1.0)
            mean, square = (moment[rows, : len(groups)].flatten() for moment in (first, second))
            wanted = target[rows].flatten(0, 1)
            if self.has_atoms:
                wanted = _held_by_atoms(wanted, law.at_zero, at_one)
            guess, deviation = beta_guess(mean, square, law.at_zero, at_one, wanted)
            # a few draws far off may make the moments, for example where others are absent
            broad = deviation > BROAD_GUESS
            if self.offset is None and bool(broad.any()):
                inner = (wanted - law.at_zero[:, None]) / law.inside.clamp_min(SMALLEST_POSITIVE)[:, None]
                middle, width = self._typical_logits(rows, groups)
                typical = middle[:, None] + width[:, None] * torch.special.ndtri(inner.clamp(1e-6, 1.0 - 1e-6))
                guess = torch.where(broad[:, None], typical, guess)
                deviation = torch.where(broad, width, deviation)
            return solve_quantiles(law, wanted, guess, deviation)

        with torch.no_grad():
            answers = torch.cat(map_blocks(answer, range(0, len(self), step), self.device))
        return answers.reshape(levels.shape).cpu().numpy()

    def _typical_logits(self, rows: slice, groups: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the logits of sums over the components of some rows, roughly (b R,) each."""
        answers = []
        for row in range(rows.start, rows.stop):
            weights = self.row_weights(row).abs()
            size = self.concentration.detach().log() + self.row_centre(row)  # (P, L)
            there = logsigmoid(self.row_components(row).log_odds) if self.has_atoms else torch.zeros_like(size)
            for group in groups:
                rest = [r for r in range(self.n_labels) if r not in group]
                logit = size[:, group].logsumexp(1) - (size + there)[:, rest].logsumexp(1)
                middle = (weights @ logit) / weights.sum()
                noise = sum(1.0 / self.concentration.detach()[:, part].sum(1) for part in (group, rest))
                answers.append((middle, ((weights @ ((logit - middle).square() + noise)) / weights.sum()).sqrt()))
        middles, widths = zip(*answers)
        return torch.stack(middles), torch.stack(widths)

    # -- other laws --------------------------------------------------------------------------------------------------

    def _restricted(self, labels: list[int]) -> tuple[Scale | None, Tensor | None]:
        """The centre and the shift of some labels."""
        scale = self.parts.scale
        if scale is not None:
            scale = Scale(scale.log_centre[:, labels], scale.per_row)
        return scale, None if self.shift is None else self.shift[:, labels]

    def subcomposition(self, labels: list[int]) -> Parts:
        """The law of the proportions among some labels, given that at least one of them is there."""
        scale, _ = self._restricted(labels)
        family = self.family
        if not self.has_atoms:
            return Parts(self.frame.same_weights(family.exponents[..., labels].double()), None, scale)
        assert self.components is not None
        assert family.presence is not None
        rest = [r for r in range(self.n_labels) if r not in labels]
        n, (i, j) = family.n_neurons, pair_index(family.n_neurons, self.device)
        # M_ij takes the factor Π_rest (1 + o_ijr)
        factor = -self.components.log_empty[:, rest].sum(-1).reshape(family.n_members, -1)  # (K, P)
        root = 0.5 * factor[:, i == j]
        readout = root_of(symmetric(family.half_gram() * (factor - root[:, i] - root[:, j]).exp(), n))
        other = PairFamily(family.exponents[..., labels], readout, None, family.presence[..., labels])
        log_scale = self.flat_log_scale - family.log_root_norm + root + other.log_root_norm
        some_there = 1.0 - self.components.prob_absent(labels).reshape(family.n_members, -1)
        members = self._reweighted_members(some_there.log())
        return Parts(Square(other, log_scale, torch.log_softmax(members, -1)), None, scale)

    def _reweighted_members(self, log_chance: Tensor) -> Tensor:
        """Log weights of the members (N, K) after an event with these log chances (K, P) or (b, K, P)."""

        def answer(rows: slice) -> Tensor:
            _, terms, log_z = self._normaliser(rows)
            chance = log_chance if log_chance.dim() == 2 else log_chance[rows]
            return log_signed_sum(terms + chance, self.family.gram) - log_z + self.log_members[rows]

        return self.collect(answer)

    def amalgamate(self, groups: list[list[int]]) -> Parts:
        """The law of the group totals, where the centre is the same within every group and all labels are there."""
        for group in groups:
            values = self.log_centre[:, group]
            if bool((values - values[:, :1]).abs().max() > SAME_CENTRE):
                raise InputError(f"the labels {group} have different centres: " + WHY_NOT["amalgamate", "centre"])
        scale = self.parts.scale
        merged = self.frame.amalgamate(groups).square
        if scale is not None:
            scale = Scale(scale.log_centre[:, [group[0] for group in groups]], scale.per_row)
        return Parts(merged, None, scale)

    def given_support(self, present: Tensor) -> Parts:
        """The law of the shares of the labels that are there, a mask (L,), once it is known which these are."""
        labels = present.nonzero().flatten().tolist()
        scale, _ = self._restricted(labels)
        if not self.has_atoms:
            return self.subcomposition(labels)
        family = self.family
        assert self.components is not None
        assert family.presence is not None
        exponents = family.exponents[..., present].double()
        n, (i, j) = family.n_neurons, pair_index(family.n_neurons, self.device)
        half = (exponents + 0.5).sum(-1)  # (K, n)
        root = 0.5 * torch.lgamma(2.0 * half)
        factor = torch.lgamma(half[:, i] + half[:, j]) - root[:, i] - root[:, j]
        readout = root_of(symmetric(family.half_gram() * factor.exp(), n))
        moved = family.presence[..., present].double().sum(-1) + root + 0.5 * log_beta(1.0 + 2.0 * exponents)
        log_scale = self.flat_log_scale.double() - self._all_normalisers()[0] + moved
        odds = self.components.log_odds[:, present].sum(-1).reshape(family.n_members, -1)
        if self.shift is None:
            chance = odds - self.components.log_norm.reshape(family.n_members, -1)
        else:
            pairs = self.components.log_odds.unflatten(0, (family.n_members, -1))
            log_norm = moved_log_norm(pairs, self.shift[None]).transpose(0, 1)  # (N, K, P)
            chance = odds + self.shift[:, present].sum(-1)[:, None, None] - log_norm
        members = self._reweighted_members(chance)
        return Parts(Square(PairFamily(exponents, readout), log_scale, torch.log_softmax(members, -1)), None, scale)

    # -- known shares ------------------------------------------------------------------------------------------------

    def log_prob_known(self, values: Tensor) -> Tensor:
        """Log density of the known shares of every row, NaN where one is unknown, the same labels in all rows (N,).

        With A the known labels, ``κ = Σ_A v_r / c_r`` and ``A_A = Σ_A α_r`` it is, for a component,

            Π_A v_r^{α_r - 1} c_r^{-α_r} / Γ(α_r) · Γ(A_A + 1) κ^{-A_A - 1} · π⁻¹ ∫ Re[(1 - i t λ)^{-A_A - 1} φ_B(t)] dt

        with ``λ = (1 - Σ v) / κ`` and φ_B the transform of the other labels' gammas. Votes for known labels alone
        multiply it by ``Π v_r^{k_r}``; others change the components first.
        """
        unknown = torch.isnan(values[0])
        log_p = torch.stack([self._row_log_known(row, values[row], unknown) for row in range(len(self))])
        if self.offset is not None:
            seen = torch.where(self.offset > 0.0, self.offset * values.log(), 0.0).sum(-1)
            hidden = (self.offset[:, unknown] > 0.0).any(-1)
            log_p = torch.where(hidden, log_p, log_p + seen - self.log_evidence())
        return log_p

    def _row_log_known(self, row: int, values: Tensor, unknown: Tensor) -> Tensor:
        """Log density of one row's known shares: before its votes, or after them where unknown shares have some."""
        hidden = self.offset is not None and bool((self.offset[row][unknown] > 0.0).any())
        if hidden and self.offset is not None and bool((self.offset[row][values == 0.0] > 0.0).any()):
            return torch.full((), -math.inf, dtype=torch.float64, device=self.device)  # a label with votes is there
        terms = [
            (log_known(values, unknown, alpha, centre, presence, weights.abs().log()), weights)
            for alpha, centre, presence, weights in self._mixture(row, voted=hidden)
        ]
        logs, weights = (torch.cat(column) for column in zip(*terms))
        return log_signed_sum(logs, weights)

    def condition(self, shares: KnownShares, n: int, generator: torch.Generator | None) -> Remainder | WeightedDraws:
        """The law of the other shares: exact where all known shares are zeros, else by weighted draws."""
        if self.has_atoms and self.offset is None and not bool((shares.values > 0.0).any()):
            rest, log_p = self._without(shares)
            return Remainder(rest, log_p)
        return condition_by_draws(self, shares, n, generator)

    def _without(self, shares: KnownShares) -> tuple[Parts, Tensor]:
        """The law of the other labels when the known ones are absent, and the log chance of that (N,)."""
        family = self.family
        assert family.presence is not None
        scale, shift = self._restricted(shares.others)
        presence = family.presence[..., shares.others]
        other = PairFamily(family.exponents[..., shares.others], family.readout, family.gram, presence)
        g, before = self._all_normalisers()
        even = torch.zeros_like(self.log_members)
        # g of the others first: their normaliser needs it
        bare = GammaRows(Parts(Square(other, self.flat_log_scale.double() - g, even), shift, scale))
        new_g, _ = bare._all_normalisers()
        log_scale = self.flat_log_scale.double() - g + new_g
        rest = GammaRows(Parts(Square(other, log_scale, even), shift, scale))
        members = self.log_members + rest._all_normalisers()[1] - before
        log_p = torch.logsumexp(members, -1)
        lost = torch.nonzero(~torch.isfinite(log_p))
        if len(lost):
            raise InputError(
                f"in the law of row {int(lost[0])} the known zeros cannot be together; nothing follows from them."
            )
        return Parts(Square(other, log_scale, torch.log_softmax(members, -1)), shift, scale), log_p

    def _all_normalisers(self) -> tuple[Tensor, Tensor]:
        """``g`` (N, K, n) and ``log Z`` of each member (N, K)."""
        parts = [self._normaliser(rows) for rows in self.chunks(self.n_labels)]
        g = torch.cat([part[0].expand(len(part[2]), -1, -1) for part in parts])
        return g, torch.cat([part[2] for part in parts])

    def condition_ratios(self, known: KnownRatios) -> tuple[Parts, Tensor]:
        """The law of the groups' totals, and the log density of the ratios (N,).

        In ``p'(ℓ') ∝ ‖V exp(W log ℓ' + h)‖²`` put ``ℓ'_r = t_r ℓ'_G`` for the labels r of a group G, t known: the same
        square, with ``h_i + Σ_r w_ir log t_r`` and the exponents of merged labels. The group's centre is ``Σ c_r t_r``.
        """
        plain = known.log_proportions - self.log_centre  # (N, L)
        for group in known.groups:
            plain[:, group] = torch.log_softmax(plain[:, group], -1)
        centre = known.merged(plain.exp() * self.log_centre.exp())  # (N, G)
        family = self.family
        exponents = family.exponents.double()
        merged = PairFamily(known.merged(exponents + 0.5) - 0.5, family.readout.double(), family.gram)
        moved = torch.einsum("nl,kil->nki", plain, exponents) + merged.log_root_norm - family.log_root_norm
        log_scale = self.flat_log_scale.double() + moved
        bare = DirichletRows(Square(merged, log_scale, self.log_members), None)
        evidence = torch.cat([bare.log_normaliser(rows) - self.frame.log_normaliser(rows) for rows in self.chunks()])
        members = evidence + self.log_members  # (N, K)
        log_p = torch.logsumexp(members, -1) + plain.sum(-1) - known.log_ratios  # a group of one has log t = 0
        lost = torch.nonzero(~torch.isfinite(log_p))
        if len(lost):
            row = int(lost[0])
            raise InputError(f"the law of row {row} has no density at the known ratios; nothing follows from them.")
        square = Square(merged, log_scale, torch.log_softmax(members, -1))
        same = bool((centre / centre[:1] - 1.0).abs().max() <= SAME_CENTRE)
        scale = Scale(centre[:1].log()) if same and not self.per_row_centre else Scale(centre.log(), True)
        return Parts(square, None, scale), log_p

    # -- Rosenblatt --------------------------------------------------------------------------------------------------

    def _chain_weights(self, numbers: Index) -> Array:
        """Weights of points, which fall to the rows in order, over and over."""
        rows = torch.as_tensor(numbers % len(self), device=self.device)
        weights: Array = self.weights(rows).detach().cpu().numpy()
        check_weights(weights)
        return weights

    def _maps(self) -> list[tuple[Index, StickMap | PresenceMap | RatioMap]]:
        """Rows that share their components, and how their shares and uniforms map to each other."""
        everything = np.arange(len(self))
        if self.offset is not None:
            return [(everything[[row]], self._voted_map(row)) for row in range(len(self))]
        if not self.has_atoms:
            return [(everything, self.frame.stick_map)]
        if self.shift is None:
            return [(everything, self._sparse_map(None))]
        return [(everything[[row]], self._sparse_map(row)) for row in range(len(self))]

    def _sparse_map(self, row: int | None) -> PresenceMap:
        assert self.components is not None
        parts = self.components.detached() if row is None else self.row_components(row)
        alpha, log_odds = parts.alpha.cpu().numpy(), parts.log_odds.cpu().numpy()
        if row is None:
            return PresenceMap(alpha, log_odds, self._chain_weights)
        only = self._chain_weights(np.array([row]))
        return PresenceMap(alpha, log_odds, lambda numbers: np.repeat(only, len(numbers), 0))

    def _voted_map(self, row: int) -> StickMap | PresenceMap | RatioMap:
        """The map of one row after votes, in terms of its shares themselves; without any, as before them."""
        if not self._has_votes(row):
            return self._before(row)._maps()[0][1]
        return ratio_map(*self.voted(row).listed())

    def rosenblatt(self, logs: Tensor, random_state: Any) -> Tensor:
        """Independent uniforms (T, L-1) of log shares (T, L), which fall to the rows in order, over and over."""
        number = torch.arange(len(logs), device=self.device) % len(self)
        plain = self.plain_logs(logs, number)
        out = torch.empty(len(logs), self.n_labels - 1, dtype=torch.float64, device=self.device)
        for rows, chain in self._maps():
            at = slice(None) if len(rows) == len(self) else torch.nonzero(number == int(rows[0])).squeeze(1)
            part, fill = plain[at], None
            if not isinstance(chain, StickMap):
                fill = np.random.default_rng(seed_from(random_state)).random((len(part), self.n_labels))
            if self._has_votes(int(rows[0])):
                part = torch.log_softmax(part + self.row_centre(int(rows[0])), -1)
            out[at] = torch.as_tensor(chain.to_uniforms(part.cpu().numpy(), fill), device=self.device)
        return out

    def inverse_rosenblatt(self, levels: Tensor) -> Tensor:
        """Log shares (T, L) whose :meth:`rosenblatt` these are (T, L-1)."""
        number = torch.arange(len(levels), device=self.device) % len(self)
        out = torch.empty(len(levels), self.n_labels, dtype=torch.float64, device=self.device)
        for rows, chain in self._maps():
            at = slice(None) if len(rows) == len(self) else torch.nonzero(number == int(rows[0])).squeeze(1)
            logs = torch.as_tensor(chain.to_shares(levels[at].cpu().numpy()), device=self.device)
            if self._has_votes(int(rows[0])):
                logs = torch.log_softmax(logs - self.row_centre(int(rows[0])), -1)
            out[at] = logs
        return torch.log_softmax(out + self._centre_rows(number), -1)


def _held_by_atoms(levels: Tensor, at_zero: Tensor, at_one: Tensor) -> Tensor:
    """Levels (R, A), moved into an atom that holds nearly everything (R,) where they miss it by next to nothing."""
    top = (1.0 - at_one)[:, None]
    at_zero = at_zero[:, None]
    levels = torch.where((at_zero > 0.5) & (levels - at_zero < ATOM_SLACK), levels.minimum(at_zero), levels)
    return torch.where((top < 0.5) & (top - levels < ATOM_SLACK), levels.maximum(top), levels)


def _jacobian(plain: Tensor, logs: Tensor) -> Tensor:
    """``Σ_{r in S} (log ℓ'_r - log ℓ_r)`` (...)."""
    there = ~torch.isneginf(logs)
    return torch.where(there, torch.where(there, plain, 0.0) - torch.where(there, logs, 0.0), 0.0).sum(-1)


#: What leaves the family, and what to do instead.
WHY_NOT = {
    ("amalgamate", "centre"): (
        "the joint law of merged labels then leaves the family. dist.marginal(group) is the exact law of one group's "
        "total; for the joint law take draws (dist.sample) and add them up, or fit with centre=None."
    ),
    ("amalgamate", "zeros"): (
        "the joint law of merged labels leaves the family where labels may be absent. dist.marginal(group) is the "
        "exact law of one group's total; for the joint law take draws (dist.sample) and add them up."
    ),
    ("amalgamate", "votes"): (
        "after votes the joint law of merged labels leaves the family of a law with a centre or with zeros. "
        "dist.marginal(group) is the exact law of one group's total; for the joint law add up draws (dist.sample)."
    ),
    ("subcomposition", "votes"): (
        "after votes the proportions among some labels leave the family of a law with a centre or with zeros. Take "
        'draws (dist.sample) and close them, or fit with centre=None and zeros="shrink".'
    ),
    ("subcomposition", "moving zeros"): (
        "where every row has its own odds of presence, the proportions among some labels leave the family. Take draws "
        "(dist.sample) and close them; dist.given_support(present) is exact once it is known which labels are there."
    ),
    ("given_support", "votes"): (
        "say which labels are there before the votes: dist.given_support(present).posterior(counts)."
    ),
    ("condition_ratios", "zeros"): (
        "labels that may be absent have no ratio. dist.given_support(present) is the law of the shares once it is "
        "known which labels are there; condition_ratios is one of its questions."
    ),
    ("condition_ratios", "votes"): (
        "after votes known ratios leave the family of a law with a centre. Condition first on nothing but the ratios, "
        "or take dist.condition({label: share}), which answers by weighted draws."
    ),
    ("covariance_log", "zeros"): (
        "logarithms of labels that may be absent have no second moments. dist.given_support(present) is the law of the "
        "shares once it is known which labels are there."
    ),
}
