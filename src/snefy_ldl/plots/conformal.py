"""Pictures of conformal prediction; each function draws on ``ax`` and returns it. Needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl._internal.dists import dist_blocks, to_numpy
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.special import ternary_grid
from snefy_ldl.conformal.intervals import ConformalIntervals
from snefy_ldl.conformal.regions import ConformalRegion
from snefy_ldl.errors import InputError
from snefy_ldl.plots import style
from snefy_ldl.plots.shares import intervals


def plot_intervals(
    ci: ConformalIntervals, X: Any, D: Any = None, *, rows: Sequence[int] | None = None, ax: Any = None, **options: Any
) -> Any:
    """Conformal interval of each label for a few rows, with the predicted mean and what was observed.

    Args:
        ci: Conformalized, with one confidence level.
        X: Rows.
        D: Observed label distributions, (N, L).
        rows: Which rows to draw; the first six by default.
        ax: Axes to draw on.
        options: ``groups`` and ``sample_weight`` of the rows drawn; others go to
            :func:`snefy_ldl.plots.intervals`.

    Returns:
        The axes.

    Raises:
        InputError: the intervals have several levels.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> from snefy_ldl.conformal import ConformalIntervals
        >>> ci = ConformalIntervals(model, 0.8).conformalize(city.X[30:], city.D[30:])
        >>> ax = plot_intervals(ci, city.X[:9], city.D[:9], rows=[0, 8])
        >>> [tick.get_text() for tick in ax.get_yticklabels()]
        ['row 0', 'row 8']
    """
    X = as_rows(X)
    chosen = list(range(min(6, count_rows(X)))) if rows is None else list(rows)
    few = take_rows(X, np.asarray(chosen, dtype=np.intp))
    of_rows = {key: options.pop(key) for key in ("groups", "sample_weight") if key in options}
    ends = ci.predict_interval(few, **of_rows)
    if ends.ndim != 3:
        raise InputError("plot_intervals draws one confidence level; these intervals have several.")
    mean = np.concatenate([to_numpy(dist.mean) for _, dist in dist_blocks(ci.models_[0], few)])
    observed = None if D is None else np.asarray(D, dtype=np.float64)[chosen]
    options.setdefault("row_names", [f"row {row}" for row in chosen])
    options.setdefault("rows", range(len(chosen)))
    return intervals(ends, observed, mean, ax=ax, **options)


def plot_region(
    region: ConformalRegion,
    X: Any,
    D: Any = None,
    *,
    labels: Sequence[str] | None = None,
    row_names: Sequence[str] | None = None,
    resolution: int = 120,
    ax: Any = None,
    **of_rows: Any,
) -> Any:
    """Conformal regions of a few rows with three labels on a ternary plot, and what was observed (diamonds).

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> model = SnefyLDL(epochs=2, random_state=0).fit(city.X[:100], city.D[:100])
        >>> region = ConformalRegion(model, 0.9).conformalize(city.X[100:], city.D[100:])
        >>> [text.get_text() for text in plot_region(region, city.X[:2]).get_legend().get_texts()]
        ['row 1', 'row 2']

    Args:
        region: Conformalized on three labels.
        X: The rows to draw, up to eight.
        D: Observed label distributions, (N, 3).
        ax: Axes made with ``projection="ternary"`` (mpltern).
        labels: Names of the corners: top, left, right.
        row_names: A name for each row, in the legend; "row 1" for the first by default. One row has no legend.
        resolution: Grid points along an edge.
        of_rows: ``groups`` and ``sample_weight``, as calibration used them.

    Returns:
        The axes.

    Raises:
        InputError: there are not three labels, or more than eight rows.
    """
    region.check_conformalized()
    if region.n_labels_ != 3:
        raise InputError(f"a ternary plot needs 3 labels; this region has {region.n_labels_}.")
    X = as_rows(X)
    if count_rows(X) > len(style.LABEL_COLORS):
        raise InputError(f"plot_region draws up to {len(style.LABEL_COLORS)} rows; got {count_rows(X)}.")
    names = style.names_of(row_names, count_rows(X), "row_names") if row_names else None
    names = names or [f"row {row + 1}" for row in range(count_rows(X))]
    grid = ternary_grid(resolution)
    inside = region.inside(X, grid, **of_rows)
    axes: Any = style.ternary_axes(ax, labels)
    observed = None if D is None else np.atleast_2d(np.asarray(D, dtype=np.float64))
    for row, members in enumerate(inside.T):
        color = style.LABEL_COLORS[row]
        if members.all():
            axes.fill(*np.eye(3), color=color, alpha=0.25, zorder=1)
        elif members.any():
            axes.tricontourf(*grid.T, members.astype(float), levels=[0.5, 1.5], colors=[color], alpha=0.3, zorder=1)
            axes.tricontour(*grid.T, members.astype(float), levels=[0.5], colors=[color], linewidths=1.4, zorder=2)
        if observed is not None:
            axes.scatter(*observed[row][:, None], s=52, marker="D", color=color, edgecolors="white", zorder=5)
        axes.fill([], [], [], color=color, alpha=0.45, label=names[row])  # the legend's patch
    if len(names) > 1:
        style.legend(axes, loc="upper left", bbox_to_anchor=(-0.05, 1.05))
    return axes
