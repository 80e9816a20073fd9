"""The library's guides as torch modules whose every step is a plain operation on tensors, so that graphs hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from snefy_ldl.errors import InputError
from snefy_ldl.learners.features import CLIP
from snefy_ldl.learners.guides import Guides
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL

__all__ = ["GuideGraph"]


class _Linear(nn.Module):
    """``softmax(clip((x - mean) inverse) θ + b)``: features (B, d) -> shares (B, L), float64."""

    mean: Tensor
    inverse: Tensor
    coef: Tensor
    intercept: Tensor

    def __init__(self, learner: SABFGS) -> None:
        super().__init__()
        scaled = bool(learner.standardize)
        n_features = learner.coef_.shape[0]
        self._limit = CLIP if scaled else float("inf")
        self.register_buffer("mean", torch.as_tensor(learner.feature_mean_ if scaled else np.zeros(n_features)))
        inverse = learner.feature_inverse_scale_ if scaled else np.ones(n_features)
        self.register_buffer("inverse", torch.as_tensor(inverse))
        self.register_buffer("coef", torch.as_tensor(learner.coef_))
        self.register_buffer("intercept", torch.as_tensor(learner.intercept_))

    def forward(self, x: Tensor) -> Tensor:
        scaled = torch.clamp((x - self.mean) * self.inverse, -self._limit, self._limit)
        return torch.softmax(scaled @ self.coef + self.intercept, -1)


class _Trees(nn.Module):
    """Every tree a level at a time: features (B, d) -> shares (B, L), float64.

    A leaf is its own child, so that rows that arrived early wait there. Features are compared in float32, as the trees
    do; a threshold is rounded down to it, which leaves every comparison as it was.
    """

    feature: Tensor
    threshold: Tensor
    branches: Tensor
    number: Tensor
    shares: Tensor
    roots: Tensor

    def __init__(self, learner: TreesLDL) -> None:
        super().__init__()
        walk = learner.walk()
        leaf = walk.is_leaf
        # most leaves hold one training row, so their shares are kept once
        shares, which = np.unique(learner.value_[leaf], axis=0, return_inverse=True)
        number = np.zeros(len(leaf), dtype=np.int32)
        number[leaf] = which.reshape(-1)
        self._depth = _depth(learner.children_, learner.roots_)
        self._largest = float(np.finfo(np.float32).max)
        self.register_buffer("feature", torch.as_tensor(walk.feature.astype(np.int32)))
        self.register_buffer("threshold", torch.as_tensor(walk.threshold))
        self.register_buffer("branches", torch.as_tensor(walk.child.astype(np.int32)))
        self.register_buffer("number", torch.as_tensor(number))
        self.register_buffer("shares", torch.as_tensor(shares))
        self.register_buffer("roots", torch.as_tensor(np.array(learner.roots_, dtype=np.int64)))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.clamp(x, -self._largest, self._largest).float()
        at = self.roots.expand(x.shape[0], -1)  # (B, trees)
        for _ in range(self._depth):
            right = torch.gather(rows, 1, self.feature[at].long()) > self.threshold[at]
            at = self.branches[2 * at + right.long()].long()
        return self.shares[self.number[at].long()].mean(1)


def _depth(children: Any, roots: Any) -> int:
    """Steps from the roots to the farthest leaf."""
    level, depth = np.asarray(roots), 0
    while True:
        level = children[level].ravel()
        level = level[level >= 0]
        if not len(level):
            return depth
        depth += 1


class GuideGraph(nn.Module):
    """What a network sees of its guides: features (B, d) -> centred logs of their shares (B, G L), float64.

    Args:
        guides: fitted, all of the library's own kinds.

    Raises:
        InputError: where one is of another kind.
    """

    def __init__(self, guides: Guides) -> None:
        super().__init__()
        self._floor = guides.floor
        modules: list[nn.Module] = []
        for learner in guides.learners:
            if type(learner) is SABFGS:
                modules.append(_Linear(learner))
            elif type(learner) is TreesLDL:
                modules.append(_Trees(learner))
            else:
                raise InputError(
                    f"the model is guided by {type(learner).__name__}, which runs in Python only and cannot be "
                    "exported; fit with guides=None, or with the library's own guides."
                )
        self.learners = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Centred logs of every guide's prediction."""
        parts = []
        for learner in self.learners:
            logs = torch.log(torch.clamp(learner(x), min=self._floor))
            parts.append(logs - logs.mean(1, keepdim=True))
        return torch.cat(parts, 1)
