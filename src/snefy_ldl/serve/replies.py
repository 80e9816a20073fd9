"""Request bodies and replies, as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from snefy_ldl.serve.answers import Answer
from snefy_ldl.serve.limits import Fault, HungUp, Limits
from snefy_ldl.serve.schemas import Question
from snefy_ldl.serve.store import ServedModel

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
        request: for the type of its body.
        body: JSON.
        limits: of the service.

    Returns:
        The request; its rows are not checked yet.

    Raises:
        Fault: 415 for another type, 422 where the body breaks a rule.
    """
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media not in (JSON, "text/json"):
        raise Fault(415, f"the content type must be {JSON}.")
    try:
        question = kind.model_validate_json(body)
    except ValidationError as error:
        raise _first_fault(error) from None
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


def reply(answer: Answer, served: ServedModel) -> Response:
    """The reply with an answer.

    Args:
        answer: to send.
        served: the model.

    Returns:
        The response.
    """
    notes = {"model": served.name, "version": served.version, "labels": served.labels, **answer.notes}
    columns = [f"{json.dumps(name)}:[{','.join(_lines(values))}]" for name, values in answer.columns.items()]
    head = json.dumps(notes, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(f"{head[:-1]},{','.join(columns)}}}".encode("utf-8", "replace"), 200, None, JSON)


def _lines(values: Any) -> list[str]:
    """One text per row: writing millions of numbers at once would block all other threads."""
    finite = np.isfinite(values)
    rows: Any = values if finite.all() else np.where(finite, values, None)  # JSON has no infinity and no NaN
    return [json.dumps(row, allow_nan=False, separators=(",", ":")) for row in rows.tolist()]
