"""Pictures of active learning; each function draws on ``ax`` and returns it. Needs the extra ``plot``."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from snefy_ldl.active.pool import dense_table
from snefy_ldl.errors import InputError
from snefy_ldl.networks.backbones import column_moments, divisors
from snefy_ldl.plots import style

#: A larger pool is thinned to this many points, which a picture cannot tell apart anyway.
MOST_POINTS = 20_000


def plot_pool(
    X_pool: Any,
    utilities: Any,
    chosen: Any = None,
    *,
    X_labeled: Any = None,
    label: str = "utility",
    random_state: int = 0,
    ax: Any = None,
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
