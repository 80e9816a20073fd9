"""Tables on disk, read and written a part at a time: CSV, TSV and Parquet by the file's ending."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from snefy_ldl._text import shorten
from snefy_ldl.errors import DataNotFoundError, InputError, SnefyError

#: Rows held in memory at a time.
CHUNK_ROWS = 32_768
#: Rows of a Parquet file read in one pass; see :func:`parquet_batches`.
PASS_ROWS = 65_536
#: Shares are written with this many decimals.
DECIMALS = 8

Progress = Callable[[int, int], None]


# --- numbers ----------------------------------------------------------------------------------------------------------


def table_kind(file: Path) -> str:
    """``csv``, ``tsv`` or ``parquet``, by the file's ending."""
    endings = [ending.lower() for ending in file.suffixes]
    last = endings[-2] if endings[-1:] == [".gz"] and len(endings) > 1 else (endings or [""])[-1]
    kinds = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}
    if last not in kinds or (kinds[last] == "parquet" and endings[-1] == ".gz"):
        raise InputError(f"{file.name}: unknown ending; use .csv, .tsv (also .gz), .parquet or .pq.")
    return kinds[last]


def cell_text(value: Any) -> str:
    """A cell as text: nothing (None, NaN) is empty, and a whole number has no point.

    >>> [cell_text(value) for value in ("007", 7, 7.0, None, float("nan"))]
    ['007', '7', '7', '', '']
    """
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parquet_batches(file: Any, rows: int, columns: list[str]) -> Iterator[tuple[Any, int]]:
    """Batches of at most so many rows of a Parquet file, in bounded memory, and the number of rows in all.

    Two habits of the reader have to be worked around. Without a buffer it reads a whole row group at once, and a file
    may be one row group; with a buffer, a pass keeps what it has read of every row group until it ends. So a pass is
    made over a few row groups at a time.
    """
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file, buffer_size=1 << 17) as content:
        groups = content.metadata.num_row_groups
        run, held = [], 0
        for group in range(groups):
            run.append(group)
            held += content.metadata.row_group(group).num_rows
            if held >= PASS_ROWS or group == groups - 1:
                for batch in content.iter_batches(rows, row_groups=run, columns=columns):
                    yield batch, int(content.metadata.num_rows)
                run, held = [], 0


