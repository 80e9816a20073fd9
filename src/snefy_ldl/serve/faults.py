"""What can be wrong with a request, as an HTTP status and one sentence."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["Fault", "HungUp", "Overload", "printable"]

_ROW = re.compile(r"\brow (\d+)")


class Fault(Exception):
    """A request that cannot be answered, and why.

    Args:
        status: of HTTP: 401, 404, 408, 413, 415, 422 or 503; 499 where the client has left.
        message: one sentence; it names the row and the field where there are some.
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
        """What is sent: the sentence, and row and field where they are known.

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
    """More than the service takes on: 503, with the time after which to come again.

    Args:
        message: one sentence.

    Example:
        >>> Overload("the queue is full").status
        503
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message, retry_after=1)


class HungUp(Fault):
    """The client has left: nobody reads the answer, and nothing went wrong here.

    Example:
        >>> HungUp().status
        499
    """

    def __init__(self) -> None:
        super().__init__(499, "the client has left.")


def printable(text: str, most: int = 500) -> str:
    """A text that can be sent: half characters replaced, and not longer than need be.

    Args:
        text: perhaps out of a request.
        most: characters that are kept.

    Returns:
        The text.

    Example:
        >>> printable("a" + chr(0xD800), 10)
        'a?'
    """
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= most else f"{whole[:most]} ..."
