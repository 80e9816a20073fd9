"""How many of our modules a fit and a prediction enter: a reader of one path should not need the whole library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import snefy_ldl
from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts

HOME = Path(snefy_ldl.__file__).parent
#: The most modules that each path may enter.
MOST = {"fit": 22, "predict": 12, "predict_interval": 13, "conformal prediction": 16}


def modules_entered(call: Callable[[], Any]) -> list[str]:
    """Our modules whose functions run during a call, in the order in which they are entered."""
    entered: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.setdefault(frame.f_code.co_filename)

    call()  # imports and caches are not part of the path
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return [str(Path(name).relative_to(HOME)) for name in entered if name.startswith(str(HOME))]


@pytest.fixture(scope="module")
def paths() -> dict[str, Callable[[], Any]]:
    city = make_city_districts(n=300, random_state=0)
    X, D = city.X[:200], city.D[:200]

    def fitted() -> SnefyLDL:
        return SnefyLDL(epochs=1, n_neurons=8, n_readouts=4, guides=None, random_state=0).fit(X, D)

    model = fitted()
    calibrated = ConformalIntervals(model).conformalize(city.X[200:], city.D[200:])
    return {
        "fit": fitted,
        "predict": lambda: model.predict(X),
        "predict_interval": lambda: model.predict_interval(X),
        "conformal prediction": lambda: calibrated.predict_interval(X),
    }


@pytest.mark.parametrize("path", MOST)
def test_a_path_enters_few_modules(paths: dict[str, Callable[[], Any]], path: str) -> None:
    entered = modules_entered(paths[path])
    print(f"{path}: {len(entered)} modules\n  " + "\n  ".join(entered))
    assert len(entered) <= MOST[path], entered
