"""The probability of votes at the price of a few table look-ups, for training.

    P(k|x) ∝ Σ_p c_p(x) Π_s (β_ps)_{m_s}^{±1},   (β)_m = β (β+1) ... (β+m-1) = Γ(β+m) / Γ(β)

Votes enter through rising factorials only: ``(α_pr)_{k_r}`` for each label and ``1 / (A_p)_{|k|}`` for the total.
Labels that were not counted, and votes that name a set of labels, add factors whose ``β`` is a sum of concentrations;
the form stays. A batch holds few distinct (β, m), so one sweep of running products fills a small float64 table, and a
row is a sum of table rows in log space: nothing of shape (rows, pairs, labels) is ever built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

from snefy_ldl.special import CACHE_ELEMENTS, full_index, log_quadratic_form, pair_gram, pair_index, symmetric

#: Running products are looked at this often, and turned into logarithms above this size: factors stay below 1e9.
SWEEP_BLOCK, LARGEST_PRODUCT = 16, 1e150

Array = NDArray[np.float64]


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


class _Sweep:
    """The distinct factors of a batch, in the order one sweep over m = 0, 1, 2, ... meets them.

    Columns are renumbered by how far they must be swept, so that those still needed stand first.

    Args:
        column: (B, T).
        count: (B, T).
        n_columns: Q.
    """

    def __init__(self, column: NDArray[np.int64], count: NDArray[np.int64], n_columns: int) -> None:
        self.last = int(count.max())
        present = np.zeros((self.last + 1, n_columns), dtype=bool)
        present[count, column] = True
        reach = self.last - present[::-1].argmax(0)
        reach[~present.any(0)] = 0
        self.order = np.argsort(-reach, kind="stable")
        number = np.cumsum(present[:, self.order].ravel()) - 1  # a table row for each factor that is there
        place = np.empty_like(self.order)
        place[self.order] = np.arange(n_columns)
        self.which = torch.from_numpy(number[count * n_columns + place[column]])  # (B, T)
        self.count, self.place = np.nonzero(present[:, self.order])  # (D,), sorted by count
        steps = np.arange(self.last + 2)
        self.bounds = np.searchsorted(self.count, steps).tolist()
        self.places = self.place.tolist()
        self.active = np.searchsorted(-reach[self.order], -steps).tolist()  # how many columns go on beyond m

    def __len__(self) -> int:
        return len(self.count)

    def run(self, columns: Array, slopes: bool) -> tuple[Array, Array | None]:
        """``log (β)_m`` for the distinct factors, columns (Q, P) -> (D, P), and its derivative ``Σ_{t<m} 1/(β+t)``.

        Along with the product runs its derivative, ``((β)_{m+1})' = (β)_m' (β+m) + (β)_m``: no division on the way.
        """
        factor = columns[self.order]
        product, derivative = np.ones_like(factor), np.zeros_like(factor)
        table = np.empty((len(self), factor.shape[1]))
        slope = np.empty_like(table) if slopes else None
        base, bases = np.zeros_like(factor), []
        for m in range(self.last + 1):
            for row in range(self.bounds[m], self.bounds[m + 1]):
                table[row] = product[self.places[row]]
                if slope is not None:
                    slope[row] = derivative[self.places[row]]
            active = self.active[m]
            now, swept = factor[:active], product[:active]
            if slope is not None:
                derivative[:active] *= now
                derivative[:active] += swept
            swept *= now
            now += 1.0
            if m % SWEEP_BLOCK == SWEEP_BLOCK - 1 and product.max() > LARGEST_PRODUCT:
                base = base + np.log(product)
                bases.append((self.bounds[m + 1], base))
                derivative /= product
                product[:] = 1.0
        if slope is not None:
            slope /= table
        np.log(table, out=table)
        stops = [start for start, _ in bases[1:]] + [len(self)]
        for (start, base), stop in zip(bases, stops):
            table[start:stop] += base[self.place[start:stop]]
        return table, slope


class RisingRatio(torch.autograd.Function):
    """``apply(columns, column, count, sign, dtype) -> Σ_t sign_t log (β_{column_t})_{count_t}``, on a CPU.

    Table rows are centred before they leave float64, so that what float32 rounds is the difference between components.

    Args (of apply):
        columns: ``β`` (K, Q, P), float64.
        column: (K, B, T).
        count: (K, B, T).
        sign: (T,).
        dtype: of the first answer.

    Returns:
        (K, B, P), and what to add to each row (K, B) in float64.
    """

    @staticmethod
    def forward(
        ctx: Any, columns: Tensor, column: Tensor, count: Tensor, sign: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The logarithms of the factors, summed."""
        kept, offset = [], torch.empty(column.shape[:2], dtype=torch.float64)
        ratio = torch.empty(*column.shape[:2], columns.shape[-1], dtype=dtype)
        for k in range(len(columns)):
            sweep = _Sweep(column[k].numpy(), count[k].numpy(), columns.shape[1])
            rising, slope = sweep.run(columns[k].numpy(), ctx.needs_input_grad[0])
            table = torch.from_numpy(rising)
            centre = table.mean(-1)
            table -= centre[:, None]
            signs = sign.expand(sweep.which.shape)
            ratio[k] = embedding_bag(sweep.which, table.to(dtype), mode="sum", per_sample_weights=signs.to(dtype))
            offset[k] = (centre[sweep.which] * signs).sum(-1)
            kept.append((sweep, slope))
        ctx.save_for_backward(columns, sign)
        ctx.kept = kept
        ctx.mark_non_differentiable(offset)
        return ratio, offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for the columns."""
        columns, sign = ctx.saved_tensors
        gradient = torch.zeros_like(columns)
        for k, (sweep, slope) in enumerate(ctx.kept):
            table, negative = grad.new_zeros(len(sweep), grad.shape[-1]), -grad[k]
            for t, positive in enumerate((sign > 0).tolist()):
                table.index_add_(0, sweep.which[:, t], grad[k] if positive else negative)
            by_factor = torch.from_numpy(slope).mul_(table)
            gradient[k].index_add_(0, torch.from_numpy(sweep.order[sweep.place]), by_factor)
        return gradient, None, None, None, None


def rising_ratio(columns: Tensor, factors: VoteFactors, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """``log Π_t (β_p)_{m_t}^{sign_t}`` of K members' rows, as a table and what to add to each of its rows.

    On a GPU straight from lgamma, which is cheap there and needs no look at the data.

    Args:
        columns: ``β`` (K, Q, P), float64.
        factors: the votes, rows (K, B).
        dtype: of the table.

    Returns:
        (K, B, P), and (K, B) in float64.
    """
    if columns.device.type == "cpu":
        both: tuple[Tensor, Tensor] = RisingRatio.apply(  # type: ignore[no-untyped-call]
            columns, factors.column, factors.count, factors.sign, dtype
        )
        return both
    at_zero = torch.lgamma(columns)  # (K, Q, P)
    ratio = torch.zeros((), dtype=columns.dtype, device=columns.device)
    for t in range(len(factors.sign)):
        index = factors.column[..., t, None].expand(*factors.shape, columns.shape[-1])  # (K, B, P)
        beta = columns.gather(1, index)
        ratio = ratio + factors.sign[t] * (torch.lgamma(beta + factors.count[..., t, None]) - at_zero.gather(1, index))
    centre = ratio.detach().mean(-1)
    return (ratio - centre[..., None]).to(dtype), centre


# -- the sum over pairs ----------------------------------------------------------------------------------------------


class PairLogSum(torch.autograd.Function):
    """``apply(scale, log_kernel, gram, ratio) -> log Σ_{i<=j} M_ij exp(s_i + s_j + log R_ij + ρ_ij)``.

    Args (of apply):
        scale: ``s`` (K, B, n).
        log_kernel: ``log R`` (K, P).
        gram: ``M`` over the pairs, off-diagonal ones twice (K, P).
        ratio: ``ρ`` (K, B, P).

    Returns:
        (K, B), in the dtype all four share.
    """

    @staticmethod
    def forward(ctx: Any, scale: Tensor, log_kernel: Tensor, gram: Tensor, ratio: Tensor) -> Tensor:
        """The sum, shifted by its largest exponent."""
        i, j = pair_index(scale.shape[-1], scale.device)
        flat = scale.flatten(0, 1)  # selecting columns is quick from a plain matrix only
        terms = flat.index_select(1, i)
        terms += flat.index_select(1, j)
        terms = terms.view_as(ratio)
        terms += ratio
        terms += log_kernel[:, None]
        top = terms.amax(-1, keepdim=True)
        terms -= top
        terms.clamp_min_(-80.0).exp_()
        total = (terms @ gram[..., None]).squeeze(-1).clamp_min_(0.0)
        ctx.save_for_backward(terms, gram, total)
        ctx.n = scale.shape[-1]
        return total.log() + top.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Gradient for all four."""
        terms, gram, total = ctx.saved_tensors
        by_total = grad / total  # (K, B)
        d_gram = (by_total[:, None] @ terms).squeeze(1)
        d_ratio = terms * gram[:, None]
        d_ratio *= by_total[..., None]
        full = d_ratio.flatten(0, 1).index_select(1, full_index(ctx.n, grad.device)).view(*total.shape, ctx.n, ctx.n)
        d_scale = full.sum(-1) + full.diagonal(dim1=-2, dim2=-1)  # s_i stands twice in the pair (i, i)
        return d_scale, d_gram * gram, d_gram, d_ratio


