"""Tests of scores: against scipy, against textbook figures, and by their false alarms on data without a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from snefy_ldl.errors import InputError
from snefy_ldl.learners.comparison.result import corrected_t_test, critical_difference, friedman_test, holm


def test_without_overlap_it_is_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 12))
    t, p = corrected_t_test(a, b, 0.0)
    expected = stats.ttest_rel(a, b)
    assert t == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue)


def test_the_correction_by_hand() -> None:
    # differences 1, 2, 3: mean 2, variance 1; (1/3 + 1/2) * 1 = 5/6
    t, p = corrected_t_test([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], 0.5)
    assert t == pytest.approx(2.0 / math.sqrt(5.0 / 6.0))
    assert p == pytest.approx(2.0 * stats.t.sf(t, 2))


@pytest.mark.slow
def test_false_alarms_are_few_where_the_plain_test_cries_wolf() -> None:
    """Two equal learners on folds that share rows: the score of a fold is half the training set's luck."""
    random = np.random.default_rng(1)
    corrected = plain = 0
    for _ in range(400):
        noise = random.normal(size=(2, 200))
        scores = []
        for _ in range(30):  # random halves of the same 200 rows
            rows = random.permutation(200)[:100]
            scores.append(noise[:, rows].mean(axis=1))
        a, b = np.array(scores).T
        corrected += corrected_t_test(a, b, 1.0)[1] < 0.05
        plain += stats.ttest_rel(a, b).pvalue < 0.05
    assert plain > 150  # far above 20
    assert corrected < 40  # 20 expected; more than 40 once in ten thousand runs


def test_equal_and_constant_differences() -> None:
    assert corrected_t_test([1.0, 2.0], [1.0, 2.0], 0.1) == (0.0, 1.0)
    assert corrected_t_test([2.0, 3.0], [1.0, 2.0], 0.1) == (math.inf, 0.0)
    for bad in ([1.0], [[1.0]], [1.0, math.nan]):
        with pytest.raises(InputError):
            corrected_t_test(bad, bad, 0.1)


def test_holm_keeps_gaps() -> None:
    np.testing.assert_allclose(holm([0.5, math.nan, 0.02, 0.01]), [0.5, math.nan, 0.04, 0.03])


def test_friedman_is_scipys_and_ties_count() -> None:
    random = np.random.default_rng(2)
    table = random.integers(0, 5, size=(9, 4)).astype(float)
    result = friedman_test(table, higher_is_better=False)
    assert result.chi2 == pytest.approx(stats.friedmanchisquare(*table.T).statistic)
    np.testing.assert_allclose(friedman_test(-table, higher_is_better=True).ranks, result.ranks)
    f = (9 - 1) * result.chi2 / (9 * 3 - result.chi2)
    assert result.p_value == pytest.approx(stats.f.sf(f, 3, 24))
    assert friedman_test(np.ones((3, 3)), higher_is_better=True).p_value == 1.0
    with pytest.raises(InputError, match="two data sets"):
        friedman_test([[1.0, 2.0]], higher_is_better=True)


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_difference_by_demsars_table(k: int, q: float) -> None:
    assert critical_difference(k, 14) == pytest.approx(q * math.sqrt(k * (k + 1) / 84), abs=2e-3)


def test_groups_join_what_cannot_be_told_apart() -> None:
    result = friedman_test([[1, 2, 3, 4], [1, 2, 3, 4]], higher_is_better=False)
    assert result.groups() == [[0, 1, 2, 3]]
    wide = friedman_test(np.tile(np.arange(4.0), (60, 1)), higher_is_better=False)
    assert wide.critical_difference < 1.0
    assert wide.groups() == []
