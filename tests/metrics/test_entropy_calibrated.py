"""Entropy-calibrated aggregation by hand."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.metrics import chebyshev, entropy_calibrated, kl_divergence

RANDOM = np.random.default_rng(0)
D = np.concatenate([RANDOM.dirichlet([0.2, 0.2, 0.2], 30), RANDOM.dirichlet([9.0, 9.0, 9.0], 70)])
P = RANDOM.dirichlet([3.0, 3.0, 3.0], 100)


@pytest.mark.parametrize("measure", [chebyshev, kl_divergence])
def test_both_kinds_of_rows_count_alike(measure: object) -> None:
    entropy = np.array([-sum(s * np.log(s) for s in row if s > 0) for row in D])
    low = entropy <= 0.5 * np.log(3)
    answer = entropy_calibrated(measure, D, P)  # type: ignore[arg-type]
    assert (answer.n_low, answer.n_high) == (low.sum(), (~low).sum())
    assert 0 < answer.n_low < 50
    assert answer.low == pytest.approx(measure(D[low], P[low]))  # type: ignore[operator]
    assert answer.high == pytest.approx(measure(D[~low], P[~low]))  # type: ignore[operator]
    assert answer.value == pytest.approx((answer.low + answer.high) / 2)


def test_one_kind_alone_is_the_plain_mean() -> None:
    answer = entropy_calibrated(chebyshev, D, P, threshold=2.0)
    assert answer.value == pytest.approx(chebyshev(D, P))
    assert answer.n_high == 0
    assert np.isnan(answer.high)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="threshold"):
        entropy_calibrated(chebyshev, D, P, threshold=-1.0)
    with pytest.raises(InputError):
        entropy_calibrated(chebyshev, D, P[:5])
