"""Tables on disk, read and written a part at a time: CSV, TSV and Parquet by the file's ending."""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from snefy_ldl._text import shorten
from snefy_ldl.errors import DataNotFoundError, InputError, SnefyError
from snefy_ldl.files.atomic import replace_file

__all__ = ["DECIMALS", "Progress", "TableSink", "TableSource", "cell_text", "parquet_batches", "table_kind"]

#: Rows held in memory at a time.
CHUNK_ROWS = 32_768
#: Rows of a Parquet file read in one pass; see :func:`parquet_batches`.
PASS_ROWS = 65_536
#: Shares and intervals are written with this many decimals.
DECIMALS = 8

#: Cells of a text file that stand for a missing number: what pandas takes for one by default.
NO_NUMBER = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
#: Called with how much is done, and of how much.
Progress = Callable[[int, int], None]


def table_kind(file: Path) -> str:
    """How a table is written down, by the file's ending.

    Args:
        file: Its name; the file need not exist.

    Returns:
        ``"csv"``, ``"tsv"`` or ``"parquet"``.

    Raises:
        InputError: The ending is unknown.

    >>> table_kind(Path("soil.csv.gz")), table_kind(Path("soil.pq"))
    ('csv', 'parquet')
    """
    endings = [ending.lower() for ending in file.suffixes]
    last = endings[-2] if endings[-1:] == [".gz"] and len(endings) > 1 else (endings or [""])[-1]
    kinds = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}
    if last not in kinds or (kinds[last] == "parquet" and endings[-1] == ".gz"):
        raise InputError(f"{file.name}: unknown ending {last!r}; use .csv, .tsv (also .gz), .parquet or .pq.")
    return kinds[last]


def cell_text(value: Any) -> str:
    """A cell as text: nothing (None, NaN) is empty, and a whole number has no point.

    Args:
        value: What the cell holds.

    Returns:
        Its text.

    >>> [cell_text(value) for value in ("007", 7, 7.0, None, float("nan"))]
    ['007', '7', '7', '', '']
    """
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parquet_batches(file: Any, rows: int, columns: list[str]) -> Iterator[tuple[Any, int]]:
    """A Parquet file in parts, in bounded memory.

    Two habits of the reader have to be worked around. Without a buffer it reads a whole row group at once, and a file
    may be one row group; with a buffer, a pass keeps what it has read of every row group until it ends. So a pass is
    made over a few row groups at a time.

    Args:
        file: A path, or a file open for reading bytes.
        rows: Most rows of a part.
        columns: Columns to read.

    Yields:
        A batch of pyarrow's, and the number of rows in the whole file.
    """
    import pyarrow.parquet  # an extra, loaded where it is used

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
    r"""A table on disk: the one reader of CSV, TSV and Parquet files, whole or in parts.

    Args:
        file: The table; its ending says how to read it.

    Attributes:
        file: The table.
        kind: ``"csv"``, ``"tsv"`` or ``"parquet"``.
        columns: Its columns, without the index that pandas may have stored in a Parquet file.

    Raises:
        DataNotFoundError: There is no such file.
        InputError: The ending is unknown, or the file cannot be read as a table.
        ImportError: pandas or pyarrow is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "soil.csv"
    ...     _ = file.write_text("site,depth\n007,10\n008,20\n")
    ...     source = TableSource(file)
    ...     source.columns, list(source.whole(["depth"], as_text=["site"])["site"])
    (['site', 'depth'], ['007', '008'])
    """

    def __init__(self, file: Path) -> None:
        try:
            import pandas  # extras, loaded where a table is read
            import pyarrow  # noqa: F401
        except ImportError:
            raise ImportError("tables need pandas and pyarrow: pip install 'snefy-ldl[data]'") from None
        if not file.is_file():
            raise DataNotFoundError(f"no file at {file}.")
        self.file, self.kind, self._pandas = file, table_kind(file), pandas
        with self._readable():
            self.columns = self._read_columns()

    def need(self, columns: list[str], what: str) -> None:
        """Raise unless every column is there.

        Args:
            columns: Their names.
            what: What they are for, for the message.

        Raises:
            InputError: Some are missing; the message names them.
        """
        if missing := [name for name in columns if name not in self.columns]:
            raise InputError(
                f"{self.file.name} lacks {len(missing)} column(s) ({what}): {shorten(missing)}. "
                f"It has: {shorten(self.columns)}."
            )

    def chunks(
        self, features: list[str], keep: list[str], progress: Progress | None = None, rows: int | None = None
    ) -> Iterator[Any]:
        """The rows in parts.

        Args:
            features: Columns of numbers, checked to be finite.
            keep: Columns to pass on as they are; in a text file they stay text.
            progress: Called with how much is done, and of how much.
            rows: Most rows of a part; ``CHUNK_ROWS`` by default.

        Yields:
            Frames with these columns.

        Raises:
            InputError: A feature is no finite number (the message names column and row), or there is no row.
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
        """Raise where a column holds anything but finite numbers; ``first`` is the number of its first row."""
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
        """All rows in one frame.

        Args:
            columns: Columns to read, of the type they have.
            as_text: Columns to read as text, empty where the cell is.
            progress: Called with how much is done, and of how much.

        Returns:
            A frame with these columns.

        Raises:
            InputError: There is no row.
        """
        wanted = list(dict.fromkeys([*as_text, *columns]))
        parts = list(self._frames(wanted, set(as_text), progress))
        if not sum(len(part) for part in parts):
            raise InputError(f"{self.file.name} holds no rows.")
        frame = self._pandas.concat(parts, ignore_index=True)
        for name in as_text:
            frame[name] = [cell_text(value) for value in frame[name]]
        return frame

    def take(self, rows: Any, columns: list[str], as_text: list[str], progress: Progress | None = None) -> Any:
        """Some rows by number; the file is read once, a part at a time.

        Args:
            rows: Row numbers, counting from 0, in any order.
            columns: Columns to read, of the type they have.
            as_text: Columns to read as text, empty where the cell is.
            progress: Called with how much is done, and of how much.

        Returns:
            A frame of these rows in that order.

        Raises:
            InputError: The file has no such row.
        """
        order = rows.argsort(kind="stable")
        wanted, parts, start = rows[order], [], 0
        for part in self._frames(list(dict.fromkeys([*as_text, *columns])), set(as_text), progress):
            low, high = wanted.searchsorted([start, start + len(part)])
            parts.append(part.iloc[wanted[low:high] - start])
            start += len(part)
        if len(wanted) and wanted[-1] >= start:
            raise InputError(f"{self.file.name} has {start} rows; there is no row {wanted[-1]} (counting from 0).")
        frame = self._pandas.concat(parts, ignore_index=True).iloc[order.argsort(kind="stable")]
        for name in as_text:
            frame[name] = [cell_text(value) for value in frame[name]]
        return frame.reset_index(drop=True)

    def _frames(
        self, columns: list[str], as_text: set[str], progress: Progress | None, rows: int | None = None
    ) -> Iterator[Any]:
        """Frames with these columns, whatever the file's kind."""
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
                dtype=dict.fromkeys(as_text, str),  # as they stand: "007" and "NA" are names, too
                keep_default_na=False,
                na_values={name: NO_NUMBER for name in self.columns if name not in as_text},
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

            schema = pyarrow.parquet.read_schema(self.file)
            index = (schema.pandas_metadata or {}).get("index_columns", [])
            return [str(name) for name in schema.names if name not in index]
        return [str(name) for name in self._pandas.read_csv(self.file, sep=self._separator, nrows=0).columns]

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn the readers' own complaints into ours."""
        try:
            yield
        except SnefyError:
            raise
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{self.file.name} cannot be read as a table: {error}") from None


