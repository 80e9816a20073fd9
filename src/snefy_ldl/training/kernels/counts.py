"""The probability of votes and its gradient, for training.

    P(k|x) ∝ Σ_p c_p(x) Π_s (β_ps)_{m_s}^{±1},   (β)_m = β (β+1) ... (β+m-1) = Γ(β+m) / Γ(β)

Votes enter through rising factorials only: ``(α_pr)_{k_r}`` for each label and ``1 / (A_p)_{|k|}`` for the total.
Labels that were not counted, and votes that name a set of labels, add factors whose ``β`` is a sum of concentrations;
the form stays. Five routes give the same numbers: one matrix product of tabulated Chebyshev series (``smooth_factors``,
float32 on a CPU), the same with Stirling's series for thousands of votes an item or billions (``large_factors``),
running products (``swept_factors``, float64), series of the batch's own counts (``many_factors``, float64 and very many
votes), and lgamma itself (:class:`DirectFactors`, on a GPU). Nothing of shape (rows, pairs, labels) is ever built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.special import LogGamma, diagonal_index, full_index, pair_index, symmetric
from snefy_ldl.training.kernels.large_factors import LargeFactors
from snefy_ldl.training.kernels.many_factors import ManyFactors
from snefy_ldl.training.kernels.smooth_factors import MOST_VOTES, SmoothFactors
from snefy_ldl.training.kernels.swept_factors import SweptFactors

#: Terms this far below the largest in the exponent count as that far: a float32 beneath them is slow, and nothing.
LOWEST_EXPONENT = -80.0


@dataclass(frozen=True)
class VoteFactors:
    """Votes as the rising factorials of their probability.

    Args:
        groups: which labels each column sums, 0 or 1 (Q, L): the L labels first, then all of them, then other sets.
        column: which column each factor belongs to (..., T).
        count: ``m`` of each factor (..., T), whole numbers.
        sign: +1 for a factor of the numerator, -1 for one of the denominator (T,).
    """

    groups: Tensor
    column: Tensor
    count: Tensor
    sign: Tensor

    @classmethod
    def of(cls, counts: Tensor, named: Tensor | None = None, sets: Tensor | None = None) -> VoteFactors:
        """Factors of votes (..., L), NaN where a label was not counted.

        A row with labels S counted is a vote among S: its law is that of the subcomposition, ``(A_p)_{|k|}`` becoming
        ``(Σ_{r in S} α_pr)_{|k|}``. A vote for "one of the labels in G" multiplies the likelihood by
        ``Σ_{r in G} ℓ_r``; for sets that do not overlap that is ``(β_G)_{k_G + g} / (β_G)_{k_G}``, with ``k_G`` the
        votes for single labels in G.

        Args:
            counts: ``k``.
            named: ``g``, votes that name a set (..., G).
            sets: the sets, 0 or 1 (G, L); no label in two of them.
        """
        n_labels = counts.shape[-1]
        seen = ~torch.isnan(counts)
        votes = counts.nan_to_num(0.0)
        groups = [torch.eye(n_labels, dtype=torch.float64), torch.ones(1, n_labels, dtype=torch.float64)]
        whole = torch.full(counts.shape[:-1], n_labels, device=counts.device)
        if not bool(seen.all()):
            patterns, which = torch.unique(seen.reshape(-1, n_labels), dim=0, return_inverse=True)
            groups.append(patterns.cpu().double())
            whole = n_labels + 1 + which.reshape(whole.shape)
        total = votes.sum(-1)
        columns = [torch.arange(n_labels, device=counts.device).expand(counts.shape)]
        factors, signs = [votes], [1.0] * n_labels
        if named is not None and sets is not None:
            first = sum(len(group) for group in groups)
            groups.append(sets.cpu().double())
            single = votes @ sets.to(votes).T
            at = torch.arange(first, first + len(sets), device=counts.device).expand(named.shape)
            columns += [at, at]
            factors += [single + named.to(votes), single]
            signs += [1.0] * len(sets) + [-1.0] * len(sets)
            total = total + named.to(votes).sum(-1)
        columns.append(whole[..., None])
        factors.append(total[..., None])
        signs.append(-1.0)
        return cls(
            torch.cat(groups).to(counts.device),
            torch.cat(columns, -1),
            torch.cat(factors, -1).long(),
            torch.tensor(signs, dtype=torch.float64, device=counts.device),
        )

    def __getitem__(self, rows: Any) -> VoteFactors:
        """The factors of some rows."""
        return VoteFactors(self.groups, self.column[rows], self.count[rows], self.sign)

    @property
    def shape(self) -> torch.Size:
        """Shape of the rows."""
        return self.count.shape[:-1]


class DirectFactors:
    """The same straight from lgamma and digamma: cheap on a GPU, and without a look at the data."""

    def __init__(self, factors: VoteFactors) -> None:
        self.factors = factors

    def _slots(self, columns: Tensor) -> Any:
        """For each factor of a row its sign, ``β`` (K, B, P), ``m`` and where β came from."""
        factors = self.factors
        for t in range(factors.count.shape[-1]):
            index = factors.column[..., t, None].expand(*factors.shape, columns.shape[-1])
            yield factors.sign[t], columns.gather(1, index), factors.count[..., t, None], index

    def ratio(self, columns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """See :class:`SweptFactors`."""
        total = torch.zeros((), dtype=torch.float64, device=columns.device)
        for sign, beta, count, _ in self._slots(columns):
            total = total + sign * (torch.lgamma(beta + count) - torch.lgamma(beta))
        centre = total.mean(-1)
        return (total - centre[..., None]).to(dtype), centre

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """See :class:`SweptFactors`."""
        gradient = torch.zeros_like(columns)
        for sign, beta, count, index in self._slots(columns):
            slope = torch.digamma(beta + count) - torch.digamma(beta)
            gradient.scatter_add_(1, index, sign * slope * d_ratio)
        return gradient


#: Each gives the same sums of rising factorials, and their gradient.
Factors = SmoothFactors | LargeFactors | SweptFactors | ManyFactors | DirectFactors


# -- the probability -------------------------------------------------------------------------------------------------


def pair_columns(exponents: Tensor, groups: Tensor) -> Tensor:
    """``β_ij = Σ_{r in group} α_ijr`` for pairs i <= j: exponents (K, n, L), groups (Q, L) -> (K, Q, P)."""
    i, j = pair_index(exponents.shape[1], exponents.device)
    sums = (exponents @ groups.T + 0.5 * groups.sum(-1)).transpose(0, 1)  # (n, K, Q): whole rows are quick to gather
    both = sums.flatten(1).index_select(0, i) + sums.flatten(1).index_select(0, j)  # (P, K Q)
    columns: Tensor = both.T.contiguous().unflatten(0, (len(exponents), len(groups)))
    return columns


def _fold(pairs: Tensor, n: int) -> Tensor:
    """For each neuron the sum over its pairs, (i, i) counted twice: (..., P) -> (..., n)."""
    # selecting columns is quick from a plain matrix only
    full = pairs.reshape(-1, pairs.shape[-1]).index_select(1, full_index(n, pairs.device))
    full = full.reshape(*pairs.shape[:-1], n, n)
    return full.sum(-1) + full.diagonal(dim1=-2, dim2=-1)


def _pair_terms(log_scale: Tensor, log_kernel: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(s_i + s_j + log R_ij + ρ_ij - top)`` (K, B, P), and the top (K, B, 1); writes over the ratio."""
    i, j = pair_index(log_scale.shape[-1], log_scale.device)
    flat = log_scale.reshape(-1, log_scale.shape[-1])
    terms = ratio.view(len(flat), -1)
    terms += flat.index_select(1, i)
    terms += flat.index_select(1, j)
    ratio += log_kernel[:, None]
    top = ratio.amax(-1, keepdim=True)
    ratio -= top
    return ratio.clamp_min_(LOWEST_EXPONENT).exp_(), top


