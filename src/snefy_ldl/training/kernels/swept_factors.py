"""Rising factorials by running products: exact in float64, for any number of votes, on a CPU.

A batch holds few distinct (β, m), so one sweep over m = 0, 1, 2, ... fills a small table of ``log (β)_m``, and a row is
a sum of table rows. Training in float32 uses :mod:`snefy_ldl.training.kernels.smooth_factors`, which is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from snefy_ldl.training.kernels.memory import work_arrays

if TYPE_CHECKING:
    from snefy_ldl.training.kernels.counts import VoteFactors

#: Running products are looked at this often, and turned into logarithms above this size: factors stay below 1e9.
SWEEP_BLOCK, LARGEST_PRODUCT = 16, 1e150
#: A column whose smallest count is at least this is swept from there, one lgamma instead of so many products.
LONG_START = 16

#: Rows whose logarithm is taken at a time, and members whose columns are swept together.
STAGED_ROWS, SWEPT_MEMBERS = 32, 4
Array = NDArray[Any]


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
                products = product[self.places[row]]
                centre[row] = products[pair]
                np.multiply(products, 1.0 / products[pair], stage[row - first])
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
            total, above, rounded, now, part = views
            np.add(rounded, m - 1.0, now)
            np.divide(above, now, part)
            np.add(total, part, total)
        for q in np.flatnonzero(self.start):
            beta = torch.from_numpy(exact[q])
            slope[q] += carried[q] * (torch.digamma(beta + self.start[q]) - torch.digamma(beta)).numpy()
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
            table = work_arrays.take(len(sweep.count), n_pairs, dtype=dtype)
            centre = np.empty(len(sweep.count))
            sweep.log_rising(columns[part].flatten(0, 1).numpy(), table.numpy(), centre)
            signs = self.factors.sign.expand(sweep.which.shape)
            ratios.append(embedding_bag(sweep.which, table, mode="sum", per_sample_weights=signs.to(dtype)))
            offsets.append((torch.from_numpy(centre)[sweep.which] * signs).sum(-1))
            work_arrays.give(table)
        shape = self.factors.shape
        return _joined(ratios).reshape(*shape, n_pairs), _joined(offsets).reshape(shape)

    def gradient(self, columns: Tensor, d_ratio: Tensor) -> Tensor:
        """Gradient for the columns (K, Q, P)."""
        slopes = []
        for part, sweep in self.parts:
            grad = d_ratio[part].flatten(0, 1)
            sums, negative = work_arrays.take(len(sweep.count), grad.shape[-1], dtype=grad.dtype).zero_(), -grad
            for t, sign in enumerate(self.signs):
                sums.index_add_(0, sweep.which[:, t], grad if sign > 0 else negative)
            slopes.append(torch.from_numpy(sweep.slope(columns[part].flatten(0, 1).numpy(), sums.numpy())))
            work_arrays.give(sums)
        return _joined(slopes).reshape(columns.shape).to(columns.dtype)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
