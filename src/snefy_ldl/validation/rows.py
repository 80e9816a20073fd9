"""Rows of anything a model may be given: arrays, tables, sparse matrices, tensors, and nested batches of tensors.

A nested batch is a tensor, or a tuple, list or dict of nested batches, as a network of the user's own takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._types import Index
from snefy_ldl.errors import InputError

__all__ = ["as_rows", "count_rows", "move_rows", "take_rows"]


def as_rows(X: Any) -> Any:
    """X as something whose rows can be counted and taken.

    Args:
        X: Rows of any kind; lists and tuples of numbers are allowed, too.

    Returns:
        Lists and tuples without a tensor in them as an array, anything else as it came.

    Raises:
        InputError: The lists are of different lengths.

    >>> as_rows([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    if not isinstance(X, (list, tuple)) or _holds_tensors(X):
        return X
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError(f"X must hold rows of one length: {error}") from None


def _holds_tensors(batch: Any) -> bool:
    """Whether something is a nested batch; of a list or tuple inside another, the first part tells."""
    if isinstance(batch, (list, tuple)):
        return any(_holds_tensors(part[:1] if isinstance(part, (list, tuple)) else part) for part in batch)
    return isinstance(batch, (Tensor, dict))


def count_rows(X: Any) -> int:
    """How many rows there are; all tensors of a nested batch must agree.

    Args:
        X: An array, table, sparse matrix, tensor or nested batch.

    Returns:
        The number of rows.

    Raises:
        InputError: Two tensors of a nested batch differ in length, or something in it is no tensor.

    >>> count_rows({"pixels": torch.zeros(3, 8), "place": torch.zeros(3, 2)})
    3
    """
    if hasattr(X, "shape"):
        return int(X.shape[0])
    if not isinstance(X, (dict, list, tuple)):
        kind = type(X).__name__
        raise InputError(f"X must hold rows: an array, a table, or tensors in tuples, lists and dicts; got {kind}.")
    parts = list(X.values()) if isinstance(X, dict) else list(X)
    lengths = {count_rows(part) for part in parts}
    if len(lengths) != 1:
        raise InputError(f"every tensor in X must have the same number of rows; got {sorted(lengths)}.")
    return lengths.pop()


def take_rows(X: Any, rows: slice | Index | Tensor) -> Any:
    """Some rows, in the form X came in.

    Args:
        X: An array, table, sparse matrix, tensor or nested batch.
        rows: A slice with both ends given, or row numbers; for tensors also a tensor of row numbers of any shape.

    Returns:
        The rows, of the type of X.

    Raises:
        InputError: A nested batch holds something that is no tensor.

    >>> take_rows((torch.arange(4), torch.eye(4)), slice(1, 3))[0]
    tensor([1, 2])
    """
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if isinstance(X, (Tensor, dict, list, tuple)):
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        return _take_nested(X, torch.as_tensor(rows))
    return (X.tocsr() if hasattr(X, "tocsr") else X)[rows]


def _take_nested(batch: Any, index: Tensor) -> Any:
    if isinstance(batch, Tensor):
        return batch[index]
    if isinstance(batch, dict):
        return {key: _take_nested(value, index) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_take_nested(value, index) for value in batch)
    raise InputError(f"a custom backbone's X must be made of tensors; found {type(batch).__name__}.")


def move_rows(batch: Any, device: torch.device) -> Any:
    """A tensor or nested batch on another device.

    Args:
        batch: A tensor or nested batch.
        device: Where it should live.

    Returns:
        The same rows there.

    >>> move_rows([torch.zeros(2)], torch.device("cpu"))
    [tensor([0., 0.])]
    """
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move_rows(value, device) for key, value in batch.items()}
    return type(batch)(move_rows(value, device) for value in batch)
