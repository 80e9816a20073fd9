"""Effects from the rows themselves: an additive regression with products, fitted again to resampled rows.

An ensemble's members have seen the same rows, and a flexible model shrinks uncertain effects, so neither the members'
disagreement nor refits of the model give intervals that contain the true effect as often as they state. A regression
of what was observed (shares, or which of two is larger, or their log-ratio) on a quadratic spline of every column, with
products of two columns if there are enough rows, has little bias; its effect is a weighted sum of its coefficients, and
resampling rows, or whole groups, gives the spread of that sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.datasets.cells import cell_numbers
from snefy_ldl.datasets.grouping import read_groups, split_rows
from snefy_ldl.explain.features import Table

#: Columns with more distinct values than this get a spline.
FEW_VALUES = 3
#: Rows per function of the columns, at least: for splines, or else straight lines; and for products of two columns.
ROWS_PER_FUNCTION, ROWS_PER_PRODUCT = 3, 8
#: Quantiles at which the curvature of a spline changes, few and many; and rows per function, at least, for many.
SOME_KNOTS: tuple[float, ...] = (0.5,)
MANY_KNOTS, ROWS_PER_KNOT = (0.1, 0.3, 0.5, 0.7, 0.9), 20
#: Products are of values cut at so many standard deviations.
PRODUCT_CLIP = 3.0
#: Rows of a level without which nothing is said of it.
FEWEST_OF_LEVEL = 5
#: Penalty of the squared coefficients, on columns of variance one: no more than what keeps them finite.
PENALTY = 1e-2


class Numbers:
    """The columns of a table as numbers: categories become indicators of their levels, dates days.

    Args:
        table: the rows that say which columns and levels there are; levels of few rows have no indicator.

    Example:
        >>> Numbers(Table(np.array([[1.0, 2.0], [3.0, 4.0]]))).of(np.array([[5.0, 6.0]]))
        array([[5., 6.]])
    """

    def __init__(self, table: Table) -> None:
        self.columns: list[tuple[int, str, list[Any]]] = []
        for feature in map(table.feature, table.used()):
            levels = []
            if feature.kind == "category":
                levels = [level for level in feature.levels() if (feature.cells == level).sum() >= FEWEST_OF_LEVEL]
            self.columns.append((feature.number, feature.kind, levels[1:]))

    def of(self, X: Any) -> Array:
        """The numbers of some rows, (N, d).

        Args:
            X: rows of the table, with other values perhaps; groups of rows are left aside.

        Returns:
            One column per number and date, and one per level but the first.
        """
        X = split_rows(X)[0]
        if not hasattr(X, "iloc"):
            return np.asarray(X, dtype=np.float64)[:, [number for number, _, _ in self.columns]]
        parts: list[Array] = []
        for number, kind, levels in self.columns:
            cells = X.iloc[:, number]
            if kind == "category":
                parts += [np.asarray(cells == level, dtype=np.float64) for level in levels]
            elif kind == "date":
                days = np.asarray(cells, dtype="datetime64[s]").astype(np.float64) / 86_400.0
                parts.append(np.where(np.asarray(cells.isna()), np.nan, days))
            else:
                parts.append(cell_numbers(cells)[0])
        return np.stack(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Design:
    """Functions of the columns of a table of numbers.

    Args:
        mean: Of each column, (d,); it also fills gaps.
        scale: Standard deviation of each column, (d,); 1 for a constant one.
        ends: Smallest and largest value of each column, standardised, (2, d).
        knots: Where the curvature of a spline changes, standardised, (K, d).
        curved: Columns that get a spline.
        products: Whether products of two columns are among the functions.

    Example:
        >>> Design.fit(np.arange(30.0)[:, None]).of(np.array([[3.0], [40.0]])).shape  # constant, line, two curves
        (2, 4)
    """

    mean: Array
    scale: Array
    ends: Array
    knots: Array
    curved: Index
    products: bool

    @classmethod
    def fit(cls, X: Array) -> Design | None:
        """The functions that so many rows can estimate.

        Args:
            X: Columns as numbers, (N, d); NaN is a gap.

        Returns:
            The design; None where even straight lines are too many.
        """
        n, d = X.shape
        mean, scale = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        distinct = np.array([len(np.unique(column[np.isfinite(column)])) for column in X.T])
        curved = np.flatnonzero(distinct > FEW_VALUES)
        places, n_functions = SOME_KNOTS, 1 + d + 2 * len(curved)
        if n < ROWS_PER_FUNCTION * n_functions:
            curved = curved[:0]
            if n < ROWS_PER_FUNCTION * (1 + d):
                return None
        products = n >= ROWS_PER_PRODUCT * (n_functions + d * (d - 1) // 2)
        if n >= ROWS_PER_KNOT * (n_functions + (len(MANY_KNOTS) - 1) * len(curved)):
            places = MANY_KNOTS
        ends, knots = ((np.nanquantile(X, at, axis=0) - mean) / scale for at in ((0.0, 1.0), places))
        return cls(mean, scale, ends, knots, curved, products)

    def of(self, X: Array) -> Array:
        """Values of the functions, (N, k); beyond the rows that they were made for curves continue as lines.

        Args:
            X: Columns as numbers, (N, d).

        Returns:
            The constant, the columns, their curves and their products.
        """
        z = np.where(np.isfinite(X), (X - self.mean) / self.scale, 0.0)
        inside = np.clip(z[:, self.curved], *self.ends[:, self.curved])
        beyond = z[:, self.curved] - inside
        curves = [inside, *(np.maximum(inside - knot, 0.0) for knot in self.knots[:, self.curved])]
        parts = [np.ones((len(z), 1)), z, *(curve**2 + 2.0 * curve * beyond for curve in curves)]
        if self.products:
            cut = np.clip(z, -PRODUCT_CLIP, PRODUCT_CLIP)
            first, second = np.triu_indices(z.shape[1], 1)
            parts.append(cut[:, first] * cut[:, second])
        return np.hstack(parts)


def resample_weights(n_rows: int, random: np.random.Generator, n_refits: int, groups: Any = None) -> Array:
    """How often each row counts when rows, or whole groups, are drawn again with replacement.

    Args:
        n_rows: N.
        random: where the draws come from.
        n_refits: how often, B.
        groups: of the rows, which are then drawn in whole groups of the first level; None draws single rows.

    Returns:
        (B, N).

    Example:
        >>> resample_weights(4, np.random.default_rng(0), 2).sum(axis=1)
        array([4., 4.])
    """
    which = (
        np.arange(n_rows) if groups is None else np.unique(read_groups(groups, n_rows).first, return_inverse=True)[1]
    )
    n_groups = int(which.max()) + 1
    drawn = random.multinomial(n_groups, np.full(n_groups, 1.0 / n_groups), size=n_refits)
    return drawn[:, which].astype(np.float64)


class Refits:
    """Regressions of what was observed on functions of the columns: of all rows, and of rows drawn again.

    Args:
        table: the rows, with their groups where they have some.
        observed: what was observed, (N, Q); rows with NaN are left out.
        n_refits: how often rows, or whole groups, are drawn again.
        random: where the draws come from.

    Attributes:
        design: the functions; None where the columns are too many for the rows.

    Example:
        >>> x = np.arange(30.0)[:, None]
        >>> one = Refits(Table(x), 2.0 * x, 5, np.random.default_rng(0))
        >>> effect, ends = one.interval(x + 1.0, x, 1.0, 0.9)
        >>> effect.round(2)
        array([2.])
    """

    def __init__(self, table: Table, observed: Array, n_refits: int, random: np.random.Generator) -> None:
        self.numbers = Numbers(table)
        known: Mask = np.asarray(np.isfinite(observed).all(axis=1))
        X, y = self.numbers.of(table.X)[known], observed[known]
        self.design = Design.fit(X)
        if self.design is None:
            return
        functions = self.design.of(X)
        penalty = PENALTY * np.eye(functions.shape[1])
        penalty[0, 0] = 0.0
        self.freedom = len(X) - functions.shape[1]
        # resampled rows are fewer distinct ones, so refits vary more than estimates from new rows do
        self.factor = np.sqrt(self.freedom / len(X))
        groups = None if table.groups is None else np.asarray(read_groups(table.groups, len(table)).first)[known]
        if groups is not None:
            self.freedom, self.factor = min(self.freedom, len(np.unique(groups)) - 1), 1.0

        def fit(weight: Array) -> Array:
            weighted = functions * weight[:, None]
            return np.asarray(np.linalg.solve(weighted.T @ functions + penalty, weighted.T @ y), dtype=np.float64)

        self.coefficients = fit(np.ones(len(X)))  # (k, Q)
        self.refitted = np.stack([fit(weight) for weight in resample_weights(len(X), random, n_refits, groups)])

    def interval(self, after: Any, before: Any, stretch: Any, confidence_level: float) -> tuple[Array, Array]:
        """The average effect of other values in the rows, with its interval.

        Args:
            after: rows with the other values.
            before: the rows that they are compared with.
            stretch: what each row's change is divided by.
            confidence_level: strictly between 0 and 1.

        Returns:
            The effects (Q,), and ends ``effect ± t · (standard deviation of the refits)``, (Q, 2).
        """
        assert self.design is not None
        change = self.design.of(self.numbers.of(after)) - self.design.of(self.numbers.of(before))
        average = (change / stretch).mean(axis=0)
        effect = np.asarray(average @ self.coefficients, dtype=np.float64)
        spread = (average @ self.refitted).std(axis=0, ddof=1)
        reach: Array = stats.t.ppf(0.5 + confidence_level / 2, max(self.freedom, 1)) * self.factor * spread
        return effect, np.asarray(np.stack([effect - reach, effect + reach], axis=-1), dtype=np.float64)
