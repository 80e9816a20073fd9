"""Runs that are killed, damaged or widened go on with the same figures."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_studies import GRID, STUDIES, assert_same, records, run, those

from children import Child
from reproduction.studies import missing_parts


@pytest.mark.slow
def test_nothing_is_run_twice(whole_run):
    before = {path: path.stat().st_mtime_ns for path in whole_run.rglob("*.json")}
    run(list(STUDIES.values()), whole_run)
    assert {path: path.stat().st_mtime_ns for path in whole_run.rglob("*.json")} == before


@pytest.mark.slow
def test_the_order_of_runs_does_not_matter(whole_run, tmp_path):
    studies = [STUDIES["conformal"], STUDIES["active"]]
    run(studies, tmp_path, recipes=["default"])
    for path in tmp_path.glob("results/*/default/*[02].json"):
        path.unlink()  # batches that are there in part
    run(studies, tmp_path)
    assert_same(those(records(whole_run), "table3", "table4"), records(tmp_path))


@pytest.mark.slow
def test_how_repeats_are_trained_together_changes_last_bits_alone(whole_run, tmp_path):
    studies = [replace(study, chunk=chunk) for study, chunk in zip(STUDIES.values(), (1, 3, 1, 1))]
    run([replace(study, repeats=1) for study in studies], tmp_path, recipes=["paper"])
    run(studies, tmp_path)
    both = records(whole_run), records(tmp_path)
    for found in both:
        for place, record in found.items():
            if "table4" in place:  # a query by entropy may turn a last bit into another row
                del record["figures"]["strategies"]["SNEFY-LDL"]
    assert_same(*both, tolerance=1e-4)


@pytest.mark.slow
def test_worker_processes_give_the_same(whole_run, tmp_path):
    run(list(STUDIES.values()), tmp_path, recipes=["default"], jobs=2)
    assert_same(those(records(whole_run), "/default/", "/baseline/"), records(tmp_path))


#: A study whose repeats have a record each, and one whose records grow.
KILLED = [STUDIES["conformal"], STUDIES["figure"]]


def run_alone(channel, out: Path, jobs: int):
    """A run in a process of its own, and in a session of its own: what a kill leaves alive can be found."""
    os.setsid()
    run(KILLED, out, jobs=jobs)


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "seed"), [(1, 0), (2, 1)])
def test_a_killed_run_goes_on(whole_run, tmp_path, jobs, seed):
    out = tmp_path / "out"
    whole = those(records(whole_run), "table3", "figureA1")
    moment = random.Random(seed).randrange(1, len(whole) - 2)
    process = Child(run_alone, out, jobs)
    until = time.monotonic() + 120
    while len(list(out.glob("results/*/*/*.json"))) < moment:
        assert process.alive
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    done = {path: path.read_bytes() for path in out.glob("results/*/*/*.json") if "figureA1" not in path.parts}
    assert 0 < len(records(out)) < len(whole)  # every file there is whole JSON
    _wait_for_the_end_of_group(process.pid)
    run(KILLED, out)
    assert_same(whole, records(out))
    assert all(path.read_bytes() == content for path, content in done.items())
    assert json.loads((out / "run.json").read_text())["finished"] is not None


def _wait_for_the_end_of_group(group: int) -> None:
    """Workers end with their parent: soon the whole process group is gone."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)
    raise AssertionError("worker processes outlived their killed parent")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1}', "fingerprint"])
def test_damaged_and_stale_records_are_redone(tmp_path, damage, capsys):
    study = replace(STUDIES["conformal"], repeats=2)
    run([study], tmp_path, recipes=["default"])
    before = records(tmp_path)
    place = "results/table3/default/001.json"
    path = tmp_path / place
    if damage == "fingerprint":
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "fingerprint": "0", "figures": {"models": {}}}))
    else:
        path.write_text(damage)
    other = (tmp_path / "results/table3/default/000.json").stat().st_mtime_ns
    run([study], tmp_path, recipes=["default"])
    assert_same(before, records(tmp_path))
    assert (tmp_path / "results/table3/default/000.json").stat().st_mtime_ns == other
    assert path.with_suffix(".stale").exists()
    assert "1 damaged or outdated result files were set aside" in " ".join(capsys.readouterr().err.split())


def test_leftovers_of_a_kill_are_swept(tmp_path):
    study = replace(STUDIES["conformal"], repeats=1)
    run([study], tmp_path, recipes=["default"])
    left, busy = (tmp_path / f"results/table3/default/.000.json.{name}.part" for name in ("abcdefgh", "ijklmnop"))
    for path in (left, busy):
        path.write_text("{")
    os.utime(left, (0, 0))
    run([study], tmp_path, recipes=["default"])
    assert not left.exists()
    assert busy.exists()  # another run is writing it


def test_a_wider_grid_adds_to_the_record(tmp_path):
    study = replace(STUDIES["figure"], repeats=1)
    narrow = replace(study, protocol=replace(GRID, panels=(("n_neurons", (4,)), ("epochs", (2,)))))
    run([narrow], tmp_path, recipes=["default"])
    path = tmp_path / "results/figureA1/default/000.json"
    first = json.loads(path.read_text())
    assert missing_parts(study, "default", first["figures"]) == ["base"]
    run([study], tmp_path, recipes=["default"])
    second = json.loads(path.read_text())
    assert second["figures"]["panels"]["epochs"]["2"] == first["figures"]["panels"]["epochs"]["2"]
    assert set(second["figures"]["panels"]["epochs"]) == {"2", "3"}
    assert second["seconds"] > first["seconds"]
    run([narrow], tmp_path, recipes=["default"])
    assert json.loads(path.read_text()) == second
