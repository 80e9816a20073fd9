"""Which columns matter: how much likelihood is lost when a column is shuffled among the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._types import Array, Index
from snefy_ldl.distributions.blocks import law_blocks, to_numpy
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.reporting.answers import Answers, JudgedRows, Part, log_probs

__all__ = ["Importance", "column_names", "permutation_importance"]

#: Rows predicted in all, over the columns: what bounds the time.
MOST_PREDICTIONS = 8000
#: Rows predicted at a time.
BLOCK_ROWS = 3000
#: Rows a column at least, whatever that costs.
FEWEST_ROWS = 60


@dataclass(frozen=True)
class Importance:
    """What shuffling one column costs.

    Args:
        column: Its name.
        loss: Mean log likelihood lost, in nats a row.
        std_error: Its standard error over rows.
        moves: The label whose predicted share changes most.
        shift: Mean absolute change of that share.

    Example:
        >>> Importance("depth", 0.4, 0.05, "clay", 0.12).column
        'depth'
    """

    column: str
    loss: float
    std_error: float
    moves: str
    shift: float


def column_names(X: Any) -> list[str]:
    """Names of the columns of a table.

    Args:
        X: A DataFrame, or an array (N, d).

    Returns:
        The names (d); "x1", "x2", ... for an array.

    Raises:
        InputError: X is no table.

    Example:
        >>> column_names(np.zeros((3, 2)))
        ['x1', 'x2']
    """
    if hasattr(X, "columns"):
        return [str(name) for name in X.columns]
    if np.ndim(X) != 2:
        raise InputError("columns can be shuffled in a table alone: an array (N, d) or a DataFrame.")
    return [f"x{i + 1}" for i in range(X.shape[1])]


def permutation_importance(
    parts: Sequence[Part], rows: JudgedRows, answers: Answers, random_state: int = 0
) -> list[Importance]:
    """Likelihood lost when a column is shuffled, for every column as the table has it.

    A column that another one can stand in for loses little: what is measured is what this model would miss.

    Args:
        parts: Models and their rows.
        rows: All rows.
        answers: The models' answers for them.
        random_state: Seed of the shuffles and of the choice of rows.

    Returns:
        One entry a column, the most important first.

    Raises:
        InputError: The features are no table.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.reporting import ask
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> parts = [Part(SnefyLDL(epochs=3, random_state=0).fit(city.X, city.D), np.arange(120))]
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> len(permutation_importance(parts, rows, ask(parts, rows)))
        5
    """
    names, random = column_names(rows.X), np.random.default_rng(random_state)
    each = min(len(rows), max(FEWEST_ROWS, MOST_PREDICTIONS // len(names)))
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[random.choice(len(rows), each, replace=False)] = True
    losses: list[list[Array]] = [[] for _ in names]
    shifts: list[list[Array]] = [[] for _ in names]
    for part in parts:
        here = part.rows[chosen[part.rows]]
        step = max(1, BLOCK_ROWS // max(1, len(here)))  # a few columns at a time, one prediction for all of them
        for start in range(0, len(names) if len(here) else 0, step):
            columns = range(start, min(start + step, len(names)))
            log_prob, mean = _predict(part, rows, here, columns, random)
            for k, column in enumerate(columns):
                losses[column].append(answers.log_prob[here] - log_prob[k])
                shifts[column].append(np.abs(mean[k] - answers.mean[here]))
    entries = []
    for name, loss, shift in zip(names, losses, shifts):
        mean, error = mean_over_rows(np.concatenate(loss), True)
        by_label = np.concatenate(shift).mean(axis=0)
        label = int(by_label.argmax())
        entries.append(Importance(name, mean, error, rows.labels[label], float(by_label[label])))
    return sorted(entries, key=lambda entry: -entry.loss)


def _predict(
    part: Part, rows: JudgedRows, here: Index, columns: Sequence[int], random: np.random.Generator
) -> tuple[Array, Array]:
    """Log likelihoods (C, b) and means (C, b, L) of some rows, each column in turn taken from other rows."""
    n, times = len(here), len(columns)
    sources = [random.choice(part.rows, n) for _ in columns]
    mixed = _mixed(rows.pick(np.tile(here, times)).X, columns, [rows.pick(source).X for source in sources])
    policy = getattr(part.model, "zero_policy_", None)
    shares = np.tile(rows.D[here] if policy is None else policy.apply(rows.D[here]), (times, 1))
    counts = None if rows.counts is None else np.tile(rows.counts[here], (times, 1))
    log_prob, mean = [], []
    for block, law in law_blocks(part.model, mixed):
        log_prob.append(log_probs(law, shares[block], None if counts is None else counts[block]))
        mean.append(to_numpy(law.mean))
    return np.concatenate(log_prob).reshape(times, n), np.concatenate(mean).reshape(times, n, -1)


def _mixed(X: Any, columns: Sequence[int], others: Sequence[Any]) -> Any:
    """A table stacked once a column, that column taken from other rows."""
    n = len(others[0])
    if hasattr(X, "iloc"):
        table = X.reset_index(drop=True)
        for k, (column, other) in enumerate(zip(columns, others)):
            values = table.iloc[:, column].copy()
            values.iloc[k * n : (k + 1) * n] = other.iloc[:, column].to_numpy()
            table[table.columns[column]] = values
        return table
    table = np.array(X)
    for k, (column, other) in enumerate(zip(columns, others)):
        table[k * n : (k + 1) * n, column] = np.asarray(other)[:, column]
    return table
