"""Pictures of active learning; each function draws on ``ax`` and returns it. Needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats
from sklearn.decomposition import PCA

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.active.diagnosis import Diagnosis
from snefy_ldl.active.pool import dense_table
from snefy_ldl.errors import InputError
from snefy_ldl.networks.backbones import column_moments, divisors
from snefy_ldl.plots import style

#: A larger pool is thinned to this many points, which a picture cannot tell apart anyway.
MOST_POINTS = 20_000


def paired_interval(first: Any, second: Any, confidence_level: float = 0.95) -> tuple[Array, Array]:
    """Mean and half-width (Student) of ``first - second`` over repeats that share their splits.

    Args:
        first: a measure of one method (R, ...).
        second: the same measure of another (R, ...).
        confidence_level: of the interval.

    Returns:
        Means and half-widths (...).

    Raises:
        InputError: there are fewer than two repeats.

    Example:
        >>> mean, half = paired_interval([1.0, 2.0, 3.0], [0.9, 1.8, 2.7])
        >>> round(float(mean), 2), round(float(half), 2)
        (0.2, 0.25)
    """
    level = check_confidence(confidence_level)
    gap = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if len(gap) < 2:
        raise InputError(f"a paired interval needs at least 2 repeats; got {len(gap)}.")
    half = stats.t.ppf(0.5 + 0.5 * level, len(gap) - 1) * gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
    return gap.mean(axis=0), np.asarray(half, dtype=np.float64)


def plot_learning_curves(
    n_labeled: Any,
    curves: Mapping[str, Any],
    ax: Any = None,
    *,
    baseline: str | None = "random",
    difference: bool = False,
    confidence_level: float = 0.95,
    metric: str = "KL divergence",
) -> Any:
    """Mean of a measure over repeats against the number of labels, one line per strategy.

    The band is the paired interval of the difference to the baseline: repeats share their splits, so a strategy
    differs from the baseline where its band leaves the baseline's line.

    Args:
        n_labeled: numbers of labels (T,).
        curves: for each strategy its measure, (repeats, T).
        ax: axes to draw on.
        baseline: the strategy that others are compared with; None draws no bands.
        difference: draw the differences to the baseline.
        confidence_level: of the bands.
        metric: what is on the y axis.

    Returns:
        The axes.

    Raises:
        InputError: a curve has another shape, or the baseline is not among them.

    Example:
        >>> curves = {"random": [[3.0, 2.0], [2.8, 1.9]], "entropy": [[3.0, 1.8], [2.9, 1.6]]}
        >>> len(plot_learning_curves([10, 20], curves).lines)
        2
    """
    tables = {name: np.atleast_2d(np.asarray(curve, dtype=np.float64)) for name, curve in curves.items()}
    x = np.asarray(n_labeled, dtype=np.float64)
    for name, table in tables.items():
        if table.ndim != 2 or table.shape[1] != len(x):
            raise InputError(f"curves[{name!r}] must be (repeats, {len(x)}); got shape {table.shape}.")
    if difference and baseline is None:
        raise InputError("difference=True needs a baseline.")
    if baseline is not None and baseline not in tables:
        raise InputError(f"baseline={baseline!r} is not among the curves: {', '.join(tables)}.")
    repeats = {len(table) for table in tables.values()}
    if baseline is not None and len(repeats) > 1:
        raise InputError(f"paired bands need the same repeats for every strategy; got {sorted(repeats)}.")
    ax = style.axes(ax, (6.4, 4.0))
    reference = None if baseline is None else tables[baseline]
    for i, (name, table) in enumerate(tables.items()):
        plain = name == baseline
        color = style.INK if plain else style.label_color(i)
        height = table.mean(axis=0)
        if difference and reference is not None:
            height = height - reference.mean(axis=0)
        line: Any = style.DASHES if plain else "-" if i < len(style.LABEL_COLORS) else ":"
        ax.plot(x, height, color=color, linestyle=line, linewidth=1.6, label=name, zorder=3)
        if reference is not None and not plain and len(table) > 1:
            half = paired_interval(table, reference, confidence_level)[1]
            ax.fill_between(x, height - half, height + half, color=color, alpha=0.15, linewidth=0, zorder=2)
    style.quiet(
        ax, grid="y", xlabel="labelled rows", ylabel=f"{metric}, difference to {baseline}" if difference else metric
    )
    style.legend(ax, ncols=1 if len(tables) < 6 else 2)
    return ax


def plot_diagnosis(diagnosis: Diagnosis, ax: Any = None) -> Any:
    """What :func:`~snefy_ldl.active.will_it_help` found: the learning curve, where it leads, and the figures.

    Args:
        diagnosis: what was found.
        ax: axes to draw on.

    Returns:
        The axes.

    Example:
        >>> found = Diagnosis(True, "yes", 0.2, 0.4, 0.1, np.array([15.0, 60.0]), np.array([0.2, 0.1]))
        >>> [line.get_label() for line in plot_diagnosis(found).lines]
        ['labelled rows so far', 'twice as many, at random']
    """
    ax = style.axes(ax, (6.0, 3.8))
    sizes, errors = diagnosis.sizes, diagnosis.errors
    ends = np.array([sizes[-1], 2.0 * sizes[-1]])
    ax.plot(sizes, errors, "o-", color=style.INK, linewidth=1.6, label="labelled rows so far")
    ahead = errors[-1] * np.array([1.0, 1.0 - diagnosis.slope])
    ax.plot(ends, ahead, linestyle=style.DASHES, color=style.QUIET, linewidth=1.6, label="twice as many, at random")
    ax.set_xscale("log", base=2)
    ax.set_xticks([*sizes, ends[1]], [f"{size:.0f}" for size in (*sizes, ends[1])])
    ax.minorticks_off()
    ax.set_ylim(bottom=0.0)
    ax.set(xlabel="labelled rows", ylabel="KL divergence, cross-fitted")
    figures = [f"errors foreseen {diagnosis.foreseen:.2f}"]
    if np.isfinite(diagnosis.redundancy):
        figures.append(f"a chosen batch covers {diagnosis.redundancy:+.0%}")
    ax.text(0.03, 0.05, "\n".join(figures), transform=ax.transAxes, color=style.QUIET, fontsize=9.5)
    ax.set_title("Choosing rows should pay" if diagnosis.helps else "Random rows are as good here", fontsize=11)
    style.quiet(ax, grid="y")
    style.legend(ax)
    return ax


def plot_pool(
    X_pool: Any,
    utilities: Any,
    chosen: Any = None,
    ax: Any = None,
    *,
    X_labeled: Any = None,
    label: str = "utility",
    random_state: int = 0,
) -> Any:
    """The pool on its first two principal components (of standardised features), coloured by utility.

    Args:
        X_pool: rows, a table.
        utilities: one number per row, as ``query(..., return_utilities=True)`` gives.
        chosen: row numbers to ring.
        ax: axes to draw on.
        X_labeled: rows with labels, drawn as small crosses.
        label: what the colour means.
        random_state: seed for thinning a large pool.

    Returns:
        The axes.

    Raises:
        InputError: there is not one utility per row, or the pool has fewer than two rows or features.

    Example:
        >>> plot_pool(np.eye(3), [0.1, 0.5, 0.2], [1]).get_legend().get_texts()[0].get_text()
        'chosen'
    """
    table = dense_table(X_pool, "X_pool").astype(np.float64)
    values = np.asarray(utilities, dtype=np.float64)
    if values.shape != (len(table),):
        raise InputError(f"utilities must hold one number per row ({len(table)}); got shape {values.shape}.")
    if table.shape[1] < 2 or len(table) < 2:
        raise InputError("plot_pool needs at least two rows and two features.")
    centre, deviation = column_moments(table)
    divisor = divisors(centre, deviation)
    view = PCA(2, random_state=random_state).fit((table - centre) / divisor)
    points = view.transform((table - centre) / divisor)
    shown = np.arange(len(table))
    if len(shown) > MOST_POINTS:
        shown = np.sort(np.random.default_rng(random_state).choice(shown, MOST_POINTS, replace=False))
    ax = style.axes(ax, (5.6, 4.4))
    dots = ax.scatter(*points[shown].T, c=values[shown], s=9, cmap="viridis", linewidths=0, zorder=2)
    style.color_bar(ax, dots, labelsize=9).set_label(label, color=style.QUIET, fontsize=9.5)
    if X_labeled is not None:
        known = view.transform((dense_table(X_labeled, "X_labeled") - centre) / divisor)
        ax.scatter(*known.T, marker="x", s=18, color=style.QUIET, linewidths=0.9, label="labelled", zorder=3)
    if chosen is not None:
        rows = np.asarray(chosen, dtype=np.intp)
        ax.scatter(
            *points[rows].T, s=44, facecolors="none", edgecolors=style.TRUTH, linewidths=1.4, label="chosen", zorder=4
        )
    share = view.explained_variance_ratio_
    style.quiet(ax, grid=None, xlabel=f"first component ({share[0]:.0%})", ylabel=f"second component ({share[1]:.0%})")
    if chosen is not None or X_labeled is not None:
        style.legend(ax, loc="best")
    return ax
