"""Rows of any kind: counted, taken and moved alike, whatever holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from snefy_ldl._internal.rows import as_rows, count_rows, move_rows, take_rows
from snefy_ldl.errors import InputError

TABLE = np.arange(12.0).reshape(4, 3)


def dense(X: Any) -> np.ndarray:
    return np.asarray(X.toarray() if sp.issparse(X) else X)


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame, sp.csr_matrix, sp.coo_matrix, torch.as_tensor])
@pytest.mark.parametrize("rows", [slice(1, 3), np.array([3, 0, 0])])
def test_rows_come_out_as_they_went_in(make: Any, rows: Any) -> None:
    X = make(TABLE)
    assert count_rows(X) == 4
    np.testing.assert_array_equal(dense(take_rows(X, rows)), TABLE[rows])


def test_nested_batches_keep_their_shape() -> None:
    batch = {"a": torch.as_tensor(TABLE), "b": [torch.arange(4), (torch.eye(4),)]}
    assert count_rows(batch) == 4
    part = take_rows(batch, np.array([2, 1]))
    assert part["b"][0].tolist() == [2, 1]
    assert isinstance(part["b"][1], tuple)
    assert take_rows(batch, torch.tensor([[0], [3]]))["a"].shape == (2, 1, 3)
    moved = move_rows(batch, torch.device("meta"))
    assert moved["a"].is_meta
    assert moved["b"][1][0].is_meta


def test_lists_of_numbers_become_arrays_and_lists_of_tensors_stay() -> None:
    assert as_rows(TABLE.tolist()).shape == (4, 3)
    tensors = [torch.zeros(2), torch.ones(2)]
    assert as_rows(tensors) is tensors


def test_what_holds_no_rows_is_named() -> None:
    with pytest.raises(InputError, match=r"same number of rows; got \[2, 3\]"):
        count_rows([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(InputError, match="got str"):
        count_rows("one")
    with pytest.raises(InputError, match="found str"):
        take_rows({"a": "text"}, np.array([0]))
