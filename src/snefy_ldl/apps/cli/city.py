"""The demonstration: a made-up city whose distribution is known, fitted and compared with the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import beta, dirichlet

from snefy_ldl._internal.types import Array
from snefy_ldl.apps.cli.common import make_table
from snefy_ldl.apps.cli.report_page import render_report
from snefy_ldl.apps.reports.report import LEVEL, JudgedRows, make_report, one_dirichlet
from snefy_ldl.auto import AutoLDL
from snefy_ldl.datasets.synthetic import SyntheticData, make_city_districts
from snefy_ldl.metrics import coverage, interval_width, score
from snefy_ldl.metrics.points import HIGHER_IS_BETTER


@dataclass(frozen=True)
class Demo:
    """A fitted model and the distribution its data came from.

    Args:
        model: The fitted model.
        train: Districts it was fitted to.
        test: Districts it has never seen.
        measures: The score table on these: for each measure its name, which way is better, and its value for the model,
            the truth (the best possible answer) and a constant (one answer for every district).
    """

    model: AutoLDL
    train: SyntheticData
    test: SyntheticData
    measures: list[dict[str, Any]]


def fit_city(n_train: int, n_test: int, random_state: int, verbose: int = 0) -> Demo:
    """Draw the city, fit the model to some districts and score it on the others.

    Args:
        n_train: Districts to learn from.
        n_test: Districts to judge on.
        random_state: Seed of the city and of the fit.
        verbose: 1 shows progress.

    Returns:
        The fitted model, the data and the scores.
    """
    city = make_city_districts(n=n_train + n_test, random_state=random_state)
    train, test = _rows(city, slice(0, n_train)), _rows(city, slice(n_train, None))
    model = AutoLDL(random_state=random_state, verbose=verbose)
    model.fit(as_frame(train.X, train.feature_names), as_frame(train.D, train.label_names))
    return Demo(model, train, test, _measures(model, train, test))


def two_answers(demo: Demo) -> tuple[str, str, int]:
    """The district of which the model is surest that it is either one use or another, and not a mix of the two.

    Args:
        demo: What :func:`fit_city` made.

    Returns:
        A heading, a description, and the number of the district.
    """
    dist = demo.model.predict_dist(as_frame(demo.test.X, demo.test.feature_names))
    first, second = (dist.prob_greater(j, k, ratio=2.0).cpu().numpy() for j, k in ((0, 1), (1, 0)))
    row = int(np.minimum(first, second).argmax())
    one, other = demo.test.label_names[:2]
    words = (
        f"District {row + 1} of the test table has at least twice as much {one} as {other} with a probability of "
        f"{first[row]:.0%}, and at least twice as much {other} as {one} with {second[row]:.0%}. That leaves "
        f"{1.0 - first[row] - second[row]:.0%} for anything in between, where the mean lies: one number per use cannot "
        "show this, a density can."
    )
    return f"Mostly {one} or mostly {other}, hardly ever half of each", words, row


def summary_table(demo: Demo) -> Any:
    """The score table for a terminal.

    Args:
        demo: What :func:`fit_city` made.

    Returns:
        A table of rich's.
    """
    return make_table(
        ("measure", "better", demo.model.choice_.kept, "truth", "constant"),
        [
            (line["name"], line["better"], *(f"{line[kind]:.3f}" for kind in ("model", "truth", "constant")))
            for line in demo.measures
        ],
        ("measure", "better"),
        title=f"{len(demo.test.D)} districts the model has never seen",
        caption="truth: the distribution the data were drawn from, the best anyone can do\n"
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


def _measures(model: AutoLDL, train: SyntheticData, test: SyntheticData) -> list[dict[str, Any]]:
    """The score table: the model, the truth and the constant answer on the test districts."""
    X, D, truth = as_frame(test.X, test.feature_names), test.D, test.truth
    constant = np.tile(train.D.mean(axis=0), (len(D), 1))
    alpha = one_dirichlet(train.D)
    points = [score(D, prediction) for prediction in (np.asarray(model.predict(X)), truth.mean(test.X), constant)]
    densities = [model.log_prob(X, D), truth.log_prob(test.X, D), dirichlet.logpdf(D.T, alpha)]
    tails = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    one_interval = beta.ppf(tails, alpha[:, None], alpha.sum() - alpha[:, None])  # (L, 2)
    ends = [model.predict_interval(X, LEVEL), truth.quantiles(test.X, tails), np.tile(one_interval, (len(D), 1, 1))]
    likelihoods = [float(log_density.mean()) for log_density in densities]
    covered, widths = [coverage(D, end) for end in ends], [interval_width(end) for end in ends]
    lines: list[tuple[Any, ...]] = [
        (name.replace("_", " "), "higher" if higher else "lower", *(point[name] for point in points))
        for name, higher in HIGHER_IS_BETTER.items()
    ]
    lines += [
        ("log likelihood", "higher", *likelihoods),
        (f"coverage of {LEVEL:.0%} intervals", f"near {LEVEL:.2f}", *covered),
        ("interval width", "lower", *widths),
    ]
    return [dict(zip(("name", "better", "model", "truth", "constant"), line)) for line in lines]


def _rows(city: SyntheticData, rows: slice) -> SyntheticData:
    return replace(city, X=city.X[rows], D=city.D[rows], latent=city.latent[rows])


def render(demo: Demo, commands: list[str], first: tuple[str, str, int]) -> str:
    """The page of ``snefy-ldl report`` about the districts that the model has never seen.

    Args:
        demo: What :func:`fit_city` made.
        first: What :func:`two_answers` found.
        commands: Commands to try next.

    Returns:
        HTML with pictures inside; nothing is loaded from elsewhere.

    Raises:
        ImportError: matplotlib, mpltern or jinja2 is missing.
    """
    train, test = (
        JudgedRows(as_frame(data.X, data.feature_names), data.D, data.label_names) for data in (demo.train, demo.test)
    )
    best = next(line for line in demo.measures if line["name"] == "log likelihood")
    note = (
        "The city is made up (make_city_districts), so the best possible answer is known: the distribution that the "
        f"districts were drawn from has a mean log likelihood of {best['truth']:.3f}, the model {best['model']:.3f}."
    )
    title = "How sure can we be about a city district?"
    report = make_report(demo.model.model_, test, train=train)
    return render_report(report, table="test.csv", title=title, notes=[note], commands=commands, first=first)
