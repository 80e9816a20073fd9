"""Rows shared out among workers that train one model: as many to each, in chunks of the same sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snefy_ldl.cluster.parts import PartTable, plan_parts
from snefy_ldl.cluster.places import find_tables

if TYPE_CHECKING:
    from snefy_ldl.datasets.streams import Stream

__all__ = ["ParquetRows", "Rows", "StreamRows"]


class Rows(ABC):
    """Labelled rows that travel to workers as a description, not as rows.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.datasets.streams import Stream
        >>> rows = StreamRows(Stream(lambda: iter([(np.eye(4), np.full((4, 2), 0.5))]), 4))
        >>> isinstance(rows, Rows), sum(len(chunk) for chunk in rows.stream().chunks())
        (True, 4)
    """

    @abstractmethod
    def stream(self) -> Stream:
        """All rows.

        Returns:
            A stream of pairs of x and labels.
        """

    @abstractmethod
    def shard(self, rank: int, workers: int) -> Stream:
        """The rows of one worker.

        Every worker has the same number of rows in blocks of the same sizes, or some would wait for gradients that
        never come; up to ``workers - 1`` rows of the whole, or of a block, are left out for that.

        Args:
            rank: number of the worker.
            workers: how many there are.

        Returns:
            A stream of its rows.
        """


@dataclass(frozen=True)
class ParquetRows(Rows):
    """Rows of Parquet files: each worker reads the row groups that hold its rows, and no others.

    Args:
        addresses: files, folders, patterns, addresses of object stores.
        labels: label columns.
        features: feature columns; all others where empty.
        counts: whether labels are votes.

    Example:
        >>> import pandas, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frame = pandas.DataFrame({"x": range(7), "a": 0.5, "b": 0.5})
        ...     frame.to_parquet(f"{folder}/rows.parquet", row_group_size=2)
        ...     rows = ParquetRows((folder,), ("a", "b"))
        ...     [[list(chunk.X["x"]) for chunk in rows.shard(rank, 2).chunks()] for rank in range(2)]
        [[[0, 1, 2]], [[3, 4, 5]]]
    """

    addresses: tuple[str, ...]
    labels: tuple[str, ...]
    features: tuple[str, ...] = ()
    counts: bool = False

    def table(self) -> PartTable:
        """The files.

        Returns:
            The files, looked at.
        """
        return PartTable(find_tables(list(self.addresses)))

    def names(self, table: PartTable) -> list[str]:
        """The feature columns.

        Args:
            table: the files.

        Returns:
            Their names.

        Raises:
            InputError: the files lack a column.
        """
        names = list(self.features) or [name for name in table.columns if name not in self.labels]
        table.need([*names, *self.labels], "features and labels")
        return names

    def stream(self) -> Stream:
        """See :meth:`Rows.stream`."""
        return self.shard(0, 1)

    def shard(self, rank: int, workers: int) -> Stream:
        """See :meth:`Rows.shard`."""
        from snefy_ldl.datasets.streams import Stream  # loads torch

        table = self.table()
        names = self.names(table)
        size = table.n_rows // workers
        first = rank * size

        def blocks() -> Iterator[tuple[Any, Any]]:
            for part in self._tables(table, names, first, first + size):
                yield part.select(names).to_pandas(), part.select(list(self.labels)).to_pandas()

        return Stream(blocks, size, self.counts)

    def _tables(self, table: PartTable, names: list[str], first: int, last: int) -> Iterator[Any]:
        """Rows from one number to before another, in tables of one size: where row groups end does not matter."""
        import pyarrow

        from snefy_ldl._internal.limits import STREAM_BYTES, STREAM_ROWS

        columns = [*names, *self.labels]
        step = max(256, min(STREAM_ROWS, STREAM_BYTES // (8 * len(columns))))
        held: list[Any] = []
        count = 0
        for part in plan_parts(table, rows=1):
            if part.before >= last or part.before + part.rows <= first:
                continue
            for start, batch in part.batches(columns, step):
                place = part.before + start - part.first
                low, high = max(first - place, 0), min(last - place, batch.num_rows)
                if high <= low:
                    continue
                held.append(batch.slice(low, high - low))
                count += high - low
                while count >= step:
                    whole = pyarrow.Table.from_batches(held)
                    yield whole.slice(0, step)
                    held, count = whole.slice(step).to_batches(), count - step
        if count:
            yield pyarrow.Table.from_batches(held)


@dataclass(frozen=True)
class StreamRows(Rows):
    """Rows of any stream: every worker reads all blocks and keeps its part of each.

    Args:
        source: the stream, whose blocks hold at least as many rows as there are workers; smaller ones are left out.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.datasets.streams import Stream
        >>> rows = StreamRows(Stream(lambda: iter([(np.eye(5), np.full((5, 2), 0.5))]), 5))
        >>> [len(chunk) for chunk in rows.shard(1, 2).chunks()]
        [2]
    """

    source: Stream

    def stream(self) -> Stream:
        """See :meth:`Rows.stream`."""
        return self.source

    def shard(self, rank: int, workers: int) -> Stream:
        """See :meth:`Rows.shard`."""
        import numpy as np

        from snefy_ldl._internal.validation.rows import as_rows, take_rows
        from snefy_ldl.datasets.streams import Stream  # loads torch

        source = self.source

        def blocks() -> Iterator[tuple[Any, Any]]:
            for chunk in source.chunks():
                size = len(chunk) // workers
                if size:
                    part = np.arange(size) * workers + rank
                    labels = chunk.labels
                    labels = labels.iloc[part] if hasattr(labels, "iloc") else np.asarray(labels)[part]
                    yield take_rows(as_rows(chunk.X), part), labels

        return Stream(blocks, None if source.n_rows is None else source.n_rows // workers, source.counts)
