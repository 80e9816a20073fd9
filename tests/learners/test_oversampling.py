"""SSG-LDL and draws of a law at interpolated features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learner_cases import D, X

from snefy_ldl.errors import InputError
from snefy_ldl.learners import SABFGS, DirichletLDL
from snefy_ldl.learners.oversampling import density_oversample, ssg_oversample


def test_new_rows_lie_between_a_row_and_one_of_its_nearest() -> None:
    line, shares = np.array([[0.0], [1.0], [3.0], [10.0]]), np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.9, 0.1]])
    new_X, new_D = ssg_oversample(line, shares, 500, n_neighbors=1, random_state=0)
    assert ((new_X >= 0) & (new_X <= 10)).all()
    np.testing.assert_allclose(new_D.sum(axis=1), 1.0)
    # nearest pairs are 0-1, 1-0, 3-1 and 10-3, and labels go the same part of the way
    np.testing.assert_allclose(new_D[:, 0], np.interp(new_X[:, 0], [0, 1, 3, 10], shares[:, 0]))


def test_rare_rows_are_seeds_as_often_as_their_mean_distance_says() -> None:
    line, shares = np.array([[0.0], [1.0], [2.0], [30.0]]), np.full((4, 2), 0.5)
    new_X, _ = ssg_oversample(line, shares, 20_000, n_neighbors=1, label_weight=0.0, random_state=0)
    scaled = np.clip((line - line.mean()) / line.std(), -5, 5)
    mean = np.abs(scaled - scaled.T).mean(axis=1)
    expected = mean[3] / mean.sum()  # only the far row's new ones lie beyond 2
    assert (new_X > 2.0).mean() == pytest.approx(expected, abs=5 * np.sqrt(0.25 / 20_000))


def test_draws_have_the_laws_mean_and_spread() -> None:
    law = DirichletLDL(random_state=0).fit(X, D)
    new_X, new_D = density_oversample(law, X, D, 4000, random_state=0)
    smooth_X, _ = ssg_oversample(X, D, 4000, random_state=0)
    np.testing.assert_array_equal(new_X, smooth_X)
    gap = new_D - np.asarray(law.predict(new_X))
    variance = np.asarray(law.predict_var(new_X))
    np.testing.assert_allclose(gap.mean(axis=0), 0.0, atol=5 * np.sqrt(variance.mean() / 4000))
    np.testing.assert_allclose((gap**2).mean(axis=0), variance.mean(axis=0), rtol=0.15)


def test_same_seed_same_rows_and_the_data_stay() -> None:
    before = X.copy()
    first, second = (ssg_oversample(X, D, 10, random_state=3) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(X, before)
    assert SABFGS().fit(np.r_[X, first[0]], np.r_[D, first[1]]).predict(X).shape == D.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_new": 0}, "n_new"),
        ({"n_neighbors": 0}, "n_neighbors"),
        ({"feature_weight": -1.0}, "feature_weight"),
        ({"feature_weight": 0.0, "label_weight": 0.0}, "both zero"),
    ],
)
def test_wrong_input_is_refused(change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ssg_oversample(X, D, **{"n_new": 3, **change})
    with pytest.raises(InputError, match="at least 2 rows"):
        ssg_oversample(X[:1], D[:1], 3)
