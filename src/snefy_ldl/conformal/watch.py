"""Has the world changed since calibration? An exchangeability martingale on new labelled rows.

Each new row gets a conformal p-value, one per label, among the calibration rows and the new rows before it. As long as
all rows come from one source these are uniform and independent from row to row, and a gambler who spreads a stake over
the labels and bets against that wins nothing on average: the chance that the stake ever grows a hundredfold is at most
one in a hundred (Ville's inequality), however long one watches.

References:
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson & Gammerman, Retrain or not retrain: conformal test martingales for
    change-point detection, COPA 2021.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array
from snefy_ldl.conformal.thresholds import Conformalized, check_groups
from snefy_ldl.errors import InputError

#: Bets that p-values are too small, just right, and too large.
BETS = np.array([-1.0, 0.0, 1.0])
#: How often the gambler changes his mind; the stake is spread over these rates.
JUMP_RATES = np.array([1e-4, 1e-3, 1e-2, 1e-1, 1.0])


@dataclass(frozen=True)
class ChangeWatch:
    """What :func:`watch` found; print it for one sentence.

    Args:
        p_values: Of each new row among the rows before it, (N, C): C = L labels, or 1 for regions and simultaneous
            intervals; small where a share is unlike those before.
        log_evidence: Natural logarithm of the martingale after each row, (N,).
        alarm: Evidence at which the alarm is raised; false alarms have probability at most ``1 / alarm``.

    Example:
        >>> print(ChangeWatch(np.array([[0.4], [0.6]]), np.log([1.1, 0.9]), 100.0))
        no sign of a change since calibration: the evidence reached 1.1 to 1 in 2 rows (alarm at 100 to 1).
    """

    p_values: Array
    log_evidence: Array
    alarm: float = 100.0

    @property
    def changed(self) -> bool:
        """Whether the alarm was raised."""
        return self.alarm_row is not None

    @property
    def alarm_row(self) -> int | None:
        """Number of the row at which the alarm was raised, from 0; None where it was not."""
        over = np.flatnonzero(self.log_evidence >= np.log(self.alarm))
        return int(over[0]) if len(over) else None

    def __str__(self) -> str:
        highest = np.exp(min(float(self.log_evidence.max(initial=0.0)), 700.0))
        if self.alarm_row is None:
            return (
                f"no sign of a change since calibration: the evidence reached {highest:.3g} to 1 in "
                f"{len(self.p_values):,} rows (alarm at {self.alarm:g} to 1)."
            )
        return (
            f"the rows have changed since calibration: the evidence passed {self.alarm:g} to 1 at row "
            f"{self.alarm_row + 1:,} of {len(self.p_values):,} and reached {highest:.3g} to 1 (a false alarm has "
            f"probability at most {1.0 / self.alarm:g}); calibrate again."
        )


def watch(
    calibrated: Conformalized, X: Any, D: Any, groups: Any = None, *, alarm: float = 100.0, random_state: Any = 0
) -> ChangeWatch:
    """Test whether new labelled rows, in the order in which they came, are like the calibration rows.

    Args:
        calibrated: Conformalized :class:`~snefy_ldl.conformal.ConformalIntervals` or
            :class:`~snefy_ldl.conformal.ConformalRegion`, without ``cv`` and weights.
        X: New rows, in order.
        D: Their label distributions (N, L).
        groups: Their groups (N,), if calibration used groups; each row is then compared with its own group.
        alarm: Evidence at which the alarm is raised, above 1.
        random_state: Seed of the coins that break ties.

    Returns:
        p-values, evidence and whether the alarm was raised.

    Raises:
        NotFittedError: ``conformalize`` was not called.
        InputError: Rows, labels or groups that break a rule; a calibration with ``cv`` or weights.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.conformal import ConformalIntervals
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=400, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X[:150], city.D[:150])
        >>> ci = ConformalIntervals(model, 0.9).conformalize(city.X[150:250], city.D[150:250])
        >>> watch(ci, city.X[250:], city.D[250:]).changed
        False
        >>> sharper = city.D[250:] ** 3  # the largest shares have grown
        >>> watch(ci, city.X[250:], sharper / sharper.sum(axis=1, keepdims=True)).alarm_row is None
        False
    """
    if not 1.0 < alarm < float("inf"):
        raise InputError(f"alarm={alarm:g}: give a number above 1, such as 100 for one false alarm in a hundred.")
    X = as_rows(X)
    before, names_before = calibrated.calibration_scores()
    names = check_groups(groups, count_rows(X))
    if (names is None) != (names_before is None):
        raise InputError(
            "calibration used groups: give the groups of the new rows, too."
            if names is None
            else "groups were given, but calibration used none."
        )
    scores = calibrated.row_scores(X, D)
    coins = np.random.default_rng(random_state).random(scores.shape)
    p_values = np.empty(scores.shape)
    for c in range(scores.shape[1]):
        bags: dict[str, list[float]] = {}
        for row in np.argsort(before[:, c], kind="stable"):
            bags.setdefault("" if names_before is None else str(names_before[row]), []).append(float(before[row, c]))
        for row, score in enumerate(scores[:, c]):
            bag = bags.setdefault("" if names is None else str(names[row]), [])
            below, upto = bisect.bisect_left(bag, score), bisect.bisect_right(bag, score)
            p_values[row, c] = (len(bag) - upto + coins[row, c] * (upto - below + 1)) / (len(bag) + 1)
            bag.insert(upto, float(score))
    return ChangeWatch(p_values, _log_evidence(p_values), alarm)


def _log_evidence(p_values: Array) -> Array:
    """Log of the composite simple jumper martingale after each row, averaged over columns (N, C)."""
    stakes = np.full((p_values.shape[1], len(JUMP_RATES), len(BETS)), 1.0 / (p_values.shape[1] * JUMP_RATES.size * 3))
    logs, total = np.empty(len(p_values)), 0.0
    for t, p in enumerate(p_values):
        rate = JUMP_RATES[:, None]
        stakes = (1.0 - rate) * stakes + rate * stakes.mean(axis=2, keepdims=True)
        stakes = stakes * (1.0 + BETS * (p[:, None, None] - 0.5))
        grown = stakes.sum()
        stakes, total = stakes / grown, total + np.log(grown)
        logs[t] = total
    return logs
