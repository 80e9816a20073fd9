"""Limits of the service, and the errors of requests as HTTP statuses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Limits on single requests and on connections.

    Args:
        body_bytes: largest body of a request.
        rows: most rows per request.
        votes: most votes on one item.
        seconds: how long a request may wait and be computed before it fails with 503.
        connections: open at a time, requests in progress included; beyond that uvicorn answers 503.

    Example:
        >>> Limits(rows=100).rows
        100
    """

    body_bytes: int = 8 << 20
    rows: int = 10_000
    votes: int = 10_000
    seconds: float = 10.0
    connections: int = 512


_ROW = re.compile(r"\brow (\d+)")


class Fault(Exception):
    """A request that cannot be answered, with the HTTP status and the reason.

    Args:
        status: 401, 404, 411, 413, 422 or 503.
        message: one sentence, which names the row and the field if there are any.
        row: number of the row, from 0, or None; by default the one that the message names.
        field: name of the field, or None.

    Example:
        >>> Fault(422, "row 3: no number", field="income").content()
        {'error': 'row 3: no number', 'row': 3, 'field': 'income'}
    """

    def __init__(self, status: int, message: str, row: int | None = None, field: str | None = None) -> None:
        super().__init__(message)
        named = _ROW.search(message)
        self.status, self.message, self.field = status, message[:500], field
        self.row = int(named.group(1)) if row is None and named is not None else row

    def content(self) -> dict[str, Any]:
        """The body of the reply: the message, and row and field if they are known.

        Example:
            >>> Fault(404, "there is no such model").content()
            {'error': 'there is no such model'}
        """
        named = {"row": self.row, "field": self.field}
        return {"error": self.message, **{name: value for name, value in named.items() if value is not None}}
