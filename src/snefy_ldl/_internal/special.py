"""Special functions of the family: pairs of neurons, log Γ with its slope, Beta functions, signed sums, the simplex.

**Pairs.** A member has exponents ``w`` (n, L). Its components are the pairs ``i <= j`` of neurons with concentrations
``α_ij = 1 + w_i + w_j``, P = n(n+1)/2 of them. A symmetric table over pairs is stored in one of three orders:

=========== ======================= ==========================================================================
order       size                    entry
=========== ======================= ==========================================================================
full        n · n                   (i, j) at ``i n + j``: the matrix itself, row by row
triangle    n (n + 1) / 2           the pairs i <= j, row by row; every distribution and every likelihood of votes
circulant   (n // 2 + 1) · n        the pair (i, (i + s) mod n) at ``s n + i``, for shifts s = 0 ... n // 2
=========== ======================= ==========================================================================

In circulant order every sum ``w_i + w_j`` is one addition of two strided views, so nothing is looked up by index: the
training kernel uses it. Where n is even, the pairs half-way round (s = n / 2) occur in it twice.

**Gamma.** ``log Γ`` and its slope ``ψ`` are most of a training step, and those of torch are slow. For positive x, with
a whole shift s and ``z = x + s``, Stirling's series is::

    log Γ(x) = (z - ½) log z - z + ½ log 2π + Σ_k c_k z^(1-2k) - log x(x+1)...(x+s-1),   c_k = B_2k / (2k (2k-1))

A larger shift needs fewer terms of the series for the same accuracy, and a longer product. For an even shift the
product pairs up into a polynomial of ``y = x (x + s - 1)`` with the factors ``y + k (s - 1 - k)``, k = 0 ... s/2 - 1.

With a shift of 4, five terms leave an error of 5e-10 and three one of 6e-8, less than float32 resolves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from snefy_ldl._internal.memory import SWEEP_ELEMENTS
from snefy_ldl._internal.types import Array, Index

Answer = TypeVar("Answer")


def _cached(make: Callable[[int, torch.device | str], Answer]) -> Callable[..., Answer]:
    """Keep the indices of a number of neurons on a device, "cpu" by default."""
    # a cached tensor outlives the mode it was made in, and autograd refuses inference tensors: so inference mode is off
    cached = lru_cache(maxsize=64)(torch.inference_mode(False)(make))

    @wraps(make)
    def index(n: int, device: torch.device | str = "cpu") -> Answer:
        return cached(n, str(device))

    return index


@_cached
def pair_index(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Row and column of each pair i <= j of n neurons, in triangle order.

    Args:
        n: neurons.
        device: where the indices lie.

    Returns:
        Rows i and columns j, (P,) each, P = n (n + 1) / 2.

    Example:
        >>> pair_index(2)
        (tensor([0, 0, 1]), tensor([0, 1, 1]))
    """
    i, j = torch.triu_indices(n, n, device=device)
    return i, j


