"""A report in numbers: coverage, which columns matter, where the model fails, and everything put together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.laws import law_blocks, tensor_for, to_numpy
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl.apps.reports.answers import FEWEST_ROWS, LEVEL, Answers, JudgedRows, Part, ask, cross_fit
from snefy_ldl.apps.reports.scores import FOLDS, Difference, ScoreLine, fit_rivals, measure_doubling, score_lines
from snefy_ldl.conformal.choice import FEWEST_COMPARED
from snefy_ldl.conformal.report import conditional_rows, spaced_rows
from snefy_ldl.datasets.grouping import group_folds
from snefy_ldl.errors import InputError, TableNote
from snefy_ldl.explain.effects import group_variance
from snefy_ldl.explain.features import column_names
from snefy_ldl.explain.importance import Importance, rank_columns
from snefy_ldl.metrics import JointCalibration, coverage, interval_width, joint_calibration_test, kl_divergence
from snefy_ldl.metrics.averages import covered_labels
from snefy_ldl.metrics.intervals import covered_within
from snefy_ldl.metrics.joint import FEWEST_ROWS as FEWEST_JOINT

#: Levels of the coverage curves; the ends of the intervals that the tables speak of are at :data:`LEVEL`.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Fewest rows to calibrate on: half of them must allow a level of 0.95.
FEWEST_CALIBRATED = 40
#: Rows whose calibrated intervals stand for all in the mean width, at most so many.
WIDTH_ROWS = 150


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
        by_row: How far coverage depends on the row, as :func:`~snefy_ldl.conformal.report.conditional_rows` gives it:
            of the stored calibration's intervals, otherwise of the model's own; empty below 60 rows.

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
    by_row: Sequence[dict[str, Any]] = ()


def judge_coverage(
    parts: Sequence[Part],
    rows: JudgedRows,
    answers: Answers,
    calibration: Any = None,
    random_state: int = 0,
    feature: Array | None = None,
) -> Trust | None:
    """How often shares lie inside their intervals: the model's own, and calibrated ones.

    Args:
        parts: Models and their rows.
        rows: All rows.
        answers: The models' answers for them.
        calibration: Conformalized intervals with :data:`LEVEL` among their levels; None calibrates each half of the
            rows (of the groups, where rows were judged by group) on the other half, by the method "cdf" of
            :class:`~snefy_ldl.conformal.ConformalIntervals`.
        random_state: Seed of the halves.
        feature: One number per row (N,) that coverage may depend on; None leaves that out.

    Returns:
        The coverages; None for votes, which do not show the shares behind them.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.apps.reports import ask
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> parts = [Part(SnefyLDL(guides=None, epochs=3, random_state=0).fit(city.X, city.D), np.arange(120))]
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> judge_coverage(parts, rows, ask(parts, rows)).calibrated.shape
        (3,)
    """
    below, up_to = answers.below, answers.up_to
    if below is None or up_to is None:
        return None
    curve = np.array([covered_within(below, up_to, level / 2).mean() for level in LEVELS])
    inside, width = coverage(rows.D, answers.ends, per_label=True), interval_width(answers.ends, per_label=True)
    enough = answers.joint is not None and len(rows) >= FEWEST_JOINT
    joint = joint_calibration_test(answers.joint) if enough else None
    if calibration is not None:
        ends = _stored_ends(calibration, rows)
        held, by_row = coverage(rows.D, ends, per_label=True), _by_row(rows, answers, ends, feature)
        return Trust(curve, None, inside, held, width, interval_width(ends, per_label=True), joint, True, by_row)
    if len(rows) < FEWEST_CALIBRATED:
        return Trust(curve, None, inside, None, width, None, joint, False)
    halves, distance = np.zeros(len(rows), dtype=bool), np.abs(up_to - 0.5)
    random, groups = np.random.default_rng(random_state), rows.groups
    if groups is None or len(parts) == 1:
        halves[random.permutation(len(rows))[: len(rows) // 2]] = True
    else:  # rows were judged as those of new groups
        halves = group_folds(groups, 2, random) == 0
    reach = np.stack([_reach(distance[~halves], LEVELS), _reach(distance[halves], LEVELS)])  # (2, A, L)
    each = reach[halves.astype(np.intp) ^ 1]  # a row of the second half is judged by the first one's reach
    calibrated = covered_within(below[:, None, :], up_to[:, None, :], each)
    place = LEVELS.index(LEVEL)
    widths = calibrated_widths(parts, rows, each[:, place])
    held, by_row = calibrated[:, place].mean(axis=0), _by_row(rows, answers, answers.ends, feature)
    return Trust(curve, calibrated.mean(axis=(0, 2)), inside, held, width, widths, joint, False, by_row)


def _by_row(rows: JudgedRows, answers: Answers, ends: Array, feature: Array | None) -> list[dict[str, Any]]:
    """How far coverage depends on the row: on what is predicted, the largest predicted share, the width, a feature."""
    if len(rows) < FEWEST_COMPARED:
        return []
    predicted = np.hstack([answers.mean, answers.high - answers.low])[spaced_rows(len(rows))]
    largest = answers.mean.argmax(axis=1)
    return conditional_rows(rows.D, ends, LEVEL, largest, feature, (4,), predicted=predicted)


def _stored_ends(calibration: Any, rows: JudgedRows) -> Array:
    """Intervals (N, L, 2) of level :data:`LEVEL`, of one level or of several."""
    ends = np.asarray(calibration.predict_interval(rows.X), dtype=np.float64)
    return ends if ends.ndim == 3 else ends[..., list(calibration.confidence_level).index(LEVEL)]


def _reach(distance: Array, levels: Sequence[float]) -> Array:
    """How far from one half a calibrated interval reaches in probability (A, L): the split conformal quantile."""
    n = len(distance)
    ordered = np.vstack([np.sort(distance, axis=0), np.full((1, distance.shape[1]), 0.5)])
    places = [min(int(np.ceil((n + 1) * level)) - 1, n) for level in levels]
    return ordered[places]


def calibrated_widths(parts: Sequence[Part], rows: JudgedRows, reach: Array) -> Array:
    """Mean width of the intervals between probabilities one half less and plus a reach.

    Args:
        parts: Models and their rows.
        rows: All rows, of which at most :data:`WIDTH_ROWS` are asked.
        reach: Of each row and label (N, L).

    Returns:
        Widths (L,).
    """
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[:: -(-len(rows) // WIDTH_ROWS)] = True
    widths: list[Array] = []
    for part in parts:
        here = part.rows[chosen[part.rows]]
        for block, law in law_blocks(part.model, rows.pick(here).X) if len(here) else ():
            low, high = 0.5 - reach[here[block]], 0.5 + reach[here[block]]
            columns = []
            for r in range(rows.D.shape[1]):
                ends = to_numpy(law.marginal(r).icdf(tensor_for(law, np.stack([low[:, r], high[:, r]]))))
                columns.append(ends[1] - ends[0])
            widths.append(np.stack(columns, axis=1))
    return np.asarray(np.concatenate(widths).mean(axis=0))


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
        One entry per column, the most important first.

    Raises:
        InputError: The features are not a table.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.apps.reports import ask
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> parts = [Part(SnefyLDL(guides=None, epochs=3, random_state=0).fit(city.X, city.D), np.arange(120))]
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> len(permutation_importance(parts, rows, ask(parts, rows)))
        5
    """
    return rank_columns(
        [(part.model, part.rows) for part in parts],
        rows.X,
        (rows.D, rows.counts),
        rows.labels,
        np.random.default_rng(random_state),
        before=(answers.log_prob, answers.mean),
    )


