"""``log Γ`` and its slope ``ψ`` by Stirling's series: the two are most of a training step, and torch's own are slow.

For positive x, with a whole shift s and ``z = x + s``::

    log Γ(x) = (z - ½) log z - z + ½ log 2π + Σ_k c_k z^(1-2k) - log x(x+1)...(x+s-1),   c_k = B_2k / (2k (2k-1))

A larger shift needs fewer terms of the series for the same accuracy, and a longer product. For an even shift the
product pairs up into a polynomial of ``y = x (x + s - 1)`` with the factors ``y + k (s - 1 - k)``, k = 0 ... s/2 - 1.

=================== ======= ======= ============== ==============================================================
route               shift   terms   largest error  for
=================== ======= ======= ============== ==============================================================
:class:`LogGamma`   8       5       3e-13          float64 tables of any shape
:class:`GammaSweep` 4       5       5e-10          float64 tables that are computed at every step, in place
:class:`GammaSweep` 4       3       6e-8           the same in float32, which cannot tell more
=================== ======= ======= ============== ==============================================================
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from snefy_ldl._internal.limits import SWEEP_ELEMENTS

#: Coefficients ``c_k`` of Stirling's series for log Γ, k = 1 ... 5.
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
#: Coefficients ``(2k-1) c_k`` of the series for ψ: ``ψ(z) = log z - 1/(2z) - Σ_k (2k-1) c_k z^-2k``.
STIRLING_SLOPES = tuple((2 * k + 1) * c for k, c in enumerate(STIRLING))
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class LogGamma:
    """``log Γ`` of a float64 array of positive numbers, and afterwards ``ψ`` from what that computed.

    Shift 8 and five terms; the eight factors of the product are ``y (y+6) (y+10) (y+12)``, ``y = x (x + 7)``. On a GPU
    torch's own functions are used.

    Args:
        x: positive numbers, float64, of any shape.

    Attributes:
        value: ``log Γ(x)``, of the same shape.

    Example:
        >>> x = torch.tensor([0.02, 1.0, 250.0], dtype=torch.float64)
        >>> both = LogGamma(x)
        >>> torch.allclose(both.value, torch.lgamma(x), rtol=1e-12), torch.allclose(both.slope(), torch.digamma(x))
        (True, True)
    """

    def __init__(self, x: Tensor) -> None:
        self._x = x
        if x.device.type != "cpu":
            self.value = torch.lgamma(x)
            return
        z = x + 8.0
        self._log_z, self._inverse = z.log(), z.reciprocal()
        self._square = self._inverse.square()
        series = torch.full_like(x, STIRLING[-1])
        for coefficient in reversed(STIRLING[:-1]):
            series.mul_(self._square).add_(coefficient)
        series.mul_(self._inverse).add_(HALF_LOG_TWO_PI).sub_(z)
        y = (x + 7.0).mul_(x)
        self._first, self._second = (y + 12.0).mul_(y), (y + 16.0).mul_(y).add_(60.0)  # y(y+12), (y+6)(y+10)
        self._y = y
        self.value = series.addcmul_(z.sub_(0.5), self._log_z).sub_((self._first * self._second).log_())

    def slope(self) -> Tensor:
        """``ψ(x) = d log Γ / dx``, of the same shape as x."""
        if self._x.device.type != "cpu":
            return torch.digamma(self._x)
        series = torch.full_like(self._x, STIRLING_SLOPES[-1])
        for coefficient in reversed(STIRLING_SLOPES[:-1]):
            series.mul_(self._square).add_(coefficient)
        value = self._log_z - 0.5 * self._inverse
        value.sub_(series.mul_(self._square))
        # d log(product)/dx = (2x + 7) (a'/a + b'/b) for the product a b, a = y (y+12), b = (y+6) (y+10)
        top = (self._y * 2.0).add_(12.0).mul_(self._second).addcmul_((self._y * 2.0).add_(16.0), self._first)
        top.div_(self._first * self._second).mul_((self._x * 2.0).add_(7.0))
        return value.sub_(top)


class GammaSweep:
    """``log Γ(left + right)`` and ``ψ`` of a large table, written into arrays that stay, on a CPU.

    Shift 4; the four factors of the product are ``y (y + 2)``, ``y = x (x + 3)``. The table is swept in blocks that a
    processor's cache holds. Only the large part ``(z - ½) log z`` is computed in float64; the rest is of the slopes'
    dtype. Stirling's linear part ``½ log 2π - z`` is **left out**: in a log Beta function, where arguments and total
    cancel, all that remains of it is :meth:`linear_part` a missing term.

    Args:
        left: first summand (rows, 1 or more, n), float64; a view whose numbers change between calls.
        right: second summand (rows, width, n), float64; likewise.
        values: takes log Γ less its linear part (rows, width, n), float64.
        slopes: takes ψ (rows, width, n), or None where it is not needed.
        dtype: of the slopes and of the small parts; float64 uses five terms of the series, float32 three.

    Example:
        >>> left, right = torch.ones(1, 1, 2, dtype=torch.float64), torch.ones(1, 1, 2, dtype=torch.float64)
        >>> value, slope = torch.empty(2, 1, 1, 2, dtype=torch.float64)
        >>> GammaSweep(left, right, value, slope, torch.float64).run()
        >>> bool((slope - torch.digamma(left + right)).abs().max() < 1e-8)
        True
    """

    SHIFT = 4.0

    def __init__(self, left: Tensor, right: Tensor, values: Tensor, slopes: Tensor | None, dtype: torch.dtype) -> None:
        terms = 5 if dtype == torch.float64 else 3
        # Numbers are kept as tensors, because torch would make one of each Python number at every step.
        self._series, self._slope_series, self._steps = (
            [torch.tensor(number, dtype=dtype) for number in numbers]
            for numbers in (STIRLING[:terms], STIRLING_SLOPES[:terms], (1.0, 1.5, 2.0, 3.0, self.SHIFT))
        )
        rows, *inner = values.shape
        size = max(1, SWEEP_ELEMENTS // math.prod(inner))
        shape = (min(rows, size), *inner)
        work = [*torch.empty(2, *shape, dtype=torch.float64), *torch.empty(6, *shape, dtype=dtype)]
        self._blocks = []
        for start in range(0, rows, size):
            part, count = slice(start, start + size), min(size, rows - start)
            slope = None if slopes is None else slopes[part]
            arrays = tuple(array[:count] for array in work)
            self._blocks.append((left[part], right[part], values[part], slope, arrays))

    @classmethod
    def linear_part(cls) -> float:
        """What each ``log Γ`` of ``log B = Σ log Γ(α_l) - log Γ(Σ α_l)`` with one more label adds: ``½ log 2π - s``."""
        return HALF_LOG_TWO_PI - cls.SHIFT

    def run(self) -> None:
        """Fill values and slopes from what left and right hold now."""
        for block in self._blocks:
            self._sweep(*block)

    def _sweep(
        self, left: Tensor, right: Tensor, value: Tensor, slope: Tensor | None, work: tuple[Tensor, ...]
    ) -> None:
        z, log_z, x, y, factors, inverse, square, series = work
        one, one_and_half, two, three, four = self._steps
        torch.add(left, right, out=z)
        torch.add(x.copy_(z), three, out=y).mul_(x)
        torch.add(y, two, out=factors).mul_(y)
        torch.log(z.add_(self.SHIFT), out=log_z)
        torch.add(x, four, out=inverse).reciprocal_()
        torch.mul(inverse, inverse, out=square)
        horner(self._series, square, series).mul_(inverse)
        if slope is not None:
            # d log(factors)/dx = (2x + 3) (2y + 2) / (y (y + 2))
            x.add_(one_and_half).mul_(y.add_(one)).div_(factors)
            slope.copy_(log_z)
            slope.sub_(horner(self._slope_series, square, y).mul_(square)).add_(inverse, alpha=-0.5)
            slope.add_(x, alpha=-4.0)
        series.sub_(factors.log_())
        torch.mul(z.sub_(0.5), log_z, out=value).add_(series)


def horner(constants: list[Tensor], variable: Tensor, out: Tensor) -> Tensor:
    """The polynomial ``Σ_k constants_k variable^k``."""
    torch.mul(variable, constants[-1], out=out).add_(constants[-2])
    for constant in constants[-3::-1]:
        out.mul_(variable).add_(constant)
    return out
