"""Pictures of label distributions and of how sure a model is of them: one function a picture, axes in, axes out.

Every function draws on ``ax`` (a new figure when it is None), returns it, and leaves matplotlib's settings alone.
Needs the extra ``plot``: ``pip install 'snefy-ldl[plot]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.stats import binom

from snefy_ldl._types import Array
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import pit_histogram
from snefy_ldl.special.simplex import ternary_grid
from snefy_ldl.validation import check_confidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "LABEL_COLORS",
    "calibration",
    "calibration_curve",
    "intervals",
    "label_bars",
    "learning_curve",
    "marginal_density",
    "ternary_density",
]

#: Okabe and Ito's colours, told apart with any kind of colour vision; labels take them in this order.
LABEL_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
#: What the model says, what was observed or is true, and everything that only helps to read.
MODEL, TRUTH, INK, QUIET, FAINT = "#0072B2", "#D55E00", "#1f2933", "#6b7785", "#dfe4ea"
#: From nothing to certain, for densities: the model's blues and the truth's oranges.
SHADES = {
    "model": ("#f3f9fc", "#d3e9f3", "#94cae1", "#4a9fca", "#1a6da8", "#0a3a6b"),
    "truth": ("#fef7ef", "#fde3c8", "#fabd82", "#ec8b3c", "#c65d12", "#7a3505"),
}
#: Filled steps of :func:`ternary_density`: each holds at least this much of the probability.
CONTENTS = (0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: The contents that also get a line.
OUTLINES = (0.9, 0.5)

LogDensity = Callable[[Array], Any]


def ternary_density(
    dist: SignedDirichletMixture | LogDensity,
    ax: Axes | None = None,
    *,
    row: int = 0,
    labels: Sequence[str] | None = None,
    truth: Any = None,
    points: Any = None,
    mean: Any = None,
    shades: str = "model",
    title: str | None = None,
    resolution: int = 140,
) -> Axes:
    """Density of one row over all mixes of three labels; the darkest area is the likeliest.

    The steps hold fixed shares of the probability (highest density regions); lines mark the regions of 50 % and 90 %.
    For more than three labels merge them (``dist.amalgamate``) or pick three (``dist.subcomposition``) first.

    Args:
        dist: What ``predict_dist`` returns, or any function from points (T, 3) to log densities (T,).
        ax: Axes made with ``projection="ternary"`` (mpltern).
        row: Which row of ``dist``.
        labels: Names of the three corners: top, left, right.
        truth: The label distribution that was observed, (3,): a dark diamond.
        points: More label distributions to draw as dots, (n, 3): draws, say.
        mean: Where to put the white dot; the mean of ``dist`` by default, none for a function.
        shades: ``"model"`` (blue) or ``"truth"`` (orange).
        title: Text above.
        resolution: Grid steps along a side.

    >>> ternary_density("no density")
    Traceback (most recent call last):
    ...
    snefy_ldl.errors.InputError: ternary_density takes a distribution or a function of points; got 'no density'.
    """
    if isinstance(dist, SignedDirichletMixture):
        one = _one_row(dist, row)
        if one.n_labels != 3:
            raise InputError(
                f"a ternary plot needs 3 labels, this distribution has {one.n_labels}. Merge labels into three groups "
                "(dist.amalgamate([[0], [1], [2, 3]])) or pick three (dist.subcomposition([0, 1, 2]))."
            )
        grid = ternary_grid(resolution)
        log_density = one.log_prob(torch.as_tensor(grid)[:, None, :])[:, 0].double().cpu().numpy()
        mean = one.mean[0].double().cpu().numpy() if mean is None else mean
    elif callable(dist):
        grid = ternary_grid(resolution)
        log_density = np.asarray(dist(grid), dtype=np.float64)
    else:
        raise InputError(f"ternary_density takes a distribution or a function of points; got {dist!r}.")
    if shades not in SHADES:
        raise InputError(f"shades={shades!r}: use one of {', '.join(SHADES)}.")
    triangle = _ternary_axes(ax, labels)
    _fill_ternary(triangle, grid, log_density, SHADES[shades])
    if points is not None:
        dots = _compositions(points, "points")
        triangle.scatter(*dots.T, s=7, color=INK, alpha=0.45, linewidths=0, zorder=4)
    if mean is not None:
        triangle.scatter(*_compositions(mean, "mean").T, s=52, color="white", edgecolors=INK, linewidths=1.3, zorder=6)
    if truth is not None:
        observed = _compositions(truth, "truth")
        triangle.scatter(*observed.T, s=58, marker="D", color=INK, edgecolors="white", linewidths=1.3, zorder=7)
    if title is not None:
        triangle.set_title(title, color=INK, fontsize=11, fontweight="bold", pad=24)
    return triangle  # type: ignore[no-any-return]


def intervals(
    intervals: Any,
    D: Any = None,
    mean: Any = None,
    labels: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    ax: Axes | None = None,
    *,
    row_names: Sequence[str] | None = None,
) -> Axes:
    """Interval of each label for a few rows, with the predicted mean and what was observed.

    Args:
        intervals: Lower and upper ends, (N, L, 2), as ``predict_interval`` gives them.
        D: Observed label distributions, (N, L): dark diamonds.
        mean: Predicted means, (N, L): white dots.
        labels: The L names.
        rows: Which rows to draw; the first six by default.
        ax: Axes to draw on.
        row_names: A name for each drawn row; ``row i`` by default.
    """
    ends = np.asarray(intervals, dtype=np.float64)
    if ends.ndim != 3 or ends.shape[2] != 2:
        raise InputError(f"intervals must have shape (N, L, 2): lower and upper ends; got {ends.shape}.")
    n_rows, n_labels = ends.shape[:2]
    chosen = list(range(min(6, n_rows))) if rows is None else [_row_number(row, n_rows) for row in rows]
    names = _names(labels, n_labels, "labels")
    titles = [f"row {row}" for row in chosen] if row_names is None else _names(row_names, len(chosen), "row_names")
    observed = None if D is None else _table(D, (n_rows, n_labels), "D")
    means = None if mean is None else _table(mean, (n_rows, n_labels), "mean")
    ax = _axes(ax, (7.0, 0.55 + 0.24 * len(chosen) * (n_labels + 1)))
    gap = n_labels + 1.0
    for place, row in enumerate(chosen):
        if place:
            ax.axhline(place * gap - 1.0, color=FAINT, linewidth=0.8, zorder=0)
        for label in range(n_labels):
            y, color = place * gap + label, LABEL_COLORS[label % len(LABEL_COLORS)]
            low, high = ends[row, label]
            ax.plot([0, 1], [y, y], color=FAINT, linewidth=0.8, zorder=0)
            (bar,) = ax.plot([low, high], [y, y], color=color, linewidth=6.5, solid_capstyle="round", zorder=2)
            bar.set_label(names[label] if place == 0 else "_")
            if means is not None:
                ax.scatter(means[row, label], y, s=24, color="white", edgecolors=INK, linewidths=0.9, zorder=4)
            if observed is not None:
                ax.scatter(
                    observed[row, label], y, s=32, marker="D", color=INK, edgecolors="white", linewidths=0.9, zorder=5
                )
    ax.set_yticks([place * gap + (n_labels - 1) / 2 for place in range(len(chosen))], titles)
    ax.set_ylim(len(chosen) * gap - 1.0, -1.0)
    ax.set_xlim(-0.01, 1.01)
    ax.set_xlabel("share of the label")
    _quiet(ax, grid=None)
    ax.tick_params(axis="y", length=0)
    _legend(ax, ncols=min(n_labels, 6), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


def calibration(
    pit: Any,
    ax: Axes | None = None,
    *,
    bins: int = 10,
    labels: Sequence[str] | None = None,
    color: str = MODEL,
    confidence_level: float = 0.95,
) -> Axes:
    """Histogram of ``F(observed share | x)``: flat when the model is as sure as it should be.

    A bowl means intervals too narrow, a hump too wide, a slope a bias. The grey band is where each bar falls, by chance
    alone, with probability ``confidence_level`` when the model is right.

    Args:
        pit: Marginal cdf at what was observed: (N,) draws bars, (N, L) one line a label.
        ax: Axes to draw on.
        bins: How many bars.
        labels: Names of the L columns.
        color: Colour of the bars.
        confidence_level: Of the band.
    """
    values = np.asarray(pit, dtype=np.float64)
    heights = pit_histogram(values, bins)
    tail = (1.0 - check_confidence(confidence_level)) / 2.0
    low, high = binom.ppf([tail, 1.0 - tail], len(values), 1.0 / bins) * bins / len(values)
    ax = _axes(ax, (4.6, 3.0))
    edges = np.linspace(0.0, 1.0, bins + 1)
    ax.axhspan(low, high, color=FAINT, alpha=0.75, linewidth=0, zorder=0, label=f"{confidence_level:.0%} band")
    for end in (low, high):
        ax.axhline(end, color="#b8c1cc", linewidth=0.8, zorder=3)
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=3)
    if values.ndim == 1:
        ax.bar(
            edges[:-1], heights, width=1.0 / bins, align="edge", color=color, alpha=0.82, edgecolor="white", zorder=2
        )
    else:
        names = _names(labels, values.shape[1], "labels")
        for label, name in enumerate(names):
            shade = LABEL_COLORS[label % len(LABEL_COLORS)]
            ax.stairs(heights[:, label], edges, baseline=None, color=shade, linewidth=2.0, zorder=2, label=name)
        _legend(ax, ncols=min(1 + len(names), 4), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, max(1.6, 1.12 * float(np.max(heights))))
    ax.set_yticks(np.arange(0.0, ax.get_ylim()[1], 0.5))
    ax.set_xlabel("predicted probability of a smaller share")
    ax.set_ylabel("observed / expected")
    _quiet(ax, grid=None)
    return ax


def calibration_curve(
    levels: Any,
    coverage: Any,
    ax: Axes | None = None,
    *,
    labels: Sequence[str] | None = None,
    n_rows: int | None = None,
) -> Axes:
    """Share of observations inside their interval against the level that was asked for: on the diagonal when honest.

    Args:
        levels: Confidence levels, (A,).
        coverage: Observed coverage, (A,), or (A, L) with one line a label.
        ax: Axes to draw on.
        labels: Names of the L lines.
        n_rows: Rows behind each figure; draws the 95 % band of a model that is right.
    """
    asked = np.asarray(levels, dtype=np.float64)
    seen = np.asarray(coverage, dtype=np.float64)
    if asked.ndim != 1 or seen.ndim not in (1, 2) or len(seen) != len(asked):
        raise InputError(f"levels must be (A,) and coverage (A,) or (A, L); got shapes {asked.shape} and {seen.shape}.")
    ax = _axes(ax, (3.8, 3.8))
    if n_rows is not None:
        fine = np.linspace(0.0, 1.0, 101)
        low, high = (binom.ppf(tail, n_rows, fine) / n_rows for tail in (0.025, 0.975))
        ax.fill_between(fine, low, high, color=FAINT, alpha=0.75, linewidth=0, zorder=0, label="95% band")
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    lines = seen[:, None] if seen.ndim == 1 else seen
    names = None if seen.ndim == 1 else _names(labels, lines.shape[1], "labels")
    for label, line in enumerate(lines.T):
        color = MODEL if names is None else LABEL_COLORS[label % len(LABEL_COLORS)]
        ax.plot(
            asked, line, color=color, linewidth=1.8, marker="o", markersize=4.5, zorder=3, label=names and names[label]
        )
    if names is not None:
        _legend(ax, loc="upper left")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.0)
    ax.set_aspect("equal")
    ax.set_xlabel("confidence level asked for")
    ax.set_ylabel("share inside the interval")
    _quiet(ax, grid="both")
    return ax


def learning_curve(history: Sequence[Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Training and validation loss by epoch; the best epoch, whose weights are kept, is marked.

    Args:
        history: ``model.history_``.
        ax: Axes to draw on.
    """
    if not history:
        raise InputError("the history is empty: fit the model first.")
    epochs = np.array([record["epoch"] for record in history]) + 1.0
    ax = _axes(ax, (6.0, 3.2))
    ax.plot(epochs, [record["loss"] for record in history], color=QUIET, linewidth=1.6, label="training rows")
    if all("validation_loss" in record for record in history):
        validation = np.array([record["validation_loss"] for record in history])
        best = int(validation.argmin())
        ax.plot(epochs, validation, color=MODEL, linewidth=2.2, label="validation rows")
        ax.axvline(epochs[best], color=FAINT, linewidth=1.2, zorder=0)
        ax.scatter(
            epochs[best],
            validation[best],
            s=60,
            color="white",
            edgecolors=MODEL,
            linewidths=2.0,
            zorder=4,
            label=f"best epoch ({epochs[best]:.0f})",
        )
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss: mean of −log density")
    ax.locator_params(axis="x", integer=True)
    _quiet(ax, grid="y")
    _legend(ax, loc="upper right")
    return ax


