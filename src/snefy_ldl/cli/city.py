"""The demonstration: a made-up city whose law is known, fitted, scored beside the truth, and shown on one page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import beta

from snefy_ldl import plots
from snefy_ldl._internal.types import Array
from snefy_ldl.cli.common import make_table
from snefy_ldl.cli.pictures import Pictures, render_page
from snefy_ldl.datasets import SyntheticData, make_city_districts
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.metrics import HIGHER_IS_BETTER, coverage, interval_width, score
from snefy_ldl.reports.report import LEVELS
from snefy_ldl.reports.scores import MEANINGS, dirichlet_log_prob, one_dirichlet

#: Confidence level of the intervals on the page.
LEVEL = 0.9


@dataclass(frozen=True)
class Demo:
    """A fitted model beside the law its data came from.

    Args:
        model: The fitted model.
        train: Districts it was fitted to.
        test: Districts it has never seen.
        measures: The score table on these: for each measure its name, meaning, and which way is better, and its value
            for the model, the truth (the best possible answer) and a constant (one answer for every district).
        districts: Some of these to show: row, name, and features in words.
    """

    model: SnefyLDL
    train: SyntheticData
    test: SyntheticData
    measures: list[dict[str, Any]]
    districts: list[dict[str, Any]]


def fit_city(n_train: int, n_test: int, n_members: int, epochs: int, random_state: int, verbose: int = 0) -> Demo:
    """Draw the city, fit the model to some districts and score it on the others.

    Args:
        n_train: Districts to learn from.
        n_test: Districts to judge on.
        n_members: Networks whose densities are averaged.
        epochs: Passes over the training rows.
        random_state: Seed of the city and of the fit.
        verbose: 1 shows progress.

    Returns:
        The fitted model, the data and the scores.
    """
    city = make_city_districts(n=n_train + n_test, random_state=random_state)
    train, test = _rows(city, slice(0, n_train)), _rows(city, slice(n_train, None))
    model = SnefyLDL(n_members=n_members, epochs=epochs, random_state=random_state, verbose=verbose)
    model.fit(as_frame(train.X, train.feature_names), as_frame(train.D, train.label_names))
    return Demo(model, train, test, _measures(model, train, test), _typical_districts(test))


def summary_table(demo: Demo) -> Any:
    """The score table for a terminal.

    Args:
        demo: What :func:`fit_city` made.

    Returns:
        A table of rich's.
    """
    return make_table(
        ("measure", "better", "SnefyLDL", "truth", "constant"),
        [
            (line["name"], line["better"], *(f"{line[kind]:.3f}" for kind in ("model", "truth", "constant")))
            for line in demo.measures
        ],
        ("measure", "better"),
        title=f"{len(demo.test.D)} districts the model has never seen",
        caption="truth: the law the data were drawn from, the best anyone can do\n"
        "constant: the mean label and one Dirichlet, the same for every district",
        caption_justify="left",
    )


def as_frame(values: Array, names: list[str]) -> Any:
    """Values (N, d) as a table with column names (d,).

    Args:
        values: Numbers (N, d).
        names: Names of the columns (d,).

    Returns:
        A pandas DataFrame.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas as pd  # an extra: the library runs without it
    except ImportError:
        raise ImportError("the demo needs pandas: pip install 'snefy-ldl[all]'") from None
    return pd.DataFrame(values, columns=names)


