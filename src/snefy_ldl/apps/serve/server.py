"""The service as a process: uvicorn with limits on connections, and a graceful stop."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any

import uvicorn

#: Interpreter switch interval: health checks are answered while a model computes.
SWITCH_SECONDS = 0.0005
#: How long an idle connection is kept, in seconds.
KEEP_ALIVE_SECONDS = 30


def make_server(app: Any, host: str = "127.0.0.1", port: int = 8000) -> uvicorn.Server:
    """Create a server without starting it.

    Args:
        app: what :func:`snefy_ldl.apps.serve.app.create_app` returned.
        host: address to listen at.
        port: to listen at; 0 takes a free one.

    Returns:
        The server; ``run()`` starts it.
    """
    limits = app.service.limits
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            access_log=False,
            log_level="warning",
            limit_concurrency=limits.connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(limits.seconds) + 5,
            server_header=False,
        )
    )


def run(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until the process is stopped; requests accepted by then are answered, and it exits with status 0.

    Args:
        app: what :func:`snefy_ldl.apps.serve.app.create_app` returned.
        host: address to listen at.
        port: to listen at.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    # exclude torch's objects from garbage collections, which would delay answers
    gc.collect()
    gc.freeze()
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn stops, then raises the signal again for this handler
        signal.signal(number, lambda *_: sys.exit(0))
    app.service.log("listening", host=host, port=port)
    try:
        make_server(app, host, port).run()
    finally:
        app.service.log("stopped")
