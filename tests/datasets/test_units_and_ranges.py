"""What cells mean: units of labels, numbers as people write them, codes for gaps, groups, and the range of features."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.datasets import load_table
from snefy_ldl.datasets.cells import cell_numbers
from snefy_ldl.datasets.columns import TableEncoder, describe_outside, learn_columns, read_encoder
from snefy_ldl.datasets.labelled import read_labelled
from snefy_ldl.datasets.shares import Unit, read_shares, strip_unit
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import InputError, LabelWarning, ModelFileError
from snefy_ldl.learners import SABFGS
from snefy_ldl.metrics import kl_divergence

SHARES = np.array([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]])


@pytest.mark.parametrize(
    ("factor", "names", "unit"),
    [
        (1.0, ["sand", "clay"], None),
        (100.0, ["sand", "clay"], Unit("percent", 100.0)),
        (1000.0, ["sand", "clay"], Unit("per mille", 1000.0)),
        (1000.0, ["sand_g_kg", "clay_g_kg"], Unit("g/kg", 1000.0)),
        (1e6, ["Fe", "Mg"], Unit("ppm", 1e6)),
        (1e6, ["Fe (mg/kg)", "Mg (mg/kg)"], Unit("mg/kg", 1e6)),
    ],
)
def test_the_unit_of_label_columns_is_recorded(factor, names, unit):
    reading = read_shares(SHARES * factor + 0.0, names)
    assert reading.unit == unit
    np.testing.assert_allclose(reading.labels * (1.0 if unit is None else unit.factor), SHARES * factor)
    if unit is not None:
        assert Unit(**json.loads(json.dumps(asdict(unit)))) == unit


def test_units_of_amounts_and_in_names():
    assert read_shares(SHARES * 24.0, ["sleep", "work"], normalize=True).unit == Unit("amount", 24.0)
    assert read_shares(SHARES * [[20], [30], [40]], ["sleep", "work"], normalize=True).unit is None
    assert read_shares(np.array([[3.0, 1.0], [0.0, 4.0]]), ["yes", "no"]).unit is None  # votes
    found = [strip_unit(name) for name in ("Sand [%]", "clay_pct", "Cu (µg/g)", "a ppm")]
    assert found == [("Sand", "%"), ("clay", "%"), ("Cu", "µg/g"), ("a", "ppm")]
    assert all(strip_unit(plain) == (plain, "") for plain in ("humid", "cpm", "grass_g", "%"))


def test_percent_signs_in_label_cells(tmp_path):
    frame = pd.DataFrame({"x": [1, 2], "sand": ["55.9%", "20 %"], "clay": ["44.1%", "80%"]})
    frame.to_csv(tmp_path / "soil.csv", index=False)
    with pytest.warns(LabelWarning, match="percentages"):
        table = load_table(tmp_path / "soil.csv", ["sand", "clay"])
    np.testing.assert_allclose(table.D["sand"], [0.559, 0.2])
    assert table.unit == Unit("percent", 100.0)
    assert table.label_names == ["sand", "clay"]
    assert read_labelled(TableSource(tmp_path / "soil.csv"), ["sand", "clay"]).unit == table.unit
    with pytest.warns(LabelWarning, match="percentages"):
        np.testing.assert_allclose(check_distributions(frame[["sand", "clay"]])[0], table.D)


def test_frames_of_shares_have_no_unit_in_their_names(tmp_path):
    rng, names = np.random.default_rng(0), ["Sand (%)", "Clay (%)"]
    percent = pd.DataFrame(100 * rng.dirichlet([2, 3], 30), columns=names).assign(x=rng.normal(size=30))
    percent.to_csv(tmp_path / "soil.csv", index=False)
    with pytest.warns(LabelWarning, match="percentages"):
        table = load_table(tmp_path / "soil.csv", names)
    assert list(table.D) == table.label_names == ["Sand", "Clay"]
    with pytest.warns(LabelWarning, match="percentages"):
        model = SABFGS(max_iter=2).fit(percent[["x"]], percent[names])
    predicted = model.predict(percent[["x"]])
    assert list(predicted) == ["Sand", "Clay"]
    shuffled = percent[names[::-1]] / 100  # aligned by name, with the unit or without
    assert kl_divergence(shuffled, predicted) == pytest.approx(kl_divergence(table.D, predicted))
    with pytest.raises(InputError, match="unknown: Silt"):
        kl_divergence(table.D, predicted.rename(columns={"Clay": "Silt"}))


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["6,605.0", "449.0", "1,234,567.8"], [6605.0, 449.0, 1234567.8]),
        (["6.605,0", "7.123", "449,5"], [6605.0, 7123.0, 449.5]),
        (["12,345", "1,5"], [12.345, 1.5]),
        (["1 234,5", "12\u202f345"], [1234.5, 12345.0]),
        (["6,605.0", "1,5 (about)"], [6605.0, np.nan]),
        (["10,50.0", "0,605"], [np.nan, 0.605]),
        ([3, " 4 %", "1e3"], [3.0, 4.0, 1000.0]),
    ],
)
def test_groups_of_digits(cells, numbers):
    read, wrong = cell_numbers(pd.Series(cells, dtype=object))
    np.testing.assert_array_equal(read, numbers)
    np.testing.assert_array_equal(wrong, np.isnan(numbers))
    assert not cell_numbers(pd.Series(["-", "n/a", None, "1"]))[1].any()  # gaps
    with pytest.raises(InputError, match="complex numbers"):
        cell_numbers(pd.Series([1j, 2.0]))


def test_numbers_of_groups_are_noted():
    rng = np.random.default_rng(0)
    school, study = rng.integers(1, 9, 200), rng.integers(1, 8, 200)
    frame = pd.DataFrame(
        {
            "school": school,
            "studyid": study,
            "rating": rng.integers(1, 6, 200),
            "age": rng.normal(30, 5, 200),
        }
    )
    noted = [note.split("'")[1] for note in TableEncoder.fit(frame).notes if "names groups" in note]
    assert sorted(noted) == ["school", "studyid"]
    assert TableEncoder.fit(frame, {"school": "category"}).columns[0].kind == "category"


# -- the range of the training rows ------------------------------------------------------------------------------------


def climate(n, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"lon": rng.uniform(5, 15, n), "temp": rng.normal(9, 2, n), "rain": rng.lognormal(6.5, 0.3, n)})


def test_rows_outside_the_training_range_are_found():
    encoder = TableEncoder.fit(climate(200))
    far = pd.DataFrame({"lon": [100.0, 10.0], "temp": [60.0, 9.0], "rain": [9000.0, 700.0]})
    assert encoder.outside(far).tolist() == [[True] * 3, [False] * 3]
    low, high = climate(200).min(), climate(200).max()
    new = climate(1000, 1)
    expected = (new < low - 0.2 * (high - low)) | (new > high + 0.2 * (high - low))
    np.testing.assert_array_equal(encoder.outside(new), expected)
    assert 0.0 < expected.any(axis=1).mean() < 0.03
    assert describe_outside(np.zeros(3, dtype=bool), np.zeros(2, dtype=int), ["a", "b"]) == ""


@pytest.mark.parametrize("encoder", [TableEncoder.fit(climate(300)), learn_columns(climate(300).to_numpy())])
def test_the_range_is_stored_with_the_columns(encoder):
    stored = json.loads(json.dumps(encoder.to_dict(), allow_nan=False))
    new = climate(400, 2).to_numpy()
    np.testing.assert_array_equal(read_encoder(stored).outside(new), encoder.outside(new))
    for ends in (stored["ends"][:1], [[0.0], [1.0]], [[0.0, 0.0, np.inf]] * 2):
        with pytest.raises(ModelFileError, match="range of the training rows is damaged"):
            read_encoder({**stored, "ends": ends})
    assert read_encoder({**stored, "ends": None}).outside(new) is None
