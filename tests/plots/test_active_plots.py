"""Pictures of active learning hold the data they were given."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snefy_ldl.active import query
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.plots.active import paired_interval, plot_learning_curves, plot_pool


def test_pictures():
    city = make_city_districts(n=300, random_state=2)
    chance = np.random.default_rng(0)
    curves = {name: chance.random((5, 4)) for name in ("random", "entropy", "coreset")}
    ax = plot_learning_curves([10, 20, 30, 40], curves)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(curves)
    assert len(ax.collections) == 2
    mean, half = paired_interval(curves["entropy"], curves["random"])
    band = ax.collections[0].get_paths()[0].get_extents()
    assert band.y1 == pytest.approx((curves["entropy"].mean(0) + half).max())
    ax = plot_learning_curves([10, 20, 30, 40], curves, difference=True)
    np.testing.assert_allclose(ax.lines[1].get_ydata(), mean)
    assert len(plot_learning_curves([1, 2, 3, 4], {"a": curves["random"][0]}, baseline=None).collections) == 0
    rows, utilities = query("random", city.X, 5, random_state=0, return_utilities=True)
    ax = plot_pool(city.X, utilities, rows, X_labeled=city.X[:9])
    assert len(ax.collections) == 3
    for wrong, message in (
        (lambda: plot_learning_curves([1, 2], curves), "must be"),
        (lambda: plot_learning_curves([10, 20, 30, 40], curves, baseline="best"), "not among"),
        (lambda: plot_learning_curves([10, 20, 30, 40], curves, baseline=None, difference=True), "needs a baseline"),
        (lambda: plot_learning_curves([10, 20, 30, 40], curves | {"x": curves["random"][:2]}), "same repeats"),
        (lambda: paired_interval([1.0], [2.0]), "at least 2"),
        (lambda: plot_pool(city.X, utilities[:4]), "one number per row"),
        (lambda: plot_pool(city.X[:, :1], utilities), "two features"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()
    plt.close("all")
