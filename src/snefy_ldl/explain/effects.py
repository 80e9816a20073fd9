"""Average effects: what a step of a feature, or another level of it, does to predictions; and what groups explain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.validation import check_confidence, check_distributions
from snefy_ldl.datasets.grouping import in_groups
from snefy_ldl.datasets.recognise import CategoryColumn
from snefy_ldl.errors import InputError
from snefy_ldl.explain.features import MOST_LEVELS, Feature, Table, choose_rows
from snefy_ldl.explain.quantities import answer, as_frame, check_model, choose_quantity, frame_html, label_names
from snefy_ldl.explain.regression import FEWEST_OF_LEVEL, Regression
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["Effect", "Effects", "effects"]

#: A contrast: its name, and the values of the column after and before.
Move = tuple[str, Any, Any]
#: A share of rows beyond all known values that is not worth a word.
FEW_OUTSIDE = 0.005
#: Columns of a frame of effects that are left out if no entry has a number in them.
OPTIONAL = ("members_sd", "regression", "conf_low", "conf_high")


@dataclass(frozen=True)
class Effect:
    """One average effect, in the words of marginaleffects.

    Args:
        term: the feature.
        contrast: "+10" for a step, "clay - loam" for two levels.
        label: the label, or the number that was asked for.
        estimate: effect on the model's predictions, average over the rows.
        members_sd: standard deviation of this number over the members of an ensemble: their disagreement. Members have
            seen the same rows, so it is no standard error. NaN for one member.
        regression: the effect by a regression of the observed labels.
        conf_low: lower end of the interval of the regression's effect; NaN if rows are too few.
        conf_high: upper end.

    Example:
        >>> Effect("rain", "+10", "sand", 0.012).contrast
        '+10'
    """

    term: str
    contrast: str
    label: str
    estimate: float
    members_sd: float = np.nan
    regression: float = np.nan
    conf_low: float = np.nan
    conf_high: float = np.nan

    @property
    def is_outside(self) -> bool:
        """Whether the model's effect lies outside the interval."""
        return self.estimate < self.conf_low or self.estimate > self.conf_high


@dataclass(frozen=True, eq=False)
class Effects:
    """Average effects and contrasts; made by :func:`effects`.

    Args:
        entries: one per contrast and label.
        words: what is predicted.
        confidence_level: of the intervals.
        n_rows: how many rows were averaged.
        is_share: whether the numbers are shares or probabilities, written in percentage points.
        notes: sentences about steps beyond the data, levels that the model has not seen, and missing intervals.

    Example:
        >>> one = Effect("rain", "+10", "sand", 0.012, regression=0.014, conf_low=0.004, conf_high=0.024)
        >>> print(Effects([one], "mean share", 0.9, 300, True).sentences()[0])
        rain +10: sand +1.2 points (rows: +1.4 [+0.4, +2.4])
    """

    entries: list[Effect]
    words: str
    confidence_level: float
    n_rows: int
    is_share: bool
    notes: tuple[str, ...] = ()

    @cached_property
    def frame(self) -> Any:
        """One row per entry: term, contrast, label, estimate, and what there is of the other fields of an effect."""
        names = list(Effect.__dataclass_fields__)
        table = {name: [getattr(entry, name) for entry in self.entries] for name in names}
        return as_frame(
            {name: cells for name, cells in table.items() if name not in OPTIONAL or not np.isnan(cells).all()}
        )

    def _repr_html_(self) -> str:
        return frame_html(self.frame) + "".join(f"<p>{escape(line)}</p>" for line in self._about())

    def sentences(self) -> list[str]:
        """The steps and contrasts, one line each.

        Returns:
            Such as "rain +10: sand +1.2 points (rows: +1.4 [+0.4, +2.4])": the model's effect, and in brackets the
            regression's with its interval.
        """
        scale, unit = (100.0, " points") if self.is_share else (1.0, "")
        digits = 1 if self.is_share else 3
        lines = []
        for entry in self.entries:
            numbers = entry.estimate, entry.regression, entry.conf_low, entry.conf_high
            change, rows, low, high = (f"{scale * x:+.{digits}f}" for x in numbers)
            ends = "" if np.isnan(entry.conf_low) else f" (rows: {rows} [{low}, {high}])"
            lines.append(f"{entry.term} {entry.contrast}: {entry.label} {change}{unit}{ends}")
        return lines

    def plot(self, ax: Axes | None = None) -> Axes:
        """Each effect with its interval, one line per entry.

        Args:
            ax: axes to draw on; a new figure by default.

        Returns:
            The axes.
        """
        table = np.array([[entry.estimate, entry.conf_low, entry.conf_high] for entry in self.entries])
        table = table * (100.0 if self.is_share else 1.0)
        ax = style.axes(ax, (5.6, 0.8 + 0.26 * len(table)))
        places, texts, last = np.arange(len(table), dtype=float), [], ""
        labels = list(dict.fromkeys(entry.label for entry in self.entries))
        for k, (entry, (middle, low, high)) in enumerate(zip(self.entries, table)):
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
        unit = ", in percentage points" if self.is_share else ""
        style.quiet(ax, grid="x", ylim=(places[-1] + 0.6, -0.6), xlabel=f"change of {self.words}{unit}")
        ax.tick_params(axis="y", length=0)
        return ax

    def __str__(self) -> str:
        return "\n".join([*self.sentences(), *self._about()])

    def _about(self) -> list[str]:
        """What the numbers are, and the notes."""
        lines = [f"effects on {self.words}, averaged over {self.n_rows:,} rows"]
        known = [entry for entry in self.entries if not np.isnan(entry.conf_low)]
        if known:
            lines.append(f"rows: a regression of their labels, with its {self.confidence_level:.0%} interval")
            if outside := sum(entry.is_outside for entry in known):
                lines.append(
                    f"{outside} of {len(known)} effects of the model lie outside their interval: it shrinks or misses "
                    "what these rows show"
                )
        return [*lines, *self.notes]


