"""The demonstration: a made-up city whose distribution is known, fitted and compared with the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from snefy_ldl._internal.extras import extra
from snefy_ldl._internal.types import Array
from snefy_ldl.apps.cli.report_page import render_report
from snefy_ldl.apps.reports.model_report import JudgedRows, Report, Rival, make_report
from snefy_ldl.auto import AutoLDL
from snefy_ldl.datasets.synthetic import SyntheticData, make_city_districts

#: What the distribution is called that the city was drawn from.
TRUTH = "the truth"


@dataclass(frozen=True)
class Demo:
    """A fitted model and the distribution its data came from.

    Args:
        model: The fitted model.
        train: Districts it was fitted to.
        test: Districts it has never seen.
        report: How good it is on these; the truth, the best possible answer, is the last rival.
    """

    model: AutoLDL
    train: SyntheticData
    test: SyntheticData
    report: Report


def fit_city(n_train: int, n_test: int, random_state: int, verbose: int = 0) -> Demo:
    """Draw the city, fit the model to some districts and judge it on the others.

    Args:
        n_train: Districts to learn from.
        n_test: Districts to judge on.
        random_state: Seed of the city and of the fit.
        verbose: 1 shows progress.

    Returns:
        The fitted model, the data and the report.
    """
    city = make_city_districts(n=n_train + n_test, random_state=random_state)
    train, test = (
        replace(city, X=city.X[rows], D=city.D[rows], latent=city.latent[rows])
        for rows in (slice(0, n_train), slice(n_train, None))
    )
    model = AutoLDL(random_state=random_state, verbose=verbose)
    model.fit(as_frame(train.X, train.feature_names), as_frame(train.D, train.label_names))
    truth = Rival(TRUTH, test.truth.mean(test.X), test.truth.log_prob(test.X, test.D))
    learnt, judged = (JudgedRows(as_frame(one.X, one.feature_names), one.D, one.label_names) for one in (train, test))
    return Demo(model, train, test, make_report(model.model_, judged, train=learnt, rivals=[truth]))


def two_answers(demo: Demo) -> tuple[str, str, int]:
    """The district of which the model is surest that it is either one use or another, and not a mix of the two.

    Args:
        demo: What :func:`fit_city` made.

    Returns:
        A heading, a description, and the number of the district.
    """
    dist = demo.model.predict_dist(demo.report.rows.X)
    first, second = (dist.prob_greater(j, k, ratio=2.0).cpu().numpy() for j, k in ((0, 1), (1, 0)))
    row = int(np.minimum(first, second).argmax())
    one, other = demo.test.label_names[:2]
    most, least = round(float(first[row]), 2), round(float(second[row]), 2)
    words = (
        f"District {row + 1} of the test table has at least twice as much {one} as {other} with a probability of "
        f"{most:.0%}, and at least twice as much {other} as {one} with {least:.0%}. That leaves "
        f"{1.0 - most - least:.0%} for anything in between, where the mean lies: one number per use cannot "
        "show this, a density can."
    )
    return f"Mostly {one} or mostly {other}, hardly ever half of each", words, row


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
    with extra("all", "the demo needs pandas"):
        import pandas as pd
    return pd.DataFrame(values, columns=names)


def render(demo: Demo, commands: list[str], first: tuple[str, str, int]) -> str:
    """The page of ``snefy-ldl report`` about the districts that the model has never seen.

    Args:
        demo: What :func:`fit_city` made.
        commands: Commands to try next.
        first: What :func:`two_answers` found.

    Returns:
        HTML with pictures inside; nothing is loaded from elsewhere.

    Raises:
        ImportError: matplotlib, mpltern or jinja2 is missing.
    """
    note = (
        "The city is made up (make_city_districts), so the best possible answer is known: the truth is the "
        "distribution that the districts were drawn from."
    )
    title = "How sure can we be about a city district?"
    return render_report(demo.report, table="test.csv", title=title, notes=[note], commands=commands, first=first)
