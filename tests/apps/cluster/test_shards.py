"""Rows shared out among workers: each has as many, none twice; and gradients averaged are those of all rows."""

from __future__ import annotations

import threading

import numpy as np
import pandas as pd
import pytest
import torch

from cluster_cases import FEATURES, LABELS, city_frame
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.cluster.fit_files import ParquetRows
from snefy_ldl.training.stream_fit import StreamFit


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_worker_has_as_many_rows_in_the_same_blocks(tmp_path, workers):
    frame = pd.DataFrame({"x": np.arange(10_001.0), "a": 0.5, "b": 0.5})
    frame[:7000].to_parquet(tmp_path / "a.parquet", row_group_size=999)
    frame[7000:].to_parquet(tmp_path / "b.parquet", row_group_size=4100)
    rows = ParquetRows((str(tmp_path),), ("a", "b"))
    shards = [[chunk for chunk in rows.shard(rank, workers).chunks()] for rank in range(workers)]
    assert len({tuple(len(chunk) for chunk in shard) for shard in shards}) == 1
    seen = np.concatenate([chunk.X["x"] for shard in shards for chunk in shard])
    np.testing.assert_array_equal(seen, np.arange(10_001 // workers * workers))


class Threads:
    """An exchange between threads, with a barrier in the place of a network."""

    def __init__(self, n_workers):
        self.n_workers, self._barrier, self._given = n_workers, threading.Barrier(n_workers, timeout=60), {}

    def average(self, tensors):
        self._given[threading.get_ident()] = [tensor.clone() for tensor in tensors]
        self._barrier.wait()
        means = [torch.stack(group).mean(0) for group in zip(*self._given.values())]
        self._barrier.wait()
        for tensor, mean in zip(tensors, means):
            tensor.copy_(mean)


def test_two_workers_hold_one_net_and_learn(tmp_path):
    frame = city_frame()
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=100)
    rows = ParquetRows((str(tmp_path),), tuple(LABELS), tuple(FEATURES))
    settings = SnefyLDL(epochs=4, n_neurons=16, n_readouts=8, batch_size=64, random_state=0).settings()
    exchange, fits = Threads(2), {}

    def train(rank):
        fit = fits[rank] = StreamFit(settings, rows.stream(), "auto", exchange, rows.shard(rank, 2))
        while not fit.finished:
            fit.epoch()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = [fits[rank].model() for rank in range(2)]
    for first, second in zip(fits[0].best.values.values(), fits[1].best.values.values()):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert [record["validation_loss"] for record in fits[0].run.history] == [
        record["validation_loss"] for record in fits[1].run.history
    ]
    assert fits[0].run.history[-1]["loss"] < fits[0].run.history[0]["loss"]
    assert states[0].summary["workers"] == 2
    held = sum(int(mask.sum()) for mask in fits[0].masks)
    assert states[0].summary["rows"] == 2 * (400 - held)
