"""Rows in groups: how far each group lies from where its features put it.

With r_i the log-ratio residual of row i from a prediction that has not seen its group,

    r_i = μ + u_g(i) + e_i,     u_g ~ N(0, T),  e_i ~ N(0, S).

A change of basis V with ``VᵀSV = 1`` and VᵀTV diagonal makes directions of it that do not depend on each other, each
with one ratio of variances. Those are settled by maximum marginal likelihood (empirical Bayes), and directions in which
groups do not differ are dropped.

A model of rows of known groups sees further columns: the posterior mean of the effect of a row's group, in training
by the other rows of that group, and the part of the variance between groups that is still open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.datasets.grouping import Groups
from snefy_ldl.training.guides import Guides, guides_mean
from snefy_ldl.training.policy import POLICY
from snefy_ldl.training.prepare import Task, prepare_guides

#: Logarithms of the smallest and largest ratio of variances between and within groups.
RATIO_RANGE = (-9.0, 6.0)
#: Part of the mean variance that every direction is given, so that residuals of a constant share have a scale.
RIDGE = 1e-3
#: A row of whose groups a larger part of the variance is open is one of unknown groups.
NOTHING_KNOWN = 1.0 - 1e-9
#: Why a fit has no group effects.
NOT_WANTED, NO_DIFFERENCE = "not asked for, or not available for this fit", "groups do not differ by more than chance"


# -- the mixed model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixedModel:
    """The fitted linear mixed model.

    Args:
        mean: ``μ`` (L,).
        weights: from residuals to directions (L, q).
        directions: back, from directions to log-ratios (L, q); the within-group variance of each is one.
        ratios: variance of the effects, in units of the variance within groups (q,).
        within: ``S`` (L, L).
    """

    mean: Array
    weights: Array
    directions: Array
    ratios: Array
    within: Array

    def scores(self, residuals: Array) -> Array:
        """Residuals (N, L) in the directions of the effects (N, q)."""
        return np.matmul(residuals - self.mean, self.weights)

    def covariance(self) -> Array:
        """``T`` (L, L): covariance of the effects as shifts of log-ratios."""
        return np.matmul(self.directions * self.ratios, self.directions.T)


def group_sums(values: Array, codes: Index, n_groups: int) -> tuple[Array, Array]:
    """Sums of the rows' values (N, q) in each group (G, q), and rows of each (G,); codes of -1 are no group."""
    known, sums = codes >= 0, np.zeros((n_groups, values.shape[1]))
    np.add.at(sums, codes[known], values[known])
    return sums, np.bincount(codes[known], minlength=n_groups).astype(float)


def posterior_means(sums: Array, counts: Array, ratios: Array) -> Array:
    """Posterior means of the groups' effects.

    Args:
        sums: of the scores of each group's rows (G, q), with variance one within groups.
        counts: these rows (G,).
        ratios: prior variances (q,).

    Returns:
        (G, q).

    Example:
        >>> posterior_means(np.array([[4.0], [0.0]]), np.array([2.0, 0.0]), np.array([1.0])).ravel().round(3)
        array([1.333, 0.   ])
    """
    return sums * ratios / (1.0 + counts[:, None] * ratios)


def fit_mixed_model(residuals: Array, codes: Index, n_groups: int, seed: int = 0) -> MixedModel | None:
    """Fit the linear mixed model.

    Args:
        residuals: log-ratio residuals (N, L), each row summing to zero.
        codes: number of each row's group (N,), -1 where it is not known.
        n_groups: G.
        seed: of shuffled rows, by which it is seen how much groups differ by chance.

    Returns:
        The model, or None if groups do not differ by more than chance, or are too few.
    """
    if (np.bincount(codes[codes >= 0], minlength=1) >= 2).sum() < 2:
        return None
    mean = residuals.mean(0)
    centred = residuals - mean
    random = np.random.default_rng(seed)
    shuffled = [
        _directions(centred[random.permutation(len(centred))], codes, n_groups, 1)[1] for _ in range(POLICY.shuffles)
    ]
    found, gains = _directions(centred, codes, n_groups, POLICY.most_directions)
    kept = gains > POLICY.least_ratio + max(float(gain.max()) for gain in shuffled)
    if not kept.any():
        return None
    return MixedModel(mean, found.weights[:, kept], found.directions[:, kept], found.ratios[kept], found.within)