def effects(
    model: Any,
    X: Any,
    feature: Any = None,
    D: Any = None,
    *,
    step: Any = None,
    of: Any = "mean",
    reference: Any = None,
    confidence_level: float = 0.9,
    max_rows: int | None = 2000,
    random_state: Any = 0,
    groups: Any = None,
) -> Effects:
    """Average effects of features on the predictions: steps, and contrasts between levels.

    A number's effect is the average of ``f(x + step) - f(x)``. A category's contrasts put every row at a level and at
    the reference. Rows keep their other cells; rows without the number are left out. These are effects on the
    prediction: causes are another matter.

    **Intervals** need the rows' labels ``D``. They come from a regression of the labels on splines and products of the
    columns (:mod:`snefy_ldl.explain.regression`); on made-up tables with known effects 90 % intervals contain the true
    effect in 89 to 92 % of the cases. The model's own effect may lie outside: flexible models shrink uncertain
    effects.

    Args:
        model: a fitted model with ``predict_dist`` (or ``predict``, for the mean alone).
        X: rows to average over, (N, d), as the model takes them: a DataFrame with its raw columns, or an array.
        feature: name or number of a column, or several; None for every column that the model uses, except dates.
        D: label distributions of the rows (N, L), for intervals.
        step: how far a number moves, or a dict from feature to that; one standard deviation by default, rounded to one
            digit.
        of: "mean", "width", ("greater", a, b) or ("log_ratio", a, b), as :func:`dependence` takes it. A width is not
            observed and has no interval.
        reference: level that the others are compared with, or a dict from feature to that; by default the first of a
            pandas Categorical, False, or the most frequent.
        confidence_level: of the intervals.
        max_rows: rows at most to average over, drawn at random; None for all. The regression takes all.
        random_state: seed of that draw.
        groups: of the rows, as ``fit`` took them; None if they are not known. Intervals allow for rows of a group that
            resemble each other.

    Returns:
        The effects: ``.frame``, ``.sentences()``, ``.plot()``.

    Raises:
        InputError: a feature, level or label is not there, labels break a rule, or a step is not a number above or
            below 0.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
        >>> frame = effects(model, city.X, 0, city.D, step=0.5).frame
        >>> [name for name in frame.columns if name != "members_sd"], frame["contrast"].unique().tolist()
        (['term', 'contrast', 'label', 'estimate', 'regression', 'conf_low', 'conf_high'], ['+0.5'])
    """
    check_model(model)
    level = check_confidence(confidence_level)
    random = np.random.default_rng(seed_from(random_state))
    X = in_groups(X, groups)
    whole = Table(X, model)
    table = Table(X, model, choose_rows(len(whole), max_rows, random))
    quantity = choose_quantity(of, label_names(model, table.X))
    regression = None
    if D is not None:
        shares = check_distributions(D, n_rows=len(whole), model=model, missing=True)[0]
        if quantity.observe is not None:
            regression = Regression(whole, quantity.observe(shares))
    entries: list[Effect] = []
    notes: list[str] = []
    for column in _columns(table, feature):
        if column.kind == "number":
            here = np.flatnonzero(np.isfinite(column.cells))
            part = table if len(here) == len(table) else table.part(here)
            change = _step(column, step)
            moves: list[Move] = [(f"{change:+g}", column.known() + change, column.known())]
            if (left := _outside(column, change)) >= FEW_OUTSIDE:
                notes.append(f"{column.name}: the step takes {left:.0%} of the rows beyond the values that any row has")
        else:
            part = table
            moves = _contrasts(column, column.setting(reference))
            if unseen := [level for level in column.levels() if not _was_seen(model, column.name, level)]:
                notes.append(
                    f"{column.name}: the model has not seen {shorten(unseen, 3)}; it predicts an average there"
                )
        few = _few_levels(whole, column)
        for contrast, after, before in moves:
            rows = [part.replaced({column.number: values}) for values in (after, before)]
            asked = [answer(model, one, quantity) for one in rows]
            values = (asked[0].values - asked[1].values).mean(axis=0)
            members = (asked[0].members - asked[1].members).mean(axis=1)
            spread = members.std(axis=0, ddof=1) if len(members) > 1 else np.full(len(values), np.nan)
            effect, ends = np.full(len(values), np.nan), np.full((len(values), 2), np.nan)
            if regression is not None and regression.design is not None and not {str(after), str(before)} & few:
                effect, ends = regression.interval(rows[0], rows[1], level)
            for label, *figures in zip(quantity.labels, values, spread, effect, *ends.T):
                entries.append(Effect(column.name, contrast, label, *map(float, figures)))
        if few and regression is not None:
            notes.append(f"{column.name}: no interval for {shorten(sorted(few), 3)} ({FEWEST_OF_LEVEL} rows at least)")
    if regression is not None and regression.design is None:
        notes.append("no intervals: the rows are too few for so many columns")
    return Effects(entries, quantity.words, level, len(table), quantity.is_share, tuple(notes))


