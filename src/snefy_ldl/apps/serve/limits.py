"""Limits of the service, and the errors of requests as HTTP statuses."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from snefy_ldl.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Limits on single requests, on the queue and on connections.

    Args:
        body_bytes: largest body of a request.
        rows: most rows per request.
        heavy_rows: most rows of a request that is computed row by row: ``update``, ``condition``, ``next``.
        cells: most numbers a density answer may hold, rows times points.
        votes: most votes on one item.
        seconds: how long a request may wait and be computed before it fails with 503.
        queue: requests that may wait, per model; further ones get 503 at once.
        batch_rows: rows of waiting requests that are answered together.
        batch_wait: seconds to wait for further requests if the last batch had several.
        connections: open at a time, requests in progress included; beyond that uvicorn answers 503.

    Raises:
        InputError: a limit is not above 0 (``batch_wait``: is below 0).

    Example:
        >>> Limits(rows=100).rows
        100
    """

    body_bytes: int = 8 << 20
    rows: int = 10_000
    heavy_rows: int = 1_000
    cells: int = 500_000
    votes: int = 10_000
    seconds: float = 10.0
    queue: int = 64
    batch_rows: int = 2_048
    batch_wait: float = 0.002
    connections: int = 512

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value >= 0 if field.name == "batch_wait" else value > 0):
                raise InputError(f"limit {field.name}={value!r}: it must be above 0.")


_ROW = re.compile(r"\brow (\d+)")


class Fault(Exception):
    """A request that cannot be answered, with the HTTP status and the reason.

    Args:
        status: 401, 404, 413, 415, 422 or 503; 499 if the client has disconnected.
        message: one sentence, which names the row and the field if there are any.
        row: number of the row, from 0, or None; by default the one that the message names.
        field: name of the field, or None.
        retry_after: seconds after which to try again, or None.

    Example:
        >>> Fault(422, "row 3: no number", field="income").content()
        {'error': 'row 3: no number', 'row': 3, 'field': 'income'}
    """

    def __init__(
        self,
        status: int,
        message: str,
        row: int | None = None,
        field: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        named = _ROW.search(message)
        self.status, self.message, self.field, self.retry_after = status, printable(message), field, retry_after
        self.row = int(named.group(1)) if row is None and named is not None else row

    def content(self) -> dict[str, Any]:
        """The body of the reply: the message, and row and field if they are known.

        Example:
            >>> Fault(404, "there is no such model").content()
            {'error': 'there is no such model'}
        """
        content: dict[str, Any] = {"error": self.message}
        if self.row is not None:
            content["row"] = self.row
        if self.field is not None:
            content["field"] = printable(self.field)
        return content


class Overload(Fault):
    """The service is overloaded: 503, with the time after which to retry.

    Args:
        message: one sentence.

    Example:
        >>> Overload("the queue is full").status
        503
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message, retry_after=1)


def printable(text: str, most: int = 500) -> str:
    """Text that can be sent: lone surrogates replaced, long text cut.

    Args:
        text: any text, perhaps from a request.
        most: maximum number of characters.

    Returns:
        The text.

    Example:
        >>> printable("a" + chr(0xD800), 10)
        'a?'
    """
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= most else f"{whole[:most]} ..."
