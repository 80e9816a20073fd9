"""Pictures of votes: one function a picture, axes in, axes out; needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.partial import rows_of
from snefy_ldl.errors import InputError
from snefy_ldl.plots import densities as plots
from snefy_ldl.votes.scores import CountCalibration

__all__ = ["plot_calibration", "plot_curves", "plot_update"]


def plot_update(
    before: SignedDirichletMixture,
    after: SignedDirichletMixture,
    row: int = 0,
    *,
    labels: Sequence[str] | None = None,
    counts: Any = None,
    level: float = 0.9,
    ax: Any = None,
) -> Any:
    """What votes change: mean and interval of each label from the features alone, and with the votes.

    Args:
        before: law given the features.
        after: law given the features and the votes.
        row: which item.
        labels: names of the labels.
        counts: votes (N, L); their proportions are drawn as diamonds.
        level: of the intervals.
        ax: axes to draw on.
    """
    ax = plots._axes(ax, (5.5, 1.0 + 0.5 * before.n_labels))
    names = [f"label {r}" for r in range(before.n_labels)] if labels is None else list(labels)
    if len(names) != before.n_labels:
        raise InputError(f"labels must hold {before.n_labels} names; got {len(names)}.")
    tail = 0.5 * (1.0 - level)
    for law, shift, color, words in ((before, -0.14, plots.QUIET, "features"), (after, 0.14, plots.MODEL, "and votes")):
        own = rows_of(law, np.array([row]))
        for r in range(law.n_labels):
            low, high = own.marginal(r).quantiles([tail, 1.0 - tail])[0].tolist()
            ax.plot([low, high], [r + shift] * 2, color=color, lw=3, alpha=0.5, solid_capstyle="round")
            ax.plot(float(own.mean[0, r]), r + shift, "o", color=color, label=words if r == 0 else None)
    if counts is not None:
        votes = np.asarray(counts, dtype=np.float64)[row]
        if votes.sum() > 0:
            ax.plot(votes / votes.sum(), np.arange(len(votes)), "D", color=plots.TRUTH, ms=4, label="votes alone")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0.0, 1.0)
    ax.set_xlabel(f"share, with {level:.0%} interval")
    ax.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return ax


def plot_calibration(calibration: CountCalibration, ax: Any = None) -> Any:
    """Histogram of the probability transform of counts; flat is calibrated, a hump too unsure, a bowl too sure."""
    ax = plots._axes(ax, (4.5, 3.0))
    bins = len(calibration.histogram)
    edges = np.linspace(0.0, 1.0, bins + 1)
    ax.bar(edges[:-1], calibration.histogram * bins, 1.0 / bins, align="edge", color=plots.MODEL, alpha=0.6)
    ax.axhline(1.0, color=plots.INK, lw=1, ls="--")
    ax.set_xlabel("predicted probability of fewer votes")
    ax.set_ylabel("density")
    return ax


def plot_curves(
    curves: Mapping[str, tuple[Any, Any]],
    *,
    xlabel: str = "votes",
    ylabel: str = "",
    title: str | None = None,
    ax: Any = None,
) -> Any:
    """Lines of one figure against the number of votes, one for each method, named at the side.

    Args:
        curves: for each name the numbers of votes and the values.
        xlabel: of the axes.
        ylabel: of the axes.
        title: of the picture.
        ax: axes to draw on.
    """
    ax = plots._axes(ax, (5.5, 3.6))
    for k, (name, (x, y)) in enumerate(curves.items()):
        ax.plot(x, y, color=plots.LABEL_COLORS[k % len(plots.LABEL_COLORS)], lw=2.5 if k == 0 else 1.5, label=name)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if title is not None:
        ax.set_title(title)
    ax.legend(frameon=False, fontsize="small")
    return ax