def _was_seen(model: Any, name: str, level: Any) -> bool:
    """Whether a level of a category was among the rows of the fit, if the model recorded it."""
    for column in getattr(getattr(model, "columns_", None), "columns", ()):
        if str(column.name) == name and isinstance(column, CategoryColumn):
            return str(level) in column.levels or str(level) in column.pooled
    return True


def _few_levels(table: Table, column: Feature) -> set[str]:
    """Levels of a category that too few rows hold."""
    if column.kind == "number":
        return set()
    cells = table.feature(column.number).cells
    return {str(level) for level in column.levels() if (cells == level).sum() < FEWEST_OF_LEVEL}


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


def _contrasts(column: Feature, reference: Any) -> list[Move]:
    """Every level of a category against the reference."""
    levels = column.levels()
    if reference is not None and reference not in levels:
        known = ", ".join(str(level) for level in levels[:10])
        raise InputError(f"column {column.name!r} has no level {reference!r}; it has {known}.")
    first = levels[0] if reference is None else reference
    if len(levels) < 2:
        raise InputError(f"column {column.name!r} holds one level alone, {first!r}: there is nothing to compare.")
    others = [level for level in levels if level != first][: MOST_LEVELS - 1]
    return [(f"{level} - {first}", level, first) for level in others]


def group_variance(model: Any) -> Any:
    """Share of each label's variance that lies between the groups of each level, and within groups.

    The variance is that of log-ratios around what the features predict, as the fitted mixed model has it.

    Args:
        model: a :class:`~snefy_ldl.SnefyLDL` that was fitted with groups and has group effects.

    Returns:
        A DataFrame with the columns level, label and share: one row per level and label, the level "within
        groups" last.

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
    labels = label_names(model, None)
    columns = {
        "level": np.repeat(np.array([*effects.levels, "within groups"], dtype=object), len(labels)),
        "label": np.tile(np.array(labels, dtype=object), len(shares)),
        "share": shares.ravel(),
    }
    return as_frame(columns)
