"""What people hold, as a backbone reads it: every container gives the same rows, and labels come along."""

from __future__ import annotations

from collections import UserDict

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from snefy_ldl._internal.rows import take_rows
from snefy_ldl.datasets.objects import Objects, make_batch, open_rows, split_labels
from snefy_ldl.errors import InputError

IMAGES = np.arange(6 * 1 * 2 * 2, dtype=np.float32).reshape(6, 1, 2, 2)
SHARES = np.array([[0.25, 0.75], [0.5, 0.5], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4]])


class Pairs(Dataset):
    """(x, labels), made when asked for; counts what was asked for."""

    def __init__(self, labels):
        self.table = labels

    def __len__(self):
        return 6

    def __getitem__(self, row):
        return torch.as_tensor(IMAGES[row]), self.table[row]


def batch_of(X, rows):
    X = open_rows(X, n_labels=2)
    return X.batch(rows) if isinstance(X, Objects) else take_rows(X, torch.as_tensor(rows))


def test_parts_of_a_loader_keep_its_collate():
    loader = DataLoader(Pairs(SHARES), collate_fn=lambda rows: (torch.stack([x for x, _ in rows]) * 10.0, None))
    part = take_rows(take_rows(loader, slice(1, 5)), np.array([3, 0]))
    np.testing.assert_array_equal(open_rows(part, n_labels=2).batch([0, 1]), IMAGES[[4, 1]] * 10.0)


def test_arrays_on_disk_stay_there(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES)
    X = open_rows(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert isinstance(X, Objects)
    np.testing.assert_array_equal(X.batch([3]), IMAGES[[3]])


def test_dictionaries_and_encodings():
    encoding = UserDict({"ids": [[1, 2], [3, 4], [5, 6]], "mask": torch.ones(3, 2)})  # as a tokenizer returns them
    X = open_rows(encoding)
    assert take_rows(X, torch.tensor([2]))["ids"].tolist() == [[5, 6]]
    ragged = UserDict({"ids": [[1, 2], [3]]})
    with pytest.raises(InputError, match=r"X\['ids'\] holds rows of unequal length"):
        open_rows(ragged)
    padded = open_rows(ragged, collate=lambda rows: [len(row["ids"]) for row in rows])
    assert padded.batch([1, 0]) == [1, 2]


def test_texts_and_lists_with_collate():
    assert batch_of(["one", "two", "three"], [2, 0]) == ["three", "one"]
    assert batch_of(np.array(["one", "two"]), [1]) == ["two"]
    ragged = [torch.zeros(3), torch.zeros(5)]
    pad = torch.nn.utils.rnn.pad_sequence
    assert open_rows(ragged, collate=lambda rows: pad(rows, batch_first=True)).batch([0, 1]).shape == (2, 5)
    with pytest.raises(InputError, match="collate="):
        make_batch([torch.zeros(3), torch.zeros(5)])
    with pytest.raises(InputError, match="rows of type object"):
        make_batch([object(), object()])


def test_workers_fetch_the_same_batches():
    X = Objects(Pairs(SHARES), n_labels=2, workers=1)
    got = list(X.batches([torch.tensor([4, 1]), torch.tensor([0])], torch.device("cpu")))
    np.testing.assert_array_equal(got[0], IMAGES[[4, 1]])
    np.testing.assert_array_equal(got[1], IMAGES[[0]])


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        (SHARES, False),
        (np.array([[3, 1]] * 6), True),
        (np.array([[3.0, 1.0]] * 6), True),
        (np.array([[1.0, 0.0]] * 6), False),
        (np.array([[1, 0]] * 6), True),
    ],
    ids=["shares", "votes", "votes as floats", "one-hot shares", "single votes"],
)
def test_labels_come_out_of_pairs(labels, counts):
    for source in (
        Pairs(labels),
        DataLoader(Pairs(labels)),
        TensorDataset(torch.as_tensor(IMAGES), torch.as_tensor(labels)),
        [(str(row), label) for row, label in enumerate(labels)],
    ):
        _, D, K = split_labels(source)
        assert (K is not None) == counts
        np.testing.assert_allclose(K if counts else D, labels)


def test_what_holds_no_labels_is_told():
    with pytest.raises(InputError, match=r"row 0 of the data set is no pair .* but \(float32 \(1, 2, 2\)\)"):
        split_labels(TensorDataset(torch.as_tensor(IMAGES)))
    with pytest.raises(InputError, match="labels of row 1"):
        split_labels(Pairs([SHARES[0], np.ones(3) / 3]))
