"""Many rows at once: a small picture of the intervals of each, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["interval_panels"]


def interval_panels(
    intervals: Any,
    D: Any = None,
    mean: Any = None,
    labels: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    fig: Figure | None = None,
    *,
    row_names: Sequence[str] | None = None,
    columns: int = 3,
) -> Figure:
    """Intervals of each label as small multiples, one panel a row of the table.

    Args:
        intervals: Lower and upper ends, (N, L, 2), as ``predict_interval`` gives them.
        D: Observed label distributions, (N, L): dark diamonds.
        mean: Predicted means, (N, L): white dots.
        labels: The L names, written beside the first column.
        rows: Which rows to draw; the first twelve by default.
        fig: Figure to draw on, laid out anew; a new one by default.
        row_names: A title for each drawn row; "row 1" for the first row by default.
        columns: Panels beside each other.

    Returns:
        The figure.

    Raises:
        InputError: A table has another shape, or there is no such row.

    Example:
        >>> len(interval_panels([[[0.1, 0.4], [0.6, 0.9]]] * 5, labels=["yes", "no"]).axes)
        5
    """
    ends = np.asarray(intervals, dtype=np.float64)
    if ends.ndim != 3 or ends.shape[2] != 2 or ends.size == 0:
        raise InputError(f"intervals must have shape (N, L, 2): lower and upper ends; got {ends.shape}.")
    n_rows, n_labels = ends.shape[:2]
    chosen = list(range(min(12, n_rows))) if rows is None else [style.row_number(row, n_rows) for row in rows]
    names = style.names_of(labels, n_labels, "labels")
    titles = [f"row {row + 1}" for row in chosen]
    titles = titles if row_names is None else style.names_of(row_names, len(chosen), "row_names")
    tables = [None if table is None else np.asarray(table, dtype=np.float64) for table in (D, mean)]
    for table, what in zip(tables, ("D", "mean")):
        if table is not None and table.shape != (n_rows, n_labels):
            raise InputError(f"{what} must have shape {(n_rows, n_labels)} to match the intervals; got {table.shape}.")
    observed, means = tables
    across = max(1, min(columns, len(chosen)))
    down = -(-len(chosen) // across)
    height = (0.5 + 0.22 * n_labels) * down + 0.35
    made: Any = style.axes(None, (1.5 + 1.9 * across, height)).figure if fig is None else fig
    made.clear()
    panels = made.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
    for panel, row, title in zip(panels, chosen, titles):
        shares = None if observed is None else observed[row]
        _panel(panel, ends[row], shares, None if means is None else means[row])
        panel.set_title(title, fontsize=9.5, color=style.INK, loc="left", pad=3)
    first = panels[0]
    first.set_yticks(range(n_labels), names)
    first.set_ylim(n_labels - 0.4, -0.6)
    first.set_xlim(-0.02, 1.02)
    first.set_xticks([0.0, 0.5, 1.0], ["0", "50%", "100%"])
    for place, panel in enumerate(panels[len(chosen) :], len(chosen)):
        panels[place - across].tick_params(labelbottom=True)  # nothing below it any more
        panel.remove()
    figure: Figure = made
    return figure


def _panel(ax: Axes, ends: Any, observed: Any, mean: Any) -> None:
    for label, (low, high) in enumerate(ends):
        ax.plot([0, 1], [label, label], color=style.FAINT, linewidth=0.8, zorder=0)
        color = style.label_color(label)
        ax.plot([low, high], [label, label], color=color, linewidth=5.0, solid_capstyle="round", zorder=2)
    places = range(len(ends))
    if mean is not None:
        ax.scatter(mean, places, s=18, color="white", edgecolors=style.INK, linewidths=0.8, zorder=4)
    if observed is not None:
        ax.scatter(observed, places, s=22, marker="D", color=style.INK, edgecolors="white", linewidths=0.7, zorder=5)
    style.quiet(ax, grid=None)
    ax.tick_params(axis="y", length=0)
