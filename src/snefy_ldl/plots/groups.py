"""Pictures of groups of rows: how far each group shifts the labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

__all__ = ["caterpillar", "caterpillar_height", "plot_group_effects"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Labels that are drawn unless some are named, and groups from which on only every second, third, ... is drawn.
MOST_LABELS, MOST_GROUPS = 6, 60
#: Groups up to which each is named.
NAMED_GROUPS = 30


def plot_group_effects(
    model: Any, level: int | str = 0, labels: Sequence[Any] | None = None, confidence_level: float = 0.95
) -> Figure:
    """Effect of each group on each label with its interval, the smallest at the bottom (a caterpillar plot).

    An effect is a shift of the label's log-ratio (its log share less the mean of all log shares) from where the
    features of the group's rows put it. Intervals are those of the effect's posterior; those that exclude zero are
    coloured. With several levels, intervals take the effects of the other levels as known.

    Args:
        model: a :class:`~snefy_ldl.SnefyLDL` that was fitted with groups and has group effects.
        level: number or name of the level.
        labels: names of the labels to draw; by default the six in which groups differ most, in the model's order.
        confidence_level: of the intervals.

    Returns:
        The figure, one panel per label.

    Raises:
        InputError: the model has no group effects, or no such level or label.

    Example:
        >>> from snefy_ldl import GroupedLDL, SnefyLDL
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0)).fit(data.X, data.D, groups=data.groups)
        >>> len(plot_group_effects(model).axes)
        3
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
    means = effects.shifts(number)[0]
    known = model.label_names_
    names = [f"label {k}" for k in range(means.shape[1])] if known is None else [str(name) for name in known]
    if labels is None:
        shown = np.sort(np.argsort(-means.std(0), kind="stable")[:MOST_LABELS]).tolist()
    elif missing := [str(label) for label in labels if str(label) not in names]:
        raise InputError(f"there is no label {missing[0]!r}; use one of {', '.join(names)}.")
    else:
        shown = [names.index(str(label)) for label in labels]
    n_groups, across = len(means), 2 if len(shown) == 4 else min(3, len(shown))
    down = -(-len(shown) // across)
    size = (3.1 * across, down * caterpillar_height(n_groups) + 0.3)
    figure: Figure
    figure, panels = style.pyplot().subplots(
        down, across, figsize=size, sharex=True, squeeze=False, layout="constrained"
    )
    for panel in panels.ravel()[len(shown) :]:
        panel.remove()
    for panel, label in zip(panels.ravel(), shown):
        caterpillar(effects, label, panel, number, confidence_level)
        panel.set_title(names[label], fontsize=10, color=style.INK)
    step = -(-n_groups // MOST_GROUPS)
    part = f", every {step}th of {n_groups:,}" if step > 1 else ""
    figure.supxlabel(
        f"shift of the log-ratio by {effects.levels[number]}{part}, with {confidence_level:.0%} interval",
        fontsize=9.5,
        color=style.QUIET,
    )
    return figure


def caterpillar_height(n_groups: int) -> float:
    """Height in inches of a panel of :func:`caterpillar`.

    Args:
        n_groups: How many groups there are; of many only some are drawn.

    Returns:
        The height.

    Example:
        >>> caterpillar_height(10) < caterpillar_height(30)
        True
    """
    drawn = -(-n_groups // -(-n_groups // MOST_GROUPS))
    return 1.1 + (0.16 if drawn <= NAMED_GROUPS else 0.07) * drawn


def caterpillar(effects: Any, label: int, ax: Axes, level: int = 0, confidence_level: float = 0.95) -> None:
    """Draw the effects of all groups of a level on one label, the smallest at the bottom.

    Args:
        effects: ``group_effects_`` of a fitted model.
        label: number of the label.
        ax: axes to draw on.
        level: number of the level.
        confidence_level: of the intervals.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from snefy_ldl import GroupedLDL, SnefyLDL
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0)).fit(data.X, data.D, groups=data.groups)
        >>> ax = Figure().add_subplot()
        >>> caterpillar(model.group_effects_, 0, ax)
        >>> len(ax.get_yticks())
        12
    """
    means, deviations = (table[:, label] for table in effects.shifts(level))
    order = np.argsort(means, kind="stable")[:: -(-len(means) // MOST_GROUPS)]
    half = float(norm.ppf(0.5 + confidence_level / 2.0))
    mean, reach, places = means[order], half * deviations[order], np.arange(len(order))
    clear, named = np.abs(mean) > reach, len(order) <= NAMED_GROUPS
    ax.axvline(0.0, color=style.QUIET, linewidth=1.0, zorder=0)
    for rows, color in ((clear, style.MODEL), (~clear, style.FRAME)):
        ax.hlines(places[rows], (mean - reach)[rows], (mean + reach)[rows], color=color, linewidth=1.8)
        ax.scatter(mean[rows], places[rows], s=14, color=color, zorder=3)
    names = np.array(effects.names[level], dtype=object)[order]
    ax.set_yticks(places if named else [], names if named else [])
    style.quiet(ax, grid="x")
    ax.tick_params(axis="y", labelsize=7.5, length=0)
    ax.tick_params(axis="x", labelbottom=True)
