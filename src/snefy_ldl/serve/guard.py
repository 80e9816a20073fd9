"""ASGI middleware around the service: token, overload, headers, one log line and one count per request."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from snefy_ldl.serve.limits import Fault, Overload
from snefy_ldl.serve.replies import fault_reply, json_reply


class Guard:
    """ASGI middleware: checks each request before the application sees it, then logs and counts it.

    Args:
        app: the application.
        routes: its paths; requests to any other path are counted together.
        token: that requests must send, or None.
        is_full: whether requests to a path are to be refused at once.
        telemetry: counts requests.
        log: writes one line per request.
    """

    #: Headers of every reply; a page that sets its own security policy keeps it.
    headers = (
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    )
    #: Paths that connections beyond the limit may request.
    spare_paths = frozenset(["/healthz", "/readyz"])

    def __init__(
        self,
        app: Any,
        routes: Iterable[str],
        token: str | None,
        is_full: Callable[[str], bool],
        telemetry: Telemetry,
        log: Log,
    ) -> None:
        self._app, self._routes, self._is_full = app, frozenset(routes), is_full
        self._token = None if token is None else token.encode("utf-8")
        self._telemetry, self._log = telemetry, log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Check a request and pass it on to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began, status, started = time.perf_counter(), 500, False
        route = scope["path"] if scope["path"] in self._routes else "other"
        number = secrets.token_hex(4)

        async def send_on(message: Any) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = list(message.get("headers", []))
                named = {name.lower() for name, _ in headers}
                headers += [(name, value) for name, value in self.headers if name not in named]
                message["headers"] = [*headers, (b"x-request-id", number.encode())]
            await send(message)

        try:
            self._check_token(dict(scope["headers"]).get(b"authorization", b""))
            if scope.get("state", {}).get("spare") and scope["path"] not in self.spare_paths:
                raise Overload("too many connections are open; try again in a moment.")
            if scope["method"] == "POST" and self._is_full(scope["path"]):
                raise Overload("too many requests are waiting; try again in a moment.")
            await self._app(scope, receive, send_on)
        except Fault as fault:
            await fault_reply(fault)(scope, receive, send_on)
        except Exception as error:  # a bug: logged without the message, which may quote the request
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._log("error", id=number, kind=type(error).__name__, where=f"{place.filename}:{place.lineno}")
            if not started:
                reply = json_reply({"error": f"internal error; the log has it as {number}."}, 500)
                await reply(scope, receive, send_on)
        finally:
            seconds = time.perf_counter() - began
            self._telemetry.requests.labels(route, str(status)).inc()
            self._telemetry.seconds.labels(route).observe(seconds)
            self._log(
                "request",
                id=number,
                method=scope["method"] if scope["method"].isalpha() else "other",
                route=route,
                status=status,
                ms=round(1e3 * seconds, 2),
                **scope.get("state", {}).get("logged", {}),
            )

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
        self._batch = Histogram(
            "snefy_ldl_batch_requests", "Requests answered together.", buckets=(1, 2, 4, 8, 16, 32, 64), **kind
        )
        self._work = Counter("snefy_ldl_work_seconds", "Time spent computing answers.", **kind)
        self.loads = Counter("snefy_ldl_model_loads", "Loads of a model.", ["model", "outcome"], **kind)
        self.waiting = Gauge("snefy_ldl_waiting_requests", "Requests in the queue.", **kind)

    def batch(self, requests: int, seconds: float) -> None:
        """Count requests that were answered together.

        Args:
            requests: how many.
            seconds: time taken.
        """
        self._batch.observe(requests)
        self._work.inc(seconds)

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)
