"""Work in parts on a Ray cluster of two nodes: the same files as on this machine, whatever happens to the workers."""

from __future__ import annotations

import filecmp
import os
import signal

import pytest

from cluster_cases import FEATURES, LABELS, city_frame, fill_folder
from commands import fail, succeed
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.cluster.base import EngineError, LocalEngine, run_parts
from snefy_ldl.apps.cluster.parts import PartTable, StoragePath
from snefy_ldl.apps.cluster.ray import RayEngine
from snefy_ldl.apps.cluster.training import ParquetRows, RayTraining
from snefy_ldl.apps.cluster.work import ModelFiles, Predictions
from snefy_ldl.errors import TrainingError

# Ray leaves sockets and old interfaces behind, which are warnings, and none of ours
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def work(folder):
    return Predictions(ModelFiles.read(folder / "model"), tuple(FEATURES), ("id",), 0.9)


class Killer(RayEngine):
    """Kills the worker that finishes first; the other parts are still to be done."""

    killed = 0

    def outcomes(self, work, parts, out):
        for outcome in super().outcomes(work, parts, out):
            if not self.killed:
                self.killed = outcome.pid
                os.kill(outcome.pid, signal.SIGKILL)
            yield outcome


def same_files(first, second):
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert filecmp.cmpfiles(first, second, names, shallow=False)[0] == names


def test_a_killed_worker_loses_and_doubles_nothing(cluster_address, folder, work, tmp_path):
    table = PartTable([StoragePath(str(folder / "all.parquet"))])
    run_parts(LocalEngine(), work, table, str(tmp_path / "local"), part_rows=100)
    engine = Killer(cluster_address)
    run = run_parts(engine, work, table, str(tmp_path / "ray"), part_rows=100)
    assert engine.killed
    assert run.rows == 800
    assert len({outcome.pid for outcome in run.outcomes}) >= 2
    same_files(tmp_path / "local", tmp_path / "ray")
    # nothing is left to do, so no cluster is asked
    assert run_parts(RayEngine("nowhere:1"), work, table, str(tmp_path / "ray"), part_rows=100).kept == 8


def test_predict_on_a_cluster_writes_what_it_writes_here(cluster_address, folder, tmp_path):
    words = ("predict", folder / "model", folder / "a.parquet", folder / "b.parquet", "--out")
    succeed(*words, tmp_path / "here")
    succeed(*words, tmp_path / "ray", "--engine", "ray", "--address", cluster_address)
    same_files(tmp_path / "here", tmp_path / "ray")


def test_a_wrong_row_is_told_as_it_is_here(cluster_address, folder, tmp_path):
    frame = city_frame()
    frame.loc[57, FEATURES[1]] = float("inf")
    frame.to_parquet(tmp_path / "wrong.parquet", row_group_size=400)
    words = ("predict", folder / "model", tmp_path / "wrong.parquet", "--out", tmp_path / "out")
    line = fail(*words, "--engine", "ray", "--address", cluster_address)
    assert "wrong.parquet, data row 58" in line


def test_a_run_without_progress_ends_with_a_sentence(cluster_address, folder, work, tmp_path):
    table = PartTable([StoragePath(str(folder / "all.parquet"))])
    with pytest.raises(EngineError, match=r"no part was finished for 0\.01 s and 1 are left: 1 workers of 0\.9"):
        run_parts(RayEngine(cluster_address, patience=0.01), work, table, str(tmp_path / "out"))


def test_a_cluster_that_is_not_there_is_told(folder, work, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'snefy-ldl[ray]'")
    table = PartTable([StoragePath(str(folder / "all.parquet"))])
    with pytest.raises(EngineError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        run_parts(RayEngine("127.0.0.1:1"), work, table, str(tmp_path / "out"))


class KillOne:
    """Kills one worker after an epoch."""

    killed = None

    def __call__(self, epoch, pids):
        if epoch and self.killed is None:
            self.killed = pids[0]
            os.kill(self.killed, signal.SIGKILL)


def test_a_fit_goes_on_when_a_worker_is_killed(cluster_address, tmp_path):
    frame = city_frame()
    frame[:600].to_parquet(tmp_path / "train.parquet", row_group_size=100)
    rows, test = ParquetRows((str(tmp_path),), tuple(LABELS), tuple(FEATURES)), frame[600:]
    settings = {"epochs": 40, "n_neurons": 16, "n_readouts": 8, "batch_size": 32, "random_state": 0}
    here = SnefyLDL(**settings).fit(rows.stream())
    killer = KillOne()
    there = SnefyLDL(**settings).fit(rows, engine=RayTraining(2, cluster_address, on_epoch=killer))
    assert killer.killed is not None
    assert there.training_["workers"] == 2
    assert there.training_["epochs"] == 40
    scores = [model.log_prob(test[FEATURES], test[LABELS]).mean() for model in (here, there)]
    untrained = SnefyLDL(**{**settings, "epochs": 1}).fit(rows.stream()).log_prob(test[FEATURES], test[LABELS]).mean()
    assert scores[1] > untrained
    assert abs(scores[0] - scores[1]) < 0.3


def test_a_row_that_breaks_a_rule_ends_a_fit_with_its_sentence(cluster_address, tmp_path):
    frame = city_frame()
    frame.loc[700, LABELS] = [0.9, 0.9, 0.9]
    frame.to_parquet(tmp_path / "train.parquet", row_group_size=100)
    rows = ParquetRows((str(tmp_path),), tuple(LABELS), tuple(FEATURES))
    with pytest.raises(TrainingError, match=r"sums to 2\.7"):
        SnefyLDL(epochs=2, random_state=0).fit(rows, engine=RayTraining(2, cluster_address))