def _directions(centred: Array, codes: Index, n_groups: int, most: int) -> tuple[MixedModel, Array]:
    """The directions in which groups differ most, each with its best ratio, and twice the log likelihood they gain."""
    n_rows, n_labels = centred.shape
    sums, counts = group_sums(centred, codes, n_groups)
    n, means = counts[counts > 0], sums / np.maximum(counts, 1.0)[:, None]
    left = np.where((codes >= 0)[:, None], centred - means[codes], centred)
    # the analysis of variance
    within = left.T @ left / max(1, n_rows - min(len(n), int(0.9 * n_rows)))
    typical = (n.sum() - (n**2).sum() / n.sum()) / max(1.0, len(n) - 1.0)
    between = ((means * counts[:, None]).T @ means / max(1.0, len(n) - 1.0) - within) / max(typical, 1.0)
    scale = within + (RIDGE * np.trace(within) / n_labels + 1e-12) * np.eye(n_labels)
    values, basis = eigh(between, scale)
    basis = basis[:, np.argsort(-values)[: min(most, n_labels - 1)]]
    squares = ((centred @ basis) ** 2).sum(0)
    parts = [_best_ratio(n_rows, *one, counts) for one in zip(squares, (sums @ basis).T)]
    ratios, gains, variances = (np.array(part) for part in zip(*parts))
    deviations = np.sqrt(variances)
    model = MixedModel(np.zeros(n_labels), basis / deviations, (scale @ basis) * deviations, ratios, within)
    return model, gains


def _best_ratio(n_rows: int, squares: float, sums: Array, counts: Array) -> tuple[float, float, float]:
    """Ratio of variances of one direction, twice the log likelihood it gains, and the variance within groups.

    Args:
        n_rows: rows.
        squares: sum of their squared scores.
        sums: of the scores of each group (G,).
        counts: rows of each group (G,).
    """

    def variance(log_ratio: float) -> float:
        ratio = np.exp(log_ratio)
        return max((squares - float((ratio * sums**2 / (1.0 + counts * ratio)).sum())) / n_rows, 1e-300)

    def loss(log_ratio: float) -> float:
        return 0.5 * (n_rows * np.log(variance(log_ratio)) + float(np.log1p(counts * np.exp(log_ratio)).sum()))

    best = float(minimize_scalar(loss, bounds=RATIO_RANGE, method="bounded", options={"xatol": 0.01}).x)
    return float(np.exp(best)), 2.0 * (loss(RATIO_RANGE[0]) - loss(best)), variance(best)


# -- effects ---------------------------------------------------------------------------------------------------------


def log_residuals(table: Array, labels: Array, pull: float) -> Array:
    """Log-ratios between shares (N, L) and the mean of some learners' predictions, centred logs (N, B L).

    Args:
        table: the predictions.
        labels: the shares.
        pull: part of the mean that is mixed into the shares; above zero where shares may be zero. Small ratios stay
            what they are.

    Returns:
        (N, L); rows sum to zero.
    """
    mean = guides_mean(table, labels.shape[1])
    ratios = (np.log((1.0 - pull) * labels + pull * mean) - np.log(mean)) / (1.0 - pull)
    return ratios - ratios.mean(1, keepdims=True)


def group_columns(codes: Index, means: Array, counts: Array, ratios: Array) -> Array:
    """What a model sees of groups: posterior means in units of the prior's deviation, and what part of it is open.

    Args:
        codes: of the rows' groups (N,), -1 where one is not known.
        means: posterior means of the groups' effects (G, q).
        counts: rows behind them (G,).
        ratios: prior variances (q,).

    Returns:
        (N, q + 1); a row of an unknown group has zeros, and a last entry of one.
    """
    known, columns = codes >= 0, np.zeros((len(codes), len(ratios) + 1))
    left = (ratios / (1.0 + counts[:, None] * ratios)).sum(1) / ratios.sum()
    columns[known, :-1] = means[codes[known]] / np.sqrt(ratios)
    columns[:, -1] = np.where(known, left[codes], 1.0)
    return columns


