"""CV+ (Barber et al., 2021): every row trains all fold models but one, and that one scores it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.conformal.scores.base import LabelScore, bisect_end
from snefy_ldl.conformal.thresholds import Calibration, rank
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import fit_folds


def fold_models(model: Any, X: Any, D: Array, cv: Any) -> tuple[list[Any], Index]:
    """Models fitted without each fold, and the fold of each row.

    How they are fitted is the model's affair: see :func:`snefy_ldl.estimator.fit_folds`.

    Args:
        model: An unfitted scikit-learn estimator with ``fit`` and ``predict_dist``; it stays unfitted.
        X: Features of N rows.
        D: Label distributions (N, L).
        cv: Number of folds, or a splitter whose test folds hold every row once.

    Returns:
        The fitted models, and for each row the number of the model that did not see it (N,).

    Raises:
        InputError: A row in two test folds, or in none.
    """
    folds = np.full(len(D), -1, dtype=np.intp)
    training = []
    for k, (train, test) in enumerate(check_cv(cv).split(np.zeros(len(D)))):
        if (folds[test] >= 0).any():
            raise InputError(f"cv puts row {int(test[folds[test] >= 0][0])} into two test folds; CV+ needs one each.")
        folds[test] = k
        training.append(train)
    if (folds < 0).any():
        raise InputError(f"cv leaves row {int(np.flatnonzero(folds < 0)[0])} out of every test fold.")
    return fit_folds(model, X, D, training), folds


class CrossEnds:
    """Ends of CV+ intervals: the ``⌊(1-c)(n+1)⌋``-th smallest of the lower ends, and so for upper ones.

    Row i, scored ``S_i`` by the model that did not see it, gives the lower end at which that model's ``below`` falls to
    ``S_i``. How many of these ends lie at or left of a share y is a count of scores, so each end of the answer is one
    bisection for all rows.

    Args:
        calibration: Held-out scores.
        folds: Fold of each calibration row (n,).
        n_folds: Number of folds.
        levels: Confidence levels.
    """

    def __init__(self, calibration: Calibration, folds: Index, n_folds: int, levels: list[float]) -> None:
        self.calibration, self.folds, self.n_folds, self.levels = calibration, folds, n_folds, levels

    def of(self, scores: list[LabelScore], n_rows: int, names: NDArray[np.str_] | None) -> tuple[Array, Array]:
        """Lower and upper ends (b, L, levels) of new rows.

        Args:
            scores: For each fold model its score, bound to the laws it predicts for these rows.
            n_rows: b.
            names: Groups of these rows (b,), if calibration used groups.

        Returns:
            Lower and upper ends, (b, L, levels) each.
        """
        n_labels = scores[0].n_labels
        low, high = (np.empty((n_rows, n_labels, len(self.levels))) for _ in range(2))
        for a, level in enumerate(self.levels):
            wanted = np.zeros((n_rows, 1), dtype=np.intp)
            served = []
            for rows, part in self.calibration.assigned(n_rows, names, [level]):
                wanted[rows] = part.n + 1 - rank(level, part.n)
                serving = self._serving(part.n, rows, names)
                served.append((rows, self._fold_scores(serving, a)))
            for side, ends in enumerate((low, high)):
                ends[:, :, a] = self._bisect(scores, served, wanted, side, a, (n_rows, n_labels))
        return low, high

    def _serving(self, n: int, rows: Any, names: NDArray[np.str_] | None) -> Mask:
        """Which calibration rows serve these rows: all of them, or those of their group."""
        groups = self.calibration.groups
        if names is None or groups is None or n == self.calibration.n:
            return np.ones(self.calibration.n, dtype=bool)
        same: Mask = groups == names[rows][0]
        return same

    def _fold_scores(self, serving: Mask, a: int) -> list[Array]:
        column = a % self.calibration.scores.shape[2]
        return [
            np.sort(self.calibration.scores[serving & (self.folds == k)][:, :, column], axis=0)
            for k in range(self.n_folds)
        ]

    @staticmethod
    def _bisect(
        scores: list[LabelScore], served: list[Any], wanted: Index, side: int, a: int, shape: tuple[int, int]
    ) -> Array:
        def accepted(shares: Array) -> Mask:
            """Whether at least ``wanted`` calibration rows accept these shares on this side."""
            counts = np.zeros(shares.shape, dtype=np.intp)
            for k, score in enumerate(scores):
                values = score.above(shares, a) if side else score.below(shares, a)
                for rows, folds in served:
                    for r in range(shares.shape[1]):
                        held_out = folds[k][:, r % folds[k].shape[1]]
                        counts[rows, r] += len(held_out) - np.searchsorted(held_out, values[rows, r], side="left")
            return counts >= wanted

        return bisect_end(accepted, shape, side)
