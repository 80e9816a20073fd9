"""Columns of people's tables: what each is taken for, what it becomes, and that a file gives it back."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets.cells import cell_numbers, fitting_formats
from snefy_ldl.datasets.columns import TableEncoder, learn_columns, read_encoder
from snefy_ldl.datasets.recognise import OddCells, describe_odd_cells, names_rows
from snefy_ldl.errors import InputError, TableNote

N = 60


def soil(n=N, seed=0):
    """A table with every kind of column."""
    rng = np.random.default_rng(seed)
    ph = rng.normal(6, 1, n).round(2)
    ph[:8] = np.nan
    return pd.DataFrame(
        {
            "sample_id": rng.permutation(np.arange(1000, 1000 + n)),
            "ph": ph,
            "rock": rng.choice(["lime", "clay", "marl"], n),
            "wet": rng.random(n) < 0.4,
            "taken": pd.Timestamp("2020-03-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "lab": "Jena",
            "remark": np.nan,
            "count": np.arange(1, n + 1),
            "depth": rng.integers(1, 100, n),
        }
    )


def kinds(frame, **settings):
    return {column.name: column.kind for column in TableEncoder.fit(frame, **settings).columns}


def shares(n, seed=1):
    return np.random.default_rng(seed).dirichlet(np.ones(3), n)


def test_every_kind_is_recognised():
    columns = TableEncoder.fit(soil()).columns
    assert {column.name: getattr(column, "reason", column.kind) for column in columns} == {
        **{"sample_id": "id", "ph": "number", "rock": "category", "wet": "category", "taken": "date"},
        **{"lab": "constant", "remark": "empty", "count": "counter", "depth": "number"},
    }
    assert all(map(names_rows, ("id", "ID", "sample_id", "sampleID", "plot.no", "Unnamed: 0")))
    assert not any(map(names_rows, ("humid", "ph", "acid", "casino", "turkey", "arrow")))


def test_the_features_are_those_of_scikit_learn():
    frame = soil()
    encoder = TableEncoder.fit(frame[["ph", "rock"]])
    peer = ColumnTransformer(
        [("ph", SimpleImputer(strategy="median", add_indicator=True), ["ph"]), ("rock", OneHotEncoder(), ["rock"])],
        sparse_threshold=0,
    )
    np.testing.assert_array_equal(encoder.transform(frame[["ph", "rock"]]), peer.fit_transform(frame))
    assert encoder.names_out == ["ph", "ph (empty)", "rock=clay", "rock=lime", "rock=marl"]
    assert encoder.groups == {"ph": [0, 1], "rock": [2, 3, 4]}


def test_dates_become_year_day_and_days():
    frame = pd.DataFrame({"day": ["31.12.2019", "1.1.2020", "31.12.2020", None] * 3})
    table = TableEncoder.fit(frame).transform(frame)
    assert table[0].tolist() == [2019, 365, 0]
    assert table[1].tolist() == [2020, 1, 1]
    assert table[2].tolist() == [2020, 366, 366]  # 2020 is a leap year
    assert table[3].tolist() == [2020, 365, 1]  # medians


def test_day_and_month_are_told_where_both_would_do():
    notes = TableEncoder.fit(pd.DataFrame({"day": ["03/04/2020", "05/06/2021"] * 5})).notes
    assert any("day/month/year" in note for note in notes)
    assert fitting_formats(["03/25/2020", "05/06/2021"]) == ["%m/%d/%Y"]


def test_rare_levels_are_pooled_and_unseen_ones_are_counted():
    frame = pd.DataFrame({"rock": ["lime"] * 20 + ["clay"] * 20 + ["gold", "iron"]})
    encoder = TableEncoder.fit(frame)
    assert encoder.names_out == ["rock=clay", "rock=lime", "rock=(other)"]
    with pytest.warns(TableNote, match="values that the model has not seen in 2 cells") as caught:
        table = encoder.transform(pd.DataFrame({"rock": ["mud", "clay", "gold", "peat"]}))
    assert table.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 1]]
    odd = caught[0].message.odd_cells
    assert odd == (OddCells("rock", "unseen", 2, "mud"),)
    assert "in 5 cells (mud, for example)" in describe_odd_cells([*odd, OddCells("rock", "unseen", 3, "peat")])


def test_two_levels_are_one_feature_and_an_unseen_one_is_in_between():
    encoder = TableEncoder.fit(pd.DataFrame({"wet": [True] * 5 + [False] * 15}))
    assert encoder.names_out == ["wet=True"]
    with pytest.warns(TableNote, match="no value in 1 cell, although none was empty in training"):
        assert encoder.transform(pd.DataFrame({"wet": [True, False, None]})).ravel().tolist() == [1, 0, 0.25]


def test_what_grows_from_row_to_row_is_no_id_for_that_alone():
    years = pd.DataFrame({"year": np.arange(1950, 2010), "mass": np.arange(60) * 40, "x": np.arange(60)[::-1]})
    assert set(kinds(years).values()) == {"number"}
    assert kinds(pd.DataFrame({"nummer": np.arange(60), "x": np.random.default_rng(0).normal(size=60)})) == {
        "nummer": "left out",
        "x": "number",
    }


def test_the_user_has_the_last_word():
    words = {"sample_id": "number", "depth": "category", "rock": "drop", "count": "number"}
    taken = kinds(soil(), words=words)
    assert [taken[name] for name in words] == ["number", "category", "left out", "number"]
    with pytest.raises(InputError, match="columns names 'rok'"):
        TableEncoder.fit(soil(), {"rok": "drop"})
    with pytest.raises(InputError, match="'rock' cannot be 'colour'"):
        TableEncoder.fit(soil(), {"rock": "colour"})
    with pytest.raises(InputError, match="cannot be read as dates"):
        TableEncoder.fit(soil(), {"rock": "date"})
    with pytest.raises(InputError, match=r"no columns to learn from.*'lab' is Jena in every row"):
        TableEncoder.fit(soil()[["lab"]])


def test_text_that_is_mostly_numbers_is_numbers():
    frame = pd.DataFrame({"lead": ["1,5", "2,25", "3", "<0,1"] + ["4"] * 8})
    encoder = TableEncoder.fit(frame)
    assert encoder.transform(frame, warn=False)[:4, 0].tolist() == [1.5, 2.25, 3.0, 4.0]
    assert any("1 cell is no number ('<0,1', data row 4)" in note for note in encoder.notes)


def test_a_file_gives_the_encoder_back():
    frame = soil()
    encoder = TableEncoder.fit(frame)
    again = read_encoder(json.loads(json.dumps(encoder.to_dict(), allow_nan=False)))
    np.testing.assert_array_equal(again.transform(frame), encoder.transform(frame))
    assert (again.notes, again.columns) == (encoder.notes, encoder.columns)
    filler = TableEncoder.fit(np.where(np.eye(12) > 0, np.nan, 1.5))
    again = read_encoder(json.loads(json.dumps(filler.to_dict())))
    np.testing.assert_array_equal(again.transform(np.full((2, 12), np.nan)), filler.transform(np.full((2, 12), np.nan)))
    assert read_encoder(None) is None


def test_an_array_gets_the_features_of_its_frame():
    X = np.random.default_rng(0).normal(size=(200, 4))
    X[::5, 0] = X[::7, 2] = np.nan
    frame = pd.DataFrame(X, columns=list("abcd")).assign(b=1.0)  # b is left out
    encoder = TableEncoder.fit(frame)
    assert encoder.names_out == ["a", "a (empty)", "c", "c (empty)", "d"]
    features = encoder.transform(frame)
    np.testing.assert_array_equal(encoder.transform(frame.to_numpy()), features)
    np.testing.assert_array_equal(learn_columns(X[:, [0, 2, 3]]).transform(X[:, [0, 2, 3]]), features)
    with pytest.raises(InputError, match="expecting 4 features"):
        encoder.transform(X[:, :2])


def test_plain_numbers_are_taken_together_as_they_are_one_by_one():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=list("abc")).astype({"c": "float32"})
    encoder, before = TableEncoder.fit(frame), frame.copy()
    features = encoder.transform(frame)
    np.testing.assert_array_equal(features, np.column_stack([cell_numbers(frame[name])[0] for name in frame]))
    features[:] = 0.0  # a copy
    pd.testing.assert_frame_equal(frame, before)
    frame.loc[4, "b"] = np.nan
    with pytest.warns(TableNote, match="'b'"):
        assert encoder.transform(frame)[4, 1] == before["b"].median()
    for value in (np.inf, -1e31):
        frame.loc[4, "b"] = value
        for read in (encoder.transform, TableEncoder.fit):
            with pytest.raises(InputError, match="data row 5, column 'b'"):
                read(frame)


@pytest.mark.slow
def test_a_model_of_a_table_is_saved_with_its_columns(tmp_path):
    frame, D = soil(), shares(N)
    with pytest.warns(TableNote, match=r"'sample_id' names the rows.*'lab' is Jena.*'remark' is empty"):
        model = SnefyLDL(epochs=2, n_neurons=4, random_state=0).fit(frame, D)
    assert model.n_features_in_ == frame.shape[1]
    again = SnefyLDL.load(model.save(tmp_path / "model"))
    shuffled = frame[["rock", "depth", "wet", "ph", "taken"]]  # left-out columns may be missing, in any order
    np.testing.assert_array_equal(again.predict(shuffled), model.predict(frame))
    with pytest.raises(InputError, match="now missing:\n- rock"):
        again.predict(frame.drop(columns="rock"))
    with pytest.raises(InputError, match=r"rock \(category\), wet \(category\), taken \(date\)"):
        again.predict(np.zeros((2, 9)))
    kept = SnefyLDL(columns={"lab": "drop", "remark": "drop", "sample_id": "number", "count": "id"}, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "sample_id" in kept.fit(frame, D).columns_.names_out


def polars_of(frame):
    return pl.from_pandas(frame)


def arrow_of(frame):
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.mark.slow
@pytest.mark.parametrize(("of", "kind"), [(polars_of, pl.DataFrame), (arrow_of, pa.Table)])
def test_tables_of_one_kind_give_tables_of_that_kind(of, kind):
    frame = soil().drop(columns=["sample_id", "lab", "remark", "count"])
    labels = pd.DataFrame(shares(N), columns=list("abc"))
    model = SnefyLDL(epochs=2, n_neurons=4, random_state=0).fit(of(frame), of(labels))
    answer = model.predict(of(frame))
    assert isinstance(answer, kind)
    same = SnefyLDL(epochs=2, n_neurons=4, random_state=0).fit(frame, labels)
    np.testing.assert_array_equal(answer.to_pandas(), same.predict(frame))
    assert answer.to_pandas().columns.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(model.log_prob(of(frame), of(labels)), same.log_prob(frame, labels))


def test_partial_fit_reads_further_rows_as_the_first():
    first = pd.DataFrame({"rock": ["lime", "clay"] * 10, "site": ["a"] * 20, "ph": np.arange(20) / 7})
    later = pd.DataFrame({"rock": ["lime", "mud"] * 10, "site": ["b"] * 20, "ph": np.arange(20) / 7})
    model = SnefyLDL(n_neurons=4, random_state=0).partial_fit(first, shares(20))
    with pytest.warns(TableNote, match="mud"):
        model.partial_fit(later, shares(20, 2))
    assert [column.name for column in model.columns_.columns] == ["rock", "site", "ph"]
