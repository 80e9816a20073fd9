"""The one style of all pictures: colours, axes, a quiet frame, legends, and how names and rows are checked.

Nothing here touches matplotlib's settings. Needs the extra ``plot``: ``pip install 'snefy-ldl[plot]'``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from snefy_ldl._internal.extras import extra
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's colours, distinct with any kind of colour vision; labels take them in this order.
LABEL_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
#: The model's predictions, and observations or the truth.
MODEL, TRUTH = "#0072B2", "#D55E00"
#: Everything that only helps to read, from text to the faintest line.
INK, QUIET, FRAME, FAINT = "#1f2933", "#6b7785", "#b8c1cc", "#dfe4ea"
#: From nothing to certain, for densities.
SHADES = ("#f3f9fc", "#d3e9f3", "#94cae1", "#4a9fca", "#1a6da8", "#0a3a6b")
#: Text on a coloured ground, dark or light; unlike white and ink it keeps its colour on a dark page.
ON_DARK, ON_LIGHT = "#fdfeff", "#17202a"
#: Dashes of lines that only guide the eye.
DASHES: Any = (0, (4, 3))


def label_color(number: int) -> str:
    """Colour of a label, or of one line of several.

    Args:
        number: counts from 0; colours repeat after eight.

    Returns:
        A colour as matplotlib takes it.

    Example:
        >>> label_color(1) == label_color(9) == LABEL_COLORS[1]
        True
    """
    return LABEL_COLORS[number % len(LABEL_COLORS)]


def ink_on(color: str) -> str:
    """Colour of text on a coloured ground: white on dark grounds, dark on light ones.

    Args:
        color: of the ground, as ``#rrggbb``.

    Returns:
        A colour.

    Example:
        >>> ink_on("#000000") == ON_DARK, ink_on("#ffffff") == ON_LIGHT
        (True, True)
    """
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return ON_DARK if 0.299 * red + 0.587 * green + 0.114 * blue < 0.58 else ON_LIGHT


def pyplot() -> ModuleType:
    """``matplotlib.pyplot``, loaded with the first picture.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with extra("plot", "pictures need matplotlib and mpltern"):
        import matplotlib.pyplot as plt
    return plt


def axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Axes to draw on.

    Args:
        ax: axes of the caller's, which are taken as they are; None makes a figure.
        size: width and height of that figure, in inches.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def ternary_axes(ax: Any, labels: Sequence[str] | None) -> Any:
    """Axes of three labels with the style's frame, and the corners named.

    Args:
        ax: axes made with ``projection="ternary"``; None makes a figure.
        labels: names of the corners: top, left, right.

    Returns:
        The axes.

    Raises:
        ImportError: matplotlib or mpltern is not installed.
        InputError: the axes are not ternary, or there are not three names.
    """
    with extra("plot", "ternary pictures need matplotlib and mpltern"):
        import mpltern  # noqa: F401 - registers the projection "ternary"
    if ax is None:
        ax = pyplot().figure(figsize=(4.4, 4.2), layout="constrained").add_subplot(projection="ternary")
    if not hasattr(ax, "taxis"):
        raise InputError('a ternary plot needs ternary axes: fig.add_subplot(projection="ternary").')
    for axis in (ax.taxis, ax.laxis, ax.raxis):
        axis.set_ticks([0.25, 0.5, 0.75], labels=["25%", "50%", "75%"])
        axis.set_tick_params(length=3, pad=2, color=QUIET, labelcolor=QUIET, labelsize=8)
        axis.grid(True, color=FRAME, linewidth=0.6, alpha=0.55)
    ax.set_facecolor("none")
    ax.set_title("", y=1.0)  # where a title goes is settled: finding it out costs more than all the rest
    for spine in ax.spines.values():
        spine.set_color(QUIET)
        spine.set_linewidth(1.0)
    # above the top and under the other two corners, within the triangle's width, so that it can be large
    places = zip(names_of(labels, 3, "labels"), ax.corners_axes, ("center", "left", "right"), ("bottom", "top", "top"))
    for name, corner, across, along in places:
        ax.annotate(
            name,
            corner,
            xytext=(0, 6 if along == "bottom" else -24),  # under the corners, below the numbers along the edge
            xycoords="axes fraction",
            textcoords="offset points",
            ha=across,
            va=along,
            color=INK,
            fontsize=10,
        )
    return ax


