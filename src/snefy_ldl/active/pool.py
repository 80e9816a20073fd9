"""Pools of unlabelled rows: arrays, tables, files and streams, read a block at a time.

A million rows on disk need no more memory than one block.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from snefy_ldl._internal.memory import POOL_ELEMENTS, POOL_ROWS
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.rows import as_rows, count_rows, stack_rows, take_rows
from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import check_features
from snefy_ldl.datasets.grouping import GroupedRows, in_groups, split_rows
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import InputError

#: A pool of at least this many rows shows a progress bar on a terminal.
BAR_ROWS = 100_000


class Pool:
    """Unlabelled rows, read in blocks.

    Args:
        source: rows (array, memory-mapped array, DataFrame, sparse matrix, tensors), the path of a Parquet, CSV or TSV
            file, or a function that returns an iterator of blocks of rows.
        columns: columns of a file to read, in this order; all by default.
        block_rows: most rows per block of a file or array.
        verbose: True shows a progress bar, False none, None only for long pools on a terminal.

    Attributes:
        n_rows: how many rows there are; None while unknown.

    Raises:
        InputError: the source holds no rows, or lacks a column.

    Example:
        >>> pool = Pool(np.eye(5), block_rows=2)
        >>> [(start, len(block)) for start, block in pool.blocks()]
        [(0, 2), (2, 2), (4, 1)]
    """

    def __init__(
        self,
        source: Any,
        columns: list[str] | None = None,
        block_rows: int = POOL_ROWS,
        verbose: bool | None = None,
    ) -> None:
        self.verbose, self._columns, self._step = verbose, columns, block_rows
        self.n_rows: int | None = None
        self._rows: Any = None
        self._open: Callable[[], Iterator[Any]]
        if isinstance(source, (str, os.PathLike)):
            self._open = self._file(Path(source))
        elif isinstance(source, Iterator):
            raise InputError("X_pool is an iterator, which can be read once: pass a function that returns it.")
        elif callable(source) and not hasattr(source, "shape"):
            self._open = lambda: iter(source())
        else:
            self._rows = as_rows(source)
            try:
                self.n_rows = count_rows(self._rows)
            except (AttributeError, IndexError, TypeError, RecursionError):
                raise InputError(f"X_pool must hold rows; got {type(source).__name__}.") from None
            shape: tuple[Any, ...] = tuple(getattr(split_rows(self._rows)[0], "shape", ()))
            if len(shape) == 1:
                raise InputError(f"X_pool must be two-dimensional (rows, features); got shape {shape}.")
            if len(shape) == 2:
                self._step = max(1, min(block_rows, POOL_ELEMENTS // max(1, int(shape[1]))))
            if not self.n_rows:
                raise InputError("X_pool is empty: 0 rows.")
            self._open = self._slices

    def _slices(self) -> Iterator[Any]:
        assert self.n_rows is not None
        if self.n_rows <= self._step:
            yield self._rows
            return
        rows = self._rows.tocsr() if hasattr(self._rows, "tocsr") else self._rows
        for start in range(0, self.n_rows, self._step):
            yield take_rows(rows, slice(start, min(start + self._step, self.n_rows)))

    def _file(self, path: Path) -> Callable[[], Iterator[Any]]:
        source = TableSource(path)
        columns = self._columns or source.columns
        source.need(columns, "features")
        step = max(256, min(self._step, POOL_ELEMENTS // len(columns)))
        if source.kind == "parquet":
            from pyarrow import parquet  # only pools in Parquet files need pyarrow

            self.n_rows = sum(int(parquet.read_metadata(file).num_rows) for file in source.files)
        return lambda: source.chunks(columns, [], rows=step)

    def blocks(self, what: str = "pool") -> Iterator[tuple[int, Any]]:
        """Read the pool a block at a time.

        Args:
            what: the word next to the progress bar.

        Yields:
            The number of each block's first row, and the block in the form the pool has.

        Raises:
            InputError: there are no rows.
        """
        start = 0
        show = self.verbose is None and (self.n_rows is None or self.n_rows >= BAR_ROWS) and sys.stderr.isatty()
        with Progress(what, self.n_rows, show=bool(self.verbose) or show) as progress:
            for block in self._open():
                if isinstance(block, np.ndarray) and not block.flags.writeable:
                    block = np.array(block)  # torch warns about memory it must not write to
                rows = count_rows(as_rows(block))
                if rows:
                    yield start, block
                    start += rows
                    progress.advance(rows)
        if start == 0:
            raise InputError("X_pool is empty: 0 rows.")
        self.n_rows = start

    def count(self) -> int:
        """How many rows there are; reads the pool if that is not known yet.

        Returns:
            The number of rows.
        """
        if self.n_rows is None:
            for _ in self.blocks("count"):
                pass
        assert self.n_rows is not None
        return self.n_rows

    def first(self) -> Any:
        """The first row, in the form the pool has."""
        for block in self._open():
            if count_rows(as_rows(block)):
                return take_rows(as_rows(block), slice(0, 1))
        raise InputError("X_pool is empty: 0 rows.")

    @staticmethod
    @contextmanager
    def naming(start: int = 0) -> Iterator[None]:
        """Errors about rows from a number on name them as rows of the pool."""
        try:
            yield
        except InputError as error:
            raise InputError(f"X_pool, rows from {start} on: {error}" if start else f"X_pool: {error}") from None

    def take(self, index: Index) -> Any:
        """Rows by number.

        Args:
            index: row numbers (k,).

        Returns:
            The k rows in that order, in the form the pool has.
        """
        if self._rows is not None:
            return take_rows(self._rows, index)
        parts, places = [], []
        wanted = np.argsort(index, kind="stable")
        ordered = index[wanted]
        for start, block in self.blocks("gather"):
            low, high = np.searchsorted(ordered, [start, start + count_rows(as_rows(block))])
            if high > low:
                parts.append(take_rows(as_rows(block), ordered[low:high] - start))
                places.append(wanted[low:high])
        return take_rows(stack_blocks(parts), np.argsort(np.concatenate(places), kind="stable"))


def stack_blocks(parts: list[Any]) -> Any:
    """Blocks of rows in one, with the groups of their rows or all without."""
    if isinstance(parts[0], GroupedRows):
        return in_groups(stack_rows([part.X for part in parts]), stack_rows([part.groups for part in parts]))
    return stack_rows(parts)


def dense_table(X: Any, what: str) -> NDArray[Any]:
    """Rows as a dense array of finite numbers.

    Args:
        X: an array, table or sparse matrix (rows, features).
        what: which rows they are, for the message.

    Returns:
        The array (rows, features), float32 or float64.

    Raises:
        InputError: a cell is no finite number; it is named.

    Example:
        >>> dense_table(sp.eye(2), "X").shape
        (2, 2)
    """
    try:
        table = check_features(X)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    return np.asarray(table.toarray() if sp.issparse(table) else table)