@_cached
def full_index(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Which pair of the triangle each entry of the full matrix is, (n²,).

    Args:
        n: neurons.
        device: where the indices lie.

    Returns:
        Positions in triangle order, (n²,).

    Example:
        >>> full_index(2)
        tensor([0, 1, 1, 2])
    """
    i, j = pair_index(n, device)
    index = torch.empty(n, n, dtype=torch.long, device=device)
    index[i, j] = index[j, i] = torch.arange(len(i), device=device)
    return index.flatten()


@_cached
def circulant_from_full(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Which entry of the full matrix each circulant entry is, ((n // 2 + 1) n,).

    Args:
        n: neurons.
        device: where the indices lie.

    Returns:
        Positions in full order.

    Example:
        >>> circulant_from_full(3)  # the diagonal, then (0, 1), (1, 2), (2, 0)
        tensor([0, 4, 8, 1, 5, 6])
    """
    shift, i = torch.meshgrid(torch.arange(n // 2 + 1), torch.arange(n), indexing="ij")
    return (i * n + (i + shift) % n).flatten().to(device)


@_cached
def full_from_circulant(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Which circulant entry each entry of the full matrix is, (n²,).

    Args:
        n: neurons.
        device: where the indices lie.

    Returns:
        Positions in circulant order.

    Example:
        >>> full_from_circulant(3)
        tensor([0, 3, 5, 3, 1, 4, 5, 4, 2])
    """
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    shift = (j - i) % n
    near = shift <= n // 2
    return torch.where(near, shift * n + i, (n - shift) % n * n + j).flatten().to(device)


@_cached
def diagonal_index(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Which pair of the triangle each (i, i) is, (n,).

    Args:
        n: neurons.
        device: where the indices lie.

    Returns:
        Positions in triangle order.

    Example:
        >>> diagonal_index(3)
        tensor([0, 3, 5])
    """
    return full_index(n, device).view(n, n).diagonal().clone()


@_cached
def pair_weights(n: int, device: torch.device | str = "cpu") -> Tensor:
    """How often each circulant entry counts in a sum over all n² pairs, ((n // 2 + 1) n,).

    >>> pair_weights(2)  # (0, 0), (1, 1); (0, 1) and (1, 0), which is the same pair again
    tensor([1., 1., 1., 1.])
    """
    weight = torch.full((n // 2 + 1, n), 2.0, device=device)
    weight[0] = 1.0
    if n % 2 == 0:  # pairs half-way round stand there twice
        weight[-1] = 1.0
    return weight.flatten()


def pair_sums(numbers: Tensor) -> Tensor:
    """Sums of the two neurons' numbers of all pairs, in circulant order: (..., n) -> (..., S, n), S = n // 2 + 1.

    >>> pair_sums(torch.tensor([1.0, 10.0, 100.0]))
    tensor([[  2.,  20., 200.],
            [ 11., 110., 101.]])
    """
    n = numbers.shape[-1]
    second = torch.cat([numbers, numbers[..., : n // 2]], -1).unfold(-1, n, 1)
    # rows one after the other: by itself torch would put the shifts, of which there are fewer, next to each other
    return torch.add(numbers[..., None, :], second, out=torch.empty_like(second, memory_format=torch.contiguous_format))


def neuron_sums(pairs: Tensor) -> Tensor:
    """Sums over all pairs that a neuron is part of, twice over the pair with itself: (..., S, n) -> (..., n).

    >>> neuron_sums(torch.tensor([[1.0, 10.0, 100.0], [2.0, 3.0, 4.0]]))  # (0, 1), (1, 2) and (2, 0) below
    tensor([  8.,  25., 207.])
    """
    shifts, n = pairs.shape[-2:]
    # the second neurons' sums run along diagonals, which go on, before the first column, with the last ones
    wide = torch.cat([pairs[..., n - shifts + 1 :], pairs], -1)
    strides = (*wide.stride()[:-2], wide.shape[-1] - 1, 1)
    return pairs.sum(-2) + wide.as_strided(pairs.shape, strides, shifts - 1).sum(-2)


def symmetric(pairs: Tensor, n: int) -> Tensor:
    """Full symmetric matrix from its triangle: (..., P) -> (..., n, n).

    Args:
        pairs: one number per pair i <= j.
        n: neurons.

    Returns:
        The matrix.

    Example:
        >>> symmetric(torch.tensor([1.0, 2.0, 3.0]), 2)
        tensor([[1., 2.],
                [2., 3.]])
    """
    full = pairs.index_select(-1, full_index(n, pairs.device))
    return full.reshape(*pairs.shape[:-1], n, n)


def pair_gram(readout: Tensor) -> Tensor:
    """``M = VᵀV`` over the triangle, off-diagonal pairs counted twice: (..., m, n) -> (..., P).

    Args:
        readout: ``V``.

    Returns:
        One number per pair i <= j.

    Example:
        >>> pair_gram(torch.tensor([[1.0, 2.0]]))
        tensor([1., 4., 4.])
    """
    n = readout.shape[-1]
    i, j = pair_index(n, readout.device)
    gram = readout.transpose(-1, -2) @ readout
    return gram[..., i, j] * torch.where(i == j, 1.0, 2.0).to(readout.dtype)


#: Coefficients ``c_k`` of Stirling's series for log Γ, k = 1 ... 5.
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
#: Coefficients ``(2k-1) c_k`` of the series for ψ: ``ψ(z) = log z - 1/(2z) - Σ_k (2k-1) c_k z^-2k``.
STIRLING_SLOPES = tuple((2 * k + 1) * c for k, c in enumerate(STIRLING))
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def gamma_and_slope(x: Tensor, dtype: torch.dtype, slopes: bool = True) -> tuple[Tensor, Tensor | None]:
    """``log Γ`` and ``ψ`` of a large table: torch's own on a GPU; on a CPU, where those are slow, Stirling's series.

    The four factors of the product are ``y (y + 2)``, ``y = x (x + 3)``. The table is swept in blocks that a
    processor's cache holds, and only the large part ``(z - ½) log z - z`` is computed in float64.

    Args:
        x: positive numbers (rows, ...), float64.
        dtype: of the slopes and of the small parts; float64 uses five terms of the series, float32 three.
        slopes: whether ψ is needed.

    Returns:
        log Γ, float64, and ψ, or None if it is not needed.

    Example:
        >>> value, slope = gamma_and_slope(torch.tensor([2.0, 4.0], dtype=torch.float64), torch.float64)
        >>> value.exp().round(decimals=6), slope.round(decimals=4)
        (tensor([1., 6.], dtype=torch.float64), tensor([0.4228, 1.2561], dtype=torch.float64))
    """
    if x.device.type != "cpu":
        return torch.lgamma(x), torch.digamma(x.to(dtype)) if slopes else None
    values, psi = torch.empty_like(x), torch.empty_like(x, dtype=dtype) if slopes else None
    size = max(1, SWEEP_ELEMENTS // max(1, math.prod(x.shape[1:])))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        _sweep(x[part], values[part], None if psi is None else psi[part], dtype)
    return values, psi


def _sweep(x: Tensor, value: Tensor, slope: Tensor | None, dtype: torch.dtype) -> None:
    """Fill one block of log Γ and, unless None, of ψ."""
    terms = 5 if dtype == torch.float64 else 3
    z = x + 4.0
    log_z, x = torch.log(z, out=value), x.to(dtype)
    y = (x + 3.0).mul_(x)
    factors = (y + 2.0).mul_(y)
    inverse = (x + 4.0).reciprocal_()
    square = inverse * inverse
    if slope is not None:
        # d log(factors)/dx = (2x + 3) (2y + 2) / (y (y + 2))
        change = (x + 1.5).mul_(y.add_(1.0)).div_(factors)
        slope.copy_(log_z).sub_(_horner(STIRLING_SLOPES[:terms], square).mul_(square))
        slope.add_(inverse, alpha=-0.5).add_(change, alpha=-4.0)
    series = _horner(STIRLING[:terms], square).mul_(inverse).sub_(factors.log_()).add_(HALF_LOG_TWO_PI)
    log_z.mul_(z - 0.5).sub_(z).add_(series)


def _horner(constants: tuple[float, ...], variable: Tensor) -> Tensor:
    """The polynomial ``Σ_k constants_k variable^k``."""
    value = (variable * constants[-1]).add_(constants[-2])
    for constant in constants[-3::-1]:
        value.mul_(variable).add_(constant)
    return value


#: From here on four terms of Stirling's series leave less than 1e-16.
LARGE_COUNT = 64.0


def log_gamma_growth(beta: Any, count: Any) -> Array:
    """``log Γ(β+m) - log Γ(m)`` for m >= 1, to a relative 1e-13 however large m is.

    It is the part of a rising factorial ``log (β)_m = log Γ(m) + [log Γ(β+m) - log Γ(m)] - log Γ(β)`` that differs
    between components: ``log Γ(m)`` is about 2e10 at a billion votes, where float64 holds no more than five decimals of
    it, but it is the same for every β. The large parts of Stirling's series are cancelled by hand.

    For ``z = m``: ``(z + β - ½) log1p(β/z) + β log z - β + Σ_k c_k [(z+β)^(1-2k) - z^(1-2k)]``.

    Args:
        beta: ``β``, positive numbers of any shape.
        count: ``m``, whole numbers >= 1, broadcast against ``beta``.

    Returns:
        The differences, of the common shape.

    Example:
        >>> float(log_gamma_growth(2.0, 1e9).round(9)) == round(float(np.log(1e9) + np.log1p(1e9)), 9)
        True
    """
    beta, count = np.broadcast_arrays(np.asarray(beta, dtype=np.float64), np.asarray(count, dtype=np.float64))
    large = np.maximum(count, LARGE_COUNT)
    above = large + beta
    growth = (above - 0.5) * np.log1p(beta / large) + beta * (np.log(large) - 1.0)
    for power, coefficient in enumerate(STIRLING[:4]):
        growth += coefficient * (above ** -(2.0 * power + 1.0) - large ** -(2.0 * power + 1.0))
    return np.where(count < LARGE_COUNT, gammaln(beta + count) - gammaln(count), growth)


#: Exponents stay above -1/2 by this much, so every concentration is at least twice it.
EXPONENT_MARGIN = 5e-3
#: ... and below this, so that lgamma keeps its digits: concentrations reach 100,000.
EXPONENT_LIMIT = 5e4


def pair_concentration(exponents: Tensor) -> Tensor:
    """``α_ij = 1 + w_i + w_j`` for the pairs i <= j: (..., n, L) -> (..., P, L)."""
    i, j = pair_index(exponents.shape[-2], exponents.device)
    return 1.0 + exponents[..., i, :] + exponents[..., j, :]


def log_beta(concentration: Tensor) -> Tensor:
    """Logarithm of the multivariate Beta function ``B(α) = Π Γ(α_l) / Γ(Σ α_l)`` over the last dimension.

    >>> log_beta(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)).exp()  # area of the triangle: 1/2!
    tensor(0.5000, dtype=torch.float64)
    """
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


def log_beta_ratio(concentration: Tensor, offset: Tensor | None, added: Tensor) -> Tensor:
    """``log B(α_p + o + k) - log B(α_p + o)`` for every row and component, never a (rows, P, L) array.

    Votes take few distinct values per label, so without an offset each label is one small table and a look-up.

    Args:
        concentration: ``α`` (P, L).
        offset: ``o`` (B, L), or None for zero.
        added: ``k`` (B, L).

    Returns:
        (B, P).
    """
    total = concentration.sum(-1) + (0.0 if offset is None else offset.sum(-1, keepdim=True))
    ratio = torch.lgamma(total) - torch.lgamma(total + added.sum(-1, keepdim=True))
    for r in range(concentration.shape[-1]):
        if offset is None:
            distinct, which = torch.unique(added[:, r], return_inverse=True)
            alpha = concentration[:, r]
            ratio = ratio + (torch.lgamma(alpha + distinct[:, None]) - torch.lgamma(alpha))[which]
        else:
            alpha = concentration[:, r] + offset[:, r, None]
            ratio = ratio + torch.lgamma(alpha + added[:, r, None]) - torch.lgamma(alpha)
    return ratio


def unit_kernel(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Kernel table scaled to a unit diagonal, in float64.

    ``g_i = ½ log B(α_ii)`` and ``log R_ij = log B(α_ij) - g_i - g_j``; by Cauchy-Schwarz ``0 < R <= 1``.

    Args:
        exponents: ``w`` (..., n, L).

    Returns:
        ``log R`` over the pairs (..., P), and ``g`` (..., n).
    """
    exponents = exponents.double()
    n = exponents.shape[-2]
    i, j = pair_index(n, exponents.device)
    log_k = log_beta(pair_concentration(exponents))
    g = 0.5 * log_k[..., diagonal_index(n, exponents.device)]
    return log_k - g[..., i] - g[..., j], g


def ten_digits(values: Tensor) -> Tensor:
    """Numbers rounded to ten significant digits.

    What an iteration stops at is good to some ten digits, and the rest follows the order of sums in the last bit;
    without the rest, fits that should be the same have the same bits.

    Args:
        values: a few numbers (N,), float64.

    Returns:
        (N,), float64, on the same device.

    Example:
        >>> ten_digits(torch.tensor([1.0 / 3.0], dtype=torch.float64)).item()
        0.3333333333
    """
    return torch.tensor([float(f"{value:.9e}") for value in values.tolist()], dtype=torch.float64, device=values.device)


#: Shares of zero are lifted here before a logarithm; positive ones, however small, are not.
SMALLEST_SHARE = 1e-300


def log_squared_norm(readout: Tensor, log_features: Tensor) -> Tensor:
    """``log ‖V exp(a)‖²`` without overflow: readout (K, m, n), a (K, B, n) -> (K, B)."""
    top = log_features.amax(-1, keepdim=True).detach()
    lifted = (log_features - top).exp() @ readout.transpose(-1, -2)  # (K, B, m)
    return lifted.square().sum(-1).log() + 2.0 * top.squeeze(-1)


def log_signed_sum(log_magnitude: Tensor, weight: Tensor) -> Tensor:
    """``log Σ_p weight_p e^{log_magnitude_p}`` over the last dimension; -inf where the sum is not positive.

    The weight goes into the exponent, so that a term that is huge but weighs nothing does not push the others under.

    >>> log_signed_sum(torch.tensor([0.0, 2000.0]), torch.tensor([1.0, 0.0]))
    tensor(0.)
    >>> log_signed_sum(torch.tensor([-torch.inf, -torch.inf]), torch.tensor([1.0, 1.0]))
    tensor(-inf)
    """
    used = weight != 0.0
    log_terms = (log_magnitude + torch.where(used, weight.abs(), 1.0).log()).masked_fill(~used, -torch.inf)
    top = log_terms.amax(-1, keepdim=True).detach().clamp_min(torch.finfo(log_terms.dtype).min)
    total = (weight.sign() * (log_terms - top).exp()).sum(-1)
    return total.clamp_min(0.0).log() + top.squeeze(-1)


def log_share(share: Tensor) -> Tensor:
    """Logarithm of shares in float64, which holds positive ones of any size; exact zeros are lifted to 1e-300."""
    share = share.double()
    return torch.where(share <= 0.0, SMALLEST_SHARE, share).log()


def newton(
    rising: Callable[[Array, Index], tuple[Array, Array]],
    levels: Array,
    z: Array,
    low: Array,
    high: Array,
    good: Array | float = 0.0,
    close: float = 1e-14,
) -> Array:
    """Where rising functions reach levels: Newton's method, kept inside a shrinking bracket.

    Args:
        rising: values and slopes of some functions at their own points: the points (r, ...), and which they are (r,).
        levels: what they are to reach.
        z: where to start.
        low: points below which nothing lies.
        high: ... and above which nothing does.
        good: error of a value at which its point is right.
        close: length of a step, relative to points beyond one, that is the last.

    Returns:
        The points, of the shape of ``z``.

    Example:
        >>> newton(lambda x, _: (x**2, 2 * x), np.array([2.0]), np.ones(1), np.zeros(1), np.full(1, 9.0)).round(6)
        array([1.414214])
    """
    z, good, rows = z.copy(), np.broadcast_to(good, z.shape), np.arange(len(z))
    for _ in range(200):
        at = z[rows]
        value, slope = rising(at, rows)
        error = value - levels[rows]
        low, high = np.where(error < 0.0, at, low), np.where(error < 0.0, high, at)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = at - error / slope
        new = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        right = np.abs(error) <= good[rows]
        z[rows] = np.where(right, at, new)
        settled = right | (np.abs(new - at) <= close * np.maximum(1.0, np.abs(at)))
        left = ~settled.all(tuple(range(1, at.ndim)))
        rows, low, high = rows[left], low[left], high[left]
        if not len(rows):
            break
    return z


def uniform(n: int, n_labels: int, random_state: Any = None) -> Array:
    """Points drawn uniformly from the simplex, whose density is ``(L-1)!``.

    Args:
        n: how many.
        n_labels: L, parts of a point.
        random_state: seed, or a NumPy generator.

    Returns:
        Points (n, L); rows sum to one.

    Example:
        >>> uniform(4, 3, random_state=0).sum(axis=1).round(12)
        array([1., 1., 1., 1.])
    """
    return np.random.default_rng(random_state).dirichlet(np.ones(n_labels), size=n)


def ternary_grid(resolution: int = 60) -> Array:
    """Interior points of a regular triangular grid over mixes of three.

    Args:
        resolution: points along a side.

    Returns:
        Points (T, 3), strictly positive, T = resolution (resolution + 1) / 2.

    Example:
        >>> ternary_grid(4).shape
        (10, 3)
    """
    steps = [(i, j) for i in range(resolution) for j in range(resolution - i)]
    a, b = np.array(steps, dtype=np.float64).T
    return np.column_stack([a + 1 / 3, b + 1 / 3, resolution - 1 - a - b + 1 / 3]) / resolution
