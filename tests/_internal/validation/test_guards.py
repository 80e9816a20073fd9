"""Odd containers, odd units and odd machines: each either understood or refused in one sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch

from snefy_ldl import SnefyLDL, logratios, metrics
from snefy_ldl._internal.validation import (
    check_counts,
    check_distributions,
    check_features,
    check_rows,
    common_denominator,
)
from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.training import Settings
from snefy_ldl.votes.annotator_tables import counts_from_shares

RNG = np.random.default_rng(0)
X, D = RNG.normal(size=(24, 3)), RNG.dirichlet([2.0, 3.0, 4.0], 24)


pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")


def small(**changes: object) -> SnefyLDL:
    settings = {"n_neurons": 4, "n_readouts": 2, "hidden_sizes": (4,), "epochs": 1, "guides": None, "random_state": 0}
    return SnefyLDL(**(settings | changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "meta", "nowhere", None])
def test_a_device_that_is_not_there(device: object) -> None:
    with pytest.raises(InputError, match="cannot be used here"):
        Settings(device=device)


@pytest.mark.parametrize("cell", [10**400, "a", None, 1j])
def test_cells_that_are_no_numbers(cell: object) -> None:
    table = D.astype(object)
    table[3, 1] = cell
    with pytest.raises(InputError):
        check_distributions(table)


COMPLEX = np.full((3, 2), 1.0 + 1.0j)
ODD = {
    "complex": COMPLEX,
    "complex objects": COMPLEX.astype(object),
    "complex frame": pd.DataFrame(COMPLEX),
    "complex tensor": torch.tensor(COMPLEX),
    "complex sparse": sp.csr_matrix(COMPLEX),
    "text": np.array([["a", "b"]] * 3),
    "lists of text": [["a", 1.0]] * 3,
    "text of polars": pl.DataFrame({"a": ["x"] * 3, "b": ["y"] * 3}),
    "ragged": [[1.0, 2.0], [3.0]],
    "dates": np.zeros((3, 2), dtype="M8[D]"),
    "one number": 3,
    "0-d": torch.tensor(1.0),
    "nothing": None,
    "a word": "abc",
    "a mapping": {"a": [1, 2]},
    "an object": object(),
    "no rows": np.zeros((0, 2)),
    "three dimensions": np.zeros((2, 2, 3)),
    "one dimension, sparse": sp.coo_array(np.ones(3)),
    "beyond float64": [[10**400, 1.0]],
}
READERS = {
    "features": check_features,
    "distributions": check_distributions,
    "counts": check_counts,
    "rows": lambda odd: check_rows(odd, 2, "rows"),
    "score": lambda odd: metrics.score(odd, odd),
    "coverage": lambda odd: metrics.coverage(odd, np.zeros((3, 2, 2))),
    "intervals": metrics.interval_width,
    "draws": lambda odd: metrics.crps(np.full((3, 2), 0.5), odd),
    "groups": lambda odd: metrics.conditional.group_coverage(odd, np.zeros((3, 2)), np.zeros((3, 2, 2))),
    "slab": lambda odd: metrics.worst_slab_coverage(odd, np.zeros((3, 2)), np.zeros((3, 2, 2))),
    "pit": metrics.joint_calibration_test,
    "log-ratios": logratios.clr,
}


@pytest.mark.parametrize("reader", READERS)
def test_odd_values_raise_one_clear_error(reader: str) -> None:
    for what, odd in ODD.items():
        with pytest.raises(InputError) as caught:
            READERS[reader](odd)
        assert 20 < len(str(caught.value)) < 600, what


@pytest.mark.slow
def test_one_known_zero_and_the_rest_unknown() -> None:
    known = np.full((24, 3), np.nan)
    known[:, 0] = 0.0
    with pytest.warns(LabelWarning):
        model = small(zeros="shrink").fit(X, known)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(("unit", "words"), [(100.0, "percentages"), (1000.0, "per mille")])
def test_units_are_recognised(unit: float, words: str) -> None:
    with pytest.warns(LabelWarning, match=words):
        table, _ = check_distributions(D * unit)
    np.testing.assert_allclose(table, D, rtol=1e-12)
    with pytest.raises(InputError, match="row 1 sums to"):  # some rows only: no unit of the table
        check_distributions(np.vstack([D[:1], D[:1] * unit]))


def test_percentages_with_unknown_shares() -> None:
    given = np.vstack([D[:2] * 100.0, [[30.0, np.nan, np.nan]]])
    with pytest.warns(LabelWarning, match="percentages"):
        table, _ = check_distributions(given, missing=True)
    assert table[2, 0] == pytest.approx(0.3)


def test_rounded_shares_are_closed_with_a_note() -> None:
    table = np.array([[0.33, 0.33, 0.33], [0.2, 0.3, 0.5]])
    with pytest.warns(LabelWarning, match="1 of 2 rows"):
        closed, _ = check_distributions(table)
    np.testing.assert_allclose(closed.sum(1), 1.0)
    with pytest.raises(InputError, match=r"row 0 sums to 0.97"):
        check_distributions([[0.33, 0.33, 0.31]])


def test_counts_beyond_whole_floats() -> None:
    with pytest.raises(InputError, match=r"row 0, column 1"):
        check_counts([[1.0, 1e300]])


def test_shares_of_votes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    counts = 1 + RNG.multinomial(12, [0.2, 0.3, 0.5], size=24)
    assert common_denominator(counts / 15) == 15
    assert common_denominator(D) is None
    model = small(verbose=1).fit(X, counts / 15)
    assert "multiple of 1/15" in model.training_["note"]
    assert "multiple of 1/15" in capsys.readouterr().err
    assert "note" not in small().fit(X, D).training_
    np.testing.assert_array_equal(counts_from_shares(counts / 15), counts)
    with pytest.raises(InputError, match="not those of m votes"):
        counts_from_shares(D)
