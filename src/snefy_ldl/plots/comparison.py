"""Pictures of learners side by side: means with intervals, and mean ranks with a critical difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def mean_scores(
    learners: Sequence[str],
    means: Array,
    std_errors: Array,
    degrees: int,
    measure: str,
    higher_is_better: bool,
    ax: Axes | None = None,
) -> Axes:
    """Mean of a measure for each learner with its 95 % interval, the best on top.

    Args:
        learners: Names, k.
        means: (k,); learners whose mean is NaN are left out.
        std_errors: Of the means, (k,).
        degrees: Degrees of freedom of the intervals.
        measure: Its name.
        higher_is_better: Its direction.
        ax: Axes to draw on.

    Returns:
        The axes.

    Raises:
        InputError: No learner has a mean.

    Example:
        >>> ax = mean_scores(["a", "b"], np.array([0.1, 0.2]), np.array([0.01, 0.01]), 9, "clark", False)
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['a', 'b']
    """
    known = np.flatnonzero(np.isfinite(means))
    if not len(known):
        raise InputError("no learner has a score to draw.")
    order = known[np.argsort(-means[known] if higher_is_better else means[known], kind="stable")]
    ax = style.axes(ax, (6.4, 0.9 + 0.32 * len(order)))
    half = stats.t.ppf(0.975, degrees) * std_errors[order]
    places = np.arange(len(order))
    ax.axvline(means[order[0]], color=style.FAINT, linewidth=1.4, zorder=0)
    ax.errorbar(means[order], places, xerr=half, fmt="none", ecolor=style.FRAME, elinewidth=2.2, capsize=0)
    ax.scatter(means[order], places, s=34, color=style.MODEL, zorder=3)
    ax.set_yticks(places, [learners[k] for k in order])
    ax.invert_yaxis()
    better = "higher" if higher_is_better else "lower"
    style.quiet(ax, grid="x", xlabel=f"{measure.replace('_', ' ')} ({better} is better), mean and 95 % interval")
    return ax


def critical_difference_diagram(
    learners: Sequence[str],
    ranks: Array,
    critical_difference: float,
    groups: Sequence[Sequence[int]],
    measure: str,
    ax: Axes | None = None,
) -> Axes:
    """Mean ranks over data sets; a bar joins learners that do not differ by the Nemenyi test.

    Args:
        learners: Names, k.
        ranks: Mean ranks, 1 is best, (k,).
        critical_difference: Ranks further apart than this differ.
        groups: Numbers of learners that a bar joins.
        measure: What the ranks are of.
        ax: Axes to draw on.

    Returns:
        The axes.

    References:
        Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006.

    Example:
        >>> ax = critical_difference_diagram(["a", "b"], np.array([1.2, 1.8]), 1.0, [[0, 1]], "clark")
        >>> ax.get_title()
        'mean rank by clark'
    """
    k, order = len(learners), np.argsort(ranks, kind="stable")
    left = order[: (k + 1) // 2]
    top = 1.6 + 0.45 * len(groups)
    ax = style.axes(ax, (7.2, 1.2 + 0.28 * (top + len(left))))
    for rank in range(1, k + 1):
        ax.plot([rank, rank], [0.0, -0.25], color=style.QUIET, linewidth=1.0)
        ax.text(rank, -0.4, str(rank), ha="center", va="bottom", fontsize=8.5, color=style.QUIET)
    ax.plot([1, k], [0, 0], color=style.QUIET, linewidth=1.2)
    for place, number in enumerate(order):
        on_left = place < len(left)
        depth = top + (place if on_left else k - 1 - place)
        edge, side = (0.75, "right") if on_left else (k + 0.25, "left")
        ax.plot([ranks[number], ranks[number], edge], [0, depth, depth], color=style.FRAME, linewidth=1.2)
        text = f"{learners[number]}  {ranks[number]:.2f}" if on_left else f"{ranks[number]:.2f}  {learners[number]}"
        ax.text(edge + (-0.05 if on_left else 0.05), depth, text, ha=side, va="center", fontsize=9, color=style.INK)
    for level, group in enumerate(groups):
        height, inside = 0.55 + 0.45 * level, ranks[list(group)]
        ax.plot([inside.min() - 0.04, inside.max() + 0.04], [height, height], color=style.MODEL, linewidth=3.4)
    ax.plot([1, 1 + critical_difference], [-1.5, -1.5], color=style.TRUTH, linewidth=2.0)
    words = f"critical difference {critical_difference:.2f}"
    ax.text(1, -1.7, words, fontsize=8.5, color=style.TRUTH, va="bottom")
    ax.set_title(f"mean rank by {measure.replace('_', ' ')}", fontsize=9.5, color=style.QUIET)
    ax.set(ylim=(top + len(left), -2.4), xlim=(0.75 - 0.3 * k, k + 0.25 + 0.3 * k))
    ax.axis("off")
    return ax
