"""Conformal intervals for rows of new groups.

Rows of one group are alike, so a row of a new group is not exchangeable with calibration rows: pooled intervals are too
narrow for it. Groups are exchangeable. With K calibration groups of ``n_k`` rows, every row weighs ``1/n_k`` and the
new group one, and the threshold is the quantile at ``c (K+1)`` of these weights (Lee, Barber and Willett,
"Distribution-free inference with hierarchical data", 2023): a row of a new group is covered with probability ``c`` at
least, however good the model and however large the groups are.

That is exact if every group is one row. Groups of many rows are covered more often, with probability ``c (K+1)/K``: the
new group could lie beyond all others, and so counts as one of K + 1 with all of its rows outside. For 90 % this is
99 % with 10 calibration groups, 96 % with 15, 93 % with 30 and 91 % with 90. More groups narrow the intervals; more
rows of the same groups do not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.conformal.label_intervals import ConformalIntervals, LabelMethod
from snefy_ldl.conformal.scores import BetaScore
from snefy_ldl.datasets.grouping import read_groups, split_rows
from snefy_ldl.datasets.objects import shares_of
from snefy_ldl.distributions.base import Intervals
from snefy_ldl.errors import CalibrationWarning, InputError

#: Expected coverage beyond the level that is worth a warning.
MUCH_ABOVE = 0.05


def group_weights(groups: Any, n_rows: int) -> Array:
    """Weights (N,) with which the rows of every group weigh one together.

    Args:
        groups: of the rows (N,).
        n_rows: N.

    Returns:
        One divided by the number of rows of each row's group.

    Example:
        >>> group_weights(["a", "a", "b"], 3)
        array([0.5, 0.5, 1. ])
    """
    _, which, sizes = np.unique(read_groups(groups, n_rows).first, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / sizes[which.reshape(-1)]
    return weights


class NewGroupIntervals(ConformalIntervals):
    """Intervals for each label's share in rows of groups that were not seen.

    A row of a group that is new to model and calibration is covered with probability ``confidence_level`` at least.
    :class:`~snefy_ldl.conformal.ConformalIntervals` on rows together with their groups
    (:func:`snefy_ldl.datasets.in_groups`) is right for further rows of groups that were seen, and narrower.

    Args:
        model: Anything with ``predict_dist(X)``.
        confidence_level: ``c``, or a list of levels. ``c / (1-c)`` calibration groups are needed at least: 9 for 0.9.
            Coverage is about ``c (K+1)/K`` with K calibration groups; one warning if that exceeds ``c`` by .05.
        method: A score, as :class:`~snefy_ldl.conformal.ConformalIntervals` has them. "auto" takes "beta" and compares
            nothing: whole groups would have to be set aside for that, and groups are few.
        simultaneous: Cover all labels of a row at once.

    Raises:
        InputError: A model without ``predict_dist``, or a setting outside its range.

    Example:
        >>> from snefy_ldl import GroupedLDL, SnefyLDL
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=40, n_rows=5, random_state=0)
        >>> train, cal = data.groups < 20, (data.groups >= 20) & (data.groups < 38)
        >>> model = GroupedLDL(SnefyLDL(epochs=3, random_state=0))
        >>> model = model.fit(data.X[train], data.D[train], groups=data.groups[train])
        >>> ci = NewGroupIntervals(model).conformalize(data.X[cal], data.D[cal], groups=data.groups[cal])
        >>> ci.predict_interval(data.X[190:]).shape
        (10, 3, 2)
    """

    kind = "new group intervals"

    def __init__(
        self,
        model: Any,
        confidence_level: float | Sequence[float] = 0.9,
        method: LabelMethod = "auto",
        simultaneous: bool = False,
    ) -> None:
        super().__init__(model, confidence_level, method, simultaneous)
        if self._choose:
            self._choose = False
            self._use(BetaScore())

    def conformalize(self, X: Any, D: Any = None, groups: Any = None) -> NewGroupIntervals:
        """Set the thresholds from the rows of calibration groups.

        Args:
            X: Features of the calibration rows.
            D: Their label distributions (N, L).
            groups: Group of each row (N,), or one column per level, of which the first counts. The model must not have
                seen any of them.

        Returns:
            The object itself.

        Raises:
            InputError: Groups are missing, one of them is in the model, or rows, labels or groups break a rule.
        """
        X, given = split_rows(as_rows(X))
        groups = given if groups is None else groups
        if groups is None:
            raise InputError("conformalize needs the group of each calibration row: conformalize(X, D, groups=...).")
        labels, _ = check_distributions(shares_of(X, D), n_rows=count_rows(X), model=self.model)
        weights = group_weights(groups, len(labels))
        self._check_new(groups, len(labels))
        self._warn_of_few(weights)
        self._calibrate(X, labels, None, weights)
        self._ready().check_sizes(self._levels)
        return self

    def _warn_of_few(self, weights: Array) -> None:
        """One warning if coverage is far above the level because groups are few, although their rows are many."""
        n_groups, level = round(float(weights.sum())), max(self._levels)
        if len(weights) > n_groups and level / n_groups > MUCH_ABOVE:
            warnings.warn(
                f"{n_groups} calibration groups are few: intervals for new groups cover about "
                f"{min(level * (n_groups + 1) / n_groups, 1.0):.0%} instead of {level:.0%} and are wider than they "
                f"would be with {math.ceil(level / MUCH_ABOVE)} groups or more.",
                CalibrationWarning,
                stacklevel=3,
            )

    def _check_new(self, groups: Any, n_rows: int) -> None:
        effects = getattr(self.model, "group_effects_", None)
        known = () if effects is None else set(effects.names[0]) & set(read_groups(groups, n_rows).names)
        if known:
            raise InputError(
                f"{len(known):,} of the calibration groups trained the model ({shorten(sorted(known), 3)}), which "
                "knows them better than new ones: hold whole groups back for calibration."
            )

    def predict_interval(self, X: Any, groups: Any = None) -> Intervals:
        """Lower and upper ends of each label's share in rows of new groups.

        Args:
            X: New rows.
            groups: Not supported: groups of new rows are unknown.

        Returns:
            Ends inside [0, 1], (N, L, 2); (N, L, 2, n_levels) when there are several levels.

        Raises:
            NotFittedError: ``conformalize`` was not called.
            InputError: Groups were given.
        """
        if groups is not None:
            raise InputError("rows of new groups need no groups: predict_interval(X).")
        return super().predict_interval(split_rows(as_rows(X))[0])
