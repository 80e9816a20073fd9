"""Pictures of what moves a prediction: what is drawn, not pixels."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.explain import Dependence, Effect, Effects
from snefy_ldl.plots import dependence_lines, dependence_map, effect_intervals, ternary_path


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


MIX = np.array([[0.6, 0.3, 0.1], [0.4, 0.3, 0.3], [0.2, 0.3, 0.5]])
LABELS = ["sand", "silt", "clay"]


def test_lines_and_levels() -> None:
    band = np.stack([MIX - 0.05, MIX + 0.05], -1)
    ax = dependence_lines(MIX, [0, 1, 2], labels=LABELS, feature="rain", bands={"members": band, "law": band})
    drawn = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(drawn["clay"].get_ydata(), MIX[:, 2])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*LABELS, "what varies", "what we do not know"]
    ax = dependence_lines(MIX, ["lime", "chalk", "marl"], labels=LABELS, numeric=False, bands={"members": band})
    assert [text.get_text() for text in ax.get_xticklabels()] == ["lime", "chalk", "marl"]
    with pytest.raises(InputError, match="G = 2"):
        dependence_lines(MIX, [0, 1])


def test_map_effects_and_way() -> None:
    ax = dependence_map(MIX, [["a", "b", "c"], [0, 1, 2]], features=("rock", "rain"), numeric=(False, True))
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()).reshape(3, 3), MIX.T)
    ax = effect_intervals([[0.1, 0.05, 0.2], [-0.1, -0.2, 0.0]], [("rain +1", "sand"), ("rain +1", "clay")])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rain +1   sand", "clay"]
    ax = ternary_path(MIX, [0, 5, 10], labels=LABELS, feature="rain", rows=MIX[None])
    texts = [text.get_text() for text in ax.texts]
    assert {"0", "10", *LABELS} <= set(texts)
    assert texts.count("") >= 2  # arrows
    with pytest.raises(InputError, match=r"\(G, 3\)"):
        ternary_path(MIX[:, :2], [0, 1, 2])


def test_objects_draw_themselves() -> None:
    one = Dependence(("rain",), ([0.0, 1.0, 2.0],), LABELS, "mean share", MIX)
    assert one.plot(labels=["clay"]).get_lines()[0].get_ydata().tolist() == MIX[:, 2].tolist()
    assert one.plot(kind="ternary").get_title() == "mean mix along rain"
    with pytest.raises(InputError, match="does not go"):
        one.plot(kind="map")
    with pytest.raises(InputError, match="three labels"):
        one.plot(kind="ternary", labels=["sand"])
    with pytest.raises(InputError, match="no label"):
        one.plot(labels=["gravel"])
    slopes = Effects([Effect("rain", "dY/dX", "sand", 0.1, 0.1, 0.0, 0.2)], "mean share", "members", 0.9, 5, True, {})
    assert slopes.plot(slopes=True).get_xlabel() == "change of mean share"
    with pytest.raises(InputError, match="no steps"):
        slopes.plot()
