"""Pictures of calibration: is the model as sure as it should be?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import joint_calibration_test, pit_histogram
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def calibration(
    pit: Any,
    ax: Axes | None = None,
    *,
    bins: int = 10,
    labels: Sequence[str] | None = None,
    color: str = style.MODEL,
    confidence_level: float = 0.95,
) -> Axes:
    """Histogram of ``F(observed share | x)``: flat when the model is as sure as it should be.

    A bowl means intervals too narrow, a hump too wide, a slope a bias. The grey band is where each bar falls, by chance
    alone, with probability ``confidence_level`` when the model is right.

    Args:
        pit: Marginal cdf at what was observed: (N,) draws bars, (N, L) one line per label.
        ax: Axes to draw on.
        bins: How many bars.
        labels: Names of the L columns.
        color: Colour of the bars.
        confidence_level: Of the band.

    Returns:
        The axes.

    Raises:
        InputError: the transform is no table of numbers in [0, 1], or names do not fit.

    Example:
        >>> len(calibration(np.linspace(0.05, 0.95, 10), bins=5).patches)
        6
    """
    values = np.asarray(pit, dtype=np.float64)
    heights = pit_histogram(values, bins)
    tail = (1.0 - check_confidence(confidence_level)) / 2.0
    low, high = binom.ppf([tail, 1.0 - tail], len(values), 1.0 / bins) * bins / len(values)
    ax = style.axes(ax, (4.6, 3.0))
    edges = np.linspace(0.0, 1.0, bins + 1)
    ax.axhspan(low, high, color=style.FAINT, alpha=0.75, linewidth=0, zorder=0, label=f"{confidence_level:.0%} band")
    for end in (low, high):
        ax.axhline(end, color=style.FRAME, linewidth=0.8, zorder=3)
    ax.axhline(1.0, color=style.INK, linewidth=1.0, linestyle=style.DASHES, zorder=3)
    if values.ndim == 1:
        ax.bar(
            edges[:-1], heights, width=1.0 / bins, align="edge", color=color, alpha=0.82, edgecolor="white", zorder=2
        )
    else:
        names = style.names_of(labels, values.shape[1], "labels")
        for label, name in enumerate(names):
            shade = style.label_color(label)
            ax.stairs(heights[:, label], edges, baseline=None, color=shade, linewidth=2.0, zorder=2, label=name)
        style.legend(ax, ncols=min(1 + len(names), 4), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, max(1.6, 1.12 * float(np.max(heights)))))
    ax.set_yticks(np.arange(0.0, ax.get_ylim()[1], 0.5))
    style.quiet(ax, grid=None, xlabel="predicted probability of a smaller share", ylabel="observed / expected")
    return ax


def calibration_curve(
    levels: Any,
    coverage: Any,
    ax: Axes | None = None,
    *,
    labels: Sequence[str] | None = None,
    n_rows: int | None = None,
) -> Axes:
    """Share of observations inside their interval against the level that was asked for: on the diagonal when honest.

    Args:
        levels: Confidence levels, (A,).
        coverage: Observed coverage, (A,), or (A, L) with one line per label.
        ax: Axes to draw on.
        labels: Names of the L lines.
        n_rows: Rows behind each figure; draws the 95 % band of a model that is right.

    Returns:
        The axes.

    Raises:
        InputError: the shapes do not fit.

    Example:
        >>> calibration_curve([0.5, 0.9], [0.45, 0.92]).lines[1].get_ydata()
        array([0.45, 0.92])
    """
    nominal = np.asarray(levels, dtype=np.float64)
    observed = np.asarray(coverage, dtype=np.float64)
    if nominal.ndim != 1 or observed.ndim not in (1, 2) or len(observed) != len(nominal):
        shapes = f"{nominal.shape} and {observed.shape}"
        raise InputError(f"levels must be (A,) and coverage (A,) or (A, L); got shapes {shapes}.")
    ax = style.axes(ax, (3.8, 3.8))
    if n_rows is not None:
        fine = np.linspace(0.0, 1.0, 101)
        low, high = (binom.ppf(tail, n_rows, fine) / n_rows for tail in (0.025, 0.975))
        ax.fill_between(fine, low, high, color=style.FAINT, alpha=0.75, linewidth=0, zorder=0, label="95% band")
    ax.plot([0, 1], [0, 1], color=style.QUIET, linewidth=1.0, linestyle=style.DASHES, zorder=1)
    lines = observed[:, None] if observed.ndim == 1 else observed
    names = None if observed.ndim == 1 else style.names_of(labels, lines.shape[1], "labels")
    for label, line in enumerate(lines.T):
        color = style.MODEL if names is None else style.label_color(label)
        name = names and names[label]
        ax.plot(nominal, line, color=color, linewidth=1.8, marker="o", markersize=4.5, zorder=3, label=name)
    if names is not None:
        style.legend(ax, loc="upper left")
    style.quiet(
        ax,
        grid="both",
        xlim=(0.0, 1.0),
        ylim=(0.0, 1.0),
        aspect="equal",
        xlabel="confidence level asked for",
        ylabel="share inside the interval",
    )
    return ax


#: Most histograms in one picture.
MOST_PANELS = 11


def joint_calibration(
    pit: Any, fig: Figure | None = None, *, bins: int = 10, labels: Sequence[str] | None = None
) -> Figure:
    """Histograms of every step of the joint transform, and how the steps are related.

    Each histogram is flat, within its grey band, when the step is right; the last panel holds Spearman's correlation of
    every two steps, near zero when they are independent. The title says what the test of both says.

    Args:
        pit: What :func:`snefy_ldl.metrics.joint_pit` returns, (N, L-1).
        fig: Figure to draw on, laid out anew; a new one by default.
        bins: Bars of a histogram.
        labels: Names of the L labels; the last one has no panel.

    Returns:
        The figure. With more than eleven steps the first eleven have a histogram.

    Raises:
        InputError: The transform is no table of numbers in [0, 1], too short, or names do not fit.

    Example:
        >>> len(joint_calibration(np.random.default_rng(0).uniform(size=(200, 2))).axes)     # with a colour bar
        4
    """
    values = np.asarray(pit, dtype=np.float64)
    test = joint_calibration_test(values)
    names = style.names_of(labels, values.shape[1] + 1, "labels")[:-1]
    steps = min(len(names), MOST_PANELS)
    rows = -(-(steps + 1) // 4)
    columns = -(-(steps + 1) // rows)
    made: Any = style.axes(None, (2.7 * columns, 2.4 * rows + 0.4)).figure if fig is None else fig
    made.clear()
    panels = made.subplots(rows, columns, squeeze=False).ravel()
    for k, panel in enumerate(panels[:steps]):
        calibration(values[:, k], panel, bins=bins)
        panel.set_title(names[k] if k == 0 else f"{names[k]} | earlier", fontsize=9.5, color=style.INK)
        panel.set_xlabel("")
        panel.set_ylabel("observed / expected" if k % columns == 0 else "")
    _pairs(panels[steps], test.correlation, names)
    for panel in panels[steps + 1 :]:
        panel.set_axis_off()
    made.suptitle(str(test), fontsize=10, color=style.INK)
    return made


def _pairs(ax: Axes, correlation: Any, names: list[str]) -> None:
    shown = np.where(np.eye(len(names), dtype=bool), np.nan, correlation)
    top = max(0.2, float(np.nanmax(np.abs(shown), initial=0.0)))
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-top, vmax=top)
    ax.set_title("rank correlation", fontsize=9.5, color=style.INK)
    few = len(names) <= MOST_PANELS
    ax.set_xticks(range(len(names)) if few else [], names if few else [], rotation=60, ha="right")
    ax.set_yticks(range(len(names)) if few else [], names if few else [])
    style.quiet(ax, grid=None)
    style.color_bar(ax, image, shrink=0.8)
