"""Make the picture that the README opens with: ``python examples/make_hero.py [file.png]``."""

from __future__ import annotations

import sys
from pathlib import Path

import mpltern  # noqa: F401 - registers the projection "ternary"
import numpy as np
from matplotlib.figure import Figure

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

TEXT = {"color": style.INK, "ha": "left", "va": "top"}


def main(file: Path, n_train: int = 3000, n_members: int = 4, epochs: int = 30) -> Path:
    city = make_city_districts(n=n_train + 500, random_state=0)
    X, D = city.X[n_train:], city.D[n_train:]
    model = SnefyLDL(n_members=n_members, epochs=epochs, random_state=0).fit(city.X[:n_train], city.D[:n_train])
    rows = pick_districts(X)
    dist, mean, ends = model.predict_dist(X), model.predict(X), model.predict_interval(X, 0.9)

    figure = Figure(figsize=(10.4, 6.6), facecolor="white")
    figure.text(0.035, 0.965, "One prediction is a whole density over label distributions", fontsize=19, **TEXT)
    figure.text(
        0.035,
        0.9,
        "What is a city district used for? Five facts about it go in; every mix of three uses gets its density.",
        **(TEXT | {"color": style.QUIET, "fontsize": 12}),
    )
    for column, (name, row) in enumerate(rows.items()):
        left = 0.035 + 0.325 * column
        figure.text(left, 0.82, name, fontsize=14, fontweight="bold", **TEXT)
        facts = f"{X[row, 0]:.1f} km out, {round(X[row, 2], -1):,.0f} students per km²"
        figure.text(left, 0.782, facts, fontsize=11, **(TEXT | {"color": style.QUIET}))
        triangle = figure.add_axes((left + 0.012, 0.29, 0.27, 0.43), projection="ternary")
        plots.ternary_density(dist, row=row, labels=city.label_names, truth=D[row], resolution=200, ax=triangle)
        bars = figure.add_axes((left + 0.012, 0.125, 0.27, 0.115))
        plots.intervals(ends, D, mean, city.label_names, [row], row_names=[""], ax=bars)
        bars.get_legend().remove()
        bars.set_xlabel("share of each label, with its 90% interval", fontsize=10)
        bars.spines["left"].set_visible(False)
    for place, label in enumerate(city.label_names):
        at = (0.047, 0.155, 0.31)[place]
        figure.text(at, 0.033, "■", fontsize=12, **(TEXT | {"color": plots.style.LABEL_COLORS[place]}))
        figure.text(at + 0.02, 0.033, label, fontsize=11.5, **TEXT)
    key = "○ mean    ◆ observed    lines: 50% and 90% of the probability"
    figure.text(0.967, 0.033, key, fontsize=11.5, **(TEXT | {"color": style.QUIET, "ha": "right"}))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    return file


def pick_districts(X: np.ndarray) -> dict[str, int]:
    """Three districts, picked by their features alone: in the centre, among students, at the edge."""
    distance, students = X[:, 0], X[:, 2]

    def nearest(km: float, campus: bool) -> int:
        candidates = np.flatnonzero((students > 1500) == campus)
        return int(candidates[np.abs(distance[candidates] - km).argmin()])

    return {
        "In the centre": nearest(0.8, False),
        "By the university": nearest(5.0, True),
        "At the edge of town": nearest(12.0, False),
    }


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "docs" / "images" / "hero.png"
    print(main(Path(sys.argv[1]) if len(sys.argv) > 1 else default))
