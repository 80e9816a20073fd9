"""Average effects: by hand on toy models, and against the exact distribution of synthetic data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import softmax

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl._internal.rows import count_rows
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.explain import effects
from snefy_ldl.explain.regression import Design

CITY = make_city_districts(n=1500, random_state=0)


class Truth:
    """The distribution that the data were drawn from, as a model."""

    label_names_ = CITY.label_names

    def predict(self, X: Any) -> np.ndarray:
        return CITY.truth.mean(X)


class Shop:
    """Shares that a table of two columns gives by hand: sales by colour, and by a price in a straight line."""

    label_names_ = ("buy", "leave")
    by_colour = {"red": 0.5, "blue": 0.3, "green": 0.1}  # noqa: RUF012 - a plain table

    def predict(self, X: Any) -> np.ndarray:
        buy = X["colour"].astype(object).map(self.by_colour).to_numpy(float) - 0.01 * X["price"].to_numpy(float)
        return np.stack([buy, 1 - buy], 1)


def shop() -> pd.DataFrame:
    return pd.DataFrame({"colour": ["blue", "red", "blue", "green"], "price": [1, 2, 3, 4], "new": [True] * 4})


def test_contrasts_by_hand() -> None:
    frame = effects(Shop(), shop(), "colour").frame
    assert list(frame.columns) == ["term", "contrast", "label", "estimate"]  # no labels, no interval
    assert frame["contrast"].tolist() == ["green - blue", "green - blue", "red - blue", "red - blue"]
    np.testing.assert_allclose(frame["estimate"], [-0.2, 0.2, 0.2, -0.2], rtol=1e-12)
    other = effects(Shop(), shop(), "colour", reference="red").frame
    assert other["contrast"].tolist()[::2] == ["blue - red", "green - red"]
    np.testing.assert_allclose(other["estimate"][::2], [-0.2, -0.4], rtol=1e-12)
    ordered = shop().assign(colour=pd.Categorical(shop()["colour"], categories=["red", "green", "blue"]))
    assert effects(Shop(), ordered, "colour").frame["contrast"].tolist()[::2] == ["green - red", "blue - red"]


def test_a_straight_line_by_hand() -> None:
    table = effects(Shop(), shop(), "price", step=10)
    np.testing.assert_allclose(table.frame["estimate"], [-0.1, 0.1], rtol=1e-9)
    assert table.sentences()[0] == "price +10: buy -10.0 points"
    assert table.notes == ("price: the step takes 100% of the rows beyond the values that any row has",)
    assert table.notes[0] in str(table)
    assert "<table" in table._repr_html_()


def test_rows_without_the_number_are_left_out() -> None:
    class Square:
        def predict(self, X: Any) -> np.ndarray:
            buy = np.nan_to_num(X[:, 0]) ** 2 / 100
            return np.stack([buy, 1 - buy], 1)

    frame = effects(Square(), np.array([[1.0], [np.nan], [3.0]]), 0, step=1).frame
    np.testing.assert_allclose(frame["estimate"].iloc[0], ((4 - 1) + (16 - 9)) / 200, rtol=1e-12)


def test_truth_of_synthetic_data() -> None:
    """A step's effect is the average of the exact mean's differences."""
    exact = Truth()
    for number in range(5):
        deviation = CITY.X[:, number].std()
        step = CITY.X.copy()
        step[:, number] += 0.5 * deviation
        moved = (exact.predict(step) - exact.predict(CITY.X)).mean(0)
        frame = effects(exact, CITY.X, number, step=0.5 * deviation).frame
        np.testing.assert_allclose(frame["estimate"], moved, atol=1e-12)


class Known:
    """Log-ratios that are curves and products of correlated columns, with normal noise: every effect is known."""

    def __init__(self) -> None:
        self.noise = 0.6 * np.random.default_rng(99).normal(size=(200, 3))

    def scores(self, X: Any) -> np.ndarray:
        a, b, c = X[:, 0], X[:, 1] / 10 - 5, X[:, 2]
        return np.stack([0.8 * np.tanh(a) - 0.2 * b * (a > 0), 0.3 * b + 0.2 * b**2, 0.5 * c * np.tanh(a)], 1)

    def predict(self, X: Any) -> np.ndarray:
        return softmax(self.scores(X)[:, None] + self.noise, axis=-1).mean(1)

    def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        a = rng.normal(size=n)
        X = np.column_stack([a, 50 + 4 * a + 10 * rng.normal(size=n), rng.random(n) < 0.4]).astype(float)
        return X, softmax(self.scores(X) + 0.6 * rng.normal(size=(n, 3)), axis=-1)


@pytest.mark.slow
def test_intervals_contain_the_known_effects_as_often_as_they_state() -> None:
    """40 tables: 90 % within .03 and 4.5 standard errors (benchmarks/effects.py has more tables and kinds of truth)."""
    truth, found = Known(), []
    for seed in range(40):
        X, D = truth.draw(60, seed)
        table = effects(truth, X, None, D, max_rows=100).entries  # the estimate is the true effect
        found.append(np.mean([not one.is_outside for one in table]))
    assert abs(np.mean(found) - 0.9) < 0.03 + 4.5 * np.std(found, ddof=1) / np.sqrt(40)


@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_against_matrices_written_out(grouped: bool) -> None:
    """Bell and McCaffrey's formulas with N by N matrices; with equal variances they are close to least squares."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(120, 1))
    groups = rng.permutation(np.arange(120) // 7) if grouped else np.arange(120)
    share = np.clip(0.5 + 0.05 * x + 0.05 * rng.normal(size=(120, 1)), 0.01, 0.99)
    table = effects(Truthless(), x, 0, np.hstack([share, 1 - share]), step=0.5, groups=groups if grouped else None)
    one = table.entries[0]
    assert one.regression == pytest.approx(0.5 * np.polyfit(x[:, 0], share[:, 0], 1)[0], abs=0.01)
    F = Design.fit(x).of(x)
    change = (Design.fit(x).of(x + 0.5) - F).mean(0)
    bread = np.linalg.inv(F.T @ F + np.diag([0.0] + [1e-2] * (F.shape[1] - 1)))
    left = np.eye(120) - F @ bread @ F.T
    residual, variance, columns = left @ share[:, 0], 0.0, []
    for group in np.unique(groups):
        here = groups == group
        value, vector = np.linalg.eigh(left[np.ix_(here, here)])
        weights = vector @ np.diag(value**-0.5) @ vector.T @ F[here] @ bread @ change
        variance += (weights @ residual[here]) ** 2
        columns.append(left[:, here] @ weights)
    M = np.array(columns) @ np.transpose(columns)
    reach = stats.t.ppf(0.95, np.trace(M) ** 2 / (M**2).sum()) * np.sqrt(variance)
    assert one.conf_high - one.regression == pytest.approx(reach, rel=0.02)  # the ridge makes I - H no exact projection
    if not grouped:
        assert variance == pytest.approx(change @ bread @ change * (residual**2).sum() / (120 - F.shape[1]), rel=0.3)
    larger = effects(Truthless(), x, 0, np.hstack([share, 1 - share]), of=("greater", 0, 1), step=0.5).entries[0]
    assert larger.conf_low < 0.5 * np.polyfit(x[:, 0], share[:, 0] > 0.5, 1)[0] < larger.conf_high


class Truthless:
    """The same distribution for all rows."""

    def predict_dist(self, X: Any) -> torch.distributions.Distribution:
        return SnefySimplex.from_mixture(torch.ones(count_rows(X), 1).double(), torch.ones(1, 2).double())


def test_groups_widen_intervals_and_few_rows_have_none() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(20), 15)
    x = rng.normal(size=20)[groups][:, None]
    share = np.clip(0.5 + 0.1 * rng.normal(size=20)[groups] + 0.02 * rng.normal(size=300), 0.01, 0.99)
    D = np.column_stack([share, 1 - share])
    alone, whole = (effects(Truthless(), x, 0, D, step=1.0, groups=g).entries[0] for g in (None, groups))
    assert whole.conf_high - whole.conf_low > 2.0 * (alone.conf_high - alone.conf_low)
    many = effects(Truthless(), rng.normal(size=(20, 12)), 0, D[:20], step=1.0)
    assert np.isnan(many.entries[0].conf_low)
    assert many.notes[-1] == "no intervals: the rows are too few for so many columns"