#: Most values of a column that make a group each; columns of more are cut into quarters.
MOST_VALUES = 8
#: Fewest rows of a group.
FEWEST_IN_GROUP = 10
#: Means of a Kullback-Leibler divergence that differ by less than this differ by rounding.
SMALLEST_GAP = 1e-9
#: Chance that a group is called worse by luck alone, over all groups together.
FALSE_ALARM = 0.05


@dataclass(frozen=True)
class RowMiss:
    """A row that the model misses.

    Args:
        row: Its number, counted from 0.
        kl: KL divergence of the predicted mean from what was observed.
        surprise: Chance of a share at least as far out under the model, of the label that is furthest out, times the
            number of labels: near 1 the model knew that it did not know. None for votes.
        outside: Labels whose share lies outside its interval.

    Example:
        >>> RowMiss(0, 0.5, 0.01, ["clay"]).outside
        ['clay']
    """

    row: int
    kl: float
    surprise: float | None
    outside: list[str]


@dataclass(frozen=True)
class GroupMiss:
    """A group of rows on which the model is worse than on the others.

    Args:
        column: The column that makes the group.
        value: Which of its values, in words.
        n: Rows of the group.
        kl: Their mean KL divergence.
        kl_others: That of the other rows.
        p_value: Chance of such a difference by luck alone (Welch's test), times the number of groups looked at.
        coverage: Share of labels inside their interval in the group; None for votes.

    Example:
        >>> GroupMiss("depth", "above 80", 30, 0.3, 0.1, 0.001, 0.8).n
        30
    """

    column: str
    value: str
    n: int
    kl: float
    kl_others: float
    p_value: float
    coverage: float | None


