"""A metric, a score, a strategy and a learner, each written as the pages show it, in at most ten lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snefy_ldl import SnefyLDL, compare, load
from snefy_ldl.active import query
from snefy_ldl.active.strategy import STRATEGIES
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion, RegionScore
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import ModelFileError
from snefy_ldl.learners import AAKNN, SABFGS, check_learner
from snefy_ldl.learners.learner import REGISTRY, Learner

DOCS = Path(__file__).parent.parent / "docs"
CITY = make_city_districts(n=150, random_state=0)


def of_page(page: str, name: str) -> Any:
    """A function or class of a page, with the imports of the page."""
    text = "\n".join(re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL))
    body = re.search(rf"^(?:def|class) {name}\b.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)
    assert body is not None, f"{page} has no {name}"
    assert sum(bool(line.strip()) for line in body[0].splitlines()) <= 10, "an extension is at most ten lines"
    imports = re.findall(r"^(?:from \S+ )?import (?:\([^)]*\)|.*)$", text, re.MULTILINE)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    exec("\n".join([*imports, body[0]]), namespace)
    return namespace[name]


@pytest.fixture(scope="module")
def model() -> SnefyLDL:
    return SnefyLDL(epochs=3, guides=None, random_state=0).fit(CITY.X[:60], CITY.D[:60])


def test_a_metric() -> None:
    metric = of_page("architecture.md", "same_largest")
    learners, half = {"linear": SABFGS()}, np.arange(150) < 75
    folds = [(np.flatnonzero(half), np.flatnonzero(~half)), (np.flatnonzero(~half), np.flatnonzero(half))]
    right = np.mean([metric(CITY.D[b], SABFGS().fit(CITY.X[a], CITY.D[a]).predict(CITY.X[b])).mean() for a, b in folds])
    for higher, arrow in [(False, "↓"), (True, "↑")]:
        metric.higher_is_better = higher
        result = compare(learners, CITY.X, CITY.D, cv=folds, measures=[metric])
        assert f"same largest {arrow}" in result.to_markdown()
        np.testing.assert_allclose(result.mean("same_largest").item(), right)


def test_a_score(model: SnefyLDL) -> None:
    score = of_page("conformal.md", "MeanDistance")
    cal, test = slice(60, 110), slice(110, 150)
    mine = ConformalIntervals(model, 0.9, method=score).conformalize(CITY.X[cal], CITY.D[cal])
    plain = ConformalIntervals(model, 0.9, method="absolute").conformalize(CITY.X[cal], CITY.D[cal])
    np.testing.assert_allclose(mine.predict_interval(CITY.X[test]), plain.predict_interval(CITY.X[test]), atol=1e-6)


def test_a_score_of_regions(model: SnefyLDL) -> None:
    class Ball(RegionScore):
        name = "ball"

        def bind(self, dist: Any, n_draws: int, seeds: Any) -> None:
            self.mean = dist.mean.numpy()

        def score(self, points: Any) -> Any:
            return np.abs(points - self.mean).sum(axis=-1)

    region = ConformalRegion(model, 0.9, method="ball").conformalize(CITY.X[60:110], CITY.D[60:110])
    distances = np.abs(CITY.D[60:] - model.predict(CITY.X[60:])).sum(axis=1)
    largest = np.sort(distances[:50])[int(np.ceil(51 * 0.9)) - 1]
    np.testing.assert_array_equal(region.contains(CITY.X[110:], CITY.D[110:]), distances[50:] <= largest)


def test_a_strategy(model: SnefyLDL, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("far_out", "variance"):  # what the pages define is gone after the test
        monkeypatch.setitem(STRATEGIES, name, None)
        del STRATEGIES[name]
    of_page("architecture.md", "FarOut")
    np.testing.assert_array_equal(query("far_out", CITY.X, 10), np.argsort(-np.abs(CITY.X).sum(axis=1))[:10])
    of_page("active.md", "Variance")
    spread = model.predict_var(CITY.X).sum(axis=1)
    np.testing.assert_array_equal(query("variance", CITY.X, 5, model=model), np.argsort(-spread, kind="stable")[:5])


def test_a_learner(tmp_path: Path) -> None:
    shrunk = of_page("tutorials/research.md", "Shrunk")
    check_learner(shrunk())
    fitted = shrunk(pull=0.5).fit(CITY.X, CITY.D)
    expected = 0.5 * CITY.D.mean(axis=0) + 0.5 * AAKNN().fit(CITY.X, CITY.D).predict(CITY.X)
    np.testing.assert_allclose(fitted.predict(CITY.X), expected, atol=1e-6)
    np.testing.assert_array_equal(load(fitted.save(tmp_path / "mine")).predict(CITY.X), fitted.predict(CITY.X))
    del REGISTRY["own.Shrunk"]  # as in a process that does not define the class
    with pytest.raises(ModelFileError, match="define or import"):
        load(tmp_path / "mine")


def test_a_learner_never_takes_the_place_of_one_of_ours(tmp_path: Path) -> None:
    class AAKNN(Learner):
        def _fit(self, X: Any, D: Any, random: Any) -> None:
            self.mean_ = D.mean(axis=0)

        def _predict(self, X: Any) -> Any:
            return np.tile(self.mean_, (len(X), 1))

    fitted = AAKNN().fit(CITY.X, CITY.D)
    again = load(fitted.save(tmp_path / "mine"))
    assert type(again) is AAKNN
    assert REGISTRY["AAKNN"] is not AAKNN
    np.testing.assert_allclose(again.predict(CITY.X[:2]), fitted.predict(CITY.X[:2]))


def test_what_the_architecture_page_finds_is_there() -> None:
    table = (DOCS / "architecture.md").read_text("utf-8").split("## Where is ...?")[1].split("##")[0]
    places = re.findall(r"((?:`\w+`,? ?)+)in \[[^]]*\]\(\.\./(\S+)\)", table)
    assert len(places) > 10
    for names, path in places:
        defined = {*re.findall(r"^ *(?:class|def) (\w+)", (DOCS.parent / path).read_text("utf-8"), re.MULTILINE)}
        assert set(re.findall(r"`(\w+)`", names)) <= defined, path
