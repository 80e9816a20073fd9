"""Pictures of groups of rows: how far each group shifts the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

__all__ = ["plot_group_effects"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Groups from which on only every second, third, ... is drawn.
MOST_GROUPS = 60
#: Groups up to which each is named.
NAMED_GROUPS = 30


def plot_group_effects(
    model: Any,
    label: int | str | None = None,
    level: int | str = 0,
    confidence_level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Effect of each group on a label with its interval, the smallest at the bottom (a caterpillar plot).

    An effect is a shift of the label's log-ratio (its log share minus the mean of all log shares) from where the
    features of the group's rows put it. Intervals are those of the effect's posterior; those that exclude zero are
    coloured. With several levels, intervals take the effects of the other levels as known.

    Args:
        model: a :class:`~snefy_ldl.GroupedLDL` that has group effects.
        label: number or name of the label; by default the one in which groups differ most.
        level: number or name of the level.
        confidence_level: of the intervals.
        ax: axes to draw on; a new figure by default.

    Returns:
        The axes.

    Raises:
        InputError: the model has no group effects, or no such level or label.

    Example:
        >>> from snefy_ldl import GroupedLDL, SnefyLDL
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0)).fit(data.X, data.D, groups=data.groups)
        >>> len(plot_group_effects(model).get_yticks())
        12
    """
    effects = getattr(model, "group_effects_", None)
    if effects is None:
        raise InputError(
            "the model has no group effects: use GroupedLDL().fit(X, D, groups=...) on groups that differ."
        )
    check_confidence(confidence_level)
    if level not in (*range(len(effects.levels)), *effects.levels):
        raise InputError(f"there is no level {level!r}; use one of {', '.join(effects.levels)}.")
    number = level if isinstance(level, int) else effects.levels.index(level)
    means, deviations = effects.shifts(number)
    names = style.names_of(model.label_names_, means.shape[1], "label_names_")
    if label is None:
        label = int(means.std(0).argmax())
    elif isinstance(label, str) and label not in names:
        raise InputError(f"there is no label {label!r}; use one of {', '.join(names)}.")
    which = names.index(label) if isinstance(label, str) else label
    step = -(-len(means) // MOST_GROUPS)
    order = np.argsort(means[:, which], kind="stable")[::step]
    half = float(norm.ppf(0.5 + confidence_level / 2.0))
    mean, reach, places = means[order, which], half * deviations[order, which], np.arange(len(order))
    clear, named = np.abs(mean) > reach, len(order) <= NAMED_GROUPS
    ax = style.axes(ax, (3.6, 1.1 + (0.16 if named else 0.07) * len(order)))
    ax.axvline(0.0, color=style.QUIET, linewidth=1.0, zorder=0)
    for rows, color in ((clear, style.MODEL), (~clear, style.FRAME)):
        ax.hlines(places[rows], (mean - reach)[rows], (mean + reach)[rows], color=color, linewidth=1.8)
        ax.scatter(mean[rows], places[rows], s=14, color=color, zorder=3)
    texts = np.array(effects.names[number], dtype=object)[order]
    ax.set_yticks(places if named else [], texts if named else [])
    ax.set_title(names[which], fontsize=10, color=style.INK)
    part = f", every {step}th of {len(means):,}" if step > 1 else ""
    words = f"shift of the log-ratio by {effects.levels[number]}{part}, with {confidence_level:.0%} interval"
    style.quiet(ax, grid="x", xlabel=words)
    return ax
