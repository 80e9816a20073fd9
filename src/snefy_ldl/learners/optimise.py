"""Minimising a smooth function by L-BFGS: of one flat array, or of several tensors by automatic gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from snefy_ldl._internal.types import Array

#: A function of a flat array: its value and its gradient.
Objective = Callable[[Array], tuple[float, Array]]
#: A function of several tensors: its value, a scalar tensor.
TensorObjective = Callable[[list[Tensor]], Tensor]

#: L-BFGS pairs kept: many while they are cheap against a gradient, few in problems of more than LARGE weights.
HISTORY, SHORT_HISTORY, LARGE = 20, 8, 5000


def lbfgs(objective: Objective, start: Array, max_iter: int, tol: float) -> tuple[Array, int]:
    """Minimise a function of a flat array by L-BFGS.

    Args:
        objective: Value and gradient at a point.
        start: Where the search begins, (n,).
        max_iter: Most iterations.
        tol: Largest gradient entry at which the search stops; a thousandth of it is the smallest relative gain.

    Returns:
        The point (n,), and the number of iterations.

    Example:
        >>> point, _ = lbfgs(lambda x: (float((x - 2.0) @ (x - 2.0)), 2.0 * (x - 2.0)), np.zeros(1), 50, 1e-8)
        >>> point.round(6)
        array([2.])
    """
    history = HISTORY if start.size <= LARGE else SHORT_HISTORY
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 3 * max_iter, "gtol": tol, "ftol": tol * 1e-3, "maxcor": history},
    )
    return result.x, int(result.nit)


def minimise(loss: TensorObjective, start: Sequence[Array], max_iter: int, tol: float) -> tuple[list[Array], int]:
    """Minimise a function of several arrays at once by L-BFGS, with gradients from torch.

    Args:
        loss: Tensors of the arrays' shapes to a scalar tensor.
        start: Where the search begins.
        max_iter: Most iterations.
        tol: Largest gradient entry at which the search stops.

    Returns:
        The arrays, and the number of iterations.

    Example:
        >>> (point,), _ = minimise(lambda x: (x[0] - 2.0).square().sum(), [np.zeros((1, 1))], 50, 1e-8)
        >>> point.round(6)
        array([[2.]])
    """
    shapes = [s.shape for s in start]
    ends = [int(e) for e in np.cumsum([s.size for s in start])[:-1]]

    def objective(flat: Array) -> tuple[float, Array]:
        point = torch.from_numpy(np.array(flat)).requires_grad_()
        with torch.enable_grad():
            value = loss([p.reshape(s) for p, s in zip(torch.tensor_split(point, ends), shapes)])
            (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient.numpy()

    flat, n_iter = lbfgs(objective, np.concatenate([s.ravel() for s in start]), max_iter, tol)
    return [p.reshape(s) for p, s in zip(np.split(flat, ends), shapes)], n_iter
