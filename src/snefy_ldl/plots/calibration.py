"""Pictures of calibration: is the model as sure as it should be?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError
from snefy_ldl.metrics.intervals import pit_histogram
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def calibration(
    pit: Any,
    *,
    bins: int = 10,
    color: str = style.MODEL,
    ax: Axes | None = None,
) -> Axes:
    """Histogram of ``F(observed share | x)``: flat when the model is as sure as it should be.

    A bowl means intervals too narrow, a hump too wide, a slope a bias. The grey band is where each bar falls, by chance
    alone, with probability 95 % when the model is right.

    Args:
        pit: Marginal cdf at the observed shares, (N,).
        ax: Axes to draw on.
        bins: How many bars.
        color: Colour of the bars.

    Returns:
        The axes.

    Raises:
        InputError: the transform does not hold numbers in [0, 1].

    Example:
        >>> len(calibration(np.linspace(0.05, 0.95, 10), bins=5).patches)
        6
    """
    values = as_float(pit, "pit")
    heights = pit_histogram(values, bins)
    low, high = binom.ppf([0.025, 0.975], len(values), 1.0 / bins) * bins / len(values)
    ax = style.axes(ax, (4.6, 3.0))
    ax.axhspan(low, high, color=style.FAINT, alpha=0.75, linewidth=0, zorder=0, label="95% band")
    for end in (low, high):
        ax.axhline(end, color=style.FRAME, linewidth=0.8, zorder=3)
    draw_histogram(ax, heights, "predicted probability of a smaller share", color)
    ax.set_yticks(np.arange(0.0, ax.get_ylim()[1], 0.5))
    return ax


def draw_histogram(ax: Axes, heights: Any, words: str, color: str = style.MODEL) -> Axes:
    """Bars of a calibration histogram around a line at 1.

    Args:
        ax: Axes to draw on.
        heights: Observed against expected numbers, (bins,).
        words: Label of the horizontal axis.
        color: Of the bars.

    Returns:
        The axes.

    Example:
        >>> len(draw_histogram(style.axes(None, (4, 3)), np.ones(10), "").patches)
        10
    """
    places = np.arange(len(heights)) / len(heights)
    look: dict[str, Any] = {"color": color, "alpha": 0.82, "edgecolor": "white"}
    ax.bar(places, heights, 1.0 / len(heights), align="edge", zorder=2, **look)
    ax.axhline(1.0, color=style.INK, linewidth=1.0, linestyle=style.DASHES, zorder=3)
    top = max(1.6, 1.12 * float(np.max(heights)))
    style.quiet(ax, None, xlim=(0.0, 1.0), ylim=(0.0, top), xlabel=words, ylabel="observed / expected")
    return ax


def calibration_curve(
    levels: Any,
    coverage: Any,
    *,
    labels: Sequence[str] | None = None,
    n_rows: int | None = None,
    ax: Axes | None = None,
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
    nominal, observed = as_float(levels, "levels"), as_float(coverage, "coverage")
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
