"""Parquet files by ranges of rows, what a worker predicts, without a cluster."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as pq
import pytest

from cluster_cases import FEATURES, fill_folder
from commands import fail, succeed
from snefy_ldl import load
from snefy_ldl.apps.cluster.parquet import ParquetTable
from snefy_ldl.apps.cluster.predict_files import Predictor, predict_on_ray
from snefy_ldl.apps.cluster.ray import EngineError, count_workers, translate
from snefy_ldl.errors import DataNotFoundError, InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("parts"))


def test_a_worker_predicts_what_the_command_line_writes(folder, tmp_path):
    level, model = ("--interval", 0.9, "--out"), folder / "model"
    succeed("predict", model, folder / "all.parquet", "--keep", "id", *level, tmp_path / "a.parquet")
    predictor = Predictor(load(model), FEATURES, ["id"], 0.9)
    there = predictor(pq.read_table(folder / "all.parquet")).to_pandas()
    pd.testing.assert_frame_equal(there, pd.read_parquet(tmp_path / "a.parquet"), atol=1e-6, rtol=0)


def test_a_wrong_cell_is_named_by_file_and_column(folder):
    table = pq.read_table(folder / "a.parquet").to_pandas()
    table.loc[57, FEATURES[1]] = np.inf
    table["path"] = "/data/wrong.parquet"
    with pytest.raises(InputError, match=rf"wrong\.parquet.* row 58.*{FEATURES[1]}"):
        Predictor(load(folder / "model"), FEATURES)(pyarrow.Table.from_pandas(table))


def test_an_error_of_a_worker_arrives_as_its_sentence():
    assert isinstance(translate(ValueError("a\nsnefy_ldl.errors.InputError: b.parquet: no number")), InputError)
    lost = translate(RuntimeError("Traceback\nworker died"))
    assert isinstance(lost, EngineError)
    assert "worker died" in str(lost)


def test_any_range_of_rows_is_read_in_order(tmp_path):
    (tmp_path / "more").mkdir()
    pd.DataFrame({"x": range(25)}).to_parquet(tmp_path / "a.parquet", row_group_size=4)
    pd.DataFrame({"x": range(25, 30)}).to_parquet(tmp_path / "more" / "b.pq")
    (tmp_path / ".hidden.parquet").write_bytes(b"not a table")
    table = ParquetTable([f"file://{tmp_path}"])
    for first, last in ((0, 30), (3, 4), (7, 26), (29, 30), (5, 5)):
        batches = list(table.batches(["x"], first, last, 3))
        assert [x for batch in batches for x in batch.column(0).to_pylist()] == list(range(first, last))
        assert all(batch.num_rows <= 3 for batch in batches)


def test_files_that_do_not_fit_are_named(folder, tmp_path):
    with pytest.raises(InputError, match="does not support"):
        ParquetTable(["nowhere://x/y.parquet"])
    with pytest.raises(DataNotFoundError, match="no Parquet file"):
        ParquetTable([str(tmp_path)])
    with pytest.raises(InputError, match="named twice"):
        ParquetTable([str(folder / "a.parquet"), str(folder)])
    pd.DataFrame({"other": [1.0]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(InputError, match="lacks columns"):
        ParquetTable([str(folder / "a.parquet"), str(tmp_path / "c.parquet")])
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read"):
        ParquetTable([str(tmp_path / "d.parquet")])
    with pytest.raises(InputError, match="holds Parquet files already"):
        predict_on_ray(load(folder / "model"), [str(folder / "a.parquet")], str(tmp_path))


def test_a_folder_of_parquet_files_is_one_table(folder, tmp_path):
    (tmp_path / "rows").mkdir()
    for name in ("a", "b"):
        (tmp_path / "rows" / f"{name}.parquet").symlink_to(folder / f"{name}.parquet")
    whole = json.loads(succeed("evaluate", folder / "model", folder / "all.parquet", "--json").stdout)
    assert json.loads(succeed("evaluate", folder / "model", tmp_path / "rows", "--json").stdout) == whole
    pd.DataFrame({"other": [1.0]}).to_parquet(tmp_path / "rows" / "c.parquet")
    assert "c.parquet lacks" in fail("evaluate", folder / "model", tmp_path / "rows")


def test_a_cluster_that_is_too_small_is_named():
    for total, wanted in (({"memory": 1.0}, None), ({"CPU": 2.0}, 3)):
        with pytest.raises(EngineError, match="processors for"):
            count_workers(total, wanted)
