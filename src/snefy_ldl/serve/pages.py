"""The explorer's page of each served model, made once per version."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from snefy_ldl.errors import InputError
from snefy_ldl.serve.explorer import PageRows, make_page
from snefy_ldl.serve.faults import Overload
from snefy_ldl.serve.pace import Caller
from snefy_ldl.serve.store import ServedModel

__all__ = ["Pages"]


class Pages:
    """Pages by model and version; only the last of each model is kept.

    Args:
        data: table whose rows the pages show, or None.

    Example:
        >>> Pages(None).policy.startswith("default-src 'none'")
        True
    """

    #: What a browser lets the page do: run its own script and style, and nothing from elsewhere.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    def __init__(self, data: Path | None) -> None:
        self._data, self._lock = data, threading.Lock()
        self._made: dict[str, tuple[str, Future[str]]] = {}

    async def get(self, served: ServedModel, caller: Caller) -> str:
        """The page of a model as it is now; a page is made once, however many ask for it.

        Args:
            served: the model.
            caller: who waits.

        Returns:
            One HTML document.

        Raises:
            InputError: where the rows of the table do not fit the model, or its network is the user's own.
            Overload: it is not made when the caller's time is up; it will be there later.
        """
        if served.is_own:
            raise InputError("its network is your own, and the page computes with the library's; ask /v1/predict.")
        with self._lock:
            version, made = self._made.get(served.name, ("", Future()))
            if version != served.version or (made.done() and made.exception() is not None):
                made = Future()
                self._made[served.name] = (served.version, made)
                threading.Thread(target=self._make, args=(served, made), name="page", daemon=True).start()
        left = max(caller.deadline - time.monotonic(), 0.0)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(made)), left)
        except asyncio.TimeoutError:
            raise Overload("the page is being made; try again in a moment.") from None

    def _make(self, served: ServedModel, made: Future[str]) -> None:
        try:
            rows = None if self._data is None else PageRows.read(served.model, self._data)
            made.set_result(make_page(served.model, rows, served.name, served.calibrated))
        except Exception as error:  # whoever waits meets it
            made.set_exception(error)
