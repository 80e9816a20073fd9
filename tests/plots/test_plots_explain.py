"""Pictures of what moves a prediction: what is drawn, not pixels."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.explain.dependence import Dependence
from snefy_ldl.explain.effects import Effect, Effects


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


MIX = np.array([[0.6, 0.3, 0.1], [0.4, 0.3, 0.3], [0.2, 0.3, 0.5]])
LABELS = ["sand", "silt", "clay"]


def test_lines_and_levels() -> None:
    band = np.stack([MIX - 0.05, MIX + 0.05], -1)
    curve = Dependence(("rain",), ([0, 1, 2],), LABELS, "mean share", MIX, {"members": band, "distribution": band})
    ax = curve.plot()
    drawn = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(drawn["clay"].get_ydata(), MIX[:, 2])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*LABELS, "members disagree"]
    legend = curve.plot(labels="sand").get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["sand", "variation of labels", "members disagree"]
    levels = (["lime", "chalk", "marl"],)
    ax = Dependence(("rock",), levels, LABELS, "mean share", MIX, {"members": band}, numeric=(False,)).plot()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["lime", "chalk", "marl"]


def test_map_and_effects() -> None:
    grids = (["a", "b", "c"], [0, 1, 2])
    ax = Dependence(("rock", "rain"), grids, ["sand"], "mean share", MIX[..., None], numeric=(False, True)).plot()
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()).reshape(3, 3), MIX.T)
    both = [Effect("rain", "+1", "sand", 0.1, 0.1, 0.1, 0.05, 0.2), Effect("rain", "+1", "clay", -0.1)]
    ax = Effects(both, "mean share", 0.9, 5, True).plot()
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rain +1   sand", "clay"]


def test_objects_draw_themselves() -> None:
    one = Dependence(("rain",), ([0.0, 1.0, 2.0],), LABELS, "mean share", MIX)
    assert one.plot(labels=["clay"]).get_lines()[0].get_ydata().tolist() == MIX[:, 2].tolist()
    with pytest.raises(InputError, match="no label"):
        one.plot(labels=["gravel"])