class CountLogDensity(torch.autograd.Function):
    """``apply(log_scale, exponents, readout, factors, balanced) -> log P(k|x)``, without its coefficient.

        log Σ_{i<=j} M_ij e^{s_i + s_j} R_ij ρ_ij(k) - log e^{s}ᵀ (M ∘ R) e^{s},   ρ_ij(k) = B(α_ij + k) / B(α_ij)

    ``SnefySimplex.log_prob_counts`` is the same function by plain autograd, and its oracle in the tests.

    Args (of apply):
        log_scale: the network's output (K, B, n): ``h̃`` if balanced, else ``h``.
        exponents: ``W`` (K, n, L), float64.
        readout: ``V`` (K, m, n).
        factors: the votes by one of the five routes, rows (K, B).
        balanced: which of the two the output is.

    Returns:
        (K, B), float64.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_scale: Tensor,
        exponents: Tensor,
        readout: Tensor,
        factors: Factors,
        balanced: bool,
    ) -> Tensor:
        """The probability, with what its gradient needs kept aside."""
        n, n_labels = exponents.shape[1:]
        dtype = log_scale.dtype
        i, j = pair_index(n, log_scale.device)
        columns = pair_columns(exponents, factors.factors.groups)  # (K, Q, P)
        gammas = LogGamma(columns[:, : n_labels + 1])
        log_k = gammas.value[:, :n_labels].sum(1) - gammas.value[:, n_labels]  # (K, P)
        full = symmetric(log_k, n)
        g = 0.5 * full.diagonal(dim1=1, dim2=2)  # (K, n)
        log_kernel = (full - g[:, :, None] - g[:, None, :]).to(dtype)  # log R
        kernel = log_kernel.exp()
        gram = readout.transpose(1, 2) @ readout  # M
        if not balanced:
            log_scale = log_scale + g[:, None].to(dtype)

        ratio, offset = factors.ratio(columns, dtype)
        upper = i * n + j
        weight = gram.flatten(1).index_select(1, upper) * torch.where(i == j, 1.0, 2.0).to(dtype)  # (K, P)
        terms, top = _pair_terms(log_scale, log_kernel.flatten(1).index_select(1, upper), ratio)
        total = (terms @ weight[..., None]).squeeze(-1).clamp_min_(0.0)  # (K, B)

        log_scale_top = log_scale.amax(-1, keepdim=True)
        e = (log_scale - log_scale_top).exp_()
        half = e @ (gram * kernel)  # (K, B, n)
        normaliser = (half * e).sum(-1)

        ctx.save_for_backward(exponents, readout, columns, kernel, gram, weight, terms, total, e, half, normaliser)
        ctx.factors, ctx.balanced, ctx.gammas = factors, balanced, gammas
        log_p = torch.log(total / normaliser) + (top - 2.0 * log_scale_top).squeeze(-1)
        return log_p.double() + offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for log_scale, exponents and readout."""
        exponents, readout, columns, kernel, gram, weight, terms, total, e, half, normaliser = ctx.saved_tensors
        n, n_labels = exponents.shape[1:]
        grad = grad.to(terms.dtype)
        by_total = grad / total  # (K, B)
        d_weight = (by_total[:, None] @ terms).squeeze(1)  # (K, P)
        d_ratio = terms * weight[:, None]
        d_ratio *= by_total[..., None]
        by_normaliser = (grad / normaliser)[..., None] * e  # (K, B, n)
        d_log_scale = _fold(d_ratio, n) - 2.0 * by_normaliser * half
        outer = by_normaliser.transpose(1, 2) @ e * kernel  # (K, n, n)
        d_readout = 2.0 * readout @ (symmetric(d_weight, n) - outer)

        i, j = pair_index(n, exponents.device)
        upper = i * n + j
        balance = (outer * gram).flatten(1).index_select(1, upper) * torch.where(i == j, 1.0, 2.0).to(gram.dtype)
        d_log_k = (d_weight * weight - balance).double()  # (K, P)
        d_g = -_fold(d_log_k, n)
        if not ctx.balanced:
            d_g += d_log_scale.sum(1)
        d_log_k.index_add_(1, diagonal_index(n, grad.device), (0.5 * d_g).to(d_log_k.dtype))
        d_columns = ctx.factors.gradient(columns, d_ratio)
        slope = ctx.gammas.slope()
        slope *= d_log_k[:, None]
        slope[:, n_labels] *= -1.0
        d_columns[:, : n_labels + 1] += slope
        d_exponents = _fold(d_columns, n).transpose(1, 2) @ ctx.factors.factors.groups
        return d_log_scale, d_exponents, d_readout, None, None


def log_prob_factors(
    output: Tensor, exponents: Tensor, readout: Tensor, factors: VoteFactors, balanced: bool = True
) -> Tensor:
    """Log probability of K members' votes (K, B), multinomial coefficient left out; see :class:`CountLogDensity`.

    Tables are float64; what has rows is of the network's dtype, in differences between components.
    """
    exponents, step = exponents.double(), output.shape[1]
    kind: type[Factors] = DirectFactors
    if output.device.type == "cpu":
        rough, few = output.dtype == torch.float32, int(factors.count.max()) <= MOST_VOTES
        kind = (SmoothFactors if few else LargeFactors) if rough else (SweptFactors if few else ManyFactors)
    if not torch.is_grad_enabled():
        pairs = math.comb(exponents.shape[1] + 1, 2)
        step = max(16, CACHE_ELEMENTS // (pairs * len(exponents)))
    parts = []
    for start in range(0, output.shape[1], step):
        rows = slice(start, start + step)
        part = kind(factors[:, rows])
        parts.append(CountLogDensity.apply(output[:, rows], exponents, readout, part, balanced))  # type: ignore[no-untyped-call]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
