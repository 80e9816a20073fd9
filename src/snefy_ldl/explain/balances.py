"""Linear effects of features on log-ratios of labels: a table of coefficients as ``lm`` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence, check_distributions
from snefy_ldl.datasets.grouping import read_groups, split_rows
from snefy_ldl.errors import InputError
from snefy_ldl.explain.features import column_names
from snefy_ldl.explain.quantities import label_number

__all__ = ["logratio_effects"]


def logratio_effects(
    model: Any, X: Any, D: Any, basis: Any = "ilr", *, groups: Any = None, confidence_level: float = 0.95
) -> Any:
    """Regress balances of labels on features: coefficients with standard errors and p-values.

    A balance is ``sqrt(r s / (r + s)) (mean log ℓ_above - mean log ℓ_below)`` of r labels against s others. Features
    are the columns as the model encodes them; standardise them for comparable sizes. This is ordinary least squares,
    and shows nothing that the model predicts beyond its linear part.

    Args:
        model: a fitted model, which encodes the features and names the labels.
        X: features of the rows (N, d).
        D: observed label distributions (N, L); a row with a zero is left out of the balances of that label.
        basis: ``"ilr"``, each label against those before it (the coordinates of :func:`snefy_ldl.logratios.ilr`);
            ``"clr"``, each label against all others; or a dict of names to pairs (labels above, labels below).
        groups: the group of each row (N,): standard errors then allow for rows of a group that belong together (CR1,
            with the number of groups minus one as degrees of freedom). Without groups errors are taken to be
            independent and of one variance, as ``lm`` does.
        confidence_level: of the intervals.

    Returns:
        A DataFrame with one row per balance and term: ``balance``, ``term``, ``estimate``, ``std_error``,
        ``statistic``, ``p_value``, ``conf_low``, ``conf_high``, ``rows``.

    Raises:
        InputError: more columns than rows, columns that depend on each other, or unknown labels.

    Example:
        >>> from snefy_ldl import LogRatioLDL
        >>> X = np.arange(8.0)[:, None]
        >>> D = np.hstack([np.exp(0.1 * X + 0.01 * (-1.0) ** X), np.ones((8, 1))])
        >>> D = D / D.sum(1, keepdims=True)
        >>> model = LogRatioLDL(n_components=1, guides=["ridge"]).fit(X, D)
        >>> table = logratio_effects(model, X, D, {"first": (0, 1)})
        >>> table[["balance", "term", "estimate"]].round(3).values.tolist()
        [['first', '(intercept)', 0.002], ['first', 'x1', 0.07]]
    """
    import pandas as pd

    check_confidence(confidence_level)
    X, given = split_rows(X)
    groups = given if groups is None else groups
    shares, _ = check_distributions(D, model=model)
    numbers = np.asarray(model.encode(X), dtype=np.float64)
    encoded = getattr(getattr(model, "columns_", None), "names_out", None)
    terms = ["(intercept)", *(column_names(X) if encoded is None else encoded)]
    codes = None if groups is None else read_groups(groups, len(shares)).first
    names = [str(name) for name in getattr(model, "label_names_", None) or range(1, shares.shape[1] + 1)]
    parts = []
    for name, vector in _balances(basis, names):
        rows = (shares[:, vector != 0.0] > 0.0).all(1)
        y = np.log(shares[rows][:, vector != 0.0]) @ vector[vector != 0.0]
        table = np.hstack([np.ones((int(rows.sum()), 1)), numbers[rows]])
        coef, cov, freedom = least_squares(table, y, None if codes is None else codes[rows])
        error = np.sqrt(np.diagonal(cov))
        reach = stats.t.ppf(0.5 + confidence_level / 2.0, freedom) * error
        found = {"balance": name, "term": terms, "estimate": coef, "std_error": error, "statistic": coef / error}
        found["p_value"] = 2.0 * stats.t.sf(np.abs(coef / error), freedom)
        parts.append(pd.DataFrame({**found, "conf_low": coef - reach, "conf_high": coef + reach, "rows": len(y)}))
    return pd.concat(parts, ignore_index=True)


def least_squares(table: Array, y: Array, groups: Any = None) -> tuple[Array, Array, int]:
    """Coefficients (k,), their covariance (k, k) and degrees of freedom, as of ``lm`` or robust to groups (CR1).

    Example:
        >>> line = np.column_stack([np.ones(3), np.arange(3.0)])
        >>> coef, cov, freedom = least_squares(line, np.array([0.0, 2.0, 1.0]))
        >>> coef.round(3), freedom, float(cov[1, 1].round(3))
        (array([0.5, 0.5]), 1, 0.75)
    """
    n_rows, k = table.shape
    if n_rows <= k or np.linalg.matrix_rank(table) < k:
        raise InputError(f"{n_rows} rows and {k} columns, the intercept included: columns depend on each other.")
    inverse = np.linalg.inv(table.T @ table)
    coef = inverse @ (table.T @ y)
    errors = y - table @ coef
    if groups is None:
        return coef, inverse * float(errors @ errors) / (n_rows - k), n_rows - k
    _, number = np.unique(np.asarray(groups), return_inverse=True)
    n_groups = int(number.max()) + 1
    if n_groups < 2:
        raise InputError("standard errors that are robust to groups need at least two groups.")
    scores = np.zeros((n_groups, k))
    np.add.at(scores, number, errors[:, None] * table)
    factor = n_groups / (n_groups - 1) * (n_rows - 1) / (n_rows - k)
    return coef, factor * inverse @ (scores.T @ scores) @ inverse, n_groups - 1


def _balances(basis: Any, names: list[str]) -> list[tuple[str, Array]]:
    """Names of balances and their coefficients (L,)."""
    n_labels = len(names)
    pairs: Mapping[str, Any]
    if isinstance(basis, Mapping):
        pairs = basis
    elif basis == "ilr":
        pairs = {f"{'+'.join(names[:k])}/{names[k]}": (list(range(k)), [k]) for k in range(1, n_labels)}
    elif basis == "clr":
        pairs = {f"{names[k]}/rest": ([k], [r for r in range(n_labels) if r != k]) for k in range(n_labels)}
    else:
        raise InputError(f'basis={basis!r}: use "ilr", "clr" or a dict of names to (labels above, labels below).')
    found = []
    for name, sides in pairs.items():
        above, below = ([label_number(label, names) for label in _several(side)] for side in sides)
        if not above or not below or len({*above, *below}) < len(above) + len(below):
            raise InputError(f"the balance {name!r} needs labels on both sides, each once; got {sides!r}.")
        vector, size = np.zeros(n_labels), np.sqrt(len(above) * len(below) / (len(above) + len(below)))
        vector[above], vector[below] = size / len(above), -size / len(below)
        found.append((str(name), vector))
    return found


def _several(side: Any) -> list[Any]:
    return list(side) if isinstance(side, (list, tuple)) else [side]
