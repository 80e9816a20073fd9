"""What members must explain (shares, shares of which some are unknown, or votes), and its gradient.

A likelihood is one pass: values forward, gradients backward, in arrays that stay.

Pairs of neurons stand in circulant order (``_internal/special.py``): the sums ``w_i + w_j`` are one addition of two
strided views, and nothing has to be looked up by index. Models this small spend most of a step in bookkeeping, so every
array and view is made once. ``SnefySimplex.log_prob`` and ``log_prob_counts`` are the same functions by plain autograd,
and the oracles of the tests.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor
from torch.autograd.function import once_differentiable

from snefy_ldl._internal.memory import CACHE_ELEMENTS
from snefy_ldl._internal.special import (
    GammaSweep,
    circulant_from_full,
    full_from_circulant,
    log_gamma_growth,
    log_share,
    pair_concentration,
    symmetric,
    unit_kernel,
)
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
    """``apply(pass, output, exponents, readout, labels)``: a pass as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, work: Pass, *inputs: Any) -> Tensor:
        """The log likelihood (K, B)."""
        ctx.work, ctx.inputs = work, inputs[:3]
        return work.forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients for output, exponents and readout."""
        output, exponents, readout = ctx.inputs
        into = torch.empty_like(output), torch.empty_like(exponents, dtype=output.dtype), torch.empty_like(readout)
        ctx.work.backward(grad.to(output.dtype), *into)
        return None, into[0], into[1].to(exponents.dtype), into[2], None


# -- pairs of neurons ------------------------------------------------------------------------------------------------


class Wrapped:
    """Numbers of n neurons, continued beyond the last with the first, as the two neurons of all pairs see them.

    Args:
        memory: (..., n + S - 1), S = n // 2 + 1.
        n: neurons.

    Attributes:
        numbers: of the n neurons (..., n).
        views: of the first neuron (..., 1, n) and of the second (..., S, n).
    """

    def __init__(self, memory: Tensor, n: int) -> None:
        shifts = n // 2 + 1
        self.numbers, self._rest, self._start = memory[..., :n], memory[..., n:], memory[..., : shifts - 1]
        right = memory.as_strided((*memory.shape[:-1], shifts, n), (*memory.stride()[:-1], 1, 1))
        self.views = self.numbers.unsqueeze(-2), right

    def fill(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Take numbers (..., n); gives the views."""
        self.numbers.copy_(numbers)
        self._rest.copy_(self._start)
        return self.views


class PairSums:
    """Sums of numbers of pairs over all pairs that a neuron is part of.

    Args:
        rows: how many sets of pairs.
        n: neurons.
        like: gives device and dtype.

    Attributes:
        pairs: where the numbers go (rows, S, n), in circulant order.

    Example:
        >>> sums = PairSums(1, 2, torch.empty(0))
        >>> _ = sums.pairs.copy_(torch.tensor([[[1.0, 10.0], [2.0, 2.0]]]))  # (0, 0), (1, 1); (0, 1), (1, 0)
        >>> sums.by_neuron()
        tensor([[ 6., 24.]])
    """

    def __init__(self, rows: int, n: int, like: Tensor) -> None:
        shifts, length = n // 2 + 1, n + n // 2
        # The second neurons' sums run along diagonals, which go on, before the first column, with the last ones.
        memory = like.new_empty(rows, shifts, length)
        self.pairs, self._before, self._last = memory[..., shifts - 1 :], memory[..., : shifts - 1], memory[..., n:]
        strides = (memory.stride(0), length - 1, 1)
        self._diagonals = memory.as_strided((rows, shifts, n), strides, storage_offset=shifts - 1)

    def by_neuron(self) -> Tensor:
        """The sums (rows, n)."""
        self._before.copy_(self._last)
        return self.pairs.sum(1).add_(self._diagonals.sum(1))


