"""The demonstration: fit a made-up city whose law is known, compare with the truth, and write one page about it."""

from __future__ import annotations

import base64
import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.special import gammaln, xlogy
from scipy.stats import beta

from snefy_ldl import plots
from snefy_ldl._types import Array
from snefy_ldl._version import __version__
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.files.atomic import write_bytes
from snefy_ldl.metrics import coverage, interval_width, score
from snefy_ldl.networks.net import fit_dirichlet, label_concentration
from snefy_ldl.synthetic import SyntheticData, make_city_districts

__all__ = ["Demo", "District", "Measure", "run_demo"]

#: Confidence level of the intervals on the page.
LEVEL = 0.9
#: Levels of the calibration curve.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Measure:
    """One line of the score table: the model, the best possible answer, and one answer for every district."""

    name: str
    meaning: str
    better: str
    model: float
    truth: float
    constant: float


@dataclass(frozen=True)
class District:
    """A test district that the page shows: its row, a name, and what is known about it."""

    row: int
    name: str
    facts: str


@dataclass(frozen=True)
class Demo:
    """A fitted model beside the law its data came from."""

    model: SnefyLDL
    train: SyntheticData
    test: SyntheticData
    measures: list[Measure]
    districts: list[District]
    seconds: float

    @property
    def measure(self) -> dict[str, Measure]:
        """The lines of the score table by name."""
        return {line.name: line for line in self.measures}


def run_demo(
    out: str | Path = "demo",
    *,
    n_train: int = 2000,
    n_test: int = 500,
    n_members: int = 3,
    epochs: int = 30,
    random_state: int = 0,
    verbose: int = 1,
    console: Console | None = None,
) -> Path:
    """Fit the city districts, print how well it went, and write ``out/index.html``; returns that file.

    The folder also gets tables and the model, to try the command line with: ``train.csv``, ``test.csv``, ``model/``.

    Args:
        out: Folder to write into.
        n_train: Districts to learn from.
        n_test: Districts to judge on.
        n_members: Networks whose densities are averaged.
        epochs: Passes over the training rows.
        random_state: Seed of the city and of the fit.
        verbose: 1 shows progress.
        console: Where to print the summary.
    """
    folder, console = Path(out), console or Console()
    folder.mkdir(parents=True, exist_ok=True)
    demo = fit_city(n_train, n_test, n_members, epochs, random_state, verbose)
    console.print(summary_table(demo))
    for name, city in (("train.csv", demo.train), ("test.csv", demo.test)):
        table = _frame(city.X, city.feature_names).join(_frame(city.D, city.label_names))
        write_bytes(folder / name, table.to_csv(index=False, float_format="%.6g").encode())
    demo.model.save(folder / "model")
    page = folder / "index.html"
    write_bytes(page, render(demo).encode())
    return page


def fit_city(n_train: int, n_test: int, n_members: int, epochs: int, random_state: int, verbose: int = 0) -> Demo:
    """Draw the city, fit the model to some districts and score it on the others."""
    started = time.perf_counter()
    city = make_city_districts(n=n_train + n_test, random_state=random_state)
    train, test = _rows(city, slice(0, n_train)), _rows(city, slice(n_train, None))
    model = SnefyLDL(n_members=n_members, epochs=epochs, random_state=random_state, verbose=verbose)
    model.fit(_frame(train.X, train.feature_names), _frame(train.D, train.label_names))
    return Demo(
        model=model,
        train=train,
        test=test,
        measures=_measures(model, train, test),
        districts=_typical_districts(test),
        seconds=time.perf_counter() - started,
    )


def summary_table(demo: Demo) -> Table:
    """The score table for a terminal."""
    table = Table(
        title=f"{len(demo.test.D)} districts the model has never seen",
        caption="truth: the law the data were drawn from, the best anyone can do\n"
        "constant: the mean label and one Dirichlet, the same for every district",
        title_style="bold",
        header_style="bold",
        caption_justify="left",
    )
    table.add_column("measure")
    table.add_column("better", style="dim")
    table.add_column("SnefyLDL", justify="right", style="bold cyan")
    table.add_column("truth", justify="right")
    table.add_column("constant", justify="right")
    for line in demo.measures:
        table.add_row(line.name, line.better, f"{line.model:.3f}", f"{line.truth:.3f}", f"{line.constant:.3f}")
    return table


