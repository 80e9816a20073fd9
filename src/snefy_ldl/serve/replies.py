"""Bodies in, bodies out: JSON or Arrow, whole or not at all."""

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
from snefy_ldl.serve.arrow import ARROW, read_stream, write_stream
from snefy_ldl.serve.faults import Fault, HungUp
from snefy_ldl.serve.limits import Limits
from snefy_ldl.serve.schemas import Question
from snefy_ldl.serve.store import ServedModel

__all__ = ["fault_reply", "json_reply", "read_body", "read_question", "reply"]

JSON = "application/json"


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request, as long as it is not too long.

    Args:
        request: whose body has not been read.
        limits: of the service.

    Returns:
        The bytes.

    Raises:
        Fault: 413, it is longer than the limit; 408, it did not come in time.
        HungUp: the client left before it was whole.
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
        raise Fault(408, f"the body was not there within {limits.body_seconds:g} s.") from None
    except ClientDisconnect:
        raise HungUp from None


def read_question(kind: type[Question], request: Request, body: bytes, limits: Limits) -> Question:
    """A checked question.

    Args:
        kind: its class.
        request: for the type of its body, and the query parameter ``options`` that goes with Arrow.
        body: JSON, or an Arrow stream of the rows.
        limits: of the service.

    Returns:
        The question; its rows are not checked yet.

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
        raise Fault(422, f"options are no JSON ({type(error).__name__}).", field="options") from None
    if len(question.rows) > limits.rows:
        raise Fault(422, f"{len(question.rows):,} rows; at most {limits.rows:,} at a time.", field="rows")
    return question


def _first_fault(error: ValidationError) -> Fault:
    """The first thing that is wrong, without what was sent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith(("dict[", "list["))]
    row = next((int(part) for part in first["loc"] if isinstance(part, int)), None)
    named = f"field {'.'.join(place)!r}: " if place else ""
    in_rows = len(place) > 1 and place[0] in ("rows", "votes")
    return Fault(422, f"{named}{first['msg']}", row if in_rows else None, ".".join(place) or None)


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Plain values as JSON.

    Args:
        content: what is sent.
        status: of HTTP.
        headers: further ones.

    Returns:
        The response, with its length, so that half of it is never taken for all.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), status, headers, JSON)


def fault_reply(fault: Fault) -> Response:
    """What is said about a request that cannot be answered.

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
    """An answer in the form that was asked for.

    Args:
        answer: what to send.
        served: the model it is from.
        accept: the request's header.

    Returns:
        The response, JSON unless Arrow was asked for.
    """
    notes = {"model": served.name, "version": served.version, "labels": served.labels, **answer.notes}
    if ARROW in accept:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in notes.items()}
        return Response(write_stream(answer.columns, texts), 200, None, ARROW)
    columns = [f"{json.dumps(name)}:[{','.join(_lines(values))}]" for name, values in answer.columns.items()]
    head = json.dumps(notes, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(f"{head[:-1]},{','.join(columns)}}}".encode("utf-8", "replace"), 200, None, JSON)


def _lines(values: Any) -> list[str]:
    """One text per row: writing millions of numbers in one go would hold up every other thread."""
    return [json.dumps(row, allow_nan=False, separators=(",", ":")) for row in _listed(values)]


def _listed(values: Any) -> Any:
    """An array as lists; what is not finite has no name in JSON and becomes null."""
    if np.isfinite(values).all():
        return values.tolist()
    cells = values.astype(object)
    cells[~np.isfinite(values)] = None
    return cells.tolist()
