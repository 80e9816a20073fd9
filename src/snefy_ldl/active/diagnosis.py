"""Whether choosing rows will help: a look at the labelled rows and the pool before labelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import rel_entr
from scipy.stats import spearmanr

from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.active.batches import lcmd
from snefy_ldl.active.kernels import has_disagreement, make_kernel
from snefy_ldl.active.pool import Pool, dense_table
from snefy_ldl.datasets.grouping import group_folds, read_groups, split_rows
from snefy_ldl.errors import InputError
from snefy_ldl.learners.trees import TreesLDL

#: Labelled rows below which nothing is estimated.
FEWEST_ROWS = 20
#: Trees of the forests that stand in for the model, and the folds in which they are fitted.
TREES, FOLDS = 50, 5
#: Predicted shares are lifted here before their logarithm.
SHARE_FLOOR = 1e-12
#: Rows of the pool that are looked at, and rows of the batch that is tried on them.
POOL_SAMPLE, BATCH = 2000, 64
#: Choosing is recommended if labels still help (the error falls by this share when they double; forests fall by some
#: hundredths on noise, too) and the score is at least so large. Both were set on five splits of ten pools
#: (``benchmarks/active_study.py``); other splits report.
LEAST_SLOPE, LEAST_SCORE = 0.05, 0.15


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The estimated benefit of choosing rows, from labelled rows and a pool.

    Args:
        helps: whether choosing rows is recommended.
        sentence: the same in plain words.
        slope: share by which the error falls when the labels double, at the end of the learning curve.
        foreseen: rank correlation of the errors with the trees' disagreement; near 0 the errors are noise, which no
            choice of rows removes. It ranks pools by the measured gain of choosing rows.
        redundancy: share of the squared distance to the nearest labelled row that a chosen batch saves against a random
            one; large if the pool repeats itself in some places and is thin in others. NaN without a pool or kernel.
        sizes: labelled rows at each point of the learning curve (T,).
        errors: mean KL divergence there, of cross-fitted predictions (T,).

    Example:
        >>> print(Diagnosis(False, "random is as good here.", 0.0, 0.0, 0.0, np.ones(1), np.ones(1)))
        random is as good here.
    """

    helps: bool
    sentence: str
    slope: float
    foreseen: float
    redundancy: float
    sizes: Array
    errors: Array

    def __str__(self) -> str:
        return self.sentence


def will_it_help(model: Any, X: Any, D: Any, X_pool: Any = None, random_state: Any = 0) -> Diagnosis:
    """Whether choosing rows will save labels, from the rows labelled so far.

    Forests on parts of the labelled rows stand in for the model, so that the answer takes seconds.

    Args:
        model: a fitted model; it is not changed.
        X: labelled rows (N, d), as the model takes them; parts of ``in_groups(X, groups)`` are made of whole groups.
        D: their label distributions (N, L).
        X_pool: unlabelled rows, as for :func:`~snefy_ldl.active.strategy`, or None.
        random_state: seed.

    Returns:
        The diagnosis; ``print`` shows its sentence.

    Raises:
        InputError: there are fewer than 20 labelled rows, or they are not what they must be.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=300, random_state=0)
        >>> model = SnefyLDL(guides=None, epochs=2, random_state=0).fit(city.X[:60], city.D[:60])
        >>> will_it_help(model, city.X[:60], city.D[:60]).sizes
        array([12., 24., 48.])
    """
    random = numpy_random(random_state)
    rows = as_rows(X)
    shares = check_distributions(D, n_rows=count_rows(rows), model=model)[0]
    if len(shares) < FEWEST_ROWS:
        raise InputError(f"will_it_help needs at least {FEWEST_ROWS} labelled rows; got {len(shares)}.")
    encode = getattr(model, "encode", None)
    features, groups = split_rows(rows)
    table = dense_table(features if encode is None else encode(rows), "X")
    first = None if groups is None else read_groups(groups, len(shares)).first
    sizes, errors, residuals, disagreement = _learning_curve(table, shares, random, first)
    slope = float(1.0 - (errors[-1] / errors[0]) ** (1.0 / np.log2(sizes[-1] / sizes[0])))
    sizes_of_errors = (residuals**2).sum(axis=1)
    varied = np.ptp(disagreement) > 0.0 and np.ptp(sizes_of_errors) > 0.0
    foreseen = float(spearmanr(disagreement, sizes_of_errors)[0]) if varied else 0.0
    helps = bool(slope >= LEAST_SLOPE and foreseen >= LEAST_SCORE)
    redundancy = float("nan") if X_pool is None else _redundancy(model, rows, Pool(X_pool, verbose=False), random)
    return Diagnosis(helps, _sentence(helps, slope, foreseen, len(shares)), slope, foreseen, redundancy, sizes, errors)


