"""How predictions depend on one or two features, averaged over the rows that a person has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.datasets.grouping import in_groups
from snefy_ldl.errors import InputError
from snefy_ldl.explain.features import Feature, Table, choose_rows
from snefy_ldl.explain.quantities import (
    Answer,
    Quantity,
    answer,
    as_frame,
    check_model,
    choose_quantity,
    label_names,
    label_number,
    member_band,
)
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Every band, and its meaning.
BANDS = {
    "members": "disagreement of the ensemble: where one more member would fall",
    "distribution": "variation of the labels: quantiles of the predicted distribution, averaged over the rows",
}
#: How each band is drawn: opacity, and the words of the legend.
BAND_STYLES = {
    "distribution": (0.13, "variation of labels"),
    "members": (0.32, "members disagree"),
}


@dataclass(frozen=True, eq=False)
class Dependence:
    """A quantity along a grid of one or two features; made by :func:`dependence`.

    Args:
        features: names of the one or two features.
        grids: values of each.
        labels: one name per number (Q): the labels, or the name of the one number that was asked for.
        words: what the numbers are.
        estimate: averages over the rows (G, Q), or (G1, G2, Q).
        bands: name of a band -> both its ends, (..., Q, 2).
        confidence_level: of the bands.
        n_rows: how many rows were averaged.
        is_share: whether the numbers are shares or probabilities.
        numeric: whether each feature is a number.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
        >>> curve = dependence(model, city.X, 0, grid=5)
        >>> curve.estimate.shape, sorted(curve.bands)
        ((5, 3), ['distribution', 'members'])
    """

    features: tuple[str, ...]
    grids: tuple[list[Any], ...]
    labels: list[str]
    words: str
    estimate: Array
    bands: dict[str, Array] = field(default_factory=dict)
    confidence_level: float = 0.9
    n_rows: int = 0
    is_share: bool = True
    numeric: tuple[bool, ...] = (True,)

    @cached_property
    def frame(self) -> Any:
        """One row per grid value and label: the features' values, label, estimate, and ``<band>_low``, ``<band>_high``.

        A feature that is itself called label or
        estimate is written ``feature_label``, ``feature_estimate``.
        """
        taken = {"label", "estimate", *(f"{band}_{end}" for band in self.bands for end in ("low", "high"))}
        points = list(product(*self.grids))
        columns: dict[str, Any] = {}
        for place, name in enumerate(self.features):
            heading = f"feature_{name}" if name in taken else name
            columns[heading] = [point[place] for point in points for _ in self.labels]
        columns["label"] = self.labels * len(points)
        columns["estimate"] = self.estimate.ravel()
        for band, ends in self.bands.items():
            columns[f"{band}_low"], columns[f"{band}_high"] = ends[..., 0].ravel(), ends[..., 1].ravel()
        return as_frame(columns)

    def plot(self, labels: Sequence[Any] | None = None, ax: Axes | None = None) -> Axes:
        """One line per label along one feature; a map of one label along two.

        How the labels vary is drawn for one label alone: ``labels="sand"``.

        Args:
            labels: names or numbers of the labels to draw; of a map the first. Up to eight by default.
            ax: axes to draw on; a new figure by default.

        Returns:
            The axes.

        Raises:
            InputError: a label is not there.
        """
        if labels is None:
            labels = range(min(8, len(self.labels)))
        wanted = [labels] if isinstance(labels, (str, int)) else labels
        chosen = [label_number(label, self.labels) for label in wanted]
        return self._draw_map(ax, chosen[0]) if len(self.features) == 2 else self._draw_lines(ax, chosen)

    def _draw_lines(self, ax: Axes | None, chosen: list[int]) -> Axes:
        """One line per label with its bands; points with whiskers for a category."""
        from matplotlib.patches import Patch  # the extra ``plot``

        ax, grid, numeric, count = style.axes(ax, (5.6, 3.4)), self.grids[0], self.numeric[0], len(chosen)
        # the wide bands of several labels would hide each other
        bands = [band for band in BAND_STYLES if band in self.bands and (band == "members" or count == 1)]
        for q, label in enumerate(chosen):
            name, color = self.labels[label], style.label_color(q) if count > 1 else style.MODEL
            # levels of a category: the labels stand side by side
            shift = 0.16 * (q - (count - 1) / 2) * min(1.0, 4 / count)
            here: Any = grid if numeric else np.arange(len(grid)) + shift
            for band in bands:
                low, high = self.bands[band][:, label].T
                opacity = BAND_STYLES[band][0]
                if not numeric:
                    ax.vlines(here, low, high, color=color, alpha=min(1.0, 2 * opacity), linewidth=5, zorder=2)
                else:
                    ax.fill_between(here, low, high, color=color, alpha=opacity, linewidth=0, zorder=2)
            line = self.estimate[:, label]
            if numeric:
                ax.plot(here, line, color=color, linewidth=2.0, label=name, zorder=3)
            else:
                ax.scatter(here, line, color=color, edgecolors="white", s=36, label=name, zorder=3)
        if not numeric:
            texts = [str(level) for level in grid]
            crowded = sum(len(text) for text in texts) > 50
            ax.set_xticks(range(len(grid)), texts, rotation=40 if crowded else 0, ha="right" if crowded else "center")
            ax.set_xlim(-0.6, len(grid) - 0.4)
        if self.is_share:
            _percent(ax.yaxis)
        style.quiet(ax, grid="y", xlabel=self.features[0], ylabel=self.words)
        handles = ax.get_legend_handles_labels()[0] if count > 1 or self.labels[chosen[0]] != self.words else []
        for opacity, text in map(BAND_STYLES.__getitem__, bands):
            handles.append(Patch(color=style.QUIET, alpha=opacity + 0.1, label=text))
        if handles:
            style.legend(ax, handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return ax

    def _draw_map(self, ax: Axes | None, label: int) -> Axes:
        """One label along two features: darker is more."""
        from matplotlib.colors import LinearSegmentedColormap  # the extra ``plot``

        ax, name = style.axes(ax, (4.8, 3.8)), self.labels[label]
        x, y = (list(grid) if line else np.arange(len(grid)) for grid, line in zip(self.grids, self.numeric))
        shades = LinearSegmentedColormap.from_list("model", style.SHADES)
        mesh = ax.pcolormesh(x, y, self.estimate[..., label].T, cmap=shades, shading="nearest", rasterized=True)
        bar = style.color_bar(ax, mesh)
        if self.is_share:
            _percent(bar.ax.yaxis)
        for axis, grid, line in zip((ax.xaxis, ax.yaxis), self.grids, self.numeric):
            if not line:
                axis.set_ticks(range(len(grid)), [str(level) for level in grid])
        words = name if name == self.words else f"{name}: {self.words}"
        ax.set_title(words, fontsize=10, color=style.INK, loc="left")
        style.quiet(ax, grid=None, xlabel=self.features[0], ylabel=self.features[1])
        return ax

    def __str__(self) -> str:
        what = " and ".join(self.features)
        lines = [f"{self.words} along {what}, averaged over {self.n_rows:,} rows"]
        lines += [f"{name} ({self.confidence_level:.0%}): {BANDS[name]}" for name in self.bands]
        return "\n".join(lines)


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter  # the extra ``plot``

    axis.set_major_formatter(PercentFormatter(1.0))


def dependence(
    model: Any,
    X: Any,
    feature: Any,
    of: Any = "mean",
    grid: Any = 15,
    confidence_level: float = 0.9,
    max_rows: int | None = 500,
    random_state: Any = 0,
    groups: Any = None,
) -> Dependence:
    """How a prediction depends on one or two features: each row keeps its other cells, and the answers are averaged.

    Args:
        model: a fitted model with ``predict_dist`` (or ``predict``, for the mean alone).
        X: rows to average over, (N, d), as the model takes them: a DataFrame with its raw columns, or an array.
        feature: name or number of a column; or two of them.
        of: "mean"; ("greater", a, b), the probability that the share of a exceeds that of b; ("log_ratio", a, b), the
            mean of log(a / b); "width", of each share's central interval of ``confidence_level``.
        grid: how many values a numeric feature takes, from the 5 % to the 95 % quantile of the rows; or the values;
            or a dict from feature to either. A text column takes its levels.
        confidence_level: of the bands, and of the interval whose width is asked for.
        max_rows: rows at most, drawn at random; None for all.
        random_state: seed of that draw.
        groups: of the rows, as ``fit`` took them; None if they are not known.

    Returns:
        The averages: ``.frame``, ``.plot()``. Bands show how members of an ensemble disagree, and how the labels vary
        (quantiles of the predicted distribution, for the mean and log-ratios).

    Raises:
        InputError: a feature, label or grid is not there.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=80, random_state=0)
        >>> model = SnefyLDL(epochs=1, n_members=2, random_state=0).fit(city.X, city.D)
        >>> list(dependence(model, city.X, 0, of=("greater", 0, 1), grid=4).frame.columns)
        ['x1', 'label', 'estimate', 'members_low', 'members_high']
    """
    check_model(model)
    level = check_confidence(confidence_level)
    random = np.random.default_rng(seed_from(random_state))
    X = in_groups(X, groups)
    table = Table(X, model, choose_rows(len(Table(X)), max_rows, random))
    quantity = choose_quantity(of, label_names(model, table.X), level)
    columns = _features(table, feature)
    grids = tuple(column.grid(column.setting(grid, 15)) for column in columns)
    varies = quantity.quantiles is not None and hasattr(model, "predict_dist")
    tails = np.array([0.5 - level / 2, 0.5 + level / 2]) if varies else None
    averages, ends = [], []
    for point in product(*grids):
        cells = {column.number: value for column, value in zip(columns, point)}
        answers = answer(model, table.replaced(cells), quantity, levels=tails)
        averages.append(answers.values.mean(axis=0))
        ends.append(_ends(answers, level, quantity))
    shape = tuple(len(values) for values in grids)
    return Dependence(
        features=tuple(column.name for column in columns),
        grids=grids,
        labels=quantity.labels,
        words=quantity.words,
        estimate=np.stack(averages).reshape(*shape, -1),
        bands={name: np.stack([one[name] for one in ends]).reshape(*shape, -1, 2) for name in ends[0]},
        confidence_level=level,
        n_rows=len(table),
        is_share=quantity.is_share,
        numeric=tuple(column.kind != "category" for column in columns),
    )


def _features(table: Table, feature: Any) -> list[Feature]:
    wanted = list(feature) if isinstance(feature, (tuple, list)) else [feature]
    columns = [table.feature(one) for one in wanted]
    if len({column.number for column in columns}) != len(columns) or not 1 <= len(columns) <= 2:
        raise InputError(f"feature={feature!r}: name one column, or two different ones.")
    return columns


def _ends(answers: Answer, level: float, quantity: Quantity) -> dict[str, Array]:
    """Both ends of each band at one point of the grid, (Q, 2)."""
    ends = {}
    if len(answers.members) > 1:
        ends["members"] = member_band(answers.values.mean(axis=0), answers.members.mean(axis=1), level)
    if answers.quantiles is not None:
        ends["distribution"] = answers.quantiles.mean(axis=0)
    return {name: np.clip(both, *quantity.bounds) for name, both in ends.items()}