def worst_rows(answers: Answers, rows: JudgedRows, n: int = 6) -> list[RowMiss]:
    """The rows whose predicted mean is furthest from what was observed, by KL divergence.

    Args:
        answers: The model's, for all rows.
        rows: What was observed.
        n: How many.

    Returns:
        The worst first.

    Example:
        >>> D = np.array([[0.5, 0.5]] * 11 + [[0.9, 0.1]])
        >>> half = np.full((12, 2), 0.5)
        >>> worst_rows(Answers(half, half - 0.1, half + 0.1, np.zeros(12)), JudgedRows(D, D, ["a", "b"]), 1)[0].row
        11
    """
    kl = kl_divergence(rows.D, answers.mean, per_row=True)
    missed = ~covered_labels(rows.D, answers.ends)
    misses = []
    for row in np.argsort(-kl, kind="stable")[:n]:
        surprise = None
        if answers.pit is not None:
            tails = 2.0 * np.minimum(answers.pit[row], 1.0 - answers.pit[row])
            surprise = min(1.0, float(tails.min()) * rows.D.shape[1])
        outside = [] if rows.counts is not None else [rows.labels[r] for r in np.flatnonzero(missed[row])]
        misses.append(RowMiss(int(row), float(kl[row]), surprise, outside))
    return misses