def pair_log_sum(scale: Tensor, log_kernel: Tensor, gram: Tensor, ratio: Tensor) -> Tensor:
    """``log Σ_{i<=j} M_ij exp(s_i + s_j + log R_ij + ρ_ij)``; see :class:`PairLogSum`."""
    result: Tensor = PairLogSum.apply(scale, log_kernel, gram, ratio)  # type: ignore[no-untyped-call]
    return result


def pair_columns(exponents: Tensor, groups: Tensor) -> Tensor:
    """``β_ij = Σ_{r in group} α_ijr`` for pairs i <= j: exponents (K, n, L), groups (Q, L) -> (K, Q, P)."""
    i, j = pair_index(exponents.shape[1], exponents.device)
    sums = (groups @ exponents.transpose(1, 2)).flatten(0, 1)  # (K Q, n)
    both = sums.index_select(1, i) + sums.index_select(1, j)
    return both.unflatten(0, (len(exponents), len(groups))) + groups.sum(-1)[:, None]


def log_prob_factors(
    output: Tensor, exponents: Tensor, readout: Tensor, factors: VoteFactors, balanced: bool = True
) -> Tensor:
    """Log probability of K members' votes (K, B), multinomial coefficient left out.

    Tables are float64; what has rows is of the network's dtype, in differences between components.

    Args:
        output: the network's output (K, B, n), ``h̃`` if balanced, else ``h``.
        exponents: ``W`` (K, n, L).
        readout: ``V`` (K, m, n).
        factors: the votes, rows (K, B).
        balanced: which of the two the output is.
    """
    n, n_labels = exponents.shape[1:]
    dtype = output.dtype
    i, j = pair_index(n, output.device)
    columns = pair_columns(exponents.double(), factors.groups)
    lgammas = torch.lgamma(columns[:, : n_labels + 1])
    log_beta = lgammas[:, :n_labels].sum(1) - lgammas[:, n_labels]  # (K, P)
    g = 0.5 * log_beta[:, i == j]
    log_kernel = (log_beta - g.index_select(1, i) - g.index_select(1, j)).to(dtype)
    scale = output if balanced else output + g[:, None].to(dtype)
    gram = pair_gram(readout)
    matrix = (readout.transpose(1, 2) @ readout) * symmetric(log_kernel.exp(), n)
    normaliser = log_quadratic_form(matrix, scale)
    if torch.is_grad_enabled():
        ratio, offset = rising_ratio(columns, factors, dtype)
        return (pair_log_sum(scale, log_kernel, gram, ratio) - normaliser) + offset
    step = max(16, CACHE_ELEMENTS // (columns.shape[-1] * len(columns)))
    parts = []
    for start in range(0, scale.shape[1], step):
        rows = slice(start, start + step)
        ratio, offset = rising_ratio(columns, factors[:, rows], dtype)
        parts.append(pair_log_sum(scale[:, rows], log_kernel, gram, ratio) + offset)
    return torch.cat(parts, 1) - normaliser
