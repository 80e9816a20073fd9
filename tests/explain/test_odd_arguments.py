"""Arguments of the wrong kind get one clear error from every function that explains, draws or judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch

matplotlib.use("Agg")

from snefy_ldl import SnefyLDL, metrics, plots
from snefy_ldl.active import Pool, query, will_it_help
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.explain import dependence, effects, permutation_importance

CITY = make_city_districts(n=60, random_state=0)
X, D = CITY.X, CITY.D
ENDS = np.tile([0.1, 0.9], (60, 3, 1))
TEXT = np.array([["a", "b", "c", "d", "e"]] * 60)
COMPLEX, POINT = X + 1j, torch.tensor(1.0)

#: Calls with a fitted model (m) or its distributions (d), by name.
ODD: dict[str, Callable[[Any, Any], Any]] = {
    **{f"dependence {k}": lambda m, d, rows=rows: dependence(m, rows, 0) for k, rows in enumerate((TEXT, COMPLEX, 3))},
    "a grid of text": lambda m, d: dependence(m, X, 0, grid="abc"),
    "no grid": lambda m, d: dependence(m, X, 0, grid=None),
    "effects of text": lambda m, d: effects(m, TEXT, 0, D),
    "too few groups": lambda m, d: effects(m, X, 0, D, groups=[1, 2]),
    "a complex step": lambda m, d: effects(m, X, 0, D, step=1j),
    **{
        f"importance {k}": lambda m, d, rows=rows: permutation_importance(m, rows, D)
        for k, rows in enumerate((TEXT, COMPLEX, POINT, X[:, 0], None))
    },
    "ragged groups": lambda m, d: calibrate(m, groups=[[1], [1, 2]]),
    "no labels": lambda m, d: ConformalIntervals(m).conformalize(X, None),
    "half a calibration": lambda m, d: ConformalIntervals.from_dict(m, {"kind": "intervals", "calibration": {}}),
    "text as a seed": lambda m, d: ConformalRegion(m, random_state="a"),  # type: ignore[arg-type]
    "a pool of text": lambda m, d: query("entropy", TEXT, 2, model=m),
    "a pool without rows": lambda m, d: list(Pool(POINT).blocks()),
    "rows left out by halves": lambda m, d: query("auto", X, 2, model=m, exclude=[1.5]),
    "no labelled rows": lambda m, d: will_it_help(m, X, None),
    "text as shares": lambda m, d: metrics.chebyshev("a", D),
    "text as intervals": lambda m, d: metrics.coverage(D, "a"),
    "no draws": lambda m, d: metrics.energy_score(None, None),
    "text as false alarms": lambda m, d: metrics.joint_calibration_test(X[:, :2] % 1, false_alarm="a"),  # type: ignore[arg-type]
    "no rows": lambda m, d: metrics.joint_pit(m, None, D),
    "no levels": lambda m, d: metrics.reliability(None),
    "a row of text": lambda m, d: plots.ternary_density(d, row="a"),  # type: ignore[arg-type]
    "half a row": lambda m, d: plots.marginal_density(d, 0, row=1.5),  # type: ignore[arg-type]
    "truth of text": lambda m, d: plots.ternary_density(d, truth="abc"),
    "a label out of range": lambda m, d: plots.share_ridges(d, which=[99]),
    "a label of text": lambda m, d: plots.share_ridges(d, which=["a"]),  # type: ignore[list-item]
    "one true share": lambda m, d: plots.share_ridges(d, truth=[0.1]),
    "pit of text": lambda m, d: plots.calibration("a"),
    "levels of text": lambda m, d: plots.calibration_curve("a", [0.5]),
    "intervals of text": lambda m, d: plots.intervals("a"),
    "rows of text": lambda m, d: plots.intervals(ENDS, rows=["a"]),  # type: ignore[list-item]
    "bars of text": lambda m, d: plots.label_bars("a"),
    "a number as names": lambda m, d: plots.label_bars(D[:3], labels=3),  # type: ignore[arg-type]
}


def calibrate(model: Any, **options: Any) -> Any:
    return ConformalIntervals(model).conformalize(X, D, **options)


@pytest.fixture(scope="module")
def model() -> SnefyLDL:
    train = make_city_districts(n=60, random_state=1)
    return SnefyLDL(epochs=1, guides=None, n_members=1, random_state=0).fit(train.X, train.D)


@pytest.mark.parametrize("name", ODD)
def test_odd_arguments_are_named(model: SnefyLDL, name: str) -> None:
    with pytest.raises(InputError):
        ODD[name](model, model.predict_dist(X[:5]))


def test_intervals_of_a_frame_become_a_frame(model: SnefyLDL) -> None:
    rows = pd.DataFrame(X[:4], columns=list("abcde"), index=list("wxyz"))
    fitted = SnefyLDL(epochs=1, guides=None, random_state=0).fit(
        pd.DataFrame(X, columns=list("abcde")), pd.DataFrame(D, columns=["work", "play", "learn"])
    )
    ends = fitted.predict_interval(rows)
    frame = ends.to_frame()
    assert frame.index.tolist() == list("wxyz")
    np.testing.assert_array_equal(frame["play", "upper"], ends[:, 1, 1])
    assert isinstance(fitted.predict(rows), pd.DataFrame)
    several = ConformalIntervals(model, [0.5, 0.8]).conformalize(X, D).predict_interval(X[:2])
    np.testing.assert_array_equal(several.to_frame()["label_2", "lower", 0.8], several[:, 2, 0, 1])
    with pytest.raises(ValueError, match="parts of intervals"):
        ends[..., 0].to_frame()


def test_levels_may_be_numbers_of_any_kind(model: SnefyLDL) -> None:
    for level, shape in (
        (torch.tensor(0.9), (2, 3, 2)),
        (np.array(0.9), (2, 3, 2)),
        (torch.tensor([0.5]), (2, 3, 2, 1)),
    ):
        assert ConformalIntervals(model, level).conformalize(X, D).predict_interval(X[:2]).shape == shape
