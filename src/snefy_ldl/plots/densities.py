"""Pictures of predicted densities: over mixes of three labels, and of one label's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from snefy_ldl._internal.dists import to_numpy
from snefy_ldl._internal.special import ternary_grid
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import as_float, check_choice, check_confidence
from snefy_ldl.datasets.texture import USDA, texture_classes
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Labels of soil, and steps of the grid on which its classes are outlined.
SOIL, CLASS_STEPS = ("sand", "silt", "clay"), 250
#: Filled steps of :func:`ternary_density`: each holds at least this much of the probability.
CONTENTS = (0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: The contents that also get a line.
OUTLINES = (0.9, 0.5)


def ternary_density(
    dist: SimplexDistribution,
    *,
    row: int = 0,
    labels: Sequence[str] | None = None,
    truth: Any = None,
    points: Any = None,
    classes: Literal["USDA"] | None = None,
    resolution: int = 140,
    ax: Axes | None = None,
) -> Axes:
    """Density of one row over all mixes of three labels; the darkest area is the most likely.

    The steps hold fixed shares of the probability (highest density regions); lines mark the regions of 50 % and 90 %.
    For more than three labels merge them (``dist.amalgamate``) or pick three (``dist.subcomposition``) first.

    Args:
        dist: What ``predict_dist`` returns.
        ax: Axes made with ``projection="ternary"`` (mpltern).
        row: Which row of ``dist``.
        labels: Names of the three corners: top, left, right.
        truth: The label distribution that was observed, (3,): a dark diamond.
        points: More label distributions to draw as dots, (n, 3): draws, say.
        classes: "USDA" outlines the twelve classes of soil texture; labels are then sand, silt and clay, in this order
            unless their names are these.
        resolution: Grid steps along a side.

    Returns:
        The axes.

    Raises:
        InputError: ``dist`` is no density of three labels, or a point is no mix of three.

    Example:
        >>> ternary_density("no density")
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: expected a distribution as predict_dist returns it; got str.
    """
    one = _row_of(dist, row)
    if one.n_labels != 3:
        raise InputError(
            f"a ternary plot needs 3 labels, this distribution has {one.n_labels}. Merge labels into three groups "
            "(dist.amalgamate([[0], [1], [2, 3]])) or pick three (dist.subcomposition([0, 1, 2]))."
        )
    grid = ternary_grid(resolution)
    log_density = to_numpy(one.log_prob(torch.as_tensor(grid)[:, None, :])[:, 0])
    triangle = style.ternary_axes(ax, labels)
    _fill_ternary(triangle, grid, log_density)
    if classes is not None:
        check_choice("classes", classes, ("USDA",))
        names = [str(name).lower() for name in labels or getattr(dist, "label_names", None) or SOIL]
        order = [names.index(name) for name in SOIL] if sorted(names) == sorted(SOIL) else [0, 1, 2]
        fine = ternary_grid(CLASS_STEPS)
        numbers = texture_classes(fine[:, order]).astype(float)
        for number in range(len(USDA)):
            triangle.tricontour(*fine.T, (numbers == number) * 1.0, levels=[0.5], colors=[style.QUIET], linewidths=0.4)
    if points is not None:
        dots = _compositions(points, "points")
        triangle.scatter(*dots.T, s=7, color=style.INK, alpha=0.45, linewidths=0, zorder=4)
    style.mark_mean(triangle, *to_numpy(one.mean).T, size=52, edge=1.3)
    if truth is not None:
        style.mark_observed(triangle, *_compositions(truth, "truth").T, size=58, edge=1.3)
    return triangle


def share_density(share: Any, grid: Array) -> Array:
    """Density of a share at some points.

    Args:
        share: Distribution of one share, of one row.
        grid: Points inside (0, 1), (Q,).

    Returns:
        Densities (Q,), without the probabilities of exactly 0 and 1.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[1.0, 1.0]]))
        >>> share_density(dist.marginal(0), np.array([0.2, 0.5, 0.8])).round(6)
        array([1., 1., 1.])
    """
    return np.exp(to_numpy(share.log_prob(torch.as_tensor(grid)[:, None]))[:, 0])


def marginal_density(
    dist: SimplexDistribution,
    label: int,
    row: int = 0,
    *,
    name: str | None = None,
    truth: float | None = None,
    confidence_level: float = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Density of one label's share for one row, its mean, and its central interval shaded.

    Args:
        dist: What ``predict_dist`` returns.
        label: Which label, by number.
        row: Which row.
        ax: Axes to draw on.
        name: Name of the label, for the axis.
        truth: The share that was observed: a solid line.
        confidence_level: Of the shaded interval.

    Returns:
        The axes.

    Raises:
        InputError: ``dist`` is no distribution of this library, or there is no such row.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> marginal_density(dist, 0, name="sand").get_xlabel()
        'share of sand'
    """
    share, shade = _row_of(dist, row).marginal(label), style.label_color(label)
    grid = np.linspace(0.002, 0.998, 499)
    density = share_density(share, grid)
    ax = style.axes(ax, (4.6, 2.6))
    ax.fill_between(grid, density, color=shade, alpha=0.16, linewidth=0)
    tail = (1.0 - check_confidence(confidence_level)) / 2.0
    low, high = share.quantiles([tail, 1.0 - tail])[0].tolist()
    inside = (grid >= low) & (grid <= high)
    ax.fill_between(grid[inside], density[inside], color=shade, alpha=0.32, linewidth=0)
    ax.plot(grid, density, color=shade, linewidth=2.0, label="density")
    ax.axvline(float(share.mean[0]), color=style.QUIET, linewidth=1.2, linestyle=(0, (3, 2)), label="mean")
    if truth is not None:
        ax.axvline(float(truth), color=style.INK, linewidth=1.8, label="observed")
    ax.set_xlim(0.0, 1.0)
    # near the ends a density may be unbounded: keep the bulk in sight
    ax.set_ylim(0.0, 1.15 * float(min(density.max(), 4.0 * np.quantile(density, 0.98) + 1.0)))
    ax.set_yticks([])
    style.quiet(ax, grid=None, xlabel=f"share of {name or f'label {label}'}")
    ax.spines["left"].set_visible(False)
    return ax


