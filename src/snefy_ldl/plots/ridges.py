"""The laws of all shares of one row, one ridge a label, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.plots import style
from snefy_ldl.plots.densities import binned_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["share_ridges"]

#: How far a ridge rises, in steps from one label to the next.
RISE = 0.82
#: Points of a curve over all shares, and around the mean, where it may be steep; how many deviations that goes.
ALL_POINTS, NEAR_POINTS, REACH = 61, 80, 4.5
#: Nearer to the ends than this a density does not set the height of its ridge, unless nearly all of it is there.
EDGE = 0.013


def share_ridges(
    dist: SnefySimplex,
    row: int = 0,
    ax: Axes | None = None,
    *,
    which: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    truth: Any = None,
) -> Axes:
    """Density of each label's share for one row, each as high as the next, with its mean and what was observed.

    Args:
        dist: What ``predict_dist`` returns.
        row: Which row of it.
        ax: Axes to draw on.
        which: Labels to draw, by number; all by default.
        labels: Names of all L labels.
        truth: The label distribution that was observed, (L,): dark diamonds.

    Returns:
        The axes.

    Raises:
        InputError: ``dist`` is no law of this library, there is no such row, or names do not fit.

    Example:
        >>> import torch
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> len(share_ridges(law, labels=["sand", "silt", "clay"]).lines)
        3
    """
    if not isinstance(dist, SnefySimplex):
        raise InputError(f"expected a distribution as predict_dist returns it; got {type(dist).__name__}.")
    one = dist[style.row_number(row, len(dist))]
    names = style.names_of(labels, one.n_labels, "labels")
    chosen = list(range(one.n_labels)) if which is None else list(which)
    observed = None if truth is None else np.asarray(truth, dtype=np.float64)
    ax = style.axes(ax, (4.4, 0.8 + 0.46 * len(chosen)))
    mean, deviation = to_numpy(one.mean)[0], np.sqrt(to_numpy(one.variance)[0])
    for place, label in enumerate(chosen):
        grid = _grid(float(mean[label]), float(deviation[label]))
        density = binned_density(one.marginal(label), grid)
        # near the ends a density may be unbounded: the bulk sets the height
        ends = min(EDGE, 0.3 * mean[label]), 1.0 - min(EDGE, 0.3 * (1.0 - mean[label]))
        inner = density[(grid > ends[0]) & (grid < ends[1])].max()
        height = RISE * np.minimum(density / inner, 1.0)
        color = style.label_color(label)
        ax.fill_between(grid, place, place - height, color=color, alpha=0.45, linewidth=0, zorder=2)
        ax.plot(grid, place - height, color=color, linewidth=1.5, zorder=3)
        ax.scatter(mean[label], place, s=22, color="white", edgecolors=style.INK, linewidths=0.9, zorder=5)
        if observed is not None:
            ax.scatter(
                *(observed[label], place),
                s=28,
                marker="D",
                color=style.INK,
                edgecolors="white",
                linewidths=0.8,
                zorder=6,
            )
    ax.set_yticks(range(len(chosen)), [names[label] for label in chosen])
    ax.set_ylim(len(chosen) - 0.7, -1.0)
    ax.set_xlim(0.0, 1.0)
    ax.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "25%", "50%", "75%", "100%"])
    style.quiet(ax, grid="x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return ax


def _grid(mean: float, deviation: float) -> Array:
    """Shares at which a density is drawn, in order: close together near the ends and where the bulk is."""
    everywhere = np.sin(np.linspace(0.0, np.pi / 2, ALL_POINTS + 2)[1:-1]) ** 2
    near = mean + deviation * np.linspace(-REACH, REACH, NEAR_POINTS)
    inside = near[(near > everywhere[0]) & (near < everywhere[-1])]
    return np.union1d(everywhere, inside)