def worst_groups(answers: Answers, rows: JudgedRows, n: int = 6) -> tuple[list[GroupMiss], int]:
    """Groups on which the predicted mean is further off than on the other rows, more than luck explains.

    Groups are the values of each column, quarters of a column of many numbers, and the label predicted largest.

    Args:
        answers: The model's, for all rows.
        rows: What was observed.
        n: At most so many.

    Returns:
        The groups, the surest first, and how many were looked at.

    Example:
        >>> D = np.array([[0.5, 0.5]] * 30 + [[0.8, 0.2], [0.7, 0.3]] * 15)
        >>> half = np.full((60, 2), 0.5)
        >>> answers = Answers(half, half - 0.1, half + 0.1, np.zeros(60))
        >>> groups, looked = worst_groups(answers, JudgedRows(np.repeat([0.0, 1.0], 30)[:, None], D, ["a", "b"]))
        >>> groups[0].value, looked
        ('1', 2)
    """
    kl = kl_divergence(rows.D, answers.mean, per_row=True)
    inside = covered_labels(rows.D, answers.ends).mean(axis=1)
    groups = [
        group for group in row_groups(answers, rows) if FEWEST_IN_GROUP <= group[2].sum() <= len(rows) - FEWEST_IN_GROUP
    ]
    misses = []
    for column, value, members in groups:
        here, others = kl[members], kl[~members]
        if here.mean() - others.mean() <= SMALLEST_GAP:
            continue
        chance = 0.0
        if here.std() + others.std() > 0.0:
            both = [number for kls in (here, others) for number in (kls.mean(), kls.std(ddof=1), len(kls))]
            chance = float(stats.ttest_ind_from_stats(*both, equal_var=False, alternative="greater").pvalue)
        covered = None if rows.counts is not None else float(inside[members].mean())
        p_value = min(1.0, chance * len(groups))
        misses.append(GroupMiss(column, value, len(here), float(here.mean()), float(others.mean()), p_value, covered))
    clear = [miss for miss in misses if miss.p_value <= FALSE_ALARM]
    return sorted(clear, key=lambda miss: (miss.p_value, -miss.kl))[:n], len(groups)


def row_groups(answers: Answers, rows: JudgedRows) -> Iterator[tuple[str, str, Mask]]:
    """Groups of rows by each column, and by the label predicted largest.

    Args:
        answers: The model's, for all rows.
        rows: The rows.

    Yields:
        A column, its value in words, and which rows have it (N,).
    """
    X = rows.features
    for name in column_names(X):
        column = X[name] if hasattr(X, "columns") else np.asarray(X)[:, int(name[1:]) - 1]
        yield from ((name, value, members) for value, members in _column_groups(*_cells(column)))
    largest = answers.mean.argmax(axis=1)
    for r, label in enumerate(rows.labels):
        yield "largest predicted share", label, largest == r


def number_words(value: float) -> str:
    """A number as one writes it in a sentence.

    Args:
        value: Any number.

    Returns:
        Three digits, or all those before the point of a large number.

    Example:
        >>> number_words(3945.2), number_words(0.03312), number_words(7.0), number_words(2e9)
        ('3,945', '0.0331', '7', '2e+09')
    """
    return f"{value:,.0f}" if 1000.0 <= abs(value) < 1e7 else f"{value:.3g}"


def _cells(column: Any) -> tuple[Any, Mask]:
    """A column as numbers where it mostly holds some, else as it is; and which of its cells are missing (N,)."""
    if not hasattr(column, "isna"):
        values = np.asarray(column)
        return values, np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    import pandas as pd  # an extra, which the table is of

    missing = column.isna().to_numpy()
    if column.dtype.kind in "bM" or isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(str).to_numpy(), missing
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isfinite(numbers).sum() >= 0.9 * (~missing).sum():
        return numbers, np.isnan(numbers)
    return column.astype(str).to_numpy(), missing


