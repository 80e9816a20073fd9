"""LogRatioLDL with parts below a limit, in classes, or zero for either reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import helmert

from snefy_ldl import AutoLDL, GroupedLDL, SnefyLDL, load
from snefy_ldl.errors import InputError
from snefy_ldl.logratio import LogRatioLDL, read_zeros

QUICK = {"n_trees": 10, "max_iter": 20, "n_members": 2, "random_state": 0}


def make_table(n: int, seed: int) -> tuple[Any, Any]:
    """Percentages of four parts whose log-ratios depend on two features."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 2))
    mean = X @ np.array([[0.6, -0.4, 0.2], [0.1, 0.5, -0.5]])
    noise = random.normal(size=(n, 3)) @ np.array([[0.5, 0.2, 0.0], [0.0, 0.4, 0.1], [0.0, 0.0, 0.4]])
    amounts = np.exp((mean + noise) @ helmert(4))
    return X, 100.0 * amounts / amounts.sum(1, keepdims=True)


X, A = make_table(250, 0)
X_new, A_new = make_table(300, 1)
D_new = A_new / A_new.sum(1, keepdims=True)
LIMITS = np.where(np.arange(4) < 2, np.quantile(A, 0.4, axis=0), np.nan)
HIDDEN = A < LIMITS


@pytest.fixture(scope="module")
def model() -> LogRatioLDL:
    return LogRatioLDL(**QUICK).fit(X, A, below=LIMITS)


def mean_log_prob(model: Any) -> float:
    return float(model.predict_dist(X_new).log_prob(D_new).mean())


def test_limits_cost_little_and_beat_substitution(model: LogRatioLDL) -> None:
    exact = mean_log_prob(LogRatioLDL(**QUICK).fit(X, A / A.sum(1, keepdims=True)))
    filled = np.where(HIDDEN, 0.65 * LIMITS, A)
    substituted = mean_log_prob(LogRatioLDL(**QUICK).fit(X, filled / filled.sum(1, keepdims=True)))
    assert mean_log_prob(model) > exact - 0.1
    assert mean_log_prob(model) > substituted + 0.02
    assert model.training_["hidden"] == HIDDEN.sum(0).tolist()
    dist, logs = model.predict_dist(X_new), np.log(A_new).mean(0)
    gap = np.abs([float(dist.log_ratio(r, 3).mean.mean()) - logs[r] + logs[3] for r in range(3)])
    assert gap[2] < 0.08  # exact parts: the mean of the test rows has a standard error of .02
    assert gap[:2].max() < 0.2


def test_hidden_shares_are_covered(model: LogRatioLDL) -> None:
    hidden = A_new < LIMITS
    given = model.predict_dist(X_new).condition_bounds(A_new, below=LIMITS)
    low, high = given.quantiles([0.05, 0.95]).unbind(-1)
    inside = ((D_new >= low.numpy()) & (D_new <= high.numpy()))[hidden]
    assert 0.85 < inside.mean() < 0.95  # some 180 shares


