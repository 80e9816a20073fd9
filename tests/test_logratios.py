"""Log-ratio tools: inverses, isometry, names and bad input."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from snefy_ldl.errors import InputError
from snefy_ldl.logratios import (
    alr,
    clr,
    ilr,
    ilr_inverse,
)

RANDOM = np.random.default_rng(0)
D = RANDOM.dirichlet([2.0, 3.0, 4.0, 1.0], 30)
FRAME = pd.DataFrame(D, columns=["sand", "silt", "clay", "peat"], index=range(100, 130))


def test_inverses_come_back() -> None:
    np.testing.assert_allclose(softmax(clr(D), axis=1), D, atol=1e-12)
    for reference in (0, 2, 3):
        np.testing.assert_allclose(softmax(np.insert(alr(D, reference), reference, 0.0, axis=1), axis=1), D, atol=1e-12)
    np.testing.assert_allclose(ilr_inverse(ilr(D)), D, atol=1e-12)


def test_amounts_are_as_good_as_shares() -> None:
    amounts = D * RANDOM.uniform(1, 1000, (30, 1))
    for transform in (clr, alr, ilr):
        np.testing.assert_allclose(transform(amounts), transform(D), atol=1e-10)


def test_isometric_log_ratios_keep_distances() -> None:
    def distances(table: np.ndarray) -> np.ndarray:
        return np.linalg.norm(table[:, None] - table[None], axis=-1)

    np.testing.assert_allclose(distances(ilr(D)), distances(clr(D)), atol=1e-10)


def test_names_go_in_and_come_out() -> None:
    assert list(clr(FRAME).columns) == list(FRAME.columns)
    assert clr(FRAME).index.equals(FRAME.index)
    assert list(alr(FRAME, "clay").columns) == ["sand/clay", "silt/clay", "peat/clay"]
    assert list(ilr(FRAME).columns) == ["sand/silt", "sand+silt/clay", "sand+silt+clay/peat"]
    pd.testing.assert_frame_equal(ilr_inverse(ilr(FRAME), list(FRAME.columns)), FRAME)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: clr([[0.0, 1.0]]), "zero at row 0, column 0, .*LogRatioLDL"),
        (lambda: ilr([[-1.0, 1.0]]), "is -1 at row 0, column 0; parts must be positive"),
        (lambda: alr([[np.nan, 1.0]]), "is nan at row 0, column 0"),
        (lambda: alr(FRAME, "gravel"), "no part 'gravel'; the parts are sand, silt"),
        (lambda: alr(D, 4), "from 0 to 3"),
        (lambda: clr([[1.0], [2.0]]), "at least 2 parts"),
        (lambda: ilr_inverse([[np.inf, 0.0]]), "not a finite number at row 0, column 0"),
    ],
)
def test_bad_input_is_refused(ask: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()  # type: ignore[operator]
