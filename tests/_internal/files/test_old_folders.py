"""Folders written by 0.1.0 still load, and say what they said then."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.persistence import load_calibration, read_config

FIXTURES = Path(__file__).parent / "fixtures"
CLOSE = {"rtol": 0.0, "atol": 1e-7}  # products in float32 differ between processors


@pytest.fixture(scope="module")
def expected() -> dict:
    return json.loads((FIXTURES / "expected.json").read_text())


def test_shares_with_members_names_and_calibration(expected: dict) -> None:
    folder = FIXTURES / "shares-0.1.0"
    assert read_config(folder)["library_version"] == "0.1.0"
    model = SnefyLDL.load(folder)
    assert model.net_.n_members == 2
    assert model.label_names_ == ["business", "shops", "schools"]
    X = pd.DataFrame(expected["X"], columns=model.feature_names_in_)
    mean = model.predict(X)
    assert list(mean.columns) == model.label_names_
    np.testing.assert_allclose(mean, expected["shares_mean"], **CLOSE)
    np.testing.assert_allclose(model.predict_interval(X), expected["shares_interval"], **CLOSE)
    calibrated = ConformalIntervals.from_dict(model, load_calibration(folder))
    np.testing.assert_allclose(calibrated.predict_interval(X), expected["conformal"], **CLOSE)


def test_counts(expected: dict) -> None:
    model = SnefyLDL.load(FIXTURES / "counts-0.1.0")
    np.testing.assert_allclose(model.predict(expected["X"]), expected["counts_mean"], **CLOSE)
    log_p = model.log_prob(expected["X"], counts=expected["K"])
    np.testing.assert_allclose(log_p, expected["counts_log_prob"], **CLOSE)
    assert load_calibration(FIXTURES / "counts-0.1.0") is None