def render(demo: Demo) -> str:
    """The page: one HTML file that holds its own pictures and needs no network."""
    try:
        import jinja2
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


# --- numbers ----------------------------------------------------------------------------------------------------------


def _measures(model: SnefyLDL, train: SyntheticData, test: SyntheticData) -> list[Measure]:
    X, D, truth = _frame(test.X, test.feature_names), test.D, test.truth
    constant = np.tile(train.D.mean(axis=0), (len(D), 1))
    alpha = _one_dirichlet(train.D)
    points = [score(D, prediction) for prediction in (np.asarray(model.predict(X)), truth.mean(test.X), constant)]
    densities = [model.log_prob(X, D), truth.log_prob(test.X, D), _dirichlet_log_prob(alpha, D)]
    tails = [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0]
    one_interval = beta.ppf(tails, alpha[:, None], alpha.sum() - alpha[:, None])  # (L, 2)
    ends = [model.predict_interval(X, LEVEL), truth.interval(test.X, LEVEL), np.tile(one_interval, (len(D), 1, 1))]
    meanings = {
        "chebyshev": "largest miss of any label",
        "clark": "relative miss, squared and summed",
        "canberra": "relative miss, summed over labels",
        "kl_divergence": "information lost, in nats",
        "cosine": "angle between both distributions",
        "intersection": "share that both have in common",
    }
    lines = [
        Measure(name.replace("_", " "), meaning, _better(name), *(point[name] for point in points))
        for name, meaning in meanings.items()
    ]
    lines.append(
        Measure("log likelihood", "log density at what happened", "higher", *(float(p.mean()) for p in densities))
    )
    lines.append(
        Measure(
            f"coverage of {LEVEL:.0%} intervals",
            "share of labels inside their interval",
            f"near {LEVEL:.2f}",
            *(coverage(D, end) for end in ends),
        )
    )
    lines.append(
        Measure("interval width", "narrow says more, if it covers", "lower", *(interval_width(end) for end in ends))
    )
    return lines


def _better(name: str) -> str:
    from snefy_ldl.metrics.points import HIGHER_IS_BETTER

    return "higher" if HIGHER_IS_BETTER[name] else "lower"


def _one_dirichlet(D: Array) -> Array:
    """The one Dirichlet that fits all training labels best: what is left when nothing is known about a district."""
    shares = torch.as_tensor(D)
    start = shares.mean(0) * max(label_concentration(shares), 1.0)
    return fit_dirichlet(shares.log().mean(0), start).numpy()


def _dirichlet_log_prob(alpha: Array, D: Array) -> Array:
    out: Array = gammaln(alpha.sum()) - gammaln(alpha).sum() + xlogy(alpha - 1.0, D).sum(axis=1)
    return out


def _rows(city: SyntheticData, rows: slice) -> SyntheticData:
    return SyntheticData(
        X=city.X[rows],
        D=city.D[rows],
        latent=city.latent[rows],
        label_names=city.label_names,
        feature_names=city.feature_names,
        name=city.name,
        source=city.source,
        licence=city.licence,
        truth=city.truth,
    )


def _typical_districts(test: SyntheticData) -> list[District]:
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
        District(
            row,
            name,
            f"{distance[row]:.1f} km from the centre, {buses[row]:.0f} night bus lines, "
            f"{_round(students[row]):,.0f} students per km²",
        )
        for name, row in rows.items()
    ]


def _round(value: float) -> float:
    return round(value, 1 - len(str(int(value)))) if value >= 10 else value


def _frame(values: Array, names: list[str]) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("the demo needs pandas: pip install 'snefy-ldl[all]'") from None
    return pd.DataFrame(values, columns=names)


# --- pictures ---------------------------------------------------------------------------------------------------------


def _pictures(demo: Demo) -> dict[str, Any]:
    """Every picture of the page as a data address."""
    names, rows = demo.test.label_names, [district.row for district in demo.districts]
    titles = [district.name for district in demo.districts]
    X, D = _frame(demo.test.X, demo.test.feature_names), demo.test.D
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
