"""The log density with its gradient written out, for K stacked members.

    log p = log ‖V e^a‖² - log e^{s}ᵀ (VᵀV ∘ R) e^{s},   a = W log ℓ - g + s

:class:`DensityPass` is the arithmetic, with memory that is used again from step to step; :class:`SquaredLogDensity`
makes it one node of autograd. ``SnefySimplex.log_prob`` is the same function by plain autograd, and its oracle in the
tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from snefy_ldl.training.kernels.pairs import PairKernel


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