def pair_weights(n: int, like: Tensor) -> Tensor:
    """How often each circulant entry counts in a sum over all n² pairs, (S n,)."""
    weight = like.new_full((n // 2 + 1, n), 2.0)
    weight[0] = 1.0
    if n % 2 == 0:  # pairs half-way round stand there twice
        weight[-1] = 1.0
    return weight.flatten()


class PairGamma:
    """``log Γ(s_i + s_j)`` and ``ψ(s_i + s_j)`` of all pairs of n neurons, for several rows.

    A CPU computes them by ``GammaSweep``, several times faster than torch's own, and leaves Stirling's linear part
    ``constant - z`` out of ``log Γ(z)``; a GPU uses torch's.

    Args:
        rows: how many sets of neurons.
        n: neurons.
        like: gives device and the slopes' dtype.
        slopes: whether ψ is needed.

    Attributes:
        values: log Γ in circulant order (rows, S, n), float64, without the linear part.
        slopes: ψ (rows, S, n), or None.
        constant, linear: the part left out is ``constant + linear z``.
    """

    def __init__(self, rows: int, n: int, like: Tensor, slopes: bool = True) -> None:
        shifts = n // 2 + 1
        self._halves = Wrapped(like.new_empty(rows, n + shifts - 1, dtype=torch.float64), n)
        self.values = like.new_empty(rows, shifts, n, dtype=torch.float64)
        self.slopes = like.new_empty(rows, shifts, n) if slopes else None
        self.constant, self.linear, self._sweep = 0.0, 0.0, None
        if like.device.type == "cpu":
            self._sweep = GammaSweep(*self._halves.views, self.values, self.slopes, like.dtype)
            self.constant, self.linear = GammaSweep.linear_part(), -1.0

    def compute(self, halves: Tensor) -> None:
        """Fill values and slopes for s (rows, n), float64."""
        left, right = self._halves.fill(halves)
        if self._sweep is not None:
            self._sweep.run()
            return
        torch.lgamma(left + right, out=self.values)
        if self.slopes is not None:
            torch.digamma((left + right).to(self.slopes.dtype), out=self.slopes)


class PairKernel:
    """``B(α_ij)``, ``α_ij = 1 + w_i + w_j``, for K stacked members.

    Args:
        shape: members K, neurons n and labels L.
        like: gives device and dtype of what comes out; the table itself is made in float64.
        slopes: whether :meth:`pull_back` will be asked for.
        groups: further sets of labels (Q', L), 0 or 1, whose summed concentrations ``gamma`` is to hold.

    Attributes:
        halves: what each neuron adds to the concentrations of its pairs (K, Q, n), float64: of every label, of their
            total, and of the further sets.
        gamma: log Γ and ψ of all these.
        log_ratio: ``log R`` in circulant order (K, S, n), float64, once computed.

    Example:
        >>> kernel = PairKernel((1, 2, 3), torch.empty(0, dtype=torch.float64))
        >>> ratio, g = kernel.compute(torch.zeros(1, 2, 3, dtype=torch.float64))
        >>> ratio.squeeze().tolist(), (2.0 * g).exp().round(decimals=8).tolist()  # B(1, 1, 1) = 1/2
        ([[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.5]])
    """

    def __init__(
        self, shape: tuple[int, int, int], like: Tensor, slopes: bool = True, groups: Tensor | None = None
    ) -> None:
        n_members, n, n_labels = shape
        self._groups = groups if groups is not None and len(groups) else None
        every = n_labels + 1 + (0 if self._groups is None else len(self._groups))
        self.halves = like.new_empty(n_members, every, n, dtype=torch.float64)
        self.gamma = PairGamma(n_members * every, n, like, slopes)
        self.log_ratio = like.new_empty(n_members, n // 2 + 1, n, dtype=torch.float64)
        self._dtype, self._g = like.dtype, Wrapped(like.new_empty(n_members, n + n // 2, dtype=torch.float64), n)
        if slopes:
            self._weights, self._sums = pair_weights(n, like), PairSums(n_members * (n_labels + 1), n, like)

    def compute(self, exponents: Tensor) -> tuple[Tensor, Tensor]:
        """The table scaled to a unit diagonal: ``R_ij = B(α_ij) / √(B(α_ii) B(α_jj))``, and ``g_i = ½ log B(α_ii)``.

        Args:
            exponents: ``w`` (K, n, L), float64.

        Returns:
            R (K, n, n), symmetric, and g (K, n), float64, which the next call overwrites. By Cauchy-Schwarz R <= 1.
        """
        n_members, n, n_labels = exponents.shape
        labels = torch.add(exponents.transpose(1, 2), 0.5, out=self.halves[:, :n_labels])
        torch.sum(labels, 1, out=self.halves[:, n_labels])
        if self._groups is not None:
            self.halves[:, n_labels + 1 :] = self._groups @ labels
        self.gamma.compute(self.halves.flatten(0, 1))
        values = self.gamma.values.view(n_members, -1, *self.log_ratio.shape[1:])
        log_beta = torch.sum(values[:, :n_labels], 1, out=self.log_ratio)
        log_beta.sub_(values[:, n_labels]).add_((n_labels - 1) * self.gamma.constant)
        left, right = self._g.fill(0.5 * log_beta[:, 0])
        ratio = log_beta.sub_(left).sub_(right).to(self._dtype, copy=True).exp_()
        full = ratio.flatten(1).index_select(1, full_from_circulant(n, ratio.device))
        return full.view(n_members, n, n), self._g.numbers

    def pull_back(self, gradient: Tensor, out: Tensor) -> Tensor:
        """Gradient for the exponents of one for ``log B_ij``.

        Args:
            gradient: (K, n, n), symmetric.
            out: takes the gradient for the exponents (K, n, L).

        Returns:
            ``out``.
        """
        n_members, n, n_labels = out.shape
        d_log_beta = gradient.flatten(1).index_select(1, circulant_from_full(n, out.device)).mul_(self._weights)
        shape = n_members, -1, *self.log_ratio.shape[1:]
        slopes: Any = self.gamma.slopes
        pairs = self._sums.pairs.view(n_members, n_labels + 1, *shape[2:])
        torch.mul(slopes.view(shape)[:, : n_labels + 1], d_log_beta.view(n_members, 1, *shape[2:]), out=pairs)
        sums = self._sums.by_neuron().view(n_members, -1, n)
        torch.sub(sums[:, :-1], sums[:, -1:], out=out.transpose(1, 2))
        return out


# -- a likelihood and its gradient -----------------------------------------------------------------------------------


class Pass(ABC):
    """The log likelihood of some rows of K stacked members, and its gradient; a pass stands until the next one.

        log p = log N(labels) - log e^{s}ᵀ (VᵀV ∘ R) e^{s}

    s is the output h̃, or ``h + g``. The normaliser is written here, the numerator N in a subclass.

    Args:
        shape: members K, rows B, neurons n, readouts m and labels L.
        like: gives device and the network's dtype.
        balanced: what the network's output is: ``h̃`` (neurons of equal mass), or the paper's ``h``.
        gradients: whether :meth:`backward` will be asked for.
        groups: further sets of labels (Q', L) whose summed concentrations the numerator needs.
    """

    def __init__(
        self, shape: tuple[int, ...], like: Tensor, balanced: bool, gradients: bool, groups: Tensor | None = None
    ) -> None:
        n_members, n_rows, n, _, n_labels = shape
        self.balanced, self.kernel = balanced, PairKernel((n_members, n, n_labels), like, gradients, groups)
        self.e, self.half, self.by_normaliser = like.new_empty(3, n_members, n_rows, n)
        self.gram, self.mixed, self.outer, self.d_kernel = like.new_empty(4, n_members, n, n)
        self.d_diagonal = self.d_kernel.diagonal(dim1=1, dim2=2)

    @abstractmethod
    def numerator(self, output: Tensor, g: Tensor, exponents: Tensor, readout: Tensor, labels: Any) -> Tensor:
        """``log N`` (K, B), once ``kernel`` and ``gram`` are there."""

    @abstractmethod
    def pull_numerator(
        self, grad: Tensor, readout: Tensor, d_output: Tensor, d_readout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients for one of ``log N`` (K, B).

        They are written into ``d_output``, ``d_readout`` and, for ``log R``, into ``self.d_kernel``.

        Returns:
            The gradient for g (K, n), and two factors whose product is that for the exponents.
        """

    def forward(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any) -> Tensor:
        """Log likelihood (K, B), without the background.

        Args:
            output: the network's (K, B, n).
            exponents: ``W`` (K, n, L), float64.
            readout: ``V`` (K, m, n).
            labels: of the rows, as the objective prepared them.
        """
        ratio, g = self.kernel.compute(exponents)
        if not self.balanced:
            output = output + g[:, None].to(output.dtype)
        torch.bmm(readout.transpose(1, 2), readout, out=self.gram)
        log_p = self.numerator(output, g, exponents, readout, labels)
        top = output.amax(-1, keepdim=True)
        e = torch.sub(output, top, out=self.e).exp_()
        half = torch.bmm(e, torch.mul(self.gram, ratio, out=self.mixed), out=self.half)
        normaliser = torch.linalg.vecdot(half, e)
        self._kept = readout, ratio, normaliser
        return log_p.sub_(normaliser.log()).sub_(top.squeeze(-1), alpha=2.0)

    def backward(self, grad: Tensor, d_output: Tensor, d_exponents: Tensor, d_readout: Tensor) -> None:
        """Gradients for one of the log likelihood (K, B), written into the three arrays."""
        readout, ratio, normaliser = self._kept
        d_g, left, right = self.pull_numerator(grad, readout, d_output, d_readout)
        by_normaliser = torch.mul(self.e, (grad / normaliser)[..., None], out=self.by_normaliser)
        d_output.addcmul_(by_normaliser, self.half, value=-2.0)
        outer = torch.bmm(by_normaliser.transpose(1, 2), self.e, out=self.outer)  # Σ_b grad/Z e eᵀ, (K, n, n)
        self.d_kernel.addcmul_(outer, self.mixed, value=-1.0)  # for log R, symmetric
        d_readout.baddbmm_(readout, outer.mul_(ratio), alpha=-2.0)
        d_g.sub_(self.d_kernel.sum(-1), alpha=2.0)
        if not self.balanced:
            d_g += d_output.sum(1)
        self.d_diagonal.add_(d_g, alpha=0.5)
        self.kernel.pull_back(self.d_kernel, d_exponents)
        d_exponents.baddbmm_(left, right)


class SharePass(Pass):
    """The log density of label distributions without zeros: ``N = ‖V e^a‖²``, ``a = W log ℓ - g + s``.

    Labels are ``log ℓ`` (K, B, L), float64.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor, balanced: bool = True, gradients: bool = True) -> None:
        super().__init__(shape, like, balanced, gradients)
        n_members, n_rows, n, m, _ = shape
        self.powers = like.new_empty(n_members, n_rows, n, dtype=torch.float64)
        self.neurons, self.d_neurons = like.new_empty(2, n_members, n_rows, n)
        self.outputs, self.by_square = like.new_empty(2, n_members, n_rows, m)

    def numerator(self, output: Tensor, g: Tensor, exponents: Tensor, readout: Tensor, labels: Tensor) -> Tensor:
        """See :meth:`Pass.numerator`."""
        torch.baddbmm(-g[:, None], labels, exponents.transpose(1, 2), out=self.powers)
        neurons = torch.add(self.powers, output, out=self.neurons)
        top = neurons.amax(-1, keepdim=True)
        torch.bmm(neurons.sub_(top).exp_(), readout.transpose(1, 2), out=self.outputs)
        self._square, self._labels = torch.linalg.vecdot(self.outputs, self.outputs), labels
        return self._square.log().add_(top.squeeze(-1), alpha=2.0)

    def pull_numerator(
        self, grad: Tensor, readout: Tensor, d_output: Tensor, d_readout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`Pass.pull_numerator`."""
        by_square = torch.mul(self.outputs, (2.0 * grad).div_(self._square)[..., None], out=self.by_square)
        d_neurons = torch.bmm(by_square, readout, out=self.d_neurons).mul_(self.neurons)
        d_output.copy_(d_neurons)
        torch.bmm(by_square.transpose(1, 2), self.neurons, out=d_readout)
        self.d_kernel.zero_()
        return d_neurons.sum(1).neg_(), d_neurons.transpose(1, 2), self._labels.to(d_neurons.dtype)


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
        count: ``m`` of each factor (..., T), whole numbers.
        sign: +1 for a factor of the numerator, -1 for one of the denominator (T,).
        distinct: the counts that occur.
        place: where each count is among those (..., T).
    """

    groups: Tensor
    column: Tensor
    count: Tensor
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
        return cls(torch.cat(groups).to(counts.device), column, count, sign, tuple(distinct.tolist()), place)

    def __getitem__(self, rows: Any) -> VoteFactors:
        """The factors of some rows."""
        parts = self.column[rows], self.count[rows], self.sign, self.distinct, self.place[rows]
        return VoteFactors(self.groups, *parts)

    @property
    def log_gammas(self) -> Tensor:
        """``Σ ± log Γ(m)`` over the factors of each row (...), float64: the part that no network changes."""
        return (torch.lgamma(self.count.clamp_min(1).double()) * self.sign).sum(-1)


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
    angles = np.pi * (np.arange(length) + 0.5) / length
    beta = np.expm1(centre + half * np.cos(angles))  # at the Chebyshev nodes
    transform = np.cos(np.outer(np.arange(length), angles)) * (2.0 / length)
    transform[0] *= 0.5
    m = np.array(counts, dtype=np.float64)[:, None]
    rest = np.where(m > 0, log_gamma_growth(beta, np.maximum(m, 1.0)) - gammaln(beta + 1.0), 0.0)
    table = rest @ transform.T
    constant = table[:, 0].copy()
    table[:, 0] = 0.0
    coefficients, sizes, basis = np.linalg.svd(table, full_matrices=False)
    size = max(1, int((np.cumsum(sizes[::-1])[::-1] > smallest * sizes[0]).sum()))
    basis = basis[:size]
    slopes = np.polynomial.chebyshev.chebder(basis, axis=1) / half
    value = np.hstack([m > 0, (coefficients * sizes)[:, :size]])
    both = np.vstack([basis, np.pad(slopes, ((0, 0), (0, length - slopes.shape[1])))])
    return Series(torch.from_numpy(constant), torch.from_numpy(value).to(dtype), torch.from_numpy(both).to(dtype))


class VotePass(Pass):
    """The log probability of votes, without the part that no network changes.

        N = Σ_ij M_ij e^{s_i + s_j} R_ij ρ_ij(k),   ρ_ij = Π_s [(β_ijs)_{m_s} / Γ(m_s)]^{±1}

    Labels are :class:`VoteFactors` (K, B). ``log R`` and the few functions of β that make up all rising factorials are
    the terms of one matrix product.

    Args:
        shape, like, balanced, gradients: see :class:`Pass`.
        factors: of all rows, which name the sets of labels and the distinct counts.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        like: Tensor,
        factors: VoteFactors,
        balanced: bool = True,
        gradients: bool = True,
    ) -> None:
        groups, (n_members, n_rows, n, _, n_labels) = factors.groups, shape
        super().__init__(shape, like, balanced, gradients, groups[n_labels + 1 :])
        shifts, self._groups = n // 2 + 1, groups
        self.shape = n_members, n_rows, n, len(groups)
        self._scale = Wrapped(like.new_empty(n_members, n_rows, n + shifts - 1), n)
        self.terms = like.new_empty(n_members, n_rows, shifts * n)
        self._row_sums, self._column_sums = (PairSums(n_members * size, n, like) for size in (n_rows, len(groups)))
        self._weights = pair_weights(n, like)
        self._index = circulant_from_full(n, like.device).expand(n_members, -1)
        self._full_index = full_from_circulant(n, like.device).expand(n_members, -1)
        self._distinct, self._sizes = factors.distinct, (0, 0)
        self._halves = Wrapped(like.new_empty(n_members, len(groups), n + n // 2, dtype=torch.float64), n)
        self._columns = like.new_empty(n_members, len(groups), shifts, n, dtype=torch.float64)

    def numerator(self, output: Tensor, g: Tensor, exponents: Tensor, readout: Tensor, labels: VoteFactors) -> Tensor:
        """See :meth:`Pass.numerator`; in float64."""
        n_members, n_rows, n, _ = self.shape
        terms = self.terms
        torch.add(*self._scale.fill(output), out=terms.view(n_members, n_rows, -1, n))
        offset = self._add_rising(labels)
        top = terms.amax(-1, keepdim=True)
        terms.sub_(top).clamp_min_(LOWEST_EXPONENT).mul_(LOG2_E).exp2_()  # on a CPU a third of the time of exp
        self._weight = self.gram.flatten(1).gather(1, self._index).mul_(self._weights)
        self._total = torch.bmm(terms, self._weight[..., None]).squeeze(-1).clamp_min_(0.0)
        return offset.add_(self._total.log().double()).add_(top.squeeze(-1))

    def pull_numerator(
        self, grad: Tensor, readout: Tensor, d_output: Tensor, d_readout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`Pass.pull_numerator`."""
        n_members, n_rows, n, columns = self.shape
        by_total = (grad / self._total)[..., None]  # (K, B, 1)
        shape, rows = (n_members, n_rows, -1, n), self._row_sums
        torch.mul(self.terms.view(shape), self._weight.view(n_members, 1, -1, n), out=rows.pairs.view(shape))
        torch.mul(rows.by_neuron().view(n_members, n_rows, n), by_total, out=d_output)
        d_log_ratio, d_columns = self._pull_rising(by_total)
        d_gram = torch.gather(d_log_ratio, 1, self._full_index).view_as(self.gram)
        torch.bmm(readout, d_gram, out=d_readout).mul_(2.0)
        torch.mul(d_gram, self.gram, out=self.d_kernel)
        self._column_sums.pairs.copy_(d_columns.mul_(self._weight[:, None]).view(n_members * columns, -1, n))
        sums = self._column_sums.by_neuron().view(n_members, columns, n)
        groups = self._groups.to(sums.dtype).expand(n_members, -1, -1)
        return sums.new_zeros(n_members, n), sums.transpose(1, 2), groups

    def _add_rising(self, factors: VoteFactors) -> Tensor:
        """Add ``log R + log ρ`` to ``terms``, but for a number of each row, which is returned (K, B), float64."""
        self._expand()
        constant = self._series.constant[factors.place].mul_(factors.sign).sum(-1)
        self.terms.baddbmm_(self._take_coefficients(factors), self._series_terms)
        return constant

    def _expand(self) -> None:
        """The terms of all pairs: log R, and for each function of β, log β first, those of every column."""
        n_members, n_rows, _, columns = self.shape
        halves, pairs = self.kernel.halves, self.terms.shape[2]
        ends = float(halves.min()), float(halves.max())  # the ends of all pairs are neurons paired with themselves
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
            ends = 0.0, 0.0  # training has diverged: the answer is NaN, and the epoch is undone
        low = math.floor(math.log1p(2.0 * ends[0]) / INTERVAL_STEP)
        high = max(math.ceil(math.log1p(2.0 * ends[1]) / INTERVAL_STEP), low + 2)  # no interval without a length
        series = rising_series(low, high, self._distinct, self.terms.dtype)
        self._series = Series(*(part.to(self.terms.device) for part in series))
        n_functions, length = self._series.basis.shape
        n_terms = 1 + (1 + n_functions // 2) * columns
        if (n_terms, length) != self._sizes:  # how many there are depends on the neurons
            self._sizes = n_terms, length
            like = self.terms
            self._chebyshev = like.new_empty(n_members, length, columns * pairs)
            self._functions = like.new_empty(n_members, n_functions, columns * pairs)
            self._series_terms, self._d_terms = like.new_empty(2, n_members, n_terms, pairs)
            self._gathered = like.new_ones(n_members, n_rows, n_terms)
        torch.add(*self._halves.fill(halves), out=self._columns)
        flat = self._columns.flatten(1)  # (K, Q S n)
        x = torch.log1p(flat).mul_(2.0 / (INTERVAL_STEP * (high - low))).sub_((high + low) / (high - low))
        polynomials = list(self._chebyshev.unbind(1))
        polynomials[0].fill_(1.0)
        polynomials[1].copy_(x)
        twice = polynomials[1] * 2.0
        for below, here, above in zip(polynomials, polynomials[1:], polynomials[2:]):
            torch.mul(here, twice, out=above).sub_(below)
        torch.matmul(self._series.basis, self._chebyshev, out=self._functions)
        self._series_terms[:, 0] = self.kernel.log_ratio.flatten(1)
        by_function = self._series_terms[:, 1:].view(n_members, -1, columns * pairs)
        by_function[:, 0] = flat.log()
        by_function[:, 1:] = self._functions[:, : n_functions // 2]

    def _take_coefficients(self, factors: VoteFactors) -> Tensor:
        """Coefficients of each row's counts, signs included, in the order of the terms (K, B, 1 + (1 + R) Q)."""
        n_members, n_rows, _, columns = self.shape
        table = self._series.value.index_select(0, factors.place.flatten())
        taken = table.view(n_members, n_rows, factors.count.shape[-1], -1).transpose(2, 3)  # (K, B, 1 + R, T)
        into = self._gathered[..., 1:].view(n_members, n_rows, -1, columns).zero_()
        into.scatter_add_(3, factors.column[:, :, None].expand(taken.shape), taken * factors.sign.to(self.terms))
        return self._gathered

    def _pull_rising(self, by_total: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients for ``log R`` (K, S n) and for the columns β (K, Q, S n), before the weights of the pairs.

        Args:
            by_total: gradient for ``terms`` in units of these (K, B, 1).
        """
        n_members = len(self.terms)
        torch.bmm((self._gathered * by_total).transpose(1, 2), self.terms, out=self._d_terms)
        beta = self._columns.flatten(2).to(by_total.dtype)  # (K, Q, S n)
        by_function = self._d_terms[:, 1:].view(n_members, -1, *beta.shape[1:])
        slopes = self._functions[:, self._functions.shape[1] // 2 :].view_as(by_function[:, 1:])
        d_columns = by_function[:, 1:].mul_(slopes).sum(1).div_(beta + 1.0)
        return self._d_terms[:, 0], d_columns.addcdiv_(by_function[:, 0], beta)


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
        last: the pass of the last training step, and its size: making one takes longer than using it.
        can_be_captured: whether a step never waits for a number from the GPU, so that a CUDA graph can hold it.
    """

    background: Tensor | None = None
    left_out: Tensor | None = None
    last: tuple[tuple[int, ...], Pass] | None = None
    can_be_captured = False

    @abstractmethod
    def labels(self, index: Tensor) -> Any:
        """Labels of the rows index (K, B), as :meth:`value` takes them."""

    def make_pass(self, shape: tuple[int, ...], like: Tensor, balanced: bool) -> Pass:
        """The likelihood with a written-out gradient; not asked for if :meth:`value` does without.

        Args:
            shape: members K, rows B, neurons n, readouts m and labels L.
            like: gives device and the network's dtype.
            balanced: what the network's output is.
        """
        raise NotImplementedError

    def value(self, output: Tensor, exponents: Tensor, readout: Tensor, labels: Any, balanced: bool) -> Tensor:
        """Log likelihood (K, B) without backgrounds, through which gradients flow; see :meth:`Pass.forward`."""
        shape = (*output.shape, readout.shape[1], exponents.shape[2])
        if self.last is not None and self.last[0] == shape and torch.is_grad_enabled():
            work = self.last[1]
        else:
            work = self.make_pass(shape, output, balanced)
            self.last = (shape, work) if torch.is_grad_enabled() else None
        return Likelihood.apply(work, output, exponents, readout, labels)  # type: ignore[no-untyped-call]

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
        parts = net.output(x), net.exponents.double(), net.readout
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

    def make_pass(self, shape: tuple[int, ...], like: Tensor, balanced: bool) -> Pass:
        """See :meth:`Objective.make_pass`."""
        return SharePass(shape, like, balanced, torch.is_grad_enabled())


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
        (logs, which), n = labels, exponents.shape[1]
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
        table = symmetric(log_k, n)  # (K, Q', n, n)
        half = 0.5 * table.diagonal(dim1=-2, dim2=-1)  # (K, Q', n)
        ratio = (table - half[..., :, None] - half[..., None, :]).exp()
        gram = (readout.transpose(1, 2) @ readout).double()
        members = torch.arange(len(gram), device=gram.device)[:, None]
        # Every unknown label's slot holds log r, so the product below adds all their exponents; (|S|-1)/2 log r is left
        rest = (logs * sets[place]).sum(-1) / size[place].clamp_min(1.0)
        shift = 0.5 * (size[place] - 1.0).clamp_min(0.0) * rest  # (K, B)
        powers = logs @ exponents.transpose(1, 2) + shift[..., None]
        neurons = log_scale - g[:, None] + powers + half[members, place]  # (K, B, n)
        top = neurons.amax(-1, keepdim=True)
        e = (neurons - top).exp()
        value = torch.zeros_like(shift)
        for q in range(len(used)):  # one product per set of unknown labels, over all rows
            form = torch.linalg.vecdot(e @ (gram * ratio[:, q]), e)
            value = torch.where(place == q, form, value)
        total = value.clamp_min(torch.finfo(value.dtype).tiny).log() + 2.0 * top.squeeze(-1)
        return total - log_quadratic_form(gram * symmetric(log_kernel.exp(), n), log_scale)


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

    def make_pass(self, shape: tuple[int, ...], like: Tensor, balanced: bool) -> Pass:
        """See :meth:`Objective.make_pass`."""
        return VotePass(shape, like, self.factors, balanced, torch.is_grad_enabled())

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
