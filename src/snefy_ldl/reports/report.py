"""Everything a report says, put together: in goes a model and rows with known labels, out come its figures."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._internal.laws import law_blocks
from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError, TableNote
from snefy_ldl.reports.answers import FEWEST_ROWS, Answers, JudgedRows, Part, ask, cross_fit
from snefy_ldl.reports.failures import GroupMiss, RowMiss, worst_groups, worst_rows
from snefy_ldl.reports.importance import Importance, permutation_importance
from snefy_ldl.reports.rivals import fit_rivals
from snefy_ldl.reports.scores import ScoreLine, score_lines
from snefy_ldl.reports.trust import Trust, judge_coverage

__all__ = ["Report", "make_report"]


@dataclass(frozen=True, eq=False)
class Report:
    """What there is to say about a model on rows with known labels.

    Args:
        model: The fitted model.
        rows: The judged rows.
        parts: Which model answered for which rows.
        answers: The answers.
        rivals: Names of the simple rivals.
        scores: Measures of the model and its rivals.
        trust: Coverage before and after calibration; None for votes.
        importance: What shuffling each column costs, the most important first.
        worst_rows: The rows missed most.
        worst_groups: Groups that are clearly worse.
        groups_looked_at: Among how many these were found.
        shown: Numbers of the surest, a typical and the least sure row.
        trained_here: Whether rivals learned from the judged rows, four fifths for each fifth.
        folds: In how many folds the model was fitted anew for the report; 0 where it answered itself.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> from snefy_ldl.reports import JudgedRows
        >>> report = make_report(model, JudgedRows(city.X[30:], city.D[30:], city.label_names))
        >>> report.folds, report.line("KL divergence").name
        (0, 'KL divergence')
    """

    model: Any
    rows: JudgedRows
    parts: list[Part]
    answers: Answers
    rivals: list[str]
    scores: list[ScoreLine]
    trust: Trust | None
    importance: list[Importance]
    worst_rows: list[RowMiss]
    worst_groups: list[GroupMiss]
    groups_looked_at: int
    shown: list[int]
    trained_here: bool
    folds: int

    def law_of(self, row: int) -> Any:
        """The predicted law of one row, by the model that answered for it.

        Args:
            row: Its number, counted from 0.

        Returns:
            A law with batch (1,).
        """
        part = next(part for part in self.parts if row in part.rows)
        return next(law for _, law in law_blocks(part.model, self.rows.pick([row]).X))

    def line(self, name: str) -> ScoreLine:
        """One measure.

        Args:
            name: "KL divergence", "mean log likelihood", ...

        Returns:
            Its line.
        """
        return next(line for line in self.scores if line.name == name)


def make_report(
    model: Any,
    rows: JudgedRows,
    *,
    train: JudgedRows | None = None,
    folds: int = 0,
    calibration: Any = None,
    random_state: int = 0,
) -> Report:
    """All figures of a report.

    Args:
        model: A fitted :class:`~snefy_ldl.SnefyLDL`; it is not changed.
        rows: Rows with known labels that the fit has not seen (with ``folds``, those it has).
        train: Rows that the simple rivals learn from; None lets them learn from four fifths of the judged rows.
        folds: Judge the model's settings by cross-validation, fitted anew so many times; 0 judges the model itself.
        calibration: Conformalized intervals of level 0.9; None calibrates each half of the rows on the other.
        random_state: Seed of folds, halves and shuffles.

    Returns:
        The report.

    Raises:
        InputError: There are fewer than ten rows, or a table breaks a rule.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=160, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X[:100], city.D[:100])
        >>> report = make_report(model, JudgedRows(city.X[100:], city.D[100:], city.label_names))
        >>> len(report.scores), len(report.importance), report.trained_here
        (7, 5, True)
    """
    if len(rows) < FEWEST_ROWS:
        raise InputError(f"a report needs at least {FEWEST_ROWS} rows with known labels; got {len(rows)}.")
    parts = cross_fit(model, rows, folds, random_state) if folds else [Part(model, np.arange(len(rows)))]
    answers = ask(parts, rows, random_state)
    rivals = fit_rivals(
        rows,
        _feature_numbers(model, rows.X),
        train,
        None if train is None else _feature_numbers(model, train.X),
        density=getattr(getattr(model, "zero_policy_", None), "mode", "") != "model",
    )
    groups, looked = worst_groups(answers, rows)
    return Report(
        model=model,
        rows=rows,
        parts=parts,
        answers=answers,
        rivals=[rival.name for rival in rivals],
        scores=score_lines(answers, rows, rivals),
        trust=judge_coverage(parts, rows, answers, None if folds else calibration, random_state),
        importance=permutation_importance(parts, rows, answers, random_state),
        worst_rows=worst_rows(answers, rows),
        worst_groups=groups,
        groups_looked_at=looked,
        shown=_shown_rows(answers.width),
        trained_here=train is None,
        folds=folds,
    )


def _shown_rows(width: Array) -> list[int]:
    """The surest, a typical and the least sure row."""
    order = np.argsort(width, kind="stable")
    return [int(order[place]) for place in (0, len(order) // 2, len(order) - 1)]


def _feature_numbers(model: Any, X: Any) -> Array:
    """Features as numbers without gaps (N, k), encoded as the model encodes them."""
    columns = getattr(model, "columns_", None)
    with warnings.catch_warnings():  # whoever asks the model for predictions is told what is odd about the table
        warnings.simplefilter("ignore", TableNote)
        return np.asarray(X if columns is None else columns.transform(X), dtype=np.float64)
