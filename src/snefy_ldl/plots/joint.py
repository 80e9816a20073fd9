"""A picture of joint calibration: each step of the Rosenblatt map on its own, and every two together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl.metrics import joint_calibration_test
from snefy_ldl.plots import style
from snefy_ldl.plots.reliability import calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["joint_calibration"]

#: Most histograms in one picture.
MOST_PANELS = 11


def joint_calibration(
    pit: Any, fig: Figure | None = None, *, bins: int = 10, labels: Sequence[str] | None = None
) -> Figure:
    """Histograms of every step of the joint transform, and how the steps hang together.

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
    _pairs(panels[steps], test.correlation, names, made)
    for panel in panels[steps + 1 :]:
        panel.set_axis_off()
    made.suptitle(str(test), fontsize=10, color=style.INK)
    figure: Figure = made
    return figure


def _pairs(ax: Axes, correlation: Any, names: list[str], fig: Figure) -> None:
    shown = np.where(np.eye(len(names), dtype=bool), np.nan, correlation)
    top = max(0.2, float(np.nanmax(np.abs(shown), initial=0.0)))
    image = ax.imshow(shown, cmap="RdBu_r", vmin=-top, vmax=top)
    ax.set_title("rank correlation", fontsize=9.5, color=style.INK)
    few = len(names) <= MOST_PANELS
    ax.set_xticks(range(len(names)) if few else [], names if few else [], rotation=60, ha="right")
    ax.set_yticks(range(len(names)) if few else [], names if few else [])
    style.quiet(ax, grid=None)
    bar = fig.colorbar(image, ax=ax, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=style.QUIET, labelcolor=style.INK, labelsize=8)
