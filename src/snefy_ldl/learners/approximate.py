"""Learners with a loss of their own beside the KL divergence: δ-LDL and LDL-DVS."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import xlogy
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.rows import RowLinear, RowLoss, kl_rows

#: |z| is taken as √(z² + ε²) - ε in the divisiveness loss, so that it has a gradient everywhere.
_ROUNDING = 1e-3


class DeltaLDL(RowLinear):
    """Softmax-linear model that wants most rows nearly right (δ-LDL).

    ``mean_i ∫₀^δ₀ σ(s (KL_i - δ)) dδ + λ/(2N) ‖θ‖²`` with ``KL_i = KL(d_i ‖ p_i)`` and ``δ₀`` the mean KL divergence of
    the rows from even shares: a soft count of the rows that are not right within δ, over all δ up to δ₀, so that rows
    that are far off do not decide. The integral is in closed form,
    ``[softplus(s KL_i) - softplus(s (KL_i - δ₀))]/s``; it is divided by its slope at a row that is right, so that one
    ``λ`` suits all learners. :func:`snefy_ldl.metrics.delta_mu` is the measure that belongs to it.

    The paper's model is a network; ours is linear, with a penalty. Its sigmoid has ``s = 1``.

    Args:
        sharpness: ``s``, against ``δ₀``: the sigmoid's steepness is ``s / δ₀`` (python-ldl has ``δ₀`` here, which
            makes the loss all but equal to the KL divergence).
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Li et al., Approximately correct label distribution learning, ICML 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> DeltaLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        sharpness: float = 0.3,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.sharpness = sharpness

    def _check_params(self) -> None:
        super()._check_params()
        check_number("sharpness", self.sharpness, strict=True)

    def _rows(self, D: Array) -> RowLoss:
        true = torch.from_numpy(D)
        size = max(float((xlogy(D, D).sum(axis=1) + np.log(D.shape[1])).mean()), 1e-9)  # even rows: any size will do
        steep = self.sharpness / size
        slope = 0.5 - 1.0 / (1.0 + np.exp(self.sharpness))  # of the integral at KL = 0

        def rows(P: Tensor) -> Tensor:
            miss = kl_rows(true, P)
            loss: Tensor = (softplus(steep * miss) - softplus(steep * (miss - size))) / (steep * slope)
            return loss

        return rows


def soft_least(first: Tensor, second: Tensor, sharpness: float) -> Tensor:
    """``(a e^{-ka} + b e^{-kb}) / (e^{-ka} + e^{-kb})``, a smooth minimum of two numbers.

    Args:
        first: a, any shape.
        second: b, the same shape.
        sharpness: k.

    Returns:
        Smooth minima.

    Example:
        >>> round(float(soft_least(torch.tensor(0.1), torch.tensor(0.9), 10.0)), 3)
        0.1
    """
    part = torch.sigmoid(sharpness * (second - first))
    return part * first + (1.0 - part) * second


class LDLDVS(RowLinear):
    """Softmax-linear model that keeps how far opposed labels divide a row (LDL-DVS).

    ``mean_i [KL(d_i ‖ p_i) + α mean_{jk} a_j b_k |ψ(d_ij, d_ik) - ψ(p_ij, p_ik)|] + λ/(2N) ‖θ‖²`` over pairs of a label
    j for and a label k against, ``ψ`` a smooth minimum: what two labels that oppose each other both have. The paper
    argues for pairs instead of whole groups, whose gradients fight each other.

    The paper is known by its summary and by python-ldl's form. That compares the pairs of the prediction with the whole
    groups of the label; here pairs are compared with pairs.

    Args:
        alpha: ``α``, the weight of the divisiveness.
        sharpness: Of the smooth minimum.
        positive: Weights ``a`` of the labels for, (L,); None: every pair of labels opposes each other.
        negative: Weights ``b`` of the labels against, (L,); give both or none.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Lu et al., Divisiveness-consistent label distribution learning, ICML 2026.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLDVS(positive=[1, 0, 0], negative=[0, 0, 1]).fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 0.1,
        sharpness: float = 10.0,
        positive: list[float] | None = None,
        negative: list[float] | None = None,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.sharpness = sharpness
        self.positive = positive
        self.negative = negative

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_number("sharpness", self.sharpness, strict=True)
        if (self.positive is None) != (self.negative is None):
            raise InputError("give positive and negative weights, or neither.")

    def _pairs(self, n_labels: int) -> tuple[Index, Index, Array]:
        """Labels for, labels against, and the weight of each such pair."""
        if self.positive is None:
            first, second = np.triu_indices(n_labels, 1)
            return first, second, np.ones(len(first))
        weights = [np.asarray(w, dtype=np.float64) for w in (self.positive, self.negative)]
        for name, values in zip(("positive", "negative"), weights):
            if values.shape != (n_labels,) or not np.isfinite(values).all() or (values < 0).any():
                raise InputError(f"{name} must be {n_labels} numbers of at least 0, one a label.")
        table = np.outer(*weights)
        np.fill_diagonal(table, 0.0)
        first, second = np.nonzero(table)
        if not len(first):
            raise InputError("no label with a positive weight opposes another with a negative one.")
        return first, second, table[first, second]

    def _rows(self, D: Array) -> RowLoss:
        first, second, weight = (torch.from_numpy(values) for values in self._pairs(D.shape[1]))
        true = torch.from_numpy(D)
        known = soft_least(true[:, first], true[:, second], self.sharpness)

        def rows(P: Tensor) -> Tensor:
            gap = known - soft_least(P[:, first], P[:, second], self.sharpness)
            size = (gap.square() + _ROUNDING**2).sqrt() - _ROUNDING
            return kl_rows(true, P) + self.alpha * (weight * size).mean(dim=1)

        return rows
