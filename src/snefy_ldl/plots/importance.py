"""A picture of what each column is worth to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["importance"]


def importance(
    names: Sequence[str], losses: Any, errors: Any = None, ax: Axes | None = None, *, most: int = 12
) -> Axes:
    """Likelihood lost when a column is shuffled, one bar a column, with its 95 % interval.

    Args:
        names: Of the columns, in the order they are drawn.
        losses: Nats lost a row (d,).
        errors: Their standard errors (d,).
        ax: Axes to draw on.
        most: Bars at most; the first ones are drawn.

    Returns:
        The axes.

    Raises:
        InputError: The tables have different lengths.

    Example:
        >>> len(importance(["depth", "slope"], [0.4, 0.1], [0.05, 0.02]).patches)
        2
    """
    heights = np.asarray(losses, dtype=np.float64)
    spreads = None if errors is None else 1.96 * np.asarray(errors, dtype=np.float64)
    if heights.shape != (len(names),) or (spreads is not None and spreads.shape != heights.shape):
        raise InputError(f"losses and errors must hold one number for each of the {len(names)} names.")
    shown = min(most, len(names))
    ax = style.axes(ax, (4.6, 0.8 + 0.27 * shown))
    places = np.arange(shown)
    ax.barh(places, heights[:shown], height=0.62, color=style.MODEL, alpha=0.85, zorder=2)
    if spreads is not None:
        ax.errorbar(
            heights[:shown], places, xerr=spreads[:shown], fmt="none", ecolor=style.INK, elinewidth=1.1, zorder=3
        )
    ax.axvline(0.0, color=style.FRAME, linewidth=1.0, zorder=1)
    ax.set_yticks(places, [shorten_name(name) for name in list(names)[:shown]])
    ax.set_ylim(shown - 0.4, -0.6)
    ax.set_xlabel("log likelihood lost, in nats a row")
    style.quiet(ax, grid="x")
    ax.tick_params(axis="y", length=0)
    return ax


def shorten_name(name: str, most: int = 24) -> str:
    """A name that leaves room for the picture.

    Args:
        name: Any name.
        most: Letters at most.

    Returns:
        The name, its middle left out where it is longer.

    Example:
        >>> shorten_name("mean_annual_precipitation_mm", 16)
        'mean_ann…tion_mm'
    """
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-(most - half - 1) :]}"
