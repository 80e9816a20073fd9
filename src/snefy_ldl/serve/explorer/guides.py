"""Guides as arrays: a linear one as its coefficients, trees as splits and leaves in the order they are visited."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.serve.explorer.pack import Pack
from snefy_ldl.training.guides import Guides, Mover

__all__ = ["export_guides", "export_mover", "guide_numbers"]


def guide_numbers(guides: Guides) -> int | None:
    """How many numbers the guides take in a page.

    Args:
        guides: fitted.

    Returns:
        The number, or None where one of them is not the library's own.
    """
    total = 0
    for learner in guides.learners:
        if type(learner) is SABFGS:
            total += learner.coef_.size
        elif type(learner) is TreesLDL:
            total += 2 * len(learner.feature_)
        else:
            return None
    if guides.mover is not None and guides.mover.trees is not None:
        total += 2 * len(guides.mover.trees.feature_)
    return total


def export_guides(guides: Guides, pack: Pack) -> dict[str, Any]:
    """What the script needs of guides that are the library's own.

    Args:
        guides: fitted.
        pack: takes the arrays.

    Returns:
        Floor and learners.
    """
    entries = [_linear(one, pack) if type(one) is SABFGS else _trees(one, pack) for one in guides.learners]
    return {"floor": guides.floor, "learners": entries}


def export_mover(mover: Mover, pack: Pack) -> dict[str, Any]:
    """What the script needs to move a law: the guides' part in the centre, and the odds of presence.

    Args:
        mover: fitted.
        pack: takes the arrays.

    Returns:
        Weights of the guides; base, slope and trees where labels may be absent, else None; the logarithm of what the
        guides' shares were divided by, or None.
    """
    return {
        "weights": mover.weights.tolist(),
        "base": None if mover.base is None else mover.base.tolist(),
        "slope": mover.slope,
        "trees": None if mover.trees is None else _trees(mover.trees, pack),
        "logCentre": None if mover.log_centre is None else mover.log_centre.tolist(),
    }


def _linear(learner: Any, pack: Pack) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kind": "linear",
        "coef": pack.add(learner.coef_),
        "intercept": pack.add(learner.intercept_),
    }
    if learner.standardize:
        entry["mean"], entry["inverse"] = pack.add(learner.feature_mean_), pack.add(learner.feature_inverse_scale_)
    return entry


def _trees(learner: Any, pack: Pack) -> dict[str, Any]:
    """Nodes stand as a walk visits them, left before right: children need no numbers, leaves only their order.

    A threshold is rounded down to float32, on which features are compared: ``x > t`` is then the same for every x.
    Most leaves hold one training row, so their shares are kept once.
    """
    order, children = _walk(learner.children_, learner.roots_), learner.children_[:, 0]
    inner = children[order] >= 0
    feature = np.where(inner, learner.feature_[order] + 1, 0)  # 0 is a leaf
    exact = learner.threshold_[order][inner]
    single = exact.astype(np.float32)
    single = np.where(single.astype(np.float64) > exact, np.nextafter(single, np.float32(-np.inf)), single)
    shares, which = np.unique(learner.value_[order][~inner], axis=0, return_inverse=True)
    return {
        "kind": "trees",
        "trees": len(learner.roots_),
        "feature": pack.add(feature.astype(np.uint8 if feature.max() < 256 else np.int32)),
        "threshold": pack.add(single),
        "leaf": pack.add(which.reshape(-1).astype(np.uint16 if len(shares) < 65536 else np.int32)),
        "shares": pack.add(shares),
    }


def _walk(children: Any, roots: Any) -> Any:
    """Numbers of all nodes, tree after tree, each node before its left branch and that before its right one."""
    order: list[int] = []
    for root in roots:
        stack = [int(root)]
        while stack:
            node = stack.pop()
            order.append(node)
            left, right = children[node]
            if left >= 0:
                stack += [int(right), int(left)]
    return np.array(order)
