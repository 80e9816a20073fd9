"""Correlations of labels through the weights of a linear model: LDLLC."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.learners.features import Design
from snefy_ldl.learners.linear import SoftmaxLinear, start_weights
from snefy_ldl.learners.optimise import minimise
from snefy_ldl.learners.rows import kl_rows

#: Distances of weight vectors are √(‖·‖² + ε²), which has a gradient also where two labels have the same weights.
_ROUNDING = 1e-3


class LDLLC(SoftmaxLinear):
    """Softmax-linear model whose labels pull together or apart as their weights correlate (LDLLC).

    ``mean_i KL(d_i ‖ p_i) + α/N Σ_{j<k} s_jk ‖θ_j - θ_k‖ + λ/(2N) ‖θ‖²`` with ``s_jk`` the sign of the correlation of
    the weight vectors of labels j and k.

    The sign jumps where a correlation passes zero. Here it is held for a round of L-BFGS and set anew after it.

    Args:
        alpha: ``α``, the weight of the pulls.
        n_rounds: Rounds, after one without pulls that gives the first signs.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations a round.
        tol: Largest gradient entry at which a round stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        signs_: ``s`` of the last round, (L, L).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken in all rounds.

    References:
        Jia et al., Label distribution learning by exploiting label correlations, AAAI 2018.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLLC().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def __init__(
        self,
        alpha: float = 1e-3,
        n_rounds: int = 2,
        l2: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(l2=l2, max_iter=max_iter, tol=tol, standardize=standardize, random_state=random_state)
        self.alpha = alpha
        self.n_rounds = n_rounds

    def _check_params(self) -> None:
        super()._check_params()
        check_number("alpha", self.alpha)
        check_count("n_rounds", self.n_rounds)

    def _minimise(self, design: Design, D: Array) -> Array:
        Z, true, back = torch.from_numpy(design.Z), torch.from_numpy(D), torch.from_numpy(design.back).double()
        penalty = torch.from_numpy(self.l2_ / len(D) * design.ridge[:, None])
        first, second = torch.triu_indices(D.shape[1], D.shape[1], 1)
        w, self.n_iter_ = start_weights(design, D), 0
        signs = torch.zeros(len(first), dtype=torch.float64)
        for _ in range(self.n_rounds + 1):

            def loss(weights: list[Tensor], signs: Tensor = signs) -> Tensor:
                theta = back @ weights[0][:-1]
                gaps = ((theta[:, first] - theta[:, second]).square().sum(dim=0) + _ROUNDING**2).sqrt()
                value = kl_rows(true, torch.softmax(Z @ weights[0], dim=1)).mean()
                return value + self.alpha / len(D) * (signs * gaps).sum() + 0.5 * (penalty * weights[0].square()).sum()

            (w,), n_iter = minimise(loss, [w], self.max_iter, self.tol)
            self.n_iter_ += n_iter
            table = _signs(back.numpy() @ w[:-1])
            signs, before = torch.from_numpy(table)[first, second], signs
            if bool((signs == before).all()):
                break
        self.signs_ = table
        return w


def _signs(coef: Array) -> Array:
    """Signs of the correlations of the columns, (L, L)."""
    centred = coef - coef.mean(axis=0)
    signs: Array = np.sign(centred.T @ centred)
    return signs