def marginal_density(
    dist: SignedDirichletMixture,
    label: int,
    row: int = 0,
    ax: Axes | None = None,
    *,
    name: str | None = None,
    truth: float | None = None,
    confidence_level: float | None = 0.9,
    color: str | None = None,
) -> Axes:
    """Density of one label's share for one row, its mean, and its central interval shaded.

    Args:
        dist: What ``predict_dist`` returns.
        label: Which label, by number.
        row: Which row.
        ax: Axes to draw on.
        name: Name of the label, for the axis.
        truth: The share that was observed: a solid line.
        confidence_level: Of the shaded interval; None shades nothing.
        color: Of the curve; the label's own by default.
    """
    share = _one_row(dist, row).marginal(label)
    shade = LABEL_COLORS[label % len(LABEL_COLORS)] if color is None else color
    grid = np.linspace(0.002, 0.998, 499)
    density = share.log_prob(torch.as_tensor(grid)[:, None]).exp()[:, 0].double().cpu().numpy()
    ax = _axes(ax, (4.6, 2.6))
    ax.fill_between(grid, density, color=shade, alpha=0.16, linewidth=0)
    if confidence_level is not None:
        tail = (1.0 - check_confidence(confidence_level)) / 2.0
        low, high = share.quantiles([tail, 1.0 - tail])[0].tolist()
        inside = (grid >= low) & (grid <= high)
        ax.fill_between(grid[inside], density[inside], color=shade, alpha=0.32, linewidth=0)
    ax.plot(grid, density, color=shade, linewidth=2.0, label="density")
    ax.axvline(float(share.mean[0]), color=QUIET, linewidth=1.2, linestyle=(0, (3, 2)), label="mean")
    if truth is not None:
        ax.axvline(float(truth), color=INK, linewidth=1.8, label="observed")
    ax.set_xlim(0.0, 1.0)
    # near the ends a density may be unbounded: keep the bulk in sight
    ax.set_ylim(0.0, 1.15 * float(min(density.max(), 4.0 * np.quantile(density, 0.98) + 1.0)))
    ax.set_yticks([])
    ax.set_xlabel(f"share of {name or f'label {label}'}")
    _quiet(ax, grid=None)
    ax.spines["left"].set_visible(False)
    return ax


