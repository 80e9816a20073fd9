"""What intervals did on rows with known labels: one call, one table."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snefy_ldl import metrics
from snefy_ldl._internal.dists import dist_blocks
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_distributions, check_same_index
from snefy_ldl.conformal.choice import FEWEST_COMPARED
from snefy_ldl.conformal.label_intervals import ConformalIntervals
from snefy_ldl.conformal.local_thresholds import column_values
from snefy_ldl.conformal.outlying import predicted_features
from snefy_ldl.conformal.scores import QuantileScore
from snefy_ldl.conformal.thresholds import check_groups, check_levels, check_model
from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.metrics import conditional
from snefy_ldl.metrics.joint import FEWEST_ROWS, JointCalibration

#: Most rows that the test of joint calibration looks at.
JOINT_ROWS = 2000
#: Most rows that the worst slab looks at; numbers of groups by the width of intervals, and by a feature.
CONDITIONAL_ROWS, SIZES, BINS = 1000, 4, (2, 4, 8)
#: Columns of the table, in order.
COLUMNS = ("level", "part", "name", "n", "coverage", "std_error", "expected", "width", "score")


class CoverageReport:
    """The table that :func:`coverage_report` makes; print it, or take ``.table`` or ``.to_frame()``.

    Each row is a dict. ``part`` is what was measured: "marginal" (all labels), "joint" (all labels of a row at once),
    "label", "group", the worst of several groups: "worst group", "SSC" (by width), "FSC" (by a feature) and "worst
    slab" (of the predicted means and standard deviations). ``expected`` is what intervals with perfect conditional
    coverage would show; the lowest of several noisy shares lies below the level. ``width`` is the mean width, ``score``
    the interval (Winkler) score; lower is better for both. A missing value is None.

    Args:
        table: The rows, dicts with the keys of :data:`COLUMNS`.
        joint_calibration: The test of joint calibration, printed under the table; None if the model's distributions
            have no Rosenblatt map.

    Example:
        >>> row = dict.fromkeys(COLUMNS) | {"part": "joint", "name": "", "n": 10, "coverage": 0.9}
        >>> CoverageReport([row]).table[0]["coverage"]
        0.9
    """

    def __init__(self, table: list[dict[str, Any]], joint_calibration: JointCalibration | None = None) -> None:
        self.table, self.joint_calibration = table, joint_calibration

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.table, columns=list(COLUMNS))

    def __rich__(self) -> Table:
        caption = None if self.joint_calibration is None else Text(str(self.joint_calibration))
        table = Table(title="coverage", caption=caption)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column in ("part", "name") else "right")
        for row in self.table:
            table.add_row(*(Text(_cell(row[column])) for column in COLUMNS))  # a group may be named [/]: no markup
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue()


def coverage_report(
    model: Any,
    X: Any,
    D: Any,
    *,
    confidence_level: float | Sequence[float] = 0.9,
    groups: Any = None,
    feature: Any = 0,
    label_names: Sequence[str] | None = None,
) -> CoverageReport:
    """Marginal, joint, per-label, per-group and conditional coverage, with widths, scores and what to expect.

    Args:
        model: Conformalized :class:`ConformalIntervals`; or a fitted model with ``predict_dist``, whose own central
            intervals are then judged.
        X: Rows that neither the fit nor the calibration has seen.
        D: Their label distributions.
        confidence_level: Level(s) for a plain model; conformal objects bring their own.
        groups: Group of each row, for coverage within groups; handed on to a calibration that used groups.
        feature: Column of X, or values (N,), that makes the FSC groups; None for no FSC.
        label_names: Names of the labels; by default those of D or of the model.

    Returns:
        The report; its ``table`` is a list of dicts, its ``joint_calibration`` the test that all shares together fit
        the model's distribution, before any calibration (on at most 2,000 rows; false alarms at most 1 %).

    Raises:
        InputError: Rows, labels, groups or names that break a rule.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=400, random_state=0)
        >>> model = SnefyLDL(guides=None, epochs=3, random_state=0).fit(city.X[:150], city.D[:150])
        >>> ci = ConformalIntervals(model, 0.9).conformalize(city.X[150:250], city.D[150:250])
        >>> report = coverage_report(ci, city.X[250:], city.D[250:])
        >>> [row["part"] for row in report.table][:5]
        ['marginal', 'joint', 'label', 'label', 'label']
    """
    check_same_index(X, D)
    X = as_rows(X)
    predictor = getattr(model, "model", model)
    labels, column_names = check_distributions(D, n_rows=count_rows(X), model=predictor)
    names = check_groups(groups, len(labels))
    values = _feature_values(X, feature)
    table: list[dict[str, Any]] = []
    given_names = label_names or column_names or getattr(predictor, "label_names_", None) or range(labels.shape[1])
    titles = [str(name) for name in given_names]
    if len(titles) != labels.shape[1]:
        raise InputError(f"label_names has {len(titles)} names for {labels.shape[1]} labels.")
    levels, ends, joint = _all_ends(model, X, confidence_level, groups)
    shown, predicted = spaced_rows(len(labels)), None
    if len(shown) >= FEWEST_COMPARED:
        predicted = predicted_features(take_rows(X, shown), predictor)
    for a, level in enumerate(levels):
        rows = _interval_rows(labels, ends[..., a], level, joint, names, titles)
        rows += conditional_rows(labels, ends[..., a], level, names, values, predicted=predicted)
        table += [{"level": level, **row} for row in rows]
    return CoverageReport(table, _joint_calibration(predictor, X, labels))


def _joint_calibration(model: Any, X: Any, D: Array) -> JointCalibration | None:
    """The test of joint calibration on at most :data:`JOINT_ROWS` rows, evenly spaced; None if there is no map."""
    if not hasattr(model, "predict_dist") or len(D) < FEWEST_ROWS:
        return None
    _, dist = next(dist_blocks(model, take_rows(X, np.zeros(1, dtype=np.intp))))
    if not hasattr(dist, "rosenblatt"):
        return None
    rows = np.linspace(0, len(D) - 1, min(len(D), JOINT_ROWS)).astype(np.intp)
    part = X if len(rows) == len(D) else take_rows(X, rows)
    with warnings.catch_warnings():  # the fit has warned about zeros already
        warnings.simplefilter("ignore", LabelWarning)
        return metrics.joint_calibration_test(metrics.joint_pit(model, part, D[rows]))


def _feature_values(X: Any, feature: Any) -> Array | None:
    if feature is None or (np.ndim(feature) == 0 and not hasattr(X, "shape")):
        return None
    if np.ndim(feature) == 1:
        return np.asarray(feature, dtype=np.float64)
    return np.asarray(column_values(X, feature), dtype=np.float64)


def _all_ends(model: Any, X: Any, levels: Any, groups: Any) -> tuple[list[float], Array, bool]:
    """Levels, ends (N, L, 2, A), and whether they promise joint coverage."""
    if isinstance(model, ConformalIntervals):
        ends = model.predict_interval(X, groups if model.uses_groups else None)
        calibrated, single = check_levels(model.confidence_level)
        return calibrated, ends[..., None] if single else ends, model.simultaneous
    checked, _ = check_levels(levels)
    parts = []
    for _, dist in dist_blocks(check_model(model), X):
        score = QuantileScore().bound_to(dist, checked)
        parts.append(np.stack(score.ends(np.zeros((1, 1, len(checked)))), axis=2))
    return checked, np.concatenate(parts), False


def _row(part: str, name: str, n: int, covered: Any, expected: float | None, width: Any, score: Any) -> dict[str, Any]:
    numbers = dict(zip(COLUMNS[4:], (*covered, expected, width, score)))
    about = {"part": part, "name": name, "n": n}
    return {**about, **{column: None if value is None else float(value) for column, value in numbers.items()}}


def _interval_rows(
    D: Array, ends: Array, level: float, joint: bool, names: Any, titles: list[str]
) -> list[dict[str, Any]]:
    """Coverage on average, of all labels at once, of each label and of each group."""
    n = len(D)
    width, score = metrics.interval_width(ends), metrics.interval_score(D, ends, level)
    together = metrics.joint_coverage(D, ends, return_std_error=True)
    rows = [
        _row("marginal", "", n, metrics.coverage(D, ends, return_std_error=True), level, width, score),
        _row("joint", "", n, together, level if joint else None, width, None),
    ]
    each = zip(*metrics.coverage(D, ends, per_label=True, return_std_error=True))
    widths = metrics.interval_width(ends, per_label=True)
    scores = metrics.interval_score(D, ends, level, per_label=True)
    rows += [_row("label", title, n, one, level, *sizes) for title, one, *sizes in zip(titles, each, widths, scores)]
    for name in np.unique(names) if names is not None else ():
        inside = names == name
        covered = metrics.coverage(D[inside], ends[inside], return_std_error=True)
        size = metrics.interval_width(ends[inside]), metrics.interval_score(D[inside], ends[inside], level)
        rows.append(_row("group", str(name), int(inside.sum()), covered, level, *size))
    return rows


def spaced_rows(n: int) -> Index:
    """Numbers of at most :data:`CONDITIONAL_ROWS` rows, evenly spaced.

    Args:
        n: Rows there are.

    Returns:
        Their numbers.

    Example:
        >>> spaced_rows(3), len(spaced_rows(5000))
        (array([0, 1, 2]), 1000)
    """
    return np.unique(np.linspace(0, n - 1, CONDITIONAL_ROWS).astype(np.intp))


def conditional_rows(
    D: Array,
    ends: Array,
    level: float,
    groups: Any = None,
    feature: Array | None = None,
    n_bins: Sequence[int] = BINS,
    predicted: Array | None = None,
) -> list[dict[str, Any]]:
    """How far coverage depends on the row, compared with what intervals with perfect conditional coverage would show.

    Args:
        D: Observed label distributions, (N, L).
        ends: Intervals, (N, L, 2).
        level: Their level.
        groups: Group of each row (N,), for "worst group"; None leaves it out.
        feature: One number per row (N,), for "FSC"; None leaves it out.
        n_bins: Numbers of FSC groups.
        predicted: What the model predicts for the rows of :func:`spaced_rows`, (n, k), for "worst slab"; None
            leaves it out.

    Returns:
        Rows as in :class:`CoverageReport`, means over labels.

    Example:
        >>> D, ends = np.full((4, 2), 0.5), np.tile([0.0, 1.0], (4, 2, 1))
        >>> [(row["part"], row["coverage"]) for row in conditional_rows(D, ends, 0.9)]
        [('SSC', 1.0)]
    """

    def worst(part: str, name: str, per_label: Array, expected: float) -> dict[str, Any]:
        title = f"{name}, mean label" if name else "mean label"
        return _row(part, title, len(D), (per_label.mean(), None), expected, None, None)

    rows = []
    if groups is not None:
        per_group = np.stack(list(conditional.group_coverage(groups, D, ends).values()))
        rows.append(worst("worst group", "", per_group.min(axis=0), conditional.group_ceiling(groups, level)))
    stratified = metrics.size_stratified_coverage(D, ends, SIZES)
    expected = float(conditional.ssc_ceiling(ends, SIZES, level).mean())
    rows.append(worst("SSC", f"{SIZES} widths", stratified, expected))
    for count in n_bins if feature is not None else ():
        stratified = metrics.feature_stratified_coverage(feature, D, ends, count)
        rows.append(worst("FSC", f"{count} groups", stratified, conditional.fsc_ceiling(feature, count, level)))
    if predicted is not None:
        shown = spaced_rows(len(D))
        slab = metrics.worst_slab_coverage(predicted, D[shown], ends[shown])
        rows.append(worst("worst slab", "", slab, level))  # other rows measure it than those that found it
    return rows


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 and value != 0.0 else f"{value:.4f}"
    return str(value)
