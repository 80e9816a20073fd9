"""What the networks share: their hyperparameters, their inputs and their penalties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.learners.features import Design, ScaledLearner

#: Curvature of the loss in a first-layer weight, by order of magnitude; it scales the inputs.
_CURVATURE = 0.05


class UnitLearner(ScaledLearner):
    """Base of learners whose first layer is linear units on scaled features, under a ridge penalty.

    The penalties are parts of the ``λ`` that suits a softmax-linear model: one for the first layer, one for
    those above.
    """

    _first_share: ClassVar[float] = 0.5
    _upper_share: ClassVar[float] = 0.015

    def _inputs(self, X: Array, D: Array) -> Design:
        scaled = self._prepare(X, D)
        return Design.of(scaled, self._first_share * self.l2_, _CURVATURE)

    def _first_layer(self, design: Design, n_units: int, random: np.random.RandomState) -> Array:
        """Start weights (r + 1, units): Gaussian in the scaled features; a unit's input has variance about one."""
        w: Array = random.standard_normal((design.Z.shape[1], n_units))
        w = w / np.sqrt(np.maximum(design.ridge, 0.0) * self.n_features_in_ + (design.ridge == 0))[:, None]
        w[-1] = 0.0
        return w

    def _penalties(self, design: Design) -> tuple[Array, float]:
        """Penalties (r + 1, 1) of the first layer's weights, and the one of all weights above."""
        share = self.l2_ / len(design.Z)
        return self._first_share * share * design.ridge[:, None], self._upper_share * share

    def _penalty(self, design: Design) -> Callable[[Tensor, Sequence[Tensor]], Tensor]:
        """``λ/(2N) (first share · ‖first layer‖² + upper share · ‖layers above‖²)``."""
        weights, upper = self._penalties(design)
        ridge = torch.from_numpy(weights)

        def penalty(first: Tensor, above: Sequence[Tensor]) -> Tensor:
            total = (ridge * first.square()).sum()
            for layer in above:
                total = total + upper * layer.square().sum()
            return 0.5 * total

        return penalty


class Network(UnitLearner):
    """A learner with a hidden layer: ``H`` sigmoid units on scaled features, ridge penalties, full-batch L-BFGS."""

    def __init__(
        self,
        n_hidden: int = 64,
        l2: float | str = "auto",
        max_iter: int = 150,
        tol: float = 1e-5,
        standardize: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.l2 = l2
        self.max_iter = max_iter
        self.tol = tol
        self.standardize = standardize
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_count("n_hidden", self.n_hidden)
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, strict=True)
