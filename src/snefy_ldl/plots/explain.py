"""Pictures of what moves a prediction: dependence on one or two features, effects, and a mix's way in the triangle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: How each band is drawn: opacity, and the words of the legend.
BAND_STYLES = {
    "law": (0.13, "what varies"),
    "members": (0.32, "what we do not know"),
    "bootstrap": (0.32, "other rows"),
}
#: Arrowheads along a way in the triangle at most, and how far apart they are at least, as a share of its side.
ARROWS, ARROW_GAP = 5, 0.06


def dependence_lines(
    estimate: Any,
    grid: Sequence[Any],
    ax: Axes | None = None,
    *,
    labels: Sequence[str] | None = None,
    feature: str = "",
    words: str = "",
    bands: Mapping[str, Any] | None = None,
    numeric: bool = True,
    percent: bool = True,
) -> Axes:
    """Averages along one feature, one line per label, with their bands; points with whiskers for a category.

    Args:
        estimate: averages (G, Q).
        grid: values of the feature (G).
        ax: Axes to draw on.
        labels: names of the Q lines.
        feature: name of the feature.
        words: what the numbers are.
        bands: name ("members", "law", "bootstrap") -> both ends (G, Q, 2).
        numeric: whether the grid lies on a line; levels of a category otherwise.
        percent: whether the numbers are shares.

    Returns:
        The axes.

    Raises:
        InputError: the tables have different lengths.

    Example:
        >>> dependence_lines(np.zeros((3, 2)), [1, 2, 3], feature="rain").get_xlabel()
        'rain'
    """
    lines = np.asarray(estimate, dtype=np.float64)
    if lines.ndim != 2 or len(lines) != len(grid):
        raise InputError(f"estimate must be (G, Q) with G = {len(grid)}; got {lines.shape}.")
    names = style.names_of(labels, lines.shape[1], "labels")
    ax = style.axes(ax, (5.6, 3.4))
    _draw_lines(ax, lines, list(grid) if numeric else np.arange(len(grid)), names, bands or {}, numeric)
    if not numeric:
        _level_ticks(ax, grid)
    if percent:
        _percent(ax.yaxis)
    ax.set_xlabel(feature)
    ax.set_ylabel(words)
    style.quiet(ax, grid="y")
    _legend(ax, names, bands or {}, words, numeric)
    return ax


def _draw_lines(ax: Axes, lines: Any, places: Any, names: list[str], bands: Mapping[str, Any], numeric: bool) -> None:
    count = len(names)
    for q, name in enumerate(names):
        color = style.label_color(q) if count > 1 else style.MODEL
        # levels of a category: the labels stand side by side
        here = places if numeric else places + 0.16 * (q - (count - 1) / 2) * min(1.0, 4 / count)
        for band in (band for band in BAND_STYLES if band in bands):
            low, high = np.asarray(bands[band])[:, q].T
            opacity = BAND_STYLES[band][0]
            if numeric and band == "law" and count > 1:  # wide bands of several labels would hide each other
                ax.plot(here, np.stack([low, high], 1), color=color, alpha=0.8, linewidth=1.0, linestyle=":", zorder=2)
            elif numeric:
                ax.fill_between(here, low, high, color=color, alpha=opacity, linewidth=0, zorder=2)
            else:
                ax.vlines(here, low, high, color=color, alpha=min(1.0, 2 * opacity), linewidth=5, zorder=2)
        if numeric:
            ax.plot(here, lines[:, q], color=color, linewidth=2.0, label=name, zorder=3)
        else:
            ax.scatter(here, lines[:, q], color=color, edgecolors="white", s=36, label=name, zorder=3)


def _legend(ax: Axes, names: list[str], bands: Mapping[str, Any], words: str, numeric: bool) -> None:
    from matplotlib.lines import Line2D  # the extra ``plot``
    from matplotlib.patches import Patch

    handles = ax.get_legend_handles_labels()[0] if len(names) > 1 or names[0] != words else []
    shown = [band for band in BAND_STYLES if band in bands]
    for band in shown:
        opacity, text = BAND_STYLES[band]
        dotted = band == "law" and numeric and len(names) > 1
        line = Line2D([], [], color=style.QUIET, linewidth=1.0, linestyle=":", label=text)
        handles.append(line if dotted else Patch(color=style.QUIET, alpha=opacity + 0.1, label=text))
    if handles:
        style.legend(ax, handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _level_ticks(ax: Axes, grid: Sequence[Any]) -> None:
    texts = [str(level) for level in grid]
    crowded = sum(len(text) for text in texts) > 50
    ax.set_xticks(range(len(grid)), texts, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    ax.set_xlim(-0.6, len(grid) - 0.4)


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter  # the extra ``plot``

    axis.set_major_formatter(PercentFormatter(1.0))


def dependence_map(
    estimate: Any,
    grids: Sequence[Sequence[Any]],
    ax: Axes | None = None,
    *,
    features: Sequence[str] = ("", ""),
    words: str = "",
    numeric: Sequence[bool] = (True, True),
    percent: bool = True,
) -> Axes:
    """Averages along two features as a map: darker is more.

    Args:
        estimate: averages (G1, G2).
        grids: values of both features.
        ax: Axes to draw on.
        features: names of both, across and up.
        words: what the numbers are.
        numeric: whether each grid lies on a line; levels of a category otherwise.
        percent: whether the numbers are shares.

    Returns:
        The axes.

    Raises:
        InputError: the shapes do not fit.

    Example:
        >>> dependence_map(np.eye(2), [[0, 1], [0, 1]], features=("rain", "heat")).get_ylabel()
        'heat'
    """
    table = np.asarray(estimate, dtype=np.float64)
    if table.shape != tuple(len(grid) for grid in grids) or table.ndim != 2:
        raise InputError(f"estimate must be (G1, G2), as the grids are; got {table.shape}.")
    from matplotlib.colors import LinearSegmentedColormap  # the extra ``plot``

    ax = style.axes(ax, (4.8, 3.8))
    places = [list(grid) if line else np.arange(len(grid)) for grid, line in zip(grids, numeric)]
    shades = LinearSegmentedColormap.from_list("model", style.SHADES["model"])
    mesh = ax.pcolormesh(places[0], places[1], table.T, cmap=shades, shading="nearest", rasterized=True)
    bar = style.color_bar(ax, mesh)
    if percent:
        _percent(bar.ax.yaxis)
    for axis, grid, line in zip((ax.xaxis, ax.yaxis), grids, numeric):
        if not line:
            axis.set_ticks(range(len(grid)), [str(level) for level in grid])
    ax.set_xlabel(features[0])
    ax.set_ylabel(features[1])
    ax.set_title(words, fontsize=10, color=style.INK, loc="left")
    style.quiet(ax, grid=None)
    return ax


def effect_intervals(
    numbers: Any, names: Sequence[tuple[str, str]], ax: Axes | None = None, *, words: str = "", percent: bool = True
) -> Axes:
    """Effects with their intervals, from top to bottom, under the contrast they belong to.

    Args:
        numbers: estimate, lower and upper end (E, 3).
        names: of each: contrast, label (E).
        ax: Axes to draw on.
        words: what is predicted.
        percent: whether to write the numbers in percentage points.

    Returns:
        The axes.

    Raises:
        InputError: there are more or fewer names than effects.

    Example:
        >>> ax = effect_intervals([[0.1, 0.0, 0.2]], [("rain +10", "sand")])
        >>> [text.get_text() for text in ax.get_yticklabels()]
        ['rain +10   sand']
    """
    table = np.asarray(numbers, dtype=np.float64) * (100.0 if percent else 1.0)
    if table.shape != (len(names), 3):
        raise InputError(f"numbers must be ({len(names)}, 3); got {table.shape}.")
    ax = style.axes(ax, (5.6, 0.8 + 0.26 * len(names)))
    places, texts, contrast = np.arange(len(names), dtype=float), [], None
    kinds = list(dict.fromkeys(label for _, label in names))
    for k, (group, label) in enumerate(names):
        first = group != contrast
        places[k:] += 0.5 if first and k else 0.0  # a gap between contrasts
        texts.append(f"{group}   {label}" if first and label != words else group if first else label)
        contrast = group
        color = style.label_color(kinds.index(label)) if len(kinds) > 1 else style.MODEL
        ax.hlines(places[k], table[k, 1], table[k, 2], color=color, linewidth=2.4, alpha=0.55)
        ax.scatter(table[k, 0], places[k], color=color, edgecolors="white", s=40, zorder=3)
    ax.axvline(0.0, color=style.QUIET, linewidth=1.0, linestyle=style.DASHES, zorder=1)
    ax.set_yticks(places, texts)
    ax.set_ylim(places[-1] + 0.6, -0.6)
    ax.set_xlabel(f"change of {words}" + (", in percentage points" if percent else ""))
    style.quiet(ax, grid="x")
    ax.tick_params(axis="y", length=0)
    return ax


def ternary_path(
    mix: Any,
    grid: Sequence[Any],
    ax: Any = None,
    *,
    labels: Sequence[str] | None = None,
    feature: str = "",
    rows: Any = None,
) -> Any:
    """How the mean mix of three labels moves along a feature: a way with arrows from its first to its last value.

    Args:
        mix: mean shares (G, 3); of more labels than three, the three are closed to sum to one.
        grid: values of the feature (G); both ends are written beside the way.
        ax: Axes with ``projection="ternary"``.
        labels: names of the corners: top, left, right.
        feature: name of the feature.
        rows: ways of single rows (R, G, 3), drawn thin and grey, from first to last.

    Returns:
        The axes.

    Raises:
        InputError: there are not three shares, or fewer than two values.

    Example:
        >>> ax = ternary_path([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]], [0, 10], feature="rain")
        >>> ax.get_title()
        'mean mix along rain'
    """
    way = np.asarray(mix, dtype=np.float64)
    if way.shape != (len(grid), 3) or len(grid) < 2:
        raise InputError(f"mix must be (G, 3) with G = {len(grid)}, at least 2; got {way.shape}.")
    ax = style.ternary_axes(ax, labels)
    for single in [] if rows is None else np.asarray(rows, dtype=np.float64):
        _arrow(ax, _closed(single)[[0, -1]], style.FRAME, 0.9, 8)
    way = _closed(way)
    ax.plot(*way.T, color=style.MODEL, linewidth=2.2, zorder=4)
    length = np.abs(np.diff(way, axis=0)).sum() / 2
    heads = int(np.clip(length / ARROW_GAP, 1, min(ARROWS, len(way) - 1)))
    stops = np.unique(np.linspace(0, len(way) - 1, heads + 1).round().astype(int))
    for stop in stops[1:]:
        _arrow(ax, way[[stop - 1, stop]], style.MODEL, 2.2, 14)
    ax.scatter(*way[:1].T, color="white", edgecolors=style.MODEL, s=36, linewidths=1.8, zorder=5)
    for end, text, down in ((0, grid[0], 5), (-1, grid[-1], -13)):
        words = f"{text:.4g}" if isinstance(text, (float, int)) and not isinstance(text, bool) else str(text)
        place = {"xytext": (7, down), "textcoords": "offset points", "zorder": 6}
        ax.annotate(words, _flat(ax, way[end]), fontsize=9, color=style.INK, **place)
    ax.set_title(f"mean mix along {feature}", fontsize=10, color=style.INK, y=1.1)
    return ax


def _closed(mix: Any) -> Any:
    return mix / mix.sum(axis=-1, keepdims=True)


def _flat(ax: Any, mix: Any) -> Any:
    """Where a mix lies on the plane that ternary axes draw on."""
    return ax.transProjection.transform(np.atleast_2d(mix))[0]


def _arrow(ax: Any, ends: Any, color: str, width: float, head: float) -> None:
    start, stop = (_flat(ax, end) for end in ends)
    form = {"arrowstyle": "-|>", "color": color, "linewidth": width, "mutation_scale": head, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", stop, xytext=start, arrowprops=form, zorder=3)


def pixel_gradients(image: Any, gradient: Any, ax: Axes | None = None, title: str = "") -> Axes:
    """An image in grey, and over it where it moves the prediction: blue raises it, orange lowers it.

    Args:
        image: (channels, height, width), 8-bit or between 0 and 1.
        gradient: of the same shape; a pixel's colour is the sum over its channels.
        ax: Axes to draw on.
        title: above the picture.

    Returns:
        The axes.

    Raises:
        InputError: the shapes differ.

    Example:
        >>> pixel_gradients(np.zeros((3, 8, 8)), np.ones((3, 8, 8)), title="share of green").get_title()
        'share of green'
    """
    pixels, slopes = np.asarray(image, dtype=np.float64), np.asarray(gradient, dtype=np.float64)
    if pixels.ndim != 3 or pixels.shape != slopes.shape:
        raise InputError(
            f"image and gradient must be (channels, height, width), alike; got {pixels.shape} and {slopes.shape}."
        )
    from matplotlib.colors import LinearSegmentedColormap  # the extra ``plot``

    grey = pixels.mean(0) / (255.0 if pixels.max() > 1.0 else 1.0)
    moved = slopes.sum(0)
    ax = style.axes(ax, (3.0, 3.2))
    ax.imshow(0.55 + 0.45 * grey, cmap="gray", vmin=0.0, vmax=1.0)
    colors = LinearSegmentedColormap.from_list("moved", [style.TRUTH, "#ffffff", style.MODEL])
    limit = max(float(np.quantile(np.abs(moved), 0.995)), 1e-300)
    ax.imshow(moved, cmap=colors, vmin=-limit, vmax=limit, alpha=np.clip(np.abs(moved) / limit, 0.0, 1.0))
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(title, fontsize=9, color=style.INK)
    return ax


def importance(
    names: Sequence[str], losses: Any, errors: Any = None, ax: Axes | None = None, *, most: int = 12
) -> Axes:
    """Likelihood lost when a column is shuffled, one bar per column, with its 95 % interval.

    Args:
        names: Of the columns, in the order they are drawn.
        losses: Nats lost per row (d,).
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
    ax.set_xlabel("log likelihood lost, in nats per row")
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
