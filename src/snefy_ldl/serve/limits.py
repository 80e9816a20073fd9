"""How much a service takes on: of one request, and of all together."""

from __future__ import annotations

from dataclasses import dataclass, fields

from snefy_ldl.errors import InputError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What one request may hold, and how much may wait.

    Args:
        body_bytes: largest body of a request.
        rows: most rows a request.
        heavy_rows: most rows of a question that is worked out a row at a time: ``update``, ``condition``, ``next``.
        cells: most numbers a density answer may hold, rows times points.
        votes: most votes on one item.
        seconds: how long a request may wait and be worked on; then it is given up with 503. A request that would take
            longer, by what was measured, gets 413 at once.
        queue: requests that may wait for their turn, per model; further ones get 503 at once.
        batch_rows: rows of waiting requests that are answered together.
        batch_wait: seconds to wait for further requests where several came together the last time.
        head_seconds: how long a client may take to send the head of a request; then the connection is closed.
        body_seconds: how long it may take to send the body.
        connections: open at a time; of further ones only health checks are answered.
        spare_connections: kept for these.

    Raises:
        InputError: a limit is not above 0 (``batch_wait``: is below 0).

    Example:
        >>> Limits(rows=100).rows
        100
    """

    body_bytes: int = 8 << 20
    rows: int = 10_000
    heavy_rows: int = 1_000
    cells: int = 2_000_000
    votes: int = 10_000
    seconds: float = 10.0
    queue: int = 64
    batch_rows: int = 2_048
    batch_wait: float = 0.002
    head_seconds: float = 5.0
    body_seconds: float = 20.0
    connections: int = 512
    spare_connections: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value >= 0 if field.name == "batch_wait" else value > 0):
                raise InputError(f"limit {field.name}={value!r}: it must be above 0.")
