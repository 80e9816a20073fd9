"""The log density with its gradient written out, for K stacked members.

    log p = log ‖V e^a‖² - log e^{s}ᵀ (VᵀV ∘ R) e^{s},   a = W log ℓ - g + s

:class:`DensityPass` is the arithmetic, with memory that is used again from step to step; :class:`SquaredLogDensity`
makes it one node of autograd. ``SnefySimplex.log_prob`` is the same function by plain autograd, and its oracle in the
tests.

:class:`PairKernel` makes the table ``B(α_ij)`` of every pair of neurons and its slopes, the heart of a training step.
Pairs stand in circulant order (``special/pairs.py``): the sums ``w_i + w_j`` are one addition of two strided views, and
nothing has to be looked up by index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

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


class DensityPass:
    """Forward and backward of the log density, every array made once; a pass stands until the next one.

    Args:
        shape: members K, rows B, neurons n, readouts m and labels L.
        like: gives device and the network's dtype.
        gradients: whether :meth:`backward` will be asked for.
    """

    def __init__(self, shape: tuple[int, int, int, int, int], like: Tensor, gradients: bool = True) -> None:
        n_members, n_rows, n, m, n_labels = shape
        self.kernel = PairKernel((n_members, n, n_labels), like.device, like.dtype, gradients)
        self._odds: Tensor | None = None

        def arrays(count: int, *size: int) -> Tensor:
            return like.new_empty(count, n_members, *size)

        self.powers = like.new_empty(n_members, n_rows, n, dtype=torch.float64)
        self.minus_g = like.new_empty(n_members, 1, n, dtype=torch.float64)
        self.neurons, self.shifted, self.e, self.half = arrays(4, n_rows, n)
        (self.outputs,), (self.gram, self.mixed) = arrays(1, n_rows, m), arrays(2, n, n)
        if gradients:
            (self.by_square,), (self.d_neurons, self.by_normaliser) = arrays(1, n_rows, m), arrays(2, n_rows, n)
            self.outer, self.d_kernel = arrays(2, n, n)
            self.d_diagonal = self.d_kernel.diagonal(dim1=1, dim2=2)

    def forward(
        self,
        log_scale: Tensor,
        exponents: Tensor,
        readout: Tensor,
        logs: Tensor,
        background: Tensor | None = None,
        log_odds: Tensor | None = None,
        balanced: bool = True,
    ) -> Tensor:
        """Log density (K, B).

        Args:
            log_scale: ``s = h̃`` (K, B, n), the network's dtype; ``h`` where not ``balanced``, which becomes ``h + g``.
            exponents: ``W`` (K, n, L), float64.
            readout: ``V`` (K, m, n).
            logs: ``log ℓ`` (K, B, L), float64.
            background: log density of the background at those labels (K, B), or None.
            log_odds: of the background's share ε (K,), or None.
            balanced: whether the network's output is ``h̃`` (neurons of equal mass) or the paper's ``h``.
        """
        kernel, g = self.kernel.compute(exponents)
        torch.neg(g[:, None], out=self.minus_g)
        torch.baddbmm(self.minus_g, logs, exponents.transpose(1, 2), out=self.powers)
        if not balanced:
            log_scale = torch.add(log_scale, g[:, None], out=self.shifted)
        columns = readout.transpose(1, 2)

        neurons = torch.add(self.powers, log_scale, out=self.neurons)
        top = neurons.amax(-1, keepdim=True)
        neurons.sub_(top).exp_()  # e^a
        torch.bmm(neurons, columns, out=self.outputs)
        square = torch.linalg.vecdot(self.outputs, self.outputs)  # (K, B)

        log_scale_top = log_scale.amax(-1, keepdim=True)
        e = torch.sub(log_scale, log_scale_top, out=self.e).exp_()
        torch.mul(torch.bmm(columns, readout, out=self.gram), kernel, out=self.mixed)  # M ∘ R
        normaliser = torch.linalg.vecdot(torch.bmm(e, self.mixed, out=self.half), e)

        log_p = torch.div(square, normaliser).log_().add_(top.sub_(log_scale_top).squeeze(-1), alpha=2.0)
        self.kept = exponents, readout, logs, kernel, square, normaliser, balanced
        self.share: Tensor | None = None
        if log_odds is None or background is None:
            return log_p
        # log((1-ε) p + ε p_background), and how much of it is the network's. The odds stay while a net trains.
        if log_odds is not self._odds:
            self._odds = log_odds
            self._keep, self._give = (-softplus(sign * log_odds)[:, None].to(log_p.dtype) for sign in (1.0, -1.0))
        other = background + self._give
        self.share = torch.sub(log_p.add_(self._keep), other).sigmoid_()
        return torch.logaddexp(log_p, other)

    def backward(self, grad: Tensor, d_log_scale: Tensor, d_exponents: Tensor, d_readout: Tensor) -> None:
        """Gradients for one of the log density.

        Args:
            grad: for the log density (K, B).
            d_log_scale: takes the gradient for the network's output (K, B, n).
            d_exponents: takes that for the exponents (K, n, L).
            d_readout: takes that for the readout (K, m, n).
        """
        _, readout, logs, kernel, square, normaliser, balanced = self.kept
        if self.share is not None:
            grad = grad * self.share
        by_square = torch.mul(self.outputs, (2.0 * grad).div_(square)[..., None], out=self.by_square)  # (K, B, m)
        d_neurons = torch.bmm(by_square, readout, out=self.d_neurons).mul_(self.neurons)  # d/da
        by_normaliser = torch.mul(self.e, (grad / normaliser)[..., None], out=self.by_normaliser)
        torch.addcmul(d_neurons, by_normaliser, self.half, value=-2.0, out=d_log_scale)
        outer = torch.bmm(by_normaliser.transpose(1, 2), self.e, out=self.outer)  # Σ_b grad/Z e eᵀ, (K, n, n)
        d_kernel = torch.mul(outer, self.mixed, out=self.d_kernel).neg_()  # for log R, symmetric
        torch.bmm(by_square.transpose(1, 2), self.neurons, out=d_readout)
        d_readout.baddbmm_(readout, outer.mul_(kernel), alpha=-2.0)

        d_g = d_neurons.sum(1).add_(d_kernel.sum(-1), alpha=2.0).neg_()
        if not balanced:
            d_g += d_log_scale.sum(1)
        self.d_diagonal.add_(d_g, alpha=0.5)
        self.kernel.pull_back(d_kernel, d_exponents)
        d_exponents.baddbmm_(d_neurons.transpose(1, 2), logs.to(d_neurons.dtype))


class SquaredLogDensity(torch.autograd.Function):
    """``apply(log_scale, exponents, readout, logs, background, log_odds, balanced) -> log p`` (K, B).

    The arguments are :meth:`DensityPass.forward`'s; gradients flow to the first three.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """The density, with what its gradient needs kept aside."""
        log_scale, exponents, readout = inputs[:3]
        shape = (*log_scale.shape, readout.shape[1], exponents.shape[2])
        ctx.work = DensityPass(shape, log_scale, gradients=any(ctx.needs_input_grad))
        result: Tensor = ctx.work.forward(*inputs)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient for log_scale, exponents and readout."""
        exponents, readout = ctx.work.kept[:2]
        d_log_scale, d_readout = torch.empty_like(ctx.work.neurons), torch.empty_like(readout)
        d_exponents = torch.empty_like(exponents, dtype=grad.dtype)
        ctx.work.backward(grad, d_log_scale, d_exponents, d_readout)
        return d_log_scale, d_exponents.to(exponents.dtype), d_readout, None, None, None, None


def squared_log_density(
    log_scale: Tensor,
    exponents: Tensor,
    readout: Tensor,
    logs: Tensor,
    background: Tensor | None = None,
    log_odds: Tensor | None = None,
    balanced: bool = True,
) -> Tensor:
    """Log density of K stacked members at their labels; see :class:`DensityPass`."""
    inputs = (log_scale, exponents, readout, logs, background, log_odds, balanced)
    result: Tensor = SquaredLogDensity.apply(*inputs)  # type: ignore[no-untyped-call]
    return result