def quiet(ax: Axes, grid: Literal["both", "x", "y"] | None, **settings: Any) -> None:
    """Give axes a thin grey frame on two sides, so that the data is what one sees.

    Args:
        ax: the axes.
        grid: which lines help to read, if any.
        settings: limits and labels, as ``Axes.set`` takes them.
    """
    ax.set(**settings)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(FRAME)
    ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)
    ax.xaxis.label.set(color=QUIET, fontsize=9.5)
    ax.yaxis.label.set(color=QUIET, fontsize=9.5)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(True, axis=grid, color=FAINT, linewidth=0.7)


def mark_mean(ax: Any, *where: Any, size: float, edge: float = 0.9) -> None:
    """Draw predicted means as white dots.

    Args:
        ax: the axes.
        where: coordinates, as ``Axes.scatter`` takes them.
        size: area of a dot, in square points.
        edge: width of its edge, in points.
    """
    ax.scatter(*where, s=size, color="white", edgecolors=INK, linewidths=edge, zorder=5)


def mark_observed(ax: Any, *where: Any, size: float, edge: float = 0.9) -> None:
    """Draw observed values as dark diamonds.

    Args:
        ax: the axes.
        where: coordinates, as ``Axes.scatter`` takes them.
        size: area of a diamond, in square points.
        edge: width of its edge, in points.
    """
    ax.scatter(*where, s=size, marker="D", color=INK, edgecolors="white", linewidths=edge, zorder=6)


def color_bar(ax: Axes, colors: Any, labelsize: float = 8, **options: Any) -> Any:
    """Draw a colour bar without a frame.

    Args:
        ax: the axes it belongs to.
        colors: what ``scatter``, ``imshow`` or ``pcolormesh`` returned.
        labelsize: of its numbers, in points.
        options: of ``Figure.colorbar``.

    Returns:
        The colour bar.
    """
    bar = ax.figure.colorbar(colors, ax=ax, **options)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=labelsize)
    return bar


def legend(ax: Axes, **where: Any) -> None:
    """Draw the legend.

    Args:
        ax: the axes.
        where: place and columns, as ``Axes.legend`` takes them.
    """
    ax.legend(
        fontsize=9, labelcolor=INK, handlelength=1.4, columnspacing=1.4, edgecolor="none", framealpha=0.85, **where
    )


def names_of(names: Sequence[str] | None, count: int, what: str, stem: str = "label") -> list[str]:
    """Names to write next to things.

    Args:
        names: given ones, or None.
        count: how many there must be.
        what: the argument, for the message.
        stem: what things are called if no names are given.

    Returns:
        The names.

    Raises:
        InputError: there are more or fewer.

    Example:
        >>> names_of(None, 2, "labels"), names_of(["u", "v"], 2, "labels")
        (['label 0', 'label 1'], ['u', 'v'])
    """
    if names is None:
        return [f"{stem} {i}" for i in range(count)]
    if isinstance(names, str) or not np.iterable(names) or len(list(names)) != count:
        raise InputError(f"{what} must hold {count} names; got {names!r}.")
    return [str(name) for name in names]


def row_number(row: Any, n_rows: int, what: str = "row") -> int:
    """A row's number, counted from 0.

    Args:
        row: the number; negative ones count from the end.
        n_rows: how many rows there are.
        what: what is counted, for errors.

    Returns:
        The number.

    Raises:
        InputError: there is no such row.

    Example:
        >>> row_number(-1, 5)
        4
    """
    if not isinstance(row, (int, np.integer)) or isinstance(row, bool) or not -n_rows <= row < n_rows:
        raise InputError(f"{what} {row!r} is not there: there are 0 to {n_rows - 1}.")
    return int(row) % n_rows


def shorten_name(name: str, most: int = 24) -> str:
    """A name that leaves room for the picture.

    Args:
        name: Any name.
        most: Letters at most.

    Returns:
        The name, its middle left out if it is longer.

    Example:
        >>> shorten_name("mean_annual_precipitation_mm", 16)
        'mean_ann…tion_mm'
    """
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-(most - half - 1) :]}"
