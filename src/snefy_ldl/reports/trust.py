"""Can the intervals be trusted? Coverage of the model's own intervals, and of calibrated ones, on rows of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._internal.laws import law_blocks, tensor_for, to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl.metrics import JointCalibration, coverage, interval_width, joint_calibration_test
from snefy_ldl.metrics.intervals import covered_within
from snefy_ldl.metrics.joint import FEWEST_ROWS as FEWEST_JOINT
from snefy_ldl.reports.answers import LEVEL, Answers, JudgedRows, Part

__all__ = ["LEVELS", "Trust", "calibrated_widths", "drawn_widths", "judge_coverage"]

#: Levels of the coverage curves; the ends of the intervals that the tables speak of are at :data:`LEVEL`.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Fewest rows to calibrate on: half of them must allow a level of 0.95.
FEWEST_ROWS = 40
#: Rows whose calibrated intervals stand for all in the mean width, at most so many.
WIDTH_ROWS = 150
#: Labels up to which their levels are asked of all labels together.
FEW_LABELS = 6


@dataclass(frozen=True, eq=False)
class Trust:
    """Coverage before and after calibration.

    Args:
        curve: Observed coverage of the model's own intervals at each of :data:`LEVELS` (A,).
        calibrated_curve: The same of calibrated intervals; None where there are too few rows, or only one level.
        coverage: Own coverage at :data:`LEVEL` of each label (L,).
        calibrated: Calibrated coverage at :data:`LEVEL` of each label (L,), or None.
        width: Mean width of the own intervals of each label (L,).
        calibrated_width: Mean width of the calibrated ones (L,), or None.
        joint: What the test of joint calibration says; None below 20 rows and where the law has no joint transform.
        stored: Whether the calibration is the model folder's, or made of one half of the rows for the other half.

    Example:
        >>> Trust(np.ones(10), None, np.ones(2), None, np.ones(2), None, None, False).stored
        False
    """

    curve: Array
    calibrated_curve: Array | None
    coverage: Array
    calibrated: Array | None
    width: Array
    calibrated_width: Array | None
    joint: JointCalibration | None
    stored: bool


def judge_coverage(
    parts: Sequence[Part], rows: JudgedRows, answers: Answers, calibration: Any = None, random_state: int = 0
) -> Trust | None:
    """How often shares lie inside their intervals: the model's own, and calibrated ones.

    Args:
        parts: Models and their rows.
        rows: All rows.
        answers: The models' answers for them.
        calibration: Conformalized intervals with :data:`LEVEL` among their levels; None calibrates each half of the
            rows on the other half, by the method "cdf" of :class:`~snefy_ldl.conformal.ConformalIntervals`.
        random_state: Seed of the halves.

    Returns:
        The coverages; None for votes, which do not show the shares behind them.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.reports import ask
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> parts = [Part(SnefyLDL(epochs=3, random_state=0).fit(city.X, city.D), np.arange(120))]
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> judge_coverage(parts, rows, ask(parts, rows)).calibrated.shape
        (3,)
    """
    below, up_to = answers.below, answers.up_to
    if below is None or up_to is None:
        return None
    curve = np.array([covered_within(below, up_to, level / 2).mean() for level in LEVELS])
    inside, width = coverage(rows.D, answers.ends, per_label=True), interval_width(answers.ends, per_label=True)
    joint = None
    if answers.joint is not None and len(rows) >= FEWEST_JOINT:
        joint = joint_calibration_test(answers.joint)
    if calibration is not None:
        ends = _stored_ends(calibration, rows)
        held = coverage(rows.D, ends, per_label=True)
        return Trust(curve, None, inside, held, width, interval_width(ends, per_label=True), joint, True)
    if len(rows) < FEWEST_ROWS:
        return Trust(curve, None, inside, None, width, None, joint, False)
    halves, distance = _halves(len(rows), random_state), np.abs(up_to - 0.5)
    reach = np.stack([_reach(distance[~halves], LEVELS), _reach(distance[halves], LEVELS)])  # (2, A, L)
    each = reach[halves.astype(np.intp) ^ 1]  # a row of the second half is judged by the first one's reach
    calibrated = covered_within(below[:, None, :], up_to[:, None, :], each)
    place = LEVELS.index(LEVEL)
    widths = calibrated_widths(parts, rows, each[:, place], answers.draws)
    return Trust(
        curve, calibrated.mean(axis=(0, 2)), inside, calibrated[:, place].mean(axis=0), width, widths, joint, False
    )


def _stored_ends(calibration: Any, rows: JudgedRows) -> Array:
    """Intervals (N, L, 2) of level :data:`LEVEL`, of one level or of several."""
    ends = np.asarray(calibration.predict_interval(rows.X), dtype=np.float64)
    return ends if ends.ndim == 3 else ends[..., list(calibration.confidence_level).index(LEVEL)]


def _halves(n_rows: int, random_state: int) -> Any:
    """Which rows are in the second half (N,), drawn at random."""
    second = np.zeros(n_rows, dtype=bool)
    second[np.random.default_rng(random_state).permutation(n_rows)[: n_rows // 2]] = True
    return second


def _reach(distance: Array, levels: Sequence[float]) -> Array:
    """How far from one half a calibrated interval reaches in probability (A, L): the split conformal quantile."""
    n = len(distance)
    ordered = np.vstack([np.sort(distance, axis=0), np.full((1, distance.shape[1]), 0.5)])
    places = [min(int(np.ceil((n + 1) * level)) - 1, n) for level in levels]
    return ordered[places]


def calibrated_widths(parts: Sequence[Part], rows: JudgedRows, reach: Array, draws: dict[int, Array] | None) -> Array:
    """Mean width of the intervals between probabilities one half less and plus a reach.

    Args:
        parts: Models and their rows.
        rows: All rows, of which at most :data:`WIDTH_ROWS` are asked.
        reach: Of each row and label (N, L).
        draws: Draws of some rows, where laws are asked by draws; None asks for quantiles.

    Returns:
        Widths (L,).
    """
    if draws is not None:
        drawn = list(draws)
        table = np.stack([draws[row] for row in drawn], axis=1)
        return np.asarray(drawn_widths(table, 0.5 - reach[drawn], 0.5 + reach[drawn]).mean(axis=0))
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[:: -(-len(rows) // WIDTH_ROWS)] = True
    widths: list[Array] = []
    for part in parts:
        here = part.rows[chosen[part.rows]]
        for block, law in law_blocks(part.model, rows.pick(here).X) if len(here) else ():
            low, high = 0.5 - reach[here[block]], 0.5 + reach[here[block]]
            if rows.D.shape[1] <= FEW_LABELS:  # by the tables of all labels, which are there already
                widths += _few_widths(law, low, high)
                continue
            columns = []
            for r in range(rows.D.shape[1]):
                ends = to_numpy(law.marginal(r).icdf(tensor_for(law, np.stack([low[:, r], high[:, r]]))))
                columns.append(ends[1] - ends[0])
            widths.append(np.stack(columns, axis=1))
    return np.asarray(np.concatenate(widths).mean(axis=0))


def _few_widths(law: Any, low: Array, high: Array) -> list[Array]:
    """The widths (b, L) of some rows, in parts: rows with the same levels are asked together."""
    parts = []
    levels = np.concatenate([low, high], axis=1)  # (b, 2 L)
    for wanted in np.unique(levels, axis=0):
        same = np.flatnonzero((levels == wanted).all(axis=1))
        each = np.diagonal(to_numpy(law[same].quantiles(wanted)).reshape(len(same), -1, 2, low.shape[1]), 0, 1, 3)
        parts.append(np.asarray(each[:, 1] - each[:, 0]))
    return parts


def drawn_widths(draws: Array, low: Array, high: Array) -> Array:
    """Widths between two probabilities a label, by draws.

    Args:
        draws: Of every row (n, b, L).
        low: Lower probabilities (b, L).
        high: Upper ones (b, L).

    Returns:
        Widths (b, L).

    Example:
        >>> draws = np.linspace(0.0, 1.0, 101)[:, None, None]
        >>> drawn_widths(draws, np.full((1, 1), 0.05), np.full((1, 1), 0.95)).round(2)
        array([[0.9]])
    """
    ordered = np.sort(draws, axis=0)
    last = len(ordered) - 1
    ends = [
        np.take_along_axis(ordered, np.rint(level * last).astype(np.intp)[None], axis=0)[0] for level in (low, high)
    ]
    widths: Array = ends[1] - ends[0]
    return widths
