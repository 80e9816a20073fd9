"""The probability of votes at the price of a few table look-ups, for training.

    P(k|x) ∝ Σ_p c_p(x) Π_s (β_ps)_{m_s}^{±1},   (β)_m = β (β+1) ... (β+m-1) = Γ(β+m) / Γ(β)

Votes enter through rising factorials only: ``(α_pr)_{k_r}`` for each label and ``1 / (A_p)_{|k|}`` for the total.
Labels that were not counted, and votes that name a set of labels, add factors whose ``β`` is a sum of concentrations;
the form stays. A batch holds few distinct (β, m), so one sweep of running products fills a small float64 table, and a
row is a sum of table rows in log space: nothing of shape (rows, pairs, labels) is ever built.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from snefy_ldl.special import CACHE_ELEMENTS, full_index, pair_index, symmetric

#: Running products are looked at this often, and turned into logarithms above this size: factors stay below 1e9.
SWEEP_BLOCK, LARGEST_PRODUCT = 16, 1e150
#: A column whose smallest count is at least this is swept from there, one lgamma instead of so many products.
LONG_START = 16

#: Rows whose logarithm is taken at a time, and members whose columns are swept together.
STAGED_ROWS, SWEPT_MEMBERS = 32, 4
#: Work arrays kept for the next step.
POOLED = 64
#: Terms this far below the largest in the exponent count as that far: a float32 beneath them is slow, and nothing.
LOWEST_EXPONENT = -80.0

Array = NDArray[Any]


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


# -- rising factorials -----------------------------------------------------------------------------------------------


class _Pool(threading.local):
    """Work arrays of a few MiB that are used again; a fresh one costs more to map than to fill."""

    def __init__(self) -> None:
        self.free: list[Array] = []

    def take(self, rows: int, columns: int, dtype: Any = np.float64) -> Array:
        """An array with these sizes and anything in it."""
        size = rows * columns * np.dtype(dtype).itemsize
        fits = [k for k, memory in enumerate(self.free) if size <= memory.size <= 4 * size]
        memory = self.free.pop(fits[0]) if fits else np.empty(size + size // 4, dtype=np.uint8)
        array: Array = memory[:size].view(dtype).reshape(rows, columns)
        return array

    def give(self, array: Array) -> None:
        """An array of :meth:`take`, no longer needed."""
        if array.base is not None and len(self.free) < POOLED:
            self.free.append(array.base)


_pool = _Pool()


class _Sweep:
    """The distinct factors of some members' batches, in the order one sweep over m = 0, 1, 2, ... meets them.

    A column that holds large counts only is swept from the smallest of them. Columns are renumbered by how far they
    must be swept, so that those still needed stand first.

    Args:
        column: (B, T).
        count: (B, T).
        n_columns: Q.
    """

    def __init__(self, column: Array, count: Array, n_columns: int) -> None:
        present = np.zeros((int(count.max()) + 1, n_columns), dtype=bool)
        present[count, column] = True
        used = present.any(0)
        start = np.where(used, present.argmax(0), 0)
        start[start < LONG_START] = 0
        reach = np.where(used, len(present) - 1 - present[::-1].argmax(0), 0) - start
        self.order = np.argsort(-reach, kind="stable")
        place = np.empty_like(self.order)
        place[self.order] = np.arange(n_columns)
        self.start, self.last = start[self.order], int(reach.max())
        met = np.zeros((self.last + 1, n_columns), dtype=bool)
        count, column = count - start[column], place[column]
        met[count, column] = True
        number = np.cumsum(met) - 1  # a table row for each factor that is there
        self.which = torch.from_numpy(number[count * n_columns + column])  # (B, T)
        self.count, self.place = np.nonzero(met)  # (D,), sorted by count
        self.column = torch.from_numpy(self.order[self.place])
        steps = np.arange(self.last + 2)
        self.bounds = np.searchsorted(self.count, steps).tolist()
        self.places = self.place.tolist()
        self.active = np.searchsorted(-reach[self.order], -steps).tolist()  # how many columns go on beyond m

    def log_rising(self, columns: Array, table: Array, centre: Array) -> None:
        """``log (β)_m`` of the distinct factors, by running products.

        The logarithms are taken a few rows at a time, while a processor's cache holds them.

        Args:
            columns: ``β`` (Q, P), float64.
            table: takes ``log (β)_m`` less its value at one of the pairs (D, P).
            centre: takes that value (D,).
        """
        factor = columns[self.order]
        product, base = np.ones_like(factor), np.zeros_like(factor)
        lifted = (self.start > 0).tolist()
        for q in np.flatnonzero(self.start):
            beta = torch.from_numpy(factor[q])
            base[q] = torch.lgamma(beta + self.start[q]) - torch.lgamma(beta)
        factor += self.start[:, None]
        stage, first, pair = np.empty((STAGED_ROWS, factor.shape[1])), 0, factor.shape[1] // 2

        def flush(stop: int) -> None:
            block = stage[: stop - first]
            np.log(block, out=block)
            centre[first:stop] = np.log(centre[first:stop])
            for row in range(first, stop):
                place = self.places[row]
                if lifted[place]:
                    block[row - first] += base[place] - base[place, pair]
                    centre[row] += base[place, pair]
            table[first:stop] = block

        active, swept, now = len(factor), product, factor
        for m in range(self.last + 1):
            for row in range(self.bounds[m], self.bounds[m + 1]):
                if row - first == STAGED_ROWS:
                    flush(row)
                    first = row
                own = product[self.places[row]]
                centre[row] = own[pair]
                np.multiply(own, 1.0 / own[pair], stage[row - first])
            if self.active[m] < active:
                active = self.active[m]
                swept, now = product[:active], factor[:active]
            np.multiply(swept, now, swept)
            np.add(now, 1.0, now)
            if m % SWEEP_BLOCK == SWEEP_BLOCK - 1 and product.max() > LARGEST_PRODUCT:
                flush(self.bounds[m + 1])
                first = self.bounds[m + 1]
                base += np.log(product)
                lifted = [True] * len(lifted)
                product[:] = 1.0
        flush(len(self.count))

    def slope(self, columns: Array, gradient: Array) -> Array:
        """``Σ_d gradient_d · d/dβ log (β)_{m_d}`` (Q, P), in the columns' own order, for gradient (D, P).

        The derivative of a factor is ``Σ_{t<m} 1/(β+t)``; taken from the far end, every t is divided by once.
        """
        exact = columns[self.order]
        rough = (exact + self.start[:, None]).astype(gradient.dtype)
        slope, carried = np.zeros_like(rough), np.zeros_like(rough)
        factor, quotient = np.empty_like(rough), np.empty_like(rough)
        active, views = 0, (slope[:0],) * 5
        for m in range(self.last, -1, -1):
            for row in range(self.bounds[m], self.bounds[m + 1]):
                into = carried[self.places[row]]
                np.add(into, gradient[row], into)
            if m == 0:
                break
            if self.active[m - 1] > active:
                active = self.active[m - 1]
                views = slope[:active], carried[:active], rough[:active], factor[:active], quotient[:active]
            total, above, beta, now, part = views
            np.add(beta, m - 1.0, now)
            np.divide(above, now, part)
            np.add(total, part, total)
        for q in np.flatnonzero(self.start):
            own = torch.from_numpy(exact[q])
            slope[q] += carried[q] * (torch.digamma(own + self.start[q]) - torch.digamma(own)).numpy()
        answer = np.empty_like(slope)
        answer[self.order] = slope
        return answer


class SweptFactors:
    """``Σ_t sign_t log (β_{column_t})_{count_t}`` and its gradient by swept tables, on a CPU.

    Table rows leave float64 as differences to one of the components: float32 then rounds nothing else.

    Args:
        factors: the votes, rows (K, B).
    """

    def __init__(self, factors: VoteFactors) -> None:
        self.factors, self.signs = factors, factors.sign.tolist()
        n_members, n_columns = len(factors.count), len(factors.groups)
        self.parts = []
        for start in range(0, n_members, SWEPT_MEMBERS):
            part = slice(start, min(start + SWEPT_MEMBERS, n_members))
            size = part.stop - start
            column = factors.column[part].numpy() + n_columns * np.arange(size)[:, None, None]
            slots = column.shape[-1]
            sweep = _Sweep(column.reshape(-1, slots), factors.count[part].numpy().reshape(-1, slots), size * n_columns)
            self.parts.append((part, sweep))

    def ratio(self, columns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Columns (K, Q, P) -> (K, B, P) of a dtype, and what to add to each row (K, B) in float64."""
        n_pairs, ratios, offsets = columns.shape[-1], [], []
        for part, sweep in self.parts:
            table = _pool.take(len(sweep.count), n_pairs, torch.empty(0, dtype=dtype).numpy().dtype)
            centre = np.empty(len(sweep.count))
            sweep.log_rising(columns[part].flatten(0, 1).numpy(), table, centre)
            signs = self.factors.sign.expand(sweep.which.shape)
            rows = torch.from_numpy(table)
            ratios.append(embedding_bag(sweep.which, rows, mode="sum", per_sample_weights=signs.to(dtype)))
            offsets.append((torch.from_numpy(centre)[sweep.which] * signs).sum(-1))
            _pool.give(table)
        shape = self.factors.shape
        return _joined(ratios).reshape(*shape, n_pairs), _joined(offsets).reshape(shape)

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """Gradient for the columns (K, Q, P)."""
        slopes = []
        for part, sweep in self.parts:
            grad = d_ratio[part].flatten(0, 1)
            sums, negative = _pool.take(len(sweep.count), grad.shape[-1], grad[:0].numpy().dtype), -grad
            table = torch.from_numpy(sums).zero_()
            for t, sign in enumerate(self.signs):
                table.index_add_(0, sweep.which[:, t], grad if sign > 0 else negative)
            slopes.append(torch.from_numpy(sweep.slope(columns[part].flatten(0, 1).numpy(), sums)))
            _pool.give(sums)
        return _joined(slopes).reshape(columns.shape).to(columns.dtype)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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


