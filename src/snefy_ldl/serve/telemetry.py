"""What a service tells about itself: counters for Prometheus, and log lines without the data."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["Log", "Telemetry"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Log:
    """One JSON object a line: what happened, to which route, how long it took; never a cell, a name or an answer.

    Args:
        stream: where lines go; standard error by default.
        quiet: whether requests that ended well are left out.

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
    """Counters of one service, in a registry of its own.

    Example:
        >>> one = Telemetry()
        >>> one.request("/healthz", 200, 0.001)
        >>> "snefy_ldl_requests_total" in one.text().decode()
        True
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kind: Any = {"registry": self.registry}
        ProcessCollector(**kind)
        self._requests = Counter("snefy_ldl_requests", "Requests by route and status.", ["route", "status"], **kind)
        self._seconds = Histogram(
            "snefy_ldl_request_seconds", "Time from a request to its answer.", ["route"], buckets=_SECONDS, **kind
        )
        self._rows = Counter("snefy_ldl_rows", "Rows that were answered.", ["route"], **kind)
        self._batch = Histogram(
            "snefy_ldl_batch_requests", "Requests answered together.", buckets=(1, 2, 4, 8, 16, 32, 64), **kind
        )
        self._work = Counter("snefy_ldl_work_seconds", "Time the model worked.", **kind)
        self._loads = Counter("snefy_ldl_model_loads", "Times a model was read.", ["model", "outcome"], **kind)
        self.waiting = Gauge("snefy_ldl_waiting_requests", "Requests that wait for their turn.", **kind)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            route: its path as the service names it.
            status: of the answer.
            seconds: it took.
        """
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def rows(self, route: str, count: int) -> None:
        """Count rows that were answered.

        Args:
            route: of the request.
            count: of its rows.
        """
        self._rows.labels(route).inc(count)

    def batch(self, requests: int, seconds: float) -> None:
        """Count requests that were answered together.

        Args:
            requests: how many.
            seconds: it took.
        """
        self._batch.observe(requests)
        self._work.inc(seconds)

    def load(self, model: str, outcome: str) -> None:
        """Count a reading of a model.

        Args:
            model: its name.
            outcome: "loaded" or "load failed".
        """
        self._loads.labels(model, outcome).inc()

    def text(self) -> bytes:
        """All counters in Prometheus' text format."""
        return generate_latest(self.registry)