def _learning_curve(
    table: Array, shares: Array, random: np.random.RandomState, groups: Index | None
) -> tuple[Array, Array, Array, Array]:
    """Numbers of rows, the error of forests on so many of them, and each row's errors and the trees' disagreement."""
    n = len(shares)
    if groups is None:
        folds = np.array_split(random.permutation(n), FOLDS)
    else:
        fold = group_folds(groups, FOLDS, np.random.default_rng(random.randint(2**31 - 1)))
        folds = [np.flatnonzero(fold == k) for k in range(int(fold.max()) + 1)]
    most = n - max(len(test) for test in folds)
    sizes = np.array([most // 4, most // 2, most])
    errors, residuals, disagreement = np.zeros(len(sizes)), np.zeros_like(shares), np.zeros(n)
    for test in folds:
        train = random.permutation(np.setdiff1d(np.arange(n), test))
        for k, size in enumerate(sizes):
            part = train[:size]
            forest = TreesLDL(TREES, random_state=int(random.randint(2**31 - 1))).fit(table[part], shares[part])
            predicted = forest.value_[forest.leaves(table[test])]  # (trees, rows, L)
            mean = predicted.mean(axis=0)
            errors[k] += rel_entr(shares[test], np.maximum(mean, SHARE_FLOOR)).sum() / n
        residuals[test] = shares[test] - mean
        disagreement[test] = predicted.var(axis=0).sum(axis=1)
    return sizes.astype(np.float64), errors, residuals, disagreement


def _redundancy(model: Any, labeled: Any, pool: Pool, random: np.random.RandomState) -> float:
    """Share of the squared distance to the nearest labelled row that a chosen batch saves against a random one."""
    if not has_disagreement(model, pool.first()):
        return float("nan")
    kernel, n_pool = make_kernel("auto", model, pool.first(), random), pool.count()
    Z = kernel.features(pool.take(np.sort(random.choice(n_pool, min(POOL_SAMPLE, n_pool), replace=False))))
    known, batch = kernel.features(labeled), max(1, min(BATCH, len(Z) // 4))

    def left(chosen: Any) -> float:
        return float(lcmd(Z, 1, np.concatenate([known, Z[chosen]]))[1].mean())

    by_chance = np.mean([left(random.choice(len(Z), batch, replace=False)) for _ in range(5)])
    return float(1.0 - left(lcmd(Z, batch, known)[0]) / by_chance) if by_chance > 0.0 else 0.0


def _sentence(helps: bool, slope: float, foreseen: float, n_rows: int) -> str:
    if slope < LEAST_SLOPE:
        return f"random is as good here: doubling the labels lowers the error by {max(slope, 0.0):.0%}, on any rows."
    if helps:
        return (
            'choosing rows should pay: use query("auto"). Doubling the labels lowers the error by '
            f"{slope:.0%}, and the model foresees on which rows it errs (rank correlation {foreseen:.2f})."
        )
    more = max(50, round(n_rows, -1 if n_rows < 500 else -2))
    return (
        f"random is as good here; label {more} more at random first. The model does not foresee on which rows it errs "
        f"(rank correlation {foreseen:.2f})."
    )
