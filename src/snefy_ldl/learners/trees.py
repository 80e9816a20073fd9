"""Extremely randomised trees as a label distribution learner: quick, hard to beat on tables, saved as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesRegressor

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.grouping import group_folds
from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners.learner import Learner

#: Walks of a row down a tree that are made at a time.
BLOCK_WALKS = 1 << 16
#: Levels that all of them go down before those that have ended are left out.
LEVELS = 4


@dataclass(eq=False, repr=False)
class TreesLDL(Learner):
    """Extremely randomised trees (Geurts, Ernst & Wehenkel, 2006) on the shares themselves.

    The mean of label distributions is one, so an average over leaves is a prediction as it stands. The forest grows in
    parts, each of which leaves out a part of the rows: for the training rows, :attr:`out_of_bag_` holds what the trees
    that did not see them predict, and new rows get the average of all trees. (Bootstrap samples leave out a third of
    the rows, and such trees are clearly worse.)

    Args:
        n_trees: Trees of the forest.
        max_features: Features looked at for a split: ``"auto"`` (a third of them up to 32, or their root if that is
            more) or ``"sqrt"``.
        min_leaf: Rows a leaf holds at least.
        n_parts: Parts of the forest.
        random_state: Seed, generator or None.

    Attributes:
        out_of_bag_: Predictions (N, L) for the training rows by trees that did not see them; NaN if there is but one
            row.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=100, random_state=0)
        >>> TreesLDL(n_trees=10, random_state=0).fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_trees: int = 200
    max_features: str = "auto"
    min_leaf: int = 1
    n_parts: int = 5
    random_state: Any = None

    _choices = {"max_features": ("auto", "sqrt")}  # noqa: RUF012 - never changed
    #: Where parts of the forest leave out whole groups: the group of each training row (N,).
    _groups = cast("Index | None", None)

    def leaving_out(self, groups: Index) -> TreesLDL:
        """An unfitted forest whose parts leave out whole groups of rows.

        Args:
            groups: of the rows (N,) of the next fit.

        Returns:
            The forest; its :attr:`out_of_bag_` then holds what trees predict that have seen no row of the same group.
        """
        other: TreesLDL = clone(self)
        other._groups = groups
        return other

    def _left_out(self, n_rows: int, random: np.random.RandomState) -> list[Index]:
        """The rows that each part leaves out."""
        n_parts = min(self.n_parts, n_rows)
        if self._groups is not None and n_parts > 1:
            folds = group_folds(self._groups, n_parts, np.random.default_rng(random.randint(2**31)))
            self._groups = None
            return [np.flatnonzero(folds == k) for k in np.unique(folds)]
        return np.array_split(random.permutation(n_rows), n_parts) if n_parts > 1 else [np.array([], dtype=int)]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        n_nodes = len(np.atleast_1d(getattr(self, "children_", [])))
        shapes: dict[str, tuple[int, ...]] = {"children_": (n_nodes, 2), "value_": (n_nodes, self.n_labels_)}
        return shapes | {"feature_": (n_nodes,), "threshold_": (n_nodes,)}

    def _find_damage(self) -> str | None:
        """A walk down every tree ends: children come after their parent, and belong to its tree."""
        whole = {name: getattr(self, name, None) for name in ("children_", "feature_", "roots_")}
        for name, array in whole.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "i" or not array.size:
                return f"{name} does not hold whole numbers"
        roots, nodes = self.roots_, np.arange(len(self.children_))
        if roots.ndim != 1 or roots[0] != 0 or not (np.diff(roots) > 0).all() or roots[-1] >= len(nodes):
            return "roots_ does not name the first node of each tree"
        end = np.append(roots[1:], len(nodes))[np.searchsorted(roots, nodes, side="right") - 1]
        is_leaf = (self.children_ == -1).all(1)
        inside = (self.children_ > nodes[:, None]) & (self.children_ < end[:, None])
        if not (is_leaf | inside.all(1)).all():
            return f"children_ of node {int(np.argmin(is_leaf | inside.all(1)))} do not come after it in its tree"
        if not (is_leaf | ((self.feature_ >= 0) & (self.feature_ < self._width))).all():
            return f"feature_ names a feature that none of the {self._width} is"
        if self.value_.dtype.kind != "f" or self.threshold_.dtype.kind != "f":
            return "value_ or threshold_ does not hold real numbers"
        return None if ((self.value_ > -1e-6) & (self.value_ < 1.0 + 1e-6)).all() else "value_ does not hold shares"

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        table = _single(X)
        left_out = self._left_out(len(X), random)
        n_parts = len(left_out)
        self.out_of_bag_ = np.full_like(D, np.nan)
        nodes, offset = [], 0
        for number, held in enumerate(left_out):
            with np.errstate(over="ignore", invalid="ignore"):  # scikit-learn adds up all features, however large
                forest = self._grow(np.delete(table, held, axis=0), np.delete(D, held, axis=0), number, n_parts, random)
                if len(held):
                    self.out_of_bag_[held] = forest.predict(table[held])
            for tree in forest.estimators_:
                part = tree.tree_
                child = np.stack([part.children_left, part.children_right], 1)
                child = np.where(child >= 0, child + offset, -1)
                nodes.append((child, part.feature, part.threshold, part.value[:, :, 0]))
                offset += part.node_count
        self.children_ = np.concatenate([node[0] for node in nodes]).astype(np.int64)
        self.feature_ = np.concatenate([node[1] for node in nodes]).astype(np.int64)
        self.threshold_ = np.concatenate([node[2] for node in nodes])
        self.value_ = np.concatenate([node[3] for node in nodes])
        sizes = [len(node[0]) for node in nodes]
        self.roots_ = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)

    def leaf_shares(self) -> tuple[Array, Index]:
        """The different shares that leaves hold (U, L), and which of them each leaf has, leaves in order of nodes.

        Most leaves hold one training row, and every tree has a leaf for it.
        """
        values = np.ascontiguousarray(self.value_[self.children_[:, 0] < 0])
        rows = values.view(np.dtype((np.void, values.dtype.itemsize * values.shape[1]))).ravel()
        _, first, which = np.unique(rows, return_index=True, return_inverse=True)
        return values[first], which.reshape(-1)

    def stored(self) -> dict[str, Any]:
        """The forest in a tenth of its room: thresholds as walks compare them, equal shares of leaves once."""
        entries = super().stored()
        is_leaf = self.children_[:, 0] < 0
        inner = np.flatnonzero(~is_leaf)  # scikit-learn puts a left child behind its parent
        for name in ("children_", "feature_", "threshold_", "value_"):
            del entries[name]
        shares, which = self.leaf_shares()
        return entries | {
            "leaf_bits_": np.packbits(is_leaf),
            "leaf_shares_": shares,
            "leaf_which_": smallest_whole(which),
            "inner_right_": smallest_whole(self.children_[inner, 1]),
            "inner_feature_": smallest_whole(self.feature_[inner]),
            "inner_threshold_": self.walk().threshold[inner],
        }

    def restore(self) -> None:
        """The arrays of a fit from those of :meth:`stored`; predictions are the same to the last bit."""
        names = ("bits", "shares", "which"), ("right", "feature", "threshold")
        short = [f"leaf_{name}_" for name in names[0]] + [f"inner_{name}_" for name in names[1]]
        try:
            bits, shares, which, right, feature, threshold = (self.__dict__.pop(name) for name in short)
            is_leaf = np.unpackbits(bits)[: len(which) + len(right)].astype(bool)
            inner = np.flatnonzero(~is_leaf)
            self.children_ = np.full((len(is_leaf), 2), -1, dtype=np.int64)
            self.children_[inner, 0], self.children_[inner, 1] = inner + 1, right
            self.feature_ = np.full(len(is_leaf), -2, dtype=np.int64)
            self.feature_[inner] = feature
            self.threshold_ = np.full(len(is_leaf), -2.0)
            self.threshold_[inner] = threshold
            self.value_ = np.zeros((len(is_leaf), shares.shape[1]))
            self.value_[is_leaf] = shares[which]
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise ModelFileError(f"the arrays of a forest do not fit each other ({error}).") from None

    def _grow(self, X: Any, D: Array, number: int, n_parts: int, random: np.random.RandomState) -> Any:
        """One part of the forest; the parts differ by at most one tree."""
        n_trees = max(1, (self.n_trees + n_parts - 1 - number) // n_parts)
        max_features: Any = self.max_features
        if max_features == "auto":
            width = X.shape[1]
            max_features = max(round(width**0.5), min((width + 2) // 3, 32), 1)
        return ExtraTreesRegressor(
            n_trees, max_features=max_features, min_samples_leaf=self.min_leaf, random_state=random
        ).fit(X, D)

    def _predict(self, X: Array) -> Array:
        out = np.empty((len(X), self.n_labels_))
        table = _single(X)
        size = max(1, BLOCK_WALKS // len(self.roots_))
        for start in range(0, len(X), size):
            leaves = self._leaves(table[start : start + size])
            out[start : start + size] = self.value_[leaves].sum(0) / len(self.roots_)
        return out

    def leaves(self, X: Array, n_trees: int | None = None) -> Index:
        """The node in which each row ends, of the first trees or of all: encoded features (N, d) -> (trees, N)."""
        return self._leaves(_single(X), n_trees)

    def _leaves(self, rows: Any, n_trees: int | None = None) -> Any:
        """The leaf of every tree that each row reaches (trees, rows), all of them a level at a time."""
        walk, n_rows, roots = self.walk(), len(rows), self.roots_[:n_trees]
        flat = np.ascontiguousarray(rows).ravel()
        first = np.tile(np.arange(0, rows.size, rows.shape[1], dtype=walk.whole), len(roots))
        leaves = np.repeat(roots.astype(walk.whole), n_rows)
        at, moving = leaves, np.arange(len(leaves))
        while len(moving):
            for _ in range(LEVELS):
                right = np.take(flat, np.take(walk.feature, at) + first) > np.take(walk.threshold, at)
                at = np.take(walk.child, 2 * at + right)
            leaves[moving] = at
            goes_on = ~np.take(walk.is_leaf, at)
            at, first, moving = at[goes_on], first[goes_on], moving[goes_on]
        return leaves.reshape(len(roots), n_rows)

    def walk(self) -> Walk:
        """The fitted forest as walks down its trees read it, made once."""
        walk = _walks.get(self)
        if walk is None or walk.made_of is not self.children_:
            walk = _walks[self] = Walk.of(self.children_, self.feature_, self.threshold_)
        return walk


class Walk(NamedTuple):
    """Nodes for a walk that need not ask whether it has ended: a leaf leads to itself.

    Attributes:
        child: left and right child of every node, one after the other.
        feature: each node asks about, 0 for a leaf.
        threshold: the largest float32 that still goes left.
        is_leaf: which nodes are leaves.
        whole: type of node and feature numbers; half as wide, twice as fast.
        made_of: the children that this was made of.
    """

    child: Any
    feature: Any
    threshold: Any
    is_leaf: Any
    whole: type[np.signedinteger[Any]]
    made_of: Any

    @classmethod
    def of(cls, children: Any, feature: Any, threshold: Any) -> Walk:
        """The tables of nodes with children (N, 2), -1 for a leaf's, features and thresholds (N,)."""
        whole: type[np.signedinteger[Any]] = np.int32 if len(children) < 1 << 30 else np.int64
        is_leaf = children[:, 0] < 0
        child = np.where(is_leaf[:, None], np.arange(len(children))[:, None], children).astype(whole).ravel()
        below = threshold.astype(np.float32)
        above = below > threshold
        below[above] = np.nextafter(below[above], np.float32(-np.inf))
        below[is_leaf] = np.inf
        return cls(child, np.where(is_leaf, 0, feature).astype(whole), below, is_leaf, whole, children)


#: Kept outside the learners, whose attributes no prediction may change.
_walks: WeakKeyDictionary[TreesLDL, Walk] = WeakKeyDictionary()


def smallest_whole(numbers: Any) -> Any:
    """Whole numbers in the narrowest signed type that holds them all.

    >>> smallest_whole(np.array([0, 300])).dtype
    dtype('int16')
    """
    largest = int(numbers.max(initial=0))
    return numbers.astype(
        next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if largest <= np.iinfo(kind).max)
    )


def _single(X: Array) -> Any:
    """Features in float32, on which trees find their thresholds; what is too large for it is as large as can be."""
    largest = float(np.finfo(np.float32).max)
    return np.clip(X, -largest, largest).astype(np.float32)
