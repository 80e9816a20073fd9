"""The demonstration's page: one HTML file that holds its own pictures and needs no network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from snefy_ldl import plots
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.version import __version__
from snefy_ldl.cli.city import LEVEL, Demo, as_frame
from snefy_ldl.cli.pictures import Pictures, color_variables

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
        colors=color_variables(),
        version=__version__,
    )
    return page


def _pictures(demo: Demo) -> dict[str, Any]:
    """Every picture of the page."""
    names, rows = demo.test.label_names, [district.row for district in demo.districts]
    titles = [district.name for district in demo.districts]
    X, D = as_frame(demo.test.X, demo.test.feature_names), demo.test.D
    dist = demo.model.predict_dist(X)
    pit = np.column_stack([dist.marginal(r).cdf(torch.as_tensor(D[:, r])).numpy() for r in range(len(names))])
    seen = np.stack([((pit >= (1 - a) / 2) & (pit <= (1 + a) / 2)).mean(axis=0) for a in LEVELS])
    shown = X.iloc[rows]
    mean, ends = np.asarray(demo.model.predict(shown)), demo.model.predict_interval(shown, LEVEL)
    places, draw = range(len(rows)), Pictures()
    share = f"Density of one share of the district: {titles[0]}"
    return {
        "ternary": [_ternary_pair(draw, demo, dist, district.row, district.name) for district in demo.districts],
        "bars": draw.draw(
            "Stacked bars: the observed shares of three districts",
            (4.8, 1.5),
            lambda ax: plots.label_bars(D[rows], names, ax, row_names=titles),
        ),
        "intervals": draw.draw(
            "Intervals of each label for three districts, with means and observed shares",
            (4.8, 3.0),
            lambda ax: plots.intervals(ends, D[rows], mean, names, places, ax, row_names=titles),
        ),
        "marginal": draw.draw(
            share,
            (4.8, 1.8),
            lambda ax: plots.marginal_density(dist, 0, rows[0], ax, name=names[0], truth=D[rows[0], 0]),
        ),
        "pit": [_histogram(draw, name, pit[:, r], plots.LABEL_COLORS[r]) for r, name in enumerate(names)],
        "curve": draw.draw(
            "Observed coverage against the confidence level asked for",
            (3.6, 3.6),
            lambda ax: plots.calibration_curve(LEVELS, seen, ax, labels=names, n_rows=len(D)),
        ),
        "learning": draw.draw(
            "Training and validation loss by epoch",
            (4.4, 2.8),
            lambda ax: plots.learning_curve(demo.model.history_, ax),
        ),
    }


def _histogram(draw: Pictures, name: str, pit: Array, color: str) -> str:
    title = f"Histogram of predicted probabilities for {name}"
    return draw.draw(title, (3.1, 2.2), lambda ax: plots.calibration(pit, ax, color=color))


def _ternary_pair(draw: Pictures, demo: Demo, dist: Any, row: int, name: str) -> dict[str, str]:
    labels, observed, truth = demo.test.label_names, demo.test.D[row], demo.test.truth
    x = demo.test.X[[row]]

    def known(points: Array) -> Array:
        return truth.log_prob(np.repeat(x, len(points), axis=0), points)

    center = truth.mean(x)[0]
    look: dict[str, Any] = {"labels": labels, "truth": observed, "resolution": 90}
    return {
        "model": draw.draw(
            f"Triangle with the predicted density of the district: {name}",
            (2.9, 2.9),
            lambda ax: plots.ternary_density(dist, ax, row=row, **look),
            "ternary",
        ),
        "truth": draw.draw(
            f"Triangle with the true density of the district: {name}",
            (2.9, 2.9),
            lambda ax: plots.ternary_density(known, ax, mean=center, shades="truth", **look),
            "ternary",
        ),
    }
