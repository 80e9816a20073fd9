"""Average effects: what a step of a feature, or another level of it, does to predictions; and what groups explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.datasets.grouping import in_groups
from snefy_ldl.errors import InputError
from snefy_ldl.explain.features import MOST_LEVELS, Feature, Table, choose_rows
from snefy_ldl.explain.quantities import (
    Answer,
    Quantity,
    answer,
    choose_quantity,
    frame_or_columns,
    label_names,
    member_band,
    model_list,
    resample_weights,
    row_band,
)
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["Effect", "Effects", "effects"]

#: Half the stretch over which a slope is taken, in spreads of the column: wide enough that a model that looks at trees,
#: and so moves in small steps, has a slope, too.
SLOPE_REACH = 0.05
#: The middle half of normal numbers is this many standard deviations wide.
MIDDLE_HALF = 1.349
#: A share of rows beyond all known values that is not worth a word.
FEW_OUTSIDE = 0.005
#: What the intervals are made of.
SOURCES = {
    "members": "intervals: what the members disagree on (estimate ± t · their standard deviation)",
    "bootstrap": "intervals: rows drawn again; the model itself is taken as given",
}


@dataclass(frozen=True)
class Effect:
    """One average effect, in the words of marginaleffects.

    Args:
        term: the feature.
        contrast: "dY/dX" for a slope, "+10" for a step, "clay - loam" for two levels.
        label: the label, or the number that was asked for.
        estimate: average over the rows.
        std_error: its standard error; what it is made of, ``Effects.confidence`` says.
        conf_low: lower end of the interval.
        conf_high: upper end.

    Example:
        >>> Effect("rain", "+10", "sand", 0.012, 0.004, 0.004, 0.02).contrast
        '+10'
    """

    term: str
    contrast: str
    label: str
    estimate: float
    std_error: float
    conf_low: float
    conf_high: float


@dataclass(frozen=True, eq=False)
class Effects:
    """Average effects and contrasts; made by :func:`effects`.

    Args:
        entries: one per contrast and label.
        words: what is predicted.
        confidence: "members" or "bootstrap": what the intervals are made of.
        confidence_level: of the intervals.
        n_rows: how many rows were averaged.
        is_share: whether the numbers are shares or probabilities, written in percentage points.
        outside: term -> share of the rows that the step takes beyond all values that the rows hold.

    Example:
        >>> one = Effect("rain", "+10", "sand", 0.012, 0.004, 0.004, 0.02)
        >>> print(Effects([one], "mean share", "members", 0.95, 300, True, {}).sentences()[0])
        rain +10: sand +1.2 points [+0.4, +2.0]
    """

    entries: list[Effect]
    words: str
    confidence: str
    confidence_level: float
    n_rows: int
    is_share: bool
    outside: dict[str, float]

    @cached_property
    def frame(self) -> Any:
        """One row per entry: term, contrast, label, estimate, std_error, conf_low, conf_high.

        A pandas DataFrame; a dict of arrays where pandas is not installed.
        """
        names = list(Effect.__dataclass_fields__)
        return frame_or_columns({name: [getattr(entry, name) for entry in self.entries] for name in names})

    def sentences(self) -> list[str]:
        """The steps and contrasts, one line each; slopes are in the frame.

        Returns:
            Such as "rain +10: sand +1.2 points [+0.4, +2.0]".
        """
        scale, unit = (100.0, " points") if self.is_share else (1.0, "")
        digits = 1 if self.is_share else 3
        lines = []
        for entry in self.entries:
            if entry.contrast != "dY/dX":
                change, low, high = (scale * x for x in (entry.estimate, entry.conf_low, entry.conf_high))
                ends = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
                lines.append(f"{entry.term} {entry.contrast}: {entry.label} {change:+.{digits}f}{unit} {ends}")
        return lines

    def plot(self, ax: Axes | None = None, slopes: bool = False) -> Axes:
        """Each effect with its interval, one line per entry.

        Args:
            ax: axes to draw on; a new figure by default.
            slopes: whether to draw the slopes instead of steps and contrasts.

        Returns:
            The axes.

        Raises:
            InputError: there is nothing of that kind to draw.
        """
        shown = [entry for entry in self.entries if (entry.contrast == "dY/dX") == slopes]
        if not shown:
            raise InputError("there are no slopes: the features are categories." if slopes else "there are no steps.")
        percent = self.is_share and not slopes
        table = np.array([[entry.estimate, entry.conf_low, entry.conf_high] for entry in shown])
        table = table * (100.0 if percent else 1.0)
        ax = style.axes(ax, (5.6, 0.8 + 0.26 * len(shown)))
        places, texts, last = np.arange(len(shown), dtype=float), [], ""
        labels = list(dict.fromkeys(entry.label for entry in shown))
        for k, (entry, (middle, low, high)) in enumerate(zip(shown, table)):
            contrast = f"{entry.term} {entry.contrast}"
            places[k:] += 0.5 if contrast != last and k else 0.0  # a gap between contrasts
            words = contrast if entry.label == self.words else f"{contrast}   {entry.label}"
            texts.append(words if contrast != last else entry.label)
            last = contrast
            color = style.label_color(labels.index(entry.label)) if len(labels) > 1 else style.MODEL
            ax.hlines(places[k], low, high, color=color, linewidth=2.4, alpha=0.55)
            ax.scatter(middle, places[k], color=color, edgecolors="white", s=40, zorder=3)
        ax.axvline(0.0, color=style.QUIET, linewidth=1.0, linestyle=style.DASHES, zorder=1)
        ax.set_yticks(places, texts)
        unit = ", in percentage points" if percent else ""
        style.quiet(ax, grid="x", ylim=(places[-1] + 0.6, -0.6), xlabel=f"change of {self.words}{unit}")
        ax.tick_params(axis="y", length=0)
        return ax

    def __str__(self) -> str:
        lines = self.sentences()
        lines.append(f"effects on {self.words}, averaged over {self.n_rows:,} rows")
        lines.append(f"{self.confidence_level:.0%} {SOURCES[self.confidence]}")
        for term, part in self.outside.items():
            lines.append(f"{term}: the step takes {part:.0%} of the rows beyond the values that any row holds")
        return "\n".join(lines)


def effects(
    model: Any,
    X: Any,
    feature: Any = None,
    step: Any = None,
    of: Any = "mean",
    reference: Any = None,
    confidence: Literal["auto", "members", "bootstrap"] = "auto",
    confidence_level: float = 0.95,
    max_rows: int | None = 2000,
    random_state: Any = 0,
    groups: Any = None,
) -> Effects:
    """Average effects of features on the predictions: slopes, steps, and contrasts between levels.

    A number's slope is the average of ``(f(x + h) - f(x - h)) / 2h``, h a twentieth of its spread (the standard
    deviation, or that of normal numbers with the same quartiles if less), both within the values that the rows hold;
    its step is the average of ``f(x + step) - f(x)``. A category's contrasts put every row at a level and at the
    reference. Rows keep their other cells; rows without the number are left out. These are effects on the prediction:
    causes are another matter.

    Args:
        model: a fitted model with ``predict_dist`` (or ``predict``, for the mean alone); or a list of models fitted to
            resampled rows, each of which counts as a member.
        X: rows to average over, (N, d), as the model takes them: a DataFrame with its raw columns, or an array.
        feature: name or number of a column, or several; None for every column that the model uses, except dates.
        step: how far a number moves, or a dict from feature to that; one standard deviation by default, rounded to one
            digit.
        of: "mean", "width", ("greater", a, b) or ("log_ratio", a, b), as :func:`dependence` takes it.
        reference: level that the others are compared with, or a dict from feature to that; by default the first of a
            pandas Categorical, False, or the most frequent.
        confidence: where intervals come from: "members", their disagreement; "bootstrap", rows drawn again, with the
            model as given; "auto" takes members where there are several.
        confidence_level: of the intervals.
        max_rows: rows at most, drawn at random; None for all.
        random_state: seed of that draw and of the bootstrap.
        groups: of the rows, as ``fit`` took them; None where they are not known. The bootstrap draws whole groups.

    Returns:
        The effects: ``.frame``, ``.sentences()``, ``.plot()``.

    Raises:
        InputError: a feature, level or label is not there, a step is not a number above or below 0, or members are
            asked for where there is one.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
        >>> frame = effects(model, city.X, 0, step=0.5).frame
        >>> list(frame.columns), frame["contrast"].unique().tolist()
        (['term', 'contrast', 'label', 'estimate', 'std_error', 'conf_low', 'conf_high'], ['dY/dX', '+0.5'])
    """
    models, level = model_list(model), check_confidence(confidence_level)
    if confidence not in ("auto", "members", "bootstrap"):
        raise InputError(f'confidence={confidence!r}: use "auto", "members" or "bootstrap".')
    random = np.random.default_rng(seed_from(random_state))
    X = in_groups(X, groups)
    table = Table(X, models[0], choose_rows(len(Table(X)), max_rows, random))
    quantity = choose_quantity(of, label_names(models, table.X))
    columns = _columns(table, feature)
    steps = {column.name: _step(column, step) for column in columns if column.kind == "number"}
    wants_members = confidence != "bootstrap"
    entries: list[Effect] = []
    outside: dict[str, float] = {}
    source = "members" if wants_members else "bootstrap"
    for column in columns:
        if column.kind == "number":
            here = np.flatnonzero(np.isfinite(column.cells))
            part = table if len(here) == len(table) else table.part(here)
            changes = _steps(models, part, column, steps[column.name], quantity, wants_members)
            left = _outside(column, steps[column.name])
            outside |= {column.name: left} if left >= FEW_OUTSIDE else {}
        else:
            part = table
            changes = _contrasts(models, part, column, column.setting(reference), quantity, wants_members)
        for contrast, change in changes:
            if len(change.members) < 2:
                if confidence == "members":
                    raise InputError("confidence='members' needs a model with several members, or a list of models.")
                source = "bootstrap"
            estimate = change.values.mean(axis=0)
            if source == "members":
                error, ends = member_band(estimate, change.members.mean(axis=1), level)
            else:
                weights = resample_weights(len(part), random, groups=part.groups)
                error, ends = row_band(change.values, weights, level)
            for q, label in enumerate(quantity.labels):
                figures = (float(x) for x in (estimate[q], error[q], *ends[q]))
                entries.append(Effect(column.name, contrast, label, *figures))
    return Effects(entries, quantity.words, source, level, len(table), quantity.is_share, outside)


def _columns(table: Table, feature: Any) -> list[Feature]:
    if feature is None:
        return [column for name in table.used() if (column := table.feature(name)).kind != "date"]
    wanted = feature if isinstance(feature, (list, tuple)) else [feature]
    columns = [table.feature(one) for one in wanted]
    for column in columns:
        if column.kind == "date":
            raise InputError(f"column {column.name!r} holds dates; dependence shows how predictions move along them.")
    return columns


def _step(column: Feature, step: Any) -> float:
    chosen = column.setting(step)
    if chosen is None:
        deviation = float(column.known().std())
        return float(f"{deviation:.0e}") if deviation > 0 else 1.0
    if isinstance(chosen, bool) or not isinstance(chosen, (int, float, np.number)) or not np.isfinite(chosen):
        raise InputError(f"step of {column.name!r} must be a number; got {chosen!r}.")
    if chosen == 0:
        raise InputError(f"step of {column.name!r} is 0: nothing would change.")
    return float(chosen)


def _outside(column: Feature, step: float) -> float:
    """Share of the rows that a step takes beyond the smallest and largest value of all rows."""
    known = column.known()
    moved = known + step
    return float(((moved < known.min()) | (moved > known.max())).mean())


def _steps(
    models: Sequence[Any], part: Table, column: Feature, step: float, quantity: Quantity, members: bool
) -> Iterator[tuple[str, Answer]]:
    """Slope and step of a number, over the rows that have one."""
    cells = column.known()

    def ask(values: Array) -> Answer:
        return answer(models, part.replaced({column.number: values}), quantity, members=members)

    high, low = cells + _reach(cells, step), cells - _reach(cells, step)
    if cells.min() < cells.max():
        high, low = np.minimum(high, cells.max()), np.maximum(low, cells.min())
    yield "dY/dX", _difference(ask(high), ask(low), (high - low)[:, None])
    yield f"{step:+g}", _difference(ask(cells + step), ask(cells), np.ones(1))


def _reach(cells: Array, step: float) -> float:
    """How far to either side of a number its slope looks."""
    first, third = np.quantile(cells, [0.25, 0.75])
    deviation = float(cells.std())
    middle = float(third - first) / MIDDLE_HALF
    return SLOPE_REACH * (min(deviation, middle) if middle > 0 else deviation or abs(step))


def _contrasts(
    models: Sequence[Any], table: Table, column: Feature, reference: Any, quantity: Quantity, members: bool
) -> Iterator[tuple[str, Answer]]:
    """Every level of a category against the reference."""
    levels = column.levels()
    if reference is not None and reference not in levels:
        known = ", ".join(str(level) for level in levels[:10])
        raise InputError(f"column {column.name!r} has no level {reference!r}; it has {known}.")
    first = levels[0] if reference is None else reference
    if len(levels) < 2:
        raise InputError(f"column {column.name!r} holds one level alone, {first!r}: there is nothing to compare.")

    def ask(level: Any) -> Answer:
        return answer(models, table.replaced({column.number: level}), quantity, members=members)

    base = ask(first)
    for level in [level for level in levels if level != first][: MOST_LEVELS - 1]:
        yield f"{level} - {first}", _difference(ask(level), base, np.ones(1))


def _difference(after: Answer, before: Answer, stretch: Array) -> Answer:
    return Answer((after.values - before.values) / stretch, (after.members - before.members) / stretch)


def group_variance(model: Any) -> Any:
    """Share of each label's variance that lies between the groups of each level, and within groups.

    The variance is that of log-ratios around what the features predict, as the fitted mixed model has it.

    Args:
        model: a :class:`~snefy_ldl.SnefyLDL` that was fitted with groups and has group effects.

    Returns:
        A DataFrame with the columns level, label and share: one row per level and label, the level "within
        groups" last; a dict of arrays where pandas is not installed.

    Raises:
        InputError: the model has no group effects.

    Example:
        >>> from snefy_ldl import GroupedLDL, SnefyLDL
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0)).fit(data.X, data.D, groups=data.groups)
        >>> table = group_variance(model)
        >>> list(table["level"]), round(float(table["share"][0] + table["share"][3]), 6)
        (['group', 'group', 'group', 'within groups', 'within groups', 'within groups'], 1.0)
    """
    effects = getattr(model, "group_effects_", None)
    if effects is None:
        raise InputError(
            "the model has no group effects: use GroupedLDL().fit(X, D, groups=...) on groups that differ."
        )
    shares = effects.variance_shares()
    labels = label_names([model], None)
    columns = {
        "level": np.repeat(np.array([*effects.levels, "within groups"], dtype=object), len(labels)),
        "label": np.tile(np.array(labels, dtype=object), len(shares)),
        "share": shares.ravel(),
    }
    return frame_or_columns(columns)