@pytest.mark.slow
def test_all_forms_of_limits_agree(model: LogRatioLDL, tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    for labels, below in (
        (np.where(HIDDEN, np.nan, A), np.where(HIDDEN, LIMITS, np.nan)),
        (pd.DataFrame(A, columns=names), {"a": LIMITS[0], "b": LIMITS[1]}),
        (pd.DataFrame(A, columns=names), pd.Series(LIMITS, names)[::-1]),
    ):
        other = LogRatioLDL(**QUICK).fit(X, labels, below=below)
        np.testing.assert_array_equal(np.asarray(other.predict(X_new)), np.asarray(model.predict(X_new)))
    between = LogRatioLDL(**QUICK).fit(X, A, between=(np.zeros_like(A), np.where(HIDDEN, LIMITS, np.nan)))
    np.testing.assert_array_equal(between.predict(X_new), model.predict(X_new))
    again = load(model.save(tmp_path / "hidden"))
    np.testing.assert_array_equal(again.predict(X_new), model.predict(X_new))


def test_every_estimator_takes_limits_or_refuses(model: LogRatioLDL) -> None:
    even = np.full(250, 2.0)  # weights that are all alike change nothing
    auto = AutoLDL(logratio=LogRatioLDL(**QUICK)).fit(X, A, below=LIMITS, sample_weight=even)
    np.testing.assert_array_equal(auto.predict(X[:9]), model.predict(X[:9]))
    assert isinstance(auto.predict_zero(X[:2]), np.ndarray)  # labels without names
    assert auto.choice_.kept == "LogRatioLDL"
    assert "within bounds" in auto.choice_.reason
    places = np.arange(250) // 10
    grouped = GroupedLDL(LogRatioLDL(**QUICK)).fit(X, A, groups=places, below=LIMITS, sample_weight=even)
    assert grouped.model_.training_["hidden"] == model.training_["hidden"]
    with pytest.raises(InputError, match="log-ratios"):
        GroupedLDL(SnefyLDL()).fit(X, A, groups=places, below=LIMITS)
    with pytest.raises(InputError, match="not with counts"):
        AutoLDL().fit(X, counts=A, below=LIMITS)


def test_classes_of_cover() -> None:
    edges = np.array([0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0])
    place = np.searchsorted(edges, A, side="right")
    classes = LogRatioLDL(**QUICK).fit(X, between=(edges[place - 1], edges[place]))
    exact = LogRatioLDL(**QUICK).fit(X, y=A / A.sum(1, keepdims=True))
    assert mean_log_prob(classes) > mean_log_prob(exact) - 0.25


def test_zeros_are_absent_or_below() -> None:
    rounded = 5.0 * np.round(A / 5.0)
    cut = np.where(HIDDEN, 0.0, A)
    assert read_zeros(rounded, "auto")[1].startswith("below a limit: in")
    assert read_zeros(cut, "auto")[1].startswith("absent labels: in 0 of 2")
    assert read_zeros(np.array([[0.0, 1.0], [0.25, 0.75]] * 9), "auto")[1].endswith("as of votes")
    assert read_zeros(A, "auto") == (None, "no zeros")
    below = LogRatioLDL(zeros="below", **QUICK).fit(X, cut)
    assert below.training_["hidden"] == HIDDEN.sum(0).tolist()
    assert below.predict_zero(X_new).max() == 0.0
    closed = cut / cut.sum(1, keepdims=True)
    absent = LogRatioLDL(zeros="auto", **QUICK).fit(X, closed)
    assert absent.predict_zero(X_new)[:, 0].mean() > 0.1
    assert absent.training_["zeros"].startswith("absent labels")


def test_absent_parts_next_to_hidden_ones() -> None:
    gone = np.random.default_rng(0).random(A.shape) < [0.0, 0.0, 0.4, 0.0]
    model = LogRatioLDL(**QUICK).fit(X, np.where(gone, 0.0, A), below=np.where(HIDDEN, LIMITS, np.nan))
    assert abs(model.predict_zero(X_new)[:, 2].mean() - 0.4) < 0.1
    assert model.training_["hidden"] == HIDDEN.sum(0).tolist()


def test_the_replacements_of_the_benchmark_are_those_of_the_papers() -> None:
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    import below

    D, limits = A / 100.0, LIMITS / 100.0
    shown = np.where(HIDDEN, np.nan, D)
    replaced = below.replace_multiplicatively(shown, limits)
    np.testing.assert_allclose(replaced.sum(1), 1.0)
    np.testing.assert_allclose(replaced[HIDDEN], (0.65 * np.broadcast_to(limits, D.shape))[HIDDEN])
    np.testing.assert_allclose(replaced[:, 2] / replaced[:, 3], D[:, 2] / D[:, 3])  # ratios of others stay
    substituted = below.substitute(shown, limits)
    np.testing.assert_allclose((substituted / substituted[:, 3:])[HIDDEN], (0.65 * limits / D[:, 3:])[HIDDEN])
    at = np.linspace(-12.0, -0.3, 200_001)
    density = np.exp(-0.5 * ((at - 0.4) / 1.3) ** 2)
    assert below.truncated_mean(0.4, 1.3, -0.3) == pytest.approx((at * density).sum() / density.sum(), abs=1e-3)
    imputed = below.impute_by_regression(shown, limits, X)
    np.testing.assert_allclose(imputed[:, 2] / imputed[:, 3], D[:, 2] / D[:, 3])
    ratios, ends = (imputed / imputed[:, 3:])[HIDDEN], (limits / D[:, 3:])[HIDDEN]
    assert (ratios < ends).all()
    truth = (D / D[:, 3:])[HIDDEN]
    assert np.corrcoef(np.log(ratios), np.log(truth))[0, 1] > 0.5
