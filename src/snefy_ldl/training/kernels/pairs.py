"""The kernel table ``B(α_ij)`` of every pair of neurons and its slopes: the heart of a training step.

Pairs stand in *circulant* order: entry (s, i) is the pair (i, i+s mod n) for shifts s = 0 ... n/2. Every pair is there,
the sums ``w_i + w_j`` are one addition of two strided views, and nothing has to be looked up by index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from snefy_ldl._limits import SWEEP_ELEMENTS

# Stirling's series for log Γ: B_2k / (2k (2k-1)), k = 1 ... 5, used from z = x + 4 on, where five terms are good to
# 5e-10, and three to 6e-8: more than float32 can tell.
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_SLOPES = tuple((2 * k + 1) * c for k, c in enumerate(_SERIES))
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a cached tensor outlives the mode it was made in, and autograd refuses inference ones
def _full_index(n: int, device: str) -> Tensor:
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    shift = (j - i) % n
    near = shift <= n // 2
    return torch.where(near, shift * n + i, (n - shift) % n * n + j).flatten()[None].to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _circulant_index(n: int, device: str) -> Tensor:
    shift, i = torch.meshgrid(torch.arange(n // 2 + 1), torch.arange(n), indexing="ij")
    return (i * n + (i + shift) % n).flatten()[None].to(device)


def _horner(constants: list[Tensor], variable: Tensor, out: Tensor) -> Tensor:
    """The polynomial ``Σ_k constants_k variable^k``."""
    torch.mul(variable, constants[-1], out=out).add_(constants[-2])
    for constant in constants[-3::-1]:
        out.mul_(variable).add_(constant)
    return out


class PairKernel:
    """``B(α_ij)``, ``α_ij = 1 + w_i + w_j``, for K stacked members, with memory and views that are used again.

    A CPU sweeps it in blocks that its cache holds. There ``log Γ`` and ``ψ`` are a few vectorised products, several
    times faster than torch's own: with ``z = x + 4``, ``log Γ(x) = Stirling(z) - log x(x+1)(x+2)(x+3)``, where the four
    factors are ``y (y + 2)`` for ``y = x (x + 3)``. Stirling's linear part cancels in ``log B`` and is never computed.

    Args:
        shape: members K, neurons n and labels L.
        device: where.
        dtype: of what comes out; the table itself is made in float64.
        slopes: whether :meth:`pull_back` will be asked for.

    Example:
        >>> kernel = PairKernel((1, 2, 3), torch.device("cpu"))
        >>> ratio, g = kernel.compute(torch.zeros(1, 2, 3, dtype=torch.float64))
        >>> ratio.squeeze().tolist(), (2.0 * g).exp().round(decimals=8).tolist()  # B(1, 1, 1) = 1/2
        ([[1.0, 1.0], [1.0, 1.0]], [[0.5, 0.5]])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype = torch.float64,
        slopes: bool = True,
    ) -> None:
        self.shape, self.device = shape, device
        n_members, n, n_labels = shape
        self.shifts = shifts = n // 2 + 1
        rows, length, wrap = n_members * (n_labels + 1), n + shifts - 1, shifts - 1

        def array(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        # half of each concentration, the labels and then their total, continued beyond the last neuron with the first
        halves = array(n_members, n_labels + 1, length)
        self._labels, self._total = halves[:, :n_labels, :n], halves[:, n_labels, :n]
        self._wrapped, self._wrap = halves[:, :, n:], halves[:, :, :wrap]
        self._left = halves.view(rows, length)[:, None, :n]
        self._right = halves.as_strided((rows, shifts, n), (length, 1, 1))
        self._values = array(n_members, n_labels + 1, shifts, n)
        self._label_values, self._total_values = self._values[:, :n_labels], self._values[:, n_labels]
        self._slopes = array(n_members, n_labels + 1, shifts, n, dtype=dtype) if slopes else None

        self._log_beta, self._ratio = array(n_members, shifts, n), array(n_members, shifts, n, dtype=dtype)
        g = array(n_members, length)
        self.g, self._g_wrapped, self._g_wrap, self._g_left = g[:, :n], g[:, n:], g[:, :wrap], g[:, None, :n]
        self._g_right = g.as_strided((n_members, shifts, n), (length, 1, 1))
        self._diagonal = self._log_beta[:, 0]
        self._full = array(n_members, n, n, dtype=dtype)
        self._full_flat, self._ratio_flat = self._full.flatten(1), self._ratio.flatten(1)
        self._full_index = _full_index(n, str(device)).expand(n_members, -1)
        if device.type == "cpu":
            terms = 5 if dtype == torch.float64 else 3
            # numbers as tensors: torch would make one of each Python number at every step
            series, slope_series, steps = _SERIES[:terms], _SLOPES[:terms], (1.0, 1.5, 2.0, 3.0, 4.0)
            self._series, self._slope_series, self._steps = (
                [torch.tensor(number, dtype=dtype) for number in numbers] for numbers in (series, slope_series, steps)
            )
            self._blocks = self._make_blocks(rows, n, dtype)
        if slopes:
            self._make_pull_back(array, dtype)

    def _make_blocks(self, rows: int, n: int, dtype: torch.dtype) -> list[tuple[Tensor | None, ...]]:
        """Rows of the table a cache holds with their work arrays: what :meth:`_sweep` goes through."""
        size = max(1, SWEEP_ELEMENTS // (self.shifts * n))
        shape = (min(rows, size), self.shifts, n)
        work = [*torch.empty(2, *shape, dtype=torch.float64), *torch.empty(6, *shape, dtype=dtype)]
        values = self._values.view(rows, self.shifts, n)
        slopes = None if self._slopes is None else self._slopes.view_as(values)
        blocks = []
        for start in range(0, rows, size):
            part = slice(start, start + size)
            count = min(size, rows - start)
            slope = None if slopes is None else slopes[part]
            blocks.append((self._left[part], self._right[part], values[part], slope, *(one[:count] for one in work)))
        return blocks

    def compute(self, exponents: Tensor) -> tuple[Tensor, Tensor]:
        """The table scaled to a unit diagonal: ``R_ij = B(α_ij) / √(B(α_ii) B(α_jj))``, and ``g_i = ½ log B(α_ii)``.

        Args:
            exponents: ``w`` (K, n, L), float64.

        Returns:
            R (K, n, n), symmetric, and g (K, n), float64; both are overwritten by the next call. By Cauchy-Schwarz
            R <= 1.
        """
        torch.add(exponents.transpose(1, 2), 0.5, out=self._labels)
        torch.sum(self._labels, 1, out=self._total)
        self._wrapped.copy_(self._wrap)
        if self.device.type == "cpu":
            for block in self._blocks:
                self._sweep(*block)  # type: ignore[arg-type]
            constant = (self.shape[2] - 1) * (_HALF_LOG_TWO_PI - 4.0)
        else:
            alpha = self._left + self._right
            torch.lgamma(alpha, out=self._values.view_as(alpha))
            if self._slopes is not None:
                torch.digamma(alpha.to(self._slopes.dtype), out=self._slopes.view_as(alpha))
            constant = 0.0
        log_beta = torch.sum(self._label_values, 1, out=self._log_beta)
        log_beta.sub_(self._total_values).add_(constant)
        torch.mul(self._diagonal, 0.5, out=self.g)
        self._g_wrapped.copy_(self._g_wrap)
        log_beta.sub_(self._g_left).sub_(self._g_right)
        self._ratio.copy_(log_beta).exp_()
        torch.gather(self._ratio_flat, 1, self._full_index, out=self._full_flat)
        return self._full, self.g

    def _sweep(
        self,
        left: Tensor,
        right: Tensor,
        value: Tensor,
        slope: Tensor | None,
        z: Tensor,
        log_z: Tensor,
        x: Tensor,
        y: Tensor,
        factors: Tensor,
        inverse: Tensor,
        square: Tensor,
        series: Tensor,
    ) -> None:
        """``log Γ`` and ``ψ`` of one block: the large part ``(z - ½) log z`` in float64, the rest as it goes out."""
        one, one_and_half, two, three, four = self._steps
        torch.add(left, right, out=z)
        torch.add(x.copy_(z), three, out=y).mul_(x)
        torch.add(y, two, out=factors).mul_(y)
        torch.log(z.add_(4.0), out=log_z)
        torch.add(x, four, out=inverse).reciprocal_()
        torch.mul(inverse, inverse, out=square)
        _horner(self._series, square, series).mul_(inverse)
        if slope is not None:
            # ψ(z) = log z - 1/(2z) - Σ (2k-1) c_k z^-2k, and d log(factors)/dx = (2x + 3) (2y + 2) / (y (y + 2))
            x.add_(one_and_half).mul_(y.add_(one)).div_(factors)
            slope.copy_(log_z)
            slope.sub_(_horner(self._slope_series, square, y).mul_(square)).add_(inverse, alpha=-0.5)
            slope.add_(x, alpha=-4.0)
        series.sub_(factors.log_())
        torch.mul(z.sub_(0.5), log_z, out=value).add_(series)

    # -- gradient ----------------------------------------------------------------------------------------------------

    def _make_pull_back(self, array: Callable[..., Tensor], dtype: torch.dtype) -> None:
        n_members, n, n_labels = self.shape
        # each unordered pair counts twice; those half-way round stand in the table twice already
        self._weight = torch.full((1, self.shifts, n), 2.0, dtype=dtype, device=self.device)
        self._weight[:, 0] = 1.0
        if n % 2 == 0:
            self._weight[:, -1] = 1.0
        self._circulant_index = _circulant_index(n, str(self.device)).expand(n_members, -1)
        self._pairs = array(n_members, 1, self.shifts, n, dtype=dtype)
        self._pairs_flat, self._pairs_flat_weight = self._pairs.flatten(1), self._weight.flatten(1)
        spread = array(n_members, n_labels + 1, self.shifts, 2 * n, dtype=dtype)
        strides = (*spread.stride()[:2], 2 * n - 1, 1)
        self._near, self._far = spread[..., :n], spread[..., n:]
        self._shifted = spread.as_strided((n_members, n_labels + 1, self.shifts, n), strides, storage_offset=n)
        self._sums = array(2, n_members, n_labels + 1, n, dtype=dtype)
        self._own, self._other = self._sums
        self._label_sums, self._total_sums = self._own[:, :n_labels], self._own[:, n_labels:]

    def pull_back(self, gradient: Tensor, out: Tensor) -> Tensor:
        """Gradient for the exponents (K, n, L) of one for ``log B_ij`` (K, n, n), symmetric."""
        if self._slopes is None:
            raise RuntimeError("this table was made without slopes")
        torch.gather(gradient.flatten(1), 1, self._circulant_index, out=self._pairs_flat).mul_(self._pairs_flat_weight)
        # a pair pulls on both of its neurons: i stands still, i+s is a diagonal of the table written twice over
        torch.mul(self._slopes, self._pairs, out=self._near)
        self._far.copy_(self._near)
        torch.sum(self._near, 2, out=self._own)
        self._own.add_(torch.sum(self._shifted, 2, out=self._other))  # (K, L + 1, n)
        torch.sub(self._label_sums, self._total_sums, out=out.transpose(1, 2))
        return out
