"""A learner for labels in an order (ages, ratings): losses of cumulative shares, and predictions with one mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import Design, RowLinear, RowLoss

LOSSES = ("cad", "emd")
HEADS = ("softmax", "unimodal")
#: |z| is taken as √(z² + ε²) - ε, so that it has a gradient everywhere.
ROUNDING = 1e-3
#: Least curvature of the start of a unimodal head.
LEAST_BEND = 0.05


@dataclass(eq=False, repr=False)
class OrdinalLDL(RowLinear):
    """Linear model for labels in an order, with an ordinal loss and, if wanted, one mode per row.

    ``mean_i loss(d_i, p_i) + λ/(2N) ‖θ‖²`` with ``p = head(x θ + b)``. The columns of ``D`` are the labels in their
    order, ``F`` are cumulative shares.

    ``l2="auto"`` takes the penalty that suits the KL divergence and multiplies it by the ratio of the two losses'
    curvatures at the mean label distribution, ``tr(J B J) / tr(J)`` with ``J = diag(m) - m mᵀ``.

    Args:
        loss: ``"cad"``: ``Σ_r |F_r - F̂_r|`` (|·| rounded within a thousandth). ``"emd"``: ``Σ_r (F_r - F̂_r)²``, the
            squared earth mover's distance.
        head: ``"softmax"``: any shape. ``"unimodal"``: ``log p_{r+1} - log p_r`` starts at the first output and falls
            by softplus of the next one from label to label, so that shares are log-concave.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, K), for scaled features; K = L, or L - 1 for ``"unimodal"``.
        intercept_: ``b``, (K,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wen, Zhang, Yao, Yang, Ordinal label distribution learning, ICCV 2023.
        Hou, Yu, Samaras, Squared earth mover's distance-based loss for training deep neural networks, 2016.
        Li et al., Unimodal-concentrated loss: fully adaptive label distribution learning for ordinal regression,
        CVPR 2022 (here one mode by construction instead of by a loss).

    Example:
        >>> X = np.linspace(-1.0, 1.0, 30)[:, None]
        >>> D = np.exp(-((np.arange(4) - 1.5 - X) ** 2))
        >>> D /= D.sum(axis=1, keepdims=True)
        >>> OrdinalLDL("emd", head="unimodal", l2=1e-4).fit(X, D).predict([[0.0]]).round(2)
        array([[0.06, 0.44, 0.44, 0.06]])
    """

    loss: str = "cad"
    head: str = "softmax"

    _choices = {"loss": LOSSES, "head": HEADS}  # noqa: RUF012 - never changed

    def _rows(self, D: Array) -> RowLoss:
        true = torch.cumsum(torch.from_numpy(D), dim=1)[:, :-1]

        def rows(log_P: Tensor) -> Tensor:
            squares = (true - torch.cumsum(log_P.exp(), dim=1)[:, :-1]).square()
            return (squares if self.loss == "emd" else (squares + ROUNDING**2).sqrt() - ROUNDING).sum(dim=1)

        return rows

    def _ratio(self, D: Array) -> float:
        mean = (D.mean(axis=0) + 1e-3 / D.shape[1]) / (1.0 + 1e-3)  # losses also bend in a label that no row uses
        C = np.tril(np.ones((len(mean), len(mean))))[:-1]
        gap = np.abs((D - mean) @ C.T).mean(axis=0) + ROUNDING
        bend = 2.0 * C.T @ C if self.loss == "emd" else C.T @ np.diag(1.0 / gap) @ C
        J = np.diag(mean) - np.outer(mean, mean)
        return float(np.trace(J @ bend @ J) / np.trace(J))

    def _log_shares(self, outputs: Tensor) -> Tensor:
        if self.head == "unimodal":
            falls = torch.cumsum(pad(softplus(outputs[:, 1:]), (1, 0)), dim=1)
            outputs = pad(torch.cumsum(outputs[:, :1] - falls, dim=1), (1, 0))
        return torch.log_softmax(outputs, dim=1)

    def _start(self, design: Design, D: Array) -> Array:
        logits = super()._start(design, D)
        if self.head == "softmax":
            return logits
        steps = np.diff(logits[-1] * design.constant)
        bends = np.maximum(-np.diff(steps), LEAST_BEND)
        w = np.zeros((len(logits), len(steps)))
        w[-1] = np.append(steps[:1], bends + np.log(-np.expm1(-bends))) / design.constant  # inverse of softplus
        return w
