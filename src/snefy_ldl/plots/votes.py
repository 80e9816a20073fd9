"""Pictures of votes; each function draws on ``ax`` and returns it. Needs the extra ``plot``."""

from __future__ import annotations

from typing import Any

from snefy_ldl.plots import style
from snefy_ldl.plots.calibration import draw_histogram
from snefy_ldl.votes.held_out import CountCalibration


def plot_calibration(calibration: CountCalibration, ax: Any = None) -> Any:
    """Histogram of the probability transform of counts; flat is calibrated, a hump too unsure, a bowl too sure.

    Args:
        calibration: what :func:`snefy_ldl.votes.calibrate_counts` gave.
        ax: axes to draw on.

    Returns:
        The axes.

    Example:
        >>> import numpy as np
        >>> flat = CountCalibration(np.full(10, 0.1), {0.9: 0.9}, 0.0)
        >>> len(plot_calibration(flat).patches)
        10
    """
    heights = calibration.histogram * len(calibration.histogram)
    return draw_histogram(style.axes(ax, (4.5, 3.0)), heights, "predicted probability of fewer votes")
