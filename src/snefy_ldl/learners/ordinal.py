"""A learner for labels in an order (ages, ratings): losses that know how far a share is off, heads with one mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import (
    ROUNDING,
    Design,
    SoftmaxLinear,
    curvature_ratio,
    filled_mean,
    minimise,
    rounded_size,
    start_weights,
)

LOSSES = ("cad", "emd", "cjs", "kl")
HEADS = ("softmax", "unimodal")
#: Cumulative shares below this count as this in logarithms.
SMALLEST_SHARE = 1e-12
#: Least curvature of the start of a unimodal head.
LEAST_BEND = 0.05


def ordinal_loss(name: str, D: Tensor) -> Callable[[Tensor], Tensor]:
    """Mean loss over rows as a function of log shares.

    Args:
        name: ``"cad"``: ``Σ_r |F_r - F̂_r|``; ``"emd"``: ``Σ_r (F_r - F̂_r)²``; ``"cjs"``: the
            Jensen-Shannon divergence of the cumulative shares; ``"kl"``: ``-Σ_r d_r log p_r``.
        D: Label distributions ``d``, (N, L).

    Returns:
        Log shares (N, L) to a scalar tensor.

    Example:
        >>> D = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
        >>> round(ordinal_loss("emd", D)(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()).item(), 4)
        0.3125
    """
    n_rows = len(D)
    true = torch.cumsum(D, dim=1)[:, :-1]
    if name == "kl":
        return lambda log_P: -(D * log_P).sum() / n_rows

    def cumulative(log_P: Tensor) -> Tensor:
        predicted = torch.cumsum(log_P.exp(), dim=1)[:, :-1]
        if name == "cjs":
            predicted = predicted.clamp_min(SMALLEST_SHARE)
            middle = 0.5 * (true + predicted)
            # not xlogy(F, F / middle): its gradient is 0/0 where F is zero
            first: Tensor = torch.special.xlogy(true, true) - true * middle.log()
            return 0.5 * (first + predicted * (predicted / middle).log()).sum() / n_rows
        gap = true - predicted
        if name == "emd":
            return gap.square().sum() / n_rows
        return rounded_size(gap).sum() / n_rows

    return cumulative


def log_shares(head: str, outputs: Tensor) -> Tensor:
    """Log shares of a head.

    Args:
        head: ``"softmax"``: outputs are logits. ``"unimodal"``: ``log p_{r+1} - log p_r`` starts at the first output
            and falls by softplus of the next one from label to label, so that shares are log-concave: one mode.
        outputs: (N, K), K = L or, for one mode, L - 1.

    Returns:
        Log shares, (N, L).

    Example:
        >>> log_shares("unimodal", torch.zeros(1, 2)).exp().numpy().round(2)
        array([[0.4, 0.4, 0.2]], dtype=float32)
    """
    if head == "unimodal":
        bends = torch.nn.functional.softplus(outputs[:, 1:])
        steps = torch.cat([outputs[:, :1], outputs[:, :1] - torch.cumsum(bends, dim=1)], dim=1)
        outputs = torch.nn.functional.pad(torch.cumsum(steps, dim=1), (1, 0))
    return torch.log_softmax(outputs, dim=1)


@dataclass(eq=False, repr=False)
class OrdinalLDL(SoftmaxLinear):
    """Linear model for labels in an order, with an ordinal loss and, if wanted, one mode per row.

    ``mean_i loss(d_i, p_i) + λ/(2N) ‖θ‖²`` with ``p = head(x θ + b)``; see ``ordinal_loss`` and ``log_shares`` of this
    module for the losses and the heads. The columns of ``D`` are the labels in their order.

    ``"cad"`` and ``"cjs"`` are losses of ordinal label distribution learning (|·| rounded within a thousandth);
    ``"emd"`` is the squared earth mover's distance of Hou et al., ``(L - 1)/2`` times the former's quadratic form.
    ``l2="auto"`` takes the penalty that suits the KL divergence and multiplies it by the ratio of the two losses'
    curvatures at the mean label distribution.

    Args:
        loss: ``"cad"``, ``"emd"``, ``"cjs"`` or ``"kl"``.
        head: ``"softmax"`` (any shape) or ``"unimodal"`` (log-concave).
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

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        ratio = loss_ratio(self.loss, D)
        if self.l2 == "auto":
            self.l2_ *= ratio
        ridge = self.l2_ / ratio  # the whole objective is divided by the ratio: gradients are then of the size of KL's
        design = Design.of(scaled, ridge, curvature=1.0 / D.shape[1])
        Z, penalty = torch.from_numpy(design.Z), torch.from_numpy(ridge / len(D) * design.ridge[:, None])
        loss = ordinal_loss(self.loss, torch.from_numpy(D))

        def objective(weights: list[Tensor]) -> Tensor:
            (w,) = weights
            fitted = loss(log_shares(self.head, Z @ w)) / ratio
            return fitted + 0.5 * (penalty * w.square()).sum()

        (w,), self.n_iter_ = minimise(objective, [_start(self.head, design, D)], self.max_iter, self.tol)
        self.coef_, self.intercept_ = design.weights(w)

    def _predict(self, X: Array) -> Array:
        outputs = torch.from_numpy(self._scaled(X) @ self.coef_ + self.intercept_)
        return log_shares(self.head, outputs).exp().numpy()


def loss_ratio(loss: str, D: Array) -> float:
    """How strongly a loss bends in the logits at the mean label distribution, in units of the KL divergence.

    Args:
        loss: As in ``ordinal_loss``.
        D: Label distributions, (N, L).

    Returns:
        A positive number.

    Example:
        >>> loss_ratio("kl", np.array([[0.5, 0.5], [0.2, 0.8]])), loss_ratio("emd", np.array([[0.5, 0.5]]))
        (1.0, 0.5)
    """
    n_labels, mean = D.shape[1], filled_mean(D)
    C = np.tril(np.ones((n_labels, n_labels)))[:-1]
    if loss == "kl":
        return 1.0
    if loss == "emd":
        B = 2.0 * C.T @ C
    elif loss == "cjs":
        B = C.T @ np.diag(0.25 / (C @ mean)) @ C
    else:
        gap = np.abs((D - mean) @ C.T).mean(axis=0) + ROUNDING
        B = C.T @ np.diag(1.0 / gap) @ C
    return curvature_ratio(mean, B)


def _start(head: str, design: Design, D: Array) -> Array:
    """Weights that predict about the mean label distribution everywhere, (r + 1, K)."""
    logits = start_weights(design, D)
    if head == "softmax":
        return logits
    steps = np.diff(logits[-1] * design.constant)
    bends = np.maximum(-np.diff(steps), LEAST_BEND)
    constants = np.append(steps[:1], bends + np.log(-np.expm1(-bends)))  # inverse of softplus
    w = np.zeros((logits.shape[0], len(constants)))
    w[-1] = constants / design.constant
    return w
