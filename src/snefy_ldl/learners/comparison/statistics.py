"""Tests for scores of cross-validation: folds share training rows, and data sets differ in difficulty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError


def corrected_spread(differences: Array, test_to_train: float) -> float:
    """Standard error of a mean over folds that share training rows: ``√((1/k + n_test/n_train) s²)``.

    Args:
        differences: One number per fold, (k,), k >= 2.
        test_to_train: Test rows over training rows of a fold.

    Returns:
        The standard error.

    Example:
        >>> corrected_spread(np.array([1.0, 3.0]), 0.5)
        1.414...
    """
    return math.sqrt((1.0 / len(differences) + test_to_train) * float(np.var(differences, ddof=1)))


def corrected_t_test(first: Any, second: Any, test_to_train: float) -> tuple[float, float]:
    """Corrected resampled t-test of two learners' scores on the same folds, two-sided.

    ``t = mean(a - b) / √((1/k + n_test/n_train) var(a - b))`` with ``k - 1`` degrees of freedom. The plain paired test
    takes folds for independent; they share training rows, and it finds differences where there are none.

    Args:
        first: Scores ``a`` on k folds, (k,).
        second: Scores ``b`` on the same folds, (k,).
        test_to_train: Test rows over training rows of a fold; 1/9 for ten folds.

    Returns:
        ``t`` and the p-value. Equal scores give (0, 1); a difference that never varies gives an infinite ``t``.

    Raises:
        InputError: Fewer than two folds, other numbers of folds, or a score that is not finite.

    References:
        Nadeau, Bengio, Inference for the generalization error, Machine Learning 52, 2003; Bouckaert, Frank,
        Evaluating the replicability of significance tests for comparing learning algorithms, PAKDD 2004.

    Example:
        >>> t, p = corrected_t_test([1.0, 2.0, 3.0], [0.5, 1.0, 2.5], 1 / 2)
        >>> round(t, 3), round(p, 3)
        (2.53, 0.127)
    """
    a, b = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise InputError(f"the test needs two scores of at least two folds; got shapes {a.shape} and {b.shape}.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("a score is not a finite number; compare learners on folds that both could be fitted on.")
    gap = a - b
    mean, error = float(gap.mean()), corrected_spread(gap, test_to_train)
    if error == 0.0:
        return (0.0, 1.0) if mean == 0.0 else (math.copysign(math.inf, mean), 0.0)
    t = mean / error
    return t, float(2.0 * stats.t.sf(abs(t), len(a) - 1))


def holm(p_values: Any) -> Array:
    """p-values of several tests at once, adjusted by Holm's step-down rule.

    Args:
        p_values: (m,); NaN entries are no tests, and stay NaN.

    Returns:
        Adjusted p-values, (m,).

    References:
        Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(len(p), np.nan)
    order = [int(k) for k in np.argsort(p) if not math.isnan(p[k])]
    largest = 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * float(p[k])))
        adjusted[k] = largest
    return adjusted


@dataclass(frozen=True, eq=False)
class FriedmanResult:
    """Result of the Friedman test of several learners on several data sets.

    Args:
        ranks: Mean rank of each learner over the data sets, 1 is best, (k,).
        chi2: Friedman's statistic.
        p_value: Of the statistic of Iman and Davenport, an F with ``k - 1`` and ``(k - 1)(n - 1)`` degrees of freedom.
        critical_difference: Mean ranks further apart than this differ by the Nemenyi test.
        alpha: Level of the Nemenyi test.
        n_sets: Data sets, n.

    Example:
        >>> result = friedman_test([[0.1, 0.2, 0.3]] * 4, higher_is_better=False)
        >>> result.ranks, result.p_value
        (array([1., 2., 3.]), 0.0)
    """

    ranks: Array
    chi2: float
    p_value: float
    critical_difference: float
    alpha: float
    n_sets: int

    def groups(self) -> list[list[int]]:
        """Largest groups of learners whose mean ranks lie within the critical difference.

        Returns:
            Numbers of the learners, by rank; groups of one are left out, and groups within another.
        """
        order = [int(k) for k in np.argsort(self.ranks, kind="stable")]
        groups: list[list[int]] = []
        last_end = 0
        for start, first in enumerate(order):
            end = start + 1
            while end < len(order) and self.ranks[order[end]] - self.ranks[first] <= self.critical_difference:
                end += 1
            if end - start > 1 and end > last_end:
                groups.append(order[start:end])
                last_end = end
        return groups


def critical_difference(n_learners: int, n_sets: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of mean ranks: ``q_α √(k(k+1)/(6n))``.

    Args:
        n_learners: k, at least 2.
        n_sets: n.
        alpha: Level.

    Returns:
        The difference.

    References:
        Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006.

    Example:
        >>> round(critical_difference(5, 30), 3)
        1.114
    """
    q = float(stats.studentized_range.ppf(1.0 - alpha, n_learners, np.inf)) / math.sqrt(2.0)
    return q * math.sqrt(n_learners * (n_learners + 1) / (6.0 * n_sets))


def friedman_test(scores: Any, *, higher_is_better: bool, alpha: float = 0.05) -> FriedmanResult:
    """Whether learners differ over several data sets, by their ranks.

    Args:
        scores: Mean score of each learner on each data set, (n, k).
        higher_is_better: Direction of the score.
        alpha: Level of the critical difference.

    Returns:
        Mean ranks, the test, and the critical difference.

    Raises:
        InputError: Fewer than two data sets or learners, or a score that is not finite.

    References:
        Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006; Iman, Davenport,
        Approximations of the critical region of the Friedman statistic, 1980.

    Example:
        >>> friedman_test([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], higher_is_better=True).ranks.round(2)
        array([1.67, 1.33])
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise InputError(f"the Friedman test needs two data sets and two learners at least; got shape {table.shape}.")
    if not np.isfinite(table).all():
        raise InputError("a score is not a finite number; leave out the learner or the data set that failed.")
    n, k = table.shape
    by_set = stats.rankdata(-table if higher_is_better else table, axis=1)
    ranks = by_set.mean(axis=0)
    total = float(((by_set - (k + 1) / 2) ** 2).sum())  # less than its largest value where there are ties
    chi2 = 0.0 if total == 0.0 else (k - 1) * n**2 * float(((ranks - (k + 1) / 2) ** 2).sum()) / total
    room = n * (k - 1) - chi2
    if chi2 == 0.0:
        p = 1.0
    else:
        p = 0.0 if room <= 1e-12 * n else float(stats.f.sf((n - 1) * chi2 / room, k - 1, (k - 1) * (n - 1)))
    return FriedmanResult(ranks, chi2, p, critical_difference(k, n, alpha), alpha, n)
