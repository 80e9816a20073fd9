"""Fits on rows that are read as they come: the same learning, a chunk in memory, nothing held twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from snefy_ldl import Backbone, SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.streams import Stream, as_stream
from snefy_ldl.errors import InputError, TrainingError
from snefy_ldl.snefy import fit_stream
from snefy_ldl.training import stream_fit as stream_module
from snefy_ldl.training.policy import Policy

CITY = make_city_districts(n=1500, random_state=0)
TEST = make_city_districts(n=500, random_state=1)
SMALL = {"n_neurons": 8, "n_readouts": 4, "epochs": 4, "random_state": 0, "device": "cpu"}


def blocks(rows=100, labels=CITY.D):
    for start in range(0, len(CITY.X), rows):
        yield CITY.X[start : start + rows], labels[start : start + rows]


class Rows(IterableDataset):
    def __init__(self, labels=CITY.D):
        self.table, self.open = labels, 0

    def __iter__(self):
        return ((torch.as_tensor(x).float() / 1000.0, label) for x, label in zip(CITY.X, self.table))


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.1))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Chunks of 400 rows, so that small data have several."""
    whole = Stream.chunks
    monkeypatch.setattr(Stream, "chunks", lambda self, rows=400, nbytes=1 << 28: whole(self, rows, nbytes))
    monkeypatch.setattr(stream_module, "POLICY", Policy(stream_batch=32))


@pytest.mark.slow
def test_a_stream_of_tables_learns_as_well_as_the_whole_table():
    streamed = fit_stream(SnefyLDL(**{**SMALL, "epochs": 8}), Stream(blocks, n_rows=1500))
    plain = SnefyLDL(**{**SMALL, "epochs": 8}, batch_size=32, guides=None).fit(CITY.X, CITY.D)
    dull = -np.log(2.0)  # the density of the even distribution on the triangle is 2
    gain = streamed.score(TEST.X, TEST.D) + dull
    assert gain > 0.85 * (plain.score(TEST.X, TEST.D) + dull) > 0
    assert streamed.training_["streamed"]
    assert streamed.candidates_ == []
    assert streamed.training_["rows"] + 225 == pytest.approx(1500, abs=60), "15 % of the rows are held back"
    assert streamed.history_[-1]["rows"] == 1500


@pytest.mark.slow
def test_an_iterable_data_set_through_a_backbone():
    rows = Rows()
    model = fit_stream(SnefyLDL(backbone=Backbone(body(), learning_rate=5e-3), **SMALL), rows)
    mean = model.predict(rows)
    assert mean.shape == (1500, 3)
    table = torch.as_tensor(CITY.X).float() / 1000.0
    np.testing.assert_allclose(mean, model.predict(table), rtol=1e-5)
    frozen = Backbone(body(), freeze_epochs=1)
    assert (
        fit_stream(SnefyLDL(backbone=frozen, n_members=2, **{**SMALL, "epochs": 2}), rows).predict_dist(table).n_members
        == 2
    )


def test_a_loader_with_a_sampler_of_its_own_is_a_stream():
    data = TensorDataset(torch.as_tensor(CITY.X).float(), torch.as_tensor(CITY.D))
    loader = DataLoader(data, batch_size=50, sampler=WeightedRandomSampler([1.0] * 1500, 300))
    assert as_stream(loader) is not None
    assert as_stream(DataLoader(data, shuffle=True)) is None
    model = fit_stream(SnefyLDL(**SMALL), loader)
    assert model.history_[0]["rows"] == 300


@pytest.mark.slow
def test_a_killed_stream_goes_on_to_the_same_bits(tmp_path):
    class Killed(Exception):
        pass

    def source(limit):
        passes = iter(range(100))

        def read():
            if next(passes) >= limit:
                raise Killed
            return blocks()

        return read

    def model(folder):
        return SnefyLDL(checkpoint_dir=folder, n_members=2, **SMALL)

    whole = fit_stream(model(None), Stream(source(99)))
    with pytest.raises(Killed):
        fit_stream(model(tmp_path), Stream(source(3)))  # one look at the first chunk, and two epochs
    resumed = fit_stream(model(tmp_path), Stream(source(99)))
    np.testing.assert_array_equal(resumed.predict(TEST.X), whole.predict(TEST.X))
    with pytest.raises(TrainingError, match="other data or settings"):
        fit_stream(SnefyLDL(checkpoint_dir=tmp_path, **SMALL), Stream(source(99)))


@pytest.mark.slow
def test_a_chunk_is_all_that_is_held():
    alive, most = set(), 0

    class Big(IterableDataset):
        def __iter__(self):
            nonlocal most
            for number in range(6000):
                row = Tracked(number, alive)
                most = max(most, len(alive))
                yield row, [0.5, 0.5]

    def collate(rows):
        return torch.tensor([[float(row.number % 7)] for row in rows])

    module = nn.Linear(1, 4)
    settings = SMALL | {"epochs": 1, "validation_fraction": 0.0}
    fit_stream(SnefyLDL(backbone=Backbone(module, collate=collate), **settings), Big())
    assert most <= 4 * 400, "the first chunk, the present one, the one being read, and one that waits to be collected"


class Tracked:
    """A row that knows whether it is still there."""

    def __init__(self, number, alive):
        self.number, self.alive = number, alive
        alive.add(number)

    def __del__(self):
        self.alive.discard(self.number)


def test_what_is_wrong_is_told():
    with pytest.raises(InputError, match="empty"):
        fit_stream(SnefyLDL(**SMALL), Stream(lambda: iter(())))
    with pytest.raises(InputError, match="no pairs"):
        fit_stream(SnefyLDL(**SMALL), Stream(lambda: iter([CITY.X])))
    with pytest.raises(InputError, match="function"):
        Stream(3)
