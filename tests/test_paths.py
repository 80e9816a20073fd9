"""How many of our modules a fit and a prediction enter, and how often rows are checked and the network runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import snefy_ldl
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.reports import evaluate
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.datasets import make_city_districts

HOME = Path(snefy_ldl.__file__).parent
CITY = make_city_districts(n=300, random_state=0)
X, D = CITY.X[:200], CITY.D[:200]
NEW_X, NEW_D = CITY.X[200:], CITY.D[200:]
#: The most modules that each path may enter.
MOST = {"fit": 22, "predict": 8, "predict_interval": 10, "conformal prediction": 12}


def fit() -> SnefyLDL:
    return SnefyLDL(epochs=1, n_neurons=8, n_readouts=4, guides=None, random_state=0).fit(X, D)


@pytest.fixture(scope="module")
def calls() -> dict[str, Callable[[], Any]]:
    model = fit()
    intervals, region = ConformalIntervals(model).conformalize(NEW_X, NEW_D), ConformalRegion(model)
    return {
        "fit": fit,
        "predict": lambda: model.predict(X),
        "predict_interval": lambda: model.predict_interval(X),
        "predict_dist": lambda: model.predict_dist(X),
        "log_prob": lambda: model.log_prob(X, D),
        "conformal prediction": lambda: intervals.predict_interval(X),
        "conformalize": lambda: ConformalIntervals(model).conformalize(NEW_X, NEW_D),
        "conformalize a region": lambda: region.conformalize(NEW_X, NEW_D),
        "evaluate": lambda: evaluate(model, NEW_X, NEW_D),
    }


def functions_entered(call: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Module and name of our functions that run during a call, in order, and how often."""
    entered: Counter[tuple[str, str]] = Counter()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(HOME)):
            entered[str(Path(frame.f_code.co_filename).relative_to(HOME)), frame.f_code.co_name] += 1

    call()  # imports and caches are not part of the path
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


@pytest.mark.parametrize("path", MOST)
def test_a_path_enters_few_modules(calls: dict[str, Callable[[], Any]], path: str) -> None:
    modules = list(dict.fromkeys(module for module, _ in functions_entered(calls[path])))
    print(f"{path}: {len(modules)} modules\n  " + "\n  ".join(modules))
    assert len(modules) <= MOST[path], modules


#: Calls that also compare the rows with those that trained the model.
LOOKING = ("conformalize", "conformalize a region", "evaluate")


@pytest.mark.parametrize(
    "path", [*LOOKING, "predict", "predict_interval", "predict_dist", "log_prob", "conformal prediction"]
)
def test_rows_are_checked_once_and_the_network_runs_once(calls: dict[str, Callable[[], Any]], path: str) -> None:
    entered = functions_entered(calls[path])
    assert entered["networks/net.py", "forward"] == 1
    assert entered["_internal/validation.py", "check_features"] == 1 + (path in LOOKING)
