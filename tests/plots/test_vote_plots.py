"""Pictures of votes hold the data they were given."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.plots.votes import plot_calibration, plot_update
from snefy_ldl.votes import calibrate_counts


def test_pictures_draw(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(3, batch=(2,))
    counts = np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    after = law.posterior(torch.as_tensor(counts))
    ax = plot_update(law, after, 0, labels=["a", "b", "c"], counts=counts)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b", "c"]
    dots = {line.get_color(): [] for line in ax.lines}
    for line in ax.lines:
        if line.get_marker() == "o":
            dots[line.get_color()].append(line.get_xdata()[0])
    np.testing.assert_allclose([means for means in dots.values() if means], [law.mean[0], after.mean[0]], atol=1e-9)
    bars = [line.get_xdata() for line in ax.lines if line.get_linewidth() == 3]
    wanted = [one.quantiles([0.05, 0.95])[0] for one in (law, after)]
    np.testing.assert_allclose(bars, np.concatenate(wanted), atol=1e-6)
    with pytest.raises(InputError, match="row 7 is not there"):
        plot_update(law, after, 7)
    with pytest.raises(InputError, match="3 names"):
        plot_update(law, after, labels=["a"])
    assert len(plot_calibration(calibrate_counts(law, [[1, 1, 0], [0, 2, 1]])).patches) == 10
    plt.close("all")
