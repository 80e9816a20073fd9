"""Arrow streams in and out: tables of rows, and answers with one column a question."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from snefy_ldl.serve.faults import Fault

__all__ = ["ARROW", "read_stream", "write_stream"]

#: The media type of an Arrow IPC stream.
ARROW = "application/vnd.apache.arrow.stream"


def _pyarrow() -> Any:
    try:
        import pyarrow  # an extra, and heavy: loaded with the first Arrow request
        import pyarrow.ipc
    except ImportError:
        raise Fault(415, "this service has no pyarrow, so it takes and gives JSON only.") from None
    return pyarrow


def read_stream(body: bytes, most_rows: int) -> tuple[list[str], list[list[Any]]]:
    """The columns and cells of an Arrow stream; nothing in it may be compressed, so that it cannot grow.

    Args:
        body: the stream.
        most_rows: rows that are taken.

    Returns:
        Names of the columns, and the rows' cells as Python values.

    Raises:
        Fault: 422, it is no stream, damaged, compressed, or has too many rows.
    """
    arrow = _pyarrow()
    try:
        reader = arrow.ipc.MessageReader.open_stream(arrow.BufferReader(body))
        for message in reader:
            if _is_compressed(message.metadata.to_pybytes()):
                raise Fault(422, "the Arrow stream is compressed; send it without compression.")
        batches, rows = [], 0
        with arrow.ipc.open_stream(arrow.BufferReader(body)) as stream:
            for batch in stream:
                rows += batch.num_rows
                if rows > most_rows:
                    raise Fault(422, f"the Arrow stream has more than {most_rows:,} rows; send fewer at a time.")
                batch.validate(full=True)
                batches.append(batch)
            table = arrow.Table.from_batches(batches, stream.schema)
        names = [str(name) for name in table.column_names]
        if len(set(names)) < len(names):
            raise Fault(422, "the Arrow stream has two columns of one name.")
        cells = [column.to_pylist() for column in table.columns]
    except Fault:
        raise
    except Exception as error:  # damage shows in many ways: pyarrow's own errors, struct's, Unicode's, of memory
        raise Fault(422, f"the body is no whole Arrow stream ({type(error).__name__}).") from None
    return names, [list(row) for row in zip(*cells)]


def write_stream(columns: dict[str, Any], notes: dict[str, str]) -> bytes:
    """Arrays with one entry a row as an Arrow stream; what is deeper than one number becomes lists.

    Args:
        columns: arrays (N, ...) by name.
        notes: what holds for all rows, for the schema's metadata.

    Returns:
        The stream.

    Example:
        >>> read_stream(write_stream({"mean": np.array([[0.25, 0.75]])}, {"labels": "a,b"}), 10)
        (['mean'], [[[0.25, 0.75]]])
    """
    arrow = _pyarrow()
    arrays = {name: _nested(arrow, np.asarray(values)) for name, values in columns.items()}
    table = arrow.table(arrays).replace_schema_metadata({key: text.encode() for key, text in notes.items()})
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _nested(arrow: Any, values: Any) -> Any:
    array = arrow.array(values.ravel())
    for size in reversed(values.shape[1:]):
        array = arrow.FixedSizeListArray.from_arrays(array, size)
    return array


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message's buffers are compressed, by the field that its flatbuffer would then have.

    A Message holds header_type (field 1) and header (2); a RecordBatch holds compression (3), and a DictionaryBatch
    its RecordBatch (1).
    """
    message = struct.unpack_from("<I", metadata, 0)[0]
    kind_at, header = _field(metadata, message, 1), _field(metadata, message, 2)
    if kind_at is None or header is None:
        return False
    kind, batch = metadata[kind_at], header + struct.unpack_from("<I", metadata, header)[0]
    if kind == 2:  # a dictionary
        inner = _field(metadata, batch, 1)
        if inner is None:
            return False
        batch = inner + struct.unpack_from("<I", metadata, inner)[0]
    return kind in (2, 3) and _field(metadata, batch, 3) is not None


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Where a flatbuffer table has one of its fields; None where it has not."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    size = struct.unpack_from("<H", buffer, vtable)[0]
    if 4 + 2 * number + 2 > size:
        return None
    offset = struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None