def _pair_terms(scale: Tensor, log_kernel: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """``exp(s_i + s_j + log R_ij + ρ_ij - top)`` (K, B, P), and the top (K, B, 1); writes over the ratio."""
    i, j = pair_index(scale.shape[-1], scale.device)
    flat = scale.reshape(-1, scale.shape[-1])
    terms = ratio.view(len(flat), -1)
    terms += flat.index_select(1, i)
    terms += flat.index_select(1, j)
    ratio += log_kernel[:, None]
    top = ratio.amax(-1, keepdim=True)
    ratio -= top
    return ratio.clamp_min_(LOWEST_EXPONENT).exp_(), top


class CountLogDensity(torch.autograd.Function):
    """``apply(scale, exponents, readout, factors, balanced) -> log P(k|x)``, without its coefficient.

        log Σ_{i<=j} M_ij e^{s_i + s_j} R_ij ρ_ij(k) - log e^{s}ᵀ (M ∘ R) e^{s},   ρ_ij(k) = B(α_ij + k) / B(α_ij)

    ``SnefySimplex.log_prob_counts`` is the same function by plain autograd, and its oracle in the tests.

    Args (of apply):
        scale: the network's output (K, B, n): ``h̃`` if balanced, else ``h``.
        exponents: ``W`` (K, n, L), float64.
        readout: ``V`` (K, m, n).
        factors: :class:`SweptFactors` or :class:`DirectFactors` of the votes, rows (K, B).
        balanced: which of the two the output is.

    Returns:
        (K, B), float64.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scale: Tensor,
        exponents: Tensor,
        readout: Tensor,
        factors: SweptFactors | DirectFactors,
        balanced: bool,
    ) -> Tensor:
        """The probability, with what its gradient needs kept aside."""
        n, n_labels = exponents.shape[1:]
        dtype = scale.dtype
        i, j = pair_index(n, scale.device)
        columns = pair_columns(exponents, factors.factors.groups)  # (K, Q, P)
        lgammas = torch.lgamma(columns[:, : n_labels + 1])
        log_k = lgammas[:, :n_labels].sum(1) - lgammas[:, n_labels]  # (K, P)
        full = symmetric(log_k, n)
        g = 0.5 * full.diagonal(dim1=1, dim2=2)  # (K, n)
        log_kernel = (full - g[:, :, None] - g[:, None, :]).to(dtype)  # log R
        kernel = log_kernel.exp()
        gram = readout.transpose(1, 2) @ readout  # M
        if not balanced:
            scale = scale + g[:, None].to(dtype)

        ratio, offset = factors.ratio(columns, dtype)
        upper = i * n + j
        weight = gram.flatten(1).index_select(1, upper) * torch.where(i == j, 1.0, 2.0).to(dtype)  # (K, P)
        terms, top = _pair_terms(scale, log_kernel.flatten(1).index_select(1, upper), ratio)
        total = (terms @ weight[..., None]).squeeze(-1).clamp_min_(0.0)  # (K, B)

        scale_top = scale.amax(-1, keepdim=True)
        e = (scale - scale_top).exp_()
        half = e @ (gram * kernel)  # (K, B, n)
        normaliser = (half * e).sum(-1)

        ctx.save_for_backward(exponents, readout, columns, kernel, gram, weight, terms, total, e, half, normaliser)
        ctx.factors, ctx.balanced = factors, balanced
        log_p = torch.log(total / normaliser) + (top - 2.0 * scale_top).squeeze(-1)
        return log_p.double() + offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for scale, exponents and readout."""
        exponents, readout, columns, kernel, gram, weight, terms, total, e, half, normaliser = ctx.saved_tensors
        n, n_labels = exponents.shape[1:]
        grad = grad.to(terms.dtype)
        by_total = grad / total  # (K, B)
        d_weight = (by_total[:, None] @ terms).squeeze(1)  # (K, P)
        d_ratio = terms * weight[:, None]
        d_ratio *= by_total[..., None]
        by_normaliser = (grad / normaliser)[..., None] * e  # (K, B, n)
        d_scale = _fold(d_ratio, n) - 2.0 * by_normaliser * half
        spread = by_normaliser.transpose(1, 2) @ e * kernel  # (K, n, n)
        d_readout = 2.0 * readout @ (symmetric(d_weight, n) - spread)

        i, j = pair_index(n, exponents.device)
        upper = i * n + j
        balance = (spread * gram).flatten(1).index_select(1, upper) * torch.where(i == j, 1.0, 2.0).to(gram.dtype)
        d_log_k = (d_weight * weight - balance).double()  # (K, P)
        d_g = -_fold(d_log_k, n)
        if not ctx.balanced:
            d_g += d_scale.sum(1)
        diagonal = full_index(n, grad.device).view(n, n).diagonal()
        d_log_k.index_add_(1, diagonal, (0.5 * d_g).to(d_log_k.dtype))
        d_columns = ctx.factors.gradient(columns, d_ratio)
        slope = torch.digamma(columns[:, : n_labels + 1])
        slope *= d_log_k[:, None]
        slope[:, n_labels] *= -1.0
        d_columns[:, : n_labels + 1] += slope
        d_exponents = _fold(d_columns, n).transpose(1, 2) @ ctx.factors.factors.groups
        return d_scale, d_exponents, d_readout, None, None


def log_prob_factors(
    output: Tensor, exponents: Tensor, readout: Tensor, factors: VoteFactors, balanced: bool = True
) -> Tensor:
    """Log probability of K members' votes (K, B), multinomial coefficient left out; see :class:`CountLogDensity`.

    Tables are float64; what has rows is of the network's dtype, in differences between components.
    """
    exponents, kind = exponents.double(), SweptFactors if output.device.type == "cpu" else DirectFactors
    step = output.shape[1]
    if not torch.is_grad_enabled():
        pairs = math.comb(exponents.shape[1] + 1, 2)
        step = max(16, CACHE_ELEMENTS // (pairs * len(exponents)))
    parts = []
    for start in range(0, output.shape[1], step):
        rows = slice(start, start + step)
        part = kind(factors[:, rows])
        parts.append(CountLogDensity.apply(output[:, rows], exponents, readout, part, balanced))  # type: ignore[no-untyped-call]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
