"""Inputs for your own network: images, texts, graphs, data sets and loaders, a batch at a time.

Tensors and arrays that fit on the device go there whole, and a batch is a look-up. Everything else stays where it is:
:class:`Objects` fetches the rows of a batch when it is their turn and makes one batch of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from snefy_ldl._internal.memory import RESIDENT_BYTES
from snefy_ldl._internal.rows import CollatedRows, Items, as_rows, count_rows, is_items, move_rows, take_rows
from snefy_ldl._internal.validation import check_same_index
from snefy_ldl.datasets.grouping import split_rows
from snefy_ldl.errors import InputError

#: Makes one batch of a list of rows.
Collate = Callable[[list[Any]], Any]


class Objects:
    """Rows that are fetched when it is their turn.

    Args:
        source: a list of objects, a map-style data set, or arrays that stay where they are.
        collate: makes a batch of a list of rows; by default tensors are stacked, graphs joined, texts left a list.
        n_labels: L; rows that are pairs of x and L numbers lose the numbers. None: rows are x.
        workers: processes that fetch batches ahead; 0 fetches in this one.

    Example:
        >>> Objects(Items(["one", "two", "three"])).batch([2, 0])
        ['three', 'one']
    """

    def __init__(
        self, source: Any, collate: Collate | None = None, n_labels: int | None = None, workers: int = 0
    ) -> None:
        self.source, self.collate, self.workers = source, collate, workers
        self.n_rows = count_rows(source)
        fetched = isinstance(source, (Dataset, Items))
        self.labelled = fetched and n_labels is not None and self.n_rows > 0 and is_labelled(source[0], n_labels)

    def __len__(self) -> int:
        return self.n_rows

    def batch(self, rows: Any) -> Any:
        """One batch, on the CPU.

        Args:
            rows: row numbers (B,).

        Returns:
            What the backbone takes.

        Raises:
            InputError: no batch can be made of these rows.
        """
        numbers = rows.tolist() if isinstance(rows, Tensor) else [int(row) for row in rows]
        if not isinstance(self.source, (Dataset, Items)):
            return as_tensors(take_rows(self.source, np.asarray(numbers, dtype=np.intp)))
        if isinstance(self.source, Dataset) and hasattr(self.source, "__getitems__"):
            rows = self.source.__getitems__(numbers)
        else:
            rows = [self.source[number] for number in numbers]
        if isinstance(self.source, CollatedRows) and self.collate is None:
            batch = self.source.collate_fn(rows)
            return batch[0] if self.labelled else batch
        return make_batch([row[0] for row in rows] if self.labelled else rows, self.collate)

    def batches(self, rows: Sequence[Any], device: torch.device) -> Iterator[Any]:
        """Some batches one after the other, fetched ahead by the workers.

        Args:
            rows: row numbers of each batch.
            device: where they are wanted.

        Yields:
            The batches, on the device.
        """
        loader: DataLoader[Any] = DataLoader(
            range(len(self)),  # type: ignore[arg-type]
            batch_sampler=[part.tolist() if isinstance(part, Tensor) else list(part) for part in rows],
            num_workers=self.workers,
            collate_fn=self.batch,
            generator=torch.Generator(),  # which leaves that of torch alone
            pin_memory=device.type == "cuda",
        )
        for batch in loader:
            yield move_rows(batch, device)


def make_batch(rows: list[Any], collate: Collate | None = None) -> Any:
    """One batch of some rows.

    Args:
        rows: of one kind.
        collate: the user's own function; by default tensors, arrays and numbers are stacked (also inside tuples and
            dictionaries), graphs of PyTorch Geometric joined, and texts stay a list.

    Returns:
        The batch.

    Raises:
        InputError: rows of this kind, or of different shapes, need a ``collate``.

    Example:
        >>> make_batch([{"ids": torch.zeros(3)}, {"ids": torch.ones(3)}])["ids"].shape
        torch.Size([2, 3])
    """
    if collate is not None:
        return collate(rows)
    if hasattr(rows[0], "edge_index"):
        from torch_geometric.data import Batch  # who holds its graphs has the package

        return Batch.from_data_list(rows)
    try:
        return default_collate(rows)
    except (TypeError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"rows of type {type(rows[0]).__name__} do not stack into one batch ({reason[:120]}); say how: "
            "Backbone(module, collate=function of a list of rows)."
        ) from None


def as_tensors(X: Any) -> Any:
    """Arrays inside nested batches as tensors, without a copy if they may be written to.

    >>> as_tensors({"pixels": np.zeros((2, 3), dtype=np.uint8)})["pixels"].dtype
    torch.uint8
    """
    if isinstance(X, np.ndarray):
        return torch.as_tensor(X if X.flags.writeable else X.copy())
    if isinstance(X, Mapping):
        return {key: as_tensors(value) for key, value in X.items()}
    if isinstance(X, (list, tuple)):
        return type(X)(as_tensors(value) for value in X)
    return X


def open_rows(X: Any, collate: Collate | None = None, n_labels: int | None = None, workers: int = 0) -> Any:
    """What a backbone is given, as training and prediction read it.

    Args:
        X: arrays or tensors of any rank, nested batches, lists of objects, graphs, texts, a map-style data set or a
            loader of one.
        collate: makes a batch of a list of rows; lists are then rows of any content.
        n_labels: L, by which labelled data sets are recognised; None: rows are x.
        workers: processes that fetch batches ahead.

    Returns:
        A nested batch of tensors, or :class:`Objects`.

    Raises:
        InputError: X holds no rows.

    Example:
        >>> open_rows(np.zeros((4, 3, 8, 8), dtype=np.uint8)).shape
        torch.Size([4, 3, 8, 8])
    """
    if isinstance(X, DataLoader):
        workers = workers or X.num_workers
        X = take_rows(X, slice(0, count_rows(X)))
    if isinstance(X, Mapping) and collate is not None:  # an encoding of texts: rows of unequal length
        X = Items(dict(zip(X, row)) for row in zip(*X.values()))
    elif collate is not None and isinstance(X, (list, np.ndarray, Tensor)):
        X = Items(list(X))
    if hasattr(X, "iloc"):
        X = X.to_numpy()
    X = as_rows(X)
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS":
        X = Items(X.tolist())
    if isinstance(X, Mapping):
        X = {key: _column(key, value) for key, value in X.items()}
    if count_rows(X) == 0:
        raise InputError("X is empty: 0 rows.")
    if isinstance(X, (Dataset, Items)) or count_bytes(X) > RESIDENT_BYTES or isinstance(X, np.memmap):
        return Objects(X, collate, n_labels, workers)
    return as_tensors(X)


def _column(name: str, value: Any) -> Any:
    """One entry of a dictionary as numbers, one row each."""
    if isinstance(value, (Tensor, np.ndarray, Mapping, tuple)) or (isinstance(value, list) and not value):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.array([None])
    if array.dtype.kind in "OUS":
        raise InputError(
            f"X[{name!r}] holds rows of unequal length or no numbers; pad them to one length (a tokenizer's "
            'padding=True, return_tensors="pt"), or give the rows as a list and Backbone(module, collate=...).'
        )
    return array


def count_bytes(X: Any) -> int:
    """Memory that the numbers of a nested batch take; anything but numbers and text counts as a kilobyte."""
    if hasattr(X, "nbytes"):
        return int(X.nbytes)
    if isinstance(X, (str, bytes)):
        return len(X)
    if isinstance(X, Iterable):
        return sum(count_bytes(part) for part in (X.values() if isinstance(X, Mapping) else X))
    return 1024


# -- labels that come with the rows ----------------------------------------------------------------------------------


def is_labelled(row: Any, n_labels: int) -> bool:
    """Whether a row of a data set is a pair of x and L numbers.

    >>> is_labelled((torch.zeros(3, 8, 8), [0.5, 0.5]), 2), is_labelled(torch.zeros(2), 2)
    (True, False)
    """
    try:
        return len(read_label(row, 0, n_labels)) == n_labels
    except InputError:
        return False


def split_labels(X: Any, D: Any = None, counts: Any = None) -> tuple[Any, Any, Any]:
    """Labels out of a data set of pairs; for any other X, all three come back as they are.

    Args:
        X: what ``fit`` was given.
        D: label distributions passed with it, or None.
        counts: votes passed with it, or None.

    Returns:
        X, label distributions and counts; whole numbers that are no shares are counts.

    Raises:
        InputError: rows of the data set are no pairs, their labels differ in length, or X and its labels hold the
            same rows in another order.

    Example:
        >>> rows = TensorDataset(torch.zeros(2, 5), torch.tensor([[3, 1], [0, 4]]))
        >>> split_labels(rows)[2]
        array([[3., 1.],
               [0., 4.]])
    """
    pairs = isinstance(X, list) and is_items(X) and isinstance(X[0], tuple) and len(X[0]) == 2
    holds_labels = pairs or (isinstance(X, (Dataset, DataLoader)) and not isinstance(X, IterableDataset))
    if D is not None or counts is not None or not holds_labels:
        for what, table in (("D", D), ("counts", counts)):
            check_same_index(split_rows(X)[0], table, ("X", what))
        return X, D, counts
    source = X.dataset if isinstance(X, DataLoader) else X
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        labels = label_array(source.tensors[1])
        x = source.tensors[0] if isinstance(X, TensorDataset) else X
        return x, *labels_kind(labels.astype(np.float64), labels.dtype.kind in "iub")
    labels, whole = _read_labels(source)
    return X, *labels_kind(labels, whole)


def shares_of(X: Any, D: Any = None) -> Any:
    """Label distributions as they were given, or out of a data set of pairs (x, shares).

    Args:
        X: rows of any kind.
        D: label distributions passed with it, or None.

    Returns:
        Label distributions (N, L).

    Raises:
        InputError: there are none.

    Example:
        >>> shares_of([("one", [0.5, 0.5]), ("two", [0.2, 0.8])]).shape
        (2, 2)
    """
    shares = split_labels(X, D)[1]
    if shares is None:
        raise InputError("the label distributions are missing: pass them with X, or X as a data set of (x, shares).")
    return shares


def label_array(labels: Any) -> Any:
    """Labels of a row or of a block as an array, wherever they are."""
    return labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)


def read_label(row: Any, number: int, n_labels: int | None = None) -> Any:
    """The labels of a row that is a pair of x and L numbers, as an array.

    Args:
        row: Of a data set or a stream.
        number: Its number, for the message.
        n_labels: L, if it is known.

    Raises:
        InputError: The row is no such pair.
    """
    if not isinstance(row, (tuple, list)) or len(row) != 2:
        raise InputError(
            f"fit needs the labels: row {number} of the data set is no pair (x, shares) or (x, counts) but "
            f"{describe(row)}. Pass the labels: fit(X, D) or fit(X, counts=K)."
        )
    label = label_array(row[1])
    if label.ndim != 1 or label.dtype.kind not in "iufb" or n_labels not in (None, len(label)):
        raise InputError(
            f"labels of row {number} of the data set must be {n_labels or 'L'} numbers, one per label; got "
            f"{describe(row[1])}."
        )
    return label


def _read_labels(source: Any) -> tuple[Any, bool]:
    """Labels of every row, and whether they came as whole numbers; x is read and dropped, a row at a time."""
    first = read_label(source[0], 0)
    rows = [first, *(read_label(source[number], number, len(first)) for number in range(1, len(source)))]
    return np.array(rows, dtype=np.float64), all(label.dtype.kind in "iub" for label in rows)


def labels_kind(labels: Any, whole: bool) -> tuple[Any, Any]:
    """Labels as (shares, counts), one of them None: whole numbers that are no shares are counts.

    >>> labels_kind(np.array([[3.0, 1.0]]), whole=False)[0] is None
    True
    """
    known = labels[np.isfinite(labels).all(1)] if len(labels) else labels
    counts = whole or bool(len(known) and (known == known.round()).all() and (known.sum(1) > 1.5).any())
    return (None, labels) if counts else (labels, None)


def describe(batch: Any, rows: bool = False) -> str:
    """What something is, in a few words, for messages.

    Args:
        batch: anything.
        rows: whether the first dimension of tensors counts rows, and is named so.

    Returns:
        Its type, numbers and shape.

    Example:
        >>> describe({"ids": torch.zeros(2, 7, dtype=torch.long)}, rows=True)
        '{ids: int64 (rows, 7)}'
    """
    if isinstance(batch, (Tensor, np.ndarray)):
        shape = ["rows" if rows and k == 0 else str(size) for k, size in enumerate(batch.shape)]
        return f"{str(batch.dtype).removeprefix('torch.')} ({', '.join(shape)})"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value, rows)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (tuple, list)) and 0 < len(batch) <= 4 and isinstance(batch[0], (Tensor, np.ndarray, Mapping)):
        return "(" + ", ".join(describe(part, rows) for part in batch) + ")"
    kind = type(batch).__name__
    return f"a {kind} of {type(batch[0]).__name__}" if isinstance(batch, (tuple, list)) and batch else f"a {kind}"