def _column_groups(values: Any, missing: Mask) -> Iterator[tuple[str, Mask]]:
    """Values of a column in words, and which rows have them."""
    numeric = values.dtype.kind in "iuf"
    if missing.any():
        yield "missing", missing
    if not numeric:
        levels, index, counts = np.unique(values.astype(str), return_inverse=True, return_counts=True)
        for k in np.argsort(-counts, kind="stable")[:MOST_VALUES]:
            if not missing[index == k].all():
                yield str(levels[k]), index == k
        return
    numbers = values.astype(np.float64)
    distinct = np.unique(numbers[~missing])
    if len(distinct) <= MOST_VALUES:
        for value in distinct:
            yield number_words(value), numbers == value
        return
    low, middle, high = np.quantile(numbers[~missing], [0.25, 0.5, 0.75])
    first, second, third = (number_words(cut) for cut in (low, middle, high))
    yield f"up to {first}", numbers <= low
    yield f"{first} to {second}", (numbers > low) & (numbers <= middle)
    yield f"{second} to {third}", (numbers > middle) & (numbers <= high)
    yield f"above {third}", numbers > high


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
        doubling: KL divergence of SA-BFGS less what it has when it learns from half as many rows.
        rival_rows: Rows that SA-BFGS learned from.
        trust: Coverage before and after calibration; None for votes.
        importance: What shuffling each column costs, the most important first.
        worst_rows: The rows missed most.
        worst_groups: Groups that are clearly worse.
        groups_looked_at: Among how many these were found.
        shown: Numbers of the surest, a typical and the least sure row.
        trained_here: Whether rivals learned from the judged rows, four fifths for each fifth.
        folds: In how many folds the model was fitted anew for the report; 0 where it answered itself.
        group_shares: Share of each label's variance between and within groups
            (:func:`~snefy_ldl.explain.group_variance`); None where the model has no group effects.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> from snefy_ldl.apps.reports import JudgedRows
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
    doubling: Difference
    rival_rows: int
    trust: Trust | None
    importance: list[Importance]
    worst_rows: list[RowMiss]
    worst_groups: list[GroupMiss]
    groups_looked_at: int
    shown: list[int]
    trained_here: bool
    folds: int
    group_shares: Any = None

    def dist_of(self, row: int) -> Any:
        """The predicted distribution of one row, by the model that answered for it.

        Args:
            row: Its number, counted from 0.

        Returns:
            A distribution with batch (1,).
        """
        part = next(part for part in self.parts if row in part.rows)
        return next(dist for _, dist in law_blocks(part.model, self.rows.pick([row]).X))

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
        >>> model = SnefyLDL(guides=None, epochs=3, random_state=0).fit(city.X[:100], city.D[:100])
        >>> report = make_report(model, JudgedRows(city.X[100:], city.D[100:], city.label_names))
        >>> len(report.scores), len(report.importance), report.trained_here
        (7, 5, True)
    """
    if len(rows) < FEWEST_ROWS:
        raise InputError(f"a report needs at least {FEWEST_ROWS} rows with known labels; got {len(rows)}.")
    parts = cross_fit(model, rows, folds, random_state) if folds else [Part(model, np.arange(len(rows)))]
    answers = ask(parts, rows, random_state)
    features = _feature_numbers(model, rows.features)
    rivals = fit_rivals(
        rows,
        features,
        train,
        None if train is None else _feature_numbers(model, train.features),
        density=answers.kind != "shares with zeros",
        by_group=folds > 0,
    )
    groups, looked = worst_groups(answers, rows)
    order = np.argsort(answers.width, kind="stable")
    return Report(
        model=model,
        rows=rows,
        parts=parts,
        answers=answers,
        rivals=[rival.name for rival in rivals],
        scores=score_lines(answers, rows, rivals),
        doubling=measure_doubling(rows, rivals[-1]),
        rival_rows=len(rows) * (FOLDS - 1) // FOLDS if train is None else len(train),
        trust=judge_coverage(parts, rows, answers, None if folds else calibration, random_state, features[:, 0]),
        importance=permutation_importance(parts, rows, answers, random_state),
        worst_rows=worst_rows(answers, rows),
        worst_groups=groups,
        groups_looked_at=looked,
        shown=[int(order[place]) for place in (0, len(order) // 2, -1)],
        trained_here=train is None,
        folds=folds,
        group_shares=None if getattr(model, "group_effects_", None) is None else group_variance(model),
    )


def _feature_numbers(model: Any, X: Any) -> Array:
    """Features as numbers without gaps (N, k), encoded as the model encodes them."""
    columns = getattr(model, "columns_", None)
    with warnings.catch_warnings():  # the predictions have warned already of what is odd about the table
        warnings.simplefilter("ignore", TableNote)
        return np.asarray(X if columns is None else columns.transform(X), dtype=np.float64)
