"""Pictures of shares: label distributions as bars, and an interval for each label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.averages import check_intervals, check_observed
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows whose intervals are drawn unless others are named.
MOST_ROWS = 6


def intervals(
    intervals: Any,
    D: Any = None,
    mean: Any = None,
    labels: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    *,
    row_names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Interval of each label for a few rows, with the predicted mean and the observed share.

    Args:
        intervals: Lower and upper ends, (N, L, 2), as ``predict_interval`` gives them.
        D: Observed label distributions, (N, L): dark diamonds.
        mean: Predicted means, (N, L): white dots.
        labels: The L names.
        rows: Which rows to draw; the first six by default.
        ax: Axes to draw on.
        row_names: A name for each drawn row; ``row i`` by default.

    Returns:
        The axes.

    Raises:
        InputError: a table has another shape, or there is no such row.

    Example:
        >>> len(intervals([[[0.1, 0.4], [0.6, 0.9]]], labels=["yes", "no"]).get_legend().get_texts())
        2
    """
    ends = check_intervals(intervals)
    observed, means = (None if table is None else check_observed(table, ends.shape[:2]) for table in (D, mean))
    wanted = range(min(MOST_ROWS, len(ends))) if rows is None else [rows] if np.ndim(rows) == 0 else rows
    chosen, n_labels = [style.row_number(row, len(ends)) for row in wanted], ends.shape[1]
    names = style.names_of(labels, n_labels, "labels")
    titles = style.names_of(row_names or [f"row {row}" for row in chosen], len(chosen), "row_names")
    ax = style.axes(ax, (7.0, 0.55 + 0.24 * len(chosen) * (n_labels + 1)))
    gap = n_labels + 1.0
    for place, row in enumerate(chosen):
        if place:
            ax.axhline(place * gap - 1.0, color=style.FAINT, linewidth=0.8, zorder=0)
        for label in range(n_labels):
            y, color = place * gap + label, style.label_color(label)
            low, high = ends[row, label]
            ax.plot([0, 1], [y, y], color=style.FAINT, linewidth=0.8, zorder=0)
            (bar,) = ax.plot([low, high], [y, y], color=color, linewidth=6.5, solid_capstyle="round", zorder=2)
            bar.set_label(names[label] if place == 0 else "_")
            if means is not None:
                style.mark_mean(ax, means[row, label], y, size=24)
            if observed is not None:
                style.mark_observed(ax, observed[row, label], y, size=32)
    ax.set_yticks([place * gap + (n_labels - 1) / 2 for place in range(len(chosen))], titles)
    style.quiet(ax, grid=None, ylim=(len(chosen) * gap - 1.0, -1.0), xlim=(-0.01, 1.01), xlabel="share of the label")
    ax.tick_params(axis="y", length=0)
    style.legend(ax, ncols=min(n_labels, 6), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


def label_bars(
    D: Any,
    labels: Sequence[str] | None = None,
    *,
    row_names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Label distributions as stacked bars, one per row.

    Args:
        D: Label distributions, (N, L).
        labels: The L names.
        ax: Axes to draw on.
        row_names: The N names.

    Returns:
        The axes.

    Raises:
        InputError: the table has another shape, or names do not fit.

    Example:
        >>> label_bars([[0.25, 0.75]], ["yes", "no"]).texts[1].get_text()
        '75%'
    """
    shares = _share_table(D)
    names = style.names_of(labels, shares.shape[1], "labels")
    titles = style.names_of(row_names, len(shares), "row_names", stem="row")
    ax = style.axes(ax, (7.0, 0.8 + 0.42 * len(shares)))
    left = np.zeros(len(shares))
    places = range(len(shares))
    for label, name in enumerate(names):
        color = style.label_color(label)
        column = shares[:, label]
        bars = ax.barh(
            places, column, left=left, height=0.66, color=color, edgecolor="white", linewidth=1.5, label=name
        )
        words = [f"{share:.0%}" if share >= 0.08 else "" for share in column]
        ax.bar_label(bars, words, label_type="center", color=style.ink_on(color), fontsize=9)
        left = left + column
    ax.set_yticks(places, titles)
    ax.set(ylim=(len(shares) - 0.5, -0.5), xlim=(0.0, 1.0))
    ax.set_xticks([])
    style.quiet(ax, grid=None)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    style.legend(ax, ncols=min(len(names), 6), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


def share_ranges(D: Any, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """How the shares of each label spread over the rows: 90 % of the rows, half of them, the median and the mean.

    Args:
        D: Label distributions, (N, L).
        labels: The L names.
        ax: Axes to draw on.

    Returns:
        The axes.

    Raises:
        InputError: the table has another shape, or names do not fit.

    Example:
        >>> [text.get_text() for text in share_ranges([[0.25, 0.75], [0.5, 0.5]], ["yes", "no"]).get_yticklabels()]
        ['yes', 'no']
    """
    shares = _share_table(D)
    names = style.names_of(labels, shares.shape[1], "labels")
    ax = style.axes(ax, (4.6, 0.9 + 0.34 * len(names)))
    low, quarter, middle, three, high = np.quantile(shares, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    for place in range(len(names)):
        color = style.label_color(place)
        ax.plot([low[place], high[place]], [place] * 2, color=color, linewidth=2.0, solid_capstyle="round", zorder=2)
        ax.plot([quarter[place], three[place]], [place] * 2, color=color, linewidth=8.0, zorder=3)
        ax.plot([middle[place]] * 2, [place - 0.2, place + 0.2], color=style.ON_DARK, linewidth=2.0, zorder=4)
        style.mark_mean(ax, shares[:, place].mean(), place, size=24)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlim(left=-0.01)
    style.quiet(ax, grid="x", xlabel="observed share")
    ax.tick_params(axis="y", length=0)
    return ax


def _share_table(D: Any) -> Array:
    shares = as_float(D, "D")
    if shares.ndim != 2 or shares.size == 0:
        raise InputError(f"D must have shape (N, L); got {shares.shape}.")
    return shares
