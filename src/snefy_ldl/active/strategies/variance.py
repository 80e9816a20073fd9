"""How widely the predicted law is scattered: its total variance, or the volume of its covariance."""

from __future__ import annotations

from typing import Any

import torch
from numpy.random import RandomState
from torch import Tensor

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.tolerances import SMALLEST_CORRELATION_EIGENVALUE
from snefy_ldl._internal.types import Array
from snefy_ldl.active.strategies.law import LawStrategy, as_width
from snefy_ldl.errors import InputError

__all__ = ["LogDet", "Variance", "log_determinant"]


class Variance(LawStrategy, name="variance"):
    """Total variance ``Σ_r Var[ℓ_r|x]``, the expected squared error of the predicted mean.

    Args:
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Example:
        >>> import torch
        >>> Variance().score(torch.distributions.Dirichlet(torch.ones(1, 2)), RandomState(0)).round(4)  # 1/12 each
        array([0.1667])
    """

    def score(self, law: Any, random: RandomState) -> Array:
        """Total variances (N,)."""
        total: Array = to_numpy(law.variance).sum(axis=1)
        return total


class LogDet(LawStrategy, name="logdet"):
    """``log det Cov[ℓ_1 … ℓ_{L-1}|x]``, the log volume of the predicted law.

    The pseudo-determinant of the whole covariance, whose rows sum to zero, is L times that determinant, whichever
    label is left out: the order of rows is the same.

    Args:
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> LogDet().score(law, RandomState(0)).round(4)  # log of 1/12
        array([-2.4849])
    """

    def score(self, law: Any, random: RandomState) -> Array:
        """Log determinants (N,)."""
        if not hasattr(law, "covariance_matrix"):
            raise InputError(f"logdet needs a law with covariance_matrix; {type(law).__name__} has none.")
        return log_determinant(law.covariance_matrix)

    def weight(self, scores: Array, n_labels: int) -> Array:
        """The geometric mean of the standard deviations, ``exp(logdet / 2(L-1))``."""
        return as_width(scores, 2.0 * (n_labels - 1))


def log_determinant(covariance: Tensor) -> Array:
    """Log determinant of all rows and columns but the last, through the correlations.

    Args:
        covariance: (N, L, L), whose rows sum to zero.

    Returns:
        Log determinants (N,).

    Example:
        >>> float(log_determinant(torch.tensor([[[4.0, -4.0], [-4.0, 4.0]]])).round(4)[0])  # log 4
        1.3863
    """
    block = covariance.double()[:, :-1, :-1]
    variance = block.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(torch.float64).tiny)
    inverse_sd = variance.rsqrt()
    eigenvalues = torch.linalg.eigvalsh(block * inverse_sd[:, :, None] * inverse_sd[:, None, :])
    return to_numpy(variance.log().sum(-1) + eigenvalues.clamp_min(SMALLEST_CORRELATION_EIGENVALUE).log().sum(-1))
