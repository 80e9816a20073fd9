"""Pictures of votes; each function draws on ``ax`` and returns it. Needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.plots import style
from snefy_ldl.votes.scores import CountCalibration


def plot_update(
    before: SnefySimplex,
    after: SnefySimplex,
    row: int = 0,
    *,
    labels: Sequence[str] | None = None,
    counts: Any = None,
    level: float = 0.9,
    ax: Any = None,
) -> Any:
    """What votes change: mean and interval of each label from the features alone, and with the votes.

    Args:
        before: distribution given the features.
        after: distribution given the features and the votes.
        row: which item.
        labels: names of the labels.
        counts: votes (N, L); their proportions are drawn as diamonds.
        level: of the intervals.
        ax: axes to draw on.

    Returns:
        The axes.

    Raises:
        InputError: there is no such row, or there are more or fewer names than labels.

    Example:
        >>> import torch
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([[2.0, 3.0]]))
        >>> ax = plot_update(dist, dist.posterior([[4.0, 0.0]]), labels=["yes", "no"])
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['yes', 'no']
    """
    names = style.names_of(labels, before.n_labels, "labels")
    number = style.row_number(row, len(before))
    ax = style.axes(ax, (5.5, 1.0 + 0.5 * before.n_labels))
    tail = 0.5 * (1.0 - level)
    for dist, shift, color, words in (
        (before, -0.14, style.QUIET, "features"),
        (after, 0.14, style.MODEL, "and votes"),
    ):
        one = dist[number : number + 1]
        for r in range(dist.n_labels):
            low, high = one.marginal(r).quantiles([tail, 1.0 - tail])[0].tolist()
            ax.plot([low, high], [r + shift] * 2, color=color, lw=3, alpha=0.5, solid_capstyle="round")
            ax.plot(float(one.mean[0, r]), r + shift, "o", color=color, ms=6, label=words if r == 0 else None)
    if counts is not None:
        votes = np.asarray(counts, dtype=np.float64)[row]
        if votes.sum() > 0:
            ax.plot(votes / votes.sum(), np.arange(len(votes)), "D", color=style.TRUTH, ms=4, label="votes alone")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    style.quiet(ax, grid=None, xlim=(0.0, 1.0), xlabel=f"share, with {level:.0%} interval")
    style.legend(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return ax


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
