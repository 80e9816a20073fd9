"""Thresholds that depend on x: against the program written out, exact over the span, stored, with zeros."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from known_models import DirichletModel, KnownModel, NormalDistribution, ZeroModel
from scipy.optimize import linprog

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals, Groups, Splines
from snefy_ldl.conformal.local_thresholds import ConditionalThresholds
from snefy_ldl.conformal.thresholds import Calibration
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import CalibrationWarning, InputError
from snefy_ldl.metrics import coverage


def by_bisection(scores, values, new, level):
    """sup{S: η(S) < level}, η the new row's dual variable in the program of all n + 1 rows, one LP per trial."""
    table = np.vstack([np.column_stack([np.ones(len(values)), values]), np.concatenate([[1.0], new])]).T

    def below(score):
        found = linprog(
            -np.append(scores, score), A_eq=table, b_eq=np.zeros(len(table)), bounds=(level - 1, level), method="highs"
        )
        return found.x[-1] < level - 1e-9

    low, high = -60.0, 60.0
    if below(high):
        return np.inf
    if not below(low):
        return -np.inf
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(12))
def test_against_the_program_written_out(seed):
    """Ties, indicators, rows beyond the calibration rows."""
    rng = np.random.default_rng(seed)
    n, k, level = rng.integers(8, 40), rng.integers(0, 4), rng.choice([0.5, 0.8, 0.9])
    values, new = rng.normal(size=(n, k)), rng.normal(size=(2, k)) * (4.0 if seed % 5 == 0 else 1.0)
    scores = rng.normal(size=n)
    if seed % 3 == 0:
        scores = np.round(scores, 1)
    if seed % 4 == 0 and k:
        values[:, 0], new[:, 0] = values[:, 0] > 0, new[:, 0] > 0
    found = ConditionalThresholds(scores[:, None, None], values, [level]).thresholds(new)
    wanted = [by_bisection(scores, values, row, level) for row in new]
    np.testing.assert_allclose(found[:, 0, 0], wanted, atol=1e-5)


@pytest.mark.parametrize("n", [8, 9, 19, 40, 99])
def test_a_constant_alone_gives_the_usual_ranks(n):
    scores = np.random.default_rng(n).normal(size=(n, 3, 2))
    found = ConditionalThresholds(scores, np.zeros((n, 0)), [0.8, 0.9]).thresholds(np.zeros((2, 0)))
    np.testing.assert_allclose(found[1], Calibration(scores).thresholds([0.8, 0.9], 1)[0], atol=1e-8)


def test_disjoint_groups_are_mondrian():
    rng = np.random.default_rng(1)
    scores, group = rng.normal(size=(60, 2, 1)), rng.integers(0, 3, 60)
    found = ConditionalThresholds(scores, np.eye(3)[group], [0.8]).thresholds(np.eye(4, 3))
    for g in range(3):
        np.testing.assert_allclose(found[g], Calibration(scores[group == g]).thresholds([0.8], 1)[0], atol=1e-8)
    assert np.isposinf(found[3]).all()  # a row outside the span of the calibration rows


def test_infinite_scores_leave_the_others_alone():
    scores = np.arange(1.0, 40.0)
    scores[-2:] = np.inf
    made = ConditionalThresholds(scores[:, None, None], np.zeros((39, 0)), [0.9, 0.99])
    np.testing.assert_allclose(made.thresholds(np.zeros((1, 0)))[0, 0], [36.0, np.inf], atol=1e-6)


@pytest.mark.slow
def test_coverage_holds_over_the_span():
    """E[f(X)(1{covered} - c)] >= 0 for f >= 0 in the span, and not far above.

    400 calibrations of 40 rows whose noise depends on x, 50 new rows each. Tolerance: 4.5 standard errors over
    calibrations, a false alarm about once in 150,000 seeds per check; a constant threshold fails by far.
    """
    rng = np.random.default_rng(2)
    level, n, new, repeats = 0.8, 40, 50, 400
    gaps = {"conditional": [], "constant": []}
    for _ in range(repeats):
        x = rng.uniform(-1.0, 1.0, n + new)
        functions = np.column_stack([x > 0, x])
        scores = np.abs(rng.normal(size=n + new)) * np.exp(1.5 * x)
        made = ConditionalThresholds(scores[:n, None, None], functions[:n], [level])
        span = np.column_stack([np.ones(new), functions[n:], 1.0 + x[n:], 1.0 - x[n:]])
        thresholds = {
            "conditional": made.thresholds(functions[n:]),
            "constant": Calibration(scores[:n, None, None]).thresholds([level], 1),
        }
        for name, threshold in thresholds.items():
            gaps[name].append((span.T * ((scores[n:] <= threshold[:, 0, 0]) - level)).mean(axis=1))
    z = {name: np.mean(v, 0) / (np.std(v, 0, ddof=1) / np.sqrt(repeats)) for name, v in gaps.items()}
    assert z["conditional"][[0, 1, 3, 4]].min() > -4.5  # 1, x > 0, 1 + x and 1 - x are never negative
    assert np.mean(gaps["conditional"], axis=0)[0] < 4 / (n + 1) + 0.01  # and not far above: dimension / (n + 1)
    assert np.abs(z["constant"]).max() > 9.0


