"""Learners whose largest share is meant to be the right one: LDL4C, LDL-HR and LDLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import entr
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_number
from snefy_ldl.learners.rows import RowLinear, RowLoss

#: |z| is taken as √(z² + ε²) - ε and max(z, 0) as half of z + √(z² + ε²), so that both have gradients everywhere.
ROUNDING = 1e-3


def _size(z: Tensor) -> Tensor:
    return (z.square() + ROUNDING**2).sqrt() - ROUNDING


def _excess(z: Tensor) -> Tensor:
    return 0.5 * (z + (z.square() + ROUNDING**2).sqrt())


def margin_loss(P: Tensor, largest: Tensor, margin: float) -> Tensor:
    """``max(0, 1 - (p_y - max_{j≠y} p_j)/ρ)`` a row, y the label that should be the largest; its corner is rounded.

    Args:
        P: Shares, (N, L).
        largest: ``y``, (N,).
        margin: ``ρ``.

    Returns:
        Losses, (N,).

    Example:
        >>> P = torch.tensor([[0.7, 0.3], [0.45, 0.55]])
        >>> margin_loss(P, torch.tensor([0, 0]), 0.2).numpy().round(2)
        array([0. , 1.5], dtype=float32)
    """
    right = P.gather(1, largest[:, None])[:, 0]
    rest = P.scatter(1, largest[:, None], -1.0).amax(dim=1)
    return _excess(1.0 - (right - rest) / margin)


class _MarginLinear(RowLinear):
    """Softmax-linear model with absolute losses of the predicted shares."""

    def _ratio(self, D: Array) -> float:
        return _curvature_ratio(D)


def _curvature_ratio(D: Array) -> float:
    """How strongly the absolute loss bends in the logits at the mean label distribution, in units of the KL divergence.

    ``tr(J B J) / tr(J)`` with ``J = diag(m) - m mᵀ`` and ``B`` one over the mean gap of each label.
    """
    mean = (D.mean(axis=0) + 1e-3 / D.shape[1]) / (1.0 + 1e-3)  # a label that no row uses still bends a little
    J = np.diag(mean) - np.outer(mean, mean)
    gap = np.abs(D - mean).mean(axis=0) + ROUNDING
    return float(np.trace(J @ np.diag(1.0 / gap) @ J) / np.trace(J))


class LDL4C(_MarginLinear):
    """Softmax-linear model for classification: absolute loss, rows weighted by entropy, a margin (LDL4C).

    ``mean_i e_i [Σ_j |p_ij - d_ij| + C max(0, 1 - (p_iy - max_{j≠y} p_ij)/ρ)] + λ/(2N) ‖θ‖²``, y the largest label of
    ``d_i`` and ``e_i`` its entropy, divided by the mean entropy. |·| and max are rounded within a thousandth. If no row
    has an entropy, all rows weigh the same.

    The three parts are the paper's: absolute loss, entropy weights, large margin. Ours are how they are put together
    (the margin, too, is weighted by entropy, and runs against the largest of all other labels), the rounding, the
    intercept, the choice of ``λ``, and the values of ``C`` and ``ρ``.

    Args:
        alpha: ``C``, the weight of the margin.
        margin: ``ρ``, by how much the largest share should exceed the others.
        l2: ``λ``; ``"auto"`` takes the penalty that suits the KL divergence times the ratio of the losses' curvatures.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang, Geng, Classification with label distribution learning, IJCAI 2019.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDL4C().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 0.1,
        margin: float = 0.05,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.margin = margin

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_number("margin", self.margin, strict=True)

    def _rows(self, D: Array) -> RowLoss:
        entropy = entr(D).sum(axis=1)
        weight = torch.from_numpy(entropy / entropy.mean() if entropy.any() else np.ones(len(D)))
        true, largest = torch.from_numpy(D), torch.from_numpy(D.argmax(axis=1))

        def rows(P: Tensor) -> Tensor:
            return weight * (_size(P - true).sum(dim=1) + self.alpha * margin_loss(P, largest, self.margin))

        return rows


