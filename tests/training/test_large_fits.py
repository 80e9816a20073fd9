"""Fits on very many rows: chosen on a sample, trained on all; tables read without a copy."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl._internal.validation import check_features
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.scaling import _moments_by_parts, column_moments
from snefy_ldl.snefy import fit_many
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.policy import POLICY
from snefy_ldl.training.settings import Settings

SMALL = {"n_neurons": 8, "n_readouts": 4, "hidden_sizes": (6,), "epochs": 2, "random_state": 0}


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(POLICY), "large_rows", 300)
    monkeypatch.setitem(vars(POLICY), "sample_rows", 120)


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
def test_a_large_fit_is_the_fit_of_what_its_sample_chose() -> None:
    city = make_city_districts(n=400, random_state=0)
    D = city.D
    model = SnefyLDL(**SMALL).fit(city.X, D)
    assert model.training_["chosen_by"] == 120
    assert model.training_["rows"] == 340
    assert model.guides_ is None
    plain = SnefyLDL(**SMALL, guides=None, standardize=model.scaling_)
    np.testing.assert_array_equal(plain.fit(city.X, D).predict(city.X), model.predict(city.X))


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
def test_guides_that_win_by_far_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(POLICY), "sample_rows", 200)
    monkeypatch.setitem(vars(POLICY), "few_rows", 100)
    monkeypatch.setattr("snefy_ldl.training.fit.PREDICTION_ROWS", 64)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    D = np.where(np.prod(np.sign(X), 1)[:, None] > 0, [[0.8, 0.15, 0.05]], [[0.05, 0.15, 0.8]])
    D = np.stack([rng.dirichlet(40.0 * row) for row in D])

    class Sign(TreesLDL):
        """A learner that knows what no small network learns in two epochs."""

        def _fit(self, X: np.ndarray, D: np.ndarray, random: object) -> None:
            self.seen_ = len(X)

        def _predict(self, X: np.ndarray) -> np.ndarray:
            return np.where(np.prod(np.sign(X), 1)[:, None] > 0, [[0.8, 0.15, 0.05]], [[0.05, 0.15, 0.8]])

    monkeypatch.setattr("snefy_ldl.training.policy.default_guides", lambda *_: [Sign()])
    model = SnefyLDL(**SMALL).fit(X, D)
    assert model.inputs_ in ("guides", "both")
    assert model.guides_.learners[0].seen_ == 200
    assert model.training_["rows"] == 170  # the guides' own rows are left out, and validation rows
    assert model.predict(X[:5]).shape == (5, 3)
    monkeypatch.setitem(vars(POLICY), "guide_gain", 1e6)
    assert SnefyLDL(**SMALL).fit(X, D).inputs_ == "features"


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
def test_many_large_fits_equal_lone_ones() -> None:
    city = make_city_districts(n=400, random_state=0)
    rows = np.arange(50, 390)
    (together,) = fit_many(SnefyLDL(**SMALL), city.X, city.D, [rows])
    alone = SnefyLDL(**SMALL).fit(city.X[rows], city.D[rows])
    np.testing.assert_array_equal(together.predict(city.X), alone.predict(city.X))


@pytest.mark.usefixtures("few_are_many")
def test_votes_weights_and_members_of_a_large_fit() -> None:
    city = make_city_districts(n=400, random_state=0)
    counts = np.random.default_rng(0).multinomial(20, city.D)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 400)
    model = SnefyLDL(**SMALL, n_members=2).fit(city.X, counts=counts, sample_weight=weights)
    assert model.training_["chosen_by"] == 120
    assert model.net_.n_members == 2


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("change", [{"standardize": "unit", "guides": None}, {"validation_fraction": 0.0}])
def test_where_nothing_is_to_be_chosen_no_sample_is_drawn(change: dict) -> None:
    city = make_city_districts(n=400, random_state=0)
    assert "chosen_by" not in SnefyLDL(**SMALL, **change).fit(city.X, city.D).training_


def test_a_part_of_the_data_has_its_rows() -> None:
    D = np.full((6, 4), 0.25)
    D[4, :2] = np.nan
    with pytest.warns(UserWarning, match="unknown shares"):
        data = TrainingData(np.eye(6), D, None, np.arange(1.0, 7.0), custom=False)
    part = data.take(np.array([1, 3]))
    assert data.has_gaps
    assert not part.has_gaps
    assert part.n_rows == 2
    np.testing.assert_array_equal(part.features, np.eye(6)[[1, 3]])
    assert part.weights is not None
    np.testing.assert_allclose(part.weights, data.weights[[1, 3]])


def test_more_rows_take_larger_batches() -> None:
    sizes = [POLICY.schedule(Settings(), rows).batch_size for rows in (100, 1_000, 20_000, 60_000, 10**6)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 256


def test_moments_of_parts_are_those_of_the_whole() -> None:
    X = (np.random.default_rng(0).normal(3.0, [[0.1, 5.0, 0.0]], size=(400_000, 3))).astype(np.float32)
    for ours, other in zip(_moments_by_parts(X), column_moments(X.astype(np.float64))):
        np.testing.assert_allclose(ours, other, rtol=1e-12, atol=1e-9)


def test_a_large_frame_of_float32_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(2000, 50)).astype(np.float32)
    frame = pd.DataFrame(values, columns=[f"f{k}" for k in range(50)], copy=False)
    assert check_features(frame).dtype == np.float64  # a small one is treated as ever
    monkeypatch.setattr("snefy_ldl._internal.validation.SINGLE_NUMBERS", 1000)
    assert np.shares_memory(check_features(frame), values)
    values[7, 3] = np.nan
    with pytest.raises(ValueError, match="NaN at data row 8, column 'f3'"):
        check_features(frame)
    whole = frame.fillna(0.0)
    assert check_features(whole.astype({"f1": "float64"})).dtype == np.float64
    monkeypatch.setattr("snefy_ldl.datasets.columns.SINGLE_NUMBERS", 1000)
    encoder = TableEncoder.fit(whole)
    assert encoder.transform(whole).dtype == np.float32
    np.testing.assert_array_equal(encoder.transform(whole), whole.to_numpy())
    assert encoder.transform(whole.astype("float64")).dtype == np.float64


def test_moments_of_a_large_table_take_no_copy_of_it() -> None:
    X = np.ones((1 << 18, 33), dtype=np.float32)
    tracemalloc.start()
    column_moments(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes / 2


def test_a_parquet_file_is_read_as_a_frame_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from snefy_ldl.datasets import load_table, table_files

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(500, 3)), columns=["a", "b", "c"]).astype({"b": "float32"})
    frame["n"] = rng.integers(0, 9, 500)
    frame[["x", "y"]] = rng.dirichlet([1.0, 2.0], 500)
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=130)
    straight = load_table(tmp_path / "t.parquet", "x,y")
    monkeypatch.setattr(table_files, "SINGLE_NUMBERS", 100)
    monkeypatch.setattr("snefy_ldl._internal.validation.SINGLE_NUMBERS", 100)
    done: list[tuple[int, int]] = []
    single = load_table(tmp_path / "t.parquet", "x,y", progress=lambda *step: done.append(step))
    numbers = frame[["a", "b", "c", "n"]].to_numpy(dtype=np.float64)
    np.testing.assert_array_equal(straight.X, numbers)
    np.testing.assert_allclose(straight.D, frame[["x", "y"]], rtol=1e-12)
    assert set(single.X.dtypes) == {np.dtype(np.float32)}
    np.testing.assert_array_equal(single.X, numbers.astype(np.float32))
    np.testing.assert_array_equal(single.D, straight.D)
    assert done[-1] == (500, 500)


def test_a_bad_cell_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    from snefy_ldl.datasets import load_table

    frame = pd.DataFrame({"a": [1.0, None], "x": [0.5, 0.5], "y": [0.5, 0.5], "t": ["u", "v"], "e": [True, None]})
    frame.to_parquet(tmp_path / "t.parquet")
    assert load_table(tmp_path / "t.parquet", "x,y", "a,t,e").X["a"].isna().tolist() == [False, True]
    frame.assign(x=["half", "0.5"]).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet, data row 1, column 'x': 'half' is no number"):
        load_table(tmp_path / "t.parquet", "x,y", "a")
