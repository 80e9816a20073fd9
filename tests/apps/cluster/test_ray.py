"""Work on a Ray cluster of two nodes: the same rows as on this machine, and a fit that survives a lost worker."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest

from cluster_cases import FEATURES, LABELS, city_frame, fill_folder
from commands import succeed
from snefy_ldl import SnefyLDL, load
from snefy_ldl.apps.cluster.fit_files import ParquetRows, RayTraining
from snefy_ldl.apps.cluster.predict_files import predict_on_ray
from snefy_ldl.apps.cluster.ray import EngineError, connected
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.errors import InputError
from snefy_ldl.snefy import fit_stream

# Ray leaves sockets and old interfaces behind, which are warnings, and none of ours
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _quiet_logging(monkeypatch):
    # Ray Data logs to the stderr of the first command that used it, which is closed when the next one runs
    monkeypatch.setattr(logging, "raiseExceptions", False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill_folder(tmp_path_factory.mktemp("cluster"))


def test_predict_on_a_cluster_writes_what_it_writes_here(cluster_address, folder, tmp_path):
    words = ("--keep", "id", "--interval", 0.9, "--out", tmp_path / "here.parquet")
    succeed("predict", folder / "model", folder / "all.parquet", *words)
    files, about = [str(folder / f"{name}.parquet") for name in "ab"], {"keep": ["id"], "interval": 0.9}
    predict_on_ray(load(folder / "model"), files, str(tmp_path / "ray"), **about, address=cluster_address)
    here, there = pd.read_parquet(tmp_path / "here.parquet"), pd.read_parquet(tmp_path / "ray")
    pd.testing.assert_frame_equal(there, here, atol=1e-6, rtol=0)  # in the order of the rows


def test_a_wrong_row_is_named(cluster_address, folder, tmp_path):
    frame = city_frame()
    frame.loc[57, FEATURES[1]] = float("inf")
    frame.to_parquet(tmp_path / "wrong.parquet", row_group_size=400)
    file, out = str(tmp_path / "wrong.parquet"), str(tmp_path / "out")
    with pytest.raises(InputError, match=rf"wrong\.parquet.*{FEATURES[1]}"):
        predict_on_ray(load(folder / "model"), [file], out, address=cluster_address)


def test_a_cluster_that_does_not_answer_is_named():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'snefy-ldl[ray]'")
    with pytest.raises(EngineError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"), connected("127.0.0.1:1"):
        pass


class DyingRows(ParquetRows):
    """Rows whose second worker is killed in the third pass, once."""

    def shard(self, rank, workers):
        whole, passes = super().shard(rank, workers), iter(range(100))

        def blocks():
            died = Path(self.addresses[0]) / "died"
            if rank == 1 and next(passes) == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return whole._blocks()

        return Stream(blocks, whole.n_rows, self.counts)


def test_a_fit_goes_on_when_a_worker_is_killed(cluster_address, tmp_path):
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have this module
    frame = city_frame()
    frame[:600].to_parquet(tmp_path / "train.parquet", row_group_size=100)
    rows, test = DyingRows((str(tmp_path),), tuple(LABELS), tuple(FEATURES)), frame[600:]
    settings = {"epochs": 5, "n_neurons": 16, "n_readouts": 8, "batch_size": 32, "random_state": 0}
    here = fit_stream(SnefyLDL(**settings), rows.stream())
    there = RayTraining(2, cluster_address).fit(SnefyLDL(**settings), rows)
    assert (tmp_path / "died").exists()
    assert there.training_["workers"] == 2
    assert there.training_["epochs"] == 5
    scores = [model.log_prob(test[FEATURES], test[LABELS]).mean() for model in (here, there)]
    untrained = fit_stream(SnefyLDL(**{**settings, "epochs": 1}), rows.stream())
    untrained = untrained.log_prob(test[FEATURES], test[LABELS]).mean()
    assert scores[1] > untrained
    assert abs(scores[0] - scores[1]) < 0.3


def test_a_row_that_breaks_a_rule_ends_a_fit_with_its_sentence(cluster_address, tmp_path):
    frame = city_frame()
    frame.loc[700, LABELS] = [0.9, 0.9, 0.9]
    frame.to_parquet(tmp_path / "train.parquet", row_group_size=100)
    rows = ParquetRows((str(tmp_path),), tuple(LABELS), tuple(FEATURES))
    with pytest.raises(InputError, match=r"sums to 2\.7"):
        RayTraining(2, cluster_address, replacements=0).fit(SnefyLDL(epochs=2, random_state=0), rows)
