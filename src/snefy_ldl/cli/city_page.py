"""The demonstration's page: one HTML file that holds its own pictures and needs no network."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch

from snefy_ldl import plots
from snefy_ldl._types import Array
from snefy_ldl._version import __version__
from snefy_ldl.cli.city import LEVEL, Demo, as_frame

__all__ = ["render"]

#: Levels of the calibration curve.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def render(demo: Demo) -> str:
    """The page as text.

    Args:
        demo: What :func:`snefy_ldl.cli.city.fit_city` made.

    Returns:
        One HTML document.

    Raises:
        ImportError: jinja2, matplotlib or mpltern is not installed.
    """
    try:
        import jinja2  # an extra, like the library of the pictures
    except ImportError:
        raise ImportError("the demo page needs jinja2 and matplotlib: pip install 'snefy-ldl[plot]'") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("snefy_ldl.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page: str = environment.get_template("demo.html").render(
        demo=demo,
        measure=demo.measure,
        level=f"{LEVEL:.0%}",
        pictures=_pictures(demo),
        colors=list(zip(demo.test.label_names, plots.LABEL_COLORS)),
        version=__version__,
    )
    return page


def _pictures(demo: Demo) -> dict[str, Any]:
    """Every picture of the page as a data address."""
    names, rows = demo.test.label_names, [district.row for district in demo.districts]
    titles = [district.name for district in demo.districts]
    X, D = as_frame(demo.test.X, demo.test.feature_names), demo.test.D
    dist = demo.model.predict_dist(X)
    pit = np.column_stack([dist.marginal(r).cdf(torch.as_tensor(D[:, r])).numpy() for r in range(len(names))])
    seen = np.stack([((pit >= (1 - a) / 2) & (pit <= (1 + a) / 2)).mean(axis=0) for a in LEVELS])
    shown = X.iloc[rows]
    mean, ends = np.asarray(demo.model.predict(shown)), demo.model.predict_interval(shown, LEVEL)
    places = range(len(rows))
    return {
        "ternary": [_ternary_pair(demo, dist, row) for row in rows],
        "bars": _picture((8.4, 2.3), lambda ax: plots.label_bars(D[rows], names, ax, row_names=titles)),
        "intervals": _picture(
            (8.4, 3.5), lambda ax: plots.intervals(ends, D[rows], mean, names, places, ax, row_names=titles)
        ),
        "marginal": _picture(
            (8.4, 2.3), lambda ax: plots.marginal_density(dist, 0, rows[0], ax, name=names[0], truth=D[rows[0], 0])
        ),
        "pit": [
            _picture((3.3, 2.5), lambda ax, r=r: plots.calibration(pit[:, r], ax, color=plots.LABEL_COLORS[r]))
            for r in range(len(names))
        ],
        "curve": _picture(
            (4.4, 4.2), lambda ax: plots.calibration_curve(LEVELS, seen, ax, labels=names, n_rows=len(D))
        ),
        "learning": _picture((6.2, 4.0), lambda ax: plots.learning_curve(demo.model.history_, ax)),
    }


def _ternary_pair(demo: Demo, dist: Any, row: int) -> dict[str, str]:
    names, observed, truth = demo.test.label_names, demo.test.D[row], demo.test.truth
    x = demo.test.X[[row]]

    def known(points: Array) -> Array:
        return truth.log_prob(np.repeat(x, len(points), axis=0), points)

    center = truth.mean(x)[0]
    size = (3.2, 3.15)
    return {
        "model": _picture(
            size, lambda ax: plots.ternary_density(dist, ax, row=row, labels=names, truth=observed), "ternary"
        ),
        "truth": _picture(
            size,
            lambda ax: plots.ternary_density(known, ax, labels=names, truth=observed, mean=center, shades="truth"),
            "ternary",
        ),
    }


def _picture(size: tuple[float, float], draw: Any, projection: str | None = None) -> str:
    """A PNG as a data address; sharp on fine screens and on paper."""
    try:
        from matplotlib.figure import Figure

        if projection == "ternary":
            import mpltern  # noqa: F401 - registers the projection
    except ImportError:
        raise ImportError("the demo's pictures need matplotlib and mpltern: pip install 'snefy-ldl[plot]'") from None
    figure = Figure(figsize=size)
    draw(figure.add_subplot(projection=projection))
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200, bbox_inches="tight", pad_inches=0.06)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