class TableSink:
    """A table that is written in parts, under a temporary name until it is whole.

    Use it as a context: the file appears when the block ends well, and an older one stays when it does not.

    Args:
        out: The file, whose ending says how to write it; ``-`` is CSV on standard output.

    Raises:
        InputError: The ending is unknown.

    >>> import pandas, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "shares.csv"
    ...     with TableSink(str(file)) as sink:
    ...         sink.write(pandas.DataFrame({"sand": [0.5]}))
    ...         sink.write(pandas.DataFrame({"sand": [0.25]}))
    ...     file.read_text().split()
    ['sand', '0.5', '0.25']
    """

    def __init__(self, out: str) -> None:
        self.file = None if out == "-" else Path(out)
        self._kind = "csv" if self.file is None else table_kind(self.file)
        self._stack = contextlib.ExitStack()
        self._temporary: Path | None = None
        self._writer: Any = None

    def __enter__(self) -> TableSink:
        if self.file is not None:
            self._temporary = self._stack.enter_context(replace_file(self.file))
        return self

    def write(self, frame: Any) -> None:
        """Add rows.

        Args:
            frame: A pandas DataFrame; all of them have the same columns.
        """
        if self._kind == "parquet":
            import pyarrow
            import pyarrow.parquet

            schema = None if self._writer is None else self._writer.schema
            table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
            if self._writer is None:
                writer = pyarrow.parquet.ParquetWriter(self._temporary, table.schema)
                self._writer = self._stack.enter_context(writer)
            self._writer.write_table(table)
            return
        header = self._writer is None
        if header:
            self._writer = sys.stdout if self.file is None else self._open_text()
        frame.to_csv(self._writer, sep="\t" if self._kind == "tsv" else ",", index=False, header=header)

    def _open_text(self) -> Any:
        """The temporary file, open for text; every layer is closed on its own, also where another one cannot be.

        A disk may be full when the last bytes are flushed, and a file that stays open cannot be removed everywhere.
        """
        assert self.file is not None
        assert self._temporary is not None
        layer: Any = self._stack.enter_context(self._temporary.open("wb"))
        if self.file.suffix == ".gz":
            layer = self._stack.enter_context(gzip.GzipFile("", "wb", fileobj=layer, mtime=0))
        return self._stack.enter_context(io.TextIOWrapper(layer, encoding="utf-8", newline=""))

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
