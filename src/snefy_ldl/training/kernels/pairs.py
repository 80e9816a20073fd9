"""The kernel table ``B(α_ij)`` of every pair of neurons and its slopes: the heart of a training step.

Pairs stand in circulant order (``_internal/special.py``): the sums ``w_i + w_j`` are one addition of two strided views,
and nothing has to be looked up by index.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from snefy_ldl._internal.special import GammaSweep, circulant_from_full, full_from_circulant


class PairKernel:
    """``B(α_ij)``, ``α_ij = 1 + w_i + w_j``, for K stacked members, with memory and views that are used again.

    A CPU computes ``log Γ`` and ``ψ`` by ``GammaSweep``, several times faster than torch's own; a GPU uses
    torch's.

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
        self._full_index = full_from_circulant(n, device)[None].expand(n_members, -1)
        self._sweep: GammaSweep | None = None
        if device.type == "cpu":
            table = self._values.view(rows, shifts, n)
            slope_table = None if self._slopes is None else self._slopes.view_as(table)
            self._sweep = GammaSweep(self._left, self._right, table, slope_table, dtype)
        if slopes:
            self._make_pull_back(array, dtype)

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
        if self._sweep is not None:
            self._sweep.run()
            constant = (self.shape[2] - 1) * self._sweep.linear_part()
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

    # -- gradient ----------------------------------------------------------------------------------------------------

    def _make_pull_back(self, array: Callable[..., Tensor], dtype: torch.dtype) -> None:
        n_members, n, n_labels = self.shape
        # Each unordered pair counts twice; those half-way round stand in the table twice already.
        self._weight = torch.full((1, self.shifts, n), 2.0, dtype=dtype, device=self.device)
        self._weight[:, 0] = 1.0
        if n % 2 == 0:
            self._weight[:, -1] = 1.0
        self._circulant_index = circulant_from_full(n, self.device)[None].expand(n_members, -1)
        self._pairs = array(n_members, 1, self.shifts, n, dtype=dtype)
        self._pairs_flat, self._pairs_flat_weight = self._pairs.flatten(1), self._weight.flatten(1)
        doubled = array(n_members, n_labels + 1, self.shifts, 2 * n, dtype=dtype)
        strides = (*doubled.stride()[:2], 2 * n - 1, 1)
        self._once, self._again = doubled[..., :n], doubled[..., n:]
        self._shifted = doubled.as_strided((n_members, n_labels + 1, self.shifts, n), strides, storage_offset=n)
        self._sums = array(2, n_members, n_labels + 1, n, dtype=dtype)
        self._row_sums, self._diagonal_sums = self._sums
        self._label_sums, self._total_sums = self._row_sums[:, :n_labels], self._row_sums[:, n_labels:]

    def pull_back(self, gradient: Tensor, out: Tensor) -> Tensor:
        """Gradient for the exponents of one for ``log B_ij``.

        Args:
            gradient: (K, n, n), symmetric.
            out: takes the gradient for the exponents (K, n, L).

        Returns:
            ``out``.

        Raises:
            RuntimeError: where the table was made without slopes.
        """
        if self._slopes is None:
            raise RuntimeError("this table was made without slopes")
        torch.gather(gradient.flatten(1), 1, self._circulant_index, out=self._pairs_flat).mul_(self._pairs_flat_weight)
        # Pair (i, i+s): neuron i's gradient is a row sum, neuron i+s's a diagonal sum. Diagonals are read from the
        # table written twice side by side.
        torch.mul(self._slopes, self._pairs, out=self._once)
        self._again.copy_(self._once)
        torch.sum(self._once, 2, out=self._row_sums)
        self._row_sums.add_(torch.sum(self._shifted, 2, out=self._diagonal_sums))  # (K, L + 1, n)
        torch.sub(self._label_sums, self._total_sums, out=out.transpose(1, 2))
        return out