def _measures(model: SnefyLDL, train: SyntheticData, test: SyntheticData) -> list[dict[str, Any]]:
    """The score table: the model, the truth and the constant answer on the test districts."""
    X, D, truth = as_frame(test.X, test.feature_names), test.D, test.truth
    constant = np.tile(train.D.mean(axis=0), (len(D), 1))
    alpha = one_dirichlet(train.D)
    points = [score(D, prediction) for prediction in (np.asarray(model.predict(X)), truth.mean(test.X), constant)]
    densities = [model.log_prob(X, D), truth.log_prob(test.X, D), dirichlet_log_prob(alpha, D)]
    tails = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    one_interval = beta.ppf(tails, alpha[:, None], alpha.sum() - alpha[:, None])  # (L, 2)
    ends = [model.predict_interval(X, LEVEL), truth.interval(test.X, LEVEL), np.tile(one_interval, (len(D), 1, 1))]
    likelihoods = [float(log_density.mean()) for log_density in densities]
    covered, widths = [coverage(D, end) for end in ends], [interval_width(end) for end in ends]
    inside = f"coverage of {LEVEL:.0%} intervals"
    lines: list[tuple[Any, ...]] = [
        (name.replace("_", " "), meaning, "higher" if HIGHER_IS_BETTER[name] else "lower", *(p[name] for p in points))
        for name, meaning in MEANINGS.items()
    ]
    lines += [
        ("log likelihood", "log density at what happened", "higher", *likelihoods),
        (inside, "share of labels inside their interval", f"near {LEVEL:.2f}", *covered),
        ("interval width", "narrow says more, if it covers", "lower", *widths),
    ]
    return [dict(zip(("name", "meaning", "better", "model", "truth", "constant"), line)) for line in lines]


def _rows(city: SyntheticData, rows: slice) -> SyntheticData:
    return replace(city, X=city.X[rows], D=city.D[rows], latent=city.latent[rows])


def _typical_districts(test: SyntheticData) -> list[dict[str, Any]]:
    """A central, a student and an outlying district, picked by their features alone."""
    distance, students, buses = test.X[:, 0], test.X[:, 2], test.X[:, 3]
    campus = students > 1000.0

    def nearest(value: Array, level: float, among: Any) -> int:
        candidates = np.flatnonzero(among) if among.any() else np.arange(len(value))
        wanted = np.quantile(value[candidates], level)
        return int(candidates[np.abs(value[candidates] - wanted).argmin()])

    rows = {
        "In the centre": nearest(distance, 0.05, ~campus),
        "By the university": nearest(distance, 0.5, campus),
        "At the edge of town": nearest(distance, 0.9, ~campus),
    }
    return [
        {
            "row": row,
            "name": name,
            "facts": f"{distance[row]:.1f} km from the centre, {buses[row]:.0f} night bus lines, "
            f"{_round(students[row]):,.0f} students per km²",
        }
        for name, row in rows.items()
    ]


def _round(value: float) -> float:
    return round(value, 1 - len(str(int(value)))) if value >= 10 else value


def render(demo: Demo) -> str:
    """The page as text.

    Args:
        demo: What :func:`snefy_ldl.cli.city.fit_city` made.

    Returns:
        One HTML document.

    Raises:
        ImportError: jinja2, matplotlib or mpltern is not installed.
    """
    measure = {line["name"]: line for line in demo.measures}
    return render_page("demo.html", demo=demo, measure=measure, level=f"{LEVEL:.0%}", pictures=_pictures(demo))


def _pictures(demo: Demo) -> dict[str, Any]:
    """Every picture of the page."""
    names, rows = demo.test.label_names, [district["row"] for district in demo.districts]
    titles = [district["name"] for district in demo.districts]
    X, D = as_frame(demo.test.X, demo.test.feature_names), demo.test.D
    dist = demo.model.predict_dist(X)
    pit = np.column_stack([dist.marginal(r).cdf(torch.as_tensor(D[:, r])).numpy() for r in range(len(names))])
    seen = np.stack([((pit >= (1 - a) / 2) & (pit <= (1 + a) / 2)).mean(axis=0) for a in LEVELS])
    shown = X.iloc[rows]
    mean, ends = np.asarray(demo.model.predict(shown)), demo.model.predict_interval(shown, LEVEL)
    places, draw = range(len(rows)), Pictures()
    share = f"Density of one share of the district: {titles[0]}"
    return {
        "ternary": [_ternary_pair(draw, demo, dist, row, title) for row, title in zip(rows, titles)],
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