def label_bars(
    D: Any,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
    *,
    row_names: Sequence[str] | None = None,
) -> Axes:
    """Label distributions as stacked bars, one a row.

    Args:
        D: Label distributions, (N, L).
        labels: The L names.
        ax: Axes to draw on.
        row_names: The N names.
    """
    shares = np.asarray(D, dtype=np.float64)
    if shares.ndim != 2 or shares.size == 0:
        raise InputError(f"D must have shape (N, L); got {shares.shape}.")
    names = _names(labels, shares.shape[1], "labels")
    titles = _names(row_names, len(shares), "row_names", stem="row")
    ax = _axes(ax, (7.0, 0.8 + 0.42 * len(shares)))
    left = np.zeros(len(shares))
    places = range(len(shares))
    for label, name in enumerate(names):
        color = LABEL_COLORS[label % len(LABEL_COLORS)]
        ax.barh(
            places, shares[:, label], left=left, height=0.66, color=color, edgecolor="white", linewidth=1.5, label=name
        )
        for place, share in zip(places, shares[:, label]):
            if share >= 0.08:
                middle = left[place] + share / 2
                ax.text(middle, place, f"{share:.0%}", ha="center", va="center", color=_ink_on(color), fontsize=9)
        left = left + shares[:, label]
    ax.set_yticks(places, titles)
    ax.set_ylim(len(shares) - 0.5, -0.5)
    ax.set_xlim(0.0, 1.0)
    ax.set_xticks([])
    _quiet(ax, grid=None)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0)
    _legend(ax, ncols=min(len(names), 6), loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


# --- shared pieces ----------------------------------------------------------------------------------------------------


def _pyplot() -> ModuleType:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("pictures need matplotlib and mpltern: pip install 'snefy-ldl[plot]'") from None
    module: ModuleType = plt
    return module


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    return _pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def _ternary_axes(ax: Any, labels: Sequence[str] | None) -> Any:
    try:
        import mpltern  # noqa: F401 - registers the projection "ternary"
    except ImportError:
        raise ImportError("ternary pictures need matplotlib and mpltern: pip install 'snefy-ldl[plot]'") from None
    if ax is None:
        ax = _pyplot().figure(figsize=(4.4, 4.2), layout="constrained").add_subplot(projection="ternary")
    if not hasattr(ax, "taxis"):
        raise InputError('ternary_density needs ternary axes: fig.add_subplot(projection="ternary").')
    for axis in (ax.taxis, ax.laxis, ax.raxis):
        axis.set_ticks([0.25, 0.5, 0.75], labels=[])
        axis.set_tick_params(length=0)
        axis.grid(True, color="white", linewidth=0.7, alpha=0.55)
    ax.set_facecolor("#fafbfc")
    for spine in ax.spines.values():
        spine.set_color(QUIET)
        spine.set_linewidth(1.0)
    # above the top and under the other two corners, within the triangle's width, so that it can be large
    places = zip(_names(labels, 3, "labels"), ax.corners_axes, ("center", "left", "right"), ("bottom", "top", "top"))
    for name, corner, across, along in places:
        ax.annotate(
            name,
            corner,
            xytext=(0, 6 if along == "bottom" else -6),
            xycoords="axes fraction",
            textcoords="offset points",
            ha=across,
            va=along,
            color=INK,
            fontsize=10,
        )
    return ax


def _fill_ternary(ax: Any, grid: Array, log_density: Array, shades: Sequence[str]) -> None:
    """Steps of known probability content, darkest where the density is highest, and two outlines."""
    from matplotlib.colors import LinearSegmentedColormap

    if log_density.shape != (len(grid),) or np.isnan(log_density).any():
        raise InputError(f"the log density must be {len(grid)} numbers, one a grid point.")
    density = np.exp(log_density - log_density.max())
    ordered = np.sort(density)[::-1]
    content = np.cumsum(ordered) / ordered.sum()

    def height(share: float) -> float:
        return float(ordered[min(int(np.searchsorted(content, share)), len(ordered) - 1)])

    steps = np.unique([height(share) for share in CONTENTS])
    levels = np.append(steps[steps < 1.0], 1.0 + 1e-9)
    if len(levels) > 1:
        scale = LinearSegmentedColormap.from_list("density", list(shades))
        colors = scale(np.linspace(0.0, 1.0, len(levels) - 1))
        ax.tricontourf(*grid.T, density, levels=levels, colors=colors, zorder=1)
    lines = np.unique([height(share) for share in OUTLINES])
    ax.tricontour(*grid.T, density, levels=lines, colors=[shades[-1]], linewidths=0.9, alpha=0.8, zorder=3)


def _one_row(dist: SignedDirichletMixture, row: int) -> SignedDirichletMixture:
    """The law of one row alone, batch (1,), so that no other row costs time."""
    if not isinstance(dist, SignedDirichletMixture):
        raise InputError(f"expected a distribution as predict_dist returns it; got {type(dist).__name__}.")
    number = _row_number(row, len(dist))
    rows = slice(number, number + 1)
    offset = dist.offset_rows(rows)
    if isinstance(dist, SnefySimplex):
        return SnefySimplex(
            dist.exponents,
            dist.readout,
            dist.flat_log_scale[rows],
            offset,
            dist.log_members[rows],
            validate_args=False,
        )
    return SignedDirichletMixture(dist.weights(rows), dist.concentration, offset, validate_args=False)


def _row_number(row: int, n_rows: int) -> int:
    if not -n_rows <= row < n_rows:
        raise InputError(f"row {row} is not there: the rows are 0 to {n_rows - 1}.")
    return int(row) % n_rows


def _names(names: Sequence[str] | None, count: int, what: str, stem: str = "label") -> list[str]:
    if names is None:
        return [f"{stem} {i}" for i in range(count)]
    if len(names) != count:
        raise InputError(f"{what} must hold {count} names; got {len(names)}.")
    return [str(name) for name in names]


def _table(values: Any, shape: tuple[int, int], what: str) -> Array:
    table = np.asarray(values, dtype=np.float64)
    if table.shape != shape:
        raise InputError(f"{what} must have shape {shape} to match the intervals; got {table.shape}.")
    return table


def _compositions(values: Any, what: str) -> Array:
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.shape[1] != 3:
        raise InputError(f"{what} must hold shares of three labels; got shape {np.shape(values)}.")
    return table


def _ink_on(color: str) -> str:
    """White on dark colours, dark on light ones."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.58 else INK


def _quiet(ax: Axes, grid: Literal["both", "x", "y"] | None) -> None:
    """Thin grey frame on two sides, so that the data is what one sees."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#b8c1cc")
    ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=9)
    ax.xaxis.label.set(color=QUIET, fontsize=9.5)
    ax.yaxis.label.set(color=QUIET, fontsize=9.5)
    ax.set_axisbelow(True)
    if grid is not None:
        ax.grid(True, axis=grid, color=FAINT, linewidth=0.7)


def _legend(ax: Axes, **where: Any) -> None:
    ax.legend(
        fontsize=9, labelcolor=INK, handlelength=1.4, columnspacing=1.4, edgecolor="none", framealpha=0.85, **where
    )
