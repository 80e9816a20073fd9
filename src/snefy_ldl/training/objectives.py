"""What members must explain (shares, shares of which some are unknown, or votes), and its gradient.

A likelihood is one pass: values forward, gradients backward. ``SnefySimplex.log_prob`` and ``log_prob_counts`` are the
same functions by plain autograd, and the oracles of the tests.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import chebyshev
from scipy.special import gammaln
from torch import Tensor
from torch.autograd.function import once_differentiable

from snefy_ldl._internal.memory import CACHE_ELEMENTS
from snefy_ldl._internal.special import (
    circulant_from_full,
    full_from_circulant,
    gamma_and_slope,
    log_gamma_growth,
    log_share,
    log_signed_sum,
    neuron_sums,
    pair_concentration,
    pair_gram,
    pair_index,
    pair_sums,
    pair_weights,
    symmetric,
    unit_kernel,
)
from snefy_ldl._internal.types import Array
from snefy_ldl.distributions.snefy import log_quadratic_form
from snefy_ldl.networks.net import SnefyNet

if TYPE_CHECKING:
    from typing_extensions import Self

#: Above so many votes per item float32 would round differences between components.
MOST_VOTES = 10_000
#: Terms this far below the largest in the exponent count as that far: a float32 beneath them is slow, and nothing.
LOWEST_EXPONENT = -80.0
LOG2_E = math.log2(math.e)
#: Neglected terms of a Chebyshev series are this small compared with its first, and neglected singular values.
SERIES_TOLERANCE = {torch.float32: (1e-7, 1e-8), torch.float64: (1e-14, 1e-15)}
#: Intervals end at whole multiples of this in log(1 + β), so that training meets few of them.
INTERVAL_STEP = 0.5


class Likelihood(torch.autograd.Function):
    """``apply(pass, output, exponents, readout)``: a pass as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, work: Pass, *inputs: Tensor) -> Tensor:
        """The log likelihood (K, B)."""
        ctx.work = work
        return work.forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients for output, exponents and readout."""
        return None, *ctx.work.backward(grad)


# -- pairs of neurons ------------------------------------------------------------------------------------------------


class PairKernel:
    """``B(α_ij)``, ``α_ij = 1 + w_i + w_j``, of K stacked members, scaled to a unit diagonal.

    ``R_ij = B(α_ij) / √(B(α_ii) B(α_jj))`` and ``g_i = ½ log B(α_ii)``; by Cauchy-Schwarz R <= 1.

    Args:
        exponents: ``w`` (K, n, L), float64.
        dtype: of R and of gradients; the table itself is made in float64.
        slopes: whether :meth:`pull_back` will be asked for.
        groups: further sets of labels (Q', L), 0 or 1, whose summed concentrations are to be known.

    Attributes:
        columns: concentrations of all pairs (K, Q, S, n), float64: of every label, of their total, of the further sets.
        log_ratio: ``log R`` (K, S n), float64.
        ratio: R (K, n, n).
        g: ``g`` (K, n), float64.

    Example:
        >>> kernel = PairKernel(torch.zeros(1, 2, 3, dtype=torch.float64), torch.float64)
        >>> kernel.ratio.squeeze().tolist(), (2.0 * kernel.g).exp().round(decimals=8).tolist()  # B(1, 1, 1) = 1/2
        ([[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.5]])
    """

    def __init__(
        self, exponents: Tensor, dtype: torch.dtype, slopes: bool = True, groups: Tensor | None = None
    ) -> None:
        self.n = n = exponents.shape[1]
        labels = exponents.transpose(1, 2) + 0.5
        sets = [labels, labels.sum(1, keepdim=True)]
        if groups is not None and len(groups):
            sets.append(groups @ labels)
        self.halves = torch.cat(sets, 1)
        self.columns = pair_sums(self.halves)
        known = self.columns[:, : exponents.shape[2] + 1].flatten(0, 1)
        log_gamma, self.slopes = gamma_and_slope(known, dtype, slopes)
        log_gamma = log_gamma.view(len(exponents), -1, *known.shape[1:])
        log_beta = log_gamma[:, :-1].sum(1).sub_(log_gamma[:, -1])
        self.g = 0.5 * log_beta[:, 0]
        self.log_ratio = log_beta.sub_(pair_sums(self.g)).flatten(1)
        ratio = self.log_ratio.to(dtype, copy=True).exp_()
        self.ratio = ratio.index_select(1, full_from_circulant(n, ratio.device)).view(-1, n, n)

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Gradient for the exponents (K, n, L) of one for ``log B_ij``, which is symmetric (K, n, n)."""
        assert self.slopes is not None
        n_members, n, _ = gradient.shape
        pairs = gradient.flatten(1).index_select(1, circulant_from_full(n, gradient.device))
        pairs = pairs.mul_(pair_weights(n, gradient.device)).view(n_members, 1, -1, n)
        sums = neuron_sums(self.slopes.view(n_members, -1, *pairs.shape[2:]) * pairs)
        return (sums[:, :-1] - sums[:, -1:]).transpose(1, 2)


# -- a likelihood and its gradient -----------------------------------------------------------------------------------


class Pass(ABC):
    """The log likelihood of some rows of K stacked members, and its gradient.

        log p = log N(labels) - log e^{s}ᵀ (VᵀV ∘ R) e^{s}

    s is the output h̃, or ``h + g``. The normaliser is written here, the numerator N in a subclass.

    Args:
        labels: of the rows, as the objective prepared them.
        balanced: what the network's output is: ``h̃`` (neurons of equal mass), or the paper's ``h``.
        gradients: whether :meth:`backward` will be asked for.
    """

    #: Further sets of labels (Q', L) whose summed concentrations the numerator needs.
    groups: Tensor | None = None

    def __init__(self, labels: Any, balanced: bool = True, gradients: bool = True) -> None:
        self.labels, self.balanced, self.gradients = labels, balanced, gradients

    @abstractmethod
    def numerator(self, output: Tensor, exponents: Tensor, readout: Tensor) -> Tensor:
        """``log N`` (K, B), once ``kernel`` and ``gram`` are there."""

    @abstractmethod
    def pull_numerator(self, grad: Tensor, readout: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of ``log N`` for one of it (K, B).

        Returns:
            Those for output, readout, ``log R`` (K, n, n) and g (K, n), and that for the exponents but for R and g.
        """

    def forward(self, output: Tensor, exponents: Tensor, readout: Tensor) -> Tensor:
        """Log likelihood (K, B), without the background.

        Args:
            output: the network's (K, B, n).
            exponents: ``W`` (K, n, L).
            readout: ``V`` (K, m, n).
        """
        self.precision, exponents = exponents.dtype, exponents.double()
        self.kernel = PairKernel(exponents, output.dtype, self.gradients, self.groups)
        if not self.balanced:
            output = output + self.kernel.g[:, None].to(output.dtype)
        self.readout, self.gram = readout, readout.transpose(1, 2) @ readout
        log_p = self.numerator(output, exponents, readout)
        top = output.amax(-1, keepdim=True)
        self.e = (output - top).exp_()
        self.mixed = self.gram * self.kernel.ratio
        self.half = self.e @ self.mixed
        self.normaliser = torch.linalg.vecdot(self.half, self.e)
        return log_p.sub_(self.normaliser.log()).sub_(top.squeeze(-1), alpha=2.0)

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients for output, exponents and readout of one for the log likelihood (K, B)."""
        grad = grad.to(self.e.dtype)
        d_output, d_readout, d_ratio, d_g, d_exponents = self.pull_numerator(grad, self.readout)
        by_normaliser = self.e * (grad / self.normaliser)[..., None]
        d_output.addcmul_(by_normaliser, self.half, value=-2.0)
        outer = by_normaliser.transpose(1, 2) @ self.e  # Σ_b grad/Z e eᵀ, (K, n, n)
        d_ratio.addcmul_(outer, self.mixed, value=-1.0)
        d_readout.baddbmm_(self.readout, outer.mul_(self.kernel.ratio), alpha=-2.0)
        d_g.sub_(d_ratio.sum(-1), alpha=2.0)
        if not self.balanced:
            d_g += d_output.sum(1)
        d_ratio.diagonal(dim1=1, dim2=2).add_(d_g, alpha=0.5)
        return d_output, d_exponents.add_(self.kernel.pull_back(d_ratio)).to(self.precision), d_readout


class SharePass(Pass):
    """The log density of label distributions without zeros: ``N = ‖V e^a‖²``, ``a = W log ℓ - g + s``.

    Labels are ``log ℓ`` (K, B, L), float64.
    """

    def numerator(self, output: Tensor, exponents: Tensor, readout: Tensor) -> Tensor:
        """See :meth:`Pass.numerator`."""
        powers = torch.baddbmm(-self.kernel.g[:, None], self.labels, exponents.transpose(1, 2))
        neurons = powers.to(output.dtype).add_(output)
        top = neurons.amax(-1, keepdim=True)
        self.neurons = neurons.sub_(top).exp_()
        self.outputs = self.neurons @ readout.transpose(1, 2)
        self.square = torch.linalg.vecdot(self.outputs, self.outputs)
        return self.square.log().add_(top.squeeze(-1), alpha=2.0)

    def pull_numerator(self, grad: Tensor, readout: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """See :meth:`Pass.pull_numerator`."""
        by_square = self.outputs * (2.0 * grad).div_(self.square)[..., None]
        d_neurons = (by_square @ readout).mul_(self.neurons)
        d_readout = by_square.transpose(1, 2) @ self.neurons
        d_exponents = d_neurons.transpose(1, 2) @ self.labels.to(d_neurons.dtype)
        return d_neurons, d_readout, torch.zeros_like(self.gram), d_neurons.sum(1).neg_(), d_exponents


# -- votes -----------------------------------------------------------------------------------------------------------
#
#     P(k|x) ∝ Σ_p c_p(x) Π_s (β_ps)_{m_s}^{±1},   (β)_m = β (β+1) ... (β+m-1) = Γ(β+m) / Γ(β)
#
# Votes enter through rising factorials only: ``(α_pr)_{k_r}`` for each label and ``1 / (A_p)_{|k|}`` for the total.
# Of labels that were not all counted, the total's ``β`` is a sum of some concentrations; the form stays.


@dataclass(frozen=True)
class VoteFactors:
    """Votes as the rising factorials of their probability.

    Args:
        groups: which labels each column sums, 0 or 1 (Q, L): the L labels first, then all of them, then those of rows
            in which not all were counted.
        column: which column each factor belongs to (..., T).
        sign: +1 for a factor of the numerator, -1 for one of the denominator (T,).
        distinct: the counts that occur.
        place: where each count is among those (..., T).
    """

    groups: Tensor
    column: Tensor
    sign: Tensor
    distinct: tuple[int, ...]
    place: Tensor

    @classmethod
    def of(cls, counts: Tensor) -> VoteFactors:
        """Factors of votes (..., L), NaN where a label was not counted.

        A row with labels S counted is a vote among S: its distribution is that of the subcomposition, ``(A_p)_{|k|}``
        becoming ``(Σ_{r in S} α_pr)_{|k|}``.

        Args:
            counts: ``k``.
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
        labels = torch.arange(n_labels, device=counts.device).expand(counts.shape)
        column = torch.cat([labels, whole[..., None]], -1)
        count = torch.cat([votes, votes.sum(-1, keepdim=True)], -1).long()
        distinct, place = torch.unique(count, return_inverse=True)
        sign = torch.tensor([1.0] * n_labels + [-1.0], dtype=torch.float64, device=counts.device)
        return cls(torch.cat(groups).to(counts.device), column, sign, tuple(distinct.tolist()), place)

    def __getitem__(self, rows: Any) -> VoteFactors:
        """The factors of some rows."""
        return replace(self, column=self.column[rows], place=self.place[rows])

    @property
    def log_gammas(self) -> Tensor:
        """``Σ ± log Γ(m)`` over the factors of each row (...), float64: the part that no network changes."""
        counts = torch.tensor(self.distinct, dtype=torch.float64, device=self.place.device).clamp_min(1.0)
        return (torch.lgamma(counts)[self.place] * self.sign).sum(-1)


class Series(NamedTuple):
    """``log (β)_m - log Γ(m)`` for some numbers of votes m on one interval, as a sum of few functions of β.

    Without its first factor, ``(β)_m`` has poles at ``β = -1, -2, ...``: as a function of ``log(1 + β)`` its logarithm
    is analytic up to ``± iπ`` from the real line, for any m. A Chebyshev series on an interval of half length ``half``
    therefore converges like ``ρ^-g`` with ``ρ = π/half + √(1 + π²/half²)``: about twenty terms are all that float32 can
    hold, and forty all that float64 can.
    Series of different m are so alike that a singular value decomposition leaves about ten functions of β; for up
    to four votes three.

    Attributes:
        constant: the part that does not depend on β (M,), float64.
        value: ``[m > 0]``, the coefficient of log β, and those of the functions (M, 1 + R).
        basis: the functions, and then their slopes for ``log(1 + β)``, as Chebyshev series (2 R, G).
    """

    constant: Tensor
    value: Tensor
    basis: Tensor


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def rising_series(low: int, high: int, counts: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Series:
    """The series on ``INTERVAL_STEP * [low, high]`` for some numbers of votes.

    >>> [rising_series(0, 14, tuple(range(most + 1))).value.shape[1] - 1 for most in (1, 4, 128)]
    [1, 3, 10]
    """
    neglected, smallest = SERIES_TOLERANCE[dtype]
    half, centre = 0.5 * INTERVAL_STEP * (high - low), 0.5 * INTERVAL_STEP * (high + low)
    growth = math.pi / half + math.sqrt(1.0 + (math.pi / half) ** 2)
    length = math.ceil(-math.log(neglected) / math.log(growth)) + 1
    m = np.array(counts, dtype=np.float64)

    def rest(x: Any) -> Any:
        beta = np.expm1(centre + half * x)[:, None]
        return np.where(m > 0, log_gamma_growth(beta, np.maximum(m, 1.0)) - gammaln(beta + 1.0), 0.0)

    table: Array = np.ascontiguousarray(chebyshev.chebinterpolate(rest, length - 1).T)
    constant = table[:, 0].copy()
    table[:, 0] = 0.0
    coefficients, sizes, basis = np.linalg.svd(table, full_matrices=False)
    size = max(1, int((np.cumsum(sizes[::-1])[::-1] > smallest * sizes[0]).sum()))
    basis = basis[:size]
    slopes = chebyshev.chebder(basis, axis=1) / half
    value = np.hstack([m[:, None] > 0, (coefficients * sizes)[:, :size]])
    both = np.vstack([basis, np.pad(slopes, ((0, 0), (0, length - slopes.shape[1])))])
    return Series(torch.from_numpy(constant), torch.from_numpy(value).to(dtype), torch.from_numpy(both).to(dtype))


class VotePass(Pass):
    """The log probability of votes, without the part that no network changes.

        N = Σ_ij M_ij e^{s_i + s_j} R_ij ρ_ij(k),   ρ_ij = Π_s [(β_ijs)_{m_s} / Γ(m_s)]^{±1}

    Labels are :class:`VoteFactors` (K, B). The exponents of all terms are one matrix product: s, 1 and the coefficients
    of each row's counts, by which neurons a pair has, ``log R`` and the few functions of β that make up all rising
    factorials.
    """

    labels: VoteFactors

    @property
    def groups(self) -> Tensor:  # type: ignore[override]
        """See :class:`Pass`."""
        return self.labels.groups[self.labels.groups.shape[1] + 1 :]

    def numerator(self, output: Tensor, exponents: Tensor, readout: Tensor) -> Tensor:
        """See :meth:`Pass.numerator`; in float64."""
        n, dtype = self.kernel.n, output.dtype
        series, functions = self._functions(dtype)
        pairs = torch.cat([self.kernel.log_ratio.to(dtype)[:, None], functions], 1)
        ones = output.new_ones(*output.shape[:2], 1)
        self.coefficients = torch.cat([ones, self._coefficients(series)], 2)
        terms = pair_sums(output).flatten(2).baddbmm_(self.coefficients, pairs)
        top = terms.amax(-1, keepdim=True)
        # on a CPU a third of the time of exp
        self.terms = terms.sub_(top).clamp_min_(LOWEST_EXPONENT).mul_(LOG2_E).exp2_()
        self.weight = self.gram.flatten(1).index_select(1, circulant_from_full(n, output.device))
        self.weight *= pair_weights(n, output.device)
        self.total = (terms @ self.weight[..., None]).squeeze(-1).clamp_min_(0.0)
        constant = series.constant[self.labels.place].mul_(self.labels.sign).sum(-1)
        return constant.add_(self.total.log()).add_(top.squeeze(-1))

    def pull_numerator(self, grad: Tensor, readout: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """See :meth:`Pass.pull_numerator`."""
        n, by_total = self.kernel.n, (grad / self.total)[..., None]  # (K, B, 1)
        d_output = neuron_sums((self.terms * self.weight[:, None]).unflatten(2, (-1, n))).mul_(by_total)
        d_terms = (self.coefficients * by_total).transpose(1, 2) @ self.terms  # before the weights of the pairs
        d_gram = d_terms[:, 0].index_select(1, full_from_circulant(n, grad.device)).view_as(self.gram)
        beta = self.kernel.columns.flatten(2).to(grad.dtype)  # (K, Q, S n)
        by_function = d_terms[:, 1:].unflatten(1, (-1, beta.shape[1]))
        d_columns = (by_function[:, 1:] * self.slopes).sum(1).div_(beta + 1.0).addcdiv_(by_function[:, 0], beta)
        sums = neuron_sums(d_columns.mul_(self.weight[:, None]).unflatten(2, (-1, n)))  # (K, Q, n)
        d_exponents = sums.transpose(1, 2) @ self.labels.groups.to(sums.dtype)
        return d_output, 2.0 * (readout @ d_gram), d_gram * self.gram, torch.zeros_like(sums[:, 0]), d_exponents

    def _functions(self, dtype: torch.dtype) -> tuple[Series, Tensor]:
        """The series of the present concentrations, and functions of every column, log β first (K, (1 + R) Q, S n)."""
        halves, columns = self.kernel.halves, self.kernel.columns.flatten(2)
        ends = float(halves.min()), float(halves.max())  # the ends of all pairs are neurons paired with themselves
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
            ends = 0.0, 0.0  # training has diverged: the answer is NaN, and the epoch is undone
        low = math.floor(math.log1p(2.0 * ends[0]) / INTERVAL_STEP)
        high = max(math.ceil(math.log1p(2.0 * ends[1]) / INTERVAL_STEP), low + 2)  # no interval without a length
        series = rising_series(low, high, self.labels.distinct, dtype)
        series = Series(*(part.to(columns.device) for part in series))
        x = torch.log1p(columns).mul_(2.0 / (INTERVAL_STEP * (high - low))).sub_((high + low) / (high - low)).to(dtype)
        polynomials = [torch.ones_like(x), x]
        for _ in range(series.basis.shape[1] - 2):
            polynomials.append((2.0 * x).mul_(polynomials[-1]).sub_(polynomials[-2]))
        both = torch.tensordot(series.basis, torch.stack(polynomials), 1)  # (2 R, K, Q, P)
        values, slopes = both.transpose(0, 1).chunk(2, 1)
        self.slopes = slopes
        return series, torch.cat([columns.to(dtype).log()[:, None], values], 1).flatten(1, 2)

    def _coefficients(self, series: Series) -> Tensor:
        """Coefficients of each row's counts, signs included, in the order of the functions (K, B, (1 + R) Q)."""
        factors = self.labels
        taken = series.value[factors.place].transpose(2, 3) * factors.sign.to(series.value)  # (K, B, 1 + R, T)
        into = taken.new_zeros(*taken.shape[:3], len(factors.groups))
        return into.scatter_add_(3, factors.column[:, :, None].expand(taken.shape), taken).flatten(2)


# -- objectives ------------------------------------------------------------------------------------------------------


class Objective(ABC):
    """Labels of all rows, in the form their likelihood needs; K members may each see other rows.

    A new kind of label is one subclass with :meth:`labels`, and :meth:`make_pass` or, without written-out gradients,
    :meth:`value`.

    Attributes:
        background: log likelihood of every row under each member's background (K, N), or None without one. The
            background does not change in training, so this is computed once.
        left_out: part of every row's log likelihood (N,) that no network changes and :meth:`log_prob` leaves out; None
            for nothing. Reports of a fit include it.
        can_be_captured: whether a step never waits for a number from the GPU, so that a CUDA graph can hold it.
    """

    background: Tensor | None = None
    left_out: Tensor | None = None
    can_be_captured = False

    @abstractmethod
    def labels(self, index: Tensor) -> Any:
        """Labels of the rows index (K, B), as :meth:`value` takes them."""

    def make_pass(self, labels: Any, balanced: bool) -> Pass:
        """The likelihood with a written-out gradient; not asked for if :meth:`value` does without.

        Args:
            labels: of the rows, as :meth:`labels` gives them.
            balanced: what the network's output is.
        """
        raise NotImplementedError

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """Log likelihood (K, B) without backgrounds, through which gradients flow; see :meth:`Pass.forward`."""
        inputs = output, exponents, readout
        return Likelihood.apply(self.make_pass(labels, balanced), *inputs)  # type: ignore[no-untyped-call]

    def set_background(self, net: SnefyNet, n_rows: int) -> None:
        """Compute the backgrounds: each is a density with one neuron."""
        if not net.has_background:
            return
        members = net.n_members
        exponents = 0.5 * (net.background[:, None] - 1.0)
        rows = torch.arange(n_rows, device=exponents.device).expand(members, -1)
        output, readout = exponents.new_zeros(members, n_rows, 1), exponents.new_ones(members, 1, 1)
        with torch.no_grad():
            log_p = self.value(output, exponents, readout, self.labels(rows), True)
        self.background = log_p.to(net.readout.dtype)

    def log_prob(self, net: SnefyNet, x: Any, index: Tensor) -> Tensor:
        """Log likelihood of some rows, background included.

        Args:
            net: K members.
            x: features of those rows, as the backbone takes them.
            index: row numbers (K, B).

        Returns:
            (K, B), through which gradients flow.
        """
        parts = net.output(x), net.exponents, net.readout
        log_p, background = self.value(*parts, self.labels(index), net.balanced), self.background_of(index)
        return net.mix(log_p, None if background is None else background.to(log_p.dtype))

    def without_background(self) -> Self:
        """These labels, for the networks without their background."""
        other = copy.copy(self)
        other.background = None
        return other

    def background_of(self, index: Tensor) -> Tensor | None:
        """The background's log likelihood (K, B) of the rows index (K, B), or None."""
        return None if self.background is None else self.background.gather(1, index)


class Shares(Objective):
    """Label distributions without gaps.

    Args:
        logs: log shares (G, N, L), float64; G is 1 unless zero policies differ between members.
        net: gives the background.
        group: which of the G tables each member uses (K,).
    """

    can_be_captured = True

    def __init__(self, logs: Tensor, net: SnefyNet, group: Tensor) -> None:
        self.logs, self.group = logs, group
        self.set_background(net, logs.shape[1])

    def labels(self, index: Tensor) -> Tensor:
        """Log shares (K, B, L)."""
        if len(self.logs) == 1:
            return self.logs[0].index_select(0, index.flatten()).view(*index.shape, -1)
        return self.logs[self.group[:, None], index]

    def make_pass(self, labels: Any, balanced: bool) -> Pass:
        """See :meth:`Objective.make_pass`."""
        return SharePass(labels, balanced, torch.is_grad_enabled())


class Gaps(Objective):
    """Label distributions with gaps, scored by the density of what is known.

    Where the labels S of a row are unknown, the others and ``r = 1 - Σ_{l not in S} ℓ_l`` are known: the row is a label
    distribution with the labels of S merged, and the family is closed under merging. In terms of the neurons

        p(ℓ_known, r | x) = eᵀ (M ∘ K^S) e / Z(x),   K^S_ij = Π_{l in S} Γ(α_ijl) / Γ(Σ_{l in S} α_ijl),
        log e_i = h_i + Σ_{l not in S} w_il log ℓ_l + (Σ_{l in S} w_il + (|S|-1)/2) log r.

    Rows without gaps are the case of an empty S, with ``K = 1``. One unknown share follows from the others.

    Args:
        tables: one per group of members that share a zero policy, (N, L) each, strictly positive, NaN where unknown.
        net: gives the background.
        group: which table each member uses (K,).
    """

    def __init__(self, tables: list[Tensor], net: SnefyNet, group: Tensor) -> None:
        gaps = torch.isnan(tables[0])
        rest = [1.0 - table.nan_to_num(0.0).sum(-1, keepdim=True) for table in tables]
        logs = [log_share(torch.where(gaps, left, table)) for left, table in zip(rest, tables)]
        self.logs, self.group = torch.stack(logs), group  # (G, N, L), ``log r`` in place of unknown shares
        patterns, which = torch.unique(torch.cat([torch.zeros_like(gaps[:1]), gaps]), dim=0, return_inverse=True)
        # torch sorts, so the empty set comes first
        self.patterns, self.which = patterns.double(), which[1:]  # (Q, L), (N,)
        self.set_background(net, len(gaps))

    def labels(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Logs of known shares and rests (K, B, L), and the set of each row (K, B)."""
        return self.logs[self.group[:, None], index], self.which[index]

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """See :meth:`Objective.value`."""
        (logs, which), n, exponents = labels, exponents.shape[1], exponents.double()
        log_kernel, g = unit_kernel(exponents)  # (K, P), (K, n)
        log_scale = output.double() if balanced else output.double() + g[:, None]
        used, place = torch.arange(len(self.patterns), device=which.device), which
        if len(self.patterns) > 2:
            used, place = torch.unique(which, return_inverse=True)
        sets = self.patterns[used]  # (Q', L)
        size = sets.sum(-1)
        alpha = pair_concentration(exponents)  # (K, P, L)
        merged = torch.where(size > 0, alpha @ sets.T, 1.0)  # (K, P, Q')
        log_k = (torch.lgamma(alpha) @ sets.T - torch.lgamma(merged)).transpose(1, 2)
        members = torch.arange(len(log_k), device=which.device)[:, None]
        # Every unknown label's slot holds log r, so the product below adds all their exponents; (|S|-1)/2 log r is left
        rest = (logs * sets[place]).sum(-1) / size[place].clamp_min(1.0)
        shift = 0.5 * (size[place] - 1.0).clamp_min(0.0) * rest  # (K, B)
        powers = logs @ exponents.transpose(1, 2) + shift[..., None]
        neurons = log_scale - g[:, None] + powers  # (K, B, n)
        i, j = pair_index(n, which.device)
        log_terms = neurons[..., i] + neurons[..., j] + log_k[members, place]  # (K, B, P)
        gram = readout.double()
        total = log_signed_sum(log_terms, pair_gram(gram)[:, None])
        normaliser = (gram.transpose(1, 2) @ gram) * symmetric(log_kernel.exp(), n)
        return total - log_quadratic_form(normaliser, log_scale)


class Counts(Objective):
    """Vote counts.

    Args:
        counts: votes (N, L), float64; NaN where a label was not counted.
        net: gives the background.
    """

    def __init__(self, counts: Tensor, net: SnefyNet) -> None:
        self.factors, votes = VoteFactors.of(counts), counts.nan_to_num(0.0)
        coefficient = torch.lgamma(votes.sum(1) + 1.0) - torch.lgamma(votes + 1.0).sum(1)
        self.left_out = coefficient + self.factors.log_gammas
        self.set_background(net, len(counts))

    def labels(self, index: Tensor) -> VoteFactors:
        """The factors of the rows."""
        return self.factors[index]

    def make_pass(self, labels: Any, balanced: bool) -> Pass:
        """See :meth:`Objective.make_pass`."""
        return VotePass(labels, balanced, torch.is_grad_enabled())

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """See :meth:`Objective.value`; without gradients a part of the rows at a time."""
        if self.factors.distinct[-1] > MOST_VOTES:  # gradients go back to the precision of the network
            output, readout = output.double(), readout.double()
        if torch.is_grad_enabled():
            return super().value(output, exponents, readout, labels, balanced)
        step = max(16, CACHE_ELEMENTS // (math.comb(exponents.shape[1] + 1, 2) * len(exponents)))
        parts = [
            super(Counts, self).value(output[:, rows], exponents, readout, labels[:, rows], balanced)
            for rows in (slice(start, start + step) for start in range(0, output.shape[1], step))
        ]
        return torch.cat(parts, 1)