def side_by_side(X: Any, columns: Array) -> Any:
    """Features (N, d) and further columns side by side; sparse where X is."""
    return sp.hstack([X, columns]).tocsr() if sp.issparse(X) else np.hstack([X, columns])


@dataclass(frozen=True)
class GroupEffects:
    """Estimated effects of groups of rows.

    Args:
        model: the linear mixed model.
        levels: name of the column of groups, (1,).
        names: of the groups, one tuple (G,).
        means: posterior means of their effects, in the directions of the model (G, q).
        counts: rows that each group had (G,).
        guides: point learners from whose predictions residuals are taken.
        pull: part of the prediction that is mixed into shares before their logarithm, so that a zero has one.
        default: code of the group of rows that come without one, after :meth:`~snefy_ldl.GroupedLDL.adapt`.
    """

    model: MixedModel
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    means: Array
    counts: Array
    guides: Guides
    pull: float
    default: int | None = None

    def columns(self, groups: Groups | None, n_rows: int) -> tuple[Array, Mask]:
        """What a model sees of the groups of some rows (N, q + 1), and whether they are known (N,)."""
        default = -1 if self.default is None else self.default
        codes = np.full(n_rows, default) if groups is None else groups.renamed(self.names[0])
        columns = group_columns(codes, self.means, self.counts, self.model.ratios)
        return columns, columns[:, -1] < NOTHING_KNOWN

    def learn(self, X: Any, labels: Array, name: str) -> GroupEffects:
        """These effects with one more group, from a few of its rows.

        Args:
            X: features (n, d).
            labels: label distributions (n, L).
            name: of the group.

        Returns:
            The effects; the new group has the last number.
        """
        scores = self.model.scores(log_residuals(self.guides.features(X), labels, self.pull))
        sums, counts = group_sums(scores, np.zeros(len(scores), dtype=np.intp), 1)
        return replace(
            self,
            names=((*self.names[0], name),),
            means=np.vstack([self.means, posterior_means(sums, counts, self.model.ratios)]),
            counts=np.append(self.counts, counts),
        )

    def variance_shares(self) -> Array:
        """Shares of the variance of log-ratios, given the features, between groups and within groups.

        Returns:
            (2, L); shares of one label sum to one.
        """
        between = self.model.ratios @ self.model.directions.T**2
        left = np.maximum(np.diag(self.model.within), (self.model.directions**2).sum(1))
        return np.stack([between, left]) / (between + left)


# -- the fit ---------------------------------------------------------------------------------------------------------


def measure_effects(task: Task) -> tuple[GroupEffects, Array] | None:
    """Measure how much the groups of a task's rows differ, by guides that predict rows of groups they have not seen.

    Args:
        task: with groups and guides.

    Returns:
        The effects, and what a model sees of each row's group by other rows (N, q + 1); None if groups do not differ by
        more than chance.
    """
    guided, groups = prepare_guides(task), task.data.groups
    assert groups is not None
    labels, codes, n_groups = guided.labels, groups.codes, len(groups.names)
    pull = POLICY.pull[bool((labels <= 0.0).any())]
    residuals = log_residuals(guided.table, labels, pull)
    model = fit_mixed_model(residuals, codes, n_groups, task.seed_of(15) % 2**31)
    if model is None:
        return None
    scores = model.scores(residuals)
    sums, counts = group_sums(scores, codes, n_groups)
    means = posterior_means(sums, counts, model.ratios)
    effects = GroupEffects(model, (groups.column,), (groups.names,), means, counts, guided.guides, pull)
    return effects, _columns_without_own(model, scores, codes, n_groups, task.seed_of(16))


def _columns_without_own(model: MixedModel, scores: Array, codes: Index, n_groups: int, seed: int) -> Array:
    """What a model sees of each row's group, by the rows of the other folds (N, q + 1)."""
    fold = np.random.default_rng(seed).integers(0, POLICY.folds, len(scores))
    columns = np.empty((len(scores), scores.shape[1] + 1))
    for k in range(POLICY.folds):
        own, used = fold == k, fold != k
        sums, counts = group_sums(scores[used], codes[used], n_groups)
        columns[own] = group_columns(codes[own], posterior_means(sums, counts, model.ratios), counts, model.ratios)
    return columns
