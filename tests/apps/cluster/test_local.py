"""Work in parts on this machine: the same numbers as whole tables, resumed, refused, on any file system."""

from __future__ import annotations

import filecmp
import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from cluster_cases import CITY, FEATURES, fill_folder
from commands import fail, run, succeed
from snefy_ldl.apps.cluster.base import EngineError, LocalEngine, run_parts
from snefy_ldl.apps.cluster.parts import Part, PartTable, StoragePath, find_tables, plan_parts
from snefy_ldl.apps.cluster.ray import allocate_workers
from snefy_ldl.apps.cluster.work import ModelFiles, Predictions
from snefy_ldl.errors import DataNotFoundError, InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("parts"))


def predictions(folder, **options):
    return Predictions(ModelFiles.read(folder / "model"), tuple(FEATURES), ("id",), **options)


def test_parts_hold_the_rows_of_one_table_in_their_order(folder, tmp_path):
    level, model = ("--interval", 0.9, "--out"), folder / "model"
    succeed("predict", model, folder / "all.parquet", "--keep", "id", *level, tmp_path / "a.parquet")
    succeed("predict", model, folder / "a.parquet", folder / "b.parquet", *level, tmp_path / "out")
    whole, parts = pd.read_parquet(tmp_path / "a.parquet"), pd.read_parquet(tmp_path / "out")
    assert list(parts["id"]) == [f"r{k}" for k in range(len(CITY.X))]
    assert list(parts.columns) == list(whole.columns)
    numbers = [name for name in whole.columns if name != "id"]
    np.testing.assert_allclose(parts[numbers], whole[numbers], atol=1e-6, rtol=0)


def test_finished_parts_are_kept_and_others_made_again(folder, tmp_path):
    table, work, out = PartTable(find_tables([str(folder / "all.parquet")])), predictions(folder), tmp_path / "out"
    first = run_parts(LocalEngine(2), work, table, str(out), part_rows=200)
    assert (first.kept, first.rows, len(first.outcomes)) == (0, len(CITY.X), 4)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "part-000001.parquet").unlink()
    (out / "part-000002.parquet").write_bytes(before["part-000002.parquet"][:-40])  # as a copy that broke off
    (out / ".part-000003.parquet.0.part").write_bytes(b"left by a worker that was killed")
    again = run_parts(LocalEngine(2), work, table, str(out), part_rows=200)
    assert again.kept == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    # another question makes every part anew
    assert run_parts(LocalEngine(2), predictions(folder, interval=0.5), table, str(out), part_rows=200).kept == 0


def test_parts_of_another_run_are_not_taken_for_ours(folder, tmp_path):
    table, work, out = PartTable(find_tables([str(folder / "a.parquet")])), predictions(folder), str(tmp_path / "out")
    run_parts(LocalEngine(), work, table, out, part_rows=100)
    with pytest.raises(InputError, match=r"part-000001\.parquet, which is not part of this run"):
        run_parts(LocalEngine(), work, table, out, part_rows=1000)


@pytest.mark.parametrize("kind", ["file", "local"], ids=["pyarrow", "fsspec"])
def test_addresses_of_file_systems(folder, tmp_path, kind):
    source = f"{kind}://{folder}/*.parquet"
    places = find_tables([source])
    assert [place.name for place in places] == ["a.parquet", "all.parquet", "b.parquet"]
    out = f"{kind}://{tmp_path}/out"
    run = run_parts(LocalEngine(), predictions(folder), PartTable(places[:1]), out, part_rows=100)
    plain = str(tmp_path / "plain")
    run_parts(
        LocalEngine(), predictions(folder), PartTable([StoragePath(str(folder / "a.parquet"))]), plain, part_rows=100
    )
    for outcome in run.outcomes:
        name = f"part-{outcome.number:06d}.parquet"
        assert pq.read_table(tmp_path / "out" / name).equals(pq.read_table(tmp_path / "plain" / name))


