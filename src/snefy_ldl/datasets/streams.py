"""Streams of rows that are read in chunks, again each epoch: loaders, iterable data sets, folders of Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from snefy_ldl._internal.memory import STREAM_BYTES, STREAM_ROWS
from snefy_ldl._internal.rows import Items, as_rows, count_rows, stack_rows
from snefy_ldl.datasets.objects import count_bytes, describe, label_array, labels_kind, read_label
from snefy_ldl.errors import InputError


@dataclass(frozen=True)
class Chunk:
    """Some rows of a stream, held in memory.

    Args:
        X: the rows.
        labels: shares or votes (b, L), or None if the stream has none.
        whole: whether labels came as whole numbers.
    """

    X: Any
    labels: Any
    whole: bool = False

    def __len__(self) -> int:
        return count_rows(self.X)

    def split(self, counts: bool | None) -> tuple[Any, Any]:
        """Labels as (shares, counts), one of them None; the numbers decide where ``counts`` is None."""
        if counts is None:
            return labels_kind(np.asarray(self.labels, dtype=np.float64), self.whole)
        return (None, self.labels) if counts else (self.labels, None)


class Stream:
    """Rows for ``fit`` and ``predict_*`` that are read as they come, a chunk at a time; each epoch reads them again.

    Args:
        source: an iterable data set of pairs (x, labels), a loader of batches of such pairs, or a function that returns
            an iterator of blocks (X, labels), each of any number of rows. Labels may be missing for predictions.
        n_rows: how many rows there are, for the schedule of the learning rate; None if that is unknown.
        counts: whether labels are votes; None looks at the first ones.

    Raises:
        InputError: the source is none of these.

    Example:
        >>> blocks = lambda: ((np.eye(3), np.full((3, 2), 0.5)) for _ in range(4))
        >>> [len(chunk) for chunk in Stream(blocks).chunks(5)]
        [6, 6]
    """

    def __init__(self, source: Any, n_rows: int | None = None, counts: bool | None = None) -> None:
        self.counts, self.batch_size = counts, getattr(source, "batch_size", None)
        self._blocks: Callable[[], Iterable[Any]]
        if isinstance(source, DataLoader):
            self._blocks, n_rows = lambda: source, n_rows or _length(source.dataset)
        elif isinstance(source, IterableDataset):
            self._blocks, n_rows = lambda: map(_single, source, count()), n_rows or _length(source)
        elif callable(source):
            self._blocks = source
        else:
            raise InputError(f"a stream is an iterable data set, a loader or a function; got {describe(source)}.")
        self.n_rows = n_rows

    def chunks(self, rows: int = STREAM_ROWS, nbytes: int = STREAM_BYTES) -> Iterator[Chunk]:
        """The stream from its beginning, some blocks at a time.

        Args:
            rows: a chunk ends when it holds as many, ...
            nbytes: ... or numbers of this many bytes.

        Yields:
            Chunks of one kind of rows each.

        Raises:
            InputError: there is nothing in the stream.
        """
        parts: list[tuple[Any, Any]] = []
        held, size, any_rows = 0, 0, False
        for block in self._blocks():
            X, labels = block if isinstance(block, (tuple, list)) and len(block) == 2 else (block, None)
            X = as_rows(X)
            if n := count_rows(X):
                parts.append((X, labels))
                held, size, any_rows = held + n, size + count_bytes(X), True
            if held >= rows or size >= nbytes:
                yield _join(parts)
                parts, held, size = [], 0, 0
        if parts:
            yield _join(parts)
        if not any_rows:
            raise InputError("the stream is empty: 0 rows.")


def as_stream(X: Any) -> Stream | None:
    """X as a stream, or None if it is something whose rows can be counted and taken.

    A loader with its own sampler (weighted, distributed, ...) is a stream: its order is its business.

    >>> as_stream(np.eye(3)) is None
    True
    """
    if isinstance(X, Stream):
        return X
    if isinstance(X, IterableDataset):
        return Stream(X)
    if isinstance(X, DataLoader):
        plain = type(X.sampler) in (SequentialSampler, RandomSampler) and X.batch_size is not None
        if isinstance(X.dataset, IterableDataset) or not plain:
            return Stream(X)
    return None


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def _single(row: Any, number: int) -> tuple[Any, Any]:
    """One row as a block."""
    if isinstance(row, (tuple, list)) and len(row) == 2:
        return Items([row[0]]), read_label(row, number)[None]
    return Items([row]), None


def _join(parts: list[tuple[Any, Any]]) -> Chunk:
    """One chunk of some blocks."""
    X, labels = stack_rows([X for X, _ in parts]), [label for _, label in parts]
    if any(label is None for label in labels):
        return Chunk(X, None)
    arrays = [label_array(label) for label in labels]
    whole = all(array.dtype.kind in "iub" for array in arrays)
    return Chunk(X, stack_rows(labels) if hasattr(labels[0], "columns") else np.concatenate(arrays), whole)