class TableSource:
    """A table on disk that is read in parts."""

    def __init__(self, file: Path) -> None:
        try:
            import pandas
            import pyarrow  # noqa: F401
        except ImportError:
            raise ImportError("tables need pandas and pyarrow: pip install 'snefy-ldl[data]'") from None
        self.file, self.kind, self._pandas = file, table_kind(file), pandas
        if not file.is_file():
            raise DataNotFoundError(f"no file at {file}.")
        with self._readable():
            self.columns = self._read_columns()

    def need(self, columns: list[str], what: str) -> None:
        """Raise unless every column is there."""
        if missing := [name for name in columns if name not in self.columns]:
            raise InputError(
                f"{self.file.name} lacks {len(missing)} column(s) ({what}): {shorten(missing)}. "
                f"It has: {shorten(self.columns)}."
            )

    def chunks(
        self, features: list[str], keep: list[str], progress: Progress | None = None, rows: int | None = None
    ) -> Iterator[Any]:
        """Frames with the wanted columns; features are checked to be finite numbers, kept columns stay text.

        Args:
            features: columns of numbers.
            keep: columns to pass on as they are.
            progress: told how much is done, of how much.
            rows: most rows of a frame.
        """
        first = 1
        as_text = set(keep) - set(features)
        for chunk in self._frames(list(dict.fromkeys([*keep, *features])), as_text, progress, rows):
            if chunk.empty:
                continue
            for name in features:
                self._check_numbers(chunk[name], name, first)
            first += len(chunk)
            yield chunk
        if first == 1:
            raise InputError(f"{self.file.name} holds no rows.")

    def _check_numbers(self, column: Any, name: str, first: int) -> None:
        numbers = self._pandas.to_numeric(column, errors="coerce").to_numpy(dtype="float64", na_value=float("nan"))
        bad = (numbers != numbers) | (abs(numbers) == float("inf"))
        if bad.any() or column.dtype == object or str(column.dtype).startswith("str"):
            place = int(bad.argmax())
            raise InputError(
                f"{self.file.name}: column {name!r} holds {str(column.iloc[place])!r} in data row {first + place} "
                "(counting from 1); features must be finite numbers. Fill it in first, or drop the row; name the "
                "feature columns with --features if this is none."
            )

    def whole(self, columns: list[str], as_text: list[str], progress: Progress | None = None) -> Any:
        """All rows in one frame; columns ``as_text`` hold text, empty where the cell is."""
        wanted = list(dict.fromkeys([*as_text, *columns]))
        parts = list(self._frames(wanted, set(as_text), progress))
        if not sum(len(part) for part in parts):
            raise InputError(f"{self.file.name} holds no rows.")
        frame = self._pandas.concat(parts, ignore_index=True)
        for name in as_text:
            frame[name] = [cell_text(value) for value in frame[name]]
        return frame

    def take(self, rows: Any, columns: list[str], as_text: list[str], progress: Progress | None = None) -> Any:
        """Some rows by number, in that order: a frame of these columns; reads the file once, a part at a time."""
        order = rows.argsort(kind="stable")
        wanted, parts, start = rows[order], [], 0
        for part in self._frames(list(dict.fromkeys([*as_text, *columns])), set(as_text), progress):
            low, high = wanted.searchsorted([start, start + len(part)])
            parts.append(part.iloc[wanted[low:high] - start])
            start += len(part)
        if len(wanted) and wanted[-1] >= start:
            raise InputError(f"{self.file.name} has {start} rows; row {wanted[-1]} was asked for (counting from 0).")
        frame = self._pandas.concat(parts, ignore_index=True).iloc[order.argsort(kind="stable")]
        for name in as_text:
            frame[name] = [cell_text(value) for value in frame[name]]
        return frame.reset_index(drop=True)

    def _frames(
        self, columns: list[str], as_text: set[str], progress: Progress | None, rows: int | None = None
    ) -> Iterator[Any]:
        total, most = self.file.stat().st_size, rows or CHUNK_ROWS
        progress = progress or (lambda done, total: None)
        with self._readable(), self.file.open("rb") as handle:
            if self.kind == "parquet":
                done = 0
                for batch, rows_in_all in parquet_batches(handle, most, columns):
                    done += batch.num_rows
                    yield batch.to_pandas()[columns]
                    progress(done, rows_in_all)
                return
            reader = self._pandas.read_csv(
                handle,
                sep=self._separator,
                compression="gzip" if self.file.suffix == ".gz" else None,
                index_col=False,
                converters=dict.fromkeys(as_text, str),  # as they stand: "007" and "NA" are names, too
                chunksize=most,
            )
            while (chunk := self._next(reader)) is not None:
                yield chunk[columns]
                progress(handle.tell(), total)

    def _next(self, reader: Any) -> Any:
        """The next part; a row with more fields than the header is an error, or its values would shift unseen."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", self._pandas.errors.ParserWarning)
            try:
                return next(reader, None)
            except self._pandas.errors.ParserWarning as warning:
                raise ValueError(f"rows have more fields than the header. {warning}") from None

    @property
    def _separator(self) -> str:
        return "\t" if self.kind == "tsv" else ","

    def _read_columns(self) -> list[str]:
        if self.kind == "parquet":
            import pyarrow.parquet

            return [str(name) for name in pyarrow.parquet.read_schema(self.file).names]
        return [str(name) for name in self._pandas.read_csv(self.file, sep=self._separator, nrows=0).columns]

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn the readers' own complaints into ours."""
        try:
            yield
        except SnefyError:
            raise
        except (ValueError, EOFError) as error:
            raise InputError(f"{self.file.name} cannot be read as a table: {error}") from None


class TableSink:
    """A table that is written in parts, under a temporary name until it is whole; ``-`` is standard output."""

    def __init__(self, out: str) -> None:
        self.file = None if out == "-" else Path(out)
        self._kind = "csv" if self.file is None else table_kind(self.file)
        self._temporary: Path | None = None
        self._open: Any = None

    def __enter__(self) -> TableSink:
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.file.parent, prefix=f".{self.file.name}.", suffix=".part")
            os.close(handle)
            self._temporary = Path(name)
        return self

    def write(self, frame: Any) -> None:
        """Add rows."""
        if self._kind == "parquet":
            import pyarrow
            import pyarrow.parquet

            table = pyarrow.Table.from_pandas(
                frame, schema=None if self._open is None else self._open.schema, preserve_index=False
            )
            if self._open is None:
                self._open = pyarrow.parquet.ParquetWriter(self._temporary, table.schema)
            self._open.write_table(table)
            return
        header = self._open is None
        if header:
            self._open = sys.stdout if self._temporary is None else self._text()
        frame.to_csv(self._open, sep="\t" if self._kind == "tsv" else ",", index=False, header=header)

    def _text(self) -> Any:
        assert self.file is not None
        assert self._temporary is not None
        if self.file.suffix == ".gz":
            import gzip

            return gzip.open(self._temporary, "wt", encoding="utf-8", newline="")
        return self._temporary.open("w", encoding="utf-8", newline="")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._temporary is None or self.file is None:
            return
        if self._open is not None:
            self._open.close()
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            return
        mask = os.umask(0)
        os.umask(mask)
        self._temporary.chmod(0o666 & ~mask)  # mkstemp's files are private; the result should not be
        self._temporary.replace(self.file)
