"""The door of the service: token, shedding, headers, one log line and one count per request."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from snefy_ldl.serve.faults import Fault, Overload
from snefy_ldl.serve.replies import fault_reply, json_reply
from snefy_ldl.serve.telemetry import Log, Telemetry

__all__ = ["Guard"]


class Guard:
    """An ASGI application around another one.

    Args:
        app: what is guarded.
        routes: its paths; all others are counted as one.
        token: that requests must bring, or None.
        is_full: whether questions to a path are to be refused at once.
        telemetry: counts requests.
        log: writes one line per request.
    """

    #: Headers of every reply; a page that says itself what it may do keeps its own policy.
    headers = (
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    )
    #: What connections beyond the limit may ask.
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
        """Answer a request, or let the application do so."""
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
        except Exception as error:  # a mistake of ours: said without what the message may quote from the request
            place = traceback.extract_tb(error.__traceback__)[-1]
            self._log("error", id=number, kind=type(error).__name__, where=f"{place.filename}:{place.lineno}")
            if not started:
                reply = json_reply({"error": f"something went wrong here; the log has it as {number}."}, 500)
                await reply(scope, receive, send_on)
        finally:
            seconds = time.perf_counter() - began
            self._telemetry.request(route, status, seconds)
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
        """Raise unless the request brings the token: as a bearer, or as the password that browsers ask for."""
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
