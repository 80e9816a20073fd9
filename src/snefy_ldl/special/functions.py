"""Special functions of the family: pair tables, log-Beta kernels, signed sums, and every epsilon of the library.

Notation. A member has exponents ``w`` (n, L). Its components are the pairs ``i <= j`` with concentrations
``α_ij = 1 + w_i + w_j``, P = n(n+1)/2 of them, in the row-major order of :func:`pair_index`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

#: Exponents stay above -1/2 by this much, so every concentration is at least twice it.
EXPONENT_MARGIN = 5e-3
#: ... and below this, so that lgamma keeps its digits: concentrations reach 100,000.
EXPONENT_LIMIT = 5e4
#: Shares are lifted here before a logarithm; smaller ones are not numbers anybody measured.
SMALLEST_SHARE = 1e-300


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a cached tensor outlives the mode it was made in, and autograd refuses inference ones
def _pair_index(n: int, device: str) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(n, n, device=device)
    return i, j


def pair_index(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Row and column of each pair i <= j of n neurons.

    >>> pair_index(2)
    (tensor([0, 0, 1]), tensor([0, 1, 1]))
    """
    return _pair_index(n, str(device))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _full_index(n: int, device: str) -> Tensor:
    i, j = _pair_index(n, device)
    index = torch.empty(n, n, dtype=torch.long, device=device)
    index[i, j] = index[j, i] = torch.arange(len(i), device=device)
    return index.flatten()


def full_index(n: int, device: torch.device | str = "cpu") -> Tensor:
    """Which pair each entry of a full symmetric (n, n) matrix is, flattened.

    >>> full_index(2)
    tensor([0, 1, 1, 2])
    """
    return _full_index(n, str(device))


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

    Votes take few distinct values a label, so without an offset each label is one small table and a look-up.

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
    i, j = pair_index(exponents.shape[-2], exponents.device)
    log_k = log_beta(pair_concentration(exponents))
    g = 0.5 * log_k[..., i == j]
    return log_k - g[..., i] - g[..., j], g


def symmetric(pairs: Tensor, n: int) -> Tensor:
    """Full symmetric matrix from its pairs i <= j: (..., P) -> (..., n, n)."""
    full = pairs.index_select(-1, full_index(n, pairs.device))
    return full.reshape(*pairs.shape[:-1], n, n)


def pair_gram(readout: Tensor) -> Tensor:
    """``M = VᵀV`` over the pairs i <= j, off-diagonal ones counted twice: (..., m, n) -> (..., P)."""
    n = readout.shape[-1]
    i, j = pair_index(n, readout.device)
    gram = readout.transpose(-1, -2) @ readout
    return gram[..., i, j] * torch.where(i == j, 1.0, 2.0).to(readout.dtype)


def log_squared_norm(readout: Tensor, log_features: Tensor) -> Tensor:
    """``log ‖V exp(a)‖²`` without overflow: readout (K, m, n), a (K, B, n) -> (K, B)."""
    top = log_features.amax(-1, keepdim=True).detach()
    lifted = (log_features - top).exp() @ readout.transpose(-1, -2)  # (K, B, m)
    return lifted.square().sum(-1).log() + 2.0 * top.squeeze(-1)


def log_quadratic_form(matrix: Tensor, log_features: Tensor) -> Tensor:
    """``log e^{a}ᵀ A e^{a}`` without overflow: A (K, n, n), a (K, B, n) -> (K, B)."""
    top = log_features.amax(-1, keepdim=True).detach()
    features = (log_features - top).exp()
    return ((features @ matrix) * features).sum(-1).log() + 2.0 * top.squeeze(-1)


def log_signed_sum(log_magnitude: Tensor, weight: Tensor) -> Tensor:
    """``log Σ_p weight_p e^{log_magnitude_p}`` over the last dimension; -inf where the sum is not positive.

    The weight goes into the exponent, so that a term that is huge but weighs nothing does not push the others under.

    >>> log_signed_sum(torch.tensor([0.0, 2000.0]), torch.tensor([1.0, 0.0]))
    tensor(0.)
    """
    used = weight != 0.0
    log_terms = (log_magnitude + torch.where(used, weight.abs(), 1.0).log()).masked_fill(~used, -torch.inf)
    top = log_terms.amax(-1, keepdim=True).detach()
    total = (weight.sign() * (log_terms - top).exp()).sum(-1)
    return total.clamp_min(0.0).log() + top.squeeze(-1)


def log_share(share: Tensor) -> Tensor:
    """Logarithm of a share, with exact zeros lifted to the smallest share the library knows."""
    return share.clamp_min(max(SMALLEST_SHARE, torch.finfo(share.dtype).tiny)).log()


# Stirling's series for log Γ: B_2k / (2k (2k-1)), k = 1 ... 5, used from z = x + 8 on, where it is good to 3e-13.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class LogGamma:
    """``log Γ`` of a float64 array of positive numbers, and afterwards ``ψ`` from what that computed.

    On a CPU torch spends most of a training step in lgamma and digamma. Here both are a few vectorised products: with
    ``z = x + 8``, ``log Γ(x) = Stirling(z) - log x(x+1)...(x+7)``, and the eight factors pair up into a polynomial of
    ``y = x (x + 7)``: ``y (y+6) (y+10) (y+12)``.

    Args:
        x: positive numbers, float64.

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
        series = torch.full_like(x, _STIRLING[-1])
        for coefficient in reversed(_STIRLING[:-1]):
            series.mul_(self._square).add_(coefficient)
        series.mul_(self._inverse).add_(_HALF_LOG_TWO_PI).sub_(z)
        y = (x + 7.0).mul_(x)
        self._first, self._second = (y + 12.0).mul_(y), (y + 16.0).mul_(y).add_(60.0)  # y(y+12), (y+6)(y+10)
        self._y = y
        self.value = series.addcmul_(z.sub_(0.5), self._log_z).sub_((self._first * self._second).log_())

    def slope(self) -> Tensor:
        """``ψ = d log Γ / dx``."""
        if self._x.device.type != "cpu":
            return torch.digamma(self._x)
        series = torch.full_like(self._x, 9.0 * _STIRLING[-1])
        for k in range(len(_STIRLING) - 2, -1, -1):
            series.mul_(self._square).add_((2 * k + 1) * _STIRLING[k])
        # ψ(z) = log z - 1/(2z) - Σ (2k-1) c_k z^-2k, and d log(product)/dx = (2x + 7) (a'/a + b'/b)
        value = self._log_z - 0.5 * self._inverse
        value.sub_(series.mul_(self._square))
        top = (self._y * 2.0).add_(12.0).mul_(self._second).addcmul_((self._y * 2.0).add_(16.0), self._first)
        top.div_(self._first * self._second).mul_((self._x * 2.0).add_(7.0))
        return value.sub_(top)
