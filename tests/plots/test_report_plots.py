"""The pictures of a report hold the data they were given."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import numpy as np
import pytest
import torch

from snefy_ldl import SnefySimplex

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snefy_ldl import plots
from snefy_ldl.errors import InputError
from snefy_ldl.explain.importance import Importance, Importances
from snefy_ldl.plots import style
from snefy_ldl.plots.densities import CONTENTS, shade_steps
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.votes import calibrate_counts

LABELS = ["sand", "silt", "clay"]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def one_dirichlet(*alpha: float) -> SnefySimplex:
    return SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.tensor([alpha], dtype=torch.float64))


def test_importance_draws_the_first_columns_with_their_intervals() -> None:
    names = [f"column {k}" for k in range(20)]
    entries = [Importance(name, loss, 0.05, "", 0.0) for name, loss in zip(names, np.linspace(2.0, 0.1, 20))]
    ax = Importances(entries).plot(most=5)
    assert [bar.get_width() for bar in ax.patches] == pytest.approx(np.linspace(2.0, 0.1, 20)[:5])
    ends = ax.collections[0].get_segments()[0][:, 0]
    assert ends == pytest.approx([2.0 - 1.96 * 0.05, 2.0 + 1.96 * 0.05])


def test_share_ranges_hold_the_quantiles() -> None:
    D = np.random.default_rng(1).dirichlet([1.0, 2.0, 3.0], 200)
    ax = plots.share_ranges(D, LABELS)
    thin = [line.get_xdata() for line in ax.lines if line.get_linewidth() == 2.0 and len(set(line.get_ydata())) == 1]
    np.testing.assert_allclose(thin, np.quantile(D, [0.05, 0.95], axis=0).T)
    with pytest.raises(InputError, match="must have shape"):
        plots.share_ranges(D[0])


def test_share_ridges_peak_at_the_mode() -> None:
    ax = plots.share_ridges(one_dirichlet(3.0, 4.0, 5.0), labels=LABELS, which=[2, 0], truth=[0.2, 0.3, 0.5])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["clay", "sand"]
    for line, (a, b) in zip(ax.lines, ((5.0, 7.0), (3.0, 9.0))):  # marginals are Beta(a, b), with mode (a-1)/(a+b-2)
        x, y = line.get_data()
        assert x[np.argmin(y)] == pytest.approx((a - 1) / (a + b - 2), abs=0.003)
    with pytest.raises(InputError, match="expected a distribution"):
        plots.share_ridges("no distribution")  # type: ignore[arg-type]


def test_ridges_of_tiny_and_sharp_shares_are_drawn_where_they_are() -> None:
    ax = plots.share_ridges(one_dirichlet(12.0, 1488.0, 1500.0), labels=LABELS)  # means .004, .496 and .5
    for line, (a, b) in zip(ax.lines, ((12.0, 2988.0), (1488.0, 1512.0))):
        x, y = line.get_data()
        peak = y.min()
        assert x[np.argmin(y)] == pytest.approx((a - 1) / (a + b - 2), abs=0.2 * np.sqrt(a * b) / 3000**1.5)
        assert np.sum(y < y.max() - 0.5 * (y.max() - peak)) > 15  # points on the upper half: a smooth hill
    x, y = plots.share_ridges(one_dirichlet(12.0, 1e7, 1e7), labels=LABELS).lines[0].get_data()
    assert x[np.argmin(y)] == pytest.approx(11.0 / 2e7, rel=0.1)  # far below the first point of an even grid


@pytest.mark.slow
def test_equal_contents_have_equal_colours() -> None:
    steps = shade_steps(style.SHADES)
    assert len(set(steps)) == len(CONTENTS)
    drawn = []
    for alpha in ((2.0, 3.0, 4.0), (20.0, 30.0, 40.0)):
        ax = plots.ternary_density(one_dirichlet(*alpha), labels=LABELS)
        filled = next(one for one in ax.collections if len(one.get_facecolor()) > 3)
        drawn.append([matplotlib.colors.to_hex(color) for color in filled.get_facecolor()])
    assert drawn[0] == drawn[1] == steps


def test_triangles_have_ticks_and_names() -> None:
    ax = plots.ternary_density(one_dirichlet(2.0, 3.0, 4.0), labels=LABELS)
    for axis in (ax.taxis, ax.laxis, ax.raxis):
        assert [tick.get_text() for tick in axis.get_ticklabels()] == ["25%", "50%", "75%"]


def test_calibration_of_counts_draws_its_histogram() -> None:
    found = calibrate_counts(one_dirichlet(2.0, 3.0, 4.0).expand((2,)), [[1, 1, 0], [0, 2, 1]])
    heights = [bar.get_height() for bar in plot_calibration(found).patches]
    np.testing.assert_allclose(heights, 10 * found.histogram)
