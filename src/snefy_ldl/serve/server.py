"""The service as a process: uvicorn, a graceful stop, and threads that let the door answer meanwhile."""

from __future__ import annotations

import gc
import sys
from typing import Any

import uvicorn

__all__ = ["run"]

#: Seconds a thread may hold the interpreter while another waits: health checks answer between two steps of the model.
SWITCH_SECONDS = 0.0005


class _Server(uvicorn.Server):
    """Says that it is stopping before it does."""

    def __init__(self, config: uvicorn.Config, service: Any) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Refuse no request that is there, and tell whoever asks that no further ones should come."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


def run(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until the process is told to stop; what was accepted by then is finished.

    Args:
        app: what :func:`snefy_ldl.serve.app.create_app` returned.
        host: address to listen at.
        port: to listen at.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    # what is there by now stays: without this a collection walks all of torch's objects, and answers wait for it
    gc.collect()
    gc.freeze()
    seconds = int(app.service.limits.seconds) + 5
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=seconds,
        timeout_keep_alive=30,
        server_header=False,
        backlog=512,
    )
    app.service.log("listening", host=host, port=port)
    _Server(config, app.service).run()
    app.service.log("stopped")
