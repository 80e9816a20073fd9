"""Which columns matter to the models of a report: how much likelihood is lost when a column is shuffled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl.explain.features import column_names
from snefy_ldl.explain.importance import (
    Importance,
    columns_at_a_time,
    predict_shuffled,
    rows_to_shuffle,
    sum_up,
)
from snefy_ldl.reports.answers import Answers, JudgedRows, Part

__all__ = ["Importance", "column_names", "permutation_importance"]


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
        >>> from snefy_ldl.reports import ask
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> parts = [Part(SnefyLDL(epochs=3, random_state=0).fit(city.X, city.D), np.arange(120))]
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> len(permutation_importance(parts, rows, ask(parts, rows)))
        5
    """
    names, random = column_names(rows.X), np.random.default_rng(random_state)
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[rows_to_shuffle(len(rows), len(names), random)] = True
    losses: list[list[Array]] = [[] for _ in names]
    shifts: list[list[Array]] = [[] for _ in names]
    for part in parts:
        here = part.rows[chosen[part.rows]]
        for columns in columns_at_a_time(len(names), len(here)):
            observed = rows.D[here], None if rows.counts is None else rows.counts[here]
            log_prob, mean = predict_shuffled(part.model, rows.X, observed, here, part.rows, columns, random)
            for k, column in enumerate(columns):
                losses[column].append(answers.log_prob[here] - log_prob[k])
                shifts[column].append(np.abs(mean[k] - answers.mean[here]))
    pairs = [(np.concatenate(loss), np.concatenate(shift)) for loss, shift in zip(losses, shifts)]
    return sum_up(names, pairs, rows.labels)
