"""The service as a process: uvicorn with a limit on connections and a graceful stop."""

from __future__ import annotations

import gc
import sys
from typing import Any

import uvicorn

#: Interpreter switch interval: health checks are answered while a model computes.
SWITCH_SECONDS = 0.0005


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
        app: what :func:`snefy_ldl.serve.app.create_app` returned.
        host: address to listen at.
        port: to listen at; 0 takes a free one.

    Returns:
        The server; ``run()`` starts it.
    """
    limits = app.service.limits
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        limit_concurrency=limits.connections,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=int(limits.seconds) + 5,
        timeout_keep_alive=30,
        server_header=False,
    )
    return _Server(config, app.service)


def run(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until the process is stopped; requests accepted by then are answered.

    Args:
        app: what :func:`snefy_ldl.serve.app.create_app` returned.
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
