"""The library's guides as torch modules whose every step is a plain operation on tensors, so that graphs hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from snefy_ldl.errors import InputError
from snefy_ldl.learners.linear import CLIP
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL, smallest_whole
from snefy_ldl.training.guides import Guides

__all__ = ["GuideGraph", "TreesGraph"]


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


class TreesGraph(nn.Module):
    """Every tree a level at a time: features (B, d) -> shares (B, L), float64.

    A leaf is its own right child, and every row goes there, so that rows that arrived early wait. Features are compared
    in float32, as the trees do; a threshold is rounded down to it, which leaves every comparison as it was. Tables are
    as narrow as their numbers allow, and left children, which stand behind their parents, need none.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    number: Tensor
    shares: Tensor
    roots: Tensor

    def __init__(self, learner: TreesLDL) -> None:
        super().__init__()
        walk = learner.walk()
        leaf = walk.is_leaf
        nodes = np.arange(len(leaf))
        shares, which = learner.leaf_shares()
        number = np.zeros(len(leaf), dtype=np.int64)
        number[leaf] = which
        child = walk.child.reshape(-1, 2)
        self._preorder = bool((leaf | (child[:, 0] == nodes + 1)).all())
        self._depth = _depth(learner.children_, learner.roots_)
        self._largest = float(np.finfo(np.float32).max)
        self.register_buffer("feature", torch.as_tensor(smallest_whole(walk.feature)))
        self.register_buffer("threshold", torch.as_tensor(np.where(leaf, -np.inf, walk.threshold).astype(np.float32)))
        self.register_buffer("right", torch.as_tensor(smallest_whole(child[:, 1])))
        if not self._preorder:
            self.register_buffer("left", torch.as_tensor(smallest_whole(child[:, 0])))
        self.register_buffer("number", torch.as_tensor(smallest_whole(number)))
        self.register_buffer("shares", torch.as_tensor(shares))
        self.register_buffer("roots", torch.as_tensor(np.array(learner.roots_, dtype=np.int64)))

    def forward(self, x: Tensor) -> Tensor:
        """The average over all trees' leaves."""
        # not by clamp: two forests that clamp the same features become one operation too few in ONNX's optimiser
        rows = torch.where(x > self._largest, self._largest, torch.where(x < -self._largest, -self._largest, x))
        rows = rows.float().flatten()
        first = torch.arange(x.shape[0]) * x.shape[1]
        first = first[:, None].expand(-1, len(self.roots)).flatten()  # where each walk's row begins, (B trees,)
        at = self.roots.expand(x.shape[0], -1).flatten()
        for _ in range(self._depth):
            asked = torch.index_select(rows, 0, torch.index_select(self.feature, 0, at).long() + first)
            goes_right = asked > torch.index_select(self.threshold, 0, at)
            left = at + 1 if self._preorder else torch.index_select(self.left, 0, at).long()
            at = torch.where(goes_right, torch.index_select(self.right, 0, at).long(), left)
        shares = torch.index_select(self.shares, 0, torch.index_select(self.number, 0, at).long())
        mean: Tensor = shares.unflatten(0, (x.shape[0], len(self.roots))).mean(1)
        return mean


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
                modules.append(TreesGraph(learner))
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
