"""μ of δ-LDL against its integral, and divisiveness by definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import rel_entr

from snefy_ldl.errors import InputError
from snefy_ldl.metrics import delta_mu, divisiveness, divisiveness_error

RANDOM = np.random.default_rng(0)
D, P = RANDOM.dirichlet(np.ones(5), size=40), RANDOM.dirichlet(4 * np.ones(5), size=40)


def test_mu_is_the_integral_of_the_part_that_is_right() -> None:
    miss = rel_entr(D, P).sum(axis=1)
    size = rel_entr(D, 0.2).sum(axis=1).mean()
    grid = (np.arange(200_000) + 0.5) / 200_000 * size
    part = (np.sort(miss)[:, None] <= grid[::100]).mean(axis=0)
    assert delta_mu(D, P) == pytest.approx(part.mean(), abs=2e-3)
    assert delta_mu(D, np.full(D.shape, 0.2)) == pytest.approx(
        np.mean(1 - np.minimum(rel_entr(D, 0.2).sum(1) / size, 1))
    )


def test_mu_does_not_care_how_far_off_a_bad_row_is() -> None:
    bad, worse = np.array([[1e-6, 1 - 1e-6], [0.3, 0.7]]), np.array([[1e-12, 1 - 1e-12], [0.3, 0.7]])
    truth = np.array([[0.9, 0.1], [0.3, 0.7]])
    assert delta_mu(truth, bad) == delta_mu(truth, worse) == 0.5


def test_mu_of_even_rows_counts_perfect_ones() -> None:
    even = np.full((2, 4), 0.25)
    assert delta_mu(even, np.array([[0.25] * 4, [0.4, 0.2, 0.2, 0.2]])) == 0.5


def test_divisiveness_of_groups_and_of_pairs() -> None:
    a, b = np.array([1.0, 1, 0, 0, 0]), np.array([0, 0, 0, 0.5, 1.0])
    np.testing.assert_allclose(divisiveness(D, a, b), [min(r[0] + r[1], 0.5 * r[3] + r[4]) for r in D])
    pairs = [np.mean([min(r[i], r[j]) for i in range(5) for j in range(i)]) for r in D]
    np.testing.assert_allclose(divisiveness(D), pairs)
    expected = np.abs(divisiveness(D, a, b) - divisiveness(P, a, b))
    np.testing.assert_allclose(divisiveness_error(D, P, a, b, per_row=True), expected)
    single = [
        np.mean([abs(min(r[i], r[j]) - min(q[i], q[j])) for i in range(5) for j in range(i)]) for r, q in zip(D, P)
    ]
    np.testing.assert_allclose(divisiveness_error(D, P, per_row=True), single)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (([1, 0, 0, 0, 0], None), "or neither"),
        (([1, 0], [0, 1]), "5 numbers"),
        (([-1, 0, 0, 0, 0], [1] * 5), "at least 0"),
    ],
)
def test_weights_that_do_not_fit(weights: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        divisiveness_error(D, P, *weights)


def test_rows_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="same shape"):
        divisiveness_error(D, P[:3])
    with pytest.raises(InputError, match="one or the other"):
        divisiveness_error(D, P, per_row=True, return_std_error=True)
