"""Where a model fails: the rows it misses most, and groups of rows on which it is worse than elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Mask
from snefy_ldl.explain.features import column_names
from snefy_ldl.metrics import kl_divergence
from snefy_ldl.metrics.averages import covered_labels
from snefy_ldl.reports.answers import Answers, JudgedRows

__all__ = ["GroupMiss", "RowMiss", "number_words", "row_groups", "worst_groups", "worst_rows"]

#: Most values of a column that make a group each; columns of more are cut into quarters.
MOST_VALUES = 8
#: Fewest rows of a group.
FEWEST_ROWS = 10
#: Chance that a group is called worse by luck alone, over all groups together.
FALSE_ALARM = 0.05


@dataclass(frozen=True)
class RowMiss:
    """A row that the model misses.

    Args:
        row: Its number, counted from 0.
        kl: KL divergence of the predicted mean from what was observed.
        surprise: Chance of a share at least as far out under the model, of the label that is furthest out, times the
            number of labels: near 1 the model knew that it did not know. None for votes.
        outside: Labels whose share lies outside its interval.

    Example:
        >>> RowMiss(0, 0.5, 0.01, ["clay"]).outside
        ['clay']
    """

    row: int
    kl: float
    surprise: float | None
    outside: list[str]


@dataclass(frozen=True)
class GroupMiss:
    """A group of rows on which the model is worse than on the others.

    Args:
        column: The column that makes the group.
        value: Which of its values, in words.
        n: Rows of the group.
        kl: Their mean KL divergence.
        kl_others: That of the other rows.
        p_value: Chance of such a difference by luck alone (Welch's test), times the number of groups looked at.
        coverage: Share of labels inside their interval in the group; None for votes.

    Example:
        >>> GroupMiss("depth", "above 80", 30, 0.3, 0.1, 0.001, 0.8).n
        30
    """

    column: str
    value: str
    n: int
    kl: float
    kl_others: float
    p_value: float
    coverage: float | None


def worst_rows(answers: Answers, rows: JudgedRows, n: int = 6) -> list[RowMiss]:
    """The rows whose predicted mean is furthest from what was observed, by KL divergence.

    Args:
        answers: The model's, for all rows.
        rows: What was observed.
        n: How many.

    Returns:
        The worst first.

    Example:
        >>> D = np.array([[0.5, 0.5]] * 11 + [[0.9, 0.1]])
        >>> half = np.full((12, 2), 0.5)
        >>> worst_rows(Answers(half, half - 0.1, half + 0.1, np.zeros(12)), JudgedRows(D, D, ["a", "b"]), 1)[0].row
        11
    """
    kl = kl_divergence(rows.D, answers.mean, per_row=True)
    missed = ~covered_labels(rows.D, answers.ends)
    misses = []
    for row in np.argsort(-kl, kind="stable")[:n]:
        surprise = None
        if answers.pit is not None:
            tails = 2.0 * np.minimum(answers.pit[row], 1.0 - answers.pit[row])
            surprise = min(1.0, float(tails.min()) * rows.D.shape[1])
        outside = [] if rows.counts is not None else [rows.labels[r] for r in np.flatnonzero(missed[row])]
        misses.append(RowMiss(int(row), float(kl[row]), surprise, outside))
    return misses


def worst_groups(answers: Answers, rows: JudgedRows, n: int = 6) -> tuple[list[GroupMiss], int]:
    """Groups on which the predicted mean is further off than on the other rows, more than luck explains.

    Groups are the values of each column, quarters of a column of many numbers, and the label predicted largest.

    Args:
        answers: The model's, for all rows.
        rows: What was observed.
        n: At most so many.

    Returns:
        The groups, the surest first, and how many were looked at.

    Example:
        >>> D = np.array([[0.5, 0.5]] * 30 + [[0.8, 0.2], [0.7, 0.3]] * 15)
        >>> half = np.full((60, 2), 0.5)
        >>> answers = Answers(half, half - 0.1, half + 0.1, np.zeros(60))
        >>> groups, looked = worst_groups(answers, JudgedRows(np.repeat([0.0, 1.0], 30)[:, None], D, ["a", "b"]))
        >>> groups[0].value, looked
        ('1', 2)
    """
    kl = kl_divergence(rows.D, answers.mean, per_row=True)
    inside = covered_labels(rows.D, answers.ends).mean(axis=1)
    groups = [group for group in row_groups(answers, rows) if FEWEST_ROWS <= group[2].sum() <= len(rows) - FEWEST_ROWS]
    misses = []
    for column, value, members in groups:
        here, others = kl[members], kl[~members]
        if here.mean() <= others.mean():
            continue
        chance = 0.0
        if here.std() + others.std() > 0.0:
            chance = float(stats.ttest_ind(here, others, equal_var=False, alternative="greater").pvalue)
        covered = None if rows.counts is not None else float(inside[members].mean())
        p_value = min(1.0, chance * len(groups))
        misses.append(GroupMiss(column, value, len(here), float(here.mean()), float(others.mean()), p_value, covered))
    clear = [miss for miss in misses if miss.p_value <= FALSE_ALARM]
    return sorted(clear, key=lambda miss: (miss.p_value, -miss.kl))[:n], len(groups)


def row_groups(answers: Answers, rows: JudgedRows) -> Iterator[tuple[str, str, Mask]]:
    """Groups of rows by each column, and by the label predicted largest.

    Args:
        answers: The model's, for all rows.
        rows: The rows.

    Yields:
        A column, its value in words, and which rows have it (N,).
    """
    for name in column_names(rows.X):
        column = rows.X[name] if hasattr(rows.X, "columns") else np.asarray(rows.X)[:, int(name[1:]) - 1]
        yield from ((name, value, members) for value, members in _column_groups(*_cells(column)))
    largest = answers.mean.argmax(axis=1)
    for r, label in enumerate(rows.labels):
        yield "largest predicted share", label, largest == r


def number_words(value: float) -> str:
    """A number as one writes it in a sentence.

    Args:
        value: Any number.

    Returns:
        Three digits, or all those before the point of a large number.

    Example:
        >>> number_words(3945.2), number_words(0.03312), number_words(7.0), number_words(2e9)
        ('3,945', '0.0331', '7', '2e+09')
    """
    return f"{value:,.0f}" if 1000.0 <= abs(value) < 1e7 else f"{value:.3g}"


def _cells(column: Any) -> tuple[Any, Mask]:
    """A column as numbers where it mostly holds some, else as it is; and which of its cells are missing (N,)."""
    if not hasattr(column, "isna"):
        values = np.asarray(column)
        return values, np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    import pandas as pd  # an extra, which the table is of

    missing = column.isna().to_numpy()
    if column.dtype.kind in "bM" or isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(str).to_numpy(), missing
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isfinite(numbers).sum() >= 0.9 * (~missing).sum():
        return numbers, np.isnan(numbers)
    return column.astype(str).to_numpy(), missing


def _column_groups(values: Any, missing: Mask) -> Iterator[tuple[str, Mask]]:
    """Values of a column in words, and which rows have them."""
    numeric = values.dtype.kind in "iuf"
    if missing.any():
        yield "missing", missing
    if not numeric:
        levels, index, counts = np.unique(values.astype(str), return_inverse=True, return_counts=True)
        for k in np.argsort(-counts, kind="stable")[:MOST_VALUES]:
            if not missing[index == k].all():
                yield str(levels[k]), index == k
        return
    numbers = values.astype(np.float64)
    distinct = np.unique(numbers[~missing])
    if len(distinct) <= MOST_VALUES:
        for value in distinct:
            yield number_words(value), numbers == value
        return
    low, middle, high = np.quantile(numbers[~missing], [0.25, 0.5, 0.75])
    first, second, third = (number_words(cut) for cut in (low, middle, high))
    yield f"up to {first}", numbers <= low
    yield f"{first} to {second}", (numbers > low) & (numbers <= middle)
    yield f"{second} to {third}", (numbers > middle) & (numbers <= high)
    yield f"above {third}", numbers > high
