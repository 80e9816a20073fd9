"""Differentiable decision forest with label distributions at the leaves: LDLF."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import minimise
from snefy_ldl.learners.networks import UnitLearner

#: Leaf shares start and stay above this, since the leaf update can never raise an exact zero; above less where
#: observed shares are smaller.
_LEAF_FLOOR = 1e-6
_LEAF_UPDATES = 10
#: Rows times trees times leaves held at once while predicting.
_CHUNK = 4_000_000


@dataclass(eq=False, repr=False)
class LDLForest(UnitLearner):
    """Label distribution learning forest (LDLF): soft trees over shared linear units.

    Split node n of tree t sends a row left with probability ``s_n(x) = σ(x w_φ(n) + b_φ(n))``, where ``φ`` gives each
    node one of ``n_units`` units; leaf ℓ, reached with probability ``μ_ℓ(x)``, holds a label distribution ``q_ℓ``.
    ``p(x) = mean_t Σ_ℓ μ_ℓ(x) q_ℓ``, and the objective is ``mean_t mean_i KL(d_i ‖ Σ_ℓ μ_ℓ(x_i) q_ℓ)`` with the ridge
    penalty ``λ/(10 N) ‖w‖²`` on the units.

    Rounds alternate L-BFGS steps for the units and the paper's leaf update
    ``q_ℓj ∝ Σ_i d_ij μ_ℓ(x_i) q_ℓj / p_j(x_i)``, which never raises the loss. The paper takes gradient steps on
    batches; the rounds replace its step size.

    Args:
        n_trees: Trees, all of one depth, with their own ``φ``.
        depth: Levels of split nodes; a tree has ``2^depth`` leaves.
        n_units: Linear units the split nodes draw from.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        n_rounds: Alternations of units and leaves.
        max_iter: L-BFGS iterations in a round.
        tol: Largest gradient entry at which a round's search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds ``φ`` and the start weights.

    Attributes:
        coef_: Weights of the units, (d, units), for scaled features.
        intercept_: Their intercepts, (units,).
        unit_of_split_: ``φ``, (trees, split nodes).
        leaves_: ``q``, (trees, leaves, L).
        l2_: The ``λ`` in use.

    References:
        Shen, Zhao, Guo, Yuille, Label distribution learning forests, NeurIPS 2017.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLForest().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    _first_share: ClassVar[float] = 0.2

    n_trees: int = 5
    depth: int = 5
    n_units: int = 64
    n_rounds: int = 8
    _: KW_ONLY
    max_iter: int = 15
    tol: float = 1e-5

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        floor = min(_LEAF_FLOOR, float(np.min(D, initial=1.0, where=D > 0.0)) / 2.0)
        Z, target, penalty = torch.from_numpy(design.Z), torch.from_numpy(D), self._penalty(design)
        n_splits, n_leaves = 2**self.depth - 1, 2**self.depth
        draws = -(-n_splits // self.n_units)
        self.unit_of_split_ = np.stack(
            [
                np.concatenate([random.permutation(self.n_units) for _ in range(draws)])[:n_splits]
                for _ in range(self.n_trees)
            ]
        )
        chosen = torch.from_numpy(self.unit_of_split_)
        noise = random.dirichlet(np.ones(D.shape[1]), size=(self.n_trees, n_leaves))
        leaves = torch.from_numpy(_close(0.5 * D.mean(axis=0) + 0.5 * noise, floor))
        units = self._first_layer(design, self.n_units, random)

        def loss(weights: list[Tensor]) -> Tensor:
            reach = leaf_probabilities(Z @ weights[0], chosen, self.depth)  # (N, T, leaves)
            P = torch.einsum("ntl,tlk->ntk", reach, leaves)
            return -(target[:, None] * P.log()).sum() / (len(Z) * self.n_trees) + penalty(weights[0], [])

        for _ in range(self.n_rounds):
            leaves = self._update_leaves(torch.from_numpy(units), Z, target, chosen, leaves, floor)
            (units,), _ = minimise(loss, [units], self.max_iter, self.tol)
        self.leaves_ = self._update_leaves(torch.from_numpy(units), Z, target, chosen, leaves, floor).numpy()
        self.coef_, self.intercept_ = design.weights(units)

    def _update_leaves(
        self, units: Tensor, Z: Tensor, target: Tensor, chosen: Tensor, leaves: Tensor, floor: float
    ) -> Tensor:
        reach = leaf_probabilities(Z @ units, chosen, self.depth)
        for _ in range(_LEAF_UPDATES):
            ratio = target[:, None] / torch.einsum("ntl,tlk->ntk", reach, leaves)
            leaves = _close(leaves * torch.einsum("ntl,ntk->tlk", reach, ratio), floor)
        return leaves

    def _predict(self, X: Array) -> Array:
        values = torch.from_numpy(self._scaled(X) @ self.coef_ + self.intercept_)
        chosen, leaves = torch.from_numpy(self.unit_of_split_), torch.from_numpy(self.leaves_)
        step = max(1, _CHUNK // (self.n_trees * 2**self.depth))
        parts = [
            torch.einsum("ntl,tlk->nk", leaf_probabilities(part, chosen, self.depth), leaves) / self.n_trees
            for part in torch.split(values, step)
        ]
        return np.asarray(torch.cat(parts).numpy())


def _close(leaves: Any, floor: float) -> Any:
    leaves = leaves / leaves.sum(-1)[..., None] + floor
    return leaves / leaves.sum(-1)[..., None]


def leaf_probabilities(values: Tensor, unit_of_split: Tensor, depth: int) -> Tensor:
    """Probabilities (N, T, 2^depth) of reaching each leaf, from unit values (N, units).

    Split nodes are numbered level by level; node n's children are 2n + 1 (left) and 2n + 2.
    """
    logits = values[:, unit_of_split]  # (N, T, splits)
    left, right = torch.sigmoid(logits), torch.sigmoid(-logits)
    reach = logits.new_ones(*logits.shape[:2], 1)
    for level in range(depth):
        nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
        reach = torch.stack([reach * left[..., nodes], reach * right[..., nodes]], dim=-1).flatten(2)
    return reach