class Noisy:
    """The spread that it predicts is the same everywhere; the noise is not."""

    def predict_dist(self, X):
        return NormalDistribution(np.full((len(X), 2), 0.5), 0.05)

    @staticmethod
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.uniform(0.0, 1.0, n)
        first = np.clip(0.5 + (0.01 + 0.1 * x) * rng.normal(size=n), 0.0, 1.0)
        return pd.DataFrame({"x": x, "kind": np.where(x > 0.8, "rim", "core")}), np.column_stack([first, 1 - first])


@pytest.mark.slow
@pytest.mark.parametrize(
    "conditional_on",
    [
        "x",
        ["x"],
        Groups("kind"),
        Splines("x"),
        [Splines("x", 3), Groups("kind")],
    ],
)
def test_the_rim_is_covered(conditional_on):
    """Coverage among the fifth of rows with the most noise, 2,000 calibration rows: 0.9 within 5 binomial errors."""
    X, D = Noisy.draw(4000, seed=3)
    rim = (X["kind"] == "rim").to_numpy()[2000:]
    plain = ConformalIntervals(Noisy(), 0.9, "chebyshev").conformalize(X[:2000], D[:2000])
    made = ConformalIntervals(Noisy(), 0.9, "chebyshev", conditional_on=conditional_on).conformalize(X[:2000], D[:2000])
    assert coverage(D[2000:][rim], plain.predict_interval(X[2000:])[rim]) < 0.8
    found = coverage(D[2000:][rim], made.predict_interval(X[2000:])[rim])
    assert abs(found - 0.9) < 5 * np.sqrt(0.09 / rim.sum()) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("basis", [1, [Splines(0), 1]])
def test_models_bases_and_files(basis):
    city = make_city_districts(n=300, random_state=0)
    model = SnefyLDL(n_neurons=8, n_readouts=4, epochs=2, guides=None, random_state=0).fit(city.X[:100], city.D[:100])
    ci = ConformalIntervals(model, [0.5, 0.8], conditional_on=basis).conformalize(city.X[100:], city.D[100:])
    again = ConformalIntervals.from_dict(model, json.loads(json.dumps(ci.to_dict())))
    ends = ci.predict_interval(city.X[:50])
    np.testing.assert_array_equal(again.predict_interval(city.X[:50]), ends)
    assert (ends[:, :, 0] <= ends[:, :, 1]).all()


def test_all_labels_at_once_and_zeros():
    for model in (KnownModel(), DirichletModel()):
        X, D = model.draw(300, seed=6)
        ci = ConformalIntervals(model, 0.8, "chebyshev", simultaneous=True, conditional_on=0)
        ends = ci.conformalize(X[:200], D[:200]).predict_interval(X[200:])
        inside = ((ends[..., 0] <= D[200:]) & (D[200:] <= ends[..., 1])).all(axis=1)
        assert inside.mean() > 0.8 - 4.5 * np.sqrt(0.16 / 100 + 0.16 / 200)
    zero = ConformalIntervals(ZeroModel(), 0.8, conditional_on=0)
    X, D = ZeroModel().draw(200, seed=7)
    assert (zero.conformalize(X, D).predict_interval(X)[..., 0] == 0.0).any()


@pytest.mark.slow
def test_unlike_rows_and_wrong_settings_are_named():
    X, D = Noisy.draw(200, seed=8)
    ci = ConformalIntervals(Noisy(), conditional_on=Groups("kind")).conformalize(X, D)
    new = X[:3].assign(kind=["core", "sea", "rim"])
    with pytest.warns(CalibrationWarning, match=r"1 of 3 rows get the interval \[0, 1\].*row 1"):
        ends = ci.predict_interval(new)
    np.testing.assert_array_equal(ends[1], [[0.0, 1.0], [0.0, 1.0]])
    for settings, rows, message in (
        ({"conditional_on": "y"}, {}, "no column 'y'"),
        ({"conditional_on": "kind"}, {}, "Groups"),
        ({"conditional_on": "x"}, {"groups": X["kind"]}, "takes the place of groups"),
        ({"conditional_on": 3.5}, {}, "conditional_on=3.5"),
    ):
        with pytest.raises(InputError, match=message):
            ConformalIntervals(Noisy(), **settings).conformalize(X, D, **rows)
    with pytest.raises(InputError, match="60 at least"):
        ConformalIntervals(Noisy(), conditional_on=Splines("x")).conformalize(X[:40], D[:40])