class LDLHR(_MarginLinear):
    """Softmax-linear model of the highest label and the rest of the description degrees (LDL-HR).

    ``mean_i [Σ_j |p_ij - e_ij| + α max(0, 1 - (p_iy - max_{j≠y} p_ij)/ρ) + β Σ_{j≠y} |p_ij - d_ij|] + λ/(2N) ‖θ‖²``, y
    the largest label of ``d_i`` and ``e_i`` all of the share on it. |·| and max are rounded within a thousandth.

    The first two terms draw the largest share upwards, so predictions are sharper than the label distributions: this
    is a classifier, to be judged by its largest label.

    The three terms are the paper's. Ours are the rounding, the margin against the largest of the other labels instead
    of a sum over all of them, the intercept, the choice of ``λ``, and the values of ``α``, ``β`` and ``ρ``.

    Args:
        alpha: ``α``, the weight of the margin.
        beta: ``β``, the weight of the other labels' shares.
        margin: ``ρ``, by how much the largest share should exceed the others.
        l2: ``λ``; ``"auto"`` takes the penalty that suits the KL divergence times the ratio of the losses' curvatures.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang, Geng, Learn the highest label and rest label description degrees, IJCAI 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLHR().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 0.1,
        beta: float = 1.0,
        margin: float = 0.05,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.beta = beta
        self.margin = margin

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_number("beta", self.beta)
        check_number("margin", self.margin, strict=True)

    def _rows(self, D: Array) -> RowLoss:
        y = D.argmax(axis=1)
        true, largest = torch.from_numpy(D), torch.from_numpy(y)
        single = torch.from_numpy(np.eye(D.shape[1])[y])

        def rows(P: Tensor) -> Tensor:
            rest = ((1.0 - single) * _size(P - true)).sum(dim=1)
            highest = _size(P - single).sum(dim=1) + self.alpha * margin_loss(P, largest, self.margin)
            return highest + self.beta * rest

        return rows


class LDLM(_MarginLinear):
    """Label distribution learning machine (LDLM): margins for the largest label, and room for the others.

    ``mean_i [max(0, ‖p_i - e_i‖₁ - ρ) + α Σ_{j≠y} max(0, 1 - (p_iy - p_ij)/ρ) + β max(0, Σ_{j≠y} |p_ij - d_ij| - δ_i)]
    + λ/(2N) ‖θ‖²``, y the largest label of ``d_i``, ``e_i`` all of the share on it, and ``δ_i`` the gap between the
    second and the third largest share: an error of the rest that cannot change their order costs nothing. |·| and max
    are rounded within a thousandth.

    The first term is the paper's support vector regression to the largest label, the last its adaptive margin. The
    terms follow the form that python-ldl gives them; the paper's own text could be read in part only. Ours are the
    rounding, means instead of sums, the intercept, the choice of ``λ``, and the values of ``α``, ``β`` and ``ρ``.

    Args:
        alpha: ``α``, the weight of the margins against each other label.
        beta: ``β``, the weight of the other labels' shares.
        margin: ``ρ``, by how much the largest share should exceed the others.
        l2: ``λ``; ``"auto"`` takes the penalty that suits the KL divergence times the ratio of the losses' curvatures.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang, Geng, Label distribution learning machine, ICML 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLM().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 0.03,
        beta: float = 1.0,
        margin: float = 0.2,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.beta = beta
        self.margin = margin

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_number("beta", self.beta)
        check_number("margin", self.margin, strict=True)

    def _rows(self, D: Array) -> RowLoss:
        y = D.argmax(axis=1)
        true, largest = torch.from_numpy(D), torch.from_numpy(y)[:, None]
        single = torch.from_numpy(np.eye(D.shape[1])[y])
        ranked = np.sort(np.concatenate([D, np.zeros((len(D), 1))], axis=1), axis=1)[:, ::-1]  # two labels: third is 0
        room = torch.from_numpy(ranked[:, 1] - ranked[:, 2])

        def rows(P: Tensor) -> Tensor:
            first = _excess(_size(P - single).sum(dim=1) - self.margin)
            hinges = (1.0 - single) * _excess(1.0 - (P.gather(1, largest) - P) / self.margin)
            rest = _excess(((1.0 - single) * _size(P - true)).sum(dim=1) - room)
            return first + self.alpha * hinges.sum(dim=1) + self.beta * rest

        return rows