def shade_steps(shades: Sequence[str]) -> list[str]:
    """Colour of each filled step: the same content has the same colour in every picture.

    Args:
        shades: Colours from nothing to certain, as :data:`snefy_ldl.plots.style.SHADES` holds them.

    Returns:
        One colour for each of :data:`CONTENTS`, as ``#rrggbb``.

    Raises:
        ImportError: matplotlib is not installed.

    Example:
        >>> len(shade_steps(style.SHADES)) == len(CONTENTS)
        True
    """
    style.pyplot()  # or an ImportError that names the extra
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    scale = LinearSegmentedColormap.from_list("density", list(shades))
    return [to_hex(color) for color in scale(np.linspace(0.0, 1.0, len(CONTENTS)))]


def _fill_ternary(ax: Any, grid: Array, log_density: Array) -> None:
    """Steps of known probability content, darkest where the density is highest, and two outlines."""
    density = np.exp(log_density - log_density.max())
    ordered = np.sort(density)[::-1]
    content = np.cumsum(ordered) / ordered.sum()

    def height(share: float) -> float:
        return float(ordered[min(int(np.searchsorted(content, share)), len(ordered) - 1)])

    steps, first = np.unique([height(share) for share in CONTENTS], return_index=True)
    below = steps < 1.0
    if below.any():
        colors = [shade for k, shade in enumerate(shade_steps(style.SHADES)) if k in first[below]]
        ax.tricontourf(*grid.T, density, levels=[*steps[below], 1.0 + 1e-9], colors=colors, zorder=1)
    lines = np.unique([height(share) for share in OUTLINES])
    ax.tricontour(*grid.T, density, levels=lines, colors=[style.SHADES[-1]], linewidths=0.9, alpha=0.8, zorder=3)


