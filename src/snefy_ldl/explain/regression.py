"""Effects from the rows themselves: an additive regression with products, and the standard errors of its effects.

An ensemble's members have seen the same rows, and a flexible model shrinks uncertain effects, so neither the members'
disagreement nor refits of the model give intervals that contain the true effect as often as they state. A regression
of the observed labels (shares, or which of two is larger, or their log-ratio) on a quadratic spline of every column,
with products of two columns if there are enough rows, has little bias. Its effect is a weighted sum of coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy import stats
from sklearn.preprocessing import SplineTransformer

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.datasets.cells import cell_numbers
from snefy_ldl.datasets.grouping import read_groups, split_rows
from snefy_ldl.explain.features import Table

#: Columns with more distinct values than this get a spline.
FEW_VALUES = 3
#: Rows per function of the columns, at least: for splines, or else straight lines; and for products of two columns.
ROWS_PER_FUNCTION, ROWS_PER_PRODUCT = 3, 8
#: Knots of a spline, few and many, both ends among them; and rows per function, at least, for many.
SOME_KNOTS, MANY_KNOTS, ROWS_PER_KNOT = 3, 7, 20
#: The outer knots are at these quantiles; a spline is linear beyond them.
ENDS = (0.02, 0.98)
#: Products are of values cut at so many standard deviations.
PRODUCT_CLIP = 3.0
#: Fewest rows of a level.
FEWEST_OF_LEVEL = 5
#: Penalty of the squared coefficients, on columns of variance one: no more than what keeps them finite.
PENALTY = 1e-2
#: A leverage closer to one than this leaves no residual to speak of.
FULL_LEVERAGE = 1e-3


class Numbers:
    """The columns of a table as numbers: categories become indicators of their levels, dates days.

    Args:
        table: the rows whose columns and levels are used; levels of few rows have no indicator.

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
        curved: Whether a column gets a spline, (d,).
        splines: Of the curved columns; None without any.
        products: Whether products of two columns are among the functions.

    Example:
        >>> Design.fit(np.arange(30.0)[:, None]).of(np.array([[3.0], [40.0]])).shape  # constant, line, three splines
        (2, 5)
    """

    mean: Array
    scale: Array
    curved: Mask
    splines: Any
    products: bool

    @classmethod
    def fit(cls, X: Array) -> Design | None:
        """The functions that so many rows can estimate.

        Args:
            X: Columns as numbers, (N, d); NaN is a gap.

        Returns:
            The design; None if even straight lines are too many.
        """
        n, d = X.shape
        mean, scale = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        curved = np.array([len(np.unique(column[np.isfinite(column)])) > FEW_VALUES for column in X.T])
        n_curved = int(curved.sum())
        n_functions = 1 + d + 2 * n_curved
        if n < ROWS_PER_FUNCTION * n_functions:
            curved[:] = False
            if n < ROWS_PER_FUNCTION * (1 + d):
                return None
        products = n >= ROWS_PER_PRODUCT * (n_functions + d * (d - 1) // 2)
        many = n >= ROWS_PER_KNOT * (n_functions + (MANY_KNOTS - SOME_KNOTS) * n_curved)
        splines = None
        if curved.any():
            # between quantiles and even steps: a skewed column needs knots where its values are rare, too
            at = np.linspace(*ENDS, MANY_KNOTS if many else SOME_KNOTS)
            quantiles = np.nanquantile(X[:, curved], at, axis=0)
            even = np.linspace(quantiles[0], quantiles[-1], len(at))
            knots = 0.5 * (quantiles + even)
            splines = SplineTransformer(degree=2, knots=knots, extrapolation="linear", include_bias=False).fit(knots)
        return cls(mean, scale, curved, splines, products)

    def of(self, X: Array) -> Array:
        """Values of the functions, (N, k).

        Args:
            X: Columns as numbers, (N, d).

        Returns:
            The constant, the columns, their splines and their products.
        """
        filled = np.where(np.isfinite(X), X, self.mean)
        z = (filled - self.mean) / self.scale
        parts = [np.ones((len(z), 1)), z]
        if self.splines is not None:
            parts.append(self.splines.transform(filled[:, self.curved]))
        if self.products:
            cut = np.clip(z, -PRODUCT_CLIP, PRODUCT_CLIP)
            first, second = np.triu_indices(z.shape[1], 1)
            parts.append(cut[:, first] * cut[:, second])
        return np.hstack(parts)


class Regression:
    """Least squares of observed labels on functions of the columns, with intervals of average effects.

    Standard errors allow for unequal variances, and for rows of a group that belong together (CR2 of Bell and
    McCaffrey, with their degrees of freedom): residuals of a group are multiplied by ``(I - H)^(-1/2)``, H the group's
    block of the hat matrix, so that few rows or few groups do not make intervals too narrow.

    Args:
        table: the rows, with their groups if they have some.
        observed: the observed labels, (N, Q); rows with NaN are left out.

    Attributes:
        design: the functions; None if the columns are too many for the rows.

    References:
        Bell & McCaffrey, Bias reduction in standard errors for linear regression with multi-stage samples, Survey
        Methodology 28(2), 2002. Imbens & Kolesár, Robust standard errors in small samples, 2016.

    Example:
        >>> x = np.arange(30.0)[:, None]
        >>> effect, ends = Regression(Table(x), 2.0 * x).interval(x + 1.0, x, 0.9)
        >>> effect.round(2)
        array([2.])
    """

    def __init__(self, table: Table, observed: Array) -> None:
        self.numbers = Numbers(table)
        known: Mask = np.asarray(np.isfinite(observed).all(axis=1))
        X, y = self.numbers.of(table.X)[known], observed[known]
        self.design = Design.fit(X)
        if self.design is None:
            return
        F = self.design.of(X)
        penalty = np.diag(np.append(0.0, np.full(F.shape[1] - 1, PENALTY)))
        self.functions = F  # (N, k)
        self.inverse: Array = np.asarray(np.linalg.inv(F.T @ F + penalty), dtype=np.float64)
        self.coefficients = self.inverse @ (F.T @ y)  # (k, Q)
        self.residuals = y - F @ self.coefficients
        groups = np.arange(len(table)) if table.groups is None else read_groups(table.groups, len(table)).first
        _, number = np.unique(np.asarray(groups)[known], return_inverse=True)
        #: Sums rows by group, (G, N).
        self.sums = sp.csr_matrix((np.ones(len(X)), (number, np.arange(len(X)))))
        self.adjusted = _adjusted(F, self.inverse, None if table.groups is None else number)

    def interval(self, after: Any, before: Any, confidence_level: float) -> tuple[Array, Array]:
        """The average effect of other values in the rows, with its interval.

        Args:
            after: rows with the other values.
            before: the rows that they are compared with.
            confidence_level: strictly between 0 and 1.

        Returns:
            The effects (Q,), and ends ``effect ± t · (standard error)``, (Q, 2).
        """
        assert self.design is not None
        change = self.design.of(self.numbers.of(after)) - self.design.of(self.numbers.of(before))
        average = change.mean(axis=0)
        effect = np.asarray(average @ self.coefficients, dtype=np.float64)
        weights = self.adjusted @ (self.inverse @ average)  # (N,)
        error = np.sqrt(np.square(self.sums @ (weights[:, None] * self.residuals)).sum(axis=0))
        # Satterthwaite: of the squares' covariance M if all rows vary alike, (tr M)² / tr M²
        totals = self.sums @ (weights[:, None] * self.functions)  # (G, k)
        size, fitted = self.sums @ weights**2, ((totals @ self.inverse) * totals).sum(axis=1)
        product = self.inverse @ (totals.T @ totals)
        squares = float(((size - fitted) ** 2 - fitted**2).sum() + (product * product.T).sum())
        freedom = max(float((size - fitted).sum()) ** 2 / squares, 1.0) if squares > 0.0 else 1.0
        reach = stats.t.ppf(0.5 + confidence_level / 2, freedom) * error
        return effect, np.asarray(np.stack([effect - reach, effect + reach], axis=-1), dtype=np.float64)


def _adjusted(functions: Array, inverse: Array, groups: Any) -> Array:
    """``(I - H)^(-1/2)`` of each group, applied to its rows of functions, (N, k); None makes each row a group."""
    if groups is None:
        leverage = ((functions @ inverse) * functions).sum(axis=1)
        return functions / np.sqrt(np.maximum(1.0 - leverage, FULL_LEVERAGE))[:, None]
    root = np.linalg.cholesky(inverse)
    adjusted = functions.copy()
    for group in range(int(groups.max()) + 1):
        rows = groups == group
        U, s, _ = np.linalg.svd(functions[rows] @ root, full_matrices=False)
        stretch = 1.0 / np.sqrt(np.maximum(1.0 - s**2, FULL_LEVERAGE)) - 1.0
        adjusted[rows] += (U * stretch) @ (U.T @ functions[rows])
    return adjusted
