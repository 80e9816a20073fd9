"""Pictures of votes; each function draws on ``ax`` and returns it. Needs the extra ``plot``."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl.plots import style
from snefy_ldl.votes.scores import CountCalibration


def plot_calibration(calibration: CountCalibration, ax: Any = None) -> Any:
    """Histogram of the probability transform of counts; flat is calibrated, a hump too unsure, a bowl too sure.

    Args:
        calibration: what :func:`snefy_ldl.votes.calibrate_counts` gave.
        ax: axes to draw on.

    Returns:
        The axes.

    Example:
        >>> flat = CountCalibration(np.full(10, 0.1), {0.9: 0.9}, 0.0)
        >>> len(plot_calibration(flat).patches)
        10
    """
    ax = style.axes(ax, (4.5, 3.0))
    bins = len(calibration.histogram)
    edges = np.linspace(0.0, 1.0, bins + 1)
    heights = calibration.histogram * bins
    ax.bar(edges[:-1], heights, 1.0 / bins, align="edge", color=style.MODEL, alpha=0.82, edgecolor="white", zorder=2)
    ax.axhline(1.0, color=style.INK, linewidth=1.0, linestyle=style.DASHES, zorder=3)
    style.quiet(
        ax,
        grid=None,
        xlim=(0.0, 1.0),
        ylim=(0.0, max(1.6, 1.12 * float(np.max(heights)))),
        xlabel="predicted probability of fewer votes",
        ylabel="observed / expected",
    )
    return ax