def test_an_unknown_address_is_told():
    with pytest.raises(InputError, match="neither pyarrow nor fsspec"):
        StoragePath("nowhere://x/y.parquet").open()


def test_a_wrong_cell_is_named_by_file_and_row(folder, tmp_path):
    frame = pd.read_parquet(folder / "a.parquet")
    frame.loc[57, FEATURES[1]] = np.inf
    frame.to_parquet(tmp_path / "wrong.parquet", row_group_size=50)
    line = fail("predict", folder / "model", tmp_path / "wrong.parquet", "--out", tmp_path / "out")
    assert "wrong.parquet, data row 58" in line
    assert FEATURES[1] in line


def test_a_folder_of_parquet_files_is_one_table(folder, tmp_path):
    (tmp_path / "rows").mkdir()
    for name in ("a", "b"):
        (tmp_path / "rows" / f"{name}.parquet").symlink_to(folder / f"{name}.parquet")
    whole = json.loads(succeed("evaluate", folder / "model", folder / "all.parquet", "--json").stdout)
    assert json.loads(succeed("evaluate", folder / "model", tmp_path / "rows", "--json").stdout) == whole
    options = ("--strategy", "entropy", "-n", 20, "--out")
    succeed("query", folder / "model", folder / "all.parquet", *options, tmp_path / "all.csv")
    succeed("query", folder / "model", tmp_path / "rows", *options, tmp_path / "rows.csv")
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "rows.csv").read_bytes()
    pd.DataFrame({"other": [1.0]}).to_parquet(tmp_path / "rows" / "c.parquet")
    assert "c.parquet lacks" in fail("evaluate", folder / "model", tmp_path / "rows")


def test_options_that_do_not_go_together(folder, tmp_path):
    table, model = folder / "a.parquet", folder / "model"
    assert run("predict", model, table, "--engine", "spark", "--out", tmp_path / "o").exit_code == 2
    assert run("predict", model, table, "--engine", "ray", "--out", tmp_path / "o.csv").exit_code == 2
    assert run("predict", model, table, "--address", "auto", "--out", tmp_path / "o").exit_code == 2
    assert run("predict", model, table, table, "--out", tmp_path / "o.csv").exit_code == 2
    assert "named twice" in fail("predict", model, table, table, "--out", tmp_path / "o")
    with pytest.raises(DataNotFoundError):
        find_tables([str(tmp_path / "*.parquet")])


def test_parts_are_runs_of_row_groups(tmp_path):
    pd.DataFrame({"x": range(25)}).to_parquet(tmp_path / "a.parquet", row_group_size=4)
    pd.DataFrame({"x": range(25, 30)}).to_parquet(tmp_path / "b.parquet")
    table = PartTable(find_tables([str(tmp_path)]))
    parts = plan_parts(table, 8)
    assert [(part.first, part.rows) for part in parts] == [(0, 8), (8, 8), (16, 8), (24, 1), (0, 5)]
    cells = [cell for part in parts for _, batch in part.batches(["x"], 3) for cell in batch.column(0).to_pylist()]
    assert cells == list(range(30))
    assert [part.before for part in parts] == list(np.cumsum([0, *[part.rows for part in parts]])[:-1])
    assert isinstance(parts[0], Part)


def test_workers_never_take_the_whole_cluster():
    for cpus in (1.0, 2.0, 3.0, 64.0):
        for wanted in (None, 1, 7, 100):
            shares = allocate_workers({"CPU": cpus}, wanted)
            assert shares.workers * shares.cpus <= 0.9 * cpus + 1e-9
    assert allocate_workers({"CPU": 8.0}, tasks=3).workers == 3
    with pytest.raises(EngineError, match="no processor"):
        allocate_workers({"memory": 1.0})


def test_both_files_of_a_model_travel(folder, tmp_path):
    shipped = ModelFiles.read(folder / "model")
    shipped.write(tmp_path / "copy")
    names = [path.name for path in (folder / "model").iterdir() if path.is_file()]
    assert filecmp.cmpfiles(folder / "model", tmp_path / "copy", names, shallow=False)[0] == names
