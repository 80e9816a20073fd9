"""Learners of 2024 to 2026: divisiveness (LDL-DVS), background concentration (CDL), low-rank labels (TLRLDL)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.learner import close_rows
from snefy_ldl.learners.linear import PenalisedLearner, RowLinear, RowLoss, kl_rows
from snefy_ldl.learners.neural import EvidentialLDL

#: Below this a gap of divisiveness counts less and less, so that the loss has a gradient at zero.
_SMOOTH = 1e-4


@dataclass(eq=False, repr=False)
class LDLDVS(RowLinear):
    """Softmax-linear model that keeps how divided opinions are (LDL-DVS).

    ``mean_i [KL(d_i ‖ p_i) + α mean_g |ψ_g(d_i) - ψ_g(p_i)|] + λ/(2N) ‖θ‖²``. A pair g of labels has shares a and b,
    and ``ψ = a σ(k (b - a)) + b σ(k (a - b))`` is a smooth minimum of them: large if both are.

    The loss is the paper's, as python-ldl states it. With more than one pair, python-ldl compares each with the
    divisiveness of all labels together; here each is compared with its own. Ours: a linear model with a penalty, and
    ``|x|`` as ``√(x² + 10⁻⁸)``.

    Args:
        alpha: ``α``, the weight of divisiveness.
        sharpness: ``k``, how close the smooth minimum is to the minimum.
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
        Lu et al., LDL-DVS, 2026 (divisiveness), in python-ldl's bibliography.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLDVS().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 0.1
    sharpness: float = 10.0

    def _rows(self, D: Array) -> RowLoss:
        first, second = torch.triu_indices(D.shape[1], D.shape[1], 1)
        true = torch.from_numpy(D)
        wanted = divisiveness(true[:, first], true[:, second], self.sharpness)

        def rows(log_P: Tensor) -> Tensor:
            P = log_P.exp()
            gap = divisiveness(P[:, first], P[:, second], self.sharpness) - wanted
            return kl_rows(true, log_P) + self.alpha * (gap.square() + _SMOOTH**2).sqrt().mean(dim=1)

        return rows


def divisiveness(a: Any, b: Any, sharpness: float) -> Any:
    """Smooth minimum of the shares of two groups, ``a σ(k (b - a)) + b σ(k (a - b))``.

    Args:
        a: Shares of the first groups, arrays or tensors.
        b: Of the second.
        sharpness: ``k``.

    Returns:
        As a and b.

    Example:
        >>> divisiveness(np.array([0.5, 0.9]), np.array([0.5, 0.1]), 10.0).round(3)
        array([0.5, 0.1])
    """
    sigmoid = torch.sigmoid if isinstance(a, Tensor) else expit
    return a * sigmoid(sharpness * (b - a)) + b * sigmoid(sharpness * (a - b))


@dataclass(eq=False, repr=False)
class CDL(EvidentialLDL):
    """Concentration distribution learning (CDL-LD): an evidential network with the expected squared error.

    Of the concentrations ``α = 1 + e(x)`` with sum S, ``e/S`` are the labels' shares and ``L/S`` is the background, the
    share of what no label describes; the prediction is the mean ``α/S``. The loss is the paper's; the rest is
    :class:`EvidentialLDL`, whose arguments and attributes it has.

    Args:
        loss: ``"mse"``, the expected squared error, is the paper's.
        zeros: Policy for shares of zero.
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    References:
        Tang, Jia, Concentration distribution learning from label distributions, ICML 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> CDL(n_hidden=8, random_state=0).fit(city.X, city.D).predict_concentration(city.X[:2]).shape
        (2, 3)
    """

    loss: str = "mse"


@dataclass(eq=False, repr=False)
class TLRLDL(PenalisedLearner):
    """Linear model with an auxiliary task of low rank: which labels matter (TLRLDL).

    ``½ ‖XW - D‖² + ½ ‖OᵀXW - M‖² + α ‖OᵀXW‖_* + λ (‖W‖² + ‖O‖²)`` by ADMM. ``M`` marks the fewest labels of each row
    whose shares reach a threshold; ``O`` (N, N) turns predicted distributions into them, and the nuclear norm asks
    these, not the distributions, to have low rank.

    Objective and steps are the paper's, with the corrections of python-ldl. Ours: O is never formed, since
    ``O = XW A`` with A (L, N); a start at ridge regression; an intercept; predicted shares are lifted to half the
    smallest one that was seen, and closed.

    Args:
        alpha: ``α``, the weight of the nuclear norm.
        threshold: share that the marked labels reach.
        l2: ``2 λ/L``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most rounds of ADMM.
        tol: Largest change of W at which they stop.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``W``, (d, L), for scaled features.
        intercept_: Its last row, (L,).
        l2_: The ``2 λ/L`` in use.
        lowest_: Where predicted shares are lifted to.
        n_iter_: Rounds taken.

    References:
        Kou et al., Exploiting multi-label correlation in label distribution learning, IJCAI 2024.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> TLRLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 1e-3
    threshold: float = 0.5
    _: KW_ONLY
    max_iter: int = 200

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        from snefy_ldl.learners.enhancement.enhancer import binarise  # its package needs this one

        Z = np.column_stack([self._prepare(X, D), np.ones(len(D))])
        penalty = 0.5 * D.shape[1] * self.l2_
        M = binarise(D, self.threshold).astype(float)
        W, _, self.n_iter_ = low_rank_fit(Z, D, M, self.alpha, penalty, self.max_iter, self.tol)
        self.coef_, self.intercept_ = W[:-1], W[-1]
        self.lowest_ = 0.5 * float(D[D > 0.0].min())

    def _predict(self, X: Array) -> Array:
        return close_rows(self._scaled(X) @ self.coef_ + self.intercept_, self.lowest_)


def low_rank_fit(
    X: Array, D: Array, M: Array, alpha: float, penalty: float, max_iter: int, tol: float
) -> tuple[Array, Array, int]:
    """ADMM for the objective of :class:`TLRLDL`, with ``G = OᵀXW`` and a step size of one.

    Args:
        X: Features, (N, d).
        D: Label distributions, (N, L).
        M: Logical labels, (N, L).
        alpha: ``α``.
        penalty: ``λ``.
        max_iter: Most rounds.
        tol: Largest change of W at which they stop.

    Returns:
        W (d, L), A (L, N) with ``O = XW A``, and the rounds taken.
    """
    gram, n_labels = X.T @ X + 2.0 * penalty * np.eye(X.shape[1]), D.shape[1]
    W: NDArray[Any] = np.linalg.solve(gram, X.T @ D)
    P, G, V, change, rounds = X @ W, M, np.zeros_like(M), np.inf, 0
    while change > tol and rounds < max_iter:
        goal = M + G - V
        A = np.linalg.solve(2.0 * P.T @ P + 2.0 * penalty * np.eye(n_labels), goal.T)
        Y = X.T @ P  # (d, L): XᵀO = Y A
        new = np.linalg.solve(gram + 2.0 * Y @ (A @ A.T) @ Y.T, X.T @ D + Y @ (A @ goal))
        auxiliary = A.T @ (P.T @ (X @ new))
        U, sizes, T = np.linalg.svd(auxiliary + V, full_matrices=False)
        G = (U * np.maximum(sizes - alpha, 0.0)) @ T
        V = V + auxiliary - G
        change, W, P0 = float(np.abs(new - W).max()), new, P
        P, rounds = X @ W, rounds + 1
    # O = P0 A belongs to the W before the last: expressed by the last one
    return np.asarray(W), np.asarray(np.linalg.lstsq(P, P0, rcond=None)[0] @ A), rounds
