"""Tables written a part at a time, under a temporary name until they are whole."""

from __future__ import annotations

import contextlib
import csv
import gc
import gzip
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from snefy_ldl._internal.files.atomic import replace_file
from snefy_ldl.datasets.formats import change_formulas, escape_cell, table_kind
from snefy_ldl.errors import InputError

__all__ = ["DECIMALS", "TableSink"]

#: Shares and intervals are written with this many decimals.
DECIMALS = 8


class TableSink:
    """A table that is written in parts, under a temporary name until it is whole.

    Use it as a context: the file appears when the block ends well, and an older one stays when it does not. Text stays
    text in spreadsheet programs: Excel files hold no formulas, and in CSV and TSV files a single quote stands before
    text that would be one (:func:`snefy_ldl.datasets.formats.escape_cell`).

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
        self._parts: list[Any] = []  # of kinds that are written in one go

    def __enter__(self) -> TableSink:
        if self.file is not None:
            self._temporary = self._stack.enter_context(replace_file(self.file))
        return self

    def write(self, frame: Any) -> None:
        """Add rows.

        Args:
            frame: A pandas DataFrame; all of them have the same columns.
        """
        if self._kind in ("excel", "feather"):
            self._parts.append(frame)
            return
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
        frame = change_formulas(frame, escape_cell)
        quoting = csv.QUOTE_NONNUMERIC if _has_carriage_return(frame) else csv.QUOTE_MINIMAL
        separator = "\t" if self._kind == "tsv" else ","
        frame.to_csv(self._writer, sep=separator, index=False, header=header, quoting=quoting)

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

    def _write_whole(self) -> None:
        import pandas  # an extra, loaded where a table is written

        frame = pandas.concat(self._parts, ignore_index=True)
        if self._kind == "feather":
            frame.to_feather(self._temporary)
            return
        assert self.file is not None
        assert self._temporary is not None
        self._temporary.write_bytes(_excel_bytes(frame, self.file))

    def __exit__(self, *error: Any) -> None:
        try:
            if self._parts and error[:1] in ((), (None,)):
                self._write_whole()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        self._stack.__exit__(*error)


def _has_carriage_return(frame: Any) -> bool:
    """Whether any text holds one: the writer of text files forgets to quote it, and it would end the row."""
    return any(
        isinstance(cell, str) and "\r" in cell
        for place, dtype in enumerate(frame.dtypes)
        if dtype.kind in "OU"
        for cell in (frame.columns[place], *frame.iloc[:, place])
    )


def _excel_bytes(frame: Any, file: Path) -> Any:
    """A DataFrame as the content of an Excel file, whose name is for messages.

    It is made in memory, but openpyxl writes sheets to temporary files first. Where something goes wrong, its
    unfinished files complain again when they are thrown away; one error is enough.
    """
    import pandas  # an extra, loaded where a table is written

    content = io.BytesIO()
    failure: Exception | None = None
    usual, sys.unraisablehook = sys.unraisablehook, lambda complaint: None
    try:
        with pandas.ExcelWriter(content, engine="openpyxl") as writer:
            frame.to_excel(writer, index=False)
            _store_as_text(writer.book.active)
    except ImportError:
        failure = ImportError("Excel files need openpyxl: pip install 'snefy-ldl[excel]'")
    except OSError as error:  # the file itself is not written yet
        failure = OSError(error.errno, error.strerror, tempfile.gettempdir())
    except Exception as error:  # too many rows, or characters that the format lacks
        failure = InputError(f"{file} cannot be written: {error} Write .csv or .parquet instead.")
    finally:
        if failure is not None:
            gc.collect()
        sys.unraisablehook = usual
    if failure is not None:
        raise failure
    return content.getbuffer()


def _store_as_text(sheet: Any) -> None:
    """Let a sheet's cells that openpyxl took for formulas or errors be text, also after somebody edits them."""
    for row in sheet.iter_rows():
        for cell in row:
            if cell.data_type in ("f", "e"):
                cell.data_type, cell.quotePrefix = "s", True
