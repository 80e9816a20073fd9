"""P(label r has the largest share): one integral a component of the law, tabulated once, then one product a row.

A component is normalised Gammas ``c_r G_r``, ``G_r ~ Gamma(α_r)``, and dividing by their sum changes no order, so
``P(r is largest) = ∫ f_r(t/c_r)/c_r Π_{s≠r} F_s(t/c_s) dt`` with Gamma densities ``f`` and their
distribution functions ``F``. The sum over r is the integral of a derivative, and is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import gammainc, gammaincinv, gammaln

from snefy_ldl._internal.special.tolerances import SMALLEST_POSITIVE
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError

__all__ = ["component_largest", "prob_largest", "prob_largest_by_draws"]

#: Nodes of the trapezoidal rule in log t; the integrand is smooth and vanishes at both ends.
NODES = 200
#: Probability that the largest of the Gammas lies outside the range of the nodes, on either side.
TAIL = 1e-12
#: Components whose nodes are held at once.
_CHUNK = 500


def component_largest(concentration: Array, centre: Array | None = None) -> Array:
    """Probability that each label is the largest of a Dirichlet's shares, multiplied by a centre and closed.

    Args:
        concentration: ``α`` of each component, (P, L).
        centre: ``c``, (L,); all ones by default.

    Returns:
        Probabilities, (P, L); rows sum to one.

    Example:
        >>> component_largest(np.array([[1.0, 1.0], [2.0, 1.0]])).round(6)
        array([[0.5 , 0.5 ],
               [0.75, 0.25]])
    """
    logs = np.zeros(concentration.shape[1]) if centre is None else np.log(centre)
    parts = []
    for start in range(0, len(concentration), _CHUNK):
        alpha = concentration[start : start + _CHUNK]
        scale = logs - logs.max()
        low = np.log(np.maximum(gammaincinv(alpha, TAIL), SMALLEST_POSITIVE)) + scale
        high = np.log(gammaincinv(alpha, 1.0 - TAIL)) + scale
        first, last = low.max(axis=1), high.max(axis=1)
        y = first[:, None] + (last - first)[:, None] * np.linspace(0.0, 1.0, NODES)  # (P, nodes)
        log_t = y[:, None, :] - scale[:, None]  # (P, L, nodes)
        t = np.exp(log_t)
        a = alpha[:, :, None]
        below = np.log(np.maximum(gammainc(a, t), SMALLEST_POSITIVE))
        density = a * log_t - t - gammaln(a)  # of log t
        values = np.exp(density + below.sum(axis=1, keepdims=True) - below).sum(axis=2)
        parts.append(values / values.sum(axis=1, keepdims=True))
    return np.concatenate(parts)


def prob_largest(law: Any) -> Array:
    """``P(ℓ_r is the largest share|x)`` of each row, exact up to an integral of one dimension.

    Args:
        law: What ``predict_dist`` gives: a signed mixture of Dirichlets, with or without a centre.

    Returns:
        Probabilities, (N, L); rows sum to one.

    Raises:
        InputError: Shares may be exactly zero, each row has its own centre, or votes were added; use
            :func:`prob_largest_by_draws`.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> import torch
        >>> law = SnefySimplex(torch.tensor([[0.5, 0.0]]), torch.ones(1, 1), torch.zeros(1, 1))
        >>> prob_largest(law).round(6)
        array([[0.75, 0.25]])
    """
    if not isinstance(law, SnefySimplex) or law.offset is not None or law.moves or law.has_atoms:
        raise InputError(f"{law!r} is no fixed mixture of Dirichlets; use prob_largest_by_draws.")
    centre = law.centre
    table = component_largest(
        law.concentration.detach().double().cpu().numpy(), None if centre is None else centre.cpu().numpy()
    )
    with torch.no_grad():
        values = law.weights().cpu().numpy() @ table
    values = np.clip(values, 0.0, 1.0)  # weights are signed; rounding can leave [0, 1]
    shares: Array = values / values.sum(axis=1, keepdims=True)
    return shares


def prob_largest_by_draws(law: Any, n: int = 2000, seed: int = 0) -> tuple[Array, Array]:
    """The same by draws, for any law, with its standard error.

    Args:
        law: Anything with ``sample``.
        n: Draws a row.
        seed: Of the draws.

    Returns:
        Frequencies (N, L), rows sum to one, and their standard errors (N, L).

    Example:
        >>> import torch
        >>> p, error = prob_largest_by_draws(torch.distributions.Dirichlet(torch.tensor([[2.0, 1.0]])), 4000)
        >>> bool(abs(p[0, 0] - 0.75) < 4 * error[0, 0])
        True
    """
    check_count("n", n)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        generator = {"generator": torch.Generator().manual_seed(seed)} if isinstance(law, SnefySimplex) else {}
        draws = law.sample((n,), **generator).cpu().numpy()  # (n, N, L)
    winner = draws.argmax(axis=2)
    p: Array = np.stack([(winner == r).mean(axis=0) for r in range(draws.shape[2])], axis=1)
    return p, np.sqrt(np.maximum(p * (1.0 - p), 1.0 / n) / n)