def test_levels_of_few_rows_and_levels_that_the_model_never_saw_are_named() -> None:
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"rock": ["lime"] * 40 + ["clay"] * 30 + ["peat"] * 3, "rain": rng.normal(size=73)})
    D = rng.dirichlet([3.0, 2.0], 73)
    model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(table[:70], D[:70])
    found = effects(model, table, "rock", D)
    by = {entry.contrast: entry for entry in found.entries[::2]}
    assert np.isfinite(by["clay - lime"].conf_low)
    assert np.isnan(by["peat - lime"].conf_low)
    assert found.notes == (
        "rock: the model has not seen peat; it predicts an average there",
        "rock: no interval for peat (5 rows at least)",
    )


@pytest.mark.slow
def test_members_by_hand() -> None:
    X = CITY.X[:80]
    model = SnefyLDL(n_members=3, epochs=3, random_state=0).fit(X, CITY.D[:80])
    table = effects(model, X, 3, step=2)
    moved = X.copy()
    moved[:, 3] += 2
    pairs = zip(model.predict_dist(moved).members(), model.predict_dist(X).members())
    each = np.stack([(after.mean - before.mean).numpy().mean(0) for after, before in pairs])
    np.testing.assert_allclose(table.frame["members_sd"], each.std(0, ddof=1), rtol=1e-4)
    assert "conf_low" not in table.frame
    greater = effects(model, X, 3, step=2, of=("greater", 0, 1)).frame
    change = model.predict_dist(moved).prob_greater(0, 1) - model.predict_dist(X).prob_greater(0, 1)
    np.testing.assert_allclose(greater["estimate"].iloc[0], float(change.mean()), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"feature": "size"}, "no column 'size'"),
        ({"feature": "price", "step": 0}, "nothing would change"),
        ({"feature": "price", "step": "ten"}, "must be a number"),
        ({"feature": "colour", "reference": "pink"}, "no level 'pink'"),
        ({"feature": "new"}, "one level alone"),
        ({"feature": "price", "D": np.full((3, 2), 0.5)}, "same number of rows"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        effects(Shop(), shop(), **settings)
