"""Figures of a comparison: means, errors, ranks and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import rankdata

from snefy_ldl import metrics
from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.learners.comparison.statistics import (
    FriedmanResult,
    corrected_spread,
    corrected_t_test,
    friedman_test,
    holm,
)

__all__ = ["Scores"]


@dataclass(frozen=True, repr=False, eq=False)
class Scores:
    """Scores of learners on the same folds, and the tests of their differences.

    Args:
        learners: Names, k.
        data_sets: Names, n.
        measures: Names.
        scores: Measure to one table a data set, of each learner on each fold, (k, folds); NaN where a fit failed.
        fit_seconds: Mean seconds of a fit, (n, k); folds that were trained in one stack share its time.
        predict_seconds: Mean seconds of predicting a fold, (n, k).
        test_to_train: Test rows over training rows, one number a data set.
        repeats: Cross-validations.
        errors: What went wrong, by data set and learner.

    Example:
        >>> table = np.array([[1.0, 1.2], [2.0, 2.4]])
        >>> scores = Scores(["a", "b"], ["d"], ["clark"], {"clark": [table]}, np.ones((1, 2)), np.ones((1, 2)), [1.0])
        >>> scores.mean("clark"), scores.best()
        (array([[1.1, 2.2]]), 'a')
    """

    learners: list[str]
    data_sets: list[str]
    measures: list[str]
    scores: dict[str, list[Array]]
    fit_seconds: Array
    predict_seconds: Array
    test_to_train: list[float]
    repeats: int = 1
    errors: dict[tuple[str, str], str] = field(default_factory=dict)

    def mean(self, measure: str) -> Array:
        """Mean of a measure over folds, (n, k)."""
        return np.stack([table.mean(axis=1) for table in self._scores(measure)])

    def std(self, measure: str) -> Array:
        """Standard deviation of a measure over folds, (n, k)."""
        return np.stack([table.std(axis=1, ddof=1) for table in self._scores(measure)])

    def std_error(self, measure: str) -> Array:
        """Standard error of the mean that knows folds share training rows (Nadeau and Bengio), (n, k)."""
        pairs = zip(self._scores(measure), self.test_to_train)
        return np.stack([[corrected_spread(row, ratio) for row in table] for table, ratio in pairs])

    def rank(self, measure: str) -> Array:
        """Rank of each learner on each data set, 1 is best, (n, k); failed ones come last."""
        means = self.mean(measure)
        losses = np.where(np.isfinite(means), -means if metrics.MEASURES[measure] else means, np.inf)
        ranks: Array = rankdata(losses, axis=1)
        return ranks

    def best(self, measure: str | None = None, data: str | None = None) -> str:
        """Name of the best learner: by its mean on one data set, or by its mean rank over all.

        Args:
            measure: Which; the first by default.
            data: Name of a data set; all by default.

        Returns:
            The learner's name.

        Raises:
            InputError: There is no such measure or data set.
        """
        ranks = self.rank(self._measure(measure))
        chosen = ranks.mean(axis=0) if data is None else ranks[self._data(data)]
        return self.learners[int(np.argmin(chosen))]

    def p_values(self, measure: str | None = None, data: str | None = None, adjust: str | None = None) -> Any:
        """Corrected resampled t-test of every pair of learners on one data set.

        Args:
            measure: Which; the first by default.
            data: Name of the data set; the first by default.
            adjust: ``"holm"`` adjusts each row for its number of tests.

        Returns:
            A DataFrame (k, k) of two-sided p-values; NaN on the diagonal and for learners that failed.

        Raises:
            InputError: There is no such measure, data set or adjustment.
        """
        import pandas as pd  # an extra

        if adjust not in (None, "holm"):
            raise InputError(f'adjust={adjust!r}: use None or "holm".')
        table = self._p_table(self._measure(measure), 0 if data is None else self._data(data))
        if adjust == "holm":
            table = np.stack([holm(row) for row in table])
        return pd.DataFrame(table, index=self.learners, columns=self.learners)

    def friedman(self, measure: str | None = None, alpha: float = 0.05) -> FriedmanResult:
        """Friedman test over data sets, with the critical difference of mean ranks.

        Args:
            measure: Which; the first by default.
            alpha: Level of the critical difference.

        Returns:
            Mean ranks and the test.

        Raises:
            InputError: Fewer than two data sets or learners, or a learner that failed.
        """
        name = self._measure(measure)
        return friedman_test(self.mean(name), higher_is_better=metrics.MEASURES[name], alpha=alpha)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _measure(self, measure: str | None) -> str:
        if measure is not None and measure not in self.measures:
            raise InputError(f"measure={measure!r} was not scored; there are {', '.join(self.measures)}.")
        return self.measures[0] if measure is None else measure

    def _data(self, data: str) -> int:
        if data not in self.data_sets:
            raise InputError(f"data={data!r} was not compared; there are {', '.join(self.data_sets)}.")
        return self.data_sets.index(data)

    def _scores(self, measure: str) -> list[Array]:
        return self.scores[self._measure(measure)]

    def _index(self) -> Any:
        import pandas as pd  # an extra

        if len(self.data_sets) == 1:
            return pd.Index(self.learners, name="learner")
        return pd.MultiIndex.from_product([self.data_sets, self.learners], names=["data", "learner"])

    def _p_table(self, measure: str, d: int) -> Array:
        scores, ratio = self.scores[measure][d], self.test_to_train[d]
        k = len(scores)
        table = np.full((k, k), np.nan)
        for i in range(k):
            for j in range(i):
                if np.isfinite(scores[[i, j]]).all():
                    table[i, j] = table[j, i] = corrected_t_test(scores[i], scores[j], ratio)[1]
        return table

    def _against_best(self, measure: str) -> Array:
        ranks = self.rank(measure)
        tables = [self._p_table(measure, d) for d in range(len(self.data_sets))]
        return np.stack([table[:, int(np.argmin(ranks[d]))] for d, table in enumerate(tables)])
