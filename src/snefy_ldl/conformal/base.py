"""What intervals and regions share: a model, a calibration, and the order in which they may be used."""

from __future__ import annotations

from typing import Any

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.checks import Weights, check_groups, check_weights
from snefy_ldl.conformal.thresholds import Calibration
from snefy_ldl.errors import NotConformalizedError


class Conformalized:
    """Base of what is conformalized first and used then.

    Attributes:
        n_labels_: L, once conformalized.
        n_calibration_: Calibration rows, once conformalized.
    """

    n_labels_: int
    n_calibration_: int
    _calibration: Calibration | None = None
    _weight_function: Any = None

    def check_conformalized(self) -> None:
        """Do nothing once ``conformalize`` was called.

        Raises:
            NotConformalizedError: It was not.
        """
        self._ready()

    @property
    def uses_groups(self) -> bool:
        """Whether the calibration holds within groups, so that new rows must name theirs."""
        return self._ready().groups is not None

    def _ready(self) -> Calibration:
        if self._calibration is None:
            raise NotConformalizedError(
                f"this {type(self).__name__} was used before conformalize; call conformalize(X_cal, D_cal) with rows "
                "the model was not fitted on."
            )
        return self._calibration

    def _new_rows(self, X: Any, groups: Any, sample_weight: Weights) -> tuple[Any, Any, Array | None]:
        """New rows with their groups and weights, checked."""
        self._ready()
        X = as_rows(X)
        n_rows = count_rows(X)
        weights = check_weights(self._weight_function if sample_weight is None else sample_weight, X, n_rows)
        return X, check_groups(groups, n_rows), weights

    def _described(self) -> str:
        return "not conformalized" if self._calibration is None else f"{self._calibration.n} calibration rows"
