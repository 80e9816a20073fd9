"""Threads over parts of a table: the order stays, memory is bounded, and an error stops everything."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from commands import run
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.rows import map_in_order
from snefy_ldl.datasets import make_city_districts


def test_answers_come_in_order_whatever_takes_longer() -> None:
    def work(part: int) -> int:
        time.sleep(0.002 * (part % 3))
        return part

    assert list(map_in_order(work, range(40), threads=3)) == list(range(40))


def test_few_parts_are_read_ahead() -> None:
    ahead: list[int] = []
    given: list[int] = []

    def parts():
        for k in range(30):
            given.append(k)
            yield k

    for answer in map_in_order(lambda part: part, parts(), threads=2):
        ahead.append(len(given) - answer)
    assert max(ahead) <= 4


def test_an_error_of_a_part_is_raised_and_threads_are_put_back() -> None:
    before = torch.get_num_threads()

    def work(part: int) -> int:
        assert torch.get_num_threads() == 1
        return 1 // (3 - part)

    with pytest.raises(ZeroDivisionError):
        list(map_in_order(work, range(10), threads=2))
    assert torch.get_num_threads() == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]


def test_predict_writes_what_the_model_says_of_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snefy_ldl.datasets.table_files.CHUNK_ROWS", 64)
    city = make_city_districts(n=300, random_state=0)
    frame = pd.DataFrame(city.X, columns=city.feature_names)
    labels = pd.DataFrame(city.D, columns=city.label_names)
    model = SnefyLDL(epochs=1, n_neurons=6, n_readouts=3, guides=None, random_state=0).fit(frame, labels)
    model.save(tmp_path / "model")
    frame.assign(row=np.arange(300)).to_parquet(tmp_path / "in.parquet")
    done = run("predict", tmp_path / "model", tmp_path / "in.parquet", "--keep", "row", "--out", tmp_path / "o.parquet")
    assert done.exit_code == 0, done.output
    written = pd.read_parquet(tmp_path / "o.parquet")
    assert list(written["row"]) == list(range(300))
    np.testing.assert_allclose(written[city.label_names], model.predict(frame), atol=6e-9)
