"""The picture of a pool holds the rows it was given."""

from __future__ import annotations

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snefy_ldl.active import query
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.plots.active import plot_pool


def test_pictures():
    city = make_city_districts(n=300, random_state=2)
    rows, utilities = query("random", city.X, 5, random_state=0, return_utilities=True)
    ax = plot_pool(city.X, utilities, rows, X_labeled=city.X[:9])
    assert len(ax.collections) == 3
    with pytest.raises(InputError, match="one number per row"):
        plot_pool(city.X, utilities[:4])
    with pytest.raises(InputError, match="two features"):
        plot_pool(city.X[:, :1], utilities)
    plt.close("all")
