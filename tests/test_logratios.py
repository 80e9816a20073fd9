"""Log-ratio tools: inverses, isometry, names, and bases by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.logratios import (
    alr,
    alr_inverse,
    clr,
    clr_inverse,
    default_basis,
    ilr,
    ilr_inverse,
    partition_basis,
    principal_balances,
    variation_matrix,
)

RANDOM = np.random.default_rng(0)
D = RANDOM.dirichlet([2.0, 3.0, 4.0, 1.0], 30)
FRAME = pd.DataFrame(D, columns=["sand", "silt", "clay", "peat"], index=range(100, 130))


def test_inverses_come_back() -> None:
    np.testing.assert_allclose(clr_inverse(clr(D)), D, atol=1e-12)
    for reference in (0, 2, -1):
        np.testing.assert_allclose(alr_inverse(alr(D, reference), reference), D, atol=1e-12)
    basis = partition_basis(((0, 3), (1, 2)))
    for one in (None, basis, principal_balances(D)):
        np.testing.assert_allclose(ilr_inverse(ilr(D, one), one), D, atol=1e-12)


def test_amounts_are_as_good_as_shares() -> None:
    amounts = D * RANDOM.uniform(1, 1000, (30, 1))
    for transform in (clr, alr, ilr):
        np.testing.assert_allclose(transform(amounts), transform(D), atol=1e-10)


def test_isometric_log_ratios_keep_distances() -> None:
    def distances(table: np.ndarray) -> np.ndarray:
        return np.linalg.norm(table[:, None] - table[None], axis=-1)

    for basis in (None, partition_basis((0, ((1, 2), 3))), principal_balances(D)):
        np.testing.assert_allclose(distances(ilr(D, basis)), distances(clr(D)), atol=1e-10)


def test_names_go_in_and_come_out() -> None:
    assert list(clr(FRAME).columns) == list(FRAME.columns)
    assert clr(FRAME).index.equals(FRAME.index)
    assert list(alr(FRAME, "clay").columns) == ["sand/clay", "silt/clay", "peat/clay"]
    assert list(ilr(FRAME).columns) == ["sand/silt", "sand+silt/clay", "sand+silt+clay/peat"]
    basis = partition_basis((("sand", "peat"), ("silt", "clay")), list(FRAME.columns))
    assert list(ilr(FRAME, basis).columns) == ["sand+peat/silt+clay", "sand/peat", "silt/clay"] == basis.names
    pd.testing.assert_frame_equal(ilr(FRAME[["clay", "peat", "sand", "silt"]], basis), ilr(FRAME, basis))
    with pytest.raises(InputError, match="unknown: ash; missing: peat"):
        ilr(FRAME.rename(columns={"peat": "ash"}), basis)
    back = ilr_inverse(ilr(FRAME, basis), basis)
    pd.testing.assert_frame_equal(back, FRAME)
    pd.testing.assert_frame_equal(alr_inverse(alr(FRAME), names=list(FRAME.columns)), FRAME)
    variation = variation_matrix(FRAME)
    assert list(variation.index) == list(variation.columns) == list(FRAME.columns)


def test_a_balance_by_hand() -> None:
    basis = partition_basis(((0, 1), (2, 3)))
    logs = np.log(D)
    expected = (logs[:, :2].mean(1) - logs[:, 2:].mean(1)) * np.sqrt(2 * 2 / (2 + 2))
    np.testing.assert_allclose(ilr(D, basis)[:, 0], expected, atol=1e-12)
    signs = [[1, 1, -1, -1], [1, -1, 0, 0], [0, 0, 1, -1]]
    np.testing.assert_allclose(partition_basis(signs).matrix, basis.matrix, atol=1e-12)
    np.testing.assert_allclose(default_basis(4).matrix @ np.ones(4), 0.0, atol=1e-12)


def test_the_variation_matrix_by_hand() -> None:
    logs = np.log(D)
    for r, s in ((0, 1), (2, 3)):
        assert variation_matrix(D)[r, s] == pytest.approx(np.var(logs[:, r] - logs[:, s], ddof=1))
    assert variation_matrix(D).sum() / (2 * 4) == pytest.approx(np.var(clr(D), axis=0, ddof=1).sum())  # total variance


def test_principal_balances_join_parts_that_vary_together() -> None:
    base = RANDOM.normal(size=(200, 2))
    logs = np.column_stack([base[:, 0], base[:, 0], base[:, 1], base[:, 1]]) + 0.05 * RANDOM.normal(size=(200, 4))
    basis = principal_balances(pd.DataFrame(np.exp(logs), columns=list("abcd")))
    assert basis.names[0] == "a+b/c+d"
    variance = ilr(np.exp(logs), basis).var(0)
    assert (np.diff(variance) <= 0).all()
    assert variance[0] / variance.sum() > 0.95


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: clr([[0.0, 1.0]]), "zero at row 0, column 0, .*LogRatioLDL"),
        (lambda: ilr([[-1.0, 1.0]]), "is -1 at row 0, column 0; parts must be positive"),
        (lambda: alr([[np.nan, 1.0]]), "is nan at row 0, column 0"),
        (lambda: alr(FRAME, "gravel"), "no part 'gravel'; the parts are sand, silt"),
        (lambda: alr(D, 4), "from 0 to 3"),
        (lambda: clr([[1.0], [2.0]]), "at least 2 parts"),
        (lambda: ilr(D, default_basis(3)), "basis is for 3 parts; D has 4"),
        (lambda: ilr_inverse(D, default_basis(4)), "basis is for 4 parts, 3 coordinates"),
        (lambda: clr_inverse([[np.inf, 0.0]]), "not a finite number at row 0, column 0"),
        (lambda: partition_basis(((0, 1), (1, 2))), "exactly once"),
        (lambda: partition_basis((0, 1, 2)), "pairs within pairs"),
        (lambda: partition_basis([[1, -1, 0], [1, -1, 0]]), "no sequential binary partition"),
        (lambda: partition_basis((0, 1), ["a", "b", "c"]), "each of the 3 parts"),
        (lambda: principal_balances(D[:1]), "at least 2 rows"),
        (lambda: variation_matrix(D[:1]), "at least 2 rows"),
    ],
)
def test_bad_input_is_refused(ask: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()  # type: ignore[operator]
