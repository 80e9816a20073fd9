"""Between HTTP and the service: bodies and replies, and a middleware that checks tokens, logs and counts."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import numpy as np
from fastapi import Request
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from snefy_ldl.apps.serve.answers import Answer
from snefy_ldl.apps.serve.limits import Fault, Limits
from snefy_ldl.apps.serve.schemas import Question
from snefy_ldl.apps.serve.store import ServedModel


class Front:
    """ASGI middleware: checks the token before the application sees a request, then logs and counts it.

    Args:
        app: the application.
        routes: its paths; requests to any other path are counted together.
        token: that requests must send, or None.
        telemetry: counts requests.
        log: writes one line per request.
    """

    #: Headers of every reply; a page that sets its own security policy keeps it.
    headers = (
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    )

    def __init__(self, app: Any, routes: Iterable[str], token: str | None, telemetry: Telemetry, log: Log) -> None:
        self._app, self._routes, self._telemetry, self._log = app, frozenset(routes), telemetry, log
        self._token = None if token is None else token.encode("utf-8")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check a request and pass it on to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began, status, number = time.perf_counter(), 0, secrets.token_hex(4)
        route = scope["path"] if scope["path"] in self._routes else "other"

        async def send_on(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", []))
                named = {name.lower() for name, _ in headers}
                headers += [(name, value) for name, value in self.headers if name not in named]
                message["headers"] = [*headers, (b"x-request-id", number.encode())]
            await send(message)

        try:
            self._check_token(dict(scope["headers"]).get(b"authorization", b""))
            await self._app(scope, receive, send_on)
        except Fault as fault:
            await fault_reply(fault)(scope, receive, send_on)
        except Exception as error:  # a bug: logged without the message, which may quote the request
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._log("error", id=number, kind=type(error).__name__, where=f"{place.filename}:{place.lineno}")
            if not status:
                reply = json_reply({"error": f"internal error; the log has it as {number}."}, 500)
                await reply(scope, receive, send_on)
        finally:
            seconds, facts = time.perf_counter() - began, scope.get("state", {}).get("logged", {})
            self._telemetry.requests.labels(route, str(status)).inc()
            self._telemetry.seconds.labels(route).observe(seconds)
            method = scope["method"] if scope["method"].isalpha() else "other"
            milliseconds = round(1e3 * seconds, 2)
            self._log("request", id=number, method=method, route=route, status=status, ms=milliseconds, **facts)

    def _check_token(self, given: bytes) -> None:
        """Raise unless the request sends the token, as a bearer token or as the password of basic authentication."""
        if self._token is None:
            return
        scheme, _, value = given.strip().partition(b" ")
        if scheme.lower() == b"basic":
            try:
                value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                value = b""
        elif scheme.lower() != b"bearer":
            value = b""
        if not hmac.compare_digest(value.strip(), self._token):  # takes the same time wherever they differ
            raise Fault(401, "send the token: Authorization: Bearer TOKEN.")


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Log:
    """Writes one JSON object per line: the event, the route, the time taken; never a cell, a name or an answer.

    Args:
        stream: where to write; standard error by default.
        quiet: whether to leave out successful requests.

    Example:
        >>> Log(sys.stdout, quiet=True)("request", status=200)
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self._stream, self._quiet = stream, quiet

    def __call__(self, event: str, **fields: Any) -> None:
        """Write a line.

        Args:
            event: what happened.
            fields: plain values.
        """
        if self._quiet and event == "request" and fields.get("status", 500) < 400:
            return
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, ensure_ascii=True)
        print(line, file=self._stream or sys.stderr, flush=True)


class Telemetry:
    """Prometheus counters of one service, in a separate registry.

    Example:
        >>> one = Telemetry()
        >>> one.requests.labels("/healthz", "200").inc()
        >>> "snefy_ldl_requests_total" in one.text().decode()
        True
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kind: Any = {"registry": self.registry}
        ProcessCollector(**kind)
        self.requests = Counter("snefy_ldl_requests", "Requests by route and status.", ["route", "status"], **kind)
        self.seconds = Histogram(
            "snefy_ldl_request_seconds", "Time from request to answer.", ["route"], buckets=_SECONDS, **kind
        )
        self.rows = Counter("snefy_ldl_rows", "Rows that were answered.", ["route"], **kind)
        self.batches = Histogram(
            "snefy_ldl_batch_requests", "Requests answered together.", buckets=(1, 2, 4, 8, 16, 32, 64), **kind
        )
        self.work = Counter("snefy_ldl_work_seconds", "Time spent computing answers.", **kind)
        self.loads = Counter("snefy_ldl_model_loads", "Loads of a model.", ["model", "outcome"], **kind)
        self.waiting = Gauge("snefy_ldl_waiting_requests", "Requests in the queue.", **kind)

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)


JSON = "application/json"


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request.

    Args:
        request: whose body has not been read.
        limits: of the service.

    Returns:
        The bytes.

    Raises:
        Fault: 413, it is longer than the limit; 499, the client disconnected before it was complete.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limits.body_bytes:
                raise Fault(413, f"the body is longer than {limits.body_bytes:,} bytes; send fewer rows at a time.")
    except ClientDisconnect:
        raise Fault(499, "the client has disconnected.") from None
    return bytes(body)


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
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != JSON:
        raise Fault(415, f"the content type must be {JSON}.")
    try:
        question = kind.model_validate_json(body)
    except ValidationError as error:  # the first error, without the values that were sent
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = [str(part) for part in first["loc"] if not str(part).startswith(("dict[", "list["))]
        row = next((part for part in first["loc"] if isinstance(part, int)), None)
        named, in_rows = f"field {'.'.join(place)!r}: " if place else "", place[:1] in (["rows"], ["votes"])
        raise Fault(422, f"{named}{first['msg']}", row if in_rows else None, ".".join(place) or None) from None
    if len(question.rows) > limits.rows:
        raise Fault(422, f"{len(question.rows):,} rows; at most {limits.rows:,} at a time.", field="rows")
    return question


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
    if fault.status in (401, 413):  # the rest of the body is not read
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
    # JSON has no infinity and no NaN
    columns = {k: np.where(np.isfinite(v), v.astype(object), None).tolist() for k, v in answer.columns.items()}
    return json_reply({**notes, **columns})
