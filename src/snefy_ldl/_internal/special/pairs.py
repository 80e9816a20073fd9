"""The pairs of n neurons, and every order in which the library lists them.

A symmetric table over pairs of neurons is kept in one of three orders:

=========== ======================= ==========================================================================
order       size                    entry
=========== ======================= ==========================================================================
full        n · n                   (i, j) at ``i n + j``: the matrix itself, row by row
triangle    n (n + 1) / 2           the pairs i <= j, row by row; every law and every likelihood of votes
circulant   (n // 2 + 1) · n        the pair (i, (i + s) mod n) at ``s n + i``, for shifts s = 0 ... n // 2
=========== ======================= ==========================================================================

In circulant order every sum ``w_i + w_j`` is one addition of two strided views, so nothing is looked up by index: the
training kernel uses it. Where n is even, the pairs half-way round (s = n / 2) stand in it twice.

Each function below answers "entry k of the one order is entry *which* of the other", so ``table[..., index]`` goes from
the second order to the first.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


# A cached tensor outlives the mode it was made in, and autograd refuses inference tensors: so inference mode is off.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _pair_index(n: int, device: str) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(n, n, device=device)
    return i, j


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
    return _pair_index(n, str(device))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _full_index(n: int, device: str) -> Tensor:
    i, j = _pair_index(n, device)
    index = torch.empty(n, n, dtype=torch.long, device=device)
    index[i, j] = index[j, i] = torch.arange(len(i), device=device)
    return index.flatten()


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
    return _full_index(n, str(device))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _circulant_from_full(n: int, device: str) -> Tensor:
    shift, i = torch.meshgrid(torch.arange(n // 2 + 1), torch.arange(n), indexing="ij")
    return (i * n + (i + shift) % n).flatten().to(device)


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
    return _circulant_from_full(n, str(device))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _full_from_circulant(n: int, device: str) -> Tensor:
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    shift = (j - i) % n
    near = shift <= n // 2
    return torch.where(near, shift * n + i, (n - shift) % n * n + j).flatten().to(device)


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
    return _full_from_circulant(n, str(device))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _diagonal_index(n: int, device: str) -> Tensor:
    return _full_index(n, device).view(n, n).diagonal().clone()


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
    return _diagonal_index(n, str(device))


def symmetric(pairs: Tensor, n: int) -> Tensor:
    """Full symmetric matrix from its triangle: (..., P) -> (..., n, n).

    Args:
        pairs: one number a pair i <= j.
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
        One number a pair i <= j.

    Example:
        >>> pair_gram(torch.tensor([[1.0, 2.0]]))
        tensor([1., 4., 4.])
    """
    n = readout.shape[-1]
    i, j = pair_index(n, readout.device)
    gram = readout.transpose(-1, -2) @ readout
    return gram[..., i, j] * torch.where(i == j, 1.0, 2.0).to(readout.dtype)
