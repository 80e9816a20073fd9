"""The service as a process: uvicorn with time-outs for slow clients, a limit on connections, and a graceful stop."""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import replace
from typing import Any

import uvicorn

from snefy_ldl.apps.serve.limits import Limits

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpProtocol
except ImportError:  # without httptools uvicorn reads requests in Python
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol  # type: ignore[assignment]

#: Interpreter switch interval: health checks are answered while a model computes.
SWITCH_SECONDS = 0.0005
#: Open files that the process needs besides its connections.
OWN_FILES = 64
#: Connections that the operating system may queue.
BACKLOG = 512
#: Extra seconds in which the application itself can refuse a late body.
GRACE_SECONDS = 1.0


def make_protocol(limits: Limits, base: type[Any] = HttpProtocol) -> type[asyncio.Protocol]:
    """uvicorn's protocol with time-outs for heads and bodies, and a limit on connections.

    Beyond the limit the oldest connection that has not sent the head of a request is closed. If there is none,
    further connections are marked ``scope["state"]["spare"]``; when there are too many of these, the oldest connection
    whose body has not come in whole is closed, or else the new one.

    Args:
        limits: ``head_seconds``, ``body_seconds``, ``connections`` and ``spare_connections``.
        base: uvicorn's class.

    Returns:
        The class, for ``uvicorn.Config(http=...)``.

    Example:
        >>> make_protocol(Limits()).__name__
        'Protocol'
    """
    waiting: dict[Any, None] = {}  # connections without the head of a request, the oldest first
    sending: dict[Any, None] = {}  # connections with a head and a part of a body

    class Protocol(base):  # type: ignore[misc]
        """One connection."""

        app_state: dict[str, Any]
        timer: asyncio.TimerHandle | None = None
        seen: Any = None  # the last request whose head is whole

        def connection_made(self, transport: Any) -> None:
            """Close a slow connection if necessary, or mark this one as spare."""
            taken = sum(not one.transport.is_closing() for one in self.connections)
            full = taken >= limits.connections + limits.spare_connections
            slow = waiting if waiting and taken >= limits.connections else sending if full else {}
            if slow:
                oldest = next(iter(slow))
                oldest.stop_waiting()
                oldest.transport.abort()
                taken -= 1
            super().connection_made(transport)
            if taken >= limits.connections:
                self.app_state = {**self.app_state, "spare": True}
            if taken < limits.connections + limits.spare_connections:
                self.wait_for(limits.head_seconds)
            else:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            self.stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """Read data and update the timers."""
            super().data_received(data)
            if not self.look() and self.timer is None:  # the head of another request has begun
                self.wait_for(limits.head_seconds)

        def on_response_complete(self) -> None:
            """Note that the connection is idle; uvicorn limits for how long."""
            super().on_response_complete()
            if not self.look() and not self.transport.is_closing():
                waiting[self] = None

        def look(self) -> bool:
            """Whether a request has arrived, in part or whole; starts a timer for an incomplete body."""
            cycle = self.cycle
            if cycle is None:
                return False
            if cycle is not self.seen:  # its head is complete
                self.seen = cycle
                self.stop_waiting()
                if cycle.more_body:
                    sending[self] = None
                    self.timer = self.loop.call_later(limits.body_seconds + GRACE_SECONDS, self.close_late)
            elif not cycle.response_complete and not cycle.more_body:
                self.stop_waiting()
            return bool(cycle.more_body or not cycle.response_complete)

        def wait_for(self, seconds: float) -> None:
            """Close the connection unless the head of a request arrives in time."""
            waiting[self] = None
            self.timer = self.loop.call_later(seconds, self.close_late)

        def stop_waiting(self) -> None:
            """Stop the timer: the data has arrived."""
            waiting.pop(self, None)
            sending.pop(self, None)
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def close_late(self) -> None:
            """Close the connection: the data did not arrive in time."""
            self.stop_waiting()
            if self.cycle is None:
                self.transport.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    return Protocol


def _fitted(limits: Limits) -> tuple[Limits, int]:
    """Limits that fit the number of files the process may open, and the size of the backlog."""
    try:
        import resource  # not on Windows
    except ImportError:
        return limits, BACKLOG
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return limits, BACKLOG
    room = max(most - OWN_FILES, 8)
    backlog = min(BACKLOG, max(room // 4, 1))  # asyncio may accept this many at once
    spare = min(limits.spare_connections, max(room // 8, 1))
    connections = min(limits.connections, max(room - backlog - spare, 1))
    return replace(limits, connections=connections, spare_connections=spare), backlog


class _Server(uvicorn.Server):
    """Reports that it is stopping before it stops."""

    def __init__(self, config: uvicorn.Config, service: Any) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Finish accepted requests, and report "stopping" to health checks."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


def make_server(app: Any, host: str = "127.0.0.1", port: int = 8000) -> uvicorn.Server:
    """Create a server without starting it.

    Args:
        app: what :func:`snefy_ldl.apps.serve.app.create_app` returned.
        host: address to listen at.
        port: to listen at; 0 takes a free one.

    Returns:
        The server; ``run()`` starts it.
    """
    limits, backlog = _fitted(app.service.limits)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=make_protocol(limits),
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=int(limits.seconds) + 5,
        timeout_keep_alive=30,
        server_header=False,
        backlog=backlog,
    )
    return _Server(config, app.service)


def run(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until the process is stopped; requests accepted by then are answered.

    Args:
        app: what :func:`snefy_ldl.apps.serve.app.create_app` returned.
        host: address to listen at.
        port: to listen at.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    # exclude torch's objects from garbage collections, which would delay answers
    gc.collect()
    gc.freeze()
    server = make_server(app, host, port)
    app.service.log("listening", host=host, port=port)
    server.run()
    app.service.log("stopped")
