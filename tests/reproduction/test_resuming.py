"""Runs that are killed, damaged or widened go on with the same figures."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_studies import STUDIES, records, run, those

from children import Child

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
    assert records(out) == whole
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


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["", '{"version": 1}', "fingerprint"])
def test_damaged_and_stale_records_are_redone(tmp_path, damage, capsys):
    study = replace(STUDIES["conformal"], repeats=2)
    run([study], tmp_path, recipes=["default"])
    before = records(tmp_path)
    path = tmp_path / "results/table3/default/001.json"
    if damage == "fingerprint":
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "fingerprint": "0", "figures": {"models": {}}}))
    else:
        path.write_text(damage)
    run([study], tmp_path, recipes=["default"])
    assert records(tmp_path) == before
    assert path.with_suffix(".stale").exists()
    assert "1 damaged or outdated result files were set aside" in " ".join(capsys.readouterr().err.split())