def _row_of(dist: SimplexDistribution, row: int) -> SimplexDistribution:
    """The distribution of one row alone, batch (1,), so that no other row costs time."""
    if not isinstance(dist, SimplexDistribution):
        raise InputError(f"expected a distribution as predict_dist returns it; got {type(dist).__name__}.")
    number = style.row_number(row, len(dist))
    return dist[number : number + 1]


def _compositions(values: Any, what: str) -> Array:
    table = np.atleast_2d(as_float(values, what))
    if table.ndim != 2 or table.shape[1] != 3:
        raise InputError(f"{what} must hold shares of three labels; got shape {table.shape}.")
    return table


#: How far a ridge rises, in steps from one label to the next.
RISE = 0.82
#: Points of a curve over all shares, and around the mean, where it may be steep; how many deviations that goes.
ALL_POINTS, NEAR_POINTS, REACH = 61, 80, 4.5
#: Nearer to the ends than this a density does not set the height of its ridge, unless nearly all of it is there.
EDGE = 0.013


def share_ridges(
    dist: SimplexDistribution,
    row: int = 0,
    *,
    which: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    truth: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Density of each label's share for one row, each as high as the next, with its mean and the observed share.

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
        InputError: ``dist`` is not a distribution of this library, there is no such row, or names do not fit.

    Example:
        >>> from snefy_ldl import SnefySimplex
        >>> dist = SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[2.0, 3.0, 5.0]]))
        >>> len(share_ridges(dist, labels=["sand", "silt", "clay"]).lines)
        3
    """
    one = _row_of(dist, row)
    names = style.names_of(labels, one.n_labels, "labels")
    wanted = range(one.n_labels) if which is None else which
    chosen = [style.row_number(label, one.n_labels, "label") for label in wanted]
    observed = None if truth is None else as_float(truth, "truth").ravel()
    if observed is not None and len(observed) != one.n_labels:
        raise InputError(f"truth must hold {one.n_labels} shares; got {len(observed)}.")
    ax = style.axes(ax, (4.4, 0.8 + 0.46 * len(chosen)))
    mean, deviation = to_numpy(one.mean)[0], np.sqrt(to_numpy(one.variance)[0])
    for place, label in enumerate(chosen):
        grid = _grid(float(mean[label]), float(deviation[label]))
        density = share_density(one.marginal(label), grid)
        # near the ends a density may be unbounded: the bulk sets the height
        ends = min(EDGE, 0.3 * mean[label]), 1.0 - min(EDGE, 0.3 * (1.0 - mean[label]))
        inner = density[(grid > ends[0]) & (grid < ends[1])].max()
        height = RISE * np.minimum(density / inner, 1.0) if inner > 0.0 else 0.0 * density  # all of it in an atom
        color = style.label_color(label)
        ax.fill_between(grid, place, place - height, color=color, alpha=0.45, linewidth=0, zorder=2)
        ax.plot(grid, place - height, color=color, linewidth=1.5, zorder=3)
        style.mark_mean(ax, mean[label], place, size=22)
        if observed is not None:
            style.mark_observed(ax, observed[label], place, size=28, edge=0.8)
    ax.set_yticks(range(len(chosen)), [names[label] for label in chosen])
    ax.set(ylim=(len(chosen) - 0.7, -1.0), xlim=(0.0, 1.0))
    ax.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "25%", "50%", "75%", "100%"])
    style.quiet(ax, grid="x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return ax


def _grid(mean: float, deviation: float) -> Array:
    """Shares at which a density is drawn, in order: close together near the ends and where the bulk is."""
    everywhere = np.sin(np.linspace(0.0, np.pi / 2, ALL_POINTS + 2)[1:-1]) ** 2
    near = mean + deviation * np.linspace(-REACH, REACH, NEAR_POINTS)
    inside = near[(near > 0.0) & (near < 1.0)]
    return np.union1d(everywhere, inside)
