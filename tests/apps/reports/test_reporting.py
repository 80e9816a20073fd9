"""The figures of a report against plain computations of the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from snefy_ldl import LogRatioLDL, SnefyLDL, SnefySimplex, metrics
from snefy_ldl.apps.reports import evaluate
from snefy_ldl.apps.reports.model_report import (
    LEVEL,
    LEVELS,
    Answers,
    JudgedRows,
    Parts,
    Report,
    Rival,
    ask,
    cross_fit,
    fit_rivals,
    judge_coverage,
    make_report,
    score_lines,
    worst_groups,
)
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.learners import SABFGS

LABELS = ["business", "entertainment", "education"]


def city_rows(n: int, seed: int = 0) -> JudgedRows:
    city = make_city_districts(n=n, random_state=seed)
    return JudgedRows(pd.DataFrame(city.X, columns=city.feature_names), city.D, city.label_names)


@pytest.fixture(scope="module")
def model() -> SnefyLDL:
    rows = city_rows(160, 1)
    return SnefyLDL(epochs=4, guides=None, random_state=0).fit(rows.X, rows.D)


@pytest.fixture(scope="module")
def report(model: SnefyLDL) -> Report:
    return make_report(model, city_rows(90, 2))


def whole(model: Any, rows: JudgedRows) -> Parts:
    return [(model, np.arange(len(rows)))]


def test_answers_are_the_models_own(model: SnefyLDL) -> None:
    rows = city_rows(30, 3)
    answers = ask(whole(model, rows), rows)
    np.testing.assert_allclose(answers.mean, model.predict(rows.X), atol=1e-9)
    np.testing.assert_allclose(answers.log_prob, model.log_prob(rows.X, rows.D), atol=1e-9)
    np.testing.assert_allclose(answers.ends, model.predict_interval(rows.X, LEVEL), atol=1e-7)
    np.testing.assert_allclose(answers.joint, metrics.joint_pit(model, rows.X, rows.D), atol=1e-9)
    dist = model.predict_dist(rows.X)
    draws = dist.sample((4000,), torch.Generator().manual_seed(0)).numpy()
    assert answers.pit is not None
    # 90 frequencies of 4,000 draws each: none is off by five standard errors but once in 20,000 runs
    np.testing.assert_allclose((draws < rows.D).mean(axis=0), answers.pit, atol=5 * 0.5 / np.sqrt(4000))


@pytest.mark.slow
def test_folds_refit_what_the_model_chose_without_a_search() -> None:
    rows = city_rows(60)
    model = SnefyLDL(epochs=2, n_neurons=8, n_readouts=4, guides=[SABFGS()], random_state=0).fit(rows.X, rows.D)
    for again, _ in cross_fit(model, rows, folds=2):
        assert again.inputs_ == model.inputs_
        assert again.scaling_ == model.scaling_
        assert len(again.candidates_) <= 1


@pytest.fixture(scope="module")
def with_zeros() -> tuple[LogRatioLDL, JudgedRows]:
    """Half of the rows lack the first label: a model of log-ratios, and 160 rows that it has not seen."""
    random = np.random.default_rng(0)
    X, D = random.normal(size=(260, 2)), random.dirichlet([2.0, 2.0, 2.0], 260)
    D[random.random(260) < 0.5, 0] = 0.0
    D /= D.sum(axis=1, keepdims=True)
    model = LogRatioLDL(max_iter=20, n_trees=10, random_state=0).fit(X[:100], D[:100])
    return model, JudgedRows(X[100:], D[100:], ["a", "b", "c"])


@pytest.mark.slow
def test_a_modelled_zero_is_spread_over_its_probability(with_zeros: tuple[LogRatioLDL, JudgedRows]) -> None:
    model, rows = with_zeros
    answers = ask(whole(model, rows), rows)
    assert answers.kind == "shares with zeros"
    assert answers.pit is not None
    absent, zero = rows.D[:, 0] == 0.0, np.asarray(model.predict_zero(rows.X))[:, 0]
    assert (answers.pit[absent, 0] < zero[absent]).all()
    assert (answers.pit[~absent, 0] >= zero[~absent] - 1e-6).all()
    assert np.ptp(answers.pit[absent, 0] / zero[absent]) > 0.5


@pytest.mark.slow
def test_coverage_with_zeros_is_what_evaluate_and_a_recount_find(with_zeros: tuple[LogRatioLDL, JudgedRows]) -> None:
    model, rows = with_zeros
    answers = ask(whole(model, rows), rows)
    trust = judge_coverage(whole(model, rows), rows, answers)
    evaluated = evaluate(model, rows.X, rows.D)
    assert evaluated["log_likelihood"]["of"] == "shares with zeros"
    assert trust is not None
    ends = model.predict_interval(rows.X, LEVEL)
    recount = np.mean((ends[..., 0] <= rows.D) & (ends[..., 1] >= rows.D))
    assert trust.coverage.mean() == pytest.approx(evaluated["interval"]["coverage"]["value"], abs=1e-12)
    assert trust.coverage.mean() == pytest.approx(recount, abs=1e-12)
    # an interval that reaches to an atom contains all of it; the randomised transform only its part
    positive = rows.D > 0.0
    assert answers.pit is not None
    for level in LEVELS:
        ends = model.predict_interval(rows.X, level)
        counted = ((ends[..., 0] <= rows.D) & (ends[..., 1] >= rows.D))[positive].mean()
        assert (np.abs(answers.pit - 0.5) <= level / 2)[positive].mean() == pytest.approx(counted, abs=0.02)


@pytest.mark.slow
def test_scores_are_the_metrics_and_paired(report: Report) -> None:
    rows, answers = report.rows, report.answers
    assert [line.name for line in report.scores][3] == "KL divergence"
    for line, name in zip(report.scores, metrics.points.HIGHER_IS_BETTER):
        value, error = getattr(metrics, name)(rows.D, answers.mean, return_std_error=True)
        assert (line.value, line.std_error) == pytest.approx((value, error))
    rival = Rival("other", np.full(rows.D.shape, 1.0 / 3.0))
    line = score_lines(answers, rows, [rival])[3]
    ours = metrics.kl_divergence(rows.D, answers.mean, per_row=True)
    theirs = metrics.kl_divergence(rows.D, rival.mean, per_row=True)
    test = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    difference = line.rivals[0]
    assert difference is not None
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    assert (low, high) == pytest.approx((test.low, test.high))
    assert difference.verdict == ("better" if test.high < 0 else "worse" if test.low > 0 else "even")


def test_rivals_learn_from_the_training_rows_or_from_other_folds() -> None:
    train, rows = city_rows(80, 5), city_rows(40, 6)
    constant, linear = fit_rivals(rows, rows.X.to_numpy(), (train, train.X.to_numpy()))
    np.testing.assert_allclose(constant.mean, np.tile(train.D.mean(axis=0), (40, 1)))
    np.testing.assert_allclose(linear.mean, SABFGS().fit(train.X.to_numpy(), train.D).predict(rows.X.to_numpy()))
    crossed = fit_rivals(rows, rows.X.to_numpy())[0].mean
    assert len(np.unique(crossed.round(12), axis=0)) == 5
    for mean in np.unique(crossed, axis=0):
        others = (np.abs(crossed - mean) > 1e-12).any(axis=1)
        np.testing.assert_allclose(rows.D[others].mean(axis=0), mean, atol=1e-12)


def test_the_constant_distribution_of_votes_is_a_dirichlet_multinomial() -> None:
    random = np.random.default_rng(0)
    counts = np.array([random.multinomial(7, shares) for shares in random.dirichlet([1.0, 3.0], 200)], dtype=float)
    rows = JudgedRows(np.zeros((200, 1)), counts / 7.0, ["no", "yes"], counts)
    constant = fit_rivals(rows, random.normal(size=(200, 2)), (rows, random.normal(size=(200, 2))))[0]
    assert constant.log_prob is not None
    shares = counts.sum(axis=0) / counts.sum()
    best = -np.inf
    for s in np.geomspace(0.05, 500.0, 400):
        dist = SnefySimplex.from_mixture(torch.ones(200, 1).double(), torch.as_tensor(s * shares)[None])
        best = max(best, float(dist.log_prob_counts(torch.as_tensor(counts)).mean()))
    assert constant.log_prob.mean() == pytest.approx(best, abs=2e-4)
    assert constant.log_prob.mean() > stats.multinomial(7, shares).logpmf(counts).mean()


@pytest.mark.slow
def test_own_and_calibrated_coverage() -> None:
    random = np.random.default_rng(0)
    rows = JudgedRows(np.zeros((400, 1)), random.dirichlet([4.0, 4.0], 400), ["a", "b"])

    class TooSure:
        """Always the same distribution, four times as sure as it should be."""

        def predict_dist(self, X: np.ndarray) -> SnefySimplex:
            return SnefySimplex.from_mixture(torch.ones(len(X), 1).double(), torch.tensor([[16.0, 16.0]]).double())

    answers = ask(whole(TooSure(), rows), rows)
    trust = judge_coverage(whole(TooSure(), rows), rows, answers)
    assert trust is not None
    assert trust.calibrated is None
    own = stats.beta(16, 16).ppf([0.05, 0.95])
    wanted = np.diff(stats.beta(4, 4).cdf(own))[0]
    assert trust.coverage.mean() == pytest.approx(wanted, abs=5 * 0.5 / np.sqrt(400))
    tails = stats.beta(16, 16).ppf(0.5 + np.outer([-0.5, 0.5], LEVELS))
    expected = np.diff(stats.beta(4, 4).cdf(tails), axis=0)[0]
    np.testing.assert_allclose(trust.curve, expected, atol=5 * 0.5 / np.sqrt(400))
    stored = ConformalIntervals(TooSure(), LEVEL).conformalize(rows.X, rows.D)
    judged = judge_coverage(whole(TooSure(), rows), rows, answers, stored)
    assert judged is not None
    assert judged.calibrated is not None
    assert judged.calibrated.mean() == pytest.approx(metrics.coverage(rows.D, stored.predict_interval(rows.X)))


def test_worst_groups_are_found_and_luck_is_not() -> None:
    random = np.random.default_rng(0)
    D = random.dirichlet([30.0, 30.0], 200)
    kind = np.repeat(["good", "bad"], 100)
    D[100:] = random.dirichlet([3.0, 1.0], 100)
    half = np.full((200, 2), 0.5)
    answers = Answers(half, half - 0.1, half + 0.1, np.zeros(200))
    X = pd.DataFrame({"kind": kind, "noise": random.normal(size=200)})
    groups, looked = worst_groups(answers, JudgedRows(X, D, ["a", "b"]))
    assert [(group.column, group.value) for group in groups] == [("kind", "bad")]
    assert groups[0].n == 100
    assert looked == 6
    assert groups[0].kl == pytest.approx(metrics.kl_divergence(D[100:], half[100:]))
    X["kind"] = random.permutation(kind)
    fewer = Answers(half[:100], half[:100] - 0.1, half[:100] + 0.1, np.zeros(100))
    assert worst_groups(fewer, JudgedRows(X[:100], D[:100], ["a", "b"]))[0] == []


def test_rounding_makes_no_group_worse() -> None:
    """All rows equal except for the last bit: no group, and no warning of a variance that is rounding."""
    D = np.tile([0.3, 0.7], (60, 1))
    mean = np.tile([0.4, 0.6], (60, 1))
    mean[30:] += [[-1e-14, 1e-14]]
    answers = Answers(mean, mean - 0.1, mean + 0.1, np.zeros(60))
    rows = JudgedRows(np.repeat([0.0, 1.0], 30)[:, None], D, ["a", "b"])
    assert worst_groups(answers, rows) == ([], 2)


@pytest.mark.slow
def test_a_report_has_every_part_and_leaves_the_model_alone(model: SnefyLDL, report: Report) -> None:
    before = model.predict(report.rows.X)
    width = report.answers.width
    assert width[report.shown[0]] == width.min()
    assert width[report.shown[2]] == width.max()
    dist = report.dist_of(report.shown[1])
    np.testing.assert_allclose(dist.mean[0].numpy(), report.answers.mean[report.shown[1]], atol=1e-9)
    assert report.worst_rows[0].kl == pytest.approx(
        metrics.kl_divergence(report.rows.D, report.answers.mean, per_row=True).max()
    )
    np.testing.assert_array_equal(np.asarray(model.predict(report.rows.X)), np.asarray(before))
    with pytest.raises(InputError, match="at least 10 rows"):
        make_report(model, report.rows.pick(range(9)))
