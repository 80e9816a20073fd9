"""Each picture holds the data it was given, and saves to a file."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snefy_ldl import SnefySimplex, plots
from snefy_ldl._internal.special import ternary_grid
from snefy_ldl.datasets import USDA, texture_classes
from snefy_ldl.errors import InputError
from snefy_ldl.plots import densities
from snefy_ldl.plots.densities import OUTLINES

LABELS = ["sand", "silt", "clay"]
#: The classes in percent, each by all the conditions of the USDA Soil Survey Manual.
CLASSES = {
    "sand": lambda sand, silt, clay: silt + 1.5 * clay < 15,
    "loamy sand": lambda sand, silt, clay: (silt + 1.5 * clay >= 15) & (silt + 2 * clay < 30),
    "sandy loam": lambda sand, silt, clay: (
        (silt + 2 * clay >= 30) & (clay < 20) & (sand > 52) & (clay >= 7)
        | (silt + 2 * clay >= 30) & (clay < 7) & (silt < 50)
    ),
    "loam": lambda sand, silt, clay: (clay >= 7) & (clay < 27) & (silt >= 28) & (silt < 50) & (sand <= 52),
    "silt loam": lambda sand, silt, clay: (silt >= 50) & ((clay >= 12) & (clay < 27) | (clay < 12) & (silt < 80)),
    "silt": lambda sand, silt, clay: (silt >= 80) & (clay < 12),
    "sandy clay loam": lambda sand, silt, clay: (clay >= 20) & (clay < 35) & (silt < 28) & (sand > 45),
    "clay loam": lambda sand, silt, clay: (clay >= 27) & (clay < 40) & (sand > 20) & (sand <= 45),
    "silty clay loam": lambda sand, silt, clay: (clay >= 27) & (clay < 40) & (sand <= 20),
    "sandy clay": lambda sand, silt, clay: (clay >= 35) & (sand > 45),
    "silty clay": lambda sand, silt, clay: (clay >= 40) & (silt >= 40),
    "clay": lambda sand, silt, clay: (clay >= 40) & (sand <= 45) & (silt < 40),
}


def squares(n_labels: int = 3, rows: int = 4, members: int = 1, seed: int = 0) -> SnefySimplex:
    generator = torch.Generator().manual_seed(seed)
    exponents = 0.2 + 4.0 * torch.rand(members, 5, n_labels, generator=generator, dtype=torch.float64)
    readout = torch.randn(members, 3, 5, generator=generator, dtype=torch.float64)
    return SnefySimplex(exponents, readout, torch.randn(rows, members, 5, generator=generator, dtype=torch.float64))


def dirichlet(*alpha: float) -> SnefySimplex:
    one = torch.ones(1, 1, dtype=torch.float64)
    return SnefySimplex((torch.tensor([alpha], dtype=torch.float64) - 1) / 2, one, 0 * one)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before, "a picture changed matplotlib's global settings"


def save(ax, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    ax.figure.savefig(file)
    assert file.stat().st_size > 2000


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def offsets(ax) -> np.ndarray:
    """Plane positions of all scattered points."""
    points = [
        np.asarray(c.get_offsets())
        for c in ax.collections
        if type(c).__name__ == "PathCollection" and len(c.get_offsets())
    ]
    return np.concatenate(points) if points else np.empty((0, 2))


# --- ternary density --------------------------------------------------------------------------------------------------


def test_ternary_density_marks_mean_and_truth(tmp_path: Path) -> None:
    dist, truth = squares(), np.array([0.2, 0.5, 0.3])
    ax = plots.ternary_density(dist, row=2, labels=LABELS, truth=truth)
    assert texts(ax) == LABELS
    # top, left, right: the plane position of a mix is the weighted mean of the corners
    wanted = np.stack([dist.mean[2].numpy(), truth]) @ ax.corners_data
    np.testing.assert_allclose(offsets(ax), wanted, atol=1e-9)
    save(ax, tmp_path)


def test_ternary_density_levels_hold_the_stated_probability() -> None:
    dist = squares()
    grid = ternary_grid(80)
    log_density = dist.log_prob(torch.as_tensor(grid)[:, None].expand(-1, 4, -1))[:, 1].numpy()
    density = np.exp(log_density - log_density.max())
    ax = plots.ternary_density(dist, row=1, resolution=80)
    lines = [c for c in ax.collections if type(c).__name__ == "TriContourSet" and not c.filled]
    contents = sorted(density[density >= level].sum() / density.sum() for level in lines[0].levels)
    np.testing.assert_allclose(contents, sorted(OUTLINES), atol=0.01)


def test_ternary_density_takes_points_and_axes() -> None:
    pytest.importorskip("mpltern")  # registers the projection
    figure = plt.figure()
    given = figure.add_subplot(projection="ternary")
    dots = np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
    ax = plots.ternary_density(dirichlet(3.0, 5.0, 4.0), ax=given, points=dots, resolution=40)
    assert ax is given
    np.testing.assert_allclose(ax.collections[-2].get_offsets(), dots @ ax.corners_data, atol=1e-9)


def every_kind_of_distribution() -> list[SnefySimplex]:
    several = squares(members=2)
    votes = torch.tensor([[1.0, 0, 2]] * 4, dtype=torch.float64)
    plain = SnefySimplex.from_mixture(torch.tensor([[0.3, 0.7], [0.6, 0.4]]), torch.tensor([[2.0, 3, 4], [4.0, 3, 2]]))
    return [several, several.posterior(votes), plain]


@pytest.mark.parametrize("dist", every_kind_of_distribution())
def test_the_row_that_is_drawn_is_the_row_that_was_asked_for(dist: SnefySimplex) -> None:
    curve = plots.marginal_density(dist, 0, row=1).lines[0]
    share = torch.as_tensor(curve.get_xdata())[:, None]
    wanted = dist.marginal(0).log_prob(share).exp()[:, 1]
    np.testing.assert_allclose(curve.get_ydata(), wanted, rtol=1e-3, atol=1e-3)  # bins
    ax = plots.ternary_density(dist, row=-1, resolution=20)
    np.testing.assert_allclose(offsets(ax), dist.mean[-1:].double().numpy() @ ax.corners_data, atol=1e-6)


def test_very_sharp_density_is_drawn_where_it_is(tmp_path: Path) -> None:
    ax = plots.ternary_density(dirichlet(4000.0, 3000.0, 3000.0))
    filled = next(c for c in ax.collections if type(c).__name__ == "TriContourSet" and c.filled)
    corners = np.concatenate([path.vertices for path in filled.get_paths()])
    centre = np.array([0.4, 0.3, 0.3]) @ ax.corners_data
    assert len(corners) > 2
    assert np.abs(corners - centre).max() < 0.05  # a standard deviation is 0.005, a grid step 0.007
    save(ax, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dist": squares(4)}, "needs 3 labels"),
        ({"dist": squares(), "row": 9}, "row 9 is not there"),
        ({"dist": squares(), "labels": ["one"]}, "labels must hold 3 names"),
        ({"dist": squares(), "truth": [0.5, 0.5]}, "truth must hold shares of three labels"),
    ],
)
def test_ternary_density_explains_what_is_wrong(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.ternary_density(**arguments, resolution=20)


def test_ternary_density_needs_ternary_axes() -> None:
    with pytest.raises(InputError, match="ternary axes"):
        plots.ternary_density(squares(), ax=plt.subplots()[1])


# --- the other pictures -----------------------------------------------------------------------------------------------


def test_intervals_show_every_label_of_the_chosen_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    D = rng.dirichlet(np.ones(3), 10)
    ends = np.stack([np.maximum(D - 0.1, 0), np.minimum(D + 0.1, 1)], -1)
    ax = plots.intervals(ends, D, D, LABELS, rows=[7, 2], row_names=["north", "south"])
    bars = [line.get_xdata() for line in ax.lines if line.get_linewidth() > 5]
    np.testing.assert_allclose(bars, ends[[7, 2]].reshape(-1, 2))
    np.testing.assert_allclose(sorted(offsets(ax)[:, 0]), sorted(np.tile(D[[7, 2]].ravel(), 2)))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["north", "south"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == LABELS
    save(ax, tmp_path)


@pytest.mark.slow
def test_calibration_draws_the_histogram_and_the_band(tmp_path: Path) -> None:
    from scipy.stats import binom

    pit = np.random.default_rng(0).random(400)
    ax = plots.calibration(pit, bins=8)
    heights = [patch.get_height() for patch in ax.patches if patch.get_width() == pytest.approx(1 / 8)]
    np.testing.assert_allclose(heights, np.histogram(pit, 8, (0, 1))[0] * 8 / 400)
    ends = sorted({line.get_ydata()[0] for line in ax.lines} - {1.0})
    np.testing.assert_allclose(ends, binom.ppf([0.025, 0.975], 400, 1 / 8) * 8 / 400)
    save(ax, tmp_path)


def test_calibration_curve_holds_the_coverage(tmp_path: Path) -> None:
    levels, seen = [0.5, 0.8, 0.9], np.array([[0.4, 0.6], [0.7, 0.85], [0.88, 0.93]])
    ax = plots.calibration_curve(levels, seen, labels=["a", "b"], n_rows=100)
    np.testing.assert_allclose([line.get_ydata() for line in ax.lines[1:]], seen.T)
    save(ax, tmp_path)
    assert len(plots.calibration_curve(levels, seen[:, 0]).lines) == 2
    with pytest.raises(InputError, match="coverage"):
        plots.calibration_curve(levels, [0.1])


def test_marginal_density_is_the_beta_density(tmp_path: Path) -> None:
    from scipy.stats import beta

    ax = plots.marginal_density(dirichlet(2.0, 3.0, 5.0), 0, truth=0.4, name="sand")
    curve, mean, observed = ax.lines
    np.testing.assert_allclose(curve.get_ydata(), beta(2, 8).pdf(curve.get_xdata()), rtol=1e-3, atol=1e-3)  # bins
    assert mean.get_xdata()[0] == pytest.approx(0.2)
    assert observed.get_xdata()[0] == 0.4
    assert ax.get_xlabel() == "share of sand"
    shaded = ax.collections[1].get_paths()[0].vertices[:, 0]
    np.testing.assert_allclose([shaded.min(), shaded.max()], beta(2, 8).ppf([0.05, 0.95]), atol=0.003)
    save(ax, tmp_path)


def test_label_bars_stack_to_one(tmp_path: Path) -> None:
    D = np.array([[0.2, 0.3, 0.5], [0.05, 0.9, 0.05]])
    ax = plots.label_bars(D, LABELS, row_names=["north", "south"])
    widths = np.array([patch.get_width() for patch in ax.patches]).reshape(3, 2).T
    np.testing.assert_allclose(widths, D)
    assert [text for text in texts(ax) if text] == ["20%", "30%", "90%", "50%"]
    save(ax, tmp_path)


@pytest.mark.parametrize("name", plots.__all__)
def test_every_picture_is_documented(name: str) -> None:
    parameters = list(inspect.signature(getattr(plots, name)).parameters.values())
    assert parameters[-1].name == "ax"
    assert parameters[-1].default is None
    assert getattr(plots, name).__doc__


def test_missing_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "mpltern", None)
    with pytest.raises(ImportError, match=r"pip install 'snefy-ldl\[plot\]'"):
        plots.label_bars(np.eye(2))
    with pytest.raises(ImportError, match=r"pip install 'snefy-ldl\[plot\]'"):
        plots.ternary_density(squares())


def test_texture_classes_are_those_of_the_manual() -> None:
    grid = np.array([(i, j, 200 - i - j) for i in range(201) for j in range(201 - i)]) / 200.0
    numbers = texture_classes(torch.as_tensor(grid))
    assert tuple(CLASSES) == USDA
    for number, holds in enumerate(CLASSES.values()):
        np.testing.assert_array_equal(numbers == number, holds(*(100.0 * grid).T))
    with pytest.raises(InputError, match="sand, silt and clay"):
        texture_classes(np.ones(4))


def test_classes_are_outlined_whatever_the_order_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpltern")
    monkeypatch.setattr(densities, "CLASS_STEPS", 60)
    dist = dirichlet(2.0, 3.0, 4.0)
    before = len(plots.ternary_density(dist, labels=LABELS, resolution=30).collections)
    outlined = plots.ternary_density(dist, labels=["clay", "sand", "silt"], classes="USDA", resolution=30)
    assert len(outlined.collections) == before + 12
    with pytest.raises(InputError, match="classes"):
        plots.ternary_density(dist, classes="WRB", resolution=30)
