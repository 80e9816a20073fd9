"""Kernels: features of rows whose distances show how differently the model would learn from them.

A kernel has ``features(X)``, whose inner products it is, and ``width``, the numbers per row.

=========  ===========================================================================================================
trees      predictions of each tree of the feature-based forest, minus the trees' mean; the cheapest
members    centred log predictions of each ensemble member, minus the members' mean; of a single one as they are
=========  ===========================================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from snefy_ldl._internal.dists import to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_choice
from snefy_ldl.errors import InputError
from snefy_ldl.learners.trees import TreesLDL

Features = NDArray[np.float32]

#: Predicted shares are lifted here before their logarithm.
SHARE_FLOOR = 1e-6
#: Trees of the forest that are used at most, and numbers per row that their predictions are projected to.
MOST_TREES, TREE_WIDTH = 100, 96
#: Names of the kernels, the one that ``"auto"`` prefers first.
KERNELS = ("trees", "members")


def make_kernel(kind: str, model: Any, example: Any, random: RandomState) -> TreesKernel | MembersKernel:
    """A kernel by its name.

    Args:
        kind: ``"trees"``, ``"members"``, or ``"auto"`` for trees if the model has any.
        model: a fitted model, or a list of them; it is not changed.
        example: a few rows, as the model takes them.
        random: source of the random projections.

    Returns:
        The kernel.

    Raises:
        InputError: there is no such kernel, or the model lacks what the kernel is made of.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, n_members=2, random_state=0).fit(city.X, city.D)
        >>> make_kernel("auto", model, city.X[:1], RandomState(0)).features(city.X[:4]).shape
        (4, 6)
    """
    check_choice("kernel", kind, ("auto", *KERNELS))
    if kind == "trees" or (kind == "auto" and find_forest(model) is not None):
        return TreesKernel(model, random)
    return MembersKernel(model, example)


def has_disagreement(model: Any, example: Any) -> bool:
    """Whether a model has trees or members whose predictions differ: the basis of the study behind ``"auto"``."""
    return find_forest(model) is not None or len(member_means(model, example)) > 1


def find_forest(model: Any) -> tuple[TreesLDL, Array] | None:
    """The forest behind a model's feature-based predictions, and what each node predicts; None if it has none."""
    core = _without_transformers(model)
    if getattr(core, "group_effects_", None) is not None:  # its forest sees more than the features
        return None
    if hasattr(core, "tree_targets_"):  # leaves hold training rows
        value = np.zeros((len(core.tree_counts_), core.tree_targets_.shape[1]))
        leaf = np.repeat(np.arange(len(value)), core.tree_counts_)
        np.add.at(value, leaf, core.tree_targets_[core.tree_rows_])
        return core.trees_, value / np.maximum(core.tree_counts_, 1)[:, None]
    learners = getattr(getattr(core, "guides_", None), "learners", [])
    return next(((one, one.value_) for one in learners if isinstance(one, TreesLDL)), None)


def member_means(model: Any, X: Any) -> Array:
    """Predicted means of every member (K, N, L); K is 1 for a model that is no ensemble."""
    if isinstance(model, (list, tuple)):
        return np.concatenate([np.mean(member_means(one, X), axis=0, keepdims=True) for one in model])
    if not hasattr(model, "predict_dist"):
        raise InputError(f"model must have predict_dist; got {type(model).__name__}.")
    with torch.no_grad():
        dist = model.predict_dist(X)
        return to_numpy(dist.member_means() if hasattr(dist, "member_means") else dist.mean[None])


def _without_transformers(model: Any) -> Any:
    """The fitted model at the end of a pipeline."""
    return getattr(model, "model_", model) if hasattr(model, "transformed") else model


class TreesKernel:
    """What each tree of the forest predicts, minus the trees' mean, projected to 96 numbers.

    With y_t the prediction of tree t and P_t its random projection, ``Σ_t (y_t - ȳ) P_t = Σ_t y_t (P_t - P̄)``: every
    leaf holds its 96 numbers, and a row is the sum over the leaves in which it ends.

    Args:
        model: with a feature-based forest.
        random: source of the projections.
    """

    width = TREE_WIDTH

    def __init__(self, model: Any, random: RandomState) -> None:
        found = find_forest(model)
        if found is None:
            raise InputError("the trees kernel needs a model with a feature-based forest, such as LogRatioLDL().")
        self.model, (self.forest, value) = model, found
        n_trees = self.n_trees = min(MOST_TREES, len(self.forest.roots_))
        projections = random.standard_normal((n_trees, value.shape[1], self.width)) / np.sqrt(n_trees * self.width)
        projections -= projections.mean(axis=0)
        ends = np.append(self.forest.roots_, len(value))
        leaves = [value[ends[t] : ends[t + 1]] @ projections[t] for t in range(n_trees)]
        self.tables = torch.as_tensor(np.concatenate(leaves).astype(np.float32))

    def features(self, X: Any) -> Features:
        """Features of some rows (b, width), float32; a pool is read in blocks."""
        core = _without_transformers(self.model)
        encoded = core.encode(self.model.transformed(X) if core is not self.model else X)
        table = np.asarray(encoded.toarray() if hasattr(encoded, "toarray") else encoded)
        parts = [np.zeros((0, self.width), dtype=np.float32)]
        for start in range(0, len(table), 4096):
            leaves = self.forest.leaves(table[start : start + 4096], self.n_trees).T
            index = torch.as_tensor(np.ascontiguousarray(leaves, dtype=np.int64))
            parts.append(torch.nn.functional.embedding_bag(index, self.tables, mode="sum").numpy())
        return np.concatenate(parts)


class MembersKernel:
    """Centred logs of every member's predicted mean, minus the members' mean (K L numbers per row).

    Args:
        model: any with ``predict_dist``, or a list of models.
        example: a few rows, as the model takes them.
    """

    def __init__(self, model: Any, example: Any) -> None:
        means = member_means(model, example)
        self.model, self.width = model, len(means) * means.shape[-1]

    def features(self, X: Any) -> Features:
        """Features of some rows (b, width), float32; a pool is read in blocks."""
        logs = np.log(np.maximum(member_means(self.model, X), SHARE_FLOOR))  # (K, b, L)
        logs -= logs.mean(axis=-1, keepdims=True)
        if len(logs) > 1:
            logs -= logs.mean(axis=0)
        table = logs.transpose(1, 0, 2).reshape(logs.shape[1], -1) / np.sqrt(len(logs))
        return table.astype(np.float32)
