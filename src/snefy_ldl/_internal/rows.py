"""Rows of anything a model may be given.

Arrays, tables, sparse matrices and tensors; nested batches of tensors; lists of objects (texts, graphs, dictionaries);
torch data sets and loaders. A nested batch is a tensor, or a tuple, list or mapping of nested batches, as a custom
network takes it: rows are the first dimension of its tensors. A list of anything but numbers and tensors holds one row
per entry (:class:`Items`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from snefy_ldl._internal.types import Index
from snefy_ldl.errors import InputError


class Items(list[Any]):
    """A list whose every entry is one row, of any content; also of tensors of unequal size.

    >>> count_rows(Items([torch.zeros(3, 5), torch.zeros(3, 7)]))
    2
    """


class CollatedRows(Subset[Any]):
    """Rows of a loader's data set, with the function by which the loader makes batches of them.

    Args:
        dataset: map-style.
        rows: which of its rows.
        collate_fn: as the loader has it: a list of rows in, a batch out.
    """

    def __init__(self, dataset: Dataset[Any], rows: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        super().__init__(dataset, rows)
        self.collate_fn = collate_fn


def is_items(X: Any) -> bool:
    """Whether a list holds one row per entry: texts, graphs, dictionaries, tuples of tensors; not numbers or tensors.

    >>> is_items(["one", "two"]), is_items([[1.0], [2.0]]), is_items([torch.zeros(2)])
    (True, False, False)
    """
    if isinstance(X, Items):
        return True
    if not isinstance(X, list) or not X:
        return False
    first = X[0]
    if isinstance(first, tuple):
        return not all(isinstance(part, Number) or part is None for part in first)
    if isinstance(first, (str, bytes, Mapping)):
        return True
    return not isinstance(first, (Tensor, np.ndarray, Number, list)) and not hasattr(first, "__array__")


def as_rows(X: Any) -> Any:
    """X as something whose rows can be counted and taken.

    Args:
        X: Rows of any kind; lists and tuples of numbers are allowed, too.

    Returns:
        Lists of objects as :class:`Items`, lists and tuples of numbers as an array, anything else as it came.

    Raises:
        InputError: The lists are of different lengths.

    >>> as_rows([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    if hasattr(X, "to_data_list"):  # a batch of graphs, as PyTorch Geometric makes them
        return Items(X.to_data_list())
    if is_items(X):
        return X if isinstance(X, Items) else Items(X)
    if not isinstance(X, (list, tuple)) or _holds_tensors(X):
        return X
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError(f"X must hold rows of one length: {error}") from None


def _holds_tensors(batch: Any) -> bool:
    """Whether something is a nested batch; of a list or tuple inside another, the first part decides."""
    if isinstance(batch, (list, tuple)):
        return any(_holds_tensors(part[:1] if isinstance(part, (list, tuple)) else part) for part in batch)
    return isinstance(batch, (Tensor, Mapping))


def count_rows(X: Any) -> int:
    """How many rows there are; all tensors of a nested batch must agree.

    Args:
        X: An array, table, sparse matrix, tensor, nested batch, list of objects, map-style data set or loader of one.

    Returns:
        The number of rows.

    Raises:
        InputError: Two tensors of a nested batch differ in length, or something in it is no tensor.

    >>> count_rows({"pixels": torch.zeros(3, 8), "place": torch.zeros(3, 2)})
    3
    """
    if isinstance(X, DataLoader):
        X = X.dataset
    if isinstance(X, IterableDataset):
        raise InputError(
            "the rows of an iterable data set cannot be counted or selected: only fit and predict_* can read it; for "
            "anything else pass a list, arrays or a map-style Dataset."
        )
    if isinstance(X, Dataset) or is_items(X):
        return len(X)
    if hasattr(X, "to_data_list"):
        return int(X.num_graphs)
    if hasattr(X, "n_rows"):
        return int(X.n_rows)
    if hasattr(X, "shape"):
        if len(X.shape) == 0:
            raise InputError("X must hold rows; got a single number.")
        return int(X.shape[0])
    if not isinstance(X, (Mapping, list, tuple)):
        kind = type(X).__name__
        raise InputError(f"X must hold rows: an array, a table, or tensors in tuples, lists and dicts; got {kind}.")
    parts = list(X.values()) if isinstance(X, Mapping) else list(X)
    lengths = {count_rows(part) for part in parts}
    if len(lengths) != 1:
        raise InputError(f"every tensor in X must have the same number of rows; got {sorted(lengths)}.")
    return lengths.pop()


def take_rows(X: Any, rows: slice | Index | Tensor) -> Any:
    """Some rows, in the form X came in.

    Args:
        X: What :func:`count_rows` takes.
        rows: A slice with both ends given, or row numbers; for tensors also a tensor of row numbers of any shape.

    Returns:
        The rows, of the type of X; a part of a data set or loader is a data set.

    Raises:
        InputError: A nested batch holds something that is no tensor.

    >>> take_rows((torch.arange(4), torch.eye(4)), slice(1, 3))[0]
    tensor([1, 2])
    """
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if hasattr(X, "to_data_list"):
        X = Items(X.to_data_list())
    numbers: Any = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    if isinstance(X, (Dataset, DataLoader)) or is_items(X):
        numbers = torch.as_tensor(numbers).tolist()
        if isinstance(X, DataLoader):
            return CollatedRows(X.dataset, numbers, X.collate_fn)
        if isinstance(X, CollatedRows):
            return CollatedRows(X, numbers, X.collate_fn)
        return Subset(X, numbers) if isinstance(X, Dataset) else Items(X[number] for number in numbers)
    if isinstance(X, (Tensor, Mapping, list, tuple)):
        return _take_nested(X, torch.as_tensor(numbers))
    if isinstance(X, memoryview):
        X = np.asarray(X)
    return (X.tocsr() if hasattr(X, "tocsr") else X)[rows]


def _take_nested(batch: Any, index: Tensor) -> Any:
    if isinstance(batch, Tensor):
        return batch.index_select(0, index) if batch.is_sparse else batch[index]
    if isinstance(batch, np.ndarray):
        return batch[index.numpy()]
    if isinstance(batch, (Mapping, list, tuple)):
        return map_parts(lambda part: _take_nested(part, index), batch)
    raise InputError(f"a custom backbone's X must be made of tensors; found {type(batch).__name__}.")


def stack_rows(blocks: Sequence[Any]) -> Any:
    """Blocks of rows of one kind in one.

    Args:
        blocks: What :func:`count_rows` takes, data sets and loaders excepted.

    Returns:
        All rows in that form; sparse ones as CSR.

    >>> stack_rows([np.zeros((2, 3)), np.ones((1, 3))]).shape
    (3, 3)
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if isinstance(first, Items):
        return Items(row for block in blocks for row in block)
    if isinstance(first, Mapping):
        return {key: stack_rows([block[key] for block in blocks]) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(map(stack_rows, zip(*blocks)))
    if hasattr(first, "iloc"):
        import pandas  # who passes tables has it

        return pandas.concat(blocks, ignore_index=True)
    if any(sp.issparse(block) for block in blocks):
        return sp.vstack(blocks, format="csr")
    if isinstance(first, Tensor):
        return torch.cat([torch.as_tensor(block) for block in blocks])
    return np.concatenate([np.asarray(block) for block in blocks])


def move_rows(batch: Any, device: torch.device) -> Any:
    """A batch on another device; what is no tensor and cannot move stays.

    Args:
        batch: A tensor, a nested batch, or anything with a method ``to``.
        device: Where it should live.

    Returns:
        The rows on that device.

    >>> move_rows([torch.zeros(2)], torch.device("cpu"))
    [tensor([0., 0.])]
    """
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    return map_parts(lambda part: move_rows(part, device), batch)


def map_parts(convert: Callable[[Any], Any], batch: Any) -> Any:
    """A mapping, list or tuple with its parts converted; anything else as it is.

    >>> map_parts(torch.neg, {"pixels": torch.ones(2)})
    {'pixels': tensor([-1., -1.])}
    """
    if isinstance(batch, Mapping):
        return {key: convert(part) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = map(convert, batch)
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
