"""Request bodies and replies, as JSON or Arrow streams."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from snefy_ldl.serve.answers import Answer
from snefy_ldl.serve.limits import Fault, HungUp, Limits
from snefy_ldl.serve.schemas import ARROW, Question
from snefy_ldl.serve.store import ServedModel

__all__ = ["fault_reply", "json_reply", "read_body", "read_question", "read_stream", "reply", "write_stream"]

JSON = "application/json"


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request.

    Args:
        request: whose body has not been read.
        limits: of the service.

    Returns:
        The bytes.

    Raises:
        Fault: 413, it is longer than the limit; 408, it did not arrive in time.
        HungUp: the client disconnected before it was complete.
    """

    async def read() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limits.body_bytes:
                raise Fault(413, f"the body is longer than {limits.body_bytes:,} bytes; send fewer rows at a time.")
            parts.append(part)
        return b"".join(parts)

    try:
        return await asyncio.wait_for(read(), limits.body_seconds)
    except asyncio.TimeoutError:
        raise Fault(408, f"the body did not arrive within {limits.body_seconds:g} s.") from None
    except ClientDisconnect:
        raise HungUp from None


def read_question(kind: type[Question], request: Request, body: bytes, limits: Limits) -> Question:
    """Read and check a request.

    Args:
        kind: its class.
        request: for the type of its body, and the query parameter ``options`` that goes with Arrow.
        body: JSON, or an Arrow stream of the rows.
        limits: of the service.

    Returns:
        The request; its rows are not checked yet.

    Raises:
        Fault: 415 for another type, 422 where the body breaks a rule.
    """
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        if media == ARROW:
            options = request.query_params.get("options", "{}")
            given = json.loads(options)
            if not isinstance(given, dict) or "rows" in given:
                raise Fault(422, "options must be a JSON object without rows.", field="options")
            names, cells = read_stream(body, limits.rows)
            question = kind.model_validate({**given, "rows": [dict(zip(names, row)) for row in cells]})
        elif media in (JSON, "text/json"):
            question = kind.model_validate_json(body)
        else:
            raise Fault(415, f"the content type must be {JSON} or {ARROW}.")
    except ValidationError as error:
        raise _first_fault(error) from None
    except (ValueError, RecursionError) as error:
        raise Fault(422, f"options are not valid JSON ({type(error).__name__}).", field="options") from None
    if len(question.rows) > limits.rows:
        raise Fault(422, f"{len(question.rows):,} rows; at most {limits.rows:,} at a time.", field="rows")
    return question


def _first_fault(error: ValidationError) -> Fault:
    """The first error, without the values that were sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith(("dict[", "list["))]
    row = next((int(part) for part in first["loc"] if isinstance(part, int)), None)
    named = f"field {'.'.join(place)!r}: " if place else ""
    in_rows = len(place) > 1 and place[0] in ("rows", "votes")
    return Fault(422, f"{named}{first['msg']}", row if in_rows else None, ".".join(place) or None)


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON reply.

    Args:
        content: plain values.
        status: HTTP status.
        headers: additional headers.

    Returns:
        The response, with its length, so that a truncated one is recognised.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, headers, JSON)


def fault_reply(fault: Fault) -> Response:
    """The reply to a request that cannot be answered.

    Args:
        fault: why.

    Returns:
        The response.
    """
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    if fault.status == 401:
        headers["WWW-Authenticate"] = 'Bearer, Basic realm="snefy-ldl", charset="UTF-8"'
    if fault.status in (401, 408, 413):  # the rest of the body is not read
        headers["Connection"] = "close"
    return json_reply(fault.content(), fault.status, headers)


def reply(answer: Answer, served: ServedModel, accept: str) -> Response:
    """The reply with an answer.

    Args:
        answer: to send.
        served: the model.
        accept: the request's ``Accept`` header.

    Returns:
        The response, JSON unless the header names Arrow.
    """
    notes = {"model": served.name, "version": served.version, "labels": served.labels, **answer.notes}
    if ARROW in accept:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in notes.items()}
        return Response(write_stream(answer.columns, texts), 200, None, ARROW)
    columns = [f"{json.dumps(name)}:[{','.join(_lines(values))}]" for name, values in answer.columns.items()]
    head = json.dumps(notes, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(f"{head[:-1]},{','.join(columns)}}}".encode("utf-8", "replace"), 200, None, JSON)


def _lines(values: Any) -> list[str]:
    """One text per row: writing millions of numbers at once would block all other threads."""
    finite = np.isfinite(values)
    rows: Any = values if finite.all() else np.where(finite, values, None)  # JSON has no infinity and no NaN
    return [json.dumps(row, allow_nan=False, separators=(",", ":")) for row in rows.tolist()]


def _pyarrow() -> Any:
    try:
        import pyarrow  # an extra, and heavy: loaded with the first Arrow request
        import pyarrow.ipc
    except ImportError:
        raise Fault(415, "this service runs without pyarrow, so it accepts and sends JSON only.") from None
    return pyarrow


def read_stream(body: bytes, most_rows: int) -> tuple[list[str], list[list[Any]]]:
    """The columns and cells of an Arrow stream; compressed streams are refused, since they could expand without limit.

    Args:
        body: the stream.
        most_rows: maximum number of rows.

    Returns:
        Names of the columns, and the rows' cells as Python values.

    Raises:
        Fault: 422, the stream is damaged, compressed, or has too many rows.
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
            raise Fault(422, "the Arrow stream has two columns with the same name.")
        cells = [column.to_pylist() for column in table.columns]
    except Fault:
        raise
    except Exception as error:  # damaged streams raise errors of pyarrow, struct, Unicode or memory
        raise Fault(422, f"the body is not a valid Arrow stream ({type(error).__name__}).") from None
    return names, [list(row) for row in zip(*cells)]


def write_stream(columns: dict[str, Any], notes: dict[str, str]) -> bytes:
    """Arrays with one entry per row as an Arrow stream; further dimensions become lists.

    Args:
        columns: arrays (N, ...) by name.
        notes: about the whole answer, for the schema's metadata.

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
    """The position of a field in a flatbuffer table; None if it is absent."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    size = struct.unpack_from("<H", buffer, vtable)[0]
    if 4 + 2 * number + 2 > size:
        return None
    offset = struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None
