"""Feature scaling: two candidates, and the validation likelihood decides between them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

Scaling = Literal["unit", "pooled", "none"]
#: Scaled features are clipped here, so that one far row or one tiny spread cannot wreck a model.
LIMITS = {"unit": 5.0, "pooled": 4.0, "none": np.inf}


def column_moments(X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every column, of dense or sparse X."""
    if sp.issparse(X):
        mean = np.asarray(X.mean(axis=0)).ravel()
        square = np.asarray(X.multiply(X).mean(axis=0)).ravel()
        return mean, np.sqrt(np.maximum(square - mean**2, 0.0))
    mean = X.mean(axis=0, dtype=np.float64)
    return mean, np.sqrt(np.maximum(X.var(axis=0, dtype=np.float64), 0.0))


def fit_scaling(X: Any, kind: Scaling) -> tuple[Tensor, Tensor, float]:
    """Centre, scale and clipping limit of one candidate.

    ``"unit"`` divides each column by its own spread, whatever its units. ``"pooled"`` divides by
    ``√(sd² + g²)``, g the root mean square of all spreads: columns with a tiny spread stay small, which is right when
    the columns share a unit and wrong when they do not. ``"none"`` changes nothing.
    """
    n_features = X.shape[1]
    if kind == "none":
        return torch.zeros(n_features), torch.ones(n_features), LIMITS[kind]
    mean, spread = column_moments(X)
    if kind == "pooled":
        spread = np.sqrt(spread**2 + np.mean(spread**2))
    # a constant column carries nothing; rounding in its mean must not be blown up
    constant = spread <= 1e-12 * np.maximum(np.abs(mean), 1e-30)
    spread = np.where(constant, 1.0, spread)
    return torch.as_tensor(mean).float(), torch.as_tensor(spread).float(), LIMITS[kind]


def clearly_better(challenger: Tensor, incumbent: Tensor) -> bool:
    """Whether the challenger's paired log likelihoods lead by more than one standard error."""
    gain = (challenger - incumbent).double().flatten()
    if len(gain) < 2:
        return False
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5)
