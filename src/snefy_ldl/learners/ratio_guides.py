"""Guides of log-ratios: ridge regression, small networks, and the neighbours that a forest finds.

Trees that grow until a leaf holds few rows find similar rows; averages over them predict
those rows, so one forest serves log-ratios, shares and presence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import minimize
from scipy.special import expit, ndtri
from sklearn.ensemble import ExtraTreesRegressor
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.adam import Adam, one_cycle
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.learners.linear import apply_scale, column_scale
from snefy_ldl.learners.trees import TreesLDL

#: Of outputs and targets, for each row.
Loss = Callable[[Tensor, Tensor], Tensor]
#: Penalties that ridge guides choose from, for features of variance one.
RIDGE_PENALTIES = np.geomspace(1e-3, 1e5, 25)
#: The search, from the largest penalty down, ends where errors are so many times the least.
PAST_BEST = 1.02
#: Weights of rows count as at least this where they divide.
LEAST_WEIGHT = 1e-12
#: Knots of the map from features to normal scores.
SCORE_KNOTS = 200
#: Rows that the forest learns from at most, and directions of its targets that it splits by.
FOREST_ROWS, FOREST_TARGETS = 20_000, 24
#: The small network: hidden units, most passes, steps of a pass, fewest rows of a step, peak rate and weight decay.
NET_HIDDEN, NET_PASSES, NET_STEPS, NET_ROWS, NET_RATE, NET_DECAY = 64, 30, 25, 64, 5e-3, 0.1


@dataclass
class Ridge:
    """Ridge regression on standardised features or on their normal scores, its penalty by leave-one-out errors.

    Args:
        mean: of the features (or scores), (d,).
        inverse: reciprocal standard deviations (d,).
        coef: (d, P).
        intercept: (P,).
        knots: quantiles of the features (knots, d) that normal scores interpolate; None for the features themselves.

    Example:
        >>> X = np.arange(6.0)[:, None]
        >>> Ridge.fit(X, 2.0 * X, np.ones(6), np.arange(6))[0].predict(X).round(2).ravel()
        array([ 0.,  2.,  4.,  6.,  8., 10.])
    """

    mean: Array
    inverse: Array
    coef: Array
    intercept: Array
    knots: Array | None = None

    @classmethod
    def fit(cls, X: Array, z: Array, weights: Array, folds: Index, scores: bool = False) -> tuple[Ridge, Array]:
        """Learn from features and targets, with the penalty under which rows of left-out folds are predicted best.

        A fit without some rows F has the errors ``(I - H_FF)⁻¹ e_F`` there, H the hat matrix and e the errors of the
        fit to all rows, so that one decomposition serves every fold and penalty.

        Args:
            X: features (N, d).
            z: targets (N, P).
            weights: of the rows (N,), with mean one.
            folds: fold of every row (N,).
            scores: whether to see normal scores of the features.

        Returns:
            The fit to all rows, and predictions of every row by fits without its fold (N, P).
        """
        knots = None
        if scores:
            n_knots = min(len(X), SCORE_KNOTS)
            knots = np.quantile(X, (np.arange(n_knots) + 0.5) / n_knots, axis=0)
            X = normal_scores(X, knots)
        mean, inverse = column_scale(X)
        scaled = apply_scale(X, mean, inverse)
        middle, target = np.average(scaled, 0, weights), np.average(z, 0, weights)
        root = np.sqrt(np.maximum(weights, LEAST_WEIGHT))[:, None]
        scaled, gap = root * (scaled - middle), root * (z - target)
        # eigenvectors of the smaller of both products, several times as fast as singular vectors of a wide table
        wide = scaled.shape[1] > len(scaled)
        values, turn = np.linalg.eigh(scaled @ scaled.T if wide else scaled.T @ scaled)
        there = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
        values, turn = values[there], turn[:, there]
        left = turn if wide else scaled @ turn / np.sqrt(values)  # (N, rank)
        turned = left.T @ gap
        members = [np.flatnonzero(folds == fold) for fold in np.unique(folds)]
        best, least, held_out = RIDGE_PENALTIES[-1], np.inf, z
        for penalty in RIDGE_PENALTIES[::-1]:
            part = values / (values + penalty)
            fitted_errors = gap - left @ (part[:, None] * turned)
            errors = np.empty_like(z)
            for rows in members:
                errors[rows] = left_out_errors(left[rows], part, fitted_errors[rows], root[rows], len(z))
            size = float(np.square(errors).mean())
            if size < least:
                best, least, held_out = penalty, size, z - errors / root
            elif size > PAST_BEST * least:
                break
        part = values / (values + best)
        dual = left @ ((part / values)[:, None] * turned)  # (N, P)
        coef = scaled.T @ dual
        return cls(mean, inverse, coef, target - middle @ coef, knots), held_out

    def predict(self, X: Array) -> Array:
        """Targets (N, P)."""
        if self.knots is not None:
            X = normal_scores(X, self.knots)
        return apply_scale(X, self.mean, self.inverse) @ self.coef + self.intercept


def left_out_errors(left: Array, part: Array, errors: Array, root: Array, n_rows: int) -> Array:
    """``(I - H_FF)⁻¹ e_F`` of a ridge fit with an intercept, rows multiplied by the roots of their weights.

    Args:
        left: left singular vectors of the centred features, at the rows F (F, rank).
        part: ``s² / (s² + λ)`` of the singular values s (rank,).
        errors: of the fit to all rows, at F (F, P).
        root: of the weights at F (F, 1), which have mean one.
        n_rows: of the fit.

    Returns:
        Errors at F of the fit without F (F, P).
    """
    if len(left) == n_rows:  # nothing else is left to learn from
        return errors
    if len(left) <= len(part) + 1:
        hat = (left * part) @ left.T + root @ root.T / n_rows
        return np.asarray(np.linalg.solve(np.eye(len(left)) - hat, errors), dtype=np.float64)
    both = np.hstack([root * n_rows**-0.5, left])
    inner = np.diag(np.append(1.0, 1.0 / part)) - both.T @ both
    return np.asarray(errors + both @ np.linalg.solve(inner, both.T @ errors), dtype=np.float64)


def normal_scores(X: Array, knots: Array) -> Array:
    """Features as quantiles of the standard normal distribution (N, d); ties get the middle of their ranks.

    Args:
        X: Features (N, d).
        knots: Quantiles of the training features at ``(k + ½) / n`` (n, d).

    Returns:
        Scores (N, d).

    Example:
        >>> normal_scores(np.array([[2.0]]), np.array([[1.0], [2.0], [3.0]]))
        array([[0.]])
    """
    levels = ndtri((np.arange(len(knots)) + 0.5) / len(knots))
    out = np.empty_like(X)
    for column in range(X.shape[1]):
        values, at = X[:, column], knots[:, column]
        above = np.interp(values, at, levels)
        below = -np.interp(-values, -at[::-1], -levels[::-1])
        out[:, column] = 0.5 * (above + below)
    return out


@dataclass
class Forest:
    """Extremely randomised trees as weights of training rows.

    Args:
        trees: their nodes.
        rows: the training rows of all leaves, leaves in order of nodes.
        counts: how many of them each node holds, zero where it is no leaf.
        n_rows: how many training rows there are.
    """

    trees: TreesLDL
    rows: Index
    counts: Index
    n_rows: int

    @classmethod
    def fit(
        cls, X: Array, target: Array, weights: Array, folds: Index, n_trees: int, seed: int
    ) -> tuple[Forest, sp.csr_matrix]:
        """Grow a part of the trees without each fold.

        Args:
            X: features (N, d).
            target: what splits are judged by (N, T).
            weights: of the rows (N,).
            folds: fold of every row (N,).
            n_trees: trees in all.
            seed: of the trees.

        Returns:
            The forest, and weights (N, N) for the training rows, of trees that did not see them.
        """
        largest = float(np.finfo(np.float32).max)
        table = np.clip(X, -largest, largest).astype(np.float32)
        target = target - target.mean(0)
        if target.shape[1] > FOREST_TARGETS:
            target = target @ np.linalg.eigh(target.T @ target)[1][:, -FOREST_TARGETS:]
        n_rows, width = X.shape
        used = weights > 0.0
        if n_rows > FOREST_ROWS:
            left_out = np.random.default_rng(seed).permutation(n_rows)[FOREST_ROWS:]
            used[left_out] = False
        names = np.unique(folds)
        nodes, leaf_rows, leaf_counts, offset = [], [], [], 0
        places, parts = [], []
        for number, fold in enumerate(names):
            seen = np.flatnonzero(used & (folds != fold))
            held = np.flatnonzero(folds == fold)
            grown = ExtraTreesRegressor(
                max(1, (n_trees + len(names) - 1 - number) // len(names)),
                max_features=max(round(width**0.5), min((width + 2) // 3, 32), 1),
                random_state=seed + number,
            )
            with np.errstate(over="ignore", invalid="ignore"):  # scikit-learn adds up all features, however large
                grown.fit(table[seen], target[seen], weights[seen])
            for estimator in grown.estimators_:
                tree = estimator.tree_
                child = np.stack([tree.children_left, tree.children_right], 1)
                # copies: views would keep all of scikit-learn's trees in memory
                nodes.append((np.where(child >= 0, child + offset, -1), tree.feature.copy(), tree.threshold.copy()))
                at = tree.apply(table)
                order = np.argsort(at[seen], kind="stable")
                counts = np.bincount(at[seen], minlength=tree.node_count)
                leaf_rows.append(seen[order])
                leaf_counts.append(counts)
                starts = np.cumsum(counts) - counts
                mine = counts[at[held]]
                inside = np.arange(mine.sum()) - np.repeat(np.cumsum(mine) - mine, mine)
                places.append((np.repeat(held, mine), seen[order][np.repeat(starts[at[held]], mine) + inside]))
                parts.append(np.repeat(1.0 / mine, mine) / len(grown.estimators_))
                offset += tree.node_count
        trees = TreesLDL(n_trees=n_trees, n_parts=max(2, len(names)))
        sizes = np.array([len(node[0]) for node in nodes])
        trees.children_ = np.concatenate([node[0] for node in nodes]).astype(np.int64)
        trees.feature_ = np.concatenate([node[1] for node in nodes]).astype(np.int64)
        trees.threshold_ = np.concatenate([node[2] for node in nodes])
        trees.value_ = np.ones((offset, 1))
        trees.roots_ = np.cumsum(sizes) - sizes
        trees.n_features_in_, trees.n_labels_, trees.label_names_ = width, 1, None
        to, seen = (np.concatenate(part) for part in zip(*places))
        held_out = sp.csr_matrix((np.concatenate(parts), (to, seen)), shape=(n_rows, n_rows))
        return cls(trees, np.concatenate(leaf_rows), np.concatenate(leaf_counts), n_rows), held_out

    def weigh(self, X: Array) -> sp.csr_matrix:
        """Weights (n, N) of the training rows for new rows."""
        leaves = self.trees.leaves(X)  # (trees, n)
        n_nodes = len(self.counts)
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        values = np.repeat(1.0 / np.maximum(self.counts, 1), self.counts)
        inside = sp.csr_matrix((values, self.rows, starts), shape=(n_nodes, self.n_rows))
        reached = np.full(leaves.size, 1.0 / len(leaves))
        ends = np.arange(0, leaves.size + 1, len(leaves))
        return sp.csr_matrix((reached, leaves.T.ravel(), ends), shape=(len(X), n_nodes)) @ inside


@dataclass
class GuideNet:
    """Networks with one hidden layer, each trained without one fold.

    Args:
        mean: of the inputs (d,).
        inverse: reciprocal standard deviations (d,).
        hidden: (M, d, H).
        hidden_bias: (M, 1, H).
        out: (M, H, L).
        out_bias: (M, 1, L).
    """

    mean: Array
    inverse: Array
    hidden: Array
    hidden_bias: Array
    out: Array
    out_bias: Array

    @classmethod
    def fit(
        cls, X: Array, target: Array, start: Array, weights: Array, folds: Index, seed: int, loss: Loss
    ) -> tuple[GuideNet, Array]:
        """Minimise a loss by AdamW with a one-cycle rate, up to the pass best for the left-out rows.

        Args:
            X: inputs (N, d).
            target: what is predicted (N, L).
            start: outputs of every row before the first step (L,).
            weights: of the rows (N,).
            folds: the network that does not learn from each row (N,).
            seed: of weights and of the order of rows.
            loss: of outputs (..., N, L) and targets (N, L), for each row (..., N).

        Returns:
            The networks, and outputs for every row by the one that did not see it (N, L).
        """
        n_rows, width, n_members = len(X), X.shape[1], int(folds.max()) + 1
        random = torch.Generator().manual_seed(seed)
        mean, inverse = column_scale(X)
        inputs = torch.as_tensor(apply_scale(X, mean, inverse)).float()
        targets, owner = torch.as_tensor(target).float(), torch.as_tensor(folds)
        counts = torch.as_tensor(weights).float()
        learns = (owner != torch.arange(n_members)[:, None]) * counts
        net = [
            torch.randn(n_members, width, NET_HIDDEN, generator=random) / width**0.5,
            torch.zeros(n_members, 1, NET_HIDDEN),
            torch.zeros(n_members, NET_HIDDEN, target.shape[1]),
            torch.as_tensor(start).float().expand(n_members, 1, -1).clone(),
        ]
        for value in net:
            value.requires_grad_()
        adam, step = Adam([(net[::2], NET_RATE, NET_DECAY), (net[1::2], NET_RATE, 0.0)]), 0
        size = min(n_rows, max(NET_ROWS, n_rows // NET_STEPS))
        n_steps = NET_PASSES * (n_rows // size)
        best, least = net, np.inf
        held_out = torch.zeros_like(targets)
        for _ in range(NET_PASSES):
            for rows in torch.randperm(n_rows, generator=random)[: n_rows // size * size].split(size):
                errors = loss(net_outputs(net, inputs[rows]), targets[rows]) * learns[:, rows]
                (n_members * errors.sum() / learns[:, rows].sum().clamp_min(1.0)).backward()
                adam.step(one_cycle(step / n_steps))
                step += 1
            with torch.no_grad():
                outputs = net_outputs(net, inputs)[owner, torch.arange(n_rows)]
                error = float(loss(outputs, targets) @ counts)
            if error < least:
                least, held_out, best = error, outputs, [value.detach().clone() for value in net]
        return cls(mean, inverse, *(value.detach().double().numpy() for value in best)), held_out.double().numpy()

    def predict(self, X: Array) -> Array:
        """Outputs (N, L), averaged over the networks."""
        net = [torch.as_tensor(value) for value in (self.hidden, self.hidden_bias, self.out, self.out_bias)]
        inputs = torch.as_tensor(apply_scale(X, self.mean, self.inverse))
        return net_outputs(net, inputs).mean(0).numpy()


def net_outputs(net: list[Tensor], inputs: Tensor) -> Tensor:
    """Outputs of every network (M, N, L), of inputs (N, d)."""
    hidden, hidden_bias, out, out_bias = net
    inside = torch.relu(torch.matmul(inputs, hidden) + hidden_bias)
    return torch.baddbmm(out_bias, inside, out)


def share_loss(outputs: Tensor, shares: Tensor) -> Tensor:
    """Cross-entropy of shares and the softmax of outputs, over labels."""
    return -(torch.log_softmax(outputs, -1) * shares).sum(-1)


def presence_loss(outputs: Tensor, there: Tensor) -> Tensor:
    """Minus the log probability of which labels are there, outputs being their log odds."""
    return (softplus(outputs) - outputs * there).sum(-1)


def fit_slopes(odds: Array, base: Array, there: Array, weights: Array) -> Array:
    """How far log odds of several sources are to be trusted: the most likely non-negative factors.

    Args:
        odds: what each source adds to the base (S, N, L).
        base: log odds that hold for all rows (L,).
        there: which labels are there (N, L).
        weights: of the rows (N,).

    Returns:
        Factors (S,).
    """

    def loss(slopes: Array) -> tuple[float, Array]:
        total = base + np.tensordot(slopes, odds, 1)
        gap = weights[:, None] * (expit(total) - there)
        return float((weights @ (np.logaddexp(0.0, total) - there * total)).sum()), np.tensordot(odds, gap, 2)

    equal = np.full(len(odds), 1.0 / max(len(odds), 1))
    if not len(odds):
        return equal
    best = minimize(loss, equal, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(odds))
    return np.asarray(best.x, dtype=np.float64)
